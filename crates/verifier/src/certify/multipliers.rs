//! Multipliers by which rows show that a form is not negative.
//!
//! Goal-directed elimination: of what is left of the claim, a name whose bounds make it negative is cancelled by a row
//! that has it with the same sign, and so on, few rows deep. It finds less than Fourier and Motzkin's method, and
//! touches only rows that matter.

use bpf_verifier_core::{Combination, Form, Knowledge};

/// Rows in one combination at most.
const DEPTH: usize = 5;
/// Combinations tried at most.
const TRIES: usize = 100;

/// Multipliers for the claim, if some are found.
pub(super) fn find(known: &Knowledge, claim: &Form) -> Option<Combination> {
    let mut tries = TRIES;
    let mut used = Vec::new();
    let scale = eliminate(known, claim, 1, &mut used, &mut tries)?;
    Some(Combination { scale, rows: used })
}

/// `rest` is `scale * claim` less the rows used so far.
fn eliminate(
    known: &Knowledge,
    rest: &Form,
    scale: i128,
    used: &mut Vec<(u32, i128)>,
    tries: &mut usize,
) -> Option<i128> {
    let (min, max) = known.bounds(rest)?;
    if min > -scale {
        return Some(scale);
    }
    if used.len() == DEPTH || max < 0 {
        return None;
    }
    for (n, a) in rest.terms() {
        for (i, row) in (0u32..).zip(known.rows()) {
            let Some((_, b)) = row.terms().iter().find(|(m, _)| m == n) else { continue };
            if (*a > 0) != (*b > 0) || used.iter().any(|(j, _)| *j == i) {
                continue;
            }
            *tries = tries.checked_sub(1)?;
            // |b| * rest - |a| * row has n no more.
            let divisor = gcd(a.unsigned_abs(), b.unsigned_abs());
            let (of_rest, of_row) =
                (i128::try_from(b.unsigned_abs() / divisor).ok()?, i128::try_from(a.unsigned_abs() / divisor).ok()?);
            let Some(next) = rest.times(of_rest).and_then(|rest| rest.plus(row, of_row.checked_neg()?)) else {
                continue;
            };
            let before = used.clone();
            used.iter_mut().for_each(|(_, times)| *times = times.saturating_mul(of_rest));
            used.push((i, of_row));
            if let Some(scale) = eliminate(known, &next, scale.saturating_mul(of_rest), used, tries) {
                return Some(scale);
            }
            *used = before;
        }
    }
    None
}

fn gcd(a: u128, b: u128) -> u128 {
    if b == 0 { a.max(1) } else { gcd(b, a % b) }
}
