//! Resources that a run holds and must give back: ring-buffer records that it has reserved, sockets that it has looked
//! up, objects that it owns, and locks that it has taken.
//!
//! Problem: a program that is stopped does not give its resources back, and others wait for them: a ring's consumer for
//! a record, other runs for a lock, the host for its socket. Approach: helpers record them in a short list of the run,
//! and the end of the run releases them.

use crate::context::socket::Socket;
use crate::error::HelperError;
use bpf_maps::{owned, program};
use core::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// The list of resources that a run holds. It is empty at the exit of a program, as the verifier proves, and may have
/// entries when a run is stopped.
#[derive(Debug)]
pub(crate) struct Held {
    count: u32,
    /// Addresses of samples, and of locks, sockets and bits with [`Held::LOCK`], [`Held::SOCKET`] or [`Held::BITS`]
    /// added.
    items: [MaybeUninit<u64>; Held::MAX],
    /// Objects that the run owns, one entry for each reference. Their number has no bound of its own.
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

    /// Empties the list without releasing anything: its entries are another run's.
    #[inline]
    pub(super) fn forget(&mut self) {
        self.count = 0;
        self.objects.clear();
    }

    /// Returns whether one more record or resilient lock fits, and a spin lock besides.
    pub(crate) fn has_room(&self) -> bool {
        (self.count as usize) < Self::MAX - 1
    }

    /// Returns whether no entry is free.
    pub(crate) fn is_full(&self) -> bool {
        self.count as usize >= Self::MAX
    }

    pub(crate) fn add_record(&mut self, sample: u64) {
        self.add(sample);
    }

    /// Removes a record from the list; `false` if it is not held.
    pub(crate) fn remove_record(&mut self, sample: u64) -> bool {
        self.remove(sample)
    }

    pub(crate) fn add_lock(&mut self, lock: u64) {
        self.add(lock | Self::LOCK);
    }

    /// Returns whether the run holds this lock.
    pub(crate) fn has_lock(&self, lock: u64) -> bool {
        (0..self.count as usize).any(|i| self.item(i) == lock | Self::LOCK)
    }

    /// Removes a lock from the list; `false` if it is not held.
    pub(crate) fn remove_lock(&mut self, lock: u64) -> bool {
        self.remove(lock | Self::LOCK)
    }

    pub(crate) fn add_socket(&mut self, socket: u64) {
        self.add(socket | Self::SOCKET);
    }

    /// Adds the bits of an iterator and returns their address. The end of the run frees bits that the iterator did not.
    #[expect(clippy::box_collection, reason = "by an address of one word, which the program's iterator has room for")]
    pub(crate) fn add_bits(&mut self, bits: Box<Vec<u64>>) -> u64 {
        let bits = Box::into_raw(bits).expose_provenance() as u64;
        self.add(bits | Self::BITS);
        bits
    }

    /// Frees these bits, if they are held.
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

    /// Removes a socket from the list; `false` if it is not held.
    pub(crate) fn remove_socket(&mut self, socket: u64) -> bool {
        self.remove(socket | Self::SOCKET)
    }

    /// Reserves room for one more object, before an object is removed from a list, so that it cannot be lost.
    pub(crate) fn expect_object(&mut self) -> Result<(), HelperError> {
        let room = self.objects.try_reserve(1);
        room.map_err(|_| HelperError::new("there is no memory to note what objects the run owns"))
    }

    /// Adds a reference to an object; room must be reserved ([`Held::expect_object`]). Does nothing for 0.
    pub(crate) fn add_object(&mut self, object: u64) {
        if object != 0 {
            self.objects.push(object);
        }
    }

    /// Removes a reference to an object; `false` if the run has none.
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
        // Searched from the end: resources are mostly given back in reverse order.
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
                // The host's destructor may panic; the run keeps its own result.
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
