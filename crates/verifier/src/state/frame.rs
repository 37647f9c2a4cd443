//! A frame of the abstract machine: a function's registers, its stack, and the rounds of its loops.
//!
//! Invariants: spills are sorted by `depth`, do not overlap, and cover exactly the bytes of kind `Spill`. Byte i of
//! `bytes` is the byte at r10 - 1 - i.

use bpf_isa::{InsnIdx, Reg};

use super::Sizes;
use crate::env::Region;
use crate::faults::planted;
use crate::helpers::{CallbackKind, Local};
use crate::scalar::Scalar;
use crate::value::{Ty, Value, Why};

/// The state of a stack byte.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Byte {
    /// An unreadable byte: it may be part of a pointer, or nothing is known of it.
    Uninit,
    /// A byte that was not written since the function was entered. It is zero if the host zeroes the frame, which a
    /// read requests ([`crate::notes::Notes::zeroed`]).
    Fresh,
    /// A number, or unwritten as [`Byte::Fresh`].
    Maybe,
    /// An unknown number.
    Misc,
    /// Zero.
    Zero,
    /// Part of a [`Spill`].
    Spill,
}

/// Bytes at the top of a frame for which freshness is tracked. Deeper bytes are unreadable until they are written. A
/// demand has a bit for each tracked byte (see `walk::trail`).
pub(crate) const TRACKED: usize = 512;

/// A value on the stack.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Spill {
    /// Its first byte is at r10 - depth.
    pub depth: u16,
    /// The bytes it takes.
    pub size: u8,
    pub value: Value,
}

/// An initialised part of a frame: the bytes from r10 + `bottom` to r10 + `scale * V(id) + delta` (exclusive) are
/// numbers. `id` names the round of a loop that the walk is in (see `crate::fill`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Fill {
    pub bottom: i64,
    pub id: u32,
    /// The factor of V(id), above 0.
    pub scale: i16,
    pub delta: i64,
}

/// Places of `size`-byte numbers at the offsets `first`, `first + stride`, ..., `last` from r10.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Grid {
    pub first: i64,
    pub last: i64,
    /// Bytes from one number to the next, at least `size`.
    pub stride: i64,
    pub size: i64,
}

/// A bound of an array's elements: each number that was written to these places of a frame is in a range (see
/// `crate::content`).
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Content {
    pub grid: Grid,
    /// The range; `None` if nothing was written.
    pub n: Option<Scalar>,
    pub order: Order,
}

/// Symbolic upper bounds of every number in an array (see `crate::content`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Order {
    /// If present, each number is at most the index of its element, counted in strides from this place.
    pub base: Option<i64>,
    /// For each region, if present, each number is at most the region's length minus this.
    pub lens: [Option<u32>; Region::MAX_REGIONS],
}

/// The way a frame was entered, which determines how it is left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Entry {
    /// The main program, or a global function on its own.
    Root,
    /// A function that a timer calls, walked on its own: it returns 0 and makes no tail call.
    Timer,
    /// A function that compares two nodes of a tree, walked on its own. It calls nothing.
    Compare,
    /// The exception callback, which receives the thrown number.
    Exception,
    /// A call; the caller continues here.
    Call { back: InsnIdx },
    /// A callback; the caller continues here when the helper returns.
    Callback { kind: CallbackKind, back: InsnIdx, call: InsnIdx },
}

/// One function's registers and stack.
#[derive(Debug)]
pub(crate) struct Frame {
    pub regs: [Value; 11],
    pub bytes: Vec<Byte>,
    /// The kind of those of the first [`TRACKED`] bytes that lie beyond `bytes`: fresh, unless a kept state has
    /// forgotten it.
    pub rest: Byte,
    pub spills: Vec<Spill>,
    /// Arrays that a loop is initialising.
    pub fills: Vec<Fill>,
    /// Arrays whose elements have a known bound.
    pub contents: Vec<Content>,
    pub entry: Entry,
    pub subprog: u32,
    /// The epoch of the caller (see `walk::prune`). It does not take part in comparisons of states.
    pub outer_epoch: u32,
    /// The number of kept states when the frame was entered, or when the helper that calls it back was called. It does
    /// not take part in comparisons either.
    pub since: u32,
    /// The loops around the frame's current instruction that are accelerated (see `walk::loops`), outermost first.
    pub loops: Vec<Mark>,
}

