//! Tests of ring buffers, user ring buffers and perf event arrays: both ends, against a queue, and with threads.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::common::domain;
use bpf_maps::{Errno, Map, MapDef, MapHeader, MapType, RingBuf, UserRingBuf, open_perf_entry, program, query, wakeup};
use proptest::prelude::*;

const PAGE: u32 = 4096;

fn ring(map_type: MapType, size: u32) -> Map {
    // Pages may be larger than 4096 elsewhere.
    // SAFETY: sysconf with a constant name only reads.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as u32;
    Map::create(MapDef::new("ring", map_type, 0, 0, size.max(page)), &domain(8)).unwrap()
}

fn run<T>(map: &Map, f: impl FnOnce(*const MapHeader, u32) -> T) -> T {
    let guard = map.domain().enter().unwrap();
    f(map.as_ptr(), guard.slot())
}

fn output(map: &Map, data: &[u8], flags: u64) -> i64 {
    // SAFETY: a live map under a guard with this slot; the slice is readable.
    run(map, |ptr, slot| unsafe { program::ringbuf_output(ptr, data.as_ptr(), data.len() as u64, flags, slot) })
}

fn reserve(map: &Map, size: u64) -> *mut u8 {
    // SAFETY: a live map under a guard with this slot.
    run(map, |ptr, slot| unsafe { program::ringbuf_reserve(ptr, size, 0, slot) })
}

fn ask(map: &Map, what: u64) -> u64 {
    // SAFETY: a live map under a guard.
    run(map, |ptr, _| unsafe { program::ringbuf_query(ptr, what) })
}

fn submit(sample: *mut u8) {
    // SAFETY: the tests give each reserved sample back once.
    unsafe { program::ringbuf_submit(sample, 0) };
}

fn discard(sample: *mut u8) {
    // SAFETY: reserved by the caller, which gives each sample back once.
    unsafe { program::ringbuf_discard(sample, 0) };
}

fn all(consumer: &mut RingBuf) -> Vec<Vec<u8>> {
    let mut records = Vec::new();
    consumer.consume(|record| {
        records.push(record.to_vec());
        true
    });
    records
}

#[test]
fn records_come_out_in_order_and_busy_ones_hold_up_the_rest() {
    let map = ring(MapType::RingBuf, PAGE);
    let mut consumer = RingBuf::new(&map).unwrap();
    let (first, second, third) = (reserve(&map, 5), reserve(&map, 8), reserve(&map, 0));
    assert!(!first.is_null() && !second.is_null() && !third.is_null());
    assert_eq!(output(&map, b"last", 0), 0);
    submit(second);
    discard(third);
    assert!(all(&mut consumer).is_empty(), "the first is not committed");
    // SAFETY: five reserved bytes.
    unsafe { first.copy_from(b"first".as_ptr(), 5) };
    submit(first);
    let records = all(&mut consumer);
    assert_eq!(records.iter().map(Vec::len).collect::<Vec<_>>(), [5, 8, 4], "the discarded one is skipped");
    assert_eq!(records[0], b"first");
    assert_eq!(records[2], b"last");
    assert_eq!(ask(&map, query::AVAIL_DATA), 0);
}

#[test]
fn the_memory_is_laid_out_as_the_kernels() {
    let map = ring(MapType::RingBuf, PAGE);
    let sample = reserve(&map, 21);
    let header = sample.wrapping_sub(8).cast::<u32>();
    // SAFETY: a record is preceded by its header.
    assert_eq!(unsafe { header.read() }, 21 | 1 << 31, "busy");
    discard(sample);
    // SAFETY: discarded, but still in the ring's memory, as its header is.
    assert_eq!(unsafe { header.read() }, 21 | 1 << 30, "discarded");
    assert_eq!(ask(&map, query::PROD_POS), 32, "8 of header and 21 of data, rounded up to 8");
    assert_eq!(ask(&map, query::CONS_POS), 0);
    assert_eq!(ask(&map, query::RING_SIZE), u64::from(map.def().max_entries));
    assert_eq!(ask(&map, 4), 0);
}

