//! The input of an image: entries, limits and options.

use bpf_jit_code::Hardening;

/// The kernel's BPF_DISPATCHER_MAX.
pub const DEFAULT_LIMIT: usize = 48;

/// The largest number of entries or programs of an image: inner branches of arm64 reach 1 MiB, and an entry takes
/// fewer than 64 bytes.
pub const MAX_LIMIT: usize = 8192;

/// A program that a tree jumps to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The address of its first instruction.
    pub address: usize,
    /// The number of calls, in any unit. If no entry of a tree has hits, the tree is balanced; otherwise the expected
    /// number of compares is minimal.
    pub hits: u64,
}

/// The options for generating images.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// The largest number of entries of a tree (never more than [`MAX_LIMIT`]). The entries with the most hits are
    /// chosen, among equals the first.
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
