//! The list of passes, and the order in which a compilation runs them.
//!
//! A pass is a function over one [`Func`] that preserves what the function computes and keeps it well formed; it
//! returns how many changes it made. In debug builds the function is verified after each pass. A compilation constructs
//! SSA form once, runs all passes that need it, and leaves it once. A test that runs one such pass constructs and
//! leaves SSA form around it.

use crate::blind::{self, Keys};
use crate::convert::Convert;
use crate::destruct::Destruct;
use crate::gather::Gather;
use crate::index::Index;
use crate::invariant::Invariant;
use crate::operand::Operands;
use crate::slots::Slots;
use crate::ssa::Ssa;
use crate::step::Steps;
use crate::sweep::Sweep;
use crate::unroll::Unroll;
use crate::values::{Addresses, Values};
use crate::{dead, layout, peephole};
use bpf_lir::{Func, Lir};

macro_rules! passes {
    ($($(#[$doc:meta])* $pass:ident $name:literal;)*) => {
        /// A pass of the optimiser.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum Pass {
            $($(#[$doc])* $pass,)*
        }

        impl Pass {
            /// All passes.
            pub const ALL: [Pass; [$($name),*].len()] = [$(Pass::$pass),*];

            /// Returns the pass's name, for tests and listings.
            pub fn name(self) -> &'static str {
                match self {
                    $(Pass::$pass => $name,)*
                }
            }
        }
    };
}

passes! {
    /// Fuses two adjacent ops into one.
    Peephole "peephole";
    /// Turns pieces of the BPF stack into values.
    Slots "slots";
    /// Turns branches into selections.
    Convert "convert";
    /// Removes definitions that are never read.
    Dead "dead";
    /// Constructs SSA form and leaves it, which removes copies.
    Ssa "ssa";
    /// Folds constants, applies rules, and removes repeated computations.
    Values "values";
    /// Shares one confinement among accesses at constant distances from each other.
    Gather "gather";
    /// Moves sums into the addresses of the accesses that use them.
    Index "index";
    /// Keeps the program's constants out of machine code, if [`PassOptions::blind`] is set.
    Blind "blind";
    /// Moves loop-invariant ops and constants in front of the loop.
    Invariant "invariant";
    /// Lets reads behind a counter's step use the stepped counter.
    Step "step";
    /// Moves a value down to its one reader, if the machine can compute both in one instruction.
    Operand "operand";
    /// Removes jumps.
    Layout "layout";
    /// Lets short counted loops do several rounds at a time.
    Unroll "unroll";
}

impl Pass {
    /// Runs the pass over a function; returns how many changes it made.
    pub fn run(self, func: &mut Func, options: PassOptions, scratch: &mut PassScratch) -> u32 {
        let done = match self {
            Pass::Peephole => peephole::run(func),
            Pass::Dead => dead::run(func, &mut scratch.reads),
            Pass::Slots => scratch.slots.run(func),
            Pass::Convert => scratch.convert.run(func),
            Pass::Unroll => scratch.unroll.run(func, options.contained),
            Pass::Layout => layout::run(func, &mut scratch.reached, &mut scratch.places),
            Pass::Ssa => scratch.in_ssa(func, |_, _| 0),
            Pass::Values => scratch.in_ssa(func, |func, s| s.values(func, options)),
            Pass::Gather => scratch.in_ssa(func, |func, s| s.gather(func, options)),
            Pass::Index => scratch.in_ssa(func, |func, s| s.index(func, options)),
            Pass::Blind => options.blind.map_or(0, |key| blind::run(func, &mut Keys(key))),
            Pass::Invariant => scratch.in_ssa(func, |func, s| s.invariant(func, options)),
            Pass::Step => scratch.in_ssa(func, |func, s| s.step(func, options)),
            Pass::Operand => scratch.in_ssa(func, |func, s| s.operands(func, options)),
        };
        debug_assert_eq!(func.verify(usize::MAX), Ok(()), "after {}:\n{func}", self.name());
        done
    }
}

/// Options of a compilation: the machine's properties, and which passes run.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct PassOptions {
    /// The machine's addressing modes, operands, constants and registers.
    pub addresses: Addresses,
    /// Run only the passes that fuse adjacent ops and remove unread ones, and blind constants if wanted.
    pub plain: bool,
    /// The program is contained: one check may pay the budget of several rounds of an unrolled loop.
    pub contained: bool,
    /// Blind the program's constants, with keys from this secret seed. `skip` does not prevent it.
    pub blind: Option<u64>,
    /// Passes that are left out. For tests: the results do not depend on the set.
    pub skip: PassSet,
}

/// A set of passes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct PassSet(u16);

const _: () = assert!(Pass::ALL.len() <= 16, "a set has a bit for each pass");

impl PassSet {
    /// Returns the set of the passes whose bits are set, in the order of [`Pass::ALL`]. Higher bits are ignored.
    pub fn from_bits(bits: u16) -> PassSet {
        PassSet(bits)
    }

    /// Returns this set with a pass added.
    #[must_use]
    pub fn with(self, pass: Pass) -> PassSet {
        let at = Pass::ALL.iter().position(|other| *other == pass);
        PassSet(self.0 | at.map_or(0, |at| 1 << at))
    }

    /// Whether a pass is in the set.
    pub fn contains(self, pass: Pass) -> bool {
        Pass::ALL.iter().position(|other| *other == pass).is_some_and(|i| self.0 >> i & 1 != 0)
    }
}

/// Scratch memory of all passes, reused from program to program.
#[derive(Debug, Default)]
pub struct PassScratch {
    /// By value: how many reads it has.
    reads: Vec<u32>,
    /// By block: whether a jump leads to it.
    reached: Vec<bool>,
    /// By block: its position in the order.
    places: Vec<u32>,
    convert: Convert,
    unroll: Unroll,
    slots: Slots,
    ssa: Ssa,
    values: Values,
    gather: Gather,
    index: Index,
    invariant: Invariant,
    steps: Steps,
    operands: Operands,
    sweep: Sweep,
    destruct: Destruct,
}

impl PassScratch {
    /// Runs `passes` over `func` in SSA form; leaves the function alone if it is too large for SSA form.
    fn in_ssa(&mut self, func: &mut Func, passes: impl FnOnce(&mut Func, &mut Self) -> u32) -> u32 {
        if !self.ssa.construct(func) {
            return 0;
        }
        let done = passes(func, self);
        self.destruct.run(func, &self.ssa);
        dead::run(func, &mut self.reads);
        done
    }

    fn values(&mut self, func: &mut Func, options: PassOptions) -> u32 {
        let done = self.values.run(func, &mut self.ssa, options.addresses);
        self.sweep.run(func, &mut self.ssa);
        done
    }

    fn operands(&mut self, func: &mut Func, options: PassOptions) -> u32 {
        self.operands.run(func, &self.ssa, options.addresses.operands)
    }

    fn invariant(&mut self, func: &mut Func, options: PassOptions) -> u32 {
        let Addresses { constants, registers, .. } = options.addresses;
        self.invariant.run(func, &self.ssa, constants, registers)
    }

    fn step(&mut self, func: &mut Func, options: PassOptions) -> u32 {
        self.steps.run(func, &mut self.ssa, options.addresses)
    }

    fn gather(&mut self, func: &mut Func, options: PassOptions) -> u32 {
        let Addresses { max_offset, any_index, .. } = options.addresses;
        let mut done = self.gather.run(func, &self.ssa, max_offset, any_index);
        if done > 0 {
            self.sweep.run(func, &mut self.ssa);
        }
        let by_index = if any_index { self.gather.by_index(func, &self.ssa) } else { 0 };
        if by_index > 0 {
            self.sweep.run(func, &mut self.ssa);
            done += by_index;
        }
        done
    }

    fn index(&mut self, func: &mut Func, options: PassOptions) -> u32 {
        let done = self.index.run(func, &self.ssa, options.addresses);
        if done > 0 {
            self.sweep.run(func, &mut self.ssa);
        }
        done
    }
}

/// A pass over a function in SSA form.
type Run = fn(&mut PassScratch, &mut Func, PassOptions) -> u32;

/// Runs the passes over all functions.
pub fn optimise(lir: &mut Lir, options: PassOptions, scratch: &mut PassScratch) {
    each_pass(lir, options, scratch, &mut |_, _, _| ());
}

/// Runs the passes over all functions, and calls `note` after each pass with the pass, the function's index and the
/// function.
pub(crate) fn each_pass(
    lir: &mut Lir,
    options: PassOptions,
    scratch: &mut PassScratch,
    note: &mut impl FnMut(Pass, usize, &Func),
) {
    let mut keys = options.blind.map(Keys);
    let mut blind = |func: &mut Func| keys.as_mut().map_or(0, |keys| blind::run(func, keys));
    for (i, func) in lir.funcs.iter_mut().enumerate() {
        let before: &[Pass] = match (options.plain, options.skip.contains(Pass::Ssa)) {
            (true, _) => &[Pass::Peephole, Pass::Dead],
            (false, true) => &[Pass::Peephole, Pass::Slots, Pass::Convert, Pass::Dead, Pass::Layout],
            (false, false) => &[Pass::Peephole, Pass::Slots, Pass::Convert, Pass::Unroll],
        };
        for pass in before.iter().filter(|pass| !options.skip.contains(**pass)) {
            pass.run(func, options, scratch);
            note(*pass, i, func);
        }
        if options.plain || options.skip.contains(Pass::Ssa) {
            blind(func);
            note(Pass::Blind, i, func);
            continue;
        }
        let mut is_blind = false;
        scratch.in_ssa(func, |func, s| {
            let mut done = 0;
            let passes: [(Pass, Run); 7] = [
                (Pass::Gather, PassScratch::gather),
                (Pass::Values, PassScratch::values),
                (Pass::Index, PassScratch::index),
                (Pass::Blind, |_, _, _| 0),
                (Pass::Invariant, PassScratch::invariant),
                (Pass::Step, PassScratch::step),
                (Pass::Operand, PassScratch::operands),
            ];
            for (pass, run) in passes {
                if pass == Pass::Blind {
                    done += blind(func);
                    is_blind = true;
                } else if !options.skip.contains(pass) {
                    done += run(s, func, options);
                }
                note(pass, i, func);
            }
            done
        });
        // The function was too large for SSA form, so the pass has not run yet.
        if !is_blind {
            blind(func);
        }
        debug_assert_eq!(func.verify(usize::MAX), Ok(()), "after SSA form:\n{func}");
        note(Pass::Ssa, i, func);
        if !options.skip.contains(Pass::Layout) {
            Pass::Layout.run(func, options, scratch);
            note(Pass::Layout, i, func);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Finds a pass that no list of `each_pass` names, which only the pass's own test files would notice.
    #[test]
    fn every_pass_is_part_of_a_compilation() {
        let text = "func 0 (v0, v1, -, -, -) {\nb0:\n    v2 = mov.64 1\n    exit v2\n}\n";
        let ssa = Pass::ALL.iter().position(|pass| *pass == Pass::Ssa).expect("a pass");
        let mut seen = Vec::new();
        for options in [PassOptions::default(), PassOptions { skip: PassSet(1 << ssa), ..PassOptions::default() }] {
            let mut lir = text.parse::<Lir>().expect("a program");
            each_pass(&mut lir, options, &mut PassScratch::default(), &mut |pass, _, _| seen.push(pass));
        }
        for pass in Pass::ALL {
            assert!(seen.contains(&pass), "{} is in no list of `each_pass`", pass.name());
        }
    }
}
