//! The arm64 backend: [`bpf_jit::Lir`] in, [`Code`] out.
//!
//! Approach: one pass over the ops, each emitted through dynasm in the fewest instructions its operands allow; branches
//! and labels go through `bpf_jit_code::Layout`, which chooses between their short and long forms. No op wants fixed
//! registers; operands in slots pass through four scratch registers (`regs`).
//!
//! Invariants: no memory, address or host is touched, so this crate works on any host; an op is correct wherever the
//! allocation put its operands, even if some share a register; code uses flags that an earlier op has set only through
//! the field `told` of [`Emitter`]; no immediate reaches dynasm unchecked. docs/book/reference/abi.md describes the
//! machine ABI.
#![cfg(any(target_arch = "aarch64", feature = "any-host"))]
#![cfg_attr(not(test), warn(clippy::cast_possible_truncation))]
#![forbid(unsafe_code)]

mod asm;
mod bound;
mod emit;
mod frame;
mod jump;
mod regs;
mod tail_call;

use crate::emit::branch::Comparison;
use crate::frame::Frame;
use crate::jump::{Cc, Jump};
use bpf_jit::{Alloc, Backend, BlockId, EmitError, EmitOptions, MachineDesc, Op, Shape, Skeleton, Switch, Val};
use bpf_jit_code::layout::Label;
use bpf_jit_code::{Code, UnwindOp};

pub use crate::bound::{func_size_bound, program_size_bound, size_bound};

/// The arm64 emitter, with the scratch memory it reuses from program to program.
#[derive(Debug, Default)]
pub struct Arm64 {
    s: Skeleton<Jump>,
}

impl Backend for Arm64 {
    type Emitter<'a> = Emitter<'a>;

    fn machine(&self, _: &EmitOptions) -> &'static MachineDesc {
        &regs::MACHINE
    }

    fn begin(&mut self, functions: usize) {
        self.s.begin(functions);
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
        code.frames.push(frame.shape());
        self.s.begin_function(shape, options, code);
        let mut emitter =
            Emitter { s: &mut self.s, code, options, alloc, frame, epilogue: None, held: None, told: None };
        emitter.enter(shape);
        Ok(emitter)
    }

    fn finish(&mut self, options: &EmitOptions, code: &mut Code) -> Result<(), EmitError> {
        self.s.end_functions(options, code);
        self.stop_sequences(options);
        self.s.finish(code)
    }
}

/// One function being emitted.
#[derive(Debug)]
pub struct Emitter<'a> {
    s: &'a mut Skeleton<Jump>,
    code: &'a mut Code,
    options: &'a EmitOptions,
    alloc: &'a Alloc,
    frame: Frame,
    /// The epilogue that exits share, if it is too long to be repeated.
    epilogue: Option<Label>,
    /// The op before, if its value is in no register ([`bpf_jit::held`]): this op takes its operands instead.
    held: Option<Op>,
    /// The comparison that the flags hold, of a selection after which none of its operands was written, and the
    /// condition that tells whether it holds.
    told: Option<(Comparison, Cc)>,
}

impl bpf_jit::Emitter for Emitter<'_> {
    #[inline(always)]
    fn op(&mut self, op: &Op, insn: u32, next: BlockId) {
        self.mark(insn);
        if op.def().is_some_and(|v| self.alloc.is_held(v)) {
            self.held = Some(*op);
            return;
        }
        let bound = self.held.map_or(0, |maker| size_bound(&maker));
        let start = self.s.buf.len();
        self.emit::<true>(op, next);
        self.keep_told(op);
        debug_assert!(self.s.buf.len() - start <= bound + size_bound(op), "{op:?}");
    }

    #[inline(always)]
    fn op_alone(&mut self, op: &Op, insn: u32, next: BlockId) {
        self.mark(insn);
        let start = self.s.buf.len();
        self.emit::<false>(op, next);
        debug_assert!(self.s.buf.len() - start <= size_bound(op), "{op:?}");
    }

    fn new_block(&mut self) -> BlockId {
        self.s.new_block()
    }

    #[inline]
    fn begin_block(&mut self, block: BlockId) {
        self.told = None;
        self.s.bind(self.s.block(block));
    }

    fn switch(&mut self, switch: &Switch, insn: u32) {
        self.mark(insn);
        self.switch_by_table(switch);
    }

    fn below_cfa(&self) -> (u32, u32) {
        // The BPF stack is at the top of the frame.
        (self.frame.total() - self.frame.slot(0), 0)
    }

    fn finish(mut self) -> Result<(), EmitError> {
        self.stubs();
        self.s.tables(Jump::Entry, self.code);
        // udf #0.
        self.s.end_function(0, self.options, self.code)
    }
}

impl Emitter<'_> {
    /// Emits all code before the first op.
    fn enter(&mut self, shape: &Shape) {
        self.prologue();
        self.parameters(shape);
    }

    /// Drops the note about the flags if `op` may change them or the compared registers. Arithmetic, loads and stores
    /// leave them alone.
    #[inline(always)]
    fn keep_told(&mut self, op: &Op) {
        let Some((Comparison { a, b, .. }, _)) = self.told else { return };
        let kept = match op {
            // A selection has noted its own.
            Op::Select { .. }
            | Op::Mov { .. }
            | Op::Ext { .. }
            | Op::Bin { .. }
            | Op::Neg { .. }
            | Op::Bswap { .. }
            | Op::AddShift { .. }
            | Op::FrameAddr { .. }
            | Op::Load { .. }
            | Op::Store { .. } => {
                op.def().is_none_or(|dst| a != dst && b != Val::Reg(dst))
                    || bpf_isa::planted_in!(bpf_jit::faults, FlagsStale)
            }
            Op::Confine { .. }
            | Op::SymAddr { .. }
            | Op::SubprogAddr { .. }
            | Op::LoadAcquire { .. }
            | Op::StoreRelease { .. }
            | Op::Atomic { .. }
            | Op::CmpXchg { .. }
            | Op::Call { .. }
            | Op::TailCall { .. }
            | Op::Check { .. }
            | Op::Bound { .. }
            | Op::Stop { .. }
            | Op::Jump { .. }
            | Op::Branch { .. }
            | Op::Exit { .. } => false,
        };
        if !kept {
            self.told = None;
        }
    }

    /// Appends a branch.
    pub(crate) fn go(&mut self, jump: Jump, to: Label) {
        self.s.go(jump, to);
    }

    /// Records a change of the frame for unwind tables, if the options request them.
    fn unwind_note(&mut self, op: UnwindOp) {
        self.s.note(op, self.options, self.code);
    }

    /// Notes that the code from here on was made from this instruction.
    fn mark(&mut self, insn: u32) {
        self.s.mark(insn, self.options, self.code);
    }
}
