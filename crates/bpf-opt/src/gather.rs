//! Shares one confinement among several accesses of a contained program.
//!
//! Problem: each access at a variable offset is kept in its object by a confinement of its own ([`Op::Confine`]): a
//! difference, a comparison and a selection. The fields of a record, the rounds of an unrolled loop and adjacent bytes
//! lie at constant distances from each other, so one confinement suffices for all. Approach, in SSA form and before the
//! pass `values`: each value is written as a linear sum of a few others and a constant ([`Linear`]). Confinements of
//! one block whose compared values differ by constants form a group and become one: it compares the lowest value with
//! the members' limits, each less the member's distance from the lowest. The results of the others are that result plus
//! a constant. No call lies between the members, so a run that reaches the first reaches the last, and a program whose
//! accesses are all inside behaves as before. An access to the function's frame whose index masks keep below the
//! frame's size loses its confinement.
//!
//! Where the machine has such accesses, a confinement that chooses between an address in a region and the sink becomes
//! one that chooses between two indices ([`Gather::by_index`]): the index in the region, and the sink's distance from
//! the region's start, which is computed once. The access adds the start. This needs no copy of the address, and the
//! index is often a value that is there.
//!
//! A limit less a distance must not wrap below zero, so a confinement makes it, too: `d < limit ? limit - d : 0`.
//!
//! Invariants: the comparison of a group succeeds only where that of each member would have succeeded, whatever the
//! program computes: if `d` is the distance from the lowest value `at` to a member's, `at < limit - d` and `d < limit`
//! imply that `at + d` is below the limit, without a carry. Where the comparison fails, the address that is chosen
//! instead has room for [`MAX_REACH`] bytes (the sink), or is the start of an object of known size in which all
//! members' accesses fit.

use crate::faults::planted;
use crate::ssa::Ssa;
use bpf_isa::Width;
use bpf_lir::{Base, BinOp, BlockId, Func, Mem, Op, Span, VReg, Val};

/// Most bytes from the lowest access of a group to the highest. The sink, which is used in place of an object, is
/// larger.
const MAX_REACH: i64 = 1 << 15;
/// Most terms of a linear sum.
const TERMS: usize = 3;
/// Most groups of a block that are open at a time.
const MAX_OPEN: usize = 8;
/// Most different limits of a group.
const MAX_LIMITS: usize = 4;

/// A value as a linear sum: other values with their factors, ordered by value, and a constant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Linear {
    terms: [(VReg, i64); TERMS],
    count: u8,
    constant: i64,
}

/// Most confinements of a group.
const MAX_MEMBERS: usize = 64;
/// Most limits that are made at the entry of a function, and how many of the newest are searched for an equal one.
const MAX_ENTRY: usize = 64;
const MAX_SEEN: usize = 16;
/// Most symbols whose addresses are recognised as equal.
const MAX_SYMBOLS: usize = 16;

const NOTHING: (VReg, i64) = (VReg(u32::MAX), 0);
/// Stands for the address in r10.
const FRAME: VReg = VReg(u32::MAX - 1);

impl Linear {
    fn of(v: VReg) -> Linear {
        Linear { terms: [(v, 1), NOTHING, NOTHING], count: 1, constant: 0 }
    }

    fn constant(constant: i64) -> Linear {
        Linear { terms: [NOTHING; TERMS], count: 0, constant }
    }

    /// Returns `self + factor * other`, if that has at most [`TERMS`] terms.
    fn plus(&self, other: &Linear, factor: i64) -> Option<Linear> {
        let mut sum = *self;
        sum.constant = sum.constant.wrapping_add(other.constant.wrapping_mul(factor));
        for (v, times) in &other.terms[..usize::from(other.count)] {
            sum = sum.add(*v, times.wrapping_mul(factor))?;
        }
        Some(sum)
    }

    fn add(mut self, v: VReg, times: i64) -> Option<Linear> {
        let count = usize::from(self.count);
        let at = self.terms[..count].partition_point(|(other, _)| *other < v);
        if let Some((_, sum)) = self.terms[..count].get_mut(at).filter(|(other, _)| *other == v) {
            *sum = sum.wrapping_add(times);
            if *sum == 0 {
                self.terms.copy_within(at + 1.., at);
                self.terms[TERMS - 1] = NOTHING;
                self.count -= 1;
            }
            return Some(self);
        }
        if times == 0 {
            return Some(self);
        }
        if count == TERMS {
            return None;
        }
        self.terms.copy_within(at..TERMS - 1, at + 1);
        self.terms[at] = (v, times);
        self.count += 1;
        Some(self)
    }

