//! Numbers near the ends of 62, 63 and 64 bits: their sums, differences, multiples and halves, compared with each other
//! and with constants there.
//!
//! A comparison of two such numbers gives a distance that may not fit 63 bits, or a bound that may not fit 64. Three
//! numbers are made of bytes and constants, and go through the buffer, so that only comparisons say what they are; the
//! oracle compares the conclusions with the registers. Some programs use one as an index into the stack.

use std::fmt::Write;

use bpf_isa::{Program, assemble};
use bpf_testkit::generate::Choices;

const ENDS: [u64; 7] = [0, 1 << 61, 1 << 62, (1 << 62) + (1 << 61), 1 << 63, (1 << 63) + (1 << 62), u64::MAX];
/// Constants that may be added.
const NEAR: [i32; 12] = [0, 1, 2, -1, -2, 16, -16, 100, -100, 1000, -1000, i32::MIN];

/// A constant near one of the ends, mostly this one.
fn near(c: &mut Choices<'_>, end: u64) -> u64 {
    let end = if c.one_in(5) { c.pick(&ENDS) } else { end };
    end.wrapping_add_signed(i64::from(c.pick(&NEAR[..11])))
}

/// Operations of several steps: the middle of two numbers, their sum compared with a sum of multiples, and a multiple
/// of one compared with another at a distance.
fn together(c: &mut Choices<'_>, out: &mut String) -> std::fmt::Result {
    let (a, b) = (c.pick(&[6, 7, 8]), c.pick(&[6, 7, 8]));
    let (by, apart) = (c.pick(&[1, 1, 2]), c.pick(&NEAR));
    match c.below(3) {
        0 => writeln!(out, "r0 = r{a}\nr0 += r{b}\nr0 += {apart}\nr0 >>= 1"),
        1 => {
            writeln!(out, "r0 = r{a}\nr0 <<= {by}\nr4 = r{b}\nr4 <<= {by}\nr0 += r4")?;
            writeln!(out, "r5 = r{a}\nr5 += r{b}")
        }
        _ => writeln!(out, "r4 = r{a}\nr4 += {apart}\nr4 <<= {by}\nif r{b} > r4 goto out\nif r{b} < 1000 goto out"),
    }
}

fn statement(c: &mut Choices<'_>, end: u64, out: &mut String) -> std::fmt::Result {
    let number = |c: &mut Choices<'_>| c.pick(&[0, 4, 5, 6, 7, 8, 9, 6, 7, 8]);
    let (a, b, to) = (number(c), number(c), c.pick(&[0, 4, 5, 9]));
    let cond = c.pick(&["<", "<=", ">", ">=", "==", "!=", "s<", "s>="]);
    match c.below(9) {
        0 | 1 => writeln!(out, "r3 = {:#x} ll\nif r{a} {cond} r3 goto out", near(c, end)),
        2 | 3 => writeln!(out, "if r{a} {cond} r{b} goto out"),
        4 | 5 => writeln!(out, "r{to} = r{a}\nr{to} {} r{b}", c.pick(&["+=", "+=", "-="])),
        6 => writeln!(out, "r{to} = r{a}\nr{to} += {}", c.pick(&NEAR)),
        7 => writeln!(out, "r{to} = r{a}\nr{to} <<= {}", c.pick(&[1, 1, 2, 3])),
        _ => writeln!(out, "r{to} = r{a}\nr{to} {}", c.pick(&[">>= 1", ">>= 1", "/= 2", "-= 1000", ">>= 2"])),
    }
}

fn text(c: &mut Choices<'_>) -> Result<String, std::fmt::Error> {
    let end = c.pick(&ENDS);
    // A loop, since relations between numbers are tracked only in programs with loops.
    let mut out = String::from("r3 = 0\na: w3 += 1\nif w3 != 5 goto a\n");
    for (i, r) in [6, 7, 8].into_iter().enumerate() {
        let by = c.pick(&[0, 0, 1, 2]);
        // One may be as small as a constant that is taken off.
        let end = if r == 7 && c.one_in(2) { 0 } else { end };
        writeln!(out, "r{r} = *(u8 *)(r1 + {})\nr{r} <<= {by}\nr3 = {:#x} ll\nr{r} += r3", 24 + i, near(c, end))?;
    }
    for (i, r) in [6, 7, 8].into_iter().enumerate() {
        writeln!(out, "*(u64 *)(r1 + {}) = r{r}\nr{r} = *(u64 *)(r1 + {})", 8 * i, 8 * i)?;
    }
    out.push_str("r0 = r6\nr4 = r7\nr5 = r8\nr9 = r7\n");
    // Bounds come first, since sums of unbounded numbers may wrap.
    for r in [6, 7, 8] {
        if !c.one_in(3) {
            writeln!(out, "r3 = {:#x} ll\nif r{r} > r3 goto out", near(c, end))?;
        }
        if c.one_in(3) {
            writeln!(out, "if r{r} < {} goto out", c.pick(&[1, 16, 1000, 20_000]))?;
        }
    }
    for _ in 0..2 + c.below(8) {
        if c.one_in(4) {
            together(c, &mut out)?;
        } else {
            statement(c, end, &mut out)?;
        }
    }
    if c.one_in(4) {
        let (r, from) = (c.pick(&[0, 4, 5, 6]), near(c, end));
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
