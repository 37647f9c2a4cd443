//! Programs that are verified and compiled once, for many instances.
//!
//! Problem: a service with thousands of tenants loads the same object thousands of times, and each load verifies and
//! compiles it again. Approach: verification and compilation depend on the definitions of the maps and on frozen
//! constants, not on the maps ([`crate::program::references`]). A [`Module`] keeps their results, and the code as it
//! was emitted. To make an instance is the second half of a load ([`together`], [`Loaded::new`]): its maps are made, a
//! copy of the code is placed with its relocations, and the slots of its prog arrays are set.
//!
//! Invariant: the maps of an instance have the module's definitions, and hold the same bytes where the verification
//! relied on constants.

use crate::call::over::Over;
use crate::call::state::Host;
use crate::context::Context;
use crate::engine::Engine;
use crate::engine::usage::{Account, Payer};
use crate::error::LoadError;
use crate::handle::instance::Instance;
use crate::handle::kept::{Kept, Renew};
use crate::load::map_set::{DefKind, MapSet, Planned, initialise};
use crate::program::bindings::Pool;
use crate::program::loaded::{Loaded, Place};
use crate::program::map_ref::MapRef;
use crate::program::references::{Declared, References, constants};
use crate::program::table::{Member, bind_all};
use crate::program::unit::{Kept as KeptCode, Ready, Unit};
use bpf_quiesce::Finish;
use core::marker::PhantomData;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A verified and compiled object, for programs on context `C` with host state `H`: [`crate::Linker::compile`]. It has
/// neither maps nor executable memory; instances do. Cheap to clone; clones are the same module.
///
/// ```no_run
/// # use bpf_runtime::*;
/// # fn f(linker: &Linker<()>, object: &Object) -> Result<(), Box<dyn std::error::Error>> {
/// let module = linker.compile::<Raw>(object)?;
/// for tenant in ["acme", "initech"] {
///     let account = module.engine().account(tenant, 1 << 20);
///     let instance = module.instance().name(tenant).account(&account).make()?;
///     instance.program::<Raw>("filter")?.run_on(&mut [0; 64])?;
/// }
/// # Ok(()) }
/// ```
pub struct Module<C, H: ?Sized = ()> {
    inner: Arc<Inner>,
    types: Over<(C, H)>,
}

struct Inner {
    engine: Engine,
    planned: Arc<[Planned]>,
    /// Which of the object's maps instances have.
    wanted: Arc<[bool]>,
    /// The initial contents of instances' maps that are made without a [`MapSet`] of their own.
    origin: Arc<Origin>,
    /// The maps whose constants the verification relied on.
    relied: Vec<usize>,
    parts: Vec<Part>,
}

/// One program of a module.
pub(super) struct Part {
    unit: Unit,
    code: KeptCode,
    /// Indices into the object's maps, by the program's own map number.
    used: Vec<usize>,
}

impl Part {
    pub(super) fn new(unit: &Unit, ready: Ready<'_>, used: Vec<usize>) -> Part {
        Part { unit: unit.clone(), code: ready.keep(), used }
    }

    pub(super) fn of(unit: Unit, code: KeptCode, used: Vec<usize>) -> Part {
        Part { unit, code, used }
    }

    /// Returns all fields.
    pub(super) fn all(&self) -> (&Unit, &KeptCode, &[usize]) {
        (&self.unit, &self.code, &self.used)
    }

    /// Bytes of its machine code.
    pub(super) fn code_bytes(&self) -> usize {
        self.code.code_bytes()
    }
}

impl<C, H: ?Sized> Clone for Module<C, H> {
    fn clone(&self) -> Self {
        Module { inner: Arc::clone(&self.inner), types: PhantomData }
    }
}

impl<C, H: ?Sized> fmt::Debug for Module<C, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.inner.parts.iter().map(|part| &*part.unit.name).collect();
        f.debug_struct("Module").field("programs", &names).finish_non_exhaustive()
    }
}

