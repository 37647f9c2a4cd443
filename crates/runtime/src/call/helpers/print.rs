//! Text from formats: `bpf_trace_printk`, `bpf_trace_vprintk` and `bpf_snprintf`.
//!
//! What is printed goes to the host as it is, a text a call. Formats that follow an address (`%s`, `%pI4`) are refused:
//! a number in a register or an array is no proof of memory.
//!
//! Source: `bpf_bprintf_prepare` in `kernel/bpf/helpers.c`, `kernel/trace/bpf_trace.c` (Linux 6.18).

use crate::abi::run::Run;
use crate::call::{guarded, leave};
use bpf_jit_code::RunCtx;
use bpf_maps::Errno;

/// `bpf_trace_printk(fmt, fmt_size, ...)`: three arguments at most, as in the kernel. Returns the bytes written or
/// `-EINVAL`.
///
/// # Safety
/// `fmt` must be valid for `size` bytes; `ctx` the first field of a [`Run`].
pub(super) unsafe extern "C" fn trace_printk(fmt: u64, size: u64, a: u64, b: u64, c: u64, ctx: *mut RunCtx) -> u64 {
    // SAFETY: the program was proven to pass `size` readable bytes at `fmt`. Copied at once, because the memory may be
    // shared.
    let fmt = unsafe { core::slice::from_raw_parts(fmt as *const u8, crate::num::index(size)) }.to_vec();
    // SAFETY: `ctx` is as the caller says.
    unsafe { print_text(fmt, vec![a, b, c], ctx) }
}

/// `bpf_trace_vprintk(fmt, fmt_size, data, data_len)`: up to twelve arguments, eight bytes each.
///
/// # Safety
/// `fmt` must be valid for `size` bytes, `data` for `len`; `ctx` the first field of a [`Run`].
pub(super) unsafe extern "C" fn trace_vprintk(
    fmt: u64,
    size: u64,
    data: u64,
    len: u64,
    _: u64,
    ctx: *mut RunCtx,
) -> u64 {
    // SAFETY: the program was proven to pass `size` readable bytes at `fmt` and `len` at `data`. Copied at once,
    // because the memory may be shared.
    let fmt = unsafe { copied(fmt, size) };
    // SAFETY: the caller promises so many readable bytes.
    let Some(args) = (unsafe { arguments(data, len) }) else {
        return Errno::EINVAL.as_ret() as u64;
    };
    // SAFETY: `ctx` is as the caller says.
    unsafe { print_text(fmt, args, ctx) }
}

/// `bpf_snprintf(str, str_size, fmt, data, data_len)`: the length of the text and its zero byte, which `str` has as
/// much of as fits.
///
/// # Safety
/// `str` must be writable for `size` bytes, `fmt` readable up to a zero byte, and `data` for `len` bytes.
pub(super) unsafe extern "C" fn snprintf(str: u64, size: u64, fmt: u64, data: u64, len: u64, ctx: *mut RunCtx) -> u64 {
    let result = {
        // SAFETY: the hidden argument is the first field of a `Run`; emitted code waits for this call.
        let run = unsafe { &mut *ctx.cast::<Run>() };
        guarded(run, |_| {
            // SAFETY: the program was proven to pass constant data with a zero byte.
            let fmt = unsafe { core::ffi::CStr::from_ptr(fmt as *const core::ffi::c_char) }.to_bytes().to_vec();
            // SAFETY: the program was proven to pass `len` readable bytes. Copied before `str` is written, which may
            // overlap them.
            let text = unsafe { arguments(data, len) }.and_then(|args| format_printk(&fmt, &args));
            let size = crate::num::index(size);
            // SAFETY: the program was proven to pass `size` writable bytes; all are, whatever fits.
            unsafe { core::ptr::write_bytes(str as *mut u8, 0, size) };
            let Some(text) = text else { return Ok(Errno::EINVAL.as_ret() as u64) };
            let fits = text.len().min(size.saturating_sub(1));
            // SAFETY: at most `size` bytes, as before.
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
    // SAFETY: the caller's promise; nothing is copied where there is nothing.
    unsafe { core::ptr::copy(at as *const u8, bytes.as_mut_ptr(), bytes.len()) };
    bytes
}

/// The arguments in an array (Linux: `MAX_BPRINTF_VARARGS`); `None` for too many, or part of one.
///
/// # Safety
/// As [`copied`].
unsafe fn arguments(data: u64, len: u64) -> Option<Vec<u64>> {
    const MAX: u64 = 12;
    if !len.is_multiple_of(8) || len > MAX * 8 || (data == 0 && len != 0) {
        return None;
    }
    // SAFETY: the caller's promise.
    let bytes = unsafe { copied(data, len) };
    Some(bytes.as_chunks().0.iter().map(|arg| u64::from_ne_bytes(*arg)).collect())
}

/// Gives the host the text. Its length, or `-EINVAL`.
///
/// # Safety
/// `ctx` must be the first field of a [`Run`], and the caller's frame hold nothing that needs dropping.
unsafe fn print_text(fmt: Vec<u8>, args: Vec<u64>, ctx: *mut RunCtx) -> u64 {
    let result = {
        // SAFETY: `ctx` is the first field of the `Run` that this thread is in, by a pointer to all of it; emitted
        // code, which has the only other one, waits for this call.
        let run = unsafe { &mut *ctx.cast::<Run>() };
        guarded(run, |run| {
            let Some(text) = format_printk(&fmt, &args) else {
                return Ok(Errno::EINVAL.as_ret() as u64);
            };
            // SAFETY: the engine outlives its runs.
            let config = unsafe { &*run.config };
            if let Some(print) = &config.print {
                print(&text);
            }
            Ok(text.len() as u64)
        })
    };
    drop((fmt, args));
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

#[cfg(test)]
mod tests {
    use super::format_printk;

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
