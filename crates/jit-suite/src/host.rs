//! Running emitted code in the test's process.
//!
//! Code lies in one readable, writable and executable mapping per test, after the code placed before; a test may do
//! so, the runtime may not. The target's entry sequence ([`Host::enter`]) fills every callee-saved register with a
//! known value and reports its contents afterwards. Every external function is a stub that leads to the target's
//! trampoline, which passes arguments, number and stack pointer to [`called`], and overwrites all caller-saved
//! registers.

use crate::Target;
use bpf_jit::eval::Outcome;
use bpf_jit_code::{Code, RunCtx, Symbol};
use std::cell::RefCell;
use std::collections::BTreeMap;

/// The bit in an external function's number that makes calls pass the hidden argument.
pub(crate) const WITH_CTX: u32 = 8;
/// An external function that calls its first argument with the others.
pub(crate) const CALL_BACK: Symbol = Symbol::new(0x10);
/// Symbols from this number on are addresses of nothing: only the value matters.
pub(crate) const DATA: u32 = 0x100;
/// The address of the memory.
pub(crate) const MEMORY_SYMBOL: Symbol = Symbol::new(0x1000);

/// The report of an entry sequence.
#[derive(Default, Debug)]
#[repr(C)]
pub struct Report {
    /// 1 if the run left through the exit frame.
    pub stopped: u64,
    /// The callee-saved registers after a return.
    pub saved: [u64; 16],
}

/// How this host enters code.
#[derive(Clone, Copy, Debug)]
pub struct Host {
    /// Calls the code at `entry` by docs/book/reference/abi.md, after setting the callee-saved registers to `saved`.
    ///
    /// # Safety
    /// The code at `entry` follows the ABI, and all its accesses are permitted.
    pub enter: unsafe extern "C" fn(entry: u64, args: &[u64; 5], ctx: &mut RunCtx, report: &mut Report) -> u64,
    /// The values that the callee-saved registers are set to.
    pub saved: &'static [u64],
    /// The protection bits of a mapping in which indirect branches must lead to landing pads; 0 if the host has none.
    pub guard: i32,
    /// Makes code that was written to this range executable on this thread.
    pub synchronise: fn(&[u8]),
}

/// A call of an external function.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Called {
    /// The number of the function.
    pub symbol: u32,
    /// The arguments; their count follows from the number.
    pub args: [u64; 5],
    /// 1 if it was passed the hidden argument.
    pub ctx: u64,
}

thread_local! {
    static CALLS: RefCell<Vec<Called>> = const { RefCell::new(Vec::new()) };
    /// The stack pointer at each call, before a return address is pushed.
    static STACKS: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

/// The result of an external function, which depends on all its arguments.
pub(crate) fn mix(symbol: u32, args: &[u64]) -> u64 {
    args.iter().fold(u64::from(symbol) + 0x9e37, |h, a| (h ^ a).wrapping_mul(0x0100_0000_01b3).rotate_left(17))
}

/// The number of arguments of an external function.
pub(crate) fn arity(symbol: u32) -> usize {
    (symbol & 7) as usize
}

/// Receives the calls that a target's trampoline passes on. `stack`: the caller's stack pointer, before a return
/// address was pushed.
#[allow(clippy::too_many_arguments, reason = "five arguments, the hidden one, and what the trampoline knows")]
pub extern "C" fn called(a: u64, b: u64, c: u64, d: u64, e: u64, ctx: u64, symbol: u64, stack: u64) -> u64 {
    let symbol = symbol as u32;
    STACKS.with_borrow_mut(|stacks| stacks.push(stack));
    if symbol == CALL_BACK.index {
        // SAFETY: the tests that use it pass the address of a subprogram, whose ABI is that of a C function of six
        // arguments.
        let f: extern "C" fn(u64, u64, u64, u64, u64, u64) -> u64 = unsafe { core::mem::transmute(a) };
        return f(b, c, d, e, 0, ctx);
    }
    let mut args = [a, b, c, d, e];
    args[arity(symbol)..].fill(0);
    let ctx = if symbol & WITH_CTX != 0 { ctx } else { 0 };
    CALLS.with_borrow_mut(|calls| calls.push(Called { symbol, args, ctx }));
    mix(symbol, &args[..arity(symbol)])
}

/// The outcome of a run, and its effects.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Run {
    /// The outcome.
    pub outcome: Outcome,
    /// The external functions it called.
    pub calls: Vec<Called>,
    /// The memory.
    pub memory: Vec<u64>,
    /// The fields of the hidden argument that code reads or writes, at their offsets.
    pub ctx: Vec<u8>,
}

impl Run {
    /// Number of tail calls counted.
    pub fn tail_calls(&self) -> u32 {
        let at = RunCtx::TAIL_CALLS_OFFSET as usize;
        self.ctx[at..at + 4].iter().rev().fold(0, |n, byte| n << 8 | u32::from(*byte))
    }
}

/// Codes in executable memory.
#[derive(Debug)]
pub struct Text {
    /// Address of the entry of each code's first function.
    pub entries: Vec<u64>,
    /// Address of each code's first byte.
    pub starts: Vec<u64>,
    guarded: bool,
}

/// Executable memory: one mapping without and one with landing pads checked.
#[derive(Debug, Default)]
pub(crate) struct Machine {
    mappings: [Option<Mapping>; 2],
}

#[derive(Debug)]
struct Mapping {
    base: *mut u8,
    /// Offset of the free part.
    next: usize,
}

