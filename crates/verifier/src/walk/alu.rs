//! Arithmetic and moves: numbers by the scalar domain, pointers by their offset.
//!
//! Pointers allow 64-bit addition and subtraction of bounded numbers, and nothing else: any other operation would turn
//! an address into a number the program could store or compare.

use bpf_isa::{AddrSpace, AluOp, ByteOrder, EndWidth, Insn, Reg, Src, SxWidth, Width};

use super::definitions::fits;
use super::linear::Form;
use super::pointers::{MAX_OFFSET, low_half};
use super::{Res, Walk, bits_of, refuse};
use crate::error::Reason;
use crate::faults::planted;
use crate::scalar::Scalar;
use crate::tnum::ones;
use crate::value::{FIRST_FREE_ID, Ty, Value, Why, age};

impl Walk<'_> {
    pub(super) fn alu(&mut self, width: Width, op: AluOp, dst: Reg, src: Src) -> Res<()> {
        if let Src::Imm(i) = src {
            check_immediate(op, width, i)?;
        }
        if (width, op) == (Width::W64, AluOp::Add)
            && let Some(v) = self.signed_sum(dst, src)?
        {
            self.state.set(dst, v);
            return Ok(());
        }
        let op = self.unsigned(width, op, dst, src);
        if self.numbers(width, op, dst, src) {
            return Ok(());
        }
        // An address is needed exactly, and so is the number that moves it.
        self.decides();
        let stale = |r: Reg| self.state.reg(r).is_stale();
        if stale(dst) || matches!(src, Src::Reg(r) if stale(r)) {
            let v = self.stale_alu(width, op, dst, src)?;
            self.state.set(dst, v);
            return Ok(());
        }
        let d = self.read(dst)?;
        let s = self.read_src(src)?;
        if d.is_arena() || s.is_arena() {
            let other = if d.is_arena() { (&s, src) } else { (&d, Src::Reg(dst)) };
            let v = match other {
                // The result of any operation on an arena address is an arena address, as in the kernel.
                (v, _) if v.is_scalar() || v.is_arena() => Value::arena(),
                (v, Src::Reg(r)) => return refuse(Reason::PointerOp(r, v.describe(self.env))),
                (_, Src::Imm(_)) => return refuse(Reason::Internal("immediate pointer")),
            };
            self.state.set(dst, v);
            return Ok(());
        }
        let op = match width {
            Width::W64 if op == AluOp::Or && self.is_sum_of_bits(&d, &s) => AluOp::Add,
            Width::W32 | Width::W64 => op,
        };
        let v = match (self.address(width, op, (dst, &d), (src, &s)), self.biased(width, op, &d, &s)) {
            (Ok(v), _) => v,
            (Err(_), Some(v)) => v,
            (Err(e), None) => return Err(e),
        };
        self.state.set(dst, v);
        Ok(())
    }

    /// Returns the result of an operation on at least one address: an address or a distance.
    fn address(&mut self, width: Width, op: AluOp, (dst, d): (Reg, &Value), (src, s): (Src, &Value)) -> Res<Value> {
        let (d, s) = (*d, *s);
        let shown = self.env.privileged && op == AluOp::Sub;
        Ok(match (d.is_scalar(), s.is_scalar()) {
            (false, true) if width == Width::W64 && matches!(op, AluOp::Add | AluOp::Sub) => {
                let near = self.loops.guessing() || (planted!(AssumedNear) && self.loops.checking());
                let s = if let (true, Src::Reg(r)) = (near, src) { self.assume_near(r, &d) } else { s };
                // The number gets a name, so that a comparison of it bounds the pointer, too.
                let s = match src {
                    Src::Reg(r) if matches!(d.ty, Ty::Packet { .. }) || self.loops.related => self.name(r),
                    _ => s,
                };
                self.pointer_add(dst, &d, &s, op == AluOp::Sub)?
            }
            (true, false) if width == Width::W64 && op == AluOp::Add => {
                let Src::Reg(reg) = src else { return refuse(Reason::Internal("immediate pointer")) };
                let near = self.loops.guessing() || (planted!(AssumedNear) && self.loops.checking());
                let d = if near { self.assume_near(dst, &s) } else { d };
                let d = if self.loops.related { self.name(dst) } else { d };
                self.pointer_add(reg, &s, &d, false)?
            }
            (false, false) if op == AluOp::Sub => {
                // The pointer gets a name, so that a comparison of the difference bounds the pointer, too.
                let tied = match src {
                    Src::Reg(r) => self.tied(r),
                    Src::Imm(_) => s,
                };
                match self.distance(width, &d, &tied) {
                    Some(distance) => distance,
                    None if shown && planted!(ShownDistanceShort) => Value::scalar(Scalar::low_bits(16)),
                    None if shown => Value::scalar(Scalar::low_bits(bits_of(width))),
                    None => return refuse(Reason::TwoPointers(dst, s.describe(self.env))),
                }
            }
            (false, false) => return refuse(Reason::TwoPointers(dst, s.describe(self.env))),
            (_, _) if shown && width == Width::W32 => Value::scalar(Scalar::low_bits(32)),
            (false, true) => return refuse(Reason::PointerOp(dst, d.describe(self.env))),
            (true, _) => {
                let Src::Reg(reg) = src else { return refuse(Reason::Internal("immediate pointer")) };
                return refuse(Reason::PointerOp(reg, s.describe(self.env)));
            }
        })
    }

    /// Whether the OR of a pointer and a number is their sum: compilers index small aligned arrays like this (`fp - 8 |
    /// (i & 7)`).
    ///
    /// Claim: the OR is the sum if the address is a multiple of a power of two that is above the number. Proof: no bit
    /// is set in both, so nothing is carried.
    fn is_sum_of_bits(&mut self, d: &Value, s: &Value) -> bool {
        let (p, n) = match (d.is_scalar(), s.is_scalar()) {
            (false, true) => (d, s),
            (true, false) => (s, d),
            (true, true) | (false, false) => return false,
        };
        let memory = matches!(p.ty, Ty::Stack { .. } | Ty::MapValue { .. } | Ty::Mem { .. });
        let above = n.n.bits().max().checked_add(1).and_then(u64::checked_next_power_of_two);
        let Some(above) = above.and_then(|above| u32::try_from(above).ok()).filter(|above| *above <= 8) else {
            return false;
        };
        memory && (self.aligned(p, 0, above) || planted!(OrIsSum))
    }

    /// The unsigned operation for a signed division of numbers that are not negative.
    fn unsigned(&self, width: Width, op: AluOp, dst: Reg, src: Src) -> AluOp {
        let unsigned = match op {
            AluOp::SDiv => AluOp::Div,
            AluOp::SMod => AluOp::Mod,
            AluOp::Add
            | AluOp::Sub
            | AluOp::Mul
            | AluOp::Div
            | AluOp::Mod
            | AluOp::Or
            | AluOp::And
            | AluOp::Xor
            | AluOp::Lsh
            | AluOp::Rsh
            | AluOp::Arsh => return op,
        };
        let most = ones::<u64>(bits_of(width) - 1);
        let positive = |r: Reg| self.state.reg(r).is_scalar() && self.state.reg(r).n.umax() <= most;
        let positive = positive(dst)
            && match src {
                Src::Reg(r) => positive(r),
                Src::Imm(i) => i >= 0,
            };
        if positive { unsigned } else { op }
    }

    /// Performs the operation in place, if both operands are numbers.
    pub(super) fn numbers(&mut self, width: Width, op: AluOp, dst: Reg, src: Src) -> bool {
        if self.ahead(width, op, dst, src) {
            return true;
        }
        if self.shifted_back(width, op, dst, src) || self.less_complement(width, op, dst, src) {
            return true;
        }
        if self.masks_nothing(width, op, dst, src) || (self.loops.related && self.cut(width, op, dst, src)) {
            return true;
        }
        self.bound_minuend(width, op, dst, src);
        self.name_parts(op, dst, src);
        self.name_multiple(op, dst, src);
        let wrap = self.may_wrap(width, op, dst, src);
        let narrower = self.narrows_wrap(op, dst, src);
        let lanes = self.lanes_after(width, op, dst, src);
        let factors = self.factors(width, op, dst, src);
        let definition = self.will_define(width, op, dst, src);
        let before = self.ordered_operands(op, dst, src);
        let done = self.numbers_in_place(width, op, dst, src);
        if let (Some((d, s)), true) = (factors, done) {
            self.name_factors(dst, &d, &s);
        }
        if let (Some((d, s)), true) = (before, done) {
            self.order_result(width, op, dst, &d, &s);
            match op {
                AluOp::Sub => self.note_difference(width, dst, &d, &s),
                AluOp::Add if !self.state.differences.is_empty() => self.whole_again(width, dst, &d, &s),
                _ => {}
            }
        }
        if let (Some((of, made)), true) = (definition, done) {
            self.define(dst, of, made);
        }
        if let (Some(lanes), true) = (lanes, done) {
            self.note_lanes(dst, lanes);
        }
        if let (Some(wrap), true) = (wrap, done) {
            self.note_wrap(wrap, dst);
        }
        if let (Some(wrap), true) = (narrower, done) {
            self.note_narrower(wrap, dst);
        }
        done
    }

    /// In a loop: names operands that are added or split, so that the whole is related to its parts. Applies to numbers
    /// short enough to be an index or a length.
    fn name_parts(&mut self, op: AluOp, dst: Reg, src: Src) {
        let small = |v: &Value| v.is_scalar() && v.n.umax() <= MAX_OFFSET as u64;
        let unnamed = |v: &Value| v.id == 0 && v.n.as_const().is_none();
        let d = self.state.reg(dst);
        match (op, src) {
            (AluOp::Add | AluOp::Sub | AluOp::Or, Src::Reg(r)) if r != dst => {
                let s = self.state.reg(r);
                let parts = small(d) && small(s) && (unnamed(d) || unnamed(s));
                // A constant plus a number is the number at a distance.
                let distance = d.n.as_const().is_some() && op != AluOp::Sub;
                let parts = parts && (op != AluOp::Or || d.n.bits().max() & s.n.bits().max() == 0);
                if parts && (distance || self.relates()) {
                    self.give_name(dst);
                    self.give_name(r);
                }
            }
            (AluOp::And | AluOp::Rsh | AluOp::Div | AluOp::Mod, Src::Imm(_))
                if unnamed(d) && small(d) && self.relates() =>
            {
                self.give_name(dst);
            }
            _ => {}
        }
    }

    /// A mask with every bit that a number may have leaves the number unchanged, with its name: clang's cast to a byte.
    /// Elsewhere such a mask gives the number another name, since accepted programs rely on that.
    fn masks_nothing(&mut self, width: Width, op: AluOp, dst: Reg, src: Src) -> bool {
        let mask = match (op, src) {
            (AluOp::And, Src::Imm(mask)) if self.loops.further => mask as i64 as u64,
            (AluOp::And, Src::Reg(r)) if self.loops.related && r != dst => match self.state.reg(r).as_const() {
                Some(mask) => mask,
                None => return false,
            },
            _ => return false,
        };
        let mask = mask & super::bits_mask(width);
        let d = self.state.reg(dst);
        // Low bits that the number cannot have need not be in the mask.
        let fits = mask | ((1 << d.n.bits().max().trailing_zeros().min(31)) - 1);
        if matches!(mask, 0xff | 0xffff) || (self.loops.related && fits == ones(32)) {
            self.assume_fits(fits, dst);
        }
        let d = self.state.reg(dst);
        if !d.is_scalar() || d.n.bits().max() & !mask != 0 {
            return false;
        }
        // The number's range is needed exactly: for a larger number, the mask would remove bits.
        self.decides();
        true
    }

    /// While a candidate is formed: assumes that a place which is cast to 32 bits fits them.
    pub(super) fn assume_short(&mut self, by: u32, r: Reg) {
        let n = self.state.reg(r).n;
        if by == 32 && !fits(&n, by, false) && !fits(&n, by, true) {
            self.assume_fits(ones(32), r);
        }
    }

    /// While a candidate is formed: assumes that a named number is at most `most`, to which bits it is truncated.
    fn assume_fits(&mut self, most: u64, r: Reg) {
        let v = *self.state.reg(r);
        if (self.loops.assumes() || (planted!(AssumedShort) && self.loops.checking()))
            && v.is_scalar()
            && v.id != 0
            && let Some(n) = v.n.meet(&Scalar::unsigned(0, most))
        {
            self.loops.see_assumed();
            self.state.bound_by(&Value { n, ..v });
        }
    }

    /// The operands, if the order of the result and the operands is worth knowing: in loops, and for numbers that are
    /// at most a region's length.
    fn ordered_operands(&self, op: AluOp, dst: Reg, src: Src) -> Option<(Value, Value)> {
        let d = self.state.reg(dst);
        let s = match src {
            Src::Reg(r) if r == dst => return None,
            Src::Reg(r) => Some(self.state.reg(r)),
            Src::Imm(_) => None,
        };
        if d.id == 0 && s.is_none_or(|s| s.id == 0) {
            return None;
        }
        let shifts = self.loops.further && op == AluOp::Rsh;
        let wanted = self.relates()
            || shifts
            || (matches!(op, AluOp::Rsh | AluOp::Div | AluOp::And) && d.id != 0 && d.id < FIRST_FREE_ID);
        wanted.then(|| {
            let s = match src {
                Src::Reg(r) => *self.state.reg(r),
                Src::Imm(i) => Value::constant(i as i64 as u64),
            };
            (*d, s)
        })
    }

    /// Names the result of an operation on these operands: the name is kept or multiplied, or a new one is ordered with
    /// theirs.
    fn order_result(&mut self, width: Width, op: AluOp, dst: Reg, d: &Value, s: &Value) {
        let r = self.state.reg(dst);
        if r.id != 0 || r.n.as_const().is_some() {
            return;
        }
        // Only the low 32 bits of a constant take part.
        let low = s.n.as_const().filter(|_| width == Width::W32 && self.loops.further);
        let low = low.map(|c| Value::constant(c & ones::<u64>(32)));
        let s = low.as_ref().unwrap_or(s);
        // One number at two distances.
        if op == AluOp::Sub && d.id != 0 && (d.id, d.scale) == (s.id, s.scale) {
            let apart = Scalar::constant((i64::from(d.delta) - i64::from(s.delta)) as u64);
            let apart = if width == Width::W32 { apart.zext_low() } else { apart };
            if let Some(n) = self.state.reg(dst).n.meet(&apart) {
                self.decides();
                self.state.set(dst, Value::scalar(n));
                return;
            }
        }
        if let Some((scale, delta)) = multiplied(width, op, d, s) {
            let r = &mut self.state.top_mut().regs[dst.index()];
            (r.id, r.scale, r.delta) = (d.id, scale, delta);
            return;
        }
        let (exact, max) = self.exact(width, op, d, s);
        // Later proofs may rest on the facts from which this follows.
        self.scratch.prune.sums |= exact && self.loops.rich();
        let named = match exact && self.relates() {
            _ if width == Width::W32 && !(d.n.high_half_is_zero() && s.n.high_half_is_zero()) => None,
            true => {
                let most = (max, self.loops.further, self.loops.related);
                super::sums::result_name(&mut self.state, (op, width), d, s, most, &mut self.next_id)
            }
            false => None,
        };
        let (id, scale, delta) = named.unwrap_or((self.next_id + 1, 1, 0));
        let mut facts = std::mem::take(&mut self.facts);
        super::lines::result_order((op, width), d, s, (exact, self.loops.further), id, &mut facts);
        let short = width == Width::W64 || (d.n.high_half_is_zero() && s.n.high_half_is_zero());
        if short && matches!((op, s.n.as_const()), (AluOp::Rsh, Some(1)) | (AluOp::Div, Some(2))) {
            self.state.middle(d, id, &mut facts);
        }
        if named.is_some() || !facts.is_empty() {
            // Later proofs may rest on these facts.
            self.decides();
            self.next_id = self.next_id.max(age(id));
            let r = &mut self.state.top_mut().regs[dst.index()];
            (r.id, r.scale, r.delta) = (id, scale, delta);
            for mut f in facts.drain(..).filter(|_| scale == 1) {
                // The facts are about the result, or a multiple of it; its name is at a distance.
                let apart = i64::from(delta);
                let bytes = match f.hi == id {
                    true => f.bytes.checked_sub(apart),
                    false => f.bytes.checked_add(apart * i64::from(f.scale)),
                };
                let Some(bytes) = bytes else { continue };
                f.bytes = bytes;
                self.state.learn_below(f);
            }
        }
        self.facts = facts;
        if let (AluOp::And, true, Some(c)) = (op, short, s.n.as_const()) {
            // If the mask clears low bits, or bits that the number cannot have, the least number gives the least
            // result.
            let cleared = !(c | !super::bits_mask(width));
            let lost = cleared & d.n.bits().max();
            let are_low = |bits: u64| bits.wrapping_add(1).is_power_of_two();
            let low = are_low(cleared) || (lost != 0 && are_low(lost));
            // If the mask clears only bits that the number cannot have, the number is unchanged. (With array contents,
            // ranges are widened in steps, and begin with a smaller one.)
            let whole = (cleared & 1 == 1 || !self.loops.elements) && lost == 0;
            let left = if whole { d.n } else { Scalar::unsigned(d.n.umin() & c, u64::MAX) };
            let r = &mut self.state.top_mut().regs[dst.index()];
            if (low || whole)
                && let Some(n) = r.n.meet(&left)
            {
                r.n = n;
            }
        }
        if exact && named.is_some_and(|(_, scale, _)| scale == 1) {
            // The bound of an equal sum, or of one that is less by one; for a difference, a lower bound of 0.
            let most = self.state.most_by_sums(id).map(|most| i128::from(most) + i128::from(delta));
            let most = most.and_then(|most| u64::try_from(most.max(0)).ok()).map_or(max, |most| most.min(max));
            // The rest after a subtraction: a number that is at least 2, minus half of it, is not 0.
            let further = op == AluOp::Sub && self.loops.further && self.loops.may_ask();
            let less = || Form::of(s)?.plus(&Form::of(d)?, -1);
            let least = further.then(|| self.state.most_of_form(&less()?)?.checked_neg()).flatten();
            let least = least.map(|least| least + i128::from(planted!(LeftIsMore)));
            let least = least.and_then(|least| u64::try_from(least).ok()).filter(|least| *least <= most).unwrap_or(0);
            let r = &mut self.state.top_mut().regs[dst.index()];
            if let Some(n) = r.n.meet(&Scalar::unsigned(least, most)) {
                r.n = n;
            }
        }
    }

    /// Whether sums and orders of numbers are worth knowing: in loops, and before them.
    pub(super) fn relates(&self) -> bool {
        self.loops.relates() || self.state.in_guessed_loop()
    }

    /// Whether the operation on named numbers does not wrap, and then its greatest result. While a candidate is formed,
    /// sums are assumed not to wrap.
    fn exact(&self, width: Width, op: AluOp, d: &Value, s: &Value) -> (bool, u64) {
        let top = match width {
            Width::W32 => u64::from(u32::MAX),
            Width::W64 => u64::MAX,
        };
        match op {
            AluOp::Add => match d.n.umax().checked_add(s.n.umax()).filter(|max| *max <= top) {
                Some(max) => (true, max),
                None => {
                    let fits = || {
                        let sum = Form::of(d)?.plus(&Form::of(s)?, 1)?.plus(&Form::constant(top.into()), -1)?;
                        Some(self.state.proves(&sum))
                    };
                    let exact = self.loops.guessing() || planted!(SumsNeverWrap);
                    (exact || (self.loops.may_ask() && fits() == Some(true)), top)
                }
            },
            AluOp::Sub => {
                let less = || Some(self.state.proves(&Form::of(s)?.plus(&Form::of(d)?, -1)?));
                let exact = d.n.umin() >= s.n.umax()
                    || self.state.ordered(s, d)
                    || (self.loops.may_ask() && less() == Some(true));
                (exact, d.n.umax().saturating_sub(s.n.umin()))
            }
            AluOp::And | AluOp::Rsh => (true, top),
            // For positive divisors: the quotient and the remainder.
            AluOp::Div | AluOp::Mod => (s.n.umin() > 0, d.n.umax()),
            // `sums::result_name` names `x | 3` by the high bits of `x`, whatever its low bits are.
            AluOp::Or if self.loops.related && super::sums::sets_low_bits(s).is_some() => (true, top),
            // If no bit may be set in both, the OR is the sum.
            AluOp::Or => (d.n.bits().max() & s.n.bits().max() == 0, d.n.umax().saturating_add(s.n.umax()).min(top)),
            AluOp::Mul | AluOp::SDiv | AluOp::SMod | AluOp::Xor | AluOp::Lsh | AluOp::Arsh => (false, top),
        }
    }

    /// Whether the next instruction compares a difference with a number that only a wrapped difference is near (`i -
    /// 255 < -256` is how `i + 2 > 256` is compiled).
    fn compared_wrapped(&self, dst: Reg, by: Src) -> bool {
        let next = || self.insns.get(self.pc.index() + 1);
        matches!(by, Src::Imm(..0))
            && matches!(next(), Some(Insn::JumpIf { dst: r, src: Src::Imm(..0), .. }) if *r == dst)
    }

    /// Bounds a number from which a constant is subtracted from below, if all facts together show that the difference
    /// does not wrap (`n - 1 - i` in a loop up to `n / 2`).
    fn bound_minuend(&mut self, width: Width, op: AluOp, dst: Reg, src: Src) {
        let (AluOp::Add, Src::Imm(i @ ..0)) = (op, src) else { return };
        let d = *self.state.reg(dst);
        let by = u64::from(i.unsigned_abs());
        if !self.loops.related || !d.is_scalar() || d.id == 0 || d.n.umin() >= by || d.n.umax() < by {
            return;
        }
        let least = || Form::constant(by.into()).plus(&Form::of(&d)?, -1);
        let fits = width == Width::W64 || d.is_short();
        if fits && self.loops.may_ask() && least().is_some_and(|f| self.state.proves(&f)) {
            // Later proofs may rest on the facts from which this follows.
            self.decides();
            self.scratch.prune.sums = true;
            if let Some(n) = d.n.meet(&Scalar::unsigned(by, u64::MAX)) {
                self.state.bound_by(&Value { n, ..d });
            }
        }
    }

    fn numbers_in_place(&mut self, width: Width, op: AluOp, dst: Reg, src: Src) -> bool {
        let assume = self.loops.assumes() && !self.compared_wrapped(dst, src)
            || (planted!(WrapForgotten) && self.state.in_guessed_loop());
        let regs = &mut self.state.top_mut().regs;
        match src {
            Src::Imm(i) => {
                let d = &mut regs[dst.index()];
                if !d.is_scalar() {
                    return false;
                }
                scalar_op(width, op, d, &Scalar::constant(i as i64 as u64), assume);
            }
            Src::Reg(r) if r == dst => {
                let d = &mut regs[dst.index()];
                if !d.is_scalar() {
                    return false;
                }
                if matches!(op, AluOp::Sub | AluOp::Xor) {
                    *d = Value::constant(0);
                } else {
                    let s = d.n;
                    scalar_op(width, op, d, &s, assume);
                }
            }
            Src::Reg(r) => {
                let Ok([d, s]) = regs.get_disjoint_mut([dst.index(), r.index()]) else { return false };
                if !d.is_scalar() || !s.is_scalar() {
                    return false;
                }
                let ahead = match d.n.as_const() {
                    Some(c) if matches!(op, AluOp::Add | AluOp::Or) && s.id != 0 => {
                        step(width, op, s, &Scalar::constant(c))
                    }
                    _ => None,
                };
                scalar_op(width, op, d, &s.n, assume);
                if let Some((id, delta)) = ahead
                    && d.n.as_const().is_none()
                {
                    (d.id, d.scale, d.delta) = (id, s.scale, delta);
                }
            }
        }
        true
    }

    /// Gives the number in `r` a name, if it has none and is not constant.
    pub(super) fn name(&mut self, r: Reg) -> Value {
        self.give_name(r);
        *self.state.reg(r)
    }

    pub(super) fn give_name(&mut self, r: Reg) {
        let v = &mut self.state.top_mut().regs[r.index()];
        if v.is_scalar() && v.id == 0 && v.n.as_const().is_none() {
            self.next_id += 1;
            v.id = self.next_id;
        }
    }

    pub(super) fn mov(&mut self, width: Width, dst: Reg, src: Src) -> Res<()> {
        let r = match src {
            Src::Imm(imm) => {
                let imm = match width {
                    Width::W64 => imm as i64 as u64,
                    Width::W32 => u64::from(imm as u32),
                };
                self.state.set(dst, Value::constant(imm));
                return Ok(());
            }
            Src::Reg(r) => r,
        };
        // A copy of an unwritten or forgotten register is as unreadable. (clang copies a variable that is set on all
        // paths on which it is read on other paths, too.)
        if let Ty::Uninit(why @ (Why::Never | Why::Copied(..) | Why::Dead)) = self.state.reg(r).ty {
            let why = if let Why::Never = why { Why::Copied(self.pc, r) } else { why };
            self.state.set(dst, Value::uninit(why));
            return Ok(());
        }
        if self.state.reg(r).is_stale() {
            let v = *self.state.reg(r);
            let v = if width == Width::W64 { Some(v) } else { low_half(&v) };
            let Some(v) = v else { return self.read(r).map(|_| ()) };
            self.state.set(dst, v);
            return Ok(());
        }
        let v = self.peek(r)?;
        if width == Width::W32 && v.is_arena() {
            self.state.set(dst, Value::scalar(Scalar::low_bits(32)));
            return Ok(());
        }
        if width == Width::W32 && !v.is_scalar() {
            let bits = if planted!(ShownHalfShort) { 16 } else { 32 };
            let shown = self.env.privileged.then(|| Value::scalar(Scalar::low_bits(bits)));
            let Some(half) = low_half(v).or(shown) else {
                return refuse(Reason::PointerOp(r, v.describe(self.env)));
            };
            self.state.set(dst, half);
            return Ok(());
        }
        if width == Width::W32
            && !self.state.definitions.is_empty()
            && let Some(v) = self.short_behind(r).filter(Value::is_short)
        {
            self.decides();
            self.state.set(dst, v);
            return Ok(());
        }
        if width == Width::W32 && !v.is_short() {
            self.assume_short(32, r);
        }
        let short = self.state.reg(r).is_short();
        // Both copies share a name, so that a comparison of one refines the other.
        self.give_name(r);
        let regs = &mut self.state.top_mut().regs;
        regs.copy_within(r.index()..=r.index(), dst.index());
        if width == Width::W32 && !short {
            let d = &mut regs[dst.index()];
            let whole = self.loops.related.then_some(*d);
            d.n = d.n.zext_low();
            (d.id, d.scale, d.delta) = (0, 1, 0);
            if let Some(whole) = whole {
                self.cut_to_half(dst, &whole);
            }
        } else if !self.state.definitions.is_empty() {
            self.copied(r);
        }
        Ok(())
    }

    /// Casts a number to an arena address, or back. The low half of another address is refused, since it would become a
    /// number.
    pub(super) fn cast(&mut self, dst: Reg, src: Reg, to: AddrSpace) -> Res<()> {
        if self.arena.is_none() {
            return refuse(Reason::Unsupported("an address space cast needs an arena, and the program refers to none"));
        }
        let v = self.peek(src)?;
        if !v.is_scalar() && !v.is_arena() {
            return refuse(Reason::PointerOp(src, v.describe(self.env)));
        }
        self.state.set(
            dst,
            match to {
                AddrSpace::Kernel => Value::arena(),
                AddrSpace::User => Value::unknown(),
            },
        );
        Ok(())
    }

    pub(super) fn mov_sx(&mut self, width: Width, dst: Reg, src: Reg, from: SxWidth) -> Res<()> {
        let s = self.number(src)?;
        // A number that fits the source width is unchanged.
        let most = ones::<u64>(from.bits() - 1);
        let fits = s.smin() >= -(most as i64) - 1 && s.smax() <= most as i64;
        if s.umax() <= most || (width == Width::W64 && fits) {
            return self.mov(Width::W64, dst, Src::Reg(src));
        }
        let n = s.sign_extend(from.bits());
        let n = if width == Width::W32 { n.zext_low() } else { n };
        self.state.set(dst, Value::scalar(n));
        Ok(())
    }

    pub(super) fn neg(&mut self, width: Width, dst: Reg) -> Res<()> {
        let n = self.number(dst)?;
        let n = n.neg(width);
        self.state.set(dst, Value::scalar(n));
        Ok(())
    }

    pub(super) fn end(&mut self, order: ByteOrder, width: EndWidth, dst: Reg) -> Res<()> {
        let n = self.number(dst)?;
        let n = n.end(order, width.bits());
        self.state.set(dst, Value::scalar(n));
        Ok(())
    }

    /// The number in a register.
    pub(super) fn number(&self, r: Reg) -> Res<Scalar> {
        let v = self.shown(*self.peek(r)?);
        if !v.is_scalar() {
            return refuse(Reason::PointerOp(r, v.describe(self.env)));
        }
        Ok(v.n)
    }
}

