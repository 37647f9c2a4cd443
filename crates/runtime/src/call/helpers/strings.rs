//! The kernel's functions on text: by name, as programs call them.
//!
//! Problem: their arguments are addresses without a length; the kernel reads there whatever it is, and catches the
//! fault. Approach: with each address comes what the verifier has proven of it at that call ([`Site`]): so many bytes
//! are read, and to go on behind them is the fault. In unverified programs, where nothing is proven, every address
//! counts as one that the kernel would not read.
//!
//! Source: `kernel/bpf/helpers.c` (Linux 6.18).

use crate::call::helpers::print::{Site, known};
use crate::call::helpers::skb::ret;
use crate::call::{HostFn, Shim};
use crate::num::{index, low};
use bpf_jit_code::RunCtx;
use bpf_uapi::{Errno, Kfunc};
use std::sync::Arc;

/// As far as text is looked at (Linux: `XATTR_SIZE_MAX`).
const MOST: u64 = 1 << 16;

/// An argument. Invariant: `at` is null, or readable for the bytes that are known.
#[derive(Clone, Copy)]
pub(super) struct Text {
    pub(super) at: u64,
    pub(super) known: Option<u32>,
}

impl Text {
    /// Refuses a null pointer and a value that is not a proven address.
    pub(super) fn readable(self) -> Result<Text, Errno> {
        if self.at == 0 || self.known.is_none() { Err(Errno::ERANGE) } else { Ok(self) }
    }

    pub(super) fn byte(self, i: u64) -> Result<u8, Errno> {
        if self.at == 0 || i >= u64::from(self.known.unwrap_or(0)) {
            return Err(Errno::EFAULT);
        }
        // SAFETY: the invariant; volatile, because a map value may change meanwhile.
        Ok(unsafe { core::ptr::read_volatile((self.at as *const u8).wrapping_add(index(i))) })
    }

    /// Its byte argument, as the others are no text.
    fn char(self) -> u8 {
        (self.at & 0xff) as u8
    }
}

/// The first index, below `count`, at which `found` is true of the byte; the index of the zero byte before that as an
/// error of its own, which `end` gives.
fn scan(
    s: Text,
    count: u64,
    found: impl Fn(u8) -> bool,
    end: impl Fn(u64) -> Result<u64, Errno>,
) -> Result<u64, Errno> {
    let s = s.readable()?;
    for i in 0..count.min(MOST) {
        let byte = s.byte(i)?;
        if found(byte) {
            return Ok(i);
        }
        if byte == 0 {
            return end(i);
        }
    }
    if count >= MOST { Err(Errno::E2BIG) } else { Err(Errno::ENOENT) }
}

fn compare(a: Text, b: Text, of: impl Fn(u8) -> u8) -> Result<u64, Errno> {
    let (a, b) = (a.readable()?, b.readable()?);
    for i in 0..MOST {
        let (a, b) = (of(a.byte(i)?), of(b.byte(i)?));
        if a != b {
            return Ok(if a < b { -1i64 } else { 1 }.cast_unsigned());
        }
        if a == 0 {
            return Ok(0);
        }
    }
    Err(Errno::E2BIG)
}

/// Bytes at the start of `s` that are among those of `set`, or are not.
fn span(s: Text, set: Text, among: bool) -> Result<u64, Errno> {
    let (s, set) = (s.readable()?, set.readable()?);
    for i in 0..MOST {
        let byte = s.byte(i)?;
        if byte == 0 {
            return Ok(i);
        }
        let mut found = None;
        for j in 0..MOST {
            let member = set.byte(j)?;
            if member == byte || member == 0 {
                found = Some(member != 0);
                break;
            }
        }
        if found.ok_or(Errno::E2BIG)? != among {
            return Ok(i);
        }
    }
    Err(Errno::E2BIG)
}

