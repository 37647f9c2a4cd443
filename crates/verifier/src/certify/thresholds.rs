//! Thresholds: the values to which bounds widen (Blanchet et al., PLDI 2003).

use std::collections::BTreeSet;

/// The numbers of weakenings after which bounds widen to constants that decide branches only, to those of orders only,
/// to powers of two only, and to the ends of the range.
pub(super) const TESTS_AFTER: usize = 8;
const ORDERS_AFTER: usize = 24;
const COARSE_AFTER: usize = 40;
const ENDS_AFTER: usize = 52;

/// The thresholds of a program.
#[derive(Debug)]
pub(super) struct ThresholdSets {
    all: BTreeSet<i128>,
    /// Constants that may decide a branch, and those of `coarse`. A loop ends at one of them, and other constants on
    /// the way there would take a weakening each.
    tests: BTreeSet<i128>,
    /// Constants that a number is above or below of, and those of `coarse`: a scanner of texts compares characters with
    /// many constants, and its counters with few.
    orders: BTreeSet<i128>,
    /// Powers of two.
    coarse: BTreeSet<i128>,
    /// None.
    ends: BTreeSet<i128>,
}

impl ThresholdSets {
    /// The program has these `constants`; those of `compared` may decide a branch, those of `ordered` by an order.
    pub(super) fn new(
        constants: impl IntoIterator<Item = i128>,
        compared: impl IntoIterator<Item = i128>,
        ordered: impl IntoIterator<Item = i128>,
    ) -> ThresholdSets {
        let near = |c: i128| [c - 1, c, c + 1];
        let mut all: BTreeSet<i128> = constants.into_iter().flat_map(near).collect();
        for bits in [0, 4, 8, 12, 16, 20, 24, 30, 31, 32, 62, 63, 64] {
            all.extend([(1i128 << bits) - 1, -(1i128 << bits)]);
        }
        let coarse = [8, 16, 30, 32, 63].into_iter().flat_map(|bits| [(1i128 << bits) - 1, 1i128 << bits]);
        let coarse: BTreeSet<i128> = coarse.chain([-1, 0, -(1i128 << 31)]).collect();
        let tests = compared.into_iter().flat_map(near).chain(coarse.iter().copied()).collect();
        let orders = ordered.into_iter().flat_map(near).chain(coarse.iter().copied()).collect();
        ThresholdSets { all, tests, orders, coarse, ends: BTreeSet::new() }
    }

    /// Those for a claim, or a name, that was weakened so many times, with their number.
    pub(super) fn after(&self, weakened: usize) -> (usize, &BTreeSet<i128>) {
        match weakened {
            0..TESTS_AFTER => (0, &self.all),
            TESTS_AFTER..ORDERS_AFTER => (1, &self.tests),
            ORDERS_AFTER..COARSE_AFTER => (2, &self.orders),
            COARSE_AFTER..ENDS_AFTER => (3, &self.coarse),
            _often => (4, &self.ends),
        }
    }
}

/// The values that bounds widen to; `None` to join them.
pub(super) type Thresholds<'a> = Option<&'a BTreeSet<i128>>;

pub(super) fn below_of(thresholds: Thresholds<'_>, min: i128, least: i128) -> i128 {
    let widened = thresholds.map_or(Some(min), |all| all.range(..=min).next_back().copied());
    widened.unwrap_or(least).max(least)
}

pub(super) fn above_of(thresholds: Thresholds<'_>, max: i128, most: i128) -> i128 {
    let widened = thresholds.map_or(Some(max), |all| all.range(max..).next().copied());
    widened.unwrap_or(most).min(most)
}
