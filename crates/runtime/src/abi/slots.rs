//! Preallocated runs, by execution slot.
//!
//! Problem: a run of a few nanoseconds cannot afford to initialise a structure of a hundred bytes, and to register it
//! for interruption. Approach: an execution slot belongs to one thread at a time, so each slot has a preallocated
//! [`Run`] ([`Runs`]), and other threads find its interrupt flag without registration. A run inside another one of its
//! thread (a host function that runs a program) finds the slot's run taken and uses the one at the next level, which
//! the slot keeps from then on.

use crate::abi::around::{Busy, Place};
use crate::abi::clock::Clock;
use crate::abi::fiber::Fibers;
use crate::abi::level::Level;
use crate::abi::parked::Parked;
use crate::abi::run::RunConfig;
use crate::abi::watch::{INTERRUPTED, LATE};
use crate::abi::whole::Ends;
use crate::error::DeadlineError;
use bpf_quiesce::Guard;
use crossbeam_utils::CachePadded;
use std::fmt;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// A run for each execution slot.
pub(crate) struct Runs {
    pub(crate) config: RunConfig,
    levels: Levels,
    /// The runs that have a stack of their own.
    pub(crate) fibers: Arc<Fibers>,
    clock: Arc<Clock>,
    /// A copy of the clock's number, to avoid a load through the pointer.
    clock_number: u64,
    /// How often all runs were ended.
    pub(crate) ends: Ends,
}

/// The outermost level of each slot, shared with the threads that look at runs.
///
/// An `Arc<[_]>` would do, but a vector becomes one by an allocation that ends the process where it fails. Runs find
/// their level without a look at the vector.
#[derive(Clone)]
struct Levels {
    /// The elements of `kept`, which never changes.
    all: NonNull<[CachePadded<Level>]>,
    kept: Arc<Vec<CachePadded<Level>>>,
}

// SAFETY: `all` is what a shared reference to the vector would be, and the vector may be used by any thread.
unsafe impl Send for Levels where Arc<Vec<CachePadded<Level>>>: Send {}
// SAFETY: `all` is what a shared reference to the vector would be, and the vector may be used by any thread.
unsafe impl Sync for Levels where Arc<Vec<CachePadded<Level>>>: Sync {}

impl Levels {
    /// `None` if there is no memory for so many.
    fn new(slots: u32) -> Option<Levels> {
        let mut levels = Vec::new();
        levels.try_reserve_exact(slots as usize).ok()?;
        levels.extend((0..slots).map(Level::new));
        let kept = Arc::new(levels);
        Some(Levels { all: NonNull::from(kept.as_slice()), kept })
    }
}

impl Deref for Levels {
    type Target = [CachePadded<Level>];

    #[inline]
    fn deref(&self) -> &[CachePadded<Level>] {
        // SAFETY: the elements of `kept`, which lives as long as `self` and which nobody has a mutable reference to.
        unsafe { self.all.as_ref() }
    }
}

impl fmt::Debug for Runs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runs").field("slots", &self.levels.kept.len()).finish_non_exhaustive()
    }
}

impl Runs {
    /// Allocates a run for each slot; `None` if there is no memory.
    pub(crate) fn new(slots: u32, config: RunConfig, fibers: Fibers, tick: Duration) -> Option<Runs> {
        let levels = Levels::new(slots)?;
        let clock = Arc::new(Clock::new(tick));
        let fibers = Arc::new(fibers);
        Some(Runs { config, levels, fibers, clock_number: clock.number(), clock, ends: Ends::default() })
    }

    /// Returns the clock of deadlines.
    #[inline]
    pub(crate) fn clock(&self) -> &Arc<Clock> {
        &self.clock
    }

    /// Returns the number of the clock.
    #[inline]
    pub(crate) fn clock_number(&self) -> u64 {
        self.clock_number
    }

    /// Returns the tick at which runs end whose deadline is `at`. `now` is the current time.
    pub(crate) fn deadline(&self, now: Instant, at: Instant) -> Result<u64, DeadlineError> {
        if self.config.domain.is_forked() {
            return Err(DeadlineError::Forked);
        }
        // The thread holds the levels and not the engine, so it ends when the engine is dropped.
        let (levels, fibers) = (self.levels.clone(), Arc::clone(&self.fibers));
        self.clock.deadline((now, at), move |now| {
            let mut marked = fibers.marked();
            end_late(&levels, now, |place, word| marked.add(place, word, INTERRUPTED | LATE));
            fibers.end_late(now, &mut marked);
            fibers.pass_on(marked);
        })
    }

