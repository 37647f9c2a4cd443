//! Recorded runs, on every engine: a replay is the run that happened, or an error that says why it is not.

#[path = "common/engines.rs"]
mod engines;
#[path = "common/events.rs"]
mod events;

use bpf_runtime::{
    BpfContext, Caller, Config, ContextBytes, ContextBytesMut, Engine, HelperError, Instance, Linker, MapSet, Mode,
    Object, Program, Raw, RunError,
    isa::{InsnIdx, assemble},
    observe::{
        Observed, Observer, RecordError, RecordMode, Recorder, RecorderOptions, Recording, RecordingMismatch,
        ReplayError,
    },
};
use engines::engines;
use events::OnEvent;
use proptest::prelude::*;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

#[derive(BpfContext)]
#[repr(C)]
struct Request<'p> {
    client: u32,
    #[bpf(writable)]
    cost: u32,
    path: ContextBytes<'p>,
    body: ContextBytesMut<'p>,
}

type Prog = Program<Request<'static>, ()>;

const OBJECT: &[u8] = include_bytes!("objects/observe.o");

/// The function `sign` returns other bytes each time.
fn linker(engine: &Engine) -> Linker<()> {
    static CALLS: AtomicU64 = AtomicU64::new(0);
    let mut linker = Linker::new(engine);
    let sign = |_: &mut Caller<'_, ()>, out: &mut [u8]| -> Result<u64, HelperError> {
        let call = CALLS.fetch_add(1, Ordering::Relaxed);
        out.iter_mut().zip(call.to_le_bytes().repeat(8)).for_each(|(to, byte)| *to = byte ^ 0x5a);
        if call % 16 == 15 { Err(HelperError::new("no ink")) } else { Ok(call * 3) }
    };
    linker.func_named("sign", sign).unwrap();
    linker
}

fn load(engine: &Engine, recordable: bool) -> Instance<()> {
    let object = Object::parse(OBJECT).unwrap();
    let maps = MapSet::for_object(engine, &object).unwrap();
    linker(engine).loader::<Request<'static>>().recordable(recordable).object(&object, maps).unwrap()
}

fn program(instance: &Instance<()>, name: &str) -> Prog {
    instance.program::<Request<'static>>(name).unwrap()
}

/// Runs it once. Returns the result, or the message of the error, and the cost and the body after the run.
fn run(
    recorder: &mut Recorder<Request<'static>, ()>,
    client: u32,
    path: &[u8],
) -> (Result<u64, String>, u32, [u8; 12]) {
    let mut body = [7; 12];
    let mut request = Request {
        client,
        cost: 9,
        path: ContextBytes::new(path).unwrap(),
        body: ContextBytesMut::new(&mut body).unwrap(),
    };
    let result = recorder.run(&mut (), &mut request).map_err(|error| error.to_string());
    (result, request.cost, body)
}

/// The cost in the context after a replay.
fn cost(context: &[u8]) -> u32 {
    u32::from_le_bytes(context[4..8].try_into().unwrap())
}

/// Notes each instruction and its registers.
#[derive(Default, PartialEq, Eq, Debug)]
struct Steps(Vec<(InsnIdx, [u64; 11])>);

impl Observer for Steps {
    fn step(&mut self, step: &Observed<'_>) -> bool {
        self.0.push((step.at(), *step.regs()));
        true
    }
}

#[test]
fn contexts_are_recorded_as_they_were() {
    for engine in engines(|config| config) {
        let instance = load(&engine, true);
        let mut recorder = program(&instance, "pure").recorder(RecorderOptions::new()).unwrap();
        let native = engine.config().get_mode() == Mode::Jit;
        assert_eq!(recorder.mode(), if native { RecordMode::Context } else { RecordMode::Interpreted });
        // More runs than are kept.
        let path = b"/index.html?of=a&long=path";
        let ran: Vec<_> = (0..40).map(|client| run(&mut recorder, client, &path[..client as usize % 20])).collect();
        let recording = Recording::parse(&recorder.save()).unwrap();
        assert_eq!(recording.runs(), 16);
        for (number, (result, after, _)) in ran[24..].iter().enumerate() {
            let replayed = recording.replay(number, &mut ()).unwrap();
            assert_eq!((&replayed.result, cost(&replayed.context)), (result, *after), "run {number}");
        }
        assert_eq!(recording.replay(16, &mut ()), Err(ReplayError::NoRun { run: 16, runs: 16 }));
    }
}

