//! Runs that wait inside other runs: they end with the run around them.

use super::common::engines::engines;
use super::{ONCE, after, block_on, load, poll, waits};
use bpf_runtime::{
    AsyncCaller, Caller, Config, Engine, HelperError, Hook, HookPolicy, Interrupter, Linker, Program, Raw, RunError,
    RunLimits, isa::assemble,
};
use std::future::{Future, pending};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::task::Poll;
use std::time::Duration;

/// The program inside: `call 1001` waits for as many polls as r1 says (9: for ever), and each poll interrupts by the
/// host's interrupter if there is one.
type Inside = Program<Raw, Option<Interrupter>>;

fn inside(engine: &Engine, text: &str) -> Inside {
    let mut linker = Linker::<Option<Interrupter>>::new(engine);
    linker
        .func_async(1001, "wait", async |mut c: AsyncCaller<'_, Option<Interrupter>>, polls: u64| {
            if let Some(by) = c.host() {
                by.interrupt();
            }
            if polls == 9 { pending().await } else { after(polls).await }
        })
        .unwrap();
    linker.loader().sleepable(true).insns("inside", assemble(text).unwrap()).unwrap()
}

/// Programs inside that compute at once, compute after a wait, and wait for ever.
const COMPUTES: &str = "r1 = 0\ncall 1001\nr0 = 0\nagain: r0 += 1\nif r0 < 1000000 goto again\nexit";
const COMPUTES_LATER: &str = "r1 = 1\ncall 1001\nr0 = 0\nagain: r0 += 1\nif r0 < 1000000 goto again\nexit";
const WAITS: &str = "r1 = 9\ncall 1001\nr0 = 0\nexit";

/// The results of the program inside, by host functions of the program around it.
type Seen = Arc<OnceLock<Result<u64, RunError>>>;

/// A program that cannot wait, whose host function interrupts first, or lets the program inside do so, and waits for
/// its end.
fn plain(
    engine: &Engine,
    text: &str,
    first: Option<Interrupter>,
    then: Option<Interrupter>,
) -> (Program<Raw, ()>, Seen) {
    let (program, seen) = (inside(engine, text), Seen::default());
    let mut linker = Linker::<()>::new(engine);
    let note = Arc::clone(&seen);
    linker
        .func(1000, "runs", move |_: &mut Caller<'_, ()>| {
            first.iter().for_each(Interrupter::interrupt);
            note.set(block_on(program.run_async(&mut then.clone(), &mut []))).unwrap();
        })
        .unwrap();
    let around = linker.loader().insns("around", assemble("call 1000\nr0 = 7\nexit").unwrap()).unwrap();
    (around, seen)
}

/// As [`plain`], of a program that waits: its host function awaits the program inside, after so many polls.
fn waiting(
    engine: &Engine,
    text: &str,
    polls: u64,
    first: Option<Interrupter>,
    then: Option<Interrupter>,
) -> (Program<Raw, ()>, Seen) {
    let (program, seen) = (Arc::new(inside(engine, text)), Seen::default());
    let mut linker = Linker::<()>::new(engine);
    let note = Arc::clone(&seen);
    linker
        .func_async(1000, "runs", move |_: AsyncCaller<'_, ()>| {
            let (program, note, first, mut then) =
                (Arc::clone(&program), Arc::clone(&note), first.clone(), then.clone());
            async move {
                after(polls).await;
                first.iter().for_each(Interrupter::interrupt);
                note.set(block_on(program.run_async(&mut then, &mut []))).unwrap();
            }
        })
        .unwrap();
    (load(&linker, "call 1000\nr0 = 7\nexit"), seen)
}

fn is_interrupted(seen: &Seen) -> bool {
    matches!(seen.get(), Some(Err(RunError::Interrupted { .. })))
}

#[test]
fn an_interruption_of_a_plain_run_ends_the_waiting_run_inside() {
    for engine in engines(|config| config.interruptible(true)) {
        for text in [COMPUTES, COMPUTES_LATER, WAITS] {
            for from_inside in [false, true] {
                let by = engine.interrupter();
                let (first, then) = if from_inside { (None, Some(by.clone())) } else { (Some(by.clone()), None) };
                let (around, seen) = plain(&engine, text, first, then);
                let limits = RunLimits::new().interrupter(&by);
                let _ = around.run_with(&mut (), &mut [], &limits);
                assert!(is_interrupted(&seen), "{text} {from_inside}: {seen:?}");
                assert_eq!(engine.async_runs(), 0);
            }
        }
    }
}

