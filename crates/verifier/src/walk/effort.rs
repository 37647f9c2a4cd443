//! Attribution of work, so that a refusal for a limit names the loop that took most of it.
//!
//! Approach: fuel and steps are noted by instruction. Only a refusal adds them up, over each loop. Work in a function
//! outside of its own loops counts at its calls, in proportion to how often each was walked.

use bpf_analysis::Loops;
use bpf_isa::{InsnIdx, SubprogId};

use super::{Walk, shrink};
use crate::error::{Effort, EffortPlace, Reason};

/// An outer loop is named only if its inner loop took less than this percentage of its work.
const MOSTLY_INSIDE: u64 = 75;

/// The work of one instruction.
#[derive(Clone, Copy, Default, Debug)]
struct Spent {
    /// The fuel in all walks.
    fuel: u64,
    /// The steps in this walk (`steps`), and in all walks.
    steps: u64,
    all_steps: u64,
}

/// The work of each instruction.
#[derive(Debug, Default)]
pub(crate) struct Efforts {
    spent: Vec<Spent>,
}

impl Efforts {
    /// Begins a verification.
    pub(crate) fn begin(&mut self) {
        self.spent.clear();
    }

    /// Begins a walk.
    pub(super) fn begin_walk(&mut self, slots: usize) {
        self.spent.iter_mut().for_each(|spent| spent.steps = 0);
        self.spent.resize(slots, Spent::default());
    }

    /// Notes a step, and the fuel spent since the last one.
    #[inline]
    pub(super) fn note(&mut self, at: InsnIdx, fuel: u64) {
        if let Some(spent) = self.spent.get_mut(at.index()) {
            spent.fuel += fuel;
            spent.steps += 1;
            spent.all_steps += 1;
        }
    }

    pub(super) fn trim(&mut self, bytes: usize) {
        self.spent.clear();
        shrink(&mut self.spent, bytes);
    }
}