#[test]
fn maps_functions_and_call_backs_are_recorded() {
    for engine in engines(|config| config) {
        let instance = load(&engine, true);
        let mut recorder = program(&instance, "all").recorder(RecorderOptions::new()).unwrap();
        assert_eq!(recorder.mode(), RecordMode::Interpreted);
        let ran: Vec<_> = (0..16).map(|client| run(&mut recorder, client % 3, b"/")).collect();
        assert!(ran.iter().any(|(result, ..)| result.as_ref().is_err_and(|error| error.contains("no ink"))));
        let recording = Recording::parse(&recorder.save()).unwrap();
        for (number, (result, after, _)) in ran.iter().enumerate() {
            let (mut once, mut again) = (Steps::default(), Steps::default());
            let replayed = recording.replay(number, &mut once).unwrap();
            assert_eq!((&replayed.result, cost(&replayed.context)), (result, *after), "run {number}");
            assert_eq!(replayed.steps, once.0.len() as u64);
            recording.replay(number, &mut again).unwrap();
            assert_eq!(once, again);
        }
    }
}

/// A replay shows what the recorded run showed: each instruction with each register, addresses as well.
#[test]
fn replays_have_the_recorded_registers() {
    let instance = load(&Engine::new(Config::new().mode(Mode::Interpreter)).unwrap(), false);
    let program = program(&instance, "all");
    let mut recorder = program.recorder(RecorderOptions::new()).unwrap();
    let _ = run(&mut recorder, 1, b"/");
    let mut steps = Steps::default();
    Recording::parse(&recorder.save()).unwrap().replay(0, &mut steps).unwrap();
    let (mut body, mut seen) = ([7; 12], Steps::default());
    let mut request = Request {
        client: 1,
        cost: 9,
        path: ContextBytes::new(b"/").unwrap(),
        body: ContextBytesMut::new(&mut body).unwrap(),
    };
    program.run_observed(&mut (), &mut request, &mut seen).unwrap();
    // Another run has other numbers, but begins the same way.
    let ats = |steps: &Steps| steps.0.iter().take(8).map(|(at, _)| *at).collect::<Vec<_>>();
    assert_eq!(ats(&steps), ats(&seen));
}

/// Another thread changes what the program reads while it runs.
#[test]
fn changes_by_other_threads_are_recorded() {
    for engine in engines(|config| config) {
        let instance = load(&engine, true);
        let mut recorder = program(&instance, "races").recorder(RecorderOptions::new()).unwrap();
        let bss = instance.maps().find(|map| map.name().ends_with(".bss")).unwrap().clone();
        let (over, begun) = (AtomicBool::new(false), AtomicBool::new(false));
        /// Ends the thread also if an assertion fails.
        struct Ends<'f>(&'f AtomicBool);
        impl Drop for Ends<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        std::thread::scope(|threads| {
            let _ends = Ends(&over);
            threads.spawn(|| {
                let mut value = bss.get(&[0; 4]).unwrap().unwrap();
                for number in 0u64.. {
                    value[..8].copy_from_slice(&number.to_le_bytes());
                    bss.set(&[0; 4], &value).unwrap();
                    begun.store(true, Ordering::Relaxed);
                    if over.load(Ordering::Relaxed) {
                        break;
                    }
                }
            });
            while !begun.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
            for _ in 0..8 {
                let ran: Vec<_> = (0..16).map(|client| run(&mut recorder, client, b"/")).collect();
                let recording = recorder.recording();
                for (number, (result, after, _)) in ran.iter().enumerate() {
                    let replayed = recording.replay(number, &mut ()).unwrap();
                    assert_eq!((&replayed.result, cost(&replayed.context)), (result, *after));
                }
            }
        });
    }
}

/// Machine code is the same with and without the setting.
#[test]
fn code_of_recordable_programs_is_the_same() {
    for engine in engines(|config| config).into_iter().filter(|engine| engine.config().get_mode() == Mode::Jit) {
        let linker = Linker::<()>::new(&engine);
        let insns = assemble("r0 = 0\nif r2 == 0 goto +1\nr0 = *(u8 *)(r1 + 0)\nexit").unwrap();
        let plain = linker.loader::<Raw>().insns("plain", insns.clone()).unwrap();
        let kept = linker.loader::<Raw>().recordable(true).insns("kept", insns).unwrap();
        assert_eq!(plain.machine_code().unwrap().0, kept.machine_code().unwrap().0);
        let lengths = [false, true].map(|recordable| {
            let instance = load(&engine, recordable);
            // Addresses of maps differ from load to load, so lengths are compared here.
            ["all", "races"].map(|name| program(&instance, name).machine_code().unwrap().0.len())
        });
        assert_eq!(lengths[0], lengths[1]);
        let error = plain.recorder(RecorderOptions::new()).unwrap_err();
        assert_eq!(error, RecordError::NotKept { program: "plain".into() });
        let observed = plain.run_observed(&mut (), &mut [], &mut ());
        assert!(matches!(observed, Err(RunError::NotObserved { .. })));
    }
}

