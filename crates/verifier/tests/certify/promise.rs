//! Planted faults before loads that accept only what the core has checked: those outside of the core are harmless, and
//! each one inside is found.
//!
//! Approach: with one fault planted, programs are proven as by `bpf prove`, and the bytes of the proof are checked as
//! by a load with `Proofs::Require`. `pairs.txt` says which of its programs are unsafe; the watched interpreter decides
//! about the others. The same programs go to the walks, whose verdict the faults change.

use std::collections::BTreeSet;

use bpf_analysis::Facts;
use bpf_isa::Program;
use bpf_testkit::generate::Choices;
use bpf_verifier::faults::{Fault, plant};
use bpf_verifier::{Env, Helpers, Proof, Verifier};

use super::{FUEL, Random, common, facts, garble, mutants, violation, watched};

/// The faults of the verifier that lie in the core: they are in the operations on numbers, which the walks share.
const IN_CORE: [Fault; 3] = [Fault::SignedIsUnsigned, Fault::HalfIsWhole, Fault::RemainderTooSmall];

/// One of so many pairs is tried for each fault, and so many mutants. With `PROMISE=all` in the environment all pairs
/// are tried, and as many mutants for each fault as `BPF_PROGRAMS` says.
const PAIRS_OF: usize = 64;
const MUTANTS: u64 = 2;

fn outside() -> impl Iterator<Item = Fault> {
    Fault::ALL.iter().copied().filter(|fault| !IN_CORE.contains(fault))
}

fn is_long() -> bool {
    std::env::var("PROMISE").is_ok_and(|how| how == "all")
}

/// The facts of a program that a load with `Proofs::Require` accepts, with the proof that `bpf prove` finds.
fn required(program: &Program, env: &Env<'_>, fuel: u64) -> Option<Facts> {
    let bytes = Proof::search(program, env, fuel).ok()?.to_bytes();
    Proof::from_bytes(&bytes).ok()?.check(program, env).ok()
}

#[test]
fn no_fault_outside_of_the_core_lets_an_unsafe_program_be_required() {
    let pairs: Vec<_> = common::pairs().into_iter().filter(|p| common::has_code(p.refused)).collect();
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let step = if is_long() { 1 } else { PAIRS_OF };
    let (mut tried, mut proven, mut walked, mut harmful) = (0u64, 0u64, 0u64, BTreeSet::new());
    for (i, fault) in outside().enumerate() {
        for p in pairs.iter().skip(i % step).step_by(step) {
            let Ok(program) = common::try_program(p.refused) else { continue };
            let twin = common::try_program(p.accepted).ok().filter(|_| common::has_code(p.accepted));
            tried += 1;
            plant(Some(fault));
            common::with_env(p.refused, |env| {
                let wrong = required(&program, env, FUEL).is_some();
                assert!(!wrong, "{}: the refused program is required under {fault:?}\n{program}", p.name);
                if Verifier::new().verify(program.clone(), env).is_ok() {
                    walked += 1;
                    harmful.insert(format!("{fault:?}"));
                }
                // The proof of the safe twin, and changed ones.
                let Some(Ok(proof)) = twin.as_ref().map(|twin| Proof::search(twin, env, FUEL)) else { return };
                for changed in [proof.certificate().clone(), garble(&mut random, proof.certificate())] {
                    if let Some(facts) = facts(&program, env, &changed)
                        && let Some(what) = watched::violation(&program, env, &facts, 20)
                    {
                        panic!("{}: proven under {fault:?}, and {what}\n{program}", p.name);
                    }
                }
            });
            if let Some(twin) = &twin {
                common::with_env(p.accepted, |env| {
                    let Some(facts) = required(twin, env, FUEL) else { return };
                    proven += 1;
                    if let Some(what) = watched::violation(twin, env, &facts, 4) {
                        panic!("{}: the safe twin is required under {fault:?}, and {what}\n{twin}", p.name);
                    }
                });
            }
            plant(None);
        }
    }
    println!(
        "{} faults outside of the core: {tried} unsafe programs, none required, {walked} accepted by the walks, thanks to \
         {} faults: {harmful:?}; {proven} safe ones required",
        outside().count(),
        harmful.len()
    );
    assert!(proven > tried / 8, "{proven} of {tried}");
    assert!(!is_long() || harmful.len() > 40, "{harmful:?}");
}

