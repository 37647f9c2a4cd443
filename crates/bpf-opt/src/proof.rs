//! The table of rules for `cargo xtask prove`; not part of the public interface.

use bpf_isa::word::Word;
use bpf_isa::{Size, Width};
use bpf_lir::BinOp;

use crate::rules::{self, Con, Pat, Rule, When};
use crate::values;

/// A rule of the table at one width.
#[derive(Clone, Copy, Debug)]
pub struct RuleAt {
    rule: &'static Rule,
    /// The width at which the rule is applied.
    pub width: Width,
}

/// Returns all rules, once for each width at which they are applied.
pub fn rules() -> impl Iterator<Item = RuleAt> {
    rules::RULES.iter().flat_map(|rule| {
        let widths = [Width::W32, Width::W64].into_iter();
        widths.filter(|w| rule.width.is_none_or(|only| only == *w)).map(|width| RuleAt { rule, width })
    })
}

/// Returns the factor by which the left-shifted part of a rotated product is multiplied, if the other part is
/// multiplied by `d` and the product is rotated left by `left` bits.
pub fn rotated_multiplier<T: Word>(width: Width, d: T, left: u8) -> T {
    values::shifted(width, d, left)
}

/// The operations `op` for which `c ? x op p : x`, where `c` tests one bit, becomes `x op (p & mask)`.
pub const MASKED: [BinOp; 3] = values::MASKED;

/// Computes `x op (p & mask)`, where every bit of `mask` is the bit number `bit` of `tested`: `x op p` if that bit is
/// set, and `x` if not.
pub fn masked<T: Word>(op: BinOp, width: Width, [x, p, tested]: [T; 3], bit: u8) -> T {
    let made = values::mask_width(width, bit);
    let [left, right] = values::spread(made, bit).map(|n| T::of(n.into()));
    let mask = BinOp::Sar.apply_to(made, BinOp::Shl.apply_to(made, tested, left), right);
    op.apply_to(width, x, BinOp::And.apply_to(width, mask, p))
}

/// Returns the mask of the bit that a comparison tests in place of the sign of a value that is sign-extended from
/// `from`.
pub fn sign_bit(from: Size) -> Option<i64> {
    values::sign_bit(from)
}

/// The operations by which the outcome of a comparison, 0 or 1, is added to a value or subtracted from it.
pub const STEPPED: [BinOp; 2] = values::STEPPED;

/// Computes the value that a number becomes where the comparison holds. Where it does not hold, the number stays as it
/// is.
pub fn stepped<T: Word>(op: BinOp, width: Width, x: T) -> T {
    op.apply_to(width, x, T::of(1))
}

impl RuleAt {
    /// Returns the rule's name in the table.
    pub fn name(&self) -> &'static str {
        self.rule.name
    }

    /// Whether the rule's conditions hold for these constants, and for values of which no bit at or above `known` is
    /// set.
    pub fn holds<T: Word>(&self, constants: &[T; 2], known: &[u8; 2]) -> bool {
        self.rule.when.iter().all(|when| when.holds(self.width, constants, known))
    }

    /// Evaluates the pattern and the result of the rule with these values and constants.
    pub fn sides<T: Word>(&self, values: &[T; 2], constants: &[T; 2]) -> (T, T) {
        self.rule.sides(self.width, values, constants)
    }

    /// Marks the constants that are shift counts. Wherever rules are tried, shift counts are below the width.
    pub fn counts(&self) -> [bool; 2] {
        let mut counts = [false; 2];
        let mut at = |op: BinOp, right: &Pat| {
            if let (BinOp::Shl | BinOp::Shr | BinOp::Sar | BinOp::Rotl, Pat::K(k)) = (op, right) {
                counts[usize::from(*k)] = true;
            }
        };
        at(self.rule.op, &self.rule.b);
        for side in [&self.rule.a, &self.rule.b] {
            if let Pat::Op(op, _, right) = side {
                at(*op, right);
            }
        }
        counts
    }

    /// Whether a condition of the rule depends on how many low bits of the first value may be set.
    pub fn asks_bits(&self) -> bool {
        self.rule.when.iter().any(|when| matches!(when, When::Within(..) | When::Under(..)))
    }

    /// Whether a condition of the rule requires the first constant to be a power of two.
    pub fn asks_power(&self) -> bool {
        self.rule.when.iter().any(|when| matches!(when, When::PowerOfTwo(Con::K(0))))
    }
}
