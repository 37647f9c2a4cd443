//! The arm64 backend: [`bpf_jit::Lir`] in, [`Code`] out.
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
    Alloc, Backend, BlockId, BlockLabels, EmitError, EmitOptions, Loc, MachineDesc, Move, MoveSrc, Op, Shape, VReg,
};
use bpf_jit_code::layout::{Label, Layout};
use bpf_jit_code::unwind::room;
use bpf_jit_code::{Code, PcEntry, Unwind, UnwindOp};

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
    /// Functions of the program.
    functions: u32,
    /// Labels of the present function's blocks.
    blocks: BlockLabels,
    /// Where the runs of this code stop, by reason.
    stops: [Option<Label>; 4],
}

impl Backend for Arm64 {
    type Emitter<'a> = Emitter<'a>;

    fn machine(&self, _: &EmitOptions) -> &'static MachineDesc {
        &regs::MACHINE
    }

    fn begin(&mut self, functions: usize) {
        self.buf.clear();
        self.layout.clear();
        self.stubs.clear();
        self.tail_calls.clear();
        self.stops = [None; 4];
        self.functions = functions as u32;
        // The first labels are the functions' entries, so that each is known by its number.
        self.layout.labels(self.functions);
    }

    #[inline]
    fn function<'a>(
        &'a mut self,
        shape: &Shape,
        alloc: &'a Alloc,
        options: &'a EmitOptions,
        code: &'a mut Code,
    ) -> Result<Emitter<'a>, EmitError> {
        let frame = Frame::new(shape, alloc, options)?;
        code.frame_bytes.push(frame.total());
        self.blocks.begin(shape, &mut self.layout);
        let notes = code.unwind.len();
        let mut emitter = Emitter { s: self, code, options, alloc, frame, epilogue: None, insn: u32::MAX, notes };
        emitter.start(shape);
        Ok(emitter)
    }

    fn finish(&mut self, options: &EmitOptions, code: &mut Code) -> Result<(), EmitError> {
        if options.unwind {
            code.unwind.push(Unwind { at: self.buf.len() as u32, op: UnwindOp::Outside });
        }
        self.stop_sequences();
        self.place(code)
    }
}

impl Arm64 {
    /// The label of a function's entry.
    fn entry(&self, subprog: SubprogId) -> Label {
        Label(subprog.0)
    }

    /// Chooses the branches' forms and reports where everything came to lie.
    fn place(&mut self, code: &mut Code) -> Result<(), EmitError> {
        self.layout.finish(&self.buf, &mut code.bytes)?;
        self.layout.relocate(code.relocs.iter_mut().map(|r| &mut r.at));
        self.layout.relocate(code.pc_map.iter_mut().map(|e| &mut e.code));
        self.layout.relocate(code.unwind.iter_mut().map(|u| &mut u.at));
        for i in 0..self.functions {
            let entry = self.layout.offset(self.entry(SubprogId(i)));
            code.entries.push(entry.ok_or(EmitError::Internal("a function without an entry"))?);
        }
        for site in &self.tail_calls {
            code.tail_calls.push(site.resolve(&self.layout)?);
        }
        Ok(())
    }
}

/// One function being emitted.
#[derive(Debug)]
pub struct Emitter<'a> {
    s: &'a mut Arm64,
    code: &'a mut Code,
    options: &'a EmitOptions,
    alloc: &'a Alloc,
    frame: Frame,
    /// The epilogue that exits share, if it is too long to be repeated.
    epilogue: Option<Label>,
    /// The BPF instruction being emitted.
    insn: u32,
    /// How many notes on frames there were before.
    notes: usize,
}

impl bpf_jit::Emitter for Emitter<'_> {
    #[inline(always)]
    fn op(&mut self, op: &Op, insn: u32, next: BlockId) {
        self.mark(insn);
        let start = self.s.buf.len();
        self.lower(op, next);
        debug_assert!(self.s.buf.len() - start <= size_bound(op), "{op:?}");
    }

    fn new_block(&mut self) -> BlockId {
        self.s.blocks.add(&mut self.s.layout)
    }

    #[inline]
    fn begin_block(&mut self, block: BlockId) {
        let label = self.block_label(block);
        self.s.layout.bind(&self.s.buf, label);
    }

    fn finish(mut self) -> Result<(), EmitError> {
        self.stubs();
        let Emitter { s, code, options, notes, .. } = self;
        if options.unwind_room {
            code.unwind.push(Unwind { at: s.buf.len() as u32, op: UnwindOp::End });
            // udf #0.
            s.buf.resize(s.buf.len() + room(code.unwind.len() - notes), 0);
        }
        if s.buf.len() > i32::MAX as usize { Err(EmitError::TooLarge) } else { Ok(()) }
    }
}

impl Emitter<'_> {
    /// Everything before the first op.
    fn start(&mut self, shape: &Shape) {
        let entry = self.s.entry(shape.id);
        self.s.layout.bind(&self.s.buf, entry);
        self.unwind_note(UnwindOp::Function);
        self.enter();
        self.params(shape);
    }

    /// Moves the parameters to where they live: first those whose home is a slot, since that overwrites no register.
    fn params(&mut self, shape: &Shape) {
        let params = shape.params.into_iter().zip(ARGS).chain([(shape.ctx, CTX)]);
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
    fn mark(&mut self, insn: u32) {
        if self.options.pc_map && self.insn != insn {
            self.code.pc_map.push(PcEntry { code: self.s.buf.len() as u32, insn });
        }
        self.insn = insn;
    }

    fn loc(&self, v: VReg) -> Loc {
        self.alloc.loc(v)
    }

    /// Emits an instruction that names a place.
    fn go(&mut self, jump: Jump, to: Label) {
        self.s.layout.branch(&mut self.s.buf, jump, to);
    }

    fn block_label(&self, block: BlockId) -> Label {
        self.s.blocks.label(block)
    }
}
