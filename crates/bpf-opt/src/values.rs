//! Value numbering: removes repeated computations, folds constants, and replaces ops by cheaper ones.
//!
//! One walk in reverse postorder over a function in SSA form writes the function anew. Each op is looked at with its
//! operands as already rewritten:
//!
//! * constants are folded, and the rules of `rules` are applied (`rule`);
//! * bytes that are loaded from adjacent addresses and combined become one load (`wide`);
//! * division by a constant becomes multiplication (`divide`), and two products that amount to a rotation become one
//!   product and a rotation (`rotated`);
//! * the outcome of a comparison that is added becomes a selection, and a selection that one bit decides becomes a mask
//!   (`outcome`);
//! * a load whose result is known from a store or load before it is removed (`memory`);
//! * an op that was computed before with the same operands, on every path to here, is not computed again (`table`).
//!
//! Ops do not move, except for loads that are combined: the combined load stands where its bytes are combined, and no
//! write to them lies between.
//!
//! Invariants: control flow stays as it is. Each op is replaced by ops that compute the same result for all inputs, or
//! for all inputs within the bounds that `bits` has found. The number of reads of each value is exact, so that an op
//! with one reader can be changed in place.

mod bits;
mod divide;
mod memory;
mod outcome;
mod reach;
mod rotated;
mod rule;
mod table;
mod wide;
pub(crate) use outcome::{MASKED, STEPPED, mask_width, sign_bit, spread};
pub(crate) use rotated::shifted;

use crate::dead::is_pure;
use crate::faults::planted;
use crate::invariant::Constants;
use crate::operand::Takes;
use crate::rules::{self, Operands, ones, sign};
use crate::ssa::{NONE, Phi, Ssa};
use bits::bits_of;
use bpf_isa::{Cond, Size, Width};
use bpf_lir::{Base, BinOp, BlockId, Func, Mem, Op, Span, VReg, Val, bswap, extend, narrow};
use memory::Known;
use reach::Reach;

/// How deep the parts of a rewritten op are rewritten again.
const MAX_DEPTH: u32 = 6;
/// How many phis of a block are compared with each other.
const MAX_PHIS: usize = 12;
/// How many edges to the head of a loop are searched for the one that carries a given value.
const MAX_WAYS: usize = 12;
/// How many copies are followed to find the origin of a phi's argument.
const MAX_COPIES: u32 = 4;

/// The machine's properties that passes depend on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Addresses {
    /// The greatest magnitude of an offset in an address that costs nothing.
    pub max_offset: i32,
    /// Whether an index may be shifted by 0 to 3 with an offset beside it. Otherwise the shift is 0 or the logarithm of
    /// the access's size, and the offset is 0.
    pub any_index: bool,
    /// The operands that an op takes in place of a register.
    pub operands: Takes,
    /// The constants that an op takes at no cost.
    pub constants: Constants,
    /// How many values a loop may hold in registers.
    pub registers: u8,
}

impl Default for Addresses {
    /// A machine without limits on offsets, with memory operands and 13 registers.
    fn default() -> Self {
        Addresses {
            max_offset: i32::MAX,
            any_index: true,
            operands: Takes::Memory,
            constants: Constants::Signed32,
            registers: 13,
        }
    }
}

/// Scratch memory of the pass, reused from function to function.
#[derive(Debug, Default)]
pub(crate) struct Values {
    ops: Vec<Op>,
    spans: Vec<Span>,
    /// By value: the index in `ops` of the op that defines it; [`NONE`] for phis, parameters, and values whose op was
    /// not reached yet.
    defs: Vec<u32>,
    /// By value: the block in which it is defined.
    blocks: Vec<BlockId>,
    /// By value: how many reads it has that are already emitted or not yet rewritten.
    uses: Vec<u32>,
    /// By value: no bit at or above this position is set.
    bits: Vec<u8>,
    /// Hash table of values by the op that computes them, with open addressing.
    table: Vec<VReg>,
    reach: Reach,
    memory: Known,
    leaves: Vec<wide::Leaf>,
    /// Pairs of phis: one that equals another, and the other.
    united: Vec<(VReg, VReg)>,
}

/// The state while one function is rewritten.
struct Pass<'a> {
    s: &'a mut Values,
    ssa: &'a mut Ssa,
    addresses: Addresses,
    block: BlockId,
    /// Index of the block's first op in `ops`.
    start: u32,
    span: Span,
    done: u32,
}

