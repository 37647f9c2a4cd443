//! The abstract machine state: frames of registers and stack, and facts that relate their values.
//!
//! Problem: a state is copied at each undecided branch and compared at each join, so it must be small and cheap in
//! both. Approach: one record a frame; stack contents as one byte of kind per byte plus a short sorted list of values
//! that are known more precisely ([`Spill`]); vectors grow only as deep as the program writes. States are recycled, so
//! a copy allocates nothing in the steady state.
//!
//! Invariants: those of each frame are in `frame.rs`.

mod definitions;
mod frame;
mod pool;

use bpf_isa::{InsnIdx, Reg};

use crate::env::{Env, Region};
use crate::faults::planted;
use crate::few::Few;
use crate::fields::Fields;
use crate::fuel;
use crate::helpers::{LockKind, Section};
use crate::lens::Lens;
use crate::scalar::Scalar;
use crate::value::{Debt, FIRST_FREE_ID, Hold, Origin, Ty, Value, Why, len_id};

pub(crate) use definitions::{Affine, Definition, Left, Made};
pub(crate) use frame::{Byte, Content, Entry, Fill, Frame, Grid, Line, Mark, Order, Round, Spill, TRACKED};
pub(crate) use pool::Pool;

/// The most facts in a state about pairs of values other than lengths of regions. Further facts are not learnt, so that
/// a search for one stays cheap.
const MAX_FACTS: usize = 64;
/// The most facts in a chain from one value to another.
const MAX_FACTS_CHAINED: u32 = 3;

/// A lock that is held.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Lock {
    pub kind: LockKind,
    pub of: LockOf,
    /// The instruction that took it.
    pub at: InsnIdx,
}

/// The identity of a lock: an element's, by map and the element's name, or an object's, by the id under which the
/// object is owed. Two names may refer to one element, but one name never refers to two. An element without a name is
/// the only one of its map.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LockOf {
    pub within: Within,
    pub id: u32,
}

/// A section that a sleepable program is in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct InSection {
    pub section: Section,
    /// The call that entered the section.
    pub at: InsnIdx,
}

/// The object that contains a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Within {
    /// A value of this map.
    Value { map: u32, inner: bool },
    /// An object of this type that the program owns.
    Object { class: u32 },
}

/// A proven inequality: `scale * V(id) + bytes <= V(hi)`. If `hi` is the name of a region's length, `bytes` bytes
/// follow the offset `scale * V(id)` in the region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Room {
    pub id: u32,
    /// The factor of V(id), above 0.
    pub scale: i16,
    pub bytes: i64,
    pub hi: u32,
}

/// A proven equation between numbers that are not negative: `V(s) = V(a) + scale * V(b) + delta` (see `walk::sums`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Sum {
    pub s: u32,
    pub a: u32,
    pub b: u32,
    /// The factor of V(b), above 0.
    pub scale: i64,
    pub delta: i64,
    /// Upper bound of V(s).
    pub max: i64,
    /// Whether the equation splits a number into digits: the scale is a power of two, and V(a) is less than the scale.
    pub split: bool,
}

/// A proven equation between numbers that are not negative: `V(p) = V(a) * V(b)` (see `walk::products`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Product {
    pub p: u32,
    pub a: u32,
    pub b: u32,
}

/// A difference with a constant that may have wrapped: `V(w) = whole - by`, modulo two to the power of `bits`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Wrap {
    pub w: u32,
    pub v: u32,
    pub whole: Whole,
    /// The constant that is subtracted, above 0.
    pub by: u64,
    pub bits: u32,
    /// An upper bound of `V(v)`, as the operand had it, and as later bounds of the name have refined it. Other values
    /// of that name may be forgotten.
    pub most: u64,
}

/// The minuend of a [`Wrap`], a number of `bits` bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Whole {
    /// `V(v)`.
    Name,
    /// The constant minus `V(v)`: a number that counts down while `V(v)` counts rounds.
    Less(i64),
}

