//! Longest-prefix-match tries.
//!
//! Problem: a lookup must find the longest stored prefix of a key while other threads insert and delete, without
//! waiting.
//!
//! Approach: a path-compressed binary trie, as in the kernel, with tables on top of it that let a walk resolve
//! several bits at a time ([`stride`], [`top`]). Lookups walk without locks. Writers hold the map's lock, change the
//! trie by one store of a child link, and then update the tables. After a node is unlinked, its prefix and the links
//! below it do not change until every run that could have found it is over ([`crate::retire`]).
//!
//! Invariants: a child's prefix is longer than its parent's and begins with it. An intermediate node (which stands
//! for no key) has two children. A node's prefix and value are complete before a link names it.

mod node;
mod ops;
mod stride;
#[cfg(all(test, not(loom)))]
mod tests;
mod top;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use bpf_quiesce::{Domain, Reservation};

use crate::def::{MapDef, update};
use crate::errno::{Errno, OpResult};
use crate::lock::SlotLock;
use crate::mem::{self, Table, WORD, words_for};
use crate::retire::GraceList;
use crate::value::{Shape, Source};
use node::{HEADER, Head, LENGTH, Link, Node, Prefix, STRIDE, window_end};
use stride::{Child, Entry, Found, Tables};
use top::Top;

#[derive(Debug)]
pub(crate) struct TrieMap {
    shape: Shape,
    /// Bytes of a key's data.
    data_size: usize,
    data_words: usize,
    max_entries: u32,
    root: AtomicU64,
    /// Held by writers.
    lock: SlotLock,
    /// Keys present; changed under the lock.
    count: AtomicU32,
    /// Free and used nodes. The note of a node in the trie is the number of its parent plus one, or 0, so that the
    /// node can be replaced without a walk.
    nodes: GraceList,
    node_words: usize,
    slab: Table<AtomicU64>,
    tables: Tables,
    top: Top,
}

fn node_words(def: &MapDef) -> usize {
    HEADER + words_for(def.key_size as usize - LENGTH) + words_for(def.value_size as usize)
}

/// The lists of free nodes and tables have one slot, because only the holder of the lock uses them.
const SLOTS: u32 = 1;
/// The number of that slot.
const WRITER: u32 = 0;

/// Number of nodes: one per key and one per branching, and the nodes that wait for a grace period.
fn nodes(def: &MapDef) -> u64 {
    2 * u64::from(def.max_entries) + GraceList::headroom(def.max_entries, node_words(def) * WORD, SLOTS)
}

/// Bytes of a node with its link.
fn node_memory(def: &MapDef) -> u64 {
    (node_words(def) * WORD + size_of::<u32>()) as u64
}

/// The place of a key in the trie, present or not.
struct Place<'a> {
    /// The link that names `node`, or would name the key.
    link: Link<'a>,
    /// The longest node that is a proper prefix of the key, and the link that names it, if the walk passed it.
    above: Option<(Node<'a>, Option<Link<'a>>)>,
    node: Option<Node<'a>>,
    /// Number of leading bits that `node` and the key have in common.
    common: u32,
}

impl TrieMap {
    /// Bytes a trie of this definition maps.
    pub(crate) fn memory_needed(def: &MapDef) -> u64 {
        let nodes = nodes(def).saturating_mul(node_memory(def));
        nodes.saturating_add(Tables::memory_needed(def)).saturating_add(Self::memory_at_first(def))
    }

    /// Bytes of a trie before it has nodes or tables.
    pub(crate) fn memory_at_first(def: &MapDef) -> u64 {
        2 * GraceList::fixed_memory(SLOTS) + Top::memory_needed(def, def.key_size as usize - LENGTH)
    }

