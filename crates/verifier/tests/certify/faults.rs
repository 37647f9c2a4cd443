//! Each planted fault of the core lets a certificate prove an unsafe program, whose runs show it.
//!
//! The certificate is that of a safe program, applied to its unsafe twin, or one that the search finds for the twin
//! under the fault. Without the fault neither of them is accepted.

use bpf_isa::Program;
use bpf_verifier::certify::certify_within;
use bpf_verifier_core::faults::{Fault, plant};

use super::{FUEL, SplitOnce, common, facts, watched};

/// The faults that the tests of this file find.
pub(super) const FOUND: &[Fault] = &[
    Fault::RegistersUncompared,
    Fault::StackUncompared,
    Fault::RanksUncompared,
    Fault::BranchDropsSide,
    Fault::BoundTooTight,
    Fault::OrderIsStrict,
    Fault::SizeUncounted,
    Fault::StoreKeepsSlots,
    Fault::AtomicUnaligned,
    Fault::QuotientTooSmall,
    Fault::SplitDropsCase,
];

/// A fault, a safe program, and its unsafe twin.
const CASES: [(Fault, &str, &str); 10] = [
    // The cursor moves by more than the rest of the buffer shrinks.
    (
        Fault::RegistersUncompared,
        "r0 = 0; if r2 == 0 goto +4; r0 = *(u8 *)(r1 + 0); r1 += 1; r2 += -1; if r2 != 0 goto -4; exit",
        "r0 = 0; if r2 == 0 goto +4; r0 = *(u8 *)(r1 + 0); r1 += 90; r2 += -1; if r2 != 0 goto -4; exit",
    ),
    // The slot holds another index in the second round.
    (
        Fault::StackUncompared,
        "r0 = 0; if r2 == 0 goto +9; *(u64 *)(r10 - 8) = 0; r6 = 0; r3 = *(u64 *)(r10 - 8); r4 = r1; r4 += r3; \
         r0 = *(u8 *)(r4 + 0); *(u64 *)(r10 - 8) = 0; r6 += 1; if r6 < 4 goto -7; exit",
        "r0 = 0; if r2 == 0 goto +9; *(u64 *)(r10 - 8) = 0; r6 = 0; r3 = *(u64 *)(r10 - 8); r4 = r1; r4 += r3; \
         r0 = *(u8 *)(r4 + 0); *(u64 *)(r10 - 8) = 9000; r6 += 1; if r6 < 4 goto -7; exit",
    ),
    (
        Fault::RanksUncompared,
        "r3 = 0; r3 += 1; if r3 < 10 goto -2; r0 = 0; exit",
        "r3 = 0; r3 += 0; if r3 < 10 goto -2; r0 = 0; exit",
    ),
    (
        Fault::BranchDropsSide,
        "r0 = 0; if r2 != 0 goto +1; exit; r0 = *(u8 *)(r1 + 0); exit",
        "r0 = 0; if r2 != 0 goto +1; exit; r0 = *(u8 *)(r1 + 5); exit",
    ),
    // The byte is 255 where its sum with a bit is 256.
    (
        Fault::BoundTooTight,
        "r0 = 0; if r2 < 2 goto +7; r3 = *(u8 *)(r1 + 0); r4 = *(u8 *)(r1 + 1); r4 &= 1; r5 = r3; r5 += r4; \
         if r5 < 256 goto +1; r0 = *(u8 *)(r1 + 1); exit",
        "r0 = 0; if r2 < 2 goto +7; r3 = *(u8 *)(r1 + 0); r4 = *(u8 *)(r1 + 1); r4 &= 1; r5 = r3; r5 += r4; \
         if r5 < 256 goto +1; r0 = *(u8 *)(r1 + 9000); exit",
    ),
    (
        Fault::OrderIsStrict,
        "r0 = 0; r3 = 8; if r2 >= r3 goto +1; exit; r0 = *(u8 *)(r1 + 7); exit",
        "r0 = 0; r3 = 8; if r2 >= r3 goto +1; exit; r0 = *(u8 *)(r1 + 8); exit",
    ),
    (
        Fault::SizeUncounted,
        "r0 = 0; if r2 < 8 goto +1; r0 = *(u64 *)(r1 + 0); exit",
        "r0 = 0; if r2 < 8 goto +1; r0 = *(u64 *)(r1 + 7); exit",
    ),
    // A byte that is written at a variable place of a slot.
    (
        Fault::StoreKeepsSlots,
        "r0 = 0; if r2 == 0 goto +9; *(u64 *)(r10 - 8) = 0; r3 = *(u8 *)(r1 + 0); r3 &= 7; r4 = r10; r4 += r3; \
         *(u8 *)(r4 - 16) = 200; r5 = *(u64 *)(r10 - 8); r1 += r5; r0 = *(u8 *)(r1 + 0); exit",
        "r0 = 0; if r2 == 0 goto +9; *(u64 *)(r10 - 8) = 0; r3 = *(u8 *)(r1 + 0); r3 &= 7; r4 = r10; r4 += r3; \
         *(u8 *)(r4 - 8) = 200; r5 = *(u64 *)(r10 - 8); r1 += r5; r0 = *(u8 *)(r1 + 0); exit",
    ),
    // An atomic at a variable place of the stack.
    (
        Fault::AtomicUnaligned,
        "r0 = 0; if r2 == 0 goto +8; *(u64 *)(r10 - 8) = 0; *(u64 *)(r10 - 16) = 0; r3 = *(u8 *)(r1 + 0); r3 &= 12; \
         r4 = r10; r4 += r3; r5 = 1; lock *(u32 *)(r4 - 16) += r5; exit",
        "r0 = 0; if r2 == 0 goto +8; *(u64 *)(r10 - 8) = 0; *(u64 *)(r10 - 16) = 0; r3 = *(u8 *)(r1 + 0); r3 &= 6; \
         r4 = r10; r4 += r3; r5 = 1; lock *(u32 *)(r4 - 16) += r5; exit",
    ),
    // The remainder by 2 is 1 for some lengths.
    (
        Fault::QuotientTooSmall,
        "r0 = 0; if r2 == 0 goto +7; r3 = r2; r3 >>= 1; r3 <<= 1; r4 = r2; r4 -= r3; r1 += 0; r0 = *(u8 *)(r1 + 0); exit",
        "r0 = 0; if r2 == 0 goto +7; r3 = r2; r3 >>= 1; r3 <<= 1; r4 = r2; r4 -= r3; r1 += r4; r0 = *(u8 *)(r1 + 0); exit",
    ),
];

