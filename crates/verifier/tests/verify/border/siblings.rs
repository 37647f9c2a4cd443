//! Programs that mask or shift one number before paths meet, and again on a path that has a tighter bound of the number
//! and ends by itself.
//!
//! A fact about the number that a comparison of the result implies holds on every path; a fact that one path has learnt
//! about the number holds on that path only. Here a sibling learns a bound, makes the same or another result, and
//! leaves; the other path compares the result that was made before, and uses the number as an index near the bound that
//! this implies, or near the bound that only the sibling knows. A loop before or behind makes the walk try techniques
//! that few programs need.

use std::fmt::Write;

use bpf_isa::{Program, assemble};
use bpf_testkit::generate::Choices;

/// Operations on a number: an instruction with `R` (or `w`) for the register.
const MADE: [&str; 14] = [
    "R >>= 4", "R >>= 2", "R >>= 1", "R &= 7", "R &= 16", "R &= 144", "R &= 1", "R &= -16", "w >>= 4", "w &= 7",
    "R /= 16", "R %= 8", "R <<= 32", "R <<= 3",
];

fn made(c: &mut Choices<'_>, first: &str, r: u32) -> String {
    let op = if c.one_in(3) { c.pick(&MADE) } else { first };
    format!("r{r} = r6\n{}", op.replace('R', &format!("r{r}")).replace('w', &format!("w{r}")))
}

const LOOP: &str = "r3 = 0\nl: r3 += 1\nif r3 < 3 goto l\n";

/// A path that learns a bound of the number, applies the operation again, and ends.
fn sibling(c: &mut Choices<'_>, first: &str, label: usize, out: &mut String) -> std::fmt::Result {
    let bound = c.pick(&[0, 1, 7, 15, 16, 20, 24, 31]);
    match c.below(4) {
        0 => writeln!(out, "if r6 > {bound} goto out")?,
        1 => writeln!(out, "if r6 <= {bound} goto s{label}\nr0 = 0\nexit\ns{label}:")?,
        2 => writeln!(out, "if r6 != {bound} goto out")?,
        _ => writeln!(out, "if w6 >= {} goto out", bound + 1)?,
    }
    for _ in 0..1 + c.below(5) {
        writeln!(out, "{}", made(c, first, 5))?;
        match c.below(6) {
            0 => writeln!(out, "if r5 != {} goto out", c.below(3))?,
            1 => writeln!(out, "r5 >>= 1")?,
            _ => {}
        }
    }
    out.push_str(if c.one_in(3) { "goto out\n" } else { "r0 = 0\nexit\n" });
    Ok(())
}

fn text(c: &mut Choices<'_>) -> Result<String, std::fmt::Error> {
    let mut out = String::new();
    let load = c.pick(&["u8", "u8", "u8", "u16", "u32"]);
    writeln!(out, "r6 = *({load} *)(r1 + {})\nr8 = *(u8 *)(r1 + 8)\nr9 = *(u8 *)(r1 + 9)\nr7 = r1", c.below(8))?;
    if c.one_in(4) {
        writeln!(out, "if r6 > {} goto out", c.pick(&[40, 63, 255, 1000]))?;
    }
    let before = !c.one_in(3);
    if before {
        out.push_str(LOOP);
    }
    let first = c.pick(&MADE);
    if c.one_in(3) {
        // Another path, which joins here, applies the operation to another number.
        let ordered = if c.one_in(2) { "if r4 > r6 goto out\n" } else { "" };
        let other = made(c, first, 4).replace("r4 = r6", "r4 = r2");
        writeln!(out, "r2 = *({load} *)(r1 + {})\nif r9 > 128 goto p", c.below(8))?;
        writeln!(out, "{}\ngoto q\np: {other}\n{ordered}q:", made(c, first, 4))?;
    } else {
        writeln!(out, "{}", made(c, first, 4))?;
    }
    if c.one_in(3) {
        // The result is computed again.
        writeln!(out, "{}", made(c, first, 2))?;
    }
    let joins = c.below(3);
    for i in 0..joins {
        writeln!(out, "if r9 > {} goto m{i}\nr0 = {i}\nm{i}:", 40 + 50 * i)?;
    }
    let siblings = 1 + c.below(2) as usize;
    for i in 0..siblings {
        // Chooses which of the two paths is walked first.
        if c.one_in(2) {
            writeln!(out, "if r8 > {} goto o{i}", 100 + 50 * i)?;
            sibling(c, first, i, &mut out)?;
        } else {
            writeln!(out, "if r8 <= {} goto b{i}\ngoto o{i}\nb{i}:", 100 + 50 * i)?;
            sibling(c, first, i, &mut out)?;
        }
        writeln!(out, "o{i}:")?;
    }
    if c.one_in(4) {
        writeln!(out, "{}", made(c, first, 4))?;
    }
    let result = if c.one_in(4) { 2 } else { 4 };
    if result == 2 {
        writeln!(out, "{}", made(c, first, 2))?;
    }
    let is = c.pick(&[0, 0, 1, 1, 2, 16, 144]);
    let cond = c.pick(&["!=", "!=", "!=", "!=", ">", "s>"]);
    writeln!(out, "if r{result} {cond} {is} goto out")?;
    if c.one_in(4) {
        // The result is shifted back.
        writeln!(out, "r{result} {} {}", c.pick(&[">>=", "s>>=", "<<="]), c.pick(&[1, 3, 4, 32]))?;
    }
    let index = if c.one_in(6) { result } else { 6 };
    let reach = c.pick(&[1, 8, 16, 21, 25, 32, 64, 128]);
    writeln!(out, "r5 = r10\nr5 += -{reach}\nr5 += r{index}\n*(u8 *)(r5 + 0) = 1\nout:")?;
    if !before {
        out.push_str(LOOP);
    }
    out.push_str("r0 = 0\nexit");
    Ok(out)
}

/// Makes a program.
pub(crate) fn generate(c: &mut Choices<'_>) -> Option<Program> {
    let text = text(c).expect("a string");
    let insns = assemble(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    Program::new(insns).ok()
}
