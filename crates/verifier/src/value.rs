//! Abstract values of registers and spilled stack slots.
//!
//! Approach: a type, and a [`Scalar`] that is the number itself or, for pointers, the byte offset from the base the
//! type names. One domain bounds both, and an access is checked by adding the instruction's offset and comparing with
//! the size of the base.
//!
//! `id` relates values that have the same id; the relation depends on the type. Numbers with one id are `scale * V +
//! delta` for one unknown integer V, exactly and without wrapping, so a comparison of one refines the others. Region
//! pointers with one id are at `start + scale * V + delta`. Or-null pointers with one id are null together. The id of a
//! map value names the element, for the spin lock. 0 means no relation; a region pointer with id 0 has V = 0. For other
//! pointers into memory, `tie` has the role that `id` has for numbers: their offset is `scale * V(tie) + delta`.

use std::fmt;

use bpf_isa::{InsnIdx, Reg};
use bpf_uapi::MapType;

use crate::env::Env;
use crate::faults::planted;
use crate::helpers::Local;
use crate::scalar::Scalar;

/// The reason why a register or byte cannot be read.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Why {
    /// Nothing was written to it.
    Never,
    /// This instruction copied it from a register that was never written.
    Copied(InsnIdx, Reg),
    /// A call at this instruction clobbered it.
    Call(InsnIdx),
    /// A call at this instruction may have moved the memory it pointed to.
    Moved(InsnIdx),
    /// A call at this instruction released the object that it pointed to, or into.
    Consumed(InsnIdx, Debt),
    /// A call at this instruction released the lock that protected the object.
    Unlocked(InsnIdx),
    /// A call at this instruction may have slept, and its memory may have been freed meanwhile.
    Slept(InsnIdx),
    /// The run may have yielded at the head of a loop, this instruction, and its memory may have been freed meanwhile.
    Yielded(InsnIdx),
    /// The value pointed to memory that was lent to a callback, and the callback has returned.
    Returned,
    /// No later instruction reads it, so its value was forgotten.
    Dead,
}

/// An obligation that a program must meet on every path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Debt {
    /// A record of a ring buffer, to be submitted or discarded.
    Record,
    /// A socket that was looked up, to be released.
    Socket,
    /// An object of the program's own, to be dropped or given to a list, a tree or a kptr.
    Object,
    /// An object on the stack, to be ended.
    Local(Local),
}

impl Debt {
    /// Whether the program may sleep before it meets the obligation: an iterator over numbers is no more than its bytes
    /// on the stack.
    pub(crate) fn outlasts_sleep(self) -> bool {
        match self {
            Debt::Local(Local::Numbers) => true,
            Debt::Local(Local::Bits | Local::Interrupts { .. } | Local::Buffer | Local::Dynptr(_)) => false,
            Debt::Record | Debt::Socket | Debt::Object => false,
        }
    }

    /// The effect of the call that met the obligation, for messages.
    fn paid(self) -> &'static str {
        match self {
            Debt::Record => "consumed the record",
            Debt::Socket => "released the socket",
            Debt::Object => "took the object",
            Debt::Local(Local::Numbers | Local::Bits) => "ended the iterator",
            Debt::Local(Local::Interrupts { .. }) => "restored the interrupts",
            Debt::Local(Local::Buffer) => "took the buffer",
            Debt::Local(Local::Dynptr(_)) => "consumed the record",
        }
    }
}

/// The way in which a program holds an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Hold {
    /// The program owns the object; the value's `owner` identifies the obligation.
    Owned,
    /// A list or a tree owns the object, or may own it. The program may access it until the lock is released.
    Borrowed,
    /// The object was loaded from a map's value (a kptr). Others may take it out and drop it at any time: its memory
    /// stays valid to the end of the run, but an object that is put into it then would have no owner.
    Loaded,
}

