//! Images: what is asked for, and the code that comes of it.

use crate::plan::Plan;
use crate::{arm64, x64};
use bpf_jit_code::layout::{Branch, Layout};
use bpf_jit_code::{Arch, Code, Hardening, Symbol};

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

/// What the verdicts of a chain's programs do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Policy {
    /// The first verdict on which the chain does not continue is its result; `pass` if there is none. It continues on
    /// `pass`, and a program may say otherwise ([`Link::continue_on`]). With `pass` = 2 this is libxdp's dispatcher
    /// (`XDP_PASS`), with 0xffffffff (-1 in 32 bits) tc's (`TC_ACT_UNSPEC`, `TCX_NEXT`). Verdicts are compared with
    /// all their 64 bits.
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

/// Verdicts on which a chain continues.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Verdicts {
    /// This one.
    One(u64),
    /// Those below 64 whose bit is set: libxdp's `chain_call_actions`.
    Set(u64),
}

impl Verdicts {
    /// Whether this is one of them.
    #[inline]
    pub fn contains(self, verdict: u64) -> bool {
        match self {
            Verdicts::One(one) => verdict == one,
            Verdicts::Set(set) => verdict < 64 && set >> verdict & 1 == 1,
        }
    }

    /// The same with a set of one told as that one, for which the test is shorter.
    fn simple(self) -> Verdicts {
        match self {
            Verdicts::Set(set) if set.is_power_of_two() => Verdicts::One(set.trailing_zeros().into()),
            other => other,
        }
    }
}

/// A program of a chain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Link {
    /// Where its code starts.
    pub address: usize,
    /// On which of its verdicts a chain with [`Policy::FirstVerdict`] continues, if not on that policy's `pass`.
    pub continue_on: Option<Verdicts>,
    /// Whether it may read the hidden argument ([`Code::reads_hidden`]). If no program of a chain does, the chain does
    /// not.
    pub reads_hidden: bool,
}

impl Link {
    /// A program that follows the policy.
    pub fn new(address: usize) -> Link {
        Link { address, continue_on: None, reads_hidden: true }
    }
}

/// What becomes of each verdict of a chain, in order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Tests {
    /// Nothing.
    None,
    /// It ends the chain unless it is one of these.
    ContinueOn(Vec<Verdicts>),
}

/// A chain as the backends see it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Chain {
    pub(crate) programs: usize,
    pub(crate) tests: Tests,
    /// The result when the end is reached; `None`: the last program's verdict, so that it is jumped to.
    pub(crate) end: Option<u64>,
    /// Whether any program may read the hidden argument.
    pub(crate) reads_hidden: bool,
}

impl Chain {
    fn new(links: &[Link], policy: Policy) -> Chain {
        let programs = links.len();
        let value = policy.of_empty();
        let (tests, end) = match policy {
            Policy::LastWins { .. } => (Tests::None, (programs == 0).then_some(value)),
            Policy::RunAll { .. } => (Tests::None, Some(value)),
            Policy::FirstVerdict { pass } => {
                let tests: Vec<Verdicts> =
                    links.iter().map(|link| link.continue_on.unwrap_or(Verdicts::One(pass)).simple()).collect();
                // The last verdict is the result whether the chain continues on it or not, if it continues on `pass`
                // only.
                let end = tests.last().is_none_or(|last| *last != Verdicts::One(pass)).then_some(pass);
                (Tests::ContinueOn(tests), end)
            }
        };
        Chain { programs, tests, end, reads_hidden: links.iter().any(|link| link.reads_hidden) }
    }

    /// After which verdicts of a program the next one runs; `None`: after all.
    pub(crate) fn test(&self, program: usize) -> Option<Verdicts> {
        match &self.tests {
            Tests::None => None,
            Tests::ContinueOn(tests) => tests.get(program).copied(),
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
        let plan = Plan::new(entries, options.limit.min(MAX_LIMIT));
        let mut code = match arch {
            Arch::X64 => x64::tree(&plan, options),
            Arch::Arm64 => arm64::tree(&plan, options),
        };
        // What it jumps to may; whoever names that knows.
        code.reads_hidden = false;
        Image { code, programs: plan.addresses }
    }

    /// A straight line of calls of these programs, in order, of the first [`MAX_LIMIT`] at most. To the programs it is
    /// one run, except that each may take its own 33 tail calls.
    pub fn chain(arch: Arch, links: &[Link], policy: Policy, options: &Options) -> Image {
        let links = &links[..links.len().min(MAX_LIMIT)];
        let chain = Chain::new(links, policy);
        let mut code = match arch {
            Arch::X64 => x64::chain(&chain, options),
            Arch::Arm64 => arm64::chain(&chain, options),
        };
        code.reads_hidden = chain.reads_hidden;
        Image { code, programs: links.iter().map(|link| link.address).collect() }
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
        self.programs.get(symbol.index as usize).copied()
    }
}

/// The code, with the forms of its branches chosen.
pub(crate) fn laid_out<B: Branch>(mut code: Code, buf: &[u8], mut layout: Layout<B>, trap: u8) -> Code {
    if layout.finish(buf, &mut code.bytes).is_err() {
        // Images of [`MAX_LIMIT`] entries are far below what a branch reaches. One that is not must not be run.
        debug_assert!(false, "a branch of an image is out of reach");
        code.relocs.clear();
        code.bytes.clear();
        code.bytes.resize(16, trap);
    }
    layout.relocate(code.relocs.iter_mut().map(|reloc| &mut reloc.at));
    layout.relocate(code.unwind.iter_mut().map(|note| &mut note.at));
    code
}
