//! What the instructions of a program refer to: maps, helpers, host functions, addresses.

use crate::call::helpers::owned::LocalTypes;
use crate::call::helpers::timers::TimerProgram;
use crate::engine::metrics::Counted;
use crate::error::LoadError;
use crate::program::bound::Bound;
use crate::program::map_ref::MapRef;
use bpf_analysis::CallArity;
use bpf_isa::{Callee, Imm64, Insn, InsnIdx, Program};
use bpf_maps::{Map, MapType};
use bpf_quiesce::Reservation;
use bpf_uapi::Helper;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
#[cfg(native)]
use {
    crate::call::helpers::callback_shims::{adding_to_tree, calling_back},
    crate::program::bound::missing_host_function,
    bpf_jit::{Extern, Hidden, LowerOptions, MapShape, Signatures},
    bpf_jit_code::Symbol,
    bpf_uapi::MapTypes,
    bpf_verifier::ArgKind,
};

/// What the instructions of a program refer to.
#[derive(Debug, Default)]
pub(crate) struct Bindings {
    /// By map index; `None` where the program does not refer to it.
    pub(crate) maps: Vec<Option<MapRef>>,
    /// The helpers it calls, ascending by id.
    pub(crate) helpers: Vec<(u32, Bound)>,
    /// Calls of helpers that there are not, ascending: fine where no run reaches them.
    pub(crate) missing: Vec<(InsnIdx, u32)>,
    /// The host functions it calls, by index; `None`: weak and missing.
    pub(crate) host: Vec<Option<Bound>>,
    /// Addresses loaded by two-slot instructions other than plain maps, ascending.
    pub(crate) addresses: Vec<(InsnIdx, u64)>,
    /// What it may make objects of.
    pub(crate) local_types: Option<Arc<LocalTypes>>,
    /// What the program has taken of an account.
    pub(crate) memory: Option<Reservation>,
    /// Where its runs are counted.
    pub(crate) counted: Option<Counted>,
    /// Of a contained program: where accesses are made that are outside of what they should be in.
    pub(crate) sink: Option<Sink>,
}

/// Memory that only one program's code reads and writes, by its own accesses that are out of bounds.
#[derive(Debug)]
#[cfg_attr(not(native), allow(dead_code, reason = "only machine code has a use for it"))]
pub(crate) struct Sink(Box<[AtomicU64]>);

#[cfg_attr(not(native), allow(dead_code, reason = "as above"))]
impl Sink {
    /// Of so many bytes at least, a multiple of eight.
    pub(crate) fn new(bytes: usize) -> Sink {
        Sink((0..bytes.div_ceil(8) + 1).map(|_| AtomicU64::new(0)).collect())
    }

    #[cfg(native)]
    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&*self.0)
    }
}

/// Those of a program that refers to nothing.
pub(crate) static NO_BINDINGS: Bindings = Bindings {
    maps: Vec::new(),
    helpers: Vec::new(),
    missing: Vec::new(),
    host: Vec::new(),
    addresses: Vec::new(),
    local_types: None,
    memory: None,
    counted: None,
    sink: None,
};

impl Bindings {
    /// Whether there is nothing that the code could use.
    pub(crate) fn is_empty(&self) -> bool {
        let Bindings { maps, helpers, missing, host, addresses, local_types, memory, counted, sink } = self;
        memory.is_none()
            && sink.is_none()
            && counted.is_none()
            && local_types.is_none()
            && maps.is_empty()
            && helpers.is_empty()
            && missing.is_empty()
            && host.is_empty()
            && addresses.is_empty()
    }

    pub(crate) fn helper(&self, id: u32) -> Option<&Bound> {
        self.helpers.binary_search_by_key(&id, |h| h.0).ok().map(|i| &self.helpers[i].1)
    }

