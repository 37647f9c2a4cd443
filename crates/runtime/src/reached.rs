//! What an interpreted run has been handed on its way: map values, ring-buffer records, inner maps, callback arguments.
//!
//! Problem: an interpreted program need not be verified, so every address that it gives back must be one that it was given, used in a way it
//! may be used, and not longer than it lasts. Approach: a list of extents with their rights.
//!
//! Invariant: each extent is memory that stays mapped and is accessed by atomics only (map values, records) until it is removed or the
//! run ends.

use bpf_maps::{MapDef, flags};

/// Memory that a program may use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Extent {
    start: u64,
    len: u64,
    read: bool,
    write: bool,
    /// The address of the spin lock in it, which programs do not write to.
    lock: Option<u64>,
}

impl Extent {
    fn covers(&self, addr: u64, len: u64, write: bool) -> bool {
        let inside = addr >= self.start && len <= self.len && addr - self.start <= self.len - len;
        let locked = |lock: u64| write && addr < lock + 4 && lock < addr + len;
        inside && (if write { self.write } else { self.read }) && !self.lock.is_some_and(locked)
    }
}

/// All that one run has been given. `'p`: as long as the maps live.
#[derive(Debug, Default)]
pub(crate) struct Reached<'p> {
    memory: Vec<Extent>,
    /// Records reserved, by address.
    records: Vec<u64>,
    /// Inner maps found, by address.
    inner: Vec<(u64, &'p MapDef)>,
    /// Records of user ring buffers whose callbacks are running, innermost last.
    dynptrs: Vec<u64>,
}

impl<'p> Reached<'p> {
    fn add(&mut self, extent: Extent) {
        if !self.memory.contains(&extent) {
            self.memory.push(extent);
        }
    }

    /// A value (or, for `len` beyond its size, values) of a map, with the rights that programs have to it.
    pub(crate) fn add_value(&mut self, start: u64, len: u64, def: &MapDef) {
        let (read, write) = (def.flags & flags::WRONLY_PROG == 0, def.flags & flags::RDONLY_PROG == 0);
        self.add(Extent { start, len, read, write, lock: def.spin_lock.map(|at| start + u64::from(at)) });
    }

    /// Memory that a host function returned, and that stays for the run.
    pub(crate) fn add_returned(&mut self, start: u64, len: u64, write: bool) {
        self.add(Extent { start, len, read: true, write, lock: None });
    }

    /// A record that was reserved.
    pub(crate) fn add_record(&mut self, start: u64, len: u64) {
        self.records.push(start);
        self.memory.push(Extent { start, len, read: true, write: true, lock: None });
    }

    /// Takes a record back; `false` if there is none at this address.
    pub(crate) fn take_record(&mut self, start: u64) -> bool {
        let Some(i) = self.records.iter().rposition(|r| *r == start) else { return false };
        self.records.swap_remove(i);
        self.memory.retain(|e| e.start != start);
        true
    }

    /// The key that a callback is given, until [`Reached::take_key`].
    pub(crate) fn add_key(&mut self, start: u64, len: u64) {
        self.memory.push(Extent { start, len, read: true, write: false, lock: None });
    }

    /// The callback has returned.
    pub(crate) fn take_key(&mut self, start: u64) {
        if let Some(i) = self.memory.iter().rposition(|e| e.start == start && !e.write) {
            self.memory.remove(i);
        }
    }

    /// A map that a look-up in a map of maps has found.
    pub(crate) fn add_inner(&mut self, address: u64, def: &'p MapDef) {
        if self.inner(address).is_none() {
            self.inner.push((address, def));
        }
    }

    /// The inner map at this address.
    pub(crate) fn inner(&self, address: u64) -> Option<&'p MapDef> {
        self.inner.iter().find(|m| m.0 == address).map(|m| m.1)
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

    /// Whether the spin lock of a map value is at this address.
    pub(crate) fn is_lock(&self, address: u64) -> bool {
        self.memory.iter().any(|e| e.lock == Some(address))
    }

    /// Whether the program may access these bytes.
    pub(crate) fn covers(&self, addr: u64, len: u64, write: bool) -> bool {
        self.memory.iter().any(|e| e.covers(addr, len, write))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bpf_maps::MapType;

    #[test]
    fn rights_and_ends_are_kept() {
        let mut reached = Reached::default();
        let mut def = MapDef::new("m", MapType::Hash, 4, 16, 1);
        def.spin_lock = Some(4);
        reached.add_value(0x1000, 16, &def);
        assert!(
            reached.covers(0x1000, 4, true) && reached.covers(0x1008, 8, true) && reached.covers(0x1000, 16, false)
        );
        assert!(!reached.covers(0x1000, 8, true) && !reached.covers(0x1006, 4, true), "the lock is not written");
        assert!(!reached.covers(0xfff, 1, false) && !reached.covers(0x1010, 1, false));
        assert!(!reached.covers(0x1008, u64::MAX, false) && !reached.covers(u64::MAX, 8, false));
        assert!(reached.is_lock(0x1004) && !reached.is_lock(0x1000));
        reached.add_value(0x2000, 16, &MapDef::new("r", MapType::Hash, 4, 16, 1).with_flags(flags::RDONLY_PROG));
        reached.add_value(0x3000, 16, &MapDef::new("w", MapType::Hash, 4, 16, 1).with_flags(flags::WRONLY_PROG));
        assert!(reached.covers(0x2000, 1, false) && !reached.covers(0x2000, 1, true));
        assert!(!reached.covers(0x3000, 1, false) && reached.covers(0x3000, 1, true));
    }

    #[test]
    fn what_was_lent_is_taken_back() {
        let mut reached = Reached::default();
        reached.add_record(0x1000, 8);
        reached.add_key(0x2000, 4);
        assert!(
            reached.covers(0x1000, 8, true) && reached.covers(0x2000, 4, false) && !reached.covers(0x2000, 4, true)
        );
        reached.take_key(0x2000);
        assert!(!reached.covers(0x2000, 4, false));
        assert!(reached.take_record(0x1000) && !reached.take_record(0x1000));
        assert!(!reached.covers(0x1000, 8, false));
    }
}
