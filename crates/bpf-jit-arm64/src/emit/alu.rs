//! Constants, moves, addition, logic, shifts, addresses.
//!
//! Which immediates an instruction takes: `add` and `sub` twelve bits, perhaps shifted by twelve; `and`, `orr` and
//! `eor` a rotated run of ones, repeated (5334 values); `movz` and `movn` sixteen bits at one of four places.
//! [`Constant::of`] and [`AddImm::of`] decide, and nothing reaches dynasm that they have not passed, because dynasm
//! panics on the rest.

use crate::Emitter;
use crate::asm::{asm, asm_w};
use crate::jump::Jump;
use crate::regs::{AUX, Gpr, TMP0, TMP1, TMP2};
use bpf_isa::{Size, SubprogId, Width};
use bpf_jit::num::{low_word, small};
use bpf_jit::{BinOp, Field, Op, VReg, Val, field};
use bpf_jit_code::{Reloc, RelocKind, Symbol};
use dynasmrt::aarch64::{encode_logical_immediate_32bit, encode_logical_immediate_64bit};

/// The shortest way to put a constant into a register.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Constant {
    /// `movz`, and a `movk` for every further half-word that is not zero.
    Zeros,
    /// `movn`, and a `movk` for every further half-word that is not all ones.
    Ones,
    /// `movn` of the 32-bit register.
    Ones32,
    /// `orr` of the zero register and a logical immediate.
    Logical,
    /// A logical operation on 32-bit registers.
    Logical32,
}

/// The half-words of a constant, lowest first, each with its shift.
fn halves(value: u64) -> impl Iterator<Item = (u32, u32)> {
    (0..4).map(move |i| (low_word((value >> (16 * i)) as i64) as u32 & 0xffff, 16 * i))
}

impl Constant {
    /// The way, and how many instructions it takes.
    fn of(value: u64) -> (Constant, usize) {
        let not_zero = halves(value).filter(|(half, _)| *half != 0).count().max(1);
        let not_ones = halves(value).filter(|(half, _)| *half != 0xffff).count().max(1);
        let is_32 = value >> 32 == 0;
        if not_zero == 1 {
            (Constant::Zeros, 1)
        } else if not_ones == 1 {
            (Constant::Ones, 1)
        } else if is_32 && not_ones == 3 {
            (Constant::Ones32, 1)
        } else if encode_logical_immediate_64bit(value).is_some() {
            (Constant::Logical, 1)
        } else if is_32 && encode_logical_immediate_32bit(low_word(value as i64) as u32).is_some() {
            (Constant::Logical32, 1)
        } else if not_ones < not_zero {
            (Constant::Ones, not_ones)
        } else {
            (Constant::Zeros, not_zero)
        }
    }
}

/// How many instructions [`mov_imm`] takes.
pub(crate) fn mov_cost(value: u64) -> usize {
    Constant::of(value).1
}

/// Appends `d = value`.
#[expect(
    clippy::cast_possible_truncation,
    reason = "dynasm truncates immediates that it has compared with their range"
)]
pub(crate) fn mov_imm(code: &mut Vec<u8>, d: Gpr, value: u64) {
    match Constant::of(value).0 {
        Constant::Zeros => {
            let mut rest = halves(value).filter(|(half, _)| *half != 0);
            let (half, shift) = rest.next().unwrap_or((0, 0));
            asm!(code; movz X(d), half, lsl shift);
            rest.for_each(|(half, shift)| asm!(code; movk X(d), half, lsl shift));
        }
        Constant::Ones => {
            let mut rest = halves(value).filter(|(half, _)| *half != 0xffff);
            let (half, shift) = rest.next().unwrap_or((0xffff, 0));
            asm!(code; movn X(d), half ^ 0xffff, lsl shift);
            rest.for_each(|(half, shift)| asm!(code; movk X(d), half, lsl shift));
        }
        Constant::Ones32 => {
            let (half, shift) = halves(value).find(|(half, _)| *half != 0xffff).unwrap_or((0xffff, 0));
            asm!(code; movn W(d), half ^ 0xffff, lsl shift);
        }
        Constant::Logical => asm!(code; orr XSP(d), xzr, value),
        Constant::Logical32 => asm!(code; orr WSP(d), wzr, low_word(value as i64) as u32),
    }
}

