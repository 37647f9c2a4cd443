//! Turns pieces of the BPF stack into values.
//!
//! Problem: compilers for BPF spill values that do not fit into ten registers, but the machine has more registers.
//! Approach: a piece of the stack becomes a value if every store writes all of it and every load reads all of it or its
//! low part. Each load and store of the piece becomes a copy, and SSA form removes most copies.
//!
//! An address that was computed from r10, or passed to a call, may be the address of any piece afterwards. In a
//! function that takes such an address, a piece becomes a value only if it is private: the verifier has proven that no
//! address leads to it ([`Func::private`]). Unverified programs too are assumed not to have the address of a stack
//! frame that was not given to them. A program that guesses it finds whatever the machine code keeps there.
//!
//! Compilers put values of several sizes into one piece, one after the other. A piece with stores of several sizes
//! becomes a value too if no load reads more bytes than each store that may reach it has written, because the bytes
//! above are then never read. A data flow over the blocks finds out which stores may reach which load.
//!
//! Invariants: the pass runs before SSA form. A value reads as zero where no store came before; a stack may hold any
//! bytes there, so zero is a permitted result. The function's stack keeps its size, or has size zero if no access to it
//! is left.

use crate::faults::planted;
use bpf_isa::{Size, Width};
use bpf_lir::{Base, Cfg, Func, Mem, Op, Span, VReg, Val};
use core::ops::Range;

/// The most pieces times ops. A value made of a piece may live through the whole function, and the register allocator
/// records for each op the values that live across it.
const MAX_REACH: usize = 1 << 24;

/// A piece of the stack.
#[derive(Clone, Copy, Debug)]
struct Piece {
    /// Offset of its first byte from r10, in bytes.
    off: i32,
    /// Size of its stores, or of its longest load.
    size: Size,
    /// No access overlaps it with another offset, and it lies within the stack: it becomes a value.
    apart: bool,
    /// Its number among the pieces with stores of several sizes, if it is one of them.
    mixed: Option<u32>,
    /// Number of loads and stores.
    accesses: u32,
    value: VReg,
}

impl Piece {
    /// Whether all of its bytes are in these ranges, which ascend.
    fn is_private(&self, ranges: &[Range<i32>]) -> bool {
        let end = i64::from(self.off) + i64::from(self.size.bytes());
        let at = ranges.partition_point(|range| range.end <= self.off);
        planted!(PiecesShared)
            || ranges.get(at).is_some_and(|range| range.start <= self.off && end <= i64::from(range.end))
    }
}

/// Whether an address in the stack is taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Taken {
    Nowhere,
    Somewhere,
    /// There is an access to the stack that the pass does not handle.
    Unclear,
}

/// Scratch memory of the pass, reused from function to function.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    /// Sorted by offset.
    pieces: Vec<Piece>,
    /// Accesses: offset, size, whether it is a store.
    accesses: Vec<(i32, Size, bool)>,
    /// The pieces, most accessed first.
    order: Vec<u32>,
    /// Ops that set the values to zero at the function's entry.
    new: Vec<Op>,
    cfg: Cfg,
    /// By block, four bits for each mixed piece: the sizes in bytes of the stores that may reach a load at the block's
    /// end.
    stored: Vec<u64>,
}

/// The most pieces with stores of several sizes.
const MAX_MIXED: u32 = 16;
/// The most walks over all blocks to find which stores may reach a load. Each loop around another may take one more
/// walk.
const MAX_WALKS: u32 = 8;

/// Returns the bits of mixed piece `number` for a store of this size.
fn stores(number: u32, size: Size) -> u64 {
    u64::from(size.bytes()) << (4 * number)
}

