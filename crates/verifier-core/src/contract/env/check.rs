//! Consistency checks of the host's description, before anything is proven from it.
//!
//! Problem: the verifier believes its environment, and a contradictory environment proves anything. Approach: every
//! description that a proof or a fact rests on is checked here, once for each verification. The parts of a single
//! prototype are checked where it is called (`walk::args`). Properties that only the host can know (for example that a
//! length is never exceeded) are promises, documented at the item.

use std::ops::Range;

use bpf_uapi::{MAX_OBJECT, MapType, OwnedKind, OwnedType, TIMER_BYTES};

use super::{ContextLayout, Env, Field, FieldKind, KnownArena, KnownMap, Region};
use crate::contract::access::Access;
use bpf_analysis::HeaderPlaces;

/// A contradiction in the description of a host, with its place.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct EnvironmentError(pub String);

type Res<T> = Result<T, EnvironmentError>;

/// Upper bound of the offset at which a context's fields end, in the program's view and in the host's. The offset in an
/// instruction has 16 bits, and so do the offsets that the walk notes.
const MAX_CONTEXT: u32 = 1 << 15;

fn bad<T>(what: String) -> Res<T> {
    Err(EnvironmentError(what))
}

impl Env<'_> {
    /// Checks that the environment does not contradict itself.
    ///
    /// The first contradiction.
    pub fn check(&self) -> Result<(), EnvironmentError> {
        self.context.check()?;
        for ty in self.types {
            let count = |of: fn(OwnedKind) -> bool| ty.fields.iter().filter(|field| of(field.kind)).count();
            let guarded = match count(|kind| matches!(kind, OwnedKind::Lock { .. })) {
                0 => count(OwnedKind::is_root) == 0,
                locks => locks == 1,
            };
            if !ty.is_sound(self.types) || !guarded || ty.size > MAX_OBJECT {
                return bad(format!("objects of type {} are too large, or have fields that none has", ty.name));
            }
        }
        if self.local_types.iter().any(|(_, class)| self.class(*class).is_none()) {
            return bad("the program has a type that does not exist".into());
        }
        for map in self.maps {
            map.check(self.types)?;
        }
        for func in self.global_functions.iter().flatten() {
            if func.args.len() > 5 {
                return bad(format!("function {} has {} arguments; registers hold 5", func.name, func.args.len()));
            }
        }
        if self.frame_bytes > u32::from(u16::MAX) || !self.frame_bytes.is_multiple_of(8) {
            return bad(format!("frames of {} bytes; allowed are multiples of 8 below {}", self.frame_bytes, u16::MAX));
        }
        Ok(())
    }
}

impl ContextLayout {
    fn check(&self) -> Res<()> {
        let regions = self.regions.len();
        if regions > Region::MAX_REGIONS {
            return bad(format!("context {} has more than {} regions", self.name, Region::MAX_REGIONS));
        }
        for (i, r) in self.regions.iter().enumerate() {
            r.check(i, regions)?;
        }
        if (self.raw || self.legacy_loads.is_some()) && regions == 0 {
            return bad(format!("context {} needs a region", self.name));
        }
        if self.raw && !self.fields.is_empty() {
            return bad(format!("context {} is raw memory and has fields", self.name));
        }
        if self.returns.is_some_and(|(min, max)| min > max) {
            return bad(format!("context {} allows no return value", self.name));
        }
        let mut end = 0;
        for f in &self.fields {
            if f.offset < end || f.size == 0 {
                return bad(format!("field {} overlaps another or is out of order", f.name));
            }
            let ends = f.offset.checked_add(f.size).zip(f.host_offset.checked_add(f.host_size));
            let Some((e, _)) = ends.filter(|(e, host)| *e <= MAX_CONTEXT && *host <= MAX_CONTEXT) else {
                return bad(format!("field {} ends beyond offset {MAX_CONTEXT}", f.name));
            };
            end = e;
            f.check(regions)?;
        }
        self.check_host_places()
    }

