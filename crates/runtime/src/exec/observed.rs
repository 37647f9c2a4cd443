//! An interpreted run as a tool sees it: each instruction, the registers, the memory.

use crate::exec::watch::{Place, Watch};
use bpf_interp::Machine;
use bpf_isa::{Insn, InsnIdx};
use bpf_quiesce::{caught, drop_payload};
use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// A tool that looks at a run before each instruction: [`Program::run_observed`](crate::Program::run_observed),
/// [`Recording::replay`](crate::observe::Recording::replay).
pub trait Observer {
    /// Called before each instruction. Returns whether the run goes on: if not, it ends with
    /// [`RunError::Access`](crate::RunError::Access) at this instruction, and a replay with
    /// [`ReplayError::Ended`](crate::observe::ReplayError::Ended). A panic of the observer ends a run too, and goes on
    /// when the run is over.
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
    place: &'s Place<'s>,
    regs: &'s [u64; 11],
    machine: &'s Machine<'s>,
}

impl fmt::Debug for Observed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observed").field("at", &self.place.at).field("regs", &self.regs).finish_non_exhaustive()
    }
}

impl<'s> Observed<'s> {
    pub(crate) fn new(place: &'s Place<'s>, regs: &'s [u64; 11], machine: &'s Machine<'s>) -> Observed<'s> {
        Observed { place, regs, machine }
    }

    /// The instruction that is about to be executed.
    pub fn at(&self) -> InsnIdx {
        self.place.at
    }

    /// That instruction itself.
    pub fn insn(&self) -> &Insn {
        // The interpreter has found it there.
        &self.place.program.insns()[self.place.at.index()]
    }

    /// The program that the instruction belongs to: 0 for the one that the run began with, n for the one that the n-th
    /// tail call has entered. When the function that made a tail call returns, this may be an earlier one again.
    pub fn program(&self) -> usize {
        self.place.number
    }

    /// The name of that program.
    pub fn name(&self) -> &str {
        self.place.name
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

    /// Returns the result of the run, which is over. The panic of the observer, if there was one, goes on; a second
    /// one, of a subscriber that was told of the run's end, is dropped behind it.
    pub(crate) fn finish<T>(self, result: std::thread::Result<T>) -> T {
        match (self.panicked, result) {
            (None, Ok(result)) => result,
            (None, Err(panic)) => resume_unwind(panic),
            (Some(panic), result) => {
                match result {
                    Ok(result) => drop(caught(|| drop(result))),
                    Err(second) => drop_payload(second),
                }
                resume_unwind(panic)
            }
        }
    }
}

impl Watch for Observing<'_> {
    fn step(&mut self, place: &Place<'_>, regs: &[u64; 11], machine: &Machine<'_>) {
        let step = || self.observer.step(&Observed::new(place, regs, machine));
        self.goes_on = catch_unwind(AssertUnwindSafe(step)).unwrap_or_else(|panic| {
            self.panicked = Some(panic);
            false
        });
    }

    fn goes_on(&mut self) -> bool {
        self.goes_on
    }
}