impl<C: Context, H: Host + ?Sized> Module<C, H> {
    pub(super) fn new(
        engine: &Engine,
        planned: Arc<[Planned]>,
        wanted: Vec<bool>,
        relied: Vec<usize>,
        parts: Vec<Part>,
    ) -> Self {
        let (engine, wanted) = (engine.clone(), Arc::from(wanted));
        let origin = Arc::new(Origin::new(&MapSet::of(&engine, Arc::clone(&planned)), Arc::clone(&wanted)));
        Module { inner: Arc::new(Inner { engine, planned, wanted, origin, relied, parts }), types: PhantomData }
    }

    /// Returns the planned maps, which of them instances have, which constants were relied on, and the programs.
    pub(super) fn all(&self) -> (&[Planned], &[bool], &[usize], &[Part]) {
        let Inner { planned, wanted, relied, parts, .. } = &*self.inner;
        (planned, wanted, relied, parts)
    }

    /// Whether the program of this name returns nothing.
    pub(super) fn is_void(&self, name: &str) -> bool {
        self.inner.parts.iter().any(|part| *part.unit.name == *name && part.unit.void)
    }

    /// The engine that instances are made in.
    pub fn engine(&self) -> &Engine {
        &self.inner.engine
    }

    /// The names of its programs.
    pub fn programs(&self) -> impl Iterator<Item = &str> {
        self.inner.parts.iter().map(|part| &*part.unit.name)
    }

    /// Bytes of the machine code that each instance gets a copy of; 0 when interpreted.
    pub fn code_bytes(&self) -> usize {
        self.inner.parts.iter().map(Part::code_bytes).sum()
    }

    /// Returns the maps of one more instance: new ones, unless methods of the result say otherwise.
    pub fn maps(&self) -> MapSet {
        MapSet::of(&self.inner.engine, Arc::clone(&self.inner.planned))
    }

    /// Makes an instance with these maps.
    ///
    /// # Errors
    /// [`LoadError`]: [`LoadError::MapSet`] for maps of another object, [`LoadError::Constants`] for other constants
    /// than the programs were verified with; an error of making a map or of placing the code. Nothing is left behind
    /// after an error.
    pub fn instantiate(&self, maps: MapSet) -> Result<Instance<H>, LoadError> {
        self.instance().maps(maps).make()
    }

    /// Begins an instance: the result sets its options, and [`Instantiate::make`] makes it.
    pub fn instance(&self) -> Instantiate<'_, C, H> {
        Instantiate { module: self, maps: None, name: None, account: None, budget: None }
    }
}

/// The options of one instance of a [`Module`]: [`Module::instance`].
#[derive(Debug)]
#[must_use = "an instance is made by `make`"]
pub struct Instantiate<'m, C, H: ?Sized = ()> {
    module: &'m Module<C, H>,
    maps: Option<MapSet>,
    name: Option<Arc<str>>,
    account: Option<&'m Account>,
    budget: Option<u64>,
}

impl<'m, C: Context, H: Host + ?Sized> Instantiate<'m, C, H> {
    /// Returns these options for an instance of another module.
    pub(super) fn of(self, module: &'m Module<C, H>) -> Self {
        Instantiate { module, ..self }
    }

    /// Uses these maps ([`Module::maps`]); new ones by default.
    pub fn maps(mut self, maps: MapSet) -> Self {
        self.maps = Some(maps);
        self
    }

    /// Gives the instance a name, which appears in errors of its runs ([`crate::error::Origin`]), [`Engine::snapshot`],
    /// [`Engine::usage`], printed text ([`crate::run::Printed`]) and [`Instance::name`]. Several instances may have one
    /// name.
    pub fn name(mut self, name: &str) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Counts the instance's maps, prog arrays and code in this account.
    pub fn account(mut self, account: &'m Account) -> Self {
        self.account = Some(account);
        self
    }

