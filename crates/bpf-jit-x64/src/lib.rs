//! The x86-64 backend: [`bpf_jit::Lir`] in, [`Code`] out.
//!
//! Approach: one pass over the ops, each emitted through dynasm in the shortest form its operands allow (`asm`);
//! branches and labels go through `bpf_jit_code::Layout`, which chooses between their short and long forms. Where an op
//! wants fixed registers (`regs`), operands in the preferred places cost nothing, and any others are moved through the
//! scratch registers r10 and r11.
//!
//! Invariants: no memory, address or host is touched, so this crate works on any host; an op is correct wherever the
//! allocation put its operands, even if some share a register; code uses flags that an earlier op has set only through
//! the fields `flags` and `selected` of [`Emitter`], which the begin of a block clears. docs/book/reference/abi.md
//! describes the machine ABI.
#![cfg(any(target_arch = "x86_64", feature = "any-host"))]
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
use crate::jump::Jump;
use crate::regs::Gpr;
use bpf_isa::Width;
use bpf_jit::{Alloc, Backend, BlockId, EmitError, EmitOptions, MachineDesc, Op, Shape, Skeleton, Switch, Val};
use bpf_jit_code::layout::{LOOP_PADDING, Label};
use bpf_jit_code::{Code, UnwindOp};

pub use crate::bound::{func_size_bound, program_size_bound, size_bound};

/// The x86-64 emitter, with the scratch memory it reuses from program to program.
#[derive(Debug, Default)]
pub struct X64 {
    s: Skeleton<Jump>,
    /// The retpoline of this code.
    thunk: Option<Label>,
}

impl Backend for X64 {
    const ALIGNS_LOOPS: bool = true;

    fn machine(&self, options: &EmitOptions) -> &'static MachineDesc {
        regs::machine(&options.features)
    }

    type Emitter<'a> = Emitter<'a>;

    fn begin(&mut self, functions: usize) {
        self.s.begin(functions);
        self.thunk = None;
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
        code.frames.push(frame.shape());
        self.s.begin_function(shape, options, code);
        let X64 { s, thunk } = self;
        let mut emitter = Emitter {
            s,
            thunk,
            code,
            machine,
            options,
            alloc,
            frame,
            epilogue: None,
            held: None,
            flags: None,
            selected: None,
            kept: None,
        };
        emitter.enter(shape);
        Ok(emitter)
    }

    fn finish(&mut self, options: &EmitOptions, code: &mut Code) -> Result<(), EmitError> {
        self.s.end_functions(options, code);
        self.stop_sequences(options);
        self.retpoline(options);
        self.s.finish(code)
    }
}

/// One function being emitted.
#[derive(Debug)]
pub struct Emitter<'a> {
    s: &'a mut Skeleton<Jump>,
    thunk: &'a mut Option<Label>,
    code: &'a mut Code,
    machine: &'a MachineDesc,
    options: &'a EmitOptions,
    alloc: &'a Alloc,
    frame: Frame,
    /// The epilogue that exits share, if it is too long to be repeated.
    epilogue: Option<Label>,
    /// The op before, if its value is in no register ([`bpf_jit::held`]): this op takes its operands instead.
    held: Option<Op>,
    /// Meaning of the flags at the end of the code, if an op's arithmetic has set them.
    flags: Option<Flags>,
    /// The comparison of the last selection, and the end of its code. The flags still hold the comparison if the code
    /// ends there.
    selected: Option<(Comparison, usize)>,
    /// The slot that the last instruction has stored [`SCRATCH`](crate::regs::SCRATCH) to, and the end of that
    /// instruction.
    kept: Option<(u32, usize)>,
}

/// A note that the zero flag tells whether a register is zero.
#[derive(Clone, Copy, Debug)]
struct Flags {
    /// The register.
    of: Gpr,
    /// The width of the comparison with zero; at 32 bits the upper half of the register is zero.
    width: Width,
    /// The offset at which the flags are valid: the end of the instruction that has set them.
    at: usize,
}

impl bpf_jit::Emitter for Emitter<'_> {
    #[inline(always)]
    fn op(&mut self, op: &Op, insn: u32, next: BlockId) {
        let bound = self.held.map_or(0, |maker| size_bound(&maker));
        if bound == 0 {
            // A faulting access is attributed to the instruction that loads.
            self.mark(insn);
        }
        let start = self.s.buf.len();
        self.emit::<true>(op, next);
        if !matches!(op, Op::Bin { .. }) {
            self.flags = None;
        }
        // A move leaves the flags alone.
        if let (Op::Mov { dst, src: Val::Reg(_), .. }, Some((last, at))) = (op, &mut self.selected)
            && *at == start
            && last.a != *dst
            && last.b != Val::Reg(*dst)
        {
            *at = self.s.buf.len();
        }
        debug_assert!(self.s.buf.len() - start <= bound + size_bound(op), "{op:?}");
    }

    #[inline(always)]
    fn op_alone(&mut self, op: &Op, insn: u32, next: BlockId) {
        self.mark(insn);
        let start = self.s.buf.len();
        self.emit::<false>(op, next);
        debug_assert!(self.s.buf.len() - start <= size_bound(op), "{op:?}");
    }

    #[inline(always)]
    fn begin_alone(&mut self, block: BlockId) {
        self.kept = None;
        self.s.bind(self.s.block(block));
    }

    fn new_block(&mut self) -> BlockId {
        self.s.new_block()
    }

    #[inline]
    fn begin_block(&mut self, block: BlockId) {
        (self.flags, self.selected, self.kept) = (None, None, None);
        self.s.bind(self.s.block(block));
    }

    /// Processors cache decoded instructions by lines of 64 bytes, and a short loop that spans one line more takes up
    /// to a quarter more time (docs/book/explanation/speed.md). Padding that is executed has at most half a line.
    fn begin_loop(&mut self, falls: bool) {
        self.s.begin_loop(if falls { LOOP_PADDING / 2 } else { LOOP_PADDING });
    }

    fn end_loop(&mut self) {
        self.s.end_loop();
    }

    fn switch(&mut self, switch: &Switch, insn: u32) {
        self.mark(insn);
        self.switch_by_table(switch);
    }

    fn below_cfa(&self) -> (u32, u32) {
        self.frame.below_cfa()
    }

    fn finish(mut self) -> Result<(), EmitError> {
        self.stubs();
        self.s.tables(Jump::Entry, self.code);
        // int3.
        self.s.end_function(0xcc, self.options, self.code)
    }
}

impl Emitter<'_> {
    /// Emits all code before the first op.
    fn enter(&mut self, shape: &Shape) {
        let indirect = shape.id.0 == 0 || shape.address_taken;
        if indirect && self.options.hardening.landing_pads {
            // endbr64, which dynasm does not know.
            self.s.buf.extend_from_slice(&[0xf3, 0x0f, 0x1e, 0xfa]);
        }
        self.prologue(shape);
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
