//! Combines adjacent loads into one load, with its bytes reversed if they were combined in that order.
//!
//! `b0 | b1 << 8 | ..` is a tree of `or`, `add` or `xor` whose leaves are shifted loads. If the leaves are adjacent in
//! memory and fill the result without a gap, in either byte order, the result is that of one load.

use super::{NEW, Pass};
use bpf_isa::{Size, Width};
use bpf_lir::{BinOp, Mem, Op, VReg, Val};

/// The most loads that are combined.
const MAX_LEAVES: usize = 8;

/// The most ops of a tree that are looked at: each of eight bytes may be shifted and narrowed before it is added. The
/// limit also keeps the pass linear in a long chain of `or`s, each of which is the root of a tree.
const MAX_OPS: u32 = 48;

/// A load that is part of a result.
#[derive(Clone, Copy, Debug)]
pub(super) struct Leaf {
    mem: Mem,
    size: Size,
    /// The bit of the result at which the load's lowest bit lies.
    shift: u32,
    value: VReg,
}

impl Pass<'_> {
    /// Returns the value of `a | b` if it can be loaded at once.
    pub(super) fn wide(&mut self, width: Width, a: VReg, b: VReg, dst: VReg) -> Option<VReg> {
        let bits = u32::from(super::rules::bits(width));
        let mut leaves = core::mem::take(&mut self.s.leaves);
        leaves.clear();
        let mut left = MAX_OPS;
        let found = [a, b].into_iter().all(|v| self.collect(v, 0, bits, &mut leaves, &mut left));
        let load = if found { self.tile(&mut leaves) } else { None };
        let value = load.map(|op| {
            for leaf in &leaves {
                self.ssa.spare.insert(leaf.value);
            }
            self.done += 1;
            let Op::Load { size, signed, swap, mem, .. } = op else { return self.push(op, dst) };
            match self.load(size, signed, swap, mem, dst, 0) {
                Ok(value) => value,
                Err(op) => self.push(op, dst),
            }
        });
        self.s.leaves = leaves;
        value
    }

    /// Collects the loads that make up `v << shift`, none of which may reach bit `end`; returns whether `v` consists of
    /// nothing else.
    fn collect(&self, v: VReg, shift: u32, end: u32, leaves: &mut Vec<Leaf>, left: &mut u32) -> bool {
        if leaves.len() == MAX_LEAVES || self.s.defs[v.index()] < self.start || *left == 0 {
            return false;
        }
        *left -= 1;
        let within = |width: Width| end.min(shift + u32::from(super::rules::bits(width)));
        match self.def(v) {
            Some(&Op::Load { size, signed: false, swap: false, mem, .. }) => {
                leaves.push(Leaf { mem, size, shift, value: v });
                shift + size.bits() <= end
            }
            Some(&Op::Bin { op: BinOp::Shl, width, a, b: Val::Imm(count), .. }) => {
                self.collect(a, shift + crate::num::low(count) as u32, within(width), leaves, left)
            }
            Some(&Op::Bin { op: BinOp::Or | BinOp::Add | BinOp::Xor, width, a, b: Val::Reg(b), .. }) => {
                self.collect(a, shift, within(width), leaves, left)
                    && self.collect(b, shift, within(width), leaves, left)
            }
            Some(&Op::Mov { width: Width::W32, src: Val::Reg(src), .. }) => {
                self.collect(src, shift, within(Width::W32), leaves, left)
            }
            Some(_) | None => false,
        }
    }

    /// Returns the one load that reads all leaves, in either byte order.
    fn tile(&self, leaves: &mut [Leaf]) -> Option<Op> {
        leaves.sort_unstable_by_key(|leaf| leaf.mem.off);
        let first = *leaves.first()?;
        let mut bytes = 0;
        for leaf in leaves.iter() {
            let Leaf { mem, size, .. } = leaf;
            let next = i64::from(first.mem.off) + i64::from(bytes);
            if (mem.base, mem.region, i64::from(mem.off)) != (first.mem.base, first.mem.region, next) {
                return None;
            }
            bytes += size.bytes();
        }
        let size = match bytes {
            2 => Size::H,
            4 => Size::W,
            8 => Size::DW,
            _ => return None,
        };
        let offset = |leaf: &Leaf| 8 * (leaf.mem.off - first.mem.off) as u32;
        let forward = leaves.iter().all(|leaf| leaf.shift == offset(leaf));
        let reversed = leaves.iter().all(|leaf| leaf.size == Size::B && leaf.shift + 8 + offset(leaf) == 8 * bytes);
        let may = leaves.iter().all(|leaf| {
            let at = self.s.defs[leaf.value.index()];
            self.s.memory.may_sink(leaf.mem, leaf.size, at)
        });
        let load = Op::Load { size, signed: false, swap: reversed, dst: NEW, mem: first.mem };
        (leaves.len() > 1 && may && (forward || reversed)).then_some(load)
    }
}
