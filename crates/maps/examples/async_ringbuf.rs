//! A ring buffer as an asynchronous stream: its eventfd in tokio's `AsyncFd`.
//!
//! `cargo run -p bpf-maps --example async_ringbuf`. A thread stands in for the program and writes a record every
//! millisecond; a task prints the records. The order in the loop matters: reset the event, take every record, and
//! only then wait again.

use std::time::Duration;

use bpf_maps::{Map, MapDef, MapType, RingBuf, program};
use bpf_quiesce::{Domain, Options};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

const RECORDS: u32 = 20;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let domain = Domain::new(Options::default());
    let map = Map::create(MapDef::new("events", MapType::RingBuf, 0, 0, 1 << 16), &domain)?;
    let mut events = RingBuf::new(&map)?;
    let event = std::os::fd::AsFd::as_fd(&events).try_clone_to_owned()?;
    // SAFETY: the descriptor is owned by the `AsyncFd`, so it stays open and the same until deregistered.
    let wake_ups = unsafe { AsyncFd::register_with_interest(event, Interest::READABLE) }?;

    let producer = std::thread::spawn(move || {
        for n in 0..RECORDS {
            let text = format!("event {n}");
            let guard = map.domain().enter().expect("a slot");
            // SAFETY: a live map under a guard with this slot; the text is readable.
            let sent =
                unsafe { program::ringbuf_output(map.as_ptr(), text.as_ptr(), text.len() as u64, 0, guard.slot()) };
            assert_eq!(sent, 0);
            drop(guard);
            std::thread::sleep(Duration::from_millis(1));
        }
    });

    let mut seen = 0;
    while seen < RECORDS {
        let mut ready = wake_ups.readable().await?;
        events.clear_event();
        while let Some(record) = events.next_record() {
            println!("{}", String::from_utf8_lossy(&record));
            seen += 1;
        }
        ready.clear_ready();
    }
    producer.join().map_err(|_| "the producer panicked")?;
    println!("{} lost", events.lost());
    Ok(())
}