/// The origin of memory of a fixed size, which determines where it may lie, its alignment and its lifetime.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Origin {
    /// The result of a function: 8-byte aligned, valid to the end of the run. It may alias a map's value.
    Returned,
    /// A record, accessible to this run only until it is consumed: 8-byte aligned. The value's `owner` identifies it.
    Record,
    /// A socket: 8-byte aligned. The value's `owner` identifies the look-up for which it must be released, or is 0 if
    /// it is valid to the end of the run. With `borrowed`, it belongs to the socket that was looked up, and is not
    /// released itself.
    Socket { borrowed: bool },
    /// Memory behind a dynptr, not aligned. With `packet`, a move of the packet invalidates it. The value's `owner` is
    /// that of the record, or of the stack buffer in which the slice may lie.
    Slice { packet: bool },
    /// The element in the iterator that `owner` identifies, on some frame's stack: 4-byte aligned.
    Element,
    /// An object of the program's own, of this type ([`crate::Env::types`]): 8-byte aligned.
    Object { class: u32, hold: Hold },
    /// A key that is lent to the callback in this frame until it returns: 4-byte aligned.
    Lent { frame: u8 },
    /// An argument of the global function that is being walked: memory of any kind that its caller has (the packet, a
    /// map's value, a stack), valid for the whole call. Its alignment is what the function needs: each call proves it
    /// (`Walk::aligned`).
    Argument { arg: u8 },
}

/// The type of a value.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Ty {
    Uninit(Why),
    Scalar,
    Ctx,
    /// A frame's stack; offsets count from its top, so they are negative.
    Stack {
        frame: u8,
    },
    /// A map. `inner`: a map that was found in the map of maps `map`.
    Map {
        map: u32,
        inner: bool,
    },
    /// A value of the map (or of an inner map of it).
    MapValue {
        map: u32,
        inner: bool,
    },
    /// Memory of a fixed size.
    Mem {
        size: u32,
        writable: bool,
        from: Origin,
    },
    /// A context region.
    Packet {
        region: u8,
    },
    /// One past the end of a context region.
    PacketEnd {
        region: u8,
    },
    /// The low 32 bits of a pointer into a context region or to its end, as a 32-bit move leaves them. Only its
    /// distance from another such value is a number.
    Half {
        region: u8,
        end: bool,
    },
    /// An unknown number plus an address in a context region, or minus one with `minus`. With `half`, only the low 32
    /// bits are such a sum. The only useful operation on it cancels the address ([`crate::walk::biased`]).
    Biased {
        region: u8,
        minus: bool,
        half: bool,
    },
    /// A number that may be below zero: `n` and the name describe its value as a signed integer
    /// ([`crate::walk::signed`]). It is never in a stack slot.
    Signed,
    /// A pointer whose memory was moved or released, through which nothing may be accessed. With a `region`, it keeps
    /// its offset from where the region was before the move that the value's `owner` names; with `half`, only the low
    /// 32 bits. Without a region, only its possible nullness is known.
    Stale {
        region: Option<u8>,
        half: bool,
        why: Why,
    },
    /// A host object, opaque.
    Host {
        class: u32,
    },
    /// A function of the program.
    Func {
        subprog: u32,
    },
    /// An address in the program's arena. It may be any number, since every access masks it into the arena. It reveals
    /// nothing about the arena's place, so programs may calculate with it, compare it and store it as a number. Its
    /// offset is unknown.
    Arena,
    /// A pointer to an entry of a map of instructions, or to where one may be. The offset is into the program's view of
    /// the map, in which each entry has eight bytes.
    Table {
        map: u32,
    },
    /// An instruction: the target of the map's entry at the offset, which is a multiple of 8.
    Insn {
        map: u32,
    },
    /// An object on the stack, in these bytes; never in a register. The value's `owner` identifies the obligation to
    /// end it.
    Local(Local),
}

impl PartialEq for Ty {
    /// Equal if the same operations are allowed. The reason why a value cannot be read is ignored.
    #[inline]
    fn eq(&self, other: &Ty) -> bool {
        // Most values are numbers.
        matches!((self, other), (Ty::Scalar, Ty::Scalar)) || self.is_alike(other)
    }
}

