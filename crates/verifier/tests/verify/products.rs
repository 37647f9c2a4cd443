//! Products of two unknown numbers, and row pointers that advance by one of them: accepted programs, each beside
//! refused variants that differ in one place.

use crate::common::{accepted, refused};

/// A program that loads the number of rows (r3) and of columns (r4), runs `sizes`, which compares their product with
/// the buffer's length, and then `loops`, which reads the table.
fn table(sizes: &str, loops: &str) -> String {
    format!(
        ";raw\nr0 = 0\nif r2 < 2 goto out\nr3 = *(u8 *)(r1 + 0)\nr4 = *(u8 *)(r1 + 1)\n{sizes}\nif r3 == 0 goto out\n\
         if r4 == 0 goto out\nr6 = r1\nr7 = 0\n{loops}\nout: r0 = 0\nexit"
    )
}

const PRODUCT: &str = "r5 = r3\nr5 *= r4\nif r5 > r2 goto out";
const ROWS: &str = "a: r8 = 0\nr5 = r6\nb: r0 = *(u8 *)(r5 + 0)\nr5 += 1\nr8 += 1\nif r8 < r4 goto b\nr6 += r4\n\
                    r7 += 1\nif r7 < r3 goto a";

#[test]
fn rows_lie_within_the_product_of_their_number_and_length() {
    accepted(&table(PRODUCT, ROWS));
    // One row too many, one element too many, rows that are too long.
    refused(&table(PRODUCT, &ROWS.replace("if r7 < r3", "if r7 <= r3")));
    refused(&table(PRODUCT, &ROWS.replace("if r8 < r4", "if r8 <= r4")));
    refused(&table(PRODUCT, &ROWS.replace("r6 += r4", "r6 += r4\nr6 += 1")));
    refused(&table(PRODUCT, &ROWS.replace("r5 + 0", "r5 + 1")));
    // The test compares the square of one size instead of the product.
    refused(&table("r5 = r3\nr5 *= r3\nif r5 > r2 goto out", ROWS));
    refused(&table("r5 = r4\nr5 *= r4\nif r5 > r2 goto out", ROWS));
    // Rows advance by the number of rows instead of the number of columns.
    refused(&table(PRODUCT, &ROWS.replace("r6 += r4", "r6 += r3")));
}

#[test]
fn rows_move_by_what_stays() {
    // On one path the loop changes the number of columns by which rows advance, or moves the row pointer elsewhere.
    for besides in ["r4 += 1", "r4 = r0", "r6 += r4", "r6 = r5", "r3 += 1"] {
        let on_one_path = format!("r0 = *(u8 *)(r1 + 0)\nif r0 < 9 goto c\n{besides}\nc: r6 += r4");
        refused(&table(PRODUCT, &ROWS.replace("r6 += r4", &on_one_path)));
    }
    accepted(&table(PRODUCT, &ROWS.replace("r6 += r4", "r0 = *(u8 *)(r1 + 0)\nif r0 < 9 goto out\nr6 += r4")));
    // The product (r9) is of the previous round's row number, so the address does not lie in the current row.
    let before = "r9 = 0\na: r0 = r6\nr0 += r9\nr0 = *(u8 *)(r0 + 0)\nr9 = r7\nr9 *= r4\nr6 += r4\nr7 += 1\n\
                  if r7 < r3 goto a";
    refused(&table(PRODUCT, before));
    // After the first round the product (r9) is 0, since the row number was 0 when it was multiplied, and `r0 - 1` is
    // out of bounds.
    let nothing = "r3 &= 3\nr3 += 1\nr4 &= 3\nr4 += 1\nr9 = 1\na: r0 = r1\nr0 += r9\nr0 = *(u8 *)(r0 - 1)\n\
                   r0 = *(u8 *)(r6 + 0)\nr9 = r7\nr9 *= r4\nr6 += r4\nr7 += 1\nif r7 < r3 goto a";
    let table = |loops: &str| table("if r2 < 32 goto out", loops);
    refused(&table(nothing));
    accepted(&table(&nothing.replace("r9 *= r4", "r9 *= r4\nr9 += 1")));
}

#[test]
fn products_do_not_wrap() {
    let wide = |size: &str, product: &str| {
        let sizes = format!("if r2 < 16 goto out\nr3 = *({size} *)(r1 + 0)\nr4 = *({size} *)(r1 + 8)\n{product}");
        table(&sizes, ROWS)
    };
    accepted(&wide("u16", "w5 = w3\nw5 *= w4\nif r5 > r2 goto out"));
    refused(&wide("u32", "w5 = w3\nw5 *= w4\nif r5 > r2 goto out"));
    refused(&wide("u64", PRODUCT));
}

