//! The walks that a program may get, one after another.
//!
//! Problem: no way to walk a program is best for all. Guessing what stays true in a loop proves a million rounds at
//! once, and costs more than walking three; noting what is known of each number serves the optimiser, and keeps paths
//! apart that would be one.
//!
//! Approach: a [`Way`] is one. Nearly all programs are accepted by their first or second; [`Ways::refused`]
//! says, from how one was refused, which is tried then. Each has a share of the steps and of the fuel, so that a hard
//! program leaves something for the way that may suit it.
//!
//! Whose guesses fail again and again is mostly accepted by another way, and soon; to find out takes few steps, and to
//! walk to the limit many. So the first time the ways are tried in haste: one that fails so gives up, and what comes
//! after it is tried before it is walked again. If none has accepted the program, all begin anew without haste: nothing
//! is refused because of it.
//!
//! Invariants: what one walk concluded is not known to the next, so each is a proof of its own, and the order decides
//! over work and messages only. Ways only go forward, but for the one time that all begin anew, so there are at most
//! twice as many walks as variants; and one more, as the first that is refused after it has given up numbers
//! ([`Env::merge_after`]) is repeated, and no walk after it does that: nothing is refused because of it either. One
//! that has found out what is to be kept exactly is repeated, too, a few times. What begins anew has its share of the
//! fuel from there on.

use bpf_analysis::Loops;
use bpf_isa::Program;

use crate::course::{Course, Mode};
use crate::env::Env;
use crate::error::{Reason, VerifyError};
use crate::fuel;
use crate::walk::{RELATED_SLOTS, Walk};

/// Steps of a walk that notes what is known of numbers, or guesses about loops, beside some for each instruction: such
/// a walk drops fewer paths. One that needs more is walked without.
const SHORT_STEPS: u64 = 20_000;
const SHORT_STEPS_PER_SLOT: u64 = 16;
/// Steps of a first walk that makes no guesses, beside some for each instruction: a loop that ends in so many needs
/// none.
const FIRST_STEPS: u64 = 256;
const FIRST_STEPS_PER_SLOT: u64 = 8;
/// And how often a loop may come round in it.
const FIRST_ROUNDS: usize = 3;
/// Steps of a walk round by round in haste, beside some for each instruction.
const HASTY_STEPS: u64 = 4096;
const HASTY_STEPS_PER_SLOT: u64 = 8;
/// How many times the steps of a walk that guesses are given to another one, where round by round all else is refused.
const LONGER: u64 = 3;

/// A way to walk a program, in the order in which they are tried.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    /// Round by round, and few rounds: a short loop ends soon, and where nothing is guessed, paths that differ in
    /// numbers are dropped.
    FewRounds,
    /// Loops from guesses; with [`Env::values`], noting what is known of numbers. All that a program without loops
    /// needs.
    Guesses,
    /// The same, and what is true of every element of an array on the stack ([`crate::content`]). States tell apart
    /// then what was never written, which other programs need not.
    Elements,
    /// The same, and what none of them is more than, other than constants. Nearly all arrays begin so, as they begin
    /// with zeros, and what does not stay so costs guesses.
    Orders,
    /// [`Way::Guesses`] without assumptions about accesses: with them, guesses were found that hold, and others may be
    /// enough.
    UnassumingGuesses,
    /// Round by round, noting nothing, for as many steps as a walk that guesses has: before [`Way::Further`], so that
    /// what ends so soon is accepted as it was.
    SomeRounds,
    /// What few programs need, and what would cost others more than it gains: relations of more kinds, and numbers with
    /// names of their own in more places.
    Further,
    /// The same, and rounds in which a place holds none (`-1`, or a null pointer) are told apart from others: what is
    /// walked twice so is worth it only where such a place was seen in a loop that nothing else has proven.
    Parts,
    /// [`Way::Further`], where relations of numbers are kept and asked for everywhere: in programs without loops and in
    /// long ones, too. What is accepted without costs less so.
    Related,
    /// Round by round, noting nothing: what guesses and notes cost may be more than they save.
    Rounds,
    /// Guesses with more steps, where round by round there is no end.
    MoreGuesses,
    /// With checks left for run time. A proof is better than a check: only what has none comes here.
    Checked,
}

/// Whether control may come back to where it was, other than by calls. A jump backwards alone does not say so:
/// compilers place blocks out of order, and a large program without loops would be walked three times, twice to no end.
/// Where indirect jumps lead is not looked at closer.
fn may_loop(program: &Program) -> bool {
    let backward = program.flow().iter().any(|f| f.target.is_some_and(|target| target <= f.at));
    let indirect = program.contents().indirect_jumps;
    backward && (indirect || !Loops::new(program).loops().is_empty())
}

