//! Objects that programs own: finds the fields of an object file's types that hold them.
//!
//! Problem: only BTF says that a map's value holds, for example, a list of flows that are linked through one of their
//! fields: by the names of the kernel's types and by tags (`btf_decl_tag("contains:flow:node")`,
//! `btf_type_tag("kptr")`, `btf_type_tag("percpu_kptr")`). Approach: a value, or a type of which a program makes
//! objects, is described together with the types that it leads to ([`OwnedType::closure`]), so that two descriptions
//! are equal exactly if the types are, whatever else their files define.
//!
//! Constructs that the kernel refuses in such types (a list of objects without such a node, a pointer to an undefined
//! type, a second lock) are treated as plain bytes here, and functions on objects do not accept them. All of it is
//! hostile input, so the work per type is bounded.
//!
//! Source: `kernel/bpf/btf.c` (`btf_parse_fields`, Linux 6.18) for the fields and their places.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;

use bpf_uapi::{MAX_INSTANCE, MAX_OBJECT, OwnedField, OwnedKind, OwnedType};

use crate::btf::{Btf, Type, TypeId};
use crate::map::MapDecl;

/// Largest number of special fields of one type (Linux: `BTF_FIELDS_MAX`).
const MAX_FIELDS: usize = 11;
/// Largest nesting of structures and arrays.
const MAX_DEPTH: usize = 8;
/// Largest nesting of structures in a per-CPU object (Linux: `__btf_type_is_scalar_struct`).
const MAX_SCALAR_DEPTH: usize = 3;
/// Largest number of members inspected for one type, or one variable.
const MAX_MEMBERS: usize = 1024;
/// Largest number of types that one leads to, including itself.
const MAX_TYPES: usize = 64;
/// Largest number of descriptions for one object file, counted with repetition: a number in a program may name each
/// of its types, each leads to others, and every description is kept.
const MAX_DESCRIBED: usize = 1 << 17;

/// The special fields found in a type, with BTF's ids.
#[derive(Debug, Default)]
struct Found {
    fields: Vec<(u32, Field)>,
    /// Whether there is a timer, which objects cannot have here.
    others: bool,
    /// The offsets of locks, and whether each is a resilient one.
    locks: Vec<(u32, bool)>,
    members: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Field {
    Kptr { to: TypeId, per_cpu: bool },
    List { of: TypeId, node: u32 },
    Tree { of: TypeId, node: u32 },
    ListNode,
    TreeNode,
    Refcount,
    Lock { resilient: bool },
}

/// The owning types of an object file.
#[derive(Debug)]
pub struct OwnedTypes<'b> {
    btf: &'b Btf,
    /// `contains:…` by declaration and member.
    contains: HashMap<(TypeId, i32), &'b str>,
    /// Structures by name: the first with each name.
    structs: HashMap<&'b str, TypeId>,
    /// The fields found in types of objects so far, because many types lead to one.
    known: RefCell<HashMap<TypeId, Option<Fields>>>,
    /// Number of descriptions made.
    described: Cell<usize>,
}

/// The fields of a type, by offset.
type Fields = Vec<(u32, Field)>;

