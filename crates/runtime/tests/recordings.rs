//! Bounds of recorders, recordings and replays: on memory, on time, on stack. A replay refuses the accesses that its
//! run refused.

#[path = "common/engines.rs"]
mod engines;

use bpf_runtime::{
    BpfContext, Caller, Config, Engine, Linker, Mode, ProgArray, Program, Raw, RunError, RunLimits,
    isa::assemble,
    net::{Xdp, XdpBuff},
    observe::{RecordError, Recorder, RecorderOptions, Recording, ReplayError},
};
use engines::engines;
use std::time::Duration;

type Prog = Program<Raw, ()>;

fn load(linker: &Linker<()>, name: &str, text: &str, arrays: &[&ProgArray<Raw, ()>]) -> Prog {
    let loader = linker.loader::<Raw>().prog_arrays(arrays).recordable(true);
    loader.insns(name, assemble(text).unwrap()).unwrap()
}

/// Jumps through slot 0, and returns 1 if it is not set.
const JUMPS: &str = "r2 = map[fd:0]\nr3 = 0\ncall 12\nr0 = 1\nexit";

/// A recording as its bytes, with the checksum of an attacker.
struct Forged(Vec<u8>);

impl Forged {
    fn u32(mut self, number: usize) -> Forged {
        self.0.extend_from_slice(&u32::try_from(number).unwrap().to_le_bytes());
        self
    }

    fn bytes(mut self, bytes: &[u8]) -> Forged {
        self.0.extend_from_slice(bytes);
        self
    }

    fn times(self, number: usize, add: impl Fn(Forged) -> Forged) -> Forged {
        (0..number).fold(self, |forged, _| add(forged))
    }

    /// A program that returns 1, with fields of its context.
    fn program(self, fields: usize) -> Forged {
        let insns = [0xb7, 0, 0, 0, 1, 0, 0, 0, 0x95, 0, 0, 0, 0, 0, 0, 0];
        // Its name and instructions; no targets, lines and functions.
        let forged = self.u32(1).bytes(b"p").u32(insns.len()).bytes(&insns).u32(0).u32(0).u32(0);
        forged.u32(fields).times(fields, |forged| forged.u32(0).u32(8).u32(0)).bytes(&[0])
    }

    /// A run without a log that has not ended.
    fn run(self, parts: usize) -> Forged {
        self.u32(parts).times(parts, |forged| forged.bytes(&[0; 9]).u32(0)).bytes(&[0, 0])
    }

    fn recording(programs: usize, fields: usize, rights: usize, runs: usize, parts: usize) -> Vec<u8> {
        let forged = Forged(Vec::new()).u32(programs).times(programs, |forged| forged.program(fields));
        let forged = (0..rights).fold(forged.u32(rights), |forged, at| forged.u32(at).u32(1).bytes(&[0]));
        forged.u32(512).bytes(&[0]).u32(runs).times(runs, |forged| forged.run(parts)).headed()
    }

    fn headed(self) -> Vec<u8> {
        const MIX: u64 = 0x9e37_79b9_7f4a_7c15;
        let (words, rest) = self.0.as_chunks::<8>();
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        let words = words.iter().chain([&last]).map(|word| u64::from_le_bytes(*word));
        let sum = words.fold(MIX ^ self.0.len() as u64, |sum, word| (sum ^ word).wrapping_mul(MIX).rotate_left(29));
        [b"bpfrec\x00\x02", &sum.to_le_bytes()[..], &self.0].concat()
    }
}

