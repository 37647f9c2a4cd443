//! Relations of numbers in programs without loops, and what masks, ORs and counted bits are: each rule beside programs
//! for which it does not hold.

use crate::common::{ATTRIBUTES, accepted, refused};

/// A header that contains its own length, and eight bytes behind it.
const HEADER: &str = ";raw
    if r2 < 1 goto out
    r3 = *(u8 *)(r1 + 0)
    if r2 < r3 goto out
    r2 -= r3
    if r2 < 8 goto out
    r1 += r3
    r0 = *(u64 *)(r1 + 0)
    out: r0 = 0
    exit";

#[test]
fn what_is_left_behind_a_header_is_known_without_a_loop() {
    accepted(HEADER);
    refused(&HEADER.replace("r2 < 8", "r2 < 7"));
    refused(&HEADER.replace("if r2 < r3 goto out", "if r2 < 200 goto out"));
    refused(&HEADER.replace("if r2 < r3 goto out", "r4 = r3\nr4 >>= 1\nif r2 < r4 goto out"));
}

#[test]
fn relations_are_known_in_programs_of_any_length() {
    let long = format!("{}{}", "r0 = 1\n".repeat(1200), HEADER.replace(";raw", ""));
    accepted(&format!(";raw\n{long}"));
    refused(&format!(";raw\n{}", long.replace("r2 < 8", "r2 < 7")));
}

/// A length that is rounded up is checked, and the length itself used.
const ROUNDED: &str = ";raw
    if r2 < 1 goto out
    r3 = *(u8 *)(r1 + 0)
    r4 = r3
    r4 += 3
    r4 &= 0x1fc
    if r4 > r2 goto out
    if r3 < 5 goto out
    r1 += r3
    r0 = *(u8 *)(r1 - 1)
    out: r0 = 0
    exit";

#[test]
fn what_is_rounded_up_is_no_less() {
    accepted(ROUNDED);
    refused(&ROUNDED.replace("r1 - 1", "r1 + 0"));
    // The length is rounded down.
    refused(&ROUNDED.replace("r4 += 3", "r4 += 2"));
    refused(&ROUNDED.replace("0x1fc", "0x0fc"));
}

/// The second of two bytes at an even offset: the low bit of the offset is set by an OR.
const PAIR: &str = ";raw
    if r2 < 2 goto out
    r3 = *(u8 *)(r1 + 0)
    r2 >>= 1
    r4 = r3
    r4 >>= 1
    if r4 >= r2 goto out
    r3 |= 1
    r1 += r3
    r0 = *(u8 *)(r1 + 0)
    out: r0 = 0
    exit";

#[test]
fn low_bits_that_are_set_are_added_to_a_multiple() {
    accepted(PAIR);
    refused(&PAIR.replace("|= 1", "|= 3"));
    refused(&PAIR.replace("if r4 >= r2", "if r4 > r2"));
    accepted(&PAIR.replace("|= 1", "&= -2"));
}

/// An index of 0 to 7 is added to an aligned pointer by an OR.
const ORED: &str = ";raw
    if r2 < 1 goto out
    r3 = *(u8 *)(r1 + 0)
    r3 &= 7
    *(u64 *)(r10 - 8) = 0
    r4 = r10
    r4 += -8
    r4 |= r3
    r0 = *(u8 *)(r4 + 0)
    out: r0 = 0
    exit";

#[test]
fn an_or_with_an_aligned_pointer_is_a_sum() {
    accepted(ORED);
    accepted(&ORED.replace("r4 |= r3", "r3 |= r4\nr4 = r3"));
    refused(
        &ORED
            .replace("&= 7", "&= 15")
            .replace("*(u64 *)(r10 - 8) = 0", "*(u64 *)(r10 - 8) = 0\n*(u64 *)(r10 - 16) = 0"),
    );
    refused(&ORED.replace("r4 += -8", "r4 += -7").replace("&= 7", "&= 1"));
    // The memory has no known alignment.
    refused(&ORED.replace("r4 = r10\n    r4 += -8", "r4 = r1").replace("&= 7", "&= 0"));
    refused(&ORED.replace("|=", "^="));
}

