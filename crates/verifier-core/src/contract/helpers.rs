//! Prototypes of the functions that a program may call.
//!
//! Problem: a helper accesses memory on the program's behalf, and the verifier must prove each call safe without
//! knowing the helper. Approach: prototypes as data ([`HelperProto`]) describe the required arguments, the result and
//! other effects. [`Helpers::shipped`] lists the kernel's helpers that this family implements; hosts add their own
//! functions with the same type.
//!
//! Source: argument types as in the kernel's `struct bpf_func_proto` of the helper; ids from `bpf-uapi`.

use std::borrow::Cow;

use bpf_uapi::{Helper, MapType, MapTypes};

use super::access::Access;

/// Kinds of memory a pointer argument may point into.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct MemSet(u8);

impl MemSet {
    /// The program's stack.
    pub const STACK: MemSet = MemSet(1);
    /// A context region (packet).
    pub const PACKET: MemSet = MemSet(2);
    /// A map value, which other threads may change at any time.
    pub const MAP: MemSet = MemSet(4);
    /// Memory that a function returned.
    pub const MEM: MemSet = MemSet(8);
    /// Memory of every kind.
    pub const ANY: MemSet = MemSet(15);
    /// Memory that only this run accesses, of which a Rust `&[u8]` or `&mut [u8]` may be made.
    pub const OWNED: MemSet = MemSet(1 | 2);

    /// The union of both sets.
    #[must_use]
    pub const fn union(self, other: MemSet) -> MemSet {
        MemSet(self.0 | other.0)
    }
    /// Whether all kinds in `other` are in the set.
    pub const fn contains(self, other: MemSet) -> bool {
        self.0 & other.0 == other.0
    }
}

/// Requirements on the memory of a pointer argument.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct MemArg {
    /// The accesses of the function. Memory that is only written need not be initialised. Promised: such memory is
    /// written whole, with zeros if the function fails, as the program may read it afterwards.
    pub access: Access,
    /// Whether the pointer may be null. For memory with a length argument, null is allowed only with length 0.
    pub null: bool,
    /// Required alignment in bytes, a power of two.
    pub align: u32,
    /// The kinds of memory in which it may lie.
    pub from: MemSet,
}

impl MemArg {
    /// Readable memory of any kind.
    pub const READ: MemArg = MemArg { access: Access::Read, null: false, align: 1, from: MemSet::ANY };
    /// Writable memory of any kind; it need not be initialised.
    pub const WRITE: MemArg = MemArg { access: Access::Write, ..MemArg::READ };

    /// This requirement, or null.
    pub const fn or_null(self) -> MemArg {
        MemArg { null: true, ..self }
    }
}

/// The function that calls a callback, which determines the callback's arguments.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum CallbackKind {
    /// bpf_loop: (index, ctx).
    Loop,
    /// bpf_for_each_map_elem: (map, key, value, ctx).
    ForEach,
    /// bpf_user_ringbuf_drain: (record, ctx); the record is a host object of class [`DYNPTR`].
    Drain,
}

/// The class of the host object that a user ring buffer's callback receives.
pub const DYNPTR: u32 = u32::MAX;

/// The class of the host object that stands for a thread (`struct task_struct *`). Programs only pass it on; at run
/// time it is a number, and functions that take one accept any number.
pub const TASK: u32 = u32::MAX - 1;

/// An object that a program keeps on its stack for functions to work on. The object is opaque: the program may not read
/// or write it, and a store that overlaps it ends its existence.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Local {
    /// `struct bpf_iter_num`: the numbers of a range, one after the other.
    Numbers,
    /// `struct bpf_iter_bits`: the numbers of the bits that are set in a copy of some memory.
    Bits,
    /// The state that `bpf_local_irq_save` saves for `bpf_local_irq_restore`, or, if `lock`, the state that
    /// `bpf_res_spin_lock_irqsave` saves for `bpf_res_spin_unlock_irqrestore`.
    Interrupts {
        /// Whether `bpf_res_spin_lock_irqsave` saved it.
        lock: bool,
    },
    /// `struct bpf_dynptr`: memory whose place and length are known only at run time.
    Dynptr(Dynptr),
    /// The stack bytes in which a slice may lie ([`ArgKind::SliceBuffer`]). Unlike other objects, the program may read
    /// them as numbers. A store to them invalidates the slice.
    Buffer,
}

/// The memory to which a dynptr leads.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Dynptr {
    /// As an argument: any of the kinds below. As a result: the kind of the dynptr from which it is made.
    Any,
    /// Memory that stays valid to the end of the run.
    Memory,
    /// The packet, which may move during the run.
    Packet,
    /// A record of a ring buffer, which must be submitted or discarded.
    Record,
}

impl Local {
    /// Bytes of stack, at a multiple of 8; 0 for a buffer, whose size another argument gives.
    pub const fn size(self) -> u32 {
        match self {
            Local::Numbers | Local::Interrupts { .. } => 8,
            Local::Bits | Local::Dynptr(_) => 16,
            Local::Buffer => 0,
        }
    }

