//! Calls and returns: subprograms, helpers, callbacks, tail calls, locks and records.

use bpf_isa::{Callee, InsnIdx, Reg, SubprogId};

use super::args::{Call, Compare};
use super::mem::socket;
use super::{Flow, Res, Walk, refuse};
use crate::error::{Awake, Reason};
use crate::faults::planted;
use crate::helpers::{
    ArgKind, CallbackKind, DYNPTR, Dynptr, Effect, HelperProto, Local, LockKind, MAX_ERRNO, ObjectFrom, Ret, SocketPart,
};
use crate::scalar::Scalar;
use crate::state::{Entry, Frame, InSection, Lock, State};
use crate::value::{Debt, Hold, Origin, Ty, Value, Why};
use bpf_uapi::MapTypes;

impl<'a> Walk<'a> {
    pub(super) fn call(&mut self, callee: Callee) -> Res<Flow> {
        self.state.seen.clear();
        match callee {
            Callee::Subprog(off) => {
                let target = self.target(off)?;
                let Some(sub) = self.program.subprog_starting_at(target) else {
                    return refuse(Reason::Internal("call into no function"));
                };
                self.call_subprog(sub, target)
            }
            Callee::Reg(reg) => self.call_register(reg),
            Callee::Helper(_) | Callee::Host(_) => {
                let proto = self.proto(callee)?;
                self.call_helper(proto)
            }
        }
    }

    fn next(&self) -> InsnIdx {
        InsnIdx(self.pc.0 + 1)
    }

    /// Makes r0 to r5 unreadable, as after every call.
    pub(super) fn clobber_args(&mut self) {
        let gone = Value::uninit(Why::Call(self.pc));
        self.state.top_mut().regs[..6].fill(gone);
    }

    /// Calls the function whose address is in the register. There is one function on each path.
    fn call_register(&mut self, reg: Reg) -> Res<Flow> {
        let v = self.read(reg)?;
        let function = match v.ty {
            // The main program has no callers in the program: it would lack its context.
            Ty::Func { subprog } if subprog != 0 && !v.null && v.n.as_const() == Some(0) => SubprogId(subprog),
            _ => return refuse(Reason::NotAFunction(reg, v.describe(self.env))),
        };
        // As with callbacks: facts derived from the call graph would not include a call that is no edge of it.
        let callees = self.program.indirect_callees(SubprogId(self.state.top().subprog));
        if callees.binary_search_by_key(&function, |pair| pair.callee).is_err() {
            return refuse(Reason::ForeignCall { function: function.0 });
        }
        let start = self.program.subprogs()[function.index()].start;
        self.call_subprog(function, InsnIdx(start))
    }

    fn call_subprog(&mut self, sub: SubprogId, target: InsnIdx) -> Res<Flow> {
        // A function that is walked at the call is walked with the lock held. A function that is verified on its own is
        // not.
        if let Some(lock) = self.state.locks.last()
            && (self.orders_a_tree() || self.env.global_functions.get(sub.index()).is_some_and(Option::is_some))
        {
            return refuse(Reason::LockHeld { func: format!("function {}", sub.0), at: lock.at });
        }
        if let Some(Some(func)) = self.env.global_functions.get(sub.index()) {
            return self.call_global(sub, func);
        }
        let back = self.next();
        let index = self.push_frame(sub.0, Entry::Call { back })?;
        self.state.top_mut().outer_epoch = self.epoch;
        let caller = usize::from(index) - 1;
        for r in Reg::ARGS {
            let v = self.state.frames[caller].regs[r.index()];
            self.state.set(r, v);
        }
        let gone = Value::uninit(Why::Call(self.pc));
        self.state.frames[caller].regs[..6].fill(gone);
        Ok(Flow::To(target))
    }

