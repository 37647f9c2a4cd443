//! Prototypes of the functions a program may call.
//!
//! Problem: a helper reads and writes memory on the program's behalf, and the verifier must prove each call safe
//! without knowing the helper. Approach: prototypes as data ([`HelperProto`]): what each argument must be, what comes
//! back, what else changes. [`Helpers::shipped`] lists the kernel's helpers that this family implements; hosts add
//! their own, with the same type.
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
    /// A map value: other threads may change it meanwhile.
    pub const MAP: MemSet = MemSet(4);
    /// Memory a helper returned.
    pub const MEM: MemSet = MemSet(8);
    /// All of them.
    pub const ANY: MemSet = MemSet(15);
    /// Memory only this run can touch: what a Rust `&[u8]` or `&mut [u8]` may be made of.
    pub const OWNED: MemSet = MemSet(1 | 2);

    /// Both.
    #[must_use]
    pub const fn union(self, other: MemSet) -> MemSet {
        MemSet(self.0 | other.0)
    }
    /// Whether all of `other` is in it.
    pub const fn contains(self, other: MemSet) -> bool {
        self.0 & other.0 == other.0
    }
}

/// What a pointer argument's memory must be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct MemArg {
    /// What the function does with it. Memory that is only written need not be initialised. Promised: it then writes
    /// all of it, zeros if it fails, as the program may read it afterwards.
    pub access: Access,
    /// Whether the pointer may be null: of memory with a length, only if that is 0.
    pub null: bool,
    /// Required alignment in bytes, a power of two.
    pub align: u32,
    /// Where it may lie.
    pub from: MemSet,
}

impl MemArg {
    /// Readable memory anywhere.
    pub const READ: MemArg = MemArg { access: Access::Read, null: false, align: 1, from: MemSet::ANY };
    /// Writable memory anywhere; need not be initialised.
    pub const WRITE: MemArg = MemArg { access: Access::Write, ..MemArg::READ };

    /// The same, or null.
    pub const fn or_null(self) -> MemArg {
        MemArg { null: true, ..self }
    }
}

/// Who calls a callback, and so what it is given.
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

/// The class of the host object that stands for a thread (`struct task_struct *`): programs only pass it on. It is a
/// number, and whatever takes one takes any.
pub const TASK: u32 = u32::MAX - 1;

/// An object that a program keeps on its stack for functions to work on. It is opaque: the program may neither read nor
/// write it, and what a store destroys is none any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Local {
    /// `struct bpf_iter_num`: the numbers of a range, one after the other.
    Numbers,
    /// `struct bpf_iter_bits`: the numbers of the bits that are set in a copy of some memory.
    Bits,
    /// What `bpf_local_irq_save` leaves for `bpf_local_irq_restore`; `lock`: what `bpf_res_spin_lock_irqsave` leaves
    /// for `bpf_res_spin_unlock_irqrestore`.
    Interrupts {
        /// Which of the two.
        lock: bool,
    },
    /// `struct bpf_dynptr`: memory whose place and length are known when the program runs.
    Dynptr(Dynptr),
    /// The bytes that a slice may lie in ([`ArgKind::SliceBuffer`]), as many as it has. Unlike the others the program
    /// reads them, as numbers; one that writes them takes them back from the slice.
    Buffer,
}

/// What a dynptr leads to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Dynptr {
    /// Of an argument: any of those below. Of one that is made: as the one that is used.
    Any,
    /// Memory that stays to the end of the run.
    Memory,
    /// The packet, wherever it is at a time.
    Packet,
    /// A record of a ring buffer, to be submitted or discarded.
    Record,
}

impl Local {
    /// Bytes of stack, at a multiple of 8; 0 where that is said elsewhere.
    pub const fn size(self) -> u32 {
        match self {
            Local::Numbers | Local::Interrupts { .. } => 8,
            Local::Bits | Local::Dynptr(_) => 16,
            Local::Buffer => 0,
        }
    }

    /// What it is, for messages.
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

    /// Whether one that a function made must be ended.
    #[doc(hidden)]
    pub const fn is_owed(self) -> bool {
        match self {
            Local::Numbers | Local::Bits | Local::Interrupts { .. } | Local::Dynptr(Dynptr::Record) => true,
            Local::Dynptr(Dynptr::Any | Dynptr::Memory | Dynptr::Packet) | Local::Buffer => false,
        }
    }

