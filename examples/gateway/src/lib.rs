//! A gateway: each tenant has a plug-in, which decides on the tenant's requests and may ask a key-value server first.
//!
//! Problem: tenants change their plug-ins while requests come in, make mistakes, and wait for replies that are late.
//! Approach: a tenant's plug-in is a sleepable program in a hook. A request is one run of the hook, a future that a
//! [`tower_service::Service`] awaits ([`GatewayLayer`]); while it waits for a reply, its thread serves other requests.
//! A new version takes the old one's maps and replaces it in the hook. Runs that have begun end with the program that
//! they began with.
//!
//! Invariants: a request gets one answer, whatever its plug-in does. A version that is refused changes nothing. Runs of
//! a plug-in end at its budget and at the tenant's deadline, also while they wait.

mod layer;
pub mod server;
pub mod store;

pub use layer::{GatewayLayer, Guarded, TENANT};

use anyhow::Context as _;
use bpf_runtime::describe::HostInterface;
use bpf_runtime::{
    Account, AsyncCaller, BpfContext, Config, ContextBytes, Engine, Hook, HookPolicy, Instance, Linker, MapSet, Object,
    OwnedBytes, Program, RunError, RunLimits,
};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;
use store::{Client, LookupError};

/// Context of the plug-ins: a request, `struct request` of `request.h`.
#[derive(BpfContext, Debug)]
#[bpf(name = "request")]
#[repr(C)]
pub struct Request<'r> {
    /// Status of the answer.
    #[bpf(writable)]
    pub status: u32,
    /// The number of the method in `enum method`.
    pub method: u32,
    /// Path and query.
    pub path: ContextBytes<'r>,
    /// Value of the header `X-Key`.
    pub key: ContextBytes<'r>,
}

impl<'r> Request<'r> {
    /// Makes the context of a request.
    ///
    /// # Errors
    /// Fails if the path or the key is longer than a context may have it.
    pub fn new(method: &str, path: &'r [u8], key: &'r [u8]) -> Result<Request<'r>, RunError> {
        let methods = ["GET", "HEAD", "POST", "PUT", "DELETE"];
        let number = methods.iter().position(|name| *name == method).unwrap_or(methods.len());
        let method = u32::try_from(number).unwrap_or(u32::MAX);
        Ok(Request { status: 0, method, path: ContextBytes::new(path)?, key: ContextBytes::new(key)? })
    }
}

/// State of the host during one run: the key-value server, and how long to wait for it.
#[derive(Debug)]
struct Visit {
    store: Client,
    patience: Duration,
}

/// Name of the program in an object.
const PROGRAM: &str = "on_request";
/// The verdict by which a request passes.
const PASS: u64 = 0;
/// Error numbers of `lookup`.
const ENOENT: i32 = 2;
const EIO: i32 = 5;
const ETIMEDOUT: i32 = 110;
/// Versions of a plug-in that are kept for a rollback, the present one included.
const KEPT_VERSIONS: usize = 8;

/// Limits of a tenant.
#[derive(Clone, Debug)]
pub struct Terms {
    /// Bytes of maps, code and waiting runs.
    pub memory: u64,
    /// Taken back-edges and calls of a run.
    pub budget: u64,
    /// How long a run may take, with its lookups.
    pub deadline: Duration,
    /// How long a lookup may take.
    pub patience: Duration,
}

impl Default for Terms {
    fn default() -> Terms {
        let (deadline, patience) = (Duration::from_secs(2), Duration::from_millis(500));
        Terms { memory: 64 << 20, budget: 100_000, deadline, patience }
    }
}

/// The outcome of a request.
#[derive(Debug)]
pub enum Decision {
    /// The service gets it.
    Pass,
    /// The client gets an answer with this status.
    Answer(u32),
    /// The run of the plug-in has ended without a verdict.
    Failed(RunError),
}

/// Upper bound on the bytes of a key that plug-ins look up.
const MAX_KEY: usize = 256;

/// A version of a tenant's plug-in.
struct Version {
    number: u64,
    instance: Instance<Visit>,
}

/// The versions of a tenant's plug-in, the present one last.
#[derive(Default)]
struct Versions {
    kept: Vec<Version>,
    /// The number of the newest version that there has been.
    last: u64,
}

