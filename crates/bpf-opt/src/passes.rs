//! The passes there are, by name, and what a compilation runs of them.
//!
//! A pass is a function over one [`Func`] that keeps what it computes and keeps it well formed; it says how often it
//! found something to do. In debug builds the function is verified after each. Passes over SSA form run between one
//! construction and one destruction in a compilation; by themselves, in tests, each has both around it.

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
        /// A pass.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum Pass {
            $($(#[$doc])* $pass,)*
        }

        impl Pass {
            /// All of them.
            pub const ALL: [Pass; [$($name),*].len()] = [$(Pass::$pass),*];

            /// The name, for tests and listings.
            pub fn name(self) -> &'static str {
                match self {
                    $(Pass::$pass => $name,)*
                }
            }
        }
    };
}

passes! {
    /// Two adjacent ops that are one.
    Peephole "peephole";
    /// Pieces of the stack that become values.
    Slots "slots";
    /// Branches that become selections.
    Convert "convert";
    /// Definitions that nobody reads.
    Dead "dead";
    /// Into SSA form and out of it: copies that need not be.
    Ssa "ssa";
    /// Values: constants, rules, what was computed before.
    Values "values";
    /// Accesses at constant distances from each other share one confinement.
    Gather "gather";
    /// Sums that are addresses, into the accesses that use them.
    Index "index";
    /// Constants do not appear in machine code, if [`PassOptions::blind`] is set.
    Blind "blind";
    /// What each round of a loop computes anew, before the loop.
    Invariant "invariant";
    /// Counters that end at their step.
    Step "step";
    /// Values brought to the op that can make them on the way.
    Operand "operand";
    /// Jumps that need not be.
    Layout "layout";
    /// Short loops that do several rounds at a time.
    Unroll "unroll";
}

impl Pass {
    /// Runs it; says how often it found something to do.
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

/// What is run on the way to code, and for which machine.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct PassOptions {
    /// Which addresses the machine has.
    pub addresses: Addresses,
    /// Only what fuses neighbours.
    pub plain: bool,
    /// The program is contained: one check may pay the budget of several rounds of an unrolled loop.
    pub contained: bool,
    /// Blind the program's constants, with keys from this secret seed. `skip` does not prevent it.
    pub blind: Option<u64>,
    /// What is not run. For tests: any of them gives the same results.
    pub skip: PassSet,
}

/// A set of passes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct PassSet(u16);

const _: () = assert!(Pass::ALL.len() <= 16, "a set has a bit for each pass");

impl PassSet {
    /// The passes whose bits are set, in the order of [`Pass::ALL`]; bits beyond mean nothing.
    pub fn from_bits(bits: u16) -> PassSet {
        PassSet(bits)
    }

    /// Returns this set with a pass added.
    #[must_use]
    pub fn with(self, pass: Pass) -> PassSet {
        let at = Pass::ALL.iter().position(|other| *other == pass);
        PassSet(self.0 | at.map_or(0, |at| 1 << at))
    }

    /// Whether it is in the set.
    pub fn contains(self, pass: Pass) -> bool {
        Pass::ALL.iter().position(|other| *other == pass).is_some_and(|i| self.0 >> i & 1 != 0)
    }
}

/// Memory that passes use, kept from program to program.
#[derive(Debug, Default)]
pub struct PassScratch {
    /// By value: how often it is read.
    reads: Vec<u32>,
    /// By block: whether a jump leads to it.
    reached: Vec<bool>,
    /// By block: its place in the order.
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
    /// Runs `passes` over `func` in SSA form. A function that is too large for it is left alone.
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

/// Runs the passes over all functions; tells after each what it left of which function.
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

    /// A pass that no compilation runs is of no use, and only its own files would notice.
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
