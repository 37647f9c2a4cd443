//! Conclusions from several numbers at once: each rule beside programs for which it does not hold.

use crate::common::{self, accepted, refused};

/// A search in a sorted buffer: `low <= middle < high`.
const SEARCH: &str = ";raw
    r0 = 0
    if r2 < 4 goto out
    r3 = 0
    r2 >>= 2
    goto a
    b: r3 = r0
    if r0 >= r2 goto out
    a: r4 = r3
    r4 += r2
    r4 >>= 1
    r5 = r4
    r5 <<= 2
    r0 = r1
    r0 += r5
    r5 = *(u32 *)(r0 + 0)
    r0 = r4
    r0 += 1
    if w5 < 1000 goto b
    r0 = r3
    r2 = r4
    goto b
    out: r0 = 0
    exit";

#[test]
fn the_middle_of_two_numbers_lies_between_them() {
    accepted(SEARCH);
    // The access is one word further.
    refused(&SEARCH.replace("(r0 + 0)", "(r0 + 4)"));
    // The length is divided by 2, so it counts half-words instead of words.
    refused(&SEARCH.replace("r2 >>= 2", "r2 >>= 1"));
    // The lower end does not advance beyond the middle.
    refused(&SEARCH.replace("r0 += 1", "r0 += 0"));
    // The upper end may be reached.
    refused(&SEARCH.replace("if r0 >= r2", "if r0 > r2"));
    // On one path the upper end is moved beyond the buffer.
    refused(&SEARCH.replace("r2 = r4", "r2 = r4\nr2 += 2"));
}

/// Numbers so far apart that their distance, together with the constant subtracted from their sum, exceeds 63 bits.
const FAR_APART: &str = ";raw
    r0 = 0
    if r2 < 24 goto out
    r3 = 0
    a: w3 += 1
    if w3 != 5 goto a
    r6 = *(u64 *)(r1 + 0)
    r7 = *(u32 *)(r1 + 8)
    r8 = *(u64 *)(r1 + 16)
    if r7 > 2000 goto out
    r2 = 0x7ffffffffffffff0 ll
    if r8 > r2 goto out
    r9 = r7
    r9 += r8
    if r6 > r9 goto out
    r3 = 0x7fffffffffffffff ll
    if r6 > r3 goto out
    if r6 < 20000 goto out
    if r8 != r2 goto out
    r1 = r6
    r1 += r7
    r1 += -1000
    r1 >>= 1
    r3 = 0x7ffffffffffffff4 ll
    if r6 < r3 goto out
    r3 = 0x4000000000000064 ll
    if r1 > r3 goto out
    r3 = 0x3fffffffffffffe0 ll
    r1 -= r3
    r2 = r10
    r2 += -200
    r2 += r1
    *(u8 *)(r2 + 0) = 0
    out: r0 = 0
    exit";

#[test]
fn the_middle_of_numbers_far_apart_is_where_it_is() {
    // r6 = 2^63 - 1, r7 = 16 and r8 = r2: r1 is 493 less than 2^62.
    refused(FAR_APART);
    // Nothing is subtracted, and 2^62 - 12 is less than any middle.
    accepted(&FAR_APART.replace("r1 += -1000", "r1 += 0"));
}

/// A pointer that skips items, and the number of bytes left behind it.
const LEFT: &str = ";raw
    r0 = 0
    if r2 < 2 goto out
    a: r2 += -2
    r3 = *(u8 *)(r1 + 1)
    r1 += 2
    if r2 < r3 goto out
    r1 += r3
    r2 -= r3
    if r2 > 1 goto a
    out: r0 = 0
    exit";

#[test]
fn a_pointer_and_what_is_left_have_one_sum() {
    accepted(LEFT);
    // The subtrahend of one is not the step of the other.
    refused(&LEFT.replace("r1 += r3", "r1 += r3\nr1 += 1"));
    refused(&LEFT.replace("r2 -= r3", ""));
    // The skipped length may exceed the number of bytes left.
    refused(&LEFT.replace("if r2 < r3 goto out", ""));
    refused(&LEFT.replace("if r2 < r3 goto out", "if r2 > r3 goto out"));
    // The loop goes on with one byte left.
    refused(&LEFT.replace("if r2 > 1 goto a", "if r2 > 0 goto a"));
    // The pointer need not advance.
    refused(&LEFT.replace("r2 += -2", "").replace("r1 += 2", "r1 += 0"));
}