impl Values {
    /// Runs the pass over `func`, which is in SSA form; returns how many changes it made.
    pub(crate) fn run(&mut self, func: &mut Func, ssa: &mut Ssa, addresses: Addresses) -> u32 {
        self.prepare(func, ssa);
        self.find_bits(func, ssa);
        let entry = func.order[0];
        let mut pass = Pass { s: self, ssa, addresses, block: entry, start: 0, span: Span::default(), done: 0 };
        for at in 0..pass.ssa.cfg.rpo().len() {
            let block = pass.ssa.cfg.rpo()[at];
            pass.block = block;
            pass.start = crate::num::small(pass.s.ops.len());
            pass.s.memory.clear();
            for i in func.range(block) {
                pass.span = func.spans[i];
                pass.op(func.ops[i]);
            }
            func.blocks[block.index()].ops = pass.start..crate::num::small(pass.s.ops.len());
        }
        let done = pass.done;
        func.vregs = crate::num::small(self.defs.len());
        core::mem::swap(&mut func.ops, &mut self.ops);
        core::mem::swap(&mut func.spans, &mut self.spans);
        ssa.resolve_args();
        done
    }

    fn prepare(&mut self, func: &Func, ssa: &mut Ssa) {
        let values = func.vregs as usize;
        self.ops.clear();
        self.spans.clear();
        self.defs.clear();
        self.defs.resize(values, NONE);
        self.blocks.clear();
        self.blocks.resize(values, func.order[0]);
        self.uses.clear();
        self.uses.resize(values, 0);
        for op in func.all_ops() {
            op.for_each_use(|v| self.uses[v.index()] += 1);
        }
        for (block, phi) in ssa.all_phis() {
            self.blocks[phi.dst.index()] = block;
            for arg in ssa.args(block, phi) {
                self.uses[arg.index()] += 1;
            }
        }
        self.reach.prepare(func, ssa);
        ssa.same.reset(func.vregs);
        self.unite_phis(func, ssa);
        self.table.clear();
        self.table.resize((2 * func.ops.len()).next_power_of_two(), VReg(NONE));
    }

    /// Unites phis of a block whose arguments are equal for every predecessor, such as a counter and its copy. Each of
    /// the first [`MAX_PHIS`] phis of a block is compared with those before it.
    fn unite_phis(&mut self, func: &Func, ssa: &mut Ssa) {
        for (op, at) in func.order.iter().flat_map(|block| func.range(*block)).map(|at| (&func.ops[at], at)) {
            if let (Some(v), Op::Mov { .. }) = (op.def(), op) {
                self.defs[v.index()] = crate::num::small(at);
            }
        }
        // Returns the value that `v` is a copy of, or the constant that `v` is.
        let origin = |mut v: VReg| {
            for _ in 0..MAX_COPIES {
                match func.ops.get(self.defs[v.index()] as usize) {
                    Some(Op::Mov { width, src: Val::Imm(imm), .. }) => {
                        return Val::Imm(narrow(*width, *imm as u64) as i64);
                    }
                    Some(Op::Mov { width: Width::W64, src: Val::Reg(src), .. }) => v = *src,
                    Some(_) | None => break,
                }
            }
            Val::Reg(v)
        };
        let alike = |a: VReg, b: VReg| a == b || origin(a) == origin(b);
        for block in ssa.cfg.rpo() {
            for (i, phi) in ssa.phis(*block).take(MAX_PHIS).enumerate().skip(1) {
                let args = ssa.args(*block, phi);
                let is_same = |other: &Phi| ssa.args(*block, *other).iter().zip(args).all(|(a, b)| alike(*a, *b));
                if let Some(other) = ssa.phis(*block).take(i).find(is_same) {
                    let reads = core::mem::take(&mut self.uses[phi.dst.index()]);
                    self.uses[other.dst.index()] += reads;
                    self.united.push((phi.dst, other.dst));
                }
            }
        }
        for (v, is) in self.united.drain(..) {
            ssa.same.set(v, is);
        }
        self.defs.fill(NONE);
    }
}

/// The destination of an op whose result has no register yet.
const NEW: VReg = VReg(NONE);

