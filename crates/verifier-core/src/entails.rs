//! Coverage: whether a state satisfies the invariant of a kept point.
//!
//! One function serves initiation (the path enters a loop), consecution (the path reaches the loop's head again: Manna
//! and Pnueli 1995) and pruning (the path reaches a point that was walked from already). The function proves
//! `state |= invariant` under a renaming, which expresses each name of the invariant in terms of the state. It also
//! proves that each path from one kept point to the next decreases a lexicographic rank (Cook, Podelski and
//! Rybalchenko, PLDI 2006; Alias et al., SAS 2010). Constants in a rank order the strongly connected components of the
//! graph of kept points, so no graph is built here.

use crate::check::Checker;
use crate::domain::{Form, Known};
use crate::faults::planted;
use crate::guide::Kept;
use crate::refusal::{Res, Why};
use crate::state::{Base, Byte, Frame, Pointer, Stack, State, Value};

impl Checker<'_> {
    /// Proves that the kept point covers the state. The state is about to run the kept point's instruction.
    pub(crate) fn cover(&mut self, state: &State, kept: usize, renaming: &[Form]) -> Res<()> {
        let kept = self.kept(kept)?;
        let claim = &kept.claim;
        let not = |what| Err(Why::NotCovered(what));
        let names = state.known.names().len();
        if kept.at != self.pc || renaming.len() != claim.names.len() || !renaming.iter().all(|f| f.is_over(names)) {
            return Err(Why::Certificate("a renaming of other names"));
        }
        let slots: usize = claim.frames.iter().map(|frame| 11 + frame.stack.bytes().len() / 8).sum();
        self.spend((renaming.len() + slots + claim.held.len()) as u64)?;
        for (form, known) in renaming.iter().zip(&claim.names) {
            if !self.is_known(state, form, known)? {
                return not("a name is not in its set");
            }
        }
        let renamed = |form: &Form| form.substitute(renaming);
        let lengths = claim.lengths.iter().zip(&state.lengths);
        if claim.lengths.len() != state.lengths.len() || !lengths.clone().all(|(c, s)| renamed(c).as_ref() == Some(s)) {
            return not("a length is another");
        }
        if claim.frames.len() != state.frames.len() {
            return not("the chain of calls is another");
        }
        for (claim, frame) in claim.frames.iter().zip(&state.frames) {
            frame_covers(state, claim, frame, renaming)?;
        }
        if claim.sections != state.sections && !planted!(SectionsUncompared) {
            return not("other sections are open");
        }
        let mut held: Vec<_> = state.owed().collect();
        let mut claimed = Vec::new();
        for n in &claim.held {
            match renaming.get(n.index()) {
                // The claim holds a record whose name is 0 here: its reservation failed, so it needs no counterpart.
                Some(form) if form.as_const() == Some(0) => {}
                Some(form) => claimed.push(form.as_name().ok_or(Why::NotCovered("a record is no name"))?),
                None => return not("a record is no name"),
            }
        }
        held.sort_unstable();
        claimed.sort_unstable();
        if held != claimed {
            return not("other records are held");
        }
        for row in &claim.rows {
            self.spend(1)?;
            match renamed(row) {
                Some(row) if self.proves(state, &row)? => {}
                Some(_) | None => return not("a row is not proven"),
            }
        }
        self.decreases(state, kept, renaming)
    }

    /// Whether the state proves that the integer `form` is in the set `known`.
    fn is_known(&mut self, state: &State, form: &Form, known: &Known) -> Res<bool> {
        let (min, max) = known.bounds();
        let above = min.checked_neg().and_then(|by| form.shifted(by));
        let below = form.times(-1).and_then(|f| f.shifted(max));
        let (Some(above), Some(below)) = (above, below) else { return Ok(false) };
        if !self.proves(state, &above)? || !self.proves(state, &below)? {
            return Ok(false);
        }
        // The bounds are proven above; the known bits of the word need a check of their own.
        Ok(known.is_range() || self.word(state, form)?.subset(&known.word))
    }

    /// Proves that the rank strictly decreases from the start of the segment to the kept point.
    fn decreases(&mut self, state: &State, to: &Kept, renaming: &[Form]) -> Res<()> {
        // The state begins with the names of the kept point that the segment started at, so that point's rank is a rank
        // over the state as it is.
        let Some(from) = self.origin().map(|kept| &kept.rank) else { return Ok(()) };
        if planted!(RanksUncompared) {
            return Ok(());
        }
        for (before, after) in from.iter().zip(&to.rank) {
            self.spend(1)?;
            let Some(less) = after.substitute(renaming).and_then(|after| before.plus(&after, -1)) else {
                return Err(Why::Rank);
            };
            let strictly = less.shifted(-1).ok_or(Why::Rank)?;
            if self.proves(state, &strictly)? && self.proves(state, before)? {
                return Ok(());
            }
            if !self.proves(state, &less)? {
                return Err(Why::Rank);
            }
        }
        Err(Why::Rank)
    }
}