/// The writer is never ahead of the reader.
const BEHIND: &str = ";raw
    r0 = 0
    if r2 == 0 goto out
    r3 = 0
    a: r4 = r1
    r4 += r3
    r4 = *(u8 *)(r4 + 0)
    if w4 == 32 goto b
    r5 = r1
    r5 += r0
    *(u8 *)(r5 + 0) = r4
    r0 += 1
    b: r3 += 1
    if r3 < r2 goto a
    out: r0 = 0
    exit";

#[test]
fn what_moves_on_some_paths_stays_behind_what_moves_on_all() {
    accepted(BEHIND);
    refused(&BEHIND.replace("r0 += 1", "r0 += 2"));
    refused(&BEHIND.replace("*(u8 *)(r5 + 0) = r4", "*(u8 *)(r5 + 1) = r4"));
    refused(&BEHIND.replace("b: r3 += 1", "b: r0 += 1\nr3 += 1"));
}

#[test]
fn a_difference_that_a_comparison_shows_not_to_wrap_is_one() {
    // x != 0 && x <= 8 as x - 1 < 8, in a program with a loop.
    let text = |size: u32, check: &str| {
        format!(
            ";raw
            r0 = 0
            if r2 < {size} goto out
            r3 = 0
            a: r4 = *(u8 *)(r1 + 0)
            r5 = r4
            r5 += -1
            {check}
            r6 = r1
            r6 += r4
            r0 = *(u8 *)(r6 - 1)
            r3 += 1
            if r3 < 9 goto a
            out: r0 = 0
            exit"
        )
    };
    accepted(&text(8, "if r5 >= 8 goto out"));
    refused(&text(7, "if r5 >= 8 goto out"));
    refused(&text(8, "if r5 > 8 goto out"));
    // The signed comparison lets 0 - 1 pass.
    refused(&text(8, "if r5 s>= 8 goto out"));
    refused(&text(8, "if w5 s>= 8 goto out"));
    // The difference has wrapped for sure: x - 129 >= -128 implies 1 <= x <= 128.
    let range = ";raw
        r0 = 0
        r3 = r2
        r3 += -129
        if r3 < -128 goto out
        r3 = 0
        a: r4 = r1
        r4 += r3
        r0 = *(u8 *)(r4 + 0)
        r3 += 1
        if r3 < r2 goto a
        out: r0 = 0
        exit";
    accepted(range);
    // One more allows 0.
    refused(&range.replace("if r3 < -128", "if r3 < -129"));
}

#[test]
fn a_complement_and_a_number_are_their_difference() {
    // Reads the byte that has r3 bytes behind it.
    let text = ";raw
        r0 = 0
        if r2 == 0 goto out
        r3 = *(u8 *)(r1 + 0)
        if r3 >= r2 goto out
        r6 = 0
        a: r4 = r3
        r4 ^= -1
        r4 += r2
        r5 = r1
        r5 += r4
        r0 = *(u8 *)(r5 + 0)
        r6 += 1
        if r6 < 5 goto a
        out: r0 = 0
        exit";
    accepted(text);
    refused(&text.replace("(r5 + 0)", "(r5 + 1)").replace("r3 = *(u8 *)(r1 + 0)", "r3 = 0"));
    // r3 may exceed the length: then the difference wraps.
    refused(&text.replace("if r3 >= r2 goto out", ""));
    refused(&text.replace("if r3 >= r2", "if r3 > r2"));
    refused(&text.replace("r4 ^= -1", "w4 ^= -1"));
}

#[test]
fn bits_of_one_number_only_add_up() {
    // An offset made of two parts with disjoint bits, in a buffer that is longer than their sum.
    let text = ";raw
        r0 = 0
        if r2 < 8 goto out
        r6 = 0
        a: r3 = *(u8 *)(r1 + 0)
        r4 = *(u8 *)(r1 + 1)
        r4 &= 3
        r4 <<= 8
        r4 |= r3
        if r4 >= r2 goto out
        r5 = r1
        r5 += r4
        r0 = *(u8 *)(r5 + 0)
        r6 += 1
        if r6 < 5 goto a
        out: r0 = 0
        exit";
    accepted(text);
    refused(&text.replace("if r4 >= r2", "if r4 > r2"));
    // The parts overlap, so their OR may be less than their sum, and a bound of the OR does not bound the sum.
    let less = text.replace("r4 <<= 8", "r4 <<= 7").replace("r5 += r4", "r5 += r4\nr5 += r3");
    refused(&less);
}

