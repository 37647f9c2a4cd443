//! A service that is operated while it answers.
//!
//! Problem: plug-ins change, run away, leak and fail, and requests come in all the while. Approach: a request passes three
//! [`Hook`]s, and a policy chooses its backend; a new version of the plug-in changes all of these by one [`Plan`], with
//! the maps of the version before. Programs of others (guests) are reached by tail calls, have an account of their own,
//! and run under a budget or a deadline.
//!
//! Invariants: a request gets one answer, whatever a plug-in does. One run of a hook executes programs of one version,
//! tail-called programs included. A reload that is refused has changed nothing.

pub mod operate;
pub mod server;

use anyhow::Context as _;
use bpf_runtime::{
    Account, BpfContext, Caller, Config, ContextBytes, Engine, Hook, HookPolicy, Instance, Linker, LoadError, MapSet,
    Object, Plan, RunError, RunLimits, hook::PlanError, interface, memory::LimitBelowUse,
};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Context of the plug-ins: a request, `struct request` of `service.h`.
#[derive(BpfContext, Debug)]
#[bpf(name = "request")]
#[repr(C)]
pub struct Request<'r> {
    client: u32,
    #[bpf(writable)]
    version: u32,
    #[bpf(writable)]
    torn: u32,
    #[bpf(writable)]
    cost: u32,
    path: ContextBytes<'r>,
}

/// Context of the policy: the fields of a request that choose a backend.
#[derive(BpfContext, Clone, Copy, Debug)]
#[bpf(name = "choice")]
#[repr(C)]
pub struct Choice {
    client: u32,
    #[bpf(writable)]
    version: u32,
}

/// Chooses a backend.
#[interface]
pub trait Balance {
    /// Chooses a backend and returns its number.
    fn pick(&mut self, choice: &mut Choice) -> Result<u32, RunError>;
}

/// State of the host for host functions: none.
pub type Host = ();

const ALLOW: u64 = 0;
/// Slots of the prog array `routes`.
const HOME: u32 = 0;
const API: u32 = 1;
/// Tenants that are served by guests, and the program of each.
const GUESTS: [(u32, &str); 3] = [(2, "spin"), (3, "leak"), (4, "failing")];

const PLUGIN: &[u8] = include_bytes!("../plugin.o");
const GUEST: &[u8] = include_bytes!("../guests.o");
/// The programs of the plug-in that are not the policy's.
const PROGRAMS: [&str; 5] = ["admit", "route", "home", "api", "record"];
/// Budget of a guest's run, in instructions, where the request asks for no deadline.
const BUDGET: u64 = 10_000;
/// Deadline of a guest's run for requests of `/sd`.
const TIME: Duration = Duration::from_millis(2);
/// Limits in bytes: of the plug-in, for all versions that are in memory at a time, and of the guests.
const PLUGIN_BYTES: u64 = 16 << 20;
const GUEST_BYTES: u64 = 1 << 20;

/// The outcome of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Status {
    /// The plug-in answered the request.
    Allowed,
    /// The plug-in does not serve the request.
    Refused,
    /// The guest's program has spent its budget.
    Budget,
    /// The deadline of the guest's program has passed.
    Deadline,
    /// A host function failed.
    Host,
    /// The program could not be run: a bug of this example.
    Lost,
}

impl Status {
    const ALL: [Status; 6] =
        [Status::Allowed, Status::Refused, Status::Budget, Status::Deadline, Status::Host, Status::Lost];

    fn of(result: &Result<u64, RunError>) -> Status {
        match result {
            Ok(ALLOW) => Status::Allowed,
            Ok(_) => Status::Refused,
            Err(RunError::Budget { .. }) => Status::Budget,
            Err(RunError::Deadline { .. }) => Status::Deadline,
            Err(RunError::Host { .. }) => Status::Host,
            Err(_) => Status::Lost,
        }
    }
}

/// Answer to a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Answer {
    /// The outcome of the request.
    pub status: Status,
    /// The version that has answered.
    pub version: u32,
    /// Whether two versions have run programs for this request, which is a bug.
    pub torn: bool,
    /// Cost of the request, in the policy's units.
    pub cost: u32,
    /// The backend that was chosen.
    pub backend: u32,
}

impl Answer {
    /// Bytes of an encoded answer.
    pub const BYTES: usize = 14;

