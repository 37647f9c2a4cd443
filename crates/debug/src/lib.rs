//! Describes emitted code to unwinders, profilers and debuggers.
//!
//! Problem: to tools that inspect a process from outside, and to the process's own backtraces, emitted code is
//! anonymous memory: without names or lines, and without a way from one of its frames to the caller's. Approach: each
//! piece of placed code is described to a [`Registry`] by a [`Unit`]: names, offsets, source lines and frame changes,
//! all plain data. The registry passes it on to the requested tools: the process's unwinder (`.eh_frame` through
//! `__register_frame`), perf (a perf map, or a jitdump with lines and frames), GDB (an ELF image through its JIT
//! interface), and [`Registry::symbolize`].
//!
//! Invariants: a unit is known to tools from [`Registry::add`] until its [`Registered`] is dropped, except in files,
//! which are append-only. Files are opened when the registry is made, so that later calls cannot fail. A failed write
//! is recorded for [`Registry::failure`] and ends all writing. In a forked child nothing is written or removed,
//! because files and descriptors are the parent's.
#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(not(test), warn(clippy::cast_possible_truncation))]
#![cfg_attr(not(feature = "tools"), allow(dead_code, reason = "tools read it, which this build does not have"))]

#[cfg(not(feature = "tools"))]
mod absent;
#[cfg(feature = "tools")]
mod dwarf;
#[cfg(feature = "tools")]
mod frames;
#[cfg(feature = "tools")]
mod gdb;
#[cfg(feature = "tools")]
mod jitdump;
#[cfg(feature = "tools")]
mod perf_map;
#[cfg(feature = "tools")]
mod places;
mod registry;
#[cfg(all(test, feature = "tools"))]
mod tests;
#[cfg(feature = "tools")]
mod types;
mod unit;
#[cfg(feature = "tools")]
mod variables;
mod walk;

pub use registry::{Location, Options, Registered, Registry};
pub use unit::{Function, Line, Unit};
pub use walk::walk;

use std::path::PathBuf;

/// The reason why a registry could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file could not be created.
    #[error("cannot create {}: {source}", .path.display())]
    File {
        /// The file's path.
        path: PathBuf,
        /// The operating system's error.
        r#source: std::io::Error,
    },
    /// perf finds a jitdump by an executable mapping of it, and the system refused that mapping (for example on a
    /// file system mounted `noexec`).
    #[error("cannot map {} executable, by which perf would find it: {source}", .path.display())]
    Map {
        /// The file's path.
        path: PathBuf,
        /// The operating system's error.
        r#source: std::io::Error,
    },
    /// A requested tool is not part of this build.
    #[error("built without the feature `tools` (of bpf-runtime: `debug`), which unwinders, perf and GDB need")]
    NotBuilt,
    /// This architecture has no emitted code.
    #[error("there is no emitted code on this architecture")]
    UnsupportedHost,
}
