//! What kept states are needed for: the trail of a path, read backwards.
//!
//! Problem: two paths that meet with different values cannot be merged by comparing states if the values matter, and
//! most do not. Which do is known only when all paths from the join have been walked. [`crate::need`] says it
//! beforehand for registers, as far as one pass over the program can; of the stack, which is reached through pointers,
//! and of branches, which are decided by some values and by others not, only the walk knows.
//!
//! Approach: the walk leaves a trail, one entry a step. When a path ends, the trail is read backwards ([`read`]) to the
//! branch that is walked next, and yields what the path's beginning was needed for (its [`Demand`]); where two sides of
//! a branch come together, theirs are joined and read on. So each step is read once, and a kept state gets its demand
//! when all paths from it are finished. A place (register, or byte of a frame's stack) is
//! * not *live*: no path reads it;
//! * live, not *exact*: paths read it, but as a number it flows into results, stores, and comparisons that go both
//!   ways;
//! * exact: it flows into an address, a size, a helper's constant, or a comparison that its value decides; or it was
//!   compared with what is exact afterwards, or with what that is tied to, since the comparison bounded it.
//!
//! This is what the kernel finds with `REG_LIVE_READ` and `mark_chain_precision`, in one pass of linear time. A state
//! that is finished forgets the rest: what it holds elsewhere, any state may.
//!
//! Why that is sound. Let a concrete state *fit* a step of the walk if it is in the abstract state there as far as
//! that is needed: in exact places, and in what holds between them (names, distances, what is known of regions); where
//! a number is live, some number is there; where a pointer is live, it is that pointer; elsewhere, anything. What fits
//! a step passes the checks made there, and what the instruction makes of it fits the next step, on one of the ways
//! that the walk took from there, since
//! * a check or a choice of the walk that looks at a value has the value's place exact ([`Walk::decides`], addresses,
//!   sizes). Types are looked at without that, but they are compared wherever a place is live;
//! * what a step writes from values is a function of its operands, which are exact if the result is: also what is tied
//!   to an operand of a comparison, and is bounded by it. Where something else is learnt that all later steps may use
//!   (the least length of a region, the order of two values), or too much is tied, operands are exact in any case;
//! * a place's needs end only at a step that writes all of it, whatever was there;
//! * where the path ended because a finished state covers it, that one's needs are the path's ([`Ending::As`]), and
//!   what fits the one fits the other. Which finished before which is an order, so this ends.
//!
//! What is proven of a region's length is no place, but needed in the same way ([`crate::lens`]): a path whose steps
//! ask for up to so many bytes is walked alike, or in fewer ways, whatever is known beyond. Its need ends where the
//! regions are replaced by others, and where a test that the run passes shows as many bytes, whatever was known before:
//! what is tested, a pointer or a number that is the length, is needed exactly. A number that is calculated from it
//! needs it if it is needed exactly itself ([`Walk::length_flows`]).
//!
//! So a path that is dropped, because a finished state that has forgotten all this covers it, does nothing that the
//! walk has not seen. It may hold other numbers at an instruction than any walked path did: what is noted of an
//! instruction may rest only on what is exact there, or not on numbers at all. States recorded for tests forget what
//! was not needed, too ([`Walk::trail_record`]). Where ranges of numbers are noted for an optimiser
//! ([`crate::Env::values`]), every number that is live is exact.
//!
//! Where a comparison with a constant shows what a register is, that is what it is, whatever was known of it before: on
//! that side ([`Walk::trail_equal`]) it is not needed exactly on account of what comes after. Only that it is less than
//! 2^32 is ([`Needed::half`]), if its lower half alone was compared, unless what writes it gives no more. What is tied
//! to it is refined as well, and has the operands of the comparison exact if it is needed itself. That a number is less
//! than 2^32 may follow from several comparisons, of it and of what it is tied to. So it is needed exactly by a kept
//! state that does not know that of it ([`Needed::whole_or_exact`]), and so are the operands of a comparison of lower
//! halves where an upper one may not be 0 ([`Walk::widens`]).
//!
//! Invariants: the open kept states are the ancestors of the path, oldest first, and the trail reaches back to the
//! oldest. Bytes beyond the first 512 of a frame are always live and exact, and so is what is written there, and what
//! is compared while it is tied to them. Nothing that a kept state does not hold says what a step makes of it. A path
//! that ends because an open state covers it goes on as that one does, in ways not known yet: it demands everything.
//! Where that state is a round of a bounded construct, its paths are known when all of them have ended, and then the
//! round itself, and what comes before it, demand no more than what was read since ([`RoundReads`]). The states inside
//! the round keep the demand of everything: they were used before that was known.

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

/// Fuel for an entry of the trail that is read.
const READ: u64 = 20;
/// Entries for which there is room on the trail whenever the walk is weighed: it seldom enters more until then.
const SPARE_STEPS: usize = 1024;
/// Values tied to an operand of a comparison that are entered one by one.
const MAX_TIED: usize = 8;

