//! The verifier's numbers: no rule loses a value that there can be.
//!
//! Each obligation is about concrete numbers x and y, and any sets that they are in: the operation's result on the sets
//! must contain the instruction's result on x and y. Sets need not be as exact as the verifier keeps them, only
//! well-formed; a theorem about more sets says no less of those.

use crate::obligation::{Obligation, proof};
use crate::paths::word::{S, U};
use crate::paths::{any, any_set, any_with, assume, claim, operands, witness};
use bpf_isa::word::{Numbers, Signed, Word};
use bpf_isa::{AluOp, ByteOrder, Cond, Width};
use bpf_verifier::{Interval, Num, Tnum, eval, proof as steps};

type Bits<const W: u32> = Tnum<W, U>;
type Range<const W: u32> = Interval<W, U>;
type Number = Num<64, 32, U>;

/// A number of so many bits.
fn number(bits: u32) -> U {
    any() & U::ONES[bits as usize]
}

fn holds<A: Numbers<U>>(set: A, x: U) {
    claim("the result is in the set", || set.holds(x));
    claim("the set is well-formed", || set.well_formed());
}

/// Whether the condition holds, as the instruction has it.
fn compares(cond: Cond, width: Width, x: U, y: U) -> bool {
    U::ask(|| cond.compares_at(width, x, y))
}

/// Obligation that an operation is sound on one component of its operands.
fn component<A: Numbers<U> + 'static>(name: &str, op: AluOp, f: fn(AluOp, A, A, (U, U)) -> A) -> Obligation {
    proof(format!("{name} {op:?} at {} bits", A::BITS).to_lowercase(), move || {
        let (x, y) = (number(A::BITS), number(A::BITS));
        let (a, b): (A, A) = (any_with(x), any_with(y));
        let (least, most, count) = (any(), any(), y & U::of(u64::from(A::BITS - 1)));
        assume(|| least <= count && count <= most && most < U::of(A::BITS.into()));
        holds(f(op, a, b, (least, most)), eval(op, A::BITS, x, y));
    })
}

/// Beyond the solver: products and quotients of two unknowns. They are tried instead (`tries`).
pub(crate) fn is_hard(op: AluOp) -> bool {
    matches!(op, AluOp::Mul | AluOp::Div | AluOp::SDiv | AluOp::Mod | AluOp::SMod)
}

fn tnums<const W: u32>(all: &mut Vec<Obligation>) {
    // No bit of a quotient or remainder is tracked, so both are excluded.
    let ops = AluOp::ALL.into_iter().filter(|op| *op != AluOp::Mul);
    all.extend(ops.map(|op| component::<Bits<W>>("bits", op, steps::bits)));
    all.push(proof(format!("bits of a constant at {W} bits"), || {
        let x = any();
        holds(Bits::<W>::constant(x), x & U::ONES[W as usize]);
    }));
    all.push(proof(format!("bits of a range at {W} bits"), || {
        let (x, min, max) = (number(W), number(W), number(W));
        assume(|| min <= x && x <= max);
        holds(Bits::<W>::range(min, max), x);
    }));
    all.push(proof(format!("bits in both at {W} bits"), || {
        let x = number(W);
        let (a, b): (Bits<W>, Bits<W>) = (any_with(x), any_with(x));
        match a.intersect(b) {
            Some(both) => holds(both, x),
            None => claim("something is left", || false),
        }
    }));
    all.push(proof(format!("bits of either at {W} bits"), || {
        let x = number(W);
        let (a, b): (Bits<W>, Bits<W>) = (any_with(x), any_set());
        holds(a.join(b), x);
        holds(b.join(a), x);
    }));
    all.push(proof(format!("bits within bits at {W} bits"), || {
        let x = number(W);
        let (a, b): (Bits<W>, Bits<W>) = (any_with(x), any_set());
        if U::ask(|| a.subset(b)) {
            holds(b, x);
        }
    }));
}