    /// Checks the layout of the host's structure: no field may overlap a pointer or length that proofs rest on, so no
    /// program writes it or reads it as a number.
    fn check_host_places(&self) -> Res<()> {
        for f in self.fields.iter().filter(|f| f.kind != FieldKind::Scalar) {
            for other in &self.fields {
                // One pointer or length may be in the program's view twice.
                let same = (other.kind, other.host_offset, other.host_size) == (f.kind, f.host_offset, f.host_size);
                let (a, b) = (f.host_range(), other.host_range());
                if !same && a.start < b.end && b.start < a.end {
                    return bad(format!("field {} lies where {} does in the host's structure", other.name, f.name));
                }
            }
        }
        let Some(HeaderPlaces::Context { link, network }) = self.legacy_loads else { return Ok(()) };
        for place in [link, network] {
            let ends = place.checked_add(4).filter(|end| *end <= MAX_CONTEXT);
            let Some(end) = ends else {
                return bad(format!("the position of a header ends beyond offset {MAX_CONTEXT}"));
            };
            let over = |f: &&Field| f.access.writes() && f.host_range().start < end && place < f.host_range().end;
            if let Some(f) = self.fields.iter().find(over) {
                return bad(format!("field {} may be written and lies where a header's position does", f.name));
            }
        }
        Ok(())
    }
}

impl Region {
    fn check(&self, index: usize, regions: usize) -> Res<()> {
        if !self.align.is_power_of_two() {
            return bad(format!("region {} is aligned to {}, no power of two", self.name, self.align));
        }
        if self.min_len > self.max_len {
            return bad(format!("region {} is longer at least than at most", self.name));
        }
        if self.max_len > Region::MAX_LEN {
            return bad(format!("region {} is longer than {} bytes", self.name, Region::MAX_LEN));
        }
        match self.ends_at_start_of {
            Some(s) if usize::from(s) >= regions => {
                bad(format!("region {} ends at a region that does not exist", self.name))
            }
            Some(s) if usize::from(s) == index => bad(format!("region {} ends where it starts", self.name)),
            Some(_) | None => Ok(()),
        }
    }
}

impl Field {
    fn host_range(&self) -> Range<u32> {
        // `check` has shown that the sum does not overflow.
        self.host_offset..self.host_offset + self.host_size
    }

    fn check(&self, regions: usize) -> Res<()> {
        let name = &self.name;
        let region = match self.kind {
            // A load of part of the field, or of all of it, loads the same bytes of the host's structure.
            FieldKind::Scalar if self.host_size != self.size => {
                return bad(format!("field {name} is a number of another size in the host"));
            }
            FieldKind::Scalar => return Ok(()),
            FieldKind::Socket if self.access.writes() || (self.size, self.host_size) != (8, 8) => {
                return bad(format!("field {name} is a pointer, so 8 bytes that programs only read"));
            }
            FieldKind::Socket => return Ok(()),
            FieldKind::Data(r) | FieldKind::DataEnd(r) | FieldKind::Len(r) => r,
        };
        if usize::from(region) >= regions {
            return bad(format!("field {name} names a region that does not exist"));
        }
        if self.access.writes() {
            return bad(format!("field {name} may be written but is no number"));
        }
        // The field is loaded whole, at the host's size.
        let sizes: &[u32] = match self.kind {
            FieldKind::Len(_) => &[4, 8],
            FieldKind::Data(_) | FieldKind::DataEnd(_) | FieldKind::Scalar | FieldKind::Socket => &[8],
        };
        if !matches!(self.size, 4 | 8) || !sizes.contains(&self.host_size) {
            return bad(format!("field {name} has a size that no load of it has"));
        }
        Ok(())
    }
}

impl KnownMap {
    /// Checks that exactly a map of instructions has targets, one for each entry.
    fn check_targets(&self) -> Res<()> {
        let entries = if self.kind == MapType::InsnArray { self.max_entries as usize } else { 0 };
        if self.targets.len() != entries {
            return bad(format!("map {} says {} targets; it has {entries}", self.name, self.targets.len()));
        }
        Ok(())
    }