    /// The object's name in messages.
    pub const fn name(self) -> &'static str {
        match self {
            Local::Numbers => "iterator over numbers",
            Local::Bits => "iterator over bits",
            Local::Interrupts { .. } => "saved state of interrupts",
            Local::Dynptr(Dynptr::Any | Dynptr::Memory) => "dynptr",
            Local::Dynptr(Dynptr::Packet) => "dynptr to the packet",
            Local::Dynptr(Dynptr::Record) => "dynptr to a record",
            Local::Buffer => "buffer of a slice",
        }
    }

    /// Whether an object that a function made must be ended before the program exits.
    #[doc(hidden)]
    pub const fn is_owed(self) -> bool {
        match self {
            Local::Numbers | Local::Bits | Local::Interrupts { .. } | Local::Dynptr(Dynptr::Record) => true,
            Local::Dynptr(Dynptr::Any | Dynptr::Memory | Dynptr::Packet) | Local::Buffer => false,
        }
    }

    /// Whether an object of kind `other` is allowed where this kind is required.
    #[doc(hidden)]
    pub fn includes(self, other: Local) -> bool {
        self == other || matches!((self, other), (Local::Dynptr(Dynptr::Any), Local::Dynptr(_)))
    }
}

/// The use that a function makes of a [`Local`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum LocalUse {
    /// The function makes the object, replacing any previous contents. Some kinds must be ended before the program
    /// exits.
    Made,
    /// The function only reads the object, which may also be one that was lent to a callback instead of one on the
    /// stack.
    Read,
    /// The function uses the object, and may change it.
    Used,
    /// The function ends the object: it no longer exists, and pointers that were derived from it are invalid.
    Ended,
}

/// The data structure that holds objects.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Graph {
    /// `struct bpf_list_head`.
    List,
    /// `struct bpf_rb_root`.
    Tree,
}

/// The use that a function makes of an object that the program owns or may access.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum ObjectUse {
    /// The function takes ownership from the program.
    Given,
    /// The function takes ownership of an object with an instance for each CPU.
    GivenInstances,
    /// The function finds the instance for a CPU. The object lies in a map's value, from which its pointer was loaded.
    Instance,
    /// The function creates another owner of the object, which may be owned already: the object has a `struct
    /// bpf_refcount`.
    Shared,
}

/// The use that a function makes of the node of an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum NodeUse {
    /// The function inserts the node at the root argument, which then owns the object. Until the lock is released, the
    /// program may still access the object.
    Added,
    /// The function searches for the node at the root argument.
    Member,
}

/// The origin of an object that a function returns.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum ObjectFrom {
    /// The object is new, of the type argument.
    Made,
    /// The object is the object argument with another owner; never null if the program owns the argument.
    Shared,
    /// The object was removed from the root argument. The result points to its node.
    Taken,
    /// The object is in the root argument, which owns it. The result points to its node, and is valid until the lock is
    /// released.
    Seen,
    /// The object was in the kptr argument.
    Exchanged,
}

/// The requirement on an argument.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum ArgKind {
    /// No argument.
    None,
    /// Any number. A pointer is refused, since it would leak.
    Scalar,
    /// A value that the format in the first argument may ask for: a number, or a pointer if the format is constant and
    /// asks for one. If the format is constant and asks for fewer values, the register is not checked. Promised: behind
    /// a pointer, the function reads no more than [`bpf_analysis::Facts::formats`] says.
    Formatted,
    /// Values as for [`ArgKind::Formatted`] in memory, eight bytes each, or null. The next argument is their length in
    /// bytes.
    Values,
    /// The context, unchanged.
    Ctx,
    /// The context, or 0.
    CtxOrNull,
    /// A map of one of these kinds.
    Map(MapTypes),
    /// A readable key of the map.
    Key,
    /// A readable value of the map.
    Value,
    /// A readable value of the map, or null.
    ValueOrNull,
    /// Writable memory for a value of the map.
    ValueOut,
    /// Memory; the next argument is its length.
    Mem(MemArg),
    /// The length of the memory in the previous argument.
    Size {
        /// Whether it may be 0.
        zero: bool,
        /// Promised: the function reads only the low 32 bits of the register.
        half: bool,
    },
    /// Memory whose length is the following [`ArgKind::Length`] argument.
    MemOfLength(MemArg),
    /// The length of each [`ArgKind::MemOfLength`] before it; may be 0.
    Length,
    /// Memory of a fixed size.
    Fixed {
        /// Its size in bytes.
        bytes: u32,
        /// The requirements on it.
        mem: MemArg,
    },
    /// The lock in a map value: a `bpf_spin_lock`, or a resilient lock, `bpf_res_spin_lock`.
    Lock {
        /// Whether the lock is resilient.
        resilient: bool,
    },
    /// The timer in a map value. The map is in the program's own table.
    Timer,
    /// The work queue item (`struct bpf_wq`) in a map value. The map is in the program's own table.
    Work,
    /// The map that contains the timer's or work item's value.
    TimerMap,
    /// A function of the program that the timer or work item calls with the map, the key, and the value that contains
    /// the timer. The call happens later, outside of any run of the program, and has no context.
    TimerCallback,
    /// A constant: the size of the returned record.
    RecordSize,
    /// A record that was reserved earlier. The call consumes it.
    Record,
    /// An object on the program's stack.
    Local(Local, LocalUse),
    /// The program's number of a type ([`crate::Env::local_types`]) of which the function makes an object.
    LocalType {
        /// Whether the type has an instance for each CPU.
        per_cpu: bool,
    },
    /// An object of the program's own, by a pointer to its start.
    Object(ObjectUse),
    /// A list or a tree in a map's value. The program holds its lock.
    Root(Graph),
    /// The node by which an object is, or will be, linked into the preceding root argument.
    Node(Graph, NodeUse),
    /// A function of the program that returns whether the first of two nodes comes before the second. It is called with
    /// the lock held and may not call anything.
    Compare,
    /// A pointer to an object pointer (kptr) that lies in a map's value or in an object.
    Kptr,
    /// The new content of the kptr argument: an object of its type that the program owns, or null.
    Exchanged,
    /// Any value; the function ignores the register.
    Unused,
    /// A number, or a pointer to memory whose length no argument gives. Promised: behind a pointer, the function reads
    /// no more than [`bpf_analysis::Facts::formats`] says for the call and the argument; behind a number, it reads
    /// nothing.
    Peeked {
        /// Whether the function reads nothing behind the first zero byte.
        text: bool,
    },
    /// The source of a copy, whose length is another argument: a pointer to memory, or a number. The length is not
    /// proven: the function compares it with the readable bytes in [`bpf_analysis::Facts::formats`] for the call and
    /// the argument, and fails if it is greater. Promised: the function reads nothing at an address that is a number.
    Probed,
    /// Memory for the returned slice, or 0; the next argument is [`ArgKind::RecordSize`]. A slice of a packet may be
    /// placed there; it is invalid after the program writes to that memory itself. Promised: the function writes all of
    /// the memory.
    SliceBuffer,
    /// A string: constant data of the program that contains a zero byte.
    ConstStr,
    /// A socket pointer as a function or the context returned it.
    Socket {
        /// Whether it may be null, or 0.
        null: bool,
        /// Whether the call releases the socket: it must be one that was looked up, and is invalid afterwards.
        release: bool,
    },
    /// A function of the program.
    Callback(CallbackKind),
    /// The context argument of the callback: a pointer to the stack, or 0.
    CallbackCtx,
    /// A host object of this class.
    Host {
        /// The class.
        class: u32,
        /// Whether it may be null.
        null: bool,
    },
}

