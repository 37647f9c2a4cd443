//! The context memory that an interpreted run may access: the structure, by its fields, and the memory that it points
//! to.

use crate::context::Parts;
use bpf_interp::Memory;
use bpf_verifier::{ContextLayout, Field, FieldKind};
use core::ops::Range;

/// Gives the machine what the program may access. Returns r1.
///
/// # Safety
/// As for [`run`](super::run); the memory must not be used otherwise while the machine has it.
pub(super) unsafe fn give<'m>(memory: &mut Memory<'m>, layout: &ContextLayout, parts: Parts) -> u64 {
    // SAFETY: the caller vouches for the parts, which were borrowed mutably for the run.
    let context: &'m mut [u8] = unsafe { slice(parts.context, parts.context_len) };
    // Not where the slice is, which need not be there if it is empty: machine code is given this one.
    let r1 = parts.context.expose_provenance() as u64;
    // Regions that lie in the context itself, and whether programs may write them.
    let mut inside: Vec<(Range<usize>, bool)> = Vec::new();
    if !parts.memory.is_null() {
        // SAFETY: the caller vouches for the parts, borrowed mutably for the run; this one is no part of the context.
        memory.add_writable(unsafe { slice(parts.memory, parts.memory_len) });
    }
    for (index, region) in (0..=u8::MAX).zip(&layout.regions).filter(|_| !layout.raw) {
        let pointer = |kind| {
            let field = layout.fields.iter().find(|f| f.kind == kind)?;
            let bytes = context.get(field.host_offset as usize..)?.first_chunk()?;
            Some(usize::from_ne_bytes(*bytes))
        };
        let Some(start) = pointer(FieldKind::Data(index)) else { continue };
        let end = pointer(FieldKind::DataEnd(index));
        let at = start.wrapping_sub(context.as_ptr().addr());
        // A region without an end has the bytes that every context has of it.
        let len = end.map_or(crate::num::index(region.min_len.into()), |end| end.saturating_sub(start));
        if at < context.len() && len <= context.len() - at {
            inside.push((at..at + len, region.writable));
            continue;
        }
        if !parts.memory.is_null() || end.is_none() {
            continue;
        }
        let start: *mut u8 = core::ptr::with_exposed_provenance_mut(start);
        if region.writable {
            // SAFETY: the context's pointers are the ends of memory that is borrowed mutably with it.
            memory.add_writable(unsafe { slice(start, len) });
        } else {
            // SAFETY: the context's pointers are the ends of memory that is borrowed as shared with it.
            memory.add_read_only(unsafe { shared(start, len) });
        }
    }
    if is_whole(layout) {
        memory.add_writable(context);
        return r1;
    }
    // Each field is checked by itself: a program may be unverified, or its proof wrong. Bytes of no field are the
    // host's.
    inside.extend(host_parts(&layout.fields, context.len()));
    inside.sort_unstable_by_key(|(part, _)| part.start);
    let (mut rest, mut at) = (context, 0);
    for (part, writable) in inside {
        // No region lies over fields.
        let part = part.start.max(at)..part.end.max(at);
        let (_, tail) = core::mem::take(&mut rest).split_at_mut(part.start - at);
        let (bytes, tail) = tail.split_at_mut(part.len());
        (rest, at) = (tail, part.end);
        if writable {
            memory.add_writable(bytes)
        } else {
            memory.add_guarded(bytes)
        };
    }
    r1
}

/// Whether the context is one part of the memory. The host's structure is not: it has private values between its
/// fields.
pub(crate) fn is_whole(layout: &ContextLayout) -> bool {
    layout.raw
}

/// The parts of the host's structure that fields lie in, ascending, and whether programs may write them: the fields may
/// lie there in any order, and over each other, and are taken as far as the structure goes.
pub(crate) fn host_parts(fields: &[Field], len: usize) -> Vec<(Range<usize>, bool)> {
    let place = |field: &Field| {
        let start = (field.host_offset as usize).min(len);
        start..start.saturating_add(field.host_size as usize).min(len)
    };
    let mut cuts: Vec<usize> = fields.iter().map(place).flat_map(|place| [place.start, place.end]).collect();
    cuts.sort_unstable();
    cuts.dedup();
    let mut parts: Vec<(Range<usize>, bool)> = Vec::new();
    for (start, end) in cuts.iter().copied().zip(cuts.iter().copied().skip(1)) {
        let mut covering =
            fields.iter().filter(|field| place(field).start <= start && end <= place(field).end).peekable();
        if covering.peek().is_none() {
            continue;
        }
        let writable = covering.any(|field| field.access.writes());
        match parts.last_mut() {
            Some((last, access)) if last.end == start && *access == writable => last.end = end,
            Some(_) | None => parts.push((start..end, writable)),
        }
    }
    parts
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

#[cfg(test)]
mod tests {
    use super::*;
    use bpf_verifier::Access;

    #[test]
    fn fields_lie_in_the_hosts_structure_in_any_order() {
        let field = |host_offset, host_size, access| {
            let (name, kind) = ("f".into(), FieldKind::Scalar);
            Field { name, offset: 0, size: host_size, access, kind, host_offset, host_size }
        };
        let (read, write) = (Access::Read, Access::ReadWrite);
        let parts = |fields: &[Field], len| host_parts(fields, len);
        assert_eq!(parts(&[field(8, 4, read), field(0, 4, write)], 16), [(0..4, true), (8..12, false)]);
        assert_eq!(parts(&[field(4, 4, write), field(0, 4, write)], 16), [(0..8, true)]);
        assert_eq!(
            parts(&[field(0, 8, read), field(4, 4, write), field(0, 8, read)], 16),
            [(0..4, false), (4..8, true)]
        );
        assert_eq!(parts(&[field(12, 8, read), field(u32::MAX, 8, write)], 16), [(12..16, false)]);
        assert_eq!(parts(&[], 16), []);
    }
}
