//! From Rust into emitted code, and out again.
//!
//! Problem: emitted code follows the C calling convention with one argument more, and a run may be stopped from any
//! depth of it. Approach: [`enter`] is a few instructions of inline assembly around one indirect call. It leaves its
//! stack pointer and a continuation in the [`RunCtx`]; stopping means loading both, which drops every emitted frame at
//! once. Callee-saved registers are declared clobbered, so what the dropped frames had saved does not matter, and the
//! compiler saves what it needs once around a loop of runs instead of in each. Two cannot be declared: a stop restores
//! them from the [`RunCtx`].
//!
//! The assembly never moves the stack pointer. So the unwind tables that the compiler wrote for the function around it,
//! in terms of the stack pointer or of a frame pointer, hold at the call, and a backtrace finds its way from emitted
//! code into Rust.
//!
//! Invariant: between [`enter`] and a stop there are emitted frames only, and at most the shim of the host function
//! that stops the run, which holds nothing that needs dropping. Rust frames in between (a helper that calls back) have
//! an [`enter`] of their own and pass the stop on as a result.

use bpf_jit_code::RunCtx;

/// Calls `code` with r1 to r5 and returns r0. If the run is stopped, the result is meaningless and `ctx.stop_code` is
/// set.
///
/// `code` is the program at `callee`, or a compare tree (crate `bpf-dispatcher`) that jumps to it: its address arrives
/// in rax (x16), which carries no argument.
///
/// # Safety
/// `code` and `callee` must be entries of emitted code for this architecture, which stays executable for the call and
/// is safe to run with these arguments. `ctx` must be valid and belong to this thread's run.
#[inline(always)]
pub(crate) unsafe fn enter(code: *const u8, callee: *const u8, args: [u64; 5], ctx: *mut RunCtx) -> u64 {
    // SAFETY: the caller's contract is this function's.
    unsafe { imp::enter(code, callee, args, ctx) }
}

/// Calls `code`, as [`enter`], for code that needs no run ([`bpf_jit_code::Needs`]). It can only return, so nothing is
/// left behind for a stop, and the callee-saved registers stay the caller's.
///
/// # Safety
/// As for [`enter`]; and the code must need no more than [`bpf_jit_code::Needs::Slot`], or nothing if `ctx` is null.
#[inline(always)]
pub(crate) unsafe fn enter_unstoppable(code: *const u8, callee: *const u8, args: [u64; 5], ctx: *mut RunCtx) -> u64 {
    // SAFETY: the caller's contract is this function's.
    unsafe { imp::enter_unstoppable(code, callee, args, ctx) }
}

/// Leaves the innermost [`enter`] of the run.
///
/// # Safety
/// `ctx` must be the hidden argument of the host function being called; the frames between here and the emitted code
/// must have nothing left to drop.
pub(crate) unsafe fn stop(ctx: *mut RunCtx) -> ! {
    leave_frames();
    // SAFETY: the caller's contract is this function's.
    unsafe { imp::stop(ctx) }
}

/// Tells AddressSanitizer that frames are left without a return, as at a `longjmp`. Otherwise the red zones around
/// their variables stay marked, and accesses of later frames there are reported as errors.
#[inline(always)]
fn leave_frames() {
    #[cfg(address_sanitizer)]
    {
        unsafe extern "C" {
            fn __asan_handle_no_return();
        }
        // SAFETY: of the runtime that the sanitizer links in; it takes nothing and may be called at any time.
        unsafe { __asan_handle_no_return() }
    }
}

#[cfg(target_arch = "x86_64")]
mod imp {
    use super::RunCtx;
    use core::arch::asm;

