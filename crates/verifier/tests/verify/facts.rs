//! Tests the facts about numbers, addresses and loops for an optimiser. `soundness` and `loops_oracle` test that the
//! facts are true; these tests show that they are precise.

use crate::common;

use bpf_analysis::{AccessFact, AccessRegion, Facts, Known, MemKind};
use bpf_isa::{InsnIdx, Program, assemble};
use bpf_verifier::{ContextLayout, Env, Helpers, Verifier};

fn facts_of(text: &str, values: bool) -> Facts {
    let program = Program::new(assemble(text).expect("instructions")).expect("valid");
    let (context, helpers) = (ContextLayout::raw(true), Helpers::none());
    let mut env = Env::new(&context, &helpers);
    env.values = values;
    let verified = Verifier::new().verify(program, &env).unwrap_or_else(|e| panic!("{text}\n{e}"));
    verified.facts().clone()
}

#[test]
fn numbers_addresses_and_branches() {
    let text = "
        r0 = 0
        if r2 < 16 goto out
        r3 = *(u8 *)(r1 + 4)
        r3 &= 6
        r4 = r1
        r4 += r3
        r0 = *(u16 *)(r4 + 2)
        *(u64 *)(r10 - 8) = r3
        if r3 > 7 goto out
        r5 = 5
        if r0 == 9 goto b
        r5 = 7
        b: r1 += r5
        r0 = *(u8 *)(r1 + 0)
        out: exit";
    let facts = facts_of(text, true);
    let at = |i: u32| facts.values(InsnIdx(i));
    let masked = at(3);
    assert_eq!((masked.dst.umax, masked.result.umax, masked.result.mask), (255, 6, 6));
    let access = |region, min, max, align| Some(AccessFact { region, min, max, align });
    assert_eq!(at(2).access, access(AccessRegion::Packet(0), 4, 4, 1));
    assert_eq!(at(6).access, access(AccessRegion::Packet(0), 2, 8, 1));
    assert_eq!(at(7).access, access(AccessRegion::Frame, -8, -8, 8));
    assert_eq!((at(7).src.umax, at(6).result.umax), (6, 65535));
    assert_eq!((at(1).taken, at(8).taken, at(10).taken), (None, Some(false), None));
    // Two paths meet with different numbers, and a branch depends on the number.
    let met = at(12).src;
    assert_eq!((met.umin, met.umax, met.mask, met.value), (5, 7, 2, 5));
    // A pointer is no number.
    assert_eq!(at(5).result, Known::NOTHING);
    assert_eq!(facts.loops, []);
    // Without `values`, no facts about values or loops are recorded.
    let silent = facts_of(text, false);
    assert!(silent.values.is_empty() && silent.loops.is_empty());
}

/// The bytes of frames that no pointer reaches: what a helper, a callee or a store at a variable place is given is not
/// among them.
#[test]
fn private_bytes_of_frames() {
    let private = |text: &str| -> Vec<(u32, u32, u32)> {
        facts_of(text, false).private.iter().map(|range| (range.subprog.0, range.depth, range.bytes)).collect()
    };
    // Only r10 is a base.
    assert_eq!(private("*(u64 *)(r10 - 8) = 1\n*(u32 *)(r10 - 24) = 1\nr0 = *(u64 *)(r10 - 8)\nexit"), [(0, 24, 24)]);
    // A copy of r10, at a constant distance, and at one of 0 to 12.
    let copy = "*(u64 *)(r10 - 32) = 1\nr4 = r10\nr4 += -16\n*(u32 *)(r4 + 4) = 1\nr0 = 0\nexit";
    assert_eq!(private(copy), [(0, 8, 8), (0, 32, 20)]);
    let variable = "
        r0 = 0
        if r2 == 0 goto out
        *(u64 *)(r10 - 40) = 1
        r3 = *(u8 *)(r1 + 0)
        r3 &= 12
        r4 = r10
        r4 += r3
        *(u32 *)(r4 - 32) = 1
        out: exit";
    assert_eq!(private(variable), [(0, 16, 16), (0, 40, 8)]);
    // A callee has a frame of its own, and writes to the caller's.
    let callee = "
        *(u64 *)(r10 - 8) = 1
        r1 = r10
        r1 += -24
        call add
        r0 = *(u64 *)(r10 - 8)
        exit
        add: *(u64 *)(r10 - 16) = r1
        *(u64 *)(r1 + 8) = 7
        r0 = 0
        exit";
    assert_eq!(private(callee), [(0, 8, 8), (1, 16, 16)]);
}

