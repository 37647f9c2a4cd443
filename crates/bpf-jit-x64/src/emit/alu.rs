//! Moves, extensions, and two-operand arithmetic but for division.
//!
//! x86-64 arithmetic overwrites its first operand. Where the destination is another register than both operands, `lea`
//! and three-operand `imul` do without a move; where it is the *second* operand's, the operation is turned round.

use crate::asm::Addr;
use crate::asm::{Memory, asm, byte, reg, sized};
use crate::jump::Jump;
use crate::regs::Gpr::{self, *};
use crate::regs::{SCRATCH, SCRATCH2};
use crate::{Emitter, Flags};
use bpf_isa::{Size, SubprogId, Width};
use bpf_jit::num::{few, low_byte, low_word, small};
use bpf_jit::{BinOp, Loc, Op, VReg, Val};
use bpf_jit_code::{Reloc, RelocKind, Symbol};

/// Two-operand instructions that share their encodings, by their number in them (Intel SDM vol. 2, table A-6, group 1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Alu {
    Add = 0,
    Or = 1,
    Adc = 2,
    Sbb = 3,
    And = 4,
    Sub = 5,
    Xor = 6,
    Cmp = 7,
}

/// The second operand of an op, in its final place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Operand {
    Reg(Gpr),
    /// As [`at_width`] leaves it.
    Imm(i64),
}

/// Shifts and rotations, by their number in encodings (the same table, group 2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Shift {
    Rol = 0,
    Shl = 4,
    Shr = 5,
    Sar = 7,
}

/// Which result of a division.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wanted {
    Quotient,
    Remainder,
}

/// A constant as an op of this width sees it: its low half, sign-extended, for a 32-bit op.
pub(crate) fn at_width(width: Width, imm: i64) -> i64 {
    match width {
        Width::W32 => i64::from(low_word(imm)),
        Width::W64 => imm,
    }
}

/// The power of two beside a factor, and what has to be done once more: 31 is 2^5, less one; 33 is 2^5 and one more.
fn beside_power(factor: i64) -> Option<(Alu, u32)> {
    let power = |n: i64| u64::try_from(n).ok().filter(|n| *n > 2 && n.is_power_of_two()).map(u64::trailing_zeros);
    let less = power(factor.wrapping_add(1)).map(|count| (Alu::Sub, count));
    less.or_else(|| power(factor.wrapping_sub(1)).map(|count| (Alu::Add, count)))
}

