//! Dominators of a control-flow graph.
//!
//! Problem: programs are untrusted, and the simple algorithms for dominators (sets, or intersection along a reverse
//! postorder until nothing changes) take time quadratic in the depth of nested loops: minutes for 60,000 nested
//! loops. Approach: Lengauer and Tarjan ("A Fast Algorithm for Finding Dominators in a Flowgraph", 1979), in its
//! simple form. A depth-first walk numbers the blocks. Semidominators are found from the last block to the first, in
//! a forest whose paths are compressed; they are immediate dominators or lead to them. Time: edges times the
//! logarithm of blocks. Invariant: a block's number is never greater than those of the blocks that it dominates.

use crate::cfg::Cfg;
use crate::op::BlockId;

const NONE: u32 = u32::MAX;

/// The state of a block during the search, by its number.
#[derive(Clone, Copy, Debug)]
struct Node {
    /// The block's index in the reverse postorder.
    place: u32,
    /// The block from which the walk reached it.
    parent: u32,
    /// The semidominator: the least number from which a path of only greater numbers leads here.
    semi: u32,
    /// Its parent in the forest; [`NONE`] for roots.
    ancestor: u32,
    /// The node with the least `semi` among itself and its ancestors up to the compressed path's end, roots excluded.
    label: u32,
    idom: u32,
    /// The first node whose semidominator this is, and the next node with this node's semidominator.
    bucket: u32,
    next: u32,
}

/// Immediate dominators, with the memory for finding them.
#[derive(Debug, Default)]
pub struct Dominance {
    /// By index in the reverse postorder: the index of the immediate dominator; for the entry its own.
    idom: Vec<u32>,
    nodes: Vec<Node>,
    /// By index in the reverse postorder: the number.
    numbers: Vec<u32>,
    path: Vec<u32>,
    /// Number of nodes visited in the forest.
    #[cfg(test)]
    steps: usize,
}

impl Dominance {
    /// Rebuilds the dominators for `cfg`.
    pub fn build(&mut self, cfg: &Cfg) {
        self.number(cfg);
        for w in (1..self.nodes.len()).rev() {
            let number = index(w);
            for pred in cfg.preds(cfg.rpo()[self.nodes[w].place as usize]) {
                // An unreachable block has no index, and so no number.
                if let Some(pred) = self.numbers.get(cfg.place(*pred) as usize) {
                    let least = self.least(*pred);
                    self.nodes[w].semi = self.nodes[w].semi.min(self.nodes[least as usize].semi);
                }
            }
            let (semi, parent) = (self.nodes[w].semi, self.nodes[w].parent);
            self.nodes[w].next = core::mem::replace(&mut self.nodes[semi as usize].bucket, number);
            self.nodes[w].ancestor = parent;
            let mut v = core::mem::replace(&mut self.nodes[parent as usize].bucket, NONE);
            while v != NONE {
                let least = self.least(v);
                let node = self.nodes[v as usize];
                let earlier = self.nodes[least as usize].semi < node.semi;
                self.nodes[v as usize].idom = if earlier { least } else { parent };
                v = node.next;
            }
        }
        self.idom.clear();
        self.idom.resize(self.nodes.len(), 0);
        for w in 1..self.nodes.len() {
            let node = self.nodes[w];
            if node.idom != node.semi {
                self.nodes[w].idom = self.nodes[node.idom as usize].idom;
            }
            self.idom[node.place as usize] = self.nodes[self.nodes[w].idom as usize].place;
        }
    }

    /// By index in the reverse postorder: the index of the immediate dominator; for the entry its own.
    pub fn idom(&self) -> &[u32] {
        &self.idom
    }

    /// Numbers the blocks in depth-first order.
    fn number(&mut self, cfg: &Cfg) {
        self.nodes.clear();
        self.numbers.clear();
        self.numbers.resize(cfg.rpo().len(), NONE);
        // The stack of blocks whose successors are visited, and how many were; uses the memory of `path`.
        let mut ways = core::mem::take(&mut self.path);
        ways.clear();
        if let Some(entry) = cfg.rpo().first() {
            self.found(cfg.place(*entry), 0);
            ways.extend([0, 0]);
        }
        while let [.., number, next] = &mut ways[..] {
            let block: BlockId = cfg.rpo()[self.nodes[*number as usize].place as usize];
            let (parent, nth) = (*number, *next as usize);
            *next += 1;
            match cfg.succs(block).nth(nth) {
                Some(succ) if self.numbers[cfg.place(succ) as usize] == NONE => {
                    let number = self.found(cfg.place(succ), parent);
                    ways.extend([number, 0]);
                }
                Some(_) => {}
                None => ways.truncate(ways.len() - 2),
            }
        }
        self.path = ways;
    }

