//! Prog arrays: tables of programs to tail-call.
//!
//! Problem: a slot is read by running programs without a lock while it is set and cleared by other threads, and a
//! program in a slot must not go away under a run. Approach: emitted code reads an array of entry addresses, one atomic
//! word for each slot. Beside it, under a lock, are the handles that keep the programs alive, and the direct sites that
//! jump through each slot ([`bpf_tailcall`]). An update patches the sites first and then stores the words. A handle
//! that is replaced is dropped after a grace period.
//!
//! An observed run of machine code needs the program of a slot and not its code. The lock would not do: a forked child
//! may wait for it without end. So arrays that a recordable program jumps through have a second word for each slot.
//!
//! The lock is held for pokes and one barrier, never while waiting, and no program is dropped under it: dropping one
//! takes it. The destructor of [`Left`] queues the drop of the programs that a change removes, so that no panic of a
//! subscriber or of a destructor drops a program that runs are still in.
//!
//! A program in its own array is a cycle of handles. As in the kernel, an array is emptied when its last *user* handle
//! goes: instances, programs and [`ProgArray`](crate::ProgArray)s that the user holds count, programs in slots do not.

use crate::call::state::Host;
use crate::engine::Engine;
use crate::engine::config::Mode;
use crate::engine::trace;
use crate::engine::usage::Payer;
use crate::error::{LoadError, ProgArrayError};
use bpf_prog_pack::PokeError;
use bpf_quiesce::{CoreBarrierError, Domain, Finish, GracePeriod, Holder, Owned, Reservation};
use bpf_tailcall::{Change, Clock, Sites, Target, TextSlots, UpdateError};
use bpf_verifier::ContextLayout;
use std::any::{Any, TypeId};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// The most slots of an array, which bounds the allocation of one word each.
const MAX_ENTRIES: u32 = 1 << 24;

/// A program as an entry of tables.
pub(crate) trait Member: Owned + Any + fmt::Debug + Send + Sync {
    /// Returns the properties that it must share with programs that jump to it.
    fn kind(&self) -> Kind;

    /// Returns its name for listings.
    fn path(&self) -> String;

    /// Returns the word for slots that hold it: the entry of machine code, whose lowest bit is 0, or [`interpreted`].
    fn slot_word(&self) -> u64;

    /// Returns the address of the program, which is never 0.
    fn program_address(&self) -> u64;
}

/// The word of a slot that holds an interpreted program: the address of the program, which is aligned, with the lowest
/// bit set. So a word says by itself what it is the address of.
pub(crate) fn interpreted<P>(program: &P) -> u64 {
    core::ptr::from_ref(program).expose_provenance() as u64 | INTERPRETED
}

/// The lowest bit of a word that holds the address of an interpreted program.
const INTERPRETED: u64 = 1;

/// A program as the target of sites.
#[derive(Clone, Debug)]
pub(crate) struct Jump(Arc<dyn Member>);

impl Jump {
    fn path(&self) -> String {
        self.0.path()
    }
}

impl Target for Jump {
    fn address(&self) -> usize {
        crate::num::index(self.0.slot_word())
    }
}

/// A table of programs. Its words are `{ entries: u32, 0: u32 }` and then one a slot: 0, or the word of its program
/// ([`Member::slot_word`]).
pub(crate) struct ProgTable {
    name: String,
    /// The domain and not the engine: the domain owns deferred drops of programs, which own their tables, so a table
    /// that owned the engine would be in a cycle.
    domain: Arc<Domain>,
    words: Box<[AtomicU64]>,
    /// The memory of `words`.
    _reservation: Reservation,
    /// For observed runs of machine code.
    observed: OnceLock<ObservedSlots>,
    clock: Clock<Arc<Domain>>,
    state: Mutex<State>,
    /// User handles.
    users: AtomicUsize,
}

/// The addresses of the programs in the slots: 0, or [`Member::program_address`]. Changed under the table's lock, after
/// the slot's word.
struct ObservedSlots {
    programs: Box<[AtomicU64]>,
    /// The memory of `programs`.
    _reservation: Reservation,
}