    #[inline(always)]
    pub(super) unsafe fn enter(code: *const u8, callee: *const u8, args: [u64; 5], ctx: *mut RunCtx) -> u64 {
        let r0;
        // SAFETY: the stack is 16-byte aligned here; every register the C calling convention lets a callee change, and
        // every callee-saved one, is declared, or (rbx and rbp may not be declared) preserved by the code and
        // restored by a stop.
        unsafe {
            asm!(
                "lea r11, [rip + 2f]",
                "mov [r9 + {exit_sp}], rsp",
                "mov [r9 + {exit_pc}], r11",
                "mov [r9 + {exit_saved}], rbx",
                "mov [r9 + {exit_saved} + 8], rbp",
                "call r10",
                "2:",
                // Where a stop lands, by an indirect jump: a landing pad, for hosts built with them.
                "endbr64",
                exit_sp = const RunCtx::EXIT_SP_OFFSET,
                exit_pc = const RunCtx::EXIT_PC_OFFSET,
                exit_saved = const RunCtx::EXIT_SAVED_OFFSET,
                inout("rdi") args[0] => _,
                inout("rsi") args[1] => _,
                inout("rdx") args[2] => _,
                inout("rcx") args[3] => _,
                inout("r8") args[4] => _,
                inout("r9") ctx => _,
                inout("r10") code => _,
                inout("rax") callee => r0,
                out("r12") _,
                out("r13") _,
                out("r14") _,
                out("r15") _,
                clobber_abi("sysv64"),
            );
        }
        r0
    }

    #[inline(always)]
    pub(super) unsafe fn enter_unstoppable(
        code: *const u8,
        callee: *const u8,
        args: [u64; 5],
        ctx: *mut RunCtx,
    ) -> u64 {
        let r0;
        // SAFETY: the stack is 16-byte aligned here; every register the C calling convention lets a callee change is
        // declared, and the code preserves the others.
        unsafe {
            asm!(
                "call r10",
                inout("rdi") args[0] => _,
                inout("rsi") args[1] => _,
                inout("rdx") args[2] => _,
                inout("rcx") args[3] => _,
                inout("r8") args[4] => _,
                inout("r9") ctx => _,
                inout("r10") code => _,
                inout("rax") callee => r0,
                clobber_abi("sysv64"),
            );
        }
        r0
    }

    pub(super) unsafe fn stop(ctx: *mut RunCtx) -> ! {
        // SAFETY: the `exit_*` fields were stored by the `enter` that is still on the stack.
        unsafe {
            asm!(
                "mov rsp, [rdi + {exit_sp}]",
                "mov rbx, [rdi + {exit_saved}]",
                "mov rbp, [rdi + {exit_saved} + 8]",
                "jmp [rdi + {exit_pc}]",
                exit_saved = const RunCtx::EXIT_SAVED_OFFSET,
                exit_sp = const RunCtx::EXIT_SP_OFFSET,
                exit_pc = const RunCtx::EXIT_PC_OFFSET,
                in("rdi") ctx,
                options(noreturn),
            )
        }
    }
}

#[cfg(target_arch = "aarch64")]
mod imp {
    use super::RunCtx;
    use core::arch::asm;

    #[inline(always)]
    pub(super) unsafe fn enter(code: *const u8, callee: *const u8, args: [u64; 5], ctx: *mut RunCtx) -> u64 {
        let r0;
        // SAFETY: the stack stays 16-byte aligned; every register the procedure call standard lets a callee change, and
        // every callee-saved one, is declared, or (x19 and x29 may not be declared) preserved by the code and
        // restored by a stop.
        unsafe {
            asm!(
                "adr x7, 2f",
                "mov x8, sp",
                "str x7, [x5, #{exit_pc}]",
                "str x8, [x5, #{exit_sp}]",
                "stp x19, x29, [x5, #{exit_saved}]",
                "blr x6",
                "2:",
                exit_sp = const RunCtx::EXIT_SP_OFFSET,
                exit_pc = const RunCtx::EXIT_PC_OFFSET,
                exit_saved = const RunCtx::EXIT_SAVED_OFFSET,
                inout("x0") args[0] => r0,
                inout("x1") args[1] => _,
                inout("x2") args[2] => _,
                inout("x3") args[3] => _,
                inout("x4") args[4] => _,
                inout("x5") ctx => _,
                inout("x6") code => _,
                inout("x16") callee => _,
                out("x20") _,
                out("x21") _,
                out("x22") _,
                out("x23") _,
                out("x24") _,
                out("x25") _,
                out("x26") _,
                out("x27") _,
                out("x28") _,
                clobber_abi("C"),
            );
        }
        r0
    }

