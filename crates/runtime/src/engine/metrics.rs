//! Metrics of an engine: [`Engine::snapshot`].
//!
//! Problem: an operator of plug-ins needs to know how often each ran, for how long, and how it ended. A run takes a few
//! nanoseconds, and reading the clock twice takes several times as long. Approach, for engines with
//! [`crate::Config::metrics`]:
//!
//! * Runs are counted by emitted code: at its entry each program adds one to a counter of its execution slot. Runs in
//!   hooks and after tail calls are counted, too. Programs of engines without metrics have no instruction for it.
//! * Time is sampled. A thread reads once a tick which runs are in progress, and adds the time since its last reading
//!   to each. No run reads a clock.
//! * Stops are counted where their error is constructed, which is slow already.
//!
//! Counters belong to an account, an instance's name and a program's name. Versions of a program share them, so
//! counting continues over a reload as long as one version is loaded. A load finds counters by these three, and the
//! sampling thread finds them by their address ([`Known`]), since a service may have tens of thousands.
//!
//! Invariants: only the thread that holds an execution slot writes its counter; a signal handler on it may lose one run
//! or see it late. The address of counters that a run has noted is compared with known addresses and never
//! dereferenced.

use crate::abi::slots::Runs;
use crate::engine::Engine;
use crate::error::{LoadError, RunError};
use bpf_maps::{Errno, Map, MapError, MapType};
use bpf_quiesce::Memory;
use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// Counters of the programs with one name, account and instance.
pub(crate) struct Counters {
    account: Option<Arc<Memory>>,
    instance: Option<Arc<str>>,
    name: String,
    /// The runs, by execution slot.
    runs: Vec<Slot>,
    nanoseconds: AtomicU64,
    stops: [AtomicU64; 5],
    dropped_lines: AtomicU64,
    programs: AtomicU64,
    code_bytes: AtomicU64,
}

/// The counter of one execution slot, which emitted code increments.
#[repr(align(64))]
#[derive(Default)]
struct Slot(AtomicU64);

#[cfg(native)]
const _: () = assert!(size_of::<Slot>() as u64 == bpf_jit::COUNTER_STRIDE);

