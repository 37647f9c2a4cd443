//! The arm64 backend: [`Lir`] in, [`Code`] out.
//!
//! Approach: one pass over the ops, each emitted through dynasm in the fewest instructions its operands allow; branches and labels go through
//! [`Layout`], which chooses between their short and long forms. No op wants fixed registers; operands in slots pass through four scratch
//! registers (`regs`).
//!
//! Invariants: no memory, address or host is touched, so this crate works on any host; an op is correct wherever the allocation put its operands,
//! and whichever of them share a register; flags never live from one op to the next; no immediate reaches dynasm unchecked. docs/abi.md
//! describes the machine ABI.
#![forbid(unsafe_code)]

mod asm;
mod bound;
mod frame;
mod jump;
mod lower;
mod regs;
mod tail_call;

use crate::frame::Frame;
use crate::jump::Jump;
use crate::lower::Stub;
use crate::regs::{ARGS, CTX};
use crate::tail_call::PendingTailCall;
use bpf_isa::SubprogId;
use bpf_jit::{
    Alloc, Backend, BlockId, CallTarget, EmitError, EmitOptions, Func, HostRegSet, Lir, Loc, MachineDesc, Move,
    MoveSrc, Op, VReg,
};
use bpf_jit_code::layout::{Label, Layout};
use bpf_jit_code::unwind::room;
use bpf_jit_code::{Code, PcEntry, StopCode, Unwind, UnwindOp};

pub use crate::bound::{func_size_bound, program_size_bound, size_bound};

/// The arm64 emitter, with the scratch memory it reuses from program to program.
#[derive(Debug, Default)]
pub struct Arm64 {
    /// The code with every branch in its long form.
    buf: Vec<u8>,
    layout: Layout<Jump>,
    moves: Vec<Move>,
    stubs: Vec<Stub>,
    tail_calls: Vec<PendingTailCall>,
    /// Whether each function's address is taken.
    address_taken: Vec<bool>,
}

/// Labels that all functions of a program share.
#[derive(Clone, Copy, Debug)]
struct Shared {
    /// First of the functions' entries.
    entries: Label,
    /// First of the stop sequences.
    stops: Label,
}

/// Every reason to stop, in the order of their labels.
const STOPS: [StopCode; 4] = [StopCode::Budget, StopCode::Interrupted, StopCode::Access, StopCode::Host];

impl Backend for Arm64 {
    fn machine(&self, _: &EmitOptions) -> &'static MachineDesc {
        &regs::MACHINE
    }

    fn emit(&mut self, lir: &Lir, allocs: &[Alloc], options: &EmitOptions, code: &mut Code) -> Result<(), EmitError> {
        self.buf.clear();
        self.layout.clear();
        self.tail_calls.clear();
        self.find_address_taken(lir)?;
        let entries = self.layout.labels(lir.funcs.len() as u32);
        let shared = Shared { entries, stops: self.layout.labels(STOPS.len() as u32) };
        let mut stops = [false; STOPS.len()];
        for (i, func) in lir.funcs.iter().enumerate() {
            let alloc = allocs.get(i).ok_or(EmitError::Internal("a function without an allocation"))?;
            let scan = Scan::of(lir, func, alloc)?;
            for (used, code) in stops.iter_mut().zip(STOPS) {
                *used |= scan.stops & 1 << code as u32 != 0;
            }
            let indirect = i == 0 || self.address_taken[i];
            let frame = Frame::new(func, alloc, options, scan.calls, indirect)?;
            code.frame_bytes.push(frame.total());
            let blocks = self.layout.labels(func.blocks.len() as u32);
            let epilogue = self.layout.label();
            let notes = code.unwind.len();
            Emitter {
                s: self,
                code,
                options,
                func,
                alloc,
                frame,
                shared,
                blocks,
                epilogue,
                last_exit: scan.last_exit,
                block: 0,
                op: 0,
                insn: u32::MAX,
            }
            .function(Label(entries.0 + i as u32))?;
            if options.unwind_room {
                code.unwind.push(Unwind { at: self.buf.len() as u32, op: UnwindOp::End });
                // udf #0.
                self.buf.resize(self.buf.len() + room(code.unwind.len() - notes), 0);
            }
        }
        if options.unwind {
            code.unwind.push(Unwind { at: self.buf.len() as u32, op: UnwindOp::Outside });
        }
        for (i, code) in STOPS.into_iter().enumerate().filter(|(i, _)| stops[*i]) {
            self.layout.bind(&self.buf, Label(shared.stops.0 + i as u32));
            lower::stop_sequence(&mut self.buf, code);
        }
        self.finish(lir, entries, code)
    }
}

