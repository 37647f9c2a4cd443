//! `bpf_trace_printk`.

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
    let result = {
        // SAFETY: `ctx` is the first field of the `Run` that this thread is in, by a pointer to all of it; emitted
        // code, which has the only other one, waits for this call.
        let run = unsafe { &mut *ctx.cast::<Run>() };
        guarded(run, |run| {
            let Some(text) = format_printk(&fmt, &[a, b, c]) else {
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
