//! Unrolls short counted loops: several rounds at a time.
//!
//! In a loop over bytes or words, a few ops do the work; beside them each round updates a counter, compares it and
//! jumps, and a sum waits for the sum of the round before. Approach, before SSA form, where a round can be copied as it
//! stands: consider a loop of at most [`MAX_OPS`] ops without inner control flow that ends when a counter with a
//! constant step reaches a limit. The pass puts an unrolled loop in front of it, whose rounds do the work of four or
//! eight rounds with one comparison. Control enters the unrolled loop, and repeats it, as long as that many rounds are
//! certain; the original loop does the remaining rounds.
//!
//! When the next `n` rounds are certain: the counter is below the limit less the change of the counter in `n - 1`
//! rounds, and that difference has not wrapped below the least number. If the loop ends at equality, the counter must
//! be farther from the limit than that change, counted in the direction of the step.
//!
//! A loop whose counter starts at a constant and ends at a constant has a known number of rounds. Then nothing is
//! compared before the unrolled loop, its end compares the counter with the number that it reaches there, and the
//! original loop remains only if some rounds are left over.
//!
//! A sum (or `or`, or `xor`) that no other op of the round reads is accumulated over the copies in a new value, which
//! is added once. A round that waits for the round before in another way (a walk through a table, a hash) is copied all
//! the same: the copies need neither comparisons nor jumps.
//!
//! Invariants: every op of a round is executed as often as before and in the same order, except for comparisons whose
//! outcome is known and for these sums, whose result does not depend on the order. Each round but the last passes the
//! checks of its jump back. In a contained program, which may be stopped anywhere, the checks of the rounds of the
//! unrolled loop are passed together before the first of them. Nothing is assumed about the program. At most
//! [`MAX_ADDED`] ops plus the function's number of ops are added.

use crate::faults::planted;
use bpf_isa::{Cond, Width};
use bpf_lir::{BinOp, BlockId, Check, Ends, Func, Op, Span, VReg, Val, narrow};

/// The most ops of a round, its branch not counted.
const MAX_OPS: usize = 16;
/// A loop with a sum and at most as many ops as the first number is copied as often as the second says ...
const SHORT: (usize, usize) = (5, 8);
/// ... and all others this often.
const COPIES: usize = 4;
/// The most blocks that a round falls through; selections made by `convert` leave empty blocks.
const MAX_BLOCKS: usize = 12;
/// How many ops may be added to a function, beside as many as it has.
const MAX_ADDED: usize = 512;
/// How many ops in front of a loop are searched for the constant that its counter starts with.
const MAX_BACK: usize = 32;

/// A counted loop that can be unrolled.
#[derive(Clone, Copy, Debug)]
struct Loop {
    /// Its first and its last block, as positions in the block order.
    first: usize,
    last: usize,
    /// The block that passes the checks of the way back, if any, and jumps to the head; `None` if the branch of the
    /// last block leads to the head itself.
    latch: Option<BlockId>,
    /// The block to which control leaves the loop.
    out: BlockId,
    counter: VReg,
    step: i64,
    /// The loop goes on while `counter cond limit`, at this width.
    width: Width,
    cond: Cond,
    limit: Val,
    copies: usize,
    /// The counter's start and the number of rounds, if both are known.
    known: Option<Known>,
}

/// A constant start of the counter, and the number of rounds that follows from it.
#[derive(Clone, Copy, Debug)]
struct Known {
    start: i64,
    rounds: u64,
}

/// Scratch memory of the pass, reused from function to function.
#[derive(Debug, Default)]
pub(crate) struct Unroll {
    /// By block: its position in the order, and how many jumps lead to it. At the end, the blocks of loops that are
    /// dropped have position `usize::MAX`.
    places: Vec<(usize, u32)>,
    loops: Vec<Loop>,
    /// By block: for the head of a loop, the block through which the unrolled loop is entered; otherwise the block
    /// itself.
    entries: Vec<BlockId>,
    /// Whether the checks of several rounds are passed together before the first of them.
    prepaid: bool,
    body: Vec<(Op, Span)>,
    checks: Vec<(Op, Span)>,
    /// By op of the body: the value that accumulates the sum over the copies.
    sums: Vec<Option<VReg>>,
    rounds: Vec<(Op, Span)>,
    order: Vec<BlockId>,
}

