//! The handle of a map, and its untyped host side.
//!
//! A [`Map`] is a counted reference. Every operation checks sizes and access rights, enters the map's domain (which
//! gives the execution slot and keeps retired memory in place) and calls the type's implementation.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};

use bpf_quiesce::{Domain, EnterError, Holder, Label, Memory, Owned, Reservation, Settles};

use crate::def::{MapDef, MapType, flags, update};
use crate::errno::{Errno, OpResult};
use crate::error::MapError;
use crate::gate::{WriteGate, Writing};
use crate::header::{LookupFn, MapHeader};
use crate::mem::{round_up8, zeroes};
use crate::ops::MapOps;
use crate::slots::Slots;

/// How often a host operation yields for a grace period to end before it reports that there is no memory.
const PATIENCE: u32 = 10_000;

/// A map, shared by programs and host threads. Clones refer to the same map.
#[derive(Clone)]
pub struct Map(Arc<Inner>);

/// A reference to a map that does not keep it alive.
#[derive(Debug, Clone)]
pub struct WeakMap(Weak<Inner>);

impl WeakMap {
    /// Whether the map still exists.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.0.strong_count() > 0
    }

    /// A handle of the map, if it still exists.
    #[must_use]
    pub fn upgrade(&self) -> Option<Map> {
        self.0.upgrade().map(Map)
    }
}

/// The header comes first: a program's map pointer is the address of both.
#[repr(C)]
pub(crate) struct Inner {
    header: MapHeader,
    pub(crate) id: u32,
    host_value_size: usize,
    pub(crate) def: MapDef,
    pub(crate) gate: WriteGate,
    pub(crate) ops: Box<dyn MapOps>,
    /// Given back after `ops` is dropped, whose memory it accounts for.
    memory: Reservation,
    /// The last field, because references that maps of maps have retired wait in the domain's queue and own the
    /// domain.
    domain: Settles,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inner").field("def", &self.def).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Map {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Map").field("def", &self.0.def).finish_non_exhaustive()
    }
}

impl Inner {
    /// The map behind a program's map pointer.
    ///
    /// # Safety
    /// `map` must come from [`Map::as_ptr`] of a map that is alive for `'a`.
    #[inline]
    pub(crate) unsafe fn from_header<'a>(map: *const MapHeader) -> &'a Self {
        // SAFETY: the header is the first field of a `repr(C)` `Inner`, from which the pointer was made (contract).
        unsafe { &*map.cast::<Self>() }
    }
}

impl Owned for Map {
    fn domain(&self) -> &Arc<Domain> {
        &self.0.domain
    }

    fn named(&self) -> (&'static str, &str) {
        ("map", self.name())
    }
}

/// Reserves memory from an account of the domain, or from the domain's own limit.
pub(crate) fn reserve(
    map: Label<'_>,
    domain: &Domain,
    account: &Arc<Memory>,
    bytes: u64,
) -> Result<Reservation, MapError> {
    // In a forked child, a thread that does not exist there may hold the lock of the list for ever.
    let taken = if domain.is_forked() { account.reserve(bytes) } else { account.reserve_for(Holder::Map, map, bytes) };
    taken.map_err(|full| MapError::MemoryFull { map: map.name.to_owned(), full })
}

impl Map {
    /// Assembles a map; `header` must be made from this definition and these operations.
    pub(crate) fn of_parts(
        header: MapHeader,
        def: MapDef,
        domain: &Arc<Domain>,
        ops: Box<dyn MapOps>,
        memory: Reservation,
    ) -> Self {
        /// The number of the next map. 0 is never used, as in the kernel.
        static NEXT_ID: AtomicU32 = AtomicU32::new(1);
        Self(Arc::new(Inner {
            header,
            // Relaxed: only uniqueness matters.
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            host_value_size: ops.host_value_size(),
            def,
            gate: WriteGate::default(),
            ops,
            memory,
            domain: Settles(Arc::clone(domain)),
        }))
    }