/// A program between its walks: which is next, and what those before have found.
#[derive(Debug)]
pub(crate) struct Ways<'a> {
    env: &'a Env<'a>,
    /// Steps of a short walk.
    short: u64,
    /// Steps of the first walk round by round, and of one in haste.
    first: u64,
    hurried: u64,
    loops: bool,
    way: Way,
    /// What all walks have in common.
    course: Course,
    /// Whether one of them has assumed something of accesses.
    assumed: bool,
    /// Whether the walk that guesses gave up.
    gave_up: bool,
    /// Whether walks are in haste, and one of them has given up because of that.
    hasty: bool,
    postponed: bool,
    /// The fuel that was spent when all began anew.
    spent: u64,
    /// Whether what few programs need may be tried.
    further: bool,
    /// Whether a place that holds none was seen where it may matter.
    parts: bool,
    /// Whether something is worth knowing of elements, and of their order.
    elements: bool,
    orders: bool,
    refused: Option<Box<VerifyError>>,
}

/// The ways by name, for tests that walk programs by one alone. Which of them decides is rarely one of the last.
const NAMED: [(&str, Way); 11] = [
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
];

impl<'a> Ways<'a> {
    /// Before the only walk, by the way of this name; `None` if there is none. It knows all that some way knows.
    pub(crate) fn only(program: &Program, env: &'a Env<'a>, name: &str) -> Option<Ways<'a>> {
        let (_, way) = NAMED.into_iter().find(|(named, _)| *named == name)?;
        Some(Ways { way, hasty: false, parts: true, elements: true, orders: true, ..Ways::new(program, env) })
    }

    /// Before the first walk.
    pub(crate) fn new(program: &Program, env: &'a Env<'a>) -> Ways<'a> {
        let loops = may_loop(program);
        // Where what is known of numbers is asked for, that is what holds in each round, and how many there are.
        let plainly = loops && !env.values && !env.exhaustive;
        let slots = program.insns().len() as u64;
        Ways {
            env,
            short: SHORT_STEPS + SHORT_STEPS_PER_SLOT * slots,
            first: FIRST_STEPS + FIRST_STEPS_PER_SLOT * slots,
            hurried: HASTY_STEPS + HASTY_STEPS_PER_SLOT * slots,
            loops,
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
            // As much again as all proofs may take: those that were tried may have left none.
            Way::Checked => {
                Course { mode: Mode::Hybrid, fuel: fuel::spent().saturating_add(self.env.limits.fuel), ..course }
            }
        };
        // Half is for the ways without haste, which may have to begin anew.
        let most = if self.postponed { self.course.fuel / 2 } else { next.fuel };
        Course { fuel: next.fuel.min(most), ..next }
    }

    /// Whether another way is left to a program that guesses, or notes, have not proven.
    fn has_more(&self) -> bool {
        self.loops || self.course.values
    }

    /// Takes note of how a walk was refused, and turns to the next.
    ///
    /// # Errors
    /// The refusal to tell, if none is left.
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
        // Nothing comes back here from it: what gave up at a limit goes on round by round.
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
            // What simpler guesses were refused for is what an author understands.
            (Way::Related, Some(refused)) => (None, refused),
            // What the loops were guessed to do says more than where a walk of their rounds ended; but that is where
            // it ended, and not at the few steps of a walk that guesses.
            (Way::Rounds, Some(refused)) => {
                error.loops = refused.loops;
                let longer = self.loops && self.short < self.course.steps;
                (longer.then_some(Way::MoreGuesses), error)
            }
            (Way::MoreGuesses, Some(mut refused)) if gave_up => {
                refused.loops = error.loops;
                (None, refused)
            }
            (Way::Checked, _) => return Err(error),
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
            None if self.env.hybrid && refused.reason.may_be_checked() => Way::Checked,
            None => return Err(refused),
        };
        if self.way == Way::Rounds {
            self.course.values = false;
        }
        self.refused = Some(refused);
        Ok(self)
    }

    /// A walk has been given up in haste, or one after it: turns to the next, or begins anew, and this time without.
    fn after_haste(&mut self, walk: &Walk<'_>) {
        let rounds = if self.course.values { Way::Related } else { Way::SomeRounds };
        let next = match self.way {
            Way::Guesses if walk.missed_elements() => Some(Way::Elements),
            Way::Elements if walk.loaded_elements() => Some(Way::Orders),
            // Where a place that holds none was seen, the walk that tells no rounds apart is mostly in vain.
            Way::Guesses | Way::Elements | Way::Orders if self.parts => Some(Way::Parts),
            Way::Guesses | Way::Elements | Way::Orders => Some(Way::Further),
            Way::Further if self.parts => Some(Way::Parts),
            Way::Further | Way::Parts if self.assumed => Some(Way::UnassumingGuesses),
            Way::Further | Way::Parts | Way::UnassumingGuesses => Some(rounds),
            Way::SomeRounds => Some(Way::Related),
            Way::FewRounds | Way::Related | Way::Rounds | Way::MoreGuesses | Way::Checked => None,
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

    /// Whether an instruction that is reached from the first reaches itself: all pairs, tried one by one.
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
