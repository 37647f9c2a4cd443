//! Sleepable programs: runs that give their thread away while a host's future is not ready.

#[path = "../common/mod.rs"]
mod common;
#[path = "../../../object/tests/common/mod.rs"]
mod elf;

mod attacks;
mod contained;
mod destructors;
mod ends;
mod equal;
mod hooks;
mod inside;
mod interfaces;
mod ready;
mod yields;

use bpf_runtime::{
    AsyncCaller, BpfContext, Caller, Config, Dispatcher, Engine, HelperError, Hook, HookPolicy, Linker, LoadError,
    MapSet, Object, OptLevel, OwnedBytes, Plan, ProgArray, Program, Raw, RunError,
    error::ProgArrayError,
    hook::{DispatcherError, HookError, PlanError},
    host::{InterfaceError, Pinned},
    interface,
    isa::assemble,
    maps::{Map, MapDef, MapType},
    memory::WhenFull,
    run::RunAsync,
};
use common::engines::engines;
use elf::{Elf, FUNC};
use std::future::{Future, poll_fn};
use std::marker::PhantomData;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

/// Wakes a thread.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut cx = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut cx) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

fn poll<F: Future + ?Sized>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// Ready when it is polled for the n-th time after this.
async fn after(polls: u64) {
    let mut left = polls;
    poll_fn(|cx| {
        if left == 0 {
            return Poll::Ready(());
        }
        left -= 1;
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Sets a flag when it is dropped.
struct Dropped<'a>(&'a AtomicBool);

impl Drop for Dropped<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// `call 1001` waits for as many polls as r1 says, and returns how often it was called.
fn waits(engine: &Engine) -> Linker<u64> {
    let mut linker = Linker::<u64>::new(engine);
    linker
        .func_async(1001, "wait", async |mut c: AsyncCaller<'_, u64>, polls: u64| -> u64 {
            *c.host() += 1;
            after(polls).await;
            *c.host()
        })
        .unwrap();
    linker
}

fn load<H: 'static>(linker: &Linker<H>, text: &str) -> Program<Raw, H> {
    linker.loader().sleepable(true).insns("test", assemble(text).unwrap()).unwrap_or_else(|e| panic!("{e}"))
}

/// Waits once, and returns 7.
const ONCE: &str = "r1 = 1\ncall 1001\nr0 = 7\nexit";

#[test]
fn a_run_waits_and_goes_on_where_it_was() {
    for engine in engines(|config| config) {
        let linker = waits(&engine);
        // Five rounds, with numbers in registers and on the stack; of the third on a number more is waited for.
        let text = "r6 = 0\nr7 = 1\nr8 = r2\n*(u64 *)(r10 - 8) = 5\nagain:\nr1 = r6\ncall 1001\nr7 *= 3\nr7 += r0\n\
                    r6 += 1\nr1 = *(u64 *)(r10 - 8)\nif r6 != 5 goto again\nr0 = r7\nr0 += r1\nr0 += r8\nexit";
        let program = load(&linker, text);
        let expected = (1..=5u64).fold(1, |sum, called| sum * 3 + called) + 5 + 3;
        for _ in 0..3 {
            let (mut host, mut bytes) = (0, [0; 3]);
            let mut polls = 0;
            let mut run = Box::pin(program.run_async(&mut host, &mut bytes));
            let result = loop {
                polls += 1;
                if let Poll::Ready(result) = poll(run.as_mut()) {
                    break result;
                }
                assert_eq!(engine.async_runs(), 1);
                // Nothing is held.
                engine.domain().synchronize().unwrap();
            };
            assert_eq!((result.unwrap(), polls), (expected, 1 + 1 + 2 + 3 + 4));
            assert!(matches!(poll(run.as_mut()), Poll::Ready(Err(RunError::Over))));
            drop(run);
            assert_eq!((host, engine.async_runs()), (5, 0));
            assert_eq!(block_on(program.run_async(&mut host, &mut bytes)).unwrap(), {
                (6..=10u64).fold(1, |sum, called| sum * 3 + called) + 5 + 3
            });
        }
    }
}