    fn check(&self, types: &[OwnedType]) -> Res<()> {
        let name = &self.name;
        self.check_targets()?;
        self.check_fields(types)?;
        if let Some(at) = self.spin_lock
            && (at % 4 != 0 || at.checked_add(4).is_none_or(|end| end > self.value_size))
        {
            return bad(format!("the spin lock of map {name} at {at} is not inside a value, aligned"));
        }
        for at in self.deferred() {
            let end = at.checked_add(TIMER_BYTES).filter(|end| at % 8 == 0 && *end <= self.value_size);
            let apart = self.deferred().filter(|other| other.abs_diff(at) < TIMER_BYTES).count() == 1;
            if !apart || end.is_none_or(|end| self.spin_lock.is_some_and(|lock| lock < end && at < lock + 4)) {
                return bad(format!(
                    "the timer or bpf_wq of map {name} at {at} is not inside a value, aligned and apart"
                ));
            }
            let timed = matches!(self.kind, MapType::Hash | MapType::Array | MapType::LruHash);
            if !timed || self.access != Access::ReadWrite || self.frozen.is_some() {
                return bad(format!("map {name} has a timer or bpf_wq, and is none whose values have"));
            }
        }
        if self.kind.is_array() && (self.key_size != 4 || self.max_entries == 0) {
            return bad(format!("array {name} has elements and keys of 4 bytes, or is none"));
        }
        if let Some(contents) = &self.frozen
            && (self.kind != MapType::Array || self.max_entries != 1 || contents.len() != self.value_size as usize)
        {
            return bad(format!("map {name} is frozen but no array of one such value"));
        }
        if self.arena.is_some() != (self.kind == MapType::Arena) {
            return bad(format!("map {name} has an arena's memory and is none, or is one without"));
        }
        if let Some(KnownArena { bytes, window, user }) = self.arena {
            let inside = window.checked_sub(bytes).is_some_and(|most| user & window.wrapping_sub(1) <= most);
            if !window.is_power_of_two() || window > 1 << 32 || bytes == 0 || !inside {
                return bad(format!(
                    "the memory of arena {name} is not inside a window of a power of two, 4 GiB at most"
                ));
            }
        }
        let outer = matches!(self.kind, MapType::ArrayOfMaps | MapType::HashOfMaps);
        let Some(inner) = &self.inner else { return Ok(()) };
        if !outer {
            return bad(format!("map {name} has inner maps but is no map of maps"));
        }
        if inner.arena.is_some() {
            return bad(format!("map {name} holds arenas, which a program could not tell apart"));
        }
        if inner.inner.is_some() || matches!(inner.kind, MapType::ArrayOfMaps | MapType::HashOfMaps) {
            return bad(format!("map {name}: maps of maps nest only once"));
        }
        // Facts about a tail call refer to a map in the program's own table.
        if inner.kind == MapType::ProgArray || inner.frozen.is_some() {
            return bad(format!("map {name} has inner maps of a kind that only a table of the program's own may be"));
        }
        inner.check(types)
    }

    fn check_fields(&self, types: &[OwnedType]) -> Res<()> {
        if self.fields.is_empty() {
            return Ok(());
        }
        let value =
            OwnedType { name: String::new(), size: self.value_size, fields: self.fields.clone(), per_cpu: false };
        let apart = |start: u32, bytes: u32| {
            let end = start.saturating_add(bytes);
            self.fields.iter().all(|field| field.end() <= start || end <= field.offset)
        };
        let fits = self.fields.iter().all(|field| match field.kind {
            OwnedKind::Kptr { .. } => true,
            OwnedKind::ListHead { .. } | OwnedKind::TreeRoot { .. } => self.spin_lock.is_some(),
            OwnedKind::ListNode | OwnedKind::TreeNode | OwnedKind::Refcount | OwnedKind::Lock { .. } => false,
        });
        let owning = matches!(self.kind, MapType::Hash | MapType::Array | MapType::LruHash)
            && self.access == Access::ReadWrite
            && self.frozen.is_none();
        if !value.is_sound(types)
            || !fits
            || !owning
            || self.spin_lock.is_some_and(|at| !apart(at, 4))
            || self.deferred().any(|at| !apart(at, TIMER_BYTES))
        {
            let name = &self.name;
            return bad(format!("map {name} has fields that own objects where no value has them"));
        }
        Ok(())
    }
}
