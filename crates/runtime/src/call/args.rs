//! Argument types of host functions.
//!
//! Problem: programs pass numbers and addresses, and Rust functions take types. Approach: each argument type states the
//! facts that must be proven of its registers ([`HostArg::KINDS`]), and constructs the argument from them. References
//! are only made of memory that no other thread can touch ([`MemSet::OWNED`]: the run's stack and its context's
//! regions), initialised, aligned, and not overlapping; map values are shared with other threads and come as
//! [`SharedBytes`](super::SharedBytes).

use crate::context::int::IntType;
use crate::error::HelperError;
use bpf_quiesce::Memory;
use bpf_verifier::{Access, ArgKind, MemArg, MemSet, Region};
use core::ptr::{with_exposed_provenance, with_exposed_provenance_mut};
use std::sync::Arc;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// A type a host function may take. In a closure's signature, references have no named lifetime: they last for the
/// call.
///
/// | type | registers | what programs pass |
/// |---|---|---|
/// | `u8` … `u64`, `i8` … `i64` | 1 | a number; the low bits count |
/// | `&[u8]`, `&mut [u8]` | 2 | address and length of memory the run owns: its stack, or a region of its context (the
/// packet) |
/// | `&T`, `&mut T` | 1 | the address of as many bytes of such memory, aligned for `T`; any bytes must make a valid
/// `T`, which has at most 1 GiB |
/// | `Option` of one of these references | 1 or 2 | the same, or null (and length 0) |
/// | `SharedBytes<'_>`, `SharedBytesMut<'_>` | 2 | address and length of any memory, map values included |
///
/// A larger type does not compile: its size, cut to 32 bits, would be proven of fewer bytes than the reference covers.
///
/// ```compile_fail,E0080
/// const _: usize = <&'static [u8; (1 << 32) + 8] as bpf_runtime::host::HostArg>::KINDS.len();
/// ```
/// ```
/// const _: usize = <&'static [u8; 1 << 30] as bpf_runtime::host::HostArg>::KINDS.len();
/// ```
///
/// # Safety
/// `from_regs` must be sound for registers of which [`HostArg::KINDS`] were proven. Only memory of [`MemSet::OWNED`]
/// may be borrowed as a Rust reference.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be an argument of a host function",
    label = "programs cannot pass this",
    note = "plain types for `&T` and `&mut T` derive zerocopy's `FromBytes`, `IntoBytes` and `Immutable`"
)]
pub unsafe trait HostArg: 'static {
    /// The argument in a call that lasts for `'a`: the type itself, with that lifetime.
    type Arg<'a>;
    /// The facts that the verifier demands, one for each register.
    const KINDS: &'static [ArgKind];
    /// The integer type, if the argument is an integer: the one that an object must declare.
    const INT: Option<IntType> = None;
    /// From as many registers as there are kinds.
    ///
    /// # Safety
    /// The kinds must hold of the registers, and of the memory that they point to for `'a`.
    unsafe fn from_regs<'a>(regs: &[u64]) -> Self::Arg<'a>;
    /// As [`HostArg::from_regs`], of a run whose memory is reserved from `memory`: of types that take memory.
    ///
    /// # Safety
    /// As for [`HostArg::from_regs`].
    #[doc(hidden)]
    #[inline(always)]
    unsafe fn from_call<'a>(regs: &[u64], _memory: &Arc<Memory>) -> Result<Self::Arg<'a>, HelperError> {
        // SAFETY: the caller's contract.
        Ok(unsafe { Self::from_regs(regs) })
    }
}

macro_rules! integers {
    ($($int:ty: $name:ident),*) => {$(
        // SAFETY: any number will do.
        unsafe impl HostArg for $int {
            type Arg<'a> = $int;
            const KINDS: &'static [ArgKind] = &[ArgKind::Scalar];
            const INT: Option<IntType> = Some(IntType::$name);
            #[inline]
            #[allow(clippy::cast_possible_truncation, reason = "as a C callee takes a narrow argument; not all of these types are")]
            unsafe fn from_regs<'a>(regs: &[u64]) -> Self::Arg<'a> {
                // The low bits, as a C callee takes a narrow argument.
                regs[0] as $int
            }
        }
    )*};
}
integers!(u8: U8, u16: U16, u32: U32, u64: U64, i8: I8, i16: I16, i32: I32, i64: I64);

/// Memory that a reference may be made of.
const fn owned(access: Access, align: usize, null: bool) -> MemArg {
    assert!(align <= Region::MAX_LEN as usize, "alignment of more than 1 GiB");
    MemArg { access, null, align: crate::num::small(align), from: MemSet::OWNED }
}

const fn bytes(access: Access, null: bool) -> [ArgKind; 2] {
    [ArgKind::Mem(owned(access, 1, null)), ArgKind::Size { zero: true, half: false }]
}

