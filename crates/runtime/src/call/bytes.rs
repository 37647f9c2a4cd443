//! Bytes that other threads may write at the same time.
//!
//! Problem: a map value is shared with other threads' programs, so a Rust slice of it would be undefined behaviour.
//! Approach: the address is kept, and bytes are copied in and out by relaxed atomics, eight at a time where they are
//! aligned. A copy during another thread's write may mix old and new bytes, at best in units of aligned words. Nothing
//! orders it with accesses to other memory.

use super::HostArg;
use bpf_verifier::{Access, ArgKind, MemArg};
use core::marker::PhantomData;
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Bytes that a program passes to a host function and that other threads may write meanwhile: a map value, but any
/// other memory as well. Read by copying.
///
/// ```
/// # use bpf_runtime::*;
/// # let engine = Engine::new(Config::new())?;
/// # let mut linker = Linker::<Vec<u8>>::new(&engine);
/// linker.func(1001, "log", |c: &mut Caller<'_, Vec<u8>>, bytes: SharedBytes<'_>| {
///     *c.host() = bytes.to_vec();
/// })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct SharedBytes<'a> {
    at: *const u8,
    len: usize,
    memory: PhantomData<&'a [AtomicU8]>,
}

/// [`SharedBytes`] that may be written.
#[derive(Debug)]
pub struct SharedBytesMut<'a> {
    bytes: SharedBytes<'a>,
}

const WORD: usize = size_of::<u64>();

/// How many of the bytes from `at` are before the first whole word, and how many are in whole words.
fn parts(at: *const u8, len: usize) -> (usize, usize) {
    let head = at.addr().wrapping_neg() % WORD;
    if head >= len { (len, 0) } else { (head, (len - head) / WORD * WORD) }
}

/// Copies out of shared memory.
///
/// # Safety
/// `to.len()` bytes at `at` must be allocated, initialised, and accessed by others only atomically or by machine code.
pub(crate) unsafe fn copy_out(at: *const u8, to: &mut [u8]) {
    // SAFETY: byte `i` is below `to.len()`: the contract. Relaxed: see the head of the file.
    let byte = |i: usize| unsafe { AtomicU8::from_ptr(at.cast_mut().wrapping_add(i)) }.load(Ordering::Relaxed);
    let (head, words) = parts(at, to.len());
    let (first, rest) = to.split_at_mut(head);
    let (middle, last) = rest.split_at_mut(words);
    first.iter_mut().enumerate().for_each(|(i, to)| *to = byte(i));
    for (i, to) in middle.chunks_exact_mut(WORD).enumerate() {
        let word = at.cast_mut().wrapping_add(head + i * WORD).cast::<u64>();
        // SAFETY: all eight bytes are below `to.len()`, and `parts` begins them at a multiple of eight. Relaxed: as
        // above.
        let word = unsafe { AtomicU64::from_ptr(word) }.load(Ordering::Relaxed);
        to.copy_from_slice(&word.to_ne_bytes());
    }
    last.iter_mut().enumerate().for_each(|(i, to)| *to = byte(head + words + i));
}

/// Copies into shared memory.
///
/// # Safety
/// As for [`copy_out`], with `from.len()`; and the memory is writable.
pub(crate) unsafe fn copy_in(at: *mut u8, from: &[u8]) {
    let byte = |i: usize, value: u8| {
        // SAFETY: byte `i` is below `from.len()`: the contract. Relaxed: see the head of the file.
        unsafe { AtomicU8::from_ptr(at.wrapping_add(i)) }.store(value, Ordering::Relaxed);
    };
    let (head, words) = parts(at, from.len());
    let (first, rest) = from.split_at(head);
    let (middle, last) = rest.split_at(words);
    first.iter().enumerate().for_each(|(i, from)| byte(i, *from));
    for (i, from) in middle.as_chunks::<WORD>().0.iter().enumerate() {
        let word = at.wrapping_add(head + i * WORD).cast::<u64>();
        // SAFETY: all eight bytes are below `from.len()`, and `parts` begins them at a multiple of eight. Relaxed: as
        // above.
        unsafe { AtomicU64::from_ptr(word) }.store(u64::from_ne_bytes(*from), Ordering::Relaxed);
    }
    last.iter().enumerate().for_each(|(i, from)| byte(head + words + i, *from));
}

