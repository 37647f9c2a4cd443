//! Lets reads behind a counter's step use the stepped counter.
//!
//! Problem: a round computes `n = x + 4`, which is `x` in the next round, and reads `x` again behind that: in an
//! address, in another sum, or behind the loop. Then `x` and `n` live at the same time, and each round needs a copy.
//! Approach, in SSA form, for each phi `x` and each of its steps by a constant: reads of `x` behind the step read `n`
//! instead. An address gets another offset and a sum another constant; reads behind the loop get `n - 4`, computed once
//! where the loop has been left. If one read can be changed in none of these ways, no read is changed. Otherwise the
//! last read of `x` is its step, and [`crate::destruct`] gives both the same register.
//!
//! Invariants: in a block that the step dominates, `n` is the step of the current `x`: control cannot get a new `x` and
//! reach the block without passing the step again. No op is added to a round. A counter that lives into more than
//! [`MAX_BLOCKS`] blocks is left alone, so the pass is linear.

use crate::faults::planted;
use crate::invariant::Constants;
use crate::loops::Loops;
use crate::ssa::{NONE, Ssa};
use crate::values::Addresses;
use bpf_isa::{Size, Width};
use bpf_lir::{Base, BinOp, BlockId, Func, Mem, Op, Span, VReg, Val};

/// How many copies are followed to find a step.
const MAX_COPIES: usize = 4;
/// The most edges to the head of a loop.
const MAX_WAYS: usize = 16;
/// The most blocks that a counter may live into.
const MAX_BLOCKS: usize = 64;
/// The most reads of one counter that are changed.
const MAX_READS: usize = 16;
/// The greatest loop depth that is distinguished.
const MAX_NEST: usize = 8;
/// The most blocks in which `n - by` is computed for one step.
const MAX_MADE: usize = 2;

/// The end of a list of reads.
const END: u32 = NONE - 1;

/// A counter's step: `next = x + by`.
#[derive(Clone, Copy, Debug)]
struct Step {
    /// The block of the phi `x`.
    head: BlockId,
    x: VReg,
    next: VReg,
    by: i64,
    width: Width,
    /// The block and the op index of the step.
    block: BlockId,
    at: usize,
}

/// A reader of a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Reader {
    /// An op.
    Op { block: BlockId, at: usize },
    /// An argument of a phi, read at the end of the predecessor `pred`.
    Phi { pred: BlockId, arg: usize },
}

impl Reader {
    fn reads(self, v: VReg, func: &Func, ssa: &Ssa) -> bool {
        let mut reads = false;
        match self {
            Reader::Op { at, .. } => func.ops[at].for_each_use(|read| reads |= read == v),
            Reader::Phi { arg, .. } => reads = ssa.arg(arg) == v,
        }
        reads
    }
}

/// The change of one read.
#[derive(Clone, Copy, Debug)]
enum Change {
    /// The op at this index is replaced, so that it reads the stepped counter.
    To(usize, Op),
    /// The reader reads the value that is computed at the beginning of this block.
    Made(Reader, BlockId),
}

/// Scratch memory of the pass, reused from function to function.
#[derive(Debug, Default)]
pub(crate) struct Steps {
    loops: Loops,
    steps: Vec<Step>,
    /// By value: the block and index of the op that defines it; [`NONE`] if no op does.
    defs: Vec<(BlockId, u32)>,
    /// By value: the head of the list of its reads, in `reads`; [`END`] if the list is empty; [`NONE`] if the value is
    /// no counter.
    heads: Vec<u32>,
    reads: Vec<(Reader, u32)>,
    /// By block: `lives` is the last step whose counter was found to live into it, `behind` the last step from which
    /// control was found to reach it before the next round.
    lives: Vec<u32>,
    behind: Vec<u32>,
    work: Vec<BlockId>,
    changes: Vec<Change>,
    /// Ops to be inserted at the beginnings of blocks, for all steps.
    made: Vec<(BlockId, Op, Span)>,
    ops: Vec<(Op, Span)>,
}

impl Steps {
    /// Runs the pass over `func`, which is in SSA form; returns how many counters end at their step.
    pub(crate) fn run(&mut self, func: &mut Func, ssa: &mut Ssa, addresses: Addresses) -> u32 {
        self.find(func, ssa);
        if self.steps.is_empty() {
            return 0;
        }
        self.loops.find(func, ssa);
        self.list_reads(func, ssa);
        for marks in [&mut self.lives, &mut self.behind] {
            marks.clear();
            marks.resize(func.blocks.len(), NONE);
        }
        self.made.clear();
        let mut done = 0;
        for number in 0..self.steps.len() {
            let step = self.steps[number];
            done += u32::from(self.end(func, ssa, step, crate::num::small(number), addresses));
        }
        self.place(func);
        done
    }

