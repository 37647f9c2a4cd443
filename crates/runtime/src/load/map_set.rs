//! The maps of an object: which to create, which to take over.

use crate::context::Context;
use crate::engine::Engine;
use crate::engine::usage::Account;
use crate::error::{LoadError, ProgArrayError};
use crate::handle::prog_array::ProgArray;
use crate::load::verify::field_offset;
use crate::program::loaded::Loaded;
use crate::program::map_ref::{Declared, MapRef};
use crate::program::table::{ProgTable, Slot};
use bpf_maps::{Arena, CreateOptions, Kind, Map, MapError, MapType, flags, implemented_type};
use bpf_object::btf::{Btf, Type, TypeId};
use bpf_object::{DataKind, Object, OwnedTypes};
use bpf_quiesce::{Domain, Foreign, Owned};
use bpf_uapi::MapTypes;
use std::fmt;
use std::sync::Arc;

/// The maps an object will be loaded with: new ones, except where one is taken over. Of several things that are said of
/// one map, the last counts.
///
/// ```no_run
/// # use bpf_runtime::*;
/// # fn f(engine: &Engine, linker: &Linker<()>, object: &Object, old: &Instance<()>) -> Result<(), LoadError> {
/// let maps = MapSet::for_object(engine, object)?.reuse("counters", &old.map("counters")?)?;
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct MapSet {
    engine: Engine,
    /// Definitions in the object's order, except for prog arrays' slots.
    defs: Vec<Def>,
}

impl Owned for MapSet {
    fn domain(&self) -> &Arc<Domain> {
        self.engine.domain()
    }

    fn named(&self) -> (&'static str, &str) {
        ("map set with map", self.defs.first().map_or("(none)", |def| &def.name))
    }
}

#[derive(Debug)]
struct Def {
    name: String,
    kind: DefKind,
    taken: Option<MapRef>,
    /// What is put into it when it is made.
    from: Option<From>,
}

impl Def {
    /// This map, and no new one.
    fn take(&mut self, map: MapRef) {
        (self.taken, self.from) = (Some(map), None);
    }

    /// A new one with these contents.
    fn fill(&mut self, from: From) {
        (self.taken, self.from) = (None, Some(from));
    }
}

/// Where a new map's contents come from.
enum From {
    /// The programs in this prog array.
    Slots(Arc<ProgTable>),
    /// The elements of this map, each as the function makes it.
    Elements(Map, Foreign<Box<Migrate>>),
}

type Migrate = dyn FnMut(&[u8], &[u8]) -> Option<(Vec<u8>, Vec<u8>)> + Send;

impl fmt::Debug for From {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            From::Slots(table) => f.debug_tuple("Slots").field(table).finish(),
            From::Elements(map, _) => f.debug_tuple("Elements").field(map).finish(),
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum DefKind {
    /// `constant`: nobody changes the contents once they are there.
    Data {
        def: bpf_maps::MapDef,
        contents: Option<Vec<u8>>,
        constant: bool,
    },
    Progs {
        entries: u32,
    },
    /// Of a type that is not here: an error once a program that is loaded refers to it.
    Unsupported(MapError),
}

impl DefKind {
    /// What the object says of this map of its.
    fn of(
        owned: Option<&OwnedTypes<'_>>,
        object: &Object,
        map: &bpf_object::MapDecl,
        slots: u32,
    ) -> Result<DefKind, LoadError> {
        if map.map_type == MapType::ProgArray {
            return Ok(DefKind::Progs { entries: map.max_entries });
        }
        let def = match definition(owned, object, map, slots) {
            Ok(def) => def,
            Err(source @ MapError::Unsupported { .. }) => return Ok(DefKind::Unsupported(source)),
            Err(source) => return Err(LoadError::Map { map: map.name.clone(), source }),
        };
        let contents = map.data.as_ref().map(|data| data.bytes.clone());
        Ok(DefKind::Data { def, contents, constant: is_constant(map) })
    }
}

impl MapSet {
    /// New maps for all that the object defines. Nothing is created yet.
    ///
    /// # Errors
    /// [`LoadError::Map`] for a definition that its type does not allow. A map of a type that is not supported is an
    /// error only when a program that refers to it is loaded.
    pub fn for_object(engine: &Engine, object: &Object) -> Result<MapSet, LoadError> {
        let slots = engine.domain().max_slots();
        let owned = object.btf().map(|btf| OwnedTypes::new(btf));
        let defs = object
            .maps()
            .iter()
            .map(|map| {
                let kind = DefKind::of(owned.as_ref(), object, map, slots)?;
                Ok(Def { name: map.name.clone(), kind, taken: None, from: None })
            })
            .collect::<Result<_, LoadError>>()?;
        Ok(MapSet { engine: engine.clone(), defs })
    }

