//! The kernel's functions that programs call by name.
//!
//! An iterator over numbers is two of them on the program's stack, opaque to it as the verifier proves; whatever is
//! there, nothing here goes beyond it. So unverified programs may use it too.
//!
//! Source: `kernel/bpf/bpf_iter.c`, `kernel/bpf/helpers.c` (Linux 6.18).

use crate::call::HostFn;
use crate::call::helpers::callback_shims::{By, adds_to_tree};
use crate::call::helpers::skb::{EINVAL, ret};
use crate::call::helpers::{dynptr, owned};
use crate::context::packet::Xdp;
use crate::context::skb::Skb;
use crate::context::{Context, ContextLayout};
use crate::num::low;
use bpf_jit_code::RunCtx;
use bpf_uapi::{Errno, Kfunc};

/// The function behind a name, for programs on this context.
pub(crate) fn kfunc(kfunc: Kfunc, layout: &'static ContextLayout) -> Option<HostFn> {
    Some(match kfunc {
        Kfunc::IterNumNew => HostFn::plain(iter_num_new),
        Kfunc::IterNumNext => HostFn::plain(iter_num_next),
        Kfunc::IterNumDestroy => HostFn::plain(iter_num_destroy),
        Kfunc::DynptrFromSkb if core::ptr::eq(layout, Skb::layout()) => HostFn::plain(dynptr::from_skb),
        Kfunc::DynptrFromXdp if core::ptr::eq(layout, Xdp::layout()) => HostFn::plain(dynptr::from_xdp),
        Kfunc::DynptrFromSkb | Kfunc::DynptrFromXdp => return None,
        Kfunc::DynptrSlice => HostFn::plain(dynptr::slice),
        Kfunc::DynptrSliceRdwr => HostFn::plain(dynptr::slice_rdwr),
        Kfunc::DynptrAdjust => HostFn::plain(dynptr::adjust),
        Kfunc::DynptrIsNull => HostFn::plain(dynptr::is_null),
        Kfunc::DynptrIsRdonly => HostFn::plain(dynptr::is_rdonly),
        Kfunc::DynptrSize => HostFn::plain(dynptr::size),
        Kfunc::DynptrClone => HostFn::plain(dynptr::clone),
        // Bound to each program by itself ([`owned::own_obj_new`]): without its types there is none.
        Kfunc::ObjNew => HostFn::plain(nothing),
        Kfunc::ObjDrop => HostFn::with_run(owned::obj_drop),
        Kfunc::RefcountAcquire => HostFn::with_run(owned::refcount_acquire),
        Kfunc::ListPushFront => HostFn::with_run(owned::list_push::<true>),
        Kfunc::ListPushBack => HostFn::with_run(owned::list_push::<false>),
        Kfunc::ListPopFront => HostFn::with_run(owned::list_pop::<true>),
        Kfunc::ListPopBack => HostFn::with_run(owned::list_pop::<false>),
        Kfunc::ListFront => HostFn::plain(owned::list_peek::<true>),
        Kfunc::ListBack => HostFn::plain(owned::list_peek::<false>),
        // Emitted code calls the one that checks what it does itself.
        Kfunc::RbtreeAdd => HostFn::with_run(adds_to_tree::<By<3>>),
        Kfunc::RbtreeRemove => HostFn::with_run(owned::rbtree_remove),
        Kfunc::RbtreeFirst => HostFn::plain(owned::rbtree_first),
        Kfunc::RbtreeRoot => HostFn::plain(owned::rbtree_root),
        Kfunc::RbtreeLeft => HostFn::plain(owned::rbtree_child::<true>),
        Kfunc::RbtreeRight => HostFn::plain(owned::rbtree_child::<false>),
        // A run is inside its guard from beginning to end, and on its thread: there is nothing to hold off.
        Kfunc::RcuReadLock | Kfunc::RcuReadUnlock | Kfunc::PreemptDisable | Kfunc::PreemptEnable => {
            HostFn::plain(nothing)
        }
    })
}

