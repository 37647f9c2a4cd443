//! What a register or a spilled stack slot may hold.
//!
//! Approach: a type, and a [`Scalar`] that is the number itself or, for pointers, the byte offset from the base the
//! type names. So one domain bounds both, and an access is checked by adding the instruction's offset and comparing
//! with the size of the base.
//!
//! `id` ties values together, and what it ties depends on the type: numbers with one id are `scale * V + delta` for the
//! same unknown V, exactly, without wrapping (a comparison of one refines the others); region pointers with one id are
//! `start + scale * V + delta`; or-null pointers with one id are null together; a map value's id names the element, for
//! the spin lock. 0 is none (for a region pointer: V = 0). `tie` is to other pointers into memory what `id` is to
//! numbers: their offset is `scale * V(tie) + delta`.

use std::fmt;

use bpf_isa::{InsnIdx, Reg};

use crate::env::Env;
use crate::helpers::Local;
use crate::scalar::Scalar;

/// Why a register or byte cannot be read.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Why {
    /// Nothing was written to it.
    Never,
    /// It was copied, at this instruction, from a register that nothing was written to.
    Copied(InsnIdx, Reg),
    /// A call at this instruction clobbered it.
    Call(InsnIdx),
    /// A call at this instruction may have moved the memory it pointed to.
    Moved(InsnIdx),
    /// A call at this instruction gave back what it pointed to, or into.
    Consumed(InsnIdx, Debt),
    /// A call at this instruction released the lock of what held the object.
    Unlocked(InsnIdx),
    /// What it pointed to was a callback's, and the callback has returned.
    Returned,
    /// No later instruction reads it, so it was forgotten.
    Dead,
}

/// What a program owes: it must give it back on every path.
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
    /// What the call that gives it back has done.
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

/// How a program has an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Hold {
    /// It owns it: the value's `owner` is what is owed for it.
    Owned,
    /// A list or a tree owns it, or may, and it is the program's until the lock is released.
    Borrowed,
    /// It was loaded from where somebody stashed it. Others may take it out and drop it meanwhile: its memory is there
    /// to the end of the run, and nothing that is put into it then would be anybody's.
    Loaded,
}

/// Where memory of a fixed size comes from: so where it may lie, how it is aligned, and how long it lasts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Origin {
    /// A function's result: 8-byte aligned, to the end of the run. It may be a map's value.
    Returned,
    /// A record, which is this run's alone until it is consumed: 8-byte aligned. The value's `owner` says which.
    Record,
    /// A socket: 8-byte aligned. The value's `owner` is the look-up that it must be given back for, or 0 if it lasts to
    /// the end of the run. `borrowed`: it belongs to the one that was looked up, and is not given back itself.
    Socket { borrowed: bool },
    /// What a dynptr leads to, aligned to nothing; `packet`: to be moved with it. The value's `owner` is the record's,
    /// or that of the buffer on some frame's stack that it may lie in.
    Slice { packet: bool },
    /// An element in the iterator that `owner` names, on some frame's stack: 4-byte aligned.
    Element,
    /// An object of this type of the program's own ([`crate::Env::types`]): 8-byte aligned.
    Object { class: u32, hold: Hold },
    /// Lent to the callback that is this frame, until it returns: a key, aligned to 4.
    Lent { frame: u8 },
    /// This argument of the global function that is walked: any memory of its callers' (the packet, a map's value,
    /// their stack), for the whole call, aligned as far as the function needs: its calls prove that
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
    /// A map. `inner` if it was found in the map of maps `map`.
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
    /// The low half of a pointer into a context region, or of its end: what a 32-bit move leaves. Only its distance
    /// from others is a number.
    Half {
        region: u8,
        end: bool,
    },
    /// An unknown number plus, or with `minus` minus, an address in a context region; with `half`, only the low 32 bits
    /// are such a sum. The only useful operation on it is one that cancels the address ([`crate::walk::biased`]).
    Biased {
        region: u8,
        minus: bool,
        half: bool,
    },
    /// A number that was counted below zero: `n` and the name are of its value as a signed integer
    /// ([`crate::walk::signed`]). Never in a stack slot.
    Signed,
    /// A pointer whose memory has been moved or given back. Nothing is accessed through it. In a `region`: an offset
    /// from where that was before the move which the value's `owner` names, as a [`Ty::Packet`] is one from where it
    /// is; `half`: of its low half. Else nothing is known of it but whether it may be null.
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
    /// An address of the program's arena: any number at all, of which every access makes one inside. It tells nothing
    /// of where the arena is, so it may be calculated with, compared and stored as a number; its offset is unknown.
    Arena,
    /// An entry of a map of instructions, or where one may be: the offset is into what programs see of it, a number of
    /// eight bytes each.
    Table {
        map: u32,
    },
    /// An instruction: the entry of the map at the offset, which is a multiple of 8.
    Insn {
        map: u32,
    },
    /// An object on the stack, which is in these bytes; never in a register. The value's `owner` is what must be ended.
    Local(Local),
}

