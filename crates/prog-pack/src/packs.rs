//! [`Packs`]: the packs of one engine, and the assignment of chunks to programs.
//!
//! Problem: several threads load and drop programs at once, a million times a second. Packs are added and given back
//! meanwhile, and every system call may fail.
//!
//! Approach: threads load from and drop to shards ([`crate::shard`]). Requests that a shard cannot serve go to the
//! center, one lock around constant-time bookkeeping ([`crate::chunks`]). Slower work (a new pack, traps, barriers,
//! collapsing, unmapping) happens outside of locks, on memory that no list mentions at the time.
//!
//! Little is left that runs concurrently: a batch of freed programs, which belongs to the thread that took it out of
//! its queue; the collapse of a pack, claimed by one compare-and-exchange; and pokes, each one compare-and-exchange
//! on a word of code. So no protocol of several atomics here needs a model checker. The two that this file depends
//! on, grace periods and the count of programs, are in `bpf-quiesce` and are explored there with loom.
//! tests/fetch_model.rs explores the instructions that CPUs may fetch between two pokes. `schedules` explores at
//! random the order in which threads reach their critical sections and the work between them, and tests/churn.rs
//! stresses the whole with eight threads.
//!
//! Invariants: chunks leave the allocator as traps and return as traps. A pack is in `Center::packs` exactly as long
//! as the allocator knows it; it is unmapped with its last `Arc`, after the last program in it. Empty packs hold at
//! most `Options::keep_empty` bytes, except one pack that was added while room was scarce; the next pack that becomes
//! empty takes that one along.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bpf_jit_code::Arch;
use bpf_quiesce::{Domain, SHARDS, Users, thread_number};
use crossbeam_utils::CachePadded;

use crate::arena::{Arena, GRANULE, HUGE};
use crate::chunks::Chunks;
#[cfg(test)]
use crate::chunks::Extent;
use crate::holds::{Held, Owner};
use crate::pack::{Backing, Mapped, Pack, PackError, Views};
use crate::place::{CHUNK, Place};
use crate::retire::{Advance, BatchLimits};
use crate::shard::Shard;
use crate::{Error, arch, point};

/// Number of times that room must be scarce before a pack is added.
const SCARCE: u32 = 16;

/// The settings of [`Packs`]. Sizes are bytes and are rounded up to 64 KiB.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Options {
    /// Size of a pack. Only multiples of 2 MiB can become huge pages.
    pub pack_size: usize,
    /// Size of the first pack, so that a process with a few programs pays for few pages.
    pub first_pack_size: usize,
    /// The percentage of a pack in use from which it is made a huge page; above 100: never.
    pub collapse_percent: u8,
    /// Whether to try the hugetlb pool first.
    pub hugetlb: bool,
    /// Whether to use shared anonymous memory instead of memory files, where it can be mapped twice. perf then knows
    /// that the code has no file, and looks its addresses up in a perf map. It would take a memory file for a library
    /// that it cannot read.
    pub anonymous: bool,
    /// Whether to use private memory that is writable and executable at once: the only executable memory into which a
    /// debugger can write breakpoints. Otherwise pages are never both. Takes precedence over `hugetlb` and
    /// `anonymous`.
    pub debuggable: bool,
    /// Whether to place each program at random: among the chunks of a free extent, and at a multiple of 16 bytes
    /// inside its first chunk. The space between programs is filled with traps.
    pub random_offset: bool,
    /// Whether inaccessible memory lies before and behind each pack, 64 KiB at least. Packs of 2 MiB then take twice
    /// their address space in the reservation for code.
    pub guards: bool,
    /// Bytes of empty packs to keep at most; others are given back.
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
            debuggable: false,
            random_offset: false,
            guards: false,
            keep_empty: 2 * HUGE,
        }
    }
}

impl Options {
    /// Returns the default settings.
    #[must_use]
    pub fn new() -> Self {
        Options::default()
    }

    /// Sets [`Options::pack_size`].
    #[must_use]
    pub const fn pack_size(mut self, pack_size: usize) -> Self {
        self.pack_size = pack_size;
        self
    }

    /// Sets [`Options::first_pack_size`].
    #[must_use]
    pub const fn first_pack_size(mut self, first_pack_size: usize) -> Self {
        self.first_pack_size = first_pack_size;
        self
    }