/// A constant as `add`, `sub`, `cmp` and `cmn` take it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AddImm {
    /// An immediate below 2^12.
    Low(u32),
    /// A multiple of 2^12 below 2^24; the field holds the quotient.
    High(u32),
}

impl AddImm {
    /// `magnitude`, if one instruction takes it.
    pub(crate) fn of(magnitude: u64) -> Option<AddImm> {
        match u32::try_from(magnitude) {
            Ok(magnitude @ 0..0x1000) => Some(AddImm::Low(magnitude)),
            Ok(magnitude @ 0x1000..0x100_0000) if magnitude & 0xfff == 0 => Some(AddImm::High(magnitude >> 12)),
            Ok(_) | Err(_) => None,
        }
    }
}

fn add_sub(code: &mut Vec<u8>, width: Width, sub: bool, d: Gpr, n: Gpr, imm: AddImm) {
    match (sub, imm) {
        (false, AddImm::Low(i)) => asm_w!(code, width; add RSP(d), RSP(n), i),
        (false, AddImm::High(i)) => asm_w!(code, width; add RSP(d), RSP(n), i, lsl 12),
        (true, AddImm::Low(i)) => asm_w!(code, width; sub RSP(d), RSP(n), i),
        (true, AddImm::High(i)) => asm_w!(code, width; sub RSP(d), RSP(n), i, lsl 12),
    }
}

/// Appends `d = n + imm`; 31 is the stack pointer. Overwrites `AUX` if the constant is large; at 64 bits, adding
/// nothing to itself is nothing.
pub(crate) fn add_imm(code: &mut Vec<u8>, width: Width, d: Gpr, n: Gpr, imm: i64) {
    let imm = match width {
        Width::W32 => i64::from(low_word(imm)),
        Width::W64 => imm,
    };
    let (sub, magnitude) = (imm < 0, imm.unsigned_abs());
    if imm == 0 && d == n && width == Width::W64 {
        return;
    }
    if let Some(imm) = AddImm::of(magnitude) {
        return add_sub(code, width, sub, d, n, imm);
    }
    let constant = match width {
        Width::W32 => u64::from(low_word(imm) as u32),
        Width::W64 => imm as u64,
    };
    if let Ok(magnitude @ 0..0x100_0000) = u32::try_from(magnitude)
        && mov_cost(constant) > 1
    {
        add_sub(code, width, sub, d, n, AddImm::High(magnitude >> 12));
        return add_sub(code, width, sub, d, d, AddImm::Low(magnitude & 0xfff));
    }
    mov_imm(code, AUX, constant);
    match width {
        // The extended-register form, the only one that knows the stack pointer.
        Width::W64 if n == Gpr::SP || d == Gpr::SP => asm!(code; add XSP(d), XSP(n), X(AUX), uxtx),
        Width::W32 | Width::W64 => asm_w!(code, width; add R(d), R(n), R(AUX)),
    }
}

/// Whether `and`, `orr`, `eor` and `tst` take the constant.
pub(crate) fn is_logical(width: Width, value: u64) -> bool {
    match width {
        Width::W32 => encode_logical_immediate_32bit(low_word(value as i64) as u32).is_some(),
        Width::W64 => encode_logical_immediate_64bit(value).is_some(),
    }
}

/// The bits of a constant that an operation of `width` looks at.
pub(crate) fn low_bits(width: Width, value: i64) -> u64 {
    match width {
        Width::W32 => u64::from(low_word(value) as u32),
        Width::W64 => value as u64,
    }
}

#[derive(Clone, Copy)]
enum Logic {
    And,
    Or,
    Xor,
}

