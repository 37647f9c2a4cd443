//! Programs of loops, close to the border between provable and not.
//!
//! A program is a nest, or a row, of loops over a buffer, the stack and numbers: counted up and down, by steps of one
//! and others, in registers and slots, 32 and 64 bits wide, tested at the top and at the bottom, by every comparison,
//! against constants, the length, loaded numbers and the end; with several variables that move, some differently from
//! path to path; with `continue` and `break`, shrinking values, and uses of a moved variable as an offset, in the loop
//! and after it. Bounds are small, so that most runs that end, end soon; a run that repeats itself was wrongly proven
//! to end.

use std::fmt::Write;

use bpf_isa::{Program, assemble};
use bpf_testkit::generate::Choices;

/// Registers that loops count and point with; r0 and r1 are for one statement at a time, r9 is the buffer and r8 its
/// length.
const VARS: [&str; 6] = ["r2", "r3", "r4", "r5", "r6", "r7"];

struct Gen<'c, 'b> {
    c: &'c mut Choices<'b>,
    text: String,
    labels: u32,
    /// Number of enclosing loops.
    depth: u32,
    /// Counters in use, with the bits of their width.
    used: Vec<&'static str>,
    /// Registers that hold pointers into the buffer.
    pointers: Vec<&'static str>,
    loops: u32,
    /// Loops may be entered in their middle.
    entered: bool,
}

