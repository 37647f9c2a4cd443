//! The index and the free list under every interleaving (loom).
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p bpf-maps --release --lib loom`. Scenarios are as small as the property allows.
//! Loom only reorders an access with the *last* one to the same place, so writers search before they are spawned: their
//! first access to a slot is then the exchange that must race with the reader. (Each re-check, fence, count and lock
//! was removed in turn and seen to fail here.)

use loom::sync::Arc;
use loom::thread;

use super::free_list::{FreeList, Pocket};
use super::key::{Fixed, Key};
use super::table::{Glance, Table};
use crate::sync::Ordering;

type K = Fixed<8, 1>;

fn key(n: u64) -> K {
    K::from_host(&n.to_ne_bytes())
}

fn model(f: impl Fn() + Sync + Send + 'static) {
    loom::model(f);
}

/// The table with one value word an element. All keys hash alike: same chunk, same tag.
const HASH: u64 = 77 << 16;

fn table() -> Table {
    Table::new(1, 5, 1, 1).unwrap()
}

/// Writes an element that is not in the index yet.
fn fill(table: &Table, element: u32, n: u64, value: u64) {
    table.begin_write(element, &key(n))[0].store(value, Ordering::Relaxed);
}

/// Inserts as programs do: by the fast path, and if that fails by the general one.
fn insert(table: &Table, element: u32, n: u64, value: u64) -> bool {
    let place = table.place_of(HASH);
    let searched = table.inserts_at(place);
    match table.glance::<K, true>(&key(n), place) {
        Glance::Absent => {
            fill(table, element, n, value);
            table.insert_at_home(place, searched, element) || table.insert(&key(n), HASH, searched, element)
        }
        Glance::Found(_) | Glance::Unclear => insert_closely(table, element, n, value),
    }
}

/// Inserts by the general path only.
fn insert_closely(table: &Table, element: u32, n: u64, value: u64) -> bool {
    let searched = table.inserts(HASH);
    if table.find(&key(n), HASH).is_some() {
        return false;
    }
    fill(table, element, n, value);
    table.insert(&key(n), HASH, searched, element)
}

/// Reads a key's value as a host copy does.
fn read(table: &Table, n: u64) -> Option<u64> {
    loop {
        let found = table.find(&key(n), HASH)?;
        let value = table.extra(found.element())[0].load(Ordering::Relaxed);
        if table.unchanged(found) {
            return Some(value);
        }
        thread::yield_now();
    }
}

#[test]
fn a_replaced_key_is_never_missed_and_never_mixed() {
    model(|| {
        let table = Arc::new(table());
        assert!(insert(&table, 0, 1, 10));
        fill(&table, 1, 1, 11);
        let found = table.find(&key(1), HASH).unwrap();
        let writer = {
            let table = Arc::clone(&table);
            thread::spawn(move || {
                // Replaces, and uses the old element for another key at once.
                assert!(table.replace(found, 1));
                assert!(insert(&table, found.element(), 2, 20));
            })
        };
        let value = read(&table, 1).expect("present throughout");
        assert!(value == 10 || value == 11, "{value} is not a value of key 1");
        writer.join().unwrap();
        assert_eq!((read(&table, 1), read(&table, 2)), (Some(11), Some(20)));
    });
}

#[test]
fn a_replaced_key_is_not_missed_behind_a_colliding_one() {
    model(|| {
        let table = Arc::new(table());
        // Key 9 has the first slot with this tag, so the search for key 1 goes on to the next candidate.
        assert!(insert(&table, 4, 9, 90) && insert(&table, 0, 1, 10));
        fill(&table, 1, 1, 11);
        let found = table.find(&key(1), HASH).unwrap();
        let writer = {
            let table = Arc::clone(&table);
            thread::spawn(move || {
                assert!(table.replace(found, 1));
                fill(&table, found.element(), 2, 20);
            })
        };
        assert!(table.find(&key(1), HASH).is_some(), "present throughout");
        writer.join().unwrap();
    });
}

#[test]
fn an_element_in_transit_is_not_found() {
    model(|| {
        let table = Arc::new(table());
        assert!(insert(&table, 0, 2, 20));
        let found = table.find(&key(2), HASH).unwrap();
        let writer = {
            let table = Arc::clone(&table);
            thread::spawn(move || {
                assert!(table.remove(found, HASH));
                // Filled for key 3, which is not inserted: the update fails, or takes long.
                fill(&table, found.element(), 3, 30);
            })
        };
        assert!(table.find(&key(3), HASH).is_none(), "key 3 was never inserted");
        writer.join().unwrap();
    });
}

#[test]
fn a_bystander_is_found_while_others_come_and_go() {
    model(|| {
        let table = Arc::new(table());
        assert!(insert(&table, 0, 1, 10) && insert(&table, 1, 2, 20));
        let found = table.find(&key(2), HASH).unwrap();
        let writer = {
            let table = Arc::clone(&table);
            thread::spawn(move || {
                // Key 2 is removed, and key 3 is inserted with its element and its slot.
                assert!(table.remove(found, HASH));
                assert!(insert(&table, found.element(), 3, 30));
            })
        };
        assert_eq!(read(&table, 1), Some(10));
        assert!(matches!(read(&table, 2), None | Some(20)));
        assert!(matches!(read(&table, 3), None | Some(30)));
        writer.join().unwrap();
    });
}

#[test]
fn of_two_inserts_of_a_key_one_wins() {
    two_inserts(insert);
    two_inserts(insert_closely);
}

fn two_inserts(insert_other: fn(&Table, u32, u64, u64) -> bool) {
    model(move || {
        let table = Arc::new(table());
        let other = {
            let table = Arc::clone(&table);
            thread::spawn(move || insert_other(&table, 0, 1, 10))
        };
        let mine = insert(&table, 1, 1, 11);
        let theirs = other.join().unwrap();
        assert!(mine != theirs, "exactly one");
        assert_eq!(read(&table, 1), Some(if mine { 11 } else { 10 }));
        let found = table.find(&key(1), HASH).unwrap();
        assert!(table.remove(found, HASH));
        assert!(table.find(&key(1), HASH).is_none(), "there was one copy only");
    });
}

#[test]
fn an_insert_after_anothers_of_the_same_key_fails() {
    model(|| {
        let table = Arc::new(table());
        let place = table.place_of(HASH);
        let searched = table.inserts_at(place);
        assert!(matches!(table.glance::<K, true>(&key(1), place), Glance::Absent));
        fill(&table, 1, 1, 11);
        let other = {
            let table = Arc::clone(&table);
            thread::spawn(move || insert(&table, 0, 1, 10))
        };
        let mine = table.insert_at_home(place, searched, 1) || table.insert(&key(1), HASH, searched, 1);
        let theirs = other.join().unwrap();
        assert!(mine != theirs, "exactly one");
        assert_eq!(read(&table, 1), Some(if mine { 11 } else { 10 }));
    });
}

#[test]
fn an_exchange_after_a_glance_changes_its_own_key_only() {
    for remove in [false, true] {
        model(move || {
            let table = Arc::new(table());
            assert!(insert(&table, 0, 1, 10));
            fill(&table, 1, 1, 11);
            let found = table.find(&key(1), HASH).unwrap();
            let writer = {
                let table = Arc::clone(&table);
                thread::spawn(move || {
                    // Key 1 is removed, and key 2 is inserted with its element and its slot.
                    let removed = table.remove(found, HASH);
                    removed && insert(&table, found.element(), 2, 20)
                })
            };
            let mine = match table.glance::<K, true>(&key(1), table.place_of(HASH)) {
                Glance::Found(found) if remove => found.remove(),
                Glance::Found(found) => found.replace(1),
                Glance::Absent | Glance::Unclear => false,
            };
            let theirs = writer.join().unwrap();
            // (After this thread's replace, the other thread's removal finds another word and fails.)
            assert!(mine != theirs, "one of them found the key unchanged");
            assert_eq!(read(&table, 1), (mine && !remove).then_some(11));
            assert_eq!(read(&table, 2), theirs.then_some(20));
        });
    }
}

#[test]
fn a_lookup_by_a_glance_reads_its_own_keys_value() {
    model(|| {
        let table = Arc::new(table());
        assert!(insert(&table, 0, 1, 10));
        let found = table.find(&key(1), HASH).unwrap();
        let writer = {
            let table = Arc::clone(&table);
            thread::spawn(move || {
                assert!(table.remove(found, HASH));
                // Filled for key 3, which is not inserted.
                fill(&table, found.element(), 3, 30);
            })
        };
        if let Glance::Found(found) = table.glance::<K, false>(&key(3), table.place_of(HASH)) {
            assert!(!found.unchanged(), "key 3 was never inserted");
        }
        writer.join().unwrap();
    });
}

#[test]
fn of_a_replace_and_a_delete_of_one_word_one_wins() {
    model(|| {
        let table = Arc::new(table());
        assert!(insert(&table, 0, 1, 10));
        let found = table.find(&key(1), HASH).unwrap();
        let deleter = {
            let table = Arc::clone(&table);
            thread::spawn(move || table.remove(found, HASH))
        };
        fill(&table, 1, 1, 11);
        let replaced = table.replace(found, 1);
        let deleted = deleter.join().unwrap();
        assert!(replaced != deleted);
        assert_eq!(read(&table, 1), replaced.then_some(11));
    });
}

#[test]
fn an_element_is_handed_out_once() {
    model(|| {
        let list = Arc::new(FreeList::new(2, 2, 1).unwrap());
        // Both on the stack, so that pops follow links.
        let (a, b) = (list.pop(0).unwrap(), list.pop(0).unwrap());
        list.push(0, a);
        list.push(0, b);
        let other = {
            let list = Arc::clone(&list);
            thread::spawn(move || {
                // The ABA pattern: take two, give the first back.
                let first = list.pop(0);
                let second = list.pop(0);
                if let Some(first) = first {
                    list.push(0, first);
                }
                second
            })
        };
        let mine = list.pop(0);
        let theirs = other.join().unwrap();
        let mut held: Vec<u32> = mine.into_iter().chain(theirs).collect();
        while let Some(element) = list.pop(0) {
            held.push(element);
        }
        held.sort_unstable();
        assert_eq!(held, [0, 1], "every element exactly once");
    });
}

#[test]
fn an_element_in_a_pocket_is_taken_once() {
    model(|| {
        let pocket = Arc::new(Pocket::new());
        assert!(pocket.fill(0) && !pocket.fill(1));
        let thief = {
            let pocket = Arc::clone(&pocket);
            thread::spawn(move || [pocket.take(), pocket.take()])
        };
        // The owner takes an element and gives another one meanwhile.
        let mine = pocket.take();
        let kept = pocket.fill(1);
        let theirs = thief.join().unwrap();
        let mut held: Vec<u32> = mine.into_iter().chain(theirs.into_iter().flatten()).chain(pocket.take()).collect();
        if !kept {
            held.push(1);
        }
        held.sort_unstable();
        assert_eq!(held, [0, 1], "every element exactly once");
    });
}

/// Hashes whose homes are the first and the second of two chunks, with the same tag.
const FIRST: u64 = HASH;
const SECOND: u64 = 1 << 63 | HASH;

#[test]
fn an_insert_that_overflows_meets_one_at_home() {
    model(|| {
        let table = Arc::new(Table::new(8, 9, 1, 1).unwrap());
        let put = |n: u64, hash: u64, element: u32| {
            let searched = table.inserts(hash);
            fill(&table, element, n, n);
            assert!(table.insert(&key(n), hash, searched, element));
        };
        // The first chunk is full; only one of its keys is used below.
        (0..7).for_each(|n| put(n, FIRST, n as u32));
        let searched = table.inserts(FIRST);
        fill(&table, 7, 7, 7);
        let other = {
            let table = Arc::clone(&table);
            thread::spawn(move || {
                let searched = table.inserts(SECOND);
                fill(&table, 8, 8, 8);
                assert!(table.insert(&key(8), SECOND, searched, 8));
            })
        };
        assert!(table.insert(&key(7), FIRST, searched, 7));
        assert_eq!(table.find(&key(7), FIRST).map(|found| found.element()), Some(7));
        other.join().unwrap();
        for (n, hash) in [(0, FIRST), (7, FIRST), (8, SECOND)] {
            assert_eq!(table.find(&key(n), hash).map(|found| found.element()), Some(n as u32), "key {n}");
        }
    });
}
