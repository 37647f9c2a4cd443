//! Whether what a run may take of its thread's stack is there.
//!
//! Problem: emitted frames lie on the thread's stack, and threads may have small ones, or be deep in theirs already; an
//! overflow is a fault that ends the process. Approach: the worst stack of a program is known when it is loaded
//! ([`crate::Program::machine_stack_bytes`]), and the ends of a thread's stack do not change. Each run, nested ones
//! included, compares its stack pointer with them before it begins. That takes a few instructions where as much is left
//! as any run of the engine may need; only elsewhere is it worked out what this one may need. What helpers and
//! host functions take comes on top ([`crate::Config::stack_reserve`]).
//!
//! A run that tail-calls is held to a bound of the configuration instead: programs may be put where it jumps to while
//! it is on its way there. Of those it comes by, the ones that keep their frames below a tail call were loaded with the
//! stack of all tail calls of a run counted as theirs, so that each adds at most one such part of `max_machine_stack`;
//! and the last one adds at most the whole. Together that is less than twice `max_machine_stack`.
//!
//! What is known of stacks:
//! - The ends of a thread's stack are asked once, in its first run: not in a signal handler's, since C libraries
//!   allocate for that. Those of the main thread's, which grows, are its limit then (`RLIMIT_STACK`): a program that
//!   lowers it later has a stack that is smaller than this says, as does one whose limit was raised and whose room was
//!   mapped otherwise.
//! - A run in a signal handler on a signal stack is held to that one's ends, which costs a system call. One that lies
//!   in the thread's own stack is not told from that.
//! - Of any other stack (a coroutine's) nothing is known, and the run is not held to anything, at the same cost. There
//!   the guard page is what is left, which no frame steps over (docs/abi.md).

use crate::abi::roots::Roots;
use crate::error::RunError;
use bpf_os::thread;
use std::cell::Cell;

/// What the interpreter takes, callbacks in callbacks included, generously.
pub(crate) const INTERPRETER: u64 = 32 * 1024;
/// Frames of hooks and dispatchers, of the way into emitted code and of an error's way out.
const ENTRY: u64 = 2048;

/// Nothing lies in it.
const NOWHERE: (u64, u64) = (1, 0);
/// Everything lies in it, and far from its end.
const EVERYWHERE: (u64, u64) = (0, u64::MAX);

thread_local! {
    /// The lowest usable address of this thread's stack, and the length from there. [`UNASKED`] at first.
    static BOUNDS: Cell<(u64, u64)> = const { Cell::new(UNASKED) };
}
const UNASKED: (u64, u64) = (0, 0);

/// What the runs of an engine may need.
#[derive(Debug)]
pub(crate) struct StackNeed {
    /// Any of them.
    worst: u64,
    /// One that tail-calls, for machine code.
    jumping: u64,
    /// All of them, beside machine code.
    reserve: u64,
}

impl StackNeed {
    /// Of programs that take at most `program` bytes each, where so much is to be left for helpers and host functions.
    pub(crate) fn new(program: u64, reserve: u64) -> StackNeed {
        let reserve = reserve.saturating_add(ENTRY);
        let jumping = program.saturating_mul(2);
        StackNeed { worst: jumping.saturating_add(INTERPRETER).saturating_add(reserve), jumping, reserve }
    }

    /// What a run of machine code that tail-calls may take.
    pub(crate) fn jumping(&self) -> u64 {
        self.jumping
    }

    /// Refuses a run that may need more than is left, with so much `beside` what its machine code takes: at most
    /// [`INTERPRETER`].
    #[inline(always)]
    pub(crate) fn check(&self, roots: &dyn Roots, beside: u64) -> Result<(), Box<RunError>> {
        let (low, len) = BOUNDS.get();
        let left = stack_pointer().wrapping_sub(low);
        if left < self.worst || left > len { self.check_slowly(roots, beside) } else { Ok(()) }
    }

    #[cold]
    #[inline(never)]
    fn check_slowly(&self, roots: &dyn Roots, beside: u64) -> Result<(), Box<RunError>> {
        if BOUNDS.get() == UNASKED {
            // A signal handler that strikes meanwhile does not ask as well: the C library may hold a lock.
            BOUNDS.set(NOWHERE);
            BOUNDS.set(thread::stack().unwrap_or(EVERYWHERE));
        }
        let at = stack_pointer();
        let inside = |&(low, len): &(u64, u64)| at.wrapping_sub(low) <= len;
        let Some((low, _)) = Some(BOUNDS.get()).filter(inside).or_else(|| thread::signal_stack().filter(inside)) else {
            return Ok(());
        };
        let left = at - low;
        if left >= self.worst {
            return Ok(());
        }
        let needed = roots.code_stack().saturating_add(beside).saturating_add(self.reserve);
        if left < needed { Err(Box::new(RunError::Stack { needed, left })) } else { Ok(()) }
    }
}

/// About where the stack ends now.
#[inline(always)]
fn stack_pointer() -> u64 {
    let here: u64;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: reads a register.
    unsafe {
        core::arch::asm!("mov {}, rsp", out(reg) here, options(nomem, nostack, preserves_flags));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: reads a register.
    unsafe {
        core::arch::asm!("mov {}, sp", out(reg) here, options(nomem, nostack, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    {
        let local = 0u8;
        here = &raw const local as u64;
    }
    here
}
