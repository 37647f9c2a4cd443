//! Checks that a thread's stack has room for a run.
//!
//! Problem: emitted frames lie on the thread's stack, and threads may have small ones, or be deep in theirs already; an
//! overflow is a fault that ends the process. Approach: the worst stack of a program is known when it is loaded
//! ([`crate::Program::machine_stack_bytes`]), and the ends of a thread's stack do not change. Each run, nested ones
//! included, compares its stack pointer with them before it begins. The comparison takes a few instructions if the
//! stack has room for any run of the engine; otherwise the need of this run is computed. The stack of helpers and host
//! functions is added to it ([`crate::Config::stack_reserve`]).
//!
//! A run that tail-calls is held to a bound of the configuration instead, since the targets of its tail calls may be
//! replaced during the run. A program that keeps frames on the stack at a tail call was loaded with these frames
//! counted once for each tail call that a run may make. So each such program adds at most `max_machine_stack` divided
//! by that number, and the last program adds at most `max_machine_stack`. Together that is less than twice
//! `max_machine_stack`.
//!
//! An interpreted run has a Rust frame for each function of the program, and the functions that its tail calls leave
//! behind add up. Its begin is checked for the first frame and the functions that this may call, [`INTERPRETER`]. Each
//! nested frame, of a call or a call back, is checked when it is entered ([`Room`]), and the run ends there if the
//! stack does not suffice. Replays are checked in the same way.
//!
//! Knowledge of stacks:
//! - The ends of a thread's stack are requested once, before its first run, or its first poll of a sleepable run that
//!   waits, so that later runs in signal handlers need not: C libraries allocate for that. The main thread's
//!   stack grows, and its end is computed from its limit at that time (`RLIMIT_STACK`). The stack is smaller than
//!   assumed if the limit is lowered later, or if it was raised and other memory was mapped in its way.
//! - A run in a signal handler on a signal stack is held to the signal stack's ends, which costs a system call. A
//!   signal stack that lies inside the thread's own stack is not recognised.
//! - The stack of a sleepable run is the thread's stack while the run is on it ([`enter`]).
//! - The ends of any other stack (a coroutine's) are unknown, and the run is not checked, at the cost of a system call.
//!   Only the guard page protects it, which no frame steps over (docs/book/reference/abi.md).

use crate::abi::critical::Critical;
use crate::abi::roots::Roots;
use crate::error::RunError;
use bpf_os::thread;
use std::cell::Cell;

/// Bytes that must be left where an interpreted run begins: its first frame, with a margin.
pub(crate) const INTERPRETER: u64 = 32 * 1024;
/// Upper bound in bytes on a nested frame of the interpreter, the function of the library that calls it back included:
/// several times what the largest one takes (`a_nested_frame_is_within_its_bound` in tests/stack.rs). Without
/// optimisation a frame takes more.
const NESTED: u64 = if cfg!(debug_assertions) { 24 * 1024 } else { 8 * 1024 };
/// Bytes for helpers and host functions, unless a configuration has others.
pub(crate) const RESERVE: u64 = 16 * 1024;
/// Upper bound in bytes on frames of hooks and dispatchers, of the entry into emitted code, and of returning an error.
const ENTRY: u64 = 2048;

/// Bytes of the poller's stack for a poll of a sleepable run: the library's frames, a switch, and a host's future that
/// polls nothing large.
const POLL: u64 = 8 * 1024 + ENTRY;

/// More bytes than a stack of limited size has, and fewer than the addresses of any host with 64-bit ones.
const ENORMOUS: u64 = 1 << 32;

/// Bounds that contain no address.
const NOWHERE: (u64, u64) = (1, 0);
/// Bounds that contain every address, with room for any run.
const EVERYWHERE: (u64, u64) = (0, u64::MAX);

thread_local! {
    /// The lowest usable address of this thread's stack, and the length from there. [`UNASKED`] at first.
    static BOUNDS: Cell<(u64, u64)> = const { Cell::new(UNASKED) };
}
const UNASKED: (u64, u64) = (0, 0);

/// The bounds of the stack that a thread was on before it was switched to another ([`enter`]).
#[derive(Debug)]
#[must_use]
pub(crate) struct Outer((u64, u64));

/// Sets the bounds before this thread is switched to a stack of `len` bytes from `low` on. Returns the former bounds.
pub(crate) fn enter(low: u64, len: u64) -> Outer {
    // This is a run of the thread too, and a signal handler may run a program when the thread is back on its own stack.
    if BOUNDS.get() == UNASKED {
        request();
    }
    Outer(BOUNDS.replace((low, len)))
}

/// Returns whether this thread is on a signal stack, so must not switch to the stack of a run: the system would take
/// the signal stack for free then, and the next signal would overwrite it. Costs a system call on stacks whose ends
/// are unknown. They are not requested here, which may be in a handler.
pub(crate) fn on_signal_stack() -> bool {
    let (low, len) = BOUNDS.get();
    // The C library says of an unlimited stack that it begins where the heap ended at that time.
    let inside = len < ENORMOUS && stack_pointer().wrapping_sub(low) <= len;
    !inside && thread::signal_stack().is_some()
}

/// Refuses to poll a sleepable run, or to drop its future, where less than [`POLL`] bytes of the poller's stack are
/// left: runs may be polled inside others, all on one stack. A stack whose ends are unknown is not checked.
#[inline]
pub(crate) fn check_poll() -> Result<(), Box<RunError>> {
    let (low, len) = BOUNDS.get();
    let left = stack_pointer().wrapping_sub(low);
    if (POLL..=len).contains(&left) { Ok(()) } else { check_poll_slowly() }
}