    /// Whether an object of the other kind is one of these.
    #[doc(hidden)]
    pub fn includes(self, other: Local) -> bool {
        self == other || matches!((self, other), (Local::Dynptr(Dynptr::Any), Local::Dynptr(_)))
    }
}

/// What a function does with a [`Local`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum LocalUse {
    /// It makes one there, whatever was there before. Some kinds the program must have ended before it exits.
    Made,
    /// It only reads it: also one that is no object on the stack, but was lent to a callback.
    Read,
    /// It uses it.
    Used,
    /// It ends it: there is none afterwards, and all pointers that came of it are gone.
    Ended,
}

/// What holds objects together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Graph {
    /// `struct bpf_list_head`.
    List,
    /// `struct bpf_rb_root`.
    Tree,
}

/// What a function does with an object of the program's own.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum ObjectUse {
    /// It takes it from the program, which owns it.
    Given,
    /// The same, of an object with an instance for each CPU.
    GivenInstances,
    /// It finds an instance for a CPU: the object lies in a map's value, where it was loaded from.
    Instance,
    /// It makes another owner of it, whoever owns it: it has a `struct bpf_refcount`.
    Shared,
}

/// What a function does with the node of an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum NodeUse {
    /// It puts it where the root argument is, which owns the object then; the program has lent it until the lock is
    /// released.
    Added,
    /// It looks for it there.
    Member,
}

/// Where an object that a function returns comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum ObjectFrom {
    /// It is new, of the type argument.
    Made,
    /// It is the object argument, once more: never null where the program owns that.
    Shared,
    /// It was taken out of the root argument: its node.
    Taken,
    /// It is in the root argument, which owns it: its node, until the lock is released.
    Seen,
    /// It was in the kptr argument.
    Exchanged,
}

/// What an argument must be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum ArgKind {
    /// Nothing: not an argument.
    None,
    /// Any number. Pointers are refused: they would leak.
    Scalar,
    /// A value that the format in the first argument may ask for: a number, or a pointer if the format is known and
    /// asks for one. If it is known and asks for fewer, the register is not looked at. Promised: of what a pointer
    /// leads to, no more is read than [`bpf_analysis::Facts::formats`] says.
    Formatted,
    /// Such values in memory, eight bytes each, or null; the next argument is their length.
    Values,
    /// The context, as the program received it.
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
    /// Room for a value of the map.
    ValueOut,
    /// Memory; the next argument is its length.
    Mem(MemArg),
    /// The length of the memory before it.
    Size {
        /// Whether it may be 0.
        zero: bool,
        /// Promised: the function reads only the low 32 bits of the register.
        half: bool,
    },
    /// Memory, as long as the [`ArgKind::Length`] behind it says.
    MemOfLength(MemArg),
    /// The length of each [`ArgKind::MemOfLength`] before it; it may be 0.
    Length,
    /// Memory of a fixed size.
    Fixed {
        /// Its size in bytes.
        bytes: u32,
        /// What it must be.
        mem: MemArg,
    },
    /// The lock in a map value: a `bpf_spin_lock`, or a resilient one, `bpf_res_spin_lock`.
    Lock {
        /// Which.
        resilient: bool,
    },
    /// The timer in a map value, of a map of the program's own.
    Timer,
    /// The work for later (`struct bpf_wq`) in a map value, of a map of the program's own.
    Work,
    /// The map whose value that is.
    TimerMap,
    /// A function of the program that the timer, or what does the work, is to call: with the map, the key, and the
    /// value that it is in. It is called by no run of the program, but later, and gets no context.
    TimerCallback,
    /// A known size: that of the record returned.
    RecordSize,
    /// A record returned earlier. The call consumes it.
    Record,
    /// An object on the program's stack.
    Local(Local, LocalUse),
    /// The number of a type of the program's own ([`crate::Env::local_types`]), of which the function makes an object.
    LocalType {
        /// One with an instance for each CPU.
        per_cpu: bool,
    },
    /// An object of the program's own, by its start.
    Object(ObjectUse),
    /// A list or a tree in a map's value, whose lock the program has.
    Root(Graph),
    /// The node by which an object is in the root argument before it.
    Node(Graph, NodeUse),
    /// A function of the program that says whether the first of two nodes, as the node argument is, comes before the
    /// second. It is called with the lock held, and calls nothing.
    Compare,
    /// A pointer to an object in a map's value, or in an object.
    Kptr,
    /// What goes there: an object of that type which the program owns, or null.
    Exchanged,
    /// Anything: the function does not look at it.
    Unused,
    /// A pointer to memory whose length no argument says, or a number. Promised: of what it leads to, no more is read
    /// than [`bpf_analysis::Facts::formats`] says for the call and the argument; behind a number, nothing.
    Peeked {
        /// Nothing behind its first zero byte.
        text: bool,
    },
    /// The source of a copy, whose length is another argument: a pointer to memory, or a number. The length is not
    /// proven: the function compares it with the readable bytes in [`bpf_analysis::Facts::formats`] for the call and
    /// the argument, and fails if it is greater. Promised: the function reads nothing at an address that is a number.
    Probed,
    /// Room for the slice that is returned, or 0; the next argument is [`ArgKind::RecordSize`]. Of a packet, the slice
    /// may be there, and is gone when the program writes there itself. Promised: the function writes all of it.
    SliceBuffer,
    /// A string: constant data of the program, up to a zero byte in it.
    ConstStr,
    /// A socket, as it was given: by a function, or by the context.
    Socket {
        /// Whether it may be null, or 0.
        null: bool,
        /// Whether the call gives it back: it must be one that was looked up, and is gone then.
        release: bool,
    },
    /// A function of the program.
    Callback(CallbackKind),
    /// What the callback receives as its context: a pointer to the stack, or 0.
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
    /// Whether the call changes something for what comes after it: gives back, makes, or calls back.
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

    /// Whether it is an iterator that elements of this size come of.
    #[doc(hidden)]
    pub fn is_iterator(self, bytes: u32) -> bool {
        match self {
            ArgKind::Local(Local::Numbers | Local::Bits, LocalUse::Used) => bytes == 4,
            _ => false,
        }
    }
}

