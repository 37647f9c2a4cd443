//! An attribute after the derive moves the fields, by their order or by the struct's representation.
use bpf_runtime::BpfContext;
use macro_rules_attribute::apply;

macro_rules! swap {
    ($(#[$meta:meta])* struct $name:ident { $first:ident: $ty:ty, $second:ident: $other:ty $(,)? }) => {
        $(#[$meta])* struct $name { $second: $other, $first: $ty }
    };
}
macro_rules! pack {
    ($(#[$meta:meta])* struct $name:ident $body:tt) => {
        $(#[$meta])* #[repr(packed)] struct $name $body
    };
}
macro_rules! align {
    ($(#[$meta:meta])* struct $name:ident $body:tt) => {
        $(#[$meta])* #[repr(align(64))] struct $name $body
    };
}

#[derive(BpfContext)]
#[repr(C)]
#[apply(swap)]
struct Swapped {
    first: u32,
    second: u32,
}

#[derive(BpfContext)]
#[repr(C)]
#[apply(pack)]
struct Packed {
    first: u32,
    second: u32,
}

#[derive(BpfContext)]
#[repr(C)]
#[apply(align)]
struct Aligned {
    value: u64,
}

fn main() {}
