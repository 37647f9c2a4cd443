//! Keys as words, and their seeded hash.
//!
//! Problem: a program passes a key as bytes at any address, possibly shared with other threads; it must be read exactly
//! once, compared word by word with shared memory, and hashed so that a peer who chooses keys cannot choose collisions.
//!
//! Approach: a key becomes zero-padded 8-byte words: in registers if its size is common ([`Fixed`]) or small
//! ([`Words`]), otherwise on the stack or, beyond the kernel's stack size, on the heap ([`Long`]). The hash multiplies
//! each word, masked with a secret, into 128 bits and folds the halves (the construction of wyhash), with one more
//! multiplication at the end: two secrets guard every bit that selects a chunk or a tag. (Those are upper halves: a
//! product's low bits depend on the low bits only.)

use std::hash::{BuildHasher, RandomState};

use crate::mem::{ANY_ALIGNMENT, WORD, load_program_word, words_for};
use crate::sync::{AtomicU64, Ordering};

/// A key read from a program or a host thread.
pub(crate) trait Key: Sized {
    /// Reads the key.
    ///
    /// # Safety
    /// `src` must be readable for `size` bytes, and `size` must be the size the implementation stands for, if it has
    /// one.
    unsafe fn read(src: *const u8, size: usize) -> Self;

    /// Whether [`Key::read`] of a key at this address is a few loads. Where it is a call instead, another call around
    /// it costs little more.
    fn is_at_hand(_src: *const u8) -> bool {
        true
    }

    /// Reads the key of an element; torn if the element is being recycled.
    fn load(words: &[AtomicU64]) -> Self;

    /// The key as zero-padded words.
    fn words(&self) -> &[u64];

    /// Reads a key from host memory, whose length the caller has checked.
    fn from_host(bytes: &[u8]) -> Self {
        // SAFETY: a slice is readable for its length; the length was checked against the map's key size.
        unsafe { Self::read(bytes.as_ptr(), bytes.len()) }
    }
}

/// A key of `BYTES` bytes in `WORDS` words.
pub(crate) struct Fixed<const BYTES: usize, const WORDS: usize>([u64; WORDS]);

impl<const BYTES: usize, const WORDS: usize> Key for Fixed<BYTES, WORDS> {
    #[inline(always)]
    unsafe fn read(src: *const u8, _size: usize) -> Self {
        const { assert!(words_for(BYTES) == WORDS) };
        // SAFETY: `i < WORDS`, so the word begins inside the `BYTES` readable bytes (contract).
        Self(std::array::from_fn(|i| unsafe { load_program_word(src, i, BYTES) }))
    }

    #[inline(always)]
    fn is_at_hand(src: *const u8) -> bool {
        // The alignments that `load_program_word` asks for.
        let align = match BYTES {
            ..WORD => BYTES,
            _ if ANY_ALIGNMENT => 1,
            _ => WORD,
        };
        src.addr().is_multiple_of(align)
    }

    fn load(words: &[AtomicU64]) -> Self {
        // Relaxed: the caller checks afterwards that the key was not torn.
        Self(std::array::from_fn(|i| words[i].load(Ordering::Relaxed)))
    }

    #[inline(always)]
    fn words(&self) -> &[u64] {
        &self.0
    }
}

/// A key of any size that takes `WORDS` words.
pub(crate) struct Words<const WORDS: usize>([u64; WORDS]);

impl<const WORDS: usize> Key for Words<WORDS> {
    #[inline(always)]
    unsafe fn read(src: *const u8, size: usize) -> Self {
        debug_assert!(words_for(size) == WORDS);
        // SAFETY: `i < WORDS`, so the word begins inside the `size` readable bytes (contract).
        Self(std::array::from_fn(|i| unsafe { load_program_word(src, i, size) }))
    }

    fn load(words: &[AtomicU64]) -> Self {
        // Relaxed as above.
        Self(std::array::from_fn(|i| words[i].load(Ordering::Relaxed)))
    }

    #[inline(always)]
    fn words(&self) -> &[u64] {
        &self.0
    }
}

/// Calls a generic function with the key type for a key size. The tuples of flows have 13 bytes (IPv4) and 37.
macro_rules! with_key {
    ($size:expr, $key:ident => $call:expr) => {
        match $size {
            4 => {
                type $key = $crate::hash::key::Fixed<4, 1>;
                $call
            }
            8 => {
                type $key = $crate::hash::key::Fixed<8, 1>;
                $call
            }
            16 => {
                type $key = $crate::hash::key::Fixed<16, 2>;
                $call
            }
            ..8 => {
                type $key = $crate::hash::key::Words<1>;
                $call
            }
            ..16 => {
                type $key = $crate::hash::key::Words<2>;
                $call
            }
            ..=24 => {
                type $key = $crate::hash::key::Words<3>;
                $call
            }
            ..=32 => {
                type $key = $crate::hash::key::Words<4>;
                $call
            }
            ..=40 => {
                type $key = $crate::hash::key::Words<5>;
                $call
            }
            _ => {
                type $key = $crate::hash::key::Long;
                $call
            }
        }
    };
}

pub(crate) use with_key;