impl fmt::Debug for Counters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Counters").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Counters {
    /// Returns the address of the first slot's counter, for emitted code.
    pub(crate) fn address(&self) -> u64 {
        self.runs.as_ptr() as u64
    }

    /// Counts a run in this slot, which the calling thread must hold. Emitted code does this inline; the interpreter
    /// calls it.
    pub(crate) fn count_run(&self, slot: u32) {
        if let Some(Slot(runs)) = self.runs.get(slot as usize) {
            // Relaxed: a statistic, which only this thread writes.
            runs.store(runs.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        }
    }

    /// Counts the end of a run that was stopped.
    pub(crate) fn count_stop(&self, error: &RunError) {
        let [budget, deadline, interrupted, access, host] = &self.stops;
        let stops = match error {
            RunError::Budget { .. } => budget,
            RunError::Deadline { .. } => deadline,
            RunError::Interrupted { .. } => interrupted,
            RunError::Access { .. } => access,
            RunError::Host { .. } => host,
            // Other errors are made before the run begins, and are not stops.
            _ => return,
        };
        // Relaxed: a statistic.
        stops.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a line that was dropped for [`crate::Config::print_limit`].
    pub(crate) fn count_dropped_line(&self) {
        // Relaxed: a statistic.
        self.dropped_lines.fetch_add(1, Ordering::Relaxed);
    }

    fn snapshot(&self) -> ProgramMetrics {
        // Relaxed: statistics.
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let [budget, deadline, interrupted, access, host] = self.stops.each_ref().map(read);
        ProgramMetrics {
            account: self.account.as_ref().map(|account| account.name().to_owned()),
            instance: self.instance.as_deref().map(str::to_owned),
            program: self.name.clone(),
            versions: read(&self.programs),
            code_bytes: read(&self.code_bytes),
            runs: self.runs.iter().map(|slot| read(&slot.0)).sum(),
            time: Duration::from_nanos(read(&self.nanoseconds)),
            stops: Stops { budget, deadline, interrupted, access, host },
            dropped_lines: read(&self.dropped_lines),
        }
    }
}

/// A loaded program's part in its counters.
#[derive(Debug)]
pub(crate) struct Counted {
    pub(crate) counters: Arc<Counters>,
    /// Stored only by the load of the program and by the thread that replaces its code, never at once.
    code_bytes: AtomicU64,
}

impl Counted {
    /// Sets the length of the program's code.
    pub(crate) fn set_code(&self, bytes: usize) {
        // Relaxed: statistics. The new length is added before the old one is subtracted, so that the sum never wraps.
        self.counters.code_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        let before = self.code_bytes.swap(bytes as u64, Ordering::Relaxed);
        self.counters.code_bytes.fetch_sub(before, Ordering::Relaxed);
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        // Relaxed: statistics.
        self.counters.programs.fetch_sub(1, Ordering::Relaxed);
        self.counters.code_bytes.fetch_sub(*self.code_bytes.get_mut(), Ordering::Relaxed);
    }
}

/// The counters of an engine, and the state of its sampling thread.
#[derive(Default)]
pub(crate) struct Metrics {
    pub(crate) loads: AtomicU64,
    pub(crate) refusals: AtomicU64,
    pub(crate) changes: AtomicU64,
    /// `None` without [`crate::Config::metrics`].
    sampled: Option<Arc<Sampled>>,
}

/// State that the sampling thread shares with the engine. The thread holds no reference to the engine.
#[derive(Default)]
struct Sampled {
    slots: usize,
    programs: Mutex<Known>,
    maps: Mutex<Vec<bpf_maps::WeakMap>>,
    closed: AtomicBool,
    thread: Mutex<Option<Thread>>,
}

/// The system refused the memory for counters.
#[derive(Debug)]
pub(crate) struct NoMemory {
    /// Bytes needed.
    pub(crate) needed: u64,
}

/// The owner of counters: the address of the account's memory, the instance's name, the program's name.
type Owner = (Option<usize>, Option<Arc<str>>, String);

/// The counters of an engine that are in use, and entries of dropped ones that were not removed yet.
#[derive(Default)]
struct Known {
    by_owner: HashMap<Owner, Weak<Counters>>,
    by_address: HashMap<u64, Weak<Counters>>,
    /// The number of entries at which entries of dropped counters are removed.
    full: usize,
}

impl Known {
    /// Fewest entries at which unused ones are looked for.
    const LEAST: usize = 64;

    /// Returns the counters of this owner, made by `new` if there are none. Nothing changes where the system refuses
    /// memory.
    fn of(
        &mut self,
        owner: Owner,
        new: impl FnOnce() -> Result<Counters, NoMemory>,
    ) -> Result<Arc<Counters>, NoMemory> {
        // A dropped account may have had the address of a new one. Its counters are dropped, too, since they held the
        // account.
        if let Some(known) = self.by_owner.get(&owner).and_then(Weak::upgrade) {
            return Ok(known);
        }
        // Either may have many unused entries alone: one owner's counters at changing addresses, and many owners' at
        // one.
        if self.by_owner.len().max(self.by_address.len()) >= self.full {
            self.by_owner.retain(|_, known| known.strong_count() > 0);
            self.by_address.retain(|_, known| known.strong_count() > 0);
            // Twice the number that is left, so that each new entry pays for looking at a bounded number of others.
            self.full = Self::LEAST.max(2 * self.by_owner.len().max(self.by_address.len()));
        }
        let needed = (2 * self.by_owner.len() * size_of::<(Owner, Weak<Counters>)>()) as u64;
        self.by_owner.try_reserve(1).map_err(|_| NoMemory { needed })?;
        self.by_address.try_reserve(1).map_err(|_| NoMemory { needed })?;
        let new = Arc::new(new()?);
        self.by_address.insert(new.address(), Arc::downgrade(&new));
        self.by_owner.insert(owner, Arc::downgrade(&new));
        Ok(new)
    }

    /// Returns the counters that are in use, in no order.
    fn all(&self) -> Vec<Arc<Counters>> {
        self.by_owner.values().filter_map(Weak::upgrade).collect()
    }
}

/// Nothing under these locks panics, so poison means nothing.
fn with<T, R>(mutex: &Mutex<T>, change: impl FnOnce(&mut T) -> R) -> R {
    change(&mut mutex.lock().unwrap_or_else(PoisonError::into_inner))
}

impl Metrics {
    /// Makes the metrics of an engine, with a thread that samples `runs` if `on`.
    pub(crate) fn new(on: bool, runs: &Runs, slots: u32, tick: Duration) -> std::io::Result<Metrics> {
        let mut metrics = Metrics::default();
        if !on {
            return Ok(metrics);
        }
        let sampled = Arc::new(Sampled { slots: slots as usize, ..Sampled::default() });
        let (shared, each_running) = (Arc::clone(&sampled), runs.each_running(false));
        let thread =
            std::thread::Builder::new().name("bpf-metrics".into()).stack_size(256 * 1024).spawn(move || {
                let mut before = Instant::now();
                while !shared.closed.load(Ordering::SeqCst) {
                    std::thread::park_timeout(tick);
                    let since = before.elapsed();
                    before += since;
                    let since = u64::try_from(since.as_nanos()).unwrap_or(u64::MAX);
                    each_running(&mut |counters| shared.add_time(counters, since));
                }
            })?;
        with(&sampled.thread, |known| *known = Some(thread.thread().clone()));
        metrics.sampled = Some(sampled);
        Ok(metrics)
    }

    /// Returns counters for one more program; `None` if metrics are off. An engine may have 65,536 slots, so a program
    /// may need 4 MiB of counters.
    pub(crate) fn program(
        &self,
        account: Option<&Arc<Memory>>,
        instance: Option<&Arc<str>>,
        name: &str,
    ) -> Result<Option<Counted>, NoMemory> {
        let Some(sampled) = &self.sampled else { return Ok(None) };
        let owner = (account.map(|account| Arc::as_ptr(account).addr()), instance.cloned(), name.to_owned());
        let new = || {
            let mut runs = Vec::new();
            let needed = (sampled.slots * size_of::<Slot>()) as u64;
            runs.try_reserve_exact(sampled.slots).map_err(|_| NoMemory { needed })?;
            runs.resize_with(sampled.slots, Slot::default);
            Ok(Counters {
                account: account.cloned(),
                instance: instance.cloned(),
                name: name.to_owned(),
                runs,
                nanoseconds: AtomicU64::new(0),
                stops: Default::default(),
                dropped_lines: AtomicU64::new(0),
                programs: AtomicU64::new(0),
                code_bytes: AtomicU64::new(0),
            })
        };
        let counters = with(&sampled.programs, |programs| programs.of(owner, new))?;
        // Relaxed: a statistic.
        counters.programs.fetch_add(1, Ordering::Relaxed);
        Ok(Some(Counted { counters, code_bytes: AtomicU64::new(0) }))
    }

    /// Adds a map to the list that snapshots read.
    pub(crate) fn map(&self, map: &Map) -> Result<(), LoadError> {
        let Some(sampled) = &self.sampled else { return Ok(()) };
        with(&sampled.maps, |maps| {
            // Entries of dropped maps are removed before the list would grow, so its length is proportional to the
            // number of live maps.
            if maps.len() == maps.capacity() {
                maps.retain(|known| known.is_alive());
            }
            let refused = |_| {
                let (name, what) = (map.name().to_owned(), "growing the metrics' list of maps");
                let source = MapError::System { map: name.clone(), what, errno: Errno::ENOMEM };
                LoadError::Map { map: name, source }
            };
            maps.try_reserve(1).map_err(refused)?;
            maps.push(map.downgrade());
            Ok(())
        })
    }
}

impl Drop for Metrics {
    fn drop(&mut self) {
        if let Some(sampled) = &self.sampled {
            sampled.closed.store(true, Ordering::SeqCst);
            // The thread is not joined: a forked child does not have it.
            if let Ok(thread) = sampled.thread.try_lock()
                && let Some(thread) = &*thread
            {
                thread.unpark();
            }
        }
    }
}

impl Sampled {
    /// Adds `nanoseconds` to the run time of the program whose counters are at `address`.
    fn add_time(&self, address: u64, nanoseconds: u64) {
        let known = with(&self.programs, |programs| programs.by_address.get(&address).and_then(Weak::upgrade));
        if let Some(counters) = known {
            // Relaxed: a statistic.
            counters.nanoseconds.fetch_add(nanoseconds, Ordering::Relaxed);
        }
    }
}

/// A copy of an engine's metrics at one time: [`Engine::snapshot`]. With the feature `serde` it can be serialised.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Snapshot {
    /// Metrics of programs, sorted by account, instance and name; empty without [`crate::Config::metrics`].
    pub programs: Vec<ProgramMetrics>,
    /// Maps that objects define; empty without [`crate::Config::metrics`].
    pub maps: Vec<MapMetrics>,
    /// Programs loaded so far.
    pub loads: u64,
    /// Programs refused so far.
    pub refusals: u64,
    /// Lists of hooks published so far: an empty one when a hook is made, then by each change.
    pub changes: u64,
    /// Grace periods begun so far.
    pub grace_periods: u64,
    /// The number of dropped programs, maps and lists that wait for a grace period.
    pub deferred: usize,
    /// Bytes of [`crate::Config::memory_limit`] that maps, prog arrays, lists and memory for code take.
    pub memory_bytes: u64,
    /// The part of `memory_bytes` that code takes.
    pub code_bytes: u64,
}

