//! The labels of a function's blocks, for `skeleton`.

use crate::backend::Shape;
use bpf_jit_code::layout::{Branch, Label, Layout};
use bpf_lir::BlockId;

/// The labels of the blocks of the function being emitted: consecutive labels for the blocks of its [`Shape`], and
/// labels of extra blocks. The memory is reused from function to function.
#[derive(Debug)]
pub(crate) struct BlockLabels {
    /// Number of the shape's first block.
    start: u32,
    /// Number of the first extra block, one above the shape's last block.
    end: u32,
    /// Label of the shape's first block.
    first: Label,
    extra: Vec<Label>,
}

impl Default for BlockLabels {
    fn default() -> Self {
        BlockLabels { start: 0, end: 0, first: Label(0), extra: Vec::new() }
    }
}

impl BlockLabels {
    /// Makes labels for the blocks of a function's shape.
    pub(crate) fn begin<B: Branch>(&mut self, shape: &Shape, layout: &mut Layout<B>) {
        self.start = shape.first_block;
        self.end = shape.first_block + shape.blocks;
        self.first = layout.labels(shape.blocks);
        self.extra.clear();
    }

    /// Makes an extra block.
    pub(crate) fn add<B: Branch>(&mut self, layout: &mut Layout<B>) -> BlockId {
        self.extra.push(layout.label());
        BlockId(self.end + crate::num::small(self.extra.len()) - 1)
    }

    /// Returns the label of a block.
    #[inline]
    pub(crate) fn label(&self, block: BlockId) -> Label {
        match block.0.checked_sub(self.end) {
            None => Label(self.first.0 + (block.0 - self.start)),
            Some(extra) => self.extra[extra as usize],
        }
    }
}