impl Walk<'_> {
    /// The part of the program that took most of the exhausted resource.
    pub(super) fn effort(&self, reason: &Reason) -> Option<Effort> {
        if !reason.is_work() || *reason == Reason::OutOfMemory {
            return None;
        }
        let spent = &self.scratch.effort.spent;
        let states = matches!(reason, Reason::States(_));
        // A program whose length alone exceeds the limit has no states. Without free memory no table as long as the
        // program can be made.
        let none = matches!(reason, Reason::Memory(_)) && self.held_states().next().is_none();
        if none || !self.scratch.memory.ends() {
            return None;
        }
        let mut by: Vec<u64> = if states || matches!(reason, Reason::Memory(_)) {
            let mut by = vec![0; self.insns.len()];
            for (at, bytes) in self.held_states() {
                by[at.index()] += if states { 1 } else { bytes as u64 };
            }
            by
        } else if matches!(reason, Reason::Steps(_)) {
            spent.iter().map(|spent| spent.steps).collect()
        } else {
            spent.iter().map(|spent| spent.fuel).collect()
        };
        let all: u64 = by.iter().sum();
        if all == 0 {
            return None;
        }
        let loops = Loops::new(self.program);
        self.add_to_calls(&loops, &mut by);
        let mut of_loops = vec![0u64; loops.loops().len()];
        for (at, took) in (0..).map(InsnIdx).zip(&by) {
            let mut inner = loops.innermost(at);
            while let Some(id) = inner {
                of_loops[id as usize] += took;
                inner = loops.loops()[id as usize].parent;
            }
        }
        let mut found: Option<usize> = None;
        for (id, took) in of_loops.iter().enumerate() {
            let better = found.is_none_or(|best| {
                let inside = loops.contains(crate::num::small(best), loops.loops()[id].head);
                if inside { took * 100 >= of_loops[best] * MOSTLY_INSIDE } else { *took > of_loops[best] }
            });
            if better && *took > 0 {
                found = Some(id);
            }
        }
        // A function that is called back is no loop, but is run repeatedly like one.
        let called_back = self.called_back().map(|sub| (sub, self.own(sub, &by))).max_by_key(|(_, took)| *took);
        let percent = |took: u64| crate::num::few((u128::from(took) * 100 / u128::from(all)).min(100) as usize);
        let in_loop = found.map_or(0, |id| of_loops[id]);
        let (at, place, share) = match (found, called_back) {
            (_, Some((sub, took))) if took > in_loop => {
                (InsnIdx(self.program.subprogs()[sub.index()].start), EffortPlace::Callback, percent(took))
            }
            (Some(id), _) => {
                let head = loops.loops()[id].head;
                (head, EffortPlace::Loop, percent(in_loop))
            }
            (None, _) => {
                let most = (0..).map(InsnIdx).zip(&by).max_by_key(|(_, took)| **took);
                let sub = self.program.subprog_of(most.map_or(InsnIdx(0), |(at, _)| at));
                let start = InsnIdx(self.program.subprogs()[sub.index()].start);
                (start, EffortPlace::Function, percent(self.own(sub, &by)))
            }
        };
        let source = match (place, loops.headed(at)) {
            (EffortPlace::Loop, Some(id)) => self.lines_within(at, |at| loops.contains(id, at)),
            (EffortPlace::Loop | EffortPlace::Callback | EffortPlace::Function, _) => {
                let sub = self.program.subprog_of(at);
                self.lines_within(at, |at| self.program.subprog_of(at) == sub)
            }
        };
        Some(Effort { at, place, source, percent: share })
    }

    /// The work of a subprogram's instructions.
    fn own(&self, sub: SubprogId, by: &[u64]) -> u64 {
        by.get(self.slots_of(sub.index())).map_or(0, |by| by.iter().sum())
    }

    /// The functions whose address is taken and that are called as callbacks only.
    fn called_back(&self) -> impl Iterator<Item = SubprogId> {
        let mut called = vec![(false, false); self.program.subprogs().len()];
        for call in self.program.calls() {
            let (by_itself, back) = &mut called[call.callee.index()];
            *by_itself |= !call.callback;
            *back |= call.callback;
        }
        (0..).map(SubprogId).zip(called).filter(|(_, called)| *called == (false, true)).map(|(sub, _)| sub)
    }

    /// Adds the work of functions outside of their loops to their calls, callees first.
    fn add_to_calls(&self, loops: &Loops, by: &mut [u64]) {
        let steps = |at: InsnIdx| self.scratch.effort.spent.get(at.index()).map_or(0, |spent| spent.all_steps);
        let calls = || self.program.calls().iter().filter(|call| !call.callback && call.callee.0 != 0);
        let mut walked = vec![0u64; self.program.subprogs().len()];
        calls().for_each(|call| walked[call.callee.index()] += steps(call.at));
        // Chains of calls are no longer than this, and acyclic.
        for _ in 0..bpf_isa::MAX_CALL_DEPTH {
            let mut took = vec![0u64; walked.len()];
            for (sub, took) in took.iter_mut().enumerate().filter(|(sub, _)| walked[*sub] > 0) {
                let outside =
                    self.slots_of(sub).filter(|at| loops.innermost(InsnIdx(crate::num::small(*at))).is_none());
                *took = outside.map(|at| std::mem::take(&mut by[at])).sum();
            }
            if took.iter().all(|took| *took == 0) {
                break;
            }
            for call in calls().filter(|call| took[call.callee.index()] > 0) {
                let of = call.callee.index();
                let part = u128::from(took[of]) * u128::from(steps(call.at)) / u128::from(walked[of]);
                by[call.at.index()] += u64::try_from(part).unwrap_or(took[of]);
            }
        }
    }

    fn slots_of(&self, sub: usize) -> std::ops::Range<usize> {
        let start = |sub: usize| self.program.subprogs().get(sub).map(|of| of.start as usize);
        start(sub).unwrap_or_default()..start(sub + 1).unwrap_or(self.insns.len())
    }
}