/// The mode in which a loop's round is walked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Round {
    /// Concretely, round by round.
    Walked,
    /// The first round, walked concretely; a candidate invariant follows for the others (loop peeling).
    Peeled,
    /// A sample round, walked concretely to observe what a round changes.
    Watched,
    /// A round walked from a candidate invariant, which is assumed in every round until it is checked.
    Guessed,
}

/// A loop around the frame's current instruction.
#[derive(Debug)]
pub(crate) struct Mark {
    /// The loop's id.
    pub id: u32,
    pub round: Round,
    /// The number of this round, if there is a candidate invariant. Its id is the name of the round.
    pub k: Value,
    /// Numbers that move with the round.
    pub lines: Vec<Line>,
    /// Ids that keep their names until the round ends, even if at most one value has them.
    pub ids: Vec<u32>,
    /// The side of this round, if the loop is partitioned: one bit for each of the invariant's places that hold no
    /// value.
    pub side: u8,
}

/// A linear function of the round: `V(x) = V(n) + step * V(k)`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Line {
    pub x: u32,
    /// The name of its value when the loop began; 0 if that has no name any more.
    pub n: u32,
    pub step: i32,
    /// The set of V(n).
    pub start: Scalar,
}

impl Clone for Mark {
    fn clone(&self) -> Mark {
        Mark { lines: self.lines.clone(), ids: self.ids.clone(), ..*self }
    }
    /// Reuses the vectors' memory, which a derived `clone_from` does not.
    fn clone_from(&mut self, other: &Mark) {
        // The fields are named, so that the compiler reports a new one.
        let Mark { id, round, k, lines, ids, side } = other;
        self.id = *id;
        self.round = *round;
        self.k = *k;
        self.lines.clone_from(lines);
        self.ids.clone_from(ids);
        self.side = *side;
    }
}

impl Clone for Frame {
    fn clone(&self) -> Frame {
        Frame {
            regs: self.regs,
            bytes: self.bytes.clone(),
            rest: self.rest,
            spills: self.spills.clone(),
            fills: self.fills.clone(),
            contents: self.contents.clone(),
            entry: self.entry,
            subprog: self.subprog,
            outer_epoch: self.outer_epoch,
            since: self.since,
            loops: self.loops.clone(),
        }
    }
    /// Reuses the vectors' memory, which a derived `clone_from` does not.
    fn clone_from(&mut self, other: &Frame) {
        // The fields are named, so that the compiler reports a new one.
        let Frame { regs, bytes, rest, spills, fills, contents, entry, subprog, outer_epoch, since, loops } = other;
        self.regs = *regs;
        self.bytes.clone_from(bytes);
        self.rest = *rest;
        self.spills.clone_from(spills);
        self.fills.clone_from(fills);
        self.contents.clone_from(contents);
        self.entry = *entry;
        self.subprog = *subprog;
        self.outer_epoch = *outer_epoch;
        self.since = *since;
        self.loops.clone_from(loops);
    }
}

impl Frame {
    pub(crate) fn new(index: u8, subprog: u32, entry: Entry) -> Frame {
        let mut regs = [Value::uninit(Why::Never); 11];
        regs[Reg::R10.index()] = Value::pointer(Ty::Stack { frame: index });
        let (bytes, spills, fills, contents, loops) = Default::default();
        let rest = Byte::Fresh;
        Frame { regs, bytes, rest, spills, fills, contents, entry, subprog, outer_epoch: 0, since: 0, loops }
    }

    /// Adds the bytes of the frame's vectors.
    pub(super) fn add_sizes(&self, sizes: &mut Sizes) {
        sizes.add(&self.bytes);
        sizes.add(&self.spills);
        // Most frames have empty lists.
        if self.fills.capacity() | self.contents.capacity() | self.loops.capacity() != 0 {
            sizes.add(&self.fills);
            sizes.add(&self.contents);
            sizes.add(&self.loops);
            for m in &self.loops {
                sizes.add(&m.lines);
                sizes.add(&m.ids);
            }
        }
    }

    /// Frees the capacity that the contents do not need.
    pub(super) fn fit(&mut self) {
        self.bytes.shrink_to_fit();
        self.spills.shrink_to_fit();
        self.fills.shrink_to_fit();
        self.contents.shrink_to_fit();
        self.loops.shrink_to_fit();
        for m in &mut self.loops {
            m.lines.shrink_to_fit();
            m.ids.shrink_to_fit();
        }
    }

    /// The kind of the byte at r10 - depth.
    pub(crate) fn byte(&self, depth: usize) -> Byte {
        match self.bytes.get(depth - 1) {
            Some(byte) => *byte,
            None if depth <= TRACKED => self.rest,
            None => Byte::Uninit,
        }
    }