    /// The number by which timers know the program, if it sets their callbacks, or those of work for later, by the
    /// shipped functions.
    pub(crate) fn timer_program(&self) -> Option<u64> {
        let number = |bound: &Bound| bound.func.env.as_ref()?.downcast_ref().map(|TimerProgram(number)| *number);
        let helper = self.helper(Helper::TimerSetCallback.id());
        helper.into_iter().chain(self.host.iter().flatten()).find_map(number)
    }

    /// Timers and work for later know the program by one number.
    pub(crate) fn unify_timer_programs(&mut self) {
        let timers = self.helper(Helper::TimerSetCallback.id()).and_then(|bound| bound.func.env.clone());
        let Some(env) = timers.filter(|env| env.is::<TimerProgram>()) else { return };
        let works = |bound: &&mut Bound| bound.func.env.as_ref().is_some_and(|env| env.is::<TimerProgram>());
        self.host.iter_mut().flatten().filter(works).for_each(|bound| bound.func.env = Some(env.clone()));
    }

    pub(crate) fn host(&self, index: i32) -> Option<&Bound> {
        self.host.get(usize::try_from(index).ok()?)?.as_ref()
    }

    pub(crate) fn map(&self, index: i32) -> Option<&MapRef> {
        self.maps.get(usize::try_from(index).ok()?)?.as_ref()
    }

    #[cfg(native)]
    fn data_map(&self, index: u32) -> Option<&Map> {
        match self.map(index as i32)? {
            MapRef::Data(map) => Some(map),
            MapRef::Progs(_) | MapRef::Declared(_) => None,
        }
    }

    /// The first arena that the program refers to.
    pub(crate) fn arena(&self) -> Option<&MapRef> {
        let is_arena = |map: &&MapRef| matches!(map, MapRef::Data(map) if map.map_type() == MapType::Arena);
        self.maps.iter().flatten().find(is_arena)
    }

    /// Whether the program calls what throws.
    pub(crate) fn throws(&self, program: &Program) -> bool {
        let throws = |insn: &Insn| {
            let Insn::Call(Callee::Host(index)) = *insn else { return false };
            self.host(index).is_some_and(|bound| bound.proto.ret == bpf_verifier::Ret::Thrown)
        };
        program.contents().calls && program.insns().iter().any(throws)
    }

    pub(crate) fn address(&self, at: InsnIdx) -> Option<u64> {
        self.addresses.binary_search_by_key(&at, |a| a.0).ok().map(|i| self.addresses[i].1)
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
            Extern::Sink(_) => self.sink.as_ref()?.0.as_ptr() as usize,
            Extern::Counters(_) => crate::num::index(self.counted.as_ref()?.counters.address()),
        })
    }

    /// Computes [`Bindings::addresses`]: everything a two-slot instruction loads that is not a constant, a map or a
    /// function. The program comes back with the targets that its instruction arrays name, if it jumps by them.
    pub(crate) fn bind_addresses(&mut self, name: &str, program: Program) -> Result<Program, LoadError> {
        if !program.contents().wide_loads {
            return Ok(program);
        }
        let mut tables: Vec<i32> = Vec::new();
        for (slot, insn) in (0u32..).zip(program.insns()) {
            let Insn::LoadImm64 { imm, .. } = insn else { continue };
            let insn = InsnIdx(slot);
            let fail = |what: String| LoadError::Unresolved { program: name.to_owned(), insn, what };
            match *imm {
                Imm64::Const(_) | Imm64::Func(_) => {}
                Imm64::Map(map) | Imm64::MapIdx(map) => {
                    let index = map;
                    let map = self.map(map).ok_or_else(|| fail(format!("there is no map with index {map}")))?;
                    if insn_array(map).is_some() {
                        tables.push(index);
                    }
                }
                Imm64::MapValue { map, off } | Imm64::MapIdxValue { map, off } => {
                    let address = match self.map(map) {
                        Some(MapRef::Data(map)) if map.map_type() == MapType::Arena => {
                            let shape = map.def().arena().filter(|shape| u64::from(off) < shape.bytes);
                            let Some(shape) = shape else {
                                return Err(fail(format!("offset {off} is not in arena `{}`", map.name())));
                            };
                            shape.user + u64::from(off)
                        }
                        Some(MapRef::Data(table)) if table.map_type() == MapType::InsnArray => {
                            if u64::from(off) >= 8 * u64::from(table.header().max_entries) {
                                let name = &table.def().name;
                                return Err(fail(format!(
                                    "offset {off} is in no entry of the instruction array `{name}`"
                                )));
                            }
                            tables.push(map);
                            table.header().base as u64 + u64::from(off)
                        }
                        Some(MapRef::Data(map)) if !map.header().base.is_null() && off < map.header().value_size => {
                            map.header().base as u64 + u64::from(off)
                        }
                        Some(MapRef::Declared(map)) if map.holds(off) => u64::from(off),
                        Some(map) => {
                            let name = map.name();
                            return Err(fail(format!("offset {off} is not in the first value of array `{name}`")));
                        }
                        None => return Err(fail(format!("there is no map with index {map}"))),
                    };
                    self.addresses.push((insn, address));
                }
                Imm64::Var(id) => return Err(fail(format!("kernel variable {id} does not exist in user space"))),
            }
        }
        tables.sort_unstable();
        tables.dedup();
        let mut targets = Vec::new();
        for table in tables.iter().filter_map(|table| insn_array(self.map(*table)?)) {
            let what = format!("the instruction array `{}` is not frozen (Map::freeze)", table.def().name);
            let not_frozen = LoadError::Unresolved { program: name.to_owned(), insn: InsnIdx(0), what };
            targets.extend(instructions(table).ok_or(not_frozen)?);
        }
        if targets.is_empty() {
            return Ok(program);
        }
        let (insns, _) = program.into_parts();
        Program::with_targets(insns, targets).map_err(LoadError::structure(name))
    }
}

