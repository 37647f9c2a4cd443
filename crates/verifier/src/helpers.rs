//! Prototypes of the functions a program may call.
//!
//! Problem: a helper reads and writes memory on the program's behalf, and the verifier must prove each call safe
//! without knowing the helper. Approach: prototypes as data ([`HelperProto`]): what each argument must be, what comes
//! back, what else changes. [`Helpers::shipped`] lists the kernel's helpers that this family implements; hosts add
//! their own, with the same type.
//!
//! Source: argument types as in the kernel's `struct bpf_func_proto` of the helper; ids from `include/uapi/linux/bpf.h`.

use std::borrow::Cow;

use crate::env::{Access, MapKind, MapSet};

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

/// What an argument must be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum ArgKind {
    /// Nothing: not an argument.
    None,
    /// Any number. Pointers are refused: they would leak.
    Scalar,
    /// The context, as the program received it.
    Ctx,
    /// A map of one of these kinds.
    Map(MapSet),
    /// A readable key of the map.
    Key,
    /// A readable value of the map.
    Value,
    /// Room for a value of the map.
    ValueOut,
    /// Memory; the next argument is its length.
    Mem(MemArg),
    /// The length of the memory before it.
    Size {
        /// Whether it may be 0.
        zero: bool,
    },
    /// Memory of a fixed size.
    Fixed {
        /// Its size in bytes.
        bytes: u32,
        /// What it must be.
        mem: MemArg,
    },
    /// The spin lock in a map value.
    SpinLock,
    /// A known size: that of the record returned.
    RecordSize,
    /// A record returned earlier. The call consumes it.
    Record,
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

/// What comes back in r0.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Ret {
    /// Any number.
    Scalar,
    /// A signed number in this range, inclusive.
    Between(i64, i64),
    /// A value of the map argument (or the inner map), or null.
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
}

