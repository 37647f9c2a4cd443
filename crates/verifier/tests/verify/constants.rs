//! Tests the demand of numbers that a comparison shows to be a constant, against walking dropped paths: programs of
//! which one path holds other numbers than another before the two join are accepted only if they are accepted when no
//! path is dropped at all ([`bpf_verifier::Env::exhaustive`]).
//!
//! The programs give registers and slots numbers of all kinds (constants, ranges that end below and above 2^32, sets of
//! bits), meet, copy, spill, calculate and compare them in each way and width, in subprograms and callbacks too, and
//! then use one as an offset, a size, or in a branch to code that must be unreachable.

use crate::common;
use crate::common::exhaustive::Verdict;

use bpf_isa::Program;
use bpf_testkit::generate::Choices;
use bpf_verifier::{Env, Verifier};
use std::fmt::Write;

const SUBPROGS: &str = "
same:
    r0 = r1
    exit
low:
    w0 = w1
    exit
is_three:
    r0 = 0
    if r1 == 3 goto +1
    exit
    r0 = 3
    exit
three_or_exit:
    r0 = r1
    if w0 == 3 goto +1
    r0 = 3
    exit
compares_slot:
    r0 = 0
    r2 = *(u64 *)(r1 + 0)
    if r2 != 3 goto +1
    r0 = r2
    exit
stores:
    *(u64 *)(r1 + 0) = r2
    r0 = r2
    exit
round:
    r3 = *(u64 *)(r2 + 0)
    r0 = 0
    if w3 != 3 goto +3
    r2 += -8
    r2 += r3
    *(u8 *)(r2 + 3) = 1
    exit
";

const NUMBERS: [&str; 8] = ["0", "3", "3", "4", "7", "-1", "-3", "-1610612736"];

