//! Invariants at loop heads: candidates that are only ever weakened.
//!
//! A point is identified by its instruction and chain of calls. Each name of its invariant has a *recipe*, by which the
//! renaming of a state is found: the name is the difference between the value at a place and the first value there,
//! divided by a step. In this way, a number that moves by a constant each round becomes `first + step * name`, and all
//! numbers that move alike share the name, which counts rounds.

mod candidates;

use std::collections::HashMap;

use bpf_analysis::RegSet;
use bpf_isa::{InsnIdx, Reg};
use bpf_verifier_core::{
    Base, Byte, Cell, Form, Frame, Invariant, Kept, Knowledge, Known, Name, Pointer, Scalar, Stack, State, Value,
};

use super::multipliers;
use super::partition::{Chain, Key, Keys, chain, resolved};
use super::project;
use super::thresholds::{TESTS_AFTER, ThresholdSets, Thresholds, above_of, below_of};
use crate::fuel;

/// Units of fuel for each name, row and place of a point that is compared with a state.
const PLACE: u64 = 200;

/// The place of a value.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Place {
    Reg(usize, usize),
    Slot(usize, u32, u32),
    Length(usize),
}

/// How a name is found in a state.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Recipe {
    /// `(value at the place - first) / step`.
    Of { place: Place, first: Form, step: i128 },
    /// Whether the pointer there is not null.
    Presence(Place),
    /// The name is in no value, so any integer will do.
    Unused,
}

/// A loop head that is kept.
#[derive(Clone, Debug)]
pub(super) struct PointState {
    pub(super) at: InsnIdx,
    chain: Chain,
    pub(super) claim: Invariant,
    recipes: Vec<Recipe>,
    /// For each name, the number of times that its bounds were weakened: each has its own thresholds, since a late name
    /// would widen to the ends of its type at once.
    widened: Vec<usize>,
    /// Rows that the bounds of names and one row of the claim imply. They take the place of rows that do not hold.
    implied: Vec<Form>,
    /// Rows that did not hold.
    dropped: Vec<Form>,
    /// States whose rows were projected on the claim's names, since the claim widens to thresholds of this stage.
    projected: usize,
    stage: usize,
    /// The number of names that count from another value than at first.
    rebased: usize,
    /// The number of times that the claim was weakened.
    weakened: usize,
}

/// The number of states whose rows are projected although no name is new, for each set of thresholds: a state has a row
/// only where bounds do not imply it, which bounds that have become weaker may no longer do.
const PROJECTIONS: usize = 4;

/// Bytes of a term of a form.
const TERM_BYTES: usize = size_of::<(Name, i128)>();

/// Approximate bytes of forms.
pub(super) fn bytes_of(forms: &[Form]) -> usize {
    forms.iter().map(|form| size_of::<Form>() + form.terms().len() * TERM_BYTES).sum()
}

/// How a point has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Change {
    /// Not at all.
    None,
    /// The claim is weaker: it covers every state that it covered before.
    Weaker,
    /// The claim has a new name or row, which states that it covered before may not satisfy.
    New,
}

/// All points.
#[derive(Debug)]
pub(super) struct Points {
    pub(super) all: Vec<PointState>,
    at: HashMap<Key, usize>,
    keys: Keys,
    thresholds: ThresholdSets,
}

/// The number at a place; for a pointer, its offset.
pub(super) fn number_at(lengths: &[Form], frames: &[Frame], place: Place) -> Option<Form> {
    let number = |value: &Value| match value {
        Value::Number(form) => Some(form.clone()),
        Value::Pointer(pointer) => Some(pointer.offset.clone()),
        Value::Unset => None,
    };
    match place {
        Place::Length(region) => lengths.get(region).cloned(),
        Place::Reg(frame, reg) => number(frames.get(frame)?.regs.get(reg)?),
        Place::Slot(frame, depth, size) => {
            let cells = frames.get(frame)?.stack.cells();
            number(&cells.iter().find(|cell| (cell.depth, cell.size) == (depth, size))?.value)
        }
    }
}

fn value_at(frames: &[Frame], place: Place) -> Option<&Value> {
    match place {
        Place::Length(_) => None,
        Place::Reg(frame, reg) => frames.get(frame)?.regs.get(reg),
        Place::Slot(frame, depth, size) => {
            let cells = frames.get(frame)?.stack.cells();
            cells.iter().find(|cell| (cell.depth, cell.size) == (depth, size)).map(|cell| &cell.value)
        }
    }
}