    /// Takes over an existing map for the one of this name, with what it holds.
    ///
    /// # Errors
    /// [`LoadError::NotFound`]; [`LoadError::Map`] if type, sizes or flags differ; [`LoadError::OtherDomain`].
    pub fn reuse(mut self, name: &str, map: &Map) -> Result<MapSet, LoadError> {
        let have = || self.defs.iter().map(|d| d.name.clone()).collect();
        let Some(i) = self.defs.iter().position(|d| d.name == name) else {
            return Err(LoadError::NotFound { what: "map", name: name.to_owned(), have: have() });
        };
        let fail = |source| LoadError::Map { map: name.to_owned(), source };
        self.engine.domain().owns(map)?;
        match &self.defs[i].kind {
            DefKind::Data { def, .. } => def.compatible_with(map.def()).map_err(fail)?,
            DefKind::Unsupported(source) => return Err(fail(source.clone())),
            DefKind::Progs { .. } => {
                return Err(LoadError::NotFound { what: "data map", name: name.to_owned(), have: have() });
            }
        }
        self.defs[i].take(MapRef::Data(map.clone()));
        Ok(self)
    }

    /// Takes over an existing prog array for the one of this name: old and new programs jump through the same slots,
    /// which keep what they hold; what the object puts into them is not put there. For a new version that runs are not
    /// to see before a [`crate::Plan`] is carried out, take a copy.
    ///
    /// # Errors
    /// [`LoadError::NotFound`]; [`LoadError::ProgArray`] if the number of slots differs; [`LoadError::OtherDomain`].
    pub fn reuse_array<C: Context, H: 'static>(
        mut self,
        name: &str,
        array: &ProgArray<C, H>,
    ) -> Result<MapSet, LoadError> {
        let at = self.array(name, array)?;
        let DefKind::Progs { entries } = self.defs[at].kind else { return Err(self.no_array(name)) };
        if entries != array.entries() {
            let source = ProgArrayError::Size { declared: entries, given: array.entries() };
            return Err(LoadError::ProgArray { array: name.to_owned(), source });
        }
        self.defs[at].take(MapRef::Progs(Arc::clone(array.table())));
        Ok(self)
    }