extern "C" fn nothing(_: u64, _: u64, _: u64, _: u64, _: u64, _: *mut RunCtx) -> u64 {
    0
}

/// `struct bpf_iter_num`: the number given last, and the end.
#[repr(C)]
struct Numbers {
    current: i32,
    end: i32,
}

/// The most numbers in a range (Linux: `BPF_MAX_LOOPS`).
const MAX_NUMBERS: i64 = 8 * 1024 * 1024;

/// The iterator at this address.
///
/// # Safety
/// `at` must be eight bytes of the program's stack at a multiple of 4, used by nobody else during the call.
unsafe fn numbers<'a>(at: u64) -> &'a mut Numbers {
    // SAFETY: the verifier has proven it to be eight aligned bytes of the program's stack, and emitted code waits.
    unsafe { &mut *(at as *mut Numbers) }
}

/// `bpf_iter_num_new(it, start, end)`: from `start` up to but not including `end`; empty if it fails.
///
/// # Safety
/// See [`numbers`].
unsafe extern "C" fn iter_num_new(at: u64, start: u64, end: u64, _: u64, _: u64, _: *mut RunCtx) -> u64 {
    let (start, end) = (low(start).cast_signed(), low(end).cast_signed());
    // SAFETY: the caller's promise.
    let it = unsafe { numbers(at) };
    *it = Numbers { current: 0, end: 0 };
    if start > end {
        return ret(Err(EINVAL));
    }
    if i64::from(end) - i64::from(start) > MAX_NUMBERS {
        return ret(Err(Errno::E2BIG));
    }
    *it = Numbers { current: start.wrapping_sub(1), end };
    0
}

/// `bpf_iter_num_next(it)`: the address of the next number, in the iterator; null after the last.
///
/// # Safety
/// See [`numbers`].
unsafe extern "C" fn iter_num_next(at: u64, _: u64, _: u64, _: u64, _: u64, _: *mut RunCtx) -> u64 {
    // SAFETY: the caller's promise.
    let it = unsafe { numbers(at) };
    // Before the first number, `current` may have wrapped; and a new iterator over nothing has its end before it.
    let next = it.current.wrapping_add(1);
    if next >= it.end {
        *it = Numbers { current: 0, end: 0 };
        return 0;
    }
    it.current = next;
    at
}

/// `bpf_iter_num_destroy(it)`.
///
/// # Safety
/// See [`numbers`].
unsafe extern "C" fn iter_num_destroy(at: u64, _: u64, _: u64, _: u64, _: u64, _: *mut RunCtx) -> u64 {
    // SAFETY: the caller's promise.
    *unsafe { numbers(at) } = Numbers { current: 0, end: 0 };
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(start: i32, end: i32) -> (u64, Vec<i32>) {
        let mut it = 0u64;
        let at = (&raw mut it).expose_provenance() as u64;
        let none = core::ptr::null_mut();
        let arg = |n: i32| u64::from(n.cast_unsigned());
        // SAFETY: eight aligned bytes, used by nobody else.
        let made = unsafe { iter_num_new(at, arg(start), arg(end), 0, 0, none) };
        let mut numbers = Vec::new();
        // SAFETY: as before.
        while unsafe { iter_num_next(at, 0, 0, 0, 0, none) } != 0 && numbers.len() < 10 {
            // SAFETY: the address is that of the iterator, whose first four bytes are the number.
            numbers.push(unsafe { (at as *const i32).read() });
        }
        (made, numbers)
    }

    #[test]
    fn ranges_are_the_kernels() {
        assert_eq!(all(-1, 2), (0, vec![-1, 0, 1]));
        assert_eq!(all(3, 3), (0, vec![]));
        assert_eq!(all(i32::MIN, i32::MIN + 2), (0, vec![i32::MIN, i32::MIN + 1]));
        assert_eq!(all(i32::MAX - 1, i32::MAX), (0, vec![i32::MAX - 1]));
        assert_eq!(all(4, 3), (ret(Err(EINVAL)), vec![]));
        assert_eq!(all(i32::MIN, i32::MAX), (ret(Err(Errno::E2BIG)), vec![]));
    }
}
