//! Memory that an interpreted run has been granted by helpers: map values, ring-buffer records, inner maps, callback
//! arguments.
//!
//! Problem: an interpreted program need not be verified, so every address that it uses must be in memory that it was
//! granted, within the rights and the lifetime of that memory. A run may be granted every value of a large map, and
//! each access looks the address up. Approach: extents with their rights, sorted by first address. Extents are
//! disjoint, so only the last one that begins at or before an address can contain it. Extents that overlap others (an
//! array and a value of it) are in a short list beside it.
//!
//! Invariants: each extent is memory that stays mapped and is accessed by atomics only (map values, records) until it
//! is removed or the run ends. Two extents of `apart` have no byte in common. The length of `others` is bounded by the
//! arrays that a program names, and does not grow with its steps, unless a host function returns memory that overlaps
//! other extents.

use bpf_maps::MapDef;
use bpf_uapi::{OwnedField, OwnedKind};
use bpf_verifier::SOCKET_BYTES;
use std::collections::{BTreeMap, BTreeSet};

/// Memory that a program may use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Extent<'p> {
    start: u64,
    len: u64,
    read: bool,
    write: bool,
    locks: Option<Locks>,
    /// Whether the memory is a reserved record.
    record: bool,
    /// Whether the run itself keeps the memory, also while it sleeps.
    lasts: bool,
    /// From one value to the next, if it is of values, and the fields of each that own objects.
    owned: (u64, &'p [OwnedField]),
}

/// The spin locks in an extent, four bytes each, which programs do not write to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Locks {
    /// The offset of the first lock.
    first: u64,
    /// Bytes from one lock to the next.
    stride: u64,
    /// Whether the locks are resilient.
    resilient: bool,
}

/// The first word of a dynptr: where its memory is.
pub(crate) fn first_word(content: [u8; 16]) -> u64 {
    let [a, b, c, d, e, f, g, h, ..] = content;
    u64::from_ne_bytes([a, b, c, d, e, f, g, h])
}

impl Extent<'_> {
    /// Whether the extent may be the slice of a dynptr, as [`Granted::add_returned`] adds it.
    fn is_slice(&self) -> bool {
        !self.record && self.locks.is_none() && !self.lasts && self.owned.1.is_empty()
    }

    fn covers(&self, addr: u64, len: u64, write: bool) -> bool {
        let inside = addr >= self.start && len <= self.len && addr - self.start <= self.len - len;
        inside && (if write { self.write && !self.touches_lock(addr - self.start, len) } else { self.read })
    }

    /// Whether a lock is among these bytes, which are inside.
    fn touches_lock(&self, at: u64, len: u64) -> bool {
        let Some(Locks { first, stride, .. }) = self.locks else { return false };
        // The first one that ends behind `at`.
        let lock = first + at.saturating_sub(first + 3).div_ceil(stride) * stride;
        len != 0 && lock < at + len
    }

    /// Whether a pointer to an object begins at this address.
    fn has_kptr_at(&self, addr: u64) -> bool {
        let ((stride, fields), Some(at)) = (self.owned, addr.checked_sub(self.start)) else { return false };
        let kptr = |field: &OwnedField| {
            matches!(field.kind, OwnedKind::Kptr { .. }) && u64::from(field.offset) == at % stride.max(1)
        };
        at < self.len && fields.iter().any(kptr)
    }

    /// Whether a lock of this kind begins at this address.
    fn has_lock_at(&self, addr: u64, kind: bool) -> bool {
        let (Some(Locks { first, stride, resilient }), Some(at)) = (self.locks, addr.checked_sub(self.start)) else {
            return false;
        };
        resilient == kind && at < self.len && at.checked_sub(first).is_some_and(|behind| behind % stride == 0)
    }

    fn overlaps(&self, other: &Extent) -> bool {
        self.start < other.start.saturating_add(other.len) && other.start < self.start.saturating_add(self.len)
    }
}

/// Memory that one run has been given. `'p`: as long as the maps live.
#[derive(Debug, Default)]
pub(crate) struct Granted<'p> {
    /// Disjoint extents, by first address.
    apart: BTreeMap<u64, Extent<'p>>,
    /// Extents that overlap extents of `apart`.
    others: Vec<Extent<'p>>,
    /// The keys that callbacks are given, innermost last.
    keys: Vec<Extent<'p>>,
    /// Inner maps found, by address.
    inner: BTreeMap<u64, &'p MapDef>,
    /// Sockets, and whether each was looked up and is still to be given back.
    sockets: Vec<(u64, bool)>,
    /// Records of user ring buffers whose callbacks are running, innermost last.
    dynptrs: Vec<u64>,
    /// Iterators on the stack that lead to other memory, made since the run last slept: of sleepable programs.
    locals: BTreeSet<u64>,
    /// The content of each dynptr on the stack that was made since the run last slept.
    made: BTreeMap<u64, [u8; 16]>,
    /// The slices of dynptrs: the first word of the dynptr, and the slice's first address and length.
    slices: Vec<(u64, u64, u64)>,
    /// Whether some value holds objects.
    kptrs: bool,
}

