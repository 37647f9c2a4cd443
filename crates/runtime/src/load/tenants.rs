//! Tenants of one object: each has an instance with its own account, constants and places.
//!
//! Problem: a tenant takes a load, an account, maps, constants, and a change of each hook and prog array that calls its
//! programs; a new version of the object takes all of these again, for each tenant. Approach: [`Tenants`] holds what
//! all tenants have in common, [`Tenant`] what one tenant has of its own. Every change is one [`Plan`]: a tenant is in
//! all of its places or in none.
//!
//! A change makes instances and commits a plan, which may run code of the host: listeners, destructors of captured
//! values, deferred callbacks. No lock is held meanwhile. The list is locked only to read or replace it. Changes are
//! serialised by the claim of a thread ([`Turn`]), for which other threads wait. Code of the host that begins a change
//! inside a change of its own thread gets an error instead of a deadlock.
//!
//! Invariant: the instance of each tenant in the list has its programs in the tenant's places, unless other code has
//! changed those places.

use crate::attach::hook::Hook;
use crate::attach::plan::{Plan, PlanError};
use crate::call::state::Host;
use crate::context::Context;
use crate::engine::Engine;
use crate::engine::usage::Account;
use crate::error::LoadError;
use crate::handle::instance::Instance;
use crate::handle::prog_array::ProgArray;
use crate::load::module::Module;
use bpf_maps::Map;
use bpf_quiesce::Finish;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;

/// Why a change of tenants was not made. All tenants are as before.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TenantError {
    /// No tenant has this name.
    #[error("there is no tenant `{name}`")]
    Unknown {
        /// The name asked for.
        name: String,
    },
    /// The tenants' programs are in a prog array, and this tenant has no slot in it.
    #[error("tenant `{name}` has no slot: say which (`Tenant::slot`)")]
    NoSlot {
        /// Its name.
        name: String,
    },
    /// The tenant's instance was not made.
    #[error("tenant `{name}`: {source}")]
    Load {
        /// Its name.
        name: String,
        /// The error of the load.
        r#source: Box<LoadError>,
    },
    /// The tenant's programs were not put into their places.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The calling thread is in the middle of another change of these tenants, which has called the host: a listener,
    /// the destructor of a captured value or a deferred callback.
    #[error(
        "tenants are being changed by the operation that calls this code: make the change after that operation has returned"
    )]
    Changing,
    /// The calling process is a forked child, where nothing is changed.
    #[error("tenants are not changed in a forked child")]
    Forked,
}

/// The parts of a tenant that no other tenant shares.
///
/// ```
/// use bpf_runtime::instances::Tenant;
///
/// let tenant = Tenant::new("acme").memory(1 << 20).global("limit", &100u64.to_ne_bytes()).slot(3);
/// ```
#[derive(Clone, Debug)]
pub struct Tenant {
    name: String,
    memory: Option<u64>,
    budget: Option<u64>,
    slot: Option<u32>,
    globals: Vec<(String, Vec<u8>)>,
    maps: Vec<(String, Map)>,
}

impl Tenant {
    /// Makes a tenant of this name, without limits of its own.
    pub fn new(name: &str) -> Tenant {
        let name = name.to_owned();
        Tenant { name, memory: None, budget: None, slot: None, globals: Vec::new(), maps: Vec::new() }
    }

    /// Limits the bytes of the tenant's maps, prog arrays and code by an account of the tenant's name. Later versions
    /// of the module ([`Tenants::upgrade`]) are counted in that account, too.
    pub fn memory(mut self, bytes: u64) -> Tenant {
        self.memory = Some(bytes);
        self
    }

    /// Sets the budget of each of the tenant's runs ([`crate::instances::Instantiate::budget`]).
    pub fn budget(mut self, budget: u64) -> Tenant {
        self.budget = Some(budget);
        self
    }