impl Pass<'_> {
    /// Returns the op that defines a value, if it was emitted.
    fn def(&self, v: VReg) -> Option<&Op> {
        self.s.ops.get(self.s.defs[v.index()] as usize)
    }

    fn constant(&self, v: VReg) -> Option<i64> {
        match self.def(v) {
            Some(Op::Mov { width: Width::W64, src: Val::Imm(imm), .. }) => Some(*imm),
            Some(_) | None => None,
        }
    }

    /// Returns a value as an operand: the constant that it is, or its register.
    fn operand(&self, v: VReg) -> Val {
        self.constant(v).map_or(Val::Reg(v), Val::Imm)
    }

    /// Returns the register `v` in place of the constant operand `b` that it holds, if the constant would cost an
    /// instruction at each use: it has more than 32 bits, and was made in another block, usually before a loop.
    fn kept(&self, op: Option<BinOp>, width: Width, b: Val, v: Option<VReg>) -> Val {
        let (Val::Imm(imm), Some(v)) = (b, v) else { return b };
        let short = i32::try_from(imm).is_ok() || width == Width::W32;
        // A mask that clears the upper half is encoded as an operation of 32 bits.
        let mask = op == Some(BinOp::And) && u32::try_from(imm).is_ok();
        let here = self.s.blocks[v.index()] == self.block || self.constant(v) != Some(imm);
        let plain =
            matches!(op, None | Some(BinOp::Add | BinOp::Sub | BinOp::And | BinOp::Or | BinOp::Xor | BinOp::Mul));
        if short || mask || here || !plain { b } else { Val::Reg(v) }
    }

    /// Returns a value with the same low half that is cheaper to have: an op of 32 bits may read it instead.
    fn low(&self, width: Width, v: VReg) -> VReg {
        match self.def(v) {
            Some(Op::Mov { width: Width::W32, src: Val::Reg(src), .. }) if width == Width::W32 => *src,
            Some(_) | None => v,
        }
    }

    /// Returns a value by which a shift at this width may go instead: an op that keeps the count's low bits is skipped,
    /// since shifts read only those.
    fn count(&self, width: Width, v: VReg) -> VReg {
        let looked_at = u64::from(rules::bits(width)) - 1;
        match self.def(v) {
            Some(Op::Bin { op: BinOp::And, a, b: Val::Imm(mask), .. })
                if *mask as u64 & looked_at == looked_at || planted!(CountsUnmasked) =>
            {
                self.low(Width::W32, *a)
            }
            Some(Op::Ext { src, .. }) => *src,
            Some(_) | None => self.low(Width::W32, v),
        }
    }

    /// Rewrites and emits one op of the function.
    fn op(&mut self, mut op: Op) {
        op.for_each_use_mut(|v| {
            *v = self.ssa.same.find(*v);
            self.s.uses[v.index()] -= 1;
        });
        let Some(dst) = op.def() else {
            let op = self.effect(op);
            self.s.memory.after(&op, crate::num::small(self.s.ops.len()));
            return self.emit(op);
        };
        if !is_value(&op) {
            let op = self.effect(op);
            self.s.memory.after(&op, crate::num::small(self.s.ops.len()));
            self.define(dst, &op);
            return self.emit(op);
        }
        let before = op;
        let value = self.value(op, dst, 0);
        if value != dst {
            self.done += 1;
            self.s.uses[value.index()] += core::mem::take(&mut self.s.uses[dst.index()]);
            self.ssa.same.set(dst, value);
        } else if self.def(value) != Some(&before) {
            self.done += 1;
        }
    }

    fn emit(&mut self, op: Op) {
        op.for_each_use(|v| self.s.uses[v.index()] += 1);
        self.s.ops.push(op);
        self.s.spans.push(self.span);
    }

    /// Records that the next op emitted is `op` and defines `dst`.
    fn define(&mut self, dst: VReg, op: &Op) {
        self.s.defs[dst.index()] = crate::num::small(self.s.ops.len());
        self.s.reach.define(dst, crate::num::small(self.s.ops.len()));
        self.s.blocks[dst.index()] = self.block;
        self.s.bits[dst.index()] = bits_of(op, &self.s.bits);
    }

    /// Rewrites the operands of an op that has effects.
    fn effect(&mut self, op: Op) -> Op {
        match op {
            Op::Store { size, mem, src } => {
                let mem = self.mem(mem, Some(size));
                let src = match src {
                    Val::Reg(v) => self.operand(self.low_bytes(size, v)),
                    Val::Imm(_) => src,
                };
                Op::Store { size, mem, src }
            }
            Op::StoreRelease { size, mem, src } => Op::StoreRelease { size, mem: self.mem(mem, None), src },
            Op::LoadAcquire { size, dst, mem } => Op::LoadAcquire { size, dst, mem: self.mem(mem, None) },
            Op::Atomic { op, width, mem, src, fetch } => Op::Atomic { op, width, mem: self.mem(mem, None), src, fetch },
            Op::CmpXchg { width, mem, expected, new, dst } => {
                Op::CmpXchg { width, mem: self.mem(mem, None), expected, new, dst }
            }
            Op::Branch { width, cond, a, b, target } => {
                let (width, cond, a, b) = self.comparison(width, cond, a, b);
                Op::Branch { width, cond, a, b, target }
            }
            Op::Bound { a, limit, ctx } => {
                let limit = match limit {
                    Val::Reg(v) => self.operand(v),
                    Val::Imm(_) => limit,
                };
                Op::Bound { a, limit, ctx }
            }
            op @ (Op::Mov { .. }
            | Op::Ext { .. }
            | Op::Bin { .. }
            | Op::Neg { .. }
            | Op::Bswap { .. }
            | Op::AddShift { .. }
            | Op::Select { .. }
            | Op::Confine { .. }
            | Op::FrameAddr { .. }
            | Op::SymAddr { .. }
            | Op::SubprogAddr { .. }
            | Op::Load { .. }
            | Op::Call { .. }
            | Op::TailCall { .. }
            | Op::Check { .. }
            | Op::Stop { .. }
            | Op::Jump { .. }
            | Op::Exit { .. }) => op,
        }
    }

    /// Returns a value whose low bytes of this size are the same and that is cheaper to have.
    fn low_bytes(&self, size: Size, v: VReg) -> VReg {
        match self.def(v) {
            Some(Op::Mov { width: Width::W32, src: Val::Reg(src), .. }) if size != Size::DW => *src,
            Some(Op::Ext { from, src, .. }) if size.bits() <= from.bits() => *src,
            Some(Op::Bin { op: BinOp::And, a, b: Val::Imm(mask), width, .. })
                if size.bits() <= rules::bits(*width).into() && !(*mask as u64) & ones(size.bits().into()) == 0 =>
            {
                *a
            }
            Some(_) | None => v,
        }
    }

    /// Rewrites an address: constants that are added to the base, or to one part of a base that is a sum, go into the
    /// offset. `plain` is the size of a plain load or store, which may have an index.
    fn mem(&mut self, mem: Mem, plain: Option<Size>) -> Mem {
        let Base::Reg(v) = mem.base else { return mem };
        if plain.is_some_and(|size| self.is_indexed(v, mem.off, size)) {
            return mem;
        }
        if let Some((sum, added)) = self.apart(v)
            && let Some(off) = added.checked_add(i64::from(mem.off)).and_then(|off| i32::try_from(off).ok())
            && off.unsigned_abs() <= self.addresses.max_offset as u32
        {
            self.done += 1;
            let base = Base::Reg(self.number(sum, NEW));
            return Mem { base, off, region: mem.region };
        }
        let (base, added) = match self.def(v) {
            Some(Op::Bin { op: BinOp::Add, width: Width::W64, a, b: Val::Imm(imm), .. }) => (Base::Reg(*a), *imm),
            Some(Op::FrameAddr { off, .. }) => (Base::Frame, i64::from(*off)),
            Some(_) | None => return mem,
        };
        let off = added.checked_add(i64::from(mem.off)).and_then(|off| i32::try_from(off).ok());
        match off {
            Some(off) if off.unsigned_abs() <= self.addresses.max_offset as u32 || base == Base::Frame => {
                self.done += 1;
                let region = if base == Base::Frame { Mem::new(base, 0).region } else { mem.region };
                Mem { base, off, region }
            }
            Some(_) | None => mem,
        }
    }

    /// Whether an address is better left as the sum of two values that it is. The machine has no offset beside an
    /// index, and one of the two values already includes the constant and was made in another block, usually before a
    /// loop, while the sum without the constant is not available.
    fn is_indexed(&self, v: VReg, off: i32, size: Size) -> bool {
        if self.addresses.any_index || off != 0 {
            return false;
        }
        let there = |v: VReg| {
            let sum = matches!(self.def(v), Some(Op::Bin { op: BinOp::Add, b: Val::Imm(_), .. }));
            sum && self.s.blocks[v.index()] != self.block
        };
        let made = match self.def(v) {
            Some(&Op::Bin { op: BinOp::Add, width: Width::W64, a, b: Val::Reg(b), .. }) => there(a) || there(b),
            Some(&Op::AddShift { width: Width::W64, a, shift, .. }) => {
                there(a) && (shift == 0 || 1 << shift == size.bytes())
            }
            Some(_) | None => false,
        };
        made && self.apart(v).is_some_and(|(sum, _)| self.known(&sum).is_none())
    }

    /// Splits a sum of two values, one of which is itself a value plus a constant: returns the sum of the two values
    /// without the constant, and the constant.
    fn apart(&self, v: VReg) -> Option<(Op, i64)> {
        let part = |v: VReg| match self.def(v) {
            Some(Op::Bin { op: BinOp::Add, width: Width::W64, a, b: Val::Imm(imm), .. }) => Some((*a, *imm)),
            Some(_) | None => None,
        };
        match self.def(v).copied() {
            Some(Op::Bin { op: BinOp::Add, width: width @ Width::W64, a, b: Val::Reg(b), .. }) => {
                let (a, b, added) = match (part(a), part(b)) {
                    (_, Some((b, added))) => (a, b, added),
                    (Some((a, added)), None) => (a, b, added),
                    (None, None) => return None,
                };
                Some((Op::Bin { op: BinOp::Add, width, dst: NEW, a, b: Val::Reg(b) }, added))
            }
            Some(Op::AddShift { width: width @ Width::W64, a, b, shift, .. }) => {
                let (a, b, added) = match (part(a), part(b)) {
                    (_, Some((b, added))) => (a, b, added.checked_mul(1 << shift)?),
                    (Some((a, added)), None) => (a, b, added),
                    (None, None) => return None,
                };
                Some((Op::AddShift { width, dst: NEW, a, b, shift }, added))
            }
            Some(_) | None => None,
        }
    }

    /// Rewrites a comparison so that a constant is its second operand.
    fn comparison(&mut self, width: Width, cond: Cond, a: VReg, b: Val) -> (Width, Cond, VReg, Val) {
        let a = self.low(width, a);
        let b = match b {
            Val::Reg(v) => self.kept(None, width, self.operand(self.low(width, v)), Some(v)),
            Val::Imm(_) => b,
        };
        if let (Some(imm), Val::Reg(b)) = (self.constant(a), b)
            && self.constant(b).is_none()
        {
            return (width, turned(cond), b, self.kept(None, width, Val::Imm(imm), Some(a)));
        }
        if let Some(by_sign) = self.sign_of_extended(width, cond, a, b) {
            return by_sign;
        }
        // `(x & m) != 0` is a test of the bits of `m`.
        if let (Cond::Ne, Val::Imm(0)) = (cond, b)
            && let Some(Op::Bin { op: BinOp::And, width: inner, a: x, b: mask, .. }) = self.def(a).copied()
            && inner == width
            && self.s.uses[a.index()] == 0
        {
            return (width, Cond::Set, x, mask);
        }
        (width, cond, a, b)
    }

    /// Returns the value that an op without effects computes: a value computed before, or the op's own result, in `dst`
    /// or a new register.
    fn value(&mut self, op: Op, dst: VReg, depth: u32) -> VReg {
        let op = match op {
            Op::Mov { width, src, .. } => return self.mov(width, src, dst),
            Op::Ext { width, signed, from, src, .. } => match self.ext(width, signed, from, src, dst) {
                Ok(value) => return value,
                Err(op) => op,
            },
            Op::Bin { op, width, a, b, .. } => match self.bin(op, width, a, b, dst, depth) {
                Ok(value) => return value,
                Err(op) => op,
            },
            Op::Neg { width, src, .. } => match self.constant(src) {
                Some(imm) => return self.mov(width, Val::Imm(imm.wrapping_neg()), dst),
                None => Op::Neg { width, dst: NEW, src: self.low(width, src) },
            },
            Op::Bswap { size, src, .. } => match self.swap(size, src) {
                Some(value) => return value,
                None => match self.constant(src) {
                    Some(imm) => return self.mov(Width::W64, Val::Imm(bswap(size, imm as u64) as i64), dst),
                    None => Op::Bswap { size, dst: NEW, src },
                },
            },
            Op::Select { width, cond, a, b, yes, no, .. } => {
                let (width, cond, a, b) = self.comparison(width, cond, a, b);
                if yes == no {
                    return yes;
                }
                if let (Some(a), Val::Imm(b)) = (self.constant(a), b) {
                    return if cond.holds(width, a as u64, b as u64) { yes } else { no };
                }
                let select = Op::Select { width, cond, a, b, dst: NEW, yes, no };
                if let Some(value) = self.masked(select, dst) {
                    return value;
                }
                select
            }
            Op::Load { size, signed, swap, mem, .. } => {
                let mem = self.mem(mem, Some(size));
                match self.load(size, signed, swap, mem, dst, depth) {
                    Ok(value) => return value,
                    Err(op) => return self.push(op, dst),
                }
            }
            // No pass may decide whether a confinement's comparison holds.
            op @ Op::Confine { .. } => op,
            op @ (Op::AddShift { .. } | Op::FrameAddr { .. } | Op::SymAddr { .. } | Op::SubprogAddr { .. }) => op,
            op @ (Op::Store { .. }
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
            | Op::Exit { .. }) => op,
        };
        self.number(op, dst)
    }

    fn mov(&mut self, width: Width, src: Val, dst: VReg) -> VReg {
        match src {
            // A constant is made again at each use: if it lived from its first definition to there, it would occupy a
            // register.
            Val::Imm(imm) => {
                let imm = narrow(width, imm as u64) as i64;
                self.push(Op::Mov { width: Width::W64, dst: NEW, src: Val::Imm(imm) }, dst)
            }
            Val::Reg(v) => match self.constant(v) {
                Some(imm) => self.mov(width, Val::Imm(imm), dst),
                None if width == Width::W64 || self.s.bits[v.index()] <= 32 => v,
                None => {
                    let src = Val::Reg(self.low(width, v));
                    self.number(Op::Mov { width, dst: NEW, src }, dst)
                }
            },
        }
    }

    fn ext(&mut self, width: Width, signed: bool, from: Size, src: VReg, dst: VReg) -> Result<VReg, Op> {
        let bits = u32::from(self.s.bits[src.index()]);
        if let Some(imm) = self.constant(src) {
            let imm = extend(signed, from, imm as u64) as i64;
            return Ok(self.mov(width, Val::Imm(imm), dst));
        }
        if bits < from.bits() || (!signed && bits <= from.bits()) {
            return Ok(self.mov(width, Val::Reg(src), dst));
        }
        if !signed && from == Size::W {
            return Ok(self.mov(Width::W32, Val::Reg(src), dst));
        }
        if signed && from == Size::W && width == Width::W32 {
            return Ok(self.mov(Width::W32, Val::Reg(src), dst));
        }
        if signed
            && width == Width::W64
            && let Some(value) = self.sign_load(from, src)
        {
            return Ok(value);
        }
        let src = match from {
            Size::DW => src,
            Size::B | Size::H | Size::W => self.low(Width::W32, src),
        };
        Err(Op::Ext { width, signed, from, dst: NEW, src })
    }

    /// Rewrites an arithmetic op: returns an existing value, or the op in its cheapest form as `Err`.
    fn bin(&mut self, op: BinOp, width: Width, a: VReg, b: Val, dst: VReg, depth: u32) -> Result<VReg, Op> {
        let (mut a, mut b) = (a, b);
        if width == Width::W32 {
            a = self.low(width, a);
        }
        let mut made = None;
        if let Val::Reg(v) = b {
            b = self.operand(match op {
                BinOp::Shl | BinOp::Shr | BinOp::Sar | BinOp::Rotl => self.count(width, v),
                BinOp::Add
                | BinOp::Sub
                | BinOp::Mul
                | BinOp::MulHighU
                | BinOp::MulHighS
                | BinOp::Div
                | BinOp::SDiv
                | BinOp::Mod
                | BinOp::SMod
                | BinOp::And
                | BinOp::Or
                | BinOp::Xor => self.low(width, v),
            });
            made = Some(v);
        }
        if let Val::Reg(v) = b
            && is_commutative(op)
            && let Some(imm) = self.constant(a)
        {
            made = Some(a);
            (a, b) = (v, Val::Imm(imm));
        }
        if let Val::Imm(imm) = b {
            b = Val::Imm(canonical(op, width, imm));
            if let Some(x) = self.constant(a) {
                let value = op.apply(width, x as u64, imm as u64);
                return Ok(self.mov(Width::W64, Val::Imm(value as i64), dst));
            }
            if let (BinOp::Add, Width::W64, Some(Op::FrameAddr { off, .. })) = (op, width, self.def(a))
                && let Some(off) = i64::from(*off).checked_add(imm).and_then(|off| i32::try_from(off).ok())
            {
                return Ok(self.number(Op::FrameAddr { dst: NEW, off }, dst));
            }
        }
        if planted!(WrongRule)
            && let (BinOp::Sub, Val::Imm(_)) = (op, b)
        {
            return Err(Op::Bin { op: BinOp::Add, width, dst: NEW, a, b });
        }
        if let (BinOp::Add, Val::Imm(imm)) = (op, b)
            && imm != 0
            && self.is_next_round(width, a, imm)
        {
            return Err(Op::Bin { op, width, dst: NEW, a, b: self.kept(Some(op), width, b, made) });
        }
        if depth < MAX_DEPTH {
            let made_by = |v: VReg| match self.def(v) {
                Some(Op::Bin { op, .. }) => Some(*op),
                Some(_) | None => None,
            };
            let second = if let Val::Reg(b) = b { made_by(b) } else { None };
            let negative = |v: VReg| matches!(self.def(v), Some(Op::Neg { .. }));
            let negative = negative(a) || matches!(b, Val::Reg(b) if negative(b));
            let operands = Operands { first: made_by(a), second, negative, constant: matches!(b, Val::Imm(_)) };
            for rule in rules::of(op).iter().filter(|rule| rule.may_match(&operands)) {
                if let Some(value) = self.try_rule(rule, width, a, b, dst, depth) {
                    self.done += 1;
                    return Ok(value);
                }
            }
            if let Some(value) = self.divide(op, width, a, b, dst, depth) {
                return Ok(value);
            }
            if let (BinOp::And, Val::Reg(v)) = (op, b) {
                let selected = self.unmasked(width, v, a, dst, depth);
                if let Some(value) = selected.or_else(|| self.unmasked(width, a, v, dst, depth)) {
                    return Ok(value);
                }
            }
            if let Val::Reg(v) = b {
                let outcome = self.add_outcome(op, width, a, v, dst, depth);
                let turned =
                    |pass: &mut Self| (op == BinOp::Add).then(|| pass.add_outcome(op, width, v, a, dst, depth));
                if let Some(value) = outcome.or_else(|| turned(self).flatten()) {
                    return Ok(value);
                }
            }
            if let (BinOp::Or | BinOp::Add | BinOp::Xor, Val::Reg(b)) = (op, b) {
                let rotated = self.rotated_product(width, a, b).or_else(|| self.rotated_product(width, b, a));
                if let Some((product, by)) = rotated {
                    self.done += 1;
                    let op = Op::Bin { op: BinOp::Rotl, width, dst: NEW, a: product, b: Val::Imm(by) };
                    return Ok(self.value(op, dst, depth + 1));
                }
                if let Some(value) = self.wide(width, a, b, dst) {
                    return Ok(value);
                }
            }
        }
        // `a + (b << n)` with n from 1 to 3 is one op. `or` and `xor` are sums if `a` has only bits that the shift has
        // cleared.
        if let (BinOp::Add | BinOp::Or | BinOp::Xor, Val::Reg(v)) = (op, b) {
            for (a, b) in [(a, v), (v, a)] {
                if let Some(Op::Bin { op: BinOp::Shl, width: inner, a: x, b: Val::Imm(shift @ 1..=3), .. }) =
                    self.def(b)
                    && *inner == width
                    && self.s.uses[b.index()] == 0
                    && (op == BinOp::Add || i64::from(self.s.bits[a.index()]) <= *shift)
                {
                    let (b, shift) = (*x, crate::num::count(crate::num::low(*shift) as u32));
                    return Err(Op::AddShift { width, dst: NEW, a, b, shift });
                }
            }
        }
        // An addition of 1 that cannot carry out of the lower half is computed at 64 bits, the width at which arm64's
        // selections can add 1 (`operand::side`).
        let carries = self.s.bits[a.index()] >= rules::bits(width);
        if self.addresses.operands == Takes::Shifted && (op, b) == (BinOp::Add, Val::Imm(1)) && !carries {
            return Err(Op::Bin { op, width: Width::W64, dst: NEW, a, b });
        }
        // A mask of the low half is a copy of 32 bits.
        if let (BinOp::And, Width::W64, Val::Imm(0xffff_ffff)) = (op, width, b) {
            return Ok(self.mov(Width::W32, Val::Reg(a), dst));
        }
        Err(Op::Bin { op, width, dst: NEW, a, b: self.kept(Some(op), width, b, made) })
    }

    /// Whether `v` is a counter after its step: the value that the next round of a loop gets from a phi, made by adding
    /// a constant to the phi. An addition to `v` then stays an addition to `v` and does not become one to the phi, so
    /// that the phi need not live beside `v`. An addition that cancels the step still becomes the phi itself. Each sum
    /// asks, so only the first [`MAX_WAYS`] edges to the head are looked at.
    fn is_next_round(&mut self, width: Width, v: VReg, added: i64) -> bool {
        let Some(&Op::Bin { op: BinOp::Add, width: made, a: before, b: Val::Imm(step), .. }) = self.def(v) else {
            return false;
        };
        if made != width || step.wrapping_add(added) == 0 {
            return false;
        }
        let block = self.s.blocks[before.index()];
        let Some(phi) = self.ssa.phis(block).take(MAX_PHIS).find(|phi| phi.dst == before) else { return false };
        let ways = self.ssa.args(block, phi).len().min(MAX_WAYS);
        (0..ways).any(|i| {
            let arg = self.ssa.args(block, phi)[i];
            self.ssa.same.find(arg) == v
        })
    }

    /// Emits an op with its result in `dst`, or in a new register if `dst` is [`NEW`].
    fn push(&mut self, mut op: Op, dst: VReg) -> VReg {
        let dst = if dst == NEW { self.fresh() } else { dst };
        if let Some(place) = op.def_mut() {
            *place = dst;
        }
        self.define(dst, &op);
        self.emit(op);
        dst
    }

    fn fresh(&mut self) -> VReg {
        self.ssa.same.push();
        self.s.defs.push(NONE);
        self.s.reach.push();
        self.s.blocks.push(self.block);
        self.s.uses.push(0);
        self.s.bits.push(64);
        VReg(crate::num::small(self.s.defs.len()) - 1)
    }
}