#[test]
fn rounds_of_loops() {
    let rounds = |text: &str| -> Vec<(u32, Option<u64>)> {
        facts_of(text, true).loops.iter().map(|l| (l.head.0, l.rounds)).collect()
    };
    // Tested at the bottom, at the top, and by a length that is not known.
    assert_eq!(rounds("r0 = 0\na: r0 += 1\nif r0 != 10 goto a\nexit"), [(1, Some(9))]);
    assert_eq!(rounds("r0 = 0\na: if r0 > 9 goto b\nr0 += 1\ngoto a\nb: exit"), [(1, Some(10))]);
    let text =
        "r3 = 0\na: if r3 >= r2 goto b\nr0 = r1\nr0 += r3\nr0 = *(u8 *)(r0 + 0)\nr3 += 1\ngoto a\nb: r0 = 0\nexit";
    let max_len = u64::from(ContextLayout::raw(true).regions[0].max_len);
    assert_eq!(rounds(text), [(1, Some(max_len))]);
    // A nest: the inner loop's rounds are counted from each entry.
    let nest = "r0 = 0\na: r3 = 0\nb: r3 += 1\nif r3 != 7 goto b\nr0 += 1\nif r0 != 5 goto a\nexit";
    assert_eq!(rounds(nest), [(1, Some(4)), (2, Some(6))]);
    // The number halves in each round; no bound of the rounds is derived.
    assert_eq!(rounds("r0 = r2\na: r0 >>= 1\nif r0 != 0 goto a\nexit"), [(1, None)]);
    // Digits, seven in a row: the outer loop is proven to end only after the inner loop's first round is peeled. The
    // proven bound of 6 counts the rounds after the peeled one.
    let digits = "
        r3 = 0
        a: if r3 >= r2 goto out
        r4 = r1
        r4 += r3
        r5 = *(u8 *)(r4 + 0)
        if r5 < 48 goto no
        if r5 > 57 goto no
        r6 = 0
        b: if r6 > 6 goto a
        if r3 >= r2 goto a
        r4 = r1
        r4 += r3
        r5 = *(u8 *)(r4 + 0)
        if r5 < 48 goto a
        if r5 > 57 goto a
        r6 += 1
        r3 += 1
        goto b
        no: r3 += 1
        goto a
        out: r0 = 0
        exit";
    assert_eq!(rounds(digits), [(1, None), (8, None)]);
    // A fact about a round holds for all rounds.
    let facts = facts_of("r0 = 0\na: r0 += 2\nif r0 != 64 goto a\nexit", true);
    let moved = facts.values(InsnIdx(1));
    assert_eq!((moved.dst.umin, moved.dst.umax, moved.result.umin, moved.result.umax), (0, 62, 2, 64));
    assert_eq!((moved.result.mask & 1, moved.result.value & 1), (0, 0));
}

/// An optimiser assumes that accesses of different kinds do not alias, so an access that may reach memory of several
/// kinds gets no kind.
#[test]
fn memory_that_may_be_anybodys_is_of_no_kind() {
    let text = ";global mem
        *(u64 *)(r10 - 8) = 0
        r1 = r10
        r1 += -8
        call f
        call 1008
        if r0 == 0 goto no
        *(u64 *)(r0 + 0) = 0
        no: r1 = map[fd:3]
        r2 = 8
        r3 = 0
        call 131
        if r0 == 0 goto none
        *(u64 *)(r0 + 0) = 0
        r1 = r0
        r2 = 0
        call 132
        none: r0 = 0
        exit
        f: r0 = 0
        if r1 == 0 goto out
        *(u64 *)(r1 + 0) = 1
        out: exit";
    let verified = common::verify(text).unwrap_or_else(|e| panic!("{e}"));
    let insns = &verified.facts().insns;
    let kinds: Vec<_> = common::program(text)
        .insns()
        .iter()
        .zip(insns)
        .filter(|(insn, _)| insn.memory_access().is_some())
        .map(|(_, fact)| fact.memory)
        .collect();
    // The stack; a function's result, which may be a map's value; a record; a caller's memory.
    assert_eq!(kinds, [Some(MemKind::Stack), None, Some(MemKind::Mem), None]);
}