#[test]
fn programs_that_cannot_be_recorded_are_refused() {
    for engine in engines(|config| config) {
        let instance = load(&engine, true);
        let none = RecorderOptions::new().runs(0);
        assert_eq!(program(&instance, "pure").recorder(none).unwrap_err(), RecordError::NoRuns);
        let linker = Linker::<()>::new(&engine);
        let packet = assemble("r6 = r1\nr0 = *(u8 *)skb[0]\nexit").unwrap();
        if let Ok(packet) = linker.loader::<Raw>().recordable(true).insns("packet", packet) {
            let error = packet.recorder(RecorderOptions::new()).unwrap_err();
            assert!(matches!(error, RecordError::Unsupported { .. }), "{error}");
        }
        let sleeps = linker.loader::<Raw>().recordable(true).sleepable(true);
        let sleeps = sleeps.insns("sleeps", assemble("r0 = 0\nexit").unwrap()).unwrap();
        let error = sleeps.recorder(RecorderOptions::new()).unwrap_err();
        assert_eq!(error, RecordError::Sleepable { program: "sleeps".into() });
        if engine.config().get_mode() == Mode::Jit {
            // SAFETY: the program only returns.
            let unverified = unsafe { linker.loader::<Raw>().unverified(true) };
            let unverified = unverified.recordable(true).insns("any", assemble("r0 = 0\nexit").unwrap()).unwrap();
            let error = unverified.recorder(RecorderOptions::new()).unwrap_err();
            assert_eq!(error, RecordError::Unverified { program: "any".into() });
        }
    }
}

/// Runs that end by a stop, by too long a log, and by a panic of the host.
#[test]
fn unusual_ends_are_recorded() {
    for engine in engines(|config| config) {
        let linker = Linker::<()>::new(&engine);
        let endless = assemble("r0 = 0\nr0 += 1\nif r0 < r2 goto -2\nexit").unwrap();
        let endless = linker.loader::<Raw>().hybrid(true).recordable(true).budget(5).insns("endless", endless).unwrap();
        let mut recorder = endless.recorder(RecorderOptions::new()).unwrap();
        assert!(matches!(recorder.run(&mut (), &mut [0; 9]), Err(RunError::Budget { .. })));
        assert_eq!(recorder.run(&mut (), &mut [0; 3]).unwrap(), 3);
        let recording = Recording::parse(&recorder.save()).unwrap();
        match (recorder.mode(), recording.replay(0, &mut ())) {
            (RecordMode::Context, Err(ReplayError::Stopped { error })) => assert!(error.contains("budget"), "{error}"),
            (RecordMode::Interpreted, Ok(replayed)) => assert!(replayed.result.unwrap_err().contains("budget")),
            (mode, other) => panic!("{mode:?}: {other:?}"),
        }
        assert_eq!(recording.replay(1, &mut ()).unwrap().result, Ok(3));

        let instance = load(&engine, true);
        let small = RecorderOptions::new().run_bytes(100);
        let mut recorder = program(&instance, "races").recorder(small).unwrap();
        run(&mut recorder, 1, b"/").0.unwrap();
        assert!(recorder.bytes() < 400);
        let recording = Recording::parse(&recorder.save()).unwrap();
        assert_eq!(recording.replay(0, &mut ()), Err(ReplayError::Cut));

        let mut linker = Linker::<()>::new(&engine);
        linker.func(1001, "gone", |_: &mut Caller<'_, ()>| -> u64 { panic!("gone") }).unwrap();
        let insns = assemble("call 1001\nexit").unwrap();
        let gone = linker.loader::<Raw>().recordable(true).insns("gone", insns).unwrap();
        let mut recorder = gone.recorder(RecorderOptions::new()).unwrap();
        let panics = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| recorder.run(&mut (), &mut [])));
        let replayed = recorder.recording().replay(0, &mut ());
        // The runtime turns panics of functions into errors, or lets them go through.
        match panics {
            Ok(result) => assert_eq!(replayed.unwrap().result.unwrap_err(), result.unwrap_err().to_string()),
            Err(_) => assert_eq!(replayed, Err(ReplayError::Unfinished)),
        }
    }
}

