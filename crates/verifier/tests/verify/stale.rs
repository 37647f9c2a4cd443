//! Tests that pointers from before a packet move, and their halves, do not reveal where the packet is, or was.

use crate::common::{accepted, refused};

/// A pointer from before the packet moved, at a place that the program chooses, is compared with null. The packet may
/// lie below 2^31.
const BEFORE_NULL: &str = "
    r6 = r1
    r9 = *(u32 *)(r6 + 0)
    call 7
    r8 = r0
    r8 &= 0x7fffffff
    r9 -= r8
    r1 = r6
    r2 = 0
    call 44
    if r9 == 0 goto x
    r0 = 1
    exit
    x: r0 = 2
    exit";

#[test]
fn a_stale_pointer_that_may_lie_before_its_region_is_not_compared_with_null() {
    refused(BEFORE_NULL);
    refused(&BEFORE_NULL.replace("== 0", "!= 0"));
    refused(&BEFORE_NULL.replace("0x7fffffff", "0x1ffff"));
    accepted(&BEFORE_NULL.replace("0x7fffffff", "0xffff"));
    accepted(&BEFORE_NULL.replace("r9 -= r8", "r9 += r8"));
}

#[test]
fn half_a_stale_pointer_is_compared_with_0_where_it_was_the_start_alone() {
    let half = BEFORE_NULL.replace("r1 = r6\n", "w9 = w9\nr1 = r6\n");
    refused(&half);
    refused(&half.replace("r9 -= r8", "r9 += r8"));
    refused(&half.replace("r9 -= r8", "r9 += 64"));
    accepted(&half.replace("r9 -= r8", ""));
}

/// The lower halves of two pointers are subtracted at 64 bits: whether that is less than 0 tells whether a multiple of
/// 2^32 lies between them.
const HALVES: &str = "
    r6 = r1
    r9 = *(u32 *)(r6 + 0)
    r7 = r9
    call 7
    r8 = r0
    r8 &= 0x7fffffff
    r9 += r8
    w9 = w9
    w7 = w7
    r9 -= r7
    if r9 s< 0 goto x
    r0 = 1
    exit
    x: r0 = 2
    exit";

#[test]
fn halves_of_pointers_that_may_be_far_apart_are_not_subtracted_at_64_bits() {
    let moved = HALVES.replace("r9 -= r7", "r1 = r6\nr2 = 0\ncall 44\nr9 -= r7");
    for text in [HALVES, &moved] {
        refused(text);
        refused(&text.replace("r9 += r8", "r9 -= r8"));
        refused(&text.replace("0x7fffffff", "0x1ffff"));
        refused(&text.replace("r9 += r8", "r9 += 0x10000000"));
        accepted(&text.replace("0x7fffffff", "0xffff"));
        // The 32-bit difference of the low halves does not reveal an address.
        accepted(&text.replace("r9 -= r7", "w9 -= w7"));
    }
    // The end has a known distance from the start.
    accepted(&HALVES.replace("r9 += r8", "r9 = *(u32 *)(r6 + 4)"));
}

/// A pointer so far before its region that its address may have wrapped round, compared with the region's end: which of
/// the two is greater would tell where the region is.
const FAR_BEFORE: &str = ";raw
    if r2 < 8 goto out
    r3 = *(u32 *)(r1 + 0)
    r3 &= 0x7fffffff
    r5 = r1
    r5 += r2
    r4 = r1
    r4 -= r3
    if r4 > r5 goto out
    r0 = *(u8 *)(r1 + 1)
    exit
    out: r0 = 0
    exit";

#[test]
fn a_pointer_far_before_its_region_is_not_compared_with_the_end() {
    refused(FAR_BEFORE);
    refused(&FAR_BEFORE.replace("if r4 > r5", "if r5 < r4"));
    accepted(&FAR_BEFORE.replace("0x7fffffff", "0xffff"));
    accepted(&FAR_BEFORE.replace(";raw", ";raw ;privileged"));
}

#[test]
fn a_pointer_far_before_its_region_is_not_ordered_to_another_of_it() {
    for other in ["r5 = r1\n", "r5 = r1\n    r5 += 4\n", "r5 = r1\n    r6 = *(u8 *)(r1 + 4)\n    r5 += r6\n"] {
        let text = FAR_BEFORE.replace("r5 = r1\n    r5 += r2\n", other);
        assert_ne!(text, FAR_BEFORE);
        for test in ["r4 > r5", "r4 < r5", "r5 >= r4", "r4 s> r5"] {
            let text = text.replace("r4 > r5", test);
            refused(&text);
            accepted(&text.replace("0x7fffffff", "0xffff"));
        }
        // Equality is one of offsets, wrapped or not.
        accepted(&text.replace("r4 > r5", "r4 == r5"));
    }
}

#[test]
fn a_stale_pointer_far_before_its_region_is_not_ordered_to_another_of_it() {
    let text = BEFORE_NULL.replace("r9 = *(u32 *)(r6 + 0)", "r9 = *(u32 *)(r6 + 0)\nr7 = r9");
    for test in ["r9 > r7", "r7 >= r9"] {
        let text = text.replace("r9 == 0", test);
        refused(&text);
        accepted(&text.replace("0x7fffffff", "0xffff"));
    }
    accepted(&text.replace("r9 == 0", "r9 == r7"));
}
