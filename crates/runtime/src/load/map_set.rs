//! The maps of an object: which are created, and which existing ones are taken over.

use crate::call::state::Host;
use crate::context::Context;
use crate::engine::Engine;
use crate::engine::usage::Payer;
use crate::error::{LoadError, NotFound, ProgArrayError};
use crate::handle::instance::Instance;
use crate::handle::prog_array::ProgArray;
use crate::load::verify::field_offset;
use crate::program::loaded::Loaded;
use crate::program::map_ref::MapRef;
use crate::program::references::{DataDecl, Declared};
use crate::program::table::{Member, ProgTable, Slot};
use bpf_maps::{Arena, CreateOptions, Kind, Map, MapDef, MapError, MapType, flags, implemented_type};
use bpf_object::btf::{Btf, Type, TypeId};
use bpf_object::{DataKind, InitialValue, Object, OwnedTypes};
use bpf_quiesce::{Domain, Finish, Foreign, Owned};
use bpf_uapi::MapTypes;
use std::fmt;
use std::sync::Arc;

/// The maps an object will be loaded with: new ones, except where one is taken over. If several settings name one map,
/// the last counts.
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
    /// The maps as the object defines them, in its order.
    planned: Arc<[Planned]>,
    /// Settings by the caller for some of the maps, by index.
    said: Vec<(usize, Said)>,
    /// Whether new maps are listed in [`Engine::snapshot`], which has handles of them for moments.
    listed: bool,
}

/// A map as its object defines it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Planned {
    name: String,
    kind: DefKind,
    /// The global variables in it: name, offset and size.
    variables: Vec<(String, usize, usize)>,
    /// The initial values that the object gives its slots.
    initial: Vec<(u32, InitialValue)>,
}

/// A caller's setting for one map.
enum Said {
    /// This existing map.
    Taken(MapRef),
    /// A new prog array with the programs of this one.
    Slots(Arc<ProgTable>),
    /// A new map with the elements of this one, each converted by the function.
    Elements(Map, Foreign<Box<Migrate>>),
    /// A new map with these contents.
    Contents(Vec<u8>),
}

type Migrate = dyn FnMut(&[u8], &[u8]) -> Option<(Vec<u8>, Vec<u8>)> + Send;

impl fmt::Debug for Said {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Said::Taken(map) => f.debug_tuple("Taken").field(map).finish(),
            Said::Slots(table) => f.debug_tuple("Slots").field(table).finish(),
            Said::Elements(map, _) => f.debug_tuple("Elements").field(map).finish(),
            Said::Contents(_) => f.write_str("Contents"),
        }
    }
}

impl Owned for MapSet {
    fn domain(&self) -> &Arc<Domain> {
        self.engine.domain()
    }

    fn named(&self) -> (&'static str, &str) {
        ("map set with map", self.planned.first().map_or("(none)", |map| &map.name))
    }
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum DefKind {
    Data(Arc<DataDecl>),
    Progs {
        entries: u32,
    },
    /// A map of an unsupported type: an error if a loaded program refers to it.
    Unsupported(MapError),
}

impl DefKind {
    /// Returns the plan of one of the object's maps.
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
        Ok(DefKind::Data(Arc::new(DataDecl { def, contents, constant: is_constant(map) })))
    }
}

impl Planned {
    /// The maps of an object, in its order.
    pub(crate) fn of(engine: &Engine, object: &Object) -> Result<Arc<[Planned]>, LoadError> {
        let slots = engine.domain().max_slots();
        let owned = object.btf().map(|btf| OwnedTypes::new(btf));
        let planned = object.maps().iter().map(|map| {
            let kind = DefKind::of(owned.as_ref(), object, map, slots)?;
            let variables = map.data.iter().flat_map(|data| &data.variables);
            let variables = variables.map(|v| (v.name.clone(), v.offset as usize, v.size as usize)).collect();
            Ok(Planned { name: map.name.clone(), kind, variables, initial: map.initial.clone() })
        });
        planned.collect()
    }

    pub(crate) fn new(
        name: String,
        kind: DefKind,
        variables: Vec<(String, usize, usize)>,
        initial: Vec<(u32, InitialValue)>,
    ) -> Planned {
        Planned { name, kind, variables, initial }
    }

