//! The index of a hash map: maps keys to elements.
//!
//! Problem: programs look up, replace and delete from any thread, may be preempted anywhere, and must not wait. A
//! lookup must find a key that is present during the whole lookup, whatever other threads do. Elements are recycled
//! at once.
//!
//! Approach. Elements (keys and values) live in a slab and are named by index. The index is an array of 64-byte chunks
//! of seven slots; a slot is one word {tag 16 | version 16 | element + 1, 32}. A key's hash gives its home chunk and
//! its tag; a key that finds its home full goes to the next chunk with room, and every chunk it passed counts it in
//! `overflow`, so that a search stops at the first chunk nobody passed. Keys never move.
//!
//! * **replace** and **delete** are one compare-exchange of the slot word. They never wait.
//! * **insert** of a new key holds the lock of its *home* chunk, so that no key gets in twice, and of the chunk whose
//!   slot it fills: an empty slot then takes a plain store.
//! * **find** compares the elements whose tag matches and then reads the slot again. Only if the word is unchanged
//!   did the element belong to the slot while its key was read, for a hit as for a miss. Without the second read a
//!   key replaced in between would look absent, because its old element already holds another key.
//!
//! Invariants.
//! 1. The key of an element does not change while a slot names it.
//! 2. Before a thread writes into an element it takes the element out of the index and then executes
//!    [`Table::begin_write`]: a reader that sees any of the new words then sees the slot word changed
//!    ([`Table::unchanged`]).
//! 3. A slot is empty exactly if the lower half of its word is zero. Its tag is zero then, which is a possible tag of
//!    a key too.
//! 4. A slot's version grows with every change, so two equal readings mean that the word did not change in between.
//!    (16 bits wrap: a reader would have to sleep through exactly a multiple of 65,536 changes of one slot and wake
//!    to the same element in it.)
//! 5. `overflow` of a chunk is at least the number of present keys that passed it.

use crate::errno::Errno;
use crate::hash::chunk::{self, Chunk, SLOTS, element_of, emptied, exchange, filled, is_full, mark_of, offset_of_slot};
use crate::hash::key::Key;
use crate::sync::{AtomicU64, Ordering, Table as Memory, fence, prefetch_write, yield_now};

/// Bytes of a chunk, as places count them.
const CHUNK: usize = chunk::BYTES;

/// The place that a hash gives a key: the home chunk, and the tag.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HashPlace {
    home: usize,
    mark: u32,
}

/// The place where a key was found. Two words, so that it is passed in registers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found {
    /// The chunk's number times 64, and the byte of the chunk at which the slot begins.
    place: usize,
    word: u64,
}

impl Found {
    #[inline(always)]
    fn new(chunk: usize, offset: usize, word: u64) -> Self {
        Self { place: chunk * CHUNK + offset, word }
    }

    #[inline(always)]
    fn chunk(self) -> usize {
        self.place / CHUNK
    }

    /// The byte of the chunk at which the slot begins.
    #[inline(always)]
    fn offset(self) -> usize {
        self.place % CHUNK
    }

    /// The element that holds the key.
    #[inline]
    pub(crate) fn element(self) -> u32 {
        element_of(self.word)
    }
}

/// The result of the first look.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Glance<'a> {
    /// The key was there.
    Found(Glanced<'a>),
    /// The key is absent.
    Absent,
    /// The general search must decide.
    Unclear,
}

/// A key found by the first look, in its home chunk, with the addresses that operations on it need.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Glanced<'a> {
    slot: &'a AtomicU64,
    word: u64,
    /// The words behind the key.
    extra: &'a [AtomicU64],
    offset: usize,
}

impl<'a> Glanced<'a> {
    /// The element that holds the key.
    #[inline(always)]
    pub(crate) fn element(self) -> u32 {
        element_of(self.word)
    }

