//! Random programs that sleep, beside a host that frees memory meanwhile.

use bpf_testkit::generate::Choices;
use bpf_testkit::sleepers::{Kind, Outcome, Sleepers};

/// Programs: a quarter where code is usually emulated.
const PROGRAMS: u64 = if cfg!(target_arch = "aarch64") { 36 } else { 144 };

/// The kind of the program with this seed.
fn kind(seed: u64) -> Kind {
    Kind::ALL[(seed % Kind::ALL.len() as u64) as usize]
}

#[test]
fn no_accepted_program_uses_what_was_freed_while_it_slept() {
    let sleepers = Sleepers::default();
    let (mut refused, mut ran, mut slept, mut contained) = (0, 0, 0, 0);
    let programs = std::env::var("BPF_SLEEPERS").map_or(PROGRAMS, |count| count.parse().expect("a number"));
    for seed in 0..programs {
        match sleepers.check(kind(seed), &mut Choices::from_seed(seed)) {
            Outcome::Refused => refused += 1,
            Outcome::Ran(times) => {
                (ran, contained) = (ran + 1, contained + 1);
                slept += u64::from(times);
            }
            Outcome::Uncontained(times) => {
                ran += 1;
                slept += u64::from(times);
            }
            Outcome::Violation(what) => panic!("seed {seed}, {:?}: {what}", kind(seed)),
        }
    }
    assert!(contained > ran / 4, "{contained} of {ran} can be contained");
    assert!(ran > programs / 4 && refused > programs / 20 && slept > programs, "{ran} ran, {refused} refused, {slept}");
}

/// Programs of the generator show each fault of the verifier in sleeping.
#[cfg(feature = "planted")]
#[test]
fn planted_faults_in_sleeping_are_shown() {
    use bpf_verifier::faults::Fault;
    let sleepers = Sleepers::default();
    for &fault in Fault::OF_SLEEPING.iter().chain(&Fault::OF_YIELDING) {
        let kind = Kind::of(fault);
        let shown = (0..400).find(|&seed| sleepers.shows(fault, kind, &mut Choices::from_seed(seed)));
        assert!(shown.is_some(), "{fault:?} is not shown by programs with {kind:?}");
        println!("{fault:?}: {shown:?}");
    }
}

/// Programs of the generator show each fault in runs that wait.
#[cfg(feature = "planted")]
#[test]
fn planted_faults_in_runs_that_wait_are_shown() {
    use bpf_runtime::faults::Fault;
    for &fault in Fault::ALL {
        // A thread that keeps a guard is of no use afterwards, and neither are the engines.
        let shown = std::thread::spawn(move || {
            let sleepers = std::mem::ManuallyDrop::new(Sleepers::default());
            (0..200).find(|&seed| sleepers.shows_in_runs(fault, &mut Choices::from_seed(seed)))
        });
        let shown = shown.join().expect("no panic");
        assert!(shown.is_some(), "{fault:?} is not shown");
        println!("{fault:?}: {shown:?}");
    }
}

/// A value of the slot that a run has left is not forwarded over the sleep.
#[cfg(feature = "faults")]
#[test]
fn a_fault_in_forwarding_is_shown_by_programs_that_sleep() {
    let (sleepers, fault) = (Sleepers::default(), bpf_jit::faults::Fault::CallsForgetNothing);
    let shown = (0..200).find(|&seed| sleepers.shows_in_code(fault, &mut Choices::from_seed(seed)));
    assert!(shown.is_some(), "{fault:?} is not shown");
}
