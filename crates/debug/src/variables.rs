//! Describes BPF registers, and the variables of the program's source, to debuggers.
//!
//! Problem: an object's DWARF says where variables are in terms of BPF registers and instructions. Approach: each
//! function's r0 to r10 are variables of the function; the parameters and variables of its source are copied with their
//! types ([`crate::types`]), and their places are translated ([`crate::places`]). Code without places of BPF registers
//! (optimised code) keeps the variables' names and types, and debuggers say of them that they are optimized out.
//!
//! Inlined functions and blocks become blocks that hold their variables.
//!
//! Invariants: the DWARF read is a stranger's. The work is bounded by [`MAX_WORK`], and what is malformed or cannot be
//! translated is left out.

use crate::places::{Bytes, Frame, Map, Place, Ranges};
use crate::types::{Budget, Entry, Source, Types, number, reference};
use crate::unit::Unit;
use gimli::read::{AttributeValue as Read, UnitOffset};
use gimli::write::{Address, UnitEntryId};
use gimli::write::{AttributeValue as Value, Location, LocationList, Range as OutRange, RangeList, Unit as Out};
use gimli::{LittleEndian, Operation};
use std::collections::HashMap;

/// Most work for one unit, in steps of some nanoseconds.
const MAX_WORK: usize = 1 << 24;
/// Most work for tables of abbreviations and headers of line tables, in bytes: each compilation unit reads one of each.
const MAX_TABLES: usize = 1 << 26;

/// Describes the variables of all functions, whose entries in `out` these are.
pub(crate) fn describe(unit: &Unit, out: &mut Out, entries: &[UnitEntryId]) {
    let maps: Vec<Option<Map>> = (0..unit.functions.len()).map(|function| Map::new(unit, function)).collect();
    // A source's own name hides a register's.
    let mut taken = vec![Vec::new(); maps.len()];
    source_variables(unit, out, entries, &maps, &mut taken);
    registers(unit, out, entries, &maps, &taken);
}

/// Describes the BPF registers.
fn registers(unit: &Unit, out: &mut Out, entries: &[UnitEntryId], maps: &[Option<Map>], taken: &[Vec<Vec<u8>>]) {
    if unit.functions.iter().all(|function| function.homes.is_none()) {
        return;
    }
    let root = out.root();
    let ty = out.add(root, gimli::DW_TAG_base_type);
    let described = out.get_mut(ty);
    described.set(gimli::DW_AT_name, Value::String(b"u64".to_vec()));
    described.set(gimli::DW_AT_encoding, Value::Encoding(gimli::DW_ATE_unsigned));
    described.set(gimli::DW_AT_byte_size, Value::Udata(8));
    for (((function, entry), map), taken) in unit.functions.iter().zip(entries).zip(maps).zip(taken) {
        let (Some(homes), Some(map)) = (&function.homes, map) else { continue };
        for register in 0..=10 {
            let name = format!("r{register}").into_bytes();
            let Some(place) = Frame { arch: unit.arch, homes, stack: function.stack }.register(register) else {
                continue;
            };
            if taken.contains(&name) {
                continue;
            }
            let ranges = map.ranges(unit, 0..u32::MAX, place.lost);
            let list = LocationList(locations(unit, map, ranges, place, true));
            let variable = out.add(*entry, gimli::DW_TAG_variable);
            let list = out.locations.add(list);
            let variable = out.get_mut(variable);
            variable.set(gimli::DW_AT_name, Value::String(name));
            variable.set(gimli::DW_AT_type, Value::UnitRef(ty));
            variable.set(gimli::DW_AT_location, Value::LocationListRef(list));
        }
    }
}