#[test]
fn arguments_and_results_are_as_the_types_say() {
    for engine in engines(|config| config) {
        let mut linker = Linker::<String>::new(&engine);
        let limits: Pinned<[u32; 4]> = Pinned::new(&engine, &[10, 20, 30, 40]);
        linker
            .func_async(1001, "none", async |_: AsyncCaller<'_, String>| after(1).await)
            .unwrap()
            .func_async(
                1002,
                "fetch",
                async |mut c: AsyncCaller<'_, String>, key: OwnedBytes, value: &mut [u8]| -> u32 {
                    after(2).await;
                    c.host().push_str(std::str::from_utf8(&key).unwrap());
                    value.fill(9);
                    after(1).await;
                    value.len() as u32
                },
            )
            .unwrap()
            .func_async(
                1003,
                "small",
                async |_: AsyncCaller<'_, String>, a: u8, b: i32, c: u64| -> Result<i64, HelperError> {
                    after(u64::from(a)).await;
                    Ok(i64::from(b) - c as i64)
                },
            )
            .unwrap()
            .func_async(1004, "limits", move |_: AsyncCaller<'_, String>, polls: u64| {
                let limits = limits.clone();
                async move {
                    after(polls).await;
                    Some(limits)
                }
            })
            .unwrap();
        // The context and the stack, in and out.
        let text = "r6 = r1\nif r2 != 8 goto out\ncall 1001\nif r0 != 0 goto out\n*(u64 *)(r10 - 8) = 0\nr1 = r6\nr2 = 3\n\
                    r3 = r10\nr3 += -8\nr4 = 8\ncall 1002\nif r0 != 8 goto out\nr1 = r10\nr1 += -8\nr2 = 0\nr3 = r6\nr4 = 2\n\
                    call 1002\nif r0 != 2 goto out\nr1 = 257\nr2 = -5\nr3 = 1\ncall 1003\nif r0 != -6 goto out\nr1 = 1\n\
                    call 1004\nif r0 == 0 goto out\nr0 = *(u32 *)(r0 + 8)\nr1 = *(u8 *)(r10 - 3)\nr0 += r1\nexit\n\
                    out:\nr0 = 0\nexit";
        let program = load(&linker, text);
        let (mut host, mut bytes) = (String::new(), *b"key.....");
        assert_eq!(block_on(program.run_async(&mut host, &mut bytes)).unwrap(), 39);
        assert_eq!((host.as_str(), bytes), ("key", [9, 9, b'y', b'.', b'.', b'.', b'.', b'.']));
    }
}

#[test]
fn a_run_goes_on_on_other_threads_and_in_other_slots() {
    for engine in engines(|config| config) {
        let linker = waits(&engine);
        let slots = Map::create(MapDef::new("slots", MapType::PerCpuArray, 4, 8, 1), engine.domain()).unwrap();
        // In each round: one more for the slot that the run is in, the number of which is noted.
        let text = "r6 = 0\nr7 = 0\nagain:\n*(u32 *)(r10 - 4) = 0\nr1 = map[fd:0]\nr2 = r10\nr2 += -4\ncall 1\n\
                    if r0 == 0 goto out\nr1 = *(u64 *)(r0 + 0)\nr1 += 1\n*(u64 *)(r0 + 0) = r1\ncall 8\nr7 <<= 8\nr7 |= r0\n\
                    r1 = 1\ncall 1001\nr6 += 1\nif r6 != 4 goto again\nout:\nr0 = r7\nexit";
        let insns = assemble(text).unwrap();
        let program = linker.loader::<Raw>().sleepable(true).maps(&[&slots]).insns("slots", insns).unwrap();
        let mut host = 0;
        let mut run = Box::pin(program.run_async(&mut host, &mut []));
        assert!(poll(run.as_mut()).is_pending());
        let mut seen = 0;
        for held in 0..4u32 {
            // As many slots are taken by others.
            let barrier = std::sync::Barrier::new(held as usize + 2);
            let done = thread::scope(|s| {
                for _ in 0..=held {
                    s.spawn(|| {
                        let guard = engine.domain().enter().unwrap();
                        barrier.wait();
                        barrier.wait();
                        drop(guard);
                    });
                }
                let run = run.as_mut();
                barrier.wait();
                let polled = s.spawn(move || (poll(run), thread::current().id())).join().unwrap();
                barrier.wait();
                assert_ne!(polled.1, thread::current().id());
                polled.0
            });
            if let Poll::Ready(result) = done {
                seen = result.unwrap();
                assert_eq!(held, 3);
            }
        }
        let noted: Vec<u32> = (0..4).rev().map(|i| (seen >> (8 * i)) as u32 & 0xff).collect();
        assert!(noted.iter().any(|slot| *slot != noted[0]), "slots {noted:?}");
        let values = slots.get(&[0; 4]).unwrap().unwrap();
        for slot in 0..8u32 {
            let at = 8 * slot as usize;
            let counted = u64::from_ne_bytes(values[at..at + 8].try_into().unwrap());
            assert_eq!(counted, noted.iter().filter(|noted| **noted == slot).count() as u64, "{noted:?}, slot {slot}");
        }
    }
}

#[test]
fn while_it_waits_others_run_in_its_slot() {
    for engine in engines(|config| config.max_slots(1).when_full(WhenFull::Error)) {
        let linker = waits(&engine);
        let program = load(&linker, ONCE);
        let plain = linker.loader::<Raw>().insns("plain", assemble("r0 = 3\nexit").unwrap()).unwrap();
        let mut hosts = [0; 20];
        let mut bytes = [[0; 2]; 20];
        let mut runs: Vec<_> =
            hosts.iter_mut().zip(&mut bytes).map(|(host, bytes)| Box::pin(program.run_async(host, bytes))).collect();
        assert!(runs.iter_mut().all(|run| poll(run.as_mut()).is_pending()));
        assert_eq!(engine.async_runs(), 20);
        thread::scope(|s| assert_eq!(s.spawn(|| plain.run(&mut 0, &mut [])).join().unwrap().unwrap(), 3));
        // No slot is left: the run is given up, with a typed error.
        let (go, gone) = (std::sync::Barrier::new(2), std::sync::Barrier::new(2));
        let refused = thread::scope(|s| {
            let domain = engine.domain();
            s.spawn(|| {
                let guard = domain.enter().unwrap();
                go.wait();
                gone.wait();
                drop(guard);
            });
            go.wait();
            let polled = poll(runs[0].as_mut());
            gone.wait();
            polled
        });
        assert!(matches!(refused, Poll::Ready(Err(RunError::Enter(_)))), "{refused:?}");
        for run in &mut runs[1..] {
            assert!(matches!(poll(run.as_mut()), Poll::Ready(Ok(7))));
        }
        assert_eq!(engine.async_runs(), 0);
    }
}

