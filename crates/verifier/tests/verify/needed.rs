//! Tests the demand of dropped paths against walking them: programs are accepted if and only if they are accepted when
//! no path is dropped at all ([`bpf_verifier::Env::exhaustive`]).
//!
//! The programs are about numbers: they copy them between registers and stack slots of several widths, move them apart
//! by constants, pass them to functions and callbacks, compare them (with constants, each other, the packet's length),
//! and use them where only some may be used: as offsets into the stack, the packet and map values, as sizes, and as
//! keys of an array. The exact number that a use needs is therefore often bounded only by a comparison of another
//! register or slot, on another path.

use crate::common;

use bpf_isa::{Program, assemble};
use bpf_testkit::generate::Choices;
use bpf_verifier::{Env, Reason, Stats, Verifier, VerifyError};
use std::fmt::Write;

/// Branches of a program at most: 2^this paths are walked.
const BRANCHES: usize = 7;

const SUBPROGS: &str = "
bounded:
    r0 = r1
    if r0 > 40 goto big
    r0 = 8
    exit
big:
    r0 = 0
    exit
same:
    r0 = r1
    exit
refine:
    r3 = *(u64 *)(r1 + 0)
    if r3 > 30 goto out
    r0 = 1
    exit
out:
    r0 = 0
    exit
early:
    r6 = r2
    r7 = r1
    *(u64 *)(r10 - 8) = r3
    r0 = *(u8 *)skb[0]
    r1 = *(u64 *)(r10 - 8)
    r1 &= 7
    r7 += r1
    *(u8 *)(r7 + 0) = r1
    r0 = r1
    exit
round:
    r9 = r2
    r1 = *(u64 *)(r9 + 0)
    if r1 > 24 goto stop
    r2 = r9
    r2 += r1
    *(u8 *)(r2 + 8) = 1
    r0 = 0
    exit
stop:
    *(u64 *)(r9 + 0) = 2
    r0 = 0
    exit
peek:
    r1 = *(u64 *)(r2 + 0)
    r0 = 1
    if r1 > 40 goto +4
    r2 += -64
    r2 -= r1
    *(u8 *)(r2 + 0) = 1
    r0 = 0
    exit
";

struct Text<'c, 'b> {
    c: &'c mut Choices<'b>,
    text: String,
    branches: usize,
    labels: usize,
}

impl Text<'_, '_> {
    fn line(&mut self, line: impl std::fmt::Display) {
        writeln!(self.text, "{line}").expect("a string");
    }