    /// Returns the difference `self - other`, if it is a constant.
    fn beyond(&self, other: &Linear) -> Option<i64> {
        (self.terms == other.terms).then(|| self.constant.wrapping_sub(other.constant))
    }
}

/// A confinement of a group.
#[derive(Clone, Copy, Debug)]
struct Member {
    at: usize,
    limit: Val,
    /// The member's compared value minus that of the group's first.
    by: i64,
}

/// A group: confinements that become one.
#[derive(Debug)]
struct Group {
    /// The operands of the group's first confinement: the compared value and the two choices.
    a: VReg,
    yes: VReg,
    no: VReg,
    members: Vec<Member>,
    lowest: i64,
    highest: i64,
    /// Whether all members choose the same address, and their accesses differ in their offsets only; `None` until two
    /// members compare different values.
    same: Option<bool>,
}

/// Scratch memory of the pass, reused from function to function.
#[derive(Debug, Default)]
pub(crate) struct Gather {
    linear: Vec<Linear>,
    groups: Vec<Group>,
    /// By value: the shared confinement that the value is a sum of, and the constant that is added.
    moved: Vec<Option<(VReg, i64)>>,
    ops: Vec<(Op, Span)>,
    /// For each confinement, by op index: its group, and the constant to add to the group's result.
    places: Vec<(usize, usize, i64)>,
    /// By value: where it is defined.
    defined: Vec<(BlockId, usize)>,
    /// By value: whether it is used other than as the address of a load or store, or as the index of one.
    kept: Vec<bool>,
    /// For each symbol, the first value that is its address.
    symbols: Vec<(Op, VReg)>,
    /// Ops to add to the entry block.
    entry: Vec<(Op, Span)>,
    /// The limits made in the entry block, each with the limits and distances that it is made from.
    least: Vec<(Vec<(VReg, i64)>, VReg)>,
    /// By value: an upper bound from masks and widths alone; no branch is relied upon.
    greatest: Vec<u64>,
    /// For an index whose confinement was removed: the pointer that it was made from, and the constant that is added.
    decided: Vec<Option<(VReg, i64)>>,
}

impl Gather {
    /// Runs the pass over `func`, which is in SSA form; returns how many confinements were removed.
    pub(crate) fn run(&mut self, func: &mut Func, ssa: &Ssa, max_offset: i32, any_index: bool) -> u32 {
        if !func.all_ops().any(|op| matches!(op, Op::Confine { .. })) {
            return 0;
        }
        self.find_linear(func, ssa);
        self.find_kept(func, ssa);
        self.entry.clear();
        self.least.clear();
        self.moved.clear();
        self.moved.resize(func.vregs as usize, None);
        let reach = MAX_REACH.min(i64::from(max_offset));
        let mut done = self.decide(func);
        for i in 0..func.order.len() {
            let block = func.order[i];
            self.find_groups(func, block, reach);
            done += self.rewrite(func, block);
        }
        self.append_to_entry(func);
        if done > 0 {
            self.moved.resize(func.vregs as usize, None);
            self.move_accesses(func, any_index);
        }
        done
    }

    /// Appends the ops that are to be made at the entry to its block.
    fn append_to_entry(&mut self, func: &mut Func) {
        if let (Some(first), false) = (func.order.first().copied(), self.entry.is_empty()) {
            let range = func.range(first);
            let ends = usize::from(func.block_ops(first).last().is_some_and(Op::ends_block));
            let (before, end) = range.clone().partition::<Vec<_>, _>(|at| at + ends < range.end);
            let all = |at: Vec<usize>, func: &Func| at.into_iter().map(|at| (func.ops[at], func.spans[at])).collect();
            let (mut ops, end): (Vec<_>, Vec<_>) = (all(before, func), all(end, func));
            ops.append(&mut self.entry);
            ops.extend(end);
            func.set_ops(first, ops);
        }
    }