#[test]
fn an_interruption_of_a_waiting_run_ends_the_waiting_run_inside() {
    for engine in engines(|config| config.interruptible(true)) {
        for text in [COMPUTES, COMPUTES_LATER, WAITS] {
            for (polls, from_inside) in [(0, false), (0, true), (1, true)] {
                let by = engine.interrupter();
                let (first, then) = if from_inside { (None, Some(by.clone())) } else { (Some(by.clone()), None) };
                let (around, seen) = waiting(&engine, text, polls, first, then);
                let limits = RunLimits::new().interrupter(&by);
                let _ = block_on(around.run_async_with(&mut (), &mut [], &limits));
                assert!(is_interrupted(&seen), "{text} {polls} {from_inside}: {seen:?}");
                assert_eq!(engine.async_runs(), 0);
            }
        }
    }
}

#[test]
fn an_interruption_reaches_a_waiting_run_through_another() {
    for engine in engines(|config| config.interruptible(true)) {
        let by = engine.interrupter();
        let (middle, seen) = waiting(&engine, WAITS, 0, None, Some(by.clone()));
        let mut linker = Linker::<()>::new(&engine);
        linker
            .func(1000, "runs", move |_: &mut Caller<'_, ()>| {
                let _ = block_on(middle.run_async(&mut (), &mut []));
            })
            .unwrap();
        let around: Program<Raw, ()> =
            linker.loader().insns("around", assemble("call 1000\nr0 = 7\nexit").unwrap()).unwrap();
        let _ = around.run_with(&mut (), &mut [], &RunLimits::new().interrupter(&by));
        assert!(is_interrupted(&seen), "{seen:?}");
    }
}

/// A program that does this in its host function, which cannot wait.
fn calls(engine: &Engine, work: impl Fn() + Send + Sync + 'static) -> Program<Raw, ()> {
    let mut linker = Linker::<()>::new(engine);
    linker.func(1000, "calls", move |_: &mut Caller<'_, ()>| work()).unwrap();
    linker.loader().insns("calls", assemble("call 1000\nr0 = 7\nexit").unwrap()).unwrap()
}

/// As [`calls`], of a program whose host function waits for so many polls first.
fn calls_later(engine: &Engine, polls: u64, work: impl Fn() + Send + Sync + 'static) -> Program<Raw, ()> {
    let work = Arc::new(work);
    let mut linker = Linker::<()>::new(engine);
    linker
        .func_async(1000, "calls", move |_: AsyncCaller<'_, ()>| {
            let work = Arc::clone(&work);
            async move {
                after(polls).await;
                work();
            }
        })
        .unwrap();
    load(&linker, "call 1000\nr0 = 7\nexit")
}

fn run(program: &Program<Raw, ()>) {
    let _ = program.run(&mut (), &mut []);
}

fn run_waiting(program: &Program<Raw, ()>) {
    let _ = block_on(program.run_async(&mut (), &mut []));
}

#[test]
fn an_interruption_reaches_a_waiting_run_through_plain_ones() {
    for engine in engines(|config| config.interruptible(true)) {
        for polls in [0, 1] {
            let by = engine.interrupter();
            let (inner, seen) = plain(&engine, WAITS, None, Some(by.clone()));
            // Inside of a run on a stack of its own: a plain run inside another, in which the last run waits.
            let middle = calls(&engine, move || run(&inner));
            let around = calls_later(&engine, polls, move || run(&middle));
            let _ = block_on(around.run_async_with(&mut (), &mut [], &RunLimits::new().interrupter(&by)));
            assert!(is_interrupted(&seen), "{polls}: {seen:?}");
            assert_eq!(engine.async_runs(), 0);
        }
    }
}

