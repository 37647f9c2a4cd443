//! What is asked of an image.

use bpf_jit_code::Hardening;

/// The kernel's BPF_DISPATCHER_MAX.
pub const DEFAULT_LIMIT: usize = 48;

/// No image has more entries or programs: inner branches of arm64 reach 1 MiB, and 64 bytes are more than one takes.
pub const MAX_LIMIT: usize = 8192;

/// A program that a tree shall jump to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Where its code starts.
    pub address: usize,
    /// How often it was called, in any unit. If no entry of a tree has hits, the tree is balanced; otherwise the
    /// expected number of compares is least.
    pub hits: u64,
}

/// How images are generated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// A tree knows at most so many entries (and never more than [`MAX_LIMIT`]): those with the most hits, among
    /// equals the first.
    pub limit: usize,
    /// Whether targets of jumps inside a tree start at multiples of 16 bytes. (Programs always do.)
    pub align: bool,
    /// Retpolines for the indirect jump of a tree; landing pads and signed return addresses.
    pub hardening: Hardening,
}

impl Default for Options {
    fn default() -> Self {
        Options { limit: DEFAULT_LIMIT, align: true, hardening: Hardening::default() }
    }
}