    /// Stops each run that begins with one of the instance's programs after this number of taken back-edges and calls
    /// together, at least 1. Replaces the budget that the module was compiled with ([`crate::Loader::budget`]).
    pub fn budget(mut self, budget: u64) -> Self {
        self.budget = Some(budget);
        self
    }

    /// Makes the instance.
    ///
    /// # Errors
    /// As [`Module::instantiate`]; [`LoadError::OtherAccount`]; [`LoadError::NoBudget`], and [`LoadError::Uncounted`]
    /// for a budget of a program that was compiled without counting.
    pub fn make(self) -> Result<Instance<H>, LoadError> {
        let Instantiate { module, maps, name, account, budget } = self;
        let Inner { engine, planned, wanted, origin, relied, parts } = &*module.inner;
        may_load(engine, account)?;
        if let Some(budget) = budget {
            may_count(budget, parts)?;
        }
        let maps = maps.unwrap_or_else(|| module.maps());
        engine.domain().owns(&maps)?;
        maps.check_planned(planned)?;
        let origin = match maps.is_plain() {
            true => Arc::clone(origin),
            false => Arc::new(Origin::new(&maps, Arc::clone(wanted))),
        };
        let other: Vec<usize> = relied.iter().copied().filter(|at| maps.is_other(*at)).collect();
        let payer = Payer { account, instance: name.as_ref() };
        let maps = maps.create(wanted, payer)?;
        for at in other {
            same_constants(&planned[at], maps[at].as_ref())?;
        }
        let pool = Pool::new(engine, payer);
        let mut place = Place { engine, payer, pool, shared: true, budget };
        let mut programs = Vec::with_capacity(parts.len());
        for Part { unit, code, used } in parts {
            let own = own_maps(used, unit.references(), &maps)?;
            programs.push(Loaded::new(unit, code.ready(), own, &mut place)?);
        }
        let kept = together(engine, name.as_ref(), programs, &origin, maps)?;
        // Relaxed: a statistic.
        engine.0.metrics.loads.fetch_add(parts.len() as u64, Ordering::Relaxed);
        Ok(Instance::new(kept))
    }
}

/// Checks that anything may be loaded: the first step of every load and every verification.
pub(super) fn may_load(engine: &Engine, account: Option<&Account>) -> Result<(), LoadError> {
    // In a forked child a lock may be held for ever, by a thread that exists in the parent only.
    if engine.domain().is_forked() {
        return Err(LoadError::Forked);
    }
    match account {
        Some(account) if !account.memory().is_of(engine.domain().memory()) => {
            Err(LoadError::OtherAccount { account: account.name().to_owned() })
        }
        Some(_) | None => Ok(()),
    }
}

/// Checks that a budget is not 0 and that all programs count.
fn may_count(budget: u64, parts: &[Part]) -> Result<(), LoadError> {
    if budget == 0 {
        return Err(LoadError::NoBudget);
    }
    match parts.iter().find(|part| !part.unit.checks.budget) {
        Some(part) => Err(LoadError::Uncounted { program: part.unit.name.to_string() }),
        None => Ok(()),
    }
}

/// Checks that a map has the constants that programs were verified with.
fn same_constants(planned: &Planned, map: Option<&MapRef>) -> Result<(), LoadError> {
    let held = map.and_then(|map| match map {
        MapRef::Data(map) => constants(map),
        MapRef::Progs(_) => None,
    });
    match planned.kind() {
        DefKind::Data(data) if data.contents == held => Ok(()),
        DefKind::Data(_) | DefKind::Progs { .. } | DefKind::Unsupported(_) => {
            Err(LoadError::Constants { map: planned.name().to_owned() })
        }
    }
}

