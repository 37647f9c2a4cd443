//! Hooks whose programs wait, and changes of them while they do.

use super::common::engines::engines;
use super::{ONCE, after, block_on, load, poll, waits};
use bpf_runtime::{
    AsyncCaller, Caller, Engine, Hook, HookPolicy, Linker, Plan, Program, Raw, RunError, RunLimits, hook::HookError,
    isa::assemble,
};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::thread;
use std::time::Duration;

#[test]
fn the_programs_of_a_hook_wait_one_after_the_other() {
    for engine in engines(|config| config.budget(1000)) {
        let linker = waits(&engine);
        let plain = linker.loader::<Raw>().insns("plain", assemble("r0 = 2\nexit").unwrap()).unwrap();
        let waiting = load(&linker, "r1 = 2\ncall 1001\nr0 = 2\nexit");
        let deny = load(&linker, "r1 = 1\ncall 1001\nr0 += 40\nexit");
        let hook = Hook::<Raw, u64>::sleepable(&engine, HookPolicy::FirstVerdict { pass: 2 }).unwrap();
        // Without a sleepable program, it is a hook like any other.
        hook.attach(&plain).unwrap();
        assert_eq!(hook.run(&mut 0, &mut []).unwrap(), 2);
        assert_eq!(block_on(hook.run_async(&mut 0, &mut [])).unwrap(), 2);
        hook.attach(&waiting).unwrap();
        let mut host = 0;
        let mut run = Box::pin(hook.run_async(&mut host, &mut []));
        assert!(poll(run.as_mut()).is_pending());
        // Nothing is held.
        engine.domain().synchronize().unwrap();
        assert!(matches!(hook.run(&mut 0, &mut []), Err(RunError::Sleepable { .. })));
        assert!(matches!(hook.run_with(&mut 0, &mut [], &RunLimits::new()), Err(RunError::Sleepable { .. })));
        assert!(poll(run.as_mut()).is_pending());
        assert!(matches!(poll(run.as_mut()), Poll::Ready(Ok(2))));
        assert!(matches!(poll(run.as_mut()), Poll::Ready(Err(RunError::Over))));
        drop(run);
        hook.attach(&deny).unwrap();
        assert_eq!(block_on(hook.run_async(&mut host, &mut [])).unwrap(), 40 + 3);
        // The budget is each program's.
        let limits = RunLimits::new().budget(1);
        assert_eq!(block_on(hook.run_async_with(&mut host, &mut [], &limits)).unwrap(), 40 + 5);
        // Given up at each poll.
        for polls in 0..4 {
            let mut run = Box::pin(hook.run_async(&mut host, &mut []));
            for _ in 0..polls {
                assert!(poll(run.as_mut()).is_pending());
            }
            drop(run);
            assert_eq!(engine.async_runs(), 0);
        }
        hook.detach(&waiting).unwrap();
        hook.detach(&deny).unwrap();
        assert_eq!(hook.run(&mut 0, &mut []).unwrap(), 2);
        // A hook that was not made for them refuses them.
        let other = Hook::<Raw, u64>::new(&engine, HookPolicy::LastWins { empty: 0 }).unwrap();
        assert!(matches!(other.attach(&waiting), Err(HookError::Sleepable { .. })));
        assert!(matches!(hook.replace(&waiting, &deny), Err(HookError::NotAttached { .. })));
    }
}

#[test]
fn a_run_keeps_the_programs_that_the_hook_had() {
    for engine in engines(|config| config) {
        // Each version has a closure of its own, whose captured value says whether its code is still kept.
        let version = |number: u64, kept: &Arc<()>| {
            let mut linker = Linker::<()>::new(&engine);
            let kept = Arc::clone(kept);
            linker
                .func_async(1001, "number", move |_: AsyncCaller<'_, ()>| {
                    let kept = Arc::clone(&kept);
                    async move {
                        after(1).await;
                        drop(kept);
                        number
                    }
                })
                .unwrap();
            load(&linker, "call 1001\nr6 = r0\ncall 1001\nr0 += r6\nexit")
        };
        let settle = || {
            engine.domain().synchronize().unwrap();
            engine.domain().reclaim();
        };
        let (first, second) = (Arc::new(()), Arc::new(()));
        let hook = Hook::<Raw, ()>::sleepable(&engine, HookPolicy::LastWins { empty: 0 }).unwrap();
        let (mut a, mut b, mut c) = ((), (), ());
        let mut old = version(1, &first);
        hook.attach(&old).unwrap();
        let mut before = Box::pin(hook.run_async(&mut a, &mut []));
        let mut dropped = Box::pin(hook.run_async(&mut c, &mut []));
        assert!(poll(before.as_mut()).is_pending());
        assert!(poll(dropped.as_mut()).is_pending());
        let new = version(2, &second);
        drop(Plan::new().replace(&hook, &old, &new).commit().unwrap());
        old = new;
        let mut after = Box::pin(hook.run_async(&mut b, &mut []));
        assert!(poll(after.as_mut()).is_pending());
        settle();
        assert!(Arc::strong_count(&first) > 1, "runs that wait keep their program");
        assert_eq!(block_on(before).unwrap(), 2);
        assert!(Arc::strong_count(&first) > 1, "one run waits still");
        drop(dropped);
        settle();
        assert_eq!(Arc::strong_count(&first), 1, "the code of the first version is freed");
        // The hook goes while a run of it waits.
        drop((hook, old));
        settle();
        assert_eq!(block_on(after).unwrap(), 4);
        settle();
        assert_eq!((Arc::strong_count(&second), engine.async_runs()), (1, 0));
    }
}

