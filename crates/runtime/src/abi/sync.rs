//! The primitives of the protocol by which runs that wait are woken and ended.
//!
//! `crates/parking` compiles the files of the protocol with loom's in their place, and explores the interleavings with
//! at most three preemptions.

/// Whether a signal handler has interrupted a section of bpf-quiesce.
pub(super) use bpf_quiesce::interrupted as interrupted_in_domain;
pub(super) use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering, compiler_fence, fence};
pub(super) use std::sync::{Mutex, MutexGuard};