    /// Returns all fields.
    #[expect(clippy::type_complexity, reason = "its fields")]
    pub(crate) fn all(&self) -> (&str, &DefKind, &[(String, usize, usize)], &[(u32, InitialValue)]) {
        (&self.name, &self.kind, &self.variables, &self.initial)
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn kind(&self) -> &DefKind {
        &self.kind
    }

    /// Returns the declaration that programs are verified and compiled for.
    pub(crate) fn declared(&self) -> Result<Declared, LoadError> {
        match &self.kind {
            DefKind::Data(data) => self.validated(data).map(|()| Declared::Data(Arc::clone(data))),
            DefKind::Progs { entries } => Ok(Declared::Progs(self.name.as_str().into(), *entries)),
            DefKind::Unsupported(source) => Err(LoadError::Map { map: self.name.clone(), source: source.clone() }),
        }
    }

    /// Returns the declaration for programs that may rely on no contents of the map.
    pub(crate) fn declared_for_any(&self) -> Result<Declared, LoadError> {
        self.declared_with(|data| DataDecl { def: data.def.clone(), contents: data.contents.clone(), constant: false })
    }

    /// Returns the declaration with these contents in the place of the object's.
    fn declared_for(&self, contents: &[u8]) -> Result<Declared, LoadError> {
        let contents = || Some(contents.to_vec());
        self.declared_with(|data| DataDecl { def: data.def.clone(), contents: contents(), constant: data.constant })
    }

    /// Returns the declaration, changed if it is of a data map.
    fn declared_with(&self, change: impl Fn(&DataDecl) -> DataDecl) -> Result<Declared, LoadError> {
        match &self.kind {
            DefKind::Data(data) => self.validated(data).map(|()| Declared::Data(Arc::new(change(data)))),
            DefKind::Progs { .. } | DefKind::Unsupported(_) => self.declared(),
        }
    }

    fn validated(&self, data: &DataDecl) -> Result<(), LoadError> {
        data.def.validate().map_err(|source| LoadError::Map { map: self.name.clone(), source })
    }

    /// Returns whether its contents are constant after creation.
    pub(crate) fn is_constant(&self) -> bool {
        matches!(&self.kind, DefKind::Data(data) if data.constant)
    }
}

impl MapSet {
    /// Plans new maps for all definitions of the object. No map is created yet.
    ///
    /// # Errors
    /// [`LoadError::Map`] for a definition that its type does not allow. A map of a type that is not supported is an
    /// error only when a program that refers to it is loaded.
    pub fn for_object(engine: &Engine, object: &Object) -> Result<MapSet, LoadError> {
        Ok(MapSet::of(engine, Planned::of(engine, object)?))
    }

    pub(crate) fn of(engine: &Engine, planned: Arc<[Planned]>) -> MapSet {
        MapSet { engine: engine.clone(), planned, said: Vec::new(), listed: true }
    }

    /// Records a setting for a map, in place of an earlier one.
    fn say(&mut self, at: usize, said: Said) {
        self.said.retain(|(of, _)| *of != at);
        self.said.push((at, said));
    }

    /// Returns the index of the map with this name and kind; `what` names the kind in the error.
    fn find(&self, what: &'static str, name: &str, is: impl Fn(&DefKind) -> bool) -> Result<usize, LoadError> {
        let at = self.planned.iter().position(|map| map.name == name && is(&map.kind));
        at.ok_or_else(|| {
            let have = self.planned.iter().filter(|map| is(&map.kind)).map(Planned::name);
            NotFound::new(what, name, have).into()
        })
    }

    /// Takes over an existing map, with its contents, for the one of this name.
    ///
    /// # Errors
    /// [`LoadError::NotFound`]; [`LoadError::Map`] if type, sizes or flags differ; [`LoadError::OtherDomain`].
    pub fn reuse(mut self, name: &str, map: &Map) -> Result<MapSet, LoadError> {
        self.engine.domain().owns(map)?;
        let at = self.fits(name, map.def())?;
        self.say(at, Said::Taken(MapRef::Data(map.clone())));
        Ok(self)
    }