    fn number(&mut self) -> &'static str {
        self.c.pick(&["r6", "r7", "r8"])
    }

    fn slot(&mut self) -> i32 {
        -8 * (1 + self.c.below(3) as i32)
    }

    fn size(&mut self) -> (&'static str, i32) {
        self.c.pick(&[("u64", 8), ("u64", 8), ("u32", 4), ("u16", 2), ("u8", 1)])
    }

    fn statement(&mut self, depth: u32) {
        let (a, b, slot) = (self.number(), self.number(), self.slot());
        let constant = self.c.pick(&["0", "1", "3", "8", "9", "24", "31", "33", "40", "63", "64", "200", "-1"]);
        match self.c.below(36) {
            0 | 1 => self.line(format_args!("call 7\n{a} = r0")),
            2 => self.line(format_args!("{a} = {constant}")),
            3..=5 => self.line(format_args!("{a} = {b}")),
            6 => self.line(format_args!("w{} = w{}", &a[1..], &b[1..])),
            7 => {
                let op = self.c.pick(&["+=", "-=", "&=", "|=", "^="]);
                self.line(format_args!("{a} {op} {constant}"));
            }
            8 => {
                let op = self.c.pick(&["+=", "-=", "&=", "|="]);
                self.line(format_args!("{a} {op} {b}"));
            }
            9 => {
                let op = self.c.pick(&["<<= 1", ">>= 1", "*= 2", ">>= 32", "<<= 32", "%= 60", "s>>= 3"]);
                self.line(format_args!("{a} {op}"));
            }
            10..=13 => {
                let (size, bytes) = self.size();
                let off = slot + self.c.below(8 / bytes as u32) as i32 * bytes;
                self.line(format_args!("*({size} *)(r10 {off:+}) = {a}"));
            }
            14 => self.line(format_args!("*(u64 *)(r10 {slot:+}) = {constant}")),
            15..=17 => {
                let (size, bytes) = self.size();
                let off = slot + self.c.below(8 / bytes as u32) as i32 * bytes;
                self.line(format_args!("{a} = *({size} *)(r10 {off:+})"));
            }
            // An offset into the stack; the written byte belongs to one of the slots above, or to none.
            18 | 19 => {
                let base = self.c.pick(&[-96, -96, -64, -24]);
                self.line(format_args!("r3 = r10\nr3 += {base}\nr3 += {a}\n*(u8 *)(r3 + 0) = 1"));
            }
            20 => self.line(format_args!("r3 = r10\nr3 -= {a}\n*(u8 *)(r3 - 8) = 1")),
            // Into the packet.
            21 | 22 => {
                self.labels += 1;
                let label = self.labels;
                self.line("r2 = *(u32 *)(r9 + 4)\nr3 = *(u32 *)(r9 + 0)");
                self.line(format_args!("r3 += {a}\nr4 = r3\nr4 += 8\nif r4 > r2 goto p{label}"));
                let off = self.c.pick(&[0, 7, 7, 8]);
                self.line(format_args!("r0 = *(u8 *)(r3 + {off})\np{label}:"));
            }
            23 => {
                self.labels += 1;
                let label = self.labels;
                self.line("r2 = *(u32 *)(r9 + 4)\nr3 = *(u32 *)(r9 + 0)\nr2 -= r3");
                self.line(format_args!("if {a} > 60 goto p{label}\nif {a} > r2 goto p{label}"));
                let used = self.c.pick(&[a, a, b]);
                self.line(format_args!("r3 += {used}\nr0 = *(u8 *)(r3 - 1)\np{label}:"));
            }
            // An element of an array, which exists if the key is one.
            24 => {
                let load = self.c.pick(&["", "", "if r0 == 0 goto +1\n"]);
                self.line(format_args!("*(u32 *)(r10 - 28) = {a}\nr2 = r10\nr2 += -28\nr1 = map[fd:0]\ncall 1"));
                self.line(format_args!("{load}r0 = *(u8 *)(r0 + 0)"));
            }
            // An offset into an element.
            25 => {
                self.labels += 1;
                let label = self.labels;
                self.line("r2 = r10\nr2 += -32\n*(u64 *)(r10 - 32) = 1\nr1 = map[fd:1]\ncall 1");
                self.line(format_args!("if r0 == 0 goto p{label}\nr0 += {a}\nr0 = *(u8 *)(r0 + 7)\np{label}:"));
            }
            // A helper that writes as many bytes as the number says.
            26 => self.line(format_args!("r1 = r10\nr1 += {slot}\nr2 = {a}\ncall 16")),
            27 => {
                let callee = self.c.pick(&["bounded", "same"]);
                self.line(format_args!("r1 = {a}\ncall {callee}\n{b} = r0"));
            }
            28 => self.line(format_args!("r1 = r10\nr1 += {slot}\ncall refine")),
            29 => self.line(format_args!("r1 = r10\nr1 += -96\nr2 = r9\nr3 = {a}\ncall early\n{b} = r0")),
            30 => {
                self.line(format_args!("*(u64 *)(r10 - 160) = {a}"));
                let (callback, context) = self.c.pick(&[("round", -160), ("peek", -160), ("peek", -8), ("peek", -16)]);
                self.line(format_args!(
                    "r1 = 3\nr2 = subprog[{callback}]\nr3 = r10\nr3 += {context}\nr4 = 0\ncall 181"
                ));
                self.line(format_args!("{b} = *(u64 *)(r10 - 160)"));
            }
            _ if depth < 3 && self.branches < BRANCHES => {
                self.branches += 1;
                self.labels += 1;
                let label = self.labels;
                let op = self.c.pick(&[">", ">", ">=", "<", "<=", "==", "!=", "s>", "s<", "&"]);
                let wide = if self.c.one_in(4) { "w" } else { "r" };
                if self.c.one_in(3) {
                    self.line(format_args!("if {wide}{} {op} {wide}{} goto l{label}", &a[1..], &b[1..]));
                } else if self.c.one_in(4) {
                    self.line(format_args!("call 7\nif r0 > 5 goto l{label}"));
                } else {
                    self.line(format_args!("if {wide}{} {op} {constant} goto l{label}", &a[1..]));
                }
                for _ in 0..self.c.below(3) {
                    self.statement(depth + 1);
                }
                if self.c.one_in(2) {
                    self.line(format_args!("goto e{label}\nl{label}:"));
                    for _ in 0..1 + self.c.below(2) {
                        self.statement(depth + 1);
                    }
                    self.line(format_args!("e{label}:\nr0 = 0"));
                } else {
                    self.line(format_args!("l{label}:\nr0 = 0"));
                }
            }
            _ => {}
        }
    }
}

