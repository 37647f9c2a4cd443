//! Longest-prefix-match tries.
//!
//! Problem: a lookup must find the longest stored prefix of a key while other threads insert and delete, without waiting.
//!
//! Approach: a path-compressed binary trie, as in the kernel. Lookups walk it without locks; writers hold the map's lock and
//! publish every change by one store of a child link. A node's prefix and links below it stay as they are after it is
//! unlinked, until every run that could have found it is over ([`crate::retire`]).
//!
//! Invariants: a child's prefix is longer than its parent's and begins with it; an intermediate node (which stands for no
//! key) has two children; a node's prefix and value are complete before a link names it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use bpf_quiesce::Domain;

use crate::def::{MapDef, update};
use crate::errno::{Errno, OpResult};
use crate::header::{LookupFn, MapHeader};
use crate::lock::SlotLock;
use crate::mem::{self, Table, WORD, words_for};
use crate::ops::{Cursor, MapOps};
use crate::retire::GraceList;
use crate::value::{Shape, Source};

/// Words of a node before its prefix: prefix length and kind, two child links.
const HEADER: usize = 3;

/// Bytes of the prefix length in a key.
const LENGTH: usize = size_of::<u32>();

/// The kernel's `LPM_DATA_SIZE_MAX`, in words.
const MAX_DATA: usize = 256 / WORD;

/// Set beside the prefix length of a node that stands for no key.
const INTERMEDIATE: u64 = 1 << 32;

/// A node's number plus one; 0 is none.
type Link = AtomicU64;

/// A key read from a program or the host.
struct Prefix {
    /// Significant bits.
    len: u32,
    data: [u64; MAX_DATA],
}

impl Prefix {
    /// # Safety
    /// `key` must be readable for 4 + `data` bytes.
    unsafe fn read(key: *const u8, data: usize) -> Self {
        // SAFETY: at least four readable bytes (contract).
        let len = unsafe { mem::load_program_word(key, 0, LENGTH) };
        let mut prefix = Self { len: first_half(len), data: [0; MAX_DATA] };
        for (i, word) in prefix.data.iter_mut().enumerate().take(words_for(data)) {
            let mut bytes = [0; WORD];
            // By halves: behind the length, aligned data is aligned to 4.
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
    fn bit(&self, n: u32) -> usize {
        bit_of(self.data[n as usize / 64], n)
    }
}

/// The `u32` in the first four bytes of a word.
fn first_half(word: u64) -> u32 {
    let [a, b, c, d, ..] = word.to_ne_bytes();
    u32::from_ne_bytes([a, b, c, d])
}

fn bit_of(word: u64, n: u32) -> usize {
    (u64::from_be(word) >> (63 - n % 64) & 1) as usize
}

/// A node in the slab.
#[derive(Clone, Copy)]
struct Node<'a> {
    number: u32,
    words: &'a [AtomicU64],
}

impl<'a> Node<'a> {
    fn kind(self) -> u64 {
        // Relaxed: complete before the node was linked; later only marked as intermediate, under the lock.
        self.words[0].load(Ordering::Relaxed)
    }

    fn len(self) -> u32 {
        self.kind() as u32
    }

    fn is_intermediate(self) -> bool {
        self.kind() & INTERMEDIATE != 0
    }

    fn child(self, bit: usize) -> &'a Link {
        &self.words[1 + bit]
    }

    fn data(self) -> &'a [AtomicU64] {
        &self.words[HEADER..]
    }

    fn bit(self, n: u32) -> usize {
        bit_of(self.data()[n as usize / 64].load(Ordering::Relaxed), n)
    }

    /// How many leading bits node and key have in common, at most the shorter length.
    fn common(self, key: &Prefix) -> u32 {
        let limit = self.len().min(key.len);
        for i in 0..limit.div_ceil(64) {
            // Relaxed: complete before the node was linked.
            let differ = self.data()[i as usize].load(Ordering::Relaxed) ^ key.data[i as usize];
            if differ != 0 {
                return limit.min(i * 64 + u64::from_be(differ).leading_zeros());
            }
        }
        limit
    }
}

#[derive(Debug)]
pub(crate) struct TrieMap {
    shape: Shape,
    /// Bytes of a key's data.
    data_size: usize,
    data_words: usize,
    max_entries: u32,
    root: Link,
    /// Held by writers.
    lock: SlotLock,
    /// Keys present; changed under the lock.
    count: AtomicU32,
    nodes: GraceList,
    node_words: usize,
    slab: Table<AtomicU64>,
}

