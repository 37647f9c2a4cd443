//! The two phases of a program: [`Staged`] (written, has an address, cannot be run) and [`Text`] (can be run, cannot
//! be written).
//!
//! Problem: code is relocated for an address before it may be executed there; it must be impossible to run it too
//! early or to write it too late.
//!
//! Approach: types. `Staged` knows its final address as a number only. [`Staged::finalize`] consumes it, makes the
//! bytes visible to instruction fetch, and returns the `Text`, which alone gives out pointers. Dropping a `Staged`
//! fills its chunks with traps and frees them at once, because no CPU has fetched from them. Dropping a `Text`
//! retires it ([`crate::retire`]).
//!
//! Reach: a target that a direct branch does not reach from everywhere in the arena is called through a veneer after
//! the code, in the same allocation. Symbols are resolved first, so that the length is known before the address.

use std::sync::atomic::{AtomicU8, Ordering};

use bpf_jit_code::{Arch, Code, Reloc, RelocKind, Symbol};

use crate::Error;
use crate::arch::{self, VENEER};
use crate::arena;
use crate::chunks::Extent;
use crate::holds::Hold;
use crate::pack::fill_traps;
use crate::packs::{Packs, Shared};
use crate::place::{CHUNK, Place};

/// A loaded program. Its code does not change (except by patches) until this is dropped, and afterwards until no run
/// is left that began before.
#[derive(Debug)]
pub struct Text {
    shared: Hold<Shared>,
    extent: Extent,
    /// Start of the code in both views.
    rx: usize,
    rw: usize,
    len: usize,
    /// Offsets of the entries. Empty for a single entry at 0, which most programs have.
    entries: Box<[u32]>,
    published: bool,
}

/// A program being built. No code can run it yet: it has an address, but no pointer was given out.
#[derive(Debug)]
#[must_use = "a staged program that is not finalized is freed"]
pub struct Staged {
    text: Text,
}

impl Packs {
    /// Copies `code` to its final place and relocates it. `resolve` returns the address of a symbol. It may be called
    /// more than once for a symbol and must return the same address each time.
    ///
    /// # Errors
    /// See [`Error`]. Nothing is left behind.
    pub fn stage(&self, code: &Code, mut resolve: impl FnMut(Symbol) -> Option<usize>) -> Result<Staged, Error> {
        let (host, arena) = (self.shared.host, self.shared.arena.ok_or(Error::UnsupportedHost)?);
        if code.arch != host {
            return Err(Error::WrongArch(code.arch));
        }
        let mut targets = Vec::with_capacity(code.relocs.len());
        let mut far = Vec::new();
        for reloc in &code.relocs {
            let Reloc { at, kind, symbol } = *reloc;
            let target = resolve(symbol).ok_or(Error::Unresolved { at, symbol })?;
            let out_of_reach = is_branch(kind) && !arena.reaches(target, arch::reach(host));
            if out_of_reach && !far.contains(&target) {
                far.push(target);
            }
            targets.push(target);
        }
        let veneers = code.bytes.len().next_multiple_of(VENEER);
        let len = if far.is_empty() { code.bytes.len() } else { veneers + far.len() * VENEER };
        let mut staged = self.reserve(len)?;
        let base = staged.base();
        let bytes = staged.bytes_mut();
        bytes[..code.bytes.len()].copy_from_slice(&code.bytes);
        for (i, target) in far.iter().enumerate() {
            bytes[veneers + i * VENEER..][..VENEER].copy_from_slice(&arch::veneer(host, *target));
        }
        for (reloc, target) in code.relocs.iter().zip(targets) {
            let veneer = far.iter().position(|t| *t == target).filter(|_| is_branch(reloc.kind));
            let target = veneer.map_or(target, |i| base + veneers + i * VENEER);
            apply(host, reloc, base, target, &mut bytes[..code.bytes.len()])?;
        }
        if code.entries != [0] {
            staged.text.entries = code.entries.clone().into_boxed_slice();
        }
        Ok(staged)
    }

