//! Multiplication, division, remainder.
//!
//! `udiv` and `sdiv` do what BPF wants of every odd case: a quotient by zero is zero, and MIN / -1 is MIN. `msub` then
//! gives x % 0 = x and MIN % -1 = 0 by itself, and every 32-bit result is zero-extended. So there is no test and no
//! branch here, only constants that need neither multiplier nor divider.

use crate::Emitter;
use crate::asm::{asm, asm_w};
use crate::emit::alu::low_bits;
use crate::regs::{TMP0, TMP1, TMP2};
use bpf_isa::Width;
use bpf_jit::{VReg, Val};

/// `log2(b)`, if `b` is a constant power of two.
fn log2(width: Width, b: Val) -> Option<u32> {
    match b {
        Val::Imm(imm) => low_bits(width, imm).is_power_of_two().then(|| low_bits(width, imm).trailing_zeros()),
        Val::Reg(_) => None,
    }
}

impl Emitter<'_> {
    pub(crate) fn mul(&mut self, width: Width, dst: VReg, a: VReg, b: Val) {
        let (a, d) = (self.get(a, TMP0), self.target(dst));
        let below = match b {
            Val::Imm(imm) => Val::Imm(imm.wrapping_sub(1)),
            Val::Reg(_) => b,
        };
        if let Some(shift) = log2(width, b) {
            asm_w!(&mut self.s.buf, width; lsl R(d), R(a), shift);
        } else if let Some(shift) = log2(width, below) {
            asm_w!(&mut self.s.buf, width; add R(d), R(a), R(a), lsl shift);
        } else {
            let b = self.val(width, b, TMP1);
            asm_w!(&mut self.s.buf, width; mul R(d), R(a), R(b));
        }
        self.put(dst, d);
    }

    pub(crate) fn mul_high(&mut self, signed: bool, width: Width, dst: VReg, a: VReg, b: Val) {
        let (a, b, d) = (self.get(a, TMP0), self.val(width, b, TMP1), self.target(dst));
        match (width, signed) {
            (Width::W32, false) => asm!(&mut self.s.buf; umull X(d), W(a), W(b); lsr X(d), X(d), 32),
            (Width::W32, true) => asm!(&mut self.s.buf; smull X(d), W(a), W(b); lsr X(d), X(d), 32),
            (Width::W64, false) => asm!(&mut self.s.buf; umulh X(d), X(a), X(b)),
            (Width::W64, true) => asm!(&mut self.s.buf; smulh X(d), X(a), X(b)),
        }
        self.put(dst, d);
    }

    pub(crate) fn div(&mut self, signed: bool, width: Width, dst: VReg, a: VReg, b: Val) {
        let (a, d) = (self.get(a, TMP0), self.target(dst));
        match log2(width, b).filter(|_| !signed) {
            Some(shift) => asm_w!(&mut self.s.buf, width; lsr R(d), R(a), shift),
            None => {
                let b = self.val(width, b, TMP1);
                if signed {
                    asm_w!(&mut self.s.buf, width; sdiv R(d), R(a), R(b));
                } else {
                    asm_w!(&mut self.s.buf, width; udiv R(d), R(a), R(b));
                }
            }
        }
        self.put(dst, d);
    }

    pub(crate) fn rem(&mut self, signed: bool, width: Width, dst: VReg, a: VReg, b: Val) {
        if !signed && let Some(log2) = log2(width, b) {
            // The remainder is the low bits; of 2^0 there are none.
            let mask = (1u64 << log2) - 1;
            return self.and(width, dst, a, Val::Imm(mask as i64));
        }
        let (a, b, d) = (self.get(a, TMP0), self.val(width, b, TMP1), self.target(dst));
        if signed {
            asm_w!(&mut self.s.buf, width; sdiv R(TMP2), R(a), R(b));
        } else {
            asm_w!(&mut self.s.buf, width; udiv R(TMP2), R(a), R(b));
        }
        asm_w!(&mut self.s.buf, width; msub R(d), R(TMP2), R(b), R(a));
        self.put(dst, d);
    }
}
