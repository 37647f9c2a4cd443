//! The lowering of instructions other than calls.

use super::func::FuncLowerer;
use super::func::Sink;
use super::{Edge, subprog_at};
use bpf_analysis::{BlockId as BpfBlock, Facts, HeaderPlaces};
use bpf_isa::{
    AluOp, AtomicOp as BpfAtomicOp, ByteOrder, Cond, EndWidth, Imm64, Insn, InsnIdx, Reg, Size, Src, SxWidth, Width,
};
use bpf_jit_code::{RunCtx, StopCode};
use bpf_lir::Extern;
use bpf_lir::{AtomicOp, Base, BinOp, BlockId, Mem, Op, Region, VReg, Val};
use bpf_uapi::legacy_load::{LegacyBase, NO_HEADER, SKF_LL_OFF, SKF_NET_OFF};

/// The position of the header that the offset of a packet load counts from.
#[derive(Clone, Copy)]
enum Header {
    /// This many bytes from the packet's start.
    At(i32),
    /// The number of bytes in the `i32` at this offset of the context.
    Noted(u32),
}

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
                let mem = self.address(size, base, off);
                let dst = self.write(dst);
                self.op(Op::Load { size, signed: sign, swap: false, dst, mem });
            }
            Insn::Store { size, base, off, src } => {
                self.check_access(size, base, off);
                let src = self.read_src(src);
                let mem = self.address(size, base, off);
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
            Insn::LoadAbs { size, imm } => self.load_abs(size, imm.cast_unsigned()),
            Insn::LoadInd { size, src, imm } => self.load_ind(size, src, imm),
            Insn::Jump { off, .. } => {
                if let (Some(target), _) = S::ways(self, b, off) {
                    self.jump(target, off);
                }
            }
            Insn::JumpReg { target } => self.jump_register(target),
            Insn::JumpIf { width, cond, dst, src, off } => match S::ways(self, b, off.into()) {
                // The verifier has proven the other way unreachable.
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
                // The counter is decremented on the way that falls through, in a block of its own.
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

    /// Emits a jump over `off` instructions to this block.
    fn jump(&mut self, target: BlockId, off: i32) {
        if off < 0 {
            self.checks(InsnIdx(self.span.first).jump(off));
        }
        self.op(Op::Jump { target });
    }

    /// Emits an indirect jump as a binary search: comparisons of the number in the register with the numbers of the
    /// possible targets. Any other number stops the run. There is no indirect branch to protect.
    fn jump_register(&mut self, reg: Reg) {
        let (program, facts) = (self.program, self.facts);
        let (number, ctx) = (self.read(reg), self.ctx());
        let targets = program.indirect_targets(self.sub);
        // Comparisons and the stop lie between this instruction and the next, so no target can be fallen into.
        self.next = BlockId(u32::MAX);
        let stop = self.new_block();
        self.search(number, targets, facts, stop);
        self.begin_block(stop);
        self.op(Op::Stop { code: StopCode::Target, ctx });
    }

    /// Emits the search for the number among these targets; control goes to `stop` if none has it.
    fn search(&mut self, number: VReg, targets: &[InsnIdx], facts: &Facts, stop: BlockId) {
        /// At most this many targets are compared one after the other.
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
                self.l.edges.push(Edge { block: through, target: to, span: self.span, head: Some(*target) });
                to = through;
            }
            self.compare(Cond::Eq, number, *target, to);
        }
        self.op(Op::Jump { target: stop });
        self.end_block();
    }

    /// Emits a branch to `target` if the number is in this relation to that of the instruction.
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
            // Both architectures run little endian, so to_le only truncates.
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

    /// LD_ABS: the header that the offset counts from is known at load time.
    fn load_abs(&mut self, size: Size, offset: u32) {
        let Some((base, off)) = LegacyBase::split(offset) else {
            // This offset lies behind the end of every packet.
            return self.load_at(size, NO_HEADER.cast_unsigned());
        };
        let (place, len) = match self.header(base) {
            Header::At(start) => return self.load_at(size, off.saturating_add(start.cast_unsigned())),
            Header::Noted(place) => (place, self.ctx_field(RunCtx::PACKET_LEN_OFFSET)),
        };
        let (at, end) = (self.fresh(), self.fresh());
        self.noted(place, at);
        let bytes = Val::Imm(i64::from(off + size.bytes()));
        self.op(Op::Bin { op: BinOp::Add, width: Width::W64, dst: end, a: at, b: bytes });
        let (b, target) = (Val::Reg(len), self.exit_zero());
        self.op(Op::Branch { width: Width::W64, cond: Cond::SGt, a: end, b, target });
        self.end_block();
        let packet = self.ctx_field(RunCtx::PACKET_OFFSET);
        self.op(Op::Bin { op: BinOp::Add, width: Width::W64, dst: at, a: packet, b: Val::Reg(at) });
        self.packet_value(size, at, off.cast_signed());
    }

    /// Loads from a constant position in the packet.
    fn load_at(&mut self, size: Size, off: u32) {
        let b = Val::Imm(i64::from(off) + i64::from(size.bytes()));
        let (len, target) = (self.ctx_field(RunCtx::PACKET_LEN_OFFSET), self.exit_zero());
        self.op(Op::Branch { width: Width::W64, cond: Cond::Lt, a: len, b, target });
        self.end_block();
        let packet = self.ctx_field(RunCtx::PACKET_OFFSET);
        // If the offset does not fit, the comparison above always fails, and this load is never run.
        self.packet_value(size, packet, i32::try_from(off).unwrap_or(0));
    }

    /// LD_IND. An offset behind the packet's end may be a negative number, which counts from a header.
    fn load_ind(&mut self, size: Size, src: Reg, imm: i32) {
        const LINK: Val = Val::Imm(SKF_LL_OFF.cast_unsigned() as i64);
        const NETWORK: Val = Val::Imm(SKF_NET_OFF.cast_unsigned() as i64);
        let bytes = Val::Imm(size.bytes().into());
        let src = self.read(src);
        let (at, end) = (self.fresh(), self.fresh());
        self.op(Op::Bin { op: BinOp::Add, width: Width::W32, dst: at, a: src, b: Val::Imm(imm.into()) });
        let len = self.ctx_field(RunCtx::PACKET_LEN_OFFSET);
        self.op(Op::Bin { op: BinOp::Add, width: Width::W64, dst: end, a: at, b: bytes });
        let b = Val::Reg(len);
        let inside = self.new_block();
        self.op(Op::Branch { width: Width::W64, cond: Cond::Le, a: end, b, target: inside });
        self.end_block();
        let target = self.exit_zero();
        self.op(Op::Branch { width: Width::W64, cond: Cond::Lt, a: at, b: LINK, target });
        self.end_block();
        if let Header::At(NO_HEADER) = self.header(LegacyBase::Network) {
            self.op(Op::Branch { width: Width::W64, cond: Cond::Ge, a: at, b: NETWORK, target });
            self.end_block();
            self.count_from(LegacyBase::Link, LINK, at);
        } else {
            let (link, join) = (self.new_block(), self.new_block());
            self.op(Op::Branch { width: Width::W64, cond: Cond::Lt, a: at, b: NETWORK, target: link });
            self.end_block();
            self.count_from(LegacyBase::Network, NETWORK, at);
            self.op(Op::Jump { target: join });
            self.end_block();
            self.begin_block(link);
            self.count_from(LegacyBase::Link, LINK, at);
            self.end_block();
            self.begin_block(join);
        }
        self.op(Op::Bin { op: BinOp::Add, width: Width::W64, dst: end, a: at, b: bytes });
        self.op(Op::Branch { width: Width::W64, cond: Cond::SGt, a: end, b, target });
        self.end_block();
        self.begin_block(inside);
        let packet = self.ctx_field(RunCtx::PACKET_OFFSET);
        self.op(Op::Bin { op: BinOp::Add, width: Width::W64, dst: at, a: packet, b: Val::Reg(at) });
        self.packet_value(size, at, 0);
    }

    /// Loads the bytes at this address, which are in network byte order, into r0.
    fn packet_value(&mut self, size: Size, at: VReg, off: i32) {
        let dst = self.write(Reg::R0);
        let mem = Mem { region: Region::Packet, ..Mem::new(Base::Reg(at), off) };
        self.op(Op::Load { size, signed: false, swap: size != Size::B, dst, mem });
    }

    /// Converts an offset that counts from a header, whose first byte has the offset `first`, to bytes from the
    /// packet's start.
    fn count_from(&mut self, base: LegacyBase, first: Val, at: VReg) {
        self.op(Op::Bin { op: BinOp::Sub, width: Width::W64, dst: at, a: at, b: first });
        let b = match self.header(base) {
            Header::At(0) => return,
            Header::At(start) => Val::Imm(start.into()),
            Header::Noted(place) => {
                let start = self.fresh();
                self.noted(place, start);
                Val::Reg(start)
            }
        };
        self.op(Op::Bin { op: BinOp::Add, width: Width::W64, dst: at, a: at, b });
    }

    /// Loads a header's position from the run's context.
    fn noted(&mut self, place: u32, dst: VReg) {
        let context = self.ctx_field(RunCtx::CONTEXT_OFFSET);
        let mem = Mem::new(Base::Reg(context), place.cast_signed());
        self.op(Op::Load { size: Size::W, signed: true, swap: false, dst, mem });
    }

    /// Returns where a header is.
    fn header(&self, base: LegacyBase) -> Header {
        match (base, self.facts.headers) {
            (LegacyBase::Packet, _) | (LegacyBase::Link, HeaderPlaces::LinkFirst) => Header::At(0),
            (LegacyBase::Network, HeaderPlaces::LinkFirst) => Header::At(NO_HEADER),
            (LegacyBase::Link, HeaderPlaces::Context { link, .. }) => Header::Noted(link),
            (LegacyBase::Network, HeaderPlaces::Context { network, .. }) => Header::Noted(network),
        }
    }

    /// Returns the block that packet loads out of range jump to.
    fn exit_zero(&mut self) -> BlockId {
        match self.exit_zero {
            Some(block) => block,
            None => {
                let block = self.new_block();
                *self.exit_zero.insert(block)
            }
        }
    }

    /// Emits a conditional jump over `off` instructions to this block. A taken backward edge passes through the checks.
    fn branch(&mut self, width: Width, cond: Cond, a: VReg, src: Val, target: BlockId, off: i16) {
        let mut to = target;
        if off < 0 && (self.options.budget || self.options.interrupt) {
            to = self.new_block();
            let head = InsnIdx(self.span.first).jump(off.into());
            self.l.edges.push(Edge { block: to, target, span: self.span, head });
        }
        self.op(Op::Branch { width, cond, a, b: src, target: to });
    }
}
