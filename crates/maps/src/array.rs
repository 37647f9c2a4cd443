//! Arrays and per-CPU arrays.
//!
//! All elements exist from the start and never move: element `i` of slot `s` lies at `base + s * slot_stride + i *
//! stride`, which the JITs compute inline. A plain array is the case of one slot. Slots do not share cache lines, and
//! slots with a page of elements or more begin on pages of their own, so that memory is only used for slots that run.

use bpf_os::fd::{AsFd, OwnedFd};
use std::sync::atomic::AtomicU64;

use bpf_os::memory::{self, Pages};

use crate::def::{MapDef, MapType, flags, update};
use crate::errno::{Errno, OpResult};
use crate::header::{LookupFn, MapHeader};
use crate::mem::{Table, WORD, memory_file, round_up8, zero};
use crate::ops::{Addressable, Cursor, MapOps, Visit};
use crate::slots::Slots;
use crate::speculation::below;
use crate::value::{Shape, Source};

#[derive(Debug)]
pub(crate) struct ArrayMap {
    shape: Shape,
    max_entries: u32,
    /// Words from one element to the next.
    stride: usize,
    /// Words from one slot's elements to the next slot's; 0 in a plain array.
    slot_stride: usize,
    /// 1 in a plain array.
    slots: usize,
    words: Table<AtomicU64>,
    /// The memory file of a MMAPABLE array.
    file: Option<OwnedFd>,
}

/// Bytes that cores fetch together: two cache lines.
const APART: u64 = 128;

/// Bytes from one slot's values to the next slot's.
fn slot_bytes(def: &MapDef) -> u64 {
    let bytes = round_up8(def.value_size as usize) as u64 * u64::from(def.max_entries);
    let page = memory::page_size() as u64;
    bytes.next_multiple_of(if bytes < page { APART } else { page })
}

impl MapDef {
    /// Returns the strides of arrays and per-CPU arrays, in bytes: from one element to the next, and from one
    /// execution slot's elements to the next slot's (0 in a plain array). They equal those of the created map
    /// ([`MapHeader`]).
    #[must_use]
    pub fn array_strides(&self) -> Option<(u32, u64)> {
        let stride = u32::try_from(round_up8(self.value_size as usize)).ok()?;
        match self.map_type {
            MapType::Array => Some((stride, 0)),
            MapType::PerCpuArray => Some((stride, slot_bytes(self))),
            _other => None,
        }
    }
}

impl ArrayMap {
    /// Returns the bytes of memory that an array of this definition maps.
    pub(crate) fn memory_needed(def: &MapDef, slots: u32) -> u64 {
        let bytes = slot_bytes(def).saturating_mul(if def.map_type.is_per_cpu() { slots.into() } else { 1 });
        let page = memory::page_size() as u64;
        // Small arrays share pages with other allocations, unless they can be mapped into other address spaces.
        if bytes < page && def.flags & flags::MMAPABLE == 0 {
            return bytes;
        }
        bytes.checked_next_multiple_of(page).unwrap_or(u64::MAX)
    }

    pub(crate) fn new(def: &MapDef, slots: u32) -> OpResult<Self> {
        let per_cpu = def.map_type.is_per_cpu();
        let bytes = usize::try_from(Self::memory_needed(def, slots)).map_err(|_| Errno::ENOMEM)?;
        let file = if def.flags & flags::MMAPABLE != 0 { Some(memory_file(bytes)?) } else { None };
        let pages = file.as_ref().map_or(Pages::Anonymous, |fd| Pages::File(fd.as_fd()));
        Ok(Self {
            shape: Shape::of(def),
            max_entries: def.max_entries,
            stride: round_up8(def.value_size as usize) / WORD,
            slot_stride: if per_cpu { crate::num::index(slot_bytes(def)) / WORD } else { 0 },
            slots: if per_cpu { slots as usize } else { 1 },
            words: Table::on(bytes / WORD, pages)?,
            file,
        })
    }

    /// The memory file of a MMAPABLE array.
    pub(crate) fn file(&self) -> Option<&OwnedFd> {
        self.file.as_ref()
    }

