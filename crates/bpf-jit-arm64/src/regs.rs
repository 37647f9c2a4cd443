//! The registers of arm64 and who may use them.
//!
//! | registers | use |
//! |---|---|
//! | x0 to x4 | r1 to r5 at entry and at calls; x0 also the result |
//! | x5 | the hidden argument |
//! | x0 to x13 | the allocator's; a call overwrites them |
//! | x14 to x17 | scratch of the emitter; x16 and x17 also of veneers |
//! | x18 | never touched: the platform's |
//! | x19 to x28 | the allocator's; a call preserves them |
//! | x29 | never touched: the host's frame chain simply skips emitted code |
//! | x30 | return address, saved by functions that call |
//!
//! Four scratch registers are what a load-exclusive loop needs when every operand is in a slot: address, operand, old
//! value, new value. No operation insists on particular registers, so the allocator is free.

use bpf_jit::{Addresses, Constants, FixedOperands, HostReg, HostRegSet, MachineDesc, OpClass, Takes};

/// A general-purpose register. Number 31 is the zero register or the stack pointer, depending on the instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
#[rustfmt::skip]
pub(crate) enum Gpr {
    X0, X1, X2, X3, X4, X5, X6, X7, X8, X9, X10, X11, X12, X13, X14, X15,
    X16, X17, X18, X19, X20, X21, X22, X23, X24, X25, X26, X27, X28, X29, X30, X31,
}

use Gpr::*;

#[rustfmt::skip]
const ALL: [Gpr; 32] = [
    X0, X1, X2, X3, X4, X5, X6, X7, X8, X9, X10, X11, X12, X13, X14, X15,
    X16, X17, X18, X19, X20, X21, X22, X23, X24, X25, X26, X27, X28, X29, X30, X31,
];

impl Gpr {
    /// The zero register.
    pub(crate) const ZR: Gpr = X31;
    /// The stack pointer, as the base of an address.
    pub(crate) const SP: Gpr = X31;
    /// The link register.
    pub(crate) const LR: Gpr = X30;
}

impl From<HostReg> for Gpr {
    fn from(reg: HostReg) -> Gpr {
        ALL[usize::from(reg.0 & 31)]
    }
}

impl From<Gpr> for HostReg {
    fn from(reg: Gpr) -> HostReg {
        HostReg(reg as u8)
    }
}

impl From<Gpr> for u8 {
    fn from(reg: Gpr) -> u8 {
        reg as u8
    }
}

/// First scratch register: first operands, and results that go to a slot.
pub(crate) const TMP0: Gpr = X14;
/// Second scratch register: second operands and addresses.
pub(crate) const TMP1: Gpr = X15;
/// Third scratch register: intermediate results.
pub(crate) const TMP2: Gpr = X16;
/// Fourth scratch register: constants and offsets that do not fit their instruction. Overwritten by every helper that
/// takes an offset or a constant, so it never holds an operand across one.
pub(crate) const AUX: Gpr = X17;

/// r1 to r5 at entry and at calls.
pub(crate) const ARGS: [Gpr; 5] = [X0, X1, X2, X3, X4];
/// The hidden argument.
pub(crate) const CTX: Gpr = X5;
/// The result.
pub(crate) const RET: Gpr = X0;

const fn host<const N: usize>(regs: [Gpr; N]) -> [HostReg; N] {
    let mut out = [HostReg(0); N];
    let mut i = 0;
    while i < N {
        out[i] = HostReg(regs[i] as u8);
        i += 1;
    }
    out
}

/// Registers that no argument arrives in come first: a value without a wish does not displace one that has.
const POOL: [HostReg; 24] = host([
    X6, X7, X8, X9, X10, X11, X12, X13, X5, X4, X3, X2, X1, X0, X19, X20, X21, X22, X23, X24, X25, X26, X27, X28,
]);

/// Preserved by calls.
pub(crate) const CALLEE_SAVED: [HostReg; 10] = host([X19, X20, X21, X22, X23, X24, X25, X26, X27, X28]);

/// Registers that the allocator may use.
pub(crate) const POOL_SET: HostRegSet = HostRegSet::of(&POOL);

/// The machine, as the allocator sees it.
pub(crate) static MACHINE: MachineDesc = {
    let mut fixed = [FixedOperands::NONE; OpClass::COUNT];
    // `cas` leaves the old value where the expected one was.
    let result = Some(HostReg(RET as u8));
    fixed[OpClass::CmpXchg as usize] = FixedOperands { first: result, result, ..FixedOperands::NONE };
    MachineDesc {
        pool: &POOL,
        callee_saved: &CALLEE_SAVED,
        pool_set: POOL_SET,
        saved_set: HostRegSet::of(&CALLEE_SAVED),
        args: host(ARGS),
        ctx: HostReg(CTX as u8),
        ret: HostReg(RET as u8),
        frame: None,
        // Twelve bits of bytes; more if aligned, and what is not costs what adding it would.
        addresses: Addresses {
            max_offset: 4095,
            any_index: false,
            operands: Takes::Shifted,
            constants: Constants::TwelveOrMask,
            registers: 24,
        },
        fixed,
    }
};
