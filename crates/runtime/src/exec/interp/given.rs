//! The context memory that an interpreted run may access: the structure, by its fields, and the memory that it points
//! to.

use crate::context::Parts;
use crate::context::places::{Given, Places};
use bpf_interp::Memory;
use bpf_verifier::{ContextLayout, FieldKind};
use core::ops::Range;

/// Gives the machine what the program may access. Returns r1.
///
/// # Safety
/// As for [`run`](super::run); the memory must not be used otherwise while the machine has it.
pub(super) unsafe fn give<'m>(memory: &mut Memory<'m>, places: &Places, parts: Parts) -> u64 {
    // SAFETY: the caller vouches for the parts, which were borrowed mutably for the run.
    let context: &'m mut [u8] = unsafe { slice(parts.context, parts.context_len) };
    // Not where the slice is, which need not be there if it is empty: machine code is given this one.
    let r1 = parts.context.expose_provenance() as u64;
    if !parts.memory.is_null() {
        // SAFETY: the caller vouches for the parts, borrowed mutably for the run; this one is no part of the context.
        memory.add_writable(unsafe { slice(parts.memory, parts.memory_len) });
    }
    // Regions that lie in the context itself, and whether programs may write them.
    let mut inside: Vec<(Range<usize>, bool)> = Vec::new();
    let word = |at: usize| Some(usize::from_ne_bytes(*context.get(at..)?.first_chunk()?));
    let at = (context.as_ptr().addr(), context.len());
    for Given { start, len, writable, inside: within } in (0..places.count()).filter_map(|i| places.region(i, at, word))
    {
        if let Some(part) = within {
            inside.push((part, writable));
            continue;
        }
        if !parts.memory.is_null() {
            continue;
        }
        let start: *mut u8 = core::ptr::with_exposed_provenance_mut(start);
        if writable {
            // SAFETY: the context's pointers are the ends of memory that is borrowed mutably with it.
            memory.add_writable(unsafe { slice(start, len) });
        } else {
            // SAFETY: the context's pointers are the ends of memory that is borrowed as shared with it.
            memory.add_read_only(unsafe { shared(start, len) });
        }
    }
    if places.raw {
        memory.add_writable(context);
        return r1;
    }
    // Each field is checked by itself: a program may be unverified, or its proof wrong. Bytes of no field are the
    // host's.
    let fields: &[(Range<usize>, bool)] = if inside.is_empty() {
        &places.fields
    } else {
        inside.extend_from_slice(&places.fields);
        inside.sort_unstable_by_key(|(part, _)| part.start);
        &inside
    };
    let end = context.len();
    let (mut rest, mut at) = (context, 0);
    for (part, writable) in fields {
        // As far as the structure goes; no region lies over fields.
        let part = part.start.clamp(at, end)..part.end.clamp(at, end);
        let (_, tail) = core::mem::take(&mut rest).split_at_mut(part.start - at);
        let (bytes, tail) = tail.split_at_mut(part.len());
        (rest, at) = (tail, part.end);
        if *writable {
            memory.add_writable(bytes)
        } else {
            memory.add_guarded(bytes)
        };
    }
    r1
}

/// The sockets that a context points to.
///
/// # Safety
/// The context must be as the layout says, and stay so until the result has been used.
pub(super) unsafe fn sockets(layout: &ContextLayout, parts: Parts) -> impl Iterator<Item = u64> {
    let fields = layout.fields.iter().filter(|field| field.kind == FieldKind::Socket);
    fields.filter_map(move |field| {
        let at = parts.context.wrapping_add(field.host_offset as usize).cast::<u64>();
        // SAFETY: the layout says that eight bytes are there.
        let socket = unsafe { at.read_unaligned() };
        (socket != 0).then_some(socket)
    })
}

/// [`slice`] of memory that others may read meanwhile.
///
/// # Safety
/// `len` bytes at `at` must be valid for reads for `'a`, and not written.
unsafe fn shared<'a>(at: *const u8, len: usize) -> &'a [u8] {
    if len == 0 {
        return &[];
    }
    // SAFETY: `len` bytes at `at`, more than none here, are valid for `'a` and not written: the caller's promise.
    unsafe { core::slice::from_raw_parts(at, len) }
}

/// A slice for the interpreter; an empty one where there is no memory.
///
/// # Safety
/// `len` bytes at `at` must be valid for reads and writes for `'a`, and not used otherwise.
unsafe fn slice<'a>(at: *mut u8, len: usize) -> &'a mut [u8] {
    if at.is_null() || len == 0 {
        return &mut [];
    }
    // SAFETY: `len` bytes at `at`, more than none here, are valid for `'a` and used by nobody else: the caller's
    // promise.
    unsafe { core::slice::from_raw_parts_mut(at, len) }
}
