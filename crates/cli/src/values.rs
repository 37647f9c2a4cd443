//! Formats keys and values by their BTF types: fields with names, as in the program's source.
//!
//! Problem: bytes in hex are hard to read, and types come from a file that may claim anything: sizes beyond the
//! bytes, structures that contain themselves, arrays of billions of empty elements. Approach: a type is walked
//! together with the bytes, and every place is looked up in them. A walk is limited in depth and in the number of
//! fields. The caller shows a value that does not fit as bytes.

use bpf_runtime::object::btf::{Btf, MAX_DEPTH, Member, Type, TypeId};
use bpf_runtime::{maps::Map, object::MapDecl as ObjectMap};
use serde::{Serialize, Serializer};
use std::fmt;

/// The largest number of fields and elements shown of one key or value: beyond it hex digits are easier to read.
const MAX_FIELDS: usize = 4096;

/// The longest array of bytes shown as numbers; longer ones, such as hashes, are shown as hex digits.
const MAX_BYTES: usize = 16;

/// A value in structured form.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Value {
    Unsigned(u64),
    Signed(i64),
    Bool(bool),
    Float(f64),
    /// The name of an enumerator: shown without quotes.
    Name(String),
    Text(String),
    List(Vec<Value>),
    Fields(Vec<(String, Value)>),
}

/// An entry in structured form.
#[derive(Serialize)]
pub(crate) struct Formatted {
    pub(crate) key: Value,
    /// For a per-CPU map, the values by execution slot that are not zero.
    pub(crate) value: Value,
}

/// The entry of a map by the types in its declaration; `None` if it has none, or if their sizes differ from the
/// bytes'.
pub(crate) fn entry(btf: &Btf, declared: &ObjectMap, map: &Map, key: &[u8], value: &[u8]) -> Option<Formatted> {
    let whole = |ty: TypeId, bytes: &[u8]| {
        let fits = btf.size_of(ty).is_some_and(|size| size as usize == bytes.len());
        if fits { Walk { btf, left: MAX_FIELDS }.value(ty, bytes, 0) } else { None }
    };
    if let Some(data) = &declared.data {
        let mut fields = Vec::new();
        let mut walk = Walk { btf, left: MAX_FIELDS };
        for variable in &data.variables {
            let bytes = part(value, variable.offset, variable.size)?;
            fields.push((variable.name.clone(), walk.value(variable.ty?, bytes, 0)?));
        }
        // A section without variables holds literals, which are best shown as bytes.
        let value = (!fields.is_empty()).then_some(Value::Fields(fields))?;
        return Some(Formatted { key: Value::Unsigned(0), value });
    }
    let (key, value_type) = (whole(declared.key_type?, key)?, declared.value_type?);
    let size = map.def().value_size as usize;
    if !map.map_type().is_per_cpu() {
        return Some(Formatted { key, value: whole(value_type, value)? });
    }
    let slots = value.chunks_exact(size.next_multiple_of(8).max(8)).enumerate();
    let used = slots.filter(|(_, bytes)| bytes.iter().any(|byte| *byte != 0));
    let fields = used.map(|(slot, bytes)| Some((slot.to_string(), whole(value_type, &bytes[..size])?)));
    Some(Formatted { key, value: Value::Fields(fields.collect::<Option<_>>()?) })
}

/// `size` bytes from `offset`, if they exist.
fn part(bytes: &[u8], offset: u32, size: u32) -> Option<&[u8]> {
    bytes.get(offset as usize..)?.get(..size as usize)
}

/// A little-endian number of up to eight bytes.
fn number(bytes: &[u8]) -> Option<u64> {
    let mut word = [0; 8];
    word.get_mut(..bytes.len())?.copy_from_slice(bytes);
    Some(u64::from_le_bytes(word))
}

struct Walk<'b> {
    btf: &'b Btf,
    /// Number of fields that may still be shown.
    left: usize,
}