fn generate(c: &mut Choices<'_>) -> String {
    let mut text = Text { c, text: String::new(), branches: 0, labels: 0 };
    text.line("r9 = r1");
    for r in 6..=8 {
        match text.c.below(4) {
            0 => text.line(format_args!("r{r} = 8")),
            1 => text.line(format_args!("r{r} = *(u32 *)(r9 + 12)")),
            2 => text.line(format_args!("call 7\nr{r} = r0\nr{r} &= 63")),
            _ => text.line(format_args!("call 7\nr{r} = r0")),
        }
    }
    for slot in 1..=3 {
        let r = text.number();
        text.line(format_args!("*(u64 *)(r10 - {}) = {r}", 8 * slot));
    }
    text.line("*(u64 *)(r10 - 32) = 0");
    for _ in 0..10 {
        text.statement(0);
    }
    text.line("r0 = 0\nexit");
    text.text.push_str(SUBPROGS);
    text.text
}

fn verify(verifier: &mut Verifier, program: &Program, exhaustive: bool) -> Result<Stats, Box<VerifyError>> {
    common::with_env(";skb", |env| {
        let env = Env { exhaustive, ..*env };
        verifier.verify(program.clone(), &env).map(|verified| verified.stats())
    })
}

/// Verifies with merging of numbers from the first step on.
fn merge(verifier: &mut Verifier, program: &Program) -> Result<Stats, Box<VerifyError>> {
    common::with_env(";skb", |env| {
        let env = Env { merge_after: 0, ..*env };
        verifier.verify(program.clone(), &env).map(|verified| verified.stats())
    })
}

type Verdict = Result<Stats, String>;

/// Returns the verdict of `some`, which drops paths, and the verdict of the exhaustive walk. `None`: the program was
/// refused by a rule about an instruction, not about a path.
fn verdicts_of(
    verifier: &mut Verifier,
    seed: u64,
    some: impl Fn(&mut Verifier, &Program) -> Result<Stats, Box<VerifyError>>,
) -> Option<(String, Verdict, Verdict)> {
    let text = generate(&mut Choices::from_seed(seed));
    let program = Program::new(assemble(&text).expect("it assembles")).expect("it is valid");
    let all = verify(verifier, &program, true);
    let some = some(verifier, &program);
    let about_paths = |e: &VerifyError| matches!(e.reason, Reason::MixedContext { .. });
    if [&all, &some].into_iter().any(|r| r.as_ref().is_err_and(|e| about_paths(e))) {
        return None;
    }
    Some((text, some.map_err(|e| e.to_string()), all.map_err(|e| e.to_string())))
}