impl<'p> Granted<'p> {
    fn add(&mut self, extent: Extent<'p>) {
        self.kptrs |= !extent.owned.1.is_empty();
        if self.others.contains(&extent) || extent.len == 0 && !extent.record {
            return;
        }
        if extent.len == 0 {
            // Only to be given back.
            self.others.push(extent);
            return;
        }
        let before = self.apart.range(..=extent.start).next_back();
        let after = self.apart.range(extent.start..).next();
        match before.into_iter().chain(after).find(|(_, known)| known.overlaps(&extent)) {
            Some((_, known)) if *known == extent => {}
            Some(_) => self.others.push(extent),
            None => {
                self.apart.insert(extent.start, extent);
            }
        }
    }

    /// The extents that may cover this address.
    fn around(&self, addr: u64) -> impl Iterator<Item = &Extent<'p>> {
        let before = self.apart.range(..=addr).next_back();
        before.into_iter().map(|(_, extent)| extent).chain(&self.others).chain(&self.keys)
    }

    /// A value of a map, with the rights that programs have to it.
    pub(crate) fn add_value(&mut self, start: u64, len: u64, def: &'p MapDef) {
        self.add(values(start, len, len, def));
    }

    /// A value of an array that the program refers to.
    pub(crate) fn add_lasting_value(&mut self, start: u64, len: u64, def: &'p MapDef) {
        self.add(Extent { lasts: true, ..values(start, len, len, def) });
    }

    /// All values of an array that the program refers to.
    pub(crate) fn add_array(&mut self, start: u64, len: u64, stride: u64, def: &'p MapDef) {
        // Never among those apart: its values may be added one by one too.
        let extent = Extent { lasts: true, ..values(start, len, stride, def) };
        self.kptrs |= !extent.owned.1.is_empty();
        if !self.others.contains(&extent) {
            self.others.push(extent);
        }
    }

    /// Memory that a host function returned, and that stays for the run.
    pub(crate) fn add_returned(&mut self, start: u64, len: u64, write: bool) {
        self.add(Extent { start, len, read: true, write, locks: None, record: false, lasts: false, owned: (0, &[]) });
    }

    /// An object of the program's, with its lock, if it has one, and whether that is a resilient one.
    pub(crate) fn add_object(&mut self, start: u64, len: u64, lock: Option<(u32, bool)>) {
        let locks = lock.map(|(at, resilient)| Locks { first: at.into(), stride: len.max(1), resilient });
        self.add(Extent { start, len, read: true, write: true, locks, record: false, lasts: false, owned: (0, &[]) });
    }

    /// Grants the memory of a slice of the dynptr with this first word, until the dynptr is ended or the run is over.
    /// Only the verifier proves the shorter lifetime of a slice of a packet.
    pub(crate) fn add_slice(&mut self, start: u64, len: u64, write: bool, word: u64) {
        self.add_returned(start, len, write);
        if !self.slices.contains(&(word, start, len)) {
            self.slices.push((word, start, len));
        }
    }

    /// A record that was reserved.
    pub(crate) fn add_record(&mut self, start: u64, len: u64) {
        self.add(Extent {
            start,
            len,
            read: true,
            write: true,
            locks: None,
            record: true,
            lasts: false,
            owned: (0, &[]),
        });
    }

    /// Takes a record back; `false` if there is none at this address.
    pub(crate) fn take_record(&mut self, start: u64) -> bool {
        if self.apart.get(&start).is_some_and(|extent| extent.record) {
            return self.apart.remove(&start).is_some();
        }
        let other = self.others.iter().position(|extent| extent.record && extent.start == start);
        other.map(|i| self.others.swap_remove(i)).is_some()
    }

    /// The key that a callback is given, until [`Granted::take_key`].
    pub(crate) fn add_key(&mut self, start: u64, len: u64) {
        self.keys.push(Extent {
            start,
            len,
            read: true,
            write: false,
            locks: None,
            record: false,
            lasts: false,
            owned: (0, &[]),
        });
    }

    /// The callback has returned.
    pub(crate) fn take_key(&mut self, start: u64) {
        if let Some(i) = self.keys.iter().rposition(|key| key.start == start) {
            self.keys.remove(i);
        }
    }

    /// A socket, by the context or a function; `owed`: by a look-up.
    pub(crate) fn add_socket(&mut self, address: u64, owed: bool) {
        self.add_returned(address, SOCKET_BYTES.into(), false);
        if owed || !self.sockets.contains(&(address, false)) {
            self.sockets.push((address, owed));
        }
    }

    /// Whether the run has this socket. With `release`: whether it has looked it up and still has it; now it has not.
    pub(crate) fn has_socket(&mut self, address: u64, release: bool) -> bool {
        let found = self.sockets.iter().position(|(at, owed)| *at == address && (*owed || !release));
        if let (Some(i), true) = (found, release) {
            self.sockets.swap_remove(i);
        }
        found.is_some()
    }

    /// A map that a look-up in a map of maps has found.
    pub(crate) fn add_inner(&mut self, address: u64, def: &'p MapDef) {
        self.inner.insert(address, def);
    }

    /// The inner map at this address.
    pub(crate) fn inner(&self, address: u64) -> Option<&'p MapDef> {
        self.inner.get(&address).copied()
    }

    /// Says that the run keeps all that it has been granted so far, also while it sleeps.
    pub(crate) fn keep(&mut self) {
        self.apart.values_mut().chain(&mut self.others).for_each(|extent| extent.lasts = true);
    }

    /// Ends the grants that do not outlast a call that sleeps: memory and maps that others may free meanwhile.
    pub(crate) fn sleep(&mut self) {
        self.apart.retain(|_, extent| extent.lasts);
        self.others.retain(|extent| extent.lasts);
        self.inner.clear();
        self.locals.clear();
        self.made.clear();
        self.slices.clear();
        let (apart, others) = (&self.apart, &self.others);
        let is_kept = |at: u64| apart.contains_key(&at) || others.iter().any(|extent| extent.start == at);
        self.sockets.retain(|(at, _)| is_kept(*at));
    }

    /// An object that leads to other memory is made on the stack.
    pub(crate) fn add_local(&mut self, at: u64) {
        self.locals.insert(at);
    }

    /// Whether an object was made there, and the run has not slept since.
    pub(crate) fn has_local(&self, at: u64) -> bool {
        self.locals.contains(&at)
    }

    /// A dynptr on the stack has this content.
    pub(crate) fn set_dynptr(&mut self, at: u64, content: [u8; 16]) {
        self.made.insert(at, content);
    }

    /// The content of the dynptr there, if one was made and the run has not slept since.
    pub(crate) fn dynptr(&self, at: u64) -> Option<[u8; 16]> {
        self.made.get(&at).copied()
    }

    /// The dynptr at `at`, whose first word is `word`, is ended: the run has no dynptr to its record, nor a slice of
    /// it. Clones have the same first word. The first word of dynptrs that lead nowhere is 0.
    pub(crate) fn end_dynptr(&mut self, at: u64, word: u64) {
        self.made.remove(&at);
        if word == 0 {
            return;
        }
        self.made.retain(|_, content| first_word(*content) != word);
        let (ended, kept) = core::mem::take(&mut self.slices).into_iter().partition(|(of, ..)| *of == word);
        self.slices = kept;
        let ended: Vec<(u64, u64, u64)> = ended;
        for (_, start, len) in ended {
            let is = |extent: &Extent<'_>| extent.start == start && extent.len == len && extent.is_slice();
            if self.apart.get(&start).is_some_and(is) {
                self.apart.remove(&start);
            }
            self.others.retain(|extent| !is(extent));
        }
    }

    /// A record of a user ring buffer is given to a callback.
    pub(crate) fn push_dynptr(&mut self, address: u64) {
        self.dynptrs.push(address);
    }

    /// The callback has returned.
    pub(crate) fn pop_dynptr(&mut self) {
        self.dynptrs.pop();
    }

    pub(crate) fn is_dynptr(&self, address: u64) -> bool {
        self.dynptrs.contains(&address)
    }

    /// Whether the lock of a map value is at this address, of this kind.
    pub(crate) fn is_lock(&self, address: u64, resilient: bool) -> bool {
        self.around(address).any(|extent| extent.has_lock_at(address, resilient))
    }

    /// Whether a pointer to an object lies at this address, in a map's value.
    pub(crate) fn is_kptr(&self, address: u64) -> bool {
        self.kptrs && self.around(address).any(|extent| extent.has_kptr_at(address))
    }

    /// Whether the program may access these bytes.
    pub(crate) fn covers(&self, addr: u64, len: u64, write: bool) -> bool {
        self.around(addr).any(|extent| extent.covers(addr, len, write))
    }
}

