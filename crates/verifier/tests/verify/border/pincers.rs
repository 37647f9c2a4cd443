//! Programs that go over a buffer by two indices, which some rounds move toward each other: the lower one stays below
//! the upper one, and that below the length, unless one of the mistakes made here lets an access leave the buffer.
//!
//! The lower index, the upper one or both move in a round, by what its bytes say; each way round has its own test, or
//! all share one. Mistakes are tests that are missing or let one through too many, an upper index that begins too far
//! up, moves the other way or further than the lower one allows, and accesses beside the indices.

use std::fmt::Write;

use bpf_isa::{Program, assemble};
use bpf_testkit::generate::Choices;

/// Makes a program.
pub(crate) fn generate(c: &mut Choices<'_>) -> Option<Program> {
    let mut text = String::new();
    let mut line = |s: String| writeln!(text, "{s}").expect("a string");
    // r6: the buffer, r7: the lower index, r8: the upper one.
    let begin = c.pick(&[0, 0, 1, 2]);
    let from_end = c.pick(&[1, 1, 1, 0, 2]);
    line("r6 = r1".into());
    line(format!("r7 = {begin}"));
    line("r8 = r2".into());
    if !c.one_in(8) {
        line(format!("if r8 < {} goto out", c.pick(&[1, 2, 3, 4])));
    }
    line(format!("r8 -= {from_end}"));
    // The test that each way round ends with.
    let strict = !c.one_in(4);
    let at_most = |strict: bool| if strict { "<" } else { "<=" };
    if c.one_in(8) {
        line("goto a".into());
    }
    line(format!("if r7 {} r8 goto a", at_most(strict)));
    line("goto out".into());
    let shares = c.one_in(2);
    let access = |line: &mut dyn FnMut(String), c: &mut Choices<'_>, index: &str| {
        let at = if c.one_in(5) { c.pick(&["- 1", "+ 1"]) } else { "+ 0" };
        line("r4 = r6".into());
        line(format!("r4 += {index}"));
        if c.one_in(6) {
            line(format!("*(u8 *)(r4 {at}) = 7"));
        }
        line(format!("r0 = *(u8 *)(r4 {at})"));
    };
    let ways = 2 + c.below(2);
    line("a:".into());
    for way in 0..ways {
        if c.one_in(3) && way > 0 {
            access(&mut line, c, "r8");
        } else {
            access(&mut line, c, "r7");
        }
        if way + 1 < ways {
            line(format!("if r0 > {} goto w{}", c.pick(&[50, 120, 200]), way + 1));
        }
        let (lower, upper) = c.pick(&[(1, 0), (1, 0), (0, 1), (0, 1), (1, 1), (1, 1), (2, 1), (1, 2), (0, 2)]);
        if lower > 0 {
            line(format!("r7 += {lower}"));
        }
        if upper > 0 {
            let moved = if c.one_in(12) { "r8 += 1".to_owned() } else { format!("r8 -= {upper}") };
            line(moved);
        }
        if shares {
            line("goto t".into());
        } else if c.one_in(16) {
            line("goto a".into());
        } else {
            let strict = if c.one_in(6) { !strict } else { strict };
            line(format!("if r7 {} r8 goto a", at_most(strict)));
            line("goto end".into());
        }
        line(format!("w{}:", way + 1));
    }
    line("t:".into());
    line(format!("if r7 {} r8 goto a", at_most(strict)));
    line("end:".into());
    if c.one_in(3) {
        access(&mut line, c, "r8");
    }
    line("out: r0 = 0".into());
    line("exit".into());
    let insns = assemble(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    Program::new(insns).ok()
}