#[test]
fn a_number_is_compared_with_itself_at_a_distance() {
    // A number that may wrap is not greater.
    let text = ";raw
        r0 = 0
        if r2 < 8 goto out
        r6 = 0
        a: r3 = *(u64 *)(r1 + 0)
        r4 = r3
        r4 += 1
        if r4 > r3 goto b
        r0 = *(u8 *)(r1 + 8)
        b: r6 += 1
        if r6 < 5 goto a
        out: r0 = 0
        exit";
    refused(text);
    // A number that does not wrap is greater.
    accepted(&text.replace("(u64 *)(r1 + 0)", "(u32 *)(r1 + 0)"));
    refused(&text.replace("(u64 *)(r1 + 0)", "(u32 *)(r1 + 0)").replace("r4 += 1", "w4 += 1"));
    refused(&text.replace("(u64 *)(r1 + 0)", "(u32 *)(r1 + 0)").replace("if r4 > r3", "if w4 s> w3"));
}

/// A loop up to a pointer that the cursor may have reached when the loop is entered.
#[test]
fn not_at_the_end_is_before_it() {
    let text = ";raw
        r0 = 0
        r3 = r1
        r3 += r2
        r4 = r1
        a: if r4 == r3 goto out
        r0 = *(u8 *)(r4 + 0)
        r4 += 1
        goto a
        out: r0 = 0
        exit";
    accepted(text);
    refused(&text.replace("r4 += 1", "r4 += 2"));
    refused(&text.replace("r4 = r1\n", "r4 = r1\nr4 += 1\n"));
    refused(&text.replace("(r4 + 0)", "(r4 + 1)"));
}

/// A pointer that is moved away from the end and back has the same distance from the end as the end itself.
#[test]
fn what_moves_with_the_length_is_as_far_from_the_end_as_it_says() {
    let text = ";raw
        r0 = 0
        if r2 < 20 goto out
        r3 = r1
        r2 += r1
        r4 = r2
        r4 -= 4
        r5 = r4
        r5 += 4
        if r5 > r2 goto bad
        if r5 < r2 goto bad
        if r4 >= r2 goto bad
        r6 = r5
        r6 -= r2
        r6 += r3
        r0 = *(u8 *)(r6 + 19)
        r7 = r2
        r7 -= r4
        r7 += r3
        r0 = *(u8 *)(r7 + 15)
        goto out
        bad: r0 = *(u8 *)(r10 + 0)
        out: r0 = 0
        exit";
    accepted(text);
    refused(&text.replace("r6 + 19", "r6 + 20"));
    refused(&text.replace("r7 + 15", "r7 + 16"));
    refused(&text.replace("if r5 > r2", "if r5 >= r2"));
    refused(&text.replace("if r5 < r2", "if r5 <= r2"));
    refused(&text.replace("if r4 >= r2", "if r4 < r2"));
    // A pointer below the start of its region may wrap, so its offset does not order it.
    refused(&text.replace("r4 -= 4\n", "r4 -= 21\n").replace("r5 += 4\n", "r5 += 21\n"));
}

#[test]
fn a_difference_of_more_than_its_width_holds_may_be_as_great_as_one_that_wrapped() {
    // r7 = r6 - 4 fits 32 bits, though r6 does not; r6 - 9 exceeds -9 as a number of 32 bits for an r6 of 2^32 + 2,
    // too.
    let text = ";raw
        r0 = 0
        if r2 < 200 goto out
        r9 = 0
        r6 = *(u64 *)(r1 + 0)
        r3 = 4294967295 ll
        if r6 > r3 goto out
        if r6 < 4 goto out
        r7 = r6
        r7 += -4
        w7 += -5
        if w7 < -8 goto out
        r5 = r10
        r5 += -16
        *(u64 *)(r10 - 16) = 0
        *(u64 *)(r10 - 8) = 0
        r5 += r6
        r0 = *(u8 *)(r5 + 0)
        l: r9 += 1
        if r9 < 5 goto l
        out: r0 = 0
        exit";
    accepted(text);
    refused(&text.replace("4294967295 ll", "4294967299 ll"));
}

