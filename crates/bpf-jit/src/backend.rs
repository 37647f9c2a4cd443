//! The interface of a backend.

use crate::alloc::Alloc;
use crate::check::check;
use crate::machine::MachineDesc;
use crate::switch::{Switch, switches};
use bpf_isa::SubprogId;
use bpf_jit_code::layout::OutOfReach;
use bpf_jit_code::{Code, CpuFeatures, Hardening};
use bpf_lir::{Base, BlockId, Func, Lir, Op, VReg};

/// Options of an emitter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EmitOptions {
    /// CPU features whose instructions may be used.
    pub features: CpuFeatures,
    /// Hardening of the code.
    pub hardening: Hardening,
    /// Save every callee-saved register in every function. For measurements of the gain of saving on demand.
    pub save_all: bool,
    /// Record in [`Code::pc_map`] which instruction the code was made from.
    pub pc_map: bool,
    /// Record unwind information in [`Code::unwind`].
    pub unwind: bool,
    /// Emit trees of comparisons with jump tables ([`crate::switches`]). Not with retpolines, which forbid the indirect
    /// jump, nor with landing pads, of which its targets have none.
    pub jump_tables: bool,
    /// Leave room for the encoded unwind information behind each function, where perf's libunwind looks for it.
    pub unwind_room: bool,
}

impl Default for EmitOptions {
    /// Returns the features of the host's CPU, no hardening, jump tables, and a map from code to instructions.
    fn default() -> Self {
        EmitOptions {
            features: CpuFeatures::host(),
            hardening: Hardening::default(),
            save_all: false,
            pc_map: true,
            unwind: false,
            unwind_room: false,
            jump_tables: true,
        }
    }
}

/// The reason why code could not be emitted.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum EmitError {
    /// A function is too long for the architecture's longest branch.
    OutOfReach(OutOfReach),
    /// The code exceeds the range of a 32-bit offset.
    TooLarge,
    /// A bug in this library. The text says which expectation failed.
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

/// The properties of a function that must be known before its first op is emitted.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// The function's number.
    pub id: SubprogId,
    /// The virtual registers that hold r1 to r5 at entry; `None` for registers that are not read.
    pub params: [Option<VReg>; 5],
    /// The virtual register that holds the hidden argument at entry, if the function reads it.
    pub ctx: Option<VReg>,
    /// Size of the BPF stack in bytes, a multiple of 8.
    pub stack_bytes: u32,
    /// Approximate number of ops that access the BPF stack.
    pub stack_accesses: usize,
    /// Number of its first block.
    pub first_block: u32,
    /// Number of blocks. Their numbers are consecutive.
    pub blocks: u32,
    /// Whether some op may be a call. A tail call is not a call.
    pub calls: bool,
    /// Whether some function of the program takes its address.
    pub address_taken: bool,
}

impl Shape {
    /// Returns the shape of a function of the intermediate form.
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

/// Stands for the block behind the last block.
const NO_BLOCK: BlockId = BlockId(u32::MAX);

/// Returns the innermost loops of a function: the positions in the block order of the first and of the last block of
/// each, ascending.
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
        // A loop found before lies within this one, overlaps its beginning, or lies in front of it.
        match loops.last_mut() {
            Some(known) if known.0 == first => known.1 = last,
            Some(known) if known.1 >= first => {}
            _ => loops.push((first, last)),
        }
    }
    loops
}

/// Emits one function, op by op in the order of its code. The prologue is emitted before the first op.
pub trait Emitter {
    /// Emits an op that was made from the instruction `insn`; `next` is the block that follows the op's own.
    fn op(&mut self, op: &Op, insn: u32, next: BlockId);

    /// Emits an op as [`Emitter::op`] does, in code in which each op stands alone: no value is held, and blocks are
    /// begun by [`Emitter::begin_alone`].
    #[inline(always)]
    fn op_alone(&mut self, op: &Op, insn: u32, next: BlockId) {
        self.op(op, insn, next);
    }

    /// Begins a block in code in which each op stands alone.
    #[inline(always)]
    fn begin_alone(&mut self, block: BlockId) {
        self.begin_block(block);
    }

