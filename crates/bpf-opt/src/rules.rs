//! The algebraic rules, as data.
//!
//! A rule states that one expression over values and constants equals another, at one width or at both, under
//! conditions on the constants and on how many low bits of a value may be set. `values` applies the rules. Tests
//! evaluate both sides of every rule, and `cargo xtask prove` has a solver compare them for all values and constants:
//! the functions that give a rule its meaning ([`Con::value`], [`When::holds`], [`Rule::sides`]) also run on a solver's
//! terms (`bpf_isa::word`).
//!
//! Wherever a rule is tried, constants are the second operands of commutative operations, and shift counts are below
//! the width.

use bpf_isa::word::{Signed, Word};
use bpf_isa::{Size, Width};
use bpf_lir::BinOp::{self, *};

/// A pattern: the expression that a rule replaces.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Pat {
    /// A value; equal numbers stand for the same value.
    V(u8),
    /// A constant; equal numbers stand for the same constant.
    K(u8),
    /// This number.
    Is(i64),
    /// An operation at the rule's width.
    Op(BinOp, &'static Pat, &'static Pat),
    /// The negation, at the rule's width.
    Neg(&'static Pat),
}

/// A constant computed from the constants of the pattern.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Con {
    /// The constant that `K` of this number has matched.
    K(u8),
    /// This number.
    Is(i64),
    /// The width in bits.
    Bits,
    /// The number of trailing zero bits.
    Trailing(&'static Con),
    /// An operation at the rule's width.
    Op(BinOp, &'static Con, &'static Con),
}

/// A condition of a rule.
#[derive(Clone, Copy, Debug)]
pub(crate) enum When {
    /// The two constants are equal.
    Equal(Con, Con),
    /// The first constant is below the second, unsigned.
    Below(Con, Con),
    /// Exactly one bit of the constant is set.
    PowerOfTwo(Con),
    /// All bits that may be set in the value are set in the constant.
    Within(u8, Con),
    /// No bit of the value at or above the position given by the constant is set.
    Under(u8, Con),
}

/// The result of a rule.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Out {
    /// The value of this number, at the rule's width.
    V(u8),
    /// A constant.
    Con(Con),
    /// An operation at the rule's width.
    Op(BinOp, &'static Out, &'static Out),
    /// The value's low bytes, sign-extended to the rule's width.
    Signed(Size, u8),
    /// The value's negation.
    Neg(u8),
}

/// A rule: `a op b` equals `out` where all of `when` hold.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rule {
    /// The name, for tests and proofs.
    pub(crate) name: &'static str,
    /// The width at which it holds, or `None` for both.
    pub(crate) width: Option<Width>,
    /// The operation and its operands.
    pub(crate) op: BinOp,
    pub(crate) a: Pat,
    pub(crate) b: Pat,
    /// The conditions, all of which must hold.
    pub(crate) when: &'static [When],
    /// The result.
    pub(crate) out: Out,
}

const X: Pat = Pat::V(0);
const Y: Pat = Pat::V(1);
const C: Pat = Pat::K(0);
const D: Pat = Pat::K(1);
const KC: Con = Con::K(0);
const KD: Con = Con::K(1);
const ZERO: Out = Out::Con(Con::Is(0));
const OX: Out = Out::V(0);

macro_rules! rules {
    ($($name:literal $($width:ident)?: $op:ident $a:expr, $b:expr $(, if $($when:expr),+)? => $out:expr;)*) => {
        /// All rules, those of one operation next to each other.
        pub(crate) const RULES: &[Rule] = &[$(Rule {
            name: $name,
            width: rules!(@width $($width)?),
            op: $op,
            a: $a,
            b: $b,
            when: &[$($($when),+)?],
            out: $out,
        }),*];
    };
    (@width) => { None };
    (@width $width:ident) => { Some(Width::$width) };
}

