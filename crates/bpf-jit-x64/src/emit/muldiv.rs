//! Division, remainder and the high half of products.
//!
//! `div` divides rdx:rax, leaves the quotient in rax and the remainder in rdx, and traps where BPF defines a result: a
//! zero divisor, and MIN / -1. Both cases are handled before the division, in the cheapest way:
//!
//! | | quotient | remainder |
//! |---|---|---|
//! | unsigned, b = 0 | 0 (`cmov` from the zeroed rdx) | a (in rdx already) |
//! | signed, b = 0 or b = -1 | a * b: 0, or -a, MIN included | a * (b + 1): a, or 0 |
//!
//! One unsigned comparison of b + 1 with 1 finds both signed cases. A constant divisor needs no test, and an unsigned
//! one that is a power of two no division. Tests: the suite's `division_*`.

use crate::Emitter;
use crate::asm::{reg, sized};
use crate::emit::alu::{Alu, Shift, Wanted, at_width};
use crate::jump::Cc;
use crate::regs::Gpr::{self, *};
use crate::regs::{SCRATCH, SCRATCH2};
use bpf_isa::Width;
use bpf_jit::num::low_word;
use bpf_jit::{VReg, Val};

impl Emitter<'_> {
    pub(crate) fn mul_high(&mut self, width: Width, signed: bool, dst: VReg, a: VReg, b: Val) {
        let b = match b {
            Val::Imm(imm) => {
                self.load_imm(SCRATCH2, at_width(width, imm) as u64);
                SCRATCH2
            }
            Val::Reg(b) => self.get_outside(b, &[Rax]),
        };
        self.load_into(width, Rax, a);
        match (width, signed) {
            (Width::W32, false) => reg!(self.s.buf; mul Rd(b)),
            (Width::W64, false) => reg!(self.s.buf; mul Rq(b)),
            (Width::W32, true) => reg!(self.s.buf; imul Rd(b)),
            (Width::W64, true) => reg!(self.s.buf; imul Rq(b)),
        }
        self.set(dst, Rdx);
    }

    /// The register that holds `v`, or [`SCRATCH2`] with its value if that is in a slot or in one of `not`.
    pub(crate) fn get_outside(&mut self, v: VReg, not: &[Gpr]) -> Gpr {
        let reg = self.get(v, SCRATCH2);
        if !not.contains(&reg) {
            return reg;
        }
        self.copy(Width::W64, SCRATCH2, reg);
        SCRATCH2
    }

    pub(crate) fn div(&mut self, width: Width, signed: bool, wanted: Wanted, dst: VReg, a: VReg, b: Val) {
        match b {
            Val::Imm(imm) => {
                let imm = at_width(width, imm);
                if !self.div_easy(width, signed, wanted, dst, a, imm) {
                    self.load_imm(SCRATCH2, imm as u64);
                    self.load_into(width, Rax, a);
                    self.div_insn(width, signed, SCRATCH2);
                    self.put_result(wanted, dst);
                }
            }
            Val::Reg(b) => {
                let b = self.get_outside(b, &[Rax, Rdx]);
                self.load_into(width, Rax, a);
                if signed {
                    self.sdiv_reg(width, wanted, b);
                } else {
                    self.udiv_reg(width, wanted, b);
                }
                self.put_result(wanted, dst);
            }
        }
    }

    fn put_result(&mut self, wanted: Wanted, dst: VReg) {
        self.set(
            dst,
            match wanted {
                Wanted::Quotient => Rax,
                Wanted::Remainder => Rdx,
            },
        );
    }

    /// Divisors that need no division; false for all others.
    fn div_easy(&mut self, width: Width, signed: bool, wanted: Wanted, dst: VReg, a: VReg, imm: i64) -> bool {
        let unsigned = match width {
            Width::W32 => u64::from(low_word(imm) as u32),
            Width::W64 => imm as u64,
        };
        let d = self.target(dst);
        match (wanted, imm) {
            // x / 0 = 0, x % 0 = x.
            (Wanted::Quotient, 0) | (Wanted::Remainder, 1) => self.load_imm(d, 0),
            (Wanted::Quotient, 1) | (Wanted::Remainder, 0) => {
                let a = self.get(a, SCRATCH);
                self.narrow(width, d, a);
            }
            (Wanted::Quotient, -1) if signed => {
                self.neg::<false>(&bpf_jit::Op::Neg { width, dst, src: a }, width, dst, a);
                return true;
            }
            (Wanted::Remainder, -1) if signed => self.load_imm(d, 0),
            (Wanted::Quotient, _) if !signed && unsigned.is_power_of_two() => {
                let a = self.get(a, SCRATCH);
                self.shift_imm(Shift::Shr, width, d, a, unsigned.trailing_zeros());
            }
            (Wanted::Remainder, _) if !signed && unsigned.is_power_of_two() => {
                let a = self.get(a, SCRATCH);
                self.low_bits(width, d, a, unsigned.trailing_zeros());
            }
            (Wanted::Quotient | Wanted::Remainder, _) => return false,
        }
        self.put(dst, d);
        true
    }

    /// `d = a & (2^n - 1)`.
    fn low_bits(&mut self, width: Width, d: Gpr, a: Gpr, n: u32) {
        if n <= 32 {
            self.and_imm(width, d, a, (1 << n) - 1);
        } else {
            // The mask is no 32-bit constant: two shifts are shorter than loading it.
            self.shift_imm(Shift::Shl, width, d, a, 64 - n);
            self.shift_imm(Shift::Shr, width, d, d, 64 - n);
        }
    }

    /// rax / b.
    fn div_insn(&mut self, width: Width, signed: bool, b: Gpr) {
        match (width, signed) {
            (_, false) => reg!(self.s.buf; xor edx, edx),
            (Width::W32, true) => reg!(self.s.buf; cdq),
            (Width::W64, true) => reg!(self.s.buf; cqo),
        }
        self.divide(width, signed, b);
    }

    /// rdx:rax / b.
    fn divide(&mut self, width: Width, signed: bool, b: Gpr) {
        match (width, signed) {
            (Width::W32, false) => reg!(self.s.buf; div Rd(b)),
            (Width::W64, false) => reg!(self.s.buf; div Rq(b)),
            (Width::W32, true) => reg!(self.s.buf; idiv Rd(b)),
            (Width::W64, true) => reg!(self.s.buf; idiv Rq(b)),
        }
    }

    fn udiv_reg(&mut self, width: Width, wanted: Wanted, b: Gpr) {
        match wanted {
            Wanted::Quotient => {
                reg!(self.s.buf; xor edx, edx);
                self.test(width, b, b);
                match width {
                    Width::W32 => reg!(self.s.buf; cmove eax, edx),
                    Width::W64 => reg!(self.s.buf; cmove rax, rdx),
                }
                let end = self.skip_if(Cc::E);
                self.divide(width, false, b);
                self.land(end);
            }
            Wanted::Remainder => {
                self.mov_reg(width, Rdx, Rax);
                self.test(width, b, b);
                let end = self.skip_if(Cc::E);
                self.div_insn(width, false, b);
                self.land(end);
            }
        }
    }

    fn sdiv_reg(&mut self, width: Width, wanted: Wanted, b: Gpr) {
        self.lea_disp(width, Rdx, b, 1);
        self.alu_imm(Alu::Cmp, width, Rdx, 1);
        let ordinary = self.skip_if(Cc::A);
        match wanted {
            Wanted::Quotient => self.imul(width, Rax, b),
            Wanted::Remainder => self.imul(width, Rdx, Rax),
        }
        let end = self.skip();
        self.land(ordinary);
        self.div_insn(width, true, b);
        self.land(end);
    }

    pub(crate) fn test(&mut self, width: Width, a: Gpr, b: Gpr) {
        sized!(self.s.buf, width; test Rq(a), Rq(b));
    }
}
