//! Tables that let a look-up resolve four bits of a key at a time.
//!
//! Problem: a look-up in a binary trie costs one dependent read per branching: twenty for a million keys.
//!
//! Approach: the bits of a key fall into windows of [`STRIDE`] bits. The topmost node of a window on a path is the
//! *head* of that window. Where the trie is dense, the head has a table with an entry for each value of the window's
//! bits. An entry holds the longest key that ends in the window, and the topmost node after it, which is the head of
//! a later window. So a walk goes from head to head. The binary trie remains authoritative: tables only repeat it,
//! and writers update them before they return. Where there is no table (the trie is sparse, or the pool of tables is
//! empty) the walk follows the child links.
//!
//! Invariants.
//! 1. Only heads have tables: a node that gets a parent in its own window gives its table up.
//! 2. When a writer returns, every entry agrees with the links. So each key appears and disappears at one moment for
//!    all look-ups of it. But while a writer is at work, a look-up may see a change that a later look-up of *another*
//!    key does not see.
//! 3. A removed table or node is retired after the last entry that names it was rewritten: only runs that began
//!    before can still see it.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::node::{Head, Node, Prefix, STRIDE, window_end};
use super::{SLOTS, TrieMap};
use crate::def::MapDef;
use crate::errno::{Errno, OpResult};
use crate::mem::{self, Table, WORD};
use crate::retire::GraceList;
use bpf_quiesce::{Domain, Reservation};
use std::sync::Arc;

/// Entries of a table.
const ENTRIES: usize = 1 << STRIDE;

/// Number of nodes in one window on one path from which a table is worth its memory: one less than the maximum.
const DENSE: u32 = STRIDE - 1;

/// An entry: the number of a node plus one, then a [`Child`].
#[derive(Clone, Copy)]
pub(super) struct Entry(pub(super) u64);

/// Where a walk continues after a window.
#[derive(Clone, Copy)]
pub(super) enum Child {
    None,
    /// The topmost node.
    Node(u32),
    /// The topmost node stands for no key, begins with the next window, and has this table: the node itself need not
    /// be read.
    Table {
        table: u32,
        window: u32,
    },
}

impl Entry {
    /// Marks the number of a table. (Numbers of nodes and tables have fewer bits.)
    const TABLE: u32 = 1 << 31;

    pub(super) fn of(best: Option<u32>, child: Child) -> Self {
        let best = best.map_or(0, |number| u64::from(number) + 1);
        let child = match child {
            Child::None => 0,
            Child::Node(number) => number + 1,
            Child::Table { table, .. } => table | Self::TABLE,
        };
        Self(best | u64::from(child) << 32)
    }

    /// Replaces the name of one node in an entry by that of another.
    #[inline]
    pub(super) fn rename(entry: &AtomicU64, old: u32, new: u32) {
        // Relaxed: only the holder of the lock writes.
        let mut is = Self(entry.load(Ordering::Relaxed));
        let halves = |best: u64, child: u64| Self(best | child << 32);
        if is.best() == Some(old) {
            is = halves(u64::from(new) + 1, is.0 >> 32);
        } else if is.0 >> 32 == u64::from(old) + 1 {
            is = halves(is.0 & u64::from(u32::MAX), u64::from(new) + 1);
        } else {
            return;
        }
        // Release pairs with the acquire in `Tables::entry` and `Top::entry`.
        entry.store(is.0, Ordering::Release);
    }

    /// The node of the longest key that ends in the window.
    #[inline(always)]
    pub(super) fn best(self) -> Option<u32> {
        crate::num::low(self.0).checked_sub(1)
    }

    /// Where the walk continues after `window`.
    #[inline(always)]
    pub(super) fn child(self, window: u32) -> Child {
        match (self.0 >> 32) as u32 {
            0 => Child::None,
            number if number < Self::TABLE => Child::Node(number - 1),
            table => Child::Table { table: table & !Self::TABLE, window: window + 1 },
        }
    }
}

/// A key that is present.
pub(super) struct Found<'a> {
    pub(super) node: Node<'a>,
    /// The table that may name the node, other than the node's own, and that table's window.
    pub(super) named: Option<(u32, u32)>,
}