#[test]
fn the_low_half_of_a_constant_is_not_what_its_name_is_of() {
    let text = ";raw
        r0 = 0
        if r2 < 200 goto out
        r9 = 0
        r6 = *(u64 *)(r1 + 0)
        r4 = r6
        r8 = *(u8 *)(r1 + 16)
        r8 &= 7
        r4 = r8
        r3 = 5 ll
        if r6 != r3 goto out
        if w6 > w8 goto out
        r7 = *(u32 *)(r1 + 8)
        r4 = r7
        if r7 > r6 goto out
        r8 -= r7
        r5 = r10
        r5 += -8
        *(u64 *)(r10 - 8) = 0
        r5 += r8
        r0 = *(u8 *)(r5 + 0)
        l: r9 += 1
        if r9 < 5 goto l
        out: r0 = 0
        exit";
    accepted(text);
    refused(&text.replace("r3 = 5 ll", "r3 = 4294967301 ll"));
}

#[test]
fn what_was_moved_by_a_length_does_not_move_with_the_next_one() {
    // A sum is known, so that a comparison of the length bounds the pointers that were moved by it.
    let text = "
        r6 = r1
        r9 = 0
        *(u32 *)(r10 - 4) = 0
        r2 = r10
        r2 += -4
        r1 = map[fd:0]
        call 1
        if r0 == 0 goto out
        r8 = r0
        r2 = *(u32 *)(r6 + 0)
        r3 = *(u32 *)(r6 + 4)
        r7 = r3
        r7 -= r2
        r8 += r7
        r1 = r6
        r2 = -1
        call 5
        r2 = *(u32 *)(r6 + 0)
        r3 = *(u32 *)(r6 + 4)
        r5 = r2
        r5 += 2
        if r5 > r3 goto out
        r4 = *(u8 *)(r2 + 0)
        r5 = *(u8 *)(r2 + 1)
        r4 += r5
        r7 = r3
        r7 -= r2
        if r7 > 7 goto out
        *(u64 *)(r10 - 16) = r4
        *(u64 *)(r10 - 24) = r5
        r0 = *(u8 *)(r8 + 0)
        l: r9 += 1
        if r9 < 5 goto l
        out: r0 = 0
        exit";
    accepted(text);
    // Helper 65, `bpf_xdp_adjust_tail`, changes the length; helper 5 does not.
    refused(&text.replace("call 5\n", "call 65\n"));
}

#[test]
fn what_lay_before_its_region_is_no_part_of_a_sum() {
    // r5 - r4 is invariant: 300 and the number by which r5 was moved before the loop.
    let text = ";raw
        r0 = 0
        if r2 < 400 goto out
        r8 = r1
        r8 += r2
        r3 = *(u8 *)(r1 + 0)
        r5 = r1
        r5 += r3
        r5 += 300
        r4 = 0
        l: r6 = r5
        r6 += 1
        if r6 > r8 goto out
        r7 = r1
        r7 += r4
        r0 = *(u8 *)(r7 + 300)
        r3 = *(u8 *)(r5 + 0)
        r3 &= 3
        r3 += 1
        r5 += r3
        r4 += r3
        goto l
        out: r0 = 0
        exit";
    accepted(text);
    refused(&text.replace("r5 += r3\n        r5 += 300", "r5 -= r3\n        r5 += 300"));
}

#[test]
fn what_may_lie_before_its_region_is_no_sum() {
    // r5 = r4 + r9 + a constant from the first round on; the access is reached from the third round on.
    let text = ";raw
        r0 = 0
        if r2 < 400 goto out
        r3 = *(u8 *)(r1 + 0)
        r3 &= 63
        r9 = r3
        r5 = r1
        r5 += r3
        r5 += 50
        r4 = 0
        l: r7 = 200
        r7 -= r9
        if r4 > r7 goto out
        if r4 < 2 goto skip
        r0 = *(u8 *)(r5 + 0)
        skip: r3 = *(u8 *)(r1 + 2)
        r3 &= 3
        r3 += 1
        r5 += r3
        r4 += r3
        goto l
        out: r0 = 0
        exit";
    accepted(text);
    refused(&text.replace("r5 += 50", "r5 += -50"));
}

