//! A machine, as the allocator sees it: data.
//!
//! Which registers there are, which a call preserves, and which operations insist on particular ones (x86-64: division
//! in rax:rdx, a variable shift's count in rcx, cmpxchg in rax). Operations are grouped into [`OpClass`]es by their
//! demands, and the machine answers for each class, so the allocator has no case for any architecture.

use bpf_lir::{AtomicOp, BinOp, Op, Val};
use bpf_opt::Addresses;

/// Number of a host register, as the architecture encodes it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct HostReg(pub u8);

/// A set of host registers (at most 32).
#[derive(Clone, Copy, PartialEq, Eq, Default, Hash, Debug)]
pub struct HostRegSet(pub u32);

impl HostRegSet {
    /// No register.
    pub const EMPTY: HostRegSet = HostRegSet(0);

    /// The set of these registers.
    pub const fn of(regs: &[HostReg]) -> HostRegSet {
        let mut bits = 0;
        let mut i = 0;
        while i < regs.len() {
            bits |= 1 << regs[i].0;
            i += 1;
        }
        HostRegSet(bits)
    }
    /// Whether `reg` is in it.
    pub const fn contains(self, reg: HostReg) -> bool {
        self.0 & 1 << reg.0 != 0
    }
    /// Adds a register.
    pub fn insert(&mut self, reg: HostReg) {
        self.0 |= 1 << reg.0;
    }
    /// Both.
    #[must_use]
    pub const fn union(self, other: HostRegSet) -> HostRegSet {
        HostRegSet(self.0 | other.0)
    }
    /// Those in `self` and `other`.
    #[must_use]
    pub const fn intersection(self, other: HostRegSet) -> HostRegSet {
        HostRegSet(self.0 & other.0)
    }
    /// Those in `self` and not in `other`.
    #[must_use]
    pub const fn without(self, other: HostRegSet) -> HostRegSet {
        HostRegSet(self.0 & !other.0)
    }
    /// Whether there is none.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
    /// How many.
    pub const fn len(self) -> u32 {
        self.0.count_ones()
    }
    /// The registers, ascending by number.
    pub fn iter(self) -> impl Iterator<Item = HostReg> {
        let mut bits = self.0;
        core::iter::from_fn(move || {
            (bits != 0).then(|| {
                #[expect(clippy::cast_possible_truncation, reason = "64 at most")]
                let reg = HostReg(bits.trailing_zeros() as u8);
                bits &= bits - 1;
                reg
            })
        })
    }
}

/// Operations grouped by what they may demand of registers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(usize)]
pub enum OpClass {
    /// No demands.
    Plain,
    /// Division, quotient wanted, by a register.
    Div,
    /// Division, remainder wanted, by a register.
    Mod,
    /// Division, quotient wanted, by a constant.
    DivImm,
    /// Division, remainder wanted, by a constant.
    ModImm,
    /// High half of a product.
    MulHigh,
    /// Shift or rotation by a register.
    ShiftReg,
    /// Atomic and/or/xor that fetches (x86-64: a cmpxchg loop).
    AtomicLogicFetch,
    /// Other atomics.
    Atomic,
    /// Compare and exchange.
    CmpXchg,
    /// Call: arguments, result and clobbers are the machine's calling convention.
    Call,
    /// Tail call.
    TailCall,
}

impl OpClass {
    /// Number of classes.
    pub const COUNT: usize = OpClass::TailCall as usize + 1;

