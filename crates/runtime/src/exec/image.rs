//! A copy of the memory that a run is given: the context, and the memory that it points to.

use crate::context::Parts;
use crate::context::places::{Given, Places};
use crate::exec::log::digest;
use core::ops::Range;

impl Places {
    /// Appends the fields of the context at `at` to `bytes`.
    ///
    /// # Safety
    /// As for [`Image::take`].
    unsafe fn copy_fields(&self, at: *const u8, len: usize, bytes: &mut Vec<u8>) {
        let start = bytes.len();
        bytes.resize(start + len, 0);
        for (part, _) in &self.fields {
            let Some(to) = bytes[start..].get_mut(part.clone()) else { continue };
            // SAFETY: inside the context (the caller's contract), as `to` is inside the copy; a field has no padding.
            unsafe { core::ptr::copy_nonoverlapping(at.wrapping_add(part.start), to.as_mut_ptr(), part.len()) };
        }
    }
}

/// A part of a run's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Part {
    /// Its address in the run.
    pub(crate) start: u64,
    pub(crate) len: usize,
    /// Whether programs may write it.
    pub(crate) writable: bool,
}

/// Bytes that are kept for later runs, however short the contexts are.
const KEPT: usize = 16 << 10;

/// The memory of one run before it. Reused, it allocates nothing for a context that is not longer than all before.
#[derive(Clone, Debug, Default)]
pub(crate) struct Image {
    /// The context first.
    pub(crate) parts: Vec<Part>,
    /// The bytes of the parts, one after the other.
    pub(crate) bytes: Vec<u8>,
}

impl Image {
    /// Copies what a run is given.
    ///
    /// # Safety
    /// `parts` must be valid for reads, and agree with the layout of `places`.
    #[inline]
    pub(crate) unsafe fn take(&mut self, places: &Places, parts: Parts) {
        self.parts.clear();
        self.bytes.clear();
        // A vector that grows by itself begins with room for four.
        self.parts.reserve_exact(1 + usize::from(!parts.memory.is_null()) + places.count());
        if parts.context_len > places.dense && !parts.context.is_null() {
            let (at, len) = (parts.context.cast_const(), parts.context_len);
            self.parts.push(Part { start: at.expose_provenance() as u64, len, writable: true });
            // SAFETY: the caller's contract.
            unsafe { places.copy_fields(at, len, &mut self.bytes) };
        } else {
            // SAFETY: the caller's contract; fields have no padding.
            unsafe { self.add(parts.context, parts.context_len, true) };
        }
        if !parts.memory.is_null() {
            // SAFETY: the caller's contract.
            unsafe { self.add(parts.memory, parts.memory_len, true) };
        }
        let context = (parts.context.addr(), parts.context_len);
        for place in 0..places.count() {
            // The context is the first part, so its bytes begin at 0.
            let word = |at: usize| Some(usize::from_ne_bytes(*self.bytes.get(at..)?.first_chunk()?));
            let Some(Given { start, len, writable, inside }) = places.region(place, context, word) else { continue };
            if inside.is_some() || parts.memory.is_null() {
                // SAFETY: the context's pointers are the ends of memory that is borrowed with it, or the region lies in
                // the context.
                unsafe { self.add(core::ptr::with_exposed_provenance(start), len, writable) };
            }
        }
    }

    /// Bytes of its memory.
    pub(crate) fn memory(&self) -> usize {
        self.bytes.capacity() + size_of::<Part>() * self.parts.capacity()
    }

    /// Gives memory back that a much longer context has needed.
    pub(crate) fn shrink(&mut self) {
        if self.bytes.capacity() / 4 > self.bytes.len().max(KEPT) {
            self.bytes.shrink_to_fit();
        }
    }

    /// Address and length of each part of the copied memory that a function of the host may write, by `places`.
    pub(crate) fn own(&self, places: &Places) -> impl Iterator<Item = (u64, usize)> {
        let context = self.parts.first().copied();
        let (start, len) = context.map_or((0, 0), |part| (part.start, part.len));
        let field = move |(part, _): &(Range<usize>, bool)| {
            let end = part.end.min(len);
            (part.start < end).then(|| (start + part.start as u64, end - part.start))
        };
        let whole = (places.dense == usize::MAX && len != 0).then_some((start, len));
        let others = self.parts.iter().skip(1).filter(|part| part.writable && part.len != 0);
        places.fields.iter().filter_map(field).chain(whole).chain(others.map(|part| (part.start, part.len)))
    }

    /// The digest of the memory that was copied, as it is now.
    ///
    /// # Safety
    /// The memory must still be valid for reads.
    pub(crate) unsafe fn digest_now(&self, places: &Places) -> u64 {
        let at = |part: &Part| core::ptr::with_exposed_provenance::<u8>(crate::num::index(part.start));
        let mut context = Vec::new();
        if let Some(part) = self.parts.first().filter(|part| part.len > places.dense) {
            // SAFETY: the caller's contract.
            unsafe { places.copy_fields(at(part), part.len, &mut context) };
        }
        digest(self.parts.iter().enumerate().map(|(number, part)| match part.len {
            0 => &[][..],
            _ if number == 0 && !context.is_empty() => &context,
            len => {
                let at = at(part);
                // SAFETY: the caller's contract; `take` has read the bytes there.
                unsafe { core::slice::from_raw_parts(at, len) }
            }
        }))
    }

    /// # Safety
    /// If `at` is not null, `len` bytes must be there, valid for reads and not written meanwhile.
    #[inline]
    unsafe fn add(&mut self, at: *const u8, len: usize, writable: bool) {
        let len = if at.is_null() { 0 } else { len };
        self.parts.push(Part { start: at.expose_provenance() as u64, len, writable });
        if len != 0 {
            // SAFETY: the caller's contract.
            self.bytes.extend_from_slice(unsafe { core::slice::from_raw_parts(at, len) });
        }
    }
}
