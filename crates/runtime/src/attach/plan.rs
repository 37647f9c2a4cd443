//! Plans: changes of several hooks and prog arrays, all or none.
//!
//! Problem: a new version of a plug-in is several programs in several hooks and slots, and any of these steps may be
//! refused. Approach: what may fail is done first and aside. Each hook's next list and image are made without
//! publishing them; then all hooks and prog arrays are locked, and if nobody has changed one meanwhile, and each slot
//! can hold what it is to, the slots are set and the hooks published, one store each. Of all this only patching code
//! may fail, which can be undone.
//!
//! What a run sees: a run is one call of `Hook::run` (or of a `Runner`) with all that it tail-calls. It takes the
//! hook's image once, so it runs the old list or the new one. Hooks are published in the order in which the plan names
//! them, by releases: who has seen the new version of one sees the new version of those named before it.
//!
//! Going back is the other way round: hooks first, then, when every run that began before is over, slots. The array of
//! the new version is filled as long as one of its runs may jump through it. In between, the rollback has a claim on
//! its slots, which is made in the same step as the hooks are put back: no other plan takes what they still hold for
//! what was there before, and commits and rollbacks that share a slot are in one order. A plan that meets a claim is
//! refused ([`PlanError::RollingBack`]): it cannot wait, since the rollback may be waiting for the run that it is made
//! in.
//!
//! Panics of listeners, and of what others own and is dropped, are resumed when a plan is carried out or put back as a
//! whole ([`Finish`]).
//!
//! Invariants: locks are taken in the order of addresses, those of hooks before those of prog arrays; under them
//! nothing is dropped, no deferred drop is run, and nothing is placed.

use crate::attach::hook::{Attachment, Edit, Hook, HookError, Prepared, Replacing, State};
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

/// Why a plan was not carried out. Nothing has changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// A hook cannot be changed so.
    #[error("hook {hook} of the plan: {source}")]
    Hook {
        /// Which of the hooks, in the order in which the plan names them, from 0.
        hook: usize,
        /// Why.
        source: HookError,
    },
    /// A slot of a prog array cannot be set or cleared so.
    #[error("prog array `{array}`: {source}")]
    ProgArray {
        /// Which array.
        array: String,
        /// Why.
        source: ProgArrayError,
    },
    /// The plan says twice what a slot is to hold.
    #[error("the plan names slot {index} of prog array `{array}` twice")]
    Twice {
        /// Which array.
        array: String,
        /// Which slot.
        index: u32,
    },
    /// Its hooks and prog arrays are of several engines.
    #[error("a plan is for the hooks and prog arrays of one engine, and these are of several")]
    OtherEngine,
    /// What is to be put back was changed by others meanwhile; or others kept on changing it while the plan was carried
    /// out.
    #[error("somebody else has changed {place}")]
    Changed {
        /// Which hook of the plan, in the order in which it names them from 0, or which slot of which prog array.
        place: String,
    },
    /// Another plan is being rolled back and waits for runs before it puts this slot back.
    #[error(
        "slot {index} of prog array `{array}` is about to be put back by another plan's rollback, which waits for runs: \
         try again when that rollback has returned"
    )]
    RollingBack {
        /// Which array.
        array: String,
        /// Which slot.
        index: u32,
    },
    /// Going back waits for the runs of what was there, and cannot.
    #[error("going back waits for the runs that are going on: {0}")]
    Wait(#[from] WaitError),
}

