//! Tests the demand of regions' lengths against walking dropped paths: programs of which one path has proven more of a
//! packet than another before the two join are accepted if and only if they are accepted when no path is dropped at all
//! ([`bpf_verifier::Env::exhaustive`]).
//!
//! The programs prove lengths by comparisons of pointers and of lengths, meet, and then use a length in each way that
//! there is: loads, stores, arguments, comparisons that the length decides, numbers that it bounds, and comparisons
//! that those decide; with pointers and numbers in registers and spilled, in subprograms, callbacks and loops, and of
//! two regions.

use crate::common;
use crate::common::exhaustive::{Verdict, is_about_a_path};

use bpf_analysis::{Facts, Known};
use bpf_isa::{InsnIdx, Program};
use bpf_testkit::generate::Choices;
use bpf_verifier::{Access, Env, Field, FieldKind, Stats, Verifier, VerifyError};
use std::fmt::Write;

/// Branches of a program at most: 2^this paths are walked.
const BRANCHES: usize = 8;

const SUBPROGS: &str = "
proves:
    r2 = *(u32 *)(r1 + 0)
    r3 = *(u32 *)(r1 + 4)
    r2 += 8
    r0 = 0
    if r2 > r3 goto +1
    r0 = 1
    exit
proves_or_not:
    r6 = r1
    call 7
    r2 = *(u32 *)(r6 + 0)
    r3 = *(u32 *)(r6 + 4)
    r2 += 34
    if r0 == 1 goto +2
    if r2 > r3 goto +2
    r0 = 0
    exit
    r0 = 1
    exit
reads:
    r0 = *(u8 *)(r1 + 7)
    exit
reads_spilled:
    r1 = *(u64 *)(r1 + 0)
    r0 = *(u8 *)(r1 + 7)
    exit
left:
    r0 = *(u32 *)(r1 + 4)
    r2 = *(u32 *)(r1 + 0)
    r0 -= r2
    exit
legacy:
    r6 = r1
    r0 = *(u8 *)skb[33]
    r0 = 0
    exit
round:
    r9 = r2
    r1 = *(u64 *)(r9 + 0)
    r0 = *(u8 *)(r1 + 7)
    r0 = 0
    exit
round_proves:
    r9 = r2
    r1 = *(u64 *)(r9 + 0)
    r3 = *(u64 *)(r9 + 8)
    r2 = r1
    r2 += 14
    r0 = 0
    if r2 > r3 goto +2
    r0 = *(u8 *)(r1 + 13)
    r0 = 1
    exit
";

const SIZES: [i32; 7] = [1, 2, 8, 14, 20, 34, 40];
/// Lengths in bytes, small ones and some around 65,535.
const LARGE: [i32; 7] = [1, 14, 65533, 65534, 65535, 65536, 70000];

struct Text<'c, 'b> {
    c: &'c mut Choices<'b>,
    text: String,
    branches: usize,
    labels: usize,
    sizes: [i32; 7],
}

impl Text<'_, '_> {
    fn line(&mut self, line: impl std::fmt::Display) {
        writeln!(self.text, "{line}").expect("a string");
    }

    fn label(&mut self) -> usize {
        self.labels += 1;
        self.labels
    }

