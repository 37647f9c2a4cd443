//! Ends of runs that wait: deadlines, interruptions, budgets, memory.

use super::common::engines::engines;
use super::common::events::OnEvent;
use super::{Dropped, ONCE, after, block_on, load, poll, waits};
use bpf_runtime::{
    AsyncCaller, Caller, Engine, HelperError, Linker, OwnedBytes, Program, Raw, RunError, RunLimits, isa::assemble,
};
use std::future::pending;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::thread;
use std::time::Duration;

/// `call 1001` waits for ever, and sets the host's flag when its future is dropped.
fn never(engine: &Engine) -> Linker<Arc<AtomicBool>> {
    let mut linker = Linker::<Arc<AtomicBool>>::new(engine);
    linker
        .func_async(1001, "never", async |mut c: AsyncCaller<'_, Arc<AtomicBool>>| {
            let gone = Arc::clone(c.host());
            let _dropped = Dropped(&gone);
            pending::<()>().await;
        })
        .unwrap();
    linker
}

const NEVER: &str = "call f\nexit\nf:\nr6 = 1\ncall 1001\nr0 = 0\nexit";

/// Whether the error names the call at which [`NEVER`] waits.
fn is_at_the_call(error: &RunError) -> bool {
    let (RunError::Deadline { insn, origin } | RunError::Interrupted { insn, origin }) = error else { return false };
    let origin = origin.as_ref().unwrap();
    insn.map(|insn| insn.0) == Some(3) && origin.program == "test" && origin.callers.len() == 1
}

#[test]
fn a_deadline_ends_a_run_whose_future_is_never_ready() {
    for engine in engines(|config| config.interruptible(true)) {
        let linker = never(&engine);
        let program = load(&linker, NEVER);
        for _ in 0..3 {
            let mut gone = Arc::default();
            let mut time = Duration::from_millis(5);
            let (limits, error) = loop {
                let limits = RunLimits::new().deadline(engine.deadline_in(time).unwrap());
                let error = block_on(program.run_async_with(&mut gone, &mut [], &limits)).unwrap_err();
                // On a machine that is so slow, the deadline may pass before the future is there.
                let is_early = matches!(error, RunError::Deadline { .. }) && !gone.load(Ordering::SeqCst);
                if !is_early || time > Duration::from_secs(60) {
                    break (limits, error);
                }
                time *= 2;
            };
            assert!(matches!(error, RunError::Deadline { .. }) && is_at_the_call(&error), "{error:?}");
            assert!(gone.load(Ordering::SeqCst), "the future is dropped");
            // The deadline has passed before the run begins.
            let error = block_on(program.run_async_with(&mut gone, &mut [], &limits)).unwrap_err();
            assert!(matches!(error, RunError::Deadline { .. }), "{error:?}");
        }
        assert_eq!(engine.async_runs(), 0);
        // Many, of which half are over before their deadline.
        let linker = waits(&engine);
        let once = load(&linker, ONCE);
        let limits = RunLimits::new().deadline(engine.deadline_in(Duration::from_millis(20)).unwrap());
        let (mut hosts, mut flag) = ([0; 50], Arc::default());
        for host in &mut hosts {
            let mut run = Box::pin(once.run_async_with(host, &mut [], &limits));
            if let Poll::Ready(early) = poll(run.as_mut()) {
                assert!(matches!(early, Err(RunError::Deadline { .. })), "{early:?}");
                continue;
            }
            let ended = poll(run.as_mut());
            assert!(matches!(ended, Poll::Ready(Ok(7) | Err(RunError::Deadline { .. }))), "{ended:?}");
        }
        let late = block_on(program.run_async_with(&mut flag, &mut [], &limits)).unwrap_err();
        assert!(matches!(late, RunError::Deadline { .. }), "{late:?}");
        // The deadlines of runs that are over end no later run on their stacks.
        assert_eq!(block_on(once.run_async(&mut 0, &mut [])).unwrap(), 7);
    }
}

#[test]
fn a_deadline_ends_a_run_that_computes_after_a_wait() {
    for engine in engines(|config| config.interruptible(true)) {
        let linker = waits(&engine);
        // 2^31 rounds, proven to end, so that the verifier walks few of them.
        let text = "r1 = 3\ncall 1001\nr0 = 0\nagain: r0 += 1\nif r0 < 2147483647 goto again\nexit";
        let loader = || linker.loader::<Raw>().sleepable(true);
        let program: Program<Raw, u64> = loader().insns("test", assemble(text).unwrap()).unwrap();
        let limits = RunLimits::new().deadline(engine.deadline_in(Duration::from_millis(5)).unwrap());
        let error = block_on(program.run_async_with(&mut 0, &mut [], &limits)).unwrap_err();
        assert!(matches!(error, RunError::Deadline { .. }), "{error:?}");
    }
}