/// What else a call does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Effect {
    /// Nothing the verifier tracks.
    None,
    /// It may move or resize the regions: all pointers into them become invalid.
    MovesPacket,
    /// It may replace the current function by another program.
    TailCall,
    /// It takes the spin lock.
    Lock,
    /// It releases the spin lock.
    Unlock,
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

    /// Whether a call reads and whether it writes the contents of its map argument, a map of this kind.
    pub fn map_access(&self, kind: MapKind) -> (bool, bool) {
        if self.ret == Ret::MapValueOrNull {
            return (true, false);
        }
        let has = |k: ArgKind| self.args.contains(&k);
        let out = has(ArgKind::ValueOut);
        // Update, push, pop and delete change the map; a Bloom filter's "peek" only asks.
        let keyed = has(ArgKind::Key) || has(ArgKind::Value) || out;
        (out, keyed && !(kind == MapKind::Bloom && out))
    }

    /// The number of arguments.
    pub fn arity(&self) -> u8 {
        self.args.iter().take_while(|a| **a != ArgKind::None).count() as u8
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

const KEYED: MapSet = MapSet::of(&[
    MapKind::Hash,
    MapKind::Array,
    MapKind::PercpuHash,
    MapKind::PercpuArray,
    MapKind::LruHash,
    MapKind::LruPercpuHash,
    MapKind::LpmTrie,
]);
const LOOKUP: MapSet = MapSet::of(&[
    MapKind::Hash,
    MapKind::Array,
    MapKind::PercpuHash,
    MapKind::PercpuArray,
    MapKind::LruHash,
    MapKind::LruPercpuHash,
    MapKind::LpmTrie,
    MapKind::ArrayOfMaps,
    MapKind::HashOfMaps,
]);
const PERCPU: MapSet = MapSet::of(&[MapKind::PercpuHash, MapKind::PercpuArray, MapKind::LruPercpuHash]);
const ITERABLE: MapSet = MapSet::of(&[
    MapKind::Hash,
    MapKind::Array,
    MapKind::PercpuHash,
    MapKind::PercpuArray,
    MapKind::LruHash,
    MapKind::LruPercpuHash,
]);
const REDIRECT: MapSet = MapSet::of(&[MapKind::DevMap, MapKind::DevMapHash, MapKind::CpuMap, MapKind::XskMap]);
const QUEUES: MapSet = MapSet::of(&[MapKind::Queue, MapKind::Stack]);
const PUSHED: MapSet = MapSet::of(&[MapKind::Queue, MapKind::Stack, MapKind::Bloom]);

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
        const SIZE: ArgKind = Size { zero: false };
        const SIZE_OR_ZERO: ArgKind = Size { zero: true };
        const RINGBUF: ArgKind = Map(MapSet::of(&[MapKind::RingBuf]));
        let h = HelperProto::new;
        let with = |effect, p: HelperProto| HelperProto { effect, ..p };
        let mut protos = vec![
            h(1, "bpf_map_lookup_elem", &[Map(LOOKUP), Key], Ret::MapValueOrNull),
            h(2, "bpf_map_update_elem", &[Map(KEYED), Key, Value, Scalar], Ret::Scalar),
            h(3, "bpf_map_delete_elem", &[Map(KEYED), Key], Ret::Scalar),
            h(5, "bpf_ktime_get_ns", &[], Ret::Scalar),
            h(6, "bpf_trace_printk", &[READ, SIZE, Scalar, Scalar, Scalar], Ret::Scalar),
            h(7, "bpf_get_prandom_u32", &[], Ret::Scalar),
            h(8, "bpf_get_smp_processor_id", &[], Ret::Scalar),
            with(Effect::MovesPacket, h(9, "bpf_skb_store_bytes", &[Ctx, Scalar, READ, SIZE, Scalar], Ret::Scalar)),
            with(
                Effect::MovesPacket,
                h(10, "bpf_l3_csum_replace", &[Ctx, Scalar, Scalar, Scalar, Scalar], Ret::Scalar),
            ),
            with(
                Effect::MovesPacket,
                h(11, "bpf_l4_csum_replace", &[Ctx, Scalar, Scalar, Scalar, Scalar], Ret::Scalar),
            ),
            with(
                Effect::TailCall,
                h(12, "bpf_tail_call", &[Ctx, Map(MapSet::of(&[MapKind::ProgArray])), Scalar], Ret::Scalar),
            ),
            h(14, "bpf_get_current_pid_tgid", &[], Ret::Scalar),
            h(15, "bpf_get_current_uid_gid", &[], Ret::Scalar),
            h(16, "bpf_get_current_comm", &[WRITE, SIZE], Ret::Scalar),
            h(23, "bpf_redirect", &[Scalar, Scalar], Ret::Scalar),
            h(
                25,
                "bpf_perf_event_output",
                &[Ctx, Map(MapSet::of(&[MapKind::PerfEventArray])), Scalar, READ, SIZE_OR_ZERO],
                Ret::Scalar,
            ),
            h(26, "bpf_skb_load_bytes", &[Ctx, Scalar, WRITE, SIZE], Ret::Scalar),
            h(28, "bpf_csum_diff", &[READ_OR_NULL, SIZE_OR_ZERO, READ_OR_NULL, SIZE_OR_ZERO, Scalar], Ret::Scalar),
            with(Effect::MovesPacket, h(44, "bpf_xdp_adjust_head", &[Ctx, Scalar], Ret::Scalar)),
            h(51, "bpf_redirect_map", &[Map(REDIRECT), Scalar, Scalar], Ret::Scalar),
            with(Effect::MovesPacket, h(54, "bpf_xdp_adjust_meta", &[Ctx, Scalar], Ret::Scalar)),
            with(Effect::MovesPacket, h(65, "bpf_xdp_adjust_tail", &[Ctx, Scalar], Ret::Scalar)),
            h(87, "bpf_map_push_elem", &[Map(PUSHED), Value, Scalar], Ret::Scalar),
            h(88, "bpf_map_pop_elem", &[Map(QUEUES), ValueOut], Ret::Scalar),
            h(89, "bpf_map_peek_elem", &[Map(PUSHED), ValueOut], Ret::Scalar),
            with(Effect::Lock, h(93, "bpf_spin_lock", &[SpinLock], Ret::Scalar)),
            with(Effect::Unlock, h(94, "bpf_spin_unlock", &[SpinLock], Ret::Scalar)),
            h(118, "bpf_jiffies64", &[], Ret::Scalar),
            h(125, "bpf_ktime_get_boot_ns", &[], Ret::Scalar),
            h(130, "bpf_ringbuf_output", &[RINGBUF, READ, SIZE_OR_ZERO, Scalar], Ret::Scalar),
            h(131, "bpf_ringbuf_reserve", &[RINGBUF, RecordSize, Scalar], Ret::RecordOrNull),
            h(132, "bpf_ringbuf_submit", &[Record, Scalar], Ret::Scalar),
            h(133, "bpf_ringbuf_discard", &[Record, Scalar], Ret::Scalar),
            h(134, "bpf_ringbuf_query", &[RINGBUF, Scalar], Ret::Scalar),
            h(
                164,
                "bpf_for_each_map_elem",
                &[Map(ITERABLE), Callback(CallbackKind::ForEach), CallbackCtx, Scalar],
                Ret::Scalar,
            ),
            h(181, "bpf_loop", &[Scalar, Callback(CallbackKind::Loop), CallbackCtx, Scalar], Ret::Scalar),
            h(195, "bpf_map_lookup_percpu_elem", &[Map(PERCPU), Key, Scalar], Ret::MapValueOrNull),
            h(
                201,
                "bpf_dynptr_read",
                &[WRITE, SIZE_OR_ZERO, Host { class: DYNPTR, null: false }, Scalar, Scalar],
                Ret::Scalar,
            ),
            h(
                209,
                "bpf_user_ringbuf_drain",
                &[Map(MapSet::of(&[MapKind::UserRingBuf])), Callback(CallbackKind::Drain), CallbackCtx, Scalar],
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