    fn number(&mut self) -> &'static str {
        self.c.pick(&["r6", "r7", "r8"])
    }

    fn size(&mut self) -> i32 {
        self.c.pick(&self.sizes)
    }

    fn slot(&mut self) -> i32 {
        -8 * (1 + self.c.below(2) as i32)
    }

    /// Loads a start to r3 and an end to r2, mostly the packet's.
    fn pointers(&mut self) {
        match self.c.below(16) {
            0..=8 => self.line("r2 = *(u32 *)(r9 + 4)\nr3 = *(u32 *)(r9 + 0)"),
            9 => self.line("r2 = *(u32 *)(r9 + 4)\nr3 = *(u64 *)(r10 - 40)"),
            10..=12 => self.line("r2 = *(u64 *)(r10 - 48)\nr3 = *(u64 *)(r10 - 40)"),
            13 | 14 => self.line("r2 = *(u64 *)(r10 - 48)\nr3 = *(u32 *)(r9 + 0)"),
            _ => self.line("r2 = *(u32 *)(r9 + 0)\nr3 = *(u32 *)(r9 + 8)"),
        }
    }

    /// Goes to the label if there are fewer bytes (or about as many).
    fn test(&mut self, label: &str) {
        let bytes = self.size();
        match self.c.below(14) {
            0..=3 => {
                self.pointers();
                let compare = self.c.pick(&["r4 > r2", "r4 > r2", "r2 < r4", "r4 >= r2", "r2 <= r4", "r4 == r2"]);
                self.line(format_args!("r4 = r3\nr4 += {bytes}\nif {compare} goto {label}"));
            }
            4 => {
                self.pointers();
                let l = self.label();
                let compare = self.c.pick(&["r4 <= r2", "r2 >= r4", "r4 < r2", "r2 > r4", "r4 != r2"]);
                self.line(format_args!("r4 = r3\nr4 += {bytes}\nif {compare} goto t{l}\ngoto {label}\nt{l}:"));
            }
            5..=7 => {
                self.pointers();
                let by = self.c.pick(&[0, 0, 0, 1, 14]);
                let compare = self.c.pick(&["<", "<", "<=", "s<", "s<=", "==", "!="]);
                let w = self.c.pick(&["r", "r", "w"]);
                self.line(format_args!("r3 += {by}\nr2 -= r3\nif {w}2 {compare} {bytes} goto {label}"));
            }
            8 => self.line(format_args!("r2 = *(u32 *)(r9 + 20)\nif r2 < {bytes} goto {label}")),
            9 => {
                self.pointers();
                self.line(format_args!("r4 = {bytes}\nr2 -= r3\nif r4 > r2 goto {label}"));
            }
            10 => self.line(format_args!("r1 = r9\ncall proves\nif r0 == 0 goto {label}")),
            11 => {
                let a = self.number();
                self.pointers();
                self.line(format_args!(
                    "if {a} > 60 goto {label}\nr4 = r3\nr4 += {a}\nr4 += {bytes}\nif r4 > r2 goto {label}"
                ));
            }
            12 => {
                let a = self.number();
                let compare = self.c.pick(&["<", "<=", "s<", "!=", ">"]);
                self.line(format_args!("if {a} {compare} {bytes} goto {label}"));
            }
            _ => {
                let a = self.number();
                self.pointers();
                self.line(format_args!("r2 -= r3\nif {a} > r2 goto {label}"));
            }
        }
    }

    /// An access that is refused if it is reached.
    fn forbidden(&mut self) {
        self.line("r0 = *(u64 *)(r10 - 400)");
    }

    /// Appends a branch one side of which tests a length or changes a number.
    fn fork(&mut self) {
        if self.branches >= BRANCHES {
            return;
        }
        self.branches += 2;
        let label = self.label();
        let a = self.number();
        match self.c.below(8) {
            0..=3 => {
                self.line(format_args!("call 7\nif r0 == 1 goto f{label}"));
                let out = self.c.pick(&["out", "out", "out", ""]);
                let out = if out.is_empty() { format!("f{label}") } else { out.into() };
                self.test(&out);
                if self.c.one_in(3) {
                    self.statement();
                }
            }
            4 => {
                self.test("out");
                self.line(format_args!("call 7\nif r0 == 1 goto f{label}"));
                self.test("out");
            }
            5 => {
                self.line(format_args!("call 7\nif r0 == 1 goto g{label}"));
                self.test("out");
                self.line(format_args!("goto f{label}\ng{label}:"));
                self.test("out");
                self.line("r0 = 0");
            }
            6 => self.line("r1 = r9\ncall proves_or_not\nif r0 == 1 goto out"),
            _ => {
                self.line(format_args!("call 7\nif r0 == 1 goto f{label}"));
                self.line(format_args!("{a} = 8"));
            }
        }
        self.line(format_args!("f{label}:\nr0 = 0"));
    }

    /// A statement that changes no length, except where a helper moves the packet.
    fn statement(&mut self) {
        let (a, b, slot) = (self.number(), self.number(), self.slot());
        match self.c.below(24) {
            0 | 1 => self.line(format_args!("{a} = {b}")),
            2 => self.line(format_args!("w{} = w{}", &a[1..], &b[1..])),
            3 | 4 => {
                let op = self
                    .c
                    .pick(&["+= 1", "-= 1", "-= 14", "&= 63", "<<= 1", ">>= 1", "*= 2", "+= 14", "&= -8", "^= 1"]);
                self.line(format_args!("{a} {op}"));
            }
            5 => {
                let op = self.c.pick(&["+=", "-=", "&=", "|="]);
                self.line(format_args!("{a} {op} {b}"));
            }
            6 | 7 => {
                let size = self.c.pick(&["u64", "u64", "u32"]);
                self.line(format_args!("*({size} *)(r10 {slot:+}) = {a}"));
            }
            8 | 9 => {
                let size = self.c.pick(&["u64", "u64", "u32"]);
                self.line(format_args!("{a} = *({size} *)(r10 {slot:+})"));
            }
            10 => self
                .line("r2 = *(u32 *)(r9 + 4)\nr3 = *(u32 *)(r9 + 0)\n*(u64 *)(r10 - 40) = r3\n*(u64 *)(r10 - 48) = r2"),
            11 => {
                let by = self.size();
                self.line(format_args!("r3 = *(u32 *)(r9 + 0)\nr3 += {by}\n*(u64 *)(r10 - 40) = r3"));
            }
            12..=15 => self.length(a),
            16 => {
                self.line("r1 = r9\nr2 = 0\ncall 44\nr2 = *(u32 *)(r9 + 4)\nr3 = *(u32 *)(r9 + 0)");
                self.line("*(u64 *)(r10 - 40) = r3\n*(u64 *)(r10 - 48) = r2");
            }
            17 => self.line(format_args!("call 7\n{a} = r0")),
            18 => self.line(format_args!("{a} = 8")),
            _ => {}
        }
    }

    fn length(&mut self, a: &str) {
        match self.c.below(9) {
            0..=2 => {
                self.pointers();
                self.line(format_args!("r2 -= r3\n{a} = r2"));
            }
            3 => {
                self.pointers();
                let by = self.size();
                self.line(format_args!("r3 += {by}\nr2 -= r3\n{a} = r2"));
            }
            4 => {
                self.pointers();
                self.line(format_args!("w2 -= w3\n{a} = r2"));
            }
            5 => self.line(format_args!("{a} = *(u32 *)(r9 + 20)")),
            6 => self.line(format_args!("r1 = r9\ncall left\n{a} = r0")),
            7 => {
                self.pointers();
                self.line(format_args!("r3 -= r2\n{a} = r3"));
            }
            _ => {
                let b = self.number();
                self.pointers();
                let l = self.label();
                self.line(format_args!(
                    "if {b} > 60 goto p{l}\nr3 += {b}\nif r3 > r2 goto p{l}\nr2 -= r3\n{a} = r2\np{l}:\nr0 = 0"
                ));
            }
        }
    }

    /// Appends a use of a length.
    fn probe(&mut self) {
        let (a, b) = (self.number(), self.number());
        let (bytes, l) = (self.size(), self.label());
        if self.c.one_in(4) && self.branches < BRANCHES {
            self.branches += 1;
            self.test("out");
        }
        match self.c.below(29) {
            25 | 26 if self.branches + 3 < BRANCHES => {
                self.branches += 2;
                let c = self.c.pick(&["r7", "r8"]);
                self.line(format_args!("{c} = 0\nw{l}:"));
                self.test("out");
                self.line(format_args!("call 7\nif r0 == 1 goto x{l}"));
                self.test("out");
                self.line(format_args!("x{l}:"));
                if self.c.one_in(3) {
                    self.statement();
                }
                self.pointers();
                self.line(format_args!("r0 = *(u8 *)(r3 + {})", bytes.min(30_000) - 1));
                self.line(format_args!("{c} += 1\nif {c} < 2 goto w{l}\nr0 = 0"));
            }
            27 => {
                self.line(format_args!("r1 = r9\nr2 = {bytes}\ncall legacy"));
                self.pointers();
                self.line(format_args!("r0 = *(u8 *)(r3 + {})", bytes.min(30_000) - 1));
            }
            // Numbers in an array, and one of them.
            28 => {
                self.line(format_args!(
                    "*(u64 *)(r10 - 80) = {a}\n*(u64 *)(r10 - 72) = {b}\ncall 7\nr0 &= 1\nr0 <<= 3"
                ));
                self.line("r4 = r10\nr4 += -80\nr4 += r0\nr4 = *(u64 *)(r4 + 0)");
                self.pointers();
                self.line(format_args!("if r4 > 60 goto p{l}\nr3 += r4\nr0 = *(u8 *)(r3 - 1)\np{l}:\nr0 = 0"));
            }
            0..=2 => {
                self.pointers();
                let (size, n) = self.c.pick(&[("u8", 1), ("u8", 1), ("u16", 2), ("u64", 8)]);
                let op = if self.c.one_in(3) { "store" } else { "load" };
                let mut off = bytes - n;
                if off > 30_000 {
                    self.line(format_args!("r3 += {off}"));
                    off = 0;
                }
                if op == "load" {
                    self.line(format_args!("r0 = *({size} *)(r3 {off:+})"));
                } else {
                    self.line(format_args!("*({size} *)(r3 {off:+}) = 0"));
                }
            }
            3 => {
                self.pointers();
                let bytes = bytes.min(30_000);
                self.line(format_args!("r0 = *(u8 *)(r2 - {bytes})"));
            }
            4 => {
                self.pointers();
                self.line(format_args!("*(u64 *)(r10 - 64) = 0\nr1 = r10\nr1 += -64\nr2 = 0\nr4 = {bytes}\ncall 1006"));
            }
            5 => {
                self.pointers();
                self.line(format_args!("if {a} > 40 goto p{l}\n*(u64 *)(r10 - 64) = 0\nr1 = r10\nr1 += -64\nr2 = 0"));
                self.line(format_args!("r4 = {a}\ncall 1006\np{l}:\nr0 = 0"));
            }
            6 => {
                self.pointers();
                self.line("r2 = r3\nr1 = map[fd:0]\ncall 1");
            }
            // The length bounds the number used as an offset.
            7 | 8 => self.line(format_args!("r3 = r10\nr3 -= {a}\n*(u8 *)(r3 - 8) = 1")),
            9 => {
                self.pointers();
                self.line(format_args!("if {a} > {bytes} goto p{l}\nr3 += {a}\nr0 = *(u8 *)(r3 - 1)\np{l}:\nr0 = 0"));
            }
            10 => {
                self.pointers();
                self.line(format_args!("r3 += {a}\nr0 = *(u8 *)(r3 - 1)"));
            }
            // The length decides the branch.
            11..=13 => {
                self.test(&format!("p{l}"));
                self.line(format_args!("goto q{l}\np{l}:"));
                self.forbidden();
                self.line(format_args!("q{l}:\nr0 = 0"));
            }
            14 => {
                self.test(&format!("p{l}"));
                self.forbidden();
                self.line(format_args!("p{l}:\nr0 = 0"));
            }
            15 => {
                let p = self.c.pick(&["r2", "r3"]);
                self.pointers();
                self.line(format_args!("if {p} != 0 goto p{l}"));
                self.forbidden();
                self.line(format_args!("p{l}:\nr0 = 0"));
            }
            16 => {
                self.pointers();
                let other = self.c.pick(&[-1, 0, 1, 14]);
                let cond = self.c.pick(&["<", "<=", ">", ">=", "==", "!="]);
                self.line(format_args!("r4 = r3\nr4 += {other}\nr3 += 1\nif r4 {cond} r3 goto p{l}"));
                self.forbidden();
                self.line(format_args!("p{l}:\nr0 = 0"));
            }
            17 => {
                let op = self.c.pick(&["<", "<=", "s<", "==", "!=", ">", "s>"]);
                let w = self.c.pick(&["r", "r", "w"]);
                let at = bytes - self.c.pick(&[0, 0, 1, 14]);
                self.line(format_args!("if {w}{} {op} {at} goto p{l}", &a[1..]));
                self.forbidden();
                self.line(format_args!("p{l}:\nr0 = 0"));
            }
            18 => {
                let op = self.c.pick(&["<", "<=", "s<", "==", "!=", ">", "s>"]);
                self.line(format_args!("if {a} {op} {b} goto p{l}"));
                self.forbidden();
                self.line(format_args!("p{l}:\nr0 = 0"));
            }
            19 => {
                self.pointers();
                self.line("r1 = r3\ncall reads");
            }
            20 => self.line("r1 = r10\nr1 += -40\ncall reads_spilled"),
            21 => {
                let f = self.c.pick(&["round", "round_proves"]);
                self.line(format_args!("r1 = 2\nr2 = subprog[{f}]\nr3 = r10\nr3 += -48\nr4 = 0\ncall 181"));
            }
            // The access is in a loop.
            22 => {
                let c = self.c.pick(&["r7", "r8"]);
                self.line(format_args!("{c} = 0\nw{l}:"));
                self.pointers();
                self.line(format_args!("r3 += {c}\nr0 = *(u8 *)(r3 + 3)\n{c} += 1\nif {c} < 4 goto w{l}\nr0 = 0"));
            }
            23 => {
                let c = self.c.pick(&["r7", "r8"]);
                let at = self.c.pick(&["r3 - 1", "r3 + 0"]);
                self.line(format_args!("{c} = 0\nw{l}:"));
                self.pointers();
                self.line(format_args!(
                    "r4 = r2\nr4 -= r3\n{c} += 1\nif {c} > r4 goto v{l}\nr3 += {c}\nr0 = *(u8 *)({at})\nif {c} < 3 goto w{l}\nv{l}:\nr0 = 0"
                ));
            }
            // The number of bytes left is an index into an element of a map.
            _ => {
                self.pointers();
                let by = self.size();
                self.line(format_args!("r3 += {by}\nr2 -= r3\nr3 = r10\nr3 += -64\nr2 = -r2\nif r2 s< -16 goto p{l}"));
                self.line(format_args!("r3 += r2\n*(u8 *)(r3 + 0) = 1\np{l}:\nr0 = 0"));
            }
        }
    }
}