#[derive(Clone, Copy)]
enum Shift {
    Left,
    Right,
    Arithmetic,
}

impl Emitter<'_> {
    pub(crate) fn mov<const FUSES: bool>(&mut self, op: &Op, width: Width, dst: VReg, src: Val) {
        if FUSES && self.field(op) {
            return;
        }
        match src {
            Val::Imm(imm) => {
                let d = self.target(dst);
                mov_imm(&mut self.s.buf, d, low_bits(width, imm));
                self.put(dst, d);
            }
            Val::Reg(src) => match width {
                Width::W32 => {
                    let (s, d) = (self.get(src, TMP0), self.target(dst));
                    asm!(&mut self.s.buf; mov W(d), W(s));
                    self.put(dst, d);
                }
                Width::W64 if self.loc(dst) == self.loc(src) => {}
                Width::W64 => {
                    // A load goes straight to the destination.
                    let d = self.target(dst);
                    let s = self.get(src, d);
                    if d == TMP0 {
                        self.put(dst, s);
                    } else if s != d {
                        asm!(&mut self.s.buf; mov X(d), X(s));
                    }
                }
            },
        }
    }

    pub(crate) fn ext<const FUSES: bool>(
        &mut self,
        op: &Op,
        width: Width,
        signed: bool,
        from: Size,
        dst: VReg,
        src: VReg,
    ) {
        if FUSES && self.field(op) {
            return;
        }
        let (s, d) = (self.get(src, TMP0), self.target(dst));
        match (from, signed, width) {
            (Size::B, false, _) => asm!(&mut self.s.buf; uxtb W(d), W(s)),
            (Size::H, false, _) => asm!(&mut self.s.buf; uxth W(d), W(s)),
            (Size::W, false, _) | (Size::W, true, Width::W32) => asm!(&mut self.s.buf; mov W(d), W(s)),
            (Size::B, true, Width::W32) => asm!(&mut self.s.buf; sxtb W(d), W(s)),
            (Size::H, true, Width::W32) => asm!(&mut self.s.buf; sxth W(d), W(s)),
            (Size::B, true, Width::W64) => asm!(&mut self.s.buf; sxtb X(d), W(s)),
            (Size::H, true, Width::W64) => asm!(&mut self.s.buf; sxth X(d), W(s)),
            (Size::W, true, Width::W64) => asm!(&mut self.s.buf; sxtw X(d), W(s)),
            // Nothing to extend: a move at the result's width.
            (Size::DW, _, _) => asm_w!(&mut self.s.buf, width; mov R(d), R(s)),
        }
        self.put(dst, d);
    }

    pub(crate) fn neg<const FUSES: bool>(&mut self, op: &Op, width: Width, dst: VReg, src: VReg) {
        if FUSES && self.field(op) {
            return;
        }
        let (s, d) = (self.get(src, TMP0), self.target(dst));
        asm_w!(&mut self.s.buf, width; neg R(d), R(s));
        self.put(dst, d);
    }

    pub(crate) fn add_shift(&mut self, width: Width, dst: VReg, a: VReg, b: VReg, shift: u8) {
        let (a, b, d) = (self.get(a, TMP0), self.get(b, TMP1), self.target(dst));
        asm_w!(&mut self.s.buf, width; add R(d), R(a), R(b), lsl u32::from(shift & 3));
        self.put(dst, d);
    }

    pub(crate) fn bin<const FUSES: bool>(&mut self, whole: &Op, op: BinOp, width: Width, dst: VReg, a: VReg, b: Val) {
        if FUSES && self.field(whole) {
            return;
        }
        if FUSES && let Some(maker) = self.held.take() {
            return self.bin_with(op, width, dst, a, b, maker);
        }
        match op {
            BinOp::Add => self.add(width, dst, a, b),
            BinOp::Sub => self.sub(width, dst, a, b),
            BinOp::And => self.logic(Logic::And, width, dst, a, b),
            BinOp::Or => self.logic(Logic::Or, width, dst, a, b),
            BinOp::Xor => self.logic(Logic::Xor, width, dst, a, b),
            BinOp::Shl => self.shift(Shift::Left, width, dst, a, b),
            BinOp::Shr => self.shift(Shift::Right, width, dst, a, b),
            BinOp::Sar => self.shift(Shift::Arithmetic, width, dst, a, b),
            BinOp::Rotl => self.rotate(width, dst, a, b),
            BinOp::Mul => self.mul(width, dst, a, b),
            BinOp::MulHighU => self.mul_high(false, width, dst, a, b),
            BinOp::MulHighS => self.mul_high(true, width, dst, a, b),
            BinOp::Div => self.div(false, width, dst, a, b),
            BinOp::SDiv => self.div(true, width, dst, a, b),
            BinOp::Mod => self.rem(false, width, dst, a, b),
            BinOp::SMod => self.rem(true, width, dst, a, b),
        }
    }

    /// Emits the op before and `op` as one bit-field instruction, if together they extract or insert a field. Returns
    /// whether they do.
    #[inline(always)]
    fn field(&mut self, op: &Op) -> bool {
        let Some(maker) = &self.held else { return false };
        let (Some(Field { src, width, signed, from, to, bits }), Some(dst)) = (field(maker, op), op.def()) else {
            return false;
        };
        self.held = None;
        let (s, d) = (self.get(src, TMP0), self.target(dst));
        let [from, to, bits] = [from, to, bits].map(u32::from);
        let code = &mut self.s.buf;
        match (signed, to) {
            (false, 0) => asm_w!(code, width; ubfx R(d), R(s), from, bits),
            (true, 0) => asm_w!(code, width; sbfx R(d), R(s), from, bits),
            (false, _) => asm_w!(code, width; ubfiz R(d), R(s), to, bits),
            (true, _) => asm_w!(code, width; sbfiz R(d), R(s), to, bits),
        }
        self.put(dst, d);
        true
    }

    /// An op whose second operand it makes itself, as `maker` would have.
    fn bin_with(&mut self, op: BinOp, width: Width, dst: VReg, a: VReg, b: Val, maker: Op) {
        let (Some(v), Val::Reg(b)) = (maker.def(), b) else {
            return debug_assert!(false, "{maker:?} is held for an op that does not read it");
        };
        let (a, d) = (self.get(if b == v { a } else { b }, TMP0), self.target(dst));
        if let Op::Bin { op: BinOp::Mul, a: x, b: Val::Reg(y), .. } = maker {
            let (x, y) = (self.get(x, TMP1), self.get(y, TMP2));
            if op == BinOp::Sub {
                asm_w!(&mut self.s.buf, width; msub R(d), R(x), R(y), R(a));
            } else {
                asm_w!(&mut self.s.buf, width; madd R(d), R(x), R(y), R(a));
            }
        } else if let Op::Bin { op: by, a: x, b: Val::Imm(imm), .. } = maker {
            let x = self.get(x, TMP1);
            self.shifted(op, by, width, [d, a, x], imm);
        } else if let Op::Mov { src: Val::Reg(x), .. } = maker {
            let x = self.get(x, TMP1);
            self.extended(op == BinOp::Sub, width, false, Size::W, [d, a, x]);
        } else if let Op::Ext { signed, from, src: x, .. } = maker {
            let x = self.get(x, TMP1);
            self.extended(op == BinOp::Sub, width, signed, from, [d, a, x]);
        } else {
            debug_assert!(false, "{maker:?} is held");
        }
        self.put(dst, d);
    }

    /// `d = a op (x by imm)`.
    fn shifted(&mut self, op: BinOp, by: BinOp, width: Width, [d, a, x]: [Gpr; 3], imm: i64) {
        let n = count(width, imm);
        let ror = count(width, imm.wrapping_neg());
        macro_rules! second {
            ($name:ident) => {
                if by == BinOp::Shl {
                    asm_w!(&mut self.s.buf, width; $name R(d), R(a), R(x), lsl n)
                } else if by == BinOp::Shr {
                    asm_w!(&mut self.s.buf, width; $name R(d), R(a), R(x), lsr n)
                } else {
                    debug_assert_eq!(by, BinOp::Sar);
                    asm_w!(&mut self.s.buf, width; $name R(d), R(a), R(x), asr n)
                }
            };
        }
        macro_rules! logic {
            ($name:ident $inverted:ident) => {
                if by == BinOp::Rotl {
                    asm_w!(&mut self.s.buf, width; $name R(d), R(a), R(x), ror ror)
                } else if by == BinOp::Xor {
                    asm_w!(&mut self.s.buf, width; $inverted R(d), R(a), R(x))
                } else {
                    second!($name)
                }
            };
        }
        match op {
            BinOp::Add => second!(add),
            BinOp::Sub => second!(sub),
            BinOp::And => logic!(and bic),
            BinOp::Or => logic!(orr orn),
            BinOp::Xor => logic!(eor eon),
            BinOp::Mul
            | BinOp::MulHighU
            | BinOp::MulHighS
            | BinOp::Div
            | BinOp::SDiv
            | BinOp::Mod
            | BinOp::SMod
            | BinOp::Shl
            | BinOp::Shr
            | BinOp::Sar
            | BinOp::Rotl => debug_assert!(false, "{op:?} takes no shifted operand"),
        }
    }

    /// `d = a + x` or `a - x`, x extended.
    fn extended(&mut self, sub: bool, width: Width, signed: bool, from: Size, [d, a, x]: [Gpr; 3]) {
        macro_rules! sum {
            ($extend:ident) => {
                match (sub, width) {
                    (false, Width::W32) => asm!(&mut self.s.buf; add WSP(d), WSP(a), W(x), $extend),
                    (true, Width::W32) => asm!(&mut self.s.buf; sub WSP(d), WSP(a), W(x), $extend),
                    (false, Width::W64) => asm!(&mut self.s.buf; add XSP(d), XSP(a), W(x), $extend),
                    (true, Width::W64) => asm!(&mut self.s.buf; sub XSP(d), XSP(a), W(x), $extend),
                }
            };
        }
        match (from, signed) {
            (Size::B, false) => sum!(uxtb),
            (Size::H, false) => sum!(uxth),
            (Size::W, false) => sum!(uxtw),
            (Size::B, true) => sum!(sxtb),
            (Size::H, true) => sum!(sxth),
            (Size::W, true) => sum!(sxtw),
            (Size::DW, _) => debug_assert!(false, "nothing to extend"),
        }
    }

    fn add(&mut self, width: Width, dst: VReg, a: VReg, b: Val) {
        let (a, d) = (self.get(a, TMP0), self.target(dst));
        match b {
            Val::Imm(imm) => add_imm(&mut self.s.buf, width, d, a, imm),
            Val::Reg(b) => {
                let b = self.get(b, TMP1);
                asm_w!(&mut self.s.buf, width; add R(d), R(a), R(b));
            }
        }
        self.put(dst, d);
    }

    fn sub(&mut self, width: Width, dst: VReg, a: VReg, b: Val) {
        let (a, d) = (self.get(a, TMP0), self.target(dst));
        match b {
            Val::Imm(imm) => add_imm(&mut self.s.buf, width, d, a, imm.wrapping_neg()),
            Val::Reg(b) => {
                let b = self.get(b, TMP1);
                asm_w!(&mut self.s.buf, width; sub R(d), R(a), R(b));
            }
        }
        self.put(dst, d);
    }

    fn logic(&mut self, op: Logic, width: Width, dst: VReg, a: VReg, b: Val) {
        let (a, d) = (self.get(a, TMP0), self.target(dst));
        let mut inverted = false;
        let b = match b {
            Val::Reg(b) => self.get(b, TMP1),
            Val::Imm(imm) => {
                let value = low_bits(width, imm);
                if is_logical(width, value) {
                    match (op, width) {
                        (Logic::And, Width::W32) => asm!(&mut self.s.buf; and WSP(d), W(a), low_word(imm) as u32),
                        (Logic::And, Width::W64) => asm!(&mut self.s.buf; and XSP(d), X(a), value),
                        (Logic::Or, Width::W32) => asm!(&mut self.s.buf; orr WSP(d), W(a), low_word(imm) as u32),
                        (Logic::Or, Width::W64) => asm!(&mut self.s.buf; orr XSP(d), X(a), value),
                        (Logic::Xor, Width::W32) => asm!(&mut self.s.buf; eor WSP(d), W(a), low_word(imm) as u32),
                        (Logic::Xor, Width::W64) => asm!(&mut self.s.buf; eor XSP(d), X(a), value),
                    }
                    return self.put(dst, d);
                }
                // All zeros and all ones are no logical immediates, but the zero register and its inverse.
                inverted = value == low_bits(width, -1);
                if value == 0 || inverted {
                    Gpr::ZR
                } else {
                    mov_imm(&mut self.s.buf, AUX, value);
                    AUX
                }
            }
        };
        match (op, inverted) {
            (Logic::And, false) => asm_w!(&mut self.s.buf, width; and R(d), R(a), R(b)),
            (Logic::And, true) => asm_w!(&mut self.s.buf, width; bic R(d), R(a), R(b)),
            (Logic::Or, false) => asm_w!(&mut self.s.buf, width; orr R(d), R(a), R(b)),
            (Logic::Or, true) => asm_w!(&mut self.s.buf, width; orn R(d), R(a), R(b)),
            (Logic::Xor, false) => asm_w!(&mut self.s.buf, width; eor R(d), R(a), R(b)),
            (Logic::Xor, true) => asm_w!(&mut self.s.buf, width; eon R(d), R(a), R(b)),
        }
        self.put(dst, d);
    }

    pub(crate) fn and(&mut self, width: Width, dst: VReg, a: VReg, b: Val) {
        self.logic(Logic::And, width, dst, a, b);
    }

    fn shift(&mut self, op: Shift, width: Width, dst: VReg, a: VReg, b: Val) {
        let (a, d) = (self.get(a, TMP0), self.target(dst));
        match b {
            Val::Imm(imm) => {
                let count = count(width, imm);
                match op {
                    Shift::Left => asm_w!(&mut self.s.buf, width; lsl R(d), R(a), count),
                    Shift::Right => asm_w!(&mut self.s.buf, width; lsr R(d), R(a), count),
                    Shift::Arithmetic => asm_w!(&mut self.s.buf, width; asr R(d), R(a), count),
                }
            }
            // The instructions take the count modulo the width, as BPF does.
            Val::Reg(b) => {
                let b = self.get(b, TMP1);
                match op {
                    Shift::Left => asm_w!(&mut self.s.buf, width; lsl R(d), R(a), R(b)),
                    Shift::Right => asm_w!(&mut self.s.buf, width; lsr R(d), R(a), R(b)),
                    Shift::Arithmetic => asm_w!(&mut self.s.buf, width; asr R(d), R(a), R(b)),
                }
            }
        }
        self.put(dst, d);
    }

    /// There is only a rotation to the right: by the negated count.
    fn rotate(&mut self, width: Width, dst: VReg, a: VReg, b: Val) {
        let (a, d) = (self.get(a, TMP0), self.target(dst));
        match b {
            Val::Imm(imm) => asm_w!(&mut self.s.buf, width; ror R(d), R(a), count(width, imm.wrapping_neg())),
            Val::Reg(b) => {
                let b = self.get(b, TMP1);
                asm_w!(&mut self.s.buf, width; neg R(TMP2), R(b); ror R(d), R(a), R(TMP2));
            }
        }
        self.put(dst, d);
    }

    pub(crate) fn sym_addr(&mut self, dst: VReg, symbol: Symbol) {
        let d = self.target(dst);
        self.code.relocs.push(Reloc { at: small(self.s.buf.len()), kind: RelocKind::Arm64Mov48, symbol });
        asm!(&mut self.s.buf; movz X(d), 0; movk X(d), 0, lsl 16; movk X(d), 0, lsl 32);
        self.put(dst, d);
    }

    pub(crate) fn subprog_addr(&mut self, dst: VReg, subprog: SubprogId) {
        let d = self.target(dst);
        self.go(Jump::Address { dst: d }, self.s.entry(subprog));
        self.put(dst, d);
    }

    /// The address `off` bytes from r10.
    pub(crate) fn frame_addr(&mut self, dst: VReg, off: i32) {
        let (d, off) = (self.target(dst), self.frame_offset(off));
        add_imm(&mut self.s.buf, Width::W64, d, Gpr::SP, off);
        self.put(dst, d);
    }
}