    /// Asks all runs to stop, nested ones too.
    pub(crate) fn interrupt(&self) {
        self.ends.count();
        self.interrupt_levels(|_, _| true);
    }

    /// Asks the runs of this program, hook or dispatcher to stop, and the runs nested in them. A part of a hook's run
    /// is a run of the hook.
    pub(crate) fn interrupt_of(&self, of: u64) {
        self.interrupt_each(|level, word| level.watch().of(word) == of, |parked| parked.interrupt_of(of));
    }

    /// Asks the runs to stop that were given this [`crate::Interrupter`], and the runs nested in them.
    pub(crate) fn interrupt_under(&self, interrupter: u64) {
        self.interrupt_levels(|level, word| level.watch().interrupter(word) == interrupter);
    }

    /// Asks the runs to stop for which `is` returns true, by level and word, and the runs nested in them.
    fn interrupt_levels(&self, is: impl Fn(&Level, u64) -> bool) {
        self.interrupt_each(&is, |parked| {
            let mut word = None;
            interrupt(&parked.level, &is, |_, before| word = Some(before));
            word
        });
    }

    /// Asks the runs of slots to stop for which `is` returns true, by level and word, lets `ask` mark runs that have
    /// stacks of their own, and asks the runs nested in them. Wakes the pollers of the stopped runs that wait.
    fn interrupt_each(&self, is: impl Fn(&Level, u64) -> bool, ask: impl Fn(&Parked) -> Option<u64>) {
        let mut marked = self.fibers.marked();
        for (slot, level) in (0..).zip(&*self.levels) {
            let place = |depth| Place::Slot(Busy { slot, depth });
            interrupt(level, &is, |depth, word| marked.add(place(depth), word, INTERRUPTED));
        }
        self.fibers.interrupt(&mut marked, ask);
        self.fibers.pass_on(marked);
    }

    /// Returns one of these programs ([`crate::abi::watch::word_of`]) that a run, nested ones included, has announced.
    /// Not every run announces its program: code that needs no run state does not, nor does a program that is entered
    /// by a tail call or a hook.
    pub(crate) fn is_running(&self, of: &[u64]) -> Option<u64> {
        let mut found = None;
        let mut look = |slot: &CachePadded<Level>| {
            let mut at = Some(slot);
            while let Some(level) = at {
                // For a run that begins or ends meanwhile, either answer is right. Acquire: see `Watch::deadline`.
                let word = level.word().load(Ordering::Acquire);
                let running = Some(level.watch().of(word)).filter(|running| word != 0 && of.contains(running));
                found = found.or(running);
                at = level.inner();
            }
        };
        self.levels.iter().for_each(&mut look);
        self.fibers.each(|parked| look(&parked.level));
        found
    }

    /// Returns a function that passes on the counters that each run in progress has noted, nested ones too
    /// ([`bpf_jit_code::RunCtx::counters`]). With `forget`, it clears the notes, so that each is passed on once: a run
    /// that notes nothing keeps the note of a run before it. The function holds the runs, and not the engine.
    pub(crate) fn each_running(&self, forget: bool) -> impl Fn(&mut dyn FnMut(u64)) + Send + 'static {
        let levels = self.levels.clone();
        move |each| {
            for slot in &*levels {
                let mut at = Some(slot);
                while let Some(level) = at {
                    // Relaxed: a sample.
                    if level.word().load(Ordering::Relaxed) != 0 {
                        each(match forget {
                            // A note that is stored at the same time may be lost.
                            true => level.counters().swap(0, Ordering::Relaxed),
                            false => level.counters().load(Ordering::Relaxed),
                        });
                    }
                    at = level.inner();
                }
            }
        }
    }

    /// Returns the outermost level of each slot.
    pub(crate) fn levels(&self) -> &[CachePadded<Level>] {
        &self.levels
    }

    /// Returns the innermost run of this thread's slot. `None` without a guard, or in a forked child.
    pub(crate) fn busy(&self) -> Option<Busy> {
        if !self.config.domain.in_guard() {
            return None;
        }
        let guard = self.config.domain.enter_run().ok()?;
        let (slot, mut depth) = (guard.slot(), 0);
        let mut level = self.levels.get(slot as usize).filter(|level| !level.is_idle())?;
        while let Some(inner) = level.inner().filter(|inner| !inner.is_idle()) {
            level = inner;
            depth += 1;
        }
        Some(Busy { slot, depth })
    }

    /// The level of a slot, if no run of its thread is using it.
    #[inline]
    pub(super) fn idle(&self, guard: &Guard<'_>) -> Option<&Level> {
        let level = self.levels.get(guard.slot() as usize)?;
        level.is_idle().then_some(&**level)
    }

    /// The level for a run inside another: the outermost idle level of the slot, and the busy level just outside it.
    pub(super) fn idle_inner(&self, guard: &Guard<'_>) -> Option<(&Level, &Level)> {
        let mut outer = self.levels.get(guard.slot() as usize)?;
        loop {
            let inner = outer.inner_or_new(guard.slot());
            if inner.is_idle() {
                return Some((inner, outer));
            }
            outer = inner;
        }
    }
}

