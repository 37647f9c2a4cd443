//! Values that the op that reads them makes on the way: by a load, a test, a shift, a product.
//!
//! A machine with memory operands adds, compares and so on with what a load would find, and tests the bits that two
//! operands share without computing them; one with shifted operands adds what it shifts, rotates, extends or
//! multiplies ([`Takes`]). Nothing in the intermediate form says so: a value that is read once, by the very next op, is
//! [`held`] by the allocator and the emitter, both of whom ask here. What is done to the form is to bring such pairs
//! together: in SSA form, an op whose only reader stands further down in its block moves down to it. So does a
//! selection to the next one by the same comparison, or the branch by the same operands, which are then compared once.
//!
//! Invariants: a load moves past nothing but ops that only compute and plain loads, so whatever a program writes,
//! checks or calls, it has done before a load that traps in an unverified program as before. At most [`MAX_DISTANCE`]
//! ops are moved up by one.

use crate::dead::is_pure;
use crate::ssa::{NONE, Ssa};
use bpf_isa::{Cond, Size, Width};
use bpf_lir::{Base, BinOp, Func, Mem, Op, VReg, Val, narrow};

/// How far a value is brought.
const MAX_DISTANCE: usize = 24;

/// How a machine with memory operands has it, and which condition tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Compared {
    /// Memory at its own size with a register.
    Memory,
    /// A register with memory of the comparison's width.
    WithMemory,
    /// Whether the low byte of a register has bits in common with a byte in memory.
    Bits,
    /// Memory at its own size with a constant of at most 32 bits: unsigned conditions where it is zero-extended.
    Constant {
        /// The condition.
        cond: Cond,
        /// The constant.
        imm: i32,
    },
}

/// What a machine's ops take in place of a register.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Takes {
    /// An operand from memory, and two of an `and` that is compared with zero.
    Memory,
    /// A second operand that is shifted or rotated by a constant, inverted, extended, or a product.
    Shifted,
}

/// The value that `user`, which comes right after `maker`, need not have in a register, if it is read nowhere else.
pub fn held(takes: Takes, maker: &Op, user: &Op) -> Option<VReg> {
    match takes {
        Takes::Memory => in_memory(maker, user),
        Takes::Shifted => shifted(maker, user),
    }
}

/// The second operand of arithmetic, if the machine makes it of what `maker` makes it of.
fn shifted(maker: &Op, user: &Op) -> Option<VReg> {
    let (Op::Bin { op, width, a, b: Val::Reg(b), .. }, Some(v)) = (*user, maker.def()) else { return None };
    let logic = matches!(op, BinOp::And | BinOp::Or | BinOp::Xor);
    let sum = matches!(op, BinOp::Add | BinOp::Sub);
    let fits = if let Op::Bin { op: by, width: made, b: Val::Imm(imm), .. } = *maker {
        let shifts = matches!(by, BinOp::Shl | BinOp::Shr | BinOp::Sar) && (logic || sum) || by == BinOp::Rotl && logic;
        made == width
            && (shifts && (1..i64::from(crate::rules::bits(width))).contains(&imm)
                || by == BinOp::Xor && logic && imm == -1)
    } else if let Op::Bin { op: BinOp::Mul, width: made, .. } = *maker {
        sum && made == width
    } else if let Op::Mov { width: Width::W32, src: Val::Reg(_), .. } = *maker {
        sum && width == Width::W64
    } else if let Op::Ext { width: made, signed, from: Size::B | Size::H | Size::W, .. } = *maker {
        // What was extended to 32 bits is zero above.
        sum && (!signed || made == width || width == Width::W32)
    } else {
        false
    };
    let turned = a == v && op != BinOp::Sub;
    (fits && a != b && (b == v || turned)).then_some(v)
}

