//! Tokens: what has been seen by every CPU, and which runs are over.
//!
//! Problem: "a barrier was executed" is not enough for a step that depends on an earlier one; it must have been
//! executed *after* that one. Approach: pokes and tokens carry stamps of one clock. A poke is stamped after its store,
//! a barrier before it begins, so a later barrier stamp means that the barrier covers the store. A grace period can
//! only be started with a barrier in hand, and only its end ([`Elapsed`]) removes a jump: so every run that may have
//! fetched the bypass before it was closed is over.
//!
//! Invariant: only [`Clock`] makes tokens, and only after [`Fences`] did what they stand for.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bpf_quiesce::{CoreBarrierError, Domain, GracePeriod};

/// What executes barriers and knows which runs are going on: [`Domain`], or a model of it.
pub trait Fences {
    /// Why a barrier was not executed.
    type Error;
    /// A grace period that has begun.
    type Period;

    /// Makes every CPU discard the instructions it has fetched.
    ///
    /// # Errors
    /// If it was not done.
    fn core_barrier(&self) -> Result<(), Self::Error>;

    /// Begins to wait for the runs that are going on.
    fn start(&self) -> Self::Period;

    /// Whether they are over.
    fn is_over(&self, period: &Self::Period) -> bool;
}

impl Fences for Arc<Domain> {
    type Error = CoreBarrierError;
    type Period = GracePeriod;

    fn core_barrier(&self) -> Result<(), CoreBarrierError> {
        Domain::core_barrier(self).map(drop)
    }

    fn start(&self) -> GracePeriod {
        self.start_grace_period()
    }

    fn is_over(&self, period: &GracePeriod) -> bool {
        period.is_complete()
    }
}

/// A point in a clock's time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Stamp {
    clock: u64,
    at: u64,
}

impl Stamp {
    /// Later on the same clock; stamps of different clocks say nothing about each other.
    fn is_after(self, earlier: Stamp) -> bool {
        self.clock == earlier.clock && self.at > earlier.at
    }
}

/// Orders the pokes, barriers and grace periods of one domain.
#[derive(Debug)]
pub struct Clock<F> {
    fences: F,
    id: u64,
    now: AtomicU64,
}

impl<F: Fences> Clock<F> {
    /// A clock of its own: its tokens mean nothing to sites stamped by another.
    pub fn new(fences: F) -> Clock<F> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        // Relaxed: only uniqueness matters.
        Clock { fences, id: NEXT.fetch_add(1, Ordering::Relaxed), now: AtomicU64::new(0) }
    }

    /// The barriers and grace periods that its tokens are about.
    pub fn fences(&self) -> &F {
        &self.fences
    }

    /// A new point in time.
    pub(crate) fn tick(&self) -> Stamp {
        // AcqRel: the ticks are one total order (a read-modify-write chain), and a thread that reads a later one has
        // seen what any thread did before the earlier ones.
        Stamp { clock: self.id, at: self.now.fetch_add(1, Ordering::AcqRel) }
    }

    /// Executes a core barrier.
    ///
    /// # Errors
    /// Those of [`Fences::core_barrier`].
    pub fn barrier(&self) -> Result<Barrier, F::Error> {
        let begun = self.tick();
        self.fences.core_barrier()?;
        Ok(Barrier { begun })
    }

    /// Begins a grace period after a barrier.
    pub fn grace(&self, barrier: &Barrier) -> Grace<F::Period> {
        Grace { since: barrier.begun, period: self.fences.start() }
    }

    /// The proof that a grace period is over, if it is.
    pub fn elapsed(&self, grace: &Grace<F::Period>) -> Option<Elapsed> {
        self.fences.is_over(&grace.period).then_some(Elapsed { since: grace.since })
    }
}

/// Every CPU sees what was poked before this began.
#[derive(Debug)]
pub struct Barrier {
    begun: Stamp,
}

impl Barrier {
    pub(crate) fn covers(&self, poked: Stamp) -> bool {
        self.begun.is_after(poked)
    }
}

/// A grace period that began after a barrier.
#[derive(Debug)]
pub struct Grace<P> {
    since: Stamp,
    period: P,
}

/// Every run that could have fetched instructions from before a barrier is over.
#[derive(Debug)]
pub struct Elapsed {
    since: Stamp,
}

impl Elapsed {
    pub(crate) fn covers(&self, poked: Stamp) -> bool {
        self.since.is_after(poked)
    }
}
