//! The lowering of one function, generic over where its ops go.

use super::starts::Starts;
use super::webs::REGS;
use super::{Arity, Edge, Lowerer};
use crate::externs::Signatures;
use crate::lower::{COUNTER_STRIDE, LowerOptions};
use bpf_analysis::{BlockId as BpfBlock, Facts, RegSet, Zeroed};
use bpf_isa::{Callee, InsnIdx, Program, Reg, Size, Src, SubprogId, Width};
use bpf_jit_code::RunCtx;
use bpf_lir::{Base, BinOp, BlockId, Extern, Func, Mem, Op, Region, Span, VReg, Val};

/// The destination of a [`FuncLowerer`]'s ops, and the properties of the function that are known there.
pub(super) trait Sink: Sized {
    /// Appends an op.
    fn op(f: &mut FuncLowerer<'_, Self>, op: Op);
    /// Returns a new value.
    fn fresh(f: &mut FuncLowerer<'_, Self>) -> VReg;
    /// Returns a new value for a register.
    fn write(f: &mut FuncLowerer<'_, Self>, reg: Reg) -> VReg;
    /// Returns a new block besides those of the program, which is not placed yet.
    fn new_block(f: &mut FuncLowerer<'_, Self>) -> BlockId;
    /// Begins an extra block.
    fn begin_block(f: &mut FuncLowerer<'_, Self>, block: BlockId);
    /// Ends the block being filled.
    fn end_block(f: &mut FuncLowerer<'_, Self>);
    /// Returns where the jump over `off` instructions that ends BPF block `b` leads, if it may be taken, and whether
    /// control may go on to the next instruction.
    fn ways(f: &FuncLowerer<'_, Self>, b: BpfBlock, off: i32) -> (Option<BlockId>, bool);
    /// Returns the block that begins with this instruction, a target of a jump.
    fn block_at(f: &FuncLowerer<'_, Self>, at: InsnIdx) -> BlockId;
    /// Returns the argument registers that the call at `slot` reads.
    fn call_uses(f: &FuncLowerer<'_, Self>, slot: u32, callee: Callee) -> RegSet;
    /// Returns the region that the current instruction accesses, if known.
    fn region(f: &FuncLowerer<'_, Self>) -> Region;
    /// Whether the value that the current instruction, in block `b`, leaves in `reg` may be read later.
    fn reads_next(f: &FuncLowerer<'_, Self>, b: BpfBlock, reg: Reg) -> bool;
}

/// The state while one function is lowered.
pub(super) struct FuncLowerer<'a, S> {
    pub(super) l: &'a mut Lowerer,
    pub(super) program: &'a Program,
    pub(super) facts: &'a Facts,
    pub(super) signatures: &'a dyn Signatures,
    pub(super) arity: &'a Arity<'a>,
    pub(super) options: &'a LowerOptions,
    pub(super) func: &'a mut Func,
    /// The destination of the ops.
    pub(super) sink: S,
    pub(super) sub: SubprogId,
    /// By BPF register: the web that it currently holds.
    pub(super) cur: [VReg; REGS],
    /// In direct emission: how many temporaries the current instruction has used.
    pub(super) temporaries: u32,
    /// In direct emission: how many temporaries an instruction may use.
    pub(super) max_temporaries: u32,
    /// In direct emission: whether an instruction needed more temporaries. In that case compilation fails with an
    /// internal error.
    pub(super) short_of_temporaries: bool,
    /// In direct emission: whether some instructions of the program are known to be unreachable.
    pub(super) some_dead: bool,
    pub(super) ctx: Option<VReg>,
    pub(super) counter: Option<VReg>,
    /// The starts of a contained program's objects; `None` in other programs.
    pub(super) starts: Option<Starts<'a>>,
    /// Whether the look-up being lowered has recorded where the element that it found starts.
    pub(super) found: bool,
    /// The block that ends the function with 0, if some packet load may jump there.
    pub(super) exit_zero: Option<BlockId>,
    pub(super) span: Span,
    /// In direct emission: the block that follows the one being lowered.
    pub(super) next: BlockId,
    /// Index of the first op of the block being filled.
    pub(super) open: u32,
}

impl<S: Sink> FuncLowerer<'_, S> {
    pub(super) fn return_zero(&mut self) {
        let value = self.fresh();
        self.op(Op::Mov { width: Width::W64, dst: value, src: Val::Imm(0) });
        self.op(Op::Exit { value });
    }

    /// Ends the block being filled.
    #[inline(always)]
    pub(super) fn end_block(&mut self) {
        S::end_block(self);
    }

    /// Appends an op. Inlined, so that the op is written to its place at once.
    #[inline(always)]
    pub(super) fn op(&mut self, op: Op) {
        S::op(self, op);
    }

    /// Returns a new value.
    #[inline(always)]
    pub(super) fn fresh(&mut self) -> VReg {
        S::fresh(self)
    }

    /// Returns a new block besides those of the program, which [`FuncLowerer::begin_block`] places.
    pub(super) fn new_block(&mut self) -> BlockId {
        S::new_block(self)
    }

    /// Begins an extra block. The block before must have ended.
    pub(super) fn begin_block(&mut self, block: BlockId) {
        S::begin_block(self, block);
    }

    /// Returns the value of a register. The value of r10 is computed into a new value.
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

    /// Returns a new value for a register.
    #[inline(always)]
    pub(super) fn write(&mut self, reg: Reg) -> VReg {
        S::write(self, reg)
    }

    pub(super) fn mem(&self, base: Reg, off: i16) -> Mem {
        if base == Reg::R10 {
            return Mem::new(Base::Frame, off.into());
        }
        Mem { region: S::region(self), ..Mem::new(Base::Reg(self.cur[base.index()]), off.into()) }
    }

    /// Returns the hidden argument, for an op that `insn_needs_ctx` has announced.
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

    /// Returns the address of a field of the hidden argument.
    pub(super) fn run_field(&mut self, offset: i32) -> Mem {
        Mem { region: Region::Run, ..Mem::new(Base::Reg(self.ctx()), offset) }
    }

    pub(super) fn ctx_field(&mut self, offset: i32) -> VReg {
        let mem = self.run_field(offset);
        let dst = self.fresh();
        self.op(Op::Load { size: Size::DW, signed: false, swap: false, dst, mem });
        dst
    }

    /// Whether this function counts or notes its entries.
    pub(super) fn counts_runs(&self) -> bool {
        (self.options.count || self.options.note) && self.sub.0 == 0
    }

    /// Counts one more run of the program. Only the run in the execution slot writes the slot's counter, so the update
    /// need not be atomic. An aligned store suffices for threads that read the counter.
    pub(super) fn count_run(&mut self) {
        let at = self.fresh();
        self.op(Op::SymAddr { dst: at, symbol: Extern::Counters(0).symbol() });
        let mem = self.run_field(RunCtx::COUNTERS_OFFSET);
        self.op(Op::Store { size: Size::DW, mem, src: Val::Reg(at) });
        if !self.options.count {
            return;
        }
        let (slot, runs) = (self.fresh(), self.fresh());
        let mem = self.run_field(RunCtx::SLOT_OFFSET);
        self.op(Op::Load { size: Size::W, signed: false, swap: false, dst: slot, mem });
        let b = Val::Imm(COUNTER_STRIDE.trailing_zeros().into());
        self.op(Op::Bin { op: BinOp::Shl, width: Width::W64, dst: slot, a: slot, b });
        self.op(Op::Bin { op: BinOp::Add, width: Width::W64, dst: slot, a: slot, b: Val::Reg(at) });
        let mem = Mem::new(Base::Reg(slot), 0);
        self.op(Op::Load { size: Size::DW, signed: false, swap: false, dst: runs, mem });
        self.op(Op::Bin { op: BinOp::Add, width: Width::W64, dst: runs, a: runs, b: Val::Imm(1) });
        self.op(Op::Store { size: Size::DW, mem, src: Val::Reg(runs) });
    }

    /// Zeroes the parts of its frame that the function may read without having written them.
    pub(super) fn zero_frame(&mut self) {
        if self.is_contained() {
            return self.zero_contained();
        }
        let Some(Zeroed { depth, bytes, .. }) = self.facts.zeroed(self.sub) else { return };
        for below in (0..bytes / 8).map(|i| i64::from(depth - 8 * i)) {
            let Ok(off) = i32::try_from(-below) else { return };
            let mem = Mem::new(Base::Frame, off);
            self.op(Op::Store { size: Size::DW, mem, src: Val::Imm(0) });
        }
    }

    /// Fills the blocks of checked backward edges: the checks, then a jump to the target.
    pub(super) fn finish_edges(&mut self) {
        for i in 0..self.l.edges.len() {
            let Edge { block, target, span, head } = self.l.edges[i];
            self.span = span;
            self.begin_block(block);
            self.checks(head);
            self.op(Op::Jump { target });
            self.end_block();
        }
    }

    /// Fills the block that packet loads out of range jump to.
    pub(super) fn finish_exit_zero(&mut self) {
        if let Some(block) = self.exit_zero {
            self.begin_block(block);
            self.return_zero();
            self.end_block();
        }
    }
}
