//! Differences that compilers derive from comparisons and from other differences.
//!
//! Problem: `x != 0 && x <= n` is compiled to `x - 1 < n`, a range test to `x - 65 < 26`, and `n - 1 - x` to `~x + n`.
//! The subtraction may wrap, so by itself the result is any number. Approach: the difference is remembered modulo two
//! to the power of its width ([`Wrap`]), until a comparison shows whether it has wrapped ([`super::lines`]); a
//! complement is a definition ([`Made::Inverted`]).
//!
//! A difference `w = v - by` that has not wrapped is at most `most(v) - by`. A difference that a comparison shows to be
//! above that has wrapped (`i - 255 > -258` is how `i + 2 <= 256` is compiled), and is `v - by + 2^bits`.
//!
//! A counter that goes down is a constant minus the number of the round, and so is the counter minus a constant. It is
//! remembered with that form of its minuend ([`Whole::Less`]), so that it stays on its line if it has not wrapped.
//!
//! A number that counts up to 0 from a negative number is a difference, too: `x + 1` is adjacent to `x` if it has
//! wrapped.
//!
//! The subtrahend may be another number (`a[j - gap]` is computed before the test `j >= gap`; [`Difference`]). Once the
//! subtrahend is known to be at most the minuend, the three are a sum like any other. Adding the subtrahend to the
//! difference yields the minuend again, wrapped or not.
//!
//! Invariants: a [`Wrap`] or a [`Difference`] states no more than the subtraction did. No kept state has any, nor does
//! the initial state of a loop's candidate.

use bpf_isa::{AluOp, Insn, Reg, Src, Width};

use super::linear::Form;
use super::{Walk, bits_of};
use crate::faults::planted;
use crate::scalar::Scalar;
use crate::state::{Difference, Made, Negative, State, Sum, Whole, Wrap};
use crate::tnum::ones;
use crate::value::Value;

/// Steps after a difference within which the comparison that settles it is expected. At joins in between, nothing is
/// kept or compared, except at loop heads.
const SOON: u64 = 8;
/// The most differences of a state: with a constant, and of two numbers.
const MAX_WRAPS: usize = 4;
const MAX_DIFFERENCES: usize = 2;

/// The upper bound of the name of a number that is the name plus a constant.
fn most_named(d: &Value) -> u64 {
    let most = i128::from(d.n.umax()) - i128::from(d.delta);
    u64::try_from(most.max(0)).unwrap_or(u64::MAX)
}