/// All tables of a trie.
#[derive(Debug)]
pub(super) struct Tables {
    entries: Table<AtomicU64>,
    /// The node each table belongs to.
    heads: Table<AtomicU32>,
    list: GraceList,
}

/// Number of tables. Making a table requires [`DENSE`] nodes, and there are at most two nodes a key. Tables kept by
/// slots are added.
fn tables(def: &MapDef) -> u64 {
    u64::from(def.max_entries / 2 + 64) + GraceList::owned(ENTRIES * WORD, SLOTS)
}

/// Bytes of a table with its head and its link.
const TABLE_MEMORY: u64 = (ENTRIES * WORD + 2 * size_of::<u32>()) as u64;

impl Tables {
    pub(super) fn memory_needed(def: &MapDef) -> u64 {
        tables(def) * TABLE_MEMORY
    }

    pub(super) fn new(def: &MapDef, domain: &Arc<Domain>, reservation: Option<&Reservation>) -> OpResult<Self> {
        // Entries of tables have 31 bits for a table's number.
        let tables = u32::try_from(tables(def)).ok().filter(|&tables| tables < 1 << 31);
        let tables = tables.ok_or(Errno::ENOMEM)?;
        Ok(Self {
            entries: Table::zeroed(tables as usize * ENTRIES)?,
            heads: Table::zeroed(tables as usize)?,
            list: GraceList::new(tables, tables, ENTRIES * WORD, SLOTS, domain)?.growing(reservation, TABLE_MEMORY),
        })
    }

    fn of(&self, table: u32) -> &[AtomicU64] {
        &self.entries[table as usize * ENTRIES..][..ENTRIES]
    }

    #[inline(always)]
    pub(super) fn entry(&self, table: u32, index: u32) -> Entry {
        // Acquire pairs with the release in `refresh`: the nodes named are complete.
        Entry(self.entries[table as usize * ENTRIES + index as usize].load(Ordering::Acquire))
    }

    /// The number of the node that a table belongs to.
    pub(super) fn head(&self, table: u32) -> u32 {
        // Acquire pairs with the release in `set_head`: the node is complete.
        self.heads[table as usize].load(Ordering::Acquire)
    }

    pub(super) fn set_head(&self, table: u32, node: Node<'_>) {
        // Release pairs with the acquire in `head`.
        self.heads[table as usize].store(node.number, Ordering::Release);
    }

    /// Bytes in use.
    pub(super) fn memory_usage(&self) -> u64 {
        u64::from(self.list.touched()) * (ENTRIES * WORD + size_of::<u32>()) as u64 + self.list.memory() as u64
    }
}

