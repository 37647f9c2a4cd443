//! Control-flow graph.
//!
//! Blocks are maximal straight-line runs of slots, kept in program order, subprogram after subprogram, so that a block
//! that does not end the flow falls through to the next one. An indirect jump has an edge to each target that its
//! subprogram has, or, after [`Cfg::prune`], to the targets that a verifier has found. Unreachable blocks are in the
//! graph and marked. Built in two linear sweeps into memory that is reused from program to program.

use bpf_isa::{Flow, Insn, InsnIdx, Program, SubprogId};
use core::ops::Range;

/// Index of a basic block, counted over the whole program.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct BlockId(pub u32);

impl BlockId {
    /// The index as a `usize`, to index slices.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A basic block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Block {
    /// First slot.
    pub start: u32,
    /// One past the last slot.
    pub end: u32,
    /// Where the jump at its end goes when taken.
    pub taken: Option<BlockId>,
    /// The block it falls through to.
    pub next: Option<BlockId>,
    /// Where the indirect jump at its end may go: a part of the graph's list ([`Cfg::indirect`]).
    indirect: (u32, u32),
    /// Whether the subprogram's entry reaches it.
    pub reachable: bool,
}

/// The graph of a whole program.
#[derive(Debug, Default)]
pub struct Cfg {
    blocks: Vec<Block>,
    /// Blocks of each subprogram.
    subprogs: Vec<Range<u32>>,
    /// One bit a slot: whether a block starts there.
    leaders: Vec<u64>,
    /// Slot -> block that starts there; meaningful for slots in `leaders` only.
    block_at: Vec<u32>,
    /// Targets of indirect jumps, each subprogram's together.
    indirect: Vec<BlockId>,
    work: Vec<BlockId>,
}

impl Cfg {
    /// The graph of one program.
    pub fn new(program: &Program) -> Cfg {
        let mut cfg = Cfg::default();
        cfg.build(program);
        cfg
    }

    /// Replaces the graph by that of `program` and keeps the memory.
    pub fn build(&mut self, program: &Program) {
        self.mark_leaders(program);
        self.blocks.clear();
        self.indirect.clear();
        self.subprogs.clear();
        let mut first = 0;
        for sub in program.subprogs() {
            self.cut(sub.start, sub.end);
            let end = crate::small(self.blocks.len());
            self.subprogs.push(first..end);
            first = end;
        }
        self.link(program);
        if program.contents().indirect_jumps {
            self.link_indirect(program);
        }
        self.mark_reachable();
    }

    /// The edges of indirect jumps: to all targets in their subprograms.
    fn link_indirect(&mut self, program: &Program) {
        for (i, sub) in self.subprogs.iter().enumerate() {
            let first = crate::small(self.indirect.len());
            let targets = program.indirect_targets(SubprogId(crate::small(i)));
            self.indirect.extend(targets.iter().map(|target| BlockId(self.block_at[target.index()])));
            let all = (first, crate::small(self.indirect.len()));
            for block in &mut self.blocks[sub.start as usize..sub.end as usize] {
                if matches!(program.insns()[block.end as usize - 1], Insn::JumpReg { .. }) {
                    block.indirect = all;
                }
            }
        }
    }

    /// Where the indirect jump at the end of a block may go; nowhere, if it ends in something else.
    pub fn indirect(&self, id: BlockId) -> &[BlockId] {
        let (from, to) = self.blocks[id.index()].indirect;
        &self.indirect[from as usize..to as usize]
    }

    /// The successors of a block, the fall-through first.
    pub fn succs(&self, id: BlockId) -> impl Iterator<Item = BlockId> {
        let Block { next, taken, .. } = self.blocks[id.index()];
        next.into_iter().chain(taken).chain(self.indirect(id).iter().copied())
    }

    /// Makes the blocks of a subprogram.
    fn cut(&mut self, mut start: u32, end: u32) {
        while start < end {
            let next = self.next_leader(start + 1).min(end);
            self.block_at[start as usize] = crate::small(self.blocks.len());
            self.blocks.push(Block { start, end: next, taken: None, next: None, indirect: (0, 0), reachable: false });
            start = next;
        }
    }

    /// The first leader from this slot on.
    #[inline(always)]
    fn next_leader(&self, from: u32) -> u32 {
        let mut word = from as usize / 64;
        let mut bits = self.leaders.get(word).map_or(0, |bits| bits & u64::MAX << (from % 64));
        while bits == 0 {
            word += 1;
            let Some(more) = self.leaders.get(word) else { return u32::MAX };
            bits = *more;
        }
        crate::small(word) * 64 + bits.trailing_zeros()
    }

