//! State merging: widens numbers that keep paths apart.
//!
//! Problem: after headers of several lengths, paths join that differ only in the range of one number, an offset that is
//! needed exactly. Each of them is walked to the end, with everything that follows, and behaves like the others. Mostly
//! the number only needs to be small, but that is known only from the steps that use it.
//!
//! Approach (state merging, Kuznetsov et al. 2012): where the newest finished state would cover the path but for one
//! number, of which the path knows only a range, the number is widened to all numbers of as many bits, so that the next
//! arrivals are covered. (Low bits that all of these numbers have in common stay known, so offsets keep their
//! alignment.) Merging begins only after many steps ([`crate::Env::merge_after`]), since little is gained in short
//! walks. Programs with loops are not merged, since the widened number may be the one that ends a loop. Constants are
//! not widened either: they mostly encode where a path came from, and widening them would make infeasible branches
//! feasible.
//!
//! A merge that loses too much costs work only: if such a walk is refused, for any reason, the program is walked again
//! without merging ([`crate::ways`]), with half of the fuel still left. Therefore merging refuses no program.
//!
//! Soundness. The state with which the path continues covers the state before, and more: a range is replaced by a
//! larger one, and names that related the number to other values are removed. Neither the checks in the following
//! steps, nor the demand on earlier states ([`crate::walk::trail`]), depends on where a state comes from: every
//! concrete state that fitted the old state fits the larger one. A number below 2^32 stays below, since the instruction
//! that wrote it may have ended the need of its operands ([`crate::walk::trail`], `half`).

use super::widen::bits_of;
use super::{covers, forget_ids, same_shape};
use crate::faults::planted;
use crate::interval::Interval;
use crate::scalar::Scalar;
use crate::state::State;
use crate::tnum::{Tnum, ones};
use crate::value::{Value, Why};
use crate::walk::Walk;

/// The place of a number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    Reg { frame: usize, reg: usize },
    Slot { frame: usize, depth: u16, size: u8 },
}

impl Place {
    fn of(self, state: &mut State) -> Option<&mut Value> {
        match self {
            Place::Reg { frame, reg } => state.frames.get_mut(frame)?.regs.get_mut(reg),
            Place::Slot { frame, depth, size } => {
                let mut spills = state.frames.get_mut(frame)?.spills.iter_mut();
                spills.find(|s| (s.depth, s.size) == (depth, size)).map(|s| &mut s.value)
            }
        }
    }
}

/// The only number whose range keeps `old` from covering `new`, judged by registers and slots. `None` if there are none
/// or several, or something else differs.
fn differing_number(old: &State, new: &State) -> Option<Place> {
    let mut found = None;
    // Whether at most one number differs so far.
    let mut compare = |o: &Value, n: &Value, place: Place| {
        if o.is_uninit() || (o.is_scalar() && n.is_scalar() && n.n.subset(&o.n)) {
            return true;
        }
        if o.ty != n.ty {
            return false;
        }
        !o.is_scalar() || found.replace(place).is_none()
    };
    for (frame, (o, n)) in old.frames.iter().zip(&new.frames).enumerate() {
        let mut regs = o.regs.iter().zip(&n.regs).enumerate();
        if !regs.all(|(reg, (o, n))| compare(o, n, Place::Reg { frame, reg })) {
            return None;
        }
        for s in &o.spills {
            let like = n.spilled(s.depth.into(), s.size.into());
            if like.is_some_and(|n| !compare(&s.value, &n.value, Place::Slot { frame, depth: s.depth, size: s.size })) {
                return None;
            }
        }
    }
    found
}

/// All numbers of as many bits as both have, with the low bits that they share: offsets keep their alignment.
fn of_as_many_bits(a: &Scalar, b: &Scalar) -> Scalar {
    let both = a.join(b);
    let unknown = both.bits().mask();
    let low = !unknown & unknown.wrapping_sub(1);
    let shared = Tnum::new(both.bits().value() & low, !low);
    Scalar::of(shared, Interval::unsigned(0, ones(bits_of(&both, 0))), Interval::FULL)
}

impl Walk<'_> {
    /// Merges the path with `newest`, the finished state here that was finished last, if that state would cover it but
    /// for the range of one number. No finished state here covers the path.
    pub(super) fn merge_with(&mut self, newest: u32) {
        let prune = &mut self.scratch.prune;
        let old = &mut prune.kept[newest as usize].state;
        if !same_shape(old, &self.state) {
            return;
        }
        let Some(place) = differing_number(old, &self.state) else { return };
        let Some(new) = place.of(&mut self.state).copied() else { return };
        if new.n.as_const().is_some() {
            return;
        }
        // Without the number, the old state covers any value there.
        let Some(at) = place.of(old) else { return };
        let number = std::mem::replace(at, Value::uninit(Why::Dead));
        let rest = covers(old, &self.state, &mut prune.ids);
        if let Some(at) = place.of(old) {
            *at = number;
        }
        let n = of_as_many_bits(&number.n, &new.n);
        if !rest || !n.high_half_is_zero() {
            return;
        }
        debug_assert!(new.n.subset(&n) && number.n.subset(&n));
        let n = if planted!(MergedIsOld) { number.n } else { n };
        if let Some(at) = place.of(&mut self.state) {
            *at = Value::scalar(n);
        }
        // Values that were related to it may be related to nothing now.
        forget_ids(&mut self.state, &mut self.scratch.prune.names, false, self.loops.tabled());
        if self.stats.merged == 0 {
            self.halve_fuel();
        }
        self.stats.merged += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_numbers_of_as_many_bits_hold_both() {
        let numbers: Vec<Scalar> =
            [(0, 0), (0x36, 0x36), (2, 0xfe), (0x3e, 0x836), (7, 0xffff), (1, 1 << 20), (3, 1 << 40)]
                .into_iter()
                .flat_map(|(min, max)| {
                    let n = Scalar::unsigned(min, max);
                    let even = Scalar::of(Tnum::new(0, !1), Interval::FULL, Interval::FULL);
                    [Some(n), n.meet(&even)].into_iter().flatten()
                })
                .collect();
        for a in &numbers {
            for b in &numbers {
                let n = of_as_many_bits(a, b);
                assert!(a.subset(&n) && b.subset(&n), "{a:?} {b:?} {n:?}");
                assert_eq!(n.high_half_is_zero(), a.high_half_is_zero() && b.high_half_is_zero());
                let even = |n: &Scalar| n.bits().mask() & 1 == 0 && n.bits().value() & 1 == 0;
                assert!(!(even(a) && even(b)) || even(&n), "{a:?} {b:?} {n:?}");
            }
        }
    }
}
