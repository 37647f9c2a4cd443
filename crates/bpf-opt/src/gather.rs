//! One confinement for several accesses of a contained program.
//!
//! Problem: each access at a variable offset is kept in its object by a selection of its own ([`Op::Confine`]): a
//! difference, a comparison and a selection. A record's fields, an unrolled loop's rounds and bytes side by side lie at
//! constant distances from each other, so one selection could answer for all of them. Approach, in SSA form and before
//! values are found: of each value, what it is as a sum of a few others and a constant ([`Linear`]). In a block, those
//! confinements of addresses of which the distances differ by constants become one, of the lowest distance, with the
//! limit of the one that leads farthest, less how much farther it leads; the others are sums of it. Nothing is asked
//! between that could lead elsewhere, so whoever comes to the first comes to the last: a right program, whose accesses
//! are all inside, does what it did. In the function's frame, where masks keep the index below its size, there is none.
//!
//! The limit, less the farther way, is no number below zero: it is a confinement itself (`d < limit ? limit - d : 0`).
//!
//! Invariants: the one selection holds only where each of those that it replaces would have held, whatever the program
//! computes: with `d` from the lowest distance to another one, `at < limit - d` and `d < limit` say that `at + d` is
//! below the limit, without a carry. Where it does not hold, what is chosen instead has room for [`MAX_REACH`] bytes
//! (what the program's own unused memory has), or the limit of an object of known size says that all of them fit.

use crate::faults::planted;
use crate::ssa::Ssa;
use bpf_isa::Width;
use bpf_lir::{Base, BinOp, BlockId, Func, Mem, Op, Span, VReg, Val};

/// The farthest from the lowest of several accesses to another one, in bytes: what is used in place of an object has
/// more.
const MAX_REACH: i64 = 1 << 15;
/// The terms of a sum that is followed.
const TERMS: usize = 3;
/// How many groups of a block are open at a time.
const MAX_OPEN: usize = 8;
/// How many different limits a group has.
const MAX_LIMITS: usize = 4;

/// A value as the sum of others, each so many times, and a constant; in order of the values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Linear {
    terms: [(VReg, i64); TERMS],
    count: u8,
    constant: i64,
}

/// The most confinements of a group.
const MAX_MEMBERS: usize = 64;
/// How many limits are made at the entry of a function, and of how many it is asked whether they are there already.
const MAX_ENTRY: usize = 64;
const MAX_SEEN: usize = 16;
/// How many symbols are told apart.
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

    /// `self + factor * other`, if that has few enough terms.
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

    /// How much greater it is than the other one, if that is a constant.
    fn beyond(&self, other: &Linear) -> Option<i64> {
        (self.terms == other.terms).then(|| self.constant.wrapping_sub(other.constant))
    }
}

/// A confinement of a group.
#[derive(Clone, Copy, Debug)]
struct Member {
    at: usize,
    limit: Val,
    /// How much farther it leads than the first one.
    by: i64,
}

/// Confinements that become one.
#[derive(Debug)]
struct Group {
    /// The first one: what it compares, what it chooses.
    a: VReg,
    yes: VReg,
    no: VReg,
    members: Vec<Member>,
    lowest: i64,
    highest: i64,
    /// Whether all of them choose the same address, and accesses have what it leads farther in their offsets; known
    /// once two differ.
    same: Option<bool>,
}

/// The memory that it works in.
#[derive(Debug, Default)]
pub(crate) struct Gather {
    linear: Vec<Linear>,
    groups: Vec<Group>,
    /// By value: how much farther it leads than the one that it is a sum of.
    moved: Vec<Option<(VReg, i64)>>,
    ops: Vec<(Op, Span)>,
    /// By place in a block: the group of the confinement there, and how much farther than the group's it leads.
    places: Vec<(usize, usize, i64)>,
    /// By value: where it is defined.
    defined: Vec<(BlockId, usize)>,
    /// By value: something else than loads and stores reads it, or they do as something else than their address.
    kept: Vec<bool>,
    /// The first values that are these symbols' addresses.
    symbols: Vec<(Op, VReg)>,
    /// What is added to the entry, ...
    entry: Vec<(Op, Span)>,
    /// ... and the limits made there, by what they are made of.
    least: Vec<(Vec<(VReg, i64)>, VReg)>,
    /// By value: the greatest number that it may be, by how its bits are made; no branch is relied upon.
    greatest: Vec<u64>,
    /// By value: the pointer that an index without need of a confinement was made of, and what is added to it.
    decided: Vec<Option<(VReg, i64)>>,
}