fn generate(c: &mut Choices<'_>) -> String {
    let mut text = Text { c, text: String::new(), branches: 0, labels: 0, sizes: SIZES };
    let kind = text.c.below(8);
    match kind {
        0 | 1 => text.line(";raw"),
        2 => {
            text.line(";large");
            text.sizes = LARGE;
        }
        3 => text.line(";least"),
        _ => {}
    }
    text.line("r9 = r1\nr2 = *(u32 *)(r9 + 4)\nr3 = *(u32 *)(r9 + 0)");
    text.line("*(u64 *)(r10 - 40) = r3\n*(u64 *)(r10 - 48) = r2\nr6 = 8\nr7 = 8\nr8 = 1\n*(u64 *)(r10 - 8) = 8\n*(u64 *)(r10 - 16) = 8");
    if text.c.one_in(2) {
        text.line("call 7\nr7 = r0\nr7 &= 63");
    }
    for _ in 0..text.c.below(3) {
        text.statement();
    }
    text.fork();
    for _ in 0..text.c.below(4) {
        text.statement();
    }
    if text.c.one_in(2) {
        text.fork();
        for _ in 0..text.c.below(3) {
            text.statement();
        }
    }
    text.probe();
    for _ in 0..text.c.below(2) {
        text.statement();
    }
    if text.c.one_in(2) {
        text.probe();
    }
    text.line("r0 = 0\nexit\nout:\nr0 = 0\nexit");
    text.text.push_str(SUBPROGS);
    let text = text.text;
    if kind > 1 {
        return text;
    }
    // Programs over raw memory keep its bounds on the stack.
    let text = text
        .replacen("r2 = *(u32 *)(r9 + 4)\nr3 = *(u32 *)(r9 + 0)", "*(u64 *)(r10 - 56) = r2\nr3 = r1\nr2 += r3", 1)
        .replace("*(u32 *)(r9 + 4)", "*(u64 *)(r10 - 48)")
        .replace("*(u32 *)(r9 + 20)", "*(u64 *)(r10 - 56)")
        .replace("*(u32 *)(r9 + 8)", "*(u64 *)(r10 - 40)")
        .replace("*(u32 *)(r9 + 0)", "*(u64 *)(r10 - 40)")
        .replace("r1 = r9\n", "r1 = r10\nr1 += -48\n")
        .replace("call 44", "call 7")
        .replace("r0 = *(u8 *)skb[33]", "r0 = *(u64 *)(r6 + 8)\nr0 = *(u8 *)(r0 + 7)");
    let text = text.replace("*(u32 *)(r1 + 0)", "*(u64 *)(r1 + 8)").replace("*(u32 *)(r1 + 4)", "*(u64 *)(r1 + 0)");
    text.replace("*(u32 *)(r6 + 0)", "*(u64 *)(r6 + 8)").replace("*(u32 *)(r6 + 4)", "*(u64 *)(r6 + 0)")
}

