//! Tests that a forked child can do nothing with its parent's rings. Their pages are shared with the parent, so any
//! operation of the child would move the parent's positions.
//!
//! Alone in its file (its own process), and one test: forking a test process that runs other tests at the time is
//! unpredictable.
#![cfg(all(target_os = "linux", not(miri), not(loom)))]

mod common;

use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use bpf_maps::{Map, MapDef, MapType, RingBuf, UserRingBuf, open_perf_entry, program, query};
use common::domain;

const SIZE: u32 = 1 << 16;

/// Runs `body` in a child made by `fork`, or by a raw system call. Returns the exit status: 0 if it did not panic.
fn in_child(raw: bool, body: impl FnOnce()) -> i32 {
    let child = match raw {
        // SAFETY: no other thread of this process is doing anything; the child leaves through `_exit`.
        false => unsafe { libc::fork() },
        // SAFETY: no other thread of this process is doing anything; the child leaves through `_exit`, and runs no
        // handler of `pthread_atfork`.
        true => unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) as libc::pid_t },
    };
    assert!(child >= 0);
    if child == 0 {
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
        // SAFETY: ends the child without running the parent's destructors twice.
        unsafe { libc::_exit(i32::from(result.is_err())) };
    }
    let mut status = 0;
    // SAFETY: waits for our child and writes its status.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    status
}

fn output(map: &Map, data: &[u8]) {
    let guard = map.domain().enter().unwrap();
    // SAFETY: a live map under a guard with this slot; the slice is readable.
    let done = unsafe { program::ringbuf_output(map.as_ptr(), data.as_ptr(), data.len() as u64, 0, guard.slot()) };
    assert_eq!(done, 0);
}

fn ask(map: &Map, what: u64) -> u64 {
    let _guard = map.domain().enter().unwrap();
    // SAFETY: a live map under a guard.
    unsafe { program::ringbuf_query(map.as_ptr(), what) }
}

fn is_readable(consumer: &RingBuf) -> bool {
    let mut poll = libc::pollfd { fd: consumer.as_fd().as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one pollfd, a local.
    unsafe { libc::poll(&raw mut poll, 1, 0) == 1 }
}

/// The records that a drain returns.
fn drain(map: &Map) -> Vec<Vec<u8>> {
    let _guard = map.domain().enter().unwrap();
    let mut records = Vec::new();
    let mut visit = |data: *mut u8, len: u32| {
        // SAFETY: a record of this length, during its visit.
        records.push(unsafe { std::slice::from_raw_parts(data, len as usize) }.to_vec());
        true
    };
    // SAFETY: a live map under a guard.
    let visited = unsafe { program::user_ringbuf_drain(map.as_ptr(), 0, &mut visit) };
    assert_eq!(visited, records.len() as i64);
    records
}

#[test]
fn a_child_moves_nothing_in_its_parents_rings() {
    for raw in [false, true] {
        let map = Map::create(MapDef::new("ring", MapType::RingBuf, 0, 0, SIZE), &domain(8)).unwrap();
        let mut consumer = RingBuf::new(&map).unwrap();
        (1..=3).for_each(|n| output(&map, &[n; 100]));
        let status = in_child(raw, || {
            assert!(consumer.next_record().is_none());
            assert_eq!(consumer.consume(|_| true), 0);
            assert!(consumer.poll(Some(Duration::ZERO)).is_err());
            consumer.clear_event();
            assert!(map.freeze().is_err() && RingBuf::new(&map).is_err());
        });
        assert_eq!(status, 0, "the child's assertions (raw: {raw})");
        assert_eq!(ask(&map, query::CONS_POS), 0);
        assert!(is_readable(&consumer), "the wake-up is the parent's");
        let mut held = consumer.next_record();
        assert_eq!(in_child(raw, || drop(held.take())), 0);
        assert_eq!(ask(&map, query::CONS_POS), 0);
        assert_eq!(held.as_deref(), Some(&[1; 100][..]));
        drop(held);
        assert_eq!(in_child(raw, || drop(std::mem::replace(&mut consumer, perf_consumer()))), 0);
        assert_eq!(consumer.next_record().as_deref(), Some(&[2; 100][..]));
        assert_eq!(consumer.next_record().as_deref(), Some(&[3; 100][..]));

        let map = Map::create(MapDef::new("user", MapType::UserRingBuf, 0, 0, SIZE), &domain(8)).unwrap();
        let mut producer = UserRingBuf::new(&map).unwrap();
        let status = in_child(raw, || {
            assert!(producer.reserve(8).is_none());
            assert!(producer.reserve_blocking(8, Some(Duration::ZERO)).is_err());
        });
        assert_eq!(status, 0, "the child's assertions (raw: {raw})");
        assert_eq!(drain(&map).len(), 0);
        let mut sample = producer.reserve(100);
        assert_eq!(in_child(raw, || drop(sample.take())), 0);
        assert_eq!(in_child(raw, || sample.take().unwrap().submit()), 0);
        assert_eq!(drain(&map).len(), 0, "not submitted yet");
        let mut sample = sample.unwrap();
        sample.fill(7);
        sample.submit();
        assert_eq!(drain(&map), [[7; 100]]);
    }
}

/// A consumer of a perf event ring, opened in the calling process.
fn perf_consumer() -> RingBuf {
    let map = Map::create(MapDef::new("events", MapType::PerfEventArray, 4, 4, 1), &domain(1)).unwrap();
    open_perf_entry(&map, 0, 4096).unwrap()
}
