//! The form of a program that the interpreter executes, shared by instances.

use crate::context::places::Places;
use bpf_analysis::{AccessCheck, ArenaFact, Facts, MemKind, RegionBounds};
use bpf_isa::{InsnIdx, Program};
use bpf_verifier::ContextLayout;
use core::sync::atomic::{AtomicU64, Ordering};

/// A program as the interpreter executes it.
#[derive(Debug)]
pub(crate) struct Interpreted {
    pub(crate) program: Program,
    /// The checks that the verifier left to run time.
    pub(crate) left: Left,
    /// Whether it was verified.
    pub(crate) verified: bool,
    /// Whether it may look at addresses: it is privileged.
    pub(crate) sees_addresses: bool,
    /// Where the memory of its context lies.
    pub(crate) places: Places,
    /// The executions of each instruction slot, if they are counted.
    counts: Option<Box<[AtomicU64]>>,
}

impl Interpreted {
    /// From a program whose references are resolved, and its facts.
    pub(crate) fn new(program: Program, facts: &Facts, layout: &ContextLayout, counted: bool) -> Interpreted {
        let accesses_arena = |at: &InsnIdx| facts.insn(*at).memory == Some(MemKind::Arena);
        let arena = facts.arena.map(|arena| {
            let insns = (0..crate::num::small(program.insns().len())).map(InsnIdx).filter(accesses_arena);
            (arena, insns.collect())
        });
        let left = Left {
            accesses: facts.checks.clone(),
            regions: facts.regions.clone(),
            yields: facts.yields.clone(),
            arena,
            exception: facts.exception.map(|sub| InsnIdx(program.subprogs()[sub.index()].start)),
            #[cfg(feature = "oracle")]
            zeroed: facts.zeroed.clone(),
        };
        // Facts of a verified program cover every instruction; without a verification there are none.
        let counts = counted.then(|| program.insns().iter().map(|_| AtomicU64::new(0)).collect());
        let places = Places::of(layout);
        Interpreted { left, verified: !facts.insns.is_empty(), sees_addresses: false, program, places, counts }
    }

    /// Sets whether the program may look at addresses.
    pub(crate) fn with_addresses(self, sees_addresses: bool) -> Interpreted {
        Interpreted { sees_addresses, ..self }
    }

    /// Counts an execution of the instruction at `at`.
    #[inline(always)]
    pub(crate) fn count(&self, at: InsnIdx) {
        if let Some(count) = self.counts.as_ref().and_then(|counts| counts.get(at.index())) {
            // Relaxed: a statistic.
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns the executions of each instruction slot, if they are counted.
    pub(crate) fn executed(&self) -> Option<Vec<u64>> {
        // Relaxed: a statistic.
        Some(self.counts.as_ref()?.iter().map(|count| count.load(Ordering::Relaxed)).collect())
    }
}

/// The checks that a hybrid verification left to run time.
#[derive(Debug, Default)]
pub(crate) struct Left {
    /// Ascending by instruction.
    pub(crate) accesses: Vec<AccessCheck>,
    /// The bounds of the context's regions.
    pub(crate) regions: Vec<RegionBounds>,
    /// Heads of loops at which a run may yield, ascending.
    pub(crate) yields: Vec<InsnIdx>,
    /// The program's arena, and the instructions that access it, ascending.
    pub(crate) arena: Option<(ArenaFact, Vec<InsnIdx>)>,
    /// The subprogram that is called when the program throws.
    pub(crate) exception: Option<InsnIdx>,
    /// Bytes of frames that must be zero. The interpreter zeroes whole frames, unless a test fills them.
    #[cfg(feature = "oracle")]
    pub(crate) zeroed: Vec<bpf_analysis::Zeroed>,
}

impl Left {
    /// Whether a run may yield where it comes back to the head of a loop at `head`.
    pub(crate) fn may_yield(&self, head: InsnIdx) -> bool {
        self.yields.binary_search(&head).is_ok()
    }
}
