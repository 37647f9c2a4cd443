//! Conclusions from several numbers at once, about loops that search, merge and store their findings: each rule beside
//! programs for which it does not hold.

use crate::common::{accepted, refused};

/// Two cursors, and a third that advances whenever one of the two does.
const MERGED: &str = ";raw
    if r2 < 32 goto out
    r6 = 0
    r3 = 0
    r0 = 0
    a: r4 = r1
    r4 += r6
    r5 = *(u8 *)(r4 + 0)
    r4 = r1
    r4 += r3
    r7 = *(u8 *)(r4 + 16)
    r4 = r10
    r4 += -31
    r4 += r0
    *(u8 *)(r4 + 0) = r5
    r0 += 1
    if r5 > r7 goto b
    r6 += 1
    if r6 < 16 goto a
    goto out
    b: r3 += 1
    if r3 < 16 goto a
    out: r0 = 0
    exit";

#[test]
fn one_cursor_is_where_two_others_have_come_together() {
    accepted(MERGED);
    // The array has one byte less than both cursors together may write.
    refused(&MERGED.replace("r4 += -31", "r4 += -30"));
    // On one path the third cursor advances twice.
    refused(&MERGED.replace("b: r3 += 1", "b: r3 += 1\nr0 += 1"));
    // One of the two stays on one path, so the third does not end where they do.
    refused(&MERGED.replace("b: r3 += 1", "b: r3 += 0"));
}

/// A third of a number bounds it.
const THIRD: &str = ";raw
    if r2 < 1 goto out
    r3 = *(u8 *)(r1 + 0)
    r4 = r3
    r4 /= 3
    if r4 > 5 goto out
    r5 = r10
    r5 += -18
    r5 += r3
    *(u8 *)(r5 + 0) = 1
    out: r3 = 0
    a: r3 += 1
    if r3 < 3 goto a
    r0 = 0
    exit";

#[test]
fn a_quotient_bounds_what_was_divided() {
    accepted(THIRD);
    refused(&THIRD.replace("r5 += -18", "r5 += -17"));
    refused(&THIRD.replace("r4 /= 3", "r4 /= 4"));
    refused(&THIRD.replace("r4 > 5", "r4 > 6"));
}

/// Reads words from the upper end of a buffer down. In an empty buffer, the pointer begins below the buffer.
const DOWN: &str = ";raw
    r3 = r2
    r3 &= -4
    r1 += -4
    r4 = r1
    r4 += r3
    a: r3 += -4
    if r3 == -4 goto out
    r5 = *(u32 *)(r4 + 0)
    r4 += -4
    if w5 != 7 goto a
    out: r0 = 0
    exit";

#[test]
fn a_pointer_may_fall_that_begins_before_its_buffer() {
    accepted(DOWN);
    // The pointer falls by 8 where the counter falls by 4.
    refused(&DOWN.replace("r4 += -4", "r4 += -8"));
    // The access, or the start, is one word further down.
    refused(&DOWN.replace("(r4 + 0)", "(r4 - 4)"));
    refused(&DOWN.replace("r1 += -4", "r1 += -8"));
}

/// Runs of bytes of one kind: the inner loop tests the byte that the outer loop has tested, so its first round
/// advances.
const RUNS: &str = ";raw
    if r2 < 1 goto out
    r4 = 0
    a: r5 = r1
    r5 += r4
    r6 = *(u8 *)(r5 + 0)
    if r6 < 128 goto c
    b: r5 = r1
    r5 += r4
    r6 = *(u8 *)(r5 + 0)
    if r6 < 128 goto d
    r4 += 1
    if r4 < r2 goto b
    goto out
    d: if r4 < r2 goto a
    goto out
    c: r4 += 1
    if r4 < r2 goto a
    out: r0 = 0
    exit";

#[test]
fn a_byte_that_is_read_twice_is_the_same() {
    accepted(RUNS);
    // A store may have changed the byte.
    refused(&RUNS.replace("b: r5 = r1", "*(u8 *)(r1 + 0) = 1\nb: r5 = r1"));
    // The inner loop loads another byte.
    refused(&RUNS.replace("b: r5 = r1\n    r5 += r4\n    r6 = *(u8 *)(r5 + 0)", "b: r6 = *(u8 *)(r1 + 0)"));
    // The inner loop tests against another number.
    refused(&RUNS.replace("if r6 < 128 goto d", "if r6 < 129 goto d"));
}

