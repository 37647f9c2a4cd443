//! A forked child runs nothing of its parent's, however a run begins: the parent frees, loads and patches the code
//! meanwhile. Alone in its process; its tests take turns, so that no other thread does anything at a fork.
#![cfg(target_os = "linux")]

use bpf_runtime::{
    Caller, Config, Dispatcher, Engine, HelperError, Hook, HookPolicy, Linker, Mode, ProgArray, Program, Raw, RunError,
    Runner,
    code::Arch,
    error::EnterError,
    host::{PinnedMap, PinnedValue},
    isa::assemble,
    maps::{Map, MapDef, MapError, MapType},
};
use bpf_testkit::forked::{Ended, assert_ended_well, forked};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Held by the test that runs: the tests of this file run one at a time.
static TURN: Mutex<()> = Mutex::new(());

type Prog = Program<Raw, u64>;

fn refused(result: Result<u64, RunError>) {
    let error = result.expect_err("the child ran something");
    assert!(matches!(error, RunError::Enter(EnterError::Forked)), "{error}");
}

/// A child process that runs `body`, made by `fork` or by the bare system call.
fn child(raw: bool, body: impl FnOnce()) -> libc::pid_t {
    let child = match raw {
        // SAFETY: no other thread of this process is doing anything; the child leaves through `_exit`.
        false => unsafe { libc::fork() },
        // SAFETY: no other thread of this process is doing anything; the child leaves through `_exit`, and runs no
        // handler of `pthread_atfork`.
        true => unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) as libc::pid_t },
    };
    assert!(child >= 0);
    if child == 0 {
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
        // SAFETY: ends the child without running the parent's destructors twice.
        unsafe { libc::_exit(i32::from(result.is_err())) };
    }
    child
}

fn wait(child: libc::pid_t) -> i32 {
    let mut status = 0;
    // SAFETY: waits for our child and writes its status.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    status
}

fn linker(engine: &Engine) -> Linker<u64> {
    let mut linker = Linker::<u64>::new(engine);
    linker.func(1001, "count", |c: &mut Caller<'_, u64>| *c.host() += 1).unwrap();
    linker
}

/// Everything that a child may hold of its parent.
struct Held<'r> {
    program: &'r Prog,
    /// A program that does not read the hidden argument, and so needs no run.
    plain: &'r Prog,
    jumps: &'r Prog,
    hook: &'r Hook<Raw, u64>,
    dispatcher: &'r Dispatcher<Raw, u64>,
    runners: [Runner<'r, Raw, u64>; 3],
    map: &'r Map,
}

impl Held<'_> {
    /// Tries each way to begin a run.
    fn try_all(&mut self) {
        let mut host = 0;
        for program in [self.program, self.plain, self.jumps] {
            refused(program.run(&mut host, &mut [0; 8]));
            refused(program.test_run(&mut host, &mut [0; 8], 3).map(|run| run.result));
            refused(self.dispatcher.call(program, &mut host, &mut [0; 8]));
            assert!(program.runner(&mut host).is_err());
        }
        refused(self.hook.run(&mut host, &mut [0; 8]));
        assert!(self.hook.runner(&mut host).is_err());
        for runner in &mut self.runners {
            refused(runner.run(&mut [0; 8]));
        }
        assert_eq!(host, 0);
        assert!(self.map.get(&0u32.to_ne_bytes()).is_err(), "maps are the parent's too");
    }
}

