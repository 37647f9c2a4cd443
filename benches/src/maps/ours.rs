//! Our maps: as a program calls them (as many operations in one run guard as in one run of the kernel's program), and through the host handle (a guard and two size
//! checks each time).

use super::kernel::LOOP;
use super::{Contender, Job, Key, Operation, bytes};
use bpf_maps::Map;
use std::hint::black_box;

/// By the program's entry points.
#[derive(Debug)]
pub struct Ours(pub Map);

/// By the host handle.
#[derive(Debug)]
pub struct OursFromHost(pub Map);

fn set(map: &Map, key: &[u64], value: &[u64]) {
    let size = map.def().key_size as usize;
    let values = if map.map_type().is_per_cpu() { map.host_value_size() / (value.len() * 8) } else { 1 };
    map.set(&bytes(key)[..size], &bytes(value).repeat(values)).expect("room");
}

impl<const K: usize, const V: usize> Contender<K, V> for Ours {
    fn run(&self, job: Job) {
        let mut guard = self.0.domain().enter().expect("a slot");
        let (map, lookup) = (self.0.as_ptr(), self.0.lookup_fn());
        let (update, delete) = (self.0.header().update, self.0.header().delete);
        for (i, key) in job.keys::<K>().enumerate() {
            if (i + 1).is_multiple_of(LOOP as usize) {
                // A new run: elements that waited for the end of the old one can be used again.
                drop(guard);
                guard = self.0.domain().enter().expect("a slot");
            }
            let (key, value) = (key.as_ptr().cast(), [i as u64; V]);
            if job.operation == Operation::Lookup {
                // SAFETY: a live map under a guard with this slot; the key has the map's size.
                let value = unsafe { lookup(map, key, guard.slot()) };
                // SAFETY: present keys only; values are aligned words.
                black_box(unsafe { value.cast::<u64>().read_volatile() });
                continue;
            }
            // SAFETY: as above, and the value has the map's size.
            while unsafe { update(map, key, value.as_ptr().cast(), 0, guard.slot()) } != 0 {
                // Elements that wait for a grace period get none as long as this run lasts: begin another.
                drop(guard);
                std::thread::yield_now();
                guard = self.0.domain().enter().expect("a slot");
            }
            if job.operation == Operation::InsertDelete {
                // SAFETY: as above.
                assert_eq!(unsafe { delete(map, key, guard.slot()) }, 0);
            }
        }
    }

    fn insert(&self, key: Key<K>, value: [u64; V]) {
        set(&self.0, &key, &value);
    }
}

impl<const K: usize, const V: usize> Contender<K, V> for OursFromHost {
    fn run(&self, job: Job) {
        let map = &self.0;
        let key_size = map.def().key_size as usize;
        let mut out = vec![0; map.host_value_size()];
        for (i, key) in job.keys::<K>().enumerate() {
            let (key, first) = (&bytes(&key)[..key_size], (i as u64).to_ne_bytes());
            match job.operation {
                Operation::Lookup => {
                    map.lookup(key, &mut out, 0).expect("present");
                    black_box(&out);
                }
                Operation::Update | Operation::Insert => {
                    out[..8].copy_from_slice(&first);
                    map.set(key, &out).expect("room");
                }
                Operation::InsertDelete => {
                    out[..8].copy_from_slice(&first);
                    map.set(key, &out).expect("room");
                    map.delete(key).expect("present");
                }
            }
        }
    }

    fn insert(&self, key: Key<K>, value: [u64; V]) {
        set(&self.0, &key, &value);
    }
}
