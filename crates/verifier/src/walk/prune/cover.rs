//! Subsumption: whether one state covers another.
//!
//! Invariant: `true` means that each concrete state of the new state is one of the old state, under an injective
//! renaming of names; a name that no value holds may stand for any number that satisfies its facts.

use crate::content::Gap;
use crate::faults::planted;
use crate::fuel;
use crate::scalar::Scalar;
use crate::state::{Byte, Fill, Frame, Lock, Mark, Product, Round, Seen, Spill, State, Sum, TRACKED};
use crate::value::{FIRST_FREE_ID, Ty, Value, is_offset_name};
use crate::walk::shrink;

/// Fuel for a comparison, for each compared value, and for each fact that may imply another.
const COMPARED: u64 = 15;
const COMPARED_VALUE: u64 = 1;
const COMPARED_FACT: u64 = 1;

/// Whether the frames belong to the same calls.
pub(super) fn same_shape(a: &State, b: &State) -> bool {
    a.frames.len() == b.frames.len()
        && a.frames.iter().zip(&b.frames).all(|(f, g)| f.subprog == g.subprog && f.entry == g.entry)
}

/// Whether the loops' rounds are on the same sides, where candidates partition rounds.
pub(super) fn same_sides(a: &State, b: &State) -> bool {
    let of = |f: &Frame, g: &Frame| f.loops.iter().zip(&g.loops).all(|(m, n)| m.side == n.side);
    a.frames.iter().zip(&b.frames).all(|(f, g)| of(f, g))
}

/// The renaming: pairs of an old and a new id. Then ids that may stand for themselves only; and whether fresh bytes are
/// distinguished (see `crate::content`).
#[derive(Debug, Default)]
pub(in crate::walk) struct IdMap(Vec<(u32, u32)>, Vec<u32>, bool);

impl IdMap {
    /// Frees scratch memory beyond `bytes`.
    pub(super) fn trim(&mut self, bytes: usize) {
        shrink(&mut self.0, bytes);
    }

    /// Prepares for a program: whether fresh bytes are distinguished.
    pub(super) fn start(&mut self, fresh: bool) {
        self.2 = fresh;
    }

    /// Prepares for a comparison: the names that may stand for themselves only.
    pub(super) fn begin(&mut self, fixed: impl Iterator<Item = u32>) {
        self.1.clear();
        self.1.extend(fixed);
    }

    /// The name in the new state that stands for the old name's number. A length's id stands for itself.
    fn new_name(&self, old: u32) -> Option<u32> {
        if old < FIRST_FREE_ID {
            return Some(old);
        }
        self.0.iter().find(|(o, _)| *o == old).map(|(_, n)| *n)
    }

    /// Whether the old name may stand for the new one.
    fn would_be(&self, old: u32, new: u32) -> bool {
        match self.0.iter().find(|(o, _)| *o == old) {
            Some((_, n)) => *n == new,
            None => self.0.iter().all(|(_, n)| *n != new),
        }
    }

    /// Makes the old name stand for the new one, for which no other old one may stand.
    fn same(&mut self, old: u32, new: u32) -> bool {
        let other = self.0.iter().any(|(o, n)| *n == new && *o != old);
        !(other && new >= FIRST_FREE_ID) && self.stands_for(old, new)
    }

    /// Makes the old name stand for the new one, for which other old names may stand, too.
    ///
    /// Claim: several names of values may stand for one new name. Proof: the old state stands for every concrete state
    /// with some assignment of integers to its names. Two names may have equal integers, as no rule concludes from
    /// different names that integers differ.
    fn stands_for(&mut self, old: u32, new: u32) -> bool {
        if old < FIRST_FREE_ID || new < FIRST_FREE_ID {
            return old == new;
        }
        match self.0.iter().find(|(o, _)| *o == old) {
            Some((_, n)) => *n == new,
            None if old != new && self.1.contains(&old) => false,
            // The walk from the old state may have relied on its number not being negative.
            None if is_offset_name(new) && !is_offset_name(old) => false,
            None => {
                self.0.push((old, new));
                true
            }
        }
    }
}

