//! Moves a value down to its one reader, if the machine can compute both in one instruction.
//!
//! A machine with memory operands (x86-64) adds, compares and so on with a value in memory, tests the bits that two
//! operands share without computing them, and adds or subtracts the carry of a comparison. A machine with shifted
//! operands (arm64) shifts, rotates, extends or multiplies a second operand within one instruction ([`Takes`]). The
//! intermediate form does not express this. Instead, a value that is read once, by the next op, may need no register:
//! [`held`] decides, and both the allocator and the emitters ask it. This pass brings such pairs together, in SSA form:
//! an op whose only reader stands further down in its block moves down to the reader. A selection also moves down to
//! the next selection by the same comparison, or to the branch that compares the same operands, so that the comparison
//! is made once.
//!
//! Invariants: a load moves only past ops that compute and plain loads. Everything that an unverified program writes,
//! checks or calls before a load that traps, it still does before that load. An op moves past at most [`MAX_DISTANCE`]
//! others.

use crate::dead::is_pure;
use crate::faults::planted;
use crate::num::count;
use crate::ssa::{NONE, Ssa};
use bpf_isa::{Cond, Size, Width};
use bpf_lir::{Base, BinOp, Func, Mem, Op, VReg, Val, narrow};
use core::ops::Range;

/// The greatest distance in ops over which a value moves.
const MAX_DISTANCE: usize = 24;

/// How a machine with memory operands makes a comparison with one operand in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Compared {
    /// The comparison of memory, at the size of the load, with a register.
    Memory,
    /// The comparison of a register with memory of the comparison's width.
    WithMemory,
    /// The test whether the low byte of a register and a byte in memory have common bits.
    Bits,
    /// The comparison of memory, at the size of the load, with a constant of at most 32 bits. If the load zero-extends,
    /// the condition is an unsigned one.
    Constant {
        /// The condition of the comparison.
        cond: Cond,
        /// The constant, sign-extended to the size of the load.
        imm: i32,
    },
}

/// The operands that a machine's ops take in place of a register.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Takes {
    /// An operand from memory; an `and` whose result is only compared with zero; as one operand of a selection, the
    /// other operand plus or minus the carry of the comparison (x86-64).
    Memory,
    /// A second operand that is shifted or rotated by a constant, inverted, extended, or a product; a bit field in
    /// place of two shifts, masks or extensions; an `and` whose result is only compared with zero; as one operand of a
    /// selection, a small constant, or a value plus one, inverted or negated; an extended index (arm64).
    Shifted,
}

/// Returns the value that `maker` defines, if `user`, which follows `maker`, can compute it in place of reading a
/// register. The caller makes sure that nothing else reads the value.
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

/// A bit field of a register, moved and extended: the result of `ubfx`, `sbfx`, `ubfiz` or `sbfiz`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Field {
    /// The register.
    pub src: VReg,
    /// The width of the result, whose bits above the width are zero.
    pub width: Width,
    /// Whether the field's highest bit is copied to the bits above it; otherwise those are zero.
    pub signed: bool,
    /// The field's lowest bit in the source, from 0.
    pub from: u8,
    /// The position of that bit in the result. `from` or `to` is 0.
    pub to: u8,
    /// The number of bits.
    pub bits: u8,
}

/// Returns the effect of an op on one register as a [`Field`] of the register, if it is one. Both `from` and `to` may
/// differ from 0.
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
            // The mask is a run of ones.
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

