//! The optimiser's rules: both sides are equal, for all values and constants that fulfil the conditions.
//!
//! The obligations are made of the table that the optimiser uses, by the code that says what the table means. Where a
//! condition leaves few constants (powers of two) or is about how many bits are known, each is a way of its own.

use crate::obligation::{Obligation, proof};
use crate::paths::word::U;
use crate::paths::{any, assume, claim, one_of};
use bpf_isa::Width;
use bpf_isa::word::Word;
use bpf_opt::proof::{RuleAt, rules};

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

/// One for each rule at each of its widths.
pub(crate) fn obligations() -> Vec<Obligation> {
    rules().map(|rule| proof(format!("rule {} ({:?})", rule.name(), rule.width), move || equal(rule))).collect()
}