/// Whether every concrete state of `new` is one of `old`, up to the names of ids.
pub(in crate::walk) fn covers(old: &State, new: &State, ids: &mut IdMap) -> bool {
    if !same_shape(old, new) || old.owed.len() != new.owed.len() || old.locks.len() != new.locks.len() {
        return false;
    }
    // Where a section was entered is for messages.
    let alike = old.sections.iter().map(|s| s.section).eq(new.sections.iter().map(|s| s.section));
    if !alike && !planted!(SectionsAlike) {
        return false;
    }
    fuel::charge(COMPARED);
    ids.0.clear();
    let mut frames = old.frames.iter().zip(&new.frames);
    frames.clone().all(|(o, n)| marks_cover(&o.loops, &n.loops, ids))
        && frames.clone().all(|(o, n)| {
            fuel::charge_each(n.regs.len() + n.spills.len(), COMPARED_VALUE);
            o.regs.iter().zip(&n.regs).all(|(o, n)| value_covers(o, n, ids))
        })
        && (planted!(StacksAlike) || frames.all(|(o, n)| stack_covers(o, n, &|v, region| new.gap(v, region), ids)))
        && old.owed.iter().zip(&new.owed).all(|(o, n)| (o.frame, o.debt) == (n.frame, n.debt) && ids.same(o.id, n.id))
        && old.locks.iter().zip(&new.locks).all(|(o, n)| lock_covers(o, n, ids))
        && old.min_len.covers(&new.min_len)
        && old.seen.iter().all(|o| new.seen.iter().any(|n| seen_covers(o, n, ids)))
        && old.sums.iter().all(|o| new.sums.iter().any(|n| sum_covers(o, n, ids)))
        && old.products.iter().all(|o| new.products.iter().any(|n| product_covers(o, n, ids)))
        && old.room.iter().inspect(|_| fuel::charge_each(new.room.len(), COMPARED_FACT)).all(|o| {
            // A fact about a multiple also states that V(id) is not negative, which an inequality that follows from
            // others does not.
            let below = |id: u32, hi: u32| {
                new.is_below(id, o.scale, o.bytes, hi)
                    && (o.scale == 1 || !new.may_be_negative(id) || planted!(MultiplesOfAnySign))
            };
            match (ids.new_name(o.id), ids.new_name(o.hi)) {
                (Some(id), Some(hi)) => below(id, hi),
                // An id that no covered value has needs no counterpart, unless another fact relates it to a held one.
                (None, _) if old.room.iter().all(|r| r.hi != o.id) => true,
                // A suitable number only has to exist, and the number with the same name in the new state may be one. A
                // name that may be negative in the new state is excluded: the old state may not have it so.
                (id, hi) => {
                    let witness = |name: Option<u32>, own| name.or((!new.may_be_negative(own)).then_some(own));
                    witness(id, o.id).zip(witness(hi, o.hi)).is_some_and(|(id, hi)| below(id, hi))
                }
            }
        })
}

/// Whether the locks are one lock, taken in one way, so that the same calls release it.
fn lock_covers(o: &Lock, n: &Lock, ids: &mut IdMap) -> bool {
    let same = (o.kind, o.of.within) == (n.kind, n.of.within) && ids.same(o.of.id, n.of.id);
    same || planted!(LocksAlike)
}

/// Whether the facts of the old state about loops' rounds hold in the new one. The names of rounds correspond in order;
/// but a candidate that is still being checked proves nothing about another entry into its loop, to which its own exits
/// may lead.
fn marks_cover(old: &[Mark], new: &[Mark], ids: &mut IdMap) -> bool {
    let guessed = |m: &&Mark| m.round == Round::Guessed;
    let mut new = new.iter().filter(guessed);
    old.iter().filter(guessed).all(|o| {
        let Some(n) = new.find(|n| n.id == o.id) else { return false };
        // A candidate's facts about one side's rounds do not hold for another side's.
        (o.side == n.side || planted!(SidesAlike))
            && o.lines.len() == n.lines.len()
            && (o.k.id == n.k.id || !ids.1.contains(&o.k.id))
            && ids.same(o.k.id, n.k.id)
            && n.k.n.subset(&o.k.n)
            && o.lines
                .iter()
                .zip(&n.lines)
                .all(|(o, n)| o.step == n.step && ids.same(o.x, n.x) && ids.same(o.n, n.n) && n.start.subset(&o.start))
            && o.ids.len() == n.ids.len()
            && o.ids.iter().zip(&n.ids).all(|(o, n)| ids.same(*o, *n))
    })
}

