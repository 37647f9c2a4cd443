//! What a backend is.

use crate::alloc::Alloc;
use crate::check::check;
use crate::machine::MachineDesc;
use bpf_isa::SubprogId;
use bpf_jit_code::layout::OutOfReach;
use bpf_jit_code::{Code, CpuFeatures, Hardening};
use bpf_lir::{Base, BlockId, Func, Lir, Op, VReg};

/// What an emitter may assume and must do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EmitOptions {
    /// Instructions it may use.
    pub features: CpuFeatures,
    /// Hardening.
    pub hardening: Hardening,
    /// Save every callee-saved register in every function: what saving by need is measured against.
    pub save_all: bool,
    /// Say in [`Code::pc_map`] what the code was made from.
    pub pc_map: bool,
    /// Describe frames in [`Code::unwind`].
    pub unwind: bool,
    /// Leave room for the encoded description behind each function (perf's libunwind looks for it there).
    pub unwind_room: bool,
}

impl Default for EmitOptions {
    /// The host's CPU, no hardening, a map from code to source.
    fn default() -> Self {
        EmitOptions {
            features: CpuFeatures::host(),
            hardening: Hardening::default(),
            save_all: false,
            pc_map: true,
            unwind: false,
            unwind_room: false,
        }
    }
}

/// Why code could not be emitted.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum EmitError {
    /// A function is too long for the architecture's longest branch.
    OutOfReach(OutOfReach),
    /// More code than a 32-bit offset can address.
    TooLarge,
    /// A bug in this library: the text says which expectation failed.
    Internal(&'static str),
}

impl core::fmt::Display for EmitError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            EmitError::OutOfReach(e) => e.fmt(f),
            EmitError::TooLarge => f.write_str("the machine code exceeds 2 GiB"),
            EmitError::Internal(what) => write!(f, "bug in the JIT: {what}"),
        }
    }
}

impl core::error::Error for EmitError {}

impl From<OutOfReach> for EmitError {
    fn from(e: OutOfReach) -> Self {
        EmitError::OutOfReach(e)
    }
}

/// What must be known of a function before its first op.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Which it is.
    pub id: SubprogId,
    /// Virtual registers that hold r1 to r5 at entry, where they are read.
    pub params: [Option<VReg>; 5],
    /// The virtual register that holds the hidden argument at entry, where it is needed.
    pub ctx: Option<VReg>,
    /// Bytes of BPF stack, a multiple of 8.
    pub stack_bytes: u32,
    /// About how many ops name the BPF stack.
    pub stack_accesses: usize,
    /// The number of its first block.
    pub first_block: u32,
    /// How many blocks there are, with consecutive numbers.
    pub blocks: u32,
    /// Some op may be a call (a tail call is none).
    pub calls: bool,
    /// Some function of the program takes its address.
    pub address_taken: bool,
}

impl Shape {
    /// Of a function of the intermediate form.
    fn of(id: SubprogId, func: &Func, address_taken: bool) -> Shape {
        let (mut calls, mut stack_accesses) = (false, 0);
        for op in func.all_ops() {
            match op {
                Op::Call { .. } => calls = true,
                Op::FrameAddr { .. } => stack_accesses += 1,
                Op::Load { mem, .. }
                | Op::Store { mem, .. }
                | Op::LoadAcquire { mem, .. }
                | Op::StoreRelease { mem, .. }
                | Op::Atomic { mem, .. }
                | Op::CmpXchg { mem, .. } => stack_accesses += usize::from(mem.base == Base::Frame),
                Op::Mov { .. }
                | Op::Ext { .. }
                | Op::Bin { .. }
                | Op::Neg { .. }
                | Op::Bswap { .. }
                | Op::AddShift { .. }
                | Op::Select { .. }
                | Op::Confine { .. }
                | Op::SymAddr { .. }
                | Op::SubprogAddr { .. }
                | Op::TailCall { .. }
                | Op::Check { .. }
                | Op::Bound { .. }
                | Op::Stop { .. }
                | Op::Jump { .. }
                | Op::Branch { .. }
                | Op::Exit { .. } => {}
            }
        }
        Shape {
            id,
            params: func.params,
            ctx: func.ctx,
            stack_bytes: func.stack_bytes,
            stack_accesses,
            first_block: 0,
            blocks: crate::num::small(func.blocks.len()),
            calls,
            address_taken,
        }
    }
}

/// What follows the last block.
const NO_BLOCK: BlockId = BlockId(u32::MAX);