struct State {
    /// The slots that are set. Its memory is proportional to their number, not to the array's size.
    programs: BTreeMap<u32, Arc<dyn Member>>,
    sites: Sites<TextSlots, Jump, GracePeriod>,
    bound: Bound,
    /// Slots that a rollback is about to put back ([`Turn::Claim`]).
    returning: BTreeSet<u32>,
}

/// The properties that are fixed for the programs that jump through an array and those in it.
#[derive(Clone, Copy, Default)]
struct Bound {
    /// Their context; set by the first, or by a handle.
    layout: Option<&'static ContextLayout>,
    /// Their host type; set by the first program, or by a handle.
    host: Option<HostType>,
    /// How they are executed; set by the first.
    mode: Option<Mode>,
}

/// `len` zeroed words; pages take memory when they are first written. `None` if the system has no memory for them.
fn zeroed_words(len: usize) -> Option<Box<[AtomicU64]>> {
    let layout = std::alloc::Layout::array::<AtomicU64>(len).ok().filter(|layout| layout.size() != 0)?;
    // SAFETY: the layout is not empty.
    let words = unsafe { std::alloc::alloc_zeroed(layout) }.cast::<AtomicU64>();
    if words.is_null() {
        return None;
    }
    // SAFETY: a new allocation of the global allocator with the layout of these words, to which zeroes are valid.
    Some(unsafe { Box::from_raw(core::ptr::slice_from_raw_parts_mut(words, len)) })
}

/// Counts the memory of a table.
fn reserve(name: &str, engine: &Engine, payer: Payer<'_>, needed: u64) -> Result<Reservation, ProgArrayError> {
    let memory = payer.memory(engine);
    // The list may be locked for ever in a child, by a thread that it does not have.
    if engine.domain().is_forked() {
        return Ok(memory.reserve(needed)?);
    }
    Ok(memory.reserve_for(Holder::ProgArray, payer.label(name), needed)?)
}

/// The properties that programs which jump to each other must share: the context in r1, the type of the host state, and
/// the meaning of a slot's word.
#[derive(Clone, Copy)]
pub(crate) struct Kind {
    pub(crate) layout: &'static ContextLayout,
    pub(crate) host: HostType,
    pub(crate) mode: Mode,
    /// Whether its result may be anything.
    pub(crate) void: bool,
    /// Whether its runs may wait.
    pub(crate) sleepable: bool,
}

/// The type of the host state of a program's runs. A run keeps its host state over tail calls, and the host functions
/// of the target cast it to the target's type, so the types must agree. One word, as every program has one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostType(fn() -> (TypeId, &'static str));

impl HostType {
    pub(crate) fn of<H: Host + ?Sized>() -> HostType {
        HostType(|| (TypeId::of::<H>(), std::any::type_name::<H>()))
    }

    fn name(self) -> String {
        (self.0)().1.to_owned()
    }
}

impl PartialEq for HostType {
    /// Compares the types and not the function addresses: a function of one type may have several addresses, and
    /// functions of two types may share one.
    fn eq(&self, other: &HostType) -> bool {
        (self.0)().0 == (other.0)().0
    }
}

impl fmt::Debug for ProgTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProgTable").field("name", &self.name).field("entries", &self.entries()).finish_non_exhaustive()
    }
}

impl Owned for ProgTable {
    fn domain(&self) -> &Arc<Domain> {
        &self.domain
    }

    fn named(&self) -> (&'static str, &str) {
        ("prog array", &self.name)
    }
}