impl Slots {
    /// Runs the pass over `func`; returns how many loads and stores became copies.
    pub(crate) fn run(&mut self, func: &mut Func) -> u32 {
        if func.stack_bytes == 0 {
            return 0;
        }
        let taken = self.find(func);
        match taken {
            Taken::Nowhere => self.divide(func.stack_bytes),
            Taken::Somewhere if func.private.is_empty() => return 0,
            Taken::Somewhere => {
                self.divide(func.stack_bytes);
                self.pieces.iter_mut().for_each(|piece| piece.apart &= piece.is_private(&func.private));
            }
            Taken::Unclear => return 0,
        }
        self.see(func);
        self.leave(MAX_REACH / func.ops.len().max(1));
        let mut new = core::mem::take(&mut self.new);
        new.clear();
        for piece in self.pieces.iter_mut().filter(|piece| piece.apart) {
            piece.value = func.new_vreg();
            new.push(Op::Mov { width: Width::W64, dst: piece.value, src: Val::Imm(0) });
        }
        if new.is_empty() {
            self.new = new;
            return 0;
        }
        let mut done = 0;
        let mut left = taken == Taken::Somewhere;
        for i in 0..func.order.len() {
            for at in func.range(func.order[i]) {
                let Some(Mem { base: Base::Frame, .. }) = func.ops[at].mem() else { continue };
                match self.replaced(&func.ops[at]) {
                    Some(op) => {
                        func.ops[at] = op;
                        done += 1;
                    }
                    None => left = true,
                }
            }
        }
        if !left {
            func.stack_bytes = 0;
        }
        let entry = func.new_block(new.drain(..).map(|op| (op, Span::default())));
        self.new = new;
        func.order.insert(0, entry);
        done
    }

    /// Lists the accesses to the stack; returns whether an address in the stack is taken.
    fn find(&mut self, func: &Func) -> Taken {
        self.accesses.clear();
        let mut taken = Taken::Nowhere;
        for op in func.all_ops() {
            let mem = op.mem().filter(|mem| mem.base == Base::Frame);
            if let Op::FrameAddr { .. } = op {
                taken = Taken::Somewhere;
            } else if let (Some(mem), Op::Load { size, .. } | Op::Store { size, .. }) = (mem, op) {
                self.accesses.push((mem.off, *size, matches!(op, Op::Store { .. })));
            } else if mem.is_some() {
                // An atomic operation on the stack is rare, and is left as it is.
                return Taken::Unclear;
            }
        }
        taken
    }

    /// Makes one piece of all accesses with the same offset, and marks the pieces that nothing overlaps.
    fn divide(&mut self, stack_bytes: u32) {
        self.pieces.clear();
        let mut mixed = 0;
        self.accesses.sort_unstable_by_key(|(off, size, store)| (*off, core::cmp::Reverse(size.bytes()), *store));
        for (off, size, store) in &self.accesses {
            match self.pieces.last_mut() {
                // A load may be shorter than the piece. A shorter store makes the piece mixed.
                Some(piece) if piece.off == *off => {
                    if *store && piece.size != *size && piece.mixed.is_none() {
                        piece.mixed = Some(mixed);
                        piece.apart &= mixed < MAX_MIXED;
                        mixed += 1;
                    }
                    piece.accesses += 1;
                }
                _ => self.pieces.push(Piece {
                    off: *off,
                    size: *size,
                    apart: true,
                    mixed: None,
                    accesses: 1,
                    value: VReg(0),
                }),
            }
        }
        // A piece that begins before the end of an earlier piece is not apart, and neither is the earlier one. A
        // comparison with the earlier piece that reaches furthest suffices.
        let (mut reach, mut furthest) = (i64::MIN, 0);
        for i in 0..self.pieces.len() {
            let Piece { off, size, .. } = self.pieces[i];
            // The pass leaves accesses outside of the stack alone.
            self.pieces[i].apart &=
                i64::from(off) >= -i64::from(stack_bytes) && i64::from(off) + i64::from(size.bytes()) <= 0;
            if i64::from(off) < reach {
                self.pieces[i].apart = false;
                self.pieces[furthest].apart = false;
            }
            let end = i64::from(off) + i64::from(size.bytes());
            if end > reach {
                (reach, furthest) = (end, i);
            }
        }
    }