/// Refuses immediates that the kernel refuses: division by 0, and shift counts that are not below the width.
fn check_immediate(op: AluOp, width: Width, imm: i32) -> Res<()> {
    match op {
        AluOp::Div | AluOp::SDiv | AluOp::Mod | AluOp::SMod if imm == 0 => refuse(Reason::DivByZero),
        AluOp::Lsh | AluOp::Rsh | AluOp::Arsh if !(0..bits_of(width) as i32).contains(&imm) => {
            refuse(Reason::ShiftTooWide { count: imm, bits: bits_of(width) })
        }
        AluOp::Div
        | AluOp::SDiv
        | AluOp::Mod
        | AluOp::SMod
        | AluOp::Lsh
        | AluOp::Rsh
        | AluOp::Arsh
        | AluOp::Add
        | AluOp::Sub
        | AluOp::Mul
        | AluOp::Or
        | AluOp::And
        | AluOp::Xor => Ok(()),
    }
}

/// An operation on two numbers. Adding a constant keeps the name of a named number, at a distance, if the sum does not
/// wrap: otherwise the distance would not be the same for every value. (A 32-bit sum within 32 bits has no upper half
/// to lose.)
///
/// While a candidate is formed (`assume`), the sum is assumed not to wrap; the check of the candidate makes no such
/// assumption.
fn scalar_op(width: Width, op: AluOp, d: &mut Value, s: &Scalar, assume: bool) {
    if assume && d.id != 0 {
        assume_no_wrap(width, op, d, s);
    }
    let named = if d.id == 0 { None } else { step(width, op, d, s) };
    d.n.alu_assign(op, width, s);
    match named {
        Some((id, delta)) => (d.id, d.delta) = (id, delta),
        None => (d.id, d.scale, d.delta) = (0, 1, 0),
    }
}

