//! Indices and pointers that are none until something is found: what is accepted, and what is not that differs from it
//! in one place.

use crate::common::{accepted, refused};

/// A loop over a buffer with an index in r3 and a place in r7; `round` begins with the byte in r0, `end` comes behind.
fn kept(none: &str, round: &str, end: &str) -> String {
    format!(
        ";raw\nr6 = r1\nr8 = r2\n{none}\nr3 = 0\nif r3 >= r8 goto end\na: r4 = r6\nr4 += r3\nr0 = *(u8 *)(r4 + 0)\n\
         {round}\nn: r3 += 1\nm: if r3 < r8 goto a\nend: {end}\nout: r0 = 0\nexit"
    )
}

/// What is at the place goes to r0.
const USE: &str = "r4 = r6\nr4 += r7\nr0 = *(u8 *)(r4 + 0)";

#[test]
fn an_index_is_used_where_it_is_not_none() {
    let last = |none: &str, test: &str| kept(none, "if r0 != 46 goto n\nr7 = r3", &format!("{test}\n{USE}"));
    for test in ["if r7 s< 0 goto out", "if r7 == -1 goto out", "if r7 s<= -1 goto out", "if r7 >= r8 goto out"] {
        accepted(&last("r7 = -1", test));
    }
    for test in ["if w7 s< 0 goto out", "if w7 == -1 goto out"] {
        accepted(&last("w7 = -1", test));
    }
    // Not asked, or for another number; another none; and none of another width than is asked for.
    for test in ["", "if r7 s< -1 goto out", "if r7 == -2 goto out", "if r7 == 0 goto out", "if r7 s> 0 goto out"] {
        refused(&last("r7 = -1", test));
    }
    refused(&last("r7 = -2", "if r7 == -1 goto out"));
    refused(&last("w7 = -1", "if r7 == -1 goto out"));
    refused(&last("w7 = -1", "if r7 s< 0 goto out"));
}

#[test]
fn what_is_set_is_below_the_end() {
    let set =
        |set: &str| kept("r7 = -1", &format!("if r0 != 46 goto n\n{set}"), &format!("if r7 s< 0 goto out\n{USE}"));
    accepted(&set("r7 = r3"));
    refused(&set("r7 = r3\nr7 += 1"));
    refused(&set("r7 = r0"));
    refused(&set("r7 = r8"));
}

#[test]
fn a_pointer_is_used_where_it_is_not_null() {
    let last = |set: &str, test: &str| {
        format!(
            ";raw\nr8 = r1\nr8 += r2\nr7 = 0\nr3 = r1\nif r3 >= r8 goto end\na: r0 = *(u8 *)(r3 + 0)\n\
             if r0 != 46 goto n\n{set}\nn: r3 += 1\nif r3 < r8 goto a\nend: {test}\nr0 = *(u8 *)(r7 + 0)\n\
             out: r0 = 0\nexit"
        )
    };
    accepted(&last("r7 = r3", "if r7 == 0 goto out"));
    refused(&last("r7 = r3", ""));
    refused(&last("r7 = r3", "if r7 != 0 goto out"));
    refused(&last("r7 = r3\nr7 += 1", "if r7 == 0 goto out"));
}

#[test]
fn what_is_taken_back_is_none_again() {
    let word = |test: &str, back: &str| {
        let round = format!("if r0 > 32 goto w\n{test}\n{USE}\n{back}\ngoto n\nw: if r7 s> -1 goto n\nr7 = r3");
        kept("r7 = -1", &round, &format!("if r7 s< 0 goto out\n{USE}"))
    };
    accepted(&word("if r7 s< 0 goto n", "r7 = -1"));
    refused(&word("", "r7 = -1"));
    refused(&word("if r7 s< 0 goto n", "r7 = -3"));
    refused(&word("if r7 s< 0 goto n", "r7 = r8"));
}

#[test]
fn what_goes_back_goes_on() {
    let again = |mark: &str| {
        let round = format!("if r0 == 42 goto s\nif r0 < 99 goto n\nif r7 s< 0 goto out\n{mark}\ngoto m\ns: r7 = r3");
        kept("r7 = -1", &round, "r0 = 0")
    };
    accepted(&again("r7 += 1\nr3 = r7"));
    // It stands still, or comes back over where it has been, also if none is what takes it there.
    refused(&again("r3 = r7"));
    refused(&again("r3 = r7\nr7 = -1"));
    refused(&again("r3 = r7\nr3 += 1"));
    // To and fro between rounds that hold none and rounds that do not.
    let to_and_fro = |from: &str, to: &str| {
        let round = format!("if r7 s> -1 goto s\nif r0 < 99 goto n\nr7 = r3\n{from}\ngoto n\ns: r7 = -1\n{to}");
        kept("r7 = -1", &round, "r0 = 0")
    };
    accepted(&to_and_fro("r3 += 1", "r0 = 0"));
    refused(&to_and_fro("r3 = 0", "r0 = 0"));
    refused(&to_and_fro("r0 = 0", "r3 = 0"));
}
