//! Replacing one instruction of code that is running.
//!
//! Problem: a CPU must see a patched instruction either old or new. Two dependent patches must be seen in order,
//! which two stores do not guarantee: instruction fetch does not follow the order of stores to different places.
//!
//! Approach: a [`PatchSite`] is made from a `PatchSlot`, which cannot cross an aligned eight-byte word, so one atomic
//! store replaces the instruction (AMD APM 2 7.6.1; on arm64 only NOP and B are exchanged, Arm ARM B2.2.5). The store
//! is a compare-and-exchange that also compares the old bytes: a slot with another content is left unchanged.
//!
//! A poke depends on another if a thread must not execute its new instruction together with the other's *old* one:
//! opening a bypass before the jump after it is written, or removing that jump before the bypass is closed. Between
//! the two, a core barrier (`Domain::core_barrier`) is needed. The caller executes it, because the caller knows the
//! sites: for tail calls that is `bpf-tailcall`, whose types enforce the order.
//!
//! Atomicity of the store rests on these guarantees, by vendor of the CPU:
//!
//! - **arm64** promises it for the instructions exchanged here (Arm ARM B2.2.5).
//! - **AMD** promises it: a store inside an aligned eight-byte word is seen by other processors' fetches whole or not
//!   at all, without synchronisation (APM 2 7.6.1).
//! - **Intel** does not. The SDM has one rule for code that another processor modifies: the executing processor
//!   waits, and serialises before it executes the new bytes (SDM 3A, "Handling Self- and Cross-Modifying Code"; its
//!   guarantees of atomicity are for data accesses). Specification updates of some models list unexpected behaviour
//!   of code that breaks this rule. In practice AMD's guarantee holds, as long as the instruction lies in one aligned
//!   word, so that fetch cannot see two halves of it, and starts and ends where the old one did, so that no processor
//!   can be in the middle of it. JIT compilers patch calls and jumps of running code in this way on these CPUs. The
//!   kernel does not rely on it. Its sites lie anywhere, across words and cache lines and over several old
//!   instructions. The kernel writes a one-byte `int3` first, synchronises all cores, writes the other bytes,
//!   synchronises, and replaces the `int3`; a handler does what the instruction would. A library cannot take over the
//!   process's handler for that. Embedders who need the vendor's guarantee switch direct tail calls off
//!   (`Config::direct_tail_calls`), which switches tiers off as well ([`crate::Forward`]): nothing else is ever
//!   poked.
//!
//! `cargo run --release -p bpf-prog-pack --example flip` tests the CPU it runs on.
//!
//! Invariant: bytes outside the slot are never changed, not even by two pokes in one word at a time.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use bpf_jit_code::{Arch, PATCH_WORD, PatchSlot};

use crate::arch::{self, Patch};
use crate::stage::Text;

/// The reason why an instruction was not replaced. The code is unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PokeError {
    /// The calling process is a forked child: the store would change the parent's code.
    #[error("code cannot be patched in a forked child")]
    Forked,
    /// The slot does not lie in this program.
    #[error("the patch slot at code offset {at} lies outside the code")]
    Outside {
        /// The slot's offset.
        at: u32,
    },
    /// The slot does not hold the old instruction.
    #[error("the patch slot at code offset {at} holds {found:02x?}")]
    Mismatch {
        /// The slot's offset.
        at: u32,
        /// The bytes in the slot; five bytes on x86-64, four on arm64, the rest is 0.
        found: [u8; 8],
    },
    /// The jump does not reach its target from this slot. Programs of one process always reach each other.
    #[error("a jump from {from:#x} does not reach {target:#x}")]
    OutOfReach {
        /// Address of the slot.
        from: usize,
        /// The target.
        target: usize,
    },
}

impl Text {
    /// Returns the patch slot as a site in this program.
    ///
    /// # Errors
    /// [`PokeError::Outside`] if the slot was made for longer code.
    pub fn patch_site(&self, slot: PatchSlot) -> Result<PatchSite<'_>, PokeError> {
        PatchSite::new(self, slot)
    }

    /// Replaces one instruction while the code may be running: see [`PatchSite::poke`].
    ///
    /// # Errors
    /// See [`PokeError`].
    pub fn poke(&self, slot: PatchSlot, old: Patch, new: Patch) -> Result<(), PokeError> {
        self.patch_site(slot)?.poke(old, new)
    }
}

