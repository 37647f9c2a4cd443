//! Text of programs: `bpf_trace_printk`, `bpf_trace_vprintk` and `bpf_snprintf` from formats, and the function of
//! [`crate::Linker::log`].
//!
//! The host receives one line for each call, as many in a second as [`crate::Config::print_limit`] allows a program.
//! Each function of a format exists twice: as the helper, which treats all values as numbers, and for a call site
//! ([`at_site`]), with the facts that the verifier has proven there about values that are pointers ([`super::format`]).
//!
//! Source: `bpf_bprintf_prepare` in `kernel/bpf/helpers.c`, `kernel/trace/bpf_trace.c` (Linux 6.18).

use crate::abi::run::{Printed, Run};
use crate::call::helpers::format::{Known, format};
use crate::call::{HostArg, HostFn, SharedBytes, Shim, guarded, leave};
use crate::engine::metrics::Counters;
use crate::engine::trace;
use crate::engine::usage::Payer;
use crate::num;
use bpf_jit_code::RunCtx;
use bpf_maps::Errno;
use bpf_uapi::Helper;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, OnceLock};
use std::time::Instant;

/// The facts about the values of a call.
#[derive(Debug, Default)]
pub(crate) struct Site {
    known: [Known; MAX_VALUES],
    /// The program that prints; `None` for functions that do not print.
    from: Option<Arc<Printer>>,
}

/// A program that prints, for all its functions and call sites that do.
#[derive(Debug, Default)]
pub(crate) struct Printer {
    program: String,
    account: Option<String>,
    instance: Option<Arc<str>>,
    lines: Lines,
    /// The program's counters, if its engine counts.
    counters: OnceLock<Arc<Counters>>,
}

/// The lines that a program prints in a second.
#[derive(Debug, Default)]
struct Lines {
    limit: Option<u32>,
    /// The second since the first line of the process, and in the low half the lines of that second.
    printed: AtomicU64,
    /// The lines dropped since the last one that was not.
    dropped: AtomicU64,
}

impl Lines {
    /// Takes one of the lines of this second. Returns how many were dropped before it, or `None` to drop this one.
    fn take(&self, second: u32) -> Option<u64> {
        let Some(limit) = self.limit else { return Some(0) };
        // Only a later second begins anew: a thread that was preempted behind `second()` counts to the stored one.
        let next = |word: u64| match second.wrapping_sub(num::low(word >> 32)).cast_signed() > 0 {
            false => (num::low(word) < limit).then_some(word + 1),
            true => (limit > 0).then_some(u64::from(second) << 32 | 1),
        };
        // Relaxed: these words guard no other memory.
        if self.printed.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).is_ok() {
            return Some(self.dropped.swap(0, Ordering::Relaxed));
        }
        self.dropped.fetch_add(1, Ordering::Relaxed);
        None
    }
}

/// Returns the second since the first call.
fn second() -> u32 {
    static FIRST: LazyLock<Instant> = LazyLock::new(Instant::now);
    // The count begins anew after 136 years.
    num::low(FIRST.elapsed().as_secs())
}

/// The longest text of [`log_line`] in bytes; the rest is cut off. Source: `MAX_BPRINTF_BUF` in `kernel/bpf/helpers.c`.
const MAX_TEXT: u64 = 1024;

/// Values a call can have (Linux: `MAX_BPRINTF_VARARGS`).
const MAX_VALUES: usize = 12;

impl Site {
    /// A call of whose values so many bytes are known to be readable.
    pub(super) fn new(known: &[Known]) -> Arc<Site> {
        Site::of(known, None)
    }

    fn of(known: &[Known], from: Option<Arc<Printer>>) -> Arc<Site> {
        let mut site = Site { from, ..Site::default() };
        site.known.iter_mut().zip(known).for_each(|(to, known)| *to = *known);
        Arc::new(site)
    }
}

/// The function for one call site of one of these helpers, where `known` gives the readable bytes behind each value;
/// `of`: the helper as bound for the whole program.
pub(crate) fn at_site(helper: Helper, known: &[Known], of: &HostFn) -> Option<HostFn> {
    let shim = shim(helper)?;
    let whole = of.env.as_deref().and_then(|env| env.downcast_ref::<Site>());
    let from = whole.and_then(|site| site.from.clone());
    Some(HostFn { shim, env: Some(Site::of(known, from)), needs_ctx: true })
}

