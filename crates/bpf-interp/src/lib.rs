//! Memory-checking BPF interpreter: the reference, and the safe engine.
//!
//! Problem: the compiled engines need an oracle, and hosts without a backend or without trust in a program need an
//! engine that no program can harm. Approach: execute [`bpf_isa::Program`] as it is, one plain `match` arm an
//! instruction, and look every memory access up in the regions the run was given. What the host provides (helpers,
//! maps, tail-call targets, memory of its own) comes in through one trait, [`Env`].
//!
//! Invariants: no program can read or write memory the run was not given, recurse without bound, or make this crate
//! panic; with [`Options::budget`] or [`Options::interrupt`], none can run for ever. Unsafe code is in `memory` only.
//! Nothing else is checked: uninitialised registers read as zero, since proving otherwise is the verifier's work.
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

/// What a host provides to the programs it runs.
pub trait Env {
    /// A program as the host holds it: `&Program`, `Arc<Program>`, or a type of its own that also knows what the
    /// program's maps and host functions are.
    type Code: Borrow<Program> + Clone;

    /// Calls the helper `id`, and returns r0.
    ///
    /// # Errors
    /// The run ends with the [`Stop`]: [`StopKind::UnknownHelper`] if there is none, [`Caller::fail`] for a failure.
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

    /// The program in slot `index` of the prog array that a program knows as `array`; `None` if there is none, and
    /// the call falls through. By default there is none.
    ///
    /// The interpreter keeps count: it does not ask when the run has taken [`MAX_TAIL_CALLS`]. The program begins with
    /// r1 as at the call and r2 as the run's own, since a raw context is a pointer and a length.
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

    /// The value of a map, map value or variable that a program of the host refers to. By default nothing is bound.
    fn resolve(&mut self, _code: &Self::Code, _imm: Imm64) -> Option<u64> {
        None
    }

    /// Whether a program may access these bytes, which are not in the run's [`Memory`]: map values, mostly. By default
    /// it may not.
    fn region(&mut self, _addr: u64, _len: u64, _write: bool) -> Option<HostMemory<'_>> {
        None
    }

    /// Where the load, store or atomic at this step is made, whose base register holds `base`: for what a verifier has
    /// found to be addressed in another way. By default at the sum of the two.
    fn address(&mut self, _step: &Step<'_, Self::Code>, base: u64, off: i16) -> u64 {
        base.wrapping_add(off as u64)
    }

    /// The function that is called with what the program has thrown ([`Caller::throw`]), and returns what the program
    /// does. By default there is none, and the program returns what was thrown.
    fn exception(&self, _code: &Self::Code) -> Option<InsnIdx> {
        None
    }

    /// Position of the header that an offset of LD_ABS or LD_IND counts from, in bytes from the packet's start; `None`
    /// if the packet has no such header. By default the packet begins with its link header, and has no network header.
    fn header(&mut self, _code: &Self::Code, base: LegacyBase) -> Option<i64> {
        match base {
            LegacyBase::Packet | LegacyBase::Link => Some(0),
            LegacyBase::Network => None,
        }
    }

    /// The upper half of the user addresses of the program's arena; the lower half is 0. By default all of it is.
    fn user_half(&self, _code: &Self::Code) -> u64 {
        0
    }

    /// Whether the instruction may be executed: for what a verifier left to be checked at run time. Called before each
    /// one. By default it may, and that costs nothing.
    fn admits(&mut self, _step: &Step<'_, Self::Code>) -> bool {
        true
    }

    /// What a function, which begins at `start`, relies on to be zero in its frame: from r10 - depth, so many bytes.
    /// Asked only where frames are not zero anyway ([`Options::stack_fill`]). By default nothing.
    fn zeroed(&self, _code: &Self::Code, _start: InsnIdx) -> Option<(usize, usize)> {
        None
    }

    /// Called before each instruction. By default does nothing, and costs nothing.
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
