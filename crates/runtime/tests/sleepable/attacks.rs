//! Attacks on runs that wait: wakers that are used at any time, signals, backtraces and overflows on a run's stack.

use super::common::engines::engines;
use super::{ONCE, after, block_on, load, poll, waits};
use bpf_runtime::{
    AsyncCaller, Caller, Config, Engine, HelperError, Linker, Mode, Program, Raw, RunError, error::EnterError,
    isa::assemble,
};
use std::backtrace::Backtrace;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use std::thread;

/// Wakers that a host function has seen.
type Wakers = Arc<Mutex<Vec<Waker>>>;

/// `call 1001` is ready when the counter in its host has been raised by r1, and keeps every waker.
fn keeps(engine: &Engine) -> Linker<(Wakers, Arc<AtomicU64>)> {
    let mut linker = Linker::<(Wakers, Arc<AtomicU64>)>::new(engine);
    linker
        .func_async(1001, "wait", async |mut c: AsyncCaller<'_, (Wakers, Arc<AtomicU64>)>, by: u64| {
            let (wakers, counter) = c.host();
            let from = counter.load(Ordering::SeqCst);
            poll_fn(|cx| {
                wakers.lock().unwrap().push(cx.waker().clone());
                if counter.load(Ordering::SeqCst) >= from + by { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
        })
        .unwrap();
    linker
}

#[test]
fn wakers_are_used_by_other_threads_and_after_the_end() {
    for engine in engines(|config| config.interruptible(true)) {
        let linker = keeps(&engine);
        let program = load(&linker, "r1 = 3\ncall 1001\nr1 = 2\ncall 1001\nr0 = 7\nexit");
        let (wakers, counter) = (Wakers::default(), Arc::new(AtomicU64::new(0)));
        let over = AtomicBool::new(false);
        thread::scope(|s| {
            for _ in 0..2 {
                s.spawn(|| {
                    while !over.load(Ordering::SeqCst) {
                        counter.fetch_add(1, Ordering::SeqCst);
                        // The wakers belong to runs that wait, that go on and that are over.
                        let all = wakers.lock().unwrap().clone();
                        all.iter().for_each(Waker::wake_by_ref);
                        thread::yield_now();
                    }
                });
            }
            for round in 0..30 {
                let mut host = (Arc::clone(&wakers), Arc::clone(&counter));
                if round % 3 == 0 {
                    let mut run = Box::pin(program.run_async(&mut host, &mut []));
                    let _ = poll(run.as_mut());
                    drop(run);
                } else {
                    assert_eq!(block_on(program.run_async(&mut host, &mut [])).unwrap(), 7);
                }
                wakers.lock().unwrap().truncate(50);
            }
            over.store(true, Ordering::SeqCst);
        });
        assert_eq!(engine.async_runs(), 0);
        let last = std::mem::take(&mut *wakers.lock().unwrap());
        drop((program, linker, engine));
        last.into_iter().for_each(Waker::wake);
    }
}

#[test]
fn a_run_that_waits_is_dropped_after_its_engine() {
    for engine in engines(|config| config) {
        let program = load(&waits(&engine), ONCE);
        let (mut a, mut b) = (0, 0);
        let mut dropped = Box::pin(program.run_async(&mut a, &mut []));
        let mut last = Box::pin(program.run_async(&mut b, &mut []));
        assert!(poll(dropped.as_mut()).is_pending());
        assert!(poll(last.as_mut()).is_pending());
        drop((program, engine));
        drop(dropped);
        assert!(matches!(poll(last.as_mut()), Poll::Ready(Ok(7))));
    }
}

/// The program that the signal handler runs, and how often it has.
static IN_HANDLER: AtomicPtr<Program<Raw, u64>> = AtomicPtr::new(std::ptr::null_mut());
static HANDLED: AtomicUsize = AtomicUsize::new(0);

extern "C" fn handler(_: libc::c_int) {
    // SAFETY: null, or a program that the test keeps while signals are raised.
    let Some(program) = (unsafe { IN_HANDLER.load(Ordering::SeqCst).as_ref() }) else { return };
    if matches!(program.run(&mut 0, &mut [0; 5]), Ok(5)) {
        HANDLED.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn a_signal_handler_runs_programs_on_the_stack_of_a_run() {
    // SAFETY: a valid action; no other test of this process uses the signal.
    unsafe { libc::signal(libc::SIGUSR2, handler as *const () as libc::sighandler_t) };
    // The interpreter allocates memory, which a signal handler may not do.
    for engine in engines(|config| config).into_iter().filter(|engine| engine.config().get_mode() == Mode::Jit) {
        let mut linker = waits(&engine);
        linker
            .func(1002, "raise", |_: &mut Caller<'_, u64>| {
                // SAFETY: the signal has a handler.
                unsafe { libc::raise(libc::SIGUSR2) };
            })
            .unwrap()
            .func_async(1003, "raises", async |_: AsyncCaller<'_, u64>| {
                // SAFETY: the signal has a handler.
                unsafe { libc::raise(libc::SIGUSR2) };
                after(1).await;
                // SAFETY: the signal has a handler.
                unsafe { libc::raise(libc::SIGUSR2) };
            })
            .unwrap();
        let mut plain = linker.loader::<Raw>().insns("plain", assemble("r0 = r2\nexit").unwrap()).unwrap();
        let program = load(&linker, "call 1002\nr1 = 1\ncall 1001\ncall 1002\ncall 1003\nr0 = 9\nexit");
        IN_HANDLER.store(&raw mut plain, Ordering::SeqCst);
        let before = HANDLED.load(Ordering::SeqCst);
        for _ in 0..10 {
            assert_eq!(block_on(program.run_async(&mut 0, &mut [])).unwrap(), 9);
        }
        IN_HANDLER.store(std::ptr::null_mut(), Ordering::SeqCst);
        assert_eq!(HANDLED.load(Ordering::SeqCst) - before, 40);
    }
}

#[test]
fn backtraces_and_panics_pass_through_the_stack_of_a_run() {
    // Behind emitted code nothing is seen unless its frames are registered (`DebugOptions`).
    let depth = |trace: &Backtrace| trace.to_string().lines().count();
    for engine in engines(|config| config) {
        let mut linker = Linker::<Vec<Backtrace>>::new(&engine);
        linker
            .func_async(1001, "trace", async |mut c: AsyncCaller<'_, Vec<Backtrace>>| {
                c.host().push(Backtrace::force_capture());
                after(1).await;
                c.host().push(Backtrace::force_capture());
            })
            .unwrap()
            .func(1002, "trace_plain", |c: &mut Caller<'_, Vec<Backtrace>>| {
                c.host().push(Backtrace::force_capture());
            })
            .unwrap()
            .func(1003, "panics", |_: &mut Caller<'_, Vec<Backtrace>>| -> u64 { panic!("in a host function") })
            .unwrap();
        let program = load(&linker, "call 1002\ncall 1001\ncall 1002\nr0 = 1\nexit");
        let mut traces = Vec::new();
        assert_eq!(block_on(program.run_async(&mut traces, &mut [])).unwrap(), 1);
        assert_eq!(traces.len(), 4);
        let least = if engine.config().get_mode() == Mode::Interpreter { 8 } else { 2 };
        assert!(traces.iter().all(|trace| depth(trace) >= least), "{traces:?}");
        let panics = load(&linker, "call 1001\ncall 1003\nexit");
        let error = block_on(panics.run_async(&mut traces, &mut [])).unwrap_err();
        let bpf_runtime::RunError::Host { source: HelperError::Panicked(text), .. } = &error else {
            panic!("{error:?}")
        };
        assert_eq!(text.to_string(), "in a host function");
    }
}

/// In the environment of a process whose host function overflows the stack of a run.
const OVERFLOWS: &str = "BPF_RUN_STACK_OVERFLOWS";

#[inline(never)]
fn recurse(depth: u64) -> u64 {
    let mut frame = [0u8; 512];
    let frame = std::hint::black_box(&mut frame);
    frame[(depth % 512) as usize] = 1;
    if depth == u64::MAX { 0 } else { recurse(depth + 1) + u64::from(std::hint::black_box(frame)[0]) }
}

/// Memory beside the stack of a run is not written to by a host function that overflows it: the process ends.
#[test]
#[cfg(target_os = "linux")]
fn an_overflow_of_the_stack_of_a_run_hits_its_guard_page() {
    use std::os::unix::process::ExitStatusExt;
    if bpf_testkit::emulated() {
        return bpf_testkit::skipped("an overflow of a run's stack", &"qemu would end with its guest");
    }
    if std::env::var_os(OVERFLOWS).is_some() {
        let engine = Engine::new(Config::new()).unwrap();
        let mut linker = waits(&engine);
        linker.func(1002, "overflows", |_: &mut Caller<'_, u64>| recurse(0)).unwrap();
        let program = load(&linker, "r1 = 1\ncall 1001\ncall 1002\nexit");
        let result = block_on(program.run_async(&mut 0, &mut []));
        println!("came back: {result:?}");
        return;
    }
    let child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "attacks::an_overflow_of_the_stack_of_a_run_hits_its_guard_page", "--nocapture"])
        .env(OVERFLOWS, "1")
        .output()
        .unwrap();
    let said = [child.stdout, child.stderr].concat();
    let signal = child.status.signal();
    assert!(
        matches!(signal, Some(libc::SIGSEGV | libc::SIGABRT)),
        "{:?}\n{}",
        child.status,
        String::from_utf8_lossy(&said)
    );
}

