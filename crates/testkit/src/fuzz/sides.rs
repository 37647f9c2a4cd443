//! Fields of bits, selections, tests and indices against the interpreter: values that machine instructions make as
//! by-products.
//!
//! Problem: a pair of ops that becomes one instruction, or a comparison that is not repeated, is rare in generated
//! programs. Approach: programs of little else, between which the operands of comparisons are written, divided, loaded
//! and stored, in loops whose head only asks.

use super::{Options, mixing_linker, words};
use crate::generate::{Choices, HELPER_ID};
use bpf_isa::disassemble;
use bpf_jit::OptLevel;
use bpf_jit_code::Arch;
use bpf_runtime::{Mode, Raw};
use core::fmt::Write;

const CONDS: &[&str] = &["==", "!=", "<", "<=", ">", ">=", "s<", "s<=", "s>", "s>=", "&"];

struct Text {
    out: String,
    labels: u32,
    /// The comparison before, to be asked again.
    test: String,
}

impl Text {
    fn line(&mut self, args: core::fmt::Arguments<'_>) {
        self.out.write_fmt(args).expect("a string takes it");
        self.out.push('\n');
    }

    fn label(&mut self) -> u32 {
        self.labels += 1;
        self.labels
    }

    fn value(c: &mut Choices) -> u32 {
        c.below(8)
    }

    fn step(&mut self, c: &mut Choices, r: u32) {
        let w = c.pick(&['r', 'w']);
        let bits = if w == 'r' { 64 } else { 32 };
        let n = c.pick(&[1, 3, 7, 8, 15, 16, 24, 31, 32, 33, 47, 48, 56, 62, 63, 0]) % bits;
        match c.below(8) {
            0 => self.line(format_args!("{w}{r} <<= {n}")),
            1 => self.line(format_args!("{w}{r} >>= {n}")),
            2 => self.line(format_args!("{w}{r} s>>= {n}")),
            3 => {
                let mask = c.pick(&[1, 2, 0xff, 0xffff, 0x7fff_ffff, -1, -256, i32::MIN, 0x00ff_ff00, 0x8000, 6, 5]);
                self.line(format_args!("{w}{r} &= {mask}"));
            }
            4 => self.line(format_args!("{w}{r} = -{w}{r}")),
            5 => self.line(format_args!("w{r} = w{r}")),
            6 => self.line(format_args!("{w}{r} = ({}){w}{r}", c.pick(&["s8", "s16"]))),
            _ => self.line(format_args!("r{r} = (s32)r{r}")),
        }
    }

    fn field(&mut self, c: &mut Choices) {
        let (to, from) = (Self::value(c), Self::value(c));
        self.line(format_args!("r{to} = r{from}"));
        for _ in 0..1 + c.below(3) {
            self.step(c, to);
        }
    }

    fn comparison(&mut self, c: &mut Choices) -> String {
        let w = c.pick(&['r', 'w']);
        let (a, b, cond) = (Self::value(c), Self::value(c), c.pick(CONDS));
        if c.one_in(2) {
            return format!("{w}{a} {cond} {w}{b}");
        }
        let imms = [0, 1, -1, 2, 5, 4095, 4096, -4095, 0xff_f000, 0x12_3456, -0x12_3456, i32::MAX, i32::MIN, 0x8000];
        format!("{w}{a} {cond} {}", c.pick(&imms))
    }

    /// The comparison before with another condition or as it is, or a new one.
    fn again(&mut self, c: &mut Choices) -> String {
        if self.test.is_empty() || c.one_in(3) {
            self.test = self.comparison(c);
        } else if c.one_in(3) {
            let mut parts = self.test.split(' ');
            let (a, b) = (parts.next().unwrap_or("r1").to_owned(), parts.nth(1).unwrap_or("0").to_owned());
            let cond = c.pick(CONDS);
            let a = if c.one_in(6) && !b.starts_with(['r', 'w']) { a.replace('r', "w") } else { a };
            self.test = format!("{a} {cond} {b}");
        }
        self.test.clone()
    }

    fn side(&mut self, c: &mut Choices, to: u32) {
        let from = Self::value(c);
        match c.below(8) {
            0 => self.line(format_args!("r{to} = {}", c.pick(&[0, 1, -1, 2]))),
            1 => self.line(format_args!("w{to} = {}", c.pick(&[0, 1, -1, 2]))),
            2 => self.line(format_args!("r{to} = r{from}\nr{to} += 1")),
            3 => self.line(format_args!("w{to} = w{from}\nw{to} += 1")),
            4 => self.line(format_args!("r{to} = r{from}\n{}{to} ^= -1", c.pick(&['r', 'w']))),
            5 => self.line(format_args!("r{to} = r{from}\n{0}{to} = -{0}{to}", c.pick(&['r', 'w']))),
            6 => self.line(format_args!("w{to} = w{from}")),
            _ => self.line(format_args!("r{to} = r{from}")),
        }
    }

