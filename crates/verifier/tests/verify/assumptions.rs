//! Loops that nearly or barely violate the assumptions of their proofs: the bounds that a loose walk assumes, the
//! distance by which a row pointer is assumed to advance, and names that stand for other numbers in rounds from which
//! no candidate was made. `examples/watch.rs` with `assumed`, `moves` and `renamed` is the long run.

use crate::border::{Oracle, assumed, begins, grids, none, pincers, quotients};
#[cfg(feature = "faults")]
use crate::loops_oracle::finds;
use crate::loops_oracle::{watch, watch_by};

#[test]
fn accepted_loops_of_assumptions_stay_within_the_abstract_states() {
    let (accepted, refused, violation) = watch(0..300, assumed::generate);
    assert_eq!(violation, None);
    assert!(accepted > 30 && refused > 60, "{accepted} accepted, {refused} refused");
}

/// Hybrid verification: an unbounded offset is checked at run time instead of refused.
#[test]
fn loops_of_assumptions_that_are_checked_stay_within_the_abstract_states() {
    let (accepted, _, violation) = watch_by(Oracle::new(true), 1000..1060, assumed::generate);
    assert_eq!(violation, None);
    assert!(accepted > 20, "{accepted} accepted");
}

#[test]
fn accepted_rows_that_are_moved_in_several_ways_stay_within_the_abstract_states() {
    let (accepted, refused, violation) = watch(0..60, grids::generate_moves);
    assert_eq!(violation, None);
    assert!(accepted > 5 && refused > 20, "{accepted} accepted, {refused} refused");
}

#[test]
fn accepted_names_of_other_numbers_stay_within_the_abstract_states() {
    let (accepted, refused, violation) = watch(0..60, pincers::generate_renamed);
    assert_eq!(violation, None);
    assert!(accepted > 1 && refused > 20, "{accepted} accepted, {refused} refused");
}

#[test]
fn accepted_loops_over_distant_numbers_stay_within_the_abstract_states() {
    let (accepted, refused, violation) = watch(0..300, begins::generate);
    assert_eq!(violation, None);
    assert!(accepted > 90 && refused > 90, "{accepted} accepted, {refused} refused");
}

#[test]
fn accepted_rounds_that_divide_stay_within_the_abstract_states() {
    let (accepted, refused, violation) = watch(0..200, quotients::generate);
    assert_eq!(violation, None);
    assert!(accepted > 50 && refused > 90, "{accepted} accepted, {refused} refused");
}

#[test]
fn accepted_places_that_hold_none_stay_within_the_abstract_states() {
    let (accepted, refused, violation) = watch_by(none::oracle(), 0..80, none::generate);
    assert_eq!(violation, None);
    assert!(accepted > 20 && refused > 20, "{accepted} accepted, {refused} refused");
}

/// Generated programs detect each planted fault in the assumptions of loose walks, rows and names.
#[cfg(feature = "faults")]
#[test]
fn generated_programs_find_faults_of_assumptions() {
    use bpf_isa::Program;
    use bpf_testkit::generate::Choices;
    use bpf_verifier::faults::Fault;

    type Generator = fn(&mut Choices<'_>) -> Option<Program>;
    let of_assumptions = Fault::OF_ASSUMPTIONS.iter().map(|fault| (*fault, assumed::generate as Generator));
    let others: [(Fault, Generator); 5] = [
        (Fault::RowsUnchecked, grids::generate_moves),
        (Fault::RelationsByOldNames, pincers::generate_renamed),
        (Fault::LinesOfAnySize, begins::generate),
        (Fault::UndividedUnseen, quotients::generate),
        (Fault::RoundsUndivided, quotients::generate),
    ];
    for (fault, generate) in of_assumptions.chain(others) {
        assert!(finds(fault, Oracle::new(false), 0..300, generate), "{fault:?} is not found");
    }
}

/// Generated programs detect the planted faults in rounds whose sides are verified separately. The first seed of each
/// is close to one that detects the fault, since these programs are slow.
#[cfg(feature = "faults")]
#[test]
fn generated_programs_find_faults_of_sides() {
    use bpf_verifier::faults::Fault;

    for (&fault, first) in Fault::OF_SIDES.iter().zip([0, 175, 330, 330]) {
        assert!(finds(fault, none::oracle(), first..first + 40, none::generate), "{fault:?} is not found");
    }
}