#[test]
fn mutants_that_are_required_under_a_fault_outside_of_the_core_run_safely() {
    let mut random = Random(0x2545_f491_4f6c_dd1d);
    let (context, helpers) = (bpf_verifier::ContextLayout::raw(true), Helpers::none());
    let env = Env::new(&context, &helpers);
    let programs = std::env::var("BPF_PROGRAMS").ok().and_then(|n| n.parse().ok()).unwrap_or(MUTANTS);
    let (mut tried, mut proven, mut walked) = (0u64, 0u64, 0u64);
    for (i, fault) in (0u64..).zip(outside()) {
        for seed in i * programs..(i + 1) * programs {
            let Some(program) = mutants::generate(&mut Choices::from_seed(seed)) else { continue };
            tried += 1;
            plant(Some(fault));
            let facts = required(&program, &env, 1 << 11);
            walked += u64::from(facts.is_some() || is_long() && Verifier::new().verify(program.clone(), &env).is_ok());
            plant(None);
            if facts.is_none() {
                continue;
            }
            proven += 1;
            if let Some(what) = violation(&program, &mut random) {
                panic!("seed {seed} is required under {fault:?}, and {what}\n{program}");
            }
        }
    }
    println!("{tried} mutants, {proven} required, {walked} accepted by that or by the walks, no violation");
    assert!(proven > 0);
}

/// Safe programs that rest on an operation on numbers, each with an unsafe twin and the fault that proves it.
const NUMBERS: [(Fault, &str, &str); 3] = [
    // The first eight bytes are a number that is below zero.
    (
        Fault::SignedIsUnsigned,
        "r0 = 0; if r2 < 8 goto +4; r3 = *(u64 *)(r1 + 0); if r3 > 7 goto +2; r1 += r3; r0 = *(u8 *)(r1 + 0); exit",
        "r0 = 0; if r2 < 8 goto +4; r3 = *(u64 *)(r1 + 0); if r3 s> 7 goto +2; r1 += r3; r0 = *(u8 *)(r1 + 0); exit",
    ),
    // The upper half of the number is not zero.
    (
        Fault::HalfIsWhole,
        "r0 = 0; if r2 < 8 goto +5; *(u32 *)(r1 + 0) = 3; r3 = *(u64 *)(r1 + 0); if r3 > 7 goto +2; r1 += r3; \
         r0 = *(u8 *)(r1 + 0); exit",
        "r0 = 0; if r2 < 8 goto +5; *(u32 *)(r1 + 0) = 3; r3 = *(u64 *)(r1 + 0); if w3 > 7 goto +2; r1 += r3; \
         r0 = *(u8 *)(r1 + 0); exit",
    ),
    // The remainder of 6 by 7 is 6: seven bytes of the stack are needed, not six.
    (
        Fault::RemainderTooSmall,
        "r0 = 0; if r2 == 0 goto +6; *(u8 *)(r1 + 0) = 6; r3 = *(u8 *)(r1 + 0); r3 %= 7; r4 = r10; r4 += r3; \
         *(u8 *)(r4 - 7) = 0; exit",
        "r0 = 0; if r2 == 0 goto +6; *(u8 *)(r1 + 0) = 6; r3 = *(u8 *)(r1 + 0); r3 %= 7; r4 = r10; r4 += r3; \
         *(u8 *)(r4 - 6) = 0; exit",
    ),
];

#[test]
fn faults_in_operations_on_numbers_let_an_unsafe_twin_be_required() {
    let program = |text: &str| common::program(&format!(";raw\n{}", text.replace("; ", "\n")));
    assert_eq!(NUMBERS.map(|(fault, ..)| fault), IN_CORE);
    for (fault, safe, twin) in NUMBERS {
        let (safe, twin) = (program(safe), program(twin));
        common::with_env(";raw", |env| {
            assert!(required(&safe, env, FUEL).is_some(), "{fault:?}\n{safe}");
            assert!(required(&twin, env, FUEL).is_none(), "{fault:?}\n{twin}");
            plant(Some(fault));
            let under = required(&twin, env, FUEL);
            plant(None);
            let facts = under.unwrap_or_else(|| panic!("{fault:?} changes nothing\n{twin}"));
            assert!(watched::violation(&twin, env, &facts, 400).is_some(), "{fault:?} does no harm\n{twin}");
        });
    }
}

/// Every fault of the core has a program in these tests that shows it.
#[test]
fn every_fault_of_the_core_is_found() {
    use bpf_verifier_core::faults::Fault;
    let mut found: BTreeSet<String> = NUMBERS.iter().map(|(fault, ..)| format!("{fault:?}")).collect();
    let of_programs = super::faults::FOUND.iter().chain(super::sleeping::FOUND).copied();
    found.extend(of_programs.chain(super::sleeping::of_rules()).map(|fault| format!("{fault:?}")));
    let all: BTreeSet<String> = Fault::ALL.iter().map(|fault| format!("{fault:?}")).collect();
    assert_eq!(found, all);
}
