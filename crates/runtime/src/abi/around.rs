//! Runs on stacks of their own that are polled inside another run.
//!
//! Problem: a host function may poll a run that waits, and a run around it may be ended meanwhile. Threads that end
//! runs find a nested run by its slot's chain of levels, in which runs on stacks of their own are not. Approach: each
//! poll of such a run looks for the runs around it and lists itself under their words: the innermost run on a stack of
//! its own of the engine that this thread polls, and the innermost run of the thread's slot if it is inside of that
//! one. All runs further out are around one of these two, which are listed, or linked by levels, themselves. A thread
//! that ends runs marks words, notes the runs that it has marked, then passes the marks on to the runs that are listed
//! under these, and wakes their pollers. Its costs are those of the runs that it ends, however many others are listed.
//!
//! Invariants:
//! * A run is listed before it looks at the words of the runs around it, and a thread that ends runs marks a word
//!   before it looks at the list, with a fence on either side: one of them sees the other.
//! * A run is listed only while it is in progress: it is removed, under the list's lock, before its word is 0.
//! * The listed words identify the runs around, so that later runs at their places pass no marks on: a run of a slot
//!   is given a word of its own when the first run is listed under it ([`crate::abi::watch::Watch::tell_apart`]).
//! * A thread's [`Current`] is about a run only while that run has the word that it had: a host that leaves a poll by
//!   a switch of stacks, and so out of order, leaves a [`Current`] that no later run is taken for.
//!
//! Limit: a run of a slot inside a run on a stack of its own does not know of it, and ends when it returns.

use crate::abi::critical::{Critical, Lock, Locked};
use crate::abi::level::Level;
use crate::abi::parked::{Parked, wake};
use crate::abi::sync::{AtomicUsize, Ordering, fence};
use crate::abi::watch::{INTERRUPTED, LATE, unmarked};
use crossbeam_utils::CachePadded;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The innermost run of a slot: the slot, and how many runs are outside of it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Busy {
    pub(super) slot: u32,
    pub(super) depth: u32,
}

impl Busy {
    /// Its level; these are the outermost levels of the engine's slots.
    fn level(self, levels: &[CachePadded<Level>]) -> Option<&Level> {
        let mut level = levels.get(self.slot as usize)?;
        for _ in 0..self.depth {
            level = level.inner()?;
        }
        Some(level)
    }
}

/// A run on a stack of its own that a thread polls.
#[derive(Clone, Copy)]
pub(super) struct Current {
    /// The addresses of its engine's [`crate::abi::fiber::Fibers`] and of its [`Parked`].
    pub(super) fibers: usize,
    pub(super) parked: usize,
    /// Its unmarked word.
    pub(super) word: u64,
    /// The innermost run of the thread's slot outside of it.
    pub(super) busy: Option<Busy>,
}

thread_local! {
    /// The innermost run that the thread polls.
    static CURRENT: Cell<Option<Current>> = const { Cell::new(None) };
    /// How many runs the thread polls, each inside the one before: 0 also where a host that switched away from a poll
    /// has left a [`CURRENT`].
    static POLLS: Cell<u32> = const { Cell::new(0) };
    /// The runs outside of it whose engine is not that of the run next inside.
    static OTHERS: Cell<Vec<Current>> = const { Cell::new(Vec::new()) };
}

/// Does this with [`OTHERS`]; `None` when the thread ends.
fn with_others<T>(work: impl FnOnce(&mut Vec<Current>) -> T) -> Option<T> {
    let _critical = Critical::enter();
    let with = |others: &Cell<Vec<Current>>| {
        let mut list = others.take();
        let result = work(&mut list);
        others.set(list);
        result
    };
    OTHERS.try_with(with).ok()
}

/// While it lives, its thread polls a run.
#[must_use]
pub(crate) struct Polling {
    outer: Option<Current>,
    /// Whether the run outside is another engine's, and in [`OTHERS`].
    listed: bool,
}

impl Polling {
    // Inlined: a caller would store fields that wider loads here wait for.
    #[inline(always)]
    pub(super) fn begin(run: Current) -> Polling {
        // Wrapping, and none outside of the first: a host may have switched away from a poll, or gone on with it on
        // another thread.
        let polls = POLLS.get();
        POLLS.set(polls.wrapping_add(1));
        let outer = CURRENT.replace(Some(run)).filter(|_| polls != 0);
        let other = outer.filter(|outer| outer.fibers != run.fibers);
        let listed = other.is_some_and(|other| with_others(|others| others.push(other)).is_some());
        Polling { outer, listed }
    }
}