    /// Finds the steps of counters.
    fn find(&mut self, func: &Func, ssa: &Ssa) {
        self.steps.clear();
        if ssa.all_phis().next().is_none() {
            return;
        }
        self.defs.clear();
        self.defs.resize(func.vregs as usize, (func.order[0], NONE));
        for (block, ops) in func.in_order() {
            for (op, at) in ops.iter().zip(func.range(block)) {
                if let Some(v) = op.def() {
                    self.defs[v.index()] = (block, crate::num::small(at));
                }
            }
        }
        for (head, phi) in ssa.all_phis() {
            let (args, preds) = (ssa.args(head, phi), ssa.cfg.preds(head));
            if preds.len() > MAX_WAYS {
                continue;
            }
            for (i, (next, from)) in args.iter().zip(preds).enumerate() {
                let next = self.copied(func, *next);
                let (block, at) = self.defs[next.index()];
                if let Some(&Op::Bin { op: BinOp::Add, width, a, b: Val::Imm(by), .. }) = func.ops.get(at as usize)
                    && a == phi.dst
                    && ssa.tree.dominates(head, *from)
                    // A step that several edges carry is listed once.
                    && !args[..i].contains(&args[i])
                {
                    let (x, at) = (phi.dst, at as usize);
                    self.steps.push(Step { head, x, next, by, width, block, at });
                }
            }
        }
    }

    /// Returns the value that a value is a copy of. Few copies are left if [`crate::values`] has run.
    fn copied(&self, func: &Func, mut v: VReg) -> VReg {
        for _ in 0..MAX_COPIES {
            match func.ops.get(self.defs[v.index()].1 as usize) {
                Some(Op::Mov { width: Width::W64, src: Val::Reg(src), .. }) => v = *src,
                Some(_) | None => break,
            }
        }
        v
    }

    /// Lists the reads of each counter.
    fn list_reads(&mut self, func: &Func, ssa: &Ssa) {
        self.heads.clear();
        self.heads.resize(func.vregs as usize, NONE);
        for step in &self.steps {
            self.heads[step.x.index()] = END;
        }
        self.reads.clear();
        for (block, ops) in func.in_order() {
            for (op, at) in ops.iter().zip(func.range(block)) {
                op.for_each_use(|v| self.read(v, Reader::Op { block, at }));
            }
        }
        for (block, phi) in ssa.all_phis() {
            for (arg, v, pred) in ssa.args_at(block, phi) {
                self.read(v, Reader::Phi { pred, arg });
            }
        }
    }

    fn read(&mut self, v: VReg, by: Reader) {
        let head = &mut self.heads[v.index()];
        // An op that reads a value twice is listed once.
        if *head != NONE && self.reads.get(*head as usize).is_none_or(|(last, _)| *last != by) {
            let next = core::mem::replace(head, crate::num::small(self.reads.len()));
            self.reads.push((by, next));
        }
    }

    /// Ends a counter at its step, if every read behind the step can be changed; returns whether it did.
    fn end(&mut self, func: &mut Func, ssa: &mut Ssa, step: Step, number: u32, addresses: Addresses) -> bool {
        if !self.find_lives(ssa, step, number) {
            return false;
        }
        self.follow(ssa, step, number);
        self.changes.clear();
        let mut made: [Option<BlockId>; MAX_MADE] = [None; MAX_MADE];
        let mut read = self.heads[step.x.index()];
        while let Some(&(reader, next)) = self.reads.get(read as usize) {
            read = next;
            let (block, is_behind) = match reader {
                Reader::Op { block, at } if block == step.block && at > step.at => (block, true),
                Reader::Op { block, .. } | Reader::Phi { pred: block, .. } => {
                    let again = self.behind[block.index()] == number;
                    (block, again || block == step.block && matches!(reader, Reader::Phi { .. }))
                }
            };
            // A step handled before may have changed the read already.
            if !is_behind || !reader.reads(step.x, func, ssa) {
                continue;
            }
            if !ssa.tree.dominates(step.block, block) || self.changes.len() == MAX_READS {
                return false;
            }
            if let Reader::Op { at, .. } = reader
                // An op before the step in the step's own block may run before the step has been computed.
                && !(block == step.block && at <= step.at)
                && let Some(op) = stepped(func.ops[at], step, addresses)
            {
                self.changes.push(Change::To(at, op));
                continue;
            }
            let Some(to) = self.outside(func, ssa, step, reader, block) else { return false };
            let Some(place) = made.iter_mut().find(|made| made.is_none_or(|made| made == to)) else { return false };
            *place = Some(to);
            self.changes.push(Change::Made(reader, to));
        }
        if self.changes.is_empty() {
            return false;
        }
        self.change(func, ssa, step, made);
        true
    }

