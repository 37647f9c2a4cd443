//! The kernel's functions that programs call by name.
//!
//! An iterator over numbers is two of them on the program's stack, opaque to it as the verifier proves; with any
//! numbers there, the functions access only the iterator itself. So unverified programs may use it too.
//!
//! Source: `kernel/bpf/bpf_iter.c`, `kernel/bpf/helpers.c` (Linux 6.18).

use crate::call::HostFn;
use crate::call::helpers::callback_shims::{AddToTree, By, shim};
use crate::call::helpers::print::Site;
use crate::call::helpers::skb::{EINVAL, ret};
use crate::call::helpers::{bits, dynptr, frags, maps, owned, strings, timers};
use crate::context::frags::XdpFrags;
use crate::context::packet::{RxMetadata, Xdp, XdpBuff};
use crate::context::skb::Skb;
use crate::context::{Context, ContextLayout};
use crate::num::low;
use bpf_jit_code::RunCtx;
use bpf_maps::MapHeader;
use bpf_uapi::{Errno, Kfunc};

/// The function behind a name, for programs on this context.
pub(crate) fn kfunc(kfunc: Kfunc, layout: &'static ContextLayout) -> Option<HostFn> {
    let xdp = in_pieces(layout) || core::ptr::eq(layout, Xdp::layout());
    Some(match kfunc {
        Kfunc::IterNumNew => HostFn::plain(iter_num_new),
        Kfunc::IterNumNext => HostFn::plain(iter_num_next),
        Kfunc::IterNumDestroy => HostFn::plain(iter_num_destroy),
        Kfunc::DynptrFromSkb if core::ptr::eq(layout, Skb::layout()) => HostFn::plain(dynptr::from_skb),
        Kfunc::DynptrFromXdp if core::ptr::eq(layout, Xdp::layout()) => HostFn::plain(dynptr::from_xdp),
        Kfunc::DynptrFromXdp if in_pieces(layout) => HostFn::plain(dynptr::from_frags),
        Kfunc::DynptrFromSkb | Kfunc::DynptrFromXdp => return None,
        Kfunc::DynptrFromSkbMeta if core::ptr::eq(layout, Skb::layout()) => HostFn::plain(dynptr::from_skb_meta),
        Kfunc::DynptrFromSkbMeta => return None,
        Kfunc::DynptrCopy => HostFn::with_run(dynptr::copy),
        Kfunc::DynptrMemset => HostFn::with_run(dynptr::memset),
        Kfunc::XdpMetadataRxTimestamp if xdp => HostFn::plain(rx_timestamp),
        Kfunc::XdpMetadataRxHash if xdp => HostFn::plain(rx_hash),
        Kfunc::XdpMetadataRxVlanTag if xdp => HostFn::plain(rx_vlan_tag),
        Kfunc::XdpMetadataRxTimestamp | Kfunc::XdpMetadataRxHash | Kfunc::XdpMetadataRxVlanTag => return None,
        Kfunc::IterBitsNew => HostFn::with_run(bits::new::<false>),
        Kfunc::IterBitsNext => HostFn::plain(bits::next),
        Kfunc::IterBitsDestroy => HostFn::with_run(bits::destroy),
        Kfunc::Strcmp
        | Kfunc::Strcasecmp
        | Kfunc::Strchr
        | Kfunc::Strchrnul
        | Kfunc::Strnchr
        | Kfunc::Strrchr
        | Kfunc::Strlen
        | Kfunc::Strnlen
        | Kfunc::Strspn
        | Kfunc::Strcspn
        | Kfunc::Strstr
        | Kfunc::Strnstr => strings::function(kfunc)?,
        Kfunc::MapSumElemCount => HostFn::plain(maps::map_sum_elem_count),
        Kfunc::LocalIrqSave | Kfunc::LocalIrqRestore => HostFn::plain(nothing),
        Kfunc::ResSpinLock | Kfunc::ResSpinLockIrqsave => HostFn::with_run(maps::res_spin_lock),
        Kfunc::ResSpinUnlock | Kfunc::ResSpinUnlockIrqrestore => HostFn::with_run(maps::spin_unlock),
        Kfunc::XdpPullData if in_pieces(layout) => HostFn::plain(frags::pull_data),
        Kfunc::XdpPullData if core::ptr::eq(layout, Xdp::layout()) => HostFn::plain(frags::pull_nothing),
        Kfunc::XdpPullData => return None,
        Kfunc::DynptrSlice => HostFn::plain(dynptr::slice),
        Kfunc::DynptrSliceRdwr => HostFn::plain(dynptr::slice_rdwr),
        Kfunc::DynptrAdjust => HostFn::plain(dynptr::adjust),
        Kfunc::DynptrIsNull => HostFn::plain(dynptr::is_null),
        Kfunc::DynptrIsRdonly => HostFn::plain(dynptr::is_rdonly),
        Kfunc::DynptrSize => HostFn::plain(dynptr::size),
        Kfunc::DynptrClone => HostFn::plain(dynptr::clone),
        // Bound for each program separately ([`owned::own_obj_new`]); a program without types makes no object.
        Kfunc::ObjNew | Kfunc::PercpuObjNew => HostFn::plain(nothing),
        Kfunc::ObjDrop | Kfunc::PercpuObjDrop => HostFn::with_run(owned::obj_drop),
        Kfunc::RefcountAcquire => HostFn::with_run(owned::refcount_acquire),
        Kfunc::ListPushFront => HostFn::with_run(owned::list_push::<true>),
        Kfunc::ListPushBack => HostFn::with_run(owned::list_push::<false>),
        Kfunc::ListPopFront => HostFn::with_run(owned::list_pop::<true>),
        Kfunc::ListPopBack => HostFn::with_run(owned::list_pop::<false>),
        Kfunc::ListFront => HostFn::plain(owned::list_peek::<true>),
        Kfunc::ListBack => HostFn::plain(owned::list_peek::<false>),
        // Emitted code calls the one that checks what it does itself.
        Kfunc::RbtreeAdd => HostFn::with_run(shim::<AddToTree, By<3>>),
        Kfunc::RbtreeRemove => HostFn::with_run(owned::rbtree_remove),
        Kfunc::RbtreeFirst => HostFn::plain(owned::rbtree_first),
        Kfunc::RbtreeRoot => HostFn::plain(owned::rbtree_root),
        Kfunc::RbtreeLeft => HostFn::plain(owned::rbtree_child::<true>),
        Kfunc::RbtreeRight => HostFn::plain(owned::rbtree_child::<false>),
        // A run is inside its guard from beginning to end, and on its thread, so these functions have nothing to do.
        Kfunc::RcuReadLock | Kfunc::RcuReadUnlock | Kfunc::PreemptDisable | Kfunc::PreemptEnable => {
            HostFn::plain(nothing)
        }
        Kfunc::Throw => HostFn::with_run(throw),
        Kfunc::WqInit => HostFn::with_run(timers::wq_init),
        Kfunc::WqSetCallback => timers::own_wq_set_callback(),
        Kfunc::WqStart => HostFn::with_run(timers::wq_start),
        Kfunc::ArenaAllocPages => HostFn::plain(arena_alloc_pages),
        Kfunc::ArenaFreePages => HostFn::plain(arena_free_pages),
        Kfunc::ArenaReservePages => HostFn::plain(arena_reserve_pages),
    })
}

