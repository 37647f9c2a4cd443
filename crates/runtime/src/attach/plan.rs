//! Plans: changes of several hooks and prog arrays, all or none.
//!
//! Problem: a new version of a plug-in is several programs in several hooks and slots, and any of these steps may be
//! refused. Approach: steps that may fail are done first, without publishing anything. Each hook's next list and image
//! are built; then all hooks and prog arrays are locked, and if no other thread has changed one since, and each slot
//! accepts its program, the slots are set and the hooks published, one store each. Under the locks, only patching code
//! may fail, which can be undone.
//!
//! Visibility: a run is one call of `Hook::run` (or of a `Runner`) with the programs that it tail-calls. It loads the
//! hook's image once, so it runs the old list or the new one. Hooks are published in the order in which the plan names
//! them, by release stores: a thread that has seen the new version of one sees the new version of each hook named
//! before it.
//!
//! A rollback has the reverse order: hooks first, then, when every run that began before is over, slots. The prog
//! arrays of the new version stay filled as long as one of its runs may jump through them. In between, the rollback has
//! a claim on its slots, which is made under the same locks as the hooks are put back. The claim keeps other plans from
//! taking the slots' programs of the new version for the state to restore, so commits and rollbacks that share a slot
//! are in one order. A plan that meets a claim is refused ([`PlanError::RollingBack`]): it cannot wait, since the
//! rollback may be waiting for the run that it is made in.
//!
//! Panics of `tracing` subscribers and of host destructors are resumed after the whole plan is committed or rolled back
//! ([`Finish`]).
//!
//! Invariants: locks are taken in the order of addresses, locks of hooks before locks of prog arrays; under them
//! nothing is dropped, no deferred drop is run, and nothing is placed.

use crate::attach::hook::{Attachment, Edit, Hook, HookError, Prepared, Replacing, State};
use crate::call::state::Host;
use crate::context::Context;
use crate::error::ProgArrayError;
use crate::handle::prog_array::ProgArray;
use crate::handle::program::Program;
use crate::program::table::{
    Exchange, Exchanged, Member, NotExchanged, ProgTable, Slot as TableSlot, Turn, UserHold, exchange,
};
use bpf_quiesce::{Domain, Finish, Owned, WaitError};
use std::fmt;
use std::sync::{Arc, MutexGuard};

/// Why a plan was not committed. Nothing has changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// A hook refused a change.
    #[error("hook {hook} of the plan: {source}")]
    Hook {
        /// The index of the hook, in the order in which the plan names hooks, from 0.
        hook: usize,
        /// The hook's reason for refusing the change.
        r#source: HookError,
    },
    /// A prog array refused to set or clear a slot.
    #[error("prog array `{array}`: {source}")]
    ProgArray {
        /// The name of the array.
        array: String,
        /// The prog array's reason for refusing the change.
        r#source: ProgArrayError,
    },
    /// The plan changes a slot twice.
    #[error("the plan names slot {index} of prog array `{array}` twice")]
    Twice {
        /// The name of the array.
        array: String,
        /// The index of the slot.
        index: u32,
    },
    /// The plan's hooks and prog arrays are of several engines.
    #[error("a plan is for the hooks and prog arrays of one engine, and these are of several")]
    OtherEngine,
    /// A hook or slot to roll back was changed by others since the commit; or others kept on changing a hook while the
    /// plan was committed.
    #[error("somebody else has changed {place}")]
    Changed {
        /// The hook, by its index in the plan from 0, or the slot and its prog array.
        place: String,
    },
    /// Another plan is being rolled back and waits for runs before it puts this slot back.
    #[error(
        "slot {index} of prog array `{array}` is about to be put back by another plan's rollback, which waits for runs: \
         try again when that rollback has returned"
    )]
    RollingBack {
        /// The name of the array.
        array: String,
        /// The index of the slot.
        index: u32,
    },
    /// A rollback must wait for runs of the new version, and this thread cannot wait.
    #[error("going back waits for the runs that are going on: {0}")]
    Wait(WaitError),
}

impl From<WaitError> for PlanError {
    fn from(error: WaitError) -> PlanError {
        PlanError::Wait(error)
    }
}