    fn push_frame(&mut self, subprog: u32, entry: Entry) -> Res<u8> {
        let index = self.state.frames.len();
        // L0 bounds the call graph, callbacks included, to this depth.
        if index >= bpf_isa::MAX_CALL_DEPTH as usize {
            return refuse(Reason::Internal("call chain deeper than validated"));
        }
        let since = self.scratch.prune.ever_kept();
        self.state.frames.push(Frame { since, ..Frame::new(crate::num::few(index), subprog, entry) });
        Ok(crate::num::few(index))
    }

    fn call_helper(&mut self, proto: &'a HelperProto) -> Res<Flow> {
        // A comparison function of a tree may not change the tree or the lock.
        let sleeps = proto.effect == Effect::Sleeps && planted!(SleepsLocked);
        let allowed = (proto.effect.is_fit_for_locked() || sleeps) && !self.orders_a_tree();
        if let Some(lock) = self.state.locks.last()
            && !allowed
        {
            return refuse(Reason::LockHeld { func: proto.name.to_string(), at: lock.at });
        }
        let mut call = self.check_args(proto)?;
        self.note_call(proto, &call);
        let mut failed = None;
        match proto.effect {
            Effect::None | Effect::UnderLock => {}
            Effect::MovesPacket => self.state.packet_moved(self.pc, self.env, &mut self.next_id),
            Effect::TailCall => self.tail_call()?,
            Effect::Lock(kind) => failed = self.lock(proto, kind, &call)?,
            Effect::Unlock(kind) => self.unlock(kind, &call)?,
            Effect::Sleeps => self.sleep(&proto.name)?,
            Effect::Enter(section) if self.env.sleepable => {
                self.state.sections.push(InSection { section, at: self.pc });
            }
            Effect::Leave(section) if self.env.sleepable => {
                if let Some(i) = self.state.sections.iter().rposition(|of| of.section == section) {
                    self.state.sections.remove(i);
                }
            }
            // In a program that may not sleep, nothing depends on sections.
            Effect::Enter(_) | Effect::Leave(_) => {}
        }
        if let (Some(subprog), Some(map)) = (call.timer_callback, call.timer)
            && !self.timer_callbacks.contains(&(subprog, map))
        {
            self.timer_callbacks.push((subprog, map));
        }
        if let Some(compare) = call.compare {
            self.called_within(compare.subprog)?;
            let same = |known: &Compare| known.is_like(&compare);
            if !self.compares.iter().any(same) {
                self.compares.push(compare);
            }
        }
        if call.given_back != 0 {
            match call.stashed {
                true if planted!(StashedOwned) => {}
                true => self.state.stash(call.given_back),
                false => self.give_back(call.given_back),
            }
        }
        if call.lent != 0 {
            self.state.lend(call.lent);
        }
        if let Some(made) = call.made {
            self.make_local(made, call.local);
        }
        if proto.ret == Ret::Never {
            // The run ends here, in any function, so its objects are not checked.
            return Ok(Flow::End);
        }
        if proto.ret == Ret::Thrown {
            return self.throw();
        }
        if let Some((kind, subprog)) = call.callback.take() {
            return self.enter_callback(kind, subprog);
        }
        let lent = call.buffer.map(|buffer| self.lend_buffer(buffer));
        let r0 = self.result(proto, &call)?;
        let r0 = Value { owner: lent.unwrap_or(r0.owner), ..r0 };
        self.clobber_args();
        self.state.set(Reg::R0, r0);
        if let Some(failed) = failed {
            self.state.set(Reg::R0, Value::constant(0));
            let next = self.next();
            self.push(next, failed, None, self.epoch)?;
        }
        match proto.ret {
            Ret::ElementOrNull(_) => self.next_element(r0.owner),
            _ => Ok(Flow::Next),
        }
    }

