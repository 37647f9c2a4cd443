//! Compiled modules as bytes, which a service keeps and loads in microseconds.
//!
//! Problem: a service that restarts verifies and compiles the same objects again. Approach: the bytes hold the parts of
//! a [`Module`]: code with its relocations, the programs' references by number and name, definitions of maps. The
//! linker that reads the bytes binds functions anew. A header comes first: digests of the build of this library, the
//! processor, the engine's settings and the context that the code was made for, and a checksum of the rest.
//!
//! Code depends on more of the library than a list of constants can cover: offsets in the structures that it reads, the
//! contracts of the functions that it calls, and the compiler's assumptions about both. All of these are in the
//! executable or shared library that this file was compiled into, so the build id of that one stands for them
//! ([`bpf_os::process::build`]). A version number would not: it stays the same while the library is worked on, with
//! other features, and with other versions of its dependencies. The price is that a new build of the service makes its
//! modules anew, which takes milliseconds. Each digest is compared, so a cache that is out of date gives an error and
//! not a crash. The header does not show that the code is harmless: write access to the bytes allows arbitrary code
//! execution, as with a shared library. The safe form of a program is its object.

use crate::call::state::Host;
use crate::context::Context;
use crate::engine::Engine;
use crate::error::{DeserializeError, SerializeError};
use crate::load::linker::Linker;
use crate::load::map_set::{DefKind, Planned};
use crate::load::module::{Module, Part};
use crate::load::wire::{Bytes, Reader, Wire, Writer, checksum};
use crate::program::bound::Bound;
use crate::program::references::{DataDecl, Functions, Place, References};
use crate::program::unit::Kept;
use bpf_isa::InsnIdx;
use bpf_maps::{Kind, MapDef, MapType};
use bpf_object::InitialValue;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, OnceLock};
#[cfg(native)]
use {
    crate::abi::limits::Checks,
    crate::load::loader::jump_table,
    crate::load::verify::bind_site,
    crate::program::bound::unresolved,
    crate::program::code::{Map, Shape},
    crate::program::map_ref::MapRef,
    crate::program::name::Name,
    crate::program::references::{Called, Declared},
    crate::program::source::Source,
    crate::program::table::HostType,
    crate::program::unit::Unit,
    bpf_analysis::FormatCall,
    bpf_jit::LowerOptions,
    bpf_jit_code::Code,
    bpf_object::UNRESOLVED_CALL,
    bpf_verifier::SourceLine,
};

/// The first bytes of a serialised module.
const MAGIC: [u8; 8] = *b"bpfmod\x00\x01";

/// Digests of the properties that must be equal where code is compiled and where it runs, and the checksum of the bytes
/// that follow.
struct Header {
    version: u64,
    cpu: u64,
    config: u64,
    context: u64,
    body: u64,
}

impl Wire for Header {
    fn put(&self, to: &mut Writer) {
        let Header { version, cpu, config, context, body } = self;
        [version, cpu, config, context, body].into_iter().for_each(|digest| digest.put(to));
    }
    fn get(from: &mut Reader<'_>) -> Option<Self> {
        let [version, cpu, config, context, body] = [(); 5].map(|()| u64::get(from));
        Some(Header { version: version?, cpu: cpu?, config: config?, context: context?, body: body? })
    }
}

/// A digest of a value. It is compared only with digests that the same build of the library made, and the hasher has no
/// random key.
fn digest(of: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    hasher.finish()
}

/// A digest of this library's version and of the build of the executable or shared library that it is in.
fn build() -> u64 {
    static BUILD: OnceLock<u64> = OnceLock::new();
    *BUILD.get_or_init(|| {
        let layout = size_of::<bpf_jit_code::RunCtx>();
        digest(&(env!("CARGO_PKG_VERSION"), layout, bpf_os::process::build(build as *const () as usize)))
    })
}

