//! Finds how many low bits of each value may be set, before anything is rewritten.

use super::Values;
use crate::faults::planted;
use crate::rules;
use crate::ssa::Ssa;
use bpf_isa::{Size, Width};
use bpf_lir::{BinOp, Func, Op, VReg, Val, narrow};

impl Values {
    /// Finds an upper bound of the number of low bits that may be set in each value: it starts at 0 and rises until
    /// nothing changes.
    pub(super) fn find_bits(&mut self, func: &Func, ssa: &Ssa) {
        const ROUNDS: u32 = 4;
        let values = func.vregs as usize;
        self.bits.clear();
        self.bits.resize(values, 0);
        for v in func.entry_values() {
            self.bits[v.index()] = 64;
        }
        let mut round = 0;
        loop {
            let (mut changed, mut back) = (false, false);
            for block in ssa.cfg.rpo() {
                for phi in ssa.phis(*block) {
                    let most = ssa.args(*block, phi).iter().map(|arg| self.bits[arg.index()]).max().unwrap_or(64);
                    let known = &mut self.bits[phi.dst.index()];
                    if most > *known {
                        // A bound that keeps rising is widened to 64.
                        *known = if round < ROUNDS { most } else { 64 };
                        changed = true;
                    }
                }
                back |= ssa.cfg.succs(*block).any(|succ| ssa.cfg.leads_back(*block, succ));
                for op in func.block_ops(*block) {
                    if let Some(v) = op.def() {
                        let most = bits_of(op, &self.bits);
                        // The phis of a loop's head were evaluated before the values that they get from the loop's end.
                        changed |= most > self.bits[v.index()];
                        self.bits[v.index()] = most;
                    }
                }
            }
            round += 1;
            // Without a loop, one walk has evaluated all operands before their users.
            if !changed || !back || planted!(LoopsNeverWiden) {
                return;
            }
            if round == 4 * ROUNDS {
                self.bits.fill(64);
                return;
            }
        }
    }
}

/// Returns an upper bound of the number of low bits that may be set in an op's result, by the bounds `known` of its
/// operands.
pub(super) fn bits_of(op: &Op, known: &[u8]) -> u8 {
    let of = |v: VReg| known[v.index()];
    let at = |width: Width, n: u8| n.min(rules::bits(width));
    let size = |size: Size| crate::num::count(size.bits());
    let imm = |width: Width, imm: i64| 64 - crate::num::count(narrow(width, imm as u64).leading_zeros());
    let val = |width: Width, v: Val| match v {
        Val::Reg(v) => at(width, of(v)),
        Val::Imm(i) => imm(width, i),
    };
    match *op {
        Op::Mov { width, src, .. } => val(width, src),
        Op::Ext { width, signed, from, src, .. } => match signed {
            false => at(width, of(src).min(size(from))),
            true if of(src) < size(from) => of(src),
            true => at(width, 64),
        },
        Op::Bin { op, width, a, b, .. } => {
            let (x, y) = (at(width, of(a)), val(width, b));
            let count = |b: Val| match b {
                Val::Imm(i) => Some(crate::num::count(crate::num::low(i) as u32 % u32::from(rules::bits(width)))),
                Val::Reg(_) => None,
            };
            match op {
                BinOp::Add => at(width, x.max(y) + 1),
                BinOp::Mul => at(width, x.saturating_add(y)),
                BinOp::MulHighU => at(width, x.saturating_add(y).saturating_sub(at(width, 64))),
                BinOp::Div => x,
                BinOp::Mod => x,
                BinOp::And => x.min(y),
                BinOp::Or | BinOp::Xor => x.max(y),
                BinOp::Shl => count(b).map_or(at(width, 64), |n| at(width, x + n)),
                BinOp::Shr => count(b).map_or(x, |n| x.saturating_sub(n)),
                BinOp::Sar if x < at(width, 64) => count(b).map_or(x, |n| x.saturating_sub(n)),
                BinOp::Sub | BinOp::MulHighS | BinOp::SDiv | BinOp::SMod | BinOp::Sar | BinOp::Rotl => at(width, 64),
            }
        }
        Op::Bswap { size: s, .. } => size(s),
        Op::AddShift { width, a, b, shift, .. } => {
            at(width, at(width, of(a)).max(at(width, of(b)).saturating_add(shift)).saturating_add(1))
        }
        Op::Select { yes, no, .. } => of(yes).max(of(no)),
        Op::Load { size: s, signed: false, .. } | Op::LoadAcquire { size: s, .. } => size(s),
        Op::Atomic { width, .. } | Op::CmpXchg { width, .. } | Op::Neg { width, .. } => at(width, 64),
        Op::Confine { .. } => 64,
        Op::Load { .. } | Op::FrameAddr { .. } | Op::SymAddr { .. } | Op::SubprogAddr { .. } | Op::Call { .. } => 64,
        Op::Store { .. }
        | Op::StoreRelease { .. }
        | Op::TailCall { .. }
        | Op::Check { .. }
        | Op::Bound { .. }
        | Op::Stop { .. }
        | Op::Jump { .. }
        | Op::Branch { .. }
        | Op::Exit { .. } => 64,
    }
}
