//! Obligations of the verifier's rules about products and distances, and of its needs for lengths.
//!
//! Products and distances are of integers: a name stands for one that is not negative and below 2^81, as the walk holds
//! it (`BEYOND`; most are numbers of 64 bits), a constant for whatever a bound or an offset may be. Before the walk
//! gives a name, it proves that the name stands for the integer itself, not for its remainder modulo 2^64; for the
//! distance of two pointers, this is proven here too, in bit-vector arithmetic.

use crate::obligation::{Obligation, proof};
use crate::paths::integer::Z;
use crate::paths::word::{S, U};
use crate::paths::{any, any_integer, assume, claim};
use bpf_isa::word::{Signed, Word};
use bpf_verifier::proof::{self as rules, Integer, Length, Place, Since};

/// One between the two.
fn between(least: i128, most: i128) -> Z {
    let x = any_integer();
    assume(|| Z::Const(least) <= x && x <= Z::Const(most));
    x
}

/// Any number that a name may stand for.
pub(crate) fn named() -> Z {
    between(0, rules::BEYOND)
}

/// A bound of a name, as it may be known.
fn bound() -> Z {
    between(i64::MIN.into(), rules::BEYOND)
}

/// A way each.
fn either() -> bool {
    any_integer() < Z::Const(0)
}

fn sum(parts: &[(Z, Z)]) -> Z {
    parts.iter().fold(Z::Const(0), |sum, (times, of)| sum.and(times.by(*of)))
}

fn products(all: &mut Vec<Obligation>) {
    all.push(proof("a product by the least of a factor", || {
        let (a, b, least) = (named(), named(), bound());
        assume(|| least <= a);
        let [of_p, of_b] = rules::product_at_least(least);
        claim("it is no less", || sum(&[(of_p, a.by(b)), (of_b, b)]) <= Z::Const(0));
    }));
    all.push(proof("a product by the most of a factor", || {
        let (a, b, most) = (named(), named(), bound());
        assume(|| a <= most);
        let [of_p, of_b] = rules::product_at_most(most);
        claim("it is no more", || sum(&[(of_p, a.by(b)), (of_b, b)]) <= Z::Const(0));
    }));
    all.push(proof("a product beside another with the same factor", || {
        let (a, b, c, gap) = (named(), named(), named(), between(i64::MIN.into(), i64::MAX.into()));
        assume(|| a.and(gap) <= c);
        let [of_p, of_b, of_q] = rules::product_beside(gap);
        claim("it is as far below it", || sum(&[(of_p, a.by(b)), (of_b, b), (of_q, c.by(b))]) <= Z::Const(0));
    }));
    all.push(proof("the ends of a product", || {
        let (a, b, min, max, least, most) = (named(), named(), bound(), bound(), bound(), bound());
        let product = a.by(b);
        // The named product is a 64-bit number.
        assume(|| min <= a && a <= max && product <= Z::of(u64::MAX));
        let least = either().then_some(least);
        let most = either().then_some(most);
        assume(|| least.is_none_or(|least| least <= b) && most.is_none_or(|most| b <= most));
        let (from, to) = rules::product_range((min, max), least, most);
        claim("it is no less", || from <= product);
        claim("it is no more", || product <= to);
    }));
    all.push(proof("a product that fits", || {
        let (a, b, most_a, most_b) = (named(), named(), named(), named());
        assume(|| a <= most_a && b <= most_b);
        if rules::product_fits(most_a, most_b) {
            claim("it does", || a.by(b) <= Z::from(i64::MAX));
        }
    }));
    all.push(proof("a product of numbers at a distance from their names", || {
        let (a, b) = (named(), named());
        let (x, y) = (between(1, i16::MAX.into()), between(1, i16::MAX.into()));
        let apart = between(i32::MIN.into(), i32::MAX.into());
        if let Some((of_p, of_b)) = rules::product_of_line((x, apart), y) {
            let whole = x.by(a).and(apart).by(y.by(b));
            claim("it is that of the names, and a multiple", || sum(&[(of_p, a.by(b)), (of_b, b)]) == whole);
        }
    }));
}

fn lines(all: &mut Vec<Obligation>) {
    all.push(proof("what a line begins with is a number", || {
        let (v, most) = (named(), between(0, u64::MAX.into()));
        let (scale, delta) = (between(1, i16::MAX.into()), between(i32::MIN.into(), i32::MAX.into()));
        let at = scale.by(v).and(delta);
        assume(|| Z::Const(0) <= at && at <= most);
        if rules::line_fits(scale, delta, most) {
            claim("it is", || v <= Z::of(u64::MAX));
        }
    }));
}

fn sums(all: &mut Vec<Obligation>) {
    all.push(proof("what a sum is at least", || {
        let (a, b, least_a, least_b) = (named(), named(), named(), named());
        let (scale, delta) = (between(1, i64::MAX.into()), between(i64::MIN.into(), i64::MAX.into()));
        assume(|| least_a <= a && least_b <= b);
        if let Some(least) = rules::sum_at_least(least_a, (scale, least_b), delta) {
            claim("it is no less", || least <= a.and(scale.by(b)).and(delta));
        }
    }));
}

