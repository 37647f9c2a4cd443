//! Dynptrs: memory whose place and length programs learn when they run.
//!
//! A dynptr is sixteen bytes on the program's stack, opaque to it as the verifier proves: so what is found there is
//! what was written here. It leads to memory that outlasts it (a map's value, a record), or to the context, whose
//! packet is looked for at each use. Only verified programs may have one.
//!
//! Source: `kernel/bpf/helpers.c`, `kernel/bpf/ringbuf.c` (Linux 6.18).

use crate::abi::run::Run;
use crate::call::helpers::callbacks::CallBack;
use crate::call::helpers::frags;
use crate::call::helpers::packet::skb_store_bytes;
use crate::call::helpers::ring::{ringbuf_discard, ringbuf_reserve, ringbuf_submit};
use crate::call::helpers::skb::{EINVAL, ret};
use crate::context::frags::{Range, XdpFragsBuff};
use crate::context::packet::{Window, XdpBuff};
use crate::context::skb::SkBuff;
use crate::error::HelperError;
use crate::num::{index, low};
use bpf_jit_code::RunCtx;
use bpf_maps::speculation::mask_below;
use bpf_maps::{MapHeader, program as map_ops};
use bpf_uapi::Errno;

/// A dynptr. The addresses are exposed.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Dynptr {
    /// Where the memory or the context is; 0: it leads nowhere.
    data: u64,
    size: u32,
    /// The offset of its first byte from `data`; above [`OFFSET`], the kind of memory that `data` points to.
    offset: u32,
}

/// A dynptr is no longer than this (Linux: `DYNPTR_MAX_SIZE`).
const MAX_SIZE: u64 = (1 << 24) - 1;

/// In `offset`, which is below [`MAX_SIZE`].
const XDP: u32 = 1 << 28;
const SKB: u32 = 2 << 28;
const XDP_FRAGS: u32 = 3 << 28;
const SKB_META: u32 = 4 << 28;
const KIND: u32 = 7 << 28;
const READ_ONLY: u32 = 1 << 31;
const OFFSET: u32 = (1 << 24) - 1;

impl Dynptr {
    const NULL: Dynptr = Dynptr { data: 0, size: 0, offset: 0 };

    /// A dynptr to a record that is lent to a callback.
    pub(crate) fn lent(data: *const u8, len: u32) -> Dynptr {
        Dynptr { data: data.expose_provenance() as u64, size: len, offset: READ_ONLY }
    }

    /// Whether a slice of the dynptr with this content may use the buffer that the call is given.
    pub(crate) fn uses_buffer(content: [u8; 16]) -> bool {
        let [.., a, b, c, d] = content;
        u32::from_ne_bytes([a, b, c, d]) & KIND != 0
    }

    fn is_read_only(self) -> bool {
        self.offset & READ_ONLY != 0
    }

    /// Whether `len` bytes from `offset` are inside.
    fn check(self, offset: u64, len: u64) -> Result<(), Errno> {
        let size = u64::from(self.size);
        if len > size || offset > size - len { Err(Errno::E2BIG) } else { Ok(()) }
    }

    /// Returns `offset` if `len` bytes from there are within `size` bytes, and 0 otherwise, without a branch: a
    /// processor that has mispredicted that comparison reads the first bytes.
    fn within(offset: u64, len: u64, size: u64) -> u64 {
        offset & mask_below(offset + len, size + 1)
    }