impl ArgKind {
    /// Whether the argument makes the call change state that later instructions depend on: a release, a new object, or
    /// a callback.
    #[doc(hidden)]
    pub fn outlasts_the_call(self) -> bool {
        matches!(
            self,
            ArgKind::Record
                | ArgKind::Callback(_)
                | ArgKind::TimerCallback
                | ArgKind::Local(..)
                | ArgKind::Object(ObjectUse::Given | ObjectUse::GivenInstances)
                | ArgKind::Node(_, NodeUse::Added)
                | ArgKind::Compare
                | ArgKind::Exchanged
                | ArgKind::Socket { release: true, .. }
        )
    }

    /// Whether the argument is an iterator whose elements have this size.
    #[doc(hidden)]
    pub fn is_iterator(self, bytes: u32) -> bool {
        match self {
            ArgKind::Local(Local::Numbers | Local::Bits, LocalUse::Used) => bytes == 4,
            _ => false,
        }
    }
}

/// The result of a call, in r0.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Ret {
    /// Any number.
    Scalar,
    /// The first argument, which is a pointer to memory.
    First,
    /// A signed number in this range, both ends included.
    Between(i64, i64),
    /// A negative error number, or at most the length in the [`ArgKind::Size`] argument.
    ErrorOrLength,
    /// A value of the map argument (for a map of maps, the inner map), or null. For a map of sockets, the result is as
    /// for [`Ret::SocketOrNull`].
    MapValueOrNull,
    /// A new record, whose size is the size argument, or null. A later [`ArgKind::Record`] argument must consume it.
    RecordOrNull,
    /// Memory of this size, 8-byte aligned, or null. Promised: the memory stays valid to the end of the run.
    MemOrNull {
        /// Size in bytes.
        bytes: u32,
        /// Whether the program may write to it.
        writable: bool,
    },
    /// A host object of this class, or null, valid to the end of the run.
    HostOrNull(u32),
    /// A host object of this class, never null, valid to the end of the run.
    Host(u32),
    /// No result: the call ends the run. Promised: the function never returns, and everything that the run owes
    /// (records, locks) is released.
    Never,
    /// No result: the call throws. The program ends, from within any chain of calls, and its result is the first
    /// argument, or what the exception callback ([`crate::Env::exception`]) makes of it. Promised: no instruction of
    /// any active function runs afterwards, and the program's caller continues as after any exit.
    Thrown,
    /// The next element of the iterator argument, or null at the end: a pointer to so many bytes, which only the
    /// iterator changes. Promised: after finitely many calls the result is null.
    ElementOrNull(u32),
    /// Memory behind the dynptr argument, of as many bytes as the [`ArgKind::RecordSize`] argument says, or null. It is
    /// valid as long as the memory behind the dynptr does not move.
    SliceOrNull {
        /// Whether the program may write to it.
        writable: bool,
    },
    /// A socket that was looked up, or null. An [`ArgKind::Socket`] argument with `release` must release it.
    SocketOrNull,
    /// A part of the socket argument, or null. It is valid as long as the socket is.
    OfSocketOrNull(SocketPart),
    /// An object of the program's own, or null. Promised: its memory stays valid to the end of the run, it has the type
    /// that the arguments determine, and while the program owns it, nobody else frees it.
    ObjectOrNull(ObjectFrom),
    /// The object argument's ([`ObjectUse::Instance`]) instance for a CPU, 8-byte aligned. Promised: it stays valid to
    /// the end of the run.
    Instance {
        /// Whether it may be null.
        null: bool,
    },
}

