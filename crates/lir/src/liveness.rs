//! The values live out of each block.
//!
//! Problem: the allocator needs, for each block, the values that some path from its end reads before writing them.
//! Most values live inside one block, and programs have thousands of values and blocks, so sets of all values per
//! block are quadratic. Approach: one walk over the ops finds the values that a block reads before writing them (few,
//! and never a temporary). Each of them is then followed backward, from block to predecessor, until a block that
//! writes it. The cost is that of the walk, and of writing the result.
//!
//! Invariant: exact for the function's ops and edges. Derived like [`Cfg`], never stored beside a function that
//! changes.

use crate::cfg::Cfg;
use crate::func::Func;
use crate::op::{BlockId, VReg};

const NONE: u32 = u32::MAX;

/// Live-out lists, with the memory for computing them.
#[derive(Clone, Debug, Default)]
pub struct Liveness {
    /// `live[starts[b] .. starts[b + 1]]`.
    starts: Vec<u32>,
    live: Vec<VReg>,
    cfg: Cfg,
    /// By value: the last visited block that writes it.
    written: Vec<u32>,
    /// By value: the head of the list of its upward-exposed reads, in `exposed`.
    reads: Vec<u32>,
    /// By value: the head of the list of the blocks that write it, in `writes`.
    writers: Vec<u32>,
    exposed: Vec<Link>,
    writes: Vec<Link>,
    /// The values with upward-exposed reads.
    global: Vec<VReg>,
    /// By block: the last value found live into it, live out of it, and written in it.
    marks: Vec<Marks>,
    work: Vec<BlockId>,
    found: Vec<(BlockId, VReg)>,
}

#[derive(Clone, Copy, Debug)]
struct Link {
    block: BlockId,
    next: u32,
}

#[derive(Clone, Copy, Debug)]
struct Marks {
    into: u32,
    out: u32,
    writes: u32,
}

impl Liveness {
    /// Computes the liveness of `func`.
    pub fn of(func: &Func) -> Liveness {
        let mut liveness = Liveness::default();
        liveness.build(func);
        liveness
    }

    /// Recomputes the liveness for `func`.
    pub fn build(&mut self, func: &Func) {
        let blocks = func.blocks.len();
        self.starts.clear();
        self.starts.resize(blocks + 1, 0);
        self.live.clear();
        if func.order.len() < 2 && func.order.iter().all(|only| func.ends(*only).taken.is_none()) {
            return;
        }
        self.cfg.build_edges(func);
        self.walk(func);
        self.follow(blocks);
        self.sort();
    }

    /// The values live after a block.
    pub fn live_out(&self, block: BlockId) -> &[VReg] {
        &self.live[self.starts[block.index()] as usize..self.starts[block.index() + 1] as usize]
    }

    /// Finds the values that each block writes, and those it reads before.
    fn walk(&mut self, func: &Func) {
        let values = func.vregs as usize;
        for heads in [&mut self.written, &mut self.reads, &mut self.writers] {
            heads.clear();
            heads.resize(values, NONE);
        }
        self.exposed.clear();
        self.writes.clear();
        self.global.clear();
        for (block, ops) in func.in_order() {
            for op in ops {
                op.for_each_use(|v| {
                    if self.written[v.index()] != block.0 {
                        let head = &mut self.reads[v.index()];
                        match self.exposed.get(*head as usize) {
                            Some(last) if last.block == block => {}
                            last => {
                                if last.is_none() {
                                    self.global.push(v);
                                }
                                let next = core::mem::replace(head, crate::small(self.exposed.len()));
                                self.exposed.push(Link { block, next });
                            }
                        }
                    }
                });
                if let Some(v) = op.def()
                    && core::mem::replace(&mut self.written[v.index()], block.0) != block.0
                {
                    let next = core::mem::replace(&mut self.writers[v.index()], crate::small(self.writes.len()));
                    self.writes.push(Link { block, next });
                }
            }
        }
    }

    /// Follows each value from its reads back to its writes.
    fn follow(&mut self, blocks: usize) {
        self.marks.clear();
        self.marks.resize(blocks, Marks { into: NONE, out: NONE, writes: NONE });
        self.found.clear();
        for v in &self.global {
            for link in chain(self.writers[v.index()], &self.writes) {
                self.marks[link.block.index()].writes = v.0;
            }
            for link in chain(self.reads[v.index()], &self.exposed) {
                self.marks[link.block.index()].into = v.0;
                self.work.push(link.block);
            }
            while let Some(block) = self.work.pop() {
                for pred in self.cfg.preds(block) {
                    let marks = &mut self.marks[pred.index()];
                    if core::mem::replace(&mut marks.out, v.0) == v.0 {
                        continue;
                    }
                    self.found.push((*pred, *v));
                    if marks.writes != v.0 && core::mem::replace(&mut marks.into, v.0) != v.0 {
                        self.work.push(*pred);
                    }
                }
            }
        }
    }

    /// Sorts the results by block.
    fn sort(&mut self) {
        for (block, _) in &self.found {
            self.starts[block.index()] += 1;
        }
        let mut sum = 0;
        for start in &mut self.starts {
            sum += *start;
            *start = sum;
        }
        self.live.resize(self.found.len(), VReg(NONE));
        for (block, v) in self.found.iter().rev() {
            let start = &mut self.starts[block.index()];
            *start -= 1;
            self.live[*start as usize] = *v;
        }
    }
}

fn chain(head: u32, all: &[Link]) -> impl Iterator<Item = Link> {
    core::iter::successors(all.get(head as usize), |link| all.get(link.next as usize)).copied()
}
