//! Runs emitted code inside the test, and checks the machine ABI while it does.
//!
//! One readable, writable and executable page range a process, rewritten for every program: a test may do what the
//! runtime must not. The entry sequence fills every callee-saved register with a known value and looks for it
//! afterwards; every external function checks the stack's alignment and overwrites all registers a call may overwrite.

use super::random::WITH_CTX;
use bpf_isa::SubprogId;
use bpf_jit::Lir;
use bpf_jit::eval::{Env, Eval, Outcome, Region};
use bpf_jit_code::{Code, RelocKind, RunCtx, StopCode, Symbol};
use std::cell::RefCell;
use std::sync::{Mutex, MutexGuard};

/// Symbols from here on are addresses of nothing: the value is all that matters.
pub(crate) const DATA: u32 = 0x100;

/// What an external function was called with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Called {
    pub(crate) symbol: u32,
    pub(crate) args: [u64; 5],
    pub(crate) ctx: u64,
}

thread_local! {
    static CALLS: RefCell<Vec<Called>> = const { RefCell::new(Vec::new()) };
    /// Stack pointer of the caller at each of them, the return address pushed.
    static STACKS: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

/// The result of an external function: depends on all it was given.
fn mix(symbol: u32, args: &[u64]) -> u64 {
    args.iter().fold(u64::from(symbol) + 0x9e37, |h, a| (h ^ a).wrapping_mul(0x0100_0000_01b3).rotate_left(17))
}

/// Where the assembly below delivers a call of the external function `symbol`.
extern "C" fn called(
    a: u64,
    b: u64,
    c: u64,
    d: u64,
    e: u64,
    ctx: u64,
    symbol: u64,
    misaligned: u64,
    stack: u64,
) -> u64 {
    let symbol = symbol as u32;
    let mut args = [a, b, c, d, e];
    let arity = (symbol & 7) as usize;
    args[arity..].fill(0);
    // A symbol of ones makes a misaligned stack visible in the result instead of panicking through foreign frames.
    let ctx = if symbol & WITH_CTX != 0 { ctx } else { 0 };
    let symbol = if misaligned == 0 { symbol } else { u32::MAX };
    STACKS.with_borrow_mut(|stacks| stacks.push(stack));
    CALLS.with_borrow_mut(|calls| calls.push(Called { symbol, args, ctx }));
    mix(symbol, &args[..arity])
}

/// What the entry sequence reports.
#[repr(C)]
#[derive(Default)]
struct Report {
    /// rbx, rbp, r12 to r15 after a return.
    saved: [u64; 6],
    /// 1 if the run left through the exit frame.
    stopped: u64,
}

const SAVED: [u64; 6] =
    [0x1111_0000_0000_0003, 0x2222_0000_0000_0005, 0x3333_000c, 0x4444_000d, 0x5555_000e, 0x6666_000f];

core::arch::global_asm!(
    // fn bpf_x64_test_enter(code, args: *const [u64; 5], ctx: *mut RunCtx, report: *mut Report) -> u64
    ".globl bpf_x64_test_enter",
    "bpf_x64_test_enter:",
    "push rbx", "push rbp", "push r12", "push r13", "push r14", "push r15",
    "push rcx",
    "mov rax, rdi",
    "mov r11, rsi",
    "mov r9, rdx",
    "mov [r9 + {exit_sp}], rsp",
    "lea r10, [rip + 2f]",
    "mov [r9 + {exit_pc}], r10",
    "mov rdi, [r11]", "mov rsi, [r11 + 8]", "mov rdx, [r11 + 16]", "mov rcx, [r11 + 24]", "mov r8, [r11 + 32]",
    "movabs rbx, {rbx}", "movabs rbp, {rbp}", "mov r12, {r12}", "mov r13, {r13}", "mov r14, {r14}", "mov r15, {r15}",
    "movabs r10, 0xdead10dead10dead", "movabs r11, 0xdead11dead11dead",
    "call rax",
    "pop rcx",
    "mov [rcx], rbx", "mov [rcx + 8], rbp", "mov [rcx + 16], r12", "mov [rcx + 24], r13", "mov [rcx + 32], r14",
    "mov [rcx + 40], r15",
    "jmp 3f",
    "2:",
    "pop rcx",
    "mov qword ptr [rcx + 48], 1",
    "3:",
    "pop r15", "pop r14", "pop r13", "pop r12", "pop rbp", "pop rbx",
    "ret",
    // Every external function: eax = its number, from a stub in the code buffer.
    ".globl bpf_x64_test_called",
    "bpf_x64_test_called:",
    "lea r10, [rsp + 8]",
    "and r10, 15",
    "mov r11, rsp",
    "and rsp, -16",
    "push r11", "push r11",
    "push r10", "push rax",
    "call {called}",
    "mov rsp, [rsp + 16]",
    "movabs rcx, 0xdead0100dead0100",
    "mov rdx, rcx", "mov rsi, rcx", "mov rdi, rcx", "mov r8, rcx", "mov r9, rcx", "mov r10, rcx", "mov r11, rcx",
    "ret",
    exit_sp = const RunCtx::EXIT_SP_OFFSET,
    exit_pc = const RunCtx::EXIT_PC_OFFSET,
    rbx = const SAVED[0], rbp = const SAVED[1], r12 = const SAVED[2], r13 = const SAVED[3], r14 = const SAVED[4],
    r15 = const SAVED[5],
    called = sym called,
);

unsafe extern "C" {
    fn bpf_x64_test_enter(code: *const u8, args: *const [u64; 5], ctx: *mut RunCtx, report: *mut Report) -> u64;
    fn bpf_x64_test_called();
}

const CODE_BYTES: usize = 4 << 20;

struct CodeBuffer(*mut u8);
// SAFETY: the mapping is never unmapped, and the mutex around the only CodeBuffer serialises its use.
unsafe impl Send for CodeBuffer {}

fn code_buffer() -> MutexGuard<'static, Option<CodeBuffer>> {
    static BUFFER: Mutex<Option<CodeBuffer>> = Mutex::new(None);
    let mut guard = BUFFER.lock().unwrap_or_else(|e| e.into_inner());
    guard.get_or_insert_with(|| {
        let prot = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a fresh anonymous mapping wherever the kernel likes touches nothing that exists.
        let at = unsafe { libc::mmap(core::ptr::null_mut(), CODE_BYTES, prot, flags, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED, "no executable memory for the tests");
        CodeBuffer(at.cast())
    });
    guard
}

/// The address of symbols from [`DATA`] on.
pub(crate) fn data_address(symbol: Symbol) -> u64 {
    0x1234_5600_0000_0000 | u64::from(symbol.index)
}

/// How a run ended, and what it called on the way.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Run {
    pub(crate) outcome: Outcome,
    pub(crate) calls: Vec<Called>,
    /// The hidden argument's fields that code may change.
    pub(crate) tail_calls: u32,
    pub(crate) budget: i64,
    pub(crate) memory: Vec<u8>,
}