    /// Ends the program by an exception: its result is the number in r1, or what the exception callback, which is
    /// walked on its own, makes of it.
    fn throw(&mut self) -> Res<Flow> {
        if self.in_callback() && !planted!(CallbackThrows) {
            return refuse(Reason::ThrowInCallback);
        }
        self.check_thrown()?;
        if self.env.exception.is_none() {
            let cookie = *self.state.reg(Reg::R1);
            self.check_returned(&cookie)?;
        }
        self.thrown = true;
        Ok(Flow::End)
    }

    /// Checks that a throw leaves no obligation behind, since the functions that it leaves release nothing.
    pub(super) fn check_thrown(&self) -> Res<()> {
        match self.state.owed.first() {
            Some(o) if !planted!(ThrownOwes) => refuse(Reason::Owed { at: o.at, debt: o.debt }),
            Some(_) | None => Ok(()),
        }
    }

    /// Walks the result of an iterator's next call: an element, which begins a round, or null. The end of the iterator
    /// bounds the rounds, so the walk need not; see [`super::prune`]. Rounds are compared by the state after the call:
    /// whether the call is allowed has been checked before.
    fn next_element(&mut self, iterator: u32) -> Res<Flow> {
        let next = self.next();
        let Some(base) = self.bounded_round_before(next, true, iterator)? else { return Ok(Flow::End) };
        let mut none = self.copy_state();
        none.set(Reg::R0, Value::constant(0));
        if !planted!(IteratorNeverEmpty) {
            self.push(next, none, None, base)?;
        }
        self.pass_element(iterator);
        Ok(Flow::Next)
    }

    fn note_call(&mut self, proto: &HelperProto, call: &Call<'_>) {
        if proto
            .args
            .iter()
            .any(|arg| matches!(arg, ArgKind::Formatted | ArgKind::Values | ArgKind::Peeked { .. } | ArgKind::Probed))
        {
            self.notes.format(self.pc, call.values, call.regions);
        }
        let tail_call = proto.effect == Effect::TailCall;
        let Some((map, inner, _)) = call.map else { return };
        let key = if tail_call {
            // The index of a tail call is 32 bits wide.
            let i = proto.args.iter().position(|a| *a == ArgKind::Scalar);
            i.and_then(|i| self.state.reg(Reg::ARGS[i]).as_const()).map(|k| u64::from(crate::num::low(k)))
        } else {
            call.key
        };
        self.notes.call(self.pc, (!inner).then_some(map), key, tail_call);
    }

    /// Takes a lock. Returns the state after a call that has failed to take it, if it may fail.
    fn lock(&mut self, proto: &HelperProto, kind: LockKind, call: &Call<'_>) -> Res<Option<State>> {
        let Some(of) = call.lock else {
            return refuse(Reason::Environment(format!("{} takes no lock", proto.name)));
        };
        // Taking it again would fail. One element under two names is detected at run time.
        if let Some(held) = self.state.locks.iter().find(|held| held.of == of) {
            return refuse(Reason::LockTwice { at: held.at });
        }
        let failed = (kind.is_resilient() && !planted!(LockNeverFails)).then(|| {
            let mut failed = self.copy_state();
            let gone = Value::uninit(Why::Call(self.pc));
            failed.top_mut().regs[..6].fill(gone);
            failed.set(Reg::R0, Value::scalar(Scalar::signed(-MAX_ERRNO, -1)));
            failed
        });
        self.state.locks.push(Lock { kind, of, at: self.pc });
        Ok(failed)
    }

    /// Handles a call of a function that may sleep. The caller has checked that no lock is held.
    pub(super) fn sleep(&mut self, func: &str) -> Res<()> {
        if let Some(why) = self.awake() {
            return refuse(Reason::Sleeps { func: func.to_owned(), why });
        }
        self.state.slept(Why::Slept(self.pc), self.env);
        Ok(())
    }

