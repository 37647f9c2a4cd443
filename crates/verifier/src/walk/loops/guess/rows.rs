//! Rows of a table with a variable width: places that every round moves by the same unknown number.
//!
//! Problem: clang compiles `a[i * n + j]` to `row += 4 * n`, so a row begins at `start + 4 * n * i`, which no line
//! ([`crate::state::Line`]) expresses. Approach: a place that a sample round has moved by a multiple of an unchanged
//! number is assumed to be `start + scale * V(p)`, where `V(p) = V(k) * V(by)` is a product with the loop's round
//! ([`crate::walk::products`]).
//!
//! Claim: this equation holds in each round. Proof: by induction. When the loop begins, k is 0, so the product is 0,
//! and the place holds its initial value. The state that comes back is proven to be `scale * V(by)` more than the
//! candidate said, before any name passes to the next round ([`Guess::held_rows`]). So the place then holds the sum
//! `start + scale * (V(k) + 1) * V(by)`. Then k increases by one; p, and the sum with the start, are dropped and
//! defined anew for the present values ([`Guess::enter_rows`]). V(by) and V(start) are equal in all rounds: both are
//! names from outside the loop, or of unchanged places, and neither is a region's length, which may change. The product
//! is still known, which shows that neither name was given to another number.

use super::place::{Place, places, put, value};
use super::{Fresh, Guess, loosened};
use crate::env::Env;
use crate::faults::planted;
use crate::integer::row_sum;
use crate::scalar::Scalar;
use crate::state::{Product, State, Sum};
use crate::value::{FIRST_FREE_ID, Ty, Value};
use crate::walk::linear::Form;

/// The multiples that are tried: sizes of elements.
const TIMES: [i16; 5] = [1, 2, 4, 8, 16];
/// The most such places of a loop.
const MAX_ROWS: usize = 4;
/// The most questions about one round, whether it moved a place by a multiple of another: each frame may hold dozens of
/// either, and each question uses all facts of a state.
const MAX_QUESTIONS: u32 = 600;

/// A place that each round moves by `times` the value of another place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Stride {
    pub(super) place: Place,
    pub(super) by: Place,
    times: i16,
}

/// A stride in a candidate.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Row {
    pub(super) place: Place,
    /// The product whose multiple `scale * V(product.p)` is the distance moved. Its factors are the round and the
    /// number by which the place moves.
    scale: i16,
    pub(super) product: Product,
    /// The sum of the start and the product, if the start is not a constant.
    sum: Option<Sum>,
    /// The place is `multiple * V(name) + delta`, with the name of the sum or of the product.
    multiple: i16,
    delta: i32,
}

/// Whether the value may be the start of a row.
fn may_move(v: &Value) -> bool {
    let moves =
        matches!(v.ty, Ty::Scalar | Ty::Packet { .. } | Ty::Stack { .. } | Ty::MapValue { .. } | Ty::Mem { .. });
    moves && !v.null && v.scale > 0
}

/// The places that a sample round moved by multiples of unchanged numbers, among the places that it moved by no
/// constant.
pub(super) fn strides(entry: &State, back: &State, moved: impl Iterator<Item = Place>) -> Vec<Stride> {
    let tie = |v: &Value| (v.line_id(), v.scale, v.delta);
    let stays = |p: &Place| {
        let (e, b) = (value(entry, *p)?, value(back, *p)?);
        (e.is_scalar() && b.is_scalar() && e.line_id() >= FIRST_FREE_ID && tie(&e) == tie(&b)).then(|| Form::of(&e))?
    };
    let mut still: Vec<(Place, Form)> = Vec::new();
    for (place, form) in places(entry).filter_map(|p| Some((p, stays(&p)?))) {
        if !still.iter().any(|(_, known)| *known == form) {
            still.push((place, form));
        }
    }
    let mut asked = 0;
    let stride = |place: Place| {
        let (e, b) = (value(entry, place)?, value(back, place)?);
        if e.ty != b.ty || !may_move(&e) || b.line_id() == 0 {
            return None;
        }
        let (from, to) = (Form::of(&e)?, Form::of(&b)?);
        let mut moved = |by: &Form, times: i16| {
            asked += 1;
            asked <= MAX_QUESTIONS
                && from.clone().plus(by, times.into()).is_some_and(|moved| back.proves_equal(&moved, &to))
        };
        let tried = still.iter().flat_map(|(by, form)| TIMES.map(|times| (*by, form, times)));
        let (by, _, times) = tried.into_iter().find(|(_, form, times)| moved(form, *times))?;
        Some(Stride { place, by, times })
    };
    moved.filter_map(stride).take(MAX_ROWS).collect()
}