#[test]
fn an_interruption_reaches_a_waiting_run_through_plain_and_waiting_ones_in_turn() {
    for engine in engines(|config| config.interruptible(true)) {
        for outermost in [false, true] {
            let by = engine.interrupter();
            let (inner, seen) = plain(&engine, WAITS, None, Some(by.clone()));
            let third = calls_later(&engine, 1, move || run(&inner));
            let second = calls(&engine, move || run_waiting(&third));
            let first = calls_later(&engine, 1, move || run(&second));
            let limits = RunLimits::new().interrupter(&by);
            if outermost {
                let around = calls(&engine, move || run_waiting(&first));
                let _ = around.run_with(&mut (), &mut [], &limits);
            } else {
                let _ = block_on(first.run_async_with(&mut (), &mut [], &limits));
            }
            assert!(is_interrupted(&seen), "{outermost}: {seen:?}");
            assert_eq!(engine.async_runs(), 0);
        }
    }
}

#[test]
fn an_interruption_reaches_a_waiting_run_through_another_engine() {
    let interruptible = |config: Config| config.interruptible(true);
    for (engine, other) in engines(interruptible).into_iter().zip(engines(interruptible)) {
        // The run of the other engine, and the outermost one, are plain or wait.
        for (middle_waits, around_waits) in [(true, true), (true, false), (false, true), (false, false)] {
            for plain_inside in [false, true] {
                let by = engine.interrupter();
                let (inner, seen) = match plain_inside {
                    true => plain(&engine, WAITS, None, Some(by.clone())),
                    false => waiting(&engine, WAITS, 0, None, Some(by.clone())),
                };
                let work = move || if plain_inside { run(&inner) } else { run_waiting(&inner) };
                let middle = if middle_waits { calls_later(&other, 0, work) } else { calls(&other, work) };
                let work = move || if middle_waits { run_waiting(&middle) } else { run(&middle) };
                let limits = RunLimits::new().interrupter(&by);
                let _ = match around_waits {
                    true => block_on(calls_later(&engine, 1, work).run_async_with(&mut (), &mut [], &limits)),
                    false => calls(&engine, work).run_with(&mut (), &mut [], &limits),
                };
                assert!(is_interrupted(&seen), "{middle_waits} {around_waits} {plain_inside}: {seen:?}");
                assert_eq!((engine.async_runs(), other.async_runs()), (0, 0));
            }
        }
    }
}

#[test]
fn a_deadline_reaches_a_waiting_run_through_a_plain_one() {
    for engine in engines(|config| config.interruptible(true)) {
        // On a machine that is so slow, the deadline may pass before the run begins.
        let seen = loop {
            let (middle, seen) = plain(&engine, WAITS, None, None);
            let around = calls_later(&engine, 0, move || run(&middle));
            let limits = RunLimits::new().deadline(engine.deadline_in(Duration::from_millis(5)).unwrap());
            let _ = block_on(around.run_async_with(&mut (), &mut [], &limits));
            if seen.get().is_some() {
                break seen;
            }
        };
        assert!(matches!(seen.get(), Some(Err(RunError::Deadline { .. }))), "{seen:?}");
    }
}

#[test]
fn a_deadline_of_a_run_ends_the_waiting_run_inside() {
    for engine in engines(|config| config.interruptible(true)) {
        for wait in [false, true] {
            // On a machine that is so slow, the deadline may pass before the run begins.
            let seen = loop {
                let limits = RunLimits::new().deadline(engine.deadline_in(Duration::from_millis(5)).unwrap());
                let seen = if wait {
                    let (around, seen) = waiting(&engine, WAITS, 0, None, None);
                    let _ = block_on(around.run_async_with(&mut (), &mut [], &limits));
                    seen
                } else {
                    let (around, seen) = plain(&engine, WAITS, None, None);
                    let _ = around.run_with(&mut (), &mut [], &limits);
                    seen
                };
                if seen.get().is_some() {
                    break seen;
                }
            };
            assert!(matches!(seen.get(), Some(Err(RunError::Deadline { .. }))), "{seen:?}");
        }
    }
}

/// A run that outlives the call which polls it first.
type Kept = Pin<Box<dyn Future<Output = Result<u64, RunError>> + Send>>;

