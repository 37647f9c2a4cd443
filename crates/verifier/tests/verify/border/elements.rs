//! Programs that keep indices in an array on the stack: loops and single stores write it, by an index, through a
//! pointer that a function got, across elements or beside them; what is loaded from it is where the next access goes.
//!
//! Masks are mostly as wide as the array is long, at times wider; now and then an element is skipped, or one path
//! writes what the other does not.

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
    calls: bool,
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

    /// Some number in r3.
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

    /// The address of some element in r5.
    fn element(&mut self) {
        self.number(40);
        let by = self.stride.trailing_zeros();
        let by = if self.c.one_in(12) { by.saturating_sub(1) } else { by };
        self.line(&format!("r3 <<= {by}"));
        self.line("r5 = r10");
        self.line(&format!("r5 += -{}", self.below));
        self.line("r5 += r3");
    }

    fn statement(&mut self) {
        match self.c.below(12) {
            0..4 => {
                self.element();
                self.number(16);
                let (size, off) = match self.c.below(16) {
                    0 => (self.c.pick(&[1, 2, 4, 8]), 0),
                    1 => (self.size, self.c.below(self.stride)),
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
            // Where it is an index, into the array itself.
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
                self.calls = true;
                self.line("r1 = r10");
                let at = self.below - self.stride * self.c.below(8);
                self.line(&format!("r1 += -{at}"));
                self.number(8);
                self.line("r2 = r3");
                self.line("call writes");
            }
        }
    }

    fn rounds(&mut self) {
        let (label, rounds) = (self.label(), self.c.pick(&[8, 8, 8, 6, 20]));
        self.line("r6 = 0");
        self.line(&format!("{label}:"));
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
    let mut g = Gen { c, text: String::new(), labels: 0, size, stride, below: 8 * stride, calls: false };
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
    if g.calls {
        let ty = g.ty(size);
        g.line(&format!("writes: *({ty} *)(r1 + 0) = r2"));
        g.line("r0 = 0");
        g.line("exit");
    }
    let insns = assemble(&g.text).unwrap_or_else(|e| panic!("{e}\n{}", g.text));
    Program::new(insns).ok()
}
