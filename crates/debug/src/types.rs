//! Copies types from an object's DWARF to that of its machine code.
//!
//! Problem: the types are those of a stranger, and a debugger that is given a structure which contains itself may not
//! end. Approach: a type is copied after everything that it holds by value, and what holds itself is left out; the
//! targets of pointers are copied later, from a list. Each step is paid for from a [`Budget`].
//!
//! Invariant: the copied types without the targets of pointers form no circle.

use crate::places::Bytes;
use gimli::write::{AttributeValue as Value, Unit as Out, UnitEntryId};
use gimli::{DwAt, DwTag, UnitOffset};
use std::collections::HashMap;

/// The input's attribute values and entries.
type Attribute<'a> = gimli::read::AttributeValue<Bytes<'a>>;
pub(crate) type Entry<'a> = gimli::read::DebuggingInformationEntry<Bytes<'a>>;

/// Longest name. Longer ones are left out.
const MAX_NAME: usize = 256;
/// Deepest nesting of types by value.
const MAX_DEPTH: usize = 64;

/// The work that may still be done: about one for each attribute, byte of a name or range of code.
#[derive(Debug)]
pub(crate) struct Budget(pub(crate) usize);

impl Budget {
    /// Pays for a piece of work; `None` if it cannot be done.
    pub(crate) fn pay(&mut self, work: usize) -> Option<()> {
        self.0 = self.0.checked_sub(work.saturating_add(1)).or_else(|| {
            // Nothing is described after the first piece of work that is too much.
            self.0 = 0;
            None
        })?;
        Some(())
    }
}

/// A compilation unit of the object.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source<'a> {
    pub(crate) dwarf: &'a gimli::Dwarf<Bytes<'a>>,
    pub(crate) unit: &'a gimli::Unit<Bytes<'a>>,
}

impl<'a> Source<'a> {
    /// The entry at an offset.
    pub(crate) fn entry(self, at: UnitOffset, budget: &mut Budget) -> Option<Entry<'a>> {
        let entry = self.unit.entry(at).ok();
        budget.pay(entry.as_ref().map_or(0, |entry| entry.attrs().len()))?;
        entry
    }

    /// An entry's name.
    pub(crate) fn name(self, entry: &Entry<'a>, budget: &mut Budget) -> Option<Vec<u8>> {
        let value = entry.attr_value(gimli::DW_AT_name)?;
        let Ok(name) = self.dwarf.attr_string(self.unit, value) else {
            // The whole of a table may have been searched for an end.
            budget.0 = 0;
            return None;
        };
        budget.pay(name.len())?;
        let text = |byte: &u8| !byte.is_ascii_control();
        (1..=MAX_NAME).contains(&name.len()).then(|| name.slice().iter().copied().filter(text).collect())
    }
}

/// The entry that an attribute refers to.
pub(crate) fn reference(entry: &Entry<'_>, name: DwAt) -> Option<UnitOffset> {
    match entry.attr_value(name)? {
        gimli::read::AttributeValue::UnitRef(at) => Some(at),
        _ => None,
    }
}

/// An attribute that is a number.
pub(crate) fn number(entry: &Entry<'_>, name: DwAt) -> Option<Value> {
    let value: Attribute<'_> = entry.attr_value(name)?;
    if let gimli::read::AttributeValue::Sdata(value) = value {
        return Some(Value::Sdata(value));
    }
    value.udata_value().map(Value::Udata)
}

/// The types of one compilation unit.
#[derive(Debug, Default)]
pub(crate) struct Types {
    /// The copy of each type; `None` while it is copied, and if it cannot be.
    known: HashMap<usize, Option<UnitEntryId>>,
    /// Pointers, and the types that they point to.
    targets: Vec<(UnitEntryId, UnitOffset)>,
}

impl Types {
    /// Copies a type and the targets of its pointers.
    pub(crate) fn whole(
        &mut self,
        source: Source<'_>,
        at: UnitOffset,
        out: &mut Out,
        budget: &mut Budget,
    ) -> Option<UnitEntryId> {
        let ty = self.by_value(source, at, out, budget, 0);
        while let Some((pointer, at)) = self.targets.pop() {
            if let Some(target) = self.by_value(source, at, out, budget, 0) {
                out.get_mut(pointer).set(gimli::DW_AT_type, Value::UnitRef(target));
            }
        }
        ty
    }

    fn by_value(
        &mut self,
        source: Source<'_>,
        at: UnitOffset,
        out: &mut Out,
        budget: &mut Budget,
        depth: usize,
    ) -> Option<UnitEntryId> {
        if let Some(known) = self.known.get(&at.0) {
            return *known;
        }
        if depth > MAX_DEPTH {
            return None;
        }
        self.known.insert(at.0, None);
        let copy = self.copy(source, at, out, budget, depth);
        self.known.insert(at.0, copy);
        copy
    }