const CODE_BYTES: usize = 64 << 20;

impl Mapping {
    fn new(guard: i32) -> Mapping {
        let prot = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC | guard;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: an anonymous mapping at an address of the kernel's choice replaces nothing.
        let base = unsafe { libc::mmap(core::ptr::null_mut(), CODE_BYTES, prot, flags, -1, 0) };
        assert_ne!(base, libc::MAP_FAILED, "no executable memory for the tests");
        Mapping { base: base.cast(), next: 0 }
    }

    fn write(&mut self, at: usize, bytes: &[u8], host: &Host) {
        assert!(at + bytes.len() <= CODE_BYTES);
        let to = self.base.wrapping_add(at);
        // SAFETY: the range lies in our own mapping (checked above), to which no reference exists and in which no
        // code runs: code runs only within `Machine::run`, which borrows it.
        unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        // SAFETY: the same range of our own mapping, just written.
        (host.synchronise)(unsafe { core::slice::from_raw_parts(to, bytes.len()) });
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: our own mapping, in which no code runs.
        unsafe { libc::munmap(self.base.cast(), CODE_BYTES) };
    }
}

impl Machine {
    fn mapping(&mut self, guarded: bool, host: &Host) -> &mut Mapping {
        self.mappings[usize::from(guarded)].get_or_insert_with(|| Mapping::new(if guarded { host.guard } else { 0 }))
    }

    /// Places relocated codes after those placed before. `memory` is the address of the tests' memory.
    pub(crate) fn place(
        &mut self,
        target: &dyn Target,
        host: &Host,
        codes: &[Code],
        guarded: bool,
        memory: u64,
    ) -> Text {
        let mapping = self.mapping(guarded, host);
        let room = codes.iter().map(|code| code.bytes.len() + Code::ALIGN + 32 * code.relocs.len()).sum::<usize>();
        assert!(room <= CODE_BYTES, "the test's codes together are larger than the mapping");
        if mapping.next + room > CODE_BYTES {
            mapping.next = 0;
        }
        let begin = mapping.next;
        let base = mapping.base as u64 + begin as u64;
        let mut bytes = Vec::with_capacity(room);
        let mut stubs = BTreeMap::new();
        for reloc in codes.iter().flat_map(|code| &code.relocs) {
            let symbol = reloc.symbol.index;
            if symbol < DATA {
                stubs.entry(symbol).or_insert_with(|| {
                    let at = base + bytes.len() as u64;
                    bytes.extend_from_slice(&target.stub(symbol));
                    bytes.resize(bytes.len().next_multiple_of(Code::ALIGN), 0);
                    at
                });
            }
        }
        let (mut entries, mut starts) = (Vec::new(), Vec::new());
        for code in codes {
            let at = bytes.len();
            let start = base + at as u64;
            bytes.extend_from_slice(&code.bytes);
            for reloc in &code.relocs {
                let to = match reloc.symbol {
                    MEMORY_SYMBOL => memory,
                    Symbol { index, .. } if index >= DATA => target.data_address(index),
                    Symbol { index, .. } => stubs[&index],
                };
                target.relocate(&mut bytes[at..], start, reloc, to);
            }
            bytes.resize(bytes.len().next_multiple_of(Code::ALIGN), 0);
            starts.push(start);
            entries.push(start + u64::from(code.entries.first().copied().unwrap_or(0)));
        }
        mapping.next = begin + bytes.len();
        mapping.write(begin, &bytes, host);
        Text { entries, starts, guarded }
    }

    /// Writes to placed code.
    pub(crate) fn patch(&mut self, host: &Host, text: &Text, address: u64, bytes: &[u8]) {
        let mapping = self.mapping(text.guarded, host);
        mapping.write((address - mapping.base as u64) as usize, bytes, host);
    }

    /// Enters code. Returns its result (0 if it was stopped), whether it was stopped, and its calls. Adds the depth
    /// of the machine stack at each call to `depths`.
    pub(crate) fn run(
        &mut self,
        host: &Host,
        entry: u64,
        args: &[u64; 5],
        ctx: &mut RunCtx,
        depths: &mut Vec<u64>,
    ) -> (Option<u64>, Vec<Called>) {
        let mut report = Report::default();
        CALLS.with_borrow_mut(Vec::clear);
        STACKS.with_borrow_mut(Vec::clear);
        // SAFETY: the code was placed by `place`, and emitted by the backend under test from a program whose accesses
        // stay in the tests' memory, its own stack and `ctx`, which outlive the call. The tests check that it
        // follows the ABI.
        let value = unsafe { (host.enter)(entry, args, ctx, &mut report) };
        let stopped = report.stopped == 1;
        if !stopped {
            assert_eq!(&report.saved[..host.saved.len()], host.saved, "a callee-saved register is broken");
        }
        depths.clear();
        STACKS.with_borrow(|stacks| {
            for stack in stacks {
                assert_eq!(stack % 16, 0, "the stack is misaligned at a call");
                depths.push(ctx.exit_sp.wrapping_sub(*stack));
            }
        });
        let here = core::ptr::from_ref(ctx) as u64;
        let mut calls = CALLS.with_borrow_mut(core::mem::take);
        for call in calls.iter_mut().filter(|call| call.symbol & WITH_CTX != 0) {
            assert_eq!(call.ctx, here, "the hidden argument");
            call.ctx = 1;
        }
        ((!stopped).then_some(value), calls)
    }
}
