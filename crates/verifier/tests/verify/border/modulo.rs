//! Several copies of a number that are cut, shifted by constants and multiplied modulo a power of two; some are
//! compared.
//!
//! The low bits of one copy determine those of another. Each copy is made by a few operations, most of which may wrap
//! round; comparisons bound any copy at any time, and the last result is used as an index. Programs have no loops; the
//! abstract states beside each run find wrong ranges wherever the index leads.

use std::fmt::Write;

use bpf_isa::{Program, assemble};
use bpf_testkit::generate::Choices;

/// The copies: `r6` is loaded, and `r9` is another number.
const COPIES: [u32; 5] = [2, 3, 4, 6, 9];

fn operation(c: &mut Choices<'_>, out: &mut String) -> std::fmt::Result {
    let (r, s) = (c.pick(&COPIES), c.pick(&COPIES));
    let width = c.pick(&["r", "w"]);
    match c.below(12) {
        0 | 1 => writeln!(out, "{width}{r} = {width}{s}"),
        2 | 3 => writeln!(out, "{width}{r} &= {}", c.pick(&[1, 7, 15, 255, 255, 0xffff, 0xff00, 0xfff, 0xf0, -16])),
        4 | 5 => {
            let by = c.pick(&[1, -1, -8, 16, -128, 255, 0xff00, 0x7fff_ffff, -0x8000_0000]);
            writeln!(out, "{width}{r} += {by}")
        }
        6 => writeln!(out, "{width}{r} <<= {}", c.pick(&[1, 4, 8, 24])),
        7 => writeln!(out, "{width}{r} *= {}", c.pick(&[2, 3, 255, 256, -1])),
        8 => writeln!(out, "r{r} <<= 32\nr{r} {}= 32", c.pick(&[">>", ">>", "s>>"])),
        9 => {
            let by = c.pick(&[32, 48, 56]);
            writeln!(out, "r{r} <<= {by}\nr{s} = r{r}\nr{r} s>>= {by}\nr{s} >>= {by}")
        }
        10 => writeln!(out, "{width}0 = {}\n{width}0 -= {width}{s}\n{width}{r} = {width}0", c.pick(&[16, 64, 4096, 0])),
        _ => writeln!(out, "{width}{r} >>= {}", c.pick(&[1, 4, 8])),
    }
}

fn text(c: &mut Choices<'_>) -> Result<String, std::fmt::Error> {
    let mut out = String::new();
    let load = c.pick(&["u8", "u16", "u32", "u32", "u64"]);
    writeln!(out, "r6 = *({load} *)(r1 + 0)\nr9 = *(u8 *)(r1 + 9)\nr7 = r1\nr2 = r6\nr3 = r6\nr4 = r6")?;
    for _ in 0..3 + c.below(10) {
        operation(c, &mut out)?;
        if c.one_in(3) {
            let (r, s) = (c.pick(&COPIES), c.pick(&COPIES));
            let cond = c.pick(&[">", ">", "<", "==", "s>", "s<", ">=", "!="]);
            let width = c.pick(&["r", "w"]);
            match c.below(6) {
                0 => writeln!(out, "if {width}{r} {cond} {width}{s} goto out")?,
                _ => writeln!(out, "if {width}{r} {cond} {} goto out", c.pick(&[0, 1, 7, 15, 16, 64, 255, -1, -8]))?,
            }
        }
    }
    if c.one_in(2) {
        let r = c.pick(&COPIES);
        writeln!(out, "r{r} &= {}", c.pick(&[15, 255, 0xffff, 0xfff]))?;
        writeln!(out, "r5 = r10\nr5 += -{}\nr5 += r{r}\n*(u8 *)(r5 + 0) = 1", c.pick(&[16, 64, 256, 512]))?;
    }
    out.push_str("out: r0 = 0\nexit");
    Ok(out)
}

/// Makes a program.
pub(crate) fn generate(c: &mut Choices<'_>) -> Option<Program> {
    let text = text(c).expect("a string");
    let insns = assemble(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    Program::new(insns).ok()
}