impl Arm64 {
    fn find_address_taken(&mut self, lir: &Lir) -> Result<(), EmitError> {
        self.address_taken.clear();
        self.address_taken.resize(lir.funcs.len(), false);
        for op in lir.funcs.iter().flat_map(|f| &f.ops) {
            if let Op::SubprogAddr { subprog, .. } = op {
                let taken = self.address_taken.get_mut(subprog.index());
                *taken.ok_or(EmitError::Internal("the address of a subprogram that does not exist"))? = true;
            }
        }
        Ok(())
    }

    /// Moves the code together and tells where things came to lie.
    fn finish(&mut self, lir: &Lir, entries: Label, code: &mut Code) -> Result<(), EmitError> {
        let Code { bytes, relocs, pc_map, unwind, .. } = code;
        self.layout.finish(
            &self.buf,
            bytes,
            &mut [
                &mut relocs.iter_mut().map(|r| &mut r.at),
                &mut pc_map.iter_mut().map(|p| &mut p.code),
                &mut unwind.iter_mut().map(|u| &mut u.at),
            ],
        )?;
        for i in 0..lir.funcs.len() as u32 {
            let entry = self.layout.offset(Label(entries.0 + i));
            code.entries.push(entry.ok_or(EmitError::Internal("a function's entry is unbound"))?);
        }
        for site in &self.tail_calls {
            code.tail_calls.push(site.resolve(&self.layout)?);
        }
        Ok(())
    }
}

/// What must be known of a function before it is emitted. Also the check that the function and its allocation refer only to what
/// exists, so that nothing after it can fail.
struct Scan {
    calls: bool,
    /// Index of the last exit, which gets the epilogue.
    last_exit: usize,
    /// Bit set of the reasons for which it may stop.
    stops: u32,
}

impl Scan {
    fn of(lir: &Lir, func: &Func, alloc: &Alloc) -> Result<Scan, EmitError> {
        let check = |ok: bool, what| if ok { Ok(()) } else { Err(EmitError::Internal(what)) };
        check(alloc.locs.len() >= func.vregs as usize, "a value without a location")?;
        check(func.spans.len() >= func.ops.len(), "an op without a source")?;
        let params = func.params.iter().chain([&func.ctx]).flatten();
        check(params.into_iter().all(|v| v.0 < func.vregs), "a parameter that does not exist")?;
        let saved = HostRegSet(alloc.saves.iter().fold(0, |set, r| set | 1 << (r.0 & 31)));
        let allowed = regs::POOL_SET.without(HostRegSet::of(&regs::CALLEE_SAVED)).union(saved);
        for loc in &alloc.locs {
            check(
                match loc {
                    Loc::Reg(reg) => reg.0 < 32 && allowed.contains(*reg),
                    Loc::Slot(index) => *index < alloc.slots,
                },
                "a value in a register that is not in the pool or not saved, or in a slot that does not exist",
            )?;
        }
        for block in &func.blocks {
            check(block.ops.start <= block.ops.end && block.ops.end as usize <= func.ops.len(), "a block without ops")?;
        }
        let mut scan = Scan { calls: false, last_exit: usize::MAX, stops: 0 };
        for (i, op) in func.ops.iter().enumerate() {
            let mut known = true;
            op.for_each_use(|v| known &= v.0 < func.vregs);
            known &= op.def().is_none_or(|v| v.0 < func.vregs);
            check(known, "an op with a value that does not exist")?;
            match *op {
                Op::Call { target, .. } => {
                    scan.calls = true;
                    if let CallTarget::Subprog(subprog) = target {
                        check(subprog.index() < lir.funcs.len(), "a call of a subprogram that does not exist")?;
                    }
                }
                Op::Jump { target } | Op::Branch { target, .. } => {
                    check(target.index() < func.blocks.len(), "a branch to a block that does not exist")?;
                }
                Op::Exit { .. } => scan.last_exit = i,
                Op::Check { check, .. } => scan.stops |= 1 << lower::stop_code(check) as u32,
                Op::Bound { .. } => scan.stops |= 1 << StopCode::Access as u32,
                Op::Stop { code, .. } => scan.stops |= 1 << code as u32,
                Op::Mov { .. }
                | Op::Ext { .. }
                | Op::Bin { .. }
                | Op::Neg { .. }
                | Op::Bswap { .. }
                | Op::AddShift { .. }
                | Op::Select { .. }
                | Op::FrameAddr { .. }
                | Op::SymAddr { .. }
                | Op::SubprogAddr { .. }
                | Op::Load { .. }
                | Op::Store { .. }
                | Op::LoadAcquire { .. }
                | Op::StoreRelease { .. }
                | Op::Atomic { .. }
                | Op::CmpXchg { .. }
                | Op::TailCall { .. } => {}
            }
        }
        Ok(scan)
    }
}