struct Text<'c, 'b> {
    c: &'c mut Choices<'b>,
    text: String,
    labels: usize,
    calls: bool,
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
        self.c.pick(&["r6", "r6", "r7", "r8"])
    }

    fn slot(&mut self) -> i32 {
        -8 * (1 + self.c.below(2) as i32)
    }

    /// Appends a statement that sets the register to another number.
    fn sets(&mut self, a: &str) {
        let n = &a[1..];
        match self.c.below(12) {
            0 | 1 => {
                let k = self.c.pick(&NUMBERS);
                self.line(format_args!("{a} = {k}"));
            }
            2 => self.line(format_args!("{a} = 3")),
            3 => {
                let k = self.c.pick(&["0x100000003", "0x100000002", "0xffffffff", "0xffffffff00000003"]);
                self.line(format_args!("{a} = {k} ll"));
            }
            4 | 5 => {
                let k = self.c.pick(&["7", "3", "-5", "255", "11"]);
                self.line(format_args!("{a} &= {k}"));
            }
            6 | 7 => self.line(format_args!("w{n} = w{n}")),
            8 | 9 => {
                let k = self.c.pick(&["0x100000002", "0x100000003", "0x100000007", "0x100000000", "7"]);
                let c = self.c.pick(&[">", ">=", "<", "s>"]);
                self.line(format_args!("r3 = {k} ll\nif {a} {c} r3 goto out"));
            }
            10 => {
                let k = self.c.pick(&["0x100000003", "0x100000007", "0xffffffff00000003"]);
                self.line(format_args!("r3 = {k} ll\n{a} &= r3"));
            }
            _ => self.compare("out", Some(a)),
        }
    }

    fn compare(&mut self, to: &str, a: Option<&str>) {
        let a = match a {
            Some(a) => a.to_owned(),
            None => self.number().to_owned(),
        };
        let w = self.c.pick(&["r", "w"]);
        let n = &a[1..];
        let op = match self.c.below(3) {
            0 => self.c.pick(&["==", "!=", "!="]),
            1 => "!=",
            _ => self.c.pick(&[">", "<", "s<", "s>", "&", "==", ">=", "<=", "s<=", "s>="]),
        };
        match self.c.below(8) {
            0 => {
                let k = self.c.pick(&["3", "4", "0x100000003"]);
                self.line(format_args!("r3 = {k} ll\nif {w}{n} {op} {w}3 goto {to}"));
            }
            1 => {
                let b = self.number();
                self.line(format_args!("if {w}{n} {op} {w}{} goto {to}", &b[1..]));
            }
            _ => {
                let k = self.c.pick(&NUMBERS);
                self.line(format_args!("if {w}{n} {op} {k} goto {to}"));
            }
        }
    }

    fn fork(&mut self) {
        let label = self.label();
        let a = self.number();
        let other = self.c.one_in(3);
        self.line(format_args!("call 7\nif r0 == 1 goto f{label}"));
        self.sets(a);
        if self.c.one_in(4) {
            self.statement();
        }
        if other {
            self.line(format_args!("goto g{label}\nf{label}:"));
            self.sets(a);
            self.line(format_args!("g{label}:\nr0 = 0"));
        } else {
            self.line(format_args!("f{label}:\nr0 = 0"));
        }
    }

    fn statement(&mut self) {
        let (a, b, slot) = (self.number(), self.number(), self.slot());
        let (n, m) = (&a[1..], &b[1..]);
        match self.c.below(29) {
            24 | 25 => {
                let top = self.c.pick(&["60", "7", "3"]);
                let l = self.label();
                let room = self.c.pick(&["1", "4", "8"]);
                self.line(format_args!(
                    "if {a} > {top} goto out\nr3 = *(u32 *)(r9 + 0)\nr2 = *(u32 *)(r9 + 4)\nr3 += {a}"
                ));
                self.line(format_args!(
                    "r4 = r3\nr4 += {room}\nif r4 > r2 goto x{l}\n*(u64 *)(r10 - 24) = r3\nx{l}:\nr0 = 0"
                ));
            }
            26 => self.line(format_args!("{a} = *(u32 *)(r9 + 4)\nr3 = *(u32 *)(r9 + 0)\n{a} -= r3")),
            27 => {
                self.line(format_args!("r3 = *(u32 *)(r9 + 0)\nr2 = *(u32 *)(r9 + 4)\nr2 -= r3\nif {a} > r2 goto out"))
            }
            28 => {
                let k = self.c.pick(&["1", "4", "-1"]);
                self.line(format_args!("{a} = {b}\n{a} += {k}"));
            }
            0..=3 => self.line(format_args!("{a} = {b}")),
            4 => self.line(format_args!("w{n} = w{m}")),
            5..=7 => {
                let op = self.c.pick(&[
                    "+= 1", "+= 4", "-= 1", "&= 7", "&= -8", "<<= 1", "<<= 32", ">>= 32", ">>= 1", "s>>= 32", "*= 2",
                    "^= 1", "|= 4", "/= 2", "%= 5",
                ]);
                let w = self.c.pick(&["r", "r", "w"]);
                if w == "w" && op.ends_with("32") {
                    self.line(format_args!("w{n} += 1"));
                } else {
                    self.line(format_args!("{w}{n} {op}"));
                }
            }
            8 => {
                let op = self.c.pick(&["+=", "-=", "&=", "|=", "^="]);
                let w = self.c.pick(&["r", "r", "w"]);
                self.line(format_args!("{w}{n} {op} {w}{m}"));
            }
            9 => self.line(format_args!("r{n} = -r{n}")),
            10 => {
                let op = self.c.pick(&["be16", "le32", "bswap64", "be64", "bswap32"]);
                self.line(format_args!("{a} = {op} {a}"));
            }
            11 => {
                let s = self.c.pick(&["s8", "s16", "s32"]);
                self.line(format_args!("{a} = ({s}){b}"));
            }
            12..=14 => {
                let size = self.c.pick(&["u64", "u64", "u32", "u8"]);
                self.line(format_args!("*({size} *)(r10 {slot:+}) = {a}"));
            }
            15..=17 => {
                let size = self.c.pick(&["u64", "u64", "u32", "u8", "s32"]);
                self.line(format_args!("{a} = *({size} *)(r10 {slot:+})"));
            }
            18 => {
                let op = self.c.pick(&["fetch", "xchg", "add"]);
                match op {
                    "xchg" => self.line(format_args!("{a} = xchg_64(r10 {slot:+}, {a})")),
                    "fetch" => self.line(format_args!("{a} = atomic_fetch_add((u64 *)(r10 {slot:+}), {a})")),
                    _ => self.line(format_args!("lock *(u64 *)(r10 {slot:+}) += {a}")),
                }
            }
            19..=21 if self.calls => match self.c.below(6) {
                0 | 1 => {
                    let f = self.c.pick(&["same", "low", "is_three", "three_or_exit"]);
                    self.line(format_args!("r1 = {b}\ncall {f}\n{a} = r0"));
                }
                2 => self.line(format_args!("r1 = r10\nr1 += {slot}\ncall compares_slot\n{a} = r0")),
                3 => self.line(format_args!("r1 = r10\nr1 += {slot}\nr2 = {b}\ncall stores\n{a} = r0")),
                4 => self.line(format_args!("r1 = 2\nr2 = subprog[round]\nr3 = r10\nr3 += {slot}\nr4 = 0\ncall 181")),
                _ => self.line(format_args!("r1 = {b}\ncall same\n{a} = r0")),
            },
            _ => self.line(format_args!("{a} = {b}")),
        }
    }

    fn test(&mut self) {
        if self.c.one_in(5) {
            let l = self.label();
            self.compare(&format!("t{l}"), None);
            if self.c.one_in(2) {
                self.statement();
            }
            self.line(format_args!("t{l}:\nr0 = 0"));
        } else if self.c.one_in(3) {
            let l = self.label();
            let a = self.number();
            let w = self.c.pick(&["r", "w"]);
            let k = self.c.pick(&NUMBERS);
            self.line(format_args!("if {w}{} == {k} goto t{l}\nr0 = 0\nexit\nt{l}:\nr0 = 0", &a[1..]));
        } else {
            self.compare("out", None);
        }
    }

    fn probe(&mut self) {
        let (a, l, slot) = (self.number(), self.label(), self.slot());
        match self.c.below(15) {
            10 | 11 => self.line("r3 = *(u64 *)(r10 - 24)\nr0 = *(u8 *)(r3 + 3)"),
            12 => self.line(format_args!("r3 = *(u32 *)(r9 + 0)\nr3 += {a}\nr0 = *(u8 *)(r3 + 25)")),
            13 => self.line(format_args!("r3 = *(u32 *)(r9 + 0)\nr3 -= {a}\nr0 = *(u8 *)(r3 + 7)")),
            14 => {
                self.line("r3 = *(u32 *)(r9 + 0)\n*(u64 *)(r10 - 64) = 0\nr1 = r10\nr1 += -64\nr2 = 0");
                self.line(format_args!("r4 = {a}\ncall 1006"));
            }
            0..=3 => {
                let at = self.c.pick(&[-1, -2, -4, -5, -8]);
                self.line(format_args!("r2 = r10\nr2 += {a}\n*(u8 *)(r2 {at:+}) = 1"));
            }
            4 => {
                let at = self.c.pick(&[-8, -12, -64]);
                self.line(format_args!("r2 = r10\nr2 += {at}\nr2 += {a}\n*(u8 *)(r2 +0) = 1"));
            }
            5 => self.line(format_args!("r2 = r10\nr2 -= {a}\n*(u8 *)(r2 - 1) = 1")),
            6 => self.line(format_args!("{a} = *(u64 *)(r10 {slot:+})\nr2 = r10\nr2 += {a}\n*(u8 *)(r2 - 4) = 1")),
            7 => self.line(format_args!(
                "r3 = {a}\nr3 >>= 32\nif r3 == 0 goto p{l}\nr0 = *(u64 *)(r10 - 400)\np{l}:\nr0 = 0"
            )),
            _ => {
                self.compare(&format!("p{l}"), Some(a));
                self.line(format_args!("r0 = *(u64 *)(r10 - 400)\np{l}:\nr0 = 0"));
            }
        }
    }
}

