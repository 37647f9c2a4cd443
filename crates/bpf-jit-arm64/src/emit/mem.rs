//! Loads and stores, of programs and of slots.
//!
//! An offset is encoded where it fits: scaled by the access size and unsigned (twelve bits), or in bytes and signed
//! (nine bits). An offset that fits neither form goes through `AUX` as an index register. An index of the program's own
//! is used unscaled or scaled by the access size; with any other scale it is added to the base first.

use crate::Emitter;
use crate::asm::asm;
use crate::emit::alu::{add_imm, low_bits, mov_imm};
use crate::regs::{AUX, Gpr, TMP0, TMP1};
use bpf_isa::{Size, Width};
use bpf_jit::{Mem, Op, VReg, Val, extended_index};

/// An address; register 31 is the stack pointer.
#[derive(Clone, Copy)]
pub(crate) struct Address {
    pub(crate) base: Gpr,
    pub(crate) off: i64,
}

/// How an offset is encoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Offset {
    Scaled(u32),
    Unscaled(i32),
    Index,
}

impl Offset {
    fn of(size: Size, off: i64) -> Offset {
        let bytes = size.bytes() as i32;
        match i32::try_from(off) {
            Ok(off @ 0..) if off % bytes == 0 && off / bytes < 0x1000 => Offset::Scaled(off as u32),
            Ok(off @ -256..256) => Offset::Unscaled(off),
            Ok(_) | Err(_) => Offset::Index,
        }
    }
}

/// One access in the three ways of giving an offset.
macro_rules! access {
    ($code:expr, $scaled:ident / $unscaled:ident $family:ident($reg:expr), $base:expr, $off:expr) => {
        match $off {
            Offset::Scaled(off) => asm!($code; $scaled $family($reg), [XSP($base), off]),
            Offset::Unscaled(off) => asm!($code; $unscaled $family($reg), [XSP($base), off]),
            Offset::Index => asm!($code; $scaled $family($reg), [XSP($base), X(AUX)]),
        }
    };
}

/// An index as an address takes it.
#[derive(Clone, Copy)]
pub(crate) struct Index {
    pub(crate) reg: Gpr,
    pub(crate) extend: Extend,
    /// Whether it counts elements, not bytes.
    pub(crate) scaled: bool,
}

/// How much of an index register counts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extend {
    Whole,
    /// The lower half, above which is zero.
    Zero,
    /// The lower half, with its sign.
    Sign,
}

/// One access with an index register.
macro_rules! indexed {
    ($code:expr, $name:ident $family:ident($reg:expr), $shift:literal, $base:expr, $index:expr) => {{
        let Index { reg, extend, scaled } = $index;
        match (extend, scaled) {
            (Extend::Whole, false) => asm!($code; $name $family($reg), [XSP($base), X(reg)]),
            (Extend::Whole, true) => asm!($code; $name $family($reg), [XSP($base), X(reg), lsl $shift]),
            (Extend::Zero, false) => asm!($code; $name $family($reg), [XSP($base), W(reg), uxtw]),
            (Extend::Zero, true) => asm!($code; $name $family($reg), [XSP($base), W(reg), uxtw $shift]),
            (Extend::Sign, false) => asm!($code; $name $family($reg), [XSP($base), W(reg), sxtw]),
            (Extend::Sign, true) => asm!($code; $name $family($reg), [XSP($base), W(reg), sxtw $shift]),
        }
    }};
}

/// The encodable form of `off`; an index is put into `AUX`.
fn offset(code: &mut Vec<u8>, size: Size, off: i64) -> Offset {
    let form = Offset::of(size, off);
    if form == Offset::Index {
        mov_imm(code, AUX, off as u64);
    }
    form
}

/// Appends `d = *at`, extended to 64 bits.
pub(crate) fn load(code: &mut Vec<u8>, size: Size, signed: bool, d: Gpr, at: Address) {
    let off = offset(code, size, at.off);
    match (size, signed) {
        (Size::B, false) => access!(code, ldrb/ldurb W(d), at.base, off),
        (Size::H, false) => access!(code, ldrh/ldurh W(d), at.base, off),
        (Size::W, false) => access!(code, ldr/ldur W(d), at.base, off),
        (Size::DW, _) => access!(code, ldr/ldur X(d), at.base, off),
        (Size::B, true) => access!(code, ldrsb/ldursb X(d), at.base, off),
        (Size::H, true) => access!(code, ldrsh/ldursh X(d), at.base, off),
        (Size::W, true) => access!(code, ldrsw/ldursw X(d), at.base, off),
    }
}