#[test]
fn numbers_of_63_bits_are_not_too_much_for_an_order() {
    // The verifier must not panic; either verdict is right.
    let text = |op: &str, by: &str, least: &str, delta: &str| {
        format!(
            ";raw
            r0 = 0
            if r2 < 64 goto out
            r9 = 0
            r6 = *(u64 *)(r1 + 0)
            r7 = {least} ll
            if r6 < r7 goto out
            {by}
            l: r3 = r6
            r3 += {delta}
            r3 {op} r4
            r9 += 1
            if r9 < 5 goto l
            out: r0 = 0
            exit"
        )
    };
    accepted(&text("-=", "r4 = 9223372036854775807 ll", "9223372036854775900", "-5"));
    accepted(
        &text("+=", "r4 = 9223372036854775807 ll", "0", "5").replace("if r6 < r7 goto out", "if r6 > 1000 goto out"),
    );
    // Both begin as constants 2^63 apart, and move.
    let text = ";raw
        r0 = 0
        if r2 < 64 goto out
        r3 = 0
        r4 = -9223372036854775808 ll
        r9 = r2
        l: r5 = *(u8 *)(r1 + 0)
        r3 += r5
        r5 = *(u8 *)(r1 + 1)
        r4 += r5
        r5 = r1
        r5 += r3
        r9 -= 1
        if r3 > 60 goto out
        if r9 > 70 goto l
        out: r0 = 0
        exit";
    let _ = common::verify(text);
    let _ = common::verify(
        &text.replace("r3 = 0", "r3 = -9223372036854775808 ll").replace("r4 = -9223372036854775808 ll", "r4 = 0"),
    );
}

#[test]
fn a_multiple_of_what_lay_before_its_region_is_more_than_that() {
    let text = ";raw
        r0 = 0
        if r2 < 8 goto out
        r3 = *(u8 *)(r1 + 0)
        r3 &= 31
        r4 = r3
        r4 <<= 2
        if r4 > r2 goto out
        r5 = r1
        r6 = r3
        r6 <<= 1
        r5 += r6
        r5 += -50
        r8 = 0
        l: r7 = r5
        r7 += 60
        if r8 == 0 goto first
        r0 = *(u8 *)(r7 + 0)
        first: r7 = *(u8 *)(r1 + 2)
        if r7 > 9 goto out
        r7 = *(u8 *)(r1 + 3)
        if r7 > 9 goto skip
        r5 = r1
        r5 += -50
        skip: r8 += 1
        if r8 < 9 goto l
        out: r0 = 0
        exit";
    // Where r3 is 0, r7 is 10 bytes after the beginning.
    refused(text);
    accepted(&text.replace("r7 += 60", "r7 += 50").replace("if r2 < 8 ", "if r2 < 63 "));
    // The pointer does not begin before its region.
    accepted(&text.replace("r5 += -50", "r5 += 0").replace("r7 += 60", "").replace("if r2 < 8 ", "if r2 < 63 "));
}

/// Two pointers that a loop moves, each from the same start.
const TWO_POINTERS: &str = ";raw
    if r2 < 32 goto out
    r6 = r1
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
    r2 = r6
    r2 += r9
    r3 = r6
    r3 += r5
    r8 += 1
    if r8 < 10 goto a
    out: r0 = 0
    exit";

#[test]
fn what_moves_by_multiples_of_one_number_does_not_stay_together() {
    accepted(TWO_POINTERS);
    refused(&TWO_POINTERS.replace("r9 = r5", "r9 = r5\nr9 <<= 1"));
    refused(&TWO_POINTERS.replace("r9 = r5", "r9 = r5\nr9 *= 3"));
}

/// A pointer falls while a number rises. The rounds until the pointer reaches the start bound the number, provided that
/// the pointer stays in its memory.
const FALLING: &str = ";raw
    if r2 < 32 goto out
    r3 = *(u8 *)(r1 + 0)
    r3 &= 7
    r4 = r1
    r4 += r3
    r5 = 0
    a: if r4 <= r1 goto out
    r6 = r10
    r6 += -8
    r6 += r5
    *(u8 *)(r6 + 0) = 1
    r4 += -1
    r5 += 1
    if r5 < 20 goto a
    r6 = r10
    r6 += -8
    r6 += r3
    *(u8 *)(r6 + 0) = 1
    out: r0 = 0
    exit";

