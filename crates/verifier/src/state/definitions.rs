//! Definitions: equations `name = op(other name, constant)`, by which a bound on a result bounds its operand.
//!
//! Problem: `r3 = r1; r3 &= 2; if r3 == 0` compares a copy, `r1 <<= 32; r1 >>= 32` is a compiled cast, and no other
//! part of the state relates the result of a mask or a shift to its operand. Approach: a table of symbolic definitions
//! (Miné 2006), `V(name) = op(scale * V(of) + delta)`, where `V(n)` is the integer that the name `n` stands for. A
//! bound on the result is propagated to the operand, and from the operand to its other results, as in HC4 (Benhamou et
//! al. 1999). Both directions use the [`Scalar`] operation of `op` (`walk/definitions.rs`).
//!
//! Invariants. A definition, like a [`super::Sum`], is an equation between integers that holds in every concrete state
//! which the abstract state stands for. Its result is a value of the state like those of registers: propagation reads
//! the ranges of *this* state alone, so a bound that one path has learnt is not used on another. A name that is handed
//! out a second time (`State::split`, `State::name_sum`) is the only solution of the equation that it was made for, so
//! it stands for the same integer and its definition stays true. Definitions are dropped where names come to stand for
//! other integers (the next round of a loop's candidate invariant), and where a call moves the packet and so changes
//! lengths. Kept states have no definitions, since states are compared without them.

use bpf_isa::{AluOp, Width};

use super::State;
use crate::by_name;
use crate::faults::planted;
use crate::interval::Interval;
use crate::scalar::Scalar;
use crate::tnum::{Tnum, ones};
use crate::value::{FIRST_FREE_ID, Value};

/// Most definitions of a state; a new one replaces the oldest.
const MAX_DEFINITIONS: usize = 8;

/// `scale * V(id) + delta`, without wrapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Affine {
    pub id: u32,
    pub scale: i16,
    pub delta: i32,
}

impl Affine {
    /// The named number as it is.
    pub(crate) fn name(id: u32) -> Affine {
        Affine { id, scale: 1, delta: 0 }
    }

    /// Returns a number as an affine function of its name; `None` for a number without a name.
    pub(crate) fn of(v: &Value) -> Option<Affine> {
        (v.is_scalar() && v.id != 0).then_some(Affine { id: v.id, scale: v.scale, delta: v.delta })
    }

    /// Returns the value with this affine form and the range `n`.
    pub(crate) fn value(self, n: Scalar) -> Value {
        Value { id: self.id, scale: self.scale, delta: self.delta, ..Value::scalar(n) }
    }
}

/// The operation that a definition applies to its operand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Made {
    /// The operand's bits in this mask.
    Masked(u64),
    /// The operand shifted to the right.
    Right(u32),
    /// Shifted to the left. As an unsigned number, or as a signed one, nothing was lost at the top: the opposite shift
    /// brings the operand back.
    Left { by: u32, unsigned: bool, signed: bool },
    /// The operand plus a number, without wrapping.
    Ahead(u64),
    /// The operand with all bits inverted.
    Inverted,
    /// The result is congruent to `times * operand + plus`, modulo two to the power of `bits`: the equation of an
    /// operation that may have wrapped round (Granger 1991; Müller-Olm and Seidl 2007).
    Modulo { times: i64, plus: i64, bits: u32 },
}

impl Made {
    /// Returns the results of the operation for operands in `n`.
    pub(crate) fn result(self, n: &Scalar) -> Scalar {
        let (op, by) = match self {
            // The mask keeps all bits that the operand may have.
            Made::Masked(mask) if n.bits().max() & !mask == 0 => return *n,
            Made::Masked(mask) => (AluOp::And, mask),
            Made::Right(by) => (AluOp::Rsh, by.into()),
            Made::Left { by, .. } => (AluOp::Lsh, by.into()),
            Made::Ahead(by) => (AluOp::Add, by),
            Made::Inverted => (AluOp::Xor, u64::MAX),
            // Only `State::congruent` uses such a definition.
            Made::Modulo { .. } => return Scalar::UNKNOWN,
        };
        n.alu(op, Width::W64, &Scalar::constant(by))
    }