#[test]
fn what_cannot_wait_refuses_sleepable_programs() {
    for engine in engines(|config| config) {
        let linker = waits(&engine);
        let program = load(&linker, ONCE);
        let error = program.run(&mut 0, &mut []).unwrap_err();
        assert!(matches!(&error, RunError::Sleepable { program } if program == "test"), "{error}");
        let limits = bpf_runtime::RunLimits::new();
        assert!(matches!(program.run_with(&mut 0, &mut [], &limits), Err(RunError::Sleepable { .. })));
        assert!(matches!(program.runner(&mut 0).unwrap().run(&mut []), Err(RunError::Sleepable { .. })));
        assert!(program.test_run(&mut 0, &mut [], 1).is_err());
        let hook = Hook::<Raw, u64>::new(&engine, HookPolicy::RunAll { result: 0 }).unwrap();
        let error = hook.attach(&program).unwrap_err();
        assert!(matches!(&error, HookError::Sleepable { program } if program.to_string() == "`test`"), "{error}");
        assert!(matches!(Plan::new().attach(&hook, &program).commit(), Err(PlanError::Hook { .. })));
        let dispatcher = Dispatcher::<Raw, u64>::new(&engine).unwrap();
        let error = dispatcher.attach(&program).unwrap_err();
        assert!(matches!(&error, DispatcherError::Sleepable { program } if program.to_string() == "`test`"), "{error}");
        assert!(matches!(dispatcher.call(&program, &mut 0, &mut [0; 4]), Err(RunError::Sleepable { .. })));
        let array = ProgArray::<Raw, u64>::create(&engine, "jumps", 1).unwrap();
        let error = array.set(0, &program).unwrap_err();
        assert!(matches!(&error, ProgArrayError::Sleepable { program } if program == "test"), "{error}");
        assert!(matches!(Plan::new().set(&array, 0, &program).commit(), Err(PlanError::ProgArray { .. })));
        assert_eq!((hook.programs().len(), array.get(0).is_none()), (0, true));
        let jumps = assemble("r2 = map[fd:0]\nr3 = 0\ncall 12\nr0 = 1\nexit").unwrap();
        let error = linker.loader::<Raw>().sleepable(true).prog_arrays(&[&array]).insns("jumps", jumps).unwrap_err();
        assert!(matches!(error, LoadError::Verifier { .. }), "{error}");

        let insns = || assemble(ONCE).unwrap();
        let error = linker.loader::<Raw>().insns("plain", insns()).unwrap_err();
        assert!(error.to_string().contains("might sleep, but the program is not sleepable"), "{error}");
        for error in [
            linker.loader::<Raw>().interpreted(true).insns("plain", insns()).unwrap_err(),
            linker.loader::<Raw>().sleepable(true).interpreted(true).insns("plain", insns()).unwrap_err(),
            // SAFETY: it is refused.
            unsafe { linker.loader::<Raw>().unverified(true) }.insns("plain", insns()).unwrap_err(),
            // SAFETY: it is refused.
            unsafe { linker.loader::<Raw>().sleepable(true).unverified(true) }
                .insns("plain", assemble("r0 = 0\nexit").unwrap())
                .unwrap_err(),
        ] {
            assert!(matches!(error, LoadError::SleepNeedsVerifier { .. }), "{error}");
        }
        // Any program may be run so.
        let plain = linker.loader::<Raw>().insns("plain", assemble("r0 = r2\nexit").unwrap()).unwrap();
        assert_eq!(block_on(plain.run_async(&mut 0, &mut [0; 9])).unwrap(), 9);
    }
}

/// The context of `objects/policy.c`.
#[derive(BpfContext, Clone, Copy, Debug)]
#[repr(C)]
struct Conn {
    port: u32,
    #[bpf(writable)]
    seen: u32,
}

#[interface]
trait Choice {
    fn pick(&mut self, conn: &mut Conn) -> Result<u32, RunError>;

    fn done(&mut self, conn: &mut Conn) -> Result<(), RunError> {
        conn.seen = 1;
        Ok(())
    }

    fn weigh(&mut self, conn: &mut Conn) -> Result<i64, RunError> {
        Ok(i64::from(conn.seen))
    }
}

#[test]
fn no_method_of_an_interface_is_sleepable() {
    for engine in engines(|config| config) {
        let object = Object::parse(include_bytes!("../objects/policy.o")).unwrap();
        let linker = Linker::<()>::new(&engine);
        let maps = || MapSet::for_object(&engine, &object).unwrap();
        let refused = |result: Result<(), InterfaceError>| {
            let error = result.unwrap_err();
            assert!(matches!(&error, InterfaceError::Sleepable { table, .. } if table == "small"), "{error}");
        };
        refused(ChoiceOps::load(linker.loader().sleepable(true), &object, "small", maps()).map(drop));
        if let Ok(module) = ChoiceOps::compile(linker.loader().sleepable(true), &object, "small") {
            refused(module.make(|options| options).map(drop));
        }
        let ops = ChoiceOps::load(linker.loader(), &object, "small", maps()).unwrap();
        assert_eq!(ops.with(&mut ()).pick(&mut Conn { port: 7, seen: 0 }).unwrap(), 9);
    }
}

