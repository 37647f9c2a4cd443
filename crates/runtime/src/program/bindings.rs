//! The targets of the references of one instance's instructions: maps, helpers, host functions, addresses.

use crate::call::helpers::owned::{LocalTypes, own_obj_new};
use crate::call::helpers::print;
use crate::call::helpers::timers::TimerProgram;
use crate::call::known::{self, Known};
use crate::engine::Engine;
use crate::engine::metrics::Counted;
use crate::engine::usage::Payer;
use crate::error::LoadError;
use crate::program::bound::Bound;
use crate::program::interpreted::Interpreted;
use crate::program::map_ref::MapRef;
use crate::program::references::{Functions, Place, References};
use bpf_isa::InsnIdx;
use bpf_maps::MapType;
use bpf_maps::owned::Objects;
use bpf_quiesce::Reservation;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
#[cfg(native)]
use {
    crate::call::helpers::callback_shims::{adding_to_tree, calling_back},
    crate::program::bound::missing_host_function,
    bpf_jit::{Extern, LowerOptions},
    bpf_jit_code::Symbol,
    bpf_maps::Map,
    bpf_verifier::ArgKind,
};

/// The targets of the references of one instance's instructions.
#[derive(Debug, Default)]
pub(crate) struct Bindings {
    /// The references that the program was verified and compiled with, shared by its instances.
    references: Option<Arc<References>>,
    /// The maps, by index.
    pub(crate) maps: Vec<MapRef>,
    /// The functions of this instance, if some differ from the functions that instances share.
    own: Option<Box<Functions>>,
    /// The bytes that the program takes of an account.
    pub(crate) memory: Option<Reservation>,
    /// The counters of its runs.
    pub(crate) counted: Option<Counted>,
    /// For a contained program: the memory that its out-of-bounds accesses are redirected to.
    pub(crate) sink: Option<Sink>,
    /// The instructions of a program in machine code whose runs may be recorded.
    pub(crate) recordable: Option<Recordable>,
}

/// The instructions of a program in machine code, and their bytes of an account, if they belong to no module.
#[derive(Debug)]
pub(crate) struct Recordable {
    pub(crate) what: Arc<Interpreted>,
    pub(crate) _memory: Option<Reservation>,
}

/// Memory that receives the out-of-bounds accesses of one contained program, and no others.
#[derive(Debug)]
#[cfg_attr(not(native), allow(dead_code, reason = "only machine code has a use for it"))]
pub(crate) struct Sink(Box<[AtomicU64]>);

#[cfg_attr(not(native), allow(dead_code, reason = "as above"))]
impl Sink {
    /// Makes a sink of at least `bytes` bytes, rounded up to a multiple of eight.
    pub(crate) fn new(bytes: usize) -> Sink {
        Sink((0..bytes.div_ceil(8) + 1).map(|_| AtomicU64::new(0)).collect())
    }

    #[cfg(native)]
    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&*self.0)
    }
}

/// The bindings of a program without references.
pub(crate) static NO_BINDINGS: Bindings = Bindings {
    references: None,
    maps: Vec::new(),
    own: None,
    memory: None,
    counted: None,
    sink: None,
    recordable: None,
};

/// The allocator of one instance's objects, made when its first program needs it.
pub(crate) struct Pool<'a> {
    engine: &'a Engine,
    payer: Payer<'a>,
    pool: Option<Arc<Objects>>,
}

impl<'a> Pool<'a> {
    /// An allocator that is counted for this payer.
    pub(crate) fn new(engine: &'a Engine, payer: Payer<'a>) -> Pool<'a> {
        Pool { engine, payer, pool: None }
    }

    /// Returns the allocator, for the program of this name.
    fn get(&mut self, program: &str) -> Result<Arc<Objects>, LoadError> {
        if let Some(pool) = &self.pool {
            return Ok(Arc::clone(pool));
        }
        let pool = Objects::new(self.engine.domain(), self.payer.memory(self.engine));
        let pool = pool.map_err(|full| LoadError::MemoryFull { program: program.to_owned(), full })?;
        Ok(Arc::clone(self.pool.insert(pool)))
    }
}

impl Bindings {
    /// The bindings of an instance with these maps, one for each map that its program refers to.
    pub(crate) fn new(
        name: &str,
        references: &Arc<References>,
        maps: Vec<MapRef>,
        pool: &mut Pool<'_>,
    ) -> Result<Bindings, LoadError> {
        let own = own_functions(name, references, &maps, pool)?.map(Box::new);
        Ok(Bindings { references: Some(Arc::clone(references)), maps, own, ..Bindings::default() })
    }

    /// The functions that it calls.
    fn functions(&self) -> Option<&Functions> {
        self.own.as_deref().or_else(|| self.references.as_ref().map(|references| &references.functions))
    }

    pub(crate) fn helper(&self, id: u32) -> Option<&Bound> {
        self.functions()?.helper(id)
    }

    pub(crate) fn host(&self, index: i32) -> Option<&Bound> {
        self.functions()?.host(index)
    }