/// Every place of an invariant that holds something.
pub(super) fn places(lengths: &[Form], frames: &[Frame]) -> Vec<Place> {
    let mut all: Vec<Place> = (0..lengths.len()).map(Place::Length).collect();
    for (f, frame) in frames.iter().enumerate() {
        all.extend((0..10).filter(|r| frame.regs[*r] != Value::Unset).map(|r| Place::Reg(f, r)));
        all.extend(frame.stack.cells().iter().map(|cell| Place::Slot(f, cell.depth, cell.size)));
    }
    all
}

/// `a - b`, if that is a constant.
fn apart(a: &Form, b: &Form) -> Option<i128> {
    a.plus(b, -1)?.residue(64).as_const()
}

impl Points {
    pub(super) fn new(keys: Keys, thresholds: ThresholdSets) -> Points {
        Points { all: Vec::new(), at: HashMap::new(), keys, thresholds }
    }

    /// The points in the core's form, with these ranks.
    pub(super) fn kept(&self, rank: impl Fn(usize) -> Vec<Form>) -> Vec<Kept> {
        self.all.iter().enumerate().map(|(i, point)| point.kept(rank(i))).collect()
    }

    /// The point that a state belongs to.
    pub(super) fn find(&self, at: InsnIdx, state: &State, live: RegSet) -> Option<usize> {
        self.at.get(&self.keys.key(at, state, live)).copied()
    }

    /// Creates a point with the facts of the first state there.
    pub(super) fn begin(&mut self, at: InsnIdx, state: &State, live: RegSet) -> usize {
        let mut point = PointState {
            at,
            chain: chain(state.frames()),
            claim: state.to_invariant(),
            recipes: Vec::new(),
            widened: Vec::new(),
            implied: Vec::new(),
            dropped: Vec::new(),
            projected: 0,
            stage: 0,
            rebased: 0,
            weakened: 0,
        };
        if let Some(frame) = point.claim.frames.last_mut() {
            Reg::ALL
                .into_iter()
                .filter(|reg| !live.contains(*reg))
                .for_each(|reg| frame.regs[reg.index()] = Value::Unset);
        }
        point.generalise(state);
        self.at.insert(self.keys.key(at, state, live), self.all.len());
        self.all.push(point);
        self.all.len() - 1
    }

    /// Weakens the point until it covers the state, and returns how it has changed.
    pub(super) fn weaken(&mut self, i: usize, state: &State, is_head: bool) -> Change {
        let Some(mut point) = self.all.get(i).cloned() else { return Change::None };
        let places = point.claim.frames.iter().map(|frame| 11 + frame.stack.cells().len()).sum::<usize>();
        fuel::charge_each(point.claim.names.len() + point.claim.rows.len() + places, PLACE);
        let names = point.claim.names.len();
        let stage = self.thresholds.after(point.weakened).0;
        if stage > point.stage {
            (point.stage, point.projected) = (stage, 0);
        }
        let changed = point.weaken(state, is_head.then_some(&self.thresholds));
        if !changed {
            return Change::None;
        }
        point.weakened += 1;
        // States that were covered before need not satisfy a new name or row, and a number that may wrap must get a
        // name before it is compared with the claim.
        let is_new = point.claim.names.len() > names
            || point.rebased != self.all[i].rebased
            || point.claim.rows.iter().any(|row| !self.all[i].implies(row))
            || point.unnamed(state).is_some();
        self.all[i] = point;
        if is_new { Change::New } else { Change::Weaker }
    }
}

impl PointState {
    /// The point in the core's form, with this rank.
    pub(super) fn kept(&self, rank: Vec<Form>) -> Kept {
        Kept { at: self.at, claim: self.claim.clone(), rank }
    }

    /// Approximate bytes that the point holds.
    pub(super) fn bytes(&self) -> usize {
        let frames = self.claim.frames.iter().map(|frame| {
            size_of::<Frame>()
                + frame.stack.bytes().len()
                + frame.stack.cells().len() * (size_of::<Cell>() + TERM_BYTES)
        });
        let names = self.claim.names.len() * (size_of::<Known>() + size_of::<Recipe>() + TERM_BYTES);
        names + bytes_of(&self.claim.rows) + bytes_of(&self.implied) + bytes_of(&self.dropped) + frames.sum::<usize>()
    }

