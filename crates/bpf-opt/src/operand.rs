//! Values that the op that reads them makes on the way: by a load, a test, a shift, a product.
//!
//! A machine with memory operands adds, compares and so on with what a load would find, and tests the bits that two
//! operands share without computing them; one with shifted operands adds what it shifts, rotates, extends or
//! multiplies; and what a comparison carries is added without being a number ([`Takes`]). Nothing in the intermediate
//! form says so: a value that is read once, by the very next op, is [`held`] by the allocator and the emitter, both of
//! whom ask here. What is done to the form is to bring such pairs together: in SSA form, an op whose only reader stands
//! further down in its block moves down to it. So does a selection to the next one by the same comparison, or the
//! branch by the same operands, which are then compared once.
//!
//! Invariants: a load moves past nothing but ops that only compute and plain loads, so whatever a program writes,
//! checks or calls, it has done before a load that traps in an unverified program as before. At most [`MAX_DISTANCE`]
//! ops are moved up by one.

use crate::dead::is_pure;
use crate::faults::planted;
use crate::num::count;
use crate::ssa::{NONE, Ssa};
use bpf_isa::{Cond, Size, Width};
use bpf_lir::{Base, BinOp, Func, Mem, Op, VReg, Val, narrow};
use core::ops::Range;

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
    /// An operand from memory, and two of an `and` that is compared with zero; one side of a selection that is the
    /// other one and what a comparison carries.
    Memory,
    /// A second operand that is shifted or rotated by a constant, inverted, extended, or a product; a field of bits in
    /// place of two shifts, masks or extensions; an `and` that is compared with zero; one side of a selection that is a
    /// small constant, one more, inverted or negated; an index that is extended.
    Shifted,
}

/// The value that `user`, which comes right after `maker`, need not have in a register, if it is read nowhere else.
pub fn held(takes: Takes, maker: &Op, user: &Op) -> Option<VReg> {
    match takes {
        Takes::Memory => in_memory(maker, user),
        Takes::Shifted => {
            let v = maker.def()?;
            let taken = shifted(maker, user) == Some(v)
                || tested(maker, user) == Some(v)
                || field(maker, user).is_some()
                || side(maker, user).is_some()
                || extended_index(maker, user).is_some();
            taken.then_some(v)
        }
    }
}

/// Bits of a register, moved and extended: what `ubfx`, `sbfx`, `ubfiz` and `sbfiz` make.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Field {
    /// Of this register.
    pub src: VReg,
    /// The width of the result, which is zero above it.
    pub width: Width,
    /// Whether the highest bit fills what is above it.
    pub signed: bool,
    /// The lowest bit in the source.
    pub from: u8,
    /// Where that bit goes. It, or `from`, is 0.
    pub to: u8,
    /// How many bits.
    pub bits: u8,
}

/// What an op does to one register, as a [`Field`] of it, if it is one; both `from` and `to` may be other than 0.
fn one_field(op: &Op) -> Option<Field> {
    let whole = crate::rules::bits;
    Some(match *op {
        Op::Mov { width: Width::W32, src: Val::Reg(src), .. } => {
            Field { src, width: Width::W64, signed: false, from: 0, to: 0, bits: 32 }
        }
        Op::Ext { width, signed, from: from @ (Size::B | Size::H | Size::W), src, .. } => {
            let bits = count(8 * from.bytes());
            Field { src, width, signed, from: 0, to: 0, bits }
        }
        Op::Bin { op: BinOp::And, width, a: src, b: Val::Imm(imm), .. } => {
            let mask = narrow(width, imm as u64);
            let (from, bits) = (mask.trailing_zeros(), mask.count_ones());
            // A run of ones.
            if mask == 0 || u64::MAX >> (64 - bits) << from != mask {
                return None;
            }
            let from = count(from);
            Field { src, width, signed: false, from, to: from, bits: count(bits) }
        }
        Op::Bin { op: by @ (BinOp::Shl | BinOp::Shr | BinOp::Sar), width, a: src, b: Val::Imm(imm), .. } => {
            let n = u8::try_from(imm).ok().filter(|n| (1..whole(width)).contains(n))?;
            let (from, to) = if by == BinOp::Shl { (0, n) } else { (n, 0) };
            Field { src, width, signed: by == BinOp::Sar, from, to, bits: whole(width) - n }
        }
        Op::Mov { .. }
        | Op::Ext { .. }
        | Op::Bin { .. }
        | Op::Neg { .. }
        | Op::Bswap { .. }
        | Op::AddShift { .. }
        | Op::Select { .. }
        | Op::Confine { .. }
        | Op::FrameAddr { .. }
        | Op::SymAddr { .. }
        | Op::SubprogAddr { .. }
        | Op::Load { .. }
        | Op::Store { .. }
        | Op::LoadAcquire { .. }
        | Op::StoreRelease { .. }
        | Op::Atomic { .. }
        | Op::CmpXchg { .. }
        | Op::Call { .. }
        | Op::TailCall { .. }
        | Op::Check { .. }
        | Op::Bound { .. }
        | Op::Stop { .. }
        | Op::Jump { .. }
        | Op::Branch { .. }
        | Op::Exit { .. } => return None,
    })
}

