//! Functions and their blocks.
//!
//! Problem: passes add and remove ops and blocks, and all other code walks the ops as one array. Approach: the ops of
//! all blocks lie in one array, each block names a range of it, and the order of the code is a separate list of
//! blocks. Added ops are appended to the array, and removed ones are not named any more; [`Func::compact`] sorts the
//! ops of the ordered blocks again.
//!
//! Invariants: a [`BlockId`] is valid for as long as its block exists, whatever is inserted or removed around it. The
//! ranges of blocks in the order are disjoint.

use crate::op::{BlockId, Op, VReg};
use core::ops::Range;

/// The BPF instructions an op came from: slots `first .. first + len`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Span {
    /// First slot.
    pub first: u32,
    /// Number of slots.
    pub len: u32,
}

/// A basic block: a range of the function's ops.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Block {
    /// Its ops.
    pub ops: Range<u32>,
}

/// A function: a subprogram.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Func {
    /// The ops of all blocks.
    pub ops: Vec<Op>,
    /// The span of each op.
    pub spans: Vec<Span>,
    /// Blocks by id.
    pub blocks: Vec<Block>,
    /// The order of the code. The first block is the entry.
    pub order: Vec<BlockId>,
    /// Number of virtual registers.
    pub vregs: u32,
    /// Virtual registers that hold r1 to r5 at entry, for parameters that are read.
    pub params: [Option<VReg>; 5],
    /// The virtual register that holds the hidden argument at entry, if it is needed.
    pub ctx: Option<VReg>,
    /// Bytes of BPF stack, a multiple of 8.
    pub stack_bytes: u32,
    /// Bytes of the BPF stack that only ops with [`Base::Frame`](crate::Base::Frame) access, as offsets from its top;
    /// ascending, without overlaps. Empty if nothing is known.
    pub private: Vec<Range<i32>>,
}

/// The successors at the end of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ends {
    /// The target of the jump or branch at the end.
    pub taken: Option<BlockId>,
    /// Whether control may fall through to the next block of the order.
    pub falls: bool,
}

impl Func {
    /// Empties the function and keeps its memory.
    pub fn clear(&mut self) {
        self.ops.clear();
        self.spans.clear();
        self.blocks.clear();
        self.order.clear();
        self.vregs = 0;
        self.params = [None; 5];
        self.ctx = None;
        self.stack_bytes = 0;
        self.private.clear();
    }

    /// The ops of a block.
    pub fn block_ops(&self, block: BlockId) -> &[Op] {
        &self.ops[self.range(block)]
    }

    /// The range of a block's ops in [`Func::ops`] and [`Func::spans`].
    pub fn range(&self, block: BlockId) -> Range<usize> {
        let Range { start, end } = self.blocks[block.index()].ops;
        start as usize..end as usize
    }

    /// The blocks in the order of the code, each with its ops.
    pub fn in_order(&self) -> impl DoubleEndedIterator<Item = (BlockId, &[Op])> {
        self.order.iter().map(|block| (*block, self.block_ops(*block)))
    }

    /// The ops of the code, in code order.
    pub fn all_ops(&self) -> impl Iterator<Item = &Op> {
        self.in_order().flat_map(|(_, ops)| ops)
    }

    /// The registers that are defined at entry.
    pub fn entry_values(&self) -> impl Iterator<Item = VReg> {
        self.params.into_iter().chain([self.ctx]).flatten()
    }

    /// The successors at the end of a block.
    pub fn ends(&self, block: BlockId) -> Ends {
        match self.block_ops(block).last() {
            Some(Op::Jump { target }) => Ends { taken: Some(*target), falls: false },
            Some(Op::Branch { target, .. }) => Ends { taken: Some(*target), falls: true },
            Some(Op::Exit { .. } | Op::Stop { .. }) => Ends { taken: None, falls: false },
            Some(_) | None => Ends { taken: None, falls: true },
        }
    }

