//! Loops near what their proofs take for granted: what a loose walk does, what a row is taken to move by, and names
//! that are other numbers where no guess was made of that. `examples/watch.rs` with `assumed`, `moves` and `renamed` is
//! the long run.

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

/// With checks left for run time, where an offset that is not bounded is no reason to refuse.
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

/// Generated programs find the deliberate bugs in all of these.
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

/// And those in rounds that are told apart; the first seeds are near those that find them, as the programs take long.
#[cfg(feature = "faults")]
#[test]
fn generated_programs_find_faults_of_sides() {
    use bpf_verifier::faults::Fault;

    for (&fault, first) in Fault::OF_SIDES.iter().zip([0, 175, 330, 330]) {
        assert!(finds(fault, none::oracle(), first..first + 40, none::generate), "{fault:?} is not found");
    }
}