/// Removes from `d` the values for which adding a constant would wrap.
fn assume_no_wrap(width: Width, op: AluOp, d: &mut Value, s: &Scalar) {
    let Some(c) = s.as_const().map(|c| c as i64) else { return };
    let add = match op {
        AluOp::Add => i128::from(c),
        AluOp::Sub => -i128::from(c),
        _ => return,
    };
    let top = match width {
        Width::W32 => i128::from(u32::MAX),
        Width::W64 => i128::from(u64::MAX),
    };
    let (min, max) = ((-add).max(0), top.min(top - add));
    let (Ok(min), Ok(max)) = (u64::try_from(min), u64::try_from(max)) else { return };
    if let Some(n) = d.n.meet(&Scalar::unsigned(min, max)) {
        d.n = n;
    }
}

/// The scale and distance of the product of a named number and a constant, if it does not wrap.
fn multiplied(width: Width, op: AluOp, d: &Value, s: &Value) -> Option<(i16, i32)> {
    let c = s.n.as_const()?;
    let by = match op {
        AluOp::Mul => i32::try_from(c).ok()?,
        AluOp::Lsh if c < 15 => 1 << c,
        _ => return None,
    };
    if d.id == 0 || by <= 0 {
        return None;
    }
    let top = match width {
        Width::W32 => u64::from(u32::MAX),
        Width::W64 => u64::MAX,
    };
    let exact = d.n.umax() <= top && d.n.umax().checked_mul(by as u64)? <= top;
    exact.then_some((i16::try_from(i32::from(d.scale).checked_mul(by)?).ok()?, d.delta.checked_mul(by)?))
}

/// The name and distance of a sum with a constant, if it does not wrap.
fn step(width: Width, op: AluOp, d: &Value, s: &Scalar) -> Option<(u32, i32)> {
    let c = i32::try_from(s.as_const()? as i64).ok()?;
    let step = match op {
        AluOp::Add => c,
        AluOp::Sub => c.checked_neg()?,
        // An OR with bits that are 0: nothing is carried.
        AluOp::Or if c > 0 && d.n.bits().max() & c as u64 == 0 => c,
        AluOp::Mul
        | AluOp::Div
        | AluOp::SDiv
        | AluOp::Mod
        | AluOp::SMod
        | AluOp::Or
        | AluOp::And
        | AluOp::Xor
        | AluOp::Lsh
        | AluOp::Rsh
        | AluOp::Arsh => return None,
    };
    let delta = d.delta.checked_add(step)?;
    let exact = i128::from(d.n.umin()) + i128::from(step) >= 0
        && i128::from(d.n.umax()) + i128::from(step)
            <= match width {
                Width::W64 => i128::from(u64::MAX),
                Width::W32 => i128::from(u32::MAX),
            };
    exact.then_some((d.id, delta))
}
