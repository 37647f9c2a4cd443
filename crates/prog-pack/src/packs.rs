//! [`Packs`]: the packs of one engine, and who gets which chunks.
//!
//! Problem: several threads load and drop programs at once, a million times a second; packs are added and given back meanwhile; every
//! system call may fail.
//!
//! Approach: one lock around constant-time bookkeeping ([`crate::chunks`], [`crate::retire`]). Whatever takes longer (a new
//! pack, traps, barriers, collapsing, unmapping) happens outside it, on memory that no list mentions at the time.
//!
//! What is left to run at the same time is little: a batch of freed programs, which belongs to the thread that took it out of the queue;
//! the collapse of a pack, claimed by one compare-and-exchange; and pokes, each one compare-and-exchange on a word of code. No protocol
//! of several atomics is left for a model checker: the one that all of it waits for, grace periods, is `bpf-quiesce`'s and is explored there
//! with loom; tests/fetch_model.rs explores what CPUs may fetch between two pokes. The order in which threads get to their critical sections, and to
//! what they do between them, is explored in `schedules` at random; and tests/churn.rs stresses the whole with eight threads.
//!
//! Invariants: chunks leave the allocator as traps and return as traps. A pack is in `State::packs` exactly as long as the allocator
//! knows it; it is unmapped when the last `Arc` goes, which nobody in it can outlive.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bpf_jit_code::Arch;
use bpf_quiesce::Domain;

use crate::arena::{Arena, GRANULE, HUGE};
use crate::chunks::{Chunks, Run};
use crate::pack::{Backing, Pack, PackError};
use crate::retire::{Advance, Queue, Retired};
use crate::{Error, arch};

/// Programs start and end at multiples of this.
pub(crate) const CHUNK: usize = 64;

/// How [`Packs`] are set up. Sizes are bytes and are rounded up to 64 KiB.
#[derive(Debug, Clone)]
pub struct Options {
    /// Size of a pack. Only multiples of 2 MiB can become huge pages.
    pub pack_size: usize,
    /// Size of the first pack, so that a process with a few programs pays for few pages.
    pub first_pack_size: usize,
    /// Once this percentage of a pack is in use, it is made a huge page; above 100: never.
    pub collapse_percent: u8,
    /// Try the hugetlb pool first.
    pub hugetlb: bool,
    /// Take shared anonymous memory instead of memory files, where it can be mapped twice. perf then knows that code in it has no file, and looks its addresses up in a perf
    /// map; otherwise it takes the memory file for a library that it cannot read.
    pub anonymous: bool,
    /// Start each program at a random multiple of 16 bytes inside its first chunk.
    pub random_offset: bool,
    /// Keep empty packs of up to this many bytes in all; give back what is more.
    pub keep_empty: usize,
}

impl Default for Options {
    /// 2 MiB packs after a first one of 64 KiB, collapsed when half full; two empty packs kept.
    fn default() -> Self {
        Self {
            pack_size: HUGE,
            first_pack_size: GRANULE,
            collapse_percent: 50,
            hugetlb: false,
            anonymous: false,
            random_offset: false,
            keep_empty: 2 * HUGE,
        }
    }
}

/// What [`Packs::stats`] tells. Bytes are of whole chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stats {
    /// Packs mapped, and how many of them hold nothing.
    pub packs: usize,
    /// Packs that hold nothing.
    pub empty_packs: usize,
    /// Programs loaded or being staged.
    pub programs: usize,
    /// Bytes of all packs.
    pub bytes: usize,
    /// Bytes of programs.
    pub bytes_used: usize,
    /// Bytes of dropped programs that are not free yet.
    pub bytes_retired: usize,
    /// Bytes free.
    pub bytes_free: usize,
    /// The longest free run.
    pub largest_hole: usize,
    /// How many free runs there are.
    pub holes: usize,
    /// Bytes in pages of the base size.
    pub bytes_base_pages: usize,
    /// Bytes in collapsed huge pages.
    pub bytes_collapsed: usize,
    /// Bytes in huge pages of the hugetlb pool.
    pub bytes_hugetlb: usize,
    /// Ranges published: on arm64 the instruction cache was maintained once for each.
    pub published: u64,
}

