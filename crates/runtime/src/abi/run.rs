//! The state of one run.
//!
//! Problem: a run of a few nanoseconds cannot afford to make a structure of a hundred bytes, to announce it to whoever
//! may want to interrupt it, and to count how deep it is nested. Approach: an execution slot belongs to one thread at a
//! time, so each has a [`Run`] that lies ready ([`Runs`]). Beginning a run sets the few fields that the last one may
//! have changed, and other threads find the flag that interrupts it without asking. A run inside another one of its
//! thread (a host function that runs a program) finds the slot's taken and gets the next one in, which the slot keeps
//! from then on; only those are counted. Code that does not read the hidden argument cannot tell whether there is a
//! run, so none is begun for it.
//!
//! A signal handler may run a program at any instruction of this: the first thing that is stored of a run is its
//! `host`, the last is that there is none, and a handler that finds it null has the run to itself until it returns.
//!
//! Invariants: the [`RunCtx`] that emitted code sees is the first field of a [`Run`], so that a host function gets from
//! the hidden argument back to the run. `host` is null exactly while no run is using it; whatever else a run leaves
//! behind, the next one sets ([`Run::set`]).

use crate::abi::entry;
use crate::abi::machine_stack::INTERPRETER;
use crate::abi::stop::Roots;
use crate::context::Parts;
use crate::engine::EngineInner;
use crate::error::{HelperError, RunError};
use bpf_jit_code::{RunCtx, StopCode};
use bpf_maps::program;
use bpf_quiesce::Guard;
use bpf_verifier::Region;
use core::mem::MaybeUninit;
use crossbeam_utils::CachePadded;
use std::borrow::Borrow;
use std::cell::{Cell, UnsafeCell};
use std::fmt;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering, compiler_fence};

/// What is wrong when a check fails that the verifier left to run time.
pub(crate) const OUT_OF_BOUNDS: &str = "memory access out of bounds";

/// One run. `repr(C)`: the hidden argument of emitted code is the address of the first field.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Run {
    pub(crate) ctx: RunCtx,
    /// The `&mut H` that the run was given; null if this is no run now.
    pub(crate) host: *mut (),
    /// The engine, which outlives the run.
    pub(crate) engine: *const crate::engine::EngineInner,
    /// What a host function failed with.
    pub(crate) error: Option<Box<HelperError>>,
    /// What others would wait for, should the run be stopped.
    pub(crate) held: Held,
}

impl Run {
    /// No run yet.
    fn new(slot: u32) -> Run {
        let ctx = RunCtx {
            tail_calls: 0,
            stop_code: 0,
            stop_insn: 0,
            interrupt: 0,
            budget: i64::MAX,
            exit_sp: 0,
            exit_pc: 0,
            exit_saved: [0; 2],
            packet: 0,
            packet_len: 0,
            host_env: 0,
            slot,
            context: 0,
            stop_pc: 0,
        };
        Run { ctx, host: core::ptr::null_mut(), engine: core::ptr::null(), error: None, held: Held::NOTHING }
    }

    /// A run that shares slot, host and engine with this one, for a helper that calls back through the interpreter.
    pub(crate) fn view(&self) -> Run {
        let mut view = Run { host: self.host, engine: self.engine, ..Run::new(self.ctx.slot) };
        view.ctx.context = self.ctx.context;
        view
    }

    /// Makes it a thread's outermost run: what the run before may have left is set anew.
    ///
    /// # Safety
    /// `run` must be this thread's alone, but for the interrupt flag, and no run now.
    #[inline]
    unsafe fn set_outermost(run: *mut Run, engine: &EngineInner, host: *mut (), parts: Parts) {
        // SAFETY: by contract.
        let flag = unsafe { interrupt_flag(run) };
        // Relaxed: a flag that orders nothing else.
        flag.store(0, Ordering::Relaxed);
        // SAFETY: the caller's contract.
        unsafe { Run::set(run, engine, host, parts) };
    }

