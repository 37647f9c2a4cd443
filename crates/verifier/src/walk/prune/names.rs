//! Garbage collection of names: drops names that no value holds, and facts about them.
//!
//! Problem: a state that knows less covers more. Approach: facts about a name are dropped with the last value that has
//! it, unless other facts depend on them.
//!
//! Invariant: an order between two held names that followed from the facts before follows from the remaining ones, over
//! any number of other names.

use crate::faults::planted;
use crate::state::{Frame, Room, State, Sum};
use crate::value::{FIRST_FREE_ID, Ty, Value};
use crate::walk::shrink;

/// Scratch memory with the names of a state.
#[derive(Debug, Default)]
pub(in crate::walk) struct Names {
    /// The names of values, once for each value that has them.
    held: Vec<u32>,
    /// The names in equations.
    parts: Vec<u32>,
    /// The names in each fact.
    ends: Vec<Ends>,
}

impl Names {
    /// Frees memory beyond `bytes`.
    pub(super) fn trim(&mut self, bytes: usize) {
        shrink(&mut self.held, bytes);
        shrink(&mut self.parts, bytes);
        shrink(&mut self.ends, bytes);
    }

    /// An empty list.
    pub(super) fn list(&mut self) -> &mut Vec<u32> {
        self.held.clear();
        &mut self.held
    }
}

/// Removes ids that only one number has, and facts about ids that no value has. With `asked`, facts stay: some path has
/// asked for consequences of all facts together, so a contradiction between any two of them may have given the answer,
/// and the walked paths rest on both.
///
/// Names in definitions stay, and names of numbers that a havocked iteration has loaded from tables (`tabled`).
pub(super) fn forget_ids(state: &mut State, names: &mut Names, asked: bool, tabled: &[u32]) {
    let Names { held: ids, parts, ends } = names;
    ids.clear();
    ids.extend(tabled.iter().flat_map(|id| [*id, *id]));
    ids.extend(state.definitions.iter().flat_map(|d| [d.name, d.name, d.of.id, d.of.id]));
    for f in &state.frames {
        f.each_value(|v| {
            if v.id >= FIRST_FREE_ID {
                ids.push(v.id);
            }
            if v.tie >= FIRST_FREE_ID {
                ids.push(v.tie);
            }
        });
        // The names of a loop's round last as long as the round.
        for m in &f.loops {
            ids.extend_from_slice(&m.ids);
            ids.extend_from_slice(&m.ids);
        }
    }
    if !state.seen.is_empty() {
        // A remembered load whose name no value has cannot be repeated.
        let held = ids.clone();
        state.seen.retain(|s| s.id < FIRST_FREE_ID || held.contains(&s.id));
        ids.extend(state.seen.iter().flat_map(|s| [s.id, s.id, s.value.id, s.value.id]));
    }
    // Facts between lengths count even if no value has a name.
    if ids.is_empty() && state.room.is_empty() && state.sums.is_empty() && state.products.is_empty() {
        return;
    }
    ids.sort_unstable();
    let once = |id: u32| {
        let from = ids.partition_point(|x| *x < id);
        ids.get(from) == Some(&id) && ids.get(from + 1) != Some(&id)
    };
    let held = |id: u32| id < FIRST_FREE_ID || ids.binary_search(&id).is_ok();
    if !asked && !state.sums.is_empty() {
        state.forget_sums(held);
    }
    if !asked {
        state.products.retain(|t| t.says_something(held));
    }
    // Facts about names that no value has still connect others: orders are followed over any number of them, and over
    // the sums that they are parts of.
    let State { frames, room, sums, products, .. } = state;
    parts.clear();
    sums.iter().for_each(|t| parts.extend([t.s, t.a, t.b]));
    products.iter().for_each(|t| parts.extend(t.names()));
    parts.sort_unstable();
    let is_part = |id: u32| parts.binary_search(&id).is_ok();
    if !asked && !room.is_empty() {
        ends.clear();
        let end = |id: u32| (id, held(id) || is_part(id));
        ends.extend(room.iter().map(|r| [end(r.id), end(r.hi)]));
        if ends.iter().any(|[id, hi]| !id.1 || !hi.1) {
            let above = led_to(ends, |[id, hi]| [*id, *hi]);
            let below = led_to(ends, |[id, hi]| [*hi, *id]);
            for [id, hi] in ends.iter_mut() {
                (id.1, hi.1) = (id.1 || above.contains(&id.0), hi.1 || below.contains(&hi.0));
            }
            let mut ends = ends.iter();
            room.retain(|_| ends.next().is_some_and(|[id, hi]| id.1 && hi.1));
        }
    }
    let unlink = |v: &mut Value| {
        if v.id >= FIRST_FREE_ID
            && v.is_scalar()
            && once(v.id)
            && room.iter().all(|r| r.id != v.id && r.hi != v.id)
            && !is_part(v.id)
        {
            *v = v.unlinked();
        }
    };
    frames.iter_mut().for_each(|f| f.each_value_mut(unlink));
}