impl Unroll {
    /// Runs the pass over `func`; returns how many loops were unrolled.
    pub(crate) fn run(&mut self, func: &mut Func, prepaid: bool) -> u32 {
        self.prepaid = prepaid;
        self.places.clear();
        self.places.resize(func.blocks.len(), (usize::MAX, 0));
        let mut back = false;
        for (place, block) in func.order.iter().enumerate() {
            self.places[block.index()].0 = place;
            if let Some(taken) = func.ends(*block).taken {
                let (target, jumps) = &mut self.places[taken.index()];
                *jumps += 1;
                // Blocks before this one in the order have their positions.
                back |= *target <= place;
            }
        }
        if !back {
            return 0;
        }
        self.find(func);
        if self.loops.is_empty() {
            return 0;
        }
        self.entries.clear();
        self.entries.extend((0..func.blocks.len()).map(|block| BlockId(crate::num::small(block))));
        for i in 0..self.loops.len() {
            let head = func.order[self.loops[i].first];
            self.entries[head.index()] = func.new_block([]);
        }
        self.lead_in(func);
        let mut order = core::mem::take(&mut self.order);
        order.clear();
        let (mut next, loops) = (0, core::mem::take(&mut self.loops));
        for this in &loops {
            order.extend_from_slice(&func.order[next..this.first]);
            self.write(func, this, &mut order);
            next = this.first;
        }
        order.extend_from_slice(&func.order[next..]);
        order.retain(|block| self.places.get(block.index()).is_none_or(|(place, _)| *place != usize::MAX));
        core::mem::swap(&mut func.order, &mut order);
        let done = crate::num::small(loops.len());
        (self.loops, self.order) = (loops, order);
        done
    }

    /// Finds the loops that can be unrolled, in the order of the code.
    fn find(&mut self, func: &Func) {
        self.loops.clear();
        let mut left = MAX_ADDED + func.ops.len();
        for last in 0..func.order.len() {
            let Some(found) = self.find_at(func, last) else { continue };
            if let Some(rest) = left.checked_sub((self.body.len() + 4) * found.copies) {
                left = rest;
                self.loops.push(found);
            }
        }
    }