    /// The same but for the interrupt flag.
    ///
    /// # Safety
    /// As for [`Run::set_outermost`].
    #[inline]
    unsafe fn set(run: *mut Run, engine: &EngineInner, host: *mut (), parts: Parts) {
        // SAFETY: by contract.
        unsafe { (*run).host = host };
        // From here on, signal handlers of this thread take another run.
        compiler_fence(Ordering::SeqCst);
        // SAFETY: by contract; the reference covers the flag as well, which nobody reads or writes through it.
        let run = unsafe { &mut *run };
        run.ctx.tail_calls = 0;
        run.ctx.stop_code = 0;
        run.ctx.budget = engine.budget;
        run.ctx.packet = parts.packet as u64;
        run.ctx.packet_len = parts.packet_len as u64;
        run.ctx.context = parts.context as u64;
        run.engine = engine;
        run.held.count = 0;
    }

    /// Ends the run with a host function's error. The first one stays.
    pub(crate) fn fail(&mut self, error: HelperError) {
        if self.ctx.stop_code == 0 {
            self.ctx.stop_code = StopCode::Host as u32;
            self.ctx.stop_insn = u32::MAX;
            self.ctx.stop_pc = 0;
            self.error = Some(Box::new(error));
        }
    }

    /// Gives up the records and the lock that the program holds. Whether it held any.
    #[cold]
    pub(crate) fn release(&mut self) -> bool {
        // SAFETY: the run's guard keeps the maps, and only the helpers change the list.
        unsafe { self.held.release(self.ctx.slot) }
    }
}

/// What a program has reserved or locked: ring-buffer records, at which the consumer stops, and a spin lock. A program
/// that ends has given all of it back, as the verifier proves; one that is stopped has not.
#[derive(Debug)]
pub(crate) struct Held {
    count: u32,
    /// Addresses of samples, and of locks with [`Held::LOCK`] added.
    items: [MaybeUninit<u64>; Held::MAX],
}

impl Held {
    /// Samples and locks a run can hold.
    const MAX: usize = 16;
    /// Marks a lock: the addresses are multiples of 4.
    const LOCK: u64 = 1;
    pub(crate) const NOTHING: Held = Held { count: 0, items: [MaybeUninit::uninit(); Held::MAX] };

    /// Whether one more record fits, and the lock besides.
    pub(crate) fn has_room(&self) -> bool {
        (self.count as usize) < Self::MAX - 1
    }

    pub(crate) fn add_record(&mut self, sample: u64) {
        self.add(sample);
    }

    /// `false` if the record is not held.
    pub(crate) fn remove_record(&mut self, sample: u64) -> bool {
        self.remove(sample)
    }

    pub(crate) fn add_lock(&mut self, lock: u64) {
        self.add(lock | Self::LOCK);
    }

    pub(crate) fn remove_lock(&mut self, lock: u64) -> bool {
        self.remove(lock | Self::LOCK)
    }

    fn add(&mut self, item: u64) {
        if let Some(place) = self.items.get_mut(self.count as usize) {
            place.write(item);
            self.count += 1;
        }
    }

    fn item(&self, i: usize) -> u64 {
        debug_assert!(i < self.count as usize);
        // SAFETY: `add` has written all items below the count.
        unsafe { self.items[i].assume_init() }
    }

    fn remove(&mut self, item: u64) -> bool {
        // What was taken last is mostly what is given back first.
        let Some(i) = (0..self.count as usize).rev().find(|&i| self.item(i) == item) else { return false };
        self.count -= 1;
        self.items[i] = self.items[self.count as usize];
        true
    }

    /// Discards the records and releases the lock.
    ///
    /// # Safety
    /// The items must be live samples, and locks that `slot` holds.
    unsafe fn release(&mut self, slot: u32) -> bool {
        let any = self.count != 0;
        while self.count != 0 {
            self.count -= 1;
            // SAFETY: `add` has written all items below the old count.
            let item = unsafe { self.items[self.count as usize].assume_init() };
            if item & Self::LOCK != 0 {
                let lock = core::ptr::with_exposed_provenance_mut(crate::num::index(item & !Self::LOCK));
                // SAFETY: a lock that `slot` holds (contract).
                unsafe { program::spin_unlock(lock, slot) };
            } else {
                let sample = core::ptr::with_exposed_provenance_mut(crate::num::index(item));
                // SAFETY: a live sample (contract), given back once: it is off the list.
                unsafe { program::ringbuf_discard(sample, 0) };
            }
        }
        any
    }
}

