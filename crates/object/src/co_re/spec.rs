//! Walks through types: finds the place of an access string in the object's types, and of its names in a candidate.
//!
//! An access string (`0:1:2`) is an index of the root as an array element, then member and element indices. A walk
//! records the *accessors*: named members and array elements. Anonymous structures and unions are passed through on
//! both sides, so that a field is found however the host groups its fields. A walk of the candidate compares the
//! kinds of each named member's types ([`compat::fields_are_compatible`]).

use super::compat::{self, essential_of};
use super::{Candidate, MALFORMED, NO_ELEMENT, NO_FIELD, NO_VALUE, OTHER_KIND, SHOWN, TOO_DEEP, Why, Work, short};
use crate::btf::{Btf, Member, StrOffset, Type, TypeId};
use crate::code::{CoreKind, CoreRelocation};

/// Largest number of steps from a type to a place inside it (Linux: BPF_CORE_SPEC_MAX_LEN).
const MAX_STEPS: usize = 64;

/// Largest offset of a place in bits, so that the end of a bit field there, and of the integer around it, is
/// representable. Indices of elements and offsets of members may claim places beyond any type.
const MAX_BITS: u64 = i64::MAX as u64;

/// A recorded step of a walk.
#[derive(Clone, Copy)]
pub(super) enum Accessor {
    /// A named member.
    Member {
        /// Whether it is the last one of its structure or union.
        last: bool,
        member: Member,
    },
    /// An element of an array; the first accessor treats the root as an element.
    Element {
        /// The element's type.
        ty: TypeId,
        index: u32,
    },
    /// An enumerator.
    Value { name: StrOffset, value: i64 },
}

/// The result of a walk: a place in a type.
pub(super) struct Spec<'a> {
    pub(super) btf: &'a Btf,
    pub(super) root: TypeId,
    /// Whether programs may read the root's type id.
    pub(super) numbered: bool,
    /// Empty if the relocation concerns the type as a whole.
    pub(super) accessors: Vec<Accessor>,
    /// Offset in bits from the root's start, at most [`MAX_BITS`].
    pub(super) bits: u64,
}

/// A member found by name.
struct Found {
    last: bool,
    member: Member,
    /// Offset in bits, including the offsets of the anonymous members around it.
    bits: u64,
    steps: usize,
}