/// Passes a pointer into a buffer of 16 bytes and the number of bytes left behind it.
const REST: &str = ";raw
    if r2 < 1 goto out
    r3 = *(u8 *)(r1 + 0)
    if r3 > 15 goto out
    *(u64 *)(r10 - 8) = 0
    *(u64 *)(r10 - 16) = 0
    r1 = r10
    r1 += -16
    r1 += r3
    r2 = 0
    r4 = 16
    r4 -= r3
    r3 = r4
call memset
    out: r0 = 0
    exit";

#[test]
fn a_place_and_a_length_go_together() {
    accepted(REST);
    refused(&REST.replace("r4 = 16", "r4 = 17"));
    refused(&REST.replace("r1 += -16", "r1 += -15"));
    // The length is the rest behind another offset.
    refused(&REST.replace("r4 -= r3", "r5 = *(u8 *)(r10 - 8)\nr5 &= 3\nr4 -= r5"));
}

/// The number of bits that are set, of 32.
const COUNTED: &str = "r4 = r3
    w4 >>= 1
    w4 &= 0x55555555
    w3 -= w4
    w4 = w3
    w4 &= 0x33333333
    w3 >>= 2
    w3 &= 0x33333333
    w4 += w3
    w3 = w4
    w3 >>= 4
    w4 += w3
    w4 &= 0xf0f0f0f
    w4 *= 0x1010101
    w4 >>= 24";

fn counted() -> String {
    format!(
        ";raw
        if r2 < 33 goto out
        r3 = *(u32 *)(r1 + 0)
        {COUNTED}
        r1 += r4
        r0 = *(u8 *)(r1 + 0)
        out: r0 = 0
        exit"
    )
}

#[test]
fn counted_bits_are_no_more_than_the_width() {
    accepted(&counted());
    refused(&counted().replace("r2 < 33", "r2 < 32"));
    // The bits of another number, or of a part of the number, are counted.
    refused(&counted().replace("w3 -= w4", "w3 ^= 1\nw3 -= w4"));
    refused(&counted().replace("w4 = w3\n    w4 &= 0x33333333", "w4 = w3\n    w4 &= 0x73333333"));
    refused(&counted().replace("w3 >>= 4", "w3 >>= 3"));
    refused(&counted().replace("0x1010101", "0x1010103"));
    refused(&counted().replace("w4 &= 0x55555555", "w4 &= 0x55555557"));
}

/// The low byte of a number is compared, and its four low bits are an index.
const MASKED: &str = ";raw
    if r2 < 16 goto out
    r3 = *(u32 *)(r1 + 0)
    r4 = r3
    r4 &= 15
    r5 = r3
    r5 &= 0xff
    if r5 > 14 goto out
    r1 += r4
    r0 = *(u8 *)(r1 + 1)
    out: r0 = 0
    exit";

#[test]
fn of_two_masks_the_one_within_the_other_gives_less() {
    accepted(MASKED);
    refused(&MASKED.replace("> 14", "> 15"));
    // The index has a bit that was not tested.
    refused(&MASKED.replace("&= 15", "&= 0x10f"));
    refused(&MASKED.replace("&= 0xff", "&= 0xf7"));
    // The index is of another number.
    refused(&MASKED.replace("r4 = r3", "r4 = r3\n    r4 ^= 1"));
    refused(&MASKED.replace("r5 = r3", "r5 = r3\n    r5 += 1"));
    refused(&MASKED.replace("r5 = r3", "r3 = *(u32 *)(r1 + 4)\n    r5 = r3"));
    // The bit is known to be clear, before both masks or between them.
    let clear = "r6 = r3\n    r6 &= 0x100\n    if r6 != 0 goto out\n    ";
    for before in ["r4 = r3", "r5 = r3"] {
        let tested = MASKED.replace("&= 15", "&= 0x10f").replace(before, &format!("{clear}{before}"));
        accepted(&tested);
        refused(&tested.replace("r6 != 0", "r6 == 0"));
        refused(&tested.replace("r6 &= 0x100", "r6 &= 0x200"));
    }
    // The comparison comes before the second mask.
    let early =
        MASKED.replace("r4 = r3\n    r4 &= 15\n    ", "").replace("r1 += r4", "r4 = r3\n    r4 &= 15\n    r1 += r4");
    accepted(&early);
    refused(&early.replace("> 14", "> 15"));
    refused(&early.replace("&= 15", "&= 0x10f"));
}

