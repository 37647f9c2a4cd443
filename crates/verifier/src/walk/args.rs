//! Arguments of helper calls, each checked against its [`ArgKind`].
//!
//! Invariant: memory that a helper reads is initialised and holds no pointer; memory that it writes is forgotten; a
//! length is never more than the proven number of bytes. A helper may read all its arguments before it writes one, so
//! all are checked against the state before the call: writes are noted, and take effect at the end.

mod memory;
mod shape;

use bpf_analysis::FORMAT_VALUES;
use bpf_isa::Reg;

use super::mem::Place;
use super::{Res, Walk, refuse};
use bpf_uapi::{OwnedKind, OwnedType};

use crate::access::Access;
use crate::env::KnownMap;
use crate::error::Reason;
use crate::faults::planted;
use crate::helpers::{
    ArgKind, CallbackKind, DYNPTR, Dynptr, Graph, HelperProto, Local, LocalUse, MemArg, NodeUse, ObjectUse, Ret,
    SOCKET_BYTES,
};
use crate::state::{Lock, LockOf, Owed, Within};
use crate::value::{Debt, Hold, Origin, Ty, Value, Why, map_name};

/// The greatest length of a record; a ring returns null for more (Linux: `RINGBUF_MAX_RECORD_SZ`).
const MAX_RECORD: u64 = 0x3fff_ffff;

/// Findings about the arguments of one call.
#[derive(Debug, Default)]
pub(super) struct Call<'a> {
    /// The map argument.
    pub map: Option<(u32, bool, &'a KnownMap)>,
    /// The value of the key argument, if its bytes are known.
    pub key: Option<u64>,
    /// The record size argument.
    pub record_size: u32,
    /// The owner id of the released object.
    pub given_back: u32,
    /// The place of an object that the call makes on the stack.
    pub made: Option<(Local, u8, usize)>,
    /// The object on the stack that the call uses.
    pub local: Option<Value>,
    /// The stack bytes in which the returned slice may lie.
    pub buffer: Option<(u8, usize, usize)>,
    /// The socket argument.
    pub socket: Option<Value>,
    /// The callback's function.
    pub callback: Option<(CallbackKind, u32)>,
    /// The owner of the lock argument.
    pub lock: Option<LockOf>,
    /// The map that contains the timer.
    pub timer: Option<u32>,
    /// The function that the timer calls.
    pub timer_callback: Option<u32>,
    /// The type of the new object.
    pub class: Option<u32>,
    /// The object argument.
    pub object: Option<Value>,
    /// The root argument: the type of its elements, and the offset of their node.
    pub root: Option<(u32, u32)>,
    /// The held lock that guards it.
    root_lock: Option<Lock>,
    /// The type of the kptr argument.
    pub kptr: Option<u32>,
    /// Whether the released object is stored in the kptr and has an instance for each CPU: then its holders still see
    /// it there.
    pub stashed: bool,
    /// The id under which the object that contains the kptr is owed; 0 if it is in a map value.
    kptr_in: u32,
    /// The id under which the object that goes into the root was owed.
    pub lent: u32,
    /// The function that compares nodes of the tree.
    pub compare: Option<Compare>,
    /// Bytes proven readable behind pointers among a format's values, or behind peeked arguments.
    pub values: [Option<u32>; FORMAT_VALUES],
    /// The context regions into which probed arguments point.
    pub regions: [Option<u8>; FORMAT_VALUES],
    /// Memory arguments: argument number, pointer, bytes, written.
    memory: [Option<(usize, Value, u64, bool)>; 5],
    /// Stack that the helper may write: the place, and the least number of bytes written.
    written: [Option<(Place, u64)>; 5],
}

/// A function that compares nodes of trees in a map's values.
#[derive(Clone, Copy, Debug)]
pub(super) struct Compare {
    pub subprog: u32,
    /// The type of the tree's elements, and the offset of their node.
    pub class: u32,
    pub node: u32,
    /// The held lock, of one of the calls.
    pub lock: Lock,
}