/// `r1 = 1; call 1001; exit`
const WAITS: [u8; 24] = [0xb7, 1, 0, 0, 1, 0, 0, 0, 0x85, 0, 0, 0, 0xe9, 3, 0, 0, 0x95, 0, 0, 0, 0, 0, 0, 0];

#[test]
fn sections_say_which_programs_are_sleepable() {
    let object = |section: &str, code: &[u8]| {
        let mut elf = Elf::new();
        let section = elf.code(section, code);
        elf.symbol("main", section, FUNC, 0, code.len() as u64);
        Object::parse(&elf.build()).unwrap()
    };
    for engine in engines(|config| config) {
        let linker = waits(&engine);
        let load = |object: &Object, sleepable| {
            let maps = MapSet::for_object(&engine, object).unwrap();
            let instance = linker.loader::<Raw>().sleepable(sleepable).object(object, maps)?;
            Ok::<_, LoadError>(instance.program::<Raw>("main")?)
        };
        for section in ["uprobe.s/function", "lsm.s/file_open", "fentry.s", "xdp.s"] {
            let program = load(&object(section, &WAITS), false).unwrap_or_else(|e| panic!("{section}: {e}"));
            assert_eq!(block_on(program.run_async(&mut 0, &mut [])).unwrap(), 1, "{section}");
            assert!(matches!(program.run(&mut 0, &mut []), Err(RunError::Sleepable { .. })), "{section}");
            // A program without calls that wait runs synchronously, too.
            let plain = load(&object(section, &elf::RETURN_1), false).unwrap();
            assert_eq!(plain.run(&mut 0, &mut []).unwrap(), 1, "{section}");
        }
        for section in ["uprobe", "uprobe/function.s", "xdp.sleeps", "xdps"] {
            let error = load(&object(section, &WAITS), false).unwrap_err();
            assert!(error.to_string().contains("the program is not sleepable"), "{section}: {error}");
            let asked = load(&object(section, &WAITS), true).unwrap();
            assert_eq!(block_on(asked.run_async(&mut 0, &mut [])).unwrap(), 1, "{section}");
        }
        // Instances of a module are as sleepable as a load.
        let object = object("uprobe.s/function", &WAITS);
        if let Ok(module) = linker.loader::<Raw>().compile(&object) {
            let instances = [(); 2].map(|()| module.instance().make().unwrap());
            let programs = instances.each_ref().map(|instance| instance.program::<Raw>("main").unwrap());
            let (mut a, mut b) = (0, 10);
            let mut first = pin!(programs[0].run_async(&mut a, &mut []));
            let mut second = pin!(programs[1].run_async(&mut b, &mut []));
            assert!(poll(first.as_mut()).is_pending());
            assert!(poll(second.as_mut()).is_pending());
            // A run that waits is in its instance.
            assert!(instances[0].reset().is_err());
            assert!(matches!(poll(second), Poll::Ready(Ok(11))));
            assert!(matches!(poll(first), Poll::Ready(Ok(1))));
            instances[0].reset().unwrap();
            assert!(module.serialize().unwrap_err().to_string().contains("sleepable"));
        }
    }
}

#[test]
fn the_stacks_of_runs_that_are_over_are_unmapped() {
    for engine in engines(|config| config) {
        let linker = waits(&engine);
        let program = load(&linker, ONCE);
        let mapped = || bpf_os::inject::mapped_bytes();
        let before = mapped();
        let parked = |count: usize| {
            let mut hosts = vec![0; count];
            let mut runs: Vec<_> = hosts.iter_mut().map(|host| Box::pin(program.run_async(host, &mut []))).collect();
            assert!(runs.iter_mut().all(|run| poll(run.as_mut()).is_pending()));
            let most = mapped();
            // Half of them go on, half are given up.
            for run in runs.iter_mut().step_by(2) {
                assert!(matches!(poll(run.as_mut()), Poll::Ready(Ok(7))));
            }
            drop(runs);
            most
        };
        let stack = parked(1) - before;
        let most = parked(1000);
        assert!(most - before >= 20 * stack, "{most} bytes for 1000 runs, of which {stack} are a mapping");
        assert_eq!(mapped(), most, "stacks are kept for later runs");
        assert_eq!(parked(3), most, "stacks are used again");
        engine.reclaim();
        assert!(mapped() - before <= stack, "{} bytes for the spare stack of a thread", mapped() - before);
        assert!(parked(3) - before <= 2 * stack);
    }
}

