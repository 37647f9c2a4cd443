//! Failures and concurrent changes while a program is recompiled (`OptLevel::Tiered`): the program keeps its first
//! code, which stays correct, nothing is lost, subscribers are notified, and the thread goes on with the next program.
//!
//! System calls that fail there are made to in `src/program/tiered.rs`. In a file (a process) of its own, because it
//! listens to the whole process, forks, and limits its memory.
#![cfg(all(target_os = "linux", not(miri)))]

use bpf_runtime::{code::Arch, isa::assemble, *};
use bpf_testkit::forked::{assert_ended_well, forked};
use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Once};
use std::time::Duration;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

type Prog = Program<Raw, ()>;

/// Reports of programs that keep their first code: the program, and the reason.
static TOLD: Mutex<Vec<(String, String)>> = Mutex::new(Vec::new());

/// The program of which this listener does not like to hear.
const HATED: &str = "hated";

struct Listener;

#[derive(Default)]
struct Line {
    message: String,
    program: String,
    error: String,
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        match field.name() {
            "message" => self.message = format!("{value:?}"),
            "program" => self.program = format!("{value:?}").trim_matches('"').to_owned(),
            "error" => self.error = format!("{value:?}"),
            _ => {}
        }
    }
}

impl Subscriber for Listener {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("bpf_runtime")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line::default();
        event.record(&mut line);
        if line.message == "program runs often and stays as it is" {
            let hated = line.program == HATED;
            TOLD.lock().unwrap().push((line.program, line.error));
            assert!(!hated, "this listener panics");
        }
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// Returns the reasons that were reported for this program.
fn told(name: &str) -> Vec<String> {
    let told = TOLD.lock().unwrap();
    told.iter().filter(|(program, _)| program == name).map(|(_, error)| error.clone()).collect()
}

/// An engine of two tiers with small packs, unless this host has none.
fn engine(change: impl FnOnce(Config) -> Config) -> Option<Engine> {
    static LISTEN: Once = Once::new();
    LISTEN.call_once(|| tracing::subscriber::set_global_default(Listener).unwrap());
    let config = change(
        Config::new()
            .opt_level(OptLevel::Tiered)
            .tick(Duration::from_micros(50))
            .packs(|packs| packs.first_pack_size(1 << 16).pack_size(1 << 16).keep_empty(0)),
    );
    let engine = Engine::new(config).unwrap();
    if Arch::HOST.is_none() || !engine.domain().has_core_barrier() {
        bpf_testkit::skipped("tiers", &"no backend or no core barrier on this host");
        return None;
    }
    Some(engine)
}

fn load(linker: &Linker<()>, name: &str, text: &str) -> Prog {
    // SAFETY: the tests' programs end, and each run of them has a context of eight bytes, which is all they read.
    unsafe { linker.loader::<Raw>().unverified(true) }.insns(name, assemble(text).unwrap()).unwrap()
}

/// Takes what the context says so often to the power of two, and adds: of so many instructions and more.
fn long(rounds: usize) -> String {
    format!("r0 = *(u64 *)(r1 + 0)\n{}exit", "r2 = r0\nr2 *= r0\nr0 ^= r2\nr0 += 1\n".repeat(rounds))
}

fn run(program: &Prog) -> u64 {
    program.run(&mut (), &mut [3, 0, 0, 0, 0, 0, 0, 0]).unwrap()
}

/// Runs until that is so, and each run returns the same.
fn run_until(program: &Prog, done: impl Fn() -> bool) {
    let result = run(program);
    while !done() {
        assert_eq!(run(program), result);
    }
    assert_eq!(run(program), result);
}

/// Another program is made fast: the thread is there.
fn goes_on(engine: &Engine) {
    let program = load(&Linker::<()>::new(engine), "next", &long(10));
    run_until(&program, || !program.is_slow());
}

/// Frees everything that waits, until no code is left: the thread may be in the middle of one, which it has then.
fn settle_empty(engine: &Engine) {
    for _ in 0..10_000 {
        engine.domain().drain().unwrap();
        engine.reclaim();
        let stats = engine.code_stats();
        if (stats.programs, stats.bytes_used) == (0, 0) {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("code is left: {:?}", engine.code_stats());
}

/// Runs it until it is refused; says why.
fn refused(engine: &Engine, program: &Prog) -> String {
    let before = engine.tier_stats();
    let slow = program.machine_code().unwrap();
    run_until(program, || engine.tier_stats().refused > before.refused);
    assert!(program.is_slow());
    assert_eq!(program.machine_code().unwrap(), slow);
    assert_eq!(engine.tier_stats().fast, before.fast);
    let [why] = told(program.name()).try_into().unwrap();
    why
}

/// Eighty products, each used early and late: fast code makes it once and keeps it, most of them in the machine stack,
/// where slow code makes it anew.
fn products() -> String {
    let mut text = "r2 = *(u64 *)(r1 + 0)\nr0 = 1\n".to_owned();
    for n in (0..80).chain((0..80).rev()) {
        text += &format!("r3 = r2\nr3 *= {}\nr0 ^= r3\nr0 += {n}\n", 1_000_003 + 1234 * n);
    }
    text + "exit"
}

#[test]
fn code_that_takes_too_much_machine_stack_is_not_used() {
    let text = products();
    let loaded = |change: &dyn Fn(Config) -> Config| {
        let engine = engine(change)?;
        let program = load(&Linker::<()>::new(&engine), "stack", &text);
        Some((program.machine_stack_bytes(), run(&program), engine, program))
    };
    let Some((speed, result, ..)) = loaded(&|config| config.opt_level(OptLevel::Speed)) else { return };
    let (_, right, engine, program) = loaded(&|config| config.max_machine_stack(speed - 8)).unwrap();
    assert_eq!(right, result);
    let why = refused(&engine, &program);
    assert!(why.contains(&speed.to_string()), "{why}");
    goes_on(&engine);
    drop(program);
    settle_empty(&engine);
}

#[test]
fn without_room_in_executable_memory_a_program_stays_as_it_is() {
    let Some(engine) = engine(|config| config.memory_limit(1 << 22)) else { return };
    let linker = Linker::<()>::new(&engine);
    let program = load(&linker, "room", &long(4000));
    // The fast code does not fit beside the slow, and there is no memory for another pack.
    let memory = engine.domain().memory();
    let rest = memory.reserve(memory.limit() - memory.used()).unwrap();
    let used = engine.code_stats().bytes_used;
    let why = refused(&engine, &program);
    assert!(why.contains("all maps, tables and code of one engine"), "{why}");
    engine.domain().drain().unwrap();
    engine.reclaim();
    assert_eq!(engine.code_stats().bytes_used, used);
    drop(rest);
    goes_on(&engine);
    drop(program);
    settle_empty(&engine);
    let again = load(&linker, "room", &long(4000));
    run_until(&again, || !again.is_slow());
}

#[test]
fn a_panic_leaves_the_program_as_it_was_and_the_thread_alive() {
    let Some(engine) = engine(|config| config.memory_limit(1 << 22)) else { return };
    let program = load(&Linker::<()>::new(&engine), HATED, &long(4000));
    let memory = engine.domain().memory();
    let rest = memory.reserve(memory.limit() - memory.used()).unwrap();
    run_until(&program, || engine.tier_stats().refused > 0);
    assert!(program.is_slow());
    drop(rest);
    let [first, second] = told(HATED).try_into().unwrap();
    assert!(first.contains("all maps, tables and code of one engine") && second.contains("panicked"));
    goes_on(&engine);
    drop(program);
    settle_empty(&engine);
}

/// A host function's capture that panics as the thread drops it.
struct Loud(Arc<AtomicU32>);

impl Drop for Loud {
    fn drop(&mut self) {
        if std::thread::current().name() == Some("bpf-tiers") {
            // Relaxed: a count.
            self.0.fetch_add(1, Ordering::Relaxed);
            panic!("dropped where it is not expected");
        }
    }
}

/// Loads long programs and has them run, each until its turn has come or nearly; `meanwhile` gets each as it may be
/// being compiled. Until it has said five times that it was.
fn meanwhile(
    engine: &mut dyn FnMut() -> Engine,
    linker: &dyn Fn(&Engine) -> Linker<()>,
    mut does: impl FnMut(Engine, Prog, Duration) -> bool,
) {
    let mut times = 0;
    for round in 0.. {
        let engine = engine();
        let program = load(
            &linker(&engine),
            "meanwhile",
            &format!("call 1000\nr1 = 3\n*(u64 *)(r10 - 8) = r1\nr1 = r10\nr1 += -8\n{}", long(3000)),
        );
        let result = program.run(&mut (), &mut []).unwrap();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let runs = scope.spawn(|| {
                // Relaxed: a flag that orders nothing else.
                while !stop.load(Ordering::Relaxed) {
                    assert_eq!(program.run(&mut (), &mut []).unwrap(), result);
                }
            });
            std::thread::sleep(Duration::from_micros(500 + round % 16 * 500));
            stop.store(true, Ordering::Relaxed);
            runs.join().unwrap();
        });
        times += u32::from(does(engine, program, Duration::from_micros(round % 7 * 300)));
        if times == 5 {
            return;
        }
    }
}

fn plain(engine: &Engine) -> Linker<()> {
    let mut linker = Linker::<()>::new(engine);
    linker.func(1000, "nothing", |_: &mut Caller<'_, ()>| 0u64).unwrap();
    linker
}

/// Whether the thread had already begun to recompile the program: it became fast after it was still slow a moment ago.
fn was_at_it(engine: &Engine, slow: bool) -> bool {
    let before = engine.tier_stats().fast;
    settle_empty(engine);
    slow && engine.tier_stats().fast > before
}

#[test]
fn a_program_that_is_dropped_while_it_is_compiled_is_gone() {
    let Some(engine) = engine(|config| config) else { return };
    meanwhile(&mut || engine.clone(), &plain, |engine, program, wait| {
        std::thread::sleep(wait);
        let slow = program.is_slow();
        drop(program);
        was_at_it(&engine, slow)
    });
    assert_eq!(engine.tier_stats().refused, 0);
    goes_on(&engine);
}

#[test]
fn what_panics_as_the_thread_drops_it_does_not_end_the_thread() {
    let Some(engine) = engine(|config| config) else { return };
    let dropped = Arc::new(AtomicU32::new(0));
    let loud = |engine: &Engine| {
        let mut linker = Linker::<()>::new(engine);
        let loud = Loud(Arc::clone(&dropped));
        linker.func(1000, "loud", move |_: &mut Caller<'_, ()>| u64::from(Arc::strong_count(&loud.0) > 0)).unwrap();
        linker
    };
    meanwhile(&mut || engine.clone(), &loud, |engine, program, wait| {
        std::thread::sleep(wait);
        let before = dropped.load(Ordering::Relaxed);
        drop(program);
        settle_empty(&engine);
        dropped.load(Ordering::Relaxed) > before
    });
    goes_on(&engine);
}

#[test]
fn an_engine_that_is_dropped_while_it_compiles_is_gone() {
    if engine(|config| config).is_none() {
        return;
    }
    meanwhile(&mut || engine(|config| config).unwrap(), &plain, |engine, program, wait| {
        std::thread::sleep(wait);
        let domain = Arc::downgrade(engine.domain());
        let slow = program.is_slow();
        drop((engine, program));
        // Only the recompiling thread can still hold the engine.
        let was_at_it = slow && domain.strong_count() > 0;
        while domain.strong_count() > 0 {
            std::thread::yield_now();
        }
        was_at_it
    });
}

#[test]
fn a_child_that_is_forked_while_a_program_is_compiled_lets_go_of_it() {
    let Some(engine) = engine(|config| config) else { return };
    meanwhile(&mut || engine.clone(), &plain, |engine, program, wait| {
        std::thread::sleep(wait);
        let slow = program.is_slow();
        let before = engine.tier_stats();
        let (mut program, mut engine) = (Some(program), Some(engine));
        let child = || {
            let (program, engine) = (program.take().unwrap(), engine.take().unwrap());
            // In the child, the program stays in the tier that it had at the fork, since no thread recompiles it.
            let now = program.is_slow();
            assert!(program.run(&mut (), &mut []).is_err(), "there is no code in a child");
            std::thread::sleep(Duration::from_millis(1));
            assert_eq!((program.is_slow(), engine.tier_stats().refused), (now, before.refused));
        };
        // SAFETY: the child drops its copies, and its parent keeps what they are copies of.
        let ended = unsafe { forked(20, child) };
        assert_ended_well("a fork while a program is compiled", &[ended]);
        let (program, engine) = (program.unwrap(), engine.unwrap());
        let result = program.run(&mut (), &mut []).unwrap();
        while program.is_slow() {
            assert_eq!(program.run(&mut (), &mut []).unwrap(), result);
        }
        assert_eq!(program.run(&mut (), &mut []).unwrap(), result);
        slow && engine.tier_stats().fast > before.fast
    });
    settle_empty(&engine);
}

/// The environment variable of the child process that `without_a_thread_programs_stay_as_they_are` starts.
const ALONE: &str = "BPF_TIERS_ALONE";

#[test]
fn without_a_thread_programs_stay_as_they_are() {
    if std::env::var_os(ALONE).is_none() {
        let mut itself = bpf_testkit::itself();
        // The child asks for thread stacks that exceed its memory limit, so that no thread can start.
        itself.args(["--exact", "without_a_thread_programs_stay_as_they_are", "--nocapture"]);
        let output = itself.env(ALONE, "1").env("RUST_MIN_STACK", (256 << 20).to_string()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {said}", output.status);
        // A skip in the child is reported as a skip of this test.
        if let Some((what, why)) = said.lines().find_map(|line| line.strip_prefix("SKIPPED ")?.split_once(": ")) {
            bpf_testkit::skipped(what, &why);
        }
        return;
    }
    let Some(engine) = engine(|config| config) else { return };
    let linker = Linker::<()>::new(&engine);
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = pages.split(' ').next().unwrap().parse().unwrap();
    let mut before = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: writes the limit.
    assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_AS, &raw mut before) }, 0);
    let limit = libc::rlimit { rlim_cur: pages * 4096 + (64 << 20), rlim_max: before.rlim_max };
    // SAFETY: reads the limit.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const limit) }, 0);
    if std::thread::Builder::new().spawn(|| ()).is_ok() {
        return bpf_testkit::skipped("no thread", &"limits of memory are not kept here");
    }
    let program = load(&linker, "thread", &long(10));
    assert_eq!((engine.tier_stats().refused, engine.tier_stats().fast), (1, 0));
    let [why] = told("thread").try_into().unwrap();
    assert!(why.contains("the thread that makes programs fast cannot be started"), "{why}");
    let result = run(&program);
    // SAFETY: reads the limit.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const before) }, 0);
    // The next tick begins the recompilation.
    goes_on(&engine);
    assert!(program.is_slow() && run(&program) == result);
    drop(program);
    settle_empty(&engine);
}
