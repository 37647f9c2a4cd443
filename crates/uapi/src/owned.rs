//! Objects that programs own, and the special fields that lead to them, which programs cannot read or write directly.
//!
//! Problem: the object file names these fields in its BTF, the verifier keeps programs from accessing them, and the
//! maps and the runtime operate on them; all must agree on their bytes. Approach: a type is its size and its fields
//! by offset; a field refers to another type by an index into a list of types.
//!
//! Source: `enum btf_field_type` and the `struct bpf_list_head` … of `include/uapi/linux/bpf.h` (Linux 6.18).

use alloc::string::String;
use alloc::vec::Vec;

/// The kind of a special field.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum OwnedKind {
    /// A pointer to an object of this type, or null (`__kptr`, or `__percpu_kptr` where objects of the type have an
    /// instance for each CPU).
    Kptr {
        /// The type's index.
        to: u32,
    },
    /// `struct bpf_list_head`: a list of objects of this type.
    ListHead {
        /// The type's index.
        of: u32,
        /// Byte offset of the `struct bpf_list_node` in that type.
        node: u32,
    },
    /// `struct bpf_list_node`: links an object into a list.
    ListNode,
    /// `struct bpf_rb_root`: a tree of objects of this type.
    TreeRoot {
        /// The type's index.
        of: u32,
        /// Byte offset of the `struct bpf_rb_node` in that type.
        node: u32,
    },
    /// `struct bpf_rb_node`: links an object into a tree.
    TreeNode,
    /// `struct bpf_refcount`: the object may have several owners.
    Refcount,
    /// `struct bpf_spin_lock`, or `struct bpf_res_spin_lock`, which guards the lists and trees in its object. (For
    /// values, the map's definition has the lock's offset.)
    Lock {
        /// Whether the lock is a resilient one.
        resilient: bool,
    },
}

impl OwnedKind {
    /// Size of the field in bytes.
    #[must_use]
    pub const fn size(self) -> u32 {
        match self {
            Self::Kptr { .. } => 8,
            Self::ListHead { .. } | Self::TreeRoot { .. } => 16,
            Self::ListNode => 24,
            Self::TreeNode => 32,
            Self::Refcount | Self::Lock { .. } => 4,
        }
    }

    /// Alignment of the field's offset in bytes.
    #[must_use]
    pub const fn align(self) -> u32 {
        match self {
            Self::Refcount | Self::Lock { .. } => 4,
            Self::Kptr { .. } | Self::ListHead { .. } | Self::TreeRoot { .. } | Self::ListNode | Self::TreeNode => 8,
        }
    }

    /// Index of the type that the field leads to.
    #[must_use]
    pub const fn leads_to(self) -> Option<u32> {
        match self {
            Self::Kptr { to } => Some(to),
            Self::ListHead { of, .. } | Self::TreeRoot { of, .. } => Some(of),
            Self::ListNode | Self::TreeNode | Self::Refcount | Self::Lock { .. } => None,
        }
    }

    /// A field of this kind that leads to the type with this index.
    #[must_use]
    pub const fn led_to(self, index: u32) -> Self {
        match self {
            Self::Kptr { .. } => Self::Kptr { to: index },
            Self::ListHead { node, .. } => Self::ListHead { of: index, node },
            Self::TreeRoot { node, .. } => Self::TreeRoot { of: index, node },
            Self::ListNode | Self::TreeNode | Self::Refcount | Self::Lock { .. } => self,
        }
    }

    /// Whether the field holds objects that a lock beside it guards.
    #[must_use]
    pub const fn is_root(self) -> bool {
        matches!(self, Self::ListHead { .. } | Self::TreeRoot { .. })
    }

    /// The kind in words, for messages.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Kptr { .. } => "kptr",
            Self::ListHead { .. } => "bpf_list_head",
            Self::ListNode => "bpf_list_node",
            Self::TreeRoot { .. } => "bpf_rb_root",
            Self::TreeNode => "bpf_rb_node",
            Self::Refcount => "bpf_refcount",
            Self::Lock { resilient: false } => "bpf_spin_lock",
            Self::Lock { resilient: true } => "bpf_res_spin_lock",
        }
    }
}

/// A field of a type.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct OwnedField {
    /// Byte offset.
    pub offset: u32,
    /// The kind.
    pub kind: OwnedKind,
}

impl OwnedField {
    /// Byte offset of the end. Does not saturate in a sound type ([`OwnedType::is_sound`]).
    #[must_use]
    pub const fn end(self) -> u32 {
        self.offset.saturating_add(self.kind.size())
    }
}

/// A type of objects, or of a map's values.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub struct OwnedType {
    /// Its name, for messages.
    pub name: String,
    /// Size in bytes.
    pub size: u32,
    /// The special fields, ascending by offset.
    pub fields: Vec<OwnedField>,
    /// Whether each object has an instance for each CPU, of `size` bytes each, and no special fields. Programs reach
    /// an instance by a call only.
    pub per_cpu: bool,
}

/// Bytes of the largest object (Linux: the maximum of `bpf_mem_alloc`, less its header).
pub const MAX_OBJECT: u32 = 4096 - 8;

/// Bytes of the largest instance of an object that has one for each CPU (Linux: `BPF_GLOBAL_PERCPU_MA_MAX_SIZE`).
pub const MAX_INSTANCE: u32 = 512;

impl OwnedType {
    /// The field that begins at this byte.
    #[must_use]
    pub fn field_at(&self, offset: u32) -> Option<OwnedKind> {
        let at = self.fields.binary_search_by_key(&offset, |field| field.offset).ok()?;
        Some(self.fields[at].kind)
    }

