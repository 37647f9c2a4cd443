//! Checks that a function is well formed: the properties that every pass may assume and must preserve.
//!
//! Checks structure (ranges, targets, jumps only at the ends of blocks) and definitions: on every path from the entry
//! to an op, the values that it reads have been written. For a value with one definition that is dominance; with
//! several definitions, one forward data flow over all blocks decides it. Quadratic in the worst case: for debug
//! builds, tests and fuzzing.

use core::cell::RefCell;

use crate::cfg::Cfg;
use crate::func::{Func, Lir};
use crate::op::{Base, BlockId, CallTarget, Mem, Op, VReg};

/// An error in an intermediate form.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum LirError {
    /// The arrays of ops and spans differ in length, or a block names ops that are not there.
    Ranges(BlockId),
    /// A block is in the order twice or does not exist; or there is no block.
    Order,
    /// A jump in the middle of a block, or to a block that is not in the order.
    Jump {
        /// The block it is in.
        block: BlockId,
        /// The op.
        op: Op,
    },
    /// The last block of the order falls off its end.
    End(BlockId),
    /// A value, parameter or subprogram that does not exist.
    Unknown(Op),
    /// An index in the address of an op other than a plain load or store, or one shifted by more than 3.
    Address(Op),
    /// A parameter that does not exist, or two parameters in one register.
    Parameter(VReg),
    /// A value is read that was not written on some path there.
    Undefined {
        /// The value.
        value: VReg,
        /// The block where it is read.
        block: BlockId,
        /// The op that reads it.
        op: Op,
    },
}

impl core::fmt::Display for LirError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            LirError::Ranges(block) => write!(f, "{block} names ops that are not there"),
            LirError::Order => {
                f.write_str("the order of the blocks is empty, repeats one, or names one that is not there")
            }
            LirError::Jump { block, op } => write!(f, "{block}: `{op}` is not the block's last op, or leads nowhere"),
            LirError::End(block) => write!(f, "{block} is the last one and falls off its end"),
            LirError::Unknown(op) => write!(f, "`{op}` names a value or function that does not exist"),
            LirError::Address(op) => write!(f, "`{op}` cannot have this index in its address"),
            LirError::Parameter(v) => write!(f, "parameter {v} does not exist, or is another one too"),
            LirError::Undefined { value, block, op } => {
                write!(f, "{block}: `{op}` reads {value}, which is not written on every way there")
            }
        }
    }
}

impl core::error::Error for LirError {}

impl Lir {
    /// Checks all functions.
    ///
    /// # Errors
    /// The first error found.
    pub fn verify(&self) -> Result<(), LirError> {
        self.funcs.iter().try_for_each(|func| func.verify(self.funcs.len()))
    }
}

/// The largest number of words of data-flow state (256 MiB): definitions of a larger function, of some fifty thousand
/// blocks, are not checked.
const MAX_WORDS: usize = 1 << 25;

impl Func {
    /// Checks the function, which belongs to a program of `functions` functions.
    ///
    /// # Errors
    /// The first error found.
    pub fn verify(&self, functions: usize) -> Result<(), LirError> {
        SCRATCH.with_borrow_mut(|scratch| {
            self.verify_structure(functions, &mut scratch.ordered)?;
            self.verify_definitions(scratch)
        })
    }