impl Drop for Polling {
    fn drop(&mut self) {
        CURRENT.set(self.outer);
        POLLS.set(POLLS.get().wrapping_sub(1));
        if self.listed {
            with_others(Vec::pop);
        }
    }
}

/// Returns whether this thread polls a run of an engine's fibers.
pub(crate) fn is_polling(fibers: usize) -> bool {
    POLLS.get() != 0 && polled(fibers).is_some()
}

/// Returns the innermost run of an engine's fibers that this thread polls.
pub(super) fn polled(fibers: usize) -> Option<Current> {
    let innermost = CURRENT.get()?;
    if innermost.fibers == fibers {
        return Some(innermost);
    }
    with_others(|others| others.iter().rev().find(|other| other.fibers == fibers).copied()).flatten()
}

/// A run in progress: where it is, and its unmarked word.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Id {
    pub(super) place: Place,
    pub(super) word: u64,
}

/// The place of a run.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Place {
    /// A level of a slot.
    Slot(Busy),
    /// A stack of its own, by the address of its [`Parked`].
    Fiber(usize),
}

impl Place {
    pub(super) fn of(run: &Parked) -> Place {
        Place::Fiber(core::ptr::from_ref(run).addr())
    }
}

/// The runs around another, by place and unmarked word: of these, the run of the slot is inside the other.
pub(super) struct Around {
    slot: Option<(Busy, u64)>,
    fiber: Option<(Arc<Parked>, u64)>,
}

impl PartialEq for Around {
    fn eq(&self, other: &Around) -> bool {
        self.slot == other.slot && self.ids().eq(other.ids())
    }
}

impl Around {
    /// `None` without a run around. `slot`: a run of this thread's slot, whose outermost levels are `levels`.
    pub(super) fn new(
        slot: Option<Busy>,
        fiber: Option<(Arc<Parked>, u64)>,
        levels: &[CachePadded<Level>],
    ) -> Option<Around> {
        // A handler that lists a run meanwhile would take the word's number.
        let _critical = Critical::enter();
        let slot = slot.and_then(|busy| {
            let level = busy.level(levels)?;
            // Runs inside of others have words of their own.
            let apart = busy.depth == 0;
            let word = level.word();
            Some((busy, if apart { level.watch().tell_apart(word) } else { unmarked(word.load(Ordering::Relaxed)) }))
        });
        (slot.is_some() || fiber.is_some()).then_some(Around { slot, fiber })
    }

    /// The run on a stack of its own.
    pub(super) fn fiber(&self) -> Option<&(Arc<Parked>, u64)> {
        self.fiber.as_ref()
    }

    /// Returns the marks of a run around, if one is in progress and was asked to end; else 0.
    fn asked(&self, levels: &[CachePadded<Level>]) -> u64 {
        let of_slot = self.slot.map_or(0, |(busy, word)| busy.level(levels).map_or(0, |level| marks(level, word)));
        let of_fiber = || self.fiber.as_ref().map_or(0, |(parked, word)| marks(&parked.level, *word));
        if of_slot != 0 { of_slot } else { of_fiber() }
    }

    fn ids(&self) -> impl Iterator<Item = Id> {
        let slot = self.slot.map(|(busy, word)| Id { place: Place::Slot(busy), word });
        let fiber = self.fiber.as_ref().map(|(parked, word)| Id { place: Place::of(parked), word: *word });
        slot.into_iter().chain(fiber)
    }
}

/// Returns the marks of the run with this word, if it is in progress there and was asked to end; else 0.
fn marks(level: &Level, word: u64) -> u64 {
    let now = level.word().load(Ordering::Relaxed);
    let marks = now & (INTERRUPTED | LATE);
    if now == word | marks && marks & INTERRUPTED != 0 { marks } else { 0 }
}

/// The runs of an engine that are inside others.
#[derive(Default)]
pub(super) struct Nests {
    /// The number of entries, changed before an entry is added and after one is removed.
    count: AtomicUsize,
    /// Each by a run around it and its own address.
    all: Lock<BTreeMap<(Id, usize), Arc<Parked>>>,
}

