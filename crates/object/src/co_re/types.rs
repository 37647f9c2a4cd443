//! The types that relocations are resolved to, with an index by name.
//!
//! Problem: the contexts of this runtime are described in Rust by their providers, a kernel's structures by BTF with
//! a hundred thousand types. Approach: both become BTF with an index by name. Types are found by their essential
//! names ([`super::name`]).
//!
//! Invariant: [`Types::by_name`] is sorted by essential name, then by id, so that candidates are in the order of the
//! BTF.

use std::borrow::Cow;
use std::collections::HashMap;

use super::compat::same_kind;
use super::name::essential_bytes;
use crate::btf::{Btf, Member, StrOffset, Type, TypeId};

/// A type that exists on this host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CoreType {
    /// A structure.
    Struct {
        /// Its name.
        name: Cow<'static, str>,
        /// Its size in bytes.
        size: u32,
        /// The fields that programs may use.
        fields: Vec<CoreField>,
    },
    /// An enumeration.
    Enum {
        /// Its name.
        name: Cow<'static, str>,
        /// Its size in bytes, 4 or 8.
        size: u32,
        /// Names and values.
        values: Vec<(Cow<'static, str>, i64)>,
    },
}

/// A field of a structure.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CoreField {
    /// Its name.
    pub name: Cow<'static, str>,
    /// Byte offset.
    pub offset: u32,
    /// Its type.
    pub ty: FieldType,
}

/// The type of a field.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FieldType {
    /// An integer.
    Int {
        /// Size in bytes: 1, 2, 4 or 8.
        size: u32,
        /// Whether it is signed.
        signed: bool,
    },
    /// A pointer of eight bytes: to a structure with this name, or to bytes if there is none.
    Pointer(Option<Cow<'static, str>>),
    /// An array.
    Array {
        /// The type of an element.
        elem: Box<FieldType>,
        /// Number of elements.
        len: u32,
    },
    /// A nested structure.
    Struct {
        /// Its name.
        name: Cow<'static, str>,
        /// Its size in bytes.
        size: u32,
        /// Its fields.
        fields: Vec<CoreField>,
    },
}

impl FieldType {
    /// An unsigned integer of this many bytes.
    pub const fn unsigned(size: u32) -> FieldType {
        FieldType::Int { size, signed: false }
    }

    /// An array of `len` elements.
    pub fn array(elem: FieldType, len: u32) -> FieldType {
        FieldType::Array { elem: Box::new(elem), len }
    }

    /// The size in bytes; for an array, of all its elements.
    pub fn size(&self) -> u32 {
        match self {
            FieldType::Int { size, .. } | FieldType::Struct { size, .. } => *size,
            FieldType::Pointer(_) => 8,
            FieldType::Array { elem, len } => elem.size().saturating_mul(*len),
        }
    }
}

/// The integer types of fields. The first one is a byte.
static INTEGERS: [FieldType; 8] = {
    const fn signed(size: u32) -> FieldType {
        FieldType::Int { size, signed: true }
    }
    [
        FieldType::unsigned(1),
        FieldType::unsigned(2),
        FieldType::unsigned(4),
        FieldType::unsigned(8),
        signed(1),
        signed(2),
        signed(4),
        signed(8),
    ]
};

/// Types with an index by name.
#[derive(Debug)]
pub(crate) struct Types {
    pub(crate) btf: Btf,
    /// Whether programs may read the ids of these types.
    pub(crate) numbered: bool,
    by_name: Vec<TypeId>,
}

impl Types {
    pub(crate) fn new(btf: Btf, numbered: bool) -> Types {
        let named = btf.types().filter(|(_, ty)| is_named(ty));
        let mut by_name: Vec<(&[u8], TypeId)> = named.map(|(id, _)| (essential_name(&btf, id), id)).collect();
        by_name.retain(|(name, _)| !name.is_empty());
        by_name.sort_unstable();
        let by_name = by_name.into_iter().map(|(_, id)| id).collect();
        Types { btf, numbered, by_name }
    }

    /// The types with the essential name and kind of a type of `local`.
    pub(super) fn candidates<'a>(&'a self, local: &'a Btf, id: TypeId) -> impl Iterator<Item = TypeId> + 'a {
        let name = essential_name(local, id);
        let start = self.by_name.partition_point(|id| essential_name(&self.btf, *id) < name);
        let named = self.by_name[start..].iter().copied();
        named
            .take_while(move |id| essential_name(&self.btf, *id) == name)
            .filter(move |candidate| same_kind(local.get(id), self.btf.get(*candidate)))
    }
}

/// Whether a relocation can refer to such a type: others have no names, or are not types of values.
fn is_named(ty: &Type) -> bool {
    match ty {
        Type::Int { .. }
        | Type::Composite { .. }
        | Type::Enum { .. }
        | Type::Fwd { .. }
        | Type::Typedef { .. }
        | Type::Float { .. } => true,
        Type::Void
        | Type::Ptr { .. }
        | Type::Array { .. }
        | Type::Qualified { .. }
        | Type::Func { .. }
        | Type::FuncProto { .. }
        | Type::Var { .. }
        | Type::DataSec { .. }
        | Type::DeclTag { .. }
        | Type::TypeTag { .. } => false,
    }
}