fn verify(verifier: &mut Verifier, program: &(String, Program), exhaustive: bool) -> Verdict {
    facts(verifier, program, exhaustive, false, false).map(|(stats, _)| stats)
}

fn facts(
    verifier: &mut Verifier,
    (text, program): &(String, Program),
    exhaustive: bool,
    hybrid: bool,
    values: bool,
) -> Result<(Stats, Facts), Box<VerifyError>> {
    common::with_env(";skb", |env| {
        let mut context = common::xdp();
        if text.contains(";raw") {
            context = bpf_verifier::ContextLayout::raw(true);
            let env = Env { exhaustive, hybrid, values, context: &context, ..*env };
            return verifier.verify(program.clone(), &env).map(|v| (v.stats(), v.into_parts().1));
        }
        context.legacy_loads = Some(bpf_analysis::HeaderPlaces::LinkFirst);
        if text.contains(";large") {
            context.regions[0].max_len = 1 << 20;
        }
        if text.contains(";least") {
            context.regions[0].min_len = 14;
        }
        context.fields.push(Field {
            name: "len".into(),
            offset: 20,
            size: 4,
            access: Access::Read,
            kind: FieldKind::Len(0),
            host_offset: 32,
            host_size: 4,
        });
        let env = Env { exhaustive, hybrid, values, context: &context, ..*env };
        verifier.verify(program.clone(), &env).map(|verified| (verified.stats(), verified.into_parts().1))
    })
}