/// The observer ends a run and a replay.
#[test]
fn observers_end_runs() {
    struct Three(u32);
    impl Observer for Three {
        fn step(&mut self, step: &Observed<'_>) -> bool {
            assert_eq!(step.frames(), 1);
            assert_eq!(step.read(step.regs()[10] - 8, 8), Some(vec![0; 8]));
            assert_eq!(step.read(step.regs()[10], 1), None);
            self.0 += 1;
            self.0 < 3
        }
    }
    for engine in engines(|config| config) {
        let insns = assemble("r0 = 0\nr0 = 1\nr0 = 2\nr0 = 3\nexit").unwrap();
        let program = Linker::<()>::new(&engine).loader::<Raw>().recordable(true).insns("counts", insns).unwrap();
        assert!(program.run_observed(&mut (), &mut [], &mut Three(0)).is_err());
        let mut recorder = program.recorder(RecorderOptions::new()).unwrap();
        recorder.run(&mut (), &mut []).unwrap();
        assert_eq!(recorder.recording().replay(0, &mut Three(0)), Err(ReplayError::Ended));
    }
}

/// A recording of another version of the program, or of another host.
#[test]
fn other_versions_are_told() {
    let engine = Engine::new(Config::new()).unwrap();
    let linker = Linker::<()>::new(&engine);
    let raw =
        |name: &str, text: &str| linker.loader::<Raw>().recordable(true).insns(name, assemble(text).unwrap()).unwrap();
    let seven = raw("seven", "r0 = 7\nexit");
    let recording = seven.recorder(RecorderOptions::new()).unwrap().recording();
    recording.check(&seven.listing().unwrap()).unwrap();
    let error = recording.check(&raw("seven", "r0 = 8\nexit").listing().unwrap()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the recording is of another version of program `seven`: instruction 0 was `r0 = 7`, and is `r0 = 8`"
    );
    let error = recording.check(&raw("eight", "r0 = 7\nexit").listing().unwrap()).unwrap_err();
    assert!(matches!(error, RecordingMismatch::Name { .. }), "{error}");
    let insns = assemble("r0 = 7\nexit").unwrap();
    let other = linker.loader::<Request<'static>>().recordable(true).insns("seven", insns).unwrap();
    let error = recording.check(&other.listing().unwrap()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the recording is of another host: its context has no further field, where the given one has `client`, 4 bytes at 0"
    );
}

/// The bytes of a recording with runs of `all`.
static SAVED: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let instance = load(&Engine::new(Config::new()).unwrap(), true);
    let options = RecorderOptions::new().runs(2);
    let mut recorder = program(&instance, "all").recorder(options).unwrap();
    (0..2).for_each(|client| drop(run(&mut recorder, client, b"/")));
    recorder.save()
});

/// Corrects the checksum of changed bytes, as an attacker does.
fn summed(mut bytes: Vec<u8>) -> Vec<u8> {
    const MIX: u64 = 0x9e37_79b9_7f4a_7c15;
    let (words, rest) = bytes[16..].as_chunks::<8>();
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    let start = MIX ^ (bytes.len() - 16) as u64;
    let words = words.iter().chain([&last]).map(|word| u64::from_le_bytes(*word));
    let sum = words.fold(start, |sum, word| (sum ^ word).wrapping_mul(MIX).rotate_left(29));
    bytes[8..16].copy_from_slice(&sum.to_le_bytes());
    bytes
}

/// Stops long replays.
struct Bounded(u32);

impl Observer for Bounded {
    fn step(&mut self, step: &Observed<'_>) -> bool {
        step.read(step.regs()[1], 8);
        self.0 += 1;
        self.0 < 20_000
    }
}

/// Reads and repeats whatever these bytes are: no panic. Returns whether they were read.
fn attack(bytes: &[u8]) -> bool {
    let Ok(recording) = Recording::parse(bytes) else { return false };
    for run in 0..recording.runs().min(4) {
        let _ = recording.replay(run, &mut Bounded(0));
    }
    assert_eq!(Recording::parse(&recording.to_bytes()).unwrap().runs(), recording.runs());
    true
}

#[test]
fn cut_recordings_are_refused() {
    let saved = &*SAVED;
    assert!(attack(saved) && summed(saved.clone()) == *saved);
    for len in 0..saved.len() {
        let error = Recording::parse(&saved[..len]).unwrap_err();
        assert!(error.at <= len, "{error}");
        if len >= 16 {
            let error = Recording::parse(&summed(saved[..len].to_vec())).unwrap_err();
            assert!(error.at <= len, "{error}");
        }
    }
    let mut longer = saved.clone();
    longer.push(0);
    assert!(Recording::parse(&summed(longer)).unwrap_err().what.contains("behind the last run"));
    let mut other = saved.clone();
    other[7] = 9;
    assert_eq!(
        Recording::parse(&other).unwrap_err().to_string(),
        "recording, byte 7: version 9 is not known here, 2 is"
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_are_read(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        attack(&bytes);
        let headed = [b"bpfrec\x00\x02", &[0; 8][..], &bytes].concat();
        attack(&summed(headed));
    }

    #[test]
    fn changed_recordings_are_read(changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4)) {
        let mut bytes = SAVED.clone();
        for (at, byte) in &changes {
            let at = 16 + at.index(bytes.len() - 16);
            bytes[at] = *byte;
        }
        prop_assert!(bytes == *SAVED || Recording::parse(&bytes).is_err(), "the checksum");
        attack(&summed(bytes));
    }
}