impl Row {
    /// The names that denote other numbers in each round.
    pub(super) fn names(&self) -> impl Iterator<Item = u32> {
        [Some(self.product.p), self.sum.map(|t| t.s)].into_iter().flatten()
    }

    /// The value of the place in the candidate's names.
    fn named(&self, v: Value) -> Value {
        v.renamed(self.sum.map_or(self.product.p, |t| t.s), self.multiple, self.delta)
    }

    /// Enters the equations of the row.
    fn enter(&self, state: &mut State) {
        state.push_product(self.product);
        if let Some(sum) = self.sum {
            state.push_sum(sum);
        }
    }
}

impl Guess {
    /// Makes rows of the strides. A stride that cannot be a row makes its place unknown.
    pub(super) fn begin_rows(&mut self, strides: &[Stride], env: &Env<'_>, loose: bool, next_id: &mut u32) {
        for stride in strides {
            let Some(v) = value(&self.state, stride.place) else { continue };
            let n = if loose { loosened(&v, env) } else { v.n };
            self.name_stride(stride, next_id);
            match self.row(stride, &v, next_id) {
                Some(row) => {
                    row.enter(&mut self.state);
                    // The row rises.
                    let n = match v.is_scalar() {
                        true => n.meet(&Scalar::unsigned(v.n.umin(), u64::MAX)),
                        false => n.meet(&Scalar::signed(v.n.smin(), i64::MAX)),
                    };
                    put(&mut self.state, stride.place, row.named(Value { n: n.unwrap_or(v.n), ..v }));
                    if let Some(mark) = self.state.top_mut().loops.last_mut() {
                        mark.ids.extend(row.names());
                    }
                    self.rows.push(row);
                }
                None => put(&mut self.state, stride.place, Value { n, ..v.adrift(next_id) }),
            }
        }
    }

    /// Gives the number by which a row moves a name, if it is at a distance from one. The number is the same when the
    /// loop begins.
    fn name_stride(&mut self, stride: &Stride, next_id: &mut u32) {
        let Some(by) = value(&self.state, stride.by).filter(|by| by.is_scalar() && by.delta != 0) else { return };
        let named = self.state.name_at_distance(&by, next_id);
        if named.id != by.id {
            for place in places(&self.state) {
                if let (Some(v), Some(e)) = (value(&self.state, place), value(&self.entry, place))
                    && v.id == named.id
                    && (e.id, e.scale, e.delta) == (by.id, by.scale, by.delta)
                {
                    put(&mut self.entry, place, e.renamed(named.id, 1, 0));
                }
            }
            if let Some(mark) = self.state.top_mut().loops.last_mut() {
                mark.ids.push(named.id);
            }
        }
    }

