//! What is read behind a counter's step is read of the stepped one.
//!
//! Problem: a round makes `n = x + 4`, which is `x` in the next one, and reads `x` once more behind that, for an
//! address or another sum, or because what comes behind the loop wants it. So both live at the same time, and each
//! round copies one of them. Approach, in SSA form, for each phi and each of its steps by a constant: what reads `x`
//! behind the step reads `n` instead: an address has another offset, a sum another constant, and what only lies behind
//! the loop is given `n - 4`, made once where the loop has been left. If something is left that can have none of these,
//! all stays. `x` ends at its step then, and out of SSA form the two are one (`destruct.rs`).
//!
//! Invariants: a block that the step dominates is come to with the step of the last `x`, as a way round it would be one
//! from the entry, too. Nothing is added to a round. A counter that lives into more than [`MAX_BLOCKS`] blocks stays,
//! so all is linear.

use crate::faults::planted;
use crate::invariant::Constants;
use crate::loops::Loops;
use crate::ssa::{NONE, Ssa};
use crate::values::Addresses;
use bpf_isa::{Size, Width};
use bpf_lir::{Base, BinOp, BlockId, Func, Mem, Op, Span, VReg, Val};

/// Through how many copies a step is looked for.
const MAX_COPIES: usize = 4;
/// How many ways may lead to a loop's head.
const MAX_WAYS: usize = 16;
/// How many blocks a counter may live into.
const MAX_BLOCKS: usize = 64;
/// How many reads of one counter may change.
const MAX_READS: usize = 16;
/// How many loops inside each other are told apart.
const MAX_NEST: usize = 8;
/// How many sums are made behind a loop for one step.
const MAX_MADE: usize = 2;

/// The end of a list.
const END: u32 = NONE - 1;

/// A counter's step: `next = phi + by`.
#[derive(Clone, Copy, Debug)]
struct Step {
    /// The block of the phi.
    head: BlockId,
    x: VReg,
    next: VReg,
    by: i64,
    width: Width,
    /// Where it is made.
    block: BlockId,
    at: usize,
}

/// Who reads a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Reader {
    /// An op.
    Op { block: BlockId, at: usize },
    /// A phi, on the way from this block.
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

/// What becomes of a read.
#[derive(Clone, Copy, Debug)]
enum Change {
    /// This op reads the stepped value.
    To(usize, Op),
    /// It reads what is made where this block begins.
    Made(Reader, BlockId),
}

/// The memory that it works in.
#[derive(Debug, Default)]
pub(crate) struct Steps {
    loops: Loops,
    steps: Vec<Step>,
    /// By value: its block and place, if an op defines it.
    defs: Vec<(BlockId, u32)>,
    /// By value: the head of the list of its reads, in `reads`; [`END`] if there are none so far; [`NONE`] if it is no
    /// counter.
    heads: Vec<u32>,
    reads: Vec<(Reader, u32)>,
    /// By block: the step whose counter was last found to live into it, and the one from which control was last found
    /// to come there.
    lives: Vec<u32>,
    behind: Vec<u32>,
    work: Vec<BlockId>,
    changes: Vec<Change>,
    /// What is made where blocks begin, of all steps.
    made: Vec<(BlockId, Op, Span)>,
    ops: Vec<(Op, Span)>,
}

impl Steps {
    /// Runs over `func`, which is in SSA form; says how many counters end at their step now.
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

    /// Finds the steps.
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
                    // The same step by another way is the same.
                    && !args[..i].contains(&args[i])
                {
                    let (x, at) = (phi.dst, at as usize);
                    self.steps.push(Step { head, x, next, by, width, block, at });
                }
            }
        }
    }

    /// What a value is a copy of. There are few: [`crate::values`] has seen to that, if it has run.
    fn copied(&self, func: &Func, mut v: VReg) -> VReg {
        for _ in 0..MAX_COPIES {
            match func.ops.get(self.defs[v.index()].1 as usize) {
                Some(Op::Mov { width: Width::W64, src: Val::Reg(src), .. }) => v = *src,
                Some(_) | None => break,
            }
        }
        v
    }

    /// Lists who reads the counters.
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
        // An op that reads a value twice changes once.
        if *head != NONE && self.reads.get(*head as usize).is_none_or(|(last, _)| *last != by) {
            let next = core::mem::replace(head, crate::num::small(self.reads.len()));
            self.reads.push((by, next));
        }
    }

    /// Ends a counter at its step, if all that reads it behind that can do without it.
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
            // What another step has changed does not read it any more.
            if !is_behind || !reader.reads(step.x, func, ssa) {
                continue;
            }
            if !ssa.tree.dominates(step.block, block) || self.changes.len() == MAX_READS {
                return false;
            }
            if let Reader::Op { at, .. } = reader
                // In the block of the step what stands before it reads the counter of the round before.
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

    /// Finds the blocks that a counter lives into; false if there are too many.
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

    /// A counter lives in a block, and into it unless it is the one of its phi; false if those are too many.
    fn live_into(&mut self, block: BlockId, step: Step, number: u32) -> bool {
        if block != step.head && core::mem::replace(&mut self.lives[block.index()], number) != number {
            self.work.push(block);
        }
        self.work.len() <= MAX_BLOCKS
    }

    /// Finds of these blocks those that control may come to from a step before the next round.
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

    /// Where the loop has been left before this read: of the blocks on all ways there one in the fewest loops.
    fn outside(&self, func: &Func, ssa: &Ssa, step: Step, reader: Reader, block: BlockId) -> Option<BlockId> {
        let depth = |block| self.loops.depth(block, MAX_NEST);
        // On the way out of a round it would be made in each.
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

    /// Does what was found.
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

    /// Puts what was made where blocks begin.
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

/// What reads a counter as an op that reads the stepped one instead, at no cost.
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

/// `x + imm`, of the stepped one.
fn less(width: Width, dst: VReg, imm: i64, by: i64, step: Step, constants: Constants) -> Option<Op> {
    // Half of a counter says nothing of all of it.
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

/// The same address, of the stepped one.
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

/// Whether an access takes an offset as it is: where they have a limit, only those that count elements go up to it, and
/// all others have nine bits, one of them the sign (arm64).
fn is_taken(off: i32, size: Size, max_offset: i32) -> bool {
    let counts = off >= 0 && off.unsigned_abs().is_multiple_of(size.bytes());
    off.unsigned_abs() <= max_offset as u32 && (max_offset == i32::MAX || counts || (-256..256).contains(&off))
}
