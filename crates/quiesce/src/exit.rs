//! Threads that end inside a guard.
//!
//! Problem: a guard can outlive its thread's registrations: forgotten ([`std::mem::forget`]), or kept in a thread-local
//! whose destructor runs after theirs. While it may still be used its record must stay; but a record that stays for
//! good holds up every grace period, and takes a slot, for a thread that is gone.
//!
//! Approach: such registrations are handed to a key whose function is called when the thread ends ([`ExitKey`]): with
//! glibc after its thread-local destructors, and on hosts where those are functions of keys themselves, ours lets them
//! go first by standing back for as many rounds as there are. Then no Rust code of the thread is left that could use a
//! guard, and the records are given back.
//!
//! Invariant: [`find`] sees the registrations until then, so a guard in a destructor nests, and is known to be nested.
//!
//! Where no key is to be had the records stay taken.

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
    /// The registrations that this thread has handed over. No destructor: it is read by those of others.
    static LATE: Cell<*const Late> = const { Cell::new(ptr::null()) };
}

/// The record of the calling thread in this domain, if its registration was handed over.
pub(crate) fn find(domain: u64) -> Option<NonNull<Record>> {
    // SAFETY: null, or what this thread has handed over and its key still holds: `end` clears it first.
    let late = unsafe { LATE.get().as_ref() }?;
    late.registrations.iter().find(|r| r.domain == domain).map(|r| NonNull::from(&**r.record))
}

/// Takes the registrations of a thread that ends inside their guards.
pub(crate) fn hand_over(registrations: Vec<Registration>) {
    static KEY: OnceLock<Option<ExitKey>> = OnceLock::new();
    let key = *KEY.get_or_init(|| ExitKey::new(end).ok());
    let late = Box::into_raw(Box::new(Late { registrations, round: 0 }));
    // SAFETY: what `end` takes, and its own from now on.
    if key.is_some_and(|key| unsafe { key.set(late.cast()) }) {
        KEY_OF.set(key);
    }
    // Without a key nobody gives them back, and they are still this thread's.
    LATE.set(late);
}

thread_local! {
    /// The key, for [`end`], which must not take a lock that a thread holds that is gone after a fork.
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
    // SAFETY: made by `Box::into_raw`; from here on nobody else knows it.
    let late = unsafe { Box::from_raw(late) };
    late.registrations.iter().for_each(Registration::end);
}