    /// Rewrites confinements of addresses in regions as confinements of indices; returns their number.
    ///
    /// `confine a, limit, start + a, sink` becomes `confine a, limit, a, sink - start`, and an access at the result
    /// becomes one at `start +` the result. Both are the same address. An index `v * 2^k + c`, where `v` is too small
    /// for the product to wrap, is compared without `c`, which goes into the access: `v * 2^k < limit - c` (0 if the
    /// limit is not above `c`) is then the same condition. For machines whose accesses take a base, an index and an
    /// offset.
    pub(crate) fn by_index(&mut self, func: &mut Func, ssa: &Ssa) -> u32 {
        /// Greatest constant that goes from an index into the accesses: the sink has room for it beside the offset and
        /// size of an access.
        const MAX_CONSTANT: i64 = 1 << 12;
        let Some(entry) = func.order.first().copied() else { return 0 };
        if !func.all_ops().any(|op| matches!(op, Op::Confine { limit: Val::Reg(_), .. })) {
            return 0;
        }
        self.find_linear(func, ssa);
        self.find_bases(func, ssa);
        self.entry.clear();
        self.least.clear();
        self.moved.clear();
        self.moved.resize(func.vregs as usize, None);
        let params: Vec<VReg> = func.entry_values().collect();
        let mut distances: Vec<((VReg, VReg), VReg)> = Vec::new();
        let mut done = 0;
        for i in 0..func.order.len() {
            let block = func.order[i];
            self.ops.clear();
            let mut changed = false;
            for at in func.range(block) {
                let (op, span) = (func.ops[at], func.spans[at]);
                let made = |gather: &Gather, v: VReg| {
                    block != entry && (params.contains(&v) || gather.defined[v.index()].0 == entry)
                };
                let found = match op {
                    Op::Confine { a, limit: Val::Reg(limit), dst, yes, no } if !self.kept[dst.index()] => {
                        let start = self.linear[yes.index()].plus(&self.linear[a.index()], -1);
                        let start = start.and_then(|start| match (start.terms, start.count, start.constant) {
                            ([(start, 1), ..], 1, 0) if start != FRAME => Some(start),
                            _ => None,
                        });
                        let is_sink = matches!(
                            func.ops.get(self.defined[no.index()].1),
                            Some(Op::SymAddr { dst, .. }) if *dst == no
                        );
                        start
                            .filter(|start| is_sink && made(self, *start) && made(self, no))
                            .map(|start| (a, limit, dst, start, no))
                    }
                    _ => None,
                };
                let Some((a, limit, dst, start, no)) = found else {
                    self.ops.push((op, span));
                    continue;
                };
                let of = self.linear[a.index()];
                let term = match (of.terms, of.count) {
                    ([(v, times @ (1 | 2 | 4 | 8)), ..], 1) if v != FRAME => Some((v, times)),
                    _ => None,
                };
                // The index without its constant, if the product cannot wrap and the limit is made at the entry.
                let split = term.filter(|(v, times)| {
                    let most = self.greatest.get(v.index()).and_then(|most| most.checked_mul(*times as u64));
                    (1..=MAX_CONSTANT).contains(&of.constant)
                        && most.is_some_and(|most| most <= 1 << 40)
                        && made(self, limit)
                        && self.least.len() < MAX_ENTRY
                });
                let distance = match distances.iter().find(|(of, _)| *of == (no, start)) {
                    Some((_, distance)) => *distance,
                    None => {
                        let distance = Writer { func: &mut *func, ops: &mut self.entry, span }.op(Op::Bin {
                            op: BinOp::Sub,
                            width: Width::W64,
                            dst: FRAME,
                            a: no,
                            b: Val::Reg(start),
                        });
                        distances.push(((no, start), distance));
                        distance
                    }
                };
                let mut writer = Writer { func: &mut *func, ops: &mut self.ops, span };
                let (index, limit, by) = match (split, term) {
                    (Some((v, times)), _) => {
                        let index = writer.times(v, times);
                        let of = vec![(limit, of.constant)];
                        let limit = match self.least.iter().find(|(other, _)| *other == of) {
                            Some((_, limit)) => *limit,
                            None => {
                                let limit = Writer { func: &mut *func, ops: &mut self.entry, span }.least(&of);
                                self.least.push((of, limit));
                                limit
                            }
                        };
                        (index, limit, self.linear[a.index()].constant)
                    }
                    (None, Some((v, times))) => {
                        let index = writer.times(v, times);
                        (writer.sum(index, of.constant), limit, 0)
                    }
                    (None, None) => (a, limit, 0),
                };
                self.ops.push((Op::Confine { a: index, limit: Val::Reg(limit), dst, yes: index, no: distance }, span));
                self.moved[dst.index()] = Some((start, by));
                changed = true;
                done += 1;
            }
            if changed {
                let ops = core::mem::take(&mut self.ops);
                func.set_ops(block, ops.iter().copied());
                self.ops = ops;
            }
        }
        self.append_to_entry(func);
        for i in 0..func.order.len() {
            for at in func.range(func.order[i]) {
                let (Op::Load { mem, .. } | Op::Store { mem, .. }) = &mut func.ops[at] else { continue };
                if let Base::Reg(index) = mem.base
                    && let Some((base, by)) = self.moved.get(index.index()).copied().flatten()
                {
                    // `find_bases` has left room for the constant.
                    let off = i64::from(mem.off).saturating_add(by);
                    (mem.base, mem.off) =
                        (Base::Indexed { base, index, shift: 0 }, i32::try_from(off).unwrap_or(mem.off));
                }
            }
        }
        done
    }