/// Changes of hooks and prog arrays that are made together, or not at all.
///
/// Each run of a hook, with all that it tail-calls, sees the hook before the plan or after it; who has seen it done at
/// one hook sees it done at those that the plan names before. So name first what runs last. Slots of a prog array
/// change for runs that are going on, too: a new version whose array is its own ([`crate::MapSet::copy_array`]) is not
/// seen before its hooks are changed.
///
/// ```
/// use bpf_runtime::{Config, Engine, Hook, Linker, Plan, Policy, Raw, assemble};
///
/// let engine = Engine::new(Config::default())?;
/// let linker = Linker::<()>::new(&engine);
/// let load = |name, text| linker.loader::<Raw>().insns(name, assemble(text).unwrap());
/// let (old, new, log) = (load("old", "r0 = 1\nexit")?, load("new", "r0 = 2\nexit")?, load("log", "r0 = 0\nexit")?);
/// let verdict = Hook::<Raw, ()>::new(&engine, Policy::LastWins { empty: 0 })?;
/// let observers = Hook::<Raw, ()>::new(&engine, Policy::RunAll { result: 0 })?;
/// verdict.attach(&old)?;
///
/// let done = Plan::new().replace(&verdict, &old, &new).attach(&observers, &log).commit()?;
/// assert_eq!(verdict.run(&mut (), &mut [])?, 2);
/// done.roll_back()?;
/// assert_eq!(verdict.run(&mut (), &mut [])?, 1);
/// assert!(observers.programs().is_empty());
///
/// // The first step could be done, the second not: nothing is.
/// let refused = Plan::new().replace(&verdict, &old, &new).detach(&observers, &log).commit();
/// assert!(refused.is_err());
/// assert_eq!(verdict.run(&mut (), &mut [])?, 1);
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

/// A slot, and what it is to hold.
struct Slot {
    /// A user's: who has given a plan to the array has a way left to change it. What was put into an array without any
    /// would never be taken out, and keep itself if it jumps through the array.
    hold: UserHold,
    change: Exchange,
}

impl Slot {
    fn new(table: &Arc<ProgTable>, index: u32, program: Option<Arc<dyn Member>>) -> Slot {
        Slot { hold: UserHold::new(table), change: Exchange { index, new: program, expected: None } }
    }

    /// What puts back what was there, unless somebody else has changed it since.
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

/// A plan that was carried out. It keeps what was taken out, so that it can be put back, until it is dropped.
#[must_use = "it keeps the old programs until it is dropped"]
pub struct Applied<'p> {
    back: Plan<'p>,
}

impl fmt::Debug for Applied<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Applied").field("back", &self.back).finish_non_exhaustive()
    }
}

/// How often a plan is begun again because somebody else has changed one of its hooks meanwhile.
const ATTEMPTS: u32 = 100;