/// How a path ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Ending {
    /// Nothing comes after it.
    #[default]
    Done,
    /// It goes on as this finished kept state did.
    As(u32),
    /// It goes on as an open one does.
    Open,
    /// It goes on as an open round of a bounded construct does, whose number this is.
    Round(u32),
}

/// A branch with one side walked: where the trail was then, and what that side demanded.
#[derive(Debug)]
struct Fork {
    at: usize,
    ancestors: usize,
    /// Where its demand begins in [`Trail::saved`].
    saved: usize,
    /// The oldest open round that it rests on.
    rests: u32,
}

/// The trail of the current path, from its oldest open kept state.
#[derive(Debug, Default)]
pub(super) struct Trail {
    steps: Vec<Step>,
    forks: Vec<Fork>,
    /// By frame, what the forks demanded, one after the other.
    saved: Vec<Needed>,
    /// The demand that is read back.
    demand: Demand,
    /// The step that is being made; entered when it branches or keeps a state, or is over.
    now: Step,
    unentered: bool,
    /// Steps whose states were recorded, by their first entries: which, and of which frame.
    recorded: Vec<(usize, usize, u8)>,
}

/// A place on the trail where a path branches.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark {
    at: usize,
    ancestors: usize,
    forks: usize,
}

/// The bounds of bytes as an entry has them: those past the last are nobody's.
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

    /// Makes room for the entries until the walk is weighed again, in a state of this many frames.
    pub(super) fn weigh(&mut self, memory: &mut Memory, frames: usize) -> Result<(), Short> {
        memory.list(List::Steps, &mut self.steps, SPARE_STEPS)?;
        memory.list(List::Forks, &mut self.forks, SPARE)?;
        memory.list(List::Saved, &mut self.saved, SPARE * (frames + 1))
    }

    pub(super) fn len(&self) -> usize {
        self.steps.len()
    }

    /// Takes back what was left since the mark: none of it has happened. The states that were open then.
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
    /// A step begins at the program counter. Nothing is remembered before the first state is kept.
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

    /// The state before the step that begins at the program counter has been recorded.
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

    /// Enters the step, if it is not yet.
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

    /// What has happened to the lengths of regions since the last entry.
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

    /// On this side of the branch that has just been entered, the register has turned out to be a constant. `half`: its
    /// lower half has.
    pub(super) fn trail_equal(&mut self, reg: Reg, half: bool) {
        let frame = crate::num::few(self.state.frames.len()) - 1;
        let from = crate::num::half(reg.index());
        self.effect(Step { frame, kind: Kind::Equal, exact: half, from, ..Step::default() });
    }

    /// The proven least length of a region, which bounds the number that the step writes to a register, and nothing
    /// else: it is needed if that number is needed exactly. (Which name the number gets may depend on it, too: where
    /// states have differences, what compares names needs them.)
    pub(super) fn length_flows(&mut self, region: u8) -> u32 {
        self.effect(Step { frame: region, kind: Kind::LengthFlows, ..Step::default() });
        self.state.min_len.unasked(region.into())
    }

    pub(super) fn trail_mark(&mut self) -> Mark {
        self.trail_enter();
        let trail = &self.scratch.trail;
        Mark { at: trail.steps.len(), ancestors: self.scratch.prune.open.len(), forks: trail.forks.len() }
    }

    /// The values of the step's operands decide what it does.
    pub(super) fn decides(&mut self) {
        self.scratch.trail.now.exact = !planted!(DecisionsUnmarked);
    }

    /// The step compares lower halves of what may be more than these, and may show that it is not.
    pub(super) fn widens(&mut self) {
        self.scratch.trail.now.from = u16::from(!planted!(HalvesUnknown));
    }

    /// The step returns from a subprogram or a callback; `early`: with a result of its own.
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
                }
            }
            self.scratch.trail.steps.push(step);
        }
    }

    /// The path reads the `size` bytes from r10 - depth of a frame.
    pub(super) fn reads_stack(&mut self, frame: usize, depth: usize, size: usize) {
        self.reads(frame, depth, size, false);
    }

    /// And what they are decides something.
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

    /// The path writes them all: what was there is gone.
    pub(super) fn writes_stack(&mut self, frame: usize, depth: usize, size: usize) {
        self.writes(frame, depth, size, Kind::Write);
    }

    /// The path writes somewhere within them.
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

    /// A comparison of numbers that goes both ways: what is tied to its operands is bounded by it too.
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
                // The length of a region may be bounded, or what a loop counts, or what is a sum with it, or a pointer.
                self.decides();
                return;
            }
            // No bit says whether that is needed exactly: it always is.
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

    /// The path has ended: reads the trail back to the branch that is walked next, and gives the kept states
    /// on the way what they are needed for.
    pub(super) fn trail_end(&mut self, ending: Ending) {
        self.trail_enter();
        let frames = self.state.frames.len();
        let scratch = &mut *self.scratch;
        let (trail, prune, memory) = (&mut scratch.trail, &mut scratch.prune, &mut scratch.memory);
        // Nothing is left to compare with these states.
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
            // A path that came back in a loose walk has left no frames.
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
