//! Host state that borrows from its run's caller: everything that is run with a state takes one.

use crate::common::engines::engines;
use bpf_runtime::host::{Borrowed, Host, HostState};
use bpf_runtime::instances::Pooled;
use bpf_runtime::observe::RecorderOptions;
use bpf_runtime::{
    AsyncCaller, BpfContext, Caller, Dispatcher, Engine, Hook, HookPolicy, Linker, MapSet, Object, OptLevel, Program,
    Raw, RunError, RunLimits, interface, isa::assemble,
};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// The state of a run. Both references and what they point to are the caller's.
struct Request<'a> {
    reply: &'a mut Vec<u64>,
    table: &'a [u64],
    /// The last entry that was read.
    last: Option<&'a u64>,
}

impl<'a> Request<'a> {
    fn new(reply: &'a mut Vec<u64>, table: &'a [u64]) -> Self {
        Request { reply, table, last: None }
    }

    fn look_up(&mut self, at: u64) -> u64 {
        let entry = &self.table[usize::try_from(at).unwrap() % self.table.len()];
        self.last = Some(entry);
        self.reply.push(*entry);
        *entry
    }
}

struct Requests;

impl HostState for Requests {
    type State<'a> = Request<'a>;
}

type State = Borrowed<Requests>;

/// A linker with a function that looks up the entry of its argument, and adds it to the reply.
fn linker(engine: &Engine) -> Linker<State> {
    let mut linker = Linker::<State>::new(engine);
    linker.func(1001, "look_up", |c: &mut Caller<'_, State>, at: u64| c.host().look_up(at)).unwrap();
    linker
}

const LOOK_UP: &str = "r1 = r2\ncall 1001\nexit";

fn look_up(linker: &Linker<State>) -> Program<Raw, State> {
    linker.loader().insns("look_up", assemble(LOOK_UP).unwrap()).unwrap()
}

#[test]
fn runs_take_a_state_that_borrows() {
    for engine in engines(|config| config.interruptible(true)) {
        let program = look_up(&linker(&engine));
        let table = vec![5, 6, 7];
        let mut reply = Vec::new();
        let mut request = Request::new(&mut reply, &table);
        assert_eq!(program.run(&mut request, &mut [0; 1]).unwrap(), 6);
        // The state is the caller's between runs, and what it borrows lives on.
        assert_eq!(request.last.take(), Some(&table[1]));
        let limits = RunLimits::new().deadline(engine.deadline_in(std::time::Duration::from_secs(9)).unwrap());
        assert_eq!(program.run_with(&mut request, &mut [0; 2], &limits).unwrap(), 7);
        assert_eq!(program.test_run(&mut request, &mut [0; 0], 3).unwrap().result, 5);
        assert_eq!(program.run_timers(&mut request, &mut []).unwrap().ran, 0);
        let typed = program.clone().returning::<u32>();
        assert_eq!(typed.run(&mut request, &mut [0; 1]).unwrap(), 6);
        assert!(std::ptr::eq(request.last.unwrap(), &raw const table[1]));
        assert_eq!(reply, [6, 7, 5, 5, 5, 6]);
    }
}

#[test]
fn a_state_may_be_lent_on_to_a_run_within_the_run() {
    for engine in engines(|config| config) {
        let inner = look_up(&linker(&engine));
        let mut linker = Linker::<State>::new(&engine);
        linker
            .func(1001, "nested", move |c: &mut Caller<'_, State>, at: u64| {
                inner.run(c.host(), &mut vec![0; usize::try_from(at).unwrap()]).unwrap() + 100
            })
            .unwrap();
        let (mut reply, table) = (Vec::new(), [1, 2]);
        let outer = look_up(&linker);
        assert_eq!(outer.run(&mut Request::new(&mut reply, &table), &mut [0; 1]).unwrap(), 102);
        assert_eq!(reply, [2]);
    }
}

