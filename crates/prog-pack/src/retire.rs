//! The stages of a program's chunks between "dropped" and "free".
//!
//! Problem: code may be freed while threads run it, and a CPU must not execute reused memory through instructions
//! that it fetched before. A grace period and a core barrier cost microseconds each; a load and unload should cost
//! less than one.
//!
//! Approach: dropped programs fill a batch. A full batch starts one grace period. When it is over, all bytes of the
//! batch become traps, then one core barrier makes every CPU discard its fetched instructions, then the chunks are
//! free. Without a core barrier (`membarrier` denied) guards entered later discard fetched instructions themselves,
//! and a second grace period waits until every run has begun under such a guard.
//!
//! If other threads run, a barrier interrupts them and costs a dozen microseconds. Then a batch is longer, and is
//! advanced only when the next one is full, whose grace period has begun by then. So the core barrier that frees a
//! batch also serves the grace period of the next one.
//!
//! Invariants: a chunk is in exactly one of: a program, a batch, a shard's spare list, the allocator. Its bytes are
//! traps before it enters one of the last two. A batch is advanced by one thread at a time, which has taken it out of
//! the queue; a failing barrier puts it back unchanged. The lock is not held while traps are written or barriers
//! executed.

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

/// The number of dropped programs that share a grace period and a barrier.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BatchLimits {
    /// Number of programs if one thread loads and drops.
    pub(crate) alone: usize,
    /// Number of programs if other threads load and drop as well.
    pub(crate) beside_others: usize,
    /// Number of chunks at which a batch is full in any case.
    pub(crate) chunks: u32,
}

impl Default for BatchLimits {
    /// Limits for which the barriers cost some nanoseconds a program: two barriers per batch with one thread, one
    /// (see [`Queue::take`]) with several.
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
    /// Number of sealed batches; also the number of the next one.
    numbers: u64,
    /// The numbers of the batches that threads are advancing.
    in_hands: Vec<u64>,
    /// Chunks of all batches, those being advanced included.
    chunks: u64,
}

impl Queue {
    /// Adds a program. Returns the fill of the batch, in programs of a full one, if the batch may have to be
    /// advanced.
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

    /// Starts the grace period of the programs dropped so far.
    pub(crate) fn seal(&mut self, domain: &Arc<Domain>) {
        if !self.filling.is_empty() {
            let programs = std::mem::take(&mut self.filling);
            self.filling_chunks = 0;
            let number = self.numbers;
            self.numbers += 1;
            self.sealed.push_back(Batch { number, programs, period: domain.start_grace_period(), trapped: false });
        }
    }

    /// Takes the oldest batch out, to advance it. With `overlap`, the newest batch is left, because the barrier for
    /// the batch before it will serve its grace period.
    pub(crate) fn take(&mut self, overlap: bool) -> Option<Batch> {
        if self.sealed.len() <= usize::from(overlap) {
            return None;
        }
        let batch = self.sealed.pop_front()?;
        self.in_hands.push(batch.number);
        Some(batch)
    }

    /// Puts back a batch that was not ready.
    pub(crate) fn put_back(&mut self, batch: Batch) {
        self.in_hands.retain(|number| *number != batch.number);
        self.sealed.push_front(batch);
    }

    /// Notes that the programs of the batch with this number went back to the allocator.
    pub(crate) fn freed(&mut self, batch: u64, programs: &[Place]) {
        self.in_hands.retain(|number| *number != batch);
        self.chunks -= programs.iter().map(|p| u64::from(p.extent.len)).sum::<u64>();
    }

    /// Number of chunks waiting.
    pub(crate) fn chunks(&self) -> u64 {
        self.chunks
    }

    /// Number of sealed batches.
    pub(crate) fn sealed(&self) -> u64 {
        self.numbers
    }

    /// Whether the first `first` batches are all free.
    pub(crate) fn has_freed(&self, first: u64) -> bool {
        self.sealed.iter().map(|batch| &batch.number).chain(&self.in_hands).all(|number| *number >= first)
    }

    /// A grace period that one of the first `first` batches in the queue waits for.
    pub(crate) fn period_of(&self, first: u64) -> Option<GracePeriod> {
        self.sealed.iter().find(|batch| batch.number < first).map(|batch| batch.period.clone())
    }

    /// The programs in the queue, except those of batches that a thread is advancing.
    #[cfg(test)]
    pub(crate) fn extents(&self) -> Vec<Extent> {
        let sealed = self.sealed.iter().flat_map(|batch| &batch.programs);
        self.filling.iter().chain(sealed).map(|place| place.extent).collect()
    }

    /// Whether no program waits, in the queue or in a batch that a thread is advancing.
    pub(crate) fn is_empty(&self) -> bool {
        self.chunks == 0
    }
}

/// The result of advancing a batch.
#[derive(Debug)]
pub(crate) enum Advance {
    /// No CPU can execute these programs of the batch with this number any more; they are traps.
    Free(u64, Vec<Place>),
    /// Some run that began before is not over.
    NotYet(Batch),
    /// The core barrier failed; it may be tried again.
    Failed(Batch, CoreBarrierError),
}

impl Batch {
    /// Advances the batch as far as possible without waiting.
    pub(crate) fn advance(mut self, domain: &Arc<Domain>, host: Arch) -> Advance {
        if !self.period.is_complete() {
            return Advance::NotYet(self);
        }
        if !self.trapped {
            for program in &self.programs {
                // SAFETY: the chunks are in this batch only, and no run is inside them, because the grace period is
                // over.
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