/// Programs of one account, instance and name: all versions since the last time at which none was loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct ProgramMetrics {
    /// The account that they were loaded with.
    pub account: Option<String>,
    /// The name of the instance that they belong to, if it has one ([`crate::instances::Instantiate::name`]).
    pub instance: Option<String>,
    /// Their name.
    pub program: String,
    /// How many versions are loaded, or dropped and still running.
    pub versions: u64,
    /// Bytes of their machine code.
    pub code_bytes: u64,
    /// Runs begun: alone, in hooks, and by tail calls.
    pub runs: u64,
    /// Wall-clock time of runs, with host functions: sampled once in [`crate::Config::tick`].
    pub time: Duration,
    /// Runs that ended without a result.
    pub stops: Stops,
    /// Lines that were dropped for [`crate::Config::print_limit`].
    pub dropped_lines: u64,
}

/// Why runs ended without a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Stops {
    /// [`RunError::Budget`].
    pub budget: u64,
    /// [`RunError::Deadline`], of runs that had begun.
    pub deadline: u64,
    /// [`RunError::Interrupted`].
    pub interrupted: u64,
    /// [`RunError::Access`].
    pub access: u64,
    /// [`RunError::Host`]: a host function or helper failed, or panicked.
    pub host: u64,
}

/// A map of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct MapMetrics {
    /// A number that no other map of the process has.
    pub id: u32,
    /// The name of the instance that it was made for, if it has one ([`crate::instances::Instantiate::name`]).
    pub instance: Option<String>,
    /// Its name.
    pub map: String,
    /// Its type, by the kernel's name.
    pub map_type: String,
    /// Elements that are present; bytes, of a ring buffer.
    pub len: u64,
    /// The capacity in elements; in bytes for a ring buffer.
    pub max_entries: u32,
    /// Bytes counted for it.
    pub bytes: u64,
}

