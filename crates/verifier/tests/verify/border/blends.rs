//! Loops with many branches, most of which affect no access, beside values some of which do. Walks of such loops blend
//! states where paths meet (see `walk::loops`), and must not blend values that an access needs.
//!
//! An index goes over the buffer, tested or not. Up to a dozen branches, on bytes of it, change numbers: a score, a
//! minimum, the step of the index, an offset that is calculated from many of them, a slot of the stack of any size,
//! whether a slot is written at all, where a pointer points, or how a copy of the index is tied to it. Then some of
//! these are used as an offset into the buffer or the stack, with a test that is enough, one that is not, or none. The
//! branches are in the loop, in a loop inside, in a function, or in a callback. Mistakes are tests that let one through
//! too many, and steps that are left out on some path.

use bpf_isa::{Program, assemble};
use bpf_testkit::generate::Choices;

/// Bytes of the array. Registers of a program: r6 is the buffer, r7 the index, r8 the length, r9 the score, r3 an
/// offset or a step, r5 a copy of the index or a pointer. The stack: -8 the score's slot (or parts of it), -16 the
/// index, -24 the step or a pointer, -32 a slot that may be unwritten, -64..-32 the array.
const ARRAY: u32 = 32;

struct Gen<'c, 'b> {
    c: &'c mut Choices<'b>,
    text: Vec<String>,
    label: u32,
    /// Whether r5 is a copy of the index, or a pointer to the buffer at the index.
    copied: bool,
    pointer: bool,
    /// The most that r3 can be.
    most: u32,
}

impl Gen<'_, '_> {
    fn line(&mut self, s: impl Into<String>) {
        self.text.push(s.into());
    }

    fn label(&mut self) -> u32 {
        self.label += 1;
        self.label
    }

    /// Loads a number to branch on into r0, at the index or at a constant offset.
    fn byte(&mut self, at_index: bool) {
        if at_index && self.c.one_in(2) {
            self.line("r4 = r6");
            self.line("r4 += r7");
            self.line("r0 = *(u8 *)(r4 + 0)");
        } else {
            let size = self.c.pick(&["u8", "u8", "u8", "s8", "u16"]);
            let at = self.c.below(31);
            self.line(format!("r0 = *({size} *)(r6 + {at})"));
        }
    }

    fn condition(&mut self) -> String {
        let cond = self.c.pick(&[">", ">", "<", "==", "!=", "&", "s>", "<=", "s<"]);
        let width = self.c.pick(&["r", "r", "r", "w"]);
        format!("if {width}0 {cond} {}", self.c.pick(&[0, 1, 7, 32, 64, 127, 200]))
    }

    /// Returns an operand for a slot or a part of one, and its depth below r10.
    fn slot(&mut self) -> (String, u32) {
        let size = self.c.pick(&[1u32, 1, 2, 4, 8]);
        let depth = self.c.pick(&[8u32, 8, 7, 6, 4, 2, 1]).max(size).next_multiple_of(size);
        (format!("*(u{} *)(r10 - {depth})", 8 * size), depth)
    }

    /// A branch with an effect on one side.
    fn diamond(&mut self, at_index: bool, in_sub: bool) {
        self.byte(at_index);
        let (l, cond) = (self.label(), self.condition());
        let both = self.c.one_in(3);
        self.line(format!("{cond} goto b{l}"));
        self.effect(in_sub);
        if both {
            self.line(format!("goto e{l}"));
        }
        self.line(format!("b{l}:"));
        if both {
            self.effect(in_sub);
            self.line(format!("e{l}:"));
        }
    }

