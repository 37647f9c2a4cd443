//! Array segmentation: the part of a stack array that a loop has initialised so far.
//!
//! Problem: `for (i = 0; i < 64; i++) a[i] = ...` writes all of `a`, but each store lands at an unknown place in it, so
//! no single store proves that a byte is initialised. Approach (Cousot, Cousot and Logozzo 2011): while a loop is
//! walked from a candidate invariant, a frame records that the array is written from its start up to the next store of
//! the round ([`Fill`]). The fill is empty when the loop begins, and each store extends it by one element. When the
//! loop is left, the number of the round determines its extent.
//!
//! Invariant: each byte from `bottom` up to the end is part of a number. A number that is stored there keeps the
//! invariant; a pointer that is stored at or above `bottom` ends the fill, wherever its end is.

use crate::faults::planted;
use crate::state::{Byte, Fill, Frame, State};

/// The most fills of a frame.
const MAX_FILLS: usize = 4;

impl Frame {
    /// Begins an empty fill at `at`, as before round 0. Bytes that are already readable need none.
    pub(crate) fn begin_fill(&mut self, id: u32, scale: i16, at: i64) {
        let fill = Fill { bottom: at, id, scale, delta: at };
        let known = || at >= 0 || usize::try_from(-at).is_ok_and(|depth| self.check_readable(depth, 1).is_ok());
        if self.fills.len() < MAX_FILLS && scale > 0 && !known() && !self.fills.contains(&fill) {
            self.fills.push(fill);
        }
    }

    /// Extends fills after a number was stored in exactly the `size` bytes from `scale * V(id) + at`.
    pub(crate) fn extend_fills(&mut self, id: u32, scale: i16, at: i64, size: i64) {
        for f in self.fills.iter_mut().filter(|f| (f.id, f.scale) == (id, scale)) {
            if f.delta == at || (planted!(FillLeavesHoles) && f.delta <= at) {
                f.delta = at + size;
            }
        }
    }

    /// Ends the fills that a pointer's store overlaps.
    pub(crate) fn end_fills(&mut self, depth: usize, size: usize) {
        let end = size as i64 - depth as i64;
        self.fills.retain(|f| end <= f.bottom || planted!(FillHoldsPointers));
    }

    /// Makes the unreadable bytes from `from` to `to` unknown numbers.
    fn fill(&mut self, from: i64, to: i64) {
        let from = from.max(-i64::from(u16::MAX));
        if from >= to.min(0) {
            return;
        }
        self.grow(crate::num::size(from.unsigned_abs()));
        let bytes = &mut self.bytes;
        for at in from..to.min(0) {
            let Ok(i) = usize::try_from(-at - 1) else { continue };
            if matches!(bytes[i], Byte::Uninit | Byte::Fresh | Byte::Maybe) {
                bytes[i] = Byte::Misc;
            }
        }
    }
}

impl State {
    /// Makes the bytes readable that are certainly filled by this round, in each frame.
    pub(crate) fn settle_fills(&mut self, id: u32) {
        let round = self.frames.iter().flat_map(|f| &f.loops).find(|m| m.k.id == id).map(|m| m.k.n);
        let Some(least) = round.and_then(|k| i64::try_from(k.umin()).ok()) else { return };
        for frame in self.frames.iter_mut().filter(|f| !f.fills.is_empty()) {
            for i in 0..frame.fills.len() {
                let f = frame.fills[i];
                let end = least.checked_mul(f.scale.into()).and_then(|far| far.checked_add(f.delta));
                if let (true, Some(end)) = (f.id == id, end) {
                    frame.fill(f.bottom, end);
                }
            }
        }
    }

    /// Ends the fills of a loop that is left: its round has no number any more.
    pub(crate) fn leave_fills(&mut self, id: u32) {
        if self.frames.iter().all(|f| f.fills.is_empty()) {
            return;
        }
        self.settle_fills(id);
        self.frames.iter_mut().for_each(|f| f.fills.retain(|f| f.id != id));
    }

    /// Moves to the next round: `V(id)` increases by one, so the offsets decrease by the scale.
    pub(crate) fn next_fills(&mut self, id: u32) {
        for f in self.frames.iter_mut().flat_map(|f| &mut f.fills).filter(|f| f.id == id) {
            f.delta -= i64::from(f.scale);
        }
    }

    /// Whether all bytes that a load may read are initialised numbers. The load reads `size` bytes at `scale * V(id) +
    /// at`, which lie within the `span` bytes from r10 - depth.
    pub(crate) fn is_filled(
        &mut self,
        frame: usize,
        (depth, span): (usize, usize),
        (id, scale, at): (u32, i16, i64),
        size: i64,
    ) -> bool {
        let Some(f) = self.frames.get(frame).filter(|f| !f.fills.is_empty()) else { return false };
        let rounds: Vec<u32> = f.fills.iter().map(|f| f.id).collect();
        rounds.into_iter().for_each(|id| self.settle_fills(id));
        let f = &self.frames[frame];
        let from = -(depth as i64);
        // The bytes before the fill must be readable, and the load must not reach beyond the fill's end.
        let below = |bottom: i64| {
            let below = usize::try_from(bottom.saturating_sub(from)).map_or(0, |below| below.min(span));
            below == 0 || f.check_readable(depth, below).is_ok()
        };
        f.check_readable(depth, span).is_ok()
            || f.fills.iter().any(|f| (f.id, f.scale) == (id, scale) && at + size <= f.delta && below(f.bottom))
    }
}