    /// Why the program may not sleep here; locks are not looked at.
    fn awake(&self) -> Option<Awake> {
        let holds = self.state.owed.iter().find(|o| !o.debt.outlasts_sleep()).filter(|_| !planted!(SleepsOwing));
        let inside = self.state.sections.last().filter(|_| !planted!(SleepsInSection));
        if !self.env.sleepable {
            Some(Awake::Program)
        } else if self.in_callback() && !planted!(CallbackSleeps) {
            Some(Awake::Callback)
        } else if let Some(of) = inside {
            Some(Awake::Section(of.section, of.at))
        } else {
            holds.map(|o| Awake::Holds(o.debt, o.at))
        }
    }

    /// The program arrives at the head of a loop, where its run may yield if it comes from the loop's end. It does so
    /// at no head at which some path may not sleep.
    ///
    /// Claim: a run that yields at a head is in a state that the walk has put to sleep there. Proof: a run comes back
    /// to a head only over a jump to it, and each state that arrives there passes through this function.
    pub(super) fn at_head(&mut self) {
        let locked = !self.state.locks.is_empty() && !planted!(YieldsLocked);
        // Functions that are walked on their own are called by others in states that this walk does not see.
        let alone = self.state.frames[0].subprog != 0 && !planted!(YieldsAlone);
        let stays = locked || alone || self.awake().is_some();
        self.notes.head(self.pc, stays);
        if !stays && !planted!(YieldsHolding) {
            self.state.slept(Why::Yielded(self.pc), self.env);
        }
    }

    /// Releases the lock that was taken last.
    fn unlock(&mut self, kind: LockKind, call: &Call<'_>) -> Res<()> {
        let Some(held) = self.state.locks.pop() else { return refuse(Reason::NoLock) };
        if call.lock != Some(held.of) || kind != held.kind {
            return refuse(Reason::OtherLock { at: held.at });
        }
        self.state.end_borrows(self.pc);
        Ok(())
    }

