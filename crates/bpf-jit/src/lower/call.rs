//! Calls: of helpers, host functions and subprograms, look-ups in known maps, tail calls; and the checks before them.

use super::direct::Sink;
use super::func::FuncLowerer;
use super::subprog_at;
use crate::externs::{Extern, Hidden, MapShape};
use crate::lir::{Base, BinOp, CallTarget, Check, Mem, Op, TailKey, VReg, Val};
use bpf_analysis::{BlockId as BpfBlock, CallArity as _, ConstMapCall, RegSet, results};
use bpf_isa::{Callee, Cond, InsnIdx, Reg, Size, Width};
use bpf_jit_code::RunCtx;
use bpf_uapi::helper_id;

/// What the elements of an array are.
#[derive(Clone, Copy)]
enum Elements {
    /// Values.
    Shared,
    /// Values of each execution slot, so many bytes apart.
    PerSlot(u64),
    /// Pointers to inner maps.
    Pointers,
}

impl<S: Sink> FuncLowerer<'_, S> {
    pub(super) fn checks(&mut self) {
        if self.options.budget {
            let ctx = self.ctx();
            self.op(Op::Check { check: Check::Budget, ctx });
        }
        if self.options.interrupt {
            let ctx = self.ctx();
            self.op(Op::Check { check: Check::Interrupt, ctx });
        }
    }

    pub(super) fn call(&mut self, b: BpfBlock, callee: Callee) {
        self.checks();
        if callee == Callee::Helper(helper_id::TAIL_CALL) {
            self.tail_call(b);
            return;
        }
        let slot = self.span.first;
        if callee == Callee::Helper(helper_id::MAP_LOOKUP_ELEM)
            && let Some(known) = self.facts.map_call(InsnIdx(slot)).copied()
        {
            match self.signatures.map(known.map) {
                MapShape::Opaque => {}
                MapShape::Array { max_entries, stride } => {
                    return self.array_lookup(b, &known, max_entries, stride, Elements::Shared);
                }
                MapShape::PerCpuArray { max_entries, stride, slot_stride } => {
                    return self.array_lookup(b, &known, max_entries, stride, Elements::PerSlot(slot_stride));
                }
                MapShape::ArrayOfMaps { max_entries } => {
                    return self.array_lookup(b, &known, max_entries, 8, Elements::Pointers);
                }
                MapShape::Keyed => return self.keyed_lookup(known.map),
            }
        }
        let uses = self.call_uses(slot, callee);
        let mut args = [None; 5];
        for (arg, reg) in args.iter_mut().zip(Reg::ARGS) {
            if uses.contains(reg) {
                *arg = Some(self.cur[reg.index()]);
            }
        }
        let (target, hidden, env) = match callee {
            Callee::Helper(id) => (
                CallTarget::Extern(Extern::Helper(id).symbol()),
                self.signatures.helper_hidden(id),
                Extern::HelperEnv(id),
            ),
            Callee::Host(index) => {
                let env = Extern::HostEnv(index as u32);
                let target = CallTarget::Extern(Extern::Host(index as u32).symbol());
                (target, self.signatures.host_hidden(index), env)
            }
            Callee::Subprog(off) => {
                let Some(sub) = subprog_at(self.program, slot, off) else { return };
                let hidden = if self.l.needs_ctx[sub.index()] { Hidden::Ctx } else { Hidden::Nothing };
                (CallTarget::Subprog(sub), hidden, Extern::HostEnv(0))
            }
        };
        let ctx = if hidden == Hidden::Nothing { None } else { Some(self.ctx()) };
        if let (Hidden::Env, Some(ctx)) = (hidden, ctx) {
            let dst = self.fresh();
            self.op(Op::SymAddr { dst, symbol: env.symbol() });
            let mem = Mem { base: Base::Reg(ctx), off: RunCtx::HOST_ENV_OFFSET };
            self.op(Op::Store { size: Size::DW, mem, src: Val::Reg(dst) });
        }
        let ret = Some(self.write(Reg::R0));
        self.op(Op::Call { target, args, ctx, ret });
    }

    /// The argument registers that a call reads.
    fn call_uses(&self, slot: u32, callee: Callee) -> RegSet {
        if !S::DIRECT {
            return self.l.liveness.uses(self.program, slot, self.arity);
        }
        match callee {
            Callee::Helper(id) => RegSet::args(self.arity.helper(id)),
            Callee::Host(index) => RegSet::args(self.arity.host(index)),
            // Nobody has looked which of them it reads.
            Callee::Subprog(_) => RegSet::ARGS,
        }
    }

    /// A look-up in a known array: `key < max_entries ? base + key * stride : null`, without the comparison for a known key.
    fn array_lookup(&mut self, b: BpfBlock, known: &ConstMapCall, max_entries: u32, stride: u32, elements: Elements) {
        match known.key {
            Some(key) if key < u64::from(max_entries) => {
                let base = self.array_base(known.map, elements);
                let dst = self.write(Reg::R0);
                let b = Val::Imm((key * u64::from(stride)) as i64);
                self.op(Op::Bin { op: BinOp::Add, width: Width::W64, dst, a: base, b });
                self.element(dst, elements);
            }
            Some(_) | None => {
                let key = self.fresh();
                let mem = Mem { base: Base::Reg(self.cur[Reg::R2.index()]), off: 0 };
                self.op(Op::Load { size: Size::W, signed: false, swap: false, dst: key, mem });
                let dst = self.write(Reg::R0);
                self.op(Op::Mov { width: Width::W64, dst, src: Val::Imm(0) });
                let join = self.new_block();
                let max = Val::Imm(max_entries.into());
                self.op(Op::Branch { width: Width::W64, cond: Cond::Ge, a: key, b: max, target: join });
                let keep = RegSet::SAVED.intersection(self.known());
                self.split(b, keep, &[dst, key]);
                let base = self.array_base(known.map, elements);
                if stride == 8 {
                    self.op(Op::AddShift { width: Width::W64, dst, a: base, b: key, shift: 3 });
                } else {
                    let offset = self.scaled(key, stride.into());
                    self.op(Op::Bin { op: BinOp::Add, width: Width::W64, dst, a: base, b: Val::Reg(offset) });
                }
                self.element(dst, elements);
                self.split(b, keep, &[dst]);
                self.begin_block(join);
            }
        }
    }

    /// The address of an array's first element.
    fn array_base(&mut self, map: u32, elements: Elements) -> VReg {
        let base = self.fresh();
        self.op(Op::SymAddr { dst: base, symbol: Extern::ArrayBase(map).symbol() });
        match elements {
            Elements::Shared | Elements::Pointers => base,
            Elements::PerSlot(stride) => {
                let slot = self.slot();
                let offset = self.scaled(slot, stride);
                let own = self.fresh();
                self.op(Op::Bin { op: BinOp::Add, width: Width::W64, dst: own, a: base, b: Val::Reg(offset) });
                own
            }
        }
    }

    /// What a look-up that found the element at `dst` returns there.
    fn element(&mut self, dst: VReg, elements: Elements) {
        match elements {
            Elements::Shared | Elements::PerSlot(_) => {}
            // The host publishes inner maps while programs run: acquire pairs with the release of its store.
            Elements::Pointers => {
                let mem = Mem { base: Base::Reg(dst), off: 0 };
                self.op(Op::LoadAcquire { size: Size::DW, dst, mem });
            }
        }
    }

    /// `v * by`.
    fn scaled(&mut self, v: VReg, by: u64) -> VReg {
        let dst = self.fresh();
        let (op, by) = match by.is_power_of_two() {
            true => (BinOp::Shl, i64::from(by.trailing_zeros())),
            false => (BinOp::Mul, by as i64),
        };
        self.op(Op::Bin { op, width: Width::W64, dst, a: v, b: Val::Imm(by) });
        dst
    }

    /// The run's execution slot.
    fn slot(&mut self) -> VReg {
        let slot = self.fresh();
        let mem = Mem { base: Base::Reg(self.ctx()), off: RunCtx::SLOT_OFFSET };
        self.op(Op::Load { size: Size::W, signed: false, swap: false, dst: slot, mem });
        slot
    }

    /// A look-up in a known map of another type: its own function, without the helper between.
    pub(super) fn keyed_lookup(&mut self, map: u32) {
        let slot = self.slot();
        let args = [Some(self.cur[Reg::R1.index()]), Some(self.cur[Reg::R2.index()]), Some(slot), None, None];
        let target = CallTarget::Extern(Extern::MapLookup(map).symbol());
        let ret = Some(self.write(Reg::R0));
        self.op(Op::Call { target, args, ctx: None, ret });
    }

    /// Whether the value that the present instruction, in block `b`, leaves in `reg` may be read later.
    pub(super) fn reads_next(&self, b: BpfBlock, reg: Reg) -> bool {
        if S::DIRECT {
            return true;
        }
        let block = self.l.cfg.block(b);
        for slot in self.span.first + self.span.len..block.end {
            if self.l.liveness.uses(self.program, slot, self.arity).contains(reg) {
                return true;
            }
            if results(&self.program.insns()[slot as usize]).contains(reg) {
                return false;
            }
        }
        self.l.liveness.live_out(&self.l.cfg, b).contains(reg)
    }

    pub(super) fn tail_call(&mut self, b: BpfBlock) {
        let ctx = self.ctx();
        let arg = self.cur[Reg::R1.index()];
        let known = self.facts.tail_call(InsnIdx(self.span.first)).filter(|_| self.options.direct_tail_calls);
        if known.is_some() {
            // The site knows them, and a call clobbers them: only an unverified program could read them again.
            for reg in [Reg::R2, Reg::R3] {
                if !self.reads_next(b, reg) {
                    self.take_back(self.cur[reg.index()]);
                }
            }
        }
        let key = match known {
            Some(known) => TailKey::Const { table: Extern::Map(known.map).symbol(), index: known.index },
            None => TailKey::Dynamic { table: self.cur[Reg::R2.index()], index: self.cur[Reg::R3.index()] },
        };
        self.op(Op::TailCall { key, arg, ctx, reload_len: self.options.raw_context });
        // A tail call that falls through leaves an error in r0, for the rare program that looks (the kernel's verifier lets none).
        if self.reads_next(b, Reg::R0) {
            let dst = self.write(Reg::R0);
            self.op(Op::Mov { width: Width::W64, dst, src: Val::Imm(-1) });
        }
    }

    /// Removes the op that made a value which nobody reads from here on, if it is one of the last few of this block.
    fn take_back(&mut self, v: VReg) {
        /// Compilers load the arguments right before the call; to look at the whole block for each call would not be linear.
        const LAST: usize = 4;
        let from = (self.open as usize).max(self.func.ops.len().saturating_sub(LAST));
        let Some(at) = self.func.ops[from..].iter().rposition(|op| op.def() == Some(v)) else { return };
        let at = from + at;
        let mut read = false;
        self.func.ops[at + 1..].iter().for_each(|op| op.for_each_use(|used| read |= used == v));
        if !read && matches!(self.func.ops[at], Op::Mov { .. } | Op::SymAddr { .. }) {
            self.func.ops.remove(at);
            self.func.spans.remove(at);
        }
    }
}
