//! Arrays and hashes of maps.
//!
//! A value is a reference to a map, stored as the map pointer that a program's lookup returns. The host sets entries
//! (the shape of an inner map is checked against the outer map's template); programs only look them up.
//!
//! Invariant: an entry owns one reference to its map. The reference is dropped a grace period after the entry
//! changed, so a program that has looked the pointer up may use it until its run ends.

use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bpf_quiesce::{Domain, Finish};

use crate::def::{MapDef, MapType};
use crate::errno::{Errno, OpResult};
use crate::error::MapError;
use crate::hash::HashMap;
use crate::hash::key::{Key, with_key};
use crate::header::{LookupFn, MapHeader};
use crate::map::{Inner, Map};
use crate::mem::Table;
use crate::ops::{Cursor, MapOps};

/// Bytes of a value on the host's side: the inner map's number.
const ID_SIZE: usize = size_of::<u32>();

/// The operations that only maps of maps have.
trait MapOfMaps {
    /// Checks the entry's key and the flags, before the inner map is checked.
    fn check_entry(&self, key: &[u8], flags: u64) -> OpResult {
        let _ = (key, flags);
        Ok(())
    }

    /// Sets an entry; the caller has checked the inner map's shape.
    fn set_inner(&self, key: &[u8], inner: &Map, flags: u64, slot: u32) -> OpResult;

    /// The map in an entry.
    fn inner(&self, key: &[u8]) -> OpResult<Map>;
}

/// Returns the map's operations as a map of maps; `EINVAL` for other types.
fn of_maps(ops: &dyn MapOps) -> OpResult<&dyn MapOfMaps> {
    let any = ops.as_any();
    let array = any.downcast_ref::<ArrayOfMaps>().map(|array| array as &dyn MapOfMaps);
    array.or_else(|| any.downcast_ref::<HashOfMaps>().map(|hash| hash as _)).ok_or(Errno::EINVAL)
}

impl Map {
    /// Sets an entry of a map of maps.
    ///
    /// # Errors
    /// [`MapError::Incompatible`] if `inner` is not of the template's shape, [`MapError::OtherDomain`]; `E2BIG`,
    /// `EEXIST` and so on as for other values.
    pub fn set_inner(&self, key: &[u8], inner: &Map, flags: u64) -> Result<(), MapError> {
        const OP: &str = "set_inner";
        let Some(template) = &self.def().inner else {
            let (map, got) = (self.name().to_owned(), self.map_type());
            return Err(MapError::WrongType { map, expected: "array_of_maps or hash_of_maps", got });
        };
        self.check_key(key)?;
        self.writable(OP)?;
        let fail = |errno| self.error(OP, errno);
        of_maps(self.ops()).and_then(|outer| outer.check_entry(key, flags)).map_err(fail)?;
        inner.def().fits_template(template)?;
        self.domain().owns(inner)?;
        self.write(OP, |ops, slot| of_maps(ops)?.set_inner(key, inner, flags, slot))?;
        self.domain().tend();
        Ok(())
    }