    /// Whether the byte at r10 - depth is a number, or unwritten.
    pub(crate) fn is_number(&self, depth: usize) -> bool {
        match self.byte(depth) {
            Byte::Misc | Byte::Zero | Byte::Fresh | Byte::Maybe => true,
            Byte::Uninit => false,
            Byte::Spill => self.spill_at(depth).is_some_and(|s| s.value.is_bytes()),
        }
    }

    /// Whether every byte of a range is a number, or unwritten.
    pub(crate) fn holds_numbers(&self, depth: usize, size: usize) -> bool {
        (depth + 1 - size..=depth).all(|d| self.is_number(d))
    }

    /// Whether a range overlaps an object on the stack.
    pub(crate) fn holds_object(&self, depth: usize, size: usize) -> bool {
        (depth + 1 - size..=depth).any(|d| self.spill_at(d).is_some_and(|s| s.value.is_local()))
    }

    /// Whether none of the `size` bytes from r10 - depth was written on any path.
    pub(crate) fn is_fresh(&self, depth: usize, size: usize) -> bool {
        (depth + 1 - size..=depth).all(|d| self.byte(d) == Byte::Fresh)
    }

    /// The least and the greatest depth of bytes in the range that may be unwritten. `None` if there are none, or if a
    /// byte is not a number.
    pub(crate) fn fresh_within(&self, depth: usize, size: usize) -> Option<(usize, usize)> {
        let mut depths = depth + 1 - size..=depth;
        if !depths.clone().all(|d| self.is_number(d)) {
            return None;
        }
        let fresh = |d: &usize| matches!(self.byte(*d), Byte::Fresh | Byte::Maybe);
        Some((depths.clone().find(fresh)?, depths.rfind(fresh)?))
    }

    /// The spill that covers the byte at r10 - depth.
    fn spill_at(&self, depth: usize) -> Option<&Spill> {
        let at = self.spills.partition_point(|s| usize::from(s.depth) < depth);
        self.spills.get(at).filter(|s| depth + usize::from(s.size) > usize::from(s.depth))
    }

    /// The byte's value, if it is known.
    fn known_byte(&self, depth: usize) -> Option<u8> {
        match self.byte(depth) {
            Byte::Zero => Some(0),
            Byte::Uninit | Byte::Fresh | Byte::Maybe | Byte::Misc => None,
            Byte::Spill => {
                let spill = self.spill_at(depth)?;
                let v = spill.value.as_const()?;
                Some(v.to_le_bytes()[usize::from(spill.depth) - depth])
            }
        }
    }

    /// The `size` bytes from r10 - depth as one little-endian number, if all are known.
    pub(crate) fn known_number(&self, depth: usize, size: usize) -> Option<u64> {
        (0..size).try_fold(0, |v, i| Some(v | u64::from(self.known_byte(depth - i)?) << (8 * i)))
    }

    /// The spill of exactly these bytes.
    pub(crate) fn spilled(&self, depth: usize, size: usize) -> Option<&Spill> {
        let at = self.spills.partition_point(|s| usize::from(s.depth) < depth);
        self.spills.get(at).filter(|s| (usize::from(s.depth), usize::from(s.size)) == (depth, size))
    }

    /// Whether the `size` bytes from r10 - depth are any number at all, and no array bounds them.
    pub(crate) fn is_misc(&self, depth: usize, size: usize) -> bool {
        let bytes = self.bytes.get(depth - size..depth);
        self.contents.is_empty() && self.fills.is_empty() && bytes.is_some_and(|b| b.iter().all(|b| *b == Byte::Misc))
    }

    /// Gives the number in these bytes, which have a spill of this extent or none, the value `value`.
    pub(crate) fn name_number(&mut self, depth: usize, size: usize, value: &Value) {
        let at = self.spills.partition_point(|s| usize::from(s.depth) < depth);
        match self.spills.get_mut(at) {
            Some(s) if (usize::from(s.depth), usize::from(s.size)) == (depth, size) => s.value = *value,
            _ => {
                self.bytes[depth - size..depth].fill(Byte::Spill);
                let spill = Spill { depth: crate::num::half(depth), size: crate::num::few(size), value: *value };
                self.spills.insert(at, spill);
            }
        }
    }