/// A run is `Send` if its host and its data are, and only then: this does not compile if one of the last two is.
#[test]
fn runs_are_sent_as_their_host_and_data_may_be() {
    trait Ambiguous<A> {
        fn holds() -> bool {
            true
        }
    }
    struct IfSend;
    impl<T> Ambiguous<()> for T {}
    impl<T: Send> Ambiguous<IfSend> for T {}
    fn sent<T: Send>(_: PhantomData<T>) -> bool {
        true
    }
    assert!(sent(PhantomData::<RunAsync<'static, &'static mut [u8], u64>>));
    assert!(<RunAsync<'static, &'static mut [u8], Rc<u64>> as Ambiguous<_>>::holds());
    assert!(<RunAsync<'static, Rc<u64>, u64> as Ambiguous<_>>::holds());
}

#[test]
fn a_dropped_run_is_given_up() {
    for engine in engines(|config| config) {
        static GONE: AtomicBool = AtomicBool::new(false);
        GONE.store(false, Ordering::SeqCst);
        let mut linker = Linker::<Vec<u64>>::new(&engine);
        linker
            .func_async(1001, "note", async |mut c: AsyncCaller<'_, Vec<u64>>, polls: u64| {
                let _dropped = Dropped(&GONE);
                after(polls).await;
                c.host().push(polls);
            })
            .unwrap();
        let program = load(&linker, "r1 = 0\ncall 1001\nr1 = 2\ncall 1001\nr1 = 0\ncall 1001\nr0 = 0\nexit");
        // The run, which would end with the third poll, is dropped after no poll, one and two.
        for polls in 0..3 {
            let mut host = Vec::new();
            let mut bytes = [0; 4];
            let mut run = Box::pin(program.run_async(&mut host, &mut bytes));
            for _ in 0..polls {
                assert!(poll(run.as_mut()).is_pending());
            }
            GONE.store(false, Ordering::SeqCst);
            assert_eq!(engine.async_runs(), usize::from(polls != 0));
            drop(run);
            assert_eq!(GONE.load(Ordering::SeqCst), polls != 0, "the future is dropped with the run");
            assert_eq!(host, [0][..usize::from(polls != 0)]);
            assert_eq!(engine.async_runs(), 0);
        }
        // On another thread than that which it has waited on.
        let mut host = Vec::new();
        let mut run = Box::pin(program.run_async(&mut host, &mut []));
        assert!(poll(run.as_mut()).is_pending());
        thread::scope(|s| s.spawn(move || drop(run)).join().unwrap());
        assert_eq!(engine.async_runs(), 0);
        let mut host = Vec::new();
        assert_eq!(block_on(program.run_async(&mut host, &mut [])).unwrap(), 0);
        assert_eq!(host, [0, 2, 0]);
    }
}

#[test]
fn a_forgotten_run_is_never_touched_again() {
    for engine in engines(|config| config.interruptible(true)) {
        let linker = waits(&engine);
        let program = load(&linker, ONCE);
        for _ in 0..3 {
            let mut host = Box::new(0);
            let mut bytes = vec![0; 16];
            let mut run = Box::pin(program.run_async(&mut host, &mut bytes));
            assert!(poll(run.as_mut()).is_pending());
            std::mem::forget(run);
        }
        assert_eq!(engine.async_runs(), 3);
        program.interrupt();
        engine.interrupt();
        engine.domain().synchronize().unwrap();
        assert_eq!(block_on(program.run_async(&mut 0, &mut [])).unwrap(), 7);
        assert_eq!(engine.async_runs(), 3);
    }
}

#[test]
fn a_panic_reaches_the_poller_and_ends_the_run() {
    for engine in engines(|config| config) {
        let mut linker = Linker::<u64>::new(&engine);
        linker
            .func_async(1001, "wait", async |mut c: AsyncCaller<'_, u64>, polls: u64| {
                after(polls).await;
                *c.host() += 1;
                assert!(polls == 0 || *c.host() != 2, "the second one that waits");
            })
            .unwrap()
            .func_async(1002, "never", |_: AsyncCaller<'_, u64>| -> std::future::Ready<u64> { panic!("at once") })
            .unwrap()
            .func_async(1003, "drops", async |_: AsyncCaller<'_, u64>| {
                struct Loud;
                impl Drop for Loud {
                    fn drop(&mut self) {
                        panic!("as it is dropped");
                    }
                }
                let _loud = Loud;
                after(9).await;
            })
            .unwrap();
        let message =
            |panic: Box<dyn std::any::Any + Send>| panic.downcast_ref::<&str>().unwrap_or(&"other").to_string();
        let wrapped = |program: &Program<Raw, u64>| {
            let mut host = 0;
            let mut bytes = [0; 4];
            let mut run = Box::pin(program.run_async(&mut host, &mut bytes));
            let thrown = loop {
                match std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| poll(run.as_mut()))) {
                    Ok(Poll::Pending) => {}
                    Ok(Poll::Ready(result)) => panic!("{result:?}"),
                    Err(thrown) => break message(thrown),
                }
            };
            assert!(matches!(poll(run.as_mut()), Poll::Ready(Err(RunError::Over))));
            thrown
        };
        for text in
            ["r1 = 1\ncall 1001\nr1 = 1\ncall 1001\nr0 = 0\nexit", "r1 = 0\ncall 1001\nr1 = 3\ncall 1001\nr0 = 0\nexit"]
        {
            assert_eq!(wrapped(&load(&linker, text)), "the second one that waits");
        }
        assert_eq!(wrapped(&load(&linker, "call 1002\nexit")), "at once");
        assert_eq!(engine.async_runs(), 0);
        let loud = load(&linker, "call 1003\nr0 = 0\nexit");
        let mut host = 0;
        let mut run = Box::pin(loud.run_async(&mut host, &mut []));
        assert!(poll(run.as_mut()).is_pending());
        let thrown = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(run))).unwrap_err();
        assert_eq!((message(thrown).as_str(), engine.async_runs()), ("as it is dropped", 0));
        let good = load(&linker, "r1 = 2\ncall 1001\nr0 = 5\nexit");
        assert_eq!(block_on(good.run_async(&mut 0, &mut [])).unwrap(), 5);
    }
}

