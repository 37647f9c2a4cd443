//! A watch of an interpreted run is told of each instruction, of each access to memory that others share, and of each
//! call.
//!
//! A run that nobody watches has the watch `()`, whose methods are empty: its code is that of an interpreter without
//! them.

use bpf_interp::{Machine, Stop};
use bpf_isa::{InsnIdx, Program};

/// A watch of one run. Its methods do not panic: helpers that call the program back may be on the stack.
pub(crate) trait Watch {
    /// Called before each instruction.
    #[inline(always)]
    fn step(&mut self, _at: InsnIdx, _regs: &[u64; 11], _program: &Program, _machine: &Machine<'_>) {}

    /// Whether the run goes on with the instruction of the last [`Watch::step`].
    #[inline(always)]
    fn goes_on(&mut self) -> bool {
        true
    }

    /// An access or an argument leads out of the run's own memory, to this address.
    #[inline(always)]
    fn foreign(&mut self, _address: u64) {}

    /// A reference to a map or a value has this value.
    #[inline(always)]
    fn resolved(&mut self, _value: Option<u64>) {}

    /// A function of the host begins.
    #[inline(always)]
    fn call_begins(&mut self, _machine: &Machine<'_>) {}

    /// The function of the host that is called at `at` calls back the program.
    #[inline(always)]
    fn calls_back(&mut self, _machine: &Machine<'_>, _at: InsnIdx, _callback: u64, _args: [u64; 5]) {}

    /// The program has returned from the call back.
    #[inline(always)]
    fn called_back(&mut self, _machine: &Machine<'_>) {}

    /// The function of the host that is called at `at` ends.
    #[inline(always)]
    fn call_ends(&mut self, _machine: &Machine<'_>, _at: InsnIdx, _result: &Result<u64, Stop>, _thrown: bool) {}

    /// The run has ended.
    #[inline(always)]
    fn ends(&mut self, _machine: &Machine<'_>) {}
}

/// Nobody watches.
impl Watch for () {}

impl<W: Watch> Watch for &mut W {
    fn step(&mut self, at: InsnIdx, regs: &[u64; 11], program: &Program, machine: &Machine<'_>) {
        (**self).step(at, regs, program, machine);
    }

    fn goes_on(&mut self) -> bool {
        (**self).goes_on()
    }

    fn foreign(&mut self, address: u64) {
        (**self).foreign(address);
    }

    fn resolved(&mut self, value: Option<u64>) {
        (**self).resolved(value);
    }

    fn call_begins(&mut self, machine: &Machine<'_>) {
        (**self).call_begins(machine);
    }

    fn calls_back(&mut self, machine: &Machine<'_>, at: InsnIdx, callback: u64, args: [u64; 5]) {
        (**self).calls_back(machine, at, callback, args);
    }

    fn called_back(&mut self, machine: &Machine<'_>) {
        (**self).called_back(machine);
    }

    fn call_ends(&mut self, machine: &Machine<'_>, at: InsnIdx, result: &Result<u64, Stop>, thrown: bool) {
        (**self).call_ends(machine, at, result, thrown);
    }

    fn ends(&mut self, machine: &Machine<'_>) {
        (**self).ends(machine);
    }
}