#[test]
fn a_run_that_has_left_the_run_around_it_is_not_ended_with_a_later_one() {
    for engine in engines(|config| config.interruptible(true)) {
        let program = inside(&engine, "r1 = 1\ncall 1001\nr0 = 5\nexit");
        let mut linker = Linker::<Option<Kept>>::new(&engine);
        linker
            .func(1000, "polls", |c: &mut Caller<'_, Option<Kept>>| {
                assert!(poll(c.host().as_mut().unwrap().as_mut()).is_pending());
            })
            .unwrap();
        let around: Program<Raw, Option<Kept>> =
            linker.loader().insns("around", assemble("call 1000\nr0 = 7\nexit").unwrap()).unwrap();
        let mut host: Option<Kept> = Some(Box::pin(async move { program.run_async(&mut None, &mut []).await }));
        let by = engine.interrupter();
        let limits = RunLimits::new().interrupter(&by);
        assert_eq!(around.run_with(&mut host, &mut [], &limits).unwrap(), 7);
        by.interrupt();
        assert!(matches!(poll(host.unwrap().as_mut()), Poll::Ready(Ok(5))));
    }
}

/// The run to be polled inside another, and what is done then.
type PollsThen = (Option<Kept>, Option<Box<dyn Fn()>>);

/// Runs of a program with equal limits in one slot have the same word, unless others are inside.
#[test]
fn a_run_that_has_left_the_run_around_it_is_not_ended_with_one_that_has_equal_limits() {
    for engine in engines(|config| config.interruptible(true)) {
        let by = engine.interrupter();
        for limited in [false, true] {
            let limits = if limited { RunLimits::new().interrupter(&by) } else { RunLimits::new() };
            let program = inside(&engine, "r1 = 1\ncall 1001\nr0 = 5\nexit");
            let mut linker = Linker::<PollsThen>::new(&engine);
            linker
                .func(1000, "polls", |c: &mut Caller<'_, PollsThen>| {
                    let (kept, then) = c.host();
                    kept.iter_mut().for_each(|run| assert!(poll(run.as_mut()).is_pending()));
                    then.iter().for_each(|then| then());
                })
                .unwrap();
            let text = "call 1000\nr0 = 4\nagain: r0 += 1\nif r0 < 7 goto again\nexit";
            let around: Program<Raw, PollsThen> = linker.loader().insns("around", assemble(text).unwrap()).unwrap();
            let around = Arc::new(around);
            let mut host: PollsThen =
                (Some(Box::pin(async move { program.run_async(&mut None, &mut []).await })), None);
            assert_eq!(around.run_with(&mut (None, None), &mut [], &limits).unwrap(), 7);
            assert_eq!(around.run_with(&mut host, &mut [], &limits).unwrap(), 7);
            let (again, by) = (Arc::clone(&around), by.clone());
            let end = move || if limited { by.interrupt() } else { again.interrupt() };
            let result = around.run_with(&mut (None, Some(Box::new(end))), &mut [], &limits);
            assert!(matches!(result, Err(RunError::Interrupted { .. })), "{result:?}");
            assert!(matches!(poll(host.0.unwrap().as_mut()), Poll::Ready(Ok(5))), "{limited}");
            // A run with another inside is interrupted as any other.
            let program = inside(&engine, WAITS);
            let (again, by) = (Arc::clone(&around), engine.interrupter());
            let end = move || again.interrupt();
            let mut host: PollsThen =
                (Some(Box::pin(async move { program.run_async(&mut None, &mut []).await })), Some(Box::new(end)));
            let limits = if limited { RunLimits::new().interrupter(&by) } else { RunLimits::new() };
            let result = around.run_with(&mut host, &mut [], &limits);
            assert!(matches!(result, Err(RunError::Interrupted { .. })), "{result:?}");
            let inner = poll(host.0.unwrap().as_mut());
            assert!(matches!(inner, Poll::Ready(Err(RunError::Interrupted { .. }))), "{inner:?}");
            assert_eq!(engine.async_runs(), 0);
        }
    }
}

/// How deep runs get that are each begun in the one before, after so many polls of its host function's future.
fn depth(engine: &Engine, polls: u64) -> usize {
    let (of, depth) = (Arc::new(OnceLock::<Program<Raw, ()>>::new()), Arc::new(AtomicUsize::new(0)));
    let mut linker = Linker::<()>::new(engine);
    // The program has the closure: the closure does not keep it.
    let (inner, reached) = (Arc::downgrade(&of), Arc::clone(&depth));
    linker
        .func_async(1001, "again", move |_: AsyncCaller<'_, ()>| {
            let (of, reached) = (Weak::clone(&inner), Arc::clone(&reached));
            let future: Pin<Box<dyn Future<Output = Result<u64, HelperError>> + Send>> = Box::pin(async move {
                after(polls).await;
                if reached.fetch_add(1, Ordering::SeqCst) == 100 {
                    return Ok(1);
                }
                let program = of.upgrade().unwrap().get().unwrap().clone();
                program.run_async(&mut (), &mut []).await.map_err(HelperError::new)
            });
            future
        })
        .unwrap();
    let program = load(&linker, "call 1001\nexit");
    assert!(of.set(program.clone()).is_ok());
    let result = block_on(program.run_async(&mut (), &mut []));
    assert!(result.unwrap_err().to_string().contains("nested more than 4 deep"));
    assert_eq!(engine.async_runs(), 0);
    depth.load(Ordering::SeqCst)
}

