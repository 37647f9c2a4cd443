//! Limits and accounts of the memory that the objects of one engine, or of one plug-in, may reserve.
//!
//! Problem: each map has a limit, but the author of a program decides how many maps there are. In an engine with many
//! plug-ins, one must not take the memory meant for all. Approach: a domain has a limit and a sum of reserved bytes.
//! It may have accounts with limits and sums of their own, which count for the domain as well. Code that allocates a
//! size that an untrusted party chooses takes a [`Reservation`] first and keeps it as long as the memory. A
//! reservation that does not fit is refused before the allocation, with the number of bytes left. Named reservations
//! are listed, so that a host can ask which holder has reserved how much.
//!
//! Invariants: `used` is the sum of the live reservations, and exceeds `limit` only if the limit was lowered
//! meanwhile. Bytes used in an account are used in its parent too, except noted ones ([`Memory::note`]), which the
//! parent counts in another way. No reservation is given back under the lock of a list, because a forked child may
//! drop one while a thread of the parent holds that lock.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// A limit in bytes, and how many bytes are reserved of it.
#[derive(Debug)]
pub struct Memory {
    name: Box<str>,
    limit: AtomicU64,
    used: AtomicU64,
    /// The memory that this is an account of.
    parent: Option<Arc<Memory>>,
    lists: Mutex<Lists>,
}

#[derive(Debug, Default)]
struct Lists {
    taken: Vec<Weak<Taken>>,
    accounts: Vec<Weak<Memory>>,
}

/// The kind of object that reserved memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Holder {
    /// A map of data.
    Map,
    /// A prog array.
    ProgArray,
    /// A program's code.
    Program,
    /// Anything else; not listed.
    Other,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Holder::Map => "map",
            Holder::ProgArray => "prog array",
            Holder::Program => "program",
            Holder::Other => "other",
        })
    }
}

/// The names that [`Memory::held`] lists a holder by.
#[derive(Debug, Clone, Copy)]
pub struct Label<'a> {
    /// The name of the instance that the object belongs to, if it has one.
    pub instance: Option<&'a Arc<str>>,
    /// The object's name.
    pub name: &'a str,
}

impl<'a> From<&'a str> for Label<'a> {
    /// The label of an object that belongs to no named instance.
    fn from(name: &'a str) -> Self {
        Label { instance: None, name }
    }
}

/// One holder of memory, as of the time of the call.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Held {
    /// The kind of object.
    pub holder: Holder,
    /// The name of the instance that the object belongs to, if it has one.
    pub instance: Option<String>,
    /// The object's name.
    pub name: String,
    /// Bytes it has reserved.
    pub bytes: u64,
}

/// Bytes reserved of a [`Memory`], given back when the last clone of this is dropped.
#[derive(Debug, Clone)]
pub struct Reservation(Arc<Taken>);

#[derive(Debug)]
struct Taken {
    memory: Arc<Memory>,
    holder: Holder,
    instance: Option<Arc<str>>,
    name: Box<str>,
    bytes: AtomicU64,
    /// The parent does not count these bytes ([`Memory::note`]).
    noted: bool,
}

/// The limit that a reservation would have exceeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whose {
    /// The limit of all objects of the engine.
    Engine,
    /// The limit of one account.
    Account,
}

impl fmt::Display for Whose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Whose::Engine => "all maps, tables and code of one engine",
            Whose::Account => "the maps, tables and code of this account",
        })
    }
}

/// A reservation did not fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{needed} bytes are needed; of the {limit} that {whose} may take, {left} are left")]
#[non_exhaustive]
pub struct MemoryFull {
    /// Bytes asked for.
    pub needed: u64,
    /// Bytes that were left.
    pub left: u64,
    /// The limit, in bytes.
    pub limit: u64,
    /// The owner of the limit.
    pub whose: Whose,
}

/// A limit cannot be lowered below the bytes in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{used} bytes are in use; a limit of {limit} is below that")]
#[non_exhaustive]
pub struct LimitBelowUse {
    /// The limit asked for.
    pub limit: u64,
    /// Bytes in use.
    pub used: u64,
}

