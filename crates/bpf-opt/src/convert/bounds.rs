//! Merges two exits of a loop that compare one number.
//!
//! Compilers for BPF turn `n = min(length, 64); for (i = 0; i < n; i++)` into a loop that is left when `i` reaches the
//! length, and again when `i` reaches 64, since a minimum would need a branch. This pass computes the minimum with one
//! selection where the limit is defined. One comparison a round remains, and a loop with one exit can be unrolled.
//!
//! Invariants: the limit has a single definition, so the minimum, made right behind it, belongs to the limit that the
//! loop reads. The ops between the two branches only compute, and none of their results is read behind the exit. The
//! minimum is made in front of the loop, as far as the order of the code tells.

use super::Convert;
use crate::dead::is_pure;
use crate::faults::planted;
use crate::ssa::NONE;
use bpf_isa::{Cond, Width};
use bpf_lir::{BlockId, Func, Op, Span, VReg, Val, narrow};

/// The most ops between the two branches.
const MAX_BETWEEN: usize = 6;
/// The most minima of a function, and the most pairs of branches for which one is sought: each search walks the blocks
/// before the loop.
const MAX_LIMITS: usize = 64;
const MAX_TRIES: u32 = 256;

/// A minimum of a limit and a constant.
#[derive(Clone, Copy, Debug)]
struct Limit {
    /// Index of the op behind which it is made, or [`NONE`] at the function's entry.
    behind: u32,
    width: Width,
    below: Cond,
    of: VReg,
    constant: i64,
    value: VReg,
}

/// The definitions and loops of a function, and the minima to be made.
#[derive(Debug, Default)]
pub(super) struct Bounds {
    /// By value: the index of the op that defines it, [`NONE`] at entry, and its number of definitions.
    defs: Vec<(u32, u32)>,
    /// By position in the order: the first position of the innermost loop that contains it, or [`NONE`].
    inner: Vec<u32>,
    /// By position: a later or equal position up to which all entries of `inner` are set (a union-find forest).
    open: Vec<u32>,
    limits: Vec<Limit>,
    ops: Vec<(Op, Span)>,
}

/// Two exits of a loop that compare the same number.
struct Pair {
    /// Op indices of the first and of the second branch.
    first: usize,
    second: usize,
    /// The block that both exits lead to, and whether the second branch jumps there or falls there.
    out: BlockId,
    jumps: bool,
    /// The loop is left when `a cond limit` or `a cond constant`.
    cond: Cond,
    limit: VReg,
    constant: i64,
    width: Width,
}

impl Convert {
    /// Runs the pass over `func`; returns how many branches were removed.
    pub(super) fn one_way_out(&mut self, func: &mut Func) -> u32 {
        if !self.find_loops(func) {
            return 0;
        }
        self.bounds.limits.clear();
        let (mut done, mut tries) = (0, 0);
        for place in 0..func.order.len() {
            if self.bounds.inner[place] == NONE || self.bounds.limits.len() == MAX_LIMITS || tries == MAX_TRIES {
                continue;
            }
            let Some(pair) = self.pair(func, place) else { continue };
            if tries == 0 {
                self.find_defs(func);
            }
            tries += 1;
            if let Some(limit) = self.limit(func, &pair, place) {
                let from = func.order[place];
                func.blocks[from.index()].ops.end -= 1;
                self.reached[pair.out.index()] -= 1;
                if let Op::Branch { cond, b, .. } = &mut func.ops[pair.second] {
                    *b = Val::Reg(limit);
                    *cond = if pair.jumps { pair.cond } else { pair.cond.negate().unwrap_or(pair.cond) };
                }
                done += 1;
            }
        }
        self.make_limits(func);
        done
    }