/// The loops of a function that have no other one in them, as the code lies: the places in the order of the first and
/// of the last block of each, ascending.
pub fn innermost_loops(func: &Func) -> Vec<(usize, usize)> {
    let mut place = vec![usize::MAX; func.blocks.len()];
    for (i, block) in func.order.iter().enumerate() {
        place[block.index()] = i;
    }
    let mut loops: Vec<(usize, usize)> = Vec::new();
    for (last, block) in func.order.iter().enumerate() {
        let Some(first) = func.ends(*block).taken.map(|target| place[target.index()]).filter(|to| *to <= last) else {
            continue;
        };
        // What was found before lies within this loop, reaches into it, or lies before it.
        match loops.last_mut() {
            Some(known) if known.0 == first => known.1 = last,
            Some(known) if known.1 >= first => {}
            _ => loops.push((first, last)),
        }
    }
    loops
}

/// A function being emitted, op by op in the order of its code. Its prologue is done.
pub trait Emitter {
    /// Emits an op that was made from the instruction `insn`; `next` is the block that follows the op's own.
    fn op(&mut self, op: &Op, insn: u32, next: BlockId);

    /// The same where each op stands alone: no value is held, and blocks have been begun by [`Emitter::begin_alone`].
    #[inline(always)]
    fn op_alone(&mut self, op: &Op, insn: u32, next: BlockId) {
        self.op(op, insn, next);
    }

    /// What follows is this block, where each op stands alone.
    #[inline(always)]
    fn begin_alone(&mut self, block: BlockId) {
        self.begin_block(block);
    }

    /// A block besides those of the function's shape. It must begin before the function ends.
    fn new_block(&mut self) -> BlockId;

    /// What follows is this block.
    fn begin_block(&mut self, block: BlockId);

    /// What follows is a loop without another one in it, which control falls into or comes to by jumps only. Called
    /// where [`Backend::ALIGNS_LOOPS`].
    fn begin_loop(&mut self, _falls: bool) {}

    /// The loop ends here.
    fn end_loop(&mut self) {}

    /// Ends the function.
    fn finish(self) -> Result<(), EmitError>;
}

/// An emitter for one architecture. It owns scratch memory that is reused from program to program.
pub trait Backend {
    /// Its processors fetch loops better from some places than from others, so it is told of them.
    const ALIGNS_LOOPS: bool = false;

    /// How it emits a function.
    type Emitter<'a>: Emitter
    where
        Self: 'a;

    /// The machine the allocator is to allocate for, given the options.
    fn machine(&self, options: &EmitOptions) -> &'static MachineDesc;

    /// Begins a program of so many functions.
    fn begin(&mut self, functions: usize);

    /// Begins the next function of the program.
    fn function<'a>(
        &'a mut self,
        shape: &Shape,
        alloc: &'a Alloc,
        options: &'a EmitOptions,
        code: &'a mut Code,
    ) -> Result<Self::Emitter<'a>, EmitError>;

    /// Ends the program: what its functions share, and the forms of its branches.
    fn finish(&mut self, options: &EmitOptions, code: &mut Code) -> Result<(), EmitError>;

    /// Emits `lir` with one allocation a function into `code`, which is empty.
    fn emit(&mut self, lir: &Lir, allocs: &[Alloc], options: &EmitOptions, code: &mut Code) -> Result<(), EmitError> {
        if cfg!(debug_assertions) {
            check(lir, allocs, self.machine(options)).map_err(EmitError::Internal)?;
        }
        // Only landing pads depend on it.
        let mut address_taken = vec![false; if options.hardening.landing_pads { lir.funcs.len() } else { 0 }];
        if options.hardening.landing_pads {
            for op in lir.funcs.iter().flat_map(Func::all_ops) {
                if let Op::SubprogAddr { subprog, .. } = op
                    && let Some(taken) = address_taken.get_mut(subprog.index())
                {
                    *taken = true;
                }
            }
        }
        self.begin(lir.funcs.len());
        for (i, func) in lir.funcs.iter().enumerate() {
            let id = SubprogId(crate::num::small(i));
            let alloc = allocs.get(i).ok_or(EmitError::Internal("a function without an allocation"))?;
            let shape = Shape::of(id, func, address_taken.get(i) == Some(&true));
            let loops = if Self::ALIGNS_LOOPS { innermost_loops(func) } else { Vec::new() };
            let mut loops = loops.iter().peekable();
            let mut emitter = self.function(&shape, alloc, options, code)?;
            for (i, block) in func.order.iter().enumerate() {
                if loops.peek().is_some_and(|first_to_last| first_to_last.0 == i) {
                    let before = i.checked_sub(1).map(|before| func.ends(func.order[before]));
                    emitter.begin_loop(before.is_none_or(|ends| ends.falls || ends.taken == Some(*block)));
                }
                let next = func.order.get(i + 1).copied().unwrap_or(NO_BLOCK);
                emitter.begin_block(*block);
                let ops = func.range(*block);
                for (op, span) in func.ops[ops.clone()].iter().zip(&func.spans[ops]) {
                    emitter.op(op, span.first, next);
                }
                if loops.next_if(|first_to_last| first_to_last.1 == i).is_some() {
                    emitter.end_loop();
                }
            }
            emitter.finish()?;
        }
        self.finish(options, code)
    }
}