    /// Sets the tenant's slot in each prog array of [`Tenants::in_array`].
    pub fn slot(mut self, slot: u32) -> Tenant {
        self.slot = Some(slot);
        self
    }

    /// Sets the initial value of a global variable ([`crate::MapSet::global`]): of data, or of a constant that the
    /// module leaves open.
    pub fn global(mut self, name: &str, value: &[u8]) -> Tenant {
        self.globals.push((name.to_owned(), value.to_vec()));
        self
    }

    /// Hands in an existing map ([`crate::MapSet::reuse`]).
    pub fn map(mut self, name: &str, map: &Map) -> Tenant {
        self.maps.push((name.to_owned(), map.clone()));
        self
    }
}

/// Tenants of one object: admitted, replaced and dropped under traffic.
///
/// ```no_run
/// # use bpf_runtime::{*, instances::Tenant};
/// # use std::sync::Arc;
/// # type Done = Result<(), Box<dyn std::error::Error>>;
/// # fn f(linker: &Linker<()>, object: &Object, newer: &Object, gateway: &Instance<()>) -> Done {
/// let by_number = Arc::new(gateway.prog_array::<Raw>("tenants")?);
/// let tenants = Tenants::new(&linker.compile::<Raw>(object)?).in_array(&by_number, "tenant");
/// tenants.admit(Tenant::new("acme").memory(1 << 20).slot(3))?;
/// tenants.admit(Tenant::new("initech").memory(1 << 20).slot(4).global("limit", &9u64.to_ne_bytes()))?;
/// tenants.upgrade(&linker.compile::<Raw>(newer)?)?; // all of them in one step
/// tenants.remove("acme")?;
/// # Ok(()) }
/// ```
pub struct Tenants<C, H: ?Sized = ()> {
    places: Vec<Place<C, H>>,
    arrays: Vec<(String, Arc<ProgArray<C, H>>)>,
    engine: Engine,
    state: Mutex<State<C, H>>,
    /// Notified when a change ends.
    changed: Condvar,
}

struct State<C, H: ?Sized> {
    module: Module<C, H>,
    list: List<H>,
    /// The thread that makes a change.
    changing: Option<ThreadId>,
}

/// Tenants by name.
type List<H> = BTreeMap<String, Arc<Admitted<H>>>;

/// Where each tenant's program is called.
enum Place<C, H: ?Sized> {
    Array(Arc<ProgArray<C, H>>, String),
    Hook(Arc<Hook<C, H>>, String),
}

struct Admitted<H: ?Sized> {
    tenant: Tenant,
    account: Option<Account>,
    instance: Instance<H>,
}

impl<C, H: ?Sized> fmt::Debug for Tenants<C, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tenants").field("places", &self.places.len()).finish_non_exhaustive()
    }
}

impl<C: Context, H: Host + ?Sized> Tenants<C, H> {
    /// Makes an empty list, without places for the tenants' programs.
    pub fn new(module: &Module<C, H>) -> Self {
        let state = State { module: module.clone(), list: List::new(), changing: None };
        Tenants {
            places: Vec::new(),
            arrays: Vec::new(),
            engine: module.engine().clone(),
            state: Mutex::new(state),
            changed: Condvar::new(),
        }
    }

    /// Puts each tenant's program of this name into this prog array, in the tenant's slot ([`Tenant::slot`]).
    pub fn in_array(mut self, array: &Arc<ProgArray<C, H>>, program: &str) -> Self {
        self.places.push(Place::Array(Arc::clone(array), program.to_owned()));
        self
    }

    /// Puts each tenant's program of this name into this hook.
    pub fn in_hook(mut self, hook: &Arc<Hook<C, H>>, program: &str) -> Self {
        self.places.push(Place::Hook(Arc::clone(hook), program.to_owned()));
        self
    }

    /// Has all tenants share this prog array as their array of this name ([`crate::MapSet::reuse_array`]).
    pub fn with_array(mut self, name: &str, array: &Arc<ProgArray<C, H>>) -> Self {
        self.arrays.push((name.to_owned(), Arc::clone(array)));
        self
    }