impl Wrap {
    /// The bounds of the minuend, computed from the bounds of `V(v)`.
    pub(crate) fn whole_within(&self, (min, max): (i128, i128)) -> (i128, i128) {
        match self.whole {
            Whole::Name => (min, max),
            Whole::Less(from) => (i128::from(from) - max, i128::from(from) - min),
        }
    }
}

/// A difference of two named numbers that may have wrapped: `V(w) = V(whole) - V(less)`, modulo two to the power of
/// `bits`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Difference {
    pub w: u32,
    pub whole: u32,
    pub less: u32,
    pub bits: u32,
}

/// Facts about the bits of `V(id)` (see `walk::lanes`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Lanes {
    pub id: u32,
    pub bits: Bits,
}

/// A description of a number's bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Bits {
    /// The bits of `V(x) >> 1`.
    Shifted { x: u32 },
    /// The low `bits` bits of `(V(x) >> 1) & 0x55...`.
    Pairs { x: u32, bits: u32 },
    /// Adjacent fields of a few bits.
    Fields(Fields),
}

/// A difference that has wrapped: `V(w) = 2^bits - V(v)`, with `V(v) > 0`. `V(v)` is how far the minuend is below the
/// subtrahend.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Negative {
    pub w: u32,
    pub v: u32,
    pub bits: u32,
}

/// A number that was loaded from a region: `size` bytes at `start + scale * V(id) + at`. No store to any region
/// happened since, so a load of the same bytes yields the same number (see `walk::seen`).
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Seen {
    pub region: u8,
    pub id: u32,
    pub scale: i16,
    pub at: i64,
    pub size: u8,
    pub value: Value,
    /// Numbers that a comparison has shown it to differ from. Only the first `unlike` entries count; unused entries are
    /// 0.
    pub not: [u64; MAX_UNLIKE],
    pub unlike: u8,
}

/// The most numbers that a loaded number is remembered to differ from.
pub(crate) const MAX_UNLIKE: usize = 4;

impl Seen {
    /// Whether the number is remembered to differ from `c`.
    pub(crate) fn is_not(&self, c: u64) -> bool {
        self.not[..usize::from(self.unlike)].contains(&c)
    }
}

/// An obligation of the program: a record, a socket, or an object on the stack that it must give back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Owed {
    pub id: u32,
    pub debt: Debt,
    /// The instruction at which it was acquired.
    pub at: InsnIdx,
    /// The frame that got it.
    pub frame: u8,
    /// The number of kept states at that time.
    pub since: u32,
}

/// The whole abstract machine at one instruction.
#[derive(Debug, Default)]
pub(crate) struct State {
    pub frames: Vec<Frame>,
    pub owed: Vec<Owed>,
    /// The held locks, in the order in which they were taken.
    pub locks: Vec<Lock>,
    /// In the order in which they were entered; of sleepable programs.
    pub sections: Vec<InSection>,
    /// Proven least length of each region.
    pub min_len: Lens,
    pub room: Vec<Room>,
    pub sums: Vec<Sum>,
    pub products: Vec<Product>,
    /// Wraps, differences and negatives live from one join to the next.
    pub wraps: Vec<Wrap>,
    pub differences: Vec<Difference>,
    pub negatives: Vec<Negative>,
    pub lanes: Vec<Lanes>,
    /// Only filled in some loops.
    pub seen: Vec<Seen>,
    /// Dropped when the state is kept.
    pub definitions: Vec<Definition>,
}

/// Calls a macro with the names of all lists of a state but its frames. Its expansion names all fields of the state, so
/// that the compiler reports a list that is in neither.
macro_rules! with_lists {
    ($call:ident) => {
        $call! { owed, locks, sections, room, sums, products, wraps, differences, negatives, lanes, seen, definitions }
    };
}

impl Clone for State {
    fn clone(&self) -> State {
        // `clone` allocates exactly the size of the contents, which `clone_from` does not.
        macro_rules! cloned {
            ($($list:ident),*) => {
                State { frames: self.frames.clone(), min_len: self.min_len.clone(), $($list: self.$list.clone()),* }
            };
        }
        with_lists!(cloned)
    }
    fn clone_from(&mut self, other: &State) {
        macro_rules! clone_each {
            ($($list:ident),*) => {{
                let State { frames, min_len, $($list),* } = other;
                self.frames.clone_from(frames);
                self.min_len.clone_from(min_len);
                $(self.$list.clone_from($list);)*
            }};
        }
        with_lists!(clone_each);
    }
}