    /// Creates a virtual register.
    pub fn new_vreg(&mut self) -> VReg {
        self.vregs += 1;
        VReg(self.vregs - 1)
    }

    /// Creates a block with these ops, which is not in the order yet.
    pub fn new_block(&mut self, ops: impl IntoIterator<Item = (Op, Span)>) -> BlockId {
        self.blocks.push(Block { ops: 0..0 });
        let block = BlockId(crate::small(self.blocks.len()) - 1);
        self.set_ops(block, ops);
        block
    }

    /// Replaces the ops of a block.
    pub fn set_ops(&mut self, block: BlockId, ops: impl IntoIterator<Item = (Op, Span)>) {
        let start = crate::small(self.ops.len());
        for (op, span) in ops {
            self.ops.push(op);
            self.spans.push(span);
        }
        self.blocks[block.index()].ops = start..crate::small(self.ops.len());
    }

    /// Inserts `block` into the order after `after`, so that `after` falls into it. Does nothing if `after` is not in
    /// the order.
    pub fn insert_after(&mut self, after: BlockId, block: BlockId) {
        if let Some(at) = self.order.iter().position(|b| *b == after) {
            self.order.insert(at + 1, block);
        }
    }

    /// Removes a block from the order. Its predecessor falls into the next block; no jump may lead to the removed
    /// one.
    pub fn remove(&mut self, block: BlockId) {
        self.order.retain(|b| *b != block);
        self.blocks[block.index()].ops = 0..0;
    }

    /// Splits a block before its op `at`; the rest is a new block, which the first falls into.
    pub fn split_block(&mut self, block: BlockId, at: u32) -> BlockId {
        let Range { start, end } = self.blocks[block.index()].ops;
        let cut = (start + at).min(end);
        self.blocks[block.index()].ops = start..cut;
        self.blocks.push(Block { ops: cut..end });
        let rest = BlockId(crate::small(self.blocks.len()) - 1);
        self.insert_after(block, rest);
        rest
    }

    /// Creates a block on the edge of the jump or branch at the end of `from`; it consists of `ops` and a jump.
    /// `None` if there is no such edge.
    pub fn split_taken(&mut self, from: BlockId, ops: impl IntoIterator<Item = (Op, Span)>) -> Option<BlockId> {
        let last = self.range(from).last()?;
        let span = self.spans[last];
        let (Op::Jump { target } | Op::Branch { target, .. }) = self.ops[last] else { return None };
        let block = self.new_block(ops.into_iter().chain([(Op::Jump { target }, span)]));
        if let Op::Jump { target } | Op::Branch { target, .. } = &mut self.ops[last] {
            *target = block;
        }
        self.order.push(block);
        Some(block)
    }

    /// Removes ops outside the order's blocks from the arrays and sorts the others in code order; removes blocks
    /// outside the order and numbers the others in it.
    pub fn compact(&mut self) {
        const GONE: u32 = u32::MAX;
        let mut number = vec![GONE; self.blocks.len()];
        for (block, n) in self.order.iter().zip(0..) {
            number[block.index()] = n;
        }
        let (mut ops, mut spans, mut blocks) = (Vec::new(), Vec::new(), Vec::new());
        for block in &self.order {
            let start = crate::small(ops.len());
            ops.extend_from_slice(self.block_ops(*block));
            spans.extend_from_slice(&self.spans[self.range(*block)]);
            blocks.push(Block { ops: start..crate::small(ops.len()) });
        }
        for op in &mut ops {
            if let Op::Jump { target } | Op::Branch { target, .. } = op {
                *target = BlockId(number[target.index()]);
            }
        }
        self.order = (0..crate::small(blocks.len())).map(BlockId).collect();
        (self.ops, self.spans, self.blocks) = (ops, spans, blocks);
    }
}

/// A whole program: one function per subprogram.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Lir {
    /// The functions, by subprogram id.
    pub funcs: Vec<Func>,
}
