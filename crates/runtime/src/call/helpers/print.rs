//! Text from formats: `bpf_trace_printk`, `bpf_trace_vprintk` and `bpf_snprintf`.
//!
//! The host receives one text for each call. Each function exists twice: as the helper, which treats all values as
//! numbers, and for a call site ([`at_site`]), with the facts that the verifier has proven there about values that are
//! pointers ([`super::format`]).
//!
//! Source: `bpf_bprintf_prepare` in `kernel/bpf/helpers.c`, `kernel/trace/bpf_trace.c` (Linux 6.18).

use crate::abi::run::{Printed, Run};
use crate::call::helpers::format::{Known, format};
use crate::call::{HostFn, Shim, guarded, leave};
use crate::engine::usage::Payer;
use bpf_jit_code::RunCtx;
use bpf_maps::Errno;
use bpf_uapi::Helper;
use std::sync::Arc;

/// The facts about the values of a call.
#[derive(Debug, Default)]
pub(crate) struct Site {
    known: [Known; MAX_VALUES],
    /// The program that prints; `None` for functions that do not print.
    from: Option<Arc<Printer>>,
}

/// A program that prints.
#[derive(Debug)]
struct Printer {
    program: String,
    account: Option<String>,
    instance: Option<Arc<str>>,
}

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

/// The environment of the helpers that print, for a program of this name.
pub(crate) fn printer(program: &str) -> Arc<Site> {
    Site::of(&[], Some(Arc::new(Printer { program: program.to_owned(), account: None, instance: None })))
}

/// Whether a function prints, and so names the calling program.
pub(crate) fn prints(func: &HostFn) -> bool {
    func.env.as_deref().and_then(|env| env.downcast_ref::<Site>()).is_some_and(|site| site.from.is_some())
}

/// The function `func` for an instance of the program that is counted for this payer; `None` if it does not print.
pub(crate) fn printing_for(func: &HostFn, payer: Payer<'_>) -> Option<HostFn> {
    let site = func.env.as_deref()?.downcast_ref::<Site>()?;
    let account = payer.account.map(|account| account.name().to_owned());
    let program = site.from.as_ref()?.program.clone();
    let from = Printer { program, account, instance: payer.instance.cloned() };
    Some(HostFn { env: Some(Site::of(&site.known, Some(Arc::new(from)))), ..func.clone() })
}

/// A helper's function for the program with this environment, if it prints.
pub(crate) fn printing(helper: Helper, printer: &Arc<Site>) -> Option<HostFn> {
    let shim = match helper {
        Helper::TracePrintk | Helper::TraceVprintk => shim(helper)?,
        _other => return None,
    };
    Some(HostFn { shim, env: Some(Arc::<Site>::clone(printer)), needs_ctx: true })
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
            // SAFETY: the engine outlives its runs.
            let config = unsafe { &*run.config };
            if let Some(print) = &config.print {
                let from = site.and_then(|site| site.from.as_deref());
                print(&Printed {
                    text: &String::from_utf8_lossy(&text),
                    program: from.map_or("", |from| &from.program),
                    account: from.and_then(|from| from.account.as_deref()),
                    instance: from.and_then(|from| from.instance.as_deref()),
                    slot: run.ctx.slot,
                });
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