impl State {
    /// A copy, in the memory of an unused state if there is one.
    pub(crate) fn copied(&self, pool: &mut Pool) -> State {
        fuel::charge(fuel::VALUE * self.size());
        pool.copy(self)
    }

    /// Resets the state to this one frame. Only the memory of its vectors is reused: names begin anew with each
    /// program, so an old fact would be a fact about other numbers.
    pub(crate) fn restart(&mut self, root: &Frame, least: [u32; Region::MAX_REGIONS]) {
        macro_rules! clear {
            ($($list:ident),*) => {{
                let State { frames, min_len, $($list),* } = self;
                frames.truncate(1);
                match frames.first_mut() {
                    Some(first) => first.clone_from(root),
                    None => frames.push(root.clone()),
                }
                *min_len = Lens::new(least);
                $($list.clear();)*
            }};
        }
        with_lists!(clear);
    }

    /// The running frame. While the walk runs, there is at least one frame.
    pub(crate) fn top(&self) -> &Frame {
        &self.frames[self.frames.len() - 1]
    }
    pub(crate) fn top_mut(&mut self) -> &mut Frame {
        let last = self.frames.len() - 1;
        &mut self.frames[last]
    }
    pub(crate) fn reg(&self, r: Reg) -> &Value {
        &self.top().regs[r.index()]
    }
    pub(crate) fn set(&mut self, r: Reg, v: Value) {
        self.top_mut().regs[r.index()] = v;
    }
    /// Calls `with` for every value, to change it in place: the values of all frames, the contents seen in regions, and
    /// the results of definitions.
    #[inline(always)]
    pub(crate) fn each_value_mut(&mut self, mut with: impl FnMut(&mut Value)) {
        for frame in &mut self.frames {
            frame.each_value_mut(&mut with);
        }
        for s in &mut self.seen {
            with(&mut s.value);
        }
        for d in &mut self.definitions {
            with(&mut d.result);
        }
    }

    /// Iterates over every value, to change it in place: the values of all frames, the contents seen in regions, and
    /// the results of definitions.
    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut Value> {
        let seen = self.seen.iter_mut().map(|s| &mut s.value);
        let defined = self.definitions.iter_mut().map(|d| &mut d.result);
        self.frames.iter_mut().flat_map(Frame::values_mut).chain(seen).chain(defined)
    }

    /// The number of bytes proven to follow `start + scale * V(id)` in a region. `None` if that address itself is not
    /// proven to be in the region; then nothing is proven about the bytes just before it either. `least` is a lower
    /// bound of V, or 0.
    pub(crate) fn room(&self, region: u8, id: u32, scale: i16, least: i64) -> Option<u32> {
        if id == 0 {
            return self.min_len.get(usize::from(region)).copied();
        }
        let hi = len_id(region);
        // If a greater multiple of V is in the region, the smaller one has at least as much more room as the multiples
        // differ.
        let more = |f: &&Room| f.id == id && f.scale > scale && scale > 0 && least > 0;
        let wider = self.room.iter().filter(more).filter_map(|f| {
            let beyond = self.below(f.hi, 1, hi)?.checked_add(f.bytes)?;
            i64::from(f.scale - scale).checked_mul(least)?.checked_add(beyond)
        });
        let best = self.below(id, scale, hi).into_iter().chain(wider).max()?;
        u32::try_from(best.min(u32::MAX.into())).ok()
    }

    /// Whether `scale * V(id) + bytes <= V(hi)` is known.
    pub(crate) fn is_below(&self, id: u32, scale: i16, bytes: i64, hi: u32) -> bool {
        // A single fact suffices mostly.
        let says = |f: &Room| (f.id, f.scale, f.hi) == (id, scale, hi) && f.bytes >= bytes;
        (scale > 0 && self.room.iter().any(says)) || self.below(id, scale, hi).is_some_and(|known| known >= bytes)
    }