impl ProgTable {
    pub(crate) fn new(
        name: String,
        entries: u32,
        engine: &Engine,
        payer: Payer<'_>,
    ) -> Result<Arc<ProgTable>, ProgArrayError> {
        if entries == 0 || entries > MAX_ENTRIES {
            return Err(ProgArrayError::Entries { entries, max: MAX_ENTRIES });
        }
        let needed = (u64::from(entries) + 1) * size_of::<AtomicU64>() as u64;
        let limit = engine.config().object_memory_limit;
        if needed > limit {
            return Err(ProgArrayError::TooLarge { needed, limit });
        }
        let reservation = reserve(&name, engine, payer, needed)?;
        let words = zeroed_words(entries as usize + 1).ok_or(ProgArrayError::NoMemory { needed })?;
        // Relaxed: no other thread has the table yet.
        words[0].store(entries.into(), Ordering::Relaxed);
        Ok(Arc::new(ProgTable {
            name,
            domain: Arc::clone(engine.domain()),
            words,
            _reservation: reservation,
            observed: OnceLock::new(),
            clock: Clock::new(Arc::clone(engine.domain())),
            state: Mutex::new(State {
                programs: BTreeMap::new(),
                sites: Sites::default(),
                bound: Bound::default(),
                returning: BTreeSet::new(),
            }),
            users: AtomicUsize::new(0),
        }))
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn entries(&self) -> u32 {
        crate::num::small(self.words.len()) - 1
    }

    /// Returns the address that programs use as the map's pointer.
    pub(crate) fn address(&self) -> u64 {
        self.words.as_ptr() as u64
    }

    /// Keeps the addresses of the programs in the slots from now on, for observed runs of machine code.
    pub(crate) fn observe(&self, engine: &Engine, payer: Payer<'_>) -> Result<(), ProgArrayError> {
        if self.observed.get().is_some() {
            return Ok(());
        }
        let entries = self.words.len() - 1;
        let needed = (entries * size_of::<AtomicU64>()) as u64;
        let _reservation = reserve(&self.name, engine, payer, needed)?;
        let programs = zeroed_words(entries).ok_or(ProgArrayError::NoMemory { needed })?;
        let Some(state) = self.lock_to_read() else { return self.may_change() };
        for (index, program) in &state.programs {
            // Relaxed: the cell publishes the words.
            programs[*index as usize].store(program.program_address(), Ordering::Relaxed);
        }
        // Another load may have set it meanwhile; under the lock, both have the same programs.
        let _ = self.observed.set(ObservedSlots { programs, _reservation });
        Ok(())
    }

    /// Returns the address of the program in a slot; `None` if the slot is not set. The caller is a run that is
    /// interpreted, inside a guard, which keeps the program. Takes no lock.
    pub(crate) fn program_at(&self, index: u32) -> Option<u64> {
        // Acquire pairs with the release in `apply`: the program is fully loaded.
        let program = match self.observed.get() {
            Some(observed) => observed.programs.get(index as usize)?.load(Ordering::Acquire),
            // Machine code is observed only if its arrays are.
            None => match self.words.get(index as usize + 1)?.load(Ordering::Acquire) {
                word if word & INTERPRETED != 0 => word & !INTERPRETED,
                _code => 0,
            },
        };
        (program != 0).then_some(program)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Slots and words change together in `apply`, which cannot panic between.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the state for reading only. In a forked child, `None` if the lock is held.
    fn lock_to_read(&self) -> Option<MutexGuard<'_, State>> {
        self.domain.lock_to_read(&self.state)
    }

    /// Refuses changes in a forked child, where a thread that only the parent has may hold the lock without end.
    fn may_change(&self) -> Result<(), ProgArrayError> {
        if self.domain.is_forked() { Err(ProgArrayError::Text(PokeError::Forked.to_string())) } else { Ok(()) }
    }

    /// Only programs on this context from now on, with such a host.
    pub(crate) fn bind(&self, layout: &'static ContextLayout, host: HostType) -> Result<(), ProgArrayError> {
        match self.lock_to_read() {
            Some(mut state) => {
                state.bound = state.bound.on(layout, host)?;
                Ok(())
            }
            None => self.may_change(),
        }
    }

    /// Sets and clears slots, all or none.
    pub(crate) fn update(self: &Arc<Self>, changes: Vec<(u32, Option<Arc<dyn Member>>)>) -> Result<(), ProgArrayError> {
        self.may_change()?;
        let mut state = self.lock();
        let bound = self.check(&state, &changes)?;
        let (result, left) = self.apply(&mut state, changes, bound, Failing::Undo);
        drop(state);
        left.finish();
        result
    }

    /// Gives up what a rollback has claimed.
    pub(crate) fn disclaim(&self, index: u32) {
        if !self.domain.is_forked() {
            self.lock().returning.remove(&index);
        }
    }

    /// Returns the properties that are fixed after these changes, or why the changes are refused.
    fn check(&self, state: &State, changes: &[(u32, Slot)]) -> Result<Bound, ProgArrayError> {
        let mut bound = state.bound;
        for (index, program) in changes {
            self.check_index(*index)?;
            if let Some(program) = program {
                self.domain.owns(&**program)?;
                // The result of a tail call is the result of the run, which may be another program's.
                if program.kind().void {
                    return Err(ProgArrayError::NoResult { program: program.path() });
                }
                if program.kind().sleepable {
                    return Err(ProgArrayError::Sleepable { program: program.path() });
                }
                bound = bound.with(program.kind())?;
            }
        }
        Ok(bound)
    }

    pub(crate) fn set(self: &Arc<Self>, index: u32, program: Arc<dyn Member>) -> Result<(), ProgArrayError> {
        self.update(vec![(index, Some(program))])
    }

    pub(crate) fn clear(self: &Arc<Self>, index: u32) -> Result<(), ProgArrayError> {
        self.may_change()?;
        let mut state = self.lock();
        self.check_index(index)?;
        if !state.programs.contains_key(&index) {
            return Err(ProgArrayError::Empty { index });
        }
        let bound = state.bound;
        let (result, left) = self.apply(&mut state, vec![(index, None)], bound, Failing::Undo);
        drop(state);
        left.finish();
        result
    }

    pub(crate) fn get(&self, index: u32) -> Option<Arc<dyn Member>> {
        self.lock_to_read()?.programs.get(&index).cloned()
    }

    /// The slots below `entries` that are set, as a change of another table.
    pub(crate) fn filled(&self, entries: u32) -> Vec<(u32, Option<Arc<dyn Member>>)> {
        let Some(state) = self.lock_to_read() else { return Vec::new() };
        state.programs.range(..entries).map(|(index, program)| (*index, Some(Arc::clone(program)))).collect()
    }

    /// How many references to a program it keeps, in its slots and for sites that jump to them. References that wait
    /// for runs to end are not among them. In a forked child, `None` if another thread was changing the table at the
    /// fork.
    pub(crate) fn holds_of(&self, program: *const ()) -> Option<usize> {
        let state = self.lock_to_read()?;
        let is = |member: &Arc<dyn Member>| core::ptr::eq(Arc::as_ptr(member).cast(), program);
        let sites = state.sites.iter().filter(|(_, site)| site.target().is_some_and(|target| is(&target.0)));
        Some(state.programs.values().filter(|member| is(member)).count() + sites.count())
    }

    /// The programs in it that are not among those seen, once each.
    pub(crate) fn programs(&self, seen: &mut HashSet<*const ()>) -> Vec<Arc<dyn Member>> {
        let Some(state) = self.lock_to_read() else { return Vec::new() };
        state.programs.values().filter(|program| seen.insert(Arc::as_ptr(program).cast())).cloned().collect()
    }

    fn clear_all(self: &Arc<Self>) {
        if self.domain.is_forked() {
            return; // As in `untrack`.
        }
        let mut state = self.lock();
        let changes = state.programs.keys().map(|&index| (index, None)).collect();
        // No user is left to report an error to. A site that cannot be closed keeps its target.
        let bound = state.bound;
        let (_, left) = self.apply(&mut state, changes, bound, Failing::GoOn);
        drop(state);
        left.finish();
    }

    /// Links sites of newly placed code to the programs in their slots, and patches them from now on.
    pub(crate) fn track(&self, owner: u64, sites: Vec<(u32, TextSlots)>) -> Result<(), ProgArrayError> {
        let State { programs, sites: all, .. } = &mut *self.lock();
        let current = |index: u32| programs.get(&index).cloned().map(Jump);
        all.track(&self.clock, owner, sites, current).map_err(text_error)
    }

    /// Removes the sites of code that no run enters any more.
    pub(crate) fn untrack(&self, owner: u64, slots: &[u32]) {
        if self.domain.is_forked() {
            return; // A thread that does not exist here may hold the lock, and no site is patched in a child.
        }
        let gone: Vec<_> = {
            let mut state = self.lock();
            slots.iter().flat_map(|index| state.sites.untrack(*index, owner)).collect()
        };
        // Their targets go here, without the lock.
        drop(gone);
    }

    /// How many sites jump through a slot.
    pub(crate) fn tracked(&self, index: u32) -> usize {
        self.lock_to_read().map_or(0, |state| state.sites.tracked(index))
    }

    /// Frees what was deferred until the runs of then were over.
    fn settle(&self) {
        let free = self.lock().sites.settle(&self.clock);
        drop(free);
    }

    fn check_index(&self, index: u32) -> Result<(), ProgArrayError> {
        let entries = self.entries();
        if index < entries { Ok(()) } else { Err(ProgArrayError::OutOfRange { index, entries }) }
    }

    /// Patches the sites of these slots, then stores the words, and `bound` on success. The returned [`Left`] must be
    /// finished without the lock.
    fn apply(
        self: &Arc<Self>,
        state: &mut State,
        changes: Vec<(u32, Slot)>,
        bound: Bound,
        failing: Failing,
    ) -> (Result<(), ProgArrayError>, Left) {
        // One change a slot, the last.
        let changes: BTreeMap<u32, Slot> = changes.into_iter().collect();
        let changes: Vec<Change<Jump>> = changes
            .into_iter()
            .map(|(index, new)| Change {
                index,
                old: state.programs.get(&index).cloned().map(Jump),
                new: new.map(Jump),
            })
            .collect();
        let free = state.sites.settle(&self.clock);
        let result = state.sites.update(&self.clock, &changes).map_err(text_error);
        let mut old = Vec::new();
        if result.is_ok() || failing == Failing::GoOn {
            state.bound = bound;
            for Change { index, new, .. } in &changes {
                let word = new.as_ref().map_or(0, |program| program.0.slot_word());
                // Release pairs with the acquire in `program_at`; emitted code depends on the address it loads.
                self.words[*index as usize + 1].store(word, Ordering::Release);
                if let Some(observed) = self.observed.get() {
                    let program = new.as_ref().map_or(0, |program| program.0.program_address());
                    // Release pairs with the acquire in `program_at`.
                    observed.programs[*index as usize].store(program, Ordering::Release);
                }
                old.extend(match new {
                    Some(program) => state.programs.insert(*index, Arc::clone(&program.0)),
                    None => state.programs.remove(index),
                });
            }
        }
        let done = result.is_ok() || failing == Failing::GoOn;
        let (table, settled) = (Arc::clone(self), state.sites.is_settled());
        (result, Left { table, gone: Some((old, Box::new(free))), changes, done, settled })
    }
}

/// The programs that were in slots, and targets of sites that no run is in any more.
type Gone = (Vec<Arc<dyn Member>>, Box<dyn Any + Send>);

/// The rest of a change, to be finished without the lock. Dropping it queues the drop of the removed programs after a
/// grace period. Queueing runs no foreign code, so it may be done under the table's lock and while the thread unwinds.
#[must_use = "changes are told of when it is finished"]
struct Left {
    table: Arc<ProgTable>,
    /// The removed programs, and the state of sites that is not needed any more.
    gone: Option<Gone>,
    /// The changes that were requested.
    changes: Vec<Change<Jump>>,
    /// Whether it was.
    done: bool,
    /// Whether no site waits to be freed.
    settled: bool,
}

impl Left {
    /// Queues the programs that the table holds no longer for release, and reports the changes to listeners; without
    /// any lock.
    fn finish(self) {
        self.finish_with(&mut Finish::default());
    }

