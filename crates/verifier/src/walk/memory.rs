//! The memory of a verification, counted, and bounded by [`Limits::memory`](crate::Limits::memory).
//!
//! Problem: a verification must hold no more bytes than its limit, and whether it reaches the limit must be a function
//! of the program, its contract and its limits, not of programs that the same verifier verified before. The allocated
//! memory does depend on the past: a recycled state has vectors as long as its former contents needed.
//!
//! Approach: two figures. The *count* is what the verdict depends on: bytes of contents (`State::bytes`) of all states
//! that are stored, and for each list that grows with the walk ([`List`]) a capacity that depends on its length alone.
//! The *holding* is what is allocated (`State::held`). While all that is held stays below three quarters of the limit,
//! states are recycled as they are. Once it does not, memory is *short* until the verification ends: unused states are
//! freed, stored states are fitted to their contents, and copies are made exactly as large as their contents. From then
//! on the holding of states is their count.
//!
//! Lists grow only here ([`Memory::list`]), with room for all that is pushed until the next time that the walk is
//! weighed, and only after the count has room for the old list beside the new one. Memory that does not grow with the
//! walk is counted by the program's length before anything is allocated ([`PER_SLOT`]).
//!
//! A stored state changes the count by its own size. All else is counted when the walk is *weighed*: every
//! [`WEIGHED_STATES`] events (a state is stored, or a path taken up) and every `WEIGHED_STEPS` steps.
//!
//! Where the system may refuse memory (a tight `RLIMIT_AS`), a list that grows asks by a call that can fail, and for
//! all smaller allocations a block of [`HEADROOM`] bytes is allocated and freed (a *probe*) whenever the count has
//! grown by [`STRIDE`]: the allocations in between fit into the freed block. A failure ends the verification without a
//! verdict. Memory that a verifier keeps from one program to the next is not asked for again: it probes only beyond
//! the level of former programs ([`Memory::granted`]): a small program is verified without a probe.
//!
//! Invariants: between two times that the walk is weighed the holding exceeds the limit by no more than
//! [`MEMORY_SLACK`]. The count depends on no capacity and no address.

use bpf_isa::Program;

use super::{Res, Walk, refuse};
use crate::error::Reason;
use crate::kept::MAX_KEPT;
use crate::state::{Sizes, State};

/// Bytes that a verification may hold beside its limit: what a walk allocates between two times that it is weighed
/// (states that are copied and not stored yet, a step's scratch memory, [`HEADROOM`], the text of an error).
pub(crate) const MEMORY_SLACK: usize = 1 << 20;

/// Bytes for each instruction slot of the program, at most: notes, facts, needs, efforts, and the loops of the program
/// that a refusal looks for (`tests/memory_limit.rs` has programs of 100,000 instructions).
const PER_SLOT: usize = 160;
/// Bytes for each instruction slot, if the ranges of numbers are noted.
const PER_NOTED_SLOT: usize = 360;
/// Bytes for each instruction slot of the facts or of a refusal's search: a part of [`PER_SLOT`].
const PER_END_SLOT: usize = 64;
/// Bytes for each subprogram and each jump.
const PER_SUBPROG: usize = 128;

/// States in flight that are counted beside the stored ones: the current one, the copy that is about to be stored, and
/// those of a guess that is about to be made.
const IN_FLIGHT: usize = 4;

/// Bytes that must be free at each probe, and the bytes by which the count grows from one probe to the next.
const HEADROOM: usize = 256 << 10;
const STRIDE: usize = 64 << 10;

/// The highest level that a verification may reach without a probe, because a former one did: the memory that
/// `Scratch::trim` keeps, of several kinds.
const MAX_GRANTED: usize = MAX_KEPT / 4;

/// States that are stored, and paths that are taken up, from one weighing to the next at most.
const WEIGHED_STATES: usize = 16;
/// Elements that a list to which each such event adds one must have room for. Some are added in between.
pub(super) const SPARE: usize = WEIGHED_STATES + 8;

/// The lists that grow with the walk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum List {
    Pending,
    Paths,
    Kept,
    Needed,
    Free,
    Open,
    Steps,
    Forks,
    Saved,
    Epochs,
}

const LISTS: usize = List::Epochs as usize + 1;

/// Why memory cannot be had.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Short {
    /// The limit would be exceeded.
    Limit,
    /// The system refused.
    System,
}

/// Whether the system grants a block of this size at the moment.
pub(crate) fn has(bytes: usize) -> bool {
    Vec::<u8>::new().try_reserve_exact(bytes).is_ok()
}

fn reason(short: Short, limit: usize) -> Reason {
    match short {
        Short::Limit => Reason::Memory(limit),
        Short::System => Reason::OutOfMemory,
    }
}

/// The size of a stored state: bytes of contents, and bytes allocated.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Size {
    pub(super) counted: usize,
    pub(super) held: usize,
}

impl Size {
    pub(super) fn of(state: &State) -> Size {
        let Sizes { contents, held } = state.sizes();
        Size { counted: contents, held }
    }
}