    /// The instructions of its calls, then its own: the order in which points are walked.
    pub(super) fn order(&self) -> Vec<u32> {
        let calls = self.chain.iter().filter_map(|(_, back)| Some(back.as_ref()?.0));
        calls.chain([self.at.0]).collect()
    }

    fn number(&self, place: Place) -> Option<Form> {
        number_at(&self.claim.lengths, &self.claim.frames, place)
    }

    fn set(&mut self, place: Place, form: Option<Form>) {
        let (lengths, frames) = (&mut self.claim.lengths, &mut self.claim.frames);
        let replaced = |value: &Value, form: Option<Form>| match (value, form) {
            (Value::Number(_), Some(form)) => Value::Number(form),
            (Value::Pointer(p), Some(offset)) => Value::Pointer(Pointer { offset, ..p.clone() }),
            (Value::Unset, _) | (_, None) => Value::Unset,
        };
        match place {
            Place::Length(region) => {
                if let Some(form) = form {
                    lengths[region] = form;
                }
            }
            Place::Reg(frame, reg) => {
                let reg = &mut frames[frame].regs[reg];
                *reg = replaced(reg, form);
            }
            Place::Slot(frame, depth, size) => {
                let stack = frames[frame].stack.clone();
                let old = stack.cells().iter().find(|cell| (cell.depth, cell.size) == (depth, size));
                let value = old.map(|cell| replaced(&cell.value, form));
                frames[frame].stack = match value {
                    Some(value) if value != Value::Unset => stack.with_cell(Cell { depth, size, value }),
                    Some(_) | None => stack.without(depth),
                };
            }
        }
    }

    fn fresh(&mut self, known: Known, recipe: Recipe) -> Form {
        let name = Name(u32::try_from(self.claim.names.len()).unwrap_or(u32::MAX));
        self.claim.names.push(known);
        self.recipes.push(recipe);
        self.widened.push(self.weakened.min(TESTS_AFTER));
        Form::name(name)
    }

    /// Expresses the facts of a state by names that have recipes.
    fn generalise(&mut self, state: &State) {
        let known = state.known();
        let of = |n: Name| known.names().get(n.index()).copied();
        let mut names: Vec<Option<Form>> = vec![None; known.names().len()];
        (self.claim.names, self.claim.rows) = (Vec::new(), Vec::new());
        // Presence comes first, since it identifies records.
        for place in places(&self.claim.lengths, &self.claim.frames) {
            if let Some(Value::Pointer(Pointer { present: Some(n), .. })) = value_at(state.frames(), place)
                && let (Some(is), true) = (of(*n), names.get(n.index()).is_some_and(Option::is_none))
            {
                names[n.index()] = Some(self.fresh(is, Recipe::Presence(place)));
            }
        }
        for place in places(&self.claim.lengths, &self.claim.frames) {
            let Some(form) = number_at(state.lengths(), state.frames(), place) else { continue };
            let unknown: Vec<_> = form.terms().iter().filter(|(n, _)| names[n.index()].is_none()).copied().collect();
            if let [(n, step)] = unknown[..]
                && let Some(is) = of(n)
            {
                let rest = step
                    .checked_neg()
                    .and_then(|by| form.plus(&Form::name(n), by))
                    .and_then(|rest| renamed(&rest, &names));
                if let Some(first) = rest {
                    names[n.index()] = Some(self.fresh(is, Recipe::Of { place, first, step }));
                }
            }
            let restated = match renamed(&form, &names) {
                Some(form) => form,
                // Names that no place determines.
                None => {
                    let word = known.word(&form);
                    let is = Known { word, signed: word.smin() < 0 && word.umax() > i64::MAX as u64 };
                    self.fresh(is, Recipe::Of { place, first: Form::constant(0), step: 1 })
                }
            };
            self.set(place, Some(restated));
        }
        self.add_rows(known.rows().iter().filter_map(|row| renamed(row, &names)).collect());
        let name = |n: &Name| names.get(n.index())?.as_ref()?.as_name();
        for frame in &mut self.claim.frames {
            restate_values(frame, |value| restate_pointer(value, name));
        }
        self.project(state);
        let held: Vec<Name> = state.held().to_vec();
        self.claim.held = held.iter().filter_map(name).collect();
    }

    /// Returns the form in a state that each name stands for.
    pub(super) fn renaming(&self, state: &State) -> Option<Vec<Form>> {
        self.renaming_or_lost(state).ok()
    }

