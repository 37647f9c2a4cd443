//! The fuzz bodies for a moment each, on seeds; `cargo fuzz run TARGET` runs them at length. `BPF_SOAK=N`: N times as
//! many; a quarter where code is usually emulated.

use bpf_testkit::{fuzz, generate::Choices};

const FILTER: &[u8] = include_bytes!("../../../../examples/filter.o");

/// Calls the body on byte strings of all lengths up to 1000.
fn on_noise(body: fn(&[u8]), count: u64) {
    let soak = std::env::var("BPF_SOAK").ok().and_then(|times| times.parse().ok()).unwrap_or(1);
    let count = if cfg!(target_arch = "aarch64") { count / 4 } else { count };
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

/// The comparison is worth something only if it notices: each deliberate bug in the optimiser. Those in how registers
/// are allocated would be found by what else a process does; `bpf-jit`'s tests have a checker that finds them.
#[cfg(feature = "faults")]
#[test]
fn faults_of_the_optimiser_are_found() {
    use bpf_jit::faults::{Fault, plant};
    // A finding is a panic, and there are many.
    std::panic::set_hook(Box::new(|_| ()));
    let mut missed = Vec::new();
    let others = [Fault::OF_ALLOCATION, Fault::OF_OWN_TESTS].concat();
    for &fault in Fault::ALL.iter().filter(|fault| !others.contains(fault)) {
        let found = (0..20_000).find(|seed| {
            let mut choices = Choices::from_seed(*seed);
            let data: Vec<u8> = (0..1000).map(|_| choices.byte()).collect();
            plant(Some(fault));
            let with = std::panic::catch_unwind(|| fuzz::optimise(&data));
            plant(None);
            with.is_err() && std::panic::catch_unwind(|| fuzz::optimise(&data)).is_ok()
        });
        println!("{fault:?}: {found:?}");
        missed.extend(found.is_none().then_some(fault));
    }
    drop(std::panic::take_hook());
    assert_eq!(missed, [], "not found");
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
