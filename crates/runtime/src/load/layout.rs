//! Checks that an object was compiled against the host's version of the context.
//!
//! Problem: a plug-in is compiled against a header. If the host moves a field after that, the plug-in's loads are still
//! inside the context, so the verifier accepts them although they read another field. Approach: the verifier's facts
//! name every access to the context. An access that a CO-RE relocation has adapted to the host is right by
//! construction. For every other access the fields at that place are compared: those of the structure in the object's
//! BTF with those of the host's structure, by name, offset, size and kind.
//!
//! Invariant: a verified program that is loaded for a context with [`Context::own_struct`] has no unrelocated access to
//! a field that is another field in the host. For unverified programs see [`check_whole`]. Fields that it does not
//! access may differ.
//!
//! [`Context::own_struct`]: crate::Context::own_struct

use crate::error::{LayoutMismatch, LoadError};
use bpf_analysis::ContextAccess;
use bpf_isa::InsnIdx;
use bpf_object::btf::{Btf, Type, TypeId};
use bpf_object::{Code, CoreField, CoreKind, CoreRelocation, CoreType, FieldType};
use std::collections::HashSet;
use std::fmt;

/// Structures and arrays inside each other, at most. C compilers allow fewer.
const MAX_DEPTH: usize = 64;

/// A number or a pointer in a structure.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Leaf {
    /// Names of members and indices of elements, from the outermost structure on, as C writes them.
    path: String,
    /// Byte offset in the outermost structure.
    offset: u32,
    /// Size in bytes, not 0.
    size: u32,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Unsigned,
    Signed,
    Pointer,
    /// A bit field, a floating-point number or a union: no field of a context is one.
    Other,
}

impl fmt::Display for Leaf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Leaf { path, offset, size, kind } = self;
        match kind {
            Kind::Unsigned => write!(f, "`{path}` (unsigned, {size} bytes) at offset {offset}"),
            Kind::Signed => write!(f, "`{path}` (signed, {size} bytes) at offset {offset}"),
            Kind::Pointer => write!(f, "`{path}` (a pointer) at offset {offset}"),
            Kind::Other => write!(f, "`{path}` (neither an integer nor a pointer) at offset {offset}"),
        }
    }
}

/// [`Context::own_struct`](crate::Context::own_struct).
pub(super) type OwnStruct = fn() -> Option<CoreType>;

/// Compares the fields that the program accesses without relocation with the host's fields at these offsets.
///
/// # Errors
/// [`LoadError::ContextLayout`] for the first access to a field that differs; [`LoadError::ContextUntyped`] for the
/// first access of a program whose object does not describe the structure.
pub(super) fn check(name: &str, host: OwnStruct, code: &Code, accesses: &[ContextAccess]) -> Result<(), LoadError> {
    let relocated: HashSet<InsnIdx> = offsets(code).collect();
    let unrelocated = accesses.iter().filter(|access| !relocated.contains(&access.insn));
    compare(name, host, code, unrelocated.map(|access| (Some(access.insn), access.place, access.seen)))
}

/// Compares the whole structure, for a program whose accesses are unknown. Nothing is compared if the program has a
/// field relocation of the structure: the attribute `preserve_access_index` is one of the structure, so all of the
/// program's accesses to it are then relocated.
///
/// # Errors
/// As [`check`], without an instruction.
pub(super) fn check_whole(name: &str, host: OwnStruct, code: &Code) -> Result<(), LoadError> {
    let Some(CoreType::Struct { name: context, fields, .. }) = host() else { return Ok(()) };
    if let Some((btf, structure)) = structure(code, &context) {
        let mut relocations = code.core_relocations().iter();
        let is_of_it = |r: &CoreRelocation| r.kind == CoreKind::FieldByteOffset && btf.resolve(r.ty) == structure;
        if relocations.any(is_of_it) {
            return Ok(());
        }
    }
    // The first and the last element of an array determine the offsets of all.
    let ends = |field: &CoreField| {
        let size = field.ty.size();
        [(None, field.offset, 1), (None, field.offset + size.saturating_sub(1), 1)]
    };
    compare(name, host, code, fields.iter().flat_map(ends))
}

