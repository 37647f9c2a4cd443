//! Short counted loops do several rounds at a time.
//!
//! A loop over bytes or words is a few ops, and beside them one that counts, a comparison and a jump that is taken each
//! round; what is summed up waits for the sum of the round before. Approach, before SSA form, where a round can be
//! copied as it stands: in front of a loop of at most [`MAX_OPS`] ops in straight code, which ends when a counter that
//! grows by a constant comes to a limit, comes one that does four or eight rounds and counts once. It is entered, and
//! goes round, for as long as so many rounds are certain; the loop itself does the rest.
//!
//! That the next `n` rounds are certain: the counter is below the limit less what `n - 1` rounds add to it, and that
//! difference is no negative number. Where the loop ends at equality, the counter is farther from the limit than
//! that, counted in the direction in which it goes.
//!
//! A loop that begins with a constant, up to a constant, does a known number of rounds. Then nothing is asked before,
//! the counter is compared with where the last of the rounds at once ends, and of the loop itself only as many rounds
//! are left as do not fill one, if any.
//!
//! A sum (or `or`, or `xor`) that nothing else in the round reads is summed up for the copies first, and added once.
//! A round that waits for anything else of the one before (a walk through a table, a hash) is copied all the same: the
//! copies need neither comparisons nor jumps, and count once.
//!
//! Invariants: every op of a round is executed as often and in the order as before, but for the comparisons whose
//! outcome is known and for such sums, which are the same in any order; each round but the last passes the checks of
//! its jump back. In a contained program, which may be stopped anywhere, the checks of the rounds at once are passed
//! together before the first of them. Nothing is asked of the program. What is added is at most [`MAX_ADDED`] ops and
//! as many as there were.

use crate::faults::planted;
use bpf_isa::{Cond, Width};
use bpf_lir::{BinOp, BlockId, Check, Ends, Func, Op, Span, VReg, Val, narrow};

/// The most ops of a round, its jump aside ...
const MAX_OPS: usize = 16;
/// ... and up to how many with a sum are copied how often ...
const SHORT: (usize, usize) = (5, 8);
/// ... and all others.
const COPIES: usize = 4;
/// The most blocks that a round falls through: selections leave empty ones.
const MAX_BLOCKS: usize = 12;
/// How many ops may be added to a function, however small it is.
const MAX_ADDED: usize = 512;
/// How far before a loop the constant is looked for that its counter begins with.
const MAX_BACK: usize = 32;

/// A loop.
#[derive(Clone, Copy, Debug)]
struct Loop {
    /// Its first and its last block, by place in the order.
    first: usize,
    last: usize,
    /// The block behind it that leads round, if the last one does not: with checks, or where the branch leads out.
    latch: Option<BlockId>,
    /// Where control goes in the end.
    out: BlockId,
    counter: VReg,
    step: i64,
    /// It goes on while `counter cond limit`.
    width: Width,
    cond: Cond,
    limit: Val,
    copies: usize,
    /// What the counter begins with, and how many rounds that makes, if both are known.
    known: Option<Known>,
}

/// A loop that does so many rounds.
#[derive(Clone, Copy, Debug)]
struct Known {
    start: i64,
    rounds: u64,
}

/// The memory that it works in.
#[derive(Debug, Default)]
pub(crate) struct Unroll {
    /// By block: its place in the order, and how many jumps lead to it. Blocks of the loops that are left out have no
    /// place in the end.
    places: Vec<(usize, u32)>,
    loops: Vec<Loop>,
    /// By block: where to come in, of the heads of loops.
    entries: Vec<BlockId>,
    /// Whether the checks of rounds at once are passed before the first of them.
    prepaid: bool,
    body: Vec<(Op, Span)>,
    checks: Vec<(Op, Span)>,
    /// By op of the body: the sum of the copies.
    sums: Vec<Option<VReg>>,
    rounds: Vec<(Op, Span)>,
    order: Vec<BlockId>,
}

impl Unroll {
    /// Runs over `func`; says how many loops there were.
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
                // Those before it have their places.
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

    /// Finds the loops, in the order of the code.
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

    /// The loop that ends with the block in this place.
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
        // Either side may count.
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

