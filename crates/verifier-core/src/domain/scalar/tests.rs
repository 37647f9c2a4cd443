//! Tests of the scalar domain against its definition, exhaustive at small widths. The code under test is the 64-bit
//! code.
//!
//! A family of abstract values covers each component alone and crossings of them; for all pairs of the family and
//! every operator, each concrete result must be in the abstract one.

use bpf_isa::{AluOp, ByteOrder, Cond, Width};

use super::{Num, Scalar, eval};
use crate::domain::interval::Interval;
use crate::domain::tnum::{Tnum, ones};
use bpf_isa::word::Word;

/// γ of an abstract value as a bit set.
type Set = u64;

fn gamma<const W: u32, const H: u32>(n: &Num<W, H>) -> Set {
    (0..1u64 << W).filter(|&x| n.contains(x)).fold(0, |s, x| s | 1 << x)
}

fn elements(s: Set) -> impl Iterator<Item = u64> + Clone {
    (0..64u64).filter(move |x| s >> x & 1 != 0)
}

/// Abstract values with one constrained component each, not synced.
fn raw<const W: u32, const H: u32>() -> Vec<Num<W, H>> {
    let mut v = vec![Num::UNKNOWN];
    for mask in 0..1u64 << W {
        for value in (0..1u64 << W).filter(|v| v & mask == 0) {
            v.push(Num { bits: Tnum::new(value, mask), ..Num::UNKNOWN });
        }
    }
    for min in 0..1u64 << W {
        for max in min..1u64 << W {
            v.push(Num { full: Interval::unsigned(min, max), ..Num::UNKNOWN });
            let half = 1i64 << (W - 1);
            v.push(Num { full: Interval::signed(min as i64 - half, max as i64 - half), ..Num::UNKNOWN });
        }
    }
    for min in 0..1u64 << H {
        for max in min..1u64 << H {
            v.push(Num { low: Interval::unsigned(min, max), ..Num::UNKNOWN });
            let half = 1i64 << (H - 1);
            v.push(Num { low: Interval::signed(min as i64 - half, max as i64 - half), ..Num::UNKNOWN });
        }
    }
    v
}

fn meet<const W: u32, const H: u32>(a: &Num<W, H>, b: &Num<W, H>) -> Option<Num<W, H>> {
    Some(Num { bits: a.bits.intersect(b.bits)?, full: a.full.intersect(b.full), low: a.low.intersect(b.low) })
}

/// Synced values: every single component, and a sample (every `stride`-th) of the meets of two; no duplicates.
fn family<const W: u32, const H: u32>(stride: usize) -> Vec<(Num<W, H>, Set)> {
    let raw = raw::<W, H>();
    let meets = raw.iter().enumerate().flat_map(|(i, a)| raw[i..].iter().filter_map(move |b| meet(a, b)));
    let mut out: Vec<(Num<W, H>, Set)> = Vec::new();
    let mut seen = std::collections::HashSet::new();
    for mut n in raw.iter().copied().chain(meets.step_by(stride)) {
        if n.sync() && seen.insert(n) {
            out.push((n, gamma(&n)));
        }
    }
    out
}

#[test]
fn sync_loses_no_value_and_detects_emptiness() {
    fn check<const W: u32, const H: u32>(stride: usize) {
        let raw = raw::<W, H>();
        let mut k = 0;
        for a in &raw {
            for b in &raw {
                k += 1;
                let Some(m) = meet(a, b) else { continue };
                if k % stride != 0 {
                    continue;
                }
                let before = gamma(&m);
                let mut n = m;
                let nonempty = n.sync();
                assert!(nonempty || before == 0, "{m:?} has values {before:b} but synced to nothing");
                if nonempty {
                    assert_eq!(gamma(&n), before, "{m:?} synced to {n:?}");
                }
            }
        }
    }
    check::<4, 2>(1);
    check::<6, 3>(7);
}

