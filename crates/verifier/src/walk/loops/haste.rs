//! Walks in haste: where candidates fail repeatedly, another strategy is tried before this one is walked to its limit
//! (see [`crate::ways`]).
//!
//! Invariant: a walk that gives up in haste has refused nothing. It reports that it was postponed, and is repeated if
//! no other strategy accepts the program.

use super::Phase;
use crate::walk::Walk;

/// A hasty walk ends when the attempts about a loop that is in no other attempt have failed for good: of 501 programs
/// with proven loops, none is proven by a walk that continued from there round by round. It also ends when this many
/// attempts about more than one loop have failed, or one more about a single loop, and the walk has taken the given
/// steps, plus some for each instruction: programs that are accepted later have fewer failures.
const HASTY_FAILURES: usize = 3;
const HASTY_STEPS: u64 = 2048;
const HASTY_STEPS_PER_SLOT: u64 = 8;
/// A hasty walk also ends when the given number of candidates were tried after the first failure, or after the last
/// allowed one, or when the walk has taken the given steps since the first failure, plus some for each instruction: a
/// loop that is walked round by round has all its rounds, and its inner loops are attempted in each. A walk after a
/// postponed one ends when attempts about one loop have failed twice.
const HASTY_TRIES: u32 = 200;
const LAST_TRIES: u32 = 40;
const LATER_STEPS: u64 = 4096;
const LATER_STEPS_PER_SLOT: u64 = 64;
/// The part of the remaining steps of an enclosing havocked iteration that a hasty walk leaves it, as a divisor.
const HASTY_PART: u64 = 4;

impl Walk<'_> {
    /// Notes that an attempt about the loop has failed for good. In haste, the walk gives up soon if that happens
    /// repeatedly.
    pub(super) fn give_up_in_haste(&mut self, id: u32) {
        if !self.loops.hasty || self.loops.given_up.len() > HASTY_FAILURES {
            return;
        }
        let (at, slots) = (self.stats.steps, self.insns.len() as u64);
        let failed = &mut self.loops.given_up;
        let again = failed.contains(&id);
        failed.push(id);
        // An inner loop that is walked round by round makes the enclosing havocked iteration a long one.
        for a in self.loops.open.iter_mut().filter(|a| a.phase == Phase::Loose) {
            a.steps = at + a.steps.saturating_sub(at) / HASTY_PART;
        }
        let often =
            failed.len() > HASTY_FAILURES || (failed.len() == HASTY_FAILURES && failed.iter().any(|of| *of != id));
        let outermost = self.loops.open.len() == 1;
        if outermost {
            self.ends_in_haste(at);
        } else if often {
            self.loops.tried_since = self.loops.tried_since.max(HASTY_TRIES - LAST_TRIES);
            self.ends_in_haste(HASTY_STEPS + HASTY_STEPS_PER_SLOT * slots);
        } else if self.loops.misses_products() || (self.loops.hurried && again) {
            self.ends_in_haste(at);
        } else if self.loops.given_up.len() == 1 {
            self.ends_in_haste(at + LATER_STEPS + LATER_STEPS_PER_SLOT * slots);
        }
    }

    /// Counts a candidate that is tried or checked.
    pub(super) fn try_in_haste(&mut self) {
        self.loops.tried_since += u32::from(!self.loops.given_up.is_empty());
        if self.loops.tried_since > HASTY_TRIES {
            self.ends_in_haste(self.stats.steps);
        }
    }

    /// Ends the walk after so many steps, because of its haste.
    fn ends_in_haste(&mut self, steps: u64) {
        self.loops.postponed |= steps < self.steps;
        self.steps = self.steps.min(steps);
    }
}