/// The field that `user` makes of what `maker` reads, and of nothing else.
pub fn field(maker: &Op, user: &Op) -> Option<Field> {
    let (f, v) = (one_field(maker)?, maker.def()?);
    if let Op::Neg { width, src, .. } = *user {
        // One bit, all over.
        let bit = src == v && f.bits == 1 && !f.signed && f.to == 0;
        return (bit && f.from < crate::rules::bits(width)).then_some(Field { width, signed: true, ..f });
    }
    let g = one_field(user).filter(|g| g.src == v)?;
    let width = |width| i32::from(crate::rules::bits(width));
    let [f_from, f_to, f_bits, g_from, g_to, g_bits] = [f.from, f.to, f.bits, g.from, g.to, g.bits].map(i32::from);
    // Where the bits of `v` that are the field's begin and end, and those that `user` takes.
    let (begin, end) = (g_from.max(f_to), (g_from + g_bits).min(f_to + f_bits));
    let mut signed = g.signed;
    if g_from + g_bits > f_to + f_bits {
        // Above the field is its sign, as far as the maker's width, or nothing.
        if f.signed && (!g.signed || g_from + g_bits > width(f.width)) {
            return None;
        }
        signed = f.signed;
    }
    let (from, to) = (f_from + begin - f_to, g_to + begin - g_from);
    let bits = (end - begin).min(width(g.width) - to);
    let bits = if planted!(FieldsTooWide) { bits + 1 } else { bits };
    if bits <= 0 || from != 0 && to != 0 {
        return None;
    }
    let made = if from + bits <= width(g.width) {
        g.width
    } else if !signed && to + bits <= width(g.width) {
        Width::W64
    } else {
        return None;
    };
    let [from, to, bits] = [from, to, bits].map(|n| count(n.unsigned_abs()));
    Some(Field { src: f.src, width: made, signed, from, to, bits })
}

/// One side of a selection, made on the way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Side {
    /// It is the side that is taken where the condition holds.
    pub yes: bool,
    /// What it is made of; `None` is zero.
    pub of: Option<VReg>,
    /// How.
    pub as_: SideAs,
}

/// How one side of a selection is made of a register.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SideAs {
    /// It is that.
    Same,
    /// One more.
    Next,
    /// Each bit inverted.
    Inverted,
    /// Negated.
    Negated,
}

/// The side of the selection `user` that it makes on the way, as `maker` would.
pub fn side(maker: &Op, user: &Op) -> Option<Side> {
    let (v, Op::Select { a, b, yes, no, .. }) = (maker.def()?, *user) else { return None };
    if a == v || b == Val::Reg(v) || (yes == v) == (no == v) {
        return None;
    }
    let whole = |width| width == Width::W64 || planted!(SidesTooWide);
    let (of, as_) = match *maker {
        Op::Mov { width, src: Val::Imm(imm), .. } => match narrow(width, imm as u64) {
            0 => (None, SideAs::Same),
            1 => (None, SideAs::Next),
            u64::MAX => (None, SideAs::Inverted),
            _ => return None,
        },
        Op::Bin { op: BinOp::Add, width, a, b: Val::Imm(1), .. } if whole(width) => (Some(a), SideAs::Next),
        Op::Bin { op: BinOp::Xor, width, a, b: Val::Imm(-1), .. } if whole(width) => (Some(a), SideAs::Inverted),
        Op::Neg { width, src, .. } if whole(width) => (Some(src), SideAs::Negated),
        Op::Mov { .. }
        | Op::Ext { .. }
        | Op::Bin { .. }
        | Op::Neg { .. }
        | Op::Bswap { .. }
        | Op::AddShift { .. }
        | Op::Select { .. }
        | Op::Confine { .. }
        | Op::FrameAddr { .. }
        | Op::SymAddr { .. }
        | Op::SubprogAddr { .. }
        | Op::Load { .. }
        | Op::Store { .. }
        | Op::LoadAcquire { .. }
        | Op::StoreRelease { .. }
        | Op::Atomic { .. }
        | Op::CmpXchg { .. }
        | Op::Call { .. }
        | Op::TailCall { .. }
        | Op::Check { .. }
        | Op::Bound { .. }
        | Op::Stop { .. }
        | Op::Jump { .. }
        | Op::Branch { .. }
        | Op::Exit { .. } => return None,
    };
    Some(Side { yes: yes == v, of, as_ })
}