impl Header {
    /// The header of code for programs on `C` in this engine, with this checksum.
    fn of<C: Context>(engine: &Engine, body: u64) -> Header {
        let config = engine.config();
        Header {
            version: build(),
            cpu: digest(&(bpf_jit_code::Arch::HOST, config.features)),
            // Code depends on some settings beside its `Unit`, and the engine promises some for every program.
            config: digest(&(
                (config.contained, config.budget, config.hybrid_budget, config.interruptible, config.coverage),
                config.hardening,
                config.direct_tail_calls && engine.domain().has_core_barrier(),
                config.metrics,
                config.frame_bytes,
                config.max_machine_stack,
                engine.domain().max_slots(),
                config.mode,
            )),
            context: digest(C::layout()),
            body,
        }
    }

    fn check(&self, other: &Header) -> Result<(), DeserializeError> {
        let same = |one: u64, other: u64, error| if one == other { Ok(()) } else { Err(error) };
        same(self.version, other.version, DeserializeError::Version)?;
        same(self.cpu, other.cpu, DeserializeError::Cpu)?;
        same(self.config, other.config, DeserializeError::Config)?;
        same(self.context, other.context, DeserializeError::Context)?;
        same(self.body, other.body, DeserializeError::Changed)
    }
}

impl<C: Context, H: Host + ?Sized> Module<C, H> {
    /// Returns the module as bytes, for [`Module::deserialize`] by the same build of this library, on the same kind of
    /// processor, in an engine with the same settings. Information for debuggers is left out.
    ///
    /// # Errors
    /// [`SerializeError`] if a part of the module has no serialised form.
    pub fn serialize(&self) -> Result<Vec<u8>, SerializeError> {
        let mut body = Writer::default();
        self.put(&mut body)?;
        let mut all = Writer(MAGIC.to_vec());
        Header::of::<C>(self.engine(), checksum(&body.0)).put(&mut all);
        all.0.append(&mut body.0);
        Ok(all.0)
    }