impl<'p> Plan<'p> {
    /// No changes.
    pub fn new() -> Plan<'p> {
        Plan::default()
    }

    /// As [`Hook::attach`].
    pub fn attach<C: Context + 'p, H: 'static>(self, hook: &'p Hook<C, H>, program: &Program<C, H>) -> Plan<'p> {
        self.attach_with(hook, program, Attachment::default())
    }

    /// As [`Hook::attach_with`].
    pub fn attach_with<C: Context + 'p, H: 'static>(
        self,
        hook: &'p Hook<C, H>,
        program: &Program<C, H>,
        attachment: Attachment,
    ) -> Plan<'p> {
        self.edit(hook, Edit::Attach(program.clone(), attachment))
    }

    /// As [`Hook::detach`].
    pub fn detach<C: Context + 'p, H: 'static>(self, hook: &'p Hook<C, H>, program: &Program<C, H>) -> Plan<'p> {
        self.edit(hook, Edit::Detach(program.clone()))
    }

    /// As [`Hook::replace`].
    pub fn replace<C: Context + 'p, H: 'static>(
        self,
        hook: &'p Hook<C, H>,
        old: &Program<C, H>,
        new: &Program<C, H>,
    ) -> Plan<'p> {
        self.edit(hook, Edit::Replace(old.clone(), new.clone()))
    }

    /// As [`ProgArray::set`].
    pub fn set<C: Context, H: 'static>(
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
    pub fn clear<C: Context, H: 'static>(mut self, array: &ProgArray<C, H>, index: u32) -> Plan<'p> {
        self.slots.push(Slot::new(array.table(), index, None));
        self
    }

    fn edit<C: Context + 'p, H: 'static>(mut self, hook: &'p Hook<C, H>, edit: Edit<C, H>) -> Plan<'p> {
        let at = core::ptr::from_ref(hook).cast::<()>();
        match self.hooks.iter_mut().find(|change| change.hook() == at) {
            Some(change) => {
                let change: *mut (dyn Change<'p> + 'p) = &raw mut **change;
                // SAFETY: a change of the hook at this address, which is borrowed for `'p`: so of this hook, and what
                // is in the box is a `HookChange` of its types. Nobody else uses it now.
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
        // Not by the end of the function, where a panic would leak the result.
        drop(finish);
        Ok(applied)
    }

    /// Makes all changes, or none. Panics of the host are kept in `finish`, for a caller that has more to do.
    pub(crate) fn commit_with(mut self, finish: &mut Finish) -> Result<Applied<'p>, PlanError> {
        self.check()?;
        Ok(Applied { back: self.change(Turn::Set, finish)? })
    }

    /// The same of a plan that puts back what another took out.
    fn carry_back(mut self) -> Result<(), PlanError> {
        // Last, when both steps are done: what others are told, and the drops of what they own, may panic.
        let mut finish = Finish::default();
        let domain = match self.slots.first() {
            Some(slot) if !self.hooks.is_empty() => Arc::clone(slot.table().domain()),
            // Without hooks no run is of one version or the other.
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

    /// Changes the hooks, and sets or claims the slots, again if others change a hook meanwhile. What undoes that.
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
            // Without the locks: what was taken out is kept for going back, the rest is dropped here.
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

    /// One engine, no slot twice.
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

    /// Sets or claims the slots and publishes all hooks, under the locks of all hooks: what the slots held.
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
            // In the plan's order.
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

/// Why nothing of a plan was published.
enum NotPublished {
    /// Somebody has changed this hook since it was prepared.
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
    /// Puts back what was there before the plan, all or nothing: first the hooks, and, when all runs are over that had
    /// begun by then, the slots of prog arrays. So a run of the new version finds its own array as it was, to its end;
    /// runs of an array that both versions share find the new version's slots until then. Of a plan with hooks and
    /// slots, it waits for these runs.
    ///
    /// # Errors
    /// [`PlanError::Changed`] if somebody else has changed one of the hooks or slots since, [`PlanError::RollingBack`]
    /// if another rollback is putting back one of the slots, [`PlanError::Wait`] inside a run or in a forked child;
    /// other [`PlanError`]s. Nothing has changed then; but if executable memory cannot be patched and somebody else
    /// changes a hook at that moment, the hooks stay put back.
    pub fn roll_back(self) -> Result<(), PlanError> {
        self.back.carry_back()
    }
}

/// Why a hook's change was not prepared.
enum Refused {
    /// It is to be put back as it was, and is not as it was left.
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

struct HookChange<'p, C, H> {
    hook: &'p Hook<C, H>,
    edits: Vec<Edit<C, H>>,
    /// Only if the hook's list is what this version has made it.
    expected: Option<u64>,
    prepared: Option<Prepared<C, H>>,
    replaced: Option<Replacing<C, H>>,
}

impl<'p, C, H> HookChange<'p, C, H> {
    fn new(hook: &'p Hook<C, H>, edits: Vec<Edit<C, H>>, expected: Option<u64>) -> Self {
        HookChange { hook, edits, expected, prepared: None, replaced: None }
    }
}

impl<'p, C: Context + 'p, H: 'static> Change<'p> for HookChange<'p, C, H> {
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

struct LockedHook<'c, 'p, C, H> {
    state: MutexGuard<'p, State<C, H>>,
    change: &'c mut HookChange<'p, C, H>,
}

impl<C: Context, H: 'static> Locked for LockedHook<'_, '_, C, H> {
    fn is_same(&self) -> bool {
        self.change.prepared.as_ref().is_some_and(|prepared| prepared.is_for(&self.state))
    }

    fn publish(&mut self) {
        if let Some(prepared) = self.change.prepared.take() {
            self.change.replaced = Some(self.change.hook.publish(&mut self.state, prepared));
        }
    }
}
