//! The references of a program's instructions, as it is verified and compiled: before its maps exist.
//!
//! Problem: the instances of a program differ in their maps, and to verify and compile each takes a hundred
//! microseconds. Approach: verification and code depend on the declarations of maps and on frozen contents only
//! ([`Declared`]). The maps themselves are bound when the code is placed ([`crate::program::bindings::Bindings`]).
//!
//! Invariant: code that is placed with these references is bound to maps of the declared definitions, in this order,
//! with the same constants.

use crate::call::helpers::owned::LocalType;
use crate::call::helpers::timers::TimerProgram;
use crate::error::LoadError;
use crate::program::bound::Bound;
use crate::program::map_ref::MapRef;
use bpf_analysis::{CallArity, FormatCall};
use bpf_isa::{Callee, Imm64, Insn, InsnIdx, Program};
use bpf_maps::{Map, MapDef, MapType};
use bpf_uapi::Helper;
use bpf_verifier::Effect;
use std::sync::Arc;
#[cfg(native)]
use {
    bpf_jit::{Hidden, MapShape, Signatures},
    bpf_uapi::MapTypes,
};

/// A map as programs are verified and compiled for it.
#[derive(Clone, Debug)]
pub(crate) enum Declared {
    /// An existing map, whose frozen contents are relied on.
    There(MapRef),
    /// A data map, of which each instance has its own.
    Data(Arc<DataDecl>),
    /// A prog array with this name and number of slots, of which each instance has its own.
    Progs(Arc<str>, u32),
}

/// A data map that is yet to be made.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct DataDecl {
    pub(crate) def: MapDef,
    /// The initial contents.
    pub(crate) contents: Option<Vec<u8>>,
    /// Whether the contents are constant once they are set.
    pub(crate) constant: bool,
}

impl Declared {
    pub(crate) fn name(&self) -> &str {
        match self {
            Declared::There(map) => map.name(),
            Declared::Data(data) => &data.def.name,
            Declared::Progs(name, _) => name,
        }
    }

    /// The definition, unless it is a prog array.
    pub(crate) fn def(&self) -> Option<&MapDef> {
        match self {
            Declared::There(MapRef::Data(map)) => Some(map.def()),
            Declared::Data(data) => Some(&data.def),
            Declared::There(MapRef::Progs(_)) | Declared::Progs(..) => None,
        }
    }

    /// The number of slots of a prog array; `None` for a data map.
    pub(crate) fn slots(&self) -> Option<u32> {
        match self {
            Declared::There(MapRef::Progs(table)) => Some(table.entries()),
            Declared::Progs(_, slots) => Some(*slots),
            Declared::There(MapRef::Data(_)) | Declared::Data(_) => None,
        }
    }

    /// The constant contents of an array of one value; `None` for other maps, and if they may change.
    pub(crate) fn constants(&self) -> Option<Vec<u8>> {
        match self {
            Declared::There(MapRef::Data(map)) => constants(map),
            Declared::Data(data) => {
                let DataDecl { def, contents, constant } = &**data;
                let one = def.map_type == MapType::Array && def.max_entries == 1;
                contents.as_ref().filter(|_| *constant && one).cloned()
            }
            Declared::There(MapRef::Progs(_)) | Declared::Progs(..) => None,
        }
    }

    /// The instruction that each entry of an instruction array names; `None` if the host may still change the array,
    /// and for other maps.
    pub(crate) fn targets(&self) -> Option<Vec<InsnIdx>> {
        match self {
            Declared::There(MapRef::Data(map)) if map.map_type() == MapType::InsnArray => instructions(map),
            Declared::There(_) | Declared::Data(_) | Declared::Progs(..) => None,
        }
    }

    fn is(&self, map_type: MapType) -> bool {
        self.def().is_some_and(|def| def.map_type == map_type)
    }
}

/// The constant contents of an array of one value; `None` for other maps, and if they may change.
pub(crate) fn constants(map: &Map) -> Option<Vec<u8>> {
    if map.map_type() != MapType::Array || !map.is_constant() || map.def().max_entries != 1 {
        return None;
    }
    map.get(&0u32.to_ne_bytes()).ok().flatten()
}

/// The operand of a two-slot load: the address of a byte in a map's first value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) insn: InsnIdx,
    /// The program's own number of the map.
    pub(crate) map: i32,
    pub(crate) off: u32,
}

