//! Idioms of compilers for casts, meeting ends and copies: each rule beside programs for which it does not hold.

use crate::common::{accepted, refused};

/// Two numbers that are each cast to 32 bits by shifts: the cast copies are compared, and the first number itself is
/// used as an offset.
const CASTS: &str = ";raw
    if r2 < 16 goto out
    r3 = *(u32 *)(r1 + 0)
    r4 = *(u32 *)(r1 + 4)
    r5 = r3
    r6 = r4
    r5 <<= 32
    r6 <<= 32
    r5 >>= 32
    r6 >>= 32
    if r5 > 15 goto out
    if r6 > 7 goto out
    r1 += r3
    r0 = *(u8 *)(r1 + 0)
    out: r0 = 0
    exit";

#[test]
fn what_comes_back_from_a_shift_is_what_was_shifted() {
    accepted(CASTS);
    // One byte further.
    refused(&CASTS.replace("> 15", "> 16"));
    // The second number, at most 7, is used nine bytes further on, which may reach one byte beyond the buffer.
    refused(&CASTS.replace("r1 += r3", "r1 += r4\nr1 += 9"));
    // The load has 64 bits, so the shift drops the upper half.
    refused(&CASTS.replace("r3 = *(u32 *)", "r3 = *(u64 *)"));
    // Between the shifts the register gets another number.
    refused(&CASTS.replace("r5 >>= 32", "r5 = r6\nr5 >>= 32"));
    refused(&CASTS.replace("r5 >>= 32", "r5 += 1\nr5 <<= 1\nr5 >>= 32"));
    // The arithmetic shift back makes large numbers negative.
    refused(&CASTS.replace("r5 >>= 32", "r5 s>>= 32").replace("r5 > 15", "r5 s> 15"));
    // The shift back goes one bit too far and gives half of the number.
    refused(&CASTS.replace("r5 >>= 32", "r5 >>= 33"));
}

/// A shifted number is compared through its copy, and then shifted back.
const COPY: &str = ";raw
    if r2 < 8 goto out
    r3 = *(u8 *)(r1 + 0)
    r4 = *(u8 *)(r1 + 1)
    r5 = r3
    r5 <<= 32
    r6 = r5
    r6 >>= 32
    if r6 == r4 goto out
    r5 s>>= 32
    if r5 s> 7 goto out
    r1 += r3
    r0 = *(u8 *)(r1 + 0)
    out: r0 = 0
    exit";

#[test]
fn a_shifted_number_is_known_by_its_copy() {
    accepted(COPY);
    refused(&COPY.replace("s> 7", "s> 8"));
    // The shift back gives half of the number.
    refused(&COPY.replace("r5 s>>= 32", "r5 >>= 1\nr5 s>>= 32"));
    // The copy is of another number.
    refused(&COPY.replace("r6 = r5", "r6 = r5\nr5 = r4\nr5 <<= 32"));
    // On one of two paths that meet, r5 is another number than the compared copy.
    refused(&COPY.replace("if r6 == r4 goto out", "if r6 != r4 goto b\nr5 = 0\nb: r7 = 0"));
}

/// A length in bytes is shifted up by 30 and down by 32, which divides it by 4: the result counts words.
const WORDS: &str = ";raw
    r3 = r2
    r3 <<= 30
    r3 s>>= 32
    if r3 s< 1 goto out
    r0 = *(u32 *)(r1 + 0)
    out: r0 = 0
    exit";

#[test]
fn a_shift_further_back_divides() {
    accepted(WORDS);
    refused(&WORDS.replace("r1 + 0", "r1 + 1"));
    refused(&WORDS.replace("s< 1", "s< 0"));
    // Shifted up by 31: the result counts half-words.
    refused(&WORDS.replace("r3 <<= 30", "r3 <<= 31"));
}