/// Notes the name of each instruction's program, once in a row.
#[derive(Default)]
struct Names(Vec<(usize, String)>);

impl Observer for Names {
    fn step(&mut self, step: &Observed<'_>) -> bool {
        let now = (step.program(), step.name().to_owned());
        if self.0.last() != Some(&now) {
            self.0.push(now);
        }
        true
    }
}

/// Prog arrays of an engine that compiles hold addresses of machine code, and the interpreter enters their programs.
#[test]
fn tail_calls_are_observed_and_recorded() {
    for engine in engines(|config| config) {
        let instance = load(&engine, true);
        let routes = instance.prog_array::<Request<'static>>("routes").unwrap();
        let routed = program(&instance, "routed");
        let mut recorder = routed.recorder(RecorderOptions::new()).unwrap();
        let mut ran = vec![run(&mut recorder, 1, b"/a")];
        for to in ["pure", "all", "pure"] {
            routes.set(0, &program(&instance, to)).unwrap();
            ran.push(run(&mut recorder, 1, b"/a"));
        }
        routes.clear(0).unwrap();
        ran.push(run(&mut recorder, 1, b"/a"));
        let recording = Recording::parse(&recorder.save()).unwrap();
        let entered = [None, Some("pure"), Some("all"), Some("pure"), None];
        for (number, ((result, after, _), entered)) in ran.iter().zip(entered).enumerate() {
            let mut names = Names::default();
            let replayed = recording.replay(number, &mut names).unwrap();
            assert_eq!((&replayed.result, cost(&replayed.context)), (result, *after), "run {number}");
            let expected = ["routed"].into_iter().chain(entered).map(str::to_owned).enumerate().collect::<Vec<_>>();
            assert_eq!(names.0, expected);
        }
        routes.set(0, &program(&instance, "pure")).unwrap();
        let mut body = [7; 12];
        let (path, body) = (ContextBytes::new(b"/a").unwrap(), ContextBytesMut::new(&mut body).unwrap());
        let mut request = Request { client: 1, cost: 9, path, body };
        let (plain, mut names) = (routed.run(&mut (), &mut request).unwrap(), Names::default());
        assert_eq!(routed.run_observed(&mut (), &mut request, &mut names).unwrap(), plain);
        assert_eq!(names.0, [(0, "routed".to_owned()), (1, "pure".to_owned())]);
        // A program that keeps no instructions.
        if engine.config().get_mode() == Mode::Jit {
            let bare = assemble("r0 = 7\nexit").unwrap();
            let bare = linker(&engine).loader::<Request<'static>>().insns("bare", bare).unwrap();
            routes.set(0, &bare).unwrap();
            assert_eq!(routed.run(&mut (), &mut request).unwrap(), 7);
            let error = routed.run_observed(&mut (), &mut request, &mut ()).unwrap_err();
            assert!(
                error.to_string().contains("a tail call to `bare`, which does not keep its instructions"),
                "{error}"
            );
        }
    }
}

/// A timer that an observed run of machine code has set calls its function in the interpreter.
#[test]
fn timers_are_set_by_observed_and_recorded_runs() {
    use bpf_runtime::net::{Xdp, XdpBuff};
    for engine in engines(|config| config) {
        let object = Object::parse(include_bytes!("objects/timers.o")).unwrap();
        let linker = Linker::<()>::new(&engine);
        let mut ran = Vec::new();
        for way in ["run", "observed", "recorded"] {
            let maps = MapSet::for_object(&engine, &object).unwrap();
            let loader = linker.loader::<Xdp>().recordable(true);
            let due = loader.object(&object, maps).unwrap().program::<Xdp>("due").unwrap();
            let mut packet = [0; 16];
            let mut buff = XdpBuff::new(&mut packet);
            let mut recorder = due.recorder(RecorderOptions::new()).unwrap();
            let result = match way {
                "run" => due.run(&mut (), &mut buff).unwrap(),
                "observed" => due.run_observed(&mut (), &mut buff, &mut ()).unwrap(),
                _recorded => {
                    let result = recorder.run(&mut (), &mut buff).unwrap();
                    let recording = Recording::parse(&recorder.save()).unwrap();
                    assert_eq!(recording.replay(0, &mut ()).unwrap().result, Ok(result));
                    result
                }
            };
            ran.push((result, due.run_timers(&mut (), &mut buff).unwrap().ran));
        }
        assert!(ran[0].1 > 0);
        assert_eq!(ran, [ran[0]; 3]);
    }
}