impl<'a> Spec<'a> {
    /// The place of a type as a whole.
    pub(super) fn of_type(btf: &'a Btf, root: TypeId, numbered: bool) -> Spec<'a> {
        Spec { btf, root, numbered, accessors: Vec::new(), bits: 0 }
    }

    /// The place of a relocation in the object's own types.
    pub(super) fn parse(btf: &'a Btf, relocation: &CoreRelocation) -> Result<Spec<'a>, Why> {
        let mut spec = Spec::of_type(btf, relocation.ty, true);
        let access = btf.name(relocation.access);
        let is_field = match relocation.kind {
            CoreKind::TypeIdLocal
            | CoreKind::TypeIdTarget
            | CoreKind::TypeExists
            | CoreKind::TypeSize
            | CoreKind::TypeMatches => return if access == "0" { Ok(spec) } else { Err(MALFORMED) },
            CoreKind::EnumvalExists | CoreKind::EnumvalValue => false,
            CoreKind::FieldByteOffset
            | CoreKind::FieldByteSize
            | CoreKind::FieldExists
            | CoreKind::FieldSigned
            | CoreKind::FieldLshift
            | CoreKind::FieldRshift => true,
        };
        let mut indices = access.split(':').map(|index| index.parse::<u32>().map_err(|_| MALFORMED));
        let first = indices.next().unwrap_or(Err(MALFORMED))?;
        let root = btf.resolve(relocation.ty);
        if !is_field {
            let Type::Enum { values, .. } = btf.get(root) else { return Err(MALFORMED) };
            let &(name, value) = values.get(first as usize).ok_or(MALFORMED)?;
            spec.accessors.push(Accessor::Value { name, value });
            return if indices.next().is_none() { Ok(spec) } else { Err(MALFORMED) };
        }
        spec.element(root, first).ok_or(MALFORMED)?;
        let mut ty = root;
        for (depth, index) in indices.enumerate() {
            let index = index?;
            if depth + 1 >= MAX_STEPS {
                return Err(TOO_DEEP);
            }
            ty = match btf.get(ty) {
                Type::Composite { members, .. } => {
                    let member = *members.get(index as usize).ok_or(MALFORMED)?;
                    spec.go(member.bit_offset.into()).ok_or(MALFORMED)?;
                    if !btf.string_bytes(member.name).is_empty() {
                        let last = index as usize + 1 == members.len();
                        spec.accessors.push(Accessor::Member { last, member });
                    }
                    btf.resolve(member.ty)
                }
                Type::Array { elem, len } => {
                    if index >= *len && !spec.ends_in_flexible_array(*len) {
                        return Err(MALFORMED);
                    }
                    let elem = btf.resolve(*elem);
                    spec.element(elem, index).ok_or(MALFORMED)?;
                    elem
                }
                _ => return Err(MALFORMED),
            };
        }
        Ok(spec)
    }

    /// Advances to an element of this type; `None` if it has no size, or lies too far away.
    fn element(&mut self, ty: TypeId, index: u32) -> Option<()> {
        let bits = u64::from(self.btf.size_of(ty)?).checked_mul(u64::from(index))?.checked_mul(8)?;
        self.go(bits)?;
        self.accessors.push(Accessor::Element { ty, index });
        Some(())
    }

    /// Advances by `bits` bits; `None` if that is too far away.
    fn go(&mut self, bits: u64) -> Option<()> {
        self.bits = self.bits.checked_add(bits).filter(|bits| *bits <= MAX_BITS)?;
        Some(())
    }

    /// Whether an array of `len` elements that the walk has reached is a flexible one: without a length, at the end
    /// of a structure.
    fn ends_in_flexible_array(&self, len: u32) -> bool {
        len == 0 && matches!(self.accessors.last(), Some(Accessor::Member { last: true, .. }))
    }

    /// The corresponding place in a candidate, or the reason why it has none.
    pub(super) fn find_field(&self, candidate: &Candidate<'a>, work: &mut Work) -> Result<Result<Spec<'a>, Why>, Why> {
        let btf = &candidate.types.btf;
        let mut spec = Spec::of_type(btf, candidate.id, candidate.types.numbered);
        let (mut ty, mut steps) = (btf.resolve(candidate.id), 0);
        for (at, accessor) in self.accessors.iter().enumerate() {
            work.step(0)?;
            match *accessor {
                Accessor::Member { member: local, .. } => {
                    let wanted = Wanted { btf: self.btf, member: local, name: self.btf.string_bytes(local.name) };
                    let mut why = NO_FIELD;
                    let Some(found) = wanted.find(btf, ty, steps, &mut why, work)? else { return Ok(Err(why)) };
                    steps = found.steps;
                    spec.go(found.bits).ok_or(TOO_DEEP)?;
                    let Found { last, member, .. } = found;
                    spec.accessors.push(Accessor::Member { last, member });
                    ty = btf.resolve(member.ty);
                }
                Accessor::Element { index, .. } => {
                    // The root is an element already.
                    if at > 0 {
                        let &Type::Array { elem, len } = btf.get(ty) else { return Ok(Err(OTHER_KIND)) };
                        if index >= len && !spec.ends_in_flexible_array(len) {
                            return Ok(Err(NO_ELEMENT));
                        }
                        ty = btf.resolve(elem);
                    }
                    steps += 1;
                    if steps > MAX_STEPS {
                        return Err(TOO_DEEP);
                    }
                    let reached = spec.element(ty, index);
                    if reached.is_none() {
                        return Ok(Err(MALFORMED));
                    }
                }
                Accessor::Value { .. } => return Err(MALFORMED),
            }
        }
        Ok(Ok(spec))
    }

    /// The enumerator with this essential name in a candidate.
    pub(super) fn find_value(&self, candidate: &Candidate<'a>, work: &mut Work) -> Result<Result<Spec<'a>, Why>, Why> {
        let btf = &candidate.types.btf;
        let Some(Accessor::Value { name: local, .. }) = self.accessors.first() else { return Err(MALFORMED) };
        let Type::Enum { values, .. } = btf.get(btf.resolve(candidate.id)) else { return Ok(Err(NO_VALUE)) };
        let wanted = essential_of(self.btf, *local);
        for &(name, value) in values {
            let theirs = essential_of(btf, name);
            work.step(theirs.len())?;
            if theirs == wanted {
                let mut spec = Spec::of_type(btf, candidate.id, candidate.types.numbered);
                spec.accessors.push(Accessor::Value { name, value });
                return Ok(Ok(spec));
            }
        }
        Ok(Err(NO_VALUE))
    }
}

/// A member to search for.
struct Wanted<'a> {
    btf: &'a Btf,
    member: Member,
    name: &'a [u8],
}

impl Wanted<'_> {
    /// The member with this name and a compatible type, also in anonymous members. `why` is set to the reason if only
    /// incompatible members exist.
    fn find(&self, btf: &Btf, of: TypeId, steps: usize, why: &mut Why, work: &mut Work) -> Result<Option<Found>, Why> {
        let Type::Composite { members, .. } = btf.get(of) else { return Ok(None) };
        if steps >= MAX_STEPS {
            return Err(TOO_DEEP);
        }
        for (index, member) in members.iter().enumerate() {
            work.step(self.name.len())?;
            if btf.string_bytes_are_empty(member.name) {
                let inner = self.find(btf, btf.resolve(member.ty), steps + 1, why, work)?;
                if let Some(found) = inner {
                    let bits = found.bits + u64::from(member.bit_offset);
                    return Ok(Some(Found { bits, ..found }));
                }
            } else if btf.string_is(member.name, self.name) {
                if !compat::fields_are_compatible((self.btf, self.member.ty), (btf, member.ty)) {
                    *why = OTHER_KIND;
                    return Ok(None);
                }
                let (last, bits) = (index + 1 == members.len(), member.bit_offset.into());
                return Ok(Some(Found { last, member: *member, bits, steps: steps + 1 }));
            }
        }
        Ok(None)
    }
}

/// The field or enumerator of a relocation, for messages: `ports[1]`. The access string, if it is invalid.
pub(super) fn shown(btf: &Btf, relocation: &CoreRelocation) -> String {
    let Ok(spec) = Spec::parse(btf, relocation) else { return short(btf.name(relocation.access)) };
    let mut out = String::new();
    for (at, accessor) in spec.accessors.iter().enumerate() {
        match accessor {
            Accessor::Member { member, .. } if out.is_empty() => out.push_str(btf.name(member.name)),
            Accessor::Member { member, .. } => out.push_str(&format!(".{}", btf.name(member.name))),
            // The root's index 0 is not shown.
            Accessor::Element { index: 0, .. } if at == 0 => {}
            Accessor::Element { index, .. } => out.push_str(&format!("[{index}]")),
            Accessor::Value { name, .. } => out.push_str(super::essential(btf.name(*name))),
        }
        if out.len() > SHOWN {
            break;
        }
    }
    short(&out)
}
