//! Prototypes of the kernel's functions that programs call by name.
//!
//! Programs call kfuncs by index, like a host's functions. The linker of a program puts the prototypes of the named
//! kfuncs into [`crate::Env::host_functions`].

use bpf_uapi::{Kfunc, MapType, MapTypes};

use super::helpers::{
    ArgKind, Dynptr, Effect, Graph, HelperProto, LOCK_RESULT, Local, LocalUse, LockKind, MemArg, NodeUse, ObjectFrom,
    ObjectUse, Ret, Section,
};

/// The kinds of maps whose elements are counted.
const COUNTED: MapTypes = MapTypes::KEYED.union(MapTypes::of(&[
    MapType::Queue,
    MapType::Stack,
    MapType::BloomFilter,
    MapType::RingBuf,
    MapType::PerfEventArray,
]));

/// The prototype of a kfunc.
pub fn kfunc(kfunc: Kfunc) -> HelperProto {
    use ArgKind::{Ctx, RecordSize, Scalar, SliceBuffer, Unused};
    const LIST: ArgKind = ArgKind::Root(Graph::List);
    const TREE: ArgKind = ArgKind::Root(Graph::Tree);
    const MEMBER: ArgKind = ArgKind::Node(Graph::Tree, NodeUse::Member);
    const PACKET: ArgKind = ArgKind::Local(Local::Dynptr(Dynptr::Packet), LocalUse::Made);
    const ARENA: ArgKind = ArgKind::Map(MapTypes::of(&[MapType::Arena]));
    const fn dynptr(how: LocalUse) -> ArgKind {
        ArgKind::Local(Local::Dynptr(Dynptr::Any), how)
    }
    const fn numbers(how: LocalUse) -> ArgKind {
        ArgKind::Local(Local::Numbers, how)
    }
    const fn bits(how: LocalUse) -> ArgKind {
        ArgKind::Local(Local::Bits, how)
    }
    const fn interrupts(lock: bool, how: LocalUse) -> ArgKind {
        ArgKind::Local(Local::Interrupts { lock }, how)
    }
    const LOCK: ArgKind = ArgKind::Lock { resilient: true };
    const fn written(bytes: u32) -> ArgKind {
        ArgKind::Fixed { bytes, mem: MemArg { align: bytes, ..MemArg::WRITE } }
    }
    const TEXT: ArgKind = ArgKind::Peeked { text: true };
    let (args, ret): (&[ArgKind], Ret) = match kfunc {
        Kfunc::IterNumNew => (&[numbers(LocalUse::Made), Scalar, Scalar], Ret::Scalar),
        Kfunc::IterNumNext => (&[numbers(LocalUse::Used)], Ret::ElementOrNull(4)),
        Kfunc::IterNumDestroy => (&[numbers(LocalUse::Ended)], Ret::Scalar),
        Kfunc::DynptrFromSkb | Kfunc::DynptrFromXdp | Kfunc::DynptrFromSkbMeta => (&[Ctx, Scalar, PACKET], Ret::Scalar),
        Kfunc::DynptrSlice => {
            (&[dynptr(LocalUse::Used), Scalar, SliceBuffer, RecordSize], Ret::SliceOrNull { writable: false })
        }
        Kfunc::DynptrSliceRdwr => {
            (&[dynptr(LocalUse::Used), Scalar, SliceBuffer, RecordSize], Ret::SliceOrNull { writable: true })
        }
        Kfunc::DynptrCopy => (&[dynptr(LocalUse::Used), Scalar, dynptr(LocalUse::Read), Scalar, Scalar], Ret::Scalar),
        Kfunc::DynptrMemset => (&[dynptr(LocalUse::Used), Scalar, Scalar, Scalar], Ret::Scalar),
        Kfunc::XdpMetadataRxTimestamp => (&[Ctx, written(8)], Ret::Scalar),
        Kfunc::XdpMetadataRxHash => (&[Ctx, written(4), written(4)], Ret::Scalar),
        Kfunc::XdpMetadataRxVlanTag => (&[Ctx, written(2), written(2)], Ret::Scalar),
        Kfunc::IterBitsNew => (&[bits(LocalUse::Made), ArgKind::Peeked { text: false }, Scalar], Ret::Scalar),
        Kfunc::IterBitsNext => (&[bits(LocalUse::Used)], Ret::ElementOrNull(4)),
        Kfunc::IterBitsDestroy => (&[bits(LocalUse::Ended)], Ret::Scalar),
        Kfunc::Strlen => (&[TEXT], Ret::Scalar),
        Kfunc::Strchr | Kfunc::Strchrnul | Kfunc::Strrchr | Kfunc::Strnlen => (&[TEXT, Scalar], Ret::Scalar),
        Kfunc::Strnchr => (&[TEXT, Scalar, Scalar], Ret::Scalar),
        Kfunc::Strcmp | Kfunc::Strcasecmp | Kfunc::Strspn | Kfunc::Strcspn | Kfunc::Strstr => {
            (&[TEXT, TEXT], Ret::Scalar)
        }
        Kfunc::Strnstr => (&[TEXT, TEXT, Scalar], Ret::Scalar),
        Kfunc::MapSumElemCount => (&[ArgKind::Map(COUNTED)], Ret::Scalar),
        Kfunc::LocalIrqSave => (&[interrupts(false, LocalUse::Made)], Ret::Scalar),
        Kfunc::LocalIrqRestore => (&[interrupts(false, LocalUse::Ended)], Ret::Scalar),
        Kfunc::ResSpinLock => (&[LOCK], LOCK_RESULT),
        Kfunc::ResSpinUnlock => (&[LOCK], Ret::Scalar),
        Kfunc::ResSpinLockIrqsave => (&[LOCK, interrupts(true, LocalUse::Made)], LOCK_RESULT),
        Kfunc::ResSpinUnlockIrqrestore => (&[LOCK, interrupts(true, LocalUse::Ended)], Ret::Scalar),
        Kfunc::XdpPullData => (&[Ctx, Scalar], Ret::Scalar),
        Kfunc::DynptrAdjust => (&[dynptr(LocalUse::Used), Scalar, Scalar], Ret::Scalar),
        Kfunc::DynptrIsNull | Kfunc::DynptrIsRdonly => (&[dynptr(LocalUse::Read)], Ret::Between(0, 1)),
        Kfunc::DynptrSize => (&[dynptr(LocalUse::Read)], Ret::Scalar),
        Kfunc::DynptrClone => (&[dynptr(LocalUse::Used), dynptr(LocalUse::Made)], Ret::Scalar),
        // Addresses in an arena are numbers, which the program casts before an access.
        Kfunc::ArenaAllocPages => (&[ARENA, Scalar, Scalar, Scalar, Scalar], Ret::Scalar),
        Kfunc::ArenaFreePages | Kfunc::ArenaReservePages => (&[ARENA, Scalar, Scalar], Ret::Scalar),
        Kfunc::ObjNew => (&[ArgKind::LocalType { per_cpu: false }, Unused], Ret::ObjectOrNull(ObjectFrom::Made)),
        Kfunc::ObjDrop => (&[ArgKind::Object(ObjectUse::Given), Unused], Ret::Scalar),
        Kfunc::PercpuObjNew => (&[ArgKind::LocalType { per_cpu: true }, Unused], Ret::ObjectOrNull(ObjectFrom::Made)),
        Kfunc::PercpuObjDrop => (&[ArgKind::Object(ObjectUse::GivenInstances), Unused], Ret::Scalar),
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
        Kfunc::Throw => (&[Scalar], Ret::Thrown),
        Kfunc::WqInit => (&[ArgKind::Work, ArgKind::TimerMap, Scalar], Ret::Scalar),
        Kfunc::WqSetCallback => (&[ArgKind::Work, ArgKind::TimerCallback, Scalar, Unused], Ret::Scalar),
        Kfunc::WqStart => (&[ArgKind::Work, Scalar], Ret::Scalar),
    };
    let effect = match kfunc {
        Kfunc::XdpPullData => Effect::MovesPacket,
        Kfunc::RcuReadLock => Effect::Enter(Section::Rcu),
        Kfunc::RcuReadUnlock => Effect::Leave(Section::Rcu),
        Kfunc::PreemptDisable => Effect::Enter(Section::Preempt),
        Kfunc::PreemptEnable => Effect::Leave(Section::Preempt),
        Kfunc::ResSpinLock => Effect::Lock(LockKind::Resilient),
        Kfunc::ResSpinLockIrqsave => Effect::Lock(LockKind::ResilientIrq),
        Kfunc::ResSpinUnlock => Effect::Unlock(LockKind::Resilient),
        Kfunc::ResSpinUnlockIrqrestore => Effect::Unlock(LockKind::ResilientIrq),
        Kfunc::IterNumNew
        | Kfunc::IterNumNext
        | Kfunc::IterNumDestroy
        | Kfunc::RefcountAcquire
        | Kfunc::ListPushFront
        | Kfunc::ListPushBack
        | Kfunc::ListPopFront
        | Kfunc::ListPopBack
        | Kfunc::ListFront
        | Kfunc::ListBack
        | Kfunc::RbtreeAdd
        | Kfunc::RbtreeRemove
        | Kfunc::RbtreeFirst
        | Kfunc::RbtreeRoot
        | Kfunc::RbtreeLeft
        | Kfunc::RbtreeRight => Effect::UnderLock,
        Kfunc::DynptrFromSkb
        | Kfunc::DynptrFromXdp
        | Kfunc::DynptrSlice
        | Kfunc::DynptrSliceRdwr
        | Kfunc::DynptrAdjust
        | Kfunc::DynptrIsNull
        | Kfunc::DynptrIsRdonly
        | Kfunc::DynptrSize
        | Kfunc::DynptrClone
        | Kfunc::DynptrFromSkbMeta
        | Kfunc::DynptrCopy
        | Kfunc::DynptrMemset
        | Kfunc::XdpMetadataRxTimestamp
        | Kfunc::XdpMetadataRxHash
        | Kfunc::XdpMetadataRxVlanTag
        | Kfunc::IterBitsNew
        | Kfunc::IterBitsNext
        | Kfunc::IterBitsDestroy
        | Kfunc::Strcmp
        | Kfunc::Strcasecmp
        | Kfunc::Strchr
        | Kfunc::Strchrnul
        | Kfunc::Strnchr
        | Kfunc::Strrchr
        | Kfunc::Strlen
        | Kfunc::Strnlen
        | Kfunc::Strspn
        | Kfunc::Strcspn
        | Kfunc::Strstr
        | Kfunc::Strnstr
        | Kfunc::MapSumElemCount
        | Kfunc::LocalIrqSave
        | Kfunc::LocalIrqRestore
        | Kfunc::ArenaAllocPages
        | Kfunc::ArenaFreePages
        | Kfunc::ArenaReservePages
        | Kfunc::ObjNew
        | Kfunc::ObjDrop
        | Kfunc::PercpuObjNew
        | Kfunc::PercpuObjDrop
        | Kfunc::Throw
        | Kfunc::WqInit
        | Kfunc::WqSetCallback
        | Kfunc::WqStart => Effect::None,
    };
    HelperProto { effect, ..HelperProto::new(kfunc.id(), kfunc.name(), args, ret) }
}
