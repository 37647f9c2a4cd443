//! Programs that are made fast while threads run them (`OptLevel::Tiered`).
//!
//! In a file (a process) of its own, because it looks for the thread that does it.
#![cfg(all(target_os = "linux", not(miri)))]

use bpf_runtime::{code::Arch, isa::assemble, *};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{RwLock, RwLockReadGuard};

type Prog = Program<Raw, u64>;

/// Tests that inspect the process's threads hold the write lock, and so run alone.
static THREADS: RwLock<()> = RwLock::new(());

/// An engine of two tiers, unless this host has none.
fn engine(change: impl FnOnce(Config) -> Config) -> Option<(RwLockReadGuard<'static, ()>, Engine)> {
    let config = change(Config::new().opt_level(OptLevel::Tiered));
    let engine = Engine::new(config).unwrap();
    if Arch::HOST.is_none() || !engine.domain().has_core_barrier() {
        bpf_testkit::skipped("tiers", &"no backend or no core barrier on this host");
        return None;
    }
    Some((THREADS.read().unwrap_or_else(|poisoned| poisoned.into_inner()), engine))
}

fn linker(engine: &Engine) -> Linker<u64> {
    let mut linker = Linker::<u64>::new(engine);
    linker
        .func(1000, "refuse", |caller: &mut Caller<'_, u64>, value: u64| match value {
            0 => Err(HelperError::new("zero")),
            _ => {
                *caller.host() += 1;
                Ok(value)
            }
        })
        .unwrap();
    linker
}

/// Adds the bytes of the context, twice over a slot of the stack, which the optimiser would leave out.
const SUM: &str = "r0 = 0\nr3 = r1\nr3 += r2\nr4 = 0\n\
    if r1 == r3 goto +6\nr5 = *(u8 *)(r1 + 0)\n*(u64 *)(r10 - 8) = r5\nr5 = *(u64 *)(r10 - 8)\nr0 += r5\nr1 += 1\n\
    goto -7\nexit";

fn load(engine: &Engine, name: &str, text: &str) -> Prog {
    load_with(engine, name, text, OptLevel::Tiered, &[], None)
}

fn load_with(
    engine: &Engine,
    name: &str,
    text: &str,
    level: OptLevel,
    arrays: &[&ProgArray<Raw, u64>],
    account: Option<&Account>,
) -> Prog {
    let linker = linker(engine);
    // SAFETY: the tests' programs stay inside the context they are given, and end.
    let mut loader = unsafe { linker.loader::<Raw>().opt_level(level).prog_arrays(arrays).unverified(true) };
    if let Some(account) = account {
        loader = loader.account(account);
    }
    loader.insns(name, assemble(text).unwrap()).unwrap()
}

/// Frees everything that waits.
fn settle(engine: &Engine) {
    for _ in 0..3 {
        engine.domain().drain().unwrap();
        engine.reclaim();
    }
}

/// Settles until that is so: the recompiling thread may hold a program, or its first code, for a while after the
/// program is fast.
fn settle_until<T: PartialEq + std::fmt::Debug>(engine: &Engine, read: impl Fn() -> T, expected: T) {
    for _ in 0..10_000 {
        settle(engine);
        if read() == expected {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    assert_eq!(read(), expected);
}

fn settle_empty(engine: &Engine) {
    let left = || (engine.code_stats().programs, engine.code_stats().bytes_used);
    settle_until(engine, left, (0, 0));
}

/// Runs until all of these are fast, by several threads at once; how many runs there were.
fn run_until_fast(programs: &[&Prog], run: impl Fn() + Sync) -> u64 {
    let runs = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let mut after = 0;
                while after < 100 {
                    run();
                    // Relaxed: a count.
                    runs.fetch_add(1, Ordering::Relaxed);
                    after += u32::from(programs.iter().all(|program| !program.is_slow()));
                }
            });
        }
    });
    runs.load(Ordering::Relaxed)
}

