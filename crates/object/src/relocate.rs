//! CO-RE: adapting instructions to the types of the host.
//!
//! Problem: a program compiled with `preserve_access_index` says "the offset of `data_end` in `struct xdp_md`" and
//! leaves the number to the loader. Approach: each relocation is resolved by *names*, from the object's BTF to a plain
//! description of the types that programs meet here ([`CoreType`]), and the instruction is patched with what was found.
//! As in libbpf, what does not exist is no error by itself, because programs ask first (`bpf_core_field_exists`) and
//! the verifier never walks the refused branch: the instruction becomes a call of a function that does not exist
//! ([`UNRESOLVED_CALL`]), and the reason is kept for the error of a program that reaches that call.
//!
//! Types that are the same everywhere (headers of packets) are their own targets ([`wire`]).
//!
//! Invariants: the number of slots does not change; every relocation is applied or listed in
//! [`LinkedCode::unresolved`].
//!
//! Source: meaning of kinds and access strings from the kernel's Documentation/bpf/btf.rst and llvm_reloc.rst; that
//! flavours (`xdp_md___old`) mean the type before the three underscores, from libbpf's documentation.

use crate::btf::{Btf, Type, TypeId};
use crate::code::{Code, CoreKind, CoreRelocation};
use crate::error::LinkProblem;
use crate::wire;
use bpf_isa::{Callee, Imm64, Insn, InsnIdx, Size, Src};
use std::borrow::Cow;
use std::collections::BTreeMap;

/// The helper that an instruction calls whose CO-RE relocation is unresolved. No linker may offer it.
pub const UNRESOLVED_CALL: u32 = (1 << 29) - 1;

/// A type that programs meet on this host.
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
        /// Names and values.
        values: Vec<(Cow<'static, str>, i64)>,
    },
}

/// A field of a [`CoreType::Struct`]: a number, a pointer, an array of numbers, or a struct in it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CoreField {
    /// Its name; of a field of a struct in the struct, the path to it: `address.port`.
    pub name: Cow<'static, str>,
    /// Byte offset.
    pub offset: u32,
    /// Size in bytes; of an element, if it is an array.
    pub size: u32,
    /// Number of elements, if it is an array.
    pub count: Option<u32>,
    /// Whether it is a signed number.
    pub signed: bool,
}

/// An instruction whose CO-RE relocation could not be resolved. It calls [`UNRESOLVED_CALL`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unresolved {
    /// The instruction.
    pub insn: InsnIdx,
    /// Why.
    pub problem: LinkProblem,
}

/// Why there is no value.
type Why = &'static str;

const NO_TYPE: Why = "this host has no such type";
const NO_FIELD: Why = "the type has no such field here";
const NO_VALUE: Why = "the enumeration has no such value here";
const MALFORMED: Why = "the access string does not fit the type";

/// Steps from a type to what is inside it (Linux: BPF_CORE_SPEC_MAX_LEN).
const MAX_STEPS: usize = 64;
/// Bytes of the names on the way: no type that a host describes has so long a path, and a relocation that takes 16
/// bytes of its object could have many names of thousands.
const MAX_PATH: usize = 1024;
/// Bytes of a name or a path in a message: a relocation takes 16 bytes of its object, and its names may take thousands.
const SHOWN: usize = 160;

/// A name or a path, as long as a message needs it.
fn short(name: &str) -> String {
    match name.char_indices().map(|(at, _)| at).find(|at| *at >= SHOWN) {
        Some(end) => format!("{}…", &name[..end]),
        None => name.to_owned(),
    }
}

/// The result of a relocation.
struct Found {
    value: u64,
    /// The size that an access of the field must have, where it differs from the one in the object.
    resize: Option<(u32, u32)>,
}

impl Found {
    fn value(value: u64) -> Found {
        Found { value, resize: None }
    }
}

