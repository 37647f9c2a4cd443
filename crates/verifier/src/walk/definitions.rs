//! Creation and use of definitions ([`crate::state::Definition`]): masks, shifts to the left and back, and the
//! consequences of a result's comparison for its operand.

use bpf_isa::{AluOp, Reg, Src, Width};

use super::branch::aligned;
use super::{Walk, bits_of};
use crate::faults::planted;
use crate::fields::masked_within;
use crate::scalar::Scalar;
use crate::state::{Affine, Definition, Left, Made, Room, State};
use crate::tnum::ones;
use crate::value::{FIRST_FREE_ID, Value};

/// Steps within which a copy of a number that was shifted to the left is expected to be used.
const SOON: u64 = 16;
/// Steps within which a number that may have wrapped round is expected to be compared.
const COMPARED_SOON: u64 = 24;
/// The most definitions that are followed from one bound to the next.
const MAX_HOPS: u32 = 4;

/// Whether a shift to the left by `by` (below 64) followed by a shift back restores the number: an arithmetic shift if
/// `signed`, a logical one otherwise.
pub(super) fn fits(n: &Scalar, by: u32, signed: bool) -> bool {
    match signed {
        false => n.umax() <= ones::<u64>(64 - by) || planted!(ShiftsLoseNothing),
        true => n.smin() >= -(1 << (63 - by)) && n.smax() < 1 << (63 - by),
    }
}

