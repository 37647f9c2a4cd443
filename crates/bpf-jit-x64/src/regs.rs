//! The registers of x86-64, and what its instructions demand of them: the [`MachineDesc`] the allocator works from.
//!
//! r10 and r11 are not in the pool: every op may use them as scratch, so it is correct for operands in any register or
//! slot. rsp is the stack pointer; rbp is the frame pointer of functions with a BPF stack, and an ordinary register
//! elsewhere.

use bpf_jit::{Addresses, Constants, FixedOperands, HostReg, HostRegSet, MachineDesc, OpClass, Takes};
use bpf_jit_code::CpuFeatures;

/// A general-purpose register, by its number in encodings.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub(crate) enum Gpr {
    Rax,
    Rcx,
    Rdx,
    Rbx,
    Rsp,
    Rbp,
    Rsi,
    Rdi,
    R8,
    R9,
    R10,
    R11,
    R12,
    R13,
    R14,
    R15,
}

use Gpr::*;

impl Gpr {
    const ALL: [Gpr; 16] = [Rax, Rcx, Rdx, Rbx, Rsp, Rbp, Rsi, Rdi, R8, R9, R10, R11, R12, R13, R14, R15];

    pub(crate) const fn host(self) -> HostReg {
        HostReg(self as u8)
    }

    /// Whether the low byte of the register can only be named with a REX prefix that has no other bit set.
    pub(crate) fn byte_needs_rex(self) -> bool {
        matches!(self, Rsp | Rbp | Rsi | Rdi)
    }
}

impl From<Gpr> for u8 {
    fn from(reg: Gpr) -> u8 {
        // The mask tells rustc that at most four bits are set, so it folds most of `asm`.
        reg as u8 & 15
    }
}

impl From<HostReg> for Gpr {
    fn from(reg: HostReg) -> Gpr {
        Gpr::ALL[usize::from(reg.0 & 15)]
    }
}

/// Scratch registers, never allocated. `SCRATCH` mostly holds a result on its way to a slot, or the first operand;
/// `SCRATCH2` an address, a constant or the second operand.
pub(crate) const SCRATCH: Gpr = R10;
/// See [`SCRATCH`].
pub(crate) const SCRATCH2: Gpr = R11;

/// The registers of r1 to r5 at entry and at calls: the C convention's first five.
pub(crate) const ARGS: [Gpr; 5] = [Rdi, Rsi, Rdx, Rcx, R8];
/// The register of the hidden argument: the C convention's sixth.
pub(crate) const CTX: Gpr = R9;
/// Registers a call preserves. The first two need no REX prefix to be pushed and popped.
pub(crate) const CALLEE_SAVED: [Gpr; 6] = [Rbx, Rbp, R14, R15, R12, R13];

const fn hosts<const N: usize>(regs: [Gpr; N]) -> [HostReg; N] {
    let mut out = [HostReg(0); N];
    let mut i = 0;
    while i < N {
        out[i] = regs[i].host();
        i += 1;
    }
    out
}

/// Cheapest encodings first: registers that need no REX prefix, then registers whose use as a base needs no SIB or
/// displacement.
const POOL: [HostReg; 13] = hosts([Rax, Rcx, Rdx, Rsi, Rdi, R8, R9, Rbx, Rbp, R14, R15, R12, R13]);
const SAVED: [HostReg; 6] = hosts(CALLEE_SAVED);

/// The machine with these features.
pub(crate) fn machine(features: &CpuFeatures) -> &'static MachineDesc {
    static PLAIN: MachineDesc = describe(false);
    static BMI2: MachineDesc = describe(true);
    if features.bmi2 { &BMI2 } else { &PLAIN }
}

const fn describe(bmi2: bool) -> MachineDesc {
    let mut fixed = [FixedOperands::NONE; OpClass::COUNT];
    let (rax, rcx, rdx) = (Some(Rax.host()), Some(Rcx.host()), Some(Rdx.host()));
    // rdx:rax / b: quotient in rax, remainder in rdx. A constant b goes to scratch.
    let both = HostRegSet::of(&[Rax.host(), Rdx.host()]);
    let wide = FixedOperands { clobbers: both, avoid: both, first: rax, second: None, result: rax };
    let high = FixedOperands { result: rdx, ..wide };
    fixed[OpClass::Div as usize] = wide;
    fixed[OpClass::DivImm as usize] = wide;
    fixed[OpClass::Mod as usize] = high;
    fixed[OpClass::ModImm as usize] = high;
    fixed[OpClass::MulHigh as usize] = high;
    // The count is in cl. BMI2 takes it anywhere, two bytes longer.
    fixed[OpClass::ShiftReg as usize] = FixedOperands {
        clobbers: if bmi2 { HostRegSet::EMPTY } else { HostRegSet::of(&[Rcx.host()]) },
        second: rcx,
        ..FixedOperands::NONE
    };
    let only_rax = HostRegSet::of(&[Rax.host()]);
    fixed[OpClass::CmpXchg as usize] =
        FixedOperands { clobbers: only_rax, avoid: only_rax, first: rax, second: None, result: rax };
    // A loop of cmpxchg; rdx is the third scratch register where address and operand both need one.
    fixed[OpClass::AtomicLogicFetch as usize] =
        FixedOperands { clobbers: both, avoid: only_rax, result: rax, ..FixedOperands::NONE };
    MachineDesc {
        pool: &POOL,
        callee_saved: &SAVED,
        pool_set: HostRegSet::of(&POOL),
        saved_set: HostRegSet::of(&SAVED),
        args: hosts(ARGS),
        ctx: CTX.host(),
        ret: Rax.host(),
        frame: Some(Rbp.host()),
        addresses: Addresses {
            max_offset: i32::MAX,
            any_index: true,
            operands: Takes::Memory,
            constants: Constants::Signed32,
            registers: 13,
        },
        fixed,
    }
}
