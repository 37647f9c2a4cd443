//! Calls of generated code, in each way that a program may be called: the only assembly in the benchmarks.
//!
//! The callees are functions without arguments ([`crate::layout::stub`]).

/// Calls through a pointer, as the compiler does.
///
/// # Safety
/// `callee` is the entry of a [`crate::layout::stub`] that stays.
#[inline(always)]
pub unsafe fn indirect(callee: usize) -> u64 {
    // SAFETY: `callee` is a stub's entry (contract), all that the call needs.
    unsafe { imp::indirect(callee) }
}

/// Says whether this architecture has retpolines.
pub const HAS_RETPOLINES: bool = cfg!(target_arch = "x86_64");

/// Calls through a retpoline, as a compiler does with retpolines on; through a pointer on an architecture without
/// them.
///
/// # Safety
/// As for [`indirect`].
#[inline(always)]
pub unsafe fn retpolined(callee: usize) -> u64 {
    // SAFETY: `callee` is a stub's entry (contract), all that the call needs.
    unsafe { imp::retpolined(callee) }
}

/// Calls `callee` through the compare tree at `tree`.
///
/// # Safety
/// As for [`indirect`]; and `tree` is the entry of a tree that stays.
#[inline(always)]
pub unsafe fn through(tree: *const u8, callee: usize) -> u64 {
    // SAFETY: `callee` is a stub's entry and `tree` a tree's (contract), all that the call needs.
    unsafe { imp::through(tree, callee) }
}

#[cfg(target_arch = "x86_64")]
mod imp {
    use std::arch::{asm, global_asm};

    global_asm!(
        ".globl bpf_benches_retpoline_rax",
        ".hidden bpf_benches_retpoline_rax",
        ".p2align 5",
        "bpf_benches_retpoline_rax:",
        "call 3f",
        "2:",
        "pause",
        "lfence",
        "jmp 2b",
        ".p2align 4",
        "3:",
        "mov [rsp], rax",
        "ret",
    );

    unsafe extern "C" {
        /// Jumps to the address in rax.
        fn bpf_benches_retpoline_rax();
    }

    #[inline(always)]
    pub(super) unsafe fn indirect(callee: usize) -> u64 {
        let result;
        // SAFETY: a function without arguments; the compiler aligns the stack for asm.
        unsafe { asm!("call rax", inout("rax") callee => result, clobber_abi("sysv64")) };
        result
    }

    #[inline(always)]
    pub(super) unsafe fn retpolined(callee: usize) -> u64 {
        let result;
        // SAFETY: a function without arguments, reached by the thunk, which changes nothing but the stack below it;
        // the compiler aligns the stack for asm.
        unsafe {
            asm!("call {}", sym bpf_benches_retpoline_rax, inout("rax") callee => result, clobber_abi("sysv64"));
        }
        result
    }

    #[inline(always)]
    pub(super) unsafe fn through(tree: *const u8, callee: usize) -> u64 {
        let result;
        // SAFETY: the tree jumps to a function without arguments and overwrites nothing that the C convention keeps;
        // the compiler aligns the stack for asm.
        unsafe { asm!("call r8", in("r8") tree, inout("rax") callee => result, clobber_abi("sysv64")) };
        result
    }
}

#[cfg(target_arch = "aarch64")]
mod imp {
    use std::arch::asm;

    #[inline(always)]
    pub(super) unsafe fn indirect(callee: usize) -> u64 {
        let result;
        // SAFETY: a function without arguments.
        unsafe { asm!("blr x16", in("x16") callee, lateout("x0") result, clobber_abi("C")) };
        result
    }

    pub(super) use indirect as retpolined;

    #[inline(always)]
    pub(super) unsafe fn through(tree: *const u8, callee: usize) -> u64 {
        let result;
        // SAFETY: the tree jumps to a function without arguments and overwrites nothing that the C convention keeps.
        unsafe { asm!("blr x6", in("x6") tree, in("x16") callee, lateout("x0") result, clobber_abi("C")) };
        result
    }
}
