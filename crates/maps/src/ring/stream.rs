//! Records of a ring as an asynchronous stream.
//!
//! Problem: a task that awaits records must reset the ring's event before it looks for records and wait only after it
//! found none, in this order, or it sleeps beside a record. Approach: [`RingStream`] owns the consumer and has the
//! order in one place, [`RingStream::poll_ready`]. The reactor of tokio watches a duplicate of the ring's eventfd.

use super::consumer::{Record, RingBuf};
use futures_core::Stream;
use std::future::poll_fn;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

impl RingBuf {
    /// Returns the records as a stream that a task of tokio awaits. Needs the feature `tokio`.
    ///
    /// ```
    /// # use bpf_maps::{Map, MapDef, MapError, MapType, RingBuf, RingStream};
    /// # async fn print(map: &Map) -> Result<(), Box<dyn std::error::Error>> {
    /// let mut events = RingBuf::new(map)?.stream()?;
    /// loop {
    ///     let record = events.next_record().await?;
    ///     println!("{} bytes", record.len());
    /// }
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns the errors of the duplication of the ring's descriptor and of its registration, which tokio refuses in
    /// a runtime without I/O; `EPERM` in a forked child.
    ///
    /// # Panics
    /// Panics outside of a runtime of tokio.
    pub fn stream(self) -> io::Result<RingStream> {
        self.check_process()?;
        let event = self.as_fd().try_clone_to_owned()?;
        // SAFETY: the `AsyncFd` owns the descriptor, which stays open and the same until it is deregistered.
        let event = unsafe { AsyncFd::register_with_interest(event, Interest::READABLE) }?;
        Ok(RingStream { events: self, event })
    }
}

/// The consumer of a ring buffer, for a task of tokio: [`RingBuf::stream`].
///
/// [`RingStream::next_record`] gives records in place. As a [`Stream`] it gives copies and never ends by itself. Both
/// may be dropped at any time: a record that was not returned is the next one.
#[derive(Debug)]
pub struct RingStream {
    events: RingBuf,
    /// A duplicate of the ring's eventfd.
    event: AsyncFd<OwnedFd>,
}

impl RingStream {
    /// Waits for the next record and returns it in place. It is consumed when the result is dropped.
    ///
    /// # Errors
    /// Fails in a forked child, and if the runtime of tokio is shut down.
    pub async fn next_record(&mut self) -> io::Result<Record<'_>> {
        poll_fn(|cx| self.poll_ready(cx)).await?;
        // There is one consumer, so nobody took the record that `poll_ready` saw.
        self.events.next_record().ok_or_else(|| io::ErrorKind::Interrupted.into())
    }

    /// Returns the next record if there is one already.
    pub fn try_next_record(&mut self) -> Option<Record<'_>> {
        self.events.next_record()
    }

    /// Returns the consumer.
    #[must_use]
    pub fn ring(&self) -> &RingBuf {
        &self.events
    }

    /// Returns the consumer, to be used without a runtime again.
    #[must_use]
    pub fn into_ring(self) -> RingBuf {
        self.events
    }

    /// Waits until there is a record.
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.events.check_process()?;
        while !self.events.has_record() {
            let mut readable = ready!(self.event.poll_read_ready(cx))?;
            // A record that is committed from here on sets the event again, and the look above finds every other.
            self.events.clear_event();
            readable.clear_ready();
        }
        Poll::Ready(Ok(()))
    }
}

impl Stream for RingStream {
    type Item = io::Result<Vec<u8>>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let found = ready!(self.poll_ready(cx));
        Poll::Ready(found.map(|()| self.events.next_record().map(|record| record.to_vec())).transpose())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Map, MapDef, MapType, program};
    use bpf_quiesce::{Domain, Options};
    use std::sync::Arc;

    fn ring() -> Map {
        let domain: Arc<Domain> = Domain::new(Options::default());
        Map::create(MapDef::new("events", MapType::RingBuf, 0, 0, 4096), &domain).unwrap()
    }

    fn write(map: &Map, text: &str) -> i64 {
        let guard = map.domain().enter().unwrap();
        let (data, len) = (text.as_ptr(), text.len() as u64);
        // SAFETY: a live map under a guard with this slot; the text is readable.
        unsafe { program::ringbuf_output(map.as_ptr(), data, len, 0, guard.slot()) }
    }

    fn run<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap().block_on(future)
    }

    #[test]
    fn a_task_is_given_each_record_that_another_thread_writes() {
        let map = ring();
        run(async {
            let mut events = RingBuf::new(&map).unwrap().stream().unwrap();
            let producer = std::thread::spawn({
                let map = map.clone();
                // The ring is full from time to time: the task makes room.
                move || {
                    (0..2_000).for_each(|n| {
                        while write(&map, &n.to_string()) != 0 {
                            std::thread::yield_now()
                        }
                    })
                }
            });
            for n in 0..2_000 {
                assert_eq!(*events.next_record().await.unwrap(), *n.to_string().as_bytes());
            }
            producer.join().unwrap();
            assert!(events.try_next_record().is_none());
        });
    }

    #[test]
    fn what_is_not_returned_is_the_next_record() {
        let map = ring();
        run(async {
            let mut events = RingBuf::new(&map).unwrap().stream().unwrap();
            {
                let mut waiting = std::pin::pin!(events.next_record());
                assert!(poll_fn(|cx| Poll::Ready(waiting.as_mut().poll(cx).is_pending())).await);
            }
            assert_eq!(write(&map, "first"), 0);
            assert_eq!(write(&map, "second"), 0);
            drop(events.next_record());
            let next = poll_fn(|cx| Pin::new(&mut events).poll_next(cx)).await;
            assert_eq!(next.unwrap().unwrap(), b"first");
            // A task on another thread may hold a record while it waits for something else.
            fn sent<T: Send>(_: &T) {}
            let record = events.next_record().await.unwrap();
            sent(&record);
            assert_eq!(*record, *b"second");
            drop(record);
            assert_eq!(events.ring().lost(), 0);
            let mut ring = events.into_ring();
            assert!(ring.next_record().is_none());
        });
    }
}