    /// The map in an entry of a map of maps, if it is set.
    ///
    /// # Errors
    /// `EINVAL` if this is not a map of maps, `EPERM` if it is write-only.
    pub fn get_inner(&self, key: &[u8]) -> Result<Option<Map>, MapError> {
        self.check_key(key)?;
        self.readable("get_inner")?;
        match self.run("get_inner", |ops, _| of_maps(ops)?.inner(key)) {
            Ok(map) => Ok(Some(map)),
            Err(MapError::Op { errno: Errno::ENOENT, .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The address of the first entry of an array of maps, each a map pointer or null that must be loaded with
    /// acquire; null for other types.
    #[must_use]
    pub fn inner_base(&self) -> *const u8 {
        self.ops().as_any().downcast_ref::<ArrayOfMaps>().map_or(std::ptr::null(), ArrayOfMaps::base)
    }
}

/// Drops a reference taken out of an entry after a grace period.
fn retire(domain: &Domain, old: *const Inner) {
    if old.is_null() {
        return;
    }
    // SAFETY: an entry's pointer, made by `Map::into_raw`, which the caller has taken out.
    let map = unsafe { Map::from_raw(old) };
    domain.enqueue(move || drop(map));
}

/// An array of maps.
#[derive(Debug)]
pub(crate) struct ArrayOfMaps {
    entries: Table<AtomicPtr<Inner>>,
    domain: Arc<Domain>,
}

impl ArrayOfMaps {
    pub(crate) fn memory_needed(def: &MapDef) -> u64 {
        u64::from(def.max_entries) * size_of::<AtomicPtr<Inner>>() as u64
    }

    pub(crate) fn new(def: &MapDef, domain: &Arc<Domain>) -> OpResult<Self> {
        Ok(Self { entries: Table::zeroed(def.max_entries as usize)?, domain: Arc::clone(domain) })
    }

    /// The first entry, for the JITs.
    pub(crate) fn base(&self) -> *const u8 {
        self.entries.as_ptr().cast()
    }

    fn entry(&self, key: &[u8]) -> OpResult<Option<&AtomicPtr<Inner>>> {
        let key = key.try_into().map_err(|_| Errno::EINVAL)?;
        Ok(self.entries.get(u32::from_ne_bytes(key) as usize))
    }

    fn id(entry: &AtomicPtr<Inner>) -> Option<u32> {
        // Acquire pairs with the release in `set_inner`.
        let inner = entry.load(Ordering::Acquire);
        // SAFETY: null, or a map that lives until a grace period after it was replaced; the caller is inside a guard.
        unsafe { inner.as_ref() }.map(|inner| inner.id)
    }
}

/// The program's lookup: the inner map's pointer, or null.
///
/// # Safety
/// See [`LookupFn`]; the map must be an array of maps.
unsafe extern "C" fn lookup_array(map: *const MapHeader, key: *const u8, _slot: u32) -> *mut u8 {
    // SAFETY: a live header (contract).
    let imp = unsafe { (*map).imp };
    // SAFETY: the header of an array of maps, whose implementation lives as long (contract).
    let map = unsafe { &*imp.cast::<ArrayOfMaps>() };
    // SAFETY: the key of an array has 4 readable bytes (contract).
    let index = unsafe { key.cast::<u32>().read_unaligned() };
    // Acquire pairs with the release in `set_inner`: the inner map is complete.
    map.entries.get(index as usize).map_or(std::ptr::null_mut(), |entry| entry.load(Ordering::Acquire).cast())
}

impl MapOps for ArrayOfMaps {
    fn as_any(&self) -> &dyn std::any::Any {
        self
    }

    fn lookup_fn(&self) -> LookupFn {
        lookup_array
    }

    fn host_value_size(&self) -> usize {
        ID_SIZE
    }

    /// Copies the inner map's number.
    fn lookup(&self, key: &[u8], out: &mut [u8], _flags: u64, _slot: u32) -> OpResult {
        let entry = self.entry(key)?.ok_or(Errno::ENOENT)?;
        out.copy_from_slice(&Self::id(entry).ok_or(Errno::ENOENT)?.to_ne_bytes());
        Ok(())
    }

    /// In the kernel the value is a map's descriptor; here maps are set with [`Map::set_inner`].
    fn update(&self, _key: &[u8], _value: &[u8], _flags: u64, _slot: u32) -> OpResult {
        Err(Errno::EINVAL)
    }

    fn delete(&self, key: &[u8], _slot: u32) -> OpResult {
        let entry = self.entry(key)?.ok_or(Errno::E2BIG)?;
        // Acquire: the old map is dropped below.
        let old = entry.swap(std::ptr::null_mut(), Ordering::Acquire);
        if old.is_null() {
            return Err(Errno::ENOENT);
        }
        retire(&self.domain, old);
        Ok(())
    }

    fn next_key(&self, key: Option<&[u8]>, out: &mut [u8]) -> OpResult {
        let index = match key {
            Some(key) => u32::from_ne_bytes(key.try_into().map_err(|_| Errno::EINVAL)?),
            None => u32::MAX,
        };
        let max = crate::num::small(self.entries.len());
        let next = if index >= max { 0 } else { index + 1 };
        if next >= max {
            return Err(Errno::ENOENT);
        }
        out.copy_from_slice(&next.to_ne_bytes());
        Ok(())
    }

    fn next_at(&self, cursor: &mut Cursor, key: &mut [u8], value: &mut [u8], _slot: u32) -> OpResult {
        let from = usize::try_from(cursor.position).unwrap_or(usize::MAX);
        let set = self.entries.iter().enumerate().skip(from).find_map(|(i, entry)| Some((i, Self::id(entry)?)));
        let (index, id) = set.ok_or(Errno::ENOENT)?;
        key.copy_from_slice(&crate::num::small(index).to_ne_bytes());
        value.copy_from_slice(&id.to_ne_bytes());
        cursor.position = index as u64 + 1;
        Ok(())
    }

    fn has_batch(&self) -> bool {
        true
    }

    fn len(&self) -> u64 {
        // Relaxed: a statistic.
        self.entries.iter().filter(|entry| !entry.load(Ordering::Relaxed).is_null()).count() as u64
    }

    fn memory_usage(&self) -> u64 {
        size_of_val(&*self.entries) as u64
    }
}

impl MapOfMaps for ArrayOfMaps {
    fn check_entry(&self, key: &[u8], flags: u64) -> OpResult {
        if flags != 0 {
            return Err(Errno::EINVAL);
        }
        self.entry(key)?.map(|_| ()).ok_or(Errno::E2BIG)
    }

    fn set_inner(&self, key: &[u8], inner: &Map, _flags: u64, _slot: u32) -> OpResult {
        let entry = self.entry(key)?.ok_or(Errno::E2BIG)?;
        // AcqRel: releases the inner map to lookups, and acquires the old one, which is dropped.
        retire(&self.domain, entry.swap(inner.clone().into_raw().cast_mut(), Ordering::AcqRel));
        Ok(())
    }

    fn inner(&self, key: &[u8]) -> OpResult<Map> {
        let entry = self.entry(key)?.ok_or(Errno::ENOENT)?;
        // Acquire pairs with the release in `set_inner`.
        let inner = entry.load(Ordering::Acquire);
        // SAFETY: null, or a map kept alive by the entry for at least as long as the guard the caller is inside.
        unsafe { Map::borrow_raw(inner) }.ok_or(Errno::ENOENT)
    }
}

impl Drop for ArrayOfMaps {
    fn drop(&mut self) {
        // Dropping a map may run deferred callbacks, which may panic.
        let mut finish = Finish::default();
        for entry in self.entries.iter() {
            // Relaxed: no other thread has the map.
            let old = entry.load(Ordering::Relaxed);
            if !old.is_null() {
                // SAFETY: the entry's own reference; no program uses a map that is being dropped.
                finish.step(|| drop(unsafe { Map::from_raw(old) }));
            }
        }
    }
}

/// A hash of maps: a hash whose 8-byte values are map pointers.
#[derive(Debug)]
pub(crate) struct HashOfMaps {
    hash: HashMap,
    key_size: usize,
    domain: Arc<Domain>,
    /// Held by host threads that change entries, so that each old reference is dropped once.
    changing: Mutex<()>,
}

/// Bytes of a value of the inner hash: an address.
const WORD_BYTES: u32 = u64::BITS / 8;

/// The definition of the hash that stores the pointers.
fn hash_def(def: &MapDef) -> MapDef {
    let mut hash = MapDef::new(&def.name, MapType::Hash, def.key_size, WORD_BYTES, def.max_entries);
    hash.flags = def.flags;
    hash
}

impl HashOfMaps {
    pub(crate) fn memory_needed(def: &MapDef, slots: u32) -> u64 {
        HashMap::memory_needed(&hash_def(def), slots)
    }

    pub(crate) fn new(def: &MapDef, domain: &Arc<Domain>, seed: Option<u64>) -> OpResult<Self> {
        Ok(Self {
            hash: HashMap::new(&hash_def(def), domain, seed, None)?,
            key_size: def.key_size as usize,
            domain: Arc::clone(domain),
            changing: Mutex::new(()),
        })
    }

    fn get<K: Key>(&self, key: &K) -> *const Inner {
        self.hash
            .first_word(key)
            .map_or(std::ptr::null(), |word| std::ptr::with_exposed_provenance(crate::num::index(word)))
    }

    fn get_host(&self, key: &[u8]) -> *const Inner {
        with_key!(self.key_size, K => self.get(&K::from_host(key)))
    }
}

/// The program's lookup: the inner map's pointer, or null.
///
/// # Safety
/// See [`LookupFn`]; the map must be a hash of maps whose key size is `K`'s.
unsafe extern "C" fn lookup_hash<K: Key>(map: *const MapHeader, key: *const u8, _slot: u32) -> *mut u8 {
    // SAFETY: a live header (contract).
    let imp = unsafe { (*map).imp };
    // SAFETY: the header of a hash of maps, whose implementation lives as long (contract).
    let map = unsafe { &*imp.cast::<HashOfMaps>() };
    // SAFETY: readable for the key size (contract).
    let key = unsafe { K::read(key, map.key_size) };
    map.get(&key).cast_mut().cast()
}

impl MapOps for HashOfMaps {
    fn as_any(&self) -> &dyn std::any::Any {
        self
    }

    fn lookup_fn(&self) -> LookupFn {
        with_key!(self.key_size, K => lookup_hash::<K>)
    }

    fn host_value_size(&self) -> usize {
        ID_SIZE
    }

    /// Copies the inner map's number.
    fn lookup(&self, key: &[u8], out: &mut [u8], _flags: u64, _slot: u32) -> OpResult {
        out.copy_from_slice(&self.inner(key)?.id().to_ne_bytes());
        Ok(())
    }

    /// In the kernel the value is a map's descriptor; here maps are set with [`Map::set_inner`].
    fn update(&self, _key: &[u8], _value: &[u8], _flags: u64, _slot: u32) -> OpResult {
        Err(Errno::EINVAL)
    }

    fn delete(&self, key: &[u8], slot: u32) -> OpResult {
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let old = self.get_host(key);
        self.hash.delete(key, slot)?;
        retire(&self.domain, old);
        Ok(())
    }

    fn next_key(&self, key: Option<&[u8]>, out: &mut [u8]) -> OpResult {
        self.hash.next_key(key, out)
    }

    fn next_at(&self, cursor: &mut Cursor, key: &mut [u8], value: &mut [u8], slot: u32) -> OpResult {
        let mut word = [0; size_of::<u64>()];
        self.hash.next_at(cursor, key, &mut word, slot)?;
        let inner: *const Inner = std::ptr::with_exposed_provenance(crate::num::index(u64::from_ne_bytes(word)));
        // SAFETY: a word of this map is 0 or an `Inner` that its entry keeps alive for a grace period beyond its
        // removal; the caller is inside a guard.
        let id = unsafe { inner.as_ref() }.map_or(0, |inner| inner.id);
        value.copy_from_slice(&id.to_ne_bytes());
        Ok(())
    }

    fn has_batch(&self) -> bool {
        true
    }

    fn len(&self) -> u64 {
        self.hash.len()
    }

    fn memory_usage(&self) -> u64 {
        self.hash.memory_usage()
    }
}

impl MapOfMaps for HashOfMaps {
    fn set_inner(&self, key: &[u8], inner: &Map, flags: u64, slot: u32) -> OpResult {
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let old = self.get_host(key);
        let new = inner.clone().into_raw();
        let word = new.expose_provenance() as u64;
        let done = self.hash.update(key, &word.to_ne_bytes(), flags, slot);
        // The entry's old reference, or the new one that did not get in (which no lookup has seen).
        retire(&self.domain, if done.is_ok() { old } else { new });
        done
    }

    fn inner(&self, key: &[u8]) -> OpResult<Map> {
        // SAFETY: null, or a map kept alive by the entry for at least as long as the guard the caller is inside.
        unsafe { Map::borrow_raw(self.get_host(key)) }.ok_or(Errno::ENOENT)
    }
}

impl Drop for HashOfMaps {
    fn drop(&mut self) {
        let mut finish = Finish::default();
        let mut cursor = Cursor::default();
        let (mut key, mut word) = (vec![0; self.key_size], [0; size_of::<u64>()]);
        // No other thread has the map, so no slot is needed to read it.
        while self.hash.next_at(&mut cursor, &mut key, &mut word, 0).is_ok() {
            let old: *const Inner = std::ptr::with_exposed_provenance(crate::num::index(u64::from_ne_bytes(word)));
            // SAFETY: the entry's own reference; no program uses a map that is being dropped.
            finish.step(|| drop(unsafe { Map::from_raw(old) }));
        }
    }
}