    fn finish_with(mut self, finish: &mut Finish) {
        let changes = std::mem::take(&mut self.changes);
        let (table, done) = (Arc::clone(&self.table), self.done);
        drop(self);
        for Change { index, old, new } in changes.iter().filter(|_| done) {
            if cfg!(feature = "tracing") && (old.is_some() || new.is_some()) {
                let (old, new) = (old.as_ref().map(Jump::path), new.as_ref().map(Jump::path));
                finish.step(|| trace::slot_changed(table.name(), *index, old.as_deref(), new.as_deref()));
            }
        }
        for change in changes {
            finish.step(|| drop(change));
        }
        finish.step(|| table.domain.tend());
        finish.step(|| drop(table));
    }
}

impl Drop for Left {
    fn drop(&mut self) {
        // A run may have read the word and not have jumped yet. CPUs that hold a jump of a site are covered as well:
        // the update ended with a barrier if there was one.
        if let Some(gone) = self.gone.take() {
            self.table.domain.enqueue(move || drop(gone));
        }
        if !self.settled {
            let weak = Arc::downgrade(&self.table);
            self.table.domain.enqueue(move || {
                if let Some(table) = weak.upgrade() {
                    table.settle();
                }
            });
        }
    }
}

/// Changes of slots of several tables that were made together, or not at all: [`exchange`].
#[must_use = "to be finished without any lock"]
pub(crate) struct Exchanged {
    result: Result<(), NotExchanged>,
    /// The former contents of the slots, in the order of the changes.
    held: Vec<Slot>,
    left: Vec<Left>,
}

impl Exchanged {
    fn not(why: NotExchanged) -> Exchanged {
        Exchanged { result: Err(why), held: Vec::new(), left: Vec::new() }
    }

