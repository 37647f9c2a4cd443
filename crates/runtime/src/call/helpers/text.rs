//! The helpers on text: the kernel's, by the kernel's ids.
//!
//! Source: `kernel/bpf/helpers.c`, `lib/kstrtox.c` (Linux 6.18).

use crate::call::helpers::skb::{EINVAL, ret};
use crate::num::index;
use bpf_jit_code::RunCtx;
use bpf_uapi::Errno;

/// A number at the start of a text: whether it is negative, its magnitude, and the bytes that it takes.
struct Number {
    negative: bool,
    magnitude: u64,
    len: usize,
}

/// As the kernel's `__bpf_strtoull`, which looks at 63 digits at most.
fn parse(text: &[u8], flags: u64) -> Result<Number, Errno> {
    const ERANGE: Errno = Errno::ERANGE;
    const MOST: usize = 63;
    // The kernel's table of characters is Latin-1's: its spaces are these.
    let is_space = |byte: &u8| matches!(*byte, 9..=13 | b' ' | 0xa0);
    let mut base = match flags {
        0 | 8 | 10 | 16 => flags,
        _ => return Err(EINVAL),
    };
    let spaces = text.iter().take_while(|byte| is_space(byte)).count();
    let rest = &text[spaces..];
    let negative = rest.first() == Some(&b'-');
    let sign = usize::from(negative);
    let rest = &rest[sign..];
    if rest.is_empty() {
        return Err(EINVAL);
    }
    let rest = &rest[..rest.len().min(MOST)];
    let hex = matches!(rest, [b'0', b'x' | b'X', ..]);
    if base == 0 {
        base = match rest {
            [b'0', b'x' | b'X', digit, ..] if digit.is_ascii_hexdigit() => 16,
            [b'0', ..] => 8,
            _ => 10,
        };
    }
    let prefix = if base == 16 && hex { 2 } else { 0 };
    let (mut magnitude, mut digits, mut overflow) = (0u64, 0, false);
    for byte in &rest[prefix..] {
        let Some(digit) = char::from(*byte).to_digit(16).map(u64::from).filter(|digit| *digit < base) else { break };
        let (shifted, high) = magnitude.overflowing_mul(base);
        let (sum, carry) = shifted.overflowing_add(digit);
        (magnitude, overflow, digits) = (sum, overflow | high | carry, digits + 1);
    }
    match (digits, overflow) {
        (_, true) => Err(ERANGE),
        (0, false) => Err(EINVAL),
        (_, false) => Ok(Number { negative, magnitude, len: spaces + sign + prefix + digits }),
    }
}

/// Copies the text, because the memory may be shared: as much as a number can be behind spaces is looked at.
///
/// # Safety
/// `len` bytes must be readable at `at`.
unsafe fn parse_at(at: u64, len: u64, flags: u64) -> Result<Number, Errno> {
    let len = index(len);
    let byte = |i: usize| {
        // SAFETY: `i` is below `len`; volatile, because a map value may change meanwhile.
        unsafe { core::ptr::read_volatile((at as *const u8).wrapping_add(i)) }
    };
    let spaces = (0..len).take_while(|i| matches!(byte(*i), 9..=13 | b' ' | 0xa0)).count();
    let mut copy = [0; 65];
    let taken = (len - spaces).min(copy.len());
    for (i, to) in copy.iter_mut().take(taken).enumerate() {
        *to = byte(spaces + i);
    }
    let number = parse(&copy[..taken], flags)?;
    Ok(Number { len: number.len + spaces, ..number })
}

/// `bpf_strtol(buf, len, flags, res)`: the bytes it took; the result is 0 on errors.
///
/// # Safety
/// `buf` must be readable for `len` bytes, `res` writable for 8 and aligned to them.
pub(super) unsafe extern "C" fn strtol(buf: u64, len: u64, flags: u64, res: u64, _: u64, _: *mut RunCtx) -> u64 {
    // SAFETY: the verifier has proven it readable for that length.
    let number = unsafe { parse_at(buf, len, flags) }.and_then(|number| {
        let value = i128::from(number.magnitude) * if number.negative { -1 } else { 1 };
        let value = i64::try_from(value).map_err(|_| Errno::ERANGE)?;
        Ok((value, number.len))
    });
    // SAFETY: the verifier has proven 8 aligned bytes writable.
    unsafe { (res as *mut i64).write(number.map_or(0, |number| number.0)) };
    ret(number.map(|number| number.1 as u64))
}

/// `bpf_strncmp(s1, s1_sz, s2)`: -1, 0 or 1, of `s1_sz` bytes at most.
///
/// # Safety
/// `s1` must be readable for `size` bytes, and `s2` up to a zero byte.
pub(super) unsafe extern "C" fn strncmp(s1: u64, size: u64, s2: u64, _: u64, _: u64, _: *mut RunCtx) -> u64 {
    for i in 0..index(size) {
        let byte = |at: u64| {
            // SAFETY: below `size` of the one, and not behind the zero byte of the other, where the loop ends;
            // volatile, because a map value may change meanwhile.
            unsafe { core::ptr::read_volatile((at as *const u8).wrapping_add(i)) }
        };
        let (a, b) = (byte(s1), byte(s2));
        if a != b {
            return if a < b { -1i64 } else { 1 }.cast_unsigned();
        }
        if a == 0 {
            break;
        }
    }
    0
}

/// `bpf_strtoul(buf, len, flags, res)`: the same without a sign.
///
/// # Safety
/// As [`strtol`].
pub(super) unsafe extern "C" fn strtoul(buf: u64, len: u64, flags: u64, res: u64, _: u64, _: *mut RunCtx) -> u64 {
    // SAFETY: the verifier has proven it readable for that length.
    let number = unsafe { parse_at(buf, len, flags) }
        .and_then(|number| if number.negative { Err(EINVAL) } else { Ok((number.magnitude, number.len)) });
    // SAFETY: the verifier has proven 8 aligned bytes writable.
    unsafe { (res as *mut u64).write(number.map_or(0, |number| number.0)) };
    ret(number.map(|number| number.1 as u64))
}
