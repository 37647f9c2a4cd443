//! One function: blocks, webs and liveness around the instructions.

use super::direct::Sink;
use super::webs::{EntryWebs, NO_WEB, NONE, REGS};
use super::{Arity, Edge, Lowerer, flow_back};
use crate::externs::Signatures;
use crate::fixed;
use crate::lir::{Base, Block, BlockId, Func, Mem, Op, Span, VReg, Val};
use crate::lower::LowerOptions;
use bpf_analysis::{BlockId as BpfBlock, Facts, RegSet};
use bpf_isa::{Insn, MAY_GOTO_BUDGET, Program, Reg, Size, Src, SubprogId, Width};

/// Whether a copy of this width has all that an op of width `reads` reads.
pub(super) fn covers(copied: Width, reads: Width) -> bool {
    copied == Width::W64 || reads == Width::W32
}
/// One function being lowered.
pub(super) struct FuncLowerer<'a, S> {
    pub(super) l: &'a mut Lowerer,
    pub(super) program: &'a Program,
    pub(super) facts: &'a Facts,
    pub(super) signatures: &'a dyn Signatures,
    pub(super) arity: &'a Arity<'a>,
    pub(super) options: &'a LowerOptions,
    pub(super) func: &'a mut Func,
    /// Where the ops go.
    pub(super) sink: S,
    pub(super) sub: SubprogId,
    /// Web that each BPF register holds now.
    pub(super) cur: [VReg; REGS],
    /// Of an instruction that is emitted at once: its temporaries so far.
    pub(super) temporaries: u32,
    /// How many it may have.
    pub(super) max_temporaries: u32,
    /// Some instruction had more: a bug, and no code.
    pub(super) short_of_temporaries: bool,
    /// Of an instruction that is emitted at once: some of the program's instructions are dead.
    pub(super) some_dead: bool,
    pub(super) ctx: Option<VReg>,
    pub(super) counter: Option<VReg>,
    /// The block that ends the function with 0, if some packet load may.
    pub(super) exit_zero: Option<BlockId>,
    pub(super) span: Span,
    /// The block that follows the one being lowered, where ops are emitted at once.
    pub(super) next: BlockId,
    /// First op of the block being filled.
    pub(super) open: u32,
}

/// Marks the number of an extra block among those of BPF blocks, until [`FuncLowerer::retarget`].
const EXTRA: u32 = 1 << 31;