/// Helpers write fields of a context that the program may only read.
#[test]
fn contexts_that_functions_write_are_recorded() {
    use bpf_runtime::net::{SockOps, SockOpsBuff, SockOpsFields};
    let text = "r6 = r1\nr2 = 0x1ff\ncall 59\nr0 = *(u32 *)(r6 + 84)\nr0 &= 1\nexit";
    for engine in engines(|config| config) {
        let linker = Linker::<()>::new(&engine);
        let loader = linker.loader::<SockOps>().recordable(true);
        let sets = loader.insns("sets", assemble(text).unwrap()).unwrap();
        let mut recorder = sets.recorder(RecorderOptions::new()).unwrap();
        for is_fullsock in [1, 0] {
            let fields = SockOpsFields { is_fullsock, ..SockOpsFields::default() };
            let mut buff = SockOpsBuff::new(fields);
            assert_eq!(recorder.run(&mut (), &mut buff).unwrap(), is_fullsock.into());
            assert_eq!(buff.fields.bpf_sock_ops_cb_flags, is_fullsock * 0x7f);
        }
        let recording = Recording::parse(&recorder.save()).unwrap();
        assert_eq!([0, 1].map(|run| recording.replay(run, &mut ()).unwrap().result), [Ok(1), Ok(0)]);
    }
}

/// Memory that lies in the host's context itself, between its fields: of a flow dissector.
#[test]
fn memory_in_the_context_is_recorded() {
    use bpf_runtime::net::{SkBuff, Skb};
    let writes = "r2 = *(u64 *)(r1 + 144)\nr3 = 7\n*(u16 *)(r2 + 2) = r3\nr0 = *(u16 *)(r2 + 2)\nexit";
    let reads = "r2 = *(u64 *)(r1 + 144)\nr0 = *(u16 *)(r2 + 2)\nexit";
    for engine in engines(|config| config) {
        let linker = Linker::<()>::new(&engine);
        for text in [writes, reads] {
            let program = linker.loader::<Skb>().recordable(true).insns("keys", assemble(text).unwrap()).unwrap();
            let mut recorder = program.recorder(RecorderOptions::new()).unwrap();
            let mut packet = [0; 64];
            let mut buff = SkBuff::new(&mut packet);
            buff.flow_keys.thoff = 7;
            assert_eq!(recorder.run(&mut (), &mut buff).unwrap(), 7);
            assert_eq!(Recording::parse(&recorder.save()).unwrap().replay(0, &mut ()).unwrap().result, Ok(7));
        }
    }
}

/// A socket that the program chooses, which it sees in its context then.
#[test]
fn chosen_sockets_are_recorded() {
    use bpf_runtime::net::{Network, SkLookup, SkLookupBuff, SkLookupFields, SockFields, Socket, SocketLookup};
    use std::sync::Arc;
    #[derive(Debug)]
    struct One(Arc<Socket>);
    impl Network for One {
        fn socket(&self, _: &SocketLookup) -> Option<Arc<Socket>> {
            Some(Arc::clone(&self.0))
        }
    }
    let text = "r6 = r1\n*(u64 *)(r10 - 16) = 0\n*(u32 *)(r10 - 8) = 0\nr2 = r10\nr2 += -16\nr3 = 12\nr4 = -1\nr5 = 0\n\
        call 84\nif r0 == 0 goto none\nr7 = r0\nr1 = r6\nr2 = r7\nr3 = 0\ncall 124\nr8 = r0\nr9 = *(u64 *)(r6 + 0)\n\
        r1 = r7\ncall 86\nr0 = 0\nif r8 != 0 goto none\nif r9 == 0 goto none\nr0 = 1\nnone: exit";
    let fields = SockFields { family: 2, protocol: 6, state: 10, ..SockFields::default() };
    let socket = Arc::new(Socket { fields, cookie: 42, ..Socket::default() });
    for engine in engines(|config| config.network(Arc::new(One(Arc::clone(&socket))))) {
        let linker = Linker::<()>::new(&engine);
        let loader = linker.loader::<SkLookup>().recordable(true);
        let chooses = loader.insns("chooses", assemble(text).unwrap()).unwrap();
        let mut recorder = chooses.recorder(RecorderOptions::new()).unwrap();
        for (protocol, chosen) in [(6, 1), (17, 0)] {
            let fields = SkLookupFields { family: 2, protocol, ..SkLookupFields::default() };
            let mut buff = SkLookupBuff::new(fields);
            assert_eq!(recorder.run(&mut (), &mut buff).unwrap(), chosen);
            assert_eq!(buff.selected.is_some(), chosen == 1);
        }
        let recording = Recording::parse(&recorder.save()).unwrap();
        assert_eq!([0, 1].map(|run| recording.replay(run, &mut ()).unwrap().result), [Ok(1), Ok(0)]);
    }
}