    /// Sets [`Options::collapse_percent`].
    #[must_use]
    pub const fn collapse_percent(mut self, collapse_percent: u8) -> Self {
        self.collapse_percent = collapse_percent;
        self
    }

    /// Sets [`Options::hugetlb`].
    #[must_use]
    pub const fn hugetlb(mut self, hugetlb: bool) -> Self {
        self.hugetlb = hugetlb;
        self
    }

    /// Sets [`Options::anonymous`].
    #[must_use]
    pub const fn anonymous(mut self, anonymous: bool) -> Self {
        self.anonymous = anonymous;
        self
    }

    /// Sets [`Options::debuggable`].
    #[must_use]
    pub const fn debuggable(mut self, debuggable: bool) -> Self {
        self.debuggable = debuggable;
        self
    }

    /// Sets [`Options::random_offset`].
    #[must_use]
    pub const fn random_offset(mut self, random_offset: bool) -> Self {
        self.random_offset = random_offset;
        self
    }

    /// Sets [`Options::guards`].
    #[must_use]
    pub const fn guards(mut self, guards: bool) -> Self {
        self.guards = guards;
        self
    }

    /// Sets [`Options::keep_empty`].
    #[must_use]
    pub const fn keep_empty(mut self, keep_empty: usize) -> Self {
        self.keep_empty = keep_empty;
        self
    }
}

/// The result of [`Packs::stats`]. Bytes are of whole chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Stats {
    /// Packs mapped.
    pub packs: usize,
    /// Mapped packs without programs.
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
    /// The longest free extent.
    pub largest_hole: usize,
    /// Number of free extents.
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
    pub(crate) shared: Arc<Owner<Shared>>,
}

/// The state that a [`Packs`] and all its programs share. Freed when both the owner and the last program are gone.
#[derive(Debug)]
pub(crate) struct Shared {
    /// The programs.
    users: Users,
    pub(crate) domain: Arc<Domain>,
    /// `None` for an engine that places no code ([`Packs::without_code`]).
    pub(crate) arena: Option<&'static Arena>,
    pub(crate) host: Arch,
    pub(crate) options: Options,
    shards: [CachePadded<Sharded>; SHARDS],
    /// Number of shards that were ever used.
    in_use: AtomicUsize,
    center: CachePadded<Mutex<Center>>,
    limits: BatchLimits,
    /// Held while a pack is made, so that several threads without room make one pack together and not one each.
    growing: Mutex<Scarcity>,
}

/// How often room was found only by freeing the dropped programs of all shards.
#[derive(Debug, Default)]
struct Scarcity(u32);

#[derive(Debug, Default)]
struct Sharded {
    shard: Mutex<Shard>,
    /// Number of ranges that threads of this shard have published.
    published: AtomicU64,
}

/// The state that all shards share.
#[derive(Debug)]
pub(crate) struct Center {
    chunks: Chunks,
    packs: Vec<Option<Arc<Pack>>>,
}

impl Packs {
    /// Creates packs without memory; the first program makes one. Frees wait for `domain`'s grace periods.
    ///
    /// # Errors
    /// [`Error::UnsupportedHost`]; [`Error::Sys`] if not even address space is available.
    pub fn new(domain: Arc<Domain>, options: Options) -> Result<Self, Error> {
        let host = Arch::HOST.ok_or(Error::UnsupportedHost)?;
        if domain.is_forked() {
            return Err(Error::Forked);
        }
        Ok(Self::in_arena(domain, options, host, Arena::of_process(host)?))
    }

    /// Creates packs for an engine without machine code, on any host: no address space is reserved, and staging fails
    /// with [`Error::UnsupportedHost`].
    pub fn without_code(domain: Arc<Domain>) -> Self {
        // The fallback has no effect, because nothing is ever encoded.
        let host = Arch::HOST.unwrap_or(Arch::X64);
        Self::sharing(domain, Options::default(), host, None, BatchLimits::default())
    }

    pub(crate) fn in_arena(domain: Arc<Domain>, options: Options, host: Arch, arena: &'static Arena) -> Self {
        Self::with_limits(domain, options, host, arena, BatchLimits::default())
    }

    pub(crate) fn with_limits(
        domain: Arc<Domain>,
        options: Options,
        host: Arch,
        arena: &'static Arena,
        limits: BatchLimits,
    ) -> Self {
        Self::sharing(domain, options, host, Some(arena), limits)
    }

