//! The abstract machine state: frames of registers and stack, and what is known across them.
//!
//! Problem: a state is copied at each undecided branch and compared at each join, so it must be small and cheap in
//! both. Approach: one record a frame; stack contents as one byte of kind per byte plus a short sorted list of values
//! that are known better ([`Spill`]); vectors grow only as deep as the program writes. States are recycled, so a copy
//! allocates nothing in the steady state.
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
use crate::helpers::LockKind;
use crate::lens::Lens;
use crate::scalar::Scalar;
use crate::value::{Debt, FIRST_FREE_ID, Hold, Origin, Ty, Value, Why, len_id};

pub(crate) use definitions::{Affine, Definition, Left, Made};
pub(crate) use frame::{Byte, Content, Entry, Fill, Frame, Grid, Line, Mark, Order, Round, Spill, TRACKED};
pub(crate) use pool::Pool;

/// Facts about pairs of values in a state, other than about regions' lengths: more than this are not learnt, so that
/// looking for one stays cheap.
const MAX_FACTS: usize = 64;
/// Facts that are chained to reach from one value to another.
const MAX_FACTS_CHAINED: u32 = 3;

/// A lock that is held.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Lock {
    pub kind: LockKind,
    pub of: LockOf,
    /// Where it was taken.
    pub at: InsnIdx,
}

/// Whose lock it is: that of an element, by its map and its name, or of an object, by what is owed for it. Two names
/// may be of one, one is of one alone; an element without a name is the only one of its map.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LockOf {
    pub within: Within,
    pub id: u32,
}

/// What a lock is in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Within {
    /// A value of this map.
    Value { map: u32, inner: bool },
    /// An object of this type that the program owns.
    Object { class: u32 },
}

/// A proven fact: `scale * V(id) + bytes <= V(hi)`. Where `hi` is the length of a region, so many bytes follow V in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Room {
    pub id: u32,
    /// Above 0.
    pub scale: i16,
    pub bytes: i64,
    pub hi: u32,
}

/// An equation: `V(s) = V(a) + scale * V(b) + delta`, of numbers that are not negative (see `walk::sums`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Sum {
    pub s: u32,
    pub a: u32,
    pub b: u32,
    /// Above 0.
    pub scale: i64,
    pub delta: i64,
    /// V(s) is at most this.
    pub max: i64,
    /// The scale is a power of two, and V(a) less than it.
    pub split: bool,
}

/// An equation: `V(p) = V(a) * V(b)`, of numbers that are not negative (see `walk::products`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Product {
    pub p: u32,
    pub a: u32,
    pub b: u32,
}

/// A difference that may have wrapped round: `V(w) = whole - by`, modulo two to the power of `bits`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Wrap {
    pub w: u32,
    pub v: u32,
    pub whole: Whole,
    /// Above 0.
    pub by: u64,
    pub bits: u32,
}

/// The minuend of a difference with a constant, which is a number of so many bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Whole {
    /// `V(v)`.
    Name,
    /// This less `V(v)`: what counts down where `V(v)` counts rounds.
    Less(i64),
}

impl Wrap {
    /// Bounds of the whole, where those of `V(v)` are these.
    pub(crate) fn whole_within(&self, (min, max): (i128, i128)) -> (i128, i128) {
        match self.whole {
            Whole::Name => (min, max),
            Whole::Less(from) => (i128::from(from) - max, i128::from(from) - min),
        }
    }
}

/// A difference of two named numbers, of which nobody knows yet whether it has wrapped round: `V(w) = V(whole) -
/// V(less)`, modulo two to the power of its width.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Difference {
    pub w: u32,
    pub whole: u32,
    pub less: u32,
    pub bits: u32,
}

/// What is known of the bits of `V(id)` (see `walk::lanes`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Lanes {
    pub id: u32,
    pub bits: Bits,
}

/// What its bits are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Bits {
    /// Those of `V(x) >> 1`.
    Shifted { x: u32 },
    /// Those of `(V(x) >> 1) & 0x55...`, of so many low bits.
    Pairs { x: u32, bits: u32 },
    /// Fields, side by side.
    Fields(Fields),
}

/// A difference that has wrapped round: `V(w) = 2^bits - V(v)`, where `V(v)` is above 0, and is how far the whole is
/// below what was taken off it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Negative {
    pub w: u32,
    pub v: u32,
    pub bits: u32,
}

/// A number that was loaded from a region: `size` bytes at `start + scale * V(id) + at`. Nobody has written to any
/// region since, so a load of the same bytes yields it again (see `walk::seen`).
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Seen {
    pub region: u8,
    pub id: u32,
    pub scale: i16,
    pub at: i64,
    pub size: u8,
    pub value: Value,
    /// Numbers that it was compared with and is not, as far as there is room; unused ones are 0 and do not count.
    pub not: [u64; MAX_UNLIKE],
    pub unlike: u8,
}

/// Numbers that one which was loaded is remembered not to be.
pub(crate) const MAX_UNLIKE: usize = 4;

