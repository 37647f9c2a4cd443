//! Parts that hooks and dispatchers share: lists that runs read while changes replace them, and counters by program.
//!
//! Problem: a run reads a list without a lock, a change replaces it. Approach: [`Published`], a pointer that is
//! swapped; the former list is dropped after a grace period. Counters are shared between lists, so that counting goes
//! on over a change.
//!
//! Rule for changes of a list under a lock: no program is dropped and no deferred drop is run before the lock is
//! released. Dropping a program can drop closures of the host, and they may change the same list.
//! [`Published::replace`] only queues the drop of the old value.

use crate::abi::limits::Checks;
use crate::abi::run::Run;
use crate::engine::Engine;
use crate::handle::kept::Kept;
use crate::handle::program::ProgramName;
use crate::program::loaded::Loaded;
use crate::{RunError, context::Parts};
use bpf_dispatcher::Verdicts;
use bpf_quiesce::{Domain, MemoryFull, Reservation};
use core::marker::PhantomData;
use core::ops::Deref;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Runs of one program and their time while statistics were on.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProgramStats {
    /// The name of the instance that the program belongs to, if it has one ([`crate::instances::Instantiate::name`]).
    pub instance: Option<String>,
    /// The program's name.
    pub program: String,
    /// The number of its runs.
    pub runs: u64,
    /// The wall-clock time they took.
    pub time: Duration,
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    runs: AtomicU64,
    nanoseconds: AtomicU64,
}

impl Counters {
    pub(crate) fn runs(&self) -> u64 {
        // Relaxed: statistics.
        self.runs.load(Ordering::Relaxed)
    }

    pub(crate) fn stats(&self, program: &Loaded) -> ProgramStats {
        // Relaxed: statistics.
        let time = Duration::from_nanos(self.nanoseconds.load(Ordering::Relaxed));
        let ProgramName { instance, program } = ProgramName::of(program);
        ProgramStats { instance, program, runs: self.runs(), time }
    }

    /// Runs a program as a part of `run`, and counts it.
    ///
    /// # Safety
    /// As for [`Loaded::run_in`].
    pub(crate) unsafe fn run(&self, program: &Loaded, run: *mut Run, parts: Parts) -> Result<u64, RunError> {
        let start = Instant::now();
        // SAFETY: the caller's contract.
        let result = unsafe { program.run_in(run, parts) };
        // Relaxed: statistics.
        self.runs.fetch_add(1, Ordering::Relaxed);
        self.nanoseconds.fetch_add(u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
        result
    }
}

/// A program in a list.
#[derive(Debug)]
pub(crate) struct Listed {
    pub(crate) program: Arc<Loaded>,
    /// Keeps the prog arrays filled that the program jumps through, as long as a run may be in it.
    pub(crate) _kept: Option<Kept>,
    pub(crate) continue_on: Option<Verdicts>,
    pub(crate) counters: Arc<Counters>,
}

/// Why a list of programs was not made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ListError {
    /// The list needs more memory than is left to the engine's objects.
    #[error("a list of {programs} programs: {full}")]
    MemoryFull {
        /// The number of programs.
        programs: usize,
        /// The bytes needed and the bytes left.
        full: MemoryFull,
    },
    /// The operating system gave no memory.
    #[error("a list of {programs} programs: the system has no {needed} bytes")]
    NoMemory {
        /// The number of programs.
        programs: usize,
        /// Bytes needed.
        needed: u64,
    },
}

/// The programs of a hook or dispatcher, for runs to read. Its memory is counted until no run can read it.
#[derive(Debug)]
pub(crate) struct List {
    listed: Vec<Listed>,
    /// The checks that the code of every program on the list has.
    checks: Checks,
    /// The entry of the image of these programs; 0 if there is none.
    image: usize,
    /// The list that this one replaced, as long as a run may read it.
    before: Weak<List>,
    _reservation: Reservation,
}