/// Where a row is, by its name, that began at `times * V(start) + delta` and has moved by `scale * V(by)` in so many
/// rounds: how far is the product of the two.
fn row<const N: usize>(rounds: [Z; N], by: Z, start: Z, [times, scale, delta]: [Z; 3]) -> Option<[Z; N]> {
    let [of_start, of_p, multiple] = rules::row_sum(times, scale)?;
    Some(rounds.map(|k| multiple.by(of_start.by(start).and(of_p.by(k.by(by)))).and(delta)))
}

/// The induction of `guess/rows.rs`. The premise that the value which comes back is one row length further is checked
/// there, with all facts of the state.
fn rows(all: &mut Vec<Obligation>) {
    let times = || between(1, i16::MAX.into());
    let began = move || [times(), times(), between(i32::MIN.into(), i32::MAX.into())];
    all.push(proof("a row, when the loop begins", move || {
        let (by, start, began) = (named(), named(), began());
        if let Some([at]) = row([Z::Const(0)], by, start, began) {
            let [times, _, delta] = began;
            claim("it is where it begins", || at == times.by(start).and(delta));
        }
    }));
    all.push(proof("a row, one round later", move || {
        let (k, by, start, began) = (named(), named(), named(), began());
        if let Some([at, later]) = row([k, k.and(Z::Const(1))], by, start, began) {
            claim("it is a length further", || later == at.and(began[1].by(by)));
        }
    }));
    all.push(proof("the product of a row", move || {
        let (p, start, [times, scale, delta]) = (named(), named(), began());
        let began = times.by(start).and(delta);
        let at = began.and(scale.by(p));
        // A number, or an offset.
        match either() {
            true => assume(|| Z::Const(0) <= began && at <= Z::of(u64::MAX)),
            false => assume(|| Z::from(i64::MIN) <= began && at <= Z::from(i64::MAX)),
        }
        claim("it is a number", || p <= Z::of(u64::MAX));
    }));
}

/// A pointer, and its offset as an integer.
fn pointer(v: Z) -> (Place<Z>, Z) {
    let delta = between(i32::MIN.into(), i32::MAX.into());
    if either() {
        return (Place::At(delta), delta);
    }
    let scale = between(i16::MIN.into(), i16::MAX.into());
    (Place::Moves { scale, delta }, scale.by(v).and(delta))
}

fn distances(all: &mut Vec<Obligation>) {
    all.push(proof("the distance of two pointers, of which one moves", || {
        let v = named();
        let ((d, at), (s, from)) = (pointer(v), pointer(v));
        if let Some((scale, delta)) = rules::distance(d, s) {
            claim("it is what it is named", || scale.by(v).and(delta) == at.less(from));
        }
    }));
    all.push(proof("the distance of two addresses", || {
        let (base, d, s): (U, S, S) = (any(), any().signed(), any().signed());
        let (least, most) = (S::LEAST[32], S::MOST[32]);
        assume(|| least <= d && d <= most && least <= s && s <= most);
        let at = |offset: S| base.wrapping_add(offset.unsigned());
        let distance = at(d).wrapping_sub(at(s)).signed();
        claim("it is that of the offsets", || distance == d - s);
    }));
}

impl Length for U {
    const NONE: U = U::Const(0);
    const ALL: U = U::Const(u16::MAX as u64);
}

/// Bytes of a region.
pub(crate) fn length() -> U {
    let bytes = any();
    assume(|| bytes <= U::ALL);
    bytes
}

fn lengths(all: &mut Vec<Obligation>) {
    let path = || Since { asked: length(), learnt: length() };
    all.push(proof("a length that is asked for at the end of a path", move || {
        let (path, bytes, after) = (path(), length(), length());
        let asked = Since { asked: bytes, learnt: U::NONE };
        claim("it is the one and then the other", || path.ask(bytes).before(after) == path.before(asked.before(after)));
    }));
    all.push(proof("a length that is learnt at the end of a path", move || {
        let (path, bytes, after) = (path(), length(), length());
        let learnt = Since { asked: U::NONE, learnt: bytes };
        claim("it is the one and then the other", || {
            path.learn(bytes).before(after) == path.before(learnt.before(after))
        });
    }));
    all.push(proof("a length that is needed twice", move || {
        let (path, after) = (path(), length());
        let once = path.before(after);
        claim("it is needed once", || path.before(once) == once);
    }));
    // A state that knows less, but at least what is needed or was known, behaves as the other state did.
    all.push(proof("a length that is kept, where it is asked for", || {
        let (least, other, bytes, after) = (any(), any(), length(), length());
        let kept = rules::kept_length(least, Since { asked: bytes, learnt: U::NONE }.before(after));
        assume(|| bytes <= least && kept <= other);
        claim("there are so many bytes", || bytes <= other);
        claim("what is needed afterwards is kept", || rules::kept_length(least, after) <= other);
    }));
    all.push(proof("a length that is kept, where more is learnt", || {
        let (least, other, bytes, after) = (any(), any(), length(), length());
        let kept = rules::kept_length(least, Since { asked: U::NONE, learnt: bytes }.before(after));
        assume(|| kept <= other);
        let (least, other) = (Word::max(least, bytes), Word::max(other, bytes));
        claim("what is needed afterwards is kept", || rules::kept_length(least, after) <= other);
    }));
}

/// Returns all obligations of this module.
pub(crate) fn obligations() -> Vec<Obligation> {
    let mut all = Vec::new();
    products(&mut all);
    lines(&mut all);
    sums(&mut all);
    rows(&mut all);
    distances(&mut all);
    lengths(&mut all);
    all
}