    /// Zeroes all values and returns `true`; `false`, and no change, if values have fields that must not be
    /// overwritten.
    pub(crate) fn clear(&self) -> bool {
        let plain = !self.shape.has_fields();
        if plain {
            zero(&self.words);
        }
        plain
    }

    fn is_per_cpu(&self) -> bool {
        self.slot_stride != 0
    }

    fn element(&self, index: u32, slot: usize) -> &[AtomicU64] {
        let start = slot * self.slot_stride + index as usize * self.stride;
        &self.words[start..start + self.stride]
    }

    fn index(&self, key: &[u8]) -> OpResult<u32> {
        let bytes = key.try_into().map_err(|_| Errno::EINVAL)?;
        Ok(u32::from_ne_bytes(bytes))
    }

    fn in_range(&self, key: &[u8]) -> OpResult<Option<u32>> {
        let index = self.index(key)?;
        Ok((index < self.max_entries).then_some(index))
    }

    /// The checks of an update, in the kernel's order.
    fn check_update(&self, index: u32, flags: u64) -> OpResult {
        if flags & !update::F_LOCK > update::EXIST {
            return Err(Errno::EINVAL);
        }
        if index >= self.max_entries {
            return Err(Errno::E2BIG);
        }
        if flags & update::NOEXIST != 0 {
            return Err(Errno::EEXIST);
        }
        self.shape.check_flags(flags)
    }

    /// # Safety
    /// A program's source must be readable for the value size.
    unsafe fn write(&self, index: u32, value: Source<'_>, flags: u64, slot: u32) -> OpResult {
        let of = if self.is_per_cpu() { slot as usize } else { 0 };
        let words = self.element(index, of);
        // SAFETY: the caller promises that a program's source is readable for the value size.
        let copy = || unsafe { self.shape.write(words, value) };
        if flags & update::F_LOCK != 0 {
            self.shape.locked(words, slot, copy)?;
        } else {
            copy();
        }
        self.shape.let_go(words, slot);
        Ok(())
    }

    fn read(&self, index: u32, out: &mut [u8], flags: u64, slot: u32) -> OpResult {
        if self.is_per_cpu() {
            // A value and the zeros that it is padded with; without those where the slice has one value.
            let (stride, slots) = (self.stride * WORD, Slots::split(flags).0);
            for (of, place) in slots.places(self.slots, stride, out.len().min(stride)) {
                self.shape.read(self.element(index, of), &mut out[place]);
            }
            return Ok(());
        }
        let words = self.element(index, 0);
        if flags & update::F_LOCK != 0 {
            return self.shape.locked(words, slot, || self.shape.read(words, out));
        }
        self.shape.read(words, out);
        Ok(())
    }
}

impl Drop for ArrayMap {
    fn drop(&mut self) {
        if self.shape.owns() {
            (0..self.max_entries).for_each(|index| self.shape.let_go_alone(self.element(index, 0)));
        }
    }
}

/// The lookup function of arrays, for callers that do not inline the lookup.
///
/// # Safety
/// See [`LookupFn`].
unsafe extern "C" fn lookup(map: *const MapHeader, key: *const u8, slot: u32) -> *mut u8 {
    // SAFETY: a live header (contract).
    let header = unsafe { &*map };
    // SAFETY: the key of an array has 4 readable bytes (contract).
    let index = unsafe { key.cast::<u32>().read_unaligned() };
    if index >= header.max_entries {
        return std::ptr::null_mut();
    }
    // A contained program may look up an inner array by a number that an attacker chose.
    let index = below(index.into(), header.max_entries.into());
    let offset = u64::from(slot) * header.slot_stride + index * u64::from(header.stride);
    // SAFETY: index and slot are in range, so the element lies in the mapping.
    unsafe { header.base.add(crate::num::index(offset)) }
}

impl MapOps for ArrayMap {
    fn as_any(&self) -> &dyn std::any::Any {
        self
    }

    fn lookup_fn(&self) -> LookupFn {
        lookup
    }

    fn addressable(&self) -> Addressable {
        Addressable { base: self.words.base().cast(), stride: self.stride * WORD, slot_stride: self.slot_stride * WORD }
    }

    fn host_value_size(&self) -> usize {
        if self.is_per_cpu() { self.stride * WORD * self.slots } else { self.shape.size }
    }

