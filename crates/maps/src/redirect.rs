//! Redirect maps: network devices, CPUs and AF_XDP sockets, the targets of `bpf_redirect_map`.
//!
//! Problem: in the kernel an entry is a device, a thread or a socket, made from the number that the host writes. Here
//! no packets are sent. Approach: an entry is that number, and the host decides what the number means; a run reports
//! which entry the program chose. A value has at most eight bytes, the entry's number and the number of the program
//! that the kernel would run there. Therefore it is one word and is never read half old and half new.
//!
//! Sockets that programs look up (`SOCKMAP`, [`crate::socket`]) are stored in this way too.
//!
//! Device, CPU and socket maps are arrays in which an entry may be missing ([`IndexMap`]); a device hash is a hash of
//! such values ([`DeviceHash`]). Only the host changes them: programs look entries up (devices and sockets) or name
//! them in a redirection.
//!
//! Invariant: a word never moves, so a program may read an entry that was removed or replaced meanwhile.
//! Source: `kernel/bpf/devmap.c`, `kernel/bpf/cpumap.c`, `net/xdp/xskmap.c` (Linux 6.18).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bpf_quiesce::Domain;

use crate::def::{MapDef, MapType, update};
use crate::errno::{Errno, OpResult};
use crate::hash::HashMap;
use crate::hash::key::{Fixed, Key};
use crate::header::{LookupFn, MapHeader};
use crate::mem::Table;
use crate::ops::{Cursor, MapOps};
use crate::socket::lookup_nothing;

/// Bytes of a value with a program's number.
const WITH_PROGRAM: usize = 8;

/// The largest length of a CPU's queue, in packets.
const MAX_QUEUE: u32 = 16384;

/// An entry, as the host wrote it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RedirectEntry {
    /// The device's interface index, the length of the CPU's queue, or the socket's number.
    pub number: u32,
    /// The number of the program to run there; 0 for none.
    pub program: u32,
}

impl RedirectEntry {
    fn of(word: u64) -> Self {
        let [n0, n1, n2, n3, p0, p1, p2, p3] = word.to_ne_bytes();
        Self { number: u32::from_ne_bytes([n0, n1, n2, n3]), program: u32::from_ne_bytes([p0, p1, p2, p3]) }
    }

    /// Whether the kernel would take the program number for a descriptor; it is -1 or 0 where there is none.
    fn has_program(self) -> bool {
        self.program.cast_signed() > 0
    }
}

/// The word of a value of four or eight bytes.
fn word(value: &[u8]) -> OpResult<u64> {
    let mut bytes = [0; WITH_PROGRAM];
    bytes.get_mut(..value.len()).ok_or(Errno::EINVAL)?.copy_from_slice(value);
    Ok(u64::from_ne_bytes(bytes))
}

fn index(key: &[u8]) -> OpResult<u32> {
    key.try_into().map(u32::from_ne_bytes).map_err(|_| Errno::EINVAL)
}

/// Words of an entry in an [`IndexMap`]: whether it is present, and its word.
const PLACE: usize = 2;

/// Devices, CPUs or sockets by index.
#[derive(Debug)]
pub(crate) struct IndexMap {
    map_type: MapType,
    max_entries: u32,
    value_size: usize,
    places: Table<AtomicU64>,
    /// Number of entries present.
    present: AtomicU64,
}

impl IndexMap {
    /// Bytes a map of this definition maps.
    pub(crate) fn memory_needed(def: &MapDef) -> u64 {
        u64::from(def.max_entries) * (PLACE * size_of::<u64>()) as u64
    }

    pub(crate) fn new(def: &MapDef) -> OpResult<Self> {
        let words = (def.max_entries as usize).checked_mul(PLACE).ok_or(Errno::ENOMEM)?;
        Ok(Self {
            map_type: def.map_type,
            max_entries: def.max_entries,
            value_size: def.value_size as usize,
            places: Table::zeroed(words)?,
            present: AtomicU64::new(0),
        })
    }

    /// The two words of an entry: whether it is present, and its value.
    fn place(&self, index: u32) -> Option<(&AtomicU64, &AtomicU64)> {
        let start = index as usize * PLACE;
        match self.places.get(start..start + PLACE)? {
            [there, word] => Some((there, word)),
            _ => None,
        }
    }

    /// The value word of an entry that is present.
    fn word(&self, index: u32) -> Option<&AtomicU64> {
        let (there, word) = self.place(index)?;
        // Acquire pairs with the release in `update`: the word then holds the entry's value.
        (there.load(Ordering::Acquire) != 0).then_some(word)
    }

