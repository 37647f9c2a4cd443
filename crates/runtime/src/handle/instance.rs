//! The handle of a loaded object: its programs and maps.

use crate::abi::watch::word_of;
use crate::call::over::Over;
use crate::call::state::Host;
use crate::context::Context;
use crate::engine::Engine;
use crate::error::{LookupError, NotFound, ResetError};
use crate::handle::kept::Kept;
use crate::handle::prog_array::ProgArray;
use crate::handle::program::Program;
use crate::program::map_ref::MapRef;
use bpf_maps::Map;
use core::marker::PhantomData;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a reset waits for runs whose programs are not known.
const PATIENCE: Duration = Duration::from_millis(10);

/// A loaded object, for programs with host state `H`. Cheap to clone; clones are the same instance.
pub struct Instance<H: ?Sized = ()> {
    kept: Kept,
    host: Over<H>,
}

impl<H: ?Sized> Clone for Instance<H> {
    fn clone(&self) -> Self {
        Instance { kept: self.kept.clone(), host: PhantomData }
    }
}

impl<H: ?Sized> fmt::Debug for Instance<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Instance").field("programs", &self.kept.programs()).field("maps", &self.kept.maps()).finish()
    }
}

impl<H: Host + ?Sized> Instance<H> {
    pub(crate) fn new(kept: Kept) -> Self {
        Instance { kept, host: PhantomData }
    }

    /// The engine it was loaded into.
    pub fn engine(&self) -> &Engine {
        self.kept.engine()
    }

    /// The instance's name, if it has one ([`crate::instances::Instantiate::name`]).
    pub fn name(&self) -> Option<&str> {
        self.kept.name()
    }

    /// The names of its programs.
    pub fn programs(&self) -> impl Iterator<Item = &str> {
        self.kept.programs().iter().map(|p| &*p.name)
    }

    /// Its data maps.
    pub fn maps(&self) -> impl Iterator<Item = &Map> {
        self.kept.maps().iter().filter_map(|map| match map {
            MapRef::Data(map) => Some(map),
            MapRef::Progs(_) => None,
        })
    }

    /// Restores the initial contents of the instance's maps: global data has its first contents, arrays are zero, other
    /// maps are empty, rings have no records, prog arrays and maps of maps hold what the object puts there. Timers that
    /// were set in values end. Not changed: maps that were handed in ([`crate::MapSet::reuse`]), which others may use;
    /// constants and other frozen maps; locks in values of arrays. If a deferred callback of the host panics during the
    /// reset, the panic is resumed after all maps are reset.
    ///
    /// No run that began before is still in a program of the instance: the reset is refused while one is. If somebody
    /// else holds a program of the instance (by a [`Program`], a hook or a prog array), a run may be in it without the
    /// engine knowing. The reset then waits, for at most 10 ms, until all runs of the engine that began before it have
    /// ended. A run that begins during the reset may see some maps reset and others not.
    ///
    /// ```no_run
    /// # fn f(instance: &bpf_runtime::Instance<()>, request: &mut [u8]) -> Result<(), Box<dyn std::error::Error>> {
    /// instance.program::<bpf_runtime::Raw>("handle")?.run_on(request)?;
    /// instance.reset()?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`ResetError`]. After [`ResetError::Map`] some maps are reset and others not, and the reset may be tried again;
    /// every other error changes nothing.
    pub fn reset(&self) -> Result<(), ResetError> {
        self.reset_within(PATIENCE)
    }

    /// Whether no run can be in a program of the instance, as the caller holds the only handle.
    pub(crate) fn is_alone(&self) -> bool {
        self.kept.is_alone()
    }

    pub(crate) fn reset_within(&self, patience: Duration) -> Result<(), ResetError> {
        let engine = self.engine();
        if engine.domain().is_forked() {
            return Err(ResetError::Forked);
        }
        if !self.kept.is_alone() {
            self.wait_for_runs(patience)?;
        }
        self.kept.renew().ok_or(ResetError::Resetting)?.map_err(|error| ResetError::Map(Box::new(error)))
    }

    /// Waits until no run that has begun can be in a program of the instance.
    fn wait_for_runs(&self, patience: Duration) -> Result<(), ResetError> {
        let (domain, runs, programs) = (self.engine().domain(), &self.engine().0.runs, self.kept.programs());
        let words: Vec<u64> = programs.iter().map(|program| word_of(&**program)).collect();
        if let Some(running) = runs.is_running(&words) {
            let program = words.iter().position(|word| *word == running).map(|at| programs[at].name.to_string());
            return Err(ResetError::Running { program: program.unwrap_or_default() });
        }
        // A run of this thread would wait for itself.
        if domain.in_guard() {
            return Err(ResetError::InRun);
        }
        let (period, begin) = (domain.start_grace_period(), Instant::now());
        while !period.is_complete() {
            if begin.elapsed() >= patience {
                return Err(ResetError::Busy { waited: patience });
            }
            std::thread::yield_now();
        }
        Ok(())
    }

    /// A program by its function's name.
    ///
    /// # Errors
    /// [`LookupError::NotFound`]; [`LookupError::ContextMismatch`] if it was loaded for another context;
    /// [`LookupError::NoResult`] for a method of an interface that returns nothing.
    pub fn program<C: Context>(&self, name: &str) -> Result<Program<C, H>, LookupError> {
        let program = self.method(name)?;
        match program.loaded().void {
            // Its r0 may be left with an address, which must not leave the program.
            true => Err(LookupError::NoResult { program: name.to_owned() }),
            false => Ok(program),
        }
    }

    /// Whether the program of this name returns nothing.
    pub(crate) fn is_void(&self, name: &str) -> bool {
        self.kept.programs().iter().any(|program| *program.name == *name && program.void)
    }

    /// Returns a program by its function's name, for a caller that ignores the result of one that returns nothing.
    pub(crate) fn method<C: Context>(&self, name: &str) -> Result<Program<C, H>, LookupError> {
        let Some(loaded) = self.kept.programs().iter().find(|p| *p.name == *name) else {
            return Err(NotFound::new("program", name, self.programs()).into());
        };
        if !core::ptr::eq(loaded.layout, C::layout()) {
            return Err(LookupError::ContextMismatch {
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
    /// [`NotFound`].
    pub fn map(&self, name: &str) -> Result<Map, NotFound> {
        let found = self.maps().find(|map| map.name() == name).cloned();
        found.ok_or_else(|| NotFound::new("map", name, self.maps().map(Map::name)))
    }

    /// A prog array by its name, for programs on context `C`.
    ///
    /// # Errors
    /// [`LookupError::NotFound`]; [`LookupError::ProgArray`] if programs on another context jump through it.
    pub fn prog_array<C: Context>(&self, name: &str) -> Result<ProgArray<C, H>, LookupError> {
        let tables = || {
            self.kept.maps().iter().filter_map(|map| match map {
                MapRef::Progs(table) => Some(table),
                MapRef::Data(_) => None,
            })
        };
        match tables().find(|table| table.name() == name) {
            Some(table) => ProgArray::new(table, self.kept.clone())
                .map_err(|source| LookupError::ProgArray { array: name.to_owned(), source }),
            None => Err(NotFound::new("prog array", name, tables().map(|table| table.name())).into()),
        }
    }
}