/// The names of numbers and pointers, and those of loops' rounds.
fn held_names(state: &State) -> impl Iterator<Item = u32> {
    let values = state.frames.iter().flat_map(Frame::values).map(Value::line_id);
    let marks = state.frames.iter().flat_map(|f| &f.loops).flat_map(|m| m.ids.iter().copied());
    values.chain(marks).filter(|id| *id >= FIRST_FREE_ID)
}

/// The most sums of a state when one more is handed down: beyond, another one would be dropped for it.
const ROOM_FOR_SUMS: usize = 16;

/// Replaces sums that are about to be forgotten by their consequences for names below a part: from `s = p + q + delta`,
/// where no value holds p and some value holds n with `n + gap <= p`, follows `n + q + delta + gap <= s`. Returns
/// whether there is such a sum, on which later proofs may rest.
pub(super) fn hand_down_sums(state: &mut State, names: &mut Names, next_id: &mut u32) -> bool {
    let ids = names.list();
    ids.extend(held_names(state));
    ids.sort_unstable();
    let held = |id: u32| ids.binary_search(&id).is_ok();
    let mut handed: Vec<(u32, u32, i64, u32)> = Vec::new();
    for t in state.sums.iter().filter(|t| t.scale == 1 && !t.split) {
        let bounded = t.s < FIRST_FREE_ID || held(t.s) || state.room.iter().any(|f| f.id == t.s);
        for (lost, stays) in [(t.a, t.b), (t.b, t.a)] {
            if bounded && held(stays) && lost >= FIRST_FREE_ID && !held(lost) {
                let below = state.room.iter().filter(|f| f.hi == lost && f.scale == 1 && held(f.id));
                let gap = |f: &Room| f.bytes.checked_add(t.delta);
                handed.extend(below.filter_map(|f| Some((stays, f.id, gap(f)?, t.s))));
            }
        }
    }
    let any = !handed.is_empty();
    for (stays, id, gap, whole) in handed {
        if state.sums.len() >= ROOM_FOR_SUMS {
            break;
        }
        if let Some((sum, apart)) = state.name_sum((stays, id, 1), 0, i64::MAX, next_id)
            && let Some(bytes) = gap.checked_add(apart.into())
        {
            let bytes = if planted!(HandedDownMore) { bytes.saturating_add(1) } else { bytes };
            state.learn_below(Room { id: sum, scale: 1, bytes, hi: whole });
        }
    }
    any
}

/// The names of a fact, and whether each is held.
type Ends = [(u32, bool); 2];

/// The most names whose distances are computed at a time.
const MAX_APART: usize = 6;

/// The names that are still held, if sums are about to be forgotten that give distances between them, or from others.
///
/// `pointers`: also the names of pointers.
pub(super) fn distances(before: &State, now: &State, pointers: bool) -> Vec<u32> {
    let (held, kept): (Vec<u32>, Vec<u32>) = (held_names(before).collect(), held_names(now).collect());
    let lost = |id: u32| held.contains(&id) && !kept.contains(&id);
    let twice = before.wholes_twice();
    let goes = |t: &Sum| !t.says_something(&|id| id < FIRST_FREE_ID || kept.contains(&id), &before.room, &twice);
    let mut out: Vec<u32> = Vec::new();
    if !before.sums.iter().any(|t| goes(t) || [t.s, t.a, t.b].into_iter().any(lost)) {
        return out;
    }
    let in_sum = |id: u32| before.sums.iter().any(|t| [t.s, t.a, t.b].contains(&id));
    let named = |v: &&Value| v.is_scalar() || (pointers && matches!(v.ty, Ty::Packet { .. }));
    let numbers = now.frames.iter().flat_map(Frame::values).filter(named).filter(|v| v.n.as_const().is_none());
    let numbers = numbers.filter(|v| v.scale == 1).map(|v| v.id);
    // The names of a candidate's places at the start of the round count, too: their values may have moved on.
    let marks = now.frames.iter().flat_map(|f| &f.loops).flat_map(|m| m.ids.iter().copied());
    for id in numbers.chain(marks).filter(|id| *id >= FIRST_FREE_ID) {
        let beside = |f: &Room| (f.id == id && in_sum(f.hi)) || (f.hi == id && in_sum(f.id));
        let tied = in_sum(id) || before.room.iter().any(beside);
        if tied && !out.contains(&id) && out.len() < MAX_APART {
            out.push(id);
        }
    }
    out
}

/// The names that no value holds and that facts lead to. `way` gives the direction of each fact.
fn led_to(ends: &[Ends], way: impl Fn(&Ends) -> Ends) -> Vec<u32> {
    let mut found: Vec<u32> = Vec::new();
    loop {
        let before = found.len();
        for [from, to] in ends.iter().map(&way) {
            if !to.1 && (from.1 || found.contains(&from.0)) && !found.contains(&to.0) {
                found.push(to.0);
            }
        }
        if found.len() == before {
            return found;
        }
    }
}