/// The part of a socket that a function returns.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum SocketPart {
    /// Another pointer to the socket itself. Releasing one pointer releases the other.
    Itself,
    /// Another socket, which the socket keeps alive and which need not be released.
    Other,
    /// A read-only structure of so many bytes.
    Fields(u32),
}

/// Bytes of a `struct bpf_sock`, which programs may read behind a socket pointer.
pub const SOCKET_BYTES: u32 = 80;
/// Bytes of a `struct bpf_tcp_sock`.
pub const TCP_SOCKET_BYTES: u32 = 112;

/// The further effect of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Effect {
    /// No effect that the verifier tracks.
    None,
    /// The call may move or resize the regions, so all pointers into them become invalid.
    MovesPacket,
    /// The call may replace the running function by another program.
    TailCall,
    /// The call takes the lock argument. For [`LockKind::is_resilient`] it does so if the result is 0; any other result
    /// is an error number, and the lock is not taken.
    Lock(LockKind),
    /// The call releases the lock argument. The lock is of this kind, and is the held lock that was taken last.
    Unlock(LockKind),
    /// No effect, and the call is allowed while a lock is held: the function never waits, and calls no function of the
    /// host.
    UnderLock,
    /// The function may sleep: the run gives up its execution slot and all protection against freeing meanwhile, and
    /// goes on in another slot, maybe on another thread. Only programs that are sleepable ([`crate::Env::sleepable`])
    /// may call it.
    Sleeps,
    /// The function begins a section of this kind.
    Enter(Section),
    /// The function ends the innermost section of this kind.
    Leave(Section),
}

/// A part of a run in which the program may not sleep.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Section {
    /// The section from `bpf_rcu_read_lock` to `bpf_rcu_read_unlock`.
    Rcu,
    /// The section from `bpf_preempt_disable` to `bpf_preempt_enable`.
    Preempt,
}

impl Section {
    /// Returns the name that the kernel's verifier uses.
    pub const fn name(self) -> &'static str {
        match self {
            Section::Rcu => "RCU read-side critical section",
            Section::Preempt => "non-preemptible region",
        }
    }
}

impl Effect {
    /// Whether the call may be made while a lock is held.
    pub fn is_fit_for_locked(self) -> bool {
        match self {
            Effect::Lock(kind) => kind.is_resilient(),
            Effect::Unlock(_) | Effect::UnderLock => true,
            Effect::None
            | Effect::MovesPacket
            | Effect::TailCall
            | Effect::Sleeps
            | Effect::Enter(_)
            | Effect::Leave(_) => false,
        }
    }
}

/// The greatest error number (`include/linux/err.h`).
#[doc(hidden)]
pub const MAX_ERRNO: i64 = 4095;
/// The result of taking a lock where that may fail: 0 or a negative error number.
#[doc(hidden)]
pub const LOCK_RESULT: Ret = Ret::Between(-MAX_ERRNO, 0);

/// The kind of a lock operation. A lock is released as it was taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum LockKind {
    /// `bpf_spin_lock`. No other lock may be held.
    Spin,
    /// `bpf_res_spin_lock`. Other locks may be held; taking it may fail, so that a deadlock ends.
    Resilient,
    /// `bpf_res_spin_lock_irqsave`: as [`LockKind::Resilient`], with interrupts disabled.
    ResilientIrq,
}

impl LockKind {
    /// Whether taking it may fail.
    pub fn is_resilient(self) -> bool {
        match self {
            LockKind::Spin => false,
            LockKind::Resilient | LockKind::ResilientIrq => true,
        }
    }
}

/// The prototype of a function that a program may call.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub struct HelperProto {
    /// The id by which programs call it.
    pub id: u32,
    /// Its name, for messages.
    pub name: Cow<'static, str>,
    /// Its arguments.
    pub args: [ArgKind; 5],
    /// Its result.
    pub ret: Ret,
    /// Its further effect.
    pub effect: Effect,
    /// Whether memory arguments must not overlap if one of them is written (Rust's `&mut`).
    pub disjoint: bool,
}

impl HelperProto {
    /// A function without side effects that the verifier tracks.
    pub fn new(id: u32, name: impl Into<Cow<'static, str>>, args: &[ArgKind], ret: Ret) -> HelperProto {
        let mut all = [ArgKind::None; 5];
        for (slot, arg) in all.iter_mut().zip(args) {
            *slot = *arg;
        }
        HelperProto { id, name: name.into(), args: all, ret, effect: Effect::None, disjoint: false }
    }

    /// The prototype of a helper of the kernel, with its id and name.
    pub fn of(helper: Helper, args: &[ArgKind], ret: Ret) -> HelperProto {
        HelperProto::new(helper.id(), helper.name(), args, ret)
    }

    /// The callback that the function calls, if any.
    pub fn callback(&self) -> Option<CallbackKind> {
        self.args.iter().find_map(|arg| match arg {
            ArgKind::Callback(kind) => Some(*kind),
            _ => None,
        })
    }

    /// The kernel's helper with this id, if there is one.
    pub fn helper(&self) -> Option<Helper> {
        Helper::from_id(self.id)
    }

