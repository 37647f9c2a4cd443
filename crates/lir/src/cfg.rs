//! The control-flow graph of a function.
//!
//! Derived from the ops and the order: built by whoever needs it, into memory that is reused, and never kept beside a
//! function that changes.

use crate::func::Func;
use crate::op::BlockId;

const NONE: u32 = u32::MAX;

/// Successors and predecessors of each block. Blocks that are not in the function's order have none.
#[derive(Clone, Debug, Default)]
pub struct Cfg {
    entry: Option<BlockId>,
    /// By block: the block that its last op jumps to, and the one it falls into.
    succs: Vec<[Option<BlockId>; 2]>,
    /// `preds[starts[b] .. starts[b + 1]]`.
    starts: Vec<u32>,
    preds: Vec<BlockId>,
    /// The blocks that control can come to, each after some predecessor of it, loops aside.
    rpo: Vec<BlockId>,
    /// By block: its place in `rpo`.
    place: Vec<u32>,
    stack: Vec<(BlockId, u8)>,
}

impl Cfg {
    /// The graph of `func`.
    pub fn of(func: &Func) -> Cfg {
        let mut cfg = Cfg::default();
        cfg.build(func);
        cfg
    }

    /// Becomes the graph of `func`. Targets that do not exist are left out.
    pub fn build(&mut self, func: &Func) {
        self.build_edges(func);
        self.number(func.blocks.len());
    }

    /// The edges alone, for analyses that need no order.
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
        // Filled from the back, so that each start ends up at its list's beginning.
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

    /// Where control may go from a block: first where its last op jumps to, then what it falls into.
    pub fn succs(&self, block: BlockId) -> impl Iterator<Item = BlockId> {
        self.succs[block.index()].into_iter().flatten()
    }

    /// From where control may come to a block, in the order of the code. A branch to the next block counts twice.
    pub fn preds(&self, block: BlockId) -> &[BlockId] {
        &self.preds[self.starts[block.index()] as usize..self.starts[block.index() + 1] as usize]
    }

    /// The blocks that control can come to, in reverse postorder.
    pub fn rpo(&self) -> &[BlockId] {
        &self.rpo
    }

    /// A block's place in the reverse postorder; `u32::MAX` of blocks that control cannot come to.
    pub fn place(&self, block: BlockId) -> u32 {
        self.place[block.index()]
    }

    /// Whether control can come to a block.
    pub fn is_reachable(&self, block: BlockId) -> bool {
        self.place[block.index()] != NONE
    }

    /// Whether an edge leads back in this order, to the same block or to one before.
    pub fn leads_back(&self, from: BlockId, to: BlockId) -> bool {
        self.place[to.index()] <= self.place[from.index()]
    }
}
