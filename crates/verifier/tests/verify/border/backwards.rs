//! Loops that count a distance from the end of the buffer below zero, with bounds that are often off by a byte.
//!
//! A register begins at 0, or near it, and falls in every round. It is added to the buffer's end or to another pointer,
//! directly or at a distance, and the sum is compared with the start, or with something else.

use std::fmt::Write;

use bpf_isa::{Program, assemble};
use bpf_testkit::generate::Choices;

fn text(c: &mut Choices<'_>) -> Result<String, std::fmt::Error> {
    let mut out = String::from("r9 = r1\nr9 += r2\n");
    let (first, step) = (c.pick(&[0i32, 0, 0, 0, -1, 1, 2, -7]), c.pick(&[-1i32, -1, -1, -2, -4, -3]));
    writeln!(out, "r3 = {first}\nr7 = 0\na: r0 = r3")?;
    let base = c.pick(&["r9", "r9", "r9", "r9", "r1", "r10"]);
    let apart = c.pick(&[0i32, 0, 0, -1, 1, -4, 8]);
    writeln!(out, "r4 = {base}\nr5 = r0\nr5 += {apart}")?;
    out.push_str(c.pick(&["r4 += r5\n", "r4 += r5\n", "r5 += r4\nr4 = r5\n", "w5 = w5\nr4 += r5\n"]));
    if c.one_in(4) {
        writeln!(out, "r4 += {}", c.pick(&[-1, 1, -2]))?;
    }
    let cond = c.pick(&["<=", "<=", "<=", "<", "==", ">"]);
    let limit = c.pick(&["r1", "r1", "r1", "r1", "r9"]);
    let before = c.one_in(3);
    if before {
        writeln!(out, "r3 += {step}")?;
    }
    writeln!(out, "if r4 {cond} {limit} goto out")?;
    if c.one_in(3) {
        writeln!(out, "if r0 {} {} goto b", c.pick(&["s>", "s<", ">", "=="]), c.pick(&[-20, -3, 0, 5]))?;
    }
    let size = c.pick(&["u8", "u8", "u8", "u16", "u32"]);
    if c.one_in(3) {
        writeln!(out, "r4 = {}\nr4 += {}", c.pick(&["r9", "r9", "r1"]), c.pick(&["r3", "r0", "r5"]))?;
    }
    let at = c.pick(&[-1, -1, -1, 0, -2, -4, 1]);
    writeln!(out, "r6 = *({size} *)(r4 {}{at})\nr7 += r6", if at < 0 { "" } else { "+ " })?;
    if c.one_in(3) {
        writeln!(out, "if r6 == {} goto out", c.pick(&[0, 47, 255]))?;
    }
    out.push_str("b: ");
    if !before {
        match c.below(3) {
            0 => writeln!(out, "r3 = r0\nr3 += {step}")?,
            _ => writeln!(out, "r3 += {step}")?,
        }
    } else {
        out.push_str("r7 += 1\n");
    }
    // Code behind the loop uses the number, too.
    let used = ["r0 = 0", "r3 = -r3\nr3 &= 7\nr1 += r3\nr0 = 0", "r0 = r3", "*(u64 *)(r10 - 8) = r3\nr0 = 0"];
    writeln!(out, "goto a\nout: {}\nexit", c.pick(&used))?;
    Ok(out)
}

/// Makes a program.
pub(crate) fn generate(c: &mut Choices<'_>) -> Option<Program> {
    let text = text(c).ok()?;
    let insns = assemble(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    Program::new(insns).ok()
}