/// An offset is compared with the rest of a buffer behind a length. The length is bounded afterwards, before a loop.
const REST_FIRST: &str = ";raw
    if r2 < 4096 goto out
    r8 = *(u32 *)(r1 + 0)
    r7 = *(u32 *)(r1 + 4)
    r3 = 4096
    r3 -= r7
    r3 <<= 32
    r3 >>= 32
    if r8 > r3 goto out
    if r7 > 256 goto out
    if r7 == 0 goto out
    r1 += r8
    r2 = 0
    a: r3 = r1
    r3 += r2
    *(u8 *)(r3 + 0) = r2
    r2 += 1
    if r2 < r7 goto a
    out: r0 = 0
    exit";

#[test]
fn a_rest_that_was_compared_is_kept_into_a_loop() {
    accepted(REST_FIRST);
    accepted(&REST_FIRST.replace("r7 > 256", "r7 > 4096"));
    // A longer one has wrapped round, and the comparison said nothing.
    refused(&REST_FIRST.replace("r7 > 256", "r7 > 4097"));
    refused(&REST_FIRST.replace("if r7 > 256 goto out", ""));
    refused(&REST_FIRST.replace("r3 = 4096", "r3 = 4097"));
    refused(&REST_FIRST.replace("r3 + 0) = r2", "r3 + 1) = r2"));
    refused(&REST_FIRST.replace("r2 < r7", "r2 <= r7"));
    refused(&REST_FIRST.replace("r8 > r3", "r8 < r3"));
}

/// An offset below the length: a difference that has wrapped tells how far below.
const WRAPPED: &str = ";raw
    if r2 < 1 goto out
    r3 = *(u8 *)(r1 + 0)
    if r3 >= r2 goto out
    r4 = r3
    r4 -= r2
    if r4 > -5 goto out
    r1 += r3
    r0 = *(u32 *)(r1 + 1)
    out: r0 = 0
    exit";

#[test]
fn a_difference_that_has_wrapped_is_how_far_the_other_is() {
    accepted(&format!("{WRAPPED}\na: r0 += 1\nif r0 < 300 goto a\nexit"));
    refused(&WRAPPED.replace("> -5", "> -4"));
    refused(&WRAPPED.replace("r3 >= r2", "r3 > r2").replace("r1 + 1", "r1 + 2"));
}