impl Printer {
    /// The program of this name, which may print so many lines a second.
    pub(crate) fn new(program: &str, limit: Option<u32>) -> Arc<Printer> {
        let lines = Lines { limit, ..Lines::default() };
        Arc::new(Printer { program: program.to_owned(), lines, ..Printer::default() })
    }

    /// This program in an instance that is counted for this payer.
    pub(crate) fn for_payer(&self, payer: Payer<'_>) -> Arc<Printer> {
        Arc::new(Printer {
            program: self.program.clone(),
            account: payer.account.map(|account| account.name().to_owned()),
            instance: payer.instance.cloned(),
            lines: Lines { limit: self.lines.limit, ..Lines::default() },
            counters: OnceLock::new(),
        })
    }

    /// Sets the counters of the program's dropped lines. Programs that share a printer have the same names, and so the
    /// same counters.
    pub(crate) fn count_in(&self, counters: &Arc<Counters>) {
        let _: Result<(), _> = self.counters.set(Arc::clone(counters));
    }
}

/// The function behind [`crate::Linker::log`], which is bound to a program by [`printing`].
pub(crate) fn log() -> HostFn {
    HostFn { shim: log_line, env: Some(Site::of(&[], Some(Arc::default()))), needs_ctx: true }
}

/// The program that a function names, if it prints.
pub(crate) fn printer_of(func: &HostFn) -> Option<&Arc<Printer>> {
    func.env.as_deref()?.downcast_ref::<Site>()?.from.as_ref()
}

/// The function `func` with this program in place of the one that it names; `None` if it does not print.
pub(crate) fn printing(func: &HostFn, printer: &Arc<Printer>) -> Option<HostFn> {
    let site = func.env.as_deref()?.downcast_ref::<Site>().filter(|site| site.from.is_some())?;
    Some(HostFn { env: Some(Site::of(&site.known, Some(Arc::clone(printer)))), ..func.clone() })
}

/// Whether a helper prints.
pub(crate) fn is_printing(helper: Helper) -> bool {
    matches!(helper, Helper::TracePrintk | Helper::TraceVprintk)
}

/// The function of a helper that prints, for this program.
pub(crate) fn helper_printing(helper: Helper, printer: &Arc<Printer>) -> Option<HostFn> {
    let shim = shim(helper)?;
    Some(HostFn { shim, env: Some(Site::of(&[], Some(Arc::clone(printer)))), needs_ctx: true })
}

/// The function of a helper that has a [`Site`].
fn shim(helper: Helper) -> Option<Shim> {
    match helper {
        Helper::TracePrintk => Some(trace_printk::<true>),
        Helper::TraceVprintk => Some(trace_vprintk::<true>),
        Helper::Snprintf => Some(snprintf::<true>),
        _other => None,
    }
}

/// Returns the site of the running call; `None` for the helper outside of a known site.
///
/// # Safety
/// `ctx` must be the running program's hidden argument. If `SITE`, the running function's environment must be a
/// [`Site`]. The result may be used as long as the program runs.
unsafe fn site<'a, const SITE: bool>(ctx: *mut RunCtx) -> Option<&'a Site> {
    if !SITE {
        return None;
    }
    // SAFETY: the caller's promise.
    let site = unsafe { (*ctx).host_env } as *const Site;
    // SAFETY: the call sequence has put the function's environment there, a `Site` that the program keeps.
    Some(unsafe { &*site })
}

/// Returns what is known of the values at the running call's site; nothing for the helper outside of a known site.
///
/// # Safety
/// As for [`site`].
pub(super) unsafe fn known<const SITE: bool>(ctx: *mut RunCtx) -> [Known; MAX_VALUES] {
    // SAFETY: the caller's promise.
    unsafe { site::<SITE>(ctx) }.map_or([None; MAX_VALUES], |site| site.known)
}

