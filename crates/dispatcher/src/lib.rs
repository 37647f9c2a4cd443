//! Direct jumps in place of indirect calls, updated live.
//!
//! Problem: a host that calls programs through pointers pays for an indirect branch: a retpoline where those are
//! needed, a misprediction where targets change. Approach: generated code, an [`Image`], that is rebuilt whenever the
//! set of programs changes.
//!
//! * A *compare tree* ([`Image::tree`]) gets the address of the program to run, compares it with the addresses it
//!   knows and jumps directly to the equal one. It jumps to an unknown address indirectly. So a tree is correct for
//!   every address, even when it is out of date: it never jumps to an address that its caller did not name.
//! * A *chain* ([`Image::chain`]) calls a list of programs in order, and tests their verdicts in between.
//!
//! [`LiveImage`] replaces an image under traffic, [`Dispatcher`] keeps a tree over reference-counted entries.
//!
//! Images follow docs/book/reference/abi.md: the program gets all argument registers and the hidden argument unchanged.
//! A tree expects the address of the program in rax (x86-64) or x16 (arm64), which carry no argument, and overwrites
//! r10 (x14, x17).
#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(not(test), warn(clippy::cast_possible_truncation))]
#![forbid(unsafe_code)]
#![cfg_attr(not(feature = "emit"), allow(dead_code, reason = "generators read it, which this build does not have"))]

#[cfg(feature = "emit")]
mod arm64;
mod chain;
#[cfg(feature = "emit")]
mod finish;
mod image;
mod live;
mod options;
mod plan;
mod tree;
#[cfg(feature = "emit")]
mod x64;

pub use chain::{HookPolicy, Link, Verdicts};
pub use image::Image;
pub use live::{Current, DetachError, Dispatcher, LiveImage, Observer, StagedImage, Stats};
pub use options::{DEFAULT_LIMIT, Entry, MAX_LIMIT, Options};

/// The architecture for which this process makes images; `None` on other architectures, and in builds without the
/// feature `emit`.
pub const HOST: Option<bpf_jit_code::Arch> = if cfg!(feature = "emit") { bpf_jit_code::Arch::HOST } else { None };

/// Converts an offset in an image, or the number of a program: there are at most [`MAX_LIMIT`] programs, with some
/// bytes for each.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "what is counted is limited; and debug builds check it")]
pub(crate) const fn small(number: usize) -> u32 {
    debug_assert!(number <= u32::MAX as usize);
    number as u32
}