    /// Whether the slots were changed, or claimed.
    pub(crate) fn is_done(&self) -> bool {
        self.result.is_ok()
    }

    /// Drops the removed programs, without any lock. Returns the former contents of the slots.
    pub(crate) fn finish(self, finish: &mut Finish) -> Result<Vec<Slot>, NotExchanged> {
        self.left.into_iter().for_each(|left| left.finish_with(finish));
        self.result.map(|()| self.held)
    }
}

/// The step of a plan that an [`exchange`] performs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    /// The slots are set at once. Refused for slots that a rollback has claimed, since the rollback has yet to restore
    /// their programs.
    Set,
    /// The slots stay as they are and are claimed for [`Turn::Return`]. Refused as [`Turn::Set`] is.
    Claim,
    /// The claimed slots are set, except those with unexpected contents, which were set directly since the claim.
    Return,
}

/// Why no slot was changed.
pub(crate) enum NotExchanged {
    /// This slot of the table of this name does not have its expected contents.
    Unexpected(String, u32),
    /// A rollback has claimed this slot of the table of this name.
    Claimed(String, u32),
    /// A change of the table of this name is impossible.
    Refused(String, ProgArrayError),
}

/// Changes slots of these tables, all or none. All tables are locked, and every change is checked before the first is
/// made; only patching code can fail after that, and is undone. Runs see one slot change after the other.
pub(crate) fn exchange(changes: &[(&Arc<ProgTable>, Exchange)], turn: Turn) -> Exchanged {
    let mut tables: Vec<&Arc<ProgTable>> = changes.iter().map(|(table, _)| *table).collect();
    let refused = |table: &ProgTable, error| NotExchanged::Refused(table.name().to_owned(), error);
    for table in &tables {
        if let Err(error) = table.may_change() {
            return Exchanged::not(refused(table, error));
        }
    }
    // The order in which locks are taken, as in `bind_all`.
    tables.sort_by_key(|table| Arc::as_ptr(table));
    tables.dedup_by_key(|table| Arc::as_ptr(table));
    let mut states: Vec<MutexGuard<'_, State>> = tables.iter().map(|table| table.lock()).collect();
    let place = |table: &Arc<ProgTable>| tables.iter().position(|known| Arc::ptr_eq(known, table)).unwrap_or(0);
    let held =
        |(table, change): &(&Arc<ProgTable>, Exchange)| states[place(table)].programs.get(&change.index).cloned();
    let held: Vec<Slot> = changes.iter().map(held).collect();
    let mut wanted = Vec::with_capacity(changes.len());
    for ((table, change), held) in changes.iter().zip(&held) {
        let claimed = states[place(table)].returning.contains(&change.index);
        let expected = change.expected.as_ref().is_none_or(|expected| same(expected, held));
        match turn {
            Turn::Set | Turn::Claim if claimed => {
                return Exchanged::not(NotExchanged::Claimed(table.name().to_owned(), change.index));
            }
            Turn::Set | Turn::Claim if !expected => {
                return Exchanged::not(NotExchanged::Unexpected(table.name().to_owned(), change.index));
            }
            Turn::Return if !expected => {}
            Turn::Set | Turn::Claim | Turn::Return => wanted.push((*table, change, held)),
        }
    }
    let own = |table: &Arc<ProgTable>| {
        let table = Arc::clone(table);
        wanted.iter().filter(move |(of, ..)| Arc::ptr_eq(of, &table))
    };
    let new = |table: &Arc<ProgTable>| -> Vec<(u32, Slot)> {
        own(table).map(|(_, change, _)| (change.index, change.new.clone())).collect()
    };
    let mut bounds = Vec::with_capacity(tables.len());
    for (table, state) in tables.iter().zip(&states) {
        match table.check(state, &new(table)) {
            Ok(bound) => bounds.push(bound),
            Err(error) => return Exchanged::not(refused(table, error)),
        }
    }
    let mut exchanged = Exchanged { result: Ok(()), held: Vec::new(), left: Vec::new() };
    if turn == Turn::Claim {
        for (table, change) in changes {
            states[place(table)].returning.insert(change.index);
        }
        return exchanged;
    }
    let before: Vec<Bound> = states.iter().map(|state| state.bound).collect();
    for (at, table) in tables.iter().enumerate() {
        let (result, left) = table.apply(&mut states[at], new(table), bounds[at], Failing::Undo);
        exchanged.left.push(left);
        let Err(error) = result else { continue };
        exchanged.result = Err(refused(table, error));
        for (at, table) in tables.iter().enumerate().take(at) {
            let back = own(table).map(|(_, change, held)| (change.index, (*held).clone())).collect();
            // A site that cannot be patched keeps its target until its slot is set again.
            let (_, left) = table.apply(&mut states[at], back, before[at], Failing::GoOn);
            exchanged.left.push(left);
        }
        break;
    }
    drop(states);
    exchanged.held = held;
    exchanged
}

