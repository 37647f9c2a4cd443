//! The formats of `bpf_trace_printk`, `bpf_trace_vprintk` and `bpf_snprintf`.
//!
//! Problem: `%s` and `%pI4` read memory by a number, and a number is no proof of memory. Approach: each value comes
//! with the facts that the verifier has proven at that call ([`Known`]): that it is a pointer on every path, or null,
//! and the number of bytes readable there. Unproven memory is not read: the output is then the kernel's for an
//! unreadable address, nothing or zeros.
//!
//! An address itself is never printed, because a program may read the text: `%p` of an address prints a hash of it that
//! is keyed for this process.
//!
//! Source: `bpf_bprintf_prepare` in `kernel/bpf/helpers.c`, `lib/vsprintf.c` (Linux 6.18).

use core::hash::BuildHasher;
use std::hash::RandomState;
use std::sync::LazyLock;

/// Bytes that are readable behind a value; `None` for a number.
pub(super) type Known = Option<u32>;

/// The longest string (Linux: `MAX_BPRINTF_BUF`, zero byte included).
const MAX_TEXT: u32 = 1023;

/// Flags and width of one value.
#[derive(Clone, Copy, Default)]
struct Layout {
    zero: bool,
    left: bool,
    plus: bool,
    space: bool,
    width: usize,
}

/// Widths beyond this mean nothing, and would cost time (the kernel's field is as wide as it takes).
const MAX_WIDTH: usize = 1024;

/// The text, or `None` where the kernel refuses the format. `fmt` ends before its zero byte.
///
/// # Safety
/// Each of `args` whose `known` is so many bytes must be 0 or readable for as many.
pub(super) unsafe fn format(fmt: &[u8], args: &[u64], known: &[Known]) -> Option<Vec<u8>> {
    let printable = |b: &u8| b.is_ascii_graphic() || *b == b' ' || is_space(*b);
    if !fmt.iter().all(printable) {
        return None;
    }
    let mut out = Vec::with_capacity(fmt.len() + 16);
    let mut values = args.iter().copied().zip(known.iter().copied().chain(core::iter::repeat(None)));
    let mut rest = fmt;
    while let [first, after @ ..] = rest {
        rest = after;
        if *first != b'%' {
            out.push(*first);
            continue;
        }
        if let [b'%', after @ ..] = rest {
            out.push(b'%');
            rest = after;
            continue;
        }
        let (value, known) = values.next()?;
        let mut layout = Layout::default();
        while let [flag @ (b'0' | b'+' | b'-' | b' '), after @ ..] = rest {
            match flag {
                b'0' => layout.zero = true,
                b'+' => layout.plus = true,
                b'-' => layout.left = true,
                _space => layout.space = true,
            }
            rest = after;
        }
        while let [digit @ b'0'..=b'9', after @ ..] = rest {
            layout.width = (layout.width * 10 + usize::from(digit - b'0')).min(MAX_WIDTH);
            rest = after;
        }
        // SAFETY: the caller's promise, of this value.
        rest = unsafe { conversion(rest, value, known, layout, &mut out) }?;
    }
    Some(out)
}

fn is_space(byte: u8) -> bool {
    matches!(byte, 9..=13 | b' ')
}

/// Whether the conversion ends here.
fn ends(rest: &[u8]) -> bool {
    rest.first().is_none_or(|byte| is_space(*byte) || byte.is_ascii_punctuation())
}

