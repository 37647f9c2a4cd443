//! Makes the n-th call of a kind fail on the calling thread, and counts the bytes that this thread has mapped.
//!
//! No other crate of the family injects failures. A plan belongs to a thread, so that tests can run in parallel. Calls
//! by other threads on behalf of a test do not fail.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use bpf_uapi::Errno;

use crate::{Call, SysError};

/// The error number of a call that fails by a plan: the one that seccomp filters return.
pub const ERRNO: i32 = Errno::EPERM.0;

#[derive(Clone, Copy)]
struct Plan {
    call: Call,
    /// Number of calls of that kind that succeed before the failure.
    before: u32,
    /// Whether all later calls fail as well.
    lasting: bool,
    reached: bool,
}

thread_local! {
    static PLAN: Cell<Option<Plan>> = const { Cell::new(None) };
    static MAPPED: RefCell<BTreeMap<usize, usize>> = const { RefCell::new(BTreeMap::new()) };
}

/// Runs `f` with the `nth` (from 0) call of that kind failing. Returns its result, and whether that call was reached.
pub fn failing<R>(call: Call, nth: u32, f: impl FnOnce() -> R) -> (R, bool) {
    with(Plan { call, before: nth, lasting: false, reached: false }, f)
}

/// Runs `f` with the `nth` (from 0) call of that kind and all later ones failing, including the calls that clean up
/// after the first failure.
pub fn failing_from<R>(call: Call, nth: u32, f: impl FnOnce() -> R) -> (R, bool) {
    with(Plan { call, before: nth, lasting: true, reached: false }, f)
}

/// Bytes that this thread has mapped and not unmapped, except pages that are zeroed in children.
pub fn mapped_bytes() -> usize {
    MAPPED.with_borrow(|mapped| mapped.values().sum())
}

fn with<R>(plan: Plan, f: impl FnOnce() -> R) -> (R, bool) {
    /// Ends the plan however `f` ends, so that calls of a later test do not fail after a panic.
    struct End;
    impl Drop for End {
        fn drop(&mut self) {
            PLAN.take();
        }
    }
    PLAN.set(Some(plan));
    let end = End;
    let result = f();
    let reached = PLAN.get().is_some_and(|plan| plan.reached);
    drop(end);
    (result, reached)
}

pub(crate) fn check(call: Call) -> Result<(), SysError> {
    // A thread that is exiting has no plan.
    let planned = PLAN.try_with(Cell::get).ok().flatten();
    let Some(mut plan) = planned.filter(|plan| plan.call == call) else { return Ok(()) };
    if plan.reached && !plan.lasting {
        return Ok(());
    }
    if plan.before > 0 {
        plan.before -= 1;
    } else {
        plan.reached = true;
    }
    PLAN.set(Some(plan));
    if plan.reached { Err(SysError { call, errno: ERRNO }) } else { Ok(()) }
}

pub(crate) fn mapped(at: *mut u8, len: usize) {
    // As in `check`.
    let _ = MAPPED.try_with(|mapped| mapped.borrow_mut().insert(at.addr(), len));
}

pub(crate) fn unmapped(at: *mut u8) {
    let _ = MAPPED.try_with(|mapped| mapped.borrow_mut().remove(&at.addr()));
}
