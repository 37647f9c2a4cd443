//! The passes there are, by name, and what a compilation runs of them.
//!
//! A pass is a function over one [`Func`] that keeps what it computes and keeps it well formed; it says how often it
//! found something to do. In debug builds the function is verified after each.

use crate::{dead, peephole};
use bpf_lir::{Func, Lir};

/// A pass.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Pass {
    /// Two adjacent ops that are one.
    Peephole,
    /// Definitions that nobody reads.
    Dead,
}

impl Pass {
    /// All of them.
    pub const ALL: [Pass; 2] = [Pass::Peephole, Pass::Dead];

    /// The name, for tests and listings.
    pub fn name(self) -> &'static str {
        match self {
            Pass::Peephole => "peephole",
            Pass::Dead => "dead",
        }
    }

    /// Runs it; says how often it found something to do.
    pub fn run(self, func: &mut Func, scratch: &mut PassScratch) -> u32 {
        let done = match self {
            Pass::Peephole => peephole::run(func),
            Pass::Dead => dead::run(func, &mut scratch.reads),
        };
        debug_assert_eq!(func.verify(usize::MAX), Ok(()), "after {}:\n{func}", self.name());
        done
    }
}

/// What is run on the way to code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PassOptions {
    /// Some tail call may be a direct site, so that what loaded its table and index may have no reader.
    pub direct_tail_calls: bool,
}

/// Memory that passes use, kept from program to program.
#[derive(Debug, Default)]
pub struct PassScratch {
    /// By value: how often it is read.
    reads: Vec<u32>,
}

/// Runs the passes over all functions.
pub fn optimise(lir: &mut Lir, options: PassOptions, scratch: &mut PassScratch) {
    for func in &mut lir.funcs {
        Pass::Peephole.run(func, scratch);
        if options.direct_tail_calls {
            Pass::Dead.run(func, scratch);
        }
    }
}