/// `bpf_trace_printk(fmt, fmt_size, ...)`: three arguments at most, as in the kernel. Returns the bytes written or
/// `-EINVAL`.
///
/// # Safety
/// `fmt` must be valid for `size` bytes; `ctx` the first field of a [`Run`], with a [`Site`] if `SITE`, of which the
/// other arguments are as it says.
pub(super) unsafe extern "C" fn trace_printk<const SITE: bool>(
    fmt: u64,
    size: u64,
    a: u64,
    b: u64,
    c: u64,
    ctx: *mut RunCtx,
) -> u64 {
    // SAFETY: the caller's promise.
    let site = unsafe { site::<SITE>(ctx) };
    // SAFETY: the program was proven to pass `size` readable bytes at `fmt`, and values as the site says.
    unsafe { print_text([fmt, size], [a, b, c].as_ptr() as u64, 24, site, ctx) }
}

/// `bpf_trace_vprintk(fmt, fmt_size, data, data_len)`: up to twelve arguments, eight bytes each.
///
/// # Safety
/// As [`trace_printk`], `data` valid for `len` bytes.
pub(super) unsafe extern "C" fn trace_vprintk<const SITE: bool>(
    fmt: u64,
    size: u64,
    data: u64,
    len: u64,
    _: u64,
    ctx: *mut RunCtx,
) -> u64 {
    // SAFETY: the caller's promise.
    let site = unsafe { site::<SITE>(ctx) };
    // SAFETY: the program was proven to pass `size` readable bytes at `fmt`, `len` at `data`, and values as the site
    // says.
    unsafe { print_text([fmt, size], data, len, site, ctx) }
}

/// `bpf_snprintf(str, str_size, fmt, data, data_len)`: the length of the text and its zero byte, which `str` has as
/// much of as fits.
///
/// # Safety
/// `str` must be writable for `size` bytes, `fmt` readable up to a zero byte; the rest as [`trace_vprintk`].
pub(super) unsafe extern "C" fn snprintf<const SITE: bool>(
    str: u64,
    size: u64,
    fmt: u64,
    data: u64,
    len: u64,
    ctx: *mut RunCtx,
) -> u64 {
    let result = {
        // SAFETY: the caller's promise.
        let known = unsafe { known::<SITE>(ctx) };
        // SAFETY: the hidden argument is the first field of a `Run`; emitted code waits for this call.
        let run = unsafe { &mut *ctx.cast::<Run>() };
        guarded(run, |_| {
            // SAFETY: the program was proven to pass constant data with a zero byte.
            let fmt = unsafe { core::ffi::CStr::from_ptr(fmt as *const core::ffi::c_char) }.to_bytes().to_vec();
            // SAFETY: the program was proven to pass `len` readable bytes. Copied before `str` is written, which may
            // overlap them.
            let args = unsafe { arguments(data, len) };
            // SAFETY: the values have the kinds that the call site records, or nothing is known of them.
            let text = args.and_then(|args| unsafe { format(&fmt, &args, &known) });
            let size = crate::num::index(size);
            // SAFETY: the program was proven to pass `size` writable bytes. All are written, so that none keeps old
            // contents.
            unsafe { core::ptr::write_bytes(str as *mut u8, 0, size) };
            let Some(text) = text else { return Ok(Errno::EINVAL.as_ret() as u64) };
            let fits = text.len().min(size.saturating_sub(1));
            // SAFETY: the program was proven to pass `size` writable bytes, and no more are written.
            unsafe { core::ptr::copy_nonoverlapping(text.as_ptr(), str as *mut u8, fits) };
            Ok(text.len() as u64 + 1)
        })
    };
    match result {
        Some(r0) => r0,
        // SAFETY: this frame holds nothing that needs dropping.
        None => unsafe { leave(ctx) },
    }
}

/// # Safety
/// `at` must be readable for `len` bytes; it may be null if that is 0.
unsafe fn copied(at: u64, len: u64) -> Vec<u8> {
    let mut bytes = vec![0; crate::num::index(len)];
    // SAFETY: the caller promises readable bytes; a length of 0 copies none.
    unsafe { core::ptr::copy(at as *const u8, bytes.as_mut_ptr(), bytes.len()) };
    bytes
}