/// Executable memory for the programs of one engine. Cheap to clone; see the crate's documentation.
#[derive(Debug, Clone)]
pub struct Packs {
    pub(crate) shared: Arc<Shared>,
}

/// What a [`Packs`] and all its programs share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) domain: Arc<Domain>,
    pub(crate) arena: &'static Arena,
    pub(crate) host: Arch,
    pub(crate) options: Options,
    state: Mutex<State>,
    /// Held while a pack is made, so that threads that find no room make one pack and not one each.
    growing: Mutex<()>,
    pub(crate) published: AtomicU64,
}

#[derive(Debug)]
struct State {
    chunks: Chunks,
    packs: Vec<Option<Arc<Pack>>>,
    retired: Queue,
    programs: usize,
}

/// Chunks of one program.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) run: Run,
    pub(crate) rx: usize,
    pub(crate) rw: usize,
}

impl Packs {
    /// No packs yet; the first program makes one. Frees wait for `domain`'s grace periods.
    ///
    /// # Errors
    /// [`Error::UnsupportedHost`]; [`Error::Sys`] if not even address space is to be had.
    pub fn new(domain: Arc<Domain>, options: Options) -> Result<Self, Error> {
        let host = Arch::HOST.ok_or(Error::UnsupportedHost)?;
        if domain.is_forked() {
            return Err(Error::Forked);
        }
        Ok(Self::in_arena(domain, options, host, Arena::of_process(host)?))
    }

    pub(crate) fn in_arena(domain: Arc<Domain>, mut options: Options, host: Arch, arena: &'static Arena) -> Self {
        options.pack_size = options.pack_size.clamp(GRANULE, arch::arena_limit(host)).next_multiple_of(GRANULE);
        options.first_pack_size = options.first_pack_size.min(options.pack_size).next_multiple_of(GRANULE);
        let state = State { chunks: Chunks::new(), packs: Vec::new(), retired: Queue::default(), programs: 0 };
        Self {
            shared: Arc::new(Shared {
                domain,
                arena,
                host,
                options,
                state: Mutex::new(state),
                growing: Mutex::new(()),
                published: AtomicU64::new(0),
            }),
        }
    }

    /// Frees the dropped programs that no run can be in any more and says how many. Never waits. Dropping programs does
    /// this every so often.
    pub fn reclaim(&self) -> usize {
        self.shared.reclaim()
    }

    /// Waits until all programs dropped so far are free.
    ///
    /// # Errors
    /// [`Error::Wait`], under the caller's own guard in particular; [`Error::CoreBarrier`].
    pub fn drain(&self) -> Result<(), Error> {
        loop {
            self.shared.reclaim_counting(&mut 0)?;
            let (empty, period) = {
                let retired = &self.shared.lock().retired;
                (retired.is_empty(), retired.some_period())
            };
            match period {
                _ if empty => return Ok(()),
                Some(period) => period.wait()?,
                // Another thread is about to free the rest.
                None => std::thread::yield_now(),
            }
        }
    }

    /// A snapshot.
    pub fn stats(&self) -> Stats {
        self.shared.lock().stats(&self.shared.published)
    }

    /// The same for a test that looks between two points.
    #[cfg(test)]
    pub(crate) fn stats_now(&self) -> Stats {
        self.shared.state.lock().unwrap().stats(&self.shared.published)
    }

    /// The domain whose grace periods free programs.
    pub fn domain(&self) -> &Arc<Domain> {
        &self.shared.domain
    }
}