rules! {
    "x + 0": Add X, Pat::Is(0) => OX;
    "x + x": Add X, X => Out::Op(Shl, &OX, &Out::Con(Con::Is(1)));
    "(x + c) + d": Add Pat::Op(Add, &X, &C), D => Out::Op(Add, &OX, &Out::Con(Con::Op(Add, &KC, &KD)));
    "(x - y) + y": Add Pat::Op(Sub, &X, &Y), Y => OX;
    "-x + y": Add Pat::Neg(&X), Y => Out::Op(Sub, &Out::V(1), &OX);
    "x << c + x >> d": Add Pat::Op(Shl, &X, &C), Pat::Op(Shr, &X, &D), if ROTATES, NOT_ZERO => ROTATED;
    "x - c": Sub X, C => Out::Op(Add, &OX, &Out::Con(Con::Op(Sub, &Con::Is(0), &KC)));
    "x - x": Sub X, X => ZERO;
    "x - -y": Sub X, Pat::Neg(&Y) => Out::Op(Add, &OX, &Out::V(1));
    "(x + y) - x": Sub Pat::Op(Add, &X, &Y), X => Out::V(1);
    "x * 0": Mul X, Pat::Is(0) => ZERO;
    "x * 1": Mul X, Pat::Is(1) => OX;
    "x * -1": Mul X, Pat::Is(-1) => Out::Neg(0);
    "x * 2^n": Mul X, C, if When::PowerOfTwo(KC) => Out::Op(Shl, &OX, &Out::Con(Con::Trailing(&KC)));
    "(x * c) * d": Mul Pat::Op(Mul, &X, &C), D => Out::Op(Mul, &OX, &Out::Con(Con::Op(Mul, &KC, &KD)));
    "x / 0": Div X, Pat::Is(0) => ZERO;
    "x / 2^n": Div X, C, if When::PowerOfTwo(KC) => Out::Op(Shr, &OX, &Out::Con(Con::Trailing(&KC)));
    "x % 0": Mod X, Pat::Is(0) => OX;
    "x % 2^n": Mod X, C, if When::PowerOfTwo(KC) => Out::Op(And, &OX, &Out::Con(Con::Op(Sub, &KC, &Con::Is(1))));
    "x & 0": And X, Pat::Is(0) => ZERO;
    "x & x": And X, X => OX;
    "x & mask of all it has": And X, C, if When::Within(0, KC) => OX;
    "(x & c) & d": And Pat::Op(And, &X, &C), D => Out::Op(And, &OX, &Out::Con(Con::Op(And, &KC, &KD)));
    "x | 0": Or X, Pat::Is(0) => OX;
    "x | -1": Or X, Pat::Is(-1) => Out::Con(Con::Is(-1));
    "x | x": Or X, X => OX;
    "(x | c) | d": Or Pat::Op(Or, &X, &C), D => Out::Op(Or, &OX, &Out::Con(Con::Op(Or, &KC, &KD)));
    "x << c | x >> d": Or Pat::Op(Shl, &X, &C), Pat::Op(Shr, &X, &D), if ROTATES, NOT_ZERO => ROTATED;
    "x ^ 0": Xor X, Pat::Is(0) => OX;
    "x ^ x": Xor X, X => ZERO;
    "(x ^ c) ^ d": Xor Pat::Op(Xor, &X, &C), D => Out::Op(Xor, &OX, &Out::Con(Con::Op(Xor, &KC, &KD)));
    "x << c ^ x >> d": Xor Pat::Op(Shl, &X, &C), Pat::Op(Shr, &X, &D), if ROTATES, NOT_ZERO => ROTATED;
    "x << 0": Shl X, Pat::Is(0) => OX;
    "x << c << d": Shl Pat::Op(Shl, &X, &C), D, if SUM_BELOW => Out::Op(Shl, &OX, &SUM);
    "x << c << d, nothing left": Shl Pat::Op(Shl, &X, &C), D, if SUM_NOT_BELOW => ZERO;
    "x >> c << c": Shl Pat::Op(Shr, &X, &C), C, if When::Below(KC, Con::Is(32)) =>
        Out::Op(And, &OX, &Out::Con(Con::Op(Shl, &Con::Is(-1), &KC)));
    "x >> 0": Shr X, Pat::Is(0) => OX;
    "x >> more than it has": Shr X, C, if When::Under(0, KC) => ZERO;
    "x >> c >> d": Shr Pat::Op(Shr, &X, &C), D, if SUM_BELOW => Out::Op(Shr, &OX, &SUM);
    "x >> c >> d, nothing left": Shr Pat::Op(Shr, &X, &C), D, if SUM_NOT_BELOW => ZERO;
    "x << c >> c": Shr Pat::Op(Shl, &X, &C), C, if When::Below(Con::Is(31), Con::Op(Add, &KC, &NARROW)) =>
        Out::Op(And, &OX, &Out::Con(Con::Op(Shr, &Con::Is(-1), &KC)));
    "x >>> 0": Sar X, Pat::Is(0) => OX;
    "x << 32 >>> 32" W64: Sar Pat::Op(Shl, &X, &Pat::Is(32)), Pat::Is(32) => Out::Signed(Size::W, 0);
    "x << 48 >>> 48" W64: Sar Pat::Op(Shl, &X, &Pat::Is(48)), Pat::Is(48) => Out::Signed(Size::H, 0);
    "x << 56 >>> 56" W64: Sar Pat::Op(Shl, &X, &Pat::Is(56)), Pat::Is(56) => Out::Signed(Size::B, 0);
    "x << 16 >>> 16" W32: Sar Pat::Op(Shl, &X, &Pat::Is(16)), Pat::Is(16) => Out::Signed(Size::H, 0);
    "x << 24 >>> 24" W32: Sar Pat::Op(Shl, &X, &Pat::Is(24)), Pat::Is(24) => Out::Signed(Size::B, 0);
    "x rotated by 0": Rotl X, Pat::Is(0) => OX;
}