    /// The constant that the counter is whenever control comes to a loop but by its own way round: straight from there.
    fn start(&self, func: &Func, this: &Loop) -> Option<i64> {
        let mut place = this.first;
        // The one jump there is its own.
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

    /// Whether there is no more than one way to a block.
    fn is_only_way(&self, func: &Func, block: BlockId) -> bool {
        let (place, jumps) = self.places[block.index()];
        let falls = place.checked_sub(1).is_some_and(|before| func.ends(func.order[before]).falls);
        jumps + u32::from(falls) == 1
    }

    /// Whether there is a sum, and nothing else that a round waits for but what grows by constants.
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

    /// What a round adds to a value, if it changes it by a constant, once.
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

    /// Lets all ways to heads of loops lead to what comes before them, but for those round.
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

    /// Writes what comes before a loop, into the order: the way in, the rounds, and what is tested then.
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
        // Whether there is such a limit, and it is far enough.
        func.set_ops(entry, enough.guard.map(|(cond, a, b)| branch(cond, a, b, head)));
        let once = enough.once.map(|op| (op, span)).into_iter().chain(test);
        let way_in = func.new_block(once.chain([branch(no, enough.a, enough.b, head)]));
        self.copy(func, this);
        let (rounds, behind) = (func.new_block([]), func.new_block([]));
        let leaves = branch(other, counter, this.limit, out);
        let round = branch(yes, enough.a, enough.b, rounds);
        // What checks are passed by is another round.
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

    /// The same of a loop whose rounds are known: those at once, and before the loop nothing else.
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
        // Within what the counter comes through.
        let end = known.start.wrapping_add(this.step.wrapping_mul(at_once as i64));
        let branch = |cond, target| (Op::Branch { width, cond, a: counter, b: Val::Imm(end), target }, span);
        let jump = |target| (Op::Jump { target }, span);
        self.copy(func, this);
        let (rounds, behind) = (func.new_block([]), func.new_block([]));
        let (first, second) = match (rest, at_once == copies) {
            // A round follows in any case: its checks are passed.
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

    /// The ops of as many rounds as are done at once.
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

    /// What an op of a round adds to what nothing else there reads or writes: how, to what, and what.
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

/// How to find out that so many rounds as are done at once are certain.
struct Enough {
    /// That it must not be so ...
    guard: Option<(Cond, VReg, Val)>,
    /// ... what is computed before the first time ...
    once: Option<Op>,
    /// ... and each time ...
    each: Option<Op>,
    /// ... and compared: under the first condition it is certain, under the second not.
    a: VReg,
    b: Val,
    conds: [Cond; 2],
}

impl Loop {
    /// By how much all rounds but the last change the counter.
    fn most(&self) -> i64 {
        if planted!(RoundsUncertain) { 0 } else { self.step.abs() * (i64::from(crate::num::small(self.copies)) - 1) }
    }

    /// A constant limit, less that; `None` if that is below zero, or what counts as zero.
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

    /// How many rounds there are from this number to the limit, if that is a constant and the counter comes there
    /// without a turn through all numbers.
    fn rounds_from(&self, start: i64) -> Option<Known> {
        let Val::Imm(limit) = self.limit else { return None };
        let step = i128::from(self.step);
        let bits = crate::rules::bits(self.width);
        let unsigned = |n: i64| i128::from(narrow(self.width, n as u64));
        let signed = |n: i64| if bits == 32 { i128::from(crate::num::low(n)) } else { i128::from(n) };
        let number = |n: i64| if self.least() == 0 { unsigned(n) } else { signed(n) };
        let (from, to) = (number(start), number(limit));
        // Of a loop that goes up to a limit: to the first number that is not below it, or not up to it.
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

    /// What counts as zero: the least number there is.
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
            // How far it is; with a constant limit above the counter, how far beyond all rounds but the last, negative.
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

/// Counts the ops of a round that only confine accesses: selections, and the differences that they compare. `gather.rs`
/// removes most of them from copied rounds.
fn confining(body: &[(Op, Span)]) -> usize {
    2 * body.iter().filter(|(op, _)| matches!(op, Op::Confine { .. })).count()
}

/// Whether a round with this op may be copied: nothing that is patched, and nothing beside which a jump is nothing.
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
