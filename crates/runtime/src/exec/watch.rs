//! A watch of an interpreted run is told of each instruction, of each access to memory that others share, and of each
//! call.
//!
//! A run that nobody watches has the watch `()`, whose methods are empty: its code is that of an interpreter without
//! them.

use crate::program::interpreted::Interpreted;
use crate::program::loaded::Loaded;
use bpf_interp::{Machine, Stop};
use bpf_isa::{InsnIdx, Program};
use bpf_verifier::HelperProto;
use std::sync::Arc;

/// The place of a step.
#[derive(Clone, Copy)]
pub(crate) struct Place<'p> {
    /// The instruction.
    pub(crate) at: InsnIdx,
    /// Its program.
    pub(crate) program: &'p Program,
    /// The program's number in the run: 0, or the number of the tail call that has entered it.
    pub(crate) number: usize,
    /// The program's name.
    pub(crate) name: &'p str,
}

/// A watch of one run. Its methods do not panic: helpers that call the program back may be on the stack.
pub(crate) trait Watch {
    /// Called before each instruction.
    #[inline(always)]
    fn step(&mut self, _place: &Place<'_>, _regs: &[u64; 11], _machine: &Machine<'_>) {}

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

    /// A function of the host with this prototype begins.
    #[inline(always)]
    fn call_begins(&mut self, _machine: &Machine<'_>, _proto: &HelperProto) {}

    /// The function of the host that is called at `at` calls back the program.
    #[inline(always)]
    fn calls_back(&mut self, _machine: &Machine<'_>, _at: InsnIdx, _callback: u64, _args: [u64; 5]) {}

    /// The program has returned from the call back.
    #[inline(always)]
    fn called_back(&mut self, _machine: &Machine<'_>) {}

    /// The function of the host that is called at `at` ends.
    #[inline(always)]
    fn call_ends(&mut self, _machine: &Machine<'_>, _at: InsnIdx, _proto: &HelperProto, _result: &Result<u64, Stop>) {}

    /// The tail call at `at` enters this program, or none.
    #[inline(always)]
    fn tail_call(&mut self, _at: InsnIdx, _entered: Option<(&Loaded, &Arc<Interpreted>)>) {}

    /// The run has ended; `returned`: by a return of the program.
    #[inline(always)]
    fn ends(&mut self, _machine: &Machine<'_>, _returned: bool) {}
}

/// Nobody watches.
impl Watch for () {}

impl<W: Watch> Watch for &mut W {
    fn step(&mut self, place: &Place<'_>, regs: &[u64; 11], machine: &Machine<'_>) {
        (**self).step(place, regs, machine);
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

    fn call_begins(&mut self, machine: &Machine<'_>, proto: &HelperProto) {
        (**self).call_begins(machine, proto);
    }

    fn calls_back(&mut self, machine: &Machine<'_>, at: InsnIdx, callback: u64, args: [u64; 5]) {
        (**self).calls_back(machine, at, callback, args);
    }

    fn called_back(&mut self, machine: &Machine<'_>) {
        (**self).called_back(machine);
    }

    fn call_ends(&mut self, machine: &Machine<'_>, at: InsnIdx, proto: &HelperProto, result: &Result<u64, Stop>) {
        (**self).call_ends(machine, at, proto, result);
    }

    fn tail_call(&mut self, at: InsnIdx, entered: Option<(&Loaded, &Arc<Interpreted>)>) {
        (**self).tail_call(at, entered);
    }

    fn ends(&mut self, machine: &Machine<'_>, returned: bool) {
        (**self).ends(machine, returned);
    }
}