    fn effect(&mut self, in_sub: bool) {
        let kind = if in_sub { self.c.below(3) } else { self.c.below(16) };
        match kind {
            0 | 1 => {
                let n = self.c.pick(&[1, 2, 3, 10, 16, 255, 1000]);
                let op = self.c.pick(&["r9 +=", "r9 +=", "r9 +=", "r9 =", "r9 -=", "w9 +=", "r9 |=", "r9 ^="]);
                self.line(format!("{op} {n}"));
            }
            2 => {
                let l = self.label();
                self.line(format!("if r9 <= r0 goto m{l}"));
                self.line("r9 = r0");
                self.line(format!("m{l}:"));
            }
            3..=5 => {
                let by = self.c.pick(&[1u32, 1, 2, 3]);
                self.most += by;
                self.line(format!("r3 += {by}"));
            }
            6 | 7 => {
                let (slot, _) = self.slot();
                let what = self.c.pick(&["r9", "r0", "r3", "3", "0", "-1", "17"]);
                self.line(format!("{slot} = {what}"));
            }
            8 => {
                let (slot, _) = self.slot();
                let to = self.c.pick(&["r9", "r9", "r3"]);
                let slot = if self.c.one_in(4) && !slot.contains("u64") { slot.replace("(u", "(s") } else { slot };
                self.most = if to == "r3" { 1 << 30 } else { self.most };
                self.line(format!("{to} = {slot}"));
            }
            9 => self.line("*(u8 *)(r10 - 32) = 5"),
            10 if self.copied => {
                let by = self.c.pick(&["r5 = r7", "r5 = r7", "r5 += 1", "r5 -= 1", "r5 = 0", "r5 = r3"]);
                self.line(by);
            }
            10 | 11 if self.pointer => {
                let by =
                    self.c.pick(&["r5 = r6", "r5 += 1", "r5 = r6\nr5 += r7", "r5 = r6\nr5 += 8", "r5 = r6\nr5 += r3"]);
                self.line(by);
            }
            11 => {
                let size = self.c.pick(&["u64", "u64", "u32", "u16", "u8"]);
                let what = self.c.pick(&["r7", "r7", "r3", "0", "8"]);
                self.line(format!("*({size} *)(r10 - 16) = {what}"));
            }
            12 => {
                let at = self.c.below(ARRAY);
                let what = self.c.pick(&["r3", "r9", "r0", "7"]);
                self.line(format!("*(u8 *)(r10 - {}) = {what}", 33 + at));
            }
            13 => {
                let s = self.c.pick(&["r3 = 1", "r3 = 2", "r3 = 0", "r3 &= 7"]);
                self.line(s);
            }
            14 if self.c.one_in(8) => {
                let s = self.c.pick(&["r7 += 1", "r7 = 0", "r7 -= 1", "r7 += r3", "r8 -= 1"]);
                self.line(s);
            }
            _ => self.line("r9 += 1"),
        }
    }

