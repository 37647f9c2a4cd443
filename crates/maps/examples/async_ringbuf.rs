//! A ring buffer as an asynchronous stream of tokio.
//!
//! `cargo run -p bpf-maps --features tokio --example async_ringbuf`. A thread stands in for the program and writes a
//! record every millisecond; a task awaits and prints the records.

use std::time::Duration;

use bpf_maps::{Map, MapDef, MapType, RingBuf, program};
use bpf_quiesce::{Domain, Options};

const RECORDS: u32 = 20;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let domain = Domain::new(Options::default());
    let map = Map::create(MapDef::new("events", MapType::RingBuf, 0, 0, 1 << 16), &domain)?;
    let mut events = RingBuf::new(&map)?.stream()?;

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

    for _ in 0..RECORDS {
        let record = events.next_record().await?;
        println!("{}", String::from_utf8_lossy(&record));
    }
    producer.join().map_err(|_| "the producer panicked")?;
    println!("{} lost", events.ring().lost());
    Ok(())
}
