//! From "dropped" to "free": what happens to a program's chunks in between.
//!
//! Problem: code may be freed while threads run it, and reused memory must not be executed through instructions a CPU
//! fetched before. A grace period and a core barrier cost microseconds each, a load and unload should cost less than
//! one.
//!
//! Approach: dropped programs fill a batch. A full batch starts one grace period; when it is over, all its bytes become
//! traps, then one core barrier makes every CPU forget what it fetched, then the chunks are free. Without a core
//! barrier (`membarrier` denied) guards entered later discard fetched instructions themselves, and a second grace
//! period waits until every run has begun that way.
//!
//! Beside other threads a barrier interrupts them, and costs a dozen microseconds: there a batch is longer, and is
//! advanced only when the next one is full, whose grace period has begun by then. So the one core barrier that frees a
//! batch serves the grace period of the next.
//!
//! Invariants: a chunk is in exactly one of: a program, a batch, a shard's hand, the allocator. Its bytes are traps
//! before one of the last two has it. A batch is advanced by one thread at a time, which has taken it out of the queue;
//! a failing barrier puts it back as it is. The lock is not held while traps are written or barriers executed.

use std::collections::VecDeque;
use std::sync::Arc;

use bpf_jit_code::Arch;
use bpf_quiesce::{CoreBarrierError, Domain, GracePeriod};

use crate::arch;
#[cfg(test)]
use crate::chunks::Extent;
use crate::pack::fill_traps;
use crate::place::Place;
use crate::point;

/// How many dropped programs share a grace period and a barrier.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BatchLimits {
    /// Programs, where one thread loads and drops.
    pub(crate) alone: usize,
    /// Programs, where others do so as well.
    pub(crate) beside_others: usize,
    /// Chunks of them at the latest.
    pub(crate) chunks: u32,
}

impl Default for BatchLimits {
    /// Some nanoseconds a program: of two barriers at 0.4 µs alone, of one (see [`Queue::take`]) at 13 µs beside
    /// others.
    fn default() -> Self {
        BatchLimits { alone: 256, beside_others: 1024, chunks: 4096 }
    }
}

/// Programs that were dropped before `period` began.
#[derive(Debug)]
pub(crate) struct Batch {
    /// The batch's number in its queue.
    number: u64,
    programs: Vec<Place>,
    period: GracePeriod,
    trapped: bool,
}

/// Programs that are dropped and not free yet.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    filling: Vec<Place>,
    filling_chunks: u32,
    sealed: VecDeque<Batch>,
    /// How many batches were sealed; the next one's number.
    numbers: u64,
    /// The numbers of the batches that threads are advancing.
    in_hands: Vec<u64>,
    /// Chunks of all batches, those being advanced included.
    chunks: u64,
}

impl Queue {
    /// Adds a program. The result says how full the batch is, in programs of a full one, when that is worth a look.
    #[inline]
    pub(crate) fn push(&mut self, place: Place, limits: &BatchLimits) -> Option<usize> {
        self.filling_chunks += place.extent.len;
        self.chunks += u64::from(place.extent.len);
        if self.filling.is_empty() {
            self.filling.reserve_exact(limits.alone);
        }
        self.filling.push(place);
        if self.filling_chunks >= limits.chunks {
            return Some(usize::MAX);
        }
        self.filling.len().is_multiple_of(limits.alone).then_some(self.filling.len())
    }

    /// Starts the grace period of what was dropped so far.
    pub(crate) fn seal(&mut self, domain: &Arc<Domain>) {
        if !self.filling.is_empty() {
            let programs = std::mem::take(&mut self.filling);
            self.filling_chunks = 0;
            let number = self.numbers;
            self.numbers += 1;
            self.sealed.push_back(Batch { number, programs, period: domain.start_grace_period(), trapped: false });
        }
    }

    /// Takes the oldest batch out, to advance it. `overlap`: not the newest, whose grace period the barrier of the one
    /// before it will serve.
    pub(crate) fn take(&mut self, overlap: bool) -> Option<Batch> {
        if self.sealed.len() <= usize::from(overlap) {
            return None;
        }
        let batch = self.sealed.pop_front()?;
        self.in_hands.push(batch.number);
        Some(batch)
    }

    /// Puts a batch back that was not ready.
    pub(crate) fn put_back(&mut self, batch: Batch) {
        self.in_hands.retain(|number| *number != batch.number);
        self.sealed.push_front(batch);
    }

    /// Notes that the programs of the batch with this number went back to the allocator.
    pub(crate) fn freed(&mut self, batch: u64, programs: &[Place]) {
        self.in_hands.retain(|number| *number != batch);
        self.chunks -= programs.iter().map(|p| u64::from(p.extent.len)).sum::<u64>();
    }

    /// Chunks waiting.
    pub(crate) fn chunks(&self) -> u64 {
        self.chunks
    }

    /// How many batches were sealed.
    pub(crate) fn sealed(&self) -> u64 {
        self.numbers
    }

    /// Whether all of the first so many batches are free.
    pub(crate) fn has_freed(&self, first: u64) -> bool {
        self.sealed.iter().map(|batch| &batch.number).chain(&self.in_hands).all(|number| *number >= first)
    }

    /// A grace period that one of the first so many batches waits for in the queue.
    pub(crate) fn period_of(&self, first: u64) -> Option<GracePeriod> {
        self.sealed.iter().find(|batch| batch.number < first).map(|batch| batch.period.clone())
    }

    /// The programs in the queue, without those of batches that a thread is advancing.
    #[cfg(test)]
    pub(crate) fn extents(&self) -> Vec<Extent> {
        let sealed = self.sealed.iter().flat_map(|batch| &batch.programs);
        self.filling.iter().chain(sealed).map(|place| place.extent).collect()
    }

    /// Whether nothing waits, in the queue or in the hands of a thread that advances it.
    pub(crate) fn is_empty(&self) -> bool {
        self.chunks == 0
    }
}

/// What became of a batch.
#[derive(Debug)]
pub(crate) enum Advance {
    /// No CPU can execute these, of the batch with this number, any more; they are traps.
    Free(u64, Vec<Place>),
    /// Some run begun before is not over.
    NotYet(Batch),
    /// The core barrier failed; it may be tried again.
    Failed(Batch, CoreBarrierError),
}

impl Batch {
    /// Does what can be done now without waiting.
    pub(crate) fn advance(mut self, domain: &Arc<Domain>, host: Arch) -> Advance {
        if !self.period.is_complete() {
            return Advance::NotYet(self);
        }
        if !self.trapped {
            for program in &self.programs {
                // SAFETY: the chunks are in this batch and in nothing else, and no run is inside them: the grace period
                // is over.
                unsafe { fill_traps(host, program.rw, program.len()) };
                arch::synchronize_caches(program.rx, program.len());
                point();
            }
            self.trapped = true;
            if !domain.has_core_barrier() {
                domain.advance_code_epoch();
                self.period = domain.start_grace_period();
            }
        }
        point();
        if domain.has_core_barrier() {
            return match domain.core_barrier() {
                Ok(_forgotten) => Advance::Free(self.number, self.programs),
                Err(error) => Advance::Failed(self, error),
            };
        }
        if self.period.is_complete() { Advance::Free(self.number, self.programs) } else { Advance::NotYet(self) }
    }
}
