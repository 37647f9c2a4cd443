//! The table of rules for `cargo xtask prove`: nothing for users.

use bpf_isa::word::Word;
use bpf_isa::{Size, Width};
use bpf_lir::BinOp;

use crate::rules::{self, Con, Pat, Rule, When};
use crate::values;

/// A rule of the table at a width.
#[derive(Clone, Copy, Debug)]
pub struct RuleAt {
    rule: &'static Rule,
    /// At this one.
    pub width: Width,
}

/// All rules, at each width at which they are applied.
pub fn rules() -> impl Iterator<Item = RuleAt> {
    rules::RULES.iter().flat_map(|rule| {
        let widths = [Width::W32, Width::W64].into_iter();
        widths.filter(|w| rule.width.is_none_or(|only| only == *w)).map(|width| RuleAt { rule, width })
    })
}

/// The multiplier by which a product that is rotated left by so much is recognised, beside the other one.
pub fn rotated_multiplier<T: Word>(width: Width, d: T, left: u8) -> T {
    values::shifted(width, d, left)
}

/// The operations of which a part that one bit decides becomes a mask.
pub const MASKED: [BinOp; 3] = values::MASKED;

/// `x op (p & m)`, m a bit of `tested` all over: what becomes of `x op p` where the bit is set, and of x where not.
pub fn masked<T: Word>(op: BinOp, width: Width, [x, p, tested]: [T; 3], bit: u8) -> T {
    let made = values::mask_width(width, bit);
    let [left, right] = values::spread(made, bit).map(|n| T::of(n.into()));
    let mask = BinOp::Sar.apply_to(made, BinOp::Shl.apply_to(made, tested, left), right);
    op.apply_to(width, x, BinOp::And.apply_to(width, mask, p))
}

/// The bit that is asked for instead of the sign of what is extended from so many bits.
pub fn sign_bit(from: Size) -> Option<i64> {
    values::sign_bit(from)
}

/// The operations to which the outcome of a comparison is added, or from which it is taken away.
pub const STEPPED: [BinOp; 2] = values::STEPPED;

/// What a number becomes where the comparison holds; where not, it stays.
pub fn stepped<T: Word>(op: BinOp, width: Width, x: T) -> T {
    op.apply_to(width, x, T::of(1))
}

impl RuleAt {
    /// What the table calls it.
    pub fn name(&self) -> &'static str {
        self.rule.name
    }

    /// Whether its conditions hold for these constants, and values of which no bit from these on is set.
    pub fn holds<T: Word>(&self, constants: &[T; 2], known: &[u8; 2]) -> bool {
        self.rule.when.iter().all(|when| when.holds(self.width, constants, known))
    }

    /// What it is looked for, and what it becomes.
    pub fn sides<T: Word>(&self, values: &[T; 2], constants: &[T; 2]) -> (T, T) {
        self.rule.sides(self.width, values, constants)
    }

    /// Which of the constants are shift counts, which are below the width wherever rules are tried.
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

    /// Whether it asks how many bits of the first value may be set.
    pub fn asks_bits(&self) -> bool {
        self.rule.when.iter().any(|when| matches!(when, When::Within(..) | When::Under(..)))
    }

    /// Whether it asks for the first constant to be a power of two.
    pub fn asks_power(&self) -> bool {
        self.rule.when.iter().any(|when| matches!(when, When::PowerOfTwo(Con::K(0))))
    }
}
