//! Products and quotients, which the solver cannot decide, are tried.
//!
//! Every range and every tnum of few bits, with every number in them; and random ones of 64 bits, mostly near the
//! ends of the number line. It is the verifier's code at another width, not a model of it.

use crate::domain::is_hard;
use crate::obligation::{Obligation, tried};
use bpf_isa::AluOp;
use bpf_isa::word::{Numbers, Word};
use bpf_verifier::{Interval, Tnum, eval, proof as steps};

/// Sets with the numbers in them.
type Family<A> = Vec<(A, Vec<u64>)>;

fn with_members<A: Numbers<u64>>(sets: impl Iterator<Item = A>) -> Family<A> {
    sets.map(|set| (set, (0..1 << A::BITS).filter(|x| set.holds(*x)).collect())).collect()
}

fn ranges<const W: u32>() -> Family<Interval<W>> {
    let full = Interval::<W>::FULL;
    let pairs = move |of: fn(u64, u64) -> Interval<W>| {
        (0..1u64 << W).flat_map(move |min| (min..1 << W).map(move |max| of(min, max)))
    };
    let signed = move |min: u64, max: u64| {
        let least = Interval::<W>::FULL.smin;
        Interval::signed(least + min as i64, least + max as i64)
    };
    // One view at a time: no operation of these looks at both.
    let both = pairs(Interval::unsigned).chain(pairs(signed));
    with_members(both.filter(move |range| *range != full).chain([full]))
}

fn tnums<const W: u32>() -> Family<Tnum<W>> {
    let masks = 0..1u64 << W;
    with_members(masks.flat_map(|mask| (0..1u64 << W).filter(move |v| v & mask == 0).map(move |v| Tnum::new(v, mask))))
}

/// All of these sets with all of them.
fn all_pairs<A: Numbers<u64> + std::fmt::Debug>(
    op: AluOp,
    sets: &Family<A>,
    f: fn(AluOp, A, A, (u64, u64)) -> A,
) -> Result<u64, String> {
    let mut tried = 0;
    let size = 1usize << A::BITS;
    let results: Vec<u64> = (0..size * size).map(|i| eval(op, A::BITS, (i / size) as u64, (i % size) as u64)).collect();
    for (a, xs) in sets {
        for (b, ys) in sets {
            let set = f(op, *a, *b, (0, 0));
            if !set.well_formed() {
                return Err(format!("{a:?} {op:?} {b:?}: {set:?} is not well-formed"));
            }
            // One bit a number that the result holds.
            let held = (0..size as u64).filter(|r| set.holds(*r)).fold(0u64, |held, r| held | 1 << r);
            for x in xs {
                for y in ys {
                    let result = results[*x as usize * size + *y as usize];
                    if held >> result & 1 == 0 {
                        return Err(format!("{x} {op:?} {y} is {result}: {a:?}, {b:?} give {set:?}"));
                    }
                }
            }
            tried += (xs.len() * ys.len()) as u64;
        }
    }
    Ok(tried)
}

/// Numbers that are wrong first: near ends and powers of two; a third are any.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 ^ self.0 >> 29).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    fn number<const W: u32>(&mut self) -> u64 {
        let (kind, place, near) = (self.next() >> 60, self.next() >> 58, self.next() >> 62);
        let number = match kind % 3 {
            0 => self.next(),
            1 => (1u64 << place).wrapping_add(near).wrapping_sub(2),
            _ => (1u64 << place).wrapping_neg().wrapping_add(near).wrapping_sub(1),
        };
        number >> if kind & 8 == 0 { 0 } else { place } & u64::ONES[W as usize]
    }
}

fn random_range<const W: u32>(random: &mut Random) -> (Interval<W>, u64) {
    let mut three = [random.number::<W>(), random.number::<W>(), random.number::<W>()];
    let mut set = Interval::<W>::FULL;
    three.sort_unstable();
    (set.umin, set.umax) = (three[0], three[2]);
    let x = three[1];
    let mut signed = [random.number::<W>().sext(W), x.sext(W), random.number::<W>().sext(W)];
    signed.sort_unstable();
    (set.smin, set.smax) = (signed[0].min(x.sext(W)), signed[2].max(x.sext(W)));
    (set, x)
}

fn random_bits<const W: u32>(random: &mut Random) -> (Tnum<W>, u64) {
    let (x, mask) = (random.number::<W>(), random.number::<W>() & random.number::<W>());
    (Tnum::new(x, mask), x ^ random.next() & mask)
}

fn at_random<A: Numbers<u64> + std::fmt::Debug>(
    op: AluOp,
    set: fn(&mut Random) -> (A, u64),
    f: fn(AluOp, A, A, (u64, u64)) -> A,
) -> Result<u64, String> {
    const TRIES: u64 = 300_000;
    let mut random = Random(op as u64 + 1);
    for _ in 0..TRIES {
        let ((a, x), (b, y)) = (set(&mut random), set(&mut random));
        let (got, result) = (f(op, a, b, (0, 0)), eval(op, A::BITS, x, y));
        if !got.well_formed() || !got.holds(result) {
            return Err(format!("{x:#x} {op:?} {y:#x} is {result:#x}: {a:?}, {b:?} give {got:?}"));
        }
    }
    Ok(TRIES)
}

/// Obligations that are tried for all numbers of one small width.
fn exhaustive<const W: u32>(how: &'static str) -> Vec<Obligation> {
    let range = |op: AluOp| {
        tried(format!("range {op:?} at {W} bits").to_lowercase(), how, move || {
            all_pairs(op, &ranges::<W>(), steps::range)
        })
    };
    let mut all: Vec<Obligation> = AluOp::ALL.into_iter().filter(|op| is_hard(*op)).map(range).collect();
    all.push(tried(format!("bits mul at {W} bits"), how, || all_pairs(AluOp::Mul, &tnums::<W>(), steps::bits)));
    all
}

fn random<const W: u32>(all: &mut Vec<Obligation>) {
    for op in AluOp::ALL.into_iter().filter(|op| is_hard(*op)) {
        all.push(tried(format!("range {op:?} at {W} bits").to_lowercase(), "random", move || {
            at_random(op, random_range::<W>, steps::range)
        }));
    }
    all.push(tried(format!("bits mul at {W} bits"), "random", || at_random(AluOp::Mul, random_bits::<W>, steps::bits)));
}

/// Returns all obligations of this module.
pub(crate) fn obligations() -> Vec<Obligation> {
    let mut all = exhaustive::<4>("exhaustive");
    all.extend(exhaustive::<6>("exhaustive").into_iter().map(Obligation::slow));
    random::<64>(&mut all);
    random::<32>(&mut all);
    all
}
