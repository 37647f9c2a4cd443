//! Fuel: the work of a verification, counted.
//!
//! Problem: a verdict must be a function of the program, its contract and its limits, so no clock may decide how long
//! is searched; and a count of steps alone bounds no time, since one step may ask the linear solver many questions.
//! Approach: whatever takes time in proportion to something is charged where it happens ([`charge`]): a step, a state
//! that is copied or compared, an entry of the trail that is read, a row that the solver combines. One unit is about
//! one nanosecond of a release build on a machine of 2024, which is how the weights were chosen; their only purpose is
//! that equal amounts of fuel take about equal time.
//!
//! Who adds a search charges it: [`charge`] with the number of elements that its innermost loop looks at, times the
//! nanoseconds that one takes. A search that may go on for long by itself also asks [`is_spent`] and gives up, with the
//! answer that proves nothing: the walk is refused with [`crate::Reason::Fuel`] before that answer is told as a reason.
//!
//! Invariants: fuel depends on nothing but what is verified: not on capacities, addresses or what was verified before.
//! The account is the thread's, because states answer questions and have no walk at hand; a verification runs on one
//! thread, and begins with [`begin`].

use std::cell::Cell;

/// One step of a walk, whatever the instruction.
pub(crate) const STEP: u64 = 200;
/// One instruction of the program, where all of them are looked at.
pub(crate) const SLOT: u64 = 60;
/// One value of a state, where all of them are looked at or copied.
pub(crate) const VALUE: u64 = 12;

thread_local! {
    static SPENT: Cell<u64> = const { Cell::new(0) };
    static LIMIT: Cell<u64> = const { Cell::new(u64::MAX) };
}

/// Starts the account of a verification.
pub(crate) fn begin() {
    SPENT.set(0);
    LIMIT.set(u64::MAX);
}

/// Charges so many units.
#[inline]
pub(crate) fn charge(units: u64) {
    SPENT.set(SPENT.get().saturating_add(units));
}

/// Charges for each of `count` elements.
#[inline]
pub(crate) fn charge_each(count: usize, units: u64) {
    charge((count as u64).saturating_mul(units));
}

/// Returns what was charged since [`begin`].
#[inline]
pub(crate) fn spent() -> u64 {
    SPENT.get()
}

/// Sets how much may be spent, of the same account, before [`is_spent`].
pub(crate) fn limit(units: u64) {
    LIMIT.set(units);
}

/// Returns the limit that was set last.
pub(crate) fn limited_to() -> u64 {
    LIMIT.get()
}

/// Whether more was spent than may be.
#[inline]
pub(crate) fn is_spent() -> bool {
    SPENT.get() > LIMIT.get()
}