    /// Takes over the maps of an earlier version of the object, with their contents: each data map that both have, by
    /// its name. New are maps of global data, whose layout and constants belong to one version, and prog arrays
    /// ([`MapSet::copy_array`]). A map whose type, sizes or flags have changed is an error, unless a setting for it was
    /// made before ([`MapSet::migrate`]).
    ///
    /// ```no_run
    /// # use bpf_runtime::*;
    /// # fn f(linker: &Linker, object: &Object, old: &Instance) -> Result<(), LoadError> {
    /// let maps = MapSet::for_object(old.engine(), object)?.reuse_all(old)?;
    /// let new = linker.loader::<Raw>().object(object, maps)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`MapSet::reuse`], with the name of the first map that cannot be taken over.
    pub fn reuse_all<H: Host + ?Sized>(self, old: &Instance<H>) -> Result<MapSet, LoadError> {
        let is_global = |map: &&Map| {
            let holds =
                |kind: &DefKind| matches!(kind, DefKind::Data(data) if data.contents.is_some() || data.constant);
            self.planned.iter().any(|planned| planned.name == map.name() && holds(&planned.kind))
        };
        let maps: Vec<&Map> = old.maps().filter(|map| !is_global(map)).collect();
        self.reuse_each(maps)
    }

    /// Takes over each of these maps whose name the object defines: maps that a service offers to all its plug-ins,
    /// which need not use them. A setting for a map that was made before stands.
    ///
    /// # Errors
    /// As [`MapSet::reuse`], with the name of the first map that cannot be taken over.
    pub fn reuse_each<'m>(mut self, maps: impl IntoIterator<Item = &'m Map>) -> Result<MapSet, LoadError> {
        for map in maps {
            let at = self.planned.iter().position(|planned| planned.name == map.name());
            if at.is_some_and(|at| !self.is_other(at)) {
                self = self.reuse(map.name(), map)?;
            }
        }
        Ok(self)
    }

    /// Whether the object defines a map of this name.
    pub(super) fn defines(&self, name: &str) -> bool {
        self.planned.iter().any(|planned| planned.name == name)
    }

    /// Returns the index of the data map of this name, if a map of this definition can be taken over for it.
    pub(super) fn fits(&self, name: &str, map: &MapDef) -> Result<usize, LoadError> {
        let at = self.find("map", name, |_| true)?;
        let fail = |source| LoadError::Map { map: name.to_owned(), source };
        match &self.planned[at].kind {
            DefKind::Data(data) => data.def.compatible_with(map).map_err(fail)?,
            DefKind::Unsupported(source) => return Err(fail(source.clone())),
            DefKind::Progs { .. } => {
                return Err(NotFound::new("data map", name, self.planned.iter().map(Planned::name)).into());
            }
        }
        Ok(at)
    }

    /// Sets all bytes of the initial contents of a map of global data (`.data`, `.rodata`). For an instance of a
    /// [`crate::Module`], constants that the verification relied on must keep their values
    /// ([`crate::Loader::open_constants`]).
    ///
    /// # Errors
    /// [`LoadError::NotFound`]; [`LoadError::Contents`] for another number of bytes.
    pub fn contents(mut self, name: &str, bytes: &[u8]) -> Result<MapSet, LoadError> {
        let holds = |kind: &DefKind| matches!(kind, DefKind::Data(data) if data.contents.is_some());
        let at = self.find("map of global data", name, holds)?;
        let expected = self.initial(at).len();
        if bytes.len() != expected {
            return Err(LoadError::Contents { map: name.to_owned(), expected, given: bytes.len() });
        }
        self.say(at, Said::Contents(bytes.to_vec()));
        Ok(self)
    }