    /// Emits the jump through a table, which was made from the instruction `insn`. It stands before the last op of the
    /// switch's block, with which the tree begins. Values that are not in the table go where [`Switch::others`] says.
    /// The table is emitted at the end of the function.
    fn switch(&mut self, switch: &Switch, insn: u32);

    /// Returns a new block besides those of the function's shape. It must be begun before the function ends.
    fn new_block(&mut self) -> BlockId;

    /// Begins a block.
    fn begin_block(&mut self, block: BlockId);

    /// Begins an innermost loop. `falls` says whether control may fall into it, rather than only jump to it. Called
    /// only if [`Backend::ALIGNS_LOOPS`] is set.
    fn begin_loop(&mut self, _falls: bool) {}

    /// Ends the loop begun last.
    fn end_loop(&mut self) {}

    /// Returns the distances of slot 0 and of r10 below the canonical frame address.
    fn below_cfa(&self) -> (u32, u32);

    /// Ends the function.
    fn finish(self) -> Result<(), EmitError>;
}

/// A code generator for one architecture. It owns scratch memory that is reused from program to program.
pub trait Backend {
    /// Whether the emitter is told of loops, because the architecture's processors fetch an aligned loop faster.
    const ALIGNS_LOOPS: bool = false;

    /// The emitter of one function.
    type Emitter<'a>: Emitter
    where
        Self: 'a;

    /// Returns the machine that the allocator is to allocate for, given the options.
    fn machine(&self, options: &EmitOptions) -> &'static MachineDesc;

    /// Begins a program with this number of functions.
    fn begin(&mut self, functions: usize);

    /// Begins the next function of the program, and emits its prologue.
    fn function<'a>(
        &'a mut self,
        shape: &Shape,
        alloc: &'a Alloc,
        options: &'a EmitOptions,
        code: &'a mut Code,
    ) -> Result<Self::Emitter<'a>, EmitError>;

    /// Ends the program: emits the code that its functions share, and chooses the forms of its branches.
    fn finish(&mut self, options: &EmitOptions, code: &mut Code) -> Result<(), EmitError>;

    /// Emits `lir` with one allocation per function into `code`, which is empty.
    fn emit(&mut self, lir: &Lir, allocs: &[Alloc], options: &EmitOptions, code: &mut Code) -> Result<(), EmitError> {
        if cfg!(debug_assertions) {
            check(lir, allocs, self.machine(options)).map_err(EmitError::Internal)?;
        }
        // Only landing pads depend on taken addresses.
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
        let Hardening { retpolines, landing_pads, .. } = options.hardening;
        let jump_tables = options.jump_tables && !retpolines && !landing_pads;
        self.begin(lir.funcs.len());
        for (i, func) in lir.funcs.iter().enumerate() {
            let id = SubprogId(crate::num::small(i));
            let alloc = allocs.get(i).ok_or(EmitError::Internal("a function without an allocation"))?;
            let shape = Shape::of(id, func, address_taken.get(i) == Some(&true));
            let loops = if Self::ALIGNS_LOOPS { innermost_loops(func) } else { Vec::new() };
            let mut loops = loops.iter().peekable();
            let switches = if jump_tables { switches(func) } else { Vec::new() };
            let mut switches = switches.iter().peekable();
            let mut emitter = self.function(&shape, alloc, options, code)?;
            for (i, block) in func.order.iter().enumerate() {
                if loops.peek().is_some_and(|first_to_last| first_to_last.0 == i) {
                    let before = i.checked_sub(1).map(|before| func.ends(func.order[before]));
                    emitter.begin_loop(before.is_none_or(|ends| ends.falls || ends.taken == Some(*block)));
                }
                let next = func.order.get(i + 1).copied().unwrap_or(NO_BLOCK);
                emitter.begin_block(*block);
                let ops = func.range(*block);
                let mut switch = switches.next_if(|switch| switch.block == *block);
                for (at, (op, span)) in func.ops[ops.clone()].iter().zip(&func.spans[ops.clone()]).enumerate() {
                    if at + 1 == ops.len()
                        && let Some(switch) = switch.take()
                    {
                        emitter.switch(switch, span.first);
                    }
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