impl Nests {
    /// Does this with the lock held.
    #[cfg(test)]
    pub(super) fn locked(&self, work: impl FnOnce()) {
        let _all = self.lock();
        work();
    }

    fn lock(&self) -> Locked<'_, BTreeMap<(Id, usize), Arc<Parked>>> {
        self.all.lock()
    }

    /// Lists a run in progress inside `around`, and nowhere else. Marks it if a run around it was asked to end.
    /// `known`: the value of the call before.
    pub(super) fn set(
        &self,
        known: &mut Option<Box<Around>>,
        run: &Arc<Parked>,
        around: Option<Around>,
        levels: &[CachePadded<Level>],
    ) {
        let Some(around) = around else { return self.end(known, run) };
        if known.as_deref() == Some(&around) {
            return self.ask(run, &around, levels);
        }
        let critical = Critical::enter();
        let at = Arc::as_ptr(run).addr();
        // Relaxed: the fence below orders it.
        self.count.fetch_add(around.ids().count(), Ordering::Relaxed);
        let mut all = self.lock();
        let mut removed = 0;
        for before in known.iter().flat_map(|known| known.ids()) {
            removed += usize::from(all.remove(&(before, at)).is_some());
        }
        for id in around.ids() {
            all.insert((id, at), Arc::clone(run));
        }
        drop(all);
        self.count.fetch_sub(removed, Ordering::Relaxed);
        // With the fence in `Marked::add`: see the module.
        fence(Ordering::SeqCst);
        let around = known.insert(Box::new(around));
        // Wakers are called without.
        drop(critical);
        self.ask(run, around, levels);
    }

    /// Asks a listed run to end if a run around it was asked, and with it the runs that are inside.
    fn ask(&self, run: &Parked, around: &Around, levels: &[CachePadded<Level>]) {
        let marks = around.asked(levels);
        if marks != 0
            && let Some(word) = run.ask(marks)
        {
            let mut marked = Marked::of(self);
            marked.add(Place::of(run), word, marks);
            marked.pass_on();
        }
    }

    /// A run is over, or is inside no other.
    pub(super) fn end(&self, known: &mut Option<Box<Around>>, run: &Arc<Parked>) {
        if known.is_none() {
            return;
        }
        // Before the next line, so that what is listed is freed inside of the section.
        let _critical = Critical::enter();
        let Some(known) = known.take() else { return };
        let mut all = self.lock();
        let removed = known.ids().filter(|id| all.remove(&(*id, Arc::as_ptr(run).addr())).is_some()).count();
        drop(all);
        self.count.fetch_sub(removed, Ordering::Relaxed);
    }
}

/// The runs that a thread has asked to end, whose marks it is to pass on.
#[must_use]
pub(super) struct Marked<'n> {
    nests: &'n Nests,
    runs: Vec<(Id, u64)>,
}

impl<'n> Marked<'n> {
    pub(super) fn of(nests: &'n Nests) -> Marked<'n> {
        Marked { nests, runs: Vec::new() }
    }

    /// Notes a run, after these marks were set in its word, which was `word`. Where no run is listed, it allocates
    /// nothing.
    pub(super) fn add(&mut self, place: Place, word: u64, marks: u64) {
        // With the fence in `Nests::set`: see the module.
        fence(Ordering::SeqCst);
        if self.nests.count.load(Ordering::Relaxed) != 0 {
            let _critical = Critical::enter();
            self.runs.push((Id { place, word: unmarked(word) }, marks));
        }
    }

    /// Asks the runs to end that are inside the noted runs, and wakes their pollers. Not in a forked child.
    pub(super) fn pass_on(mut self) {
        if self.runs.is_empty() {
            return;
        }
        let mut wakers = Vec::new();
        let all = self.nests.lock();
        while let Some((around, marks)) = self.runs.pop() {
            for (_, run) in all.range((around, 0)..=(around, usize::MAX)) {
                if let Some(word) = run.ask(marks) {
                    wakers.extend(run.take_waker());
                    self.runs.push((Id { place: Place::of(run), word }, marks));
                }
            }
        }
        drop(all);
        wake(wakers);
    }
}