fn verdicts(verifier: &mut Verifier, seed: u64) -> Option<(String, Verdict, Verdict)> {
    verdicts_of(verifier, seed, |verifier, program| verify(verifier, program, false))
}

#[test]
fn programs_are_accepted_if_and_only_if_no_path_need_be_dropped() {
    let mut verifier = Verifier::new();
    let programs = std::env::var("BPF_PROGRAMS").ok().and_then(|n| n.parse().ok()).unwrap_or(20_000);
    let (mut accepted, mut refused, mut pruned, mut fewer) = (0u64, 0u64, 0, 0);
    let first = std::env::var("BPF_SEED").ok().and_then(|n| n.parse().ok()).unwrap_or(0u64);
    for seed in first..first + programs {
        match verdicts(&mut verifier, seed) {
            None => {}
            Some((_, Ok(some), Ok(all))) => {
                accepted += 1;
                pruned += some.pruned;
                fewer += all.steps - some.steps.min(all.steps);
            }
            Some((_, Err(_), Err(_))) => refused += 1,
            Some((text, Ok(_), Err(e))) => panic!("seed {seed} accepted, but a path of it is not: {e}\n{text}"),
            Some((text, Err(e), Ok(_))) => panic!("seed {seed} refused, but no path of it is: {e}\n{text}"),
        }
    }
    println!("{accepted} accepted, {refused} refused, {pruned} pruned, {fewer} steps saved");
    assert!(accepted > programs / 10 && refused > programs / 10 && pruned as u64 > programs / 10);
}

/// Merging numbers changes no verdict.
#[test]
fn programs_that_merge_numbers_are_accepted_if_and_only_if_they_are_without() {
    let mut verifier = Verifier::new();
    let programs = std::env::var("BPF_PROGRAMS").ok().and_then(|n| n.parse().ok()).unwrap_or(20_000);
    let first = std::env::var("BPF_SEED").ok().and_then(|n| n.parse().ok()).unwrap_or(0u64);
    let (mut accepted, mut refused, mut merged) = (0u64, 0u64, 0u64);
    for seed in first..first + programs {
        match verdicts_of(&mut verifier, seed, merge) {
            None => {}
            Some((_, Ok(some), Ok(_))) => {
                accepted += 1;
                merged += u64::from(some.merged > 0);
            }
            Some((_, Err(_), Err(_))) => refused += 1,
            Some((text, Ok(_), Err(e))) => panic!("seed {seed} accepted, but a path of it is not: {e}\n{text}"),
            Some((text, Err(e), Ok(_))) => panic!("seed {seed} refused, but no path of it is: {e}\n{text}"),
        }
    }
    println!("{accepted} accepted, {merged} of them after they gave up a number, {refused} refused");
    assert!(accepted > programs / 10 && refused > programs / 10 && merged > programs / 200);
}

/// Three offsets, which nothing tells apart but their ranges.
const OFFSETS: &str = "
r9 = r1
call 7
r8 = r0
call 7
if r0 > 5 goto second
r8 &= 31
goto join
second:
if r0 > 9 goto third
r8 &= 63
goto join
third:
r8 &= 127
join:
";

/// Uses the number as an offset into the packet, with a bounds test afterwards: any of the numbers is accepted.
const INTO_PACKET: &str = "
r2 = *(u32 *)(r9 + 4)
r3 = *(u32 *)(r9 + 0)
r3 += r8
r4 = r3
r4 += 8
if r4 > r2 goto out
r0 = *(u8 *)(r3 + 7)
r0 = *(u8 *)(r3 + 6)
r0 = *(u8 *)(r3 + 5)
out:
r0 = 0
exit";