/// A place and where it is valid: in these ranges, and, if `from_entry`, in the prologue for an argument.
fn locations(unit: &Unit, map: &Map, ranges: Ranges, place: Place, from_entry: bool) -> Vec<Location> {
    let base = Address::Constant(unit.base as u64);
    let mut list = vec![Location::BaseAddress { address: base }];
    if let Some(data) = place.arg.filter(|_| from_entry && !map.prologue.is_empty()) {
        list.push(Location::OffsetPair { begin: map.prologue.start.into(), end: map.prologue.end.into(), data });
    }
    list.extend(ranges.into_iter().map(|code| Location::OffsetPair {
        begin: code.start.into(),
        end: code.end.into(),
        data: place.data.clone(),
    }));
    list
}

/// Describes the variables of the source.
fn source_variables(
    unit: &Unit,
    out: &mut Out,
    entries: &[UnitEntryId],
    maps: &[Option<Map>],
    taken: &mut [Vec<Vec<u8>>],
) -> Option<()> {
    let section = |id: gimli::SectionId| {
        let found = unit.dwarf.iter().find(|(name, _)| *name == id.name());
        Ok::<_, ()>(Bytes::new(found.map_or(&[][..], |(_, bytes)| bytes), LittleEndian))
    };
    let dwarf = gimli::Dwarf::load(section).ok()?;
    let functions = unit.functions.iter().enumerate();
    let wanted: HashMap<u64, usize> = functions.filter_map(|(i, function)| Some((function.source?, i))).collect();
    if wanted.is_empty() {
        return None;
    }
    let mut budget = Budget(MAX_WORK);
    let mut tables = Budget(MAX_TABLES);
    let len = |id| section(id).map_or(0, |table| table.len());
    let (abbreviations, lines) = (len(gimli::SectionId::DebugAbbrev), len(gimli::SectionId::DebugLine));
    let mut headers = dwarf.units();
    while let Some(header) = headers.next().ok()? {
        tables.pay(lines + abbreviations.saturating_sub(header.debug_abbrev_offset().0))?;
        let Ok(source) = dwarf.unit(header) else { continue };
        let source = Source { dwarf: &dwarf, unit: &source };
        let mut reader = Reader { unit, out, source, types: Types::default(), budget: &mut budget };
        reader.functions(&wanted, entries, maps, taken)?;
    }
    Some(())
}

/// Reads one compilation unit.
struct Reader<'a, 'b> {
    unit: &'b Unit,
    out: &'b mut Out,
    source: Source<'a>,
    types: Types,
    budget: &'b mut Budget,
}

/// A function, or a block in one.
#[derive(Clone, Copy)]
struct Scope<'b> {
    depth: isize,
    /// The function; `None` inside of an entry that is left out.
    function: Option<Within<'b>>,
}

#[derive(Clone, Copy)]
struct Within<'b> {
    index: usize,
    map: &'b Map,
    /// The function's address in the source.
    address: u64,
    /// Whether the frame base is r10.
    based: bool,
    /// The entry that variables belong to.
    parent: UnitEntryId,
    /// Whether that is the function itself.
    top: bool,
}

impl<'a, 'b> Reader<'a, 'b> {
    fn functions(
        &mut self,
        wanted: &HashMap<u64, usize>,
        entries: &[UnitEntryId],
        maps: &'b [Option<Map>],
        taken: &mut [Vec<Vec<u8>>],
    ) -> Option<()> {
        let mut scopes: Vec<Scope<'b>> = Vec::new();
        let mut cursor = self.source.unit.entries();
        while let Some(entry) = cursor.next_dfs().ok()? {
            self.budget.pay(entry.attrs().len())?;
            while scopes.pop_if(|scope| scope.depth >= entry.depth()).is_some() {}
            let inside = scopes.last().copied();
            let function = match (entry.tag(), inside.map(|scope| scope.function)) {
                (gimli::DW_TAG_subprogram, None) => self.function(entry, wanted, entries, maps),
                (gimli::DW_TAG_formal_parameter | gimli::DW_TAG_variable, Some(Some(within))) => {
                    if let Some(name) = self.variable(entry, within)
                        && within.top
                        && let Some(taken) = taken.get_mut(within.index)
                    {
                        taken.push(name);
                    }
                    None
                }
                (gimli::DW_TAG_lexical_block | gimli::DW_TAG_inlined_subroutine, Some(Some(within))) => {
                    self.block(entry, within)
                }
                _ => None,
            };
            if inside.is_some() || function.is_some() {
                scopes.push(Scope { depth: entry.depth(), function });
            }
        }
        Some(())
    }