impl Seen {
    /// Whether it is remembered not to be this number.
    pub(crate) fn is_not(&self, c: u64) -> bool {
        self.not[..usize::from(self.unlike)].contains(&c)
    }
}

/// What must be given back: a record, a socket, an object on the stack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Owed {
    pub id: u32,
    pub debt: Debt,
    /// Where it was got.
    pub at: InsnIdx,
    /// The frame that got it.
    pub frame: u8,
    /// And when: states kept before.
    pub since: u32,
}

/// The whole abstract machine at one instruction.
#[derive(Debug, Default)]
pub(crate) struct State {
    pub frames: Vec<Frame>,
    pub owed: Vec<Owed>,
    /// In the order in which they were taken.
    pub locks: Vec<Lock>,
    /// Proven least length of each region.
    pub min_len: Lens,
    pub room: Vec<Room>,
    pub sums: Vec<Sum>,
    pub products: Vec<Product>,
    /// From one join to the next, as the differences are.
    pub wraps: Vec<Wrap>,
    pub differences: Vec<Difference>,
    pub negatives: Vec<Negative>,
    pub lanes: Vec<Lanes>,
    /// In some loops.
    pub seen: Vec<Seen>,
    /// Until the state is kept.
    pub definitions: Vec<Definition>,
}

/// Calls a macro with the names of all lists of a state but its frames. Its expansion names all fields of the
/// state, so that the compiler reports one that stands neither here nor there.
macro_rules! with_lists {
    ($call:ident) => {
        $call! { owed, locks, room, sums, products, wraps, differences, negatives, lanes, seen, definitions }
    };
}

