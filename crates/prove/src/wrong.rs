//! Rules that are wrong: a prover that refutes none of them proves nothing.
//!
//! Each is a plausible rule that is wrong for a few numbers of 2^64. They are looked at in every run. The bugs of the
//! verifier's `faults` that concern numbers are planted in its own code, with `--faults`.

use crate::equations::{length, named};
use crate::obligation::{Obligation, proof};
use crate::operations;
use crate::paths::integer::Z;
use crate::paths::word::{S, U};
use crate::paths::{any, any_set, any_with, assume, claim};
use bpf_isa::word::{Numbers, Signed, Word};
use bpf_verifier::proof::{Integer, Length, Since};
use bpf_verifier::{Interval, Tnum};

type Bits = Tnum<64, U>;
type Range = Interval<64, U>;

/// Returns all wrong obligations, which must be refuted.
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
        // An assumption is no choice: not on the first way, and not on others.
        proof("what is asked beside an assumption", || {
            let (x, y): (U, U) = (any(), any());
            assume(|| x <= y);
            let _small = x < U::of(5);
            let _ordered = x <= y;
            let zero = y == U::ZERO;
            claim("it is so", || zero);
        }),
        proof("a product that is no less than a factor", || {
            let (a, b) = (named(), named());
            claim("it is not", || a <= a.by(b));
        }),
        proof("a product that is further from another than its factor", || {
            let (a, b, c, gap) = (named(), named(), named(), Z::Const(3));
            assume(|| a.and(gap) <= c);
            claim("it is", || a.by(b).and(gap.by(b)) < c.by(b));
        }),
        // `(a - c) * b` is a number; `a * b` need not be.
        proof("a product of names, where one below it fits", || {
            let (a, b, c) = (named(), named(), named());
            assume(|| c <= a && a.less(c).by(b) <= Z::from(i64::MAX));
            claim("it fits, too", || a.by(b) <= Z::of(u64::MAX));
        }),
        proof("an integer that does not fit", || {
            let x = named();
            let _ = x * x;
        }),
        proof("a distance the other way", || {
            let (d, s) = (named(), named());
            claim("it is as far", || d.less(s) == s.less(d));
        }),
        proof("a distance of any two offsets", || {
            let (d, s) = (any(), any());
            claim("it is not negative, where one is behind the other", || {
                d < s || S::Const(0) <= (d.wrapping_sub(s)).signed()
            });
        }),
        proof("a length that is needed, where it is learnt", || {
            let (learnt, after) = (length(), length());
            claim("no more is needed before", || Since { asked: U::NONE, learnt }.before(after) == U::NONE);
        }),
        operations::wrong(),
    ]
}
