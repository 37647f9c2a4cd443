//! Compares the tables with the links they repeat, and look-ups with a model of all keys.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bpf_quiesce::{Domain, Options};

use super::TrieMap;
use super::node::{Node, window_end};
use crate::def::{MapDef, MapType, flags, update};
use crate::errno::Errno;
use crate::ops::MapOps;

fn create(data: u32, entries: u32) -> (TrieMap, Arc<Domain>) {
    let def = MapDef::new("t", MapType::LpmTrie, 4 + data, 8, entries).flags(flags::NO_PREALLOC);
    let domain = Domain::new(Options::new().max_slots(4));
    (TrieMap::new(&def, &domain, None).unwrap(), domain)
}

fn key(len: u32, data: &[u8]) -> Vec<u8> {
    [&len.to_ne_bytes(), data].concat()
}

/// splitmix64.
fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

impl TrieMap {
    /// Checks the invariants of [`super::stride`] below a node and counts its tables.
    fn check(&self, node: Node<'_>, parent: Option<Node<'_>>) -> usize {
        let head = node.head();
        let is_head = parent.is_none_or(|parent| window_end(parent.len()) <= head.len());
        let mut tables = 0;
        if let Some(table) = head.table() {
            assert!(is_head, "only heads have tables");
            assert_eq!(self.node(self.tables.head(table)).number, node.number);
            self.check_table(node, table);
            tables = 1;
        }
        assert_eq!(self.parent(node).map(|node| node.number), parent.map(|node| node.number));
        let children = [node.child(0), node.child(1)].map(|link| self.follow(link));
        assert!(!head.is_intermediate() || children.iter().all(Option::is_some));
        children.into_iter().flatten().fold(tables, |tables, child| tables + self.check(child, Some(node)))
    }
}

/// The expected contents of the map: length and bits, left-aligned, to value.
type Model = BTreeMap<(u32, u64), u64>;

fn longest(model: &Model, len: u32, bits: u64) -> Option<u64> {
    (0..=len).rev().find_map(|n| model.get(&(n, cut(bits, n))).copied())
}

fn cut(bits: u64, len: u32) -> u64 {
    if len == 0 { 0 } else { bits >> (64 - len) << (64 - len) }
}

/// Random operations on keys that differ in few bits, so that windows fill and empty; keys have `data` bytes.
fn against_the_model(data: usize, offset: u32, spread: u32, rounds: usize, seed: u64) {
    let (map, domain) = create(data as u32, 600);
    let (mut model, mut state, mut most) = (Model::new(), seed, 0);
    for round in 0..rounds {
        let guard = domain.enter().unwrap();
        let slot = guard.slot();
        // The first `offset` bits are equal in nearly all keys.
        let mut draw = || {
            let r = random(&mut state);
            let bits = cut(r, spread) >> offset;
            let len = (offset + (r as u32 >> 8) % (spread + 1)).min(data as u32 * 8);
            if r.is_multiple_of(61) { (len / 4, r.rotate_left(9)) } else { (len, bits) }
        };
        let (len, bits) = draw();
        let bytes = key(len, &bits.to_be_bytes()[..data]);
        let id = (len, cut(bits, len));
        // Phases of mostly inserts alternate with phases of mostly deletes.
        let fills = round / 1500 % 2 == 0;
        if random(&mut state) % 4 < if fills { 3 } else { 1 } {
            let result = map.update(&bytes, &(round as u64).to_ne_bytes(), update::ANY, slot);
            let expected = if model.len() < 600 || model.contains_key(&id) { Ok(()) } else { Err(Errno::ENOSPC) };
            assert_eq!(result, expected);
            if result.is_ok() {
                model.insert(id, round as u64);
            }
        } else {
            let expected = model.remove(&id).map(|_| ()).ok_or(Errno::ENOENT);
            assert_eq!(map.delete(&bytes, slot), expected);
        }
        for _ in 0..4 {
            let r = random(&mut state);
            let (len, bits) = (offset + r as u32 % (data as u32 * 8 - offset + 1), cut(r, spread) >> offset);
            let bytes = key(len, &bits.to_be_bytes()[..data]);
            let mut out = [0; 8];
            let found = map.lookup(&bytes, &mut out, 0, slot).ok().map(|()| u64::from_ne_bytes(out));
            assert_eq!(found, longest(&model, len, bits), "round {round}: {bits:#x}/{len}");
        }
        if round % 16 == 0
            && let Some(root) = map.follow(map.root())
        {
            most = most.max(map.check(root, None));
            map.check_top();
        }
    }
    assert!(most > 5, "at most {most} tables: the walk was not tested");
}

