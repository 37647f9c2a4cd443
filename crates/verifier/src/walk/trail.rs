//! Demand: what kept states are needed for, found by reading the trail of a path backwards (precision marking).
//!
//! Problem: two paths that meet with different values cannot be merged by comparing states if the values matter, and
//! most do not. The values that matter are known only when all paths from the join have been walked. [`crate::need`]
//! approximates them for registers by one pass over the program. For the stack, which is reached through pointers, and
//! for branches, which only some values decide, only the walk can tell.
//!
//! Approach: the walk leaves a trail, one entry for each step. When a path ends, the trail is read backwards ([`read`])
//! to the branch that is walked next, which yields the demand of the path's beginning ([`Demand`]). Where two sides of
//! a branch come together, their demands are joined and the reading continues. Each step is read once, and a kept state
//! gets its demand when all paths from it are finished. A place (register, or byte of a frame's stack) is
//! * not *live*: no path reads it;
//! * live, not *exact*: paths read it, but as a number it flows only into results, stores, and comparisons that go both
//!   ways;
//! * exact: it flows into an address, a size, a helper's constant, or a comparison that its value decides. It is also
//!   exact if it was compared with a place that is exact afterwards, or with one that is tied to such a place, since
//!   the comparison bounded it.
//!
//! The kernel computes this with `REG_LIVE_READ` and `mark_chain_precision`; here it takes one pass of linear time. A
//! finished state forgets everything else: in other places, the covered state may hold anything.
//!
//! Soundness. A concrete state *fits* a step of the walk if it is in the abstract state there as far as that is needed:
//! in exact places, and in the relations between them (names, distances, facts about regions). Where a number is live,
//! some number is there; where a pointer is live, it is that pointer; elsewhere, anything may be. Claim: a concrete
//! state that fits a step passes the checks made there, and its successor fits the next step on one of the branches
//! that the walk took from there. Proof:
//! * A check or a choice of the walk that depends on a value makes the value's place exact ([`Walk::decides`],
//!   addresses, sizes). Types are checked without that, but types are compared wherever a place is live.
//! * The values that a step writes are a function of its operands, which are exact if the result is. This includes
//!   values that are tied to an operand of a comparison and bounded by it. If the step learns a fact that all later
//!   steps may use (the least length of a region, the order of two values), or if too many values are tied, the
//!   operands are exact in any case.
//! * A rule that searches the state for a name reads places that no step marks ([`crate::by_name`]). After such a
//!   search every live number is exact, and finished states keep every value that has a name.
//! * Where the check of a loop's candidate begins, everything in the state is exact ([`Walk::needs_all`]), because any
//!   part of it may have shown the candidate's facts.
//! * The need of a place ends only at a step that writes all of it, whatever was there.
//! * If the path ended because a finished state covers it, that state's demand is the path's ([`Ending::As`]), and a
//!   concrete state that fits the one fits the other. "Finished before" is a strict order, so the argument is
//!   well-founded.
//!
//! The proven length of a region is no place, but is needed in the same way ([`crate::lens`]): a path whose steps ask
//! for at most so many bytes takes the same branches, or fewer, whatever else is known of the length. The need ends
//! where the regions are replaced, and at a test that the run passes and that shows as many bytes, whatever was known
//! before. The tested pointer, or number that is the length, is needed exactly. If a number computed from the length is
//! needed exactly, so is the length ([`Walk::length_flows`]).
//!
//! Consequently, a path that is dropped because a finished state covers it does nothing that the walk has not seen. It
//! may have other numbers at an instruction than any walked path had, so notes about an instruction may depend only on
//! exact places, or not on numbers at all. States recorded for tests also forget what was not needed
//! ([`Walk::trail_record`]). Where ranges of numbers are noted for an optimiser ([`crate::Env::values`]), every live
//! number is exact.
//!
//! A comparison with a constant may show the value of a register. On that side, the register has this value whatever
//! was known before ([`Walk::trail_equal`]), so later needs do not make it exact. If only its low half was compared,
//! the fact that it is less than 2^32 is still needed ([`Needed::half`]), unless the instruction that writes it
//! guarantees that. Values tied to the register are refined as well; if one is needed, the operands of the comparison
//! are exact. The fact that a number is less than 2^32 may follow from several comparisons, of it and of values tied to
//! it. Therefore a kept state that does not know this fact needs the number exactly ([`Needed::whole_or_exact`]), and
//! so does a comparison of low halves for operands whose upper half may not be 0 ([`Walk::widens`]).
//!
//! Invariants: the open kept states are the ancestors of the path, oldest first, and the trail reaches back to the
//! oldest. Bytes beyond the first 512 of a frame are always live and exact; so are values that are written there, and
//! values that are compared while they are tied to them. The effect of a step depends only on the content of kept
//! states. A path that ends because an open state covers it continues as that state does, in ways that are not known
//! yet, so it demands everything. If that state is a round of a bounded construct, its paths are known when all of them
//! have ended; then the round itself, and what comes before it, demand only the places that were read since
//! ([`RoundReads`]). The states inside the round keep the demand of everything, since they were used before that was
//! known.