    /// Reserves room for `len` bytes of code that the caller writes: all traps at first, with one entry at 0.
    ///
    /// # Errors
    /// See [`Error`].
    #[inline]
    pub fn reserve(&self, len: usize) -> Result<Staged, Error> {
        if len == 0 {
            return Err(Error::Empty);
        }
        if self.shared.domain.is_forked() {
            return Err(Error::Forked);
        }
        // With a random start, every program has at least four possible places.
        let random = self.shared.options.random_offset;
        let slack = if random { CHUNK - Code::ALIGN } else { 0 };
        let Place { extent, rx, rw } = self.shared.allocate(len.saturating_add(slack))?;
        let offset = if random {
            // Within the first chunk, so that the chunk's start can be computed from the code's.
            arena::random_below(CHUNK / Code::ALIGN) * Code::ALIGN
        } else {
            0
        };
        let shared = Hold::new(&self.shared);
        let (rx, rw) = (rx + offset, rw + offset);
        Ok(Staged { text: Text { shared, extent, rx, rw, len, entries: Box::default(), published: false } })
    }

    /// Publishes many programs for the price of one barrier (on arm64; on x86-64 publishing is free).
    ///
    /// # Errors
    /// See [`Staged::finalize`]; no program is published then. [`Error::OtherPacks`] if one was not staged here.
    pub fn publish(&self, staged: Vec<Staged>) -> Result<Vec<Text>, Error> {
        if staged.iter().any(|s| !s.text.shared.is_of(&self.shared)) {
            return Err(Error::OtherPacks);
        }
        self.shared.publish(&staged)?;
        let publish = |mut staged: Staged| {
            staged.text.published = true;
            staged.text
        };
        Ok(staged.into_iter().map(publish).collect())
    }
}

impl Staged {
    /// The address at which the code will run, for relocations.
    pub fn base(&self) -> usize {
        self.text.rx
    }

    #[cfg(test)]
    pub(crate) fn extent(&self) -> Extent {
        self.text.extent
    }

    /// Length of the code, veneers included.
    pub fn len(&self) -> usize {
        self.text.len
    }

    /// False: code is never empty.
    pub fn is_empty(&self) -> bool {
        self.text.len == 0
    }

    /// The bytes of the code, to be completed.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let bytes = std::ptr::with_exposed_provenance_mut(self.text.rw);
        // SAFETY: `len` bytes of the writable view inside this program's own chunks; only `self`, which is borrowed,
        // refers to them.
        unsafe { std::slice::from_raw_parts_mut(bytes, self.text.len) }
    }

    /// Makes the code visible to instruction fetch on all CPUs: nothing on x86-64; cache maintenance and a core barrier
    /// on arm64 (see [`Packs::publish`] for many).
    ///
    /// # Errors
    /// [`Error::Forked`]; [`Error::CoreBarrier`] or, without core barriers, [`Error::Wait`]: on arm64 only.
    #[inline]
    pub fn finalize(mut self) -> Result<Text, Error> {
        self.text.shared.publish(std::slice::from_ref(&self))?;
        self.text.published = true;
        Ok(self.text)
    }
}

impl Shared {
    /// Makes these programs visible to all CPUs, before their entry points are given out.
    fn publish(&self, staged: &[Staged]) -> Result<(), Error> {
        if self.domain.is_forked() {
            return Err(Error::Forked);
        }
        for Staged { text } in staged {
            arch::synchronize_caches(text.rx, text.len);
        }
        // x86-64: the chunks' old instructions were discarded before they were freed, and fetch sees stores.
        if self.host == Arch::Arm64 && !staged.is_empty() {
            if self.domain.has_core_barrier() {
                self.domain.core_barrier()?;
            } else {
                // Runs begun from this call on discard fetched instructions; runs begun before must end first.
                self.domain.advance_code_epoch();
                self.domain.synchronize()?;
            }
        }
        self.count_published(staged.len());
        Ok(())
    }
}

impl Text {
    /// The address of the first byte of the code.
    pub fn base(&self) -> *const u8 {
        std::ptr::with_exposed_provenance(self.rx)
    }

    /// The entry point of a subprogram; 0 is the main program's.
    ///
    /// Running the entry is `unsafe` for the caller: inside a guard of the packs' domain, begun while this `Text` was
    /// alive, and with the calling convention the code was compiled for.
    pub fn entry(&self, subprogram: usize) -> Option<*const u8> {
        let offset = if self.entries.is_empty() && subprogram == 0 { 0 } else { *self.entries.get(subprogram)? };
        Some(self.base().wrapping_add(offset as usize))
    }