#[test]
fn a_child_runs_nothing_while_the_parent_changes_everything() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let modes = [Mode::Interpreter, Mode::Jit];
    for mode in modes.into_iter().filter(|mode| *mode == Mode::Interpreter || Arch::HOST.is_some()) {
        for raw in [false, true] {
            let config = Config::new().mode(mode);
            let engine = Engine::new(config).unwrap();
            let linker = linker(&engine);
            let array = ProgArray::<Raw, u64>::create(&engine, "next", 2).unwrap();
            let load = |name: &str, text: &str| linker.loader::<Raw>().insns(name, assemble(text).unwrap()).unwrap();
            let jumps = linker
                .loader::<Raw>()
                .prog_arrays(&[&array])
                .insns("jumps", assemble("r2 = map[fd:0]\nr3 = 1\ncall 12\nr0 = 1\nexit").unwrap())
                .unwrap();
            let many = || (0..50).map(|i| load("many", &format!("call 1001\nr0 = {i}\nexit"))).collect::<Vec<Prog>>();
            let (first, second) = (many(), many());
            array.set(1, &first[1]).unwrap();
            let (hook, dispatcher) =
                (Hook::new(&engine, HookPolicy::RunAll { result: 0 }).unwrap(), Dispatcher::new(&engine).unwrap());
            let plain = load("plain", "r0 = 5\nexit");
            for program in [&first[2], &plain] {
                hook.attach(program).unwrap();
                dispatcher.attach(program).unwrap();
            }
            let map = Map::create(MapDef::new("values", MapType::Array, 4, 8, 1), engine.domain()).unwrap();
            let mut hosts = [0; 3];
            let (mut parent, mut theirs) = UnixStream::pair().unwrap();
            let child = {
                let [a, b, c] = &mut hosts;
                let runners = [first[0].runner(a).unwrap(), plain.runner(b).unwrap(), hook.runner(c).unwrap()];
                let mut held = Held {
                    program: &first[0],
                    plain: &plain,
                    jumps: &jumps,
                    hook: &hook,
                    dispatcher: &dispatcher,
                    runners,
                    map: &map,
                };
                child(raw, || {
                    held.try_all();
                    theirs.write_all(&[1]).unwrap();
                    // Until the parent says that it has changed everything.
                    theirs.read_exact(&mut [0]).unwrap();
                    for _ in 0..20 {
                        held.try_all();
                    }
                })
            };
            parent.read_exact(&mut [0]).unwrap();
            // The parent drops and overwrites the objects that the child has, and changes the slots.
            hook.replace(&first[2], &second[2]).unwrap();
            dispatcher.detach(&first[2]).unwrap();
            array.set(1, &second[3]).unwrap();
            drop(first);
            engine.domain().synchronize().unwrap();
            engine.reclaim();
            let third = many();
            assert_eq!(jumps.run(&mut 0, &mut [0; 8]).unwrap(), 3);
            parent.write_all(&[1]).unwrap();
            assert_eq!(wait(child), 0, "the child's assertions ({mode:?}, raw: {raw})");
            assert_eq!(third[7].run(&mut 0, &mut [0; 8]).unwrap(), 7);
            assert_eq!(hook.run(&mut 0, &mut [0; 8]).unwrap(), 0);
        }
    }
}

/// A run that waits at the fork goes on in the parent only, also if another thread holds the lock of the list of such
/// runs at the fork.
#[test]
fn a_child_goes_on_with_no_run_that_waits() {
    use std::future::Future;
    use std::task::{Context, Poll, Waker};
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let modes = [Mode::Interpreter, Mode::Jit];
    for mode in modes.into_iter().filter(|mode| *mode == Mode::Interpreter || Arch::HOST.is_some()) {
        let config = Config::new().mode(mode).interruptible(true);
        let engine = Engine::new(config).unwrap();
        let mut linker = Linker::<u64>::new(&engine);
        linker
            .func_async(1001, "wait", async |mut c: bpf_runtime::AsyncCaller<'_, u64>| {
                let mut polls = 0;
                std::future::poll_fn(|_| {
                    polls += 1;
                    *c.host() += 1;
                    if polls < 2 { Poll::Pending } else { Poll::Ready(()) }
                })
                .await;
            })
            .unwrap();
        let insns = assemble("call 1001\nr0 = 6\nexit").unwrap();
        let program = linker.loader::<Raw>().sleepable(true).insns("waits", insns).unwrap();
        let over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(std::sync::atomic::Ordering::Relaxed) {
                    // Takes the locks all the time: more runs than are kept for later.
                    let mut hosts = [0; 80];
                    let mut runs: Vec<_> =
                        hosts.iter_mut().map(|host| Box::pin(program.run_async(host, &mut []))).collect();
                    for run in &mut runs {
                        let _ = run.as_mut().poll(&mut Context::from_waker(Waker::noop()));
                    }
                }
            });
            let mut children = Vec::new();
            for _ in 0..6 {
                let mut hosts = [0; 3];
                let mut cx = Context::from_waker(Waker::noop());
                let [a, b, c] = &mut hosts;
                let mut polled = Box::pin(program.run_async(a, &mut []));
                let mut dropped = Some(Box::pin(program.run_async(b, &mut [])));
                let mut fresh = Box::pin(program.run_async(c, &mut []));
                assert!(polled.as_mut().poll(&mut cx).is_pending());
                assert!(dropped.as_mut().unwrap().as_mut().poll(&mut cx).is_pending());
                let child = || {
                    let mut cx = Context::from_waker(Waker::noop());
                    for run in [&mut polled, &mut fresh] {
                        let Poll::Ready(result) = run.as_mut().poll(&mut cx) else { panic!("it waits") };
                        refused(result);
                    }
                    drop(dropped.take());
                    program.interrupt();
                    engine.interrupt();
                    assert_eq!(engine.async_runs(), 0);
                };
                // By `fork`, since the child frees memory: the other thread may have the allocator's lock.
                // SAFETY: the child allocates, which the C library allows; the parent keeps what the child takes.
                children.push(unsafe { forked(20, child) });
                assert!(matches!(polled.as_mut().poll(&mut cx), Poll::Ready(Ok(6))));
                assert!(matches!(dropped.unwrap().as_mut().poll(&mut cx), Poll::Ready(Ok(6))));
                drop((polled, fresh));
                assert_eq!(hosts, [2, 2, 0]);
                if children.ends_with(&[Ended::Waited]) {
                    break;
                }
            }
            over.store(true, std::sync::atomic::Ordering::Relaxed);
            assert_ended_well(&format!("runs that wait in a forked child ({mode:?})"), &children);
        });
        assert_eq!(engine.async_runs(), 0);
    }
}

