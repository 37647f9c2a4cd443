//! Tests the memory that a verifier keeps between programs: it is bounded, and equal after the tenth and the thousandth
//! program.
//!
//! An engine keeps its verifiers, so what one of them gathers is gathered for good. Alone in its process, since what
//! other threads allocate would count as well.

#[path = "verify/common/mod.rs"]
mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::fmt::Write;
use std::sync::atomic::{AtomicUsize, Ordering};

use bpf_verifier::{Limits, Verifier};

struct Counting;

static IN_USE: AtomicUsize = AtomicUsize::new(0);

// SAFETY: the system's allocator, and a count. (`realloc` and `alloc_zeroed` come here as well, by their defaults.)
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // Relaxed, here and below: a count, read by the only thread that allocates.
        IN_USE.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        IN_USE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's contract.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Undecided branches that leave different values behind, in registers and on the stack, all of them needed: states are
/// kept at each join, and most of them never cover anything.
fn branching(n: usize) -> String {
    let mut t = String::from("r6 = 0\nr8 = 0\n");
    for i in 1..=n {
        let slot = 8 * (i % 30 + 1);
        writeln!(t, "call 7\nr9 = r0\n*(u64 *)(r10 - {slot}) = r6\nif r9 > 5 goto +1\nr6 += {i}").expect("a string");
        writeln!(t, "if r9 > 50 goto +1\nr8 += {i}\nr1 = r9\nr1 += 1").expect("a string");
    }
    t + "if r6 > 3 goto +1\nr6 = 0\nif r8 > 3 goto +1\nr8 = 0\nr0 = 0\nexit\n"
}

/// A loop with branches in it, around another.
const LOOPING: &str = "
    r6 = 0
outer:
    r7 = 0
    *(u64 *)(r10 - 8) = r6
inner:
    call 7
    r8 = r0
    if r8 > 7 goto +1
    *(u64 *)(r10 - 16) = r7
    if r8 > 99 goto +1
    *(u64 *)(r10 - 24) = r6
    r7 += 1
    if r7 < 10 goto inner
    r6 += 1
    if r6 < 9 goto outer
    r1 = *(u64 *)(r10 - 8)
    r0 = 0
    exit
";

#[test]
fn a_verifier_keeps_no_more_after_a_thousand_programs() {
    let texts =
        [(branching(5), true), (LOOPING.to_owned(), true), (branching(60), false), ("r0 = 0\nexit\n".into(), true)];
    let programs: Vec<_> = texts.iter().map(|(text, safe)| (common::program(text), *safe)).collect();
    let mut limits = Limits::default();
    limits.steps = 20_000;
    common::with_env("", |env| {
        let env = bpf_verifier::Env { limits, ..*env };
        let before = IN_USE.load(Ordering::Relaxed);
        let mut verifier = Verifier::new();
        let mut round = |n: usize| {
            for _ in 0..n {
                for (program, safe) in &programs {
                    let result = verifier.verify(program.clone(), &env);
                    assert_eq!(result.is_ok(), *safe, "{:?}", result.map(|v| v.stats()));
                }
            }
            IN_USE.load(Ordering::Relaxed) - before
        };
        let (few, many) = (round(4), round(60));
        println!("{few} bytes after 4 rounds, {many} after 64");
        // Vectors still grow a little to the longest that they ever held.
        assert!(many <= few + few / 16, "{few} bytes after 4 rounds, {many} after 64");
        assert!(many <= Verifier::MAX_KEPT, "{many} bytes");
    });
    // And with limits that let one program take much.
    common::with_env("", |env| {
        let before = IN_USE.load(Ordering::Relaxed);
        let mut verifier = Verifier::new();
        let error = verifier.verify(common::program(&branching(60)), env).expect_err("too many paths");
        drop(error);
        let kept = IN_USE.load(Ordering::Relaxed) - before;
        assert!(kept <= Verifier::MAX_KEPT, "{kept} bytes");
    });
}