/// The sleepable program that the signal handler runs, how often it has, and how often it was refused.
static SLEEPS_IN_HANDLER: AtomicPtr<Program<Raw, u64>> = AtomicPtr::new(std::ptr::null_mut());
static RAN: AtomicUsize = AtomicUsize::new(0);
static REFUSED: AtomicUsize = AtomicUsize::new(0);

extern "C" fn sleeps_in_handler(_: libc::c_int) {
    // SAFETY: null, or a program that the test keeps while signals are sent.
    let Some(program) = (unsafe { SLEEPS_IN_HANDLER.load(Ordering::SeqCst).as_ref() }) else { return };
    let mut host = 0;
    let mut run = pin!(program.run_async(&mut host, &mut []));
    loop {
        let counter = match poll(run.as_mut()) {
            Poll::Pending => continue,
            Poll::Ready(Ok(7)) => &RAN,
            Poll::Ready(Err(RunError::Signal | RunError::Enter(EnterError::Signal))) => &REFUSED,
            // Unwinds from no handler: the process ends.
            Poll::Ready(other) => panic!("{other:?}"),
        };
        counter.fetch_add(1, Ordering::SeqCst);
        return;
    }
}

/// Runs the program on a thread, which is sent signals meanwhile.
fn send_signals_to_runs_of(program: &Program<Raw, u64>) {
    let over = AtomicBool::new(false);
    let thread = AtomicU64::new(0);
    thread::scope(|s| {
        s.spawn(|| {
            // SAFETY: always succeeds.
            thread.store(unsafe { libc::pthread_self() } as u64, Ordering::SeqCst);
            while !over.load(Ordering::SeqCst) {
                let mut host = 0;
                let mut run = pin!(program.run_async(&mut host, &mut []));
                let result = loop {
                    if let Poll::Ready(result) = poll(run.as_mut()) {
                        break result;
                    }
                };
                assert!(matches!(result, Ok(9)));
                #[cfg(sanitizer = "thread")]
                // The thread sanitizer delivers signals in functions that it intercepts, and the runs call none. The
                // standard library's sleep calls none either.
                // SAFETY: takes an integer.
                let _ = unsafe { libc::usleep(1) };
            }
        });
        while thread.load(Ordering::SeqCst) == 0 {
            thread::yield_now();
        }
        let handled = || RAN.load(Ordering::SeqCst) + REFUSED.load(Ordering::SeqCst);
        for _ in 0..15 {
            let before = handled();
            // SAFETY: the thread lives until `over` is set.
            let sent = unsafe { libc::pthread_kill(thread.load(Ordering::SeqCst) as libc::pthread_t, libc::SIGALRM) };
            assert_eq!(sent, 0);
            while handled() == before {
                thread::yield_now();
            }
        }
        over.store(true, Ordering::SeqCst);
    });
}

