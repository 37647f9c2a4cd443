//! Runs that yield: they give their thread to others where their loops begin a round, and go on later.

use super::common::engines::engines;
use super::{ONCE, block_on, load, poll, waits};
use bpf_runtime::{
    Engine, Hook, HookPolicy, Linker, LoadError, OptLevel, Program, Raw, RunError, RunLimits,
    isa::assemble,
    maps::{Map, MapDef, MapType},
};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, RawWaker, RawWakerVTable, Wake, Waker};
use std::thread;
use std::time::Duration;

/// Counts how often it is woken.
#[derive(Default)]
struct Woken(AtomicU64);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Polls to the end: the result, and how often the run was pending. A pending run has woken its poller.
fn count<F: Future + ?Sized>(mut run: Pin<Box<F>>) -> (F::Output, u64) {
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(Arc::clone(&woken));
    let mut pending = 0;
    loop {
        match run.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return (output, pending),
            Poll::Pending => pending += 1,
        }
        // The thread of deadlines may have woken it once more.
        assert!(woken.0.load(Ordering::Relaxed) >= pending);
    }
}

fn yielding<H: 'static>(linker: &Linker<H>, text: &str) -> Program<Raw, H> {
    let loader = linker.loader().yields(true).interruptible(true);
    loader.insns("test", assemble(text).unwrap()).unwrap_or_else(|e| panic!("{e}"))
}

/// Takes 999 back-edges, and returns 1,000.
const LOOP: &str = "r0 = 0\nagain:\nr0 += 1\nif r0 != 1000 goto again\nexit";

#[test]
fn a_run_yields_each_time_that_a_slice_is_spent() {
    for engine in engines(|config| config) {
        let linker = Linker::<()>::new(&engine);
        for (level, contained) in [
            (OptLevel::None, false),
            (OptLevel::Speed, false),
            (OptLevel::Tiered, false),
            (OptLevel::Speed, true),
            (OptLevel::Tiered, true),
        ] {
            let loader = linker.loader::<Raw>().yields(true).opt_level(level);
            let loader = loader.contained(contained);
            let program = loader.insns("test", assemble(LOOP).unwrap()).unwrap();
            for (every, yields) in [(100, 9), (333, 2), (334, 2), (998, 1), (999, 0), (1, 998), (0, 998), (u64::MAX, 0)]
            {
                let limits = RunLimits::new().yield_every(every);
                let (result, pending) = count(Box::pin(program.run_async_with(&mut (), &mut [], &limits)));
                assert_eq!((result.unwrap(), pending), (1000, yields), "every {every}");
            }
            // Nobody has asked for it.
            assert_eq!(count(Box::pin(program.run_async(&mut (), &mut []))).1, 0);
            assert!(matches!(program.run(&mut (), &mut []), Err(RunError::Sleepable { .. })));
        }
        assert_eq!(engine.async_runs(), 0);
    }
}

/// A slice that is spent inside a helper's calls of a callback: the run goes on, and yields at its next loop.
#[test]
fn callbacks_go_on_where_a_slice_is_spent() {
    let text = "r6 = 0\nagain:\nr1 = 100\nr2 = subprog[each]\nr3 = 0\nr4 = 0\ncall 181\nr7 = r0\nr6 += 1\n\
                if r6 != 3 goto again\nr0 = r7\nexit\neach:\nr0 = 0\nexit";
    for engine in engines(|config| config) {
        let linker = Linker::<()>::new(&engine);
        let program: Program<Raw, ()> = yielding(&linker, text);
        for (every, yields) in [(1, 2), (10, 2), (1000, 0)] {
            let limits = RunLimits::new().yield_every(every);
            let (result, pending) = count(Box::pin(program.run_async_with(&mut (), &mut [], &limits)));
            assert_eq!((result.unwrap(), pending), (100, yields), "every {every}");
        }
        // The budget of the whole run still ends it there.
        let limits = RunLimits::new().yield_every(10).budget(50);
        let (result, _) = count(Box::pin(program.run_async_with(&mut (), &mut [], &limits)));
        assert!(matches!(result, Err(RunError::Budget { .. })), "{result:?}");
    }
}