    fn select(&mut self, c: &mut Choices) {
        let (to, label, other) = (Self::value(c), self.label(), Self::value(c));
        let test = if c.one_in(3) {
            let (x, w) = (Self::value(c), c.pick(&['r', 'w']));
            let mask = c.pick(&[1, 2, 0x8000, i32::MIN, -1, 0, 6, 5, 0x4000_0000]);
            let by = if c.one_in(2) { mask.to_string() } else { format!("{w}{}", Self::value(c)) };
            self.line(format_args!("r{other} = r{x}\n{w}{other} &= {by}"));
            format!("{}{other} {} 0", c.pick(&['r', 'w']), c.pick(&["==", "!="]))
        } else {
            self.again(c)
        };
        let names: Vec<&str> = test.split(' ').collect();
        let own = |r: &str| r.starts_with(['r', 'w']) && r.get(1..) == Some(&to.to_string());
        if c.one_in(2) && !own(names[0]) && !own(names[2]) {
            self.side(c, to);
        }
        self.line(format_args!("if {test} goto l{label}"));
        match c.below(8) {
            0 => self.line(format_args!("*(u64 *)(r9 + 72) = r{to}\nr{other} /= 3\nr7 ^= r{to}")),
            _ => self.side(c, to),
        }
        self.line(format_args!("l{label}:"));
    }

    fn index(&mut self, c: &mut Choices) {
        let to = Self::value(c);
        // Not the address.
        let value = (to + 1 + c.below(7)) % 8;
        let low = c.one_in(2);
        let at = 8 * (c.below(4) + if low { 0 } else { 4 });
        self.line(format_args!("r{to} = *(u64 *)(r9 + {at})"));
        if c.one_in(2) {
            // The shift prevents a load that extends.
            self.line(format_args!("r{value} <<= 32\nr{to} ^= r{value}"));
        }
        self.line(format_args!("{}", if low { format!("w{to} = w{to}") } else { format!("r{to} = (s32)r{to}") }));
        let shift = c.below(4);
        if shift > 0 {
            self.line(format_args!("r{to} <<= {shift}"));
        }
        // Stores change bytes behind the first 64, which hold the offsets.
        let mut off = if low { 64 } else { 128 };
        if c.one_in(2) {
            self.line(format_args!("r{value} = r9\nr{value} += {off}\nr{to} += r{value}\nr{value} = {}", c.imm()));
            off = 0;
        } else {
            self.line(format_args!("r{to} += r9"));
        }
        let size = c.pick(&["u8", "u16", "u32", "u64", "s8", "s16", "s32"]);
        let load = c.one_in(2);
        let size = if load { size.to_owned() } else { size.replace('s', "u") };
        match load {
            true => self.line(format_args!("r{value} = *({size} *)(r{to} + {off})")),
            false if c.one_in(3) => self.line(format_args!("*({size} *)(r{to} + {off}) = {}", c.imm())),
            false => self.line(format_args!("*({size} *)(r{to} + {off}) = r{value}")),
        }
        self.line(format_args!("r{to} = {}", c.imm()));
    }

    fn between(&mut self, c: &mut Choices) {
        let (a, b) = (Self::value(c), Self::value(c));
        match c.below(10) {
            0 => self.line(format_args!("r{a} /= r{b}")),
            1 => self.line(format_args!("w{a} s%= w{b}")),
            2 => self.line(format_args!("r{a} = *(u64 *)(r9 + {})", 64 + 8 * c.below(8))),
            3 => self.line(format_args!("*(u64 *)(r9 + {}) = r{a}", 64 + 8 * c.below(8))),
            4 => self.line(format_args!("r{a} = {:#x} ll", c.value())),
            5 => self.line(format_args!("r{a} = be32 r{a}")),
            6 => self.line(format_args!("lock *(u64 *)(r9 + 80) += r{b}")),
            7 => self.line(format_args!("r{a} += r{b}")),
            8 => self.line(format_args!("r{a} *= r{b}")),
            _ => self.line(format_args!(
                "r1 = r{a}\nr2 = r{b}\nr3 = 1\nr4 = 2\nr5 = 3\ncall {HELPER_ID}\n\
                 r1 = r0\nr2 = 7\nr3 = r6\nr4 = -1\nr5 = r7"
            )),
        }
    }

