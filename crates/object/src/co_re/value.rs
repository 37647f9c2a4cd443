//! Computes the value of a relocation for the object's types and for a candidate, and the decision from both.
//!
//! A bit field has no byte offset of its own: a program loads the whole bytes around it, and shifts. The loader
//! chooses these bytes: the smallest aligned integer that is no smaller than the field's type and contains the field.
//! Offset, size and both shifts follow from it.

use super::spec::{Accessor, Spec};
use super::{MALFORMED, Why};
use crate::btf::{Btf, Type, TypeId};
use crate::code::CoreKind;

const NO_SIZE: Why = "the type has no size here";
const WIDE_BITS: Why = "the bit field lies in no aligned integer of eight bytes";
const OF_ELEMENT: Why = "only the offset and the size of an array's element can be asked for";
const NO_NUMBER: Why = "types of the host's own have no numbers";
const NOT_A_FIELD: Why = "the relocation means a whole structure";
const CANNOT_RESIZE: Why =
    "the field has another size here, and only unsigned integers and pointers can be accessed in another size";
const OTHER_BITS: Why = "the field's bits lie at other places of its bytes here: use BPF_CORE_READ_BITFIELD";

/// One side of a relocation.
pub(super) struct Side {
    value: u64,
    /// The field's place, if its offset is asked for.
    place: Option<Place>,
    /// Whether the compiler has put exactly this value into the instruction.
    certain: bool,
}

/// The extent of a field for loads and stores.
#[derive(Clone, Copy)]
enum Place {
    /// Whole bytes: the type of one access (for arrays, of an element), and its size.
    Bytes { ty: TypeId, size: u32 },
    /// Bits: their first bit from the root's start, their number, and whether they are signed.
    Bits { at: u64, len: u8, signed: bool },
}

/// The change of an instruction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Decision {
    /// The value.
    pub(super) value: u64,
    /// The value that the instruction must hold before, if it is certain.
    pub(super) before: Option<u64>,
    /// The change of a load or store.
    pub(super) access: Access,
}

/// The change of a field's load or store, besides its offset.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Access {
    /// None.
    Same,
    /// The field had `was` bytes and has `is`.
    Resized { was: u32, is: u32 },
    /// The offset changes by this many bytes; the size stays.
    Moved(i64),
    /// The instruction cannot be adapted.
    Refused(Why),
}

impl Decision {
    /// A decision with a value for any instruction.
    pub(super) fn unchecked(value: u64) -> Decision {
        Decision { value, before: None, access: Access::Same }
    }

    pub(super) fn new(own: &Side, local: &Btf, theirs: &Side, target: &Btf) -> Decision {
        let access = match (own.place, theirs.place) {
            (None, None) => Access::Same,
            (Some(Place::Bytes { size: was, .. }), Some(Place::Bytes { size: is, .. })) if was == is => Access::Same,
            (Some(Place::Bytes { ty: a, size: was }), Some(Place::Bytes { ty: b, size: is })) => {
                match (local.get(a), target.get(b)) {
                    (Type::Ptr { .. }, Type::Ptr { .. })
                    | (Type::Int { signed: false, .. }, Type::Int { signed: false, .. }) => Access::Resized { was, is },
                    _ => Access::Refused(CANNOT_RESIZE),
                }
            }
            (Some(Place::Bits { at: a, len: l, signed: s }), Some(Place::Bits { at: b, len: m, signed: t })) => {
                // Places in types, which have fewer than 2^35 bits each, or in their elements.
                let by = i128::from(b) - i128::from(a);
                match i64::try_from(by / 8) {
                    Ok(bytes) if by % 8 == 0 && (l, s) == (m, t) => Access::Moved(bytes),
                    _ => Access::Refused(OTHER_BITS),
                }
            }
            (Some(Place::Bits { .. }) | None, _) | (_, Some(Place::Bits { .. }) | None) => Access::Refused(OTHER_BITS),
        };
        Decision { value: theirs.value, before: own.certain.then_some(own.value), access }
    }
}

/// Whether a relocation without any candidate has the value 0: existence, and queries of types as a whole.
pub(super) fn is_zero_if_missing(kind: CoreKind) -> bool {
    match kind {
        CoreKind::FieldExists
        | CoreKind::TypeIdTarget
        | CoreKind::TypeExists
        | CoreKind::TypeSize
        | CoreKind::TypeMatches
        | CoreKind::EnumvalExists => true,
        CoreKind::FieldByteOffset
        | CoreKind::FieldByteSize
        | CoreKind::FieldSigned
        | CoreKind::FieldLshift
        | CoreKind::FieldRshift
        | CoreKind::TypeIdLocal
        | CoreKind::EnumvalValue => false,
    }
}

