//! Definitions: equations `name = op(other name, constant)`, by which a bound on a result bounds its operand.
//!
//! Problem: `r3 = r1; r3 &= 2; if r3 == 0` compares a copy, `r1 <<= 32; r1 >>= 32` is a compiled cast, and no other
//! part of the state relates the result of a mask or a shift to its operand. Approach: a table of symbolic definitions
//! (Miné 2006), `V(name) = op(scale * V(of) + delta)`, where `V(n)` is the integer that the name `n` stands for. A
//! bound on the result is propagated to the operand, and from the operand to its other results, as in HC4 (Benhamou et
//! al. 1999). Both directions use the [`Scalar`] operation of `op` (`walk/definitions.rs`).
//!
//! Invariants. A definition, like a [`super::Sum`], is an equation between integers that holds in every concrete state
//! which the abstract state stands for. A definition holds no range: propagation reads the ranges of the values in
//! *this* state, so a bound that one path has learnt is not used on another. A name that is handed out a second time
//! (`State::split`, `State::name_sum`) is the only solution of the equation that it was made for, so it stands for the
//! same integer and its definition stays true. Definitions are dropped where names come to stand for other integers
//! (the next round of a loop's candidate invariant), and where a call moves the packet and so changes lengths. Kept
//! states have no definitions, since states are compared without them.

use bpf_isa::{AluOp, Width};

use super::State;
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
    /// These bits were kept.
    Masked(u64),
    /// Shifted to the right.
    Right(u32),
    /// Shifted to the left. As an unsigned number, or as a signed one, nothing was lost at the top: the opposite shift
    /// brings the operand back.
    Left { by: u32, unsigned: bool, signed: bool },
    /// So much was added, and the sum does not wrap.
    Ahead(u64),
    /// Its bits were inverted.
    Inverted,
}

impl Made {
    /// Returns the results of the operation for operands in `n`.
    pub(crate) fn result(self, n: &Scalar) -> Scalar {
        let (op, by) = match self {
            // All bits that it may have.
            Made::Masked(mask) if n.bits().max() & !mask == 0 => return *n,
            Made::Masked(mask) => (AluOp::And, mask),
            Made::Right(by) => (AluOp::Rsh, by.into()),
            Made::Left { by, .. } => (AluOp::Lsh, by.into()),
            Made::Ahead(by) => (AluOp::Add, by),
            Made::Inverted => (AluOp::Xor, u64::MAX),
        };
        n.alu(op, Width::W64, &Scalar::constant(by))
    }

    /// Returns the operands for which the result is in `n`.
    pub(crate) fn operand(self, n: &Scalar) -> Scalar {
        let (op, by) = match self {
            Made::Masked(mask) => {
                let set = if planted!(SetBitsAreClear) { 0 } else { n.bits().value() & mask };
                let bits = Tnum::new(set, n.bits().mask() | !mask);
                // No bit of it makes it less than what is kept of it.
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
        };
        n.alu(op, Width::W64, &Scalar::constant(by))
    }
}

/// `V(name) = made(of)`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Definition {
    pub name: u32,
    pub of: Affine,
    pub made: Made,
}

impl State {
    /// The operation has made what the name stands for.
    pub(crate) fn define(&mut self, new: Definition) {
        if self.definitions.contains(&new) {
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

    /// The packet has moved: a name below these is of another length from now on.
    pub(crate) fn forget_defined_lengths(&mut self) {
        self.definitions.retain(|d| d.of.id >= FIRST_FREE_ID && d.name >= FIRST_FREE_ID);
    }

    /// What the values of this state say of a number.
    pub(crate) fn range_of(&self, of: Affine) -> Scalar {
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

    /// What a path that has ended has learnt of the operands of its definitions is taken to be known here: for
    /// [`crate::faults`].
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