fn value_covers(old: &Value, new: &Value, ids: &mut IdMap) -> bool {
    if old.is_uninit() {
        return true;
    }
    let null = old.null == new.null || planted!(NullAlike);
    let subset = new.n.subset(&old.n) || (planted!(NumbersAlike) && old.is_scalar());
    if old.ty != new.ty || !null || !subset {
        return false;
    }
    match old.ty {
        // A number without an id covers any number in its range.
        Ty::Scalar => {
            old.id == 0
                || planted!(NamesForgotten)
                || ((old.scale, old.delta) == (new.scale, new.delta) && ids.stands_for(old.id, new.id))
        }
        Ty::Packet { .. } | Ty::Half { .. } | Ty::Stale { .. } => {
            let place = (old.scale, old.delta) == (new.scale, new.delta) && ids.stands_for(old.id, new.id);
            place && ids.same(old.owner, new.owner)
        }
        Ty::Uninit(_)
        | Ty::Ctx
        | Ty::Stack { .. }
        | Ty::Map { .. }
        | Ty::MapValue { .. }
        | Ty::Mem { .. }
        | Ty::PacketEnd { .. }
        | Ty::Biased { .. }
        | Ty::Signed
        | Ty::Host { .. }
        | Ty::Func { .. }
        | Ty::Arena
        | Ty::Table { .. }
        | Ty::Insn { .. }
        | Ty::Local(_) => {
            let tied =
                old.tie == 0 || ((old.scale, old.delta) == (new.scale, new.delta) && ids.stands_for(old.tie, new.tie));
            tied && ids.same(old.id, new.id) && ids.same(old.owner, new.owner)
        }
    }
}

/// Whether an equation of the new state is this one of the old; it may extend the renaming.
fn sum_covers(o: &Sum, n: &Sum, ids: &mut IdMap) -> bool {
    (o.scale, o.delta) == (n.scale, n.delta)
        && n.max <= o.max
        && (n.split || !o.split)
        && [(o.s, n.s), (o.a, n.a), (o.b, n.b)].into_iter().all(|(o, n)| ids.same(o, n))
}

/// Whether a product of the new state is this one of the old.
fn product_covers(o: &Product, n: &Product, ids: &mut IdMap) -> bool {
    let names = || o.names().into_iter().zip(n.names());
    names().all(|(o, n)| ids.would_be(o, n)) && names().all(|(o, n)| ids.same(o, n))
}

/// Whether the new state has remembered this load of the old one, too.
fn seen_covers(o: &Seen, n: &Seen, ids: &mut IdMap) -> bool {
    let place = |s: &Seen| (s.region, s.scale, s.at, s.size);
    let unlike = || o.not[..usize::from(o.unlike)].iter().all(|c| n.is_not(*c)) || planted!(UnlikeForgotten);
    let same = place(o) == place(n) && unlike() && ids.would_be(o.id, n.id) && ids.would_be(o.value.id, n.value.id);
    same && ids.same(o.id, n.id) && value_covers(&o.value, &n.value, ids)
}