/// No code of a run's stack is executed in a child, whatever the run was about to do: the emitted code that its frames
/// return to, and that a backtrace would read, is not mapped there.
#[test]
fn a_child_gives_up_runs_that_were_to_end() {
    use std::future::Future;
    use std::task::{Context, Poll, Waker};
    struct Sets<'a>(&'a AtomicBool, bool);
    impl Drop for Sets<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
            assert!(!self.1, "dropped");
        }
    }
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let modes = [Mode::Interpreter, Mode::Jit];
    for mode in modes.into_iter().filter(|mode| *mode == Mode::Interpreter || Arch::HOST.is_some()) {
        let engine = Engine::new(Config::new().mode(mode).interruptible(true)).unwrap();
        let mut linker = Linker::<(Arc<AtomicBool>, bool)>::new(&engine);
        linker
            .func_async(1001, "wait", async |mut c: bpf_runtime::AsyncCaller<'_, (Arc<AtomicBool>, bool)>| {
                let (dropped, panics) = c.host();
                let _sets = Sets(dropped, *panics);
                std::future::pending::<()>().await;
            })
            .unwrap();
        let waits = assemble("call f\nexit\nf:\ncall 1001\nr0 = 6\nexit").unwrap();
        let waits = linker.loader::<Raw>().sleepable(true).insns("waits", waits).unwrap();
        let turns = assemble("r0 = 0\nagain: r0 += 1\nif r0 != 1000 goto again\nexit").unwrap();
        let yields = linker.loader::<Raw>().yields(true).budget(5000).insns("yields", turns).unwrap();
        let limits = bpf_runtime::RunLimits::new().yield_every(10);
        for (marked, polled, panics) in (0..8).map(|bits| (bits & 1 != 0, bits & 2 != 0, bits & 4 != 0)) {
            let dropped = Arc::<AtomicBool>::default();
            let (mut host, mut other) = ((Arc::clone(&dropped), panics), Default::default());
            let mut cx = Context::from_waker(Waker::noop());
            let mut waiting = Some(Box::pin(waits.run_async(&mut host, &mut [])));
            let mut yielding = Some(Box::pin(yields.run_async_with(&mut other, &mut [], &limits)));
            assert!(waiting.as_mut().unwrap().as_mut().poll(&mut cx).is_pending());
            assert!(yielding.as_mut().unwrap().as_mut().poll(&mut cx).is_pending());
            if marked {
                engine.interrupt();
            }
            let child = || {
                let mut cx = Context::from_waker(Waker::noop());
                for (run, thrown) in [(waiting.take().unwrap(), panics), (yielding.take().unwrap(), false)] {
                    let mut run = Some(run);
                    let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                        if polled {
                            let Poll::Ready(result) = run.as_mut().unwrap().as_mut().poll(&mut cx) else {
                                panic!("it waits")
                            };
                            refused(result);
                        }
                        drop(run.take());
                    }));
                    assert_eq!(ended.is_err(), thrown);
                }
                assert!(dropped.load(Ordering::SeqCst));
            };
            // SAFETY: no other thread of this process is doing anything; the parent keeps what the child takes.
            let ended = unsafe { forked(20, child) };
            assert_eq!(ended, Ended::Well, "{mode:?}, marked {marked}, polled {polled}, panics {panics}");
            assert!(!dropped.load(Ordering::SeqCst));
            let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(waiting)));
            assert_eq!(ended.is_err(), panics);
            drop(yielding);
            assert_eq!(engine.async_runs(), 0);
        }
    }
}