/// The contents of a slot.
pub(crate) type Slot = Option<Arc<dyn Member>>;

fn same(a: &Slot, b: &Slot) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => Arc::ptr_eq(a, b),
        (None, None) => true,
        (Some(_), None) | (None, Some(_)) => false,
    }
}

/// A change of a slot.
#[derive(Clone)]
pub(crate) struct Exchange {
    pub(crate) index: u32,
    pub(crate) new: Slot,
    /// The contents that the slot must have before the change; `None` for any.
    pub(crate) expected: Option<Slot>,
}

/// How an update continues if its sites cannot be patched.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Failing {
    /// All patches are undone, and the words keep their values.
    Undo,
    /// The words are changed nevertheless.
    GoOn,
}

fn text_error(error: UpdateError<PokeError, CoreBarrierError>) -> ProgArrayError {
    ProgArrayError::Text(error.to_string())
}

impl Bound {
    fn with(self, kind: Kind) -> Result<Bound, ProgArrayError> {
        if self.mode.is_some_and(|mode| mode != kind.mode) {
            return Err(ProgArrayError::Mode);
        }
        Ok(Bound { mode: Some(kind.mode), ..self.on(kind.layout, kind.host)? })
    }

    fn on(self, layout: &'static ContextLayout, host: HostType) -> Result<Bound, ProgArrayError> {
        if let Some(bound) = self.host.filter(|bound| *bound != host) {
            return Err(ProgArrayError::Host { program: host.name(), array: bound.name() });
        }
        let bound = self.layout.unwrap_or(layout);
        if core::ptr::eq(bound, layout) {
            return Ok(Bound { layout: Some(layout), host: Some(host), ..self });
        }
        Err(ProgArrayError::Context { program: layout.name.to_string(), array: bound.name.to_string() })
    }
}

