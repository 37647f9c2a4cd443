//! Lowering into a function's list of ops, which passes, allocation and emission work on later: blocks, webs and
//! liveness.

use super::func::FuncLowerer;
use super::func::Sink;
use super::webs::{EntryWebs, NONE};
use bpf_analysis::{BlockId as BpfBlock, MemKind, RegSet, results};
use bpf_isa::{Callee, Insn, InsnIdx, MAY_GOTO_BUDGET, Reg, Width};
use bpf_jit_code::StopCode;
use bpf_lir::{Block, BlockId, Op, Region, Span, VReg, Val};

/// Appends ops to the function's list.
pub(super) struct Listed;

/// Marks the number of an extra block, among those of BPF blocks, until [`FuncLowerer::retarget`].
const EXTRA: u32 = 1 << 31;

impl Sink for Listed {
    #[inline(always)]
    fn op(f: &mut FuncLowerer<'_, Self>, op: Op) {
        f.func.ops.push(op);
        f.func.spans.push(f.span);
    }

    #[inline(always)]
    fn fresh(f: &mut FuncLowerer<'_, Self>) -> VReg {
        f.l.webs.fresh()
    }

    #[inline(always)]
    fn write(f: &mut FuncLowerer<'_, Self>, reg: Reg) -> VReg {
        let v = f.l.webs.fresh();
        f.cur[reg.index()] = v;
        v
    }

    fn new_block(f: &mut FuncLowerer<'_, Self>) -> BlockId {
        f.l.extra.push(NONE);
        BlockId(EXTRA | (crate::num::small(f.l.extra.len()) - 1))
    }

    fn begin_block(f: &mut FuncLowerer<'_, Self>, block: BlockId) {
        f.l.extra[(block.0 & !EXTRA) as usize] = crate::num::small(f.func.blocks.len());
    }

    #[inline(always)]
    fn end_block(f: &mut FuncLowerer<'_, Self>) {
        let end = crate::num::small(f.func.ops.len());
        f.func.order.push(BlockId(crate::num::small(f.func.blocks.len())));
        f.func.blocks.push(Block { ops: f.open..end });
        f.open = end;
    }

    #[inline(always)]
    fn ways(f: &FuncLowerer<'_, Self>, b: BpfBlock, _: i32) -> (Option<BlockId>, bool) {
        let block = f.l.cfg.block(b);
        (block.taken.map(|target| BlockId(target.0)), block.next.is_some())
    }

    fn block_at(f: &FuncLowerer<'_, Self>, at: InsnIdx) -> BlockId {
        // Every target begins a block.
        BlockId(f.l.cfg.block_at(at).map_or(0, |block| block.0))
    }

    fn call_uses(f: &FuncLowerer<'_, Self>, slot: u32, _: Callee) -> RegSet {
        f.l.liveness.uses(f.program, slot, f.arity)
    }

    #[inline(always)]
    fn region(f: &FuncLowerer<'_, Self>) -> Region {
        match f.facts.insn(InsnIdx(f.span.first)).memory {
            None => Region::Unknown,
            Some(MemKind::Stack) => Region::Stack,
            Some(MemKind::Context) => Region::Context,
            Some(MemKind::Packet) => Region::Packet,
            Some(MemKind::MapValue) => Region::MapValue,
            Some(MemKind::Mem) => Region::Mem,
            // Memory of a map, which other threads use, and which no other kind of pointer of the program leads to.
            Some(MemKind::Arena) => Region::Arena,
        }
    }

    fn reads_next(f: &FuncLowerer<'_, Self>, b: BpfBlock, reg: Reg) -> bool {
        let block = f.l.cfg.block(b);
        for slot in f.span.first + f.span.len..block.end {
            if f.l.liveness.uses(f.program, slot, f.arity).contains(reg) {
                return true;
            }
            if results(&f.program.insns()[slot as usize]).contains(reg) {
                return false;
            }
        }
        f.l.liveness.live_out(&f.l.cfg, b).contains(reg)
    }
}