    /// Length of the code in bytes, veneers included.
    pub fn len(&self) -> usize {
        self.len
    }

    /// False: code is never empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes of executable memory of the program: whole chunks.
    pub fn footprint(&self) -> usize {
        self.extent.len as usize * CHUNK
    }

    /// Returns a copy of the current code, for dumps. Empty in a forked child, which does not have the code.
    pub fn to_vec(&self) -> Vec<u8> {
        if self.shared.domain.is_forked() {
            return Vec::new();
        }
        let first = std::ptr::with_exposed_provenance_mut::<u8>(self.rx);
        let byte = |i| {
            // SAFETY: inside this program's chunks, mapped as long as `self` lives, and only read; pokes, which write
            // through the other view, are atomic.
            let byte = unsafe { AtomicU8::from_ptr(first.wrapping_add(i)) };
            // Relaxed: a snapshot for people.
            byte.load(Ordering::Relaxed)
        };
        (0..self.len).map(byte).collect()
    }

    #[cfg(test)]
    pub(crate) fn extent(&self) -> Extent {
        self.extent
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.shared
    }

    /// Addresses of the code: executable view, writable view.
    pub(crate) fn views(&self) -> (usize, usize) {
        (self.rx, self.rw)
    }
}

impl Drop for Text {
    fn drop(&mut self) {
        if self.shared.domain.is_forked() {
            return; // The memory belongs to the parent.
        }
        // Whole chunks again: undo the random offset.
        let offset = self.rw % CHUNK;
        let place = Place { extent: self.extent, rx: self.rx - offset, rw: self.rw - offset };
        if self.published {
            self.shared.retire(place);
        } else {
            // SAFETY: these chunks are this program's, and it was never published, so no thread runs or reads them.
            unsafe { fill_traps(self.shared.host, place.rw, place.len()) };
            self.shared.abandon(place);
        }
    }
}

fn is_branch(kind: RelocKind) -> bool {
    match kind {
        RelocKind::X64Rel32 | RelocKind::Arm64Branch26 => true,
        RelocKind::X64Abs64 | RelocKind::Arm64Mov48 => false,
    }
}

/// Writes `target` into the relocated field of `bytes`, which will run at `base`.
fn apply(arch: Arch, reloc: &Reloc, base: usize, target: usize, bytes: &mut [u8]) -> Result<(), Error> {
    let bad = Error::BadReloc { at: reloc.at };
    let at = reloc.at as usize;
    let place = base + at;
    let field = bytes.get_mut(at..).ok_or(bad)?;
    match (arch, reloc.kind) {
        (Arch::X64, RelocKind::X64Rel32) => {
            let operand = arch::rel32(place, target).ok_or(bad)?;
            *field.first_chunk_mut().ok_or(bad)? = operand.to_le_bytes();
        }
        (Arch::X64, RelocKind::X64Abs64) => {
            *field.first_chunk_mut().ok_or(bad)? = (target as u64).to_le_bytes();
        }
        (Arch::Arm64, RelocKind::Arm64Branch26) => {
            let field = field.first_chunk_mut().ok_or(bad)?;
            let operand = arch::branch26(place, target).ok_or(bad)?;
            *field = (u32::from_le_bytes(*field) & !0x03ff_ffff | operand).to_le_bytes();
        }
        (Arch::Arm64, RelocKind::Arm64Mov48) => {
            if target as u64 >> 48 != 0 {
                return Err(bad);
            }
            let (words, _) = field.as_chunks_mut::<4>();
            for (i, word) in words.get_mut(..3).ok_or(bad)?.iter_mut().enumerate() {
                let imm16 = crate::small((target >> (16 * i)) & 0xffff);
                *word = (u32::from_le_bytes(*word) & !(0xffff << 5) | imm16 << 5).to_le_bytes();
            }
        }
        (Arch::X64, RelocKind::Arm64Branch26 | RelocKind::Arm64Mov48)
        | (Arch::Arm64, RelocKind::X64Rel32 | RelocKind::X64Abs64) => return Err(bad),
    }
    Ok(())
}