/// Applies all relocations of a program, and returns those that could not be resolved.
pub(crate) fn apply(code: &mut Code, types: &[CoreType]) -> Vec<Unresolved> {
    let Some(btf) = code.btf.clone() else { return Vec::new() };
    let (mut unresolved, mut matching) = (Vec::new(), BTreeMap::new());
    for relocation in &code.core {
        if is_own_target(&btf, relocation, types) {
            continue;
        }
        let (path, found) = resolve(&btf, relocation, types, &mut matching);
        let at = relocation.insn.index();
        if let Err(why) = found.and_then(|found| patch(&mut code.insns, at, &found)) {
            // One is enough, however many there are of an instruction.
            if unresolved.last().is_none_or(|last: &Unresolved| last.insn != relocation.insn) {
                let problem = LinkProblem::Core {
                    kind: relocation.kind.name(),
                    type_name: short(btf.type_name(relocation.ty)),
                    field: short(&path),
                    why,
                };
                unresolved.push(Unresolved { insn: relocation.insn, problem });
            }
            // Both slots of a wide instruction.
            let slots = code.insns.get(at).map_or(1, |insn| insn.slots() as usize);
            for slot in code.insns.iter_mut().skip(at).take(slots) {
                *slot = Insn::Call(Callee::Helper(UNRESOLVED_CALL));
            }
        }
    }
    unresolved
}

/// Whether the object's own type is what is meant: then the compiler's numbers stand.
fn is_own_target(btf: &Btf, relocation: &CoreRelocation, types: &[CoreType]) -> bool {
    let root = btf.resolve(relocation.ty);
    let Type::Composite { .. } = btf.get(root) else { return false };
    let name = essential(btf.type_name(root));
    let here = |ty: &CoreType| matches!(ty, CoreType::Struct { name: n, .. } if n == name);
    relocation.kind != CoreKind::TypeIdTarget && wire::is_fixed(name) && !types.iter().any(here)
}

/// The name without its flavour: `xdp_md` of `xdp_md___old`.
pub(crate) fn essential(name: &str) -> &str {
    match name.rfind("___") {
        Some(at) if at > 0 => &name[..at],
        Some(_) | None => name,
    }
}

/// The field or enumerator that is meant, for people, and the relocation's result.
/// `matching`: what was found before of whole types, which many relocations may ask of one.
fn resolve(
    btf: &Btf,
    relocation: &CoreRelocation,
    types: &[CoreType],
    matching: &mut BTreeMap<TypeId, bool>,
) -> (String, Result<Found, Why>) {
    let root = btf.resolve(relocation.ty);
    let is_enum = matches!(btf.get(root), Type::Enum { .. });
    let name = essential(btf.type_name(root));
    let target = types.iter().find(|ty| match ty {
        CoreType::Struct { name: n, .. } => n == name && matches!(btf.get(root), Type::Composite { .. }),
        CoreType::Enum { name: n, .. } => n == name && is_enum,
    });
    match relocation.kind {
        CoreKind::FieldByteOffset
        | CoreKind::FieldByteSize
        | CoreKind::FieldExists
        | CoreKind::FieldSigned
        | CoreKind::FieldLshift
        | CoreKind::FieldRshift => field(btf, root, relocation, target),
        CoreKind::TypeIdLocal => (String::new(), Ok(Found::value(relocation.ty.0.into()))),
        CoreKind::TypeIdTarget => (String::new(), Err("types have no numbers here")),
        CoreKind::TypeExists => (String::new(), Ok(Found::value(target.is_some().into()))),
        CoreKind::TypeMatches => {
            let matches =
                *matching.entry(root).or_insert_with(|| target.is_some_and(|target| matches(btf, root, target)));
            (String::new(), Ok(Found::value(matches.into())))
        }
        CoreKind::TypeSize => {
            let size = match target {
                Some(CoreType::Struct { size, .. }) => Ok(Found::value((*size).into())),
                // In C an enumeration is an `int`, here as there.
                Some(CoreType::Enum { .. }) => Ok(Found::value(4)),
                None => Err(NO_TYPE),
            };
            (String::new(), size)
        }
        CoreKind::EnumvalExists | CoreKind::EnumvalValue => enumerator(btf, root, relocation, target),
    }
}