    /// Finds the blocks that a counter lives into; returns false if there are too many.
    fn find_lives(&mut self, ssa: &Ssa, step: Step, number: u32) -> bool {
        self.work.clear();
        let mut read = self.heads[step.x.index()];
        while let Some(&(Reader::Op { block, .. } | Reader::Phi { pred: block, .. }, next)) =
            self.reads.get(read as usize)
        {
            read = next;
            if !self.live_into(block, step, number) {
                return false;
            }
        }
        let mut next = 0;
        while let Some(block) = self.work.get(next).copied() {
            next += 1;
            if !ssa.cfg.preds(block).iter().all(|pred| self.live_into(*pred, step, number)) {
                return false;
            }
        }
        true
    }

    /// Records that a counter lives in a block, and lives into it unless it is the block of the phi; returns false if
    /// there are too many.
    fn live_into(&mut self, block: BlockId, step: Step, number: u32) -> bool {
        if block != step.head && core::mem::replace(&mut self.lives[block.index()], number) != number {
            self.work.push(block);
        }
        self.work.len() <= MAX_BLOCKS
    }

    /// Marks the blocks that the counter lives into and that control can reach from the step before the next round.
    fn follow(&mut self, ssa: &Ssa, step: Step, number: u32) {
        self.work.clear();
        self.work.push(step.block);
        while let Some(block) = self.work.pop() {
            for succ in ssa.cfg.succs(block) {
                if self.lives[succ.index()] == number
                    && core::mem::replace(&mut self.behind[succ.index()], number) != number
                {
                    self.work.push(succ);
                }
            }
        }
    }

    /// Returns a block behind the loop that dominates the read: of the dominators of the read's block behind the step,
    /// one with the least loop depth.
    fn outside(&self, func: &Func, ssa: &Ssa, step: Step, reader: Reader, block: BlockId) -> Option<BlockId> {
        let depth = |block| self.loops.depth(block, MAX_NEST);
        // An op on an edge out of a round would be executed in each round.
        let alone = matches!(reader, Reader::Op { .. }) || func.ends(block).taken.is_none();
        if step.width != Width::W64 || !alone {
            return None;
        }
        let above = |block: &BlockId| {
            ssa.tree
                .parent(*block, &ssa.cfg)
                .filter(|above| *above != step.block && ssa.tree.dominates(step.block, *above))
        };
        let blocks = core::iter::successors(Some(block), above);
        blocks.min_by_key(|block| depth(*block)).filter(|block| depth(*block) < depth(step.block))
    }

    /// Applies the changes of one step.
    fn change(&mut self, func: &mut Func, ssa: &mut Ssa, step: Step, made: [Option<BlockId>; MAX_MADE]) {
        let Step { x, next, by, width, .. } = step;
        let values = made.map(|to| {
            to.map(|to| {
                let dst = func.new_vreg();
                let op = Op::Bin { op: BinOp::Add, width, dst, a: next, b: Val::Imm(by.wrapping_neg()) };
                let span = func.range(to).next().map_or(func.spans[step.at], |at| func.spans[at]);
                self.made.push((to, op, span));
                (to, dst)
            })
        });
        for change in &self.changes {
            match *change {
                Change::To(at, op) => func.ops[at] = op,
                Change::Made(reader, to) => {
                    let Some((_, v)) = values.iter().flatten().find(|(at, _)| *at == to) else { continue };
                    match reader {
                        Reader::Op { at, .. } => func.ops[at].for_each_use_mut(|read| {
                            if *read == x {
                                *read = *v;
                            }
                        }),
                        Reader::Phi { arg, .. } => ssa.set_arg(arg, *v),
                    }
                }
            }
        }
    }