/// What comes back in r0.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Ret {
    /// Any number.
    Scalar,
    /// The first argument, which is memory.
    First,
    /// A signed number in this range, inclusive.
    Between(i64, i64),
    /// A negative error number, or at most the length in the [`ArgKind::Size`] argument.
    ErrorOrLength,
    /// A value of the map argument (or the inner map), or null. Of a map of sockets as [`Ret::SocketOrNull`].
    MapValueOrNull,
    /// A new record of the size argument, or null. It must be consumed by a [`ArgKind::Record`] argument.
    RecordOrNull,
    /// Memory of this size, 8-byte aligned, or null. Promised: it stays valid to the end of the run.
    MemOrNull {
        /// Size in bytes.
        bytes: u32,
        /// Whether the program may write to it.
        writable: bool,
    },
    /// A host object of this class, or null, valid to the end of the run.
    HostOrNull(u32),
    /// The same, and never null.
    Host(u32),
    /// Nothing: the call ends the run. Promised: it never returns, and what the run owes (records, locks) is given up.
    Never,
    /// Nothing: the call throws. The program ends, through all of its functions, with the first argument as its result,
    /// or with what its exception callback ([`crate::Env::exception`]) makes of it. Promised: nothing of any of the
    /// functions happens any more, and the program's caller goes on as after any exit.
    Thrown,
    /// The next element of the iterator argument, or null when there is no other: so many bytes, which only the
    /// iterator changes. Promised: after finitely many calls it is null.
    ElementOrNull(u32),
    /// Memory that the dynptr argument leads to, as many bytes as [`ArgKind::RecordSize`] says, or null: as long as
    /// what is behind the dynptr stays where it is.
    SliceOrNull {
        /// Whether the program may write to it.
        writable: bool,
    },
    /// A socket that was looked up, or null. It must be given back by an [`ArgKind::Socket`] argument that releases.
    SocketOrNull,
    /// What belongs to the socket argument, or null: so long as that is there.
    OfSocketOrNull(SocketPart),
    /// An object of the program's own, or null. Promised: its memory stays valid to the end of the run; it is of the
    /// type that the arguments say, and where the program owns it, nobody frees it before it gives it away.
    ObjectOrNull(ObjectFrom),
    /// The instance of the object argument ([`ObjectUse::Instance`]) for a CPU, 8-byte aligned; `null`: or null.
    /// Promised: it stays valid to the end of the run.
    Instance {
        /// Whether it may be null.
        null: bool,
    },
}

/// What belongs to a socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum SocketPart {
    /// The same socket, by another pointer to it: giving back one gives back the other.
    Itself,
    /// Another socket that it keeps, which need not be given back.
    Other,
    /// So many bytes, only to be read.
    Fields(u32),
}