/// The short ways of `sync` against the long one, which is correct for all numbers.
#[test]
fn short_syncs_know_as_much_as_the_long_one() {
    fn check<const W: u32, const H: u32>(stride: usize) {
        let raw = raw::<W, H>();
        let mut small = 0;
        for (k, (a, b)) in raw.iter().flat_map(|a| raw.iter().map(move |b| (a, b))).enumerate() {
            let Some(m) = meet(a, b).filter(|_| k % stride == 0) else { continue };
            // A third component, so that all three take part.
            let c = &raw[k / 7 % raw.len()];
            for m in [Some(m), meet(&m, c)].into_iter().flatten() {
                let (mut short, mut long) = (m, m);
                small += usize::from(!m.bits.is_const() && m.bits.max() <= ones(H));
                match (short.sync(), long.sync_wide()) {
                    (true, true) => assert!(short.subset(&long), "{m:?}: {short:?}, the long way {long:?}"),
                    (short, _) => assert!(!short || gamma(&m) == 0, "{m:?} is empty"),
                }
            }
        }
        assert!(small > 1000, "only {small} took the way of small numbers");
    }
    check::<4, 2>(1);
    check::<6, 3>(3);
}

/// Checks every pair of values against every operator at both widths.
fn check_alu<const W: u32, const H: u32>(left: &[(Num<W, H>, Set)], right: &[(Num<W, H>, Set)]) {
    for op in AluOp::ALL {
        for (width, w) in [(Width::W64, W), (Width::W32, H)] {
            // image[x][y] = x op y
            let image: Vec<Vec<u64>> =
                (0..1u64 << W).map(|x| (0..1u64 << W).map(|y| eval(op, w, x, y)).collect()).collect();
            for (a, xs) in left {
                for (b, ys) in right {
                    let got = a.alu(op, width, b);
                    let want = elements(*xs)
                        .fold(0, |s, x| elements(*ys).fold(s, |s, y| s | 1 << image[x as usize][y as usize]));
                    let missed = elements(want).find(|&r| !got.contains(r));
                    assert_eq!(missed, None, "{op:?} {width:?}: {a:?} , {b:?} -> {got:?}");
                    if xs.count_ones() == 1 && ys.count_ones() == 1 {
                        assert_eq!(got, Num::constant(want.trailing_zeros().into()), "constants fold");
                    }
                }
            }
        }
    }
}

#[test]
fn operators_contain_every_concrete_result() {
    let f = family::<4, 2>(301);
    check_alu(&f, &f);
    // The odd low-half width of 6/3 makes shift counts that do not divide evenly.
    let (l, r) = (family::<6, 3>(6007), family::<6, 3>(9001));
    let thin = |v: Vec<(Num<6, 3>, Set)>, n: usize| v.into_iter().step_by(n).collect::<Vec<_>>();
    check_alu(&thin(l, 41), &thin(r, 43));
}

#[test]
fn unary_operators_contain_every_concrete_result() {
    for (a, xs) in family::<6, 3>(997) {
        for bits in 1..=6 {
            let (t, s) = (a.truncate(bits), a.sign_extend(bits));
            for x in elements(xs) {
                assert!(t.contains(x & ones::<u64>(bits)), "truncate {a:?} to {bits}: {t:?} lacks {x}");
                let want = x.sext(bits) as u64 & ones::<u64>(6);
                assert!(s.contains(want), "sign-extend {a:?} from {bits}: {s:?} lacks {x}");
            }
        }
        let (z, n64, n32) = (a.zext_low(), a.neg(Width::W64), a.neg(Width::W32));
        for x in elements(xs) {
            assert!(z.contains(x & 7));
            assert!(n64.contains(x.wrapping_neg() & 63));
            assert!(n32.contains(x.wrapping_neg() & 7));
        }
        for (b, ys) in [(Num::constant(5), 1 << 5), (Num::unsigned(9, 20), (1 << 21) - (1 << 9))] {
            let j = a.join(&b);
            assert_eq!(gamma(&j) & (xs | ys), xs | ys);
        }
    }
}

#[test]
fn meet_is_the_intersection() {
    let f = family::<4, 2>(101);
    for (a, xs) in &f {
        for (b, ys) in &f {
            match a.meet(b) {
                None => assert_eq!(xs & ys, 0, "{a:?} meets {b:?}"),
                Some(m) => assert_eq!(gamma(&m), xs & ys, "{a:?} meets {b:?} in {m:?}"),
            }
        }
    }
}

#[test]
fn subset_means_subset() {
    let f = family::<4, 2>(101);
    for (a, xs) in &f {
        for (b, ys) in &f {
            if a.subset(b) {
                assert_eq!(xs & !ys, 0, "{a:?} is no subset of {b:?}");
            }
        }
    }
}

