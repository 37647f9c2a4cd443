//! The optimiser's rules: both sides are equal, for all values and constants that fulfil the conditions.
//!
//! The obligations are made of the table that the optimiser uses, by the code that says what the table means. Where a
//! condition leaves few constants (powers of two) or is about how many bits are known, each is a way of its own.

use crate::obligation::{Obligation, proof};
use crate::paths::word::U;
use crate::paths::{any, assume, claim, one_of};
use bpf_isa::word::{Signed, Word};
use bpf_isa::{Size, Width};
use bpf_lir::BinOp;
use bpf_opt::proof::{self as optimiser, MASKED, RuleAt, STEPPED, rotated_multiplier, rules};

fn equal(rule: RuleAt) {
    let bits: u32 = match rule.width {
        Width::W32 => 32,
        Width::W64 => 64,
    };
    let (values, mut constants) = ([any(), any()], [any(), any()]);
    for (constant, _) in constants.iter().zip(rule.counts()).filter(|(_, is_count)| *is_count) {
        assume(|| *constant < U::of(bits.into()));
    }
    if rule.asks_power() {
        constants[0] = U::of(1 << one_of(0..bits.into()));
    }
    let mut known = [64, 64];
    if rule.asks_bits() {
        known[0] = one_of(0..65) as u8;
        let bound = U::ONES[usize::from(known[0])];
        assume(|| values[0] <= bound);
    }
    if !U::ask(|| rule.holds(&constants, &known)) {
        return;
    }
    let (was, is) = rule.sides(&values, &constants);
    claim("both sides are equal", || was == is);
}

/// `x * c | x * d >> s`, c as the optimiser wants it, is `x * d` rotated. No solver compares two products of 64 unknown
/// bits, so each step is a claim of its own: c is d times a power of two; products associate; and a number times that
/// power, and shifted right, is rotated.
fn rotated(width: Width) {
    let bits: u8 = match width {
        Width::W32 => 32,
        Width::W64 => 64,
    };
    let at = |op: BinOp, a: U, b: U| op.apply_to(width, a, b);
    let left = one_of(1..bits.into());
    let (d, x, product) = (any(), any(), any());
    let power = U::of(1 << left);
    let c = rotated_multiplier(width, d, left as u8);
    claim("the multiplier is the other one times a power of two", || c == at(BinOp::Mul, d, power));
    let (once, twice) = (at(BinOp::Mul, d, power), at(BinOp::Mul, x, d));
    claim("products associate", || at(BinOp::Mul, x, once) == at(BinOp::Mul, twice, power));
    let parts = (at(BinOp::Mul, product, power), at(BinOp::Shr, product, U::of(u64::from(bits) - left)));
    for op in [BinOp::Or, BinOp::Add, BinOp::Xor] {
        let whole = at(BinOp::Rotl, product, U::of(left));
        claim("the parts are the product, rotated", || at(op, parts.0, parts.1) == whole);
    }
}

/// A selection by one bit between `x op p` and x, where x is zero above the width, is `x op (p & m)`.
fn masked(width: Width, tested: Width) {
    let bits = |width: Width| match width {
        Width::W32 => 32u64,
        Width::W64 => 64,
    };
    let (x, p, y) = (any(), any(), any());
    let bit = one_of(0..bits(tested));
    assume(|| x <= U::ONES[bits(width) as usize]);
    let is_set = U::ask(|| y >> U::of(bit) & U::of(1) == U::of(1));
    for op in MASKED {
        let was = if is_set { op.apply_to(width, x, p) } else { x };
        let is = optimiser::masked(op, width, [x, p, y], bit as u8);
        claim("a bit decides as its mask does", || was == is);
    }
    // The other way round, of an `and` with a mask: the masked part of p is p, at the width, or 0.
    let left = optimiser::masked(BinOp::Or, width, [U::ZERO, p, y], bit as u8);
    let whole = if is_set { p & U::ONES[bits(width) as usize] } else { U::ZERO };
    claim("a mask leaves all or nothing", || left == whole);
}

/// A number, zero above the width, with the outcome of a comparison added or taken away is the number, or one more or
/// less.
fn stepped(width: Width) {
    let x: U = any();
    let top = match width {
        Width::W32 => 32,
        Width::W64 => 64,
    };
    assume(|| x <= U::ONES[top]);
    let holds = one_of(0..2) == 1;
    for op in STEPPED {
        let was = op.apply_to(width, x, U::of(holds.into()));
        let is = if holds { optimiser::stepped(op, width, x) } else { x };
        claim("an outcome is a selection", || was == is);
    }
}

/// A sign-extended number is negative, at either width, exactly where the sign bit is set.
fn sign_of_extended(from: Size) {
    let (x, Some(mask)): (U, _) = (any(), optimiser::sign_bit(from)) else { return };
    let extended = x.sext(from.bits()).unsigned();
    let is_set = U::ask(|| x & U::of(mask as u64) != U::ZERO);
    for top in [31, 63] {
        claim("the bit is the sign", || (extended >> U::of(top) & U::of(1) == U::of(1)) == is_set);
    }
}

/// Without a carry out of the lower half, one more is that at either width.
fn one_more() {
    let x: U = any();
    assume(|| x < U::of(1 << 31));
    let at = |width| BinOp::Add.apply_to(width, x, U::of(1));
    claim("no carry leaves the lower half", || at(Width::W32) == at(Width::W64));
}

/// One for each rule at each of its widths.
pub(crate) fn obligations() -> Vec<Obligation> {
    let table = rules().map(|rule| proof(format!("rule {} ({:?})", rule.name(), rule.width), move || equal(rule)));
    let products = [Width::W32, Width::W64];
    let products = products.map(|width| proof(format!("rotated products ({width:?})"), move || rotated(width)));
    let outcomes =
        [Width::W32, Width::W64].map(|w| proof(format!("outcomes that are added ({w:?})"), move || stepped(w)));
    let pairs = [Width::W32, Width::W64].map(|w| [(w, Width::W32), (w, Width::W64)]);
    let masks = pairs.into_iter().flatten().map(|(width, tested)| {
        proof(format!("a bit of {tested:?} as a mask ({width:?})"), move || masked(width, tested))
    });
    let more = proof("one more at either width", one_more);
    let signs = [Size::B, Size::H].map(|from| proof(format!("the sign of {from:?}"), move || sign_of_extended(from)));
    table.chain(products).chain(outcomes).chain(masks).chain(signs).chain([more]).collect()
}
