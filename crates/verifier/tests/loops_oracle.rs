//! Generated loops run as the verifier said they would: a short run; `examples/soundness.rs` with `loops` is the long one.

mod border;

use border::{Oracle, Outcome, loops};
use bpf_testkit::generate::Choices;

/// Accepted, refused, and the first violation among so many programs.
fn watch(seeds: std::ops::Range<u64>) -> (u32, u32, Option<String>) {
    let mut oracle = Oracle::new(false);
    let (mut accepted, mut refused) = (0, 0);
    for seed in seeds {
        let mut c = Choices::from_seed(seed);
        let Some(program) = loops::generate(&mut c) else { continue };
        match oracle.check(&program, 3, &mut c) {
            Outcome::Refused(_) => refused += 1,
            Outcome::Ran(_) => accepted += 1,
            Outcome::Violation(what) => return (accepted, refused, Some(format!("seed {seed}: {what}"))),
        }
    }
    (accepted, refused, None)
}

#[test]
fn accepted_loops_stay_within_the_abstract_states() {
    let (accepted, refused, violation) = watch(0..400);
    assert_eq!(violation, None);
    assert!(accepted > 60 && refused > 60, "{accepted} accepted, {refused} refused");
}
