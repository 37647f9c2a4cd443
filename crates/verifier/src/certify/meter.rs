//! The account of a search: steps, memory and time, beside the fuel of the verification ([`crate::fuel`]).
//!
//! Problem: a search for certificates runs where the walk has refused a program, so its work must be bounded by the
//! same limits ([`bpf_verifier_core::Limits`]), and must not depend on the machine. Approach: each step of a walk of
//! the core asks the account whether the search may go on. Steps, fuel and counted bytes depend on the program, its
//! contract and the limits only. The clock is read only if there is a deadline.
//!
//! Invariant: the account cannot make a program accepted. A search that is over stops, and proves nothing.

use std::cell::Cell;
use std::time::Instant;

use bpf_verifier_core::State;

use crate::fuel;

/// Steps between two looks at the clock.
const TIMED_STEPS: u64 = 32;

/// The limits of a search.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Within {
    /// Fuel of the core for each walk.
    pub(crate) pass: u64,
    /// Fuel of all strategies together, from the start of the search on ([`fuel`]).
    pub(crate) fuel: u64,
    /// Steps of all walks together.
    pub(crate) steps: u64,
    /// Bytes of the kept points, and of the paths between them.
    pub(crate) memory: usize,
    /// The time at which the search gives up.
    pub(crate) deadline: Option<Instant>,
}

impl Within {
    /// Only the walks of the core are bounded.
    pub(super) fn passes(pass: u64) -> Within {
        Within { pass, fuel: u64::MAX, steps: u64::MAX, memory: usize::MAX, deadline: None }
    }
}

/// The account.
#[derive(Debug)]
pub(super) struct Meter {
    pub(super) within: Within,
    steps: Cell<u64>,
    held: Cell<usize>,
    late: Cell<bool>,
}

impl Meter {
    pub(super) fn new(within: Within) -> Meter {
        Meter { within, steps: Cell::new(0), held: Cell::new(0), late: Cell::new(false) }
    }

    /// A strategy begins: nothing is held.
    pub(super) fn begin(&self) {
        self.held.set(0);
    }

    /// Accounts for a step in this state. `false` if the search is over.
    pub(super) fn step(&self, state: &State) -> bool {
        let known = state.known();
        let cells: usize = state.frames().iter().map(|frame| 11 + frame.stack.cells().len()).sum();
        fuel::charge(fuel::STEP);
        fuel::charge_each(known.names().len() + 2 * known.rows().len() + cells, fuel::VALUE);
        self.steps.set(self.steps.get().saturating_add(1));
        if self.steps.get().is_multiple_of(TIMED_STEPS) {
            self.look_at_clock();
        }
        self.goes_on()
    }

    /// Accounts for work between the steps, and looks at the clock. `false` if the search is over.
    pub(super) fn work(&self, amount: u64) -> bool {
        fuel::charge(amount);
        self.look_at_clock();
        self.goes_on()
    }

    fn look_at_clock(&self) {
        if self.within.deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            self.late.set(true);
        }
    }

    /// Whether no limit is reached.
    pub(super) fn goes_on(&self) -> bool {
        let within = self.steps.get() <= self.within.steps && self.held.get() <= self.within.memory;
        within && !self.late.get() && !fuel::is_spent()
    }

    /// Whether the time was up.
    pub(super) fn is_late(&self) -> bool {
        self.late.get()
    }

    /// The steps so far.
    pub(super) fn steps(&self) -> u64 {
        self.steps.get()
    }

    /// Accounts for memory that is held.
    pub(super) fn hold(&self, bytes: usize) {
        self.held.set(self.held.get().saturating_add(bytes));
    }

    /// Accounts for memory that is freed.
    pub(super) fn free(&self, bytes: usize) {
        self.held.set(self.held.get().saturating_sub(bytes));
    }
}