    /// Returns the loop that ends with the block at position `last`.
    fn find_at(&mut self, func: &Func, last: usize) -> Option<Loop> {
        let at = func.range(func.order[last]).last()?;
        let Op::Branch { width, cond, a, b, target } = func.ops[at] else { return None };
        let next = *func.order.get(last + 1)?;
        let leads_round = |block: BlockId| match func.block_ops(block) {
            [checks @ .., Op::Jump { target }] if checks.iter().all(|op| matches!(op, Op::Check { .. })) => {
                Some(*target).filter(|head| self.places[head.index()].0 <= last)
            }
            _ => None,
        };
        let (head, latch, out, cond) = if self.places[target.index()].0 <= last {
            (target, None, next, cond)
        } else if let Some(head) = leads_round(target) {
            (head, Some(target), next, cond)
        } else {
            (leads_round(next)?, Some(next), target, cond.negate()?)
        };
        let first = self.places[head.index()].0;
        let inside = func.order.get(first..=last).filter(|inside| inside.len() <= MAX_BLOCKS)?;
        let straight = inside.iter().zip(1..).all(|(block, n)| {
            (n == 1 || self.places[block.index()].1 == 0)
                && (n == inside.len() || matches!(func.ends(*block), Ends { taken: None, falls: true }))
        });
        if !straight {
            return None;
        }
        self.body.clear();
        for block in inside {
            let ops = func.range(*block).filter(|i| *i != at);
            self.body.extend(ops.map(|i| (func.ops[i], func.spans[i])));
            if self.body.len() > MAX_OPS + confining(&self.body) {
                return None;
            }
        }
        if !self.body.iter().all(|(op, _)| may_copy(op)) {
            return None;
        }
        // Either operand of the comparison may be the counter.
        let turned = if let Val::Reg(b) = b { Some((b, Val::Reg(a), crate::values::turned(cond))) } else { None };
        [Some((a, b, cond)), turned].into_iter().flatten().find_map(|(counter, limit, cond)| {
            let step = self.step(counter, width)?;
            let fixed = match limit {
                Val::Reg(v) => v != counter && self.body.iter().all(|(op, _)| op.def() != Some(v)),
                Val::Imm(_) => true,
            };
            let ends = match cond {
                Cond::Lt | Cond::Le | Cond::SLt | Cond::SLe => step > 0,
                Cond::Ne => true,
                Cond::Eq | Cond::Gt | Cond::Ge | Cond::SGt | Cond::SGe | Cond::Set => false,
            };
            let mut this =
                Loop { first, last, latch, out, counter, step, width, cond, limit, copies: COPIES, known: None };
            if self.adds_up(&this) && self.body.len() <= SHORT.0 + confining(&self.body) {
                this.copies = SHORT.1;
            }
            if !fixed || !ends || this.known_limit().is_none() {
                return None;
            }
            this.known = self.start(func, &this).and_then(|start| this.rounds_from(start));
            this.known.is_none_or(|known| known.rounds >= this.copies as u64).then_some(this)
        })
    }

    /// Returns the constant that the counter has whenever control enters the loop from outside, if straight code in
    /// front of the loop sets it.
    fn start(&self, func: &Func, this: &Loop) -> Option<i64> {
        let mut place = this.first;
        // The one jump to the head is the loop's own way back.
        let (_, jumps) = self.places[func.order[place].index()];
        if jumps != 1 || this.latch.is_some_and(|latch| !self.is_only_way(func, latch)) {
            return None;
        }
        let mut left = MAX_BACK;
        loop {
            place = place.checked_sub(1)?;
            let block = func.order[place];
            if !func.ends(block).falls {
                return None;
            }
            for op in func.block_ops(block).iter().rev() {
                left = left.checked_sub(1)?;
                if op.def() == Some(this.counter) {
                    return match *op {
                        Op::Mov { width, src: Val::Imm(imm), .. } => Some(narrow(width, imm as u64) as i64),
                        _ => None,
                    };
                }
            }
            if self.places[block.index()].1 != 0 {
                return None;
            }
        }
    }

    /// Whether at most one edge leads to a block.
    fn is_only_way(&self, func: &Func, block: BlockId) -> bool {
        let (place, jumps) = self.places[block.index()];
        let falls = place.checked_sub(1).is_some_and(|before| func.ends(func.order[before]).falls);
        jumps + u32::from(falls) == 1
    }

    /// Whether the round has a sum, and carries nothing else to the next round but values that grow by a constant.
    fn adds_up(&self, this: &Loop) -> bool {
        let mut sums = false;
        for (i, (op, _)) in self.body.iter().enumerate() {
            let Some(v) = op.def() else { continue };
            let (before, defined) = (&self.body[..=i], self.body[..i].iter().any(|(op, _)| op.def() == Some(v)));
            let mut waits = false;
            before.iter().for_each(|(op, _)| op.for_each_use(|used| waits |= used == v));
            if waits && !defined {
                let sum = self.added(i, this).is_some();
                if !sum && self.step(v, Width::W32).is_none() {
                    return false;
                }
                sums |= sum;
            }
        }
        sums
    }

