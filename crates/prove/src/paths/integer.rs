//! Integers that are terms: the verifier's code about products and distances runs on them as on `i128`.
//!
//! These integers are unbounded, and `i128` is not: each step requires that its result fits `i128`, since the code
//! under proof would panic otherwise. For products, [`Integer::times`] checks this instead.

use crate::paths::{any_integer, decide, require};
use crate::term::{INTEGER, Op, Term};
use bpf_verifier::proof::Integer;
use std::cmp::Ordering;
use std::ops::{Add, Mul, Neg, Sub};

/// An integer: a constant is kept as a number, as it may be older than the table of terms.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Z {
    Const(i128),
    Of(Term),
}

impl Z {
    pub(crate) fn of_term(term: Term) -> Z {
        term.known().map_or(Z::Of(term), |value| Z::Const(value.cast_signed()))
    }

    fn term(self) -> Term {
        match self {
            Z::Const(value) => Term::constant(INTEGER, value.cast_unsigned()),
            Z::Of(term) => term,
        }
    }

    fn op(op: Op, a: Z, b: Z) -> Z {
        Z::of_term(Term::op(op, a.term(), b.term()))
    }

    /// Whether it fits `i128`.
    fn fits(self) -> Term {
        let at_most = |a: Z, b: Z| Term::op(Op::Sle, a.term(), b.term());
        at_most(Z::Const(i128::MIN), self).and(at_most(self, Z::Const(i128::MAX)))
    }

    fn fitting(self) -> Z {
        require(self.fits(), "an overflow");
        self
    }

    /// The unbounded product, for claims; code under proof uses the operators.
    pub(crate) fn by(self, other: Z) -> Z {
        Z::op(Op::Mul, self, other)
    }

    /// The sum, likewise.
    pub(crate) fn and(self, other: Z) -> Z {
        Z::op(Op::Add, self, other)
    }

    /// The difference, likewise.
    pub(crate) fn less(self, other: Z) -> Z {
        Z::op(Op::Sub, self, other)
    }
}

impl From<i64> for Z {
    fn from(value: i64) -> Z {
        Z::Const(value.into())
    }
}

impl PartialEq for Z {
    fn eq(&self, other: &Z) -> bool {
        decide(Term::op(Op::Eq, self.term(), other.term()))
    }
}

impl PartialOrd for Z {
    fn partial_cmp(&self, other: &Z) -> Option<Ordering> {
        Some(match () {
            () if self == other => Ordering::Equal,
            () if self < other => Ordering::Less,
            () => Ordering::Greater,
        })
    }
    fn lt(&self, other: &Z) -> bool {
        decide(Term::op(Op::Slt, self.term(), other.term()))
    }
    fn le(&self, other: &Z) -> bool {
        decide(Term::op(Op::Sle, self.term(), other.term()))
    }
    fn gt(&self, other: &Z) -> bool {
        other < self
    }
    fn ge(&self, other: &Z) -> bool {
        other <= self
    }
}

impl Add for Z {
    type Output = Z;
    fn add(self, other: Z) -> Z {
        self.and(other).fitting()
    }
}

impl Sub for Z {
    type Output = Z;
    fn sub(self, other: Z) -> Z {
        self.less(other).fitting()
    }
}

impl Mul for Z {
    type Output = Z;
    fn mul(self, other: Z) -> Z {
        self.by(other).fitting()
    }
}

impl Neg for Z {
    type Output = Z;
    fn neg(self) -> Z {
        Z::Const(0).less(self).fitting()
    }
}

impl Integer for Z {
    fn of(value: u64) -> Z {
        Z::Const(value.into())
    }
    fn times(self, other: Z) -> Option<Z> {
        let product = self.by(other);
        decide(product.fits()).then_some(product)
    }
    // Chooses an arbitrary integer. If it is the quotient, returns it; on the other path, the code learns only that it
    // is not.
    fn over(self, other: Z) -> Option<Z> {
        let quotient = any_integer();
        (self == quotient.by(other)).then_some(quotient)
    }
}