const fn fixed<T>(access: Access, null: bool) -> [ArgKind; 1] {
    const { assert!(size_of::<T>() > 0, "a reference to a type without bytes refers to no memory of the program") };
    [ArgKind::Fixed { bytes: const { bytes_of::<T>() }, mem: owned(access, align_of::<T>(), null) }]
}

/// The size of a type that programs and host share. A larger type than any region of program memory would be proven for
/// too few bytes.
pub(super) const fn bytes_of<T>() -> u32 {
    assert!(size_of::<T>() <= Region::MAX_LEN as usize, "a type of more than 1 GiB is not shared with programs");
    crate::num::small(size_of::<T>())
}

// SAFETY: the kinds say that so many bytes of memory the run owns are initialised, and nobody writes them during the
// call.
unsafe impl HostArg for &'static [u8] {
    type Arg<'a> = &'a [u8];
    const KINDS: &'static [ArgKind] = &bytes(Access::Read, false);
    #[inline]
    unsafe fn from_regs<'a>(regs: &[u64]) -> &'a [u8] {
        match crate::num::index(regs[1]) {
            // The address of no bytes may be anything.
            0 => &[],
            // SAFETY: the kinds, which the caller vouches for, say that the run owns so many initialised bytes.
            len => unsafe { core::slice::from_raw_parts(with_exposed_provenance(crate::num::index(regs[0])), len) },
        }
    }
}

// SAFETY: the kinds say that so many bytes of memory the run owns are initialised and may be written, and no other
// argument overlaps them.
unsafe impl HostArg for &'static mut [u8] {
    type Arg<'a> = &'a mut [u8];
    const KINDS: &'static [ArgKind] = &bytes(Access::ReadWrite, false);
    #[inline]
    unsafe fn from_regs<'a>(regs: &[u64]) -> &'a mut [u8] {
        match crate::num::index(regs[1]) {
            0 => &mut [],
            // SAFETY: the kinds, which the caller vouches for, say that the run owns so many bytes, which may be
            // written.
            len => unsafe {
                core::slice::from_raw_parts_mut(with_exposed_provenance_mut(crate::num::index(regs[0])), len)
            },
        }
    }
}

// SAFETY: the kinds say that the memory is initialised, large enough and aligned, and nobody writes it during the call;
// every bit pattern is a `T`.
unsafe impl<T: FromBytes + Immutable + 'static> HostArg for &'static T {
    type Arg<'a> = &'a T;
    const KINDS: &'static [ArgKind] = &fixed::<T>(Access::Read, false);
    #[inline]
    unsafe fn from_regs<'a>(regs: &[u64]) -> &'a T {
        // SAFETY: the kinds, which the caller vouches for, say that the memory is initialised, large enough and
        // aligned.
        unsafe { &*with_exposed_provenance(crate::num::index(regs[0])) }
    }
}

// SAFETY: as for `&T`; the memory may be written, no other argument overlaps it, and a `T` has no padding that the
// program would find uninitialised.
unsafe impl<T: FromBytes + IntoBytes + 'static> HostArg for &'static mut T {
    type Arg<'a> = &'a mut T;
    const KINDS: &'static [ArgKind] = &fixed::<T>(Access::ReadWrite, false);
    #[inline]
    unsafe fn from_regs<'a>(regs: &[u64]) -> &'a mut T {
        // SAFETY: the kinds, which the caller vouches for, say that the memory is initialised, large enough and
        // aligned, and may be written.
        unsafe { &mut *with_exposed_provenance_mut(crate::num::index(regs[0])) }
    }
}

/// `Option` of a reference: the same kinds, but null is allowed and is `None`.
macro_rules! nullable {
    ($([$($param:tt)*] $ty:ty, $arg:ty, $kinds:expr;)*) => {$(
        // SAFETY: null is `None`; for all else the kinds are those of the reference.
        unsafe impl<$($param)*> HostArg for Option<$ty> {
            type Arg<'a> = Option<$arg>;
            const KINDS: &'static [ArgKind] = &$kinds;
            #[inline]
            unsafe fn from_regs<'a>(regs: &[u64]) -> Option<$arg> {
                if regs[0] == 0 {
                    return None;
                }
                // SAFETY: the caller vouches for the kinds, and it is not null.
                Some(unsafe { <$ty>::from_regs(regs) })
            }
        }
    )*};
}
nullable! {
    [] &'static [u8], &'a [u8], bytes(Access::Read, true);
    [] &'static mut [u8], &'a mut [u8], bytes(Access::ReadWrite, true);
    [T: FromBytes + Immutable + 'static] &'static T, &'a T, fixed::<T>(Access::Read, true);
    [T: FromBytes + IntoBytes + 'static] &'static mut T, &'a mut T, fixed::<T>(Access::ReadWrite, true);
}