    /// The class of an op.
    #[inline]
    pub fn of(op: &Op) -> OpClass {
        match *op {
            Op::Bin { op, b, .. } => match (op, b) {
                (BinOp::Div | BinOp::SDiv, Val::Reg(_)) => OpClass::Div,
                (BinOp::Mod | BinOp::SMod, Val::Reg(_)) => OpClass::Mod,
                (BinOp::Div | BinOp::SDiv, Val::Imm(_)) => OpClass::DivImm,
                (BinOp::Mod | BinOp::SMod, Val::Imm(_)) => OpClass::ModImm,
                (BinOp::MulHighU | BinOp::MulHighS, _) => OpClass::MulHigh,
                (BinOp::Shl | BinOp::Shr | BinOp::Sar | BinOp::Rotl, Val::Reg(_)) => OpClass::ShiftReg,
                (BinOp::Shl | BinOp::Shr | BinOp::Sar | BinOp::Rotl, Val::Imm(_)) => OpClass::Plain,
                (BinOp::Add | BinOp::Sub | BinOp::Mul | BinOp::And | BinOp::Or | BinOp::Xor, _) => OpClass::Plain,
            },
            Op::Atomic { op: AtomicOp::And | AtomicOp::Or | AtomicOp::Xor, fetch: Some(_), .. } => {
                OpClass::AtomicLogicFetch
            }
            Op::Atomic { .. } => OpClass::Atomic,
            Op::CmpXchg { .. } => OpClass::CmpXchg,
            Op::Call { .. } => OpClass::Call,
            Op::TailCall { .. } => OpClass::TailCall,
            Op::Mov { .. }
            | Op::Ext { .. }
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
            | Op::Check { .. }
            | Op::Bound { .. }
            | Op::Stop { .. }
            | Op::Jump { .. }
            | Op::Branch { .. }
            | Op::Exit { .. } => OpClass::Plain,
        }
    }
}

/// What a class of operations demands.
///
/// Only `clobbers` is a promise the allocator keeps; the rest saves moves, and a backend copes with anything else.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct FixedOperands {
    /// Overwritten by the op: no value that lives *across* it is kept there.
    pub clobbers: HostRegSet,
    /// The second operand of a `Bin` is better not here (it may be all the same, where it is also the first).
    pub avoid: HostRegSet,
    /// Where the first operand (`a` of a `Bin`, `expected` of a `CmpXchg`) is best.
    pub first: Option<HostReg>,
    /// Where the second operand (`b` of a `Bin`) is best.
    pub second: Option<HostReg>,
    /// Where the result is best.
    pub result: Option<HostReg>,
}

impl FixedOperands {
    /// No demands.
    pub const NONE: FixedOperands = FixedOperands {
        clobbers: HostRegSet::EMPTY,
        avoid: HostRegSet::EMPTY,
        first: None,
        second: None,
        result: None,
    };

    /// Whether nothing is demanded.
    pub fn is_plain(&self) -> bool {
        *self == FixedOperands::NONE
    }
}

/// A machine.
#[derive(Clone, Debug)]
pub struct MachineDesc {
    /// Registers the allocator may use, the cheapest to encode first, for values that do not live across calls.
    pub pool: &'static [HostReg],
    /// Registers a call preserves, in the order in which they are best taken; all of them in `pool`.
    pub callee_saved: &'static [HostReg],
    /// The set of `pool`.
    pub pool_set: HostRegSet,
    /// The set of `callee_saved`.
    pub saved_set: HostRegSet,
    /// Where r1 to r5 are at entry and at calls.
    pub args: [HostReg; 5],
    /// Where the hidden argument is.
    pub ctx: HostReg,
    /// Where the result is.
    pub ret: HostReg,
    /// Taken out of the pool in a function that has a BPF stack.
    pub frame: Option<HostReg>,
    /// Which addresses loads and stores take.
    pub addresses: Addresses,
    /// Demands by class, indexed by [`OpClass`]. Those of `Call` follow from the fields above and need no entry.
    pub fixed: [FixedOperands; OpClass::COUNT],
}

impl MachineDesc {
    /// Registers a call overwrites, of those in the pool.
    pub fn call_clobbers(&self) -> HostRegSet {
        self.pool_set.without(self.saved_set)
    }

    /// The register of the set that comes first in the pool.
    pub fn cheapest(&self, set: HostRegSet) -> Option<HostReg> {
        if set.len() <= 1 {
            return set.iter().next();
        }
        self.pool.iter().copied().find(|r| set.contains(*r))
    }

    /// The demands of an op.
    #[inline]
    pub fn fixed(&self, op: &Op) -> &FixedOperands {
        &self.fixed[OpClass::of(op) as usize]
    }
}