    fn result(&mut self, proto: &HelperProto, call: &Call<'_>) -> Res<Value> {
        let or_null = |walk: &mut Self, ty| Value { null: true, id: walk.new_id(), ..Value::pointer(ty) };
        Ok(match proto.ret {
            Ret::Scalar => Value::unknown(),
            Ret::First => *self.state.reg(Reg::R1),
            Ret::Between(min, max) => Value::scalar(Scalar::signed(min, max)),
            Ret::ErrorOrLength => {
                let size = proto.args.iter().position(|arg| matches!(arg, ArgKind::Size { .. }));
                let most = size.map(|i| self.state.reg(Reg::ARGS[i]).n.umax());
                let Some(most) = most.and_then(|most| i64::try_from(most).ok()) else {
                    return refuse(Reason::Internal("a length with no maximum"));
                };
                Value::scalar(Scalar::signed(-MAX_ERRNO, most))
            }
            Ret::MapValueOrNull => {
                let Some((map, inner, def)) = call.map else {
                    return refuse(Reason::Environment(format!("{} returns a value of no map", proto.name)));
                };
                if def.kind.is_map_of_maps() {
                    if inner {
                        return refuse(Reason::Environment("maps of maps nest only once".into()));
                    }
                    self.map(map, true)?;
                    let v = or_null(self, Ty::Map { map, inner: true });
                    return Ok(Value { null: !planted!(InnerMapNeverNull), ..v });
                }
                if MapTypes::SOCKETS.contains(def.kind) {
                    return Ok(self.looked_up());
                }
                let v = or_null(self, Ty::MapValue { map, inner });
                // Every element below max_entries of an array exists.
                let exists = def.kind.is_array()
                    && def.key_size == 4
                    && proto.args[2] == ArgKind::None
                    && call.key.is_some_and(|k| k < def.max_entries.into());
                Value { null: !exists, ..v }
            }
            Ret::RecordOrNull => {
                let id = self.owe(Debt::Record);
                let ty = Ty::Mem { size: call.record_size, writable: true, from: Origin::Record };
                Value { null: true, id, owner: id, ..Value::pointer(ty) }
            }
            Ret::MemOrNull { bytes, writable } => {
                or_null(self, Ty::Mem { size: bytes, writable, from: Origin::Returned })
            }
            Ret::HostOrNull(class) => or_null(self, Ty::Host { class }),
            Ret::Host(class) => Value::pointer(Ty::Host { class }),
            Ret::Never | Ret::Thrown => return refuse(Reason::Internal("a result of a function that does not return")),
            Ret::ElementOrNull(size) => {
                let (owner, writable) = (call.local.map_or(0, |local| local.owner), planted!(ElementWritable));
                Value { owner, ..Value::pointer(Ty::Mem { size, writable, from: Origin::Element }) }
            }
            Ret::SliceOrNull { writable } => {
                let Some(Value { ty: Ty::Local(Local::Dynptr(kind)), owner, .. }) = call.local else {
                    return refuse(Reason::Environment(format!("{} returns a slice of no dynptr", proto.name)));
                };
                let from = Origin::Slice { packet: kind == Dynptr::Packet };
                let size = call.record_size + if planted!(SliceLonger) { 8 } else { 0 };
                let v = or_null(self, Ty::Mem { size, writable, from });
                Value { owner, null: !planted!(SliceNeverNull), ..v }
            }
            Ret::SocketOrNull => self.looked_up(),
            Ret::ObjectOrNull(from) => self.object_from(proto, from, call)?,
            Ret::Instance { null } => {
                let Some(Value { ty: Ty::Mem { from: Origin::Object { class, .. }, .. }, .. }) = call.object else {
                    return refuse(Reason::Environment(format!("{} returns an instance of nothing", proto.name)));
                };
                let size = self.env.class(class).map_or(0, |ty| ty.size);
                let v = or_null(self, Ty::Mem { size, writable: true, from: Origin::Returned });
                // The CPU number has 32 bits, and every machine has a first CPU.
                let first = self.state.reg(Reg::R2).as_const().is_some_and(|cpu| crate::num::low(cpu) == 0);
                Value { null: null && !first && !planted!(InstanceNeverNull), ..v }
            }
            Ret::OfSocketOrNull(part) => {
                let Some(of) = call.socket else {
                    return refuse(Reason::Environment(format!("{} returns a part of no socket", proto.name)));
                };
                let v = match part {
                    SocketPart::Itself => of,
                    SocketPart::Other => socket(true),
                    SocketPart::Fields(size) => {
                        let from = Origin::Socket { borrowed: true };
                        Value::pointer(Ty::Mem { size, writable: false, from })
                    }
                };
                Value { null: true, id: self.new_id(), owner: of.owner, ..v }
            }
        })
    }

    /// A pointer to the start of an object of the program's own.
    pub(super) fn object(&self, class: u32, hold: Hold) -> Res<Value> {
        let Some(ty) = self.env.class(class) else {
            return refuse(Reason::Environment("an object of a type that does not exist".into()));
        };
        let from = Origin::Object { class, hold };
        Ok(Value::pointer(Ty::Mem { size: ty.size, writable: true, from }))
    }

    /// An object that a call returns.
    fn object_from(&mut self, proto: &HelperProto, from: ObjectFrom, call: &Call<'_>) -> Res<Value> {
        let shared = call.object.and_then(|v| match v.ty {
            Ty::Mem { from: Origin::Object { class, .. }, .. } => Some(class),
            _ => None,
        });
        let (class, node) = match from {
            ObjectFrom::Made => (call.class, 0),
            ObjectFrom::Shared => (shared, 0),
            ObjectFrom::Taken | ObjectFrom::Seen => (call.root.map(|root| root.0), call.root.map_or(0, |root| root.1)),
            ObjectFrom::Exchanged => (call.kptr, 0),
        };
        let Some(class) = class else {
            return refuse(Reason::Environment(format!("{} returns an object of nowhere", proto.name)));
        };
        let n = Scalar::constant(node.into());
        let hold = if from == ObjectFrom::Seen { Hold::Borrowed } else { Hold::Owned };
        let v = Value { n, ..self.object(class, hold)? };
        if from == ObjectFrom::Seen {
            return Ok(Value { null: true, id: self.new_id(), ..v });
        }
        let id = self.owe(Debt::Object);
        // The object has an owner, who keeps it alive.
        let exists = from == ObjectFrom::Shared && call.object.is_some_and(|of| of.owner != 0);
        Ok(Value { null: !exists, id, owner: id, ..v })
    }

