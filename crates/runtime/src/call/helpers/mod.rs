//! The shipped helpers: the kernel's, by the kernel's ids, for programs in this process.
//!
//! Each is a C function that emitted code calls directly; the interpreter calls the same ones after checking their
//! arguments against the prototype. Helpers that call back into the program (`bpf_loop`, `bpf_for_each_map_elem`) are
//! written once over "how to call back" and have two callers, emitted code here and the interpreter.

pub(crate) mod packet;
pub(crate) mod ring;

use crate::abi::entry;
use crate::abi::run::Run;
use crate::call::{HostFn, Shim, guarded, leave};
use crate::error::HelperError;
use crate::num::low;
use bpf_jit::LowerOptions;
use bpf_jit_code::{RunCtx, StopCode};
use bpf_maps::{Errno, MapHeader, program as map_ops};
use bpf_uapi::Helper;
use bpf_verifier::CallbackKind;
use core::cell::Cell;
use ring::run_drain;

/// `bpf_loop` runs at most this many iterations (Linux: BPF_MAX_LOOPS).
const MAX_LOOPS: u64 = 8 * 1024 * 1024;

/// The helpers, ascending by id.
pub(crate) const SHIPPED: &[(Helper, HostFn)] = &[
    (Helper::MapLookupElem, HostFn::with_run(map_lookup_elem)),
    (Helper::MapUpdateElem, HostFn::with_run(map_update_elem)),
    (Helper::MapDeleteElem, HostFn::with_run(map_delete_elem)),
    (Helper::KtimeGetNs, HostFn::plain(ktime_get_ns)),
    (Helper::TracePrintk, HostFn::with_run(trace_printk)),
    (Helper::GetPrandomU32, HostFn::plain(get_prandom_u32)),
    (Helper::GetSmpProcessorId, HostFn::with_run(get_smp_processor_id)),
    (Helper::GetCurrentPidTgid, HostFn::plain(get_current_pid_tgid)),
    (Helper::GetCurrentUidGid, HostFn::plain(get_current_uid_gid)),
    (Helper::GetCurrentComm, HostFn::plain(get_current_comm)),
    (Helper::PerfEventOutput, HostFn::with_run(ring::perf_event_output)),
    (Helper::MapPushElem, HostFn::with_run(map_push_elem)),
    (Helper::MapPopElem, HostFn::with_run(map_pop_elem)),
    (Helper::MapPeekElem, HostFn::with_run(map_peek_elem)),
    (Helper::SpinLock, HostFn::with_run(spin_lock)),
    (Helper::SpinUnlock, HostFn::with_run(spin_unlock)),
    (Helper::Jiffies64, HostFn::plain(jiffies64)),
    (Helper::KtimeGetBootNs, HostFn::plain(ktime_get_boot_ns)),
    (Helper::RingbufOutput, HostFn::with_run(ring::ringbuf_output)),
    (Helper::RingbufReserve, HostFn::with_run(ring::ringbuf_reserve)),
    (Helper::RingbufSubmit, HostFn::with_run(ring::ringbuf_submit)),
    (Helper::RingbufDiscard, HostFn::with_run(ring::ringbuf_discard)),
    (Helper::RingbufQuery, HostFn::plain(ring::ringbuf_query)),
    // Emitted code calls those that check what it does itself ([`calling_back`]), the interpreter none.
    (Helper::ForEachMapElem, HostFn::with_run(for_each_map_elem::<By<3>>)),
    (Helper::Loop, HostFn::with_run(bpf_loop::<By<3>>)),
    (Helper::MapLookupPercpuElem, HostFn::plain(map_lookup_percpu_elem)),
    (Helper::DynptrRead, HostFn::plain(ring::dynptr_read)),
    (Helper::UserRingbufDrain, HostFn::with_run(user_ringbuf_drain::<By<3>>)),
];

/// The slot of the run behind the hidden argument.
///
/// # Safety
/// `ctx` must be the first field of a [`Run`].
unsafe fn slot(ctx: *mut RunCtx) -> u32 {
    // SAFETY: by contract.
    unsafe { (*ctx).slot }
}