/// The counts of two opposite shifts add up to the width, so the shifts make a rotation.
const ROTATES: When = When::Equal(Con::Op(Add, &KC, &KD), Con::Bits);
/// The first count is not zero; otherwise the second would be the width.
const NOT_ZERO: When = When::Below(Con::Is(0), KC);
const ROTATED: Out = Out::Op(Rotl, &OX, &Out::Con(KC));
const SUM: Out = Out::Con(Con::Op(Add, &KC, &KD));
const SUM_BELOW: When = When::Below(Con::Op(Add, &KC, &KD), Con::Bits);
const SUM_NOT_BELOW: When = When::Below(Con::Op(Sub, &Con::Bits, &Con::Is(1)), Con::Op(Add, &KC, &KD));
/// 32 at 32 bits, where every mask is cheap, and 0 at 64 bits, where only masks of at most 32 bits are.
const NARROW: Con = Con::Op(Sub, &Con::Is(64), &Con::Bits);

/// Returns the rules whose outer operation is `op`.
pub(crate) fn of(op: BinOp) -> &'static [Rule] {
    const FIRST: [(u8, u8); 16] = ranges();
    let (start, end) = FIRST[op as usize];
    &RULES[start as usize..end as usize]
}

const fn ranges() -> [(u8, u8); 16] {
    let mut ranges = [(0, 0); 16];
    let mut i = 0;
    while i < RULES.len() {
        let op = RULES[i].op as usize;
        if ranges[op].1 == 0 {
            ranges[op].0 = index(i);
        }
        ranges[op].1 = index(i + 1);
        i += 1;
    }
    ranges
}

/// Converts an index of the table.
#[expect(clippy::cast_possible_truncation, reason = "asserted, when it is compiled")]
const fn index(rule: usize) -> u8 {
    assert!(rule <= u8::MAX as usize);
    rule as u8
}