fn in_memory(maker: &Op, user: &Op) -> Option<VReg> {
    if let Op::Load { size, signed: false, swap: false, dst, mem } = *maker {
        if let Op::Bin { op, width, dst: result, a, b: Val::Reg(b) } = *user {
            let fits = access(width) == size && a != b && takes_memory(op) && !names(mem, result);
            let turned = a == dst && op != BinOp::Sub;
            return (fits && (b == dst || turned)).then_some(dst);
        }
        let Comparison { width, cond, a, b } = comparison(user, dst)?;
        return compared(size, dst, width, cond, a, b).map(|_| dst);
    }
    if let Op::Bin { op: BinOp::And, width, dst, a: x, b: mask } = *maker {
        let Comparison { width: tested, cond, a, b } = comparison(user, dst)?;
        let zero = matches!(cond, Cond::Eq | Cond::Ne) && matches!(b, Val::Imm(imm) if narrow(tested, imm as u64) == 0);
        let whole = tested == Width::W64 || width == Width::W32;
        return (a == dst && zero && whole && x != dst && mask != Val::Reg(dst)).then_some(dst);
    }
    None
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Comparison {
    width: Width,
    cond: Cond,
    a: VReg,
    b: Val,
}

/// What an op compares, if that is all it wants `v` for.
fn comparison(op: &Op, v: VReg) -> Option<Comparison> {
    if let Op::Branch { width, cond, a, b, .. } = *op {
        return Some(Comparison { width, cond, a, b });
    }
    if let Op::Select { width, cond, a, b, yes, no, .. } = *op
        && yes != v
        && no != v
    {
        return Some(Comparison { width, cond, a, b });
    }
    None
}

/// The comparison `a cond b` with its operand `v` left in memory, from where it was loaded in this size.
pub fn compared(size: Size, v: VReg, width: Width, cond: Cond, a: VReg, b: Val) -> Option<Compared> {
    let whole = access(width) == size;
    match b {
        // Bits above those in memory are shared with nothing.
        Val::Reg(b) if (a == v) != (b == v) && cond == Cond::Set && size == Size::B => Some(Compared::Bits),
        Val::Reg(b) if b == v && a != v => whole.then_some(Compared::WithMemory),
        Val::Reg(b) if b != v && a == v => whole.then_some(Compared::Memory),
        Val::Reg(_) => None,
        Val::Imm(imm) if a == v => {
            if whole {
                let imm = if width == Width::W32 { i64::from(crate::num::low(imm)) } else { imm };
                return Some(Compared::Constant { cond, imm: i32::try_from(imm).ok()? });
            }
            // What was loaded is zero above; so must the constant be, and then all comparisons are unsigned.
            let most = match size {
                Size::B => 0xff,
                // The bits of its low byte; a constant of two bytes makes an instruction slow to decode.
                Size::H if cond == Cond::Set => 0xff,
                Size::W => 0x7fff_ffff,
                Size::H | Size::DW => return None,
            };
            let imm = narrow(width, imm as u64);
            let imm = i32::try_from(imm).ok().filter(|_| imm <= most)?;
            Some(Compared::Constant { cond: unsigned(cond), imm })
        }
        Val::Imm(_) => None,
    }
}

/// The condition that says the same of numbers that are not negative.
fn unsigned(cond: Cond) -> Cond {
    match cond {
        Cond::SGt => Cond::Gt,
        Cond::SGe => Cond::Ge,
        Cond::SLt => Cond::Lt,
        Cond::SLe => Cond::Le,
        Cond::Eq | Cond::Ne | Cond::Gt | Cond::Ge | Cond::Lt | Cond::Le | Cond::Set => cond,
    }
}

fn takes_memory(op: BinOp) -> bool {
    match op {
        BinOp::Add | BinOp::Sub | BinOp::And | BinOp::Or | BinOp::Xor => true,
        // It would wait for its load in the queue of the one unit that multiplies, before others that could go on:
        // eight products a round took 1.32 times as long (AMD EPYC).
        BinOp::Mul
        | BinOp::MulHighU
        | BinOp::MulHighS
        | BinOp::Div
        | BinOp::SDiv
        | BinOp::Mod
        | BinOp::SMod
        | BinOp::Shl
        | BinOp::Shr
        | BinOp::Sar
        | BinOp::Rotl => false,
    }
}

fn names(mem: Mem, v: VReg) -> bool {
    match mem.base {
        Base::Reg(base) => base == v,
        Base::Frame => false,
        Base::Indexed { base, index, .. } => base == v || index == v,
    }
}

fn access(width: Width) -> Size {
    match width {
        Width::W32 => Size::W,
        Width::W64 => Size::DW,
    }
}

/// The memory that it works in.
#[derive(Debug, Default)]
pub(crate) struct Operands {
    /// By value: how often it is read.
    uses: Vec<u32>,
    /// By value: the op that defines it, if it is in the block at hand.
    defs: Vec<u32>,
}

impl Operands {
    /// Runs over `func`, which is in SSA form; says how many values were brought to their readers.
    pub(crate) fn run(&mut self, func: &mut Func, ssa: &Ssa, takes: Takes) -> u32 {
        let values = func.vregs as usize;
        self.uses.clear();
        self.uses.resize(values, 0);
        self.defs.clear();
        self.defs.resize(values, NONE);
        for op in func.all_ops() {
            op.for_each_use(|v| self.uses[v.index()] += 1);
        }
        for (block, phi) in ssa.all_phis() {
            for arg in ssa.args(block, phi) {
                self.uses[arg.index()] += 1;
            }
        }
        let mut done = 0;
        for i in 0..func.order.len() {
            let range = func.range(func.order[i]);
            for at in range.clone() {
                if let Some(v) = func.ops[at].def() {
                    self.defs[v.index()] = crate::num::small(at);
                }
                let mut found = None;
                func.ops[at].for_each_use(|v| {
                    let def = self.defs[v.index()] as usize;
                    let near = range.contains(&def) && def < at && at - def <= MAX_DISTANCE;
                    if near && self.uses[v.index()] == 1 && held(takes, &func.ops[def], &func.ops[at]) == Some(v) {
                        // The later one: it is the shorter way.
                        found = found.max(Some(def));
                    }
                });
                let Some(def) = found else { continue };
                let between = &func.ops[def + 1..at];
                let free = is_pure(&func.ops[def]);
                if between.is_empty() || !free && !between.iter().all(|op| is_pure(op) || matches!(op, Op::Load { .. }))
                {
                    continue;
                }
                func.ops[def..at].rotate_left(1);
                func.spans[def..at].rotate_left(1);
                for moved in def..at {
                    if let Some(v) = func.ops[moved].def() {
                        self.defs[v.index()] = crate::num::small(moved);
                    }
                }
                done += 1;
            }
            if takes == Takes::Memory {
                done += gather(func, range);
            }
        }
        done
    }
}

/// Brings selections by one comparison together, which is then made once: the first moves down to the second, or to the
/// branch that asks the same, past what does not read it. Two branches over one op each, by the same comparison, leave
/// them apart.
fn gather(func: &mut Func, range: core::ops::Range<usize>) -> u32 {
    let mut done = 0;
    let mut last: Option<(usize, VReg, Comparison)> = None;
    for at in range {
        let (by, selected) = if let Op::Select { width, cond, a, b, dst, .. } = func.ops[at] {
            (Comparison { width, cond, a, b }, Some(dst))
        } else if let Op::Branch { width, cond, a, b, .. } = func.ops[at] {
            (Comparison { width, cond, a, b }, None)
        } else {
            continue;
        };
        if let Some((first, made, same)) = last
            && (same == by || selected.is_none() && Comparison { cond: by.cond, ..same } == by)
            && (2..=MAX_DISTANCE).contains(&(at - first))
            && in_memory(&func.ops[at - 1], &func.ops[at]).is_none()
            && !func.ops[first + 1..at].iter().any(|op| reads(op, made))
        {
            func.ops[first..at].rotate_left(1);
            func.spans[first..at].rotate_left(1);
            done += 1;
        }
        last = selected.map(|dst| (at, dst, by));
    }
    done
}

fn reads(op: &Op, v: VReg) -> bool {
    let mut read = false;
    op.for_each_use(|used| read |= used == v);
    read
}
