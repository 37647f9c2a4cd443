//! Memory arguments of helpers: proves that they may be read or written for their whole length, and that they do not
//! overlap memory that the call writes.

use super::Call;
use crate::error::Reason;
use crate::helpers::{ArgKind, Dynptr, HelperProto, Local, MemArg, MemSet};
use crate::value::{Origin, Ty, Value};
use crate::walk::mem::Place;
use crate::walk::{Res, Walk, refuse};
use bpf_isa::Reg;

impl<'a> Walk<'a> {
    #[expect(clippy::too_many_arguments, reason = "an argument is its prototype, position, register and value")]
    pub(super) fn memory(
        &mut self,
        proto: &HelperProto,
        i: usize,
        reg: Reg,
        v: &Value,
        bytes: u64,
        mem: MemArg,
        call: &mut Call<'a>,
    ) -> Res<()> {
        self.sized_memory(proto, i, reg, v, &Value::constant(bytes), mem, call)
    }

    /// Proves that the helper may access as many bytes at `v` as `length` says, and notes the bytes that it may
    /// overwrite.
    #[expect(clippy::too_many_arguments, reason = "an argument is its prototype, position, register and value")]
    pub(super) fn sized_memory(
        &mut self,
        proto: &HelperProto,
        i: usize,
        reg: Reg,
        v: &Value,
        length: &Value,
        mem: MemArg,
        call: &mut Call<'a>,
    ) -> Res<()> {
        let sizes = (length.n.umin(), length.n.umax());
        let null = v.as_const() == Some(0) && mem.null;
        if null {
            if sizes.1 == 0 || i + 1 == 5 || !matches!(proto.args[i + 1], ArgKind::Size { .. }) {
                return Ok(());
            }
            return refuse(Reason::Arg {
                func: proto.name.to_string(),
                arg: i + 2,
                reg: Reg::ARGS[(i + 1).min(4)],
                expected: "0, as its memory is null".into(),
                got: format!("up to {}", sizes.1),
            });
        }
        // A null pointer has no bytes: one that may be null goes only with a length of 0.
        let sized = matches!(proto.args[i], ArgKind::Mem(_) | ArgKind::Values | ArgKind::MemOfLength(_));
        if v.null && sized && sizes.1 > 0 {
            let why = Box::new(Reason::MaybeNull(reg));
            return refuse(Reason::ArgMem { func: proto.name.to_string(), arg: i + 1, reg, why });
        }
        let place = self.prove_memory_of(reg, v, length, mem).map_err(|why| match *why {
            Reason::Environment(_) | Reason::Internal(_) => why,
            _ => Box::new(Reason::ArgMem { func: proto.name.to_string(), arg: i + 1, reg, why }),
        })?;
        call.written[i] = place.filter(|_| mem.access.writes()).map(|place| (place, sizes.0));
        call.memory[i] = Some((i, *v, sizes.1, mem.access.writes()));
        Ok(())
    }

    /// The place of the memory, if it has any bytes.
    pub(in crate::walk) fn prove_memory(&mut self, reg: Reg, v: &Value, max: u64, mem: MemArg) -> Res<Option<Place>> {
        self.prove_memory_of(reg, v, &Value::constant(max), mem)
    }

    /// Proves a memory argument of as many bytes as the number `length` says.
    fn prove_memory_of(&mut self, reg: Reg, v: &Value, length: &Value, mem: MemArg) -> Res<Option<Place>> {
        let max = length.n.umax();
        let nullable;
        let v = if v.null && mem.null && v.is_pointer() {
            nullable = Value { null: false, ..*v };
            &nullable
        } else {
            v
        };
        let from = match v.ty {
            // The memory is of any kind that a caller has passed.
            Ty::Mem { from: Origin::Argument { .. }, .. } => MemSet::ANY,
            Ty::Stack { .. } => MemSet::STACK,
            Ty::Packet { .. } => MemSet::PACKET,
            Ty::MapValue { .. } => MemSet::MAP,
            Ty::Mem { .. } => MemSet::MEM,
            Ty::Uninit(_) | Ty::Scalar => return refuse(Reason::NotAPointer(reg, v.describe(self.env))),
            Ty::Ctx
            | Ty::Map { .. }
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
            | Ty::Local(_) => return refuse(Reason::NotMemory(reg, v.describe(self.env))),
        };
        if !mem.from.contains(from) {
            let what = v.describe(self.env);
            return refuse(match mem.from == MemSet::OWNED {
                true => Reason::Shared(reg, what),
                false => Reason::NotMemory(reg, what),
            });
        }
        if !mem.align.is_power_of_two() {
            return refuse(Reason::Environment("memory aligned to no power of two".into()));
        }
        self.prove_alignment(v, mem.align)?;
        if max == 0 {
            return Ok(None);
        }
        let place = self.place_of_length(reg, v, length, mem.access)?;
        match place {
            Place::Stack { frame, depth, size } | Place::StackWithin { frame, depth, span: size } => {
                if mem.access.reads() {
                    self.readable_stack(frame, depth, size)?;
                }
            }
            Place::Field { .. } => return refuse(Reason::NotMemory(reg, v.describe(self.env))),
            Place::Untracked(_) => {}
        }
        Ok(Some(place))
    }