    /// Creates a trie. Nodes and tables are counted when they are first taken.
    pub(crate) fn new(def: &MapDef, domain: &Arc<Domain>, reservation: Option<&Reservation>) -> OpResult<Self> {
        // Entries of tables have 31 bits for a node's number plus one.
        let nodes = u32::try_from(nodes(def)).ok().filter(|&nodes| nodes < 1 << 31).ok_or(Errno::ENOMEM)?;
        let words = node_words(def).checked_mul(nodes as usize).ok_or(Errno::ENOMEM)?;
        let data_size = def.key_size as usize - LENGTH;
        Ok(Self {
            shape: Shape::of(def),
            data_size,
            data_words: words_for(data_size),
            max_entries: def.max_entries,
            root: AtomicU64::new(0),
            lock: SlotLock::default(),
            count: AtomicU32::new(0),
            nodes: GraceList::new(nodes, nodes, node_words(def) * WORD, SLOTS, domain)?
                .growing(reservation, node_memory(def)),
            node_words: node_words(def),
            slab: Table::zeroed(words)?,
            tables: Tables::new(def, domain, reservation)?,
            top: Top::new(def, data_size)?,
        })
    }

    fn max_len(&self) -> u32 {
        crate::num::small(self.data_size) * 8
    }

    fn root(&self) -> Link<'_> {
        Link::new(&self.root, 0)
    }

    #[inline(always)]
    fn node(&self, number: u32) -> Node<'_> {
        let start = number as usize * self.node_words;
        Node { number, words: &self.slab[start..start + self.node_words] }
    }

    #[inline(always)]
    fn follow(&self, link: Link<'_>) -> Option<Node<'_>> {
        link.get().map(|number| self.node(number))
    }

    fn value<'a>(&self, node: Node<'a>) -> &'a [AtomicU64] {
        &node.words[HEADER + self.data_words..]
    }

    /// The longest stored prefix of `key`.
    #[inline(always)]
    fn longest<const W: usize>(&self, key: &Prefix<W>) -> Option<Node<'_>> {
        let mut found = None;
        let mut next = match self.top.entry(key) {
            Some(entry) => self.skip(entry, top::LAST, key, &mut found),
            None => self.root().get(),
        };
        while let Some(number) = next {
            let node = self.node(number);
            let head = node.head();
            let len = head.len();
            if node.common(key) < len {
                break;
            }
            if !head.is_intermediate() {
                found = Some(number);
            }
            if len >= key.len {
                break;
            }
            next = match head.table() {
                Some(table) if key.len >= window_end(len) => {
                    let window = len / STRIDE;
                    self.skip(self.tables.entry(table, key.index(window)), window, key, &mut found)
                }
                _ => node.child(key.bit(len)).get(),
            };
        }
        found.map(|number| self.node(number))
    }

    /// Walks from a window's entry to the next one as long as no node needs to be read. Returns the node to continue
    /// with.
    #[inline(always)]
    fn skip<const W: usize>(&self, entry: Entry, window: u32, key: &Prefix<W>, found: &mut Option<u32>) -> Option<u32> {
        let (mut entry, mut window) = (entry, window);
        loop {
            *found = entry.best().or(*found);
            match entry.child(window) {
                Child::None => return None,
                Child::Node(number) => return Some(number),
                Child::Table { table, window: behind } if key.len >= (behind + 1) * STRIDE => {
                    window = behind;
                    entry = self.tables.entry(table, key.index(window));
                }
                // The key ends in the next window.
                Child::Table { table, .. } => return Some(self.tables.head(table)),
            }
        }
    }

    /// Walks from `start` (the root, if none) towards `key`, up to the first node that is not a proper prefix of it.
    fn locate<'a, const W: usize>(&'a self, start: Option<Node<'a>>, key: &Prefix<W>) -> Place<'a> {
        let mut place = Place { link: self.root(), above: None, node: None, common: 0 };
        if let Some(node) = start {
            place.above = Some((node, None));
            place.link = node.child(key.bit(node.len()));
        }
        while let Some(node) = self.follow(place.link) {
            let common = node.common(key);
            if common != node.len() || node.len() == key.len {
                place.node = Some(node);
                place.common = common;
                break;
            }
            place.above = Some((node, Some(place.link)));
            place.link = node.child(key.bit(node.len()));
        }
        place
    }

    /// Counts one more key.
    fn add_key(&self, flags: u64) -> OpResult {
        let count = self.count.load(Ordering::Relaxed);
        if flags == update::EXIST {
            return Err(Errno::ENOENT);
        }
        if count == self.max_entries {
            return Err(Errno::ENOSPC);
        }
        self.count.store(count + 1, Ordering::Relaxed);
        Ok(())
    }

    /// Fills a node that is not linked yet.
    fn fill<const W: usize>(&self, number: u32, head: Head, children: u64, key: &Prefix<W>) -> Node<'_> {
        let node = self.node(number);
        // Relaxed, here and in the value: the link that names the node releases it.
        node.words[0].store(head.0, Ordering::Relaxed);
        node.words[1].store(children, Ordering::Relaxed);
        for (shared, word) in node.data().iter().zip(&key.data).take(self.data_words) {
            shared.store(*word, Ordering::Relaxed);
        }
        node
    }

    /// # Safety
    /// A program's source must be readable for the value size.
    unsafe fn update_key<const W: usize>(&self, key: &Prefix<W>, value: Source<'_>, flags: u64, slot: u32) -> OpResult {
        if flags > update::EXIST || key.len > self.max_len() {
            return Err(Errno::EINVAL);
        }
        if self.lock.is_held()
            && let Some(parent) = self.find(key).and_then(|found| self.parent(found.node))
        {
            // Prefetches lines that are needed after waiting for the lock.
            mem::prefetch_write(&parent.words[1]);
        }
        let _lock = self.lock.lock(slot)?;
        let slot = WRITER;
        if let Some(next) = self.nodes.peek(slot) {
            // The node to fill was probably unused for long, so its line is prefetched.
            mem::prefetch_write(&self.node(next).words[0]);
        }
        if let Some(found) = self.find(key) {
            // SAFETY: the caller promises that a program's source is readable for the value size. The lock is held.
            return unsafe { self.replace(&found, key, value, flags, slot) };
        }
        let start = self.start(key, 1);
        let place = self.locate(start, key);
        // A node with this very prefix is an intermediate one.
        let same = place.node.filter(|node| node.len() == place.common);
        // Both nodes are taken first, so that no step has to be undone.
        let branches = same.is_none() && place.node.is_some() && place.common != key.len;
        let number = self.nodes.pop(slot).ok_or(Errno::ENOMEM)?;
        let branch = if branches { self.nodes.pop(slot) } else { None };
        let room = if branches && branch.is_none() { Err(Errno::ENOMEM) } else { self.add_key(flags) };
        if let Err(errno) = room {
            self.nodes.push(slot, number);
            if let Some(branch) = branch {
                self.nodes.push(slot, branch);
            }
            return Err(errno);
        }
        // The new node replaces the intermediate one and takes over its children and its table.
        let (head, children) = match same {
            Some(old) => {
                let head = Head::key(key.len).with_table(old.head().table());
                // Relaxed: only the holder of the lock writes.
                (head, old.words[1].load(Ordering::Relaxed))
            }
            None => (Head::key(key.len), 0),
        };
        let new = self.fill(number, head, children, key);
        // SAFETY: the caller promises that a program's source is readable for the value size.
        unsafe { self.shape.write(self.value(new), value) };
        let (top, below) = match (place.node, same, branch) {
            // An empty link, or the replacement of an intermediate node.
            (None, _, _) | (_, Some(_), _) => (new, None),
            // The new prefix is a prefix of the node's: the new node is inserted above it.
            (Some(node), None, None) => {
                new.child(node.bit(place.common)).set(Some(node.number));
                self.set_parent(node.number, Some(new));
                (new, Some(node))
            }
            // The two prefixes differ at bit `common`: an intermediate node gets both as children.
            (Some(node), None, Some(branch)) => {
                let branch = self.fill(branch, Head::intermediate(place.common), 0, key);
                let side = key.bit(place.common);
                branch.child(side).set(Some(new.number));
                branch.child(1 - side).set(Some(node.number));
                self.set_parent(new.number, Some(branch));
                self.set_parent(node.number, Some(branch));
                (branch, Some(node))
            }
        };
        place.link.set(Some(top.number));
        self.set_parent(top.number, place.above.map(|(above, _)| above));
        self.adopt_children(new);
        if let Some(table) = head.table() {
            self.tables.set_head(table, new);
        }
        self.settle(start, key, slot);
        if let Some(below) = below.filter(|below| below.len() < window_end(top.len())) {
            self.demote(below, slot);
        }
        if let Some(old) = same {
            // Without its table, which the new node has taken over.
            self.nodes.retire(slot, old.number);
        }
        Ok(())
    }

    /// Replaces the node of a present key. Only names of nodes change, so of the nodes above it only the parent is
    /// read.
    ///
    /// # Safety
    /// As [`TrieMap::update_key`], which holds the lock.
    unsafe fn replace<const W: usize>(
        &self,
        found: &Found<'_>,
        key: &Prefix<W>,
        value: Source<'_>,
        flags: u64,
        slot: u32,
    ) -> OpResult {
        if flags == update::NOEXIST {
            return Err(Errno::EEXIST);
        }
        let old = found.node;
        let number = self.nodes.pop(slot).ok_or(Errno::ENOMEM)?;
        let table = old.head().table();
        // Relaxed: only the holder of the lock writes.
        let new = self.fill(number, Head::key(key.len).with_table(table), old.words[1].load(Ordering::Relaxed), key);
        // SAFETY: the caller promises that a program's source is readable for the value size.
        unsafe { self.shape.write(self.value(new), value) };
        let parent = self.parent(old);
        parent.map_or(self.root(), |parent| parent.child(key.bit(parent.len()))).set(Some(number));
        self.set_parent(number, parent);
        self.adopt_children(new);
        if let Some(table) = table {
            self.tables.set_head(table, new);
            self.rename(table, key.len / STRIDE, key, old.number, number);
        }
        if let Some((table, window)) = found.named {
            self.rename(table, window, key, old.number, number);
        }
        self.rename_top(key, old.number, number);
        // Without its table, which the new node has taken over.
        self.nodes.retire(slot, old.number);
        Ok(())
    }

    /// The node that links to this one; without the lock, perhaps one that did so before. All other functions below
    /// require the lock.
    fn parent(&self, node: Node<'_>) -> Option<Node<'_>> {
        self.nodes.noted(node.number).checked_sub(1).map(|number| self.node(number))
    }

    fn set_parent(&self, node: u32, parent: Option<Node<'_>>) {
        self.nodes.note(node, parent.map_or(0, |parent| parent.number + 1));
    }

    /// Makes `node` the parent of its children.
    fn adopt_children(&self, node: Node<'_>) {
        for child in [node.child(0), node.child(1)].into_iter().filter_map(Link::get) {
            self.set_parent(child, Some(node));
        }
    }

    /// Makes the parent of a node that is removed the parent of the node's child.
    fn pass_on(&self, node: Node<'_>, child: Option<u32>) {
        if let Some(child) = child {
            self.set_parent(child, self.parent(node));
        }
    }

    fn delete_key<const W: usize>(&self, key: &Prefix<W>, slot: u32) -> OpResult {
        if key.len > self.max_len() {
            return Err(Errno::EINVAL);
        }
        let _lock = self.lock.lock(slot)?;
        let slot = WRITER;
        // Starts two heads above: the node above the key may be removed as well, so its own link must be on the path.
        let start = self.start(key, 2);
        let place = self.locate(start, key);
        let same = place.node.filter(|node| node.len() == place.common && !node.is_intermediate());
        let node = same.ok_or(Errno::ENOENT)?;
        self.count.store(self.count.load(Ordering::Relaxed) - 1, Ordering::Relaxed);
        let children = [node.child(0).get(), node.child(1).get()];
        match (children, place.above) {
            ([Some(_), Some(_)], _) => {
                node.set_head(Head::intermediate(key.len).with_table(node.head().table()));
                self.settle(start, key, slot);
            }
            ([None, None], Some((parent, Some(link)))) if parent.is_intermediate() => {
                // The parent would have one child left: that child replaces it.
                let other = parent.child(1 - key.bit(parent.len())).get();
                link.set(other);
                self.pass_on(parent, other);
                self.settle(start, key, slot);
                self.retire(parent, slot);
                self.retire(node, slot);
            }
            ([child, other], _) => {
                place.link.set(child.or(other));
                self.pass_on(node, child.or(other));
                self.settle(start, key, slot);
                self.retire(node, slot);
            }
        }
        Ok(())
    }

    /// Whether a valid key is present.
    fn has<const W: usize>(&self, key: &Prefix<W>) -> bool {
        self.find(key).is_some()
    }
}