    /// Returns the operands for which the result is in `n`.
    pub(crate) fn operand(self, n: &Scalar) -> Scalar {
        let (op, by) = match self {
            Made::Masked(mask) => {
                let set = if planted!(SetBitsAreClear) { 0 } else { n.bits().value() & mask };
                let bits = Tnum::new(set, n.bits().mask() | !mask);
                // A masked number is at most the operand, so the operand is at least the result's least value.
                let least = if planted!(SetBitsAreClear) { 0 } else { n.umin() };
                return Scalar::of(bits, Interval::unsigned(least, u64::MAX), Interval::FULL);
            }
            Made::Right(by) => {
                let most = u64::MAX >> by;
                let bits = Tnum::new(n.bits().value() << by, n.bits().mask() << by | ones::<u64>(by));
                let range = Interval::unsigned(n.umin().min(most) << by, n.umax().min(most) << by | ones::<u64>(by));
                return Scalar::of(bits, range, Interval::FULL);
            }
            Made::Left { by, unsigned: true, .. } => (AluOp::Rsh, by.into()),
            Made::Left { by, .. } => (AluOp::Arsh, by.into()),
            Made::Ahead(by) => (AluOp::Sub, by),
            Made::Inverted => (AluOp::Xor, u64::MAX),
            Made::Modulo { .. } => return Scalar::UNKNOWN,
        };
        n.alu(op, Width::W64, &Scalar::constant(by))
    }

    /// Returns `(times, plus, bits)` for which the result is congruent to `times * operand + plus`, modulo two to the
    /// power of `bits`.
    fn modulo(self) -> Option<(i128, i128, u32)> {
        match self {
            Made::Masked(mask) => Some((1, 0, mask.trailing_ones())),
            Made::Right(_) => None,
            Made::Left { by, .. } => Some((1 << by, 0, 64)),
            Made::Ahead(by) => Some((1, by.into(), 64)),
            Made::Inverted => Some((-1, -1, 64)),
            Made::Modulo { times, plus, bits } => Some((times.into(), plus.into(), bits)),
        }
    }
}

/// The equation `V(name) = made(of)`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Definition {
    pub name: u32,
    pub of: Affine,
    pub made: Made,
    /// The range of `V(name)`, as it was made and as later comparisons have refined it. It outlives the register.
    pub result: Value,
}

/// The residue of a number modulo a power of two, as `scale * V(id) + delta` with range `n`. The scale may be negative.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Left {
    pub id: u32,
    pub scale: i16,
    pub delta: i32,
    pub n: Scalar,
}

impl Left {
    /// The residue as a value; `None` if the scale is negative.
    pub(crate) fn value(self) -> Option<Value> {
        let Left { id, scale, delta, n } = self;
        (scale > 0).then(|| Affine { id, scale, delta }.value(n))
    }
}

impl State {
    /// Notes a definition. The caller guarantees that it holds.
    pub(crate) fn define(&mut self, new: Definition) {
        let same = |d: &Definition| (d.name, d.of, d.made) == (new.name, new.of, new.made);
        if self.definitions.iter().any(same) {
            return;
        }
        if self.definitions.len() >= MAX_DEFINITIONS {
            self.definitions.remove(0);
        }
        self.definitions.push(new);
    }

    /// The definitions of a number's name, newest first.
    pub(crate) fn definitions_of(&self, v: &Value) -> impl Iterator<Item = &Definition> {
        let v = *v;
        let named = move |d: &&Definition| {
            Affine::of(&v) == Some(Affine::name(d.name)) || (planted!(HalfOfAnother) && v.is_scalar())
        };
        self.definitions.iter().rev().filter(named)
    }

    /// Drops definitions over lengths after a packet move: the names of lengths refer to other numbers from now on.
    pub(crate) fn forget_defined_lengths(&mut self) {
        self.definitions.retain(|d| d.of.id >= FIRST_FREE_ID && d.name >= FIRST_FREE_ID);
        for d in self.definitions.iter_mut().filter(|d| d.result.id < FIRST_FREE_ID) {
            d.result = d.result.unlinked();
        }
    }

    /// The set of a number, as the values of this state bound it.
    pub(crate) fn range_of(&self, of: Affine) -> Scalar {
        by_name::note();
        let mut n = Scalar::UNKNOWN;
        let mut see = |v: &Value| {
            if v.id == of.id && v.is_scalar() && v.scale == of.scale {
                let apart = i64::from(of.delta) - i64::from(v.delta);
                let moved = if apart == 0 { v.n } else { add(&v.n, apart) };
                n = n.meet(&moved).unwrap_or(n);
            }
        };
        self.frames.iter().for_each(|f| f.each_value(&mut see));
        self.seen.iter().for_each(|s| see(&s.value));
        n
    }