impl Walk<'_> {
    /// The wrap of a subtraction of a constant from a number that may be less: a later comparison of the result or the
    /// number settles whether it has wrapped (`x - 1 < y` is how `x != 0 && x <= y` is compiled, and `x - 65 < 26` is a
    /// range test).
    pub(super) fn may_wrap(&self, width: Width, op: AluOp, dst: Reg, src: Src) -> Option<Wrap> {
        let (AluOp::Add, Src::Imm(i)) = (op, src) else { return None };
        let d = self.state.reg(dst);
        if !d.is_scalar() || d.id == 0 || !(width == Width::W64 || d.is_short()) {
            return None;
        }
        if d.scale == -1 && i < 0 && d.n.umax() <= ones(bits_of(width)) {
            let by = u64::from(i.unsigned_abs());
            let whole = Whole::Less(d.delta.into());
            let wraps = d.n.umin() < by && self.relates();
            return wraps.then_some(Wrap { w: 0, v: d.id, whole, by, bits: bits_of(width), most: u64::MAX });
        }
        if d.scale != 1 {
            return None;
        }
        if i >= 0 {
            return self.may_overflow(width, d, i);
        }
        let by = i64::from(i.unsigned_abs()) - i64::from(d.delta);
        // The named number fits the width, so the size of the result alone tells whether it has wrapped.
        let fits = i128::from(d.n.umax()) - i128::from(d.delta) < 1 << bits_of(width);
        let by = u64::try_from(by).ok().filter(|by| *by > 0)?;
        let wraps = d.n.umin() < u64::from(i.unsigned_abs()) && fits && (self.relates() || self.is_tested_next(dst));
        wraps.then_some(Wrap { w: 0, v: d.id, whole: Whole::Name, by, bits: bits_of(width), most: most_named(d) })
    }

    /// Whether the next instruction compares the register with a constant: how compilers test a range (`x - 1 < 12`).
    fn is_tested_next(&self, r: Reg) -> bool {
        let next = self.insns.get(self.pc.index() + 1);
        matches!(next, Some(Insn::JumpIf { dst, src: Src::Imm(_), .. }) if *dst == r)
    }

    /// The wrap of an addition to a number that counts up to 0 from below: `x + c` is `x - (2^32 - c)` (or with 2^64),
    /// and is adjacent to `x` where it has wrapped.
    fn may_overflow(&self, width: Width, d: &Value, i: i32) -> Option<Wrap> {
        let bits = bits_of(width);
        let (i, all) = (i128::from(i), 1i128 << bits);
        let (least, most) = (i128::from(d.n.umin()), i128::from(d.n.umax()));
        let may = i > 0 && least >= all / 2 && most >= all - i;
        let by = all - i - i128::from(d.delta);
        let fits = most - i128::from(d.delta) < all && (1..all).contains(&by);
        let by = u64::try_from(by).ok()?;
        let wrap = || Wrap { w: 0, v: d.id, whole: Whole::Name, by, bits, most: most_named(d) };
        (may && fits && self.relates()).then(wrap)
    }

    /// Gives a multiple a name of its own before a subtraction that may wrap (`4 * n - 4`), since only named numbers
    /// are remembered.
    pub(super) fn name_multiple(&mut self, op: AluOp, dst: Reg, src: Src) {
        let (AluOp::Add, Src::Imm(i)) = (op, src) else { return };
        let d = *self.state.reg(dst);
        let may_wrap = i < 0 && d.n.umin() < u64::from(i.unsigned_abs());
        // Only if the next instruction compares the result with a number that only a wrapped result is near; elsewhere
        // its own name is worth more.
        let next = self.insns.get(self.pc.index() + 1);
        let compared = matches!(next, Some(Insn::JumpIf { dst: r, src: Src::Imm(..0), .. }) if *r == dst);
        if !compared || !may_wrap || !d.is_scalar() || d.id == 0 || d.scale <= 1 || !self.relates() {
            return;
        }
        let named = self.state.name_sum((d.id, d.id, d.scale - 1), 0, i64::MAX, &mut self.next_id);
        if let Some((id, apart)) = named
            && let Some(delta) = d.delta.checked_add(apart)
        {
            self.decides();
            self.state.set(dst, d.renamed(id, 1, delta));
        }
    }

    pub(super) fn note_wrap(&mut self, wrap: Wrap, dst: Reg) {
        if self.state.reg(dst).id != 0 || self.state.wraps.len() >= MAX_WRAPS {
            return;
        }
        self.give_name(dst);
        let w = self.state.reg(dst).id;
        if w != 0 {
            self.state.wraps.push(Wrap { w, ..wrap });
            self.differed = self.stats.steps;
        }
    }

    /// The wrap of a difference that a mask of low bits truncates: if the minuend fits these bits, the result is the
    /// same difference, modulo two to the power of their number (`(u8)(c - 'a') < 26`).
    pub(super) fn narrows_wrap(&self, op: AluOp, dst: Reg, src: Src) -> Option<Wrap> {
        let (AluOp::And, Src::Imm(mask @ 1..)) = (op, src) else { return None };
        let bits = mask.trailing_ones();
        let d = self.state.reg(dst);
        if self.state.wraps.is_empty() || mask.count_ones() != bits || (d.scale, d.delta) != (1, 0) {
            return None;
        }
        let named = |w: &&Wrap| w.whole == Whole::Name;
        let wraps = self.state.wraps.iter().filter(named);
        let wrap = { wraps }.find(|w| w.w == d.id && w.bits >= bits && w.by <= ones(bits))?;
        (wrap.most <= ones(bits) || planted!(CutDifferencesFit)).then_some(Wrap { bits, ..*wrap })
    }

    /// Notes that the register holds a truncated difference.
    pub(super) fn note_narrower(&mut self, wrap: Wrap, dst: Reg) {
        self.decides();
        self.give_name(dst);
        let r = *self.state.reg(dst);
        if r.id == 0 || (r.scale, r.delta) != (1, 0) {
            return;
        }
        let wraps = &mut self.state.wraps;
        if let Some(at) = wraps.iter().position(|w| w.w == wrap.w).filter(|_| wraps.len() >= MAX_WRAPS) {
            wraps.remove(at);
        }
        wraps.push(Wrap { w: r.id, ..wrap });
        self.differed = self.stats.steps;
    }

    /// Whether a difference is so new that the comparison which settles it is expected next.
    pub(super) fn awaits_comparison(&self) -> bool {
        self.stats.steps - self.differed <= SOON && self.loops.forest().headed(self.pc).is_none()
    }

    /// Computes `~v + w` as `w - v - 1`: how `len - 1 - n` is compiled.
    pub(super) fn less_complement(&mut self, width: Width, op: AluOp, dst: Reg, src: Src) -> bool {
        let (Width::W64, AluOp::Add, Src::Reg(r)) = (width, op, src) else { return false };
        if r == dst {
            return false;
        }
        let inverted = |r: Reg| {
            let d = self.state.reg(r);
            let mut of = self.state.definitions_of(d).filter(|x| x.made == Made::Inverted);
            of.next().map(|x| x.of.value(x.made.operand(&d.n)))
        };
        let found = inverted(dst).map(|v| (v, r)).or_else(|| inverted(r).map(|v| (v, dst)));
        let Some((v, whole)) = found.filter(|(_, whole)| self.state.reg(*whole).is_scalar()) else { return false };
        self.give_name(whole);
        let w = *self.state.reg(whole);
        let apart = -1;
        // The result must not be negative.
        let (Some(less), Some(more)) = (Form::of(&v), Form::of(&w)) else { return false };
        let gap = less.plus(&more, -1).and_then(|f| f.plus(&Form::constant(-i128::from(apart)), 1));
        if w.scale != 1 || !gap.is_some_and(|gap| self.state.proves(&gap)) {
            return false;
        }
        let named = self.state.name_difference((w.id, w.delta), &v, &mut self.next_id);
        let Some((id, delta)) = named.and_then(|(id, delta)| Some((id, delta.checked_add(apart)?))) else {
            return false;
        };
        self.decides();
        let n = w.n.alu(AluOp::Sub, width, &v.n).alu(AluOp::Add, width, &Scalar::constant(i64::from(apart) as u64));
        let n = n.meet(&Scalar::unsigned(0, w.n.umax())).unwrap_or(n);
        let mut facts = std::mem::take(&mut self.facts);
        let by = v.n.umin().saturating_add_signed(-i64::from(apart));
        let less = Value::scalar(Scalar::unsigned(by, by));
        super::lines::result_order((AluOp::Sub, width), &w, &less, (true, false), id, &mut facts);
        self.state.set(dst, Value { id, scale: 1, delta, ..Value::scalar(n) });
        for mut f in facts.drain(..) {
            f.bytes = f.bytes.saturating_add(delta.into());
            self.state.learn_below(f);
        }
        self.facts = facts;
        true
    }

    /// Notes the difference of two named numbers, which may wrap, under a name of its own.
    pub(super) fn note_difference(&mut self, width: Width, dst: Reg, whole: &Value, less: &Value) {
        let plain = |v: &Value| v.is_scalar() && v.id != 0 && (v.scale, v.delta) == (1, 0);
        let fits = |v: &Value| width == Width::W64 || v.is_short();
        let r = self.state.reg(dst);
        if r.id != 0
            || r.n.as_const().is_some()
            || !(plain(whole) && plain(less) && whole.id != less.id)
            || !(fits(whole) && fits(less) && self.relates())
            || self.state.differences.len() >= MAX_DIFFERENCES
        {
            return;
        }
        self.decides();
        self.give_name(dst);
        let w = self.state.reg(dst).id;
        let (whole, less) = (whole.id, less.id);
        self.state.differences.push(Difference { w, whole, less, bits: bits_of(width) });
        self.differed = self.stats.steps;
        if self.loops.further {
            self.state.settle_wrapped(&mut self.next_id);
        }
    }

    /// Computes `w + less`, of a difference, as the minuend. `d` and `s` are the operands, the sum is in `dst`.
    pub(super) fn whole_again(&mut self, width: Width, dst: Reg, d: &Value, s: &Value) {
        let plain = |v: &Value, id: u32| v.is_scalar() && v.id == id && (v.scale, v.delta) == (1, 0);
        let fits = |v: &Value| width == Width::W64 || v.is_short();
        let parts = |f: &&Difference| (plain(d, f.w) && plain(s, f.less)) || (plain(s, f.w) && plain(d, f.less));
        let found = self.state.differences.iter().filter(|f| f.bits == bits_of(width)).find(parts).copied();
        let (Some(f), true) = (found, fits(d) && fits(s)) else { return };
        let Some(most) = self.state.most_of(f.whole).and_then(|most| u64::try_from(most).ok()) else { return };
        self.decides();
        let n = Scalar::unsigned(0, most.min(ones(f.bits)));
        let n = self.state.reg(dst).n.meet(&n).unwrap_or(n);
        self.state.set(dst, Value { id: f.whole, ..Value::scalar(n) });
    }
}