#[test]
fn errors_after_a_wait_say_where_they_were() {
    for engine in engines(|config| config.budget(100)) {
        let mut linker = waits(&engine);
        linker
            .func(1002, "fail", |_: &mut Caller<'_, u64>, code: u64| -> Result<u64, HelperError> {
                if code == 3 { panic!("three") } else { Err(HelperError::new(RunError::TooDeep { limit: 1 })) }
            })
            .unwrap()
            .func_async(1003, "refuse", async |_: AsyncCaller<'_, u64>, polls: u64| -> Result<u64, HelperError> {
                after(polls).await;
                Err(HelperError::new(RunError::TooDeep { limit: 2 }))
            })
            .unwrap();
        // In a function of the program.
        let text = |code: &str| format!("r1 = 1\ncall f\nexit\nf:\nr6 = 2\nr1 = 1\ncall 1001\nr1 = 2\n{code}\nexit");
        for (code, insn) in [("call 1002", 7), ("r1 = 3\ncall 1002", 8), ("call 1003", 7), ("r1 = 0\ncall 1003", 8)] {
            let program = load(&linker, &text(code));
            for _ in 0..3 {
                let error = block_on(program.run_async(&mut 0, &mut [])).unwrap_err();
                let RunError::Host { insn: at, origin, .. } = &error else { panic!("{error}") };
                assert_eq!(at.map(|at| at.0), Some(insn), "{code}: {error}");
                let origin = origin.as_ref().unwrap();
                assert_eq!((origin.program.as_str(), origin.callers.len()), ("test", 1), "{code}: {error}");
            }
        }
        // A budget goes on: five rounds of a loop, a call and a wait of one each.
        let insns = assemble("r6 = 0\nagain: r1 = 1\ncall 1001\nr6 += 1\nif r6 != 5 goto again\nr0 = 0\nexit").unwrap();
        let spent = |budget| {
            let program = linker.loader::<Raw>().sleepable(true).budget(budget).insns("budget", insns.clone()).unwrap();
            block_on(program.run_async(&mut 0, &mut []))
        };
        assert_eq!(spent(9).unwrap(), 0);
        assert!(matches!(spent(8), Err(RunError::Budget { .. })));
        assert_eq!(engine.async_runs(), 0);
    }
}

#[test]
fn a_run_is_interrupted_while_it_waits() {
    for engine in engines(|config| config.interruptible(true)) {
        let linker = waits(&engine);
        let text = "r6 = 0\nagain: r1 = 1\ncall 1001\nr6 += 1\nif r6 != 5 goto again\nr0 = 0\nexit";
        let (program, other) = (load(&linker, text), load(&linker, text));
        let (mut a, mut b) = (0, 0);
        let mut interrupted = pin!(program.run_async(&mut a, &mut []));
        let mut goes_on = pin!(other.run_async(&mut b, &mut []));
        assert!(poll(interrupted.as_mut()).is_pending());
        assert!(poll(goes_on.as_mut()).is_pending());
        thread::scope(|s| s.spawn(|| program.interrupt()).join().unwrap());
        assert!(matches!(poll(interrupted), Poll::Ready(Err(RunError::Interrupted { .. }))));
        assert!(matches!(block_on(goes_on), Ok(0)));
        let mut c = 0;
        let mut all = pin!(other.run_async(&mut c, &mut []));
        assert!(poll(all.as_mut()).is_pending());
        engine.interrupt();
        assert!(matches!(block_on(all), Err(RunError::Interrupted { .. })));
    }
}

