//! Values of hosts that runs drop: their destructors may use sleepable programs, as any code of a host may.

use super::common::engines::engines;
use super::common::events::OnEvent;
use super::{Dropped, after, block_on, load, poll};
use bpf_runtime::{AsyncCaller, Caller, Config, Engine, HelperError, Linker, Program, Raw, RunError, RunLimits};
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;

type Run = Pin<Box<dyn Future<Output = Result<u64, RunError>> + Send>>;

/// An engine, and a program that waits once with a value in its future that says when it is dropped.
fn waits(change: impl FnOnce(Config) -> Config) -> (Engine, Program<Raw, Arc<AtomicBool>>) {
    let engine = Engine::new(change(Config::new().interruptible(true))).unwrap();
    let mut linker = Linker::<Arc<AtomicBool>>::new(&engine);
    linker
        .func_async(1001, "wait", async |mut c: AsyncCaller<'_, Arc<AtomicBool>>| {
            let dropped = Arc::clone(c.host());
            let _dropped = Dropped(&dropped);
            after(1).await;
        })
        .unwrap();
    let program = load(&linker, "call 1001\nr0 = 7\nexit");
    (engine, program)
}

/// A run whose host says when its future is dropped.
fn run(program: &Program<Raw, Arc<AtomicBool>>) -> (Run, Arc<AtomicBool>) {
    let dropped = Arc::<AtomicBool>::default();
    let program = program.clone();
    let mut host = Arc::clone(&dropped);
    let run = async move { program.run_async(&mut host, &mut []).await };
    (Box::pin(run), dropped)
}

/// A value of a host. Its destructor gives up a run that waits, and begins another.
struct Uses {
    waits: (Run, Arc<AtomicBool>),
    program: Program<Raw, Arc<AtomicBool>>,
    /// Set if both did as they should.
    right: Arc<AtomicBool>,
}

impl Uses {
    fn new(program: &Program<Raw, Arc<AtomicBool>>) -> (Uses, Arc<AtomicBool>) {
        let (mut waits, right) = (run(program), Arc::<AtomicBool>::default());
        assert!(poll(waits.0.as_mut()).is_pending());
        (Uses { waits, program: program.clone(), right: Arc::clone(&right) }, right)
    }
}

impl Drop for Uses {
    fn drop(&mut self) {
        let none: Run = Box::pin(async { Ok(0) });
        drop(std::mem::replace(&mut self.waits.0, none));
        let given_up = self.waits.1.load(Ordering::SeqCst);
        let goes_on = matches!(block_on(run(&self.program).0), Ok(7));
        self.right.store(given_up && goes_on, Ordering::SeqCst);
    }
}

/// Limits of a run may keep another engine, whose configuration holds values of a host.
#[test]
fn a_run_may_be_the_last_owner_of_another_engine() {
    let (engine, program) = waits(|config| config);
    let (uses, right) = Uses::new(&program);
    let uses = Mutex::new(uses);
    let other = Engine::new(Config::new().print(move |_| drop(uses.lock()))).unwrap();
    let limits = RunLimits::new().interrupter(&other.interrupter());
    let mut host = Arc::default();
    let refused = program.run_async_with(&mut host, &mut [], &limits);
    drop((limits, other));
    assert!(!right.load(Ordering::SeqCst));
    drop(refused);
    assert!(right.load(Ordering::SeqCst));
    assert_eq!(engine.async_runs(), 0);
}

/// A waker that panics as it is dropped.
struct Loud;

impl Wake for Loud {
    fn wake(self: Arc<Self>) {}
}

impl Drop for Loud {
    fn drop(&mut self) {
        panic!("a waker");
    }
}

/// An error of a host, with a value of the host's.
struct HasUses {
    _uses: Mutex<Uses>,
}

impl std::fmt::Debug for HasUses {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HasUses")
    }
}

impl std::fmt::Display for HasUses {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the host's")
    }
}

impl std::error::Error for HasUses {}

/// The last poller's waker panics as it is dropped, and what the run has returned or thrown is dropped behind it.
#[test]
fn what_nobody_gets_is_dropped_outside_of_sections() {
    for throws in [false, true] {
        let (engine, program) = waits(|config| config);
        let (uses, right) = Uses::new(&program);
        let uses = Arc::new(Mutex::new(Some(uses)));
        let mut linker = Linker::<()>::new(&engine);
        linker
            .func_async(1001, "fail", move |_: AsyncCaller<'_, ()>| {
                let uses = Arc::clone(&uses);
                async move {
                    after(1).await;
                    let uses = uses.lock().unwrap().take().unwrap();
                    if throws {
                        std::panic::panic_any(uses);
                    }
                    Err::<u64, _>(HelperError::new(HasUses { _uses: Mutex::new(uses) }))
                }
            })
            .unwrap();
        let program = load(&linker, "call 1001\nr0 = 7\nexit");
        let mut host = ();
        let mut run = Box::pin(program.run_async(&mut host, &mut []));
        let waker = Waker::from(Arc::new(Loud));
        assert!(run.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        // The run has the last one.
        drop(waker);
        let thrown = catch_unwind(AssertUnwindSafe(|| poll(run.as_mut()))).unwrap_err();
        // The first panic is the poller's.
        assert_eq!(thrown.downcast_ref::<&str>(), (!throws).then_some(&"a waker"));
        assert_eq!(thrown.is::<Uses>(), throws);
        drop(thrown);
        assert!(right.load(Ordering::SeqCst));
        assert!(matches!(poll(run.as_mut()), Poll::Ready(Err(RunError::Over))));
        assert_eq!(engine.async_runs(), 0);
    }
}