impl Ty {
    fn is_alike(&self, other: &Ty) -> bool {
        match (*self, *other) {
            (Ty::Uninit(_), Ty::Uninit(_)) | (Ty::Scalar, Ty::Scalar) | (Ty::Ctx, Ty::Ctx) => true,
            (Ty::Signed, Ty::Signed) => true,
            (Ty::Stack { frame: a }, Ty::Stack { frame: b }) => a == b,
            (Ty::Map { map: a, inner: i }, Ty::Map { map: b, inner: j }) => (a, i) == (b, j),
            (Ty::MapValue { map: a, inner: i }, Ty::MapValue { map: b, inner: j }) => (a, i) == (b, j),
            (Ty::Mem { size: a, writable: i, from: f }, Ty::Mem { size: b, writable: j, from: g }) => {
                (a, i, f) == (b, j, g)
            }
            (Ty::Packet { region: a }, Ty::Packet { region: b }) => a == b,
            (Ty::PacketEnd { region: a }, Ty::PacketEnd { region: b }) => a == b,
            (Ty::Half { region: a, end: i }, Ty::Half { region: b, end: j }) => (a, i) == (b, j),
            (Ty::Biased { region: a, minus: i, half: h }, Ty::Biased { region: b, minus: j, half: k }) => {
                (a, i, h) == (b, j, k)
            }
            (Ty::Stale { region: a, half: i, .. }, Ty::Stale { region: b, half: j, .. }) => (a, i) == (b, j),
            (Ty::Host { class: a }, Ty::Host { class: b }) => a == b,
            (Ty::Func { subprog: a }, Ty::Func { subprog: b }) => a == b,
            (Ty::Table { map: a }, Ty::Table { map: b }) | (Ty::Insn { map: a }, Ty::Insn { map: b }) => a == b,
            (Ty::Local(a), Ty::Local(b)) => a == b,
            (Ty::Arena, Ty::Arena) => true,
            (
                Ty::Uninit(_)
                | Ty::Scalar
                | Ty::Ctx
                | Ty::Stack { .. }
                | Ty::Map { .. }
                | Ty::MapValue { .. }
                | Ty::Mem { .. }
                | Ty::Packet { .. }
                | Ty::PacketEnd { .. }
                | Ty::Half { .. }
                | Ty::Biased { .. }
                | Ty::Signed
                | Ty::Stale { .. }
                | Ty::Host { .. }
                | Ty::Func { .. }
                | Ty::Arena
                | Ty::Table { .. }
                | Ty::Insn { .. }
                | Ty::Local(_),
                _,
            ) => false,
        }
    }
}

/// Ids below this one are the names of the lengths of the context's regions.
pub(crate) const FIRST_FREE_ID: u32 = 1 + crate::num::small(crate::env::Region::MAX_REGIONS);

/// The bit of a name that tells how it was born: with it, the name is that of a region pointer's offset which may be
/// negative. V of every other name is not negative. A name denotes one integer for the whole walk, so this is true of
/// it in every state, whether or not a value still has the name.
const MAY_BE_NEGATIVE: u32 = 1 << 31;

/// A walk ends before it has made more names, so that no name of a number has that bit. A step makes far fewer names
/// than are left then.
pub(crate) const MAX_NAMES: u32 = 1 << 30;

/// Returns the new name `id` as that of an offset that may be negative.
pub(crate) fn offset_name(id: u32) -> u32 {
    id | MAY_BE_NEGATIVE
}

/// Returns whether V(id) may be negative, as far as the name tells.
pub(crate) fn is_offset_name(id: u32) -> bool {
    id & MAY_BE_NEGATIVE != 0
}

/// Returns a number by which names are ordered as they were made.
pub(crate) fn age(id: u32) -> u32 {
    id & !MAY_BE_NEGATIVE
}

/// The id of a number that is the length of a region.
pub(crate) fn len_id(region: u8) -> u32 {
    1 + u32::from(region)
}

/// The abstract value of a register or spill.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Value {
    pub ty: Ty,
    /// Whether the pointer may be null instead.
    pub null: bool,
    /// The multiple of the integer that `id` (or `tie`) names; 1 without a name, never 0.
    pub scale: i16,
    /// The name that relates this value to others; the head of the module explains it.
    pub id: u32,
    /// The distance from `scale * V`.
    pub delta: i32,
    /// The obligation or object that the value belongs to; 0 for none.
    pub owner: u32,
    /// For a pointer into the stack, a map value or other memory: the name of the number that its offset moves with; 0
    /// for none.
    pub tie: u32,
    /// The number, or the offset from the base.
    pub n: Scalar,
}

