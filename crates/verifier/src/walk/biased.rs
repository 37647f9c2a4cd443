//! Numbers that an address is part of on their way: `t += q; t -= s` is how `t += q - s` is compiled.
//!
//! Problem: the sum of a number and a pointer is no pointer into anything, and that of a number and the negative of a
//! pointer even less, but the next operation takes the address out again. Approach: such a sum is a [`Ty::Biased`]:
//! which
//! region's address is in it, and with which sign. Numbers may be added and subtracted; what adds the address with the
//! other sign leaves a number, of which nothing is known.
//!
//! Claim: no such number shows an address. Proof: a [`Ty::Biased`] is `n + c * start`, modulo two to the power of 64,
//! or
//! of 32 if it is a `half`, where `start` is the address at which the region starts, `c` is 1 or -1, and `n` depends on
//! no address: a pointer into the region, or to its end, is `start` and an offset. Sums and differences add the `c` of
//! their operands; where the result has none, it is the sum or difference of the `n`, modulo the same power. The high
//! half
//! of a 64-bit operation on a `half` may tell of a carry, so that yields no number. Nothing else reads a
//! [`Ty::Biased`]: it is a pointer that leads to no memory. When the region moves, it is forgotten.

use bpf_isa::{AluOp, Width};

use super::Walk;
use crate::faults::planted;
use crate::scalar::Scalar;
use crate::value::{Ty, Value};

/// The region whose start is in the value, how often (-1, 0 or 1), and whether in the low half alone.
fn part(v: &Value) -> Option<(Option<u8>, i32, bool)> {
    match v.ty {
        Ty::Scalar => Some((None, 0, false)),
        Ty::Packet { region } | Ty::PacketEnd { region } if !v.null => Some((Some(region), 1, false)),
        Ty::Half { region, .. } if !v.null => Some((Some(region), 1, true)),
        Ty::Biased { region, minus, half } => Some((Some(region), if minus { -1 } else { 1 }, half)),
        Ty::Packet { .. }
        | Ty::PacketEnd { .. }
        | Ty::Half { .. }
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
    /// The sum or difference of values of which at least one has an address in it; `None` where it cannot be used.
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