/// The flag that interrupts `run`.
///
/// # Safety
/// `run` must stay valid for the result's use, and the field must be accessed atomically meanwhile; emitted code does
/// so with plain aligned loads.
unsafe fn interrupt_flag<'a>(run: *mut Run) -> &'a AtomicU32 {
    // SAFETY: by contract, a place in a valid `Run`.
    let flag = unsafe { &raw mut (*run).ctx.interrupt };
    // SAFETY: aligned, as the field of an aligned structure; the rest is the contract.
    unsafe { AtomicU32::from_ptr(flag) }
}

/// A run for each execution slot.
pub(crate) struct Runs(Box<[CachePadded<Level>]>);

/// The run of one slot at one depth of nesting, and behind it those inside it: made when runs first nest so deep, and
/// kept, because other threads may be setting their flags.
struct Level {
    run: UnsafeCell<Run>,
    inner: AtomicPtr<CachePadded<Level>>,
}

// SAFETY: a `Run` is used by the thread that holds its slot, and the next one to hold it comes after it
// (`bpf_quiesce::Guard`). The one field that others access, the interrupt flag, is accessed atomically. What the
// pointers in it point to is used only by the thread that put them there, until its run ends.
unsafe impl Send for Level {}
// SAFETY: through a shared one only the interrupt flag is accessed by others than the thread that holds the slot,
// atomically.
unsafe impl Sync for Level {}

impl Level {
    fn new(slot: u32) -> CachePadded<Level> {
        CachePadded::new(Level { run: UnsafeCell::new(Run::new(slot)), inner: AtomicPtr::default() })
    }

    /// The level inside this one; null if runs never nested so deep.
    fn inner(&self) -> Option<&CachePadded<Level>> {
        // Acquire pairs with the release in `inner_or_new`: the level is initialised.
        let inner = self.inner.load(Ordering::Acquire);
        // SAFETY: null or made by `Box::into_raw`, and freed with `self` only.
        unsafe { inner.as_ref() }
    }

    /// The level inside this one. Only for the thread that holds the slot.
    fn inner_or_new(&self, slot: u32) -> &CachePadded<Level> {
        self.inner().unwrap_or_else(|| {
            let new = Box::into_raw(Box::new(Level::new(slot)));
            // Release: see `inner`; acquire likewise. Nobody stores here but this thread, and its signal handlers.
            let stored = self.inner.compare_exchange(core::ptr::null_mut(), new, Ordering::Release, Ordering::Acquire);
            let inner = stored.map_or_else(
                |other| {
                    // SAFETY: made above, and seen by nobody.
                    drop(unsafe { Box::from_raw(new) });
                    other
                },
                |_| new,
            );
            // SAFETY: made here or by a handler, and freed with `self` only.
            unsafe { &*inner }
        })
    }

    fn interrupt_flag(&self) -> &AtomicU32 {
        // SAFETY: the run lives as long as `self`; all who access its flag do so atomically.
        unsafe { interrupt_flag(self.run.get()) }
    }

    /// Whether no run uses it.
    ///
    /// # Safety
    /// The slot must be this thread's.
    #[inline]
    unsafe fn is_idle(&self) -> bool {
        let run = self.run.get();
        // SAFETY: the slot is this thread's, so nobody else uses its run, but for the flag.
        unsafe { (*run).host }.is_null()
    }
}

