//! One instruction at a time: dynasm encodes it, this file makes it as short as it can be.
//!
//! Problem: with registers known only at run time, dynasm must leave room for everything: an instruction always has a
//! REX prefix, a memory operand always a SIB byte, and a displacement whose size was chosen when *we* were compiled.
//! Static forms would be short, but there are 16 x 16 x 3 of each instruction. The width, the operation of a family and
//! the form of an operand vary unpredictably from op to op, so a mispredicted branch on one of them would cost more
//! than the rest of the emission. Approach: dynasm writes one instruction into an [`Insn`], a number, in that one
//! general shape and with `[rax]` for a memory operand; then, all by arithmetic, the operand's own bytes ([`Memory`])
//! and the bits that say width and operation go in, what the instruction can do without is cut out, and the rest is
//! appended to the code. Where prefixes and opcode lie is known when we are compiled, so little of this is left to do.
//!
//! Invariant: an instruction means the same before and after cutting. Bytes that may be cut: a REX of 0x40, unless it
//! selects one of spl, bpl, sil, dil; immediate bytes that sign-extension brings back. tests/backend/encoding.rs
//! compares every instruction emitted with all encodings that iced-x86 knows of it.

/// Assembles one instruction into `$buf`, applying the named cuts.
macro_rules! asm {
    ($buf:expr, [$($cut:ident $(($($arg:expr),*))?),*]; $($insn:tt)*) => {{
        let mut insn = $crate::asm::Insn::default();
        dynasmrt::dynasm!(insn ; .arch x64 ; $($insn)*);
        $(insn.$cut($($($arg),*)?);)*
        insn.append_to(&mut $buf);
    }};
}

/// An instruction on registers.
macro_rules! reg {
    ($buf:expr; $($insn:tt)*) => { $crate::asm::asm!($buf, [drop_rex]; $($insn)*) };
}

/// An instruction on registers that exists at both widths, written in its 64-bit form.
macro_rules! sized {
    ($buf:expr, $width:expr; $($insn:tt)*) => { $crate::asm::asm!($buf, [at_width($width)]; $($insn)*) };
}

/// An instruction with the memory operand `$operand`, written as `[rax]`, and behind that an immediate of so many
/// bytes.
macro_rules! mem {
    ($buf:expr, $operand:expr; $($insn:tt)*) => { $crate::asm::mem!($buf, $operand, 0; $($insn)*) };
    ($buf:expr, $operand:expr, $immediate:literal; $($insn:tt)*) => {
        $crate::asm::asm!($buf, [memory($operand.into(), $immediate), drop_rex]; $($insn)*)
    };
}

/// An instruction that names the low byte of the register `$byte`.
macro_rules! byte {
    ($buf:expr, $byte:expr; $($insn:tt)*) => { $crate::asm::asm!($buf, [drop_rex_unless($byte)]; $($insn)*) };
}

pub(crate) use {asm, byte, mem, reg, sized};

use crate::jump::Cc;
use crate::regs::Gpr;
use bpf_isa::Width;
use bpf_jit::num::{low_byte, low_word};

/// An instruction: at most 15 bytes, 16 in dynasm's general shape; the first is the lowest.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Insn {
    bytes: u128,
    len: u32,
}

/// The writing methods of `DynasmApi`, which `dynasm!` calls.
impl Insn {
    #[inline(always)]
    pub(crate) fn push(&mut self, byte: u8) {
        self.bytes |= u128::from(byte) << (8 * self.len);
        self.len += 1;
    }
    #[inline(always)]
    pub(crate) fn extend<const N: usize>(&mut self, bytes: &[u8; N]) {
        for byte in bytes {
            self.push(*byte);
        }
    }
    #[inline(always)]
    pub(crate) fn push_i8(&mut self, value: i8) {
        self.push(value as u8);
    }
    #[inline(always)]
    pub(crate) fn push_i16(&mut self, value: i16) {
        self.extend(&value.to_le_bytes());
    }
    #[inline(always)]
    pub(crate) fn push_i32(&mut self, value: i32) {
        self.extend(&value.to_le_bytes());
    }
    #[inline(always)]
    pub(crate) fn push_i64(&mut self, value: i64) {
        self.extend(&value.to_le_bytes());
    }
}