    /// The words of the element behind its key.
    #[inline(always)]
    pub(crate) fn extra(self) -> &'a [AtomicU64] {
        self.extra
    }

    /// As [`Table::unchanged`].
    #[inline(always)]
    pub(crate) fn unchanged(self) -> bool {
        // Relaxed: behind the fence of `glance`, which pairs with the one in `begin_write`.
        self.slot.load(Ordering::Relaxed) == self.word
    }

    /// As [`Table::replace`].
    #[inline(always)]
    pub(crate) fn replace(self, element: u32) -> bool {
        exchange(self.slot, self.word, filled(self.word, mark_of(self.word), element))
    }

    /// As [`Table::remove`]: the key is in its home chunk, so it passed none.
    #[inline(always)]
    pub(crate) fn remove(self) -> bool {
        exchange(self.slot, self.word, emptied(self.word))
    }
}

/// The index and the slab it points into.
#[derive(Debug)]
pub(crate) struct Table {
    chunks: Memory<Chunk>,
    /// Each element: `key_words`, then whatever the map keeps.
    slab: Memory<AtomicU64>,
    key_words: usize,
    element_words: usize,
    /// Bytes of an element.
    stride: usize,
}

impl Table {
    /// An empty table with room for `max_entries` keys in a slab of `elements`.
    pub(crate) fn new(max_entries: u32, elements: u32, key_words: usize, extra_words: usize) -> Result<Self, Errno> {
        let element_words = key_words + extra_words;
        let words = (elements as usize).checked_mul(element_words).ok_or(Errno::ENOMEM)?;
        Ok(Self {
            chunks: Memory::zeroed(Self::chunks_for(max_entries))?,
            slab: Memory::zeroed(words)?,
            key_words,
            element_words,
            stride: element_words * size_of::<AtomicU64>(),
        })
    }

    /// Four keys a chunk: a load factor of 4/7. Fuller chunks overflow too often, emptier ones cost memory.
    pub(crate) fn chunks_for(max_entries: u32) -> usize {
        (max_entries as usize).div_ceil(4)
    }

    /// The words of an element after its key.
    #[inline(always)]
    pub(crate) fn extra(&self, element: u32) -> &[AtomicU64] {
        self.words(element, self.key_words, self.element_words)
    }

    /// The element whose words behind the key begin at this address.
    pub(crate) fn element_at(&self, extra: *const u8) -> Option<u32> {
        let first = self.slab.as_ptr().addr() + self.key_words * size_of::<AtomicU64>();
        let at = extra.addr().checked_sub(first).filter(|at| at.is_multiple_of(self.stride))? / self.stride;
        u32::try_from(at).ok().filter(|_| at < self.slab.len() / self.element_words)
    }

    /// The words of an element's key.
    #[inline(always)]
    pub(crate) fn key(&self, element: u32) -> &[AtomicU64] {
        self.words(element, 0, self.key_words)
    }

