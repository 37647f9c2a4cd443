//! Numbers near the ends of 62, 63 and 64 bits: their sums, differences, multiples and halves, compared with each other
//! and with constants there.
//!
//! What is learnt of two such numbers is a distance that may not fit 63 bits, or a bound that may not fit 64. Three
//! numbers are made of bytes and constants, and go through the buffer, so that only comparisons say what they are; the
//! oracle sees in the registers what is concluded. Some programs use one as an index into the stack.

use std::fmt::Write;

use bpf_isa::{Program, assemble};
use bpf_testkit::generate::Choices;

const ENDS: [u64; 7] = [0, 1 << 61, 1 << 62, (1 << 62) + (1 << 61), 1 << 63, (1 << 63) + (1 << 62), u64::MAX];
/// What may be added.
const NEAR: [i32; 12] = [0, 1, 2, -1, -2, 16, -16, 100, -100, 1000, -1000, i32::MIN];

/// A constant near one of the ends.
fn near(c: &mut Choices<'_>) -> u64 {
    let end = c.pick(&ENDS);
    end.wrapping_add_signed(i64::from(c.pick(&NEAR[..11])))
}

fn statement(c: &mut Choices<'_>, out: &mut String) -> std::fmt::Result {
    let number = |c: &mut Choices<'_>| c.pick(&[0, 4, 5, 6, 7, 8, 9, 6, 7, 8]);
    let (a, b, to) = (number(c), number(c), c.pick(&[0, 4, 5, 9]));
    let cond = c.pick(&["<", "<=", ">", ">=", "==", "!=", "s<", "s>="]);
    match c.below(9) {
        0..3 => writeln!(out, "r3 = {:#x} ll\nif r{a} {cond} r3 goto out", near(c)),
        3 => writeln!(out, "if r{a} {cond} r{b} goto out"),
        4 | 5 => writeln!(out, "r{to} = r{a}\nr{to} {} r{b}", c.pick(&["+=", "+=", "-="])),
        6 => writeln!(out, "r{to} = r{a}\nr{to} += {}", c.pick(&NEAR)),
        7 => writeln!(out, "r{to} = r{a}\nr{to} <<= {}", c.pick(&[1, 1, 2, 3])),
        _ => writeln!(out, "r{to} = r{a}\nr{to} {}", c.pick(&[">>= 1", ">>= 1", "/= 2", "-= 1000", ">>= 2"])),
    }
}

fn text(c: &mut Choices<'_>) -> Result<String, std::fmt::Error> {
    // A loop: elsewhere nothing is related.
    let mut out = String::from("r3 = 0\na: w3 += 1\nif w3 != 5 goto a\n");
    for (i, r) in [6, 7, 8].into_iter().enumerate() {
        let by = c.pick(&[0, 0, 1, 2]);
        writeln!(out, "r{r} = *(u8 *)(r1 + {})\nr{r} <<= {by}\nr3 = {:#x} ll\nr{r} += r3", 24 + i, near(c))?;
    }
    for (i, r) in [6, 7, 8].into_iter().enumerate() {
        writeln!(out, "*(u64 *)(r1 + {}) = r{r}\nr{r} = *(u64 *)(r1 + {})", 8 * i, 8 * i)?;
    }
    out.push_str("r0 = r6\nr4 = r7\nr5 = r8\nr9 = r7\n");
    // Bounds first, as without them sums may wrap.
    for r in [6, 7, 8] {
        if !c.one_in(3) {
            writeln!(out, "r3 = {:#x} ll\nif r{r} > r3 goto out", near(c))?;
        }
        if c.one_in(3) {
            writeln!(out, "if r{r} < {} goto out", c.pick(&[1, 16, 1000, 20_000]))?;
        }
    }
    for _ in 0..4 + c.below(12) {
        statement(c, &mut out)?;
    }
    if c.one_in(4) {
        let (r, from) = (c.pick(&[0, 4, 5, 6]), near(c));
        writeln!(out, "r3 = {from:#x} ll\nif r{r} < r3 goto out\nr{r} -= r3\nr2 = r10\nr2 += -24\nr2 += r{r}")?;
        out.push_str("*(u8 *)(r2 + 0) = 0\n");
    }
    out.push_str("out: r0 = 0\nexit");
    Ok(out)
}

/// Makes a program.
pub(crate) fn generate(c: &mut Choices<'_>) -> Option<Program> {
    let text = text(c).ok()?;
    let insns = assemble(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    Program::new(insns).ok()
}