    fn copy(
        &mut self,
        source: Source<'_>,
        at: UnitOffset,
        out: &mut Out,
        budget: &mut Budget,
        depth: usize,
    ) -> Option<UnitEntryId> {
        let entry = source.entry(at, budget)?;
        let tag = entry.tag();
        let inner = match reference(&entry, gimli::DW_AT_type) {
            Some(inner) if tag != gimli::DW_TAG_pointer_type && tag != gimli::DW_TAG_subroutine_type => {
                Some(self.by_value(source, inner, out, budget, depth + 1)?)
            }
            Some(_) | None => None,
        };
        let (mut numbers, mut parts) = (&[gimli::DW_AT_byte_size][..], None);
        match tag {
            gimli::DW_TAG_base_type => {}
            gimli::DW_TAG_typedef
            | gimli::DW_TAG_const_type
            | gimli::DW_TAG_volatile_type
            | gimli::DW_TAG_restrict_type
            | gimli::DW_TAG_unspecified_type
            | gimli::DW_TAG_pointer_type
            | gimli::DW_TAG_subroutine_type => numbers = &[],
            gimli::DW_TAG_structure_type | gimli::DW_TAG_class_type | gimli::DW_TAG_union_type => {
                parts = Some(gimli::DW_TAG_member);
            }
            gimli::DW_TAG_enumeration_type => parts = Some(gimli::DW_TAG_enumerator),
            gimli::DW_TAG_array_type => {
                inner?;
                parts = Some(gimli::DW_TAG_subrange_type);
            }
            _ => return None,
        }
        let parts = match parts {
            Some(part) => self.parts(source, at, part, out, budget, depth)?,
            None => Vec::new(),
        };
        let root = out.root();
        let id = out.add(root, tag);
        let name = source.name(&entry, budget);
        let copied = out.get_mut(id);
        if let Some(name) = name {
            copied.set(gimli::DW_AT_name, Value::String(name));
        }
        for attribute in numbers {
            if let Some(value) = number(&entry, *attribute) {
                copied.set(*attribute, value);
            }
        }
        if let Some(gimli::read::AttributeValue::Encoding(encoding)) = entry.attr_value(gimli::DW_AT_encoding) {
            copied.set(gimli::DW_AT_encoding, Value::Encoding(encoding));
        }
        if entry.has_attr(gimli::DW_AT_declaration) {
            copied.set(gimli::DW_AT_declaration, Value::Flag(true));
        }
        if let Some(inner) = inner {
            copied.set(gimli::DW_AT_type, Value::UnitRef(inner));
        }
        if tag == gimli::DW_TAG_pointer_type {
            copied.set(gimli::DW_AT_byte_size, Value::Udata(8));
            if let Some(target) = reference(&entry, gimli::DW_AT_type) {
                self.targets.push((id, target));
            }
        }
        for Part { tag, name, numbers, ty } in parts {
            let part = out.add(id, tag);
            let part = out.get_mut(part);
            if let Some(name) = name {
                part.set(gimli::DW_AT_name, Value::String(name));
            }
            if let Some(ty) = ty {
                part.set(gimli::DW_AT_type, Value::UnitRef(ty));
            }
            numbers.into_iter().for_each(|(attribute, value)| part.set(attribute, value));
        }
        Some(id)
    }

    /// The members, enumerators or dimensions of the type at an offset. A member whose type cannot be copied is left
    /// out.
    fn parts(
        &mut self,
        source: Source<'_>,
        at: UnitOffset,
        tag: DwTag,
        out: &mut Out,
        budget: &mut Budget,
        depth: usize,
    ) -> Option<Vec<Part>> {
        let numbers: &[DwAt] = match tag {
            gimli::DW_TAG_member => &[
                gimli::DW_AT_data_member_location,
                gimli::DW_AT_byte_size,
                gimli::DW_AT_bit_size,
                gimli::DW_AT_bit_offset,
                gimli::DW_AT_data_bit_offset,
            ],
            gimli::DW_TAG_enumerator => &[gimli::DW_AT_const_value],
            _ => &[gimli::DW_AT_count, gimli::DW_AT_upper_bound, gimli::DW_AT_lower_bound],
        };
        let mut cursor = source.unit.entries_at_offset(at).ok()?;
        let top = cursor.next_dfs().ok()??.depth();
        let mut found = Vec::new();
        while let Ok(Some(entry)) = cursor.next_dfs() {
            budget.pay(entry.attrs().len())?;
            if entry.depth() <= top {
                break;
            }
            if entry.depth() != top + 1 || entry.tag() != tag {
                continue;
            }
            let values = numbers.iter().filter_map(|name| Some((*name, number(entry, *name)?)));
            let part = Part { tag, name: source.name(entry, budget), numbers: values.collect(), ty: None };
            found.push((part, reference(entry, gimli::DW_AT_type)));
        }
        if tag == gimli::DW_TAG_member {
            for (part, ty) in &mut found {
                part.ty = ty.and_then(|ty| self.by_value(source, ty, out, budget, depth + 1));
            }
            found.retain(|(part, _)| part.ty.is_some());
        }
        Some(found.into_iter().map(|(part, _)| part).collect())
    }
}

/// A part of a type.
#[derive(Debug)]
struct Part {
    tag: DwTag,
    name: Option<Vec<u8>>,
    numbers: Vec<(DwAt, Value)>,
    ty: Option<UnitEntryId>,
}
