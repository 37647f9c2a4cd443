//! A struct in a context is described by its own derive, and there is an end to the fields of bytes, counted through structs.
use bpf_runtime::{BpfContext, ContextBytes};

#[repr(C)]
struct Plain {
    value: u64,
}

#[derive(BpfContext)]
#[repr(C)]
struct Outer {
    plain: Plain,
}

#[derive(BpfContext)]
#[repr(C)]
struct Three<'p> {
    a: ContextBytes<'p>,
    b: ContextBytes<'p>,
    c: ContextBytes<'p>,
}

#[derive(BpfContext)]
#[repr(C)]
struct Nine<'p> {
    a: Three<'p>,
    b: Three<'p>,
    c: Three<'p>,
}

fn main() {}
