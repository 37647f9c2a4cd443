//! Hash table of values by the op that computes them, so that an op is not computed again where its result is
//! available.

use super::{NEW, Pass, is_commutative};
use crate::faults::planted;
use bpf_lir::{Op, VReg, Val};
use core::hash::{Hash, Hasher};

impl Pass<'_> {
    /// Returns the value of an equal op that dominates this block and may live up to here, or emits the op.
    pub(super) fn number(&mut self, op: Op, dst: VReg) -> VReg {
        match self.look_up(&op) {
            (_, Some(known)) if self.may_live(known) => known,
            (at, _) => {
                let value = self.push(op, dst);
                self.s.table[at] = value;
                value
            }
        }
    }

    /// Returns the value of an equal op that dominates this block.
    pub(super) fn known(&self, op: &Op) -> Option<VReg> {
        self.look_up(op).1
    }

    /// Returns the op's place in the table, and the value that is there if an equal op computes it and dominates this
    /// block.
    fn look_up(&self, op: &Op) -> (usize, Option<VReg>) {
        let sought = key(op);
        let mut hasher = Fold(0);
        sought.hash(&mut hasher);
        let mask = self.s.table.len() - 1;
        #[expect(clippy::cast_possible_truncation, reason = "any bits of a hash serve")]
        let mut at = hasher.finish() as usize & mask;
        // The search ends after a few places: a miss costs only a repeated computation.
        for _ in 0..8 {
            let known = self.s.table[at];
            if known == NEW {
                break;
            }
            if self.def(known).is_some_and(|def| key(def) == sought) {
                let dominates =
                    planted!(DominanceIgnored) || self.ssa.tree.dominates(self.s.blocks[known.index()], self.block);
                return (at, dominates.then_some(known));
            }
            at = (at + 1) & mask;
        }
        (at, None)
    }
}

/// Returns the op without its destination and with commutative operands in canonical order: equal keys compute equal
/// results.
fn key(op: &Op) -> Op {
    let mut key = *op;
    if let Some(place) = key.def_mut() {
        *place = NEW;
    }
    if let Op::Bin { op, a, b: Val::Reg(b), .. } = &mut key
        && is_commutative(*op)
        && *b < *a
    {
        core::mem::swap(a, b);
    }
    key
}

/// A hash for a table that may lose entries, after Fowler, Noll and Vo's, by words.
struct Fold(u64);

impl Hasher for Fold {
    fn finish(&self) -> u64 {
        self.0 ^ self.0 >> 29
    }
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }
    fn write_u8(&mut self, n: u8) {
        self.write_u64(n.into());
    }
    fn write_u32(&mut self, n: u32) {
        self.write_u64(n.into());
    }
    fn write_i32(&mut self, n: i32) {
        self.write_u64(n as u64);
    }
    fn write_i64(&mut self, n: i64) {
        self.write_u64(n as u64);
    }
    fn write_isize(&mut self, n: isize) {
        self.write_u64(n as u64);
    }
    fn write_u64(&mut self, n: u64) {
        self.0 = (self.0 ^ n).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23);
    }
}
