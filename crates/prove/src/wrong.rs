//! Rules that are wrong: a prover that refutes none of them proves nothing.
//!
//! Each is a rule that somebody could write, wrong for a few numbers of 2^64. They are looked at in every run. The
//! bugs of the verifier's `faults` that concern numbers are planted in its own code, with `--faults`.

use crate::obligation::{Obligation, proof};
use crate::paths::word::U;
use crate::paths::{any, any_set, any_with, assume, claim};
use bpf_isa::word::{Numbers, Signed, Word};
use bpf_verifier::{Interval, Tnum};

type Bits = Tnum<64, U>;
type Range = Interval<64, U>;

/// All of them.
pub(crate) fn obligations() -> Vec<Obligation> {
    vec![
        proof("a sum of bits without its carries", || {
            let (x, y) = (any(), any());
            let (a, b): (Bits, Bits) = (any_with(x), any_with(y));
            let sum = Bits::new(a.value().wrapping_add(b.value()), a.mask() | b.mask());
            claim("the result is in the set", || sum.holds(x.wrapping_add(y)));
        }),
        proof("a sum of ranges that may wrap", || {
            let (x, y) = (any(), any());
            let (a, b): (Range, Range) = (any_with(x), any_with(y));
            let sum = Range::unsigned(a.umin.wrapping_add(b.umin), a.umax.wrapping_add(b.umax));
            claim("the result is in the set", || sum.holds(x.wrapping_add(y)));
        }),
        proof("signed bounds of an unsigned range that crosses the sign", || {
            let x = any();
            let a: Range = any_with(x);
            let signed = Range::signed(a.umin.signed(), a.umax.signed());
            claim("the result is in the set", || signed.holds(x));
        }),
        proof("a comparison that leaves one less", || {
            let (x, y) = (any(), any());
            let (a, mut b): (Range, Range) = (any_with(x), any_with(y));
            assume(|| x <= y);
            b.umin = b.umin.max(a.umin.wrapping_add(U::ONE));
            claim("the number is in the set", || b.holds(y));
        }),
        proof("the bits of either, of one", || {
            let x = any();
            let (a, b): (Bits, Bits) = (any_with(x), any_set());
            let either = Bits::new(b.value(), a.mask() | b.mask());
            claim("the number is in the set", || either.holds(x));
        }),
        proof("a bound that overflows", || {
            let x = any();
            let a: Range = any_with(x);
            let _ = a.umax + U::ONE;
        }),
        proof("a magnitude that is negative", || {
            let x = any();
            claim("it is not", || x.signed().unsigned_abs() < U::ONE << 63);
        }),
        // What is assumed is no choice: not on the first way, and not on others.
        proof("what is asked beside an assumption", || {
            let (x, y): (U, U) = (any(), any());
            assume(|| x <= y);
            let _small = x < U::of(5);
            let _ordered = x <= y;
            let zero = y == U::ZERO;
            claim("it is so", || zero);
        }),
    ]
}