impl PartialEq for Ty {
    /// Equal when the same operations are allowed: why a value cannot be read makes no difference.
    #[inline]
    fn eq(&self, other: &Ty) -> bool {
        // Most are numbers.
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

/// The ids below stand for the lengths of the context's regions.
pub(crate) const FIRST_FREE_ID: u32 = 1 + crate::num::small(crate::env::Region::MAX_REGIONS);

/// The id of a number that is the length of a region.
pub(crate) fn len_id(region: u8) -> u32 {
    1 + u32::from(region)
}

/// The abstract value of a register or spill.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Value {
    pub ty: Ty,
    /// The pointer may be null instead.
    pub null: bool,
    /// How often the value that `id` (or `tie`) names is in it; 1 without a name, never 0.
    pub scale: i16,
    /// See the head of the module.
    pub id: u32,
    /// The distance from the value that `id` names.
    pub delta: i32,
    /// The reservation that must be consumed before exit; 0 for none.
    pub owner: u32,
    /// Of a pointer into the stack, a map value or other memory: the number that it moves with; 0 for none.
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

    /// The same, where nothing but a number is asked for: an address of the arena is any.
    pub(crate) fn as_number(self) -> Value {
        if self.is_arena() { Value::unknown() } else { self }
    }

    pub(crate) fn is_scalar(&self) -> bool {
        matches!(self.ty, Ty::Scalar)
    }

    /// Whether it points to bytes of the packet, which are elsewhere once that is moved.
    pub(crate) fn is_of_packet(&self) -> bool {
        matches!(self.ty, Ty::Packet { .. } | Ty::Mem { from: Origin::Slice { packet: true }, .. })
    }

    /// Whether it is an object on the stack, which no load yields.
    pub(crate) fn is_local(&self) -> bool {
        matches!(self.ty, Ty::Local(_))
    }

    /// Whether its bytes on the stack are read as numbers.
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

    /// The pointer, which is to an object that is gone.
    pub(crate) fn gone(&self, why: Why) -> Value {
        let ty = Ty::Stale { region: None, half: false, why };
        Value { null: self.null, n: self.n, ..Value::pointer(ty) }
    }

    pub(crate) fn is_pointer(&self) -> bool {
        !self.is_scalar() && !self.is_uninit()
    }

    /// Whether it is any number of that many bits, and tied to nothing.
    pub(crate) fn is_any(&self, bits: u32) -> bool {
        // The bits alone decide mostly.
        self.is_scalar()
            && self.id == 0
            && self.n.bits().mask() == crate::tnum::ones::<u64>(bits)
            && self.n == Scalar::low_bits(bits)
    }

    /// Whether it is a number with an upper half of zeros.
    pub(crate) fn is_short(&self) -> bool {
        self.is_scalar() && self.n.high_half_is_zero()
    }

    /// The number, if this is one and it is known.
    pub(crate) fn as_const(&self) -> Option<u64> {
        if self.is_scalar() { self.n.as_const() } else { None }
    }

    /// A number that no longer equals the others with its id.
    pub(crate) fn unlinked(mut self) -> Value {
        (self.id, self.scale, self.delta) = (0, 1, 0);
        self
    }

    /// The name of the number that it is `scale * V + delta` of: its own value, or, of a pointer, its offset. 0 for
    /// none.
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

    /// Whether that is its name, which is not 0.
    pub(crate) fn is_named(&self, id: u32) -> bool {
        // Of most, neither is.
        (self.id == id || self.tie == id) && self.line_id() == id
    }

    /// Whether it is an offset in a region, whole or half: without a name, it is at its distance from the start.
    pub(crate) fn is_in_region(&self) -> bool {
        matches!(self.ty, Ty::Packet { .. } | Ty::Half { .. })
    }

    /// The same, tied to nothing: of one in a region, whose place a name says, that is a new one.
    pub(crate) fn adrift(self, next_id: &mut u32) -> Value {
        if !self.is_in_region() {
            return self.renamed(0, 1, 0);
        }
        *next_id += 1;
        self.renamed(*next_id, 1, 0)
    }

    /// The same with another name, at another distance.
    pub(crate) fn renamed(mut self, id: u32, scale: i16, delta: i32) -> Value {
        match self.ty {
            Ty::Stack { .. } | Ty::MapValue { .. } | Ty::Mem { .. } | Ty::Table { .. } | Ty::Signed => self.tie = id,
            _ => self.id = id,
        }
        (self.scale, self.delta) = (scale, delta);
        self
    }

    /// What the value is, in a few words, for messages: `a number (0..=7)`, `map value of "m" at offset 4, or null`.
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

/// An offset reads best as a signed range.
struct OffsetRange<'a>(&'a Scalar);

impl fmt::Display for OffsetRange<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.smin() == i64::MIN && self.0.smax() == i64::MAX {
            return f.write_str("unknown");
        }
        write!(f, "{}..={}", self.0.smin(), self.0.smax())
    }
}