/// Changes of hooks and prog arrays that are made together, or not at all.
///
/// Each run of a hook, with the programs that it tail-calls, sees the hook before the plan or after it. A thread that
/// has seen the plan done at one hook sees it done at the hooks that the plan names before, so name first the hook that
/// runs last. Slots of a prog array change for runs in progress, too. To avoid that, give the new version an array of
/// its own ([`crate::MapSet::copy_array`]), which no run reaches before the hooks are changed.
///
/// ```
/// use bpf_runtime::{Config, Engine, Hook, HookPolicy, Linker, Plan, Raw, isa::assemble};
///
/// let engine = Engine::new(Config::new())?;
/// let linker = Linker::<()>::new(&engine);
/// let load = |name, text| linker.loader::<Raw>().insns(name, assemble(text).unwrap());
/// let (old, new, log) = (load("old", "r0 = 1\nexit")?, load("new", "r0 = 2\nexit")?, load("log", "r0 = 0\nexit")?);
/// let verdict = Hook::<Raw, ()>::new(&engine, HookPolicy::LastWins { empty: 0 })?;
/// let observers = Hook::<Raw, ()>::new(&engine, HookPolicy::RunAll { result: 0 })?;
/// verdict.attach(&old)?;
///
/// let done = Plan::new().replace(&verdict, &old, &new).attach(&observers, &log).commit()?;
/// assert_eq!(verdict.run_on(&mut [])?, 2);
/// done.roll_back()?;
/// assert_eq!(verdict.run_on(&mut [])?, 1);
/// assert!(observers.programs().is_empty());
///
/// // The first step could be done, the second not: nothing is.
/// let refused = Plan::new().replace(&verdict, &old, &new).detach(&observers, &log).commit();
/// assert!(refused.is_err());
/// assert_eq!(verdict.run_on(&mut [])?, 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Default)]
#[must_use = "a plan does nothing until it is committed"]
pub struct Plan<'p> {
    hooks: Hooks<'p>,
    slots: Vec<Slot>,
}

/// A plan's changes of hooks.
type Hooks<'p> = Vec<Box<dyn Change<'p> + 'p>>;

/// A slot, and the program that it gets.
struct Slot {
    /// A user's hold on the array, so that the array has a user who can empty it. A program in an array without users
    /// would never be removed, and would keep itself alive if it jumps through the array.
    hold: UserHold,
    change: Exchange,
}

impl Slot {
    fn new(table: &Arc<ProgTable>, index: u32, program: Option<Arc<dyn Member>>) -> Slot {
        Slot { hold: UserHold::new(table), change: Exchange { index, new: program, expected: None } }
    }

    /// Returns the change that puts back `held`, unless the slot was changed since.
    fn back(&self, held: Option<Arc<dyn Member>>) -> Slot {
        let Exchange { index, ref new, .. } = self.change;
        let change = Exchange { index, new: held, expected: Some(new.clone()) };
        Slot { hold: UserHold::new(self.table()), change }
    }

    fn table(&self) -> &Arc<ProgTable> {
        &self.hold.0
    }
}

impl fmt::Debug for Plan<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Plan").field("hooks", &self.hooks.len()).field("slots", &self.slots.len()).finish()
    }
}

/// A plan that was committed. It keeps the replaced programs for a rollback until it is dropped.
#[must_use = "it keeps the old programs until it is dropped"]
pub struct Applied<'p> {
    back: Plan<'p>,
}

impl fmt::Debug for Applied<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Applied").field("back", &self.back).finish_non_exhaustive()
    }
}

/// How often a commit is tried because other threads change one of its hooks meanwhile.
const ATTEMPTS: u32 = 100;