fn node_words(def: &MapDef) -> usize {
    HEADER + words_for(def.key_size as usize - LENGTH) + words_for(def.value_size as usize)
}

/// A node per key and per branching, and as many again that wait for a grace period.
fn nodes(def: &MapDef) -> u64 {
    2 * u64::from(def.max_entries) + GraceList::headroom(def.max_entries, node_words(def) * WORD)
}

impl TrieMap {
    /// Bytes a trie of this definition maps.
    pub(crate) fn memory_needed(def: &MapDef) -> u64 {
        nodes(def).saturating_mul((node_words(def) * WORD + size_of::<u32>()) as u64)
    }

    pub(crate) fn new(def: &MapDef, domain: &Arc<Domain>) -> OpResult<Self> {
        let nodes = u32::try_from(nodes(def)).map_err(|_| Errno::ENOMEM)?;
        let words = node_words(def).checked_mul(nodes as usize).ok_or(Errno::ENOMEM)?;
        let data_size = def.key_size as usize - LENGTH;
        Ok(Self {
            shape: Shape::of(def),
            data_size,
            data_words: words_for(data_size),
            max_entries: def.max_entries,
            root: Link::new(0),
            lock: SlotLock::default(),
            count: AtomicU32::new(0),
            nodes: GraceList::new(nodes, nodes, domain.max_slots(), domain)?,
            node_words: node_words(def),
            slab: Table::zeroed(words)?,
        })
    }

    fn max_len(&self) -> u32 {
        self.data_size as u32 * 8
    }