    /// Whether a call reads, and whether it writes, the contents of its map argument, a map of this kind.
    pub fn map_access(&self, kind: MapType) -> (bool, bool) {
        if self.ret == Ret::MapValueOrNull {
            return (true, false);
        }
        let has = |k: ArgKind| self.args.contains(&k);
        let out = has(ArgKind::ValueOut);
        // Update, push, pop and delete change the map. A Bloom filter's "peek" only asks for membership.
        let keyed = has(ArgKind::Key) || has(ArgKind::Value) || out;
        (out, keyed && !(kind == MapType::BloomFilter && out))
    }

    /// The number of arguments.
    pub fn arity(&self) -> u8 {
        let given = self.args.iter().take_while(|arg| **arg != ArgKind::None);
        (0u8..).zip(given).map(|(i, _)| i + 1).last().unwrap_or(0)
    }
}

/// An id that is already taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("helper id {id} is already `{first}`; `{second}` needs another")]
pub struct DuplicateHelper {
    /// The id.
    pub id: u32,
    /// The helper that has the id.
    pub first: String,
    /// The refused helper.
    pub second: String,
}

/// The functions that a program may call by id.
#[derive(Clone, Debug, Default)]
pub struct Helpers {
    /// The prototypes, ascending by id.
    protos: Vec<HelperProto>,
}

/// Maps that programs may also update and delete from. Maps of maps are changed by the host only.
const UPDATED: MapTypes = MapTypes::of(&[
    MapType::Hash,
    MapType::Array,
    MapType::PerCpuHash,
    MapType::PerCpuArray,
    MapType::LruHash,
    MapType::LruPerCpuHash,
    MapType::LpmTrie,
]);
const PERCPU: MapTypes = MapTypes::of(&[MapType::PerCpuHash, MapType::PerCpuArray, MapType::LruPerCpuHash]);
const ITERABLE: MapTypes = MapTypes::of(&[
    MapType::Hash,
    MapType::Array,
    MapType::PerCpuHash,
    MapType::PerCpuArray,
    MapType::LruHash,
    MapType::LruPerCpuHash,
]);
const QUEUES: MapTypes = MapTypes::of(&[MapType::Queue, MapType::Stack]);
const PUSHED: MapTypes = MapTypes::of(&[MapType::Queue, MapType::Stack, MapType::BloomFilter]);

impl Helpers {
    /// An empty set of functions.
    pub fn none() -> Helpers {
        Helpers::default()
    }

