//! BPF maps for JITed programs and Rust threads at the same time.
//!
//! Programs hold a [`MapHeader`] pointer and call the functions of [`program`] (or inline array lookups from the
//! header's layout). Rust code holds a [`Map`] and copies keys and values in and out. Both use one memory, which is
//! accessed only by atomic words. A map belongs to a [`bpf_quiesce::Domain`]: its execution slots are the "CPUs" of
//! per-CPU maps and own the per-thread resources of other maps. Its grace periods delay the reuse of memory that
//! programs may still read.
//!
//! This crate knows nothing of code: prog arrays live in the runtime.

#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(not(test), warn(clippy::cast_possible_truncation))]
#![cfg_attr(
    loom,
    allow(dead_code, unused_imports, unreachable_pub, reason = "only what loom explores is used under loom")
)]

#[cfg(not(loom))]
mod arena;
#[cfg(not(loom))]
mod arena_shape;
#[cfg(not(loom))]
mod array;
#[cfg(not(loom))]
mod bloom;
#[cfg(not(loom))]
mod create;
#[cfg(not(loom))]
mod def;
#[cfg(not(loom))]
mod dump;
mod errno;
#[cfg(not(loom))]
mod error;
#[cfg(all(test, not(loom)))]
mod failures;
#[cfg(not(loom))]
mod freeze;
#[cfg(not(loom))]
mod gate;
#[cfg(not(loom))]
mod hash;
/// The part of the hash that loom explores.
#[cfg(loom)]
#[allow(dead_code, reason = "its users are not compiled under loom")]
mod hash {
    mod chunk;
    mod free_list;
    mod key;
    #[cfg(test)]
    mod loom_tests;
    mod table;
}
#[cfg(not(loom))]
mod header;
#[cfg(not(loom))]
mod host;
#[cfg(not(loom))]
mod insn_array;
mod lock;
#[cfg(not(loom))]
mod map;
mod mem;
#[cfg(not(loom))]
mod nested;
mod num;
#[cfg(not(loom))]
mod ops;
#[cfg(not(loom))]
pub mod owned;
#[cfg(not(loom))]
pub mod program;
#[cfg(not(loom))]
mod queue;
#[cfg(not(loom))]
mod redirect;
#[cfg(not(loom))]
mod reset;
#[cfg(not(loom))]
mod retire;
#[cfg(not(loom))]
mod ring;
#[cfg(not(loom))]
mod slots;
#[cfg(not(loom))]
mod socket;
#[doc(hidden)]
pub mod speculation;
mod sync;
#[cfg(not(loom))]
mod trie;
#[cfg(not(loom))]
pub mod typed;
#[cfg(not(loom))]
mod value;

#[cfg(not(loom))]
pub use bpf_os::memory::page_size;
#[cfg(all(feature = "tokio", target_os = "linux", not(loom)))]
pub use ring::stream::RingStream;
#[cfg(not(loom))]
pub use {
    arena::Arena,
    arena_shape::ArenaShape,
    create::CreateOptions,
    def::{Kind, MapDef, MapType, flags, implemented_type, implemented_types, update},
    dump::Dump,
    errno::Errno,
    error::MapError,
    header::{DeleteFn, LookupFn, MapHeader, UpdateFn},
    host::{Batch, Iter},
    map::{Map, WeakMap},
    ops::Cursor,
    redirect::RedirectEntry,
    ring::consumer::{Record, RingBuf, open as open_perf_entry},
    ring::user::{Sample, UserRingBuf},
    ring::{query, wakeup},
};
