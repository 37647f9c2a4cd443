//! Images: the code of a tree or a chain. Without the feature `emit` they have no code, and packs refuse them.

use crate::chain::{Chain, HookPolicy, Link};
use crate::options::{Entry, MAX_LIMIT, Options};
use crate::plan::Plan;
#[cfg(feature = "emit")]
use crate::{arm64, x64};
use bpf_jit_code::{Arch, Code, Needs, Symbol};

/// Generated code, not yet placed. Its symbols are its programs: see [`Image::resolve`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Image {
    code: Code,
    /// Addresses by symbol.
    programs: Vec<usize>,
}

impl Image {
    /// Creates a compare tree over `entries`. Entries with equal addresses are merged.
    pub fn tree(arch: Arch, entries: &[Entry], options: &Options) -> Image {
        #[cfg(not(feature = "emit"))]
        let _ = options;
        let plan = Plan::new(entries, options.limit.min(MAX_LIMIT));
        #[cfg(feature = "emit")]
        let mut code = match arch {
            Arch::X64 => x64::tree(&plan, options),
            Arch::Arm64 => arm64::tree(&plan, options),
        };
        #[cfg(not(feature = "emit"))]
        let mut code = Code::new(arch);
        // A tree itself reads nothing. Its callers, who name the programs it jumps to, know the needs of these.
        code.needs = Needs::Nothing;
        Image { code, programs: plan.addresses }
    }

    /// Creates a sequence of calls of these programs, in order, of the first [`MAX_LIMIT`] at most. For the programs
    /// it is one run, except that each may make its own 33 tail calls.
    pub fn chain(arch: Arch, links: &[Link], policy: HookPolicy, options: &Options) -> Image {
        #[cfg(not(feature = "emit"))]
        let _ = options;
        let links = &links[..links.len().min(MAX_LIMIT)];
        let chain = Chain::new(links, policy);
        #[cfg(feature = "emit")]
        let mut code = match arch {
            Arch::X64 => x64::chain(&chain, options),
            Arch::Arm64 => arm64::chain(&chain, options),
        };
        #[cfg(not(feature = "emit"))]
        let mut code = Code::new(arch);
        code.needs = chain.needs;
        Image { code, programs: links.iter().map(|link| link.address).collect() }
    }

    /// The code of the image.
    pub fn code(&self) -> &Code {
        &self.code
    }

    /// Number of programs that the image reaches without an indirect branch.
    pub fn programs(&self) -> usize {
        self.programs.len()
    }

    /// Whether the image reaches the program at this address without an indirect branch.
    pub fn knows(&self, address: usize) -> bool {
        self.programs.contains(&address)
    }

    /// The address of a symbol in the image's code.
    pub fn resolve(&self, symbol: Symbol) -> Option<usize> {
        self.programs.get(symbol.index as usize).copied()
    }
}