    /// Reads a module that [`Module::serialize`] wrote, for the linker's engine. Host functions are found in the linker
    /// by name, and must have the same prototypes.
    ///
    /// ```no_run
    /// # use bpf_runtime::*;
    /// # type Done = Result<(), Box<dyn std::error::Error>>;
    /// # fn f(linker: &Linker<()>, object: &Object, cache: &std::path::Path) -> Done {
    /// // SAFETY: nobody but this service can write into the folder, and it writes what `serialize` says.
    /// let read = |bytes: Vec<u8>| unsafe { Module::<Raw, ()>::deserialize(linker, &bytes) }.ok();
    /// let cached = std::fs::read(cache).ok().and_then(read);
    /// let module = match cached {
    ///     Some(module) => module,
    ///     None => {
    ///         let module = linker.compile::<Raw>(object)?;
    ///         std::fs::write(cache, module.serialize()?)?;
    ///         module
    ///     }
    /// };
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`DeserializeError`] for bytes of another version, processor, context or configuration, or that were changed by
    /// mistake.
    ///
    /// # Safety
    /// The bytes must be what [`Module::serialize`] of this build of this library returned for programs on `C`: they
    /// are machine code, which is run as it is. The checks find mistakes, not malice.
    pub unsafe fn deserialize(linker: &Linker<H>, bytes: &[u8]) -> Result<Self, DeserializeError> {
        let mut reader = Reader(bytes);
        if reader.bytes(MAGIC.len()) != Some(&MAGIC[..]) {
            return Err(DeserializeError::NoModule);
        }
        let header = Header::get(&mut reader).ok_or(DeserializeError::NoModule)?;
        header.check(&Header::of::<C>(&linker.engine, checksum(reader.0)))?;
        let module = Self::get(linker, &mut reader)?;
        if reader.0.is_empty() { Ok(module) } else { Err(DeserializeError::Malformed) }
    }

    fn put(&self, to: &mut Writer) -> Result<(), SerializeError> {
        let (planned, wanted, relied, parts) = self.all();
        planned.len().put(to);
        for planned in planned {
            let (name, kind, variables, initial) = planned.all();
            (name.to_owned(), variables.to_vec()).put(to);
            initial
                .iter()
                .map(|(index, value)| match value {
                    InitialValue::Map(map) => (*index, (Some(*map), String::new())),
                    InitialValue::Program(name) => (*index, (None, name.clone())),
                })
                .collect::<Vec<(u32, (Option<usize>, String))>>()
                .put(to);
            put_kind(name, kind, to)?;
        }
        (wanted.to_vec(), relied.to_vec()).put(to);
        parts.len().put(to);
        parts.iter().try_for_each(|part| put_part(part, to))
    }

    #[cfg(not(native))]
    fn get(_: &Linker<H>, _: &mut Reader<'_>) -> Result<Self, DeserializeError> {
        Err(DeserializeError::Config)
    }

    #[cfg(native)]
    fn get(linker: &Linker<H>, from: &mut Reader<'_>) -> Result<Self, DeserializeError> {
        let bad = || DeserializeError::Malformed;
        let maps = usize::get(from).ok_or_else(bad)?;
        let mut planned = Vec::new();
        for _ in 0..maps {
            planned.push(get_planned(from).ok_or_else(bad)?);
        }
        let planned: Arc<[Planned]> = planned.into();
        let (wanted, relied): (Vec<bool>, Vec<usize>) = Wire::get(from).ok_or_else(bad)?;
        if wanted.len() != planned.len() || relied.iter().any(|at| *at >= planned.len()) {
            return Err(bad());
        }
        let count = usize::get(from).ok_or_else(bad)?;
        let mut parts = Vec::new();
        for _ in 0..count {
            parts.push(get_part::<C, H>(linker, &planned, from)?);
        }
        Ok(Module::new(&linker.engine, planned, wanted, relied, parts))
    }
}

const KINDS: [Kind; 5] = [Kind::Signed, Kind::Unsigned, Kind::Float, Kind::Array, Kind::Struct];

fn put_kind(name: &str, kind: &DefKind, to: &mut Writer) -> Result<(), SerializeError> {
    match kind {
        DefKind::Data(data) => {
            0u8.put(to);
            put_def(&data.def, to)?;
            data.contents.as_ref().map(|contents| Bytes(contents.clone())).put(to);
            data.constant.put(to);
        }
        DefKind::Progs { entries } => {
            1u8.put(to);
            entries.put(to);
        }
        DefKind::Unsupported(_) => {
            return Err(SerializeError { program: None, what: format!("map `{name}`, whose type is not supported") });
        }
    }
    Ok(())
}

fn put_def(def: &MapDef, to: &mut Writer) -> Result<(), SerializeError> {
    if def.owned.is_some() {
        let what = format!("map `{}`, whose values own objects", def.name);
        return Err(SerializeError { program: None, what });
    }
    let kind = |kind: Option<Kind>| kind.and_then(|kind| KINDS.iter().position(|known| *known == kind));
    (def.name.clone(), def.map_type as u32, def.map_extra).put(to);
    [def.key_size, def.value_size, def.max_entries, def.flags].into_iter().for_each(|number| number.put(to));
    [def.numa_node, def.spin_lock, def.timer, def.work].into_iter().for_each(|number| number.put(to));
    (def.resilient_lock, kind(def.key_kind), kind(def.value_kind)).put(to);
    def.inner.is_some().put(to);
    def.inner.as_ref().map_or(Ok(()), |inner| put_def(inner, to))
}

