//! Calls and returns. Functions of the program are walked into; functions of the host are applied by their prototypes.
//!
//! Memory that a host function reads must be readable, and memory that it writes is forgotten. Everything else that its
//! prototype says must have a rule here: any other kind of argument, result or effect is [`Why::Unsupported`].

use bpf_isa::{InsnIdx, MAX_CALL_DEPTH, Reg};

use super::memory::Place;
use crate::check::{Checker, Flow};
use crate::contract::{ArgKind, Effect, HelperProto, KnownMap, MapTypes, MemArg, MemSet, Ret};
use crate::domain::{Form, Known, Name, Scalar};
use crate::faults::planted;
use crate::refusal::{Res, Why};
use crate::state::{Base, Frame, Pointer, Sections, State, Value};

/// Findings about the arguments of one call.
#[derive(Default)]
struct Call<'a> {
    map: Option<(Base, &'a KnownMap)>,
    /// The key of an array, if it is a known constant.
    key: Option<u64>,
    record_size: u32,
    /// The record that the call gives back.
    released: Option<Name>,
    /// Memory that the function writes, each with the least number of bytes written.
    written: Vec<(Place, u32)>,
    /// The memory arguments of at least one byte.
    memory: Vec<Lent>,
}

/// Memory that a call gets: `size` bytes from `at` on, which were proven to be inside of the object.
struct Lent {
    base: Base,
    at: Form,
    size: Form,
    writes: bool,
}

/// The argument that is being checked.
struct Argument<'a> {
    proto: &'a HelperProto,
    index: usize,
    reg: Reg,
}

impl Argument<'_> {
    fn wrong(&self, expected: &'static str) -> Why {
        Why::Argument { func: self.proto.name.to_string(), arg: self.index + 1, expected }
    }
}

impl<'a> Checker<'a> {
    pub(crate) fn call_subprog(&mut self, state: &mut State, off: i32) -> Res<Flow> {
        let target = self.target(off)?;
        let callee = self.program.subprog_starting_at(target).ok_or(Why::Internal("a call into no function"))?;
        let index = state.frames.len();
        let (Ok(number), true) = (u8::try_from(index), index < MAX_CALL_DEPTH as usize) else {
            return Err(Why::Internal("a chain of calls that is too long"));
        };
        let mut frame = Frame::new(number, callee.0, Some(InsnIdx(self.pc.0 + 1)), self.env.frame_bytes);
        let caller = state.frames.last_mut().ok_or(Why::Internal("no frame"))?;
        for reg in Reg::ARGS {
            frame.regs[reg.index()] = caller.regs[reg.index()].clone();
        }
        caller.regs[..6].fill(Value::Unset);
        state.frames.push(frame);
        Ok(Flow::To(target))
    }

    pub(crate) fn exit(&mut self, state: &mut State) -> Res<Flow> {
        let result = state.reg(Reg::R0);
        let back = state.top().and_then(|frame| frame.back);
        if let Some(back) = back {
            self.pay(state)?;
            let gone = state.frames.len() - 1;
            state.frames.pop();
            if result.is_into_frame(gone) {
                return Err(Why::Leak);
            }
            state.set(Reg::R0, result);
            state.forget(|value| value.is_into_frame(gone));
            return Ok(Flow::To(back));
        }
        if state.owed().next().is_some() {
            return Err(Why::Held);
        }
        // An object may declare that its program returns nothing, which does not override a context that reads the
        // result.
        if self.env.void && self.env.context.returns.is_none() {
            return Ok(Flow::End);
        }
        let result = self.number(state, Reg::R0)?;
        if let Some((min, max)) = self.env.context.returns {
            let result = self.read_as(state, &result, 64, true)?;
            let above = result.shifted(-i128::from(min));
            let below = result.times(-1).and_then(|f| f.shifted(max.into()));
            for claim in [above, below] {
                match claim {
                    Some(claim) if self.proves(state, &claim)? => {}
                    Some(_) | None => return Err(Why::Return),
                }
            }
        }
        Ok(Flow::End)
    }

