//! Programs that live in an arena: casts, loads, stores and atomics at any number whatever, in and out of the arena's
//! bounds.
//!
//! An engine may look at the wrong bits of an arena address, or at the wrong time: a number takes part in arithmetic
//! before it becomes an address and after, spilled, stored in the arena itself, given to a function, walked in a
//! loop. No access can fail there but an atomic that is not aligned, so every program is well-defined; and addresses
//! are the same numbers wherever the memory is, so registers may hold and mix anything.
//!
//! Invariant: a program ends, within about 20,000 instructions; the verifier accepts it; the result, the bytes of the
//! arena and whether an atomic stops it are functions of the [`ARENA_WORDS`] words at r1 and of the arena's content.

use super::Choices;
use std::fmt::Write;

/// Words of eight bytes at r1.
pub const ARENA_WORDS: usize = 4;

/// Registers that hold any number; r9 counts the rounds of a loop.
const FREE: [u8; 7] = [0, 3, 4, 5, 6, 7, 8];
/// Registers that a call preserves.
const KEPT: [u8; 3] = [6, 7, 8];
/// Offsets of accesses. Those near the ends of 16 bits reach beyond the window.
const OFFS: [i32; 14] = [0, 0, 0, 8, 16, -8, 3, -1, 4088, 4095, -4096, 32760, 32767, -32768];

#[derive(Debug)]
struct Text<'c, 'b> {
    choices: &'c mut Choices<'b>,
    text: String,
    labels: u32,
    calls: bool,
}

/// A program of text, for the raw context: its first map is the arena.
pub fn arenas(choices: &mut Choices<'_>) -> String {
    let mut text = Text { choices, text: String::new(), labels: 0, calls: false };
    let bytes = 8 * ARENA_WORDS;
    text.line(&format!("if r2 > {} goto ok\nr0 = 0\nexit\nok:\nr0 = map[fd:0]", bytes - 1));
    for (word, reg) in (0..ARENA_WORDS).zip([6, 7, 8, 5]) {
        text.line(&format!("r{reg} = *(u64 *)(r1 + {})", 8 * word));
    }
    for reg in [0, 3, 4] {
        text.number(reg);
    }
    text.line("*(u64 *)(r10 - 8) = r6\n*(u64 *)(r10 - 16) = r7");
    let statements = 4 + text.choices.below(20);
    text.statements(statements, false, true);
    // The result depends on all of these registers.
    for reg in &FREE[1..] {
        text.line(&format!("r0 *= 31\nr0 ^= r{reg}"));
    }
    // The result is an arena pointer as the host sees it: only its low 32 bits come from the program.
    text.line("r3 = r0\nr3 >>= 32\nr0 ^= r3");
    text.cast(0);
    text.line("r0 = addr_space_cast(r0, 1, 0)\nexit");
    if text.calls {
        text.line("callee:\nr0 = r2\nr3 = r1\nr4 = r2\nr5 = 7\nr6 = r1\nr7 = r2\nr8 = 1");
        text.line("*(u64 *)(r10 - 8) = r1\n*(u64 *)(r10 - 16) = r2");
        let statements = 1 + text.choices.below(5);
        text.statements(statements, false, false);
        text.line("r0 ^= r6\nexit");
    }
    text.text
}

