//! The tests that every backend must pass, written once.
//!
//! A backend turns [`Lir`] into machine code, and `bpf_jit::eval` defines the meaning of `Lir`. So the tested
//! properties do not depend on the machine: every op, at every width, on edge values, with its result in the register
//! of an operand and in another, under production's, small and random register allocations, with and without optional
//! instructions and hardening; ops with fixed registers under every assignment of registers; calls, stops, tail
//! calls, frames; and random programs of all of it. Each program is emitted, run in this process, and compared with
//! the evaluator: result, memory, the hidden argument's fields, and the calls made.
//!
//! The machine-dependent part is a [`Target`]: the backend's entry points, the stub and the branch that a test needs,
//! and, on a host that can run the code, an entry sequence ([`Host`]). `suite!(Target)` in a test file of the
//! backend's crate expands to one `#[test]` per function of [`tests`]. On any other host the programs are emitted and
//! must decode.
//!
//! The code here is not generic: the target is a trait object, so that the tests are compiled once and not for each
//! backend.
//!
//! Invariants: the evaluator has memory and the hidden argument at the addresses that the code sees. The compiler
//! checks lists of ops for completeness ([`Kind`] and `every!`), and a test of this crate fails if an op occurs
//! neither in the directed tests nor in random programs.

mod alu;
mod assignments;
mod bench;
mod build;
mod call;
mod check;
mod control;
mod frame;
mod host;
mod kinds;
mod memory;
mod pairs;
mod random;
mod refused;
mod tail_call;

pub use bench::{Bench, Start, Way};
pub use build::Build;
pub use host::{Called, Host, Report, Run, Text, called};
pub use kinds::{CONSTANTS, EDGES, Kind, Rng};
pub use random::random_program;

use bpf_jit::{Alloc, EmitError, EmitOptions, Lir, MachineDesc};
use bpf_jit_code::{Arch, Code, Reloc};

/// A backend, and the host for its code if the tests run on one.
pub trait Target {
    /// The architecture of the code.
    fn arch(&self) -> Arch;
    /// The machine to allocate for.
    fn machine(&self, options: &EmitOptions) -> &'static MachineDesc;
    /// Emits code, as `Backend::emit`.
    ///
    /// # Errors
    /// The backend's errors.
    fn emit(&mut self, lir: &Lir, allocs: &[Alloc], options: &EmitOptions, code: &mut Code) -> Result<(), EmitError>;
    /// The largest length of code for `lir`, in bytes.
    fn size_bound(&self, lir: &Lir) -> usize;
    /// The tested options of the emitter: without and with optional instructions, then with all hardening, then with
    /// hardening and every callee-saved register saved.
    fn options(&self) -> [EmitOptions; 4];
    /// Panics unless all of the code decodes.
    fn assert_decodes(&self, code: &Code);
    /// The code of an external function, at most 32 bytes, which goes to [`called`] through the trampoline of the
    /// host with this number. Not called on a host that cannot run code.
    fn stub(&self, symbol: u32) -> Vec<u8>;
    /// Writes the relocated field of the code at `bytes`, whose first byte lies at `address`: a call of `to`, or its
    /// address.
    fn relocate(&self, bytes: &mut [u8], address: u64, reloc: &Reloc, to: u64);
    /// The address of a symbol that is only read, as large as the machine's relocations allow.
    fn data_address(&self, symbol: u32) -> u64;
    /// A branch over `distance` bytes, from its own start, in the form of a patch slot.
    fn branch(&self, distance: i64) -> Vec<u8>;
    /// A no-op in the form of a patch slot.
    fn nop(&self) -> Vec<u8>;
    /// How this host enters code; `None` on a host that cannot run it.
    fn host(&self) -> Option<Host>;
    /// Number of random programs to try: fewer where code is usually emulated.
    fn programs(&self) -> u64;
}

macro_rules! tests {
    ($d:tt $($module:ident { $($test:ident)* })*) => {
        /// The tests. Each panics if the target fails it.
        pub mod tests {
            $(pub use crate::$module::{$($test),*};)*
        }

        /// A test and its name.
        pub type Named = (&'static str, fn(&mut dyn Target));

        /// All of [`tests`].
        pub const ALL: &[Named] = &[$($((stringify!($test), crate::$module::$test)),*),*];

        /// Expands to one `#[test]` per test of the suite, for the target that the expression makes.
        #[macro_export]
        macro_rules! suite {
            ($d target:expr) => {
                $($(
                    #[test]
                    fn $test() {
                        $crate::tests::$test(&mut $d target);
                    }
                )*)*
            };
        }
    };
}

tests! { $
    alu {
        arithmetic_by_register division_by_register shifts_by_register every_pair_by_register arithmetic_by_constant
        division_by_constant shifts_by_constant moves_extensions_and_byte_order constants_reach_registers_and_slots
    }
    memory { loads stores addresses indexed ordered_accesses atomics compare_and_exchange addresses_of_symbols }
    control {
        selections selections_in_place confined jumps branches conditions_on_every_pair conditions_by_constant switches jump_tables
        far_branches long_loops
    }
    pairs { loaded_operands loaded_comparisons results_compared_with_zero selections_in_a_row }
    check { checks bounds stops loops_end_with_the_budget }
    call { calls arguments_in_any_order subprograms nested_subprograms call_backs far_subprogram_addresses }
    frame { frames frames_are_as_large_as_stated_and_aligned }
    tail_call {
        indirect_tail_calls the_limit_counts_jumps_taken tail_calls_from_subprograms direct_tail_calls
    }
    assignments { every_division every_shift every_atomic byte_stores_and_two_operand_arithmetic }
    random { random_programs }
    refused { malformed_input_is_refused }
}

#[cfg(test)]
mod complete;