impl<'p> Plan<'p> {
    /// Makes a plan without changes.
    pub fn new() -> Plan<'p> {
        Plan::default()
    }

    /// As [`Hook::attach`].
    pub fn attach<C: Context + 'p, H: Host + ?Sized>(self, hook: &'p Hook<C, H>, program: &Program<C, H>) -> Plan<'p> {
        self.attach_with(hook, program, Attachment::default())
    }

    /// As [`Hook::attach_with`].
    pub fn attach_with<C: Context + 'p, H: Host + ?Sized>(
        self,
        hook: &'p Hook<C, H>,
        program: &Program<C, H>,
        attachment: Attachment,
    ) -> Plan<'p> {
        self.edit(hook, Edit::Attach(program.clone(), attachment))
    }

    /// As [`Hook::detach`].
    pub fn detach<C: Context + 'p, H: Host + ?Sized>(self, hook: &'p Hook<C, H>, program: &Program<C, H>) -> Plan<'p> {
        self.edit(hook, Edit::Detach(program.clone()))
    }

    /// As [`Hook::replace`].
    pub fn replace<C: Context + 'p, H: Host + ?Sized>(
        self,
        hook: &'p Hook<C, H>,
        old: &Program<C, H>,
        new: &Program<C, H>,
    ) -> Plan<'p> {
        self.edit(hook, Edit::Replace(old.clone(), new.clone()))
    }

    /// As [`ProgArray::set`].
    pub fn set<C: Context, H: Host + ?Sized>(
        mut self,
        array: &ProgArray<C, H>,
        index: u32,
        program: &Program<C, H>,
    ) -> Plan<'p> {
        let program: Option<Arc<dyn Member>> = Some(Arc::clone(program.loaded()) as _);
        self.slots.push(Slot::new(array.table(), index, program));
        self
    }

    /// Empties a slot, if it is not empty.
    pub fn clear<C: Context, H: Host + ?Sized>(mut self, array: &ProgArray<C, H>, index: u32) -> Plan<'p> {
        self.slots.push(Slot::new(array.table(), index, None));
        self
    }

    fn edit<C: Context + 'p, H: Host + ?Sized>(mut self, hook: &'p Hook<C, H>, edit: Edit<C, H>) -> Plan<'p> {
        let at = core::ptr::from_ref(hook).cast::<()>();
        match self.hooks.iter_mut().find(|change| change.hook() == at) {
            Some(change) => {
                let change: *mut (dyn Change<'p> + 'p) = &raw mut **change;
                // SAFETY: the change is of the hook at this address. The hook is borrowed for `'p`, so it is this hook,
                // and the box holds a `HookChange` of its types `C` and `H`. `self.hooks` is borrowed mutably, so
                // nobody else uses it.
                let change = unsafe { &mut *change.cast::<HookChange<'p, C, H>>() };
                change.edits.push(edit);
            }
            None => self.hooks.push(Box::new(HookChange::new(hook, vec![edit], None))),
        }
        self
    }

    /// Makes all changes, or none.
    ///
    /// # Errors
    /// [`PlanError`]; nothing has changed.
    pub fn commit(self) -> Result<Applied<'p>, PlanError> {
        let mut finish = Finish::default();
        let applied = self.commit_with(&mut finish)?;
        // Dropped here and not at the end of the function, where a panic would leak the result.
        drop(finish);
        Ok(applied)
    }

    /// Makes all changes, or none. Panics of the host are kept in `finish`, for a caller that has more to do.
    pub(crate) fn commit_with(mut self, finish: &mut Finish) -> Result<Applied<'p>, PlanError> {
        self.check()?;
        Ok(Applied { back: self.change(Turn::Set, finish)? })
    }

    /// Commits a plan that rolls back another.
    fn carry_back(mut self) -> Result<(), PlanError> {
        // Dropped last, after both steps: subscribers and destructors of the host may panic.
        let mut finish = Finish::default();
        let domain = match self.slots.first() {
            Some(slot) if !self.hooks.is_empty() => Arc::clone(slot.table().domain()),
            // Without hooks there are no runs of the new version to wait for.
            Some(_) | None => {
                let forward = self.change(Turn::Set, &mut finish)?;
                finish.step(|| drop(forward));
                return Ok(());
            }
        };
        domain.can_wait()?;
        let mut forward = self.change(Turn::Claim, &mut finish)?;
        let claimed = Claimed(&self.slots);
        let waited = domain.synchronize().map_err(PlanError::from);
        let result = waited.and_then(|()| self.exchange(Turn::Return).finish(&mut finish).map_err(refused));
        if result.is_err() {
            // Other plans may have changed the hooks since: then they stay.
            let _ = forward.change(Turn::Set, &mut finish);
        }
        drop(claimed);
        finish.step(|| drop(forward));
        finish.step(|| drop(self));
        drop(finish);
        result.map(drop)
    }

    /// Changes the hooks, and sets or claims the slots; tries again if others change a hook meanwhile. Returns the plan
    /// that undoes it.
    fn change(&mut self, turn: Turn, finish: &mut Finish) -> Result<Plan<'p>, PlanError> {
        let mut changed = 0;
        for _ in 0..ATTEMPTS {
            self.prepare()?;
            let held = match self.publish(turn, finish) {
                Ok(held) => held,
                Err(NotPublished::Changed(hook)) => {
                    changed = hook;
                    continue;
                }
                Err(NotPublished::Refused(error)) => return Err(error),
            };
            // Without the locks: the removed programs are kept for a rollback, and the rest is dropped here.
            let hooks = std::mem::take(&mut self.hooks).into_iter().map(|change| change.finish(finish)).collect();
            let slots = self.slots.iter().zip(held).map(|(slot, held)| slot.back(held)).collect();
            return Ok(Plan { hooks, slots });
        }
        Err(changed_hook(changed))
    }

    fn exchange(&self, turn: Turn) -> Exchanged {
        let slots: Vec<_> = self.slots.iter().map(|slot| (slot.table(), slot.change.clone())).collect();
        exchange(&slots, turn)
    }

    /// Checks that all hooks and arrays are of one engine, and no slot is changed twice.
    fn check(&self) -> Result<(), PlanError> {
        let hooks = self.hooks.iter().map(|change| change.domain());
        let mut domains = hooks.chain(self.slots.iter().map(|slot| slot.table().domain()));
        if let Some(first) = domains.next()
            && domains.any(|domain| !Arc::ptr_eq(first, domain))
        {
            return Err(PlanError::OtherEngine);
        }
        for (at, slot) in self.slots.iter().enumerate() {
            let index = slot.change.index;
            let same = |other: &Slot| Arc::ptr_eq(other.table(), slot.table()) && other.change.index == index;
            if self.slots[..at].iter().any(same) {
                return Err(PlanError::Twice { array: slot.table().name().to_owned(), index });
            }
        }
        Ok(())
    }

    fn prepare(&mut self) -> Result<(), PlanError> {
        for (hook, change) in self.hooks.iter_mut().enumerate() {
            change.prepare().map_err(|error| match error {
                Refused::Changed => changed_hook(hook),
                Refused::Hook(source) => PlanError::Hook { hook, source },
            })?;
        }
        Ok(())
    }

    /// Sets or claims the slots and publishes all hooks, under the locks of all hooks. Returns the former contents of
    /// the slots.
    fn publish(&mut self, turn: Turn, finish: &mut Finish) -> Result<Vec<TableSlot>, NotPublished> {
        let slots: Vec<_> = self.slots.iter().map(|slot| (slot.table(), slot.change.clone())).collect();
        let mut order: Vec<_> = self.hooks.iter_mut().enumerate().collect();
        order.sort_by_key(|(_, change)| change.hook());
        let mut locked: Vec<_> = order.into_iter().map(|(at, change)| (at, change.lock())).collect();
        if let Some((at, _)) = locked.iter().find(|(_, change)| !change.is_same()) {
            return Err(NotPublished::Changed(*at));
        }
        let exchanged = exchange(&slots, turn);
        if exchanged.is_done() {
            // Hooks are published in the plan's order.
            locked.sort_by_key(|(at, _)| *at);
            locked.iter_mut().for_each(|(_, change)| change.publish());
        }
        drop(locked);
        exchanged.finish(finish).map_err(|why| NotPublished::Refused(refused(why)))
    }
}