    #[inline(always)]
    pub(super) unsafe fn enter_unstoppable(
        code: *const u8,
        callee: *const u8,
        args: [u64; 5],
        ctx: *mut RunCtx,
    ) -> u64 {
        let r0;
        // SAFETY: the stack stays 16-byte aligned; every register the procedure call standard lets a callee change is
        // declared, and the code preserves the others.
        unsafe {
            asm!(
                "blr x6",
                inout("x0") args[0] => r0,
                inout("x1") args[1] => _,
                inout("x2") args[2] => _,
                inout("x3") args[3] => _,
                inout("x4") args[4] => _,
                inout("x5") ctx => _,
                inout("x6") code => _,
                inout("x16") callee => _,
                clobber_abi("C"),
            );
        }
        r0
    }

    pub(super) unsafe fn stop(ctx: *mut RunCtx) -> ! {
        // SAFETY: the `exit_*` fields were stored by the `enter` that is still on the stack.
        unsafe {
            asm!(
                "ldr x16, [x0, #{exit_sp}]",
                "ldr x17, [x0, #{exit_pc}]",
                "ldp x19, x29, [x0, #{exit_saved}]",
                "mov sp, x16",
                // Unlike a jump, a return needs no landing pad.
                "ret x17",
                exit_saved = const RunCtx::EXIT_SAVED_OFFSET,
                exit_sp = const RunCtx::EXIT_SP_OFFSET,
                exit_pc = const RunCtx::EXIT_PC_OFFSET,
                in("x0") ctx,
                options(noreturn),
            )
        }
    }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
mod imp {
    use super::RunCtx;

    pub(super) unsafe fn enter(_: *const u8, _: *const u8, _: [u64; 5], ctx: *mut RunCtx) -> u64 {
        // SAFETY: `ctx` is valid by the caller's contract. There is no backend here, so no code to enter can exist.
        unsafe { (*ctx).stop_code = bpf_jit_code::StopCode::Host as u32 };
        0
    }

    pub(super) unsafe fn enter_unstoppable(_: *const u8, _: *const u8, _: [u64; 5], _: *mut RunCtx) -> u64 {
        // There is no backend here, so no code to enter can exist.
        std::process::abort()
    }

    pub(super) unsafe fn stop(_: *mut RunCtx) -> ! {
        // No emitted code exists on this architecture, so no run of it can be stopped.
        std::process::abort()
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    /// Stands in for emitted code: returns the instruction at which a stop would land.
    unsafe extern "C" fn landing(_: u64, _: u64, _: u64, _: u64, _: u64, ctx: *const RunCtx) -> u64 {
        // SAFETY: the hidden argument of a run.
        let exit_pc = unsafe { (*ctx).exit_pc };
        // SAFETY: the entry sequence stored the address of its own code, of which more than four bytes follow.
        u64::from(unsafe { core::ptr::with_exposed_provenance::<u32>(exit_pc as usize).read_unaligned() })
    }

    #[test]
    fn a_stop_lands_on_a_landing_pad() {
        // All integers, for which 0 is a value.
        let mut ctx = core::mem::MaybeUninit::<RunCtx>::zeroed();
        let code = landing as *const () as *const u8;
        // SAFETY: a C function of these arguments is entered as emitted code is.
        let found = unsafe { enter(code, code, [0; 5], ctx.as_mut_ptr()) };
        assert_eq!(found, 0xfa1e_0ff3, "endbr64");
    }
}
