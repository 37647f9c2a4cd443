//! Programs that go over a buffer by two indices, which some rounds move toward each other: the lower index stays below
//! the upper one, and the upper one below the length, except for the mistakes made here, which let an access leave the
//! buffer.
//!
//! The lower index, the upper one or both move in a round, depending on the loaded bytes; each path through the round
//! has its own test, or all share one. Mistakes are tests that are missing or let one through too many, an upper index
//! that begins too far up, moves the other way or further than the lower one allows, and accesses beside the indices.

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
    // The test at the end of each path through the round.
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

/// How a program of [`generate_varied`] holds its indices, and what it does with them.
struct Varied {
    /// Whether the indices are pointers into the buffer.
    pointers: bool,
    /// Whether the indices are counted and compared in 32 bits.
    short: bool,
    /// Whether the lower and the upper index are spilled between rounds.
    spilled: [bool; 2],
    strict: bool,
}

impl Varied {
    fn reg(&self, n: u32) -> String {
        format!("{}{n}", if self.short { 'w' } else { 'r' })
    }

    fn below(&self, lo: u32, hi: u32, strict: bool) -> String {
        format!("if {} {} {} goto", self.reg(lo), if strict { "<" } else { "<=" }, self.reg(hi))
    }

    /// Loads the byte at an index into r0.
    fn access(&self, text: &mut Vec<String>, c: &mut Choices<'_>, index: u32) {
        let at = if c.one_in(8) { c.pick(&["- 1", "+ 1", "+ 2"]) } else { "+ 0" };
        if self.pointers {
            text.push(format!("r0 = *(u8 *)(r{index} {at})"));
        } else {
            text.extend(["r4 = r6".into(), format!("r4 += r{index}"), format!("r0 = *(u8 *)(r4 {at})")]);
        }
    }

    fn store(&self, text: &mut Vec<String>) {
        for (i, _) in self.spilled.iter().enumerate().filter(|(_, s)| **s) {
            text.push(format!("*(u64 *)(r10 - {}) = r{}", 8 * (i + 1), 7 + i));
        }
    }

    fn load(&self, text: &mut Vec<String>) {
        for (i, _) in self.spilled.iter().enumerate().filter(|(_, s)| **s) {
            text.push(format!("r{} = *(u64 *)(r10 - {})", 7 + i, 8 * (i + 1)));
        }
    }
}

