//! A process whose address space is nearly used up (`RLIMIT_AS`): tests the promises of SECURITY.md about large
//! allocations and verifications.
//!
//! Alone in its file: the limit is the process's. Each limit is tried in a process of its own, this executable once
//! more, whose allocator takes all memory from one arena: others would have address space in reserve.
#![cfg(all(target_os = "linux", not(miri)))]

use bpf_runtime::{
    AsyncCaller, Config, Engine, Hook, HookPolicy, Linker, LoadError, ProgArray, Program, Raw, RunError,
    error::ProgArrayError,
    isa::assemble,
    maps::{Map, MapDef, MapType},
};
use std::fmt::Write;
use std::future::{Future, poll_fn};
use std::process::Command;
use std::task::{Context, Poll, Waker};

/// In the environment of a process that is to be limited: bytes of address space that it has left.
const LEFT: &str = "BPF_ADDRESS_SPACE_LEFT";
const KIB: u64 = 1 << 10;
/// Execution slots of the engine with metrics: 1 MiB of counters for each program.
const SLOTS: u32 = 1 << 14;

/// Undecided branches that leave different values behind, all of them needed: the verifier keeps a state at each join.
fn branching(n: usize) -> String {
    let mut text = String::from("r6 = 0\nr8 = 0\n");
    for i in 1..=n {
        let slot = 8 * (i % 30 + 1);
        writeln!(text, "call 7\nr9 = r0\n*(u64 *)(r10 - {slot}) = r6\nif r9 > 5 goto +1\nr6 += {i}").unwrap();
        writeln!(text, "if r9 > 50 goto +1\nr8 += {i}\nr1 = r9\nr1 += 1").unwrap();
    }
    text + "if r6 > 3 goto +1\nr6 = 0\nif r8 > 3 goto +1\nr8 = 0\nr0 = 0\nexit"
}

#[test]
fn an_address_space_that_is_used_up_ends_nothing_but_what_asks_for_more() {
    if bpf_testkit::emulated() {
        return bpf_testkit::skipped("an address space under a limit", &"the limit would be that of qemu, too");
    }
    if let Ok(left) = std::env::var(LEFT) {
        return limited(left.parse().unwrap());
    }
    for left in [512 * KIB, 1024 * KIB, 3 << 20, 9 << 20, 17 << 20] {
        let this = std::env::current_exe().unwrap();
        let child = Command::new(this)
            .args(["--exact", "an_address_space_that_is_used_up_ends_nothing_but_what_asks_for_more"])
            .args(["--nocapture", "--test-threads=1"])
            .env(LEFT, left.to_string())
            .env("MALLOC_ARENA_MAX", "1")
            .output()
            .unwrap();
        let said = [child.stdout, child.stderr].concat();
        assert!(child.status.success(), "{left} bytes left: {}\n{}", child.status, String::from_utf8_lossy(&said));
    }
}

/// Leaves so many bytes of address space to this process.
fn leave(bytes: u64) {
    let pages: u64 = std::fs::read_to_string("/proc/self/statm").unwrap().split(' ').next().unwrap().parse().unwrap();
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: writes to `limit`.
    assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_AS, &raw mut limit) }, 0);
    // SAFETY: asks for a constant.
    let page = u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap();
    limit.rlim_cur = (pages * page + bytes).min(limit.rlim_max);
    // SAFETY: reads `limit`.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const limit) }, 0);
}

/// Lets runs wait until there is no stack for one more. The others go on.
fn asleep(program: &Program<Raw, ()>) {
    let mut cx = Context::from_waker(Waker::noop());
    let mut hosts = [(); 1000];
    let mut runs = Vec::with_capacity(hosts.len());
    let mut refused = None;
    for host in &mut hosts {
        let mut run = Box::pin(program.run_async(host, &mut []));
        match run.as_mut().poll(&mut cx) {
            Poll::Pending => runs.push(run),
            Poll::Ready(result) => {
                refused = Some(result.unwrap_err());
                break;
            }
        }
    }
    assert!(matches!(refused, Some(RunError::NoStack { .. })), "{refused:?} after {} runs", runs.len());
    for mut run in runs {
        assert!(matches!(run.as_mut().poll(&mut cx), Poll::Ready(Ok(7))));
    }
}