/// The account of one verification.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    /// The limit, less what a verifier keeps from one program to the next.
    limit: usize,
    /// The program's instruction slots, and bytes of the tables that are as long as the program.
    slots: usize,
    program: usize,
    /// Bytes of contents and bytes allocated of stored states: kept, left for later, or of attempts to prove loops.
    counted: usize,
    held: usize,
    /// Bytes of unused states, kept for recycling.
    recycled: usize,
    /// Bytes of contents of the largest stored state.
    largest: usize,
    /// The counted capacity of each list, in elements, and the bytes of all lists.
    capacities: [usize; LISTS],
    listed: usize,
    /// Bytes of everything that is counted anew at each weighing.
    rest: usize,
    /// Events until the next weighing.
    events: usize,
    /// States are fitted to their contents.
    short: bool,
    /// The level up to which the system has granted memory: beyond it, it is asked again.
    asked: usize,
    /// The level that former programs reached, as far as their memory was kept.
    granted: usize,
    /// The greatest count.
    pub(super) peak: usize,
}

impl Memory {
    /// Begins a verification. Returns whether the memory kept from former programs must be freed, as it would take too
    /// much of this limit.
    pub(crate) fn begin(&mut self, limit: usize, program: &Program, values: bool) -> bool {
        let keeps = limit / 16 >= MAX_KEPT;
        let per_slot = if values { PER_NOTED_SLOT } else { PER_SLOT };
        let parts = program.subprogs().len() + program.flow().len();
        let granted = if keeps { self.granted.max(self.asked).min(MAX_GRANTED) } else { 0 };
        *self = Memory {
            granted,
            asked: granted,
            limit: if keeps { limit - MAX_KEPT } else { limit },
            slots: program.insns().len(),
            program: program.insns().len().saturating_mul(per_slot).saturating_add(parts * PER_SUBPROG),
            ..Memory::default()
        };
        !keeps
    }

    /// The greatest count.
    pub(crate) fn peak(&self) -> usize {
        self.peak
    }

    /// Checks that the walk may begin: the tables as long as the program fit the limit, and the system has memory for
    /// them.
    pub(crate) fn admits(&mut self, limit: usize) -> Result<(), Reason> {
        self.check(0).map_err(|short| reason(short, limit))
    }

    /// The system has refused memory, and what was kept is freed: nothing is granted any more.
    pub(super) fn refused(&mut self) {
        (self.asked, self.granted) = (0, 0);
    }

    /// A walk begins: no state is stored.
    pub(super) fn begin_walk(&mut self) {
        (self.counted, self.held, self.rest) = (0, 0, 0);
        // The lists begin small.
        self.events = WEIGHED_STATES;
    }

    pub(super) fn add(&mut self, size: Size) {
        self.counted += size.counted;
        self.held += size.held;
        self.largest = self.largest.max(size.counted);
    }

    pub(super) fn remove(&mut self, size: Size) {
        self.counted = self.counted.saturating_sub(size.counted);
        self.held = self.held.saturating_sub(size.held);
    }

    /// Bytes of all but the states.
    fn fixed(&self) -> usize {
        self.program.saturating_add(self.listed).saturating_add(self.rest)
    }

    fn count(&self) -> usize {
        self.fixed().saturating_add(self.counted + IN_FLIGHT * self.largest)
    }

    /// Checks that `more` bytes fit the limit, and from time to time that the system has memory.
    fn check(&mut self, more: usize) -> Result<(), Short> {
        let count = self.count().saturating_add(more);
        if count > self.limit {
            return Err(Short::Limit);
        }
        self.peak = self.peak.max(count);
        let level = count.max(self.holding());
        if level > self.asked {
            // At the first check, the tables as long as the program are not yet allocated.
            let first = if self.asked == self.granted { self.program } else { 0 };
            if !has(first + HEADROOM) {
                return Err(Short::System);
            }
            self.asked = level + STRIDE;
        }
        Ok(())
    }

    /// Counts an event after which the lists have room still. Returns whether the limit, the system or unused memory is
    /// to be looked at.
    fn presses(&mut self, recycled: usize) -> bool {
        self.events -= 1;
        self.recycled = recycled;
        let (count, holding) = (self.count(), self.holding());
        self.peak = self.peak.max(count);
        count > self.limit || count.max(holding) > self.asked || self.gets_short()
    }

    /// Whether the system has memory for an error or the facts, which are as long as the program.
    pub(super) fn ends(&self) -> bool {
        let bytes = self.slots * PER_END_SLOT;
        (bytes <= STRIDE && self.asked == self.granted) || has(bytes + HEADROOM / 4)
    }

    /// Makes room for `spare` more elements. The list must grow by this function only.
    pub(super) fn list<T>(&mut self, list: List, v: &mut Vec<T>, spare: usize) -> Result<(), Short> {
        let before = self.capacities[list as usize];
        let elements = v.len() + spare;
        if elements <= before {
            return Ok(());
        }
        let capacity = elements + elements / 8;
        let new = capacity.saturating_mul(size_of::<T>());
        // Both vectors count while the elements move.
        self.check(new)?;
        if v.capacity() < capacity {
            let reserved = v.try_reserve_exact(capacity - v.len());
            // A long list may have taken the memory that small allocations need.
            if reserved.is_err() || (new > STRIDE && !has(HEADROOM)) {
                return Err(Short::System);
            }
        }
        self.capacities[list as usize] = capacity;
        self.listed += new - before * size_of::<T>();
        Ok(())
    }

