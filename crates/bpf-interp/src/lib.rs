//! Memory-checking BPF interpreter: the reference, and the safe engine.
//!
//! Problem: the compiled engines need an oracle, and hosts without a backend, or without trust in a program, need an
//! engine that no program can harm. Approach: execute [`bpf_isa::Program`] directly, with one plain `match` arm per
//! instruction, and look every memory access up in the regions given to the run. Helpers, maps, tail-call targets and
//! the host's own memory are provided through one trait, [`Env`].
//!
//! Invariants: no program can access memory that was not given to the run, recurse without bound, or make this crate
//! panic; with [`Options::budget`] or [`Options::interrupt`], no program runs for ever. Unsafe code is in `memory`
//! only. Nothing else is checked: uninitialised registers read as zero, because proving their initialisation is the
//! verifier's task.
//!
//! ```
//! use bpf_interp::{Machine, Memory, NoHost, Options};
//! use bpf_isa::{Program, assemble};
//!
//! let program = Program::new(assemble("r0 = *(u16 *)(r1 + 2)\nr0 += r2\nexit")?)?;
//! let data = [1, 2, 3, 4];
//! let mut memory = Memory::new();
//! let r1 = memory.add_read_only(&data);
//! let mut machine = Machine::new(memory, Options::default());
//! let r0 = machine.run(&mut NoHost::new(), &&program, [r1, data.len() as u64])?;
//! assert_eq!(r0, 0x0403 + 4);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![cfg_attr(not(test), warn(clippy::cast_possible_truncation))]
#![deny(unsafe_code)]

mod alu;
mod exec;
mod machine;
#[allow(unsafe_code, reason = "the one module that touches the program's memory")]
mod memory;
mod stop;

use core::borrow::Borrow;
use core::marker::PhantomData;

use bpf_isa::{Imm64, InsnIdx, Program};
use bpf_uapi::legacy_load::LegacyBase;

pub use machine::{Caller, MAX_TAIL_CALLS, Machine, Options};
pub use memory::{DEFAULT_STACK_BYTES, HostMemory, Memory};
pub use stop::{Stop, StopKind};

/// The functions and memory that a host provides to the programs it runs.
pub trait Env {
    /// The host's type for a program: `&Program`, `Arc<Program>`, or a type of its own that also knows the program's
    /// maps and host functions.
    type Code: Borrow<Program> + Clone;

    /// Calls the helper `id`, and returns r0.
    ///
    /// # Errors
    /// The run ends with the [`Stop`]: [`StopKind::UnknownHelper`] if there is no such helper, [`Caller::fail`] for a
    /// failure.
    fn helper(&mut self, id: u32, args: [u64; 5], caller: &mut Caller<'_, '_, Self::Code>) -> Result<u64, Stop>;

    /// Calls the host function `id`, and returns r0. By default there is none.
    ///
    /// # Errors
    /// As for [`Env::helper`], with [`StopKind::UnknownHostFunction`].
    fn host_function(
        &mut self,
        id: i32,
        _args: [u64; 5],
        caller: &mut Caller<'_, '_, Self::Code>,
    ) -> Result<u64, Stop> {
        Err(caller.stop(StopKind::UnknownHostFunction(id)))
    }

    /// Called when the budget is spent, at a jump back to `head` (`None`: at a call). Returns how
    /// many ticks the program may take from here on, at least 1. By default the run stops.
    ///
    /// # Errors
    /// Fails if the run stops.
    fn spent(&mut self, _head: Option<InsnIdx>, _code: &Self::Code) -> Result<u64, StopKind> {
        Err(StopKind::Budget)
    }

    /// Called before each nested frame, of a call or of a call back: each takes some stack of the thread, and a run may
    /// have 34 times [`bpf_isa::MAX_CALL_DEPTH`] of them. By default does nothing, at no cost.
    ///
    /// # Errors
    /// The run ends at the call, with [`StopKind::Stack`] if the host's stack does not suffice.
    #[inline]
    fn enters(&mut self, _machine: &Machine<'_>) -> Result<(), StopKind> {
        Ok(())
    }