#[test]
fn what_falls_before_its_memory_bounds_no_rounds() {
    accepted(FALLING);
    refused(&FALLING.replace("if r4 <= r1 goto out\n", "\n"));
    // The pointer begins at a multiple of the number and falls by 2.
    let twice = FALLING.replace("r4 += r3", "r0 = r3\nr0 <<= 1\nr4 += r0").replace("r4 += -1", "r4 += -2");
    accepted(&twice);
    refused(&twice.replace("if r4 <= r1 goto out\n", "\n"));
}

#[test]
fn what_shows_one_difference_not_to_wrap_may_show_others() {
    // The second difference is computed from the first: the bound of the second shows that neither wraps.
    accepted(
        ";raw
        if r2 < 32 goto out
        r3 = *(u8 *)(r1 + 0)
        r4 = r3
        r4 += -1
        r5 = r4
        r5 += -2
        if r5 > 28 goto out
        r1 += r5
        r0 = *(u8 *)(r1 + 3)
        r3 = 0
        a: r3 += 1
        if r3 < 3 goto a
        out: r0 = 0
        exit",
    );
}

/// A number (at first a multiple of 4, up to 8) and a pointer 12 bytes ahead of it both fall by 1, so that neither
/// stays a multiple of 4.
const MULTIPLES: &str = ";raw
    if r2 < 32 goto out
    r3 = *(u8 *)(r1 + 0)
    r3 &= 3
    if r3 == 0 goto out
    r4 = r3
    r4 <<= 2
    r5 = r1
    r5 += r4
    r5 += 8
    r4 += -4
    a: if r4 == 0 goto out
    r0 = *(u8 *)(r5 - 13)
    r4 += -1
    r5 += -1
    goto a
    out: r0 = 0
    exit";

#[test]
fn a_pointer_falls_from_where_it_is_not_from_where_the_number_is() {
    accepted(MULTIPLES);
    // In the last round r4 is 1 and r5 is 13 bytes into the buffer.
    refused(&MULTIPLES.replace("r5 - 13", "r5 - 14"));
    refused(&MULTIPLES.replace("r5 - 13", "r5 - 16"));
}

/// A path whose facts contradict each other is unreachable, and needs no proof. A kept state on such a path covers only
/// states with the same contradiction, even if the contradiction is about a name that no register holds any more.
#[test]
fn what_contradicts_itself_covers_nothing_else() {
    use bpf_isa::{Imm64, Insn, Program};
    use bpf_verifier::{ContextLayout, Env, Helpers, Verifier};
    // r4 is at or behind the end in every round that continues, and so is r3, therefore the test at `a` has one
    // outcome. The name of the number first loaded to r8 is held by dead slots only.
    let text = "r8 = map[fd:0]
        r8 = *(u16 *)(r8 + 0)
        *(u64 *)(r10 - 56) = r8
        *(u64 *)(r10 - 64) = r8
        r6 = r1
        r7 = r1
        r7 += r2
        r3 = r1
        r8 = 0
        a: r0 = r3
        r0 += 1
        if r0 > r7 goto b
        b: r5 = map[fd:0]
        r5 = *(u64 *)(r5 + 0)
        r5 &= 127
        r3 = r6
        r3 += r5
        r4 = r6
        r4 += r5
        r8 += 1
        if r8 >= 3 goto c
        if r4 >= r7 goto a
        c: r0 = *(u8 *)(r4 + 0)
        exit";
    let mut insns = bpf_isa::assemble(text).expect("instructions");
    for insn in &mut insns {
        if let Insn::LoadImm64 { imm, .. } = insn {
            *imm = Imm64::MapValue { map: 0, off: 8 };
        }
    }
    let (context, helpers) = (ContextLayout::raw(true), Helpers::none());
    let (maps, types) = (common::maps(), common::types());
    let mut env = Env::new(&context, &helpers);
    env.types = &types;
    env.maps = &maps;
    let result = Verifier::new().verify(Program::new(insns).expect("valid"), &env);
    let error = result.expect_err("it reads behind the end");
    assert!(error.to_string().contains("access of 1 bytes"), "{error}");
}