#[test]
fn all_ways_to_a_program_come_to_its_fast_code() {
    let Some((_alone, engine)) = engine(|config| config) else { return };
    let data = || [1u8, 2, 3, 4];
    let program = load(&engine, "sum", SUM);
    let slow = program.machine_code().unwrap();
    assert!(program.is_slow());
    let hook = Hook::<Raw, u64>::new(&engine, HookPolicy::LastWins { empty: 0 }).unwrap();
    hook.attach(&program).unwrap();
    let dispatcher = Dispatcher::<Raw, u64>::new(&engine).unwrap();
    dispatcher.attach(&program).unwrap();
    let other = load(&engine, "other", "r0 = 5\nexit");
    dispatcher.attach(&other).unwrap();
    let array = ProgArray::<Raw, u64>::create(&engine, "next", 2).unwrap();
    array.set(1, &program).unwrap();
    let jumping = |name, text| load_with(&engine, name, text, OptLevel::Tiered, &[&array], None);
    let direct = jumping("direct", "r6 = r1\nr7 = r2\nr2 = map[fd:0]\nr3 = 1\ncall 12\nr0 = 99\nexit");
    let indirect =
        jumping("indirect", "r6 = r1\nr3 = *(u8 *)(r6 + 0)\nr3 &= 1\nr2 = map[fd:0]\ncall 12\nr0 = 99\nexit");
    assert_eq!(array.tracked_sites(1), 1);
    let all = [&program, &direct, &indirect];
    run_until_fast(&all, || {
        assert_eq!(program.run(&mut 0, &mut data()).unwrap(), 10);
        assert_eq!(hook.run(&mut 0, &mut data()).unwrap(), 10);
        assert_eq!(dispatcher.call(&program, &mut 0, &mut data()).unwrap(), 10);
        assert_eq!(program.runner(&mut 0).unwrap().run(&mut data()).unwrap(), 10);
        assert_eq!(direct.run(&mut 0, &mut data()).unwrap(), 10);
        assert_eq!(indirect.run(&mut 0, &mut data()).unwrap(), 10);
    });
    // A program is counted a moment after it is fast.
    settle_until(&engine, || engine.tier_stats().fast >= 3, true);
    assert_eq!(engine.tier_stats().refused, 0);
    let fast = program.machine_code().unwrap();
    assert_ne!((slow.1, slow.0.len()), (fast.1, fast.0.len()));

    // The program loaded without tiers has the same code.
    let speed = load_with(&engine, "speed", SUM, OptLevel::Speed, &[], None);
    assert_eq!(speed.machine_code().unwrap().0, fast.0);

    // The slow code is gone: the fast code of four programs and four jumps are left, and later nothing.
    settle_until(&engine, || array.tracked_sites(1), 1);
    array.set(1, &other).unwrap();
    assert_eq!(direct.run(&mut 0, &mut data()).unwrap(), 5, "sites of fast code are patched");
    assert_eq!(indirect.run(&mut 0, &mut data()).unwrap(), 5);
    hook.replace(&program, &other).unwrap();
    assert_eq!(hook.run(&mut 0, &mut data()).unwrap(), 5);
    drop((program, other, direct, indirect, speed, array, hook, dispatcher));
    settle_empty(&engine);
}

#[test]
fn code_that_was_replaced_is_freed() {
    let Some((_alone, engine)) = engine(|config| config) else { return };
    let before = engine.code_stats();
    let programs: Vec<Prog> = (0..50).map(|n| load(&engine, "sum", &format!("r6 = {n}\n{SUM}"))).collect();
    let refs: Vec<&Prog> = programs.iter().collect();
    assert_eq!(engine.code_stats().programs, before.programs + 100, "code, and the jump that leads to it");
    run_until_fast(&refs, || {
        for program in &programs {
            assert_eq!(program.run(&mut 0, &mut [7; 100]).unwrap(), 700);
        }
    });
    settle_until(&engine, || engine.tier_stats().fast, 50);
    // Fast code for slow code.
    settle_until(&engine, || engine.code_stats().programs, before.programs + 100);
    drop(programs);
    settle_empty(&engine);
}

