//! Unsafe programs, each accepted with one planted fault in the proofs of loops only; the oracle sees the violation.

use bpf_isa::{Program, assemble};
use bpf_testkit::generate::Choices;
use bpf_verifier::faults::{Fault, plant};

use crate::border::{Oracle, Outcome};

/// Each planted fault in the proofs of loops lets an unsafe program be accepted, and the oracle sees the violation.
#[test]
fn each_fault_is_found() {
    let wrong = |fault: Fault| match fault {
        Fault::StepOnOnePath => {
            "r3 = 0
             r4 = 0
             a: r5 = r1
             r5 += r4
             r0 = *(u8 *)(r5 + 0)
             r4 += 1
             if r0 > 9 goto b
             goto c
             b: r4 += 9
             c: r3 += 1
             if r3 < 31 goto a"
        }
        // A pointer that is behind the end already is not before it, at any distance.
        Fault::AssumedBeforeEnd => {
            "r3 = r1
             r3 += r2
             r5 = 0
             a: r6 = r3
             r6 -= r1
             if r6 == 0 goto out
             r0 = *(u8 *)(r1 + 0)
             r1 += 8
             r5 += 1
             if r5 < 20 goto a
             out:"
        }
        // Where the number is not 10, it may exceed the buffer's length.
        Fault::PartUnwalked => {
            "r3 = 0
             a: if r3 == 0 goto c
             r0 = *(u8 *)(r1 + 0)
             if r0 == 10 goto c
             if r0 != 10 goto b
             goto c
             b: if r0 < 10 goto c
             r6 = r1
             r6 += r0
             r0 = *(u8 *)(r6 + 0)
             c: r3 += 1
             if r3 < 20 goto a"
        }
        // The access is four bytes before the compared pointer.
        Fault::NegativeForgetsDistance => {
            "r9 = r1
             r9 += r2
             r3 = 0
             a: r4 = r9
             r4 += r3
             if r4 <= r1 goto out
             r3 += -1
             r5 = r3
             r5 += -4
             r6 = r9
             r6 += r5
             r0 = *(u8 *)(r6 - 1)
             goto a
             out:"
        }
        Fault::StrideLost => {
            "r3 = 0
             r4 = 0
             a: r5 = r1
             r5 += r4
             r0 = *(u8 *)(r5 + 0)
             r4 += 2
             r3 += 1
             if r3 < 20 goto a"
        }
        Fault::AtMostIsLess => {
            "r3 = 0
             a: if r3 > r2 goto out
             r5 = r1
             r5 += r3
             r0 = *(u8 *)(r5 + 0)
             r3 += 1
             goto a
             out:"
        }
        Fault::WrapForgotten => "w3 = -3\na: w3 += 1\nif w3 != 5 goto a",
        // The summand is 7 minus the other one, modulo 2^32.
        Fault::SumsNeverWrap => {
            "r3 = *(u32 *)(r1 + 0)
             r4 = r3
             r5 = r3
             w5 ^= -1
             w5 += 8
             r6 = r5
             w3 += w5
             if r3 > 30 goto out
             r5 = r1
             r5 += r4
             r0 = *(u8 *)(r5 + 0)
             out: r3 = 0
             a: r3 += 1
             if r3 < 3 goto a"
        }
        // A pointer that falls before the buffer does not bound the rounds.
        Fault::LinesBelowZero => {
            "r3 = *(u8 *)(r1 + 0)
             r3 &= 7
             r4 = r1
             r4 += r3
             r5 = 0
             a: r6 = r10
             r6 += -8
             r6 += r5
             *(u8 *)(r6 + 0) = 1
             r4 += -1
             r5 += 1
             if r5 < 20 goto a
             r6 = r10
             r6 += -8
             r6 += r3
             *(u8 *)(r6 + 0) = 1"
        }
        // One pointer moves by a number, the other by twice the number.
        Fault::BasesMoveApart => {
            "r6 = r1
             r7 = r1
             r7 += r2
             r2 = r6
             r3 = r6
             r8 = 0
             a: r4 = r3
             r4 += 1
             if r4 > r7 goto out
             r0 = *(u8 *)(r2 + 0)
             r5 = *(u8 *)(r6 + 1)
             r9 = r5
             r9 <<= 1
             r2 = r6
             r2 += r9
             r3 = r6
             r3 += r5
             r8 += 1
             if r8 < 10 goto a
             out:"
        }
        // The low half comes back, and was not compared.
        Fault::ShiftsLoseNothing => {
            "r3 = *(u64 *)(r1 + 0)
             r4 = r3
             r4 <<= 32
             r4 >>= 32
             if r4 > 7 goto out
             r5 = r10
             r5 += -8
             r5 += r3
             *(u8 *)(r5 + 0) = 1
             out:"
        }
        Fault::EveryLoopEnds => {
            "r3 = 0
             a: r4 = *(u8 *)(r1 + 0)
             if r4 != 7 goto b
             r3 += 1
             b: if r3 < 8 goto a"
        }
        _ => {
            "r3 = 0
             a: r5 = r10
             r5 += -64
             r5 += r3
             *(u64 *)(r5 + 0) = 1
             r3 += 8
             if r3 != 64 goto a
             r0 = *(u64 *)(r10 - 8)
             r0 = *(u8 *)(r1 + 200)"
        }
    };
    let mut missed = Vec::new();
    for &fault in Fault::OF_LOOPS {
        let text = format!("{}\nr0 = 0\nexit", wrong(fault));
        let program = Program::new(assemble(&text).expect("instructions")).expect("valid");
        let check = || {
            let mut oracle = Oracle::new(false);
            oracle.check(&program, 64, &mut Choices::from_seed(1))
        };
        let sound = check();
        plant(Some(fault));
        let planted = check();
        plant(None);
        let right =
            matches!(sound, Outcome::Refused(_)) || (fault == Fault::WrapForgotten && matches!(sound, Outcome::Ran(_)));
        assert!(right, "{fault:?} without it");
        match planted {
            Outcome::Violation(_) => {}
            Outcome::Refused(e) => missed.push(format!("{fault:?}: refused: {e}")),
            Outcome::Ran(n) => missed.push(format!("{fault:?}: ran {n}")),
        }
    }
    assert!(missed.is_empty(), "not found: {}", missed.join("\n"));
}