    /// Encodes the answer for a datagram.
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        (bytes[0], bytes[1]) = (self.status as u8, u8::from(self.torn));
        for (at, word) in [self.version, self.cost, self.backend].into_iter().enumerate() {
            bytes[2 + 4 * at..][..4].copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Decodes an answer; `None` if `bytes` are no encoded answer.
    pub fn from_bytes(bytes: &[u8]) -> Option<Answer> {
        let bytes: &[u8; Self::BYTES] = bytes.try_into().ok()?;
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let status = *Status::ALL.get(usize::from(bytes[0]))?;
        Some(Answer { status, torn: bytes[1] != 0, version: word(2), cost: word(6), backend: word(10) })
    }
}

/// A loaded version of the plug-in.
struct Version {
    number: u32,
    instance: Instance<Host>,
    balance: BalanceOps<Host>,
}

/// The service: shared by all threads that answer.
pub struct Service {
    engine: Engine,
    linker: Linker<Host>,
    plugin: Object,
    account: Account,
    guests: Account,
    admit: Hook<Request<'static>, Host>,
    route: Hook<Request<'static>, Host>,
    log: Hook<Request<'static>, Host>,
    balance: BalanceOps<Host>,
    guest: Instance<Host>,
    current: Mutex<Version>,
}

impl std::fmt::Debug for Service {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Service").finish_non_exhaustive()
    }
}