/// Appends `d = base[index]`, extended to 64 bits; elements are bytes, or scaled by the size.
fn load_indexed(code: &mut Vec<u8>, size: Size, signed: bool, d: Gpr, (base, index): (Gpr, Index)) {
    match (size, signed) {
        (Size::B, false) => indexed!(code, ldrb W(d), 0, base, index),
        (Size::H, false) => indexed!(code, ldrh W(d), 1, base, index),
        (Size::W, false) => indexed!(code, ldr W(d), 2, base, index),
        (Size::DW, _) => indexed!(code, ldr X(d), 3, base, index),
        (Size::B, true) => indexed!(code, ldrsb X(d), 0, base, index),
        (Size::H, true) => indexed!(code, ldrsh X(d), 1, base, index),
        (Size::W, true) => indexed!(code, ldrsw X(d), 2, base, index),
    }
}

/// Appends `base[index] = s`; elements are bytes, or scaled by the size.
fn store_indexed(code: &mut Vec<u8>, size: Size, s: Gpr, (base, index): (Gpr, Index)) {
    match size {
        Size::B => indexed!(code, strb W(s), 0, base, index),
        Size::H => indexed!(code, strh W(s), 1, base, index),
        Size::W => indexed!(code, str W(s), 2, base, index),
        Size::DW => indexed!(code, str X(s), 3, base, index),
    }
}

/// Appends `*at = s`.
pub(crate) fn store(code: &mut Vec<u8>, size: Size, s: Gpr, at: Address) {
    let off = offset(code, size, at.off);
    match size {
        Size::B => access!(code, strb/sturb W(s), at.base, off),
        Size::H => access!(code, strh/sturh W(s), at.base, off),
        Size::W => access!(code, str/stur W(s), at.base, off),
        Size::DW => access!(code, str/stur X(s), at.base, off),
    }
}

impl Emitter<'_> {
    /// The register that holds a value: zero is the zero register, other constants go to `tmp`.
    pub(crate) fn val(&mut self, width: Width, v: Val, tmp: Gpr) -> Gpr {
        match v {
            Val::Reg(v) => self.get(v, tmp),
            Val::Imm(imm) => match low_bits(width, imm) {
                0 => Gpr::ZR,
                value => {
                    mov_imm(&mut self.s.buf, tmp, value);
                    tmp
                }
            },
        }
    }

    /// A register that holds the address itself, or the stack pointer: for instructions without an offset.
    pub(crate) fn exact_address(&mut self, mem: Mem) -> Gpr {
        let Address { base, off } = self.address(mem, None);
        if off == 0 {
            return base;
        }
        add_imm(&mut self.s.buf, Width::W64, TMP1, base, off);
        TMP1
    }

    /// The register that the op before would have extended for `op`'s index.
    #[inline(always)]
    fn take_index<const FUSES: bool>(&mut self, op: &Op) -> Option<(VReg, bool)> {
        if !FUSES {
            return None;
        }
        let found = extended_index(self.held.as_ref()?, op)?;
        self.held = None;
        Some(found)
    }

    pub(crate) fn load<const FUSES: bool>(
        &mut self,
        op: &Op,
        size: Size,
        signed: bool,
        swap: bool,
        dst: VReg,
        mem: Mem,
    ) {
        let d = self.target(dst);
        let extended = self.take_index::<FUSES>(op);
        if let Some(at) = self.indexed(size, mem, extended) {
            load_indexed(&mut self.s.buf, size, signed, d, at);
        } else {
            let at = self.address(mem, extended);
            load(&mut self.s.buf, size, signed, d, at);
        }
        if swap && size != Size::B {
            self.swap_bytes(size, d, d);
        }
        self.put(dst, d);
    }

    pub(crate) fn store<const FUSES: bool>(&mut self, op: &Op, size: Size, mem: Mem, src: Val) {
        let extended = self.take_index::<FUSES>(op);
        // Only the bits that are stored need be materialised.
        let src = match (src, size) {
            (Val::Imm(imm), Size::B) => Val::Imm(imm & 0xff),
            (Val::Imm(imm), Size::H) => Val::Imm(imm & 0xffff),
            (Val::Imm(imm), Size::W) => Val::Imm(imm & 0xffff_ffff),
            (Val::Imm(_), Size::DW) | (Val::Reg(_), _) => src,
        };
        if let Some(at) = self.indexed(size, mem, extended) {
            let s = self.val(Width::W64, src, TMP0);
            store_indexed(&mut self.s.buf, size, s, at);
        } else {
            let (at, s) = (self.address(mem, extended), self.val(Width::W64, src, TMP0));
            store(&mut self.s.buf, size, s, at);
        }
    }
}