impl Drop for Level {
    fn drop(&mut self) {
        let mut inner = *self.inner.get_mut();
        // Not by recursion: the configuration may allow any depth.
        while !inner.is_null() {
            // SAFETY: made by `Box::into_raw` in `inner_or_new`, and no longer reachable.
            let mut level = unsafe { Box::from_raw(inner) };
            inner = std::mem::take(level.inner.get_mut());
        }
    }
}

impl fmt::Debug for Runs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Runs").field(&self.0.len()).finish()
    }
}

impl Runs {
    /// `None` if there is no memory for them.
    pub(crate) fn new(slots: u32) -> Option<Runs> {
        let mut levels = Vec::new();
        levels.try_reserve_exact(slots as usize).ok()?;
        levels.extend((0..slots).map(Level::new));
        Some(Runs(levels.into_boxed_slice()))
    }

    /// Asks all runs to stop, nested ones too. A flag without a run is set in vain.
    pub(crate) fn interrupt(&self) {
        for slot in &self.0 {
            let mut level = Some(slot);
            while let Some(at) = level {
                // Release pairs with the acquire in `nested`, outermost first: an inner run that clears this has seen
                // the outer flag.
                at.interrupt_flag().store(1, Ordering::Release);
                level = at.inner();
            }
        }
    }
}

impl EngineInner {
    /// The run of a slot, if no run of its thread is using it.
    #[inline]
    fn idle_run(&self, guard: &Guard<'_>) -> Option<*mut Run> {
        let level = self.runs.0.get(guard.slot() as usize)?;
        // SAFETY: the slot is this thread's while the guard is held.
        unsafe { level.is_idle() }.then(|| level.run.get())
    }

    /// The outermost run of a slot that no run of its thread is using, inside one that is in use, with that one's flag.
    fn idle_inner_run(&self, guard: &Guard<'_>) -> Option<(*mut Run, &AtomicU32)> {
        let mut outer = self.runs.0.get(guard.slot() as usize)?;
        loop {
            let inner = outer.inner_or_new(guard.slot());
            // SAFETY: the slot is this thread's while the guard is held.
            if unsafe { inner.is_idle() } {
                return Some((inner.run.get(), outer.interrupt_flag()));
            }
            outer = inner;
        }
    }
}

/// How code is entered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    /// What to call.
    pub(crate) code: *const u8,
    /// The program it leads to, if it is a compare tree; else the same.
    pub(crate) callee: *const u8,
    /// Whether it may read the hidden argument ([`bpf_jit_code::Code::reads_hidden`]).
    pub(crate) reads_hidden: bool,
}

/// Runs emitted code once under `guard`, or a borrow of it, and lets go of it. Errors are said to be `program`'s.
///
/// All that is seldom needed is in functions of its own, which take the guard along and get `parts` and `entry` as
/// words: so nothing here has to be in memory, and what is left is a few dozen instructions. They give their errors in
/// boxes: an error of a hundred bytes that they wrote into the result would keep that in memory too.
///
/// # Safety
/// `entry` must be an entry of code compiled for this host, kept by the guard or the caller; `host` and `parts` must be
/// valid for it.
#[inline(always)]
pub(crate) unsafe fn run_code<'e>(
    engine: &'e EngineInner,
    guard: impl Borrow<Guard<'e>>,
    entry: Entry,
    host: *mut (),
    parts: Parts,
    roots: &dyn Roots,
) -> Result<u64, RunError> {
    // Address arithmetic that the verifier allowed must not wrap.
    if parts.packet_len > Region::MAX_LEN as usize {
        return Err(*too_long(parts.packet_len));
    }
    engine.stack.check(roots, 0).map_err(|error| *error)?;
    if !entry.reads_hidden {
        // SAFETY: the caller's contract; code that does not read the hidden argument has no way to stop the run.
        return Ok(unsafe { entry::enter_unstoppable(entry.code, entry.callee, arguments(parts)) });
    }
    let Some(run) = engine.idle_run(guard.borrow()) else {
        let (context, packet) = (slice(parts.context, parts.context_len), slice(parts.packet, parts.packet_len));
        // SAFETY: the caller's contract.
        return unsafe { run_code_nested(engine, guard, (entry.code, entry.callee), host, context, packet, roots) }
            .map_err(|error| *error);
    };
    // SAFETY: the guard's slot is this thread's, and its run is idle.
    unsafe { Run::set_outermost(run, engine, host, parts) };
    // SAFETY: the caller's contract; the pointer covers all of the run, whose first field is the hidden argument.
    let r0 = unsafe { entry::enter(entry.code, entry.callee, arguments(parts), run.cast()) };
    // SAFETY: still this thread's.
    if unsafe { (*run).ctx.stop_code } != 0 {
        // SAFETY: the guard is held.
        return Err(*unsafe { end_stopped(guard, run, roots) });
    }
    // Signal handlers may take the run once it is nobody's.
    compiler_fence(Ordering::SeqCst);
    // SAFETY: as above.
    unsafe { (*run).host = core::ptr::null_mut() };
    Ok(r0)
}