    fn node(&self, number: u32) -> Node<'_> {
        let start = number as usize * self.node_words;
        Node { number, words: &self.slab[start..start + self.node_words] }
    }

    fn follow(&self, link: &Link) -> Option<Node<'_>> {
        // Acquire pairs with the release in `publish`: the node is complete.
        (link.load(Ordering::Acquire) as u32).checked_sub(1).map(|number| self.node(number))
    }

    fn publish(link: &Link, node: Option<Node<'_>>) {
        // Release pairs with the acquire in `follow`.
        link.store(node.map_or(0, |node| u64::from(node.number) + 1), Ordering::Release);
    }

    fn value<'a>(&self, node: Node<'a>) -> &'a [AtomicU64] {
        &node.words[HEADER + self.data_words..]
    }

    /// The longest stored prefix of `key`.
    fn longest(&self, key: &Prefix) -> Option<Node<'_>> {
        let (mut link, mut found) = (&self.root, None);
        while let Some(node) = self.follow(link) {
            let common = node.common(key);
            if common < node.len() {
                break;
            }
            if !node.is_intermediate() {
                found = Some(node);
            }
            if common == self.max_len() {
                break;
            }
            link = node.child(key.bit(node.len()));
        }
        found
    }

    /// Walks towards `key` up to the first node that is not a proper prefix of it. Returns that node with the bits in common, the
    /// link that names it, and the proper prefix above with its own link.
    fn locate(&self, key: &Prefix) -> Place<'_> {
        let mut place = Place { link: &self.root, above: None, node: None, common: 0 };
        while let Some(node) = self.follow(place.link) {
            let common = node.common(key);
            if common != node.len() || node.len() == key.len {
                place.node = Some(node);
                place.common = common;
                break;
            }
            place.above = Some((node, place.link));
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

    /// Fills a node that nobody sees.
    fn fill(&self, number: u32, kind: u64, data: impl Iterator<Item = u64>) -> Node<'_> {
        let node = self.node(number);
        // Relaxed, here and in the value: `publish` releases it.
        node.words[0].store(kind, Ordering::Relaxed);
        node.child(0).store(0, Ordering::Relaxed);
        node.child(1).store(0, Ordering::Relaxed);
        for (shared, word) in node.data().iter().zip(data).take(self.data_words) {
            shared.store(word, Ordering::Relaxed);
        }
        node
    }

    /// # Safety
    /// A program's source must be readable for the value size.
    unsafe fn update_key(&self, key: &Prefix, value: Source<'_>, flags: u64, slot: u32) -> OpResult {
        if flags > update::EXIST || key.len > self.max_len() {
            return Err(Errno::EINVAL);
        }
        let _lock = self.lock.lock(slot)?;
        let place = self.locate(key);
        let same = place.node.filter(|node| node.len() == place.common);
        let present = same.filter(|node| !node.is_intermediate());
        if present.is_some() && flags == update::NOEXIST {
            return Err(Errno::EEXIST);
        }
        // Both nodes first, so that nothing has to be undone.
        let branches = same.is_none() && place.node.is_some() && place.common != key.len;
        let number = self.nodes.pop(slot).ok_or(Errno::ENOMEM)?;
        let branch = if branches { self.nodes.pop(slot) } else { None };
        let room = match present {
            Some(_) => Ok(()),
            None if branches && branch.is_none() => Err(Errno::ENOMEM),
            None => self.add_key(flags),
        };
        if let Err(errno) = room {
            self.nodes.push(slot, number);
            if let Some(branch) = branch {
                self.nodes.push(slot, branch);
            }
            return Err(errno);
        }
        let new = self.fill(number, key.len.into(), key.data.iter().copied());
        // SAFETY: passed on.
        unsafe { self.shape.write(self.value(new), value) };
        match (place.node, same, branch) {
            // A free link.
            (None, _, _) => Self::publish(place.link, Some(new)),
            // The same prefix: the new node takes the place of the old.
            (_, Some(old), _) => {
                for bit in 0..2 {
                    Self::publish(new.child(bit), self.follow(old.child(bit)));
                }
                Self::publish(place.link, Some(new));
                self.nodes.retire(slot, old.number);
            }
            // The new prefix is part of the node's: it goes between.
            (Some(node), None, None) => {
                Self::publish(new.child(node.bit(place.common)), Some(node));
                Self::publish(place.link, Some(new));
            }
            // The two part at bit `common`: an intermediate node holds both.
            (Some(node), None, Some(branch)) => {
                let kind = u64::from(place.common) | INTERMEDIATE;
                let branch = self.fill(branch, kind, key.data.iter().copied());
                let side = key.bit(place.common);
                Self::publish(branch.child(side), Some(new));
                Self::publish(branch.child(1 - side), Some(node));
                Self::publish(place.link, Some(branch));
            }
        }
        Ok(())
    }

    fn delete_key(&self, key: &Prefix, slot: u32) -> OpResult {
        if key.len > self.max_len() {
            return Err(Errno::EINVAL);
        }
        let _lock = self.lock.lock(slot)?;
        let place = self.locate(key);
        let same = place.node.filter(|node| node.len() == place.common && !node.is_intermediate());
        let node = same.ok_or(Errno::ENOENT)?;
        self.count.store(self.count.load(Ordering::Relaxed) - 1, Ordering::Relaxed);
        let children = [self.follow(node.child(0)), self.follow(node.child(1))];
        match (children, place.above) {
            ([Some(_), Some(_)], _) => {
                // Relaxed: a reader sees the key or not; nothing else changes.
                node.words[0].store(node.kind() | INTERMEDIATE, Ordering::Relaxed);
            }
            ([None, None], Some((parent, link))) if parent.is_intermediate() => {
                // The parent would have one child left: that child takes its place.
                let other = 1 - key.bit(parent.len());
                Self::publish(link, self.follow(parent.child(other)));
                self.nodes.retire(slot, parent.number);
                self.nodes.retire(slot, node.number);
            }
            ([child, other], _) => {
                Self::publish(place.link, child.or(other));
                self.nodes.retire(slot, node.number);
            }
        }
        Ok(())
    }

    /// The first key in postorder (longer prefixes before those they begin with) below `link`.
    fn leftmost<'a>(&'a self, link: &'a Link) -> Option<Node<'a>> {
        let (mut link, mut last) = (link, None);
        while let Some(node) = self.follow(link) {
            if !node.is_intermediate() {
                last = Some(node);
            }
            let left = node.child(0);
            // Relaxed: `follow` reads it again.
            link = if left.load(Ordering::Relaxed) != 0 { left } else { node.child(1) };
        }
        last
    }

    /// The key after `key` in postorder, whether `key` is present or not.
    fn successor(&self, key: &Prefix) -> Option<Node<'_>> {
        let (mut link, mut next) = (&self.root, None);
        while let Some(node) = self.follow(link) {
            let common = node.common(key);
            if common == node.len() && common < key.len {
                // A proper prefix: what follows the key below it comes first, then its right side, then itself.
                let side = key.bit(common);
                let right = if side == 0 { self.leftmost(node.child(1)) } else { None };
                let own = (!node.is_intermediate()).then_some(node);
                next = right.or(own).or(next);
                link = node.child(side);
                continue;
            }
            let parts = common < node.len() && common < key.len;
            if parts && key.bit(common) == 0 {
                // The node is to the right of the key: everything below it follows.
                next = self.leftmost(link).or(next);
            }
            break;
        }
        next
    }

    fn host_prefix(&self, key: &[u8]) -> Prefix {
        // SAFETY: the key size, which the caller checked, is 4 + the data size.
        unsafe { Prefix::read(key.as_ptr(), self.data_size) }
    }

    fn copy_key(node: Node<'_>, out: &mut [u8]) {
        out[..LENGTH].copy_from_slice(&node.len().to_ne_bytes());
        mem::load_bytes(node.data(), &mut out[LENGTH..]);
    }
}