impl<'b> OwnedTypes<'b> {
    /// Collects tags and names.
    pub fn new(btf: &'b Btf) -> OwnedTypes<'b> {
        let (mut contains, mut structs) = (HashMap::new(), HashMap::new());
        for (id, ty) in btf.types() {
            match *ty {
                Type::DeclTag { name, to, component } => {
                    if let Some(tag) = btf.name(name).strip_prefix("contains:") {
                        contains.entry((to, component)).or_insert(tag);
                    }
                }
                Type::Composite { name, union: false, .. } => {
                    structs.entry(btf.name(name)).or_insert(id);
                }
                _ => {}
            }
        }
        OwnedTypes { btf, contains, structs, known: RefCell::default(), described: Cell::new(0) }
    }

    /// The types that a map's values own: the value, followed by the types that it leads to. Empty if the value owns
    /// nothing.
    pub fn value(&self, map: &MapDecl) -> Vec<OwnedType> {
        let types = self.describe((TypeId(0), false), map.value_size, &self.found_in(map).fields).unwrap_or_default();
        if types.first().is_some_and(|value| value.fields.is_empty()) { Vec::new() } else { types }
    }

    /// The offset of the lock in a map's value, also in its variables, and whether it is a `bpf_res_spin_lock`.
    /// `None` also if there are several.
    pub fn lock(&self, map: &MapDecl) -> Option<(u32, bool)> {
        match *self.found_in(map).locks {
            [lock] => Some(lock),
            _ => None,
        }
    }

    fn found_in(&self, map: &MapDecl) -> Found {
        let mut found = Found::default();
        match (&map.data, map.value_type) {
            (Some(data), _) => {
                for variable in &data.variables {
                    let Some(id) = variable.ty else { continue };
                    let Type::Var { ty, .. } = *self.btf.get(id) else { continue };
                    found.members = 0;
                    self.look(ty, (id, -1), variable.offset, 0, &mut found);
                }
            }
            (None, Some(value)) => self.look(value, (TypeId(0), -1), 0, 0, &mut found),
            (None, None) => {}
        }
        found
    }

    /// The type with this number, followed by the types that it leads to, if a program may make objects of it. `None`
    /// if it may not: the type is too large, has a timer or several locks, has a list or a tree and no lock, or its
    /// objects could own each other in a cycle. (Linux: a type that has a node and a root has no root of types that
    /// have one, `btf_check_and_fixup_fields`.)
    pub fn object(&self, number: u32) -> Option<Vec<OwnedType>> {
        let id = TypeId(number);
        let found = self.object_fields(id)?;
        let size = self.btf.size_of(id)?;
        let types = self.describe((id, false), size, &found)?;
        let shared = types.iter().flat_map(|ty| &ty.fields).any(|field| field.kind == OwnedKind::Refcount);
        let circle = types.iter().flat_map(|ty| &ty.fields).any(|field| field.kind.leads_to() == Some(0));
        let has = |ty: &OwnedType, of: fn(OwnedKind) -> bool| ty.fields.iter().any(|field| of(field.kind));
        let is_node = |kind| matches!(kind, OwnedKind::ListNode | OwnedKind::TreeNode);
        let deep = types.iter().filter(|ty| has(ty, is_node)).flat_map(|ty| &ty.fields).any(|field| {
            let to = field.kind.leads_to().and_then(|to| types.get(to as usize));
            field.kind.is_root() && to.is_some_and(|to| has(to, OwnedKind::is_root))
        });
        let endless = deep || (shared && circle);
        (!endless).then_some(types)
    }

    /// The type with this number, if a program may make objects of it with an instance for each CPU: a structure of
    /// numbers only, not too large.
    pub fn instances(&self, number: u32) -> Option<Vec<OwnedType>> {
        let id = TypeId(number);
        let size = self.instance_size(id)?;
        self.describe((id, true), size, &[])
    }

    /// Bytes of an instance, if this type may have instances (Linux: the types that `bpf_percpu_obj_new` accepts).
    fn instance_size(&self, id: TypeId) -> Option<u32> {
        let size = self.btf.size_of(id).filter(|size| (1..=MAX_INSTANCE).contains(size))?;
        let fields = self.object_fields(id)?;
        let mut members = 0;
        (fields.is_empty() && self.is_of_numbers(id, 0, &mut members)).then_some(size)
    }

    /// Whether the structure contains only numbers, arrays of numbers, and such structures.
    fn is_of_numbers(&self, id: TypeId, depth: usize, seen: &mut usize) -> bool {
        let Type::Composite { members, .. } = self.btf.get(id) else { return false };
        members.iter().all(|member| {
            *seen += 1;
            let id = self.btf.resolve(member.ty);
            match *self.btf.get(id) {
                _ if *seen > MAX_MEMBERS => false,
                Type::Composite { .. } => depth < MAX_SCALAR_DEPTH && self.is_of_numbers(id, depth + 1, seen),
                Type::Array { elem, len } => len > 0 && self.is_number(self.btf.resolve(elem)),
                _ => self.is_number(id),
            }
        })
    }

    fn is_number(&self, id: TypeId) -> bool {
        matches!(self.btf.get(id), Type::Int { .. } | Type::Enum { .. })
    }

    /// The special fields of a type, if objects may have them.
    fn object_fields(&self, id: TypeId) -> Option<Fields> {
        if let Some(known) = self.known.borrow().get(&id) {
            return known.clone();
        }
        let fields = self.find_object_fields(id);
        self.known.borrow_mut().insert(id, fields.clone());
        fields
    }

    fn find_object_fields(&self, id: TypeId) -> Option<Fields> {
        let is_struct = matches!(self.btf.get(id), Type::Composite { union: false, .. });
        if !is_struct || self.btf.size_of(id).is_none_or(|size| size == 0 || size > MAX_OBJECT) {
            return None;
        }
        let mut found = Found::default();
        self.look(id, (TypeId(0), -1), 0, 0, &mut found);
        let roots = found.fields.iter().any(|(_, field)| matches!(field, Field::List { .. } | Field::Tree { .. }));
        match *found.locks {
            [] if !roots => {}
            [(at, resilient)] => found.fields.push((at, Field::Lock { resilient })),
            _ => return None,
        }
        (!found.others && found.members <= MAX_MEMBERS).then_some(found.fields)
    }

    /// Describes a type with these fields, and all types that it leads to; `None` if that is not sound, or too much.
    /// `root`: its number (0 if it has none), and whether its objects have an instance for each CPU.
    fn describe(&self, root: (TypeId, bool), size: u32, found: &[(u32, Field)]) -> Option<Vec<OwnedType>> {
        let mut ids = vec![root];
        let mut types = vec![self.with_fields(root, size, found, &mut ids)?];
        while let Some(&id) = ids.get(types.len()) {
            let found = if id.1 { Fields::new() } else { self.object_fields(id.0)? };
            let ty = self.with_fields(id, self.btf.size_of(id.0)?, &found, &mut ids)?;
            types.push(ty);
        }
        types.iter().all(|ty| ty.is_sound(&types)).then(|| OwnedType::closure(&types, 0))
    }

    fn with_fields(
        &self,
        (id, per_cpu): (TypeId, bool),
        size: u32,
        found: &[(u32, Field)],
        ids: &mut Vec<(TypeId, bool)>,
    ) -> Option<OwnedType> {
        let described = self.described.get() + 1;
        if described > MAX_DESCRIBED {
            return None;
        }
        self.described.set(described);
        let mut fields = Vec::new();
        for &(offset, field) in found {
            let mut to = |id: TypeId, per_cpu: bool| {
                match per_cpu {
                    true => self.instance_size(id).map(drop),
                    false => self.object_fields(id).map(drop),
                }?;
                let at = ids.iter().position(|known| *known == (id, per_cpu)).unwrap_or_else(|| {
                    ids.push((id, per_cpu));
                    ids.len() - 1
                });
                u32::try_from(at).ok()
            };
            let kind = match field {
                Field::Kptr { to: id, per_cpu } => to(id, per_cpu).map(|to| OwnedKind::Kptr { to }),
                Field::List { of, node } => to(of, false).map(|of| OwnedKind::ListHead { of, node }),
                Field::Tree { of, node } => to(of, false).map(|of| OwnedKind::TreeRoot { of, node }),
                Field::ListNode => Some(OwnedKind::ListNode),
                Field::TreeNode => Some(OwnedKind::TreeNode),
                Field::Refcount => Some(OwnedKind::Refcount),
                Field::Lock { resilient } => Some(OwnedKind::Lock { resilient }),
            };
            // A field that leads to no object is left out.
            fields.extend(kind.map(|kind| OwnedField { offset, kind }));
        }
        fields.sort_unstable_by_key(|field| field.offset);
        let name = if id == TypeId(0) { "" } else { self.btf.type_name(id) }.to_owned();
        (fields.len() <= MAX_FIELDS && ids.len() <= MAX_TYPES).then_some(OwnedType { name, size, fields, per_cpu })
    }

    /// Searches for special fields in the data of type `ty` at `base`, with the tags of declaration `declared`.
    fn look(&self, ty: TypeId, declared: (TypeId, i32), base: u32, depth: usize, found: &mut Found) {
        found.members += 1;
        if depth > MAX_DEPTH || found.members > MAX_MEMBERS || found.fields.len() > MAX_FIELDS {
            return;
        }
        let id = self.btf.resolve(ty);
        match self.btf.get(id) {
            Type::Ptr { to } => {
                if let Some((to, per_cpu)) = self.kptr(*to) {
                    found.fields.push((base, Field::Kptr { to, per_cpu }));
                }
            }
            Type::Array { elem, len } => {
                let size = self.btf.size_of(*elem).unwrap_or(0);
                for i in 0..*len {
                    let before = found.fields.len() + found.locks.len();
                    let Some(at) = size.checked_mul(i).and_then(|at| base.checked_add(at)) else { return };
                    self.look(*elem, declared, at, depth + 1, found);
                    // If the first element has no special field, no other has one.
                    if found.fields.len() + found.locks.len() == before || found.members > MAX_MEMBERS {
                        return;
                    }
                }
            }
            Type::Composite { union: false, members, .. } => match self.btf.type_name(id) {
                lock @ ("bpf_spin_lock" | "bpf_res_spin_lock") => {
                    found.locks.push((base, lock == "bpf_res_spin_lock"));
                }
                "bpf_timer" | "bpf_wq" | "bpf_task_work" => found.others = true,
                "bpf_list_head" => {
                    if let Some((of, node)) = self.contained(declared, "bpf_list_node") {
                        found.fields.push((base, Field::List { of, node }));
                    }
                }
                "bpf_rb_root" => {
                    if let Some((of, node)) = self.contained(declared, "bpf_rb_node") {
                        found.fields.push((base, Field::Tree { of, node }));
                    }
                }
                "bpf_list_node" if self.btf.size_of(id) == Some(OwnedKind::ListNode.size()) => {
                    found.fields.push((base, Field::ListNode));
                }
                "bpf_rb_node" if self.btf.size_of(id) == Some(OwnedKind::TreeNode.size()) => {
                    found.fields.push((base, Field::TreeNode));
                }
                "bpf_refcount" => found.fields.push((base, Field::Refcount)),
                _ => {
                    for (component, member) in (0..).zip(members) {
                        let Some(at) = base.checked_add(member.bit_offset / 8) else { return };
                        if member.bit_size == 0 {
                            self.look(member.ty, (id, component), at, depth + 1, found);
                        }
                    }
                }
            },
            _ => {}
        }
    }

    /// The structure that a tagged pointer leads to, and whether it is per-CPU.
    fn kptr(&self, mut to: TypeId) -> Option<(TypeId, bool)> {
        let mut tag = None;
        for _ in 0..MAX_DEPTH {
            match *self.btf.get(to) {
                Type::TypeTag { name, to: tagged_type } => {
                    tag = match self.btf.name(name) {
                        "kptr" => Some(false),
                        "percpu_kptr" => Some(true),
                        _other => tag,
                    };
                    to = tagged_type;
                }
                Type::Qualified { to: qualified, .. } | Type::Typedef { to: qualified, .. } => to = qualified,
                Type::Composite { union: false, .. } => return tag.map(|per_cpu| (to, per_cpu)),
                _ => return None,
            }
        }
        None
    }

    /// The contents that a root declares: the structure, and the offset of its node of this type.
    fn contained(&self, declared: (TypeId, i32), node_type: &str) -> Option<(TypeId, u32)> {
        let (name, node) = self.contains.get(&declared)?.split_once(':')?;
        let of = *self.structs.get(name)?;
        let Type::Composite { members, .. } = self.btf.get(of) else { return None };
        let member = members.iter().find(|member| self.btf.name(member.name) == node)?;
        let is_node = self.btf.type_name(self.btf.resolve(member.ty)) == node_type;
        (is_node && member.bit_size == 0).then_some((of, member.bit_offset / 8))
    }
}