/// The state a run starts from.
#[derive(Clone, Debug)]
pub(crate) struct Start {
    pub(crate) args: [u64; 5],
    /// Passed as r4; replaces `args[3]` by its address.
    pub(crate) memory: Vec<u8>,
    pub(crate) tail_calls: u32,
    pub(crate) interrupt: u32,
    pub(crate) budget: i64,
    pub(crate) packet_len: u64,
    /// The entry that direct tail-call sites are linked to.
    pub(crate) linked: Option<u64>,
}

impl Start {
    pub(crate) fn new(args: [u64; 5], memory: Vec<u8>) -> Start {
        Start { args, memory, tail_calls: 0, interrupt: 0, budget: 1 << 40, packet_len: 99, linked: None }
    }
    fn ctx(&self) -> RunCtx {
        RunCtx {
            tail_calls: self.tail_calls,
            stop_code: 0,
            stop_insn: 0,
            interrupt: self.interrupt,
            budget: self.budget,
            exit_sp: 0,
            exit_pc: 0,
            exit_saved: [0; 2],
            packet: 0,
            packet_len: self.packet_len,
            host_env: 0,
            slot: 0,
            context: 0,
            stop_pc: 0,
        }
    }
}

/// A program in the code buffer, relocated.
pub(crate) struct Placed {
    buffer: MutexGuard<'static, Option<CodeBuffer>>,
    /// Offset of the first free byte after the code and its stubs.
    pub(crate) end: usize,
}

impl Placed {
    /// Copies `code` to the start of the buffer and applies its relocations.
    pub(crate) fn new(code: &Code) -> Placed {
        let buffer = code_buffer();
        let mut bytes = code.bytes.clone();
        for reloc in &code.relocs {
            let at = reloc.at as usize;
            match reloc.kind {
                RelocKind::X64Rel32 => {
                    // A stub: mov eax, symbol; jmp [rip]; .quad target.
                    let stub = bytes.len();
                    bytes.push(0xb8);
                    bytes.extend_from_slice(&reloc.symbol.index.to_le_bytes());
                    bytes.extend_from_slice(&[0xff, 0x25, 0, 0, 0, 0]);
                    bytes.extend_from_slice(&(bpf_x64_test_called as *const () as u64).to_le_bytes());
                    let rel = (stub as i64 - (at as i64 + 4)) as i32;
                    bytes[at..at + 4].copy_from_slice(&rel.to_le_bytes());
                }
                RelocKind::X64Abs64 => {
                    bytes[at..at + 8].copy_from_slice(&data_address(reloc.symbol).to_le_bytes());
                }
                other => panic!("{other:?} in x86-64 code"),
            }
        }
        let mut placed = Placed { buffer, end: 0 };
        placed.write(0, &bytes);
        placed.end = bytes.len();
        placed
    }

    fn at(&self, offset: usize) -> *mut u8 {
        let base = self.buffer.as_ref().map_or(core::ptr::null_mut(), |b| b.0);
        base.wrapping_add(offset)
    }

    pub(crate) fn address(&self, offset: usize) -> u64 {
        self.at(offset) as u64
    }