fn limited(left: u64) {
    let engine = Engine::new(Config::new()).unwrap();
    let linker = Linker::<()>::new(&engine);
    let load = |text: &str| linker.loader::<Raw>().insns("program", assemble(text).unwrap());
    let seven = load("r0 = 7\nexit").unwrap();
    let hook = Hook::<Raw, ()>::new(&engine, HookPolicy::LastWins { empty: 0 }).unwrap();
    hook.attach(&seven).unwrap();
    let counting = Engine::new(Config::new().metrics(true).max_slots(SLOTS)).unwrap();
    let counted = Linker::<()>::new(&counting);
    let counted = |name: &str| counted.loader::<Raw>().insns(name, assemble("r0 = 9\nexit").unwrap());
    let nine = counted("nine").unwrap();
    let (hard, large) = (assemble(&branching(60)).unwrap(), assemble(&branching(600)).unwrap());
    let mut sleeping = Linker::<()>::new(&engine);
    sleeping
        .func_async(1001, "wait", async |_: AsyncCaller<'_, ()>| {
            let mut asked = false;
            poll_fn(|_| if std::mem::replace(&mut asked, true) { Poll::Ready(()) } else { Poll::Pending }).await;
        })
        .unwrap();
    let waits = assemble("call 1001\nr0 = 7\nexit").unwrap();
    let waits = sleeping.loader::<Raw>().sleepable(true).insns("waits", waits).unwrap();
    leave(left);
    for _ in 0..2 {
        asleep(&waits);
        for map_type in [MapType::Hash, MapType::Array, MapType::PerCpuArray, MapType::LruHash, MapType::Queue] {
            let key = if map_type == MapType::Queue { 0 } else { 4 };
            let made = Map::create(MapDef::new("large", map_type, key, 64, 1 << 20), engine.domain());
            assert!(made.is_err(), "{map_type:?}");
        }
        let array = ProgArray::<Raw, ()>::create(&engine, "large", 1 << 23).map(drop);
        let error = array.expect_err("64 MiB");
        let LoadError::ProgArray { source: ProgArrayError::NoMemory { .. }, .. } = error else { panic!("{error}") };
        let slots = Config::new().max_slots(1 << 16);
        assert!(Engine::new(slots).is_err(), "65,536 execution slots");
        // As many as fill the address space. Programs of one name share their counters, which must not have been
        // changed by loads that failed.
        let mut programs = Vec::new();
        let refused = (0..64).find_map(|i| match counted(&format!("counted {i}")) {
            Ok(program) => {
                programs.push(program);
                None
            }
            Err(error) => Some(error),
        });
        let Some(LoadError::NoMemory { needed, .. }) = refused else { panic!("{left}: {refused:?}") };
        assert_eq!(needed, u64::from(SLOTS) * 64);
        drop(programs);
        for insns in [&hard, &large] {
            let loaded = linker.loader::<Raw>().insns("hard", insns.clone()).map(drop);
            assert!(matches!(loaded, Err(LoadError::VerdictUnknown { .. })), "{left}: {loaded:?}");
        }
        // The programs that were loaded before still run.
        assert_eq!(hook.run(&mut (), &mut []).unwrap(), 7);
        assert_eq!(nine.run(&mut (), &mut []).unwrap(), 9);
    }
    leave(1 << 30);
    assert_eq!(counted("nine").unwrap().run(&mut (), &mut []).unwrap(), 9);
    let runs: Vec<_> = counting.snapshot().programs.iter().map(|p| (p.program.clone(), p.versions, p.runs)).collect();
    assert_eq!(runs, [("nine".to_owned(), 1, 3)]);
    assert_eq!(load("r0 = 8\nexit").unwrap().run(&mut (), &mut []).unwrap(), 8);
}