#[test]
fn there_are_only_so_many() {
    for engine in engines(|config| config.max_async_runs(2)) {
        let linker = waits(&engine);
        let program = load(&linker, ONCE);
        let (mut a, mut b, mut c) = (0, 0, 0);
        let mut first = Box::pin(program.run_async(&mut a, &mut []));
        let mut second = Box::pin(program.run_async(&mut b, &mut []));
        assert!(poll(first.as_mut()).is_pending());
        assert!(poll(second.as_mut()).is_pending());
        let error = block_on(program.run_async(&mut c, &mut [])).unwrap_err();
        assert!(matches!(error, RunError::TooManyAsleep { limit: 2 }), "{error}");
        drop(first);
        assert_eq!(block_on(program.run_async(&mut c, &mut [])).unwrap(), 7);
        assert_eq!(block_on(second).unwrap(), 7);
    }
    // Runs are limited, not stacks: a thread that has ended a run takes no place of others.
    for engine in engines(|config| config.max_async_runs(1)) {
        let linker = waits(&engine);
        let program = load(&linker, ONCE);
        let run = || block_on(program.run_async(&mut 0, &mut []));
        let (go_on, goes_on) = std::sync::mpsc::channel();
        let (done, is_done) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for () in goes_on {
                    done.send(run()).unwrap();
                }
            });
            let elsewhere = || {
                go_on.send(()).unwrap();
                is_done.recv().unwrap()
            };
            assert_eq!((elsewhere().unwrap(), engine.async_runs()), (7, 0));
            let mut host = 0;
            let mut waits = Box::pin(program.run_async(&mut host, &mut []));
            assert!(poll(waits.as_mut()).is_pending());
            for refused in [elsewhere(), run()] {
                assert!(matches!(refused, Err(RunError::TooManyAsleep { limit: 1 })), "{refused:?}");
            }
            drop(waits);
            assert_eq!(elsewhere().unwrap(), 7);
            assert_eq!(run().unwrap(), 7);
            drop(go_on);
        });
    }
    for engine in engines(|config| config) {
        let linker = waits(&engine);
        let program = load(&linker, ONCE);
        let mut host = 0;
        for call in [bpf_os::Call::Mmap, bpf_os::Call::Mprotect] {
            let mut run = Box::pin(program.run_async(&mut host, &mut []));
            let (polled, reached) = bpf_os::inject::failing(call, 0, || poll(run.as_mut()));
            assert!(reached && matches!(polled, Poll::Ready(Err(RunError::NoStack { .. }))), "{polled:?}");
            assert_eq!(engine.async_runs(), 0);
        }
        assert_eq!(block_on(program.run_async(&mut host, &mut [])).unwrap(), 7);
    }
}

#[test]
fn a_run_keeps_what_it_needs() {
    for engine in engines(|config| config) {
        let kept = Arc::new(AtomicU64::new(1));
        let mut linker = Linker::<()>::new(&engine);
        let count = Arc::clone(&kept);
        linker
            .func_async(1001, "add", move |_: AsyncCaller<'_, ()>, by: u64| {
                let count = Arc::clone(&count);
                async move {
                    after(1).await;
                    count.fetch_add(by, Ordering::SeqCst)
                }
            })
            .unwrap();
        let array = Map::create(MapDef::new("array", MapType::Array, 4, 8, 1), engine.domain()).unwrap();
        array.set(&[0; 4], &40u64.to_ne_bytes()).unwrap();
        let text = "r6 = map[fd:0][0]+0\nr1 = 2\ncall 1001\nr1 = *(u64 *)(r6 + 0)\nr7 = r0\nr7 += r1\nr1 = 3\ncall 1001\n\
                    r0 += r7\nexit";
        let insns = assemble(text).unwrap();
        let program = linker.loader::<Raw>().sleepable(true).maps(&[&array]).insns("keeps", insns).unwrap();
        let (mut host, mut bytes) = ((), [0; 1]);
        let mut run = Box::pin(program.run_async(&mut host, &mut bytes));
        assert!(poll(run.as_mut()).is_pending());
        let domain = Arc::clone(engine.domain());
        drop((program, array, linker, engine));
        domain.synchronize().unwrap();
        domain.reclaim();
        assert_eq!(Arc::strong_count(&kept), 3, "the closure, and its future");
        assert_eq!(block_on(run).unwrap(), 1 + 40 + 3);
        domain.synchronize().unwrap();
        domain.reclaim();
        assert_eq!((Arc::strong_count(&kept), kept.load(Ordering::SeqCst)), (1, 6));
    }
}

#[test]
fn runs_are_nested_on_either_side_of_a_wait() {
    for engine in engines(|config| config) {
        let inner = {
            let linker = waits(&engine);
            load(&linker, "r1 = 2\ncall 1001\nr0 += 100\nexit")
        };
        let plain = {
            let linker = Linker::<()>::new(&engine);
            linker.loader::<Raw>().insns("plain", assemble("r0 = r2\nexit").unwrap()).unwrap()
        };
        let mut linker = Linker::<()>::new(&engine);
        let (waiting, blocking) = (inner.clone(), inner);
        linker
            .func_async(1001, "waits", move |_: AsyncCaller<'_, ()>| {
                let inner = waiting.clone();
                async move {
                    let (mut host, mut bytes) = (0, [0; 2]);
                    after(1).await;
                    inner.run_async(&mut host, &mut bytes[..]).await.map_err(HelperError::new)
                }
            })
            .unwrap()
            .func(1002, "blocks", move |_: &mut Caller<'_, ()>| {
                block_on(blocking.run_async(&mut 0, &mut [])).map_err(HelperError::new)
            })
            .unwrap()
            .func(1003, "plain", move |_: &mut Caller<'_, ()>| {
                plain.run(&mut (), &mut [0; 5]).map_err(HelperError::new)
            })
            .unwrap();
        let text = "call 1001\nr6 = r0\ncall 1002\nr6 += r0\ncall 1003\nr6 += r0\ncall 1001\nr0 += r6\nexit";
        let program = load(&linker, text);
        for _ in 0..3 {
            assert_eq!(block_on(program.run_async(&mut (), &mut [])).unwrap(), 3 * 101 + 5);
        }
        // Given up at each poll.
        for polls in 1..7 {
            let mut host = ();
            let mut run = Box::pin(program.run_async(&mut host, &mut []));
            for _ in 0..polls {
                let _ = poll(run.as_mut());
            }
            drop(run);
            assert_eq!(engine.async_runs(), 0, "{polls}");
        }
    }
}

