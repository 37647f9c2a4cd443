//! The optimiser's rules: both sides are equal, for all values and constants that fulfil the conditions.
//!
//! The obligations are made of the table that the optimiser uses, by the code that says what the table means. Where a
//! condition leaves few constants (powers of two) or is about how many bits are known, each is a way of its own.

use crate::obligation::{Obligation, proof};
use crate::paths::word::U;
use crate::paths::{any, assume, claim, one_of};
use bpf_isa::Width;
use bpf_isa::word::Word;
use bpf_lir::BinOp;
use bpf_opt::proof::{RuleAt, rotated_multiplier, rules};

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

/// One for each rule at each of its widths.
pub(crate) fn obligations() -> Vec<Obligation> {
    let table = rules().map(|rule| proof(format!("rule {} ({:?})", rule.name(), rule.width), move || equal(rule)));
    let products = [Width::W32, Width::W64];
    let products = products.map(|width| proof(format!("rotated products ({width:?})"), move || rotated(width)));
    table.chain(products).collect()
}