/// Where there are loops, more is known of arrays and of the order of numbers, but not if no path is dropped: then a
/// program may be refused that is safe.
fn has_loop(text: &str) -> bool {
    text.contains("\nw")
}

#[test]
fn lengths_are_needed_as_they_are_when_no_path_is_dropped() {
    let mut verifier = Verifier::new();
    let of = |seed| {
        let text = generate(&mut Choices::from_seed(seed));
        let program = (text.clone(), common::program(&text));
        let [some, all] = [false, true].map(|exhaustive| verify(&mut verifier, &program, exhaustive));
        (text, some, all)
    };
    common::exhaustive::compare(of, has_loop);
}

/// For each planted fault in the analysis of needed lengths, some generated program is accepted although the exhaustive
/// walk refuses it.
#[cfg(feature = "faults")]
#[test]
fn every_fault_of_lengths_is_noticed() {
    use bpf_verifier::faults::{Fault, plant};

    let mut verifier = Verifier::new();
    for &fault in Fault::OF_LENGTHS {
        let unsafe_one = (0..200_000u64).find(|seed| {
            let text = generate(&mut Choices::from_seed(*seed));
            let program = (text.clone(), common::program(&text));
            plant(Some(fault));
            let some = verify(&mut verifier, &program, false);
            plant(None);
            some.is_ok() && verify(&mut verifier, &program, true).is_err()
        });
        println!("{fault:?}: {unsafe_one:?}");
        assert!(unsafe_one.is_some(), "{fault:?} goes unnoticed");
    }
}