    /// The program in slot `index` of the prog array that a program knows as `array`; `None` if the slot is empty,
    /// and the call falls through. By default there is none.
    ///
    /// The interpreter counts tail calls, and does not call this after [`MAX_TAIL_CALLS`] were taken in the run. The
    /// program begins with r1 as at the call and r2 as at the start of the run, because a raw context is a pointer
    /// and a length.
    ///
    /// # Errors
    /// The run ends with the [`Stop`], for instance because `array` is no prog array.
    fn tail_call(
        &mut self,
        _array: u64,
        _index: u32,
        _caller: &mut Caller<'_, '_, Self::Code>,
    ) -> Result<Option<Self::Code>, Stop> {
        Ok(None)
    }

    /// The value of a map, map value or variable that a program of the host refers to. By default there is none.
    fn resolve(&mut self, _code: &Self::Code, _imm: Imm64) -> Option<u64> {
        None
    }

    /// Grants an access to bytes that are not in the run's [`Memory`], mostly map values; `None` refuses it. By
    /// default all are refused.
    fn region(&mut self, _addr: u64, _len: u64, _write: bool) -> Option<HostMemory<'_>> {
        None
    }

    /// The address of the load, store or atomic at this step, whose base register holds `base`: for accesses that a
    /// verifier has found to be addressed in another way. By default the sum of base and offset.
    fn address(&mut self, _step: &Step<'_, Self::Code>, base: u64, off: i16) -> u64 {
        base.wrapping_add(off as u64)
    }

    /// The function that is called with the value that the program has thrown ([`Caller::throw`]), and whose result
    /// the program returns. By default there is none, and the program returns the thrown value.
    fn exception(&self, _code: &Self::Code) -> Option<InsnIdx> {
        None
    }

    /// Position of the header that an offset of LD_ABS or LD_IND is relative to, in bytes from the packet's start;
    /// `None` if the packet has no such header. By default the packet begins with its link header, and has no network
    /// header.
    fn header(&mut self, _code: &Self::Code, base: LegacyBase) -> Option<i64> {
        match base {
            LegacyBase::Packet | LegacyBase::Link => Some(0),
            LegacyBase::Network => None,
        }
    }

    /// The upper half of the user addresses of the program's arena; its lower half must be 0. The default is 0.
    fn user_half(&self, _code: &Self::Code) -> u64 {
        0
    }

    /// Whether the instruction may be executed, for checks that a verifier left to run time. Called before each
    /// instruction. By default true, at no cost.
    fn admits(&mut self, _step: &Step<'_, Self::Code>) -> bool {
        true
    }

    /// The bytes of its frame that the function at `start` expects to be zero: offset below r10, and length. Called
    /// only where frames are not zero anyway ([`Options::stack_fill`]). The default is none.
    fn zeroed(&self, _code: &Self::Code, _start: InsnIdx) -> Option<(usize, usize)> {
        None
    }

    /// Called before each instruction. By default does nothing, at no cost.
    fn observe(&mut self, _step: &Step<'_, Self::Code>, _machine: &Machine<'_>) {}
}

/// An instruction about to be executed, in the innermost frame of [`Machine::frames`].
#[derive(Debug)]
pub struct Step<'s, C> {
    /// The program.
    pub code: &'s C,
    /// The instruction.
    pub at: InsnIdx,
    /// The registers r0 to r10.
    pub regs: &'s [u64; 11],
}

/// A host that provides nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoHost<'p>(PhantomData<&'p Program>);

impl NoHost<'_> {
    /// The host that provides nothing.
    pub fn new() -> Self {
        NoHost(PhantomData)
    }
}

impl<'p> Env for NoHost<'p> {
    type Code = &'p Program;

    fn helper(&mut self, id: u32, _args: [u64; 5], caller: &mut Caller<'_, '_, &'p Program>) -> Result<u64, Stop> {
        Err(caller.stop(StopKind::UnknownHelper(id)))
    }
}
