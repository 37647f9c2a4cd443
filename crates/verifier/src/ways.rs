//! The strategy portfolio: the walks that a program may get, one after another.
//!
//! Problem: no strategy is best for all programs. A candidate invariant for a loop proves a million rounds at once, and
//! costs more than walking three rounds. Noting facts about each number serves the optimiser, and keeps paths apart
//! that could be merged.
//!
//! Approach: a [`Way`] is a strategy. Nearly all programs are accepted by their first or second. [`Ways::refused`]
//! chooses the next one from the refusal of the last. Each has a share of the steps and of the fuel, so that a hard
//! program leaves some for the strategy that suits it.
//!
//! A program whose candidates fail repeatedly is mostly accepted by another strategy, and soon: trying it takes few
//! steps, and walking on to the limit takes many. Therefore the strategies are first tried in haste: a walk whose
//! candidates fail repeatedly gives up, and the later strategies are tried first. If none accepts the program, all are
//! tried anew without haste, so haste refuses no program.
//!
//! Invariants: no walk uses conclusions of an earlier one, so each is a proof of its own, and the order affects work
//! and messages only. Strategies advance in order, except for the one restart without haste, so there are at most twice
//! as many walks as variants of [`Way`], with two additions. The first walk that is refused after widening numbers
//! ([`Env::merge_after`]) is repeated, and no later walk widens them, so widening refuses no program either. A walk
//! that finds out which values must be kept exactly is repeated, too, a few times. After a restart, shares of the fuel
//! count from there.

use std::time::Instant;

use bpf_analysis::Loops;
use bpf_isa::Program;

use crate::certify::Within;
use crate::course::{Course, Mode};
use crate::env::{Env, Limits};
use crate::error::{Reason, VerifyError};
use crate::fuel;
use crate::walk::{RELATED_SLOTS, Walk};

/// The most steps of a walk that notes facts about numbers or uses candidate invariants, plus some for each
/// instruction: such a walk prunes fewer paths. A program that needs more is walked by other strategies.
const SHORT_STEPS: u64 = 20_000;
const SHORT_STEPS_PER_SLOT: u64 = 16;
/// The most steps of a first walk without candidates, plus some for each instruction: a loop that ends within them
/// needs no invariant.
const FIRST_STEPS: u64 = 256;
const FIRST_STEPS_PER_SLOT: u64 = 8;
/// The most rounds of a loop in that walk.
const FIRST_ROUNDS: usize = 3;
/// The most steps of a walk round by round in haste, plus some for each instruction.
const HASTY_STEPS: u64 = 4096;
const HASTY_STEPS_PER_SLOT: u64 = 8;
/// The factor by which [`Way::MoreGuesses`] has more steps than the first walk with candidates.
const LONGER: u64 = 3;
/// Least fuel of a search for a certificate, for each step of [`Limits::steps`]: 0.1 s by default. Most fuel of a
/// search, fuel of the core for each of its walks, and most bytes held.
const CERTIFY_PER_STEP: u64 = 100;
const CERTIFY_MOST: u64 = 1_000_000_000;
const CERTIFY_PASS: u64 = 1 << 17;
const CERTIFY_MEMORY: usize = 16 << 20;

/// A strategy. They are tried in this order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    /// Round by round, with few rounds: a short loop ends soon, and without candidates, paths that differ in numbers
    /// are pruned.
    FewRounds,
    /// Loops from candidate invariants, and with [`Env::values`], facts about numbers. The only strategy for a program
    /// without loops.
    Guesses,
    /// [`Way::Guesses`] with bounds of all elements of stack arrays ([`crate::content`]). States then distinguish bytes
    /// that were never written, which other programs do not need.
    Elements,
    /// [`Way::Elements`] with symbolic upper bounds of the elements. Nearly all arrays satisfy such bounds initially,
    /// since they begin with zeros, and bounds that do not stay true cost candidates.
    Orders,
    /// [`Way::Guesses`] without the assumption that accesses are within bounds. With the assumption, candidates were
    /// found that hold but do not suffice; others may suffice.
    UnassumingGuesses,
    /// Round by round, without facts, for as many steps as a walk with candidates has. It stands before
    /// [`Way::Further`], so that programs which end soon stay cheap.
    SomeRounds,
    /// Techniques that few programs need and that would cost others more than they gain: further kinds of relations,
    /// and names for numbers in more places.
    Further,
    /// [`Way::Further`] with loops partitioned by rounds in which a place holds no value (`-1`, or a null pointer).
    /// Walking both sides is worth it only if such a place was seen in a loop that no other strategy has proven.
    Parts,
    /// [`Way::Further`] with relations between numbers kept and used everywhere, also in programs without loops and in
    /// long ones. Programs that are accepted without it cost less.
    Related,
    /// Round by round, without facts: candidates and facts may cost more than they save.
    Rounds,
    /// Candidate invariants with more steps, for programs that the walk round by round does not finish.
    MoreGuesses,
    /// A certificate that the trusted core checks ([`crate::certify`]), after all walks have refused the program. The
    /// search for it shares nothing with the walks.
    Certified,
    /// Run-time checks for unproven accesses. A proof is better than a check, so this is the last resort.
    Checked,
}