/// The answer of a future that has forked, in the child.
#[derive(Clone, Copy, Debug)]
enum Answer {
    Waits,
    Ready,
    Throws,
}

/// A child that is forked in the first poll of a run's future, on the run's stack, and what that poll answers there.
#[test]
fn a_child_goes_on_with_no_run_whose_first_poll_has_forked() {
    use std::future::{Future, poll_fn};
    use std::task::{Context, Poll, Waker};
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let modes = [Mode::Interpreter, Mode::Jit];
    for mode in modes.into_iter().filter(|mode| *mode == Mode::Interpreter || Arch::HOST.is_some()) {
        let config = Config::new().mode(mode).interruptible(true);
        let engine = Engine::new(config).unwrap();
        let mut linker = Linker::<()>::new(&engine);
        let (forks, child) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicI32::new(-1)));
        // The answer of the first poll in the child, and whether the run was asked to end before the fork.
        let answer = Arc::new(Mutex::new((Answer::Waits, false)));
        let (fork, made, how, of) = (Arc::clone(&forks), Arc::clone(&child), Arc::clone(&answer), engine.clone());
        linker
            .func_async(1001, "forks", move |_: bpf_runtime::AsyncCaller<'_, ()>| {
                let (fork, made, how, of) = (Arc::clone(&fork), Arc::clone(&made), Arc::clone(&how), of.clone());
                poll_fn(move |_| {
                    if !fork.swap(false, Ordering::SeqCst) {
                        return Poll::Ready(());
                    }
                    let (answer, marked) = *how.lock().unwrap();
                    if marked {
                        of.interrupt();
                    }
                    // SAFETY: no other thread of this process is doing anything; the child leaves through `_exit`.
                    let child = unsafe { libc::fork() };
                    made.store(child, Ordering::SeqCst);
                    match answer {
                        Answer::Ready if child == 0 => Poll::Ready(()),
                        // Without the panic hook, which may read the frames below.
                        Answer::Throws if child == 0 => std::panic::resume_unwind(Box::new("thrown")),
                        Answer::Ready | Answer::Throws | Answer::Waits => Poll::Pending,
                    }
                })
            })
            .unwrap();
        let insns = assemble("call 1001\nr0 = 6\nexit").unwrap();
        let program = linker.loader::<Raw>().sleepable(true).insns("forks", insns).unwrap();
        let answers = [Answer::Waits, Answer::Ready, Answer::Throws];
        for (polled, of_child, marked) in (0..12).map(|n| (n % 2 == 0, answers[n / 2 % 3], n / 6 == 1)) {
            *answer.lock().unwrap() = (of_child, marked);
            forks.store(true, Ordering::SeqCst);
            let mut cx = Context::from_waker(Waker::noop());
            let (mut host, mut other) = ((), ());
            let mut run = Box::pin(program.run_async(&mut host, &mut []));
            let first = run.as_mut().poll(&mut cx);
            if child.load(Ordering::SeqCst) == 0 {
                let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                    // SAFETY: ends a child that waits for ever.
                    unsafe { libc::alarm(20) };
                    assert!(first.is_pending());
                    let mut fresh = Box::pin(program.run_async(&mut other, &mut []));
                    let mut thrown_too = false;
                    for run in [&mut fresh, &mut run].into_iter().take(1 + usize::from(polled)) {
                        let poll = || run.as_mut().poll(&mut cx);
                        match std::panic::catch_unwind(std::panic::AssertUnwindSafe(poll)) {
                            Ok(Poll::Ready(result)) => refused(result),
                            Ok(Poll::Pending) => panic!("it waits"),
                            Err(thrown) => {
                                assert!(matches!(of_child, Answer::Throws) && thrown.is::<&str>());
                                thrown_too = true;
                            }
                        }
                    }
                    let dropped = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(run)));
                    assert_eq!(dropped.is_err() || thrown_too, matches!(of_child, Answer::Throws));
                    assert_eq!(engine.async_runs(), 0);
                }));
                // SAFETY: ends the child without running the parent's destructors twice.
                unsafe { libc::_exit(i32::from(result.is_err())) };
            }
            let status = wait(child.load(Ordering::SeqCst));
            assert_eq!(status, 0, "{mode:?}, polled: {polled}, {of_child:?}, marked: {marked}");
            let over = match first {
                Poll::Ready(result) => result,
                Poll::Pending => match run.as_mut().poll(&mut cx) {
                    Poll::Ready(result) => result,
                    Poll::Pending => panic!("it waits"),
                },
            };
            match over {
                Ok(result) => assert!(!marked && result == 6),
                Err(error) => assert!(marked && matches!(error, RunError::Interrupted { .. }), "{error}"),
            }
            drop(run);
            assert_eq!(engine.async_runs(), 0);
        }
    }
}

