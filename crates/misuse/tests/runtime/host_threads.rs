//! Programs run on any thread, and so do their host functions.
use bpf_runtime::{Caller, Config, Engine, Linker};
use std::cell::Cell;

fn main() {
    let engine = Engine::new(Config::new()).unwrap();
    let mut linker = Linker::<()>::new(&engine);
    let calls = Cell::new(0);
    let _ = linker.func(1, "count", move |_: &mut Caller<'_, ()>| calls.set(calls.get() + 1));
}
