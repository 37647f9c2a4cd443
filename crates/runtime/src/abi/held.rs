//! What a run owes: ring-buffer records that it has reserved, sockets that it has looked up, objects that it owns, and
//! the locks that it has taken.
//!
//! Problem: a program that is stopped has not given back what others wait for: a record at which the consumer stops, a
//! lock that other runs spin on, a host's socket. Approach: helpers note them in a short list of the run, and its end
//! gives them up.

use crate::context::socket::Socket;
use crate::error::HelperError;
use bpf_maps::{owned, program};
use core::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// What a program has reserved, looked up or locked: records, at which the consumer stops, sockets, locks. A program
/// that ends has given all of it back, as the verifier proves; one that is stopped has not.
#[derive(Debug)]
pub(crate) struct Held {
    count: u32,
    /// Addresses of samples, and of locks, sockets and bits with [`Held::LOCK`], [`Held::SOCKET`] or [`Held::BITS`]
    /// added.
    items: [MaybeUninit<u64>; Held::MAX],
    /// Objects that it owns, one for each time that it does. As many as the program finds places for.
    objects: Vec<u64>,
}

impl Held {
    /// Samples, sockets and locks a run can hold.
    const MAX: usize = 16;
    /// Marks a lock: the addresses are multiples of 4.
    const LOCK: u64 = 1;
    /// Marks a socket: the addresses are multiples of 8.
    const SOCKET: u64 = 2;
    /// Marks bits that an iterator goes over: a `Box<Vec<u64>>`.
    const BITS: u64 = 4;
    pub(crate) const NOTHING: Held = Held { count: 0, items: [MaybeUninit::uninit(); Held::MAX], objects: Vec::new() };

    /// Nothing is held: what is on the list is another run's.
    #[inline]
    pub(super) fn forget(&mut self) {
        self.count = 0;
        self.objects.clear();
    }

    /// Whether one more record or resilient lock fits, and a spin lock besides.
    pub(crate) fn has_room(&self) -> bool {
        (self.count as usize) < Self::MAX - 1
    }

    /// Whether nothing more can be noted.
    pub(crate) fn is_full(&self) -> bool {
        self.count as usize >= Self::MAX
    }

    pub(crate) fn add_record(&mut self, sample: u64) {
        self.add(sample);
    }

    /// `false` if the record is not held.
    pub(crate) fn remove_record(&mut self, sample: u64) -> bool {
        self.remove(sample)
    }

    pub(crate) fn add_lock(&mut self, lock: u64) {
        self.add(lock | Self::LOCK);
    }

    /// Whether the run has taken this lock.
    pub(crate) fn has_lock(&self, lock: u64) -> bool {
        (0..self.count as usize).any(|i| self.item(i) == lock | Self::LOCK)
    }

    /// `false` if the lock is not held.
    pub(crate) fn remove_lock(&mut self, lock: u64) -> bool {
        self.remove(lock | Self::LOCK)
    }

    pub(crate) fn add_socket(&mut self, socket: u64) {
        self.add(socket | Self::SOCKET);
    }

    /// The iterator keeps the address; the end of the run frees what it has not.
    #[expect(clippy::box_collection, reason = "by an address of one word, which the program's iterator has room for")]
    pub(crate) fn add_bits(&mut self, bits: Box<Vec<u64>>) -> u64 {
        let bits = Box::into_raw(bits).expose_provenance() as u64;
        self.add(bits | Self::BITS);
        bits
    }

    /// Frees them, if they are held.
    pub(crate) fn free_bits(&mut self, bits: u64) {
        if self.remove(bits | Self::BITS) {
            // SAFETY: `add_bits` has put it on the list, from which it is taken once.
            drop(unsafe { Self::bits(bits) });
        }
    }

    /// # Safety
    /// The address must be one of [`Held::add_bits`], and taken off the list.
    #[expect(clippy::box_collection, reason = "by an address of one word, which the program's iterator has room for")]
    unsafe fn bits(bits: u64) -> Box<Vec<u64>> {
        // SAFETY: made by `Box::into_raw` (contract).
        unsafe { Box::from_raw(core::ptr::with_exposed_provenance_mut(crate::num::index(bits))) }
    }

    /// `false` if the socket is not held.
    pub(crate) fn remove_socket(&mut self, socket: u64) -> bool {
        self.remove(socket | Self::SOCKET)
    }

    /// Makes room for one more object, so that what is taken out of a list is not lost.
    pub(crate) fn expect_object(&mut self) -> Result<(), HelperError> {
        let room = self.objects.try_reserve(1);
        room.map_err(|_| HelperError::new("there is no memory to note what objects the run owns"))
    }

    /// The run owns an object, once more; [`Held::expect_object`] was asked before. Nothing if it is 0.
    pub(crate) fn add_object(&mut self, object: u64) {
        if object != 0 {
            self.objects.push(object);
        }
    }

    /// `false` if the object is not the run's.
    pub(crate) fn remove_object(&mut self, object: u64) -> bool {
        let Some(i) = self.objects.iter().rposition(|held| *held == object) else { return false };
        self.objects.swap_remove(i);
        true
    }

    fn add(&mut self, item: u64) {
        if let Some(place) = self.items.get_mut(self.count as usize) {
            place.write(item);
            self.count += 1;
        }
    }

    fn item(&self, i: usize) -> u64 {
        debug_assert!(i < self.count as usize);
        // SAFETY: `add` has written all items below the count.
        unsafe { self.items[i].assume_init() }
    }

    fn remove(&mut self, item: u64) -> bool {
        // What was taken last is mostly what is given back first.
        let Some(i) = (0..self.count as usize).rev().find(|&i| self.item(i) == item) else { return false };
        self.count -= 1;
        self.items[i] = self.items[self.count as usize];
        true
    }

    /// Discards the records, releases the locks, and gives back the sockets and the objects.
    ///
    /// # Safety
    /// The items must be live samples, locks that `slot` holds, references to sockets, and objects that the run owns.
    pub(super) unsafe fn release(&mut self, slot: u32) -> bool {
        let any = self.count != 0 || !self.objects.is_empty();
        while self.count != 0 {
            self.count -= 1;
            // SAFETY: `add` has written all items below the old count.
            let item = unsafe { self.items[self.count as usize].assume_init() };
            if item & Self::LOCK != 0 {
                let lock = core::ptr::with_exposed_provenance_mut(crate::num::index(item & !Self::LOCK));
                // SAFETY: a lock that `slot` holds (contract).
                unsafe { program::spin_unlock(lock, slot) };
            } else if item & Self::SOCKET != 0 {
                let socket = core::ptr::with_exposed_provenance::<Socket>(crate::num::index(item & !Self::SOCKET));
                // SAFETY: a counted reference (contract), taken back once: it is off the list.
                let socket = unsafe { Arc::from_raw(socket) };
                // The host's destructor; the run has its own end.
                if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(socket))) {
                    bpf_quiesce::drop_payload(panic);
                }
            } else if item & Self::BITS != 0 {
                // SAFETY: `add_bits` has put it on the list, from which it is now.
                drop(unsafe { Self::bits(item & !Self::BITS) });
            } else {
                let sample = core::ptr::with_exposed_provenance_mut(crate::num::index(item));
                // SAFETY: a live sample (contract), given back once: it is off the list.
                unsafe { program::ringbuf_discard(sample, 0) };
            }
        }
        while let Some(object) = self.objects.pop() {
            // SAFETY: the run owns it (contract), and it is off the list.
            unsafe { owned::release(object) };
        }
        any
    }
}