#[test]
fn runners_hooks_and_dispatchers_take_one() {
    for engine in engines(|config| config) {
        let program = look_up(&linker(&engine));
        let (mut reply, table) = (Vec::new(), [1, 2, 3]);
        let mut request = Request::new(&mut reply, &table);
        let mut runner = program.runner(&mut request).unwrap();
        assert_eq!(runner.run(&mut [0; 1]).unwrap(), 2);
        let last = runner.with_host(|request| {
            request.reply.push(10);
            request.last.copied()
        });
        assert_eq!(last, Some(2));
        drop(runner);

        let hook = Hook::<Raw, State>::new(&engine, HookPolicy::RunAll { result: 0 }).unwrap();
        hook.attach(&program).unwrap();
        hook.run(&mut request, &mut [0; 2]).unwrap();
        hook.runner(&mut request).unwrap().run(&mut [0; 0]).unwrap();
        let dispatcher = Dispatcher::<Raw, State>::new(&engine).unwrap();
        dispatcher.attach(&program).unwrap();
        dispatcher.call(&program, &mut request, &mut [0; 1]).unwrap();
        assert_eq!(reply, [2, 10, 3, 1, 2]);
    }
}

#[test]
fn modules_pools_and_recorders_take_one() {
    for engine in engines(|config| config) {
        let mut linker = linker(&engine);
        let loader = linker.loader::<Raw>().recordable(true).opt_level(OptLevel::None);
        let program = loader.insns("look_up", assemble(LOOK_UP).unwrap()).unwrap();
        let (mut reply, table) = (Vec::new(), [1, 2, 3]);
        let mut request = Request::new(&mut reply, &table);
        let mut recorder = program.recorder(RecorderOptions::new()).unwrap();
        assert_eq!(recorder.run(&mut request, &mut [0; 2]).unwrap(), 3);

        let object = Object::parse(include_bytes!("../objects/policy.o")).unwrap();
        linker.func_named("unused", |_: &mut Caller<'_, State>| ()).unwrap();
        let ops = PolicyOps::compile(linker.loader(), &object, "small").unwrap();
        let pool = ops.module().pool(1).unwrap();
        let lent: Pooled<State> = pool.take().unwrap();
        assert_eq!(lent.maps().count(), 0);
        assert_eq!(reply, [3]);
    }
}

/// A connection to be given a backend.
#[derive(BpfContext, Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
struct Conn {
    port: u32,
    #[bpf(writable)]
    seen: u32,
}

/// Which backend a connection goes to.
#[interface]
trait Policy {
    fn pick(&mut self, conn: &mut Conn) -> Result<u32, RunError>;

    fn done(&mut self, conn: &mut Conn) -> Result<(), RunError> {
        conn.seen = 1;
        Ok(())
    }

    fn weigh(&mut self, conn: &mut Conn) -> Result<i64, RunError> {
        Ok(i64::from(self.pick(conn)?) + 100)
    }
}

#[test]
fn interfaces_take_one() {
    for engine in engines(|config| config) {
        let object = Object::parse(include_bytes!("../objects/policy.o")).unwrap();
        let maps = MapSet::for_object(&engine, &object).unwrap();
        let ops = PolicyOps::load(linker(&engine).loader(), &object, "full", maps).unwrap();
        let (mut reply, table) = (Vec::new(), [1]);
        let mut request = Request::new(&mut reply, &table);
        let mut conn = Conn { port: 7, seen: 0 };
        for _ in 0..2 {
            assert_eq!(ops.with(&mut request).pick(&mut conn).unwrap(), 3);
        }
        assert!(request.last.is_none());
    }
}

/// Yields once.
async fn once() {
    let mut asked = false;
    poll_fn(|_| if std::mem::replace(&mut asked, true) { Poll::Ready(()) } else { Poll::Pending }).await;
}

#[cfg(native)]
#[test]
fn runs_that_wait_take_one() {
    for engine in engines(|config| config) {
        let mut linker = Linker::<State>::new(&engine);
        linker
            .func_async(1001, "look_up", async |mut c: AsyncCaller<'_, State>, at: u64| -> u64 {
                let before = c.with_host(|request| request.look_up(at));
                once().await;
                c.with_host(|request| before + 10 * request.last.copied().unwrap_or_default())
            })
            .unwrap();
        let loader = linker.loader::<Raw>().sleepable(true);
        let program = loader.insns("look_up", assemble(LOOK_UP).unwrap()).unwrap();
        let hook = Hook::<Raw, State>::sleepable(&engine, HookPolicy::RunAll { result: 0 }).unwrap();
        hook.attach(&program).unwrap();
        let (mut reply, table) = (Vec::new(), [1, 2, 3]);
        let mut request = Request::new(&mut reply, &table);
        let mut cx = Context::from_waker(Waker::noop());
        {
            let mut bytes = [0; 2];
            let mut run = pin!(sent(program.run_async(&mut request, &mut bytes[..])));
            assert!(run.as_mut().poll(&mut cx).is_pending());
            assert!(matches!(run.poll(&mut cx), Poll::Ready(Ok(33))));
        }
        assert_eq!(request.last, Some(&3));
        {
            let mut bytes = [0; 1];
            let mut run = pin!(sent(hook.run_async(&mut request, &mut bytes[..])));
            assert!(run.as_mut().poll(&mut cx).is_pending());
            assert!(run.poll(&mut cx).is_ready());
        }
        {
            // A run may be dropped while it waits.
            let mut bytes = [0; 0];
            let mut run = pin!(program.run_async(&mut request, &mut bytes[..]));
            assert!(run.as_mut().poll(&mut cx).is_pending());
        }
        assert_eq!(request.last, Some(&1));
        assert_eq!(reply, [3, 2, 1]);
    }
}