/// Notes made with dropped paths, about run-time checks and numbers, are true of the dropped paths.
#[test]
fn what_is_noted_is_true_of_all_paths() {
    let mut verifier = Verifier::new();
    let programs = std::env::var("BPF_PROGRAMS").ok().and_then(|n| n.parse().ok()).unwrap_or(5_000);
    let first = std::env::var("BPF_SEED").ok().and_then(|n| n.parse().ok()).unwrap_or(0u64);
    let (mut checked, mut compared, mut one, mut checks) = (0u64, 0u64, 0u64, 0);
    let mut least: Option<(usize, String)> = None;
    for seed in first..first + programs {
        let text = generate(&mut Choices::from_seed(seed));
        if has_loop(&text) {
            continue;
        }
        let program = (text.clone(), common::program(&text));
        let mut wrong = Vec::new();
        match [true, false].map(|exhaustive| facts(&mut verifier, &program, exhaustive, true, false)) {
            [Ok((_, all)), Ok((_, some))] => {
                checked += 1;
                checks += some.checks.len();
                if !all.checks.iter().all(|c| some.checks.contains(c)) {
                    wrong.push(format!("checks {:?} of {:?}", some.checks, all.checks));
                }
            }
            [Err(e), Ok(_)] if is_about_a_path(&e) => wrong.push(format!("refused: {e}")),
            _ => one += 1,
        }
        if let [Ok((_, all)), Ok((_, some))] =
            [true, false].map(|exhaustive| facts(&mut verifier, &program, exhaustive, false, true))
        {
            compared += 1;
            for (i, (a, s)) in all.values.iter().zip(&some.values).enumerate() {
                let at = InsnIdx(i as u32);
                if some.insn(at).dead && !all.insn(at).dead {
                    wrong.push(format!("{i} is not dead"));
                }
                if all.insn(at).dead {
                    continue;
                }
                let within = |a: &Known, s: &Known| {
                    (s.umin <= a.umin && s.umax >= a.umax && s.smin <= a.smin && s.smax >= a.smax)
                        && a.mask & !s.mask == 0
                        && (a.value ^ s.value) & !s.mask == 0
                };
                if !(within(&a.dst, &s.dst) && within(&a.src, &s.src) && within(&a.result, &s.result)) {
                    wrong.push(format!("{i}: {s:?} but {a:?}"));
                }
                if s.taken.is_some() && s.taken != a.taken {
                    wrong.push(format!("{i}: {s:?} but {a:?}"));
                }
            }
        }
        if !wrong.is_empty() && least.as_ref().is_none_or(|(n, _)| *n > text.len()) {
            least = Some((text.len(), format!("seed {seed}: {}\n{text}", wrong.join("\n"))));
        }
    }
    println!("{checked} with checks ({checks}), {compared} with numbers, {one} refused");
    assert!(least.is_none(), "{}", least.map_or(String::new(), |l| l.1));
}