/// Whether an op only computes or loads.
fn is_value(op: &Op) -> bool {
    is_pure(op) || matches!(op, Op::Load { .. })
}

fn is_commutative(op: BinOp) -> bool {
    match op {
        BinOp::Add | BinOp::Mul | BinOp::MulHighU | BinOp::MulHighS | BinOp::And | BinOp::Or | BinOp::Xor => true,
        BinOp::Sub
        | BinOp::Div
        | BinOp::SDiv
        | BinOp::Mod
        | BinOp::SMod
        | BinOp::Shl
        | BinOp::Shr
        | BinOp::Sar
        | BinOp::Rotl => false,
    }
}

/// Returns a constant operand in canonical form: sign-extended from the width, and a shift count below the width.
fn canonical(op: BinOp, width: Width, imm: i64) -> i64 {
    match op {
        BinOp::Shl | BinOp::Shr | BinOp::Sar | BinOp::Rotl => (imm as u64 % u64::from(rules::bits(width))) as i64,
        BinOp::Add
        | BinOp::Sub
        | BinOp::Mul
        | BinOp::MulHighU
        | BinOp::MulHighS
        | BinOp::Div
        | BinOp::SDiv
        | BinOp::Mod
        | BinOp::SMod
        | BinOp::And
        | BinOp::Or
        | BinOp::Xor => sign(width, imm as u64),
    }
}

/// Returns the condition that holds of `b, a` if and only if `cond` holds of `a, b`.
pub(crate) fn turned(cond: Cond) -> Cond {
    match cond {
        Cond::Eq | Cond::Ne | Cond::Set => cond,
        Cond::Gt => Cond::Lt,
        Cond::Ge => Cond::Le,
        Cond::Lt => Cond::Gt,
        Cond::Le => Cond::Ge,
        Cond::SGt => Cond::SLt,
        Cond::SGe => Cond::SLe,
        Cond::SLt => Cond::SGt,
        Cond::SLe => Cond::SGe,
    }
}