impl Gen<'_, '_> {
    fn line(&mut self, s: &str) {
        writeln!(self.text, "{s}").expect("a string");
    }
    fn label(&mut self) -> String {
        self.labels += 1;
        format!("l{}", self.labels)
    }
    fn var(&mut self) -> &'static str {
        let free: Vec<&str> =
            VARS.into_iter().filter(|v| !self.used.contains(v) && !self.pointers.contains(v)).collect();
        if free.is_empty() { "r1" } else { free[self.c.below(free.len() as u32) as usize] }
    }
    fn number(&mut self) -> &'static str {
        let numbers: Vec<&str> = VARS.into_iter().filter(|v| !self.pointers.contains(v)).collect();
        numbers[self.c.below(numbers.len() as u32) as usize]
    }
    /// `rN` or `wN`.
    fn at_width(r: &str, wide: bool) -> String {
        if wide { r.to_owned() } else { r.replace('r', "w") }
    }

    /// An access near the buffer or the stack array, at a variable that moved.
    fn access(&mut self) {
        match self.c.below(6) {
            0 | 1 => {
                let r = self.number();
                self.line("r1 = r9");
                self.line(&format!("r0 = {r}"));
                let shift = self.c.pick(&[0, 0, 0, 1, 2]);
                if shift > 0 {
                    self.line(&format!("r0 <<= {shift}"));
                }
                let out = self.label();
                match self.c.below(5) {
                    0 => {}
                    1 => {
                        let imm = self.c.pick(&[8, 31, 32, 33]);
                        self.line(&format!("if r0 >= {imm} goto {out}"));
                    }
                    2 => self.line(&format!("if r0 >= r8 goto {out}")),
                    3 => self.line(&format!("if r0 > r8 goto {out}")),
                    _ => self.line("r0 &= 31"),
                }
                self.line("r1 += r0");
                let (size, off) = (self.c.pick(&["u8", "u8", "u16", "u32"]), self.c.pick(&[0i32, 0, 0, 1, -1, 3]));
                self.line(&format!("r0 = *({size} *)(r1 {off:+})"));
                self.line(&format!("{out}:"));
            }
            2 => {
                // An element of the array on the stack.
                let r = self.number();
                self.line("r1 = r10");
                self.line("r1 += -64");
                self.line(&format!("r0 = {r}"));
                let out = self.label();
                match self.c.below(3) {
                    0 => {}
                    1 => {
                        let imm = self.c.pick(&[32, 56, 57, 63, 64, 65]);
                        self.line(&format!("if r0 >= {imm} goto {out}"));
                    }
                    _ => self.line("r0 &= 63"),
                }
                self.line("r1 += r0");
                if self.c.one_in(2) {
                    self.line("r0 = *(u8 *)(r1 + 0)");
                } else {
                    self.line("*(u8 *)(r1 + 0) = 7");
                }
                self.line(&format!("{out}:"));
            }
            _ if !self.pointers.is_empty() => {
                let p = self.pointers[self.c.below(self.pointers.len() as u32) as usize];
                let (size, bytes) = self.c.pick(&[("u8", 1), ("u8", 1), ("u16", 2), ("u32", 4)]);
                let off = self.c.pick(&[0i32, 0, 0, 1, -1, 2]);
                let out = self.label();
                if self.c.one_in(2) {
                    let ahead = self.c.pick(&[bytes + off, bytes + off, 0, 1, 4]);
                    self.line(&format!("r1 = {p}"));
                    self.line(&format!("r1 += {ahead}"));
                    self.end_pointer("r0");
                    let cond = self.c.pick(&[">", ">", ">="]);
                    self.line(&format!("if r1 {cond} r0 goto {out}"));
                }
                self.line(&format!("r0 = *({size} *)({p} {off:+})"));
                self.line(&format!("{out}:"));
            }
            _ => self.load_number(),
        }
    }

    fn end_pointer(&mut self, r: &str) {
        self.line(&format!("{r} = r9"));
        self.line(&format!("{r} += r8"));
    }

    /// A small number from the buffer, in r0.
    fn load_number(&mut self) {
        let off = self.c.below(24);
        self.line(&format!("r0 = *(u8 *)(r9 + {off})"));
        let mask = self.c.pick(&[15, 7, 31, 12, 6]);
        self.line(&format!("r0 &= {mask}"));
    }

    /// Changes a variable other than the counter.
    fn change(&mut self) {
        let r = self.var();
        let wide = self.c.one_in(2);
        let d = Self::at_width(r, wide);
        match self.c.below(7) {
            0 | 1 => {
                let step = self.c.pick(&[1, 1, 2, 3, 4, -1, -2, 8]);
                self.line(&format!("{d} += {step}"));
            }
            2 => {
                // A step that one path skips.
                let (skip, step) = (self.label(), self.c.pick(&[1, 2, 5, -1]));
                self.load_number();
                self.line(&format!("if r0 > 4 goto {skip}"));
                self.line(&format!("{d} += {step}"));
                self.line(&format!("{skip}:"));
            }
            3 => {
                self.load_number();
                self.line(&format!("r{} += r0", &r[1..]));
            }
            4 => {
                let op = self.c.pick(&[">>= 1", "/= 3", "&= 63", "^= 5", "*= 3", "<<= 1", "%= 7"]);
                self.line(&format!("{d} {op}"));
            }
            5 => {
                let s = self.number();
                self.line(&format!("{} = {}", d, Self::at_width(s, wide)));
            }
            _ if !self.pointers.is_empty() => {
                let p = self.pointers[self.c.below(self.pointers.len() as u32) as usize];
                let step = self.c.pick(&[1, 1, 2, 4, -1]);
                self.line(&format!("{p} += {step}"));
            }
            _ => {
                let off = self.c.pick(&[72, 80]);
                self.line(&format!("r0 = *(u64 *)(r10 - {off})"));
                let step = self.c.pick(&[1, 2, -1]);
                self.line(&format!("r0 += {step}"));
                self.line(&format!("*(u64 *)(r10 - {off}) = r0"));
            }
        }
    }

    fn statement(&mut self, next: &str, out: &str) {
        match self.c.below(12) {
            0..=4 => self.access(),
            5..=7 => self.change(),
            8 if self.depth < 3 && self.loops < 5 => self.rounds(),
            9 => {
                self.load_number();
                let (to, imm) = (if self.c.one_in(2) { next } else { out }, self.c.below(16));
                self.line(&format!("if r0 == {imm} goto {to}"));
            }
            10 => {
                let (a, b) = (self.number(), self.number());
                let (skip, cond) = (self.label(), self.c.pick(&["<", ">", "!=", "s<", "<="]));
                self.line(&format!("if {a} {cond} {b} goto {skip}"));
                self.change();
                self.line(&format!("{skip}:"));
            }
            _ => self.change(),
        }
    }

    /// A loop.
    fn rounds(&mut self) {
        self.loops += 1;
        self.depth += 1;
        let (head, next, out) = (self.label(), self.label(), self.label());
        let kind = self.c.below(10);
        let slot = self.c.one_in(6);
        let wide = self.c.one_in(2);
        let v = self.var();
        let i = Self::at_width(v, wide);
        let step = self.c.pick(&[1, 1, 1, 1, 2, 3, 4, 8]);
        let down = kind < 3;
        let pointer = (3..5).contains(&kind) && v != "r1";
        let most = if self.depth > 1 { 12 } else { 40 };
        let bound = self.c.pick(&[most, most - 1, 16, 8, 9, 64 / self.depth]) as i32;
        let shrink = kind == 9;
        // The initial value.
        if pointer {
            self.line(&format!("{v} = r9"));
            if self.c.one_in(3) {
                self.load_number();
                self.line(&format!("{v} += r0"));
            }
            self.pointers.push(v);
        } else {
            match (down, self.c.below(6)) {
                (true, 0..=2) => self.line(&format!("{i} = {bound}")),
                (true, 3) => self.line(&format!("{v} = r8")),
                (false, 0..=3) if !shrink => self.line(&format!("{i} = 0")),
                (false, 4) if !shrink => self.line(&format!("{i} = 3")),
                _ => {
                    self.load_number();
                    self.line(&format!("{i} = {}", Self::at_width("r0", wide)));
                }
            }
            if v != "r1" {
                self.used.push(v);
            }
        }
        // A second variable that moves with the counter.
        let with = if self.c.one_in(2) && !pointer { self.var() } else { "r1" };
        let with_step = self.c.pick(&[1, 1, 2, 4]);
        if with != "r1" {
            if self.c.one_in(2) {
                self.line(&format!("{with} = r9"));
                self.pointers.push(with);
            } else {
                self.line(&format!("{with} = 0"));
                self.used.push(with);
            }
        }
        if slot && !pointer {
            self.line(&format!("*(u64 *)(r10 - 72) = {v}"));
        }
        // The bound.
        let against = match (pointer, self.c.below(5)) {
            (true, _) => "end".to_owned(),
            (false, 0..=1) => bound.to_string(),
            (false, 2) => "r8".to_owned(),
            (false, 3) => {
                self.load_number();
                self.line("*(u64 *)(r10 - 80) = r0");
                "slot".to_owned()
            }
            (false, _) => {
                let r = self.number();
                self.line(&format!("{r} &= 63"));
                r.to_owned()
            }
        };
        let stay = match (down, pointer) {
            (true, _) => self.c.pick(&["!=", "!=", ">", "s>", ">="]),
            (false, true) => self.c.pick(&["<", "<", "!=", "<="]),
            (false, false) => self.c.pick(&["<", "<", "<", "!=", "!=", "<=", "s<"]),
        };
        let top = self.c.one_in(2);
        let test = |g: &mut Self, to: &str, stay: &str| {
            let i = if slot && !pointer {
                g.line("r1 = *(u64 *)(r10 - 72)");
                Self::at_width("r1", wide)
            } else {
                i.clone()
            };
            match (down, &*against) {
                (true, _) => g.line(&format!("if {i} {stay} 0 goto {to}")),
                (false, "end") => {
                    let ahead = g.c.pick(&[0, 0, 1, 4]);
                    g.end_pointer("r0");
                    g.line(&format!("r1 = {v}"));
                    if ahead > 0 {
                        g.line(&format!("r1 += {ahead}"));
                    }
                    g.line(&format!("if r1 {stay} r0 goto {to}"));
                }
                (false, "slot") => {
                    g.line("r0 = *(u64 *)(r10 - 80)");
                    let r0 = Self::at_width("r0", wide);
                    g.line(&format!("if {i} {stay} {r0} goto {to}"));
                }
                (false, b) => {
                    let b = if b.starts_with('r') { Self::at_width(b, wide) } else { b.to_owned() };
                    g.line(&format!("if {i} {stay} {b} goto {to}"));
                }
            }
        };
        if self.entered && self.c.one_in(2) {
            self.load_number();
            let bit = self.c.pick(&[1, 2, 4]);
            self.line(&format!("if r0 & {bit} goto {next}"));
        }
        self.line(&format!("{head}:"));
        if top {
            let body = self.label();
            test(self, &body, stay);
            self.line(&format!("goto {out}"));
            self.line(&format!("{body}:"));
        }
        for _ in 0..1 + self.c.below(4) {
            self.statement(&next, &out);
        }
        self.line(&format!("{next}:"));
        if with != "r1" {
            self.line(&format!("{with} += {with_step}"));
        }
        let moved = match (shrink, down) {
            (true, _) => self.c.pick(&[">>= 1", "/= 2", "&= 6", "-= 1"]).to_owned(),
            (false, true) => format!("-= {step}"),
            (false, false) => format!("+= {step}"),
        };
        if slot && !pointer {
            self.line("r1 = *(u64 *)(r10 - 72)");
            self.line(&format!("{} {moved}", Self::at_width("r1", wide)));
            self.line("*(u64 *)(r10 - 72) = r1");
        } else if pointer {
            self.line(&format!("{v} += {step}"));
        } else {
            self.line(&format!("{i} {moved}"));
        }
        if top {
            self.line(&format!("goto {head}"));
        } else if shrink {
            self.line(&format!("if {i} != 0 goto {head}"));
        } else {
            test(self, &head, stay);
        }
        self.line(&format!("{out}:"));
        self.used.retain(|u| *u != v && *u != with);
        // An access after the loop.
        if self.c.one_in(2) {
            self.access();
        }
        for p in [v, with] {
            if self.pointers.contains(&p) {
                self.pointers.retain(|q| *q != p);
                self.line(&format!("{p} = 5"));
            }
        }
        self.depth -= 1;
    }
}

