//! Describes how to find a function's caller, from any place in the emitted code.
//!
//! Problem: emitted functions keep no frame-pointer chain and save only the registers they need. A backtrace, a
//! profiler or a debugger that stops in or below them finds neither their return address nor their caller's
//! registers. Approach: the emitter records each change of the frame as plain data in the terms of DWARF's call frame
//! information (DWARF 5, 6.4): the position of the *canonical frame address* (CFA: the stack pointer before the
//! call), and the saved registers with their distance below it. The code's loader encodes that for the host's
//! unwinder.
//!
//! Invariant: notes ascend by offset, and describe the code exactly between any two instructions, except between the
//! one or two additional instructions that arm64 needs for a frame of 4096 bytes or more.

/// A change of the frame.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum UnwindOp {
    /// A function begins, with the frame that the call left. x86-64: CFA = rsp + 8, return address at CFA - 8. arm64:
    /// CFA = sp, return address in x30.
    Function,
    /// Code outside functions begins: it leaves a run or jumps on, and has no caller.
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
    /// arm64: from here on the return address is signed if it was not, and not signed if it was.
    SignToggled,
    /// An epilogue begins: keep the current frame for [`UnwindOp::Recall`].
    Remember,
    /// The code after the epilogue has the remembered frame.
    Recall,
    /// The function's code ends; padding for profilers follows ([`room`]).
    End,
}

/// The largest size in bytes of the call frame information (`.eh_frame` and `.eh_frame_hdr`, aligned) that a profiler
/// places after a function with this many notes.
pub const fn room(notes: usize) -> usize {
    // 160: an entry's header with its common part, terminator, index and alignment. 16: a note with the advance to
    // its offset.
    160 + 16 * notes
}

/// A change of the frame, and its place in the code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unwind {
    /// Offset of the first instruction after the change.
    pub at: u32,
    /// The change.
    pub op: UnwindOp,
}