fn enumerator(
    btf: &Btf,
    root: TypeId,
    relocation: &CoreRelocation,
    target: Option<&CoreType>,
) -> (String, Result<Found, Why>) {
    let Type::Enum { values, .. } = btf.get(root) else { return (String::new(), Err(MALFORMED)) };
    let Some((name, _)) = btf.name(relocation.access).parse().ok().and_then(|i: usize| values.get(i)) else {
        return (String::new(), Err(MALFORMED));
    };
    let name = essential(btf.name(*name));
    let value = match target {
        Some(CoreType::Enum { values, .. }) => values.iter().find(|v| v.0 == name).map(|v| v.1),
        Some(CoreType::Struct { .. }) | None => None,
    };
    let found = match (relocation.kind, value) {
        (CoreKind::EnumvalExists, value) => Ok(Found::value(value.is_some().into())),
        (_, Some(value)) => Ok(Found::value(value as u64)),
        (_, None) if target.is_none() => Err(NO_TYPE),
        (_, None) => Err(NO_VALUE),
    };
    (name.to_owned(), found)
}

/// Where an access string leads in the object's types.
pub(crate) struct Local {
    /// Field names and array indices from the root, those of anonymous members left out.
    pub(crate) steps: Vec<Step>,
    /// What is there.
    ty: TypeId,
}

#[derive(PartialEq, Eq, Clone, Debug)]
pub(crate) enum Step {
    Field(String),
    Index(u32),
}

pub(crate) fn local(btf: &Btf, root: TypeId, access: &str) -> Option<Local> {
    let mut indices = access.split(':').map(|i| i.parse::<u32>().ok());
    // The first is an index of the root itself, as in `ctx[0]`.
    let mut steps = match indices.next()?? {
        0 => Vec::new(),
        n => vec![Step::Index(n)],
    };
    let (mut ty, mut path) = (root, 0);
    for (depth, index) in indices.enumerate() {
        let index = index.filter(|_| depth < MAX_STEPS)?;
        ty = match btf.get(btf.resolve(ty)) {
            Type::Composite { members, .. } => {
                let member = members.get(index as usize)?;
                let name = btf.name(member.name);
                path += name.len();
                if path > MAX_PATH {
                    return None;
                }
                if !name.is_empty() {
                    steps.push(Step::Field(name.to_owned()));
                }
                member.ty
            }
            Type::Array { elem, .. } => {
                steps.push(Step::Index(index));
                *elem
            }
            _ => return None,
        };
    }
    Some(Local { steps, ty })
}

pub(crate) fn shown(steps: &[Step]) -> String {
    let mut out = String::new();
    for step in steps {
        match step {
            Step::Field(name) if out.is_empty() => out.push_str(name),
            Step::Field(name) => out.push_str(&format!(".{name}")),
            Step::Index(i) => out.push_str(&format!("[{i}]")),
        }
    }
    out
}

/// Offset, size and signedness of what these steps lead to.
fn at(fields: &[CoreField], steps: &[Step]) -> Option<(u32, u32, bool)> {
    let named = steps.iter().take_while(|step| matches!(step, Step::Field(_))).count();
    let (path, rest) = steps.split_at(named);
    let path = shown(path);
    let field = fields.iter().find(|field| field.name == path)?;
    match (rest, field.count) {
        ([], count) => Some((field.offset, field.size.checked_mul(count.unwrap_or(1))?, field.signed)),
        ([Step::Index(i)], Some(count)) if *i < count => {
            Some((field.offset + field.size.checked_mul(*i)?, field.size, field.signed))
        }
        _ => None,
    }
}

