//! The index of a hash map: which element holds which key.
//!
//! Problem: programs look up, replace and delete from any thread, may be preempted anywhere, and must not wait. A lookup
//! must find a key that was present throughout, whatever else happens; elements are recycled at once.
//!
//! Approach. Elements (keys and values) live in a slab and are named by index. The index is an array of 64-byte chunks of
//! seven slots; a slot is one word {version 16 | tag 16 | element 32}. A key's hash gives its home chunk and its tag; a key that
//! finds its home full goes to the next chunk with room, and every chunk it passed counts it in `overflow`, so that a
//! search stops at the first chunk nobody passed. Keys never move.
//!
//! * **replace** and **delete** are one compare-exchange of the slot word. They wait for nobody.
//! * **insert** of a new key holds the lock of its *home* chunk, so that no key gets in twice, and of the chunk whose slot it fills: an
//!   empty slot then takes a plain store.
//! * **find** compares the elements whose tag matches and then reads the slot again: only if the word is unchanged did the
//!   element belong to the slot while its key was read, for a hit as for a miss. Without that a key replaced in between looks
//!   absent, because its old element already holds another key.
//!
//! Invariants.
//! 1. The key of an element does not change while a slot names it.
//! 2. Who writes into an element first executes [`Table::begin_write`] after having taken it out of the index: a reader that sees any
//!    of the new words then sees the slot word changed ([`Table::unchanged`]).
//! 3. A slot's version grows with every change, so a word that reads the same twice was the same all the time. (16 bits
//!    wrap: a reader would have to sleep through exactly a multiple of 65,536 changes of one slot and wake to the
//!    same element in it.)
//! 4. `overflow` of a chunk is at least the number of present keys that passed it.

use crate::errno::Errno;
use crate::hash::key::Key;
#[cfg(not(loom))]
use crate::hash::tags;
use crate::lock::ChunkLock;
use crate::sync::{AtomicU32, AtomicU64, Ordering, Table as Memory, fence, prefetch_write, yield_now};

/// Slots in a chunk: 64 bytes less the lock and the overflow count.
pub(crate) const SLOTS: usize = 7;

/// One cache line of the index: lock and overflow count share the first word, the others are slots.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(crate) struct Chunk {
    lock: ChunkLock,
    overflow: AtomicU32,
    slots: [AtomicU64; SLOTS],
}

// SAFETY: made of integer atomics only, for which zero is valid; no drop glue.
#[cfg(not(loom))]
unsafe impl crate::mem::ZeroInit for Chunk {}

/// What a hash says about where its key may be: the chunk, and the tag there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HashPlace {
    home: usize,
    tag: u16,
}

/// Where a key was found. Two words, so that it travels in registers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found {
    /// The chunk's number times eight, and the slot's.
    place: usize,
    word: u64,
}

impl Found {
    #[inline(always)]
    fn new(chunk: usize, slot: usize, word: u64) -> Self {
        Self { place: chunk * (SLOTS + 1) + slot, word }
    }

    #[inline(always)]
    fn chunk(self) -> usize {
        self.place / (SLOTS + 1)
    }

    #[inline(always)]
    fn slot(self) -> usize {
        self.place % (SLOTS + 1)
    }

    /// The element that holds the key.
    #[inline]
    pub(crate) fn element(self) -> u32 {
        self.word as u32
    }
}

#[inline]
fn tag_of(hash: u64) -> u16 {
    // Tag 0 marks an empty slot.
    (hash as u16).max(1)
}

#[inline]
fn word_tag(word: u64) -> u16 {
    (word >> 32) as u16
}

/// The word that follows `old`: the next version.
#[inline]
fn successor(old: u64, tag: u16, element: u32) -> u64 {
    let version = (old >> 48).wrapping_add(1);
    version << 48 | u64::from(tag) << 32 | u64::from(element)
}