fn program(text: &str) -> Program {
    common::program(&format!(";raw\n{}", text.replace("; ", "\n")))
}

#[test]
fn each_fault_of_the_core_lets_an_unsafe_twin_be_proven_and_its_runs_show_it() {
    let mut wrong = Vec::new();
    assert!(FOUND.starts_with(&CASES.map(|(fault, ..)| fault)));
    for (fault, safe, twin) in CASES {
        let (safe, twin) = (program(safe), program(twin));
        common::with_env(";raw", |env| {
            let certificate = certify_within(&safe, env, FUEL);
            let Ok(certificate) = certificate else {
                return wrong.push(format!("{fault:?}: the safe program is not proven: {certificate:?}\n{safe}"));
            };
            let proven = || {
                let found = certify_within(&twin, env, FUEL).ok();
                facts(&twin, env, &certificate).or_else(|| facts(&twin, env, &found?))
            };
            if proven().is_some() {
                return wrong.push(format!("{fault:?}: the twin is proven without the fault\n{twin}"));
            }
            plant(Some(fault));
            let under = proven();
            plant(None);
            match under.map(|facts| watched::violation(&twin, env, &facts, 100)) {
                None => wrong.push(format!("{fault:?} changes nothing\n{twin}")),
                // A run that does not end does nothing unsafe.
                Some(None) if fault == Fault::RanksUncompared => {}
                Some(None) => wrong.push(format!("{fault:?} does no harm\n{twin}")),
                Some(Some(_)) => {}
            }
        });
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_split_of_which_one_case_is_dropped_lets_an_unsafe_program_be_proven() {
    let unchecked = program("r0 = *(u8 *)(r1 + 0); exit");
    let split = || SplitOnce(bpf_verifier_core::Form::sum([(bpf_verifier_core::Name(0), 1)], -1));
    common::with_env(";raw", |env| {
        let proven = || bpf_verifier_core::check(&unchecked, env, &[], &mut split(), FUEL).ok();
        assert!(proven().is_none());
        plant(Some(Fault::SplitDropsCase));
        let under = proven();
        plant(None);
        assert!(watched::violation(&unchecked, env, &under.expect("one case only"), 100).is_some());
    });
}