/// Loads a version with the maps of the version before. No request reaches it yet.
fn load(
    engine: &Engine,
    linker: &Linker<Host>,
    plugin: &Object,
    account: &Account,
    number: u32,
    before: Option<&Instance<Host>>,
) -> anyhow::Result<Version> {
    let mut maps = MapSet::for_object(engine, plugin)?;
    if let Some(before) = before {
        for kept in ["counts", "seen", "events"] {
            maps = maps.reuse(kept, &before.map(kept)?)?;
        }
        // Runs of the version before go on jumping through its own.
        maps = maps.copy_array("routes", &before.prog_array::<Request<'_>>("routes")?)?;
    }
    let loader = linker.loader::<Request<'_>>().account(account).budget(u64::MAX).interruptible(true);
    let instance = loader.only(&PROGRAMS).object(plugin, maps)?;
    let settings = instance.map("settings")?;
    settings.update(&0u32.to_ne_bytes(), &number.to_ne_bytes(), 0)?;

    let maps = MapSet::for_object(engine, plugin)?.reuse("settings", &settings)?;
    let loader = linker.loader().account(account).budget(u64::MAX).interruptible(true);
    let balance = BalanceOps::load(loader, plugin, "modulo", maps)?;
    Ok(Version { number, instance, balance })
}

impl Service {
    /// The service with version 1 of its plug-in, and its guests.
    ///
    /// # Errors
    /// If a plug-in is refused.
    pub fn new() -> anyhow::Result<Service> {
        let config = Config::new().metrics(true);
        let engine = Engine::new(config)?;
        let mut linker = Linker::<Host>::new(&engine);
        // A panic that says nothing on standard error: there are many.
        linker
            .func(1001, "fail", |_: &mut Caller<'_, Host>| -> u64 { std::panic::resume_unwind(Box::new("a bug")) })?;

        let guests = engine.account("guests", GUEST_BYTES);
        let object = Object::parse(GUEST)?;
        let loader = linker.loader::<Request<'_>>().account(&guests).hybrid(true).budget(u64::MAX).interruptible(true);
        let guest = loader.object(&object, MapSet::for_object(&engine, &object)?)?;

        let account = engine.account("plugin", PLUGIN_BYTES);
        let plugin = Object::parse(PLUGIN)?;
        let first = load(&engine, &linker, &plugin, &account, 1, None)?;
        let live = load(&engine, &linker, &plugin, &account, 1, Some(&first.instance))?.balance;
        live.replace(&first.balance)?;
        let admit = Hook::new(&engine, HookPolicy::FirstVerdict { pass: ALLOW })?;
        let route = Hook::new(&engine, HookPolicy::FirstVerdict { pass: ALLOW })?;
        let log = Hook::new(&engine, HookPolicy::RunAll { result: 0 })?;
        let routes = first.instance.prog_array::<Request<'_>>("routes")?;
        for (slot, name) in GUESTS {
            routes.set(slot, &guest.program(name)?)?;
        }
        routes.set(HOME, &first.instance.program("home")?)?;
        routes.set(API, &first.instance.program("api")?)?;
        admit.attach(&first.instance.program("admit")?)?;
        route.attach(&first.instance.program("route")?)?;
        log.attach(&first.instance.program("record")?)?;
        let current = Mutex::new(first);
        Ok(Service { engine, linker, plugin, account, guests, admit, route, log, balance: live, guest, current })
    }

    /// Returns the engine that all plug-ins are loaded into.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The account of the plug-in's memory, which all versions in memory share.
    pub fn account(&self) -> &Account {
        &self.account
    }

    /// The account of the guests' memory.
    pub fn guests(&self) -> &Account {
        &self.guests
    }

    /// The guests.
    pub fn guest(&self) -> &Instance<Host> {
        &self.guest
    }

    /// The number of the version that answers.
    pub fn version(&self) -> u32 {
        self.current().number
    }

    /// The version that answers.
    pub fn instance(&self) -> Instance<Host> {
        self.current().instance.clone()
    }

    fn current(&self) -> std::sync::MutexGuard<'_, Version> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers a datagram: the client's number in four bytes, and a path.
    pub fn answer(&self, datagram: &[u8]) -> Answer {
        let lost = Answer { status: Status::Lost, version: 0, torn: false, cost: 0, backend: 0 };
        let Some((client, path)) = datagram.split_first_chunk::<4>() else { return lost };
        let client = u32::from_le_bytes(*client);
        let Ok(bytes) = ContextBytes::new(path) else { return lost };
        let mut request = Request { client, version: 0, torn: 0, cost: 0, path: bytes };
        let mut result = self.admit.run_on(&mut request);
        if let Ok(ALLOW) = result {
            result = match self.limits(path) {
                Ok(limits) => self.route.run_with(&mut (), &mut request, &limits),
                Err(_) => return lost,
            };
        }
        let mut choice = Choice { client, version: 0 };
        let Ok(backend) = self.balance.with(&mut ()).pick(&mut choice) else { return lost };
        let Ok(_) = self.log.run_on(&mut request) else { return lost };
        let Request { version, torn, cost, .. } = request;
        Answer { status: Status::of(&result), version, torn: torn != 0, cost, backend }
    }

    /// Returns the limits of a guest: a deadline for `/sd`, a budget for every other path.
    fn limits(&self, path: &[u8]) -> anyhow::Result<RunLimits> {
        match path {
            b"/sd" => Ok(RunLimits::new().deadline(self.engine.deadline_in(TIME)?)),
            _ => Ok(RunLimits::new().budget(BUDGET)),
        }
    }

    /// Replaces the present version by the next one, and returns the number of the version in place: if the next one
    /// does not prove itself, the present one is restored.
    ///
    /// # Errors
    /// If it is refused; the present version goes on then.
    pub fn reload(&self, proves_itself: bool) -> anyhow::Result<u32> {
        let mut current = self.current();
        let next =
            load(&self.engine, &self.linker, &self.plugin, &self.account, current.number + 1, Some(&current.instance))?;
        let done = self.plan(&current.instance, &next.instance)?.commit()?;
        if !proves_itself {
            done.roll_back()?;
            return Ok(current.number);
        }
        drop(done);
        self.balance.replace(&next.balance)?;
        *current = next;
        Ok(current.number)
    }

    /// All hooks: the hook that a request reaches last is named first.
    fn plan<'p>(&'p self, old: &Instance<Host>, new: &Instance<Host>) -> Result<Plan<'p>, LoadError> {
        let routes = new.prog_array::<Request<'_>>("routes")?;
        Ok(Plan::new()
            .set(&routes, HOME, &new.program("home")?)
            .set(&routes, API, &new.program("api")?)
            .replace(&self.log, &old.program("record")?, &new.program("record")?)
            .replace(&self.route, &old.program("route")?, &new.program("route")?)
            .replace(&self.admit, &old.program("admit")?, &new.program("admit")?))
    }

    /// Tries three refusals: an object with a program that the verifier refuses, a plan whose last step fails, a limit
    /// below the memory in use. Nothing has changed then.
    ///
    /// # Errors
    /// If one of them is not refused, or for another reason than it should be.
    pub fn refusals(&self) -> anyhow::Result<()> {
        let current = self.current();
        let guest = Object::parse(GUEST)?;
        let maps = MapSet::for_object(&self.engine, &guest)?;
        let refused = self.linker.loader::<Request<'_>>().account(&self.account).object(&guest, maps);
        anyhow::ensure!(matches!(refused, Err(LoadError::Verifier { .. })), "a program that does not end: {refused:?}");

        let next = load(&self.engine, &self.linker, &self.plugin, &self.account, u32::MAX, Some(&current.instance))?;
        // The program is not attached to this hook, which the plan finds only after it has prepared three hooks.
        let plan = self.plan(&current.instance, &next.instance)?.detach(&self.admit, &next.instance.program("home")?);
        let refused = plan.commit();
        anyhow::ensure!(matches!(refused, Err(PlanError::Hook { .. })), "a plan that cannot be: {refused:?}");

        let limit = self.account.limit();
        let refused = self.account.set_limit(1);
        anyhow::ensure!(matches!(refused, Err(LimitBelowUse { .. })) && self.account.limit() == limit, "a limit");
        let attached = self.admit.programs();
        anyhow::ensure!(attached.len() == 1, "{} programs are attached", attached.len());
        Ok(())
    }

    /// One of the plug-in's counts, over all versions.
    ///
    /// # Errors
    /// If the plug-in has no such count.
    pub fn count(&self, index: u32) -> anyhow::Result<u64> {
        let value = self.instance().map("counts")?.get(&index.to_ne_bytes())?.context("no count")?;
        Ok(u64::from_ne_bytes(value.as_slice().try_into()?))
    }
}