    /// Sets the initial value of a global variable for this set, as [`Object::set_global`] does for all loads of the
    /// object.
    ///
    /// ```no_run
    /// # use bpf_runtime::*;
    /// # fn f<C: Context>(module: &Module<C, ()>) -> Result<(), LoadError> {
    /// let instance = module.instantiate(module.maps().global("limit", &100u64.to_ne_bytes())?)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`LoadError::NotFound`], also if several variables have the name; [`LoadError::Contents`] for another number of
    /// bytes.
    pub fn global(mut self, name: &str, value: &[u8]) -> Result<MapSet, LoadError> {
        let all = || {
            let maps = self.planned.iter().enumerate();
            maps.flat_map(|(at, map)| map.variables.iter().map(move |variable| (at, variable)))
        };
        let mut found = all().filter(|(_, (variable, ..))| variable == name);
        let (Some((at, (_, offset, size))), None) = (found.next(), found.next()) else {
            let have = all().map(|(_, (variable, ..))| variable.as_str());
            return Err(NotFound::new("global variable", name, have).into());
        };
        let mut contents = self.initial(at).to_vec();
        match contents.get_mut(*offset..offset.saturating_add(*size)) {
            Some(place) if place.len() == value.len() => place.copy_from_slice(value),
            Some(_) | None => {
                let map = format!("{}: {name}", self.planned[at].name);
                return Err(LoadError::Contents { map, expected: *size, given: value.len() });
            }
        }
        self.say(at, Said::Contents(contents));
        Ok(self)
    }

    /// The initial contents of a map of global data.
    fn initial(&self, at: usize) -> &[u8] {
        let said = self.said.iter().find_map(|(of, said)| match said {
            Said::Contents(contents) if *of == at => Some(contents),
            Said::Contents(_) | Said::Taken(_) | Said::Slots(_) | Said::Elements(..) => None,
        });
        match (&self.planned[at].kind, said) {
            (_, Some(contents)) => contents,
            (DefKind::Data(data), None) => data.contents.as_deref().unwrap_or(&[]),
            (DefKind::Progs { .. } | DefKind::Unsupported(_), None) => &[],
        }
    }

    /// Takes over an existing prog array for the one of this name: old and new programs jump through the same slots.
    /// The slots keep their programs, and the object's initial programs are not set. For a new version that runs must
    /// not see before a [`crate::Plan`] is committed, use [`MapSet::copy_array`].
    ///
    /// # Errors
    /// [`LoadError::NotFound`]; [`LoadError::ProgArray`] if the number of slots differs; [`LoadError::OtherDomain`].
    pub fn reuse_array<C: Context, H: Host + ?Sized>(
        mut self,
        name: &str,
        array: &ProgArray<C, H>,
    ) -> Result<MapSet, LoadError> {
        let at = self.array(name, array)?;
        let DefKind::Progs { entries } = self.planned[at].kind else {
            return Err(LoadError::Internal("a prog array that is none".into()));
        };
        if entries != array.entries() {
            let source = ProgArrayError::Size { declared: entries, given: array.entries() };
            return Err(LoadError::ProgArray { array: name.to_owned(), source });
        }
        self.say(at, Said::Taken(MapRef::Progs(Arc::clone(array.table()))));
        Ok(self)
    }

    /// Makes a new prog array for the one of this name. When the object is loaded, its slots get the programs of an
    /// existing array, as far as it has that many slots, and then the object's initial programs.
    ///
    /// # Errors
    /// [`LoadError::NotFound`]; [`LoadError::OtherDomain`].
    pub fn copy_array<C: Context, H: Host + ?Sized>(
        mut self,
        name: &str,
        array: &ProgArray<C, H>,
    ) -> Result<MapSet, LoadError> {
        let at = self.array(name, array)?;
        self.say(at, Said::Slots(Arc::clone(array.table())));
        Ok(self)
    }