/// The slots that a rollback has claimed, for as long as it goes on.
struct Claimed<'s>(&'s [Slot]);

impl Drop for Claimed<'_> {
    fn drop(&mut self) {
        self.0.iter().for_each(|slot| slot.table().disclaim(slot.change.index));
    }
}

/// Why no change of a plan was published.
enum NotPublished {
    /// This hook was changed by another thread since it was prepared.
    Changed(usize),
    Refused(PlanError),
}

fn changed_hook(hook: usize) -> PlanError {
    PlanError::Changed { place: format!("hook {hook} of the plan") }
}

fn refused(why: NotExchanged) -> PlanError {
    match why {
        NotExchanged::Unexpected(array, index) => {
            PlanError::Changed { place: format!("slot {index} of prog array `{array}`") }
        }
        NotExchanged::Claimed(array, index) => PlanError::RollingBack { array, index },
        NotExchanged::Refused(array, source) => PlanError::ProgArray { array, source },
    }
}

impl<'p> Applied<'p> {
    /// Puts back the programs that the plan replaced, all or nothing: first the hooks, and, when all runs are over that
    /// had begun by then, the slots of prog arrays. A run of the new version finds its own array unchanged to its end.
    /// Runs of the old version that share the array find the new version's slots until then. If the plan has both hooks
    /// and slots, this call waits for these runs.
    ///
    /// # Errors
    /// [`PlanError::Changed`] if one of the hooks or slots was changed by others since, [`PlanError::RollingBack`] if
    /// another rollback is putting back one of the slots, [`PlanError::Wait`] inside a run or in a forked child; other
    /// [`PlanError`]s. Nothing has changed then; but if executable memory cannot be patched and another thread changes
    /// a hook at that moment, the hooks stay rolled back.
    pub fn roll_back(self) -> Result<(), PlanError> {
        self.back.carry_back()
    }
}

