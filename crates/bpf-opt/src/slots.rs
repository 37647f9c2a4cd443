//! The stack into values.
//!
//! Problem: compilers for BPF spill what ten registers do not hold; the machine has more of them. Approach: a piece of
//! the stack that is only ever loaded from and stored to as a whole, or loaded from in part, becomes a value; a load is
//! then a copy and a store is one, and SSA form makes of that what it makes of any copy.
//!
//! Only where no address in the stack is taken: what is computed from r10, or handed to a call, may be anything's
//! address afterwards. That the address of a stack is not known to who was not given it is assumed of unverified
//! programs too; a program that guesses it finds what machine code keeps there.
//!
//! A compiler puts values of several sizes into one piece, one after the other. Such a piece becomes a value too if no
//! load takes more than what any store that it may see has stored, which one walk over the blocks finds out: what is
//! above is then read by nobody.
//!
//! Invariants: runs before SSA form; a value that no store came before is zero, as good as anything that may lie in a
//! stack. The stack that is left is as large as before, or none.

use crate::faults::planted;
use bpf_isa::{Size, Width};
use bpf_lir::{Base, Cfg, Func, Mem, Op, Span, VReg, Val};

/// How many values times ops there may be: a value of this kind may live all through the function, and whoever
/// allocates registers writes down for each op what lives across it.
const MAX_REACH: usize = 1 << 24;

/// A piece of the stack.
#[derive(Clone, Copy, Debug)]
struct Piece {
    /// Where it begins, from r10.
    off: i32,
    /// How many bytes its stores, or its longest load, take.
    size: Size,
    /// Nothing overlaps it.
    apart: bool,
    /// Stores are of several sizes: its number among those pieces.
    mixed: Option<u32>,
    /// How many loads and stores there are.
    accesses: u32,
    value: VReg,
}

/// The memory that it works in.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    /// By place.
    pieces: Vec<Piece>,
    /// Accesses: place, size, whether it is a store.
    accesses: Vec<(i32, Size, bool)>,
    /// The pieces by how often they are accessed.
    order: Vec<u32>,
    /// What gives the values their first content.
    new: Vec<Op>,
    cfg: Cfg,
    /// By block: of each mixed piece, by four bits, the sizes of the stores that a load at its end may see.
    stored: Vec<u64>,
}

/// How many pieces may have stores of several sizes.
const MAX_MIXED: u32 = 16;
/// How often all blocks are walked to find which stores loads may see; a nest of loops takes one walk more for each.
const MAX_WALKS: u32 = 8;

/// The bits of a mixed piece for a store of this size.
fn stores(number: u32, size: Size) -> u64 {
    u64::from(size.bytes()) << (4 * number)
}

impl Slots {
    /// Runs over `func`; says how many loads and stores became copies.
    pub(crate) fn run(&mut self, func: &mut Func) -> u32 {
        if func.stack_bytes == 0 || !self.find(func) {
            return 0;
        }
        self.divide(func.stack_bytes);
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
        let mut left = false;
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

    /// Finds the accesses to the stack; false if its address is taken.
    fn find(&mut self, func: &Func) -> bool {
        self.accesses.clear();
        for op in func.all_ops() {
            let mem = op.mem().filter(|mem| mem.base == Base::Frame);
            if let Op::FrameAddr { .. } = op {
                return false;
            } else if let (Some(mem), Op::Load { size, .. } | Op::Store { size, .. }) = (mem, op) {
                self.accesses.push((mem.off, *size, matches!(op, Op::Store { .. })));
            } else if mem.is_some() {
                // An atomic operation on the stack: rare, and it stays.
                return false;
            }
        }
        true
    }

    /// Makes pieces of what begins at one place, and sees which are apart.
    fn divide(&mut self, stack_bytes: u32) {
        self.pieces.clear();
        let mut mixed = 0;
        self.accesses.sort_unstable_by_key(|(off, size, store)| (*off, core::cmp::Reverse(size.bytes()), *store));
        for (off, size, store) in &self.accesses {
            match self.pieces.last_mut() {
                // Loads may take less than the piece, stores only if nobody then takes more.
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
        // What overlaps anything before it, which reaches furthest, is not apart, nor is that.
        let (mut reach, mut furthest) = (i64::MIN, 0);
        for i in 0..self.pieces.len() {
            let Piece { off, size, .. } = self.pieces[i];
            // An access outside of the stack is none of ours.
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

    /// Finds the mixed pieces of which a load may take more than a store that it sees has stored: they stay.
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
                    // Sizes below this one.
                    stay |= seen & (stores(number, *size) - stores(number, Size::B));
                }
                seen = self.stored_after(op, seen);
            }
        }
        for piece in &mut self.pieces {
            piece.apart &= piece.mixed.is_none_or(|number| stay >> (4 * number.min(MAX_MIXED - 1)) & 15 == 0);
        }
    }

    /// Which stores may be seen behind an op.
    fn stored_after(&self, op: &Op, seen: u64) -> u64 {
        if let Op::Store { size, mem, .. } = op
            && let Some(number) = self.piece(*mem).and_then(|piece| piece.mixed)
        {
            return seen & !(15 << (4 * number)) | stores(number, *size);
        }
        seen
    }

    /// Leaves all but the `most` pieces where they are that are accessed most.
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

    /// What a load or store of a piece is instead.
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
