//! Moves sums that are addresses into the loads and stores that use them.
//!
//! `a + (b << 2)` is an op of its own, but a machine's loads and stores can compute it as part of their address.
//! Approach, in SSA form, where a sum's operands have the same values wherever the sum is read: a sum whose uses are
//! all addresses of plain loads and stores is folded into each of them, and the op is dead afterwards. A sum stays as
//! it is if another op reads it, if it has more than [`MAX_USES`] uses, or if it is used in another block into which
//! one of its operands would not live otherwise: then two values would live on in place of one.
//!
//! Invariants: the address is the same number modulo 2^64, no matter which instruction adds the offset, so the pass
//! assumes nothing about the program. An access keeps the region that was found for it. Each op is looked at a constant
//! number of times.

use crate::ssa::{NONE, Ssa};
use crate::values::Addresses;
use bpf_isa::Width;
use bpf_lir::{Base, BinOp, BlockId, Func, Mem, Op, VReg, Val};

/// The most accesses that one sum is folded into.
const MAX_USES: u32 = 4;

/// A sum: `base + (index << shift)`.
#[derive(Clone, Copy, Debug)]
struct Sum {
    base: VReg,
    index: VReg,
    shift: u8,
}

/// Scratch memory of the pass, reused from function to function.
#[derive(Debug, Default)]
pub(crate) struct Index {
    /// By value: the index of the op that defines it, or [`NONE`].
    defs: Vec<u32>,
    /// By value: the block in which it is defined.
    blocks: Vec<BlockId>,
    /// By value: how many accesses that may have an index use it as their address; [`NONE`] if it has any other use.
    uses: Vec<u32>,
    /// By value: the greatest position in the reverse postorder of a block that reads it.
    last: Vec<u32>,
}

impl Index {
    /// Runs the pass over `func`, which is in SSA form; returns how many accesses got an index.
    pub(crate) fn run(&mut self, func: &mut Func, ssa: &Ssa, addresses: Addresses) -> u32 {
        let based = |op: &Op| op.mem().is_some_and(|mem| matches!(mem.base, Base::Reg(_)));
        if !func.all_ops().any(based) {
            return 0;
        }
        self.find(func, ssa, addresses);
        let mut done = 0;
        for i in 0..func.order.len() {
            let block = func.order[i];
            for at in func.range(block) {
                let Some(mem) = func.ops[at].mem() else { continue };
                let Base::Reg(v) = mem.base else { continue };
                if !(1..=MAX_USES).contains(&self.uses[v.index()]) {
                    continue;
                }
                if let Some(Sum { base, index, shift }) = self.sum(func, v, addresses)
                    && self.fits(&func.ops[at], mem, shift, addresses)
                {
                    let base = Base::Indexed { base, index, shift };
                    set_mem(&mut func.ops[at], Mem { base, ..mem });
                    done += 1;
                }
            }
        }
        done
    }

    /// Records for each value where it is defined, how it is used, and where it is last read.
    fn find(&mut self, func: &Func, ssa: &Ssa, addresses: Addresses) {
        let values = func.vregs as usize;
        self.defs.clear();
        self.defs.resize(values, NONE);
        self.blocks.clear();
        self.blocks.resize(values, func.order[0]);
        self.uses.clear();
        self.uses.resize(values, 0);
        for block in &func.order {
            for at in func.range(*block) {
                if let Some(v) = func.ops[at].def() {
                    self.defs[v.index()] = crate::num::small(at);
                    self.blocks[v.index()] = *block;
                }
            }
        }
        self.last.clear();
        self.last.resize(values, 0);
        for (block, phi) in ssa.all_phis() {
            for (arg, pred) in ssa.args(block, phi).iter().zip(ssa.cfg.preds(block)) {
                self.uses[arg.index()] = NONE;
                self.last[arg.index()] = self.last[arg.index()].max(ssa.cfg.place(*pred));
            }
        }
        for (block, ops) in func.in_order() {
            let place = ssa.cfg.place(block);
            for op in ops {
                op.for_each_use(|v| self.last[v.index()] = self.last[v.index()].max(place));
            }
        }
        for (block, ops) in func.in_order() {
            for op in ops {
                let address = op.mem().and_then(|mem| match mem.base {
                    Base::Reg(v) => Some((v, mem)),
                    Base::Frame | Base::Indexed { .. } => None,
                });
                op.for_each_use(|v| {
                    let is_address = address.is_some_and(|(base, mem)| {
                        let here = self.blocks[v.index()] == block;
                        let lives = |v: VReg| here || self.last[v.index()] >= ssa.cfg.place(block);
                        base == v
                            && self.sum(func, v, addresses).is_some_and(|sum| {
                                lives(sum.base) && lives(sum.index) && self.fits(op, mem, sum.shift, addresses)
                            })
                    });
                    let uses = &mut self.uses[v.index()];
                    *uses = if is_address && *uses != NONE { *uses + 1 } else { NONE };
                });
                // A store whose address and stored value are the same: the stored value must stay in a register.
                if let (Op::Store { src: Val::Reg(src), .. }, Some((base, _))) = (op, address)
                    && *src == base
                {
                    self.uses[base.index()] = NONE;
                }
            }
        }
    }

    /// Returns the base, index and shift of a value that is a sum.
    fn sum(&self, func: &Func, v: VReg, addresses: Addresses) -> Option<Sum> {
        let def = |v: VReg| func.ops.get(self.defs[v.index()] as usize);
        let shifted = |v: VReg| match def(v) {
            Some(Op::Bin { op: BinOp::Shl, width: Width::W64, a, b: Val::Imm(shift @ 1..=3), .. }) => {
                Some((*a, crate::num::count(crate::num::low(*shift) as u32)))
            }
            Some(_) | None => None,
        };
        match def(v) {
            Some(&Op::AddShift { width: Width::W64, a, b, shift, .. }) => Some(Sum { base: a, index: b, shift }),
            Some(&Op::Bin { op: BinOp::Add, width: Width::W64, a, b: Val::Reg(b), .. }) => {
                Some(match (shifted(a), shifted(b)) {
                    (_, Some((index, shift))) if addresses.any_index => Sum { base: a, index, shift },
                    (Some((index, shift)), _) if addresses.any_index => Sum { base: b, index, shift },
                    (Some(_) | None, Some(_) | None) => Sum { base: a, index: b, shift: 0 },
                })
            }
            Some(_) | None => None,
        }
    }

    /// Whether the machine has an access like `op` with an index that is shifted by `shift` bits beside the offset of
    /// `mem`.
    fn fits(&self, op: &Op, mem: Mem, shift: u8, addresses: Addresses) -> bool {
        let (Op::Load { size, .. } | Op::Store { size, .. }) = op else { return false };
        addresses.any_index || mem.off == 0 && (shift == 0 || 1 << shift == size.bytes())
    }
}

fn set_mem(op: &mut Op, new: Mem) {
    if let Op::Load { mem, .. } | Op::Store { mem, .. } = op {
        *mem = new;
    }
}