/// Reads a definition, of a map that may have inner maps or of an inner map, which has none.
#[cfg(native)]
fn get_def(from: &mut Reader<'_>, depth: Depth) -> Option<MapDef> {
    let (name, map_type, map_extra): (String, u32, u64) = Wire::get(from)?;
    let [key, value, entries, flags] = [(); 4].map(|()| u32::get(from));
    let [numa_node, spin_lock, timer, work] = [(); 4].map(|()| Option::get(from));
    let (resilient_lock, key_kind, value_kind): (bool, Option<usize>, Option<usize>) = Wire::get(from)?;
    let kind = |kind: Option<usize>| kind.and_then(|kind| KINDS.get(kind).copied());
    let mut def = MapDef::new(&name, MapType::from_number(map_type)?, key?, value?, entries?).flags(flags?);
    (def.map_extra, def.numa_node, def.spin_lock) = (map_extra, numa_node?, spin_lock?);
    (def.timer, def.work, def.resilient_lock) = (timer?, work?, resilient_lock);
    (def.key_kind, def.value_kind) = (kind(key_kind), kind(value_kind));
    def = match (bool::get(from)?, depth) {
        (false, _) => def,
        (true, Depth::Outer) => def.inner(get_def(from, Depth::Inner)?),
        (true, Depth::Inner) => return None,
    };
    Some(def)
}

/// Whether a definition is of an outer or an inner map.
#[cfg(native)]
#[derive(Clone, Copy)]
enum Depth {
    Outer,
    Inner,
}

#[cfg(native)]
fn get_planned(from: &mut Reader<'_>) -> Option<Planned> {
    let (name, variables) = Wire::get(from)?;
    let initial: Vec<(u32, (Option<usize>, String))> = Wire::get(from)?;
    let value = |(index, (map, name)): (u32, (Option<usize>, String))| {
        (index, map.map_or(InitialValue::Program(name), InitialValue::Map))
    };
    let kind = match u8::get(from)? {
        0 => {
            let def = get_def(from, Depth::Outer)?;
            let contents = Option::<Bytes>::get(from)?.map(|bytes| bytes.0);
            DefKind::Data(Arc::new(DataDecl { def, contents, constant: bool::get(from)? }))
        }
        1 => DefKind::Progs { entries: Wire::get(from)? },
        _ => return None,
    };
    Some(Planned::new(name, kind, variables, initial.into_iter().map(value).collect()))
}

/// Returns a digest of a function's prototype and of the hidden argument that calls pass: code assumes both.
#[cfg(native)]
fn assumed(bound: &Bound) -> u64 {
    digest(&(&bound.proto, bound.hidden()))
}

/// Returns the name by which a function is found again, and the digest by [`assumed`].
#[cfg(native)]
fn function(bound: &Bound) -> (String, u64) {
    (bound.proto.name.to_string(), assumed(bound))
}

#[cfg(not(native))]
fn put_part(part: &Part, _: &mut Writer) -> Result<(), SerializeError> {
    Err(SerializeError {
        program: Some(part.all().0.name.to_string()),
        what: "programs that are interpreted".to_owned(),
    })
}