    /// A new prog array for the one of this name, whose slots begin with what those of an existing one hold when the
    /// object is loaded, as far as it has as many. What the object puts into its slots comes after.
    ///
    /// # Errors
    /// [`LoadError::NotFound`]; [`LoadError::OtherDomain`].
    pub fn copy_array<C: Context, H: 'static>(
        mut self,
        name: &str,
        array: &ProgArray<C, H>,
    ) -> Result<MapSet, LoadError> {
        let at = self.array(name, array)?;
        self.defs[at].fill(From::Slots(Arc::clone(array.table())));
        Ok(self)
    }

    /// A new map for the one of this name, with the elements of an existing one, whose key, value or type was another:
    /// `migrate` makes a new element of each, or drops it. It is called while the object is loaded; the old map may go
    /// on changing, and what changes there after an element was read is not in the new one.
    ///
    /// ```no_run
    /// # use bpf_runtime::*;
    /// # fn f(engine: &Engine, object: &Object, old: &Instance<()>) -> Result<(), LoadError> {
    /// // The value has grown from four bytes to eight.
    /// let maps = MapSet::for_object(engine, object)?
    ///     .migrate("counters", &old.map("counters")?, |key, value| Some((key.to_vec(), [value, &[0; 4]].concat())))?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`LoadError::NotFound`]; [`LoadError::OtherDomain`]. When it is loaded: [`LoadError::Map`] for an element that
    /// the new map refuses.
    pub fn migrate(
        mut self,
        name: &str,
        map: &Map,
        migrate: impl FnMut(&[u8], &[u8]) -> Option<(Vec<u8>, Vec<u8>)> + Send + 'static,
    ) -> Result<MapSet, LoadError> {
        let at = self.defs.iter().position(|d| d.name == name && matches!(d.kind, DefKind::Data { .. }));
        let Some(at) = at else {
            let have = self.defs.iter().map(|d| d.name.clone()).collect();
            return Err(LoadError::NotFound { what: "data map", name: name.to_owned(), have });
        };
        self.engine.domain().owns(map)?;
        self.defs[at].fill(From::Elements(map.clone(), Foreign::new(Box::new(migrate))));
        Ok(self)
    }

    /// The place of the prog array of this name, which is to be one of this engine.
    fn array<C: Context, H: 'static>(&self, name: &str, array: &ProgArray<C, H>) -> Result<usize, LoadError> {
        self.engine.domain().owns(&**array.table())?;
        let at = self.defs.iter().position(|d| d.name == name && matches!(d.kind, DefKind::Progs { .. }));
        at.ok_or_else(|| self.no_array(name))
    }

    fn no_array(&self, name: &str) -> LoadError {
        let arrays = self.defs.iter().filter(|d| matches!(d.kind, DefKind::Progs { .. }));
        let have = arrays.map(|d| d.name.clone()).collect();
        LoadError::NotFound { what: "prog array", name: name.to_owned(), have }
    }

    /// Refuses a set that was made for another object: programs name maps by their place in the object.
    pub(crate) fn check(&self, object: &Object) -> Result<(), LoadError> {
        let (maps, slots) = (object.maps(), self.engine.domain().max_slots());
        let problem = |problem| Err(LoadError::MapSet { problem });
        if self.defs.len() != maps.len() {
            return problem(format!("it has {} maps, the object {}", self.defs.len(), maps.len()));
        }
        let owned = object.btf().map(|btf| OwnedTypes::new(btf));
        for (def, map) in self.defs.iter().zip(maps) {
            if def.name != map.name {
                return problem(format!("it has map `{}` where the object has `{}`", def.name, map.name));
            }
            if def.kind != DefKind::of(owned.as_ref(), object, map, slots)? {
                return problem(format!("map `{}` has another definition or other initial contents", def.name));
            }
        }
        Ok(())
    }

    /// Which maps were taken over.
    pub(crate) fn taken(&self) -> Vec<bool> {
        self.defs.iter().map(|def| def.taken.is_some()).collect()
    }

    /// Returns what is declared of the maps with these indices, `None` for the others, for a verification that loads
    /// nothing: no map is made, but for arrays of instructions, whose entries are part of the program.
    pub(crate) fn declare(self, object: &Object, wanted: &[bool]) -> Result<Vec<Option<MapRef>>, LoadError> {
        let wanted = with_inner_maps(object, wanted);
        let domain = Arc::clone(self.engine.domain());
        let mut maps = Vec::with_capacity(self.defs.len());
        for (def, wanted) in self.defs.into_iter().zip(wanted) {
            let fail = |source| LoadError::Map { map: def.name.clone(), source };
            let declared = |def, constants| {
                Some(MapRef::Declared(Arc::new(Declared { def, constants, domain: Arc::clone(&domain) })))
            };
            maps.push(match (wanted, def.kind, def.taken) {
                (false, _, _) => None,
                (true, _, Some(map)) => Some(map),
                (true, DefKind::Unsupported(source), None) => return Err(fail(source)),
                (true, DefKind::Progs { entries }, None) => {
                    declared(bpf_maps::MapDef::new(&def.name, MapType::ProgArray, 4, 4, entries), None)
                }
                (true, DefKind::Data { def: map, .. }, None) if map.map_type == MapType::InsnArray => {
                    Some(MapRef::Data(Map::create(map, &domain).map_err(fail)?))
                }
                (true, DefKind::Data { def: map, contents, constant }, None) => {
                    map.validate().map_err(fail)?;
                    let holds_for_good = constant && map.map_type == MapType::Array && map.max_entries == 1;
                    declared(map, contents.filter(|_| holds_for_good))
                }
            });
        }
        Ok(maps)
    }

    /// Creates the maps with these indices, and those that they contain, `None` for the others.
    pub(crate) fn create(
        self,
        object: &Object,
        wanted: &[bool],
        account: Option<&Account>,
    ) -> Result<Vec<Option<MapRef>>, LoadError> {
        let wanted = with_inner_maps(object, wanted);
        let mut options = CreateOptions::default();
        options.memory_limit = self.engine.config().object_memory_limit;
        options.account = account.map(|account| Arc::clone(account.memory()));
        let mut maps = Vec::with_capacity(self.defs.len());
        for (def, wanted) in self.defs.into_iter().zip(wanted) {
            let fail = |source| LoadError::Map { map: def.name.clone(), source };
            maps.push(match (wanted, def.kind, def.taken) {
                (false, _, _) => None,
                (true, _, Some(map)) => Some(map),
                (true, DefKind::Unsupported(source), None) => return Err(fail(source)),
                (true, DefKind::Progs { entries }, None) => {
                    let table = ProgTable::new(def.name.clone(), entries, &self.engine, account)
                        .map_err(|source| LoadError::ProgArray { array: def.name.clone(), source })?;
                    if let Some(From::Slots(old)) = def.from {
                        table
                            .update(old.filled(entries))
                            .map_err(|source| LoadError::ProgArray { array: def.name.clone(), source })?;
                    }
                    Some(MapRef::Progs(table))
                }
                (true, DefKind::Data { def: map, contents, constant }, None) => {
                    let map = Map::create_with(map, self.engine.domain(), &options).map_err(fail)?;
                    self.engine.0.metrics.map(&map);
                    if let (Some(contents), MapType::Arena) = (&contents, map.map_type()) {
                        Arena::new(&map).and_then(|arena| arena.initialise(contents)).map_err(fail)?;
                    } else if let Some(contents) = contents {
                        map.update(&0u32.to_ne_bytes(), &contents, 0).map_err(fail)?;
                    }
                    if let Some(From::Elements(old, mut migrate)) = def.from {
                        for element in old.iter() {
                            let (key, value) = element.map_err(fail)?;
                            if let Some((key, value)) = migrate(&key, &value) {
                                map.update(&key, &value, 0).map_err(fail)?;
                            }
                        }
                    }
                    // As libbpf does: what the host has set before the load holds for good, and the verifier relies on
                    // it.
                    if constant {
                        map.freeze().map_err(fail)?;
                    }
                    Some(MapRef::Data(map))
                }
            });
        }
        Ok(maps)
    }
}

