//! Intermediate numbers that contain an address: compilers make `t += q; t -= s` of `t += q - s`.
//!
//! Problem: an unknown number plus or minus a pointer points to no object, but the next operation cancels the address.
//! Approach: such a value is a [`Ty::Biased`], which says whose region's address it contains and with which sign.
//! Numbers may be added and subtracted. An operation that adds the address with the other sign gives an unknown number.
//!
//! Claim: no such number shows an address. Proof: a [`Ty::Biased`] is `n + c * start`, modulo two to the power of 64,
//! or of 32 if it is a `half`, where `start` is the address at which the region starts, `c` is 1 or -1, and `n` depends
//! on no address: a pointer into the region, or to its end, is `start` and an offset. Sums and differences add the `c`
//! of their operands; where the result has none, it is the sum or difference of the `n`, modulo the same power. The
//! high half of a 64-bit operation on a `half` may show a carry, so such an operation yields no number. No other
//! operation reads a [`Ty::Biased`], which is treated as a pointer to no memory. It is dropped when the region moves.

use bpf_isa::{AluOp, Width};

use super::Walk;
use crate::faults::planted;
use crate::scalar::Scalar;
use crate::value::{Ty, Value};

/// Returns the region whose start address the value contains, its coefficient (-1, 0 or 1), and whether only the low 32
/// bits contain it.
fn part(v: &Value) -> Option<(Option<u8>, i32, bool)> {
    match v.ty {
        Ty::Scalar => Some((None, 0, false)),
        Ty::Packet { region } | Ty::PacketEnd { region } if !v.null => Some((Some(region), 1, false)),
        Ty::Half { region, .. } if !v.null => Some((Some(region), 1, true)),
        Ty::Biased { region, minus, half } => Some((Some(region), if minus { -1 } else { 1 }, half)),
        Ty::Packet { .. }
        | Ty::PacketEnd { .. }
        | Ty::Half { .. }
        | Ty::Signed
        | Ty::Uninit(_)
        | Ty::Ctx
        | Ty::Stack { .. }
        | Ty::Map { .. }
        | Ty::MapValue { .. }
        | Ty::Mem { .. }
        | Ty::Stale { .. }
        | Ty::Host { .. }
        | Ty::Func { .. }
        | Ty::Arena
        | Ty::Table { .. }
        | Ty::Insn { .. }
        | Ty::Local(_) => None,
    }
}

impl Walk<'_> {
    /// Returns the sum or difference of two values, at least one of which contains an address; `None` if no rule
    /// applies.
    pub(super) fn biased(&self, width: Width, op: AluOp, d: &Value, s: &Value) -> Option<Value> {
        if !self.loops.related {
            return None;
        }
        let ((d_region, d_times, d_half), (s_region, s_times, s_half)) = (part(d)?, part(s)?);
        let times = match op {
            AluOp::Add => d_times + s_times,
            AluOp::Sub => d_times - s_times,
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
        let region = d_region.or(s_region)?;
        let one = d_region.is_none_or(|r| r == region) && s_region.is_none_or(|r| r == region);
        if !one && !planted!(BiasOfAnother) {
            return None;
        }
        let half = width == Width::W32 || d_half || s_half;
        match times {
            0 if width == Width::W32 => Some(Value::scalar(Scalar::low_bits(32))),
            0 if !half || planted!(BiasOfHalves) => Some(Value::unknown()),
            1 | -1 => {
                let ty = Ty::Biased { region, minus: times < 0, half };
                Some(Value { n: Scalar::UNKNOWN, ..Value::pointer(ty) })
            }
            _other => None,
        }
    }
}
