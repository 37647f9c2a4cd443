//! Prototypes of the kernel's functions that programs call by name.
//!
//! They are called by index, like a host's functions: whoever links a program puts the prototypes of those that it
//! names into [`crate::Env::host_functions`].

use bpf_uapi::Kfunc;

use crate::helpers::{
    ArgKind, Dynptr, Effect, Graph, HelperProto, Local, LocalUse, NodeUse, ObjectFrom, ObjectUse, Ret,
};

/// The prototype of a kfunc.
pub fn kfunc(kfunc: Kfunc) -> HelperProto {
    use ArgKind::{Ctx, RecordSize, Scalar, Unused};
    const LIST: ArgKind = ArgKind::Root(Graph::List);
    const TREE: ArgKind = ArgKind::Root(Graph::Tree);
    const MEMBER: ArgKind = ArgKind::Node(Graph::Tree, NodeUse::Member);
    const PACKET: ArgKind = ArgKind::Local(Local::Dynptr(Dynptr::Packet), LocalUse::Made);
    const fn dynptr(how: LocalUse) -> ArgKind {
        ArgKind::Local(Local::Dynptr(Dynptr::Any), how)
    }
    const fn numbers(how: LocalUse) -> ArgKind {
        ArgKind::Local(Local::Numbers, how)
    }
    let (args, ret): (&[ArgKind], Ret) = match kfunc {
        Kfunc::IterNumNew => (&[numbers(LocalUse::Made), Scalar, Scalar], Ret::Scalar),
        Kfunc::IterNumNext => (&[numbers(LocalUse::Used)], Ret::ElementOrNull(4)),
        Kfunc::IterNumDestroy => (&[numbers(LocalUse::Ended)], Ret::Scalar),
        Kfunc::DynptrFromSkb | Kfunc::DynptrFromXdp => (&[Ctx, Scalar, PACKET], Ret::Scalar),
        // What is there is in one piece, so the buffer for what is not goes unused.
        Kfunc::DynptrSlice => {
            (&[dynptr(LocalUse::Used), Scalar, Unused, RecordSize], Ret::SliceOrNull { writable: false })
        }
        Kfunc::DynptrSliceRdwr => {
            (&[dynptr(LocalUse::Used), Scalar, Unused, RecordSize], Ret::SliceOrNull { writable: true })
        }
        Kfunc::DynptrAdjust => (&[dynptr(LocalUse::Used), Scalar, Scalar], Ret::Scalar),
        Kfunc::DynptrIsNull | Kfunc::DynptrIsRdonly => (&[dynptr(LocalUse::Read)], Ret::Between(0, 1)),
        Kfunc::DynptrSize => (&[dynptr(LocalUse::Read)], Ret::Scalar),
        Kfunc::DynptrClone => (&[dynptr(LocalUse::Used), dynptr(LocalUse::Made)], Ret::Scalar),
        Kfunc::ObjNew => (&[ArgKind::LocalType, Unused], Ret::ObjectOrNull(ObjectFrom::Made)),
        Kfunc::ObjDrop => (&[ArgKind::Object(ObjectUse::Given), Unused], Ret::Scalar),
        Kfunc::RefcountAcquire => {
            (&[ArgKind::Object(ObjectUse::Shared), Unused], Ret::ObjectOrNull(ObjectFrom::Shared))
        }
        Kfunc::ListPushFront | Kfunc::ListPushBack => {
            (&[LIST, ArgKind::Node(Graph::List, NodeUse::Added), Unused, Unused], Ret::Scalar)
        }
        Kfunc::ListPopFront | Kfunc::ListPopBack => (&[LIST], Ret::ObjectOrNull(ObjectFrom::Taken)),
        Kfunc::ListFront | Kfunc::ListBack => (&[LIST], Ret::ObjectOrNull(ObjectFrom::Seen)),
        Kfunc::RbtreeAdd => {
            (&[TREE, ArgKind::Node(Graph::Tree, NodeUse::Added), ArgKind::Compare, Unused, Unused], Ret::Scalar)
        }
        Kfunc::RbtreeRemove => (&[TREE, MEMBER], Ret::ObjectOrNull(ObjectFrom::Taken)),
        Kfunc::RbtreeFirst | Kfunc::RbtreeRoot => (&[TREE], Ret::ObjectOrNull(ObjectFrom::Seen)),
        Kfunc::RbtreeLeft | Kfunc::RbtreeRight => (&[TREE, MEMBER], Ret::ObjectOrNull(ObjectFrom::Seen)),
        Kfunc::RcuReadLock | Kfunc::RcuReadUnlock | Kfunc::PreemptDisable | Kfunc::PreemptEnable => (&[], Ret::Scalar),
    };
    let graph = args.contains(&LIST) || args.contains(&TREE) || kfunc == Kfunc::RefcountAcquire;
    let effect = if graph { Effect::Graph } else { Effect::None };
    HelperProto { effect, ..HelperProto::new(kfunc.id(), kfunc.name(), args, ret) }
}