    /// A use of one of the values.
    fn access(&mut self) {
        let l = self.label();
        // Copies the used number to r4.
        let (what, bound) = match self.c.below(8) {
            0 | 1 => ("r4 = r3", self.most),
            2 => ("r4 = r9", 1 << 30),
            3 => (
                self.c.pick(&[
                    "r4 = *(u64 *)(r10 - 16)",
                    "r4 = *(u32 *)(r10 - 16)",
                    "r4 = *(u8 *)(r10 - 16)",
                    "r4 = *(u16 *)(r10 - 16)",
                ]),
                1 << 30,
            ),
            4 => (
                self.c.pick(&[
                    "r4 = *(u8 *)(r10 - 8)",
                    "r4 = *(u16 *)(r10 - 8)",
                    "r4 = *(u8 *)(r10 - 7)",
                    "r4 = *(s8 *)(r10 - 8)",
                    "r4 = *(u32 *)(r10 - 4)",
                ]),
                1 << 30,
            ),
            5 if self.copied => ("r4 = r5", 1 << 30),
            5 | 6 if self.pointer => {
                // Compares the pointer itself with the end.
                self.line("r4 = r6");
                self.line("r4 += r8");
                self.line("r1 = r5");
                let n = self.c.pick(&[1, 1, 1, 2, 0]);
                self.line(format!("r1 += {n}"));
                self.line(format!("if r1 > r4 goto u{l}"));
                if self.c.one_in(2) {
                    self.line(format!("if r5 < r6 goto u{l}"));
                }
                self.line("r0 = *(u8 *)(r5 + 0)");
                self.line(format!("u{l}:"));
                return;
            }
            6 => {
                let read = self.c.pick(&[
                    "r9 = *(u8 *)(r10 - 64)",
                    "r9 = *(u8 *)(r10 - 33)",
                    "r9 = *(u8 *)(r10 - 32)",
                    "r9 = *(u8 *)(r10 - 40)",
                    "r9 = *(u64 *)(r10 - 40)",
                ]);
                self.line(read);
                return;
            }
            _ => ("r4 = r7", 1 << 30),
        };
        self.line(what);
        let width = self.c.pick(&["r", "r", "r", "w"]);
        let on_stack = self.c.one_in(2);
        let memory = ARRAY;
        let off = self.c.pick(&[0u32, 0, 0, 1, 4]);
        let (size, ty) = self.c.pick(&[(1u32, "u8"), (1, "u8"), (4, "u32"), (8, "u64")]);
        match self.c.below(6) {
            0 | 1 if bound < memory && off + size + bound <= memory + 1 => {}
            0 | 1 => {
                let near = (memory - off - size).wrapping_add(self.c.pick(&[0, 0, 0, 1, u32::MAX]));
                let cond = self.c.pick(&[">", ">", ">", ">=", "s>"]);
                self.line(format!("if {width}4 {cond} {near} goto u{l}"));
            }
            2 => {
                let s = format!("{width}4 &= {}", self.c.pick(&[7, 15, 31]));
                self.line(s);
            }
            3 if !on_stack => {
                self.line("r1 = r4");
                let by = (off + size).wrapping_add(self.c.pick(&[0, 0, 0, u32::MAX]));
                self.line(format!("r1 += {by}"));
                self.line(format!("if r1 > r8 goto u{l}"));
                if self.c.one_in(2) {
                    self.line(format!("if r4 > r8 goto u{l}"));
                }
            }
            4 => {
                let s = format!("if r4 >= {} goto u{l}", self.c.pick(&["r7", "r8", "25", "24", "r3"]));
                self.line(s);
            }
            _ => self.line(format!("if r4 > 23 goto u{l}")),
        }
        self.line(if on_stack { format!("r1 = r10\nr1 += -{}", 32 + ARRAY) } else { "r1 = r6".into() });
        self.line("r1 += r4");
        if self.c.one_in(3) {
            let s = format!("*({ty} *)(r1 + {off}) = {}", self.c.pick(&["r9", "7", "r3", "r7"]));
            self.line(s);
        } else {
            let s = format!("r{} = *({ty} *)(r1 + {off})", self.c.pick(&[0, 9, 9, 3]));
            self.line(s);
        }
        self.line(format!("u{l}:"));
        self.most = 1 << 30;
    }

    fn diamonds(&mut self, n: u32, at_index: bool, in_sub: bool) {
        for _ in 0..n {
            self.diamond(at_index, in_sub);
        }
    }
}