/// Uses the number as an offset into the stack, which has room for each of the three ranges, and not for all numbers of
/// 8 bits.
const INTO_STACK: &str = "
r3 = r10
r3 += -130
r3 += r8
*(u8 *)(r3 + 0) = 1
r0 = 0
exit";

#[test]
fn offsets_are_merged_where_all_are_alike_and_only_there() {
    let mut verifier = Verifier::new();
    let mut both = |text: &str| {
        let program = common::program(text);
        let merged = merge(&mut verifier, &program).unwrap_or_else(|e| panic!("{e}\n{text}"));
        let apart = verify(&mut verifier, &program, false).unwrap_or_else(|e| panic!("{e}\n{text}"));
        assert_eq!(apart.merged, 0, "a short walk merges nothing");
        (merged, apart)
    };
    let text = OFFSETS.to_owned() + INTO_PACKET;
    let (merged, apart) = both(&text);
    assert!(merged.merged > 0 && merged.steps < apart.steps, "{merged:?} {apart:?}");
    // The merged walk is refused, and the program is walked again without merging.
    let (merged, apart) = both(&(OFFSETS.to_owned() + INTO_STACK));
    assert_eq!((merged.merged, merged.steps), (0, apart.steps));
    let (merged, _) = both(&(OFFSETS.to_owned() + &INTO_STACK.replace("-130", "-260")));
    assert!(merged.merged > 0);
    // Constants are not merged, since they tell paths apart.
    let (merged, apart) = both(&text.replace("r8 &=", "r8 ="));
    assert_eq!((merged.merged, merged.steps), (0, apart.steps));
    // No number is merged in a program with loops.
    let looped = text.replace("\njoin:\n", "\njoin:\nr7 = 2\nagain:\nr7 -= 1\nif r7 != 0 goto again\n");
    let (merged, apart) = both(&looped);
    assert_eq!((merged.merged, merged.steps), (0, apart.steps));
}

/// The register that is needed exactly where the paths join is clobbered by the call.
const CALL: &str = "
call 7
r2 = 8
if r0 > 5 goto join
r2 = 16
join:
r1 = r10
r1 += -16
call 16
r0 = 0
exit";

#[test]
fn states_are_compared_behind_calls() {
    let stats = verify(&mut Verifier::new(), &common::program(CALL), false).expect(CALL);
    // One path takes nine instructions, and the other the three behind the join and the one where it is dropped.
    assert_eq!((stats.steps, stats.pruned), (13, 1), "{stats:?}");
}

/// A slot is bounded by a comparison of the register that was stored there: on one of the paths that meet.
const TIED_SLOT: &str = "
call 7
r6 = r0
call 7
if r0 > 5 goto other
*(u64 *)(r10 - 8) = r6
goto join
other:
call 7
*(u64 *)(r10 - 8) = r0
join:
if r6 > 40 goto out
r2 = *(u64 *)(r10 - 8)
r3 = r10
r3 += -64
r3 += r2
*(u8 *)(r3 + 0) = 1
out:
r0 = 0
exit";

/// One of two adjacent bytes is overwritten after the paths meet.
const NEIGHBOUR: &str = "
call 7
*(u8 *)(r10 - 1) = 8
if r0 > 5 goto other
goto join
other:
*(u8 *)(r10 - 1) = 200
join:
*(u8 *)(r10 - 2) = 1
r2 = *(u8 *)(r10 - 1)
r3 = r10
r3 += -64
r3 += r2
*(u8 *)(r3 + 0) = 1
r0 = 0
exit";

/// One key is in range of the array, and the other is not.
const KEY: &str = "
call 7
*(u32 *)(r10 - 28) = 1
if r0 > 5 goto other
goto join
other:
*(u32 *)(r10 - 28) = 200
join:
r2 = r10
r2 += -28
r1 = map[fd:0]
call 1
r0 = *(u8 *)(r0 + 0)
r0 = 0
exit";