/// Makes a program.
pub(crate) fn generate(c: &mut Choices<'_>) -> Option<Program> {
    generate_with(c, false)
}

/// Makes a program whose loops may be entered in their middle.
pub(crate) fn generate_entered(c: &mut Choices<'_>) -> Option<Program> {
    generate_with(c, true)
}

fn generate_with(c: &mut Choices<'_>, entered: bool) -> Option<Program> {
    let mut g =
        Gen { c, text: String::new(), labels: 0, depth: 0, used: Vec::new(), pointers: Vec::new(), loops: 0, entered };
    g.line("r9 = r1");
    g.line("r8 = r2");
    for r in VARS {
        if g.c.one_in(2) {
            let n = g.c.pick(&[0, 1, 2, 7, 16]);
            g.line(&format!("{r} = {n}"));
        } else {
            let off = g.c.below(24);
            g.line(&format!("{r} = *(u8 *)(r9 + {off})"));
        }
    }
    for off in (8..=80).step_by(8) {
        g.line(&format!("*(u64 *)(r10 - {off}) = 0"));
    }
    for _ in 0..1 + g.c.below(3) {
        g.rounds();
    }
    g.line("r0 = 0");
    g.line("exit");
    let insns = assemble(&g.text).unwrap_or_else(|e| panic!("{e}\n{}", g.text));
    Program::new(insns).ok()
}
