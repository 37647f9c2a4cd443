//! States that rest on an unfinished proof prove nothing: attacks on pruning inside loops with candidate invariants,
//! and inside callbacks.

use crate::common;

/// Programs that never end.
const ENDLESS: &[(&str, &str)] = &[
    (
        "an outer loop whose number does not move, around a may_goto, with the number in a slot",
        ";raw
*(u64 *)(r10 - 16) = 0
head:
may_goto meet
meet:
r2 = *(u64 *)(r10 - 16)
if r2 < 5 goto head
r0 = 0
exit",
    ),
    (
        "the same with the number in a register",
        ";raw
r8 = 0
head:
may_goto meet
meet:
if r8 s< 5 goto head
r0 = 0
exit",
    ),
    (
        "the same with a body in the may_goto's loop",
        ";raw
r8 = 0
r7 = 0
head:
may_goto meet
r7 += 1
goto head
meet:
if r8 s< 5 goto head
r0 = 0
exit",
    ),
    (
        "a second entry into a loop is covered by a state of the first one's proof, which its own exit is a part of",
        ";raw
r0 = 0
if r2 < 8 goto end
r6 = *(u8 *)(r1 + 0)
outer:
r3 = 10
head:
if r3 == 0 goto out
r4 = *(u8 *)(r1 + 1)
if r4 == 7 goto s
r5 = 1
s:
r3 -= 1
goto head
out:
r6 &= 0x7f
if r6 > 300 goto end
goto outer
end:
r0 = 0
exit",
    ),
    (
        "the same through a callback: what its first rounds rest on is the round that leads to the second call",
        ";raw
r0 = 0
if r2 < 8 goto end
r6 = *(u8 *)(r1 + 0)
r7 = r1
r3 = *(u8 *)(r1 + 1)
*(u64 *)(r10 - 8) = r3
r3 = 0
*(u64 *)(r10 - 16) = r3
r3 = 0
outer:
*(u64 *)(r10 - 24) = r3
r1 = 5
r2 = subprog[cb]
r3 = r10
r3 += -24
r4 = 0
call 181
r1 = *(u64 *)(r10 - 16)
if r1 == 0 goto end
r6 &= 0x7f
if r6 > 300 goto end
r3 = 0
*(u64 *)(r10 - 8) = r3
*(u64 *)(r10 - 16) = r3
goto outer
end:
r0 = 0
exit
cb:
r3 = *(u64 *)(r2 + 16)
if r3 == 3 goto p2
r0 = 0
if r1 == 1 goto s
r0 = 0
s:
r4 = 0
*(u64 *)(r2 + 8) = r4
r4 = 3
*(u64 *)(r2 + 16) = r4
exit
p2:
r4 = 1
*(u64 *)(r2 + 8) = r4
r0 = 1
exit",
    ),
    (
        "the same through may_goto in a function, whose budget is new in each call",
        ";raw
r0 = 0
if r2 < 8 goto end
r6 = *(u8 *)(r1 + 0)
r7 = *(u8 *)(r1 + 1)
r8 = r1
outer:
r1 = r8
r2 = r7
call f
if r0 == 0 goto end
r6 &= 0x7f
if r6 > 300 goto end
r7 = 0
goto outer
end:
r0 = 0
exit
f:
r0 = 0
a:
may_goto out
if r2 == 3 goto p2
r3 = *(u8 *)(r1 + 2)
if r3 == 1 goto s
r3 = 5
s:
r2 = *(u8 *)(r1 + 3)
r0 = 0
goto a
p2:
r0 = 1
exit
out:
exit",
    ),
];

#[test]
fn endless_programs_are_refused() {
    let accepted: Vec<&str> =
        ENDLESS.iter().filter(|(_, text)| common::verify(text).is_ok()).map(|(name, _)| *name).collect();
    assert!(accepted.is_empty(), "{accepted:#?}");
}

/// A number that falls from a distance above its name reads nothing behind the packet: if the name is negative, twice
/// the name being in the packet implies nothing.
#[test]
fn names_are_not_negative() {
    let text = ";raw
r0 = 0
if r2 < 1 goto end
r6 = r1
r7 = r2
r3 = *(u8 *)(r1 + 0)
r8 = r3
r3 += 5
head:
if r3 == 0 goto out
r3 -= 1
if r3 > 2 goto head
r4 = r3
r4 *= 2
if r4 > r7 goto out
r5 = r6
r5 += r3
r0 = *(u32 *)(r5 + 0)
goto head
out:
if r8 == 3 goto end
end:
r0 = 0
exit";
    let result = common::verify(text);
    assert!(result.is_err(), "accepted");
}

/// A product whose factors exceed 64 bits is no multiple by the truncated factor.
#[test]
fn factors_do_not_wrap() {
    let text = ";raw
r0 = 0
if r2 < 16 goto end
r6 = r1
r7 = 0
head:
if r7 >= 2 goto end
r3 = r7
r3 *= 4
r3 *= 1073741825
r5 = r6
r5 += r3
r0 = *(u8 *)(r5 + 0)
r7 += 1
goto head
end:
r0 = 0
exit";
    let result = common::verify(text);
    assert!(result.is_err(), "accepted");
}

/// A bounded construct that is created in each round does not bound the loop around it: each of these programs is
/// endless, and the planted fault accepts it.
#[cfg(feature = "faults")]
#[test]
fn fault_any_edge_ends() {
    use bpf_verifier::faults::{Fault, plant};
    let names = [
        "an element of what was made in the round ends no loop around it",
        "an element of what was made in the round ends no loop whose may_goto has run out",
        "a may_goto in a function ends no loop around its calls",
    ];
    for pair in common::pairs().iter().filter(|pair| names.contains(&pair.name)) {
        assert!(common::verify(pair.refused).is_err(), "{}: accepted without it", pair.name);
        plant(Some(Fault::AnyEdgeEnds));
        let planted = common::verify(pair.refused);
        plant(None);
        assert!(planted.is_ok(), "{}: refused all the same: {}", pair.name, planted.unwrap_err());
    }
}
