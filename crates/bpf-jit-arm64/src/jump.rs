//! Branches of arm64 for [`Layout`](bpf_jit_code::layout::Layout): the instructions that name a place in the code.
//!
//! `b` and `bl` reach 128 MiB, `b.cc` and `cbz` 1 MiB, `tbz` 32 KiB. The long form of a conditional branch is its
//! inverse over a `b`; that of `adr` adds a 32-bit distance.

use crate::asm::{asm, asm_w};
use crate::regs::{AUX, Gpr};
use bpf_isa::Width;
use bpf_jit_code::Arch;
use bpf_jit_code::layout::Branch;

/// A condition on the flags.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Cc {
    Eq,
    Ne,
    Hs,
    Lo,
    Hi,
    Ls,
    Ge,
    Lt,
    Gt,
    Le,
    Mi,
    Pl,
}

impl Cc {
    pub(crate) const fn inverted(self) -> Cc {
        match self {
            Cc::Eq => Cc::Ne,
            Cc::Ne => Cc::Eq,
            Cc::Hs => Cc::Lo,
            Cc::Lo => Cc::Hs,
            Cc::Hi => Cc::Ls,
            Cc::Ls => Cc::Hi,
            Cc::Ge => Cc::Lt,
            Cc::Lt => Cc::Ge,
            Cc::Gt => Cc::Le,
            Cc::Le => Cc::Gt,
            Cc::Mi => Cc::Pl,
            Cc::Pl => Cc::Mi,
        }
    }
}

/// An instruction that names a place in the code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Jump {
    /// `b`
    Always,
    /// `bl`
    Call,
    /// `b.cc`
    If(Cc),
    /// `cbz`, or `cbnz` where `nonzero`.
    Zero { nonzero: bool, width: Width, reg: Gpr },
    /// `tbz`, or `tbnz` where `set`.
    Bit { set: bool, bit: u8, reg: Gpr },
    /// `adr`
    Address { dst: Gpr },
    /// The entry of a jump table: four bytes, the label's distance from their first.
    Entry,
}

/// Whether an instruction with a signed field of `bits` bits, scaled by `1 << scale`, reaches `distance`.
const fn reaches(distance: i64, bits: u32, scale: u32) -> bool {
    let limit = 1 << (bits - 1 + scale);
    -limit <= distance && distance < limit && distance & ((1 << scale) - 1) == 0
}

impl Jump {
    /// The inverse of a conditional branch; any other branch as it is.
    fn inverted(self) -> Jump {
        match self {
            Jump::If(cc) => Jump::If(cc.inverted()),
            Jump::Zero { nonzero, width, reg } => Jump::Zero { nonzero: !nonzero, width, reg },
            Jump::Bit { set, bit, reg } => Jump::Bit { set: !set, bit, reg },
            Jump::Always | Jump::Call | Jump::Address { .. } | Jump::Entry => self,
        }
    }

    /// Appends the one-instruction form.
    fn write_short(self, distance: i32, out: &mut Vec<u8>) {
        match self {
            Jump::Always => asm!(out; b distance),
            Jump::Call => asm!(out; bl distance),
            Jump::If(cc) => match cc {
                Cc::Eq => asm!(out; b.eq distance),
                Cc::Ne => asm!(out; b.ne distance),
                Cc::Hs => asm!(out; b.hs distance),
                Cc::Lo => asm!(out; b.lo distance),
                Cc::Hi => asm!(out; b.hi distance),
                Cc::Ls => asm!(out; b.ls distance),
                Cc::Ge => asm!(out; b.ge distance),
                Cc::Lt => asm!(out; b.lt distance),
                Cc::Gt => asm!(out; b.gt distance),
                Cc::Le => asm!(out; b.le distance),
                Cc::Mi => asm!(out; b.mi distance),
                Cc::Pl => asm!(out; b.pl distance),
            },
            Jump::Zero { nonzero: false, width, reg } => asm_w!(out, width; cbz R(reg), distance),
            Jump::Zero { nonzero: true, width, reg } => asm_w!(out, width; cbnz R(reg), distance),
            Jump::Bit { set: false, bit, reg } => asm!(out; tbz X(reg), u32::from(bit), distance),
            Jump::Bit { set: true, bit, reg } => asm!(out; tbnz X(reg), u32::from(bit), distance),
            Jump::Address { dst } => asm!(out; adr X(dst), distance),
            Jump::Entry => out.extend_from_slice(&distance.to_le_bytes()),
        }
    }
}

impl Branch for Jump {
    const ARCH: Arch = Arch::Arm64;

    fn lengths(self) -> (u8, u8) {
        match self {
            Jump::Always | Jump::Call | Jump::Entry => (4, 4),
            Jump::If(_) | Jump::Zero { .. } | Jump::Bit { .. } => (4, 8),
            Jump::Address { .. } => (4, 16),
        }
    }

    fn short_reaches(self, distance: i64) -> bool {
        match self {
            Jump::Always | Jump::Call => reaches(distance, 26, 2),
            Jump::If(_) | Jump::Zero { .. } => reaches(distance, 19, 2),
            Jump::Bit { .. } => reaches(distance, 14, 2),
            Jump::Address { .. } => reaches(distance, 21, 0),
            Jump::Entry => i32::try_from(distance).is_ok(),
        }
    }

    fn long_reaches(self, distance: i64) -> bool {
        match self {
            Jump::Always | Jump::Call => reaches(distance, 26, 2),
            Jump::If(_) | Jump::Zero { .. } | Jump::Bit { .. } => reaches(distance - 4, 26, 2),
            Jump::Address { .. } | Jump::Entry => i32::try_from(distance).is_ok(),
        }
    }