/// A pointer writes an array on the stack while the room left in the array is at least two bytes.
const ROOM_LEFT: &str = ";raw
    r0 = 0
    if r2 == 0 goto out
    r3 = r1
    r3 += r2
    r4 = r10
    r4 += -64
    r5 = r10
    r5 += -8
    a: r6 = r5
    r6 -= r4
    if r6 s< 2 goto out
    r7 = *(u8 *)(r1 + 0)
    *(u8 *)(r4 + 0) = r7
    if r7 > 99 goto b
    *(u8 *)(r4 + 1) = 1
    r4 += 1
    b: r4 += 1
    r1 += 1
    if r1 < r3 goto a
    out: r0 = 0
    exit";

#[test]
fn what_is_left_up_to_the_end_of_an_array_bounds_the_pointer() {
    accepted(ROOM_LEFT);
    accepted(&ROOM_LEFT.replace("r5 += -8", "r5 += 0"));
    // The test leaves room for one byte, and a path writes two.
    refused(&ROOM_LEFT.replace("r5 += -8", "r5 += 0").replace("s< 2", "s< 1"));
    // The end pointer lies above the frame.
    refused(&ROOM_LEFT.replace("r5 += -8", "r5 += 8"));
    // The difference is computed the other way round.
    let round = ROOM_LEFT.replace("r6 = r5\n    r6 -= r4", "r6 = r4\n    r6 -= r5");
    accepted(&round);
    // The test lets the pointer reach the end of the frame; and beyond it.
    accepted(&round.replace("s< 2", "s> 2"));
    refused(&round.replace("s< 2", "s> 8"));
    // The store is further ahead than the test allows for.
    refused(&ROOM_LEFT.replace("b: r4 += 1", "b: r4 += 1\n*(u8 *)(r4 + 8) = 1"));
}

/// `for (n = 1000; n--; )`, counted up to 0.
const COUNTED_UP: &str = ";raw
    r0 = 0
    if r2 < 8 goto out
    w4 = -5
    w3 = 0
    a: w4 += 1
    w5 = 1
    if w4 == 0 goto b
    w5 = 0
    b: if w5 != 0 goto out
    r6 = r1
    r6 += r3
    r7 = *(u8 *)(r6 + 0)
    w3 += 1
    if w7 != 9 goto a
    w3 += -1
    goto a
    out: r0 = 0
    exit";

#[test]
fn what_counts_up_to_0_from_a_negative_number_bounds_the_rounds() {
    accepted(COUNTED_UP);
    accepted(&COUNTED_UP.replace("w4 = -5", "w4 = -9"));
    // One round more than there are bytes.
    refused(&COUNTED_UP.replace("w4 = -5", "w4 = -10"));
    refused(&COUNTED_UP.replace("w4 = -5", "w4 = -2000"));
    // The counter steps over 0, and the loop continues for 2^31 rounds.
    refused(&COUNTED_UP.replace("w4 += 1", "w4 += 2"));
    // A counter of 64 bits goes to zero, too.
    let wide = COUNTED_UP.replace("w4", "r4");
    accepted(&wide);
    accepted(&wide.replace("r4 = -5", "r4 = -9"));
    refused(&wide.replace("r4 = -5", "r4 = -10"));
    refused(&wide.replace("r4 = -5", "r4 = -2000"));
    refused(&wide.replace("r4 += 1", "r4 += 2"));
    refused(&wide.replace("w3 += -1", "r4 += -1"));
    let long = wide.replace("    if w7 != 9 goto a\n    w3 += -1\n", "");
    let long = long.replace("r2 < 8", "r2 < 400000").replace("r4 = -5", "r4 = -400001");
    accepted(&long);
    refused(&long.replace("r2 < 400000", "r2 < 399999"));
    // A number of 32 bits counts to 2^32 at 64 bits, and beyond.
    refused(&COUNTED_UP.replace("w4 == 0", "r4 == 0").replace("w4 += 1", "r4 += 1"));
    // One path does not count.
    refused(&COUNTED_UP.replace("w3 += -1", "w4 += -1"));
}

/// A month, 1 to 12, indexes an array of twelve bytes: compilers test the range with one comparison.
const MONTH: &str = ";raw
    r0 = 0
    if r2 < 13 goto out
    r5 = *(u8 *)(r1 + 0)
    r6 = *(u8 *)(r1 + 1)
    if r6 == 0 goto a
    r5 = *(u8 *)(r1 + 2)
    a: w7 = w5
    w7 += -13
    if w7 < -12 goto out
    r1 += r5
    r0 = *(u8 *)(r1 - 1)
    r0 = *(u8 *)(r1 + 0)
    out: r0 = 0
    exit";

