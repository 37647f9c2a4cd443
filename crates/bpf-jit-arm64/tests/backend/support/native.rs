//! How the suite enters arm64 code, natively or under qemu-user, and checks the machine ABI while it does: the entry
//! sequence fills every callee-saved register with a known value, reports what it holds afterwards, and poisons the
//! others; the trampoline of functions outside passes the stack pointer on and overwrites all registers that a call may
//! overwrite.

use bpf_jit_code::RunCtx;
use bpf_jit_suite::{Host, Report, called};
use core::arch::{asm, naked_asm};

const PROT_BTI: i32 = 0x10;
const HWCAP2_BTI: u64 = 1 << 17;

/// x19 to x28.
const SAVED: [u64; 10] = [0x1313, 0x1414, 0x1515, 0x1616, 0x1717, 0x1818, 0x1919, 0x1a1a, 0x1b1b, 0x1c1c];

/// This host.
pub(crate) const HOST: Host = Host { enter, saved: &SAVED, guard: PROT_BTI, synchronise };

/// Whether guarded code is checked for landing pads.
pub(crate) fn checks_landing_pads() -> bool {
    // SAFETY: reads a value the kernel passed to the process.
    unsafe { libc::getauxval(libc::AT_HWCAP2) & HWCAP2_BTI != 0 }
}

fn synchronise(code: &[u8]) {
    let start = code.as_ptr() as usize;
    for line in (start & !15..start + code.len()).step_by(16) {
        // SAFETY: cache maintenance of a readable address changes no memory.
        unsafe { asm!("dc cvau, {0}", "dsb ish", "ic ivau, {0}", in(reg) line) };
    }
    // SAFETY: barriers.
    unsafe { asm!("dsb ish", "isb") };
}

/// ldr x16, trampoline; ldr w17, symbol; br x16; nop; .quad trampoline; .word symbol
pub(crate) fn stub(symbol: u32) -> Vec<u8> {
    let words: [u32; 4] = [0x5800_0090, 0x1800_00b1, 0xd61f_0200, 0xd503_201f];
    let trampoline = trampoline as *const () as u64;
    let code: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    [&code[..], &trampoline.to_le_bytes(), &symbol.to_le_bytes()].concat()
}

/// Calls `entry`, and stores x19 to x28 to the report, or that the run was stopped.
#[unsafe(naked)]
unsafe extern "C" fn enter(entry: u64, args: &[u64; 5], ctx: &mut RunCtx, report: &mut Report) -> u64 {
    naked_asm!(
        "stp x29, x30, [sp, #-112]!",
        "stp x19, x20, [sp, #16]",
        "stp x21, x22, [sp, #32]",
        "stp x23, x24, [sp, #48]",
        "stp x25, x26, [sp, #64]",
        "stp x27, x28, [sp, #80]",
        "str x3, [sp, #96]",
        "mov x16, x0",
        "mov x5, x2",
        "mov x7, sp",
        "adr x8, 2f",
        "str x7, [x5, {exit_sp}]",
        "str x8, [x5, {stop_to}]",
        "mov x7, x1",
        "ldp x0, x1, [x7]",
        "ldp x2, x3, [x7, #16]",
        "ldr x4, [x7, #32]",
        "mov x6, #0x6bad",
        "mov x7, #0x7bad",
        "mov x8, #0x8bad",
        "mov x9, #0x9bad",
        "mov x10, #0xabad",
        "mov x11, #0xbbad",
        "mov x12, #0xcbad",
        "mov x13, #0xdbad",
        "mov x14, #0xebad",
        "mov x15, #0xfbad",
        "mov x17, #0x1bad",
        "mov x19, #0x1313",
        "mov x20, #0x1414",
        "mov x21, #0x1515",
        "mov x22, #0x1616",
        "mov x23, #0x1717",
        "mov x24, #0x1818",
        "mov x25, #0x1919",
        "mov x26, #0x1a1a",
        "mov x27, #0x1b1b",
        "mov x28, #0x1c1c",
        "blr x16",
        "ldr x9, [sp, #96]",
        "add x9, x9, {saved}",
        "stp x19, x20, [x9]",
        "stp x21, x22, [x9, #16]",
        "stp x23, x24, [x9, #32]",
        "stp x25, x26, [x9, #48]",
        "stp x27, x28, [x9, #64]",
        "b 3f",
        // Where a stop lands, with the hidden argument in x0. It need not restore anything else.
        "2:",
        "ldr x9, [x0, {exit_sp}]",
        "mov sp, x9",
        "mov x0, #0",
        "ldr x9, [sp, #96]",
        "mov x10, #1",
        "str x10, [x9, {stopped}]",
        "3:",
        "ldp x27, x28, [sp, #80]",
        "ldp x25, x26, [sp, #64]",
        "ldp x23, x24, [sp, #48]",
        "ldp x21, x22, [sp, #32]",
        "ldp x19, x20, [sp, #16]",
        "ldp x29, x30, [sp], #112",
        "ret",
        exit_sp = const RunCtx::EXIT_SP_OFFSET,
        stop_to = const RunCtx::STOP_TO_OFFSET,
        stopped = const core::mem::offset_of!(Report, stopped),
        saved = const core::mem::offset_of!(Report, saved),
    )
}

/// Every function outside: w17 = its number. The number and the stack pointer are the seventh and the eighth argument.
#[unsafe(naked)]
unsafe extern "C" fn trampoline() {
    naked_asm!(
        "mov x7, sp",
        "mov w6, w17",
        "and x16, x7, #-16",
        "mov sp, x16",
        "stp x7, x30, [sp, #-16]!",
        "bl {called}",
        "ldp x7, x30, [sp], #16",
        "mov sp, x7",
        "mov x1, #0x1dad",
        "mov x2, #0x2dad",
        "mov x3, #0x3dad",
        "mov x4, #0x4dad",
        "mov x5, #0x5dad",
        "mov x6, #0x6dad",
        "mov x7, #0x7dad",
        "mov x8, #0x8dad",
        "mov x9, #0x9dad",
        "mov x10, #0xadad",
        "mov x11, #0xbdad",
        "mov x12, #0xcdad",
        "mov x13, #0xddad",
        "mov x14, #0xedad",
        "mov x15, #0xfdad",
        "mov x16, #0x0dad",
        "mov x17, #0x7ead",
        "cmp x0, x0",
        "ret",
        called = sym called,
    )
}