/// The kernel's `MAX_BPF_STACK`: keys that programs build on their stack are not larger.
const INLINE: usize = 512 / WORD;

/// A key of any size. The large variant is the usual one, and it stays on the stack.
#[expect(clippy::large_enum_variant, reason = "programs' keys must not be allocated")]
pub(crate) enum Long {
    /// Up to 512 bytes.
    Inline([u64; INLINE], usize),
    /// Host keys beyond that.
    Heap(Vec<u64>),
}

impl Key for Long {
    #[inline]
    unsafe fn read(src: *const u8, size: usize) -> Self {
        let words = words_for(size);
        // SAFETY: `i < words`, so the word begins inside the `size` readable bytes (contract).
        let word = |i| unsafe { load_program_word(src, i, size) };
        if words > INLINE {
            return Self::Heap((0..words).map(word).collect());
        }
        let mut inline = [0; INLINE];
        for (i, slot) in inline.iter_mut().enumerate().take(words) {
            *slot = word(i);
        }
        Self::Inline(inline, words)
    }

    fn load(words: &[AtomicU64]) -> Self {
        // Relaxed as above.
        let word = |word: &AtomicU64| word.load(Ordering::Relaxed);
        if words.len() > INLINE {
            return Self::Heap(words.iter().map(word).collect());
        }
        let mut inline = [0; INLINE];
        for (slot, shared) in inline.iter_mut().zip(words) {
            *slot = word(shared);
        }
        Self::Inline(inline, words.len())
    }

    #[inline]
    fn words(&self) -> &[u64] {
        match self {
            Self::Inline(words, len) => &words[..*len],
            Self::Heap(words) => words,
        }
    }
}

/// The secrets of one map's hash function.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seed([u64; 3]);

impl Seed {
    /// Fresh secrets.
    pub(crate) fn random() -> Self {
        // The standard library's keys come from the operating system, once per thread, and differ per instance.
        Self(std::array::from_fn(|_| RandomState::new().hash_one(0u64) | 1))
    }

    /// Secrets that depend on `seed` alone, for tests and `ZERO_SEED`.
    pub(crate) fn fixed(seed: u64) -> Self {
        let mut state = seed;
        Self(std::array::from_fn(|_| {
            // splitmix64 (Steele, Lea, Flood 2014).
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = state;
            z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
            (z ^ z >> 31) | 1
        }))
    }

    /// The hash of a key.
    #[inline(always)]
    pub(crate) fn hash(&self, words: &[u64]) -> u64 {
        let [initial, multiplier, last] = self.0;
        words.iter().fold(initial, |hash, word| fold(hash ^ word, multiplier)).wrapping_mul(last)
    }
}

/// The halves of the 128-bit product, added without carry.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "the upper half is the other operand")]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_and_fixed_keys_agree() {
        let bytes: Vec<u8> = (1..=16).collect();
        let seed = Seed::fixed(1);
        let hash = |words: &[u64]| seed.hash(words);
        assert_eq!(hash(Fixed::<4, 1>::from_host(&bytes[..4]).words()), hash(Long::from_host(&bytes[..4]).words()));
        assert_eq!(hash(Fixed::<8, 1>::from_host(&bytes[..8]).words()), hash(Long::from_host(&bytes[..8]).words()));
        assert_eq!(hash(Fixed::<16, 2>::from_host(&bytes).words()), hash(Long::from_host(&bytes).words()));
        for size in 1..=64 {
            let bytes: Vec<u8> = (1..=size).collect();
            let words = with_key!(bytes.len(), K => K::from_host(&bytes).words().to_vec());
            assert_eq!(words, Long::from_host(&bytes).words(), "{size} bytes");
        }
    }

    #[cfg(not(loom))]
    #[test]
    fn a_long_key_of_an_element_takes_no_allocation() {
        // An eviction reads such keys inside a run, which must not allocate.
        for len in [6, INLINE, INLINE + 1] {
            let words: Vec<AtomicU64> = (1..=len as u64).map(AtomicU64::new).collect();
            let key = Long::load(&words);
            assert!(key.words().iter().copied().eq(1..=len as u64), "{len} words");
            assert_eq!(matches!(key, Long::Heap(_)), len > INLINE, "{len} words");
        }
    }

    #[test]
    fn sequential_keys_spread_over_chunks_and_tags() {
        // 64 k consecutive keys into 4 k buckets: a Poisson load of 16; the largest of 4 k such buckets is far below
        // 48.
        for seed in 0..4 {
            let seed = Seed::fixed(seed);
            let (mut high, mut low) = (vec![0u32; 4096], vec![0u32; 4096]);
            for key in 0..65_536u64 {
                let hash = seed.hash(&[key]);
                high[(hash >> 52) as usize] += 1;
                low[(hash >> 20 & 0xfff) as usize] += 1;
            }
            assert!(high.iter().chain(&low).all(|&n| n < 48));
        }
    }

    #[test]
    fn seeds_differ() {
        let hashes: std::collections::HashSet<u64> = (0..64).map(|_| Seed::random().hash(&[7])).collect();
        assert!(hashes.len() > 60, "random seeds give random hashes");
        assert_eq!(Seed::fixed(3).hash(&[7]), Seed::fixed(3).hash(&[7]));
    }
}