/// Returns the field of `maker`'s operand that `maker` and `user` together compute.
pub fn field(maker: &Op, user: &Op) -> Option<Field> {
    let (f, v) = (one_field(maker)?, maker.def()?);
    if let Op::Neg { width, src, .. } = *user {
        // The negation of one bit is that bit in all positions.
        let bit = src == v && f.bits == 1 && !f.signed && f.to == 0;
        return (bit && f.from < crate::rules::bits(width)).then_some(Field { width, signed: true, ..f });
    }
    let g = one_field(user).filter(|g| g.src == v)?;
    let width = |width| i32::from(crate::rules::bits(width));
    let [f_from, f_to, f_bits, g_from, g_to, g_bits] = [f.from, f.to, f.bits, g.from, g.to, g.bits].map(i32::from);
    // Where the field's bits begin and end in `v`, limited to the bits that `user` takes.
    let (begin, end) = (g_from.max(f_to), (g_from + g_bits).min(f_to + f_bits));
    let mut signed = g.signed;
    if g_from + g_bits > f_to + f_bits {
        // `user` also takes bits above the field: copies of its sign up to the maker's width, or zeros.
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

/// An operand of a selection that the selection computes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Side {
    /// Whether the selection chooses it if its condition holds.
    pub yes: bool,
    /// The register that it is computed from; `None` stands for zero.
    pub of: Option<VReg>,
    /// The computation.
    pub as_: SideAs,
}

/// How a selection computes one of its operands from a register.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SideAs {
    /// The value as it is.
    Same,
    /// The value plus one.
    Next,
    /// The value with each bit inverted.
    Inverted,
    /// The value negated.
    Negated,
}

/// Returns the operand of the selection `user` that the selection can compute in place of `maker`.
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

/// Returns the register whose lower half, extended, is the index of the load or store `user`, and whether the extension
/// is by sign.
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

/// Returns the result of `maker`, an `and`, if `user` only compares the result with zero.
fn tested(maker: &Op, user: &Op) -> Option<VReg> {
    let Op::Bin { op: BinOp::And, width, dst, a: x, b: mask } = *maker else { return None };
    let Comparison { width: tested, cond, a, b } = comparison(user, dst)?;
    let zero = matches!(cond, Cond::Eq | Cond::Ne) && matches!(b, Val::Imm(imm) if narrow(tested, imm as u64) == 0);
    let whole = tested == Width::W64 || width == Width::W32 || planted!(TestsWhole);
    (a == dst && zero && whole && x != dst && mask != Val::Reg(dst)).then_some(dst)
}

/// Returns the result of `maker` if the machine can compute it as the second operand of the arithmetic `user`.
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
        // An extension to 32 bits leaves zeros above.
        sum && (!signed || made == width || width == Width::W32)
    } else {
        false
    };
    let turned = a == v && op != BinOp::Sub;
    (fits && a != b && (b == v || turned)).then_some(v)
}

/// A selection between a value and the value plus or minus one, by a comparison whose carry decides: `adc`, `sbb`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Carried {
    /// The value that is changed by one.
    pub of: VReg,
    /// Whether one is subtracted; otherwise it is added.
    pub less: bool,
    /// Whether the value changes if there is a carry; otherwise it changes if there is none.
    pub on_carry: bool,
    /// The first operand of the comparison, which carries if the first operand is below the second, unsigned.
    pub a: VReg,
    /// The second operand of the comparison.
    pub b: Val,
}

