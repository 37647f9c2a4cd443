//! Loads, stores and atomics: proves that an access is within bounds, and applies its effect to the state.
//!
//! One function, [`Checker::place`], proves that an access lies within the object that its pointer points to. Loads,
//! stores, atomics and memory arguments of functions all go through it.

use bpf_isa::{AtomicOp, Reg, Size, Src, Width};

use crate::check::{Checker, Flow};
use crate::contract::{Access, FieldKind, KnownMap};
use crate::domain::{Form, Scalar};
use crate::faults::planted;
use crate::notes::Kind;
use crate::refusal::{Res, Why};
use crate::state::{Base, Loaded, Pointer, State, Value};

/// The size in bytes of a `struct bpf_timer` or `struct bpf_wq`, and an upper bound of the size of any lock.
const FIELD_BYTES: u32 = bpf_uapi::TIMER_BYTES;

/// The place of an access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    /// Some of the `size` bytes from `depth` below a frame's top upwards, or exactly those bytes if `exact`.
    Stack { frame: usize, depth: u32, size: u32, exact: bool },
    /// A field of the context, and the offset within the field.
    Field { index: usize, offset: u32 },
    /// Memory whose contents are not tracked.
    Untracked(Kind),
}

/// The size of an access as a form.
fn bytes_of(size: Size) -> Form {
    Form::constant(size.bytes().into())
}

/// Whether each number of the set is a multiple of the size, a power of two: the low bits of all of them are 0.
fn is_multiple(word: &Scalar, size: Size) -> bool {
    word.bits().max() & u64::from(size.bytes() - 1) == 0
}

