//! Keys and nodes of a trie.
//!
//! A node is a range of words in the slab: length, kind and table; two child links; the prefix; the value. All words
//! of a node that a look-up reads lie in half a cache line if the key is short.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::mem::{self, WORD, words_for};
use crate::num::low;

/// Words of a node before its prefix: length, kind and table; the child links.
pub(super) const HEADER: usize = 2;

/// Bytes of the prefix length in a key.
pub(super) const LENGTH: usize = size_of::<u32>();

/// The kernel's `LPM_DATA_SIZE_MAX`, in words.
pub(super) const MAX_DATA: usize = 256 / WORD;

/// Bits of a key that one table resolves. The stride divides 64, so that these bits lie in one word.
pub(super) const STRIDE: u32 = 4;

/// A key read from a program or the host, whose data fits into `W` words.
pub(super) struct Prefix<const W: usize> {
    /// Significant bits.
    pub(super) len: u32,
    /// The bytes as they lie in the key.
    pub(super) data: [u64; W],
}

impl<const W: usize> Prefix<W> {
    /// # Safety
    /// `key` must be readable for 4 + `data` bytes, and `data` must fit into `W` words.
    #[inline(always)]
    pub(super) unsafe fn read(key: *const u8, data: usize) -> Self {
        // SAFETY: at least four readable bytes (contract).
        let len = unsafe { mem::load_program_word(key, 0, LENGTH) };
        let mut prefix = Self { len: first_half(len), data: [0; W] };
        for (i, word) in prefix.data.iter_mut().enumerate().take(words_for(data)) {
            let mut bytes = [0; WORD];
            // In halves, because data after the length is aligned to 4 bytes only.
            for (half, bytes) in bytes.chunks_exact_mut(LENGTH).enumerate() {
                let offset = i * WORD + half * LENGTH;
                if offset < data {
                    // SAFETY: the offset lies inside the key (contract).
                    let at = unsafe { key.add(LENGTH + offset) };
                    // SAFETY: the rest of the key, at most four bytes of it, is readable (contract).
                    let value = unsafe { mem::load_program_word(at, 0, LENGTH.min(data - offset)) };
                    bytes.copy_from_slice(&value.to_ne_bytes()[..LENGTH]);
                }
            }
            *word = u64::from_ne_bytes(bytes);
        }
        prefix
    }

    /// Bit `n`, counted from the most significant bit of the first byte.
    #[inline(always)]
    pub(super) fn bit(&self, n: u32) -> usize {
        bit_of(self.data[n as usize / 64], n)
    }

    /// The first `bits` bits.
    #[inline(always)]
    pub(super) fn first(&self, bits: u32) -> u32 {
        first_of(self.data[0], bits)
    }

    /// The bits of a window, as an index into its table.
    #[inline(always)]
    pub(super) fn index(&self, window: u32) -> u32 {
        index_of(self.data[(window * STRIDE) as usize / 64], window)
    }
}

/// The first `bits` bits of a word.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "a window has no more bits than 32")]
pub(super) fn first_of(word: u64, bits: u32) -> u32 {
    (u64::from_be(word) >> (64 - bits)) as u32
}

/// The `u32` in the first four bytes of a word.
fn first_half(word: u64) -> u32 {
    let [a, b, c, d, ..] = word.to_ne_bytes();
    u32::from_ne_bytes([a, b, c, d])
}

#[inline(always)]
fn bit_of(word: u64, n: u32) -> usize {
    (u64::from_be(word) >> (63 - n % 64) & 1) as usize
}

#[inline(always)]
fn index_of(word: u64, window: u32) -> u32 {
    (u64::from_be(word) << (window * STRIDE % 64) >> (64 - STRIDE)) as u32
}

/// The first bit after the window that contains bit `len`.
#[inline(always)]
pub(super) fn window_end(len: u32) -> u32 {
    (len / STRIDE + 1) * STRIDE
}

/// The first word of a node: prefix length in 32 bits, one bit that is set in intermediate nodes, and the number of
/// its table plus one in 31 bits.
#[derive(Clone, Copy)]
pub(super) struct Head(pub(super) u64);

impl Head {
    const INTERMEDIATE: u64 = 1 << 32;

    pub(super) fn key(len: u32) -> Self {
        Self(len.into())
    }

    /// The head of a node that stands for no key.
    pub(super) fn intermediate(len: u32) -> Self {
        Self(u64::from(len) | Self::INTERMEDIATE)
    }

    #[inline(always)]
    pub(super) fn len(self) -> u32 {
        low(self.0)
    }

    #[inline(always)]
    pub(super) fn is_intermediate(self) -> bool {
        self.0 & Self::INTERMEDIATE != 0
    }

    #[inline(always)]
    pub(super) fn table(self) -> Option<u32> {
        ((self.0 >> 33) as u32).checked_sub(1)
    }