/// Why a hook's change was not prepared.
enum Refused {
    /// A rollback found the hook changed since the commit.
    Changed,
    Hook(HookError),
}

/// Changes of one hook, whatever its context and host.
trait Change<'p>: Send {
    /// Its address.
    fn hook(&self) -> *const ();

    fn domain(&self) -> &Arc<Domain>;

    /// Makes the next list and image.
    fn prepare(&mut self) -> Result<(), Refused>;

    /// Takes the lock.
    fn lock(&mut self) -> Box<dyn Locked + '_>;

    /// Ends the replacement, and returns the change that would undo it.
    fn finish(self: Box<Self>, finish: &mut Finish) -> Box<dyn Change<'p> + 'p>;
}

struct HookChange<'p, C, H: ?Sized> {
    hook: &'p Hook<C, H>,
    edits: Vec<Edit<C, H>>,
    /// If set, the change is made only if the hook's list is of this version.
    expected: Option<u64>,
    prepared: Option<Prepared<C, H>>,
    replaced: Option<Replacing<C, H>>,
}

impl<'p, C, H: ?Sized> HookChange<'p, C, H> {
    fn new(hook: &'p Hook<C, H>, edits: Vec<Edit<C, H>>, expected: Option<u64>) -> Self {
        HookChange { hook, edits, expected, prepared: None, replaced: None }
    }
}

impl<'p, C: Context + 'p, H: Host + ?Sized> Change<'p> for HookChange<'p, C, H> {
    fn hook(&self) -> *const () {
        core::ptr::from_ref(self.hook).cast()
    }

    fn domain(&self) -> &Arc<Domain> {
        self.hook.engine().domain()
    }

    fn prepare(&mut self) -> Result<(), Refused> {
        let prepared = self.hook.prepare(&self.edits).map_err(Refused::Hook)?;
        if self.expected.is_some_and(|expected| expected != prepared.from()) {
            return Err(Refused::Changed);
        }
        self.prepared = Some(prepared);
        Ok(())
    }

    fn lock(&mut self) -> Box<dyn Locked + '_> {
        Box::new(LockedHook { state: self.hook.lock(), change: self })
    }

    fn finish(mut self: Box<Self>, finish: &mut Finish) -> Box<dyn Change<'p> + 'p> {
        let hook = self.hook;
        let (edits, expected) = match self.replaced.take() {
            Some(replaced) => {
                let (back, made) = replaced.finish(hook, finish);
                (vec![back], Some(made))
            }
            None => (Vec::new(), None),
        };
        Box::new(HookChange::new(hook, edits, expected))
    }
}

/// A change whose hook is locked.
trait Locked {
    /// Whether the hook is as it was when the change was prepared.
    fn is_same(&self) -> bool;

    /// Publishes what was prepared.
    fn publish(&mut self);
}

struct LockedHook<'c, 'p, C, H: ?Sized> {
    state: MutexGuard<'p, State<C, H>>,
    change: &'c mut HookChange<'p, C, H>,
}

impl<C: Context, H: Host + ?Sized> Locked for LockedHook<'_, '_, C, H> {
    fn is_same(&self) -> bool {
        self.change.prepared.as_ref().is_some_and(|prepared| prepared.is_for(&self.state))
    }

    fn publish(&mut self) {
        if let Some(prepared) = self.change.prepared.take() {
            self.change.replaced = Some(self.change.hook.publish(&mut self.state, prepared));
        }
    }
}