#[test]
fn a_full_ring_refuses_and_counts() {
    let map = ring(MapType::RingBuf, PAGE);
    let size = u64::from(map.def().max_entries);
    let mut consumer = RingBuf::new(&map).unwrap();
    assert!(reserve(&map, size).is_null(), "no room for the header");
    assert!(reserve(&map, u64::from(u32::MAX)).is_null());
    assert_eq!(consumer.lost(), 2);
    // The kernel keeps one byte free, so the largest record leaves eight.
    let sample = reserve(&map, size - 16);
    assert!(!sample.is_null());
    assert_eq!(output(&map, b"x", 0), Errno::EAGAIN.as_ret());
    assert_eq!(consumer.lost(), 3);
    submit(sample);
    assert_eq!(output(&map, b"x", 4), Errno::EINVAL.as_ret(), "unknown flags");
    assert_eq!(all(&mut consumer).len(), 1);
    assert_eq!(output(&map, b"x", 0), 0);
    // SAFETY: a live map under a guard.
    let flagged = run(&map, |ptr, slot| unsafe { program::ringbuf_reserve(ptr, 8, 1, slot) });
    assert!(flagged.is_null(), "reserve takes no flags");
    assert!(RingBuf::new(&map).is_err_and(|error| error.errno() == libc::EBUSY), "one consumer at a time");
    drop(consumer);
    assert!(RingBuf::new(&map).is_ok());
}

#[test]
fn a_record_that_crosses_the_end_is_in_one_piece() {
    let map = ring(MapType::RingBuf, PAGE);
    let mut consumer = RingBuf::new(&map).unwrap();
    let len = map.def().max_entries as usize / 3;
    for round in 0..50u8 {
        let record: Vec<u8> = (0..len).map(|i| (i as u8).wrapping_mul(31).wrapping_add(round)).collect();
        assert_eq!(output(&map, &record, 0), 0);
        assert_eq!(all(&mut consumer), [record]);
    }
}

#[test]
fn a_commit_wakes_the_consumer_as_the_flags_say() {
    let map = ring(MapType::RingBuf, PAGE);
    let mut consumer = RingBuf::new(&map).unwrap();
    let fd = std::os::fd::AsRawFd::as_raw_fd(&std::os::fd::AsFd::as_fd(&consumer));
    let is_set = || {
        let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: one pollfd, a local.
        unsafe { libc::poll(&raw mut poll, 1, 0) == 1 }
    };
    assert!(!is_set());
    assert_eq!(output(&map, b"a", wakeup::NO_WAKEUP), 0);
    assert!(!is_set());
    assert_eq!(output(&map, b"b", 0), 0);
    assert!(!is_set(), "the consumer stands at an earlier record");
    assert_eq!(output(&map, b"c", wakeup::FORCE_WAKEUP), 0);
    assert!(is_set());
    consumer.clear_event();
    assert_eq!(all(&mut consumer).len(), 3);
    assert_eq!(output(&map, b"d", 0), 0);
    assert!(is_set(), "the consumer stands at this record");
    assert!(consumer.poll(Some(Duration::ZERO)).unwrap());
    assert_eq!(all(&mut consumer), [b"d"]);
    assert!(!consumer.poll(Some(Duration::from_millis(1))).unwrap());
    discard(reserve(&map, 8));
    assert!(!consumer.poll(Some(Duration::from_millis(1))).unwrap(), "a discarded record is no data");
}