impl Value {
    pub(crate) fn uninit(why: Why) -> Value {
        Value { ty: Ty::Uninit(why), null: false, scale: 1, id: 0, delta: 0, owner: 0, tie: 0, n: Scalar::UNKNOWN }
    }

    pub(crate) fn scalar(n: Scalar) -> Value {
        Value { ty: Ty::Scalar, null: false, scale: 1, id: 0, delta: 0, owner: 0, tie: 0, n }
    }

    pub(crate) fn constant(v: u64) -> Value {
        Value::scalar(Scalar::constant(v))
    }

    pub(crate) fn unknown() -> Value {
        Value::scalar(Scalar::UNKNOWN)
    }

    /// A pointer to the base itself.
    pub(crate) fn pointer(ty: Ty) -> Value {
        Value { ty, null: false, scale: 1, id: 0, delta: 0, owner: 0, tie: 0, n: Scalar::constant(0) }
    }

    /// An address of the arena.
    pub(crate) fn arena() -> Value {
        Value { n: Scalar::UNKNOWN, ..Value::pointer(Ty::Arena) }
    }

    pub(crate) fn is_arena(&self) -> bool {
        matches!(self.ty, Ty::Arena)
    }

    /// The value where only a number is asked for: an arena address is any number.
    pub(crate) fn as_number(self) -> Value {
        if self.is_arena() { Value::unknown() } else { self }
    }

    pub(crate) fn is_scalar(&self) -> bool {
        matches!(self.ty, Ty::Scalar)
    }

    /// Whether it points into the packet, so that a move of the packet invalidates it.
    pub(crate) fn is_of_packet(&self) -> bool {
        matches!(self.ty, Ty::Packet { .. } | Ty::Mem { from: Origin::Slice { packet: true }, .. })
    }

    /// Whether it is an object on the stack, which cannot be loaded.
    pub(crate) fn is_local(&self) -> bool {
        matches!(self.ty, Ty::Local(_))
    }

    /// Whether its bytes on the stack may be read as numbers.
    pub(crate) fn is_bytes(&self) -> bool {
        matches!(self.ty, Ty::Scalar | Ty::Local(Local::Buffer))
    }

    pub(crate) fn is_uninit(&self) -> bool {
        matches!(self.ty, Ty::Uninit(_))
    }

    /// Whether it is a pointer whose memory has been moved or given back.
    pub(crate) fn is_stale(&self) -> bool {
        matches!(self.ty, Ty::Stale { .. })
    }

    /// The pointer after its object is gone.
    pub(crate) fn gone(&self, why: Why) -> Value {
        let ty = Ty::Stale { region: None, half: false, why };
        Value { null: self.null, n: self.n, ..Value::pointer(ty) }
    }

    /// Whether it may be used after the run has slept: it leads to no memory that others may free meanwhile.
    pub(crate) fn outlasts_sleep(&self, env: &Env<'_>) -> bool {
        match self.ty {
            Ty::Uninit(_)
            | Ty::Scalar
            | Ty::Signed
            | Ty::Ctx
            | Ty::Stack { .. }
            | Ty::Packet { .. }
            | Ty::PacketEnd { .. }
            | Ty::Half { .. }
            | Ty::Biased { .. }
            | Ty::Stale { .. }
            | Ty::Func { .. }
            | Ty::Arena
            | Ty::Table { .. }
            | Ty::Insn { .. } => true,
            Ty::Map { inner, .. } => !inner || planted!(InnerMapSleeps),
            Ty::MapValue { map, inner } => {
                let kind = env.maps.get(map as usize).map(|def| def.kind);
                let shared_array = kind == Some(MapType::Array) || planted!(ElementSleeps);
                shared_array && !inner || kind == Some(MapType::PerCpuArray) && planted!(SlotValueSleeps)
            }
            // A record is owed, so no call that may sleep leaves any.
            Ty::Mem { from: Origin::Record, .. } => planted!(SleepsOwing),
            // A function's result, a socket, an object: their release waits for a grace period.
            Ty::Mem { .. } => planted!(MemorySleeps),
            Ty::Host { .. } => false,
            // A buffer and an iterator over numbers refer to no other memory. The other objects on the stack are
            // refused if they must be ended.
            Ty::Local(Local::Buffer | Local::Numbers) => true,
            Ty::Local(Local::Dynptr(_) | Local::Bits | Local::Interrupts { .. }) => {
                planted!(DynptrSleeps)
            }
        }
    }

