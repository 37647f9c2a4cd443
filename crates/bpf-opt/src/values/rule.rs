//! Applies a rule of `rules` to an op: matches its patterns against the operands, and builds its result.

use super::{NEW, Pass, is_commutative};
use crate::faults::planted;
use crate::rules::{Con, Out, Pat, Rule, sign};
use bpf_isa::Width;
use bpf_lir::{Op, VReg, Val, narrow};

/// The values and constants that the variables of a pattern are bound to.
#[derive(Clone, Copy)]
struct Found {
    values: [VReg; 2],
    constants: [Option<i64>; 2],
}

impl Pass<'_> {
    /// Returns the value of a rule's result if the rule matches an op on these operands and its conditions hold.
    pub(super) fn try_rule(
        &mut self,
        rule: &Rule,
        width: Width,
        a: VReg,
        b: Val,
        dst: VReg,
        depth: u32,
    ) -> Option<VReg> {
        if rule.width.is_some_and(|only| only != width) {
            return None;
        }
        let mut found = Found { values: [NEW; 2], constants: [None; 2] };
        let mut matched =
            self.matches(&rule.a, Val::Reg(a), width, &mut found) && self.matches(&rule.b, b, width, &mut found);
        if !matched
            && is_commutative(rule.op)
            && let Val::Reg(b) = b
        {
            found = Found { values: [NEW; 2], constants: [None; 2] };
            matched = self.matches(&rule.a, Val::Reg(b), width, &mut found)
                && self.matches(&rule.b, Val::Reg(a), width, &mut found);
        }
        if !matched {
            return None;
        }
        let constants = found.constants.map(|c| c.unwrap_or(0) as u64);
        let known = found.values.map(|v| self.s.bits.get(v.index()).copied().unwrap_or(64));
        if !planted!(RuleUnconditional) && !rule.when.iter().all(|when| when.holds(width, &constants, &known)) {
            return None;
        }
        Some(match rule.out {
            Out::V(v) => self.mov(width, Val::Reg(found.values[usize::from(v)]), dst),
            Out::Con(con) => self.mov(width, Val::Imm(con.value(width, &constants) as i64), dst),
            Out::Neg(v) => self.value(Op::Neg { width, dst: NEW, src: found.values[usize::from(v)] }, dst, depth + 1),
            Out::Signed(from, v) => {
                let src = found.values[usize::from(v)];
                self.value(Op::Ext { width, signed: true, from, dst: NEW, src }, dst, depth + 1)
            }
            Out::Op(op, a, b) => {
                let a = self.build(a, width, &found, depth)?;
                let b = match b {
                    Out::Con(con) => Val::Imm(sign(width, con.value(width, &constants))),
                    Out::V(_) | Out::Op(..) | Out::Signed(..) | Out::Neg(_) => {
                        Val::Reg(self.build(b, width, &found, depth)?)
                    }
                };
                self.value(Op::Bin { op, width, dst: NEW, a, b }, dst, depth + 1)
            }
        })
    }

    /// Builds a part of a rule's result that an operation at the rule's width reads.
    fn build(&mut self, out: &Out, width: Width, found: &Found, depth: u32) -> Option<VReg> {
        match *out {
            Out::V(v) => Some(found.values[usize::from(v)]),
            Out::Op(op, a, &Out::Con(con)) => {
                let a = self.build(a, width, found, depth)?;
                let b = Val::Imm(sign(width, self.con(con, width, found)));
                Some(self.value(Op::Bin { op, width, dst: NEW, a, b }, NEW, depth + 1))
            }
            Out::Con(_) | Out::Op(..) | Out::Signed(..) | Out::Neg(_) => None,
        }
    }

    fn con(&self, con: Con, width: Width, found: &Found) -> u64 {
        con.value(width, &found.constants.map(|c| c.unwrap_or(0) as u64))
    }

    fn matches(&self, pat: &Pat, v: Val, width: Width, found: &mut Found) -> bool {
        match (pat, v) {
            (Pat::V(n), Val::Reg(v)) => {
                let known = &mut found.values[usize::from(*n)];
                if *known == NEW {
                    *known = v;
                }
                *known == v
            }
            (Pat::K(n), Val::Imm(imm)) => *found.constants[usize::from(*n)].get_or_insert(imm) == imm,
            (Pat::Is(is), Val::Imm(imm)) => narrow(width, imm as u64) == narrow(width, *is as u64),
            (Pat::Op(op, a, b), Val::Reg(v)) => match self.def(v) {
                Some(Op::Bin { op: found_op, width: found_width, a: x, b: y, .. })
                    if found_op == op && *found_width == width =>
                {
                    let saved = *found;
                    if self.matches(a, Val::Reg(*x), width, found) && self.matches(b, *y, width, found) {
                        return true;
                    }
                    *found = saved;
                    match y {
                        Val::Reg(y) if is_commutative(*op) => {
                            self.matches(a, Val::Reg(*y), width, found) && self.matches(b, Val::Reg(*x), width, found)
                        }
                        Val::Reg(_) | Val::Imm(_) => false,
                    }
                }
                Some(_) | None => false,
            },
            (Pat::Neg(of), Val::Reg(v)) => match self.def(v) {
                Some(Op::Neg { width: found_width, src, .. }) if *found_width == width => {
                    self.matches(of, Val::Reg(*src), width, found)
                }
                Some(_) | None => false,
            },
            (Pat::V(_) | Pat::Op(..) | Pat::Neg(_), Val::Imm(_)) | (Pat::K(_) | Pat::Is(_), Val::Reg(_)) => false,
        }
    }
}