    /// Finds the innermost loop of each position; returns false if the function has no loop.
    fn find_loops(&mut self, func: &Func) -> bool {
        let Bounds { inner, open, .. } = &mut self.bounds;
        inner.clear();
        let mut back: Vec<(u32, u32)> = Vec::new();
        for (block, place) in func.order.iter().zip(0..) {
            inner.push(NONE);
            if let Some(taken) = func.ends(*block).taken {
                let [to, _] = self.places[taken.index()];
                if to <= place {
                    back.push((to, place));
                }
            }
        }
        // Loops with a later head come first: inner loops before the loops around them.
        back.sort_unstable_by_key(|(to, from)| (core::cmp::Reverse(*to), *from));
        open.clear();
        open.extend(0..=crate::num::small(inner.len()));
        for (to, from) in &back {
            let mut at = *to;
            while at <= *from {
                let next = open[at as usize];
                if next == at {
                    inner[at as usize] = *to;
                    open[at as usize] = at + 1;
                    at += 1;
                } else {
                    // Path halving: each step skips positions that are set.
                    open[at as usize] = open[next as usize];
                    at = next;
                }
            }
        }
        !back.is_empty()
    }

    fn find_defs(&mut self, func: &Func) {
        let defs = &mut self.bounds.defs;
        defs.clear();
        defs.resize(func.vregs as usize, (NONE, 0));
        func.entry_values().for_each(|v| defs[v.index()].1 += 1);
        for at in func.order.iter().flat_map(|block| func.range(*block)) {
            if let Some(v) = func.ops[at].def() {
                let (def, count) = &mut defs[v.index()];
                (*def, *count) = (crate::num::small(at), *count + 1);
            }
        }
    }

    /// Returns the pair of exits that the block at position `place` and the next block that is not empty end with.
    fn pair(&mut self, func: &Func, place: usize) -> Option<Pair> {
        let first = func.range(func.order[place]).last()?;
        let Op::Branch { width, cond, a, b, target: out } = func.ops[first] else { return None };
        let next = |place: usize| {
            let full = |i: &usize| !func.block_ops(func.order[*i]).is_empty();
            (place + 1..func.order.len()).find(full)
        };
        let then = next(place)?;
        if func.order[place + 1..=then].iter().any(|block| self.reached[block.index()] != 0) {
            return None;
        }
        let second = func.range(func.order[then]).last()?;
        let Op::Branch { width: width2, cond: cond2, a: a2, b: b2, target } = func.ops[second] else { return None };
        let leads_out =
            |block: BlockId| block == out || matches!(func.block_ops(block), [Op::Jump { target }] if *target == out);
        let (jumps, cond2) = if leads_out(target) {
            (true, cond2)
        } else {
            // Control falls through empty blocks to the first block that is not empty.
            let falls = |i: usize| func.order[then + 1..=i].contains(&out) || leads_out(func.order[i]);
            next(then).filter(|i| falls(*i))?;
            (false, cond2.negate()?)
        };
        let (limit, constant, of_constant, of_limit) = match (b, b2) {
            (Val::Reg(limit), Val::Imm(imm)) => (limit, imm, cond2, cond),
            (Val::Imm(imm), Val::Reg(limit)) => (limit, imm, cond, cond2),
            (Val::Reg(_), Val::Reg(_)) | (Val::Imm(_), Val::Imm(_)) => return None,
        };
        let constant = moved(width, of_constant, of_limit, constant)?;
        let between = &func.ops[func.range(func.order[then]).start..second];
        let apart = between.iter().all(|op| is_pure(op) && op.def() != Some(a) && op.def() != Some(limit));
        if (width, a) != (width2, a2) || limit == a || between.len() > MAX_BETWEEN || !apart {
            return None;
        }
        let unread = between.iter().filter_map(Op::def).all(|v| self.lives_into(func, out, v) == Some(false));
        unread.then_some(Pair { first, second, out, jumps, cond: of_limit, limit, constant, width })
    }