/// Where `part` begins within the first `len` bytes of `s`.
fn find(s: Text, part: Text, len: u64) -> Result<u64, Errno> {
    let (s, part) = (s.readable()?, part.readable()?);
    for i in 0..MOST {
        let mut j = 0;
        while i + j <= len && j < MOST {
            let wanted = part.byte(j)?;
            if wanted == 0 {
                return Ok(i);
            }
            if i + j == len {
                break;
            }
            let byte = s.byte(i + j)?;
            if byte == 0 {
                return Err(Errno::ENOENT);
            }
            if byte != wanted {
                break;
            }
            j += 1;
        }
        if j == MOST {
            return Err(Errno::E2BIG);
        }
        if i + j == len {
            return Err(Errno::ENOENT);
        }
    }
    Err(Errno::E2BIG)
}

/// Lower case as by the kernel's `tolower`, whose characters are those of Latin-1.
fn lower(byte: u8) -> u8 {
    match byte {
        b'A'..=b'Z' | 0xc0..=0xd6 | 0xd8..=0xde => byte + 32,
        _ => byte,
    }
}

/// The implementation of a string function.
type Function = fn([Text; 3]) -> Result<u64, Errno>;

fn strcmp([a, b, _]: [Text; 3]) -> Result<u64, Errno> {
    compare(a, b, |byte| byte)
}

fn strcasecmp([a, b, _]: [Text; 3]) -> Result<u64, Errno> {
    compare(a, b, lower)
}

fn strchr([s, c, _]: [Text; 3]) -> Result<u64, Errno> {
    strnchr([s, Text { at: MOST, known: None }, c])
}

fn strnchr([s, count, c]: [Text; 3]) -> Result<u64, Errno> {
    scan(s, low(count.at).into(), |byte| byte == c.char(), |_| Err(Errno::ENOENT))
}

fn strchrnul([s, c, _]: [Text; 3]) -> Result<u64, Errno> {
    scan(s, MOST, |byte| byte == c.char(), Ok)
}

fn strrchr([s, c, _]: [Text; 3]) -> Result<u64, Errno> {
    let s = s.readable()?;
    let mut last = Err(Errno::ENOENT);
    for i in 0..MOST {
        let byte = s.byte(i)?;
        // Compared as numbers of 32 bits, bytes being unsigned in the kernel.
        if u32::from(byte) == low(c.at) {
            last = Ok(i);
        }
        if byte == 0 {
            return last;
        }
    }
    Err(Errno::E2BIG)
}

fn strlen([s, ..]: [Text; 3]) -> Result<u64, Errno> {
    strnlen([s, Text { at: MOST, known: None }, s])
}

fn strnlen([s, count, _]: [Text; 3]) -> Result<u64, Errno> {
    let count = u64::from(low(count.at));
    match scan(s, count, |byte| byte == 0, Ok) {
        Err(Errno::ENOENT) => Ok(count),
        found => found,
    }
}

fn strspn([s, set, _]: [Text; 3]) -> Result<u64, Errno> {
    span(s, set, true)
}

fn strcspn([s, set, _]: [Text; 3]) -> Result<u64, Errno> {
    span(s, set, false)
}

fn strstr([s, part, _]: [Text; 3]) -> Result<u64, Errno> {
    find(s, part, MOST)
}

fn strnstr([s, part, len]: [Text; 3]) -> Result<u64, Errno> {
    find(s, part, low(len.at).into())
}

/// The functions, by the place in this list: emitted code calls one shim for each.
const FUNCTIONS: [(Kfunc, Function); 12] = [
    (Kfunc::Strcmp, strcmp),
    (Kfunc::Strcasecmp, strcasecmp),
    (Kfunc::Strchr, strchr),
    (Kfunc::Strchrnul, strchrnul),
    (Kfunc::Strnchr, strnchr),
    (Kfunc::Strrchr, strrchr),
    (Kfunc::Strlen, strlen),
    (Kfunc::Strnlen, strnlen),
    (Kfunc::Strspn, strspn),
    (Kfunc::Strcspn, strcspn),
    (Kfunc::Strstr, strstr),
    (Kfunc::Strnstr, strnstr),
];

