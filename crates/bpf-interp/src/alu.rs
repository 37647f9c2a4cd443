//! Arithmetic, with one pure function per kind of instruction. RFC 9669 section 4, and the semantics that it leaves
//! to prose.

#![expect(
    clippy::cast_possible_truncation,
    reason = "an operation on 32 bits, or fewer, is one on the low bits of its registers: the instruction set says so"
)]

use bpf_isa::{AluOp, ByteOrder, EndWidth, SxWidth, Width};

/// The low half of a register.
#[inline]
pub(crate) fn low(register: u64) -> u32 {
    register as u32
}

/// `a op b` at a width; a 32-bit result is zero-extended.
#[inline]
pub(crate) fn alu(width: Width, op: AluOp, a: u64, b: u64) -> u64 {
    match width {
        Width::W32 => alu32(op, a as u32, b as u32).into(),
        Width::W64 => alu64(op, a, b),
    }
}

#[inline]
fn alu64(op: AluOp, a: u64, b: u64) -> u64 {
    let (sa, sb) = (a as i64, b as i64);
    match op {
        AluOp::Add => a.wrapping_add(b),
        AluOp::Sub => a.wrapping_sub(b),
        AluOp::Mul => a.wrapping_mul(b),
        AluOp::Div => a.checked_div(b).unwrap_or(0),
        AluOp::Mod => a.checked_rem(b).unwrap_or(a),
        AluOp::SDiv if b == 0 => 0,
        AluOp::SDiv => sa.wrapping_div(sb) as u64,
        AluOp::SMod if b == 0 => a,
        AluOp::SMod => sa.wrapping_rem(sb) as u64,
        AluOp::Or => a | b,
        AluOp::And => a & b,
        AluOp::Xor => a ^ b,
        AluOp::Lsh => a.wrapping_shl(b as u32),
        AluOp::Rsh => a.wrapping_shr(b as u32),
        AluOp::Arsh => sa.wrapping_shr(b as u32) as u64,
    }
}

#[inline]
fn alu32(op: AluOp, a: u32, b: u32) -> u32 {
    let (sa, sb) = (a as i32, b as i32);
    match op {
        AluOp::Add => a.wrapping_add(b),
        AluOp::Sub => a.wrapping_sub(b),
        AluOp::Mul => a.wrapping_mul(b),
        AluOp::Div => a.checked_div(b).unwrap_or(0),
        AluOp::Mod => a.checked_rem(b).unwrap_or(a),
        AluOp::SDiv if b == 0 => 0,
        AluOp::SDiv => sa.wrapping_div(sb) as u32,
        AluOp::SMod if b == 0 => a,
        AluOp::SMod => sa.wrapping_rem(sb) as u32,
        AluOp::Or => a | b,
        AluOp::And => a & b,
        AluOp::Xor => a ^ b,
        AluOp::Lsh => a.wrapping_shl(b),
        AluOp::Rsh => a.wrapping_shr(b),
        AluOp::Arsh => sa.wrapping_shr(b) as u32,
    }
}

/// `-a` at a width.
pub(crate) fn neg(width: Width, a: u64) -> u64 {
    match width {
        Width::W32 => (a as u32).wrapping_neg().into(),
        Width::W64 => a.wrapping_neg(),
    }
}

/// A value cut to a width.
pub(crate) fn truncate(width: Width, a: u64) -> u64 {
    match width {
        Width::W32 => u64::from(a as u32),
        Width::W64 => a,
    }
}

/// `(sN)a` at a width.
pub(crate) fn sign_extend(width: Width, from: SxWidth, a: u64) -> u64 {
    let wide = match from {
        SxWidth::S8 => a as i8 as u64,
        SxWidth::S16 => a as i16 as u64,
        SxWidth::S32 => a as i32 as u64,
    };
    truncate(width, wide)
}

/// Byte order conversion of the low bits; the bits above are zeroed.
pub(crate) fn end(order: ByteOrder, width: EndWidth, a: u64) -> u64 {
    match (order, width) {
        (ByteOrder::ToLe, EndWidth::B16) => (a as u16).to_le().into(),
        (ByteOrder::ToLe, EndWidth::B32) => (a as u32).to_le().into(),
        (ByteOrder::ToLe, EndWidth::B64) => a.to_le(),
        (ByteOrder::ToBe, EndWidth::B16) => (a as u16).to_be().into(),
        (ByteOrder::ToBe, EndWidth::B32) => (a as u32).to_be().into(),
        (ByteOrder::ToBe, EndWidth::B64) => a.to_be(),
        (ByteOrder::Swap, EndWidth::B16) => (a as u16).swap_bytes().into(),
        (ByteOrder::Swap, EndWidth::B32) => (a as u32).swap_bytes().into(),
        (ByteOrder::Swap, EndWidth::B64) => a.swap_bytes(),
    }
}