impl ProgramMetrics {
    /// Returns the names of the account, the instance and the program.
    fn owner(&self) -> (Option<&str>, Option<&str>, &str) {
        (self.account.as_deref(), self.instance.as_deref(), &self.program)
    }
}

impl MapMetrics {
    fn of(map: &Map) -> MapMetrics {
        let map_type: MapType = map.map_type();
        MapMetrics {
            id: map.id(),
            instance: map.instance().map(str::to_owned),
            map: map.name().to_owned(),
            map_type: map_type.name().to_owned(),
            len: map.len(),
            max_entries: map.def().max_entries,
            bytes: map.memory_counted(),
        }
    }
}

impl Engine {
    /// Returns the metrics counted up to this call, while programs run. Takes locks that loads hold for a short time
    /// and runs never take. In a forked child, `programs` and `maps` are empty.
    ///
    /// ```
    /// use bpf_runtime::{Config, Engine, Linker, Raw, isa::assemble};
    ///
    /// let config = Config::new().metrics(true);
    /// let engine = Engine::new(config)?;
    /// let seven = Linker::<()>::new(&engine).loader::<Raw>().insns("seven", assemble("r0 = 7\nexit")?)?;
    /// seven.run_on(&mut [])?;
    /// let programs = engine.snapshot().programs;
    /// assert_eq!((programs[0].program.as_str(), programs[0].runs), ("seven", 1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn snapshot(&self) -> Snapshot {
        let (domain, metrics) = (self.domain(), &self.0.metrics);
        // In a forked child, a lock may be held by a thread that only the parent has.
        let sampled = metrics.sampled.as_ref().filter(|_| !domain.is_forked());
        // Collected, and so dropped without the lock: these may be the last references.
        let programs: Vec<_> =
            sampled.map_or_else(Vec::new, |sampled| with(&sampled.programs, |programs| programs.all()));
        let maps: Vec<_> = sampled.map_or_else(Vec::new, |sampled| {
            with(&sampled.maps, |maps| maps.iter().filter_map(bpf_maps::WeakMap::upgrade).collect())
        });
        let mut programs: Vec<ProgramMetrics> = programs.iter().map(|counters| counters.snapshot()).collect();
        programs.sort_by(|one, other| one.owner().cmp(&other.owner()));
        // Relaxed: statistics.
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Snapshot {
            programs,
            maps: maps.iter().map(MapMetrics::of).collect(),
            loads: read(&metrics.loads),
            refusals: read(&metrics.refusals),
            changes: read(&metrics.changes),
            grace_periods: domain.grace_periods(),
            deferred: domain.deferred(),
            memory_bytes: domain.memory().used(),
            code_bytes: self.code_stats().bytes as u64,
        }
    }
}