/// `len` bytes of values of a map, one every `stride` bytes.
fn values(start: u64, len: u64, stride: u64, def: &MapDef) -> Extent<'_> {
    let (read, write) = def.program_rights();
    let resilient = def.resilient_lock;
    let locks = def.spin_lock.map(|at| Locks { first: at.into(), stride: stride.max(1), resilient });
    Extent { start, len, read, write, locks, record: false, lasts: false, owned: (stride, def.owned_fields()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bpf_maps::{MapType, flags};
    use bpf_uapi::OwnedType;

    #[test]
    fn rights_and_ends_are_kept() {
        let mut def = MapDef::new("m", MapType::Hash, 4, 16, 1);
        def.spin_lock = Some(4);
        let read_only = MapDef::new("r", MapType::Hash, 4, 16, 1).flags(flags::RDONLY_PROG);
        let write_only = MapDef::new("w", MapType::Hash, 4, 16, 1).flags(flags::WRONLY_PROG);
        let mut granted = Granted::default();
        granted.add_value(0x1000, 16, &def);
        assert!(
            granted.covers(0x1000, 4, true) && granted.covers(0x1008, 8, true) && granted.covers(0x1000, 16, false)
        );
        assert!(!granted.covers(0x1000, 8, true) && !granted.covers(0x1006, 4, true), "the lock is not written");
        assert!(!granted.covers(0xfff, 1, false) && !granted.covers(0x1010, 1, false));
        assert!(!granted.covers(0x1008, u64::MAX, false) && !granted.covers(u64::MAX, 8, false));
        assert!(granted.is_lock(0x1004, false) && !granted.is_lock(0x1004, true) && !granted.is_lock(0x1000, false));
        granted.add_value(0x2000, 16, &read_only);
        granted.add_value(0x3000, 16, &write_only);
        assert!(granted.covers(0x2000, 1, false) && !granted.covers(0x2000, 1, true));
        assert!(!granted.covers(0x3000, 1, false) && granted.covers(0x3000, 1, true));
    }

    #[test]
    fn grants_that_others_may_end_do_not_outlast_a_sleep() {
        let (hash, array) = (MapDef::new("h", MapType::Hash, 4, 16, 1), MapDef::new("a", MapType::Array, 4, 16, 2));
        let mut granted = Granted::default();
        granted.add_socket(0x100, false);
        granted.keep();
        granted.add_socket(0x200, false);
        granted.add_value(0x1000, 16, &hash);
        granted.add_value(0x1008, 16, &hash);
        granted.add_lasting_value(0x2000, 16, &array);
        granted.add_array(0x3000, 32, 16, &array);
        granted.add_returned(0x4000, 8, true);
        granted.add_inner(0x5000, &array);
        for round in 0..2 {
            for (at, lasts) in [(0x1000, false), (0x1010, false), (0x2000, true), (0x3010, true), (0x4000, false)] {
                assert_eq!(granted.covers(at, 8, true), lasts || round == 0, "{at:#x} in round {round}");
            }
            assert_eq!(granted.inner(0x5000).is_some(), round == 0);
            assert!(granted.has_socket(0x100, false));
            assert_eq!(granted.has_socket(0x200, false), round == 0);
            granted.sleep();
        }
    }

    #[test]
    fn pointers_to_objects_are_known() {
        let ty = |name: &str, size, fields| OwnedType { name: name.into(), size, fields, per_cpu: false };
        let kptr = OwnedField { offset: 8, kind: OwnedKind::Kptr { to: 1 } };
        let types = vec![ty("value", 24, vec![kptr]), ty("object", 8, Vec::new())];
        let mut def = MapDef::new("m", MapType::Array, 4, 24, 2);
        def.owned = Some(types.into());
        let mut granted = Granted::default();
        granted.add_value(0x1000, 24, &def);
        granted.add_array(0x2000, 48, 24, &def);
        for at in (0x0ff8..0x1030).chain(0x1ff8..0x2040) {
            assert_eq!(granted.is_kptr(at), [0x1008, 0x2008, 0x2020].contains(&at), "{at:#x}");
        }
    }

    #[test]
    fn no_lock_of_an_array_is_written() {
        let mut def = MapDef::new("m", MapType::Array, 4, 12, 3);
        def.spin_lock = Some(4);
        let mut granted = Granted::default();
        granted.add_array(0x1000, 48, 16, &def);
        granted.add_value(0x1010, 12, &def);
        for at in 0..48u64 {
            let in_lock = (4..8).contains(&(at % 16));
            assert_eq!(granted.covers(0x1000 + at, 1, true), !in_lock, "{at}");
            assert!(granted.covers(0x1000 + at, 1, false), "{at}");
            assert_eq!(granted.is_lock(0x1000 + at, false), at % 16 == 4, "{at}");
            // Longer writes, compared with their bytes.
            for len in 0..=48 - at {
                let bytes = (at..at + len).all(|at| !(4..8).contains(&(at % 16)));
                assert_eq!(granted.covers(0x1000 + at, len, true), bytes, "{at} {len}");
            }
        }
    }

    /// The list that is searched linearly stays short, however many values a run is granted.
    #[test]
    fn many_values_are_found_by_address() {
        let def = MapDef::new("m", MapType::Hash, 4, 16, 80_000);
        let locked = {
            let mut def = MapDef::new("a", MapType::Array, 4, 16, 1);
            def.spin_lock = Some(0);
            def
        };
        let mut granted = Granted::default();
        granted.add_array(0x10, 64, 16, &locked);
        for round in 0..2 {
            for i in 0..80_000u64 {
                // Backwards too: the order does not matter.
                let i = if round == 0 { i } else { 79_999 - i };
                granted.add_key(8, 4);
                granted.add_value(0x1000 + 24 * i, 16, &def);
                assert!(granted.covers(0x1000 + 24 * i + 8, 8, true) && !granted.covers(0x1000 + 24 * i + 9, 8, true));
                // One of those apart, the array and the key, whatever was given before.
                assert_eq!(granted.around(0x1000 + 24 * i + 8).count(), 3);
                granted.take_key(8);
            }
        }
        assert_eq!((granted.apart.len(), granted.others.len(), granted.keys.len()), (80_000, 1, 0));
    }

    #[test]
    fn extents_that_overlap_each_keep_their_rights() {
        let mut granted = Granted::default();
        granted.add_returned(0x1000, 16, false);
        granted.add_returned(0x1008, 16, true);
        granted.add_returned(0xff8, 64, false);
        granted.add_returned(0x1000, 16, false);
        assert!(granted.covers(0x1000, 16, false) && granted.covers(0xff8, 64, false));
        assert!(!granted.covers(0x1000, 8, true) && granted.covers(0x1008, 16, true));
        assert!(!granted.covers(0x1018, 8, true) && granted.covers(0x1018, 8, false));
        assert_eq!((granted.apart.len(), granted.others.len()), (1, 2));
    }

    #[test]
    fn clones_and_slices_end_with_the_record() {
        let content = |word: u64, size: u32| {
            let mut content = [0; 16];
            content[..8].copy_from_slice(&word.to_ne_bytes());
            content[8..12].copy_from_slice(&size.to_ne_bytes());
            content
        };
        let mut granted = Granted::default();
        granted.add_returned(0x1000, 8, false);
        for (at, word) in [(0x10, 0x1000), (0x20, 0x1000), (0x30, 0x2000)] {
            granted.set_dynptr(at, content(word, 64));
        }
        for (start, word) in [(0x1000, 0x1000), (0x1020, 0x1000), (0x1010, 0x1000), (0x2000, 0x2000)] {
            granted.add_slice(start, 32, true, word);
            granted.add_slice(start, 32, true, word);
        }
        assert!(granted.covers(0x1010, 8, true) && granted.covers(0x1038, 8, true));
        granted.end_dynptr(0x10, 0x1000);
        for (at, is) in [(0x10, false), (0x20, false), (0x30, true)] {
            assert_eq!(granted.dynptr(at).is_some(), is, "{at:#x}");
        }
        for (at, is) in [(0x1008, false), (0x1010, false), (0x1020, false), (0x1038, false), (0x2000, true)] {
            assert_eq!(granted.covers(at, 8, false), is, "{at:#x}");
        }
        assert!(granted.covers(0x1000, 8, false), "granted by another function");
        // Records for which there was no room.
        (0..2).for_each(|at| granted.set_dynptr(at, [0; 16]));
        granted.end_dynptr(0, 0);
        assert!(granted.dynptr(0).is_none() && granted.dynptr(1).is_some());
    }

    #[test]
    fn what_was_lent_is_taken_back() {
        let mut granted = Granted::default();
        granted.add_record(0x1000, 8);
        granted.add_key(0x2000, 4);
        assert!(
            granted.covers(0x1000, 8, true) && granted.covers(0x2000, 4, false) && !granted.covers(0x2000, 4, true)
        );
        granted.take_key(0x2000);
        assert!(!granted.covers(0x2000, 4, false));
        assert!(granted.take_record(0x1000) && !granted.take_record(0x1000));
        assert!(!granted.covers(0x1000, 8, false));
    }
}
