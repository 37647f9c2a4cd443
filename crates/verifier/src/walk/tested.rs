//! Bits of a number that a comparison of another one has shown.
//!
//! Problem: `while (!(d & 1)) d >>= 1` ends as `d` is not 0: what is even and not 0 is 2 or more, so its half is not 0
//! either. Compilers test a copy (`r3 = r1; r3 &= 2`) after the shift, and nothing ties what they compare to what goes
//! on. Approach: what a mask and a shift to the right have made of a named number is remembered ([`Tested`]), until a
//! comparison shows what the one is: then the number has those of the mask's bits, and is at least the next such
//! number; the other has what is left of these bits.
//!
//! Invariants: those of [`super::alu::Half`]: a name means the same as long as a state has it, and no state that is
//! kept says any of this, so all of it is forgotten when one is.

use bpf_isa::{AluOp, Reg, Src, Width};

use super::{Walk, bits_of};
use crate::faults::planted;
use crate::scalar::Scalar;
use crate::state::State;
use crate::value::{FIRST_FREE_ID, Value};

/// Results that are remembered.
const MAX_TESTED: usize = 4;

/// What was done to the number.
#[derive(Clone, Copy, Debug)]
enum Done {
    Masked(u64),
    Shifted(u32),
}

/// `V(of)` is what a mask or a shift to the right has made of this number.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tested {
    of: u32,
    v: Value,
    done: Done,
}

impl Walk<'_> {
    /// The operation has been done on a number that was `d`, and its result is in `dst`.
    pub(super) fn note_tested(&mut self, width: Width, op: AluOp, dst: Reg, src: Src, d: &Value) {
        let constant = match src {
            Src::Imm(i) => Some(i as i64 as u64),
            Src::Reg(r) if r != dst => self.state.reg(r).as_const(),
            Src::Reg(_) => None,
        };
        let done = match (op, constant) {
            (AluOp::And, Some(mask)) => Done::Masked(mask),
            (AluOp::Rsh, Some(by)) if by < bits_of(width).into() => Done::Shifted(crate::num::low(by)),
            _ => return,
        };
        let r = self.state.reg(dst);
        let named = d.is_scalar() && d.id != 0 && r.is_scalar() && r.id != 0 && (r.scale, r.delta) == (1, 0);
        // Of what is longer, 32 bits say nothing of the rest.
        let whole = width == Width::W64 || d.is_short();
        let wanted = self.loops.further && (self.relates() || matches!(done, Done::Shifted(_)));
        if !named || r.id == d.id || !whole || !wanted {
            return;
        }
        let of = r.id;
        if self.tested.len() >= MAX_TESTED {
            self.tested.remove(0);
        }
        self.tested.push(Tested { of, v: *d, done });
    }

    /// The packet has moved: what is said of its lengths is said of none any more.
    pub(super) fn forget_tested_lengths(&mut self) {
        self.tested.retain(|t| t.v.id >= FIRST_FREE_ID);
    }

    /// The number is a constant in `state`: what that says of the number that it was made of.
    pub(super) fn see_bits(tested: &[Tested], state: &mut State, known: &Value, is: u64) {
        let named = |t: &&Tested| (t.of, 1, 0) == (known.id, known.scale, known.delta);
        let Some(t) = tested.iter().find(named) else { return };
        // The bits that are known now, and which of them are set.
        let (v, (mask, set)) = match t.done {
            Done::Masked(mask) => (t.v, (mask, is & mask)),
            Done::Shifted(by) => (t.v, (u64::MAX << by, is << by)),
        };
        let set = if planted!(SetBitsAreClear) { 0 } else { set };
        let other = Scalar::UNKNOWN.alu(AluOp::And, Width::W64, &Scalar::constant(!mask));
        let bits = other.alu(AluOp::Or, Width::W64, &Scalar::constant(set));
        if let Some(n) = v.n.meet(&bits) {
            narrow(tested, state, &Value { n: super::branch::aligned(n), ..v });
        }
    }

    /// The constant that a comparison has shown a number to be, if that may say something of another.
    pub(super) fn tested_bits(&self, v: &Value, n: &Scalar) -> Option<u64> {
        n.as_const().filter(|_| !self.tested.is_empty() && v.id != 0)
    }
}

/// The number is no more than `v.n`, and so are those that were made of it what that makes.
///
/// It ends: what was made of a number has a newer name.
fn narrow(tested: &[Tested], state: &mut State, v: &Value) {
    let same = |w: &Value| w.is_scalar() && (w.id, w.scale, w.delta) == (v.id, v.scale, v.delta);
    state.each_value_mut(|w| {
        if same(w) {
            w.n = w.n.meet(&v.n).unwrap_or(w.n);
        }
    });
    state.bound_by(v);
    for t in tested.iter().filter(|t| same(&t.v) && t.of > v.id) {
        let (op, by) = match t.done {
            Done::Masked(mask) => (AluOp::And, mask),
            Done::Shifted(by) => (AluOp::Rsh, by.into()),
        };
        let whole = op == AluOp::And && v.n.bits().max() & !by == 0;
        let n = if whole { v.n } else { v.n.alu(op, Width::W64, &Scalar::constant(by)) };
        narrow(tested, state, &Value { n, id: t.of, ..Value::unknown() });
    }
}
