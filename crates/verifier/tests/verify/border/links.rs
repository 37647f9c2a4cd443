//! Programs that keep numbers in an array on the stack which are no more than the index of their element, or than the
//! length of the buffer less a few bytes: failure tables, links back, ends that are kept for later. A loaded number is
//! subtracted from an index, or used as an offset into the buffer.
//!
//! Most stores keep to that; some are one too high, are made on one path only, lie beside the element, or write a
//! constant to an element that is known. About as many programs are refused as are accepted.

use std::fmt::Write;

use bpf_isa::{Program, assemble};
use bpf_testkit::generate::Choices;

struct Gen<'c, 'b> {
    c: &'c mut Choices<'b>,
    text: String,
    labels: u32,
    /// Bytes of an element, and whether kept numbers are below the buffer's length (or else at most their index).
    size: u32,
    lengths: bool,
    /// How many there are: few enough to walk each round, or not.
    elements: u32,
}

impl Gen<'_, '_> {
    fn line(&mut self, s: &str) {
        writeln!(self.text, "{s}").expect("a string");
    }

    fn label(&mut self) -> String {
        self.labels += 1;
        format!("l{}", self.labels)
    }

    fn ty(&self) -> &'static str {
        if self.size == 1 { "u8" } else { "u32" }
    }

    /// Computes the address of the element with this index in r5; clobbers r3.
    fn address(&mut self, index: &str) {
        let shift = self.size.trailing_zeros();
        self.line(&format!("r3 = {index}"));
        if shift > 0 {
            self.line(&format!("r3 <<= {shift}"));
        }
        self.line(&format!("r5 = r10\nr5 += -{}\nr5 += r3", self.elements * self.size));
    }

    fn byte(&mut self, r: &str) {
        let at = self.c.below(32);
        self.line(&format!("{r} = *(u8 *)(r9 + {at})"));
    }

    /// Loads a number into r7, mostly with the test that bounds it.
    fn number(&mut self) {
        if self.lengths {
            let less = self.c.pick(&[0, 1, 1, 4]);
            match self.c.below(3) {
                0 => self.line(&format!("r7 = r8\nr7 += -{less}")),
                1 => self.byte("r7"),
                _ => self.line("r7 = r6"),
            }
            if !self.c.one_in(8) {
                let (label, to) = (self.label(), self.c.pick(&["0", "0", "1", "31"]));
                self.line(&format!("if r7 < r8 goto {label}\nr7 = {to}\n{label}:"));
            }
            return;
        }
        match self.c.below(5) {
            0 => self.line("r7 = r6"),
            1 => self.byte("r7"),
            2 => self.line("r7 = r6\nr7 >>= 1"),
            3 => self.loaded(),
            _ => {}
        }
        if self.c.one_in(4) {
            self.line("r7 += 1");
        }
        if !self.c.one_in(8) {
            let (label, to) = (self.label(), self.c.pick(&["r6", "r6", "r6", "0", "1"]));
            self.line(&format!("if r7 <= r6 goto {label}\nr7 = {to}\n{label}:"));
        }
    }

    /// Loads another element into r7: the one that r7 refers to, or the last.
    fn loaded(&mut self) {
        let label = self.label();
        let (ty, last) = (self.ty(), self.elements - 1);
        match self.c.below(3) {
            0 => {
                self.line(&format!("if r7 > {last} goto {label}"));
                self.address("r7");
            }
            1 => {
                self.line(&format!("if r7 > {last} goto {label}\nif r7 == 0 goto {label}\nr7 += -1"));
                self.address("r7");
            }
            _ => {
                self.line(&format!("if r6 == 0 goto {label}\nr4 = r6\nr4 += -1"));
                self.address("r4");
            }
        }
        self.line(&format!("r7 = *({ty} *)(r5 + 0)\n{label}:"));
    }

    /// Follows the links back until a byte of the buffer ends the loop.
    fn back(&mut self) {
        let (head, out, ty, last) = (self.label(), self.label(), self.ty(), self.elements - 1);
        self.line(&format!("{head}: if r7 == 0 goto {out}\nif r7 > {last} goto {out}"));
        self.byte("r4");
        self.line(&format!("if r4 > 99 goto {out}\nr7 += -1"));
        self.address("r7");
        self.line(&format!("r7 = *({ty} *)(r5 + 0)\ngoto {head}\n{out}:"));
    }

    fn store(&mut self) {
        let ty = self.ty();
        let skip = self.c.one_in(4).then(|| self.label());
        if let Some(skip) = &skip {
            self.byte("r4");
            self.line(&format!("if r4 & 1 goto {skip}"));
        }
        match self.c.below(12) {
            0 => {
                let at = self.size * (self.elements - self.c.below(self.elements));
                let value = self.c.pick(&[0, 0, 1, 3]);
                self.line(&format!("*({ty} *)(r10 - {at}) = {value}"));
            }
            n => {
                self.address("r6");
                let value = if n == 1 { "r6" } else { "r7" };
                let off = if self.c.one_in(24) { self.size } else { 0 };
                self.line(&format!("*({ty} *)(r5 + {off}) = {value}"));
            }
        }
        if let Some(skip) = skip {
            self.line(&format!("{skip}:"));
        }
    }

    fn rounds(&mut self) {
        let (head, from) = (self.label(), self.c.pick(&[0, 0, 1]));
        self.line(&format!("r6 = {from}\n{head}:"));
        if !self.lengths && self.c.one_in(3) {
            self.back();
        }
        self.number();
        self.store();
        if self.c.one_in(6) {
            self.store();
        }
        self.line(&format!("r6 += 1\nif r6 != {} goto {head}", self.elements));
    }
}

/// Makes a program.
pub(crate) fn generate(c: &mut Choices<'_>) -> Option<Program> {
    let (size, lengths, elements) = (c.pick(&[1, 4]), c.one_in(3), c.pick(&[8, 8, 32]));
    // A length given by a byte may exceed the buffer.
    let size = if lengths { 4 } else { size };
    let mut g = Gen { c, text: String::new(), labels: 0, size, lengths, elements };
    g.line("r9 = r1\nr8 = r2\nr7 = 0\nr6 = 0");
    if g.c.one_in(2) {
        g.store();
    }
    g.rounds();
    if g.c.one_in(4) {
        g.rounds();
    }
    g.byte("r6");
    g.line(&format!("r6 &= {}", elements - 1));
    g.address("r6");
    let ty = g.ty();
    g.line(&format!("r7 = *({ty} *)(r5 + 0)"));
    if g.lengths {
        g.line("r5 = r9\nr5 += r7");
    } else {
        g.line("r6 -= r7\nr5 = r9\nr5 += r6");
    }
    g.line("r0 = *(u8 *)(r5 + 0)\nr0 = 0\nexit");
    let insns = assemble(&g.text).unwrap_or_else(|e| panic!("{e}\n{}", g.text));
    Program::new(insns).ok()
}