    /// The value that a load of `size` bytes at r10 - depth yields. `Err` has the depth of a byte that cannot be read.
    pub(crate) fn load(&self, depth: usize, size: usize) -> Result<Value, usize> {
        if let Some(s) = self.spill_at(depth)
            && usize::from(s.depth) == depth
            && s.value.ty != Ty::Local(Local::Buffer)
        {
            if s.value.is_local() {
                return Err(depth);
            }
            if usize::from(s.size) == size {
                return Ok(s.value);
            }
            if size < usize::from(s.size) && s.value.is_scalar() {
                return Ok(Value::scalar(s.value.n.truncate(8 * crate::num::small(size))));
            }
        }
        self.check_readable(depth, size)?;
        if let Some(v) = self.known_number(depth, size) {
            return Ok(Value::constant(v));
        }
        let any = Scalar::low_bits(8 * crate::num::small(size));
        Ok(Value::scalar(self.content_at(depth, size).and_then(|n| n.meet(&any)).unwrap_or(any)))
    }

    /// Checks that the `size` bytes from r10 - depth were written and contain no part of a pointer.
    pub(crate) fn check_readable(&self, depth: usize, size: usize) -> Result<(), usize> {
        for d in (depth + 1 - size..=depth).rev() {
            match self.byte(d) {
                Byte::Misc | Byte::Zero => {}
                Byte::Uninit | Byte::Fresh | Byte::Maybe if planted!(UninitReadable) => {}
                Byte::Uninit | Byte::Fresh | Byte::Maybe => return Err(d),
                Byte::Spill => {
                    if !self.spill_at(d).is_some_and(|s| s.value.is_bytes()) {
                        return Err(d);
                    }
                }
            }
        }
        Ok(())
    }

    /// Removes spills from the bytes. The remaining bytes of a spill that is partly outside stay readable if it was a
    /// number, and become unreadable if it was a pointer: reading them would leak a part of it.
    fn clear_spills(&mut self, depth: usize, size: usize) {
        if planted!(SpillSurvives) && size < 8 {
            return;
        }
        let low = depth - size;
        let bytes = &mut self.bytes;
        self.spills.retain(|s| {
            let (top, end) = (usize::from(s.depth), usize::from(s.depth) - usize::from(s.size));
            if top <= low || end >= depth {
                return true;
            }
            let rest = if s.value.is_bytes() { Byte::Misc } else { Byte::Uninit };
            bytes[end..top].fill(rest);
            false
        });
    }

    /// Stores `value` at r10 - depth. A number must already be truncated to `size` bytes; pointers take 8.
    pub(crate) fn store(&mut self, depth: usize, size: usize, value: &Value) {
        if !value.is_scalar() {
            self.end_fills(depth, size);
        }
        let kind = match value.as_const() {
            Some(0) => Byte::Zero,
            None if value.is_any(8 * crate::num::small(size)) => Byte::Misc,
            _ => Byte::Spill,
        };
        if kind == Byte::Spill {
            let at = self.spills.partition_point(|s| usize::from(s.depth) < depth);
            if let Some(spill) = self.spills.get_mut(at)
                && (usize::from(spill.depth), usize::from(spill.size)) == (depth, size)
            {
                spill.value = *value;
                self.change_contents(depth, size, value);
                return;
            }
        }
        self.grow(depth);
        self.clear_spills(depth, size);
        self.bytes[depth - size..depth].fill(kind);
        if kind == Byte::Spill {
            let at = self.spills.partition_point(|s| usize::from(s.depth) < depth);
            // A frame has at most u16::MAX bytes, which `Env::check` ensures.
            self.spills
                .insert(at, Spill { depth: crate::num::half(depth), size: crate::num::few(size), value: *value });
        }
        self.change_contents(depth, size, value);
    }

    fn change_contents(&mut self, depth: usize, size: usize, value: &Value) {
        match value.is_scalar() {
            true => self.stored(depth, size),
            false => self.end_contents(depth, size),
        }
    }

    /// Makes the bytes from r10 - depth a spill, whatever the value is.
    pub(crate) fn store_spill(&mut self, depth: usize, size: usize, value: &Value) {
        if !value.is_scalar() {
            self.end_fills(depth, size);
        }
        self.grow(depth);
        self.clear_spills(depth, size);
        self.bytes[depth - size..depth].fill(Byte::Spill);
        let at = self.spills.partition_point(|s| usize::from(s.depth) < depth);
        self.spills.insert(at, Spill { depth: crate::num::half(depth), size: crate::num::few(size), value: *value });
        self.change_contents(depth, size, value);
    }