/// Whether control may return to an instruction other than by calls. A backward jump alone does not imply a loop:
/// compilers place blocks out of order, and a large program without loops would be walked three times, twice in vain.
/// Programs with a backward jump and an indirect jump are taken to have loops.
fn may_loop(program: &Program) -> bool {
    let backward = program.flow().iter().any(|f| f.target.is_some_and(|target| target <= f.at));
    let indirect = program.contents().indirect_jumps;
    backward && (indirect || !Loops::new(program).loops().is_empty())
}

/// The state between a program's walks: the next strategy, and the findings of earlier walks.
#[derive(Debug)]
pub(crate) struct Ways<'a> {
    env: &'a Env<'a>,
    /// Steps of a short walk.
    short: u64,
    /// Steps of the first walk round by round, and of one in haste.
    first: u64,
    hurried: u64,
    loops: bool,
    /// Whether this is the only strategy.
    alone: bool,
    way: Way,
    /// The parameters that all walks share.
    course: Course,
    /// Whether a walk has assumed that accesses are within bounds.
    assumed: bool,
    /// Whether the walk with candidates gave up at a limit.
    gave_up: bool,
    /// Whether walks are in haste. `postponed`: whether one of them has given up because of that.
    hasty: bool,
    postponed: bool,
    /// The fuel spent before the restart.
    spent: u64,
    /// Whether techniques that few programs need may be tried.
    further: bool,
    /// Whether a place without a value was seen where partitioning may help.
    parts: bool,
    /// Whether bounds of elements, and their order, may help.
    elements: bool,
    orders: bool,
    refused: Option<Box<VerifyError>>,
}

/// The strategies by name, for tests that walk programs by one alone. The last ones rarely decide in a portfolio run.
const NAMED: [(&str, Way); 12] = [
    ("few-rounds", Way::FewRounds),
    ("guesses", Way::Guesses),
    ("elements", Way::Elements),
    ("orders", Way::Orders),
    ("unassuming", Way::UnassumingGuesses),
    ("some-rounds", Way::SomeRounds),
    ("further", Way::Further),
    ("parts", Way::Parts),
    ("related", Way::Related),
    ("rounds", Way::Rounds),
    ("more-guesses", Way::MoreGuesses),
    ("certified", Way::Certified),
];

