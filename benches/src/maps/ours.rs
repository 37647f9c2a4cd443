//! Our maps: as a program calls them (as many operations in one run guard as in one run of the kernel's program), and
//! through the host handle (a guard and two checks of sizes each time).

use super::kernel::LOOP;
use super::{Contender, Job, Key, Operation, bytes};
use bpf_maps::Map;
use bpf_quiesce::{Domain, Guard};
use std::hint::black_box;

/// A map called by the program's entry points.
#[derive(Debug)]
pub struct Ours(pub Map);

/// A map called by the host handle.
#[derive(Debug)]
pub struct OursFromHost(pub Map);

fn set(map: &Map, key: &[u64], value: &[u64]) {
    let size = map.def().key_size as usize;
    let values = if map.map_type().is_per_cpu() { map.host_value_size() / (value.len() * 8) } else { 1 };
    map.set(&bytes(key)[..size], &bytes(value).repeat(values)).expect("room");
}

/// A run of a program.
struct Run<'a> {
    domain: &'a Domain,
    guard: Option<Guard<'a>>,
    slot: u32,
}

impl<'a> Run<'a> {
    fn begin(domain: &'a Domain) -> Self {
        let guard = domain.enter().expect("a slot");
        Self { domain, slot: guard.slot(), guard: Some(guard) }
    }

    /// Ends the run and begins another, so that elements that waited for its end can be reused.
    fn renew(&mut self) {
        self.guard = None;
        *self = Self::begin(self.domain);
    }
}

impl<const K: usize, const V: usize> Contender<K, V> for Ours {
    fn run(&self, job: Job) {
        let mut run = Run::begin(self.0.domain());
        let (map, lookup) = (self.0.as_ptr(), self.0.lookup_fn());
        let (update, delete) = (self.0.header().update, self.0.header().delete);
        let set = |run: &mut Run<'_>, i: usize, key: &Key<K>| {
            let value = [i as u64; V];
            // SAFETY: a live map under a guard with this slot; key and value have the map's sizes.
            while unsafe { update(map, key.as_ptr().cast(), value.as_ptr().cast(), 0, run.slot) } != 0 {
                // Elements wait for a grace period, which cannot end during this run: begin another.
                std::thread::yield_now();
                run.renew();
            }
        };
        match job.operation {
            Operation::Lookup => job.each_in_runs(
                LOOP as usize,
                &mut run,
                |run, _, key: Key<K>| {
                    // SAFETY: a live map under a guard with this slot; the key has the map's size.
                    let value = unsafe { lookup(map, key.as_ptr().cast(), run.slot) };
                    // SAFETY: present keys only; values are aligned words.
                    unsafe { value.cast::<u64>().read_volatile() };
                },
                Run::renew,
            ),
            Operation::Update | Operation::Insert => {
                job.each_in_runs(LOOP as usize, &mut run, |run, i, key| set(run, i, &key), Run::renew);
            }
            Operation::InsertDelete => job.each_in_runs(
                LOOP as usize,
                &mut run,
                |run, i, key| {
                    set(run, i, &key);
                    // SAFETY: a live map under a guard with this slot; the key has the map's size.
                    assert_eq!(unsafe { delete(map, key.as_ptr().cast(), run.slot) }, 0);
                },
                Run::renew,
            ),
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
        let mut set = |i: usize, key: &[u8]| {
            out[..8].copy_from_slice(&(i as u64).to_ne_bytes());
            map.set(key, &out).expect("room");
        };
        match job.operation {
            Operation::Lookup => job.each(|_, key: Key<K>| {
                map.lookup(&bytes(&key)[..key_size], &mut out, 0).expect("present");
                black_box(&out);
            }),
            Operation::Update | Operation::Insert => job.each(|i, key: Key<K>| set(i, &bytes(&key)[..key_size])),
            Operation::InsertDelete => job.each(|i, key: Key<K>| {
                set(i, &bytes(&key)[..key_size]);
                map.delete(&bytes(&key)[..key_size]).expect("present");
            }),
        }
    }

    fn insert(&self, key: Key<K>, value: [u64; V]) {
        set(&self.0, &key, &value);
    }
}