    /// The renaming, or the index of the first name that cannot be found.
    fn renaming_or_lost(&self, state: &State) -> Result<Vec<Form>, usize> {
        let mut renaming: Vec<Form> = Vec::new();
        for (recipe, known) in self.recipes.iter().zip(&self.claim.names) {
            let form = found(recipe, known, &renaming, state).ok_or(renaming.len())?;
            renaming.push(form);
        }
        Ok(renaming)
    }

    /// A number of the state that must get a name of its own to be covered, since it may wrap.
    pub(super) fn unnamed(&self, state: &State) -> Option<(Form, bool)> {
        let renaming = self.renaming(state)?;
        self.recipes.iter().zip(&self.claim.names).zip(renaming).find_map(|((recipe, known), form)| {
            let Recipe::Of { place, step: 1, first } = recipe else { return None };
            let at = number_at(state.lengths(), state.frames(), *place)?;
            let is_number = matches!(value_at(state.frames(), *place), Some(Value::Number(_)));
            let whole = known.bounds() == Known { word: Scalar::UNKNOWN, signed: known.signed }.bounds();
            let (min, max) = state.known().bounds(&form)?;
            let (least, most) = known.bounds();
            let plain = first.as_const() == Some(0) && is_number && at.as_name().is_none() && at.residue(64) == at;
            // Rows may prove that the number does not wrap although the bounds of its names do not. A fresh name would
            // have no relation to others.
            let holds = |claim: Option<Form>| claim.is_some_and(|claim| multipliers::holds(state.known(), &claim));
            let above = || min >= least || holds(form.shifted(-least));
            let below = || max <= most || holds(form.times(-1).and_then(|form| form.shifted(most)));
            (whole && plain && !(above() && below())).then_some((at, known.signed))
        })
    }

    /// Weakens the claim to cover the state. Bounds widen to thresholds; without these they are joined.
    fn weaken(&mut self, state: &State, sets: Option<&ThresholdSets>) -> bool {
        let mut changed = false;
        // A step must divide the distance.
        let Some(mut renaming) = self.usable_renaming(state, &mut changed) else { return changed };
        changed |= self.join_kinds(state, &renaming);
        let mut moved = Vec::new();
        for place in places(&self.claim.lengths, &self.claim.frames) {
            let (Some(was), Some(is)) = (self.number(place), number_at(state.lengths(), state.frames(), place)) else {
                continue;
            };
            let expected = was.substitute(&renaming);
            if expected.as_ref().is_some_and(|expected| expected.residue(64) == is.residue(64)) {
                continue;
            }
            let step = expected.as_ref().and_then(|expected| apart(&is, expected));
            moved.push((place, was, is, step));
        }
        let fresh_from = self.claim.names.len();
        let thresholds = sets.map(|sets| sets.after(self.weakened.min(TESTS_AFTER)).1);
        // Places that move by a constant come first, the smallest step first; the other places use its counter where
        // they can.
        moved.sort_by_key(|(_, _, _, step)| step.map_or(u128::MAX, i128::unsigned_abs));
        let mut counter: Option<Form> = None;
        // For places that got a name: their movement, and its expression over the claim's names.
        let mut apart_by: Vec<(Form, Form)> = Vec::new();
        for (place, was, is, step) in moved {
            changed = true;
            let delta = was.substitute(&renaming).and_then(|expected| is.plus(&expected, -1));
            let alike = delta.as_ref().and_then(|delta| {
                apart_by.iter().find_map(|(other, moved)| {
                    let times = [1, -1].into_iter().find(|times| {
                        delta.plus(other, -times).is_some_and(|rest| rest.residue(64).as_const() == Some(0))
                    });
                    Some(was.plus(moved, times?)?.residue(64))
                })
            });
            if let (None, Some(form)) = (step, alike) {
                self.set(place, Some(form));
                continue;
            }
            let form = match step {
                Some(step) => {
                    let rounds = counter.clone().unwrap_or_else(|| {
                        let known = Known { word: Scalar::unsigned(0, 1), signed: false };
                        renaming.push(Form::constant(1));
                        self.fresh(known, Recipe::Of { place, first: was.clone(), step })
                    });
                    counter = Some(rounds.clone());
                    was.plus(&rounds, step).map(|f| f.residue(64))
                }
                None => {
                    let known = joined(&self.claim, &was, state.known(), &is, thresholds);
                    let name = self.fresh(known, Recipe::Of { place, first: Form::constant(0), step: 1 });
                    apart_by.extend(delta.zip(name.plus(&was, -1)));
                    renaming.push(nearest(state.known(), is, &known));
                    Some(name)
                }
            };
            self.set(place, form);
        }
        for i in 0..self.claim.names.len() {
            if self.falls(i, &renaming, state) {
                changed = true;
                self.rebased += 1;
                match self.rebase(i, &renaming, state, thresholds) {
                    Some(form) => renaming[i] = form,
                    None => return true,
                }
            }
            let widened = self.widened.get(i).copied().unwrap_or_default();
            if self.widen(i, &renaming, state, sets.map(|sets| sets.after(widened).1)) {
                changed = true;
                self.widened[i] += 1;
            }
        }
        // A counter that may have any value may wrap, and a value that it counts is a number of its own.
        let lost: Vec<usize> = (0..renaming.len()).filter(|i| self.has_wrapped(*i, &renaming[*i], state)).collect();
        if !lost.is_empty() {
            for i in lost {
                if self.forget(i, state).is_none() {
                    return true;
                }
            }
            match self.renaming(state) {
                Some(found) => renaming = found,
                None => return true,
            }
        }
        if let Some(rounds) = counter.filter(|_| !fuel::is_spent()) {
            self.add_extrapolated(&rounds, state, &renaming);
        }
        if fresh_from < self.claim.names.len() {
            self.add_candidates(fresh_from, state, &renaming);
        }
        if fresh_from < self.claim.names.len() || self.projected < PROJECTIONS {
            self.projected += 1;
            changed |= self.add_rows(project::rows(state.known(), &self.claim.names, &renaming));
        }
        changed | self.drop_rows(&renaming, state)
    }