    fn row(&self, stride: &Stride, v: &Value, next_id: &mut u32) -> Option<Row> {
        let by = value(&self.state, stride.by).filter(|by| by.is_scalar() && by.scale > 0 && by.delta == 0)?;
        let scale = stride.times.checked_mul(by.scale)?;
        let stays = |id: u32| id >= FIRST_FREE_ID && !self.state.may_be_negative(id);
        if !stays(by.id) || !may_move(v) {
            return None;
        }
        let mut fresh = Fresh(next_id);
        let product = Product { p: fresh.name(), a: self.k, b: by.id };
        let row = Row { place: stride.place, scale, product, sum: None, multiple: scale, delta: 0 };
        let (id, times, delta) = match Form::of(v) {
            Some(start) => match start.single() {
                Some((id, times, delta)) => (id, i16::try_from(times).ok()?, delta),
                None => return Some(Row { delta: i32::try_from(start.as_const()?).ok()?, ..row }),
            },
            None if v.is_in_region() => return Some(Row { delta: v.delta, ..row }),
            None => return None,
        };
        let (delta, p) = (i32::try_from(delta).ok()?, product.p);
        if !stays(id) {
            return None;
        }
        let [of_start, of_p, multiple] = row_sum::<i128>(times.into(), scale.into())?;
        let (a, (b, scale)) = if of_p == 1 { (p, (id, of_start)) } else { (id, (p, of_p)) };
        let (scale, multiple) = (i64::try_from(scale).ok()?, i16::try_from(multiple).ok()?);
        let sum = Sum { s: fresh.name(), a, b, scale, delta: 0, max: i64::MAX, split: false };
        Some(Row { sum: Some(sum), multiple, delta, ..row })
    }

    /// Whether a row has the name.
    pub(super) fn names_row(&self, id: u32) -> bool {
        self.rows.iter().any(|row| row.names().any(|name| name == id))
    }

    pub(super) fn names_row_of(&self, place: Place) -> bool {
        self.rows.iter().any(|row| row.place == place)
    }

    /// The rows that came back moved by exactly the required distance.
    pub(super) fn held_rows(&self, back: &State) -> Vec<Row> {
        let moved = |row: &Row| {
            let (g, b) = (value(&self.state, row.place)?, value(back, row.place)?);
            let next = Form::of(&g)?.plus(&Form::name(row.product.b), row.scale.into())?;
            let known = g.ty == b.ty && !b.null && back.products.contains(&row.product);
            Some(known && (planted!(RowsUnchecked) || back.proves_equal(&next, &Form::of(&b)?)))
        };
        self.rows.iter().filter(|row| moved(row) == Some(true)).copied().collect()
    }

    /// Enters the rows in a state that came back and has the round number of the next round: their names get the
    /// present values.
    pub(super) fn enter_rows(&self, held: &[Row], back: &mut State) {
        for row in held {
            let Some(v) = value(back, row.place) else { continue };
            row.enter(back);
            put(back, row.place, row.named(v));
            // Bounds it by the possible round numbers.
            if let Some(k) = back.top().loops.last().map(|m| m.k).filter(|k| k.id == row.product.a) {
                back.bound(k.id, k.n.umin().into(), k.n.umax().into(), 2);
            }
        }
    }

    /// The places of rows that did not come back as required.
    pub(super) fn lost_rows(&self, held: &[Row]) -> Vec<Place> {
        self.rows.iter().filter(|row| !held.contains(row)).map(|row| row.place).collect()
    }

    /// Forgets the names of all rows, which denote other numbers from now on.
    pub(super) fn forget_rows(&self, state: &mut State, next_id: &mut u32) {
        let names: Vec<u32> = self.rows.iter().flat_map(Row::names).collect();
        forget_names(state, &names, next_id);
    }
}

/// Forgets the facts about the names, and removes the names from values.
pub(super) fn forget_names(state: &mut State, names: &[u32], next_id: &mut u32) {
    let named = |id: u32| names.contains(&id);
    if names.is_empty() {
        return;
    }
    state.room.retain(|f| !named(f.id) && !named(f.hi));
    state.sums.retain(|t| ![t.s, t.a, t.b].into_iter().any(named));
    state.forget_products(named);
    for v in state.values_mut().filter(|v| v.line_id() != 0 && names.contains(&v.line_id())) {
        *v = v.adrift(next_id);
    }
}