/// A memory operand.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Addr {
    pub(crate) base: Gpr,
    pub(crate) disp: i32,
}

/// A memory operand in its shortest form, as the bytes that it adds to an instruction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Memory {
    /// Bits of the REX prefix and of the ModRM byte.
    rex: u8,
    modrm: u8,
    /// Bytes after the ModRM byte: SIB and displacement.
    tail: u64,
    len: u32,
}

const SIB_FOLLOWS: u8 = 0b100;
const NO_INDEX: u8 = 0b100;
/// As a base without displacement, rbp and r13 mean something else.
const NEEDS_DISP: u8 = 0b101;

impl From<Addr> for Memory {
    /// `[base + disp]`.
    #[inline(always)]
    fn from(Addr { base, disp }: Addr) -> Memory {
        let needs_sib = u8::from(base) & 7 == SIB_FOLLOWS;
        Memory::new(base, needs_sib, NO_INDEX << 3, 0, disp)
    }
}

impl Memory {
    /// `[base + (index << shift) + disp]`; rsp is no index.
    #[inline(always)]
    pub(crate) fn at_index(base: Gpr, index: Gpr, shift: u8, disp: i32) -> Memory {
        let number = u8::from(index);
        Memory::new(base, true, shift << 6 | (number & 7) << 3, number >> 3 << 1, disp)
    }

    /// `sib` and `rex` without the base.
    #[inline(always)]
    fn new(base: Gpr, has_sib: bool, sib: u8, rex: u8, disp: i32) -> Memory {
        let base = u8::from(base);
        let low = base & 7;
        // No branches: they would be mispredicted, since the form of an operand is unpredictable.
        let (mode, bytes) = match (disp == 0 && low != NEEDS_DISP, disp == i32::from(low_byte(disp.into()))) {
            (true, _) => (0b00, 0),
            (false, true) => (0b01, 1),
            (false, false) => (0b10, 4),
        };
        let disp = u64::from(disp as u32) & ((1 << (8 * bytes)) - 1);
        Memory {
            rex: rex | base >> 3,
            modrm: mode << 6 | if has_sib { SIB_FOLLOWS } else { low },
            tail: if has_sib { disp << 8 | u64::from(sib | low) } else { disp },
            len: bytes + u32::from(has_sib),
        }
    }
}

/// The first eight bytes.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "what is meant")]
fn low_eight(bytes: u128) -> u64 {
    bytes as u64
}

impl Insn {
    /// One of the first eight bytes, among which prefixes, opcode, ModRM and SIB are.
    #[inline(always)]
    fn byte(&self, at: u32) -> u8 {
        low_byte((low_eight(self.bytes) >> (8 * at)) as i64) as u8
    }

    /// Cuts `n` bytes out.
    #[inline(always)]
    fn cut(&mut self, at: u32, n: u32) {
        let below = (1u128 << (8 * at)) - 1;
        self.bytes = self.bytes & below | (self.bytes >> (8 * n)) & !below;
        self.len -= n;
    }

    /// Index of the first byte that is no legacy prefix.
    #[inline(always)]
    fn after_prefixes(&self) -> u32 {
        let prefix = |at| matches!(self.byte(at), 0x66 | 0xf0 | 0xf2 | 0xf3);
        // No loop: an optimiser folds these constants, but does not look into loops.
        match (prefix(0), prefix(1)) {
            (true, true) => 2,
            (true, false) => 1,
            (false, _) => 0,
        }
    }

    /// Cuts a REX prefix that says nothing.
    #[inline(always)]
    pub(crate) fn drop_rex(&mut self) {
        let at = self.after_prefixes();
        self.cut(at, u32::from(self.byte(at) == 0x40));
    }

