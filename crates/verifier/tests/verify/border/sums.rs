//! Programs whose safety hangs on a sum of two numbers that a third bounds, and on ranges compared as one difference.
//!
//! A program keeps a place and a length, tests their sum against what is left of a buffer, and reads near it; places,
//! lengths and ends move by constants, by loaded numbers and differently from path to path, and the test is left out or
//! off by one now and then. A few indices are compared as a difference that wraps, and then used.

use std::fmt::Write;

use bpf_isa::{Program, assemble};
use bpf_testkit::generate::Choices;

struct Gen<'c, 'b> {
    c: &'c mut Choices<'b>,
    text: String,
    labels: u32,
}

impl Gen<'_, '_> {
    fn line(&mut self, s: &str) {
        writeln!(self.text, "{s}").expect("a string");
    }
    fn picked(&mut self, of: &[&str]) {
        let s = self.c.pick(of);
        self.line(s);
    }
    fn label(&mut self) -> String {
        self.labels += 1;
        format!("s{}", self.labels)
    }

    /// Loads a number of the buffer, bounded by a mask.
    fn loaded(&mut self, r: &str, masks: &[u32]) {
        let (off, mask) = (self.c.below(16), self.c.pick(masks));
        self.line(&format!("{r} = *(u8 *)(r9 + {off})"));
        self.line(&format!("{r} &= {mask}"));
    }

    /// `if at + n + d > rest goto out`, in one of its forms; the sum is left in r0.
    fn test(&mut self, out: &str) {
        let slack = self.c.pick(&[0, 0, 0, 0, 1, -1]);
        self.line("r0 = r2");
        self.line("r0 += r3");
        if slack != 0 {
            self.line(&format!("r0 += {slack}"));
        }
        let cond = self.c.pick(&[">", ">", ">", ">="]);
        self.line(&format!("if r0 {cond} r4 goto {out}"));
    }

    /// A byte near the place, the sum, or another place between the two.
    fn read(&mut self) {
        let off = self.c.pick(&[0i32, 0, 0, -1, -1, 1]);
        self.line("r1 = r9");
        self.line("r1 += r2");
        match self.c.below(4) {
            0 => {}
            1 => self.line("r1 += r3"),
            2 => {
                // A loop backwards over the length.
                let (head, out) = (self.label(), self.label());
                self.line("r5 = r3");
                self.line(&format!("{head}:"));
                self.line(&format!("if r5 == 0 goto {out}"));
                self.line("r1 = r9");
                self.line("r1 += r2");
                self.line("r1 += r5");
                self.line(&format!("r0 = *(u8 *)(r1 {off:+})"));
                self.line("r5 += -1");
                self.line(&format!("goto {head}"));
                self.line(&format!("{out}:"));
                return;
            }
            _ => {
                // A loop forwards over the length.
                let (head, out) = (self.label(), self.label());
                let stay = self.c.pick(&["<", "<", "!=", "<="]);
                self.line("r5 = 0");
                self.line(&format!("if r3 == 0 goto {out}"));
                self.line(&format!("{head}:"));
                self.line("r1 = r9");
                self.line("r1 += r2");
                self.line("r1 += r5");
                self.line(&format!("r0 = *(u8 *)(r1 {off:+})"));
                self.line("r5 += 1");
                self.line(&format!("if r5 {stay} r3 goto {head}"));
                self.line(&format!("{out}:"));
                return;
            }
        }
        self.line(&format!("r0 = *(u8 *)(r1 {off:+})"));
    }

    /// Moves the place or one of its bounds.
    fn moves(&mut self) {
        match self.c.below(10) {
            0..=1 => {
                let step = self.c.pick(&[1, 1, 2, 4]);
                self.line(&format!("r2 += {step}"));
            }
            2..=3 => {
                self.loaded("r0", &[1, 3, 7]);
                self.line("r0 += 1");
                self.line("r2 += r0");
            }
            4 => self.line("r2 += r3"),
            5 => {
                let (skip, step) = (self.label(), self.c.pick(&[1, 3]));
                self.loaded("r0", &[7]);
                self.line(&format!("if r0 > 3 goto {skip}"));
                self.line(&format!("r2 += {step}"));
                self.line(&format!("{skip}:"));
                self.line("r2 += 1");
            }
            // The place grows as the length shrinks, so the sum is invariant.
            6 => {
                let skip = self.label();
                self.line(&format!("if r3 == 0 goto {skip}"));
                self.line("r2 += 1");
                self.line("r3 += -1");
                self.line(&format!("{skip}:"));
            }
            7 => {
                let r = self.c.pick(&["r3", "r4"]);
                let step = self.c.pick(&[1, 2, -1]);
                self.line(&format!("{r} += {step}"));
                self.line("r2 += 1");
            }
            8 => {
                self.loaded("r3", &[3, 7, 15]);
                self.line("r2 += 1");
            }
            _ => {
                self.line("r2 += r3");
                self.line("r2 += 1");
            }
        }
    }

