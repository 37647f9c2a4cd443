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
    // One word further.
    refused(&SEARCH.replace("(r0 + 0)", "(r0 + 4)"));
    // The buffer is as long as that in words, not in halves of them.
    refused(&SEARCH.replace("r2 >>= 2", "r2 >>= 1"));
    // It stays where it is.
    refused(&SEARCH.replace("r0 += 1", "r0 += 0"));
    // The upper end may be reached.
    refused(&SEARCH.replace("if r0 >= r2", "if r0 > r2"));
    // It moves beyond the upper end on one path.
    refused(&SEARCH.replace("r2 = r4", "r2 = r4\nr2 += 2"));
}

/// Numbers so far apart that their distance, and what was taken off their sum, are beyond 63 bits together.
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
    // Nothing is taken off, and 2^62 - 12 is less than any middle.
    accepted(&FAR_APART.replace("r1 += -1000", "r1 += 0"));
}

/// A pointer and what is left after it.
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
    // It is more than is left.
    refused(&LEFT.replace("if r2 < r3 goto out", ""));
    refused(&LEFT.replace("if r2 < r3 goto out", "if r2 > r3 goto out"));
    // One byte is left.
    refused(&LEFT.replace("if r2 > 1 goto a", "if r2 > 0 goto a"));
    // Nothing moves.
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
    // 0 less 1 is more than any.
    refused(&text(8, "if r5 s>= 8 goto out"));
    refused(&text(8, "if w5 s>= 8 goto out"));
    // Wrapped, for sure: x - 129 >= -128 says 1 <= x <= 128.
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
    // The last byte but r3, from the end.
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
    // It may be more than there are: then it wraps.
    refused(&text.replace("if r3 >= r2 goto out", ""));
    refused(&text.replace("if r3 >= r2", "if r3 > r2"));
    refused(&text.replace("r4 ^= -1", "w4 ^= -1"));
}

#[test]
fn bits_of_one_number_only_add_up() {
    // Two halves of an offset; the buffer is as long as they are.
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
    // They overlap: less than the sum, and the sum says nothing.
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

/// A loop whose end is a pointer's, and that is entered when it has been reached already.
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

/// An end that is left and come back to is as far from the end as it says, whichever way it was come by.
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
    // Before the start, an address says nothing of the order.
    refused(&text.replace("r4 -= 4\n", "r4 -= 21\n").replace("r5 += 4\n", "r5 += 21\n"));
}

#[test]
fn a_difference_of_more_than_its_width_holds_may_be_as_great_as_one_that_wrapped() {
    // r7 is r6 - 4, short, though r6 is not; r6 - 9 is more than -9 of 32 bits for an r6 of 2^32 + 2, too.
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
    // A sum is known, so that a comparison of the length bounds what moves with it.
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
    // bpf_xdp_adjust_tail.
    refused(&text.replace("call 5\n", "call 65\n"));
}

#[test]
fn what_lay_before_its_region_is_no_part_of_a_sum() {
    // r5 - r4 stays the same: 300 and what r5 was moved by.
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
    // r5 is r4 and r9 and a distance, from the first round on; it is read from the third on.
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
    // No panic on the way, whatever is said of them.
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
    // It does not begin before its region.
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

/// A pointer that falls beside a number that rises: how often, bounds the number while the pointer may not leave its
/// memory.
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
    // Of a multiple, too.
    let twice = FALLING.replace("r4 += r3", "r0 = r3\nr0 <<= 1\nr4 += r0").replace("r4 += -1", "r4 += -2");
    accepted(&twice);
    refused(&twice.replace("if r4 <= r1 goto out\n", "\n"));
}

#[test]
fn what_shows_one_difference_not_to_wrap_may_show_others() {
    // The second is one of the first: its bound settles both.
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

/// A number and a pointer that fall by less than what both are multiples of: 4 to 12 and 12 to 20, or less, by 1.
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
    // The last one is at 13.
    refused(&MULTIPLES.replace("r5 - 13", "r5 - 14"));
    refused(&MULTIPLES.replace("r5 - 13", "r5 - 16"));
}

/// A path that contradicts itself is fine whatever it does. A state on it is so for what contradicts itself, be it of a
/// number that nothing has any more: it covers no state without that.
#[test]
fn what_contradicts_itself_covers_nothing_else() {
    use bpf_isa::{Imm64, Insn, Program};
    use bpf_verifier::{ContextLayout, Env, Helpers, Verifier};
    // r4 is behind the end in every round that goes on, so r3 is, and the test at `a` goes one way; r8's name is one
    // that only slots have which are never read.
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

/// A verifier that is used again names numbers from the beginning: what it knew of the last program's would be said of
/// the next one's.
#[test]
fn what_one_program_knew_of_its_numbers_is_nothing_of_the_next() {
    // Three numbers, the third the first less the second; it ends where nothing has been kept. (The loop, which is
    // never entered, makes differences worth knowing.)
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
    // Three as well, of which the third is any. As that difference, it would be between 0 and 7.
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

/// A sum of two numbers that is asked for after that of their doubles, which is beyond 63 bits.
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
    // Both are 2^62 - 1: their sum is about 2^63, not below 2^62.
    refused(DOUBLED);
    // The sum of the doubles is below 2^63, so that of the numbers is below 2^62.
    accepted(
        &DOUBLED
            .replace("0x3fffffffffffffff", "0x1fffffffffffffff")
            .replace("0x3ffffffffffffff0 ll", "0x3fffffffffffffef ll"),
    );
}

/// A number that is above 63 bits, twice which is above 64: only at a distance is that a number.
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
    // It is a number.
    accepted(&TWICE_AT_A_DISTANCE.replace("0x80000000000003e7", "0x7fffffffffffffff"));
}

/// A number that falls from 4000 below four times another one, which may be beyond 64 bits.
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
    // Four times it is a number: 2^64 - 4 at most. Therefore r8 is above r7 in five rounds only.
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
    // The last byte is one further.
    refused(&PACKED.replace("(r6 + 1)", "(r6 + 2)"));
    // The next place is tested, and not its end.
    refused(&PACKED.replace("r5 += 24", "r5 += 12"));
    // The first place is tested less.
    refused(&PACKED.replace("if r2 < 12", "if r2 < 8"));
    // A byte has as many bits as that, or the place as many bytes.
    refused(&PACKED.replace("r2 <<= 3", "r2 <<= 4"));
    refused(&PACKED.replace("r5 >>= 3", "r5 >>= 2"));
    // The place moves by more than what is tested.
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
    // The byte behind it.
    refused(&MIRRORED.replace("(r0 + 0)", "(r0 + 1)"));
    // It falls twice as fast, or the loop ends at the end.
    refused(&MIRRORED.replace("a: r2 += -1", "a: r2 += -3"));
    refused(&MIRRORED.replace("r3 >>= 1", "r3 <<= 1"));
    // It begins at the end.
    refused(&MIRRORED.replace("    r2 += -1\n    goto b", "    goto b"));
}