/// The memory of a recording is a few times its bytes: lists are refused at their number, before they are read.
#[test]
fn lists_of_recordings_are_bounded() {
    for (programs, fields, rights, runs, parts) in [
        (1, 1, 1, 1, 1),
        (4096, 0, 0, 1, 1),
        (1, 4096, 0, 1, 1),
        (1, 0, 256, 1, 1),
        (1, 0, 0, 1 << 16, 1),
        (1, 0, 0, 1, 64),
    ] {
        let recording = Recording::parse(&Forged::recording(programs, fields, rights, runs, parts)).unwrap();
        assert_eq!(recording.runs(), runs);
        recording.replay(0, &mut ()).unwrap_err();
    }
    for (programs, fields, rights, runs, parts, what) in [
        (4097, 0, 0, 1, 1, "4097 programs; at most 4096"),
        (1, 4097, 0, 1, 1, "4097 fields; at most 4096"),
        (1, 0, 257, 1, 1, "257 parts of the context with rights of their own; at most 256"),
        (1, 0, 0, (1 << 16) + 1, 1, "65537 runs; at most 65536"),
        (1, 0, 0, 1, 65, "65 parts of memory; at most 64"),
    ] {
        let error = Recording::parse(&Forged::recording(programs, fields, rights, runs, parts)).unwrap_err();
        assert!(error.what.contains(what), "{error}");
    }
    let announced = Forged(Vec::new()).u32(4000).program(0).headed();
    let error = Recording::parse(&announced).unwrap_err();
    assert!(error.at == 16 && error.what.contains("4000 programs take 29 bytes each at least"), "{error}");
}

/// Contexts of two parts with rights of their own, and twice as many of each.
macro_rules! doubled {
    ($($name:ident: $half:ident),*) => {
        $(
            #[derive(BpfContext)]
            #[repr(C)]
            struct $name {
                #[bpf(writable)]
                a: $half,
                #[bpf(writable)]
                b: $half,
            }
        )*
    };
}

#[derive(BpfContext)]
#[repr(C)]
struct Two {
    fixed: u32,
    #[bpf(writable)]
    free: u32,
}

doubled!(Four: Two, Eight: Four, Many16: Eight, Many32: Many16, Many64: Many32, Many128: Many64, Many256: Many128);
doubled!(Many512: Many256);

/// No recorder saves what cannot be read again.
#[test]
fn contexts_of_too_many_parts_are_refused() {
    let engine = Engine::new(Config::new()).unwrap();
    let linker = Linker::<()>::new(&engine);
    let insns = assemble("*(u32 *)(r1 + 4) = 7\nr0 = *(u32 *)(r1 + 1016)\nexit").unwrap();
    let fits = linker.loader::<Many256>().recordable(true).insns("fits", insns.clone()).unwrap();
    assert!(fits.recorder(RecorderOptions::new()).is_ok());
    let large = linker.loader::<Many512>().recordable(true).insns("large", insns).unwrap();
    let error = large.recorder(RecorderOptions::new()).unwrap_err();
    let what = "parts with rights of their own";
    assert_eq!(error, RecordError::Context { program: "large".into(), found: 512, what, max: 256 });
}

/// Accesses to a memory of many parts cost more, as each looks for its part.
#[test]
fn parts_of_memory_count() {
    let engine = Engine::new(Config::new().mode(Mode::Interpreter)).unwrap();
    let linker = Linker::<()>::new(&engine);
    let insns = assemble("r0 = *(u32 *)(r1 + 0)\nr0 = *(u32 *)(r1 + 8)\nexit").unwrap();
    let reads = linker.loader::<Many128>().insns("reads", insns).unwrap();
    let mut recorder = reads.recorder(RecorderOptions::new()).unwrap();
    // SAFETY: numbers, for which zero is valid.
    let mut context: Box<Many128> = unsafe { Box::new(core::mem::zeroed()) };
    recorder.run(&mut (), &mut context).unwrap();
    let recording = recorder.recording();
    assert_eq!(recording.replay_within(0, 7, &mut ()).unwrap().steps, 3);
    assert_eq!(recording.replay_within(0, 6, &mut ()), Err(ReplayError::TooLong { limit: 6 }));
}

/// A program without a proof stores to a field that it may not write.
#[test]
fn refused_stores_are_repeated() {
    let engine = Engine::new(Config::new().mode(Mode::Interpreter)).unwrap();
    let linker = Linker::<()>::new(&engine);
    // SAFETY: the interpreter checks each access.
    let loader = unsafe { linker.loader::<Two>().unverified(true) };
    let insns = assemble("r0 = 0\n*(u32 *)(r1 + 4) = 7\n*(u32 *)(r1 + 0) = 7\nexit").unwrap();
    let stores = loader.insns("stores", insns).unwrap();
    let mut recorder = stores.recorder(RecorderOptions::new()).unwrap();
    let error = recorder.run(&mut (), &mut Two { fixed: 1, free: 2 }).unwrap_err();
    let replayed = Recording::parse(&recorder.save()).unwrap().replay(0, &mut ()).unwrap();
    assert_eq!(replayed.result, Err(error.to_string()));
    assert_eq!(replayed.context, [1, 0, 0, 0, 7, 0, 0, 0]);
}

