//! Definitions that are not contexts by their syntax.
use bpf_runtime::BpfContext;

#[derive(BpfContext)]
#[repr(C)]
struct Generic<T> {
    value: T,
}

#[derive(BpfContext)]
struct Rust {
    value: u32,
}

#[derive(BpfContext)]
#[repr(C, packed)]
struct Packed {
    value: u32,
}

#[derive(BpfContext)]
#[repr(C)]
struct Tuple(u32);

#[derive(BpfContext)]
#[repr(C)]
enum Enum {
    A,
}

#[derive(BpfContext)]
#[repr(C)]
struct Misspelt {
    #[bpf(writeable)]
    value: u32,
}

#[derive(BpfContext)]
#[repr(C)]
#[bpf(name = "no name")]
struct Named {
    value: u32,
}

fn main() {}