    /// Makes of a 64-bit instruction, which begins with a REX prefix, the one of this width.
    #[inline(always)]
    pub(crate) fn at_width(&mut self, width: Width) {
        self.bytes ^= u128::from(width == Width::W32) << 3;
        let useless = u32::from(self.byte(0) == 0x40);
        self.bytes >>= 8 * useless;
        self.len -= useless;
    }

    /// Gives an instruction of a family that shares an opcode its number: in the opcode, which follows the REX prefix
    /// ...
    #[inline(always)]
    pub(crate) fn opcode_number(&mut self, number: u8) {
        self.bytes |= u128::from(number << 3) << 8;
    }

    /// ... or in the ModRM byte, which follows the opcode. It was written as number 0.
    #[inline(always)]
    pub(crate) fn modrm_number(&mut self, number: u8) {
        self.bytes |= u128::from(number << 3) << 16;
    }

    /// Makes of an instruction with the condition `o` the one with this, which byte `at` says.
    #[inline(always)]
    pub(crate) fn condition(&mut self, at: u32, cc: Cc) {
        self.bytes |= (cc as u128) << (8 * at);
    }

    /// Cuts a REX prefix that says nothing, unless without it `byte` would be one of ah, bh, ch, dh.
    #[inline(always)]
    pub(crate) fn drop_rex_unless(&mut self, byte: Gpr) {
        if !byte.byte_needs_rex() {
            self.drop_rex();
        }
    }

    /// Index of the opcode, and the REX prefix (0 if there is none).
    #[inline(always)]
    fn opcode(&self) -> (u32, u8) {
        let at = self.after_prefixes();
        match self.byte(at) {
            rex @ 0x40..0x50 => (at + 1, rex),
            _ => (at, 0),
        }
    }

    /// Gives a 32-bit immediate (`81`, `69`) its sign-extended 8-bit form (`83`, `6B`) if it fits.
    #[inline(always)]
    pub(crate) fn shorten_imm(&mut self) {
        let imm = low_word(low_eight(self.bytes >> (8 * (self.len - 4))) as i64);
        let fits = u32::from(i8::try_from(imm).is_ok());
        let (at, _) = self.opcode();
        self.bytes |= u128::from(fits << 1) << (8 * at);
        self.len -= 3 * fits;
    }

    /// Puts a memory operand in the place of `[rax]`, behind which are `immediate` bytes.
    #[inline(always)]
    pub(crate) fn memory(&mut self, operand: Memory, immediate: u32) {
        let (opcode, rex) = self.opcode();
        if rex == 0 {
            let at = 8 * opcode;
            let below = (1 << at) - 1;
            self.bytes = self.bytes & below | 0x40 << at | (self.bytes & !below) << 8;
            self.len += 1;
        }
        let (rex, end) = (opcode - u32::from(rex != 0), 8 * (self.len - immediate));
        let below = (1 << end) - 1;
        let rest = u128::from(operand.tail) | self.bytes >> end << (8 * operand.len);
        self.bytes = self.bytes & below
            | u128::from(operand.rex) << (8 * rex)
            | u128::from(operand.modrm) << (end - 8)
            | rest << end;
        self.len += operand.len;
    }

    /// Turns a shift or rotation by the constant 1 from `C1 /n 01` into `D1 /n`.
    #[inline(always)]
    pub(crate) fn shift_count(&mut self, count: u32) {
        let one = u32::from(count == 1);
        self.bytes |= u128::from(one << 4) << (8 * (self.len - 3));
        self.len -= one;
    }

    /// Appends the instruction to the code.
    #[inline(always)]
    pub(crate) fn append_to(self, out: &mut Vec<u8>) {
        // A copy of fixed size costs two instructions, one of variable size a call.
        let end = out.len() + self.len as usize;
        out.extend_from_slice(&self.bytes.to_le_bytes());
        out.truncate(end);
    }
}
