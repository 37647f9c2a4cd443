//! The havocked iteration of a loop: its assumptions, the refusals that it passes over, and its end.
//!
//! Problem: the values that come back to the head must be observed before any bound of a round is known, so accesses
//! cannot be proven yet. Approach: the body is walked from a state in which everything that changes may be anything. A
//! step that would be refused because an offset is not bounded continues as if it were allowed, and a path ends where
//! it leaves the loop.
//!
//! Invariants: such a walk proves nothing, and everything that it records is discarded with it. It ends after a fixed
//! number of steps at the latest.

use bpf_isa::{Insn, Reg, Size};

use super::guess::Guess;
use super::{Attempt, LOOSE_STEPS, LOOSE_STEPS_PER_SLOT, MAX_FILLED, Phase};
use crate::error::{LoopFailure, Reason};
use crate::faults::planted;
use crate::scalar::Scalar;
use crate::state::Room;
use crate::value::{Ty, Value, len_id, offset_name};
use crate::walk::pointers::size_of;
use crate::walk::{Res, Walk, refuse};

impl Walk<'_> {
    /// Begins the havocked iteration of a candidate. `false` if there is no candidate.
    ///
    /// The initial states exceed a limit. The walk is then over, and the states count as released.
    pub(super) fn start_loose(&mut self, i: usize) -> Res<bool> {
        self.rewind(i);
        self.try_in_haste();
        self.charge_guess(i);
        let a = &mut self.loops.open[i];
        (a.shape.further, a.shape.parts) = (self.loops.further, self.loops.parts);
        let pool = &mut self.scratch.pool;
        let Some(g) = Guess::new(&a.entry, &a.shape, (a.k, a.id, true), self.env, &mut self.next_id, pool) else {
            return Ok(false);
        };
        self.state.clone_from(&g.state);
        let l = &self.loops.forest.loops()[a.id as usize];
        let most = LOOSE_STEPS + LOOSE_STEPS_PER_SLOT * u64::from(l.slots);
        a.steps = self.stats.steps + if self.loops.hasty { most / 2 } else { most };
        if let Some(old) = a.guess.replace(g) {
            old.retire(pool);
        }
        a.tries += 1;
        self.set_phase(i, Phase::Loose);
        self.log_guess(i, "tries");
        self.leave_sides(i)?;
        Ok(true)
    }

    /// Handles a path of a havocked iteration that came back.
    pub(super) fn came_back_loose(&mut self, i: usize) {
        self.charge_guess(i);
        let a = &mut self.loops.open[i];
        let Some(g) = &mut a.guess else { return };
        let pool = &mut self.scratch.pool;
        let mut back = std::mem::take(&mut self.state);
        // Tables are noted before the state gets the names of the next round.
        g.see_tabled(&back, &self.loops.tabled);
        if g.receive(&mut back, &mut self.next_id) {
            g.note_back(back, &mut self.next_id, pool);
        } else {
            pool.push(back);
        }
    }

    /// Notes a comparison with a constant in the havocked iteration of a candidate with relations.
    pub(in crate::walk) fn note_compared(&mut self, r: Reg, constant: i32) {
        let v = *self.state.reg(r);
        for a in self.loops.open.iter_mut().filter(|a| a.phase == Phase::Loose && a.related) {
            if let (Some(g), true) = (&a.guess, v.is_scalar()) {
                g.see_compared(&mut a.shape, &v, constant);
            }
        }
    }

    /// Whether the path that ends now was the last one of a havocked iteration.
    pub(in crate::walk) fn loose_walk_over(&self) -> bool {
        let left = self.scratch.pending.len();
        self.loops.loose > 0 && self.loops.open.iter().any(|a| a.phase == Phase::Loose && left <= a.pending)
    }

    /// Notes a store on the stack in a havocked iteration: if each round moves it by at least the bytes that it writes,
    /// the loop may fill an array.
    pub(in crate::walk) fn note_fill(&mut self, base: Reg, off: i16, size: Size) {
        let b = self.state.reg(base);
        let Ty::Stack { frame } = b.ty else { return };
        let (tie, at) = (b.tie, (frame, b.scale, i64::from(b.delta) + i64::from(off)));
        if tie == 0 || i64::from(b.scale) < i64::from(size.bytes()) {
            return;
        }
        let loose = |a: &&mut Attempt| a.k == tie && a.phase == Phase::Loose;
        if let Some(a) = self.loops.open.iter_mut().find(loose)
            && a.fills.len() < MAX_FILLED
            && !a.fills.contains(&at)
        {
            a.fills.push(at);
        }
    }

    /// Whether the path of a havocked iteration ends before this step, because it leaves the loop or has taken too many
    /// steps.
    pub(in crate::walk) fn leaves_loose(&mut self) -> Res<bool> {
        let (frame, pc, steps) = (self.state.frames.len() - 1, self.pc, self.stats.steps);
        let mut late = None;
        for (i, a) in self.loops.open.iter().enumerate().filter(|(_, a)| a.phase == Phase::Loose) {
            if frame < a.frame || (frame == a.frame && !self.loops.forest.contains(a.id, pc)) {
                return Ok(true);
            }
            if late.is_none() && steps > a.steps {
                late = Some(i);
            }
        }
        if late.is_some() && self.loops.hasty {
            self.loops.postponed = true;
            return refuse(Reason::Steps(self.steps));
        }
        if let Some(i) = late {
            self.fail(i, LoopFailure::TooLong)?;
            // The state that entered is kept at the head, and has not come round.
            self.loops.resumed = true;
        }
        Ok(false)
    }

    /// Assumes, in the havocked iteration of a candidate with relations, that a pointer into a region lies before the
    /// region's end, with `bytes` bytes in between. Pointers that move up to the end are compared with it, and without
    /// the assumption, a comparison says nothing about a pointer that may already be behind it.
    pub(in crate::walk) fn assume_before_end(&mut self, region: u8, p: &Value, bytes: i64) {
        let assumed = self.loops.guessing() && self.loops.rich() && !self.loops.anywhere;
        if p.line_id() != 0 && (assumed || (planted!(AssumedBeforeEnd) && self.loops.checking())) {
            self.state.learn_below(Room { id: p.line_id(), scale: p.scale, bytes, hi: len_id(region) });
            self.loops.assumed_within = true;
        }
    }

    /// Assumes, in a havocked iteration, that an access is within bounds, and bounds the number that its pointer moves
    /// with.
    fn assume_within(&mut self, base: Reg, off: i16, size: Size) {
        let v = *self.state.reg(base);
        // (With `further`, this misleads more candidates than it helps.)
        if let (Ty::Packet { region }, false) = (v.ty, self.loops.further) {
            self.assume_before_end(region, &v, i64::from(v.delta) + i64::from(off) + i64::from(size.bytes()));
        }
        let (min, max) = match v.ty {
            Ty::Stack { .. } => (-i64::from(self.env.frame_bytes), 0),
            Ty::MapValue { .. } | Ty::Mem { .. } => (0, size_of(&v, self.env).into()),
            // An inner loop that is left by `!=` bounds nothing else.
            Ty::Packet { region } if self.loops.further => (0, self.env.region(region).max_len.into()),
            _other => return,
        };
        let (off, size) = (i64::from(off), i64::from(size.bytes()));
        if v.line_id() != 0
            && !self.loops.anywhere
            && let Some(n) = v.n.meet(&Scalar::signed(min - off, max - off - size))
        {
            self.state.bound_by(&Value { n, ..v });
            self.loops.assumed_within = true;
        }
    }

    /// Handles a refused step. In a havocked iteration, the path continues as if the step had been allowed; then
    /// returns `true`.
    pub(in crate::walk) fn tolerate(&mut self, insn: &Insn, reason: &Reason) -> bool {
        if !matches!(
            reason,
            Reason::Bounds { .. }
                | Reason::PacketBounds { .. }
                | Reason::PacketBefore { .. }
                | Reason::StackBounds { .. }
                | Reason::OffsetUnbounded(..)
        ) {
            return false;
        }
        if let Insn::Load { size, base, off, .. } | Insn::Store { size, base, off, .. } = *insn {
            self.assume_within(base, off, size);
        }
        match *insn {
            Insn::Load { size, sign: false, dst, base, off } => {
                let b = *self.state.reg(base);
                let known = self.frozen_or_tabled(&b, off, size).or_else(|| self.likely_element(&b, off, size));
                self.state.set(dst, known.unwrap_or(Value::scalar(Scalar::low_bits(size.bits()))));
                true
            }
            Insn::Load { dst, .. } => {
                self.state.set(dst, Value::unknown());
                true
            }
            Insn::Store { size, base, off, src } => {
                // The stored number counts as a value of the whole array.
                if self.loops.orders && matches!(self.state.reg(base).ty, Ty::Stack { .. }) {
                    let _tolerated_too = self.store(size, base, off, src);
                }
                true
            }
            Insn::Alu { dst, src, .. } => {
                let d = *self.state.reg(dst);
                let p = match src {
                    bpf_isa::Src::Reg(r) if d.is_scalar() => *self.state.reg(r),
                    _ => d,
                };
                let id = if matches!(p.ty, Ty::Packet { .. }) { offset_name(self.new_id()) } else { p.id };
                let n = Scalar::signed(0, i32::MAX.into());
                self.state.set(dst, Value { n, id, scale: 1, delta: 0, tie: 0, ..p });
                true
            }
            Insn::Mov { .. }
            | Insn::MovSx { .. }
            | Insn::Cast { .. }
            | Insn::Neg { .. }
            | Insn::End { .. }
            | Insn::LoadImm64 { .. }
            | Insn::SecondSlot
            | Insn::Atomic { .. }
            | Insn::LoadAcquire { .. }
            | Insn::StoreRelease { .. }
            | Insn::LoadAbs { .. }
            | Insn::LoadInd { .. }
            | Insn::Jump { .. }
            | Insn::JumpReg { .. }
            | Insn::JumpIf { .. }
            | Insn::MayGoto { .. }
            | Insn::Call(_)
            | Insn::Exit => false,
        }
    }
}