    /// Returns a new handle of a map.
    ///
    /// # Safety
    /// `map` must be [`Map::as_ptr`] of a map that is alive.
    pub(crate) unsafe fn of_ptr(map: *const MapHeader) -> Self {
        let inner = map.cast::<Inner>();
        // SAFETY: `as_ptr` is `Arc::as_ptr` of an `Arc` that is alive (contract).
        unsafe { Arc::increment_strong_count(inner) };
        // SAFETY: the count that was just added is this handle's.
        Self(unsafe { Arc::from_raw(inner) })
    }

    /// Writes the key of the element whose value is at this address, or was a moment ago.
    pub(crate) fn key_of(&self, value: *const u8, key: &mut [u8]) -> bool {
        key.len() == self.0.def.key_size as usize && self.0.ops.key_of(value, key)
    }

    /// How many handles there are of the map, this one included: those of programs, of maps of maps and of the engine's
    /// users alike. The number may change at any time while somebody else has a handle.
    #[must_use]
    pub fn handles(&self) -> usize {
        let handles = Arc::strong_count(&self.0);
        // Acquire pairs with the release by which others dropped their handles: their changes are visible.
        core::sync::atomic::fence(core::sync::atomic::Ordering::Acquire);
        handles
    }

    /// Returns a reference that does not keep the map alive.
    #[must_use]
    pub fn downgrade(&self) -> WeakMap {
        WeakMap(Arc::downgrade(&self.0))
    }

    /// The map pointer for programs: valid as long as any clone of this handle.
    #[must_use]
    pub fn as_ptr(&self) -> *const MapHeader {
        Arc::as_ptr(&self.0).cast()
    }

    /// The fixed part of the map, which programs see.
    #[must_use]
    pub fn header(&self) -> &MapHeader {
        &self.0.header
    }

    /// The lookup function for this map, specialised for its type and key size.
    #[must_use]
    pub fn lookup_fn(&self) -> LookupFn {
        self.0.header.lookup
    }

    /// The definition the map was created with.
    #[must_use]
    pub fn def(&self) -> &MapDef {
        &self.0.def
    }

