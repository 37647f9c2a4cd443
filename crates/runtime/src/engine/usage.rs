//! Memory use by holder, and accounts for plug-ins.
//!
//! Problem: [`crate::Config::memory_limit`] holds for all of an engine, and one plug-in that leaks takes memory from
//! the others. Approach: an [`Account`] with a limit of its own, which a load is given ([`crate::Loader::account`]).
//! Maps, prog arrays and code that the load makes are counted in the account as long as they live, and in the engine's
//! sum as well.

use crate::engine::Engine;
use bpf_quiesce::{Domain, Held, Label, LimitBelowUse, Memory, Settles};
use std::sync::Arc;

/// A plug-in's share of an engine's memory: made by [`Engine::account`]. Cheap to clone; clones are the same account.
/// Objects counted in it stay counted after the last handle is dropped.
#[derive(Clone, Debug)]
pub struct Account {
    memory: Arc<Memory>,
    /// Tells whether the process is a forked child.
    domain: Settles,
}

impl Account {
    /// Its name.
    pub fn name(&self) -> &str {
        self.memory.name()
    }

    /// Bytes that it may take.
    pub fn limit(&self) -> u64 {
        self.memory.limit()
    }

    /// Bytes that it has taken.
    pub fn used(&self) -> u64 {
        self.memory.used()
    }

    /// Changes the limit for later allocations.
    ///
    /// # Errors
    /// [`LimitBelowUse`]; the limit is unchanged then.
    pub fn set_limit(&self, limit: u64) -> Result<(), LimitBelowUse> {
        self.memory.set_limit(limit)
    }

    /// Returns the bytes taken, with their holders. Takes a lock that loads hold for a short time. In a forked child,
    /// `held` is empty.
    pub fn usage(&self) -> AccountUsage {
        usage_of(&self.memory, &self.domain)
    }

    pub(crate) fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }
}

/// The account and the instance that the memory of a load is counted for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Payer<'a> {
    /// `None`: the engine alone.
    pub(crate) account: Option<&'a Account>,
    /// The name of the instance, if it has one.
    pub(crate) instance: Option<&'a Arc<str>>,
}

impl<'a> Payer<'a> {
    /// The account's memory, or else the engine's.
    pub(crate) fn memory(self, engine: &'a Engine) -> &'a Arc<Memory> {
        self.account.map_or(engine.domain().memory(), Account::memory)
    }

    /// The names that an object of this name is listed by.
    pub(crate) fn label<'n>(self, name: &'n str) -> Label<'n>
    where
        'a: 'n,
    {
        Label { instance: self.instance, name }
    }
}

/// Use of an [`Account`], with its holders: [`Account::usage`]. With the feature `serde` it can be serialised, as can
/// [`Usage`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct AccountUsage {
    /// Its name.
    pub name: String,
    /// Bytes that it may take.
    pub limit: u64,
    /// Bytes that it has taken.
    pub used: u64,
    /// The maps, prog arrays and programs that took them.
    #[cfg_attr(feature = "serde", serde(serialize_with = "serialise_held"))]
    pub held: Vec<Held>,
}

/// Use of an engine's memory, with its holders: [`Engine::usage`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Usage {
    /// [`crate::Config::memory_limit`].
    pub limit: u64,
    /// Bytes taken by maps, prog arrays, lists of hooks and dispatchers, and memory for code.
    pub used: u64,
    /// Bytes of `used` that are executable memory, whether programs occupy it or not.
    pub code_mapped: u64,
    /// Bytes of `code_mapped` that programs occupy.
    pub code_used: u64,
    /// [`crate::Config::max_machine_stack`]: bytes of its thread's stack that one run may take. A run of machine code
    /// that tail-calls may take twice as much. A run is refused on a thread with less left.
    pub stack_limit: u64,
    /// Maps and prog arrays that are in no account.
    #[cfg_attr(feature = "serde", serde(serialize_with = "serialise_held"))]
    pub held: Vec<Held>,
    /// The accounts that are in use.
    pub accounts: Vec<AccountUsage>,
}

/// Serialises a list of [`Held`] as objects of its fields, with the holder's name as `holder`.
#[cfg(feature = "serde")]
fn serialise_held<S: serde::Serializer>(held: &[Held], serializer: S) -> Result<S::Ok, S::Error> {
    #[derive(serde::Serialize)]
    struct Entry<'h> {
        holder: String,
        instance: Option<&'h str>,
        name: &'h str,
        bytes: u64,
    }
    serializer.collect_seq(held.iter().map(|held| Entry {
        holder: held.holder.to_string(),
        instance: held.instance.as_deref(),
        name: &held.name,
        bytes: held.bytes,
    }))
}

fn usage_of(memory: &Memory, domain: &Domain) -> AccountUsage {
    let held = listed(domain, || memory.held());
    AccountUsage { name: memory.name().to_owned(), limit: memory.limit(), used: memory.used(), held }
}

/// Returns the entries of a list; none in a forked child, where the list's lock may be held by a thread that only the
/// parent has.
fn listed<T>(domain: &Domain, list: impl FnOnce() -> Vec<T>) -> Vec<T> {
    if domain.is_forked() { Vec::new() } else { list() }
}

impl Engine {
    /// Makes an account of the engine's memory for a plug-in: maps, prog arrays and code that are loaded with it
    /// ([`crate::Loader::account`]) take at most `limit` bytes together. Names need not be unique: two accounts may
    /// share one.
    ///
    /// ```
    /// use bpf_runtime::{Config, Engine, Linker, LoadError, Raw, isa::assemble};
    ///
    /// let engine = Engine::new(Config::new())?;
    /// let linker = Linker::<()>::new(&engine);
    /// let account = engine.account("filter", 4096);
    /// let load = || linker.loader::<Raw>().account(&account).insns("seven", assemble("r0 = 7\nexit").unwrap());
    /// let program = load()?;
    /// assert!(account.used() > 0);
    /// account.set_limit(account.used())?;
    /// assert!(matches!(load(), Err(LoadError::MemoryFull { .. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn account(&self, name: &str, limit: u64) -> Account {
        let (domain, memory) = (Arc::clone(self.domain()), self.domain().memory());
        let memory = match domain.is_forked() {
            true => memory.unlisted_account(name, limit),
            false => memory.account(name, limit),
        };
        Account { memory, domain: Settles(domain) }
    }

    /// Returns the use of the engine's memory, with its holders. Takes a lock that loads hold for a short time and runs
    /// never take. In a forked child, the lists are empty and only the sums are given.
    pub fn usage(&self) -> Usage {
        let (domain, memory, code) = (self.domain(), self.domain().memory(), self.code_stats());
        let accounts = listed(domain, || memory.accounts());
        Usage {
            limit: memory.limit(),
            used: memory.used(),
            code_mapped: code.bytes as u64,
            code_used: code.bytes_used as u64,
            stack_limit: self.config().max_machine_stack,
            held: listed(domain, || memory.held()),
            accounts: accounts.iter().map(|account| usage_of(account, domain)).collect(),
        }
    }
}