mod demand;
mod read;

use bpf_isa::Reg;

use super::Walk;
use super::memory::{List, Memory, SPARE, Short};
use crate::faults::planted;
use crate::fuel;
use crate::lens::Since;
use crate::state::{Spill, State, TRACKED};
use crate::value::{FIRST_FREE_ID, Value};
use demand::FRAMES;
pub(super) use demand::{Demand, Needed, RoundReads, forget_unneeded};
use read::{Kind, Reader, Step};

/// Fuel for reading an entry of the trail.
const READ: u64 = 20;
/// Entries for which the trail has room after each measurement of memory: rarely more are entered until the next.
const SPARE_STEPS: usize = 1024;
/// The most values tied to an operand of a comparison that are entered one by one.
const MAX_TIED: usize = 8;

/// The ending of a path, which decides its demand.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Ending {
    /// No instruction follows.
    #[default]
    Done,
    /// The path continues as this finished kept state did.
    As(u32),
    /// The path continues as an open state does.
    Open,
    /// The path continues as the open round with this number, of a bounded construct, does.
    Round(u32),
}

/// A branch with one side walked: the trail's length at the branch, and the demand of that side.
#[derive(Debug)]
struct Fork {
    at: usize,
    ancestors: usize,
    /// The start of its demand in [`Trail::saved`].
    saved: usize,
    /// The oldest open round that it rests on.
    rests: u32,
}

/// The trail of the current path, from its oldest open kept state.
#[derive(Debug, Default)]
pub(super) struct Trail {
    steps: Vec<Step>,
    forks: Vec<Fork>,
    /// The demands of the forks, one after the other, by frame.
    saved: Vec<Needed>,
    /// The demand that is read back.
    demand: Demand,
    /// The current step. It is entered when it branches or keeps a state, or at its end.
    now: Step,
    unentered: bool,
    /// Steps whose states were recorded: the length of the trail, the index of the state, and the frame.
    recorded: Vec<(usize, usize, u8)>,
}

/// A place on the trail where a path branches.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark {
    at: usize,
    ancestors: usize,
    forks: usize,
}

/// The range of bytes as an entry stores it, cut to the tracked bytes.
fn bounds(depth: usize, size: usize) -> (u16, u16) {
    (crate::num::half((depth - size).min(TRACKED)), crate::num::half(depth.min(TRACKED)))
}

impl Trail {
    pub(super) fn clear(&mut self) {
        self.steps.clear();
        self.forks.clear();
        self.saved.clear();
        self.recorded.clear();
        self.unentered = false;
    }

    pub(super) fn trim(&mut self, bytes: usize) {
        super::shrink(&mut self.steps, bytes);
        super::shrink(&mut self.forks, bytes);
        super::shrink(&mut self.saved, bytes);
        super::shrink(&mut self.recorded, bytes);
    }

    /// Makes room for the entries until memory is measured again, in a state of so many frames.
    pub(super) fn weigh(&mut self, memory: &mut Memory, frames: usize) -> Result<(), Short> {
        memory.list(List::Steps, &mut self.steps, SPARE_STEPS)?;
        memory.list(List::Forks, &mut self.forks, SPARE)?;
        memory.list(List::Saved, &mut self.saved, SPARE * (frames + 1))
    }

