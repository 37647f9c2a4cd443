//! Branches of x86-64 for [`Layout`](bpf_jit_code::layout::Layout): conditions, and the instructions that name a place
//! in the code.

use crate::asm::{asm, reg};
use crate::regs::Gpr;
use bpf_isa::Cond;
use bpf_jit::num::{low_byte, low_word};
use bpf_jit_code::Arch;
use bpf_jit_code::layout::Branch;

/// A condition, as flags, by its number in encodings (Intel SDM vol. 2, B.1.4.7).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Cc {
    B = 2,
    Ae = 3,
    E = 4,
    Ne = 5,
    Be = 6,
    A = 7,
    S = 8,
    Ns = 9,
    L = 12,
    Ge = 13,
    Le = 14,
    G = 15,
}

impl Cc {
    /// The opposite.
    pub(crate) fn not(self) -> Cc {
        match self {
            Cc::E => Cc::Ne,
            Cc::Ne => Cc::E,
            Cc::A => Cc::Be,
            Cc::Ae => Cc::B,
            Cc::B => Cc::Ae,
            Cc::Be => Cc::A,
            Cc::G => Cc::Le,
            Cc::Ge => Cc::L,
            Cc::L => Cc::Ge,
            Cc::Le => Cc::G,
            Cc::S => Cc::Ns,
            Cc::Ns => Cc::S,
        }
    }
}

impl From<Cond> for Cc {
    /// After `cmp a, b`; for [`Cond::Set`] after `test a, b`.
    fn from(cond: Cond) -> Cc {
        match cond {
            Cond::Eq => Cc::E,
            Cond::Ne | Cond::Set => Cc::Ne,
            Cond::Gt => Cc::A,
            Cond::Ge => Cc::Ae,
            Cond::Lt => Cc::B,
            Cond::Le => Cc::Be,
            Cond::SGt => Cc::G,
            Cond::SGe => Cc::Ge,
            Cond::SLt => Cc::L,
            Cond::SLe => Cc::Le,
        }
    }
}

/// `jcc rel8` with the displacement counted from the end of the instruction.
pub(crate) fn jcc_short(buf: &mut Vec<u8>, cc: Cc, rel: i8) {
    asm!(*buf, [condition(0, cc)]; jo BYTE rel)
}

fn jcc_long(buf: &mut Vec<u8>, cc: Cc, rel: i32) {
    asm!(*buf, [condition(1, cc)]; jo DWORD rel)
}

/// `cmovcc dst, src`, 64 bits.
pub(crate) fn cmov(buf: &mut Vec<u8>, cc: Cc, dst: Gpr, src: Gpr) {
    asm!(*buf, [condition(2, cc)]; cmovo Rq(dst), Rq(src))
}

/// An instruction with a label.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Jump {
    /// `jmp`.
    Always,
    /// `jcc`.
    If(Cc),
    /// `call`.
    Call,
    /// `jmp`, always five bytes: a patch slot.
    Patchable,
    /// `lea reg, [rip + label]`.
    Address(Gpr),
    /// The entry of a jump table: four bytes, the label's distance from their first.
    Entry,
}

impl Branch for Jump {
    const ARCH: Arch = Arch::X64;

    fn lengths(self) -> (u8, u8) {
        match self {
            Jump::Always => (2, 5),
            Jump::If(_) => (2, 6),
            Jump::Call | Jump::Patchable => (5, 5),
            Jump::Address(_) => (7, 7),
            Jump::Entry => (4, 4),
        }
    }

    fn short_reaches(self, distance: i64) -> bool {
        i8::try_from(distance - i64::from(self.lengths().0)).is_ok()
    }

    fn long_reaches(self, distance: i64) -> bool {
        i32::try_from(distance - i64::from(self.lengths().1)).is_ok()
    }

    fn write(self, long: bool, distance: i64, out: &mut Vec<u8>) {
        let (short_len, long_len) = self.lengths();
        // Layout has checked that the form it chose reaches: only that one's distance is used.
        let rel8 = low_byte(distance - i64::from(short_len));
        let rel32 = low_word(distance - i64::from(long_len));
        match (self, long) {
            (Jump::Always, false) => reg!(*out; jmp BYTE rel8),
            (Jump::Always, true) | (Jump::Patchable, _) => reg!(*out; jmp DWORD rel32),
            (Jump::If(cc), false) => jcc_short(out, cc, rel8),
            (Jump::If(cc), true) => jcc_long(out, cc, rel32),
            (Jump::Call, _) => reg!(*out; call DWORD rel32),
            (Jump::Address(dst), _) => reg!(*out; lea Rq(dst), [rip + rel32]),
            (Jump::Entry, _) => out.extend_from_slice(&low_word(distance).to_le_bytes()),
        }
    }

    /// The recommended long nops (AMD APM vol. 3, `nop`).
    fn pad(len: usize, out: &mut Vec<u8>) {
        let mut left = len;
        while left > 0 {
            let n = left.min(9);
            match n {
                1 => reg!(*out; nop),
                2 => reg!(*out; xchg ax, ax),
                3 => reg!(*out; nop DWORD [rax]),
                4 => reg!(*out; nop DWORD [BYTE rax + 0]),
                5 => nop5(out),
                6 => {
                    out.push(OPERAND_SIZE);
                    nop5(out);
                }
                7 => reg!(*out; nop DWORD [DWORD rax + 0]),
                8 => nop8(out),
                _ => {
                    out.push(OPERAND_SIZE);
                    nop8(out);
                }
            }
            left -= n;
        }
    }
}

/// A prefix that makes a nop a byte longer.
const OPERAND_SIZE: u8 = 0x66;

fn nop8(out: &mut Vec<u8>) {
    reg!(*out; nop DWORD [DWORD rax + rax * 1 + 0]);
}

/// The five-byte nop of a patch slot.
pub(crate) fn nop5(out: &mut Vec<u8>) {
    reg!(*out; nop DWORD [BYTE rax + rax * 1 + 0]);
}