    fn sharing(
        domain: Arc<Domain>,
        mut options: Options,
        host: Arch,
        arena: Option<&'static Arena>,
        limits: BatchLimits,
    ) -> Self {
        options.pack_size = options.pack_size.clamp(GRANULE, arch::arena_limit(host)).next_multiple_of(GRANULE);
        options.first_pack_size = options.first_pack_size.min(options.pack_size).next_multiple_of(GRANULE);
        Self {
            shared: Arc::new(Owner::new(Shared {
                users: Users::default(),
                domain,
                arena,
                host,
                options,
                shards: Default::default(),
                in_use: AtomicUsize::new(0),
                center: CachePadded::new(Mutex::new(Center { chunks: Chunks::new(), packs: Vec::new() })),
                limits,
                growing: Mutex::default(),
            })),
        }
    }

    /// Frees the dropped programs that no run can be in and returns how many. Never waits. Dropping programs calls
    /// this from time to time.
    pub fn reclaim(&self) -> usize {
        self.shared.reclaim()
    }

    /// Waits until all programs dropped so far are free.
    ///
    /// # Errors
    /// [`Error::Wait`], under the caller's own guard in particular; [`Error::CoreBarrier`].
    pub fn drain(&self) -> Result<(), Error> {
        self.shared.reclaim_counting(&mut 0)?;
        // `reclaim_counting` has sealed the programs dropped so far. Programs that other threads drop later are not
        // waited for, or this might never end.
        let sealed: [u64; SHARDS] = std::array::from_fn(|at| self.shared.lock(at).retired.sealed());
        loop {
            let (mut done, mut period) = (true, None);
            for (at, sealed) in sealed.into_iter().enumerate() {
                let retired = &self.shared.lock(at).retired;
                done &= retired.has_freed(sealed);
                period = period.or_else(|| retired.period_of(sealed));
            }
            match period {
                _ if done => return Ok(()),
                Some(period) => period.wait()?,
                // Another thread is about to free the rest.
                None => std::thread::yield_now(),
            }
            self.shared.reclaim_counting(&mut 0)?;
        }
    }

    /// Returns a snapshot; all zero in a forked child, because the packs are its parent's, and their locks may be
    /// held by threads that the child does not have.
    pub fn stats(&self) -> Stats {
        point();
        if self.shared.domain.is_forked() { Stats::default() } else { self.shared.stats() }
    }

    /// Whether code can be placed here; false after [`Packs::without_code`].
    pub fn places_code(&self) -> bool {
        self.shared.arena.is_some()
    }

    /// The domain whose grace periods free programs.
    pub fn domain(&self) -> &Arc<Domain> {
        &self.shared.domain
    }
}

impl Center {
    fn allocate(&mut self, chunks: u32, options: &Options) -> Option<(Place, Option<Arc<Pack>>)> {
        let extent = self.chunks.allocate_at(chunks, |most| match options.random_offset {
            true => crate::small(crate::arena::random_below(most as usize + 1)),
            false => 0,
        })?;
        let pack = self.packs[extent.pack as usize].as_ref()?;
        let offset = extent.start as usize * CHUNK;
        let place = Place { extent, rx: pack.rx() + offset, rw: pack.rw() + offset };
        let full = self.chunks.used(extent.pack) as usize * CHUNK * 100 / pack.len();
        let collapses = full >= options.collapse_percent.into() && pack.may_collapse();
        Some((place, collapses.then(|| Arc::clone(pack))))
    }

    /// Gives chunks back that no CPU can execute; they are traps already. Returns the surplus packs, to be dropped
    /// outside the lock.
    fn free(&mut self, places: &[Place], options: &Options) -> Vec<Arc<Pack>> {
        let mut given_back = Vec::new();
        for place in places {
            if self.chunks.free(place.extent) {
                self.surplus(place.extent.pack, options, &mut given_back);
            }
        }
        given_back
    }

    /// Bytes of packs without programs.
    pub(crate) fn empty(&self) -> usize {
        let empty = self.packs.iter().enumerate().filter(|(id, _)| self.chunks.used(crate::small(*id)) == 0);
        empty.filter_map(|(_, pack)| pack.as_ref()).map(|pack| pack.len()).sum()
    }