    fn write(self, long: bool, distance: i64, out: &mut Vec<u8>) {
        #[expect(clippy::cast_possible_truncation, reason = "short_reaches or long_reaches held")]
        let distance = distance as i32;
        match self {
            Jump::If(_) | Jump::Zero { .. } | Jump::Bit { .. } if long => {
                self.inverted().write_short(8, out);
                Jump::Always.write_short(distance - 4, out);
            }
            Jump::Address { dst } if long => {
                // adrp would need to know the address of the code within its page.
                let low = distance as u32 & 0xffff;
                let high = distance as u32 >> 16;
                asm!(out; adr X(dst), 0; movz W(AUX), low; movk W(AUX), high, lsl 16; add XSP(dst), XSP(dst), W(AUX), sxtw);
            }
            Jump::Always
            | Jump::Call
            | Jump::If(_)
            | Jump::Zero { .. }
            | Jump::Bit { .. }
            | Jump::Address { .. }
            | Jump::Entry => self.write_short(distance, out),
        }
    }

    fn pad(len: usize, out: &mut Vec<u8>) {
        for _ in 0..len / 4 {
            asm!(out; nop);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The signed field of `bits` bits at `at`, in bytes of `scale`.
    fn field(word: u32, at: u32, bits: u32, scale: i64) -> i64 {
        i64::from((word << (32 - at - bits)) as i32 >> (32 - bits)) * scale
    }

    /// The distance that an encoded branch or `adr` holds.
    fn decoded(jump: Jump, word: u32) -> i64 {
        match jump {
            Jump::Always | Jump::Call => field(word, 0, 26, 4),
            Jump::If(_) | Jump::Zero { .. } => field(word, 5, 19, 4),
            Jump::Bit { .. } => field(word, 5, 14, 4),
            Jump::Address { .. } => field(word, 5, 19, 4) + i64::from(word >> 29 & 3),
            Jump::Entry => i64::from(word.cast_signed()),
        }
    }

    fn words(jump: Jump, long: bool, distance: i64) -> Vec<u32> {
        let mut out = Vec::new();
        jump.write(long, distance, &mut out);
        out.chunks(4).map(|w| u32::from_le_bytes(w.try_into().unwrap())).collect()
    }

    /// Regression (semantics.md 2.8): range checks off by one. Each form is used up to its last distance, and encodes
    /// it.
    #[test]
    fn reach_ends_where_the_field_ends() {
        let (width, reg) = (Width::W64, Gpr::X3);
        for (jump, limit) in [
            (Jump::Always, 128 << 20),
            (Jump::Call, 128 << 20),
            (Jump::If(Cc::Lo), 1 << 20),
            (Jump::Zero { nonzero: true, width, reg }, 1 << 20),
            (Jump::Bit { set: false, bit: 63, reg }, 32 << 10),
            (Jump::Address { dst: reg }, 1 << 20),
        ] {
            let (short, long) = jump.lengths();
            for distance in [-limit, -limit + 4, -4, 0, 4, limit - 4] {
                assert!(jump.short_reaches(distance), "{jump:?} {distance}");
                let [word] = words(jump, false, distance)[..] else { panic!("{jump:?} is short") };
                assert_eq!(decoded(jump, word), distance, "{jump:?}");
            }
            for distance in [-limit - 4, limit] {
                assert!(!jump.short_reaches(distance), "{jump:?} {distance}");
                assert_eq!(jump.long_reaches(distance), short != long, "{jump:?} {distance}");
            }
        }
    }

    #[test]
    fn a_long_address_is_a_sum() {
        let jump = Jump::Address { dst: Gpr::X3 };
        for distance in [i64::from(i32::MIN), -(1 << 20) - 4, 1 << 20, 0x1234_5678, i32::MAX.into()] {
            let [here, low, high, add] = words(jump, true, distance)[..] else { panic!("four words") };
            assert_eq!(decoded(jump, here), 0);
            // adr x3; movz w17, low; movk w17, high, lsl 16; add x3, x3, w17, sxtw
            let half = |word: u32| word >> 5 & 0xffff;
            assert_eq!([here & 31, low & !(0xffff << 5), high & !(0xffff << 5)], [3, 0x5280_0011, 0x72a0_0011]);
            assert_eq!(add, 0x8b31_c063);
            assert_eq!(i64::from((half(high) << 16 | half(low)) as i32), distance);
        }
        assert!(!jump.long_reaches(1 << 31));
    }

    #[test]
    fn long_forms_jump_over_a_branch() {
        let (width, reg) = (Width::W32, Gpr::X9);
        for jump in [Jump::If(Cc::Gt), Jump::Zero { nonzero: false, width, reg }, Jump::Bit { set: true, bit: 7, reg }]
        {
            for distance in [-(128 << 20) + 4, -(1 << 20) - 4, 1 << 20, (128 << 20)] {
                assert!(jump.long_reaches(distance), "{jump:?} {distance}");
                let [over, far] = words(jump, true, distance)[..] else { panic!("{jump:?} is two words") };
                assert_eq!(decoded(jump, over), 8);
                assert_eq!(vec![over], words(jump.inverted(), false, 8));
                assert_eq!(4 + decoded(Jump::Always, far), distance, "{jump:?}");
            }
            assert!(!jump.long_reaches((128 << 20) + 4) && !jump.long_reaches(-(128 << 20)), "{jump:?}");
        }
    }

    #[test]
    fn inversion_is_its_own_inverse() {
        let all = [Cc::Eq, Cc::Ne, Cc::Hs, Cc::Lo, Cc::Hi, Cc::Ls, Cc::Ge, Cc::Lt, Cc::Gt, Cc::Le, Cc::Mi, Cc::Pl];
        for cc in all {
            assert_ne!(cc.inverted(), cc);
            assert_eq!(cc.inverted().inverted(), cc);
        }
    }
}