/// Each planted fault in the tracking of bytes that loops have written lets a program be accepted that reads unwritten
/// stack, which is not zeroed then.
#[test]
fn each_fault_of_fills_reads_what_was_not_written() {
    let wrong = |fault: Fault| match fault {
        // Two bytes of eight are never written.
        Fault::FillLeavesHoles => {
            "r3 = 0
             a: r5 = r10
             r5 += -64
             r5 += r3
             *(u32 *)(r5 + 0) = 1
             *(u16 *)(r5 + 6) = 1
             r3 += 8
             if r3 != 64 goto a
             r0 = *(u64 *)(r10 - 8)"
        }
        // The first element is a pointer, but for the first round.
        Fault::FillHoldsPointers => {
            "r3 = 0
             a: r5 = r10
             r5 += -64
             *(u64 *)(r5 + 0) = r1
             r5 += r3
             *(u64 *)(r5 + 0) = 1
             r3 += 8
             if r3 != 64 goto a
             r6 = *(u8 *)(r1 + 0)
             r6 &= 56
             r5 = r10
             r5 += -64
             r5 += r6
             r0 = *(u64 *)(r5 + 0)"
        }
        // One path writes nothing.
        Fault::FillForgotten => {
            "r3 = 0
             *(u8 *)(r10 - 1) = 1
             a: r4 = *(u8 *)(r1 + 0)
             r5 = r10
             r5 += -64
             r5 += r3
             if r4 > 99 goto b
             *(u64 *)(r5 + 0) = 1
             b: r3 += 8
             if r3 != 64 goto a
             r0 = *(u64 *)(r10 - 8)"
        }
        _ => panic!("no program for {fault:?}"),
    };
    for &fault in Fault::OF_FILLS {
        let program = bpf_isa::assemble(&format!("{}\nr0 = 0\nexit", wrong(fault))).expect("instructions");
        let program = bpf_isa::Program::new(program).expect("valid");
        let check = || {
            let mut oracle = Oracle::new(false);
            let env = bpf_verifier::Env::new(&oracle.context, &oracle.helpers);
            oracle.verifier.verify(program.clone(), &env).ok().map(|verified| verified.facts().zeroed.clone())
        };
        // Without the fault, the program is refused or its stack is zeroed.
        assert_ne!(check(), Some(Vec::new()), "{fault:?} without it");
        plant(Some(fault));
        let planted = check();
        plant(None);
        assert_eq!(planted, Some(Vec::new()), "{fault:?} is not found");
    }
}