    /// The renaming, after names whose recipe does not fit have got a simpler one.
    fn usable_renaming(&mut self, state: &State, changed: &mut bool) -> Option<Vec<Form>> {
        for _ in 0..=self.recipes.len() {
            fuel::charge_each(self.recipes.len(), fuel::VALUE);
            let found = match self.renaming_or_lost(state) {
                Ok(renaming) => return Some(renaming),
                Err(_) if fuel::is_spent() => return None,
                Err(found) => found,
            };
            *changed = true;
            self.forget(found, state)?;
        }
        None
    }

    /// Forgets a name: the values that mention it get names of their own. `None` if a held record has the name.
    fn forget(&mut self, found: usize, state: &State) -> Option<()> {
        // The value at the place of the first name that cannot be found is forgotten, with everything that mentions
        // it.
        let lost = Name(u32::try_from(found).ok()?);
        let mentions = |form: &Form| form.terms().iter().any(|(n, _)| *n == lost);
        let place = match &self.recipes[found] {
            Recipe::Of { place, .. } => Some(*place),
            Recipe::Presence(_) | Recipe::Unused => None,
        };
        let at = place.filter(|place| number_at(state.lengths(), state.frames(), *place).is_some());
        for place in places(&self.claim.lengths, &self.claim.frames) {
            if self.number(place).is_some_and(|form| mentions(&form)) && Some(place) != at {
                // The place has a name of its own from here on.
                let known = Known { word: Scalar::UNKNOWN, signed: false };
                let is_there = number_at(state.lengths(), state.frames(), place).is_some();
                let form = is_there.then(|| self.fresh(known, Recipe::Of { place, first: Form::constant(0), step: 1 }));
                self.set(place, form);
            }
        }
        self.claim.rows.retain(|row| !mentions(row));
        self.implied.retain(|row| !mentions(row));
        match at {
            Some(place) => {
                self.recipes[found] = Recipe::Of { place, first: Form::constant(0), step: 1 };
                self.claim.names[found] = Known { word: Scalar::UNKNOWN, signed: false };
                self.set(place, Some(Form::name(lost)));
            }
            None if self.claim.held.contains(&lost) => return None,
            None => {
                self.recipes[found] = Recipe::Unused;
                self.claim.names[found] = Known { word: Scalar::UNKNOWN, signed: false };
                let kept = |n: &Name| (*n != lost).then_some(*n);
                for frame in &mut self.claim.frames {
                    restate_values(frame, |value| match value {
                        Value::Pointer(Pointer { present: Some(n), .. }) if *n == lost => *value = Value::Unset,
                        value => restate_pointer(value, kept),
                    });
                }
            }
        }
        Some(())
    }

