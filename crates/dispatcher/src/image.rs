//! Images: what is asked for, and the code that comes of it.

use crate::plan::Plan;
use crate::{arm64, x64};
use bpf_jit_code::{Arch, Code, Hardening, Symbol};

/// The kernel's BPF_DISPATCHER_MAX.
pub const DEFAULT_LIMIT: usize = 48;

/// A program that a tree shall jump to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Where its code starts.
    pub address: usize,
    /// How often it was called, in any unit. If no entry of a tree has hits, the tree is balanced; otherwise the expected number of compares is
    /// least.
    pub hits: u64,
}

/// How images are generated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// A tree knows at most so many entries: those with the most hits, among equals the first.
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

/// What the verdicts of a chain's programs do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Policy {
    /// The first verdict other than `pass` ends the chain and is its result; `pass` if there is none. (libxdp and tcx, with one verdict to
    /// continue on.)
    FirstVerdict {
        /// The verdict that leaves the decision to the next program.
        pass: u64,
    },
    /// All programs run, the last one's verdict is the result.
    LastWins {
        /// The result of an empty chain.
        empty: u64,
    },
    /// All programs run, their verdicts are ignored: observers.
    RunAll {
        /// The result.
        result: u64,
    },
}

impl Policy {
    /// The result of a chain without programs.
    pub fn of_empty(self) -> u64 {
        match self {
            Policy::FirstVerdict { pass: value }
            | Policy::LastWins { empty: value }
            | Policy::RunAll { result: value } => value,
        }
    }
}

/// Generated code, not yet placed. Its symbols are its programs: see [`Image::resolve`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Image {
    code: Code,
    /// Addresses by symbol.
    programs: Vec<usize>,
}

impl Image {
    /// A compare tree over `entries`. Entries at the same address are one.
    pub fn tree(arch: Arch, entries: &[Entry], options: &Options) -> Image {
        let plan = Plan::new(entries, options.limit);
        let code = match arch {
            Arch::X64 => x64::tree(&plan, options),
            Arch::Arm64 => arm64::tree(&plan, options),
        };
        Image { code, programs: plan.addresses }
    }

    /// A straight line of calls of `programs`, in order. To the programs it is one run, except that each may take its own 33 tail calls.
    pub fn chain(arch: Arch, programs: &[usize], policy: Policy, options: &Options) -> Image {
        let code = match arch {
            Arch::X64 => x64::chain(programs.len(), policy, options),
            Arch::Arm64 => arm64::chain(programs.len(), policy, options),
        };
        Image { code, programs: programs.to_vec() }
    }

    /// Its code.
    pub fn code(&self) -> &Code {
        &self.code
    }

    /// How many programs it reaches without an indirect branch.
    pub fn programs(&self) -> usize {
        self.programs.len()
    }

    /// Whether it reaches the program at this address without an indirect branch.
    pub fn knows(&self, address: usize) -> bool {
        self.programs.contains(&address)
    }

    /// The address that a symbol of its code stands for.
    pub fn resolve(&self, symbol: Symbol) -> Option<usize> {
        self.programs.get(symbol.0 as usize).copied()
    }
}