impl<'a> Ways<'a> {
    /// The portfolio for a single walk by the strategy of this name, with everything allowed that other strategies
    /// would have found useful; `None` if there is no such strategy.
    pub(crate) fn only(program: &Program, env: &'a Env<'a>, name: &str) -> Option<Ways<'a>> {
        let (_, way) = NAMED.into_iter().find(|(named, _)| *named == name)?;
        Some(Ways {
            way,
            alone: true,
            hasty: false,
            parts: true,
            elements: true,
            orders: true,
            ..Ways::new(program, env)
        })
    }

    /// The portfolio before the first walk.
    pub(crate) fn new(program: &Program, env: &'a Env<'a>) -> Ways<'a> {
        let loops = may_loop(program);
        // An optimiser asks for facts that hold in each round, and for the number of rounds, which only invariants
        // give.
        let plainly = loops && !env.values && !env.exhaustive;
        let slots = program.insns().len() as u64;
        Ways {
            env,
            short: SHORT_STEPS + SHORT_STEPS_PER_SLOT * slots,
            first: FIRST_STEPS + FIRST_STEPS_PER_SLOT * slots,
            hurried: HASTY_STEPS + HASTY_STEPS_PER_SLOT * slots,
            loops,
            alone: false,
            way: if plainly { Way::FewRounds } else { Way::Guesses },
            course: Course { loops, ..Course::new(Mode::Accelerated, env) },
            assumed: false,
            gave_up: false,
            hasty: loops && program.insns().len() <= RELATED_SLOTS,
            postponed: false,
            spent: 0,
            further: loops && program.insns().len() <= RELATED_SLOTS,
            parts: false,
            elements: false,
            orders: false,
            refused: None,
        }
    }

    /// How the next walk goes.
    pub(crate) fn course(&self) -> Course {
        let course = Course { hasty: self.hasty, hurried: self.postponed, ..self.course };
        let short = course.steps.min(self.short);
        let quarters = |n: u64| (course.fuel / 4 * n).saturating_add(self.spent).min(course.fuel);
        let next = match self.way {
            Way::FewRounds => {
                Course { mode: Mode::Plain, rounds: FIRST_ROUNDS, steps: course.steps.min(self.first), ..course }
            }
            Way::Guesses if self.has_more() => Course { steps: short, fuel: quarters(1), ..course },
            Way::Guesses => course,
            Way::Elements => Course { steps: short, fuel: quarters(2), elements: true, ..course },
            Way::Orders => Course { steps: short, fuel: quarters(2), elements: true, orders: true, ..course },
            Way::UnassumingGuesses => Course { steps: short, fuel: quarters(3), assumes: false, ..course },
            Way::SomeRounds if self.postponed => {
                Course { mode: Mode::Plain, steps: short.min(self.hurried), values: false, ..course }
            }
            Way::SomeRounds => Course { mode: Mode::Plain, steps: short, values: false, ..course },
            Way::Rounds if self.loops => Course { mode: Mode::Plain, ..course },
            Way::Rounds => course,
            Way::MoreGuesses => {
                Course { hasty: false, steps: course.steps.min(LONGER * self.short), assumes: !self.assumed, ..course }
            }
            Way::Further | Way::Parts | Way::Related => Course {
                parts: self.way == Way::Parts || (self.way == Way::Related && self.parts),
                related: self.way == Way::Related,
                steps: short,
                fuel: quarters(3),
                elements: self.elements,
                orders: self.orders,
                further: true,
                ..course
            },
            // No walk.
            Way::Certified => course,
            // Run-time checks get as much fuel as all proofs together, since the proofs may have left none.
            Way::Checked => {
                Course { mode: Mode::Hybrid, fuel: fuel::spent().saturating_add(self.env.limits.fuel), ..course }
            }
        };
        // After a postponed walk, half of the fuel is reserved for the restart without haste.
        let most = if self.postponed { self.course.fuel / 2 } else { next.fuel };
        Course { fuel: next.fuel.min(most), ..next }
    }

    /// Whether another strategy is left for a program that candidates or facts have not proven.
    fn has_more(&self) -> bool {
        self.loops || self.course.values
    }

    /// Records the refusal of a walk, and chooses the next strategy.
    ///
    /// The refusal to report, if no strategy is left.
    pub(crate) fn refused(mut self, walk: Walk<'_>, mut error: Box<VerifyError>) -> Result<Self, Box<VerifyError>> {
        if error.verdict_is_unknown() {
            return Err(error);
        }
        if walk.misses_moves {
            return Ok(self);
        }
        if walk.stats.merged > 0 && self.course.merges {
            self.course.merges = false;
            return Ok(self);
        }
        let gave_up = error.reason.is_limit() || matches!(error.reason, Reason::Fuel(_));
        self.assumed |= walk.assumed_within();
        self.elements |= self.way == Way::Guesses && walk.missed_elements();
        self.orders |= self.way == Way::Elements && walk.loaded_elements();
        self.parts |= walk.missed_parts();
        let in_haste = walk.postponed() && matches!(error.reason, Reason::Steps(_));
        if in_haste || self.postponed {
            self.postponed = true;
            self.after_haste(&walk);
            return Ok(self);
        }
        let has_more = self.has_more();
        // No strategy returns here from it: a walk that gave up at a limit is followed by one round by round.
        let further = self.further;
        let after_guesses = |assumed: bool, gave_up: bool| match gave_up {
            true => has_more.then_some(if further { Way::SomeRounds } else { Way::Rounds }),
            false if assumed => Some(Way::UnassumingGuesses),
            false => Some(if further { Way::Further } else { Way::Related }),
        };
        let (next, refused) = match (self.way, self.refused.take()) {
            (Way::FewRounds, _) => (Some(Way::Guesses), error),
            (Way::Guesses, _) if walk.missed_elements() => {
                self.gave_up = gave_up;
                (Some(Way::Elements), error)
            }
            (Way::Guesses, _) => {
                self.gave_up = gave_up;
                (after_guesses(self.assumed, gave_up), error)
            }
            (Way::Elements, Some(refused)) if walk.loaded_elements() => (Some(Way::Orders), refused),
            (Way::Elements | Way::Orders, Some(refused)) => (after_guesses(self.assumed, self.gave_up), refused),
            (Way::UnassumingGuesses, Some(refused)) => {
                (Some(if further { Way::Further } else { Way::Related }), refused)
            }
            (Way::SomeRounds, Some(refused)) => (Some(Way::Further), refused),
            (Way::Further, Some(refused)) if self.parts => (Some(Way::Parts), refused),
            (Way::Further | Way::Parts, Some(refused)) => (Some(Way::Related), refused),
            (Way::Related, Some(refused)) if self.gave_up => (Some(Way::Rounds), refused),
            // The refusal of a simpler strategy is what an author understands.
            (Way::Related, Some(refused)) => (None, refused),
            // The failed candidates explain more than the place where the walk of rounds ended. The error keeps that
            // place, since the walk with candidates ended after few steps.
            (Way::Rounds, Some(refused)) => {
                error.loops = refused.loops;
                let longer = self.loops && self.short < self.course.steps;
                (longer.then_some(Way::MoreGuesses), error)
            }
            (Way::MoreGuesses, Some(mut refused)) if gave_up => {
                refused.loops = error.loops;
                (None, refused)
            }
            (Way::Certified | Way::Checked, _) => return Err(error),
            (
                Way::Elements
                | Way::Orders
                | Way::UnassumingGuesses
                | Way::SomeRounds
                | Way::Further
                | Way::Parts
                | Way::Related
                | Way::Rounds
                | Way::MoreGuesses,
                _,
            ) => (None, error),
        };
        self.way = match next {
            Some(next) => next,
            None if self.may_certify(&refused.reason) => Way::Certified,
            None => return self.uncertified(refused),
        };
        if self.way == Way::Rounds {
            self.course.values = false;
        }
        self.refused = Some(refused);
        Ok(self)
    }

    /// Whether a search for a certificate follows. A hybrid program keeps its run-time checks: the rank of a
    /// certificate may end a loop after 2^64 rounds, and a budget ends it sooner.
    fn may_certify(&self, refused: &Reason) -> bool {
        let checked = self.env.hybrid && refused.may_be_checked();
        self.loops && !self.env.exhaustive && !checked && refused.may_be_certified()
    }

    /// After no proof was found: run-time checks, if they may stand in for it.
    ///
    /// The refusal to report, if not.
    fn uncertified(mut self, refused: Box<VerifyError>) -> Result<Self, Box<VerifyError>> {
        if !self.env.hybrid || !refused.reason.may_be_checked() {
            return Err(refused);
        }
        (self.way, self.refused) = (Way::Checked, Some(refused));
        Ok(self)
    }

    /// The limits of the search for a certificate, if that is what comes next: as much fuel as the walks have spent, or
    /// as suffices for small loops, and what is left of the other limits.
    pub(crate) fn certifies(&self, deadline: Option<Instant>) -> Option<Within> {
        let Limits { steps, fuel, memory, .. } = self.env.limits;
        let most = fuel.saturating_sub(fuel::spent()).min(CERTIFY_MOST);
        let least = steps.saturating_mul(CERTIFY_PER_STEP);
        (self.way == Way::Certified).then(|| Within {
            pass: CERTIFY_PASS,
            fuel: if self.alone { most } else { fuel::spent().max(least).min(most) },
            steps,
            memory: (memory / 4).min(CERTIFY_MEMORY),
            deadline,
        })
    }

    /// Records that no certificate was found, because none was found in time if `late`.
    ///
    /// The refusal to report, if no strategy is left.
    pub(crate) fn not_certified(
        mut self,
        late: bool,
        unwalked: impl FnOnce() -> Box<VerifyError>,
    ) -> Result<Self, Box<VerifyError>> {
        let mut refused = self.refused.take().unwrap_or_else(unwalked);
        if let (true, Some(time)) = (late, self.env.limits.time) {
            refused.reason = Reason::Time(time);
            return Err(refused);
        }
        self.uncertified(refused)
    }

    /// After a walk was given up in haste, or one after it was refused: chooses the next strategy, or restarts without
    /// haste.
    fn after_haste(&mut self, walk: &Walk<'_>) {
        let rounds = if self.course.values { Way::Related } else { Way::SomeRounds };
        let next = match self.way {
            Way::Guesses if walk.missed_elements() => Some(Way::Elements),
            Way::Elements if walk.loaded_elements() => Some(Way::Orders),
            // If a place without a value was seen, the walk without partitions is mostly in vain.
            Way::Guesses | Way::Elements | Way::Orders if self.parts => Some(Way::Parts),
            Way::Guesses | Way::Elements | Way::Orders => Some(Way::Further),
            Way::Further if self.parts => Some(Way::Parts),
            Way::Further | Way::Parts if self.assumed => Some(Way::UnassumingGuesses),
            Way::Further | Way::Parts | Way::UnassumingGuesses => Some(rounds),
            Way::SomeRounds => Some(Way::Related),
            Way::FewRounds | Way::Related | Way::Rounds | Way::MoreGuesses | Way::Certified | Way::Checked => None,
        };
        self.way = next.unwrap_or(Way::Guesses);
        if next.is_none() {
            (self.hasty, self.postponed, self.gave_up, self.refused) = (false, false, false, None);
            (self.assumed, self.parts, self.elements, self.orders) = (false, false, false, false);
            self.spent = fuel::spent();
        }
    }
}