/// The checks of a hybrid run are not in its recording: what they refused is not executed in a replay.
#[test]
fn refused_accesses_of_hybrid_runs_are_repeated() {
    let text = "r6 = r1\ncall 5\nr2 = *(u32 *)(r6 + 0)\nr3 = *(u32 *)(r6 + 4)\nr4 = r2\nr4 += 1\nr0 = 0\n\
        if r4 > r3 goto out\nr5 = *(u8 *)(r2 + 0)\nr2 += r5\n*(u8 *)(r2 + 0) = 7\nout: exit";
    for engine in engines(|config| config) {
        let linker = Linker::<()>::new(&engine);
        let loader = linker.loader::<Xdp>().hybrid(true).recordable(true);
        let stores = loader.insns("stores", assemble(text).unwrap()).unwrap();
        let mut recorder = stores.recorder(RecorderOptions::new()).unwrap();
        // Within the packet, and behind it in the tailroom.
        for (distance, is_inside) in [(5, true), (12, false)] {
            let mut buffer = [0; 64];
            buffer[16] = distance;
            let result = recorder.run(&mut (), &mut XdpBuff::with_room(&mut buffer, 16, 8));
            assert_eq!(matches!(result, Ok(0)), is_inside, "{result:?}");
            assert!(is_inside || matches!(result, Err(RunError::Access { .. })), "{result:?}");
            assert_eq!(buffer[16 + usize::from(distance)], if is_inside { 7 } else { 0 });
        }
        let recording = Recording::parse(&recorder.save()).unwrap();
        assert_eq!(recording.replay(0, &mut ()).unwrap().result, Ok(0));
        let refused = recording.replay(1, &mut ()).unwrap();
        assert!(refused.result.is_err() && refused.steps == 11, "{refused:?}");
    }
}

