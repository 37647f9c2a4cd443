//! Two indices, one below the other, that move in some rounds only: accepted programs, each beside refused variants
//! that differ in one place.

use crate::common::{accepted, refused};

/// Initialises the lower index (r3) to 0 and the upper one (r4) to the last byte, then runs `body`.
fn indices(body: &str) -> String {
    format!(
        ";raw\nr0 = 0\nif r2 == 0 goto out\nr3 = 0\nr4 = r2\nr4 -= 1\nif r3 >= r4 goto out\n{body}\nout: r0 = 0\nexit"
    )
}

/// The lower index moves in each round, the upper one in some.
const LOWER: &str = "a: r5 = r1\nr5 += r3\nr0 = *(u8 *)(r5 + 0)\nif r0 > 32 goto b\nr3 += 1\nif r3 < r4 goto a\ngoto out\n\
                     b: r4 -= 1\nr3 += 1\nif r3 < r4 goto a";

#[test]
fn what_moves_in_each_round_stays_below_what_falls_in_some() {
    accepted(&indices(LOWER));
    // The access is one byte further, which the test allows; two bytes further; and without a test on one path.
    accepted(&indices(&LOWER.replace("r5 + 0", "r5 + 1")));
    refused(&indices(&LOWER.replace("r5 + 0", "r5 + 2")));
    refused(&indices(&LOWER.replacen("if r3 < r4 goto a", "goto a", 1)));
    refused(&indices(&LOWER.replace("b: r4 -= 1\nr3 += 1\nif r3 < r4 goto a", "b: r4 -= 1\nr3 += 1\ngoto a")));
    // The upper one rises, or is another number.
    refused(&indices(&LOWER.replace("b: r4 -= 1", "b: r4 += 1")));
    refused(&indices(&LOWER.replace("b: r4 -= 1", "b: r4 = *(u16 *)(r1 + 0)")));
    // Neither moves.
    refused(&indices(&LOWER.replacen("r3 += 1", "r0 = 0", 1)));
}

/// An inner loop that moves the outer one's index by one or by two.
const ITEMS: &str = "r3 = 0\ngoto b\na: if r3 >= r2 goto out\nb: r5 = r1\nr5 += r3\nr5 = *(u8 *)(r5 + 0)\nr3 += 1\nr4 = 0\n\
                     c: if r3 >= r2 goto out\nr6 = r1\nr6 += r3\nr6 = *(u8 *)(r6 + 0)\nr5 >>= 1\nif r6 > r5 goto d\nr3 += 1\ngoto e\n\
                     d: r3 += 2\ne: r4 += 1\nif r4 < 8 goto c\ngoto a";

#[test]
fn an_inner_loop_moves_the_index_on() {
    let program = |text: &str| format!(";raw\nr0 = 0\nif r2 == 0 goto out\n{text}\nout: r0 = 0\nexit");
    let back = |back: &str| program(&ITEMS.replace("e: r4 += 1", &format!("e: {back}\nr4 += 1")));
    accepted(&program(ITEMS));
    // The index goes back by one byte; and back further than the outer loop has moved it.
    accepted(&back("r3 -= 1"));
    refused(&back("r3 -= 2"));
    refused(&back("r3 = 0"));
    refused(&program(&ITEMS.replace("c: if r3 >= r2 goto out", "c: if r3 > r2 goto out")));
}

/// The index (r3) stays below the end (r5) except on a path that replaces the end. This path is taken only where a
/// number wraps round, so no candidate is made from it.
const OTHER_END: &str = "r9 = 0\nif r2 < 64 goto out\nr6 = r1\nr8 = 0\nr3 = 0\n*(u64 *)(r10 - 8) = r8\n\
     *(u64 *)(r10 - 16) = r8\nr5 = *(u8 *)(r1 + 8)\nif r5 > r2 goto out\nr9 = *(u8 *)(r1 + 9)\nif r9 > r2 goto out\n\
     if r3 >= r5 goto out\na: r4 = r6\nr4 += r3\nr0 = *(u8 *)(r4 + 0)\nr4 = r10\nr4 += -16\nr4 += r3\n\
     r7 = *(u8 *)(r4 + 0)\nr7 = *(u64 *)(r6 + 16)\nr4 = r7\nr7 += 1\nif r7 == 0 goto other\nif r0 <= 50 goto next\n\
     r3 += 1\nif r3 > 10 goto out\nif r3 >= r5 goto out\nnext: r8 += 1\nif r8 < 100 goto a\ngoto out\n\
     other: r9 = r5\nif r9 > 11 goto out\nr5 = *(u8 *)(r6 + 24)\nif r5 > r2 goto out\nr3 = *(u8 *)(r6 + 25)\n\
     if r3 > r8 goto out\nif r3 >= r5 goto out\nr8 += 1\nif r8 < 100 goto a\nout: r0 = r9\nr0 = 0\nexit";

#[test]
fn what_is_below_another_end_is_not_below_the_one_before() {
    let program = |text: &str| format!(";raw\nr0 = 0\n{text}");
    refused(&program(OTHER_END));
    accepted(&program(&OTHER_END.replace("if r3 > r8 goto out", "if r3 > r8 goto out\nif r3 > 10 goto out")));
}