fn ranges<const W: u32>(all: &mut Vec<Obligation>) {
    let ops = AluOp::ALL.into_iter().filter(|op| !is_hard(*op));
    all.extend(ops.map(|op| {
        let obligation = component::<Range<W>>("range", op, steps::range);
        if matches!(op, AluOp::Sub | AluOp::Lsh) { obligation.slow() } else { obligation }
    }));
    all.push(proof(format!("range of a constant at {W} bits"), || {
        let x = any();
        holds(Range::<W>::constant(x), x & U::ONES[W as usize]);
    }));
    all.push(proof(format!("views of a range exchange at {W} bits"), || {
        let x = number(W);
        let mut a: Range<W> = any_with(x);
        steps::exchange_views(&mut a);
        holds(a, x);
    }));
    all.push(proof(format!("range within bits at {W} bits"), || {
        let x = number(W);
        let mut a: Range<W> = any_with(x);
        a.meet_tnum(any_with(x));
        holds(a, x);
    }));
    all.push(proof(format!("range of both at {W} bits"), || {
        let x = number(W);
        let (a, b): (Range<W>, Range<W>) = (any_with(x), any_with(x));
        holds(a.intersect(b), x);
        claim("something is left", || !a.intersect(b).is_empty());
    }));
    all.push(proof(format!("range of either at {W} bits"), || {
        let x = number(W);
        let (a, b): (Range<W>, Range<W>) = (any_with(x), any_set());
        holds(a.join(b), x);
        holds(b.join(a), x);
    }));
    all.push(proof(format!("range within a range at {W} bits"), || {
        let x = number(W);
        let (a, b): (Range<W>, Range<W>) = (any_with(x), any_set());
        if U::ask(|| a.subset(b)) {
            holds(b, x);
        }
    }));
}

/// Obligations of the steps that carry knowledge between the parts of a number, each alone and all together.
fn exchange(all: &mut Vec<Obligation>) {
    type Teach = fn(&mut Number);
    let teach: [(&str, Teach); 3] = [
        ("the whole teaches the low half", steps::teach_low),
        ("the low half teaches the whole", steps::teach_full),
        ("the low half teaches the whole as a signed number", steps::teach_full_signed),
    ];
    for (name, f) in teach {
        all.push(proof(name, move || {
            let x = any();
            let mut n: Number = any_with(x);
            f(&mut n);
            holds(n, x);
        }));
    }
    type Exchange = fn(&mut Number) -> bool;
    let exchange: [(&str, bool, Exchange); 4] = [
        ("a round in which the parts of a number exchange", false, steps::round),
        ("the parts of a number exchange", false, steps::exchange_wide),
        ("the parts of a small number exchange", true, steps::exchange_small),
        ("the parts of a number exchange, in one of the ways", false, steps::exchange),
    ];
    for (name, small, f) in exchange {
        let obligation = proof(name, move || {
            let x = any();
            witness(x);
            let mut n: Number = any_with(x);
            if small {
                // The operation is used in this case only.
                assume(|| n.bits().max() <= U::ONES[32]);
            }
            let kept = f(&mut n);
            claim("something is left", || kept);
            holds(n, x);
        });
        all.push(if small { obligation.slow() } else { obligation });
    }
    all.push(proof("number of its parts", || {
        let x = any();
        witness(x);
        let low: Range<32> = any_with(x & U::ONES[32]);
        let number: Number = steps::number(any_with(x), any_with(x), low);
        holds(number, x);
    }));
    all.push(proof("number of an unsigned range", || {
        let (x, min, max) = (any(), any(), any());
        witness(x);
        assume(|| min <= x && x <= max);
        holds(Number::unsigned(min, max), x);
    }));
    all.push(proof("number of a signed range", || {
        let (x, min, max): (S, S, S) = (any().signed(), any().signed(), any().signed());
        witness(x.unsigned());
        assume(|| min <= x && x <= max);
        holds(Number::signed(min, max), x.unsigned());
    }));
    all.push(proof("number in both", || {
        let x = any();
        witness(x);
        let (a, b): (Number, Number) = (any_with(x), any_with(x));
        match a.meet(&b) {
            Some(both) => holds(both, x),
            None => claim("something is left", || false),
        }
    }));
    all.push(proof("number of either", || {
        let x = any();
        witness(x);
        let (a, b): (Number, Number) = (any_with(x), any_set());
        holds(a.join(&b), x);
        holds(b.join(&a), x);
    }));
    all.push(proof("number within a number", || {
        let x = any();
        let (a, b): (Number, Number) = (any_with(x), any_set());
        if U::ask(|| a.subset(&b)) {
            holds(b, x);
        }
    }));
    all.push(proof("a known number", || {
        let x = any();
        let a: Number = any_with(x);
        if let Some(value) = a.as_const() {
            claim("it is that one", || value == x);
        }
        claim("its bounds hold", || a.umin() <= x && x <= a.umax() && a.smin() <= x.signed() && x.signed() <= a.smax());
        if a.high_half_is_zero() {
            claim("its high half is zero", || x >> 32 == U::ZERO);
        }
        claim("its low half is within its range", || a.low_range().contains(x & U::ONES[32]));
    }));
    all.push(proof("the least value with known low bits", || {
        let x = any();
        let a: Number = any_with(x);
        let least = steps::aligned_least(&a);
        claim("it is not below", || least <= x);
    }));
    all.push(proof("the least signed value with known low bits", || {
        let x = any();
        let a: Number = any_with(x);
        let least = steps::aligned_signed_least(&a);
        claim("it is not below", || least <= x.signed());
    }));
    all.push(proof("a number from its least values with known low bits on", || {
        let x = any();
        witness(x);
        let a: Number = any_with(x);
        holds(steps::aligned(&a), x);
    }));
}