/// A waker is cloned while no lock is held: its clone may ask all runs to end.
#[test]
fn a_waker_may_interrupt_while_it_is_cloned() {
    unsafe fn clone(data: *const ()) -> RawWaker {
        // SAFETY: the engine of the test, which lives longer than its wakers.
        unsafe { &*data.cast::<Engine>() }.interrupt();
        RawWaker::new(data, &TABLE)
    }
    unsafe fn nothing(_: *const ()) {}
    static TABLE: RawWakerVTable = RawWakerVTable::new(clone, nothing, nothing, nothing);
    for engine in engines(|config| config.interruptible(true)) {
        let linker = waits(&engine);
        let program = load(&linker, ONCE);
        let (mut host, mut data) = (Default::default(), []);
        let mut run = Box::pin(program.run_async(&mut host, &mut data));
        // SAFETY: the functions of the table do as a waker's must, and the engine is there until the end of the round.
        let waker = unsafe { Waker::from_raw(RawWaker::new((&raw const engine).cast(), &TABLE)) };
        let mut ends = (0..3).filter_map(|_| match run.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(result) => Some(result),
            Poll::Pending => None,
        });
        let result = ends.next().expect("the run ends");
        assert!(matches!(result, Err(RunError::Interrupted { .. })), "{result:?}");
    }
}

/// A waker that is replaced is dropped where its host may do anything, such as interrupt the run.
#[test]
fn a_waker_may_interrupt_while_it_is_dropped() {
    struct Interrupts(Engine);
    impl Wake for Interrupts {
        fn wake(self: Arc<Self>) {}
    }
    impl Drop for Interrupts {
        fn drop(&mut self) {
            self.0.interrupt();
        }
    }
    for engine in engines(|config| config.interruptible(true)) {
        let program = yielding(&Linker::<()>::new(&engine), LOOP);
        let limits = RunLimits::new().yield_every(100);
        let (mut host, mut data) = ((), []);
        let mut run = Box::pin(program.run_async_with(&mut host, &mut data, &limits));
        let waker = Waker::from(Arc::new(Interrupts(engine.clone())));
        assert!(run.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        drop(waker);
        let (result, _) = count(run);
        assert!(matches!(result, Err(RunError::Interrupted { .. })), "{result:?}");
    }
}

/// A run whose poller's waker panics is given up, in its first poll and in a later one, and its thread runs others.
#[test]
fn a_panic_of_a_waker_leaves_the_thread_as_it_was() {
    struct Panics(AtomicU64);
    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            self.wake_by_ref();
        }
        fn wake_by_ref(self: &Arc<Self>) {
            assert_ne!(self.0.fetch_sub(1, Ordering::Relaxed), 0, "a waker's own mistake");
        }
    }
    for engine in engines(|config| config) {
        let program = yielding(&Linker::<()>::new(&engine), LOOP);
        let limits = RunLimits::new().yield_every(100);
        for after in [0, 3] {
            let waker = Waker::from(Arc::new(Panics(AtomicU64::new(after))));
            let thrown = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                let (mut host, mut data) = ((), []);
                let mut run = Box::pin(program.run_async_with(&mut host, &mut data, &limits));
                while run.as_mut().poll(&mut Context::from_waker(&waker)).is_pending() {}
            }));
            assert!(thrown.is_err());
            assert_eq!(engine.async_runs(), 0);
            assert_eq!(count(Box::pin(program.run_async_with(&mut (), &mut [], &limits))).0.unwrap(), 1000);
        }
    }
}