#[test]
fn a_range_is_tested_by_a_difference_that_wraps() {
    accepted(MONTH);
    accepted(&MONTH.replace("w7", "r7").replace("w5", "r5"));
    accepted(&MONTH.replace("-12", "-11"));
    // The range includes 0; the range includes 13.
    refused(&MONTH.replace("-12", "-13"));
    refused(&MONTH.replace("w7 += -13", "w7 += -14"));
    refused(&MONTH.replace("if w7 < -12", "if w7 >= -12"));
    // The number has 64 bits on one of the paths that meet before the test, so a test of its low half does not bound
    // it.
    refused(&MONTH.replace("r5 = *(u8 *)(r1 + 0)", "r5 = *(u64 *)(r1 + 0)"));
    refused(&MONTH.replace("r5 = *(u8 *)(r1 + 2)", "r5 = *(u64 *)(r1 + 2)"));
}

/// The end of each word is tested in the outer loop and in the inner one.
const COOKIES: &str = ";raw
    r0 = 0
    if r2 == 0 goto out
    r3 = 0
    a: r4 = r1
    r4 += r3
    r5 = *(u8 *)(r4 + 0)
    if r5 == 59 goto c
    if r5 == 32 goto c
    b: r4 = r1
    r4 += r3
    r5 = *(u8 *)(r4 + 0)
    if r5 == 59 goto d
    if r5 == 32 goto d
    r3 += 1
    if r3 < r2 goto b
    goto out
    c: r3 += 1
    d: if r3 < r2 goto a
    out: r0 = 0
    exit";

#[test]
fn a_byte_that_was_not_a_character_is_none_when_it_is_loaded_again() {
    accepted(COOKIES);
    let inner = |text: &str| COOKIES.replacen("goto d\n    if r5 == 32 goto d", text, 1);
    assert_ne!(inner(""), COOKIES);
    // Another character ends the inner loop.
    refused(&inner("goto d\n    if r5 == 33 goto d"));
    // Another byte is compared.
    refused(
        &COOKIES.replace("b: r4 = r1\n    r4 += r3", "b: r4 = r1\n    r4 += r3\n    r4 += -1\n    if r3 == 0 goto out"),
    );
    // A store may have changed the byte.
    refused(&COOKIES.replace("    b: r4 = r1", "    *(u8 *)(r1 + 0) = 59\n    b: r4 = r1"));
    // The outer loop compares with 315, whose low byte is 59, so a byte of 59 passes.
    refused(
        &COOKIES
            .replace("r5 = *(u8 *)(r4 + 0)\n    if r5 == 59 goto c", "r5 = *(u8 *)(r4 + 0)\n    if r5 == 315 goto c"),
    );
}

/// Words of two bytes up to an aligned end: a pointer that differs from the end has a whole word behind it.
const WORDS: &str = ";raw
    r0 = 0
    r2 &= -2
    if r2 s< 1 goto out
    r3 = r1
    r3 += r2
    a: r5 = r1
    r5 += 2
    r4 = *(u16 *)(r1 + 0)
    if w4 > 99 goto b
    if r5 == r3 goto out
    r4 = *(u16 *)(r5 + 0)
    r5 += 2
    b: r1 = r5
    if r1 < r3 goto a
    out: r0 = 0
    exit";

#[test]
fn what_is_not_at_an_aligned_end_is_a_whole_word_before_it() {
    accepted(WORDS);
    refused(&WORDS.replace("r2 &= -2\n", ""));
    refused(&WORDS.replace("(u16 *)(r5 + 0)", "(u32 *)(r5 + 0)"));
    refused(&WORDS.replace("if r5 == r3 goto out\n", ""));
}

