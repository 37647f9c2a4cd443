//! Finds the natural loops of a function: for each edge to a block that dominates the edge's source, the blocks that
//! reach the source without passing the head.
//!
//! Inner loops are found before the loops around them. A search skips an inner loop by jumping to the head of the
//! outermost loop found so far (a union-find forest with path halving), so the cost is linear but for a logarithmic
//! factor. A cycle with several entries is not a natural loop and is not found.

use crate::ssa::{NONE, Ssa};
use bpf_lir::{BlockId, Func};

/// A natural loop: its head dominates all its blocks, and its head can be reached from each of them without leaving the
/// loop.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Loop {
    pub(crate) head: BlockId,
    /// The one block outside the loop that leads to its head, if there is only one and it leads nowhere else.
    pub(crate) before: Option<BlockId>,
    /// The number of the innermost loop around this one, or [`NONE`].
    pub(crate) parent: u32,
}

/// The loops of a function.
#[derive(Debug, Default)]
pub(crate) struct Loops {
    all: Vec<Loop>,
    /// By block: `inside` is the innermost loop that contains it, or [`NONE`]; `outermost` leads to the head of the
    /// outermost loop found so far that contains it, or is the block itself.
    inside: Vec<u32>,
    outermost: Vec<BlockId>,
    work: Vec<BlockId>,
}

impl Loops {
    pub(crate) fn find(&mut self, func: &Func, ssa: &Ssa) {
        self.all.clear();
        self.inside.clear();
        self.inside.resize(func.blocks.len(), NONE);
        self.outermost.clear();
        self.outermost.extend((0..crate::num::small(func.blocks.len())).map(BlockId));
        for block in ssa.cfg.rpo().iter().rev().copied() {
            let preds = ssa.cfg.preds(block);
            self.work.clear();
            self.work.extend(preds.iter().filter(|pred| ssa.tree.dominates(block, **pred)));
            if self.work.is_empty() {
                continue;
            }
            let this = crate::num::small(self.all.len());
            let mut before = preds.iter().copied().filter(|pred| !ssa.tree.dominates(block, *pred));
            let before = before.next().filter(|pred| before.next().is_none() && ssa.cfg.succs(*pred).count() == 1);
            self.all.push(Loop { head: block, before, parent: NONE });
            self.inside[block.index()] = this;
            while let Some(found) = self.work.pop() {
                let found = self.outermost(found);
                if found == block {
                    continue;
                }
                // Either a block that is in no loop so far, or the head of a loop that is itself in no loop so far.
                match self.inside[found.index()] {
                    NONE => self.inside[found.index()] = this,
                    inner => self.all[inner as usize].parent = this,
                }
                self.outermost[found.index()] = block;
                self.work.extend(ssa.cfg.preds(found));
            }
        }
    }

    fn outermost(&mut self, mut block: BlockId) -> BlockId {
        while self.outermost[block.index()] != block {
            let next = self.outermost[block.index()];
            self.outermost[block.index()] = self.outermost[next.index()];
            block = next;
        }
        block
    }

    /// Returns all loops, inner loops before those around them.
    pub(crate) fn all(&self) -> &[Loop] {
        &self.all
    }

    /// Returns the number of the innermost loop that contains a block, or [`NONE`].
    pub(crate) fn inside(&self, block: BlockId) -> u32 {
        self.inside[block.index()]
    }

    /// Returns a loop and the loops around it with their numbers, from the innermost outward.
    pub(crate) fn around(&self, inside: u32) -> impl Iterator<Item = (usize, &Loop)> {
        let numbered = |number: u32| Some((number as usize, self.all.get(number as usize)?));
        core::iter::successors(numbered(inside), move |(_, this)| numbered(this.parent))
    }

    /// Returns how many loops contain a block, at most `most`.
    pub(crate) fn depth(&self, block: BlockId, most: usize) -> usize {
        self.around(self.inside(block)).take(most).count()
    }
}