#[test]
fn nothing_is_lost_or_mixed_between_threads() {
    let map = ring(MapType::RingBuf, 16 * PAGE);
    let mut consumer = RingBuf::new(&map).unwrap();
    let (producers, each) = (4u64, 20_000u64);
    let (refused, finished) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for producer in 0..producers {
            let (map, refused, finished) = (&map, &refused, &finished);
            scope.spawn(move || {
                for n in 0..each {
                    let words = 2 + n as usize % 40;
                    let mut record = vec![producer; words];
                    record[1] = n;
                    let bytes: Vec<u8> = record.iter().flat_map(|w| w.to_ne_bytes()).collect();
                    while output(map, &bytes, 0) != 0 {
                        refused.fetch_add(1, Ordering::Relaxed);
                        std::thread::yield_now();
                    }
                }
                finished.fetch_add(1, Ordering::Relaxed);
            });
        }
        let mut next = vec![0; producers as usize];
        let mut total = 0;
        while total < producers * each {
            let arrived = consumer.poll(Some(Duration::from_secs(20))).unwrap();
            assert!(arrived, "a wake-up was lost after {total} records");
            while let Some(record) = consumer.next_record() {
                let words: Vec<u64> = record.chunks(8).map(|w| u64::from_ne_bytes(w.try_into().unwrap())).collect();
                let producer = words[0] as usize;
                assert_eq!(words[1], next[producer], "each producer's records are in order");
                assert_eq!(words.len(), 2 + words[1] as usize % 40);
                assert!(words[2..].iter().all(|&w| w == words[0]));
                next[producer] += 1;
                total += 1;
            }
        }
    });
    assert_eq!(consumer.lost(), refused.load(Ordering::Relaxed));
    assert_eq!(finished.load(Ordering::Relaxed), producers);
}

#[derive(Clone, Debug)]
enum Op {
    Reserve(u16),
    Commit(u8, bool),
    Consume(u8),
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_ring_is_a_queue(ops in prop::collection::vec(prop_oneof![
        3 => (0u16..700).prop_map(Op::Reserve),
        3 => (any::<u8>(), any::<bool>()).prop_map(|(i, discard)| Op::Commit(i, discard)),
        1 => (0u8..9).prop_map(Op::Consume),
    ], 1..150)) {
        let map = ring(MapType::RingBuf, PAGE);
        let size = u64::from(map.def().max_entries);
        let mut consumer = RingBuf::new(&map).unwrap();
        // The records in order: length, content, and `None` while busy, later `Some(discarded)`.
        let mut model: VecDeque<(u64, u8, Option<bool>)> = VecDeque::new();
        let mut open: Vec<(usize, *mut u8)> = Vec::new();
        let (mut consumed, mut made) = (0usize, 0usize);
        let stride = |len: u64| (len + 8).next_multiple_of(8);
        for op in ops {
            match op {
                Op::Reserve(len) => {
                    let len = u64::from(len);
                    let used: u64 = model.iter().map(|r| stride(r.0)).sum();
                    let sample = reserve(&map, len);
                    prop_assert_eq!(!sample.is_null(), used + stride(len) < size, "{} bytes used of {}", used, size);
                    if !sample.is_null() {
                        let fill = made as u8;
                        // SAFETY: `len` reserved bytes.
                        unsafe { sample.write_bytes(fill, len as usize) };
                        model.push_back((len, fill, None));
                        open.push((made, sample));
                        made += 1;
                    }
                }
                Op::Commit(i, drop_it) if !open.is_empty() => {
                    let (number, sample) = open.remove(i as usize % open.len());
                    if drop_it { discard(sample) } else { submit(sample) }
                    model[number - consumed].2 = Some(drop_it);
                }
                Op::Commit(..) => {}
                Op::Consume(limit) => {
                    let mut got = Vec::new();
                    while got.len() < limit.into() {
                        let Some(record) = consumer.next_record() else { break };
                        got.push(record.to_vec());
                    }
                    let mut expected = Vec::new();
                    // Discarded records before the last one taken are consumed as well; those after it, at the next
                    // look.
                    while let Some(&(len, fill, Some(dropped))) = model.front() {
                        if expected.len() == usize::from(limit) {
                            break;
                        }
                        if !dropped {
                            expected.push(vec![fill; len as usize]);
                        }
                        model.pop_front();
                        consumed += 1;
                    }
                    prop_assert_eq!(got, expected);
                }
            }
        }
        for (_, sample) in open {
            discard(sample);
        }
    }
}