/// Formats one value by the conversion that `rest` begins with. Returns the format behind the conversion.
///
/// # Safety
/// `value` must be 0 or readable for `known` bytes.
unsafe fn conversion<'f>(
    rest: &'f [u8],
    value: u64,
    known: Known,
    layout: Layout,
    out: &mut Vec<u8>,
) -> Option<&'f [u8]> {
    match rest {
        [b'p', b'u', b's', rest @ ..] => {
            if !ends(rest) {
                return None;
            }
            // A user-space string: there is no such memory here, and in the kernel no pointer of these programs is one.
            pad(out, &[], layout);
            Some(rest)
        }
        [b'p', b'k', b's', rest @ ..] | [b's', rest @ ..] => {
            if !ends(rest) {
                return None;
            }
            // SAFETY: the caller's promise.
            pad(out, &unsafe { text(value, known) }, layout);
            Some(rest)
        }
        [b'p', order @ (b'i' | b'I'), b'4', rest @ ..] => {
            // SAFETY: the caller's promise.
            let [a, b, c, d] = unsafe { bytes::<4>(value, known) };
            let text = match order {
                b'I' => format!("{a}.{b}.{c}.{d}"),
                _padded => format!("{a:03}.{b:03}.{c:03}.{d:03}"),
            };
            // As wide as it is, whatever the format says.
            out.extend(text.bytes());
            Some(rest)
        }
        [b'p', order @ (b'i' | b'I'), b'6', rest @ ..] => {
            // SAFETY: the caller's promise.
            let address = unsafe { bytes::<16>(value, known) };
            let words: Vec<String> =
                address.as_chunks::<2>().0.iter().map(|[a, b]| format!("{a:02x}{b:02x}")).collect();
            out.extend(words.join(if *order == b'I' { ":" } else { "" }).bytes());
            Some(rest)
        }
        [b'p', b'K' | b'x' | b's' | b'S' | b'B', rest @ ..] => {
            pad(out, pointer(value, known).as_bytes(), layout);
            Some(rest)
        }
        [b'p', rest @ ..] => {
            if !ends(rest) {
                return None;
            }
            pad(out, pointer(value, known).as_bytes(), layout);
            Some(rest)
        }
        [b'c', rest @ ..] => {
            pad(out, &[(value & 0xff) as u8], layout);
            Some(rest)
        }
        _ => {
            let (long, rest) = match rest {
                [b'l', b'l', rest @ ..] | [b'l', rest @ ..] => (true, rest),
                rest => (false, rest),
            };
            let [conversion, rest @ ..] = rest else { return None };
            // An address is printed as its hash.
            let value = if known.is_some() { disguised(value) } else { value };
            #[expect(clippy::cast_possible_truncation, reason = "that is what a format without a length asks for")]
            let (unsigned, signed) =
                if long { (value, value.cast_signed()) } else { ((value as u32).into(), (value as i32).into()) };
            let (digits, sign) = match conversion {
                b'd' | b'i' => {
                    let sign = match (signed < 0, layout.plus, layout.space) {
                        (true, _, _) => "-",
                        (false, true, _) => "+",
                        (false, false, true) => " ",
                        (false, false, false) => "",
                    };
                    (signed.unsigned_abs().to_string(), sign)
                }
                b'u' => (unsigned.to_string(), ""),
                b'x' => (format!("{unsigned:x}"), ""),
                b'X' => (format!("{unsigned:X}"), ""),
                _other => return None,
            };
            number(out, sign, &digits, layout);
            Some(rest)
        }
    }
}

/// Digits behind their sign: zeros come between the two, spaces before or after both.
fn number(out: &mut Vec<u8>, sign: &str, digits: &str, layout: Layout) {
    if layout.zero && !layout.left {
        out.extend(sign.bytes());
        out.extend(core::iter::repeat_n(b'0', layout.width.saturating_sub(sign.len() + digits.len())));
        out.extend(digits.bytes());
    } else {
        pad(out, [sign, digits].concat().as_bytes(), layout);
    }
}

fn pad(out: &mut Vec<u8>, text: &[u8], layout: Layout) {
    let spaces = core::iter::repeat_n(b' ', layout.width.saturating_sub(text.len()));
    if layout.left {
        out.extend(text);
        out.extend(spaces);
    } else {
        out.extend(spaces);
        out.extend(text);
    }
}

/// `%p`: a number is shown as it is, an address as the number that disguises it.
fn pointer(value: u64, known: Known) -> String {
    let shown = if known.is_some() { disguised(value) } else { value };
    format!("{shown:016x}")
}

/// The number that stands for an address, the same for the same; null for null.
fn disguised(address: u64) -> u64 {
    static KEY: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    // 32 bits, as the kernel's.
    if address == 0 { 0 } else { KEY.hash_one(address) >> 32 }
}

