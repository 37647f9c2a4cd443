//! Global functions: verified once, for all arguments of their signature. A call only has to prove that its arguments
//! match the signature.
//!
//! Problem: some effects of a function concern its callers (it moves the packet under their pointers, it must not be
//! called where tail calls are not allowed, it does atomics on memory that they pass), and the callers' walk does not
//! see them. Approach: callees are walked before their callers and leave a [`Summary`]; each call is checked against
//! it.
//!
//! Invariant: a summary is complete when the first caller is walked. Callbacks count as called by the function that
//! takes their address, and no other may use them (`Walk::enter_callback`), so the validated call graph has every call.

use bpf_isa::{Callee, Insn, Reg, SubprogId};

use super::mem::Place;
use super::{Flow, Res, Start, Walk, refuse};
use crate::access::Access;
use crate::env::{GlobalArg, GlobalFunc};
use crate::error::Reason;
use crate::faults::planted;
use crate::helpers::{Effect, Ret};
use crate::value::Value;

/// Properties of a function that its calls depend on.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Summary {
    /// Whether it may move the packet, itself or through its callees.
    moves_packet: bool,
    /// Whether it may make a tail call, itself or through its callees.
    tail_calls: bool,
    /// Whether it may sleep, itself or through its callees.
    sleeps: bool,
    /// Whether it may throw, itself or through its callees.
    pub(super) throws: bool,
    /// The alignment that the address of each memory argument needs; 0 for none.
    align: [u32; 5],
}