impl FuncLowerer<'_, Listed> {
    pub(super) fn run(mut self) {
        let known = self.facts.stack_bytes.get(self.sub.0 as usize).copied();
        let stack = known.unwrap_or_else(|| self.l.liveness.frame_bytes(self.sub, self.options.max_stack));
        let contained = self.starts.as_ref().and_then(|starts| starts.facts.frames.get(self.sub.index()).copied());
        self.func.stack_bytes = contained.unwrap_or(stack).next_multiple_of(8);
        // In a contained program, an access may lead to each byte of the frame, whatever was proven.
        if contained.is_none() {
            let offset = |depth: u32| i32::try_from(-i64::from(depth)).unwrap_or(i32::MIN);
            let private = self.facts.private(self.sub).iter().rev();
            self.func.private.extend(private.map(|range| offset(range.depth)..offset(range.depth - range.bytes)));
        }
        self.l.webs.clear();
        self.l.edges.clear();
        self.l.extra.clear();

        let blocks = self.l.cfg.subprog_blocks(self.sub);
        if !self.l.cfg.blocks()[blocks.start as usize].reachable {
            return self.never_called();
        }
        let reads_ctx = self.find_hidden();
        self.enter(BpfBlock(blocks.start), reads_ctx);
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

    /// Lowers a function that only unreachable code calls. Other functions refer to it by number, so it stays, and
    /// returns 0.
    fn never_called(mut self) {
        self.return_zero();
        self.end_block();
        self.rename();
    }

    /// Makes a value for the may_goto counter if a reachable instruction counts; returns whether a reachable
    /// instruction reads the hidden argument.
    fn find_hidden(&mut self) -> bool {
        let needs_ctx = self.l.needs_ctx[self.sub.0 as usize];
        let may_gotos = self.program.contents().may_gotos;
        if !needs_ctx && !may_gotos {
            return false;
        }
        let (mut reads, mut counts) = (self.counts_runs(), false);
        for b in self.l.cfg.subprog_blocks(self.sub) {
            let block = self.l.cfg.blocks()[b as usize];
            if !block.reachable {
                continue;
            }
            for slot in block.start..block.end {
                reads |= needs_ctx
                    && !reads
                    && self.l.insn_needs_ctx(self.program, self.facts, slot, self.signatures, self.options);
                counts |= may_gotos && matches!(self.program.insns()[slot as usize], Insn::MayGoto { .. });
            }
        }
        if counts {
            self.counter = Some(self.l.webs.fresh());
        }
        reads
    }

    /// Defines parameters, registers that are read before they are written (which hold zero), and the may_goto counter.
    fn enter(&mut self, entry: BpfBlock, reads_ctx: bool) {
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
        if reads_ctx {
            let v = self.l.webs.fresh();
            self.ctx = Some(v);
            self.func.ctx = Some(v);
        }
        if self.counts_runs() {
            self.count_run();
        }
        if let Some(counter) = self.counter {
            self.op(Op::Mov { width: Width::W64, dst: counter, src: Val::Imm(MAY_GOTO_BUDGET as i64) });
        }
        self.zero_frame();
        self.find_starts();
        // If a loop leads back to the entry, the ops emitted so far must not be repeated.
        let blocks = self.l.cfg.subprog_blocks(self.sub);
        let is_loop = self.l.cfg.blocks()[blocks.start as usize..blocks.end as usize]
            .iter()
            .any(|block| block.reachable && block.taken == Some(entry))
            || blocks.map(BpfBlock).any(|b| self.l.cfg.block(b).reachable && self.l.cfg.indirect(b).contains(&entry));
        if is_loop && self.open < crate::num::small(self.func.ops.len()) {
            self.end_block();
        }
    }

    /// Returns the BPF registers live at the start of a block, without r10, which needs no virtual register.
    fn live_in(&self, b: BpfBlock) -> RegSet {
        self.l.liveness.live_in(b).without(RegSet::of(Reg::R10))
    }

    fn block(&mut self, b: BpfBlock) {
        let block = *self.l.cfg.block(b);
        let live = self.live_in(b);
        let webs = &mut self.l.entry_webs[b.index()];
        for reg in live.without(webs.known).iter() {
            // A register that only a backward edge brings here has no web yet.
            webs.of[reg.index()] = self.l.webs.fresh();
        }
        webs.known = live;
        self.cur = webs.of;
        self.l.block_of[b.index()] = crate::num::small(self.func.blocks.len());

        let begins = !self.facts.insn(InsnIdx(block.start)).dead;
        let (mut slot, mut ends, mut stopped) = (block.start, false, false);
        while slot < block.end {
            // A block that is unreachable from its first instruction on, but has an edge left to it, is lowered as a
            // whole.
            if begins && slot > block.start && self.l.some_dead && self.facts.insn(InsnIdx(slot)).dead {
                break;
            }
            let insn = self.program.insns()[slot as usize];
            self.temporaries = 0;
            self.span = Span { first: slot, len: insn.slots() };
            if self.is_beyond(slot) {
                let ctx = self.ctx();
                self.op(Op::Stop { code: StopCode::Access, ctx });
                stopped = true;
                break;
            }
            self.insn(&insn, b);
            self.hold();
            slot += insn.slots();
            ends = insn.ends_flow();
        }
        if stopped {
            // Control does not go on from here, so no web of this block reaches a successor.
            return self.end_block();
        }
        if !ends && self.l.cfg.succs(b).next().is_none() {
            // Behind a call that does not return. The block must end with an op all the same.
            self.return_zero();
        }

        for i in 0.. {
            let Some(s) = self.l.cfg.succs(b).nth(i) else { break };
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
        self.end_block();
    }

    /// Replaces targets that are BPF blocks or extra blocks by blocks of the function.
    fn retarget(&mut self) {
        for op in &mut self.func.ops {
            let (Op::Jump { target } | Op::Branch { target, .. }) = op else { continue };
            *target = BlockId(match target.0 & EXTRA {
                0 => self.l.block_of[target.index()],
                _ => self.l.extra[(target.0 & !EXTRA) as usize],
            });
        }
    }

    /// Numbers the webs that are left after uniting, in order, and renames all values.
    fn rename(&mut self) {
        self.func.vregs = crate::num::small(self.l.webs.parent.len());
        if !self.l.webs.united {
            return;
        }
        self.func.vregs = self.l.webs.number();
        let name = &self.l.webs.parent;
        let rename = |v: &mut VReg| *v = VReg(name[v.index()]);
        self.func.ops.iter_mut().for_each(|op| op.for_each_reg(rename));
        self.func.params.iter_mut().flatten().for_each(rename);
        self.func.ctx.iter_mut().for_each(rename);
    }
}