fn essential_name(btf: &Btf, id: TypeId) -> &[u8] {
    essential_bytes(btf.string_bytes(btf.name_offset(id)))
}

/// The types of a host, in the form that relocations are resolved to. Built once for all programs of an object.
#[derive(Debug)]
pub struct HostTypes(Types);

impl HostTypes {
    /// Copies the types and those inside them, and adds the integers of C.
    pub fn new(types: &[CoreType]) -> HostTypes {
        let mut builder = Builder { btf: Btf::empty(), made: HashMap::new() };
        for ty in &INTEGERS {
            builder.field_type(ty);
        }
        for (name, size, signed) in
            [("char", 1, true), ("long", 8, true), ("unsigned long", 8, false), ("_Bool", 1, false)]
        {
            builder.int(name, size, signed);
        }
        for ty in types {
            match ty {
                CoreType::Struct { name, size, fields } => {
                    builder.structure(name, *size, fields);
                }
                CoreType::Enum { name, size, values } => {
                    let signed = values.iter().any(|(_, value)| *value < 0);
                    let values = values.iter().map(|(name, value)| (builder.btf.intern(name), *value)).collect();
                    let name = builder.btf.intern(name);
                    builder.btf.add(Type::Enum { name, size: *size, signed, values });
                }
            }
        }
        HostTypes(Types::new(builder.btf, false))
    }

    pub(super) fn types(&self) -> &Types {
        &self.0
    }
}

/// Builds BTF from described types.
struct Builder<'a> {
    btf: Btf,
    /// The types of fields built so far. A structure that occurs in several others is built once.
    made: HashMap<Key<'a>, TypeId>,
}

/// The identity of a field's type.
#[derive(PartialEq, Eq, Hash)]
enum Key<'a> {
    Int(u32, bool),
    Pointer(Option<&'a str>),
    Array(TypeId, u32),
    Struct(&'a str, u32, Vec<(&'a str, u32, TypeId)>),
}

impl<'a> Builder<'a> {
    fn int(&mut self, name: &str, size: u32, signed: bool) -> TypeId {
        let name = self.btf.intern(name);
        // Integers have at most eight bytes.
        let bits = u8::try_from(size.saturating_mul(8)).unwrap_or(0);
        self.btf.add(Type::Int { name, size, bits, offset: 0, signed, boolean: false })
    }

    fn field_type(&mut self, ty: &'a FieldType) -> TypeId {
        let (key, made) = match ty {
            FieldType::Int { size, signed } => (Key::Int(*size, *signed), None),
            FieldType::Pointer(to) => (Key::Pointer(to.as_deref()), None),
            FieldType::Array { elem, len } => {
                let elem = self.field_type(elem);
                (Key::Array(elem, *len), Some(Type::Array { elem, len: *len }))
            }
            FieldType::Struct { name, size, fields } => return self.structure(name, *size, fields),
        };
        if let Some(id) = self.made.get(&key) {
            return *id;
        }
        let id = match (ty, made) {
            (_, Some(made)) => self.btf.add(made),
            (FieldType::Int { size, signed }, None) => self.int(c_name(*size, *signed), *size, *signed),
            (FieldType::Pointer(Some(name)), None) => {
                let name = self.btf.intern(name);
                let to = self.btf.add(Type::Fwd { name, union: false });
                self.btf.add(Type::Ptr { to })
            }
            (FieldType::Pointer(None) | FieldType::Array { .. } | FieldType::Struct { .. }, None) => {
                let to = self.field_type(&INTEGERS[0]);
                self.btf.add(Type::Ptr { to })
            }
        };
        self.made.insert(key, id);
        id
    }

    fn structure(&mut self, name: &'a str, size: u32, fields: &'a [CoreField]) -> TypeId {
        let fields: Vec<_> =
            fields.iter().map(|field| (&*field.name, field.offset, self.field_type(&field.ty))).collect();
        let key = Key::Struct(name, size, fields);
        if let Some(id) = self.made.get(&key) {
            return *id;
        }
        let Key::Struct(_, _, fields) = &key else { return TypeId(0) };
        let member = |&(name, offset, ty): &(&str, u32, TypeId)| Member {
            name: self.btf.intern(name),
            ty,
            bit_offset: offset.saturating_mul(8),
            bit_size: 0,
        };
        let members: Box<[Member]> = fields.iter().map(member).collect();
        let name: StrOffset = self.btf.intern(name);
        let id = self.btf.add(Type::Composite { name, size, union: false, members });
        self.made.insert(key, id);
        id
    }
}

/// clang's name for an integer type on BPF.
fn c_name(size: u32, signed: bool) -> &'static str {
    match (size, signed) {
        (1, false) => "unsigned char",
        (1, true) => "signed char",
        (2, false) => "unsigned short",
        (2, true) => "short",
        (4, false) => "unsigned int",
        (4, true) => "int",
        (_, false) => "unsigned long long",
        (_, true) => "long long",
    }
}