impl Walk<'_> {
    /// The definition of an operation's result, before the operation, if it is made of a named number and a constant
    /// and is worth keeping.
    pub(super) fn will_define(&mut self, width: Width, op: AluOp, dst: Reg, src: Src) -> Option<(Affine, Made)> {
        if self.loops.related {
            if let Some(definition) = self.less_than_constant(width, op, dst, src) {
                return Some(definition);
            }
        } else if !matches!(op, AluOp::Lsh | AluOp::Rsh | AluOp::And | AluOp::Xor) {
            return None;
        }
        let constant = match src {
            Src::Imm(i) => i as i64 as u64,
            Src::Reg(r) if r != dst => self.state.reg(r).as_const()?,
            Src::Reg(_) => return None,
        };
        if self.loops.related
            && let Some(made) = self.may_wrap_round(width, op, dst, constant)
        {
            return Some((Affine::of(self.state.reg(dst))?, made));
        }
        // Definitions by masks and right shifts are used only in walks that go further.
        let asked = self.loops.follows() && (op == AluOp::Rsh || self.relates()) || self.loops.related;
        let made = match (width, op) {
            (Width::W64, AluOp::Lsh) => {
                let by = u32::try_from(constant).ok().filter(|by| (1..=32).contains(by))?;
                self.assume_short(by, dst);
                let n = &self.state.reg(dst).n;
                Made::Left { by, unsigned: fits(n, by, false), signed: fits(n, by, true) }
            }
            (Width::W64, AluOp::Xor) if constant == u64::MAX && self.relates() => Made::Inverted,
            (_, AluOp::And) if asked => Made::Masked(constant),
            (_, AluOp::Rsh) if asked && constant < bits_of(width).into() => Made::Right(crate::num::low(constant)),
            _ => return None,
        };
        let d = self.state.reg(dst);
        // For a number longer than 32 bits, a 32-bit operation says nothing about the rest.
        let whole = width == Width::W64 || d.is_short();
        let lost = matches!(made, Made::Left { unsigned: false, signed: false, .. });
        let of = Affine::of(d).filter(|_| whole && !lost)?;
        Some((of, made))
    }

    /// Returns the definition of a constant minus a number.
    fn less_than_constant(&mut self, width: Width, op: AluOp, dst: Reg, src: Src) -> Option<(Affine, Made)> {
        let Src::Reg(r) = src else { return None };
        let plus = self.state.reg(dst).as_const()?.cast_signed();
        let near = plus.unsigned_abs() <= 1 << 31;
        if op != AluOp::Sub || !near || !self.state.reg(r).is_scalar() {
            return None;
        }
        self.give_name(r);
        let of = Affine::of(self.state.reg(r))?;
        let made = Made::Modulo { times: -1, plus, bits: bits_of(width) };
        Some((of, made))
    }

    /// Returns the congruence for an operation with a constant that may wrap round, or that cuts a longer number to 32
    /// bits.
    fn may_wrap_round(&mut self, width: Width, op: AluOp, dst: Reg, constant: u64) -> Option<Made> {
        let bits = bits_of(width);
        let d = *self.state.reg(dst);
        if !d.is_scalar() || d.n.as_const().is_some() {
            return None;
        }
        let signed = constant.cast_signed();
        let near = signed.unsigned_abs() <= 1 << 31;
        let (times, plus) = match op {
            AluOp::Add if near => (1, signed),
            AluOp::Sub if near => (1, -signed),
            AluOp::Mul if near && constant != 0 => (signed, 0),
            // A shift that loses no bits has a definition of its own, by which the operand is restored.
            AluOp::Lsh if (1..bits.min(63).into()).contains(&constant) => {
                let by = crate::num::low(constant);
                if width == Width::W64 && (fits(&d.n, by, false) || fits(&d.n, by, true)) {
                    return None;
                }
                (1 << by, 0)
            }
            AluOp::Add
            | AluOp::Sub
            | AluOp::Mul
            | AluOp::Lsh
            | AluOp::Div
            | AluOp::SDiv
            | AluOp::Mod
            | AluOp::SMod
            | AluOp::Or
            | AluOp::And
            | AluOp::Xor
            | AluOp::Rsh
            | AluOp::Arsh => return None,
        };
        self.give_name(dst);
        Some(Made::Modulo { times, plus, bits })
    }

    /// Returns the residue of a number modulo two to the power of `bits`, if it is an affine function of a name.
    pub(super) fn low_bits_of(&self, v: &Value, bits: u32) -> Option<Value> {
        if !self.loops.related || self.state.definitions.is_empty() || !(1..64).contains(&bits) {
            return None;
        }
        self.state.congruent(Affine::of(v)?, bits)?.value()
    }

    /// Refines a number that is about to be compared and may have wrapped round when it was made. Its operand's range
    /// may have become narrow enough to exclude that (`4096 - len`, where `len` was bounded later).
    pub(super) fn settle_modulo(&mut self, r: Reg) {
        let v = *self.state.reg(r);
        let modulo = |x: &&Definition| matches!(x.made, Made::Modulo { .. });
        if self.state.definitions.is_empty() || (v.scale, v.delta) != (1, 0) {
            return;
        }
        let Some(Made::Modulo { bits, .. }) = self.state.definitions_of(&v).find(modulo).map(|x| x.made) else {
            return;
        };
        // The number has at most `bits` bits, since an operation of that width has made it.
        let most = ones::<u64>(bits.min(63));
        if bits > 63 && v.n.umax() > most || v.n.umax() > ones(bits) {
            return;
        }
        let Some(Left { id, scale, delta, n }) = self.state.congruent_to_others(v.id, bits.min(63)) else { return };
        self.decides();
        self.state.bound(v.id, n.umin().into(), n.umax().into(), super::lines::MAX_HOPS);
        if scale == -1 {
            self.state.bound_sum(v.id, id, delta.into(), &mut self.next_id);
        }
        // A comparison of the register is a comparison of the number that it was made from, which may outlive it.
        let known = self.state.reg(r).n;
        self.state.set(r, Affine { id, scale, delta }.value(known.meet(&n).unwrap_or(known)));
    }

    /// Settles numbers that may have wrapped round when they were made, and have been compared: a later bound of the
    /// operand may exclude the wrap (`if off > 4096 - len`, and then `if len > 256`). The order that the comparison has
    /// taught is then one of the operand, too, and must be known before a loop, where definitions are dropped.
    pub(super) fn settle_ordered(&mut self) {
        if self.state.definitions.is_empty() || !self.scratch.prune.all_exact() {
            return;
        }
        let mut found = Vec::new();
        for d in &self.state.definitions {
            let Made::Modulo { bits, .. } = d.made else { continue };
            let ordered = self.state.room.iter().any(|f| f.id == d.name || f.hi == d.name);
            // The number has at most `bits` bits, since an operation of that width has made it.
            let bits = bits.min(63);
            if ordered
                && d.result.n.umax() <= ones(bits)
                && let Some(Left { id, scale: -1, delta, n }) = self.state.congruent_to_others(d.name, bits)
            {
                found.push((d.name, id, delta, n));
            }
        }
        for (name, id, delta, n) in found {
            self.decides();
            self.state.bound(name, n.umin().into(), n.umax().into(), super::lines::MAX_HOPS);
            self.state.bound_sum(name, id, delta.into(), &mut self.next_id);
            // `V(name)` is `delta - V(id)`. A number of at most `V(name)` and `V(id)` are therefore at most `delta`
            // together.
            let below = self.state.room.iter().filter(|f| f.hi == name && f.scale == 1 && f.id >= FIRST_FREE_ID);
            let below: Vec<(u32, i64)> = below.map(|f| (f.id, f.bytes)).collect();
            for (other, bytes) in below {
                if let Some(most) = i64::from(delta).checked_sub(bytes) {
                    self.state.bound_sum(other, id, most, &mut self.next_id);
                }
            }
        }
    }

    /// Relates a register that holds the low 32 bits of a number to that number. Called in walks that keep relations
    /// everywhere.
    pub(super) fn cut_to_half(&mut self, dst: Reg, whole: &Value) {
        let Some(of) = Affine::of(whole) else { return };
        if let Some(found) = self.low_bits_of(whole, 32) {
            self.decides();
            let n = self.state.reg(dst).n;
            let n = n.meet(&found.n).unwrap_or(n);
            self.state.set(dst, Value { n, ..found });
        } else {
            self.define(dst, of, Made::Modulo { times: 1, plus: 0, bits: 32 });
        }
    }

    /// Handles a mask or shift whose result is a residue that another number determines; returns whether it applied.
    pub(super) fn cut(&mut self, width: Width, op: AluOp, dst: Reg, src: Src) -> bool {
        let d = *self.state.reg(dst);
        if !d.is_scalar() || d.id == 0 {
            return false;
        }
        let constant = match src {
            Src::Imm(i) => Some(i as i64 as u64),
            Src::Reg(r) if r != dst => self.state.reg(r).as_const(),
            Src::Reg(_) => None,
        };
        let Some(constant) = constant else { return false };
        let (low, bits, other) = match (op, width) {
            (AluOp::And, _) => {
                let mask = constant & ones::<u64>(bits_of(width));
                let mask = mask | ones::<u64>(d.n.bits().max().trailing_zeros().min(31));
                if mask.count_ones() != mask.trailing_ones() {
                    return false;
                }
                (d, mask.count_ones(), None)
            }
            // A shift back, after a shift to the left that lost bits at the top.
            (AluOp::Rsh | AluOp::Arsh, Width::W64) if (1..64).contains(&constant) => {
                let by = crate::num::low(constant);
                let lost = |x: &&Definition| x.made == Made::Modulo { times: 1 << by, plus: 0, bits: 64 };
                let Some(of) = (by < 63).then(|| self.state.definitions_of(&d).find(lost)).flatten() else {
                    return false;
                };
                let of = of.of;
                (of.value(Scalar::UNKNOWN), 64 - by, Some(of))
            }
            _other => return false,
        };
        let found = if op == AluOp::Arsh { None } else { self.low_bits_of(&low, bits) };
        let n = d.n.alu(op, width, &Scalar::constant(constant));
        if let Some(found) = found {
            self.decides();
            let n = n.meet(&found.n).unwrap_or(n);
            self.state.set(dst, Value { n, ..found });
            return true;
        }
        let Some(of) = other else { return false };
        self.decides();
        self.state.set(dst, Value::scalar(n));
        self.define(dst, of, Made::Modulo { times: 1, plus: 0, bits });
        true
    }

    /// Notes the definition after the operation was done.
    pub(super) fn define(&mut self, dst: Reg, of: Affine, made: Made) {
        if matches!(made, Made::Modulo { .. }) {
            self.congruent_at = self.stats.steps;
        }
        // Results of masks and shifts to the right get names only in walks that use them.
        if matches!(made, Made::Left { .. } | Made::Inverted | Made::Modulo { .. }) || self.loops.related {
            self.give_name(dst);
        }
        let r = self.state.reg(dst);
        let named = r.is_scalar() && r.id != 0 && (r.scale, r.delta) == (1, 0);
        if named && r.id != of.id {
            let (name, result) = (r.id, *r);
            if let Made::Masked(mask) = made {
                self.order_masks(name, of, mask);
            }
            self.state.define(Definition { name, result, of, made });
        }
    }

    /// Orders the result of a mask, which has the name `name`, and the results of other masks of the same number: of
    /// two masks, the one whose bits the other has as well gives at most the other's result. Compilers test `x & 0xff`
    /// and use `x & 15`.
    fn order_masks(&mut self, name: u32, of: Affine, mask: u64) {
        let bits = self.state.range_by_results(&self.state.definitions, of, MAX_HOPS).bits().max();
        let mut facts = std::mem::take(&mut self.facts);
        for d in self.state.definitions.iter().filter(|d| d.of == of && d.name != name) {
            let Made::Masked(other) = d.made else { continue };
            let below = |id: u32, hi: u32| Room { id, scale: 1, bytes: 0, hi };
            facts.extend(masked_within(bits, mask, other).then(|| below(name, d.name)));
            facts.extend(masked_within(bits, other, mask).then(|| below(d.name, name)));
        }
        if !facts.is_empty() {
            // Later proofs may rest on these facts.
            self.decides();
        }
        for fact in facts.drain(..) {
            self.state.learn_below(fact);
            if fact.id == name {
                // The other result may have been compared already.
                let (_, most) = self.state.bounds_of(fact.hi);
                self.state.bound(name, 0, most.unwrap_or(i128::from(u64::MAX)), 0);
            }
        }
        self.facts = facts;
    }

    /// Whether a congruence is so new that the comparison which makes it exact may come next, although paths join in
    /// between: compilers compute `4096 - len` before they compare `len`, and make numbers of conditions. Paths that
    /// meet there are not compared, so they stay apart for a few steps.
    pub(super) fn awaits_congruence(&self) -> bool {
        self.loops.related
            && !self.state.definitions.is_empty()
            && self.stats.steps - self.congruent_at <= COMPARED_SOON
            && self.loops.forest().headed(self.pc).is_none()
    }

    /// Restores a number, with its name, after a shift to the left and back if no bits were lost at the top: a cast
    /// without 32-bit moves. Compilers shift an index back by less, which multiplies it, and a length in bytes by more,
    /// which divides it. They also nest two such pairs.
    pub(super) fn shifted_back(&mut self, width: Width, op: AluOp, dst: Reg, src: Src) -> bool {
        let (Width::W64, Src::Imm(by), AluOp::Rsh | AluOp::Arsh) = (width, src, op) else { return false };
        let Ok(by) = u32::try_from(by) else { return false };
        let signed = op == AluOp::Arsh;
        let d = self.state.reg(dst);
        let defined = self.state.definitions_of(d).find_map(|x| match x.made {
            Made::Left { by, unsigned, signed: fits } => (if signed { fits } else { unsigned }).then_some((by, x.of)),
            Made::Masked(_) | Made::Right(_) | Made::Ahead(_) | Made::Inverted | Made::Modulo { .. } => None,
        });
        // A value that is a multiple of its name shows the left shift, too.
        let Some((up, of)) = defined.or_else(|| multiple(d, signed)) else { return false };
        let v = of.value(d.n.alu(op, Width::W64, &Scalar::constant(up.into())));
        // A number that may be negative is shifted back by at most `up`, since it must not be divided.
        if v.n.smin() < 0 && by > up {
            return false;
        }
        self.state.set(dst, v);
        match by.cast_signed() - up.cast_signed() {
            0 => true,
            less @ ..0 => self.numbers(width, AluOp::Lsh, dst, Src::Imm(-less)),
            more => self.numbers(width, AluOp::Rsh, dst, Src::Imm(more)),
        }
    }

    /// Notes a copy of a number: if the number was shifted to the left, one of both is probably shifted back soon.
    pub(super) fn copied(&mut self, from: Reg) {
        let v = self.state.reg(from);
        if self.state.definitions_of(v).any(|d| matches!(d.made, Made::Left { .. })) {
            self.copied_at = Some(self.stats.steps);
        }
    }

    /// Whether a number was shifted and copied so recently that it is probably shifted back soon.
    pub(super) fn awaits_half(&self) -> bool {
        !self.state.definitions.is_empty() && self.copied_at.is_some_and(|step| self.stats.steps - step <= SOON)
    }

    /// Refines numbers by their definitions in `state`, after a comparison has shown that `known` is in `n`. The values
    /// of `state` are already refined by the comparison itself.
    pub(super) fn see_bits(&self, state: &mut State, known: &Value, n: &Scalar) {
        // The trail does not mark that one place depends on another's comparison, so definitions are refined only where
        // all numbers are needed exactly.
        if state.definitions.is_empty() || n.as_const().is_none() || !self.scratch.prune.all_exact() {
            return;
        }
        if let Some(of) = Affine::of(known) {
            state.refine_definitions(of, n);
        }
    }
}