/// Function `I` of the list. Results are numbers of 32 bits, as the kernel's.
///
/// # Safety
/// `ctx` must be the running program's hidden argument; if `SITE`, with a [`Site`] of which the arguments are as it
/// says.
unsafe extern "C" fn call<const I: usize, const SITE: bool>(
    a: u64,
    b: u64,
    c: u64,
    _: u64,
    _: u64,
    ctx: *mut RunCtx,
) -> u64 {
    // SAFETY: the caller's promise.
    let [a_known, b_known, c_known, ..] = unsafe { known::<SITE>(ctx) };
    let args = [(a, a_known), (b, b_known), (c, c_known)].map(|(at, known)| Text { at, known });
    ret((FUNCTIONS[I].1)(args))
}

/// The shims of a function: by itself, and of a call site.
fn shims(kfunc: Kfunc) -> Option<[Shim; 2]> {
    macro_rules! all {
        ($($i:literal)*) => { [$([call::<$i, false> as Shim, call::<$i, true> as Shim],)*] };
    }
    const SHIMS: [[Shim; 2]; FUNCTIONS.len()] = all!(0 1 2 3 4 5 6 7 8 9 10 11);
    FUNCTIONS.iter().position(|(of, _)| *of == kfunc).map(|i| SHIMS[i])
}

/// A function on text, of whose arguments nothing is known.
pub(super) fn function(kfunc: Kfunc) -> Option<HostFn> {
    shims(kfunc).map(|[plain, _]| HostFn::with_run(plain))
}

/// Returns the function for a call site, with the bytes that are proven readable at its arguments.
pub(super) fn at_site(kfunc: Kfunc, site: Arc<Site>) -> Option<HostFn> {
    shims(kfunc).map(|[_, at_site]| HostFn { shim: at_site, env: Some(site), needs_ctx: true })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(bytes: &[u8]) -> Text {
        Text { at: bytes.as_ptr().expose_provenance() as u64, known: u32::try_from(bytes.len()).ok() }
    }

    fn number(at: i64) -> Text {
        Text { at: at.cast_unsigned(), known: None }
    }

    /// A read beyond the proven bytes is a fault, wherever the text is cut.
    #[test]
    fn nothing_is_read_beyond_what_is_known() {
        let whole = b"hello\0";
        for len in 0..whole.len() {
            let cut = text(&whole[..len]);
            let expected = if len == 0 { Err(Errno::EFAULT) } else { Ok(0) };
            assert_eq!(strchr([cut, number(b'h'.into()), cut]), expected, "{len}");
            assert_eq!(strlen([cut; 3]), Err(Errno::EFAULT), "{len}");
            assert_eq!(strcmp([cut, text(whole), cut]), Err(Errno::EFAULT), "{len}");
            assert_eq!(strnlen([cut, number(len as i64), cut]), Ok(len as u64), "{len}");
        }
        assert_eq!(strlen([text(whole); 3]), Ok(5));
        assert_eq!(strlen([number(4096); 3]), Err(Errno::ERANGE));
        assert_eq!(strlen([Text { at: 0, known: Some(5) }; 3]), Err(Errno::ERANGE));
    }

    /// Endless text is given up.
    #[test]
    fn text_is_looked_at_so_far() {
        let long = vec![b'a'; MOST as usize];
        let long = text(&long);
        assert_eq!(strlen([long; 3]), Err(Errno::E2BIG));
        assert_eq!(strnlen([long, number(-1), long]), Err(Errno::E2BIG));
        assert_eq!(strcmp([long; 3]), Err(Errno::E2BIG));
        assert_eq!(strspn([long; 3]), Err(Errno::E2BIG));
        assert_eq!(strstr([long, text(b"b\0"), long]), Err(Errno::E2BIG));
        assert_eq!(strnstr([long, text(b"b\0"), number(9)]), Err(Errno::ENOENT));
    }
}