/// Selects from an object's maps the maps that a program refers to, in the order of the program's own map numbers.
pub(super) fn own_maps(
    used: &[usize],
    references: &References,
    maps: &[Option<MapRef>],
) -> Result<Vec<MapRef>, LoadError> {
    let missing = || LoadError::Internal("a map that is used is not there".into());
    let own = references.maps.iter().enumerate().map(|(i, declared)| match (used.get(i), declared) {
        (Some(map), _) => maps.get(*map).cloned().flatten().ok_or_else(missing),
        (None, Declared::There(map)) => Ok(map.clone()),
        (None, Declared::Data(_) | Declared::Progs(..)) => Err(missing()),
    });
    own.collect()
}

/// Ties programs to their maps and to each other, and makes them visible.
pub(super) fn together(
    engine: &Engine,
    name: Option<&Arc<str>>,
    programs: Vec<Arc<Loaded>>,
    origin: &Arc<Origin>,
    maps: Vec<Option<MapRef>>,
) -> Result<Kept, LoadError> {
    // The instance's hold comes first: if a slot cannot be set, it empties the arrays, which may hold each other's
    // programs.
    let own = maps.iter().flatten().cloned().collect();
    let kept = Kept::new(engine, name.cloned(), programs, own, Some(Arc::clone(origin) as _));
    initialise(&origin.planned, &maps, &origin.taken, &|name| named(kept.programs(), name))?;
    open(kept.programs())?;
    Ok(kept)
}

fn named(programs: &[Arc<Loaded>], name: &str) -> Option<Arc<Loaded>> {
    programs.iter().find(|program| *program.name == *name).map(Arc::clone)
}

/// The initial contents of an instance's maps.
pub(super) struct Origin {
    planned: Arc<[Planned]>,
    /// Which of the object's maps the instance has.
    wanted: Arc<[bool]>,
    /// Indices of the maps that were handed in, which others may use.
    taken: Vec<usize>,
    /// Contents other than the object's.
    contents: Vec<(usize, Vec<u8>)>,
}

impl Origin {
    /// The initial contents of an instance that is made with these maps.
    pub(super) fn new(maps: &MapSet, wanted: Arc<[bool]>) -> Origin {
        Origin { planned: Arc::clone(maps.planned()), wanted, taken: maps.taken(), contents: maps.other_contents() }
    }
}

impl Renew for Origin {
    fn renew(&self, programs: &[Arc<Loaded>], maps: &[MapRef]) -> Result<(), LoadError> {
        let mut own = maps.iter();
        let by_place: Vec<Option<MapRef>> =
            self.wanted.iter().map(|wanted| own.by_ref().take(usize::from(*wanted)).next().cloned()).collect();
        // A change of a map may run deferred callbacks of the host, which may panic. All maps are renewed nevertheless.
        let mut finish = Finish::default();
        let mut renew = || {
            for (at, (planned, map)) in self.planned.iter().zip(&by_place).enumerate() {
                let Some(map) = map else { continue };
                if !self.taken.contains(&at) {
                    let contents = self.contents.iter().find(|(of, _)| *of == at).map(|(_, contents)| &**contents);
                    planned.renew(map, contents, &mut finish)?;
                }
            }
            Ok(())
        };
        let renewed = renew();
        let again = || initialise(&self.planned, &by_place, &self.taken, &|name| named(programs, name));
        let result = renewed.and_then(|()| finish.step(again).unwrap_or(Ok(())));
        drop(finish);
        result
    }
}

/// Makes new programs visible, all or none: to users of the prog arrays that they jump through, and to the thread that
/// recompiles programs.
pub(super) fn open(programs: &[Arc<Loaded>]) -> Result<(), LoadError> {
    // Most programs jump through no prog array.
    if let Some(first) = programs.iter().find(|program| program.tables().next().is_some()) {
        bind_all(programs.iter().flat_map(|program| program.tables()), first.kind())?;
    }
    #[cfg(native)]
    programs.iter().for_each(Loaded::watch);
    Ok(())
}