/// Defines helpers over a map: `name(map, second register, third, fourth, slot) = call`.
macro_rules! map_helpers {
    ($($(#[$doc:meta])* $name:ident($map:ident, $a:ident, $b:ident, $c:ident, $slot:ident) = $call:expr;)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// Called by a program that was proven (or promised) to pass a live map and memory of the map's sizes; `ctx` is
        /// the first field of a [`Run`].
        unsafe extern "C" fn $name(map: u64, $a: u64, $b: u64, $c: u64, _: u64, ctx: *mut RunCtx) -> u64 {
            let $map = map as *const MapHeader;
            // SAFETY: by contract.
            let $slot = unsafe { slot(ctx) };
            let _ = ($b, $c);
            // SAFETY: the map and the memory are valid by contract, and the slot is the run's.
            (unsafe { $call }) as u64
        }
    )*};
}

map_helpers! {
    /// `bpf_map_lookup_elem`.
    map_lookup_elem(map, key, b, c, slot) = map_ops::lookup(map, key as *const u8, slot);
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

/// `bpf_map_lookup_percpu_elem`: `cpu` is an execution slot.
///
/// # Safety
/// As the helpers over maps.
unsafe extern "C" fn map_lookup_percpu_elem(map: u64, key: u64, cpu: u64, _: u64, _: u64, _: *mut RunCtx) -> u64 {
    // SAFETY: the map and the key are valid by contract.
    (unsafe { map_ops::lookup_percpu(map as *const MapHeader, key as *const u8, low(cpu)) }) as u64
}

/// `bpf_spin_lock`. A lock that this slot holds already ends the run: waiting for it would never end.
///
/// # Safety
/// `lock` must be the lock in a live map value; `ctx` the first field of a [`Run`].
unsafe extern "C" fn spin_lock(lock: u64, _: u64, _: u64, _: u64, _: u64, ctx: *mut RunCtx) -> u64 {
    let taken = {
        // SAFETY: by contract.
        let run = unsafe { &mut *ctx.cast::<Run>() };
        // SAFETY: by contract.
        let taken = unsafe { map_ops::spin_lock(lock as *mut u32, run.ctx.slot) } == 0;
        match taken {
            true => run.held.add_lock(lock),
            false => run.fail(HelperError::new("bpf_spin_lock: a run further up this thread's stack holds the lock")),
        }
        taken
    };
    if taken {
        return 0;
    }
    // SAFETY: this frame holds nothing that needs dropping.
    unsafe { leave(ctx) }
}

/// `bpf_spin_unlock`.
///
/// # Safety
/// As [`spin_lock`].
unsafe extern "C" fn spin_unlock(lock: u64, _: u64, _: u64, _: u64, _: u64, ctx: *mut RunCtx) -> u64 {
    // SAFETY: by contract.
    let run = unsafe { &mut *ctx.cast::<Run>() };
    run.held.remove_lock(lock);
    // SAFETY: by contract.
    (unsafe { map_ops::spin_unlock(lock as *mut u32, run.ctx.slot) }) as u64
}

fn clock_ns(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is writable. The clocks used here exist on every Linux; a failure would leave 0.
    unsafe { libc::clock_gettime(clock, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// `bpf_ktime_get_ns`: the monotonic clock.
extern "C" fn ktime_get_ns(_: u64, _: u64, _: u64, _: u64, _: u64, _: *mut RunCtx) -> u64 {
    clock_ns(libc::CLOCK_MONOTONIC)
}

/// `bpf_ktime_get_boot_ns`: the monotonic clock that counts suspension.
extern "C" fn ktime_get_boot_ns(_: u64, _: u64, _: u64, _: u64, _: u64, _: *mut RunCtx) -> u64 {
    clock_ns(libc::CLOCK_BOOTTIME)
}

/// `bpf_jiffies64`: a coarse clock, here of 1000 ticks a second (the kernel's `HZ` is its own affair), from boot.
extern "C" fn jiffies64(_: u64, _: u64, _: u64, _: u64, _: u64, _: *mut RunCtx) -> u64 {
    clock_ns(libc::CLOCK_MONOTONIC_COARSE) / 1_000_000
}

/// `bpf_get_current_comm(buf, size)`: the thread's name, cut to the buffer and ended by a zero byte.
///
/// # Safety
/// `buf` must be writable for `size` bytes.
unsafe extern "C" fn get_current_comm(buf: u64, size: u64, _: u64, _: u64, _: u64, _: *mut RunCtx) -> u64 {
    // 16: TASK_COMM_LEN.
    let mut name = [0u8; 16];
    // SAFETY: writes at most 16 bytes, which `name` has.
    unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
    let len = name.iter().position(|b| *b == 0).unwrap_or(name.len()).min(crate::num::index(size).saturating_sub(1));
    // SAFETY: by contract; the rest is zeroed, as the kernel does.
    unsafe { core::ptr::write_bytes(buf as *mut u8, 0, crate::num::index(size)) };
    // SAFETY: `len` is below `size` (or both are 0) and at most 16.
    unsafe { core::ptr::copy_nonoverlapping(name.as_ptr(), buf as *mut u8, len) };
    0
}

/// `bpf_get_prandom_u32`: a xorshift generator a thread, seeded from the process's hash keys.
extern "C" fn get_prandom_u32(_: u64, _: u64, _: u64, _: u64, _: u64, _: *mut RunCtx) -> u64 {
    use std::hash::{BuildHasher, RandomState};
    thread_local!(static STATE: Cell<u64> = const { Cell::new(0) });
    STATE.with(|state| {
        let mut x = state.get();
        if x == 0 {
            x = RandomState::new().hash_one(0u8) | 1;
        }
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        state.set(x);
        x >> 32
    })
}

/// `bpf_get_smp_processor_id`: the execution slot, which is what per-CPU maps are indexed by.
///
/// # Safety
/// `ctx` must be the first field of a [`Run`].
unsafe extern "C" fn get_smp_processor_id(_: u64, _: u64, _: u64, _: u64, _: u64, ctx: *mut RunCtx) -> u64 {
    // SAFETY: by contract.
    unsafe { slot(ctx) }.into()
}

/// `bpf_get_current_pid_tgid`: process id in the upper half, thread id in the lower.
extern "C" fn get_current_pid_tgid(_: u64, _: u64, _: u64, _: u64, _: u64, _: *mut RunCtx) -> u64 {
    // SAFETY: no arguments, cannot fail.
    let tid = unsafe { libc::gettid() };
    u64::from(std::process::id()) << 32 | u64::from(tid as u32)
}

/// `bpf_get_current_uid_gid`: group id in the upper half, user id in the lower.
extern "C" fn get_current_uid_gid(_: u64, _: u64, _: u64, _: u64, _: u64, _: *mut RunCtx) -> u64 {
    // SAFETY: no arguments, cannot fail.
    let gid = unsafe { libc::getgid() };
    // SAFETY: no arguments, cannot fail.
    let uid = unsafe { libc::getuid() };
    u64::from(gid) << 32 | u64::from(uid)
}

/// `bpf_trace_printk(fmt, fmt_size, ...)`: three arguments at most, as in the kernel. Returns the bytes written or
/// `-EINVAL`.
///
/// # Safety
/// `fmt` must be valid for `size` bytes; `ctx` the first field of a [`Run`].
unsafe extern "C" fn trace_printk(fmt: u64, size: u64, a: u64, b: u64, c: u64, ctx: *mut RunCtx) -> u64 {
    // SAFETY: by contract. Copied at once, because the memory may be shared.
    let fmt = unsafe { core::slice::from_raw_parts(fmt as *const u8, crate::num::index(size)) }.to_vec();
    let result = {
        // SAFETY: by contract; emitted code does not touch it during the call.
        let run = unsafe { &mut *ctx.cast::<Run>() };
        guarded(run, |run| {
            let Some(text) = format_printk(&fmt, &[a, b, c]) else {
                return Ok(Errno::EINVAL.as_ret() as u64);
            };
            // SAFETY: the engine outlives its runs.
            let engine = unsafe { &*run.engine };
            if let Some(print) = &engine.config.print {
                print(&text);
            }
            Ok(text.len() as u64)
        })
    };
    drop(fmt);
    match result {
        Some(r0) => r0,
        // SAFETY: this frame holds nothing that needs dropping any more.
        None => unsafe { leave(ctx) },
    }
}

/// What the kernel's `bpf_trace_printk` would print, or `None` where it refuses the format: `%d %i %u %x %X %o %c %p
/// %%` with `l`, `ll`, `h`, `hh`, flags and width. Pointers to strings (`%s`) mean nothing here and are refused.
fn format_printk(fmt: &[u8], args: &[u64]) -> Option<String> {
    let fmt = fmt.split(|b| *b == 0).next().unwrap_or(&[]);
    let fmt = core::str::from_utf8(fmt).ok()?;
    let mut out = String::with_capacity(fmt.len());
    let mut args = args.iter().copied();
    let mut chars = fmt.chars().peekable();
    while let Some(ch) = chars.next() {
        if ch != '%' {
            out.push(ch);
            continue;
        }
        if chars.next_if_eq(&'%').is_some() {
            out.push('%');
            continue;
        }
        let (mut zero, mut left, mut width) = (false, false, 0usize);
        while let Some(flag) = chars.next_if(|c| "0-+ #".contains(*c)) {
            zero |= flag == '0';
            left |= flag == '-';
        }
        while let Some(digit) = chars.next_if(char::is_ascii_digit) {
            width = (width * 10 + digit as usize - '0' as usize).min(64);
        }
        let (mut longs, mut halves) = (0, 0);
        while let Some(length) = chars.next_if(|c| matches!(c, 'l' | 'h' | 'z')) {
            longs += usize::from(length != 'h');
            halves += usize::from(length == 'h');
        }
        let conversion = chars.next()?;
        let arg = args.next()?;
        #[expect(clippy::cast_possible_truncation, reason = "that is what the format's length modifiers ask for")]
        let (unsigned, signed) = match (longs, halves) {
            (0, 0) => (u64::from(arg as u32), i64::from(arg as i32)),
            (0, 1) => (u64::from(arg as u16), i64::from(arg as i16)),
            (0, _) => (u64::from(arg as u8), i64::from(arg as i8)),
            (_, _) => (arg, arg as i64),
        };
        let text = match conversion {
            'd' | 'i' => signed.to_string(),
            'u' => unsigned.to_string(),
            'x' => format!("{unsigned:x}"),
            'X' => format!("{unsigned:X}"),
            'o' => format!("{unsigned:o}"),
            'p' => format!("{arg:016x}"),
            'c' => char::from((arg & 0xff) as u8).to_string(),
            _ => return None,
        };
        let pad = width.saturating_sub(text.len());
        match (left, zero) {
            (true, _) => {
                out.push_str(&text);
                out.extend(core::iter::repeat_n(' ', pad));
            }
            (false, true) if text.starts_with('-') => {
                out.push('-');
                out.extend(core::iter::repeat_n('0', pad));
                out.push_str(&text[1..]);
            }
            (false, zero) => {
                out.extend(core::iter::repeat_n(if zero { '0' } else { ' ' }, pad));
                out.push_str(&text);
            }
        }
    }
    Some(out)
}

/// How a helper calls a function of the program.
pub(crate) type CallBack<'a> = &'a mut dyn FnMut(&mut Run, [u64; 5]) -> Result<u64, HelperError>;

/// `bpf_loop(nr, callback, ctx, flags)`: calls `callback(i, ctx)` for i = 0 .. nr until it returns non-zero; the number
/// of calls.
pub(crate) fn run_loop(run: &mut Run, nr: u64, arg: u64, flags: u64, call: CallBack<'_>) -> Result<u64, HelperError> {
    let nr = u64::from(low(nr));
    if flags != 0 {
        return Ok(Errno::EINVAL.as_ret() as u64);
    }
    if nr > MAX_LOOPS {
        return Ok(Errno::E2BIG.as_ret() as u64);
    }
    for i in 0..nr {
        if call(run, [i, arg, 0, 0, 0])? != 0 {
            return Ok(i + 1);
        }
    }
    Ok(nr)
}

/// `bpf_for_each_map_elem(map, callback, ctx, flags)`: calls `callback(map, key, value, ctx)` for each element until it
/// returns non-zero; the number of calls.
///
/// # Safety
/// `map` must be a live map.
pub(crate) unsafe fn run_for_each(
    run: &mut Run,
    map: u64,
    arg: u64,
    flags: u64,
    call: CallBack<'_>,
) -> Result<u64, HelperError> {
    let mut failed = None;
    let slot = run.ctx.slot;
    let mut visit = |key: *const u8, value: *mut u8| match call(run, [map, key as u64, value as u64, arg, 0]) {
        Ok(r0) => r0 == 0,
        Err(error) => {
            failed = Some(error);
            false
        }
    };
    // SAFETY: by contract; the slot is the run's.
    let visited = unsafe { map_ops::for_each(map as *const MapHeader, flags, slot, &mut visit) };
    match failed {
        Some(error) => Err(error),
        None => Ok(visited as u64),
    }
}

/// What the calls that a helper makes are checked for: what the program's own are, as its compiler was told
/// ([`LowerOptions`]), and nothing else. The configuration does not say it: a program that is not proven to end counts
/// under any.
pub(crate) trait Checked {
    /// Counts against the run's budget.
    const BUDGET: bool;
    /// Ends an interrupted run.
    const INTERRUPT: bool;
}

/// [`Checked`] by two bits, the budget's in the lower.
enum By<const BITS: u8> {}

impl<const BITS: u8> Checked for By<BITS> {
    const BUDGET: bool = BITS & 1 != 0;
    const INTERRUPT: bool = BITS & 2 != 0;
}

/// The function that emitted code compiled like this calls for the helper that calls back so; other helpers are the
/// same to all code.
pub(crate) fn calling_back(kind: CallbackKind, compiled: &LowerOptions) -> Shim {
    let of = |shims: [Shim; 4]| shims[usize::from(compiled.budget) | usize::from(compiled.interrupt) << 1];
    match kind {
        CallbackKind::Loop => of([bpf_loop::<By<0>>, bpf_loop::<By<1>>, bpf_loop::<By<2>>, bpf_loop::<By<3>>]),
        CallbackKind::ForEach => of([
            for_each_map_elem::<By<0>>,
            for_each_map_elem::<By<1>>,
            for_each_map_elem::<By<2>>,
            for_each_map_elem::<By<3>>,
        ]),
        CallbackKind::Drain => of([
            user_ringbuf_drain::<By<0>>,
            user_ringbuf_drain::<By<1>>,
            user_ringbuf_drain::<By<2>>,
            user_ringbuf_drain::<By<3>>,
        ]),
    }
}

/// A call made by a helper counts like one made by the program, and can be interrupted like one.
fn count_call<K: Checked>(run: &mut Run) -> Result<(), HelperError> {
    use core::sync::atomic::{AtomicU32, Ordering};
    let spent = K::BUDGET && {
        run.ctx.budget -= 1;
        run.ctx.budget < 0
    };
    // SAFETY: the field is aligned and lives; other threads store to it atomically.
    let interrupt = unsafe { AtomicU32::from_ptr(&raw mut run.ctx.interrupt) };
    let stop = if spent {
        StopCode::Budget
    // Relaxed: a flag that orders nothing else.
    } else if K::INTERRUPT && interrupt.load(Ordering::Relaxed) != 0 {
        StopCode::Interrupted
    } else {
        return Ok(());
    };
    run.ctx.stop_code = stop as u32;
    run.ctx.stop_insn = u32::MAX;
    run.ctx.stop_pc = 0;
    Err(HelperError::Stopped)
}

/// Calls emitted code from a helper of the same run. The call counts against the budget like one that the program
/// makes.
///
/// # Safety
/// `callback` must be the entry of a subprogram of the running program.
unsafe fn call_native<K: Checked>(run: &mut Run, callback: u64, args: [u64; 5]) -> Result<u64, HelperError> {
    count_call::<K>(run)?;
    let (exit_sp, exit_pc, exit_saved) = (run.ctx.exit_sp, run.ctx.exit_pc, run.ctx.exit_saved);
    // Not a pointer to the field: helpers called from there go back from it to the whole run.
    let ctx = core::ptr::from_mut(run).cast::<RunCtx>();
    // SAFETY: by contract; the run is this thread's.
    let r0 = unsafe { entry::enter(callback as *const u8, callback as *const u8, args, ctx) };
    (run.ctx.exit_sp, run.ctx.exit_pc, run.ctx.exit_saved) = (exit_sp, exit_pc, exit_saved);
    if run.ctx.stop_code == 0 { Ok(r0) } else { Err(HelperError::Stopped) }
}

/// `bpf_loop`.
///
/// # Safety
/// `callback` must be the entry of a subprogram of the running program; `ctx` the first field of a [`Run`].
unsafe extern "C" fn bpf_loop<K: Checked>(
    nr: u64,
    callback: u64,
    arg: u64,
    flags: u64,
    _: u64,
    ctx: *mut RunCtx,
) -> u64 {
    let result = {
        // SAFETY: by contract.
        let run = unsafe { &mut *ctx.cast::<Run>() };
        guarded(run, |run| {
            // SAFETY: by contract.
            run_loop(run, nr, arg, flags, &mut |run, args| unsafe { call_native::<K>(run, callback, args) })
        })
    };
    match result {
        Some(r0) => r0,
        // SAFETY: this frame holds nothing that needs dropping.
        None => unsafe { leave(ctx) },
    }
}

/// `bpf_for_each_map_elem`.
///
/// # Safety
/// As [`bpf_loop`]; `map` must be a live map.
unsafe extern "C" fn for_each_map_elem<K: Checked>(
    map: u64,
    callback: u64,
    arg: u64,
    flags: u64,
    _: u64,
    ctx: *mut RunCtx,
) -> u64 {
    let result = {
        // SAFETY: by contract.
        let run = unsafe { &mut *ctx.cast::<Run>() };
        guarded(run, |run| {
            // SAFETY: by contract.
            let mut call = |run: &mut Run, args| unsafe { call_native::<K>(run, callback, args) };
            // SAFETY: by contract.
            unsafe { run_for_each(run, map, arg, flags, &mut call) }
        })
    };
    match result {
        Some(r0) => r0,
        // SAFETY: this frame holds nothing that needs dropping.
        None => unsafe { leave(ctx) },
    }
}

/// `bpf_user_ringbuf_drain`.
///
/// # Safety
/// As [`bpf_loop`]; `map` must be a live map.
unsafe extern "C" fn user_ringbuf_drain<K: Checked>(
    map: u64,
    callback: u64,
    arg: u64,
    flags: u64,
    _: u64,
    ctx: *mut RunCtx,
) -> u64 {
    let result = {
        // SAFETY: by contract.
        let run = unsafe { &mut *ctx.cast::<Run>() };
        guarded(run, |run| {
            // SAFETY: by contract.
            let mut call = |run: &mut Run, args| unsafe { call_native::<K>(run, callback, args) };
            // SAFETY: by contract.
            unsafe { run_drain(run, map, arg, flags, &mut call) }
        })
    };
    match result {
        Some(r0) => r0,
        // SAFETY: this frame holds nothing that needs dropping.
        None => unsafe { leave(ctx) },
    }
}

#[cfg(test)]
mod tests {
    use super::{SHIPPED, format_printk};
    use crate::call::helpers::packet::is_packet_helper;
    use bpf_uapi::Helper;
    use bpf_verifier::Helpers;

    /// A helper is its function, its prototype and its line in docs/helpers.md: all three or none.
    #[test]
    fn helpers_have_function_prototype_and_documentation() {
        let text = include_str!("../../../../../docs/helpers.md");
        let prototypes = Helpers::shipped();
        for helper in Helper::ALL.iter().copied() {
            // Emitted code and the interpreter jump; there is no function to call.
            let function = helper == Helper::TailCall
                || is_packet_helper(helper)
                || SHIPPED.iter().any(|shipped| shipped.0 == helper);
            let name = helper.name();
            assert_eq!(text.contains(&format!("`{name}`")), function, "{name} in docs/helpers.md, and its function");
            assert!(!function || prototypes.get(helper.id()).is_some(), "{name} has no prototype");
        }
    }

    #[test]
    fn printk_formats_as_the_kernel() {
        let format = |fmt: &str, args: &[u64]| format_printk(fmt.as_bytes(), args);
        assert_eq!(format("a %d b %u\n\0tail", &[-1i32 as u64, 7]), Some("a -1 b 7\n".into()));
        assert_eq!(format("%lld|%llx|%p", &[u64::MAX, 255, 1]), Some("-1|ff|0000000000000001".into()));
        assert_eq!(format("%5d|%-5d|%05d", &[42, 42, -42i64 as u64]), Some("   42|42   |-0042".into()));
        assert_eq!(format("%hhu %c %%", &[0x1ff, 65]), Some("255 A %".into()));
        assert_eq!(format("%s", &[1]), None);
        assert_eq!(format("%d %d %d %d", &[1, 2, 3]), None);
        assert_eq!(format("%", &[1]), None);
    }
}
