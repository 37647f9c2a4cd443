//! Projection: the consequences of a state's rows for the names of an invariant.
//!
//! Problem: an invariant at a loop head needs rows between what the loop moves, for instance `offset + 4 * left <=
//! length` in a binary search. Approach: each name of the invariant is a form over the names of a state that reaches
//! the point. These equations and the state's rows and bounds are a polyhedron; its names are eliminated, by Gauss
//! where an equation has them and by Fourier and Motzkin elsewhere. The remaining rows are candidates: each was true in
//! one state, and a candidate that does not hold in the others is dropped (constraint-based weak join:
//! Sankaranarayanan, Colon, Sipma and Manna, VMCAI 2006; Houdini: Flanagan and Leino, FME 2001).

use std::collections::BTreeSet;

use bpf_verifier_core::{Form, Knowledge, Known, Name, Scalar};

use crate::fuel;

/// Units of fuel for two rows that are combined, and for two that are compared.
const COMBINE: u64 = 200;
const COMPARE: u64 = 10;

/// The most rows at any time, and the most pairs of rows that one step of Fourier-Motzkin elimination combines.
const MAX_ROWS: usize = 96;
const MAX_PAIRS: usize = 48;
/// The most names of the state that are considered.
const MAX_NAMES: usize = 24;
/// Greatest coefficient of a candidate, and greatest constant.
const MAX_COEFFICIENT: i128 = 1 << 20;
const MAX_CONSTANT: i128 = 1 << 34;

/// Rows over the names of an invariant (`claim`), which `renaming` states over those of the state.
pub(super) fn rows(known: &Knowledge, claim: &[Known], renaming: &[Form]) -> Vec<Form> {
    let Some(shift) = u32::try_from(claim.len()).ok() else { return Vec::new() };
    // Names of the invariant come first, then those of the state.
    let moved = |form: &Form| Form::sum(form.terms().iter().map(|(n, a)| (Name(n.0 + shift), *a)), form.offset());
    let mut names: BTreeSet<Name> = renaming.iter().flat_map(|form| form.terms().iter().map(|(n, _)| *n)).collect();
    let mut rows: Vec<Form> = Vec::new();
    let mut taken = vec![false; known.rows().len()];
    for _ in 0..3 {
        let reached = names.clone();
        for (row, taken) in known.rows().iter().zip(&mut taken) {
            if *taken || rows.len() >= MAX_ROWS / 2 || !row.terms().iter().any(|(n, _)| reached.contains(n)) {
                continue;
            }
            *taken = true;
            names.extend(row.terms().iter().map(|(n, _)| *n));
            rows.extend(moved(row));
        }
    }
    if names.len() > MAX_NAMES {
        return Vec::new();
    }
    for n in &names {
        let Some(is) = known.names().get(n.index()) else { continue };
        let (min, max) = is.bounds();
        let (least, most) = Known { word: Scalar::UNKNOWN, signed: is.signed }.bounds();
        let name = Form::name(Name(n.0 + shift));
        rows.extend((min > least).then(|| name.shifted(-min)).flatten());
        rows.extend((max < most).then(|| name.times(-1).and_then(|f| f.shifted(max))).flatten());
    }
    let equation = |(i, form): (u32, &Form)| moved(form)?.plus(&Form::name(Name(i)), -1);
    let mut equations: Vec<Form> = (0u32..).zip(renaming).filter_map(equation).collect();
    let of_state =
        |form: &Form| form.terms().iter().rev().copied().take_while(|(n, _)| n.0 >= shift).collect::<Vec<_>>();
    // Gauss: the equation with the least coefficient first.
    loop {
        let candidates = equations.iter().enumerate().flat_map(|(i, e)| of_state(e).into_iter().map(move |t| (i, t)));
        let Some((i, (n, a))) = candidates.min_by_key(|(_, (_, a))| a.unsigned_abs()) else { break };
        let by = equations.swap_remove(i);
        fuel::charge_each(equations.len() + rows.len(), COMBINE);
        equations = equations.iter().filter_map(|e| without(e, n, &by, a)).collect();
        rows = rows.iter().filter_map(|row| without(row, n, &by, a)).collect();
    }
    // The remaining equations contain only the invariant's names.
    for e in equations {
        rows.extend(e.times(-1));
        rows.push(e);
    }
    tidy(&mut rows);
    // Fourier and Motzkin: the name with the fewest pairs first.
    loop {
        let left: BTreeSet<Name> = rows.iter().flat_map(|row| of_state(row).into_iter().map(|(n, _)| n)).collect();
        let signs = |n: Name| {
            let coefficient = |row: &Form| row.terms().iter().find(|(m, _)| *m == n).map_or(0, |(_, a)| *a);
            let (above, rest): (Vec<&Form>, Vec<&Form>) = rows.iter().partition(|row| coefficient(row) > 0);
            (above, rest.into_iter().filter(|row| coefficient(row) < 0).collect::<Vec<_>>())
        };
        let Some(n) = left.into_iter().min_by_key(|n| {
            let (above, below) = signs(*n);
            above.len() * below.len()
        }) else {
            break;
        };
        let (above, below) = signs(n);
        let mut combined = Vec::new();
        for a in &above {
            for b in below.iter().take(MAX_PAIRS / above.len().max(1) + 1) {
                fuel::charge(COMBINE);
                combined.extend(cancelled(a, b, n));
            }
        }
        rows.retain(|row| !row.terms().iter().any(|(m, _)| *m == n));
        rows.extend(combined);
        tidy(&mut rows);
    }
    let within = |value: i128, most: i128| (-most..=most).contains(&value);
    let small =
        |row: &Form| within(row.offset(), MAX_CONSTANT) && row.terms().iter().all(|(_, a)| within(*a, MAX_COEFFICIENT));
    rows.retain(|row| row.terms().len() > 1 && small(row));
    rows.sort_by_key(|row| (row.terms().len(), row.terms().iter().map(|(_, a)| a.unsigned_abs()).max()));
    rows
}

/// The form, times a number above 0, with a name cancelled by an equation in which it has the coefficient `a`.
fn without(form: &Form, n: Name, equation: &Form, a: i128) -> Option<Form> {
    let Some((_, b)) = form.terms().iter().find(|(m, _)| *m == n) else { return Some(form.clone()) };
    form.times(a.checked_abs()?)?.plus(equation, b.checked_mul(a.signum())?.checked_neg()?)
}

/// The sum of multiples above 0 of two rows, in which a name cancels out.
fn cancelled(above: &Form, below: &Form, n: Name) -> Option<Form> {
    let of = |form: &Form| form.terms().iter().find(|(m, _)| *m == n).map(|(_, a)| *a);
    above.times(of(below)?.checked_neg()?)?.plus(below, of(above)?)
}

/// Tightens rows, and drops repeated rows and rows that others imply.
fn tidy(rows: &mut Vec<Form>) {
    let mut tidied: Vec<Form> = Vec::new();
    fuel::charge_each(rows.len() * rows.len(), COMPARE);
    for row in rows.drain(..) {
        let row = row.tightened();
        if row.terms().is_empty() {
            continue;
        }
        match tidied.iter().position(|other| other.terms() == row.terms()) {
            Some(i) if tidied[i].offset() > row.offset() => tidied[i] = row,
            Some(_) => {}
            None if tidied.len() < 2 * MAX_ROWS => tidied.push(row),
            None => {}
        }
    }
    *rows = tidied;
}