impl Compare {
    /// Whether one walk serves for both.
    pub(super) fn is_like(&self, other: &Compare) -> bool {
        (self.subprog, self.class, self.node) == (other.subprog, other.class, other.node)
    }
}

/// The owner of a lock, if a program may take it: a map's value, or an object that the program owns, so that it is not
/// freed meanwhile.
fn lock_owner(v: &Value) -> Option<LockOf> {
    match v.ty {
        Ty::MapValue { map, inner } if !v.null => Some(LockOf { within: Within::Value { map, inner }, id: v.id }),
        Ty::Mem { from: Origin::Object { class, hold: Hold::Owned }, .. } if !v.null && v.owner != 0 => {
            Some(LockOf { within: Within::Object { class }, id: v.owner })
        }
        _ => None,
    }
}

/// The type of an object, and how the program holds it, if the pointer is not null.
fn object_at(v: &Value) -> Option<(u32, Hold)> {
    match v.ty {
        Ty::Mem { from: Origin::Object { class, hold }, .. } if !v.null => Some((class, hold)),
        _ => None,
    }
}

impl<'a> Walk<'a> {
    pub(super) fn check_args(&mut self, proto: &'a HelperProto) -> Res<Call<'a>> {
        shape::check_shape(proto)?;
        let mut call = Call::default();
        for (i, (&kind, reg)) in proto.args.iter().zip(Reg::ARGS).enumerate() {
            if kind == ArgKind::None || kind == ArgKind::Formatted && self.is_beyond_format(proto, i)? {
                break;
            }
            // Newer declarations of such functions leave the argument off, so the register may hold nothing.
            if kind == ArgKind::Unused {
                continue;
            }
            let mut v = self.read(reg)?;
            if kind == ArgKind::Scalar && self.env.privileged && v.is_pointer() {
                v = self.shown(v);
                self.state.set(reg, v);
            }
            self.check_arg(proto, i, kind, reg, &v, &mut call)?;
        }
        if proto.disjoint {
            self.check_disjoint(proto, &call)?;
        }
        for &(place, least) in call.written.iter().flatten() {
            self.write_argument(place, least);
        }
        Ok(call)
    }

    /// Applies a helper's write of at least so many bytes. Bytes beyond `least` stay readable only if they were
    /// readable before.
    fn write_argument(&mut self, place: Place, least: u64) {
        match place {
            Place::Stack { frame, depth, size } => {
                self.writes_stack(frame.into(), depth, crate::num::size(least));
                let f = &mut self.state.frames[usize::from(frame)];
                f.store_somewhere(depth, size);
                let least = if planted!(HelperWritesMost) { size } else { crate::num::size(least) };
                if least > 0 {
                    f.store_misc(depth, least);
                }
            }
            Place::StackWithin { frame, depth, span } => {
                self.state.frames[usize::from(frame)].store_somewhere(depth, span);
            }
            Place::Field { .. } | Place::Untracked(_) => {}
        }
    }

    fn check_arg(
        &mut self,
        proto: &'a HelperProto,
        i: usize,
        kind: ArgKind,
        reg: Reg,
        v: &Value,
        call: &mut Call<'a>,
    ) -> Res<()> {
        let wrong = |walk: &Self, expected: &str| {
            refuse(Reason::Arg {
                func: proto.name.to_string(),
                arg: i + 1,
                reg,
                expected: expected.into(),
                got: v.describe(walk.env),
            })
        };
        match kind {
            ArgKind::None | ArgKind::Unused => {}
            // The function tests for null before it reads.
            ArgKind::Peeked { .. } | ArgKind::Probed if v.as_const() == Some(0) => {
                self.decides();
                call.values[i] = Some(u32::MAX);
            }
            ArgKind::Peeked { .. } | ArgKind::Probed if v.is_scalar() => {}
            ArgKind::Probed => {
                if let Ty::Packet { region } = v.ty {
                    // Nothing has to be proven: the function compares with the region's bounds at run time.
                    self.decides();
                    (call.values[i], call.regions[i]) = (Some(0), Some(region));
                } else {
                    let more = if planted!(ProbedMore) { 8 } else { 0 };
                    call.values[i] = Some(self.peeked(proto, i, reg, v, false)? + more);
                }
            }
            ArgKind::Peeked { text } => call.values[i] = Some(self.peeked(proto, i, reg, v, text)?),
            // Checked with its length, the next argument.
            ArgKind::SliceBuffer if proto.args.get(i + 1) == Some(&ArgKind::RecordSize) => {}
            ArgKind::SliceBuffer => {
                return refuse(Reason::Environment(format!("{}: a buffer without a length", proto.name)));
            }
            ArgKind::Scalar | ArgKind::Formatted if v.is_scalar() || v.is_arena() => {}
            ArgKind::Formatted if self.formatted_pointer(proto, i, reg, v, call)? => {}
            ArgKind::Formatted if self.env.privileged => {}
            ArgKind::Scalar | ArgKind::Formatted => return wrong(self, "a number (an address would leak)"),
            ArgKind::Ctx if !v.null && self.is_ctx(v) => {}
            ArgKind::Ctx => return wrong(self, "the context"),
            ArgKind::CtxOrNull if (!v.null && self.is_ctx(v)) || v.as_const() == Some(0) => {}
            ArgKind::CtxOrNull => return wrong(self, "the context or 0"),
            ArgKind::Map(set) => match v.ty {
                Ty::Map { map, inner } if !v.null => {
                    let def = self.map(map, inner)?;
                    if !set.contains(def.kind) {
                        return refuse(Reason::Arg {
                            func: proto.name.to_string(),
                            arg: i + 1,
                            reg,
                            expected: "a map of a kind it works on".into(),
                            got: format!("{} of type {:?}", map_name(self.env, map, inner), def.kind),
                        });
                    }
                    self.check_map_access(proto, map, inner, def)?;
                    call.map = Some((map, inner, def));
                }
                _ => return wrong(self, "a map"),
            },
            ArgKind::Key | ArgKind::Value | ArgKind::ValueOrNull | ArgKind::ValueOut => {
                let (_, _, def) = self.map_of(call)?;
                let Some((mem, bytes)) = def.memory_of(kind) else {
                    return refuse(Reason::Internal("an argument of no map"));
                };
                self.memory(proto, i, reg, v, bytes.into(), mem, call)?;
                if kind != ArgKind::Key {
                    return Ok(());
                }
                // Only for arrays does it matter which element it is.
                call.key = self.known_key(v, def.key_size).filter(|_| def.kind.is_array());
                if let (Some(_), Ty::Stack { frame }, false) = (call.key, v.ty, planted!(KeysUnmarked)) {
                    let depth = crate::num::size(v.n.smin().unsigned_abs());
                    self.stack_decides(frame.into(), depth, def.key_size as usize);
                }
            }
            // Checked with its length, the next argument.
            ArgKind::Mem(_) | ArgKind::Values if matches!(proto.args.get(i + 1), Some(ArgKind::Size { .. })) => {}
            ArgKind::Mem(_) | ArgKind::Values => {
                return refuse(Reason::Environment(format!("{}: memory without a length", proto.name)));
            }
            ArgKind::Size { zero, half } => {
                if !v.is_scalar() {
                    return wrong(self, "a length");
                }
                let low = v.n.zext_low();
                let low = match self.low_bits_of(v, 32) {
                    Some(named) => Value { n: named.n.meet(&low).unwrap_or(low), ..named },
                    None => Value::scalar(low),
                };
                let v = if (half || planted!(LengthsAreHalves)) && !v.is_short() { &low } else { v };
                let before = i.checked_sub(1).and_then(|p| Some((*proto.args.get(p)?, *Reg::ARGS.get(p)?)));
                let (mem, base_reg) = match before {
                    Some((ArgKind::Mem(mem), base)) => (mem, base),
                    Some((ArgKind::Values, base)) => (MemArg::READ.or_null(), base),
                    _ => return refuse(Reason::Environment(format!("{}: a length follows no memory", proto.name))),
                };
                if v.n.umax() > u64::from(u32::MAX) {
                    return wrong(self, "a length with a known maximum");
                }
                if v.n.umin() == 0 && !zero {
                    return wrong(self, "a length of at least 1");
                }
                let base = self.read(base_reg)?;
                let sizes = (v.n.umin(), v.n.umax());
                if before.is_some_and(|(kind, _)| kind == ArgKind::Values)
                    && self.values_on_stack(proto, i - 1, base_reg, &base, sizes, call)?
                {
                    return Ok(());
                }
                // Written bytes must be written for every length; read bytes must be readable up to the greatest
                // length.
                self.sized_memory(proto, i - 1, base_reg, &base, v, mem, call)?;
            }
            ArgKind::MemOfLength(_) if proto.args[i..].contains(&ArgKind::Length) => {}
            ArgKind::MemOfLength(_) => {
                return refuse(Reason::Environment(format!("{}: memory without a length", proto.name)));
            }
            ArgKind::Length => {
                if !v.is_scalar() {
                    return wrong(self, "a length");
                }
                if v.n.umax() > u64::from(u32::MAX) {
                    return wrong(self, "a length with a known maximum");
                }
                for (k, (kind, base_reg)) in proto.args[..i].iter().zip(Reg::ARGS).enumerate() {
                    let ArgKind::MemOfLength(mem) = *kind else { continue };
                    let base = self.read(base_reg)?;
                    self.sized_memory(proto, k, base_reg, &base, v, mem, call)?;
                }
            }
            ArgKind::Fixed { bytes, mem } => self.memory(proto, i, reg, v, bytes.into(), mem, call)?,
            ArgKind::Lock { resilient } => {
                call.lock = self.lock_at(v, resilient)?;
                if call.lock.is_none() {
                    return wrong(
                        self,
                        match resilient {
                            false => "the spin lock in a map value, or in an object that the program owns",
                            true => "the bpf_res_spin_lock in a map value, or in an object that the program owns",
                        },
                    );
                }
            }
            ArgKind::Timer => match self.deferred(v, |def| def.timer)? {
                Some(map) => call.timer = Some(map),
                None => return wrong(self, "the timer in a map value"),
            },
            ArgKind::Work => match self.deferred(v, |def| def.work)? {
                Some(map) => call.timer = Some(map),
                None => return wrong(self, "the bpf_wq in a map value"),
            },
            ArgKind::TimerMap | ArgKind::TimerCallback if call.timer.is_none() => {
                return refuse(Reason::Environment(format!("{}: of a timer that is no argument before", proto.name)));
            }
            ArgKind::TimerMap => match v.ty {
                Ty::Map { map, inner: false } if !v.null && call.timer == Some(map) => {}
                _ => return wrong(self, "the map that the timer is in"),
            },
            ArgKind::TimerCallback => match v.ty {
                // The main program has no callers in the program: it would lack its context.
                Ty::Func { subprog } if subprog != 0 => call.timer_callback = Some(subprog),
                _ => return wrong(self, "a function of this program"),
            },
            ArgKind::RecordSize => match v.as_const() {
                // A record may have no bytes; for a size that no ring has, the result is null.
                Some(n) if proto.ret == Ret::RecordOrNull => {
                    call.record_size = crate::num::low(n.min(MAX_RECORD));
                }
                Some(n @ 1..0x4000_0000) => {
                    call.record_size = crate::num::low(n);
                    if i > 0 && proto.args[i - 1] == ArgKind::SliceBuffer {
                        self.slice_buffer(proto, i - 1, n, call)?;
                    }
                }
                Some(_) | None => return wrong(self, "a constant size of at least 1"),
            },
            ArgKind::Record => {
                let record = matches!(v.ty, Ty::Mem { from: Origin::Record, .. });
                if !record || v.owner == 0 || v.null || v.n.as_const() != Some(0) {
                    return wrong(self, "a record as it was reserved");
                }
                call.given_back = v.owner;
            }
            ArgKind::Local(kind, LocalUse::Made) => {
                let Some((frame, depth)) = self.local_place(kind, reg, v)? else {
                    return wrong(self, "stack at a multiple of 8");
                };
                let kind = match (kind, call.local.map(|local| local.ty)) {
                    (Local::Dynptr(Dynptr::Any), Some(Ty::Local(of))) => of,
                    (Local::Dynptr(Dynptr::Any), _) => {
                        return refuse(Reason::Environment(format!("{} makes a dynptr of none", proto.name)));
                    }
                    (kind, _) => kind,
                };
                call.made = Some((kind, frame, depth));
            }
            ArgKind::Local(Local::Dynptr(_), LocalUse::Read) if v.ty == (Ty::Host { class: DYNPTR }) && !v.null => {}
            ArgKind::Local(kind, how @ (LocalUse::Read | LocalUse::Used | LocalUse::Ended)) => {
                let expected = match kind {
                    Local::Numbers => "an iterator over numbers on the stack",
                    Local::Bits => "an iterator over bits on the stack",
                    Local::Interrupts { lock: false } => "what bpf_local_irq_save has left on the stack",
                    Local::Interrupts { lock: true } => "what bpf_res_spin_lock_irqsave has left on the stack",
                    Local::Buffer => return refuse(Reason::Environment(format!("{} asks for a buffer", proto.name))),
                    Local::Dynptr(Dynptr::Record) => "a dynptr to a record on the stack",
                    Local::Dynptr(_) => "a dynptr on the stack",
                };
                let Some((frame, depth)) = self.local_place(kind, reg, v)? else { return wrong(self, expected) };
                let size = kind.size() as usize;
                self.stack_decides(frame.into(), depth, size);
                match self.state.frames[usize::from(frame)].spilled(depth, size).map(|spill| spill.value) {
                    Some(local) if matches!(local.ty, Ty::Local(of) if kind.includes(of)) => {
                        if how == LocalUse::Ended && !self.is_restored_in_order(&local) {
                            return wrong(self, "the state of interrupts that was saved last");
                        }
                        call.local = Some(local);
                        if how == LocalUse::Ended {
                            call.given_back = local.owner;
                        }
                    }
                    Some(_) | None => return wrong(self, expected),
                }
            }
            ArgKind::LocalType { per_cpu } => {
                let id = v.as_const().and_then(|id| u32::try_from(id).ok());
                call.class = id.and_then(|id| self.env.local_type(id, per_cpu));
                if call.class.is_none() {
                    return wrong(
                        self,
                        match per_cpu {
                            false => "the number of a type of the program's own that objects are made of",
                            true => "the number of a structure of numbers of the program's own, of 512 bytes at most",
                        },
                    );
                }
            }
            ArgKind::Object(how) => {
                let Some((class, hold)) = object_at(v).filter(|_| v.n.as_const() == Some(0)) else {
                    return wrong(self, "an object of the program's own, by its start");
                };
                let per_cpu = self.env.class(class).is_some_and(|ty| ty.per_cpu);
                let owned = hold == Hold::Owned && v.owner != 0;
                match how {
                    ObjectUse::Given if !owned || per_cpu => {
                        return wrong(self, "an object that the program owns");
                    }
                    ObjectUse::GivenInstances if !owned || !per_cpu => {
                        return wrong(self, "an object with an instance for each CPU that the program owns");
                    }
                    ObjectUse::Given | ObjectUse::GivenInstances => call.given_back = v.owner,
                    // An object that the program owns must not be visible to others: the kernel's rule.
                    ObjectUse::Instance if !per_cpu || hold != Hold::Loaded => {
                        return wrong(self, "an object with an instance for each CPU that is stashed in a map value");
                    }
                    ObjectUse::Instance => {}
                    ObjectUse::Shared => {
                        let fields = self.env.class(class).map_or(&[][..], |ty| &ty.fields);
                        if fields.iter().all(|field| field.kind != OwnedKind::Refcount) {
                            return wrong(self, "an object with a bpf_refcount");
                        }
                    }
                }
                call.object = Some(*v);
            }
            ArgKind::Root(graph) => {
                let (expected, found) = match graph {
                    Graph::List => (
                        "a bpf_list_head in a map value, or in an object that the program owns",
                        self.owning_field(v, |kind| match kind {
                            OwnedKind::ListHead { of, node } => Some((of, node)),
                            _other => None,
                        })?,
                    ),
                    Graph::Tree => (
                        "a bpf_rb_root in a map value, or in an object that the program owns",
                        self.owning_field(v, |kind| match kind {
                            OwnedKind::TreeRoot { of, node } => Some((of, node)),
                            _other => None,
                        })?,
                    ),
                };
                let (Some(root), Some(of)) = (found, lock_owner(v)) else { return wrong(self, expected) };
                call.root_lock = self.state.locks.iter().find(|lock| lock.of == of).copied();
                if call.root_lock.is_none() && !planted!(RootsUnlocked) {
                    let (func, what) = (proto.name.to_string(), v.describe(self.env));
                    return refuse(Reason::RootUnlocked { func, what });
                }
                call.root = Some(root);
            }
            ArgKind::Node(..) | ArgKind::Compare if call.root.is_none() => {
                return refuse(Reason::Environment(format!("{}: a node before its root", proto.name)));
            }
            ArgKind::Node(_, how) => {
                let at = v.n.as_const().and_then(|at| u32::try_from(at).ok());
                let place = object_at(v).zip(at).map(|((class, hold), at)| ((class, at), hold));
                match (place, how) {
                    (Some((place, Hold::Owned)), NodeUse::Added) if Some(place) == call.root && v.owner != 0 => {
                        call.lent = v.owner;
                    }
                    (Some((place, Hold::Borrowed)), NodeUse::Member) if Some(place) == call.root => {}
                    (_, NodeUse::Added) => {
                        return wrong(self, "the node of an object that the program owns, as the root says");
                    }
                    (_, NodeUse::Member) => {
                        return wrong(self, "the node of a borrowed object, as the root says");
                    }
                }
            }
            ArgKind::Compare => match (v.ty, call.root, call.root_lock) {
                (Ty::Func { subprog }, Some((class, node)), Some(lock)) if subprog != 0 => {
                    call.compare = Some(Compare { subprog, class, node, lock });
                }
                _ => return wrong(self, "a function of this program"),
            },
            ArgKind::Kptr => {
                let found = self.owning_field(v, |kind| match kind {
                    OwnedKind::Kptr { to } => Some(to),
                    _other => None,
                })?;
                // An object stored in an object that has no owner any more would have no owner itself.
                let loaded = matches!(object_at(v), Some((_, Hold::Loaded))) && !planted!(LoadedTakes);
                if found.is_none() || loaded {
                    return wrong(self, "a kptr in a map value, or in an object that the program owns or has borrowed");
                }
                call.kptr = found;
                call.kptr_in = v.owner;
            }
            ArgKind::Exchanged => {
                if v.as_const() == Some(0) {
                    return Ok(());
                }
                let owned = object_at(v).filter(|(_, hold)| *hold == Hold::Owned && v.owner != 0);
                if v.n.as_const() != Some(0) || owned.is_none() || owned.map(|(class, _)| class) != call.kptr {
                    return wrong(self, "an object of the kptr's type that the program owns, or 0");
                }
                // An object stored in itself would have no owner.
                if v.owner == call.kptr_in {
                    return wrong(self, "an object other than the one that the kptr is in");
                }
                call.given_back = v.owner;
                call.stashed = owned.is_some_and(|(class, _)| self.env.class(class).is_some_and(|ty| ty.per_cpu));
            }
            ArgKind::ConstStr if self.is_const_str(v) => {}
            ArgKind::ConstStr => return wrong(self, "a string in constant data, with its zero byte"),
            ArgKind::Socket { null, release } => match v.ty {
                Ty::Scalar if null && v.as_const() == Some(0) => {}
                Ty::Mem { size: SOCKET_BYTES, from: Origin::Socket { borrowed }, .. }
                    if (null || !v.null) && v.n.as_const() == Some(0) =>
                {
                    if release && (v.owner == 0 || borrowed || v.null) {
                        return wrong(self, "a socket that was looked up and is still to be released");
                    }
                    call.socket = Some(*v);
                    if release {
                        call.given_back = v.owner;
                    }
                }
                _ => return wrong(self, "a socket"),
            },
            ArgKind::Callback(kind) => match v.ty {
                Ty::Func { subprog } => call.callback = Some((kind, subprog)),
                _ => return wrong(self, "a function of this program"),
            },
            ArgKind::CallbackCtx => match v.ty {
                Ty::Stack { .. } => {}
                Ty::Scalar if v.as_const() == Some(0) => {}
                _ => return wrong(self, "a stack pointer or 0"),
            },
            ArgKind::Host { class, null } => match v.ty {
                Ty::Host { class: c } if c == class && (null || !v.null) => {}
                Ty::Scalar if null && v.as_const() == Some(0) => {}
                _ => return wrong(self, "a host object of the right class"),
            },
        }
        Ok(())
    }

    /// The lock of this kind to which the pointer points.
    fn lock_at(&self, v: &Value, resilient: bool) -> Res<Option<LockOf>> {
        let lock = match v.ty {
            Ty::MapValue { map, inner } => {
                let def = self.map(map, inner)?;
                def.spin_lock.map(|at| (at, def.resilient_lock))
            }
            Ty::Mem { from: Origin::Object { class, .. }, .. } => self.env.class(class).and_then(OwnedType::lock),
            _ => None,
        };
        let is_one = lock.is_some_and(|(at, kind)| v.n.as_const() == Some(at.into()) && kind == resilient);
        Ok(lock_owner(v).filter(|_| is_one))
    }

    /// Whether the interrupt state that is restored is the one that was saved last; true for other objects.
    fn is_restored_in_order(&self, local: &Value) -> bool {
        let saved = |o: &&Owed| matches!(o.debt, Debt::Local(Local::Interrupts { .. }));
        !matches!(local.ty, Ty::Local(Local::Interrupts { .. }))
            || self.state.owed.iter().rfind(saved).is_none_or(|last| last.id == local.owner)
    }

    /// The kind of a field that owns objects, if the pointer is to its first byte, in a map's value or an object.
    pub(super) fn owning_field<T>(&self, v: &Value, of: impl Fn(OwnedKind) -> Option<T>) -> Res<Option<T>> {
        if v.null {
            return Ok(None);
        }
        let fields = match v.ty {
            Ty::MapValue { map, inner } => &self.map(map, inner)?.fields,
            Ty::Mem { from: Origin::Object { class, .. }, .. } => match self.env.class(class) {
                Some(ty) => &ty.fields,
                None => return Ok(None),
            },
            _ => return Ok(None),
        };
        let at = v.n.as_const();
        let found = fields.iter().find(|field| Some(u64::from(field.offset)) == at);
        Ok(found.and_then(|field| of(field.kind)))
    }

    /// The map whose value contains the timer or work item to which the pointer points.
    fn deferred(&self, v: &Value, at: impl Fn(&KnownMap) -> Option<u32>) -> Res<Option<u32>> {
        let Ty::MapValue { map, inner: false } = v.ty else { return Ok(None) };
        let at = at(self.map(map, false)?).map(u64::from);
        Ok((!v.null && at.is_some() && at == v.n.as_const()).then_some(map))
    }

    fn map_of(&self, call: &Call<'a>) -> Res<(u32, bool, &'a KnownMap)> {
        call.map.map_or_else(|| refuse(Reason::Environment("a key or value argument precedes its map".into())), Ok)
    }

    /// Checks the program's access rights to a map, which helpers obey.
    fn check_map_access(&self, proto: &HelperProto, map: u32, inner: bool, def: &KnownMap) -> Res<()> {
        let (reads, writes) = proto.map_access(def.kind);
        if reads && !def.access.reads() {
            return refuse(Reason::WriteOnly { what: map_name(self.env, map, inner) });
        }
        if writes && !def.access.writes() {
            return refuse(Reason::ReadOnly { what: map_name(self.env, map, inner) });
        }
        Ok(())
    }

    /// The key, if it is on the stack (or in a frozen map) with every byte known.
    fn known_key(&self, v: &Value, size: u32) -> Option<u64> {
        let Ty::Stack { frame } = v.ty else { return None };
        let off = v.n.as_const()? as i64;
        let depth = usize::try_from(off.checked_neg()?).ok()?;
        if !(1..=8).contains(&size) || depth < size as usize {
            return None;
        }
        self.state.frames[usize::from(frame)].known_number(depth, size as usize)
    }

    /// The frame and depth of the stack bytes of an object of this kind, if the pointer is to a constant, aligned
    /// place.
    fn local_place(&mut self, kind: Local, reg: Reg, v: &Value) -> Res<Option<(u8, usize)>> {
        if !matches!(v.ty, Ty::Stack { .. }) || v.n.as_const().is_none_or(|off| !off.is_multiple_of(8)) {
            return Ok(None);
        }
        Ok(match self.place(reg, v, 0, kind.size().into(), Access::ReadWrite)? {
            Place::Stack { frame, depth, .. } => Some((frame, depth)),
            Place::StackWithin { .. } | Place::Field { .. } | Place::Untracked(_) => None,
        })
    }

    /// Whether a zero byte follows in constant data.
    fn is_const_str(&self, v: &Value) -> bool {
        let Ty::MapValue { map, inner: false } = v.ty else { return false };
        let def = &self.env.maps[map as usize];
        let contents = def.frozen.as_ref().filter(|_| !v.null && !def.access.writes());
        let start = v.n.as_const().and_then(|start| usize::try_from(start).ok());
        let text = contents.zip(start).and_then(|(contents, start)| contents.get(start..));
        text.is_some_and(|text| text.contains(&0))
    }

    /// Notes that the function has made an object, which may have to be ended. `of`: the object of which it is a clone.
    pub(super) fn make_local(&mut self, (kind, frame, depth): (Local, u8, usize), of: Option<Value>) {
        let owner = match of {
            // A clone shares the obligation of its original.
            Some(of) => of.owner,
            None if kind.is_owed() => self.owe(Debt::Local(kind)),
            None => 0,
        };
        let size = kind.size() as usize;
        match kind {
            // If the lock is not taken, the old bytes stay. The path that continues with them branches off the trail
            // after this step.
            Local::Interrupts { lock: true } if !planted!(SavedUntaken) => {
                self.writes_within(frame.into(), depth, size);
            }
            Local::Interrupts { .. } | Local::Numbers | Local::Bits | Local::Dynptr(_) | Local::Buffer => {
                self.writes_stack(frame.into(), depth, size);
            }
        }
        let value = Value { owner, ..Value::pointer(Ty::Local(kind)) };
        self.state.frames[usize::from(frame)].store_spill(depth, size, &value);
    }

    /// Adds an obligation. Returns its id.
    pub(super) fn owe(&mut self, debt: Debt) -> u32 {
        let id = self.new_id();
        let frame = crate::num::few(self.state.frames.len()) - 1;
        let since = self.scratch.prune.ever_kept();
        self.state.owed.push(Owed { id, debt, at: self.pc, frame, since });
        id
    }

    /// Meets an obligation: invalidates every pointer to the object or into it, and the object on the stack itself.
    pub(super) fn give_back(&mut self, owner: u32) {
        let at = self.pc;
        let Some(i) = self.state.owed.iter().position(|o| o.id == owner) else { return };
        let debt = self.state.owed.remove(i).debt;
        for frame in &mut self.state.frames {
            let registers = if planted!(RecordSurvives) { 11 } else { usize::MAX };
            for v in frame.values_mut().take(registers).filter(|v| v.owner == owner) {
                let why = Why::Consumed(at, debt);
                *v = if v.is_local() { Value::uninit(why) } else { v.gone(why) };
            }
            frame.drop_uninit_spills();
        }
    }
}