#[test]
fn a_hook_is_interrupted_while_it_waits() {
    for engine in engines(|config| config.interruptible(true)) {
        let linker = waits(&engine);
        let program = load(&linker, ONCE);
        let hooks = [(); 2].map(|()| Hook::<Raw, u64>::sleepable(&engine, HookPolicy::LastWins { empty: 0 }).unwrap());
        hooks.iter().for_each(|hook| hook.attach(&program).unwrap());
        let (mut a, mut b) = (0, 0);
        let mut ended = pin!(hooks[0].run_async(&mut a, &mut []));
        let mut goes_on = pin!(hooks[1].run_async(&mut b, &mut []));
        assert!(poll(ended.as_mut()).is_pending());
        assert!(poll(goes_on.as_mut()).is_pending());
        hooks[0].interrupt();
        assert!(matches!(poll(ended), Poll::Ready(Err(RunError::Interrupted { .. }))));
        assert!(matches!(poll(goes_on), Poll::Ready(Ok(7))));
    }
}

/// `Program::interrupt` means the runs of the program by itself, whatever kind of run: a hook's run is the hook's.
#[test]
fn an_interruption_of_a_program_does_not_end_the_runs_of_a_hook() {
    for engine in engines(|config| config.interruptible(true)) {
        let waits = load(&waits(&engine), "r1 = 1\ncall 1001\nr0 = 0\nagain: r0 += 1\nif r0 != 9 goto again\nexit");
        let hook = Hook::<Raw, u64>::sleepable(&engine, HookPolicy::LastWins { empty: 0 }).unwrap();
        hook.attach(&waits).unwrap();
        let interrupter = engine.interrupter();
        let all = [RunLimits::new(), RunLimits::new().interrupter(&interrupter)];
        for (limits, by_program) in all.iter().flat_map(|limits| [(limits, true), (limits, false)]) {
            let (mut a, mut b) = (0, 0);
            let mut of_hook = pin!(hook.run_async_with(&mut a, &mut [], limits));
            let mut own = pin!(waits.run_async_with(&mut b, &mut [], limits));
            assert!(poll(of_hook.as_mut()).is_pending());
            assert!(poll(own.as_mut()).is_pending());
            if by_program {
                waits.interrupt()
            } else {
                hook.interrupt()
            }
            let (ended, goes_on) = if by_program { (poll(own), poll(of_hook)) } else { (poll(of_hook), poll(own)) };
            assert!(matches!(ended, Poll::Ready(Err(RunError::Interrupted { .. }))), "{ended:?}");
            assert!(matches!(goes_on, Poll::Ready(Ok(9))), "{goes_on:?}");
        }
    }
}

/// Whether the wait of a hook's first program moves the deadline of `last`, too. It may not on a machine that is slow.
fn a_wait_moves_the_next(engine: &Engine, last: &Program<Raw, u64>, limit: Duration) -> bool {
    let first = load(&waits(engine), "r1 = 1\ncall 1001\nr0 = 2\nexit");
    let hook = Hook::<Raw, u64>::sleepable(engine, HookPolicy::LastWins { empty: 0 }).unwrap();
    hook.attach(&first).unwrap();
    hook.attach(last).unwrap();
    let (mut a, mut b) = (0, 0);
    let limits = RunLimits::new().deadline(engine.deadline_in(limit).unwrap());
    let without = limits.clone().waits_count(false);
    let mut counted = pin!(hook.run_async_with(&mut a, &mut [], &limits));
    let mut moved = pin!(hook.run_async_with(&mut b, &mut [], &without));
    if poll(counted.as_mut()).is_ready() || poll(moved.as_mut()).is_ready() {
        return false;
    }
    thread::sleep(limit + limit / 4);
    assert!(matches!(poll(counted), Poll::Ready(Err(RunError::Deadline { .. }))));
    // The last program may wait, too.
    for _ in 0..2 {
        if let Poll::Ready(result) = poll(moved.as_mut()) {
            return matches!(result, Ok(7));
        }
        thread::sleep(limit / 2);
    }
    false
}