    /// The entry with this index, if there is one.
    pub(crate) fn entry(&self, index: u32) -> Option<RedirectEntry> {
        Some(RedirectEntry::of(self.word(index)?.load(Ordering::Relaxed)))
    }

    /// Removes an entry and returns whether it was present.
    fn remove(&self, there: &AtomicU64) -> bool {
        let was = there.swap(0, Ordering::AcqRel) != 0;
        if was {
            self.present.fetch_sub(1, Ordering::Relaxed);
        }
        was
    }

    /// Checks a new entry as the kernel does for this type. `false` if the value asks for the removal of the old
    /// entry.
    fn is_entry(&self, entry: RedirectEntry) -> OpResult<bool> {
        match self.map_type {
            MapType::DevMap if entry.number == 0 && entry.has_program() => Err(Errno::EINVAL),
            MapType::CpuMap if entry.number > MAX_QUEUE => Err(Errno::EOVERFLOW),
            MapType::DevMap | MapType::CpuMap => Ok(entry.number != 0),
            _sockets => Ok(true),
        }
    }

    /// Sets the word of an entry.
    fn set(&self, index: u32, new: u64, flags: u64) -> OpResult {
        if flags > update::EXIST {
            return Err(Errno::EINVAL);
        }
        let (there, word) = self.place(index).ok_or(Errno::E2BIG)?;
        let sockets = matches!(self.map_type, MapType::XskMap | MapType::SockMap);
        // Entries of devices and CPUs always exist, as elements of an array do; a socket's entry exists once it is
        // set.
        if flags == update::NOEXIST && (!sockets || there.load(Ordering::Relaxed) != 0) {
            return Err(Errno::EEXIST);
        }
        if flags == update::EXIST && sockets && there.load(Ordering::Relaxed) == 0 {
            return Err(Errno::ENOENT);
        }
        if !self.is_entry(RedirectEntry::of(new))? {
            self.remove(there);
            return Ok(());
        }
        word.store(new, Ordering::Relaxed);
        // Release pairs with the acquire in `IndexMap::word`.
        if there.swap(1, Ordering::AcqRel) == 0 {
            self.present.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    fn copy_out(&self, word: &AtomicU64, out: &mut [u8]) {
        out.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes()[..self.value_size]);
    }
}

/// A program's lookup: the address of an entry's value, or null.
///
/// # Safety
/// See [`LookupFn`]; the map must be an [`IndexMap`].
unsafe extern "C" fn lookup_index(map: *const MapHeader, key: *const u8, _slot: u32) -> *mut u8 {
    // SAFETY: a live header (contract).
    let imp = unsafe { (*map).imp };
    // SAFETY: the header of an index map, whose implementation lives as long (contract).
    let map = unsafe { &*imp.cast::<IndexMap>() };
    // SAFETY: the key has 4 readable bytes: `MapDef::validate` admits no others (contract).
    let index = unsafe { key.cast::<u32>().read_unaligned() };
    map.word(index).map_or(std::ptr::null_mut(), |word| word.as_ptr().cast())
}

impl MapOps for IndexMap {
    fn as_any(&self) -> &dyn std::any::Any {
        self
    }

    fn lookup_fn(&self) -> LookupFn {
        // A program's look-up in a map of sockets returns no memory of the map.
        if self.map_type == MapType::SockMap { lookup_nothing } else { lookup_index }
    }

    fn host_value_size(&self) -> usize {
        self.value_size
    }

    fn lookup(&self, key: &[u8], out: &mut [u8], _flags: u64, _slot: u32) -> OpResult {
        self.copy_out(self.word(index(key)?).ok_or(Errno::ENOENT)?, out);
        Ok(())
    }

    fn update(&self, key: &[u8], value: &[u8], flags: u64, _slot: u32) -> OpResult {
        let (index, new) = (index(key)?, word(value)?);
        self.set(index, new, flags)
    }

    fn delete(&self, key: &[u8], _slot: u32) -> OpResult {
        let (there, _) = self.place(index(key)?).ok_or(Errno::EINVAL)?;
        match self.remove(there) {
            // Deleting an absent entry is an error only in maps of sockets that programs look up.
            false if self.map_type == MapType::SockMap => Err(Errno::EINVAL),
            _ => Ok(()),
        }
    }

    unsafe fn program_delete(&self, key: *const u8, slot: u32) -> OpResult {
        if self.map_type != MapType::SockMap {
            return Err(Errno::EOPNOTSUPP);
        }
        // SAFETY: the key has 4 readable bytes (contract): `MapDef::validate` admits no others.
        self.delete(&unsafe { key.cast::<[u8; 4]>().read() }, slot)
    }