fn sent<T: Send>(of: T) -> T {
    of
}

/// A family whose states stay on their thread.
struct Local;

impl HostState for Local {
    type State<'a> = Rc<&'a str>;
}

#[test]
fn states_need_not_be_sent() {
    fn shared<T: Send + Sync>(_: &T) {}
    for engine in engines(|config| config) {
        let mut linker = Linker::<Borrowed<Local>>::new(&engine);
        linker.func(1001, "length", |c: &mut Caller<'_, Borrowed<Local>>| c.host().len() as u64).unwrap();
        let program = linker.loader::<Raw>().insns("length", assemble("call 1001\nexit").unwrap()).unwrap();
        shared(&program);
        let text = String::from("four");
        assert_eq!(program.run(&mut Rc::new(text.as_str()), &mut []).unwrap(), 4);
    }
}

/// Runs a program of any host type.
fn any<H: Host + ?Sized>(program: &Program<Raw, H>, state: &mut H::State<'_>) -> u64 {
    program.run(state, &mut [0; 1]).unwrap()
}

/// Runs a program whose host type borrows nothing, which is then the state's type too.
fn owned<H: 'static>(program: &Program<Raw, H>, state: &mut H) -> u64 {
    any(program, state) + program.run(state, &mut [0; 1]).unwrap()
}

#[test]
fn code_may_be_generic_over_host_types() {
    for engine in engines(|config| config) {
        let (mut reply, table) = (Vec::new(), [1, 2]);
        assert_eq!(any(&look_up(&linker(&engine)), &mut Request::new(&mut reply, &table)), 2);
        let mut linker = Linker::<u64>::new(&engine);
        linker.func(1001, "add", |c: &mut Caller<'_, u64>, n: u64| *c.host() += n).unwrap();
        let program = linker.loader::<Raw>().insns("add", assemble(LOOK_UP).unwrap()).unwrap();
        let mut sum = 40;
        owned(&program, &mut sum);
        assert_eq!(sum, 42);
    }
}