/// Each planted fault in the facts about sums and differences lets an unsafe program be accepted.
#[test]
fn each_fault_of_sums_is_found() {
    let wrong = |fault: Fault| match fault {
        // One path passes the test that the other path has failed.
        Fault::RelationsUnchecked => {
            "r3 = *(u8 *)(r1 + 0)
             r3 &= 7
             r3 += 1
             r4 = r2
             r6 = 0
             if r3 > r4 goto out
             a: r5 = r1
             r5 += r6
             r5 += r3
             r0 = *(u8 *)(r5 - 1)
             r7 = *(u8 *)(r1 + 1)
             r7 &= 3
             r7 += 1
             r6 += r7
             r0 = r6
             r0 += r3
             if r0 > r4 goto b
             goto a
             b: if r6 < 60 goto a
             out:"
        }
        // The index is below another end than the one that bounds it; where a number wraps, no guess is made.
        Fault::RelationsByOldNames => {
            "r0 = 0
             r9 = 0
             if r2 < 64 goto out
             *(u64 *)(r1 + 0) = 0
             *(u64 *)(r1 + 46) = -1
             *(u8 *)(r1 + 8) = 5
             *(u8 *)(r1 + 24) = 90
             *(u8 *)(r1 + 25) = 25
             r6 = r1
             r8 = 0
             r3 = 0
             *(u64 *)(r10 - 8) = r8
             *(u64 *)(r10 - 16) = r8
             r5 = *(u8 *)(r1 + 8)
             if r5 > r2 goto out
             r9 = *(u8 *)(r1 + 9)
             if r9 > r2 goto out
             if r3 >= r5 goto out
             a: r4 = r6
             r4 += r3
             r0 = *(u8 *)(r4 + 0)
             r4 = r10
             r4 += -16
             r4 += r3
             r7 = *(u8 *)(r4 + 0)
             r4 = r6
             r4 += r8
             r7 = *(u64 *)(r4 + 16)
             r4 = r7
             r7 += 1
             if r7 == 0 goto rare
             if r0 > 50 goto move
             r8 += 1
             if r8 < 40 goto a
             goto out
             move: r3 += 1
             if r3 > 10 goto out
             if r3 >= r5 goto out
             r8 += 1
             if r8 < 40 goto a
             goto out
             rare: r9 = r5
             if r9 > 11 goto out
             r5 = *(u8 *)(r6 + 24)
             if r5 > r2 goto out
             r3 = *(u8 *)(r6 + 25)
             if r3 > r8 goto out
             if r3 >= r5 goto out
             r8 += 1
             if r8 < 40 goto a
             out: r0 = r9"
        }
        // 63 less 60 is 3, and has not wrapped.
        Fault::DifferencesWrapEarly => {
            "r3 = *(u8 *)(r1 + 0)
             r3 &= 63
             r4 = r3
             r4 += -60
             if r4 < 3 goto out
             r5 = r10
             r5 += -60
             r5 += r3
             *(u8 *)(r5 + 0) = 1
             out: r3 = 0
             a: r3 += 1
             if r3 < 3 goto a"
        }
        // A third of 17 is 5.
        Fault::RemainderForgotten => {
            "r3 = *(u8 *)(r1 + 0)
             r4 = r3
             r4 /= 3
             if r4 > 5 goto out
             r5 = r10
             r5 += -16
             r5 += r3
             *(u8 *)(r5 + 0) = 1
             out: r3 = 0
             a: r3 += 1
             if r3 < 3 goto a"
        }
        // 64 bytes, and a test that lets one more be written.
        Fault::BoundedSumsLess => {
            "r6 = *(u8 *)(r1 + 0)
             r6 &= 63
             r7 = 0
             a: r5 = r10
             r5 += -64
             r5 += r6
             r5 += r7
             *(u8 *)(r5 + 0) = 1
             r7 += 1
             r8 = r6
             r8 += r7
             r9 = *(u8 *)(r1 + 1)
             if r9 > 250 goto out
             if r8 < 65 goto a
             out:"
        }
        // The first number is at most the third, by way of the second; the access is one byte beyond that bound.
        Fault::ProvenLess => {
            "r3 = *(u8 *)(r1 + 0)
             r3 >>= 6
             r4 = *(u8 *)(r1 + 1)
             r4 >>= 6
             r5 = *(u8 *)(r1 + 2)
             r5 >>= 6
             r0 = r3
             r0 = r4
             r0 = r5
             if r3 > r4 goto out
             if r4 > r5 goto out
             if r5 > 2 goto out
             r6 = r10
             r6 += -3
             r6 += r3
             *(u8 *)(r6 + 0) = 1
             *(u8 *)(r6 + 1) = 1
             out: r3 = 0
             a: r3 += 1
             if r3 < 3 goto a"
        }
        // The sum of a number and 1 exceeds the number by one.
        Fault::ConstantPartMore => {
            "r3 = *(u8 *)(r1 + 0)
             r3 >>= 6
             r4 = *(u8 *)(r1 + 1)
             r4 >>= 6
             r5 = r3
             r5 += r4
             if r4 != 1 goto out
             if r5 > 2 goto out
             r6 = r10
             r6 += -1
             r6 += r3
             *(u8 *)(r6 + 0) = 1
             out: r3 = 0
             a: r3 += 1
             if r3 < 3 goto a"
        }
        // name + 5 <= len and at + len <= end: the access is one byte behind the end.
        Fault::HandedDownMore => {
            "r9 = 0
             o: r4 = *(u8 *)(r1 + 0)
             r4 &= 15
             r5 = *(u8 *)(r1 + 8)
             r5 &= 7
             r6 = r5
             r6 += 5
             if r6 > r4 goto out
             if r5 == 0 goto out
             r3 = r2
             r3 -= r4
             r7 = r1
             r7 += r3
             r0 = 0
             a: r8 = r7
             r8 += r0
             r8 = *(u8 *)(r8 + 5)
             if r0 == 0 goto b
             r8 = r7
             r8 += r0
             r8 = *(u8 *)(r8 + 6)
             b: r0 += 1
             if r0 < r5 goto a
             out: r9 += 1
             if r9 < 300 goto o"
        }
        // The inner loop's first test fails, as another byte is there.
        Fault::SeenSurvivesStores => {
            "r4 = 0
             a: r5 = r1
             r5 += r4
             r6 = *(u8 *)(r5 + 0)
             if r6 < 128 goto c
             *(u8 *)(r5 + 0) = 7
             b: r5 = r1
             r5 += r4
             r6 = *(u8 *)(r5 + 0)
             if r6 < 128 goto d
             r4 += 1
             if r4 < r2 goto b
             goto out
             d: *(u8 *)(r5 + 0) = 200
             if r4 < r2 goto a
             goto out
             c: r4 += 1
             if r4 < r2 goto a
             out:"
        }
        // The array ends eight bytes below the top of the frame: from the pointer, four bytes are left of sixteen, not
        // of twenty-four.
        Fault::DistanceForgetsPlace => {
            "r3 = *(u8 *)(r1 + 0)
             r3 &= 15
             r5 = r10
             r5 += -24
             r5 += r3
             r6 = r10
             r6 += -8
             r6 -= r5
             if r6 > 12 goto out
             r5 = r10
             r5 += -524
             r5 += r3
             *(u8 *)(r5 + 0) = 1
             out: r3 = 0
             a: r3 += 1
             if r3 < 3 goto a"
        }
        // The inner loop ends at a comma, and the byte was only compared with a semicolon.
        Fault::UnlikeAnything => {
            "r3 = 0
             a: r4 = r1
             r4 += r3
             r5 = *(u8 *)(r4 + 0)
             if r5 == 59 goto c
             b: r4 = r1
             r4 += r3
             r5 = *(u8 *)(r4 + 0)
             if r5 == 7 goto d
             r3 += 1
             if r3 < r2 goto b
             goto out
             c: r3 += 1
             d: if r3 < r2 goto a
             out:"
        }
        // One path to the inner loop has not compared the byte.
        Fault::UnlikeForgotten => {
            "r3 = 0
             a: r4 = r1
             r4 += r3
             r5 = *(u8 *)(r4 + 0)
             r6 = r3
             r6 ^= r2
             r6 &= 1
             if r6 != 0 goto e
             if r5 == 7 goto c
             e: r6 = 0
             r4 = r1
             r4 += r3
             r5 = *(u8 *)(r4 + 0)
             if r5 == 7 goto d
             b: r4 = r1
             r4 += r3
             r5 = *(u8 *)(r4 + 0)
             if r5 == 7 goto d
             r3 += 1
             if r3 < r2 goto b
             goto out
             c: r3 += 1
             d: if r3 < r2 goto a
             out:"
        }
        // One path of the inner loop goes back, in other rounds than its first.
        Fault::PeeledIsAll => {
            "r3 = 0
             a: r4 = r1
             r4 += r3
             r5 = *(u8 *)(r4 + 0)
             if r5 < 128 goto c
             r6 = r3
             b: r4 = r1
             r4 += r3
             r5 = *(u8 *)(r4 + 0)
             if r5 < 128 goto e
             r3 += 1
             if r3 < r2 goto b
             goto out
             e: r3 = r6
             goto d
             c: r3 += 1
             d: if r3 < r2 goto a
             out:"
        }
        // The merge of two runs: the bytes written are at most the sum of both lengths, and the array is one byte
        // shorter.
        Fault::DistancesKeptMore => {
            "r3 = r2
             if r2 < 64 goto b
             r3 = 64
             b: r0 = 0
             *(u64 *)(r10 - 72) = r3
             r5 = r3
             r5 >>= 1
             r3 = r5
             r6 = 0
             if r2 < 2 goto m
             r3 = r5
             goto e
             c: r4 = r10
             r4 += -64
             r4 += r0
             *(u8 *)(r4 + 0) = r9
             r3 += r8
             r6 += r7
             r0 += 1
             if r6 >= r5 goto m
             if r3 >= r2 goto m
             if r3 < 64 goto e
             goto m
             e: r4 = r1
             r4 += r3
             r4 = *(u8 *)(r4 + 0)
             r7 = r1
             r7 += r6
             r9 = *(u8 *)(r7 + 0)
             w8 = 1
             w7 = 1
             if w9 <= w4 goto f
             w7 = 0
             f: if w9 > w4 goto g
             w8 = 0
             g: if w9 < w4 goto c
             w9 = w4
             goto c
             m: if r6 >= r5 goto p
             n: r4 = r10
             r4 += -64
             r4 += r0
             r7 = r1
             r7 += r6
             r7 = *(u8 *)(r7 + 0)
             *(u8 *)(r4 + 0) = r7
             r0 += 1
             r6 += 1
             if r6 < r5 goto n
             p: r4 = *(u64 *)(r10 - 72)
             if r3 >= r4 goto out
             q: r4 = r10
             r4 += -63
             r4 += r0
             r5 = r1
             r5 += r3
             r5 = *(u8 *)(r5 + 0)
             *(u8 *)(r4 + 0) = r5
             r0 += 1
             r3 += 1
             if r3 >= r2 goto out
             if r3 < 64 goto q
             out:"
        }
        // The rest of 1 without its half is 1, since half of 1 is 0.
        Fault::LeftIsMore => {
            "r6 = r1
             r2 >>= 2
             if r2 <= 1 goto out
             a: r3 = r2
             r3 >>= 1
             r4 = r3
             r4 <<= 2
             r5 = r4
             r5 += r6
             r5 = *(u32 *)(r5 - 4)
             if r5 < 1000 goto b
             r4 = 0
             b: r6 += r4
             r2 -= r3
             if r2 > 0 goto a
             out:"
        }
        // The two pointers may be equal.
        Fault::PointersNeverMeet => {
            "r3 = *(u8 *)(r1 + 0)
             r3 &= 15
             r4 = r10
             r4 += -16
             r5 = r4
             r5 += r3
             r6 = r4
             r6 += 8
             if r6 >= r5 goto b
             goto out
             b: *(u8 *)(r5 + 8) = 1
             out: r3 = 0
             a: r3 += 1
             if r3 < 3 goto a"
        }
        // A row too many.
        Fault::ProductsLess => {
            "r3 = *(u8 *)(r1 + 0)
             r3 &= 7
             r3 += 2
             r4 = *(u8 *)(r1 + 1)
             r4 &= 7
             r4 += 1
             r5 = r3
             r5 *= r4
             if r5 > r2 goto out
             r1 += r4
             r7 = 0
             a: r0 = *(u8 *)(r1 + 0)
             r1 += r4
             r7 += 1
             if r7 < r3 goto a
             out:"
        }
        // `(i - 16384) * n`, where `i * n` is more than any number.
        Fault::ProductsOfAnySize => {
            "r3 = 0x3ffffffffffff ll
             r4 = *(u8 *)(r1 + 0)
             r4 += r3
             r5 = *(u64 *)(r1 + 8)
             r6 = 0
             r7 = *(u8 *)(r1 + 1)
             r7 &= 3
             r7 ^= 16384
             a: if r6 == 0 goto b
             r0 = r7
             r0 -= 16384
             r0 *= r4
             if r4 > r5 goto out
             r0 >>= 9
             r3 = r1
             r3 += r0
             r0 = *(u8 *)(r3 + 0)
             b: r6 = 1
             r7 += 1
             if r7 < 16400 goto a
             out:"
        }
        // The number falls from 4000 below a number of 66 bits, of which the fault keeps 64.
        Fault::LinesOfAnySize => {
            "r3 = 0x40000000000003e7 ll
             *(u64 *)(r1 + 0) = r3
             r6 = *(u64 *)(r1 + 0)
             if r6 < 1000 goto out
             if r6 > r3 goto out
             r8 = r6
             r8 += -1000
             r8 <<= 2
             r9 = 0
             r7 = 0xfffffffffffff057 ll
             a: if r9 >= 40 goto out
             if r6 < 7 goto out
             if r8 < 1 goto out
             r8 += -1
             if r8 < r7 goto b
             r2 = r10
             r2 += -8
             r2 += r9
             *(u8 *)(r2 + 0) = 0
             b: r9 += 1
             goto a
             out:"
        }
        // The place in bits is divided by 8, and the length was multiplied by 16.
        Fault::MultipleShiftedMore => {
            "r2 <<= 4
             if r2 < 12 goto out
             r4 = 0
             a: r5 = r4
             r5 >>= 3
             r6 = r1
             r6 += r5
             r0 = *(u8 *)(r6 + 0)
             r5 = r4
             r5 += 24
             r4 += 12
             if r5 <= r2 goto a
             out:"
        }
        // The product of the previous round, which is 0 in the first round.
        Fault::ProductsStay => {
            "r3 = *(u8 *)(r1 + 0)
             r3 &= 3
             r3 += 1
             r4 = *(u8 *)(r1 + 1)
             r4 &= 3
             r4 += 1
             r6 = r1
             r7 = 0
             r9 = 1
             a: r0 = r1
             r0 += r9
             r0 = *(u8 *)(r0 - 1)
             r0 = *(u8 *)(r6 + 0)
             r9 = r7
             r9 *= r4
             r6 += r4
             r7 += 1
             if r7 < r3 goto a
             out:"
        }
        // On one path the row pointer advances twice.
        Fault::RowsUnchecked => {
            "r3 = *(u8 *)(r1 + 0)
             r3 &= 7
             r3 += 1
             r4 = *(u8 *)(r1 + 1)
             r4 &= 7
             r4 += 1
             r5 = r3
             r5 *= r4
             if r5 > r2 goto out
             r6 = r1
             r7 = 0
             a: r0 = *(u8 *)(r6 + 0)
             if r0 > 40 goto c
             b: r6 += r4
             r7 += 1
             if r7 < r3 goto a
             goto out
             c: r6 += r4
             goto b
             out:"
        }
        _ => panic!("no program for {fault:?}"),
    };
    for &fault in Fault::OF_SUMS {
        let program = bpf_isa::assemble(&format!("{}\nr0 = 0\nexit", wrong(fault))).expect("instructions");
        let program = Program::new(program).expect("valid");
        let check = || Oracle::new(false).check(&program, 400, &mut Choices::from_seed(1));
        assert!(matches!(check(), Outcome::Refused(_)), "{fault:?} without it");
        plant(Some(fault));
        let planted = check();
        plant(None);
        match planted {
            Outcome::Violation(_) => {}
            Outcome::Refused(e) => panic!("{fault:?} is refused: {e}"),
            Outcome::Ran(n) => panic!("{fault:?}: ran {n}"),
        }
    }
}