/// A verifier that is used again numbers its names from the beginning: facts left of the last program would be applied
/// to names of the next one.
#[test]
fn what_one_program_knew_of_its_numbers_is_nothing_of_the_next() {
    // The third of three numbers is the first less the second. The program ends where no state has been kept. (The
    // loop, which is never entered, makes the verifier track differences.)
    let first = "call 7
        r6 = r0
        call 7
        r7 = r0
        r6 -= r7
        r0 = 0
        if r0 == 0 goto out
        a: r0 += 1
        if r0 < 9 goto a
        out: exit";
    // The third of three numbers is arbitrary. As the difference of the first two, it would be 0 to 7.
    let next = "call 7
        r6 = r0
        call 7
        r7 = r0
        call 7
        r8 = r0
        if r6 > 7 goto out
        if r7 > r6 goto out
        r2 = r10
        r2 += -8
        r2 += r8
        *(u8 *)(r2 + 0) = 1
        out: r0 = 0
        if r0 == 0 goto end
        a: r0 += 1
        if r0 < 9 goto a
        end: exit";
    common::with_env(first, |env| {
        let mut verifier = bpf_verifier::Verifier::new();
        for (text, safe) in [(next, false), (&next.replace("r8 = r0", "r8 = r0\nr8 &= 7"), true)] {
            verifier.verify(common::program(first), env).expect("it is safe");
            assert_eq!(verifier.verify(common::program(text), env).is_ok(), safe, "{text}");
        }
    });
}

/// The sum of two numbers is bounded by way of the sum of their doubles, which may exceed 63 bits.
const DOUBLED: &str = ";raw
    r0 = 0
    if r2 < 24 goto out
    r3 = 0
    a: w3 += 1
    if w3 != 5 goto a
    r6 = *(u64 *)(r1 + 0)
    r7 = *(u64 *)(r1 + 8)
    r3 = 0x3fffffffffffffff ll
    if r6 > r3 goto out
    if r7 > r3 goto out
    r8 = r6
    r8 <<= 1
    r9 = r7
    r9 <<= 1
    r8 += r9
    r1 = r6
    r1 += r7
    r3 = 0x3ffffffffffffff0 ll
    if r1 < r3 goto out
    r1 -= r3
    r2 = r10
    r2 += -16
    r2 += r1
    *(u8 *)(r2 + 0) = 0
    out: r0 = 0
    exit";

#[test]
fn half_of_a_sum_beyond_63_bits_is_not_half_of_what_it_is_cut_off_to() {
    // Both numbers are 2^62 - 1: their sum is about 2^63, not below 2^62.
    refused(DOUBLED);
    // The sum of the doubles is below 2^63, so the sum of the numbers is below 2^62.
    accepted(
        &DOUBLED
            .replace("0x3fffffffffffffff", "0x1fffffffffffffff")
            .replace("0x3ffffffffffffff0 ll", "0x3fffffffffffffef ll"),
    );
}

/// The double of a number may exceed 64 bits, although the double less a constant fits.
const TWICE_AT_A_DISTANCE: &str = ";raw
    r0 = 0
    if r2 < 24 goto out
    r3 = 0
    a: w3 += 1
    if w3 != 5 goto a
    r6 = *(u64 *)(r1 + 0)
    r7 = *(u64 *)(r1 + 8)
    if r6 < 1000 goto out
    r3 = 0x80000000000003e7 ll
    if r6 > r3 goto out
    r8 = r6
    r8 += -1000
    r8 <<= 1
    if r7 < 1 goto out
    if r7 > r8 goto out
    r9 = r7
    if r7 < 100 goto out
    r3 = 0x7ffffffffffffff0 ll
    if r6 < r3 goto out
    r1 = r6
    r1 -= r3
    r2 = r10
    r2 += -16
    r2 += r1
    *(u8 *)(r2 + 0) = 0
    out: r0 = 0
    exit";

#[test]
fn twice_a_number_may_be_beyond_64_bits() {
    // r6 = 2^63 + 900, r7 = 100.
    refused(TWICE_AT_A_DISTANCE);
    // The double fits 64 bits.
    accepted(&TWICE_AT_A_DISTANCE.replace("0x80000000000003e7", "0x7fffffffffffffff"));
}