fn generate(c: &mut Choices<'_>) -> String {
    let calls = c.one_in(3);
    let mut text = Text { c, text: String::new(), labels: 0, calls };
    text.line("r9 = r1\nr2 = *(u32 *)(r9 + 4)\nr3 = *(u32 *)(r9 + 0)\nr4 = r3\nr4 += 32\nif r4 > r2 goto out");
    text.line("r6 = *(u64 *)(r3 + 0)\nr7 = *(u64 *)(r3 + 8)\nr8 = *(u32 *)(r3 + 16)\nr2 = 3");
    text.line("*(u64 *)(r10 - 8) = r2\n*(u64 *)(r10 - 16) = r6\n*(u64 *)(r10 - 24) = r3");
    for _ in 0..text.c.below(2) {
        text.statement();
    }
    text.fork();
    for _ in 0..text.c.below(3) {
        text.statement();
    }
    if text.c.one_in(3) {
        text.fork();
    }
    if text.c.one_in(3) {
        text.test();
        for _ in 0..text.c.below(2) {
            text.statement();
        }
    }
    text.test();
    for _ in 0..text.c.below(3) {
        text.statement();
    }
    text.probe();
    if text.c.one_in(3) {
        text.probe();
    }
    text.line("r0 = 0\nexit\nout:\nr0 = 0\nexit");
    if calls {
        text.text.push_str(SUBPROGS);
    }
    text.text
}

fn verify(verifier: &mut Verifier, program: &Program, exhaustive: bool) -> Verdict {
    common::with_env("", |env| {
        let env = Env { exhaustive, ..*env };
        verifier.verify(program.clone(), &env).map(|verified| verified.stats())
    })
}

#[test]
fn constants_are_needed_as_they_are_when_no_path_is_dropped() {
    let mut verifier = Verifier::new();
    let of = |seed| {
        let text = generate(&mut Choices::from_seed(seed));
        let program = common::program(&text);
        let [some, all] = [false, true].map(|exhaustive| verify(&mut verifier, &program, exhaustive));
        (text, some, all)
    };
    common::exhaustive::compare(of, |_| false);
}

/// For each planted fault in the data flow into needed numbers, some generated program is accepted although the
/// exhaustive walk refuses it.
#[cfg(feature = "faults")]
#[test]
fn faults_in_what_flows_into_numbers_are_noticed() {
    use bpf_verifier::faults::{Fault, plant};

    let mut verifier = Verifier::new();
    for fault in [
        Fault::EqualHalves,
        Fault::HalvesUnknown,
        Fault::TiesUnmarked,
        Fault::LoadsUnmarked,
        Fault::StoresUnmarked,
        Fault::BoundsUnmarked,
        Fault::DecisionsUnmarked,
        Fault::ArgumentsUnmarked,
        Fault::ResultsUnmarked,
    ] {
        let unsafe_one = (0..50_000u64).find(|seed| {
            let text = generate(&mut Choices::from_seed(*seed));
            let program = common::program(&text);
            plant(Some(fault));
            let some = verify(&mut verifier, &program, false);
            plant(None);
            some.is_ok() && verify(&mut verifier, &program, true).is_err()
        });
        assert!(unsafe_one.is_some(), "{fault:?} goes unnoticed");
    }
}
