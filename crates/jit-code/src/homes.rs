//! The places of BPF registers in a function's machine code.
//!
//! Code that is compiled without optimisation keeps each BPF register in one place from the end of the prologue to the
//! epilogue, so a debugger can be told where it is. Optimised code has no such places: one BPF register is many values.
//!
//! Invariant: the places hold between any two instructions of the program, but not within the code of one.

/// The place of a BPF register.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Home {
    /// A machine register, numbered as the architecture encodes it.
    Reg(u8),
    /// The eight bytes that begin this number of bytes below the canonical frame address ([`crate::UnwindOp`]).
    Memory(u32),
}

/// The places of the BPF registers in one function.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Homes {
    /// The places of r0 to r9; `None` for registers that the program does not use.
    pub regs: [Option<Home>; 10],
    /// The machine registers that hold r1 to r5 at the function's first byte.
    pub args: [u8; 5],
    /// r10 is this number of bytes below the canonical frame address.
    pub frame: u32,
}
