//! Fuel: the work of a verification, counted.
//!
//! Problem: a verdict must be a function of the program, its contract and its limits, so no clock may end a search; and
//! a count of steps alone does not bound time, since one step may ask the linear solver many questions.
//! Approach: each operation whose time grows with the size of its input charges fuel ([`charge`]): a step, a state that
//! is copied or compared, an entry of the trail (`walk/trail.rs`) that is read, a row that the solver combines. The
//! weights are chosen so that equal amounts of fuel take about equal time: one unit is about one nanosecond of a
//! release build on a machine of 2024.
//!
//! A new search calls [`charge`] with the number of elements that its innermost loop visits, times the nanoseconds that
//! one element takes. A search that may take long by itself also asks [`is_spent`], and then gives up with the answer
//! "not proven". The walk is refused with [`crate::Reason::Fuel`] before an error is made from that answer.
//!
//! Invariants: fuel depends only on the program, its contract and its limits: not on capacities, addresses or programs
//! that the same thread verified before. The account belongs to the thread, because states that charge fuel have no
//! reference to their walk. A verification runs on one thread, and begins with [`begin`].

use std::cell::Cell;

/// Units of one step of a walk, for every instruction.
pub(crate) const STEP: u64 = 200;
/// Units of one instruction, for operations that visit all instructions of the program.
pub(crate) const SLOT: u64 = 60;
/// Units of one value of a state, for operations that visit or copy all values.
pub(crate) const VALUE: u64 = 12;

thread_local! {
    static SPENT: Cell<u64> = const { Cell::new(0) };
    static LIMIT: Cell<u64> = const { Cell::new(u64::MAX) };
}

/// Starts the account of a verification, without a limit.
pub(crate) fn begin() {
    SPENT.set(0);
    LIMIT.set(u64::MAX);
}

/// Adds units to the fuel spent by this thread's verification.
#[inline]
pub(crate) fn charge(units: u64) {
    SPENT.set(SPENT.get().saturating_add(units));
}

/// Charges `units` for each of `count` elements.
#[inline]
pub(crate) fn charge_each(count: usize, units: u64) {
    charge((count as u64).saturating_mul(units));
}

/// Returns the fuel charged since [`begin`].
#[inline]
pub(crate) fn spent() -> u64 {
    SPENT.get()
}

/// Sets the fuel, counted since [`begin`], above which [`is_spent`] returns true.
pub(crate) fn limit(units: u64) {
    LIMIT.set(units);
}

/// Returns the limit that was set last.
pub(crate) fn limited_to() -> u64 {
    LIMIT.get()
}

/// Whether the fuel spent exceeds the limit.
#[inline]
pub(crate) fn is_spent() -> bool {
    SPENT.get() > LIMIT.get()
}
