//! Which registers an instruction reads and writes.

use bpf_isa::{AtomicOp, Callee, Insn, Reg, Src};
use core::fmt;

/// A set of BPF registers.
#[derive(Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct RegSet(u16);

impl RegSet {
    /// No register.
    pub const EMPTY: RegSet = RegSet(0);
    /// r1 to r5.
    pub const ARGS: RegSet = RegSet(0b11_1110);
    /// r6 to r9.
    pub const SAVED: RegSet = RegSet(0b11_1100_0000);
    /// r0 to r5: what a call clobbers.
    pub const CALLER_SAVED: RegSet = RegSet(0b11_1111);

    /// r1 up to the `n`th argument register.
    pub const fn args(n: u8) -> RegSet {
        RegSet(((1 << (if n > 5 { 5 } else { n })) - 1) << 1)
    }
    /// The set of one register.
    pub const fn of(reg: Reg) -> RegSet {
        RegSet(1 << reg as u16)
    }
    /// Whether `reg` is in it.
    pub const fn contains(self, reg: Reg) -> bool {
        self.0 & 1 << reg as u16 != 0
    }
    /// Both.
    #[must_use]
    pub const fn union(self, other: RegSet) -> RegSet {
        RegSet(self.0 | other.0)
    }
    /// Returns the registers in both `self` and `other`.
    #[must_use]
    pub const fn intersection(self, other: RegSet) -> RegSet {
        RegSet(self.0 & other.0)
    }
    /// Returns the registers in `self` and not in `other`.
    #[must_use]
    pub const fn without(self, other: RegSet) -> RegSet {
        RegSet(self.0 & !other.0)
    }
    /// Whether the set has no register.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
    /// The registers, ascending.
    pub fn iter(self) -> impl Iterator<Item = Reg> {
        let mut bits = self.0;
        core::iter::from_fn(move || {
            let reg = u8::try_from(bits.trailing_zeros()).ok().and_then(Reg::new)?;
            bits &= bits - 1;
            Some(reg)
        })
    }
}

impl fmt::Debug for RegSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

fn of_src(src: Src) -> RegSet {
    match src {
        Src::Reg(reg) => RegSet::of(reg),
        Src::Imm(_) => RegSet::EMPTY,
    }
}

/// The registers an instruction reads. A call is taken to read r1 to r5; [`Liveness`](crate::Liveness) knows better
/// where it can.
pub fn uses(insn: &Insn) -> RegSet {
    effects(insn).0
}

/// The registers an instruction writes, including the registers that a call or packet load clobbers.
pub fn defs(insn: &Insn) -> RegSet {
    match insn {
        Insn::Call(_) | Insn::LoadAbs { .. } | Insn::LoadInd { .. } => RegSet::CALLER_SAVED,
        insn => results(insn),
    }
}

/// The registers that an instruction sets. Of the registers that a call or packet load clobbers, only the result is
/// included.
///
/// For [`Liveness`](crate::Liveness), a clobbered register keeps its value. No verified program reads one; an
/// unverified program that does reads an unspecified number.
pub fn results(insn: &Insn) -> RegSet {
    effects(insn).1
}

/// [`uses`] and [`results`].
#[inline]
pub(crate) fn effects(insn: &Insn) -> (RegSet, RegSet) {
    let none = RegSet::EMPTY;
    match *insn {
        Insn::Alu { dst, src, .. } => (RegSet::of(dst).union(of_src(src)), RegSet::of(dst)),
        Insn::JumpIf { dst, src, .. } => (RegSet::of(dst).union(of_src(src)), none),
        Insn::Mov { dst, src, .. } => (of_src(src), RegSet::of(dst)),
        Insn::MovSx { dst, src, .. } | Insn::Cast { dst, src, .. } => (RegSet::of(src), RegSet::of(dst)),
        Insn::Neg { dst, .. } | Insn::End { dst, .. } => (RegSet::of(dst), RegSet::of(dst)),
        Insn::LoadImm64 { dst, .. } => (none, RegSet::of(dst)),
        Insn::Load { dst, base, .. } | Insn::LoadAcquire { dst, base, .. } => (RegSet::of(base), RegSet::of(dst)),
        Insn::Store { base, src, .. } => (RegSet::of(base).union(of_src(src)), none),
        Insn::StoreRelease { base, src, .. } => (RegSet::of(base).union(RegSet::of(src)), none),
        Insn::Atomic { op, base, src, .. } => {
            let regs = RegSet::of(base).union(RegSet::of(src));
            let compared = if op == AtomicOp::CmpXchg { RegSet::of(Reg::R0) } else { none };
            (regs.union(compared), op.result(src).map_or(none, RegSet::of))
        }
        // The packet is the run's, not what r6 points to, but the instruction demands a context there.
        Insn::LoadAbs { .. } => (none, RegSet::of(Reg::R0)),
        Insn::LoadInd { src, .. } => (RegSet::of(src), RegSet::of(Reg::R0)),
        Insn::Call(Callee::Reg(reg)) => (RegSet::ARGS.union(RegSet::of(reg)), RegSet::of(Reg::R0)),
        Insn::Call(Callee::Helper(_) | Callee::Subprog(_) | Callee::Host(_)) => (RegSet::ARGS, RegSet::of(Reg::R0)),
        Insn::JumpReg { target } => (RegSet::of(target), none),
        Insn::Exit => (RegSet::of(Reg::R0), none),
        Insn::SecondSlot | Insn::Jump { .. } | Insn::MayGoto { .. } => (none, none),
    }
}