/// Numbers that are not negative, extended and divided by sign.
const SIGNED: &str = ";raw
    if r2 < 64 goto out
    r3 = *(u32 *)(r1 + 0)
    if r3 > 100 goto out
    r4 = (s8)r3
    if r4 > 63 goto out
    r5 = r1
    r5 += r3
    r0 = *(u8 *)(r5 + 0)
    r4 = r3
    r4 += 64
    r4 s/= 2
    r1 += r4
    r0 = *(u8 *)(r1 + 0)
    out: r0 = 0
    exit";

#[test]
fn signed_operations_on_positive_numbers_are_unsigned() {
    accepted(SIGNED);
    refused(&SIGNED.replace("r4 > 63", "r4 > 64"));
    // A byte of 255 extends to -1, which a signed comparison lets pass.
    refused(&SIGNED.replace("r3 > 100", "r3 > 255").replace("r4 > 63", "r4 s> 63"));
    refused(&SIGNED.replace("s/= 2", "s/= -2"));
}

/// Two ends that meet.
const ENDS: &str = ";raw
    r0 = 0
    if r2 < 8 goto out
    r2 &= -4
    r3 = r1
    r3 += r2
    r3 += -4
    r2 = r1
    r2 += 4
    a: r4 = r2
    r5 = *(u32 *)(r4 - 4)
    r0 = *(u32 *)(r3 + 0)
    r2 += 4
    r3 += -4
    if r4 < r3 goto a
    out: r0 = 0
    exit";

#[test]
fn ends_that_meet_stay_inside() {
    accepted(ENDS);
    // Beyond either end of the buffer.
    refused(&ENDS.replace("(r3 + 0)", "(r3 + 4)"));
    refused(&ENDS.replace("(r4 - 4)", "(r4 - 8)"));
    // The two pointers pass each other.
    refused(&ENDS.replace("r4 < r3", "r4 != r3"));
    // The comparison is reversed.
    refused(&ENDS.replace("r4 < r3", "r3 < r4"));
    // The upper pointer rises, too.
    refused(&ENDS.replace("r3 += -4\n    if", "r3 += 4\n    if"));
}

/// A copy as far as there is room: two numbers and a constant.
const ROOM: &str = ";raw
    if r2 < 4 goto out
    r6 = *(u8 *)(r1 + 0)
    r6 &= 63
    r4 = *(u8 *)(r1 + 2)
    r7 = 0
    a: r5 = r10
    r5 += -64
    r5 += r6
    r5 += r7
    *(u8 *)(r5 + 0) = 1
    r7 += 1
    if r7 == r4 goto out
    r8 = r6
    r8 += r7
    if r8 < 64 goto a
    out: r0 = 0
    exit";

#[test]
fn two_numbers_have_room_below_a_constant() {
    accepted(ROOM);
    refused(&ROOM.replace("r8 < 64", "r8 < 65"));
    refused(&ROOM.replace("r6 &= 63", "r6 &= 127"));
    // The compared number is not their sum.
    refused(&ROOM.replace("r8 += r7", "r8 += r4"));
    // One of the two numbers grows after the comparison.
    refused(&ROOM.replace("if r8 < 64 goto a", "r6 += 1\nif r8 < 64 goto a"));
}

/// The fold of a checksum as clang 22 compiles it: the carry that the test computes is reused in the next round.
const FOLD: &str = ";raw
    r0 = 0
    if r2 < 8 goto out
    r0 = *(u32 *)(r1 + 0)
    r2 = *(u32 *)(r1 + 4)
    w1 = w0
    w1 >>= 16
    if w1 == 0 goto out
    a: w0 &= 65535
    w0 += w1
    w1 = w0
    w1 >>= 16
    if w1 != 0 goto a
    out: exit";

#[test]
fn a_sum_is_folded_until_nothing_is_carried() {
    accepted(FOLD);
    // The fold of a sum of 64 bits.
    accepted(
        &FOLD
            .replace("u32", "u64")
            .replace(" + 4", " + 8")
            .replace("r2 < 8", "r2 < 16")
            .replace("w0", "r0")
            .replace("w1", "r1"),
    );
    // The carry never becomes 0, so the loop does not end.
    refused(&FOLD.replace("w0 &= 65535", "w0 |= 65536"));
    // The tested number is no part of the sum.
    refused(&FOLD.replace("w1 = w0\n    w1 >>= 16\n    if w1 != 0", "w1 = w2\n    w1 >>= 31\n    if w1 != 0"));
    // The tested number is the previous carry, not the carry of the new sum.
    refused(&FOLD.replace("w1 = w0\n    w1 >>= 16\n    if w1 != 0", "w1 >>= 0\n    if w1 != 0"));
}