#[test]
fn registers_stack_and_frames_stay() {
    for engine in engines(|config| config) {
        let linker = waits(&engine);
        // All registers, the stack, the context, and a function whose loop yields while its caller's values wait.
        let text = "r9 = r1\nr8 = r2\nr7 = 7\nr6 = 1\n*(u64 *)(r10 - 8) = 1\nouter:\nr1 = r6\ncall inner\nr7 += r0\n\
                    r1 = *(u64 *)(r10 - 8)\nr1 *= 3\n*(u64 *)(r10 - 8) = r1\nr6 += 1\nif r6 != 20 goto outer\n\
                    r0 = *(u64 *)(r10 - 8)\nr0 += r7\nr0 += r8\nif r8 != 3 goto out\nr1 = *(u8 *)(r9 + 2)\nr0 += r1\n\
                    r6 = r0\nr1 = 1\ncall 1001\nr0 += r6\nout:\nexit\n\
                    inner:\nr0 = 0\nr2 = 1\nr3 = 2\nr4 = 3\nr5 = 4\nr6 = 5\nr7 = 6\nr8 = 7\nr9 = 0\n*(u64 *)(r10 - 8) = r1\n\
                    again:\nr0 += r1\nr0 += r2\nr0 ^= r3\nr2 += r4\nr3 += r5\nr4 ^= r6\nr5 += r7\nr6 += r8\nr7 ^= r0\n\
                    r8 += 1\nr9 += 1\nr1 = *(u64 *)(r10 - 8)\nif r9 != 10 goto again\nr0 &= 255\nexit";
        let plain = load(&linker, text);
        let (mut host, mut bytes) = (0, [1, 2, 3]);
        let expected = block_on(plain.run_async(&mut host, &mut bytes)).unwrap();
        let program = yielding(&linker, text);
        for every in [1, 2, 3, 7, 50, 1000] {
            host = 0;
            let limits = RunLimits::new().yield_every(every);
            let (result, pending) = count(Box::pin(program.run_async_with(&mut host, &mut bytes, &limits)));
            assert_eq!(result.unwrap(), expected, "every {every}");
            // 19 calls of 9 back-edges, the outer loop's 18, the calls themselves, one wait.
            assert!(pending <= 1 + (19 * 10 + 18 + 1) / every, "every {every}: {pending}");
            assert!(every > 3 || pending > 50, "every {every}: {pending}");
        }
    }
}

#[test]
fn a_run_that_has_yielded_goes_on_in_other_slots() {
    for engine in engines(|config| config) {
        let linker = Linker::<()>::new(&engine);
        let slots = Map::create(MapDef::new("slots", MapType::PerCpuArray, 4, 8, 1), engine.domain()).unwrap();
        // In each round one more for the slot that the run is in. The key is on the stack, and does not change.
        let text = "r6 = 0\n*(u32 *)(r10 - 4) = 0\nagain:\nr1 = map[fd:0]\nr2 = r10\nr2 += -4\ncall 1\nif r0 == 0 goto out\n\
                    r1 = *(u64 *)(r0 + 0)\nr1 += 1\n*(u64 *)(r0 + 0) = r1\nr6 += 1\nif r6 != 40 goto again\nout:\nr0 = r6\nexit";
        let loader = linker.loader::<Raw>().yields(true).maps(&[&slots]);
        let program = loader.insns("slots", assemble(text).unwrap()).unwrap();
        let limits = RunLimits::new().yield_every(20);
        let mut host = ();
        let mut run = Box::pin(program.run_async_with(&mut host, &mut [], &limits));
        // Each part of the run is on a thread of its own, beside others that hold as many slots.
        let mut parts = 0u32;
        let result = loop {
            let held = parts % 4;
            let barrier = std::sync::Barrier::new(held as usize + 1);
            let polled = thread::scope(|s| {
                for _ in 0..held {
                    s.spawn(|| {
                        let guard = engine.domain().enter().unwrap();
                        barrier.wait();
                        barrier.wait();
                        drop(guard);
                    });
                }
                barrier.wait();
                let polled = s.spawn(|| poll(run.as_mut())).join().unwrap();
                barrier.wait();
                polled
            });
            parts += 1;
            if let Poll::Ready(result) = polled {
                break result;
            }
            // Nothing is held.
            engine.domain().synchronize().unwrap();
        };
        assert_eq!((result.unwrap(), parts), (40, 4));
        let values = slots.get(&[0; 4]).unwrap().unwrap();
        let counts: Vec<u64> = values.chunks(8).map(|value| u64::from_ne_bytes(value.try_into().unwrap())).collect();
        assert_eq!(counts.iter().sum::<u64>(), 40, "{counts:?}");
        // A thread that has ended may give its slot back later, so the parts may have other slots than those beside
        // which they ran, and two or three of them the same one.
        assert!(counts.iter().filter(|count| **count > 0).count() >= 2, "{counts:?}");
    }
}