/// The register whose lower half, extended, is the index of the load or store `user`; whether by its sign.
pub fn extended_index(maker: &Op, user: &Op) -> Option<(VReg, bool)> {
    let v = maker.def()?;
    let mem = match *user {
        Op::Load { mem, .. } => mem,
        Op::Store { mem, src, .. } if src != Val::Reg(v) => mem,
        _ => return None,
    };
    let Base::Indexed { base, index, .. } = mem.base else { return None };
    let Field { src, width: Width::W64, signed, bits: 32, from: 0, to: 0 } = one_field(maker)? else { return None };
    (index == v && base != v).then_some((src, signed && !planted!(IndicesUnsigned)))
}

/// An `and`, if all that `user` wants to know is whether it is zero.
fn tested(maker: &Op, user: &Op) -> Option<VReg> {
    let Op::Bin { op: BinOp::And, width, dst, a: x, b: mask } = *maker else { return None };
    let Comparison { width: tested, cond, a, b } = comparison(user, dst)?;
    let zero = matches!(cond, Cond::Eq | Cond::Ne) && matches!(b, Val::Imm(imm) if narrow(tested, imm as u64) == 0);
    let whole = tested == Width::W64 || width == Width::W32 || planted!(TestsWhole);
    (a == dst && zero && whole && x != dst && mask != Val::Reg(dst)).then_some(dst)
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

/// A selection between a value and one more or one less, by a comparison that the carry tells: `adc`, `sbb`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Carried {
    /// What changes by one.
    pub of: VReg,
    /// Downward.
    pub less: bool,
    /// It changes where there is a carry; else where there is none.
    pub on_carry: bool,
    /// The two whose unsigned difference carries: where the first is below the second.
    pub a: VReg,
    /// The second.
    pub b: Val,
}

