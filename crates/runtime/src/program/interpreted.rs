//! What the interpreter executes of a program: instances share it.

use bpf_analysis::{AccessCheck, ArenaFact, Facts, MemKind, RegionBounds};
use bpf_isa::{InsnIdx, Program};

/// What the interpreter executes.
#[derive(Debug)]
pub(crate) struct Interpreted {
    pub(crate) program: Program,
    /// What the verifier left to run time.
    pub(crate) left: Left,
    /// Whether it was verified.
    pub(crate) verified: bool,
}

impl Interpreted {
    /// A program whose references are bound, with what is known of it.
    pub(crate) fn new(program: Program, facts: &Facts) -> Interpreted {
        let accesses_arena = |at: &InsnIdx| facts.insn(*at).memory == Some(MemKind::Arena);
        let arena = facts.arena.map(|arena| {
            let insns = (0..crate::num::small(program.insns().len())).map(InsnIdx).filter(accesses_arena);
            (arena, insns.collect())
        });
        let left = Left {
            accesses: facts.checks.clone(),
            regions: facts.regions.clone(),
            arena,
            exception: facts.exception.map(|sub| InsnIdx(program.subprogs()[sub.index()].start)),
            #[cfg(feature = "oracle")]
            zeroed: facts.zeroed.clone(),
        };
        // Facts say something of every instruction, or nobody has found out any.
        Interpreted { left, verified: !facts.insns.is_empty(), program }
    }
}

/// What a hybrid verification left to run time.
#[derive(Debug, Default)]
pub(crate) struct Left {
    /// Ascending by instruction.
    pub(crate) accesses: Vec<AccessCheck>,
    /// The bounds of the context's regions.
    pub(crate) regions: Vec<RegionBounds>,
    /// The program's arena, and the instructions that access it, ascending.
    pub(crate) arena: Option<(ArenaFact, Vec<InsnIdx>)>,
    /// What is called with what the program throws.
    pub(crate) exception: Option<InsnIdx>,
    /// What must be zero in frames. The interpreter's always are, unless a test fills them.
    #[cfg(feature = "oracle")]
    pub(crate) zeroed: Vec<bpf_analysis::Zeroed>,
}