/// The same inside another run of this thread.
///
/// # Safety
/// As for [`run_code`].
#[cold]
#[inline(never)]
unsafe fn run_code_nested<'e>(
    engine: &'e EngineInner,
    guard: impl Borrow<Guard<'e>>,
    (code, callee): (*const u8, *const u8),
    host: *mut (),
    context: *mut [u8],
    packet: *mut [u8],
    roots: &dyn Roots,
) -> Result<u64, Box<RunError>> {
    let entry = Entry { code, callee, reads_hidden: true };
    let parts = parts(context, packet, slice(core::ptr::null_mut(), 0));
    // SAFETY: the caller's contract.
    nested(engine, guard, host, parts, |run| unsafe { call(entry, run, parts, roots) }).map_err(Box::new)
}

fn parts(context: *mut [u8], packet: *mut [u8], memory: *mut [u8]) -> Parts {
    Parts {
        context: context.cast(),
        context_len: context.len(),
        packet: packet.cast(),
        packet_len: packet.len(),
        memory: memory.cast(),
        memory_len: memory.len(),
    }
}

#[inline]
fn slice(start: *mut u8, len: usize) -> *mut [u8] {
    core::ptr::slice_from_raw_parts_mut(start, len)
}

/// r1 to r5 at the entry of a program.
#[inline]
fn arguments(parts: Parts) -> [u64; 5] {
    [parts.context as u64, parts.context_len as u64, 0, 0, 0]
}

/// Runs emitted code as a part of `run`.
///
/// # Safety
/// `entry` must be an entry of code compiled for this host that the run's guard or the caller keeps; `run` must be this
/// thread's run, its host and `parts` valid for the code.
pub(crate) unsafe fn call(entry: Entry, run: *mut Run, parts: Parts, roots: &dyn Roots) -> Result<u64, RunError> {
    // SAFETY: the caller's contract; the pointer covers all of the run, whose first field is the hidden argument.
    let r0 = unsafe { entry::enter(entry.code, entry.callee, arguments(parts), run.cast()) };
    // SAFETY: nobody else uses the run now, except for the atomic flag.
    let run = unsafe { &mut *run };
    if run.ctx.stop_code == 0 { Ok(r0) } else { Err(run.stop_reason_in(roots)) }
}

/// Why a run of a slot was stopped; it is over.
///
/// # Safety
/// `run` must be the active run of the guard's slot.
#[cold]
#[inline(never)]
unsafe fn end_stopped<'e>(_guard: impl Borrow<Guard<'e>>, run: *mut Run, roots: &dyn Roots) -> Box<RunError> {
    let active = Active(run);
    // SAFETY: this thread's, by contract.
    Box::new(unsafe { &mut *active.0 }.stop_reason_in(roots))
}

#[cold]
fn too_long(len: usize) -> Box<RunError> {
    Box::new(RunError::TooLong { len, max: Region::MAX_LEN as usize })
}

/// Ends the use of a [`Run`], whatever happens in it.
struct Active(*mut Run);

