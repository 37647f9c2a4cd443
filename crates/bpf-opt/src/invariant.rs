//! Moves loop-invariant ops and constants in front of the loop.
//!
//! Problem: BPF has ten registers, so its compilers compute values in a loop that they cannot keep in registers:
//! constants of 64 bits, addresses, extensions. Ops that other passes have made (the multiplier of a division) also
//! stand in the loop. Approach, in SSA form: consider the natural loops, innermost first, each with the block in front
//! of it, which exists if the loop has a single entry edge ([`crate::ssa::tidy`] provides it). An op without effects
//! whose operands are defined outside moves in front of the outermost loop of which that is true. A constant that its
//! op cannot take at no cost ([`Constants`]) gets a register there, which all readers share. Loads stay: pieces of the
//! stack are values by now (`slots`), and other memory may be written by a thread that the loop waits for.
//!
//! Each moved value occupies a register throughout the loop, and spilling another value for it costs what was saved.
//! The pass therefore estimates from above how many values a loop holds: the values that come in, the values shared by
//! several of its blocks, and the greatest number of other values that live in one of its blocks. If they fill the
//! machine's registers, nothing moves. Nothing moves out of a loop with a call, since a call leaves few registers
//! intact. An op of one short instruction moves only if [`MARGIN`] registers remain.
//!
//! Invariants: an op that could trap, write or be observed is not executed where it was not executed before. A division
//! moves only if every round executes it, since it is slow. An op leaves at most [`MAX_NEST`] loops, so the pass is
//! linear.

use crate::dead::is_pure;
use crate::faults::planted;
use crate::loops::Loops;
use crate::ssa::{NONE, Ssa};
use bpf_isa::{Cond, Size, Width};
use bpf_lir::{BinOp, BlockId, Func, Op, Span, VReg, Val, narrow};

/// The most loops that an op leaves, and the most loops around a block that a value is counted in.
const MAX_NEST: usize = 8;
/// How many of the newest constants are searched for an equal one.
const MAX_SEEN: usize = 16;
/// How many registers must be left for an op of one short instruction to move.
const MARGIN: u32 = 3;

/// The constants that an op takes at no cost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Constants {
    /// Constants of 32 bits, sign-extended (x86-64).
    Signed32,
    /// Sums and comparisons take twelve bits, optionally shifted left by twelve; logic takes a rotated run of ones,
    /// repeated; products take none; stores take zero only (arm64).
    TwelveOrMask,
}

impl Constants {
    /// Returns the constant that the machine must put into a register for this op, as the op reads it.
    pub(crate) fn costly(self, op: &Op) -> Option<i64> {
        let (width, imm, free) = match *op {
            Op::Bin { op, width, b: Val::Imm(imm), .. } => (width, imm, self.is_free(op, width, imm)),
            Op::Branch { width, cond, b: Val::Imm(imm), .. } | Op::Select { width, cond, b: Val::Imm(imm), .. } => {
                (width, imm, self.is_compared(cond, width, imm))
            }
            Op::Store { size, src: Val::Imm(imm), .. } => {
                let width = if size == Size::DW { Width::W64 } else { Width::W32 };
                let stored = imm as u64 & crate::rules::ones(size.bits().into());
                return match self {
                    Constants::Signed32 => (size == Size::DW && i32::try_from(imm).is_err()).then_some(imm),
                    Constants::TwelveOrMask => (stored != 0).then_some(narrow(width, stored) as i64),
                };
            }
            Op::Bin { b: Val::Reg(_), .. }
            | Op::Branch { b: Val::Reg(_), .. }
            | Op::Select { b: Val::Reg(_), .. }
            | Op::Store { src: Val::Reg(_), .. }
            | Op::Mov { .. }
            | Op::Ext { .. }
            | Op::Neg { .. }
            | Op::Bswap { .. }
            | Op::AddShift { .. }
            | Op::Confine { .. }
            | Op::FrameAddr { .. }
            | Op::SymAddr { .. }
            | Op::SubprogAddr { .. }
            | Op::Load { .. }
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
            | Op::Exit { .. } => return None,
        };
        (!free).then_some(narrow(width, imm as u64) as i64)
    }

    fn is_free(self, op: BinOp, width: Width, imm: i64) -> bool {
        let short = width == Width::W32 || i32::try_from(imm).is_ok();
        let at_width = sign(width, imm);
        match (op, self) {
            // A mask of the low half is a copy of 32 bits.
            (BinOp::And, Constants::Signed32) => short || imm as u64 == 0xffff_ffff,
            (BinOp::Add | BinOp::Sub | BinOp::Mul | BinOp::Or | BinOp::Xor, Constants::Signed32) => short,
            (BinOp::Add | BinOp::Sub, Constants::TwelveOrMask) => is_twelve(at_width.unsigned_abs()),
            (BinOp::And | BinOp::Or | BinOp::Xor, Constants::TwelveOrMask) => is_mask(width, imm),
            (BinOp::Mul, Constants::TwelveOrMask) | (BinOp::MulHighU | BinOp::MulHighS, _) => false,
            // Shift counts are part of the instruction. Division by a constant is turned into multiplication by
            // `values`.
            (
                BinOp::Div
                | BinOp::SDiv
                | BinOp::Mod
                | BinOp::SMod
                | BinOp::Shl
                | BinOp::Shr
                | BinOp::Sar
                | BinOp::Rotl,
                _,
            ) => true,
        }
    }

