//! Tokens that prove which writes every CPU has seen, and which runs are over.
//!
//! Problem: "a barrier was executed" does not suffice for a step that depends on an earlier one; the barrier must
//! have been executed *after* the earlier step. Approach: pokes and tokens carry stamps of one clock. A poke is
//! stamped after its store, a barrier before it begins, so a later barrier stamp means that the barrier covers the
//! store. A grace period can only be started with a barrier token, and only its end ([`Elapsed`]) removes a jump: so
//! every run is over that may have fetched the bypass before it was closed.
//!
//! Invariant: only [`Clock`] makes tokens, each after [`Fences`] has executed the operation that it proves.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bpf_quiesce::{CoreBarrierError, Domain, GracePeriod};

/// The barriers and grace periods that a [`Clock`] uses: [`Domain`], or a model of it.
pub trait Fences {
    /// The reason why a barrier was not executed.
    type Error;
    /// A grace period that has begun.
    type Period;

    /// Makes every CPU discard the instructions it has fetched.
    ///
    /// # Errors
    /// If the barrier was not executed.
    fn core_barrier(&self) -> Result<(), Self::Error>;

    /// Starts a grace period for the runs in progress.
    fn start(&self) -> Self::Period;

    /// Whether the runs that the grace period waits for are over.
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
    /// Whether this is later on one clock; stamps of different clocks are never ordered.
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
    /// Creates a clock. Sites stamped by another clock do not accept its tokens.
    pub fn new(fences: F) -> Clock<F> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        // Relaxed: only uniqueness matters.
        Clock { fences, id: NEXT.fetch_add(1, Ordering::Relaxed), now: AtomicU64::new(0) }
    }

    /// The barriers and grace periods that the tokens refer to.
    pub fn fences(&self) -> &F {
        &self.fences
    }

    /// A new point in time.
    pub(crate) fn tick(&self) -> Stamp {
        // AcqRel: the ticks are one total order (a read-modify-write chain), and a thread that reads a later one has
        // seen the accesses of any thread before the earlier ones.
        Stamp { clock: self.id, at: self.now.fetch_add(1, Ordering::AcqRel) }
    }

    /// Executes a core barrier.
    ///
    /// # Errors
    /// Returns the errors of [`Fences::core_barrier`].
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

/// The proof that every CPU sees all pokes made before the barrier began.
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

/// The proof that every run is over that could have fetched instructions from before a barrier.
#[derive(Debug)]
pub struct Elapsed {
    since: Stamp,
}

impl Elapsed {
    pub(crate) fn covers(&self, poked: Stamp) -> bool {
        self.since.is_after(poked)
    }
}