    /// Makes a new map for the one of this name, with the converted elements of an existing map of another key, value
    /// or type: `migrate` returns the new element, or `None` to leave it out. It is called while the object is loaded.
    /// Changes of the old map after an element was read are not in the new map.
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
        let at = self.find("data map", name, |kind| matches!(kind, DefKind::Data(_)))?;
        self.engine.domain().owns(map)?;
        self.say(at, Said::Elements(map.clone(), Foreign::new(Box::new(migrate))));
        Ok(self)
    }

    /// Returns the index of the prog array of this name. `array` must be of this engine.
    fn array<C: Context, H: Host + ?Sized>(&self, name: &str, array: &ProgArray<C, H>) -> Result<usize, LoadError> {
        self.engine.domain().owns(&**array.table())?;
        self.find("prog array", name, |kind| matches!(kind, DefKind::Progs { .. }))
    }

    /// Refuses a set that was made for another object: programs name maps by their place in the object.
    pub(crate) fn check(&self, object: &Object) -> Result<(), LoadError> {
        self.check_planned(&Planned::of(&self.engine, object)?)
    }

    /// Refuses a set whose definitions are not these, which were read from an object before.
    pub(crate) fn check_planned(&self, planned: &Arc<[Planned]>) -> Result<(), LoadError> {
        let problem = |problem| Err(LoadError::MapSet { problem });
        if Arc::ptr_eq(&self.planned, planned) {
            return Ok(());
        }
        if self.planned.len() != planned.len() {
            return problem(format!("it has {} maps, the object {}", self.planned.len(), planned.len()));
        }
        for (own, map) in self.planned.iter().zip(&**planned) {
            if own.name != map.name {
                return problem(format!("it has map `{}` where the object has `{}`", own.name, map.name));
            }
            if own.kind != map.kind || own.initial != map.initial {
                return problem(format!("map `{}` has another definition or other initial contents", own.name));
            }
        }
        Ok(())
    }

    /// Which maps were taken over.
    pub(crate) fn taken(&self) -> Vec<usize> {
        let is_taken = |said: &&(usize, Said)| matches!(said.1, Said::Taken(_));
        self.said.iter().filter(is_taken).map(|(at, _)| *at).collect()
    }

    /// The maps as the object defines them.
    pub(crate) fn planned(&self) -> &Arc<[Planned]> {
        &self.planned
    }

    /// Returns the declaration of a map that is not made yet, with the caller's setting for it.
    pub(crate) fn declared(&self, at: usize) -> Result<Declared, LoadError> {
        let planned = &self.planned[at];
        match self.said.iter().find(|(of, _)| *of == at).map(|(_, said)| said) {
            Some(Said::Taken(map)) => Ok(Declared::There(map.clone())),
            Some(Said::Contents(contents)) => planned.declared_for(contents),
            // The elements are known when the map is made.
            Some(Said::Elements(..)) => planned.declared_for_any(),
            Some(Said::Slots(_)) | None => planned.declared(),
        }
    }

    /// Leaves it to the caller to list the new maps.
    pub(crate) fn unlisted(self) -> MapSet {
        MapSet { listed: false, ..self }
    }

    /// Whether no map has a caller's setting.
    pub(crate) fn is_plain(&self) -> bool {
        self.said.is_empty()
    }

    /// The initial contents that the caller has set, by index of the map.
    pub(crate) fn other_contents(&self) -> Vec<(usize, Vec<u8>)> {
        let contents = |(at, said): &(usize, Said)| match said {
            Said::Contents(contents) => Some((*at, contents.clone())),
            Said::Taken(_) | Said::Slots(_) | Said::Elements(..) => None,
        };
        self.said.iter().filter_map(contents).collect()
    }

    /// Whether a map has a caller's setting: it is taken over or has other contents.
    pub(crate) fn is_other(&self, at: usize) -> bool {
        self.said.iter().any(|(of, _)| *of == at)
    }

    /// Creates the maps with these indices, `None` for the others.
    pub(crate) fn create(self, wanted: &[bool], payer: Payer<'_>) -> Result<Vec<Option<MapRef>>, LoadError> {
        let MapSet { engine, planned, mut said, listed } = self;
        let mut options = CreateOptions::default();
        options.memory_limit = engine.config().object_memory_limit;
        options.account = payer.account.map(|account| Arc::clone(account.memory()));
        options.instance = payer.instance.cloned();
        let mut maps = Vec::with_capacity(planned.len());
        for (at, (map, wanted)) in planned.iter().zip(wanted).enumerate() {
            if !wanted {
                maps.push(None);
                continue;
            }
            let said = said.iter().position(|(of, _)| *of == at).map(|said_at| said.swap_remove(said_at).1);
            maps.push(Some(map.create(&engine, &options, payer, said, listed)?));
        }
        Ok(maps)
    }
}