impl Gather {
    /// Runs over `func`, which is in SSA form; says how many confinements went.
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
        if done > 0 {
            self.moved.resize(func.vregs as usize, None);
            self.move_accesses(func, any_index);
        }
        done
    }

    /// Finds what each value is a sum of. Operands are found before what is made of them, but for phis, which are
    /// nothing but themselves.
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
            // Wherever it is made, it is the same.
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

    /// The greatest number that an op makes, by its width and masks.
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

    /// Takes out the confinements to objects of known size in which a mask keeps the index already.
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
                    // Shifts, of which whoever checks the code knows the bits.
                    let times = u64::try_from(*times).ok().filter(|times| times.is_power_of_two())?;
                    let most = times.checked_mul(*self.greatest.get(v.index())?)?;
                    Some(Some(sum?.checked_add(most)?))
                });
                let (Some(Some(most)), true) = (sum, yes == a && !self.kept[dst.index()]) else { continue };
                // As a number below 2^63, so that no sum was one modulo 2^64.
                if !(0..=i64::MAX).contains(&limit) || most >= limit as u64 {
                    continue;
                }
                // Of the frame alone is the size known to whoever checks the code.
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
        // From the pointer itself, where the object's start would be taken off and added again.
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

    /// The pointer that an index was made of, and what was added.
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

    /// Finds the values that are more than addresses of loads and stores, or indices in them.
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
                // As an address once.
                self.kept[v.index()] |= Some(v) != address || reads > 1;
            });
        }
    }

    /// Finds the confinements of a block that can be one.
    fn find_groups(&mut self, func: &Func, block: BlockId, reach: i64) {
        self.groups.clear();
        // The first group that others may still come to.
        let mut open = 0;
        for at in func.range(block) {
            match func.ops[at] {
                // A call may not come back, or lead the regions elsewhere.
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

    /// Whether what is chosen instead has room for all that a group accesses: memory that nothing else uses, or, of an
    /// object of known size, its start.
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

    /// Writes a block anew, with one confinement for each group.
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

    /// The limit of a group: made once at the entry, if what it is made of is.
    fn limit(&mut self, func: &mut Func, group: &Group, block: BlockId, span: Span) -> Val {
        let members = || group.members.iter();
        if let Some(limit) = constant_limit(members(), group.lowest) {
            return Val::Imm(limit);
        }
        // Nothing is below 0.
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

    /// Makes accesses from the one confinement, with what they lead farther in their offsets.
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

/// The op, whatever its result is called.
fn anywhere(mut op: Op) -> Op {
    if let Some(dst) = op.def_mut() {
        *dst = FRAME;
    }
    op
}

/// The limit of the lowest confinement, under which all others hold too; `None` if there is none.
fn constant_limit<'a>(members: impl Iterator<Item = &'a Member>, lowest: i64) -> Option<i64> {
    let mut least = i64::MAX;
    for member in members {
        let Val::Imm(limit) = member.limit else { return None };
        let by = if planted!(FartherForgotten) { 0 } else { member.by - lowest };
        least = least.min(limit.checked_sub(by)?);
    }
    (least > 0).then_some(least)
}

/// By limit, the farthest way of those that have it.
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

/// Writes ops of new values.
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

    /// A limit, less so much; 0 if it is no more than that.
    fn less(&mut self, limit: VReg, by: i64) -> VReg {
        if by == 0 || planted!(FartherForgotten) {
            return limit;
        }
        let (a, none) = (self.number(by), self.number(0));
        let yes = self.op(Op::Bin { op: BinOp::Sub, width: Width::W64, dst: FRAME, a: limit, b: Val::Imm(by) });
        self.confine(a, Val::Reg(limit), yes, none)
    }

    /// The least of some limits, each less so much.
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

    /// The one confinement of a group.
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