    /// Called when a pack became empty. Removes empty packs, this one first, until at most `Options::keep_empty`
    /// bytes are kept.
    fn surplus(&mut self, emptied: u32, options: &Options, given_back: &mut Vec<Arc<Pack>>) {
        let mut kept = self.empty();
        for id in std::iter::once(emptied).chain(0..crate::small(self.packs.len())) {
            if kept <= options.keep_empty {
                return;
            }
            if self.chunks.used(id) == 0
                && let Some(pack) = self.packs[id as usize].take()
            {
                kept -= pack.len();
                self.chunks.remove_pack(id);
                given_back.push(pack);
            }
        }
    }

    fn add(&mut self, pack: Pack) {
        let free_id = self.packs.iter().position(Option::is_none);
        let id = free_id.unwrap_or_else(|| {
            self.packs.push(None);
            self.packs.len() - 1
        });
        // Both fit: all packs lie in one arena.
        self.chunks.add_pack(crate::small(id), crate::small(pack.len() / CHUNK));
        self.packs[id] = Some(Arc::new(pack));
    }

    /// Adds a pack for later requests; returns it if an empty one exists meanwhile.
    pub(crate) fn reserve(&mut self, pack: Pack) -> Option<Pack> {
        if self.empty() > 0 {
            return Some(pack);
        }
        self.add(pack);
        None
    }
}

impl Shared {
    /// Allocates chunks for `len` bytes, all traps.
    pub(crate) fn allocate(&self, len: usize) -> Result<Place, Error> {
        let chunks = u32::try_from(len.div_ceil(CHUNK)).map_err(|_| Error::NoRoom { len })?;
        if let Some(place) = self.try_allocate(chunks) {
            return Ok(place);
        }
        let mut scarce = self.lock_growing();
        let freed = self.reclaim();
        if let Some(place) = self.try_allocate(chunks) {
            // Threads that load and drop many small programs have several batches in progress each. If packs are too
            // small for that, all of these threads would come here repeatedly, and interrupt each other by barriers.
            scarce.0 += u32::from(freed > self.limits.alone / 4 && self.has_others());
            if scarce.0 < SCARCE {
                return Ok(place);
            }
            scarce.0 = 0;
            // This request has room; only later ones would not.
            if let Ok(pack) = self.make_pack(chunks) {
                let given_back = self.center().reserve(pack);
                drop(given_back); // Unmaps, so not under the lock.
            }
            return Ok(place);
        }
        // A new pack has room, so the loop ends.
        let pack = self.make_pack(chunks)?;
        self.allocate_or_add(chunks, Some(pack)).ok_or(Error::NoRoom { len })
    }

    fn try_allocate(&self, chunks: u32) -> Option<Place> {
        self.allocate_or_add(chunks, None)
    }

    /// Allocates chunks from existing packs, or else from `new`. Search, addition and allocation are one critical
    /// section, so that a thread that frees in between sees no empty pack that is about to be used.
    pub(crate) fn allocate_or_add(&self, chunks: u32, mut new: Option<Pack>) -> Option<Place> {
        let mut shard = self.lock(own_shard());
        let (place, collapses) = match shard.spare.take(chunks) {
            Some(place) => (place, None),
            None => {
                let mut center = self.center();
                match center.allocate(chunks, &self.options) {
                    Some(found) => found,
                    None => {
                        center.add(new.take()?);
                        center.allocate(chunks, &self.options)?
                    }
                }
            }
        };
        // Other threads were faster: the pack is kept for later requests.
        let given_back = new.and_then(|pack| self.center().reserve(pack));
        if !shard.in_use {
            shard.in_use = true;
            // Relaxed: any value leads to a correct decision.
            self.in_use.fetch_add(1, Ordering::Relaxed);
        }
        drop(shard);
        drop(given_back); // Unmaps, so not under the locks.
        if let Some(pack) = collapses {
            pack.collapse();
        }
        Some(place)
    }