/// How a machine whose comparisons set a carry makes the selection `user` of what `maker` has for one of its sides.
pub fn carried(maker: &Op, user: &Op) -> Option<Carried> {
    let Op::Bin { op: BinOp::Add, width: Width::W64, dst: v, a: of, b: Val::Imm(by @ (1 | -1)) } = *maker else {
        return None;
    };
    let Op::Select { width, cond, a, b, yes, no, .. } = *user else { return None };
    let changes = (yes == v) != (no == v) && (yes == of || no == of);
    if !changes || a == v || b == Val::Reg(v) || of == v {
        return None;
    }
    // The first number above a constant, if there is one.
    let above = |imm: i64| {
        let imm = crate::rules::sign(width, imm as u64);
        (imm != -1).then_some(Val::Imm(imm.wrapping_add(1)))
    };
    let (a, b, holds) = match (cond, b) {
        (Cond::Lt, _) => (a, b, true),
        (Cond::Ge, _) => (a, b, false),
        (Cond::Gt, Val::Reg(b)) => (b, Val::Reg(a), true),
        (Cond::Le, Val::Reg(b)) => (b, Val::Reg(a), false),
        (Cond::Gt, Val::Imm(imm)) => (a, above(imm)?, false),
        (Cond::Le, Val::Imm(imm)) => (a, above(imm)?, true),
        (Cond::Eq | Cond::Ne, Val::Imm(imm)) if narrow(width, imm as u64) == 0 => (a, Val::Imm(1), cond == Cond::Eq),
        (Cond::Eq | Cond::Ne | Cond::Set | Cond::SGt | Cond::SGe | Cond::SLt | Cond::SLe, _) => return None,
    };
    let on_carry = holds == (yes == v) || planted!(CarriesIgnored);
    Some(Carried { of, less: by < 0, on_carry, a, b })
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
    if carried(maker, user).is_some() {
        return maker.def();
    }
    tested(maker, user)
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
                if takes == Takes::Memory {
                    self.count_from_zero(func, &range, at);
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

impl Operands {
    /// Makes of a 1, beside which a selection has 0, one more than that, where the machine then adds what it carries.
    fn count_from_zero(&mut self, func: &mut Func, block: &Range<usize>, at: usize) {
        let Op::Select { yes, no, .. } = func.ops[at] else { return };
        let constant = |v: VReg| {
            let def = self.defs[v.index()] as usize;
            match func.ops.get(def) {
                Some(Op::Mov { src: Val::Imm(imm), .. }) if block.contains(&def) => Some((*imm, def)),
                Some(_) | None => None,
            }
        };
        let (one, zero, [one_at, zero_at]) = match (constant(yes), constant(no)) {
            (Some((1, one_at)), Some((0, zero_at))) => (yes, no, [one_at, zero_at]),
            (Some((0, zero_at)), Some((1, one_at))) => (no, yes, [one_at, zero_at]),
            _ => return,
        };
        let made = Op::Bin { op: BinOp::Add, width: Width::W64, dst: one, a: zero, b: Val::Imm(1) };
        if self.uses[one.index()] != 1 || carried(&made, &func.ops[at]).is_none() {
            return;
        }
        func.ops[one_at] = made;
        self.uses[zero.index()] += 1;
        if one_at < zero_at {
            func.ops.swap(one_at, zero_at);
            func.spans.swap(one_at, zero_at);
            self.defs.swap(one.index(), zero.index());
        }
    }
}

/// Brings selections by one comparison together, which is then made once: the first moves down to the second, or to the
/// branch that asks the same, past what does not read it. Two branches over one op each, by the same comparison, leave
/// them apart.
fn gather(func: &mut Func, range: Range<usize>) -> u32 {
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

#[cfg(test)]
mod tests {
    use super::*;

    const X: VReg = VReg(0);
    const V: VReg = VReg(1);
    const R: VReg = VReg(2);

    /// Every op of one register that may be a field.
    fn ops(dst: VReg, src: VReg) -> Vec<Op> {
        let mut out = vec![Op::Mov { width: Width::W32, dst, src: Val::Reg(src) }];
        for width in [Width::W32, Width::W64] {
            out.push(Op::Neg { width, dst, src });
            let sizes = if width == Width::W32 { &[Size::B, Size::H][..] } else { &[Size::B, Size::H, Size::W] };
            for from in sizes.iter().copied() {
                out.extend([false, true].map(|signed| Op::Ext { width, signed, from, dst, src }));
            }
            let bits = i64::from(crate::rules::bits(width));
            for n in [1, 2, 7, 8, 15, 16, 17, 24, 31, 32, 33, 48, 62, 63].into_iter().filter(|n| *n < bits) {
                let op = |op, imm| Op::Bin { op, width, dst, a: src, b: Val::Imm(imm) };
                out.extend([BinOp::Shl, BinOp::Shr, BinOp::Sar].map(|by| op(by, n)));
                out.extend([!(-1 << n), 1 << n, 3 << n, -1 << n].map(|mask| op(BinOp::And, mask)));
            }
        }
        out
    }

    fn cut(width: Width, value: u64) -> u64 {
        narrow(width, value)
    }

    /// Bits `from ..` of `x`, so many, with their sign or zeros above.
    fn bits_of(x: u64, from: u8, bits: u8, signed: bool) -> u64 {
        let high = x << (64 - bits - from);
        if signed { (high as i64 >> (64 - bits)) as u64 } else { high >> (64 - bits) }
    }

    fn apply(op: &Op, x: u64) -> u64 {
        match *op {
            Op::Mov { width, .. } => cut(width, x),
            Op::Neg { width, .. } => cut(width, x.wrapping_neg()),
            Op::Ext { width, signed, from, .. } => cut(width, bits_of(x, 0, 8 * from.bytes() as u8, signed)),
            Op::Bin { op, width, b: Val::Imm(imm), .. } => {
                let x = cut(width, x);
                cut(
                    width,
                    match (op, width) {
                        (BinOp::And, _) => x & imm as u64,
                        (BinOp::Shl, _) => x << imm,
                        (BinOp::Shr, _) => x >> imm,
                        (BinOp::Sar, Width::W64) => (x as i64 >> imm) as u64,
                        (BinOp::Sar, Width::W32) => (x as u32 as i32 >> imm) as u64,
                        _ => unreachable!("{op:?}"),
                    },
                )
            }
            Op::Bin { .. }
            | Op::Bswap { .. }
            | Op::AddShift { .. }
            | Op::Select { .. }
            | Op::Confine { .. }
            | Op::FrameAddr { .. }
            | Op::SymAddr { .. }
            | Op::SubprogAddr { .. }
            | Op::Load { .. }
            | Op::Store { .. }
            | Op::LoadAcquire { .. }
            | Op::StoreRelease { .. }
            | Op::Atomic { .. }
            | Op::CmpXchg { .. }
            | Op::Call { .. }
            | Op::TailCall { .. }
            | Op::Check { .. }
            | Op::Bound { .. }
            | Op::Stop { .. }
            | Op::Jump { .. }
            | Op::Branch { .. }
            | Op::Exit { .. } => unreachable!("{op:?}"),
        }
    }

    /// How many pairs are one field, each compared over some values.
    fn compare() -> Result<usize, String> {
        let mut fields = 0;
        let values =
            [0, 1, u64::MAX, 1 << 31, 1 << 63, 0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210, 0xa5a5_5a5a_c3c3_3c3c];
        for maker in ops(V, X) {
            for user in ops(R, V) {
                let Some(Field { src, width, signed, from, to, bits }) = field(&maker, &user) else { continue };
                fields += 1;
                let whole = crate::rules::bits(width);
                if src != X || from != 0 && to != 0 || bits == 0 || from + bits > whole || to + bits > whole {
                    return Err(format!("{maker:?}; {user:?}: no machine has {from} {to} {bits}"));
                }
                for x in values {
                    let (two, one) = (apply(&user, apply(&maker, x)), bits_of(x, from, bits, signed));
                    let one = cut(width, one << to);
                    if two != one {
                        return Err(format!("{maker:?}; {user:?} of {x:#x}: {two:#x}, as a field {one:#x}"));
                    }
                }
            }
        }
        Ok(fields)
    }

    #[test]
    fn fields_are_what_both_ops_make() {
        let fields = compare().unwrap_or_else(|why| panic!("{why}"));
        assert!(fields > 2000, "{fields}");
    }

    #[cfg(feature = "faults")]
    #[test]
    fn a_field_too_wide_is_noticed() {
        crate::faults::plant(Some(crate::faults::Fault::FieldsTooWide));
        let compared = compare();
        crate::faults::plant(None);
        assert!(compared.is_err());
    }

    /// How many ops are an index that a load extends, each compared over some values.
    fn compare_indices() -> Result<usize, String> {
        let mem = Mem::new(Base::Indexed { base: R, index: V, shift: 3 }, 0);
        let user = Op::Load { size: Size::DW, signed: false, swap: false, dst: R, mem };
        let mut indices = 0;
        for maker in ops(V, X) {
            let Some((src, signed)) = extended_index(&maker, &user) else { continue };
            indices += 1;
            for x in [0, 1, u64::MAX, 1 << 31, 1 << 63, 0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210] {
                let (made, taken) = (apply(&maker, x), bits_of(x, 0, 32, signed));
                if src != X || made != taken {
                    return Err(format!("{maker:?} of {x:#x}: {made:#x}, as an index {taken:#x}"));
                }
            }
        }
        Ok(indices)
    }

    #[test]
    fn indices_are_what_ops_make() {
        let indices = compare_indices().unwrap_or_else(|why| panic!("{why}"));
        // By zeros, as a copy, an extension and a mask say it; and by the sign.
        assert!(indices >= 3, "{indices}");
    }

    #[cfg(feature = "faults")]
    #[test]
    fn an_index_without_its_sign_is_noticed() {
        crate::faults::plant(Some(crate::faults::Fault::IndicesUnsigned));
        let compared = compare_indices();
        crate::faults::plant(None);
        assert!(compared.is_err());
    }

    /// How many selections are what a comparison carries, each compared over values about the constants.
    fn compare_carried() -> Result<usize, String> {
        use Cond::*;
        let values =
            [0, 1, 2, 76, 77, 78, 0x7fff_ffff, 0x8000_0000, u64::MAX >> 32, 1 << 32, 1 << 63, u64::MAX - 1, u64::MAX];
        let (a, other) = (VReg(3), VReg(4));
        let mut carries = 0;
        let constants =
            [0, 1, 77, -1, -2, i64::from(i32::MAX), i64::from(i32::MIN), u32::MAX.into(), i64::MAX, i64::MIN];
        let seconds: Vec<Val> = constants.map(Val::Imm).into_iter().chain([Val::Reg(other)]).collect();
        for cond in [Eq, Ne, Gt, Ge, Lt, Le, Set, SGt, SGe, SLt, SLe] {
            for (b, width, by, is_yes) in seconds.iter().flat_map(|b| {
                let cases =
                    [Width::W32, Width::W64].map(|w| [(w, 1, true), (w, 1, false), (w, -1, true), (w, -1, false)]);
                cases.into_iter().flatten().map(|(w, by, yes)| (*b, w, by, yes))
            }) {
                let maker = Op::Bin { op: BinOp::Add, width: Width::W64, dst: V, a: X, b: Val::Imm(by) };
                let (yes, no) = if is_yes { (V, X) } else { (X, V) };
                let user = Op::Select { width, cond, a, b, dst: R, yes, no };
                let Some(Carried { of, less, on_carry, a: first, b: second }) = carried(&maker, &user) else {
                    continue;
                };
                carries += 1;
                for (x, y) in values.iter().flat_map(|x| values.map(|y| (*x, y))) {
                    let value = |v: Val| match v {
                        Val::Imm(imm) => imm as u64,
                        Val::Reg(v) => {
                            if v == a {
                                x
                            } else {
                                y
                            }
                        }
                    };
                    let changed = cond.holds(width, x, value(b)) == is_yes;
                    let carry = narrow(width, value(Val::Reg(first))) < narrow(width, value(second));
                    if of != X || less != (by < 0) || changed != (carry == on_carry) {
                        return Err(format!("{maker:?}; {user:?} of {x:#x}, {y:#x}"));
                    }
                }
            }
        }
        Ok(carries)
    }

    #[test]
    fn what_is_carried_is_what_is_selected() {
        let carries = compare_carried().unwrap_or_else(|why| panic!("{why}"));
        // Four for each width, of each of the unsigned conditions with a register and with most constants.
        assert!(carries > 4 * 2 * 4 * 9, "{carries}");
    }

    #[cfg(feature = "faults")]
    #[test]
    fn a_carry_that_is_ignored_is_noticed() {
        crate::faults::plant(Some(crate::faults::Fault::CarriesIgnored));
        let compared = compare_carried();
        crate::faults::plant(None);
        assert!(compared.is_err());
    }

    /// The sides of a selection that a machine makes on the way, and what it does not.
    #[test]
    fn sides_of_selections() {
        let user = Op::Select { width: Width::W64, cond: Cond::Gt, a: X, b: Val::Imm(7), dst: R, yes: V, no: VReg(3) };
        let constant = |width, imm| side(&Op::Mov { width, dst: V, src: Val::Imm(imm) }, &user);
        let made = |of, as_| Some(Side { yes: true, of, as_ });
        assert_eq!(constant(Width::W64, 0), made(None, SideAs::Same));
        assert_eq!(constant(Width::W32, 1), made(None, SideAs::Next));
        assert_eq!(constant(Width::W64, -1), made(None, SideAs::Inverted));
        // The selection is of 64 bits: this one is zero above.
        assert_eq!(constant(Width::W32, -1), None);
        let next = |width| Op::Bin { op: BinOp::Add, width, dst: V, a: X, b: Val::Imm(1) };
        assert_eq!(side(&next(Width::W64), &user), made(Some(X), SideAs::Next));
        assert_eq!(side(&next(Width::W32), &user), None);
        assert_eq!(side(&Op::Neg { width: Width::W64, dst: V, src: X }, &user), made(Some(X), SideAs::Negated));
        let compared = Op::Select { width: Width::W64, cond: Cond::Gt, a: V, b: Val::Imm(7), dst: R, yes: V, no: X };
        assert_eq!(side(&next(Width::W64), &compared), None);
    }
}