    /// Whether the walk is in a comparison function of a tree.
    fn orders_a_tree(&self) -> bool {
        self.state.frames.first().is_some_and(|frame| frame.entry == Entry::Compare)
    }

    /// A socket that was looked up, or null.
    fn looked_up(&mut self) -> Value {
        let id = self.owe(Debt::Socket);
        Value { null: true, id, owner: id, ..socket(false) }
    }

    /// Whether a helper or a timer called one of the active functions.
    pub(super) fn in_callback(&self) -> bool {
        self.state
            .frames
            .iter()
            .any(|f| matches!(f.entry, Entry::Callback { .. } | Entry::Timer | Entry::Compare | Entry::Exception))
    }

    /// Walks a tail call that is not taken. A taken one ends the current function with the other program's result, and
    /// that program may have moved the packet.
    fn tail_call(&mut self) -> Res<()> {
        if self.env.sleepable {
            return refuse(Reason::SleepableTailCall);
        }
        if self.in_callback() {
            return refuse(Reason::TailCallInCallback);
        }
        if let Some(o) = self.state.owed.first() {
            return refuse(Reason::Owed { at: o.at, debt: o.debt });
        }
        if self.state.frames.len() == 1 {
            return Ok(());
        }
        let mut returned = self.copy_state();
        returned.packet_moved(self.pc, self.env, &mut self.next_id);
        returned.set(Reg::R0, Value::unknown());
        self.push_return(returned)
    }

    /// Returns from the running function. `early`: by a call or load that may end it, instead of an exit.
    pub(super) fn exit(&mut self, early: bool) -> Res<Flow> {
        // The caller of a callback continues, and may write.
        self.state.seen.clear();
        match self.state.top().entry {
            Entry::Root | Entry::Timer | Entry::Compare | Entry::Exception => {
                if matches!(self.state.top().entry, Entry::Timer | Entry::Compare) {
                    // The results of these are checked whatever the program may return.
                    self.decides();
                }
                self.check_exit()?;
                Ok(Flow::End)
            }
            Entry::Call { back } => {
                self.trail_return(false, early);
                self.leave_frame()?;
                Ok(Flow::To(back))
            }
            Entry::Callback { kind, back, call } => {
                self.trail_return(true, early);
                self.callback_done(kind, back, call)
            }
        }
    }

    /// Checks the end of the run, or of a global function.
    pub(super) fn check_exit(&self) -> Res<()> {
        let void = self.env.void && self.state.top().subprog == 0 && self.env.context.returns.is_none();
        let r0 = if void { None } else { Some(self.read(Reg::R0)?) };
        if planted!(RecordForgotten) {
            return Ok(());
        }
        if let Some(o) = self.state.owed.first() {
            return refuse(Reason::Owed { at: o.at, debt: o.debt });
        }
        let compares = self.state.top().entry == Entry::Compare;
        if let Some(lock) = self.state.locks.last()
            && !compares
        {
            return refuse(Reason::LockHeld { func: "exit".into(), at: lock.at });
        }
        // The caller of a global function is walked without what the function does. No code runs behind other roots.
        if let Some(of) = self.state.sections.last()
            && (self.state.top().entry, self.state.top().subprog != 0) == (Entry::Root, true)
            && !planted!(SectionLeftOpen)
        {
            return refuse(Reason::SectionOpen { section: of.section, at: of.at });
        }
        let Some(r0) = r0 else { return Ok(()) };
        let of_main = self.state.top().subprog == 0;
        let r0 = if of_main { self.shown(r0) } else { r0 };
        if r0.is_pointer() && !planted!(AddressReturned) {
            return refuse(Reason::Leak(Reg::R0, r0.describe(self.env), "the caller, as a return value"));
        }
        if self.state.top().entry == Entry::Timer && r0.as_const() != Some(0) {
            let got = r0.describe(self.env);
            return refuse(Reason::Return { got, expected: "0, from a timer's callback".into() });
        }
        if compares && r0.n.umax() > 1 {
            let got = r0.describe(self.env);
            return refuse(Reason::Return { got, expected: "0 or 1, from the function that orders a tree".into() });
        }
        let of_program = self.state.top().subprog == 0 || self.state.top().entry == Entry::Exception;
        if of_program { self.check_returned(&r0) } else { Ok(()) }
    }