    /// The function whose first instruction the entry names, if the unit has it.
    fn function(
        &mut self,
        entry: &Entry<'a>,
        wanted: &HashMap<u64, usize>,
        entries: &[UnitEntryId],
        maps: &'b [Option<Map>],
    ) -> Option<Within<'b>> {
        let low = entry.attr_value(gimli::DW_AT_low_pc)?;
        let address = self.source.dwarf.attr_address(self.source.unit, low).ok()??;
        let index = *wanted.get(&address)?;
        let based =
            entry.attr_value(gimli::DW_AT_frame_base).and_then(|base| base.exprloc_value()).is_some_and(|base| {
                let mut operations = base.operations(self.source.unit.encoding());
                let first = operations.next();
                matches!(first, Ok(Some(Operation::Register { register: gimli::Register(10) })))
                    && matches!(operations.next(), Ok(None))
            });
        let parent = *entries.get(index)?;
        if let Some(ty) = self.origin(entry, gimli::DW_AT_type).and_then(|entry| self.type_of(&entry)) {
            self.out.get_mut(parent).set(gimli::DW_AT_type, Value::UnitRef(ty));
        }
        self.out.get_mut(parent).set(gimli::DW_AT_prototyped, Value::Flag(true));
        Some(Within { index, map: maps.get(index)?.as_ref()?, address, based, parent, top: true })
    }

    /// Returns the first entry with an attribute: this one, or the one that it is an instance of.
    fn origin(&mut self, entry: &Entry<'a>, name: gimli::DwAt) -> Option<Entry<'a>> {
        let mut entry = entry.clone();
        for _ in 0..3 {
            if entry.has_attr(name) {
                return Some(entry);
            }
            let next = reference(&entry, gimli::DW_AT_abstract_origin);
            let next = next.or_else(|| reference(&entry, gimli::DW_AT_specification))?;
            entry = self.source.entry(next, self.budget)?;
        }
        None
    }

    fn type_of(&mut self, entry: &Entry<'a>) -> Option<UnitEntryId> {
        let at: UnitOffset = reference(entry, gimli::DW_AT_type)?;
        self.types.whole(self.source, at, self.out, self.budget)
    }

    /// Describes a variable or parameter. Returns its name.
    fn variable(&mut self, entry: &Entry<'a>, within: Within<'b>) -> Option<Vec<u8>> {
        let named = self.origin(entry, gimli::DW_AT_name)?;
        let name = self.source.name(&named, self.budget)?;
        let typed = self.origin(entry, gimli::DW_AT_type)?;
        let ty = self.type_of(&typed)?;
        let list = self.places(entry, within);
        let parameter = within.top && entry.tag() == gimli::DW_TAG_formal_parameter;
        let tag = if parameter { gimli::DW_TAG_formal_parameter } else { gimli::DW_TAG_variable };
        let variable = self.out.add(within.parent, tag);
        let list = (list.len() > 1).then(|| self.out.locations.add(LocationList(list)));
        let variable = self.out.get_mut(variable);
        variable.set(gimli::DW_AT_name, Value::String(name.clone()));
        variable.set(gimli::DW_AT_type, Value::UnitRef(ty));
        if let Some(value) = number(entry, gimli::DW_AT_const_value) {
            variable.set(gimli::DW_AT_const_value, value);
        } else if let Some(list) = list {
            variable.set(gimli::DW_AT_location, Value::LocationListRef(list));
        }
        Some(name)
    }

    /// The places of a variable, after a base address.
    fn places(&mut self, entry: &Entry<'a>, within: Within<'b>) -> Vec<Location> {
        let mut list = vec![Location::BaseAddress { address: Address::Constant(self.unit.base as u64) }];
        match entry.attr_value(gimli::DW_AT_location) {
            Some(Read::Exprloc(expression)) => {
                let _ = self.place(expression, 0..u64::MAX, within, &mut list);
            }
            Some(value) => {
                let found = self.source.dwarf.attr_locations(self.source.unit, value);
                let Ok(Some(mut found)) = found else { return list };
                while let Ok(Some(next)) = found.next() {
                    if self.budget.pay(next.data.0.len()).is_none() {
                        break;
                    }
                    let _ = self.place(next.data, next.range.begin..next.range.end, within, &mut list);
                }
            }
            None => {}
        }
        list
    }

    /// Adds a place that is valid in a range of the source's addresses, if it can be translated.
    fn place(
        &mut self,
        expression: gimli::read::Expression<Bytes<'a>>,
        addresses: core::ops::Range<u64>,
        within: Within<'b>,
        list: &mut Vec<Location>,
    ) -> Option<()> {
        let function = self.unit.functions.get(within.index)?;
        let homes = function.homes.as_ref()?;
        let (source, budget) = (self.source, &mut *self.budget);
        let mut base_type = |at| {
            let entry = source.entry(UnitOffset(at), budget)?;
            let size = entry.attr_value(gimli::DW_AT_byte_size)?.udata_value()?;
            match entry.attr_value(gimli::DW_AT_encoding)? {
                Read::Encoding(gimli::DW_ATE_signed | gimli::DW_ATE_signed_char) => Some((size, true)),
                Read::Encoding(gimli::DW_ATE_unsigned | gimli::DW_ATE_unsigned_char | gimli::DW_ATE_boolean) => {
                    Some((size, false))
                }
                _ => None,
            }
        };
        let frame = Frame { arch: self.unit.arch, homes, stack: function.stack };
        let place = frame.translate(expression, source.unit.encoding(), within.based, &mut base_type)?;
        let insns = insns(addresses, within);
        let from_entry = insns.start == within.map.first;
        self.budget.pay(within.map.work(&insns))?;
        let ranges = within.map.ranges(self.unit, insns, place.lost);
        list.extend(locations(self.unit, within.map, ranges, place, from_entry).into_iter().skip(1));
        Some(())
    }

    /// Describes a block, if it has code. Returns the scope of its variables.
    fn block(&mut self, entry: &Entry<'a>, within: Within<'b>) -> Option<Within<'b>> {
        let mut found = self.source.dwarf.die_ranges(self.source.unit, entry).ok()?;
        let mut ranges = vec![OutRange::BaseAddress { address: Address::Constant(self.unit.base as u64) }];
        while let Some(range) = found.next().ok()? {
            let insns = insns(range.begin..range.end, within);
            self.budget.pay(within.map.work(&insns))?;
            let code = within.map.ranges(self.unit, insns, false).into_iter();
            ranges.extend(code.map(|code| OutRange::OffsetPair { begin: code.start.into(), end: code.end.into() }));
        }
        if ranges.len() == 1 {
            return None;
        }
        let block = self.out.add(within.parent, gimli::DW_TAG_lexical_block);
        let ranges = self.out.ranges.add(RangeList(ranges));
        self.out.get_mut(block).set(gimli::DW_AT_ranges, Value::RangeListRef(ranges));
        Some(Within { parent: block, top: false, ..within })
    }
}

/// The instructions at these addresses of the source, eight bytes each.
fn insns(addresses: core::ops::Range<u64>, within: Within<'_>) -> core::ops::Range<u32> {
    let at = |address: u64, up: u64| {
        let slot = address.saturating_sub(within.address).saturating_add(up) / 8;
        within.map.first.saturating_add(u32::try_from(slot).unwrap_or(u32::MAX))
    };
    at(addresses.start, 0)..at(addresses.end, 7)
}