/// The power of two of which the number is a multiple, and the quotient.
fn multiple(d: &Value, signed: bool) -> Option<(u32, Affine)> {
    let up = d.scale.trailing_zeros().min(d.delta.trailing_zeros());
    let named = d.is_scalar() && d.id != 0 && up > 0 && (!signed || d.n.smin() >= 0);
    named.then_some((up, Affine { id: d.id, scale: d.scale >> up, delta: d.delta >> up }))
}

impl State {
    /// The set of a number, by the values of this state and by the results of these definitions: no value may hold the
    /// number itself any more.
    fn range_by_results(&self, definitions: &[Definition], of: Affine, hops: u32) -> Scalar {
        let mut n = self.range_of(of);
        if hops > 0 {
            for d in definitions.iter().filter(|d| d.of == of) {
                let result = self.range_by_results(definitions, Affine::name(d.name), hops - 1);
                n = n.meet(&d.made.operand(&result)).unwrap_or(n);
            }
        }
        n
    }

    /// Refines operands and other results by definitions, after the named number was found to be in `n`; the values
    /// already are.
    fn refine_definitions(&mut self, of: Affine, n: &Scalar) {
        let definitions = std::mem::take(&mut self.definitions);
        self.refine_operands(&definitions, of, n, (usize::MAX, MAX_HOPS));
        self.definitions = definitions;
    }