/// A host function's future is polled in no guard after its first wait, and a run that it begins is inside its run all
/// the same.
#[test]
fn runs_that_begin_after_a_wait_are_nested_as_deep_as_others() {
    for engine in engines(|config| config.max_nested_runs(4)) {
        assert_eq!((depth(&engine, 0), depth(&engine, 1), depth(&engine, 3)), (4, 4, 4));
        // A run that is over no longer counts.
        assert_eq!(block_on(load(&waits(&engine), ONCE).run_async(&mut 0, &mut [])).unwrap(), 7);
    }
}

type Owned = Pin<Box<dyn Future<Output = Result<u64, RunError>> + Send>>;

/// Makes `count` runs that have begun and wait, each of which is the host state of the next.
fn chain(program: &Program<Raw, Option<Owned>>, count: usize) -> Owned {
    let one = |inner: Option<Owned>| {
        let (program, mut host) = (program.clone(), inner);
        let mut run: Owned = Box::pin(async move { program.run_async(&mut host, &mut []).await });
        assert!(poll(run.as_mut()).is_pending());
        run
    };
    (1..count).fold(one(None), |inner, _| one(Some(inner)))
}

/// Runs that each begin outside of the others, and are awaited inside one another: the depth is that of their polls,
/// all of which are on one stack.
#[test]
fn runs_that_began_outside_are_polled_inside_others_to_the_same_depth() {
    for engine in engines(|config| config.max_nested_runs(4)) {
        let mut linker = Linker::<Option<Owned>>::new(&engine);
        linker
            .func_async(1001, "join", async |mut c: AsyncCaller<'_, Option<Owned>>| -> Result<u64, HelperError> {
                let inner = c.host().take();
                after(1).await;
                match inner {
                    Some(inner) => inner.await.map_err(HelperError::new),
                    None => Ok(7),
                }
            })
            .unwrap();
        let program = load(&linker, "call 1001\nexit");
        for count in [1, 4, 5, 3000] {
            match block_on(chain(&program, count)) {
                Ok(result) => assert!(count <= 4 && result == 7),
                Err(error) => assert!(count > 4 && error.to_string().contains("nested more than 4 deep"), "{error}"),
            }
            assert_eq!(engine.async_runs(), 0);
        }
    }
}

/// Runs of another engine do not count.
#[test]
fn runs_inside_those_of_another_engine_are_not_nested() {
    for (inner, outer) in engines(|config| config.max_nested_runs(1)).iter().zip(engines(|config| config)) {
        let once = load(&waits(inner), ONCE);
        for polls in [0, 1] {
            let mut linker = Linker::<()>::new(&outer);
            let once = once.clone();
            linker
                .func_async(1001, "runs", move |_: AsyncCaller<'_, ()>| {
                    let once = once.clone();
                    async move {
                        after(polls).await;
                        once.run_async(&mut 0, &mut []).await.map_err(HelperError::new)
                    }
                })
                .unwrap();
            let runs = load(&linker, "call 1001\nexit");
            assert_eq!(block_on(runs.run_async(&mut (), &mut [])).unwrap(), 7, "after {polls} polls");
        }
    }
}