/// A part of one region's length is compared in a shorter region, of 32 bytes at most. The rest of the length is used
/// as an offset into 32 bytes of the stack.
const REST_OF_ANOTHER: &str = "
    r6 = *(u64 *)(r1 + 0)
    r7 = *(u64 *)(r1 + 8)
    r8 = *(u64 *)(r1 + 16)
    r5 = *(u64 *)(r1 + 24)
    r9 = *(u32 *)(r1 + 32)
    r7 -= r6
    *(u64 *)(r10 - 8) = 0
    *(u64 *)(r10 - 16) = 0
    *(u64 *)(r10 - 24) = 0
    *(u64 *)(r10 - 32) = 0
    r9 &= 0xffff
    if r9 > r7 goto out
    if r9 == 0 goto out
    r3 = r7
    r3 -= r9
    r8 += r9
    if r8 > r5 goto out
    r4 = r10
    r4 += -32
    r4 += r3
    r0 = *(u8 *)(r4 + 0)
    exit
    out:
    r0 = 0
    exit";

#[test]
fn the_rest_of_a_length_is_bounded_by_its_own_region() {
    let field = |offset: u32, size, kind| Field {
        name: format!("field{offset}").into(),
        offset,
        size,
        access: Access::Read,
        kind,
        host_offset: offset,
        host_size: size,
    };
    let mut context = common::xdp();
    context.fields = vec![
        field(0, 8, FieldKind::Data(0)),
        field(8, 8, FieldKind::DataEnd(0)),
        field(16, 8, FieldKind::Data(1)),
        field(24, 8, FieldKind::DataEnd(1)),
        field(32, 4, FieldKind::Scalar),
    ];
    (context.regions[1].ends_at_start_of, context.regions[1].max_len) = (None, 32);
    let helpers = common::helpers();
    let verdict = |text: &str| Verifier::new().verify(common::program(text), &Env::new(&context, &helpers));
    assert!(verdict(REST_OF_ANOTHER).is_err(), "accepted:\n{REST_OF_ANOTHER}");
    // At most 31 bytes are left of the shorter region's own length.
    let own = REST_OF_ANOTHER.replace("r7 -= r6", "r7 = r5\n    r7 -= r8");
    if let Err(e) = verdict(&own) {
        panic!("{e}\n{own}");
    }
}
