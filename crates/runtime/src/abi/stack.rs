//! The frames that a stopped run leaves behind.
//!
//! Problem: an error is to name the calls that led to it, at no cost to runs that succeed; and when the error is made,
//! the frames are no longer on the stack. Approach: while they are, their memory is copied as it is
//! ([`crate::abi::stopped`], and the shims of host functions). The return addresses among its words are found later, by
//! the programs' tables ([`crate::program::locate`]).
//!
//! A run has one part of the stack for each entry into emitted code: a host function that calls back is below one and
//! above another.

/// The most words that are copied: of a larger stack, the innermost part.
const MAX_WORDS: usize = 8192;

/// The emitted frames between a stop, or the call of a host function, and the entry sequence.
#[derive(Debug)]
pub(crate) struct Stack {
    /// An address in the innermost function's code.
    pub(crate) pc: u64,
    /// The return address of a function that has not stored it on the stack.
    pub(crate) link: u64,
    /// From the innermost frame's stack pointer up.
    pub(crate) words: Box<[u64]>,
}

impl Stack {
    /// Copies the frames of `pc`, `sp` and `link` up to the stack pointer of an entry sequence. `None` if there is no
    /// memory for that: then the error names fewer calls.
    ///
    /// # Safety
    /// `pc` must be in the code of an emitted function whose stack pointer, on the stack of this thread, is `sp`;
    /// `exit_sp` that of the sequence by which it was entered.
    pub(crate) unsafe fn copy(pc: u64, sp: u64, link: u64, exit_sp: u64) -> Option<Stack> {
        let len = MAX_WORDS.min(crate::num::index(exit_sp.saturating_sub(sp)) / 8);
        let mut words = Vec::new();
        words.try_reserve_exact(len).ok()?;
        let first: *const u64 = core::ptr::with_exposed_provenance(crate::num::index(sp));
        for i in 0..len {
            // SAFETY: a word of an emitted frame of this thread, which nobody writes now: between the stack pointer of
            // the innermost and that of the entry sequence there is nothing else. Volatile, since the compiler knows
            // nothing of that memory.
            words.push(unsafe { first.wrapping_add(i).read_volatile() });
        }
        Some(Stack { pc, link, words: words.into() })
    }
}