#[test]
fn a_wait_moves_the_deadline_of_the_programs_that_follow() {
    for engine in engines(|config| config.interruptible(true)) {
        let linker = waits(&engine);
        let plain = linker.loader::<Raw>().insns("plain", assemble("r0 = 7\nexit").unwrap()).unwrap();
        for last in [plain, load(&linker, "r0 = 7\nexit"), load(&linker, ONCE)] {
            assert!((0..5).any(|i| a_wait_moves_the_next(&engine, &last, Duration::from_millis(100 << i))));
        }
    }
}

#[test]
fn a_run_that_has_thrown_does_not_begin_again() {
    for engine in engines(|config| config) {
        let mut linker = Linker::<u64>::new(&engine);
        linker
            .func_async(1001, "throws", async |mut c: AsyncCaller<'_, u64>, polls: u64| -> u64 {
                *c.host() += 1;
                after(polls).await;
                panic!("thrown by the host")
            })
            .unwrap();
        // In the poll in which the first or the second program begins, and in a later one.
        for (before, polls) in [(0, 0), (1, 0), (0, 1), (1, 1)] {
            let hook = Hook::<Raw, u64>::sleepable(&engine, HookPolicy::LastWins { empty: 0 }).unwrap();
            for _ in 0..before {
                hook.attach(&load(&linker, "r0 = 1\nexit")).unwrap();
            }
            hook.attach(&load(&linker, &format!("r1 = {polls}\ncall 1001\nexit"))).unwrap();
            let mut host = 0;
            let mut run = Box::pin(hook.run_async(&mut host, &mut []));
            for _ in 0..polls {
                assert!(poll(run.as_mut()).is_pending());
            }
            assert!(catch_unwind(AssertUnwindSafe(|| poll(run.as_mut()))).is_err());
            for _ in 0..2 {
                assert!(matches!(poll(run.as_mut()), Poll::Ready(Err(RunError::Over))));
            }
            drop(run);
            assert_eq!((host, engine.async_runs()), (1, 0));
        }
    }
}

/// Takes back-edges, and returns 42.
const ROUNDS: &str = "r0 = 0\nr1 = 100\nagain: r0 += 1\nif r0 != r1 goto again\nr0 = 42\nexit";

#[test]
fn an_interruption_after_the_last_check_of_a_program_ends_the_run() {
    type Stop = Arc<std::sync::OnceLock<Box<dyn Fn() + Send + Sync>>>;
    for engine in engines(|config| config.interruptible(true)) {
        for (first, by) in [("call 1000", 0), ("call 1000", 1), ("call 1001", 0), ("call 1001", 1), ("call 1001", 2)] {
            // Called last by the first program.
            let stop: Stop = Arc::default();
            let mut linker = Linker::<u64>::new(&engine);
            let (plain, waits) = (Arc::clone(&stop), Arc::clone(&stop));
            linker
                .func(1000, "stop", move |_: &mut Caller<'_, u64>| plain.get().unwrap()())
                .unwrap()
                .func_async(1001, "stop_async", move |_: AsyncCaller<'_, u64>| {
                    let stop = Arc::clone(&waits);
                    async move { stop.get().unwrap()() }
                })
                .unwrap();
            let hook = Arc::new(Hook::<Raw, u64>::sleepable(&engine, HookPolicy::LastWins { empty: 0 }).unwrap());
            let ends = format!("{first}\nr0 = 1\nexit");
            let sleepable = first.ends_with("1001");
            let ends = linker.loader().sleepable(sleepable).insns("ends", assemble(&ends).unwrap()).unwrap();
            hook.attach(&ends).unwrap();
            hook.attach(&linker.loader().insns("rounds", assemble(ROUNDS).unwrap()).unwrap()).unwrap();
            let interrupter = engine.interrupter();
            let limits = if by == 1 { RunLimits::new().interrupter(&interrupter) } else { RunLimits::new() };
            let (of, all) = (Arc::clone(&hook), engine.clone());
            let _ = stop.set(match by {
                0 => Box::new(move || of.interrupt()),
                1 => Box::new(move || interrupter.interrupt()),
                _ => Box::new(move || all.interrupt()),
            });
            let result = block_on(hook.run_async_with(&mut 0, &mut [], &limits));
            assert!(matches!(result, Err(RunError::Interrupted { .. })), "{first} {by}: {result:?}");
            // The interruption does not end a run that begins later.
            hook.detach(&ends).unwrap();
            assert_eq!(block_on(hook.run_async_with(&mut 0, &mut [], &limits)).unwrap(), 42);
        }
    }
}
