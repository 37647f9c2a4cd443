//! An attribute after the derive makes a union, which safe code can leave uninitialised.
use bpf_runtime::BpfContext;
use macro_rules_attribute::apply;

macro_rules! make_union {
    ($(#[$meta:meta])* struct $name:ident { $first:ident: $ty:ty $(,)? }) => {
        $(#[$meta])* union $name { $first: $ty, nothing: () }
    };
}

#[derive(BpfContext)]
#[repr(C)]
#[apply(make_union)]
struct Union {
    value: u64,
}

fn main() {}
