//! Programs that go while they run: dropped by themselves, dropped and replaced by other threads, interrupted.

use crate::common::engines::{engine, modes};
use crate::common::fixtures;
use bpf_runtime::{Caller, Engine, Linker, Mode, ProgArray, Program, Raw, RunError, isa::assemble};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex};

/// The host of programs that give themselves up: the only things that still name the running one.
#[derive(Default)]
struct Holder {
    program: Option<Program<Raw, Holder>>,
    array: Option<ProgArray<Raw, Holder>>,
}

#[test]
fn a_program_drops_itself_in_a_host_function_and_runs_on() {
    for mode in modes() {
        let engine = engine(mode, |config| config);
        let mut linker = Linker::<Holder>::new(&engine);
        linker
            .func(1001, "give_up", |c: &mut Caller<'_, Holder>| -> u64 {
                let array = c.host().array.take().unwrap();
                array.clear(0).unwrap();
                let last = c.host().program.take().unwrap();
                drop((array, last));
                5
            })
            .unwrap();
        let load = |name: &str, text: &str, arrays: &[&ProgArray<Raw, Holder>]| {
            let insns = assemble(text).unwrap();
            // SAFETY: the programs stay inside their memory and end.
            unsafe { linker.loader().unverified(true) }.prog_arrays(arrays).insns(name, insns).unwrap()
        };
        for key in ["r3 = 0", "r3 = *(u8 *)(r1 + 0)"] {
            let array = ProgArray::<Raw, Holder>::create(&engine, "array", 1).unwrap();
            let main = load("main", &format!("{key}\nr2 = map[fd:0]\ncall 12\nr0 = 1\nexit"), &[&array]);
            let target = load("target", "call 1001\nr0 += 2\nexit", &[]);
            array.set(0, &target).unwrap();
            let loaded = engine.code_stats().programs;
            let mut holder = Holder { program: Some(target), array: Some(array) };
            // The second half of `target` runs after every handle of it is gone.
            assert_eq!(main.run(&mut holder, &mut [0]).unwrap(), 7, "{mode:?}, {key}");
            assert!(holder.program.is_none());
            assert_eq!(main.run(&mut holder, &mut [0]).unwrap(), 1, "{mode:?}, {key}: the slot is empty");
            // Letting it go lets go of its code, again after a grace period.
            for _ in 0..3 {
                engine.domain().drain().unwrap();
            }
            let gone = if mode.mode == Mode::Jit { 1 } else { 0 };
            assert_eq!(engine.code_stats().programs, loaded - gone, "{mode:?}, {key}");
        }
    }
}

#[test]
fn a_program_is_replaced_and_dropped_under_the_threads_that_run_it() {
    const FIRST: u32 = 1000;
    let replacements = if cfg!(target_arch = "aarch64") { 200 } else { 5000 };
    for f in fixtures() {
        let constant = |value: u32| f.load("constant", &format!("r0 = {value}\nexit"), &[]);
        // Each runner clones the handle, so the last one may be dropped in any of the threads.
        let current = Mutex::new(Arc::new(constant(FIRST)));
        let (stop, newest) = (AtomicBool::new(false), AtomicU64::new(FIRST.into()));
        let all_run = Barrier::new(4);
        std::thread::scope(|scope| {
            let runners: Vec<_> = (0..3)
                .map(|_| {
                    scope.spawn(|| {
                        all_run.wait();
                        // Relaxed: the flag orders nothing else.
                        while !stop.load(Ordering::Relaxed) {
                            let program = Arc::clone(&current.lock().unwrap());
                            for _ in 0..8 {
                                let (r0, _) = f.run(&program, [0; 4]);
                                // Acquire, pairs with the release below: a program is announced before it is put into
                                // the slot.
                                let newest = newest.load(Ordering::Acquire);
                                assert!((u64::from(FIRST)..=newest).contains(&r0), "{}: {r0}", f.name);
                            }
                        }
                    })
                })
                .collect();
            all_run.wait();
            for i in 1..=replacements {
                newest.store((FIRST + i).into(), Ordering::Release);
                *current.lock().unwrap() = Arc::new(constant(FIRST + i));
            }
            stop.store(true, Ordering::Relaxed);
            runners.into_iter().for_each(|runner| runner.join().unwrap());
        });
        for _ in 0..3 {
            f.engine.domain().drain().unwrap();
        }
        assert_eq!(f.engine.code_stats().programs, usize::from(f.is_jit()), "{}: the present one is left", f.name);
    }
}

