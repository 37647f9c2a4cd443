//! The operations of one word are those of `u64`, in the solver.
//!
//! All other code under proof is the code that runs, while the meaning of `+` or of a shift on terms is written for the
//! proofs, and depends on the solver. Approach: each method of `Word` and `Signed`, as a function of two words, is made
//! of two unknown ones, and for each pair of sample numbers (the ends of the number line, single bits, runs, and some
//! between) it is proven that the unknown result of these two is what `u64` computes.

use crate::obligation::{Obligation, proof};
use crate::paths::word::U;
use crate::paths::{any, assume, require};
use crate::term::{Op, Term};
use bpf_isa::word::{Signed, Wide, Word};

/// Sample numbers, all pairs of which are compared.
const SAMPLES: [u64; 16] = [
    0,
    1,
    2,
    3,
    7,
    31,
    63,
    64,
    0x80,
    0xffff_ffff,
    0x1_0000_0000,
    0x0123_4567_89ab_cdef,
    i64::MAX as u64,
    i64::MIN as u64,
    u64::MAX - 1,
    u64::MAX,
];

/// A function of two words, in the solver and on a machine.
type OnBoth<A, B> = (fn(U, U) -> A, fn(u64, u64) -> B);

macro_rules! operations {
    ($($name:literal if $at:expr => $of:expr;)*) => {
        vec![$(agrees(concat!("u64's ", $name), ($at, $at), ($of, $of))),*]
    };
}

/// Obligation that the generic functions agree on terms and on `u64`: where the operation is defined, and its result.
fn agrees(name: &str, at: OnBoth<bool, bool>, of: OnBoth<U, u64>) -> Obligation {
    proof(name, move || {
        let (a, b) = (any(), any());
        assume(|| at.0(a, b));
        let result = of.0(a, b).term();
        let is = |term: Term, value: u64| Term::op(Op::Eq, term, Term::constant(64, value.into()));
        for (x, y) in SAMPLES.into_iter().flat_map(|x| SAMPLES.map(|y| (x, y))).filter(|(x, y)| at.1(*x, *y)) {
            let here = is(a.term(), x).and(is(b.term(), y));
            require(here.implies(is(result, of.1(x, y))), "it computes the same");
        }
    })
}

fn option<T: Word>(of: Option<T>) -> T {
    of.map_or(T::of(0x5555), |of| of.wrapping_add(T::ONE))
}

fn signed_option<T: Signed>(of: Option<T>) -> T::Unsigned {
    option(of.map(Signed::unsigned))
}

/// Returns all obligations of this module.
pub(crate) fn obligations() -> Vec<Obligation> {
    operations! {
        "and" if |_, _| true => |a, b| a & b;
        "or" if |_, _| true => |a, b| a | b;
        "exclusive or" if |_, _| true => |a, b| a ^ b;
        "not" if |_, _| true => |a, _| !a;
        "sum" if |a, b| Word::checked_add(a, b).is_some() => |a, b| a + b;
        "difference" if |a, b| b <= a => |a, b| a - b;
        "shift to the left" if |_, count| count < Word::of(64) => |a, b| a << b;
        "shift to the right" if |_, count| count < Word::of(64) => |a, b| a >> b;
        "wrapping sum" if |_, _| true => |a, b| Word::wrapping_add(a, b);
        "wrapping difference" if |_, _| true => |a, b| Word::wrapping_sub(a, b);
        "wrapping product" if |_, _| true => |a, b| Word::wrapping_mul(a, b);
        "checked sum" if |_, _| true => |a, b| option(Word::checked_add(a, b));
        "checked difference" if |_, _| true => |a, b| option(Word::checked_sub(a, b));
        "quotient" if |_, by| by != Word::of(0) => |a, b| option(Word::checked_div(a, b));
        "remainder" if |_, by| by != Word::of(0) => |a, b| option(Word::checked_rem(a, b));
        "lesser" if |_, _| true => |a, b| Word::min(a, b);
        "greater" if |_, _| true => |a, b| Word::max(a, b);
        "comparison" if |_, _| true => |a, b| Word::one_if(|| a < b);
        "equality" if |_, _| true => |a, b| Word::one_if(|| a == b);
        "count of ones" if |_, _| true => |a, _| Word::count_ones(a);
        "count of zeros" if |_, _| true => |a, _| Word::trailing_zeros(a);
        "swap of bytes" if |_, _| true => |a, _| Word::swap_bytes(a);
        "fill" if |_, _| true => |a, _| a.fill();
        "power of two" if |_, _| true => |a, _| Word::one_if(|| Word::is_power_of_two(a));
        "signed shift" if |_, count| count < Word::of(64) => |a, b| (a.signed() >> b).unsigned();
        "signed sum" if |a, b| Signed::checked_add(a.signed(), b.signed()).is_some() => |a, b| (a.signed() + b.signed()).unsigned();
        "signed difference" if |a, b| Signed::checked_sub(a.signed(), b.signed()).is_some() => |a, b| (a.signed() - b.signed()).unsigned();
        "signed quotient" if |a, b| b != Word::of(0) && (b != Word::of(u64::MAX) || a != Word::of(1 << 63)) => |a, b| Signed::wrapping_div(a.signed(), b.signed()).unsigned();
        "signed remainder" if |a, b| b != Word::of(0) && (b != Word::of(u64::MAX) || a != Word::of(1 << 63)) => |a, b| Signed::wrapping_rem(a.signed(), b.signed()).unsigned();
        "checked signed sum" if |_, _| true => |a, b| signed_option(Signed::checked_add(a.signed(), b.signed()));
        "checked signed difference" if |_, _| true => |a, b| signed_option(Signed::checked_sub(a.signed(), b.signed()));
        "signed lesser" if |_, _| true => |a, b| Signed::min(a.signed(), b.signed()).unsigned();
        "signed greater" if |_, _| true => |a, b| Signed::max(a.signed(), b.signed()).unsigned();
        "signed comparison" if |_, _| true => |a, b| Word::one_if(|| a.signed() < b.signed());
        "sign" if |_, _| true => |a, _| Signed::signum(a.signed()).unsigned();
        "absolute value" if |_, _| true => |a, _| Signed::unsigned_abs(a.signed());
        "high half of a product" if |_, _| true => |a, b| (a.wide().wrapping_mul(b.wide()) >> 64).low();
        "high half of a signed product" if |_, _| true => |a, b| (a.signed().wide().wrapping_mul(b.signed().wide()) >> 64).low();
    }
}

/// A shift that is taken for one of signed numbers, as the solver has it.
pub(crate) fn wrong() -> Obligation {
    agrees(
        "u64's shift, of signed ones",
        (|_, count| count < Word::of(64), |_, count| count < Word::of(64)),
        (|a, b| (a.signed() >> b).unsigned(), |a, b| a >> b),
    )
}