    /// Returns the constant that a round adds to a value, if the round changes the value exactly once.
    fn step(&self, v: VReg, width: Width) -> Option<i64> {
        let mut defs = self.body.iter().filter(|(op, _)| op.def() == Some(v));
        let (Some((op, _)), None) = (defs.next(), defs.next()) else { return None };
        match *op {
            Op::Bin { op: BinOp::Add, width: at, a, b: Val::Imm(step), .. }
                if a == v && (at == width || at == Width::W64) =>
            {
                (step != 0 && step.unsigned_abs() < 1 << 16).then_some(step)
            }
            _ => None,
        }
    }

    /// Redirects all jumps to heads of loops to the unrolled loops, except the jumps of the loops themselves.
    fn lead_in(&mut self, func: &mut Func) {
        let mut round = self.loops.iter().peekable();
        let mut latches: Vec<BlockId> = self.loops.iter().filter_map(|this| this.latch).collect();
        latches.sort_unstable();
        for place in 0..func.order.len() {
            let block = func.order[place];
            let own = round.next_if(|this| this.last == place).is_some_and(|this| this.latch.is_none());
            if own || latches.binary_search(&block).is_ok() {
                continue;
            }
            if let Some(at) = func.range(block).last()
                && let Op::Jump { target } | Op::Branch { target, .. } = &mut func.ops[at]
            {
                *target = self.entries[target.index()];
            }
        }
    }

    /// Writes the unrolled loop and its entry in front of a loop, into the order: the guard, the first test, the
    /// rounds, and the test behind them.
    fn write(&mut self, func: &mut Func, this: &Loop, order: &mut Vec<BlockId>) {
        let (head, last) = (func.order[this.first], func.order[this.last]);
        let (entry, out) = (self.entries[head.index()], self.entries[this.out.index()]);
        let (Some(at), Some(other)) = (func.range(last).last(), this.cond.negate()) else { return };
        let (span, Loop { width, counter, .. }) = (func.spans[at], *this);
        self.body.clear();
        for block in &func.order[this.first..=this.last] {
            self.body.extend(func.range(*block).filter(|i| *i != at).map(|i| (func.ops[i], func.spans[i])));
        }
        self.checks.clear();
        if let Some(latch) = this.latch {
            let checks = func.range(latch).filter(|i| matches!(func.ops[*i], Op::Check { .. }));
            self.checks.extend(checks.map(|i| (func.ops[i], func.spans[i])));
        }
        if let Some(known) = this.known {
            return self.write_known(func, this, known, order);
        }
        let enough = this.enough(func);
        let branch = |cond: Cond, a: VReg, b: Val, target: BlockId| (Op::Branch { width, cond, a, b, target }, span);
        let test = enough.each.map(|op| (op, span));
        let [yes, no] = enough.conds;
        // Branches to the original loop unless the lowered limit does not wrap and is far enough.
        func.set_ops(entry, enough.guard.map(|(cond, a, b)| branch(cond, a, b, head)));
        let once = enough.once.map(|op| (op, span)).into_iter().chain(test);
        let way_in = func.new_block(once.chain([branch(no, enough.a, enough.b, head)]));
        self.copy(func, this);
        let (rounds, behind) = (func.new_block([]), func.new_block([]));
        let leaves = branch(other, counter, this.limit, out);
        let round = branch(yes, enough.a, enough.b, rounds);
        // The checks may only be passed if another round follows.
        let (first, second) = if self.checks.is_empty() {
            (Some(round), [None, Some(leaves)])
        } else {
            (Some(leaves), [test, Some(round)])
        };
        let test = test.filter(|_| self.checks.is_empty());
        func.set_ops(rounds, self.rounds.drain(..).chain(test).chain(first));
        func.set_ops(behind, self.checks.drain(..).chain(second.into_iter().flatten()));
        order.extend([entry, way_in, rounds, behind]);
    }

