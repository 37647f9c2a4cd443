//! The control-flow graph of a function.
//!
//! Derived from the ops and the order: an analysis builds it into reused memory when it needs it, and it is never
//! stored beside a function that changes.

use crate::func::Func;
use crate::op::BlockId;

const NONE: u32 = u32::MAX;

/// Successors and predecessors of each block. Blocks that are not in the function's order have none.
#[derive(Clone, Debug, Default)]
pub struct Cfg {
    entry: Option<BlockId>,
    /// By block: the target of its last op's jump, and the block it falls into.
    succs: Vec<[Option<BlockId>; 2]>,
    /// `preds[starts[b] .. starts[b + 1]]`.
    starts: Vec<u32>,
    preds: Vec<BlockId>,
    /// The reachable blocks, each after one of its predecessors, apart from loop edges.
    rpo: Vec<BlockId>,
    /// By block: its index in `rpo`.
    place: Vec<u32>,
    stack: Vec<(BlockId, u8)>,
}

impl Cfg {
    /// Builds the graph of `func`.
    pub fn of(func: &Func) -> Cfg {
        let mut cfg = Cfg::default();
        cfg.build(func);
        cfg
    }

    /// Rebuilds the graph for `func`. Targets that do not exist are left out.
    pub fn build(&mut self, func: &Func) {
        self.build_edges(func);
        self.number(func.blocks.len());
    }

    /// Builds the edges only, for analyses that need no order.
    pub(crate) fn build_edges(&mut self, func: &Func) {
        let n = func.blocks.len();
        self.entry = func.order.first().copied();
        self.succs.clear();
        self.succs.resize(n, [None; 2]);
        self.starts.clear();
        self.starts.resize(n + 1, 0);
        for (i, block) in func.order.iter().enumerate() {
            let ends = func.ends(*block);
            let next = if ends.falls { func.order.get(i + 1).copied() } else { None };
            let taken = ends.taken.filter(|t| t.index() < n);
            self.succs[block.index()] = [taken, next];
            for succ in [taken, next].into_iter().flatten() {
                self.starts[succ.index()] += 1;
            }
        }
        let mut sum = 0;
        for start in &mut self.starts {
            sum += *start;
            *start = sum;
        }
        self.preds.clear();
        self.preds.resize(sum as usize, BlockId(NONE));
        // Filled from the back, so that each start ends up at the beginning of its list.
        for block in func.order.iter().rev() {
            for succ in self.succs[block.index()].into_iter().flatten() {
                self.starts[succ.index()] -= 1;
                self.preds[self.starts[succ.index()] as usize] = *block;
            }
        }
    }

    fn number(&mut self, blocks: usize) {
        self.place.clear();
        self.place.resize(blocks, NONE);
        self.rpo.clear();
        let Some(entry) = self.entry else { return };
        self.stack.push((entry, 0));
        self.place[entry.index()] = 0;
        while let Some((block, next)) = self.stack.last_mut() {
            let block = *block;
            match self.succs[block.index()].get(*next as usize) {
                Some(succ) => {
                    *next += 1;
                    if let Some(succ) = *succ
                        && self.place[succ.index()] == NONE
                    {
                        self.place[succ.index()] = 0;
                        self.stack.push((succ, 0));
                    }
                }
                None => {
                    self.rpo.push(block);
                    self.stack.pop();
                }
            }
        }
        self.rpo.reverse();
        for (block, place) in self.rpo.iter().zip(0..) {
            self.place[block.index()] = place;
        }
    }

    /// The successors of a block: first the target of its last op's jump, then the block it falls into.
    pub fn succs(&self, block: BlockId) -> impl Iterator<Item = BlockId> {
        self.succs[block.index()].into_iter().flatten()
    }

    /// The predecessors of a block, in code order. A branch to the next block counts twice.
    pub fn preds(&self, block: BlockId) -> &[BlockId] {
        &self.preds[self.starts[block.index()] as usize..self.starts[block.index() + 1] as usize]
    }

    /// The reachable blocks, in reverse postorder.
    pub fn rpo(&self) -> &[BlockId] {
        &self.rpo
    }

    /// A block's index in the reverse postorder; `u32::MAX` for unreachable blocks.
    pub fn place(&self, block: BlockId) -> u32 {
        self.place[block.index()]
    }

    /// Whether a block is reachable.
    pub fn is_reachable(&self, block: BlockId) -> bool {
        self.place[block.index()] != NONE
    }

    /// Whether an edge leads back in this order: to its own block or to an earlier one.
    pub fn leads_back(&self, from: BlockId, to: BlockId) -> bool {
        self.place[to.index()] <= self.place[from.index()]
    }
}