#[test]
fn programs_drain_what_the_host_submits() {
    let map = ring(MapType::UserRingBuf, PAGE);
    let mut host = UserRingBuf::new(&map).unwrap();
    assert!(UserRingBuf::new(&map).is_err());
    let drain = |flags: u64, stop_after: usize| {
        let mut seen = Vec::new();
        let mut visit = |data: *mut u8, len: u32| {
            // SAFETY: the record is valid during the call.
            seen.push(unsafe { std::slice::from_raw_parts(data, len as usize) }.to_vec());
            seen.len() < stop_after
        };
        // SAFETY: a live map under a guard.
        let result = run(&map, |ptr, _| unsafe { program::user_ringbuf_drain(ptr, flags, &mut visit) });
        (result, seen)
    };
    assert_eq!(drain(0, 9), (0, vec![]));
    for text in ["one", "two", "three"] {
        let mut sample = host.reserve(text.len() as u32).unwrap();
        sample.copy_from_slice(text.as_bytes());
        if text == "two" { drop(sample) } else { sample.submit() }
    }
    assert_eq!(drain(4, 9).0, Errno::EINVAL.as_ret());
    assert_eq!(drain(0, 1), (1, vec![b"one".to_vec()]));
    assert_eq!(drain(0, 9), (1, vec![b"three".to_vec()]), "the dropped sample was discarded");
    // A record that is not submitted yet blocks those after it.
    let size = map.def().max_entries;
    assert!(host.reserve(size).is_none(), "larger than the ring");
    let full = host.reserve(size - 8).unwrap();
    assert_eq!(drain(0, 9), (0, vec![]));
    full.submit();
    assert!(host.reserve(1).is_none(), "full");
    assert!(host.reserve_blocking(1, Some(Duration::from_millis(1))).unwrap().is_none());
    // While a drain runs, another one is refused.
    let mut inner = 0;
    let mut visit = |_: *mut u8, _: u32| {
        // SAFETY: a live map under a guard.
        inner = run(&map, |ptr, _| unsafe { program::user_ringbuf_drain(ptr, 0, &mut |_, _| true) });
        true
    };
    // SAFETY: a live map under a guard.
    let outer = run(&map, |ptr, _| unsafe { program::user_ringbuf_drain(ptr, 0, &mut visit) });
    assert_eq!((outer, inner), (1, Errno::EBUSY.as_ret()));
    assert!(host.reserve(1).is_some());
}