/// Whether a run whose waits count ends at this deadline, and one whose waits do not count outlasts it. Either may fail
/// on a machine that is slow.
fn waits_move(engine: &Engine, limit: Duration) -> bool {
    let linker = waits(engine);
    let program = load(&linker, "r1 = 1\ncall 1001\nr1 = 1\ncall 1001\nr0 = 7\nexit");
    let (mut a, mut b) = (0, 0);
    let limits = RunLimits::new().deadline(engine.deadline_in(limit).unwrap());
    let without = limits.clone().waits_count(false);
    let mut counted = pin!(program.run_async_with(&mut a, &mut [], &limits));
    let mut moved = pin!(program.run_async_with(&mut b, &mut [], &without));
    if poll(counted.as_mut()).is_ready() || poll(moved.as_mut()).is_ready() {
        return false;
    }
    thread::sleep(limit + limit / 4);
    assert!(matches!(poll(counted), Poll::Ready(Err(RunError::Deadline { .. }))));
    // The run waits once more, and computes little.
    if poll(moved.as_mut()).is_ready() {
        return false;
    }
    thread::sleep(limit / 2);
    matches!(poll(moved), Poll::Ready(Ok(7)))
}

#[test]
fn waits_count_against_a_deadline_or_move_it() {
    for engine in engines(|config| config.interruptible(true)) {
        assert!((0..5).any(|i| waits_move(&engine, Duration::from_millis(200 << i))));
    }
}

#[test]
fn an_interruption_wakes_a_run_that_waits() {
    for engine in engines(|config| config.interruptible(true)) {
        let linker = never(&engine);
        let program = load(&linker, NEVER);
        let interrupter = engine.interrupter();
        let by: [&(dyn Fn() + Sync); 3] =
            [&|| program.interrupt(), &|| engine.interrupt(), &|| interrupter.interrupt()];
        for interrupt in by {
            let mut gone: Arc<AtomicBool> = Arc::default();
            let host = Arc::clone(&gone);
            let limits = RunLimits::new().interrupter(&interrupter);
            let over = AtomicBool::new(false);
            let error = thread::scope(|s| {
                let (over, host) = (&over, &host);
                s.spawn(move || {
                    while !over.load(Ordering::SeqCst) {
                        // The host's function keeps a third reference while it waits. An interruption that came
                        // before it was called would end the run without it.
                        if Arc::strong_count(host) == 3 {
                            interrupt();
                        }
                        thread::yield_now();
                    }
                });
                let error = block_on(program.run_async_with(&mut gone, &mut [], &limits)).unwrap_err();
                over.store(true, Ordering::SeqCst);
                error
            });
            assert!(matches!(error, RunError::Interrupted { .. }), "{error:?}");
            assert!(gone.load(Ordering::SeqCst));
        }
        assert_eq!(engine.async_runs(), 0);
    }
}

#[test]
fn limits_that_a_program_was_not_compiled_for_are_refused() {
    for engine in engines(|config| config) {
        let linker = waits(&engine);
        let program = load(&linker, ONCE);
        let limits = RunLimits::new().deadline(engine.deadline_in(Duration::from_secs(60)).unwrap());
        let error = block_on(program.run_async_with(&mut 0, &mut [], &limits)).unwrap_err();
        assert!(matches!(error, RunError::Unlimited { .. }), "{error:?}");
        let plain = linker.loader::<Raw>().insns("plain", assemble("r0 = 0\nexit").unwrap()).unwrap();
        let error = block_on(plain.run_async_with(&mut 0, &mut [], &limits)).unwrap_err();
        assert!(matches!(error, RunError::Unlimited { .. }), "{error:?}");
        assert_eq!(engine.async_runs(), 0);
    }
    for engine in engines(|config| config.budget(100)) {
        let linker = waits(&engine);
        let text = "r6 = 0\nagain: r1 = 1\ncall 1001\nr6 += 1\nif r6 != 5 goto again\nr0 = 0\nexit";
        let program = load(&linker, text);
        let spent = |budget| block_on(program.run_async_with(&mut 0, &mut [], &RunLimits::new().budget(budget)));
        assert_eq!(spent(9).unwrap(), 0);
        assert!(matches!(spent(8), Err(RunError::Budget { .. })));
    }
}