    /// Makes a pack that has room for at least `chunks` chunks.
    pub(crate) fn make_pack(&self, chunks: u32) -> Result<Pack, Error> {
        let len = chunks as usize * CHUNK;
        let first = self.center().packs.iter().all(Option::is_none);
        let size = if first { self.options.first_pack_size } else { self.options.pack_size };
        let size = if len <= size { size } else { len.max(self.options.pack_size) };
        // Large programs have a pack of their own, in whole huge pages, so that it can be collapsed.
        let size = size.next_multiple_of(if size > HUGE { HUGE } else { GRANULE });
        let Options { hugetlb, anonymous, debuggable, guards, .. } = self.options;
        let views = match (debuggable, anonymous) {
            (true, _) => Views::One,
            (false, true) => Views::Anonymous,
            (false, false) => Views::File,
        };
        let arena = self.arena.ok_or(Error::UnsupportedHost)?;
        let memory = self.domain.memory();
        let new = |size, hugetlb| Pack::new(arena, self.host, size, Mapped { views, hugetlb, guards }, memory);
        let pack = match new(size, hugetlb) {
            // A smaller pack may still fit.
            Err(PackError::ArenaFull | PackError::Memory(_)) => new(len.next_multiple_of(GRANULE), false),
            made => made,
        };
        let pack = pack.map_err(|error| pack_error(error, len))?;
        point();
        Ok(pack)
    }

    /// Gives back the chunks of a program that was never published; they are traps again.
    pub(crate) fn abandon(&self, place: Place) {
        point();
        let given_back = self.center().free(&[place], &self.options);
        drop(given_back); // Unmaps, so not under the lock.
    }

    /// Queues the chunks of a dropped program.
    pub(crate) fn retire(&self, place: Place) {
        let own = own_shard();
        let limits = &self.limits;
        let Some(programs) = self.lock(own).retired.push(place, limits) else { return };
        // Barriers are cheap with one thread, and interrupt all others if there are any: then there are fewer
        // barriers, each for two batches.
        let others = self.has_others();
        if (!others || programs >= limits.beside_others) && !self.domain.is_forked() {
            // See `reclaim`.
            let _ = self.advance(own, Why::Due, others, &mut 0);
        }
    }

    /// Whether other threads load, drop or run.
    fn has_others(&self) -> bool {
        // Relaxed: see `try_allocate`.
        self.in_use.load(Ordering::Relaxed) > 1 || self.domain.has_other_threads()
    }

    /// See [`Packs::reclaim`]. A failing barrier leaves its programs for the next call.
    fn reclaim(&self) -> usize {
        let mut freed = 0;
        // [`Packs::drain`] reports the error to a caller that waits; other callers only find less memory free.
        let _ = self.reclaim_counting(&mut freed);
        freed
    }

    fn reclaim_counting(&self, freed: &mut usize) -> Result<(), Error> {
        if self.domain.is_forked() {
            return Err(Error::Forked);
        }
        // Every shard is advanced, also after one fails.
        (0..SHARDS).map(|at| self.advance(at, Why::Wanted, false, freed)).fold(Ok(()), Result::and)
    }

    /// Frees the ready batches of a shard's queue. `overlap`: see [`crate::retire::Queue::take`].
    fn advance(&self, at: usize, why: Why, overlap: bool, freed: &mut usize) -> Result<(), Error> {
        self.lock(at).retired.seal(&self.domain);
        let result = loop {
            let Some(batch) = self.lock(at).retired.take(overlap) else { break Ok(()) };
            match batch.advance(&self.domain, self.host) {
                Advance::Free(batch, places) => {
                    *freed += places.len();
                    self.free(at, Some(batch), places, why);
                }
                Advance::NotYet(batch) => {
                    self.lock(at).retired.put_back(batch);
                    break Ok(());
                }
                Advance::Failed(batch, error) => {
                    self.lock(at).retired.put_back(batch);
                    break Err(error.into());
                }
            }
        };
        if why == Why::Wanted {
            self.free(at, None, Vec::new(), why);
        }
        result
    }

    /// Gives the places of a freed batch to a shard, and the places that the shard does not keep to the center.
    fn free(&self, at: usize, batch: Option<u64>, mut places: Vec<Place>, why: Why) {
        let mut shard = self.lock(at);
        if let Some(batch) = batch {
            shard.retired.freed(batch, &places);
        }
        match why {
            Why::Due => shard.spare.keep(&mut places),
            Why::Wanted => shard.spare.empty(&mut places),
        }
        if places.is_empty() {
            return;
        }
        let given_back = self.center().free(&places, &self.options);
        drop(shard);
        drop(given_back); // Unmaps; not under the lock.
    }

    /// Counts programs that the calling thread has published.
    pub(crate) fn count_published(&self, ranges: usize) {
        // Relaxed: a statistic.
        self.shards[own_shard()].published.fetch_add(ranges as u64, Ordering::Relaxed);
    }

