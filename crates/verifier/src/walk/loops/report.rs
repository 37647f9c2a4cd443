//! Reports why a loop was not proven, for the program's author.

use bpf_isa::InsnIdx;

use crate::error::{LoopFailure, Reason, UnprovenLoop};
use crate::walk::Walk;

/// The most loops in an error.
const MAX_REPORTED: usize = 4;

impl Walk<'_> {
    /// Notes why the walk from a candidate for this loop failed. The last reason is kept.
    pub(super) fn note_failure(&mut self, i: usize, why: LoopFailure) {
        let a = &self.loops.open[i];
        let guess = a.guess.as_ref().map(|g| g.parts(self.env)).unwrap_or_default();
        let (id, at) = (a.id as usize, a.at);
        if self.env.log {
            self.write_log(format!("loop at {at}: {why}"));
        }
        self.loops.heads[id].failure = Some(Box::new((why, guess)));
    }

    /// The loops that could not be proven, innermost first: those around the instruction, or all if the walk has
    /// reached a limit.
    pub(in crate::walk) fn unproven_loops(&self, limit: bool) -> Vec<UnprovenLoop> {
        let mut out = Vec::new();
        if !self.loops.on {
            return out;
        }
        let forest = &self.loops.forest;
        for (id, (l, head)) in forest.loops().iter().zip(&self.loops.heads).enumerate().rev() {
            let around = forest.contains(crate::num::small(id), self.pc);
            let (why, guess) = match &head.failure {
                Some(failure) if around || limit => (**failure).clone(),
                None if around && !l.natural => (LoopFailure::Irreducible, Vec::new()),
                _ => continue,
            };
            if out.len() < MAX_REPORTED {
                out.push(UnprovenLoop {
                    head: l.head,
                    source: self.lines_of(crate::num::small(id), l.head),
                    guess,
                    why,
                });
            }
        }
        out
    }

    /// The source lines of a loop: the file, the first and the last line, of those of its head's file.
    fn lines_of(&self, id: u32, head: InsnIdx) -> Option<(String, u32, u32)> {
        self.lines_within(head, |at| self.loops.forest.contains(id, at))
    }

    /// The file of an instruction's line, and the first and the last line in that file of the instructions `within` a
    /// part of the program.
    pub(in crate::walk) fn lines_within(
        &self,
        head: InsnIdx,
        within: impl Fn(InsnIdx) -> bool,
    ) -> Option<(String, u32, u32)> {
        let lines = self.env.lines;
        let of = |at: u32| lines.partition_point(|l| l.insn <= at).checked_sub(1).map(|i| &lines[i]);
        let first = of(head.0)?;
        let inside = (0..crate::num::small(self.insns.len())).filter(|at| within(InsnIdx(*at)));
        let numbers = || inside.clone().filter_map(of).filter(|l| l.file == first.file).map(|l| l.line);
        Some((first.file.clone(), numbers().min()?, numbers().max()?))
    }

    /// The reason of a refusal in a walk from a candidate.
    pub(super) fn refused_in_guess(&self, reason: &Reason) -> LoopFailure {
        LoopFailure::Refused { at: self.pc, reason: Box::new(reason.clone()) }
    }
}