#[test]
fn stacks_count_against_the_memory_of_engine_and_account() {
    for engine in engines(|config| config.memory_limit(1 << 20)) {
        let linker = waits(&engine);
        let program = load(&linker, ONCE);
        let account = engine.account("plug-in", 100_000);
        let of = linker.loader::<Raw>().sleepable(true).account(&account).insns("of", assemble(ONCE).unwrap()).unwrap();
        for (program, whose) in [(&program, "one engine"), (&of, "this account")] {
            let before = (engine.domain().memory().used(), account.used());
            let mut hosts = [0; 200];
            let mut runs = Vec::new();
            let mut refused = None;
            for host in &mut hosts {
                let mut run = Box::pin(program.run_async(host, &mut []));
                match poll(run.as_mut()) {
                    Poll::Pending => runs.push(run),
                    Poll::Ready(result) => {
                        refused = Some(result.unwrap_err());
                        break;
                    }
                }
            }
            let error = refused.expect("a limit");
            let RunError::MemoryFull { full } = &error else { panic!("{error}") };
            assert!(full.whose.to_string().contains(whose), "{error}");
            assert!(!runs.is_empty());
            // The others go on, and the memory is there again.
            for mut run in runs {
                assert!(matches!(poll(run.as_mut()), Poll::Ready(Ok(7))));
            }
            assert_eq!((engine.domain().memory().used(), account.used()), before);
            assert_eq!(block_on(program.run_async(&mut 0, &mut [])).unwrap(), 7);
        }
    }
}

/// Arguments that runs keep while they wait: the program chooses how long they are.
#[test]
fn arguments_count_against_the_memory_of_engine_and_account() {
    const LEN: usize = 1 << 20;
    for engine in engines(|config| config.memory_limit(8 << 20)) {
        let mut linker = Linker::<u64>::new(&engine);
        linker
            .func_async(1001, "keeps", async |mut c: AsyncCaller<'_, u64>, bytes: OwnedBytes| {
                *c.host() += 1;
                after(1).await;
                assert_eq!(bytes.len(), LEN);
                // No longer counted.
                let bytes = bytes.into_vec();
                after(1).await;
                assert!(bytes.iter().all(|byte| *byte == 3));
            })
            .unwrap()
            .func(1002, "copies", |c: &mut Caller<'_, u64>, bytes: OwnedBytes| *c.host() += bytes.len() as u64)
            .unwrap();
        let text = |id: u32| format!("if r2 != {LEN} goto out\ncall {id}\nr0 = 7\nexit\nout: r0 = 0\nexit");
        let account = engine.account("plug-in", 4 << 20);
        let insns = || assemble(&text(1001)).unwrap();
        let program = linker.loader::<Raw>().sleepable(true).insns("keeps", insns()).unwrap();
        let of = linker.loader::<Raw>().sleepable(true).account(&account).insns("of", insns()).unwrap();
        for (program, whose, fit) in [(&program, "one engine", 8), (&of, "this account", 4)] {
            let before = (engine.domain().memory().used(), account.used());
            let mut all: Vec<(u64, Vec<u8>)> = (0..10).map(|_| (0, vec![3; LEN])).collect();
            let mut runs = Vec::new();
            for (host, bytes) in &mut all {
                let mut run = Box::pin(program.run_async(host, bytes));
                match poll(run.as_mut()) {
                    Poll::Pending => runs.push(run),
                    Poll::Ready(result) => {
                        let error = result.unwrap_err();
                        let RunError::Host { source: HelperError::MemoryFull { full }, insn: Some(at), .. } = &error
                        else {
                            panic!("{error}");
                        };
                        assert_eq!((full.needed, at.0), (LEN as u64, 1));
                        assert!(full.whose.to_string().contains(whose), "{error}");
                    }
                }
            }
            // Beside them, stacks and code take memory.
            let most = runs.len();
            assert!(most < fit && most > 1, "{most}");
            assert!(engine.domain().memory().used() > before.0 + (most * LEN) as u64);
            // The bytes are given back by a run that is dropped, by `into_vec`, and by a run that is over.
            runs.truncate(most - 1);
            assert!(engine.domain().memory().used() < before.0 + (most * LEN) as u64);
            runs.iter_mut().for_each(|run| assert!(poll(run.as_mut()).is_pending()));
            assert!(engine.domain().memory().used() < before.0 + LEN as u64);
            runs.iter_mut().for_each(|run| assert!(matches!(poll(run.as_mut()), Poll::Ready(Ok(7)))));
            drop(runs);
            assert_eq!((engine.domain().memory().used(), account.used()), before);
            let called: u64 = all.iter().map(|(host, _)| host).sum();
            assert_eq!(called, most as u64, "a function whose arguments are refused is not called");
        }
        // A function that does not wait.
        let program = linker.loader::<Raw>().insns("copies", assemble(&text(1002)).unwrap()).unwrap();
        let before = engine.domain().memory().used();
        let mut copied = 0;
        assert_eq!(program.run(&mut copied, &mut vec![3; LEN]).unwrap(), 7);
        let left = engine.domain().memory().limit() - engine.domain().memory().used();
        let filled = engine.domain().memory().reserve(left - 5).unwrap();
        let result = program.run(&mut copied, &mut vec![3; LEN]);
        assert!(matches!(result, Err(RunError::Host { source: HelperError::MemoryFull { .. }, .. })), "{result:?}");
        drop(filled);
        assert_eq!((copied, engine.domain().memory().used()), (LEN as u64, before));
    }
}

