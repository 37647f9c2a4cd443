//! Sums that are addresses become part of the loads and stores that use them.
//!
//! `a + (b << 2)` is an instruction of its own, and one that a machine's loads and stores compute on the way. Approach:
//! in SSA form, where operands are the same wherever they are read. A sum whose uses are all addresses of plain loads
//! and stores goes into each of them and is then read by nobody; a sum that something else reads too stays where it is.
//! So does one with more uses than [`MAX_USES`], and one that is used in another block where one of the two is read no
//! more, there or in a later block: two values would live on where there was one.
//!
//! Invariants: the address is the same number modulo 2^64 whichever op adds, so nothing is asked of the program; the
//! region that an access was found to be in stays with it. One look at each op.

use crate::ssa::{NONE, Ssa};
use crate::values::Addresses;
use bpf_isa::Width;
use bpf_lir::{Base, BinOp, BlockId, Func, Mem, Op, VReg, Val};

/// The most accesses that one sum goes into.
const MAX_USES: u32 = 4;

/// A sum: `base + (index << shift)`.
#[derive(Clone, Copy, Debug)]
struct Sum {
    base: VReg,
    index: VReg,
    shift: u8,
}

/// The memory that it works in.
#[derive(Debug, Default)]
pub(crate) struct Index {
    /// By value: the op that defines it, or [`NONE`].
    defs: Vec<u32>,
    /// By value: the block that it is defined in.
    blocks: Vec<BlockId>,
    /// By value: how often it is the address of an access that may have an index; [`NONE`] once it is anything else.
    uses: Vec<u32>,
    /// By value: the last place in the reverse postorder where it is read.
    last: Vec<u32>,
}

impl Index {
    /// Runs over `func`, which is in SSA form; says how many accesses have an index now.
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

    /// Counts how each value is used.
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
                // What is stored is no address, whatever else it is.
                if let (Op::Store { src: Val::Reg(src), .. }, Some((base, _))) = (op, address)
                    && *src == base
                {
                    self.uses[base.index()] = NONE;
                }
            }
        }
    }

    /// The sum that a value is.
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

    /// Whether an op may have an index that is shifted by so much beside its offset.
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