    /// The greatest `bytes` for which `scale * V(id) + bytes <= V(hi)` is known.
    pub(crate) fn below(&self, id: u32, scale: i16, hi: u32) -> Option<i64> {
        let by_facts = self.below_by_facts(id, scale, hi);
        if scale == 1 { by_facts.max(self.below_by_sums(id, hi)) } else { by_facts }
    }

    /// [`State::below`] from inequalities alone: the best chain of at most [`MAX_FACTS_CHAINED`] facts behind the
    /// first, found breadth first. A name that was reached with the same multiple and at least the same distance is not
    /// followed again, so the work is a few passes over all facts for each name.
    pub(crate) fn below_by_facts(&self, id: u32, scale: i16, hi: u32) -> Option<i64> {
        let mut best = (id == hi && scale == 1).then_some(0);
        if scale <= 0 || !self.room.iter().any(|f| f.id == id) {
            return best;
        }
        // Filters as bit sets over names modulo 64: names with a fact that leads on, and names with a fact that leads
        // to `hi`. Names may collide, which costs time only.
        let bit = |id: u32| 1u64 << (id % 64);
        let (mut on, mut last) = (0, 0);
        for f in &self.room {
            on |= bit(f.id);
            last |= if f.hi == hi { bit(f.id) } else { 0 };
        }
        if last == 0 {
            return best;
        }
        // Multiples of names that are at least the start multiple plus a distance: the name, the multiple, and the
        // distance.
        let mut reached: Few<(u32, i16, i64), 16> = Few::default();
        let mut layer = (0, 0);
        for hop in 0..=MAX_FACTS_CHAINED {
            let froms = if hop == 0 { 0..1 } else { layer.0..layer.1 };
            for from in froms {
                let (id, scale, above) = if hop == 0 { (id, scale, 0) } else { reached.get(from) };
                let reaches = |f: &&Room| f.id == id && scale > 0 && (f.scale >= scale || scale % f.scale == 0);
                for f in self.room.iter().filter(reaches) {
                    // V is not negative, so a smaller multiple of it is not greater. Otherwise the fact is multiplied
                    // until its scale is the wanted one.
                    let times = (scale / f.scale).max(1);
                    let Some(sum) = f.bytes.checked_mul(times.into()).and_then(|b| b.checked_add(above)) else {
                        continue;
                    };
                    if f.hi == hi && times == 1 {
                        best = best.max(Some(sum));
                    } else if hop < MAX_FACTS_CHAINED
                        && (if hop + 1 < MAX_FACTS_CHAINED { on } else { last }) & bit(f.hi) != 0
                        && !reached.iter().any(|(id, t, known)| (*id, *t) == (f.hi, times) && *known >= sum)
                    {
                        reached.push((f.hi, times, sum));
                    }
                }
            }
            layer = (layer.1, reached.len());
            if layer.0 == layer.1 {
                break;
            }
        }
        best
    }

    /// Learns that at least `bytes` bytes follow `start + scale * V(id)` in a region.
    pub(crate) fn learn_room(&mut self, region: u8, id: u32, scale: i16, bytes: u32) {
        if id == 0 {
            let len = &mut self.min_len[usize::from(region)];
            *len = (*len).max(bytes);
        } else {
            self.learn_below(Room { id, scale, bytes: bytes.into(), hi: len_id(region) });
        }
    }

    /// Learns a fact. Does nothing if the scale is not positive, or if the fact relates a value to itself. A fact about
    /// a multiple of a value that may be negative is not learnt either: rules that use multiples assume that a smaller
    /// multiple is not greater.
    pub(crate) fn learn_below(&mut self, fact: Room) {
        if fact.scale <= 0 || fact.id == 0 || fact.hi == 0 || fact.id == fact.hi {
            return;
        }
        if fact.scale > 1 && self.may_be_negative(fact.id) {
            return;
        }
        let same = |r: &&mut Room| (r.id, r.scale, r.hi) == (fact.id, fact.scale, fact.hi);
        if let Some(r) = self.room.iter_mut().find(same) {
            r.bytes = r.bytes.max(fact.bytes);
        } else if fact.hi < FIRST_FREE_ID || self.room.len() < MAX_FACTS {
            self.room.push(fact);
        }
    }