    /// Checks the buffer for a slice of a packet. For other memory, which is contiguous, the function ignores the
    /// buffer.
    pub(super) fn slice_buffer(&mut self, proto: &HelperProto, i: usize, bytes: u64, call: &mut Call<'a>) -> Res<()> {
        /// The most bytes of a slice on the stack: those of a [`crate::state::Spill`].
        const MOST: u64 = 255;
        const ROOM: MemArg = MemArg { from: MemSet::STACK.union(MemSet::MAP), ..MemArg::WRITE };
        if !matches!(call.local, Some(Value { ty: Ty::Local(Local::Dynptr(Dynptr::Packet)), .. })) {
            return Ok(());
        }
        let reg = Reg::ARGS[i];
        let v = self.read(reg)?;
        if v.as_const() == Some(0) {
            return Ok(());
        }
        self.memory(proto, i, reg, &v, bytes, ROOM, call)?;
        if !matches!(v.ty, Ty::Stack { .. }) {
            return Ok(());
        }
        match call.written[i] {
            Some((Place::Stack { frame, depth, size }, _)) if bytes <= MOST => {
                call.buffer = Some((frame, depth, size));
                Ok(())
            }
            _ => refuse(Reason::Arg {
                func: proto.name.to_string(),
                arg: i + 1,
                reg,
                expected: format!("0, a map's value, or at most {MOST} bytes at a known place of the stack"),
                got: v.describe(self.env),
            }),
        }
    }

    /// Lends these bytes of the stack to the slice that a call returns. Returns the owner id.
    pub(in crate::walk) fn lend_buffer(&mut self, (frame, depth, size): (u8, usize, usize)) -> u32 {
        let owner = self.new_id();
        self.writes_stack(frame.into(), depth, size);
        let value = Value { owner, ..Value::pointer(Ty::Local(Local::Buffer)) };
        self.state.frames[usize::from(frame)].store_spill(depth, size, &value);
        owner
    }

    /// Checks Rust's rule for `&mut`: memory that is written overlaps no other argument.
    pub(super) fn check_disjoint(&self, proto: &HelperProto, call: &Call<'a>) -> Res<()> {
        let mem: Vec<_> = call.memory.iter().flatten().collect();
        for (k, a) in mem.iter().enumerate() {
            for b in &mem[k + 1..] {
                if (a.3 || b.3) && !disjoint(a, b) {
                    return refuse(Reason::Overlap { func: proto.name.to_string(), a: a.0 + 1, b: b.0 + 1 });
                }
            }
        }
        Ok(())
    }
}

/// Whether two memory arguments are proven not to overlap. Kinds of memory that are not named here may overlap.
fn disjoint(a: &(usize, Value, u64, bool), b: &(usize, Value, u64, bool)) -> bool {
    let ((_, a, a_size, _), (_, b, b_size, _)) = (a, b);
    if *a_size == 0 || *b_size == 0 {
        return true;
    }
    // Offsets are within ±2^31 and sizes within 2^32: these sums are exact.
    let apart = |a0: i64, a1: i64, b0: i64, b1: i64| {
        a1.saturating_add(*a_size as i64) <= b0 || b1.saturating_add(*b_size as i64) <= a0
    };
    let offsets_apart = || apart(a.n.smin(), a.n.smax(), b.n.smin(), b.n.smax());
    match (a.ty, b.ty) {
        (Ty::Stack { frame: f }, Ty::Stack { frame: g }) => f != g || offsets_apart(),
        (Ty::Packet { region: r }, Ty::Packet { region: s }) if r == s => {
            let same_base = (a.id, a.scale) == (b.id, b.scale) && {
                let (x, y) = (i64::from(a.delta), i64::from(b.delta));
                apart(x, x, y, y)
            };
            same_base || offsets_apart()
        }
        // `Region` promises that.
        (Ty::Packet { .. }, Ty::Packet { .. }) => true,
        // Within one element. Two look-ups may find one element; two maps of the table may be one map, and so may inner
        // maps.
        (Ty::MapValue { map: m, inner: i }, Ty::MapValue { map: n, inner: j }) => {
            (m, i) == (n, j) && (a.id != 0 || !i) && a.id == b.id && offsets_apart()
        }
        // Two records are told apart by their owner. Two sockets may be one.
        (Ty::Mem { from: Origin::Record, .. }, Ty::Mem { from: Origin::Record, .. }) => {
            a.owner != b.owner || offsets_apart()
        }
        (x, y) => other_memory(x, y) || other_memory(y, x),
    }
}

/// Whether no memory of the first kind is of the second kind.
fn other_memory(a: Ty, b: Ty) -> bool {
    match (a, b) {
        // Frames of the walk are younger than all memory that was passed to it.
        (Ty::Stack { .. }, Ty::Mem { from: Origin::Element | Origin::Slice { .. }, .. }) => false,
        (Ty::Stack { .. }, Ty::Packet { .. } | Ty::MapValue { .. } | Ty::Mem { .. }) => true,
        // `Region` promises that.
        (Ty::Packet { .. }, Ty::MapValue { .. }) => true,
        (Ty::Packet { .. }, Ty::Mem { from: Origin::Returned | Origin::Record | Origin::Lent { .. }, .. }) => true,
        (Ty::MapValue { .. }, Ty::Mem { from: Origin::Record, .. }) => true,
        // An argument may be any memory, and a function's result may be a map's value.
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