/// A signal that comes at any time: the handler's runs are inside the run that it interrupts, or are refused. Neither
/// the thread that is interrupted nor its handler allocates but in sections where the handler is refused.
#[test]
fn a_signal_handler_runs_sleepable_programs_or_is_refused() {
    // SAFETY: a valid action; no other test of this process uses the signal.
    unsafe { libc::signal(libc::SIGALRM, sleeps_in_handler as *const () as libc::sighandler_t) };
    for engine in engines(|config| config.interruptible(true)) {
        let mut linker = waits(&engine);
        linker
            .func(1002, "raise", |_: &mut Caller<'_, u64>| {
                // SAFETY: the signal has a handler.
                unsafe { libc::raise(libc::SIGALRM) };
            })
            .unwrap()
            .func_async(1003, "raises", async |_: AsyncCaller<'_, u64>| {
                // SAFETY: the signal has a handler.
                unsafe { libc::raise(libc::SIGALRM) };
                after(1).await;
                // SAFETY: the signal has a handler.
                unsafe { libc::raise(libc::SIGALRM) };
            })
            .unwrap();
        let mut inner = load(&linker, ONCE);
        let plain = linker.loader::<Raw>().insns("plain", assemble("call 1002\nr0 = 3\nexit").unwrap()).unwrap();
        let rounds = |label: &str| format!("r0 = 0\n{label}: r0 += 1\nif r0 < 500 goto {label}\n");
        let text = format!("{}r1 = 1\ncall 1001\n{}r1 = 0\ncall 1001\nr0 = 9\nexit", rounds("one"), rounds("two"));
        let program = load(&linker, &text);
        let raises = load(&linker, "call 1002\ncall 1003\nr0 = 9\nexit");
        // Stacks for the runs to come.
        for program in [&program, &inner, &raises] {
            let mut runs: Vec<_> =
                (0..8).map(|_| Box::pin(program.run_async(Box::leak(Box::new(0)), &mut []))).collect();
            runs.iter_mut().for_each(|run| drop(poll(run.as_mut())));
        }
        SLEEPS_IN_HANDLER.store(&raw mut inner, Ordering::SeqCst);
        RAN.store(0, Ordering::SeqCst);
        assert_eq!(plain.run(&mut 0, &mut []).unwrap(), 3);
        assert_eq!(block_on(raises.run_async(&mut 0, &mut [])).unwrap(), 9);
        assert_eq!(RAN.load(Ordering::SeqCst), 4, "in host functions nothing is refused");
        // The interpreter allocates.
        if engine.config().get_mode() == Mode::Jit {
            send_signals_to_runs_of(&program);
        }
        SLEEPS_IN_HANDLER.store(std::ptr::null_mut(), Ordering::SeqCst);
        assert_eq!(engine.async_runs(), 0);
    }
}

