//! Loops over numbers that begin near the ends of 64 bits: at a multiple of a named number, less or more a constant.
//!
//! A number like this may be one of 64 bits while its named number is not, so a round's fact about one of them is a
//! different fact about the rounds. A number rises or falls from there, by a constant or by a multiple of one, beside
//! an index that counts the rounds. A comparison with a constant near an end bounds the index, which is used for the
//! stack. The bound of the rounds mostly exceeds the stack's length.

use std::fmt::Write;

use bpf_isa::{Program, assemble};
use bpf_testkit::generate::Choices;

/// Emits the number r6 and the number r8 that the loop moves. Returns the upper bound of r8.
fn begin(c: &mut Choices<'_>, out: &mut String) -> Result<u64, std::fmt::Error> {
    let (by, apart) = (c.pick(&[0u32, 1, 2, 2, 3]), c.pick(&[-1000i64, -1000, -16, -4, -1, 0, 1, 16, 1000]));
    // The largest r6 for which r8 fits 64 bits, or a number near it.
    let most = (u64::MAX >> by).wrapping_add_signed(-apart.min(0) - apart.max(0));
    let most = most.wrapping_add_signed(c.pick(&[0, 0, 0, -1, -16, -1000]));
    writeln!(out, "r6 = *(u8 *)(r1 + 24)\nr6 &= {}\nr3 = {most:#x} ll\nr3 -= r6", c.pick(&[0, 3, 31]))?;
    // The number passes through memory, so that only its comparisons bound it.
    out.push_str("*(u64 *)(r1 + 0) = r3\nr6 = *(u64 *)(r1 + 0)\n");
    writeln!(out, "r3 = {most:#x} ll\nif r6 > r3 goto out")?;
    if apart < 0 {
        writeln!(out, "if r6 < {} goto out", -apart)?;
    }
    writeln!(out, "r8 = r6\nr8 += {apart}\nr8 <<= {by}")?;
    Ok(most.wrapping_add_signed(apart) << by)
}

fn text(c: &mut Choices<'_>) -> Result<String, std::fmt::Error> {
    let mut out = String::new();
    let top = begin(c, &mut out)?;
    let step = c.pick(&[-1i64, -1, -2, -4, -8, -3, 1, 2, 4]);
    if step > 0 || c.one_in(6) {
        // r8 begins far enough below the end.
        writeln!(out, "r3 = {:#x} ll\nif r8 > r3 goto out", c.pick(&[u64::MAX - 1000, u64::MAX >> 1, u64::MAX >> 2]))?;
    }
    let rounds = c.pick(&[5, 9, 40, 40]);
    writeln!(out, "r9 = 0\na: if r9 >= {rounds} goto out\nif r6 < 7 goto out")?;
    if step < 0 {
        writeln!(out, "if r8 < {} goto out", -step)?;
    }
    writeln!(out, "r8 += {step}")?;
    // A constant near the start of r8, or near the start modulo 2^64, plus the steps of up to nine rounds.
    let by_name = [top, 0, 0u64.wrapping_sub(4000), 0u64.wrapping_sub(8000), 0u64.wrapping_sub(2000), u64::MAX >> 1];
    let at = c.pick(&by_name).wrapping_add_signed(step * i64::from(c.below(10))).wrapping_sub(c.below(12).into());
    writeln!(out, "r3 = {at:#x} ll\nif r8 {} r3 goto b", c.pick(&["<", "<", "<=", ">", ">=", "=="]))?;
    out.push_str("r2 = r10\nr2 += -8\nr2 += r9\n*(u8 *)(r2 + 0) = 0\nb: r9 += 1\ngoto a\nout: r0 = 0\nexit");
    Ok(out)
}

/// Makes a program.
pub(crate) fn generate(c: &mut Choices<'_>) -> Option<Program> {
    let text = text(c).ok()?;
    let insns = assemble(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    Program::new(insns).ok()
}