/// Makes a program.
pub(crate) fn generate(c: &mut Choices<'_>) -> Option<Program> {
    let (copied, pointer) = c.pick(&[(true, false), (false, true), (false, false)]);
    let mut g = Gen { c, text: Vec::new(), label: 0, copied, pointer, most: 0 };
    g.line("r6 = r1");
    g.line("r8 = r2");
    let begin = g.c.pick(&["0", "0", "0", "1", "4"]);
    g.line(format!("r7 = {begin}"));
    g.line("r9 = 0");
    g.line("r3 = 0");
    g.line(if pointer { "r5 = r6" } else { "r5 = r7" });
    for depth in [8, 16, 24] {
        let what = g.c.pick(&["0", "0", "7", "r7", "-1", "r2"]);
        g.line(format!("*(u64 *)(r10 - {depth}) = {what}"));
    }
    for depth in (40..=32 + ARRAY).step_by(8) {
        if !g.c.one_in(24) {
            let s = format!("*(u64 *)(r10 - {depth}) = {}", g.c.pick(&[0, 0, 3]));
            g.line(s);
        }
    }
    let many = 4 + g.c.below(5);
    let place = g.c.below(8);
    let width = g.c.pick(&[1u32, 1, 2, 4, 8]);
    let tested = !g.c.one_in(16);
    // The numbers of a function or a callback.
    let sub = place == 0;
    let callback = place == 1;
    let inner = place == 2 || place == 3;
    g.line("a:");
    match (tested, g.c.below(4)) {
        (true, 0 | 1) => {
            g.line("r4 = r7");
            g.line(format!("r4 += {width}"));
            g.line("if r4 > r8 goto out");
        }
        (true, 2) => {
            g.line("if r7 >= r8 goto out");
        }
        (true, _) => {
            g.line("r4 = r6");
            g.line("r4 += r7");
            g.line(format!("r4 += {width}"));
            g.line("r1 = r6\nr1 += r8");
            g.line("if r4 > r1 goto out");
        }
        _ => {}
    }
    if g.c.one_in(2) {
        g.line("r3 = 0");
        g.most = 0;
    } else {
        g.most = 1 << 30;
    }
    if g.c.one_in(3) && copied {
        g.line("r5 = r7");
    }
    if sub || callback {
        // The call clobbers r1 to r5.
        let mix = 1 + g.c.below(4);
        g.diamonds(mix, tested, false);
        if sub {
            g.line("r1 = r6\nr2 = r9\nr3 = r10\nr3 += -64\ncall f\nr9 = r0");
        } else {
            let rounds = g.c.pick(&["1", "2", "5", "r9"]);
            g.line("*(u64 *)(r10 - 72) = r6");
            g.line(format!("r1 = {rounds}\nr2 = subprog[f]\nr3 = r10\nr3 += -72\nr4 = 0\ncall 181\nr9 = r0"));
        }
        g.line(if pointer { "r5 = r6" } else { "r5 = r7" });
        g.line("r3 = r9");
        g.most = 1 << 30;
    } else if inner {
        let (count, most) = (g.c.pick(&["r3", "r9"]), g.c.pick(&[3, 8, 30]));
        g.line(format!("{count} = 0"));
        g.line("i:");
        let n = many / 2 + 2;
        g.diamonds(n, tested, false);
        if g.c.one_in(2) {
            g.access();
        }
        g.line(format!("{count} += 1"));
        g.line(format!("if {count} < {most} goto i"));
        g.diamonds(2, tested, false);
    } else {
        g.diamonds(many, tested, false);
    }
    for _ in 0..1 + g.c.below(3) {
        g.access();
    }
    if g.c.one_in(2) {
        g.diamonds(2, tested, false);
        g.access();
    }
    // The step to the next round.
    let step = match g.c.below(12) {
        0 => "r7 += r3",
        1 => "r3 &= 3\nr3 += 1\nr7 += r3",
        2 => "r7 = *(u64 *)(r10 - 16)\nr7 += 1",
        3 if copied => "r7 = r5\nr7 += 1",
        4 => "r7 += 4",
        5 => "r7 += 2",
        6 => "if r3 == 0 goto s\nr7 += 1\ns:",
        7 if g.c.one_in(3) => "r8 -= 1",
        _ => "r7 += 1",
    };
    g.line(step);
    let back = g.c.pick(&[
        "goto a",
        "goto a",
        "if r7 < r8 goto a",
        "if r7 != r8 goto a",
        "if r7 < 40 goto a",
        "if r9 < 100 goto a",
    ]);
    g.line(back);
    if g.c.one_in(2) {
        g.access();
    }
    g.line("out:");
    if g.c.one_in(3) {
        g.access();
    }
    g.line("r0 = 0\nexit");
    if sub {
        // f(buffer, score, array): another score.
        g.line("f:\nr6 = r1\nr9 = r2\nr7 = r3");
        g.diamonds(many, false, true);
        if g.c.one_in(2) {
            g.line("r9 &= 15\nr7 += r9\nr0 = *(u8 *)(r7 + 0)\nr9 = r0");
        }
        g.line("r0 = r9\nexit");
    }
    if callback {
        g.line("f:\nr6 = *(u64 *)(r2 + 0)\nr9 = r1\nr7 = r2");
        g.diamonds(many, false, true);
        if g.c.one_in(2) {
            g.line("if r9 > 32 goto z\nr7 += r9\nr0 = *(u8 *)(r7 + 8)\n*(u8 *)(r7 + 8) = r0\nz:");
        }
        g.line("r0 = 0\nif r9 < 7 goto y\nr0 = 1\ny:\nexit");
    }
    let text = g.text.join("\n");
    let insns = assemble(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    Program::new(insns).ok()
}