impl Memory {
    pub(crate) fn new(limit: u64) -> Arc<Self> {
        Memory::of("", limit, None)
    }

    fn of(name: &str, limit: u64, parent: Option<Arc<Memory>>) -> Arc<Self> {
        let (limit, used) = (AtomicU64::new(limit), AtomicU64::new(0));
        Arc::new(Self { name: name.into(), limit, used, parent, lists: Mutex::default() })
    }

    /// Creates an account: bytes reserved of it are reserved of `self` as well.
    pub fn account(self: &Arc<Self>, name: &str, limit: u64) -> Arc<Memory> {
        let account = self.unlisted_account(name, limit);
        self.change(|lists| add(&mut lists.accounts, Arc::downgrade(&account)));
        account
    }

    /// Creates an account that [`Memory::accounts`] does not list. Takes no lock: in a forked child, a thread that
    /// does not exist there may hold the list's lock for ever.
    pub fn unlisted_account(self: &Arc<Self>, name: &str, limit: u64) -> Arc<Memory> {
        Memory::of(name, limit, Some(Arc::clone(self)))
    }

    /// The account's name; empty for the memory of a domain.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The memory that this is an account of.
    pub fn parent(&self) -> Option<&Arc<Memory>> {
        self.parent.as_ref()
    }

    /// The largest number of bytes that may be reserved altogether.
    pub fn limit(&self) -> u64 {
        // Relaxed, here and below: the sums order nothing. Threads hand over the memory itself by other means.
        self.limit.load(Ordering::Relaxed)
    }

    /// Whether this is `other` or an account of it.
    pub fn is_of(self: &Arc<Self>, other: &Arc<Memory>) -> bool {
        Arc::ptr_eq(self, other) || self.parent.as_ref().is_some_and(|parent| parent.is_of(other))
    }

    /// Changes the limit, in bytes.
    ///
    /// # Errors
    /// [`LimitBelowUse`]; the limit is unchanged then.
    pub fn set_limit(&self, limit: u64) -> Result<(), LimitBelowUse> {
        let used = self.used();
        if used > limit {
            return Err(LimitBelowUse { limit, used });
        }
        self.limit.store(limit, Ordering::Relaxed);
        Ok(())
    }

    /// Bytes reserved.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Reserves `bytes`; to be called before they are allocated.
    ///
    /// # Errors
    /// [`MemoryFull`].
    pub fn reserve(self: &Arc<Self>, bytes: u64) -> Result<Reservation, MemoryFull> {
        self.take(bytes)?;
        Ok(self.taken(Holder::Other, "".into(), bytes, false))
    }