/// The instructions that hold an offset adapted to the host.
fn offsets(code: &Code) -> impl Iterator<Item = InsnIdx> + '_ {
    let relocations = code.core_relocations().iter();
    relocations.filter(|relocation| relocation.kind == CoreKind::FieldByteOffset).map(|relocation| relocation.insn)
}

/// Compares the fields at each place: an instruction, the offset of the first byte, and how many bytes.
fn compare(
    name: &str,
    host: OwnStruct,
    code: &Code,
    places: impl Iterator<Item = (Option<InsnIdx>, u32, u32)>,
) -> Result<(), LoadError> {
    let mut places = places.peekable();
    // The context's structure is computed only if there is an access to compare.
    let Some(&(first, ..)) = places.peek() else { return Ok(()) };
    let Some(CoreType::Struct { name: context, fields, .. }) = host() else { return Ok(()) };
    let at_line = |insn: Option<InsnIdx>| {
        let line = code.line(insn?)?;
        Some(format!("{}:{}: `{}`", line.file, line.line, line.text.trim()))
    };
    let Some((btf, structure)) = structure(code, &context) else {
        let (program, context) = (name.to_owned(), context.to_string());
        return Err(LoadError::ContextUntyped { program, context, insn: first, line: at_line(first) });
    };
    // Offsets of fields that are known to be the same. Each is compared once: a program may have a million accesses,
    // and the object's structure a million members.
    let mut same = HashSet::new();
    for (insn, start, len) in places {
        let (mut at, end) = (start, start.saturating_add(len));
        while at < end {
            let here = host_leaf(&fields, at);
            let compiled = || compiled_leaf(btf, structure, at);
            let agrees = |here: &Leaf| compiled().is_some_and(|compiled| is_same(&compiled, here));
            if let Some(here) = &here
                && (same.contains(&here.offset) || agrees(here))
            {
                same.insert(here.offset);
                at = here.offset + here.size;
                continue;
            }
            let shown = |leaf: Option<Leaf>| match leaf {
                Some(leaf) => leaf.to_string(),
                None => format!("nothing at offset {at}"),
            };
            let source = Box::new(LayoutMismatch {
                context: context.to_string(),
                insn,
                line: at_line(insn),
                compiled: shown(compiled()),
                host: shown(here),
            });
            return Err(LoadError::ContextLayout { program: name.to_owned(), source });
        }
    }
    Ok(())
}

/// Whether both are one field. A pair of pointers, `body` and `body_end` in C, is `body.start` and `body.end` in a
/// plug-in that is written in Rust.
fn is_same(compiled: &Leaf, host: &Leaf) -> bool {
    let in_rust = || match (compiled.path.strip_suffix(".start"), compiled.path.strip_suffix(".end")) {
        (Some(pair), _) => host.path == pair,
        (None, Some(pair)) => host.path.strip_suffix("_end") == Some(pair),
        (None, None) => false,
    };
    let is_named = compiled.path == host.path || host.kind == Kind::Pointer && in_rust();
    is_named && (compiled.offset, compiled.size, compiled.kind) == (host.offset, host.size, host.kind)
}

/// The structure that the program's argument points to; without one, the object's structure of the context's name.
fn structure<'c>(code: &'c Code, context: &str) -> Option<(&'c Btf, TypeId)> {
    let btf = code.btf()?;
    let is_struct = |id: &TypeId| matches!(btf.get(*id), Type::Composite { union: false, .. });
    let argument = || {
        let Type::Func { proto, .. } = *btf.get(code.functions().first()?.ty?) else { return None };
        let Type::FuncProto { params, .. } = btf.get(proto) else { return None };
        let Type::Ptr { to } = *btf.get(btf.resolve(params.first()?.ty)) else { return None };
        Some(btf.resolve(to)).filter(is_struct)
    };
    let named = || btf.types().map(|(id, _)| id).find(|id| is_struct(id) && btf.type_name(*id) == context);
    argument().or_else(named).map(|id| (btf, id))
}