    #[inline(always)]
    fn words(&self, element: u32, from: usize, to: usize) -> &[AtomicU64] {
        debug_assert!(from <= to && to <= self.element_words);
        debug_assert!((element as usize + 1) * self.element_words <= self.slab.len());
        // SAFETY: elements come from the free list or a slot of the index, so they are below the number the slab was
        // made for.
        let words = unsafe { self.slab.as_ptr().byte_add(element as usize * self.stride) };
        // SAFETY: the callers pass parts of an element.
        let first = unsafe { words.add(from) };
        // SAFETY: `to - from` words of one element, within the slab, which lives as long as `self`; only shared
        // references are made to its words.
        unsafe { std::slice::from_raw_parts(first, to - from) }
    }

    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "the upper half of a product is below the factor `len`")]
    fn home(&self, hash: u64) -> usize {
        // Multiply-shift instead of a remainder: any number of chunks, so the load factor is exact.
        ((u128::from(hash) * self.chunks.len() as u128) >> 64) as usize
    }

    #[inline(always)]
    fn chunk(&self, at: usize) -> &Chunk {
        debug_assert!(at < self.chunks.len());
        // SAFETY: chunk numbers come from `home`, which is below the length (a fraction of it), from `next`, which
        // wraps, and from positions below `positions`.
        unsafe { self.chunks.get_unchecked(at) }
    }

    #[inline]
    fn next(&self, chunk: usize) -> usize {
        if chunk + 1 == self.chunks.len() { 0 } else { chunk + 1 }
    }

    /// Begins to write an element that is not in the index (invariant 2): writes its key, and returns the other words.
    #[inline(always)]
    pub(crate) fn begin_write<K: Key>(&self, element: u32, key: &K) -> &[AtomicU64] {
        // Pairs with the acquire fences of `glance` and `reread`: a reader that saw a word written after this fence
        // sees every slot change made before it.
        fence(Ordering::Release);
        let words = key.words();
        debug_assert!(words.len() == self.key_words);
        // SAFETY: the key has the map's size, so the element begins with as many words.
        let (shared, extra) = unsafe { self.words(element, 0, self.element_words).split_at_unchecked(words.len()) };
        for (shared, word) in shared.iter().zip(words) {
            // Relaxed: published by the exchange that puts the element into a slot.
            shared.store(*word, Ordering::Relaxed);
        }
        extra
    }

    /// Whether the slot still has its word, so that all data read from its element in between belongs to the key.
    #[inline]
    pub(crate) fn unchanged(&self, found: Found) -> bool {
        self.reread(found.chunk(), found.offset()) == found.word
    }

    /// Loads the slot's word again, ordered after all earlier reads of the element.
    #[inline(always)]
    fn reread(&self, chunk: usize, offset: usize) -> u64 {
        // Pairs with the release fence in `begin_write`.
        fence(Ordering::Acquire);
        // Acquire: the word may name a new element, which the caller is about to read.
        self.chunk(chunk).slot(offset).load(Ordering::Acquire)
    }

    /// Whether the element with these words holds `key`.
    #[inline(always)]
    fn holds<K: Key>(shared: &[AtomicU64], key: &K) -> bool {
        let same = |i: usize, word: u64| {
            debug_assert!(i < shared.len());
            // SAFETY: the key has the map's size, so as many words as the key of an element, which `shared` begins
            // with.
            let shared = unsafe { shared.get_unchecked(i) };
            // Relaxed: the caller re-reads the slot behind an acquire fence.
            shared.load(Ordering::Relaxed) ^ word
        };
        // Without branches, because they would be mispredicted.
        key.words().iter().enumerate().fold(0, |differ, (i, &word)| differ | same(i, word)) == 0
    }

    /// Looks a key up.
    #[inline(always)]
    pub(crate) fn find<K: Key>(&self, key: &K, hash: u64) -> Option<Found> {
        self.find_at(key, self.place_of(hash))
    }

    /// Looks a key up, given its place.
    #[inline(always)]
    pub(crate) fn find_at<K: Key>(&self, key: &K, place: HashPlace) -> Option<Found> {
        match self.glance::<K, false>(key, place) {
            Glance::Found(found) if found.unchanged() => Some(Found::new(place.home, found.offset, found.word)),
            Glance::Absent => None,
            Glance::Found(_) | Glance::Unclear => self.find_anywhere(key, place),
        }
    }

    /// The place of the keys with this hash.
    #[inline(always)]
    pub(crate) fn place_of(&self, hash: u64) -> HashPlace {
        HashPlace { home: self.home(hash), mark: crate::num::low(hash) }
    }

    /// The place of a hash, for a caller that is about to change a slot there. Prefetches the chunk's line for
    /// writing; if another core wrote it last, it would otherwise be fetched twice.
    #[inline(always)]
    pub(crate) fn place_to_write(&self, hash: u64) -> HashPlace {
        let place = self.place_of(hash);
        prefetch_write(self.chunk(place.home));
        place
    }

    /// The first look: nearly always the key is under the first matching tag in its home chunk, or no tag matches
    /// there and no key overflowed from it.
    ///
    /// A found key counts only if the slot is unchanged *afterwards*: a lookup calls [`Glanced::unchanged`]; the
    /// exchange of a replace or a removal compares the word. With `WRITE`, the element is prefetched for writing, as
    /// the chunk is by [`Table::place_to_write`].
    #[inline(always)]
    pub(crate) fn glance<K: Key, const WRITE: bool>(&self, key: &K, place: HashPlace) -> Glance<'_> {
        let chunk = self.chunk(place.home);
        let Some(offset) = chunk.matching(place.mark).next() else {
            // Acquire as in `find_anywhere`.
            return if chunk.overflow.load(Ordering::Acquire) == 0 { Glance::Absent } else { Glance::Unclear };
        };
        let slot = chunk.slot(offset);
        // Acquire as in `check`.
        let word = slot.load(Ordering::Acquire);
        // If the slot changed in between it may have another tag: then it has another key, or is empty.
        if !is_full(word) {
            return Glance::Unclear;
        }
        let element = self.words(element_of(word), 0, self.element_words);
        if WRITE {
            // The first and last lines: most elements have at most two.
            prefetch_write(element.as_ptr());
            // SAFETY: an element has at least one word.
            prefetch_write(unsafe { element.get_unchecked(element.len() - 1) });
        }
        if !Self::holds(element, key) {
            return Glance::Unclear;
        }
        // Pairs with the release fence in `begin_write`: a reader that finds the word unchanged after this fence has
        // read the key's own element.
        fence(Ordering::Acquire);
        // SAFETY: the key has the map's size, so the element begins with as many words.
        let extra = unsafe { element.get_unchecked(key.words().len()..) };
        Glance::Found(Glanced { slot, word, extra, offset })
    }

    /// The general search: all chunks from the home chunk to the first without overflow.
    #[inline(never)]
    pub(crate) fn find_anywhere<K: Key>(&self, key: &K, place: HashPlace) -> Option<Found> {
        let mut at = place.home;
        for _ in 0..self.chunks.len() {
            let chunk = self.chunk(at);
            for offset in chunk.matching(place.mark) {
                if let Some(word) = self.check(at, offset, place.mark, key) {
                    return Some(Found::new(at, offset, word));
                }
            }
            // Acquire: a key inserted before this search began (in the happens-before order) is counted, by invariant
            // 5.
            if chunk.overflow.load(Ordering::Acquire) == 0 {
                return None;
            }
            at = self.next(at);
        }
        None
    }

    /// The word of a slot, if it names an element that holds `key` and is unchanged after the comparison.
    #[inline(always)]
    fn check<K: Key>(&self, chunk: usize, offset: usize, mark: u32, key: &K) -> Option<u64> {
        // Acquire pairs with the release of the exchange that published the element: its key and value are complete.
        let mut word = self.chunk(chunk).slot(offset).load(Ordering::Acquire);
        while is_full(word) && mark_of(word) >> 16 == mark >> 16 {
            let equal = Self::holds(self.key(element_of(word)), key);
            let again = self.reread(chunk, offset);
            if again == word {
                return equal.then_some(word);
            }
            word = again;
        }
        None
    }

    /// The home chunk's insert count: to be read before a search, and passed to [`Table::insert`].
    #[inline]
    pub(crate) fn inserts(&self, hash: u64) -> u32 {
        self.inserts_at(self.place_of(hash))
    }

    /// The insert count of the home chunk at `place`.
    #[inline(always)]
    pub(crate) fn inserts_at(&self, place: HashPlace) -> u32 {
        self.chunk(place.home).lock.releases()
    }

    /// Puts `element`, which holds `key`, into the slot of `found`; false if the slot has changed since.
    #[inline]
    pub(crate) fn replace(&self, found: Found, element: u32) -> bool {
        exchange(self.slot(found), found.word, filled(found.word, mark_of(found.word), element))
    }

    #[inline(always)]
    fn slot(&self, found: Found) -> &AtomicU64 {
        self.chunk(found.chunk()).slot(found.offset())
    }

    /// Removes the found key; false if the slot has changed since. On success the caller owns the element.
    #[inline]
    pub(crate) fn remove(&self, found: Found, hash: u64) -> bool {
        if !exchange(self.slot(found), found.word, emptied(found.word)) {
            return false;
        }
        let mut at = self.home(hash);
        while at != found.chunk() {
            // Release: a reader that sees the smaller count must also see the removal before it.
            self.chunk(at).overflow.fetch_sub(1, Ordering::Release);
            at = self.next(at);
        }
        true
    }

    /// Inserts `element`, which holds `key`. `searched` is [`Table::inserts`] from before a search that did not find
    /// the key. False if the key is present: the caller keeps the element.
    #[inline]
    pub(crate) fn insert<K: Key>(&self, key: &K, hash: u64, searched: u32, element: u32) -> bool {
        let place = self.place_of(hash);
        let HashPlace { home, mark } = place;
        self.with_locked(home, |before| {
            // Only the holder of this lock adds a key of this home: if none was added since the search, the result of
            // the search still holds.
            let absent = before == searched || self.find_anywhere(key, place).is_none();
            if absent {
                self.place(home, mark, element);
            }
            absent
        })
    }

    /// Inserts if the home chunk has room and no key was inserted there since the search. Otherwise returns false and
    /// changes nothing.
    #[inline(always)]
    pub(crate) fn insert_at_home(&self, place: HashPlace, searched: u32, element: u32) -> bool {
        // Searched before locking: the lock word is in this line too, and a vector load soon after a store to it
        // would stall.
        let Some(vacancy) = self.chunk(place.home).vacancy() else { return false };
        let lock = &self.chunk(place.home).lock;
        // Only the holder of this lock adds a key of this home or fills a slot of this chunk: if none did since the
        // search, then both its result and the vacancy still hold.
        let locked = lock.lock_unreleased(searched);
        if locked {
            vacancy.fill(place.mark, element);
            lock.unlock(searched);
        }
        locked
    }

    /// Runs `critical` under the insert lock of the hash's home chunk, with the count of inserts so far.
    #[inline]
    pub(crate) fn with_home_locked<T>(&self, hash: u64, critical: impl FnOnce(u32) -> T) -> T {
        self.with_locked(self.home(hash), critical)
    }

    #[inline(always)]
    fn with_locked<T>(&self, home: usize, critical: impl FnOnce(u32) -> T) -> T {
        let lock = &self.chunk(home).lock;
        let before = lock.lock();
        let result = critical(before);
        lock.unlock(before);
        result
    }

    /// Fills the first empty slot from `home` on, whose lock the caller holds. A chunk whose lock is taken is skipped
    /// like a full one, because waiting for it could deadlock in a circle.
    #[cold]
    fn place(&self, home: usize, mark: u32, element: u32) {
        let mut at = home;
        loop {
            let before = if at == home { None } else { self.chunk(at).lock.try_lock() };
            let vacancy = if at == home || before.is_some() { self.chunk(at).vacancy() } else { None };
            let found = vacancy.map(|vacancy| vacancy.fill(mark, element)).is_some();
            if let Some(before) = before {
                self.chunk(at).lock.unlock(before);
            }
            if found {
                return;
            }
            let chunk = self.chunk(at);
            // Relaxed: published by the store that makes the key present.
            chunk.overflow.fetch_add(1, Ordering::Relaxed);
            at = self.next(at);
            if at == home {
                // There are more slots than elements, so one pass can only fail if other threads move keys meanwhile:
                // start again, with the counts of the first round undone.
                for chunk in &*self.chunks {
                    // Relaxed: nothing was published under these counts.
                    chunk.overflow.fetch_sub(1, Ordering::Relaxed);
                }
                yield_now();
            }
        }
    }

    /// The first element at or after `position`, a number below [`Table::positions`], with the position it was found
    /// at.
    pub(crate) fn scan(&self, position: u64) -> Option<(u64, Found)> {
        (position..self.positions()).find_map(|position| {
            let at = crate::num::index(position);
            let (chunk, slot) = (at / SLOTS, at % SLOTS);
            // Acquire as in `check`.
            let word = self.chunk(chunk).slots[slot].load(Ordering::Acquire);
            is_full(word).then_some((position, Found::new(chunk, offset_of_slot(slot), word)))
        })
    }

    /// The position [`Table::scan`] finds this key at.
    pub(crate) fn position(&self, found: Found) -> u64 {
        (found.chunk() * SLOTS + chunk::slot_of_offset(found.offset())) as u64
    }

    /// Bytes of the index.
    pub(crate) fn index_memory(&self) -> usize {
        size_of_val(&*self.chunks)
    }

    /// Bytes of the slab.
    pub(crate) fn slab_memory(&self) -> usize {
        size_of_val(&*self.slab)
    }

    /// The number of positions.
    pub(crate) fn positions(&self) -> u64 {
        (self.chunks.len() * SLOTS) as u64
    }
}
