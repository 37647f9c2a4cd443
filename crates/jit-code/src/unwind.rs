//! How to find a function's caller, from any place in the emitted code.
//!
//! Problem: emitted functions keep no frame-pointer chain and save what they need, so a backtrace, a profiler or a
//! debugger that stops in or below them finds neither their return address nor their caller's registers. Approach: the
//! emitter notes each change of the frame as it emits it, as plain data in the terms of DWARF's call frame information
//! (DWARF 5, 6.4): where the *canonical frame address* is (CFA: the stack pointer before the call) and which registers
//! are saved how far below it. The code's loader encodes that for the host's unwinder.
//!
//! Invariant: notes ascend by offset, and describe the code exactly between any two instructions, but inside the one or
//! two additional instructions that arm64 takes for a frame of 4096 bytes and more.

/// A change of the frame.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum UnwindOp {
    /// A function begins: its frame is what the call left. x86-64: CFA = rsp + 8, return address at CFA - 8. arm64: CFA
    /// = sp, return address in x30.
    Function,
    /// Code that belongs to no function begins: it leaves a run or jumps on, and has no caller.
    Outside,
    /// CFA = `base + offset`. Registers are numbered as the architecture encodes them.
    Cfa {
        /// The register.
        base: u8,
        /// Bytes.
        offset: u32,
    },
    /// The caller's value of `reg` is at CFA - `offset`.
    Saved {
        /// The register.
        reg: u8,
        /// Bytes.
        offset: u32,
    },
    /// The caller's value of `reg` is in `reg` again.
    Restored {
        /// The register.
        reg: u8,
    },
    /// arm64: the return address is signed from here on, or no longer.
    SignToggled,
    /// An epilogue begins: keep the present frame for [`UnwindOp::Recall`].
    Remember,
    /// What follows the epilogue has the remembered frame.
    Recall,
    /// The function's code ends; what follows is room ([`room`]).
    End,
}

/// Bytes, at most, of what a profiler wants behind a function with this many notes: its call frame information as
/// `.eh_frame` and `.eh_frame_hdr`, aligned.
pub const fn room(notes: usize) -> usize {
    // An entry's header with its common part, terminator, index and alignment; a note with the step to its place.
    160 + 16 * notes
}

/// A change of the frame, and where in the code it has happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unwind {
    /// Offset of the first instruction for which it holds.
    pub at: u32,
    /// The change.
    pub op: UnwindOp,
}
