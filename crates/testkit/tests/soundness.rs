//! Programs at the border of every rule of the verifier run as it promised: a short run; `examples/soundness.rs` is the
//! long one.

use bpf_testkit::generate::Choices;
use bpf_testkit::soundness::{self, Context, Oracle, Tally};

#[test]
fn accepted_programs_run_as_promised_on_all_engines() {
    let mut oracle = Oracle::new();
    let mut tally = Tally::default();
    let mut by_context = [0u32; 3];
    for seed in 0..4000 {
        let mut choices = Choices::from_seed(seed);
        let generated = soundness::generate(&mut choices);
        let outcome = oracle.check(&generated, 2, &mut choices);
        let before = tally.accepted;
        if let Err(what) = tally.count(&generated, outcome) {
            panic!("seed {seed}: {what}");
        }
        by_context[match generated.context {
            Context::Raw => 0,
            Context::Xdp => 1,
            Context::Skb => 2,
        }] += u32::from(tally.accepted > before);
    }
    // Both sides of the border are visited, and what is right in itself is accepted, mostly.
    let refused: u64 = tally.refused.values().sum();
    assert!(tally.accepted > 2800 && refused > 400 && tally.steps > 500_000, "{tally}");
    assert!(tally.refused_without_lure < 250, "{tally}");
    assert!(by_context.iter().all(|n| *n > 500), "{by_context:?}");
    // Each of the rules that lures are about refuses some.
    for reason in [
        "Bounds",
        "StackBounds",
        "PacketBounds",
        "StackUninit",
        "MaybeNull",
        "PointerOp",
        "LockHeld",
        "Owed",
        "OffsetUnbounded",
        "ArgMem",
        "ReadOnly",
        "Unaligned",
        "InfiniteLoop",
    ] {
        assert!(tally.refused.contains_key(reason), "{reason} is never the reason: {tally}");
    }
}
