//! Bloom filters: sets that answer "perhaps" or "no".
//!
//! Push sets one bit per hash function, peek tests them; both are wait-free. The bitmap is sized as in the kernel:
//! hashes x entries / ln 2 bits, rounded up to a power of two. The hash functions are halves of one 64-bit hash,
//! combined (Kirsch and Mitzenmacher 2006), which gives the same false-positive rate as independent ones.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::def::{MapDef, flags};
use crate::errno::{Errno, OpResult};
use crate::hash::key::{Key, Seed, with_key};
use crate::header::LookupFn;
use crate::mem::Table;
use crate::ops::MapOps;
use crate::queue::no_lookup;
use crate::value::Source;

/// The kernel's default number of hash functions.
const DEFAULT_HASHES: u32 = 5;

#[derive(Debug)]
pub(crate) struct BloomMap {
    value_size: usize,
    hashes: u32,
    /// Number of bits less one; the number is a power of two, at most 2^32.
    mask: u32,
    seed: Seed,
    words: Table<AtomicU64>,
}

fn hashes(def: &MapDef) -> u32 {
    match (def.map_extra & 0xf) as u32 {
        0 => DEFAULT_HASHES,
        n => n,
    }
}

/// Bits for this definition: 7/5 stands for 1 / ln 2, as in the kernel.
fn bits(def: &MapDef) -> u64 {
    let bits = u64::from(def.max_entries) * u64::from(hashes(def)) * 7 / 5;
    bits.next_power_of_two().clamp(64, 1 << 32)
}

impl BloomMap {
    /// Bytes a filter of this definition maps.
    pub(crate) fn memory_needed(def: &MapDef) -> u64 {
        bits(def) / 8
    }

    pub(crate) fn new(def: &MapDef, seed: Option<u64>) -> OpResult<Self> {
        Ok(Self {
            value_size: def.value_size as usize,
            hashes: hashes(def),
            // Fits: `bits` are at most 2^32.
            mask: crate::num::low(bits(def) - 1),
            seed: match seed {
                _ if def.flags & flags::ZERO_SEED != 0 => Seed::fixed(0),
                Some(seed) => Seed::fixed(seed),
                None => Seed::random(),
            },
            words: Table::zeroed((bits(def) / 64) as usize)?,
        })
    }

    /// Removes all values.
    pub(crate) fn clear(&self) {
        crate::mem::zero(&self.words);
    }

    /// The bits of a value, as (word, bit in it).
    #[inline(always)]
    fn positions<K: Key>(&self, value: &K) -> impl Iterator<Item = (usize, u64)> + use<K> {
        let hash = self.seed.hash(value.words());
        let (first, step) = (crate::num::low(hash), (hash >> 32) as u32 | 1);
        let mask = self.mask;
        (0..self.hashes).map(move |i| {
            let bit = first.wrapping_add(step.wrapping_mul(i)) & mask;
            (bit as usize / 64, 1 << (bit % 64))
        })
    }

    /// # Safety
    /// `value` must be readable for the value size.
    unsafe fn contains(&self, value: *const u8) -> OpResult {
        let all = with_key!(self.value_size, K => {
            // SAFETY: readable for the value size (contract).
            let value = unsafe { K::read(value, self.value_size) };
            // Relaxed: a bit carries no data. All bits are read, because a branch that ends the loop early would be
            // mispredicted.
            self.positions(&value).fold(true, |all, (word, bit)| {
                all & (self.words[word].load(Ordering::Relaxed) & bit != 0)
            })
        });
        if all { Ok(()) } else { Err(Errno::ENOENT) }
    }

    /// # Safety
    /// `value` must be readable for the value size.
    unsafe fn insert(&self, value: *const u8) {
        with_key!(self.value_size, K => {
            // SAFETY: readable for the value size (contract).
            let value = unsafe { K::read(value, self.value_size) };
            for (word, bit) in self.positions(&value) {
                // Relaxed: as above. The test first spares the cache line when the bit is set already.
                if self.words[word].load(Ordering::Relaxed) & bit == 0 {
                    self.words[word].fetch_or(bit, Ordering::Relaxed);
                }
            }
        });
    }
}

impl MapOps for BloomMap {
    fn as_any(&self) -> &dyn std::any::Any {
        self
    }

    fn lookup_fn(&self) -> LookupFn {
        no_lookup
    }

    fn host_value_size(&self) -> usize {
        self.value_size
    }

    unsafe fn program_update(&self, _key: *const u8, _value: *const u8, _flags: u64, _slot: u32) -> OpResult {
        Err(Errno::EINVAL)
    }

    unsafe fn push(&self, value: Source<'_>, flags: u64, _slot: u32) -> OpResult {
        if flags != 0 {
            return Err(Errno::EINVAL);
        }
        // SAFETY: readable for the value size (contract; a host slice has been checked).
        unsafe { self.insert(value.bytes()) };
        Ok(())
    }

    unsafe fn next_value(&self, out: *mut u8, remove: bool, _slot: u32) -> OpResult {
        if remove {
            return Err(Errno::EOPNOTSUPP);
        }
        // SAFETY: readable for the value size (contract).
        unsafe { self.contains(out) }
    }

    /// Whether the value in `out` was probably pushed; `ENOENT` if it was not.
    fn lookup(&self, _key: &[u8], out: &mut [u8], _flags: u64, _slot: u32) -> OpResult {
        // SAFETY: a host slice of the value size.
        unsafe { self.contains(out.as_ptr()) }
    }

    fn update(&self, _key: &[u8], value: &[u8], flags: u64, slot: u32) -> OpResult {
        // SAFETY: a host slice of the value size, so the contract about program sources does not apply.
        unsafe { self.push(Source::Host(value), flags, slot) }
    }

    fn len(&self) -> u64 {
        0
    }

    fn memory_usage(&self) -> u64 {
        size_of_val(&*self.words) as u64
    }
}
