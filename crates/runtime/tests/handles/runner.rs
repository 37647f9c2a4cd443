//! Runs under one guard, and runs within each other: each as if it were alone.

use crate::common::engines::engines;
use bpf_runtime::{Caller, HelperError, Hook, HookPolicy, Linker, Program, Raw, RunError, isa::assemble};
use std::sync::atomic::{AtomicBool, Ordering};

fn load<H: 'static>(linker: &Linker<H>, text: &str) -> Program<Raw, H> {
    // SAFETY: the tests' programs use no memory but the bytes whose number they check, and end or are stopped.
    let loader = unsafe { linker.loader().unverified(true) };
    loader.insns("test", assemble(text).unwrap()).unwrap()
}

#[test]
fn each_run_starts_afresh() {
    for engine in engines(|config| config.budget(40)) {
        let linker = Linker::<()>::new(&engine);
        // As many rounds as there are bytes.
        let count = load(&linker, "r0 = 0\nagain: if r0 == r2 goto out\nr0 += 1\ngoto again\nout: exit");
        let mut host = ();
        let mut runner = count.runner(&mut host).unwrap();
        for len in [30, 30, 0, 39] {
            assert_eq!(runner.run(&mut vec![0; len]).unwrap(), len as u64);
        }
        assert!(matches!(runner.run(&mut [0; 64]), Err(RunError::Budget { .. })));
        assert_eq!(runner.run(&mut [0; 30]).unwrap(), 30, "the budget is a run's own");
        drop(runner);
        assert!(matches!(count.run(&mut (), &mut [0; 64]), Err(RunError::Budget { .. })));
        assert_eq!(count.run(&mut (), &mut [0; 30]).unwrap(), 30);
    }
}

#[test]
fn errors_end_a_run_and_not_the_runner() {
    for engine in engines(|config| config) {
        let mut linker = Linker::<u32>::new(&engine);
        let check = |c: &mut Caller<'_, u32>, byte: u64| -> Result<u64, HelperError> {
            *c.host() += 1;
            match byte {
                1 => Err(HelperError::new(RunError::TooDeep { limit: 1 })),
                2 => panic!("two"),
                _ => Ok(byte),
            }
        };
        linker.func(1001, "check", check).unwrap();
        let program = load(&linker, "r0 = 9\nif r2 < 1 goto out\nr1 = *(u8 *)(r1 + 0)\ncall 1001\nout: exit");
        let mut calls = 0;
        let mut runner = program.runner(&mut calls).unwrap();
        assert_eq!(runner.run(&mut [5]).unwrap(), 5);
        let error = runner.run(&mut [1]).unwrap_err();
        assert!(matches!(error, RunError::Host { source: HelperError::Failed(_), .. }), "{error}");
        *runner.host() += 100;
        let error = runner.run(&mut [2]).unwrap_err();
        assert!(matches!(error, RunError::Host { source: HelperError::Panicked(_), .. }), "{error}");
        assert_eq!(runner.run(&mut [7]).unwrap(), 7);
        assert_eq!(runner.run(&mut []).unwrap(), 9);
        drop(runner);
        assert_eq!(calls, 104);
    }
}

/// A host with a program to run inside.
#[derive(Default)]
struct Outer {
    inner: Option<Program<Raw, Outer>>,
}

#[test]
fn a_stopped_run_inside_another_leaves_it_alone() {
    for engine in engines(|config| config.budget(100)) {
        let mut linker = Linker::<Outer>::new(&engine);
        let inside = |c: &mut Caller<'_, Outer>, len: u64| -> Result<u64, HelperError> {
            let inner = c.host().inner.clone().expect("the test set it");
            match inner.run(c.host(), &mut vec![0; len as usize]) {
                Ok(r0) => Ok(r0),
                Err(RunError::Budget { .. }) => Ok(1000),
                Err(error) => Err(HelperError::new(error)),
            }
        };
        linker.func(1001, "inside", inside).unwrap();
        let inner = load(&linker, "r0 = 0\nagain: if r0 == r2 goto out\nr0 += 1\ngoto again\nout: exit");
        // The values in r6 to r9 are kept over a run inside, whether it ends or is stopped.
        let outer = load(
            &linker,
            "r6 = r2\nr7 = 1\nr8 = 2\nr9 = 4\nr1 = r6\ncall 1001\nr0 += r6\nr0 += r7\nr0 += r8\nr0 += r9\nexit",
        );
        let mut host = Outer { inner: Some(inner) };
        for _ in 0..3 {
            assert_eq!(outer.run(&mut host, &mut [0; 50]).unwrap(), 50 + 50 + 7);
            assert_eq!(outer.run(&mut host, &mut [0; 200]).unwrap(), 1000 + 200 + 7);
            let mut runner = outer.runner(&mut host).unwrap();
            assert_eq!(runner.run(&mut [0; 50]).unwrap(), 50 + 50 + 7);
            assert_eq!(runner.run(&mut [0; 200]).unwrap(), 1000 + 200 + 7);
        }
        host.inner = None;
    }
}

#[test]
fn hooks_change_between_the_runs_of_a_runner() {
    for engine in engines(|config| config) {
        let linker = Linker::<()>::new(&engine);
        let hook = Hook::<Raw, ()>::new(&engine, HookPolicy::LastWins { empty: 0 }).unwrap();
        let (one, two) = (load(&linker, "r0 = 1\nexit"), load(&linker, "r0 = 2\nexit"));
        let mut host = ();
        let mut runner = hook.runner(&mut host).unwrap();
        assert_eq!(runner.run(&mut []).unwrap(), 0);
        hook.attach(&one).unwrap();
        assert_eq!(runner.run(&mut []).unwrap(), 1);
        hook.replace(&one, &two).unwrap();
        assert_eq!(runner.run(&mut []).unwrap(), 2);
        // Other ways to run, under the same guard.
        assert_eq!(hook.run(&mut (), &mut []).unwrap(), 2);
        assert_eq!(one.run(&mut (), &mut []).unwrap(), 1);
        assert!(engine.domain().synchronize().is_err(), "the thread is inside the runner's guard");
        drop(runner);
        engine.domain().synchronize().unwrap();
    }
}

#[test]
fn a_run_under_a_guard_of_the_users_can_be_interrupted() {
    for engine in engines(|config| config.interruptible(true)) {
        let linker = Linker::<()>::new(&engine);
        let forever = load(&linker, "r0 = 1\nagain: if r0 != 0 goto again\nexit");
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // Until the run has begun there is nothing to interrupt, so ask until it has ended.
                while !over.load(Ordering::Relaxed) {
                    engine.interrupt();
                    std::thread::yield_now();
                }
            });
            let guard = engine.domain().enter().unwrap();
            let error = forever.run(&mut (), &mut []).unwrap_err();
            assert!(matches!(error, RunError::Interrupted { .. }), "{error}");
            drop(guard);
            let mut host = ();
            let error = forever.runner(&mut host).unwrap().run(&mut []).unwrap_err();
            assert!(matches!(error, RunError::Interrupted { .. }), "{error}");
            over.store(true, Ordering::Relaxed);
        });
        let fine = load(&linker, "r0 = 3\nexit");
        assert_eq!(fine.run(&mut (), &mut []).unwrap(), 3, "an interruption that came too late is forgotten");
    }
}