/// Unsafe programs, each accepted with one planted fault only; the oracle sees the violation.
#[cfg(feature = "faults")]
#[test]
fn each_fault_is_found() {
    use bpf_isa::{Program, assemble};
    use bpf_testkit::generate::Choices;
    use bpf_verifier::faults::{Fault, plant};

    use crate::border::{Oracle, Outcome};

    let wrong = |fault: Fault| match fault {
        // The access is one byte behind the length that was rounded up.
        Fault::MaskTakesLess => ROUNDED.replace("0x1fc", "0x1f8").replace(";raw", "").replace("r3 < 5", "r3 < 1"),
        // The last two bytes of an even length.
        Fault::LowBitsLess => PAIR
            .replace(";raw", "")
            .replace("r3 = *(u8 *)(r1 + 0)", "r3 = r2\nr3 += -2")
            .replace("r0 = *(u8 *)(r1 + 0)", "r0 = *(u16 *)(r1 + 0)"),
        // The address 12 below the top has the bit set already.
        Fault::OrIsSum => "*(u32 *)(r10 - 8) = 1
            *(u32 *)(r10 - 12) = 2
            r4 = r10
            r4 += -12
            r3 = 4
            r4 |= r3
            r0 = *(u32 *)(r4 + 0)
            exit"
            .into(),
        // The length is one more than the number of bytes left in the buffer.
        Fault::LengthOneMore => "r0 = 0
            r3 = *(u8 *)(r1 + 0)
            r3 &= 31
            r4 = r2
            r4 -= r3
            r4 += 1
            r1 += r3
            r2 = r4
            call 182
            out: exit"
            .into(),
        // r3 and r2 may be equal, since r4 may be 0.
        Fault::EqualIsLess => "r0 = 0
            r4 = *(u8 *)(r1 + 0)
            r4 &= 1
            r3 = r2
            r3 -= r4
            r4 = r3
            r4 -= r2
            if r4 != 0 goto out
            r1 += r3
            r0 = *(u8 *)(r1 + 0)
            out: exit"
            .into(),
        // The second mask has none of the first one's bits.
        Fault::MasksAlike => MASKED.replace(";raw", "").replace("r4 &= 15", "r4 &= 0xf0").replace("&= 0xff", "&= 15"),
        Fault::NamesakesForgotten => {
            NAMESAKE.replace(";raw", "").replace("r1 + 8)", "r1 + 24)").replace("r2 < 16", "r2 < 32")
        }
        Fault::SearchesUnmarked => NAMESAKE_ORDER.replace(";raw", "").replace("r2 < 256", "r2 < 32"),
        Fault::UnheldNotNegative => PART_BEFORE_START.replace(";raw", ""),
        Fault::SignsUnkept => PART_BEFORE_START_IN_LOOP.replace(";raw", ""),
        Fault::MultiplesOfAnySign => multiple_before_start().replace(";raw", ""),
        Fault::PairsHaveOne => counted().replace(";raw", "").replace("r2 < 33", "r2 < 17"),
        other => panic!("{other:?} is none of these"),
    };
    for &fault in Fault::OF_RELATIONS {
        let program = assemble(&wrong(fault)).expect("instructions");
        let program = Program::new(program).expect("valid");
        // One of the programs reads from buffers that are shorter than the others' are.
        let oracle = || match fault {
            Fault::MultiplesOfAnySign => Oracle::with_least(false, 1),
            _other => Oracle::new(false),
        };
        let check = || oracle().check(&program, 400, &mut Choices::from_seed(1));
        match check() {
            Outcome::Refused(_) => {}
            Outcome::Violation(v) => panic!("{fault:?} without it: {v:?}"),
            Outcome::Ran(n) => panic!("{fault:?} without it: ran {n}"),
        }
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

/// One path knows a bit of a number by a spill that nothing reads; the other path has no spill, and the bit set.
const NAMESAKE: &str = ";raw
    if r2 < 16 goto out
    r3 = *(u32 *)(r1 + 0)
    if r3 > 0x40000000 goto out
    r5 = r3
    r5 <<= 4
    if r5 & 0x80 goto k
    r5 >>= 4
    *(u64 *)(r10 - 8) = r5
    k: r4 = r3
    r4 &= 7
    r3 &= 15
    r1 += r3
    r0 = *(u8 *)(r1 + 8)
    out: r0 = 0
    exit";

/// Facts that a path reads by the name of a number, from a place that it does not read, hold of that path alone.
#[test]
fn a_namesake_that_is_not_read_is_known_on_its_path_only() {
    refused(NAMESAKE);
    refused(&NAMESAKE.replace("*(u64 *)(r10 - 8) = r5", "r9 = r5"));
    accepted(&NAMESAKE.replace("r1 + 8)", "r1 + 0)"));
    // The bit is clear on both paths.
    accepted(&NAMESAKE.replace("goto k", "goto out"));
    // By the comparison of a mask with zero.
    let compared = NAMESAKE.replace("r4 &= 7", "r4 &= 0x20000000\nif r4 != 0 goto out");
    refused(&compared);
    refused(&compared.replace("*(u64 *)(r10 - 8) = r5", "r9 = r5"));
}

/// An unread spill bounds the number of which a constant is taken off and tested.
const NAMESAKE_WRAP: &str = ";raw
    if r2 < 16 goto out
    r3 = *(u32 *)(r1 + 0)
    r5 = r3
    r5 <<= 4
    if r5 > 0x7f goto k
    r5 >>= 4
    *(u64 *)(r10 - 8) = r5
    k: r4 = r3
    r4 += -5
    if r4 < 8 goto out
    r1 += r3
    r0 = *(u8 *)(r1 + 8)
    out: r0 = 0
    exit";

/// An unread spill bounds a number that is at most another one.
const NAMESAKE_ORDER: &str = ";raw
    if r2 < 256 goto loop
    r6 = *(u8 *)(r1 + 0)
    r3 = *(u8 *)(r1 + 1)
    r7 = *(u8 *)(r1 + 2)
    r5 = r6
    if r3 < r6 goto out
    r5 <<= 16
    if r5 < 0xfa0000 goto k
    r5 >>= 16
    *(u64 *)(r10 - 8) = r5
    k: r4 = r3
    r4 += -250
    if r7 == 0 goto out
    r1 += r3
    r0 = *(u8 *)(r1 - 250)
    goto out
    loop: r6 = 0
    next: r6 += 1
    if r6 < 100 goto next
    out: r0 = 0
    exit";

/// An unread spill bounds the offset of a pointer, which a difference of pointers makes a number.
const NAMESAKE_OFFSET: &str = ";raw
    if r2 < 16 goto loop
    r3 = *(u8 *)(r1 + 0)
    r8 = r10
    r8 += -64
    r6 = r8
    r5 = r3
    r6 += r3
    r5 <<= 16
    if r5 > 0x7ffff goto k
    r5 >>= 16
    *(u64 *)(r10 - 8) = r5
    k: r4 = r6
    r4 -= r8
    r3 = r4
    r3 += -5
    if r3 < 8 goto out
    r1 += r4
    r0 = *(u8 *)(r1 + 8)
    goto out
    loop: r6 = 0
    next: r6 += 1
    if r6 < 100 goto next
    out: r0 = 0
    exit";

#[test]
fn a_namesake_that_is_not_read_bounds_no_difference() {
    for program in [NAMESAKE_WRAP, NAMESAKE_ORDER, NAMESAKE_OFFSET] {
        refused(program);
        refused(&program.replace("*(u64 *)(r10 - 8) = r5", "r9 = r5"));
        // The path without a spill is the only one.
        refused(&program.replace("*(u64 *)(r10 - 8) = r5", "r0 = 0"));
    }
}

/// ORs a number with another one that a comparison has shown to be a constant; the two have a bit in common.
const SET_BY_NAMED: &str = ";raw
    if r2 < 64 goto out
    r6 = *(u16 *)(r1 + 0)
    r7 = *(u16 *)(r1 + 2)
    r8 = r7
    r5 = r6
    if r7 != 32767 goto out
    r9 = r6
    r9 |= r7
    if r9 > 32775 goto out
    r1 += r6
    r0 = *(u8 *)(r1 + 0)
    out: r0 = 0
    exit";

#[test]
fn bits_that_both_have_are_set_once() {
    refused(SET_BY_NAMED);
    refused(&SET_BY_NAMED.replace("32767", "8191").replace("32775", "8199"));
    refused(&SET_BY_NAMED.replace("32767", "65535").replace("32775", "65543"));
    // All bits: the access is not reached, and the operand is not one less than a power of two.
    accepted(&SET_BY_NAMED.replace("r9 |= r7", "r9 |= -1"));
    refused(&SET_BY_NAMED.replace("r9 |= r7", "r9 |= -1").replace("r9 > 32775", "r9 < 8"));
}

/// A number with a known distance from another one is compared with a constant, and shifted by itself.
const SHIFTED_BY_ITSELF: &str = ";raw
    if r2 < 8 goto out
    r3 = *(u64 *)(r1 + 0)
    r4 = r3
    r5 = 1
    r5 <<= 40
    if r3 > r5 goto out
    r5 = 1
    r5 <<= 34
    r3 += r5
    r3 >>= 29
    if r3 != 59 goto out
    r3 <<= r3
    r3 >>= 48
    r1 += r3
    r0 = *(u8 *)(r1 + 0)
    out: r0 = 0
    exit";

#[test]
fn a_number_that_is_ahead_is_shifted_by_all_of_itself() {
    // 59 << 59 is 27 << 59, and not 27 << 27.
    refused(SHIFTED_BY_ITSELF);
    accepted(&SHIFTED_BY_ITSELF.replace("r3 >>= 48", "r3 &= 7"));
}

/// The low byte of a number of 32 bits is compared in a copy, and the number is decremented.
const MASKED_COPY: &str = ";raw
    if r2 < 16 goto out
    r6 = *(u32 *)(r1 + 0)
    w3 = w6
    w3 &= 255
    if w3 == 0 goto out
    if w3 > 15 goto out
    w6 <<= 8
    w6 += 0xff00
    w6 &= 0xff00
    w6 >>= 8
    r1 += r6
    r0 = *(u8 *)(r1 + 0)
    out: r0 = 0
    exit";

#[test]
fn masks_of_one_number_are_congruent() {
    accepted(MASKED_COPY);
    refused(&MASKED_COPY.replace("w3 > 15", "w3 > 17"));
    // 0 and 15 more is 255.
    refused(&MASKED_COPY.replace("if w3 == 0 goto out", ""));
    refused(&MASKED_COPY.replace("w3 &= 255", "w3 &= 127"));
    accepted(&MASKED_COPY.replace("0xff00\n    w6 &=", "0xfe00\n    w6 &=").replace("w3 == 0", "w3 < 2"));
    refused(&MASKED_COPY.replace("0xff00\n    w6 &=", "0xfe00\n    w6 &="));
}

/// The low half of a number by two shifts, one of which keeps its sign.
const TWO_SHIFTS: &str = ";raw
    if r2 < 64 goto out
    r4 = *(u64 *)(r1 + 0)
    r4 <<= 32
    r3 = r4
    r3 s>>= 32
    if r3 s< 1 goto out
    r4 >>= 32
    if r4 > 64 goto out
    r1 += r4
    r0 = *(u8 *)(r1 - 1)
    out: r0 = 0
    exit";

#[test]
fn both_shifts_of_a_low_half_yield_one_number() {
    accepted(TWO_SHIFTS);
    refused(&TWO_SHIFTS.replace("r3 s< 1", "r3 s< 0"));
    refused(&TWO_SHIFTS.replace("r4 > 64", "r4 > 65"));
    refused(&TWO_SHIFTS.replace("r4 >>= 32", "r4 >>= 31"));
    refused(&TWO_SHIFTS.replace("r3 s>>= 32", "r3 s>>= 33"));
}

/// A helper that reads the low 32 bits of its length argument, of which the low half is bounded.
const HALF_LENGTH: &str = "r6 = r1
    call 7
    r4 = r0
    r4 <<= 2
    if w4 == 0 goto out
    if w4 > 16 goto out
    r1 = r6
    r2 = 0
    r3 = r10
    r3 += -16
    call 189
    out: r0 = 0
    exit";

#[test]
fn lengths_of_32_bits_are_bounded_by_a_half() {
    accepted(HALF_LENGTH);
    refused(&HALF_LENGTH.replace("w4 > 16", "w4 > 20"));
    refused(&HALF_LENGTH.replace("if w4 == 0 goto out", ""));
}

/// Finds the start of the last path component, which is the cursor of some round or the start of the buffer.
const BASENAME: &str = ";raw
    r3 = r1
    r3 += r2
    r4 = r1
    r5 = r1
    if r5 >= r3 goto out
    l: r0 = *(u8 *)(r5 + 0)
    r5 += 1
    r6 = r4
    if r0 != 47 goto k
    r6 = r5
    k: r4 = r6
    if r5 < r3 goto l
    if r4 >= r3 goto out
    r0 = *(u8 *)(r4 + 0)
    out: r0 = 0
    exit";

/// The compared number is the used number on one of two paths only.
const COMPARED_ON_ONE_WAY: &str = ";raw
    if r2 < 3 goto out
    r6 = *(u8 *)(r1 + 0)
    r7 = *(u8 *)(r1 + 1)
    r8 = *(u8 *)(r1 + 2)
    if r8 > 100 goto b
    r4 = r6
    r5 = r6
    goto c
    b: r4 = r6
    r5 = r7
    c: if r4 > 15 goto out
    r3 = r10
    r3 += -16
    r3 += r5
    *(u8 *)(r3 + 0) = 1
    out: r0 = 0
    exit";

#[test]
fn one_name_does_not_stand_for_two() {
    refused(COMPARED_ON_ONE_WAY);
    refused(&COMPARED_ON_ONE_WAY.replace("r8 > 100", "r8 <= 100"));
    accepted(&COMPARED_ON_ONE_WAY.replace("r5 = r7", "r5 = r6"));
}

#[test]
fn two_pointers_may_be_one_in_some_rounds() {
    accepted(BASENAME);
    refused(&BASENAME.replace("if r4 >= r3 goto out", ""));
    refused(&BASENAME.replace("r4 >= r3", "r4 > r3"));
    refused(&BASENAME.replace("*(u8 *)(r4 + 0)", "*(u16 *)(r4 + 0)"));
}

/// Reads a byte three bytes ahead of the cursor if it exists. The number of bytes left falls as the cursor rises, and
/// is -1 where the loop is left.
const LOOK_AHEAD: &str = ";raw
    if r2 s< 1 goto out
    r3 = r1
    r3 += r2
    r2 += -1
    goto b
    a: r1 += 1
    r2 += -1
    if r1 >= r3 goto out
    b: r4 = *(u8 *)(r1 + 0)
    if r2 s< 3 goto a
    r4 = *(u8 *)(r1 + 3)
    goto a
    out: r0 = 0
    exit";

#[test]
fn what_is_left_beside_a_cursor_is_not_negative_in_the_loop() {
    accepted(LOOK_AHEAD);
    refused(&LOOK_AHEAD.replace("r2 s< 3", "r2 s< 2"));
    refused(&LOOK_AHEAD.replace("r1 + 3", "r1 + 4"));
    refused(&LOOK_AHEAD.replace("if r1 >= r3 goto out", "if r1 > r3 goto out"));
}

#[test]
fn distances_to_an_end_bound_a_cursor() {
    accepted(ATTRIBUTES);
    refused(&ATTRIBUTES.replace("r4 s< 4", "r4 s< 3"));
    // The next round compares the cursor with the end, too.
    accepted(&ATTRIBUTES.replace("if r4 s>= r5 goto a", "goto a"));
    refused(&ATTRIBUTES.replace("r2 += -20", "r2 += -19"));
}

/// An unread spill of a stack pointer bounds the number by which it moved, of which the rest of a buffer is made.
const NAMESAKE_POINTER: &str = ";raw
    if r2 < 300 goto out
    r3 = *(u8 *)(r1 + 0)
    r5 = r3
    r6 = r10
    r6 += -512
    r6 += r3
    r7 = r10
    r7 += -480
    if r6 < r7 goto k
    *(u64 *)(r10 - 8) = r6
    k: r4 = r2
    r4 -= r3
    r9 = r1
    r9 += r2
    r5 = r1
    r5 += r3
    if r5 > r9 goto out
    r1 += r4
    r0 = *(u8 *)(r1 + 31)
    out: r0 = 0
    exit";

#[test]
fn a_pointer_that_is_not_read_bounds_a_number_on_its_path_only() {
    refused(NAMESAKE_POINTER);
    refused(&NAMESAKE_POINTER.replace("*(u64 *)(r10 - 8) = r6", "r0 = 0"));
    // The number itself is compared, and on the only path that goes on.
    accepted(&NAMESAKE_POINTER.replace("if r6 < r7 goto k", "if r3 < 32 goto out"));
    refused(&NAMESAKE_POINTER.replace("if r6 < r7 goto k", "if r3 < 31 goto out"));
}

/// An unread spill of a stack pointer shows the relation `r4 + 1 <= r3`, by which no path comes back to the loop.
const NAMESAKE_CANDIDATE: &str = ";raw
    if r2 < 32 goto out
    r3 = *(u8 *)(r1 + 0)
    r3 &= 63
    r5 = r3
    r6 = r10
    r6 += -512
    r6 += r3
    r7 = r10
    r7 += -480
    if r6 < r7 goto k
    *(u64 *)(r10 - 8) = r6
    k: r4 = 31
    head: if r4 >= r3 goto back
    r1 += r3
    r0 = *(u8 *)(r1 - 32)
    goto out
    back: r4 = *(u8 *)(r1 + 1)
    goto head
    out: r0 = 0
    exit";

#[test]
fn a_pointer_that_is_not_read_shows_a_candidate_on_its_path_only() {
    // The path without the spill reads in front of its buffer, or goes round for ever.
    refused(NAMESAKE_CANDIDATE);
    let endless = NAMESAKE_CANDIDATE
        .replace("if r4 >= r3 goto back", "if r4 < r3 goto out")
        .replace("r1 += r3\n    r0 = *(u8 *)(r1 - 32)\n    goto out\n    back: ", "");
    refused(&endless);
    for program in [NAMESAKE_CANDIDATE, &endless] {
        // The number itself is compared; or only the path with the spill comes to the loop.
        accepted(&program.replace("if r6 < r7 goto k", "if r3 < 32 goto out"));
        accepted(&program.replace("if r6 < r7 goto k", "if r6 < r7 goto out"));
        refused(&program.replace("if r6 < r7 goto k", "if r3 < 31 goto out"));
    }
}

/// A pointer that may lie before its region is below `200 - m`, and is overwritten. With the pointer at 127 before the
/// start, `m` may be 200.
const PART_BEFORE_START: &str = ";raw
    if r2 < 8 goto out
    r3 = *(u8 *)(r1 + 0)
    r3 &= 127
    r4 = *(u8 *)(r1 + 1)
    r4 &= 127
    r8 = *(u8 *)(r1 + 2)
    r5 = r1
    r5 += r3
    r5 -= r4
    r5 += 127
    r7 = 200
    r7 -= r8
    if r7 > 300 goto out
    r0 = r1
    r0 += r7
    if r5 > r0 goto out
    r5 = 0
    r0 = 0
    if r8 > 180 goto out
    if r2 < r8 goto x
    x: if r8 > 73 goto bad
    goto out
    bad: if r2 < 200 goto out
    r0 = *(u8 *)(r1 + 300)
    out: r0 = 0
    exit";

/// As [`PART_BEFORE_START`], in a loop whose second round begins with the pointer up to 128 bytes before its region.
/// While the candidate is formed, the added number is assumed not to be negative, and the pointer's place gets a name
/// of such a number.
const PART_BEFORE_START_IN_LOOP: &str = ";raw
    if r2 < 8 goto out
    r5 = r1
    r9 = 0
    head: r8 = *(u8 *)(r1 + 2)
    r5 += 128
    r7 = 200
    r7 -= r8
    if r7 > 300 goto out
    r0 = r1
    r0 += r7
    if r5 > r0 goto out
    r5 = 0
    r0 = 0
    if r8 > 180 goto out
    if r2 < r8 goto x
    x: r0 = 0
    if r8 > 72 goto bad
    r0 = *(u8 *)(r1 + 3)
    *(u8 *)(r1 + 2) = r0
    r5 = r1
    r3 = *(s8 *)(r1 + 0)
    r5 += r3
    r9 += 1
    if r9 < 2 goto head
    goto out
    bad: if r2 < 200 goto out
    r0 = *(u8 *)(r1 + 300)
    out: r0 = 0
    exit";

#[test]
fn a_name_that_no_value_holds_may_be_negative() {
    refused(PART_BEFORE_START);
    refused(PART_BEFORE_START_IN_LOOP);
    // The pointer lies behind the start in every run.
    accepted(&PART_BEFORE_START.replace("r5 -= r4\n", "\n"));
    accepted(&PART_BEFORE_START_IN_LOOP.replace("r3 = *(s8 *)(r1 + 0)", "r3 = *(u8 *)(r1 + 0)\nr3 &= 127"));
}

/// One path shows that a pointer lies behind the start of its region, and that twice its offset is below the end. On
/// the other path the pointer may lie before the start, and the same inequality follows from two others.
fn multiple_before_start() -> String {
    // States are kept only some steps after numbers that may wrap (`awaits_congruence`).
    let later = "r0 = 0\n".repeat(30);
    format!(
        ";raw
    if r2 < 1 goto out
    {later}
    r9 = r1
    r9 += r2
    r3 = *(u8 *)(r1 + 0)
    r4 = r3
    r4 >>= 3
    r8 = r3
    r8 >>= 6
    r3 &= 7
    r4 &= 7
    r5 = r1
    r5 += r3
    r5 -= r4
    r6 = r5
    r6 += 7
    if r5 < r1 goto neg
    r7 = r5
    r7 -= r1
    r7 <<= 1
    r0 = r1
    r0 += r7
    r0 += 14
    if r0 > r9 goto out
    goto join
    neg: r7 = r1
    r7 += r8
    if r6 > r7 goto out
    r8 <<= 1
    r0 = r1
    r0 += r8
    if r0 > r9 goto out
    join: r0 = *(u8 *)(r6 + 6)
    out: r0 = 0
    exit"
    )
}

#[test]
fn a_fact_about_a_multiple_says_that_the_number_is_not_negative() {
    refused(&multiple_before_start());
    accepted(&multiple_before_start().replace("goto neg", "goto out"));
}