impl TrieMap {
    /// The head from which to walk for a change near `key`: `back` heads (1 or more) above the last one on the path,
    /// so that every node and table that the change affects lies below it. `None`: the root.
    pub(super) fn start<const W: usize>(&self, key: &Prefix<W>, back: usize) -> Option<Node<'_>> {
        let mut passed = [Child::None; 3];
        let mut at = self.root().get().map_or(Child::None, Child::Node);
        loop {
            let next = match at {
                Child::None => break,
                Child::Node(number) => {
                    let node = self.node(number);
                    let head = node.head();
                    if node.common(key) < head.len() || head.len() >= key.len {
                        break;
                    }
                    self.next_head(node, head, key)
                }
                // The table's head begins with its window.
                Child::Table { table, window } if key.len >= (window + 1) * STRIDE => {
                    // The walk may restart at the node that was skipped.
                    mem::prefetch_write(&self.node(self.tables.head(table)).words[0]);
                    self.tables.entry(table, key.index(window)).child(window)
                }
                // The key ends in this window: continue with this head.
                Child::Table { table, .. } => {
                    at = Child::Node(self.tables.head(table));
                    continue;
                }
            };
            if let Child::None = next {
                break;
            }
            passed = [at, passed[0], passed[1]];
            at = next;
        }
        match passed[back - 1] {
            Child::None => None,
            Child::Node(number) => Some(self.node(number)),
            Child::Table { table, .. } => Some(self.node(self.tables.head(table))),
        }
    }

    /// The head after `node`'s window on the path to `key`, of which `node` is a proper prefix.
    fn next_head<const W: usize>(&self, node: Node<'_>, head: Head, key: &Prefix<W>) -> Child {
        let (mut len, end) = (head.len(), window_end(head.len()));
        if let (Some(table), true) = (head.table(), key.len >= end) {
            let window = len / STRIDE;
            return self.tables.entry(table, key.index(window)).child(window);
        }
        let mut number = node.number;
        while len < end && len < key.len {
            let Some(next) = self.node(number).child(key.bit(len)).get() else { return Child::None };
            number = next;
            len = self.node(next).len();
        }
        if len >= end { Child::Node(number) } else { Child::None }
    }

    /// Updates the tables on the path from `start` to `key` after it was added or removed, and creates tables where
    /// the trie became dense.
    pub(super) fn settle<const W: usize>(&self, start: Option<Node<'_>>, key: &Prefix<W>, slot: u32) {
        let mut at = start.or_else(|| self.follow(self.root()));
        // The head of the current window, and the number of nodes in it so far.
        let mut window: Option<(Node<'_>, u32)> = None;
        while let Some(node) = at {
            let (head, common) = (node.head(), node.common(key));
            if common < head.len() {
                break;
            }
            let (first, count) = match window {
                Some((first, count)) if head.len() < window_end(first.len()) => (first, count + 1),
                _ => (node, 1),
            };
            window = Some((first, count));
            match head.table() {
                Some(table) => self.refresh(node, table, key),
                None if count == DENSE && first.head().table().is_none() => self.make_table(first, key, slot),
                None => {}
            }
            if head.len() >= key.len {
                break;
            }
            at = self.follow(node.child(key.bit(head.len())));
        }
        self.refresh_top(key);
    }

    /// Rewrites the entries of a head's table that `key` may affect: the entries whose index agrees with the key's
    /// bits. (A branching that appears or disappears with the key is no key's longest prefix. Where it lies after the
    /// window, the key does as well.)
    fn refresh<const W: usize>(&self, head: Node<'_>, table: u32, key: &Prefix<W>) {
        let len = head.len();
        let fixed = key.len.min(window_end(len));
        self.rewrite(head, table, key.index(len / STRIDE), fixed);
    }

    /// Rewrites the entries that agree with `index` in the bits up to `fixed`.
    fn rewrite(&self, head: Node<'_>, table: u32, index: u32, fixed: u32) {
        let open = window_end(head.len()) - fixed;
        let first = (index >> open) << open;
        for index in first..first + (1 << open) {
            // Release pairs with the acquire in `entry`.
            self.tables.of(table)[index as usize].store(self.derive(head, index).0, Ordering::Release);
        }
    }

    /// The form in which an entry names the topmost node after a window that ends at `end`.
    pub(super) fn behind(&self, node: Node<'_>, end: u32) -> Child {
        let head = node.head();
        match head.table() {
            Some(table) if head.len() == end && head.is_intermediate() => Child::Table { table, window: end / STRIDE },
            _ => Child::Node(node.number),
        }
    }

    /// Replaces the node of `key` by another node of this key in the entries of the table of `window`.
    pub(super) fn rename<const W: usize>(&self, table: u32, window: u32, key: &Prefix<W>, old: u32, new: u32) {
        let end = (window + 1) * STRIDE;
        let open = end - key.len.min(end);
        let first = (key.index(window) >> open << open) as usize;
        for entry in &self.tables.of(table)[first..first + (1 << open)] {
            Entry::rename(entry, old, new);
        }
    }

    /// The node of a key that is present.
    pub(super) fn find<const W: usize>(&self, key: &Prefix<W>) -> Option<Found<'_>> {
        let mut named = None;
        let mut at = self.root().get().map_or(Child::None, Child::Node);
        loop {
            let node = match at {
                Child::None => return None,
                Child::Table { table, window } if key.len >= (window + 1) * STRIDE => {
                    named = Some((table, window));
                    at = self.tables.entry(table, key.index(window)).child(window);
                    continue;
                }
                // The key ends in this window.
                Child::Table { table, .. } => self.node(self.tables.head(table)),
                Child::Node(number) => self.node(number),
            };
            let head = node.head();
            if head.len() > key.len || node.common(key) < head.len() {
                return None;
            }
            if head.len() == key.len {
                return (!head.is_intermediate()).then_some(Found { node, named });
            }
            let (window, end) = (head.len() / STRIDE, window_end(head.len()));
            // After the window of a node without a table, no table names the next node.
            named = head.table().map(|table| (table, window)).or(named.filter(|&(_, of)| of == window));
            at = match head.table() {
                Some(table) if key.len >= end => self.tables.entry(table, key.index(window)).child(window),
                _ => node.child(key.bit(head.len())).get().map_or(Child::None, Child::Node),
            };
        }
    }

    /// The entry computed from the child links.
    pub(super) fn derive(&self, head: Node<'_>, index: u32) -> Entry {
        let window = head.len() / STRIDE;
        let (begin, end) = (window * STRIDE, window_end(head.len()));
        let (mut node, mut best) = (head, None);
        loop {
            let len = node.len();
            if len >= end {
                return Entry::of(best, self.behind(node, end));
            }
            if !node.is_intermediate() {
                best = Some(node.number);
            }
            let bit = index >> (end - 1 - len) & 1;
            let Some(next) = self.follow(node.child(bit as usize)) else { return Entry::of(best, Child::None) };
            // A child may be several bits longer: its bits inside the window must be those of the index.
            let unknown = end - next.len().min(end);
            if (next.index(window) ^ index) >> unknown != 0 {
                return Entry::of(best, Child::None);
            }
            debug_assert!(next.len() > begin);
            node = next;
        }
    }

    /// Gives a head a table, unless the pool is empty.
    fn make_table<const W: usize>(&self, head: Node<'_>, key: &Prefix<W>, slot: u32) {
        let Some(table) = self.tables.list.pop(slot) else { return };
        let len = head.len();
        // Only the entries that agree with the head's bits are ever read.
        self.rewrite(head, table, head.index(len / STRIDE), len);
        self.tables.set_head(table, head);
        head.set_head(head.head().with_table(Some(table)));
        // The entry above that leads here may skip the node from this point on.
        if let Some(above) = self.head_above(head, key)
            && let Some(table) = above.head().table()
        {
            self.refresh(above, table, key);
        }
    }

    /// The head above `head`, which is on the path to `key`.
    fn head_above<const W: usize>(&self, head: Node<'_>, key: &Prefix<W>) -> Option<Node<'_>> {
        let mut at = self.follow(self.root())?;
        while at.number != head.number {
            let next = match self.next_head(at, at.head(), key) {
                Child::None => return None,
                Child::Node(number) => self.node(number),
                Child::Table { table, .. } => self.node(self.tables.head(table)),
            };
            if next.number == head.number {
                return Some(at);
            }
            at = next;
        }
        None
    }

    /// Removes the table of a node that stopped being a head, after the entries that name the table were rewritten.
    pub(super) fn demote(&self, node: Node<'_>, slot: u32) {
        if let Some(table) = node.head().table() {
            node.set_head(node.head().with_table(None));
            self.tables.list.retire(slot, table);
        }
    }

    /// Retires a node that no link and no entry names, with its table.
    pub(super) fn retire(&self, node: Node<'_>, slot: u32) {
        if let Some(table) = node.head().table() {
            self.tables.list.retire(slot, table);
        }
        self.nodes.retire(slot, node.number);
    }

    /// Panics unless each entry of a head's table agrees with the links.
    #[cfg(test)]
    pub(super) fn check_table(&self, head: Node<'_>, table: u32) {
        let (begin, open) = (head.len() / STRIDE, window_end(head.len()) - head.len());
        let first = (head.index(begin) >> open) << open;
        for index in first..first + (1 << open) {
            let (is, must) = (self.tables.entry(table, index), self.derive(head, index));
            // A table below a head that was made before this one: the entry may still name the node.
            let node = |child| match child {
                Child::None => None,
                Child::Node(number) => Some(number),
                Child::Table { table, .. } => Some(self.tables.head(table)),
            };
            assert_eq!(is.best(), must.best(), "the longest key at {index} below {} bits", head.len());
            assert_eq!(node(is.child(begin)), node(must.child(begin)), "the next node at {index}");
        }
    }
}