#[test]
fn names_are_multiplied_where_that_is_a_number() {
    // (i - 16384) * n, where i * n is at most 2^22 or exceeds 2^64. If i * n wraps, subtracting 16384 * n from its
    // bound gives a bound that the true product exceeds.
    let less = |n: &str, most: u32| {
        format!(
            ";raw\nr0 = 0\nif r2 < 32 goto out\n{n}\nr5 = *(u64 *)(r1 + 8)\nr6 = 0\nr7 = *(u8 *)(r1 + 1)\n\
             r7 &= 3\nr7 ^= 16384\na: if r6 == 0 goto b\nr0 = r7\nr0 -= 16384\nr0 *= r4\nif r4 > r5 goto out\n\
             r0 >>= 9\nr3 = r1\nr3 += r0\nr0 = *(u8 *)(r3 + 0)\nb: r6 = 1\nr7 += 1\nif r7 < {most} goto a\n\
             out: r0 = 0\nexit"
        )
    };
    accepted(&less("r4 = *(u8 *)(r1 + 0)", 16448));
    refused(&less("r4 = *(u8 *)(r1 + 0)", 16484));
    refused(&less("r3 = 0x3ffffffffffff ll\nr4 = *(u8 *)(r1 + 0)\nr4 += r3", 16400));
}

#[test]
fn distances_are_multiplied() {
    // The compared product is (rows + 2) * (columns + 1).
    let more = "r3 += 2\nr4 += 1\nr5 = r3\nr5 *= r4\nif r5 > r2 goto out";
    accepted(&table(more, ROWS));
    refused(&table("r3 += 2\nr4 += 1\nr5 = r3\nr5 *= r4\nr5 -= 1\nif r5 > r2 goto out", ROWS));
    refused(&table("r5 = r3\nr5 *= r4\nif r5 > r2 goto out\nr3 += 1", ROWS));
    refused(&table("r5 = r3\nr5 *= r4\nif r5 > r2 goto out\nr4 += 1", ROWS));
}

#[test]
fn a_mask_that_takes_nothing_leaves_the_name() {
    let masked = |mask: u32| format!("r5 = r3\nr5 *= r4\nr5 &= {mask}\nif r5 > r2 goto out");
    accepted(&table(&masked(0xffff), ROWS));
    refused(&table(&masked(0x7fff), ROWS));
}

#[test]
fn paths_that_meet_know_their_own_products() {
    let other = |product: &str| {
        format!("r0 = *(u8 *)(r1 + 0)\nif r0 > 9 goto c\n{PRODUCT}\ngoto a\nc:\n{product}\nif r5 > r2 goto out\n{ROWS}")
    };
    let rows = |product: &str| table("if r2 < 16 goto out", &other(product));
    accepted(&rows("r5 = r4\nr5 *= r3"));
    refused(&rows("r5 = r4\nr5 += r3"));
    refused(&rows("r5 = r4\nr5 *= r4"));
    refused(&rows("r5 = r3\nr5 *= r3"));
}

/// A program that loads the number of rows (r7) and columns (r8) of a table, tests that the packet holds the table,
/// runs `before`, and loops over the rows. Row r9 begins at r9 times the row length. `moved` runs in each round and may
/// call a helper that invalidates packet pointers and lengths.
fn in_packet(before: &str, moved: &str) -> String {
    let load = "r2 = *(u32 *)(r6 + 0)\nr3 = *(u32 *)(r6 + 4)";
    format!(
        "r6 = r1\n{load}\nr4 = r2\nr4 += 2\nif r4 > r3 goto out\nr7 = *(u8 *)(r2 + 0)\nr8 = *(u8 *)(r2 + 1)\n\
         if r7 == 0 goto out\nif r8 == 0 goto out\nr5 = r7\nr5 *= r8\nr4 = r2\nr4 += r5\nif r4 > r3 goto out\n\
         {before}\nr9 = 0\na:\n{moved}\n{load}\nr4 = r9\nr4 *= r8\nr4 += r2\nr0 = *(u8 *)(r4 + 0)\nr9 += 1\n\
         if r9 < r7 goto a\nout: r0 = 0\nexit"
    )
}

#[test]
fn rows_do_not_outlive_their_packet() {
    accepted(&in_packet("", ""));
    for helper in [44, 65] {
        let moves = format!("r1 = r6\nr2 = -1\ncall {helper}");
        refused(&in_packet(&moves, ""));
        refused(&in_packet("", &moves));
        // The helper is called in some rounds only, or in the fourth round.
        refused(&in_packet("", &format!("r1 = *(u32 *)(r6 + 12)\nif r1 < 9 goto b\n{moves}\nb:")));
        refused(&in_packet("", &format!("if r9 != 3 goto b\n{moves}\nb:")));
    }
}