    fn verify_structure(&self, functions: usize, ordered: &mut Vec<bool>) -> Result<(), LirError> {
        ordered.clear();
        ordered.resize(self.blocks.len(), false);
        for block in &self.order {
            match ordered.get_mut(block.index()) {
                Some(seen) if !*seen => *seen = true,
                Some(_) | None => return Err(LirError::Order),
            }
            let range = &self.blocks[block.index()].ops;
            if range.start > range.end || range.end as usize > self.ops.len() || self.ops.len() != self.spans.len() {
                return Err(LirError::Ranges(*block));
            }
        }
        for (i, v) in self.entry_values().enumerate() {
            if v.0 >= self.vregs || self.entry_values().skip(i + 1).any(|other| other == v) {
                return Err(LirError::Parameter(v));
            }
        }
        let last = *self.order.last().ok_or(LirError::Order)?;
        if self.ends(last).falls {
            return Err(LirError::End(last));
        }
        for (block, ops) in self.in_order() {
            for (i, op) in ops.iter().enumerate() {
                let mut leads = true;
                if let Op::Jump { target } | Op::Branch { target, .. } = op {
                    leads = ordered.get(target.index()) == Some(&true);
                }
                if !leads || (op.ends_block() && i + 1 < ops.len()) {
                    return Err(LirError::Jump { block, op: *op });
                }
                let mut known = op.def().is_none_or(|v| v.0 < self.vregs);
                op.for_each_use(|v| known &= v.0 < self.vregs);
                if let Op::Call { target: CallTarget::Subprog(subprog), .. } | Op::SubprogAddr { subprog, .. } = op {
                    known &= subprog.index() < functions;
                }
                if !known {
                    return Err(LirError::Unknown(*op));
                }
                if let Some(Mem { base: Base::Indexed { shift, .. }, .. }) = op.mem()
                    && !(shift <= 3 && matches!(op, Op::Load { .. } | Op::Store { .. }))
                {
                    return Err(LirError::Address(*op));
                }
            }
        }
        Ok(())
    }

    fn verify_definitions(&self, scratch: &mut Scratch) -> Result<(), LirError> {
        let Scratch { cfg, reached, written, now, .. } = scratch;
        cfg.build(self);
        // By block: the values written on every path to its start, once a path there was found.
        let words = self.vregs.div_ceil(64) as usize;
        let row = |block: BlockId| block.index() * words..(block.index() + 1) * words;
        if self.blocks.len().saturating_mul(words) > MAX_WORDS {
            return Ok(());
        }
        written.clear();
        written.resize(self.blocks.len() * words, 0);
        reached.clear();
        reached.resize(self.blocks.len(), false);
        self.entry_values().for_each(|v| insert(&mut written[row(self.order[0])], v));
        reached[self.order[0].index()] = true;
        let mut changed = true;
        while changed {
            changed = false;
            for block in cfg.rpo() {
                if !reached[block.index()] {
                    continue;
                }
                now.clear();
                now.extend_from_slice(&written[row(*block)]);
                self.block_ops(*block).iter().filter_map(Op::def).for_each(|v| insert(now, v));
                for succ in cfg.succs(*block) {
                    let known = &mut written[row(succ)];
                    changed |= if std::mem::replace(&mut reached[succ.index()], true) {
                        intersect(known, now)
                    } else {
                        known.copy_from_slice(now);
                        true
                    };
                }
            }
        }
        for block in cfg.rpo().iter().filter(|block| reached[block.index()]) {
            let values = &mut written[row(*block)];
            for op in self.block_ops(*block) {
                let mut missing = None;
                op.for_each_use(|v| missing = missing.or((!contains(values, v)).then_some(v)));
                if let Some(value) = missing {
                    return Err(LirError::Undefined { value, block: *block, op: *op });
                }
                op.def().into_iter().for_each(|v| insert(values, v));
            }
        }
        Ok(())
    }
}

/// Memory that a check uses and that the thread keeps for the next one: debug builds check each function several
/// times per compilation, and compiling should not allocate once it is warm.
#[derive(Default)]
struct Scratch {
    ordered: Vec<bool>,
    cfg: Cfg,
    reached: Vec<bool>,
    /// One set of values per block.
    written: Vec<u64>,
    now: Vec<u64>,
}

thread_local!(static SCRATCH: RefCell<Scratch> = RefCell::default());

fn insert(set: &mut [u64], v: VReg) {
    set[v.index() / 64] |= 1 << (v.0 % 64);
}

fn contains(set: &[u64], v: VReg) -> bool {
    set[v.index() / 64] & 1 << (v.0 % 64) != 0
}

/// Intersects `set` with `other`; returns whether any element was removed.
fn intersect(set: &mut [u64], other: &[u64]) -> bool {
    let mut changed = false;
    for (a, b) in set.iter_mut().zip(other) {
        changed |= *a & !b != 0;
        *a &= b;
    }
    changed
}