impl Planned {
    /// Makes the map, or takes the existing one that the caller has handed in.
    fn create(
        &self,
        engine: &Engine,
        options: &CreateOptions,
        payer: Payer<'_>,
        said: Option<Said>,
        listed: bool,
    ) -> Result<MapRef, LoadError> {
        let fail = |source| LoadError::Map { map: self.name.clone(), source };
        if let Some(Said::Taken(map)) = said {
            return Ok(map);
        }
        match &self.kind {
            DefKind::Unsupported(source) => Err(fail(source.clone())),
            DefKind::Progs { entries } => {
                let fail = |source| LoadError::ProgArray { array: self.name.clone(), source };
                let table = ProgTable::new(self.name.clone(), *entries, engine, payer).map_err(fail)?;
                if let Some(Said::Slots(old)) = said {
                    table.update(old.filled(*entries)).map_err(fail)?;
                }
                Ok(MapRef::Progs(table))
            }
            DefKind::Data(data) => {
                let map = Map::create_with(data.def.clone(), engine.domain(), options).map_err(fail)?;
                if listed {
                    engine.0.metrics.map(&map)?;
                }
                let contents = match &said {
                    Some(Said::Contents(contents)) => Some(contents),
                    Some(Said::Taken(_) | Said::Slots(_) | Said::Elements(..)) | None => data.contents.as_ref(),
                };
                if let Some(contents) = contents {
                    fill(&map, contents).map_err(fail)?;
                }
                if let Some(Said::Elements(old, mut migrate)) = said {
                    for element in old.iter() {
                        let (key, value) = element.map_err(fail)?;
                        if let Some((key, value)) = migrate(&key, &value) {
                            map.update(&key, &value, 0).map_err(fail)?;
                        }
                    }
                }
                // As in libbpf: constants that the host has set before the load are frozen, and the verifier relies on
                // them.
                if data.constant {
                    map.freeze().map_err(fail)?;
                }
                Ok(MapRef::Data(map))
            }
        }
    }
}

impl Planned {
    /// Restores the initial contents of a map, or sets `contents` in their place. Slots that the object fills are left
    /// to [`initialise`]. The panic of a deferred callback is left to `finish`.
    pub(crate) fn renew(&self, map: &MapRef, contents: Option<&[u8]>, finish: &mut Finish) -> Result<(), LoadError> {
        match map {
            MapRef::Data(map) if map.is_frozen() => Ok(()),
            MapRef::Data(map) => {
                let fail = |source| LoadError::Map { map: self.name.clone(), source };
                let own = match &self.kind {
                    DefKind::Data(data) => data.contents.as_deref(),
                    DefKind::Progs { .. } | DefKind::Unsupported(_) => None,
                };
                done(finish, || map.reset()).map_err(fail)?;
                done(finish, || contents.or(own).map_or(Ok(()), |contents| fill(map, contents))).map_err(fail)
            }
            MapRef::Progs(table) => {
                let initial = |slot: &(u32, Slot)| self.initial.iter().any(|(index, _)| *index == slot.0);
                let mut slots = table.filled(table.entries());
                slots.retain(|slot| !initial(slot));
                slots.iter_mut().for_each(|slot| slot.1 = None);
                let fail = |source| LoadError::ProgArray { array: self.name.clone(), source };
                if slots.is_empty() {
                    return Ok(());
                }
                finish.step(|| table.update(slots)).unwrap_or(Ok(())).map_err(fail)
            }
        }
    }
}

/// Repeats a change of a map until no deferred callback of the host panics in the middle of it. Each panic takes a
/// callback from the queue; the bound is for callbacks that queue others.
fn done(finish: &mut Finish, change: impl Fn() -> Result<(), MapError>) -> Result<(), MapError> {
    const MOST: usize = 1 << 12;
    (0..MOST).find_map(|_| finish.step(&change)).unwrap_or(Ok(()))
}

/// Puts the initial contents into a new or reset map of global data.
fn fill(map: &Map, contents: &[u8]) -> Result<(), MapError> {
    match map.map_type() {
        MapType::Arena => Arena::new(map).and_then(|arena| arena.initialise(contents)),
        // A new or reset map is zero already.
        _other if contents.iter().all(|byte| *byte == 0) => Ok(()),
        _other => map.update(&0u32.to_ne_bytes(), contents, 0),
    }
}