    pub(crate) fn call_helper(&mut self, state: &mut State, proto: &'a HelperProto) -> Res<Flow> {
        let mut call = Call::default();
        if proto.args.iter().skip(proto.arity().into()).any(|arg| *arg != ArgKind::None) {
            return Err(Why::Environment(format!("{}: an argument after its last", proto.name)));
        }
        for (index, reg) in (0..proto.arity().into()).zip(Reg::ARGS) {
            self.argument(state, &Argument { proto, index, reg }, &mut call)?;
        }
        if proto.disjoint {
            self.disjoint(state, proto, &call)?;
        }
        self.note_call(state, proto, &call);
        for (place, least) in &call.written {
            self.write_argument(state, *place, *least);
        }
        match proto.effect {
            Effect::None | Effect::UnderLock => {}
            Effect::Sleeps => self.sleep(state, proto)?,
            // In a program that may not sleep, nothing depends on sections.
            Effect::Enter(_) | Effect::Leave(_) if !self.env.sleepable => {}
            Effect::Enter(section) => {
                let open = state.sections.of(section);
                *open = open.checked_add(1).ok_or(Why::Unsupported("so many sections"))?;
            }
            // A call that ends no section has no effect.
            Effect::Leave(section) => {
                let open = state.sections.of(section);
                *open = open.saturating_sub(1);
            }
            Effect::TailCall if self.env.sleepable => {
                return Err(Why::Unsupported("tail calls of a sleepable program"));
            }
            Effect::MovesPacket => self.move_regions(state)?,
            Effect::TailCall => {
                self.notes.tail_call(state.frames.len())?;
                if !matches!(call.map, Some((Base::Map(_), _))) {
                    return Err(Why::Unsupported("tail calls through inner maps"));
                }
                if state.owed().next().is_some() {
                    return Err(Why::Held);
                }
            }
            Effect::Lock(_) | Effect::Unlock(_) => return Err(Why::Unsupported("locks")),
        }
        if let Some(owner) = call.released {
            self.pay(state)?;
            state.held.retain(|n| *n != owner);
            state.forget(
                |v| matches!(v, Value::Pointer(Pointer { base: Base::Record { owner: o, .. }, .. }) if *o == owner),
            );
        }
        if proto.ret == Ret::Never {
            return Ok(Flow::End);
        }
        let result = self.result(state, proto, &call)?;
        if let Some(frame) = state.frames.last_mut() {
            frame.regs[..6].fill(Value::Unset);
        }
        state.set(Reg::R0, result);
        Ok(Flow::Next)
    }