    fn refine_operands(&mut self, definitions: &[Definition], of: Affine, n: &Scalar, (from, hops): (usize, u32)) {
        let others = definitions.iter().enumerate().filter(|(i, _)| *i != from);
        for (i, d) in others.filter(|(_, d)| Affine::name(d.name) == of) {
            self.refine_number(definitions, d.of, &d.made.operand(n), (i, hops));
        }
    }

    /// Refines a number to `n`. `from`: the index of the definition that it came by, and the number of further
    /// definitions to follow.
    fn refine_number(&mut self, definitions: &[Definition], of: Affine, n: &Scalar, (from, hops): (usize, u32)) {
        let Some(n) = self.range_by_results(definitions, of, MAX_HOPS).meet(n).map(aligned) else { return };
        self.each_value_mut(|v| {
            if Affine::of(v) == Some(of) {
                v.n = v.n.meet(&n).unwrap_or(v.n);
            }
        });
        self.bound_by(&of.value(n));
        if hops == 0 {
            return;
        }
        self.refine_operands(definitions, of, &n, (from, hops - 1));
        for (i, d) in definitions.iter().enumerate().filter(|(i, d)| *i != from && d.of == of) {
            self.refine_number(definitions, Affine::name(d.name), &d.made.result(&n), (i, hops - 1));
        }
    }
}