    /// Writes the unrolled loop of a loop with a known number of rounds: it needs no guard and no first test.
    fn write_known(&mut self, func: &mut Func, this: &Loop, known: Known, order: &mut Vec<BlockId>) {
        let (head, out) = (func.order[this.first], self.entries[this.out.index()]);
        let Some(at) = func.range(func.order[this.last]).last() else { return };
        let (span, Loop { width, counter, .. }) = (func.spans[at], *this);
        let copies = this.copies as u64;
        let mut rest = known.rounds % copies;
        let mut at_once = known.rounds - rest;
        if planted!(RoundsUncertain) && rest > 0 {
            (at_once, rest) = (at_once.wrapping_add(copies), 0);
        }
        // The counter reaches this number after the last round of the unrolled loop.
        let end = known.start.wrapping_add(this.step.wrapping_mul(at_once as i64));
        let branch = |cond, target| (Op::Branch { width, cond, a: counter, b: Val::Imm(end), target }, span);
        let jump = |target| (Op::Jump { target }, span);
        self.copy(func, this);
        let (rounds, behind) = (func.new_block([]), func.new_block([]));
        let (first, second) = match (rest, at_once == copies) {
            // Another round follows in any case, so its checks are passed.
            (1.., true) => {
                self.rounds.append(&mut self.checks);
                (None, None)
            }
            (1.., false) => {
                self.rounds.append(&mut self.checks);
                (Some(branch(Cond::Ne, rounds)), None)
            }
            (0, true) => (None, Some(jump(out))),
            (0, false) if self.checks.is_empty() => (Some(branch(Cond::Ne, rounds)), Some(jump(out))),
            (0, false) => (Some(branch(Cond::Eq, out)), Some(jump(rounds))),
        };
        let checks = self.checks.drain(..).filter(|_| at_once != copies);
        func.set_ops(behind, checks.chain(second));
        func.set_ops(rounds, self.rounds.drain(..).chain(first));
        order.extend([self.entries[head.index()], rounds, behind]);
        if rest == 0 {
            let own = func.order[this.first..=this.last].iter().chain(&this.latch);
            own.for_each(|block| self.places[block.index()].0 = usize::MAX);
        }
    }

    /// Writes the ops of `copies` rounds to `rounds`.
    fn copy(&mut self, func: &mut Func, this: &Loop) {
        self.sums.clear();
        for i in 0..self.body.len() {
            let sum = self.added(i, this).map(|_| func.new_vreg());
            self.sums.push(sum);
        }
        self.rounds.clear();
        if self.prepaid {
            let times = u8::try_from(this.copies).map_or(u8::MAX, |copies| copies - 1);
            self.rounds.extend(self.checks.iter().map(|(op, span)| match *op {
                Op::Check { check: Check::Budget(each), ctx } => {
                    (Op::Check { check: Check::Budget(times.saturating_mul(each)), ctx }, *span)
                }
                op => (op, *span),
            }));
        }
        for n in 1..=this.copies {
            for (i, (op, span)) in self.body.iter().enumerate() {
                match (self.sums[i], self.added(i, this)) {
                    (Some(sum), Some((kind, width, total, new))) => {
                        let add = |dst, a, b| Op::Bin { op: kind, width, dst, a, b: Val::Reg(b) };
                        let first = Op::Mov { width, dst: sum, src: Val::Reg(new) };
                        self.rounds.push((if n == 1 { first } else { add(sum, sum, new) }, *span));
                        if n == this.copies {
                            self.rounds.push((add(total, total, sum), *span));
                        }
                    }
                    _ => self.rounds.push((*op, *span)),
                }
            }
            if n < this.copies && !self.prepaid {
                self.rounds.extend_from_slice(&self.checks);
            }
        }
    }

