//! Loads, stores and atomics: proves that an access is within bounds, and applies its effect.
//!
//! One function, [`Walk::place`], proves that an access lies inside the object that its pointer points to. Loads,
//! stores, atomics and the memory arguments of helpers all go through it; no other code may prove an offset.

mod atomics;
mod elements;
mod spilled;

use bpf_analysis::CheckRegion;
use bpf_isa::{AluOp, Reg, Size, Src, Width};
use bpf_uapi::{OwnedField, OwnedKind, TIMER_BYTES};

use super::linear::Form;
use super::pointers::checkable;
use super::{Res, Walk, refuse};
use crate::access::Access;
use crate::env::FieldKind;
use crate::error::Reason;
use crate::faults::planted;
use crate::helpers::SOCKET_BYTES;
use crate::notes::Kind;
use crate::scalar::Scalar;
use crate::state::{Content, Frame, Order, Spill};
use crate::value::{Hold, Origin, Ty, Value, len_id, map_name};

/// The most constants among which a load may choose, for which their common properties are computed.
const MAX_CONSTANTS: i64 = 1024;

/// A pointer to a socket.
pub(super) fn socket(borrowed: bool) -> Value {
    let from = Origin::Socket { borrowed };
    Value::pointer(Ty::Mem { size: SOCKET_BYTES, writable: false, from })
}

/// The place of an access.
#[derive(Clone, Copy, Debug)]
pub(super) enum Place {
    /// The bytes from r10 - depth of a frame.
    Stack { frame: u8, depth: usize, size: usize },
    /// Somewhere in the `span` bytes from r10 - depth.
    StackWithin { frame: u8, depth: usize, span: usize },
    /// A field of the context.
    Field { index: usize, offset: u32 },
    /// Memory whose contents are not tracked.
    Untracked(Kind),
}

/// Checks that none of these bytes belongs to a field that owns objects, or that links an owned object.
fn plain(fields: &[OwnedField], start: i64, end: i64, what: impl Fn() -> String) -> Res<()> {
    match fields.iter().find(|field| start < field.end().into() && end > field.offset.into()) {
        Some(field) => refuse(Reason::ObjectField { what: what(), field: field.kind.name(), offset: field.offset }),
        None => Ok(()),
    }
}

