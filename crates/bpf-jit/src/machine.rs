//! A machine as data, for the allocator.
//!
//! The data say which registers there are, which of them a call preserves, and which operations require particular ones
//! (x86-64: division in rax:rdx, a variable shift's count in rcx, cmpxchg in rax). Operations are grouped into
//! [`OpClass`]es by their requirements, and the machine has an entry for each class, so the allocator has no case for
//! any architecture.

use bpf_lir::{AtomicOp, BinOp, Op, Val};
use bpf_opt::Addresses;

/// Number of a host register, as the architecture encodes it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct HostReg(pub u8);

/// A set of host registers, numbered from 0 to 31.
#[derive(Clone, Copy, PartialEq, Eq, Default, Hash, Debug)]
pub struct HostRegSet(pub u32);

impl HostRegSet {
    /// The empty set.
    pub const EMPTY: HostRegSet = HostRegSet(0);

    /// Returns the set of these registers.
    pub const fn of(regs: &[HostReg]) -> HostRegSet {
        let mut bits = 0;
        let mut i = 0;
        while i < regs.len() {
            bits |= 1 << regs[i].0;
            i += 1;
        }
        HostRegSet(bits)
    }
    /// Whether `reg` is in the set.
    pub const fn contains(self, reg: HostReg) -> bool {
        self.0 & 1 << reg.0 != 0
    }
    /// Adds a register.
    pub fn insert(&mut self, reg: HostReg) {
        self.0 |= 1 << reg.0;
    }
    /// Returns the registers that are in `self` or `other`.
    #[must_use]
    pub const fn union(self, other: HostRegSet) -> HostRegSet {
        HostRegSet(self.0 | other.0)
    }
    /// Returns the registers that are in `self` and in `other`.
    #[must_use]
    pub const fn intersection(self, other: HostRegSet) -> HostRegSet {
        HostRegSet(self.0 & other.0)
    }
    /// Returns the registers that are in `self` and not in `other`.
    #[must_use]
    pub const fn without(self, other: HostRegSet) -> HostRegSet {
        HostRegSet(self.0 & !other.0)
    }
    /// Whether the set is empty.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
    /// Returns the number of registers.
    pub const fn len(self) -> u32 {
        self.0.count_ones()
    }
    /// Returns the registers, ascending by number.
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

/// Operations grouped by their requirements on registers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(usize)]
pub enum OpClass {
    /// No requirements.
    Plain,
    /// Quotient of a division by a register.
    Div,
    /// Remainder of a division by a register.
    Mod,
    /// Quotient of a division by a constant.
    DivImm,
    /// Remainder of a division by a constant.
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
    /// Call: the machine's calling convention gives arguments, result and clobbers.
    Call,
    /// Tail call.
    TailCall,
}

impl OpClass {
    /// Number of classes.
    pub const COUNT: usize = OpClass::TailCall as usize + 1;

    /// Returns the class of an op.
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

/// The requirements of a class of operations.
///
/// The allocator guarantees `clobbers` only. The other fields save moves, and a backend copes with any registers.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct FixedOperands {
    /// Registers that the op overwrites: no value that lives *across* the op is in one of them.
    pub clobbers: HostRegSet,
    /// Registers that the second operand of a `Bin` should not be in. It may be there if it is also the first operand.
    pub avoid: HostRegSet,
    /// The preferred register of the first operand (`a` of a `Bin`, `expected` of a `CmpXchg`).
    pub first: Option<HostReg>,
    /// The preferred register of the second operand (`b` of a `Bin`).
    pub second: Option<HostReg>,
    /// The preferred register of the result.
    pub result: Option<HostReg>,
}

impl FixedOperands {
    /// No requirements.
    pub const NONE: FixedOperands = FixedOperands {
        clobbers: HostRegSet::EMPTY,
        avoid: HostRegSet::EMPTY,
        first: None,
        second: None,
        result: None,
    };

    /// Whether there are no requirements.
    pub fn is_plain(&self) -> bool {
        *self == FixedOperands::NONE
    }
}

/// A machine, as the allocator and the passes see it.
#[derive(Clone, Debug)]
pub struct MachineDesc {
    /// Registers that the allocator may use, in order of preference for values that do not live across calls: the
    /// cheapest to encode first.
    pub pool: &'static [HostReg],
    /// Registers that a call preserves, in order of preference. All of them are in `pool`.
    pub callee_saved: &'static [HostReg],
    /// `pool` as a set.
    pub pool_set: HostRegSet,
    /// `callee_saved` as a set.
    pub saved_set: HostRegSet,
    /// The registers that hold r1 to r5 at entry and at calls.
    pub args: [HostReg; 5],
    /// The register that holds the hidden argument at entry and at calls.
    pub ctx: HostReg,
    /// The register that holds the result at exits and behind calls.
    pub ret: HostReg,
    /// The register of the pool that holds the frame address in a function with a BPF stack, where the allocator does
    /// not use it; `None` if the machine keeps the frame address outside of the pool.
    pub frame: Option<HostReg>,
    /// Properties that passes depend on: addressing modes, operands, constants and registers.
    pub addresses: Addresses,
    /// Requirements by class, indexed by [`OpClass`]. The entry of `Call` is unused, since its requirements follow from
    /// the fields above.
    pub fixed: [FixedOperands; OpClass::COUNT],
}

impl MachineDesc {
    /// Returns the registers of the pool that a call overwrites.
    pub fn call_clobbers(&self) -> HostRegSet {
        self.pool_set.without(self.saved_set)
    }

    /// Returns the register of the set that comes first in the pool.
    pub fn cheapest(&self, set: HostRegSet) -> Option<HostReg> {
        if set.len() <= 1 {
            return set.iter().next();
        }
        self.pool.iter().copied().find(|r| set.contains(*r))
    }

    /// Returns the requirements of an op.
    #[inline]
    pub fn fixed(&self, op: &Op) -> &FixedOperands {
        &self.fixed[OpClass::of(op) as usize]
    }
}