#[test]
fn runs_in_runs_end_with_an_error() {
    type Slot = Arc<Mutex<Option<Program<Raw, ()>>>>;
    for engine in engines(|config| config) {
        let again: Slot = Arc::default();
        let mut linker = Linker::<()>::new(&engine);
        let own = Arc::clone(&again);
        linker
            .func(1001, "again", move |_: &mut Caller<'_, ()>| {
                let program = own.lock().unwrap().clone().unwrap();
                block_on(program.run_async(&mut (), &mut [])).map_err(HelperError::new)
            })
            .unwrap();
        let program = load(&linker, "call 1001\nexit");
        *again.lock().unwrap() = Some(program.clone());
        let error = block_on(program.run_async(&mut (), &mut [])).unwrap_err();
        let mut text = String::new();
        let mut at: Option<&dyn std::error::Error> = Some(&error);
        while let Some(error) = at {
            text += &error.to_string();
            at = error.source();
        }
        assert!(text.contains("nested more than"), "{text}");
        assert_eq!(engine.async_runs(), 0);
        again.lock().unwrap().take();
    }
}

#[test]
fn tiers_compile_once() {
    let engine = Engine::new(Config::new()).unwrap();
    let linker = waits(&engine);
    let insns = assemble(ONCE).unwrap();
    let program = linker.loader::<Raw>().sleepable(true).opt_level(OptLevel::Tiered).insns("tiered", insns).unwrap();
    assert!(!program.is_slow());
    assert_eq!(block_on(program.run_async(&mut 0, &mut [])).unwrap(), 7);
}

/// The host state of many runs.
struct Host {
    wakers: Arc<Mutex<Vec<Waker>>>,
    open: Arc<AtomicBool>,
    number: u64,
}

#[test]
fn many_wait_and_none_is_lost() {
    const RUNS: usize = if cfg!(debug_assertions) { 4000 } else { 20_000 };
    for engine in engines(|config| config) {
        let mut linker = Linker::<Host>::new(&engine);
        let wakers: Arc<Mutex<Vec<Waker>>> = Arc::default();
        let open = Arc::new(AtomicBool::new(false));
        linker
            .func_async(1001, "gate", async |mut c: AsyncCaller<'_, Host>| {
                let Host { wakers, open, number } = c.host();
                poll_fn(|cx| {
                    if open.load(Ordering::SeqCst) {
                        return Poll::Ready(());
                    }
                    wakers.lock().unwrap().push(cx.waker().clone());
                    Poll::Pending
                })
                .await;
                *number += 1;
                *number
            })
            .unwrap();
        let program = load(&linker, "r6 = r2\ncall 1001\nr6 *= 2\nr0 += r6\nexit");
        /// A task of the tiny executor below.
        struct Task {
            future: Mutex<Option<Pin<Box<dyn Future<Output = u64> + Send>>>>,
            queue: Arc<Mutex<Vec<Arc<Task>>>>,
        }
        impl Wake for Task {
            fn wake(self: Arc<Self>) {
                let queue = Arc::clone(&self.queue);
                queue.lock().unwrap().push(self);
            }
        }
        let queue: Arc<Mutex<Vec<Arc<Task>>>> = Arc::default();
        for i in 0..RUNS {
            let (program, wakers, open) = (program.clone(), Arc::clone(&wakers), Arc::clone(&open));
            let future = async move {
                let mut host = Host { wakers, open, number: i as u64 };
                let mut bytes = [0u8; 5];
                program.run_async(&mut host, &mut bytes[..i % 6]).await.unwrap()
            };
            let task = Task { future: Mutex::new(Some(Box::pin(future))), queue: Arc::clone(&queue) };
            queue.lock().unwrap().push(Arc::new(task));
        }
        let (sum, ended) = (AtomicU64::new(0), AtomicUsize::new(0));
        let work = || {
            while let Some(task) = { queue.lock().unwrap().pop() } {
                let waker = Waker::from(Arc::clone(&task));
                let mut slot = task.future.lock().unwrap();
                let Some(future) = slot.as_mut() else { continue };
                if let Poll::Ready(result) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
                    *slot = None;
                    sum.fetch_add(result, Ordering::SeqCst);
                    ended.fetch_add(1, Ordering::SeqCst);
                }
            }
        };
        let both = || {
            thread::scope(|s| {
                s.spawn(work);
                s.spawn(work);
            });
        };
        both();
        assert_eq!((ended.load(Ordering::SeqCst), engine.async_runs()), (0, RUNS));
        engine.domain().synchronize().unwrap();
        open.store(true, Ordering::SeqCst);
        let waiting = std::mem::take(&mut *wakers.lock().unwrap());
        assert_eq!(waiting.len(), RUNS);
        waiting.into_iter().for_each(Waker::wake);
        both();
        let expected: u64 = (0..RUNS as u64).map(|i| i + 1 + 2 * (i % 6)).sum();
        assert_eq!((ended.load(Ordering::SeqCst), sum.load(Ordering::SeqCst)), (RUNS, expected));
        assert_eq!(engine.async_runs(), 0);
    }
}