#[cfg(native)]
fn put_part(part: &Part, to: &mut Writer) -> Result<(), SerializeError> {
    let (unit, code, used) = part.all();
    if unit.sleepable {
        let what = "sleepable programs: keep the object instead".to_owned();
        return Err(SerializeError { program: Some(unit.name.to_string()), what });
    }
    let refuse = |what: &str| Err(SerializeError { program: Some(unit.name.to_string()), what: what.to_owned() });
    let (code, shape) = match code {
        Kept::Interpreted(_) => return refuse("programs that are interpreted: keep the object instead"),
        Kept::Native { again: Some(_), .. } => {
            return refuse("code of a first tier: compile with `Loader::opt_level(OptLevel::Speed)`");
        }
        Kept::Native { code, shape, told: _, again: None } => (code, shape),
    };
    let references = unit.references();
    // The maps that instances share come after the maps that each instance has of its own.
    let mut tables: Vec<(String, Vec<u32>)> = Vec::new();
    for map in references.maps.get(used.len()..).unwrap_or_default() {
        let Some(targets) = map.targets() else { return refuse("programs that share a map") };
        tables.push((map.name().to_owned(), targets.iter().map(|target| target.0).collect()));
    }
    if references.local_types.is_some() {
        return refuse("programs that make objects");
    }
    let Functions { helpers, host } = &references.functions;
    let Some(host) = host.len().checked_sub(references.sites.len()).and_then(|named| host.get(..named)) else {
        return refuse("functions of calls that are not there");
    };
    (unit.name.to_string(), unit.budget, used.to_vec()).put(to);
    ((unit.checks.budget, unit.checks.interrupt), unit.sink, unit.void).put(to);
    helpers.iter().map(|(id, bound)| (*id, assumed(bound))).collect::<Vec<_>>().put(to);
    host.iter().map(|bound| bound.as_ref().map(function)).collect::<Vec<_>>().put(to);
    references.sites.iter().map(|(called, call)| site(*called, call)).collect::<Vec<_>>().put(to);
    tables.put(to);
    let places = references.places.iter().map(|Place { insn, map, off }| (insn.0, *map, *off));
    places.collect::<Vec<_>>().put(to);
    let source = unit.source.as_deref();
    source.map(|source| (lines(source), source.functions().to_vec())).put(to);
    code.put(to);
    let Shape { lower, machine_stack, map, note: _ } = shape;
    // Serialised programs are not sleepable.
    let LowerOptions { budget, interrupt, yields: _, count, note, max_stack, raw_context, direct_tail_calls } = *lower;
    ((budget, interrupt), (count, note), (max_stack, (raw_context, direct_tail_calls))).put(to);
    machine_stack.put(to);
    map.as_ref().map(|map| (map.calls.to_vec(), map.functions.to_vec())).put(to);
    Ok(())
}

/// A call whose function is specialised for the facts proven there: the helper's id or else the host function's index,
/// the instruction, and by argument the readable bytes and the region that are proven.
#[cfg(native)]
type Site = ((Option<u32>, i32), u32, (Vec<Option<u32>>, Vec<Option<u8>>));

#[cfg(native)]
fn site(called: Called, call: &FormatCall) -> Site {
    let called = match called {
        Called::Helper(id) => (Some(id), 0),
        Called::Host(index) => (None, index),
    };
    let FormatCall { insn, known, regions } = call;
    (called, insn.0, (known.to_vec(), regions.to_vec()))
}

#[cfg(native)]
fn get_site(((helper, host), insn, (known, regions)): Site) -> Option<(Called, FormatCall)> {
    let called = helper.map_or(Called::Host(host), Called::Helper);
    let (known, regions) = (known.try_into().ok()?, regions.try_into().ok()?);
    Some((called, FormatCall { insn: InsnIdx(insn), known, regions }))
}

#[cfg(native)]
type Lines = Vec<(u32, u32, (usize, String))>;

/// Functions' names, by first instruction.
#[cfg(native)]
type Names = Vec<(u32, String)>;

/// The names of files, and the source lines, each with the index of its file.
#[cfg(native)]
fn lines(source: &Source) -> (Vec<String>, Lines) {
    let mut files: Vec<String> = Vec::new();
    let mut line = |line: &SourceLine| {
        let known = files.iter().rposition(|file| *file == line.file);
        let file = known.unwrap_or_else(|| {
            files.push(line.file.clone());
            files.len() - 1
        });
        (line.insn, line.line, (file, line.text.clone()))
    };
    let lines = source.lines().iter().map(&mut line).collect();
    (files, lines)
}

