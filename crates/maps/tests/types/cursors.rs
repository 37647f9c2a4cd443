//! Tests that a cursor moved in one map is refused by another, of the same type or not, whatever the sizes of the
//! keys.

use crate::common::domain;
use bpf_maps::{Cursor, Errno, Map, MapDef, MapError, MapType, flags};

/// Maps with three elements each, of all types that have cursors and with small and large keys.
fn maps() -> Vec<Map> {
    use MapType::*;
    let domain = domain(2);
    let trie = |key_size| MapDef::new("trie", LpmTrie, key_size, 8, 64).flags(flags::NO_PREALLOC);
    let plain = |map_type, key_size, entries| MapDef::new("map", map_type, key_size, 8, entries);
    let inner = || MapDef::new("inner", Array, 4, 4, 1);
    let nested = |map_type, key_size| MapDef::new("outer", map_type, key_size, 4, 8).inner(inner());
    let defs = [
        trie(5),
        trie(8),
        trie(8),
        trie(260),
        plain(Hash, 1, 8),
        plain(Hash, 200, 1 << 12),
        plain(LruHash, 8, 8),
        plain(PerCpuHash, 8, 8),
        plain(Array, 4, 3),
        plain(Array, 4, 1 << 12),
        plain(PerCpuArray, 4, 3),
        plain(Queue, 0, 8),
        plain(Stack, 0, 8),
        nested(ArrayOfMaps, 4),
        nested(HashOfMaps, 16),
    ];
    defs.into_iter()
        .map(|def| {
            let map = Map::create(def, &domain).unwrap();
            for n in 0..3u8 {
                let mut key = vec![0; map.def().key_size as usize];
                match map.map_type() {
                    // Prefixes of the maximal length.
                    LpmTrie => {
                        let bits = (key.len() as u32 - 4) * 8;
                        key[..4].copy_from_slice(&bits.to_ne_bytes());
                        key[4] = n;
                    }
                    _ => key.iter_mut().take(1).for_each(|byte| *byte = n),
                }
                match map.map_type() {
                    ArrayOfMaps | HashOfMaps => {
                        map.set_inner(&key, &Map::create(inner(), &domain).unwrap(), 0).unwrap();
                    }
                    Queue | Stack => map.push(&[n; 8], 0).unwrap(),
                    _ => map.set(&key, &vec![n; map.host_value_size()]).unwrap(),
                }
            }
            map
        })
        .collect()
}

fn next(map: &Map, cursor: &mut Cursor) -> Result<bool, MapError> {
    let (mut key, mut value) = (vec![0; map.def().key_size as usize], vec![0; map.host_value_size()]);
    map.next(cursor, &mut key, &mut value)
}

#[test]
fn a_cursor_is_of_the_map_that_moved_it() {
    let maps = maps();
    for (i, from) in maps.iter().enumerate() {
        for (j, to) in maps.iter().enumerate() {
            for steps in 1..=3 {
                let mut cursor = Cursor::default();
                (0..steps).for_each(|_| assert!(next(from, &mut cursor).unwrap()));
                match next(to, &mut cursor) {
                    Ok(_) if i == j => {}
                    Err(MapError::Op { errno: Errno::EINVAL, .. }) if i != j => {}
                    other => panic!("{:?} after {:?}: {other:?}", to.def(), from.def()),
                }
            }
        }
    }
}