impl SharedBytes<'_> {
    /// Returns the number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies as many bytes from `offset` as `to` holds. False, and nothing copied, if there are fewer.
    #[must_use]
    pub fn read_at(&self, offset: usize, to: &mut [u8]) -> bool {
        let fits = offset.checked_add(to.len()).is_some_and(|end| end <= self.len);
        if fits {
            // SAFETY: in the bytes that the program passed, which are valid for 'a and shared as `copy_out` wants.
            unsafe { copy_out(self.at.wrapping_add(offset), to) };
        }
        fits
    }

    /// A copy of the `T` at `offset`; alignment does not matter. `None` if there are fewer bytes.
    #[must_use]
    pub fn get<T: FromBytes + IntoBytes>(&self, offset: usize) -> Option<T> {
        let mut value = T::new_zeroed();
        self.read_at(offset, value.as_mut_bytes()).then_some(value)
    }

    /// A copy of all; `None` if there is no memory for it.
    pub(super) fn try_to_vec(&self) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(self.len).ok()?;
        bytes.resize(self.len, 0);
        self.read_at(0, &mut bytes).then_some(bytes)
    }

    /// A copy of all. It allocates: where that matters, use [`SharedBytes::read_at`].
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len];
        // All of them are there, so this succeeds.
        let _ = self.read_at(0, &mut bytes);
        bytes
    }
}

impl<'a> SharedBytesMut<'a> {
    /// The bytes to read.
    pub fn bytes(&self) -> SharedBytes<'a> {
        self.bytes
    }

    /// Returns the number of bytes.
    pub fn len(&self) -> usize {
        self.bytes.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.bytes.len == 0
    }

    /// Copies `from` to the bytes from `offset`. False, and nothing copied, if they do not fit.
    #[must_use]
    pub fn write_at(&self, offset: usize, from: &[u8]) -> bool {
        let fits = offset.checked_add(from.len()).is_some_and(|end| end <= self.bytes.len);
        if fits {
            // SAFETY: in the bytes that the program passed, which are valid for 'a, writable, and shared as `copy_in`
            // wants.
            unsafe { copy_in(self.bytes.at.cast_mut().wrapping_add(offset), from) };
        }
        fits
    }

    /// Copies a `T` to `offset`. False, and nothing copied, if it does not fit.
    #[must_use]
    pub fn set<T: IntoBytes + Immutable>(&self, offset: usize, value: &T) -> bool {
        self.write_at(offset, value.as_bytes())
    }
}

// SAFETY: no reference is made; the kinds say that so many bytes are readable and initialised.
unsafe impl HostArg for SharedBytes<'static> {
    type Arg<'a> = SharedBytes<'a>;
    const KINDS: &'static [ArgKind] = &[ArgKind::Mem(MemArg::READ), ArgKind::Size { zero: true, half: false }];
    #[inline]
    unsafe fn from_regs<'a>(regs: &[u64]) -> SharedBytes<'a> {
        let at = core::ptr::with_exposed_provenance(crate::num::index(regs[0]));
        SharedBytes { at, len: crate::num::index(regs[1]), memory: PhantomData }
    }
}

// SAFETY: as for `SharedBytes`; the memory may also be written.
unsafe impl HostArg for SharedBytesMut<'static> {
    type Arg<'a> = SharedBytesMut<'a>;
    const KINDS: &'static [ArgKind] = &[
        ArgKind::Mem(MemArg { access: Access::ReadWrite, ..MemArg::READ }),
        ArgKind::Size { zero: true, half: false },
    ];
    #[inline]
    unsafe fn from_regs<'a>(regs: &[u64]) -> SharedBytesMut<'a> {
        // SAFETY: the caller's contract is this function's.
        SharedBytesMut { bytes: unsafe { SharedBytes::from_regs(regs) } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every offset and length within three words, against a plain copy.
    #[test]
    fn copies_cover_exactly_their_bytes() {
        for start in 0..WORD {
            for len in 0..=2 * WORD {
                let mut memory = [0u64; 4];
                let base = memory.as_mut_ptr().cast::<u8>();
                let from: Vec<u8> = (1..=len as u8).collect();
                // SAFETY: at most 24 of the 32 bytes, which nobody else uses.
                unsafe { copy_in(base.wrapping_add(start), &from) };
                let mut expected = [0u8; 32];
                expected[start..start + len].copy_from_slice(&from);
                let mut all = [0u8; 32];
                // SAFETY: all 32 bytes.
                unsafe { copy_out(base, &mut all) };
                assert_eq!(all, expected, "{len} bytes at {start}");
                let mut back = vec![0; len];
                // SAFETY: `start + len` is 24 at most, of 32 bytes that nobody else uses.
                unsafe { copy_out(base.wrapping_add(start), &mut back) };
                assert_eq!(back, from, "{len} bytes at {start}");
            }
        }
    }
}