    /// Finds the mixed pieces in which a load may read more bytes than a store that reaches it has written; they stay
    /// in memory.
    fn see(&mut self, func: &Func) {
        if !self.pieces.iter().any(|piece| piece.apart && piece.mixed.is_some()) {
            return;
        }
        self.cfg.build(func);
        self.stored.clear();
        self.stored.resize(func.blocks.len(), 0);
        let (mut changed, mut walks) = (true, 0);
        while changed && walks < MAX_WALKS {
            (changed, walks) = (false, walks + 1);
            for block in self.cfg.rpo() {
                let seen = self.cfg.preds(*block).iter().fold(0, |seen, pred| seen | self.stored[pred.index()]);
                let stored = func.block_ops(*block).iter().fold(seen, |seen, op| self.stored_after(op, seen));
                changed |= core::mem::replace(&mut self.stored[block.index()], stored) != stored;
            }
        }
        let mut stay = if planted!(MixedUnseen) {
            return;
        } else if changed {
            u64::MAX
        } else {
            0
        };
        for block in self.cfg.rpo() {
            let mut seen = self.cfg.preds(*block).iter().fold(0, |seen, pred| seen | self.stored[pred.index()]);
            for op in func.block_ops(*block) {
                if let Op::Load { size, mem, .. } = op
                    && let Some(number) = self.piece(*mem).and_then(|piece| piece.mixed)
                {
                    // The stores of smaller sizes that may reach the load.
                    stay |= seen & (stores(number, *size) - stores(number, Size::B));
                }
                seen = self.stored_after(op, seen);
            }
        }
        for piece in &mut self.pieces {
            piece.apart &= piece.mixed.is_none_or(|number| stay >> (4 * number.min(MAX_MIXED - 1)) & 15 == 0);
        }
    }

    /// Returns the stores that may reach the point after an op, if `seen` may reach the point before it.
    fn stored_after(&self, op: &Op, seen: u64) -> u64 {
        if let Op::Store { size, mem, .. } = op
            && let Some(number) = self.piece(*mem).and_then(|piece| piece.mixed)
        {
            return seen & !(15 << (4 * number)) | stores(number, *size);
        }
        seen
    }

    /// Keeps only the `most` pieces that are accessed most often as candidates.
    fn leave(&mut self, most: usize) {
        if self.pieces.len() <= most {
            return;
        }
        self.order.clear();
        self.order.extend((0..crate::num::small(self.pieces.len())).filter(|i| self.pieces[*i as usize].apart));
        self.order.sort_by_key(|i| core::cmp::Reverse(self.pieces[*i as usize].accesses));
        for i in self.order.iter().skip(most) {
            self.pieces[*i as usize].apart = false;
        }
    }

    fn piece(&self, mem: Mem) -> Option<&Piece> {
        let at = self.pieces.binary_search_by_key(&mem.off, |piece| piece.off).ok()?;
        Some(&self.pieces[at]).filter(|piece| mem.base == Base::Frame && piece.apart)
    }

    /// Returns the op that replaces a load or store of a piece.
    fn replaced(&self, op: &Op) -> Option<Op> {
        if let Op::Load { size, signed, swap, dst, mem } = *op {
            let src = self.piece(mem)?.value;
            Some(match (size, swap) {
                (_, true) => Op::Bswap { size, dst, src },
                (Size::DW, false) => Op::Mov { width: Width::W64, dst, src: Val::Reg(src) },
                (Size::B | Size::H | Size::W, false) => Op::Ext { width: Width::W64, signed, from: size, dst, src },
            })
        } else if let Op::Store { mem, src, .. } = *op {
            Some(Op::Mov { width: Width::W64, dst: self.piece(mem)?.value, src })
        } else {
            None
        }
    }
}