    /// The map's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.def.name
    }

    /// The map's type.
    #[must_use]
    pub fn map_type(&self) -> MapType {
        self.0.def.map_type
    }

    /// A number that no other map of this process has or had.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.0.id
    }

    /// The domain whose runs may use the map.
    #[must_use]
    pub fn domain(&self) -> &Arc<Domain> {
        &self.0.domain
    }

    /// Whether two handles refer to one map.
    #[must_use]
    pub fn same_as(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Bytes of a value on the host side: `value_size`, or for per-CPU types `round_up(value_size, 8)` times the slots.
    #[must_use]
    pub fn host_value_size(&self) -> usize {
        self.0.host_value_size
    }

    /// Number of elements. Exact if no thread changes the map meanwhile.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.0.ops.len()
    }

    /// Whether no element is present.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of memory of the map. Elements that are allocated when they are used (`NO_PREALLOC`) count once they
    /// were used; all others count from the start. Inner maps and the rings of a perf event array are not included.
    #[must_use]
    pub fn memory_usage(&self) -> u64 {
        self.0.ops.memory_usage()
    }

    /// Bytes that the map reserves in the memory of its domain or account: its largest size, or, for maps that
    /// allocate on demand (`NO_PREALLOC`, tries), the elements allocated so far.
    pub fn memory_counted(&self) -> u64 {
        self.0.memory.bytes()
    }

    /// The name of the instance that the map was made for ([`crate::CreateOptions::instance`]); `None` for a map made
    /// in a forked child.
    pub fn instance(&self) -> Option<&str> {
        self.0.memory.label().instance.map(|name| &**name)
    }

    /// The names that its memory is listed by.
    pub(crate) fn label(&self) -> Label<'_> {
        Label { instance: self.0.memory.label().instance, name: self.name() }
    }

    /// The memory that the map is counted in.
    pub(crate) fn account(&self) -> &Arc<Memory> {
        self.0.memory.memory()
    }

    /// Copies the value of `key` to `out`. With [`update::F_CPU`], a per-CPU map's value of one slot, whose number is
    /// in the upper 32 bits of the flags; without, the values of all slots, each padded to 8 bytes.
    ///
    /// # Errors
    /// `ENOENT` for an absent key, `ERANGE` for a slot that does not exist; sizes, flags and access rights as
    /// [`MapError`] says.
    pub fn lookup(&self, key: &[u8], out: &mut [u8], flags: u64) -> Result<(), MapError> {
        self.check_size_of(key, out, flags)?;
        self.check_slots("lookup", flags, update::F_CPU)?;
        self.check_lookup_flags("lookup", Slots::split(flags).1, flags::WRONLY)?;
        self.run("lookup", |ops, slot| ops.lookup(key, out, flags, slot))
    }

    /// The value of `key`, or `None`.
    ///
    /// # Errors
    /// As [`Map::lookup`], except for an absent key.
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, MapError> {
        let mut value = self.buffer(self.host_value_size())?;
        match self.lookup(key, &mut value, 0) {
            Ok(()) => Ok(Some(value)),
            Err(MapError::Op { errno: Errno::ENOENT, .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Sets the value of `key`; `flags` are those of [`update`]. With [`update::F_CPU`], the value of one slot of a
    /// per-CPU map (the others of a new key are zero), with [`update::F_ALL_CPUS`] the same value for each; without,
    /// the values of all slots, each padded to 8 bytes.
    ///
    /// # Errors
    /// The kernel's: `EEXIST`, `ENOENT`, `E2BIG` and so on; `ERANGE` for a slot that does not exist.
    pub fn update(&self, key: &[u8], value: &[u8], flags: u64) -> Result<(), MapError> {
        self.writable("update")?;
        self.check_slots("update", flags, update::F_CPU | update::F_ALL_CPUS)?;
        self.check_size_of(key, value, flags)?;
        self.check_lock("update", flags)?;
        self.write("update", |ops, slot| ops.update(key, value, flags, slot))
    }

    /// Removes `key`.
    ///
    /// # Errors
    /// `ENOENT` for an absent key, `EINVAL` for arrays.
    pub fn delete(&self, key: &[u8]) -> Result<(), MapError> {
        self.check_key(key)?;
        self.writable("delete")?;
        self.write("delete", |ops, slot| ops.delete(key, slot))?;
        // Removed inner maps and rings wait for a grace period.
        self.domain().tend();
        Ok(())
    }

    /// Copies the value of `key` to `out` and removes the key, in one step.
    ///
    /// # Errors
    /// `ENOENT` for an absent key; `ENOTSUPP` for types without the operation.
    pub fn lookup_and_delete(&self, key: &[u8], out: &mut [u8], flags: u64) -> Result<(), MapError> {
        self.check_size_of(key, out, 0)?;
        self.check_slots("lookup_and_delete", flags, 0)?;
        self.check_lookup_flags("lookup_and_delete", flags, flags::RDONLY | flags::WRONLY)?;
        self.write("lookup_and_delete", |ops, slot| ops.lookup_and_delete(key, out, flags, slot))
    }

    /// Copies the key after `key` to `out`: the first one for `None` or for a key that is absent.
    ///
    /// # Errors
    /// `ENOENT` behind the last key.
    pub fn next_key(&self, key: Option<&[u8]>, out: &mut [u8]) -> Result<(), MapError> {
        self.readable("next_key")?;
        if let Some(key) = key {
            self.check_key(key)?;
        }
        self.check_key(out)?;
        self.run("next_key", |ops, _| ops.next_key(key, out))
    }

    /// Converts the reference to a pointer, which is also the program's map pointer; [`Map::from_raw`] converts it
    /// back.
    pub(crate) fn into_raw(self) -> *const Inner {
        Arc::into_raw(self.0)
    }

    /// # Safety
    /// `raw` must come from [`Map::into_raw`], once for each call.
    pub(crate) unsafe fn from_raw(raw: *const Inner) -> Self {
        // SAFETY: `raw` comes from `into_raw`, hence from `Arc::into_raw`, and is converted once (contract).
        Self(unsafe { Arc::from_raw(raw) })
    }

    /// A new reference to the map behind a pointer of [`Map::into_raw`], or `None` for null.
    ///
    /// # Safety
    /// The reference that `raw` stands for must be alive during the call.
    pub(crate) unsafe fn borrow_raw(raw: *const Inner) -> Option<Self> {
        if raw.is_null() {
            return None;
        }
        // SAFETY: alive (contract), so the count is at least one.
        unsafe { Arc::increment_strong_count(raw) };
        // SAFETY: the reference just made.
        Some(unsafe { Self::from_raw(raw) })
    }

    /// Returns `len` zero bytes for a key or value. Fails if there is no memory, because a value may be as large as
    /// the map.
    pub(crate) fn buffer(&self, len: usize) -> Result<Vec<u8>, MapError> {
        zeroes(len).map_err(|errno| self.system("allocating a copy of a key or value", errno))
    }

    #[cold]
    pub(crate) fn system(&self, what: &'static str, errno: Errno) -> MapError {
        MapError::System { map: self.0.def.name.clone(), what, errno }
    }

    /// Refuses operations that do not enter the domain in a forked child, where the map belongs to the parent.
    ///
    /// # Errors
    /// [`MapError::NoSlot`] in a child.
    pub fn check_process(&self) -> Result<(), MapError> {
        if self.domain().is_forked() { Err(self.no_slot(EnterError::Forked)) } else { Ok(()) }
    }

    #[cold]
    fn no_slot(&self, reason: EnterError) -> MapError {
        MapError::NoSlot { map: self.0.def.name.clone(), reason: reason.to_string() }
    }

    /// Runs an operation under a guard and names the operation in its error. Elements may be missing because they
    /// wait for a grace period: then the guard is left for a moment, so that the period can end, and the operation is
    /// repeated.
    #[inline(always)]
    pub(crate) fn run<T>(
        &self,
        op: &'static str,
        mut f: impl FnMut(&dyn MapOps, u32) -> OpResult<T>,
    ) -> Result<T, MapError> {
        let mut patience = PATIENCE;
        loop {
            let guard = match self.0.domain.enter() {
                Ok(guard) => guard,
                Err(reason) => return Err(self.no_slot(reason)),
            };
            let result = f(&*self.0.ops, guard.slot());
            drop(guard);
            match result {
                Ok(result) => return Ok(result),
                Err(Errno::ENOMEM) if patience > 0 && !self.0.domain.in_guard() => {
                    // A map that has reached its account's limit has nothing to wait for. It is tried twice more,
                    // because elements that were waiting may have come back.
                    let most = if self.0.ops.may_recover() { PATIENCE } else { 3 };
                    patience = patience.min(most) - 1;
                    std::thread::yield_now();
                }
                Err(errno) => return Err(self.error(op, errno)),
            }
        }
    }

    /// Runs an operation that writes, unless the map is frozen.
    #[inline(always)]
    pub(crate) fn write<T>(
        &self,
        op: &'static str,
        mut f: impl FnMut(&dyn MapOps, u32) -> OpResult<T>,
    ) -> Result<T, MapError> {
        let _writing = self.begin_write(op)?;
        self.run(op, |ops, slot| if self.0.gate.is_open() { f(ops, slot) } else { Err(Errno::EPERM) })
    }

    pub(crate) fn is_array(&self) -> bool {
        matches!(self.map_type(), MapType::Array | MapType::PerCpuArray)
    }

    /// Whether host writes are counted. Otherwise they check the frozen mark inside their run guard.
    pub(crate) fn counts_writes(&self) -> bool {
        self.is_array() || matches!(self.map_type(), MapType::RingBuf | MapType::UserRingBuf)
    }

    /// Counts a host write until the result is dropped, if this map counts host writes.
    #[inline]
    pub(crate) fn begin_write(&self, op: &'static str) -> Result<Writing<'_>, MapError> {
        if !self.counts_writes() {
            return Ok(Writing::UNCOUNTED);
        }
        self.gate().begin().map_err(|errno| self.error(op, errno))
    }

    pub(crate) fn ops(&self) -> &dyn MapOps {
        &*self.0.ops
    }

    pub(crate) fn gate(&self) -> &WriteGate {
        &self.0.gate
    }

    #[cold]
    pub(crate) fn error(&self, op: &'static str, errno: Errno) -> MapError {
        MapError::Op { map: self.0.def.name.clone(), op, errno }
    }

    pub(crate) fn readable(&self, op: &'static str) -> Result<(), MapError> {
        self.access(op, flags::WRONLY)
    }

    pub(crate) fn writable(&self, op: &'static str) -> Result<(), MapError> {
        self.access(op, flags::RDONLY)
    }

    /// Checks that no flag forbids the host's operation; a frozen map counts as RDONLY.
    fn access(&self, op: &'static str, forbidding: u32) -> Result<(), MapError> {
        let frozen = if self.0.gate.is_frozen() { flags::RDONLY } else { 0 };
        if (self.0.def.flags | frozen) & forbidding != 0 { Err(self.error(op, Errno::EPERM)) } else { Ok(()) }
    }

    /// Checks the flags of a lookup in the kernel's order: unknown flags, access, a lock flag without a lock.
    fn check_lookup_flags(&self, op: &'static str, flags: u64, forbidding: u32) -> Result<(), MapError> {
        if flags & !update::F_LOCK != 0 {
            return Err(self.error(op, Errno::EINVAL));
        }
        self.access(op, forbidding)?;
        self.check_lock(op, flags)
    }

    fn check_lock(&self, op: &'static str, flags: u64) -> Result<(), MapError> {
        let lock_fits = flags & update::F_LOCK == 0 || (self.0.def.spin_lock.is_some() && !self.0.def.resilient_lock);
        if lock_fits { Ok(()) } else { Err(self.error(op, Errno::EINVAL)) }
    }

    /// Checks the flags that name slots, as the kernel does: such flags as the operation takes, on per-CPU maps, one of
    /// them, with the number of a slot.
    fn check_slots(&self, op: &'static str, flags: u64, taken: u64) -> Result<(), MapError> {
        let named = flags & (update::F_CPU | update::F_ALL_CPUS);
        let has_number = flags & update::F_CPU != 0;
        let fits = match named {
            0 => flags >> 32 == 0,
            _ => self.map_type().is_per_cpu() && named & !taken == 0 && named.is_power_of_two(),
        };
        let number_fits = has_number || flags >> 32 == 0;
        if !fits || !number_fits {
            return Err(self.error(op, Errno::EINVAL));
        }
        let exists = !has_number || flags >> 32 < (self.host_value_size() / self.slot_stride()) as u64;
        if exists { Ok(()) } else { Err(self.error(op, Errno::ERANGE)) }
    }

    /// Bytes of the host's slice for the value of a slot, padded.
    fn slot_stride(&self) -> usize {
        round_up8(self.0.def.value_size as usize)
    }

    /// Bytes of the host's slice in an operation with these flags.
    pub(crate) fn host_bytes(&self, flags: u64) -> usize {
        match Slots::split(flags).0 {
            Slots::One(_) | Slots::Same if self.map_type().is_per_cpu() => self.0.def.value_size as usize,
            _ => self.host_value_size(),
        }
    }

    fn check_size_of(&self, key: &[u8], value: &[u8], flags: u64) -> Result<(), MapError> {
        self.check_key(key)?;
        self.check_size("value", self.host_bytes(flags), value.len())
    }

    pub(crate) fn check_key(&self, key: &[u8]) -> Result<(), MapError> {
        self.check_size("key", self.0.def.key_size as usize, key.len())
    }

    pub(crate) fn check_value(&self, value: &[u8]) -> Result<(), MapError> {
        self.check_size("value", self.host_value_size(), value.len())
    }

    fn check_size(&self, what: &'static str, expected: usize, got: usize) -> Result<(), MapError> {
        if expected == got {
            return Ok(());
        }
        Err(MapError::Size { map: self.0.def.name.clone(), what, expected, got })
    }
}