    /// Whether memory becomes short at this point.
    fn gets_short(&self) -> bool {
        !self.short && self.holding() > self.limit / 4 * 3
    }

    /// Bytes that are allocated.
    fn holding(&self) -> usize {
        (self.count() - self.counted).saturating_add(self.held + self.recycled)
    }
}

impl Walk<'_> {
    /// Weighs the walk if it must be, after a state was stored or before a path is taken up.
    ///
    /// # Errors
    /// The limit is reached, or the system refuses more.
    #[inline]
    pub(super) fn weigh_event(&mut self) -> Res<()> {
        let super::Scratch { memory, pool, .. } = &mut *self.scratch;
        // Attempts to prove loops change what they hold as a whole.
        if memory.events == 0 || self.loops.attempts() {
            return self.weigh();
        }
        // When all is counted anew depends on nothing that the verifier held before: so the count is deterministic.
        if memory.presses(pool.held()) { self.relieve() } else { Ok(()) }
    }

    /// Looks at the limit and the system, and at unused memory.
    #[cold]
    #[inline(never)]
    fn relieve(&mut self) -> Res<()> {
        self.scratch.memory.check(0).or_else(|short| self.out_of_memory(short))?;
        self.fit_if_short();
        Ok(())
    }

    /// Weighs the walk: counts what it holds, and makes room in its lists until it is weighed again.
    ///
    /// # Errors
    /// The limit is reached, or the system refuses more.
    #[cold]
    #[inline(never)] // apart from the loop over steps
    pub(super) fn weigh(&mut self) -> Res<()> {
        self.weigh_lists().or_else(|short| self.out_of_memory(short))?;
        self.fit_if_short();
        Ok(())
    }

    /// Counts a state that has been stored, or is about to be.
    pub(super) fn stored(&mut self, size: Size) -> Res<()> {
        self.scratch.memory.add(size);
        self.weigh_event()?;
        let limits = &self.env.limits;
        if self.scratch.pending.len() + self.scratch.prune.len() > limits.states {
            return refuse(Reason::States(limits.states));
        }
        Ok(())
    }

    /// Checks that the system has memory for a copy of this many bytes.
    pub(super) fn copies(&self, bytes: usize) -> Res<()> {
        if has(bytes + HEADROOM) { Ok(()) } else { refuse(Reason::OutOfMemory) }
    }

    fn out_of_memory(&self, short: Short) -> Res<()> {
        refuse(reason(short, self.env.limits.memory))
    }

    fn weigh_lists(&mut self) -> Result<(), Short> {
        let rest = self.loops.bytes() + self.log.bytes() + self.recorded.bytes() + super::linear::held();
        let super::Scratch { memory, pool, pending, paths, prune, trail, .. } = &mut *self.scratch;
        (memory.rest, memory.recycled) = (rest + prune.rest(), pool.held());
        memory.list(List::Pending, pending, SPARE)?;
        memory.list(List::Paths, paths, 128)?;
        self.epochs.weigh(memory)?;
        trail.weigh(memory, self.state.frames.len())?;
        prune.weigh(memory)?;
        memory.check(0)?;
        memory.events = WEIGHED_STATES;
        Ok(())
    }

    /// If memory becomes short: frees unused states, and fits the others to their contents.
    fn fit_if_short(&mut self) {
        let scratch = &mut *self.scratch;
        if !scratch.memory.gets_short() {
            return;
        }
        scratch.memory.short = true;
        scratch.pool.set_short(true);
        let mut held = 0;
        let mut fit = |state: &mut State, size: &mut Size| {
            state.fit();
            size.held = state.sizes().held;
            held += size.held;
        };
        scratch.pending.iter_mut().for_each(|p| fit(&mut p.state, &mut p.size));
        scratch.prune.kept.iter_mut().for_each(|k| fit(&mut k.state, &mut k.size));
        self.loops.fit(fit);
        self.state.fit();
        scratch.memory.held = held;
    }
}

impl super::Scratch {
    /// Begins a verification of this program.
    pub(crate) fn begin(&mut self, env: &crate::env::Env<'_>, program: &Program) {
        if self.memory.begin(env.limits.memory, program, env.values) {
            let super::Scratch { deadline, memory, .. } = std::mem::take(self);
            (self.deadline, self.memory) = (deadline, memory);
        }
        self.pool.set_short(false);
    }

    /// Frees memory after a walk, for a search that holds memory of its own. No more is left than a verifier keeps from
    /// one program to the next, and nothing under a small limit.
    pub(crate) fn make_room(&mut self, limit: usize) {
        self.trim();
        if limit / 16 < MAX_KEPT {
            let super::Scratch { deadline, memory, .. } = std::mem::take(self);
            (self.deadline, self.memory) = (deadline, memory);
            self.needs.begin();
            self.effort.begin();
        }
    }
}
