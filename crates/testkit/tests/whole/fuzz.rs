//! The fuzz bodies for a moment each, on seeds; `cargo fuzz run TARGET` runs them at length. `BPF_SOAK=N`: N times as
//! many; an eighth under an emulator.

use bpf_testkit::{fuzz, generate::Choices};

const FILTER: &[u8] = include_bytes!("../../../../examples/filter.o");

/// Calls the body on byte strings of all lengths up to 1000.
fn on_noise(body: fn(&[u8]), count: u64) {
    let soak = std::env::var("BPF_SOAK").ok().and_then(|times| times.parse().ok()).unwrap_or(1);
    let count = if bpf_testkit::emulated() { count / 8 } else { count };
    for seed in 0..count * soak {
        let mut choices = Choices::from_seed(seed);
        let length = choices.below(1000);
        let data: Vec<u8> = (0..length).map(|_| choices.byte()).collect();
        body(&data);
    }
}

#[test]
fn instructions() {
    on_noise(fuzz::instructions, 2000);
}

#[test]
fn lir() {
    on_noise(fuzz::lir, 1000);
}

#[test]
fn engines() {
    on_noise(fuzz::engines, 300);
}

#[test]
fn optimise() {
    on_noise(fuzz::optimise, 400);
}

#[test]
fn loops() {
    on_noise(fuzz::loops, 2000);
}

#[test]
fn sides() {
    on_noise(fuzz::sides, 2000);
}

/// Environment variable that tells the process which fault it looks for.
#[cfg(feature = "faults")]
const FAULT: &str = "BPF_FAULT";

/// The comparison detects each planted fault of the optimiser. Faults of register allocation are excluded: they would
/// break other code of the process, and `bpf-jit`'s tests have a checker that detects them. Each fault runs in a
/// process of its own, since it may make a wrong address: the end of that process counts as a detection.
#[cfg(feature = "faults")]
#[test]
fn faults_of_the_optimiser_are_found() {
    use bpf_jit::faults::Fault;
    if let Ok(name) = std::env::var(FAULT) {
        let fault = Fault::ALL.iter().find(|fault| format!("{fault:?}") == name);
        return look_for(*fault.expect("a fault"));
    }
    let mut missed = Vec::new();
    for &fault in Fault::ALL {
        let elsewhere = Fault::OF_ARM64.contains(&fault) && !cfg!(target_arch = "aarch64")
            || Fault::OF_X64.contains(&fault) && !cfg!(target_arch = "x86_64");
        // `a_dynptr_that_is_not_restored_is_noticed` has a program that shows this one.
        let shown = fault == Fault::DynptrUnrestored;
        if elsewhere || shown || Fault::OF_ALLOCATION.contains(&fault) {
            continue;
        }
        let mut itself = bpf_testkit::itself();
        itself.args(["--exact", "fuzz::faults_of_the_optimiser_are_found", "--nocapture"]);
        let output = itself.env(FAULT, format!("{fault:?}")).output().expect("it can be run");
        let (said, ended) = (String::from_utf8_lossy(&output.stdout), output.status);
        let last = said.lines().rev().find_map(|line| line.strip_prefix("input "));
        let found = match said.lines().find_map(|line| line.strip_prefix("found ")) {
            Some(found) => found.parse().ok(),
            // The process ended: the last input is run once more without the fault, to show that the input alone does
            // not end a process.
            None if !ended.success() => last.and_then(|last| last.parse().ok()).filter(|seed| {
                body_for(fault)(&input(*seed));
                true
            }),
            None => None,
        };
        println!("{fault:?}: {found:?}, {ended}");
        missed.extend(found.is_none().then_some(fault));
    }
    assert_eq!(missed, [], "not found");
}

#[cfg(feature = "faults")]
fn input(seed: u64) -> Vec<u8> {
    let mut choices = Choices::from_seed(seed);
    (0..1000).map(|_| choices.byte()).collect()
}

#[cfg(feature = "faults")]
fn body_for(fault: bpf_jit::faults::Fault) -> fn(&[u8]) {
    if bpf_jit::faults::Fault::OF_CONTAINED.contains(&fault) {
        return fuzz::contained;
    }
    if bpf_jit::faults::Fault::OF_FACTS.contains(&fault) {
        return verified;
    }
    if bpf_jit::faults::Fault::OF_SIDES.contains(&fault) { fuzz::sides } else { fuzz::optimise }
}

/// A program at the border of the verifier's rules, compiled with the facts that were proven of it.
#[cfg(feature = "faults")]
fn verified(data: &[u8]) {
    use bpf_testkit::soundness::{self, Oracle, Outcome};
    std::thread_local! {
        static ORACLE: std::cell::RefCell<Oracle> = std::cell::RefCell::new(Oracle::new());
    }
    let mut choices = Choices::from_bytes(data);
    let generated = soundness::generate(&mut choices);
    let outcome = ORACLE.with_borrow_mut(|oracle| oracle.check(&generated, 2, &mut choices));
    assert!(!matches!(outcome, Outcome::Violation(_)), "{outcome:?}");
}

/// Prints `input N` before each input, and `found N` after the first that detects the fault.
#[cfg(feature = "faults")]
fn look_for(fault: bpf_jit::faults::Fault) {
    use bpf_jit::faults::{Fault, plant};
    use std::io::Write;
    // A finding is a panic, and there may be many.
    std::panic::set_hook(Box::new(|_| ()));
    let body = body_for(fault);
    let say = |line: String| std::io::stdout().write_all(line.as_bytes()).expect("somebody listens");
    for seed in 0..20_000 {
        say(format!("input {seed}\n"));
        let data = input(seed);
        plant(Some(fault));
        let with = std::panic::catch_unwind(|| body(&data));
        plant(None);
        if with.is_err() && Fault::OF_CONTAINED.contains(&fault) {
            // A store outside of its object may have damaged anything here. The parent process tries the input without
            // the fault.
            std::process::exit(1);
        }
        if with.is_err() && std::panic::catch_unwind(|| body(&data)).is_ok() {
            return say(format!("found {seed}\n"));
        }
    }
}

#[test]
fn soundness() {
    on_noise(fuzz::soundness, 500);
}

#[test]
fn emission() {
    on_noise(fuzz::emission, 500);
}

#[test]
fn dispatcher() {
    on_noise(fuzz::dispatcher, 300);
}

#[test]
fn operations() {
    on_noise(fuzz::operations, 60);
}

#[test]
fn maps() {
    on_noise(fuzz::maps, 3000);
}

#[test]
fn object() {
    on_noise(fuzz::object, 200);
    for seed in 0..500 {
        let mut choices = Choices::from_seed(seed);
        let mut data = FILTER.to_vec();
        for _ in 0..=choices.below(8) {
            let at = choices.below(data.len() as u32) as usize;
            data[at] = choices.byte();
        }
        if choices.one_in(4) {
            data.truncate(choices.below(data.len() as u32) as usize);
        }
        fuzz::object(&data);
    }
}