/// A tenant: its plug-in, its limits, its counts.
pub struct Tenant {
    name: String,
    terms: Terms,
    hook: Hook<Request<'static>, Visit>,
    account: Account,
    /// Locked while a version is verified.
    versions: Mutex<Versions>,
    /// The number of the present version, 0 before the first: read by requests, which never wait for a verification.
    present: AtomicU64,
    decisions: [AtomicU64; 3],
}

impl std::fmt::Debug for Tenant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tenant").field("name", &self.name).field("terms", &self.terms).finish_non_exhaustive()
    }
}

impl Tenant {
    /// Returns its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the memory of its maps, its code, and its runs that wait.
    pub fn account(&self) -> &Account {
        &self.account
    }

    /// Returns how many requests have passed, were answered, and have failed.
    pub fn decisions(&self) -> [u64; 3] {
        // Relaxed: statistics.
        self.decisions.each_ref().map(|count| count.load(Ordering::Relaxed))
    }

    /// Returns the number of the present version; `None` before the first.
    pub fn version(&self) -> Option<u64> {
        // Relaxed: a statistic.
        Some(self.present.load(Ordering::Relaxed)).filter(|number| *number != 0)
    }

    /// Returns a map of the present version.
    ///
    /// # Errors
    /// Fails if there is no version, or if it has no such map.
    pub fn map(&self, name: &str) -> anyhow::Result<bpf_runtime::maps::Map> {
        let versions = self.versions();
        Ok(versions.kept.last().context("no version")?.instance.map(name)?)
    }

    /// A change under the lock is all or nothing, so poison means nothing.
    fn versions(&self) -> MutexGuard<'_, Versions> {
        self.versions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Version {
    fn program(&self) -> anyhow::Result<Program<Request<'static>, Visit>> {
        Ok(self.instance.program(PROGRAM)?)
    }
}

/// The gateway: shared by all threads.
pub struct Gateway {
    engine: Engine,
    linker: Linker<Visit>,
    store: Client,
    tenants: RwLock<BTreeMap<String, Arc<Tenant>>>,
}

impl std::fmt::Debug for Gateway {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gateway").field("engine", &self.engine).finish_non_exhaustive()
    }
}