    pub(crate) fn stats(&self) -> Stats {
        let shards = self.lock_all();
        let center = self.center();
        let retired: u64 = shards.iter().map(|shard| shard.retired.chunks()).sum();
        let spare = || shards.iter().flat_map(|shard| shard.spare.places()).map(|place| place.extent);
        let longest_spare = spare().map(|extent| extent.len).max().unwrap_or(0);
        let mut stats = Stats {
            programs: self.users.count(),
            bytes_retired: usize::try_from(retired).unwrap_or(usize::MAX).saturating_mul(CHUNK),
            largest_hole: center.chunks.largest_hole().max(longest_spare) as usize * CHUNK,
            holes: center.chunks.holes() + spare().count(),
            // Relaxed: a statistic.
            published: self.shards.iter().map(|own| own.published.load(Ordering::Relaxed)).sum(),
            ..Stats::default()
        };
        let mut at_hand = vec![0; center.packs.len()];
        spare().for_each(|extent| at_hand[extent.pack as usize] += extent.len);
        let mut taken = 0;
        for (id, pack) in center.packs.iter().enumerate() {
            let Some(pack) = pack else { continue };
            let used = (center.chunks.used(crate::small(id)) - at_hand[id]) as usize * CHUNK;
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

    /// Locks a shard. Code under this lock does not panic, so a poisoned lock is used as it is.
    fn lock(&self, at: usize) -> MutexGuard<'_, Shard> {
        point();
        self.shards[at].shard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks all shards, in order.
    fn lock_all(&self) -> [MutexGuard<'_, Shard>; SHARDS] {
        self.shards.each_ref().map(|own| own.shard.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Locks the center, possibly while holding shards. Code under this lock does not panic either.
    pub(crate) fn center(&self) -> MutexGuard<'_, Center> {
        self.center.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks out other threads that find no room. Other locks are taken while this one is held.
    fn lock_growing(&self) -> MutexGuard<'_, Scarcity> {
        #[cfg(test)]
        while crate::schedules::is_scheduled() && self.growing.try_lock().is_err() {
            point();
        }
        self.growing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(test)]
    pub(crate) fn owners(&self) -> Owners {
        let (shards, center) = (self.lock_all(), self.center());
        let packs = center.packs.iter().zip(0..).filter_map(|(pack, id)| {
            let pack = pack.as_ref()?;
            Some((id, pack.rw(), (pack.len() / CHUNK) as u32))
        });
        let mut free = center.chunks.free_extents();
        free.extend(shards.iter().flat_map(|shard| shard.spare.places()).map(|place| place.extent));
        let queued = shards.iter().flat_map(|shard| shard.retired.extents()).collect();
        Owners { packs: packs.collect(), free, queued, empty: center.empty() }
    }
}

/// The reason for searching a queue.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Why {
    /// A batch of the queue is full.
    Due,
    /// A caller asked to free everything that can be freed.
    Wanted,
}

/// The calling thread's shard.
#[inline]
fn own_shard() -> usize {
    thread_number() % SHARDS
}

/// The owners of all chunks.
#[cfg(test)]
pub(crate) struct Owners {
    /// Number, writable address and chunks of each pack.
    pub(crate) packs: Vec<(u32, usize, u32)>,
    pub(crate) free: Vec<Extent>,
    /// Dropped, and not held by a thread that is freeing them.
    pub(crate) queued: Vec<Extent>,
    /// Bytes of packs without programs.
    pub(crate) empty: usize,
}

impl Held for Shared {
    fn users(&self) -> &Users {
        &self.users
    }

    fn is_forked(&self) -> bool {
        self.domain.is_forked()
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let shards = self.shards.iter_mut();
        let all_free = shards
            .map(|own| own.shard.get_mut().unwrap_or_else(PoisonError::into_inner))
            .all(|shard| shard.retired.is_empty());
        if !all_free {
            // Runs may still be inside dropped programs: unmap after their guards.
            let packs = std::mem::take(&mut self.center.get_mut().unwrap_or_else(PoisonError::into_inner).packs);
            self.domain.enqueue(move || drop(packs));
        }
    }
}

fn pack_error(error: PackError, len: usize) -> Error {
    match error {
        PackError::ArenaFull => Error::NoRoom { len },
        PackError::Memory(full) => Error::MemoryFull { len, full },
        PackError::Sys(error) => Error::Sys(error),
    }
}