    fn is_compared(self, cond: Cond, width: Width, imm: i64) -> bool {
        let at_width = sign(width, imm);
        match self {
            Constants::Signed32 => width == Width::W32 || i32::try_from(imm).is_ok(),
            Constants::TwelveOrMask if cond == Cond::Set => is_mask(width, imm),
            // A comparison with a neighbouring constant may be equivalent.
            Constants::TwelveOrMask => (-1..=1).any(|by| is_twelve(at_width.saturating_add(by).unsigned_abs())),
        }
    }
}

fn sign(width: Width, imm: i64) -> i64 {
    match width {
        Width::W32 => i64::from(crate::num::low(imm)),
        Width::W64 => imm,
    }
}

/// Whether a number has at most twelve bits, or 24 of which the lower twelve are zero.
fn is_twelve(magnitude: u64) -> bool {
    magnitude < 1 << 12 || (magnitude < 1 << 24 && magnitude & 0xfff == 0)
}

/// Whether a constant is a rotated run of ones that repeats to fill the width. Zero and all ones count as well.
fn is_mask(width: Width, imm: i64) -> bool {
    let value = match width {
        Width::W32 => narrow(width, imm as u64) | (imm as u64) << 32,
        Width::W64 => imm as u64,
    };
    let period = [2u32, 4, 8, 16, 32, 64].into_iter().find(|n| value.rotate_left(*n) == value).unwrap_or(64);
    // In each period the bits change from 0 to 1 once and back once.
    (value ^ value.rotate_left(1)).count_ones() <= 2 * (64 / period)
}

/// Register pressure of a loop.
#[derive(Clone, Copy, Default, Debug)]
struct Held {
    /// A lower bound of the values that live across its blocks (`held`), and the greatest number of other values that
    /// live at once in one of its blocks (`local`).
    held: u32,
    local: u32,
    /// Whether it contains a call.
    calls: bool,
}

/// Scratch memory of the pass, reused from function to function.
#[derive(Debug, Default)]
pub(crate) struct Invariant {
    loops: Loops,
    /// By loop: its register pressure.
    held: Vec<Held>,
    /// By value: the block in which it is defined.
    blocks: Vec<BlockId>,
    /// By value: the loop in which it was last counted.
    counted: Vec<u32>,
    /// By value: whether a block other than its own reads it.
    shared: Vec<bool>,
    /// By value: whether an op reads it that cannot take a constant in its place.
    kept: Vec<bool>,
    /// By value: whether it is a constant.
    constant: Vec<bool>,
    /// By value: whether it lives, while one block is walked backward.
    lives: Vec<bool>,
    /// The ops that move, each with the block that it moves to.
    moved: Vec<(BlockId, Op, Span)>,
    /// Constants in registers: the number, its register, and the block in which it is made.
    constants: Vec<(i64, VReg, BlockId)>,
    ops: Vec<(Op, Span)>,
}

impl Invariant {
    /// Runs the pass over `func`, which is in SSA form; returns how many ops and constants moved.
    pub(crate) fn run(&mut self, func: &mut Func, ssa: &Ssa, constants: Constants, registers: u8) -> u32 {
        self.loops.find(func, ssa);
        if self.loops.all().iter().all(|this| this.before.is_none()) {
            return 0;
        }
        self.count(func, ssa);
        self.moved.clear();
        self.constants.clear();
        for block in ssa.cfg.rpo() {
            let inside = self.loops.inside(*block);
            if inside == NONE {
                continue;
            }
            let range = func.range(*block);
            let mut kept = range.start;
            for at in range.clone() {
                let (mut op, span) = (func.ops[at], func.spans[at]);
                if let Some(v) = op.def()
                    && self.may_move(&op, v, *block, ssa)
                    && let Some(to) = self.outside(&op, inside, ssa, registers)
                {
                    self.blocks[v.index()] = to;
                    self.moved.push((to, op, span));
                    continue;
                }
                if let Some(imm) = constants.costly(&op)
                    && let Some(v) = self.constant(func, imm, *block, span, ssa, registers)
                    && let Op::Bin { b, .. } | Op::Branch { b, .. } | Op::Select { b, .. } | Op::Store { src: b, .. } =
                        &mut op
                {
                    *b = Val::Reg(v);
                }
                (func.ops[kept], func.spans[kept]) = (op, span);
                kept += 1;
            }
            func.blocks[block.index()].ops = crate::num::small(range.start)..crate::num::small(kept);
        }
        self.place(func);
        crate::num::small(self.moved.len())
    }

