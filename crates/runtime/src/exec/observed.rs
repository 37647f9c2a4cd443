//! An interpreted run as a tool sees it: each instruction, the registers, the memory.

use crate::exec::watch::Watch;
use crate::program::interpreted::Interpreted;
use crate::program::loaded::Loaded;
use bpf_interp::Machine;
use bpf_isa::{Callee, Imm64, Insn, InsnIdx, Program};
use bpf_quiesce::caught;
use bpf_uapi::helper_id::TAIL_CALL;
use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// A tool that looks at a run before each instruction: [`Program::run_observed`](crate::Program::run_observed),
/// [`Recording::replay`](crate::observe::Recording::replay).
pub trait Observer {
    /// Called before each instruction. Returns whether the run goes on.
    fn step(&mut self, step: &Observed<'_>) -> bool;
}

/// Looks at nothing.
impl Observer for () {
    fn step(&mut self, _: &Observed<'_>) -> bool {
        true
    }
}

/// A run before one of its instructions.
pub struct Observed<'s> {
    at: InsnIdx,
    regs: &'s [u64; 11],
    machine: &'s Machine<'s>,
}

impl fmt::Debug for Observed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observed").field("at", &self.at).field("regs", &self.regs).finish_non_exhaustive()
    }
}

impl<'s> Observed<'s> {
    pub(crate) fn new(at: InsnIdx, regs: &'s [u64; 11], machine: &'s Machine<'s>) -> Observed<'s> {
        Observed { at, regs, machine }
    }

    /// The instruction that is about to be executed.
    pub fn at(&self) -> InsnIdx {
        self.at
    }

    /// The registers r0 to r10 of the innermost function.
    pub fn regs(&self) -> &[u64; 11] {
        self.regs
    }

    /// Number of functions that have begun and not returned.
    pub fn frames(&self) -> usize {
        self.machine.frames()
    }

    /// Reads the run's own memory: its stacks, its context, and the memory that the context points to. `None` if some
    /// of the bytes are none of these.
    pub fn read(&self, address: u64, len: usize) -> Option<Vec<u8>> {
        // Before a buffer of this size is made.
        if len > MAX_READ {
            return None;
        }
        let mut bytes = vec![0; len];
        self.machine.peek(address, &mut bytes).then_some(bytes)
    }
}

/// Returns the instruction for which the instructions of machine code cannot be interpreted in its place, and what it
/// is: prog arrays and timers hold addresses of machine code there.
pub(crate) fn refused(loaded: &Loaded, what: &Interpreted) -> Option<(InsnIdx, &'static str)> {
    if loaded.interpreted().is_some() {
        return None;
    }
    let sets_timers = loaded.timer_program().is_some();
    let refused = |insn: &Insn| match insn {
        Insn::Call(Callee::Helper(TAIL_CALL)) => Some("a tail call"),
        Insn::LoadImm64 { imm: Imm64::Func(_), .. } if sets_timers => Some("a function for a timer"),
        _other => None,
    };
    // Programs have fewer instructions than 2^32.
    let at = |(at, insn)| Some((InsnIdx(crate::num::small(at)), refused(insn)?));
    what.program.insns().iter().enumerate().find_map(at)
}

/// Bytes that are read at once, at most.
const MAX_READ: usize = 16 << 20;

/// A run under observation. A panic of the observer ends the run as an answer of `false` does and is kept: it must not
/// unwind through helpers that call the program back.
pub(crate) struct Observing<'o> {
    observer: &'o mut dyn Observer,
    goes_on: bool,
    panicked: Option<Box<dyn Any + Send>>,
}

impl<'o> Observing<'o> {
    pub(crate) fn new(observer: &'o mut dyn Observer) -> Observing<'o> {
        Observing { observer, goes_on: true, panicked: None }
    }

    /// Returns the result of the run, which is over. The panic of the observer, if there was one, goes on.
    pub(crate) fn finish<T>(self, result: T) -> T {
        match self.panicked {
            Some(panic) => {
                let _ = caught(|| drop(result));
                resume_unwind(panic)
            }
            None => result,
        }
    }
}

impl Watch for Observing<'_> {
    fn step(&mut self, at: InsnIdx, regs: &[u64; 11], _: &Program, machine: &Machine<'_>) {
        let step = || self.observer.step(&Observed::new(at, regs, machine));
        self.goes_on = catch_unwind(AssertUnwindSafe(step)).unwrap_or_else(|panic| {
            self.panicked = Some(panic);
            false
        });
    }

    fn goes_on(&mut self) -> bool {
        self.goes_on
    }
}
