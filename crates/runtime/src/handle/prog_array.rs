//! The handle of a prog array.

use crate::call::over::Over;
use crate::call::state::Host;
use crate::context::Context;
use crate::engine::Engine;
use crate::engine::usage::Payer;
use crate::error::{LoadError, ProgArrayError};
use crate::handle::kept::Kept;
use crate::handle::program::Program;
use crate::program::loaded::Loaded;
use crate::program::map_ref::MapRef;
use crate::program::table::{HostType, ProgTable, UserHold};
use core::marker::PhantomData;
use std::sync::Arc;

/// A prog array, for programs on context `C` with host `H`.
///
/// ```no_run
/// # use bpf_runtime::*;
/// # fn f(inst: &Instance<()>) -> Result<(), Box<dyn std::error::Error>> {
/// let stages = inst.prog_array::<Raw>("stages")?;
/// stages.set(3, &inst.program::<Raw>("parse_udp")?)?; // from any thread, under traffic
/// stages.clear(3)?;
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct ProgArray<C, H: ?Sized = ()> {
    hold: UserHold,
    /// Keeps the instance that the array belongs to, also for the programs that [`ProgArray::get`] returns.
    kept: Kept,
    types: Over<(C, H)>,
}

impl<C: Context, H: Host + ?Sized> ProgArray<C, H> {
    /// An empty array that no object defines, for programs loaded from instructions.
    ///
    /// # Errors
    /// [`LoadError::ProgArray`] for an impossible size.
    pub fn create(engine: &Engine, name: &str, entries: u32) -> Result<Self, LoadError> {
        let fail = |source| LoadError::ProgArray { array: name.to_owned(), source };
        let table = ProgTable::new(name.to_owned(), entries, engine, Payer::default()).map_err(fail)?;
        let kept = Kept::new(engine, None, Vec::new(), vec![MapRef::Progs(Arc::clone(&table))], None);
        ProgArray::new(&table, kept).map_err(fail)
    }

    pub(crate) fn new(table: &Arc<ProgTable>, kept: Kept) -> Result<Self, ProgArrayError> {
        table.bind(C::layout(), HostType::of::<H>())?;
        Ok(ProgArray { hold: UserHold::new(table), kept, types: PhantomData })
    }

    pub(crate) fn table(&self) -> &Arc<ProgTable> {
        &self.hold.0
    }

    /// Its name.
    pub fn name(&self) -> &str {
        self.hold.0.name()
    }

    /// How many slots it has.
    pub fn entries(&self) -> u32 {
        self.hold.0.entries()
    }

    /// Puts a program into a slot. Runs that have begun take either the old or the new one.
    ///
    /// # Errors
    /// [`ProgArrayError::OutOfRange`]; [`ProgArrayError::OtherDomain`], [`ProgArrayError::Context`] or
    /// [`ProgArrayError::Mode`] for a program to which the programs that jump through the array could not jump;
    /// [`ProgArrayError::Text`]. The array is as before then.
    pub fn set(&self, index: u32, program: &Program<C, H>) -> Result<(), ProgArrayError> {
        self.hold.0.set(index, Arc::clone(program.loaded()) as _)
    }

    /// Empties a slot.
    ///
    /// # Errors
    /// [`ProgArrayError::OutOfRange`], [`ProgArrayError::Empty`]; [`ProgArrayError::Text`]. The array is as before
    /// then.
    pub fn clear(&self, index: u32) -> Result<(), ProgArrayError> {
        self.hold.0.clear(index)
    }

    /// Sets and clears many slots, all or none, for the price of one barrier. If several changes name one slot, the
    /// last counts; clearing an empty slot changes nothing. A run may see some of them done and others not.
    ///
    /// # Errors
    /// As [`ProgArray::set`], and [`ProgArrayError::Text`]. The array is as before then.
    pub fn update<'p>(
        &self,
        changes: impl IntoIterator<Item = (u32, Option<&'p Program<C, H>>)>,
    ) -> Result<(), ProgArrayError> {
        let owned = changes.into_iter().map(|(index, program)| (index, program.map(|p| Arc::clone(p.loaded()) as _)));
        self.hold.0.update(owned.collect())
    }

    /// How many direct sites are patched when this slot changes. In a forked child, 0 if the array was being changed at
    /// the fork; [`ProgArray::get`] then returns `None`.
    pub fn tracked_sites(&self, index: u32) -> usize {
        self.hold.0.tracked(index)
    }

    /// The program in a slot.
    pub fn get(&self, index: u32) -> Option<Program<C, H>> {
        let loaded = Loaded::of_member(self.hold.0.get(index)?)?;
        Some(Program::new(loaded, Some(self.kept.clone())))
    }

    /// The slots that are set, with their programs.
    pub fn iter(&self) -> impl Iterator<Item = (u32, Program<C, H>)> {
        (0..self.entries()).filter_map(|index| Some((index, self.get(index)?)))
    }
}
