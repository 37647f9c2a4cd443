//! Contexts of programs, and their results.
//!
//! Invariant: the two pointers of a [`ContextBytes`] are the pointers that the host stored. Each method compares with
//! the end before it reads, in the form that the verifier recognises: start plus constant, then against the end.

use core::marker::PhantomData;
use core::mem::MaybeUninit;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// A struct that a program can take as its context: derive it with [`BpfContext`](crate::BpfContext).
///
/// # Safety
/// The host must pass such a struct, in C's layout.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a context",
    label = "derive `bpf_guest::BpfContext` for the struct that the host passes"
)]
pub unsafe trait Context {}

/// A result of a program, which the host gets in r0.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is nothing that a program can return",
    label = "use an integer or `bool`"
)]
pub trait ProgramResult {
    /// Converts to r0.
    fn into_r0(self) -> u64;
}

macro_rules! integers {
    ($($int:ty),*) => {$(
        impl ProgramResult for $int {
            #[inline(always)]
            #[allow(clippy::cast_sign_loss, clippy::cast_lossless, reason = "r0 is the number as C returns it")]
            fn into_r0(self) -> u64 {
                self as u64
            }
        }
    )*};
}
integers!(u8, u16, u32, u64, i8, i16, i32, i64);

impl ProgramResult for bool {
    #[inline(always)]
    fn into_r0(self) -> u64 {
        self.into()
    }
}

impl ProgramResult for () {
    #[inline(always)]
    fn into_r0(self) -> u64 {
        0
    }
}

/// The largest accepted offset: larger ones return `None`, so that the verifier sees a bound.
const MAX_OFFSET: usize = 0xffff;

/// A pointer to `size` bytes at `offset` after `start`, if they lie before `end`.
#[inline(always)]
fn within(start: *const u8, end: *const u8, offset: usize, size: usize) -> Option<*const u8> {
    if offset > MAX_OFFSET {
        return None;
    }
    let at = start.wrapping_add(offset);
    (at.wrapping_add(size) <= end).then_some(at)
}

macro_rules! reads {
    () => {
        /// The value at this offset, in the byte order of the machine; `None` if the bytes end before it.
        #[inline(always)]
        pub fn read<T: FromBytes>(&self, offset: usize) -> Option<T> {
            let at = within(self.start, self.end, offset, size_of::<T>())?;
            let mut value = MaybeUninit::<T>::uninit();
            // SAFETY: `at` has as many readable bytes as a `T` (`within`), and any bytes are a valid `T`.
            unsafe { core::ptr::copy_nonoverlapping(at, value.as_mut_ptr().cast(), size_of::<T>()) };
            // SAFETY: all its bytes were copied, and any bytes are a `T`.
            Some(unsafe { value.assume_init() })
        }

        /// `N` bytes at this offset; `None` if they end before.
        #[inline(always)]
        pub fn array<const N: usize>(&self, offset: usize) -> Option<[u8; N]> {
            self.read(offset)
        }

        /// Whether the bytes begin with `bytes`.
        #[inline(always)]
        pub fn starts_with<const N: usize>(&self, bytes: &[u8; N]) -> bool {
            self.array::<N>(0).is_some_and(|start| start == *bytes)
        }

        /// Number of bytes.
        #[inline(always)]
        #[allow(clippy::len_without_is_empty, reason = "`is_empty` is beside it")]
        pub fn len(&self) -> usize {
            self.end.addr() - self.start.addr()
        }

        /// Whether there are no bytes.
        #[inline(always)]
        pub fn is_empty(&self) -> bool {
            self.start.addr() >= self.end.addr()
        }

        /// Iterates over the bytes.
        #[inline(always)]
        pub fn iter(&self) -> Bytes<'_> {
            Bytes { next: self.start, end: self.end, bytes: PhantomData }
        }
    };
}

/// Bytes of the host, of any length, that programs may read.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ContextBytes<'p> {
    start: *const u8,
    end: *const u8,
    bytes: PhantomData<&'p [u8]>,
}

impl ContextBytes<'_> {
    reads!();

    #[inline(always)]
    pub(crate) fn new(start: *const u8, end: *const u8) -> Self {
        ContextBytes { start, end, bytes: PhantomData }
    }
}

/// Makes bytes of a test's context.
#[cfg(not(target_arch = "bpf"))]
impl<'p> From<&'p [u8]> for ContextBytes<'p> {
    fn from(bytes: &'p [u8]) -> Self {
        let core::ops::Range { start, end } = bytes.as_ptr_range();
        ContextBytes::new(start, end)
    }
}

/// Makes bytes of a test's context.
#[cfg(not(target_arch = "bpf"))]
impl<'p, const N: usize> From<&'p [u8; N]> for ContextBytes<'p> {
    fn from(bytes: &'p [u8; N]) -> Self {
        bytes[..].into()
    }
}

/// Bytes of the host, of any length, that programs may read and write.
#[derive(Debug)]
#[repr(C)]
pub struct ContextBytesMut<'p> {
    start: *mut u8,
    end: *mut u8,
    bytes: PhantomData<&'p mut [u8]>,
}

impl ContextBytesMut<'_> {
    reads!();

    #[inline(always)]
    pub(crate) fn new(start: *mut u8, end: *mut u8) -> Self {
        ContextBytesMut { start, end, bytes: PhantomData }
    }

    /// Writes a value at this offset; `None`, with nothing written, if the bytes end before its end.
    #[inline(always)]
    pub fn write<T: IntoBytes + Immutable>(&mut self, offset: usize, value: &T) -> Option<()> {
        let at = within(self.start, self.end, offset, size_of::<T>())?.cast_mut();
        // SAFETY: `at` has as many bytes (`within`), which the program may write; the value lies elsewhere.
        unsafe { core::ptr::copy_nonoverlapping(value.as_bytes().as_ptr(), at, size_of::<T>()) };
        Some(())
    }
}

/// Makes bytes of a test's context.
#[cfg(not(target_arch = "bpf"))]
impl<'p> From<&'p mut [u8]> for ContextBytesMut<'p> {
    fn from(bytes: &'p mut [u8]) -> Self {
        let core::ops::Range { start, end } = bytes.as_mut_ptr_range();
        ContextBytesMut::new(start, end)
    }
}

/// An iterator over the bytes.
#[derive(Clone, Debug)]
pub struct Bytes<'p> {
    next: *const u8,
    end: *const u8,
    bytes: PhantomData<&'p [u8]>,
}

impl Iterator for Bytes<'_> {
    type Item = u8;

    #[inline(always)]
    fn next(&mut self) -> Option<u8> {
        let after = self.next.wrapping_add(1);
        if after > self.end {
            return None;
        }
        // SAFETY: `next` lies before the end, so it points to a byte of the host.
        let byte = unsafe { *self.next };
        self.next = after;
        Some(byte)
    }
}