fn stack_covers(old: &Frame, new: &Frame, gap: Gap<'_>, ids: &mut IdMap) -> bool {
    if !old.spills.iter().all(|o| spill_covered(o, new, ids)) || !old.fills.iter().all(|o| fill_covered(o, new, ids)) {
        return false;
    }
    if !old.contents.iter().all(|c| new.has_content(c, gap) || planted!(ContentForgotten)) {
        return false;
    }
    let rest = old.rest == new.rest || old.rest == Byte::Uninit;
    if rest && alike(&old.bytes, &new.bytes) {
        return true;
    }
    let covered = |depth: usize| match (old.byte(depth), new.byte(depth)) {
        // Equal bytes cover each other.
        (o, n) if o == n => true,
        (Byte::Uninit | Byte::Spill, _) => true,
        // A read of either byte requests that it be zeroed, and yields an arbitrary number. But where arrays
        // distinguish written from unwritten elements, an unwritten byte is not an arbitrary number.
        (Byte::Fresh, _) if ids.2 => planted!(FreshAlike),
        (Byte::Fresh, _) => new.is_number(depth) || planted!(FreshAlike),
        // A read of `Maybe` bytes is allowed, while a read of bytes of which none was written is refused. So `Maybe`
        // does not cover `Fresh`.
        (Byte::Maybe, n) => (new.is_number(depth) && n != Byte::Fresh) || planted!(FreshAlike),
        (Byte::Misc, _) => new.check_readable(depth, 1).is_ok(),
        (Byte::Zero, _) => new.known_number(depth, 1) == Some(0),
    };
    // Bytes beyond those of both states are equal.
    let depths = if old.rest == Byte::Uninit { old.bytes.len() } else { old.bytes.len().max(new.bytes.len()) };
    let both = old.bytes.len().min(new.bytes.len());
    let chunks = old.bytes[..both].chunks(CHUNK).zip(new.bytes[..both].chunks(CHUNK));
    // Where only one state has a byte, it is compared with the other's rest.
    let beyond = || {
        old.bytes[both..].iter().fold(true, |all, o| all & plainly_covers(*o, new.rest))
            && new.bytes[both..].iter().take(depths - both).fold(true, |all, n| all & plainly_covers(old.rest, *n))
    };
    (0..).step_by(CHUNK).zip(chunks).all(|(at, (o, n))| plainly_cover(o, n) || (at + 1..=at + o.len()).all(covered))
        && ((depths <= TRACKED && beyond()) || (both + 1..=depths).all(covered))
}

/// Bytes that are compared at once.
const CHUNK: usize = 32;

/// Whether the bytes are equal. It does not stop at a difference, so that many are compared at once.
fn alike(a: &[Byte], b: &[Byte]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |differ, (a, b)| differ | (*a as u8 ^ *b as u8)) == 0
}

/// Whether a byte covers the other, without a look at the frames. It has no branches, so that many are compared at
/// once.
fn plainly_covers(old: Byte, new: Byte) -> bool {
    (old as u8 == new as u8) | (old as u8 == Byte::Uninit as u8) | (old as u8 == Byte::Spill as u8)
}

fn plainly_cover(old: &[Byte], new: &[Byte]) -> bool {
    old.iter().zip(new).fold(true, |all, (o, n)| all & plainly_covers(*o, *n))
}

/// Whether a fill of the old state is filled in the new one.
fn fill_covered(o: &Fill, new: &Frame, ids: &mut IdMap) -> bool {
    let like = |n: &&Fill| n.scale == o.scale && n.bottom <= o.bottom && n.delta >= o.delta;
    new.fills.iter().filter(like).any(|n| ids.same(o.id, n.id)) || planted!(FillForgotten)
}

fn spill_covered(o: &Spill, new: &Frame, ids: &mut IdMap) -> bool {
    let (depth, size) = (usize::from(o.depth), usize::from(o.size));
    if let Some(n) = new.spilled(depth, size) {
        return value_covers(&o.value, &n.value, ids);
    }
    // The slot differs, but its bytes may be covered.
    if !o.value.is_scalar() || o.value.id != 0 || new.check_readable(depth, size).is_err() {
        return false;
    }
    match new.known_number(depth, size) {
        Some(v) => o.value.n.contains(v),
        None => Scalar::low_bits(8 * crate::num::small(size)).subset(&o.value.n),
    }
}
