//! Types of a host that its BTF describes: what CO-RE relocations are resolved to, beside the types of contexts.
//!
//! Problem: who feeds programs with recorded structures of a kernel has that kernel's types only as BTF, a hundred
//! thousand of them. Approach: a program asks for few. The types that its relocations name are looked for in one pass,
//! and described ([`CoreType`]) by the fields that the relocations lead to, and no others.
//!
//! Invariant: types of contexts come first: what a program's context is, no file says.

use std::collections::{HashMap, HashSet};

use crate::btf::{Btf, Type, TypeId};
use crate::code::{Code, CoreKind};
use crate::relocate::{CoreField, CoreType, Step, essential, local, shown};

/// Anonymous members inside each other, and members looked at for the fields of one type: what a kernel's types never
/// reach.
const MAX_DEPTH: usize = 16;
const MAX_MEMBERS: usize = 10_000_000;

/// The types of `target` that a program's relocations name and `types` has not.
pub(crate) fn wanted(code: &Code, types: &[CoreType], target: &Btf) -> Vec<CoreType> {
    let Some(btf) = code.btf.as_deref() else { return Vec::new() };
    // By name and whether it is an enumeration: the paths to fields.
    let mut wanted: HashMap<(&str, bool), Vec<Vec<String>>> = HashMap::new();
    // Many relocations may ask for one thing, and each of them for all members of a type.
    let mut seen = HashSet::new();
    for relocation in &code.core {
        let root = btf.resolve(relocation.ty);
        let is_enum = matches!(btf.get(root), Type::Enum { .. });
        let name = essential(btf.type_name(root));
        let known = types.iter().any(|ty| match ty {
            CoreType::Struct { name: n, .. } => n == name && !is_enum,
            CoreType::Enum { name: n, .. } => n == name && is_enum,
        });
        if known || name.is_empty() {
            continue;
        }
        let whole = relocation.kind == CoreKind::TypeMatches;
        let paths = wanted.entry((name, is_enum)).or_default();
        if !seen.insert((root, (!whole).then_some(relocation.access))) {
            continue;
        }
        match (btf.get(root), relocation.kind) {
            (Type::Composite { members, .. }, CoreKind::TypeMatches) => {
                paths.extend(members.iter().map(|m| vec![btf.name(m.name).to_owned()]));
            }
            (Type::Composite { .. }, _) => {
                let steps = local(btf, root, btf.name(relocation.access)).map(|local| local.steps).unwrap_or_default();
                let names = steps.into_iter().map_while(|step| match step {
                    Step::Field(name) => Some(name),
                    Step::Index(_) => None,
                });
                paths.push(names.collect());
            }
            _ => {}
        }
    }
    let mut found = Vec::new();
    if wanted.is_empty() {
        return found;
    }
    for (id, ty) in target.types() {
        let is_enum = match ty {
            Type::Composite { .. } => false,
            Type::Enum { .. } => true,
            _ => continue,
        };
        // The first of a name stands for all.
        let Some(paths) = wanted.remove(&(target.type_name(id), is_enum)) else { continue };
        found.push(describe(target, id, &paths));
    }
    found
}

/// The type by these of its fields, as far as there are such.
fn describe(btf: &Btf, id: TypeId, paths: &[Vec<String>]) -> CoreType {
    let name = btf.type_name(id).to_owned().into();
    match btf.get(id) {
        Type::Enum { values, .. } => {
            let values = values.iter().map(|(name, value)| (btf.name(*name).to_owned().into(), *value));
            CoreType::Enum { name, values: values.collect() }
        }
        _ => {
            let mut fields: Vec<CoreField> = Vec::new();
            let (mut names, mut left) = (HashSet::new(), MAX_MEMBERS);
            for path in paths {
                let field = field(btf, id, path, &mut left);
                fields.extend(field.filter(|field| names.insert(field.name.clone())));
            }
            CoreType::Struct { name, size: btf.size_of(id).unwrap_or(0), fields }
        }
    }
}

/// The field at the end of a path. None for bit fields, which no access of whole bytes reads.
fn field(btf: &Btf, root: TypeId, path: &[String], left: &mut usize) -> Option<CoreField> {
    let (mut ty, mut offset) = (root, 0u32);
    for name in path {
        let (bits, member) = member(btf, ty, name, 0, left)?;
        (ty, offset) = (member, offset.checked_add(bits.is_multiple_of(8).then_some(bits / 8)?)?);
    }
    let (size, count) = match btf.get(btf.resolve(ty)) {
        Type::Array { elem, len } => (btf.size_of(*elem)?, Some(*len)),
        _ => (btf.size_of(ty)?, None),
    };
    let signed = matches!(btf.get(btf.resolve(ty)), Type::Int { signed: true, .. });
    let steps: Vec<Step> = path.iter().cloned().map(Step::Field).collect();
    (!path.is_empty()).then(|| CoreField { name: shown(&steps).into(), offset, size, count, signed })
}

/// The member of this name, also in anonymous ones: its offset in bits, and its type.
fn member(btf: &Btf, of: TypeId, name: &str, depth: usize, left: &mut usize) -> Option<(u32, TypeId)> {
    let Type::Composite { members, .. } = btf.get(btf.resolve(of)) else { return None };
    for m in members {
        *left = left.checked_sub(1)?;
        let own = btf.name(m.name);
        if own == name {
            return (m.bit_size == 0).then_some((m.bit_offset, m.ty));
        }
        if own.is_empty()
            && depth < MAX_DEPTH
            && let Some((bits, ty)) = member(btf, m.ty, name, depth + 1, left)
        {
            return Some((m.bit_offset.checked_add(bits)?, ty));
        }
    }
    None
}