#[test]
fn a_run_that_may_not_sleep_yields_later() {
    for engine in engines(|config| config) {
        let linker = Linker::<()>::new(&engine);
        let ring = Map::create(MapDef::new("ring", MapType::RingBuf, 0, 0, 4096), engine.domain()).unwrap();
        // A loop with a record that is reserved, and one without.
        let text = "r6 = 0\nr1 = map[fd:0]\nr2 = 8\nr3 = 0\ncall 131\nif r0 == 0 goto out\nr7 = r0\n*(u64 *)(r7 + 0) = 0\nr6 = 0\n\
                    first:\nr6 += 1\nif r6 != 300 goto first\nr1 = r7\nr2 = 0\ncall 132\nr6 = 0\nsecond:\nr6 += 1\n\
                    if r6 != 300 goto second\nout:\nr0 = r6\nexit";
        let loader = linker.loader::<Raw>().yields(true).maps(&[&ring]);
        let program = loader.insns("test", assemble(text).unwrap()).unwrap();
        let limits = RunLimits::new().yield_every(100);
        // At the first back-edge of the second loop, and twice more.
        let (result, pending) = count(Box::pin(program.run_async_with(&mut (), &mut [], &limits)));
        assert_eq!((result.unwrap(), pending), (300, 3));
    }
}

#[test]
fn the_budget_is_that_of_all_slices() {
    for engine in engines(|config| config.metrics(true)) {
        let linker = Linker::<()>::new(&engine);
        let program = yielding(&linker, LOOP);
        for (budget, yields) in [(50, 0), (100, 0), (101, 1), (250, 2), (998, 9)] {
            let limits = RunLimits::new().budget(budget).yield_every(100);
            let (result, pending) = count(Box::pin(program.run_async_with(&mut (), &mut [], &limits)));
            let error = result.unwrap_err();
            assert!(matches!(error, RunError::Budget { insn: Some(insn), .. } if insn.0 == 2), "{budget}: {error:?}");
            assert_eq!(pending, yields, "{budget}");
        }
        let limits = RunLimits::new().budget(999).yield_every(100);
        assert_eq!(count(Box::pin(program.run_async_with(&mut (), &mut [], &limits))).0.unwrap(), 1000);
        // The program's own budget, with and without slices.
        let loader = linker.loader::<Raw>().yields(true).budget(250);
        let limited = loader.insns("limited", assemble(LOOP).unwrap()).unwrap();
        for (limits, yields) in [(RunLimits::new(), 0), (RunLimits::new().yield_every(100), 2)] {
            let (result, pending) = count(Box::pin(limited.run_async_with(&mut (), &mut [], &limits)));
            assert!(matches!(result, Err(RunError::Budget { insn: Some(_), .. })), "{result:?}");
            assert_eq!(pending, yields);
        }
        let stops = engine.snapshot().programs.iter().map(|program| program.stops.budget).sum::<u64>();
        assert_eq!(stops, 5 + 2);
    }
}

/// Does not end in anybody's lifetime: 2^60 rounds of four loops.
const LONG: &str = "r6 = 0\na:\nr7 = 0\nb:\nr8 = 0\nc:\nr8 += 1\nif r8 != 1048576 goto c\nr7 += 1\nif r7 != 1048576 goto b\n\
                    r6 += 1\nif r6 != 1048576 goto a\nr0 = 0\nexit";

#[test]
fn a_run_that_has_yielded_is_ended_by_others() {
    for engine in engines(|config| config) {
        let linker = Linker::<()>::new(&engine);
        let program = yielding(&linker, LONG);
        let interrupter = engine.interrupter();
        let limits = RunLimits::new().yield_every(1000).interrupter(&interrupter);
        let ends: [&dyn Fn(); 3] = [&|| program.interrupt(), &|| engine.interrupt(), &|| interrupter.interrupt()];
        for end in ends {
            let mut host = ();
            let mut run = Box::pin(program.run_async_with(&mut host, &mut [], &limits));
            for _ in 0..5 {
                assert!(poll(run.as_mut()).is_pending());
            }
            end();
            let Poll::Ready(result) = poll(run.as_mut()) else { panic!("it goes on") };
            assert!(matches!(result, Err(RunError::Interrupted { insn: Some(_), .. })), "{result:?}");
            drop(run);
            // Given up, with all that it holds.
            let mut run = Box::pin(program.run_async_with(&mut host, &mut [], &limits));
            assert!(poll(run.as_mut()).is_pending());
            assert!(poll(run.as_mut()).is_pending());
            drop(run);
            assert_eq!(engine.async_runs(), 0);
        }
        let deadline = engine.deadline_in(Duration::from_millis(30)).unwrap();
        for limits in [RunLimits::new().deadline(deadline), RunLimits::new().deadline(deadline).waits_count(false)] {
            let (result, pending) =
                count(Box::pin(program.run_async_with(&mut (), &mut [], &limits.yield_every(1000))));
            assert!(matches!(result, Err(RunError::Deadline { .. })), "{pending}: {result:?}");
        }
        assert_eq!(engine.async_runs(), 0);
    }
}

