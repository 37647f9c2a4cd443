//! Compares types of the object with types of the host.
//!
//! Three relations, as in libbpf: [`fields_are_compatible`] for the members on the path of a field relocation,
//! [`types_are_compatible`] for types as a whole, and [`Matcher::types_match`], the strictest, for
//! `bpf_core_type_matches`. All ignore typedefs, qualifiers and type tags. The last two do not support floats, as in
//! libbpf: such types never match.
//!
//! Invariant: a walk is bounded by [`MAX_DEPTH`] and by [`Work`], so that cyclic and deeply nested types terminate.

use std::collections::HashMap;

use super::name::essential_bytes;
use super::{TOO_DEEP, Why, Work};
use crate::btf::{Btf, MAX_DEPTH, Member, StrOffset, Type, TypeId};

/// A type in its BTF.
type Of<'a> = (&'a Btf, TypeId);

/// Whether two types are of one kind; 32-bit and 64-bit enumerations are.
pub(super) fn same_kind(a: &Type, b: &Type) -> bool {
    match (a, b) {
        (Type::Composite { union: a, .. }, Type::Composite { union: b, .. }) => a == b,
        (Type::Qualified { qualifier: a, .. }, Type::Qualified { qualifier: b, .. }) => a == b,
        _ => std::mem::discriminant(a) == std::mem::discriminant(b),
    }
}

/// A name without its flavour.
pub(super) fn essential_of(btf: &Btf, name: StrOffset) -> &[u8] {
    essential_bytes(btf.string_bytes(name))
}

/// Whether a program that was compiled with a field of the first type can use one of the second: any two structures
/// or unions; pointers; integers of any size and sign; floats; enumerations with equal names, or without; arrays of
/// compatible types.
pub(super) fn fields_are_compatible((local, mut a): Of<'_>, (target, mut b): Of<'_>) -> bool {
    for _ in 0..MAX_DEPTH {
        (a, b) = (local.resolve(a), target.resolve(b));
        match (local.get(a), target.get(b)) {
            (Type::Composite { .. }, Type::Composite { .. })
            | (Type::Ptr { .. }, Type::Ptr { .. })
            | (Type::Float { .. }, Type::Float { .. }) => return true,
            (Type::Int { offset: x, .. }, Type::Int { offset: y, .. }) => return *x == 0 && *y == 0,
            (Type::Enum { name: x, .. }, Type::Enum { name: y, .. })
            | (Type::Fwd { name: x, .. }, Type::Fwd { name: y, .. }) => {
                let (x, y) = (essential_of(local, *x), essential_of(target, *y));
                return x.is_empty() || y.is_empty() || x == y;
            }
            (Type::Array { elem: x, .. }, Type::Array { elem: y, .. }) => (a, b) = (*x, *y),
            _ => return false,
        }
    }
    false
}

/// Whether two types of one name are equal as a whole: their kinds, those of the targets of pointers and elements of
/// arrays, and those of the parameters and results of functions. Members are not compared.
pub(super) fn types_are_compatible(work: &mut Work, a: Of<'_>, b: Of<'_>) -> Result<bool, Why> {
    compatible(work, a, b, MAX_DEPTH)
}

fn compatible(work: &mut Work, (local, mut a): Of<'_>, (target, mut b): Of<'_>, level: usize) -> Result<bool, Why> {
    for _ in 0..MAX_DEPTH {
        work.step(0)?;
        (a, b) = (local.resolve(a), target.resolve(b));
        match (local.get(a), target.get(b)) {
            (Type::Int { offset: x, .. }, Type::Int { offset: y, .. }) => return Ok(*x == 0 && *y == 0),
            (Type::Void, Type::Void)
            | (Type::Composite { .. }, Type::Composite { .. })
            | (Type::Enum { .. }, Type::Enum { .. })
            | (Type::Fwd { .. }, Type::Fwd { .. }) => return Ok(same_kind(local.get(a), target.get(b))),
            (Type::Ptr { to: x }, Type::Ptr { to: y }) | (Type::Array { elem: x, .. }, Type::Array { elem: y, .. }) => {
                (a, b) = (*x, *y)
            }
            (Type::FuncProto { ret: x, params: of_a }, Type::FuncProto { ret: y, params: of_b }) => {
                if of_a.len() != of_b.len() {
                    return Ok(false);
                }
                let level = level.checked_sub(1).ok_or(TOO_DEEP)?;
                for (x, y) in of_a.iter().zip(of_b) {
                    if !compatible(work, (local, x.ty), (target, y.ty), level)? {
                        return Ok(false);
                    }
                }
                (a, b) = (*x, *y);
            }
            _ => return Ok(false),
        }
    }
    Err(TOO_DEEP)
}

/// A type of the object, a type of a host, and whether a pointer leads to them.
type Pair = (*const Btf, TypeId, TypeId, bool);

/// Compares types by all their contents, each pair once.
#[derive(Default)]
pub(super) struct Matcher {
    /// `None` while the pair is being compared.
    known: HashMap<Pair, Option<bool>>,
}

impl Matcher {
    /// Whether the object's type is a part of the host's: each member and enumerator exists there by name, with equal
    /// size and sign; behind pointers, structures are compared by name and kind.
    pub(super) fn types_match(
        &mut self,
        work: &mut Work,
        local: &Btf,
        a: TypeId,
        target: &Btf,
        b: TypeId,
    ) -> Result<bool, Why> {
        self.compare(work, (local, a), (target, b), false, MAX_DEPTH)
    }

