//! Programs that keep indices in an array on the stack: loops and single stores write it, by an index, through a
//! pointer passed to a function, across elements or beside them; a loaded element is the index of the next access.
//!
//! Most masks match the length of the array, some are wider; now and then an element is skipped, or only one of two
//! paths writes it. Other writers of an array occur, too: atomics, a function of the host, a callback, a loop in
//! another function, stores of other sizes, pointers that are kept in it for a while.

use std::fmt::Write;

use bpf_isa::{Program, assemble};
use bpf_testkit::generate::Choices;

struct Gen<'c, 'b> {
    c: &'c mut Choices<'b>,
    text: String,
    labels: u32,
    /// Bytes of an element, from one to the next, and where the array begins below r10.
    size: u32,
    stride: u32,
    below: u32,
    /// Whether each of the functions is called.
    writes: bool,
    loops: bool,
    callback: bool,
}

impl Gen<'_, '_> {
    fn line(&mut self, s: &str) {
        writeln!(self.text, "{s}").expect("a string");
    }

    fn label(&mut self) -> String {
        self.labels += 1;
        format!("s{}", self.labels)
    }

    fn ty(&self, size: u32) -> &'static str {
        match size {
            1 => "u8",
            2 => "u16",
            4 => "u32",
            _ => "u64",
        }
    }

    /// Loads a number into r3.
    fn number(&mut self, wide: u32) {
        match self.c.below(6) {
            0 => self.line("r3 = r6"),
            1 => self.line("r3 = r7"),
            2 => {
                self.line("r3 = r7");
                let by = self.c.pick(&["+= 1", "+= -1", ">>= 1"]);
                self.line(&format!("r3 {by}"));
            }
            _ => {
                let at = self.c.below(32);
                self.line(&format!("r3 = *(u8 *)(r9 + {at})"));
            }
        }
        if !self.c.one_in(6) {
            let mask = if self.c.one_in(wide) { 15 } else { 7 };
            self.line(&format!("r3 &= {mask}"));
        }
    }

    /// Computes the address of an element in r5.
    fn element(&mut self) {
        self.number(40);
        let by = self.stride.trailing_zeros();
        let by = if self.c.one_in(8) { by.saturating_sub(1) } else { by };
        self.line(&format!("r3 <<= {by}"));
        self.line("r5 = r10");
        self.line(&format!("r5 += -{}", self.below));
        self.line("r5 += r3");
    }

    fn statement(&mut self) {
        // Mostly stores and loads by index.
        let kind = match self.c.below(29) {
            n if n < 24 => n / 2,
            n => n - 12,
        };
        match kind {
            12 => self.atomic(),
            13 => self.written(),
            14 => self.elsewhere(),
            15 => self.kept_pointer(),
            16 => self.compared(),
            0..4 => {
                self.element();
                self.number(16);
                let (size, off) = match self.c.below(16) {
                    0 => (self.c.pick(&[1, 2, 4, 8]), 0),
                    1 | 2 => (self.size, self.c.below(self.stride)),
                    _ => (self.size, 0),
                };
                let ty = self.ty(size);
                self.line(&format!("*({ty} *)(r5 + {off}) = r3"));
            }
            4..7 => {
                self.element();
                let ty = self.ty(self.size);
                self.line(&format!("r7 = *({ty} *)(r5 + 0)"));
            }
            // Uses the loaded number as an index into the array itself.
            7 | 8 => {
                let less = self.c.pick(&[8, 8, 8, 8, 7, 16]);
                self.line("r5 = r10");
                self.line(&format!("r5 += -{less}"));
                self.line("r5 += r7");
                self.line("*(u8 *)(r5 + 0) = 1");
            }
            9 => {
                let size = if self.c.one_in(3) { self.c.pick(&[1, 2, 4, 8]) } else { self.size };
                let at = self.below - self.stride * self.c.below(8);
                let at = at.max(size);
                let (ty, value) = (self.ty(size), self.c.pick(&[0, 3, 7, 7, 9, 0x0101]));
                self.line(&format!("*({ty} *)(r10 - {at}) = {value}"));
            }
            10 => {
                let (at, bit, label) = (self.c.below(32), self.c.pick(&[1, 2, 4]), self.label());
                self.line(&format!("r5 = *(u8 *)(r9 + {at})"));
                self.line(&format!("if r5 & {bit} goto {label}"));
                self.statement();
                self.line(&format!("{label}:"));
            }
            _ => {
                self.writes = true;
                self.line("r1 = r10");
                let at = self.below - self.stride * self.c.below(8);
                self.line(&format!("r1 += -{at}"));
                self.number(8);
                self.line("r2 = r3");
                self.line("call writes");
            }
        }
    }

    /// The address of an element in r1, known or not.
    fn some_element(&mut self) {
        if self.c.one_in(2) {
            self.element();
            self.line("r1 = r5");
            return;
        }
        let at = self.below - self.stride * self.c.below(8);
        self.line("r1 = r10");
        self.line(&format!("r1 += -{at}"));
    }

    fn atomic(&mut self) {
        let long = self.size == 8 || self.c.one_in(4);
        let (ty, w, suffix) = if long { ("u64", "r3", "_64") } else { ("u32", "w3", "32_32") };
        self.some_element();
        self.number(8);
        let s = match self.c.below(4) {
            0 => format!("lock *({ty} *)(r1 + 0) += {w}"),
            1 => format!("lock *({ty} *)(r1 + 0) |= {w}"),
            2 => format!("{w} = atomic_fetch_add(({ty} *)(r1 + 0), {w})\nr7 = r3"),
            _ => format!("{w} = xchg{suffix}(r1 + 0, {w})\nr7 = r3"),
        };
        self.line(&s);
    }

    /// A function of the host writes one element, a part of it, more than one, or a number of bytes.
    fn written(&mut self) {
        self.some_element();
        match self.c.below(4) {
            0 => {
                self.line("r2 = r7");
                self.line("r2 &= 7");
            }
            1 => self.line("r2 = 1"),
            _ => {
                let size = self.size;
                self.line(&format!("r2 = {size}"));
            }
        }
        self.line("call 182");
    }

    /// Another function, or a callback, writes in a loop of its own.
    fn elsewhere(&mut self) {
        if self.c.one_in(2) {
            self.loops = true;
            let below = self.below;
            for line in ["r1 = r10", &format!("r1 += -{below}"), "r2 = r7"] {
                self.line(line);
            }
            self.line("call loops");
            if self.c.one_in(2) {
                self.line("r7 = r0");
            }
            return;
        }
        self.callback = true;
        let (rounds, below) = (self.c.pick(&[0, 1, 8, 8, 20]), self.below);
        let lines =
            [format!("r1 = {rounds}"), "r2 = subprog[writer]".into(), "r3 = r10".into(), format!("r3 += -{below}")];
        for line in lines {
            self.line(&line);
        }
        self.line("r4 = 0");
        self.line("call 181");
    }

    /// A pointer is kept in the array, and a number behind it or in its place, or not.
    fn kept_pointer(&mut self) {
        let at = (self.below - self.stride * self.c.below(8)).next_multiple_of(8);
        self.line(&format!("*(u64 *)(r10 - {at}) = r9"));
        match self.c.below(4) {
            0 => self.line(&format!("*(u64 *)(r10 - {at}) = r7")),
            1 => self.line(&format!("*(u32 *)(r10 - {at}) = 1")),
            2 => self.line(&format!("*(u64 *)(r10 - {at}) = 3")),
            _ => {}
        }
    }

    /// Compares the loaded number, so that other numbers with its name are bounded, too.
    fn compared(&mut self) {
        let (label, by) = (self.label(), self.c.pick(&["> 7", ">= 8", "s> 7", "s< 0", "> 15"]));
        let width = if self.c.one_in(2) { "w7" } else { "r7" };
        self.line(&format!("if {width} {by} goto {label}"));
        self.statement();
        self.line(&format!("{label}:"));
    }

    fn rounds(&mut self) {
        let (label, rounds) = (self.label(), self.c.pick(&[8, 8, 8, 6, 20]));
        self.line("r6 = 0");
        // One loop in 24 is entered in its middle.
        let middle = self.c.one_in(24).then(|| self.label());
        if let Some(middle) = &middle {
            self.line("r3 = *(u8 *)(r9 + 1)");
            self.line(&format!("if r3 & 1 goto {middle}"));
        }
        self.line(&format!("{label}:"));
        if let Some(middle) = &middle {
            self.statement();
            self.line(&format!("{middle}:"));
        }
        for _ in 0..=self.c.below(3) {
            self.statement();
        }
        self.line("r6 += 1");
        self.line(&format!("if r6 != {rounds} goto {label}"));
    }
}