    /// Finds the values that are used other than as the whole address of a load or store, or with an offset that the
    /// sink has no room for.
    fn find_bases(&mut self, func: &Func, ssa: &Ssa) {
        self.find_kept(func, ssa);
        for op in func.all_ops() {
            match op.mem().map(|mem| (mem.base, mem.off)) {
                Some((Base::Reg(v), off)) => {
                    self.kept[v.index()] |= !(0..1 << 16).contains(&off);
                }
                Some((Base::Indexed { base, index, .. }, _)) => {
                    self.kept[base.index()] = true;
                    self.kept[index.index()] = true;
                }
                Some((Base::Frame, _)) | None => {}
            }
        }
    }

    /// Finds the linear sum of each value. The walk meets operands before their uses; a phi is a term of its own.
    fn find_linear(&mut self, func: &Func, ssa: &Ssa) {
        self.linear.clear();
        self.linear.extend((0..func.vregs).map(|v| Linear::of(VReg(v))));
        self.greatest.clear();
        self.greatest.resize(func.vregs as usize, u64::MAX);
        self.symbols.clear();
        self.defined.clear();
        self.defined.resize(func.vregs as usize, (BlockId(u32::MAX), 0));
        for block in ssa.cfg.rpo() {
            for at in func.range(*block) {
                let op = &func.ops[at];
                let Some(dst) = op.def() else { continue };
                self.defined[dst.index()] = (*block, at);
                if let Op::SymAddr { .. } = *op
                    && self.symbols.len() < MAX_SYMBOLS
                    && self.symbols.iter().all(|(other, _)| *other != anywhere(*op))
                {
                    self.symbols.push((anywhere(*op), dst));
                }
                self.greatest[dst.index()] = self.greatest_of(op);
                if let Some(linear) = self.linear_of(op) {
                    self.linear[dst.index()] = linear;
                }
            }
        }
    }