    /// Sets the successors of each block. Jumps, branches and exits end their blocks, so one walk over both in order
    /// pairs them.
    fn link(&mut self, program: &Program) {
        let (insns, mut flow) = (program.insns(), program.flow().iter());
        let mut ending = flow.next();
        for sub in &self.subprogs {
            for i in sub.clone() {
                let block = &mut self.blocks[i as usize];
                let mut falls = i + 1 < sub.end;
                if let Some(Flow { at, target }) = ending
                    && at.0 < block.end
                {
                    if let Some(target) = target {
                        block.taken = Some(BlockId(self.block_at[target.index()]));
                    }
                    falls &= !insns[at.index()].ends_flow();
                    ending = flow.next();
                }
                // The last block of a subprogram may end in anything if it is unreachable: it falls nowhere.
                if falls {
                    block.next = Some(BlockId(i + 1));
                }
            }
        }
    }

    /// Takes out the edges that no run follows: of a conditional jump with a successor that begins with a `dead`
    /// instruction, the edge to it; of a block that calls a function that does not return, the edge behind it. Blocks
    /// that cannot be reached afterwards are marked unreachable, subprograms that begin with a dead instruction
    /// included.
    ///
    /// A jump keeps its edges if both successors are dead, which no verifier says of a jump that it has reached.
    pub fn prune(&mut self, program: &Program, dead: impl Fn(InsnIdx) -> bool) {
        let starts_dead = |blocks: &[Block], id: BlockId| dead(InsnIdx(blocks[id.index()].start));
        for i in 0..self.blocks.len() {
            let block = self.blocks[i];
            let begins = !starts_dead(&self.blocks, BlockId(crate::small(i)));
            // Control does not reach the block's end, even if a jump is there.
            if begins && (block.start + 1..block.end).any(|slot| dead(InsnIdx(slot))) {
                (self.blocks[i].taken, self.blocks[i].next, self.blocks[i].indirect) = (None, None, (0, 0));
                continue;
            }
            let Some(next) = block.next else { continue };
            let Some(taken) = block.taken else {
                if begins && starts_dead(&self.blocks, next) {
                    self.blocks[i].next = None;
                }
                continue;
            };
            // A block with two successors ends in a conditional jump, which takes one slot.
            if !matches!(program.insns()[block.end as usize - 1], Insn::JumpIf { .. }) {
                continue;
            }
            match (starts_dead(&self.blocks, taken), starts_dead(&self.blocks, next)) {
                (true, false) => self.blocks[i].taken = None,
                (false, true) => self.blocks[i].next = None,
                (true, true) | (false, false) => {}
            }
        }
        self.prune_indirect(program, &dead);
        for block in &mut self.blocks {
            block.reachable = false;
        }
        let roots = self.subprogs.iter().map(|r| BlockId(r.start));
        self.work.clear();
        self.work.extend(roots.filter(|id| !starts_dead(&self.blocks, *id)));
        self.spread_reachable();
    }

    /// Removes the edges of indirect jumps to targets that are dead.
    fn prune_indirect(&mut self, program: &Program, dead: &impl Fn(InsnIdx) -> bool) {
        if self.indirect.is_empty() {
            return;
        }
        let all = core::mem::take(&mut self.indirect);
        for (i, sub) in self.subprogs.iter().enumerate() {
            let first = crate::small(self.indirect.len());
            let targets = program.indirect_targets(SubprogId(crate::small(i))).iter();
            let alive = targets.filter(|target| !dead(**target)).map(|target| BlockId(self.block_at[target.index()]));
            self.indirect.extend(alive);
            let left = (first, crate::small(self.indirect.len()));
            for block in &mut self.blocks[sub.start as usize..sub.end as usize] {
                if block.indirect.0 < block.indirect.1 {
                    block.indirect = left;
                }
            }
        }
        debug_assert!(all.len() >= self.indirect.len());
    }

    /// All blocks, in program order.
    pub fn blocks(&self) -> &[Block] {
        &self.blocks
    }

    /// A block by its id.
    pub fn block(&self, id: BlockId) -> &Block {
        &self.blocks[id.index()]
    }

