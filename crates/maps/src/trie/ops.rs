//! A trie as the handle and the entry points see it: selects the key size, iterates in the kernel's order.

use super::node::{LENGTH, Link, MAX_DATA, Node, Prefix};
use super::{TrieMap, WORD};
use crate::errno::{Errno, OpResult};
use crate::header::{LookupFn, MapHeader};
use crate::mem;
use crate::ops::{Cursor, MapOps};
use crate::value::Source;

/// Calls a generic function with the number of words for a key's data: one for IPv4, two for IPv6, otherwise the
/// maximum.
macro_rules! with_words {
    ($words:expr, $w:ident => $call:expr) => {
        match $words {
            0 | 1 => {
                const $w: usize = 1;
                $call
            }
            2 => {
                const $w: usize = 2;
                $call
            }
            _ => {
                const $w: usize = MAX_DATA;
                $call
            }
        }
    };
}

impl TrieMap {
    /// The first key in postorder (longer prefixes before those they begin with) below `link`.
    fn leftmost<'a>(&'a self, link: Link<'a>) -> Option<Node<'a>> {
        let (mut link, mut last) = (link, None);
        while let Some(node) = self.follow(link) {
            if !node.is_intermediate() {
                last = Some(node);
            }
            let left = node.child(0);
            link = if left.get().is_some() { left } else { node.child(1) };
        }
        last
    }

    /// The key after `key` in postorder, whether `key` is present or not.
    fn successor<const W: usize>(&self, key: &Prefix<W>) -> Option<Node<'_>> {
        let (mut link, mut next) = (self.root(), None);
        while let Some(node) = self.follow(link) {
            let common = node.common(key);
            if common == node.len() && common < key.len {
                // A proper prefix: first comes the subtree after the key, then the node's right side, then the node
                // itself.
                let side = key.bit(common);
                let right = if side == 0 { self.leftmost(node.child(1)) } else { None };
                let own = (!node.is_intermediate()).then_some(node);
                next = right.or(own).or(next);
                link = node.child(side);
                continue;
            }
            let parts = common < node.len() && common < key.len;
            if parts && key.bit(common) == 0 {
                // The node is to the right of the key: its whole subtree follows.
                next = self.leftmost(link).or(next);
            }
            break;
        }
        next
    }

    fn host_prefix<const W: usize>(&self, key: &[u8]) -> Prefix<W> {
        assert_eq!(key.len(), LENGTH + self.data_size, "a key of another size than the map's");
        // SAFETY: the key has 4 bytes and those of the data (asserted), for which `W` was selected.
        unsafe { Prefix::read(key.as_ptr(), self.data_size) }
    }

    fn copy_key(node: Node<'_>, out: &mut [u8]) {
        out[..LENGTH].copy_from_slice(&node.len().to_ne_bytes());
        mem::load_bytes(node.data(), &mut out[LENGTH..]);
    }

    /// The key after `key` in postorder; the first key if `key` is absent or invalid.
    fn after<const W: usize>(&self, key: &[u8]) -> Option<Node<'_>> {
        let key = self.host_prefix::<W>(key);
        if key.len <= self.max_len() && self.has(&key) { self.successor(&key) } else { self.leftmost(self.root()) }
    }
}

/// The program's lookup.
///
/// # Safety
/// See [`LookupFn`]; the map must be a trie whose key data fits into `W` words.
unsafe extern "C" fn lookup<const W: usize>(map: *const MapHeader, key: *const u8, _slot: u32) -> *mut u8 {
    // SAFETY: a live header (contract).
    let imp = unsafe { (*map).imp };
    // SAFETY: the header of a trie, whose implementation lives as long (contract).
    let map = unsafe { &*imp.cast::<TrieMap>() };
    // SAFETY: readable for the key size (contract).
    let key = unsafe { Prefix::<W>::read(key, map.data_size) };
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
        with_words!(self.data_words, W => lookup::<W>)
    }

    fn host_value_size(&self) -> usize {
        self.shape.size
    }

    unsafe fn program_update(&self, key: *const u8, value: *const u8, flags: u64, slot: u32) -> OpResult {
        with_words!(self.data_words, W => {
            // SAFETY: readable for the key size (contract).
            let key = unsafe { Prefix::<W>::read(key, self.data_size) };
            // SAFETY: the caller promises that `value` is readable for the value size.
            unsafe { self.update_key(&key, Source::Program(value), flags, slot) }
        })
    }

    unsafe fn program_delete(&self, key: *const u8, slot: u32) -> OpResult {
        with_words!(self.data_words, W => {
            // SAFETY: readable for the key size (contract).
            let key = unsafe { Prefix::<W>::read(key, self.data_size) };
            self.delete_key(&key, slot)
        })
    }

    fn lookup(&self, key: &[u8], out: &mut [u8], _flags: u64, _slot: u32) -> OpResult {
        with_words!(self.data_words, W => {
            let key = self.host_prefix::<W>(key);
            let found = if key.len > self.max_len() { None } else { self.longest(&key) };
            self.shape.read(self.value(found.ok_or(Errno::ENOENT)?), out);
            Ok(())
        })
    }

    fn update(&self, key: &[u8], value: &[u8], flags: u64, slot: u32) -> OpResult {
        // SAFETY: a host slice of the value size, so the contract about program sources does not apply.
        with_words!(self.data_words, W => unsafe {
            self.update_key(&self.host_prefix::<W>(key), Source::Host(value), flags, slot)
        })
    }

    fn delete(&self, key: &[u8], slot: u32) -> OpResult {
        with_words!(self.data_words, W => self.delete_key(&self.host_prefix::<W>(key), slot))
    }

    fn next_key(&self, key: Option<&[u8]>, out: &mut [u8]) -> OpResult {
        let next = match key {
            Some(key) => with_words!(self.data_words, W => self.after::<W>(key)),
            None => self.leftmost(self.root()),
        };
        Self::copy_key(next.ok_or(Errno::ENOENT)?, out);
        Ok(())
    }

    /// The cursor holds the last key, present or removed, so the iteration always advances.
    fn next_at(&self, cursor: &mut Cursor, key: &mut [u8], value: &mut [u8], _slot: u32) -> OpResult {
        let next = match &cursor.key {
            Some(last) => with_words!(self.data_words, W => self.successor(&self.host_prefix::<W>(last))),
            None => self.leftmost(self.root()),
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
        self.count.load(std::sync::atomic::Ordering::Relaxed).into()
    }

    fn may_recover(&self) -> bool {
        self.nodes.waits()
    }

    fn memory_usage(&self) -> u64 {
        let touched = u64::from(self.nodes.touched());
        touched * (self.node_words * WORD) as u64
            + self.nodes.memory() as u64
            + self.tables.memory_usage()
            + self.top.memory_usage()
    }
}