#[test]
fn a_run_is_polled_once_more_at_most_after_it_was_ended() {
    for engine in engines(|config| config.interruptible(true)) {
        let mut linker = Linker::<u64>::new(&engine);
        linker
            .func_async(1001, "counts", async |mut c: AsyncCaller<'_, u64>| {
                let host = c.host();
                std::future::poll_fn(|_| {
                    *host += 1;
                    Poll::<()>::Pending
                })
                .await;
            })
            .unwrap();
        let program = load(&linker, "call 1001\nr0 = 0\nexit");
        let mut polls = 0;
        let mut run = Box::pin(program.run_async(&mut polls, &mut []));
        assert!(poll(run.as_mut()).is_pending());
        program.interrupt();
        assert!(matches!(poll(run.as_mut()), Poll::Ready(Err(RunError::Interrupted { .. }))));
        drop(run);
        assert_eq!(polls, 1, "not polled after the interruption");
        // The next run on the stack is not ended.
        let linker = waits(&engine);
        assert_eq!(block_on(load(&linker, ONCE).run_async(&mut 0, &mut [])).unwrap(), 7);
        block_on(after(1));
    }
}

/// The end of a sleepable run is refused to signal handlers; a subscriber that is told of it is none.
#[test]
fn a_subscriber_that_is_told_of_a_stop_runs_sleepable_programs() {
    for engine in engines(|config| config.interruptible(true)) {
        let mut linker = waits(&engine);
        linker
            .func(1002, "fail", |_: &mut Caller<'_, u64>| -> Result<u64, HelperError> {
                Err(HelperError::new(RunError::TooDeep { limit: 1 }))
            })
            .unwrap();
        linker
            .func_async(1003, "panics", async |_: AsyncCaller<'_, u64>| -> u64 {
                std::panic::resume_unwind(Box::new("thrown"))
            })
            .unwrap();
        let (fails, waits) = (load(&linker, "r1 = 1\ncall 1001\ncall 1002\nexit"), load(&linker, ONCE));
        let throws = load(&linker, "call 1003\nexit");
        let cases = [(&fails, false), (&waits, true), (&throws, false)]
            .into_iter()
            .flat_map(|(stops, interrupted)| [false, true].map(|panics| (stops, interrupted, panics)));
        for (stops, interrupted, panics) in cases {
            let results = Arc::new(Mutex::new(Vec::new()));
            let (program, told) = (load(&linker, ONCE), Arc::clone(&results));
            let subscriber = OnEvent(move || {
                let result = block_on(program.run_async(&mut 0, &mut []));
                told.lock().unwrap().push(result);
                assert!(!panics, "told");
            });
            let result = tracing::subscriber::with_default(subscriber, || {
                let mut host = 0;
                let mut run = Box::pin(stops.run_async(&mut host, &mut []));
                if interrupted {
                    assert!(poll(run.as_mut()).is_pending());
                    engine.interrupt();
                }
                catch_unwind(AssertUnwindSafe(|| block_on(run.as_mut())))
            });
            match result {
                Ok(Err(RunError::Interrupted { .. })) => assert!(!panics && interrupted),
                Ok(result) => assert!(!panics && matches!(result, Err(RunError::Host { .. }))),
                Err(_) => assert!(panics || std::ptr::eq(stops, &throws)),
            }
            let results = std::mem::take(&mut *results.lock().unwrap());
            match results[..] {
                [Ok(7)] => {}
                // The subscriber's run is inside the one that was ended.
                [Err(RunError::Interrupted { .. })] => assert!(interrupted),
                _ => panic!("{results:?}"),
            }
            // Neither the end of the subscriber nor its panic leaves the thread in a section.
            assert_eq!(block_on(load(&linker, ONCE).run_async(&mut 0, &mut [])).unwrap(), 7);
            assert_eq!(engine.async_runs(), 0);
        }
    }
}