    /// Inserts the new ops at the beginnings of their blocks.
    fn place(&mut self, func: &mut Func) {
        self.made.sort_by_key(|(block, ..)| *block);
        for made in self.made.chunk_by(|(a, ..), (b, ..)| a == b) {
            let Some((block, ..)) = made.first() else { continue };
            self.ops.clear();
            self.ops.extend(made.iter().map(|(_, op, span)| (*op, *span)));
            self.ops.extend(func.range(*block).map(|at| (func.ops[at], func.spans[at])));
            func.set_ops(*block, self.ops.drain(..));
        }
    }
}

/// Returns the op that reads the stepped counter in place of `op`, which reads the counter, if it costs no more.
fn stepped(op: Op, step: Step, addresses: Addresses) -> Option<Op> {
    let Step { x, by, width, .. } = step;
    let by = if planted!(StepsForgotten) { 0 } else { by };
    match op {
        Op::Bin { op: BinOp::Add, width: at, dst, a, b: Val::Imm(imm) } if a == x => {
            less(at, dst, imm, by, step, addresses.constants)
        }
        Op::Mov { width: at, dst, src: Val::Reg(src) } if src == x => less(at, dst, 0, by, step, addresses.constants),
        Op::Ext { width: at, signed: false, from: Size::W, dst, src } if src == x && at == Width::W64 => {
            less(Width::W32, dst, 0, by, step, addresses.constants)
        }
        Op::Load { size, signed, swap, dst, mem } if width == Width::W64 => {
            let mem = moved(mem, size, step, by, addresses)?;
            Some(Op::Load { size, signed, swap, dst, mem })
        }
        Op::Store { size, mem, src } if width == Width::W64 && src != Val::Reg(x) => {
            Some(Op::Store { size, mem: moved(mem, size, step, by, addresses)?, src })
        }
        Op::Bin { .. }
        | Op::Mov { .. }
        | Op::Ext { .. }
        | Op::Load { .. }
        | Op::Store { .. }
        | Op::Neg { .. }
        | Op::Bswap { .. }
        | Op::AddShift { .. }
        | Op::Select { .. }
        | Op::Confine { .. }
        | Op::FrameAddr { .. }
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
        | Op::Exit { .. } => None,
    }
}

/// Returns `dst = next + (imm - by)` in place of `dst = x + imm`.
fn less(width: Width, dst: VReg, imm: i64, by: i64, step: Step, constants: Constants) -> Option<Op> {
    // A counter of 32 bits determines only the low half of a sum.
    if width == Width::W64 && step.width == Width::W32 {
        return None;
    }
    let imm = match width {
        Width::W32 => i64::from(crate::num::low(imm.wrapping_sub(by))),
        Width::W64 => imm.wrapping_sub(by),
    };
    let op = Op::Bin { op: BinOp::Add, width, dst, a: step.next, b: Val::Imm(imm) };
    constants.costly(&op).is_none().then_some(op)
}

/// Returns the address that is computed from the stepped counter.
fn moved(mem: Mem, size: Size, step: Step, by: i64, addresses: Addresses) -> Option<Mem> {
    let Step { x, next, .. } = step;
    let (base, times) = match mem.base {
        Base::Reg(v) if v == x => (Base::Reg(next), 1),
        Base::Indexed { base, index, shift } if addresses.any_index => {
            let (of_base, of_index) = (base == x, index == x);
            let named = |v: VReg, is: bool| if is { next } else { v };
            let times = i64::from(of_base) + (i64::from(of_index) << shift);
            (Base::Indexed { base: named(base, of_base), index: named(index, of_index), shift }, times)
        }
        Base::Reg(_) | Base::Frame | Base::Indexed { .. } => return None,
    };
    let off = i64::from(mem.off).checked_sub(by.checked_mul(times)?)?;
    let off = i32::try_from(off).ok().filter(|off| is_taken(*off, size, addresses.max_offset))?;
    Some(Mem { base, off, region: mem.region })
}

/// Whether an access takes an offset without another instruction. On a machine that limits offsets (arm64), only
/// multiples of the size go up to the limit; other offsets have nine bits with their sign.
fn is_taken(off: i32, size: Size, max_offset: i32) -> bool {
    let counts = off >= 0 && off.unsigned_abs().is_multiple_of(size.bytes());
    off.unsigned_abs() <= max_offset as u32 && (max_offset == i32::MAX || counts || (-256..256).contains(&off))
}