/// The rest of the packet after a pointer, and a number that is not that rest.
const LEFT: &str = "
r9 = r1
r7 = *(u32 *)(r9 + 4)
r6 = *(u32 *)(r9 + 0)
call 7
r8 = r0
r8 &= 63
r6 += r8
if r6 > r7 goto out
r8 = r7
r8 -= r6
call 7
if r0 > 5 goto other
goto join
other:
call 7
r8 = r0
join:
if r8 < 10 goto out
r0 = *(u64 *)(r6 + 0)
out:
r0 = 0
exit";

/// A pointer is advanced by the compared number and by another one, while a sum of numbers is known.
const MOVED: &str = "
r9 = r1
call 7
r8 = r0
r8 &= 63
r7 = *(u32 *)(r9 + 4)
r6 = *(u32 *)(r9 + 0)
r4 = r6
r4 += 60
if r4 > r7 goto out
r4 = r6
r4 += r8
if r4 > r7 goto out
r3 = r7
r3 -= r4
*(u64 *)(r10 - 8) = r4
*(u64 *)(r10 - 16) = r3
call 7
r8 = r0
r8 &= 1023
r6 += r8
call 7
if r0 > 5 goto other
goto join
other:
call 7
r8 = r0
r8 &= 1023
join:
if r8 > 40 goto out
r0 = *(u8 *)(r6 + 0)
r3 = *(u64 *)(r10 - 16)
r4 = *(u64 *)(r10 - 8)
if r3 < 3 goto out
r0 = *(u8 *)(r4 + 1)
out:
r0 = 0
exit";

/// The paths meet between the two shifts of a cast. On one path, two registers hold the number that is cast.
const SHIFTED: &str = "
call 7
w6 = w0
r7 = r6
r8 = r6
call 7
if r0 > 5 goto other
goto cast
other:
call 7
w6 = w0
r6 <<= 32
goto join
cast:
r6 <<= 32
join:
r6 >>= 32
if r6 > 40 goto out
r3 = r10
r3 += -64
r3 += r7
*(u8 *)(r3 + 0) = 1
r3 = r10
r3 += -64
r3 += r8
*(u8 *)(r3 + 0) = 1
out:
r0 = 0
exit";

/// The fact about a part of the packet's length in a slot that is never read bounds the other part.
const PART: &str = "
r9 = r1
call 7
r3 = r0
r3 &= 127
r7 = *(u32 *)(r9 + 4)
r6 = *(u32 *)(r9 + 0)
r4 = r6
r4 += 200
if r4 > r7 goto out
r9 = r7
r9 -= r6
r6 += r3
*(u64 *)(r10 - 8) = r3
if r6 > r7 goto out
if r3 < 50 goto other
r0 = 0
other:
r8 = r7
r8 -= r6
if r9 > 300 goto out
r3 = r10
r3 += -256
r3 += r8
*(u8 *)(r3 + 0) = 1
out:
r0 = 0
exit";

#[test]
fn parts_of_sums_are_needed() {
    let mut verifier = Verifier::new();
    let error = verify(&mut verifier, &common::program(PART), false).expect_err(PART);
    assert!(matches!(error.reason, Reason::StackBounds { .. }), "{error}");
    let safe = PART.replace("goto other\n", "goto out\n");
    verify(&mut verifier, &common::program(&safe), false).unwrap_or_else(|e| panic!("{e}\n{safe}"));
}

#[test]
fn what_is_bounded_by_sums_and_what_no_state_holds_is_needed() {
    let mut verifier = Verifier::new();
    for text in [LEFT, MOVED, SHIFTED] {
        for exhaustive in [true, false] {
            let error = verify(&mut verifier, &common::program(text), exhaustive).expect_err(text);
            assert!(matches!(error.reason, Reason::PacketBounds { .. } | Reason::OffsetUnbounded(..)), "{error}");
        }
    }
    // Both paths have the numbers that bound the access.
    for text in [LEFT, MOVED] {
        let safe = text.replace("goto other\n", "goto +0\n");
        verify(&mut verifier, &common::program(&safe), false).unwrap_or_else(|e| panic!("{e}\n{safe}"));
    }
}