impl Walk<'_> {
    /// Proves that `size` bytes at `v + off` may be accessed. `reg` is the pointer's register, for messages.
    pub(super) fn place(&mut self, reg: Reg, v: &Value, off: i64, size: u64, access: Access) -> Res<Place> {
        let result = self.place_of(reg, v, off, size, access);
        if result.is_ok() {
            self.bound_by_access(v, off, size);
        }
        if !result.as_ref().is_err_and(|why| why.is_out_of_bounds()) {
            return result;
        }
        match self.narrowed(v, off, size) {
            Some(narrow) => {
                let result = self.place_of(reg, &narrow, off, size, access);
                if result.is_ok() {
                    self.bound_by_access(v, off, size);
                }
                result
            }
            None => result,
        }
    }

    /// Bounds an offset, and numbers that move with it, by an access that was proven: it is at most the greatest length
    /// of the region. (An offset that is only known to be in a region has no range of its own, and a loop that counts
    /// it up would have none either.)
    fn bound_by_access(&mut self, v: &Value, off: i64, size: u64) {
        let Ty::Packet { region } = v.ty else { return };
        if v.line_id() == 0 || !self.loops.further || !self.relates() {
            return;
        }
        let Ok(size) = i64::try_from(size) else { return };
        let most = i64::from(self.env.region(region).max_len) - off - size;
        if v.n.smax() > most
            && let Some(n) = v.n.meet(&Scalar::signed(v.n.smin(), most))
        {
            self.decides();
            self.scratch.prune.sums = true;
            self.state.bound_by(&Value { n, ..*v });
        }
    }

    /// The pointer with a narrower offset, if the facts about its variable offset prove that the access is within
    /// bounds.
    fn narrowed(&mut self, v: &Value, off: i64, size: u64) -> Option<Value> {
        if v.line_id() == 0 || v.null || !self.relates() || (self.loops.guessing() && !self.loops.rich()) {
            return None;
        }
        let size = i64::try_from(size).ok()?;
        // The offset is at least `min`, and at most `max` minus the access size, or minus the region's length if it has
        // one.
        let (min, max, len) = match v.ty {
            Ty::Stack { .. } => (-i64::from(self.env.frame_bytes), 0, None),
            Ty::MapValue { .. } | Ty::Mem { .. } => (0, super::pointers::size_of(v, self.env).into(), None),
            Ty::Packet { region } => (0, 0, Some(region)),
            _ => return None,
        };
        let (min, max) = (min - off, max - off - size);
        let at = Form::of(v)?;
        let above = v.n.smin() >= min || self.state.proves(&Form::constant(min.into()).plus(&at, -1)?);
        let end = at.plus(&Form::constant(max.into()), -1)?;
        let end = match len {
            None => end,
            Some(region) => end.plus(&Form::name(len_id(region)), -1)?,
        };
        if !above || !self.state.proves(&end) {
            return None;
        }
        // Later proofs may rest on these facts, so finished states must keep them.
        self.decides();
        self.scratch.prune.sums = true;
        let most = match len {
            None => max,
            Some(region) => {
                let bytes = u32::try_from(i64::from(v.delta) - max).ok()?;
                self.state.learn_room(region, v.id, v.scale, bytes);
                i64::from(self.env.region(region).max_len) + max
            }
        };
        let n = v.n.meet(&Scalar::signed(min, most))?;
        let v = Value { n, ..*v };
        if len.is_none() {
            // The proven bound is kept, so that an index which is counted on from here is bounded by it.
            let less = Scalar::signed(min, most - i64::from(planted!(ProvenLess)));
            self.state.bound_by(&Value { n: n.meet(&less).unwrap_or(n), ..v });
        }
        Some(v)
    }

    /// Proves that `length` bytes at `v` may be accessed. Where the greatest offset and the greatest length together
    /// exceed the memory, relations between the two are used (`buf + at` and `sizeof(buf) - at`).
    ///
    /// Claim: the access lies in the returned place. Proof: the offset is at least `least`, by its range or by a proof,
    /// and the sum of offset and length is proven to be at most the end. So the access lies between these two for every
    /// combination of length and offset; and the returned place contains everything between them.
    pub(super) fn place_of_length(&mut self, reg: Reg, v: &Value, length: &Value, access: Access) -> Res<Place> {
        let result = self.place(reg, v, 0, length.n.umax(), access);
        if length.n.as_const().is_some() || !result.as_ref().is_err_and(|why| why.is_out_of_bounds()) {
            return result;
        }
        match self.span_of(v, length) {
            Some((span, size)) => match self.place_of(reg, &span, 0, size, access)? {
                // The access is somewhere in the place, so it is not known which bytes are written.
                Place::Stack { frame, depth, size } => Ok(Place::StackWithin { frame, depth, span: size }),
                place @ (Place::StackWithin { .. } | Place::Field { .. } | Place::Untracked(_)) => Ok(place),
            },
            None => match self.region_holds(v, length) {
                Some(region) if access.writes() && !self.env.region(region).writable => {
                    refuse(Reason::ReadOnly { what: self.env.region(region).name.to_string() })
                }
                Some(_) => Ok(Place::Untracked(Kind::Packet)),
                None => result,
            },
        }
    }

    /// Proves that the offset of `v` is at least `least`, and that offset plus length is at most `most`.
    fn holds(&mut self, v: &Value, length: &Value, least: i64, most: &Form) -> Option<()> {
        if v.null || !self.relates() {
            return None;
        }
        let at = Form::of(v)?;
        let above = v.n.smin() >= least || self.state.proves(&Form::constant(least.into()).plus(&at, -1)?);
        let end = at.plus(&Form::of(length)?, 1)?.plus(most, -1)?;
        let end = end.plus(&Form::constant(i128::from(planted!(LengthOneMore))), -1)?;
        if !above || !self.state.proves(&end) {
            return None;
        }
        // Later proofs may rest on these facts, so finished states must keep them.
        self.decides();
        self.scratch.prune.sums = true;
        Some(())
    }

    /// The region that contains `length` bytes at `v`, if this is proven.
    fn region_holds(&mut self, v: &Value, length: &Value) -> Option<u8> {
        let Ty::Packet { region } = v.ty else { return None };
        self.holds(v, length, 0, &Form::name(len_id(region))).map(|()| region)
    }

    /// The smallest range of constant bounds that contains `length` bytes at `v`, in memory of a known size: a pointer,
    /// and a size.
    fn span_of(&mut self, v: &Value, length: &Value) -> Option<(Value, u64)> {
        let (least, most) = match v.ty {
            Ty::Stack { .. } => (-i64::from(self.env.frame_bytes), 0),
            Ty::MapValue { .. } | Ty::Mem { .. } => (0, super::pointers::size_of(v, self.env).into()),
            _ => return None,
        };
        self.holds(v, length, least, &Form::constant(most.into()))?;
        let start = v.n.smin().max(least);
        let end = i128::from(v.n.smax()) + i128::from(length.n.umax());
        let end = i64::try_from(end).map_or(most, |end| end.min(most));
        let size = u64::try_from(end.checked_sub(start)?).ok().filter(|size| *size > 0)?;
        Some((Value { n: Scalar::constant(start.cast_unsigned()), tie: 0, scale: 1, delta: 0, ..*v }, size))
    }

    fn place_of(&mut self, reg: Reg, v: &Value, off: i64, size: u64, access: Access) -> Res<Place> {
        if v.null && !(planted!(ValueNeverNull) && matches!(v.ty, Ty::MapValue { .. })) {
            return refuse(Reason::MaybeNull(reg));
        }
        // Offsets are within ±2^31 (see `alu`), and sizes within u32, so these sums are exact.
        let min = v.n.smin().saturating_add(off);
        let max = v.n.smax().saturating_add(off);
        match v.ty {
            Ty::Uninit(_) => refuse(Reason::Uninit(reg, v.describe(self.env))),
            Ty::Scalar => refuse(Reason::NotAPointer(reg, v.describe(self.env))),
            Ty::Ctx => self.field(v, off, size, access),
            Ty::Stack { frame } => {
                let frame_bytes = self.env.frame_bytes;
                let end = max.saturating_add(size as i64);
                if min < -i64::from(frame_bytes) || end > 0 {
                    return refuse(Reason::StackBounds { min, max: end, frame_bytes });
                }
                let depth = crate::num::size(min.unsigned_abs());
                let span = crate::num::size(end.abs_diff(min));
                self.notes.stack(self.state.frames[usize::from(frame)].subprog, (depth, span), reg);
                if min == max {
                    return Ok(Place::Stack { frame, depth, size: crate::num::size(size) });
                }
                Ok(Place::StackWithin { frame, depth, span })
            }
            Ty::MapValue { map, inner } => {
                let def = self.map(map, inner)?;
                if access.writes() && !def.access.writes() && !planted!(ConstantsWritable) {
                    return refuse(Reason::ReadOnly { what: format!("value of {}", map_name(self.env, map, inner)) });
                }
                if access.reads() && !def.access.reads() {
                    return refuse(Reason::WriteOnly { what: format!("value of {}", map_name(self.env, map, inner)) });
                }
                let limit = def.value_size + if inner && planted!(InnerValueLarger) { 8 } else { 0 };
                self.within(min, max, size, limit, || format!("value of {}", map_name(self.env, map, inner)))?;
                if let Some(lock) = def.spin_lock {
                    let lock = i64::from(lock);
                    if min < lock + 4 && max + size as i64 > lock && !planted!(LockOpen) {
                        return refuse(Reason::LockAccess {
                            map: map_name(self.env, map, inner),
                            resilient: def.resilient_lock,
                        });
                    }
                }
                let touches = |at: i64| min < at + i64::from(TIMER_BYTES) && max + size as i64 > at;
                if def.deferred().any(|at| touches(at.into())) {
                    return refuse(Reason::TimerAccess { map: map_name(self.env, map, inner) });
                }
                let what = || format!("value of {}", map_name(self.env, map, inner));
                plain(&def.fields, min, max.saturating_add(size as i64), what)?;
                Ok(Place::Untracked(Kind::MapValue))
            }
            Ty::Mem { size: limit, writable, from } => {
                if access.writes() && !writable {
                    return refuse(Reason::ReadOnly { what: "this memory".into() });
                }
                self.within(min, max, size, limit, || format!("memory of {limit} bytes"))?;
                match from {
                    Origin::Element => self.object_is_there(reg, v, "belongs to an iterator that has ended")?,
                    Origin::Slice { packet: true } if v.owner != 0 => {
                        self.object_is_there(reg, v, "is a slice of a buffer that was written since")?;
                    }
                    _ => {}
                }
                if let Origin::Object { class, .. } = from
                    && let Some(ty) = self.env.class(class)
                    && !planted!(LinksOpen)
                {
                    if ty.per_cpu {
                        return refuse(Reason::NotMemory(reg, v.describe(self.env)));
                    }
                    plain(&ty.fields, min, max.saturating_add(size as i64), || format!("type \"{}\"", ty.name))?;
                }
                Ok(Place::Untracked(match from {
                    Origin::Record | Origin::Lent { .. } => Kind::Mem,
                    // The memory may be a map's value, the packet or a caller's stack, to which the program may have
                    // other pointers, too.
                    Origin::Returned | Origin::Argument { .. } => Kind::Mixed,
                    // Two look-ups may find one socket, and two pops one object; an element lies in a frame.
                    Origin::Object { .. } => Kind::Mixed,
                    Origin::Socket { .. } | Origin::Slice { .. } | Origin::Element => Kind::Mixed,
                }))
            }
            Ty::Packet { region } => {
                let r = self.env.region(region);
                if access.writes() && !r.writable {
                    return refuse(Reason::ReadOnly { what: r.name.to_string() });
                }
                if min < 0 {
                    return refuse(Reason::PacketBefore { region: r.name.to_string(), min });
                }
                let offset = i64::from(v.delta) + off;
                // Either so many bytes follow the pointer's base, or the region is long enough for every offset. The
                // least length is asked for last, since asking marks it as needed.
                let room = || self.state.room(region, v.id, v.scale, v.least_of_line());
                let follows = |proven: u32| offset + size as i64 <= i64::from(proven);
                let inside = match v.id {
                    0 => self.state.min_len.has(usize::from(region), offset + size as i64),
                    _ => room().is_some_and(follows),
                };
                if !inside && !self.state.min_len.has(usize::from(region), max.saturating_add(size as i64)) {
                    let (region, proven) = (r.name.to_string(), room().unwrap_or(0));
                    return refuse(Reason::PacketBounds { region, size, offset, proven });
                }
                Ok(Place::Untracked(Kind::Packet))
            }
            // An access just before the end, at most as far back as the region's least length.
            Ty::PacketEnd { region } if off < 0 && size as i64 <= -off => {
                let r = self.env.region(region);
                if access.writes() && !r.writable {
                    return refuse(Reason::ReadOnly { what: r.name.to_string() });
                }
                if !self.state.min_len.has(usize::from(region), -off) {
                    let proven = self.state.min_len[usize::from(region)];
                    return refuse(Reason::PacketBefore { region: r.name.to_string(), min: i64::from(proven) + off });
                }
                Ok(Place::Untracked(Kind::Packet))
            }
            Ty::PacketEnd { .. } => refuse(Reason::BehindEnd(reg, v.describe(self.env))),
            // Loads and stores of the arena are handled by `place_or_check`. As in the kernel, helpers get no arena
            // memory.
            Ty::Arena => refuse(Reason::NotMemory(reg, v.describe(self.env))),
            Ty::Map { .. }
            | Ty::Half { .. }
            | Ty::Biased { .. }
            | Ty::Signed
            | Ty::Stale { .. }
            | Ty::Host { .. }
            | Ty::Func { .. }
            | Ty::Table { .. }
            | Ty::Insn { .. }
            | Ty::Local(_) => refuse(Reason::NotMemory(reg, v.describe(self.env))),
        }
    }

    /// The frame, depth and size of the object on the stack with this owner.
    fn object_of(&self, owner: u32) -> Option<(usize, usize, usize)> {
        let of = |s: &&Spill| s.value.is_local() && s.value.owner == owner;
        let place = |(k, f): (usize, &Frame)| f.spills.iter().find(of).map(|s| (k, s.depth.into(), s.size.into()));
        self.state.frames.iter().enumerate().find_map(place)
    }

    /// Checks that an element's iterator, or a slice's buffer, is still on the stack: an element is part of its
    /// iterator's bytes, and a slice may lie in its buffer. A store to these bytes, or a return from their frame, ends
    /// the object without invalidating pointers to it.
    fn object_is_there(&mut self, reg: Reg, v: &Value, gone: &str) -> Res<()> {
        let Some((frame, depth, size)) = self.object_of(v.owner) else {
            return refuse(Reason::Uninit(reg, gone.into()));
        };
        self.stack_decides(frame, depth, size);
        Ok(())
    }

    /// Whether `slice` may lie in `buffer`: a program may compare the two.
    pub(super) fn is_buffer_of(&mut self, slice: &Value, buffer: &Value) -> bool {
        let (Ty::Mem { from: Origin::Slice { packet: true }, .. }, Ty::Stack { frame }) = (slice.ty, buffer.ty) else {
            return false;
        };
        let at = |v: &Value| v.n.as_const().map(u64::cast_signed);
        let object = (slice.owner != 0 && at(slice) == Some(0)).then(|| self.object_of(slice.owner)).flatten();
        let Some((k, depth, size)) = object else { return false };
        let is = k == usize::from(frame) && at(buffer).map(i64::unsigned_abs) == Some(depth as u64);
        if is {
            self.stack_decides(k, depth, size);
        }
        is
    }

    /// Like [`Walk::place`] for a load or store, which a hybrid walk may leave to a check at run time.
    fn place_or_check(&mut self, reg: Reg, v: &Value, off: i64, size: u64, access: Access) -> Res<Place> {
        if v.is_arena() {
            return Ok(Place::Untracked(Kind::Arena));
        }
        let result = self.place(reg, v, off, size, access);
        if !self.hybrid {
            return result;
        }
        // For the check, a pointer to the end is an address like others: no bytes follow it, so the check fails at run
        // time.
        let region = match v.ty {
            Ty::PacketEnd { region } => checkable(self.env, &Value { ty: Ty::Packet { region }, ..*v }),
            _ => checkable(self.env, v),
        };
        let kind = match region {
            Some(CheckRegion::Packet(_)) => Kind::Packet,
            Some(CheckRegion::MapValue { .. }) => Kind::MapValue,
            None => Kind::None,
        };
        let place = match result {
            Err(reason) if kind == Kind::None || !reason.may_be_checked() => return Err(reason),
            Err(_) => None,
            Ok(place) => Some(place),
        };
        self.note_region(region, place.is_some())?;
        Ok(place.unwrap_or(Place::Untracked(kind)))
    }

    /// In a hybrid walk: notes the region against which the instruction is checked if a path needs it (`None`: it
    /// cannot be), and whether this path's access is proven.
    fn note_region(&mut self, region: Option<CheckRegion>, proven: bool) -> Res<()> {
        if self.hybrid && !self.notes.region(self.pc, region, proven) {
            let (first, second) = ("memory that needs a check".into(), "other memory".into());
            return refuse(Reason::MixedContext { first, second });
        }
        Ok(())
    }

    /// Notes an access to a map's value or table that is always proven, and for which no check can be made. Other paths
    /// may not access the arena or the context with this instruction, since these accesses are compiled differently,
    /// and none may need a check.
    fn note_unchecked_access(&mut self) -> Res<()> {
        self.note_access(Place::Untracked(Kind::MapValue))?;
        self.note_region(None, true)
    }

    fn within(&self, min: i64, max: i64, size: u64, limit: u32, what: impl Fn() -> String) -> Res<()> {
        if min < 0 || max.saturating_add(size as i64) > i64::from(limit) {
            return refuse(Reason::Bounds { what: what(), size, min, max, limit: limit.into() });
        }
        Ok(())
    }

    fn field(&mut self, v: &Value, off: i64, size: u64, access: Access) -> Res<Place> {
        let Some(base) = v.n.as_const() else { return refuse(Reason::CtxOffset) };
        let off = (base as i64).saturating_add(off);
        let layout = self.env.context;
        let found = u32::try_from(off).ok().and_then(|o| Some((o, layout.field_at(o)?)));
        let no_field = || refuse(Reason::NoField { context: layout.name.to_string(), off, size });
        let Some((at, index)) = found else { return no_field() };
        let f = &layout.fields[index];
        let offset = at - f.offset;
        if u64::from(offset) + size > f.size.into() {
            return no_field();
        }
        let use_error = |expected| refuse(Reason::FieldUse { field: f.name.to_string(), expected });
        if access.writes() && !f.access.writes() {
            return refuse(Reason::ReadOnly { what: format!("context field {}", f.name) });
        }
        if access.reads() && !f.access.reads() {
            return refuse(Reason::WriteOnly { what: format!("context field {}", f.name) });
        }
        let whole = size == u64::from(f.size);
        match f.kind {
            FieldKind::Scalar if whole => {}
            // Part of a number, at its own alignment, as the kernel allows.
            FieldKind::Scalar if size.is_power_of_two() && u64::from(offset).is_multiple_of(size) => {}
            FieldKind::Scalar => return use_error("accessed whole, or in aligned parts"),
            FieldKind::Data(_) | FieldKind::DataEnd(_) | FieldKind::Len(_) | FieldKind::Socket if whole => {}
            FieldKind::Data(_) | FieldKind::DataEnd(_) | FieldKind::Len(_) | FieldKind::Socket => {
                return use_error("read whole");
            }
        }
        Ok(Place::Field { index, offset })
    }

    /// Notes the kind of memory that the instruction accesses. One instruction may not access the context on one path
    /// and other memory on another, since context accesses are rewritten for the host's layout.
    fn note_access(&mut self, place: Place) -> Res<()> {
        let (kind, field) = match place {
            Place::Stack { .. } | Place::StackWithin { .. } => (Kind::Stack, None),
            Place::Field { index, offset } => (Kind::Context, Some((index, offset))),
            Place::Untracked(kind) => (kind, None),
        };
        if let Err((first, second)) = self.notes.access(self.pc, kind, field) {
            let name = |k: Kind| match k {
                Kind::Context => "one context field",
                Kind::Arena => "the arena",
                Kind::None | Kind::Stack | Kind::MapValue | Kind::Packet | Kind::Mem | Kind::Mixed => "other memory",
            };
            let second_name = if first == second { "another context field" } else { name(second) };
            return refuse(Reason::MixedContext { first: name(first).into(), second: second_name.into() });
        }
        Ok(())
    }

    /// The frame and depth of an access at a constant place of the stack: a fast path of [`Walk::place`]. `None` only
    /// means that the fast path does not apply.
    fn stack_slot(&mut self, base: Reg, off: i16, size: Size) -> Option<(usize, usize)> {
        let b = self.state.reg(base);
        let Ty::Stack { mut frame } = b.ty else { return None };
        if planted!(WrongFrame) {
            frame = crate::num::few(self.state.frames.len()) - 1;
        }
        let at = (b.n.as_const()? as i64).checked_add(off.into())?;
        if self.hybrid || at < -i64::from(self.env.frame_bytes) || at + i64::from(size.bytes()) > 0 {
            return None;
        }
        let (frame, depth) = (usize::from(frame), crate::num::size(at.unsigned_abs()));
        self.notes.access(self.pc, Kind::Stack, None).ok()?;
        self.notes.stack(self.state.frames[frame].subprog, (depth, size.bytes() as usize), base);
        Some((frame, depth))
    }

    pub(super) fn load(&mut self, size: Size, sign: bool, dst: Reg, base: Reg, off: i16) -> Res<()> {
        if !sign
            && let Some((frame, depth)) = self.stack_slot(base, off, size)
            && let Some(v) = self.spilled(frame, depth, size, dst)
        {
            self.reads_stack(frame, depth, size.bytes() as usize);
            self.state.set(dst, v);
            return Ok(());
        }
        if let (false, Value { ty: Ty::Table { map }, .. }) = (sign, self.state.reg(base)) {
            let (map, b) = (*map, *self.state.reg(base));
            let entry = self.load_entry(&b, map, off, size)?;
            self.note_unchecked_access()?;
            self.state.set(dst, entry);
            return Ok(());
        }
        if !sign && let Some(object) = self.load_stashed(size, base, off)? {
            self.state.set(dst, object);
            return Ok(());
        }
        let v = self.loaded(size, base, off)?;
        let v = match (sign, v.is_scalar()) {
            (false, _) => v,
            (true, true) => Value::scalar(v.n.sign_extend(size.bits())),
            (true, false) if self.env.privileged => {
                Value::scalar(Scalar::low_bits(size.bits()).sign_extend(size.bits()))
            }
            (true, false) => return refuse(Reason::Leak(base, "part of a pointer".into(), "a number")),
        };
        self.state.set(dst, v);
        Ok(())
    }

    /// The object, or null, that a load of a whole kptr in a map's value yields. Others may take the object out, but
    /// its memory stays valid during the run: as in the kernel within an RCU section.
    fn load_stashed(&mut self, size: Size, base: Reg, off: i16) -> Res<Option<Value>> {
        let b = *self.state.reg(base);
        let (Ty::MapValue { map, inner }, Some(at), Size::DW) = (b.ty, b.n.as_const(), size) else { return Ok(None) };
        let field = Value { n: Scalar::constant(at.wrapping_add_signed(off.into())), ..b };
        let to = |kind| match kind {
            OwnedKind::Kptr { to } => Some(to),
            _other => None,
        };
        let Some(class) = self.owning_field(&field, to)? else { return Ok(None) };
        if !self.map(map, inner)?.access.reads() {
            return refuse(Reason::WriteOnly { what: format!("value of {}", map_name(self.env, map, inner)) });
        }
        self.note_unchecked_access()?;
        let object = self.object(class, Hold::Loaded)?;
        Ok(Some(Value { null: !planted!(LoadedNeverNull), id: self.new_id(), ..object }))
    }

    /// The value that a load of `size` bytes at `base + off` yields.
    fn loaded(&mut self, size: Size, base: Reg, off: i16) -> Res<Value> {
        let b = self.read(base)?;
        let bytes = u64::from(size.bytes());
        let place = self.place_or_check(base, &b, off.into(), bytes, Access::Read)?;
        self.note_access(place)?;
        let any = Value::scalar(Scalar::low_bits(size.bits()));
        Ok(match place {
            Place::Stack { frame, depth, size } => {
                self.reads_stack(frame.into(), depth, size);
                match self.state.frames[usize::from(frame)].load(depth, size) {
                    Ok(v) => v,
                    Err(_) if self.state.is_filled(frame.into(), (depth, size), (0, 1, 0), bytes as i64) => any,
                    Err(d) => {
                        self.readable_if_zeroed(frame, (depth, size), self.loops.is_around(self.pc), d)?;
                        any
                    }
                }
            }
            Place::StackWithin { frame, depth, span } => {
                self.reads_stack(frame.into(), depth, span);
                let from = (b.tie, b.scale, i64::from(b.delta) + i64::from(off));
                if self.env.privileged && !self.state.frames[usize::from(frame)].holds_numbers(depth, span) {
                    // Some of the elements may be parts of pointers.
                    self.readable_stack(frame, depth, span)?;
                    return Ok(any);
                }
                if let Err(d) = self.state.frames[usize::from(frame)].check_readable(depth, span)
                    && !self.state.is_filled(frame.into(), (depth, span), from, bytes as i64)
                {
                    let readable = self.readable_if_zeroed(frame, (depth, span), self.loops.is_around(self.pc), d);
                    // While a candidate is formed, an index is less precise than in the final invariant: bytes beside
                    // the array count as not read.
                    if !self.loops.guessing() {
                        readable?;
                    }
                }
                self.loops.missed_elements |= !self.loops.elements && self.relates();
                self.element(frame.into(), &b, off, size, (depth, span)).unwrap_or(any)
            }
            Place::Field { index, .. } => {
                let f = &self.env.context.fields[index];
                match f.kind {
                    FieldKind::Scalar => any,
                    FieldKind::Data(region) => Value::pointer(Ty::Packet { region }),
                    FieldKind::DataEnd(region) => Value::pointer(Ty::PacketEnd { region }),
                    FieldKind::Socket => Value { null: true, id: self.new_id(), ..socket(false) },
                    FieldKind::Len(region) => {
                        let len = self.region_len(region);
                        let known = self.length_flows(region);
                        Value { n: Scalar::unsigned(known.into(), len.n.umax()), ..len }
                    }
                }
            }
            Place::Untracked(Kind::MapValue) => self.frozen_or_tabled(&b, off, size).unwrap_or(any),
            Place::Untracked(Kind::Packet) => self.load_region(&b, off, size),
            Place::Untracked(_) => any,
        })
    }

    /// Stores a number or a pointer at a known place on the stack.
    fn store_known(&mut self, frame: usize, depth: usize, size: usize, v: &Value) {
        let before = match self.loops.orders && v.is_scalar() {
            true => self.state.frames[frame].contents.clone(),
            false => Vec::new(),
        };
        if !before.is_empty() {
            self.decides();
            self.scratch.prune.sums = true;
        }
        let number = (!self.loops.guessing() && !before.is_empty())
            .then(|| (v.n, Order { base: None, lens: self.state.lengths_above(v) }));
        self.state.frames[frame].store(depth, size, v);
        self.state.frames[frame].ordered(&before, (depth, size), number);
    }

    /// [`Walk::frozen`]; while a candidate is formed, a number from a table gets a name, by which the places that it
    /// reaches are seen (`loops/guess/tables.rs`).
    pub(super) fn frozen_or_tabled(&mut self, b: &Value, off: i16, size: Size) -> Option<Value> {
        let v = self.frozen(b, off, size)?;
        if !self.loops.guessing() || v.n.as_const().is_some() {
            return Some(v);
        }
        let id = self.new_id();
        self.loops.see_tabled(id);
        Some(Value { id, ..v })
    }

    /// The value that a load of a frozen map yields: the constant at that place, or, for an unknown offset, the join of
    /// the possible constants.
    pub(super) fn frozen(&self, b: &Value, off: i16, size: Size) -> Option<Value> {
        let Ty::MapValue { map, inner: false } = b.ty else { return None };
        let def = &self.env.maps[map as usize];
        let contents = def.frozen.as_ref().filter(|_| !def.access.writes())?;
        let bytes = size.bytes() as usize;
        let last = i64::try_from(contents.len().checked_sub(bytes)?).ok()?;
        // In a havocked iteration, the offset may lie outside the map, where nothing is read: the check that follows
        // shows that.
        let (min, max) = (b.n.smin().checked_add(off.into())?.max(0), b.n.smax().checked_add(off.into())?.min(last));
        // Known low bits are equal at all places: in a table, they are those of its first element's offset.
        let stride = 1i64 << b.n.bits().mask().trailing_zeros().min(6);
        let first = min + (b.n.bits().value() as i64).wrapping_add(off.into()).wrapping_sub(min).rem_euclid(stride);
        if first > max || (max - first) / stride >= MAX_CONSTANTS {
            return None;
        }
        let number = |at: usize| contents[at..at + bytes].iter().rev().fold(0, |v, b| v << 8 | u64::from(*b));
        let (mut least, mut most, mut some, mut all) = (u64::MAX, 0u64, 0u64, u64::MAX);
        for at in (usize::try_from(first).ok()?..=usize::try_from(max).ok()?).step_by(usize::try_from(stride).ok()?) {
            let n = number(at);
            (least, most, some, all) = (least.min(n), most.max(n), some | n, all & n);
        }
        let bits = Scalar::UNKNOWN.alu(AluOp::And, Width::W64, &Scalar::constant(some));
        let bits = bits.alu(AluOp::Or, Width::W64, &Scalar::constant(all));
        Scalar::unsigned(least, most).meet(&bits).map(Value::scalar)
    }

    /// Proves that stack bytes hold no pointer, and that they are initialised, by the program or by zeroing the frame.
    pub(super) fn readable_stack(&mut self, frame: u8, depth: usize, size: usize) -> Res<()> {
        self.reads_stack(frame.into(), depth, size);
        match self.state.frames[usize::from(frame)].check_readable(depth, size) {
            Ok(()) => Ok(()),
            Err(d) => self.readable_if_zeroed(frame, (depth, size), false, d),
        }
    }

    /// Handles stack bytes that may be unwritten, among them the one at r10 - `missing`: the frame must be zeroed when
    /// the function is entered. If no byte was written on any path, the read is refused, except `in_loop`, where other
    /// elements of the array may have been written.
    fn readable_if_zeroed(
        &mut self,
        frame: u8,
        (depth, size): (usize, usize),
        in_loop: bool,
        missing: usize,
    ) -> Res<()> {
        let frame = &self.state.frames[usize::from(frame)];
        match frame.fresh_within(depth, size) {
            Some(fresh) if in_loop || self.env.privileged || !frame.is_fresh(depth, size) => {
                self.notes.zeroed(frame.subprog, fresh);
            }
            // Parts of pointers, or bytes that differ between joined paths and are unwritten on some of them.
            None if self.env.privileged && !frame.holds_object(depth, size) => {
                self.notes.zeroed(frame.subprog, (depth + 1 - size, depth));
            }
            Some(_) | None => return refuse(Reason::StackUninit { off: -(missing as i64) }),
        }
        Ok(())
    }

    /// The value as it leaves the registers and aligned stack slots: a privileged program may reveal an address, which
    /// is an unknown number from then on.
    pub(super) fn shown(&self, v: Value) -> Value {
        match self.env.privileged && v.is_pointer() && !v.is_local() {
            true if planted!(ShownNumberShort) => Value::scalar(Scalar::low_bits(16)),
            true => Value::unknown(),
            false => v,
        }
    }

    pub(super) fn store(&mut self, size: Size, base: Reg, off: i16, src: Src) -> Res<()> {
        // Slot and register share a name, so that a comparison of one refines the other.
        if let Src::Reg(r) = src
            && matches!(self.state.reg(base).ty, Ty::Stack { .. })
        {
            self.give_name(r);
        }
        if let Some((frame, depth)) = self.stack_slot(base, off, size) {
            let v = match src {
                Src::Reg(r) => self.read_stale(r)?,
                Src::Imm(_) => self.read_src(src)?,
            };
            if v.is_scalar() && v.n.umax() <= crate::tnum::ones(size.bits()) {
                self.writes_stack(frame, depth, size.bytes() as usize);
                self.store_known(frame, depth, size.bytes() as usize, &v);
                self.fills(base, off, size);
                return Ok(());
            }
        }
        if self.loops.guessing() {
            self.note_fill(base, off, size);
        }
        let v = match src {
            Src::Reg(r) => self.read_stale(r)?,
            Src::Imm(_) => self.read_src(src)?,
        };
        let reg = match src {
            Src::Reg(r) => r,
            Src::Imm(_) => base,
        };
        self.store_value(size, base, off, reg, v)
    }

    fn store_value(&mut self, size: Size, base: Reg, off: i16, reg: Reg, v: Value) -> Res<()> {
        let b = self.read(base)?;
        let bytes = size.bytes() as usize;
        let place = self.place_or_check(base, &b, off.into(), bytes as u64, Access::Write)?;
        self.note_access(place)?;
        let spill = matches!(place, Place::Stack { depth, .. } if size == Size::DW && depth.is_multiple_of(8));
        let on_stack = matches!(place, Place::Stack { .. });
        let v = if on_stack { v } else { self.shown(v) };
        let v = if spill { v } else { v.as_number() };
        if v.is_pointer() {
            let to = match place {
                Place::Stack { frame, depth, .. } if size == Size::DW && depth.is_multiple_of(8) => {
                    // The stack of a frame ends when the frame returns, so a caller's frame must not keep a pointer to
                    // it.
                    if matches!(v.ty, Ty::Stack { frame: of } if of > frame) {
                        return refuse(Reason::DanglingStack);
                    }
                    self.writes_stack(frame.into(), depth, bytes);
                    self.state.frames[usize::from(frame)].store(depth, bytes, &v);
                    return Ok(());
                }
                Place::Stack { .. } | Place::StackWithin { .. } => "the stack, other than in an aligned 8-byte slot",
                Place::Field { .. } => "the context",
                Place::Untracked(Kind::MapValue) => "a map",
                Place::Untracked(Kind::Packet) => "the packet",
                Place::Untracked(_) => "memory outside the program",
            };
            return refuse(Reason::Leak(reg, v.describe(self.env), to));
        }
        match place {
            Place::Stack { frame, depth, .. } => {
                let fits = v.n.umax() <= crate::tnum::ones(size.bits());
                let v = if fits { v } else { Value::scalar(v.n.truncate(size.bits())) };
                self.writes_stack(frame.into(), depth, bytes);
                self.store_known(frame.into(), depth, bytes, &v);
                self.fills(base, off, size);
            }
            Place::StackWithin { frame, depth, span } => {
                self.writes_within(frame.into(), depth, span);
                let f = usize::from(frame);
                match self.elements(&b, off, size, (depth, span)) {
                    Some(grid) => {
                        let fits = v.n.umax() <= crate::tnum::ones(size.bits());
                        let n = if fits { v.n } else { v.n.truncate(size.bits()) };
                        let guessing = self.loops.guessing();
                        if self.loops.orders {
                            // Later proofs may rest on the facts that show the order.
                            self.decides();
                            self.scratch.prune.sums = true;
                        }
                        let number = if fits { v } else { Value::scalar(n) };
                        let content = self.state.frames[f].widened(&grid, &n, guessing || self.loops.orders);
                        let ordered =
                            |c: Content| Content { order: self.order_stored(f, &c.grid, &number, (&b, off)), ..c };
                        let content = content.map(ordered).filter(|c| guessing || c.says_something());
                        let frame = &mut self.state.frames[f];
                        frame.stores_near(guessing, |frame| frame.store_element(&grid));
                        frame.set_content(&grid, content);
                    }
                    None => {
                        let guessing = self.loops.guessing();
                        self.state.frames[f].stores_near(guessing, |frame| frame.store_somewhere(depth, span));
                    }
                }
                self.fills(base, off, size);
            }
            Place::Field { .. } | Place::Untracked(_) => self.state.regions_written(),
        }
        Ok(())
    }

    /// LD_ABS and LD_IND. If the bytes are out of range, the current function returns 0.
    pub(super) fn legacy_load(&mut self, size: Size, index: Option<Reg>) -> Res<()> {
        if self.env.context.legacy_loads.is_none() {
            return refuse(Reason::Unsupported("this context has no legacy packet loads"));
        }
        let context = self.read(Reg::R6)?;
        if !self.is_ctx(&context) {
            return refuse(Reason::Arg {
                func: "a legacy packet load".into(),
                arg: 1,
                reg: Reg::R6,
                expected: "the context".into(),
                got: context.describe(self.env),
            });
        }
        if let Some(r) = index {
            self.number(r)?;
        }
        if let Some(lock) = self.state.locks.last() {
            return refuse(Reason::LockHeld { func: "a legacy packet load".into(), at: lock.at });
        }
        // The early return ends the run, which must not owe anything, or continues in the caller.
        if planted!(LegacyReturnForgotten) {
        } else if self.state.frames.len() > 1 {
            let mut returned = self.copy_state();
            returned.set(Reg::R0, Value::constant(0));
            self.push_return(returned)?;
        } else {
            self.state.set(Reg::R0, Value::constant(0));
            self.check_exit()?;
        }
        self.clobber_args();
        self.state.set(Reg::R0, Value::scalar(Scalar::low_bits(if planted!(LegacyResult) { 8 } else { size.bits() })));
        Ok(())
    }

    /// Whether the value is the unchanged context pointer.
    pub(super) fn is_ctx(&self, v: &Value) -> bool {
        match v.ty {
            Ty::Ctx => v.n.as_const() == Some(0),
            Ty::Packet { region: 0 } => self.env.context.raw && v.id == 0 && v.delta == 0,
            _ => false,
        }
    }
}