/// The functions that a program calls.
#[derive(Clone, Debug, Default)]
pub(crate) struct Functions {
    /// The helpers it calls, ascending by id.
    pub(crate) helpers: Vec<(u32, Bound)>,
    /// The host functions it calls, by index; `None` for a weak function that the linker does not have.
    pub(crate) host: Vec<Option<Bound>>,
}

impl Functions {
    pub(crate) fn helper(&self, id: u32) -> Option<&Bound> {
        self.helpers.binary_search_by_key(&id, |h| h.0).ok().map(|i| &self.helpers[i].1)
    }

    pub(crate) fn host(&self, index: i32) -> Option<&Bound> {
        self.host.get(usize::try_from(index).ok()?)?.as_ref()
    }

    /// Iterates over all functions.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Bound> {
        self.helpers.iter().map(|(_, bound)| bound).chain(self.host.iter().flatten())
    }

    /// Returns a function that may sleep, if there is one.
    fn sleeping(&self) -> Option<&Bound> {
        self.all().find(|bound| bound.proto.effect == Effect::Sleeps)
    }

    /// Iterates over all functions.
    pub(crate) fn all_mut(&mut self) -> impl Iterator<Item = &mut Bound> {
        self.helpers.iter_mut().map(|(_, bound)| bound).chain(self.host.iter_mut().flatten())
    }

    /// Sets the number by which timers identify the program.
    pub(crate) fn set_timer_program(&mut self, number: &Arc<TimerProgram>) {
        let sets = |bound: &&mut Bound| bound.func.env.as_ref().is_some_and(|env| env.is::<TimerProgram>());
        self.all_mut().filter(sets).for_each(|bound| bound.func.env = Some(Arc::clone(number) as _));
    }

    /// The number by which timers identify the program; `None` if it calls no shipped function that sets the callback
    /// of a timer or of deferred work.
    pub(crate) fn timer_program(&self) -> Option<u64> {
        let number = |bound: &Bound| bound.func.env.as_ref()?.downcast_ref().map(|TimerProgram(number)| *number);
        let helper = self.helper(Helper::TimerSetCallback.id());
        helper.into_iter().chain(self.host.iter().flatten()).find_map(number)
    }
}

/// The maps and functions that the instructions of a program refer to.
#[derive(Debug, Default)]
pub(crate) struct References {
    /// The declared maps, by index.
    pub(crate) maps: Vec<Declared>,
    pub(crate) functions: Functions,
    /// Calls of helpers that do not exist, ascending. A call of a missing helper is an error only if a run can reach
    /// it.
    pub(crate) missing: Vec<(InsnIdx, u32)>,
    /// The operands of two-slot loads that are addresses in maps, ascending by instruction.
    pub(crate) places: Vec<Place>,
    /// The types that the program may make objects of.
    pub(crate) local_types: Option<Arc<[LocalType]>>,
    /// The calls whose function is bound to facts of the single call ([`bpf_analysis::Facts::formats`]), each with the
    /// function that it called before. Their functions are the last of [`Functions::host`], in this order.
    pub(crate) sites: Vec<(Called, FormatCall)>,
}

/// A function that is called by its number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Called {
    /// A helper, by its id.
    Helper(u32),
    /// A host function, by its index.
    Host(i32),
}

/// The references of a program that refers to nothing.
pub(crate) static NO_REFERENCES: References = References {
    maps: Vec::new(),
    functions: Functions { helpers: Vec::new(), host: Vec::new() },
    missing: Vec::new(),
    places: Vec::new(),
    local_types: None,
    sites: Vec::new(),
};

impl References {
    /// Whether the code can use no map, function or address.
    pub(crate) fn is_empty(&self) -> bool {
        let References { maps, functions: Functions { helpers, host }, missing, places, local_types, sites: _ } = self;
        local_types.is_none()
            && maps.is_empty()
            && helpers.is_empty()
            && missing.is_empty()
            && host.is_empty()
            && places.is_empty()
    }

    /// Returns a bound function that may sleep, if there is one.
    pub(crate) fn sleeping(&self) -> Option<&Bound> {
        self.functions.sleeping()
    }

    pub(crate) fn helper(&self, id: u32) -> Option<&Bound> {
        self.functions.helper(id)
    }

    pub(crate) fn host(&self, index: i32) -> Option<&Bound> {
        self.functions.host(index)
    }

    pub(crate) fn map(&self, index: i32) -> Option<&Declared> {
        self.maps.get(usize::try_from(index).ok()?)
    }

    /// The first arena that the program refers to.
    pub(crate) fn arena(&self) -> Option<&Declared> {
        self.maps.iter().find(|map| map.is(MapType::Arena))
    }