/// A child that is forked by the destructor of a future that is given up, on the run's stack.
#[test]
fn a_child_is_told_that_it_is_one_where_the_end_of_a_run_has_forked() {
    use std::future::Future;
    use std::task::{Context, Poll, Waker};
    struct Forks(Arc<AtomicI32>);
    impl Drop for Forks {
        fn drop(&mut self) {
            // SAFETY: no other thread of this process is doing anything; the child leaves through `_exit`.
            self.0.store(unsafe { libc::fork() }, Ordering::SeqCst);
        }
    }
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let modes = [Mode::Interpreter, Mode::Jit];
    for mode in modes.into_iter().filter(|mode| *mode == Mode::Interpreter || Arch::HOST.is_some()) {
        let engine = Engine::new(Config::new().mode(mode).interruptible(true)).unwrap();
        let mut linker = Linker::<Arc<AtomicI32>>::new(&engine);
        linker
            .func_async(1001, "forks", async |mut c: bpf_runtime::AsyncCaller<'_, Arc<AtomicI32>>| {
                let _forks = Forks(Arc::clone(c.host()));
                std::future::pending::<()>().await;
            })
            .unwrap();
        let insns = assemble("call 1001\nr0 = 6\nexit").unwrap();
        let program = linker.loader::<Raw>().sleepable(true).insns("forks", insns).unwrap();
        let child = Arc::new(AtomicI32::new(-1));
        let (mut host, mut cx) = (Arc::clone(&child), Context::from_waker(Waker::noop()));
        let mut run = Box::pin(program.run_async(&mut host, &mut []));
        assert!(run.as_mut().poll(&mut cx).is_pending());
        engine.interrupt();
        let Poll::Ready(result) = run.as_mut().poll(&mut cx) else { panic!("it waits") };
        if child.load(Ordering::SeqCst) == 0 {
            let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| refused(result)));
            // SAFETY: ends the child without running the parent's destructors twice.
            unsafe { libc::_exit(i32::from(ended.is_err())) };
        }
        assert_eq!(wait(child.load(Ordering::SeqCst)), 0, "{mode:?}");
        assert!(matches!(result, Err(RunError::Interrupted { .. })), "{result:?}");
    }
}