    fn search(&mut self) {
        let (head, body, out) = (self.label(), self.label(), self.label());
        match self.c.below(3) {
            0 => self.loaded("r2", &[3, 15]),
            _ => self.line("r2 = 0"),
        }
        self.loaded("r3", &[3, 7, 15]);
        if self.c.one_in(2) {
            self.line("r3 += 1");
        }
        match self.c.below(4) {
            0 => self.line("r4 = 32"),
            1 => {
                self.line("r4 = r8");
                self.line("r4 -= r3");
            }
            2 => {
                self.line("r4 = r3");
                self.line("r4 ^= -1");
                self.line("r4 += r8");
            }
            _ => self.line("r4 = r8"),
        }
        let top = self.c.one_in(2);
        if !top && !self.c.one_in(8) {
            self.test(&out);
        }
        self.line(&format!("{head}:"));
        if top {
            self.test(&out);
        }
        for _ in 0..1 + self.c.below(2) {
            self.read();
        }
        self.moves();
        if top {
            self.line(&format!("goto {head}"));
        } else {
            self.test(&out);
            self.line(&format!("goto {head}"));
        }
        self.line(&format!("{body}:"));
        self.line(&format!("{out}:"));
    }

    /// An index into the stack's array whose range is tested by a difference that wraps.
    fn range(&mut self) {
        let (head, out) = (self.label(), self.label());
        let step = self.c.pick(&[1, 2, 4]);
        let by = self.c.pick(&[63i64, 62, 64, 60]);
        let apart = by + self.c.pick(&[0i64, 1, 2, 3, -1]);
        match self.c.below(3) {
            0 => self.loaded("r6", &[63, 127]),
            1 => self.line("r6 = 1"),
            _ => self.line("r6 = 0"),
        }
        let looped = self.c.one_in(2);
        if looped {
            self.line(&format!("{head}:"));
        }
        self.line("r7 = r6");
        let test = |g: &mut Self| {
            g.line("r7 = r6");
            g.line(&format!("r7 += {}", -by));
            let cond = g.c.pick(&["<=", "<=", "<"]);
            g.line(&format!("if r7 {cond} {} goto {out}", -apart));
        };
        let first = !looped || self.c.one_in(2);
        if first {
            test(self);
        }
        self.line("r1 = r10");
        self.line("r1 += -64");
        self.line("r1 += r6");
        if self.c.one_in(2) {
            self.line("*(u8 *)(r1 + 0) = 7");
        } else {
            self.line("r0 = *(u8 *)(r1 + 0)");
        }
        if looped {
            self.line(&format!("r6 += {step}"));
            if !first {
                test(self);
            }
            self.line(&format!("goto {head}"));
        }
        self.line(&format!("{out}:"));
    }
}

impl Gen<'_, '_> {
    /// A copy to the stack's array, as far as two numbers together leave room.
    fn room(&mut self) {
        let (head, out) = (self.label(), self.label());
        self.loaded("r6", &[31, 63]);
        self.line("r7 = 0");
        self.line(&format!("{head}:"));
        self.line("r1 = r10");
        self.line("r1 += -64");
        self.line("r1 += r6");
        self.line("r1 += r7");
        self.line("*(u8 *)(r1 + 0) = 7");
        self.line("r7 += 1");
        self.loaded("r0", &[7]);
        self.line(&format!("if r0 == 0 goto {out}"));
        self.line("r1 = r6");
        self.picked(&["r1 += r7", "r1 += r7", "r1 += r0"]);
        if self.c.one_in(4) {
            self.line("r6 += 1");
        }
        let (most, stay) = (self.c.pick(&[64, 63, 65, 32]), self.c.pick(&["<", "<", "<="]));
        self.line(&format!("if r1 {stay} {most} goto {head}"));
        self.line(&format!("{out}:"));
    }