    /// Whether the name counts steps, may be any number, and is not proven to be one in this state.
    fn has_wrapped(&self, i: usize, form: &Form, state: &State) -> bool {
        let (Some(Recipe::Of { first, step, .. }), Some(known)) = (self.recipes.get(i), self.claim.names.get(i)) else {
            return false;
        };
        let (least, most) = known.bounds();
        let whole = (least, most) == Known { word: Scalar::UNKNOWN, signed: known.signed }.bounds();
        let holds = |claim: Option<Form>| claim.is_some_and(|claim| multipliers::holds(state.known(), &claim));
        let counts = *step != 1 || first.as_const() != Some(0);
        let within = || holds(form.shifted(-least)) && holds(form.times(-1).and_then(|form| form.shifted(most)));
        whole && counts && !within()
    }

    /// Whether the name counts from 0 up, and the state may have a number below 0 in its place. As an unsigned word, a
    /// number just below 0 is a great one.
    fn falls(&self, i: usize, renaming: &[Form], state: &State) -> bool {
        let (Some(known), Some(form), Some(recipe)) = (self.claim.names.get(i), renaming.get(i), self.recipes.get(i))
        else {
            return false;
        };
        let half = i128::from(i64::MAX);
        let counts = matches!(recipe, Recipe::Of { first, step, .. } if *step != 1 || first.as_const() != Some(0));
        let falls = |(min, _): (i128, i128)| {
            (-half..0).contains(&min) && !multipliers::holds(state.known(), form)
                || counts && min > half && known.bounds().1 <= half
        };
        !known.signed && state.known().bounds(form).is_some_and(falls)
    }

    /// Counts what falls below the first value from 0 on, or, if the name is a value itself or counts in steps above 1,
    /// by a signed name. Returns the form in the state that the name then stands for.
    fn rebase(&mut self, i: usize, renaming: &[Form], state: &State, thresholds: Thresholds<'_>) -> Option<Form> {
        let name = Form::name(Name(u32::try_from(i).ok()?));
        let Some(Recipe::Of { place, first, step }) = self.recipes.get(i).cloned() else { return None };
        let known = *self.claim.names.get(i)?;
        if step.unsigned_abs() > 1 || first.as_const() == Some(0) && step == 1 {
            let (min, max) = known.bounds();
            let signed = Known::range(min, max.min(i64::MAX.into()), true)?;
            self.claim.names[i] = signed;
            return found(&self.recipes[i], &signed, renaming, state);
        }
        let value = first.plus(&name, step)?;
        let is = number_at(state.lengths(), state.frames(), place)?;
        // The name as a form over the value.
        let counted = name.plus(&first, -1)?.times(step)?;
        let known = joined(&self.claim, &value, state.known(), &is, thresholds);
        let replaced = (0..self.claim.names.len()).map(|j| match j == i {
            true => Some(counted.clone()),
            false => Some(Form::name(Name(u32::try_from(j).ok()?))),
        });
        let replaced = replaced.collect::<Option<Vec<Form>>>()?;
        for place in places(&self.claim.lengths, &self.claim.frames) {
            let form = self.number(place).and_then(|form| form.substitute(&replaced));
            self.set(place, form.map(|form| form.residue(64)));
        }
        for rows in [&mut self.claim.rows, &mut self.implied, &mut self.dropped] {
            *rows = rows.iter().filter_map(|row| row.substitute(&replaced)).collect();
        }
        for recipe in &mut self.recipes {
            if let Recipe::Of { first, .. } = recipe {
                *first = first.substitute(&replaced)?;
            }
        }
        self.claim.names[i] = known;
        self.recipes[i] = Recipe::Of { place, first: Form::constant(0), step: 1 };
        found(&self.recipes[i], &known, renaming, state)
    }