/// Makes a program.
pub(crate) fn generate(c: &mut Choices<'_>) -> Option<Program> {
    let size = c.pick(&[1, 1, 2, 4, 8]);
    let stride = if c.one_in(4) { 2 * size } else { size };
    let mut g = Gen {
        c,
        text: String::new(),
        labels: 0,
        size,
        stride,
        below: 8 * stride,
        writes: false,
        loops: false,
        callback: false,
    };
    for line in ["r9 = r1", "r7 = 0", "r6 = 0"] {
        g.line(line);
    }
    for _ in 0..g.c.below(3) {
        g.statement();
    }
    for _ in 0..=g.c.below(3) {
        g.rounds();
        if g.c.one_in(2) {
            g.statement();
        }
    }
    g.element();
    let ty = g.ty(size);
    g.line(&format!("r7 = *({ty} *)(r5 + 0)"));
    let less = g.c.pick(&[8, 8, 8, 7, 16]);
    for line in ["r5 = r10", &format!("r5 += -{less}"), "r5 += r7", "*(u8 *)(r5 + 0) = 1", "r0 = 0", "exit"] {
        g.line(line);
    }
    let ty = g.ty(size);
    if g.writes {
        g.line(&format!("writes: *({ty} *)(r1 + 0) = r2"));
        g.line("r0 = 0");
        g.line("exit");
    }
    let by = stride.trailing_zeros();
    if g.loops {
        // The function stores into its caller's array; a loaded element is the index of the next store.
        let (masked, rounds) = (!g.c.one_in(3), g.c.pick(&[8, 8, 8, 6, 9]));
        let stored = g.c.pick(&["r4", "r4", "r0", "r2"]);
        g.line("loops: r4 = 0\nr0 = 0\nl1: r3 = r4");
        g.line(&format!("r3 <<= {by}\nr3 += r1\nr5 = *({ty} *)(r3 + 0)\nr0 = r5"));
        if masked {
            g.line("r5 &= 7");
        }
        g.line(&format!("r5 <<= {by}\nr5 += r1\n*({ty} *)(r5 + 0) = {stored}"));
        g.line(&format!("r4 += 1\nif r4 != {rounds} goto l1\nexit"));
    }
    if g.callback {
        let mask = g.c.pick(&[7, 7, 7, 15, 3]);
        let stored = g.c.pick(&["r1", "r3", "r3"]);
        let other = if g.c.one_in(4) { g.c.pick(&[1, 2, 4, 8]) } else { size };
        let other = g.ty(other);
        g.line(&format!("writer: r3 = r1\nr3 &= {mask}\nr4 = r3\nr4 <<= {by}\nr2 += r4"));
        g.line(&format!("*({other} *)(r2 + 0) = {stored}\nr0 = 0\nexit"));
    }
    let insns = assemble(&g.text).unwrap_or_else(|e| panic!("{e}\n{}", g.text));
    Program::new(insns).ok()
}