    /// Two pointers into the buffer that move towards each other.
    fn meet(&mut self) {
        let (head, out) = (self.label(), self.label());
        let size = self.c.pick(&[1i32, 2, 4]);
        let (up, down) = (self.c.pick(&[size, size, 1]), self.c.pick(&[size, size, 1, -size]));
        let least = self.c.pick(&[size, 2 * size, 0]);
        self.line(&format!("if r8 < {least} goto {out}"));
        self.line("r2 = r8");
        self.line(&format!("r2 &= -{size}"));
        self.line("r3 = r9");
        self.line("r3 += r2");
        let last = self.c.pick(&[size, size, 2 * size]);
        self.line(&format!("r3 += -{last}"));
        self.line("r2 = r9");
        self.line(&format!("{head}:"));
        if self.c.one_in(2) {
            self.line(&format!("if r2 >= r3 goto {out}"));
        }
        let access = [("u8", 1), ("u16", 2), ("u32", 4)][size.trailing_zeros() as usize].0;
        let off = self.c.pick(&[0i32, 0, 0, 1, -1]);
        self.line(&format!("r0 = *({access} *)(r2 + 0)"));
        self.line(&format!("r0 = *({access} *)(r3 {off:+})"));
        self.line(&format!("r2 += {up}"));
        self.line(&format!("r3 += {}", -down));
        let stay = self.c.pick(&["<", "<", "<=", "!="]);
        self.line(&format!("if r2 {stay} r3 goto {head}"));
        self.line(&format!("{out}:"));
    }

    /// Numbers that are shifted up and down, with another operation in between.
    fn casts(&mut self) {
        let out = self.label();
        let size = self.c.pick(&["u8", "u32", "u64"]);
        self.line(&format!("if r8 < 16 goto {out}"));
        self.line(&format!("r6 = *({size} *)(r9 + 8)"));
        self.line("r7 = *(u8 *)(r9 + 1)");
        if self.c.one_in(2) {
            self.line("r6 += -1");
        }
        let (up, down) = (self.c.pick(&[32, 32, 30, 33, 3]), self.c.pick(&[32, 32, 32, 31, 3]));
        let sign = self.c.pick(&["", "", "s"]);
        self.line("r2 = r6");
        self.line(&format!("r2 <<= {up}"));
        match self.c.below(6) {
            0 => self.line("r3 = r2"),
            1 => self.line("r2 = r7"),
            2 => self.line("r2 += 1"),
            3 => {
                self.line("r3 = r2");
                self.line(&format!("if r7 > 9 goto {out}"));
                self.picked(&["r2 = r3", "r2 <<= 1", "r3 = r7"]);
            }
            _ => {
                self.line("r3 = r7");
                self.line("r3 <<= 32");
            }
        }
        self.line(&format!("r2 {sign}>>= {down}"));
        let most = self.c.pick(&[15, 7, 16, 3]);
        self.line(&format!("if r2 {sign}> {most} goto {out}"));
        self.line("r1 = r9");
        self.picked(&["r1 += r6", "r1 += r6", "r1 += r2"]);
        self.line("r0 = *(u8 *)(r1 + 0)");
        self.line(&format!("{out}:"));
    }
}

/// Makes a program.
pub(crate) fn generate(c: &mut Choices<'_>) -> Option<Program> {
    let mut g = Gen { c, text: String::new(), labels: 0 };
    g.line("r9 = r1");
    g.line("r8 = r2");
    for off in (8..=64).step_by(8) {
        g.line(&format!("*(u64 *)(r10 - {off}) = 0"));
    }
    for _ in 0..1 + g.c.below(2) {
        match g.c.below(8) {
            0..=1 => g.range(),
            2 => g.room(),
            3 => g.meet(),
            4 => g.casts(),
            _ => g.search(),
        }
    }
    // Every program has a loop, since relations are tracked only then.
    let last = g.label();
    g.line("r2 = 0");
    g.line(&format!("{last}: r2 += 1"));
    g.line(&format!("if r2 < 3 goto {last}"));
    g.line("r0 = 0");
    g.line("exit");
    let insns = assemble(&g.text).unwrap_or_else(|e| panic!("{e}\n{}", g.text));
    Program::new(insns).ok()
}