impl Con {
    /// Computes the constant at a width from the constants of the pattern.
    pub(crate) fn value<T: Word>(&self, width: Width, constants: &[T; 2]) -> T {
        let narrow = |value: T| value & T::ONES[usize::from(bits(width))];
        match *self {
            Con::K(k) => narrow(constants[usize::from(k)]),
            Con::Is(imm) => narrow(T::of(imm as u64)),
            Con::Bits => T::of(bits(width).into()),
            Con::Trailing(of) => of.value(width, constants).trailing_zeros(),
            Con::Op(op, a, b) => op.apply_to(width, a.value(width, constants), b.value(width, constants)),
        }
    }
}

impl When {
    /// Whether the condition holds for these constants, and for values of which no bit at or above `known` is set.
    pub(crate) fn holds<T: Word>(&self, width: Width, constants: &[T; 2], known: &[u8; 2]) -> bool {
        let value = |con: &Con| con.value(width, constants);
        match self {
            When::Equal(a, b) => value(a) == value(b),
            When::Below(a, b) => value(a) < value(b),
            When::PowerOfTwo(a) => value(a).is_power_of_two(),
            When::Within(v, mask) => {
                let may = T::of(ones(Ord::min(known[usize::from(*v)], bits(width)).into()));
                may & !value(mask) == T::ZERO
            }
            When::Under(v, at) => T::of(Ord::min(known[usize::from(*v)], bits(width)).into()) <= value(at),
        }
    }
}

/// The meaning of a pattern, for tests and proofs.
impl Pat {
    fn value<T: Word>(&self, width: Width, values: &[T; 2], constants: &[T; 2]) -> T {
        let narrow = |value: T| value & T::ONES[usize::from(bits(width))];
        match *self {
            Pat::V(v) => narrow(values[usize::from(v)]),
            Pat::K(k) => narrow(constants[usize::from(k)]),
            Pat::Is(imm) => narrow(T::of(imm as u64)),
            Pat::Op(op, a, b) => {
                op.apply_to(width, a.value(width, values, constants), b.value(width, values, constants))
            }
            Pat::Neg(of) => narrow(T::ZERO.wrapping_sub(of.value(width, values, constants))),
        }
    }
}

impl Out {
    fn value<T: Word>(&self, width: Width, values: &[T; 2], constants: &[T; 2]) -> T {
        let narrow = |value: T| value & T::ONES[usize::from(bits(width))];
        match *self {
            Out::V(v) => narrow(values[usize::from(v)]),
            Out::Con(con) => con.value(width, constants),
            Out::Op(op, a, b) => {
                op.apply_to(width, a.value(width, values, constants), b.value(width, values, constants))
            }
            Out::Signed(size, v) => narrow(values[usize::from(v)].sext(size.bits()).unsigned()),
            Out::Neg(v) => narrow(T::ZERO.wrapping_sub(values[usize::from(v)])),
        }
    }
}

/// A cheap summary of an operation's operands, to skip rules that cannot match.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operands {
    /// The operation that computes the first operand, if any.
    pub(crate) first: Option<BinOp>,
    /// The operation that computes the second operand, if any.
    pub(crate) second: Option<BinOp>,
    /// Whether one of the operands is a negation.
    pub(crate) negative: bool,
    /// Whether the second operand is a constant.
    pub(crate) constant: bool,
}

impl Rule {
    /// Whether the rule may match: most rules require an operation or a constant that the operands do not have.
    #[inline(always)]
    pub(crate) fn may_match(&self, operands: &Operands) -> bool {
        let made = |pat: &Pat, by: Option<BinOp>| match pat {
            Pat::Op(op, ..) => by == Some(*op),
            Pat::Neg(_) => operands.negative,
            Pat::V(_) | Pat::K(_) | Pat::Is(_) => true,
        };
        let constant = matches!(self.b, Pat::K(_) | Pat::Is(_));
        constant == operands.constant
            && (made(&self.a, operands.first) && made(&self.b, operands.second)
                || !constant && made(&self.a, operands.second) && made(&self.b, operands.first))
    }

    /// Evaluates pattern and result with these values and constants.
    pub(crate) fn sides<T: Word>(&self, width: Width, values: &[T; 2], constants: &[T; 2]) -> (T, T) {
        let (a, b) = (self.a.value(width, values, constants), self.b.value(width, values, constants));
        (self.op.apply_to(width, a, b), self.out.value(width, values, constants))
    }
}