impl State {
    fn stats(&self, published: &AtomicU64) -> Stats {
        let mut stats = Stats {
            programs: self.programs,
            bytes_retired: self.retired.chunks() as usize * CHUNK,
            largest_hole: self.chunks.largest_hole() as usize * CHUNK,
            holes: self.chunks.holes(),
            // Relaxed: a statistic.
            published: published.load(Ordering::Relaxed),
            ..Stats::default()
        };
        let mut taken = 0;
        for (id, pack) in self.packs.iter().enumerate() {
            let Some(pack) = pack else { continue };
            let used = self.chunks.used(id as u32) as usize * CHUNK;
            stats.packs += 1;
            stats.empty_packs += usize::from(used == 0);
            stats.bytes += pack.len();
            taken += used;
            *match pack.backing() {
                Backing::BasePages => &mut stats.bytes_base_pages,
                Backing::Collapsed => &mut stats.bytes_collapsed,
                Backing::Hugetlb => &mut stats.bytes_hugetlb,
            } += pack.len();
        }
        stats.bytes_free = stats.bytes - taken;
        stats.bytes_used = taken - stats.bytes_retired;
        stats
    }
}

impl Shared {
    /// Chunks for `len` bytes, all traps.
    pub(crate) fn allocate(&self, len: usize) -> Result<Place, Error> {
        let chunks = u32::try_from(len.div_ceil(CHUNK)).map_err(|_| Error::NoRoom { len })?;
        if let Some(place) = self.try_allocate(chunks) {
            return Ok(place);
        }
        let _growing = self.lock_growing();
        self.reclaim();
        if let Some(place) = self.try_allocate(chunks) {
            return Ok(place);
        }
        self.grow(chunks)
    }

    fn try_allocate(&self, chunks: u32) -> Option<Place> {
        let mut state = self.lock();
        let run = state.chunks.allocate(chunks)?;
        state.programs += 1;
        let pack = state.packs[run.pack as usize].as_ref()?;
        let offset = run.start as usize * CHUNK;
        let place = Place { run, rx: pack.rx() + offset, rw: pack.rw() + offset };
        let full = state.chunks.used(run.pack) as usize * CHUNK * 100 / pack.len();
        if full >= self.options.collapse_percent.into() && pack.may_collapse() {
            let pack = Arc::clone(pack);
            drop(state);
            pack.collapse();
        }
        Some(place)
    }

    /// Adds a pack and allocates from it.
    fn grow(&self, chunks: u32) -> Result<Place, Error> {
        let len = chunks as usize * CHUNK;
        let first = self.lock().packs.iter().all(Option::is_none);
        let size = if first { self.options.first_pack_size } else { self.options.pack_size };
        let size = if len <= size { size } else { len.max(self.options.pack_size) };
        // Large programs have a pack of their own; in whole huge pages, so that it can become some.
        let size = size.next_multiple_of(if size > HUGE { HUGE } else { GRANULE });
        let pack = match Pack::new(self.arena, self.host, size, self.options.hugetlb, self.options.anonymous) {
            Ok(pack) => pack,
            // Perhaps a smaller one.
            Err(PackError::ArenaFull) => {
                Pack::new(self.arena, self.host, len.next_multiple_of(GRANULE), false, self.options.anonymous)
                    .map_err(|error| pack_error(error, len))?
            }
            Err(error) => return Err(pack_error(error, len)),
        };
        {
            let mut state = self.lock();
            let free_id = state.packs.iter().position(Option::is_none);
            let id = free_id.unwrap_or_else(|| {
                state.packs.push(None);
                state.packs.len() - 1
            });
            state.chunks.add_pack(id as u32, (pack.len() / CHUNK) as u32);
            state.packs[id] = Some(Arc::new(pack));
        }
        // Other threads may have been faster; the pack is at least as large as the program, so this ends.
        self.try_allocate(chunks).map_or_else(|| self.grow(chunks), Ok)
    }

    /// Gives chunks back that no CPU can execute; they are traps already.
    pub(crate) fn free(&self, programs: &[Retired], were_retired: bool) {
        let mut given_back = Vec::new();
        let mut state = self.lock();
        if were_retired {
            state.retired.freed(programs);
        }
        state.programs -= if were_retired { 0 } else { programs.len() };
        for program in programs {
            if state.chunks.free(program.run) {
                given_back.extend(self.surplus(&mut state, program.run.pack));
            }
        }
        drop(state);
        drop(given_back); // Unmaps; not under the lock.
    }

