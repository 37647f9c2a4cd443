//! BPF maps for JITed programs and Rust threads at the same time.
//!
//! Programs hold a [`MapHeader`] pointer and call the functions of [`program`] (or inline array lookups from the header's
//! layout); Rust code holds a [`Map`] and copies keys and values in and out. Both meet in the same memory, which is
//! only ever accessed by atomic words ([`mem`]). A map belongs to a [`bpf_quiesce::Domain`]: its execution slots are the "CPUs" of per-CPU
//! maps and own the per-thread resources of the others, and its grace periods delay what programs may still use.
//!
//! `maps` knows no code: prog arrays live in the runtime.

#[cfg(not(loom))]
mod array;
#[cfg(not(loom))]
mod def;
mod errno;
#[cfg(not(loom))]
mod error;
#[cfg(not(loom))]
mod hash;
#[cfg(not(loom))]
mod header;
mod lock;
#[cfg(not(loom))]
mod map;
mod mem;
#[cfg(not(loom))]
mod ops;
#[cfg(not(loom))]
pub mod program;
mod sync;
mod sys;
#[cfg(not(loom))]
mod value;

#[cfg(not(loom))]
pub use {
    def::{MapDef, MapType, flags, update},
    errno::Errno,
    error::MapError,
    header::{LookupFn, MapHeader},
    map::{CreateOptions, Map},
};
