//! `bpf_iter_bits`: an iterator over the bits that are set in a copy of some words.
//!
//! An iterator is sixteen bytes on the program's stack, which the verifier keeps the program from accessing. A single
//! word fits in; more words are copied elsewhere, and the run keeps the copy ([`Held`](crate::abi::held::Held)) until
//! the iterator is destroyed, or the run ends.
//!
//! Source: `kernel/bpf/helpers.c` (Linux 6.18).

use crate::abi::run::Run;
use crate::call::helpers::print::known;
use crate::call::helpers::skb::{EINVAL, ret};
use crate::call::helpers::strings::Text;
use crate::num::{index, low};
use bpf_jit_code::RunCtx;
use bpf_uapi::Errno;

/// `struct bpf_iter_bits`.
#[repr(C)]
struct Bits {
    /// The word, or the address of the words.
    words: u64,
    count: u32,
    /// The bit given last; -1 before the first.
    bit: i32,
}

/// The most words (Linux: `BITS_ITER_NR_WORDS_MAX`).
const MOST_WORDS: u32 = 511;

/// The iterator at this address.
///
/// # Safety
/// `at` must be sixteen bytes of the program's stack at a multiple of 8, used by nobody else during the call.
unsafe fn bits<'a>(at: u64) -> &'a mut Bits {
    // SAFETY: the verifier has proven it to be sixteen aligned bytes of the program's stack, and emitted code waits.
    unsafe { &mut *(at as *mut Bits) }
}

/// The run of the hidden argument.
///
/// # Safety
/// `ctx` must be the first field of a [`Run`], that of this thread.
unsafe fn run<'a>(ctx: *mut RunCtx) -> &'a mut Run {
    // SAFETY: a pointer to all of the run (contract); emitted code, which has the only other one, waits for this call.
    unsafe { &mut *ctx.cast::<Run>() }
}

/// `bpf_iter_bits_new(it, words, count)`: empty if it fails.
///
/// # Safety
/// See [`bits`] and [`run`]; if `SITE`, the hidden argument has a [`Site`](super::print::Site) that `words` is as it
/// says.
pub(super) unsafe extern "C" fn new<const SITE: bool>(
    at: u64,
    words: u64,
    count: u64,
    _: u64,
    _: u64,
    ctx: *mut RunCtx,
) -> u64 {
    let count = low(count);
    // SAFETY: the caller's promise.
    let [_, known, ..] = unsafe { known::<SITE>(ctx) };
    let words = Text { at: words, known };
    let word = |i: u32| {
        let byte = |b: u64| words.byte(8 * u64::from(i) + b);
        (0..8).try_fold(0, |word, b| Ok::<u64, Errno>(word | u64::from(byte(b)?) << (8 * b)))
    };
    let mut made = Bits { words: 0, count: 0, bit: -1 };
    let done = match count {
        _ if words.at == 0 => Err(EINVAL),
        0 => Err(EINVAL),
        1 => word(0).map(|word| made.words = word),
        2..=MOST_WORDS => (0..count).map(word).collect::<Result<Vec<u64>, Errno>>().and_then(|copy| {
            // SAFETY: the caller's promise.
            let held = &mut unsafe { run(ctx) }.held;
            made.words = if held.has_room() { held.add_bits(Box::new(copy)) } else { return Err(Errno::ENOMEM) };
            Ok(())
        }),
        _ => Err(Errno::E2BIG),
    };
    if done.is_ok() {
        made.count = count;
    }
    // SAFETY: the caller's promise.
    *unsafe { bits(at) } = made;
    ret(done.map(|()| 0))
}

/// `bpf_iter_bits_next(it)`: the address of the number of the next bit, in the iterator; null after the last.
///
/// # Safety
/// See [`bits`]; the iterator must be one that [`new`] has made.
pub(super) unsafe extern "C" fn next(at: u64, _: u64, _: u64, _: u64, _: u64, _: *mut RunCtx) -> u64 {
    // SAFETY: the caller's promise.
    let it = unsafe { bits(at) };
    let words: &[u64] = match it.count {
        0 => &[],
        1 => core::slice::from_ref(&it.words),
        _ => {
            let words: *const Vec<u64> = core::ptr::with_exposed_provenance(index(it.words));
            // SAFETY: made by `new`, kept by the run until `destroy`.
            unsafe { &*words }
        }
    };
    let from = u32::try_from(it.bit + 1).unwrap_or(0);
    let rest = |i: usize, word: u64| if i == (from / 64) as usize { word & (u64::MAX << (from % 64)) } else { word };
    let found = words
        .iter()
        .enumerate()
        .skip((from / 64) as usize)
        .map(|(i, word)| (i, rest(i, *word)))
        .find(|(_, word)| *word != 0)
        .and_then(|(i, word)| i32::try_from(64 * i + word.trailing_zeros() as usize).ok());
    // The conversions do not fail: there are at most 511 words.
    it.bit = found.unwrap_or(64 * i32::try_from(words.len()).unwrap_or(0) - 1);
    if found.is_some() { (&raw const it.bit).expose_provenance() as u64 } else { 0 }
}

/// `bpf_iter_bits_destroy(it)`.
///
/// # Safety
/// See [`bits`] and [`run`]; the iterator must be one that [`new`] has made.
pub(super) unsafe extern "C" fn destroy(at: u64, _: u64, _: u64, _: u64, _: u64, ctx: *mut RunCtx) -> u64 {
    // SAFETY: the caller's promise.
    let it = unsafe { bits(at) };
    if it.count > 1 {
        // SAFETY: the caller's promise.
        unsafe { run(ctx) }.held.free_bits(it.words);
    }
    *it = Bits { words: 0, count: 0, bit: -1 };
    0
}
