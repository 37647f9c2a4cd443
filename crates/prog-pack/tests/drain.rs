//! Tests waiting for dropped programs while other threads go on dropping. Alone in its process, because it relies on
//! the numbers of threads.

mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use bpf_prog_pack::{Options, Packs};
use bpf_quiesce::{Barriers, Domain, SHARDS, thread_number};
use common::constant;

/// Drops a program under a new guard whenever it is this thread's turn, and keeps the guard until the next turn: so
/// at every moment some program waits to be freed.
fn drop_for_ever(packs: &Packs, stop: &AtomicBool, turn: &Receiver<()>, other: &Sender<()>) {
    let mut guard = None;
    // Relaxed: a flag that orders nothing else.
    while !stop.load(Ordering::Relaxed) && turn.recv().is_ok() {
        drop(guard.take());
        let text = packs.stage(&constant(1, 0), |_| None).unwrap().finalize().unwrap();
        guard = Some(packs.domain().enter().unwrap());
        drop(text);
        if other.send(()).is_err() {
            break;
        }
    }
}

#[test]
fn draining_waits_for_what_was_dropped_before_and_no_more() {
    // Loading on arm64 waits for grace periods where there are no core barriers, for the other thread's guard.
    let kinds: &[Barriers] =
        if cfg!(target_arch = "aarch64") { &[Barriers::Auto] } else { &[Barriers::Auto, Barriers::Fenced] };
    for barriers in kinds {
        let options = bpf_quiesce::Options::new().barriers(*barriers);
        let packs = Packs::new(Domain::new(options), Options::default()).unwrap();
        let stop = AtomicBool::new(false);
        thread_number(); // Draws this thread's number.
        let (to_first, first) = channel();
        let (to_second, second) = channel();
        std::thread::scope(|scope| {
            let (packs, stop) = (&packs, &stop);
            let to_second_again = to_second.clone();
            scope.spawn(move || drop_for_ever(packs, stop, &first, &to_second));
            // Threads take turns with the shards: among as many threads as draw consecutive numbers, the last one
            // shares the first one's shard.
            to_first.send(()).unwrap();
            let token = second.recv();
            assert!(token.is_ok(), "the first has its number");
            for _ in 1..SHARDS {
                scope.spawn(thread_number).join().unwrap();
            }
            // The second thread has the token at first.
            to_second_again.send(()).unwrap();
            scope.spawn(move || drop_for_ever(packs, stop, &second, &to_first));
            for _ in 0..20 {
                let before: Vec<_> = (0..100)
                    .map(|value| packs.stage(&constant(value, 0), |_| None).unwrap().finalize().unwrap())
                    .collect();
                drop(before);
                packs.drain().unwrap();
            }
            stop.store(true, Ordering::Relaxed);
        });
        packs.drain().unwrap();
        assert_eq!((packs.stats().programs, packs.stats().bytes_retired), (0, 0));
    }
}