/// Bytes of a `struct bpf_sock`, which programs read where a socket is.
pub const SOCKET_BYTES: u32 = 80;
/// Bytes of a `struct bpf_tcp_sock`.
pub const TCP_SOCKET_BYTES: u32 = 112;

/// What else a call does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Effect {
    /// Nothing the verifier tracks.
    None,
    /// It may move or resize the regions: all pointers into them become invalid.
    MovesPacket,
    /// It may replace the current function by another program.
    TailCall,
    /// It takes the lock argument. A [`LockKind::is_resilient`] one is taken if the result is 0; else the result is an
    /// error number, and the lock is not taken.
    Lock(LockKind),
    /// It releases the lock argument, which is of this kind and was taken last of those that are held.
    Unlock(LockKind),
    /// Nothing, and it may be called while a lock is held: it waits for nobody, and calls no function of the host's.
    UnderLock,
}

impl Effect {
    /// Whether the call may be made while a lock is held.
    pub fn is_fit_for_locked(self) -> bool {
        match self {
            Effect::Lock(kind) => kind.is_resilient(),
            Effect::Unlock(_) | Effect::UnderLock => true,
            Effect::None | Effect::MovesPacket | Effect::TailCall => false,
        }
    }
}

/// The greatest error number (`include/linux/err.h`).
#[doc(hidden)]
pub const MAX_ERRNO: i64 = 4095;
/// What taking a lock returns that may fail.
#[doc(hidden)]
pub const LOCK_RESULT: Ret = Ret::Between(-MAX_ERRNO, 0);

/// How a lock is taken, and so how it is released.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum LockKind {
    /// `bpf_spin_lock`: only while no other is held.
    Spin,
    /// `bpf_res_spin_lock`: others may be held. Taking it may fail, so that nobody waits for ever.
    Resilient,
    /// The same, with interrupts disabled.
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

/// A function a program may call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HelperProto {
    /// The id programs call it by.
    pub id: u32,
    /// Its name, for messages.
    pub name: Cow<'static, str>,
    /// Its arguments.
    pub args: [ArgKind; 5],
    /// Its result.
    pub ret: Ret,
    /// What else it does.
    pub effect: Effect,
    /// Whether memory arguments must not overlap when one of them is written (Rust's `&mut`).
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

    /// The prototype of a helper of the kernel: its id and name.
    pub fn of(helper: Helper, args: &[ArgKind], ret: Ret) -> HelperProto {
        HelperProto::new(helper.id(), helper.name(), args, ret)
    }

    /// How it calls a function of the program, if it does.
    pub fn callback(&self) -> Option<CallbackKind> {
        self.args.iter().find_map(|arg| match arg {
            ArgKind::Callback(kind) => Some(*kind),
            _ => None,
        })
    }

    /// The helper of the kernel that has this id, if there is one.
    pub fn helper(&self) -> Option<Helper> {
        Helper::from_id(self.id)
    }

    /// Whether a call reads and whether it writes the contents of its map argument, a map of this kind.
    pub fn map_access(&self, kind: MapType) -> (bool, bool) {
        if self.ret == Ret::MapValueOrNull {
            return (true, false);
        }
        let has = |k: ArgKind| self.args.contains(&k);
        let out = has(ArgKind::ValueOut);
        // Update, push, pop and delete change the map; a Bloom filter's "peek" only asks.
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
    /// The helper that has it.
    pub first: String,
    /// The helper that wanted it.
    pub second: String,
}

/// The functions a program may call by id.
#[derive(Clone, Debug, Default)]
pub struct Helpers {
    /// Ascending by id.
    protos: Vec<HelperProto>,
}

/// What programs may also update and delete: maps of maps change from the host only.
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
    /// No helper.
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
        // It reads the structure, and writes it.
        const CHANGED: ArgKind = Mem(MemArg { access: Access::ReadWrite, ..MemArg::READ });
        const MTU: ArgKind = Fixed { bytes: 4, mem: MemArg { access: Access::ReadWrite, align: 4, ..MemArg::READ } };
        const NUMBER: ArgKind = Fixed { bytes: 8, mem: MemArg { align: 8, ..MemArg::WRITE } };
        const SIZE: ArgKind = Size { zero: false, half: false };
        // The function's parameter is a `u32`: clang leaves the high half of the register undefined.
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

    /// Puts a function in the place of the one with its id, if there is one.
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

    /// All of them, ascending by id.
    pub fn iter(&self) -> impl Iterator<Item = &HelperProto> {
        self.protos.iter()
    }
}