    /// Writes code or data.
    pub(crate) fn write(&mut self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= CODE_BYTES);
        let to = self.at(offset);
        // SAFETY: the range lies in the mapping (checked above), which this guard holds exclusively.
        unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
    }

    /// Enters the code at `entry`.
    pub(crate) fn run(&self, entry: usize, start: &Start) -> Run {
        let mut memory = start.memory.clone();
        let mut ctx = start.ctx();
        let mut args = start.args;
        args[3] = memory.as_mut_ptr() as u64;
        let mut report = Report::default();
        CALLS.with_borrow_mut(Vec::clear);
        STACKS.with_borrow_mut(Vec::clear);
        // SAFETY: the code was emitted by the backend under test from a program whose accesses stay in `memory`, its
        // own stack and `ctx`, all of which outlive the call; that it keeps the ABI is what the tests are
        // about.
        let value = unsafe { bpf_x64_test_enter(self.at(entry), &args, &mut ctx, &mut report) };
        let outcome = if report.stopped == 1 {
            Outcome::Stop { code: StopCode::new(ctx.stop_code).expect("a stop code"), insn: ctx.stop_insn }
        } else {
            assert_eq!(report.saved, SAVED, "callee-saved registers");
            Outcome::Exit(value)
        };
        let mut calls = CALLS.with_borrow_mut(core::mem::take);
        // From the entry sequence's stack pointer down to the caller's, without the return address of the call itself.
        STACKS.with_borrow_mut(|stacks| stacks.iter_mut().for_each(|s| *s = ctx.exit_sp - *s - 8));
        let here = &raw const ctx as u64;
        for call in &mut calls {
            assert_ne!(call.symbol, u32::MAX, "the stack is misaligned at a call");
            if call.symbol & WITH_CTX != 0 {
                assert_eq!(call.ctx, here, "the hidden argument");
                call.ctx = 1;
            }
        }
        Run { outcome, calls, tail_calls: ctx.tail_calls, budget: ctx.budget, memory }
    }
}

/// How deep the machine stack was at each external call of the last run.
pub(crate) fn stack_depths() -> Vec<u64> {
    STACKS.with_borrow(Vec::clone)
}

struct Outside<'a> {
    calls: Vec<Called>,
    start: &'a Start,
}

impl Env for Outside<'_> {
    fn symbol(&mut self, symbol: Symbol) -> u64 {
        data_address(symbol)
    }
    fn subprog(&mut self, _: SubprogId) -> u64 {
        panic!("a test that looks at a subprogram's address does so itself")
    }
    fn call(&mut self, symbol: Symbol, given: [Option<u64>; 5], ctx: Option<u64>) -> u64 {
        let arity = (symbol.index & 7) as usize;
        let mut args = [0; 5];
        for (to, from) in args.iter_mut().zip(given).take(arity) {
            *to = from.expect("the test passes as many arguments as the symbol says");
        }
        let ctx = if symbol.index & WITH_CTX != 0 { ctx.map_or(0, |_| 1) } else { 0 };
        self.calls.push(Called { symbol: symbol.index, args, ctx });
        mix(symbol.index, &args[..arity])
    }
    fn linked(&mut self, _: Symbol, _: u32) -> Option<u64> {
        self.start.linked
    }
}

/// What the evaluator says.
pub(crate) fn evaluate(lir: &Lir, start: &Start) -> Run {
    let ctx = start.ctx();
    let mut ctx_bytes = vec![0u8; size_of::<RunCtx>()];
    let mut put = |offset: i32, bytes: &[u8]| {
        ctx_bytes[offset as usize..offset as usize + bytes.len()].copy_from_slice(bytes);
    };
    put(RunCtx::TAIL_CALLS_OFFSET, &ctx.tail_calls.to_le_bytes());
    put(RunCtx::INTERRUPT_OFFSET, &ctx.interrupt.to_le_bytes());
    put(RunCtx::BUDGET_OFFSET, &ctx.budget.to_le_bytes());
    put(RunCtx::PACKET_LEN_OFFSET, &ctx.packet_len.to_le_bytes());

    const MEMORY: u64 = 0x0100_0000_0000;
    const CTX: u64 = 0x0200_0000_0000;
    const STACK: u64 = 0x0300_0000_0000;
    let memory = Region { base: MEMORY, bytes: start.memory.clone() };
    let mut eval = Eval::new(vec![memory, Region { base: CTX, bytes: ctx_bytes }], STACK);
    let mut args = start.args;
    args[3] = MEMORY;
    let mut env = Outside { calls: Vec::new(), start };
    let outcome = eval.run(lir, args, CTX, &mut env).expect("the test's program is well defined");
    let field = |offset: i32| eval.load(CTX + offset as u64, bpf_isa::Size::DW).expect("a field");
    Run {
        outcome,
        calls: env.calls,
        tail_calls: field(RunCtx::TAIL_CALLS_OFFSET) as u32,
        budget: field(RunCtx::BUDGET_OFFSET) as i64,
        memory: eval.memory[0].bytes.clone(),
    }
}
