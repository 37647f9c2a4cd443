//! An attribute after the derive changes the struct: the code generated for the old one does not compile with it.
use bpf_runtime::{BpfContext, ContextBytes};
use macro_rules_attribute::apply;

macro_rules! make_pointer {
    ($(#[$meta:meta])* struct $name:ident { $first:ident: $ty:ty $(, $rest:ident: $other:ty)* $(,)? }) => {
        $(#[$meta])* struct $name { $first: &'static u64 $(, $rest: $other)* }
    };
}
macro_rules! make_writable {
    ($(#[$meta:meta])* struct $name:ident<'p> { $first:ident: $ty:ty $(,)? }) => {
        $(#[$meta])* struct $name<'p> { $first: bpf_runtime::ContextBytesMut<'p> }
    };
}
macro_rules! add_field {
    ($(#[$meta:meta])* struct $name:ident { $($field:ident: $ty:ty),* $(,)? }) => {
        $(#[$meta])* struct $name { $($field: $ty,)* secret: [u8; 0] }
    };
}
macro_rules! rename_field {
    ($(#[$meta:meta])* struct $name:ident { $first:ident: $ty:ty $(,)? }) => {
        $(#[$meta])* struct $name { other: $ty }
    };
}
macro_rules! make_generic {
    ($(#[$meta:meta])* struct $name:ident { $first:ident: $ty:ty $(,)? }) => {
        $(#[$meta])* struct $name<T = &'static $ty> { $first: T }
    };
}

#[derive(BpfContext)]
#[repr(C)]
#[apply(make_pointer)]
struct Pointer {
    address: u64,
    value: u64,
}

#[derive(BpfContext)]
#[repr(C)]
#[apply(make_writable)]
struct Writable<'p> {
    body: ContextBytes<'p>,
}

#[derive(BpfContext)]
#[repr(C)]
#[apply(add_field)]
struct Added {
    value: u64,
}

#[derive(BpfContext)]
#[repr(C)]
#[apply(rename_field)]
struct Renamed {
    value: u64,
}

#[derive(BpfContext)]
#[repr(C)]
#[apply(make_generic)]
struct Generic {
    value: u64,
}

fn main() {}