#[test]
fn another_thread_ends_a_run_at_a_loop_edge_or_a_call() {
    for mode in modes() {
        let engine = engine(mode, |config| config.interruptible(true));
        let mut linker = Linker::<()>::new(&engine);
        linker.func(1001, "one", |_: &mut Caller<'_, ()>| -> u64 { 1 }).unwrap();
        let edge = "a: goto a";
        let conditional = "r0 = 0\na: r0 += 1\nif r0 != -1 goto a\nexit";
        // Straight on through calls, and back by a counter of 64 bits that never gets there.
        let call = "r6 = 0\na: call 1001\nr6 += r0\nif r6 != -1 goto a\nexit";
        for text in [edge, conditional, call] {
            // SAFETY: it touches no memory, and the interruption ends it.
            let program: Program<Raw, ()> =
                unsafe { linker.loader().unverified(true) }.insns("endless", assemble(text).unwrap()).unwrap();
            let ended = AtomicBool::new(false);
            let result = std::thread::scope(|scope| {
                let run = scope.spawn(|| {
                    let result = program.run(&mut (), &mut []);
                    // Relaxed, here and below: the join orders the result.
                    ended.store(true, Ordering::Relaxed);
                    result
                });
                // Before the run has begun there is nothing to interrupt.
                while !ended.load(Ordering::Relaxed) {
                    engine.interrupt();
                    std::thread::yield_now();
                }
                run.join().unwrap()
            });
            assert!(matches!(result, Err(RunError::Interrupted { .. })), "{mode:?}, {text}: {result:?}");
        }
    }
}

/// A host whose program runs itself again, one level deeper, and whose innermost run is endless.
#[derive(Default)]
struct Nest {
    program: Option<Program<Raw, Nest>>,
    /// Called at the innermost level, before the endless run begins.
    at_the_bottom: Option<Box<dyn FnOnce()>>,
    /// How the inner runs ended, innermost first.
    ends: Vec<bool>,
}

/// r1 = the byte; at 0 it loops for ever, otherwise it runs itself with one less and then loops for ever.
fn nest(engine: &Engine) -> Program<Raw, Nest> {
    let mut linker = Linker::<Nest>::new(engine);
    linker
        .func(1001, "deeper", |c: &mut Caller<'_, Nest>, left: u64| {
            let host = c.host();
            if left == 1
                && let Some(call) = host.at_the_bottom.take()
            {
                call();
            }
            let program = host.program.clone().expect("the test set it");
            let result = program.run(host, &mut [left as u8 - 1]);
            host.ends.push(matches!(result, Err(RunError::Interrupted { .. })));
        })
        .unwrap();
    let text = "r1 = *(u8 *)(r1 + 0)\nif r1 == 0 goto again\ncall 1001\nagain: goto again";
    // SAFETY: it reads the byte it is given, and an interruption ends it.
    unsafe { linker.loader().unverified(true) }.insns("nest", assemble(text).unwrap()).unwrap()
}

#[test]
fn another_thread_ends_nested_runs_from_the_inside_out() {
    for mode in modes() {
        let engine = engine(mode, |config| config.interruptible(true));
        let program = nest(&engine);
        for depth in [0, 1, 3, 15] {
            let ended = AtomicBool::new(false);
            let host = std::thread::scope(|scope| {
                let run = scope.spawn(|| {
                    let mut host = Nest { program: Some(program.clone()), ..Nest::default() };
                    let result = program.run(&mut host, &mut [depth]);
                    // Relaxed, here and below: the join orders the result.
                    ended.store(true, Ordering::Relaxed);
                    assert!(matches!(result, Err(RunError::Interrupted { .. })), "{mode:?}, {depth}: {result:?}");
                    host.ends
                });
                while !ended.load(Ordering::Relaxed) {
                    engine.interrupt();
                    std::thread::yield_now();
                }
                run.join().unwrap()
            });
            // If the outermost was interrupted before its call, it never went deeper.
            assert!(host.iter().all(|interrupted| *interrupted), "{mode:?}, {depth}: {host:?}");
        }
    }
}

/// One call of `interrupt` is enough, wherever the runs are: those inside a run that was asked to stop are asked too,
/// even if they begin later.
#[test]
fn an_interruption_reaches_runs_that_begin_inside_an_interrupted_one() {
    for mode in modes() {
        let engine = engine(mode, |config| config.interruptible(true));
        let program = nest(&engine);
        for depth in [1, 2, 9] {
            let interrupter = engine.clone();
            let mut host = Nest {
                program: Some(program.clone()),
                at_the_bottom: Some(Box::new(move || interrupter.interrupt())),
                ends: Vec::new(),
            };
            let result = program.run(&mut host, &mut [depth]);
            assert!(matches!(result, Err(RunError::Interrupted { .. })), "{mode:?}, {depth}: {result:?}");
            assert_eq!(host.ends, vec![true; depth.into()], "{mode:?}, {depth}");
            let linker = Linker::<()>::new(&engine);
            let insns = assemble("r1 = 9\na: r1 -= 1\nif r1 != 0 goto a\nr0 = 3\nexit").unwrap();
            let fine: Program<Raw, ()> = linker.loader().insns("fine", insns).unwrap();
            assert_eq!(fine.run(&mut (), &mut []).unwrap(), 3, "{mode:?}: an interruption stops only runs in progress");
        }
    }
}
