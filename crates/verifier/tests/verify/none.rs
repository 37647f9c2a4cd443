//! Indices and pointers that hold none (-1 or null) until something is found: accepted programs, each beside refused
//! variants that differ in one place.

use bpf_isa::Program;
use bpf_verifier::{ContextLayout, Env, Helpers, Reason, Verifier};

use crate::common::{self, accepted, refused};

/// A loop over a buffer: r3 is the index, r7 the kept index, which `none` initialises; `round` runs with the loaded
/// byte in r0, and `end` after the loop.
fn kept(none: &str, round: &str, end: &str) -> String {
    format!(
        ";raw\nr6 = r1\nr8 = r2\n{none}\nr3 = 0\nif r3 >= r8 goto end\na: r4 = r6\nr4 += r3\nr0 = *(u8 *)(r4 + 0)\n\
         {round}\nn: r3 += 1\nm: if r3 < r8 goto a\nend: {end}\nout: r0 = 0\nexit"
    )
}

/// Loads the byte at the kept index into r0.
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
    // The test is missing or is about another number; the none value is another one, or of another width than the test.
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
    accepted(&word("if r7 s< 0 goto n", "r7 = -3"));
    refused(&word("if r7 s< 0 goto n", "r7 = r8"));
}

#[test]
fn what_goes_back_goes_on() {
    let again = |mark: &str| {
        let round = format!("if r0 == 42 goto s\nif r0 < 99 goto n\nif r7 s< 0 goto out\n{mark}\ngoto m\ns: r7 = r3");
        kept("r7 = -1", &round, "r0 = 0")
    };
    accepted(&again("r7 += 1\nr3 = r7"));
    // The index stands still or returns to where it was, also by way of none.
    refused(&again("r3 = r7"));
    refused(&again("r3 = r7\nr7 = -1"));
    refused(&again("r3 = r7\nr3 += 1"));
    // The index alternates between rounds in which r7 holds none and rounds in which it does not.
    let to_and_fro = |from: &str, to: &str| {
        let round = format!("if r7 s> -1 goto s\nif r0 < 99 goto n\nr7 = r3\n{from}\ngoto n\ns: r7 = -1\n{to}");
        kept("r7 = -1", &round, "r0 = 0")
    };
    accepted(&to_and_fro("r3 += 1", "r0 = 0"));
    refused(&to_and_fro("r3 = 0", "r0 = 0"));
    refused(&to_and_fro("r0 = 0", "r3 = 0"));
}

/// A guess with a state for each set of places that hold none may begin after a limit was exceeded. The limit then ends
/// the walk, and must not leave it a loose walk, which accepts every access. Two paths lead to the loop, so the loop is
/// entered a second time with the knowledge of the first.
#[test]
fn limits_that_are_met_where_a_guess_begins_accept_nothing() {
    let text = "r6 = r1\nr8 = r2\nr9 = 0\nif r8 < 8 goto out\nr0 = *(u8 *)(r6 + 0)\nif r0 == 1 goto x\n\
                l: r7 = -1\nr3 = 0\na: if r7 s< 0 goto n\nif r9 != 0 goto bad\nr4 = r6\nr4 += r7\n\
                r0 = *(u8 *)(r4 + 0)\nr7 = r3\nr3 += 1\nif r3 < r8 goto a\nr0 = 0\nexit\n\
                n: r7 = r3\nr3 += 1\nif r3 < r8 goto a\nr0 = 0\nexit\n\
                bad: r0 = *(u8 *)(r9 + 1000)\nr0 = 0\nexit\nout: r0 = 0\nexit\n\
                x: r9 = r6\nr8 = 0x10000000000 ll\ngoto l";
    let program = Program::new(bpf_isa::assemble(text).expect("instructions"));
    let program = program.expect("valid");
    let (context, helpers) = (ContextLayout::raw(true), Helpers::none());
    let refused = |set: &dyn Fn(&mut Env<'_>)| {
        let mut env = Env::new(&context, &helpers);
        env.limits.steps = 2000;
        set(&mut env);
        // A verifier that has verified other programs has memory to spare.
        let verified = Verifier::new().verify(program.clone(), &env);
        let reason = verified.map(|_| ()).expect_err("it reads beyond its buffer").reason;
        assert!(!matches!(reason, Reason::Internal(_)), "{reason}");
    };
    refused(&|_| {});
    for memory in (2_000..40_000).step_by(64) {
        refused(&|env| env.limits.memory = memory);
    }
    for states in 1..200 {
        refused(&|env| env.limits.states = states);
    }
}

/// A loop that is entered at two depths of calls; in its rounds but the first, r7 points into its own frame. The shape
/// that the verifier observes at one depth has a frame that does not exist at the other.
const AT_TWO_DEPTHS: &str = "r6 = 0
    l0: call g
    call f
    r6 += 1
    if r6 < 1000000 goto l0
    r0 = 0
    exit
    g: call f
    r0 = 0
    exit
    f: r1 = 0
    *(u64 *)(r10 - 8) = r1
    *(u64 *)(r10 - 16) = r1
    *(u64 *)(r10 - 24) = r1
    r7 = 0
    r6 = 0
    head: if r7 == 0 goto skip
    r8 = r7
    r8 += 512
    r9 = 0
    inner: r0 = *(u64 *)(r8 - 512)
    r0 = *(u64 *)(r8 - 512)
    r8 += 8
    r9 += 1
    if r9 < 3 goto inner
    skip: r7 = r10
    r7 += -24
    r6 += 1
    if r6 < 1000000 goto head
    r0 = 0
    exit";

#[test]
fn a_loop_at_two_depths_of_calls_is_decided_at_each() {
    // Whether the limits suffice is not the point: the verdict is one.
    let _ = common::verify(AT_TWO_DEPTHS);
    common::accepted(&AT_TWO_DEPTHS.replace("l0: call g", "l0: call f"));
    common::refused(&AT_TWO_DEPTHS.replace("r9 < 3", "r9 < 4"));
}