    pub(crate) fn is_pointer(&self) -> bool {
        !self.is_scalar() && !self.is_uninit()
    }

    /// Whether it is an unconstrained number of that many bits, without a name.
    pub(crate) fn is_any(&self, bits: u32) -> bool {
        // The known bits decide most cases.
        self.is_scalar()
            && self.id == 0
            && self.n.bits().mask() == crate::tnum::ones::<u64>(bits)
            && self.n == Scalar::low_bits(bits)
    }

    /// Whether it is a number with an upper half of zeros.
    pub(crate) fn is_short(&self) -> bool {
        self.is_scalar() && self.n.high_half_is_zero()
    }

    /// The value, if this is a number and constant.
    pub(crate) fn as_const(&self) -> Option<u64> {
        if self.is_scalar() { self.n.as_const() } else { None }
    }

    /// The number without its relation to the others with its id.
    pub(crate) fn unlinked(mut self) -> Value {
        (self.id, self.scale, self.delta) = (0, 1, 0);
        self
    }

    /// The name of the number V of which this value, or for a pointer its offset, is `scale * V + delta`; 0 for none.
    pub(crate) fn line_id(&self) -> u32 {
        match self.ty {
            Ty::Scalar | Ty::Packet { .. } | Ty::Half { .. } | Ty::Stale { .. } => self.id,
            Ty::Stack { .. } | Ty::MapValue { .. } | Ty::Mem { .. } | Ty::Table { .. } | Ty::Signed => self.tie,
            Ty::Uninit(_)
            | Ty::Ctx
            | Ty::Map { .. }
            | Ty::PacketEnd { .. }
            | Ty::Biased { .. }
            | Ty::Host { .. }
            | Ty::Func { .. }
            | Ty::Arena
            | Ty::Insn { .. }
            | Ty::Local(_) => 0,
        }
    }

    /// Whether [`Value::line_id`] is `id`, which is not 0.
    pub(crate) fn is_named(&self, id: u32) -> bool {
        // For most values neither field is the id.
        (self.id == id || self.tie == id) && self.line_id() == id
    }

    /// Whether it is an offset in a region, whole or half. Without a name, such a value is at the constant distance
    /// `delta` from the start.
    pub(crate) fn is_in_region(&self) -> bool {
        matches!(self.ty, Ty::Packet { .. } | Ty::Half { .. })
    }

    /// The value without its relation to others. A pointer into a region gets a fresh name, since no name means a
    /// constant offset.
    pub(crate) fn adrift(self, next_id: &mut u32) -> Value {
        if !self.is_in_region() {
            return self.renamed(0, 1, 0);
        }
        *next_id += 1;
        self.renamed(offset_name(*next_id), 1, 0)
    }

    /// The value with another name, multiple and distance.
    pub(crate) fn renamed(mut self, id: u32, scale: i16, delta: i32) -> Value {
        match self.ty {
            Ty::Stack { .. } | Ty::MapValue { .. } | Ty::Mem { .. } | Ty::Table { .. } | Ty::Signed => self.tie = id,
            _ => self.id = id,
        }
        (self.scale, self.delta) = (scale, delta);
        self
    }

    /// A short description of the value for messages: `a number (0..=7)`, `map value of "m" at offset 4, or null`.
    pub(crate) fn describe(&self, env: &Env<'_>) -> String {
        Describe { value: self, env }.to_string()
    }
}

struct Describe<'a> {
    value: &'a Value,
    env: &'a Env<'a>,
}

/// The name of a map, for messages.
pub(crate) fn map_name(env: &Env<'_>, map: u32, inner: bool) -> String {
    let name = env.maps.get(map as usize).map_or("?", |m| &m.name);
    if inner { format!("a map in \"{name}\"") } else { format!("map \"{name}\"") }
}