    /// Returns the minimum of the limit and the constant of a pair, if it can be made outside of the loop that contains
    /// this position.
    fn limit(&mut self, func: &mut Func, pair: &Pair, place: usize) -> Option<VReg> {
        let (behind, count) = *self.bounds.defs.get(pair.limit.index())?;
        let head = func.order[self.bounds.inner[place] as usize];
        let inside = (behind as usize) >= func.range(head).start && behind as usize <= pair.first && behind != NONE;
        let before = func.order[..self.bounds.inner[place] as usize].iter().any(|block| {
            let range = func.range(*block);
            range.contains(&(behind as usize))
        });
        if count != 1 || behind != NONE && (inside || !before) {
            return None;
        }
        let below = if matches!(pair.cond, Cond::Ge | Cond::Gt) { Cond::Lt } else { Cond::SLt };
        let Pair { width, limit: of, constant, .. } = *pair;
        let same =
            |known: &&Limit| (known.width, known.below, known.of, known.constant) == (width, below, of, constant);
        if let Some(known) = self.bounds.limits.iter().find(same) {
            return Some(known.value);
        }
        let value = func.new_vreg();
        self.bounds.limits.push(Limit { behind, width, below, of, constant, value });
        Some(value)
    }

    /// Inserts the minima behind the definitions of their limits.
    fn make_limits(&mut self, func: &mut Func) {
        let Bounds { limits, ops, .. } = &mut self.bounds;
        limits.sort_by_key(|limit| limit.behind);
        let made = |func: &mut Func, limit: &Limit, ops: &mut Vec<(Op, Span)>, span: Span| {
            let Limit { width, below, of, constant, value, .. } = *limit;
            let no = func.new_vreg();
            let b = Val::Imm(constant);
            let below = if planted!(GreaterBound) { below.negate().unwrap_or(below) } else { below };
            ops.push((Op::Mov { width: Width::W64, dst: no, src: b }, span));
            ops.push((Op::Select { width, cond: below, a: of, b, dst: value, yes: of, no }, span));
        };
        let mut rest = limits.as_slice();
        for i in 0..func.order.len() {
            let range = func.range(func.order[i]);
            if !rest.iter().any(|limit| range.contains(&(limit.behind as usize))) {
                continue;
            }
            ops.clear();
            for at in range {
                ops.push((func.ops[at], func.spans[at]));
                for limit in rest.iter().filter(|limit| limit.behind as usize == at) {
                    made(func, limit, ops, func.spans[at]);
                }
            }
            func.set_ops(func.order[i], ops.drain(..));
        }
        rest = rest.iter().position(|limit| limit.behind == NONE).map_or(&[], |at| &rest[at..]);
        ops.clear();
        for limit in rest {
            made(func, limit, ops, Span::default());
        }
        if !ops.is_empty() {
            let entry = func.new_block(ops.drain(..));
            func.order.insert(0, entry);
        }
    }
}

/// Returns the constant c' for which `x to c'` is the same condition as `x from constant`: x > c is x >= c + 1.
fn moved(width: Width, from: Cond, to: Cond, constant: i64) -> Option<i64> {
    let bits = u32::from(crate::rules::bits(width));
    let constant = match to {
        Cond::Ge | Cond::Gt => i128::from(narrow(width, constant as u64)),
        Cond::SGe | Cond::SGt => i128::from(constant << (64 - bits) >> (64 - bits)),
        Cond::Eq | Cond::Ne | Cond::Set | Cond::Lt | Cond::Le | Cond::SLt | Cond::SLe => return None,
    };
    let value = match (from, to) {
        (Cond::Ge, Cond::Ge) | (Cond::Gt, Cond::Gt) | (Cond::SGe, Cond::SGe) | (Cond::SGt, Cond::SGt) => constant,
        (Cond::Gt, Cond::Ge) | (Cond::SGt, Cond::SGe) => constant + 1,
        (Cond::Ge, Cond::Gt) | (Cond::SGe, Cond::SGt) => constant - 1,
        _ => return None,
    };
    let signed = matches!(to, Cond::SGe | Cond::SGt);
    let (least, most) =
        if signed { (-(1i128 << (bits - 1)), (1i128 << (bits - 1)) - 1) } else { (0, (1i128 << bits) - 1) };
    // An unsigned constant above 2^63 - 1 is refused at 64 bits, since comparisons take no such constant cheaply.
    (least..=most.min(i128::from(i64::MAX))).contains(&value).then(|| i64::try_from(value).ok())?
}