impl<S: Sink> FuncLowerer<'_, S> {
    pub(super) fn run(mut self) {
        let known = self.facts.stack_bytes.get(self.sub.0 as usize).copied();
        let stack = known.unwrap_or_else(|| self.l.liveness.frame_bytes(self.sub, self.options.max_stack));
        self.func.stack_bytes = stack.next_multiple_of(8);
        self.l.webs.clear();
        self.l.edges.clear();
        self.l.extra.clear();

        let blocks = self.l.cfg.subprog_blocks(self.sub);
        if !self.l.cfg.blocks()[blocks.start as usize].reachable {
            return self.never_called();
        }
        self.find_hidden_live();
        self.enter(BpfBlock(blocks.start));
        for b in blocks.map(BpfBlock) {
            if self.l.cfg.block(b).reachable {
                self.block(b);
            }
        }
        self.finish_edges();
        self.finish_exit_zero();
        self.retarget();
        self.rename();
    }

    pub(super) fn return_zero(&mut self) {
        let value = self.fresh();
        self.op(Op::Mov { width: Width::W64, dst: value, src: Val::Imm(0) });
        self.op(Op::Exit { value });
    }

    /// A function that only dead code calls. Others refer to it by its number, so it stays, and returns 0.
    fn never_called(mut self) {
        self.return_zero();
        let live = self.func.live.len() as u32;
        self.close(live, self.program.subprogs()[self.sub.index()].start);
        self.rename();
    }

    /// Where the hidden argument and the may_goto counter are live: wherever an instruction that reads them can be reached.
    pub(super) fn find_hidden_live(&mut self) {
        let blocks = self.l.cfg.subprog_blocks(self.sub);
        let n = self.l.cfg.blocks().len();
        self.l.ctx_live.resize(n, false);
        self.l.counter_live.resize(n, false);
        let needs_ctx = self.l.needs_ctx[self.sub.0 as usize];
        let mut counter = false;
        for b in blocks.clone() {
            let block = self.l.cfg.blocks()[b as usize];
            let needs = needs_ctx
                && (block.start..block.end)
                    .any(|slot| self.l.insn_needs_ctx(self.program, self.facts, slot, self.signatures, self.options));
            self.l.ctx_live[b as usize] = needs;
            let counts = self.program.contents().may_gotos
                && self.program.insns()[block.start as usize..block.end as usize]
                    .iter()
                    .any(|insn| matches!(insn, Insn::MayGoto { .. }));
            self.l.counter_live[b as usize] = counts;
            counter |= counts;
        }
        if needs_ctx {
            flow_back(&self.l.cfg, blocks.clone(), &mut self.l.ctx_live);
        }
        if counter {
            flow_back(&self.l.cfg, blocks, &mut self.l.counter_live);
            self.counter = Some(self.l.webs.fresh());
        }
    }

    /// Parameters, registers read before they are written (they hold zero), and the may_goto counter.
    pub(super) fn enter(&mut self, entry: BpfBlock) {
        let live = self.live_in(entry);
        self.l.entry_webs[entry.index()].known = live;
        for reg in live.iter() {
            let v = self.l.webs.fresh();
            self.l.entry_webs[entry.index()].of[reg.index()] = v;
            match Reg::ARGS.iter().position(|r| *r == reg) {
                Some(i) => self.func.params[i] = Some(v),
                None => self.op(Op::Mov { width: Width::W64, dst: v, src: Val::Imm(0) }),
            }
        }
        if self.l.ctx_live[entry.index()] {
            let v = self.l.webs.fresh();
            self.ctx = Some(v);
            self.func.ctx = Some(v);
        }
        if let Some(counter) = self.counter {
            self.op(Op::Mov { width: Width::W64, dst: counter, src: Val::Imm(MAY_GOTO_BUDGET as i64) });
        }
        // Where a loop leads back to the entry, what was just emitted must not be repeated.
        let blocks = self.l.cfg.subprog_blocks(self.sub);
        let is_loop = self.l.cfg.blocks()[blocks.start as usize..blocks.end as usize]
            .iter()
            .any(|block| block.reachable && block.taken == Some(entry));
        if is_loop && self.open < self.func.ops.len() as u32 {
            let live = self.func.live.len() as u32;
            self.push_live_at(entry);
            self.close(live, self.l.cfg.block(entry).start);
        }
    }

    /// The BPF registers live at the start of a block, without r10, which needs no home.
    pub(super) fn live_in(&self, b: BpfBlock) -> RegSet {
        self.l.liveness.live_in(b).without(RegSet::of(Reg::R10))
    }

    pub(super) fn block(&mut self, b: BpfBlock) {
        let block = *self.l.cfg.block(b);
        let live = self.live_in(b);
        let webs = &mut self.l.entry_webs[b.index()];
        for reg in live.without(webs.known).iter() {
            // A register that only a back-edge brings here has no web yet.
            webs.of[reg.index()] = self.l.webs.fresh();
        }
        webs.known = live;
        self.cur = webs.of;
        self.l.block_of[b.index()] = self.func.blocks.len() as u32;

        let mut slot = block.start;
        while slot < block.end {
            let insn = self.program.insns()[slot as usize];
            self.temporaries = 0;
            self.span = Span { first: slot, len: insn.slots() };
            self.insn(&insn, b);
            slot += insn.slots();
        }

        for s in block.succs() {
            let live = self.live_in(s);
            let entry = &mut self.l.entry_webs[s.index()];
            if entry.known.is_empty() {
                *entry = EntryWebs::select(live, &self.cur);
            } else {
                for reg in entry.differing(&self.cur).iter() {
                    self.l.webs.unite(entry.of[reg.index()].0, self.cur[reg.index()].0);
                }
            }
        }
        let live = self.func.live.len() as u32;
        self.push_live_out(b);
        self.close(live, block.start);
    }

    /// Appends what is live at the start of block `b` to the function's live lists.
    pub(super) fn push_live_at(&mut self, b: BpfBlock) {
        for reg in self.live_in(b).iter() {
            self.func.live.push(self.l.entry_webs[b.index()].of[reg.index()]);
        }
        self.push_hidden(self.l.ctx_live[b.index()], self.l.counter_live[b.index()]);
    }

    /// Appends what is live at the end of block `b`, which is being filled, to the function's live lists.
    pub(super) fn push_live_out(&mut self, b: BpfBlock) {
        let live = self.l.liveness.live_out(&self.l.cfg, b).without(RegSet::of(Reg::R10));
        let mut list = [NO_WEB; REGS];
        let mut len = 0;
        for (web, reg) in self.cur.iter().zip(Reg::ALL) {
            list[len] = *web;
            len += usize::from(live.contains(reg));
        }
        self.func.live.extend_from_slice(&list[..len]);
        let ctx = self.l.cfg.block(b).succs().any(|s| self.l.ctx_live[s.index()]);
        let counter = self.l.cfg.block(b).succs().any(|s| self.l.counter_live[s.index()]);
        self.push_hidden(ctx, counter);
    }

    pub(super) fn push_hidden(&mut self, ctx: bool, counter: bool) {
        self.func.live.extend(self.ctx.filter(|_| ctx));
        self.func.live.extend(self.counter.filter(|_| counter));
    }

    /// Ends the block being filled; its live-out list is the function's live list from `live` on.
    pub(super) fn close(&mut self, live: u32, slot: u32) {
        let end = self.func.ops.len() as u32;
        let live_out = live..self.func.live.len() as u32;
        self.func.blocks.push(Block { ops: self.open..end, live_out, slot, is_target: false });
        self.open = end;
    }

    /// Ends the block being filled in the middle of BPF block `b`: `extra` and all that the rest of `b` may read stay live.
    ///
    /// "All that the rest may read" is taken generously as every register that holds a value the block still knows; the packet
    /// loads that need this clobber r1 to r5, so it is r6 to r9.
    pub(super) fn split(&mut self, b: BpfBlock, keep: RegSet, extra: &[VReg]) {
        if S::DIRECT {
            return;
        }
        let live = self.func.live.len() as u32;
        for reg in keep.iter() {
            self.func.live.push(self.cur[reg.index()]);
        }
        self.func.live.extend_from_slice(extra);
        self.push_hidden(true, true);
        self.close(live, self.l.cfg.block(b).start);
    }

    /// Inlined, so that the op is written to its place at once.
    #[inline(always)]
    pub(super) fn op(&mut self, op: Op) {
        if S::DIRECT {
            self.sink.op(&op, self.span.first, self.next);
        } else {
            self.func.ops.push(op);
            self.func.spans.push(self.span);
        }
    }

    /// A new value.
    #[inline(always)]
    pub(super) fn fresh(&mut self) -> VReg {
        if S::DIRECT {
            if self.temporaries >= self.max_temporaries {
                self.short_of_temporaries = true;
                return fixed::temporary(0);
            }
            self.temporaries += 1;
            fixed::temporary(self.temporaries - 1)
        } else {
            self.l.webs.fresh()
        }
    }

    /// Where the jump over `off` instructions that ends BPF block `b` leads if it is ever taken, and whether control ever goes on to the next
    /// instruction.
    #[inline(always)]
    pub(super) fn ways(&self, b: BpfBlock, off: i32) -> (Option<BlockId>, bool) {
        if S::DIRECT {
            return self.direct_ways(off);
        }
        let block = self.l.cfg.block(b);
        (block.taken.map(|target| BlockId(target.0)), block.next.is_some())
    }

    /// A block besides those of the program, still without a place; [`FuncLowerer::begin_block`] gives it one.
    pub(super) fn new_block(&mut self) -> BlockId {
        if S::DIRECT {
            return self.sink.new_block();
        }
        self.l.extra.push(NONE);
        BlockId(EXTRA | (self.l.extra.len() as u32 - 1))
    }

    /// What comes next is this extra block. The one before is closed.
    pub(super) fn begin_block(&mut self, block: BlockId) {
        if S::DIRECT {
            return self.sink.begin_block(block);
        }
        self.l.extra[(block.0 & !EXTRA) as usize] = self.func.blocks.len() as u32;
    }

    /// The op before the next one, if it is in the same block.
    pub(super) fn last_op(&mut self) -> Option<&mut Op> {
        if !S::DIRECT && self.func.ops.len() as u32 > self.open { self.func.ops.last_mut() } else { None }
    }

    /// Adds an op that changes `v` in place and reads `reads` bits of it; after a copy into `v` it reads the original.
    pub(super) fn in_place(&mut self, reads: Width, v: VReg, op: impl FnOnce(VReg) -> Op) {
        if let Some(last) = self.last_op()
            && let Op::Mov { width, dst, src: Val::Reg(src) } = *last
            && dst == v
            && covers(width, reads)
        {
            *last = op(src);
            self.extend_last_span();
        } else {
            self.op(op(v));
        }
    }

    /// The span of a fused op reaches back to the instruction it absorbed.
    pub(super) fn extend_last_span(&mut self) {
        if let Some(span) = self.func.spans.last_mut() {
            span.len = self.span.first + self.span.len - span.first;
        }
    }

    /// The value of a register. r10's is computed into a temporary.
    pub(super) fn read(&mut self, reg: Reg) -> VReg {
        if reg == Reg::R10 {
            let dst = self.fresh();
            self.op(Op::FrameAddr { dst, off: 0 });
            dst
        } else {
            self.cur[reg.index()]
        }
    }

    pub(super) fn read_src(&mut self, src: Src) -> Val {
        match src {
            Src::Reg(reg) => Val::Reg(self.read(reg)),
            Src::Imm(imm) => Val::Imm(imm.into()),
        }
    }

    /// A new value for a register.
    #[inline(always)]
    pub(super) fn write(&mut self, reg: Reg) -> VReg {
        if S::DIRECT {
            return fixed::home(reg);
        }
        let v = self.l.webs.fresh();
        self.cur[reg.index()] = v;
        v
    }

    pub(super) fn mem(&self, base: Reg, off: i16) -> Mem {
        let base = if base == Reg::R10 { Base::Frame } else { Base::Reg(self.cur[base.index()]) };
        Mem { base, off: off.into() }
    }

    /// The hidden argument, in an op that `insn_needs_ctx` has announced.
    pub(super) fn ctx(&mut self) -> VReg {
        match self.ctx {
            Some(ctx) => ctx,
            None => {
                debug_assert!(false, "an op reads the hidden argument that insn_needs_ctx did not announce");
                let ctx = self.fresh();
                *self.ctx.insert(ctx)
            }
        }
    }

    pub(super) fn ctx_field(&mut self, offset: i32) -> VReg {
        let mem = Mem { base: Base::Reg(self.ctx()), off: offset };
        let dst = self.fresh();
        self.op(Op::Load { size: Size::DW, signed: false, swap: false, dst, mem });
        dst
    }

    /// Fills the blocks of the checked back-edges: the checks, then on to the target.
    pub(super) fn finish_edges(&mut self) {
        for i in 0..self.l.edges.len() {
            let Edge { block, target, span } = self.l.edges[i];
            self.span = span;
            self.begin_block(block);
            self.checks();
            self.op(Op::Jump { target });
            if !S::DIRECT {
                let live = self.func.live.len() as u32;
                self.push_live_at(BpfBlock(target.0));
                self.close(live, span.first);
            }
        }
    }

    /// The block that packet loads out of range go to.
    pub(super) fn finish_exit_zero(&mut self) {
        if let Some(block) = self.exit_zero {
            self.begin_block(block);
            self.return_zero();
            if !S::DIRECT {
                let live = self.func.live.len() as u32;
                self.close(live, self.span.first);
            }
        }
    }

    /// Turns targets from BPF blocks and extra blocks into blocks of the function, and notes who is one.
    pub(super) fn retarget(&mut self) {
        for op in &mut self.func.ops {
            let (Op::Jump { target } | Op::Branch { target, .. }) = op else { continue };
            *target = BlockId(match target.0 & EXTRA {
                0 => self.l.block_of[target.index()],
                _ => self.l.extra[(target.0 & !EXTRA) as usize],
            });
            self.func.blocks[target.index()].is_target = true;
        }
    }

    /// Numbers the webs that are left after uniting, in order.
    pub(super) fn rename(&mut self) {
        self.func.vregs = self.l.webs.parent.len() as u32;
        if !self.l.webs.united {
            return;
        }
        self.func.vregs = self.l.webs.number();
        let name = &self.l.webs.parent;
        let rename = |v: &mut VReg| *v = VReg(name[v.index()]);
        self.func.ops.iter_mut().for_each(|op| op.for_each_reg(rename));
        self.func.live.iter_mut().for_each(rename);
        self.func.params.iter_mut().flatten().for_each(rename);
        self.func.ctx.iter_mut().for_each(rename);
    }
}
