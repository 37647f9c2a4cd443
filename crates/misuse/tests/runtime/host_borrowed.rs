//! Functions that keep a part of a state that borrows, or store into it what the state's lender would outlive.
use bpf_runtime::host::{Borrowed, HostState};
use bpf_runtime::{AsyncCaller, Caller, Config, Engine, Linker, Program, Raw};
use std::rc::Rc;
use std::sync::Mutex;

struct Request<'a> {
    text: &'a str,
    more: Option<&'a mut String>,
}

struct Requests;
impl HostState for Requests {
    type State<'a> = Request<'a>;
}
type State = Borrowed<Requests>;

static KEPT: Mutex<&str> = Mutex::new("");

fn main() {
    let engine = Engine::new(Config::new()).unwrap();
    let mut linker = Linker::<State>::new(&engine);
    // Kept beyond the run.
    let _ = linker.func(1, "keep", |c: &mut Caller<'_, State>| *KEPT.lock().unwrap() = c.host().text);
    // A local of the function.
    let _ = linker.func(2, "local", |c: &mut Caller<'_, State>| {
        let text = String::from("gone");
        c.host().text = &text;
    });
    // The caller's own.
    let _ = linker.func(3, "own", |c: &mut Caller<'_, State>| {
        let name = c.program().unwrap_or_default();
        c.host().text = name;
    });
    // An argument.
    let _ = linker.func(4, "argument", |c: &mut Caller<'_, State>, bytes: &[u8]| {
        c.host().text = std::str::from_utf8(bytes).unwrap_or_default();
    });
    // A part of the state leaves its closure, and a local goes into it.
    let _ = linker.func_async(5, "leave", async |mut c: AsyncCaller<'_, State>| {
        let mut text = "";
        c.with_host(|state| text = state.text);
    });
    let _ = linker.func_async(6, "enter", async |mut c: AsyncCaller<'_, State>| {
        let mut more = String::new();
        c.with_host(|state| state.more = Some(&mut more));
    });
}

/// A state that borrows is lent by `with_host` only.
fn waits(mut c: AsyncCaller<'_, State>) {
    c.host();
}

/// A caller of another lifetime.
fn shorter<'a: 'b, 'b>(c: Caller<'a, State>) -> Caller<'b, State> {
    c
}

/// A state is gone when it is used.
fn freed(program: &Program<Raw, State>) {
    let mut request = Request { text: "", more: None };
    {
        let text = String::new();
        request.text = &text;
        let _ = program.run(&mut request, &mut []);
    }
    let _ = program.run(&mut request, &mut []);
}

/// A run that is sent, over a state that is not.
struct Local;
impl HostState for Local {
    type State<'a> = Rc<&'a str>;
}

fn sent(program: &Program<Raw, Borrowed<Local>>) {
    fn send<T: Send>(_: T) {}
    send(program.run_async(&mut Rc::new(""), &mut []));
}
