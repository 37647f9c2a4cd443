//! Direct jumps in place of indirect calls, updated live.
//!
//! Problem: a host that calls programs through pointers pays for an indirect branch: a retpoline where those are
//! needed, a misprediction where targets change. Approach: generated code, an [`Image`], that is rebuilt whenever the
//! set of programs changes.
//!
//! * A *compare tree* ([`Image::tree`]) gets the address of the program to run, compares it with those it knows and
//!   jumps straight to the one that is equal. An address it does not know is jumped to indirectly. So a tree is right
//!   about every address at all times, also when it is out of date: it never jumps anywhere but where it was told to.
//! * A *chain* ([`Image::chain`]) calls a list of programs one after the other, with tests of their verdicts between.
//!
//! [`LiveImage`] replaces an image under traffic, [`Dispatcher`] keeps a tree over reference-counted entries.
//!
//! Images follow docs/abi.md: all argument registers and the hidden argument arrive at the program as they were. A tree
//! expects the address of the program in rax (x86-64) or x16 (arm64), which carry no argument, and overwrites r10 (x14,
//! x17).
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

pub use chain::{Link, Policy, Verdicts};
pub use image::Image;
pub use live::{Current, DetachError, Dispatcher, LiveImage, Observer, StagedImage, Stats};
pub use options::{DEFAULT_LIMIT, Entry, MAX_LIMIT, Options};

/// What the images of this process are made for; `None` where there are none: on other architectures, and in builds
/// without the feature `emit`.
pub const HOST: Option<bpf_jit_code::Arch> = if cfg!(feature = "emit") { bpf_jit_code::Arch::HOST } else { None };

/// An offset in an image, or a number of its programs: [`MAX_LIMIT`] programs, and some bytes for each.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "what is counted is limited; and debug builds check it")]
pub(crate) const fn small(number: usize) -> u32 {
    debug_assert!(number <= u32::MAX as usize);
    number as u32
}