/// Sets the slots that the object initialises. Maps that were taken over keep their contents. Programs are found by
/// name.
pub(crate) fn initialise(
    planned: &[Planned],
    maps: &[Option<MapRef>],
    taken: &[usize],
    program: &dyn Fn(&str) -> Option<Arc<Loaded>>,
) -> Result<(), LoadError> {
    for (at, (Planned { name: map_name, initial, .. }, map)) in planned.iter().zip(maps).enumerate() {
        let Some(map) = map else { continue };
        if initial.is_empty() || taken.contains(&at) {
            continue;
        }
        let mut slots: Vec<(u32, Slot)> = Vec::new();
        for (index, value) in initial {
            match (map, value) {
                // The slot of a program that is not loaded stays empty.
                (MapRef::Progs(table), InitialValue::Program(name)) => {
                    let program = program(name).map(|program| program as Arc<dyn Member>);
                    // A slot that has the program already needs no barrier.
                    let new = program.filter(|new| !table.get(*index).is_some_and(|old| Arc::ptr_eq(&old, new)));
                    slots.extend(new.map(|program| (*index, Some(program))));
                }
                (MapRef::Data(outer), InitialValue::Map(inner)) => {
                    if let Some(MapRef::Data(inner)) = &maps[*inner] {
                        let fail = |source| LoadError::Map { map: map_name.clone(), source };
                        outer.set_inner(&index.to_ne_bytes(), inner, 0).map_err(fail)?;
                    }
                }
                (MapRef::Progs(_), InitialValue::Map(_)) | (MapRef::Data(_), InitialValue::Program(_)) => {
                    return Err(LoadError::Internal(format!(
                        "map `{map_name}` has an initial value of the wrong kind"
                    )));
                }
            }
        }
        if let (MapRef::Progs(table), false) = (map, slots.is_empty()) {
            // All slots in one update, which needs one barrier.
            table.update(slots).map_err(|source| LoadError::ProgArray { array: map_name.clone(), source })?;
        }
    }
    Ok(())
}

/// Returns the kind of a key or value type that typed handles distinguish.
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

/// Returns the definition of a data map for the maps crate.
fn definition(
    owned: Option<&OwnedTypes<'_>>,
    object: &Object,
    map: &bpf_object::MapDecl,
    slots: u32,
) -> Result<bpf_maps::MapDef, MapError> {
    let map_type = implemented_type(map.map_type.0)?;
    let (key_size, value_size, max_entries) = normalised(map_type, map, slots);
    let mut def = bpf_maps::MapDef::new(&map.name, map_type, key_size, value_size, max_entries).flags(map.flags);
    def.map_extra = map.map_extra;
    // Without its flag the field means nothing, to the kernel and here.
    def.numa_node = map.numa_node.filter(|_| map.flags & bpf_uapi::flags::create::NUMA_NODE != 0);
    if let Some(inner) = &map.inner {
        def = def.inner(definition(owned, object, inner, slots)?);
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
            def = def.owned(types);
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

/// Returns key size, value size and entries, with the corrections that loaders make: libbpf rounds ring buffers up to a
/// size that the kernel accepts and gives perf event arrays a slot for each CPU; Cilium's loader ignores the key and
/// value types of rings and perf event arrays, which only document the records.
fn normalised(map_type: MapType, map: &bpf_object::MapDecl, slots: u32) -> (u32, u32, u32) {
    let (key, value, entries) = (map.key_size, map.value_size, map.max_entries);
    let or = |given: u32, default: u32| if given == 0 { default } else { given };
    match map_type {
        MapType::RingBuf | MapType::UserRingBuf => (0, 0, ring_size(entries)),
        MapType::PerfEventArray => {
            let value = if map.value_type.is_some() { 4 } else { or(value, 4) };
            (or(key, 4), value, or(entries, slots))
        }
        // The key is a descriptor in the kernel, and a cookie or thread here. The kernel requires 0 entries, so the
        // definition gives no capacity.
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