    /// Returns the residue of a number modulo two to the power of `bits` (1 to 63), as an affine function of some name.
    ///
    /// Claim: each of the `places` below, `times * V(id) + plus`, is congruent to `of` modulo two to the power of its
    /// fourth field. Proof: the first place is `of` itself. For a definition, the result is congruent to its formula
    /// `times * operand + plus`, and if `times` is 1, the operand is congruent to `result - plus`; multiplying a
    /// congruence modulo 2^k by a multiple of 2^j gives one modulo 2^(k + j). If a place is congruent to `of` modulo at
    /// least 2^bits and its range lies between two adjacent multiples of 2^bits, the residue of `of` is the place minus
    /// the lower multiple.
    pub(crate) fn congruent(&self, of: Affine, bits: u32) -> Option<Left> {
        self.congruent_by(of, bits, true)
    }

    /// Returns the residue of a named number by other names than its own: its range may say less than its operand's.
    pub(crate) fn congruent_to_others(&self, id: u32, bits: u32) -> Option<Left> {
        self.congruent_by(Affine::name(id), bits, false)
    }

    fn congruent_by(&self, of: Affine, bits: u32, itself: bool) -> Option<Left> {
        /// Most places that are tried.
        const MAX_PLACES: usize = 12;
        let mut places = vec![(of.id, i128::from(of.scale), i128::from(of.delta), 64u32)];
        let mut next = 0;
        while let Some(&(id, times, plus, exact)) = places.get(next) {
            next += 1;
            if (itself || id != of.id)
                && let Some(found) = self.left_of((id, times, plus), bits)
            {
                return Some(found);
            }
            let mut add = |id: u32, by: i128, more: Option<i128>, modulo: u32| {
                let times = times.checked_mul(by)?;
                let plus = plus.checked_add(more?)?;
                let known = places.iter().any(|p| p.0 == id && (p.1, p.2) == (times, plus));
                if modulo >= bits && !known && places.len() < MAX_PLACES && id != 0 {
                    places.push((id, times, plus, modulo));
                }
                Some(())
            };
            for d in self.definitions.iter().rev() {
                let Some((by, more, modulo)) = d.made.modulo() else { continue };
                let modulo = exact.min(modulo.saturating_add(times.trailing_zeros()));
                let (scale, delta) = (i128::from(d.of.scale), i128::from(d.of.delta));
                if d.name == id {
                    let more =
                        by.checked_mul(delta).and_then(|n| n.checked_add(more)).and_then(|n| n.checked_mul(times));
                    add(d.of.id, by * scale, more, modulo);
                }
                if d.of.id == id && (by, scale) == (1, 1) {
                    add(d.name, 1, times.checked_mul(-(more + delta)), modulo);
                }
            }
        }
        None
    }

    /// Returns the residue of `times * V(id) + plus` modulo two to the power of `bits`, if its range lies between two
    /// adjacent multiples.
    fn left_of(&self, (id, times, plus): (u32, i128, i128), bits: u32) -> Option<Left> {
        let (least, most) = self.bounds_of(id);
        let ends = (times.checked_mul(least.max(0))?.checked_add(plus)?, times.checked_mul(most?)?.checked_add(plus)?);
        let (low, high) = (ends.0.min(ends.1), ends.0.max(ends.1));
        let wraps = if planted!(CongruentIsEqual) { 0 } else { low >> bits };
        if high >> bits != wraps && !planted!(CongruentIsEqual) {
            return None;
        }
        let round = wraps << bits;
        let n = Scalar::unsigned(u64::try_from((low - round).max(0)).ok()?, u64::try_from(high - round).ok()?);
        let (scale, delta) = (i16::try_from(times).ok()?, i32::try_from(plus - round).ok()?);
        Some(Left { id, scale, delta, n })
    }

    /// Returns a lower bound of the named number, and an upper bound if one is known.
    pub(crate) fn bounds_of(&self, id: u32) -> (i128, Option<i128>) {
        let results = self.definitions.iter().map(|d| d.result);
        let results = results.filter(|v| (v.id, v.scale, v.delta) == (id, 1, 0));
        let least = results.clone().map(|v| v.n.umin().into()).chain(self.least_of(id).map(i128::from)).max();
        let most = results.map(|v| i128::from(v.n.umax())).chain(self.most_of(id)).min();
        (least.unwrap_or(0), most)
    }

    /// For [`crate::faults`]: takes facts that an ended path has learnt about operands as known in this state, which is
    /// unsound.
    pub(crate) fn know_as(&mut self, ended: &State) {
        for d in &ended.definitions {
            let n = ended.range_of(d.of);
            self.each_value_mut(|v| {
                if Affine::of(v) == Some(d.of) {
                    v.n = v.n.meet(&n).unwrap_or(v.n);
                }
            });
        }
    }
}

fn add(n: &Scalar, apart: i64) -> Scalar {
    n.alu(AluOp::Add, Width::W64, &Scalar::constant(apart.cast_unsigned()))
}
