//! Loops that divide a number in each round and write a byte in each: digits, bits, gaps.
//!
//! The number alone bounds the rounds if every round divides it. Here some rounds do not divide it, or divide another
//! number; divisors and widths vary; a copy is tested, or the number passes through the stack; and the written array
//! has about one byte a round.

use std::fmt::Write;

use bpf_isa::{Program, assemble};
use bpf_testkit::generate::Choices;

/// The change of r3 in a round, and a lower bound of the divisor.
const DIVISIONS: [(&str, u64); 16] = [
    ("r3 >>= 4", 16),
    ("r3 /= 10", 10),
    ("r3 >>= 1", 2),
    ("r3 /= 3", 3),
    ("r3 >>= 8", 256),
    ("w3 >>= 4", 16),
    ("w3 /= 10", 10),
    ("r3 s/= 10", 10),
    ("w3 s/= 10", 10),
    ("r3 *= 10\nr3 /= 13", 1),
    ("r3 *= 3\nr3 >>= 2", 1),
    ("r3 /= r8", 2),
    ("r3 >>= r8", 4),
    ("r3 -= 1\nr3 /= 2", 2),
    ("r3 += 1\nr3 >>= 2", 3),
    ("r3 s>>= 4", 16),
];

/// Returns how often a number of `bits` bits can be divided.
fn digits(bits: u32, by: u64) -> u32 {
    match by {
        0 | 1 => 40,
        _ => (u64::MAX >> (64 - bits)).ilog(by) + 1,
    }
}

/// Emits a further action of a round, mostly on some paths only.
fn aside(c: &mut Choices<'_>, label: usize, spilled: bool, out: &mut String) -> std::fmt::Result {
    let end = format!("l{label}");
    match c.below(8) {
        // A round that continues without a division where a sum wraps round, or where a byte is small.
        0 => {
            let (load, step) = c.pick(&[("*(u64 *)(r1 + 8)", "r7 += 1"), ("*(u32 *)(r1 + 8)", "w7 += 1")]);
            write!(out, "r7 = {load}\nr6 = r7\n{step}\nif r7 != 0 goto {end}\n")?;
            write!(out, "if r4 >= {} goto {end}\nr4 += 1\ngoto a\n", 1 + c.below(5))
        }
        1 => {
            write!(out, "r7 = *(u8 *)(r1 + 8)\nif r7 > {} goto {end}\n", c.below(250))?;
            write!(out, "if r4 > {} goto {end}\nr4 += 1\ngoto a\n", c.below(5))
        }
        // The divided number is restored.
        2 => write!(out, "r7 = *(u8 *)(r1 + 7)\nif r7 == {} goto {end}\nr3 = r9\n", c.below(3)),
        3 => write!(out, "r7 = *(u8 *)(r1 + 7)\nif r7 != {} goto {end}\nr3 >>= 1\n", c.below(3)),
        4 => write!(out, "r7 = r3\nr7 &= {}\nif r7 == 0 goto {end}\nr9 = r7\n", c.pick(&[1, 2, 3, 15])),
        5 => {
            write!(out, "r7 = *(u8 *)(r1 + 9)\nw7 += -{}\nw7 &= 255\n", c.pick(&[97, 65, 48]))?;
            write!(out, "if w7 < 26 goto {end}\nr9 = 1\n")
        }
        6 if spilled => out.write_str("r3 = *(u64 *)(r10 - 96)\n"),
        _ => write!(out, "r7 = *(u8 *)(r1 + 3)\nif r7 == 0 goto {end}\nr3 += {}\n", c.below(3)),
    }?;
    writeln!(out, "{end}:")
}

fn text(c: &mut Choices<'_>) -> Result<String, std::fmt::Error> {
    let mut out = String::new();
    let (load, bits) = c.pick(&[("u8", 8), ("u16", 16), ("u32", 32), ("u32", 32), ("u64", 64)]);
    writeln!(out, "r3 = *({load} *)(r1 + 0)")?;
    if c.one_in(4) {
        writeln!(out, "r3 &= {}", c.pick(&[255, 1023, 4095, 65535, i32::MAX]))?;
    }
    match c.below(4) {
        0 => writeln!(out, "r8 = *(u8 *)(r1 + 6)\nr8 &= 7\nr8 += {}", c.pick(&[0, 0, 2]))?,
        _ => writeln!(out, "r8 = {}", c.pick(&[1, 2, 10, 16]))?,
    }
    let (copied, spilled) = (c.one_in(3), c.one_in(5));
    out.push_str(if copied { "r9 = r3\nr4 = 0\nr0 = r3\n" } else { "r9 = r3\nr4 = 0\n" });
    out.push_str(if spilled { "*(u64 *)(r10 - 96) = r3\na:\n" } else { "a:\n" });
    let (divide, by) = c.pick(&DIVISIONS);
    // About as many bytes as there are rounds.
    let room = (digits(bits, by) + c.below(4)).saturating_sub(1).clamp(1, 64);
    let store = format!("r5 = r10\nr5 += -{room}\nr5 += r4\n*(u8 *)(r5 + 0) = r3\n");
    let first = c.one_in(2);
    if first {
        out.push_str(&store);
    }
    for label in 0..c.below(4) as usize {
        aside(c, label, spilled, &mut out)?;
    }
    if c.one_in(8) {
        out.push_str("if r3 == 0 goto out\n");
    }
    out.push_str(if copied && c.one_in(2) { "r6 = r0\n" } else { "r6 = r3\n" });
    writeln!(out, "{divide}")?;
    if copied {
        writeln!(out, "{}", c.pick(&["r0 = r3", "r0 = r3", "r0 = r6", "r0 >>= 1"]))?;
    }
    if spilled {
        out.push_str("*(u64 *)(r10 - 96) = r3\n");
    }
    if !first {
        out.push_str(&store);
    }
    writeln!(out, "{}", c.pick(&["r4 += 1", "r4 += 1", "r4 += 1", "r4 += 2", "w4 += 1"]))?;
    let most = by.max(2) - 1;
    match c.below(8) {
        0 => writeln!(out, "if r6 > {} goto a", most - 1)?,
        1 => writeln!(out, "if r3 != 0 goto a")?,
        2 => writeln!(out, "if w6 > {most} goto a")?,
        3 => writeln!(out, "if r3 > {} goto a", c.below(3))?,
        4 => writeln!(out, "if r6 s> {most} goto a")?,
        _ => writeln!(out, "if r6 > {most} goto a")?,
    }
    match c.below(4) {
        0 => write!(out, "r5 = r10\nr5 += -{}\nr5 += r4\nr0 = *(u8 *)(r5 + 0)\n", room + 1)?,
        1 => out.push_str("if r3 > 15 goto out\nr5 = r1\nr5 += r3\nr0 = *(u8 *)(r5 + 0)\n"),
        _ => {}
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