impl Drop for Runs {
    fn drop(&mut self) {
        self.clock.close();
    }
}

/// Asks the runs of this level and of the levels inside it to stop for which `is` returns true, by level and word, and
/// the runs nested in them. Calls `marked` for each that nobody had asked before, with its depth and its word before.
fn interrupt(slot: &CachePadded<Level>, is: impl Fn(&Level, u64) -> bool, mut marked: impl FnMut(u32, u64)) {
    // The level outside with its interrupted word, if it was interrupted.
    let mut outer: Option<(&Level, u64)> = None;
    let mut at = Some(slot).zip(Some(0));
    while let Some((level, depth)) = at {
        // SeqCst, with the swap and the load in `begin::nested`: a run that begins inside an interrupted one has
        // stored its word before this load, or sees that it is interrupted.
        let mut word = level.word().load(Ordering::SeqCst);
        // If the outer word is unchanged, the outer run is the same, so this run is nested in it (or over).
        let mut inside = outer.is_some_and(|(outer, interrupted)| outer.word().load(Ordering::SeqCst) == interrupted);
        let mut interrupted = None;
        for _ in 0..ATTEMPTS {
            if word == 0 || !(inside || is(level, word)) {
                break;
            }
            let by = word | INTERRUPTED;
            let done = level.word().compare_exchange(word, by, Ordering::SeqCst, Ordering::SeqCst);
            if done.is_ok() && word != by {
                marked(depth, word);
            }
            match done {
                Err(other) if other != by => (word, inside) = (other, false),
                Ok(_) | Err(_) => {
                    interrupted = Some((&**level, by));
                    break;
                }
            }
        }
        outer = interrupted;
        at = level.inner().zip(Some(depth + 1));
    }
}

/// How often a thread tries to mark a word. If the first exchange fails, the run is over, or its word has changed,
/// which happens at most once: see [`crate::abi::watch`].
const ATTEMPTS: u32 = 2;

/// Ends the runs whose deadline is at this tick or before it. Nested runs have the deadline of the run outside. Calls
/// `marked` for each that nobody had asked before, with its place and its word before.
fn end_late(levels: &[CachePadded<Level>], now: u64, mut marked: impl FnMut(Place, u64)) {
    for (slot, level) in (0..).zip(levels) {
        let mut at = Some(level).zip(Some(0));
        while let Some((level, depth)) = at {
            // Acquire: see `Watch::deadline`.
            let mut word = level.word().load(Ordering::Acquire);
            for _ in 0..ATTEMPTS {
                if level.watch().deadline(word) > now || word & INTERRUPTED != 0 {
                    break;
                }
                // Relaxed: a flag that orders nothing else. Acquire: as above.
                let late = word | INTERRUPTED | LATE;
                match level.word().compare_exchange(word, late, Ordering::Relaxed, Ordering::Acquire) {
                    Ok(_) => {
                        marked(Place::Slot(Busy { slot, depth }), word);
                        break;
                    }
                    Err(other) => word = other,
                }
            }
            at = level.inner().zip(Some(depth + 1));
        }
    }
}