/// Programs of this kind may jump through these arrays from now on: through all of them, or as before through none.
pub(crate) fn bind_all<'t>(tables: impl Iterator<Item = &'t Arc<ProgTable>>, kind: Kind) -> Result<(), LoadError> {
    // All locks at once, each once and in the order of addresses, so that two loads never wait for each other.
    let mut tables: Vec<&ProgTable> = tables.map(|table| &**table).collect();
    tables.sort_by_key(|table| core::ptr::from_ref(*table));
    tables.dedup_by_key(|table| core::ptr::from_ref(*table));
    let mut states: Vec<_> = tables.iter().map(|table| table.lock()).collect();
    let bound = |(table, state): (&&ProgTable, &MutexGuard<'_, State>)| {
        let array = || table.name().to_owned();
        state.bound.with(kind).map_err(|source| LoadError::ProgArray { array: array(), source })
    };
    let bounds = tables.iter().zip(&states).map(bound).collect::<Result<Vec<_>, _>>()?;
    for (state, bound) in states.iter_mut().zip(bounds) {
        state.bound = bound;
    }
    Ok(())
}

/// A user's hold on a table: when the last one goes, the table is emptied.
#[derive(Debug)]
pub(crate) struct UserHold(pub(crate) Arc<ProgTable>);

impl UserHold {
    pub(crate) fn new(table: &Arc<ProgTable>) -> UserHold {
        // Relaxed: a count; the drop that reaches zero takes the lock.
        table.users.fetch_add(1, Ordering::Relaxed);
        UserHold(Arc::clone(table))
    }
}