    /// Joins kinds: a value that has another kind in the state becomes unset, and a byte gets the join of both kinds.
    fn join_kinds(&mut self, state: &State, renaming: &[Form]) -> bool {
        let mut changed = false;
        for (claim, frame) in self.claim.frames.iter_mut().zip(state.frames()) {
            for (value, is) in claim.regs.iter_mut().zip(&frame.regs) {
                if !alike(value, &resolved(state, is), renaming) {
                    *value = Value::Unset;
                    changed = true;
                }
            }
            for cell in claim.stack.cells().to_vec() {
                let found = frame.stack.cells().iter().find(|c| (c.depth, c.size) == (cell.depth, cell.size));
                if !found.is_some_and(|found| alike(&cell.value, &resolved(state, &found.value), renaming)) {
                    claim.stack = claim.stack.clone().without(cell.depth);
                    changed = true;
                }
            }
            for (depth, (was, is)) in (1u32..).zip(claim.stack.clone().bytes().iter().zip(frame.stack.bytes())) {
                let byte = match (was, is) {
                    (Byte::Opaque, _) | (_, Byte::Opaque) => Byte::Opaque,
                    (Byte::Fresh, Byte::Fresh) => Byte::Fresh,
                    (Byte::Number, Byte::Number) => Byte::Number,
                    (Byte::Fresh | Byte::Number | Byte::Maybe, _) => Byte::Maybe,
                };
                if byte != *was {
                    claim.stack = std::mem::replace(&mut claim.stack, Stack::new(0)).with_byte(depth, byte);
                    changed = true;
                }
            }
        }
        changed
    }

    fn widen(&mut self, i: usize, renaming: &[Form], state: &State, thresholds: Thresholds<'_>) -> bool {
        let (Some(known), Some(form)) = (self.claim.names.get(i).copied(), renaming.get(i)) else { return false };
        let (mut min, mut max) = known.bounds();
        let holds = |claim: Option<Form>| claim.is_some_and(|c| multipliers::holds(state.known(), &c));
        let above = holds(form.shifted(-min));
        let below = holds(form.times(-1).and_then(|f| f.shifted(max)));
        let bits = known.is_range() || state.known().word(form).subset(&known.word);
        if above && below && bits {
            return false;
        }
        let (least, most) = Known { word: Scalar::UNKNOWN, signed: known.signed }.bounds();
        if thresholds.is_none()
            && let Some((to_min, to_max)) = state.known().bounds(form)
            && least <= to_min
            && to_max <= most
        {
            let word = known.word.join(&state.known().word(form));
            self.claim.names[i] = Known { word, ..known };
            return true;
        }
        if !above {
            let (to, _) = bounds_of(state.known(), form).unwrap_or((least, most));
            min = below_of(thresholds, to.min(min), least);
        }
        if !below {
            let (_, to) = state.known().bounds(form).unwrap_or((least, most));
            let to = to.max(max);
            // The thresholds are those of the value, which the name counts in steps.
            let step = match self.recipes.get(i) {
                Some(Recipe::Of { step, .. }) => step.saturating_abs().max(1),
                Some(Recipe::Presence(_) | Recipe::Unused) | None => 1,
            };
            max = match (to.checked_mul(step), most.checked_mul(step)) {
                (Some(value), Some(most)) => above_of(thresholds, value, most).div_euclid(step).max(to),
                _overflow => above_of(thresholds, to, most),
            };
        }
        self.claim.names[i] = Known::range(min, max, known.signed).unwrap_or(Known { word: Scalar::UNKNOWN, ..known });
        true
    }
}

/// The form in this state of a name with this recipe. `renaming`: those of the names before it.
fn found(recipe: &Recipe, known: &Known, renaming: &[Form], state: &State) -> Option<Form> {
    Some(match recipe {
        Recipe::Of { place, first, step } => {
            let at = number_at(state.lengths(), state.frames(), *place)?;
            let moved = at.plus(&first.substitute(renaming)?, -1)?.residue(64);
            let of = if *step < 0 { moved.times(-1)? } else { moved };
            let by = step.checked_abs()?;
            let of = if by == 1 { of } else { of.divided(by)? };
            nearest(state.known(), of, known)
        }
        Recipe::Presence(place) => match value_at(state.frames(), *place).map(|v| resolved(state, v))? {
            Value::Pointer(Pointer { present, .. }) => present.map_or(Form::constant(1), Form::name),
            Value::Number(_) | Value::Unset => Form::constant(0),
        },
        Recipe::Unused => Form::constant(0),
    })
}

/// The form with names replaced, if each of them has a replacement.
fn renamed(form: &Form, names: &[Option<Form>]) -> Option<Form> {
    let mut result = Form::constant(form.offset());
    for (n, a) in form.terms() {
        result = result.plus(names.get(n.index())?.as_ref()?, *a)?;
    }
    Some(result)
}