impl Gateway {
    /// A gateway without tenants, whose plug-ins look keys up by this client.
    ///
    /// # Errors
    /// Fails if the engine cannot be made.
    pub fn new(store: Client) -> anyhow::Result<Gateway> {
        let config = Config::new().metrics(true);
        let engine = Engine::new(config)?;
        let mut linker = Linker::<Visit>::new(&engine);
        linker.func_async(
            1001,
            "lookup",
            async |mut caller: AsyncCaller<'_, Visit>, key: OwnedBytes, value: &mut u64| -> i32 {
                let Visit { store, patience } = caller.host();
                // A plug-in chooses the length, and the key waits in the client's queue.
                if key.len() > MAX_KEY {
                    return -ENOENT;
                }
                let key = String::from_utf8_lossy(&key);
                let key = key.trim_end_matches('\0');
                if key.is_empty() || key.contains(char::is_whitespace) {
                    return -ENOENT;
                }
                match store.get(key, *patience).await {
                    Ok(found) => {
                        *value = found;
                        0
                    }
                    Err(LookupError::NoKey) => -ENOENT,
                    Err(LookupError::Timeout) => -ETIMEDOUT,
                    Err(LookupError::NoConnection) => -EIO,
                }
            },
        )?;
        Ok(Gateway { engine, linker, store, tenants: RwLock::default() })
    }

    /// Describes what plug-ins are written for, so that they are verified and tested without the gateway.
    ///
    /// # Errors
    /// Fails if a function has arguments that no plug-in in C can give.
    pub fn describe(&self) -> anyhow::Result<HostInterface> {
        Ok(self.linker.describe::<Request<'static>>()?)
    }

    /// Returns the engine that all plug-ins are loaded into.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Returns the client of the key-value server.
    pub fn store(&self) -> &Client {
        &self.store
    }

    /// Returns a tenant.
    pub fn tenant(&self, name: &str) -> Option<Arc<Tenant>> {
        self.tenants.read().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }

    /// Returns all tenants, sorted by name.
    pub fn tenants(&self) -> Vec<Arc<Tenant>> {
        self.tenants.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// Admits a tenant, whose requests pass until it has a plug-in.
    ///
    /// # Errors
    /// Fails if there is a tenant of this name, or no memory for another hook.
    pub fn admit(&self, name: &str, terms: Terms) -> anyhow::Result<Arc<Tenant>> {
        let mut tenants = self.tenants.write().unwrap_or_else(PoisonError::into_inner);
        anyhow::ensure!(!tenants.contains_key(name), "tenant `{name}` is there already");
        let tenant = Arc::new(Tenant {
            name: name.to_owned(),
            hook: Hook::sleepable(&self.engine, HookPolicy::FirstVerdict { pass: PASS })?,
            account: self.engine.account(name, terms.memory),
            versions: Mutex::default(),
            present: AtomicU64::new(0),
            decisions: Default::default(),
            terms,
        });
        tenants.insert(name.to_owned(), Arc::clone(&tenant));
        Ok(tenant)
    }

    /// Loads the next version of a tenant's plug-in, with the maps of the present one, and puts it in its place.
    /// Returns its number. This verifies and compiles: call it where a thread may be busy for milliseconds.
    ///
    /// # Errors
    /// Fails if the version is refused. The present one goes on then.
    pub fn reload(&self, tenant: &Tenant, object: &[u8]) -> anyhow::Result<u64> {
        let object = Object::parse(object)?;
        let mut versions = tenant.versions();
        let mut maps = MapSet::for_object(&self.engine, &object)?;
        if let Some(present) = versions.kept.last() {
            for map in present.instance.maps().filter(|map| !map.name().starts_with('.')) {
                if object.maps().iter().any(|declared| declared.name == map.name()) {
                    maps = maps.reuse(map.name(), map)?;
                }
            }
        }
        let loader = self.linker.loader::<Request<'static>>().account(&tenant.account);
        let loader = loader.budget(tenant.terms.budget).interruptible(true).sleepable(true);
        let next = Version { number: versions.last + 1, instance: loader.only(&[PROGRAM]).object(&object, maps)? };
        match versions.kept.last() {
            Some(present) => tenant.hook.replace(&present.program()?, &next.program()?)?,
            None => tenant.hook.attach(&next.program()?)?,
        }
        versions.last = next.number;
        // Relaxed: a statistic.
        tenant.present.store(next.number, Ordering::Relaxed);
        versions.kept.push(next);
        if versions.kept.len() > KEPT_VERSIONS {
            versions.kept.remove(0);
        }
        Ok(versions.last)
    }

    /// Puts the version before the present one back in its place, and returns its number.
    ///
    /// # Errors
    /// Fails if there is none.
    pub fn roll_back(&self, tenant: &Tenant) -> anyhow::Result<u64> {
        let mut versions = tenant.versions();
        let [.., before, present] = versions.kept.as_slice() else { anyhow::bail!("there is no version before") };
        let number = before.number;
        tenant.hook.replace(&present.program()?, &before.program()?)?;
        versions.kept.pop();
        // Relaxed: a statistic.
        tenant.present.store(number, Ordering::Relaxed);
        Ok(number)
    }

    /// Decides on a request by the tenant's plug-in. Dropped before it is ready, it ends the run.
    pub async fn decide(&self, tenant: &Tenant, method: &str, path: &[u8], key: &[u8]) -> Decision {
        let decision = self.run(tenant, method, path, key).await.unwrap_or_else(Decision::Failed);
        let index = match decision {
            Decision::Pass => 0,
            Decision::Answer(_) => 1,
            Decision::Failed(_) => 2,
        };
        // Relaxed: a statistic.
        tenant.decisions[index].fetch_add(1, Ordering::Relaxed);
        decision
    }

    async fn run(&self, tenant: &Tenant, method: &str, path: &[u8], key: &[u8]) -> Result<Decision, RunError> {
        let mut request = Request::new(method, path, key)?;
        let mut visit = Visit { store: self.store.clone(), patience: tenant.terms.patience };
        let mut limits = RunLimits::new();
        // Without a thread for deadlines, the budget and the timeouts of lookups still bound the run.
        if let Ok(deadline) = self.engine.deadline_in(tenant.terms.deadline) {
            limits = limits.deadline(deadline);
        }
        let verdict = tenant.hook.run_async_with(&mut visit, &mut request, &limits).await?;
        Ok(if verdict == PASS { Decision::Pass } else { Decision::Answer(request.status) })
    }
}