/// A child that is forked from inside a run does not return into it; and what it makes itself runs.
#[test]
fn a_child_does_not_return_into_its_parents_run() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    if Arch::HOST.is_none() || cfg!(target_arch = "aarch64") {
        return bpf_testkit::skipped("a fork inside a run", &"no JIT, or qemu-user, which ignores MADV_DONTFORK");
    }
    let engine = Engine::new(Config::new()).unwrap();
    let mut linker = Linker::<libc::pid_t>::new(&engine);
    linker
        .func(1001, "fork", |c: &mut Caller<'_, libc::pid_t>| -> u64 {
            // SAFETY: the child makes programs of its own and returns, as it should not.
            let child = unsafe { libc::fork() };
            *c.host() = child;
            if child == 0 {
                // SAFETY: the default action, in place of the test harness's handler.
                unsafe { libc::signal(libc::SIGSEGV, libc::SIG_DFL) };
                let own = Engine::new(Config::new()).unwrap();
                let program = Linker::<()>::new(&own).loader::<Raw>().insns("own", assemble("r0 = 9\nexit").unwrap());
                assert_eq!(program.unwrap().run(&mut (), &mut []).unwrap(), 9);
            }
            0
        })
        .unwrap();
    let program = linker.loader::<Raw>().insns("forks", assemble("call 1001\nr0 = 4\nexit").unwrap()).unwrap();
    let mut host = 0;
    let result = program.run(&mut host, &mut []);
    if host == 0 {
        // SAFETY: a child that got here fails the test by its status.
        unsafe { libc::_exit(1) };
    }
    assert_eq!(result.unwrap(), 4);
    let status = wait(host);
    assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGSEGV, "{status:#x}");
}

/// A value found in a run may be kept beyond it; its memory is shared with the child.
#[test]
fn a_child_reaches_no_value_that_was_found_before() {
    type Found = Option<PinnedValue<u64>>;
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let engine = Engine::new(Config::new()).unwrap();
    let map = Map::create(MapDef::new("values", MapType::Array, 4, 8, 1), engine.domain()).unwrap();
    let pinned: PinnedMap<u32, u64> = PinnedMap::new(&map).unwrap();
    let mut linker = Linker::<Found>::new(&engine);
    linker
        .func(1001, "find", move |c: &mut Caller<'_, Found>| -> Result<(), HelperError> {
            *c.host() = pinned.lookup(c, &0)?;
            Ok(())
        })
        .unwrap();
    let program = linker.loader::<Raw>().insns("finds", assemble("call 1001\nr0 = 0\nexit").unwrap()).unwrap();
    let mut found = None;
    program.run(&mut found, &mut []).unwrap();
    let value = found.unwrap();
    value.set(&7).unwrap();
    for raw in [false, true] {
        let child = child(raw, || {
            assert!(matches!(value.get(), Err(MapError::NoSlot { .. })));
            assert!(matches!(value.set(&9), Err(MapError::NoSlot { .. })));
        });
        assert_eq!(wait(child), 0);
    }
    assert_eq!(value.get().unwrap(), 7);
}

/// Whatever lock another thread of the parent has at the fork: the child has no such thread, and waits for none.
#[test]
fn a_child_asks_for_memory_without_waiting() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let engine = Engine::new(Config::new()).unwrap();
    let account = engine.account("plug-in", 1 << 20);
    let linker = linker(&engine);
    let load = || linker.loader::<Raw>().account(&account).insns("held", assemble("r0 = 5\nexit").unwrap()).unwrap();
    // Long lists, so that they are locked most of the time.
    let _programs: Vec<Prog> = (0..2000).map(|_| load()).collect();
    let _accounts: Vec<_> = (0..2000).map(|_| engine.account("another", 1)).collect();
    let over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for of_engine in [false, true] {
            let (engine, account, over) = (&engine, &account, &over);
            scope.spawn(move || {
                while !over.load(std::sync::atomic::Ordering::Relaxed) {
                    match of_engine {
                        true => assert!(engine.usage().accounts.len() > 2000),
                        false => assert_eq!(account.usage().held.len(), 2000),
                    }
                }
            });
        }
        let mut children = Vec::new();
        for _ in 0..50 {
            let child = || {
                assert!(account.usage().used > 0 && engine.usage().used > 0);
                assert_eq!(engine.account("of the child", 7).usage().limit, 7);
            };
            // SAFETY: the child allocates, which the C library allows, and drops nothing of its parent's.
            children.push(unsafe { forked(60, child) });
            if children.ends_with(&[Ended::Waited]) {
                break;
            }
        }
        over.store(true, std::sync::atomic::Ordering::Relaxed);
        assert_ended_well("memory in a forked child", &children);
    });
}
