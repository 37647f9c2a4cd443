//! The landing point of emitted code that stops its run.
//!
//! Problem: the frames of a stopped run are to be copied while they are on the stack, whatever shape they have.
//! Approach: emitted code jumps here ([`RunCtx::stop_to`]) with its stack as it is, and this takes it down afterwards.

use crate::abi::entry;
use crate::abi::run::Run;
use bpf_jit_code::RunCtx;

/// The address for [`RunCtx::stop_to`]; 0 where there is no emitted code.
pub(super) fn address() -> u64 {
    #[cfg(target_arch = "x86_64")]
    let land = land as *const () as u64;
    // The stack is aligned anywhere, and what is reached by a `ret` needs no landing pad.
    #[cfg(target_arch = "aarch64")]
    let land = stopped as *const () as u64;
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let land = 0;
    land
}

/// Emitted code jumps here with a stack pointer of any alignment. Memory below the stack pointer is free.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "C" fn land(ctx: *mut RunCtx) -> ! {
    core::arch::naked_asm!("endbr64", "and rsp, -16", "call {stopped}", "ud2", stopped = sym stopped)
}

/// Copies the frames, and leaves them.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
extern "C" fn stopped(ctx: *mut RunCtx) -> ! {
    // SAFETY: the hidden argument is the first field of this thread's run, and the pointer is to all of it. Other
    // threads change its word atomically, through pointers; this reference does not access the word.
    let run = unsafe { &mut *ctx.cast::<Run>() };
    // From one past an instruction, or any in the function, to one in it.
    run.ctx.stop_pc -= 1;
    let (pc, sp, link) = (run.ctx.stop_pc, run.ctx.stop_sp, run.ctx.stop_link);
    // SAFETY: emitted code has just left these, and its frames are as it left them.
    unsafe { run.keep_stack(pc, sp, link) };
    // SAFETY: called by emitted code with its hidden argument; nothing is left to drop.
    unsafe { entry::stop(ctx) }
}