impl fmt::Display for Describe<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let v = self.value;
        let region = |r: u8| self.env.context.regions.get(usize::from(r)).map_or("region", |r| &r.name);
        match v.ty {
            Ty::Uninit(why) | Ty::Stale { why, .. } => {
                return match why {
                    Why::Never => f.write_str("uninitialised"),
                    Why::Copied(at, from) => write!(f, "uninitialised, as {from} was where it was copied at {at}"),
                    Why::Call(at) => write!(f, "uninitialised since the call at {at}"),
                    Why::Moved(at) => write!(f, "invalid since the call at {at}, which may move the packet"),
                    Why::Consumed(at, debt) => {
                        write!(f, "invalid since the call at {at}, which {}", debt.paid())
                    }
                    Why::Unlocked(at) => write!(f, "invalid since the call at {at}, which released the lock"),
                    Why::Slept(at) => write!(f, "invalid since the call at {at}, which may sleep"),
                    Why::Yielded(at) => {
                        write!(f, "invalid since the start of the loop at {at}, where the program may sleep")
                    }
                    Why::Returned => f.write_str("invalid since the callback it was given to returned"),
                    Why::Dead => f.write_str("not read any more"),
                };
            }
            Ty::Scalar => {
                return match v.n.as_const() {
                    Some(_) => write!(f, "the number {}", v.n),
                    None => write!(f, "a number ({})", v.n),
                };
            }
            Ty::Signed => {
                return match v.n.as_const() {
                    Some(c) => write!(f, "the number {}", c as i64),
                    None => write!(f, "a number ({})", OffsetRange(&v.n)),
                };
            }
            Ty::Ctx => f.write_str("context pointer")?,
            Ty::Stack { frame: 0 } => f.write_str("stack pointer")?,
            Ty::Stack { frame } => write!(f, "stack pointer of frame {frame}")?,
            Ty::Map { map, inner } => f.write_str(&map_name(self.env, map, inner))?,
            Ty::MapValue { map, inner } => write!(f, "value of {}", map_name(self.env, map, inner))?,
            Ty::Mem { from: Origin::Socket { .. }, .. } => f.write_str("socket")?,
            Ty::Mem { from: Origin::Object { class, hold }, .. } => {
                let ty = self.env.types.get(class as usize);
                let name = ty.map_or("?", |ty| &ty.name);
                let what = match hold {
                    Hold::Owned => "object",
                    Hold::Borrowed => "borrowed object",
                    Hold::Loaded => "loaded object",
                };
                write!(f, "{what} of type \"{name}\"")?;
                if ty.is_some_and(|ty| ty.per_cpu) {
                    f.write_str(" with an instance for each CPU")?;
                }
            }
            Ty::Mem { size, .. } => write!(f, "pointer to {size} bytes of memory")?,
            Ty::Packet { region: r } => write!(f, "{} pointer", region(r))?,
            Ty::PacketEnd { region: r } => write!(f, "{} end pointer", region(r))?,
            Ty::Half { region: r, end: false } => write!(f, "low half of a {} pointer", region(r))?,
            Ty::Half { region: r, end: true } => write!(f, "low half of the {} end pointer", region(r))?,
            Ty::Biased { region: r, minus, .. } => {
                return write!(f, "number {} a {} pointer", if minus { "minus" } else { "plus" }, region(r));
            }
            Ty::Host { class } if class == crate::helpers::DYNPTR => f.write_str("dynptr")?,
            Ty::Host { class } if class == crate::helpers::TASK => f.write_str("thread")?,
            Ty::Host { class } => write!(f, "host object of class {class}")?,
            Ty::Arena => return f.write_str("arena pointer"),
            Ty::Func { subprog } => write!(f, "function {subprog}")?,
            Ty::Table { map } => write!(f, "entry of {}", map_name(self.env, map, false))?,
            Ty::Insn { map } => write!(f, "instruction in {}", map_name(self.env, map, false))?,
            Ty::Local(kind) => f.write_str(kind.name())?,
        }
        match v.n.as_const() {
            Some(0) => {}
            Some(off) => write!(f, " at offset {}", off as i64)?,
            None => write!(f, " at offset {}", OffsetRange(&v.n))?,
        }
        if v.null { f.write_str(", or null") } else { Ok(()) }
    }
}

/// The display of an offset as a signed range.
struct OffsetRange<'a>(&'a Scalar);

impl fmt::Display for OffsetRange<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.smin() == i64::MIN && self.0.smax() == i64::MAX {
            return f.write_str("unknown");
        }
        write!(f, "{}..={}", self.0.smin(), self.0.smax())
    }
}