/// Computes the value for one side.
pub(super) fn of(kind: CoreKind, spec: &Spec<'_>) -> Result<Side, Why> {
    let certain = |value| Ok(Side { value, place: None, certain: true });
    match kind {
        CoreKind::FieldExists | CoreKind::TypeExists | CoreKind::TypeMatches | CoreKind::EnumvalExists => certain(1),
        CoreKind::TypeIdLocal => Ok(Side { value: spec.root.0.into(), place: None, certain: false }),
        CoreKind::TypeIdTarget if !spec.numbered => Err(NO_NUMBER),
        CoreKind::TypeIdTarget => Ok(Side { value: spec.root.0.into(), place: None, certain: false }),
        CoreKind::TypeSize => certain(spec.btf.size_of(spec.root).ok_or(NO_SIZE)?.into()),
        CoreKind::EnumvalValue => match spec.accessors.first() {
            Some(Accessor::Value { value, .. }) => certain(*value as u64),
            Some(Accessor::Member { .. } | Accessor::Element { .. }) | None => Err(MALFORMED),
        },
        CoreKind::FieldByteOffset
        | CoreKind::FieldByteSize
        | CoreKind::FieldSigned
        | CoreKind::FieldLshift
        | CoreKind::FieldRshift => field(kind, spec),
    }
}

fn field(kind: CoreKind, spec: &Spec<'_>) -> Result<Side, Why> {
    let btf = spec.btf;
    let plain = |value, place| Ok(Side { value, place, certain: true });
    let member = match spec.accessors.last() {
        Some(Accessor::Member { member, .. }) => member,
        Some(Accessor::Element { ty, .. }) => {
            return match kind {
                CoreKind::FieldByteOffset => plain(spec.bits / 8, Some(bytes_at(btf, *ty)?)),
                CoreKind::FieldByteSize => plain(btf.size_of(*ty).ok_or(NO_SIZE)?.into(), None),
                _ => Err(OF_ELEMENT),
            };
        }
        Some(Accessor::Value { .. }) | None => return Err(NOT_A_FIELD),
    };
    let ty = btf.resolve(member.ty);
    let signed = match btf.get(ty) {
        Type::Int { signed, .. } | Type::Enum { signed, .. } => *signed,
        _ => false,
    };
    if member.bit_size == 0 {
        let size = btf.size_of(ty).ok_or(NO_SIZE)?;
        let bits = u64::from(size) * 8;
        let shift = 64u64.checked_sub(bits).ok_or("the field is no number of eight bytes or less");
        return match kind {
            CoreKind::FieldByteOffset => plain(spec.bits / 8, Some(bytes_at(btf, ty)?)),
            CoreKind::FieldByteSize => plain(size.into(), None),
            CoreKind::FieldSigned => plain(signed.into(), None),
            _ => plain(shift?, None),
        };
    }
    let (start, size) = load_of_bits(btf, ty, spec.bits, member.bit_size)?;
    let uncertain = |value| Ok(Side { value, place: None, certain: false });
    let len = u64::from(member.bit_size);
    match kind {
        CoreKind::FieldByteOffset => {
            let place = Some(Place::Bits { at: spec.bits, len: member.bit_size, signed });
            Ok(Side { value: start, place, certain: false })
        }
        CoreKind::FieldByteSize => uncertain(size),
        CoreKind::FieldSigned => plain(signed.into(), None),
        // Programs load into 64 bits, and shift the field's last bit to the top, then its first one to the bottom.
        CoreKind::FieldLshift => uncertain(64 - (spec.bits + len - start * 8)),
        _ => plain(64 - len, None),
    }
}

/// The type of a single access: for an array, its element.
fn bytes_at(btf: &Btf, ty: TypeId) -> Result<Place, Why> {
    let mut ty = btf.resolve(ty);
    for _ in 0..crate::btf::MAX_DEPTH {
        let Type::Array { elem, .. } = btf.get(ty) else { break };
        ty = btf.resolve(*elem);
    }
    Ok(Place::Bytes { ty, size: btf.size_of(ty).ok_or(NO_SIZE)? })
}

/// The bytes with which a bit field of `len` bits at bit `at` is loaded: their offset and number.
fn load_of_bits(btf: &Btf, ty: TypeId, at: u64, len: u8) -> Result<(u64, u64), Why> {
    let (Type::Int { size, .. } | Type::Enum { size, .. }) = btf.get(ty) else { return Err(MALFORMED) };
    let mut size = u64::from(*size);
    if !matches!(size, 1 | 2 | 4 | 8) {
        return Err(WIDE_BITS);
    }
    loop {
        let start = at / 8 / size * size;
        if at + u64::from(len) <= (start + size) * 8 {
            return Ok((start, size));
        }
        size *= 2;
        if size > 8 {
            return Err(WIDE_BITS);
        }
    }
}