/// A shift count as the instructions take it.
fn count(width: Width, imm: i64) -> u32 {
    match width {
        Width::W32 => low_word(imm) as u32 & 31,
        Width::W64 => low_word(imm) as u32 & 63,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    /// The ones and the rotation that a logical immediate stands for, after the manual's DecodeBitMasks.
    fn decode_logical(n: u32, immr: u32, imms: u32) -> Option<u64> {
        let len = (n << 6 | !imms & 0x3f).checked_ilog2().filter(|len| *len > 0)?;
        let size = 1 << len;
        let (s, r) = (imms & (size - 1), immr & (size - 1));
        if s == size - 1 {
            return None;
        }
        let ones = (1u64 << (s + 1)) - 1;
        let all = if size == 64 { u64::MAX } else { (1 << size) - 1 };
        let element = if r == 0 { ones } else { (ones >> r | ones << (size - r)) & all };
        Some((0..64 / size).fold(0, |value, i| value | element << (i * size)))
    }

    /// Runs code of moves, additions and subtractions, with all registers at `start`; returns the registers.
    fn simulate(code: &[u8], start: u64) -> [u64; 32] {
        let mut regs = [start; 32];
        for word in code.chunks(4) {
            let word = u32::from_le_bytes(word.try_into().unwrap());
            let field = |at: u32, bits: u32| word >> at & ((1 << bits) - 1);
            let (d, n, m) = (field(0, 5) as usize, field(5, 5) as usize, field(16, 5) as usize);
            let wide = word >> 31 == 1;
            let shift = field(21, 2) * 16;
            let imm = u64::from(field(5, 16)) << shift;
            let twelve = u64::from(field(10, 12)) << (field(22, 1) * 12);
            let value = match word >> 23 & 0xff {
                0b1010_0101 => imm,
                0b0010_0101 => !imm,
                0b1110_0101 => regs[d] & !(0xffff << shift) | imm,
                0b0110_0100 => {
                    assert_eq!(n, 31, "orr of the zero register");
                    decode_logical(field(22, 1), field(16, 6), field(10, 6)).unwrap()
                }
                0b0010_0010 => regs[n].wrapping_add(twelve),
                0b1010_0010 => regs[n].wrapping_sub(twelve),
                // The shifted register form, not shifted; or the extended one, with uxtx and no shift.
                0b0001_0110 => {
                    assert!(field(21, 1) == 0 && field(10, 6) == 0 || field(21, 1) == 1 && field(10, 6) == 0b01_1000);
                    regs[n].wrapping_add(regs[m])
                }
                other => panic!("{word:#x}: {other:#b}"),
            };
            regs[d] = if wide { value } else { u64::from(value as u32) };
        }
        regs
    }

    fn logical_immediates() -> HashSet<u64> {
        let fields = (0..1 << 13).map(|f| (f >> 12 & 1, f >> 6 & 0x3f, f & 0x3f));
        fields.filter_map(|(n, immr, imms)| decode_logical(n, immr, imms)).collect()
    }

    /// Constants at and around every border there is: runs of ones, borders of half-words and of immediate fields, and
    /// noise.
    fn constants() -> Vec<u64> {
        let mut out: Vec<u64> = vec![0, 1, 2, 0x1234_5678, 0xaaaa_aaaa, 0x5555_5555_5555_5555];
        for at in 0..64 {
            for len in 1..64 {
                out.push(u64::MAX >> (64 - len) << at);
            }
            for delta in -2i64..=2 {
                out.push((1u64 << at).wrapping_add(delta as u64));
                out.push((1u64 << at).wrapping_neg().wrapping_add(delta as u64));
            }
        }
        for halves in 0..6u64.pow(4) {
            let half = |i: u32| [0, 1, 0x7fff, 0x8000, 0xfffe, 0xffff][(halves / 6u64.pow(i) % 6) as usize];
            out.push(half(0) | half(1) << 16 | half(2) << 32 | half(3) << 48);
        }
        let mut random = 1u64;
        for _ in 0..20_000 {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let value = random ^ random >> 29;
            out.push(value >> (random >> 58));
            out.push((value as i64 >> (random >> 58)) as u64);
        }
        out
    }

    #[test]
    fn logical_immediates_are_those_of_the_manual() {
        let all = logical_immediates();
        assert_eq!(all.len(), 5334);
        for value in &all {
            assert!(is_logical(Width::W64, *value), "{value:#x}");
        }
        for value in constants() {
            assert_eq!(is_logical(Width::W64, value), all.contains(&value), "{value:#x}");
            let doubled = u64::from(value as u32) << 32 | u64::from(value as u32);
            assert_eq!(is_logical(Width::W32, value), all.contains(&doubled), "{value:#x}");
        }
    }

    /// The fewest of `movz`, `movn`, `movk` and `orr` that give the value.
    fn fewest(value: u64, logical: &HashSet<u64>) -> usize {
        let halves = [0, 16, 32, 48].map(|shift| value >> shift & 0xffff);
        let not = |of: u64| halves.iter().filter(|half| **half != of).count().max(1);
        let doubled = value << 32 | value;
        let narrow = value >> 32 == 0 && (halves[0] == 0xffff || halves[1] == 0xffff || logical.contains(&doubled));
        if narrow || logical.contains(&value) { 1 } else { not(0).min(not(0xffff)) }
    }

    #[test]
    fn constants_take_the_fewest_instructions() {
        let logical = logical_immediates();
        for value in constants() {
            let mut code = Vec::new();
            mov_imm(&mut code, Gpr::X3, value);
            assert_eq!(simulate(&code, 0x0123_4567_89ab_cdef)[3], value, "{value:#x}");
            assert_eq!(code.len(), 4 * fewest(value, &logical), "{value:#x}");
        }
    }

    #[test]
    fn additions_of_every_constant() {
        for value in constants() {
            for width in [Width::W32, Width::W64] {
                for (d, n) in [(Gpr::X1, Gpr::X2), (Gpr::X1, Gpr::X1), (Gpr::SP, Gpr::SP), (Gpr::X1, Gpr::SP)] {
                    let start = 0x0123_4567_89ab_cdef_u64;
                    let mut code = Vec::new();
                    if n == Gpr::SP && width == Width::W32 {
                        continue;
                    }
                    add_imm(&mut code, width, d, n, value as i64);
                    let sum = low_bits(width, start.wrapping_add(value) as i64);
                    assert_eq!(simulate(&code, start)[d as usize], sum, "{value:#x} at {width:?}");
                    let magnitude = match width {
                        Width::W32 => i64::from(value as i32).unsigned_abs(),
                        Width::W64 => (value as i64).unsigned_abs(),
                    };
                    let limit = match magnitude {
                        0..0x1000 => 1,
                        0x1000..0x100_0000 if magnitude % 0x1000 == 0 => 1,
                        0x1000..0x100_0000 => 2,
                        _ => 5,
                    };
                    assert!(code.len() <= 4 * limit, "{value:#x} at {width:?}");
                }
            }
        }
    }
}