    /// Admits a tenant. A tenant of that name is replaced, and stays until the new one is in all its places.
    ///
    /// # Errors
    /// [`TenantError`]; nothing has changed.
    pub fn admit(&self, tenant: Tenant) -> Result<Instance<H>, TenantError> {
        let turn = self.begin()?;
        let (module, old) = turn.look(|state| (state.module.clone(), state.list.get(&tenant.name).cloned()));
        let new = Arc::new(self.make(&module, tenant, None)?);
        let mut finish = Finish::default();
        let done = self.place(Plan::new(), old.as_ref(), Some(&new))?.commit_with(&mut finish)?;
        let instance = new.instance.clone();
        let gone = turn.look(|state| state.list.insert(new.tenant.name.clone(), new));
        turn.end(finish, (done, gone, old));
        Ok(instance)
    }

    /// Takes a tenant's programs out of their places, and drops its instance when no run is in it.
    ///
    /// # Errors
    /// [`TenantError`]; nothing has changed.
    pub fn remove(&self, name: &str) -> Result<(), TenantError> {
        let turn = self.begin()?;
        let old = turn.look(|state| state.list.get(name).cloned());
        let old = old.ok_or_else(|| TenantError::Unknown { name: name.to_owned() })?;
        let mut finish = Finish::default();
        let done = self.place(Plan::new(), Some(&old), None)?.commit_with(&mut finish)?;
        let gone = turn.look(|state| state.list.remove(name));
        turn.end(finish, (done, gone, old));
        Ok(())
    }

    /// Replaces the instances of all tenants by instances of this module, in one step, each with the settings and the
    /// account that the tenant was admitted with. Until that step each account holds both instances.
    ///
    /// # Errors
    /// [`TenantError`] of the first that the new version cannot be made for; all tenants are as before.
    pub fn upgrade(&self, module: &Module<C, H>) -> Result<(), TenantError> {
        let turn = self.begin()?;
        let old = turn.look(|state| state.list.clone());
        let mut list = List::new();
        let mut plan = Plan::new();
        for (name, old) in &old {
            let new = Arc::new(self.make(module, old.tenant.clone(), old.account.clone())?);
            plan = self.place(plan, Some(old), Some(&new))?;
            list.insert(name.clone(), new);
        }
        let mut finish = Finish::default();
        let done = plan.commit_with(&mut finish)?;
        let module = module.clone();
        let gone =
            turn.look(|state| (std::mem::replace(&mut state.module, module), std::mem::replace(&mut state.list, list)));
        turn.end(finish, (done, gone, old));
        Ok(())
    }

    /// The names of all tenants, in order.
    pub fn names(&self) -> Vec<String> {
        self.look(|state| state.list.keys().cloned().collect()).unwrap_or_default()
    }

    /// A tenant's instance.
    pub fn get(&self, name: &str) -> Option<Instance<H>> {
        self.look(|state| state.list.get(name).map(|admitted| admitted.instance.clone()))?
    }

    /// A tenant's account, if it has one.
    pub fn account(&self, name: &str) -> Option<Account> {
        self.look(|state| state.list.get(name)?.account.clone())?
    }

    fn make(
        &self,
        module: &Module<C, H>,
        tenant: Tenant,
        account: Option<Account>,
    ) -> Result<Admitted<H>, TenantError> {
        let fail = |source| TenantError::Load { name: tenant.name.clone(), source: Box::new(source) };
        let engine = module.engine();
        let account = account.or_else(|| Some(engine.account(&tenant.name, tenant.memory?)));
        let mut maps = module.maps();
        for (name, value) in &tenant.globals {
            maps = maps.global(name, value).map_err(fail)?;
        }
        for (name, map) in &tenant.maps {
            maps = maps.reuse(name, map).map_err(fail)?;
        }
        for (name, array) in &self.arrays {
            maps = maps.reuse_array(name, array).map_err(fail)?;
        }
        let mut instance = module.instance().maps(maps).name(&tenant.name);
        if let Some(account) = &account {
            instance = instance.account(account);
        }
        if let Some(budget) = tenant.budget {
            instance = instance.budget(budget);
        }
        let instance = instance.make().map_err(fail)?;
        Ok(Admitted { account, instance, tenant })
    }

