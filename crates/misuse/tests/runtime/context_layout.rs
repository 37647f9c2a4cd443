//! Layouts that are not contexts: padding is uninitialised memory, and the ends of bytes belong to the host.
use bpf_runtime::{BpfContext, ContextBytesMut};

#[derive(BpfContext)]
#[repr(C)]
struct Padded {
    kind: u8,
    value: u32,
}

#[derive(BpfContext)]
#[repr(C)]
struct Ends<'p> {
    #[bpf(writable)]
    body: ContextBytesMut<'p>,
}

fn main() {}
