//! Generated loops run as the verifier said they would: a short run; `examples/watch.rs` with `loops` is the long
//! one.

use crate::border::{
    Oracle, Outcome, backwards, blends, elements, far, folds, grids, halves, links, loops, modulo, orders, pincers,
    products, siblings, straight, sums,
};
use crate::mutants;
use bpf_isa::Program;
use bpf_testkit::generate::Choices;
#[cfg(feature = "faults")]
use bpf_verifier::faults::{Fault, plant};

/// Returns the numbers of accepted and of refused programs, and the first violation.
pub(crate) fn watch(
    seeds: std::ops::Range<u64>,
    generate: impl Fn(&mut Choices<'_>) -> Option<Program>,
) -> (u32, u32, Option<String>) {
    watch_by(Oracle::new(false), seeds, generate)
}

/// Watches generated programs with this oracle.
pub(crate) fn watch_by(
    mut oracle: Oracle,
    seeds: std::ops::Range<u64>,
    generate: impl Fn(&mut Choices<'_>) -> Option<Program>,
) -> (u32, u32, Option<String>) {
    let (mut accepted, mut refused) = (0, 0);
    for seed in seeds {
        let mut c = Choices::from_seed(seed);
        let Some(program) = generate(&mut c) else { continue };
        match oracle.check(&program, 3, &mut c) {
            Outcome::Refused(_) => refused += 1,
            Outcome::Ran(_) => accepted += 1,
            Outcome::Violation(what) => return (accepted, refused, Some(format!("seed {seed}: {what}"))),
        }
    }
    (accepted, refused, None)
}

/// Whether one of these programs finds the deliberate bug.
#[cfg(feature = "faults")]
pub(crate) fn finds(
    fault: Fault,
    oracle: Oracle,
    seeds: std::ops::Range<u64>,
    generate: impl Fn(&mut Choices<'_>) -> Option<Program>,
) -> bool {
    plant(Some(fault));
    let (.., violation) = watch_by(oracle, seeds, generate);
    plant(None);
    violation.is_some()
}

#[test]
fn accepted_loops_stay_within_the_abstract_states() {
    let (accepted, refused, violation) = watch(0..320, loops::generate);
    assert_eq!(violation, None);
    assert!(accepted > 60 && refused > 60, "{accepted} accepted, {refused} refused");
}

#[test]
fn accepted_loops_that_are_entered_in_their_middle_stay_within_the_abstract_states() {
    let (accepted, refused, violation) = watch(0..120, loops::generate_entered);
    assert_eq!(violation, None);
    assert!(accepted > 10 && refused > 20, "{accepted} accepted, {refused} refused");
}

#[test]
fn accepted_sums_stay_within_the_abstract_states() {
    let (accepted, refused, violation) = watch(0..300, sums::generate);
    assert_eq!(violation, None);
    assert!(accepted > 40 && refused > 40, "{accepted} accepted, {refused} refused");
}

#[test]
fn accepted_chains_of_orders_stay_within_the_abstract_states() {
    let (accepted, refused, violation) = watch(15_000..17_000, orders::generate);
    assert_eq!(violation, None);
    assert!(accepted > 200 && refused > 200, "{accepted} accepted, {refused} refused");
}

#[test]
fn accepted_indices_in_arrays_stay_within_the_abstract_states() {
    let (accepted, refused, violation) = watch(0..1500, elements::generate);
    assert_eq!(violation, None);
    assert!(accepted > 100 && refused > 100, "{accepted} accepted, {refused} refused");
}

#[test]
fn accepted_links_in_arrays_stay_within_the_abstract_states() {
    let (accepted, refused, violation) = watch(0..200, links::generate);
    assert_eq!(violation, None);
    assert!(accepted > 20 && refused > 20, "{accepted} accepted, {refused} refused");
}

#[test]
fn accepted_halves_stay_within_the_abstract_states() {
    let (accepted, refused, violation) = watch(0..150, halves::generate);
    assert_eq!(violation, None);
    assert!(accepted > 20 && refused > 20, "{accepted} accepted, {refused} refused");
}

#[test]
fn accepted_tables_of_variable_sizes_stay_within_the_abstract_states() {
    let (accepted, refused, violation) = watch(0..300, products::generate);
    assert_eq!(violation, None);
    assert!(accepted > 60 && refused > 60, "{accepted} accepted, {refused} refused");
}

#[test]
fn accepted_pincers_stay_within_the_abstract_states() {
    let (accepted, refused, violation) = watch(0..60, pincers::generate);
    assert_eq!(violation, None);
    assert!(accepted > 15 && refused > 15, "{accepted} accepted, {refused} refused");
}

#[test]
fn accepted_grids_stay_within_the_abstract_states() {
    let (accepted, refused, violation) = watch(0..300, grids::generate);
    assert_eq!(violation, None);
    assert!(accepted > 60 && refused > 60, "{accepted} accepted, {refused} refused");
}

#[test]
fn accepted_distant_numbers_stay_within_the_abstract_states() {
    // Seed 10147 bounds the parts of a sum that exceeds 63 bits.
    let (accepted, _, violation) = watch(10_000..10_300, far::generate);
    assert_eq!(violation, None);
    assert!(accepted > 200, "{accepted} accepted");
}

/// Loops with branches that affect no access, beside numbers that do.
#[test]
fn accepted_blends_stay_within_the_abstract_states() {
    let mut oracle = Oracle::new(false);
    oracle.steps = 2_000;
    let (accepted, refused, violation) = watch_by(oracle, 0..120, blends::generate);
    assert_eq!(violation, None);
    assert!(accepted > 20 && refused > 20, "{accepted} accepted, {refused} refused");
}

#[test]
fn accepted_mutants_of_everyday_programs_stay_within_the_abstract_states() {
    let (accepted, refused, violation) = watch_by(Oracle::of_texts(false), 0..120, mutants::generate);
    assert_eq!(violation, None);
    assert!(accepted > 30 && refused > 30, "{accepted} accepted, {refused} refused");
}

/// Mutants of everyday loops detect the planted faults in the steps from a candidate invariant to its proof.
#[cfg(feature = "faults")]
#[test]
fn mutants_find_faults_of_loops() {
    let of_loops = [
        Fault::StepOnOnePath,
        Fault::StrideLost,
        Fault::AtMostIsLess,
        Fault::WrapForgotten,
        Fault::EveryLoopEnds,
        Fault::RefusedGuessDropped,
        Fault::GuessNotWeakened,
        Fault::RelationsUnchecked,
        Fault::BlendedAsOther,
    ];
    for fault in of_loops {
        assert!(finds(fault, Oracle::of_texts(false), 0..500, mutants::generate), "{fault:?} is not found");
    }
}

/// Grids verified with run-time checks (hybrid verification).
#[test]
fn grids_that_are_checked_stay_within_the_abstract_states() {
    let (accepted, _, violation) = watch_by(Oracle::new(true), 1000..1040, grids::generate);
    assert_eq!(violation, None);
    assert!(accepted > 20, "{accepted} accepted");
}

/// Generated programs detect the planted faults in the bounds and the lifetime of products.
#[cfg(feature = "faults")]
#[test]
fn generated_grids_find_faults_of_products() {
    for fault in [Fault::ProductsOfAnySize, Fault::ProductsStay] {
        assert!(finds(fault, Oracle::new(false), 150..240, grids::generate), "{fault:?} is not found");
    }
}

#[test]
fn accepted_rounds_without_a_guess_stay_within_the_abstract_states() {
    let (accepted, refused, violation) = watch(0..60, pincers::generate_unseen);
    assert_eq!(violation, None);
    assert!(accepted > 5 && refused > 5, "{accepted} accepted, {refused} refused");
}

#[test]
fn accepted_pincers_of_many_kinds_stay_within_the_abstract_states() {
    let (accepted, refused, violation) = watch(0..30, pincers::generate_varied);
    assert_eq!(violation, None);
    assert!(accepted > 2 && refused > 2, "{accepted} accepted, {refused} refused");
}

/// In a program whose buffer may be empty, no access is in bounds by the least length of a buffer.
#[test]
fn accepted_halves_of_short_buffers_stay_within_the_abstract_states() {
    let (accepted, refused, violation) = watch_by(Oracle::with_least(false, 0), 1000..1150, halves::generate);
    assert_eq!(violation, None);
    assert!(accepted > 20 && refused > 20, "{accepted} accepted, {refused} refused");
}

/// Generated programs detect the planted faults in the upper bounds of numbers kept in an array.
#[cfg(feature = "faults")]
#[test]
fn generated_links_find_faults_of_orders() {
    for &fault in Fault::OF_ORDERS {
        assert!(finds(fault, Oracle::new(false), 0..4000, links::generate), "{fault:?} is not found");
    }
}

#[test]
fn accepted_siblings_stay_within_the_abstract_states() {
    let (accepted, refused, violation) = watch(0..1000, siblings::generate);
    assert_eq!(violation, None);
    assert!(accepted > 100 && refused > 100, "{accepted} accepted, {refused} refused");
}

/// Copies of a number that are cut and wrap round, verified by the walk with congruences.
#[test]
fn accepted_copies_modulo_a_power_of_two_stay_within_the_abstract_states() {
    let mut oracle = Oracle::new(false);
    oracle.way = Some("related".into());
    let (accepted, refused, violation) = watch_by(oracle, 0..1000, modulo::generate);
    assert_eq!(violation, None);
    assert!(accepted > 500 && refused > 50, "{accepted} accepted, {refused} refused");
}

/// Generated programs find congruent numbers that are taken to be equal.
#[cfg(feature = "faults")]
#[test]
fn generated_copies_find_congruent_numbers_that_are_not_equal() {
    let mut oracle = Oracle::new(false);
    oracle.way = Some("related".into());
    let fault = Fault::CongruentIsEqual;
    assert!(finds(fault, oracle, 0..600, modulo::generate), "{fault:?} is not found");
}

#[test]
fn accepted_straight_lines_stay_within_the_abstract_states() {
    for way in [None, Some("related")] {
        let mut oracle = Oracle::new(false);
        oracle.way = way.map(str::to_owned);
        let (accepted, refused, violation) = watch_by(oracle, 0..500, straight::generate);
        assert_eq!(violation, None);
        assert!(accepted > 60 && refused > 60, "{accepted} accepted, {refused} refused");
    }
}

/// Generated straight-line programs detect the planted faults in the lengths that probing functions are told.
#[cfg(feature = "faults")]
#[test]
fn generated_straight_lines_find_what_probes_are_told() {
    for &fault in Fault::OF_STRAIGHT {
        assert!(finds(fault, Oracle::new(false), 0..3000, straight::generate), "{fault:?} is not found");
    }
}

/// Privileged programs that reveal addresses: a number computed from an address has unknown bits.
#[test]
fn accepted_programs_that_show_addresses_stay_within_the_abstract_states() {
    let mut oracle = Oracle::new(false);
    oracle.privileged = true;
    let (accepted, refused, violation) = watch_by(oracle, 0..600, straight::generate_shown);
    assert_eq!(violation, None);
    assert!(accepted > 60 && refused > 60, "{accepted} accepted, {refused} refused");
}

/// Generated programs detect the planted faults in the rules for privileged programs.
#[cfg(feature = "faults")]
#[test]
fn generated_programs_find_faults_of_what_is_shown() {
    for &fault in Fault::OF_SHOWN {
        let mut oracle = Oracle::new(false);
        oracle.privileged = true;
        assert!(finds(fault, oracle, 0..600, straight::generate_shown), "{fault:?} is not found");
    }
}

/// Each way of the portfolio is sound by itself.
#[test]
fn accepted_by_each_way_alone_stay_within_the_abstract_states() {
    let ways = ["few-rounds", "guesses", "elements", "orders", "unassuming", "some-rounds"];
    let (mut all, mut of_mutants) = (0, 0);
    for way in ways.into_iter().chain(["further", "parts", "related", "rounds", "more-guesses", "certified"]) {
        let watch = |mut oracle: Oracle, seeds, generate: fn(&mut Choices<'_>) -> Option<Program>| {
            oracle.way = Some(way.into());
            let (accepted, _, violation) = watch_by(oracle, seeds, generate);
            assert_eq!(violation, None, "{way}");
            accepted
        };
        all += watch(Oracle::new(false), 0..60, siblings::generate);
        all += watch(Oracle::new(false), 0..40, loops::generate);
        of_mutants += watch(Oracle::of_texts(false), 0..60, mutants::generate);
    }
    assert!(all > 100 && of_mutants > 50, "{all} accepted, and {of_mutants} mutants");
}

/// Generated programs find a range that one path has learnt and another one uses, within a few hundred.
#[cfg(feature = "faults")]
#[test]
fn generated_siblings_find_what_is_known_on_another_path() {
    let fault = Fault::SiblingKnowsRanges;
    assert!(finds(fault, Oracle::new(false), 0..600, siblings::generate), "{fault:?} is not found");
}

/// Generated programs detect the planted faults in the facts about arrays.
#[cfg(feature = "faults")]
#[test]
fn generated_programs_find_faults_of_arrays() {
    let others = [Fault::SplitForgetsDistance, Fault::HalfOfAnother];
    for &fault in Fault::OF_CONTENTS.iter().filter(|f| !others.contains(f)) {
        assert!(finds(fault, Oracle::new(false), 15_000..20_000, elements::generate), "{fault:?} is not found");
    }
}

#[test]
fn accepted_folds_stay_within_the_abstract_states() {
    let (accepted, refused, violation) = watch(0..1500, folds::generate);
    assert_eq!(violation, None);
    assert!(accepted > 100 && refused > 100, "{accepted} accepted, {refused} refused");
}

#[test]
fn accepted_distances_below_zero_stay_within_the_abstract_states() {
    let (accepted, refused, violation) = watch(0..200, backwards::generate);
    assert_eq!(violation, None);
    assert!(accepted > 15 && refused > 50, "{accepted} accepted, {refused} refused");
}