/// Returns how a machine whose comparisons set a carry makes the selection `user` between a value and the sum that
/// `maker` computes.
pub fn carried(maker: &Op, user: &Op) -> Option<Carried> {
    let Op::Bin { op: BinOp::Add, width: Width::W64, dst: v, a: of, b: Val::Imm(by @ (1 | -1)) } = *maker else {
        return None;
    };
    let Op::Select { width, cond, a, b, yes, no, .. } = *user else { return None };
    let changes = (yes == v) != (no == v) && (yes == of || no == of);
    if !changes || a == v || b == Val::Reg(v) || of == v {
        return None;
    }
    // The constant plus one, if that does not wrap.
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

/// Returns the comparison that an op makes, if the op reads `v` only as an operand of that comparison.
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

/// Returns how the machine makes the comparison `a cond b` with its operand `v` left in memory, from where `v` was
/// loaded with this size.
pub fn compared(size: Size, v: VReg, width: Width, cond: Cond, a: VReg, b: Val) -> Option<Compared> {
    let whole = access(width) == size;
    match b {
        // Bits above the byte in memory are zero and common to nothing.
        Val::Reg(b) if (a == v) != (b == v) && cond == Cond::Set && size == Size::B => Some(Compared::Bits),
        Val::Reg(b) if b == v && a != v => whole.then_some(Compared::WithMemory),
        Val::Reg(b) if b != v && a == v => whole.then_some(Compared::Memory),
        Val::Reg(_) => None,
        Val::Imm(imm) if a == v => {
            if whole {
                let imm = if width == Width::W32 { i64::from(crate::num::low(imm)) } else { imm };
                return Some(Compared::Constant { cond, imm: i32::try_from(imm).ok()? });
            }
            // The load zero-extends. The constant must have no higher bits either, so the comparison is one of unsigned
            // numbers.
            let most = match size {
                Size::B => 0xff,
                // Only the low byte of memory is tested. A constant of two bytes would make the instruction slow to
                // decode.
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

/// Returns the condition on unsigned numbers that is equivalent if both numbers are not negative.
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
        // A product with a memory operand would wait for its load in the queue of the one multiplication unit, and
        // delay other products that could start.
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

/// Scratch memory of the pass, reused from function to function.
#[derive(Debug, Default)]
pub(crate) struct Operands {
    /// By value: how many reads it has.
    uses: Vec<u32>,
    /// By value: the index of the op that defines it, which must be in the current block to be used.
    defs: Vec<u32>,
}

impl Operands {
    /// Runs the pass over `func`, which is in SSA form; returns how many ops moved.
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
                        // The operand defined later is closer to the comparison.
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
    /// In a selection between the constants 1 and 0, defines the 1 as the 0 plus one, if the machine then adds the
    /// carry of the comparison.
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

/// Brings selections by one comparison together, so that the comparison is made once: the first moves down to the
/// second, or to the branch that compares the same operands, past ops that do not read its result. `convert` makes such
/// selections from two branches with the same comparison.
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

    /// Returns ops of one register, many of which are bit fields.
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

    /// Returns the `bits` bits of `x` from bit `from` on, extended by sign or zeros.
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

    /// Compares each pair of ops that is one field with that field over some values; returns the number of such pairs.
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

    /// Compares each op that is an extended index with the index that the load extends, over some values; returns the
    /// number of such ops.
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
        // Zero extension is written as a copy, as an extension and as a mask; sign extension as an extension.
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

    /// Compares each selection that a carry decides with the carry, over values around the constants; returns the
    /// number of such selections.
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
        // At least four selections for each width, each of the four ordered unsigned conditions, and each of nine
        // second operands.
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

    /// Checks which operands of a selection are computed by the selection, and which are not.
    #[test]
    fn sides_of_selections() {
        let user = Op::Select { width: Width::W64, cond: Cond::Gt, a: X, b: Val::Imm(7), dst: R, yes: V, no: VReg(3) };
        let constant = |width, imm| side(&Op::Mov { width, dst: V, src: Val::Imm(imm) }, &user);
        let made = |of, as_| Some(Side { yes: true, of, as_ });
        assert_eq!(constant(Width::W64, 0), made(None, SideAs::Same));
        assert_eq!(constant(Width::W32, 1), made(None, SideAs::Next));
        assert_eq!(constant(Width::W64, -1), made(None, SideAs::Inverted));
        // The selection has 64 bits, but this constant is zero above its lower half.
        assert_eq!(constant(Width::W32, -1), None);
        let next = |width| Op::Bin { op: BinOp::Add, width, dst: V, a: X, b: Val::Imm(1) };
        assert_eq!(side(&next(Width::W64), &user), made(Some(X), SideAs::Next));
        assert_eq!(side(&next(Width::W32), &user), None);
        assert_eq!(side(&Op::Neg { width: Width::W64, dst: V, src: X }, &user), made(Some(X), SideAs::Negated));
        let compared = Op::Select { width: Width::W64, cond: Cond::Gt, a: V, b: Val::Imm(7), dst: R, yes: V, no: X };
        assert_eq!(side(&next(Width::W64), &compared), None);
    }
}
