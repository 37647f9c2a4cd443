//! Runs that wait inside other runs: they end with the run around them.

use super::common::engines::engines;
use super::{after, block_on, load, poll};
use bpf_runtime::{AsyncCaller, Caller, Engine, Interrupter, Linker, Program, Raw, RunError, RunLimits, assemble};
use std::future::{Future, pending};
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
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
    for engine in engines(|config| config.interruptible = true) {
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
    for engine in engines(|config| config.interruptible = true) {
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
    for engine in engines(|config| config.interruptible = true) {
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

#[test]
fn a_deadline_of_a_run_ends_the_waiting_run_inside() {
    for engine in engines(|config| config.interruptible = true) {
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
    for engine in engines(|config| config.interruptible = true) {
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