impl Text<'_, '_> {
    fn line(&mut self, line: &str) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.text, "{line}");
    }

    fn label(&mut self) -> u32 {
        self.labels += 1;
        self.labels
    }

    fn free(&mut self) -> u8 {
        self.choices.pick(&FREE)
    }

    /// The address of an access in the program's text, such as `r6 - 8`.
    fn at(&mut self, reg: u8, multiple_of: i32) -> String {
        let off = self.choices.pick(&OFFS) / multiple_of * multiple_of;
        if off < 0 { format!("r{reg} - {}", -off) } else { format!("r{reg} + {off}") }
    }

    /// Sets the register to a number, often near the edge of a page, of the 32-bit range or of the 64-bit range.
    fn number(&mut self, reg: u8) {
        let page = u64::from(self.choices.below(4)) * 4096;
        let number = match self.choices.below(4) {
            0 => self.choices.value(),
            1 => page + u64::from(self.choices.below(16)),
            2 => (page + u64::from(self.choices.below(4096))) | u64::from(self.choices.below(3)) << 32,
            _ => page.wrapping_sub(u64::from(self.choices.below(16))),
        };
        self.line(&format!("r{reg} = {number:#x} ll"));
    }

    /// Casts the register to an address in the arena.
    fn cast(&mut self, reg: u8) {
        self.line(&format!("r{reg} = addr_space_cast(r{reg}, 0, 1)"));
    }

    fn statements(&mut self, count: u32, in_loop: bool, main: bool) {
        for _ in 0..count {
            self.statement(in_loop, main);
        }
    }

    fn statement(&mut self, in_loop: bool, main: bool) {
        let (a, b) = (self.free(), self.free());
        match self.choices.below(13) {
            0 | 1 => {
                self.cast(a);
                let at = self.at(a, 1);
                let ty = self.choices.pick(&["u8", "u16", "u32", "u64", "u64", "s8", "s16", "s32"]);
                self.line(&format!("r{b} = *({ty} *)({at})"));
            }
            2 | 3 => {
                self.cast(a);
                let at = self.at(a, 1);
                let ty = self.choices.pick(&["u8", "u16", "u32", "u64", "u64"]);
                match self.choices.one_in(4) {
                    true => {
                        let imm = self.choices.imm();
                        self.line(&format!("*({ty} *)({at}) = {imm}"));
                    }
                    false => self.line(&format!("*({ty} *)({at}) = r{b}")),
                }
            }
            4 | 5 => self.atomic(a, b),
            6 | 7 => self.calculate(a, b),
            8 => {
                // A pointer as the host sees it is stored in the arena, loaded again and followed.
                self.cast(a);
                self.line(&format!("r{a} = addr_space_cast(r{a}, 1, 0)"));
                if self.choices.one_in(2) {
                    self.cast(b);
                    let at = self.at(b, 8);
                    self.line(&format!("*(u64 *)({at}) = r{a}\nr{a} = *(u64 *)({at})"));
                    self.cast(a);
                    let at = self.at(a, 1);
                    self.line(&format!("r{b} = *(u32 *)({at})"));
                }
            }
            9 => {
                let slot = 8 * (1 + self.choices.below(2));
                self.line(&format!("*(u64 *)(r10 - {slot}) = r{a}"));
                let slot = 8 * (1 + self.choices.below(2));
                self.line(&format!("r{b} = *(u64 *)(r10 - {slot})"));
            }
            10 => {
                let label = self.label();
                let op = self.choices.pick(&["==", "!=", ">", "<=", "s>", "s<"]);
                match self.choices.one_in(2) {
                    true => self.line(&format!("if r{a} {op} r{b} goto over{label}")),
                    false => {
                        let imm = self.choices.imm();
                        self.line(&format!("if w{a} {op} {imm} goto over{label}"));
                    }
                }
                let count = 1 + self.choices.below(3);
                // Loops lie outside of branches and of each other.
                self.statements(count, true, false);
                self.line(&format!("over{label}:"));
            }
            11 if !in_loop => {
                let (label, rounds) = (self.label(), 1 + self.choices.below(6));
                self.line(&format!("r9 = {rounds}\nround{label}:"));
                let count = 1 + self.choices.below(3);
                self.statements(count, true, false);
                let step = self.choices.pick(&[1, 2, 8, 24, 4096, -8]);
                let walks = self.choices.pick(&KEPT);
                self.line(&format!("r{walks} += {step}\nr9 += -1\nif r9 != 0 goto round{label}"));
            }
            12 if main => {
                self.calls = true;
                // r1 and r2 are not among the free registers, so the first move does not overwrite `b`.
                self.line(&format!("r1 = r{a}\nr2 = r{b}"));
                if self.choices.one_in(2) {
                    self.line("r1 = addr_space_cast(r1, 0, 1)");
                }
                self.line("call callee");
                for reg in [3, 4, 5] {
                    self.number(reg);
                }
            }
            _ => self.number(a),
        }
    }

    /// Appends an atomic operation; one in eight may be misaligned.
    fn atomic(&mut self, a: u8, b: u8) {
        let size = self.choices.pick(&[4, 8]);
        let aligned = !self.choices.one_in(8);
        // r1 and r2 hold nothing after the first instructions of the program.
        self.line(&format!("r1 = r{a}"));
        if aligned {
            self.line("r1 &= -8");
        }
        self.cast(1);
        let at = self.at(1, if aligned { 8 } else { 1 });
        let (ty, half) = if size == 8 { ("u64", "r") } else { ("u32", "w") };
        let line = match self.choices.below(8) {
            0 => format!("lock *({ty} *)({at}) += {half}{b}"),
            1 => format!("lock *({ty} *)({at}) ^= {half}{b}"),
            2 => format!("{half}{b} = atomic_fetch_add(({ty} *)({at}), {half}{b})"),
            3 => format!("{half}{b} = atomic_fetch_or(({ty} *)({at}), {half}{b})"),
            4 if size == 8 => format!("r{b} = xchg_64({at}, r{b})"),
            4 => format!("w{b} = xchg32_32({at}, w{b})"),
            5 if size == 8 => format!("r0 = cmpxchg_64({at}, r0, r{b})"),
            5 => format!("w0 = cmpxchg32_32({at}, w0, w{b})"),
            6 => format!("r{b} = load_acquire(({ty} *)({at}))"),
            _ => format!("store_release(({ty} *)({at}), r{b})"),
        };
        self.line(&line);
    }

    fn calculate(&mut self, a: u8, b: u8) {
        let half = self.choices.pick(&["r", "r", "r", "w"]);
        let op = self.choices.pick(&["+=", "-=", "&=", "|=", "^=", "*=", "<<=", ">>=", "s>>=", "="]);
        let shift = op.contains("<<") || op.contains(">>");
        let line = match self.choices.below(3) {
            0 if !shift => format!("{half}{a} {op} {half}{b}"),
            _ if shift => format!("{half}{a} {op} {}", self.choices.below(if half == "w" { 32 } else { 64 })),
            1 => {
                format!("{half}{a} {op} {}", self.choices.pick(&[1, 8, -8, 16, 4096, -4096, 32767, i32::MIN, i32::MAX]))
            }
            _ => format!("{half}{a} {op} {}", self.choices.imm()),
        };
        self.line(&line);
    }
}