impl Walk<'_> {
    /// The value of this type at the start of the bytes.
    fn value(&mut self, ty: TypeId, bytes: &[u8], depth: usize) -> Option<Value> {
        self.left = self.left.checked_sub(1)?;
        if depth > MAX_DEPTH {
            return None;
        }
        let ty = self.btf.resolve(ty);
        match self.btf.get(ty) {
            Type::Int { size: 16, .. } => {
                let digits: String = part(bytes, 0, 16)?.iter().rev().map(|byte| format!("{byte:02x}")).collect();
                Some(Value::Text(format!("0x{digits}")))
            }
            Type::Int { size, bits, .. } => {
                let width = u32::from(*bits).min(size.checked_mul(8)?);
                self.scalar(ty, number(part(bytes, 0, *size)?)?, width)
            }
            Type::Enum { size, .. } => self.scalar(ty, number(part(bytes, 0, *size)?)?, size.checked_mul(8)?),
            Type::Ptr { .. } => Some(Value::Text(format!("{:#x}", number(part(bytes, 0, 8)?)?))),
            Type::Float { size: 4, .. } => {
                Some(Value::Float(f32::from_le_bytes(part(bytes, 0, 4)?.try_into().ok()?).into()))
            }
            Type::Float { size: 8, .. } => Some(Value::Float(f64::from_le_bytes(part(bytes, 0, 8)?.try_into().ok()?))),
            Type::Array { elem, len } => self.array(*elem, *len, bytes, depth),
            Type::Composite { members, .. } => {
                let mut fields = Vec::new();
                for member in members {
                    let value = self.member(member, bytes, depth)?;
                    match (self.btf.name(member.name), value) {
                        // Members of an anonymous structure are shown as members of the outer one.
                        ("", Value::Fields(inner)) => fields.extend(inner),
                        ("", _) => {}
                        (name, value) => fields.push((name.to_owned(), value)),
                    }
                }
                Some(Value::Fields(fields))
            }
            Type::Var { ty, .. } => self.value(*ty, bytes, depth + 1),
            Type::Void
            | Type::Fwd { .. }
            | Type::Typedef { .. }
            | Type::Qualified { .. }
            | Type::Func { .. }
            | Type::FuncProto { .. }
            | Type::DataSec { .. }
            | Type::Float { .. }
            | Type::DeclTag { .. }
            | Type::TypeTag { .. } => None,
        }
    }

    fn array(&mut self, elem: TypeId, len: u32, bytes: &[u8], depth: usize) -> Option<Value> {
        let size = self.btf.size_of(elem)?;
        let inner = self.btf.resolve(elem);
        if let Type::Int { size: 1, .. } = self.btf.get(inner) {
            let bytes = part(bytes, 0, len)?;
            let (text, rest) = bytes.split_at(bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len()));
            if self.btf.type_name(inner) == "char"
                && rest.iter().all(|byte| *byte == 0)
                && let Ok(text) = std::str::from_utf8(text)
            {
                return Some(Value::Text(text.to_owned()));
            }
            if bytes.len() > MAX_BYTES {
                return Some(Value::Text(hex::encode(bytes)));
            }
        }
        let element = |at: u32| self.value(elem, part(bytes, at.checked_mul(size)?, size)?, depth + 1);
        Some(Value::List((0..len).map(element).collect::<Option<_>>()?))
    }

    fn member(&mut self, member: &Member, bytes: &[u8], depth: usize) -> Option<Value> {
        if member.bit_size == 0 {
            let at = member.bit_offset.is_multiple_of(8).then_some(member.bit_offset / 8)?;
            return self.value(member.ty, part(bytes, at, self.btf.size_of(member.ty)?)?, depth + 1);
        }
        self.left = self.left.checked_sub(1)?;
        let width = u32::from(member.bit_size);
        let mut raw = 0;
        for bit in (0..width).rev() {
            let at = member.bit_offset.checked_add(bit)?;
            let byte = *bytes.get(at as usize / 8)?;
            raw = raw << 1 | u64::from(byte >> (at % 8) & 1);
        }
        self.scalar(self.btf.resolve(member.ty), raw, width)
    }

    /// Formats a number of `width` bits.
    fn scalar(&self, ty: TypeId, raw: u64, width: u32) -> Option<Value> {
        if !(1..=64).contains(&width) {
            return None;
        }
        let (unused, btf) = (64 - width, self.btf);
        let (unsigned, signed) = (raw << unused >> unused, (raw << unused).cast_signed() >> unused);
        match btf.get(ty) {
            Type::Int { .. } if matches!(btf.type_name(ty), "_Bool" | "bool") => Some(Value::Bool(unsigned != 0)),
            Type::Int { signed: true, .. } => Some(Value::Signed(signed)),
            Type::Int { signed: false, .. } => Some(Value::Unsigned(unsigned)),
            Type::Enum { values, .. } => {
                let same = |value: i64| value == signed || value.cast_unsigned() == unsigned;
                let name = values.iter().find(|(_, value)| same(*value)).map(|(name, _)| btf.name(*name).to_owned());
                Some(name.map_or(Value::Unsigned(unsigned), Value::Name))
            }
            _ => None,
        }
    }
}

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Value::Unsigned(value) => to.serialize_u64(*value),
            Value::Signed(value) => to.serialize_i64(*value),
            Value::Bool(value) => to.serialize_bool(*value),
            // JSON has no representation of infinity.
            Value::Float(value) if value.is_finite() => to.serialize_f64(*value),
            Value::Float(value) => to.collect_str(value),
            Value::Name(text) | Value::Text(text) => to.serialize_str(text),
            Value::List(values) => to.collect_seq(values),
            Value::Fields(fields) => to.collect_map(fields.iter().map(|(name, value)| (name, value))),
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Unsigned(value) => value.fmt(f),
            Value::Signed(value) => value.fmt(f),
            Value::Bool(value) => value.fmt(f),
            Value::Float(value) => value.fmt(f),
            Value::Name(name) => f.write_str(name),
            Value::Text(text) => write!(f, "{text:?}"),
            Value::List(values) => {
                f.write_str("[")?;
                for (at, value) in values.iter().enumerate() {
                    write!(f, "{}{value}", if at == 0 { "" } else { ", " })?;
                }
                f.write_str("]")
            }
            Value::Fields(fields) => {
                f.write_str("{")?;
                for (at, (name, value)) in fields.iter().enumerate() {
                    write!(f, "{}{name}: {value}", if at == 0 { "" } else { ", " })?;
                }
                f.write_str("}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A section of BTF with these types, and the names `a` (at 1), `b` (at 3) and `char` (at 5).
    fn btf(types: &[u32]) -> Btf {
        let strings = b"\0a\0b\0char\0";
        let len = |n: usize| u32::try_from(n).unwrap();
        let header = [0x1_eb9f, 24, 0, len(types.len() * 4), len(types.len() * 4), len(strings.len())];
        let words = header.iter().chain(types).flat_map(|word| word.to_le_bytes());
        Btf::parse(&words.chain(*strings).collect::<Vec<u8>>()).unwrap()
    }

    fn shown(btf: &Btf, ty: u32, bytes: &[u8]) -> Option<String> {
        Walk { btf, left: MAX_FIELDS }.value(TypeId(ty), bytes, 0).map(|value| value.to_string())
    }

    const INT: u32 = 1 << 24;
    const ARRAY: u32 = 3 << 24;
    const STRUCT: u32 = 4 << 24;
    const BITS: u32 = 1 << 31;

    #[test]
    fn bytes_and_bits_are_read_by_type() {
        // 1: char, 2: char[4], 3: __u8 (without a name here), 4: __u8[17], 5: a struct of bit fields.
        let char = [5, INT, 1, 1 << 24 | 8, 0, ARRAY, 0, 1, 1, 4];
        let bytes = [0, INT, 1, 8, 0, ARRAY, 0, 3, 3, 17];
        let bits = [0, STRUCT | BITS | 2, 2, 1, 3, 5 << 24, 3, 1, 3 << 24 | 5];
        let btf = btf(&[&char[..], &bytes, &bits].concat());
        assert_eq!(shown(&btf, 1, &[0xff]).unwrap(), "-1");
        assert_eq!(shown(&btf, 2, b"ab\0\0").unwrap(), "\"ab\"");
        assert_eq!(shown(&btf, 2, b"a\0b\0").unwrap(), "[97, 0, 98, 0]", "no text");
        assert_eq!(shown(&btf, 2, &[0xff, 0, 0, 0]).unwrap(), "[-1, 0, 0, 0]", "no text");
        assert_eq!(shown(&btf, 4, &[7; 17]).unwrap(), format!("\"{}\"", "07".repeat(17)));
        assert_eq!(shown(&btf, 5, &[0b1011_0011, 0xff]).unwrap(), "{a: 19, b: -3}");
        for (ty, short) in [(1, 0), (2, 3), (4, 16), (5, 0), (0, 8), (99, 8)] {
            assert_eq!(shown(&btf, ty, &vec![0; short]), None, "type {ty} of {short} bytes");
        }
    }

    #[test]
    fn types_without_an_end_are_left_to_their_bytes() {
        // 1: a structure that contains itself; 2: an empty structure; 3: an array of very many of these; 4: an array
        // of itself.
        let within = [1, STRUCT | 1, 8, 1, 1, 0];
        let nothing = [1, STRUCT, 0];
        let many = [0, ARRAY, 0, 2, 2, u32::MAX];
        let own = [0, ARRAY, 0, 4, 4, 1];
        let btf = btf(&[&within[..], &nothing, &many, &own].concat());
        for ty in [1, 3, 4] {
            assert_eq!(shown(&btf, ty, &[0; 64]), None, "type {ty}");
        }
        assert_eq!(shown(&btf, 2, &[]).unwrap(), "{}");
    }
}