impl Walk<'_> {
    /// Walks all global functions, callees first.
    pub(super) fn walk_global_functions(&mut self) -> Res<()> {
        for sub in self.callees_first() {
            if let Some(Some(func)) = self.env.global_functions.get(sub as usize) {
                self.walk_from(sub, Start::Global(&func.args))?;
            }
        }
        Ok(())
    }

    /// All subprograms but the main program, each after the subprograms that it calls.
    fn callees_first(&self) -> Vec<u32> {
        let count = crate::num::small(self.program.subprogs().len());
        let mut done = vec![false; count as usize];
        let mut order = Vec::new();
        let mut open: Vec<(u32, usize)> = Vec::new();
        for root in 1..count {
            open.push((root, 0));
            while let Some((sub, next)) = open.pop() {
                if done[sub as usize] {
                    continue;
                }
                // The call graph is acyclic, so each callee is finished eventually.
                match self.program.calls_of(SubprogId(sub)).get(next) {
                    Some(call) => open.extend([(sub, next + 1), (call.callee.0, 0)]),
                    None => {
                        done[sub as usize] = true;
                        order.push(sub);
                    }
                }
            }
        }
        order
    }

    /// The summaries before any walk, from the instructions alone.
    pub(super) fn effects(&self) -> Vec<Summary> {
        let of = |insn: &Insn| match *insn {
            Insn::Call(c @ (Callee::Helper(_) | Callee::Host(_))) => {
                self.proto(c).map_or((Effect::TailCall, false), |p| (p.effect, p.ret == Ret::Thrown))
            }
            // The callee's effects are added below.
            Insn::Call(Callee::Subprog(_) | Callee::Reg(_))
            | Insn::Alu { .. }
            | Insn::Mov { .. }
            | Insn::MovSx { .. }
            | Insn::Cast { .. }
            | Insn::Neg { .. }
            | Insn::End { .. }
            | Insn::LoadImm64 { .. }
            | Insn::SecondSlot
            | Insn::Load { .. }
            | Insn::Store { .. }
            | Insn::Atomic { .. }
            | Insn::LoadAcquire { .. }
            | Insn::StoreRelease { .. }
            | Insn::LoadAbs { .. }
            | Insn::LoadInd { .. }
            | Insn::Jump { .. }
            | Insn::JumpReg { .. }
            | Insn::JumpIf { .. }
            | Insn::MayGoto { .. }
            | Insn::Exit => (Effect::None, false),
        };
        let mut all: Vec<Summary> = Vec::new();
        for sub in self.program.subprogs() {
            let mut summary = Summary::default();
            for insn in &self.insns[sub.start as usize..sub.end as usize] {
                let (effect, throws) = of(insn);
                summary.throws |= throws;
                summary.tail_calls |= effect == Effect::TailCall;
                summary.sleeps |= effect == Effect::Sleeps && !planted!(GlobalNeverSleeps);
                summary.moves_packet |=
                    matches!(effect, Effect::MovesPacket | Effect::TailCall) && !planted!(GlobalMovesNothing);
            }
            all.push(summary);
        }
        // A chain of calls is at most MAX_CALL_DEPTH long.
        for _ in 0..bpf_isa::MAX_CALL_DEPTH {
            for c in self.program.calls() {
                let callee = all[c.callee.index()];
                let caller = &mut all[self.program.subprog_of(c.at).index()];
                caller.moves_packet |= callee.moves_packet;
                caller.tail_calls |= callee.tail_calls;
                caller.sleeps |= callee.sleeps;
                caller.throws |= callee.throws;
            }
        }
        all
    }

    /// The properties of a function that its calls depend on.
    pub(super) fn summary(&self, sub: SubprogId) -> Summary {
        self.summaries.get(sub.index()).copied().unwrap_or_default()
    }

    /// Notes that the walk of a global function requires this argument's address to be a multiple of `align`.
    pub(super) fn argument_aligned(&mut self, arg: u8, align: u32) {
        let root = self.state.frames[0].subprog as usize;
        if let Some(need) = self.summaries.get_mut(root).and_then(|s| s.align.get_mut(usize::from(arg))) {
            *need = (*need).max(align);
        }
    }

    /// Calls a global function: checks the arguments only, since the function is verified on its own for all arguments
    /// of its signature.
    pub(super) fn call_global(&mut self, sub: SubprogId, func: &GlobalFunc) -> Res<Flow> {
        self.decides();
        let summary = self.summary(sub);
        if summary.tail_calls && self.in_callback() {
            return refuse(Reason::TailCallInCallback);
        }
        if summary.throws {
            if self.in_callback() && !planted!(CallbackThrows) {
                return refuse(Reason::ThrowInCallback);
            }
            self.check_thrown()?;
        }
        for (i, (arg, reg)) in func.args.iter().zip(Reg::ARGS).enumerate() {
            let v = self.read(reg)?;
            let (ok, expected) = match *arg {
                GlobalArg::Scalar => (v.is_scalar(), "a number".to_owned()),
                GlobalArg::Ctx => (!v.null && self.is_ctx(&v), "the context".to_owned()),
                GlobalArg::Mem(bytes) | GlobalArg::NonNull(bytes) => {
                    let or_null = matches!(arg, GlobalArg::Mem(_));
                    let null = or_null && v.as_const() == Some(0);
                    if !null && v.is_pointer() {
                        // The callee's walk takes the argument for memory that stays, so bytes of the packet must not
                        // be given to a callee that may move the packet.
                        if summary.moves_packet && v.is_of_packet() {
                            let expected = "memory other than the packet's, which this function may move".into();
                            let got = v.describe(self.env);
                            return refuse(Reason::Arg { func: func.name.clone(), arg: i + 1, reg, expected, got });
                        }
                        let bare = Value { null: v.null && !or_null, ..v };
                        self.global_memory(reg, &bare, bytes, summary.align[i]).map_err(|why| {
                            Box::new(Reason::ArgMem { func: func.name.clone(), arg: i + 1, reg, why })
                        })?;
                    }
                    let otherwise = if or_null { ", or null" } else { "" };
                    (null || v.is_pointer(), format!("a pointer to {bytes} bytes{otherwise}"))
                }
            };
            if !ok {
                let got = v.describe(self.env);
                return refuse(Reason::Arg { func: func.name.clone(), arg: i + 1, reg, expected, got });
            }
        }
        if summary.moves_packet {
            self.state.packet_moved(self.pc, self.env, &mut self.next_id);
        }
        if summary.sleeps {
            self.sleep(&func.name)?;
        }
        self.clobber_args();
        self.state.set(Reg::R0, Value::unknown());
        Ok(Flow::Next)
    }

    /// Checks a memory argument of a global function, which may access all of it, and forgets the memory's contents:
    /// the callee's walk did not depend on this caller's values.
    fn global_memory(&mut self, reg: Reg, v: &Value, bytes: u32, align: u32) -> Res<()> {
        let bytes = if planted!(GlobalMemoryShort) { 1 } else { bytes };
        let place = self.place(reg, v, 0, bytes.into(), Access::ReadWrite)?;
        if align > 1 && !planted!(GlobalMemoryUnaligned) {
            self.prove_alignment(v, align)?;
        }
        if let Place::Stack { frame, depth, size } = place {
            self.readable_stack(frame, depth, size)?;
            if !planted!(GlobalMemoryKept) {
                self.state.frames[usize::from(frame)].store_misc(depth, size);
            }
        } else if !matches!(place, Place::Untracked(_)) {
            return refuse(Reason::NotMemory(reg, v.describe(self.env)));
        }
        Ok(())
    }
}