#[cfg(test)]
mod tests {
    use bpf_isa::{Cond, Insn, Reg, Src, Width};

    use super::*;

    /// Whether some instruction that the first one reaches can reach itself, by checking all pairs.
    fn cycles(insns: &[Insn]) -> bool {
        let count = insns.len();
        let mut reaches = vec![vec![false; count]; count];
        for (at, insn) in insns.iter().enumerate() {
            if let Some(off) = insn.jump_offset() {
                reaches[at][usize::try_from(at as i64 + 1 + i64::from(off)).expect("a target")] = true;
            }
            if !insn.ends_flow() {
                reaches[at][at + 1] = true;
            }
        }
        for by in 0..count {
            for from in 0..count {
                for to in 0..count {
                    reaches[from][to] |= reaches[from][by] && reaches[by][to];
                }
            }
        }
        (0..count).any(|at| reaches[at][at] && (at == 0 || reaches[0][at]))
    }

    #[test]
    fn programs_that_jump_backwards_and_never_come_round_have_no_loops() {
        let mut seed = 0x9e37_79b9_7f4a_7c15u64;
        let mut below = |n: usize| {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            (seed >> 11) as usize % n
        };
        let mut found = [0; 3];
        for _ in 0..4000 {
            let count = 3 + below(8);
            let mut insns = vec![Insn::Mov { width: Width::W64, dst: Reg::R0, src: Src::Imm(0) }];
            let mut backward = false;
            for at in 1..count {
                let to = 1 + below(count);
                let off = to as i32 - at as i32 - 1;
                let jumps = below(3);
                backward |= jumps > 0 && off < 0;
                insns.push(match jumps {
                    0 => Insn::Mov { width: Width::W64, dst: Reg::R0, src: Src::Imm(0) },
                    1 => Insn::Jump { wide: true, off },
                    _ => Insn::JumpIf {
                        width: Width::W64,
                        cond: Cond::Eq,
                        dst: Reg::R1,
                        src: Src::Imm(0),
                        off: i16::try_from(off).expect("a short jump"),
                    },
                });
            }
            insns.push(Insn::Exit);
            let expected = cycles(&insns);
            let program = Program::new(insns).expect("a program");
            assert_eq!(may_loop(&program), expected, "{:?}", program.insns());
            found[usize::from(backward) + usize::from(expected)] += 1;
        }
        assert!(found.iter().all(|n| *n > 100), "forward, backward without loops, with loops: {found:?}");
    }
}