fn insn_array(map: &MapRef) -> Option<&Map> {
    match map {
        MapRef::Data(map) if map.map_type() == MapType::InsnArray => Some(map),
        MapRef::Data(_) | MapRef::Progs(_) | MapRef::Declared(_) => None,
    }
}

/// What each entry of an instruction array names, for good; `None` if the host may still change it.
pub(crate) fn instructions(table: &Map) -> Option<Vec<InsnIdx>> {
    if !table.is_frozen() {
        return None;
    }
    let entry = |index: u32| {
        let value = table.get(&index.to_ne_bytes()).ok()??;
        value.first_chunk().map(|offset| InsnIdx(u32::from_ne_bytes(*offset)))
    };
    (0..table.header().max_entries).map(entry).collect()
}

impl CallArity for Bindings {
    fn helper(&self, id: u32) -> u8 {
        Bindings::helper(self, id).map_or(5, |b| b.proto.arity())
    }
    fn host(&self, index: i32) -> u8 {
        Bindings::host(self, index).map_or(5, |b| b.proto.arity())
    }
}

#[cfg(native)]
impl Signatures for Bindings {
    fn map(&self, index: u32) -> MapShape {
        match self.data_map(index) {
            Some(map) => {
                let header = map.header();
                let (max_entries, stride) = (header.max_entries, header.stride);
                match map.map_type() {
                    MapType::Array => MapShape::Array { max_entries, stride },
                    MapType::PerCpuArray => {
                        MapShape::PerCpuArray { max_entries, stride, slot_stride: header.slot_stride }
                    }
                    MapType::ArrayOfMaps => MapShape::ArrayOfMaps { max_entries },
                    keyed if MapTypes::KEYED.contains(keyed) => MapShape::Keyed,
                    // The verifier lets no look-up near these; unverified code calls the helper, which refuses.
                    _other => MapShape::Opaque,
                }
            }
            None => MapShape::Opaque,
        }
    }
    fn helper_hidden(&self, id: u32) -> Hidden {
        Bindings::helper(self, id).map_or(Hidden::Ctx, Bound::hidden)
    }
    fn host_hidden(&self, index: i32) -> Hidden {
        Bindings::host(self, index).map_or(Hidden::Ctx, Bound::hidden)
    }
}
