//! Maps and settings of loads that a described host has: what a plug-in's object is compared with outside of the
//! service.
//!
//! Problem: a service may hand its own maps to plug-ins ([`MapSet::reuse`]), and load them under settings of the
//! [`Loader`](crate::Loader). A tool that knows neither gives another verdict. Approach: the service adds both to its
//! description, and [`MapSet::check_offered`] makes the comparison of [`MapSet::reuse`] without the map.
//!
//! [`MapSet::check_offered`]: crate::MapSet::check_offered
//! [`MapSet::reuse`]: crate::MapSet::reuse

use crate::call::state::Host;
use crate::load::host_error::{HostInterfaceError, check_name, wrong};
use crate::load::loader::Loader;
use bpf_maps::{MapDef, MapType};

/// Maps, at most, in a description.
const MAX_MAPS: usize = 4096;

/// A map that the host hands to plug-ins ([`crate::describe::HostInterface::offer`]).
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(deny_unknown_fields))]
pub struct MapInterface {
    /// Its name, by which objects define it.
    pub name: String,
    /// Its type, by the kernel's name in small letters: `hash`, `percpu_array`.
    #[cfg_attr(feature = "serde", serde(rename = "type"))]
    pub map_type: String,
    /// Bytes of a key.
    pub key_size: u32,
    /// Bytes of a value.
    pub value_size: u32,
    /// The capacity, as in [`MapDef::max_entries`].
    pub max_entries: u32,
    /// Creation flags.
    #[cfg_attr(feature = "serde", serde(default))]
    pub flags: u32,
    /// As in [`MapDef::map_extra`].
    #[cfg_attr(feature = "serde", serde(default))]
    pub map_extra: u64,
    /// The byte offset of a `struct bpf_spin_lock` in the value.
    #[cfg_attr(feature = "serde", serde(default))]
    pub spin_lock: Option<u32>,
    /// The byte offset of a `struct bpf_timer` in the value.
    #[cfg_attr(feature = "serde", serde(default))]
    pub timer: Option<u32>,
    /// The shape of the inner maps of a map of maps.
    #[cfg_attr(feature = "serde", serde(default))]
    pub inner: Option<Box<MapInterface>>,
}

/// Settings under which the host loads plug-ins, on which verdicts depend.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default, deny_unknown_fields))]
pub struct HostFeatures {
    /// [`Loader::hybrid`](crate::Loader::hybrid).
    pub hybrid: bool,
    /// [`Loader::privileged`](crate::Loader::privileged).
    pub privileged: bool,
    /// [`Loader::sleepable`](crate::Loader::sleepable).
    pub sleepable: bool,
}

impl HostFeatures {
    /// Makes the settings of a load.
    #[must_use]
    pub fn apply<'l, C, H>(self, loader: Loader<'l, C, H>) -> Loader<'l, C, H>
    where
        C: crate::context::Context,
        H: Host + ?Sized,
    {
        let HostFeatures { hybrid, privileged, sleepable } = self;
        loader.hybrid(hybrid).privileged(privileged).sleepable(sleepable)
    }
}

impl MapInterface {
    /// Describes a map; `None` if a description could not say all of its definition.
    pub(super) fn of(def: &MapDef) -> Option<MapInterface> {
        let described = MapInterface {
            name: def.name.clone(),
            map_type: def.map_type.name().to_owned(),
            key_size: def.key_size,
            value_size: def.value_size,
            max_entries: def.max_entries,
            flags: def.flags,
            map_extra: def.map_extra,
            spin_lock: def.spin_lock,
            timer: def.timer,
            inner: match def.inner.as_deref() {
                Some(inner) => Some(Box::new(MapInterface::of(inner)?)),
                None => None,
            },
        };
        described.def().is_some_and(|again| again.compatible_with(def).is_ok()).then_some(described)
    }

    /// Returns the definition; `None` for a type that is not implemented here.
    pub(super) fn def(&self) -> Option<MapDef> {
        let map_type = bpf_maps::implemented_types().find(|map_type: &MapType| map_type.name() == self.map_type)?;
        let mut def = MapDef::new(&self.name, map_type, self.key_size, self.value_size, self.max_entries);
        (def.flags, def.map_extra) = (self.flags, self.map_extra);
        (def.spin_lock, def.timer) = (self.spin_lock, self.timer);
        def.inner = match &self.inner {
            // Maps of maps are not nested: `check`.
            Some(inner) if inner.inner.is_none() => Some(Box::new(inner.def()?)),
            Some(_) => return None,
            None => None,
        };
        Some(def)
    }

    /// Checks that a map can be as described.
    fn check(&self, place: &str) -> Result<(), HostInterfaceError> {
        check_name(&format!("{place}.name"), &self.name)?;
        let Some(def) = self.def() else {
            return wrong(
                format!("{place}.type"),
                format!("`{}` is no type of maps here", self.map_type.escape_debug()),
            );
        };
        def.validate().or_else(|error| wrong(place, error.to_string()))
    }
}

/// Checks the maps of a description.
pub(super) fn check_maps(maps: &[MapInterface]) -> Result<(), HostInterfaceError> {
    if maps.len() > MAX_MAPS {
        return wrong("maps", format!("{} items; at most {MAX_MAPS} are possible", maps.len()));
    }
    let mut names = std::collections::HashSet::new();
    for (i, map) in maps.iter().enumerate() {
        let place = format!("maps[{i}]");
        map.check(&place)?;
        if !names.insert(&map.name) {
            return wrong(format!("{place}.name"), format!("there are two maps `{}`", map.name));
        }
    }
    Ok(())
}
