//! The x86-64 backend: [`bpf_jit::Lir`] in, [`Code`] out.
//!
//! Approach: one pass over the ops, each emitted through dynasm in the shortest form its operands allow (`asm`); branches and labels go
//! through [`Layout`], which chooses between their short and long forms. Where an op wants fixed registers (`regs`), operands in the
//! preferred places cost nothing, and any others are moved through the scratch registers r10 and r11.
//!
//! Invariants: no memory, address or host is touched, so this crate works on any host; an op is correct wherever the allocation put its operands,
//! and whichever of them share a register; flags never live from one op to the next. docs/abi.md describes the machine ABI.
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
use crate::tail_call::PendingTailCall;
use bpf_isa::SubprogId;
use bpf_jit::{Alloc, Backend, BlockId, BlockLabels, EmitError, EmitOptions, MachineDesc, Move, Op, Shape};
use bpf_jit_code::layout::{Label, Layout};
use bpf_jit_code::unwind::room;
use bpf_jit_code::{Code, PcEntry, Unwind, UnwindOp};

pub use crate::bound::{func_size_bound, program_size_bound, size_bound};

/// The x86-64 emitter, with the scratch memory it reuses from program to program.
#[derive(Debug, Default)]
pub struct X64 {
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
    /// The retpoline of this code.
    thunk: Option<Label>,
}

impl Backend for X64 {
    fn machine(&self, options: &EmitOptions) -> &'static MachineDesc {
        regs::machine(&options.features)
    }

    type Emitter<'a> = Emitter<'a>;

    fn begin(&mut self, functions: usize) {
        self.buf.clear();
        self.layout.clear();
        self.stubs.clear();
        self.tail_calls.clear();
        self.stops = [None; 4];
        self.thunk = None;
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
        let machine = self.machine(options);
        let frame = Frame::plan(shape, alloc, options.save_all);
        code.frame_bytes.push(frame.bytes);
        self.blocks.begin(shape, &mut self.layout);
        let notes = code.unwind.len();
        let mut emitter =
            Emitter { s: self, code, machine, options, alloc, frame, epilogue: None, insn: u32::MAX, notes };
        emitter.enter(shape);
        Ok(emitter)
    }

    fn finish(&mut self, options: &EmitOptions, code: &mut Code) -> Result<(), EmitError> {
        if options.unwind {
            code.unwind.push(Unwind { at: self.buf.len() as u32, op: UnwindOp::Outside });
        }
        self.stop_sequences(options);
        self.retpoline();
        self.place(code)
    }
}

impl X64 {
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
    s: &'a mut X64,
    code: &'a mut Code,
    machine: &'a MachineDesc,
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
            // int3.
            s.buf.resize(s.buf.len() + room(code.unwind.len() - notes), 0xcc);
        }
        if s.buf.len() > i32::MAX as usize { Err(EmitError::TooLarge) } else { Ok(()) }
    }
}

impl Emitter<'_> {
    /// Everything before the first op.
    fn enter(&mut self, shape: &Shape) {
        let entry = self.s.entry(shape.id);
        self.s.layout.bind(&self.s.buf, entry);
        self.unwind_note(UnwindOp::Function);
        let indirect = shape.id.0 == 0 || shape.address_taken;
        if indirect && self.options.hardening.landing_pads {
            // endbr64, which dynasm does not know.
            self.s.buf.extend_from_slice(&[0xf3, 0x0f, 0x1e, 0xfa]);
        }
        self.prologue(shape);
    }

    fn block_label(&self, block: BlockId) -> Label {
        self.s.blocks.label(block)
    }

    /// Notes a change of the frame, if anybody wants to know.
    fn unwind_note(&mut self, op: UnwindOp) {
        if self.options.unwind {
            self.code.unwind.push(Unwind { at: self.s.buf.len() as u32, op });
        }
    }

    /// Notes that the code from here on was made from this instruction.
    fn mark(&mut self, insn: u32) {
        if self.options.pc_map && self.insn != insn {
            self.code.pc_map.push(PcEntry { code: self.s.buf.len() as u32, insn });
        }
        self.insn = insn;
    }
}