    unsafe fn program_update(&self, key: *const u8, value: *const u8, flags: u64, slot: u32) -> OpResult {
        // SAFETY: the key of an array has 4 readable bytes (contract).
        let index = unsafe { key.cast::<u32>().read_unaligned() };
        self.check_update(index, flags)?;
        // SAFETY: the value is readable (contract).
        unsafe { self.write(index, Source::Program(value), flags, slot) }
    }

    unsafe fn program_delete(&self, _key: *const u8, _slot: u32) -> OpResult {
        Err(Errno::EINVAL)
    }

    unsafe fn program_lookup_percpu(&self, key: *const u8, cpu: u32) -> *mut u8 {
        // SAFETY: the key of an array has 4 readable bytes (contract).
        let index = unsafe { key.cast::<u32>().read_unaligned() };
        if !self.is_per_cpu() || cpu as usize >= self.slots || index >= self.max_entries {
            return std::ptr::null_mut();
        }
        self.element(index, cpu as usize).as_ptr().cast_mut().cast()
    }

    fn key_of(&self, value: *const u8, key: &mut [u8]) -> bool {
        let (first, stride) = (self.words.base().addr(), self.stride * WORD);
        let index = value.addr().checked_sub(first).filter(|at| at.is_multiple_of(stride)).map(|at| at / stride);
        let index = index.and_then(|index| u32::try_from(index).ok()).filter(|index| *index < self.max_entries);
        match (index, self.is_per_cpu()) {
            (Some(index), false) => key.copy_from_slice(&index.to_ne_bytes()),
            (Some(_), true) | (None, _) => return false,
        }
        true
    }

    fn for_each(&self, visit: Visit<'_>, slot: u32) -> OpResult<u64> {
        let of = if self.is_per_cpu() { slot as usize } else { 0 };
        for index in 0..self.max_entries {
            let value = self.element(index, of).as_ptr().cast_mut().cast();
            if !visit(std::ptr::from_ref(&index).cast(), value) {
                return Ok(u64::from(index) + 1);
            }
        }
        Ok(self.max_entries.into())
    }

    fn lookup(&self, key: &[u8], out: &mut [u8], flags: u64, slot: u32) -> OpResult {
        let index = self.in_range(key)?.ok_or(Errno::ENOENT)?;
        self.read(index, out, flags, slot)
    }

    fn update(&self, key: &[u8], value: &[u8], flags: u64, slot: u32) -> OpResult {
        let index = self.index(key)?;
        let (slots, flags) = if self.is_per_cpu() { Slots::split(flags) } else { (Slots::All, flags) };
        self.check_update(index, flags)?;
        if self.is_per_cpu() {
            for (of, place) in slots.places(self.slots, self.stride * WORD, self.shape.size) {
                // SAFETY: a host slice of the value size, so the contract about program sources does not apply.
                unsafe { self.shape.write(self.element(index, of), Source::Host(&value[place])) };
            }
            return Ok(());
        }
        // SAFETY: a host slice of the value size, so the contract about program sources does not apply.
        unsafe { self.write(index, Source::Host(value), flags, slot) }
    }

    fn delete(&self, _key: &[u8], _slot: u32) -> OpResult {
        Err(Errno::EINVAL)
    }

    fn next_key(&self, key: Option<&[u8]>, out: &mut [u8]) -> OpResult {
        let current = key.map(|key| self.in_range(key)).transpose()?.flatten();
        let next = current.map_or(0, |index| index + 1);
        if next >= self.max_entries {
            return Err(Errno::ENOENT);
        }
        out.copy_from_slice(&next.to_ne_bytes());
        Ok(())
    }

    fn next_at(&self, cursor: &mut Cursor, key: &mut [u8], value: &mut [u8], slot: u32) -> OpResult {
        let index = u32::try_from(cursor.position).ok().filter(|&i| i < self.max_entries).ok_or(Errno::ENOENT)?;
        key.copy_from_slice(&index.to_ne_bytes());
        self.read(index, value, 0, slot)?;
        cursor.position += 1;
        Ok(())
    }

    fn has_batch(&self) -> bool {
        true
    }

    fn len(&self) -> u64 {
        self.max_entries.into()
    }

    fn memory_usage(&self) -> u64 {
        (self.words.len() * WORD) as u64
    }
}
