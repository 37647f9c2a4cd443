//! What loading an object yields: its programs and maps.

use crate::context::Context;
use crate::engine::Engine;
use crate::error::LoadError;
use crate::handle::kept::Kept;
use crate::handle::over::Over;
use crate::handle::prog_array::ProgArray;
use crate::handle::program::Program;
use crate::program::map_ref::MapRef;
use bpf_maps::Map;
use core::marker::PhantomData;
use std::fmt;
use std::sync::Arc;

/// A loaded object, for programs with host state `H`. Cheap to clone; clones are the same instance.
pub struct Instance<H> {
    kept: Kept,
    host: Over<H>,
}

impl<H> Clone for Instance<H> {
    fn clone(&self) -> Self {
        Instance { kept: self.kept.clone(), host: PhantomData }
    }
}

impl<H> fmt::Debug for Instance<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Instance").field("programs", &self.kept.programs()).field("maps", &self.kept.maps()).finish()
    }
}

impl<H: 'static> Instance<H> {
    pub(crate) fn new(kept: Kept) -> Self {
        Instance { kept, host: PhantomData }
    }

    /// The engine it was loaded into.
    pub fn engine(&self) -> &Engine {
        self.kept.engine()
    }

    /// The names of its programs.
    pub fn programs(&self) -> impl Iterator<Item = &str> {
        self.kept.programs().iter().map(|p| &*p.name)
    }

    /// Its data maps.
    pub fn maps(&self) -> impl Iterator<Item = &Map> {
        self.kept.maps().iter().filter_map(|map| match map {
            MapRef::Data(map) => Some(map),
            MapRef::Progs(_) | MapRef::Declared(_) => None,
        })
    }

    /// A program by its function's name.
    ///
    /// # Errors
    /// [`LoadError::NotFound`]; [`LoadError::ContextMismatch`] if it was loaded for another context.
    pub fn program<C: Context>(&self, name: &str) -> Result<Program<C, H>, LoadError> {
        let Some(loaded) = self.kept.programs().iter().find(|p| *p.name == *name) else {
            let have = self.programs().map(str::to_owned).collect();
            return Err(LoadError::NotFound { what: "program", name: name.to_owned(), have });
        };
        if !core::ptr::eq(loaded.layout, C::layout()) {
            return Err(LoadError::ContextMismatch {
                program: name.to_owned(),
                loaded: loaded.layout.name.to_string(),
                wanted: C::layout().name.to_string(),
            });
        }
        Ok(Program::new(Arc::clone(loaded), Some(self.kept.clone())))
    }

    /// A data map by its name.
    ///
    /// # Errors
    /// [`LoadError::NotFound`].
    pub fn map(&self, name: &str) -> Result<Map, LoadError> {
        self.maps().find(|map| map.name() == name).cloned().ok_or_else(|| LoadError::NotFound {
            what: "map",
            name: name.to_owned(),
            have: self.maps().map(|map| map.name().to_owned()).collect(),
        })
    }

    /// A prog array by its name, for programs on context `C`.
    ///
    /// # Errors
    /// [`LoadError::NotFound`]; [`LoadError::ProgArray`] if programs on another context jump through it.
    pub fn prog_array<C: Context>(&self, name: &str) -> Result<ProgArray<C, H>, LoadError> {
        let tables = || {
            self.kept.maps().iter().filter_map(|map| match map {
                MapRef::Progs(table) => Some(table),
                MapRef::Data(_) | MapRef::Declared(_) => None,
            })
        };
        match tables().find(|table| table.name() == name) {
            Some(table) => ProgArray::new(table, self.kept.clone()),
            None => {
                let have = tables().map(|t| t.name().to_owned()).collect();
                Err(LoadError::NotFound { what: "prog array", name: name.to_owned(), have })
            }
        }
    }
}