impl List {
    /// `beside`: bytes that the list's owner keeps for each program beside it.
    pub(crate) fn new(
        engine: &Engine,
        beside: usize,
        programs: impl ExactSizeIterator<Item = Listed>,
    ) -> Result<List, ListError> {
        let len = programs.len();
        let needed = len.saturating_mul(size_of::<Listed>().saturating_add(beside)) as u64;
        let memory = engine.domain().memory();
        let reservation = memory.reserve(needed).map_err(|full| ListError::MemoryFull { programs: len, full })?;
        let mut listed = Vec::new();
        listed.try_reserve_exact(len).map_err(|_| ListError::NoMemory { programs: len, needed })?;
        listed.extend(programs);
        let checks = listed.iter().fold(Checks::ALL, |all, listed| all.and(listed.program.checks));
        Ok(List { listed, checks, image: 0, before: Weak::new(), _reservation: reservation })
    }

    /// Returns the list with the entry of its image.
    pub(crate) fn with_image(self, entry: *const u8) -> List {
        List { image: entry.addr(), ..self }
    }

    /// Returns the list with the list that it will replace.
    pub(crate) fn instead_of(self, before: Weak<List>) -> List {
        List { before, ..self }
    }

    /// Returns the lists that a run may have begun with, this one first: lists replaced since a guard was entered live
    /// as long as the guard.
    pub(crate) fn and_before(self: &Arc<List>) -> Vec<Arc<List>> {
        std::iter::successors(Some(Arc::clone(self)), |list| list.before.upgrade()).collect()
    }

    /// Returns whether the image with this entry was made of this list. The image must be kept by the same guard as the
    /// list, so that its address is not reused.
    #[inline]
    pub(crate) fn is_of(&self, entry: *const u8) -> bool {
        self.image == entry.addr()
    }

    /// Returns the checks that the code of every program has.
    #[inline]
    pub(crate) fn checks(&self) -> Checks {
        self.checks
    }
}

impl Deref for List {
    type Target = [Listed];

    fn deref(&self) -> &[Listed] {
        &self.listed
    }
}

/// A value that runs read and a change replaces.
#[derive(Debug)]
pub(crate) struct Published<T> {
    /// Never null.
    value: AtomicPtr<T>,
    /// A `Published` owns a `T` and shares it with readers, so it is `Send` and `Sync` where an `Arc<T>` is. The
    /// pointer makes it invariant in `T`.
    owned: PhantomData<Arc<T>>,
}

impl<T> Published<T> {
    pub(crate) fn new(value: T) -> Self {
        Published { value: AtomicPtr::new(Box::into_raw(Box::new(value))), owned: PhantomData }
    }

    /// The current value.
    ///
    /// # Safety
    /// The caller must be inside a guard, for as long as it uses the result, of the domain that replaced values are
    /// retired to.
    pub(crate) unsafe fn get(&self) -> &T {
        // Acquire pairs with the swap in `replace`: the value is initialised.
        let value = self.value.load(Ordering::Acquire);
        // SAFETY: never null; loaded inside the guard, and replaced values are dropped after a grace period only.
        unsafe { &*value }
    }

    /// Makes `value` the current one. The old one is dropped after a grace period of the domain.
    pub(crate) fn replace(&self, value: T, domain: &Domain)
    where
        T: Send + 'static,
    {
        // Release pairs with the acquire in `get`, acquire with the release of the swap that stored the old one.
        let old = self.value.swap(Box::into_raw(Box::new(value)), Ordering::AcqRel);
        // SAFETY: made by `Box::into_raw` and unpublished; the box is owned here from now on, and nobody but readers
        // looks at it.
        let old = unsafe { Box::from_raw(old) };
        domain.enqueue(move || drop(old));
    }
}

impl<T> Drop for Published<T> {
    fn drop(&mut self) {
        // SAFETY: made by `Box::into_raw`, never null. Readers borrow `self`, so there are none.
        drop(unsafe { Box::from_raw(*self.value.get_mut()) });
    }
}

/// The last field of types that defer drops of programs: its drop runs the deferred drops that no run prevents. A
/// program owns its engine, and the engine's domain owns the deferred drop. That cycle would keep the engine for ever
/// if no thread ran the drop after the last user has gone.
#[derive(Debug)]
pub(crate) struct ReclaimOnDrop(pub(crate) Engine);

impl Drop for ReclaimOnDrop {
    fn drop(&mut self) {
        self.0.settle();
    }
}
