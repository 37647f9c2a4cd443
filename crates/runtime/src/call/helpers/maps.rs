//! Helpers over maps of data, and the locks in their values.
//!
//! A resilient lock is not waited for if its owner waits for one of this run's: each slot says what its run waits
//! for. Longer circles, and those through runs further up a thread's stack, end because waiting does.

use crate::abi::run::Run;
use crate::call::helpers::skb::ret;
use crate::call::helpers::socket::numbered;
use crate::call::leave;
use crate::error::HelperError;
use crate::num::low;
use bpf_jit_code::RunCtx;
use bpf_maps::{MapHeader, program as map_ops};
use bpf_uapi::Errno;
use std::sync::atomic::Ordering;

/// The slot of the run behind the hidden argument.
///
/// # Safety
/// `ctx` must be the first field of a [`Run`].
unsafe fn slot(ctx: *mut RunCtx) -> u32 {
    // SAFETY: the caller passes the first field of a live `Run`; the slot is written before the run and read by its
    // thread only.
    unsafe { (*ctx).slot }
}

/// Defines helpers over a map: `name(map, second register, third, fourth, slot) = call`.
macro_rules! map_helpers {
    ($($(#[$doc:meta])* $name:ident($map:ident, $a:ident, $b:ident, $c:ident, $slot:ident) = $call:expr;)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// Called by a program that was proven (or promised) to pass a live map, or null, and memory of the map's
        /// sizes; `ctx` is the first field of a [`Run`].
        pub(super) unsafe extern "C" fn $name(map: u64, $a: u64, $b: u64, $c: u64, _: u64, ctx: *mut RunCtx) -> u64 {
            let $map = map as *const MapHeader;
            // A contained program may pass null, as an inner map that was not found.
            if $map.is_null() {
                return ret(Err(Errno::EINVAL));
            }
            // SAFETY: the hidden argument that emitted code (or the interpreter) passes is the first field of this
            // thread's live `Run`.
            let $slot = unsafe { slot(ctx) };
            let _ = ($b, $c);
            // SAFETY: the program was proven to pass a live map in the first register, which is not null, and a
            // key, value or buffer of that map's sizes where the operation takes one; the slot is that of the guard
            // that the run is under.
            (unsafe { $call }) as u64
        }
    )*};
}

map_helpers! {
    /// `bpf_map_update_elem`.
    map_update_elem(map, key, value, flags, slot) =
        map_ops::update(map, key as *const u8, value as *const u8, flags, slot);
    /// `bpf_map_delete_elem`.
    map_delete_elem(map, key, b, c, slot) = map_ops::delete(map, key as *const u8, slot);
    /// `bpf_map_push_elem`.
    map_push_elem(map, value, flags, c, slot) = map_ops::push(map, value as *const u8, flags, slot);
    /// `bpf_map_pop_elem`.
    map_pop_elem(map, out, b, c, slot) = map_ops::pop(map, out as *mut u8, slot);
    /// `bpf_map_peek_elem`.
    map_peek_elem(map, out, b, c, slot) = map_ops::peek(map, out as *mut u8, slot);
}

/// `bpf_map_lookup_elem`. For a map of sockets, the host is asked for the socket whose cookie is at the key. Null,
/// which a contained program may pass as an inner map that was not found, has no elements.
///
/// # Safety
/// As the helpers over maps.
pub(super) unsafe extern "C" fn map_lookup_elem(map: u64, key: u64, _: u64, _: u64, _: u64, ctx: *mut RunCtx) -> u64 {
    let map = map as *const MapHeader;
    if map.is_null() {
        return 0;
    }
    // SAFETY: the hidden argument is the first field of this thread's live `Run`.
    let slot = unsafe { slot(ctx) };
    // SAFETY: the program was proven to pass a live map and a key of its size; the slot is that of the run's guard.
    let value = unsafe { map_ops::lookup(map, key as *const u8, slot) };
    if !value.is_null() {
        return value as u64;
    }
    // SAFETY: the map is live, the key has its size, and the slot is that of the run's guard, as for the look-up
    // above.
    match unsafe { map_ops::socket(map, key as *const u8, slot) } {
        // SAFETY: `ctx` is the running program's hidden argument, and this frame holds nothing to drop.
        Some(number) => unsafe { numbered(number, ctx) },
        None => 0,
    }
}

/// `bpf_map_lookup_percpu_elem`: `cpu` is an execution slot.
///
/// # Safety
/// As the helpers over maps.
pub(super) unsafe extern "C" fn map_lookup_percpu_elem(
    map: u64,
    key: u64,
    cpu: u64,
    _: u64,
    _: u64,
    _: *mut RunCtx,
) -> u64 {
    // SAFETY: the program was proven to pass a live map and a key of its size; any processor number will do.
    (unsafe { map_ops::lookup_percpu(map as *const MapHeader, key as *const u8, low(cpu)) }) as u64
}

/// `bpf_spin_lock`. A lock that this slot holds already ends the run: waiting for it would never end. A lock that
/// does not fit on the run's list of locks to release ends the run as well; no verified program holds so many.
///
/// # Safety
/// `lock` must be the lock in a live map value; `ctx` the first field of a [`Run`].
pub(super) unsafe extern "C" fn spin_lock(lock: u64, _: u64, _: u64, _: u64, _: u64, ctx: *mut RunCtx) -> u64 {
    let taken = {
        // SAFETY: `ctx` is the first field of the `Run` that this thread is in, by a pointer to all of it; emitted
        // code, which has the only other one, waits for this call.
        let run = unsafe { &mut *ctx.cast::<Run>() };
        let fits = !run.held.is_full();
        // SAFETY: the verifier (or the interpreter's check) admits only the lock's field of a value that the run may
        // reach, aligned to 4; the slot is the run's own.
        let taken = fits && unsafe { map_ops::spin_lock(lock as *mut u32, run.ctx.slot) } == 0;
        match (fits, taken) {
            (_, true) => run.held.add_lock(lock),
            (true, false) => {
                run.fail(HelperError::new("bpf_spin_lock: a run further up this thread's stack holds the lock"));
            }
            (false, false) => run.fail(HelperError::new("bpf_spin_lock: the run has too many locks and records")),
        }
        taken
    };
    if taken {
        return 0;
    }
    // SAFETY: this frame holds nothing that needs dropping.
    unsafe { leave(ctx) }
}

/// `bpf_res_spin_lock`, `bpf_res_spin_lock_irqsave`: there are no interrupts to disable.
///
/// # Safety
/// As [`spin_lock`].
pub(super) unsafe extern "C" fn res_spin_lock(lock: u64, _: u64, _: u64, _: u64, _: u64, ctx: *mut RunCtx) -> u64 {
    // SAFETY: `ctx` is the first field of the `Run` that this thread is in, by a pointer to all of it; emitted code,
    // which has the only other one, waits for this call.
    let run = unsafe { &mut *ctx.cast::<Run>() };
    if !run.held.has_room() {
        return Errno::ENOMEM.as_ret() as u64;
    }
    // SAFETY: the engine's, which outlives the run.
    let awaited = unsafe { &(*run.config).awaited };
    let slot = run.ctx.slot;
    let of = |slot: u32| awaited.get(slot as usize);
    let (held, mut waited) = (&run.held, false);
    let waits = |owner: u32| {
        // Relaxed, here and below: a hint that is looked at again and again, and carries no data.
        if let Some(mine) = of(slot) {
            mine.store(lock, Ordering::Relaxed);
            waited = true;
        }
        let other = of(owner).map_or(0, |other| other.load(Ordering::Relaxed));
        if other != 0 && held.has_lock(other) { Err(Errno::EDEADLK) } else { Ok(()) }
    };
    // SAFETY: the verifier (or the interpreter's check) admits only the lock's field of a value that the run may
    // reach, aligned to 4; the slot is the run's own.
    let taken = unsafe { map_ops::res_spin_lock(lock as *mut u32, slot, waits) };
    if waited && let Some(mine) = of(slot) {
        mine.store(0, Ordering::Relaxed);
    }
    if taken == 0 {
        run.held.add_lock(lock);
    }
    taken as u64
}

/// `bpf_spin_unlock`, and the functions that release resilient locks: `-EPERM` for one that this run has not taken,
/// and nothing is done to it. A run further up the thread's stack, which has the same slot, may have.
///
/// # Safety
/// As [`spin_lock`].
pub(super) unsafe extern "C" fn spin_unlock(lock: u64, _: u64, _: u64, _: u64, _: u64, ctx: *mut RunCtx) -> u64 {
    // SAFETY: `ctx` is the first field of the `Run` that this thread is in, by a pointer to all of it; emitted code,
    // which has the only other one, waits for this call.
    let run = unsafe { &mut *ctx.cast::<Run>() };
    if !run.held.remove_lock(lock) {
        return Errno::EPERM.as_ret() as u64;
    }
    // SAFETY: only a lock of a value that the run may reach is admitted here; that the slot does not hold it is
    // answered by an error number.
    (unsafe { map_ops::spin_unlock(lock as *mut u32, run.ctx.slot) }) as u64
}

/// `bpf_map_sum_elem_count(map)`: of hashes; the kernel counts the elements of no others.
///
/// # Safety
/// `map` must be a live map.
pub(super) unsafe extern "C" fn map_sum_elem_count(map: u64, _: u64, _: u64, _: u64, _: u64, _: *mut RunCtx) -> u64 {
    // SAFETY: the program was proven to pass a live map.
    unsafe { map_ops::elem_count(map as *const MapHeader) }
}