    fn linear_of(&self, op: &Op) -> Option<Linear> {
        let of = |v: VReg| self.linear[v.index()];
        let val = |v: Val| match v {
            Val::Reg(v) => of(v),
            Val::Imm(imm) => Linear::constant(imm),
        };
        match *op {
            Op::Mov { width: Width::W64, src, .. } => Some(val(src)),
            Op::Bin { op: BinOp::Add, width: Width::W64, a, b, .. } => of(a).plus(&val(b), 1),
            Op::Bin { op: BinOp::Sub, width: Width::W64, a, b, .. } => of(a).plus(&val(b), -1),
            Op::Bin { op: BinOp::Shl, width: Width::W64, a, b: Val::Imm(count @ 0..=32), .. } => {
                Linear::constant(0).plus(&of(a), 1 << count)
            }
            Op::Bin { op: BinOp::Mul, width: Width::W64, a, b: Val::Imm(factor), .. } => {
                Linear::constant(0).plus(&of(a), factor)
            }
            Op::AddShift { width: Width::W64, a, b, shift, .. } => of(a).plus(&of(b), 1 << shift),
            Op::FrameAddr { off, .. } => Linear::of(FRAME).plus(&Linear::constant(off.into()), 1),
            // All ops that make this symbol's address make the same number.
            Op::SymAddr { dst, .. } => {
                let known = self.symbols.iter().find(|(other, _)| *other == anywhere(*op));
                Some(Linear::of(known.map_or(dst, |(_, v)| *v)))
            }
            Op::Mov { .. }
            | Op::Bin { .. }
            | Op::AddShift { .. }
            | Op::Ext { .. }
            | Op::Neg { .. }
            | Op::Bswap { .. }
            | Op::Select { .. }
            | Op::Confine { .. }
            | Op::SubprogAddr { .. }
            | Op::Load { .. }
            | Op::Store { .. }
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

    /// Returns an upper bound of an op's result, from its width and masks.
    fn greatest_of(&self, op: &Op) -> u64 {
        let of = |v: VReg| self.greatest[v.index()];
        let val = |v: Val| match v {
            Val::Reg(v) => of(v),
            Val::Imm(imm) => imm as u64,
        };
        let (width, most) = match *op {
            Op::Mov { width, src, .. } => (width, val(src)),
            Op::Bin { op: BinOp::And, width, a, b, .. } => (width, of(a).min(val(b))),
            Op::Bin { op: BinOp::Shr, width, a, b: Val::Imm(count @ 0..=31), .. } => {
                (width, bpf_lir::narrow(width, u64::MAX).min(of(a)) >> count)
            }
            Op::Bin { op: BinOp::Mod, width, b: Val::Imm(by @ 1..=0x7fff_ffff), .. } => (width, by as u64 - 1),
            Op::Bin { width, .. } | Op::Neg { width, .. } | Op::AddShift { width, .. } => (width, u64::MAX),
            Op::Ext { signed: false, from, .. } => (Width::W64, crate::rules::ones(from.bits().into())),
            Op::Load { size, signed: false, .. } => (Width::W64, crate::rules::ones(size.bits().into())),
            Op::Select { yes, no, .. } => (Width::W64, of(yes).max(of(no))),
            Op::Ext { .. }
            | Op::Bswap { .. }
            | Op::Confine { .. }
            | Op::FrameAddr { .. }
            | Op::SymAddr { .. }
            | Op::SubprogAddr { .. }
            | Op::Load { .. }
            | Op::Store { .. }
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
            | Op::Exit { .. } => (Width::W64, u64::MAX),
        };
        match width {
            Width::W32 => most.min(u64::from(u32::MAX)),
            Width::W64 => most,
        }
    }

    /// Removes confinements to the frame whose index masks keep below the limit.
    fn decide(&mut self, func: &mut Func) -> u32 {
        self.decided.clear();
        self.decided.resize(func.vregs as usize, None);
        let mut done = 0;
        for i in 0..func.order.len() {
            for at in func.range(func.order[i]) {
                let Op::Confine { a, limit: Val::Imm(limit), dst, yes, .. } = func.ops[at] else { continue };
                let Linear { terms, count, constant } = self.linear[a.index()];
                let least = u64::try_from(constant).ok();
                let sum = terms[..usize::from(count)].iter().try_fold(least, |sum, (v, times)| {
                    // Only powers of two: shifts, whose results the check `unconfined` bounds.
                    let times = u64::try_from(*times).ok().filter(|times| times.is_power_of_two())?;
                    let most = times.checked_mul(*self.greatest.get(v.index())?)?;
                    Some(Some(sum?.checked_add(most)?))
                });
                let (Some(Some(most)), true) = (sum, yes == a && !self.kept[dst.index()]) else { continue };
                // The bound is below 2^63, so the sum has not wrapped modulo 2^64.
                if !(0..=i64::MAX).contains(&limit) || most >= limit as u64 {
                    continue;
                }
                // Only the frame: the check `unconfined` knows the size of no other object.
                let pointer = self.pointer(func, a);
                if !pointer.is_some_and(|(pointer, _)| self.linear[pointer.index()].terms.contains(&(FRAME, 1))) {
                    continue;
                }
                func.ops[at] = Op::Mov { width: Width::W64, dst, src: Val::Reg(yes) };
                self.linear[dst.index()] = self.linear[a.index()];
                self.decided[dst.index()] = pointer;
                done += 1;
            }
        }
        if done == 0 {
            return 0;
        }
        // Accesses use the pointer itself where the object's start would be subtracted and added again.
        for at in func.order.iter().flat_map(|block| func.range(*block)).collect::<Vec<_>>() {
            let (Op::Load { mem, .. } | Op::Store { mem, .. }) = &mut func.ops[at] else { continue };
            if let Base::Indexed { base, index, shift: 0 } = mem.base
                && let Some((pointer, by)) = self.decided[index.index()]
                && let Some(off) = i64::from(mem.off).checked_add(by).and_then(|off| i32::try_from(off).ok())
                && self.linear[pointer.index()]
                    .plus(&self.linear[base.index()], -1)
                    .is_some_and(|index_of| index_of.beyond(&self.linear[index.index()]) == by.checked_neg())
            {
                (mem.base, mem.off) = (Base::Reg(pointer), off);
            }
        }
        done
    }

    /// Returns the pointer that an index was made from, and the constant that was added.
    fn pointer(&self, func: &Func, index: VReg) -> Option<(VReg, i64)> {
        let def = |v: VReg| func.ops.get(self.defined[v.index()].1).filter(|op| op.def() == Some(v));
        match def(index)? {
            Op::Bin { op: BinOp::Sub, width: Width::W64, a, b: Val::Reg(_), .. } => Some((*a, 0)),
            Op::Bin { op: BinOp::Add, width: Width::W64, a, b: Val::Imm(by), .. } => match def(*a)? {
                Op::Bin { op: BinOp::Sub, width: Width::W64, a, b: Val::Reg(_), .. } => Some((*a, *by)),
                _ => None,
            },
            _ => None,
        }
    }

    /// Finds the values with other uses than as the address or the index of a load or store.
    fn find_kept(&mut self, func: &Func, ssa: &Ssa) {
        self.kept.clear();
        self.kept.resize(func.vregs as usize, false);
        for (block, phi) in ssa.all_phis() {
            ssa.args(block, phi).iter().for_each(|arg| self.kept[arg.index()] = true);
        }
        for op in func.all_ops() {
            let address = match (op, op.mem().map(|mem| mem.base)) {
                (Op::Load { .. } | Op::Store { .. }, Some(Base::Reg(v))) => Some(v),
                (Op::Load { .. } | Op::Store { .. }, Some(Base::Indexed { index, shift: 0, .. })) => Some(index),
                _ => None,
            };
            let mut reads = 0;
            op.for_each_use(|v| {
                reads += u32::from(Some(v) == address);
                // One use as an address is allowed.
                self.kept[v.index()] |= Some(v) != address || reads > 1;
            });
        }
    }

    /// Finds the groups of a block: confinements that one confinement can replace.
    fn find_groups(&mut self, func: &Func, block: BlockId, reach: i64) {
        self.groups.clear();
        // The first group that can still get members.
        let mut open = 0;
        for at in func.range(block) {
            match func.ops[at] {
                // A call may not return, or may move the regions.
                Op::Call { .. } | Op::TailCall { .. } => open = self.groups.len(),
                Op::Confine { a, limit, dst, yes, no }
                    if !self.kept[dst.index()] && self.has_room(func, a, limit, yes, no) =>
                {
                    let member = Member { at, limit, by: 0 };
                    open = open.max(self.groups.len().saturating_sub(MAX_OPEN));
                    if !self.join(open, member, block, (a, yes, no), reach) {
                        let members = vec![member];
                        self.groups.push(Group { a, yes, no, members, lowest: 0, highest: 0, same: None });
                    }
                }
                _ => {}
            }
        }
    }

    /// Whether the address that is chosen on failure has room for all accesses of a group: it is the sink, or the start
    /// of an object of known size.
    fn has_room(&self, func: &Func, a: VReg, limit: Val, yes: VReg, no: VReg) -> bool {
        match limit {
            Val::Reg(_) => {
                matches!(func.ops.get(self.defined[no.index()].1), Some(Op::SymAddr { dst, .. }) if *dst == no)
            }
            Val::Imm(_) => yes == a && self.linear[no.index()] == Linear::constant(0),
        }
    }

    fn join(&mut self, open: usize, mut member: Member, block: BlockId, of: (VReg, VReg, VReg), reach: i64) -> bool {
        let (a, yes, no) = of;
        let linear = |v: VReg| &self.linear[v.index()];
        for i in open..self.groups.len() {
            let group = &self.groups[i];
            let first = group.members[0];
            let (Some(by), Some(chosen), Some(0)) = (
                linear(a).beyond(linear(group.a)),
                linear(yes).beyond(linear(group.yes)),
                linear(no).beyond(linear(group.no)),
            ) else {
                continue;
            };
            let there = match member.limit {
                Val::Imm(_) => true,
                Val::Reg(v) => {
                    let (made, place) = self.defined[v.index()];
                    made != block || place < first.at
                }
            };
            let same_kind =
                matches!((member.limit, first.limit), (Val::Imm(_), Val::Imm(_)) | (Val::Reg(_), Val::Reg(_)));
            let (lowest, highest) = (group.lowest.min(by), group.highest.max(by));
            let near = group.members.len() < MAX_MEMBERS
                && by.checked_abs().is_some_and(|by| by <= reach)
                && highest - lowest <= reach;
            let same = if by == 0 { group.same } else { Some(chosen == 0) };
            let alike = (chosen == 0 || chosen == by) && (group.same.is_none() || group.same == same);
            if !alike || !there || !same_kind || !near {
                continue;
            }
            member.by = by;
            let all = || group.members.iter().chain([&member]);
            let fits = match first.limit {
                Val::Imm(_) => constant_limit(all(), lowest).is_some(),
                Val::Reg(_) => limits(all(), lowest).is_some(),
            };
            if fits {
                let group = &mut self.groups[i];
                group.members.push(member);
                (group.lowest, group.highest, group.same) = (lowest, highest, same);
                return true;
            }
        }
        false
    }

    /// Rewrites a block with one confinement for each group; returns the number of confinements that were removed.
    fn rewrite(&mut self, func: &mut Func, block: BlockId) -> u32 {
        self.groups.retain(|group| group.members.len() > 1);
        if self.groups.is_empty() {
            return 0;
        }
        self.places.clear();
        for (i, group) in self.groups.iter().enumerate() {
            let same = group.same == Some(true);
            let by = |member: &Member| if same { 0 } else { member.by - group.lowest };
            self.places.extend(group.members.iter().map(|member| (member.at, i, by(member))));
        }
        self.places.sort_unstable();
        let places = core::mem::take(&mut self.places);
        let groups = core::mem::take(&mut self.groups);
        let mut next = places.iter().peekable();
        // By group: the one confinement.
        let mut made: Vec<Option<VReg>> = vec![None; groups.len()];
        self.ops.clear();
        for at in func.range(block) {
            let (op, span) = (func.ops[at], func.spans[at]);
            let (Some((_, i, by)), Some(dst)) = (next.next_if(|(place, ..)| *place == at), op.def()) else {
                self.ops.push((op, span));
                continue;
            };
            let from = match made[*i] {
                Some(from) => from,
                None => {
                    let limit = self.limit(func, &groups[*i], block, span);
                    let from = Writer { func: &mut *func, ops: &mut self.ops, span }.group(&groups[*i], limit);
                    *made[*i].insert(from)
                }
            };
            let width = Width::W64;
            self.ops.push(match by {
                0 => (Op::Mov { width, dst, src: Val::Reg(from) }, span),
                by => (Op::Bin { op: BinOp::Add, width, dst, a: from, b: Val::Imm(*by) }, span),
            });
            self.moved[dst.index()] = Some((from, *by));
        }
        let done = crate::num::small(places.len() - groups.len());
        self.places = places;
        self.groups = groups;
        let ops = core::mem::take(&mut self.ops);
        func.set_ops(block, ops.iter().copied());
        self.ops = ops;
        done
    }

    /// Returns the limit of a group, which is made once at the entry if its operands are made there.
    fn limit(&mut self, func: &mut Func, group: &Group, block: BlockId, span: Span) -> Val {
        let members = || group.members.iter();
        if let Some(limit) = constant_limit(members(), group.lowest) {
            return Val::Imm(limit);
        }
        // No number is below a limit of 0, so the access goes to the sink.
        let Some(of) = limits(members(), group.lowest) else { return Val::Imm(0) };
        let entry = func.order[0];
        if block == entry
            || self.least.len() == MAX_ENTRY
            || of.iter().any(|(limit, _)| self.defined[limit.index()].0 != entry)
        {
            return Val::Reg(Writer { func, ops: &mut self.ops, span }.least(&of));
        }
        let known = self.least.iter().rev().take(MAX_SEEN).find(|(other, _)| *other == of);
        Val::Reg(match known {
            Some((_, limit)) => *limit,
            None => {
                let limit = Writer { func, ops: &mut self.entry, span }.least(&of);
                self.least.push((of, limit));
                limit
            }
        })
    }

    /// Addresses accesses by the group's confinement, with the distance in the access's offset.
    fn move_accesses(&self, func: &mut Func, any_index: bool) {
        for i in 0..func.order.len() {
            for at in func.range(func.order[i]) {
                let (Op::Load { mem, .. } | Op::Store { mem, .. }) = &mut func.ops[at] else { continue };
                let farther = |mem: &Mem, v: VReg| {
                    let (from, by) = (*self.moved.get(v.index())?)?;
                    let off = i64::from(mem.off).checked_add(by).and_then(|off| i32::try_from(off).ok())?;
                    Some((from, off))
                };
                match mem.base {
                    Base::Reg(v) => {
                        if let Some((from, off)) = farther(mem, v) {
                            (mem.base, mem.off) = (Base::Reg(from), off);
                        }
                    }
                    Base::Indexed { base, index, shift: 0 } => {
                        if let Some((from, off)) = farther(mem, index).filter(|(_, off)| any_index || *off == 0) {
                            (mem.base, mem.off) = (Base::Indexed { base, index: from, shift: 0 }, off);
                        }
                    }
                    Base::Indexed { .. } | Base::Frame => {}
                }
            }
        }
    }
}

/// Returns the op with a placeholder as its result, so that it can be compared with other ops.
fn anywhere(mut op: Op) -> Op {
    if let Some(dst) = op.def_mut() {
        *dst = FRAME;
    }
    op
}

/// Returns the constant limit of a group, which is the least of the members' limits, each less the member's distance
/// from the lowest. Returns `None` if that is not positive, or if a limit is not constant.
fn constant_limit<'a>(members: impl Iterator<Item = &'a Member>, lowest: i64) -> Option<i64> {
    let mut least = i64::MAX;
    for member in members {
        let Val::Imm(limit) = member.limit else { return None };
        let by = if planted!(FartherForgotten) { 0 } else { member.by - lowest };
        least = least.min(limit.checked_sub(by)?);
    }
    (least > 0).then_some(least)
}

/// Returns each limit of a group with the greatest distance of the members that have it; `None` if a limit is constant,
/// or if there are more than [`MAX_LIMITS`].
fn limits<'a>(members: impl Iterator<Item = &'a Member>, lowest: i64) -> Option<Vec<(VReg, i64)>> {
    let mut limits: Vec<(VReg, i64)> = Vec::new();
    for member in members {
        let Val::Reg(limit) = member.limit else { return None };
        let by = member.by - lowest;
        match limits.iter_mut().find(|(other, _)| *other == limit) {
            Some((_, farthest)) => *farthest = by.max(*farthest),
            None => limits.push((limit, by)),
        }
    }
    (limits.len() <= MAX_LIMITS).then_some(limits)
}