    /// Returns operation, width, sum and addend of op `i` of a round if it adds to a value that no other op of the
    /// round reads or writes.
    fn added(&self, i: usize, this: &Loop) -> Option<(BinOp, Width, VReg, VReg)> {
        let Op::Bin { op: op @ (BinOp::Add | BinOp::Or | BinOp::Xor), width, dst, a, b: Val::Reg(b) } = self.body[i].0
        else {
            return None;
        };
        let new = if a == dst { b } else { a };
        let (mut reads, mut writes) = (0, 0);
        for (op, _) in &self.body {
            op.for_each_use(|v| reads += u32::from(v == dst));
            writes += u32::from(op.def() == Some(dst));
        }
        let alone = (a == dst) != (b == dst) && (reads, writes) == (1, 1);
        (alone && this.counter != dst && this.limit != Val::Reg(dst)).then_some((op, width, dst, new))
    }
}

/// The test whether all rounds of one pass through the unrolled loop are certain.
struct Enough {
    /// The unrolled loop must not be entered if this comparison holds.
    guard: Option<(Cond, VReg, Val)>,
    /// The op computed once, before the first test.
    once: Option<Op>,
    /// The op computed before each test.
    each: Option<Op>,
    /// The test compares `a` with `b`: the rounds are certain under the first condition, and not certain under the
    /// second.
    a: VReg,
    b: Val,
    conds: [Cond; 2],
}

impl Loop {
    /// Returns the change of the counter in all rounds but the last, as a magnitude.
    fn most(&self) -> i64 {
        if planted!(RoundsUncertain) { 0 } else { self.step.abs() * (i64::from(crate::num::small(self.copies)) - 1) }
    }

    /// Returns the limit less that change if it is a constant, or the limit as it is if it is a register or compared by
    /// equality. Returns `None` if the lowered constant would wrap below the least number.
    fn known_limit(&self) -> Option<Val> {
        let Val::Imm(imm) = self.limit else { return Some(self.limit) };
        let (width, most) = (self.width, self.most());
        let imm = match width {
            Width::W32 => i64::from(crate::num::low(imm)),
            Width::W64 => imm,
        };
        let fits = match self.cond {
            Cond::Lt | Cond::Le => narrow(width, imm as u64) >= most as u64,
            Cond::SLt | Cond::SLe => imm >= self.least() + most,
            Cond::Ne => return Some(Val::Imm(imm)),
            Cond::Eq | Cond::Gt | Cond::Ge | Cond::SGt | Cond::SGe | Cond::Set => false,
        };
        fits.then_some(Val::Imm(imm.wrapping_sub(most)))
    }

    /// Returns the number of rounds from `start` to the limit, if the limit is a constant and the counter reaches it
    /// without wrapping.
    fn rounds_from(&self, start: i64) -> Option<Known> {
        let Val::Imm(limit) = self.limit else { return None };
        let step = i128::from(self.step);
        let bits = crate::rules::bits(self.width);
        let unsigned = |n: i64| i128::from(narrow(self.width, n as u64));
        let signed = |n: i64| if bits == 32 { i128::from(crate::num::low(n)) } else { i128::from(n) };
        let number = |n: i64| if self.least() == 0 { unsigned(n) } else { signed(n) };
        let (from, to) = (number(start), number(limit));
        // Rounds until the counter is first not below `to`; the body runs at least once.
        let up_to = |to: i128| Some(((to - from + step - 1) / step).max(1));
        let rounds = match self.cond {
            Cond::Ne => {
                let distance = signed(limit.wrapping_sub(start));
                (distance % step == 0).then_some(distance / step)
            }
            Cond::Lt | Cond::SLt => up_to(to),
            Cond::Le | Cond::SLe => up_to(to + 1),
            Cond::Eq | Cond::Gt | Cond::Ge | Cond::SGt | Cond::SGe | Cond::Set => None,
        }?;
        let most = if self.least() == 0 { i128::from(crate::rules::ones(bits.into())) } else { (1 << (bits - 1)) - 1 };
        let within = self.cond == Cond::Ne || from + rounds * step <= most;
        let rounds = u64::try_from(rounds).ok().filter(|rounds| *rounds > 0 && within)?;
        Some(Known { start, rounds })
    }

