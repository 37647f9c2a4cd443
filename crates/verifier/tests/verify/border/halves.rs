//! Programs that search with a base and a number of remaining elements: each round keeps a part of them and may advance
//! the base. Base plus remaining elements stay in the buffer, except in programs with a planted mistake.
//!
//! Elements have one to eight bytes; the base is a pointer or an index; a round keeps a half, a third or as many as a
//! byte of the buffer says; and the base advances by the number of dropped elements, by one more, or by one less.

use std::fmt::Write;

use bpf_isa::{Program, assemble};
use bpf_testkit::generate::Choices;

/// Makes a program.
pub(crate) fn generate(c: &mut Choices<'_>) -> Option<Program> {
    let mut text = String::new();
    let mut line = |s: String| writeln!(text, "{s}").expect("a string");
    let shift = c.below(4);
    let (pointer, size) = (c.one_in(2), ["u8", "u16", "u32", "u64"][shift as usize]);
    // r6: the buffer, r7: the base, r2: elements left.
    line("r6 = r1".into());
    line(if pointer { "r7 = r1".into() } else { "r7 = 0".into() });
    let count = if c.one_in(8) { shift.saturating_sub(1) } else { shift };
    if count > 0 {
        line(format!("r2 >>= {count}"));
    }
    line("r0 = 0".into());
    let least = c.below(2) + u32::from(c.one_in(3));
    line(format!("if r2 {} {least} goto out", if c.one_in(6) { "<" } else { "<=" }));
    line("a: r3 = r2".into());
    line(c.pick(&["r3 >>= 1", "r3 >>= 1", "r3 >>= 1", "r3 >>= 2", "r3 /= 3"]).into());
    if c.one_in(6) {
        line("r3 += 1".into());
    }
    // The element in the middle, or the one before it.
    let scaled = |line: &mut dyn FnMut(String), to: &str, from: &str| {
        line(format!("{to} = {from}"));
        if shift > 0 {
            line(format!("{to} <<= {shift}"));
        }
    };
    let before = if c.one_in(4) { 1 << shift } else { 0 };
    if pointer {
        scaled(&mut line, "r4", "r3");
        line("r4 += r7".into());
    } else {
        line("r5 = r3".into());
        line("r5 += r7".into());
        scaled(&mut line, "r4", "r5");
        line("r4 += r6".into());
    }
    line(format!("r4 = *({size} *)(r4 - {before})"));
    // Chooses the part that is kept.
    let key = c.pick(&[0, 50, 128, 200]);
    line(format!("if r4 > {key} goto b"));
    let (ahead, less) = (u32::from(!c.one_in(4)), u32::from(!c.one_in(4)));
    line("r5 = r3".into());
    line(format!("r5 += {ahead}"));
    if pointer {
        scaled(&mut line, "r4", "r5");
        line("r7 += r4".into());
    } else {
        line("r7 += r5".into());
    }
    line("r5 = r3".into());
    line(format!("r5 += {less}"));
    line("r2 -= r5".into());
    line(format!("if r2 > {least} goto a"));
    line("goto end".into());
    line(match c.below(4) {
        0 => "b: r2 -= r3".into(),
        _ => "b: r2 = r3".into(),
    });
    line(format!("if r2 > {least} goto a"));
    line("end:".into());
    // Reads the element at which the search ended.
    if c.one_in(2) {
        if !c.one_in(4) {
            line("if r2 == 0 goto out".into());
        }
        if pointer {
            line(format!("r0 = *({size} *)(r7 + 0)"));
        } else {
            scaled(&mut line, "r4", "r7");
            line("r4 += r6".into());
            line(format!("r0 = *({size} *)(r4 + 0)"));
        }
    }
    line("out: r0 = 0".into());
    line("exit".into());
    let insns = assemble(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    Program::new(insns).ok()
}