    /// Reserves `bytes` for a holder that [`Memory::held`] lists under `label`.
    ///
    /// # Errors
    /// [`MemoryFull`].
    pub fn reserve_for<'l>(
        self: &Arc<Self>,
        holder: Holder,
        label: impl Into<Label<'l>>,
        bytes: u64,
    ) -> Result<Reservation, MemoryFull> {
        self.take(bytes)?;
        Ok(self.listed(self.taken(holder, label.into(), bytes, false)))
    }

    /// Reserves `bytes` in this account and not in its parents, which count them in another way: the code of programs
    /// lies in packs that many programs share.
    ///
    /// # Errors
    /// [`MemoryFull`].
    pub fn note<'l>(
        self: &Arc<Self>,
        holder: Holder,
        label: impl Into<Label<'l>>,
        bytes: u64,
    ) -> Result<Reservation, MemoryFull> {
        self.take_here(bytes)?;
        Ok(self.listed(self.taken(holder, label.into(), bytes, true)))
    }

    fn taken(self: &Arc<Self>, holder: Holder, label: Label<'_>, bytes: u64, noted: bool) -> Reservation {
        let (memory, instance, bytes) = (Arc::clone(self), label.instance.cloned(), AtomicU64::new(bytes));
        Reservation(Arc::new(Taken { memory, holder, instance, name: label.name.into(), bytes, noted }))
    }

    fn listed(&self, reservation: Reservation) -> Reservation {
        self.change(|lists| add(&mut lists.taken, Arc::downgrade(&reservation.0)));
        reservation
    }

    /// The listed holders that still have their reservation, in the order of reserving. Holders of accounts are
    /// listed in their account only.
    pub fn held(&self) -> Vec<Held> {
        // Dropped after the lock is released, because each may be the last clone.
        let taken: Vec<Arc<Taken>> = self.change(|lists| lists.taken.iter().filter_map(Weak::upgrade).collect());
        let held = |taken: &Arc<Taken>| Held {
            holder: taken.holder,
            instance: taken.instance.as_deref().map(str::to_owned),
            name: taken.name.to_string(),
            bytes: taken.bytes.load(Ordering::Relaxed),
        };
        taken.iter().map(held).collect()
    }

    /// The listed accounts.
    pub fn accounts(&self) -> Vec<Arc<Memory>> {
        self.change(|lists| lists.accounts.iter().filter_map(Weak::upgrade).collect())
    }

    /// Calls `change` with the lists locked. Code under this lock does not panic, so a poisoned lock is used as it
    /// is.
    fn change<T>(&self, change: impl FnOnce(&mut Lists) -> T) -> T {
        change(&mut self.lists.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Reserves `bytes` without a [`Reservation`], which would be an allocation. The caller gives them back
    /// ([`Memory::give`]).
    ///
    /// # Errors
    /// [`MemoryFull`].
    pub fn take(&self, bytes: u64) -> Result<(), MemoryFull> {
        self.take_here(bytes)?;
        if let Some(parent) = &self.parent {
            parent.take(bytes).inspect_err(|_| self.give_here(bytes))?;
        }
        Ok(())
    }

    fn take_here(&self, bytes: u64) -> Result<(), MemoryFull> {
        let limit = self.limit();
        let more = |used: u64| used.checked_add(bytes).filter(|&sum| sum <= limit);
        let whose = if self.parent.is_some() { Whose::Account } else { Whose::Engine };
        let full = |used: u64| MemoryFull { needed: bytes, left: limit.saturating_sub(used), limit, whose };
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).map(|_| ()).map_err(full)
    }

    fn give_here(&self, bytes: u64) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Gives bytes back that [`Memory::take`] has reserved.
    pub fn give(&self, bytes: u64) {
        self.give_here(bytes);
        if let Some(parent) = &self.parent {
            parent.give(bytes);
        }
    }
}

/// Adds to a list, and removes dead entries when the list would grow.
fn add<T>(list: &mut Vec<Weak<T>>, new: Weak<T>) {
    if list.len() == list.capacity() {
        list.retain(|known| known.strong_count() != 0);
        // Room for at least as many more, so that few additions clean the list.
        list.reserve(list.len() + 8);
    }
    list.push(new);
}

impl Reservation {
    /// Reserves `bytes` more. Takes no lock and does not allocate.
    ///
    /// # Errors
    /// [`MemoryFull`].
    pub fn grow(&self, bytes: u64) -> Result<(), MemoryFull> {
        let Taken { memory, noted, bytes: taken, .. } = &*self.0;
        if *noted {
            memory.take_here(bytes)?
        } else {
            memory.take(bytes)?
        }
        taken.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }

    /// Gives `bytes` of the reservation back, at most what it has. Takes no lock and does not allocate.
    pub fn shrink(&self, bytes: u64) {
        let Taken { memory, noted, bytes: taken, .. } = &*self.0;
        let less = |taken: u64| taken.checked_sub(bytes);
        if taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_err() {
            return;
        }
        memory.give_here(bytes);
        if let (Some(parent), false) = (&memory.parent, *noted) {
            parent.give(bytes);
        }
    }

    /// The memory that this reservation is taken from.
    pub fn memory(&self) -> &Arc<Memory> {
        &self.0.memory
    }