    /// Adds to a plan the replacement of one instance's programs by another's.
    fn place<'p>(
        &'p self,
        mut plan: Plan<'p>,
        old: Option<&Arc<Admitted<H>>>,
        new: Option<&Arc<Admitted<H>>>,
    ) -> Result<Plan<'p>, TenantError> {
        let program = |of: &Arc<Admitted<H>>, name: &str| {
            of.instance.program::<C>(name).map_err(|source| {
                let source = Box::new(LoadError::from(source));
                TenantError::Load { name: of.tenant.name.clone(), source }
            })
        };
        for place in &self.places {
            plan = match place {
                Place::Hook(hook, name) => {
                    let [old, new] = [old, new].map(|of| of.map(|of| program(of, name)).transpose());
                    match (old?, new?) {
                        (Some(old), Some(new)) => plan.replace(hook, &old, &new),
                        (None, Some(new)) => plan.attach(hook, &new),
                        (Some(old), None) => plan.detach(hook, &old),
                        (None, None) => plan,
                    }
                }
                Place::Array(array, name) => {
                    let slot = |of: &Arc<Admitted<H>>| {
                        of.tenant.slot.ok_or_else(|| TenantError::NoSlot { name: of.tenant.name.clone() })
                    };
                    let [before, after] = [old, new].map(|of| of.map(slot).transpose());
                    let (before, after) = (before?, after?);
                    if let Some(before) = before.filter(|before| Some(*before) != after) {
                        plan = plan.clear(array, before);
                    }
                    match new.zip(after) {
                        Some((new, slot)) => plan.set(array, slot, &program(new, name)?),
                        None => plan,
                    }
                }
            };
        }
        Ok(plan)
    }

    /// Waits until no other thread makes a change, and claims the list for this thread.
    fn begin(&self) -> Result<Turn<'_, C, H>, TenantError> {
        if self.engine.domain().is_forked() {
            return Err(TenantError::Forked);
        }
        let this = std::thread::current().id();
        let mut state = self.state();
        while let Some(by) = state.changing {
            if by == this {
                return Err(TenantError::Changing);
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.changing = Some(this);
        Ok(Turn(self))
    }

    /// Calls `look` with the present list. In a forked child, returns `None` if it was locked at the fork.
    fn look<R>(&self, look: impl FnOnce(&State<C, H>) -> R) -> Option<R> {
        let state = self.engine.domain().lock_to_read(&self.state)?;
        Some(look(&state))
    }
}

impl<C, H: ?Sized> Tenants<C, H> {
    /// Nothing under the lock panics, so poison means nothing.
    fn state(&self) -> MutexGuard<'_, State<C, H>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A thread's claim to the list of tenants, for one change. Dropping it ends the change.
struct Turn<'t, C, H: ?Sized>(&'t Tenants<C, H>);

impl<C, H: ?Sized> Turn<'_, C, H> {
    /// Calls `change` with the list, under the lock. `change` must not drop any part of the list.
    fn look<R>(&self, change: impl FnOnce(&mut State<C, H>) -> R) -> R {
        change(&mut self.0.state())
    }

    /// Ends the change, and then drops what it has replaced, which may call the host. A panic of the host in the change
    /// is resumed last.
    fn end<G>(self, mut finish: Finish, gone: G) {
        drop(self);
        finish.step(|| drop(gone));
    }
}

impl<C, H: ?Sized> Drop for Turn<'_, C, H> {
    fn drop(&mut self) {
        self.0.state().changing = None;
        self.0.changed.notify_one();
    }
}