fn frame_covers(state: &State, claim: &Frame, frame: &Frame, renaming: &[Form]) -> Res<()> {
    if (claim.subprog, claim.back) != (frame.subprog, frame.back) {
        return Err(Why::NotCovered("the chain of calls is another"));
    }
    for (claim, value) in claim.regs.iter().zip(&frame.regs) {
        if !planted!(RegistersUncompared) && !value_covers(claim, &state.resolved(value.clone()), renaming) {
            return Err(Why::NotCovered("a register holds something else"));
        }
    }
    if planted!(StackUncompared) || stack_covers(state, &claim.stack, &frame.stack, renaming) {
        Ok(())
    } else {
        Err(Why::NotCovered("the stack holds something else"))
    }
}

/// Whether `claim`, renamed, and `form` are congruent modulo 2^64.
fn congruent(claim: &Form, form: &Form, renaming: &[Form]) -> bool {
    claim.substitute(renaming).is_some_and(|claim| claim.residue(64) == form.residue(64))
}

fn value_covers(claim: &Value, value: &Value, renaming: &[Form]) -> bool {
    let is = |n: crate::domain::Name| renaming.get(n.index());
    match (claim, value) {
        (Value::Unset, _) => true,
        (Value::Number(claim), Value::Number(form)) => congruent(claim, form, renaming),
        // A pointer that is null is the number 0, so the claim "null or a pointer" covers 0 if its `present` name is 0.
        (Value::Pointer(Pointer { present: Some(n), .. }), Value::Number(form)) => {
            form.as_const() == Some(0) && is(*n).and_then(Form::as_const) == Some(0)
        }
        (Value::Pointer(claim), Value::Pointer(pointer)) => {
            let base = match (claim.base, pointer.base) {
                (Base::Record { owner: c, size: x }, Base::Record { owner, size: y }) => {
                    x == y && is(c).and_then(Form::as_name) == Some(owner)
                }
                (claim, base) => claim == base,
            };
            let present = match (claim.present, pointer.present) {
                (None, None) => true,
                (Some(n), None) => is(n).and_then(Form::as_const) == Some(1),
                (Some(n), Some(m)) => is(n).and_then(Form::as_name) == Some(m),
                (None, Some(_)) => false,
            };
            base && present && congruent(&claim.offset, &pointer.offset, renaming)
        }
        (Value::Number(_) | Value::Pointer(_), _) => false,
    }
}

fn stack_covers(state: &State, claim: &Stack, stack: &Stack, renaming: &[Form]) -> bool {
    let bytes = claim.bytes().iter().zip(stack.bytes()).all(|(claim, byte)| match (claim, byte) {
        (Byte::Opaque, _) | (Byte::Number, Byte::Number) | (Byte::Fresh, Byte::Fresh) => true,
        (Byte::Maybe, Byte::Maybe | Byte::Fresh | Byte::Number) => true,
        (Byte::Number | Byte::Fresh | Byte::Maybe, _) => false,
    });
    let cells = || {
        claim.cells().iter().all(|cell| {
            let found = stack.cell(cell.depth, cell.size);
            found.is_some_and(|found| value_covers(&cell.value, &state.resolved(found.value.clone()), renaming))
        })
    };
    claim.bytes().len() == stack.bytes().len() && bytes && cells()
}