fn bits(width: Width) -> u32 {
    match width {
        Width::W64 => 64,
        Width::W32 => 32,
    }
}

const WIDTHS: [Width; 2] = [Width::W64, Width::W32];

fn operations(all: &mut Vec<Obligation>) {
    for op in AluOp::ALL {
        for width in WIDTHS {
            let w = bits(width);
            all.push(proof(format!("number {op:?} at {w} bits").to_lowercase(), move || {
                let (x, y) = (any(), any());
                let z = eval(op, w, x, y);
                witness(z);
                operands(x, y);
                let (a, b): (Number, Number) = (any_with(x), any_with(y));
                if is_hard(op) {
                    // Two known numbers are folded by the definition itself.
                    assume(|| match width {
                        Width::W64 => a.umin() != a.umax(),
                        Width::W32 => !a.bits().low::<32>().is_const(),
                    });
                }
                holds(a.alu(op, width, &b), z);
            }));
        }
    }
    for width in WIDTHS {
        let w = bits(width);
        all.push(proof(format!("number negated at {w} bits"), move || {
            let x = any();
            let z = U::ZERO.wrapping_sub(x) & U::ONES[w as usize];
            witness(z);
            operands(U::ZERO, x);
            let a: Number = any_with(x);
            holds(a.neg(width), z);
        }));
    }
    all.push(proof("number moved at 32 bits", || {
        let x = any();
        let z = x & U::ONES[32];
        witness(z);
        let a: Number = any_with(x);
        holds(a.zext_low(), z);
    }));
    for n in [8, 16, 32] {
        all.push(proof(format!("number cut to {n} bits"), move || {
            let x = any();
            let z = x & U::ONES[n as usize];
            witness(z);
            let a: Number = any_with(x);
            holds(a.truncate(n), z);
        }));
        all.push(proof(format!("number of {n} bits sign-extended"), move || {
            let x = any();
            let z = x.sext(n).unsigned();
            witness(z);
            let a: Number = any_with(x);
            holds(a.sign_extend(n), z);
        }));
    }
    for n in [16, 32, 64] {
        for order in [ByteOrder::ToLe, ByteOrder::ToBe, ByteOrder::Swap] {
            all.push(proof(format!("bytes of {n} bits in order ({order:?})"), move || {
                let x = any();
                let z = match order {
                    ByteOrder::ToLe => x & U::ONES[n as usize],
                    ByteOrder::ToBe | ByteOrder::Swap => x.swap_bytes() >> (64 - n),
                };
                witness(z);
                let a: Number = any_with(x);
                holds(a.end(order, n), z);
            }));
        }
    }
}