    /// Computes the register pressure of each loop.
    fn count(&mut self, func: &Func, ssa: &Ssa) {
        let values = func.vregs as usize;
        self.held.clear();
        self.held.resize(self.loops.all().len(), Held::default());
        self.blocks.clear();
        self.blocks.resize(values, func.order[0]);
        self.counted.clear();
        self.counted.resize(values, NONE);
        for flags in [&mut self.shared, &mut self.kept, &mut self.constant, &mut self.lives] {
            flags.clear();
            flags.resize(values, false);
        }
        for (block, ops) in func.in_order() {
            for op in ops {
                if let Some(v) = op.def() {
                    self.blocks[v.index()] = block;
                    self.constant[v.index()] = matches!(op, Op::Mov { src: Val::Imm(_), .. });
                }
            }
        }
        for (block, phi) in ssa.all_phis() {
            self.blocks[phi.dst.index()] = block;
        }
        for block in ssa.cfg.rpo() {
            for op in func.block_ops(*block) {
                op.for_each_use(|v| self.read(v, *block, ssa));
                if let Op::Select { yes: v, .. } | Op::AddShift { b: v, .. } = *op {
                    self.kept[v.index()] = true;
                }
            }
        }
        for (block, phi) in ssa.all_phis() {
            for (arg, pred) in ssa.args(block, phi).iter().zip(ssa.cfg.preds(block)) {
                // A constant is copied to the phi directly.
                if !self.constant[arg.index()] {
                    self.read(*arg, *pred, ssa);
                }
            }
        }
        for block in ssa.cfg.rpo() {
            if self.loops.inside(*block) != NONE {
                self.count_block(func, *block, ssa);
            }
        }
        // Values of an inner loop also occupy registers of the loops around it.
        for i in 0..self.held.len() {
            let (parent, Held { local, calls, .. }) = (self.loops.all()[i].parent, self.held[i]);
            if let Some(parent) = self.held.get_mut(parent as usize) {
                parent.local = parent.local.max(local);
                parent.calls |= calls;
            }
        }
    }

    /// Counts a read of a value in `block` for each loop around the block that the value comes into.
    fn read(&mut self, v: VReg, block: BlockId, ssa: &Ssa) {
        let (defined, inside) = (self.blocks[v.index()], self.loops.inside(block));
        if defined != block {
            self.shared[v.index()] = true;
        }
        if inside == NONE || core::mem::replace(&mut self.counted[v.index()], inside) == inside {
            return;
        }
        for (number, this) in self.loops.around(inside).take(MAX_NEST) {
            if ssa.tree.dominates(this.head, defined) {
                return;
            }
            self.held[number].held += 1;
        }
    }

    /// Counts a value that is defined in a loop and read in several blocks.
    fn share(&mut self, inside: u32) {
        for (number, _) in self.loops.around(inside).take(MAX_NEST) {
            self.held[number].held += 1;
        }
    }

    /// Adds the values of one block to its loop: those it shares with other blocks, and the most others that live at
    /// once.
    fn count_block(&mut self, func: &Func, block: BlockId, ssa: &Ssa) {
        let inside = self.loops.inside(block);
        let (mut live, mut calls) = (0u32, false);
        let ops = func.block_ops(block);
        // Shared values live throughout the block.
        for v in ops.iter().filter_map(Op::def).chain(ssa.phis(block).map(|phi| phi.dst)) {
            if self.shared[v.index()] {
                self.lives[v.index()] = true;
                self.share(inside);
                live += 1;
            }
        }
        let shared = live;
        // An argument of a phi usually gets the phi's register, and lives to the end of the block.
        for succ in ssa.cfg.succs(block) {
            let Some(pred) = ssa.pred(block, succ) else { continue };
            for phi in ssa.phis(succ) {
                let arg = ssa.args(succ, phi)[pred];
                live += u32::from(!self.constant[arg.index()] && self.lives_in(arg, block));
            }
        }
        let mut most = live;
        for op in ops.iter().rev() {
            if let Some(v) = op.def() {
                live -= u32::from(core::mem::replace(&mut self.lives[v.index()], false));
            }
            op.for_each_use(|v| live += u32::from(self.lives_in(v, block)));
            most = most.max(live);
            calls |= matches!(op, Op::Call { .. } | Op::TailCall { .. });
        }
        let this = &mut self.held[inside as usize];
        this.local = this.local.max(most - shared);
        this.calls |= calls;
    }

