//! Programs that go over the rows and columns of a table whose sizes are variables. The table lies in the buffer, where
//! the product of the sizes is compared with the length, or in an array that is large enough for all sizes, except for
//! the mistakes made here.
//!
//! Elements have one to eight bytes. Rows are pointers that move by their length, or begin at the product of an index;
//! the inner loop goes along a row or down a column. Mistakes are other sizes than the tested ones, rows that one path
//! moves differently, tests that leave one element too many, and loops that begin without one.

use std::fmt::Write;

use bpf_isa::{Program, assemble};
use bpf_testkit::generate::Choices;

/// Makes a program.
pub(crate) fn generate(c: &mut Choices<'_>) -> Option<Program> {
    let mut text = String::new();
    let mut line = |s: String| writeln!(text, "{s}").expect("a string");
    let shift = c.below(4);
    let size = ["u8", "u16", "u32", "u64"][shift as usize];
    // Number of the mistake; a third of the programs has none.
    let wrong = if c.one_in(3) { 0 } else { 1 + c.below(12) };
    // r6: the buffer, r7: rows, r8: columns.
    line("r6 = r1".into());
    line("r7 = *(u8 *)(r6 + 0)".into());
    let masks = if shift < 2 { [3, 7, 15] } else { [1, 3, 7] };
    let more = c.one_in(2);
    let size_of = |line: &mut dyn FnMut(String), c: &mut Choices<'_>, r: &str| {
        line(format!("{r} &= {}", c.pick(&masks)));
        if more {
            line(format!("{r} += 1"));
        }
    };
    size_of(&mut line, c, "r7");
    line("r8 = *(u8 *)(r6 + 1)".into());
    if c.one_in(3) {
        line("r8 = r7".into());
    } else {
        size_of(&mut line, c, "r8");
    }
    let stack = c.one_in(3);
    let head = if stack { 0 } else { c.pick(&[0, 2, 8]) };
    let sizes = c.pick(&[(4, 4), (3, 8), (8, 2)]);
    if stack {
        let (rows, columns) = sizes;
        line(format!("if r7 > {} goto out", rows + u32::from(wrong == 1)));
        line(format!("if r8 > {columns} goto out"));
        line("r9 = r10".into());
        line(format!("r9 += -{}", (rows * columns) << shift));
    } else {
        let (a, b) = match wrong {
            1 => ("r7", "r7"),
            2 => ("r8", "r8"),
            _ => ("r7", "r8"),
        };
        line(format!("r3 = {a}"));
        line(format!("r3 *= {b}"));
        let less = shift.saturating_sub(u32::from(wrong == 3));
        if less > 0 {
            line(format!("r3 <<= {less}"));
        }
        match c.below(3) {
            0 => line(format!("r2 -= {head}")),
            _ => line(format!("r3 += {head}")),
        }
        line(format!("if r3 {} r2 goto out", if c.one_in(8) { ">=" } else { ">" }));
        line("r9 = r6".into());
        line(format!("r9 += {}", head + u32::from(wrong == 4)));
    }
    for (size, forgotten) in [("r7", 5), ("r8", 6)] {
        if wrong != forgotten || c.one_in(2) {
            line(format!("if {size} == 0 goto out"));
        }
    }
    let index = c.one_in(3);
    let columns_first = !index && c.one_in(3);
    // The row length in bytes, in r1; mistake 7 takes the number of rows instead.
    line(format!("r1 = {}", if wrong == 7 { "r7" } else { "r8" }));
    if shift > 0 {
        line(format!("r1 <<= {shift}"));
    }
    line("r3 = 0".into());
    line("a: r5 = 0".into());
    line("r4 = r9".into());
    if index {
        line("r0 = r3".into());
        line(format!("r0 *= {}", if wrong == 8 { "r7" } else { "r8" }));
        if shift > 0 {
            line(format!("r0 <<= {shift}"));
        }
        line("r4 += r0".into());
    }
    line("b:".into());
    let at = if wrong == 9 { 1 << shift } else { 0 };
    line(match stack {
        true => format!("*({size} *)(r4 + {at}) = 1"),
        false => format!("r0 = *({size} *)(r4 + {at})"),
    });
    let by_elements = |to: &str| format!("{to} += {}", 1 << shift);
    line(if columns_first { "r4 += r1".into() } else { by_elements("r4") });
    line("r5 += 1".into());
    let at_most = |mistake: u32| if wrong == mistake { "<=" } else { "<" };
    let (inner, outer) = if columns_first { ("r7", "r8") } else { ("r8", "r7") };
    line(format!("if r5 {} {inner} goto b", at_most(10)));
    // An additional action of one path.
    if wrong == 11 {
        line("r0 = *(u8 *)(r6 + 3)".into());
        line(format!("if r0 > {} goto c", c.pick(&[1, 40, 128])));
        let besides = ["r8 += 1", "r1 += 1", "r9 += r1", "r7 += 1", "r3 -= 1", "r1 = r0", "r8 = r0"];
        line(c.pick(&besides).into());
        line("c:".into());
    }
    if !index {
        line(if columns_first { by_elements("r9") } else { "r9 += r1".into() });
    }
    line("r3 += 1".into());
    line(format!("if r3 {} {outer} goto a", at_most(12)));
    line("out: r0 = 0".into());
    line("exit".into());
    let insns = assemble(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    Program::new(insns).ok()
}