    fn found(&mut self, place: u32, parent: u32) -> u32 {
        let number = index(self.nodes.len());
        let node =
            Node { place, parent, semi: number, ancestor: NONE, label: number, idom: 0, bucket: NONE, next: NONE };
        self.nodes.push(node);
        self.numbers[place as usize] = number;
        number
    }

    /// The node with the least semidominator from `v` up to below its root; `v` if it is a root.
    fn least(&mut self, v: u32) -> u32 {
        let mut top = v;
        self.path.clear();
        // All nodes but the root and its children.
        while let Some(above) = self.above(top)
            && self.above(above).is_some()
        {
            self.path.push(top);
            top = above;
        }
        #[cfg(test)]
        {
            self.steps += self.path.len() + 1;
        }
        while let Some(v) = self.path.pop() {
            let above = self.nodes[self.nodes[v as usize].ancestor as usize];
            let node = self.nodes[v as usize];
            if self.nodes[above.label as usize].semi < self.nodes[node.label as usize].semi {
                self.nodes[v as usize].label = above.label;
            }
            self.nodes[v as usize].ancestor = above.ancestor;
        }
        self.nodes[v as usize].label
    }

    fn above(&self, v: u32) -> Option<u32> {
        let above = self.nodes[v as usize].ancestor;
        (above != NONE).then_some(above)
    }
}

/// Converts a number of blocks: a function has fewer than 2^32, because their ids are `u32`.
fn index(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(NONE)
}

/// The dominator tree of the reachable blocks.
#[derive(Clone, Debug)]
pub struct Dominators {
    cfg: Cfg,
    /// By index in the reverse postorder: the index of the immediate dominator; for the entry its own.
    idom: Vec<u32>,
}

impl Dominators {
    /// Builds the dominator tree of `cfg`.
    pub fn of(cfg: &Cfg) -> Dominators {
        let mut dominance = Dominance::default();
        dominance.build(cfg);
        Dominators { cfg: cfg.clone(), idom: dominance.idom }
    }

    /// The immediate dominator of `block`; `None` for the entry and for unreachable blocks.
    pub fn idom(&self, block: BlockId) -> Option<BlockId> {
        let place = self.cfg.place(block);
        (place != NONE && place != 0).then(|| self.cfg.rpo()[self.idom[place as usize] as usize])
    }

    /// Whether every path to `b` leads through `a`. A block dominates itself; false if one of the two is unreachable.
    pub fn dominates(&self, a: BlockId, b: BlockId) -> bool {
        let (a, mut b) = (self.cfg.place(a), self.cfg.place(b));
        if a == NONE || b == NONE {
            return false;
        }
        while b > a {
            b = self.idom[b as usize];
        }
        a == b
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Lir;
    use std::fmt::Write as _;

    /// A function of nested loops.
    fn nest(depth: usize) -> Lir {
        let mut text = String::from("func 0 (v0, v1, -, -, -) {\nb0:\n    v2 = mov.64 1\n");
        for head in 1..=depth {
            write!(text, "b{head}:\n    v2 = add.64 v2, v0\n").unwrap();
        }
        for (head, latch) in (1..=depth).rev().zip(depth + 1..) {
            write!(text, "b{latch}:\n    branch.64 v2 ne v1, b{head}\n").unwrap();
        }
        write!(text, "b{}:\n    exit v2\n}}\n", 2 * depth + 1).unwrap();
        text.parse().unwrap()
    }

    /// A nest twice as deep takes about twice the steps, not four times.
    #[test]
    fn steps_grow_with_the_blocks_and_not_with_their_square() {
        for depth in [1_000, 2_000, 4_000, 8_000] {
            let lir = nest(depth);
            let mut dominance = Dominance::default();
            dominance.build(&Cfg::of(&lir.funcs[0]));
            // Each block of a nest is dominated by the block before it in the code.
            let want: Vec<u32> = (0..index(2 * depth + 2)).map(|place| place.saturating_sub(1)).collect();
            assert_eq!(dominance.idom(), want);
            assert!(dominance.steps < 16 * 2 * depth, "{} steps for {depth} loops", dominance.steps);
        }
    }
}