#[test]
fn dense_tries_match_the_model() {
    against_the_model(2, 0, 12, 9_000, 1);
    against_the_model(4, 0, 14, 9_000, 2);
}

#[test]
fn tries_dense_behind_a_common_prefix_match_the_model() {
    against_the_model(8, 19, 13, 9_000, 3);
    against_the_model(4, 8, 11, 9_000, 4);
}

/// A key that stays is found whatever changes around it, through every table that is created and removed.
#[test]
fn a_lookup_never_misses_a_prefix_that_stays() {
    let (map, domain) = create(4, 4096);
    let stay = [10, 7, 0, 0];
    let enter = || domain.enter().unwrap();
    map.update(&key(13, &stay), &1u64.to_ne_bytes(), update::ANY, enter().slot()).unwrap();
    let done = AtomicBool::new(false);
    let lookups = std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let (mut state, mut lookups) = (5, 0u64);
            while !done.load(Ordering::Relaxed) {
                let guard = enter();
                let r = random(&mut state);
                let mut out = [0; 8];
                // A look-up below the key that stays finds that key, or a longer one whose value holds the address's
                // first bits and its length.
                let address = [10, r as u8 & 7, (r >> 8) as u8, (r >> 16) as u8];
                map.lookup(&key(32, &address), &mut out, 0, guard.slot()).expect("never absent");
                let value = u64::from_ne_bytes(out);
                if value != 1 {
                    let (len, bits) = ((value >> 32) as u32, value as u32);
                    let own = u32::from_be_bytes(address);
                    assert!(len > 13 && (own ^ bits) >> (32 - len) == 0, "{own:#x} got {bits:#x}/{len}");
                }
                lookups += 1;
            }
            lookups
        });
        let mut state = 6;
        for round in 0..30_000u32 {
            let guard = enter();
            let r = random(&mut state);
            let len = 14 + (r >> 40) as u32 % 19;
            let bits = u32::from_be_bytes([10, r as u8 & 7, (r >> 8) as u8, 0]) >> (32 - len) << (32 - len);
            let bytes = key(len, &bits.to_be_bytes());
            if round / 4000 % 2 == 0 {
                let value = u64::from(len) << 32 | u64::from(bits);
                // This fails if the map is full, or if its nodes wait for the reader's run to end.
                let _ = map.update(&bytes, &value.to_ne_bytes(), update::ANY, guard.slot());
            } else {
                let _ = map.delete(&bytes, guard.slot());
            }
            // Keys above the one that stays are added and removed as well, and the key itself is replaced.
            if round % 16 == 0 {
                let above = key(6 + (r >> 20) as u32 % 7, &stay);
                let _ = map.update(&above, &2u64.to_ne_bytes(), update::ANY, guard.slot());
                let _ = map.update(&key(13, &stay), &1u64.to_ne_bytes(), update::ANY, guard.slot());
                let _ = map.delete(&above, guard.slot());
            }
        }
        done.store(true, Ordering::Relaxed);
        reader.join().unwrap()
    });
    assert!(lookups > 0);
    assert!(map.check(map.follow(map.root()).unwrap(), None) > 0 || map.len() < 100);
}