    /// The lock in an object of this type, and whether it is a resilient one.
    #[must_use]
    pub fn lock(&self) -> Option<(u32, bool)> {
        self.fields.iter().find_map(|field| match field.kind {
            OwnedKind::Lock { resilient } => Some((field.offset, resilient)),
            _other => None,
        })
    }

    /// Whether the fields are ascending, disjoint, aligned and inside the type. A per-CPU type has no fields.
    #[must_use]
    pub fn has_sound_layout(&self) -> bool {
        if self.per_cpu && (self.size > MAX_INSTANCE || !self.fields.is_empty()) {
            return false;
        }
        let mut end = 0;
        self.fields.iter().all(|field| {
            let follows = field.offset >= end && field.offset.is_multiple_of(field.kind.align());
            end = field.end();
            follows && field.offset <= self.size && self.size - field.offset >= field.kind.size()
        })
    }

    /// Whether the layout is sound ([`OwnedType::has_sound_layout`]) and each field leads to one of `types`, with a
    /// node of the right kind at the given offset. A list or tree of objects without such a node is not sound.
    #[must_use]
    pub fn is_sound(&self, types: &[OwnedType]) -> bool {
        self.has_sound_layout()
            && self.fields.iter().all(|field| {
                let of = |index: u32| types.get(index as usize);
                match field.kind {
                    OwnedKind::Kptr { to } => of(to).is_some(),
                    OwnedKind::ListHead { of: to, node } => {
                        of(to).is_some_and(|to| to.field_at(node) == Some(OwnedKind::ListNode))
                    }
                    OwnedKind::TreeRoot { of: to, node } => {
                        of(to).is_some_and(|to| to.field_at(node) == Some(OwnedKind::TreeNode))
                    }
                    OwnedKind::ListNode | OwnedKind::TreeNode | OwnedKind::Refcount | OwnedKind::Lock { .. } => true,
                }
            })
    }

    /// The type with this index and all types that it leads to, numbered in the order of discovery, so that the
    /// result does not depend on the rest of the list. An index that does not exist leads to itself.
    #[must_use]
    pub fn closure(types: &[OwnedType], root: u32) -> Vec<OwnedType> {
        let mut met = alloc::vec![root];
        let mut closure = Vec::new();
        while let Some(ty) = met.get(closure.len()).map(|index| types.get(*index as usize)) {
            let Some(mut ty) = ty.cloned() else {
                closure.push(OwnedType { name: String::new(), size: 0, fields: Vec::new(), per_cpu: false });
                continue;
            };
            for field in &mut ty.fields {
                let Some(to) = field.kind.leads_to() else { continue };
                let known = met.iter().position(|index| *index == to).unwrap_or(met.len());
                if known == met.len() {
                    met.push(to);
                }
                field.kind = field.kind.led_to(u32::try_from(known).unwrap_or(u32::MAX));
            }
            closure.push(ty);
        }
        closure
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    fn ty(name: &str, size: u32, fields: &[(u32, OwnedKind)]) -> OwnedType {
        let fields = fields.iter().map(|(offset, kind)| OwnedField { offset: *offset, kind: *kind });
        OwnedType { name: name.into(), size, fields: fields.collect(), per_cpu: false }
    }

    #[test]
    fn types_are_the_same_by_what_they_lead_to() {
        let node = |to| ty("node", 40, &[(0, OwnedKind::ListNode), (24, OwnedKind::Kptr { to })]);
        let other = ty("other", 8, &[]);
        let (a, b) = (vec![other.clone(), node(0)], vec![node(2), ty("more", 4, &[]), other.clone()]);
        assert_eq!(OwnedType::closure(&a, 1), OwnedType::closure(&b, 0));
        assert_eq!(OwnedType::closure(&a, 1), [node(1), other]);
        // A type that leads to itself.
        assert_eq!(OwnedType::closure(&[ty("x", 1, &[]), node(1)], 1), [node(0)]);
    }

    #[test]
    fn fields_lie_apart_and_lead_to_nodes() {
        let types = [ty("node", 24, &[(0, OwnedKind::ListNode)])];
        let sound = |size, fields: &[(u32, OwnedKind)]| ty("value", size, fields).is_sound(&types);
        let list = OwnedKind::ListHead { of: 0, node: 0 };
        assert!(sound(24, &[(0, OwnedKind::Kptr { to: 0 }), (8, list)]));
        assert!(!sound(23, &[(0, OwnedKind::Kptr { to: 0 }), (8, list)]), "inside");
        assert!(!sound(24, &[(4, list)]), "aligned");
        assert!(!sound(24, &[(0, list), (8, OwnedKind::Kptr { to: 0 })]), "apart");
        assert!(!sound(24, &[(0, OwnedKind::Kptr { to: 1 })]), "of a type that exists");
        assert!(!sound(24, &[(0, OwnedKind::ListHead { of: 0, node: 8 })]), "at a node");
        assert!(!sound(24, &[(0, OwnedKind::TreeRoot { of: 0, node: 0 })]), "of its kind");
    }

    #[test]
    fn instances_have_no_fields_and_are_another_type() {
        let plain = ty("plain", 16, &[]);
        let per_cpu = OwnedType { per_cpu: true, ..plain.clone() };
        assert!(per_cpu.is_sound(&[]));
        assert!(!OwnedType { size: MAX_INSTANCE + 1, ..per_cpu.clone() }.is_sound(&[]));
        let owners = OwnedField { offset: 0, kind: OwnedKind::Refcount };
        assert!(!OwnedType { fields: vec![owners], ..per_cpu.clone() }.is_sound(&[]));
        assert_ne!(OwnedType::closure(&[plain], 0), OwnedType::closure(&[per_cpu], 0));
    }
}