/// Appends ops whose results are new values.
struct Writer<'a> {
    func: &'a mut Func,
    ops: &'a mut Vec<(Op, Span)>,
    span: Span,
}

impl Writer<'_> {
    fn op(&mut self, mut op: Op) -> VReg {
        let new = self.func.new_vreg();
        if let Some(dst) = op.def_mut() {
            *dst = new;
        }
        self.ops.push((op, self.span));
        new
    }

    fn number(&mut self, imm: i64) -> VReg {
        self.op(Op::Mov { width: Width::W64, dst: FRAME, src: Val::Imm(imm) })
    }

    fn sum(&mut self, a: VReg, by: i64) -> VReg {
        if by == 0 {
            return a;
        }
        self.op(Op::Bin { op: BinOp::Add, width: Width::W64, dst: FRAME, a, b: Val::Imm(by) })
    }

    fn confine(&mut self, a: VReg, limit: Val, yes: VReg, no: VReg) -> VReg {
        self.op(Op::Confine { a, limit, dst: FRAME, yes, no })
    }

    /// Computes `v * times`, where `times` is a power of two.
    fn times(&mut self, v: VReg, times: i64) -> VReg {
        match times {
            1 => v,
            _ => {
                let count = Val::Imm(times.trailing_zeros().into());
                self.op(Op::Bin { op: BinOp::Shl, width: Width::W64, dst: FRAME, a: v, b: count })
            }
        }
    }

    /// Computes `limit - by`, or 0 if the limit is not above `by`.
    fn less(&mut self, limit: VReg, by: i64) -> VReg {
        if by == 0 || planted!(FartherForgotten) {
            return limit;
        }
        let (a, none) = (self.number(by), self.number(0));
        let yes = self.op(Op::Bin { op: BinOp::Sub, width: Width::W64, dst: FRAME, a: limit, b: Val::Imm(by) });
        self.confine(a, Val::Reg(limit), yes, none)
    }

    /// Computes the least of several limits, each less its distance.
    fn least(&mut self, of: &[(VReg, i64)]) -> VReg {
        let mut least: Option<VReg> = None;
        for (limit, by) in of {
            let less = self.less(*limit, *by);
            least = Some(match least {
                Some(least) => self.confine(less, Val::Reg(least), less, least),
                None => less,
            });
        }
        match least {
            Some(least) => least,
            None => self.number(0),
        }
    }

    /// Writes the confinement of a group.
    fn group(&mut self, group: &Group, limit: Val) -> VReg {
        let a = self.sum(group.a, group.lowest);
        let yes = match group.same {
            Some(true) => group.yes,
            Some(false) | None if group.a == group.yes => a,
            Some(false) | None => self.sum(group.yes, group.lowest),
        };
        self.confine(a, limit, yes, group.no)
    }
}