    fn compare(&mut self, work: &mut Work, a: Of<'_>, b: Of<'_>, pointer: bool, level: usize) -> Result<bool, Why> {
        let key = (std::ptr::from_ref(b.0), a.1, b.1, pointer);
        if let Some(known) = self.known.get(&key) {
            return known.ok_or(TOO_DEEP);
        }
        self.known.insert(key, None);
        let result = self.compare_new(work, a, b, pointer, level)?;
        self.known.insert(key, Some(result));
        Ok(result)
    }

    fn compare_new(
        &mut self,
        work: &mut Work,
        (local, mut a): Of<'_>,
        (target, mut b): Of<'_>,
        mut pointer: bool,
        level: usize,
    ) -> Result<bool, Why> {
        let level = level.checked_sub(1).ok_or(TOO_DEEP)?;
        for _ in 0..MAX_DEPTH {
            work.step(0)?;
            (a, b) = (local.resolve(a), target.resolve(b));
            let names = (essential_of(local, local.name_offset(a)), essential_of(target, target.name_offset(b)));
            let (x, y) = (local.get(a), target.get(b));
            let is_int = matches!((x, y), (Type::Int { .. }, Type::Int { .. }));
            if names.0 != names.1 && !(is_int && words(names.0) == words(names.1)) {
                return Ok(false);
            }
            match (x, y) {
                (Type::Void, Type::Void) => return Ok(true),
                (Type::Int { size: x, signed: s, .. }, Type::Int { size: y, signed: t, .. }) => {
                    return Ok(x == y && s == t);
                }
                (Type::Fwd { union: x, .. }, Type::Fwd { union: y, .. }) => return Ok(x == y),
                (Type::Fwd { union: x, .. }, Type::Composite { union: y, .. })
                | (Type::Composite { union: x, .. }, Type::Fwd { union: y, .. }) => return Ok(pointer && x == y),
                (Type::Enum { size: x, values: v, .. }, Type::Enum { size: y, values: w, .. }) => {
                    return Ok(x == y && enumerators_match(work, (local, v), (target, w))?);
                }
                (Type::Composite { union: x, members: m, .. }, Type::Composite { union: y, members: n, .. }) => {
                    if x != y || pointer {
                        return Ok(x == y);
                    }
                    return self.members_match(work, (local, m), (target, n), level);
                }
                (Type::Ptr { to: x }, Type::Ptr { to: y }) => (a, b, pointer) = (*x, *y, true),
                (Type::Array { elem: x, len: l }, Type::Array { elem: y, len: m }) => {
                    if l != m {
                        return Ok(false);
                    }
                    (a, b) = (*x, *y);
                }
                (Type::FuncProto { ret: x, params: of_a }, Type::FuncProto { ret: y, params: of_b }) => {
                    if of_a.len() != of_b.len() {
                        return Ok(false);
                    }
                    for (x, y) in of_a.iter().zip(of_b) {
                        if !self.compare(work, (local, x.ty), (target, y.ty), pointer, level)? {
                            return Ok(false);
                        }
                    }
                    (a, b) = (*x, *y);
                }
                _ => return Ok(false),
            }
        }
        Err(TOO_DEEP)
    }

    fn members_match(
        &mut self,
        work: &mut Work,
        (local, members): (&Btf, &[Member]),
        (target, theirs): (&Btf, &[Member]),
        level: usize,
    ) -> Result<bool, Why> {
        if members.len() > theirs.len() {
            return Ok(false);
        }
        let mut by_name: HashMap<&[u8], Vec<TypeId>> = HashMap::new();
        for member in theirs {
            let name = essential_of(target, member.name);
            work.step(name.len())?;
            by_name.entry(name).or_default().push(member.ty);
        }
        for member in members {
            let name = essential_of(local, member.name);
            work.step(name.len())?;
            let mut matched = false;
            for ty in by_name.get(name).into_iter().flatten() {
                work.step(0)?;
                matched = matched || self.compare(work, (local, member.ty), (target, *ty), false, level)?;
            }
            if !matched {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

type Enumerators<'a> = (&'a Btf, &'a [(StrOffset, i64)]);

/// Whether each enumerator of the first type exists in the second, by name.
fn enumerators_match(work: &mut Work, a: Enumerators<'_>, b: Enumerators<'_>) -> Result<bool, Why> {
    let mut names = std::collections::HashSet::new();
    for (name, _) in b.1 {
        let name = essential_of(b.0, *name);
        work.step(name.len())?;
        names.insert(name);
    }
    for (name, _) in a.1 {
        let name = essential_of(a.0, *name);
        work.step(name.len())?;
        if !names.contains(name) {
            return Ok(false);
        }
    }
    Ok(a.1.len() <= b.1.len())
}

/// The words of an integer's name except `int`, in order: clang writes `unsigned long`, GCC `long unsigned int`.
fn words(name: &[u8]) -> Vec<&[u8]> {
    let mut words: Vec<&[u8]> = name.split(|byte| *byte == b' ').filter(|word| *word != b"int").collect();
    words.sort_unstable();
    words
}