/// Adds those that they contain to these maps: a map of maps brings its initial inner maps, which are no maps of maps
/// themselves.
fn with_inner_maps(object: &Object, wanted: &[bool]) -> Vec<bool> {
    let mut wanted = wanted.to_vec();
    for (i, map) in object.maps().iter().enumerate() {
        if wanted[i] {
            for (_, value) in &map.initial {
                if let bpf_object::InitialValue::Map(inner) = value {
                    wanted[*inner] = true;
                }
            }
        }
    }
    wanted
}

/// Sets the slots that the object initialises, of maps that were not taken over: those keep what they hold. Programs
/// are found by name.
pub(crate) fn initialise(
    object: &Object,
    maps: &[Option<MapRef>],
    taken: &[bool],
    program: &dyn Fn(&str) -> Option<Arc<Loaded>>,
) -> Result<(), LoadError> {
    for ((def, map), taken) in object.maps().iter().zip(maps).zip(taken) {
        let (Some(map), false) = (map, taken) else { continue };
        let mut slots: Vec<(u32, Slot)> = Vec::new();
        for (index, value) in &def.initial {
            match (map, value) {
                // A program that was not asked for leaves its slot empty.
                (MapRef::Progs(_), bpf_object::InitialValue::Program(name)) => {
                    slots.extend(program(name).map(|program| (*index, Some(program as _))));
                }
                (MapRef::Data(outer), bpf_object::InitialValue::Map(inner)) => {
                    if let Some(MapRef::Data(inner)) = &maps[*inner] {
                        let fail = |source| LoadError::Map { map: def.name.clone(), source };
                        outer.set_inner(&index.to_ne_bytes(), inner, 0).map_err(fail)?;
                    }
                }
                (MapRef::Progs(_), bpf_object::InitialValue::Map(_))
                | (MapRef::Data(_), bpf_object::InitialValue::Program(_))
                | (MapRef::Declared(_), _) => {
                    return Err(LoadError::Internal(format!(
                        "map `{}` has an initial value of the wrong kind",
                        def.name
                    )));
                }
            }
        }
        if let (MapRef::Progs(table), false) = (map, slots.is_empty()) {
            // All of them for the price of one barrier.
            table.update(slots).map_err(|source| LoadError::ProgArray { array: def.name.clone(), source })?;
        }
    }
    Ok(())
}

/// What a key or value of this type is, as far as typed handles can tell.
fn kind_of(btf: &Btf, ty: TypeId) -> Option<Kind> {
    match btf.get(btf.resolve(ty)) {
        Type::Int { signed: true, .. } => Some(Kind::Signed),
        Type::Int { .. } => Some(Kind::Unsigned),
        Type::Float { .. } => Some(Kind::Float),
        Type::Array { .. } => Some(Kind::Array),
        Type::Composite { .. } => Some(Kind::Struct),
        _ => None,
    }
}