/// [`TIED_SLOT`] with slots deeper than the tracked part of the stack, and with one that is tracked in part.
#[test]
fn deep_slots_are_needed() {
    for depth in [520, 516, 600] {
        let text = TIED_SLOT.replace("r10 - 8", &format!("r10 - {depth}"));
        let verify = |text: &str| {
            common::with_env(text, |env| {
                Verifier::new().verify(common::program(text), &Env { frame_bytes: 1024, ..*env }).map(|_| ())
            })
        };
        let error = verify(&text).expect_err(&text);
        assert!(matches!(error.reason, Reason::OffsetUnbounded(..)), "{error}");
        let safe = text.replace("goto other\n", "goto +0\n");
        verify(&safe).unwrap_or_else(|e| panic!("{e}\n{safe}"));
    }
}

#[test]
fn what_is_tied_and_what_lies_beside_is_needed() {
    let mut verifier = Verifier::new();
    for text in [TIED_SLOT, NEIGHBOUR, KEY] {
        let error = verify(&mut verifier, &common::program(text), false).expect_err(text);
        let about_address =
            |r: &Reason| matches!(r, Reason::OffsetUnbounded(..) | Reason::StackBounds { .. } | Reason::MaybeNull(_));
        assert!(about_address(&error.reason), "{error}");
    }
    // Both paths have the number, or one as small.
    let safe =
        [TIED_SLOT.replace("goto other\n", "goto +0\n"), NEIGHBOUR.replace("200", "63"), KEY.replace("200", "3")];
    for text in &safe {
        verify(&mut verifier, &common::program(text), false).unwrap_or_else(|e| panic!("{e}\n{text}"));
    }
}

/// Each planted fault in the analysis of needed numbers changes a verdict.
#[cfg(feature = "faults")]
#[test]
fn faults_in_needs_are_found() {
    use bpf_verifier::faults::{Fault, plant};
    let mut missed = Vec::new();
    for &fault in Fault::OF_NEEDS {
        plant(Some(fault));
        let mut verifier = Verifier::new();
        let accepts = |verifier: &mut Verifier, text| verify(verifier, &common::program(text), false).is_ok();
        let found = match fault {
            Fault::TiedSlotsUnmarked => accepts(&mut verifier, TIED_SLOT),
            Fault::RoundReadsForgotten => accepts(&mut verifier, &CONSTRUCTS[0].that_reads(SECOND_IS_FAR)),
            Fault::NeighbourOverwritten => accepts(&mut verifier, NEIGHBOUR),
            Fault::KeysUnmarked => accepts(&mut verifier, KEY),
            Fault::MergedIsOld => {
                (0..40_000).any(|seed| matches!(verdicts_of(&mut verifier, seed, merge), Some((_, Ok(_), Err(_)))))
            }
            _ => (0..40_000).any(|seed| matches!(verdicts(&mut verifier, seed), Some((_, Ok(_), Err(_))))),
        };
        plant(None);
        if !found {
            missed.push(fault);
        }
    }
    assert!(missed.is_empty(), "not found: {missed:?}");
}

/// Branches of which each leaves one of two numbers in a slot; the number decides nothing.
fn choices(branches: usize, then: &str) -> String {
    let mut text = String::from("r9 = r1\n");
    for i in 1..=branches {
        let at = 8 * i;
        writeln!(
            text,
            "call 7\n*(u64 *)(r10 - {at}) = 1\nif r0 > 5 goto n{i}\n*(u64 *)(r10 - {at}) = 2\nn{i}:\nr1 = 0"
        )
        .expect("a string");
    }
    text + then
}