    pub(super) fn with_table(self, table: Option<u32>) -> Self {
        let rest = self.0 & ((1 << 33) - 1);
        Self(rest | table.map_or(0, |table| (u64::from(table) + 1) << 33))
    }
}

/// A location that names a node: half a word, which holds the node's number plus one, or 0. Written under the map's
/// lock only.
#[derive(Clone, Copy)]
pub(super) struct Link<'a> {
    word: &'a AtomicU64,
    shift: u32,
}

impl<'a> Link<'a> {
    /// The link in the lower (0) or upper (1) half of a word.
    #[inline(always)]
    pub(super) fn new(word: &'a AtomicU64, half: usize) -> Self {
        Self { word, shift: crate::num::small(half) * 32 }
    }

    /// The node's number.
    #[inline(always)]
    pub(super) fn get(self) -> Option<u32> {
        // Acquire pairs with the release in `set`: the node is complete.
        low(self.word.load(Ordering::Acquire) >> self.shift).checked_sub(1)
    }

    /// Publishes a node.
    pub(super) fn set(self, node: Option<u32>) {
        // Relaxed: only the holder of the lock writes.
        let rest = self.word.load(Ordering::Relaxed) & !(u64::from(u32::MAX) << self.shift);
        let new = node.map_or(0, |number| u64::from(number) + 1) << self.shift;
        // Release pairs with the acquire in `get`.
        self.word.store(rest | new, Ordering::Release);
    }
}

/// A node in the slab.
#[derive(Clone, Copy)]
pub(super) struct Node<'a> {
    pub(super) number: u32,
    pub(super) words: &'a [AtomicU64],
}

impl<'a> Node<'a> {
    #[inline(always)]
    pub(super) fn head(self) -> Head {
        // Acquire pairs with the release in `set_head`: the table's entries are complete. (All other words were
        // complete before the node was linked.)
        Head(self.words[0].load(Ordering::Acquire))
    }

    /// Writes the head word; the caller holds the lock.
    pub(super) fn set_head(self, head: Head) {
        // Release pairs with the acquire in `head`.
        self.words[0].store(head.0, Ordering::Release);
    }

    pub(super) fn len(self) -> u32 {
        self.head().len()
    }

    pub(super) fn is_intermediate(self) -> bool {
        self.head().is_intermediate()
    }

    #[inline(always)]
    pub(super) fn child(self, bit: usize) -> Link<'a> {
        Link::new(&self.words[1], bit)
    }

    #[inline(always)]
    pub(super) fn data(self) -> &'a [AtomicU64] {
        &self.words[HEADER..]
    }

    pub(super) fn bit(self, n: u32) -> usize {
        // Relaxed, here and below: the prefix was complete before the node was linked.
        bit_of(self.data()[n as usize / 64].load(Ordering::Relaxed), n)
    }

    /// The bits of a window, as [`Prefix::index`]; bits from the node's length on are undefined.
    pub(super) fn index(self, window: u32) -> u32 {
        index_of(self.data()[(window * STRIDE) as usize / 64].load(Ordering::Relaxed), window)
    }

    /// Number of leading bits that node and key have in common, at most the shorter length.
    #[inline(always)]
    pub(super) fn common<const W: usize>(self, key: &Prefix<W>) -> u32 {
        let limit = self.len().min(key.len);
        for ((shared, word), i) in self.data().iter().zip(&key.data).zip(0..limit.div_ceil(64)) {
            let differ = shared.load(Ordering::Relaxed) ^ word;
            if differ != 0 {
                return limit.min(i * 64 + u64::from_be(differ).leading_zeros());
            }
        }
        limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_and_bits_count_from_the_first_byte() {
        // SAFETY: four bytes of length and nine of data.
        let key = unsafe { Prefix::<2>::read([72, 0, 0, 0, 0xab, 0xcd, 0, 0, 0, 0, 0, 0, 0xf1].as_ptr(), 9) };
        assert_eq!(u32::from_ne_bytes(72u32.to_le_bytes()), key.len);
        let nibbles: Vec<u32> = (0..18).map(|window| key.index(window)).collect();
        assert_eq!(nibbles[..4], [0xa, 0xb, 0xc, 0xd]);
        assert_eq!(nibbles[16..], [0xf, 0x1]);
        let bits: Vec<usize> = (0..8).map(|n| key.bit(n)).collect();
        assert_eq!(bits, [1, 0, 1, 0, 1, 0, 1, 1]);
        assert_eq!([0, 3, 4, 7].map(window_end), [4, 4, 8, 8]);
    }

    #[test]
    fn heads_keep_their_parts_apart() {
        let head = Head::intermediate(2048).with_table(Some(7));
        assert_eq!((head.len(), head.is_intermediate(), head.table()), (2048, true, Some(7)));
        let head = Head::key(0).with_table(Some(0)).with_table(None);
        assert_eq!((head.len(), head.is_intermediate(), head.table()), (0, false, None));
    }
}