    /// The kernel's helpers that this family implements.
    pub fn shipped() -> Helpers {
        use ArgKind::*;
        const READ: ArgKind = Mem(MemArg::READ);
        const READ_OR_NULL: ArgKind = Mem(MemArg::READ.or_null());
        const WRITE: ArgKind = Mem(MemArg::WRITE);
        const WRITE_OR_NULL: ArgKind = Mem(MemArg::WRITE.or_null());
        const SOCKET: ArgKind = Socket { null: false, release: false };
        const fn dynptr(how: LocalUse) -> ArgKind {
            Local(self::Local::Dynptr(Dynptr::Any), how)
        }
        const fn header(bytes: u32) -> ArgKind {
            Fixed { bytes, mem: MemArg::READ }
        }
        // Memory that the function both reads and writes.
        const CHANGED: ArgKind = Mem(MemArg { access: Access::ReadWrite, ..MemArg::READ });
        const MTU: ArgKind = Fixed { bytes: 4, mem: MemArg { access: Access::ReadWrite, align: 4, ..MemArg::READ } };
        const NUMBER: ArgKind = Fixed { bytes: 8, mem: MemArg { align: 8, ..MemArg::WRITE } };
        const SIZE: ArgKind = Size { zero: false, half: false };
        // The function's parameter is a `u32`, for which clang leaves the high half of the register undefined.
        const HALF_SIZE: ArgKind = Size { zero: false, half: true };
        const SIZE_OR_ZERO: ArgKind = Size { zero: true, half: false };
        const RINGBUF: ArgKind = Map(MapTypes::of(&[MapType::RingBuf]));
        const STORAGE: ArgKind = Map(MapTypes::of(&[MapType::SkStorage]));
        const TASKS: ArgKind = Map(MapTypes::of(&[MapType::TaskStorage]));
        const SPIN_LOCK: ArgKind = Lock { resilient: false };
        const THREAD: ArgKind = Host { class: TASK, null: true };
        let h = HelperProto::of;
        let with = |effect, p: HelperProto| HelperProto { effect, ..p };
        let mut protos = vec![
            h(Helper::MapLookupElem, &[Map(MapTypes::KEYED.union(MapTypes::SOCKETS)), Key], Ret::MapValueOrNull),
            h(Helper::MapUpdateElem, &[Map(UPDATED), Key, Value, Scalar], Ret::Scalar),
            h(Helper::MapDeleteElem, &[Map(UPDATED.union(MapTypes::SOCKETS)), Key], Ret::Scalar),
            h(Helper::ProbeRead, &[WRITE, SIZE_OR_ZERO, Probed], Ret::Scalar),
            h(Helper::ProbeReadUser, &[WRITE, SIZE_OR_ZERO, Probed], Ret::Scalar),
            h(Helper::ProbeReadKernel, &[WRITE, SIZE_OR_ZERO, Probed], Ret::Scalar),
            h(Helper::ProbeReadStr, &[WRITE, SIZE_OR_ZERO, Probed], Ret::ErrorOrLength),
            h(Helper::ProbeReadUserStr, &[WRITE, SIZE_OR_ZERO, Probed], Ret::ErrorOrLength),
            h(Helper::ProbeReadKernelStr, &[WRITE, SIZE_OR_ZERO, Probed], Ret::ErrorOrLength),
            h(Helper::KtimeGetNs, &[], Ret::Scalar),
            h(Helper::TracePrintk, &[READ, SIZE, Formatted, Formatted, Formatted], Ret::Scalar),
            h(Helper::TraceVprintk, &[READ, SIZE, Values, SIZE_OR_ZERO], Ret::Scalar),
            h(Helper::Snprintf, &[WRITE_OR_NULL, SIZE_OR_ZERO, ConstStr, Values, SIZE_OR_ZERO], Ret::Scalar),
            h(Helper::Strncmp, &[READ, SIZE, ConstStr], Ret::Between(-1, 1)),
            h(Helper::GetPrandomU32, &[], Ret::Scalar),
            h(Helper::GetNumaNodeId, &[], Ret::Scalar),
            h(Helper::GetCgroupClassid, &[Ctx], Ret::Scalar),
            h(Helper::GetRouteRealm, &[Ctx], Ret::Scalar),
            h(Helper::SkbCgroupId, &[Ctx], Ret::Scalar),
            h(Helper::SkbAncestorCgroupId, &[Ctx, Scalar], Ret::Scalar),
            h(Helper::SkbCgroupClassid, &[Ctx], Ret::Scalar),
            h(Helper::GetSocketCookie, &[Ctx], Ret::Scalar),
            h(Helper::GetSocketUid, &[Ctx], Ret::Scalar),
            h(Helper::SockMapUpdate, &[Ctx, Map(MapTypes::of(&[MapType::SockMap])), Key, Scalar], Ret::Scalar),
            h(Helper::SockHashUpdate, &[Ctx, Map(MapTypes::of(&[MapType::SockHash])), Key, Scalar], Ret::Scalar),
            h(Helper::SockOpsCbFlagsSet, &[Ctx, Scalar], Ret::Scalar),
            h(Helper::SkLookupTcp, &[Ctx, READ, SIZE, Scalar, Scalar], Ret::SocketOrNull),
            h(Helper::SkLookupUdp, &[Ctx, READ, SIZE, Scalar, Scalar], Ret::SocketOrNull),
            h(Helper::SkcLookupTcp, &[Ctx, READ, SIZE, Scalar, Scalar], Ret::SocketOrNull),
            h(Helper::SkRelease, &[Socket { null: false, release: true }], Ret::Scalar),
            h(Helper::SkCgroupId, &[SOCKET], Ret::Scalar),
            h(Helper::SkAncestorCgroupId, &[SOCKET, Scalar], Ret::Scalar),
            h(Helper::SkFullsock, &[SOCKET], Ret::OfSocketOrNull(SocketPart::Itself)),
            h(Helper::TcpSock, &[SOCKET], Ret::OfSocketOrNull(SocketPart::Fields(TCP_SOCKET_BYTES))),
            h(Helper::GetListenerSock, &[SOCKET], Ret::OfSocketOrNull(SocketPart::Other)),
            h(Helper::SkStorageGet, &[STORAGE, SOCKET, ValueOrNull, Scalar], Ret::MapValueOrNull),
            h(Helper::SkStorageDelete, &[STORAGE, SOCKET], Ret::Scalar),
            h(Helper::GetCurrentTaskBtf, &[], Ret::Host(TASK)),
            h(Helper::TaskStorageGet, &[TASKS, THREAD, ValueOrNull, Scalar], Ret::MapValueOrNull),
            h(Helper::TaskStorageDelete, &[TASKS, THREAD], Ret::Scalar),
            h(Helper::SkAssign, &[Ctx, Socket { null: true, release: false }, Scalar], Ret::Scalar),
            h(Helper::SkbSetTstamp, &[Ctx, Scalar, Scalar], Ret::Scalar),
            h(Helper::TcpRawGenSyncookieIpv4, &[header(20), READ, SIZE], Ret::Scalar),
            h(Helper::TcpRawGenSyncookieIpv6, &[header(40), READ, SIZE], Ret::Scalar),
            h(Helper::TcpRawCheckSyncookieIpv4, &[header(20), header(20)], Ret::Scalar),
            h(Helper::TcpRawCheckSyncookieIpv6, &[header(40), header(20)], Ret::Scalar),
            h(Helper::GetSmpProcessorId, &[], Ret::Scalar),
            with(Effect::MovesPacket, h(Helper::SkbStoreBytes, &[Ctx, Scalar, READ, HALF_SIZE, Scalar], Ret::Scalar)),
            with(Effect::MovesPacket, h(Helper::L3CsumReplace, &[Ctx, Scalar, Scalar, Scalar, Scalar], Ret::Scalar)),
            with(Effect::MovesPacket, h(Helper::L4CsumReplace, &[Ctx, Scalar, Scalar, Scalar, Scalar], Ret::Scalar)),
            with(
                Effect::TailCall,
                h(Helper::TailCall, &[Ctx, Map(MapTypes::of(&[MapType::ProgArray])), Scalar], Ret::Scalar),
            ),
            h(Helper::GetCurrentPidTgid, &[], Ret::Scalar),
            h(Helper::GetCurrentUidGid, &[], Ret::Scalar),
            h(Helper::GetCurrentComm, &[WRITE, SIZE], Ret::Scalar),
            h(Helper::Redirect, &[Scalar, Scalar], Ret::Scalar),
            h(
                Helper::PerfEventOutput,
                &[Ctx, Map(MapTypes::of(&[MapType::PerfEventArray])), Scalar, READ, SIZE_OR_ZERO],
                Ret::Scalar,
            ),
            h(Helper::SkbLoadBytes, &[Ctx, Scalar, WRITE, HALF_SIZE], Ret::Scalar),
            h(Helper::CsumDiff, &[READ_OR_NULL, SIZE_OR_ZERO, READ_OR_NULL, SIZE_OR_ZERO, Scalar], Ret::Scalar),
            with(Effect::MovesPacket, h(Helper::XdpAdjustHead, &[Ctx, Scalar], Ret::Scalar)),
            h(Helper::RedirectMap, &[Map(MapTypes::REDIRECT), Scalar, Scalar], Ret::Scalar),
            with(Effect::MovesPacket, h(Helper::XdpAdjustMeta, &[Ctx, Scalar], Ret::Scalar)),
            with(Effect::MovesPacket, h(Helper::XdpAdjustTail, &[Ctx, Scalar], Ret::Scalar)),
            h(Helper::XdpGetBuffLen, &[Ctx], Ret::Scalar),
            h(Helper::XdpLoadBytes, &[Ctx, Scalar, WRITE, HALF_SIZE], Ret::Scalar),
            h(Helper::XdpStoreBytes, &[Ctx, Scalar, READ, HALF_SIZE], Ret::Scalar),
            with(Effect::MovesPacket, h(Helper::SkbVlanPush, &[Ctx, Scalar, Scalar], Ret::Scalar)),
            with(Effect::MovesPacket, h(Helper::SkbVlanPop, &[Ctx], Ret::Scalar)),
            with(Effect::MovesPacket, h(Helper::SkbChangeProto, &[Ctx, Scalar, Scalar], Ret::Scalar)),
            h(Helper::SkbChangeType, &[Ctx, Scalar], Ret::Scalar),
            with(Effect::MovesPacket, h(Helper::SkbChangeTail, &[Ctx, Scalar, Scalar], Ret::Scalar)),
            with(Effect::MovesPacket, h(Helper::SkbChangeHead, &[Ctx, Scalar, Scalar], Ret::Scalar)),
            with(Effect::MovesPacket, h(Helper::SkbPullData, &[Ctx, Scalar], Ret::Scalar)),
            with(Effect::MovesPacket, h(Helper::SkbAdjustRoom, &[Ctx, Scalar, Scalar, Scalar], Ret::Scalar)),
            h(Helper::SkbLoadBytesRelative, &[Ctx, Scalar, WRITE, HALF_SIZE, Scalar], Ret::Scalar),
            h(Helper::SkbEcnSetCe, &[Ctx], Ret::Scalar),
            h(Helper::GetHashRecalc, &[Ctx], Ret::Scalar),
            h(Helper::SetHashInvalid, &[Ctx], Ret::Scalar),
            h(Helper::SetHash, &[Ctx, Scalar], Ret::Scalar),
            h(Helper::CsumUpdate, &[Ctx, Scalar], Ret::Scalar),
            h(Helper::CsumLevel, &[Ctx, Scalar], Ret::Scalar),
            h(Helper::SkbGetTunnelKey, &[Ctx, WRITE, SIZE, Scalar], Ret::Scalar),
            h(Helper::SkbSetTunnelKey, &[Ctx, READ, SIZE, Scalar], Ret::Scalar),
            h(Helper::SkbGetTunnelOpt, &[Ctx, WRITE, SIZE], Ret::Scalar),
            h(Helper::SkbSetTunnelOpt, &[Ctx, READ, SIZE], Ret::Scalar),
            h(Helper::FibLookup, &[Ctx, CHANGED, SIZE, Scalar], Ret::Scalar),
            h(Helper::CheckMtu, &[Ctx, Scalar, MTU, Scalar, Scalar], Ret::Scalar),
            with(Effect::MovesPacket, h(Helper::CloneRedirect, &[Ctx, Scalar, Scalar], Ret::Scalar)),
            h(Helper::RedirectNeigh, &[Scalar, READ_OR_NULL, SIZE_OR_ZERO, Scalar], Ret::Scalar),
            h(Helper::RedirectPeer, &[Scalar, Scalar], Ret::Scalar),
            h(Helper::GetNetnsCookie, &[CtxOrNull], Ret::Scalar),
            h(Helper::Strtol, &[READ, SIZE, Scalar, NUMBER], Ret::Scalar),
            h(Helper::Strtoul, &[READ, SIZE, Scalar, NUMBER], Ret::Scalar),
            h(Helper::KtimeGetCoarseNs, &[], Ret::Scalar),
            h(Helper::KtimeGetTaiNs, &[], Ret::Scalar),
            h(Helper::MapPushElem, &[Map(PUSHED), Value, Scalar], Ret::Scalar),
            h(Helper::MapPopElem, &[Map(QUEUES), ValueOut], Ret::Scalar),
            h(Helper::MapPeekElem, &[Map(PUSHED), ValueOut], Ret::Scalar),
            with(Effect::Lock(LockKind::Spin), h(Helper::SpinLock, &[SPIN_LOCK], Ret::Scalar)),
            with(Effect::Unlock(LockKind::Spin), h(Helper::SpinUnlock, &[SPIN_LOCK], Ret::Scalar)),
            h(Helper::TimerInit, &[Timer, TimerMap, Scalar], Ret::Scalar),
            h(Helper::TimerSetCallback, &[Timer, TimerCallback], Ret::Scalar),
            h(Helper::TimerStart, &[Timer, Scalar, Scalar], Ret::Scalar),
            h(Helper::TimerCancel, &[Timer], Ret::Scalar),
            h(Helper::KptrXchg, &[Kptr, Exchanged], Ret::ObjectOrNull(ObjectFrom::Exchanged)),
            h(Helper::PerCpuPtr, &[Object(ObjectUse::Instance), Scalar], Ret::Instance { null: true }),
            h(Helper::ThisCpuPtr, &[Object(ObjectUse::Instance)], Ret::Instance { null: false }),
            h(Helper::Jiffies64, &[], Ret::Scalar),
            h(Helper::KtimeGetBootNs, &[], Ret::Scalar),
            h(Helper::RingbufOutput, &[RINGBUF, READ, SIZE_OR_ZERO, Scalar], Ret::Scalar),
            h(Helper::RingbufReserve, &[RINGBUF, RecordSize, Scalar], Ret::RecordOrNull),
            h(Helper::RingbufSubmit, &[Record, Scalar], Ret::Scalar),
            h(Helper::RingbufDiscard, &[Record, Scalar], Ret::Scalar),
            h(Helper::RingbufQuery, &[RINGBUF, Scalar], Ret::Scalar),
            h(
                Helper::ForEachMapElem,
                &[Map(ITERABLE), Callback(CallbackKind::ForEach), CallbackCtx, Scalar],
                Ret::Scalar,
            ),
            h(Helper::Loop, &[Scalar, Callback(CallbackKind::Loop), CallbackCtx, Scalar], Ret::Scalar),
            h(Helper::MapLookupPercpuElem, &[Map(PERCPU), Key, Scalar], Ret::MapValueOrNull),
            h(Helper::DynptrRead, &[WRITE, SIZE_OR_ZERO, dynptr(LocalUse::Read), Scalar, Scalar], Ret::Scalar),
            h(Helper::DynptrWrite, &[dynptr(LocalUse::Used), Scalar, READ, SIZE_OR_ZERO, Scalar], Ret::Scalar),
            h(Helper::DynptrData, &[dynptr(LocalUse::Used), Scalar, RecordSize], Ret::SliceOrNull { writable: true }),
            h(
                Helper::DynptrFromMem,
                &[
                    Mem(MemArg { access: Access::ReadWrite, from: MemSet::MAP, ..MemArg::READ }),
                    SIZE_OR_ZERO,
                    Scalar,
                    Local(self::Local::Dynptr(Dynptr::Memory), LocalUse::Made),
                ],
                Ret::Scalar,
            ),
            h(
                Helper::RingbufReserveDynptr,
                &[RINGBUF, Scalar, Scalar, Local(self::Local::Dynptr(Dynptr::Record), LocalUse::Made)],
                Ret::Scalar,
            ),
            h(
                Helper::RingbufSubmitDynptr,
                &[Local(self::Local::Dynptr(Dynptr::Record), LocalUse::Ended), Scalar],
                Ret::Scalar,
            ),
            h(
                Helper::RingbufDiscardDynptr,
                &[Local(self::Local::Dynptr(Dynptr::Record), LocalUse::Ended), Scalar],
                Ret::Scalar,
            ),
            h(
                Helper::UserRingbufDrain,
                &[Map(MapTypes::of(&[MapType::UserRingBuf])), Callback(CallbackKind::Drain), CallbackCtx, Scalar],
                Ret::Scalar,
            ),
        ];
        protos.sort_by_key(|p| p.id);
        Helpers { protos }
    }