/// The error of a run is dropped outside of sections too where the subscriber that is told of it panics.
#[test]
fn an_error_that_a_subscriber_panics_of_is_dropped_outside_of_sections() {
    for engine in engines(|config| config.interruptible(true)) {
        let (_, program) = waits(|config| config);
        let (uses, right) = Uses::new(&program);
        let uses = Mutex::new(Some(uses));
        let mut linker = Linker::<()>::new(&engine);
        linker
            .func(1002, "fail", move |_: &mut Caller<'_, ()>| -> Result<u64, HelperError> {
                let uses = uses.lock().unwrap().take().unwrap();
                Err(HelperError::new(HasUses { _uses: Mutex::new(uses) }))
            })
            .unwrap();
        let fails = load(&linker, "call 1002\nexit");
        let mut host = ();
        let mut run = Box::pin(fails.run_async(&mut host, &mut []));
        let polled = || catch_unwind(AssertUnwindSafe(|| poll(run.as_mut())));
        // At the first event only: the destructor of the error ends a run, too.
        let was_told = AtomicBool::new(false);
        let panics = OnEvent(move || {
            if !was_told.swap(true, Ordering::SeqCst) {
                std::panic::resume_unwind(Box::new("told"));
            }
        });
        let thrown = tracing::subscriber::with_default(panics, polled).unwrap_err();
        assert_eq!(thrown.downcast_ref::<&str>(), Some(&"told"));
        assert!(right.load(Ordering::SeqCst));
    }
}

/// Stacks that are being unmapped are nobody's.
#[test]
fn runs_are_not_refused_while_idle_stacks_are_given_back() {
    const MOST: usize = 4000;
    let (engine, program) = waits(|config| config.max_async_runs(MOST));
    for _ in 0..3 {
        let mut runs: Vec<_> = (0..MOST).map(|_| run(&program).0).collect();
        for run in &mut runs {
            assert!(poll(run.as_mut()).is_pending());
        }
        drop(runs);
        let over = AtomicBool::new(false);
        thread::scope(|s| {
            for _ in 0..2 {
                s.spawn(|| {
                    while !over.load(Ordering::SeqCst) {
                        let mut both = [run(&program).0, run(&program).0];
                        for run in &mut both {
                            let polled = poll(run.as_mut());
                            assert!(polled.is_pending(), "{polled:?}");
                        }
                    }
                });
            }
            thread::sleep(std::time::Duration::from_millis(2));
            engine.reclaim();
            over.store(true, Ordering::SeqCst);
        });
        assert_eq!(engine.async_runs(), 0);
    }
}

/// The spare stacks of slots are within the limit, and any thread may have them.
#[test]
fn as_many_runs_as_the_limit_begin_and_no_more() {
    const THREADS: usize = 2;
    let (engine, program) = waits(|config| config.max_async_runs(1));
    let (begun, wrong) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let barrier = Barrier::new(THREADS);
    thread::scope(|s| {
        for _ in 0..THREADS {
            s.spawn(|| {
                for _ in 0..2000 {
                    let mut one = run(&program).0;
                    barrier.wait();
                    let waits = match poll(one.as_mut()) {
                        Poll::Pending => true,
                        Poll::Ready(Err(RunError::TooManyAsleep { limit: 1 })) => false,
                        Poll::Ready(other) => panic!("{other:?}"),
                    };
                    begun.fetch_add(usize::from(waits), Ordering::SeqCst);
                    if barrier.wait().is_leader() {
                        // One thread has the stack. The stack may be the spare one of the other thread's slot.
                        wrong.fetch_add(usize::from(begun.swap(0, Ordering::SeqCst) != 1), Ordering::SeqCst);
                    }
                    // Ends in its slot, which keeps the stack.
                    assert!(!waits || matches!(poll(one.as_mut()), Poll::Ready(Ok(7))));
                    barrier.wait();
                }
            });
        }
    });
    assert_eq!((wrong.into_inner(), engine.async_runs()), (0, 0));
}