    fn socket(&self, key: &[u8], _slot: u32) -> OpResult<u64> {
        if self.map_type != MapType::SockMap {
            return Err(Errno::EOPNOTSUPP);
        }
        self.word(index(key)?).map(|word| word.load(Ordering::Relaxed)).ok_or(Errno::ENOENT)
    }

    fn set_socket(&self, key: &[u8], number: u64, flags: u64, _slot: u32) -> OpResult {
        if self.map_type != MapType::SockMap {
            return Err(Errno::EOPNOTSUPP);
        }
        self.set(index(key)?, number, flags)
    }

    /// Iterates over every index, whether its entry is present or not, as in the kernel.
    fn next_key(&self, key: Option<&[u8]>, out: &mut [u8]) -> OpResult {
        let current = key.map(index).transpose()?.filter(|&current| current < self.max_entries);
        let next = current.map_or(0, |current| current + 1);
        if next >= self.max_entries {
            return Err(Errno::ENOENT);
        }
        out.copy_from_slice(&next.to_ne_bytes());
        Ok(())
    }

    fn next_at(&self, cursor: &mut Cursor, key: &mut [u8], value: &mut [u8], _slot: u32) -> OpResult {
        let from = u32::try_from(cursor.position).map_err(|_| Errno::ENOENT)?;
        let (index, word) =
            (from..self.max_entries).find_map(|index| Some((index, self.word(index)?))).ok_or(Errno::ENOENT)?;
        key.copy_from_slice(&index.to_ne_bytes());
        self.copy_out(word, value);
        cursor.position = u64::from(index) + 1;
        Ok(())
    }

    fn len(&self) -> u64 {
        self.present.load(Ordering::Relaxed)
    }

    fn memory_usage(&self) -> u64 {
        size_of_val(&*self.places) as u64
    }
}

/// Devices by a number that the host chooses: a hash of words.
#[derive(Debug)]
pub(crate) struct DeviceHash(HashMap);

/// The definition of the hash that stores the words.
fn hash_def(def: &MapDef) -> MapDef {
    MapDef::new(&def.name, MapType::Hash, def.key_size, def.value_size, def.max_entries)
}

impl DeviceHash {
    pub(crate) fn memory_needed(def: &MapDef, slots: u32) -> u64 {
        HashMap::memory_needed(&hash_def(def), slots)
    }

    pub(crate) fn new(def: &MapDef, domain: &Arc<Domain>, seed: Option<u64>) -> OpResult<Self> {
        HashMap::new(&hash_def(def), domain, seed, None).map(Self)
    }

    /// The entry with this key, if there is one.
    pub(crate) fn entry(&self, key: u32) -> Option<RedirectEntry> {
        // The key is the device number's four bytes in host order, as in any hash.
        self.0.first_word(&Fixed::<4, 1>::from_host(&key.to_ne_bytes())).map(RedirectEntry::of)
    }
}

impl MapOps for DeviceHash {
    fn as_any(&self) -> &dyn std::any::Any {
        self
    }

    fn lookup_fn(&self) -> LookupFn {
        self.0.lookup_fn()
    }

    /// The address that the hash's lookup function expects.
    fn address(&self) -> *const () {
        self.0.address()
    }

    fn host_value_size(&self) -> usize {
        self.0.host_value_size()
    }

    fn lookup(&self, key: &[u8], out: &mut [u8], flags: u64, slot: u32) -> OpResult {
        self.0.lookup(key, out, flags, slot)
    }

    /// Device number 0 is refused. As in the kernel, `EXIST` does not require that the entry exists.
    fn update(&self, key: &[u8], value: &[u8], flags: u64, slot: u32) -> OpResult {
        if flags > update::EXIST || RedirectEntry::of(word(value)?).number == 0 {
            return Err(Errno::EINVAL);
        }
        self.0.update(key, value, flags & update::NOEXIST, slot)
    }

    fn delete(&self, key: &[u8], slot: u32) -> OpResult {
        self.0.delete(key, slot)
    }

    fn next_key(&self, key: Option<&[u8]>, out: &mut [u8]) -> OpResult {
        self.0.next_key(key, out)
    }

    fn next_at(&self, cursor: &mut Cursor, key: &mut [u8], value: &mut [u8], slot: u32) -> OpResult {
        self.0.next_at(cursor, key, value, slot)
    }

    fn len(&self) -> u64 {
        self.0.len()
    }

    fn memory_usage(&self) -> u64 {
        self.0.memory_usage()
    }
}