fn field(
    btf: &Btf,
    root: TypeId,
    relocation: &CoreRelocation,
    target: Option<&CoreType>,
) -> (String, Result<Found, Why>) {
    let access = btf.name(relocation.access);
    let Some(local) = local(btf, root, access) else {
        return (access.to_owned(), Err(MALFORMED));
    };
    let there = match target {
        Some(CoreType::Struct { fields, .. }) => at(fields, &local.steps),
        Some(CoreType::Enum { .. }) | None => None,
    };
    let found = match (relocation.kind, there) {
        (CoreKind::FieldExists, there) => Ok(Found::value(there.is_some().into())),
        (_, None) if target.is_none() => Err(NO_TYPE),
        (_, None) => Err(NO_FIELD),
        (CoreKind::FieldByteSize, Some((_, size, _))) => Ok(Found::value(size.into())),
        (CoreKind::FieldSigned, Some((.., signed))) => Ok(Found::value(signed.into())),
        // Shifts that extract the field from a u64 loaded at its offset; fields here are whole bytes, little-endian.
        (CoreKind::FieldLshift | CoreKind::FieldRshift, Some((_, size, _))) => match size {
            1..=8 => Ok(Found::value(u64::from(64 - 8 * size))),
            _ => Err("the field is not a number here"),
        },
        (_, Some((offset, size, _))) => {
            let resize = btf.size_of(local.ty).filter(|&was| was != size).map(|was| (was, size));
            Ok(Found { value: offset.into(), resize })
        }
    };
    (shown(&local.steps), found)
}

/// Whether every field or enumerator of the object's type is there, with the same size.
fn matches(btf: &Btf, root: TypeId, target: &CoreType) -> bool {
    match (btf.get(root), target) {
        (Type::Composite { members, union: false, .. }, CoreType::Struct { fields, .. }) => members.iter().all(|m| {
            let steps = [Step::Field(btf.name(m.name).to_owned())];
            at(fields, &steps).is_some_and(|(_, size, _)| btf.size_of(m.ty) == Some(size))
        }),
        (Type::Enum { values, .. }, CoreType::Enum { values: there, .. }) => {
            values.iter().all(|(name, _)| there.iter().any(|v| v.0 == btf.name(*name)))
        }
        _ => false,
    }
}

/// Puts the value where the instruction has a number: the immediate, or the offset of an access.
fn patch(insns: &mut [Insn], at: usize, found: &Found) -> Result<(), Why> {
    const TOO_LARGE: Why = "the value does not fit the instruction";
    let as_off = i16::try_from(found.value).map_err(|_| TOO_LARGE);
    match insns.get_mut(at) {
        Some(Insn::Mov { src: Src::Imm(imm), .. } | Insn::Alu { src: Src::Imm(imm), .. }) => {
            // Enumerators may be negative.
            *imm = i32::try_from(found.value as i64).map_err(|_| TOO_LARGE)?;
        }
        Some(Insn::LoadImm64 { imm: imm @ Imm64::Const(_), .. }) => *imm = Imm64::Const(found.value),
        Some(Insn::Load { size, sign, off, .. }) => {
            (*size, *off) = (resized(*size, found)?, as_off?);
            *sign &= *size != Size::DW;
        }
        Some(Insn::Store { size, off, .. }) => (*size, *off) = (resized(*size, found)?, as_off?),
        Some(Insn::Atomic { off, .. } | Insn::LoadAcquire { off, .. } | Insn::StoreRelease { off, .. }) => {
            *off = as_off?
        }
        Some(_) | None => return Err("the instruction has no place for a value"),
    }
    Ok(())
}

/// The size of an access: where it was of the whole field, it still is.
fn resized(size: Size, found: &Found) -> Result<Size, Why> {
    match found.resize {
        Some((was, is)) if was == size.bytes() => [Size::B, Size::H, Size::W, Size::DW]
            .into_iter()
            .find(|s| s.bytes() == is)
            .ok_or("the field has a size that no access has"),
        Some(_) | None => Ok(size),
    }
}
