//! `Limits::memory`: a verification never holds more bytes than its limit and [`Verifier::MEMORY_SLACK`].
//!
//! A binary of its own, since the allocator counts the allocations of all threads.

#[path = "verify/common/mod.rs"]
mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::fmt::Write;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use bpf_isa::Program;
use bpf_verifier::{Env, Limits, Reason, Verifier};

struct Counting;

static IN_USE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);
/// The allocator refuses requests beyond this number of bytes in use.
static MOST: AtomicUsize = AtomicUsize::new(usize::MAX);
/// Runs one test at a time, since the allocations of another would count.
static ALONE: Mutex<()> = Mutex::new(());

// SAFETY: the system's allocator, and a count. (`realloc` and `alloc_zeroed` come here as well, by their defaults: a
// vector that grows counts twice while its contents move.)
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // Relaxed, here and below: counts, read by the only thread that allocates.
        let now = IN_USE.load(Ordering::Relaxed) + layout.size();
        if now > MOST.load(Ordering::Relaxed) {
            return std::ptr::null_mut();
        }
        IN_USE.store(now, Ordering::Relaxed);
        PEAK.fetch_max(now, Ordering::Relaxed);
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

/// A loop that is walked round by round: no candidate invariant bounds its rounds, only the concrete numbers do. The
/// states of all rounds are open at once, and the trail reaches back to the first.
const ROUNDS: &str = "
    r1 = 1
    r2 = 6364136223846793005 ll
again:
    r1 *= r2
    r1 += 1442695
    r3 = r1
    r3 >>= 33
    *(u64 *)(r10 - 8) = r1
    if r3 != 77 goto again
    r0 = 0
    exit
";

/// The loop in the innermost of `frames` functions, each with numbers in all of its stack.
fn deep(frames: usize) -> String {
    let mut t = String::new();
    for frame in 0..frames {
        writeln!(t, "f{frame}:").expect("a string");
        for slot in 1..=20 {
            writeln!(t, "r1 = {}\n*(u64 *)(r10 - {}) = r1", frame * 100 + slot, 8 * slot).expect("a string");
        }
        if frame + 1 < frames {
            writeln!(t, "call f{}", frame + 1).expect("a string");
        } else {
            t.push_str("r6 = 1\nr2 = 6364136223846793005 ll\nagain:\nr6 *= r2\nr6 += 1442695\nr3 = r6\nr3 >>= 33\nif r3 != 77 goto again\n");
        }
        for slot in 1..=20 {
            writeln!(t, "r1 = *(u64 *)(r10 - {})\nif r1 == 5000 goto +0", 8 * slot).expect("a string");
        }
        t.push_str("r0 = 0\nexit\n");
    }
    t
}

/// First many functions deep with all of their stack in use, then many states of one frame: recycled states have held
/// more than they are used for.
fn deep_then_shallow() -> String {
    let mut t = String::from("call 7\nif r0 > 5 goto +1\ncall g0\n");
    t.push_str(&branching(14));
    for frame in 0..7 {
        writeln!(t, "g{frame}:").expect("a string");
        for slot in 1..=30 {
            writeln!(t, "call 7\nr6 = r0\n*(u64 *)(r10 - {}) = {slot}\nif r6 > {slot} goto +0", 8 * slot)
                .expect("a string");
        }
        if frame < 6 {
            writeln!(t, "call g{}", frame + 1).expect("a string");
        }
        t.push_str("r0 = 0\nexit\n");
    }
    t
}

/// A long program of one path.
fn straight(n: usize) -> String {
    let mut t = String::from("r0 = 0\n");
    for _ in 0..n {
        t.push_str("r0 += 1\n");
    }
    t + "exit\n"
}

/// A long program with a join in each few instructions.
fn joins(n: usize) -> String {
    let mut t = String::from("call 7\nr6 = r0\nr7 = 0\n");
    for i in 0..n {
        writeln!(t, "if r6 > {i} goto +1\nr7 = {i}\nr7 += 1").expect("a string");
    }
    t + "r0 = r7\nexit\n"
}

/// Loops within loops, about which guesses are made.
const NESTED: &str = "
    call 7
    r6 = r0
    r6 &= 255
    r7 = 0
a:
    r8 = 0
b:
    r9 = 0
    *(u64 *)(r10 - 8) = r7
c:
    call 7
    r1 = *(u64 *)(r10 - 8)
    if r0 > 7 goto +1
    r1 += 1
    r9 += 1
    if r9 < r6 goto c
    r8 += 1
    if r8 < r6 goto b
    r7 += 1
    if r7 < r6 goto a
    r0 = 0
    exit