    /// The number by which timers identify the program: see [`Functions::timer_program`].
    pub(crate) fn timer_program(&self) -> Option<u64> {
        self.functions()?.timer_program()
    }

    /// Sets the counters of the program's runs.
    pub(crate) fn count_in(&mut self, counted: Counted) {
        let printer = self.functions().and_then(|all| all.all().find_map(|bound| print::printer_of(&bound.func)));
        if let Some(printer) = printer {
            printer.count_in(&counted.counters);
        }
        self.counted = Some(counted);
    }

    pub(crate) fn map(&self, index: i32) -> Option<&MapRef> {
        self.maps.get(usize::try_from(index).ok()?)
    }

    #[cfg(native)]
    fn data_map(&self, index: u32) -> Option<&Map> {
        match self.map(index as i32)? {
            MapRef::Data(map) => Some(map),
            MapRef::Progs(_) => None,
        }
    }

    /// The address that the two-slot instruction at this slot loads; `None` if it loads a map.
    pub(crate) fn address(&self, at: InsnIdx) -> Option<u64> {
        let places = &self.references.as_ref()?.places;
        let Place { map, off, .. } = places[places.binary_search_by_key(&at, |place| place.insn).ok()?];
        let MapRef::Data(map) = self.map(map)? else { return None };
        let first = match map.map_type() {
            MapType::Arena => map.def().arena()?.user,
            _other => map.header().base as u64,
        };
        Some(first + u64::from(off))
    }

    /// The address of a symbol of code that was compiled like this.
    #[cfg(native)]
    pub(super) fn resolve(&self, symbol: Symbol, compiled: &LowerOptions) -> Option<usize> {
        let missing = missing_host_function as *const () as usize;
        Some(match Extern::from_symbol(symbol)? {
            Extern::Helper(id) => {
                let Bound { proto, func } = self.helper(id)?;
                proto.callback().map_or(func.shim, |kind| calling_back(kind, compiled)) as usize
            }
            Extern::Host(index) => match self.host(index as i32) {
                Some(bound) if bound.proto.args.contains(&ArgKind::Compare) => adding_to_tree(compiled) as usize,
                Some(bound) => bound.func.shim as usize,
                None => missing,
            },
            Extern::Map(index) => crate::num::index(self.map(index as i32)?.address()),
            Extern::Imm64(at) => crate::num::index(self.address(at)?),
            Extern::HelperEnv(id) => crate::num::index(self.helper(id)?.func.env_address()),
            Extern::HostEnv(index) => crate::num::index(self.host(index as i32)?.func.env_address()),
            Extern::ArrayBase(index) => match self.data_map(index)? {
                map if map.map_type() == MapType::ArrayOfMaps => map.inner_base() as usize,
                map => map.header().base as usize,
            },
            Extern::MapLookup(index) => self.data_map(index)?.lookup_fn() as usize,
            Extern::Spent(_) => crate::call::spent::spent as *const () as usize,
            Extern::Sink(_) => self.sink.as_ref()?.0.as_ptr() as usize,
            Extern::Counters(_) => crate::num::index(self.counted.as_ref()?.counters.address()),
        })
    }
}

/// The functions of an instance, if some differ from the shared ones: functions that make objects from the instance's
/// own allocator, set timers, print the names of the account and the instance, or know their callers.
fn own_functions(
    name: &str,
    references: &References,
    maps: &[MapRef],
    pool: &mut Pool<'_>,
) -> Result<Option<Functions>, LoadError> {
    let timers = references.functions.timer_program().is_some();
    // Printed text names the account and the instance.
    let Payer { account, instance } = pool.payer;
    let named = account.is_some() || instance.is_some();
    let printer = references.functions.all().find_map(|bound| print::printer_of(&bound.func));
    let printer = printer.filter(|_| named).map(|printer| printer.for_payer(pool.payer));
    let knows = references.functions.all().any(|bound| known::knows(&bound.func));
    if !timers && !knows && printer.is_none() && references.local_types.is_none() {
        return Ok(None);
    }
    let mut own = references.functions.clone();
    if timers {
        // Timers and deferred work identify the program by one number.
        own.set_timer_program(&Arc::new(TimerProgram::new()));
    }
    if knows {
        let data = |map: &MapRef| match map {
            MapRef::Data(map) => Some(map.clone()),
            // An array holds programs, perhaps this one, which would then hold itself.
            MapRef::Progs(_) => None,
        };
        let by = Arc::new(Known::new(name, maps.iter().filter_map(data).collect(), pool.payer));
        for bound in own.all_mut() {
            if let Some(func) = known::called_by(&bound.func, &by) {
                bound.func = func;
            }
        }
    }
    if let Some(printer) = printer {
        for bound in own.all_mut() {
            if let Some(func) = print::printing(&bound.func, &printer) {
                bound.func = func;
            }
        }
    }
    if let Some(types) = &references.local_types {
        let types = Arc::new(LocalTypes { pool: pool.get(name)?, types: Arc::clone(types) });
        for bound in own.host.iter_mut().flatten() {
            if let Some(func) = own_obj_new(bound.proto.id, &types) {
                bound.func = func;
            }
        }
    }
    Ok(Some(own))
}