/// The caller bounds the time of a replay, whatever the bytes of a recording say.
#[test]
fn replays_end() {
    for engine in engines(|config| config) {
        let counts = assemble("r0 = 0\nr0 += 1\nif r0 < r2 goto -2\nexit").unwrap();
        let linker = Linker::<()>::new(&engine);
        let counts = linker.loader::<Raw>().hybrid(true).recordable(true).insns("counts", counts).unwrap();
        let mut recorder = counts.recorder(RecorderOptions::new()).unwrap();
        recorder.run(&mut (), &mut [0; 100]).unwrap();
        let recording = recorder.recording();
        assert_eq!(recording.replay(0, &mut ()).unwrap().steps, 202);
        assert_eq!(recording.replay_within(0, 202, &mut ()).unwrap().steps, 202);
        for steps in [0, 1, 201] {
            assert_eq!(recording.replay_within(0, steps, &mut ()), Err(ReplayError::TooLong { limit: steps }));
        }
    }
}

/// A full log ends at its limit.
#[test]
fn logs_are_bounded() {
    let engine = Engine::new(Config::new()).unwrap();
    let mut linker = Linker::<()>::new(&engine);
    // Each second byte changes, which takes 13 bytes of log for each.
    let stripes = |_: &mut Caller<'_, ()>, out: &mut [u8]| out.iter_mut().step_by(2).for_each(|byte| *byte ^= 1);
    linker.func(1001, "stripes", stripes).unwrap();
    let text = "r6 = 0\nr7 = 0\n*(u64 *)(r10 - 8) = r6\nr1 = r10\nr1 += -8\nr2 = 8\ncall 1001\nr7 += 1\n\
        if r7 < 40 goto -6\nr0 = 0\nexit";
    let stripes = linker.loader::<Raw>().recordable(true).insns("stripes", assemble(text).unwrap()).unwrap();
    let mut recorder = stripes.recorder(RecorderOptions::new().run_bytes(200)).unwrap();
    recorder.run(&mut (), &mut []).unwrap();
    // The log, lists of a few elements, and two copies of the stack.
    assert!(recorder.bytes() <= 256 + 256 + 2 * 512, "{}", recorder.bytes());
    assert_eq!(recorder.recording().replay(0, &mut ()), Err(ReplayError::Cut));
    let mut recorder = stripes.recorder(RecorderOptions::new()).unwrap();
    recorder.run(&mut (), &mut []).unwrap();
    assert_eq!(recorder.recording().replay(0, &mut ()).unwrap().result, Ok(0));
}

/// Panics at the step with this number, and is not asked again.
struct PanicsAt(u32);

impl Observer for PanicsAt {
    fn step(&mut self, _: &Observed<'_>) -> bool {
        self.0 -= 1;
        if self.0 == 0 { std::panic::resume_unwind(Box::new("the observer")) } else { true }
    }
}

/// A payload that panics when it is dropped.
struct Payload;

impl Drop for Payload {
    fn drop(&mut self) {
        std::panic::resume_unwind(Box::new("the payload"));
    }
}

impl Observer for Payload {
    fn step(&mut self, _: &Observed<'_>) -> bool {
        std::panic::resume_unwind(Box::new(Payload))
    }
}

/// Two panics at a time would end the process.
#[test]
fn the_panic_of_an_observer_goes_on_before_that_of_a_subscriber() {
    let engine = Engine::new(Config::new().mode(Mode::Interpreter)).unwrap();
    let insns = assemble("r0 = 1\nexit").unwrap();
    let one: Program<Raw, ()> = Linker::<()>::new(&engine).loader::<Raw>().insns("one", insns).unwrap();
    let mut observer = std::mem::ManuallyDrop::new(Payload);
    let thrown = tracing::subscriber::with_default(OnEvent(|| std::panic::resume_unwind(Box::new("told"))), || {
        let observed = || one.run_observed(&mut (), &mut [], &mut *observer).is_ok();
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(observed)).unwrap_err()
    });
    assert!(thrown.is::<Payload>());
    std::mem::forget(thrown);
}