/// The definition of a data map as the maps crate wants it.
fn definition(
    owned: Option<&OwnedTypes<'_>>,
    object: &Object,
    map: &bpf_object::MapDecl,
    slots: u32,
) -> Result<bpf_maps::MapDef, MapError> {
    let map_type = implemented_type(map.map_type.0)?;
    let (key_size, value_size, max_entries) = normalised(map_type, map, slots);
    let mut def = bpf_maps::MapDef::new(&map.name, map_type, key_size, value_size, max_entries).with_flags(map.flags);
    def.map_extra = map.map_extra;
    // Without its flag the field means nothing, to the kernel and here.
    def.numa_node = map.numa_node.filter(|_| map.flags & bpf_uapi::flags::create::NUMA_NODE != 0);
    if let Some(inner) = &map.inner {
        def = def.with_inner(definition(owned, object, inner, slots)?);
    }
    if let (Some(btf), Some(value)) = (object.btf(), map.value_type) {
        def.spin_lock = field_offset(btf, value, "bpf_spin_lock");
        if def.spin_lock.is_none() {
            def.spin_lock = field_offset(btf, value, "bpf_res_spin_lock");
            def.resilient_lock = def.spin_lock.is_some();
        }
        def.timer = field_offset(btf, value, "bpf_timer");
        def.work = field_offset(btf, value, "bpf_wq");
    }
    if let Some(owned) = owned
        && (map.value_type.is_some() || map.data.as_ref().is_some_and(|data| !is_read_only(data.kind)))
    {
        if map.data.is_some() {
            let lock = owned.lock(map);
            (def.spin_lock, def.resilient_lock) = (lock.map(|lock| lock.0), lock.is_some_and(|lock| lock.1));
        }
        let types = owned.value(map);
        if !types.is_empty() {
            def = def.with_owned(types);
        }
    }
    if let Some(btf) = object.btf() {
        let kind = |ty: Option<TypeId>| ty.and_then(|ty| kind_of(btf, ty));
        (def.key_kind, def.value_kind) = (kind(map.key_type), kind(map.value_type));
        if MapTypes::STORAGE.contains(map_type) {
            // The descriptor's type, not that of the cookie or thread.
            def.key_kind = None;
        }
    }
    if is_constant(map) {
        def.flags |= flags::RDONLY_PROG;
    }
    Ok(def)
}

/// Key size, value size and entries as the loaders in use make them of what sources leave out or say loosely: libbpf
/// rounds ring buffers up to what the kernel takes and gives perf event arrays a slot for each CPU; Cilium's loader
/// drops the types that the definition of a ring or a perf event array names for the sake of its readers.
fn normalised(map_type: MapType, map: &bpf_object::MapDecl, slots: u32) -> (u32, u32, u32) {
    let (key, value, entries) = (map.key_size, map.value_size, map.max_entries);
    let or = |given: u32, default: u32| if given == 0 { default } else { given };
    match map_type {
        MapType::RingBuf | MapType::UserRingBuf => (0, 0, ring_size(entries)),
        MapType::PerfEventArray => {
            let value = if map.value_type.is_some() { 4 } else { or(value, 4) };
            (or(key, 4), value, or(entries, slots))
        }
        // A descriptor in the kernel, a cookie or thread here; and it says nothing of how many there are.
        MapType::SkStorage | MapType::TaskStorage => {
            (if key == 4 { 8 } else { key }, value, or(entries, storages(value)))
        }
        _other => (key, value, entries),
    }
}

/// Sockets that a map of storage has room for unless the host says how many.
fn storages(value_size: u32) -> u32 {
    const MOST: u32 = 1 << 16;
    const MEMORY: u32 = 256 << 20;
    (MEMORY / value_size.max(1)).min(MOST)
}

/// The smallest size of a ring buffer that holds this many bytes: a power of two, and of pages. A size that is too
/// large stays, to be refused; so does 0.
fn ring_size(bytes: u32) -> u32 {
    let page = crate::num::small(bpf_maps::page_size());
    if bytes == 0 { 0 } else { bytes.max(page).checked_next_power_of_two().unwrap_or(bytes) }
}

fn is_read_only(kind: DataKind) -> bool {
    matches!(kind, DataKind::Rodata | DataKind::Kconfig)
}

/// Whether the map holds constants: `.rodata` and `.kconfig`.
fn is_constant(map: &bpf_object::MapDecl) -> bool {
    map.data.as_ref().is_some_and(|data| is_read_only(data.kind))
}