    /// Marks a value as living at a read, in a backward walk of `block`; returns whether it is defined in the block and
    /// did not live behind the read.
    fn lives_in(&mut self, v: VReg, block: BlockId) -> bool {
        self.blocks[v.index()] == block && !core::mem::replace(&mut self.lives[v.index()], true)
    }

    /// Whether an op may be executed in front of its loop if its operands are available there.
    fn may_move(&self, op: &Op, v: VReg, block: BlockId, ssa: &Ssa) -> bool {
        match *op {
            // Most constants are operands of the ops that read them, or are copied to a phi.
            Op::Mov { src: Val::Imm(_), .. } => self.kept[v.index()],
            Op::Bin { op: BinOp::Div | BinOp::SDiv | BinOp::Mod | BinOp::SMod, .. } => {
                let head = self.loops.all()[self.loops.inside(block) as usize].head;
                let is_in = |pred: &BlockId| !ssa.tree.dominates(head, *pred);
                ssa.cfg.preds(head).iter().all(|pred| is_in(pred) || ssa.tree.dominates(block, *pred))
            }
            ref op => is_pure(op),
        }
    }

    /// Returns the block in front of the outermost loop that an op may leave, such that each loop that it leaves has a
    /// register for it.
    fn outside(&mut self, op: &Op, inside: u32, ssa: &Ssa, registers: u8) -> Option<BlockId> {
        let margin = if is_long(op) { 0 } else { MARGIN };
        let mut to = None;
        let mut left = 0;
        for (number, this) in self.loops.around(inside).take(MAX_NEST) {
            let mut made = false;
            op.for_each_use(|v| made |= ssa.tree.dominates(this.head, self.blocks[v.index()]));
            let Held { held, local, calls } = self.held[number];
            let full = calls || held + local + margin >= u32::from(registers);
            if made && !planted!(RoundsAlike) || full || this.before.is_none() {
                break;
            }
            to = this.before;
            left += 1;
        }
        // The value is held by each loop that the op leaves.
        for (number, _) in self.loops.around(inside).take(left) {
            self.held[number].held += 1;
        }
        to
    }

    /// Returns a register with a constant that reaches this block.
    fn constant(
        &mut self,
        func: &mut Func,
        imm: i64,
        block: BlockId,
        span: Span,
        ssa: &Ssa,
        registers: u8,
    ) -> Option<VReg> {
        let inside = self.loops.inside(block);
        // A constant in front of an unrelated loop would have to live up to here.
        let around =
            |made: BlockId| self.loops.around(inside).take(MAX_NEST).any(|(_, this)| this.before == Some(made));
        let known = self.constants.iter().rev().take(MAX_SEEN);
        if let Some((_, v, _)) = known.filter(|(same, ..)| *same == imm).find(|(_, _, made)| around(*made)) {
            return Some(*v);
        }
        let mut op = Op::Mov { width: Width::W64, dst: VReg(func.vregs), src: Val::Imm(imm) };
        let to = self.outside(&op, inside, ssa, registers)?;
        let v = func.new_vreg();
        if let Some(dst) = op.def_mut() {
            *dst = v;
        }
        self.blocks.push(to);
        self.moved.push((to, op, span));
        self.constants.push((imm, v, to));
        Some(v)
    }

    /// Inserts the moved ops at the ends of their blocks, in the order in which they were found.
    fn place(&mut self, func: &mut Func) {
        self.moved.sort_by_key(|(block, ..)| *block);
        for moved in self.moved.chunk_by(|(a, ..), (b, ..)| a == b) {
            let Some((block, ..)) = moved.first() else { continue };
            let range = func.range(*block);
            let ends = func.block_ops(*block).last().is_some_and(Op::ends_block);
            let all = || range.clone().map(|i| (func.ops[i], func.spans[i]));
            self.ops.clear();
            self.ops.extend(all().take(range.len() - usize::from(ends)));
            self.ops.extend(moved.iter().map(|(_, op, span)| (*op, *span)));
            self.ops.extend(all().skip(range.len() - usize::from(ends)));
            func.set_ops(*block, self.ops.drain(..));
        }
    }
}

/// Whether an op takes more than one cycle, or a long instruction.
fn is_long(op: &Op) -> bool {
    match *op {
        Op::Bin { op, .. } => match op {
            BinOp::Mul | BinOp::MulHighU | BinOp::MulHighS | BinOp::Div | BinOp::SDiv | BinOp::Mod | BinOp::SMod => {
                true
            }
            BinOp::Add
            | BinOp::Sub
            | BinOp::And
            | BinOp::Or
            | BinOp::Xor
            | BinOp::Shl
            | BinOp::Shr
            | BinOp::Sar
            | BinOp::Rotl => false,
        },
        ref op => {
            matches!(op, Op::Mov { src: Val::Imm(_), .. } | Op::SymAddr { .. } | Op::Select { .. } | Op::Confine { .. })
        }
    }
}