#[cold]
#[inline(never)]
fn check_poll_slowly() -> Result<(), Box<RunError>> {
    // Nothing on the way down a chain of polls switches to a run's stack, so nothing else has requested them.
    if BOUNDS.get() == UNASKED {
        request();
    }
    let (low, len) = BOUNDS.get();
    let left = stack_pointer().wrapping_sub(low);
    if left > len || left >= POLL { Ok(()) } else { Err(Box::new(RunError::Stack { needed: POLL, left })) }
}

/// Returns the bounds of the stack with this address on it, of this thread's own or its signal stack; `None` for
/// another one. Costs a system call if it is not the thread's own.
fn bounds_around(at: u64) -> Option<(u64, u64)> {
    if BOUNDS.get() == UNASKED {
        request();
    }
    let inside = |&(low, len): &(u64, u64)| at.wrapping_sub(low) <= len;
    Some(BOUNDS.get()).filter(inside).or_else(|| thread::signal_stack().filter(inside))
}

/// Requests the ends of this thread's stack.
#[cold]
fn request() {
    // A signal handler during the request must not request as well: the C library may hold a lock, and it allocates.
    let _critical = Critical::enter();
    BOUNDS.set(NOWHERE);
    BOUNDS.set(thread::stack().unwrap_or(EVERYWHERE));
}

/// Restores the bounds after the thread was switched back.
pub(crate) fn leave(outer: Outer) {
    BOUNDS.set(outer.0);
}

/// The stack that runs of an engine may need, in bytes.
#[derive(Debug)]
pub(crate) struct StackNeed {
    /// Bytes for any run that makes no tail call.
    plain: u64,
    /// Upper bound for any run.
    worst: u64,
    /// Upper bound for the machine code of a run that tail-calls.
    jumping: u64,
    /// Added to the need of machine code in every run.
    reserve: u64,
}

impl StackNeed {
    /// Makes the needs for programs that take at most `program` bytes each, and `reserve` bytes for helpers and host
    /// functions.
    pub(crate) fn new(program: u64, reserve: u64) -> StackNeed {
        let reserve = reserve.saturating_add(ENTRY);
        let jumping = program.saturating_mul(2);
        let plain = program.saturating_add(INTERPRETER).saturating_add(reserve);
        StackNeed { plain, worst: jumping.saturating_add(INTERPRETER).saturating_add(reserve), jumping, reserve }
    }

    /// Returns the upper bound for machine code of a run that tail-calls, in bytes.
    pub(crate) fn jumping(&self) -> u64 {
        self.jumping
    }

    /// Returns the bytes of a run whose code takes `code` bytes.
    pub(crate) fn with_reserve(&self, code: u64) -> u64 {
        code.saturating_add(self.reserve)
    }

    /// Returns the room for nested frames of an interpreted run.
    pub(crate) fn room(&self) -> Room {
        Room { low: None, needed: NESTED.saturating_add(self.reserve) }
    }

    /// Bytes of a stack that suffices for any run without tail calls.
    pub(crate) fn plain(&self) -> u64 {
        self.plain
    }

    /// Refuses a run that may need more stack than is left. `beside`: bytes beside its machine code, at most
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
        let at = stack_pointer();
        let Some((low, _)) = bounds_around(at) else { return Ok(()) };
        let left = at - low;
        if left >= self.worst {
            return Ok(());
        }
        let needed = roots.code_stack().saturating_add(beside).saturating_add(self.reserve);
        if left < needed { Err(Box::new(RunError::Stack { needed, left })) } else { Ok(()) }
    }
}

/// The room for nested frames of one interpreted run, all of which are on one stack.
#[derive(Debug)]
pub(crate) struct Room {
    /// The lowest usable address of the stack, 0 if it is unknown; `None` before the first nested frame.
    low: Option<u64>,
    /// Bytes for a nested frame and the host functions that it may call.
    needed: u64,
}

/// The stack has no room for a nested frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NoRoom {
    pub(crate) needed: u64,
    pub(crate) left: u64,
}

impl Room {
    /// The room of a replay, which belongs to no engine.
    pub(crate) fn of_replay() -> Room {
        Room { low: None, needed: NESTED + RESERVE + ENTRY }
    }

    /// Refuses a nested frame where less than its bytes are left.
    #[inline(always)]
    pub(crate) fn check(&mut self) -> Result<(), NoRoom> {
        let at = stack_pointer();
        let low = match self.low {
            Some(low) => low,
            None => self.find(at),
        };
        let (needed, left) = (self.needed, at.saturating_sub(low));
        if left < needed { Err(NoRoom { needed, left }) } else { Ok(()) }
    }

    #[cold]
    #[inline(never)]
    fn find(&mut self, at: u64) -> u64 {
        *self.low.insert(bounds_around(at).map_or(0, |(low, _)| low))
    }
}

/// Returns the approximate stack pointer.
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

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    /// The end of a thread's stack is not requested in a signal handler if the thread's first run was sleepable.
    #[test]
    fn a_switch_to_another_stack_requests_the_ends_of_the_threads_own() {
        let known = std::thread::spawn(|| {
            assert_eq!(BOUNDS.get(), UNASKED);
            leave(enter(0x10000, 0x1000));
            BOUNDS.get()
        });
        let (low, len) = known.join().expect("no panic");
        assert!((low, len) != UNASKED && (low, len) != (0x10000, 0x1000) && len > 0x1000, "{low:#x} {len:#x}");
    }
}