/// The number or pointer of the object's structure that holds the byte at this offset.
fn compiled_leaf(btf: &Btf, structure: TypeId, at: u32) -> Option<Leaf> {
    let (mut path, mut ty, mut base) = (String::new(), structure, 0u32);
    for _ in 0..MAX_DEPTH {
        ty = btf.resolve(ty);
        let leaf = |path, size, kind| Some(Leaf { path, offset: base, size, kind }).filter(|leaf| leaf.size != 0);
        match btf.get(ty) {
            Type::Composite { union: false, members, .. } => {
                // Members of no size, such as Rust's `PhantomData`, hold no byte.
                let (member, offset, size) = members.iter().find_map(|member| {
                    let (offset, size) = (base.checked_add(member.bit_offset / 8)?, btf.size_of(member.ty)?);
                    (at >= offset && at - offset < size).then_some((member, offset, size))
                })?;
                let name = btf.name(member.name);
                if !path.is_empty() && !name.is_empty() {
                    path.push('.');
                }
                path.push_str(name);
                (ty, base) = (member.ty, offset);
                if member.bit_size != 0 {
                    return Some(Leaf { path, offset, size, kind: Kind::Other });
                }
            }
            Type::Array { elem, .. } => {
                let size = btf.size_of(*elem).filter(|size| *size != 0)?;
                let index = (at - base) / size;
                path.push_str(&format!("[{index}]"));
                (ty, base) = (*elem, base + index * size);
            }
            // The signedness of `char` depends on the compiler.
            Type::Int { name, size: 1, .. } if btf.name(*name) == "char" => return leaf(path, 1, Kind::Unsigned),
            Type::Int { size, signed: true, .. } | Type::Enum { size, signed: true, .. } => {
                return leaf(path, *size, Kind::Signed);
            }
            Type::Int { size, signed: false, .. } | Type::Enum { size, signed: false, .. } => {
                return leaf(path, *size, Kind::Unsigned);
            }
            Type::Ptr { .. } => return leaf(path, 8, Kind::Pointer),
            Type::Composite { union: true, size, .. } | Type::Float { size, .. } => {
                return leaf(path, *size, Kind::Other);
            }
            Type::Void
            | Type::Fwd { .. }
            | Type::Typedef { .. }
            | Type::Qualified { .. }
            | Type::Func { .. }
            | Type::FuncProto { .. }
            | Type::Var { .. }
            | Type::DataSec { .. }
            | Type::DeclTag { .. }
            | Type::TypeTag { .. } => return None,
        }
    }
    None
}

/// The number or pointer of the host's structure that holds the byte at this offset.
fn host_leaf(fields: &[CoreField], at: u32) -> Option<Leaf> {
    let (mut path, mut fields, mut base) = (String::new(), fields, 0);
    'members: loop {
        let holds = |field: &&CoreField| at >= base + field.offset && at - base - field.offset < field.ty.size();
        let field = fields.iter().find(holds)?;
        if !path.is_empty() {
            path.push('.');
        }
        path.push_str(&field.name);
        base += field.offset;
        let mut ty = &field.ty;
        loop {
            let leaf = |path, size, kind| Some(Leaf { path, offset: base, size, kind });
            match ty {
                FieldType::Struct { fields: inner, .. } => {
                    fields = inner;
                    continue 'members;
                }
                FieldType::Array { elem, .. } => {
                    let index = (at - base) / elem.size();
                    path.push_str(&format!("[{index}]"));
                    (ty, base) = (elem, base + index * elem.size());
                }
                FieldType::Int { size, signed } => {
                    return leaf(path, *size, if *signed { Kind::Signed } else { Kind::Unsigned });
                }
                FieldType::Pointer(_) => return leaf(path, 8, Kind::Pointer),
            }
        }
    }
}