/// A construct (a callback, a loop, an iterator) with an unknown number of rounds, which reads none of the slots.
struct Construct {
    text: &'static str,
    /// Puts the address of the frame's byte 256 into r5, at the line `round` of the text.
    frame: &'static str,
}

const CONSTRUCTS: [Construct; 4] = [
    Construct {
        text: "
    *(u64 *)(r10 - 256) = 0
    r1 = 100
    r2 = subprog[f]
    r3 = r10
    r3 += -256
    r4 = 0
    call 181
    r0 = 0
    exit
    f:
    round
    r1 = *(u64 *)(r2 + 0)
    r1 += 1
    *(u64 *)(r2 + 0) = r1
    r0 = 0
    exit",
        frame: "r5 = r2",
    },
    Construct {
        text: "
    r1 = map[fd:1]
    r2 = subprog[f]
    r3 = r10
    r3 += -256
    *(u64 *)(r10 - 256) = 0
    r4 = 0
    call 164
    r0 = 0
    exit
    f:
    round
    r1 = *(u8 *)(r3 + 0)
    *(u64 *)(r4 + 0) = r1
    r0 = 0
    exit",
        frame: "r5 = r4",
    },
    Construct {
        text: "
    r6 = 0
    m:
    round
    may_goto +2
    r6 += 1
    goto m
    r0 = 0
    exit",
        frame: "r5 = r10\nr5 += -256",
    },
    Construct {
        text: "
    r1 = r10
    r1 += -264
    r2 = 0
    r3 = 100
    call bpf_iter_num_new
    m:
    r1 = r10
    r1 += -264
    call bpf_iter_num_next
    if r0 == 0 goto d
    round
    goto m
    d:
    r1 = r10
    r1 += -264
    call bpf_iter_num_destroy
    r0 = 0
    exit",
        frame: "r5 = r10\nr5 += -256",
    },
];

/// Maps 2 to 200 and 1 to 400.
const SECOND_IS_FAR: &str = "r1 ^= 3\nr1 *= 200";

impl Construct {
    /// The construct behind this number of branches.
    fn behind(&self, branches: usize) -> String {
        choices(branches, &self.lines(""))
    }

    /// The construct behind one branch. Each round loads the number in the branch's slot, applies `change`, and writes
    /// a byte that far above the frame's byte 256.
    fn that_reads(&self, change: &str) -> String {
        let read = format!("{}\nr1 = *(u64 *)(r5 + 248)\n{change}\nr5 += r1\n*(u8 *)(r5 + 0) = 1", self.frame);
        choices(1, &self.lines(&read))
    }

    fn lines(&self, round: &str) -> String {
        self.text
            .lines()
            .map(str::trim)
            .map(|line| if line == "round" { round } else { line })
            .collect::<Vec<_>>()
            .join("\n")
    }
}

/// State that is dead in the rounds and behind them is forgotten before the construct is entered, so paths that differ
/// only in such state are merged.
#[test]
fn branches_before_a_bounded_construct_do_not_multiply() {
    let mut verifier = Verifier::new();
    for construct in &CONSTRUCTS {
        let mut steps = |branches: usize| {
            let text = construct.behind(branches);
            verify(&mut verifier, &common::program(&text), false).unwrap_or_else(|e| panic!("{e}\n{text}")).steps
        };
        let (few, many) = (steps(8), steps(16));
        assert!(many < 3 * few, "{few} steps of 8 branches, {many} of 16: {}", construct.text);
        // The round uses the number as an offset: 200 bytes further lies in the frame, and 400 bytes lies outside of
        // it. Both numbers are walked, in either order.
        for (change, fits) in [("r1 *= 100", true), ("r1 *= 200", false), (SECOND_IS_FAR, false)] {
            let text = construct.that_reads(change);
            assert_eq!(verify(&mut verifier, &common::program(&text), false).is_ok(), fits, "{text}");
        }
    }
}