impl Drop for UserHold {
    fn drop(&mut self) {
        // AcqRel: the holder that clears the array sees all stores of the holders that were dropped before.
        if self.0.users.fetch_sub(1, Ordering::AcqRel) == 1 {
            // The programs of the slots then wait in the domain. They own the engine, which owns the domain: a cycle,
            // which `settle` breaks. The instance's engine handle, whose drop would do so, may have been dropped before
            // this.
            let mut finish = Finish::default();
            finish.step(|| self.0.clear_all());
            finish.step(|| self.0.domain.settle());
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::handle::prog_array::ProgArray;
    use crate::{Config, Engine, Linker, Program, Raw};
    use bpf_isa::assemble;

    /// In a forked child, the lock may be that of a thread which the child does not have.
    #[test]
    fn observed_runs_take_no_lock() {
        let engine = Engine::new(Config::new()).unwrap();
        let linker = Linker::<()>::new(&engine);
        let array = ProgArray::<Raw, ()>::create(&engine, "next", 3).unwrap();
        let load = |text: &str| -> Program<Raw, ()> {
            let loader = linker.loader().prog_arrays(&[&array]).recordable(true);
            loader.insns("program", assemble(text).unwrap()).unwrap()
        };
        let returns = load("r0 = 7\nexit");
        array.set(1, &returns).unwrap();
        let jumps: Program<Raw, ()> = load("r2 = map[fd:0]\nr3 = 1\ncall 12\nr0 = 1\nexit");
        for expected in [7, 1, 8] {
            match expected {
                1 => array.clear(1).unwrap(),
                8 => array.set(1, &load("r0 = 8\nexit")).unwrap(),
                _set => {}
            }
            let table = jumps.loaded().tables().next().unwrap();
            let locked = table.lock();
            assert_eq!(jumps.run_observed(&mut (), &mut [], &mut ()).unwrap(), expected);
            drop(locked);
            assert_eq!(jumps.run(&mut (), &mut []).unwrap(), expected);
        }
    }
}
