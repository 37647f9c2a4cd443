//! The lowering of calls: helpers, host functions, subprograms, look-ups in known maps, tail calls; and the checks
//! before them.
//!
//! A call through a register becomes direct calls, between which comparisons with the addresses of the possible
//! functions choose. No other function can be called, whatever the register holds, and there is no indirect branch to
//! protect.

use super::func::FuncLowerer;
use super::func::Sink;
use super::subprog_at;
use crate::externs::{Hidden, MapShape};
use bpf_analysis::{BlockId as BpfBlock, ConstMapCall};
use bpf_isa::{Callee, Cond, InsnIdx, Reg, Size, Width};
use bpf_jit_code::{RunCtx, StopCode};
use bpf_lir::Extern;
use bpf_lir::{Base, BinOp, CallTarget, Check, Mem, Op, Region, TailKey, VReg, Val};
use bpf_uapi::helper_id;

/// The kind of an array's elements.
#[derive(Clone, Copy)]
enum Elements {
    /// Values that all execution slots share.
    Shared,
    /// Values per execution slot, with this many bytes from one slot's values to the next slot's.
    PerSlot(u64),
    /// Pointers to inner maps.
    Pointers,
}

impl<S: Sink> FuncLowerer<'_, S> {
    /// Emits the checks of a call, or of a jump back to `head`.
    pub(super) fn checks(&mut self, head: Option<InsnIdx>) {
        if self.options.budget && self.options.yields {
            self.spend(head.is_some_and(|head| self.facts.may_yield(head)));
        } else if self.options.budget {
            let ctx = self.ctx();
            self.op(Op::Check { check: Check::Budget(1), ctx });
        }
        if self.options.interrupt {
            let ctx = self.ctx();
            self.op(Op::Check { check: Check::Interrupt, ctx });
        }
    }

    /// Spends one of the budget. Behind the last one a function is called, which renews it, yields before if it may,
    /// or stops the run.
    fn spend(&mut self, may_yield: bool) {
        let ctx = self.ctx();
        let mem = self.run_field(RunCtx::BUDGET_OFFSET);
        let left = self.fresh();
        self.op(Op::Load { size: Size::DW, signed: false, swap: false, dst: left, mem });
        let after = self.fresh();
        self.op(Op::Bin { op: BinOp::Sub, width: Width::W64, dst: after, a: left, b: Val::Imm(1) });
        self.op(Op::Store { size: Size::DW, mem, src: Val::Reg(after) });
        let on = self.new_block();
        self.op(Op::Branch { width: Width::W64, cond: Cond::SGe, a: after, b: Val::Imm(0), target: on });
        self.end_block();
        let may = self.fresh();
        self.op(Op::Mov { width: Width::W64, dst: may, src: Val::Imm(may_yield.into()) });
        let target = CallTarget::Extern(Extern::Spent(0).symbol());
        self.op(Op::Call { target, args: [Some(may), None, None, None, None], ctx: Some(ctx), ret: None });
        self.end_block();
        self.begin_block(on);
    }

    pub(super) fn call(&mut self, b: BpfBlock, callee: Callee) {
        self.checks(None);
        self.confine_args();
        if callee == Callee::Helper(helper_id::TAIL_CALL) {
            self.tail_call(b);
            return;
        }
        let slot = self.span.first;
        if let Callee::Reg(reg) = callee {
            return self.call_register(reg);
        }
        if callee == Callee::Helper(helper_id::MAP_LOOKUP_ELEM)
            && let Some(known) = self.known_map(InsnIdx(slot))
        {
            match self.signatures.map(known.map) {
                MapShape::Opaque => {}
                MapShape::Array { max_entries, stride } => {
                    return self.array_lookup(&known, max_entries, stride, Elements::Shared);
                }
                MapShape::PerCpuArray { max_entries, stride, slot_stride } => {
                    return self.array_lookup(&known, max_entries, stride, Elements::PerSlot(slot_stride));
                }
                MapShape::ArrayOfMaps { max_entries } => {
                    return self.array_lookup(&known, max_entries, 8, Elements::Pointers);
                }
                MapShape::Keyed => return self.keyed_lookup(known.map),
            }
        }
        let args = self.args(callee);
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
            // Lowered above.
            Callee::Reg(_) => return,
        };
        let ctx = if hidden == Hidden::Nothing { None } else { Some(self.ctx()) };
        if let (Hidden::Env, Some(ctx)) = (hidden, ctx) {
            let dst = self.fresh();
            self.op(Op::SymAddr { dst, symbol: env.symbol() });
            let mem = Mem { region: Region::Run, ..Mem::new(Base::Reg(ctx), RunCtx::HOST_ENV_OFFSET) };
            self.op(Op::Store { size: Size::DW, mem, src: Val::Reg(dst) });
        }
        let ret = self.write(Reg::R0);
        self.op(Op::Call { target, args, ctx, ret: Some(ret) });
        self.thrown(ret);
    }

    /// Handles a thrown exception behind a call that may throw: each function returns the thrown value at once, up to
    /// the main program, which handles it. Each function is left through an ordinary exit, and the caller of the
    /// program continues as usual. A callback of a helper never throws.
    fn thrown(&mut self, value: VReg) {
        let facts = self.facts;
        if !facts.may_throw(InsnIdx(self.span.first)) {
            return;
        }
        let thrown = self.ctx_field(RunCtx::THROWN_OFFSET);
        let on = self.new_block();
        self.op(Op::Branch { width: Width::W64, cond: Cond::Eq, a: thrown, b: Val::Imm(0), target: on });
        self.end_block();
        if self.sub.0 == 0 {
            let mem = self.run_field(RunCtx::THROWN_OFFSET);
            self.op(Op::Store { size: Size::DW, mem, src: Val::Imm(0) });
            if let Some(callback) = facts.exception {
                self.checks(None);
                let ctx = self.l.needs_ctx[callback.index()].then(|| self.ctx());
                let args = [Some(value), None, None, None, None];
                self.op(Op::Call { target: CallTarget::Subprog(callback), args, ctx, ret: Some(value) });
            }
        }
        self.op(Op::Exit { value });
        self.end_block();
        self.begin_block(on);
    }

    /// Returns the argument registers that the current call reads.
    fn args(&self, callee: Callee) -> [Option<VReg>; 5] {
        let uses = S::call_uses(self, self.span.first, callee);
        Reg::ARGS.map(|reg| uses.contains(reg).then_some(self.cur[reg.index()]))
    }

    /// Emits a call of the function whose address is in a register. The address is compared with that of each function
    /// that the register may hold and that is reachable. Any other number stops the run.
    fn call_register(&mut self, reg: Reg) {
        let args = self.args(Callee::Reg(reg));
        let (program, facts) = (self.program, self.facts);
        let (address, ctx) = (self.read(reg), self.ctx());
        let ret = self.write(Reg::R0);
        let (join, of_function) = (self.new_block(), self.fresh());
        for pair in program.indirect_callees(self.sub) {
            let sub = pair.callee;
            if facts.insn(InsnIdx(program.subprogs()[sub.index()].start)).dead {
                continue;
            }
            let other = self.new_block();
            self.op(Op::SubprogAddr { dst: of_function, subprog: sub });
            let (width, cond, b) = (Width::W64, Cond::Ne, Val::Reg(of_function));
            self.op(Op::Branch { width, cond, a: address, b, target: other });
            self.end_block();
            let hidden = self.l.needs_ctx[sub.index()].then_some(ctx);
            self.op(Op::Call { target: CallTarget::Subprog(sub), args, ctx: hidden, ret: Some(ret) });
            self.op(Op::Jump { target: join });
            self.end_block();
            self.begin_block(other);
        }
        self.op(Op::Stop { code: StopCode::Target, ctx });
        self.end_block();
        self.begin_block(join);
        self.thrown(ret);
    }

    /// Emits a look-up in a known array: `key < max_entries ? base + key * stride : null`. A known key needs no
    /// comparison.
    fn array_lookup(&mut self, known: &ConstMapCall, max_entries: u32, stride: u32, elements: Elements) {
        match known.key {
            Some(key) if key < u64::from(max_entries) => {
                let base = self.array_base(known.map, elements);
                let dst = self.write(Reg::R0);
                let b = Val::Imm((key * u64::from(stride)) as i64);
                self.op(Op::Bin { op: BinOp::Add, width: Width::W64, dst, a: base, b });
                self.element(dst, elements);
                self.found_at(dst);
            }
            Some(_) | None => {
                let key = self.fresh();
                let mem = Mem::new(Base::Reg(self.cur[Reg::R2.index()]), 0);
                self.op(Op::Load { size: Size::W, signed: false, swap: false, dst: key, mem });
                if self.is_contained() {
                    return self.confined_lookup(key, known.map, max_entries, stride, elements);
                }
                let dst = self.write(Reg::R0);
                self.op(Op::Mov { width: Width::W64, dst, src: Val::Imm(0) });
                let join = self.new_block();
                let max = Val::Imm(max_entries.into());
                self.op(Op::Branch { width: Width::W64, cond: Cond::Ge, a: key, b: max, target: join });
                self.end_block();
                let base = self.array_base(known.map, elements);
                if stride == 8 {
                    self.op(Op::AddShift { width: Width::W64, dst, a: base, b: key, shift: 3 });
                } else {
                    let offset = self.scaled(key, stride.into());
                    self.op(Op::Bin { op: BinOp::Add, width: Width::W64, dst, a: base, b: Val::Reg(offset) });
                }
                self.element(dst, elements);
                self.end_block();
                self.begin_block(join);
            }
        }
    }

    /// Emits a look-up without a branch: the address is computed from a confined index.
    fn confined_lookup(&mut self, key: VReg, map: u32, max_entries: u32, stride: u32, elements: Elements) {
        let index = self.confined_index(key, max_entries);
        let base = self.array_base(map, elements);
        let offset = self.scaled(index, stride.into());
        let found = self.fresh();
        self.op(Op::Bin { op: BinOp::Add, width: Width::W64, dst: found, a: base, b: Val::Reg(offset) });
        self.element(found, elements);
        self.found_at(found);
        let none = self.fresh();
        self.op(Op::Mov { width: Width::W64, dst: none, src: Val::Imm(0) });
        let dst = self.write(Reg::R0);
        let b = Val::Imm(max_entries.into());
        self.op(Op::Select { width: Width::W64, cond: Cond::Lt, a: key, b, dst, yes: found, no: none });
    }

    /// Returns the address of an array's first element.
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

    /// Turns the address of the found element in `dst` into the look-up's result.
    fn element(&mut self, dst: VReg, elements: Elements) {
        match elements {
            Elements::Shared | Elements::PerSlot(_) => {}
            // The host publishes inner maps while programs run: acquire pairs with the release of its store.
            Elements::Pointers => {
                let mem = Mem::new(Base::Reg(dst), 0);
                self.op(Op::LoadAcquire { size: Size::DW, dst, mem });
            }
        }
    }

    /// Computes `v * by`.
    fn scaled(&mut self, v: VReg, by: u64) -> VReg {
        let dst = self.fresh();
        let (op, by) = match by.is_power_of_two() {
            true => (BinOp::Shl, i64::from(by.trailing_zeros())),
            false => (BinOp::Mul, by as i64),
        };
        self.op(Op::Bin { op, width: Width::W64, dst, a: v, b: Val::Imm(by) });
        dst
    }

    /// Returns the number of the run's execution slot.
    fn slot(&mut self) -> VReg {
        let slot = self.fresh();
        let mem = self.run_field(RunCtx::SLOT_OFFSET);
        self.op(Op::Load { size: Size::W, signed: false, swap: false, dst: slot, mem });
        slot
    }

    /// Emits a look-up in a known map of another type: a direct call of the map's own function in place of the helper.
    pub(super) fn keyed_lookup(&mut self, map: u32) {
        let slot = self.slot();
        let args = [Some(self.cur[Reg::R1.index()]), Some(self.cur[Reg::R2.index()]), Some(slot), None, None];
        let target = CallTarget::Extern(Extern::MapLookup(map).symbol());
        let ret = Some(self.write(Reg::R0));
        self.op(Op::Call { target, args, ctx: None, ret });
    }

    pub(super) fn tail_call(&mut self, b: BpfBlock) {
        let ctx = self.ctx();
        let arg = self.cur[Reg::R1.index()];
        let known = self.facts.tail_call(InsnIdx(self.span.first)).filter(|_| self.options.direct_tail_calls);
        if known.is_none() && self.is_contained() {
            // The call would be an indirect jump, which a mispredicted branch may lead anywhere.
            self.op(Op::Stop { code: StopCode::Access, ctx });
            self.end_block();
            let rest = self.new_block();
            return self.begin_block(rest);
        }
        let key = match known {
            Some(known) => TailKey::Const { table: Extern::Map(known.map).symbol(), index: known.index },
            None => TailKey::Dynamic { table: self.cur[Reg::R2.index()], index: self.cur[Reg::R3.index()] },
        };
        self.op(Op::TailCall { key, arg, ctx, reload_len: self.options.raw_context });
        // A tail call that falls through leaves an error in r0. Few programs read it; the kernel's verifier refuses
        // them.
        if S::reads_next(self, b, Reg::R0) {
            let dst = self.write(Reg::R0);
            self.op(Op::Mov { width: Width::W64, dst, src: Val::Imm(-1) });
        }
    }
}