fn comparisons(all: &mut Vec<Obligation>) {
    for cond in Cond::ALL {
        for width in WIDTHS {
            for taken in [true, false] {
                let way = if taken { "holds" } else { "does not hold" };
                let obligation = proof(format!("{cond:?} {way} at {} bits", bits(width)).to_lowercase(), move || {
                    let (x, y) = (any(), any());
                    assume(|| compares(cond, width, x, y) == taken);
                    witness(x);
                    witness(y);
                    match Number::refine(cond, width, taken, &any_with(x), &any_with(y)) {
                        Some((a, b)) => {
                            holds(a, x);
                            holds(b, y);
                        }
                        None => claim("something is left", || false),
                    }
                });
                // Most are proven with the opposite condition, which runs the same code.
                let same = !taken && !matches!(cond, Cond::Set | Cond::Lt);
                all.push(if same { obligation.slow() } else { obligation });
            }
        }
    }
}

/// Differences that may have wrapped round, which a comparison settles.
fn differences(all: &mut Vec<Obligation>) {
    for width in WIDTHS {
        let w = bits(width);
        all.push(proof(format!("a difference that has wrapped at {w} bits"), move || {
            let top = U::ONES[w as usize];
            let (v, by, min, max) = (number(w), number(w), any(), any());
            assume(|| by != U::ZERO);
            let difference = eval(AluOp::Sub, w, v, by);
            let wrapped = U::ask(|| v < by);
            if U::ask(|| min <= v && v <= max)
                && let Some(said) = steps::wrapped_by_whole((min, max), by)
            {
                claim("it has if that is said of the whole", || said == wrapped);
            }
            assume(|| min <= difference && difference <= max);
            let most = any();
            assume(|| v <= most);
            for most in [None, Some(most)] {
                if let Some(said) = steps::wrapped_by_difference((min, max), by, top, most) {
                    claim("it has if that is said of itself", || said == wrapped);
                }
            }
        }));
    }
}

/// Obligations of the rules about masks, and about pairs of bits that are counted.
fn masks(all: &mut Vec<Obligation>) {
    all.push(proof("what a mask takes away", || {
        let (x, mask) = (any(), any());
        let bits: Bits<64> = any_with(x);
        let lost = steps::lost_by_mask(bits.max(), mask);
        claim("no more than the bits that it lacks", || x.wrapping_sub(x & mask) <= lost);
    }));
    all.push(proof("two masks of one number", || {
        let (x, mask, other) = (any(), any(), any());
        let bits: Bits<64> = any_with(x);
        if steps::masked_within(bits.max(), mask, other) {
            claim("the lesser result is at most the other", || x & mask <= x & other);
        }
    }));
    all.push(proof("low bits that are set", || {
        let x = any();
        for low in 1..15 {
            let (by, ones) = (U::of(low), U::of((1 << low) - 1));
            claim("the shifted number, shifted back, and the set bits", || {
                (x | ones) == ((x >> by) << by).wrapping_add(ones)
            });
        }
    }));
    all.push(proof("pairs of bits that are counted", || {
        let x = any();
        let counted = steps::counted_pairs(x);
        for at in 0..32 {
            let pair = (counted >> U::of(2 * at)) & U::of(3);
            claim("no pair has more than two", || pair <= U::of(2));
        }
    }));
}

/// Returns all obligations of this module.
pub(crate) fn obligations() -> Vec<Obligation> {
    let mut all = Vec::new();
    tnums::<64>(&mut all);
    tnums::<32>(&mut all);
    ranges::<64>(&mut all);
    ranges::<32>(&mut all);
    exchange(&mut all);
    operations(&mut all);
    comparisons(&mut all);
    differences(&mut all);
    masks(&mut all);
    all
}