    /// Removes a pack that just became empty, if more empty packs are kept than wanted.
    fn surplus(&self, state: &mut State, id: u32) -> Option<Arc<Pack>> {
        let State { chunks, packs, .. } = state;
        let empty = packs.iter().enumerate().filter(|(id, _)| chunks.used(*id as u32) == 0);
        let kept: usize = empty.filter_map(|(_, pack)| pack.as_ref()).map(|pack| pack.len()).sum();
        if kept <= self.options.keep_empty {
            return None;
        }
        chunks.remove_pack(id);
        packs[id as usize].take()
    }

    /// A program was dropped.
    pub(crate) fn retire(&self, retired: Retired) {
        let due = {
            let mut state = self.lock();
            state.programs -= 1;
            state.retired.push(retired)
        };
        if due {
            self.reclaim();
        }
    }

    /// See [`Packs::reclaim`]. Failing barriers leave programs for the next time.
    fn reclaim(&self) -> usize {
        let mut freed = 0;
        // The error is reported to those who wait ([`Packs::drain`]); others only find less memory free.
        let _ = self.reclaim_counting(&mut freed);
        freed
    }

    fn reclaim_counting(&self, freed: &mut usize) -> Result<(), Error> {
        if self.domain.is_forked() {
            return Err(Error::Forked);
        }
        self.lock().retired.seal(&self.domain);
        loop {
            let Some(batch) = self.lock().retired.take() else { return Ok(()) };
            match batch.advance(&self.domain, self.host) {
                Advance::Free(programs) => {
                    *freed += programs.len();
                    self.free(&programs, true);
                }
                Advance::NotYet(batch) => {
                    self.lock().retired.put_back(batch);
                    return Ok(());
                }
                Advance::Failed(batch, error) => {
                    self.lock().retired.put_back(batch);
                    return Err(error.into());
                }
            }
        }
    }

    /// Nothing panics while holding it, so poison means nothing.
    fn lock(&self) -> MutexGuard<'_, State> {
        point();
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The same for the lock of those who find no room, which is held while the other is taken.
    fn lock_growing(&self) -> MutexGuard<'_, ()> {
        #[cfg(test)]
        while crate::schedules::is_scheduled() && self.growing.try_lock().is_err() {
            point();
        }
        self.growing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(test)]
    pub(crate) fn owners(&self) -> Owners {
        let state = self.state.lock().unwrap();
        let packs = state.packs.iter().zip(0..).filter_map(|(pack, id)| {
            let pack = pack.as_ref()?;
            Some((id, pack.rw(), (pack.len() / CHUNK) as u32))
        });
        Owners { packs: packs.collect(), free: state.chunks.free_runs(), queued: state.retired.runs() }
    }
}

/// Who owns what.
#[cfg(test)]
pub(crate) struct Owners {
    /// Number, writable address and chunks of each pack.
    pub(crate) packs: Vec<(u32, usize, u32)>,
    pub(crate) free: Vec<Run>,
    /// Dropped, and not in the hands of a thread that frees it.
    pub(crate) queued: Vec<Run>,
}

/// A place between critical sections, where anything may happen in other threads; tests make it happen.
#[inline(always)]
pub(crate) fn point() {
    #[cfg(test)]
    crate::schedules::point();
}

impl Drop for Shared {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        if !state.retired.is_empty() && !self.domain.is_forked() {
            // Runs may still be inside dropped programs: unmap after their guards.
            let packs = std::mem::take(&mut state.packs);
            self.domain.defer(move || drop(packs));
        }
    }
}

fn pack_error(error: PackError, len: usize) -> Error {
    match error {
        PackError::ArenaFull => Error::NoRoom { len },
        PackError::Sys(error) => Error::Sys(error),
    }
}