    pub(super) fn len(&self) -> usize {
        self.steps.len()
    }

    /// Removes everything since the mark. Returns the number of states that were open then.
    pub(super) fn rewind(&mut self, mark: &Mark) -> usize {
        self.steps.truncate(mark.at);
        if let Some(fork) = self.forks.get(mark.forks) {
            self.saved.truncate(fork.saved);
            self.forks.truncate(mark.forks);
        }
        while self.recorded.pop_if(|(at, ..)| *at >= mark.at).is_some() {}
        self.unentered = false;
        mark.ancestors
    }
}

impl Walk<'_> {
    /// Begins a step at the program counter. Nothing is recorded before the first state is kept.
    #[inline]
    pub(super) fn trail_begin(&mut self) {
        if self.scratch.prune.open.is_empty() {
            return;
        }
        let frame = crate::num::few(self.state.frames.len()) - 1;
        let trail = &mut self.scratch.trail;
        trail.now = Step { at: self.pc.0, frame, ..Step::default() };
        trail.unentered = true;
    }

    /// Notes that the state before the step at the program counter has been recorded.
    pub(super) fn trail_record(&mut self) {
        if !self.scratch.prune.open.is_empty() {
            let trail = &mut self.scratch.trail;
            trail.recorded.push((
                trail.steps.len(),
                self.recorded.len() - 1,
                crate::num::few(self.state.frames.len()) - 1,
            ));
        }
    }

    /// Enters the current step, unless it was entered.
    #[inline]
    pub(super) fn trail_enter(&mut self) {
        self.scratch.prune.sums |= !self.state.sums.is_empty() || !self.state.products.is_empty();
        if self.state.min_len.any_since() {
            self.enter_lengths();
        }
        let trail = &mut self.scratch.trail;
        if trail.unentered {
            trail.unentered = false;
            trail.steps.push(trail.now);
        }
    }

    /// Enters the effects on the lengths of regions since the last entry.
    fn enter_lengths(&mut self) {
        for (region, mut since) in (0..).zip(self.state.min_len.take_since()) {
            if planted!(LengthsUnmarked) {
                since.asked = 0;
            }
            if since != Since::default() {
                let Since { asked, learnt } = since;
                self.effect(Step { frame: region, kind: Kind::Lengths, from: asked, to: learnt, ..Step::default() });
            }
        }
    }

    /// Notes that on this side of the branch just entered, a comparison has shown the register's value; with `half`,
    /// the value of its low half only.
    pub(super) fn trail_equal(&mut self, reg: Reg, half: bool) {
        let frame = crate::num::few(self.state.frames.len()) - 1;
        let from = crate::num::half(reg.index());
        self.effect(Step { frame, kind: Kind::Equal, exact: half, from, ..Step::default() });
    }

    /// Returns the proven least length of a region, for use as a bound of the number that the step writes to a
    /// register, and nothing else: the length is needed if that number is needed exactly. (The name of the number may
    /// depend on the length, too. Where states have differences, comparisons of names need them.)
    pub(super) fn length_flows(&mut self, region: u8) -> u32 {
        self.effect(Step { frame: region, kind: Kind::LengthFlows, ..Step::default() });
        self.state.min_len.unasked(region.into())
    }

    pub(super) fn trail_mark(&mut self) -> Mark {
        self.trail_enter();
        let trail = &self.scratch.trail;
        Mark { at: trail.steps.len(), ancestors: self.scratch.prune.open.len(), forks: trail.forks.len() }
    }

    /// Notes that the values of the step's operands decide what it does.
    pub(super) fn decides(&mut self) {
        self.scratch.trail.now.exact = !planted!(DecisionsUnmarked);
    }

    /// Notes that the step compares low halves of numbers that may exceed 32 bits, and may show that they do not.
    pub(super) fn widens(&mut self) {
        self.scratch.trail.now.from = u16::from(!planted!(HalvesUnknown));
    }

    /// Notes that the step returns from a subprogram or a callback; with `early`, with a result of its own.
    pub(super) fn trail_return(&mut self, callback: bool, early: bool) {
        let now = &mut self.scratch.trail.now;
        now.kind = if callback { Kind::Round } else { Kind::Return };
        now.exact = early;
    }

    fn effect(&mut self, step: Step) {
        if !self.scratch.prune.open.is_empty() {
            for round in &mut self.scratch.prune.reads {
                match step.kind {
                    Kind::Read => round.read(step.frame.into(), step.from.into(), step.to.into()),
                    Kind::Lengths => round.ask(step.frame.into(), step.from),
                    Kind::LengthFlows => round.ask(step.frame.into(), crate::lens::ALL),
                    Kind::Insn
                    | Kind::Return
                    | Kind::Round
                    | Kind::Write
                    | Kind::Within
                    | Kind::TiedReg
                    | Kind::TiedBytes
                    | Kind::Equal => {}
                    Kind::All => round.goes_on(None),
                }
            }
            self.scratch.trail.steps.push(step);
        }
    }

    /// Notes that everything in the state is needed: the check of a candidate begins, whose facts may come from any
    /// part of it. Paths that come back demand this, too, but there may be none.
    pub(super) fn needs_all(&mut self) {
        let frame = crate::num::few(self.state.frames.len()) - 1;
        self.effect(Step { frame, kind: Kind::All, ..Step::default() });
    }

    /// Notes that the path reads the `size` bytes from r10 - depth of a frame.
    pub(super) fn reads_stack(&mut self, frame: usize, depth: usize, size: usize) {
        self.reads(frame, depth, size, false);
    }

    /// Notes such a read whose values decide something.
    pub(super) fn stack_decides(&mut self, frame: usize, depth: usize, size: usize) {
        self.reads(frame, depth, size, true);
    }

    fn reads(&mut self, frame: usize, depth: usize, size: usize, exact: bool) {
        if planted!(OtherFramesUnread) && frame + 1 != self.state.frames.len() {
            return;
        }
        let (from, to) = bounds(depth, size);
        self.effect(Step { at: 0, frame: crate::num::few(frame), kind: Kind::Read, exact, from, to });
    }

    /// Notes that the path overwrites all of these bytes.
    pub(super) fn writes_stack(&mut self, frame: usize, depth: usize, size: usize) {
        self.writes(frame, depth, size, Kind::Write);
    }

    /// Notes that the path writes somewhere within these bytes.
    pub(super) fn writes_within(&mut self, frame: usize, depth: usize, size: usize) {
        self.writes(frame, depth, size, if planted!(SomeWriteEndsAll) { Kind::Write } else { Kind::Within });
    }

    fn writes(&mut self, frame: usize, depth: usize, size: usize, kind: Kind) {
        if depth > TRACKED {
            self.decides();
        }
        let (from, to) = bounds(depth, size);
        self.effect(Step { at: 0, frame: crate::num::few(frame), kind, exact: false, from, to });
    }

    /// Notes a comparison of numbers that goes both ways: values tied to its operands are bounded by it, too.
    pub(super) fn compares(&mut self, dst: Reg, src: Option<Reg>) {
        if self.scratch.prune.open.is_empty() || planted!(TiesUnmarked) {
            return;
        }
        let top = self.state.frames.len() - 1;
        for r in [Some(dst), src].into_iter().flatten() {
            let Value { id, scale, .. } = *self.state.reg(r);
            if id == 0 {
                continue;
            }
            let State { room, sums, products, wraps, .. } = &self.state;
            let apart = !sums.is_empty() || !products.is_empty() || !wraps.is_empty();
            let related = apart || room.iter().any(|f| f.id == id);
            if id < FIRST_FREE_ID || scale != 1 || related || self.state.in_guessed_loop() {
                // The comparison may bound the length of a region, a loop's counter, a number related by a sum, or a
                // pointer.
                self.decides();
                return;
            }
            // Untracked bytes have no demand bits, so they are always needed exactly.
            let mut spills = self.state.frames.iter().flat_map(|f| &f.spills);
            if spills.any(|s| s.value.id == id && usize::from(s.depth) > TRACKED) {
                self.decides();
                return;
            }
            let steps = &mut self.scratch.trail.steps;
            let before = steps.len();
            for (k, frame) in self.state.frames.iter().enumerate() {
                let tied = Step { frame: crate::num::few(k), kind: Kind::TiedReg, ..Step::default() };
                for (i, v) in frame.regs.iter().enumerate() {
                    if v.id == id && v.is_scalar() && (k, i) != (top, r.index()) {
                        steps.push(Step { from: crate::num::half(i), ..tied });
                    }
                }
                let tied_slot = |s: &&Spill| s.value.id == id && s.value.is_scalar() && !planted!(TiedSlotsUnmarked);
                for s in frame.spills.iter().filter(tied_slot) {
                    let (from, to) = bounds(s.depth.into(), s.size.into());
                    steps.push(Step { kind: Kind::TiedBytes, from, to, ..tied });
                }
            }
            if steps.len() - before > MAX_TIED {
                steps.truncate(before);
                self.decides();
                return;
            }
        }
    }

    /// Ends the path: reads the trail back to the branch that is walked next, and gives the kept states in between
    /// their demands.
    pub(super) fn trail_end(&mut self, ending: Ending) {
        self.trail_enter();
        let frames = self.state.frames.len();
        let scratch = &mut *self.scratch;
        let (trail, prune, memory) = (&mut scratch.trail, &mut scratch.prune, &mut scratch.memory);
        // No pending branch is left, so no state will be compared with these.
        let Some(next) = scratch.pending.last() else { return };
        let mark = next.mark;
        if prune.open.is_empty() {
            return;
        }
        let Trail { steps, forks, saved, demand, recorded: noted, .. } = trail;
        prune.reads_end(ending);
        match ending {
            Ending::Done => demand.truncate(0),
            Ending::As(i) => match prune.needed(i) {
                Some(_) if planted!(CoveringUnneeded) => demand.truncate(0),
                Some(needed) => demand.set(needed),
                None => demand.set_all(FRAMES),
            },
            // A path that came back in a havocked iteration has left no frames.
            Ending::Open | Ending::Round(_) => demand.set_all(if frames == 0 { FRAMES } else { frames }),
        }
        let mut rests = match ending {
            Ending::Done | Ending::Open => u32::MAX,
            Ending::As(i) => prune.rests_on(prune.kept[i as usize].rests),
            Ending::Round(number) => number,
        };
        let mut reader =
            Reader { env: self.env, insns: self.insns, frame: 0, carries: false, operands: 0, sums: prune.sums };
        let recorded = &mut self.recorded;
        let mut read = |demand: &mut Demand, to: usize| {
            fuel::charge_each(steps.len().saturating_sub(to), READ);
            debug_assert!(to <= steps.len(), "the trail reaches back to every fork and kept state");
            while steps.len() > to
                && let Some(step) = steps.pop()
            {
                reader.back(demand, step);
                while let Some((_, i, frame)) = noted.pop_if(|(at, ..)| *at >= steps.len()) {
                    let needed = demand.frame(frame.into());
                    recorded.loosen(i, needed.live, needed.exact);
                }
            }
        };
        loop {
            match forks.last() {
                Some(fork) if forks.len() > mark.forks && fork.ancestors >= prune.open.len() => {
                    debug_assert_eq!(fork.ancestors, prune.open.len(), "the open states are the path's ancestors");
                    read(demand, fork.at);
                    if !planted!(OtherSideForgotten) {
                        demand.join(&saved[fork.saved..]);
                    }
                    saved.truncate(fork.saved);
                    rests = rests.min(prune.rests_on(fork.rests));
                    forks.pop();
                }
                _ => {
                    if prune.open.len() <= mark.ancestors {
                        break;
                    }
                    let Some((i, _)) = prune.open.pop() else { break };
                    read(demand, prune.kept[i as usize].trail);
                    prune.round_ends(i, rests, demand);
                    prune.close(i, demand.frames(), memory);
                    rests = prune.settle(i, rests);
                }
            }
        }
        debug_assert_eq!((prune.open.len(), forks.len()), (mark.ancestors, mark.forks));
        if mark.ancestors == 0 {
            trail.clear();
        } else {
            read(demand, mark.at);
            forks.push(Fork { at: mark.at, ancestors: mark.ancestors, saved: saved.len(), rests });
            saved.extend_from_slice(demand.frames());
        }
    }
}