    /// Returns why the run may not sleep in this state. It holds no lock and is in no callback: the core refuses both.
    fn awake(&self, state: &State) -> Option<&'static str> {
        if !self.env.sleepable {
            Some("the program is not sleepable")
        } else if state.sections != Sections::default() && !planted!(SleepsInside) {
            Some("it may be inside a section in which it may not")
        } else if state.owed().next().is_some() && !planted!(SleepsHolding) {
            Some("it may hold a record")
        } else {
            None
        }
    }

    /// Handles a call at which the run may sleep. The arguments have been checked: the function has them before it
    /// sleeps.
    fn sleep(&mut self, state: &mut State, proto: &HelperProto) -> Res<()> {
        if let Some(why) = self.awake(state) {
            return Err(Why::Sleeps { func: proto.name.to_string(), why });
        }
        self.pay(state)?;
        state.sleep(self.env);
        Ok(())
    }

    /// Handles the arrival at the head of a loop, where a run may yield if it comes over a jump back. A run yields only
    /// at heads at which no path arrives that may not sleep ([`crate::notes::Notes::head`]).
    ///
    /// Claim: a run that yields at a head is in a state that was put to sleep there. Proof: a run comes back to a head
    /// over a jump only, and each state that a walk brings to an instruction passes here before it is covered or
    /// steps.
    pub(crate) fn at_head(&mut self, state: &mut State) -> Res<()> {
        let stays = self.awake(state).is_some();
        self.notes.head(self.pc, stays);
        if !stays && !planted!(YieldForgetsNothing) {
            self.pay(state)?;
            state.sleep(self.env);
        }
        Ok(())
    }

    /// Gives each region an unknown address and length: pointers into regions are forgotten.
    fn move_regions(&mut self, state: &mut State) -> Res<()> {
        self.pay(state)?;
        state.forget(|v| matches!(v, Value::Pointer(Pointer { base: Base::Region(_), .. })));
        let env = self.env;
        for (i, region) in env.context.regions.iter().enumerate() {
            let range = Known::range(region.min_len.into(), region.max_len.into(), false);
            let range = range.ok_or(Why::Internal("a region longer at least than at most"))?;
            let length = Form::name(self.fresh(state, range.word, false)?);
            if let Some(old) = state.lengths.get_mut(i) {
                *old = length;
            }
        }
        Ok(())
    }

    fn write_argument(&mut self, state: &mut State, place: Place, least: u32) {
        let Place::Stack { frame, depth, size, exact } = place else { return };
        let Some(frame) = state.frames.get_mut(frame) else { return };
        frame.stack.write_within(depth, size);
        if exact && least > 0 {
            frame.stack.write_number(depth, least);
        }
    }

    /// Whether the value is the unchanged context pointer.
    pub(crate) fn is_context(&self, value: &Value) -> bool {
        let start = Pointer::start(if self.env.context.raw { Base::Region(0) } else { Base::Context });
        *value == Value::Pointer(start)
    }

    fn argument(&mut self, state: &mut State, arg: &Argument<'a>, call: &mut Call<'a>) -> Res<()> {
        let (proto, index, reg) = (arg.proto, arg.index, arg.reg);
        let Some(kind) = proto.args.get(index) else { return Err(Why::Internal("no such argument")) };
        if *kind == ArgKind::Unused {
            return Ok(());
        }
        let value = self.value(state, reg)?;
        let fixed = |bytes: u32| Form::constant(bytes.into());
        match *kind {
            ArgKind::None | ArgKind::Unused => Ok(()),
            ArgKind::Scalar | ArgKind::Formatted => match value {
                Value::Number(_) => Ok(()),
                Value::Pointer(_) | Value::Unset => Err(arg.wrong("a number")),
            },
            ArgKind::Ctx if self.is_context(&value) => Ok(()),
            ArgKind::CtxOrNull if self.is_context(&value) || is_zero(&value) => Ok(()),
            ArgKind::Ctx | ArgKind::CtxOrNull => Err(arg.wrong("the context")),
            ArgKind::Map(kinds) => {
                let Value::Pointer(Pointer { base: map @ (Base::Map(_) | Base::Inner(_)), present: None, .. }) = value
                else {
                    return Err(arg.wrong("a map"));
                };
                let def = map.map(self.env).ok_or(Why::Internal("no such map"))?;
                let (reads, writes) = proto.map_access(def.kind);
                if !kinds.contains(def.kind) {
                    return Err(arg.wrong("a map of a kind that it works on"));
                }
                if reads && !def.access.reads() {
                    return Err(Why::WriteOnly("the map"));
                }
                if writes && !def.access.writes() {
                    return Err(Why::ReadOnly("the map"));
                }
                call.map = Some((map, def));
                Ok(())
            }
            ArgKind::Key | ArgKind::Value | ArgKind::ValueOrNull | ArgKind::ValueOut => {
                let (_, def) = call.map.ok_or(Why::Unsupported("a key or value before its map"))?;
                if *kind == ArgKind::Key && def.kind.is_array() {
                    call.key = known_key(state, &value, def.key_size);
                }
                let (mem, bytes) = def.memory_of(*kind).ok_or(Why::Internal("an argument of no map"))?;
                self.memory(state, arg, &value, &fixed(bytes), mem, call)
            }
            ArgKind::Fixed { bytes, mem } => self.memory(state, arg, &value, &fixed(bytes), mem, call),
            // Checked together with its length, the next argument.
            ArgKind::Mem(_) if matches!(proto.args.get(index + 1), Some(ArgKind::Size { .. })) => Ok(()),
            ArgKind::Size { zero, .. } => {
                let before = index.checked_sub(1).and_then(|i| Some((i, *proto.args.get(i)?, *Reg::ARGS.get(i)?)));
                let Some((before, ArgKind::Mem(mem), base)) = before else {
                    return Err(Why::Unsupported("a length without memory before it"));
                };
                let size = self.length(state, arg, &value)?;
                if !zero && !size.shifted(-1).is_some_and(|f| state.known.is_not_negative(&f)) {
                    return Err(arg.wrong("a length of at least 1"));
                }
                let base_value = self.value(state, base)?;
                self.memory(state, &Argument { proto, index: before, reg: base }, &base_value, &size, mem, call)
            }
            ArgKind::MemOfLength(_) if proto.args.get(index..).is_some_and(|a| a.contains(&ArgKind::Length)) => Ok(()),
            ArgKind::Length => {
                let size = self.length(state, arg, &value)?;
                for (i, base) in (0..index).zip(Reg::ARGS) {
                    let Some(ArgKind::MemOfLength(mem)) = proto.args.get(i) else { continue };
                    let base_value = self.value(state, base)?;
                    self.memory(state, &Argument { proto, index: i, reg: base }, &base_value, &size, *mem, call)?;
                }
                Ok(())
            }
            ArgKind::Mem(_) | ArgKind::MemOfLength(_) => {
                Err(Why::Environment(format!("{}: memory without a length", proto.name)))
            }
            ArgKind::RecordSize => match &value {
                Value::Number(form) => match form.as_const() {
                    Some(bytes @ 1..0x4000_0000) => {
                        call.record_size = u32::try_from(bytes).map_err(|_| Why::Internal("a size"))?;
                        Ok(())
                    }
                    Some(_) | None => Err(arg.wrong("a constant size of at least 1")),
                },
                Value::Pointer(_) | Value::Unset => Err(arg.wrong("a constant size of at least 1")),
            },
            ArgKind::Record => match &value {
                Value::Pointer(Pointer { base: Base::Record { owner, .. }, offset, present: None })
                    if offset.as_const() == Some(0) && state.held.contains(owner) =>
                {
                    call.released = Some(*owner);
                    Ok(())
                }
                _other => Err(arg.wrong("a record as it was reserved")),
            },
            ArgKind::Values
            | ArgKind::Lock { .. }
            | ArgKind::Timer
            | ArgKind::Work
            | ArgKind::TimerMap
            | ArgKind::TimerCallback
            | ArgKind::Local(..)
            | ArgKind::LocalType { .. }
            | ArgKind::Object(_)
            | ArgKind::Root(_)
            | ArgKind::Node(..)
            | ArgKind::Compare
            | ArgKind::Kptr
            | ArgKind::Exchanged
            | ArgKind::Peeked { .. }
            | ArgKind::Probed
            | ArgKind::SliceBuffer
            | ArgKind::ConstStr
            | ArgKind::Socket { .. }
            | ArgKind::Callback(_)
            | ArgKind::CallbackCtx
            | ArgKind::Host { .. } => Err(Why::Unsupported("an argument of this kind")),
        }
    }

    /// A length as an integer, proven to be at most 2^32 - 1.
    fn length(&mut self, state: &mut State, arg: &Argument<'_>, value: &Value) -> Res<Form> {
        let Value::Number(form) = value else { return Err(arg.wrong("a length")) };
        let size = self.read_as(state, form, 64, false)?;
        let below = size.times(-1).and_then(|f| f.shifted(u32::MAX.into()));
        match below {
            Some(below) if self.proves(state, &below)? => Ok(size),
            Some(_) | None => Err(arg.wrong("a length with a known maximum")),
        }
    }

    /// Proves that the function may access `size` bytes at the pointer, and notes the bytes that it may write.
    fn memory(
        &mut self,
        state: &mut State,
        arg: &Argument<'_>,
        value: &Value,
        size: &Form,
        mem: MemArg,
        call: &mut Call<'a>,
    ) -> Res<()> {
        let sized = matches!(arg.proto.args.get(arg.index), Some(ArgKind::Mem(_) | ArgKind::MemOfLength(_)));
        let (least, most) = state.known.bounds(size).ok_or(Why::Internal("a size"))?;
        if mem.null && is_zero(value) {
            // A null pointer is allowed for 0 bytes only, unless the argument has no length.
            return if !sized || most == 0 { Ok(()) } else { Err(Why::MayBeNull(arg.reg)) };
        }
        let Value::Pointer(pointer) = value else { return Err(arg.wrong("a pointer to memory")) };
        let pointer = match pointer.present {
            Some(_) if mem.null && !sized => &Pointer { present: None, ..pointer.clone() },
            Some(_) => return Err(Why::MayBeNull(arg.reg)),
            None => pointer,
        };
        let (from, align) = match pointer.base {
            Base::Stack(_) => (MemSet::STACK, 8),
            Base::Region(region) => {
                let align = self.env.context.regions.get(usize::from(region)).map_or(1, |region| region.align);
                (MemSet::PACKET, align)
            }
            Base::MapValue(_) | Base::InnerValue(_) => (MemSet::MAP, 8),
            Base::Memory { .. } | Base::Record { .. } => (MemSet::MEM, 8),
            Base::Context | Base::Map(_) | Base::Inner(_) => return Err(arg.wrong("a pointer to memory")),
        };
        let low = u64::from(mem.align.saturating_sub(1));
        let aligned = mem.align <= align && state.known.word(&pointer.offset).bits().max() & low == 0;
        if !mem.from.contains(from) || !aligned {
            return Err(arg.wrong("memory of a kind that it works on, aligned"));
        }
        if most == 0 {
            return Ok(());
        }
        let place = self.place(state, arg.reg, (pointer, 0), size, mem.access)?;
        match place {
            Place::Stack { frame, depth, size, .. } if mem.access.reads() => {
                self.readable(state, frame, depth, size)?
            }
            Place::Stack { .. } | Place::Untracked(_) => {}
            Place::Field { .. } => return Err(arg.wrong("a pointer to memory")),
        }
        let at = pointer.offset.clone();
        call.memory.push(Lent { base: pointer.base, at, size: size.clone(), writes: mem.access.writes() });
        if mem.access.writes() {
            call.written.push((place, u32::try_from(least.max(0)).unwrap_or(0)));
        }
        Ok(())
    }

    /// Proves that memory which the function writes is no other argument's (Rust's rule for `&mut`).
    fn disjoint(&mut self, state: &State, proto: &HelperProto, call: &Call<'_>) -> Res<()> {
        for (i, a) in call.memory.iter().enumerate() {
            for b in call.memory.iter().take(i).filter(|b| a.writes || b.writes) {
                if !self.apart(state, a, b)? && !planted!(ArgumentsOverlap) {
                    return Err(Why::Overlap { func: proto.name.to_string() });
                }
            }
        }
        Ok(())
    }

    /// Whether no byte is in both. Two look-ups may find one value, and memory that a function returned may be a value.
    /// The host promises that its regions are no other region and no memory of these kinds (`Region`).
    fn apart(&mut self, state: &State, a: &Lent, b: &Lent) -> Res<bool> {
        let value = |base: Base| matches!(base, Base::MapValue(_) | Base::InnerValue(_));
        let of = |base: Base| matches!(base, Base::Memory { .. } | Base::Record { .. }) || value(base);
        match (a.base, b.base) {
            (Base::Stack(f), Base::Stack(g)) if f != g => Ok(true),
            (Base::Region(r), Base::Region(s)) if r != s => Ok(true),
            (Base::Record { owner: x, .. }, Base::Record { owner: y, .. }) if x != y => Ok(true),
            (Base::Stack(_), Base::Stack(_)) | (Base::Region(_), Base::Region(_)) => self.offsets_apart(state, a, b),
            (Base::Record { .. }, Base::Record { .. }) => self.offsets_apart(state, a, b),
            (Base::Stack(_), Base::Region(_)) | (Base::Region(_), Base::Stack(_)) => Ok(true),
            (Base::Stack(_) | Base::Region(_), other) | (other, Base::Stack(_) | Base::Region(_)) => Ok(of(other)),
            (Base::Record { .. }, other) | (other, Base::Record { .. }) => Ok(value(other)),
            (_other, _another) => Ok(false),
        }
    }

    /// Whether one of two pieces of an object ends before the other begins.
    fn offsets_apart(&mut self, state: &State, a: &Lent, b: &Lent) -> Res<bool> {
        for (first, second) in [(a, b), (b, a)] {
            let gap = second.at.plus(&first.at, -1).and_then(|gap| gap.plus(&first.size, -1));
            if let Some(gap) = gap
                && self.proves(state, &gap)?
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn note_call(&mut self, state: &State, proto: &HelperProto, call: &Call<'_>) {
        let tail_call = proto.effect == Effect::TailCall;
        let Some((base, _)) = call.map else { return };
        let map = if let Base::Map(map) = base { Some(map) } else { None };
        let key = if tail_call {
            let index = proto.args.iter().zip(Reg::ARGS).find(|(arg, _)| **arg == ArgKind::Scalar);
            // The index of a tail call is 32 bits wide.
            index.and_then(|(_, reg)| match state.reg(reg) {
                Value::Number(form) => state.known.word(&form).truncate(32).as_const(),
                Value::Pointer(_) | Value::Unset => None,
            })
        } else {
            call.key
        };
        self.notes.call(self.pc, map, key, tail_call);
    }

    /// A fresh name that is 1 if a pointer is valid, and 0 if the pointer is null.
    fn presence(&mut self, state: &mut State) -> Res<Name> {
        self.fresh(state, Scalar::unsigned(0, 1), false)
    }

    fn result(&mut self, state: &mut State, proto: &HelperProto, call: &Call<'_>) -> Res<Value> {
        let pointer = |base, present| Ok(Value::Pointer(Pointer { present, ..Pointer::start(base) }));
        match proto.ret {
            Ret::Scalar => Ok(Value::Number(Form::name(self.fresh(state, Scalar::UNKNOWN, false)?))),
            Ret::Between(min, max) if min <= max => {
                let result = Scalar::signed(min, max);
                Ok(Value::Number(self.fresh_number(state, result)?))
            }
            Ret::Between(..) => Err(Why::Environment(format!("{}: it returns no number at all", proto.name))),
            Ret::ErrorOrLength => Err(Why::Unsupported("an error or a length")),
            Ret::First if matches!(proto.args.first(), Some(ArgKind::MemOfLength(_))) => Ok(state.reg(Reg::R1)),
            Ret::First => Err(Why::Environment(format!("{}: it returns no memory", proto.name))),
            Ret::MapValueOrNull => {
                let Some((map, def)) = call.map else {
                    return Err(Why::Environment(format!("{}: a value of no map", proto.name)));
                };
                if MapTypes::SOCKETS.contains(def.kind) {
                    return Err(Why::Unsupported("maps of sockets"));
                }
                let found = match (map, def.kind.is_map_of_maps()) {
                    (Base::Map(map), false) => Base::MapValue(map),
                    (Base::Map(map), true) => Base::Inner(map),
                    (Base::Inner(map), false) => Base::InnerValue(map),
                    _other => return Err(Why::Unsupported("maps of maps of maps")),
                };
                // Every element below max_entries of an array exists.
                let exists = def.kind.is_array()
                    && !def.kind.is_map_of_maps()
                    && def.key_size == 4
                    && proto.args.get(2) == Some(&ArgKind::None)
                    && call.key.is_some_and(|key| key < def.max_entries.into());
                let present = if exists { None } else { Some(self.presence(state)?) };
                pointer(found, present)
            }
            Ret::RecordOrNull if call.record_size > 0 => {
                let owner = self.presence(state)?;
                state.held.push(owner);
                pointer(Base::Record { owner, size: call.record_size }, Some(owner))
            }
            Ret::RecordOrNull => Err(Why::Environment(format!("{}: a record of no size", proto.name))),
            Ret::MemOrNull { bytes, writable } => {
                let present = self.presence(state)?;
                pointer(Base::Memory { size: bytes, writable }, Some(present))
            }
            Ret::Never
            | Ret::Thrown
            | Ret::HostOrNull(_)
            | Ret::Host(_)
            | Ret::ElementOrNull(_)
            | Ret::SliceOrNull { .. }
            | Ret::SocketOrNull
            | Ret::OfSocketOrNull(_)
            | Ret::ObjectOrNull(_)
            | Ret::Instance { .. } => Err(Why::Unsupported("a result of this kind")),
        }
    }
}

fn is_zero(value: &Value) -> bool {
    matches!(value, Value::Number(form) if form.residue(64).as_const() == Some(0))
}

/// The key, if it is a constant in a slot of the stack.
fn known_key(state: &State, value: &Value, size: u32) -> Option<u64> {
    let Value::Pointer(Pointer { base: Base::Stack(frame), offset, present: None }) = value else { return None };
    let depth = u32::try_from(offset.as_const()?.checked_neg()?).ok()?;
    match &state.frames.get(usize::from(*frame))?.stack.cell(depth, size)?.value {
        Value::Number(form) => u64::try_from(form.as_const()?).ok(),
        Value::Pointer(_) | Value::Unset => None,
    }
}
