//! Makes the n-th call of a kind fail, on the calling thread, and counts what that thread has mapped.
//!
//! The one injector of the family. A plan belongs to a thread, so that tests may run beside each other; what other
//! threads do for it does not fail.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use bpf_uapi::Errno;

use crate::{Call, SysError};

/// The error number of a call that fails by a plan: what seccomp answers.
pub const ERRNO: i32 = Errno::EPERM.0;

#[derive(Clone, Copy)]
struct Plan {
    call: Call,
    /// Calls of that kind that succeed before.
    before: u32,
    /// Whether the later ones fail as well.
    lasting: bool,
    reached: bool,
}

thread_local! {
    static PLAN: Cell<Option<Plan>> = const { Cell::new(None) };
    static MAPPED: RefCell<BTreeMap<usize, usize>> = const { RefCell::new(BTreeMap::new()) };
}

/// Runs `f` with the `nth` (from 0) call of that kind failing; also says whether that call was reached.
pub fn failing<R>(call: Call, nth: u32, f: impl FnOnce() -> R) -> (R, bool) {
    with(Plan { call, before: nth, lasting: false, reached: false }, f)
}

/// The same with all later calls of that kind failing as well: those that clean up after the first failure too.
pub fn failing_from<R>(call: Call, nth: u32, f: impl FnOnce() -> R) -> (R, bool) {
    with(Plan { call, before: nth, lasting: true, reached: false }, f)
}

/// Bytes that this thread has mapped whole and not unmapped, pages that are wiped in children aside.
pub fn mapped_bytes() -> usize {
    MAPPED.with_borrow(|mapped| mapped.values().sum())
}

fn with<R>(plan: Plan, f: impl FnOnce() -> R) -> (R, bool) {
    /// Ends the plan however `f` ends: a panic must not make calls of a later test fail.
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
    // A thread that is exiting has no plan any more.
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
