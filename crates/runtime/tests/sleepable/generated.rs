//! Random programs that sleep, beside a host that frees memory meanwhile.

use super::random::{Outcome, Sleepers};
use bpf_testkit::generate::Choices;

#[test]
fn no_accepted_program_uses_what_was_freed_while_it_slept() {
    let sleepers = Sleepers::new();
    let (mut refused, mut ran, mut slept, mut uncontained) = (0, 0, 0, 0);
    let programs = std::env::var("BPF_SLEEPERS").map_or(200, |count| count.parse().expect("a number"));
    for seed in 0..programs {
        match sleepers.check(&mut Choices::from_seed(seed)) {
            Outcome::Refused => refused += 1,
            Outcome::Ran(times) => {
                ran += 1;
                slept += u64::from(times);
            }
            Outcome::Uncontained(times) => {
                (ran, uncontained) = (ran + 1, uncontained + 1);
                slept += u64::from(times);
            }
            Outcome::Violation(what) => panic!("seed {seed}: {what}"),
        }
    }
    assert!(uncontained < ran / 4, "{uncontained} of {ran} cannot be contained");
    assert!(ran > programs / 4 && refused > programs / 20 && slept > programs, "{ran} ran, {refused} refused, {slept}");
}