    /// Whether the current instruction is in a loop that is walked from a candidate invariant, or sampled.
    pub(crate) fn in_guessed_loop(&self) -> bool {
        let guessed = |m: &Mark| matches!(m.round, Round::Watched | Round::Guessed);
        self.frames.iter().any(|f| f.loops.iter().any(guessed))
    }

    /// Invalidates every pointer into a region, and every number's identity as a region's length.
    ///
    /// Distances between pointers that are held stay known: stale pointers keep their offsets from where the regions
    /// were.
    pub(crate) fn packet_moved(&mut self, at: InsnIdx, env: &Env<'_>, next_id: &mut u32) {
        let min_lens = env.min_lens();
        // The name of this move. The names that follow it are those of the old lengths.
        let moved = *next_id + 1;
        *next_id = moved + crate::num::small(Region::MAX_REGIONS);
        let was = |id: u32| if id != 0 && id < FIRST_FREE_ID { moved + id } else { id };
        let stale = |v: &Value, region: u8, end: bool, half: bool| {
            let v = match end {
                true => {
                    let r = env.region(region);
                    let n = Scalar::unsigned(r.min_len.into(), r.max_len.into());
                    Value { n, ..v.renamed(len_id(region), 1, 0) }
                }
                false => *v,
            };
            let ty = Ty::Stale { region: Some(region), half, why: Why::Moved(at) };
            Value { ty, owner: moved, ..v.renamed(was(v.id), v.scale, v.delta) }
        };
        for frame in &mut self.frames {
            frame.contents.iter_mut().for_each(|c| c.order.lens = Default::default());
            let registers = if planted!(SpilledPacketSurvives) { 11 } else { usize::MAX };
            for v in frame.values_mut().take(registers) {
                match v.ty {
                    Ty::Packet { region } => *v = stale(v, region, false, false),
                    Ty::PacketEnd { region } => *v = stale(v, region, true, false),
                    Ty::Half { region, end } => *v = stale(v, region, end, true),
                    Ty::Biased { .. } => *v = Value::uninit(Why::Moved(at)),
                    Ty::Mem { from: Origin::Slice { packet: true }, .. } if !planted!(SliceSurvives) => {
                        *v = v.gone(Why::Moved(at));
                    }
                    // The number stays, but it is not the region's length any more, so it loses that name.
                    Ty::Scalar if v.id < FIRST_FREE_ID => *v = v.unlinked(),
                    // A tie to a region's length would now refer to the new length.
                    Ty::Stack { .. } | Ty::MapValue { .. } | Ty::Mem { .. } | Ty::Signed if v.tie < FIRST_FREE_ID => {
                        *v = v.renamed(0, 1, 0);
                    }
                    _ => {}
                }
            }
            // A loop's initial value cannot be named by a length that has changed.
            for line in frame.loops.iter_mut().flat_map(|m| &mut m.lines) {
                if line.n < FIRST_FREE_ID {
                    line.n = 0;
                }
            }
            frame.drop_uninit_spills();
        }
        self.forget_defined_lengths();
        if planted!(PacketLengthSurvives) {
            return;
        }
        if planted!(SpilledPacketSurvives) {
            return;
        }
        self.room.clear();
        self.sums.clear();
        self.products.clear();
        self.seen.clear();
        self.forget_differences();
        self.min_len.move_all(min_lens);
    }

    /// Ends, where the run may have slept, all values that lead to memory that may be freed after a grace period.
    ///
    /// Claim: the remaining values lead to memory that the run itself keeps. Proof: the run keeps its stack, its
    /// context, its code, and the maps that the program refers to. Arrays that all execution slots share have their
    /// elements as long as the map exists.
    pub(crate) fn slept(&mut self, why: Why, env: &Env<'_>) {
        for frame in &mut self.frames {
            let registers = if planted!(SpilledElementSleeps) { 11 } else { usize::MAX };
            for v in frame.values_mut().take(registers).filter(|v| !v.outlasts_sleep(env)) {
                *v = if v.is_local() { Value::uninit(why) } else { v.gone(why) };
            }
            frame.drop_uninit_spills();
        }
    }