/// A panic in the comparison of a tree leaves no node claimed that is in no tree: a later run would take the object of
/// such a node out of the tree while it is dead.
#[test]
fn an_observer_that_panics_leaves_trees_as_they_were() {
    use bpf_runtime::net::{Xdp, XdpBuff};
    for engine in engines(|config| config) {
        let object = Object::parse(include_bytes!("objects/owned_shared.o")).unwrap();
        let linker = Linker::<()>::new(&engine);
        let mut ended = false;
        for at in 1..200 {
            let maps = MapSet::for_object(&engine, &object).unwrap();
            let instance = linker.loader::<Xdp>().recordable(true).object(&object, maps).unwrap();
            let with = |name: &str, value: u32, observer: &mut dyn Observer| {
                let mut packet = [0; 8];
                let mut buff = XdpBuff::new(&mut packet);
                buff.ingress_ifindex = value;
                let program = instance.program::<Xdp>(name).unwrap();
                std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                    program.run_observed(&mut (), &mut buff, observer).unwrap()
                }))
            };
            for value in [1, 2, 3] {
                assert_eq!(with("puts", value, &mut ()).unwrap(), 0);
            }
            let observed = with("puts", 777, &mut PanicsAt(at));
            ended |= observed.is_ok();
            // 2: none is stashed. 5: the stashed one was in no tree. 6: it was.
            let moved = with("moves", 0, &mut ()).unwrap();
            assert!(matches!(moved, 2 | 5 | 6) && (observed.is_err() || moved == 6), "a panic at step {at}: {moved}");
            let kept = if moved == 2 { 2 } else { 777 };
            assert_eq!(with("first", 0, &mut ()).unwrap(), 1, "a panic at step {at}");
            assert_eq!(with("reads", 0, &mut ()).unwrap(), kept, "a panic at step {at}");
        }
        assert!(ended, "some run has fewer steps");
    }
}

#[test]
fn an_observer_that_panics_leaves_no_lock_taken() {
    use bpf_runtime::net::{Xdp, XdpBuff};
    for engine in engines(|config| config) {
        let object = Object::parse(include_bytes!("objects/lock_threads.o")).unwrap();
        let maps = MapSet::for_object(&engine, &object).unwrap();
        let linker = Linker::<()>::new(&engine);
        let loader = linker.loader::<Xdp>().recordable(true);
        let both = loader.object(&object, maps).unwrap().program::<Xdp>("both").unwrap();
        let plain = both.run(&mut (), &mut XdpBuff::new(&mut [0; 8])).unwrap();
        let mut ended = false;
        for at in 1..60 {
            let observed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                both.run_observed(&mut (), &mut XdpBuff::new(&mut [0; 8]), &mut PanicsAt(at))
            }));
            ended |= observed.is_ok();
            assert_eq!(both.run(&mut (), &mut XdpBuff::new(&mut [0; 8])).unwrap(), plain, "a panic at step {at}");
        }
        assert!(ended, "some run has fewer steps");
    }
}

/// A privileged program may decide by its addresses, so its recorded runs are interpreted where their frames lie.
#[test]
fn privileged_programs_are_recorded_with_their_addresses() {
    let text = "r0 = 0\nif r2 < 16 goto +7\n*(u64 *)(r1 + 0) = r10\nr3 = *(u64 *)(r1 + 0)\nr3 >>= 48\n\
        *(u8 *)(r1 + 0) = 0\n*(u8 *)(r1 + 8) = 1\nif r3 != 32752 goto +1\n*(u8 *)(r1 + 8) = 2\nexit";
    for engine in engines(|config| config) {
        let linker = Linker::<()>::new(&engine);
        let loader = linker.loader::<Raw>().privileged(true).recordable(true);
        let looks = loader.insns("looks", assemble(text).unwrap()).unwrap();
        let mut recorder = looks.recorder(RecorderOptions::new()).unwrap();
        assert_eq!(recorder.mode(), RecordMode::Interpreted);
        let mut data = [0; 16];
        recorder.run(&mut (), &mut data).unwrap();
        let replayed = Recording::parse(&recorder.save()).unwrap().replay(0, &mut ()).unwrap();
        assert_eq!(replayed.context[8], data[8]);
    }
}

#[test]
fn memory_that_no_run_has_is_refused() {
    let engine = Engine::new(Config::new().mode(Mode::Interpreter)).unwrap();
    let insns = assemble("r0 = 1\nexit").unwrap();
    let one: Program<Raw, ()> = Linker::<()>::new(&engine).loader::<Raw>().insns("one", insns).unwrap();
    let mut recorder = one.recorder(RecorderOptions::new().runs(usize::MAX).run_bytes(usize::MAX)).unwrap();
    recorder.run(&mut (), &mut [1, 2]).unwrap();
    let mut bytes = recorder.save();
    assert!(Recording::parse(&bytes).is_ok());
    // The only frame's address, before the entered programs, the events and the end of the run.
    let len = bytes.len();
    bytes[len - 25..len - 17].copy_from_slice(&(u64::MAX - 7).to_le_bytes());
    let error = Recording::parse(&summed(bytes)).unwrap_err();
    assert!(error.to_string().contains("behind the last address"), "{error}");
}