#[test]
fn the_programs_of_a_hook_yield() {
    for engine in engines(|config| config) {
        let linker = waits(&engine);
        let hook = Hook::<Raw, u64>::sleepable(&engine, HookPolicy::LastWins { empty: 0 }).unwrap();
        hook.attach(&yielding(&linker, LOOP)).unwrap();
        hook.attach(&yielding(&linker, &format!("r6 = 0\nagain:\nr6 += 1\nif r6 != 1000 goto again\n{ONCE}"))).unwrap();
        let limits = RunLimits::new().yield_every(100);
        let (result, pending) = count(Box::pin(hook.run_async_with(&mut 0, &mut [], &limits)));
        assert_eq!((result.unwrap(), pending), (7, 9 + 9 + 1));
        // A program that does not yield refuses the limit.
        hook.attach(&load(&linker, ONCE)).unwrap();
        let (result, _) = count(Box::pin(hook.run_async_with(&mut 0, &mut [], &limits)));
        let error = result.unwrap_err();
        assert!(matches!(&error, RunError::Unlimited { lacks, .. } if lacks.contains("Loader::yields")), "{error}");
    }
}

#[test]
fn what_cannot_yield_is_refused() {
    for engine in engines(|config| config) {
        let linker = waits(&engine);
        let limits = RunLimits::new().yield_every(100);
        let sleepable = load(&linker, ONCE);
        let result = block_on(sleepable.run_async_with(&mut 0, &mut [], &limits));
        assert!(matches!(result, Err(RunError::Unlimited { .. })), "{result:?}");
        let plain = linker.loader::<Raw>().budget(10).insns("plain", assemble("r0 = 0\nexit").unwrap()).unwrap();
        assert!(matches!(plain.run_with(&mut 0, &mut [], &limits), Err(RunError::Unlimited { .. })));
        let code = || assemble(LOOP).unwrap();
        let error = linker.loader::<Raw>().yields(true).interpreted(true).insns("test", code()).unwrap_err();
        assert!(matches!(error, LoadError::SleepNeedsVerifier { .. }), "{error}");
        // An element of a hash is used in the rounds of a loop.
        let table = Map::create(MapDef::new("table", MapType::Hash, 8, 8, 4), engine.domain()).unwrap();
        let code = || assemble(ELEMENT).unwrap();
        let loader = || linker.loader::<Raw>().maps(&[&table]);
        let error = loader().yields(true).insns("test", code()).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("where the program may sleep") && text.contains("in each round"), "{text}");
        loader().sleepable(true).insns("test", code()).unwrap();
    }
}

/// A loop over an element of a hash.
const ELEMENT: &str = "*(u64 *)(r10 - 8) = 0\nr1 = map[fd:0]\nr2 = r10\nr2 += -8\ncall 1\nif r0 == 0 goto out\nr6 = r0\n\
                       r7 = 0\nagain:\nr8 = *(u64 *)(r6 + 0)\nr7 += 1\nif r7 != 8 goto again\nout:\nr0 = 0\nexit";

fn assert_send<T: Send>(_: &T) {}

#[test]
fn many_runs_share_a_thread_fairly() {
    let engine = Engine::new(bpf_runtime::Config::new()).unwrap();
    let program = yielding(&Linker::<()>::new(&engine), LOOP);
    let limits = RunLimits::new().yield_every(10);
    let mut hosts = [(); 100];
    let mut runs: Vec<_> =
        hosts.iter_mut().map(|host| Box::pin(program.run_async_with(host, &mut [], &limits))).collect();
    assert_send(&runs);
    // Each is at the same place after as many polls.
    for round in 0..100 {
        for run in &mut runs {
            assert_eq!(poll(run.as_mut()).is_ready(), round == 99);
        }
        assert_eq!(engine.async_runs(), if round == 99 { 0 } else { 100 });
    }
}