/// The function behind a name for a call at which so many bytes are known to be readable behind its arguments.
pub(crate) fn at_site(kfunc: Kfunc, known: &[Option<u32>]) -> Option<HostFn> {
    let site = Site::new(known);
    match kfunc {
        Kfunc::IterBitsNew => Some(HostFn { shim: bits::new::<true>, env: Some(site), needs_ctx: true }),
        Kfunc::Strcmp
        | Kfunc::Strcasecmp
        | Kfunc::Strchr
        | Kfunc::Strchrnul
        | Kfunc::Strnchr
        | Kfunc::Strrchr
        | Kfunc::Strlen
        | Kfunc::Strnlen
        | Kfunc::Strspn
        | Kfunc::Strcspn
        | Kfunc::Strstr
        | Kfunc::Strnstr => strings::at_site(kfunc, site),
        Kfunc::IterNumNew
        | Kfunc::IterNumNext
        | Kfunc::IterNumDestroy
        | Kfunc::DynptrFromSkb
        | Kfunc::DynptrFromXdp
        | Kfunc::DynptrSlice
        | Kfunc::DynptrSliceRdwr
        | Kfunc::DynptrAdjust
        | Kfunc::DynptrIsNull
        | Kfunc::DynptrIsRdonly
        | Kfunc::DynptrSize
        | Kfunc::DynptrClone
        | Kfunc::DynptrFromSkbMeta
        | Kfunc::DynptrCopy
        | Kfunc::DynptrMemset
        | Kfunc::XdpPullData
        | Kfunc::XdpMetadataRxTimestamp
        | Kfunc::XdpMetadataRxHash
        | Kfunc::XdpMetadataRxVlanTag
        | Kfunc::IterBitsNext
        | Kfunc::IterBitsDestroy
        | Kfunc::MapSumElemCount
        | Kfunc::LocalIrqSave
        | Kfunc::LocalIrqRestore
        | Kfunc::ResSpinLock
        | Kfunc::ResSpinUnlock
        | Kfunc::ResSpinLockIrqsave
        | Kfunc::ResSpinUnlockIrqrestore
        | Kfunc::RcuReadLock
        | Kfunc::RcuReadUnlock
        | Kfunc::PreemptDisable
        | Kfunc::PreemptEnable
        | Kfunc::ArenaAllocPages
        | Kfunc::ArenaFreePages
        | Kfunc::ArenaReservePages
        | Kfunc::ObjNew
        | Kfunc::PercpuObjNew
        | Kfunc::PercpuObjDrop
        | Kfunc::ObjDrop
        | Kfunc::RefcountAcquire
        | Kfunc::ListPushFront
        | Kfunc::ListPushBack
        | Kfunc::ListPopFront
        | Kfunc::ListPopBack
        | Kfunc::ListFront
        | Kfunc::ListBack
        | Kfunc::RbtreeAdd
        | Kfunc::RbtreeRemove
        | Kfunc::RbtreeFirst
        | Kfunc::RbtreeRoot
        | Kfunc::RbtreeLeft
        | Kfunc::RbtreeRight
        | Kfunc::Throw
        | Kfunc::WqInit
        | Kfunc::WqSetCallback
        | Kfunc::WqStart => None,
    }
}