/// Where the number does not bound runs that are polled inside one another, the poller's stack does.
#[test]
fn runs_are_polled_inside_others_as_far_as_the_stack_goes() {
    for engine in engines(|config| config.max_nested_runs(1 << 20)) {
        let mut linker = Linker::<Option<Owned>>::new(&engine);
        linker
            .func_async(1001, "join", async |mut c: AsyncCaller<'_, Option<Owned>>| -> Result<u64, HelperError> {
                let inner = c.host().take();
                after(1).await;
                match inner {
                    // The errors of so many runs are not kept inside one another.
                    Some(inner) => Ok(inner.await.map_or(0, |depth| depth + 1)),
                    None => Ok(1),
                }
            })
            .unwrap();
        let program = load(&linker, "call 1001\nexit");
        let run = move || block_on(chain(&program, 5000)).unwrap();
        let depth = std::thread::Builder::new().stack_size(1 << 20).spawn(run).unwrap().join().unwrap();
        assert!(depth > 20 && depth < 5000, "{depth}");
        assert_eq!(engine.async_runs(), 0);
    }
}

/// A run that needs a large stack of its own needs none of its poller's.
#[test]
fn the_stack_that_runs_reserve_is_not_their_pollers() {
    for engine in engines(|config| config.stack_reserve(8 << 20)) {
        let mut linker = Linker::<()>::new(&engine);
        linker.func_async(1001, "wait", async |_: AsyncCaller<'_, ()>| after(2).await).unwrap();
        let program = load(&linker, "call 1001\nr0 = 7\nexit");
        let run = move || block_on(program.run_async(&mut (), &mut []));
        let result = std::thread::Builder::new().stack_size(1 << 20).spawn(run).unwrap().join().unwrap();
        assert_eq!(result.unwrap(), 7);
    }
}

/// Polls a run that waits within another, where that is too deep; then outside, until it is over. Returns both results.
fn polled_too_deep(
    engine: &Engine,
    inner: impl Future<Output = Result<u64, RunError>> + Send + 'static,
    ask: impl Fn(),
) -> [String; 2] {
    let inner: Arc<Mutex<Owned>> = Arc::new(Mutex::new(Box::pin(inner)));
    assert!(poll(inner.lock().unwrap().as_mut()).is_pending());
    ask();
    let seen = Arc::new(OnceLock::new());
    let mut linker = Linker::<()>::new(engine);
    let polls = (Arc::clone(&inner), Arc::clone(&seen));
    let polls = move |_: AsyncCaller<'_, ()>| {
        let (inner, seen) = polls.clone();
        async move {
            after(1).await;
            let result = poll(inner.lock().unwrap().as_mut());
            seen.set(format!("{result:?}")).unwrap();
        }
    };
    linker.func_async(1002, "polls", polls).unwrap();
    let outer = load(&linker, "call 1002\nr0 = 0\nexit");
    block_on(outer.run_async(&mut (), &mut [])).unwrap();
    let mut inner = inner.lock().unwrap();
    let later = (0..3).map(|_| poll(inner.as_mut())).find(Poll::is_ready);
    [seen.get().unwrap().clone(), format!("{:?}", later.unwrap())]
}

#[test]
fn a_run_that_is_polled_too_deep_goes_on_elsewhere_or_ends_if_that_was_asked() {
    for engine in engines(|config| config.max_nested_runs(1).interruptible(true)) {
        let mut linker = Linker::<()>::new(&engine);
        linker.func_async(1001, "wait", async |_: AsyncCaller<'_, ()>| after(2).await).unwrap();
        let waits: Program<Raw, ()> = load(&linker, "call 1001\nr0 = 7\nexit");
        let hook = Hook::sleepable(&engine, HookPolicy::LastWins { empty: 0 }).unwrap();
        hook.attach(&waits).unwrap();
        let new = || (Box::leak(Box::new(())), Box::leak(Box::new([0; 0])));
        for asked in [false, true] {
            let expected = match asked {
                false => ["Ready(Err(TooDeep", "Ready(Ok(7))"],
                true => ["Ready(Err(Interrupted", "Ready(Err(Over))"],
            };
            let ((host, data), (of_hook, its_data)) = (new(), new());
            let ask = |work: &dyn Fn()| {
                if asked {
                    work();
                }
            };
            let results = [
                polled_too_deep(&engine, waits.run_async(host, data), || ask(&|| waits.interrupt())),
                polled_too_deep(&engine, hook.run_async(of_hook, its_data), || ask(&|| hook.interrupt())),
            ];
            for result in results {
                let as_expected = |(seen, expected): (&String, &str)| seen.starts_with(expected);
                assert!(result.iter().zip(expected).all(as_expected), "{result:?}");
            }
        }
        assert_eq!(engine.async_runs(), 0);
    }
}