/// Runs for a handler on a signal stack: one to be polled, and one to be dropped.
struct OnSignalStack<'p> {
    program: &'p Program<Raw, u64>,
    polled: Run<'p>,
    dropped: Option<Run<'p>>,
    refused: u32,
}

type Run<'p> = Pin<Box<dyn Future<Output = Result<u64, RunError>> + 'p>>;

static ON_SIGNAL_STACK: AtomicPtr<OnSignalStack<'static>> = AtomicPtr::new(std::ptr::null_mut());

extern "C" fn on_signal_stack(_: libc::c_int) {
    // SAFETY: null, or what the test keeps and does not touch while it raises the signal.
    let Some(runs) = (unsafe { ON_SIGNAL_STACK.load(Ordering::SeqCst).as_mut() }) else { return };
    let mut host = 0;
    let mut fresh = pin!(runs.program.run_async(&mut host, &mut []));
    let refused = |poll| matches!(poll, Poll::Ready(Err(RunError::Signal)));
    runs.refused += u32::from(refused(poll(fresh.as_mut()))) + u32::from(refused(poll(runs.polled.as_mut())));
    drop(runs.dropped.take());
}

/// The system takes a signal stack for free while its handler is on the stack of a run, and the next signal would
/// overwrite the handler's frames: so a handler there neither begins, polls nor ends a run.
#[test]
#[cfg(target_os = "linux")]
fn a_signal_handler_on_a_signal_stack_is_refused() {
    // SAFETY: all zero is a value.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_flags = libc::SA_ONSTACK;
    action.sa_sigaction = on_signal_stack as *const () as usize;
    // SAFETY: a handler of the right type; no other test of this process uses the signal.
    assert_eq!(unsafe { libc::sigaction(libc::SIGVTALRM, &raw const action, std::ptr::null_mut()) }, 0);
    let engines = || engines(|config| config).into_iter();
    // Also where the ends of the thread's stack are unknown.
    for (engine, is_known) in engines().map(|engine| (engine, true)).chain(engines().map(|engine| (engine, false))) {
        let program = load(&waits(&engine), ONCE);
        thread::scope(|s| {
            s.spawn(|| {
                let mut memory = vec![0u8; 256 << 10];
                let stack = libc::stack_t { ss_sp: memory.as_mut_ptr().cast(), ss_flags: 0, ss_size: memory.len() };
                let mut before = libc::stack_t { ss_sp: std::ptr::null_mut(), ss_flags: 0, ss_size: 0 };
                // SAFETY: the memory stays until the former stack is set again.
                assert_eq!(unsafe { libc::sigaltstack(&raw const stack, &raw mut before) }, 0);
                let (mut host, mut other) = (0, 0);
                let (mut polled, mut dropped): (Run<'_>, Run<'_>) =
                    (Box::pin(program.run_async(&mut host, &mut [])), Box::pin(program.run_async(&mut other, &mut [])));
                let mut begin = || poll(polled.as_mut()).is_pending() && poll(dropped.as_mut()).is_pending();
                if is_known {
                    assert!(begin());
                } else {
                    assert_eq!(bpf_os::inject::failing(bpf_os::Call::ThreadStack, 0, begin), (true, true));
                }
                let mut runs = OnSignalStack { program: &program, polled, dropped: Some(dropped), refused: 0 };
                ON_SIGNAL_STACK.store((&raw mut runs).cast(), Ordering::SeqCst);
                // SAFETY: the signal has a handler.
                unsafe { libc::raise(libc::SIGVTALRM) };
                ON_SIGNAL_STACK.store(std::ptr::null_mut(), Ordering::SeqCst);
                assert_eq!(runs.refused, 2);
                assert_eq!(block_on(runs.polled).unwrap(), 7, "it goes on outside of the handler");
                // SAFETY: the stack that the thread had.
                assert_eq!(unsafe { libc::sigaltstack(&raw const before, std::ptr::null_mut()) }, 0);
            });
        });
        assert_eq!(engine.async_runs(), 1, "the run that was dropped there is forgotten");
    }
}