#[cfg(native)]
fn get_part<C: Context, H: Host + ?Sized>(
    linker: &Linker<H>,
    planned: &[Planned],
    from: &mut Reader<'_>,
) -> Result<Part, DeserializeError> {
    let bad = || DeserializeError::Malformed;
    let (name, budget, used): (String, i64, Vec<usize>) = Wire::get(from).ok_or_else(bad)?;
    let ((counts, interrupt), sink, void): ((bool, bool), Option<usize>, bool) = Wire::get(from).ok_or_else(bad)?;
    let helpers: Vec<(u32, u64)> = Wire::get(from).ok_or_else(bad)?;
    let host: Vec<Option<(String, u64)>> = Wire::get(from).ok_or_else(bad)?;
    let sites: Vec<Site> = Wire::get(from).ok_or_else(bad)?;
    let tables: Vec<(String, Vec<u32>)> = Wire::get(from).ok_or_else(bad)?;
    let places: Vec<(u32, i32, u32)> = Wire::get(from).ok_or_else(bad)?;
    let source: Option<((Vec<String>, Lines), Names)> = Wire::get(from).ok_or_else(bad)?;
    let code = Code::get(from).ok_or_else(bad)?;
    type Lower = ((bool, bool), (bool, bool), (u32, (bool, bool)));
    let (checks, counting, rest): Lower = Wire::get(from).ok_or_else(bad)?;
    let (max_stack, (raw_context, direct_tail_calls)) = rest;
    let machine_stack = u64::get(from).ok_or_else(bad)?;
    let map: Option<(Vec<_>, Vec<_>)> = Wire::get(from).ok_or_else(bad)?;
    let mut references = References::default();
    for at in &used {
        let declared = planned.get(*at).and_then(|map| map.declared().ok());
        references.maps.push(declared.ok_or_else(bad)?);
    }
    for (name, targets) in tables {
        let targets: Vec<InsnIdx> = targets.into_iter().map(InsnIdx).collect();
        let map = jump_table(&linker.engine, None, &name, &targets);
        let map = map.map_err(|error| DeserializeError::Map { map: name, problem: error.to_string() })?;
        references.maps.push(Declared::There(MapRef::Data(map)));
    }
    let differs = |function: String| DeserializeError::Function { function };
    let helper = |id: u32| crate::load::linker::helper_name(id).unwrap_or_else(|| format!("helper {id}"));
    for (id, _) in &helpers {
        let bound = match *id {
            UNRESOLVED_CALL => Some(unresolved()),
            id => linker.helper(id, C::layout()),
        };
        references.functions.helpers.push((*id, bound.ok_or_else(|| differs(helper(*id)))?));
    }
    for function in &host {
        let named = |(name, _): &(String, u64)| linker.named(name, C::layout()).ok_or_else(|| differs(name.clone()));
        references.functions.host.push(function.as_ref().map(named).transpose()?);
    }
    // A function that prints gets its printer as a hidden argument, so the functions are compared afterwards.
    linker.bind_printers(&name, &mut references.functions);
    for ((id, bound), (_, expected)) in references.functions.helpers.iter().zip(&helpers) {
        if assumed(bound) != *expected {
            return Err(differs(helper(*id)));
        }
    }
    for (bound, function) in references.functions.host.iter().zip(&host) {
        if let (Some(bound), Some((name, expected))) = (bound, function)
            && assumed(bound) != *expected
        {
            return Err(differs(name.clone()));
        }
    }
    for site in sites {
        let (called, call) = get_site(site).ok_or_else(bad)?;
        bind_site(called, &call, C::layout(), &mut references).ok_or_else(bad)?;
    }
    references.places = places.into_iter().map(|(insn, map, off)| Place { insn: InsnIdx(insn), map, off }).collect();
    let lower = LowerOptions {
        budget: checks.0,
        interrupt: checks.1,
        yields: false,
        count: counting.0,
        note: counting.1,
        max_stack,
        raw_context,
        direct_tail_calls,
    };
    let map = map.map(|(calls, functions)| Arc::new(Map { calls: calls.into(), functions: functions.into() }));
    let shape = Shape { lower, machine_stack, map, note: None };
    let line = |files: &[String], (insn, line, (file, text)): (u32, u32, (usize, String))| {
        let file = files.get(file).cloned().unwrap_or_default();
        SourceLine { insn, file, line, text }
    };
    let source = source.map(|((files, lines), functions)| {
        Arc::new(Source::of(lines.into_iter().map(|one| line(&files, one)).collect(), functions))
    });
    let unit = Unit {
        name: Name::new(&name),
        layout: C::layout(),
        host: HostType::of::<H>(),
        references: Some(Arc::new(references)).filter(|references| !references.is_empty()),
        source,
        budget,
        checks: Checks { budget: counts, interrupt, yields: false },
        sleepable: false,
        sink,
        recordable: None,
        void,
    };
    Ok(Part::of(unit, Kept::Native { code: Box::new(code), shape, told: None, again: None }, used))
}