/// The buffers of a recorder are one for all of its runs, and are counted.
#[test]
fn buffers_are_shared_and_counted() {
    const LEN: usize = 1 << 16;
    let engine = Engine::new(Config::new()).unwrap();
    let mut linker = Linker::<()>::new(&engine);
    linker.func(1001, "fills", |_: &mut Caller<'_, ()>, out: &mut [u8]| out.fill(out[0] + 1)).unwrap();
    let text = "r0 = 0\nif r2 < 65536 goto out\nr2 = 65536\ncall 1001\nr0 = 0\nout: exit";
    let fills = load(&linker, "fills", text, &[]);
    for runs in [1, 8] {
        let mut recorder = fills.recorder(RecorderOptions::new().runs(runs).run_bytes(1000)).unwrap();
        for _ in 0..2 * runs {
            assert_eq!(recorder.run(&mut (), &mut vec![0; LEN]).unwrap(), 0);
        }
        // A change of 64 KiB in one piece adds no more than the limit of the log.
        let least = (runs + 2) * LEN;
        assert!((least..least + (runs + 1) * 4096).contains(&recorder.bytes()), "{} {least}", recorder.bytes());
        assert_eq!(recorder.recording().replay(0, &mut ()), Err(ReplayError::Cut));
    }
}

/// A kept run does not keep the memory of a much longer context that was there before.
#[test]
fn memory_of_long_contexts_is_given_back() {
    let engine = Engine::new(Config::new()).unwrap();
    let first =
        load(&Linker::<()>::new(&engine), "first", "r0 = 0\nif r2 == 0 goto +1\nr0 = *(u8 *)(r1 + 0)\nexit", &[]);
    let mut recorder = first.recorder(RecorderOptions::new().runs(4)).unwrap();
    for _ in 0..4 {
        assert_eq!(recorder.run(&mut (), &mut vec![7; 1 << 20]).unwrap(), 7);
    }
    assert!(recorder.bytes() >= 4 << 20, "{}", recorder.bytes());
    for _ in 0..4 {
        assert_eq!(recorder.run(&mut (), &mut [9]).unwrap(), 9);
    }
    assert!(recorder.bytes() < 4 * (32 << 10), "{}", recorder.bytes());
}

/// Calls through registers may reach every function whose address is taken: 65,536 pairs in a program of 12 KiB.
#[test]
fn programs_of_very_many_callees_are_not_recorded() {
    let text = |n: usize| {
        let each = |line: fn(usize) -> String| (0..n).map(line).collect::<String>();
        let main = each(|i| format!("r1 = subprog[l{i}]\n")) + &each(|i| format!("call c{i}\n")) + "exit\n";
        main + &each(|i| format!("c{i}: callx r1\nr0 = 0\nexit\n")) + &each(|i| format!("l{i}: r0 = 0\nexit\n"))
    };
    let engine = Engine::new(Config::new().mode(Mode::Interpreter)).unwrap();
    let linker = Linker::<()>::new(&engine);
    let loader = || linker.loader::<Raw>().interpreted(true);
    let recorder = |n| loader().insns("calls", assemble(&text(n)).unwrap()).unwrap().recorder(RecorderOptions::new());
    let mut few = recorder(8).unwrap();
    let _ = few.run(&mut (), &mut []);
    Recording::parse(&few.save()).unwrap();
    assert!(
        matches!(recorder(256), Err(RecordError::Unsupported { what, .. }) if what.contains("very many functions"))
    );

    let program = bpf_runtime::isa::Program::new(assemble(&text(256)).unwrap()).unwrap().to_bytes();
    let forged = Forged(Vec::new()).u32(1).u32(1).bytes(b"p").u32(program.len()).bytes(&program);
    let forged = forged.times(4, |forged| forged.u32(0)).bytes(&[0]).u32(0).u32(512).bytes(&[0]).u32(0);
    let error = Recording::parse(&forged.headed()).unwrap_err().to_string();
    assert!(error.contains("calls through registers may call many functions"), "{error}");
}

/// Recorded runs are under limits as others are.
#[test]
fn recorded_runs_are_limited() {
    for engine in engines(|config| config.interruptible(true)) {
        let mut linker = Linker::<()>::new(&engine);
        linker.func(1001, "asked", |_: &mut Caller<'_, ()>| 0u64).unwrap();
        for called in ["", "call 1001\n"] {
            let loader = || linker.loader::<Raw>().recordable(true);
            let text = format!("{called}r0 = 0\nagain: r0 += 1\nif r0 < 1000 goto again\nexit");
            let counts = loader().budget(100_000).insns("counts", assemble(&text).unwrap()).unwrap();
            let mut recorder = counts.recorder(RecorderOptions::new().runs(3)).unwrap();
            let limits = RunLimits::new().budget(100);
            assert!(matches!(recorder.run_with(&mut (), &mut [], &limits), Err(RunError::Budget { .. })), "{called}");
            assert_eq!(recorder.run_with(&mut (), &mut [], &RunLimits::new().budget(5000)).unwrap(), 1000);
            let past = RunLimits::new().deadline(engine.deadline_in(Duration::ZERO).unwrap());
            std::thread::sleep(Duration::from_millis(20));
            assert!(matches!(recorder.run_with(&mut (), &mut [], &past), Err(RunError::Deadline { .. })), "{called}");
            let recording = Recording::parse(&recorder.save()).unwrap();
            assert_eq!((recording.runs(), recording.replay(1, &mut ()).unwrap().result), (3, Ok(1000)));
            let unlimited = loader().insns("unlimited", assemble("r0 = 1\nexit").unwrap()).unwrap();
            let mut recorder = unlimited.recorder(RecorderOptions::new()).unwrap();
            let result = recorder.run_with(&mut (), &mut [], &limits);
            assert!(matches!(result, Err(RunError::Unlimited { .. })), "{result:?}");
        }
    }
}

/// A recorder forgets programs that only overwritten runs have entered.
#[test]
fn entered_programs_are_forgotten() {
    for engine in engines(|config| config) {
        let linker = Linker::<()>::new(&engine);
        let array = ProgArray::<Raw, ()>::create(&engine, "next", 1).unwrap();
        let jumps = load(&linker, "jumps", JUMPS, &[&array]);
        let mut recorder = jumps.recorder(RecorderOptions::new().runs(3)).unwrap();
        let mut bytes = Vec::new();
        for version in 0..200 {
            array.set(0, &load(&linker, "target", &format!("r0 = {version}\nexit"), &[])).unwrap();
            assert_eq!(recorder.run(&mut (), &mut []).unwrap(), version);
            bytes.push(recorder.bytes());
            if version % 40 == 39 {
                let recording = Recording::parse(&recorder.save()).unwrap();
                let result = |run| recording.replay(run, &mut ()).unwrap().result;
                assert_eq!([0, 1, 2].map(result), [version - 2, version - 1, version].map(Ok));
            }
        }
        assert!(bytes.last() <= bytes[..100].iter().max(), "{bytes:?}");
    }
}

/// A function that a call back enters has a stack to clear.
#[test]
fn call_backs_count() {
    let text = "r1 = 100\nr2 = subprog[f]\nr3 = 0\nr4 = 0\ncall 181\nr0 = 0\nexit\nf: r0 = 0\nexit";
    for engine in engines(|config| config) {
        let loops = load(&Linker::new(&engine), "loops", text, &[]);
        let mut recorder = loops.recorder(RecorderOptions::new()).unwrap();
        recorder.run(&mut (), &mut []).unwrap();
        let recording = recorder.recording();
        // Instructions, and two for each of 101 stacks of 512 bytes.
        let least = 207 + 2 * 101;
        assert_eq!(recording.replay_within(0, least, &mut ()).unwrap().steps, 207);
        for steps in [206, 210, least - 1] {
            assert_eq!(recording.replay_within(0, steps, &mut ()), Err(ReplayError::TooLong { limit: steps }));
        }
    }
}

/// Functions that make a tail call do not return before the programs that it enters.
#[test]
fn functions_of_replays_are_bounded() {
    let nested = |functions: usize| {
        let call = |number: usize| format!("f{number}: call f{}\nexit\n", number + 1);
        let calls: String = (0..functions).map(call).collect();
        let first = if functions == 0 { "" } else { "call f1\nexit\n" };
        let calls = calls.split_once("exit\n").map_or("", |(_, calls)| calls);
        format!("{first}{calls}{}{JUMPS}", if functions == 0 { String::new() } else { format!("f{functions}: ") })
    };
    let engine = Engine::new(Config::new().mode(Mode::Interpreter)).unwrap();
    let linker = Linker::<()>::new(&engine);
    for (functions, is_shallow) in [(0, true), (2, true), (6, false)] {
        let array = ProgArray::<Raw, ()>::create(&engine, "next", 1).unwrap();
        let nests = load(&linker, "nests", &nested(functions), &[&array]);
        array.set(0, &nests).unwrap();
        let mut recorder: Recorder<Raw, ()> = nests.recorder(RecorderOptions::new()).unwrap();
        assert_eq!(recorder.run(&mut (), &mut []).unwrap(), 1);
        let replayed = Recording::parse(&recorder.save()).unwrap().replay(0, &mut ());
        match replayed {
            Ok(replayed) => assert!(is_shallow && replayed.result == Ok(1), "{functions}: {replayed:?}"),
            Err(error) => assert!(!is_shallow && error == ReplayError::TooDeep { limit: 128 }, "{functions}: {error}"),
        }
    }
}

/// The interpreter may refuse what machine code without a proof does.
#[test]
fn runs_through_unverified_machine_code_are_not_repeated() {
    for engine in engines(|config| config).into_iter().filter(|engine| engine.config().get_mode() == Mode::Jit) {
        let linker = Linker::<()>::new(&engine);
        let array = ProgArray::<Raw, ()>::create(&engine, "next", 1).unwrap();
        let jumps = load(&linker, "jumps", JUMPS, &[&array]);
        // SAFETY: the program only returns.
        let unverified = unsafe { linker.loader::<Raw>().unverified(true) };
        let unverified = unverified.recordable(true).insns("any", assemble("r0 = 7\nexit").unwrap()).unwrap();
        array.set(0, &unverified).unwrap();
        let mut recorder = jumps.recorder(RecorderOptions::new()).unwrap();
        assert_eq!(recorder.run(&mut (), &mut []).unwrap(), 7);
        let error = recorder.recording().replay(0, &mut ()).unwrap_err();
        assert_eq!(error, ReplayError::Lost { what: "machine code that was not verified".into() });
    }
}