    /// Checks the program's result against its context.
    fn check_returned(&self, r0: &Value) -> Res<()> {
        match self.env.context.returns {
            Some((min, max)) if r0.n.smin() < min || r0.n.smax() > max => {
                let got = r0.describe(self.env);
                refuse(Reason::Return { got, expected: format!("within {min}..={max}") })
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Returns from a subprogram to its caller.
    fn leave_frame(&mut self) -> Res<()> {
        let r0 = *self.state.reg(Reg::R0);
        let gone = crate::num::few(self.state.frames.len()) - 1;
        if matches!(r0.ty, Ty::Stack { frame } if frame == gone) {
            return refuse(Reason::DanglingStack);
        }
        // The counter of a may_goto belongs to its frame: a call in a loop begins with a new one, so its rounds bound
        // nothing outside.
        self.epoch = self.state.top().outer_epoch;
        self.state.frames.pop();
        self.state.set(Reg::R0, r0);
        Ok(())
    }

    /// Checks that a callback belongs to the running function: the validated call graph has an edge from the function
    /// that takes its address. Facts derived from that graph (the depth of calls, the machine's stack, which functions
    /// move the packet) would not include a call from elsewhere.
    fn called_within(&self, subprog: u32) -> Res<()> {
        let within = self.program.calls_of(SubprogId(self.state.top().subprog));
        if within.iter().all(|c| c.callee.0 != subprog) {
            return refuse(Reason::ForeignCallback { function: subprog });
        }
        Ok(())
    }

    /// Calls a callback for the first time: or not at all, if there is nothing to do.
    fn enter_callback(&mut self, kind: CallbackKind, subprog: u32) -> Res<Flow> {
        self.called_within(subprog)?;
        let back = self.next();
        let entry = Entry::Callback { kind, back, call: self.pc };
        let never = self.copy_state();
        let saved = std::mem::replace(&mut self.state, never);
        self.after_callbacks();
        let never = std::mem::replace(&mut self.state, saved);
        if !planted!(CallbackAtLeastOnce) {
            self.push(back, never, None, self.epoch)?;
        }
        self.callback_round(kind, subprog, entry, self.epoch, self.scratch.prune.ever_kept())
    }

    /// Returns from the helper: r0 is a number, and r1 to r5 are unreadable.
    fn after_callbacks(&mut self) {
        self.clobber_args();
        self.state.set(Reg::R0, Value::unknown());
    }

    /// Enters the callback's frame with fresh arguments; `since` is the number of kept states when the helper was
    /// called. Meanwhile, the caller's r1 to r5 keep the helper's arguments.
    fn callback_round(&mut self, kind: CallbackKind, subprog: u32, entry: Entry, outer: u32, since: u32) -> Res<Flow> {
        let [_, r1, _, r3, ..] = self.state.top().regs;
        let Some(sub) = self.program.subprogs().get(subprog as usize) else {
            return refuse(Reason::Internal("callback to no function"));
        };
        let target = InsnIdx(sub.start);
        let args: [Option<Value>; 4] = match kind {
            CallbackKind::Loop => {
                let last = r1.n.umax().saturating_sub(1).min(u32::MAX.into());
                [Some(Value::scalar(Scalar::unsigned(0, last))), Some(r3), None, None]
            }
            CallbackKind::ForEach => {
                let Ty::Map { map, inner } = r1.ty else {
                    return refuse(Reason::Environment("for_each over no map".into()));
                };
                let def = self.map(map, inner)?;
                // The key belongs to the helper, and is invalid when the callback, in the next frame, returns.
                let frame = crate::num::few(self.state.frames.len());
                let key = Value::pointer(Ty::Mem {
                    size: def.key_size,
                    writable: planted!(KeyWritable),
                    from: Origin::Lent { frame },
                });
                let id = self.new_id();
                let value = Value { id, ..Value::pointer(Ty::MapValue { map, inner }) };
                [Some(Value { id: 0, ..r1 }), Some(key), Some(value), Some(r3)]
            }
            CallbackKind::Drain => [Some(Value::pointer(Ty::Host { class: DYNPTR })), Some(r3), None, None],
        };
        self.push_frame(subprog, entry)?;
        let top = self.state.top_mut();
        (top.outer_epoch, top.since) = (outer, since);
        for (v, r) in args.into_iter().zip(Reg::ARGS) {
            if let Some(v) = v {
                self.state.set(r, v);
            }
        }
        self.pc = target;
        // A round of a bounded construct, which is compared with earlier rounds.
        if self.bounded_round(false)?.is_none() {
            return Ok(Flow::End);
        }
        self.pass_callback(outer);
        Ok(Flow::To(target))
    }

    /// Handles the return of a callback: the helper begins another round, or returns.
    fn callback_done(&mut self, kind: CallbackKind, back: InsnIdx, call: InsnIdx) -> Res<Flow> {
        let r0 = self.read(Reg::R0)?;
        if !r0.is_scalar() || r0.n.umax() > 1 {
            let got = r0.describe(self.env);
            return refuse(Reason::Return { got, expected: "0 (go on) or 1 (stop), from a callback".into() });
        }
        let frame = crate::num::few(self.state.frames.len()) - 1;
        if let Some(o) = self.state.owed.iter().find(|o| o.frame >= frame) {
            return refuse(Reason::Owed { at: o.at, debt: o.debt });
        }
        if let Some(lock) = self.state.locks.last() {
            return refuse(Reason::LockHeld { func: "returning from a callback".into(), at: lock.at });
        }
        let Frame { subprog, outer_epoch: outer, since, .. } = *self.state.top();
        self.state.frames.pop();
        self.callback_memory_gone(kind, frame);
        let done = self.copy_state();
        let saved = std::mem::replace(&mut self.state, done);
        self.after_callbacks();
        let done = std::mem::replace(&mut self.state, saved);
        self.push(back, done, None, outer)?;
        if r0.as_const() == Some(1) || planted!(CallbackOneRound) {
            return Ok(Flow::End);
        }
        self.callback_round(kind, subprog, Entry::Callback { kind, back, call }, outer, since)
    }

    /// Invalidates pointers to memory that was lent to the callback, which it may have left in its callers' frames.
    fn callback_memory_gone(&mut self, kind: CallbackKind, gone: u8) {
        if kind == CallbackKind::Loop {
            return;
        }
        for frame in &mut self.state.frames {
            for v in frame.values_mut() {
                match v.ty {
                    Ty::Mem { from: Origin::Lent { frame }, .. } if frame == gone => *v = Value::uninit(Why::Returned),
                    Ty::Host { class: DYNPTR } => *v = Value::uninit(Why::Returned),
                    _ => {}
                }
            }
            frame.drop_uninit_spills();
        }
    }
}
