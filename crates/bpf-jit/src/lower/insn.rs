//! The instructions, but for calls.

use super::func::FuncLowerer;
use super::func::Sink;
use super::{Edge, subprog_at};
use bpf_analysis::{BlockId as BpfBlock, Facts};
use bpf_isa::{
    AluOp, AtomicOp as BpfAtomicOp, ByteOrder, Cond, EndWidth, Imm64, Insn, InsnIdx, Reg, Size, Src, SxWidth, Width,
};
use bpf_jit_code::{RunCtx, StopCode};
use bpf_lir::Extern;
use bpf_lir::{AtomicOp, Base, BinOp, BlockId, Mem, Op, Region, VReg, Val};

impl<S: Sink> FuncLowerer<'_, S> {
    #[inline(always)]
    pub(super) fn insn(&mut self, insn: &Insn, b: BpfBlock) {
        match *insn {
            Insn::Alu { width, op, dst, src } => self.alu(width, op, dst, src),
            Insn::Mov { width, dst, src } => match src {
                Src::Reg(Reg::R10) if width == Width::W64 => {
                    let dst = self.write(dst);
                    self.op(Op::FrameAddr { dst, off: 0 });
                }
                Src::Reg(_) | Src::Imm(_) => {
                    let src = self.read_src(src);
                    let dst = self.write(dst);
                    self.op(Op::Mov { width, dst, src });
                }
            },
            Insn::MovSx { width, dst, src, from } => {
                let from = match from {
                    SxWidth::S8 => Size::B,
                    SxWidth::S16 => Size::H,
                    SxWidth::S32 => Size::W,
                };
                let src = self.read(src);
                let dst = self.write(dst);
                self.op(Op::Ext { width, signed: true, from, dst, src });
            }
            Insn::Cast { dst, src, to } => self.cast(dst, src, to),
            Insn::Neg { width, dst } => {
                let v = self.cur[dst.index()];
                self.op(Op::Neg { width, dst: v, src: v });
            }
            Insn::End { order, width, dst } => self.end(order, width, dst),
            Insn::LoadImm64 { dst, imm } => self.load_imm64(dst, imm),
            Insn::SecondSlot => {}
            Insn::Load { size, sign, dst, base, off } => {
                self.check_access(size, base, off);
                let mem = self.address(base, off);
                let dst = self.write(dst);
                self.op(Op::Load { size, signed: sign, swap: false, dst, mem });
            }
            Insn::Store { size, base, off, src } => {
                self.check_access(size, base, off);
                let src = self.read_src(src);
                let mem = self.address(base, off);
                self.op(Op::Store { size, mem, src });
            }
            Insn::Atomic { width, op, base, off, src } => self.atomic(width, op, base, off, src),
            Insn::LoadAcquire { size, dst, base, off } => {
                let mem = self.atomic_address(size, base, off);
                let dst = self.write(dst);
                self.op(Op::LoadAcquire { size, dst, mem });
            }
            Insn::StoreRelease { size, base, off, src } => {
                let src = self.read(src);
                let mem = self.atomic_address(size, base, off);
                self.op(Op::StoreRelease { size, mem, src });
            }
            Insn::LoadAbs { size, imm } => self.packet_load(size, Val::Imm(i64::from(imm as u32))),
            Insn::LoadInd { size, src, imm } => {
                let src = self.read(src);
                let at = self.fresh();
                let imm = Val::Imm(imm.into());
                self.op(Op::Bin { op: BinOp::Add, width: Width::W32, dst: at, a: src, b: imm });
                self.packet_load(size, Val::Reg(at));
            }
            Insn::Jump { off, .. } => {
                if let (Some(target), _) = S::ways(self, b, off) {
                    self.jump(target, off);
                }
            }
            Insn::JumpReg { target } => self.jump_register(target),
            Insn::JumpIf { width, cond, dst, src, off } => match S::ways(self, b, off.into()) {
                // Known to go one way: the other one is dead.
                (Some(target), false) => self.jump(target, off.into()),
                (None, _) => {}
                (Some(target), true) => {
                    self.check_operands(dst, src);
                    let src = self.read_src(src);
                    let dst = self.read(dst);
                    self.branch(width, cond, dst, src, target, off);
                }
            },
            Insn::MayGoto { off } => {
                let (Some(counter), (Some(target), _)) = (self.counter, S::ways(self, b, off.into())) else { return };
                self.branch(Width::W64, Cond::Eq, counter, Val::Imm(0), target, off);
                // The counter goes down on the way that falls through: a block of its own.
                self.end_block();
                self.op(Op::Bin { op: BinOp::Sub, width: Width::W64, dst: counter, a: counter, b: Val::Imm(1) });
            }
            Insn::Call(callee) => self.call(b, callee),
            Insn::Exit => {
                let value = self.cur[Reg::R0.index()];
                self.op(Op::Exit { value });
            }
        }
    }

    /// A jump over `off` instructions, to this block.
    fn jump(&mut self, target: BlockId, off: i32) {
        if off < 0 {
            self.checks();
        }
        self.op(Op::Jump { target });
    }

    /// An indirect jump, by comparisons of the number in the register with those of the instructions that it may go to:
    /// each halves what is left. To anything else the run does not go, whatever the register holds: it stops. Nor is
    /// there an indirect branch to protect.
    fn jump_register(&mut self, reg: Reg) {
        let (program, facts) = (self.program, self.facts);
        let (number, ctx) = (self.read(reg), self.ctx());
        let targets = program.indirect_targets(self.sub);
        // The next instruction is as far away as the others: the comparisons and the stop are in between.
        self.next = BlockId(u32::MAX);
        let stop = self.new_block();
        self.search(number, targets, facts, stop);
        self.begin_block(stop);
        self.op(Op::Stop { code: StopCode::Target, ctx });
    }

    /// Goes to the one of these targets that has the number, else to `stop`.
    fn search(&mut self, number: VReg, targets: &[InsnIdx], facts: &Facts, stop: BlockId) {
        /// So few are compared one after the other.
        const FEW: usize = 3;
        if let (true, Some(middle)) = (targets.len() > FEW, targets.get(targets.len() / 2)) {
            let (lower, upper) = targets.split_at(targets.len() / 2);
            let rest = self.new_block();
            self.compare(Cond::Ge, number, *middle, rest);
            self.search(number, lower, facts, stop);
            self.begin_block(rest);
            return self.search(number, upper, facts, stop);
        }
        for target in targets.iter().filter(|target| !facts.insn(**target).dead) {
            let mut to = S::block_at(self, *target);
            if target.0 <= self.span.first && (self.options.budget || self.options.interrupt) {
                let through = self.new_block();
                self.l.edges.push(Edge { block: through, target: to, span: self.span });
                to = through;
            }
            self.compare(Cond::Eq, number, *target, to);
        }
        self.op(Op::Jump { target: stop });
        self.end_block();
    }

    /// Goes to `target` if the number is so beside that of the instruction.
    fn compare(&mut self, cond: Cond, a: VReg, beside: InsnIdx, target: BlockId) {
        let b = Val::Imm(beside.target_number() as i64);
        self.op(Op::Branch { width: Width::W64, cond, a, b, target });
        self.end_block();
    }

    pub(super) fn alu(&mut self, width: Width, op: AluOp, dst: Reg, src: Src) {
        let op = match op {
            AluOp::Add => BinOp::Add,
            AluOp::Sub => BinOp::Sub,
            AluOp::Mul => BinOp::Mul,
            AluOp::Div => BinOp::Div,
            AluOp::SDiv => BinOp::SDiv,
            AluOp::Mod => BinOp::Mod,
            AluOp::SMod => BinOp::SMod,
            AluOp::Or => BinOp::Or,
            AluOp::And => BinOp::And,
            AluOp::Xor => BinOp::Xor,
            AluOp::Lsh => BinOp::Shl,
            AluOp::Rsh => BinOp::Shr,
            AluOp::Arsh => BinOp::Sar,
        };
        let b = self.read_src(src);
        let dst = self.cur[dst.index()];
        self.op(Op::Bin { op, width, dst, a: dst, b });
    }

    pub(super) fn end(&mut self, order: ByteOrder, width: EndWidth, dst: Reg) {
        let size = match width {
            EndWidth::B16 => Size::H,
            EndWidth::B32 => Size::W,
            EndWidth::B64 => Size::DW,
        };
        let v = self.cur[dst.index()];
        match (order, size) {
            // Both architectures run little endian: to_le only truncates.
            (ByteOrder::ToLe, Size::DW) => {}
            (ByteOrder::ToLe, Size::B | Size::H | Size::W) => {
                self.op(Op::Ext { width: Width::W64, signed: false, from: size, dst: v, src: v });
            }
            (ByteOrder::ToBe | ByteOrder::Swap, _) => self.op(Op::Bswap { size, dst: v, src: v }),
        }
    }

    pub(super) fn load_imm64(&mut self, dst: Reg, imm: Imm64) {
        let slot = self.span.first;
        let dst = self.write(dst);
        if let Some(user) = self.arena_value(imm) {
            self.op(Op::Mov { width: Width::W64, dst, src: Val::Imm(user as i64) });
            return;
        }
        self.op(match imm {
            Imm64::Const(value) => Op::Mov { width: Width::W64, dst, src: Val::Imm(value as i64) },
            Imm64::Map(map) | Imm64::MapIdx(map) => Op::SymAddr { dst, symbol: Extern::Map(map as u32).symbol() },
            Imm64::MapValue { .. } | Imm64::MapIdxValue { .. } | Imm64::Var(_) => {
                Op::SymAddr { dst, symbol: Extern::Imm64(InsnIdx(slot)).symbol() }
            }
            Imm64::Func(off) => match subprog_at(self.program, slot, off) {
                Some(subprog) => Op::SubprogAddr { dst, subprog },
                None => Op::Mov { width: Width::W64, dst, src: Val::Imm(0) },
            },
        });
    }

    pub(super) fn atomic(&mut self, width: Width, op: BpfAtomicOp, base: Reg, off: i16, src: Reg) {
        let mem = self.atomic_address(width.into(), base, off);
        let (op, fetch) = match op {
            BpfAtomicOp::Add { fetch } => (AtomicOp::Add, fetch),
            BpfAtomicOp::Or { fetch } => (AtomicOp::Or, fetch),
            BpfAtomicOp::And { fetch } => (AtomicOp::And, fetch),
            BpfAtomicOp::Xor { fetch } => (AtomicOp::Xor, fetch),
            BpfAtomicOp::Xchg => (AtomicOp::Xchg, true),
            BpfAtomicOp::CmpXchg => {
                let expected = self.cur[Reg::R0.index()];
                let new = self.read(src);
                let dst = self.write(Reg::R0);
                self.op(Op::CmpXchg { width, mem, expected, new, dst });
                return;
            }
        };
        let operand = self.read(src);
        let fetch = fetch.then(|| self.write(src));
        self.op(Op::Atomic { op, width, mem, src: operand, fetch });
    }

    /// LD_ABS and LD_IND: `at` is the offset into the packet, unsigned 32 bits.
    pub(super) fn packet_load(&mut self, size: Size, at: Val) {
        let exit_zero = match self.exit_zero {
            Some(block) => block,
            None => *{
                let block = self.new_block();
                self.exit_zero.insert(block)
            },
        };
        let bytes = i64::from(size.bytes());
        let len = self.ctx_field(RunCtx::PACKET_LEN_OFFSET);
        let (base, off) = match at {
            Val::Imm(off) => {
                self.op(Op::Branch {
                    width: Width::W64,
                    cond: Cond::Lt,
                    a: len,
                    b: Val::Imm(off + bytes),
                    target: exit_zero,
                });
                self.end_block();
                let packet = self.ctx_field(RunCtx::PACKET_OFFSET);
                match i32::try_from(off) {
                    Ok(off) => (packet, off),
                    Err(_) => {
                        let at = self.fresh();
                        self.op(Op::Bin { op: BinOp::Add, width: Width::W64, dst: at, a: packet, b: Val::Imm(off) });
                        (at, 0)
                    }
                }
            }
            Val::Reg(at) => {
                let end = self.fresh();
                self.op(Op::Bin { op: BinOp::Add, width: Width::W64, dst: end, a: at, b: Val::Imm(bytes) });
                let b_len = Val::Reg(len);
                self.op(Op::Branch { width: Width::W64, cond: Cond::Gt, a: end, b: b_len, target: exit_zero });
                self.end_block();
                let packet = self.ctx_field(RunCtx::PACKET_OFFSET);
                let sum = self.fresh();
                self.op(Op::Bin { op: BinOp::Add, width: Width::W64, dst: sum, a: packet, b: Val::Reg(at) });
                (sum, 0)
            }
        };
        let dst = self.write(Reg::R0);
        let mem = Mem { region: Region::Packet, ..Mem::new(Base::Reg(base), off) };
        self.op(Op::Load { size, signed: false, swap: size != Size::B, dst, mem });
    }

    /// A conditional jump over `off` instructions, to this block. A taken back-edge passes through the checks.
    fn branch(&mut self, width: Width, cond: Cond, a: VReg, src: Val, target: BlockId, off: i16) {
        let mut to = target;
        if off < 0 && (self.options.budget || self.options.interrupt) {
            to = self.new_block();
            self.l.edges.push(Edge { block: to, target, span: self.span });
        }
        self.op(Op::Branch { width, cond, a, b: src, target: to });
    }
}