impl Checker<'_> {
    /// Proves that `size` bytes at `pointer + off` may be accessed. `size` is not negative.
    pub(crate) fn place(
        &mut self,
        state: &State,
        reg: Reg,
        (pointer, off): (&Pointer, i128),
        size: &Form,
        access: Access,
    ) -> Res<Place> {
        if pointer.present.is_some() {
            return Err(Why::MayBeNull(reg));
        }
        let at = pointer.offset.shifted(off).ok_or(Why::Internal("an offset out of range"))?;
        let inside = |what| Why::OutOfBounds { what };
        match pointer.base {
            Base::Context => self.field(&at, size, access),
            Base::Map(_) | Base::Inner(_) => Err(Why::NotAPointer(reg)),
            Base::Stack(frame) => {
                let frame = usize::from(frame);
                self.within(
                    state,
                    &at,
                    -i128::from(self.env.frame_bytes),
                    &Form::constant(0),
                    size,
                    inside("the stack"),
                )?;
                let end = at.plus(size, 1).ok_or(Why::Internal("an offset out of range"))?;
                let (Some((min, _)), Some((_, max))) = (state.known.bounds(&at), state.known.bounds(&end)) else {
                    return Err(inside("the stack"));
                };
                // The access is proven to lie within the frame, possibly by rows, so bounds that reach beyond the frame
                // are cut.
                let (min, max) = (min.max(-i128::from(self.env.frame_bytes)), max.min(0));
                let bytes = |n: i128| u32::try_from(n).map_err(|_| Why::Unreachable);
                let (depth, span) = (bytes(min.saturating_neg())?, bytes(max.saturating_sub(min))?);
                let subprog = state.frames.get(frame).ok_or(Why::Internal("no such frame"))?.subprog;
                self.notes.frames.note(subprog, depth, span, reg);
                let exact = at.as_const().is_some() && size.as_const().is_some();
                Ok(Place::Stack { frame, depth, size: span, exact })
            }
            Base::Region(region) => {
                let r = usize::from(region);
                let (Some(def), Some(length)) = (self.env.context.regions.get(r), state.lengths.get(r)) else {
                    return Err(Why::Internal("no such region"));
                };
                if access.writes() && !def.writable {
                    return Err(Why::ReadOnly("the region"));
                }
                self.within(state, &at, 0, length, size, inside("the region"))?;
                Ok(Place::Untracked(Kind::Packet))
            }
            Base::MapValue(_) | Base::InnerValue(_) => {
                let def = pointer.base.map(self.env).ok_or(Why::Internal("no such map"))?;
                if access.writes() && !def.access.writes() {
                    return Err(Why::ReadOnly("the map's value"));
                }
                if access.reads() && !def.access.reads() {
                    return Err(Why::WriteOnly("the map's value"));
                }
                let end = Form::constant(def.value_size.into());
                self.within(state, &at, 0, &end, size, inside("the map's value"))?;
                self.plain(state, &at, size, def)?;
                Ok(Place::Untracked(Kind::MapValue))
            }
            Base::Memory { size: bytes, writable } => {
                if access.writes() && !writable {
                    return Err(Why::ReadOnly("the memory"));
                }
                self.within(state, &at, 0, &Form::constant(bytes.into()), size, inside("the memory"))?;
                Ok(Place::Untracked(Kind::Mixed))
            }
            // Two names of an invariant may stand for one record. A record is accessed only through a name that is
            // held, so after one of the two is given back, the other gives no access.
            Base::Record { owner, .. } if !state.held.contains(&owner) => Err(Why::NotHeld(reg)),
            Base::Record { size: bytes, .. } => {
                self.within(state, &at, 0, &Form::constant(bytes.into()), size, inside("the record"))?;
                Ok(Place::Untracked(Kind::Mem))
            }
        }
    }

    /// Proves `start <= at` and `at + size <= end`.
    fn within(&mut self, state: &State, at: &Form, start: i128, end: &Form, size: &Form, why: Why) -> Res<()> {
        let behind = start.checked_neg().and_then(|by| at.shifted(by));
        let before = end
            .plus(at, -1)
            .and_then(|left| if planted!(SizeUncounted) { left.shifted(-1) } else { left.plus(size, -1) });
        for claim in [behind, before] {
            match claim {
                Some(claim) if self.proves(state, &claim)? => {}
                Some(_) | None => return Err(why),
            }
        }
        Ok(())
    }

    /// Proves that the access touches no lock, timer or other field of the value that only functions may use.
    fn plain(&self, state: &State, at: &Form, size: &Form, def: &KnownMap) -> Res<()> {
        let bounds = |form: &Form| state.known.bounds(form);
        let reach = bounds(at).zip(at.plus(size, 1).as_ref().and_then(bounds));
        let apart = |start: u32, bytes: u32| {
            reach
                .is_some_and(|((min, _), (_, end))| end <= start.into() || min >= i128::from(start) + i128::from(bytes))
        };
        let special = def.spin_lock.into_iter().chain(def.deferred());
        let fields = def.fields.iter().map(|f| (f.offset, f.end() - f.offset));
        match special.map(|at| (at, FIELD_BYTES)).chain(fields).all(|(at, bytes)| apart(at, bytes)) {
            true => Ok(()),
            false => Err(Why::Unsupported("accesses near a lock or another field that functions use")),
        }
    }

    fn field(&mut self, at: &Form, size: &Form, access: Access) -> Res<Place> {
        let layout = self.env.context;
        let found = at.as_const().and_then(|at| u32::try_from(at).ok()).and_then(|at| Some((at, layout.field_at(at)?)));
        let outside = Why::OutOfBounds { what: "a field of the context" };
        let size = size.as_const().and_then(|size| u32::try_from(size).ok());
        let (Some((at, index)), Some(size)) = (found, size) else { return Err(outside) };
        let Some(field) = layout.fields.get(index) else { return Err(outside) };
        let offset = at - field.offset;
        if u64::from(offset) + u64::from(size) > field.size.into() {
            return Err(outside);
        }
        if access.writes() && !field.access.writes() {
            return Err(Why::ReadOnly("the field"));
        }
        if access.reads() && !field.access.reads() {
            return Err(Why::WriteOnly("the field"));
        }
        let whole = size == field.size;
        match field.kind {
            FieldKind::Scalar if whole || size.is_power_of_two() && offset.is_multiple_of(size) => {
                Ok(Place::Field { index, offset })
            }
            FieldKind::Data(_) | FieldKind::DataEnd(_) | FieldKind::Len(_) if whole => {
                Ok(Place::Field { index, offset })
            }
            FieldKind::Socket => Err(Why::Unsupported("sockets")),
            FieldKind::Scalar | FieldKind::Data(_) | FieldKind::DataEnd(_) | FieldKind::Len(_) => Err(outside),
        }
    }

    /// Notes the kind of memory that the instruction accesses. All paths must access one field of the context, or none
    /// may access the context.
    fn note(&mut self, place: Place) -> Res<()> {
        let (kind, field) = match place {
            Place::Stack { .. } => (Kind::Stack, None),
            Place::Field { index, offset } => (Kind::Context, Some((index, offset))),
            Place::Untracked(kind) => (kind, None),
        };
        if self.notes.access(self.pc, kind, field) { Ok(()) } else { Err(Why::MixedAccess) }
    }

    fn pointer(&self, state: &State, reg: Reg) -> Res<Pointer> {
        match self.value(state, reg)? {
            Value::Pointer(pointer) => Ok(pointer),
            Value::Number(_) | Value::Unset => Err(Why::NotAPointer(reg)),
        }
    }

    /// Proves that bytes of the stack may be read as a number, and notes bytes that the host must clear.
    pub(crate) fn readable(&mut self, state: &State, frame: usize, depth: u32, size: u32) -> Res<()> {
        let frame = state.frames.get(frame).ok_or(Why::Internal("no such frame"))?;
        let number = |value| match value {
            Loaded::Value(Value::Number(_)) => Some(false),
            Loaded::Number { fresh } => Some(fresh),
            Loaded::Value(Value::Pointer(_) | Value::Unset) | Loaded::Opaque => None,
        };
        match number(frame.stack.read(depth, size)) {
            Some(fresh) => {
                if fresh {
                    self.notes.cleared(frame.subprog, depth, size);
                }
                Ok(())
            }
            None => Err(Why::StackOpaque),
        }
    }

    pub(crate) fn load(&mut self, state: &mut State, size: Size, sign: bool, dst: Reg, base: Reg, off: i16) -> Res<()> {
        let pointer = self.pointer(state, base)?;
        let place = self.place(state, base, (&pointer, off.into()), &bytes_of(size), Access::Read)?;
        self.note(place)?;
        let value = match place {
            Place::Stack { frame, depth, size: bytes, exact: true } => {
                let loaded = state.frames.get(frame).map(|f| f.stack.read(depth, bytes));
                match loaded {
                    Some(Loaded::Value(value)) => value,
                    _other => {
                        self.readable(state, frame, depth, bytes)?;
                        self.part(state, frame, depth, size)?
                    }
                }
            }
            Place::Stack { frame, depth, size: bytes, exact: false } => {
                self.readable(state, frame, depth, bytes)?;
                self.any(state, size)?
            }
            Place::Field { index, .. } => match self.env.context.fields.get(index).map(|field| field.kind) {
                Some(FieldKind::Data(region)) => Value::Pointer(Pointer::start(Base::Region(region))),
                Some(FieldKind::DataEnd(region)) => {
                    let length = state.lengths.get(usize::from(region)).ok_or(Why::Internal("no such region"))?;
                    let start = Pointer::start(Base::Region(region));
                    Value::Pointer(Pointer { offset: length.clone(), ..start })
                }
                Some(FieldKind::Len(region)) => {
                    let length = state.lengths.get(usize::from(region)).ok_or(Why::Internal("no such region"))?;
                    Value::Number(length.clone())
                }
                Some(FieldKind::Scalar) => self.any(state, size)?,
                Some(FieldKind::Socket) | None => return Err(Why::Unsupported("sockets")),
            },
            Place::Untracked(Kind::MapValue) => match self.frozen(&pointer, off, size) {
                Some(value) => Value::Number(Form::constant(value.into()).residue(64)),
                None => self.any(state, size)?,
            },
            Place::Untracked(_) => self.any(state, size)?,
        };
        // A pointer that was spilled to the stack may be known to be null since then.
        let value = match (sign, state.resolved(value)) {
            (false, value) => value,
            (true, Value::Number(form)) => Value::Number(self.sign_extended(state, &form, size.bits(), Width::W64)?),
            (true, Value::Pointer(_) | Value::Unset) => return Err(Why::Leak),
        };
        state.set(dst, value);
        Ok(())
    }

    /// An unknown number of `size` bytes.
    fn any(&mut self, state: &mut State, size: Size) -> Res<Value> {
        Ok(Value::Number(Form::name(self.fresh(state, Scalar::low_bits(size.bits()), false)?)))
    }

    /// Bytes of the stack as a number: the low bytes of a longer number that begins at the same depth, or an unknown
    /// number.
    fn part(&mut self, state: &mut State, frame: usize, depth: u32, size: Size) -> Res<Value> {
        let longer = state.frames.get(frame).and_then(|f| f.stack.cell_at(depth)).cloned();
        match longer {
            Some(cell) if cell.size > size.bytes() => match cell.value {
                Value::Number(form) => Ok(Value::Number(self.read_as(state, &form, size.bits(), false)?)),
                Value::Pointer(_) | Value::Unset => Err(Why::StackOpaque),
            },
            Some(_) | None => self.any(state, size),
        }
    }

    /// The constant at this place of a map that is frozen and not writable for programs.
    fn frozen(&self, pointer: &Pointer, off: i16, size: Size) -> Option<u64> {
        let Base::MapValue(map) = pointer.base else { return None };
        let def = self.env.maps.get(map as usize)?;
        let contents = def.frozen.as_ref().filter(|_| !def.access.writes())?;
        let at = usize::try_from(pointer.offset.as_const()?.checked_add(off.into())?).ok()?;
        let bytes = contents.get(at..at.checked_add(size.bytes() as usize)?)?;
        Some(bytes.iter().rev().fold(0, |v, b| v << 8 | u64::from(*b)))
    }

    /// `LD_ABS` and `LD_IND`. r6 must be the context. If the bytes lie beyond the packet's end, the function returns 0,
    /// so that path is walked as well.
    pub(crate) fn legacy_load(&mut self, state: &mut State, size: Size, index: Option<Reg>) -> Res<()> {
        if self.env.context.legacy_loads.is_none() {
            return Err(Why::Unsupported("legacy packet loads in this context"));
        }
        if !self.is_context(&self.value(state, Reg::R6)?) {
            return Err(Why::NotTheContext);
        }
        if let Some(index) = index {
            self.number(state, index)?;
        }
        let mut returned = self.copy(state)?;
        returned.set(Reg::R0, Value::Number(Form::constant(0)));
        if let Flow::To(back) = self.exit(&mut returned)? {
            self.push(back, returned)?;
        }
        let loaded = self.any(state, size)?;
        Reg::ARGS.into_iter().for_each(|reg| state.set(reg, Value::Unset));
        state.set(Reg::R0, loaded);
        Ok(())
    }

    pub(crate) fn store(&mut self, state: &mut State, size: Size, base: Reg, off: i16, src: Src) -> Res<()> {
        let pointer = self.pointer(state, base)?;
        let value = self.operand(state, src)?;
        let place = self.place(state, base, (&pointer, off.into()), &bytes_of(size), Access::Write)?;
        self.note(place)?;
        let value = match value {
            Value::Number(form) => Value::Number(self.read_as(state, &form, size.bits(), false)?),
            value => value,
        };
        match place {
            Place::Stack { frame, depth, size: bytes, exact } => {
                let aligned = exact && size == Size::DW && depth.is_multiple_of(8);
                // The stack of a frame is gone when the frame returns, so an older frame must not keep a pointer to it.
                let dangles = (frame + 1..state.frames.len()).any(|younger| value.is_into_frame(younger));
                if !matches!(value, Value::Number(_)) && (!aligned || dangles) {
                    return Err(Why::Leak);
                }
                let frame = state.frames.get_mut(frame).ok_or(Why::Internal("no such frame"))?;
                match exact {
                    true => frame.stack.write(depth, bytes, value),
                    false => frame.stack.write_within(depth, bytes),
                }
                Ok(())
            }
            Place::Field { .. } | Place::Untracked(_) => match value {
                Value::Number(_) => Ok(()),
                Value::Pointer(_) | Value::Unset => Err(Why::Leak),
            },
        }
    }

    pub(crate) fn atomic(
        &mut self,
        state: &mut State,
        width: Width,
        op: AtomicOp,
        base: Reg,
        off: i16,
        src: Reg,
    ) -> Res<()> {
        let size = Size::from(width);
        let pointer = self.pointer(state, base)?;
        self.number(state, src)?;
        if op == AtomicOp::CmpXchg {
            self.number(state, Reg::R0)?;
        }
        // Atomic accesses must be aligned: an aligned offset into memory whose start is aligned to 8 bytes.
        let at = pointer.offset.shifted(off.into()).ok_or(Why::Internal("an offset out of range"))?;
        let aligned = is_multiple(&state.known.word(&at), size) || planted!(AtomicUnaligned);
        if !aligned || !matches!(pointer.base, Base::MapValue(_) | Base::Stack(_)) {
            return Err(Why::Unsupported("atomics on other than a map's value or the stack, at an aligned offset"));
        }
        let place = self.place(state, base, (&pointer, off.into()), &bytes_of(size), Access::ReadWrite)?;
        self.note(place)?;
        if let Place::Stack { frame, depth, size: span, exact } = place {
            self.readable(state, frame, depth, span)?;
            let frame = state.frames.get_mut(frame).ok_or(Why::Internal("no such frame"))?;
            match exact {
                true => frame.stack.write_number(depth, span),
                false => frame.stack.write_within(depth, span),
            }
        }
        if let Some(result) = op.result(src) {
            let old = self.any(state, size)?;
            state.set(result, old);
        }
        Ok(())
    }
}