/// Where a key is, or would go.
struct Place<'a> {
    /// The link that names `node`, or would name the key.
    link: &'a Link,
    /// The longest node that is a proper prefix of the key, and the link that names it.
    above: Option<(Node<'a>, &'a Link)>,
    node: Option<Node<'a>>,
    common: u32,
}

/// The program's lookup.
///
/// # Safety
/// See [`LookupFn`]; the map must be a trie.
unsafe extern "C" fn lookup(map: *const MapHeader, key: *const u8, _slot: u32) -> *mut u8 {
    // SAFETY: a live header (contract).
    let imp = unsafe { (*map).imp };
    // SAFETY: the header of a trie, whose implementation lives as long (contract).
    let map = unsafe { &*imp.cast::<TrieMap>() };
    // SAFETY: readable for the key size (contract).
    let key = unsafe { Prefix::read(key, map.data_size) };
    if key.len > map.max_len() {
        return std::ptr::null_mut();
    }
    map.longest(&key).map_or(std::ptr::null_mut(), |node| map.value(node).as_ptr().cast_mut().cast())
}

impl MapOps for TrieMap {
    fn as_any(&self) -> &dyn std::any::Any {
        self
    }

    fn lookup_fn(&self) -> LookupFn {
        lookup
    }

    fn host_value_size(&self) -> usize {
        self.shape.size
    }

    unsafe fn program_update(&self, key: *const u8, value: *const u8, flags: u64, slot: u32) -> OpResult {
        // SAFETY: readable for the key size (contract).
        let key = unsafe { Prefix::read(key, self.data_size) };
        // SAFETY: passed on.
        unsafe { self.update_key(&key, Source::Program(value), flags, slot) }
    }

    unsafe fn program_delete(&self, key: *const u8, slot: u32) -> OpResult {
        // SAFETY: readable for the key size (contract).
        let key = unsafe { Prefix::read(key, self.data_size) };
        self.delete_key(&key, slot)
    }

    fn lookup(&self, key: &[u8], out: &mut [u8], _flags: u64, _slot: u32) -> OpResult {
        let key = self.host_prefix(key);
        let found = if key.len > self.max_len() { None } else { self.longest(&key) };
        self.shape.read(self.value(found.ok_or(Errno::ENOENT)?), out);
        Ok(())
    }

    fn update(&self, key: &[u8], value: &[u8], flags: u64, slot: u32) -> OpResult {
        // SAFETY: a host source.
        unsafe { self.update_key(&self.host_prefix(key), Source::Host(value), flags, slot) }
    }

    fn delete(&self, key: &[u8], slot: u32) -> OpResult {
        self.delete_key(&self.host_prefix(key), slot)
    }

    fn next_key(&self, key: Option<&[u8]>, out: &mut [u8]) -> OpResult {
        // An absent or invalid key stands before the first one.
        let present = |key: &Prefix| {
            key.len <= self.max_len()
                && self
                    .locate(key)
                    .node
                    .is_some_and(|node| node.len() == key.len && node.common(key) == key.len && !node.is_intermediate())
        };
        let next = match key.map(|key| self.host_prefix(key)).filter(present) {
            Some(key) => self.successor(&key),
            None => self.leftmost(&self.root),
        };
        Self::copy_key(next.ok_or(Errno::ENOENT)?, out);
        Ok(())
    }

    /// The cursor is the last key, whether it is still there or not, so the iteration always moves on.
    fn next_at(&self, cursor: &mut Cursor, key: &mut [u8], value: &mut [u8], _slot: u32) -> OpResult {
        let next = match &cursor.key {
            Some(last) => self.successor(&self.host_prefix(last)),
            None => self.leftmost(&self.root),
        };
        let node = next.ok_or(Errno::ENOENT)?;
        Self::copy_key(node, key);
        self.shape.read(self.value(node), value);
        cursor.key = Some(key.to_vec());
        Ok(())
    }

    fn has_batch(&self) -> bool {
        true
    }

    fn len(&self) -> u64 {
        self.count.load(Ordering::Relaxed).into()
    }

    fn memory_usage(&self) -> u64 {
        let touched = u64::from(self.nodes.touched());
        touched * (self.node_words * WORD) as u64 + self.nodes.memory() as u64
    }
}
