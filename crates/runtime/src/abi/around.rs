//! Runs on stacks of their own that are polled inside another run.
//!
//! Problem: a host function may poll a run that waits, and the run around it may be ended meanwhile. Threads that end
//! runs find a nested run by its slot's chain of levels, in which runs on stacks of their own are not. Approach: each
//! poll of such a run looks for the run around it (the innermost run of the thread's slot, or the run on a stack of its
//! own whose function polls) and lists itself under that run's word. A thread that ends runs marks words and then
//! passes the marks on to the listed runs, and wakes their pollers.
//!
//! Invariants:
//! * A run is listed before it looks at the word of the run around it, and a thread that ends runs marks that word
//!   before it looks at the list, with a fence on either side: one of them sees the other.
//! * A run is listed only while it is in progress: it is removed, under the list's lock, before its word is 0.
//! * The listed word identifies the run around, so that a later run at its place passes no marks on. Exception: a plain
//!   run has the word of each run in the same slot with its program, deadline and interrupter. A run that has left it
//!   and was not polled since is ended with the later run.
//!
//! Limits: a run is listed under one other run, the innermost of its engine where the thread polls. A chain that
//! alternates between plain runs and runs on stacks of their own, or between engines, is cut there: the end of a run
//! outside of the cut is seen when the runs between have returned.

use crate::abi::level::Level;
use crate::abi::parked::{Parked, wake};
use crate::abi::watch::{INTERRUPTED, LATE};
use crossbeam_utils::CachePadded;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The innermost run of a slot: the slot, and how many runs are outside of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
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

/// The run on a stack of its own that a thread polls.
#[derive(Clone, Copy)]
struct Current {
    /// The addresses of its engine's [`crate::abi::fiber::Fibers`] and of its [`Parked`].
    fibers: usize,
    parked: usize,
    /// The innermost run of the thread's slot outside of it.
    busy: Option<Busy>,
}

thread_local! {
    static CURRENT: Cell<Option<Current>> = const { Cell::new(None) };
}

/// While it lives, its thread polls a run.
#[must_use]
pub(crate) struct Polling {
    outer: Option<Current>,
}

impl Polling {
    pub(super) fn begin(fibers: usize, parked: usize, busy: Option<Busy>) -> Polling {
        Polling { outer: CURRENT.replace(Some(Current { fibers, parked, busy })) }
    }
}

impl Drop for Polling {
    fn drop(&mut self) {
        CURRENT.set(self.outer);
    }
}

/// Returns the run of an engine's fibers that this thread polls, by the address of its [`Parked`]; `None` if a run of
/// the thread's slot is inside of it. `busy`: the innermost run of the slot.
pub(super) fn polled(fibers: usize, busy: Option<Busy>) -> Option<usize> {
    CURRENT.get().filter(|current| current.fibers == fibers && current.busy == busy).map(|current| current.parked)
}

/// A run around another.
#[derive(Clone)]
pub(super) enum Outer {
    OfSlot(Busy),
    OfFiber(Arc<Parked>),
}

impl PartialEq for Outer {
    fn eq(&self, other: &Outer) -> bool {
        match (self, other) {
            (Outer::OfSlot(a), Outer::OfSlot(b)) => a == b,
            (Outer::OfFiber(a), Outer::OfFiber(b)) => Arc::ptr_eq(a, b),
            (Outer::OfSlot(_), Outer::OfFiber(_)) | (Outer::OfFiber(_), Outer::OfSlot(_)) => false,
        }
    }
}

impl Outer {
    /// Returns the run's word; 0 if it is over.
    fn word(&self, levels: &[CachePadded<Level>]) -> u64 {
        let word = |level: &Level| level.word().load(Ordering::Relaxed);
        match self {
            Outer::OfSlot(busy) => busy.level(levels).map_or(0, word),
            Outer::OfFiber(parked) => word(&parked.level),
        }
    }
}

/// A run around another, by place and unmarked word.
#[derive(Clone, PartialEq)]
pub(super) struct Around {
    outer: Outer,
    word: u64,
}

impl Around {
    pub(super) fn new(outer: Outer, levels: &[CachePadded<Level>]) -> Around {
        let word = outer.word(levels) & !(INTERRUPTED | LATE);
        Around { outer, word }
    }

    /// Returns the marks of the run around, if it is in progress and was asked to end; else 0.
    fn asked(&self, levels: &[CachePadded<Level>]) -> u64 {
        let word = self.outer.word(levels);
        let marks = word & (INTERRUPTED | LATE);
        if word == self.word | marks && marks & INTERRUPTED != 0 { marks } else { 0 }
    }
}

/// The runs of an engine that are inside others, by the address of the run inside.
#[derive(Default)]
pub(super) struct Nests {
    /// The number of entries, changed before an entry is added and after one is removed.
    count: AtomicUsize,
    all: Mutex<BTreeMap<usize, (Arc<Parked>, Around)>>,
}

impl Nests {
    /// Nothing under the lock panics, so poison means nothing.
    fn lock(&self) -> MutexGuard<'_, BTreeMap<usize, (Arc<Parked>, Around)>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lists a run in progress inside `around`, or no longer lists it. Marks it if the run around it was asked to end.
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
        // Relaxed: the fence below orders it.
        self.count.fetch_add(1, Ordering::Relaxed);
        let before = self.lock().insert(Arc::as_ptr(run).addr(), (Arc::clone(run), around.clone()));
        if before.is_some() {
            self.count.fetch_sub(1, Ordering::Relaxed);
        }
        // With the fence in `pass_on`: see the module.
        fence(Ordering::SeqCst);
        self.ask(run, &around, levels);
        *known = Some(Box::new(around));
    }

    /// Asks a listed run to end if the run around it was asked, and with it the runs that are inside.
    fn ask(&self, run: &Parked, around: &Around, levels: &[CachePadded<Level>]) {
        let marks = around.asked(levels);
        if marks != 0 && run.ask(marks) {
            self.pass_on(levels);
        }
    }

    /// A run is over, or is inside no other.
    pub(super) fn end(&self, known: &mut Option<Box<Around>>, run: &Arc<Parked>) {
        if known.take().is_some() && self.lock().remove(&Arc::as_ptr(run).addr()).is_some() {
            self.count.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Asks the runs to end that are inside a run which was asked, and wakes their pollers.
    pub(super) fn pass_on(&self, levels: &[CachePadded<Level>]) {
        // With the fence in `set`: see the module.
        fence(Ordering::SeqCst);
        if self.count.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut wakers = Vec::new();
        let nests = self.lock();
        // Again after a mark, for the runs that are inside the marked one.
        let mut again = true;
        while again {
            again = false;
            for (run, around) in nests.values() {
                let marks = around.asked(levels);
                if marks != 0 && run.ask(marks) {
                    again = true;
                    wakers.extend(run.take_waker());
                }
            }
        }
        drop(nests);
        wake(wakers);
    }
}
