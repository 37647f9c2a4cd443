//! The first twelve bits of a large trie, resolved by one read.
//!
//! Problem: with ten thousand keys, a look-up passes the root and three tables before it reaches the bits in which
//! keys differ, and each read waits for the previous one.
//!
//! Approach: once a trie has [`WORTH`] keys, an array with an entry for each value of the first [`BITS`] bits
//! combines the tables (and links) of those windows: the longest key that ends in them, and the topmost node after
//! them. Writers update it after the tables ([`super::stride`], whose invariants hold here too). It is never removed:
//! in a trie that shrinks, each update goes on costing a few nanoseconds more.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::TrieMap;
use super::node::{Node, Prefix, STRIDE};
use super::stride::{Child, Entry};
use crate::def::MapDef;
use crate::errno::OpResult;
use crate::mem::{Table, WORD};

/// Number of bits of a key that the array resolves: 32 KiB of entries, which stay in a second-level cache.
pub(super) const BITS: u32 = 3 * STRIDE;

/// The last window that the array resolves.
pub(super) const LAST: u32 = BITS / STRIDE - 1;

/// Number of keys from which the array is worth its memory.
const WORTH: u32 = if cfg!(test) { 128 } else { 2048 };

/// The array, if a trie of this size may need it.
#[derive(Debug)]
pub(super) struct Top {
    entries: Option<Table<AtomicU64>>,
    /// Whether all entries have been written.
    active: AtomicBool,
}

fn entries(def: &MapDef, data_size: usize) -> usize {
    if def.max_entries >= WORTH && data_size * 8 >= BITS as usize { 1 << BITS } else { 0 }
}

impl Top {
    pub(super) fn memory_needed(def: &MapDef, data_size: usize) -> u64 {
        (entries(def, data_size) * WORD) as u64
    }

    pub(super) fn new(def: &MapDef, data_size: usize) -> OpResult<Self> {
        let entries = match entries(def, data_size) {
            0 => None,
            entries => Some(Table::zeroed(entries)?),
        };
        Ok(Self { entries, active: AtomicBool::new(false) })
    }

    /// The entry of a key, if the array is active and the key has at least [`BITS`] bits.
    #[inline(always)]
    pub(super) fn entry<const W: usize>(&self, key: &Prefix<W>) -> Option<Entry> {
        // Acquire pairs with the release in `refresh_top`: all entries are written.
        if !self.active.load(Ordering::Acquire) || key.len < BITS {
            return None;
        }
        // Acquire pairs with the release in `rewrite_top`: the nodes named are complete.
        self.entries.as_ref()?.get(key.first(BITS) as usize).map(|entry| Entry(entry.load(Ordering::Acquire)))
    }

    /// Bytes in use.
    pub(super) fn memory_usage(&self) -> u64 {
        // Relaxed: a statistic.
        if self.active.load(Ordering::Relaxed) { (WORD << BITS) as u64 } else { 0 }
    }
}

impl TrieMap {
    /// Rewrites the entries that `key` may affect, after the tables were updated; all entries when the array becomes
    /// active.
    pub(super) fn refresh_top<const W: usize>(&self, key: &Prefix<W>) {
        let Some(entries) = &self.top.entries else { return };
        // Relaxed: changed under the lock only.
        if self.top.active.load(Ordering::Relaxed) {
            let open = BITS - key.len.min(BITS);
            self.rewrite_top(entries, key.first(BITS) >> open << open, 1 << open);
        } else if self.count.load(Ordering::Relaxed) >= WORTH {
            self.rewrite_top(entries, 0, 1 << BITS);
            // Release pairs with the acquire in `Top::entry`.
            self.top.active.store(true, Ordering::Release);
        }
    }

    /// Replaces the node of `key` by another node of this key in all entries.
    pub(super) fn rename_top<const W: usize>(&self, key: &Prefix<W>, old: u32, new: u32) {
        // Relaxed: changed under the lock only.
        let entries = self.top.entries.as_deref().filter(|_| self.top.active.load(Ordering::Relaxed));
        let open = BITS - key.len.min(BITS);
        let first = (key.first(BITS) >> open << open) as usize;
        for entry in entries.iter().flat_map(|entries| &entries[first..first + (1 << open)]) {
            Entry::rename(entry, old, new);
        }
    }

    fn rewrite_top(&self, entries: &[AtomicU64], first: u32, count: u32) {
        for index in first..first + count {
            // Release pairs with the acquire in `Top::entry`.
            entries[index as usize].store(self.derive_top(index).0, Ordering::Release);
        }
    }

    /// The entry computed from tables where there are any, and from links otherwise.
    fn derive_top(&self, index: u32) -> Entry {
        let mut best = None;
        let mut at = self.root().get().map_or(Child::None, Child::Node);
        loop {
            let (entry, window) = match at {
                Child::None => return Entry::of(best, Child::None),
                Child::Node(number) => {
                    let node = self.node(number);
                    let head = node.head();
                    if !node.begins(index) {
                        return Entry::of(best, Child::None);
                    }
                    if head.len() >= BITS {
                        return Entry::of(best, self.behind(node, BITS));
                    }
                    let window = head.len() / STRIDE;
                    let bits = bits(index, window);
                    let entry = match head.table() {
                        Some(table) => self.tables.entry(table, bits),
                        None => self.derive(node, bits),
                    };
                    (entry, window)
                }
                Child::Table { window, .. } if window > LAST => return Entry::of(best, at),
                Child::Table { table, window } => (self.tables.entry(table, bits(index, window)), window),
            };
            best = entry.best().or(best);
            at = entry.child(window);
        }
    }

    /// Panics unless each entry agrees with the links.
    #[cfg(test)]
    pub(super) fn check_top(&self) {
        let entries = self.top.entries.as_ref().filter(|_| self.top.active.load(Ordering::Relaxed));
        for (index, entry) in entries.iter().flat_map(|entries| entries.iter()).enumerate() {
            let (is, must) = (Entry(entry.load(Ordering::Relaxed)), self.walk_links(index as u32));
            let node = |child| match child {
                Child::None => None,
                Child::Node(number) => Some(number),
                Child::Table { table, .. } => Some(self.tables.head(table)),
            };
            assert_eq!((is.best(), node(is.child(LAST))), must, "the entry at {index:#x}");
        }
    }

    /// The longest key that ends in the first bits, and the topmost node behind them, by links alone.
    #[cfg(test)]
    fn walk_links(&self, index: u32) -> (Option<u32>, Option<u32>) {
        let (mut link, mut best) = (self.root(), None);
        while let Some(node) = self.follow(link) {
            let len = node.len();
            if !node.begins(index) {
                break;
            }
            if len >= BITS {
                return (best, Some(node.number));
            }
            if !node.is_intermediate() {
                best = Some(node.number);
            }
            link = node.child((index >> (BITS - 1 - len) & 1) as usize);
        }
        (best, None)
    }
}

/// The bits of a window.
fn bits(index: u32, window: u32) -> u32 {
    index >> (BITS - (window + 1) * STRIDE) & ((1 << STRIDE) - 1)
}

impl Node<'_> {
    /// Whether the node's bits agree with those of an index, as far as both go.
    fn begins(self, index: u32) -> bool {
        // Relaxed: complete before the node was linked.
        let first = super::node::first_of(self.data()[0].load(Ordering::Relaxed), BITS);
        (first ^ index) >> (BITS - self.len().min(BITS)) == 0
    }
}