impl Emitter<'_> {
    /// `mov dst, src`, also where they are the same: a 32-bit move zero-extends.
    pub(crate) fn mov_reg(&mut self, width: Width, dst: Gpr, src: Gpr) {
        sized!(self.s.buf, width; mov Rq(dst), Rq(src))
    }

    /// `mov dst, src` unless they are the same.
    #[inline(always)]
    pub(crate) fn copy(&mut self, width: Width, dst: Gpr, src: Gpr) {
        if dst != src {
            self.mov_reg(width, dst, src);
        }
    }

    /// `dst` = the low half of `src` at 32 bits, all of it at 64.
    #[inline(always)]
    pub(super) fn narrow(&mut self, width: Width, dst: Gpr, src: Gpr) {
        match width {
            Width::W32 => self.mov_reg(width, dst, src),
            Width::W64 => self.copy(width, dst, src),
        }
    }

    /// `dst = value`. Changes flags.
    pub(crate) fn load_imm(&mut self, dst: Gpr, value: u64) {
        if value == 0 {
            reg!(self.s.buf; xor Rd(dst), Rd(dst));
        } else if let Ok(low) = u32::try_from(value) {
            reg!(self.s.buf; mov Rd(dst), DWORD low as i32);
        } else if let Ok(low) = i32::try_from(value as i64) {
            reg!(self.s.buf; mov Rq(dst), DWORD low);
        } else {
            reg!(self.s.buf; mov Rq(dst), QWORD value as i64);
        }
    }

    #[inline(always)]
    pub(crate) fn mov<const FUSES: bool>(&mut self, _: &Op, width: Width, dst: VReg, src: Val) {
        let d = self.target(dst);
        match src {
            Val::Imm(imm) => {
                let value = match width {
                    Width::W32 => u64::from(low_word(imm) as u32),
                    Width::W64 => imm as u64,
                };
                if let (Loc::Slot(slot), Ok(imm)) = (self.alloc.loc(dst), i32::try_from(value as i64)) {
                    return self.store_imm_slot(slot, imm);
                }
                self.load_imm(d, value);
            }
            Val::Reg(src) => {
                if self.alloc.loc(dst) == self.alloc.loc(src) && width == Width::W64 {
                    return;
                }
                // From a slot to where it is to be.
                let src = if self.is_kept(self.alloc.loc(src)) { SCRATCH } else { self.get(src, d) };
                if width == Width::W64 && d == SCRATCH {
                    return self.set(dst, src);
                }
                self.narrow(width, d, src);
            }
        }
        self.put(dst, d);
    }

    pub(crate) fn ext<const FUSES: bool>(
        &mut self,
        _: &Op,
        width: Width,
        signed: bool,
        from: Size,
        dst: VReg,
        src: VReg,
    ) {
        let d = self.target(dst);
        let s = self.get(src, SCRATCH);
        match (signed, from, width) {
            (false, Size::B, _) => byte!(self.s.buf, s; movzx Rd(d), Rb(s)),
            (false, Size::H, _) => reg!(self.s.buf; movzx Rd(d), Rw(s)),
            (false, Size::W, _) | (true, Size::W, Width::W32) => self.mov_reg(Width::W32, d, s),
            (true, Size::B, Width::W32) => byte!(self.s.buf, s; movsx Rd(d), Rb(s)),
            (true, Size::B, Width::W64) => reg!(self.s.buf; movsx Rq(d), Rb(s)),
            (true, Size::H, Width::W32) => reg!(self.s.buf; movsx Rd(d), Rw(s)),
            (true, Size::H, Width::W64) => reg!(self.s.buf; movsx Rq(d), Rw(s)),
            (true, Size::W, Width::W64) => reg!(self.s.buf; movsxd Rq(d), Rd(s)),
            (_, Size::DW, _) => self.narrow(width, d, s),
        }
        self.put(dst, d);
    }

    pub(crate) fn neg<const FUSES: bool>(&mut self, _: &Op, width: Width, dst: VReg, src: VReg) {
        let d = self.target(dst);
        let s = self.get(src, SCRATCH);
        self.copy(width, d, s);
        self.neg_reg(width, d);
        self.put(dst, d);
    }

    pub(crate) fn neg_reg(&mut self, width: Width, d: Gpr) {
        sized!(self.s.buf, width; neg Rq(d))
    }

    #[inline(always)]
    pub(crate) fn bin<const FUSES: bool>(&mut self, _: &Op, op: BinOp, width: Width, dst: VReg, a: VReg, b: Val) {
        if FUSES && let Some(maker) = self.held.take() {
            return self.bin_with_memory(op, width, dst, a, b, maker);
        }
        if FUSES && self.bin_in_slots(op, width, dst, a, b) {
            return;
        }
        match op {
            BinOp::And | BinOp::Add if FUSES && self.alloc.is_held(dst) => {
                self.held = Some(Op::Bin { op, width, dst, a, b });
            }
            BinOp::Add => self.two(width, dst, a, b, Self::add),
            BinOp::Sub => self.two(width, dst, a, b, Self::sub),
            BinOp::Mul => self.two(width, dst, a, b, Self::mul),
            BinOp::MulHighU => self.mul_high(width, false, dst, a, b),
            BinOp::MulHighS => self.mul_high(width, true, dst, a, b),
            BinOp::Div => self.div(width, false, Wanted::Quotient, dst, a, b),
            BinOp::SDiv => self.div(width, true, Wanted::Quotient, dst, a, b),
            BinOp::Mod => self.div(width, false, Wanted::Remainder, dst, a, b),
            BinOp::SMod => self.div(width, true, Wanted::Remainder, dst, a, b),
            BinOp::And => self.two(width, dst, a, b, Self::and),
            BinOp::Or => self.two(width, dst, a, b, |e, w, d, a, b| e.logic(Alu::Or, w, d, a, b)),
            BinOp::Xor => self.two(width, dst, a, b, Self::xor),
            BinOp::Shl => self.two(width, dst, a, b, |e, w, d, a, b| e.shift(Shift::Shl, w, d, a, b)),
            BinOp::Shr => self.two(width, dst, a, b, |e, w, d, a, b| e.shift(Shift::Shr, w, d, a, b)),
            BinOp::Sar => self.two(width, dst, a, b, |e, w, d, a, b| e.shift(Shift::Sar, w, d, a, b)),
            BinOp::Rotl => self.two(width, dst, a, b, |e, w, d, a, b| e.shift(Shift::Rol, w, d, a, b)),
        }
    }

    /// Arithmetic on operands in slots, where they are; false if they must come to registers.
    #[inline(always)]
    fn bin_in_slots(&mut self, op: BinOp, width: Width, dst: VReg, a: VReg, b: Val) -> bool {
        let slot = |v: VReg| match self.alloc.loc(v) {
            Loc::Slot(slot) => Some(slot),
            Loc::Reg(_) => None,
        };
        let second = if let Val::Reg(b) = b { slot(b) } else { None };
        match (slot(a), second) {
            (None, None) => false,
            (Some(slot), _) | (_, Some(slot)) if self.is_kept(Loc::Slot(slot)) => false,
            (first, second) => !self.alloc.is_held(dst) && self.in_slots(op, width, dst, (a, first), (b, second)),
        }
    }

    /// Emits the operation with operands that may lie in spill slots.
    fn in_slots(
        &mut self,
        op: BinOp,
        width: Width,
        dst: VReg,
        (a, first): (VReg, Option<u32>),
        (b, second): (Val, Option<u32>),
    ) -> bool {
        let alu = match op {
            BinOp::Add => Some(Alu::Add),
            BinOp::Sub => Some(Alu::Sub),
            BinOp::And => Some(Alu::And),
            BinOp::Or => Some(Alu::Or),
            BinOp::Xor => Some(Alu::Xor),
            BinOp::Mul => None,
            BinOp::MulHighU
            | BinOp::MulHighS
            | BinOp::Div
            | BinOp::SDiv
            | BinOp::Mod
            | BinOp::SMod
            | BinOp::Shl
            | BinOp::Shr
            | BinOp::Sar
            | BinOp::Rotl => return false,
        };
        // In place: all 64 bits, as a result of 32 has to be zero above.
        if let (Some(alu), Some(slot), Width::W64) = (alu, first, width)
            && self.alloc.loc(dst) == Loc::Slot(slot)
        {
            let m = Self::slot(slot).into();
            match b {
                Val::Imm(imm) => {
                    let Ok(imm) = i32::try_from(imm) else { return false };
                    asm!(
                        self.s.buf, [memory(m, 4), modrm_number(alu as u8), shorten_imm, at_width(width)];
                        add QWORD [rax], DWORD imm
                    );
                }
                Val::Reg(b) => {
                    let b = self.get(b, SCRATCH);
                    asm!(self.s.buf, [memory(m, 0), opcode_number(alu as u8), at_width(width)]; add [rax], Rq(b));
                }
            }
            return true;
        }
        let (other, slot) = match (second, first, b) {
            (Some(slot), _, Val::Reg(_)) => (a, slot),
            (None, Some(slot), Val::Reg(b)) if op != BinOp::Sub => (b, slot),
            (_, _, Val::Reg(_) | Val::Imm(_)) => return false,
        };
        let (d, m) = (self.target(dst), Self::slot(slot).into());
        self.load_into(width, d, other);
        match alu {
            Some(alu) => {
                self.alu_mem(alu, width, d, m);
                self.note_flags(width, d);
            }
            None => asm!(self.s.buf, [memory(m, 0), at_width(width)]; imul Rq(d), [rax]),
        }
        self.put(dst, d);
        true
    }

    /// Emits an op on registers: `d` and `a` may be [`SCRATCH`], `b` [`SCRATCH2`], which is free where `b` is a
    /// constant.
    #[inline(always)]
    fn two(
        &mut self,
        width: Width,
        dst: VReg,
        a: VReg,
        b: Val,
        emit: impl FnOnce(&mut Self, Width, Gpr, Gpr, Operand),
    ) {
        let d = self.target(dst);
        let b = match b {
            Val::Reg(b) => Operand::Reg(self.get(b, SCRATCH2)),
            Val::Imm(imm) => Operand::Imm(at_width(width, imm)),
        };
        // From a slot to where the result will be, if nothing is there that is read.
        let a = if self.is_kept(self.alloc.loc(a)) {
            SCRATCH
        } else {
            self.get(a, if b == Operand::Reg(d) { SCRATCH } else { d })
        };
        emit(self, width, d, a, b);
        self.put(dst, d);
    }

    /// An op one of whose operands was to be loaded.
    fn bin_with_memory(&mut self, op: BinOp, width: Width, dst: VReg, a: VReg, b: Val, load: Op) {
        let (Op::Load { dst: v, mem, .. }, Val::Reg(b)) = (load, b) else {
            return debug_assert!(false, "{load:?} is held for an op that does not load it");
        };
        let d = self.target(dst);
        let m = self.operand(mem, SCRATCH2);
        let other = self.get(if b == v { a } else { b }, SCRATCH);
        self.copy(width, d, other);
        let alu = match op {
            BinOp::Add => Alu::Add,
            BinOp::Sub => Alu::Sub,
            BinOp::And => Alu::And,
            BinOp::Or => Alu::Or,
            BinOp::Xor => Alu::Xor,
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
            | BinOp::Rotl => return debug_assert!(false, "{op:?} takes no operand from memory"),
        };
        self.alu_mem(alu, width, d, m);
        self.note_flags(width, d);
        self.put(dst, d);
    }

    /// The last instruction has set the flags by its result in `of`.
    #[inline(always)]
    fn note_flags(&mut self, width: Width, of: Gpr) {
        self.flags = Some(Flags { of, width, at: self.s.buf.len() });
    }

    /// `op d, s`.
    #[inline(always)]
    pub(crate) fn alu(&mut self, op: Alu, width: Width, d: Gpr, s: Gpr) {
        asm!(self.s.buf, [opcode_number(op as u8), at_width(width)]; add Rq(d), Rq(s));
        if op != Alu::Cmp {
            self.note_flags(width, d);
        }
    }

    /// `op d, [m]`.
    pub(crate) fn alu_mem(&mut self, op: Alu, width: Width, d: Gpr, m: Memory) {
        asm!(self.s.buf, [memory(m, 0), opcode_number(op as u8), at_width(width)]; add Rq(d), [rax]);
    }

    /// `op d, imm`.
    fn alu_imm32(&mut self, op: Alu, width: Width, d: Gpr, imm: i32) {
        self.alu_imm32_only(op, width, d, imm);
        if op != Alu::Cmp {
            self.note_flags(width, d);
        }
    }

    fn alu_imm32_only(&mut self, op: Alu, width: Width, d: Gpr, imm: i32) {
        // rax has a form without ModRM, but only for long constants.
        if d == Rax && i8::try_from(imm).is_err() {
            asm!(self.s.buf, [opcode_number(op as u8), at_width(width)]; add rax, DWORD imm);
        } else {
            asm!(self.s.buf, [modrm_number(op as u8), shorten_imm, at_width(width)]; add Rq(d), DWORD imm);
        }
    }

    /// `op d, imm`; a constant of more than 32 bits goes through [`SCRATCH2`].
    #[inline(always)]
    pub(crate) fn alu_imm(&mut self, op: Alu, width: Width, d: Gpr, imm: i64) {
        match i32::try_from(imm) {
            Ok(imm) => self.alu_imm32(op, width, d, imm),
            Err(_) => {
                self.load_imm(SCRATCH2, imm as u64);
                self.alu(op, width, d, SCRATCH2);
            }
        }
    }

    /// `d = a op b` where the order does not matter.
    #[inline(always)]
    fn commutative(&mut self, op: Alu, width: Width, d: Gpr, a: Gpr, b: Gpr) {
        let (first, second) = if d == b { (b, a) } else { (a, b) };
        self.copy(width, d, first);
        self.alu(op, width, d, second);
    }

    /// `d = a + (b << shift)`.
    fn lea(&mut self, width: Width, d: Gpr, a: Gpr, b: Gpr, shift: u8) {
        // rbp and r13 as base take a displacement; unscaled, the two change places.
        let (a, b) = if shift == 0 && matches!(a, Rbp | R13) { (b, a) } else { (a, b) };
        asm!(self.s.buf, [memory(Memory::at_index(a, b, shift, 0), 0), at_width(width)]; lea Rq(d), [rax])
    }

    /// `d = base + disp`.
    pub(crate) fn lea_disp(&mut self, width: Width, d: Gpr, base: Gpr, disp: i32) {
        asm!(self.s.buf, [memory(Addr { base, disp }.into(), 0), at_width(width)]; lea Rq(d), [rax])
    }

    pub(crate) fn add_shift(&mut self, width: Width, dst: VReg, a: VReg, b: VReg, shift: u8) {
        let d = self.target(dst);
        let a = self.get(a, SCRATCH);
        let b = self.get(b, SCRATCH2);
        self.lea(width, d, a, b, shift & 3);
        self.put(dst, d);
    }

    fn add(&mut self, width: Width, d: Gpr, a: Gpr, b: Operand) {
        match b {
            Operand::Reg(b) if d != a && d != b => self.lea(width, d, a, b, 0),
            Operand::Reg(b) => self.commutative(Alu::Add, width, d, a, b),
            Operand::Imm(imm) => self.add_imm(width, d, a, imm),
        }
    }

    /// `d = a + imm`.
    #[inline(always)]
    pub(crate) fn add_imm(&mut self, width: Width, d: Gpr, a: Gpr, imm: i64) {
        match (imm, i32::try_from(imm)) {
            (0, _) => self.narrow(width, d, a),
            (_, Ok(disp)) if d != a => self.lea_disp(width, d, a, disp),
            (1, _) => {
                sized!(self.s.buf, width; inc Rq(d));
                self.note_flags(width, d);
            }
            (-1, _) => {
                sized!(self.s.buf, width; dec Rq(d));
                self.note_flags(width, d);
            }
            // Subtracting reaches one further: -128 fits a byte, and -2^31 four.
            (128 | 0x8000_0000, _) => {
                self.copy(width, d, a);
                self.alu_imm(Alu::Sub, width, d, -imm);
            }
            _ => {
                self.copy(width, d, a);
                self.alu_imm(Alu::Add, width, d, imm);
            }
        }
    }

    fn sub(&mut self, width: Width, d: Gpr, a: Gpr, b: Operand) {
        match b {
            Operand::Reg(b) if d == b && d != a => {
                self.neg_reg(width, d);
                self.alu(Alu::Add, width, d, a);
            }
            Operand::Reg(b) => {
                self.copy(width, d, a);
                self.alu(Alu::Sub, width, d, b);
            }
            Operand::Imm(imm) => self.add_imm(width, d, a, at_width(width, imm.wrapping_neg())),
        }
    }

    pub(crate) fn imul(&mut self, width: Width, d: Gpr, s: Gpr) {
        sized!(self.s.buf, width; imul Rq(d), Rq(s))
    }

    fn mul(&mut self, width: Width, d: Gpr, a: Gpr, b: Operand) {
        let imm = match b {
            Operand::Reg(b) => {
                let (first, second) = if d == b { (b, a) } else { (a, b) };
                self.copy(width, d, first);
                return self.imul(width, d, second);
            }
            Operand::Imm(imm) => imm,
        };
        match (imm, i32::try_from(imm)) {
            (0, _) => self.load_imm(d, 0),
            (1, _) => self.narrow(width, d, a),
            (-1, _) => {
                self.copy(width, d, a);
                self.neg_reg(width, d);
            }
            (3 | 5 | 9, _) if !matches!(a, Rbp | R13) => {
                self.lea(width, d, a, a, few((imm - 1).trailing_zeros() as usize))
            }
            _ if (imm as u64).is_power_of_two() => self.shift_imm(Shift::Shl, width, d, a, imm.trailing_zeros()),
            // A cycle less than a product takes.
            _ if beside_power(imm).is_some() => self.mul_beside_power(width, d, a, imm),
            (_, Ok(imm)) => asm!(self.s.buf, [shorten_imm, at_width(width)]; imul Rq(d), Rq(a), DWORD imm),
            (_, Err(_)) => {
                self.load_imm(SCRATCH2, imm as u64);
                self.copy(width, d, a);
                self.imul(width, d, SCRATCH2);
            }
        }
    }

    /// `d = a * imm`, a power of two and one more or less: shifted, and added or subtracted once.
    fn mul_beside_power(&mut self, width: Width, d: Gpr, a: Gpr, imm: i64) {
        let Some((op, count)) = beside_power(imm) else { return debug_assert!(false, "{imm} has no such power") };
        let once = if d == a { SCRATCH2 } else { a };
        self.copy(width, if d == a { SCRATCH2 } else { d }, a);
        self.shift_imm(Shift::Shl, width, d, d, count);
        self.alu(op, width, d, once);
    }

    #[inline(always)]
    fn logic(&mut self, op: Alu, width: Width, d: Gpr, a: Gpr, b: Operand) {
        match b {
            Operand::Reg(b) => self.commutative(op, width, d, a, b),
            Operand::Imm(imm) => {
                self.copy(width, d, a);
                self.alu_imm(op, width, d, imm);
            }
        }
    }

    fn xor(&mut self, width: Width, d: Gpr, a: Gpr, b: Operand) {
        if b == Operand::Imm(-1) {
            self.copy(width, d, a);
            sized!(self.s.buf, width; not Rq(d))
        } else {
            self.logic(Alu::Xor, width, d, a, b);
        }
    }

    fn and(&mut self, width: Width, d: Gpr, a: Gpr, b: Operand) {
        match b {
            Operand::Imm(0) => self.load_imm(d, 0),
            Operand::Imm(0xff) => byte!(self.s.buf, a; movzx Rd(d), Rb(a)),
            Operand::Imm(0xffff) => reg!(self.s.buf; movzx Rd(d), Rw(a)),
            Operand::Imm(-1) => self.narrow(width, d, a),
            Operand::Imm(0xffff_ffff) => self.mov_reg(Width::W32, d, a),
            // The upper half comes out zero: a 32-bit operation does that for less.
            Operand::Imm(imm @ 1..=0xffff_ffff) => {
                self.logic(Alu::And, Width::W32, d, a, Operand::Imm(i64::from(low_word(imm))))
            }
            Operand::Imm(_) | Operand::Reg(_) => self.logic(Alu::And, width, d, a, b),
        }
    }

    /// `d = a & imm`.
    pub(super) fn and_imm(&mut self, width: Width, d: Gpr, a: Gpr, imm: i64) {
        self.and(width, d, a, Operand::Imm(imm));
    }

    /// `d = a op imm` for a count below the width.
    pub(super) fn shift_imm(&mut self, op: Shift, width: Width, d: Gpr, a: Gpr, count: u32) {
        if count == 0 {
            return self.narrow(width, d, a);
        }
        if op == Shift::Shl && count == 1 {
            return if d == a { self.alu(Alu::Add, width, d, d) } else { self.lea(width, d, a, a, 0) };
        }
        if op == Shift::Rol && d != a && self.options.features.bmi2 {
            let right = (match width {
                Width::W32 => 32,
                Width::W64 => 64,
            }) - count;
            // A VEX prefix, not a REX.
            return match width {
                Width::W32 => reg!(self.s.buf; rorx Rd(d), Rd(a), low_byte(right.into())),
                Width::W64 => reg!(self.s.buf; rorx Rq(d), Rq(a), low_byte(right.into())),
            };
        }
        self.copy(width, d, a);
        asm!(self.s.buf, [modrm_number(op as u8), shift_count(count), at_width(width)]; rol Rq(d), low_byte(count.into()));
        if op != Shift::Rol {
            self.note_flags(width, d);
        }
    }

    /// `op d, cl`.
    fn shift_cl(&mut self, op: Shift, width: Width, d: Gpr) {
        asm!(self.s.buf, [modrm_number(op as u8), at_width(width)]; rol Rq(d), cl);
    }

    fn shift(&mut self, op: Shift, width: Width, d: Gpr, a: Gpr, b: Operand) {
        let count = match b {
            Operand::Reg(count) => count,
            Operand::Imm(imm) => {
                let mask = match width {
                    Width::W32 => 31,
                    Width::W64 => 63,
                };
                return self.shift_imm(op, width, d, a, low_word(imm) as u32 & mask);
            }
        };
        let bmi2 = self.options.features.bmi2;
        if count == Rcx && d != Rcx && (d == a || !bmi2 || op == Shift::Rol) {
            self.copy(width, d, a);
            return self.shift_cl(op, width, d);
        }
        match (op, width) {
            (Shift::Shl, Width::W32) if bmi2 => reg!(self.s.buf; shlx Rd(d), Rd(a), Rd(count)),
            (Shift::Shl, Width::W64) if bmi2 => reg!(self.s.buf; shlx Rq(d), Rq(a), Rq(count)),
            (Shift::Shr, Width::W32) if bmi2 => reg!(self.s.buf; shrx Rd(d), Rd(a), Rd(count)),
            (Shift::Shr, Width::W64) if bmi2 => reg!(self.s.buf; shrx Rq(d), Rq(a), Rq(count)),
            (Shift::Sar, Width::W32) if bmi2 => reg!(self.s.buf; sarx Rd(d), Rd(a), Rd(count)),
            (Shift::Sar, Width::W64) if bmi2 => reg!(self.s.buf; sarx Rq(d), Rq(a), Rq(count)),
            (Shift::Shl | Shift::Shr | Shift::Sar | Shift::Rol, _) => self.shift_through_cl(op, width, d, a, count),
        }
    }

    /// The general case: the count has to go to cl, and whatever was there may be an operand or, with BMI2 (where the
    /// allocator was promised that shifts clobber nothing), some other value.
    fn shift_through_cl(&mut self, op: Shift, width: Width, d: Gpr, a: Gpr, count: Gpr) {
        self.copy(width, SCRATCH, a);
        let keep = self.options.features.bmi2 && count != Rcx && d != Rcx;
        if count == SCRATCH2 {
            // Exchanging keeps rcx without a third scratch register.
            reg!(self.s.buf; xchg Rq(SCRATCH2), rcx);
        } else if count != Rcx {
            if keep {
                self.copy(Width::W64, SCRATCH2, Rcx);
            }
            self.copy(Width::W32, Rcx, count);
        }
        self.shift_cl(op, width, SCRATCH);
        if keep {
            self.copy(Width::W64, Rcx, SCRATCH2);
        }
        self.copy(width, d, SCRATCH);
    }

    pub(crate) fn frame_addr(&mut self, dst: VReg, off: i32) {
        let d = self.target(dst);
        let base = self.frame.base;
        self.add_imm(Width::W64, d, base, i64::from(off));
        self.put(dst, d);
    }

    pub(crate) fn sym_addr(&mut self, dst: VReg, symbol: Symbol) {
        let d = self.target(dst);
        reg!(self.s.buf; mov Rq(d), QWORD 0);
        self.reloc(8, RelocKind::X64Abs64, symbol);
        self.put(dst, d);
    }

    /// Notes that the last `len` bytes of code depend on the address of `symbol`.
    pub(crate) fn reloc(&mut self, len: u32, kind: RelocKind, symbol: Symbol) {
        let at = small(self.s.buf.len()) - len;
        self.code.relocs.push(Reloc { at, kind, symbol });
    }

    pub(crate) fn subprog_addr(&mut self, dst: VReg, subprog: SubprogId) {
        let d = self.target(dst);
        let entry = self.s.entry(subprog);
        self.s.layout.branch(&mut self.s.buf, Jump::Address(d), entry);
        self.put(dst, d);
    }
}