#[test]
fn programs_go_and_come_while_they_are_made_fast() {
    let Some((_alone, engine)) = engine(|config| config.tick(std::time::Duration::from_micros(50))) else { return };
    let hook = Hook::<Raw, u64>::new(&engine, HookPolicy::LastWins { empty: 7 }).unwrap();
    let array = ProgArray::<Raw, u64>::create(&engine, "next", 1).unwrap();
    let text = "r2 = map[fd:0]\nr3 = 0\ncall 12\nr0 = 7\nexit";
    let entry = load_with(&engine, "entry", text, OptLevel::Tiered, &[&array], None);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut seen = [0u64; 2];
                // Relaxed: a flag that orders nothing else.
                while !stop.load(Ordering::Relaxed) {
                    for result in [hook.run(&mut 0, &mut [1; 7]), entry.run(&mut 0, &mut [1; 7])] {
                        // The sum, or 7 of an empty hook or slot.
                        assert_eq!(result.unwrap(), 7);
                        seen[0] += 1;
                    }
                }
                assert!(seen[0] > 0);
            });
        }
        let mut old: Option<Prog> = None;
        let mut round = 0;
        // Until some were made fast and some were dropped before.
        while round < 300 || engine.tier_stats().fast < 20 {
            let new = load(&engine, "sum", SUM);
            match &old {
                Some(old) if round % 3 == 0 => {
                    drop(Plan::new().replace(&hook, old, &new).set(&array, 0, &new).commit().unwrap());
                }
                Some(old) => {
                    hook.replace(old, &new).unwrap();
                    array.set(0, &new).unwrap();
                }
                None => {
                    hook.attach(&new).unwrap();
                    array.set(0, &new).unwrap();
                }
            }
            old = Some(new);
            round += 1;
            if round % 8 == 0 {
                std::thread::sleep(std::time::Duration::from_millis(2));
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(engine.tier_stats().refused, 0);
    drop((hook, entry, array));
    settle_empty(&engine);
}

#[test]
fn a_stop_is_told_of_the_same_instruction_in_both_tiers() {
    let Some((_alone, engine)) = engine(|config| config) else { return };
    let text = "r6 = *(u8 *)(r1 + 0)\nr1 = r6\ncall 1000\nr1 = 1\ncall 1000\nr0 = r6\nexit";
    let program = load(&engine, "stops", text);
    let failed = AtomicU64::new(0);
    let runs = run_until_fast(&[&program], || {
        let mut calls = 0;
        assert_eq!(program.run(&mut calls, &mut [3]).unwrap(), 3);
        assert_eq!(calls, 2, "every call was made");
        match program.run(&mut calls, &mut [0]) {
            Err(RunError::Host { insn: Some(insn), origin: Some(origin), .. }) => {
                assert_eq!((insn.0, &*origin.program), (2, "stops"));
                failed.fetch_add(1, Ordering::Relaxed);
            }
            other => panic!("{other:?}"),
        }
    });
    assert_eq!(failed.load(Ordering::Relaxed), runs);
}

#[test]
fn runs_are_counted_over_the_change() {
    let Some((_alone, engine)) = engine(|config| config.metrics(true)) else { return };
    let program = load(&engine, "sum", SUM);
    let slow = engine.snapshot().programs[0].code_bytes;
    let runs = run_until_fast(&[&program], || assert_eq!(program.run(&mut 0, &mut [1; 50]).unwrap(), 50));
    let counted = &engine.snapshot().programs[0];
    assert_eq!(counted.runs, runs);
    // The count is of the code that runs; it is stored a moment after the code is entered.
    settle(&engine);
    let bytes = program.machine_code().unwrap().0.len() as u64;
    while engine.snapshot().programs[0].code_bytes != bytes {
        std::thread::yield_now();
    }
    assert_ne!(slow, bytes);
}

#[test]
fn without_room_in_its_account_a_program_stays_as_it_is() {
    let Some((_alone, engine)) = engine(|config| config) else { return };
    let account = engine.account("plug-in", 1 << 20);
    let program = load_with(&engine, "sum", SUM, OptLevel::Tiered, &[], Some(&account));
    let used = account.used();
    account.set_limit(used).unwrap();
    while engine.tier_stats().refused == 0 {
        assert_eq!(program.run(&mut 0, &mut [1; 50]).unwrap(), 50);
    }
    assert!(program.is_slow() && engine.tier_stats().fast == 0);
    // The recompilation is not tried again: the instructions go.
    let kept = account.used();
    assert!(kept < used && kept >= program.machine_code().unwrap().0.len() as u64, "{kept} of {used}");
    assert_eq!(program.run(&mut 0, &mut [1; 50]).unwrap(), 50);
    drop(program);
    settle_until(&engine, || account.used(), 0);

    // With room, what the slow code took is given back.
    account.set_limit(1 << 20).unwrap();
    let program = load_with(&engine, "sum", SUM, OptLevel::Tiered, &[], Some(&account));
    run_until_fast(&[&program], || assert_eq!(program.run(&mut 0, &mut [1; 50]).unwrap(), 50));
    settle_until(&engine, || account.used(), program.machine_code().unwrap().0.len() as u64);
    drop(program);
    settle_until(&engine, || account.used(), 0);
}

#[test]
fn where_code_may_not_be_patched_it_is_fast_at_once() {
    let Some((_alone, engine)) = engine(|config| config.direct_tail_calls(false)) else { return };
    let program = load(&engine, "sum", SUM);
    assert!(!program.is_slow());
    assert_eq!(program.run(&mut 0, &mut [1; 50]).unwrap(), 50);
}

/// How many threads make programs fast.
fn threads() -> usize {
    let name = |task: std::io::Result<std::fs::DirEntry>| std::fs::read_to_string(task.ok()?.path().join("comm")).ok();
    std::fs::read_dir("/proc/self/task").unwrap().filter_map(name).filter(|name| name.trim() == "bpf-tiers").count()
}

#[test]
fn the_thread_ends_with_its_engine() {
    let _alone = THREADS.write().unwrap_or_else(|poisoned| poisoned.into_inner());
    for made_fast in [false, true] {
        let config = Config::new().opt_level(OptLevel::Tiered);
        let engine = Engine::new(config).unwrap();
        if Arch::HOST.is_none() || !engine.domain().has_core_barrier() {
            return bpf_testkit::skipped("tiers", &"no backend or no core barrier on this host");
        }
        let program = load(&engine, "sum", SUM);
        while threads() == 0 {
            std::thread::yield_now();
        }
        while made_fast && program.is_slow() {
            assert_eq!(program.run(&mut 0, &mut [1; 50]).unwrap(), 50);
        }
        let domain = std::sync::Arc::downgrade(engine.domain());
        drop((engine, program));
        // Waits also for the threads of earlier tests.
        while threads() > 0 || domain.upgrade().is_some() {
            std::thread::yield_now();
        }
    }
}