    /// The packet in pieces that the dynptr leads to, if it leads to one.
    ///
    /// # Safety
    /// The run that made it must be running, and nobody else use its context during the result's use.
    unsafe fn pieces<'a>(self) -> Option<&'a XdpFragsBuff<'a>> {
        let context: *mut XdpFragsBuff<'_> = core::ptr::with_exposed_provenance_mut(index(self.data));
        // SAFETY: made of the context of a program on `XdpFrags`, which outlasts the run.
        (self.data != 0 && self.offset & KIND == XDP_FRAGS).then(|| unsafe { &*context })
    }

    /// For a dynptr to a packet in pieces: the packet, and the offset of the range in it.
    ///
    /// # Safety
    /// As [`Dynptr::pieces`].
    unsafe fn in_pieces<'a>(self, offset: u64, len: u64) -> Option<Result<(&'a XdpFragsBuff<'a>, usize), Errno>> {
        // SAFETY: the caller's promise.
        let packet = unsafe { self.pieces() }?;
        let at = index(u64::from(self.offset & OFFSET) + offset);
        let checked = self.check(offset, len).and_then(|()| frags::check(packet, at, index(len)));
        Some(checked.map(|()| (packet, at)))
    }

    /// The packet that it leads to, if it is one, and in one piece.
    ///
    /// # Safety
    /// The run that made it must be running, and nobody else use its context during the result's use.
    unsafe fn window<'a>(self) -> Option<&'a mut Window> {
        let context: *mut u8 = core::ptr::with_exposed_provenance_mut(index(self.data));
        match self.offset & KIND {
            // SAFETY: made of an XDP program's context, which outlasts the run.
            XDP => Some(&mut unsafe { &mut *context.cast::<XdpBuff<'_>>() }.window),
            // SAFETY: made of a classifier's context, which outlasts the run.
            SKB => Some(&mut unsafe { &mut *context.cast::<SkBuff<'_>>() }.window),
            _ => None,
        }
    }

    /// The address of `len` bytes at `offset`: of the packet as it is now, if the dynptr is of a packet; an error
    /// where they are in several pieces.
    ///
    /// # Safety
    /// As [`Dynptr::window`].
    unsafe fn bytes(self, offset: u64, len: u64) -> Result<*mut u8, Errno> {
        if self.data == 0 {
            return Err(EINVAL);
        }
        // SAFETY: the caller's promise.
        if let Some(found) = unsafe { self.in_pieces(offset, len) } {
            let (packet, at) = found?;
            return match packet.find(at, index(len)) {
                Some(Range::Piece(bytes)) => Ok(bytes),
                Some(Range::Pieces) | None => Err(Errno::EFAULT),
            };
        }
        self.check(offset, len)?;
        let at = u64::from(self.offset & OFFSET) + Dynptr::within(offset, len, self.size.into());
        if self.offset & KIND == SKB_META {
            let context: *const SkBuff<'_> = core::ptr::with_exposed_provenance(index(self.data));
            // SAFETY: made of the context of a program on `__sk_buff`, which outlasts the run.
            let window = unsafe { &(*context).window };
            let has = window.metadata().len() as u64;
            let inside = Dynptr::within(at, len, has);
            return if at + len <= has {
                Ok(window.data_meta().wrapping_add(index(inside)))
            } else {
                Err(Errno::E2BIG)
            };
        }
        // SAFETY: the caller's promise.
        match unsafe { self.window() } {
            Some(window) if at + len <= window.len() as u64 => {
                let inside = Dynptr::within(at, len, window.len() as u64);
                Ok(window.data().wrapping_add(index(inside)))
            }
            Some(_) => Err(Errno::EFAULT),
            None => Ok(core::ptr::with_exposed_provenance_mut::<u8>(index(self.data)).wrapping_add(index(at))),
        }
    }
}

/// The dynptr at this address.
///
/// # Safety
/// `at` must be one that the running program was given or has made.
unsafe fn read(at: u64) -> Dynptr {
    // SAFETY: the verifier has proven that a dynptr is there. It is copied, so that later writes do not matter.
    unsafe { (at as *const Dynptr).read_unaligned() }
}

/// Makes the dynptr at this address.
///
/// # Safety
/// `at` must be sixteen writable bytes of the program's stack.
unsafe fn write(at: u64, dynptr: Dynptr) {
    // SAFETY: the verifier has proven so many bytes of the stack there.
    unsafe { (at as *mut Dynptr).write_unaligned(dynptr) };
}

/// `bpf_dynptr_from_mem(data, size, flags, ptr)`.
///
/// # Safety
/// `data` must be `size` bytes of a map's value, and `ptr` as in [`write`].
pub(super) unsafe extern "C" fn from_mem(data: u64, size: u64, flags: u64, ptr: u64, _: u64, _: *mut RunCtx) -> u64 {
    let size = u64::from(low(size));
    let (made, done) = match (size > MAX_SIZE, flags) {
        (true, _) => (Dynptr::NULL, Err(Errno::E2BIG)),
        (false, 0) => (Dynptr { data, size: low(size), offset: 0 }, Ok(0)),
        (false, _) => (Dynptr::NULL, Err(EINVAL)),
    };
    // SAFETY: the caller's promise.
    unsafe { write(ptr, made) };
    ret(done)
}

/// A dynptr over the packet of a context, with its present length.
///
/// # Safety
/// `ptr` as in [`write`]; `context` must be the running program's, of that kind.
unsafe fn from_packet(context: u64, len: usize, kind: u32, flags: u64, ptr: u64) -> u64 {
    // `bpf_dynptr_adjust` of a longer dynptr could make its offset equal to a kind.
    let fits = u32::try_from(len).ok().filter(|size| u64::from(*size) <= MAX_SIZE).ok_or(Errno::E2BIG);
    let fits = if flags == 0 { fits } else { Err(EINVAL) };
    // A null dynptr keeps its kind: see `slice`.
    let none = Dynptr { offset: kind, ..Dynptr::NULL };
    let made = fits.map_or(none, |size| Dynptr { data: context, size, offset: kind });
    // SAFETY: the caller's promise.
    unsafe { write(ptr, made) };
    ret(fits.map(|_| 0))
}

/// `bpf_dynptr_from_xdp(xdp, flags, ptr)`.
///
/// # Safety
/// The first argument must be the context of the running XDP program, `ptr` as in [`write`].
pub(super) unsafe extern "C" fn from_xdp(context: u64, flags: u64, ptr: u64, _: u64, _: u64, _: *mut RunCtx) -> u64 {
    // SAFETY: the linker binds this to XDP programs only, and the verifier admits only their context.
    let len = unsafe { &*(context as *const XdpBuff<'_>) }.window.len();
    // SAFETY: the arguments are passed on as the program gave them.
    unsafe { from_packet(context, len, XDP, flags, ptr) }
}

/// `bpf_dynptr_from_xdp(xdp, flags, ptr)` of a packet in pieces.
///
/// # Safety
/// The first argument must be the context of the running program on [`crate::net::XdpFrags`], `ptr` as in [`write`].
pub(super) unsafe extern "C" fn from_frags(context: u64, flags: u64, ptr: u64, _: u64, _: u64, _: *mut RunCtx) -> u64 {
    // SAFETY: the linker binds this to programs on that context only, and the verifier admits only their context.
    let len = unsafe { &*(context as *const XdpFragsBuff<'_>) }.packet_len();
    // SAFETY: the arguments are passed on as the program gave them.
    unsafe { from_packet(context, len, XDP_FRAGS, flags, ptr) }
}

/// `bpf_dynptr_from_skb(skb, flags, ptr)`.
///
/// # Safety
/// The first argument must be the context of the running program on `__sk_buff`, `ptr` as in [`write`].
pub(super) unsafe extern "C" fn from_skb(context: u64, flags: u64, ptr: u64, _: u64, _: u64, _: *mut RunCtx) -> u64 {
    // SAFETY: the linker binds this to programs on that context only, and the verifier admits only their context.
    let len = unsafe { &*(context as *const SkBuff<'_>) }.window.len();
    // SAFETY: the arguments are passed on as the program gave them.
    unsafe { from_packet(context, len, SKB, flags, ptr) }
}

/// `bpf_dynptr_from_skb_meta(skb, flags, ptr)`: the metadata before the packet.
///
/// # Safety
/// As [`from_skb`].
pub(super) unsafe extern "C" fn from_skb_meta(
    context: u64,
    flags: u64,
    ptr: u64,
    _: u64,
    _: u64,
    _: *mut RunCtx,
) -> u64 {
    // SAFETY: the linker binds this to programs on that context only, and the verifier admits only their context.
    let len = unsafe { &*(context as *const SkBuff<'_>) }.window.metadata().len();
    // SAFETY: the arguments are passed on as the program gave them.
    unsafe { from_packet(context, len, SKB_META, flags, ptr) }
}

/// `bpf_dynptr_copy(dst, dst_offset, src, src_offset, size)`.
///
/// # Safety
/// Both must be as in [`read`].
pub(super) unsafe extern "C" fn copy(to: u64, to_at: u64, from: u64, from_at: u64, size: u64, run: *mut RunCtx) -> u64 {
    let (to_at, from_at, size) = (u64::from(low(to_at)), u64::from(low(from_at)), u64::from(low(size)));
    // SAFETY: the caller's promise.
    let source = unsafe { read(from) };
    // SAFETY: the caller's promise.
    let target = unsafe { read(to) };
    // SAFETY: emitted code waits for this call.
    let bytes = unsafe { source.bytes(from_at, size) };
    // SAFETY: emitted code waits for this call.
    let room = if target.is_read_only() { Err(EINVAL) } else { unsafe { target.bytes(to_at, size) } };
    match (bytes, room) {
        (Ok(bytes), Ok(room)) => {
            // SAFETY: so many bytes are in both; `copy`, because both may lead to the same memory.
            unsafe { core::ptr::copy(bytes, room, index(size)) };
            0
        }
        // SAFETY: so many bytes are there; the rest is passed on as the program gave it.
        (Ok(bytes), Err(_)) => unsafe { dynptr_write(to, to_at, bytes as u64, size, 0, run) },
        // SAFETY: emitted code waits for this call.
        (Err(error), Ok(room)) => match unsafe { source.in_pieces(from_at, size) } {
            Some(Ok((packet, at))) => {
                // SAFETY: so many bytes are there.
                unsafe { frags::load(packet, at, room, index(size)) };
                0
            }
            Some(Err(_)) | None => ret(Err(error)),
        },
        (Err(_), Err(_)) if target.check(to_at, size).and(source.check(from_at, size)).is_err() => {
            ret(Err(Errno::E2BIG))
        }
        (Err(_), Err(_)) => {
            let mut chunk = [0u8; 256];
            let at = (&raw mut chunk).expose_provenance() as u64;
            for done in (0..size).step_by(chunk.len()) {
                let len = (size - done).min(256);
                // SAFETY: the chunk has so many bytes.
                let error = unsafe { dynptr_read(at, len, from, from_at + done, 0, run) };
                // SAFETY: the chunk has so many bytes; `to` is a dynptr by the caller's promise.
                let error = if error == 0 { unsafe { dynptr_write(to, to_at + done, at, len, 0, run) } } else { error };
                if error != 0 {
                    return error;
                }
            }
            0
        }
    }
}

/// `bpf_dynptr_memset(dynptr, offset, size, byte)`.
///
/// # Safety
/// `dynptr` must be as in [`read`].
pub(super) unsafe extern "C" fn memset(dynptr: u64, at: u64, size: u64, byte: u64, _: u64, run: *mut RunCtx) -> u64 {
    let (at, size) = (u64::from(low(at)), u64::from(low(size)));
    // SAFETY: the caller's promise.
    let target = unsafe { read(dynptr) };
    if target.is_read_only() {
        return ret(Err(EINVAL));
    }
    // SAFETY: emitted code waits for this call.
    if let Ok(room) = unsafe { target.bytes(at, size) } {
        // SAFETY: so many bytes are there.
        unsafe { core::ptr::write_bytes(room, (byte & 0xff) as u8, index(size)) };
        return 0;
    }
    if let Err(errno) = target.check(at, size) {
        return ret(Err(errno));
    }
    let chunk = [(byte & 0xff) as u8; 256];
    let from = (&raw const chunk).expose_provenance() as u64;
    for done in (0..size).step_by(chunk.len()) {
        let len = (size - done).min(256);
        // SAFETY: the chunk has so many bytes.
        let error = unsafe { dynptr_write(dynptr, at + done, from, len, 0, run) };
        if error != 0 {
            return error;
        }
    }
    0
}

/// `bpf_dynptr_read(dst, len, dynptr, offset, flags)`. An error zeroes the target.
///
/// # Safety
/// `dst` must be writable for `len` bytes, and `dynptr` be as in [`read`].
pub(super) unsafe extern "C" fn dynptr_read(
    dst: u64,
    len: u64,
    dynptr: u64,
    offset: u64,
    flags: u64,
    _: *mut RunCtx,
) -> u64 {
    let (len, offset) = (u64::from(low(len)), u64::from(low(offset)));
    // SAFETY: the caller's promise.
    let from = unsafe { read(dynptr) };
    // SAFETY: emitted code waits for this call.
    if let (0, Some(Ok((packet, at)))) = (flags, unsafe { from.in_pieces(offset, len) }) {
        // SAFETY: the program was proven to pass `len` writable bytes at `dst`.
        unsafe { frags::load(packet, at, dst as *mut u8, index(len)) };
        return 0;
    }
    // SAFETY: emitted code waits for this call.
    let bytes = if flags == 0 { unsafe { from.bytes(offset, len) } } else { Err(EINVAL) };
    match bytes {
        Ok(bytes) => {
            // SAFETY: so many bytes are there, and the program was proven to pass as many; `copy`, because the target
            // may be any memory.
            unsafe { core::ptr::copy(bytes, dst as *mut u8, index(len)) };
            0
        }
        Err(errno) => {
            // SAFETY: the program was proven to pass `len` writable bytes at `dst`.
            unsafe { core::ptr::write_bytes(dst as *mut u8, 0, index(len)) };
            ret(Err(errno))
        }
    }
}

/// `bpf_dynptr_write(dynptr, offset, src, len, flags)`.
///
/// # Safety
/// `src` must be readable for `len` bytes, and `dynptr` be as in [`read`].
pub(super) unsafe extern "C" fn dynptr_write(
    dynptr: u64,
    offset: u64,
    src: u64,
    len: u64,
    flags: u64,
    run: *mut RunCtx,
) -> u64 {
    let (len, offset) = (u64::from(low(len)), u64::from(low(offset)));
    // SAFETY: the caller's promise.
    let to = unsafe { read(dynptr) };
    // SAFETY: emitted code waits for this call.
    if let (false, 0, Some(Ok((packet, at)))) = (to.is_read_only(), flags, unsafe { to.in_pieces(offset, len) }) {
        // SAFETY: the program was proven to pass `len` readable bytes at `src`.
        unsafe { frags::store(packet, at, src as *const u8, index(len)) };
        return 0;
    }
    // SAFETY: emitted code waits for this call.
    let bytes = if to.is_read_only() { Err(EINVAL) } else { unsafe { to.bytes(offset, len) } };
    match bytes {
        Err(errno) => ret(Err(errno)),
        Ok(_) if to.offset & KIND == SKB => {
            let at = u64::from(to.offset & OFFSET) + offset;
            // SAFETY: `data` is the context of the running program on `__sk_buff`; the rest is passed on as the
            // program gave it.
            unsafe { skb_store_bytes(to.data, at, src, len, flags, run) }
        }
        Ok(_) if flags != 0 => ret(Err(EINVAL)),
        Ok(bytes) => {
            // SAFETY: so many bytes are there, and the program was proven to pass as many; `copy`, because the source
            // may be any memory.
            unsafe { core::ptr::copy(src as *const u8, bytes, index(len)) };
            0
        }
    }
}

/// `bpf_dynptr_data(dynptr, offset, len)`: of memory, not of a packet.
///
/// # Safety
/// `dynptr` must be as in [`read`].
pub(super) unsafe extern "C" fn dynptr_data(dynptr: u64, offset: u64, len: u64, _: u64, _: u64, _: *mut RunCtx) -> u64 {
    // SAFETY: the caller's promise.
    let from = unsafe { read(dynptr) };
    if from.is_read_only() || from.offset & KIND != 0 {
        return 0;
    }
    // SAFETY: emitted code waits for this call.
    let bytes = unsafe { from.bytes(u64::from(low(offset)), u64::from(low(len))) };
    bytes.map_or(0, |bytes| bytes.expose_provenance() as u64)
}

/// `bpf_dynptr_slice(dynptr, offset, buffer, len)`: returns a pointer to the range. If the range spans several pieces
/// of a packet, it is copied to the buffer; otherwise the buffer is zeroed, as the program may read it. For other
/// memory than packets, the buffer is not used, and the verifier has not checked it.
///
/// # Safety
/// `dynptr` must be as in [`read`]; `buffer` null, or writable for `len` bytes if `dynptr` was to lead to a packet.
pub(super) unsafe extern "C" fn slice(dynptr: u64, offset: u64, buffer: u64, len: u64, _: u64, _: *mut RunCtx) -> u64 {
    // SAFETY: the caller's promise.
    let from = unsafe { read(dynptr) };
    let (offset, len) = (u64::from(low(offset)), u64::from(low(len)));
    // SAFETY: emitted code waits for this call.
    let bytes = unsafe { from.bytes(offset, len) };
    if buffer != 0 && from.offset & KIND != 0 {
        let (room, size) = (buffer as *mut u8, index(len));
        // SAFETY: emitted code waits for this call.
        if let (Err(_), Some(Ok((packet, at)))) = (bytes, unsafe { from.in_pieces(offset, len) }) {
            // SAFETY: the caller's promise.
            unsafe { frags::load(packet, at, room, size) };
            return buffer;
        }
        // SAFETY: the caller's promise.
        unsafe { core::ptr::write_bytes(room, 0, size) };
    }
    bytes.map_or(0, |bytes| bytes.expose_provenance() as u64)
}

/// `bpf_dynptr_slice_rdwr(dynptr, offset, buffer, len)`. A packet's is never read-only.
///
/// # Safety
/// As [`slice`].
pub(super) unsafe extern "C" fn slice_rdwr(
    dynptr: u64,
    offset: u64,
    buffer: u64,
    len: u64,
    e: u64,
    run: *mut RunCtx,
) -> u64 {
    // SAFETY: the caller's promise.
    if unsafe { read(dynptr) }.is_read_only() {
        return 0;
    }
    // SAFETY: the arguments are passed on as the program gave them.
    unsafe { slice(dynptr, offset, buffer, len, e, run) }
}

/// `bpf_dynptr_adjust(dynptr, start, end)`: narrows the dynptr to the bytes from `start` up to `end` of its range.
///
/// # Safety
/// `dynptr` must be as in [`read`], on the stack.
pub(super) unsafe extern "C" fn adjust(dynptr: u64, start: u64, end: u64, _: u64, _: u64, _: *mut RunCtx) -> u64 {
    let (start, end) = (low(start), low(end));
    // SAFETY: the caller's promise.
    let old = unsafe { read(dynptr) };
    if old.data == 0 || start > end {
        return ret(Err(EINVAL));
    }
    if end > old.size {
        return ret(Err(Errno::ERANGE));
    }
    // At most the size that it was made with: this adds no bit of the kind's.
    let new = Dynptr { offset: old.offset + start, size: end - start, ..old };
    // SAFETY: the caller's promise.
    unsafe { write(dynptr, new) };
    0
}

/// `bpf_dynptr_is_null(dynptr)`.
///
/// # Safety
/// `dynptr` must be as in [`read`].
pub(super) unsafe extern "C" fn is_null(dynptr: u64, _: u64, _: u64, _: u64, _: u64, _: *mut RunCtx) -> u64 {
    // SAFETY: the caller's promise.
    u64::from(unsafe { read(dynptr) }.data == 0)
}

/// `bpf_dynptr_is_rdonly(dynptr)`.
///
/// # Safety
/// `dynptr` must be as in [`read`].
pub(super) unsafe extern "C" fn is_rdonly(dynptr: u64, _: u64, _: u64, _: u64, _: u64, _: *mut RunCtx) -> u64 {
    // SAFETY: the caller's promise.
    let of = unsafe { read(dynptr) };
    u64::from(of.data != 0 && of.is_read_only())
}

/// `bpf_dynptr_size(dynptr)`.
///
/// # Safety
/// `dynptr` must be as in [`read`].
pub(super) unsafe extern "C" fn size(dynptr: u64, _: u64, _: u64, _: u64, _: u64, _: *mut RunCtx) -> u64 {
    // SAFETY: the caller's promise.
    let of = unsafe { read(dynptr) };
    ret(if of.data == 0 { Err(EINVAL) } else { Ok(of.size.into()) })
}

/// `bpf_dynptr_clone(dynptr, clone)`.
///
/// # Safety
/// `dynptr` must be as in [`read`], `clone` as in [`write`].
pub(super) unsafe extern "C" fn clone(dynptr: u64, clone: u64, _: u64, _: u64, _: u64, _: *mut RunCtx) -> u64 {
    // SAFETY: the caller's promise.
    let of = unsafe { read(dynptr) };
    // SAFETY: the caller's promise.
    unsafe { write(clone, of) };
    ret(if of.data == 0 { Err(EINVAL) } else { Ok(0) })
}

/// `bpf_ringbuf_reserve_dynptr(ringbuf, size, flags, ptr)`: leads nowhere if there is no room; it is submitted or
/// discarded in any case.
///
/// # Safety
/// As [`ringbuf_reserve`]; `ptr` as in [`write`].
pub(super) unsafe extern "C" fn reserve(map: u64, size: u64, flags: u64, ptr: u64, e: u64, run: *mut RunCtx) -> u64 {
    let size = u64::from(low(size));
    let errno = if flags != 0 || size <= MAX_SIZE { EINVAL } else { Errno::E2BIG };
    let sample = match (flags, size) {
        // SAFETY: the arguments are passed on as the program gave them.
        (0, 1..=MAX_SIZE) => unsafe { ringbuf_reserve(map, size, flags, 0, e, run) },
        (_, _) => 0,
    };
    let made = if sample == 0 { Dynptr::NULL } else { Dynptr { data: sample, size: low(size), offset: 0 } };
    // SAFETY: the caller's promise.
    unsafe { write(ptr, made) };
    ret(if sample == 0 { Err(errno) } else { Ok(0) })
}

/// `bpf_ringbuf_submit_dynptr(ptr, flags)`.
///
/// # Safety
/// `ptr` must be a record's dynptr that the run has made and still has, the last argument its hidden one.
pub(super) unsafe extern "C" fn submit(ptr: u64, flags: u64, c: u64, d: u64, e: u64, run: *mut RunCtx) -> u64 {
    // SAFETY: the caller's promise.
    let data = unsafe { read(ptr) }.data;
    // SAFETY: `data` is a record that the run holds, or 0, which no run holds.
    unsafe { ringbuf_submit(data, flags, c, d, e, run) }
}

/// `bpf_ringbuf_discard_dynptr(ptr, flags)`.
///
/// # Safety
/// As [`submit`].
pub(super) unsafe extern "C" fn discard(ptr: u64, flags: u64, c: u64, d: u64, e: u64, run: *mut RunCtx) -> u64 {
    // SAFETY: the caller's promise.
    let data = unsafe { read(ptr) }.data;
    // SAFETY: `data` is a record that the run holds, or 0, which no run holds.
    unsafe { ringbuf_discard(data, flags, c, d, e, run) }
}

/// `bpf_user_ringbuf_drain(map, callback, ctx, flags)`: calls `callback(dynptr, ctx)` for each record until it
/// returns non-zero; the number of records, or an error number.
///
/// # Safety
/// `map` must be a live map.
pub(crate) unsafe fn run_drain(
    run: &mut Run,
    map: u64,
    arg: u64,
    flags: u64,
    call: CallBack<'_>,
) -> Result<u64, HelperError> {
    let mut failed = None;
    let mut visit = |data: *mut u8, len: u32| {
        let record = Dynptr::lent(data, len);
        match call(run, [(&raw const record).expose_provenance() as u64, arg, 0, 0, 0]) {
            Ok(r0) => r0 == 0,
            Err(error) => {
                failed = Some(error);
                false
            }
        }
    };
    // SAFETY: both callers pass the map that their program was proven to pass, a user ring buffer that the run's
    // guard keeps.
    let visited = unsafe { map_ops::user_ringbuf_drain(map as *const MapHeader, flags, &mut visit) };
    match failed {
        Some(error) => Err(error),
        None => Ok(visited as u64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The offset of a dynptr has 24 bits, and its kind those above.
    #[test]
    fn a_packet_is_no_longer_than_offsets_are() {
        let context = 4096;
        let none = core::ptr::null_mut();
        for (len, fits) in [(1 << 24, false), (1 << 28, false), (1 << 30, false), ((1 << 24) - 1, true), (0, true)] {
            let mut made = Dynptr { data: 1, size: 1, offset: 1 };
            let at = (&raw mut made).expose_provenance() as u64;
            // SAFETY: `at` is a dynptr; the context is not looked at.
            let done = unsafe { from_packet(context, len, XDP, 0, at) };
            assert_eq!(done, if fits { 0 } else { ret(Err(Errno::E2BIG)) }, "{len}");
            // SAFETY: `at` is a dynptr, set by the call above.
            let adjusted = unsafe { adjust(at, len as u64, len as u64, 0, 0, none) };
            assert_eq!(adjusted == 0, fits, "{len}");
            // SAFETY: `at` is a dynptr, set by the call above.
            let kind = unsafe { read(at) }.offset & KIND;
            assert_eq!(kind, XDP, "{len}");
        }
    }
}
