//! Threads that end inside a guard.
//!
//! Problem: a guard can outlive its thread's registrations: forgotten ([`std::mem::forget`]), or kept in a
//! thread-local whose destructor runs after theirs. While the guard may be used its record must stay. But a record
//! that stays after its thread has ended holds up every grace period and keeps a slot.
//!
//! Approach: such registrations are handed to a thread-specific key whose function runs when the thread ends
//! ([`ExitKey`]). With glibc it runs after the thread-local destructors. On hosts where those destructors are key
//! functions themselves, ours re-arms its key for as many rounds as the host has, so that they run first. Afterwards
//! no Rust code of the thread is left that could use a guard, and the records are given back.
//!
//! Invariant: [`find`] sees the registrations until then, so a guard made in a destructor nests correctly.
//!
//! On a host without such a key the records stay taken.

use std::cell::Cell;
use std::ffi::c_void;
use std::ptr::{self, NonNull};
use std::sync::OnceLock;

use bpf_os::thread::ExitKey;

use crate::record::Record;
use crate::registration::Registration;

struct Late {
    registrations: Vec<Registration>,
    round: u32,
}

thread_local! {
    /// The registrations that this thread has handed over. It has no destructor, because destructors of other
    /// thread-locals read it.
    static LATE: Cell<*const Late> = const { Cell::new(ptr::null()) };
}

/// The record of the calling thread in this domain, if its registration was handed over.
pub(crate) fn find(domain: u64) -> Option<NonNull<Record>> {
    // SAFETY: null, or what this thread has handed over and its key still holds: `end` clears it first.
    let late = unsafe { LATE.get().as_ref() }?;
    late.registrations.iter().find(|r| r.domain == domain).map(|r| NonNull::from(&**r.record))
}

/// Takes over the registrations of a thread that ends inside their guards.
pub(crate) fn hand_over(registrations: Vec<Registration>) {
    static KEY: OnceLock<Option<ExitKey>> = OnceLock::new();
    let key = *KEY.get_or_init(|| ExitKey::new(end).ok());
    let late = Box::into_raw(Box::new(Late { registrations, round: 0 }));
    // SAFETY: `end` takes this pointer, and owns it from then on.
    if key.is_some_and(|key| unsafe { key.set(late.cast()) }) {
        KEY_OF.set(key);
    }
    // Without a key the registrations are never given back, and stay usable by this thread.
    LATE.set(late);
}

thread_local! {
    /// The key, for [`end`]. A copy, because [`end`] must not take a lock that a thread of the parent process may
    /// hold.
    static KEY_OF: Cell<Option<ExitKey>> = const { Cell::new(None) };
}

/// The key's function.
///
/// # Safety
/// `late` must be what [`hand_over`] stored.
unsafe extern "C" fn end(late: *mut c_void) {
    let late = late.cast::<Late>();
    // SAFETY: a box of `hand_over`, only looked at by this thread.
    let round = unsafe { &mut (*late).round };
    *round += 1;
    if *round < ExitKey::ROUNDS - 1
        && let Some(key) = KEY_OF.get()
        // SAFETY: still a box of `hand_over`; this function is called with it once more.
        && unsafe { key.set(late.cast()) }
    {
        return;
    }
    LATE.set(ptr::null());
    // SAFETY: made by `Box::into_raw`; the only other copy, `LATE`, is null.
    let late = unsafe { Box::from_raw(late) };
    late.registrations.iter().for_each(Registration::end);
}