";

struct Case {
    name: &'static str,
    program: Program,
    /// Verified with [`Env::values`], too.
    values: bool,
}

fn cases() -> Vec<Case> {
    let case = |name, text: &str, values| Case { name, program: common::program(text), values };
    vec![
        case("branching", &branching(60), false),
        case("branching with values", &branching(60), true),
        case("rounds", ROUNDS, false),
        case("rounds with values", ROUNDS, true),
        case("one deep", &deep(1), false),
        case("eight deep", &deep(8), false),
        case("deep, then shallow", &deep_then_shallow(), false),
        case("straight", &straight(100_000), false),
        case("straight with values", &straight(100_000), true),
        case("joins", &joins(20_000), false),
        case("joins with values", &joins(20_000), true),
        case("nested", NESTED, false),
        case("nested with values", NESTED, true),
    ]
}

#[test]
fn no_verification_holds_more_than_its_limit() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let cases = cases();
    let mut report = String::new();
    let mut worst = 0;
    common::with_env("", |env| {
        for limit in [64 << 10, 256 << 10, 1 << 20, 4 << 20, 24 << 20, 64 << 20, 100 << 20] {
            let mut limits = Limits::default();
            (limits.memory, limits.states) = (limit, usize::MAX);
            limits.steps = if limit > 32 << 20 { 400_000 } else { 200_000 };
            // One verifier for all programs, so that memory kept from one counts for the next.
            let mut verifier = Verifier::new();
            let empty = IN_USE.load(Ordering::Relaxed);
            for Case { name, program, values } in &cases {
                let env = Env { limits, values: *values, ..*env };
                let kept = IN_USE.load(Ordering::Relaxed) - empty;
                let program = program.clone();
                // Memory that the verifier keeps from former programs counts; the program itself does not.
                let before = IN_USE.load(Ordering::Relaxed) - kept;
                PEAK.store(before + kept, Ordering::Relaxed);
                let result = verifier.verify(program, &env);
                let held = PEAK.load(Ordering::Relaxed) - before;
                let verdict = match &result {
                    Ok(v) => format!("accepted, {} steps", v.stats().steps),
                    Err(e) => e.reason.to_string(),
                };
                let over = held.saturating_sub(limit);
                worst = worst.max(over);
                writeln!(report, "{limit:>10} {name:<22} held {held:>10}, over {over:>8}: {verdict}")
                    .expect("a string");
            }
        }
    });
    println!("{report}");
    assert!(worst <= Verifier::MEMORY_SLACK, "{worst} bytes over\n{report}");
}

#[test]
fn a_refusal_for_memory_names_the_loop_that_took_it() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    common::with_env("", |env| {
        let mut limits = Limits::default();
        limits.memory = 2 << 20;
        let env = Env { limits, ..*env };
        let error = Verifier::new().verify(common::program(ROUNDS), &env).expect_err("too many rounds");
        assert_eq!(error.reason, Reason::Memory(2 << 20));
        let text = error.to_string();
        assert!(text.contains("the loop at 3 took"), "{text}");
    });
}

/// If the allocator refuses, a verification ends with an error and does not abort the process, for every program and
/// every point of the refusal.
#[test]
fn memory_that_the_system_refuses_ends_a_verification_without_a_verdict() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let cases = cases();
    let (mut refused, mut decided) = (0, 0);
    common::with_env("", |env| {
        let mut limits = Limits::default();
        limits.steps = 3000;
        for Case { name, program, values } in &cases {
            let env = Env { limits, values: *values, ..*env };
            // Limits from the bytes that an error takes to the bytes that the longest of these programs need.
            let mut most = 64 << 10;
            while most < 64 << 20 {
                let program = program.clone();
                let mut verifier = Verifier::new();
                MOST.store(IN_USE.load(Ordering::Relaxed) + most, Ordering::Relaxed);
                let result = verifier.verify(program, &env);
                MOST.store(usize::MAX, Ordering::Relaxed);
                match result {
                    Err(error) if error.reason == Reason::OutOfMemory => {
                        assert!(error.verdict_is_unknown(), "{name}: {error}");
                        refused += 1;
                    }
                    Err(_) | Ok(_) => decided += 1,
                }
                most += most / 3 + 1000;
            }
        }
    });
    assert!(refused > 50 && decided > 50, "{refused} refused, {decided} decided");
}