#[test]
fn a_blocked_host_producer_wakes_when_programs_drain() {
    let map = ring(MapType::UserRingBuf, PAGE);
    let mut host = UserRingBuf::new(&map).unwrap();
    let stop = AtomicBool::new(false);
    let drained = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                // SAFETY: a live map under a guard.
                let n = run(&map, |ptr, _| unsafe { program::user_ringbuf_drain(ptr, 0, &mut |_, _| true) });
                drained.fetch_add(n as u64, Ordering::Relaxed);
                std::thread::sleep(Duration::from_micros(200));
            }
        });
        for n in 0..2000u32 {
            let mut sample = host.reserve_blocking(500, Some(Duration::from_secs(20))).unwrap().expect("room in time");
            sample.fill(n as u8);
            sample.submit();
        }
        while drained.load(Ordering::Relaxed) < 2000 {
            std::thread::yield_now();
        }
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn perf_events_reach_the_consumer_of_their_slot() {
    const CURRENT: u64 = 0xffff_ffff;
    let map = Map::create(MapDef::new("events", MapType::PerfEventArray, 4, 4, 8), &domain(8)).unwrap();
    let send = |flags: u64, data: &[u8], context: &[u8]| {
        run(&map, |ptr, slot| {
            // SAFETY: a live map under a guard with this slot; the slices are readable.
            unsafe {
                program::perf_event_output(
                    ptr,
                    flags,
                    (data.as_ptr(), data.len() as u64),
                    // The context is passed in two pieces.
                    |asked| {
                        let first = asked.min(2);
                        let at = context.as_ptr().cast_mut();
                        [(at, first), (at.wrapping_add(first), asked - first)].into_iter()
                    },
                    context.len(),
                    slot,
                )
            }
        })
    };
    let slot = run(&map, |_, slot| slot);
    assert_eq!(send(CURRENT, b"x", b""), Errno::ENOENT.as_ret(), "not open");
    assert_eq!(send(8, b"x", b""), Errno::E2BIG.as_ret());
    assert_eq!(send(1 << 60, b"x", b""), Errno::EINVAL.as_ret());
    assert!(open_perf_entry(&map, slot, 1000).is_err_and(|error| error.errno() == libc::EINVAL));
    assert!(open_perf_entry(&map, 8, PAGE).is_err_and(|error| error.errno() == libc::E2BIG));
    let mut consumer = open_perf_entry(&map, slot, 1 << 16).unwrap();
    assert!(open_perf_entry(&map, slot, 1 << 16).is_err_and(|error| error.errno() == libc::EEXIST));
    let other = (slot + 1) % 8;
    let _other = open_perf_entry(&map, other, 1 << 16).unwrap();
    assert_eq!(send(other.into(), b"x", b""), Errno::EOPNOTSUPP.as_ret(), "another slot's entry");
    assert_eq!(send(CURRENT, b"data", b"packet"), 0);
    assert_eq!(send(u64::from(slot) | 3 << 32, b"data", b"packet"), 0);
    assert_eq!(send(CURRENT | 7 << 32, b"data", b"packet"), -i64::from(libc::EFAULT), "more context than there is");
    assert!(consumer.poll(Some(Duration::ZERO)).unwrap());
    assert_eq!(all(&mut consumer), [b"data".to_vec(), b"datapac".to_vec()]);
    let big = vec![0; 1 << 16];
    assert_eq!(send(CURRENT, &big, b""), Errno::ENOSPC.as_ret());
    assert_eq!(consumer.lost(), 1);
    assert_eq!(map.len(), 2);
    drop(consumer);
    assert_eq!(send(CURRENT, b"x", b""), Errno::ENOENT.as_ret());
    map.delete(&other.to_ne_bytes()).unwrap();
    assert!(map.delete(&other.to_ne_bytes()).is_err_and(|error| error.errno() == libc::ENOENT));
}

/// A timeout that no clock can reach means to wait for ever.
#[test]
fn the_longest_timeout_waits_for_ever() {
    let map = Map::create(MapDef::new("r", MapType::RingBuf, 0, 0, 1 << 16), &domain(2)).unwrap();
    let mut consumer = RingBuf::new(&map).unwrap();
    for timeout in [Duration::MAX, Duration::from_secs(u64::MAX), Duration::from_secs(1 << 40)] {
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                let arrived = consumer.poll(Some(timeout)).unwrap();
                consumer.consume(|_| true);
                arrived
            });
            std::thread::sleep(Duration::from_millis(20));
            let guard = map.domain().enter().unwrap();
            // SAFETY: a live map under a guard with this slot; eight readable bytes.
            let done =
                unsafe { program::ringbuf_output(map.as_ptr(), 7u64.to_ne_bytes().as_ptr(), 8, 0, guard.slot()) };
            assert_eq!(done, 0);
            drop(guard);
            assert!(waiter.join().unwrap(), "{timeout:?}");
        });
    }
    let map = Map::create(MapDef::new("u", MapType::UserRingBuf, 0, 0, 1 << 16), &domain(2)).unwrap();
    let mut producer = UserRingBuf::new(&map).unwrap();
    producer.reserve_blocking(8, Some(Duration::MAX)).unwrap().unwrap().submit();
}
