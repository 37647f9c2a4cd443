//! The natural loops of a function: from each edge that leads back to a block that dominates it, backward.
//!
//! Inner ones come before those around them, found so that a block is looked at once for each loop whose head is the
//! outermost around it: linear but for a logarithm. A cycle with several ways in is none.

use crate::ssa::{NONE, Ssa};
use bpf_lir::{BlockId, Func};

/// A loop: the blocks from which its head is come to again without leaving it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Loop {
    pub(crate) head: BlockId,
    /// The block before it, where there is one.
    pub(crate) before: Option<BlockId>,
    /// The one around it, or [`NONE`].
    pub(crate) parent: u32,
}

/// The loops of a function.
#[derive(Debug, Default)]
pub(crate) struct Loops {
    all: Vec<Loop>,
    /// By block: the innermost loop that it is in, and the head of the outermost one that was found so far, or itself.
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
                // A block of no loop so far, or the head of a loop that is in none.
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

    /// All of them, inner ones before those around them.
    pub(crate) fn all(&self) -> &[Loop] {
        &self.all
    }

    /// The innermost loop that a block is in, or [`NONE`].
    pub(crate) fn inside(&self, block: BlockId) -> u32 {
        self.inside[block.index()]
    }

    /// A loop and those around it, from within, with their numbers.
    pub(crate) fn around(&self, inside: u32) -> impl Iterator<Item = (usize, &Loop)> {
        let numbered = |number: u32| Some((number as usize, self.all.get(number as usize)?));
        core::iter::successors(numbered(inside), move |(_, this)| numbered(this.parent))
    }

    /// In how many loops a block is, which are counted up to `most`.
    pub(crate) fn depth(&self, block: BlockId, most: usize) -> usize {
        self.around(self.inside(block)).take(most).count()
    }
}
