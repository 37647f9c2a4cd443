//! Dominators of a control-flow graph.
//!
//! Problem: programs come from anybody, and the simple ways to find dominators (sets, or intersection along a reverse
//! postorder until nothing changes) take time by the square of how deep loops nest: minutes for 60,000 loops in each
//! other. Approach: Lengauer and Tarjan's ("A Fast Algorithm for Finding Dominators in a Flowgraph", 1979), in its
//! simple form: blocks are numbered as a walk into the depth finds them, semidominators are found from the last to
//! the first in a forest whose paths are compressed, and are immediate dominators or lead to them. Edges times the
//! logarithm of blocks. Invariant: a number is never greater than those of the blocks that its block dominates.

use crate::cfg::Cfg;
use crate::op::BlockId;

const NONE: u32 = u32::MAX;

/// What is known of a block while dominators are looked for, by its number.
#[derive(Clone, Copy, Debug)]
struct Node {
    /// Its place in the reverse postorder.
    place: u32,
    /// From where the walk found it.
    parent: u32,
    /// The least number on the ways to it that pass only greater ones.
    semi: u32,
    /// Above it in the forest; [`NONE`] of roots.
    ancestor: u32,
    /// The one of the least `semi` among itself and its ancestors up to where paths were compressed, roots apart.
    label: u32,
    idom: u32,
    /// The first of those whose semidominator it is, and the next one of the same semidominator.
    bucket: u32,
    next: u32,
}

/// Immediate dominators, and the memory to find them in.
#[derive(Debug, Default)]
pub struct Dominance {
    /// By place in the reverse postorder: the immediate dominator's place; the entry's own.
    idom: Vec<u32>,
    nodes: Vec<Node>,
    /// By place: the number.
    numbers: Vec<u32>,
    path: Vec<u32>,
    /// Nodes looked at in the forest.
    #[cfg(test)]
    steps: usize,
}

impl Dominance {
    /// Becomes that of `cfg`.
    pub fn build(&mut self, cfg: &Cfg) {
        self.number(cfg);
        for w in (1..self.nodes.len()).rev() {
            let number = index(w);
            for pred in cfg.preds(cfg.rpo()[self.nodes[w].place as usize]) {
                // A block that control cannot come to has no place, and so no number.
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

    /// By place in the reverse postorder: the immediate dominator's place; the entry's own.
    pub fn idom(&self) -> &[u32] {
        &self.idom
    }

    /// Numbers the blocks as a walk into the depth finds them.
    fn number(&mut self, cfg: &Cfg) {
        self.nodes.clear();
        self.numbers.clear();
        self.numbers.resize(cfg.rpo().len(), NONE);
        // Blocks whose successors are looked at, and how many were; the memory is that of paths.
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

    /// The one of the least semidominator from `v` up to below its root; `v` if it is one.
    fn least(&mut self, v: u32) -> u32 {
        let mut top = v;
        self.path.clear();
        // All but the root and those right below it.
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

/// A function has fewer than 2^32 blocks: they are told apart by `u32`.
fn index(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(NONE)
}

/// The dominator tree of the blocks that control can come to.
#[derive(Clone, Debug)]
pub struct Dominators {
    cfg: Cfg,
    /// By place in the reverse postorder: the immediate dominator's place; the entry's own.
    idom: Vec<u32>,
}

impl Dominators {
    /// Who dominates whom in `cfg`.
    pub fn of(cfg: &Cfg) -> Dominators {
        let mut dominance = Dominance::default();
        dominance.build(cfg);
        Dominators { cfg: cfg.clone(), idom: dominance.idom }
    }

    /// The block that dominates `block` and is dominated by all others that do; `None` of the entry and of blocks that
    /// control cannot come to.
    pub fn idom(&self, block: BlockId) -> Option<BlockId> {
        let place = self.cfg.place(block);
        (place != NONE && place != 0).then(|| self.cfg.rpo()[self.idom[place as usize] as usize])
    }

    /// Whether every way to `b` leads through `a`. A block dominates itself; nothing holds of blocks that control
    /// cannot come to.
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

    /// A function of loops, each in the one before.
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

    /// Twice as deep a nest takes hardly more than twice the steps; it took four times as many.
    #[test]
    fn steps_grow_with_the_blocks_and_not_with_their_square() {
        for depth in [1_000, 2_000, 4_000, 8_000] {
            let lir = nest(depth);
            let mut dominance = Dominance::default();
            dominance.build(&Cfg::of(&lir.funcs[0]));
            // Nothing but what is before it in the code dominates a block of a nest.
            let want: Vec<u32> = (0..index(2 * depth + 2)).map(|place| place.saturating_sub(1)).collect();
            assert_eq!(dominance.idom(), want);
            assert!(dominance.steps < 16 * 2 * depth, "{} steps for {depth} loops", dominance.steps);
        }
    }
}