/// A patch slot in a loaded program, which it keeps alive.
#[derive(Debug, Clone, Copy)]
pub struct PatchSite<'text> {
    text: &'text Text,
    slot: PatchSlot,
}

impl<'text> PatchSite<'text> {
    pub(crate) fn new(text: &'text Text, slot: PatchSlot) -> Result<Self, PokeError> {
        let fits = slot.at() as usize + slot.len() as usize <= text.len();
        // A slot made for the other architecture has another length.
        let ours = slot.len() == PatchSlot::len_on(text.shared().host);
        if fits && ours { Ok(Self { text, slot }) } else { Err(PokeError::Outside { at: slot.at() }) }
    }

    /// The address of the instruction.
    pub fn address(&self) -> usize {
        self.text.views().0 + self.slot.at() as usize
    }

    /// Replaces `old` by `new`, atomically for threads that run the code. One store without a barrier: other CPUs may
    /// execute `old` for a moment longer.
    ///
    /// # Errors
    /// See [`PokeError`].
    pub fn poke(&self, old: Patch, new: Patch) -> Result<(), PokeError> {
        let shared = self.text.shared();
        if shared.domain.is_forked() {
            return Err(PokeError::Forked);
        }
        let (rx, rw) = self.text.views();
        let at = self.slot.at() as usize;
        let encode = |patch| {
            arch::encode(shared.host, patch, rx + at).ok_or(PokeError::OutOfReach {
                from: rx + at,
                target: if let Patch::Jump(target) = patch { target } else { 0 },
            })
        };
        let (old, new) = (encode(old)?, encode(new)?);
        let replaced = match shared.host {
            Arch::X64 => replace_in_word(rw + at, self.slot.len(), old, new),
            Arch::Arm64 => replace_word(rw + at, old, new),
        };
        replaced.map_err(|found| PokeError::Mismatch { at: self.slot.at(), found })?;
        arch::synchronize_caches(rx + at, self.slot.len() as usize);
        Ok(())
    }
}

/// Replaces `len` bytes at `at` that lie in one aligned eight-byte word; on mismatch, the bytes found.
fn replace_in_word(at: usize, len: u32, old: [u8; 8], new: [u8; 8]) -> Result<(), [u8; 8]> {
    let shift = 8 * crate::small(at % PATCH_WORD as usize);
    let mask = ((1 << (8 * len)) - 1) << shift;
    let (old, new) = (u64::from_le_bytes(old) << shift, u64::from_le_bytes(new) << shift);
    let word = std::ptr::with_exposed_provenance_mut(at & !(PATCH_WORD as usize - 1));
    // SAFETY: aligned, in the writable view of a program's own chunks, which the caller's `Text` keeps alive.
    // Published code is written only through this function and the next.
    let word = unsafe { AtomicU64::from_ptr(word) };
    let mut seen = word.load(Ordering::Relaxed);
    loop {
        if seen & mask != old {
            return Err(((seen & mask) >> shift).to_le_bytes());
        }
        // Release: the code that the new instruction jumps to was written before. Fetch on x86-64 follows: stores are
        // seen in order by the loads that fetch the target of a *taken* new jump.
        match word.compare_exchange_weak(seen, seen & !mask | new, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => return Ok(()),
            Err(now) => seen = now,
        }
    }
}

/// Replaces the four bytes at `at`, an aligned word; on mismatch, the bytes found.
fn replace_word(at: usize, old: [u8; 8], new: [u8; 8]) -> Result<(), [u8; 8]> {
    let low = |[a, b, c, d, ..]: [u8; 8]| u32::from_le_bytes([a, b, c, d]);
    let word = std::ptr::with_exposed_provenance_mut(at);
    // SAFETY: in the writable view of a program's own chunks, which the caller's `Text` keeps alive; arm64 slots are
    // aligned to four bytes.
    let word = unsafe { AtomicU32::from_ptr(word) };
    // Release: the target's code was written, and made visible to fetch, before.
    match word.compare_exchange(low(old), low(new), Ordering::AcqRel, Ordering::Relaxed) {
        Ok(_) => Ok(()),
        Err(found) => Err(u64::from(found).to_le_bytes()),
    }
}