/// A number that falls from `4 * n - 4000`, where `4 * n` may exceed 64 bits.
const FALLS_FROM_FAR: &str = ";raw
    r0 = 0
    if r2 < 24 goto out
    r6 = *(u64 *)(r1 + 0)
    if r6 < 1000 goto out
    r3 = 0x40000000000003e7 ll
    if r6 > r3 goto out
    r8 = r6
    r8 += -1000
    r8 <<= 2
    r9 = 0
    r4 = r10
    r4 += -8
    r7 = 0xfffffffffffff057 ll
    a: if r9 >= 40 goto out
    if r6 < 7 goto out
    if r8 < 1 goto out
    r8 += -1
    if r8 < r7 goto b
    r2 = r4
    r2 += r9
    *(u8 *)(r2 + 0) = 0
    b: r9 += 1
    goto a
    out: r0 = 0
    exit";

#[test]
fn what_a_line_begins_with_may_be_beyond_64_bits() {
    // r6 = r3: r8 begins at 2^64 - 4, and is above r7 in all 40 rounds.
    refused(FALLS_FROM_FAR);
    // `4 * n` fits 64 bits: it is at most 2^64 - 4. Therefore r8 is above r7 in five rounds only.
    accepted(&FALLS_FROM_FAR.replace("0x40000000000003e7", "0x3fffffffffffffff"));
}

/// Numbers of twelve bits, packed, as clang compiles `pos + 12 <= 8 * len`: the place in bits is a multiple of the
/// round, and its end is below a multiple of the length.
const PACKED: &str = ";raw
    r0 = 0
    r2 <<= 3
    if r2 < 12 goto out
    r4 = 0
    r3 = 0
    a: r5 = r4
    r5 >>= 3
    r6 = r1
    r6 += r5
    r5 = *(u8 *)(r6 + 1)
    r6 = *(u8 *)(r6 + 0)
    w6 <<= 8
    w6 |= w5
    w5 = w4
    w5 ^= -1
    w5 &= 4
    w6 >>= w5
    r0 += r6
    r3 += 12
    r5 = r4
    r5 += 24
    r4 = r3
    if r5 > r2 goto out
    goto a
    out: exit";

#[test]
fn a_place_in_bits_is_below_a_multiple_of_the_length() {
    accepted(PACKED);
    // The last byte read is one byte further.
    refused(&PACKED.replace("(r6 + 1)", "(r6 + 2)"));
    // The test is of the next item's first bit instead of its end.
    refused(&PACKED.replace("r5 += 24", "r5 += 12"));
    // The test of the first item allows a length that is too small.
    refused(&PACKED.replace("if r2 < 12", "if r2 < 8"));
    // A byte is taken to have 16 bits, or the place is divided by 4 bits a byte.
    refused(&PACKED.replace("r2 <<= 3", "r2 <<= 4"));
    refused(&PACKED.replace("r5 >>= 3", "r5 >>= 2"));
    // The place moves by more bits than the test allows for.
    refused(&PACKED.replace("r3 += 12", "r3 += 17"));
}

/// A buffer that is compared with itself backwards, as clang compiles `p[i] != p[n - 1 - i]` for `i < n / 2`.
const MIRRORED: &str = ";raw
    r0 = 1
    if r2 < 2 goto out
    r3 = r2
    r3 >>= 1
    r4 = 0
    r2 += -1
    goto b
    a: r2 += -1
    r4 += 1
    if r4 >= r3 goto out
    b: r5 = r1
    r5 += r4
    r0 = r1
    r0 += r2
    r6 = *(u8 *)(r0 + 0)
    r5 = *(u8 *)(r5 + 0)
    r0 = 0
    if w5 == w6 goto a
    out: exit";

#[test]
fn a_place_from_the_end_does_not_fall_below_the_start() {
    accepted(MIRRORED);
    // The access is one byte behind the mirrored byte.
    refused(&MIRRORED.replace("(r0 + 0)", "(r0 + 1)"));
    // The index from the end falls by 3 in each round, or the loop runs over twice the length.
    refused(&MIRRORED.replace("a: r2 += -1", "a: r2 += -3"));
    refused(&MIRRORED.replace("r3 >>= 1", "r3 <<= 1"));
    // The index from the end begins one byte behind the last.
    refused(&MIRRORED.replace("    r2 += -1\n    goto b", "    goto b"));
}