#[cfg(all(test, native))]
mod tests {
    use super::*;

    /// Definitions in definitions, as deep as bytes can say, end the reading and not the stack.
    #[test]
    fn inner_maps_have_no_inner_maps() {
        let def = |levels: usize| {
            let mut plain = Writer::default();
            let one = MapDef::new("m", MapType::Array, 4, 8, 1);
            put_def(&one, &mut plain).unwrap();
            // The last byte says whether an inner definition follows.
            let (last, rest) = plain.0.split_last().unwrap();
            assert_eq!(*last, 0);
            let outer = [rest, &[1]].concat();
            [outer.repeat(levels), plain.0.clone()].concat()
        };
        let read = |bytes: &[u8]| get_def(&mut Reader(bytes), Depth::Outer);
        assert!(read(&def(0)).unwrap().inner.is_none());
        assert!(read(&def(1)).unwrap().inner.is_some());
        for levels in [2, 3, 1 << 20] {
            assert!(read(&def(levels)).is_none(), "{levels}");
        }
    }

    /// Changed bytes with a checksum that fits are refused, or read as another module, of which no code runs. Reading
    /// them ends, without a panic.
    #[test]
    fn bytes_that_are_no_module_are_malformed() {
        damage::<crate::Raw>(include_bytes!("../../tests/objects/instances.o"));
        damage::<crate::net::Xdp>(include_bytes!("../../tests/objects/jumptables.o"));
    }

    fn damage<C: Context>(object: &[u8]) {
        const BODY: usize = MAGIC.len() + size_of::<Header>();
        let engine = Engine::new(crate::Config::new()).unwrap();
        let linker = Linker::<()>::new(&engine);
        let read = |mut bytes: Vec<u8>| {
            let body = checksum(&bytes[BODY..]);
            bytes[BODY - 8..BODY].copy_from_slice(&body.to_le_bytes());
            // SAFETY: no instance is made of the module, so its code is neither placed nor run.
            unsafe { Module::<C, ()>::deserialize(&linker, &bytes) }.map(drop)
        };
        let module = linker.compile::<C>(&crate::Object::parse(object).unwrap()).unwrap();
        let bytes = module.serialize().unwrap();
        assert_eq!(read(bytes.clone()), Ok(()));
        let (mut malformed, mut others) = (0, 0);
        for at in BODY..bytes.len() {
            for bits in [1, 0x80, 0xff] {
                let mut changed = bytes.clone();
                changed[at] ^= bits;
                match read(changed) {
                    Err(DeserializeError::Malformed) => malformed += 1,
                    Ok(()) | Err(DeserializeError::Function { .. } | DeserializeError::Map { .. }) => others += 1,
                    Err(error) => panic!("byte {at}: {error}"),
                }
            }
            assert_eq!(read(bytes[..at].to_vec()), Err(DeserializeError::Malformed), "the first {at} bytes");
        }
        assert!(malformed > 100 && others > 100, "{malformed} {others}");
        assert_eq!(read([&bytes[..], &[0]].concat()), Err(DeserializeError::Malformed));
    }
}