    fn statements(&mut self, c: &mut Choices, depth: u32) {
        for _ in 0..2 + c.below(8) {
            match c.below(8) {
                0 | 1 => self.field(c),
                2..=4 => self.select(c),
                5 => self.index(c),
                6 => self.between(c),
                _ if depth > 0 => self.rounds(c, depth - 1),
                _ => {
                    let label = self.label();
                    let test = self.again(c);
                    self.line(format_args!("if {test} goto l{label}"));
                    self.between(c);
                    self.field(c);
                    if c.one_in(40) {
                        // Beyond what a branch on one bit reaches.
                        let (a, b) = (Self::value(c), Self::value(c));
                        (0..4500).for_each(|_| self.line(format_args!("r{a} *= r{b}\nr{b} ^= r{a}")));
                    }
                    self.line(format_args!("l{label}:"));
                }
            }
        }
    }

    /// The outer loop counts in a register, the inner one in the stack.
    fn rounds(&mut self, c: &mut Choices, depth: u32) {
        let (head, out) = (self.label(), self.label());
        if depth == 1 {
            let done = c.pick(&["r8 == 0", "w8 == 0", "r8 s< 1", "r8 < 1"]);
            self.line(format_args!("r8 = {}\nl{head}:\nif {done} goto l{out}", c.below(4)));
            self.statements(c, depth);
            let exit = self.again(c);
            if c.one_in(2) {
                self.line(format_args!("r8 -= 1\nif {exit} goto l{out}\ngoto l{head}\nl{out}:"));
            } else {
                self.line(format_args!("r8 -= 1\ngoto l{head}\nl{out}:"));
            }
        } else {
            let (slot, body) = (8 * (1 + depth), self.label());
            self.line(format_args!("*(u64 *)(r10 - {slot}) = {}\ngoto l{head}\nl{body}:", c.below(4)));
            self.statements(c, 0);
            self.line(format_args!("l{head}:\nr5 = *(u64 *)(r10 - {slot})\nr4 = r5\nr5 -= 1"));
            self.line(format_args!("*(u64 *)(r10 - {slot}) = r5\nif r4 s> 0 goto l{body}\nl{out}:"));
        }
    }
}

fn text(c: &mut Choices) -> String {
    let mut text = Text { out: String::from("r9 = r1\n"), labels: 0, test: String::new() };
    for r in 0..8 {
        let size = c.pick(&["u64", "u32", "s8"]);
        text.line(format_args!("r{r} = *({size} *)(r9 + {})", 64 + 8 * r));
    }
    text.line(format_args!("r8 = 0"));
    for _ in 0..1 + c.below(3) {
        text.statements(c, 2);
    }
    for r in 1..9 {
        text.line(format_args!("r0 *= 31\nr0 ^= r{r}"));
    }
    text.line(format_args!("exit"));
    text.out
}

/// Runs a generated program on both engines and compares the result, the memory, and where it stops.
pub fn sides(data: &[u8]) {
    let mut choices = Choices::from_bytes(data);
    let mut options = Options::choose(&mut choices);
    options.opt_level = OptLevel::Speed;
    let budget = if choices.one_in(3) { 1 + u64::from(choices.below(200)) } else { 100_000 };
    let text = text(&mut choices);
    let insns = bpf_isa::assemble(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let mut memory: Vec<u8> = Vec::new();
    for k in 0..8i32 {
        let index = if k < 4 { choices.below(8) as i32 } else { -1 - choices.below(8) as i32 };
        memory.extend(index.to_le_bytes());
        memory.extend(choices.imm().to_le_bytes());
    }
    for _ in 0..9 {
        memory.extend(choices.value().to_le_bytes());
    }
    let outcome = |mode| {
        let mut config = options.config(mode);
        config = config.budget(budget).interruptible(options.checks);
        let linker = mixing_linker(config);
        // SAFETY: all accesses are within the 136 bytes of memory: indices come from its first half, which no store
        // reaches; and the budget ends it.
        let loader = unsafe { linker.loader::<Raw>().unverified(true) };
        let program = loader.insns("sides", insns.clone()).expect("a valid program loads");
        let mut words = words(&memory);
        let result = program.run(&mut (), zerocopy::IntoBytes::as_mut_bytes(words.as_mut_slice()));
        (result.map_err(|error| error.to_string()), words)
    };
    if Arch::HOST.is_some() {
        assert_eq!(
            outcome(Mode::Jit),
            outcome(Mode::Interpreter),
            "{options:?}, budget {budget}\n{}",
            disassemble(&insns)
        );
    }
}