impl State {
    /// Learns from a difference that has wrapped: it is the negative of a part of a sum. For `i < n`, `i - n` is less
    /// than `-4` if `i + 4 < n`.
    ///
    /// Claim: with `V(whole) < V(less)`, `V(w) = 2^bits - V(v)` for `V(v) = V(less) - V(whole)`, which is above 0.
    /// Proof: both are numbers of `bits` bits, so their difference is less than 2^bits in magnitude, and a difference
    /// below 0 wraps exactly once.
    fn settle_wrapped(&mut self, next_id: &mut u32) {
        for i in (0..self.differences.len()).rev() {
            let Difference { w, whole, less, bits } = self.differences[i];
            let below = self.below(whole, 1, less).filter(|gap| *gap > 0 || (*gap == 0 && planted!(EqualIsLess)));
            let Some(gap) = below else { continue };
            self.differences.swap_remove(i);
            *next_id += 1;
            let v = *next_id;
            self.push_sum(Sum { s: less, a: v, b: whole, scale: 1, delta: 0, max: i64::MAX, split: false });
            self.negatives.push(Negative { w, v, bits });
            let (all, most) = (1i128 << bits, self.most_of(less).unwrap_or((1i128 << bits) - 1));
            self.bound(v, gap.into(), most, super::lines::MAX_HOPS);
            // Bounds the difference itself.
            self.bound(w, all - most, all - i128::from(gap), 0);
        }
    }