    /// The object's obligation is met: a list or a tree owns it, and the program may access it until the lock is
    /// released.
    pub(crate) fn lend(&mut self, owner: u32) {
        self.owed.retain(|o| o.id != owner);
        for v in self.values_mut().filter(|v| v.owner == owner) {
            if let Ty::Mem { from: Origin::Object { hold, .. }, .. } = &mut v.ty {
                (*hold, v.owner) = (Hold::Borrowed, 0);
            }
        }
    }

    /// The object's obligation is met: it lies in a map's value, from which others may take and drop it. The program's
    /// pointers to it become pointers as if they were loaded from there.
    pub(crate) fn stash(&mut self, owner: u32) {
        self.owed.retain(|o| o.id != owner);
        for v in self.values_mut().filter(|v| v.owner == owner) {
            if let Ty::Mem { from: Origin::Object { hold, .. }, .. } = &mut v.ty {
                (*hold, v.owner) = (Hold::Loaded, 0);
            }
        }
    }

    /// Ends borrows when a lock is released: others may take objects out of lists and trees.
    pub(crate) fn end_borrows(&mut self, at: InsnIdx) {
        for frame in &mut self.frames {
            let registers = if planted!(BorrowSurvives) { 11 } else { usize::MAX };
            for v in frame.values_mut().take(registers) {
                if let Ty::Mem { from: Origin::Object { hold: Hold::Borrowed, .. }, .. } = v.ty {
                    *v = Value::uninit(Why::Unlocked(at));
                }
            }
            frame.drop_uninit_spills();
        }
    }

    /// Whether there is a difference that a later comparison may show not to have wrapped.
    pub(crate) fn has_differences(&self) -> bool {
        !self.wraps.is_empty() || !self.differences.is_empty() || !self.negatives.is_empty()
    }

    pub(crate) fn forget_differences(&mut self) {
        self.wraps.clear();
        self.differences.clear();
        self.negatives.clear();
        self.lanes.clear();
    }

    /// The bytes that the contents take, as limits count them. They depend on the state only, not on the capacity of
    /// its vectors.
    pub(crate) fn bytes(&self) -> usize {
        self.sizes().contents
    }

    /// The number of values and facts: the cost of visiting the whole state.
    pub(crate) fn size(&self) -> u64 {
        let frame = |f: &Frame| f.regs.len() + f.spills.len() + f.contents.len() + f.bytes.len() / 16;
        let facts = self.room.len() + self.sums.len() + self.products.len() + self.seen.len();
        (self.frames.iter().map(frame).sum::<usize>() + facts) as u64
    }

    /// The bytes of the contents, and the bytes that are allocated.
    pub(crate) fn sizes(&self) -> Sizes {
        let mut sizes = Sizes { contents: size_of::<State>(), held: size_of::<State>() };
        macro_rules! add {
            ($($list:ident),*) => {{
                let State { frames, min_len: _, $($list),* } = self;
                sizes.add(frames);
                frames.iter().for_each(|f| f.add_sizes(&mut sizes));
                // Most states have empty lists.
                if (0 $(| $list.capacity())*) != 0 {
                    $(sizes.add($list);)*
                }
            }};
        }
        with_lists!(add);
        sizes
    }

    /// Frees the capacity that the contents do not need.
    pub(crate) fn fit(&mut self) {
        macro_rules! fit {
            ($($list:ident),*) => {{
                let State { frames, min_len: _, $($list),* } = self;
                frames.shrink_to_fit();
                frames.iter_mut().for_each(Frame::fit);
                $($list.shrink_to_fit();)*
            }};
        }
        with_lists!(fit);
    }
}

/// Bytes of vectors: those in use, and those allocated.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Sizes {
    pub(crate) contents: usize,
    pub(crate) held: usize,
}

impl Sizes {
    fn add<T>(&mut self, v: &Vec<T>) {
        self.contents += v.len() * size_of::<T>();
        self.held += v.capacity() * size_of::<T>();
    }
}