/// An array beside a pointer that is spilled to the stack. While a candidate invariant is guessed, the index ranges
/// further than in any run.
const BESIDE: &str = ";raw
    r0 = 0
    if r2 < 8 goto out
    r3 = r10
    r3 += -40
    *(u64 *)(r10 - 40) = r1
    *(u64 *)(r10 - 32) = 1
    *(u64 *)(r10 - 24) = 1
    *(u64 *)(r10 - 16) = 1
    *(u64 *)(r10 - 8) = 1
    r4 = *(u8 *)(r1 + 0)
    r4 &= 3
    if r4 == 0 goto out
    r5 = r4
    r5 <<= 3
    r3 += r5
    a: r6 = *(u64 *)(r3 + 0)
    r7 = *(u8 *)(r1 + 1)
    if r6 >= r7 goto out
    *(u64 *)(r3 + 8) = r6
    r3 += -8
    r4 += -1
    if r4 != 0 goto a
    out: r0 = 0
    exit";

#[test]
fn what_is_kept_beside_an_array_is_not_read_by_a_guess() {
    accepted(BESIDE);
    // The pointer is read in the last round.
    refused(&BESIDE.replace("(r3 + 0)", "(r3 - 8)"));
    refused(&BESIDE.replace("(r3 + 0)", "(r3 - 1)"));
    // The spilled pointer is overwritten, and used afterwards.
    refused(
        &BESIDE
            .replace("(r3 + 8) = r6", "(r3 - 8) = r6")
            .replace("out: r0 = 0", "r1 = *(u64 *)(r10 - 40)\nr0 = *(u8 *)(r1 + 0)\nout: r0 = 0"),
    );
}

/// A loop that is entered at its head and in its middle, up to a length.
const ENTERED: &str = ";raw
    r0 = 0
    if r2 < 8 goto out
    r6 = r2
    r6 += -2
    r3 = 0
    r4 = *(u8 *)(r1 + 0)
    if r4 > 99 goto b
    a: r5 = r1
    r5 += r3
    r0 = *(u8 *)(r5 + 0)
    r3 += 1
    b: r5 = r1
    r5 += r3
    r0 = *(u8 *)(r5 + 1)
    r3 += 1
    if r3 < r6 goto a
    out: r0 = 0
    exit";

#[test]
fn a_loop_that_is_entered_in_its_middle_is_proven_from_its_head() {
    accepted(ENTERED);
    refused(&ENTERED.replace("(r5 + 1)", "(r5 + 2)"));
    refused(&ENTERED.replace("if r3 < r6", "if r3 < r2"));
    // The entry in the middle begins with an index that is too large.
    refused(&ENTERED.replace("if r4 > 99 goto b", "if r4 <= 99 goto a\nr3 = 7\ngoto b"));
    // The index does not advance.
    refused(&ENTERED.replace("r3 += 1\n", ""));
}

/// A number that is kept in an array is at most the index of its element, and is subtracted from another index
/// afterwards.
const KEPT: &str = ";raw
    r9 = r1
    r0 = 0
    if r2 < 32 goto out
    r6 = 0
    a: r7 = *(u8 *)(r9 + 3)
    if r7 <= r6 goto b
    r7 = r6
    b: r5 = r10
    r5 += -8
    r5 += r6
    *(u8 *)(r5 + 0) = r7
    r6 += 1
    if r6 != 8 goto a
    r6 = *(u8 *)(r9 + 1)
    r6 &= 7
    r5 = r10
    r5 += -8
    r5 += r6
    r7 = *(u8 *)(r5 + 0)
    r6 -= r7
    r5 = r9
    r5 += r6
    r0 = *(u8 *)(r5 + 0)
    r0 = 0
    out: exit";

#[test]
fn what_is_kept_in_an_array_is_no_more_than_its_index() {
    accepted(KEPT);
    // The kept number is one too large, or a constant.
    refused(&KEPT.replace("b: r5 = r10", "b: r7 += 1\nr5 = r10"));
    refused(&KEPT.replace("r7 = r6\n", "r7 = 3\n"));
    refused(&KEPT.replace("r6 = 0\n", "r6 = 1\n").replace("*(u8 *)(r5 + 0) = r7", "*(u8 *)(r5 - 1) = r7"));
    // A single store of 3 to an element is safe if the element's index is at least 3.
    accepted(&KEPT.replace("r6 = *(u8 *)(r9 + 1)", "*(u8 *)(r10 - 5) = 3\nr6 = *(u8 *)(r9 + 1)"));
    refused(&KEPT.replace("r6 = *(u8 *)(r9 + 1)", "*(u8 *)(r10 - 6) = 3\nr6 = *(u8 *)(r9 + 1)"));
    // The single store is skipped on one path.
    let skips = "if r7 != 5 goto c\n*(u8 *)(r10 - 6) = 3\nc: r6 = *(u8 *)(r9 + 1)";
    refused(&KEPT.replace("r6 = *(u8 *)(r9 + 1)", skips));
}