    /// Settles differences with a constant that have not wrapped, with all facts: an order may show it where no range
    /// does.
    pub(super) fn settle_wraps_by_proof(&mut self) {
        for Wrap { v, by, bits, most, .. } in self.wraps.clone().into_iter().filter(|w| w.whole == Whole::Name) {
            let most = i128::from(most.min(ones(bits)));
            let most = Some(most).filter(|most| *most >= i128::from(by));
            let least = Form::constant(by.into()).plus(&Form::name(v), -1);
            if let (Some(most), Some(least)) = (most, least)
                && self.proves(&least)
            {
                self.bound(v, by.into(), most, super::lines::MAX_HOPS);
            }
        }
    }

    /// Turns differences that are now known not to have wrapped into sums.
    pub(super) fn settle_differences(&mut self) {
        for i in (0..self.differences.len()).rev() {
            let Difference { w, whole, less, .. } = self.differences[i];
            if self.below(less, 1, whole).is_none_or(|gap| gap < 0) && !planted!(DifferencesNeverWrap) {
                continue;
            }
            self.differences.swap_remove(i);
            self.push_sum(Sum { s: whole, a: w, b: less, scale: 1, delta: 0, max: i64::MAX, split: false });
            let least = self.least_of(less).unwrap_or(0).max(0);
            let most = self.most_of(whole).unwrap_or(u64::MAX.into());
            self.bound(w, 0, most - i128::from(least), super::lines::MAX_HOPS);
        }
    }
}