    /// Whether the program calls a function that throws.
    pub(crate) fn throws(&self, program: &Program) -> bool {
        let throws = |insn: &Insn| {
            let Insn::Call(Callee::Host(index)) = *insn else { return false };
            self.host(index).is_some_and(|bound| bound.proto.ret == bpf_verifier::Ret::Thrown)
        };
        program.contents().calls && program.insns().iter().any(throws)
    }

    /// Computes [`References::places`]: everything a two-slot instruction loads that is not a constant, a map or a
    /// function. Returns the program, with the targets that its instruction arrays name if it jumps through any.
    pub(crate) fn bind_places(&mut self, name: &str, program: Program) -> Result<Program, LoadError> {
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
                Imm64::Map(index) | Imm64::MapIdx(index) => {
                    let map = self.map(index).ok_or_else(|| fail(format!("there is no map with index {index}")))?;
                    if map.is(MapType::InsnArray) {
                        tables.push(index);
                    }
                }
                Imm64::MapValue { map: index, off } | Imm64::MapIdxValue { map: index, off } => {
                    let map = self.map(index).ok_or_else(|| fail(format!("there is no map with index {index}")))?;
                    if let Some(what) = outside(map, off) {
                        return Err(fail(what));
                    }
                    if map.is(MapType::InsnArray) {
                        tables.push(index);
                    }
                    self.places.push(Place { insn, map: index, off });
                }
                Imm64::Var(id) => return Err(fail(format!("kernel variable {id} does not exist in user space"))),
            }
        }
        tables.sort_unstable();
        tables.dedup();
        let mut targets = Vec::new();
        for table in tables.iter().filter_map(|table| self.map(*table)) {
            let what = format!("the instruction array `{}` is not frozen (Map::freeze)", table.name());
            let not_frozen = LoadError::Unresolved { program: name.to_owned(), insn: InsnIdx(0), what };
            targets.extend(table.targets().ok_or(not_frozen)?);
        }
        if targets.is_empty() {
            return Ok(program);
        }
        let (insns, _) = program.into_parts();
        Program::with_targets(insns, targets).map_err(LoadError::structure(name))
    }
}

/// Why no byte of a map's first value is at this offset; `None` if one is.
fn outside(map: &Declared, off: u32) -> Option<String> {
    let name = map.name();
    let first_value = || Some(format!("offset {off} is not in the first value of array `{name}`"));
    let Some(def) = map.def() else { return first_value() };
    match def.map_type {
        MapType::Arena if def.arena().is_some_and(|shape| u64::from(off) < shape.bytes) => None,
        MapType::Arena => Some(format!("offset {off} is not in arena `{name}`")),
        MapType::InsnArray if u64::from(off) < 8 * u64::from(def.max_entries) => None,
        MapType::InsnArray => Some(format!("offset {off} is in no entry of the instruction array `{name}`")),
        MapType::Array | MapType::PerCpuArray if off < def.value_size => None,
        _other => first_value(),
    }
}

/// The instruction that each entry of an instruction array names; `None` if the host may still change the array.
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

impl CallArity for References {
    fn helper(&self, id: u32) -> u8 {
        References::helper(self, id).map_or(5, |b| b.proto.arity())
    }
    fn host(&self, index: i32) -> u8 {
        References::host(self, index).map_or(5, |b| b.proto.arity())
    }
}

#[cfg(native)]
impl Signatures for References {
    fn map(&self, index: u32) -> MapShape {
        let Some(def) = self.maps.get(index as usize).and_then(Declared::def) else { return MapShape::Opaque };
        let max_entries = def.max_entries;
        match (def.map_type, def.array_strides()) {
            (MapType::Array, Some((stride, _))) => MapShape::Array { max_entries, stride },
            (MapType::PerCpuArray, Some((stride, slot_stride))) => {
                MapShape::PerCpuArray { max_entries, stride, slot_stride }
            }
            (MapType::ArrayOfMaps, _) => MapShape::ArrayOfMaps { max_entries },
            (keyed, _) if MapTypes::KEYED.contains(keyed) => MapShape::Keyed,
            // The verifier lets no look-up near these; unverified code calls the helper, which refuses.
            _other => MapShape::Opaque,
        }
    }
    fn helper_hidden(&self, id: u32) -> Hidden {
        References::helper(self, id).map_or(Hidden::Ctx, Bound::hidden)
    }
    fn host_hidden(&self, index: i32) -> Hidden {
        References::host(self, index).map_or(Hidden::Ctx, Bound::hidden)
    }
}