/// A kept number is below the length, and the buffer is read there afterwards.
const ENDS: &str = ";raw
    r9 = r1
    r8 = r2
    r0 = 0
    if r2 < 32 goto out
    r6 = 0
    a: r7 = *(u32 *)(r9 + 4)
    if r7 < r8 goto b
    r7 = 31
    b: r3 = r6
    r3 <<= 2
    r5 = r10
    r5 += -32
    r5 += r3
    *(u32 *)(r5 + 0) = r7
    r6 += 1
    if r6 != 8 goto a
    r6 = *(u8 *)(r9 + 1)
    r6 &= 7
    r6 <<= 2
    r5 = r10
    r5 += -32
    r5 += r6
    r7 = *(u32 *)(r5 + 0)
    r5 = r9
    r5 += r7
    r0 = *(u8 *)(r5 + 0)
    r0 = 0
    out: exit";

#[test]
fn what_is_kept_in_an_array_is_below_the_length() {
    accepted(ENDS);
    refused(&ENDS.replace("r7 < r8", "r7 <= r8"));
    refused(&ENDS.replace("r7 = 31", "r7 = 32"));
    refused(&ENDS.replace("*(u8 *)(r5 + 0)\n    r0", "*(u16 *)(r5 + 0)\n    r0"));
    // An unwritten element is 0, which is below every length of this program.
    accepted(&ENDS.replace("r6 = 0\n", "r6 = 1\n"));
}

/// An array that begins at the lowest representable offset: the distance to a slot beside it overflows.
#[test]
fn an_array_of_large_numbers_is_counted_without_overflow() {
    refused(
        ";raw
        r9 = r1
        r8 = r2
        r0 = 0
        if r2 < 32 goto out
        r7 = *(u64 *)(r9 + 8)
        r4 = 1152921504606846967 ll
        if r7 > r4 goto out
        r3 = *(u8 *)(r9 + 2)
        r3 &= 56
        r5 = r10
        r5 += -64
        r5 += r3
        *(u64 *)(r5 + 0) = r7
        r4 = 0
        z: r3 = *(u8 *)(r9 + 1)
        w3 &= 56
        r3 += -72
        r5 = r10
        r5 += r3
        r7 = *(u64 *)(r5 + 8)
        r5 = r9
        r5 += r7
        r4 += 1
        if r4 != 200 goto z
        r0 = *(u8 *)(r5 + 0)
        out: r0 = 0
        exit",
    );
}

/// A binary search over words that advances its base and halves the number of words left.
const HALVES: &str = ";raw
    r0 = 0
    r6 = r1
    r2 >>= 2
    if r2 == 0 goto out
    a: r3 = r2
    r3 >>= 1
    r4 = r3
    r4 <<= 2
    r4 += r6
    r4 = *(u32 *)(r4 + 0)
    if r4 > 1000 goto b
    r5 = r3
    r5 += 1
    r4 = r5
    r4 <<= 2
    r6 += r4
    r2 -= r5
    if r2 != 0 goto a
    goto out
    b: r2 = r3
    if r2 != 0 goto a
    out: r0 = 0
    exit";

#[test]
fn a_base_and_a_part_of_what_is_left_reach_no_further() {
    accepted(HALVES);
    // The access, or the base, is one word further.
    refused(&HALVES.replace("(r4 + 0)", "(r4 + 4)"));
    refused(&HALVES.replace("r6 += r4", "r6 += r4\nr6 += 4"));
    // The length counts half-words; and the base advances by eight bytes a word.
    refused(&HALVES.replace("r2 >>= 2", "r2 >>= 1"));
    refused(&HALVES.replace("r4 = r5\n    r4 <<= 2", "r4 = r5\n    r4 <<= 3"));
    // The number of words left falls by one less than the base advances.
    refused(&HALVES.replace("r2 -= r5", "r2 -= r3"));
    // The buffer may be empty.
    refused(&HALVES.replace("if r2 == 0 goto out\n", ""));
    // The number of words left need not fall.
    refused(&HALVES.replace("b: r2 = r3", "b: r2 = r2"));
}

/// A search without a branch in its rounds, which ends when one element is left: the rest is never empty.
const LEFT_OF_TWO: &str = ";raw
    r0 = 0
    r6 = r1
    if r2 < 4 goto out
    r2 >>= 2
    if r2 <= 1 goto e
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
    if r2 > 1 goto a
    e: r0 = *(u32 *)(r6 + 0)
    out: r0 = 0
    exit";

