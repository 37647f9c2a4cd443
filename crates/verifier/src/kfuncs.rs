//! Prototypes of the kernel's functions that programs call by name.
//!
//! They are called by index, like a host's functions: whoever links a program puts the prototypes of those that it
//! names into [`crate::Env::host_functions`].

use bpf_uapi::{Kfunc, MapType, MapTypes};

use crate::helpers::{ArgKind, Dynptr, HelperProto, Local, LocalUse, Ret};

/// The prototype of a kfunc.
pub fn kfunc(kfunc: Kfunc) -> HelperProto {
    use ArgKind::{Ctx, RecordSize, Scalar, Unused};
    const PACKET: ArgKind = ArgKind::Local(Local::Dynptr(Dynptr::Packet), LocalUse::Made);
    const ARENA: ArgKind = ArgKind::Map(MapTypes::of(&[MapType::Arena]));
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
        // What they return is a number, which the program casts to what it accesses; so is what they are given.
        Kfunc::ArenaAllocPages => (&[ARENA, Scalar, Scalar, Scalar, Scalar], Ret::Scalar),
        Kfunc::ArenaFreePages | Kfunc::ArenaReservePages => (&[ARENA, Scalar, Scalar], Ret::Scalar),
        Kfunc::RcuReadLock | Kfunc::RcuReadUnlock | Kfunc::PreemptDisable | Kfunc::PreemptEnable => (&[], Ret::Scalar),
    };
    HelperProto::new(kfunc.id(), kfunc.name(), args, ret)
}