/// The bytes at `at`; zeros if they are not known to be readable.
///
/// # Safety
/// `at` must be 0 or readable for `known` bytes.
unsafe fn bytes<const N: usize>(at: u64, known: Known) -> [u8; N] {
    let mut out = [0; N];
    if at != 0 && known.is_some_and(|known| known as usize >= N) {
        for (i, to) in out.iter_mut().enumerate() {
            // SAFETY: `i` is below the bytes that are readable; volatile, because others may change a map's value.
            *to = unsafe { core::ptr::read_volatile((at as *const u8).wrapping_add(i)) };
        }
    }
    out
}

/// The text at `at`, up to a zero byte or as far as is known to be readable.
///
/// # Safety
/// As [`bytes`].
unsafe fn text(at: u64, known: Known) -> Vec<u8> {
    let len = if at == 0 { 0 } else { known.unwrap_or(0).min(MAX_TEXT) };
    let byte = |i: u32| {
        // SAFETY: `i` is below the bytes that are readable; volatile, because others may change a map's value.
        unsafe { core::ptr::read_volatile((at as *const u8).wrapping_add(i as usize)) }
    };
    (0..len).map(byte).take_while(|byte| *byte != 0).collect()
}

#[cfg(test)]
mod tests {
    use super::format;

    fn numbers(fmt: &str, args: &[u64]) -> Option<String> {
        // SAFETY: nothing is known of any value.
        unsafe { format(fmt.as_bytes(), args, &[]) }.map(|text| String::from_utf8(text).unwrap())
    }

    #[test]
    fn numbers_are_printed_as_the_kernel_prints_them() {
        assert_eq!(numbers("a %d b %u\n", &[-1i32 as u64, 7]), Some("a -1 b 7\n".into()));
        assert_eq!(numbers("%lld|%llx|%p", &[u64::MAX, 255, 1]), Some("-1|ff|0000000000000001".into()));
        assert_eq!(
            numbers("%5d|%-5d|%05d|%+d|% d", &[42, 42, -42i64 as u64, 7, 7]),
            Some("   42|42   |-0042|+7| 7".into())
        );
        assert_eq!(numbers("%c%c %%", &[65, 0x142]), Some("AB %".into()));
        for refused in [
            "%d %d", "%", "%l", "%hd", "%o", "%#x", "%.3d", "%zu", "%f", "%n", "%pM", "%pI5", "%pa", "%sx", "\u{1}",
            "é",
        ] {
            assert_eq!(numbers(refused, &[1]), None, "{refused}");
        }
        // Unreadable addresses.
        assert_eq!(numbers("[%s][%5s][%pI4]", &[1, 0, 8]), Some("[][     ][0.0.0.0]".into()));
    }

    #[test]
    fn memory_is_read_as_far_as_is_known() {
        let bytes = *b"\x0a\x00\x01\xff\xfe\x80\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01hello";
        let at = (&raw const bytes).expose_provenance() as u64;
        let known = |fmt: &str, off: u64, known: u32| {
            // SAFETY: fewer bytes than there are from the offset.
            let text = unsafe { format(fmt.as_bytes(), &[at + off], &[Some(known)]) };
            String::from_utf8(text.unwrap()).unwrap()
        };
        assert_eq!(known("%pI4 %%", 0, 4), "10.0.1.255 %");
        assert_eq!(known("%pi4", 0, 4), "010.000.001.255");
        assert_eq!(known("%pI4", 0, 3), "0.0.0.0");
        assert_eq!(known("%pI6", 0, 16), "0a00:01ff:fe80:0000:0000:0000:0000:0001");
        assert_eq!(known("%pi6", 0, 16), "0a0001fffe8000000000000000000001");
        assert_eq!(
            [known("%s", 16, 5), known("%s", 16, 2), known("%s", 0, 16), known("%-6s|", 16, 4)].join("/"),
            "hello/he/\n/hell  |"
        );
        assert_eq!(known("%pks", 16, 5), "hello");
        let shown = known("%px", 0, 0);
        assert!(shown.len() == 16 && shown != format!("{at:016x}") && shown == known("%p", 0, 0), "{shown}");
        assert_ne!(known("%llx", 0, 0), format!("{at:x}"));
    }
}
