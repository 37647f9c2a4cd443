//! Our verdicts beside the kernel's, where bpf(2) is permitted: a short run; `examples/kernel_diff.rs` is the long one.

use crate::kernel_compare as compare;

/// Why the kernel refuses programs that are safe and accepted here (docs/book/explanation/verifier.md explains each).
/// Any other reason fails the test.
const KERNEL_IS_STRICTER: [&str; 11] = [
    // Loads and stores on the stack must be aligned there.
    "misaligned stack access",
    // A stack pointer may not be moved down by a number.
    "subtraction from stack pointer prohibited",
    // The kernel forgets what a remainder, a signed division or a shift by a register says of the result.
    "register with unbounded min value is not allowed",
    "pointer and N is not allowed",
    "pointer be out of bounds",
    "max value is outside of the allowed memory range",
    "min value is negative, either use unsigned index",
    "min value is outside of the allowed memory range",
    "unbounded memory access",
    "invalid unbounded variable-offset",
    "invalid variable-offset",
];

#[test]
fn the_kernel_refuses_what_we_accept_only_for_known_reasons() {
    if let Err(e) = bpf_testkit::kernel::available() {
        bpf_testkit::skipped("comparison with the kernel's verifier", &e);
        return;
    }
    let tally = compare::compare(0..300).expect("the kernel makes a map");
    let news: Vec<_> =
        tally.only_ours.iter().filter(|(why, _)| !KERNEL_IS_STRICTER.iter().any(|known| why.contains(known))).collect();
    assert!(news.is_empty(), "accepted here, refused by the kernel: {news:#?}");
    assert!(tally.both_accept > 10 && tally.both_refuse > 10, "{tally:#?}");
}