/// The arguments in an array (Linux: `MAX_BPRINTF_VARARGS`); `None` for too many, or part of one.
///
/// # Safety
/// As [`copied`].
unsafe fn arguments(data: u64, len: u64) -> Option<Vec<u64>> {
    if !len.is_multiple_of(8) || len > MAX_VALUES as u64 * 8 || (data == 0 && len != 0) {
        return None;
    }
    // SAFETY: the caller's promise.
    let bytes = unsafe { copied(data, len) };
    Some(bytes.as_chunks().0.iter().map(|arg| u64::from_ne_bytes(*arg)).collect())
}

/// Gives the host the text. Its length, or `-EINVAL`.
///
/// # Safety
/// `ctx` must be the first field of a [`Run`]; the format's bytes and `len` bytes at `data` readable, and the values in
/// them as `site` says.
unsafe fn print_text([fmt, size]: [u64; 2], data: u64, len: u64, site: Option<&Site>, ctx: *mut RunCtx) -> u64 {
    let result = {
        // SAFETY: `ctx` is the first field of the `Run` that this thread is in, by a pointer to all of it; emitted
        // code, which has the only other one, waits for this call.
        let run = unsafe { &mut *ctx.cast::<Run>() };
        guarded(run, |run| {
            // SAFETY: readable, says the caller. Copied at once, because the memory may be shared.
            let fmt = unsafe { copied(fmt, size) };
            // SAFETY: the same of the values.
            let args = unsafe { arguments(data, len) };
            let fmt = fmt.split(|b| *b == 0).next().unwrap_or(&[]);
            let known = site.map_or([None; MAX_VALUES], |site| site.known);
            // SAFETY: the caller's promise.
            let Some(text) = args.and_then(|args| unsafe { format(fmt, &args, &known) }) else {
                return Ok(Errno::EINVAL.as_ret() as u64);
            };
            if let Some(from) = site.and_then(|site| site.from.as_deref()) {
                tell(run, from, None, &text);
            }
            Ok(text.len() as u64)
        })
    };
    match result {
        Some(r0) => r0,
        // SAFETY: this frame holds nothing that needs dropping any more.
        None => unsafe { leave(ctx) },
    }
}

/// Gives the host a line of this program, or drops it.
fn tell(run: &Run, from: &Printer, level: Option<u8>, text: &[u8]) {
    let Some(dropped) = from.lines.take(if from.lines.limit.is_some() { second() } else { 0 }) else {
        if let Some(counters) = from.counters.get() {
            counters.count_dropped_line();
        }
        return;
    };
    let line = Printed {
        text: &String::from_utf8_lossy(text),
        program: &from.program,
        account: from.account.as_deref(),
        instance: from.instance.as_deref(),
        slot: run.ctx.slot,
        dropped,
        level,
    };
    trace::printed(&line);
    // SAFETY: the engine outlives its runs.
    let config = unsafe { &*run.config };
    if let Some(print) = &config.print {
        print(&line);
    }
}

/// The function of [`crate::Linker::log`]: `void log(u32 level, const void *text, u64 len)`.
///
/// # Safety
/// `text` must be readable for `len` bytes; `ctx` the first field of a [`Run`], with a [`Site`].
unsafe extern "C" fn log_line(level: u64, text: u64, len: u64, _: u64, _: u64, ctx: *mut RunCtx) -> u64 {
    let result = {
        // SAFETY: the environment of this function is a `Site`.
        let site = unsafe { site::<true>(ctx) };
        // SAFETY: `ctx` is the first field of the `Run` that this thread is in, by a pointer to all of it; emitted
        // code waits for this call.
        let run = unsafe { &mut *ctx.cast::<Run>() };
        guarded(run, |run| {
            // SAFETY: the program was proven to pass `len` readable bytes, of which these are the first.
            let bytes = unsafe { SharedBytes::from_regs(&[text, len.min(MAX_TEXT)]) }.to_vec();
            let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
            let level = u8::try_from(num::low(level)).unwrap_or(7).min(7);
            if let Some(from) = site.and_then(|site| site.from.as_deref()) {
                tell(run, from, Some(level), text);
            }
            Ok(0)
        })
    };
    match result {
        Some(r0) => r0,
        // SAFETY: this frame holds nothing that needs dropping any more.
        None => unsafe { leave(ctx) },
    }
}