    /// Makes `size` bytes at r10 - depth unknown numbers.
    pub(crate) fn store_misc(&mut self, depth: usize, size: usize) {
        self.grow(depth);
        self.clear_spills(depth, size);
        self.bytes[depth - size..depth].fill(Byte::Misc);
        self.end_contents(depth, size);
    }

    /// Applies a store of a number somewhere within the `size` bytes from r10 - depth: each byte may be overwritten,
    /// and an unwritten byte may stay unwritten.
    pub(crate) fn store_somewhere(&mut self, depth: usize, size: usize) {
        self.end_contents(depth, size);
        self.may_store(depth, size);
    }

    /// Applies a store of a number at one of these places. The caller updates the frame's contents afterwards.
    pub(crate) fn store_element(&mut self, grid: &Grid) {
        let deepest = |at: i64| crate::num::size(at.unsigned_abs());
        if grid.stride < grid.size {
            return self.may_store(deepest(grid.first), deepest(grid.first) - deepest(grid.last + grid.size));
        }
        grid.elements().for_each(|at| self.may_store(deepest(at), deepest(grid.size)));
    }

    /// Applies a store at an uncertain place. With `beside`, pointers in the range are kept: the walk proves nothing (a
    /// havocked iteration), and its index is less precise than the final invariant's will be.
    pub(crate) fn stores_near(&mut self, beside: bool, store: impl FnOnce(&mut Frame)) {
        let pointers: Vec<Spill> = match beside {
            true => self.spills.iter().filter(|s| s.value.is_pointer()).copied().collect(),
            false => Vec::new(),
        };
        store(self);
        for s in pointers.into_iter().filter(|s| !self.spills.iter().any(|t| t.depth == s.depth)).collect::<Vec<_>>() {
            let top = usize::from(s.depth);
            self.bytes[top - usize::from(s.size)..top].fill(Byte::Spill);
            let at = self.spills.partition_point(|t| t.depth < s.depth);
            self.spills.insert(at, s);
        }
    }

    fn may_store(&mut self, depth: usize, size: usize) {
        self.grow(depth);
        self.clear_spills(depth, size);
        for b in &mut self.bytes[depth - size..depth] {
            *b = match *b {
                Byte::Zero | Byte::Misc => Byte::Misc,
                Byte::Fresh | Byte::Maybe => Byte::Maybe,
                // Spills were removed before.
                Byte::Uninit | Byte::Spill => Byte::Uninit,
            };
        }
    }

    /// Makes all bytes down to r10 - depth explicit.
    pub(crate) fn grow(&mut self, depth: usize) {
        if self.bytes.len() < depth {
            let len = depth.next_multiple_of(8);
            self.bytes.resize(len.min(TRACKED).max(self.bytes.len()), self.rest);
            self.bytes.resize(len, Byte::Uninit);
        }
    }

    /// Every value of the frame, mutable.
    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut Value> {
        let rounds = self.loops.iter_mut().map(|m| &mut m.k);
        self.regs.iter_mut().chain(self.spills.iter_mut().map(|s| &mut s.value)).chain(rounds)
    }

    /// Calls `with` for every value of the frame. An iterator over all of them is slower, so hot code uses this.
    #[inline(always)]
    pub(crate) fn each_value(&self, mut with: impl FnMut(&Value)) {
        for v in &self.regs {
            with(v);
        }
        for s in &self.spills {
            with(&s.value);
        }
        for m in &self.loops {
            with(&m.k);
        }
    }

    /// Calls `with` for every value of the frame, to change it in place.
    #[inline(always)]
    pub(crate) fn each_value_mut(&mut self, mut with: impl FnMut(&mut Value)) {
        for v in &mut self.regs {
            with(v);
        }
        for s in &mut self.spills {
            with(&mut s.value);
        }
        for m in &mut self.loops {
            with(&mut m.k);
        }
    }

    /// Every value of the frame.
    pub(crate) fn values(&self) -> impl Iterator<Item = &Value> {
        self.regs.iter().chain(self.spills.iter().map(|s| &s.value)).chain(self.loops.iter().map(|m| &m.k))
    }

    /// Removes spills that can no longer be read, and makes their bytes unreadable.
    pub(crate) fn drop_uninit_spills(&mut self) {
        let bytes = &mut self.bytes;
        self.spills.retain(|s| {
            if s.value.is_uninit() {
                bytes[usize::from(s.depth) - usize::from(s.size)..usize::from(s.depth)].fill(Byte::Uninit);
            }
            !s.value.is_uninit()
        });
    }
}
