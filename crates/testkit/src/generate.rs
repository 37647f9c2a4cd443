//! Programs for differential testing: valid, terminating and well-defined by construction.
//!
//! Problem: two engines can only be compared on programs whose result is defined, so a generator must never read an
//! uninitialised register, leave its memory, unalign an atomic, loop for ever, or let an address flow into the
//! result. Approach: no filtering. The generator writes structured code (blocks, branches, counted loops, calls) and
//! tracks which registers hold defined *scalars*; addresses live in places it never reads as data.
//!
//! Invariants of a [`Generated`] program:
//! * [`bpf_isa::Program::new`] accepts it;
//! * it ends within about [`Shape::steps`] instructions;
//! * it reads and writes only its own stack frames and the `memory.len()` bytes at r1, which the caller aligns to 8
//!   bytes;
//! * r0, the memory, and whether it ends are functions of the memory alone (and of [`helper`]).
//!
//! The same choices give the same program: a seed, or the bytes of a fuzzer. Fewer bytes give a smaller
//! program, so that proptest and libFuzzer shrink. [`wild`] makes the opposite: bytes that are hardly a program.

mod aliases;
mod arenas;
mod choices;
mod function;
mod minimise;
mod pressure;
mod statements;
mod steps;
mod wild;

pub use aliases::aliases;
pub use arenas::{ARENA_WORDS, arenas};
pub use choices::Choices;
pub use minimise::minimise;
pub use pressure::pressure;
pub use steps::steps;
pub use wild::wild;

use bpf_isa::{Insn, Program};
use function::Function;
use proptest::prelude::{Strategy, any};

/// The id of the test helper that generated programs call.
pub const HELPER_ID: u32 = 0x7e57;

/// The test helper: a function of all of its five arguments and of nothing else.
pub fn helper(args: [u64; 5]) -> u64 {
    args.iter().fold(0x9e37_79b9_7f4a_7c15, |hash, arg| (hash ^ arg).wrapping_mul(0x0100_0000_01b3).rotate_left(23))
}

/// Constructs that generated programs may contain.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Bytes at r1: a power of two, at least 16.
    pub memory: u32,
    /// Statements of a function, about; each is one to a dozen instructions.
    pub statements: u32,
    /// Instructions a run may take, about.
    pub steps: u64,
    /// Subprograms, at most.
    pub subprogs: u32,
    /// Calls of the helper [`HELPER_ID`].
    pub helper: bool,
    /// LD_ABS and LD_IND, which read the run's packet; the caller makes it the memory.
    pub packet_loads: bool,
    /// Only what the kernel's verifier takes: no unreachable code, no over-wide shift, no division by a constant zero.
    pub kernel: bool,
}

impl Default for Shape {
    fn default() -> Shape {
        Shape {
            memory: 64,
            statements: 24,
            steps: 20_000,
            subprogs: 2,
            helper: true,
            packet_loads: false,
            kernel: false,
        }
    }
}

impl Shape {
    /// Shape of programs that the kernel accepts as a [`crate::kernel::RawProgram`]. They are smaller, because its
    /// verifier walks every path.
    pub fn kernel() -> Shape {
        Shape { statements: 12, steps: 2_000, helper: false, kernel: true, ..Shape::default() }
    }
}

/// A program and the memory it starts with.
#[derive(Clone, Debug)]
pub struct Generated {
    /// The program.
    pub program: Program,
    /// Memory that r1 points to, at an address that is a multiple of 8; r2 is its length.
    pub memory: Vec<u8>,
}

/// A program made of these choices.
///
/// # Panics
/// If the program is not valid: a bug of the generator.
pub fn generate(choices: &mut Choices<'_>, shape: &Shape) -> Generated {
    // Callees first: their cost bounds how often they may be called.
    let count = choices.below(shape.subprogs + 1);
    let mut callees: Vec<Function> = Vec::new();
    for _ in 0..count {
        let function = Function::generate(choices, shape, &callees, false);
        callees.push(function);
    }
    let main = Function::generate(choices, shape, &callees, true);
    let insns = link(main, callees);
    let memory = (0..shape.memory).map(|_| choices.byte()).collect();
    let program = Program::new(insns).expect("the generator makes valid programs");
    Generated { program, memory }
}

/// A program from a seed.
pub fn from_seed(seed: u64, shape: &Shape) -> Generated {
    generate(&mut Choices::from_seed(seed), shape)
}

/// Generated programs as a proptest strategy.
pub fn strategy(shape: Shape) -> impl Strategy<Value = Generated> {
    proptest::collection::vec(any::<u8>(), 0..4096)
        .prop_map(move |bytes| generate(&mut Choices::from_bytes(&bytes), &shape))
}

/// Lays the functions out, main first, and resolves the calls. A function nobody calls is left out: it would be
/// unreachable code.
fn link(main: Function, callees: Vec<Function>) -> Vec<Insn> {
    let mut called = vec![false; callees.len()];
    let mut work: Vec<usize> = main.callees().collect();
    while let Some(callee) = work.pop() {
        if !std::mem::replace(&mut called[callee], true) {
            work.extend(callees[callee].callees());
        }
    }
    let mut starts = vec![0; callees.len()];
    let mut at = main.len();
    for (i, callee) in callees.iter().enumerate() {
        if called[i] {
            starts[i] = at;
            at += callee.len();
        }
    }
    let mut insns = Vec::with_capacity(at);
    let kept = callees.into_iter().zip(called).filter_map(|(callee, called)| called.then_some(callee));
    for function in std::iter::once(main).chain(kept) {
        function.place(&mut insns, &starts);
    }
    insns
}

#[cfg(test)]
mod tests;