    /// Returns the least number of the condition's signedness and width.
    fn least(&self) -> i64 {
        match (self.cond, self.width) {
            (Cond::SLt | Cond::SLe, Width::W32) => i32::MIN.into(),
            (Cond::SLt | Cond::SLe, Width::W64) => i64::MIN,
            _ => 0,
        }
    }

    fn enough(&self, func: &mut Func) -> Enough {
        let Loop { width, counter, cond, limit, .. } = *self;
        let most = Val::Imm(self.most());
        if cond == Cond::Ne {
            let left = func.new_vreg();
            let sub = |a, b| Op::Bin { op: BinOp::Sub, width, dst: left, a, b };
            // The distance to the limit. With a constant limit above the counter: the counter less the limit lowered by
            // `most`, compared modulo 2^n.
            let (each, conds) = match (limit, self.step > 0) {
                (Val::Reg(limit), true) => (sub(limit, Val::Reg(counter)), [Cond::Gt, Cond::Le]),
                (Val::Reg(_) | Val::Imm(_), false) => (sub(counter, limit), [Cond::Gt, Cond::Le]),
                (Val::Imm(imm), true) => (sub(counter, Val::Imm(imm.wrapping_sub(self.most()))), [Cond::Gt, Cond::Le]),
            };
            return Enough { guard: None, once: None, each: Some(each), a: left, b: most, conds };
        }
        let conds = [cond, cond.negate().unwrap_or(cond)];
        match limit {
            Val::Imm(_) => {
                let b = self.known_limit().unwrap_or(limit);
                Enough { guard: None, once: None, each: None, a: counter, b, conds }
            }
            Val::Reg(limit) => {
                let less = func.new_vreg();
                let below = if self.least() == 0 { Cond::Lt } else { Cond::SLt };
                let guard = Some((below, limit, Val::Imm(self.least() + self.most())));
                let once = Some(Op::Bin { op: BinOp::Sub, width, dst: less, a: limit, b: most });
                Enough { guard, once, each: None, a: counter, b: Val::Reg(less), conds }
            }
        }
    }
}

/// Counts the ops of a round that only confine accesses: the selections, and the differences that they compare.
/// `gather.rs` removes most of them from copied rounds.
fn confining(body: &[(Op, Span)]) -> usize {
    2 * body.iter().filter(|(op, _)| matches!(op, Op::Confine { .. })).count()
}

/// Whether a round with this op may be copied. Excluded are ops with patch slots, ops that change control flow, and ops
/// so slow that saving a jump does not matter.
fn may_copy(op: &Op) -> bool {
    match op {
        Op::Bin { op, b, .. } => match op {
            BinOp::Div | BinOp::SDiv | BinOp::Mod | BinOp::SMod => matches!(b, Val::Imm(_)),
            BinOp::Add
            | BinOp::Sub
            | BinOp::Mul
            | BinOp::MulHighU
            | BinOp::MulHighS
            | BinOp::And
            | BinOp::Or
            | BinOp::Xor
            | BinOp::Shl
            | BinOp::Shr
            | BinOp::Sar
            | BinOp::Rotl => true,
        },
        Op::Mov { .. }
        | Op::Ext { .. }
        | Op::Neg { .. }
        | Op::Bswap { .. }
        | Op::AddShift { .. }
        | Op::Select { .. }
        | Op::Confine { .. }
        | Op::FrameAddr { .. }
        | Op::SymAddr { .. }
        | Op::SubprogAddr { .. }
        | Op::Load { .. }
        | Op::Store { .. }
        | Op::Check { .. }
        | Op::Bound { .. } => true,
        Op::LoadAcquire { .. }
        | Op::StoreRelease { .. }
        | Op::Atomic { .. }
        | Op::CmpXchg { .. }
        | Op::Call { .. }
        | Op::TailCall { .. }
        | Op::Stop { .. }
        | Op::Jump { .. }
        | Op::Branch { .. }
        | Op::Exit { .. } => false,
    }
}