/// One function being emitted.
struct Emitter<'a> {
    s: &'a mut Arm64,
    code: &'a mut Code,
    options: &'a EmitOptions,
    func: &'a Func,
    alloc: &'a Alloc,
    frame: Frame,
    shared: Shared,
    /// First of the blocks' labels.
    blocks: Label,
    epilogue: Label,
    /// Index of the exit that gets the epilogue.
    last_exit: usize,
    /// The block being emitted.
    block: u32,
    /// Index of the op being emitted.
    op: usize,
    /// The instruction it came from.
    insn: u32,
}

impl Emitter<'_> {
    fn function(mut self, entry: Label) -> Result<(), EmitError> {
        self.s.layout.bind(&self.s.buf, entry);
        self.unwind_note(UnwindOp::Function);
        self.enter();
        self.params();
        let func = self.func;
        for (i, block) in func.blocks.iter().enumerate() {
            self.block = i as u32;
            self.s.layout.bind(&self.s.buf, Label(self.blocks.0 + i as u32));
            for op in block.ops.start as usize..block.ops.end as usize {
                self.op = op;
                self.at_insn(func.spans[op].first);
                let start = self.s.buf.len();
                self.op(&func.ops[op]);
                debug_assert!(self.s.buf.len() - start <= size_bound(&func.ops[op]), "{:?}", func.ops[op]);
            }
            if self.s.buf.len() > i32::MAX as usize {
                return Err(EmitError::TooLarge);
            }
        }
        self.stubs();
        Ok(())
    }

    /// Moves the parameters to where they live: first those whose home is a slot, since that overwrites no register.
    fn params(&mut self) {
        let params = self.func.params.into_iter().zip(ARGS).chain([(self.func.ctx, CTX)]);
        for (v, reg) in params {
            let Some(v) = v else { continue };
            match self.loc(v) {
                Loc::Slot(_) => self.put(v, reg),
                Loc::Reg(home) => self.s.moves.push(Move { dst: home, src: MoveSrc::Loc(Loc::Reg(reg.into())) }),
            }
        }
        self.queued_moves();
    }

    /// Notes a change of the frame, if anybody wants to know.
    fn unwind_note(&mut self, op: UnwindOp) {
        if self.options.unwind {
            self.code.unwind.push(Unwind { at: self.s.buf.len() as u32, op });
        }
    }

    /// Notes that what follows comes from instruction `insn`.
    fn at_insn(&mut self, insn: u32) {
        if self.insn != insn {
            self.insn = insn;
            self.code.pc_map.push(PcEntry { code: self.s.buf.len() as u32, insn });
        }
    }

    fn loc(&self, v: VReg) -> Loc {
        self.alloc.loc(v)
    }

    /// Emits an instruction that names a place.
    fn go(&mut self, jump: Jump, to: Label) {
        self.s.layout.branch(&mut self.s.buf, jump, to);
    }

    fn block_label(&self, block: BlockId) -> Label {
        Label(self.blocks.0 + block.0)
    }

    fn entry_label(&self, subprog: SubprogId) -> Label {
        Label(self.shared.entries.0 + subprog.0)
    }

    fn stop_label(&self, code: StopCode) -> Label {
        let index = STOPS.iter().position(|c| *c == code).unwrap_or(0);
        Label(self.shared.stops.0 + index as u32)
    }

    /// Whether `block` is the one that follows in the code.
    fn is_next(&self, block: BlockId) -> bool {
        block.0 == self.block + 1
    }
}