    /// The blocks of a subprogram, as a range of block ids; the first is its entry.
    pub fn subprog_blocks(&self, id: SubprogId) -> Range<u32> {
        self.subprogs[id.0 as usize].clone()
    }

    /// Solves a backward data-flow problem over some blocks of a subprogram: calls `update`, which recomputes the facts
    /// at a block's start from the facts at its successors' starts and returns whether they changed, until none
    /// changes.
    ///
    /// Program order is close to a topological order, so a few sweeps from the last block to the first settle compiled
    /// programs. A program may be laid out in any other order, so that a sweep settles one block: after these sweeps, a
    /// list of the blocks whose successors changed is processed, in time linear in the edges (times how often a block
    /// can change).
    pub fn flow_back(&self, blocks: Range<u32>, mut update: impl FnMut(BlockId) -> bool) {
        const SWEEPS: usize = 8;
        for _ in 0..SWEEPS {
            let mut changed = false;
            for b in blocks.clone().rev() {
                changed |= update(BlockId(b));
            }
            if !changed {
                return;
            }
        }
        // Predecessors, by block: `edges` sorted by their target.
        let from = |b: u32| self.succs(BlockId(b)).map(move |s| (s.0, b));
        let mut edges: Vec<(u32, u32)> = blocks.clone().flat_map(from).collect();
        edges.sort_unstable();
        let mut list: Vec<u32> = blocks.clone().collect();
        let mut listed = vec![true; blocks.len()];
        while let Some(b) = list.pop() {
            listed[(b - blocks.start) as usize] = false;
            if !update(BlockId(b)) {
                continue;
            }
            let first = edges.partition_point(|&(target, _)| target < b);
            for &(_, source) in edges[first..].iter().take_while(|&&(target, _)| target == b) {
                if !std::mem::replace(&mut listed[(source - blocks.start) as usize], true) {
                    list.push(source);
                }
            }
        }
    }

    /// The block that starts at this slot, if one does.
    pub fn block_at(&self, slot: InsnIdx) -> Option<BlockId> {
        let starts = self.leaders.get(slot.index() / 64).is_some_and(|word| word >> (slot.0 % 64) & 1 != 0);
        starts.then(|| BlockId(self.block_at[slot.index()]))
    }

    fn mark_leaders(&mut self, program: &Program) {
        let slots = program.insns().len();
        self.leaders.clear();
        // One word more, for the slot after the last.
        self.leaders.resize(slots / 64 + 1, 0);
        if self.block_at.len() < slots {
            self.block_at.resize(slots, 0);
        }
        let leaders = &mut self.leaders[..];
        let mut mark = |slot: u32| leaders[slot as usize / 64] |= 1 << (slot % 64);
        for sub in program.subprogs() {
            mark(sub.start);
        }
        for flow in program.flow() {
            if let Some(target) = flow.target {
                mark(target.0);
            }
            mark(flow.at.0 + 1);
        }
        if program.contents().indirect_jumps {
            for sub in 0..crate::small(program.subprogs().len()) {
                program.indirect_targets(SubprogId(sub)).iter().for_each(|target| mark(target.0));
            }
        }
    }

    fn mark_reachable(&mut self) {
        self.work.clear();
        for sub in &self.subprogs {
            self.blocks[sub.start as usize].reachable = true;
            // Most jumps lead forward, to blocks that this loop has yet to visit.
            for i in sub.clone() {
                let Block { taken, next, reachable, .. } = self.blocks[i as usize];
                if reachable {
                    for succ in [next, taken].into_iter().flatten() {
                        if succ.0 > i {
                            self.blocks[succ.index()].reachable = true;
                        } else if !self.blocks[succ.index()].reachable {
                            self.work.push(succ);
                        }
                    }
                    let (from, to) = self.blocks[i as usize].indirect;
                    self.work.extend_from_slice(&self.indirect[from as usize..to as usize]);
                }
            }
        }
        // A target that was marked meanwhile was visited, or will be: blocks on the list are visited again.
        self.spread_reachable();
    }

    /// Marks the blocks that are reachable from the work list.
    fn spread_reachable(&mut self) {
        while let Some(id) = self.work.pop() {
            let Block { taken, next, indirect: (from, to), ref mut reachable, .. } = self.blocks[id.index()];
            if !core::mem::replace(reachable, true) {
                self.work.extend(next.into_iter().chain(taken));
                self.work.extend_from_slice(&self.indirect[from as usize..to as usize]);
            }
        }
    }
}
