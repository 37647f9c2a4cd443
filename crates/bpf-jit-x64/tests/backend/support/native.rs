//! How the suite enters x86-64 code, and checks the machine ABI while it does: the entry sequence fills every
//! callee-saved register with a known value and reports what it holds afterwards; the trampoline of functions outside
//! passes the stack pointer on and overwrites all registers that a call may overwrite.

use bpf_jit_code::RunCtx;
use bpf_jit_suite::{Host, Report, called};

/// rbx, rbp, r12 to r15.
const SAVED: [u64; 6] =
    [0x1111_0000_0000_0003, 0x2222_0000_0000_0005, 0x3333_000c, 0x4444_000d, 0x5555_000e, 0x6666_000f];

/// Value of each caller-saved register after a call.
pub(crate) const POISON: u64 = 0xdead_0100_dead_0100;

core::arch::global_asm!(
    // fn bpf_x64_test_enter(entry: u64, args: &[u64; 5], ctx: &mut RunCtx, report: &mut Report) -> u64
    ".globl bpf_x64_test_enter",
    "bpf_x64_test_enter:",
    "push rbx", "push rbp", "push r12", "push r13", "push r14", "push r15",
    "push rcx",
    "mov rax, rdi",
    "mov r11, rsi",
    "mov r9, rdx",
    "mov [r9 + {exit_sp}], rsp",
    "lea r10, [rip + 2f]",
    "mov [r9 + {stop_to}], r10",
    "mov rdi, [r11]", "mov rsi, [r11 + 8]", "mov rdx, [r11 + 16]", "mov rcx, [r11 + 24]", "mov r8, [r11 + 32]",
    "movabs rbx, {rbx}", "movabs rbp, {rbp}", "mov r12, {r12}", "mov r13, {r13}", "mov r14, {r14}", "mov r15, {r15}",
    "movabs r10, 0xdead10dead10dead", "movabs r11, 0xdead11dead11dead",
    "call rax",
    "pop rcx",
    "mov [rcx + {saved}], rbx", "mov [rcx + {saved} + 8], rbp", "mov [rcx + {saved} + 16], r12",
    "mov [rcx + {saved} + 24], r13", "mov [rcx + {saved} + 32], r14", "mov [rcx + {saved} + 40], r15",
    "jmp 3f",
    // Where a stop lands, with the hidden argument in rdi.
    "2:",
    "mov rsp, [rdi + {exit_sp}]",
    "pop rcx",
    "mov qword ptr [rcx + {stopped}], 1",
    "3:",
    "pop r15", "pop r14", "pop r13", "pop r12", "pop rbp", "pop rbx",
    "ret",
    // Every function outside: eax = its number. The stack pointer before the return address was pushed, and the
    // number, are the eighth and the seventh argument.
    ".globl bpf_x64_test_called",
    "bpf_x64_test_called:",
    "mov r11, rsp",
    "lea r10, [rsp + 8]",
    "and rsp, -16",
    "push r11", "push r11",
    "push r10", "push rax",
    "call {called}",
    "mov rsp, [rsp + 16]",
    "movabs rcx, {poison}",
    "mov rdx, rcx", "mov rsi, rcx", "mov rdi, rcx", "mov r8, rcx", "mov r9, rcx", "mov r10, rcx", "mov r11, rcx",
    "ret",
    exit_sp = const RunCtx::EXIT_SP_OFFSET,
    stop_to = const RunCtx::STOP_TO_OFFSET,
    stopped = const core::mem::offset_of!(Report, stopped),
    saved = const core::mem::offset_of!(Report, saved),
    rbx = const SAVED[0], rbp = const SAVED[1], r12 = const SAVED[2], r13 = const SAVED[3], r14 = const SAVED[4],
    r15 = const SAVED[5],
    poison = const POISON,
    called = sym called,
);

unsafe extern "C" {
    fn bpf_x64_test_enter(entry: u64, args: &[u64; 5], ctx: &mut RunCtx, report: &mut Report) -> u64;
    fn bpf_x64_test_called();
}

/// This host. Instruction fetch sees the thread's own stores, and nothing here asks for landing pads.
pub(crate) const HOST: Host = Host { enter: bpf_x64_test_enter, saved: &SAVED, guard: 0, synchronise: |_| {} };

/// mov eax, symbol; jmp [rip]; .quad trampoline.
pub(crate) fn stub(symbol: u32) -> Vec<u8> {
    let trampoline = bpf_x64_test_called as *const () as u64;
    [&[0xb8][..], &symbol.to_le_bytes(), &[0xff, 0x25, 0, 0, 0, 0], &trampoline.to_le_bytes()].concat()
}
