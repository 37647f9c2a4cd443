//! Loops whose counters are read behind their steps, by copies that a round or what comes behind the loop has kept.
//!
//! A counter and what it becomes live at the same time then, and the optimiser lets go of the former
//! (`bpf-opt/src/step.rs`): in addresses, indices, sums of both widths, and behind the loop. Steps stand anywhere in a
//! round, in one way of a branch, or in both with different constants, and the loop is left at its end or within.
//!
//! Invariants: a program stays inside the 64 bytes at r1: both counters begin at 28, and three rounds of two steps by
//! at most four, with an offset of at most four and eight bytes read, stay between 0 and 64; it ends; no address is in
//! its result.

use super::Choices;
use bpf_isa::{Insn, assemble};
use core::fmt::Write;

/// r7 counts, r8 points, r9 are the rounds that are left, r6 is the memory; r4 and r5 are copies of r7 and r8.
struct Maker<'a, 'b> {
    choices: &'a mut Choices<'b>,
    text: String,
    labels: u32,
    /// How many steps this round may still make.
    steps: [u32; 2],
}

/// A program over 64 bytes at r1.
pub fn steps(choices: &mut Choices<'_>) -> Vec<Insn> {
    let mut maker = Maker { choices, text: String::new(), labels: 0, steps: [0; 2] };
    maker.line("r6 = r1\nr0 = 0\nr2 = 1\nr3 = 2");
    for _ in 0..1 + maker.choices.below(2) {
        maker.counted();
    }
    maker.line("exit");
    assemble(&maker.text).unwrap_or_else(|error| panic!("{error}\n{}", maker.text))
}

impl Maker<'_, '_> {
    fn line(&mut self, line: impl core::fmt::Display) {
        writeln!(self.text, "{line}").expect("a string takes it");
    }

    fn label(&mut self) -> u32 {
        self.labels += 1;
        self.labels
    }

    fn counted(&mut self) {
        let (head, out) = (self.label(), self.label());
        let rounds = 1 + self.choices.below(3);
        self.line(format_args!("r7 = 28\nr8 = r6\nr8 += 28\nr4 = 28\nr5 = r8\nr9 = {rounds}\nl{head}:"));
        self.steps = [2; 2];
        for _ in 0..2 + self.choices.below(8) {
            self.statement(out);
        }
        self.line(format_args!("r9 += -1\nif r9 != 0 goto l{head}\nl{out}:"));
        // The statements behind read the counters, or the copies, or neither.
        for _ in 0..self.choices.below(4) {
            self.read();
        }
        self.line("r5 -= r6\nr0 += r5");
        if self.choices.one_in(2) {
            self.line("r0 *= 31\nr0 += r4");
        }
        if self.choices.one_in(2) {
            self.line("r8 -= r6\nr0 *= 31\nr0 ^= r8");
        }
    }

    fn statement(&mut self, out: u32) {
        match self.choices.below(12) {
            0 | 1 => self.line("r4 = r7"),
            2 | 3 => self.line("r5 = r8"),
            4..=6 => self.step(0),
            7 => {
                let (skip, over) = (self.label(), self.label());
                let other = self.choices.one_in(2);
                let before = self.steps;
                let (mask, cond) = (self.choices.pick(&[1, 2, 3, 12]), self.choices.pick(&["==", "!=", ">", "s<"]));
                let than = self.choices.below(3);
                self.line(format_args!("r3 &= {mask}\nif r3 {cond} {than} goto l{skip}"));
                self.arm();
                let left = core::mem::replace(&mut self.steps, before);
                if other {
                    self.line(format_args!("goto l{over}"));
                }
                self.line(format_args!("l{skip}:"));
                if other {
                    self.arm();
                    self.line(format_args!("l{over}:"));
                }
                self.steps = core::array::from_fn(|i| self.steps[i].min(left[i]));
            }
            8 => {
                let cond = self.choices.pick(&["==", ">", "s>", "&"]);
                let imm = self.choices.imm();
                self.line(format_args!("if r3 {cond} {imm} goto l{out}"));
            }
            _ => self.read(),
        }
    }

    fn arm(&mut self) {
        for _ in 0..1 + self.choices.below(3) {
            match self.choices.below(3) {
                0 => self.step(1),
                1 => {
                    let copy = self.choices.pick(&["r4 = r7", "r5 = r8"]);
                    self.line(copy);
                }
                _ => self.read(),
            }
        }
    }

    /// Advances one counter or both, by a constant or by a copy and a constant.
    fn step(&mut self, kind: u32) {
        let by = self.choices.pick(&[1, 1, 2, 4, -1, -2, -4]);
        let which = self.choices.below(2) as usize;
        if self.steps[which] == 0 {
            return;
        }
        self.steps[which] -= 1;
        match (which, self.choices.below(3 + kind)) {
            (0, 0) => self.line(format_args!("w7 += {by}")),
            (0, _) => self.line(format_args!("r7 += {by}")),
            _ => self.line(format_args!("r8 += {by}")),
        }
    }

    /// Something reads a counter or a copy of one.
    fn read(&mut self) {
        let (counter, pointer) = (self.choices.pick(&[7, 4, 4]), self.choices.pick(&[8, 5, 5]));
        let off = self.choices.pick(&[0, 0, 1, -1, 4, -4, 2]);
        let size = self.choices.pick(&["u8", "u16", "u32", "u64"]);
        let width = self.choices.pick(&['r', 'w']);
        match self.choices.below(8) {
            0 | 1 => self.line(format_args!("r3 = *({size} *)(r{pointer} {off:+})\nr0 += r3")),
            2 => self.line(format_args!("*({size} *)(r{pointer} {off:+}) = r0")),
            3 | 4 => {
                self.line(format_args!("r3 = r6\nr3 += r{counter}\nr3 = *({size} *)(r3 {off:+})\nr0 ^= r3"));
            }
            5 => {
                let imm = self.choices.imm();
                self.line(format_args!("{width}3 = {width}{counter}\n{width}3 += {imm}\nr0 *= 3\nr0 += r3"));
            }
            6 => self.line(format_args!("{width}3 = {width}{counter}\nr3 *= 7\nr0 += r3")),
            _ => {
                let imm = self.choices.imm();
                self.line(format_args!("r2 = r{pointer}\nr2 += {imm}\nr2 -= r6\nr0 += r2"));
            }
        }
    }
}