/// Returns metadata that the device delivered with the packet of an XDP program; an error if the host has given none.
///
/// # Safety
/// `context` must be that of a running program on [`Xdp`] or [`XdpFrags`].
unsafe fn rx<T>(context: u64, of: impl FnOnce(&RxMetadata) -> Option<T>) -> Result<T, Errno> {
    // SAFETY: the linker binds these functions to programs on such contexts only, both of which begin with an
    // `XdpBuff`, and the verifier admits only their context.
    let metadata = unsafe { &(*(context as *const XdpBuff<'_>)).rx };
    of(metadata.as_ref().ok_or(Errno::EOPNOTSUPP)?).ok_or(Errno::ENODATA)
}

/// `bpf_xdp_metadata_rx_timestamp(ctx, timestamp)`. An error zeroes what is to be told.
///
/// # Safety
/// See [`rx`]; the second argument must be writable for 8 bytes and aligned to them.
unsafe extern "C" fn rx_timestamp(context: u64, to: u64, _: u64, _: u64, _: u64, _: *mut RunCtx) -> u64 {
    // SAFETY: the caller's promise.
    let told = unsafe { rx(context, |rx| rx.timestamp) };
    // SAFETY: the caller's promise.
    unsafe { (to as *mut u64).write(told.unwrap_or(0)) };
    ret(told.map(|_| 0))
}

/// `bpf_xdp_metadata_rx_hash(ctx, hash, type)`.
///
/// # Safety
/// See [`rx`]; the other arguments must be writable for 4 bytes and aligned to them.
unsafe extern "C" fn rx_hash(context: u64, hash: u64, kind: u64, _: u64, _: u64, _: *mut RunCtx) -> u64 {
    // SAFETY: the caller's promise.
    let told = unsafe { rx(context, |rx| rx.hash) };
    // SAFETY: the caller's promise.
    unsafe { (hash as *mut u32).write(told.map_or(0, |told| told.0)) };
    // SAFETY: the caller's promise.
    unsafe { (kind as *mut u32).write(told.map_or(0, |told| told.1)) };
    ret(told.map(|_| 0))
}

/// `bpf_xdp_metadata_rx_vlan_tag(ctx, protocol, tag)`.
///
/// # Safety
/// See [`rx`]; the other arguments must be writable for 2 bytes and aligned to them.
unsafe extern "C" fn rx_vlan_tag(context: u64, protocol: u64, tag: u64, _: u64, _: u64, _: *mut RunCtx) -> u64 {
    // SAFETY: the caller's promise.
    let told = unsafe { rx(context, |rx| rx.vlan_tag) };
    // SAFETY: the caller's promise.
    unsafe { (protocol as *mut u16).write(told.map_or(0, |told| told.0.to_be())) };
    // SAFETY: the caller's promise.
    unsafe { (tag as *mut u16).write(told.map_or(0, |told| told.1)) };
    ret(told.map(|_| 0))
}

/// Whether packets may have several pieces.
fn in_pieces(layout: &'static ContextLayout) -> bool {
    core::ptr::eq(layout, XdpFrags::layout())
}

extern "C" fn nothing(_: u64, _: u64, _: u64, _: u64, _: u64, _: *mut RunCtx) -> u64 {
    0
}

/// `bpf_throw(cookie)`: its callers, which look at [`RunCtx::thrown`] then, return the cookie.
///
/// # Safety
/// `ctx` must be the hidden argument of a verified program.
unsafe extern "C" fn throw(cookie: u64, _: u64, _: u64, _: u64, _: u64, ctx: *mut RunCtx) -> u64 {
    // SAFETY: this thread's run; emitted code, which reads the field, waits for this call.
    unsafe { (*ctx).thrown = 1 };
    cookie
}

/// `bpf_arena_alloc_pages(map, address, pages, node, flags)`: the address of pages in a row; 0 if there is no room.
///
/// # Safety
/// `map` must be one of the program's, in whose run the call is made.
unsafe extern "C" fn arena_alloc_pages(map: u64, at: u64, pages: u64, node: u64, flags: u64, _: *mut RunCtx) -> u64 {
    let (map, node) = (map as *const MapHeader, low(node).cast_signed());
    // SAFETY: a live map of the program's, under its run's guard (contract).
    unsafe { bpf_maps::program::arena_alloc(map, at, low(pages), node, flags) }
}

/// `bpf_arena_free_pages(map, address, pages)`.
///
/// # Safety
/// As for [`arena_alloc_pages`].
unsafe extern "C" fn arena_free_pages(map: u64, at: u64, pages: u64, _: u64, _: u64, _: *mut RunCtx) -> u64 {
    // SAFETY: a live map of the program's, under its run's guard (contract).
    unsafe { bpf_maps::program::arena_free(map as *const MapHeader, at, low(pages)) };
    0
}

/// `bpf_arena_reserve_pages(map, address, pages)`: 0, or a negative error number.
///
/// # Safety
/// As for [`arena_alloc_pages`].
unsafe extern "C" fn arena_reserve_pages(map: u64, at: u64, pages: u64, _: u64, _: u64, _: *mut RunCtx) -> u64 {
    // SAFETY: a live map of the program's, under its run's guard (contract).
    let result = unsafe { bpf_maps::program::arena_reserve(map as *const MapHeader, at, low(pages)) };
    result as u64
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
        // SAFETY: the address is that of the iterator, which only this thread uses.
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
