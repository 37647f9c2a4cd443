//! What a run owes: ring-buffer records that it has reserved, and the spin lock that it has taken.
//!
//! Problem: a program that is stopped has not given back what others wait for: a record at which the consumer stops, a
//! lock that other runs spin on. Approach: helpers note both in a short list of the run, and its end gives them up.

use bpf_maps::program;
use core::mem::MaybeUninit;

/// What a program has reserved or locked: ring-buffer records, at which the consumer stops, and a spin lock. A program
/// that ends has given all of it back, as the verifier proves; one that is stopped has not.
#[derive(Debug)]
pub(crate) struct Held {
    count: u32,
    /// Addresses of samples, and of locks with [`Held::LOCK`] added.
    items: [MaybeUninit<u64>; Held::MAX],
}

impl Held {
    /// Samples and locks a run can hold.
    const MAX: usize = 16;
    /// Marks a lock: the addresses are multiples of 4.
    const LOCK: u64 = 1;
    pub(crate) const NOTHING: Held = Held { count: 0, items: [MaybeUninit::uninit(); Held::MAX] };

    /// Nothing is held: what is on the list is another run's.
    #[inline]
    pub(super) fn forget(&mut self) {
        self.count = 0;
    }

    /// Whether one more record fits, and the lock besides.
    pub(crate) fn has_room(&self) -> bool {
        (self.count as usize) < Self::MAX - 1
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

    pub(crate) fn remove_lock(&mut self, lock: u64) -> bool {
        self.remove(lock | Self::LOCK)
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

    /// Discards the records and releases the lock.
    ///
    /// # Safety
    /// The items must be live samples, and locks that `slot` holds.
    pub(super) unsafe fn release(&mut self, slot: u32) -> bool {
        let any = self.count != 0;
        while self.count != 0 {
            self.count -= 1;
            // SAFETY: `add` has written all items below the old count.
            let item = unsafe { self.items[self.count as usize].assume_init() };
            if item & Self::LOCK != 0 {
                let lock = core::ptr::with_exposed_provenance_mut(crate::num::index(item & !Self::LOCK));
                // SAFETY: a lock that `slot` holds (contract).
                unsafe { program::spin_unlock(lock, slot) };
            } else {
                let sample = core::ptr::with_exposed_provenance_mut(crate::num::index(item));
                // SAFETY: a live sample (contract), given back once: it is off the list.
                unsafe { program::ringbuf_discard(sample, 0) };
            }
        }
        any
    }
}
