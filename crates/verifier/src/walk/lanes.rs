//! Numbers whose bits are counted (population count).
//!
//! Problem: BPF has no instruction that counts bits, so compilers expand one (and leading and trailing zeros, which are
//! made of it): pairs of bits, then fields of four and eight, are added side by side in one number, and a product adds
//! the bytes. Ranges and known bits only show that the result is a byte, and not that it is at most the width.
//! Approach: an upper bound of each field of such a number is kept ([`Lanes`]); the fields are added, masked, shifted
//! and multiplied side by side ([`crate::fields`]).
//!
//! Invariants: each fact is about a name, which denotes the same number as long as a state has it. The facts live from
//! one join to the next, like differences.

use bpf_isa::{AluOp, Insn, Reg, Src, Width};

use super::{Walk, bits_mask, bits_of};
use crate::fields::{Fields, repeated};
use crate::scalar::Scalar;
use crate::state::{Bits, Lanes};
use crate::tnum::ones;
use crate::value::Value;

/// The most such facts of a state; a new one replaces the oldest.
const MAX_LANES: usize = 4;

impl Walk<'_> {
    /// The bits of an operation's result, for operands whose fields are known.
    pub(super) fn lanes_after(&mut self, width: Width, op: AluOp, dst: Reg, src: Src) -> Option<Bits> {
        let constant = match src {
            Src::Imm(i) => Some(i as i64 as u64 & bits_mask(width)),
            Src::Reg(r) => self.state.reg(r).as_const().map(|c| c & bits_mask(width)),
        };
        if (op, constant) == (AluOp::Rsh, Some(1)) && self.counts_pairs_next(dst) {
            let d = self.state.reg(dst);
            if d.is_scalar() && (width == Width::W64 || d.is_short()) {
                self.give_name(dst);
                let d = self.state.reg(dst);
                return ((d.scale, d.delta) == (1, 0) && d.id != 0).then_some(Bits::Shifted { x: d.id });
            }
        }
        if self.state.lanes.is_empty() {
            return None;
        }
        let known = |v: &Value| {
            let of = |l: &&Lanes| v.is_scalar() && (v.id, v.scale, v.delta) == (l.id, 1, 0);
            self.state.lanes.iter().find(of).map(|l| l.bits)
        };
        let d = self.state.reg(dst);
        let fields = |v: &Value| match known(v)? {
            Bits::Fields(f) if width == Width::W64 || v.is_short() => Some(f),
            Bits::Fields(_) | Bits::Shifted { .. } | Bits::Pairs { .. } => None,
        };
        let fields = match (op, constant) {
            (AluOp::And, Some(mask)) => match known(d)? {
                Bits::Shifted { x } => {
                    let bits = if mask > ones(32) { 64 } else { 32 };
                    let pairs = mask == repeated(1, 2) & ones::<u64>(bits);
                    return pairs.then_some(Bits::Pairs { x, bits });
                }
                Bits::Fields(_) => fields(d)?.masked(mask),
                Bits::Pairs { .. } => None,
            },
            (AluOp::Rsh, Some(by)) if by < bits_of(width).into() => fields(d)?.shifted(crate::num::low(by)),
            (AluOp::Mul, Some(by)) => fields(d)?.summed(by, bits_of(width)),
            (AluOp::Add | AluOp::Sub, None) => {
                let Src::Reg(r) = src else { return None };
                let s = self.state.reg(r);
                match (op, known(s)?) {
                    (AluOp::Sub, Bits::Pairs { x, bits }) => {
                        let of = d.is_scalar() && (d.id, d.scale, d.delta) == (x, 1, 0);
                        let short = width == Width::W64 || d.is_short();
                        let whole = d.n.umax() <= ones(bits);
                        (of && short && r != dst).then(|| Fields::pairs(bits, whole))
                    }
                    (AluOp::Add, _) => fields(d)?.plus(fields(s)?),
                    _ => None,
                }
            }
            _ => None,
        };
        fields.map(Bits::Fields)
    }

    /// Notes the bits of an operation's result.
    pub(super) fn note_lanes(&mut self, dst: Reg, bits: Bits) {
        let r = *self.state.reg(dst);
        if !r.is_scalar() || r.n.as_const().is_some() {
            return;
        }
        self.decides();
        if let Bits::Fields(f) = bits
            && let Some(most) = f.most_of(r.n.umax())
            && let Some(n) = r.n.meet(&Scalar::unsigned(0, most))
        {
            self.state.top_mut().regs[dst.index()].n = n;
        }
        if (r.scale, r.delta) != (1, 0) {
            let n = self.state.reg(dst).n;
            self.state.set(dst, Value::scalar(n));
        }
        self.give_name(dst);
        let id = self.state.reg(dst).id;
        if id == 0 {
            return;
        }
        if self.state.lanes.len() >= MAX_LANES {
            self.state.lanes.remove(0);
        }
        self.state.lanes.push(Lanes { id, bits });
    }

    /// Whether the next instruction keeps every other bit of the register, as in a population count.
    fn counts_pairs_next(&self, r: Reg) -> bool {
        let pairs = |c: u64| c == repeated(1, 2) || c == repeated(1, 2) & ones::<u64>(32);
        match self.insns.get(self.pc.index() + 1) {
            Some(Insn::Alu { op: AluOp::And, dst, src: Src::Imm(i), .. }) if *dst == r => pairs(*i as u32 as u64),
            Some(Insn::Alu { op: AluOp::And, dst, src: Src::Reg(mask), .. }) if *dst == r => {
                self.state.reg(*mask).as_const().is_some_and(pairs)
            }
            _ => false,
        }
    }
}
