//! Walks in haste: where guesses fail again and again, another way is tried before this one is walked to its limit (see
//! [`crate::ways`]).
//!
//! Invariant: a walk that gives up in haste has refused nothing. It says that it was postponed, and is walked anew if
//! no other way accepts the program.

use super::Phase;
use crate::walk::Walk;

/// A hasty walk is over when guesses about a loop that is inside no other guess have failed for good: of 501 programs
/// whose loops are proven, none is by a walk that went on from there round by round. It is over, too, when this many
/// have failed, about more than one loop, or one more about one, and it has taken so many steps, beside some for each
/// instruction: what is accepted later has failed less often.
const HASTY_FAILURES: usize = 3;
const HASTY_STEPS: u64 = 2048;
const HASTY_STEPS_PER_SLOT: u64 = 8;
/// It is over, too, when so many more were tried or checked after the first that has failed, or so many after that many
/// have, or the walk has gone so many steps on from the first, beside some for each instruction: a loop that is walked
/// round by round after all has as many rounds as it has, and loops inside it are guessed about in each. A walk after
/// another that was over in haste is over when guesses about one loop have failed twice.
const HASTY_TRIES: u32 = 200;
const LAST_TRIES: u32 = 40;
const LATER_STEPS: u64 = 4096;
const LATER_STEPS_PER_SLOT: u64 = 64;
/// Of the steps that are left to a loose walk around a loop that is walked so, a hasty one has one in so many.
const HASTY_PART: u64 = 4;

impl Walk<'_> {
    /// A guess about the loop has failed for good. In haste, the walk gives up soon if that happens again and again.
    pub(super) fn give_up_in_haste(&mut self, id: u32) {
        if !self.loops.hasty || self.loops.given_up.len() > HASTY_FAILURES {
            return;
        }
        let (at, slots) = (self.stats.steps, self.insns.len() as u64);
        let failed = &mut self.loops.given_up;
        let again = failed.contains(&id);
        failed.push(id);
        // What is walked round by round in a loose walk around it makes that a long one.
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

    /// One more guess is tried, or checked.
    pub(super) fn try_in_haste(&mut self) {
        self.loops.tried_since += u32::from(!self.loops.given_up.is_empty());
        if self.loops.tried_since > HASTY_TRIES {
            self.ends_in_haste(self.stats.steps);
        }
    }

    /// The walk is over after so many steps, because of its haste.
    fn ends_in_haste(&mut self, steps: u64) {
        self.loops.postponed |= steps < self.steps;
        self.steps = self.steps.min(steps);
    }
}