impl Clone for State {
    fn clone(&self) -> State {
        // Exactly as large as the contents, which `clone_from` is not.
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
    /// A copy, in the memory of a state that is no longer used, if there is one.
    pub(crate) fn copied(&self, pool: &mut Pool) -> State {
        fuel::charge(fuel::VALUE * self.size());
        pool.copy(self)
    }

    /// Begins anew with this frame: nothing of what the state was stays but the memory it took. Names begin anew with
    /// each program, so whatever stayed would be said of other numbers.
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

    /// The frame that runs. There always is one while the walk does.
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
    /// Calls `with` for every value of every frame, the contents seen in regions, and results of definitions, to change
    /// them in place.
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

    /// Iterates over every value of every frame, the contents seen in regions, and results of definitions, to change
    /// them in place.
    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut Value> {
        let seen = self.seen.iter_mut().map(|s| &mut s.value);
        let defined = self.definitions.iter_mut().map(|d| &mut d.result);
        self.frames.iter_mut().flat_map(Frame::values_mut).chain(seen).chain(defined)
    }

    /// Bytes proven to follow `start + scale * V(id)` in a region. `None`: not even that address is known to be in it,
    /// so that nothing is proven of the bytes just before it either. `least` is the least value of V, or 0.
    pub(crate) fn room(&self, region: u8, id: u32, scale: i16, least: i64) -> Option<u32> {
        if id == 0 {
            return self.min_len.get(usize::from(region)).copied();
        }
        let hi = len_id(region);
        // A greater multiple of V that is in the region leaves as much more room for this one.
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
        // Mostly it is what one fact says.
        let says = |f: &Room| (f.id, f.scale, f.hi) == (id, scale, hi) && f.bytes >= bytes;
        (scale > 0 && self.room.iter().any(says)) || self.below(id, scale, hi).is_some_and(|known| known >= bytes)
    }

    /// The greatest `bytes` for which `scale * V(id) + bytes <= V(hi)` is known.
    pub(crate) fn below(&self, id: u32, scale: i16, hi: u32) -> Option<i64> {
        let by_facts = self.below_by_facts(id, scale, hi);
        if scale == 1 { by_facts.max(self.below_by_sums(id, hi)) } else { by_facts }
    }

    /// The same, from facts alone: the best of all chains of so many, found hop by hop. What has been reached before by
    /// as much is not followed again, so the work is that of looking at all facts a few times for each name.
    pub(crate) fn below_by_facts(&self, id: u32, scale: i16, hi: u32) -> Option<i64> {
        let mut best = (id == hi && scale == 1).then_some(0);
        if scale <= 0 || !self.room.iter().any(|f| f.id == id) {
            return best;
        }
        // Names from which facts lead on, and those from which one leads to `hi`: a bit for each, which others may have
        // too. What leads nowhere is not followed.
        let bit = |id: u32| 1u64 << (id % 64);
        let (mut on, mut last) = (0, 0);
        for f in &self.room {
            on |= bit(f.id);
            last |= if f.hi == hi { bit(f.id) } else { 0 };
        }
        if last == 0 {
            return best;
        }
        // What is no less than the multiple, by so much: a name, how often, and the distance.
        let mut reached: Few<(u32, i16, i64), 16> = Few::default();
        let mut layer = (0, 0);
        for hop in 0..=MAX_FACTS_CHAINED {
            let froms = if hop == 0 { 0..1 } else { layer.0..layer.1 };
            for from in froms {
                let (id, scale, above) = if hop == 0 { (id, scale, 0) } else { reached.get(from) };
                let reaches = |f: &&Room| f.id == id && scale > 0 && (f.scale >= scale || scale % f.scale == 0);
                for f in self.room.iter().filter(reaches) {
                    // V is not negative: a smaller multiple of it is no greater. And what is above V is so often above
                    // a multiple of V.
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

    /// Learns that at least `bytes` bytes follow `start + scale * V(id)`.
    pub(crate) fn learn_room(&mut self, region: u8, id: u32, scale: i16, bytes: u32) {
        if id == 0 {
            let len = &mut self.min_len[usize::from(region)];
            *len = (*len).max(bytes);
        } else {
            self.learn_below(Room { id, scale, bytes: bytes.into(), hi: len_id(region) });
        }
    }

    /// Learns a fact. Says nothing if the scale is not positive, or if it is one of a value about itself. Nor is a
    /// multiple of what may be negative one, whoever learns it: smaller multiples would not be less.
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

    /// Whether some loop that is walked from a guess, or watched, is around the current instruction.
    pub(crate) fn in_guessed_loop(&self) -> bool {
        let guessed = |m: &Mark| matches!(m.round, Round::Watched | Round::Guessed);
        self.frames.iter().any(|f| f.loops.iter().any(guessed))
    }

    /// Invalidates every pointer into a region, and every number that is a region's length.
    ///
    /// Of pointers that are held, the distances stay known: they are offsets from where the regions were.
    pub(crate) fn packet_moved(&mut self, at: InsnIdx, env: &Env<'_>, next_id: &mut u32) {
        let min_lens = env.min_lens();
        // The name of this move, and behind it those of the lengths that were.
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
                    // Still a number, but no longer *the* length.
                    Ty::Scalar if v.id < FIRST_FREE_ID => *v = v.unlinked(),
                    // Nor does what it was added to move with it.
                    Ty::Stack { .. } | Ty::MapValue { .. } | Ty::Mem { .. } | Ty::Signed if v.tie < FIRST_FREE_ID => {
                        *v = v.renamed(0, 1, 0);
                    }
                    _ => {}
                }
            }
            // Nor is the length that a loop began with.
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

    /// What owes the object is paid: it is a list's or a tree's, and the program's to look at until the lock is
    /// released.
    pub(crate) fn lend(&mut self, owner: u32) {
        self.owed.retain(|o| o.id != owner);
        for v in self.values_mut().filter(|v| v.owner == owner) {
            if let Ty::Mem { from: Origin::Object { hold, .. }, .. } = &mut v.ty {
                (*hold, v.owner) = (Hold::Borrowed, 0);
            }
        }
    }

    /// What owes the object is paid: it lies in a map's value, where others may take it out and drop it, and by the
    /// pointers that the program had it is one that was loaded from there.
    pub(crate) fn stash(&mut self, owner: u32) {
        self.owed.retain(|o| o.id != owner);
        for v in self.values_mut().filter(|v| v.owner == owner) {
            if let Ty::Mem { from: Origin::Object { hold, .. }, .. } = &mut v.ty {
                (*hold, v.owner) = (Hold::Loaded, 0);
            }
        }
    }

    /// A lock is released: what is in lists and trees is others' to take.
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

    /// Whether there are differences of which a comparison may show that they have not wrapped round.
    pub(crate) fn has_differences(&self) -> bool {
        !self.wraps.is_empty() || !self.differences.is_empty() || !self.negatives.is_empty()
    }

    pub(crate) fn forget_differences(&mut self) {
        self.wraps.clear();
        self.differences.clear();
        self.negatives.clear();
        self.lanes.clear();
    }

    /// The memory that its contents take: the same for the same state, whatever its vectors held before, as limits
    /// count it.
    pub(crate) fn bytes(&self) -> usize {
        self.sizes().contents
    }

    /// How many values it has, and facts: what it takes to look at all of it, whatever its vectors held before.
    pub(crate) fn size(&self) -> u64 {
        let frame = |f: &Frame| f.regs.len() + f.spills.len() + f.contents.len() + f.bytes.len() / 16;
        let facts = self.room.len() + self.sums.len() + self.products.len() + self.seen.len();
        (self.frames.iter().map(frame).sum::<usize>() + facts) as u64
    }

    /// The bytes of its contents, and those that it holds on to.
    pub(crate) fn sizes(&self) -> Sizes {
        let mut sizes = Sizes { contents: size_of::<State>(), held: size_of::<State>() };
        macro_rules! add {
            ($($list:ident),*) => {{
                let State { frames, min_len: _, $($list),* } = self;
                sizes.add(frames);
                frames.iter().for_each(|f| f.add_sizes(&mut sizes));
                // Most states have none of them.
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

/// Bytes of vectors: of their contents, and of what they hold on to.
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