#[test]
fn what_is_left_without_its_half_is_something() {
    accepted(LEFT_OF_TWO);
    refused(&LEFT_OF_TWO.replace("(r6 + 0)", "(r6 + 4)"));
    refused(&LEFT_OF_TWO.replace("if r2 < 4 goto out", "if r2 < 3 goto out"));
    // With one word left, half of it is 0 and the access is one word before the base.
    refused(&LEFT_OF_TWO.replace("if r2 > 1 goto a", "if r2 > 0 goto a"));
    // The search drops all words instead of half of them.
    refused(&LEFT_OF_TWO.replace("r3 >>= 1", "r3 >>= 0"));
}

/// A pointer that an inner loop advances to the end of the buffer or to a quotation mark, and another that follows it.
const READER: &str = ";raw
    r0 = 0
    r3 = r1
    r3 += r2
    if r2 == 0 goto out
    a: r4 = r1
    r4 += 1
    if r4 >= r3 goto out
    b: r5 = *(u8 *)(r4 + 0)
    if r5 == 34 goto c
    r4 += 1
    if r4 != r3 goto b
    goto out
    c: r1 += 1
    if r1 >= r4 goto d
    r5 = *(u8 *)(r1 + 0)
    r0 += r5
    goto c
    d: r1 = r4
    r1 += 1
    if r1 < r3 goto a
    out: r0 = 0
    exit";

#[test]
fn what_has_been_read_is_no_further_on_than_its_region() {
    accepted(READER);
    refused(&READER.replace("*(u8 *)(r4 + 0)", "*(u8 *)(r4 + 1)"));
    refused(&READER.replace("*(u8 *)(r1 + 0)", "*(u16 *)(r1 + 0)\nr5 = *(u8 *)(r1 + 1)\nr5 = *(u8 *)(r1 + 2)"));
    refused(&READER.replace("r4 += 1\n    if r4 !=", "r4 += 2\n    if r4 !="));
    refused(&READER.replace("if r4 >= r3 goto out", "if r4 > r3 goto out"));
}

/// The search of [`HALVES`] over the bytes of a packet, by an index; each round loads the packet's start again.
const PACKET: &str = "r9 = r1
    r6 = *(u32 *)(r9 + 0)
    r2 = *(u32 *)(r9 + 4)
    r2 -= r6
    r7 = 0
    if r2 s<= 0 goto out
    a: r3 = r2
    r3 >>= 1
    r4 = r3
    r4 += r7
    r6 = *(u32 *)(r9 + 0)
    r6 += r4
    r4 = *(u8 *)(r6 + 0)
    if r4 > 100 goto b
    r5 = r3
    r5 += 1
    r7 += r5
    r2 -= r5
    if r2 != 0 goto a
    goto out
    b: r2 = r3
    if r2 != 0 goto a
    out: r0 = 0
    exit";

#[test]
fn what_is_left_of_a_packet_is_not_left_of_a_shorter_one() {
    accepted(PACKET);
    // Either path makes the packet shorter: by its tail, or by its head.
    for (delta, helper) in [(-4, 65), (4, 44)] {
        let call = format!(
            "*(u64 *)(r10 - 8) = r2
            *(u64 *)(r10 - 16) = r3
            r1 = r9
            r2 = {delta}
            call {helper}
            r2 = *(u64 *)(r10 - 8)
            r3 = *(u64 *)(r10 - 16)"
        );
        refused(&PACKET.replace("r2 -= r5", &format!("r2 -= r5\n{call}")));
        refused(&PACKET.replace("b: r2 = r3", &format!("b: r2 = r3\n{call}")));
    }
}

#[test]
fn a_base_before_its_buffer_reaches_no_further_back() {
    // The base begins below the buffer, by a loaded byte or by the number of words, or is moved back in a round.
    refused(&HALVES.replace("a: r3 = r2", "r8 = *(u8 *)(r1 + 0)\nr6 -= r8\na: r3 = r2"));
    refused(&HALVES.replace("a: r3 = r2", "r6 -= r2\na: r3 = r2"));
    accepted(&HALVES.replace("r2 -= r5", "r2 -= r5\nr6 -= 4"));
    refused(&HALVES.replace("r2 -= r5", "r2 -= r5\nr6 -= 8"));
}