/// Makes a program of more kinds: indices are pointers, have 32 bits or lie on the stack, move by more than one or by a
/// loaded number; a third index lies between or below them; inner loops advance one of them.
pub(crate) fn generate_varied(c: &mut Choices<'_>) -> Option<Program> {
    let pointers = c.one_in(4);
    let short = !pointers && c.one_in(4);
    let spilled = [c.one_in(5), c.one_in(5)];
    let v = Varied { pointers, short, spilled, strict: !c.one_in(4) };
    let step = c.pick(&[1, 1, 1, 2, 3, 4, 8]);
    let third = c.one_in(3);
    let mut text: Vec<String> = vec!["r6 = r1".into()];
    text.push(if v.pointers { "r7 = r1".into() } else { "r7 = 0".into() });
    let begin = c.pick(&[0, 0, 0, 1, 2, step]);
    if begin > 0 {
        text.push(format!("r7 += {begin}"));
    }
    text.push(if v.pointers { "r8 = r1".into() } else { "r8 = r2".into() });
    if v.pointers {
        text.push("r8 += r2".into());
    }
    text.push(format!("{} -= {}", if v.short { "w8" } else { "r8" }, c.pick(&[1, 1, 1, step, 0, 2])));
    if third {
        text.push(c.pick(&["r9 = 0", "r9 = r7", "r9 = 1"]).into());
        if v.pointers {
            text.pop();
            text.push("r9 = r7".into());
        }
    }
    v.store(&mut text);
    text.extend([format!("{} a", v.below(7, 8, v.strict)), "goto out".into(), "a:".into()]);
    v.load(&mut text);
    let shares = c.one_in(2);
    let ways = 2 + c.below(2);
    let mut label = 0;
    for way in 0..ways {
        let index = if c.one_in(3) && way > 0 { 8 } else { 7 };
        v.access(&mut text, c, index);
        if way + 1 < ways {
            text.push(format!("if r0 > {} goto w{}", c.pick(&[50, 120, 200]), way + 1));
        }
        if c.one_in(4) {
            // An inner loop moves one of the two.
            label += 1;
            let bounded = !c.one_in(6);
            let lower = c.one_in(2);
            text.push(format!("i{label}:"));
            if bounded {
                text.extend([format!("{} j{label}", v.below(7, 8, v.strict)), "goto out".into(), format!("j{label}:")]);
            }
            v.access(&mut text, c, if lower { 7 } else { 8 });
            let by = c.pick(&[1, 1, step]);
            text.push(format!("{} {} {by}", v.reg(if lower { 7 } else { 8 }), if lower { "+=" } else { "-=" }));
            text.push(format!("if r0 > {} goto i{label}", c.pick(&[32, 100])));
            if c.one_in(2) {
                text.push(format!("{} k{label}", v.below(7, 8, v.strict)));
                text.extend(["goto out".into(), format!("k{label}:")]);
            }
        }
        if third && !c.one_in(3) {
            label += 1;
            let (lo, hi) = c.pick(&[(9, 7), (9, 8), (7, 9)]);
            text.extend([format!("{} t{label}", v.below(lo, hi, true)), "goto out".into(), format!("t{label}:")]);
            v.access(&mut text, c, 9);
            text.push(format!("{} += {}", v.reg(9), c.pick(&[1, 1, step])));
        }
        let (lower, upper) = c.pick(&[(1, 0), (1, 0), (0, 1), (1, 1), (1, 1), (2, 1), (1, 2)]);
        if lower > 0 {
            let by = lower * step;
            text.push(format!("{} += {by}", v.reg(7)));
            if c.one_in(10) {
                text.push(format!("{} += r0", v.reg(7)).replace("w7 += r0", "w7 += w0"));
            }
        }
        if upper > 0 {
            let by = upper * if c.one_in(2) { step } else { 1 };
            text.push(format!("{} {} {by}", v.reg(8), if c.one_in(12) { "+=" } else { "-=" }));
        }
        if c.one_in(12) {
            text.push(if v.pointers { "r8 = r7".into() } else { "r8 = r0".into() });
        }
        if shares {
            text.push("goto s".into());
        } else {
            v.store(&mut text);
            let strict = if c.one_in(8) { !v.strict } else { v.strict };
            text.extend([format!("{} a", v.below(7, 8, strict)), "goto end".into()]);
        }
        text.push(format!("w{}:", way + 1));
    }
    text.push("s:".into());
    v.store(&mut text);
    text.extend([format!("{} a", v.below(7, 8, v.strict)), "end:".into()]);
    if c.one_in(3) {
        v.access(&mut text, c, 8);
    }
    text.extend(["out: r0 = 0".into(), "exit".into()]);
    let text = text.join("\n");
    let insns = assemble(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    Program::new(insns).ok()
}

/// Makes a program whose index stays below an end and a constant except in rounds that begin where a loaded number
/// wraps round. No candidate is made from such rounds, so only the checking walk can notice them.
pub(crate) fn generate_unseen(c: &mut Choices<'_>) -> Option<Program> {
    // r6: the buffer, r7: the index, r8: its end, r9: the former end, r3: the rounds.
    let most = c.pick(&[3, 5, 7]);
    let mut text: Vec<String> =
        ["r6 = r1", "r3 = 0", "r7 = 0", "r9 = 0", "*(u64 *)(r10 - 8) = 0"].map(String::from).to_vec();
    let load = |text: &mut Vec<String>, c: &mut Choices<'_>, r: u32, tested: bool| {
        text.push(format!("r{r} = *(u8 *)(r6 + {})", c.below(16)));
        if tested {
            text.push(format!("if r{r} > r2 goto out"));
        }
    };
    // The program writes -1, so that the number does wrap round in some round.
    text.push(format!("*(u64 *)(r6 + {}) = -1", 16 + c.below(8)));
    load(&mut text, c, 8, true);
    let tested = !c.one_in(4);
    load(&mut text, c, 9, tested);
    text.extend(
        ["if r7 >= r8 goto out", "a:", "r4 = r10", "r4 += -8", "r4 += r7", "r0 = *(u8 *)(r4 + 0)"].map(String::from),
    );
    if !c.one_in(3) {
        text.extend(["r4 = r6", "r4 += r7", "r0 = *(u8 *)(r4 + 0)"].map(String::from));
    }
    text.extend(
        ["r4 = r6", "r4 += r3", "r5 = *(u64 *)(r4 + 8)", "r4 = r5", "r5 += 1", "if r5 == 0 goto other"]
            .map(String::from),
    );
    text.push(format!("if r0 <= {} goto next", c.pick(&[50, 120, 200])));
    text.push(format!("r7 += {}", c.pick(&[1, 1, 2])));
    text.extend([format!("if r7 > {most} goto out"), "if r7 >= r8 goto out".into()]);
    if c.one_in(4) {
        text.push("r8 -= 1".into());
        text.push("if r7 >= r8 goto out".into());
    }
    let round = ["r3 += 1", "if r3 < 16 goto a", "goto out"].map(String::from);
    text.push("next:".into());
    text.extend(round.clone());
    text.push("other:".into());
    let mut known = false;
    // The old end, the end and the index get other numbers, mostly in this order.
    for usual in [0, 2, 3, 4, 8] {
        match if c.one_in(5) { c.below(9) } else { usual } {
            0 | 1 => text.push("r9 = r8".into()),
            2 => text.push(format!("if r{} > {} goto out", c.pick(&[8, 9, 9]), most + 1)),
            3 => load(&mut text, c, 8, true),
            4 => load(&mut text, c, 7, false),
            5 => text.push("r8 = r9".into()),
            6 => text.push(format!("r7 += {}", c.pick(&[1, 4]))),
            7 => {
                known = true;
                text.push(format!("if r7 > {} goto out", c.pick(&["r3", "r9", "r8"])));
            }
            _ => {}
        }
    }
    if !known || !c.one_in(4) {
        text.push("if r7 > r3 goto out".into());
    }
    if !c.one_in(6) {
        text.push("if r7 >= r8 goto out".into());
    }
    text.extend(round);
    text.extend(["out: r0 = r9", "r0 = 0", "exit"].map(String::from));
    let text = text.join("\n");
    let insns = assemble(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    Program::new(insns).ok()
}

/// Makes a program in which an index and its end get other numbers in a round from which no candidate is made, beside
/// the old end: facts about the old numbers would keep the index on the stack. The data of such a round is written
/// beforehand, so that most runs reach it, and the next one.
pub(crate) fn generate_renamed(c: &mut Choices<'_>) -> Option<Program> {
    // r6: the buffer, r3: the index, r5: its end, r9: the former end, r8: the rounds.
    let most = c.pick(&[4, 7, 10, 13]);
    let round = 18 + c.below(14);
    let index = c.pick(&[1, most, 16, 17, round - 1, round]).min(round);
    let end = index + 1 + c.below(30);
    let first = 1 + c.below(most + 1);
    let old_on_stack = c.one_in(3);
    let mut text: Vec<String> = Vec::new();
    let mut add = |lines: &str| text.extend(lines.lines().map(String::from));
    add("r0 = 0\nr9 = 0\nif r2 < 64 goto out\n*(u64 *)(r1 + 0) = 0");
    add(&format!("*(u64 *)(r1 + {}) = -1", 16 + round));
    add(&format!("*(u8 *)(r1 + 8) = {first}\n*(u8 *)(r1 + 24) = {end}\n*(u8 *)(r1 + 25) = {index}"));
    add("r6 = r1\nr8 = 0\nr3 = 0\n*(u64 *)(r10 - 8) = r8\n*(u64 *)(r10 - 16) = r8");
    add("r5 = *(u8 *)(r1 + 8)\nif r5 > r2 goto out\nr9 = *(u8 *)(r1 + 9)");
    if !c.one_in(4) {
        add("if r9 > r2 goto out");
    }
    if old_on_stack {
        add("*(u64 *)(r10 - 24) = r9");
    }
    add("if r3 >= r5 goto out\na:");
    if !c.one_in(4) {
        add("r4 = r6\nr4 += r3\nr0 = *(u8 *)(r4 + 0)");
    } else {
        add("r4 = r6\nr4 += r8\nr0 = *(u8 *)(r4 + 0)");
    }
    add("r4 = r10\nr4 += -16\nr4 += r3");
    add(c.pick(&["r7 = *(u8 *)(r4 + 0)", "r7 = *(u8 *)(r4 + 0)", "*(u8 *)(r4 + 0) = 3"]));
    add("r4 = r6\nr4 += r8\nr7 = *(u64 *)(r4 + 16)\nr4 = r7\nr7 += 1\nif r7 == 0 goto rare");
    let limit = c.pick(&[33, 40]);
    let next = format!("r8 += 1\nif r8 < {limit} goto a\ngoto out");
    add(&format!("if r0 > {} goto move", c.pick(&[50, 120])));
    add(&next);
    add(&format!("move: r3 += 1\nif r3 > {most} goto out\nif r3 >= r5 goto out"));
    if c.one_in(6) {
        add("r5 -= 1\nif r3 >= r5 goto out");
    }
    add(&next);
    add("rare:");
    let old = if old_on_stack { "*(u64 *)(r10 - 24) = r5" } else { "r9 = r5" };
    let known = format!("if {} > {} goto out", if old_on_stack { "r5" } else { "r9" }, most + 1);
    let (of_end, of_index) =
        ("r5 = *(u8 *)(r6 + 24)\nif r5 > r2 goto out", "r3 = *(u8 *)(r6 + 25)\nif r3 > r8 goto out");
    let mut lines = vec![old, &known, of_end, of_index];
    if c.one_in(5) {
        lines.remove(c.below(4) as usize);
    }
    if c.one_in(5) {
        let at = c.below(lines.len() as u32 - 1) as usize;
        lines.swap(at, at + 1);
    }
    lines.into_iter().for_each(&mut add);
    if !c.one_in(6) {
        add("if r3 >= r5 goto out");
    }
    add(&next);
    add("out: r0 = r9");
    if old_on_stack {
        add("r0 = 0");
    }
    add("exit");
    let text = text.join("\n");
    let insns = assemble(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    Program::new(insns).ok()
}