pub(crate) fn bits(width: Width) -> u8 {
    match width {
        Width::W32 => 32,
        Width::W64 => 64,
    }
}

/// Returns the low bits of this width, sign-extended.
pub(crate) fn sign(width: Width, value: u64) -> i64 {
    match width {
        Width::W32 => i64::from(crate::num::low(value as i64)),
        Width::W64 => value as i64,
    }
}

/// Returns a number whose `n` low bits are set.
pub(crate) fn ones(n: u64) -> u64 {
    if n >= 64 { u64::MAX } else { (1 << n) - 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns powers of two, their neighbours and complements, and pseudo-random values.
    fn samples() -> Vec<u64> {
        let mut all: Vec<u64> = (0..64).flat_map(|n| [1u64 << n, (1u64 << n) - 1, !(1u64 << n)]).collect();
        let mut random = 7u64;
        for _ in 0..64 {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            all.push(random ^ random >> 29);
        }
        all
    }

    /// Compares both sides of a rule over samples; returns how often its conditions held.
    fn compare(rule: &Rule) -> Result<u32, String> {
        let samples = samples();
        let mut compared = 0;
        let shift = |p: &Pat| matches!(p, Pat::Op(Shl | Shr | Sar | Rotl, _, Pat::K(_)));
        let counts = shift(&rule.a) || shift(&rule.b) || matches!(rule.op, Shl | Shr | Sar | Rotl);
        for width in [Width::W32, Width::W64].into_iter().filter(|w| rule.width.is_none_or(|only| only == *w)) {
            let constants: Vec<u64> = match counts {
                true => (0..bits(width).into()).collect(),
                false => samples.iter().step_by(5).copied().chain([0, 1, u64::MAX]).collect(),
            };
            for (i, c) in constants.iter().enumerate() {
                for d in constants.iter().skip(if counts { 0 } else { i % 7 }).step_by(if counts { 1 } else { 7 }) {
                    for (x, y) in samples.iter().zip(samples.iter().rev()) {
                        // `known` is exact, so the conditions on values are tested at their limits.
                        let known = [64 - x.leading_zeros() as u8, 64 - y.leading_zeros() as u8];
                        if !rule.when.iter().all(|when| when.holds(width, &[*c, *d], &known)) {
                            continue;
                        }
                        compared += 1;
                        let (was, is) = rule.sides(width, &[*x, *y], &[*c, *d]);
                        if was != is {
                            return Err(format!(
                                "{} at {width:?}, x {x:#x}, y {y:#x}, c {c:#x}, d {d:#x}: {was:#x} is not {is:#x}",
                                rule.name
                            ));
                        }
                    }
                }
            }
        }
        Ok(compared)
    }

    #[test]
    fn both_sides_of_every_rule_are_equal() {
        for rule in RULES {
            assert_ne!(compare(rule), Ok(0), "{}: never holds", rule.name);
            if let Err(why) = compare(rule) {
                panic!("{why}");
            }
        }
    }

    /// Checks that the comparison notices wrong rules.
    #[test]
    fn a_wrong_rule_is_noticed() {
        let rotate = RULES.iter().find(|rule| rule.name == "x << c | x >> d").unwrap();
        assert!(compare(&Rule { when: &[NOT_ZERO], ..*rotate }).is_err());
        assert!(compare(&Rule { out: Out::Op(Rotl, &OX, &Out::Con(KD)), ..*rotate }).is_err());
        let mask = RULES.iter().find(|rule| rule.name == "x & mask of all it has").unwrap();
        assert!(compare(&Rule { when: &[], ..*mask }).is_err());
    }

    #[test]
    fn the_rules_of_an_operation_stand_together() {
        for rule in RULES {
            assert!(of(rule.op).iter().any(|found| found.name == rule.name), "{}", rule.name);
            assert!(of(rule.op).iter().all(|found| found.op == rule.op));
        }
    }
}
