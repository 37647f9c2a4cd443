//! A struct in a context needs its own derive, and the number of byte fields, counted through structs, is limited.
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
