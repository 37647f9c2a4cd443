//! Two ways out of a loop that ask about one number become one.
//!
//! `n = min(length, 64); for (i = 0; i < n; i++)` comes from compilers for BPF as a loop that is left when `i` reaches
//! the length, and again when it reaches 64: a minimum would be a branch. Here it is a selection, made once, where the
//! limit is; one comparison a round is left, and a loop with one way out is one that can do several rounds at a time.
//!
//! Invariants: the limit is defined once, so that the minimum, made right behind it, is that of the limit wherever it
//! is read; what stands between the two branches only computes, and none of it is read where they lead to. It is made
//! outside of the loop, as far as the order of the code tells.

use super::Convert;
use crate::dead::is_pure;
use crate::faults::planted;
use crate::ssa::NONE;
use bpf_isa::{Cond, Width};
use bpf_lir::{BlockId, Func, Op, Span, VReg, Val, narrow};

/// The most ops between the two branches.
const MAX_BETWEEN: usize = 6;
/// How many minima are made, and for how many pairs of branches one is sought: each is a look at the blocks before.
const MAX_LIMITS: usize = 64;
const MAX_TRIES: u32 = 256;

/// A minimum.
#[derive(Clone, Copy, Debug)]
struct Limit {
    /// Where it is made: behind this op, or [`NONE`] at entry.
    behind: u32,
    width: Width,
    below: Cond,
    of: VReg,
    constant: i64,
    value: VReg,
}

/// What is found about values and places.
#[derive(Debug, Default)]
pub(super) struct Bounds {
    /// By value: the op that defines it, [`NONE`] at entry, and how often it is defined.
    defs: Vec<(u32, u32)>,
    /// By place in the order: the first place of the innermost loop that it is in.
    inner: Vec<u32>,
    /// By place: the next one of which that is not known yet.
    open: Vec<u32>,
    limits: Vec<Limit>,
    ops: Vec<(Op, Span)>,
}

/// Two branches out.
struct Pair {
    /// The op of the first one, and of the second.
    first: usize,
    second: usize,
    /// The way out, and whether the second one jumps there.
    out: BlockId,
    jumps: bool,
    /// Left when `a cond limit`, or `a cond constant`.
    cond: Cond,
    limit: VReg,
    constant: i64,
    width: Width,
}

impl Convert {
    /// Runs over `func`; says how many branches went.
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

    /// Finds which loops blocks are in; false if there is none.
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
        // Innermost first: those that begin last.
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
                    // What is known is passed over once more at most.
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

    /// The pair of branches that the block in this place and the next one end with.
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
            // Empty blocks lead on to the first that is not.
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

    /// The minimum that tells both, if it can be made outside of the loop that this place is in.
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

    /// Makes the minima.
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

/// The constant with which `from` says what `to` says with another one: above `c` is at least `c + 1`.
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
    // At 64 bits without a sign the upper half has no place in a constant that is compared cheaply.
    (least..=most.min(i128::from(i64::MAX))).contains(&value).then(|| i64::try_from(value).ok())?
}