    /// Adds a function.
    ///
    /// # Errors
    /// If the id is taken.
    pub fn add(&mut self, proto: HelperProto) -> Result<(), DuplicateHelper> {
        match self.protos.binary_search_by_key(&proto.id, |p| p.id) {
            Ok(i) => Err(DuplicateHelper {
                id: proto.id,
                first: self.protos[i].name.to_string(),
                second: proto.name.into_owned(),
            }),
            Err(i) => {
                self.protos.insert(i, proto);
                Ok(())
            }
        }
    }

    /// Replaces the function that has the prototype's id; does nothing if there is none.
    pub fn replace(&mut self, proto: HelperProto) {
        if let Ok(i) = self.protos.binary_search_by_key(&proto.id, |p| p.id) {
            self.protos[i] = proto;
        }
    }

    /// Keeps only the functions for which `keep` holds.
    pub fn retain(&mut self, keep: impl FnMut(&HelperProto) -> bool) {
        self.protos.retain(keep);
    }

    /// The function with this id.
    pub fn get(&self, id: u32) -> Option<&HelperProto> {
        self.protos.binary_search_by_key(&id, |p| p.id).ok().map(|i| &self.protos[i])
    }

    /// All functions, ascending by id.
    pub fn iter(&self) -> impl Iterator<Item = &HelperProto> {
        self.protos.iter()
    }
}