/// Changes each value of a frame, and forgets slots whose value becomes unset.
fn restate_values(frame: &mut Frame, change: impl Fn(&mut Value)) {
    frame.regs.iter_mut().for_each(&change);
    for mut cell in frame.stack.cells().to_vec() {
        change(&mut cell.value);
        let stack = std::mem::replace(&mut frame.stack, Stack::new(0));
        frame.stack = match cell.value {
            Value::Unset => stack.without(cell.depth),
            Value::Number(_) | Value::Pointer(_) => stack.with_cell(cell),
        };
    }
}

fn restate_pointer(value: &mut Value, name: impl Fn(&Name) -> Option<Name>) {
    let Value::Pointer(pointer) = value else { return };
    if let Base::Record { owner, size } = pointer.base {
        match name(&owner) {
            Some(owner) => pointer.base = Base::Record { owner, size },
            None => {
                *value = Value::Unset;
                return;
            }
        }
    }
    if let Value::Pointer(pointer) = value
        && let Some(present) = &pointer.present
    {
        pointer.present = name(present);
    }
}

/// Whether both are numbers, or pointers into one object that are both known not to be null, or both null by a name.
fn alike(claim: &Value, value: &Value, renaming: &[Form]) -> bool {
    let is = |n: &Name| renaming.get(n.index());
    match (claim, value) {
        (Value::Unset, _) | (Value::Number(_), Value::Number(_)) => true,
        (Value::Pointer(Pointer { present: Some(n), .. }), Value::Number(form)) => {
            form.as_const() == Some(0) && is(n).and_then(Form::as_const) == Some(0)
        }
        (Value::Pointer(claim), Value::Pointer(pointer)) => {
            let base = match (claim.base, pointer.base) {
                (Base::Record { owner: c, size: x }, Base::Record { owner, size: y }) => {
                    x == y && is(&c).and_then(Form::as_name) == Some(owner)
                }
                (claim, base) => claim == base,
            };
            let present = match (&claim.present, &pointer.present) {
                (None, None) => true,
                (Some(n), None) => is(n).and_then(Form::as_const) == Some(1),
                (Some(n), Some(m)) => is(n).and_then(Form::as_name) == Some(*m),
                (None, Some(_)) => false,
            };
            base && present
        }
        (Value::Number(_) | Value::Pointer(_), _) => false,
    }
}

/// The form plus a multiple of 2^64 such that it lies in the range of the name, where its bounds determine the
/// multiple.
fn nearest(known: &Knowledge, form: Form, name: &Known) -> Form {
    let (least, _) = Known { word: Scalar::UNKNOWN, signed: name.signed }.bounds();
    let moved = || {
        let (min, max) = known.bounds(&form)?;
        let period = |at: i128| Some(at.checked_sub(least)?.div_euclid(1 << 64));
        let (first, last) = (period(min)?, period(max)?);
        if first == last { form.shifted(first.checked_mul(1 << 64)?.checked_neg()?) } else { None }
    };
    moved().unwrap_or(form)
}

/// The bounds of a form by intervals, and whether rows show that it is not negative.
fn bounds_of(known: &Knowledge, form: &Form) -> Option<(i128, i128)> {
    let (min, max) = known.bounds(form)?;
    Some(if min < 0 && multipliers::holds(known, form) { (0, max.max(0)) } else { (min, max) })
}

/// The join of the facts about a number that was `was` and is now `is`.
fn joined(claim: &Invariant, was: &Form, known: &Knowledge, is: &Form, thresholds: Thresholds<'_>) -> Known {
    let mut bounds = bounds_of(known, is).into_iter().collect::<Vec<_>>();
    let before = was.terms().iter().try_fold((was.offset(), was.offset()), |(min, max), (n, a)| {
        let (least, most) = claim.names.get(n.index())?.bounds();
        let (x, y) = (a.checked_mul(least)?, a.checked_mul(most)?);
        Some((min.checked_add(x.min(y))?, max.checked_add(x.max(y))?))
    });
    let whole = Known { word: Scalar::UNKNOWN, signed: false };
    let Some(before) = before else { return whole };
    if bounds.is_empty() {
        return whole;
    }
    bounds.push(before);
    let min = bounds.iter().map(|b| b.0).min().unwrap_or(0);
    let max = bounds.iter().map(|b| b.1).max().unwrap_or(0);
    let signed = min < 0;
    let (least, most) = Known { word: Scalar::UNKNOWN, signed }.bounds();
    let (min, max) = (below_of(thresholds, min, least), above_of(thresholds, max, most));
    Known::range(min, max, signed).unwrap_or(whole)
}