/// The index and the slab it points into.
#[derive(Debug)]
pub(crate) struct Table {
    chunks: Memory<Chunk>,
    /// Each element: `key_words`, then whatever the map keeps.
    slab: Memory<AtomicU64>,
    key_words: usize,
    element_words: usize,
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
        })
    }

    /// Four keys a chunk: a load factor of 4/7. Fuller chunks overflow too often, emptier ones cost memory.
    pub(crate) fn chunks_for(max_entries: u32) -> usize {
        (max_entries as usize).div_ceil(4)
    }

    /// The words of an element behind its key.
    #[inline(always)]
    pub(crate) fn extra(&self, element: u32) -> &[AtomicU64] {
        self.words(element, self.key_words, self.element_words)
    }

    /// The words of an element's key.
    #[inline(always)]
    pub(crate) fn key(&self, element: u32) -> &[AtomicU64] {
        self.words(element, 0, self.key_words)
    }

    #[inline(always)]
    fn words(&self, element: u32, from: usize, to: usize) -> &[AtomicU64] {
        let start = element as usize * self.element_words;
        debug_assert!(from <= to && to <= self.element_words && start + to <= self.slab.len());
        // SAFETY: elements come from the free list or a slot of the index, so they are below the number the slab was made for, and the
        // callers above pass parts of an element.
        unsafe { self.slab.get_unchecked(start + from..start + to) }
    }

    #[inline(always)]
    fn home(&self, hash: u64) -> usize {
        // Multiply-shift instead of a remainder: any number of chunks, so the load factor is exact.
        (((hash >> 32) * self.chunks.len() as u64) >> 32) as usize
    }

    #[inline(always)]
    fn chunk(&self, at: usize) -> &Chunk {
        debug_assert!(at < self.chunks.len());
        // SAFETY: chunk numbers come from `home`, which is below the length (a fraction of it), from `next`, which wraps, and from
        // positions below `positions`.
        unsafe { self.chunks.get_unchecked(at) }
    }

    #[inline]
    fn next(&self, chunk: usize) -> usize {
        if chunk + 1 == self.chunks.len() { 0 } else { chunk + 1 }
    }

    /// Must precede the first write into an element that is not in the index (invariant 2).
    #[inline]
    pub(crate) fn begin_write(&self) {
        // Pairs with the acquire fence in `unchanged`: a reader that saw a word written after this fence sees every slot change
        // made before it.
        fence(Ordering::Release);
    }

    /// Writes a key into an element that is not in the index, after [`Table::begin_write`].
    #[inline]
    pub(crate) fn write_key<K: Key>(&self, element: u32, key: &K) {
        let words = key.words();
        debug_assert!(words.len() == self.key_words);
        for (shared, word) in self.words(element, 0, words.len()).iter().zip(words) {
            // Relaxed: published by the exchange that puts the element into a slot.
            shared.store(*word, Ordering::Relaxed);
        }
    }

    /// Whether the slot still has the word it had, so that everything read from its element in between was the key's.
    #[inline]
    pub(crate) fn unchanged(&self, found: Found) -> bool {
        self.reread(found.chunk(), found.slot()) == found.word
    }

    /// The slot's word now, ordered after every read of the element so far.
    #[inline(always)]
    fn reread(&self, chunk: usize, slot: usize) -> u64 {
        // Pairs with the release fence in `begin_write`.
        fence(Ordering::Acquire);
        // Acquire: the word may name a new element, which the caller is going to read.
        self.chunk(chunk).slots[slot].load(Ordering::Acquire)
    }

    #[inline(always)]
    fn holds<K: Key>(&self, element: u32, key: &K) -> bool {
        let shared = self.key(element);
        let same = |i: usize, word: u64| {
            debug_assert!(i < shared.len());
            // SAFETY: the key has the map's size, so as many words as the key of an element.
            let shared = unsafe { shared.get_unchecked(i) };
            // Relaxed: the caller re-reads the slot behind an acquire fence.
            shared.load(Ordering::Relaxed) ^ word
        };
        // Without branches, which would mispredict.
        key.words().iter().enumerate().fold(0, |differ, (i, &word)| differ | same(i, word)) == 0
    }

    /// Looks a key up.
    ///
    /// Nearly always the key is under the first tag that matches in its home chunk, or nothing matches there and nobody
    /// passed it: that much is inlined.
    #[inline(always)]
    pub(crate) fn find<K: Key>(&self, key: &K, hash: u64) -> Option<Found> {
        self.find_at::<K, false>(key, self.place_of(hash))
    }

    /// Where a hash is looked for.
    #[inline(always)]
    pub(crate) fn place_of(&self, hash: u64) -> HashPlace {
        HashPlace { home: self.home(hash), tag: tag_of(hash) }
    }

    /// The same for somebody who is going to change a slot there. Its line is fetched for writing at once: where another core wrote it
    /// last, it would otherwise be fetched twice.
    #[inline(always)]
    pub(crate) fn place_to_write(&self, hash: u64) -> HashPlace {
        let place = self.place_of(hash);
        prefetch_write(self.chunk(place.home));
        place
    }

    /// As [`Table::find`]. With `WRITE`, the element is fetched for writing, as the chunk by [`Table::place_to_write`].
    #[inline(always)]
    pub(crate) fn find_at<K: Key, const WRITE: bool>(&self, key: &K, place: HashPlace) -> Option<Found> {
        let HashPlace { home, tag } = place;
        let chunk = self.chunk(home);
        if let Some(slot) = chunk.matching(tag).next() {
            // Acquire as in `check`.
            let word = chunk.slots[slot].load(Ordering::Acquire);
            if WRITE {
                // (The word may name element 0 by now, which exists.) Its first and last lines: elements of up to two are the usual ones.
                let element = self.words(word as u32, 0, self.element_words);
                prefetch_write(element.as_ptr());
                prefetch_write(element.as_ptr_range().end.wrapping_sub(1));
            }
            let equal = word_tag(word) == tag && self.holds(word as u32, key);
            if equal && self.reread(home, slot) == word {
                return Some(Found::new(home, slot, word));
            }
        } else if chunk.overflow.load(Ordering::Acquire) == 0 {
            // Acquire as in `find_anywhere`.
            return None;
        }
        self.find_anywhere(key, home, tag)
    }

    /// The whole search.
    #[inline(never)]
    fn find_anywhere<K: Key>(&self, key: &K, home: usize, tag: u16) -> Option<Found> {
        let mut at = home;
        for _ in 0..self.chunks.len() {
            let chunk = self.chunk(at);
            for slot in chunk.matching(tag) {
                if let Some(word) = self.check(at, slot, tag, key) {
                    return Some(Found::new(at, slot, word));
                }
            }
            // Acquire: a key that was inserted before this search began is counted (invariant 4), by the happens-before that
            // makes "before" mean anything; the load itself needs no more.
            if chunk.overflow.load(Ordering::Acquire) == 0 {
                return None;
            }
            at = self.next(at);
        }
        None
    }

    /// The word of a slot, if it stably names an element that holds `key`.
    #[inline(always)]
    fn check<K: Key>(&self, chunk: usize, slot: usize, tag: u16, key: &K) -> Option<u64> {
        // Acquire pairs with the release of the exchange that published the element: its key and value are complete.
        let mut word = self.chunk(chunk).slots[slot].load(Ordering::Acquire);
        while word_tag(word) == tag {
            let equal = self.holds(word as u32, key);
            let again = self.reread(chunk, slot);
            if again == word {
                return equal.then_some(word);
            }
            word = again;
        }
        None
    }

    /// The home chunk's insert count: to be read before a search, and given to [`Table::insert`].
    #[inline]
    pub(crate) fn inserts(&self, hash: u64) -> u32 {
        self.inserts_at(self.place_of(hash))
    }

    /// The same.
    #[inline(always)]
    pub(crate) fn inserts_at(&self, place: HashPlace) -> u32 {
        self.chunk(place.home).lock.releases()
    }

    /// Puts `element`, which holds `key`, where `found` was; false if the slot has changed since.
    #[inline]
    pub(crate) fn replace(&self, found: Found, element: u32) -> bool {
        let new = successor(found.word, word_tag(found.word), element);
        self.exchange(found, new)
    }

    #[inline]
    fn exchange(&self, found: Found, new: u64) -> bool {
        let slot = &self.chunk(found.chunk()).slots[found.slot()];
        // Release pairs with the acquire loads of searches: they see the new element's key and value. Acquire: the caller now
        // owns the old element and whatever was done to it.
        slot.compare_exchange(found.word, new, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Removes the key that was found; false if the slot has changed since. The caller owns the element then.
    #[inline]
    pub(crate) fn remove(&self, found: Found, hash: u64) -> bool {
        if !self.exchange(found, successor(found.word, 0, 0)) {
            return false;
        }
        let mut at = self.home(hash);
        while at != found.chunk() {
            // Release: a reader that sees the count drop must not have missed the removal before it.
            self.chunk(at).overflow.fetch_sub(1, Ordering::Release);
            at = self.next(at);
        }
        true
    }

    /// Inserts `element`, which holds `key`. `searched` is [`Table::inserts`] from before a search that did not find the key. False
    /// if the key is present: the caller keeps the element.
    #[inline]
    pub(crate) fn insert<K: Key>(&self, key: &K, hash: u64, searched: u32, element: u32) -> bool {
        self.insert_at(key, self.place_of(hash), searched, element)
    }

    /// The same.
    #[inline(always)]
    pub(crate) fn insert_at<K: Key>(&self, key: &K, place: HashPlace, searched: u32, element: u32) -> bool {
        let HashPlace { home, tag } = place;
        // Looked for before locking: the lock word is in the same line, and a vector load soon after its store would wait.
        let vacancy = self.vacancy(home);
        self.with_locked(home, |before| {
            // Only who holds this lock adds a key of this home or fills a slot of this chunk: if nobody did since the search,
            // then both what it found and the vacancy still hold.
            if let (true, Some(vacancy)) = (before == searched, vacancy) {
                self.put(vacancy, tag, element);
                return true;
            }
            let absent = before == searched || self.find_anywhere(key, home, tag).is_none();
            if absent {
                self.place(home, tag, element);
            }
            absent
        })
    }

    /// An empty slot of a chunk.
    #[inline(always)]
    fn vacancy(&self, at: usize) -> Option<Found> {
        let slot = self.chunk(at).matching(0).next()?;
        // Relaxed: empty slots only change under the chunk's lock, which the caller has or is going to take.
        let word = self.chunk(at).slots[slot].load(Ordering::Relaxed);
        (word_tag(word) == 0).then_some(Found::new(at, slot, word))
    }

    /// Fills an empty slot of a chunk whose lock the caller holds.
    #[inline(always)]
    fn put(&self, vacancy: Found, tag: u16, element: u32) {
        let slot = &self.chunk(vacancy.chunk()).slots[vacancy.slot()];
        // Release pairs with the acquire loads of searches: they see the element's key and value. A plain store, because removals and
        // replaces exchange only full slots.
        slot.store(successor(vacancy.word, tag, element), Ordering::Release);
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

    /// Fills the first empty slot from `home` on, whose lock the caller holds. A chunk whose lock is taken is passed over like a full
    /// one: waiting for it could go round in a circle.
    #[cold]
    fn place(&self, home: usize, tag: u16, element: u32) {
        let mut at = home;
        loop {
            let before = if at == home { None } else { self.chunk(at).lock.try_lock() };
            let vacancy = if at == home || before.is_some() { self.vacancy(at) } else { None };
            if let Some(vacancy) = vacancy {
                self.put(vacancy, tag, element);
            }
            if let Some(before) = before {
                self.chunk(at).lock.unlock(before);
            }
            if vacancy.is_some() {
                return;
            }
            let chunk = self.chunk(at);
            // Relaxed: published by the store that makes the key present.
            chunk.overflow.fetch_add(1, Ordering::Relaxed);
            at = self.next(at);
            if at == home {
                // There are more slots than elements, so one pass can only fail if keys move about meanwhile: go round
                // again, with the counts of the first round undone.
                for chunk in &*self.chunks {
                    // Relaxed: nothing was published under these counts.
                    chunk.overflow.fetch_sub(1, Ordering::Relaxed);
                }
                yield_now();
            }
        }
    }

    /// The first element at or after `position`, a number below [`Table::positions`], with the position it was found at.
    pub(crate) fn scan(&self, position: u64) -> Option<(u64, Found)> {
        (position..self.positions()).find_map(|position| {
            let (chunk, slot) = (position as usize / SLOTS, position as usize % SLOTS);
            // Acquire as in `check`.
            let word = self.chunk(chunk).slots[slot].load(Ordering::Acquire);
            (word_tag(word) != 0).then_some((position, Found::new(chunk, slot, word)))
        })
    }

    /// The position [`Table::scan`] finds this key at.
    pub(crate) fn position(&self, found: Found) -> u64 {
        (found.chunk() * SLOTS + found.slot()) as u64
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

impl Chunk {
    /// The slots whose tag is `tag`. A slot that has the tag throughout is always among them.
    #[cfg(not(loom))]
    #[inline(always)]
    fn matching(&self, tag: u16) -> impl Iterator<Item = usize> + use<> {
        // SAFETY: a chunk is 64 bytes, aligned to 64, of integer atomics (`repr(C)`). Its first word is two 32-bit ones; the tag
        // comparison reads it along with the others, by assembly, and ignores it.
        let words = unsafe { &*std::ptr::from_ref(self).cast::<[AtomicU64; SLOTS + 1]>() };
        tags::matching(words, tag).map(|word| word - 1)
    }

    #[cfg(loom)]
    fn matching(&self, tag: u16) -> impl Iterator<Item = usize> + '_ {
        let has = move |slot: &AtomicU64| word_tag(slot.load(Ordering::Relaxed)) == tag;
        self.slots.iter().enumerate().filter_map(move |(i, slot)| has(slot).then_some(i))
    }
}