fn check_refine<const W: u32, const H: u32>(left: &[(Num<W, H>, Set)], right: &[(Num<W, H>, Set)]) {
    for cond in Cond::ALL {
        for (width, w) in [(Width::W64, W), (Width::W32, H)] {
            let holds = |x: u64, y: u64| {
                // Sign extension preserves both the signed and the unsigned order, so the 64-bit definition applies.
                cond.holds64(x.sext(w) as u64, y.sext(w) as u64)
            };
            for (a, xs) in left {
                for (b, ys) in right {
                    let outcomes = [false, true].map(|taken| Num::refine(cond, width, taken, a, b));
                    for x in elements(*xs) {
                        for y in elements(*ys) {
                            match &outcomes[usize::from(holds(x, y))] {
                                None => panic!("{x} {cond:?} {y} at {width:?} lost: {a:?}, {b:?} is not infeasible"),
                                Some((ra, rb)) => assert!(
                                    ra.contains(x) && rb.contains(y),
                                    "{x} {cond:?} {y} at {width:?} lost: {a:?}, {b:?} -> {ra:?}, {rb:?}"
                                ),
                            }
                        }
                    }
                    for (ra, rb) in outcomes.iter().flatten() {
                        assert!(ra.full.subset(a.full) && rb.full.subset(b.full), "refinement only removes");
                    }
                    if xs.count_ones() == 1 && ys.count_ones() == 1 {
                        assert_eq!(outcomes.iter().flatten().count(), 1, "constants decide: {a:?} {cond:?} {b:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn refinement_keeps_every_pair_that_goes_that_way() {
    let f = family::<4, 2>(701);
    check_refine(&f, &f);
    let (l, r) = (family::<6, 3>(6007), family::<6, 3>(9001));
    let thin = |v: Vec<(Num<6, 3>, Set)>, n: usize| v.into_iter().step_by(n).collect::<Vec<_>>();
    check_refine(&thin(l, 61), &thin(r, 67));
}

#[test]
fn byte_order_conversions_at_full_width() {
    let mut x = 0x0123_4567_89ab_cdefu64;
    for i in 0..2000 {
        x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let mask = x.rotate_left(i % 64) & x.rotate_right(7);
        let a = Scalar::of(Tnum::new(x, mask), Interval::FULL, Interval::FULL);
        let member = x & !mask | (x.rotate_left(23) & mask);
        assert!(a.contains(member));
        for bits in [16, 32, 64] {
            let swapped = member.swap_bytes() >> (64 - bits);
            assert!(a.end(ByteOrder::ToBe, bits).contains(swapped));
            assert!(a.end(ByteOrder::Swap, bits).contains(swapped));
            assert!(a.end(ByteOrder::ToLe, bits).contains(member & ones::<u64>(bits)));
        }
    }
}

/// Idioms of real programs that a less precise domain would refuse.
#[test]
fn common_idioms_stay_precise() {
    let any = Scalar::UNKNOWN;
    let masked = any.alu(AluOp::And, Width::W64, &Scalar::constant(15));
    assert_eq!((masked.umin(), masked.umax()), (0, 15));
    let scaled = masked.alu(AluOp::Lsh, Width::W64, &Scalar::constant(2));
    assert_eq!((scaled.umin(), scaled.umax()), (0, 60));
    let sum = scaled.alu(AluOp::Add, Width::W64, &Scalar::constant(14));
    assert_eq!((sum.umin(), sum.umax()), (14, 74));
    let modulo = any.alu(AluOp::Mod, Width::W32, &Scalar::constant(10));
    assert_eq!((modulo.umin(), modulo.umax()), (0, 9));
    let byte = any.alu(AluOp::Rsh, Width::W64, &Scalar::constant(56));
    assert_eq!((byte.umin(), byte.umax()), (0, 255));
    // 32-bit bounds of a zero-extended value are bounds of the whole.
    let (low, _) = Scalar::refine(Cond::Lt, Width::W32, true, &any.zext_low(), &Scalar::constant(8)).expect("feasible");
    assert_eq!((low.umin(), low.umax()), (0, 7));
    // A signed lower and upper bound make an unsigned range.
    let (a, _) = Scalar::refine(Cond::SGe, Width::W64, true, &any, &Scalar::constant(0)).expect("feasible");
    let (a, _) = Scalar::refine(Cond::SLt, Width::W64, true, &a, &Scalar::constant(100)).expect("feasible");
    assert_eq!((a.umin(), a.umax()), (0, 99));
}
