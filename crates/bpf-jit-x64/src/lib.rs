//! The x86-64 backend: [`Lir`] in, [`Code`] out.
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
use bpf_jit::{Alloc, Backend, BlockId, EmitError, EmitOptions, Func, Lir, MachineDesc, Move, Op};
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
    /// Whether each function's address is taken.
    address_taken: Vec<bool>,
    /// Where the runs of this code stop, by reason.
    stops: [Option<Label>; 4],
    /// The retpoline of this code.
    thunk: Option<Label>,
}

impl Backend for X64 {
    fn machine(&self, options: &EmitOptions) -> &'static MachineDesc {
        regs::machine(&options.features)
    }

    fn emit(&mut self, lir: &Lir, allocs: &[Alloc], options: &EmitOptions, code: &mut Code) -> Result<(), EmitError> {
        self.begin(lir);
        let machine = self.machine(options);
        for (i, func) in lir.funcs.iter().enumerate() {
            let alloc = allocs.get(i).ok_or(EmitError::Internal("a function without an allocation"))?;
            let frame = Frame::plan(func, alloc, options.save_all);
            code.frame_bytes.push(frame.bytes);
            let blocks = self.layout.labels(func.blocks.len() as u32);
            let s = &mut *self;
            let code = &mut *code;
            let notes = code.unwind.len();
            Emitter { s, code, machine, options, func, alloc, frame, blocks, epilogue: None, insn: 0 }
                .function(SubprogId(i as u32));
            if options.unwind_room {
                code.unwind.push(Unwind { at: self.buf.len() as u32, op: UnwindOp::End });
                // int3.
                self.buf.resize(self.buf.len() + room(code.unwind.len() - notes), 0xcc);
            }
            if self.buf.len() > i32::MAX as usize {
                return Err(EmitError::TooLarge);
            }
        }
        if options.unwind {
            code.unwind.push(Unwind { at: self.buf.len() as u32, op: UnwindOp::Outside });
        }
        self.stop_sequences(options);
        self.retpoline();
        self.finish(lir, code)
    }
}

impl X64 {
    fn begin(&mut self, lir: &Lir) {
        self.buf.clear();
        self.layout.clear();
        self.stubs.clear();
        self.tail_calls.clear();
        self.stops = [None; 4];
        self.thunk = None;
        self.address_taken.clear();
        self.address_taken.resize(lir.funcs.len(), false);
        for op in lir.funcs.iter().flat_map(|f| &f.ops) {
            if let Op::SubprogAddr { subprog, .. } = op
                && let Some(taken) = self.address_taken.get_mut(subprog.0 as usize)
            {
                *taken = true;
            }
        }
        // The first labels are the functions' entries, so that each is known by its number.
        self.layout.labels(lir.funcs.len() as u32);
    }

    /// The label of a function's entry.
    fn entry(&self, subprog: SubprogId) -> Label {
        Label(subprog.0)
    }

    /// Chooses the branches' forms and reports where everything came to lie.
    fn finish(&mut self, lir: &Lir, code: &mut Code) -> Result<(), EmitError> {
        let Code { bytes, relocs, pc_map, unwind, .. } = code;
        let marks: &mut [&mut dyn Iterator<Item = &mut u32>] = &mut [
            &mut relocs.iter_mut().map(|r| &mut r.at),
            &mut pc_map.iter_mut().map(|e| &mut e.code),
            &mut unwind.iter_mut().map(|u| &mut u.at),
        ];
        self.layout.finish(&self.buf, bytes, marks)?;
        for i in 0..lir.funcs.len() {
            let entry = self.layout.offset(self.entry(SubprogId(i as u32)));
            code.entries.push(entry.ok_or(EmitError::Internal("a function without an entry"))?);
        }
        for site in &self.tail_calls {
            code.tail_calls.push(site.resolve(&self.layout)?);
        }
        Ok(())
    }
}

/// One function being emitted.
struct Emitter<'a> {
    s: &'a mut X64,
    code: &'a mut Code,
    machine: &'a MachineDesc,
    options: &'a EmitOptions,
    func: &'a Func,
    alloc: &'a Alloc,
    frame: Frame,
    /// Label of block 0; the others follow.
    blocks: Label,
    /// The epilogue that exits share, if it is too long to be repeated.
    epilogue: Option<Label>,
    /// The BPF instruction being emitted.
    insn: u32,
}

impl Emitter<'_> {
    fn function(&mut self, id: SubprogId) {
        let entry = self.s.entry(id);
        self.s.layout.bind(&self.s.buf, entry);
        self.unwind_note(UnwindOp::Function);
        let indirect = id.0 == 0 || self.s.address_taken.get(id.0 as usize) == Some(&true);
        if indirect && self.options.hardening.landing_pads {
            // endbr64, which dynasm does not know.
            self.s.buf.extend_from_slice(&[0xf3, 0x0f, 0x1e, 0xfa]);
        }
        self.prologue();
        let func = self.func;
        for (i, block) in func.blocks.iter().enumerate() {
            let label = self.block_label(BlockId(i as u32));
            self.s.layout.bind(&self.s.buf, label);
            let ops = block.ops.start as usize..block.ops.end as usize;
            for (op, span) in func.ops[ops.clone()].iter().zip(&func.spans[ops]) {
                self.mark(span.first);
                let start = self.s.buf.len();
                self.op(op, BlockId(i as u32 + 1));
                debug_assert!(self.s.buf.len() - start <= size_bound(op), "{op:?}");
            }
        }
        self.stubs();
    }

    fn block_label(&self, block: BlockId) -> Label {
        Label(self.blocks.0 + block.0)
    }

    /// Notes a change of the frame, if anybody wants to know.
    fn unwind_note(&mut self, op: UnwindOp) {
        if self.options.unwind {
            self.code.unwind.push(Unwind { at: self.s.buf.len() as u32, op });
        }
    }

    /// Notes that the code from here on was made from this instruction.
    fn mark(&mut self, insn: u32) {
        if self.insn != insn || self.code.pc_map.is_empty() {
            self.insn = insn;
            self.code.pc_map.push(PcEntry { code: self.s.buf.len() as u32, insn });
        }
    }
}