/// The last separator before the end, by a distance that is counted from 0 downwards.
const BACKWARDS: &str = ";raw
    r3 = 0
    r2 += r1
    a: r0 = r3
    r4 = r2
    r4 += r0
    if r4 <= r1 goto out
    r3 = r0
    r3 += -1
    r4 = *(u8 *)(r4 - 1)
    if w4 != 47 goto a
    out: w0 = -w0
    exit";

#[test]
fn a_distance_is_counted_below_zero() {
    accepted(BACKWARDS);
    // The access is two bytes before the compared pointer.
    refused(&BACKWARDS.replace("(r4 - 1)", "(r4 - 2)"));
    // The access is at the end of the buffer, beyond its last byte.
    refused(&BACKWARDS.replace("(r4 - 1)", "(r4 + 0)"));
    // The start is not before itself.
    refused(&BACKWARDS.replace("r4 <= r1", "r4 < r1"));
    // A round moves by two bytes, and the comparison allows for one.
    refused(&BACKWARDS.replace("r3 += -1", "r3 += -2").replace("*(u8 *)(r4 - 1)", "*(u16 *)(r4 - 2)"));
    // The distance is not added to the end.
    refused(&BACKWARDS.replace("r4 = r2", "r4 = r1\nr4 += 1"));
    // No pointer is compared.
    refused(&BACKWARDS.replace("if r4 <= r1 goto out", "r3 = r0"));
    // The distance is added to the start, so the address lies before the buffer.
    refused(&BACKWARDS.replace("r4 = *(u8 *)(r4 - 1)", "r4 = r1\nr4 += r3\nr4 = *(u8 *)(r4 + 0)"));
    // The low half of the distance is not the distance.
    refused(&BACKWARDS.replace("r0 = r3", "w0 = w3"));
}

/// The rest of a buffer is computed before its length is bounded, and conditions become numbers in between.
const REST: &str = ";raw
    if r2 < 8 goto out
    r8 = *(u32 *)(r1 + 0)
    r1 = *(u32 *)(r1 + 4)
    w4 = 16
    w3 = 1
    if w1 == 0 goto a
    w3 = 0
    a: w4 -= w1
    w2 = 1
    if w1 > 8 goto b
    w2 = 0
    b: w9 = 1
    if w8 > w4 goto c
    w9 = 0
    c: w2 |= w9
    w2 |= w3
    if w2 != 0 goto out
    r5 = r10
    r5 += -16
    r5 += r8
    r3 = 0
    d: r4 = r5
    r4 += r3
    *(u8 *)(r4 + 0) = r3
    r3 += 1
    if r3 < r1 goto d
    out: r0 = 0
    exit";

#[test]
fn what_is_left_is_computed_before_it_is_compared() {
    accepted(REST);
    // The rest is computed one byte too large, or one byte more is written.
    refused(&REST.replace("w4 = 16", "w4 = 17"));
    refused(&REST.replace("if r3 < r1", "if r3 <= r1"));
    // A length for which the difference wraps round.
    refused(&REST.replace("if w1 > 8 goto", "if w1 > 17 goto"));
    refused(&REST.replace("if w1 > 8 goto", "if w8 > 8 goto"));
    // The length changes behind the comparison.
    refused(&REST.replace("r3 = 0\n", "r3 = 0\n    r1 += 1\n"));
    // The flag that the branch tests does not depend on the difference.
    refused(&REST.replace("    w9 = 0\n", "    w9 = 0\n    w9 = 0\n").replace("w9 = 1\n", "w9 = 0\n"));
}