    /// The names that it is listed by; empty ones if it is not listed.
    pub fn label(&self) -> Label<'_> {
        Label { instance: self.0.instance.as_ref(), name: &self.0.name }
    }

    /// Bytes of this reservation.
    pub fn bytes(&self) -> u64 {
        self.0.bytes.load(Ordering::Relaxed)
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        let bytes = *self.bytes.get_mut();
        self.memory.give_here(bytes);
        if let (Some(parent), false) = (&self.memory.parent, self.noted) {
            parent.give(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_of_what_is_alive_stays_below_the_limit() {
        let memory = Memory::new(100);
        let first = memory.reserve(60).unwrap();
        assert_eq!(
            memory.reserve(41).unwrap_err(),
            MemoryFull { needed: 41, left: 40, limit: 100, whose: Whose::Engine }
        );
        assert_eq!(memory.reserve(u64::MAX).unwrap_err().left, 40, "no overflow");
        let second = memory.reserve(40).unwrap();
        assert_eq!((memory.used(), memory.reserve(1).unwrap_err().left), (100, 0));
        drop(first);
        assert_eq!(memory.used(), 40);
        drop(second);
        assert_eq!(memory.used(), 0);
    }

    #[test]
    fn threads_take_no_more_than_there_is() {
        let rounds = if cfg!(miri) { 100 } else { 10_000u64 };
        let memory = Memory::new(1000);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for n in 0..rounds {
                        let taken = memory.reserve(n % 700);
                        assert!(memory.used() <= 1000);
                        drop(taken);
                    }
                });
            }
        });
        assert_eq!(memory.used(), 0);
    }

    #[test]
    fn an_account_has_a_limit_and_counts_for_all() {
        let memory = Memory::new(100);
        let (one, two) = (memory.account("one", 60), memory.account("two", 60));
        let map = one.reserve_for(Holder::Map, "m", 50).unwrap();
        let full = |needed, left, limit, whose| MemoryFull { needed, left, limit, whose };
        assert_eq!(one.reserve(11).unwrap_err(), full(11, 10, 60, Whose::Account));
        assert_eq!(two.reserve(51).unwrap_err(), full(51, 50, 100, Whose::Engine));
        assert_eq!((one.used(), two.used(), memory.used()), (50, 0, 50), "refused reservations take nothing");
        map.grow(5).unwrap();
        assert_eq!(map.grow(6), Err(full(6, 5, 60, Whose::Account)));
        let label = Label { instance: Some(&Arc::from("tenant")), name: "p" };
        let code = one.note(Holder::Program, label, 5).unwrap();
        assert_eq!(map.label().instance, None);
        assert_eq!(code.label().instance.map(|name| &**name), Some("tenant"));
        assert_eq!((one.used(), memory.used()), (60, 55), "code is counted with its pack");
        let held = one.held();
        let bytes = held.iter().map(|held| (held.holder, held.instance.as_deref(), held.name.as_str(), held.bytes));
        assert_eq!(
            bytes.collect::<Vec<_>>(),
            [(Holder::Map, None, "m", 55), (Holder::Program, Some("tenant"), "p", 5)]
        );
        assert_eq!(one.set_limit(59), Err(LimitBelowUse { limit: 59, used: 60 }));
        one.set_limit(60).unwrap();
        let clone = map.clone();
        drop(map);
        assert_eq!(one.used(), 60);
        drop((clone, code));
        assert_eq!((one.used(), memory.used(), one.held()), (0, 0, Vec::new()));
        assert_eq!(memory.accounts().len(), 2);
        drop(two);
        assert_eq!(memory.accounts().len(), 1);
    }

    #[test]
    fn lists_forget_those_that_are_gone() {
        let memory = Memory::new(u64::MAX);
        let stays = memory.reserve_for(Holder::Map, "stays", 1).unwrap();
        for _ in 0..if cfg!(miri) { 200 } else { 10_000 } {
            memory.reserve_for(Holder::Map, "goes", 1).unwrap();
        }
        assert!(memory.change(|lists| lists.taken.len()) < 100);
        assert_eq!(memory.held().len(), 1);
        drop(stays);
    }
}