impl Drop for Active {
    fn drop(&mut self) {
        // As in `run_code`.
        compiler_fence(Ordering::SeqCst);
        // SAFETY: made of a run of a slot, which outlives it and is this thread's.
        unsafe { (*self.0).host = core::ptr::null_mut() };
    }
}

/// Does one run under `guard` in any other way than [`run_code`]. `code` gets the run, which is over when it returns.
#[inline]
pub(crate) fn begin<'e>(
    engine: &'e EngineInner,
    guard: impl Borrow<Guard<'e>>,
    host: *mut (),
    parts: Parts,
    roots: &dyn Roots,
    code: impl FnOnce(*mut Run, Parts) -> Result<u64, RunError>,
) -> Result<u64, RunError> {
    let (context, packet) = (slice(parts.context, parts.context_len), slice(parts.packet, parts.packet_len));
    engine.stack.check(roots, INTERPRETER).map_err(|error| *error)?;
    begin_with(engine, guard, host, context, packet, slice(parts.memory, parts.memory_len), code)
        .map_err(|error| *error)
}

#[inline(never)]
fn begin_with<'e>(
    engine: &'e EngineInner,
    guard: impl Borrow<Guard<'e>>,
    host: *mut (),
    context: *mut [u8],
    packet: *mut [u8],
    memory: *mut [u8],
    code: impl FnOnce(*mut Run, Parts) -> Result<u64, RunError>,
) -> Result<u64, Box<RunError>> {
    let parts = parts(context, packet, memory);
    if parts.packet_len > Region::MAX_LEN as usize {
        return Err(too_long(parts.packet_len));
    }
    let Some(run) = engine.idle_run(guard.borrow()) else {
        return nested(engine, guard, host, parts, |run| code(run, parts)).map_err(Box::new);
    };
    // SAFETY: the guard's slot is this thread's, and its run is idle.
    unsafe { Run::set_outermost(run, engine, host, parts) };
    let active = Active(run);
    code(active.0, parts).map_err(Box::new)
}

/// The same for a run inside another one of its thread.
#[cold]
#[inline(never)]
fn nested<'e>(
    engine: &'e EngineInner,
    guard: impl Borrow<Guard<'e>>,
    host: *mut (),
    parts: Parts,
    code: impl FnOnce(*mut Run) -> Result<u64, RunError>,
) -> Result<u64, RunError> {
    let _nesting = Nesting::enter(engine.config.max_nested_runs)?;
    let Some((run, outer)) = engine.idle_inner_run(guard.borrow()) else {
        return Err(RunError::Internal("a guard's slot that the engine does not have".into()));
    };
    // SAFETY: the guard's slot is this thread's, and its inner run is idle.
    unsafe { Run::set(run, engine, host, parts) };
    let active = Active(run);
    // SAFETY: the run lives as long as the engine; all who access the flag do so atomically.
    let flag = unsafe { interrupt_flag(active.0) };
    // An interruption whose store this one overwrites is seen, with Acquire (pairs with the release in `interrupt`), in
    // the outer flag, which was stored before. Any other comes later and finds the flag clear. So what was asked of
    // the outer run holds for this one.
    flag.swap(0, Ordering::Acquire);
    // Relaxed: see above; a flag that orders nothing else.
    if outer.load(Ordering::Relaxed) != 0 {
        flag.store(1, Ordering::Relaxed);
    }
    code(active.0)
}

thread_local! {
    /// Runs of this thread that are inside another one.
    static NESTED: Cell<u32> = const { Cell::new(0) };
}

/// Counts one nested run of this thread while it lives.
struct Nesting(());

impl Nesting {
    fn enter(limit: u32) -> Result<Nesting, RunError> {
        NESTED.with(|nested| {
            // The outermost is one of the runs that may be.
            if nested.get() + 1 >= limit {
                return Err(RunError::TooDeep { limit });
            }
            nested.set(nested.get() + 1);
            Ok(Nesting(()))
        })
    }
}

impl Drop for Nesting {
    fn drop(&mut self) {
        NESTED.with(|nested| nested.set(nested.get() - 1));
    }
}
