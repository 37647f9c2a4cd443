//! Joins: forgetting dead and unneeded state, pruning by subsumption, and rounds of bounded constructs.
//!
//! States are compared where paths join, and at conditional jumps: a difference between two states at the join may be
//! overwritten by then. In programs without loops, they are also compared after helper calls, which clobber six
//! registers.
//!
//! A path that reaches a join in a state *covered* by an earlier kept state need not be walked again, if the walk from
//! the kept state is finished. If it is not finished, the kept state is an ancestor on the current path (the walk is
//! depth first). Being covered by an ancestor shows that the path is safe if the ancestor is, but not that it ends.
//! Therefore an open ancestor never prunes, and an *equal* one shows that the loop makes no progress, so the program is
//! refused.
//!
//! Callbacks, may_goto and iterators' next elements are bounded by their helper or budget, not by the walk. There, an
//! open ancestor of the same construct does prune, and a round that is not covered is *widened* against the last, so
//! that a few rounds cover all. The *epoch* numbers the rounds: each pass of a bounded edge makes a new epoch, and
//! leaving the construct restores the outer one. In this way a loop around a bounded construct is still found to make
//! no progress, and a round inside it is not mistaken for such a loop. A bounded edge counts only for states kept after
//! its bound came into existence ([`epoch`]): an iterator that is created in each round, or a function's own counter,
//! does not end a loop around it.
//!
//! In a loop with a candidate invariant, a path that joins many others is *merged* with the last of them, if
//! [`super::loops`] asks for it: it continues from a state with less knowledge.
//!
//! Therefore a finished state may *rest* on a round that is still open ([`Kept::rests`]), or on a candidate invariant
//! that is still being checked. This state proves that the states which it covers end, but only under two conditions.
//! The walk has not left that construct or loop: the way out is not walked yet, and may lead back in. And the covered
//! state has the same frames and iterators, since only those bound the round.

mod cover;
mod epoch;
mod merge;
mod names;
mod widen;

use std::collections::BTreeMap;

use bpf_isa::{Callee, Insn, InsnIdx, Program, Reg};

use super::linear::Form;
use super::memory::{List, Memory, SPARE, Short, Size};
use super::trail::{Demand, Ending, Needed, RoundReads, forget_unneeded};
use super::{Res, Walk, refuse, shrink};
use crate::by_name;
use crate::error::Reason;
use crate::faults::planted;
use crate::fuel;
use crate::need::Need;
use crate::scalar::Scalar;
use crate::state::{Entry, Pool, State};
use crate::value::{Value, Why, len_id};
pub(super) use cover::{IdMap, covers};
use cover::{same_shape, same_sides};
pub(super) use epoch::Epochs;
use epoch::same_bounds;
use names::{Names, distances, forget_ids, hand_down_sums};
use widen::{blend, scatter, widen};

const NONE: u32 = u32::MAX;
/// r1 to r5, which a caller keeps for the next round of its callback.
const ARGS: u16 = 0b11_1110;
/// The most open ancestors (and rounds) that are compared, newest first. A longer cycle ends at the step limit.
const MAX_ANCESTORS: usize = 16;

/// The most kept states that are compared at each arrival, newest first: otherwise a loop with a new state in each
/// round would make each round more expensive than the last.
const MAX_SEEN: usize = 64;

/// The most pending branches that are inspected to find whether one may lead here.
const MAX_LEFT: usize = 16;

/// A kept state is evicted when its misses exceed this number times (hits + 1). For the sample programs' steps, 8 and
/// 64 make no difference; the search takes longer with larger numbers.
const MISSES: u32 = 16;

/// Instructions after which a state is kept at a conditional jump that is no join. Chosen by the steps of all sample
/// programs: 0.99 million with 8, 1.00 with 24 and a quarter fewer states, 1.01 with 40.
const STRETCH: u32 = 24;

/// In programs without loops, the stretch is an eighth of the instructions, but at least this. Short programs keep few
/// states anyway, and a few instructions are a large part of the code behind a join. In long programs, 3 keeps twice as
/// many states as 24, for one step in fifty.
const SHORT_STRETCH: u32 = 3;
const STRETCHES: usize = 8;

/// In a hybrid walk: rounds of a loop that are walked before the changing numbers are widened.
const HYBRID_ROUNDS: usize = 8;

/// Most frames of a state.
const MAX_FRAMES: usize = bpf_isa::MAX_CALL_DEPTH as usize;
/// Bytes for a round that rests on another: an entry of a B-tree whose nodes may be half empty.
const PER_MOVED: usize = 48;

/// Fuel for the comparison of two states; mostly they differ soon.
const COMPARED: u64 = 15;
/// Fuel for each value of a state whose unneeded parts are forgotten.
const FORGOTTEN: u64 = 30;

/// A state seen at a join.
#[derive(Debug)]
pub(super) struct Kept {
    pub(super) state: State,
    next: u32,
    /// Whether some path from here is not finished yet.
    pub(super) open: bool,
    /// The trail's length when the state was kept.
    pub(super) trail: usize,
    pub(super) needed: Option<usize>,
    /// For a finished state: the number of the open round of a bounded construct that covered some path from here; NONE
    /// if there is none.
    pub(super) rests: u32,
    /// Kept at a callback's entry, a may_goto or an iterator's next element.
    round: bool,
    /// The iterator, for a state kept at an iterator's next element; else 0.
    iterator: u32,
    epoch: u32,
    /// For a round: the epoch outside of its construct.
    base: u32,
    /// The walk's choices when it was kept ([`Walk::choices`]).
    choices: u64,
    hits: u32,
    misses: u32,
    pub(super) size: Size,
    /// The instruction at which it was kept.
    at: u32,
    pub(super) number: u32,
}

/// The reason for which a path that returned to a kept state, with no known change, is refused. The loop certainly
/// never ends if the walk has made no choice since. Otherwise another branch may be taken eventually, for a reason that
/// the state does not show.
fn endless(kept: &Kept, choices: u64) -> Reason {
    if kept.choices == choices { Reason::InfiniteLoop } else { Reason::EndUnproven }
}

/// The states kept so far.
#[derive(Debug, Default)]
pub(super) struct Pruner {
    /// Bit set by instruction: whether control can arrive by a jump and in another way.
    joins: Vec<u64>,
    /// Bit set by instruction: joins, conditional jumps, and instructions after helper calls.
    points: Vec<u64>,
    /// The number of instructions after which a state is kept at a point that is no join.
    stretch: u32,
    any: bool,
    /// Whether some path has begun a round with an iterator's element.
    iterates: bool,
    /// Whether all live numbers count as exact.
    numbers: bool,
    /// Whether some path has known a sum (see [`super::sums`]).
    pub(super) sums: bool,
    /// Whether some path has used what was seen in a region (see [`super::seen`]).
    pub(super) seen: bool,
    /// Whether the program is one function without loops: then control returns to an instruction only from pending
    /// branches.
    forward: bool,
    /// The newest kept state of each instruction.
    heads: Vec<u32>,
    pub(super) kept: Vec<Kept>,
    /// The demands of the finished states, one after the other, by frame.
    pub(super) needed: Vec<Needed>,
    free: Vec<u32>,
    /// The number of states ever kept.
    count: u32,
    /// The number of frames of these states, each of which has one entry in `needed`.
    framed: usize,
    /// The open states, each with the number of pending branches when it was kept.
    pub(super) open: Vec<(u32, usize)>,
    /// The reads since each open round began, oldest first.
    pub(super) reads: Vec<RoundReads>,
    /// For rounds that finished while they rested on another: the number of that round.
    moved: BTreeMap<u32, u32>,
    ids: IdMap,
    pub(super) names: Names,
    /// Instructions to which a jump has been seen; used only while starting.
    reached: Vec<u64>,
}

/// Bit `i`.
fn get(bits: &[u64], i: usize) -> bool {
    bits[i / 64] >> (i % 64) & 1 != 0
}

fn set(bits: &mut [u64], i: usize) {
    bits[i / 64] |= 1 << (i % 64);
}

impl Pruner {
    /// Prepares for a program. `exhaustive`: no path is pruned at joins. `numbers`: no path is pruned on account of
    /// numbers that are not needed exactly. `loops`: nor is any in a program with loops, since their invariants are
    /// candidates. `looped`: whether the program may have loops.
    pub(super) fn start(&mut self, program: &Program, exhaustive: bool, numbers: bool, loops: bool, looped: bool) {
        by_name::begin();
        self.numbers = numbers;
        (self.sums, self.seen, self.iterates) = (false, false, false);
        let insns = program.insns();
        self.joins.clear();
        (self.count, self.framed) = (0, 0);
        self.joins.resize(insns.len().div_ceil(64), 0);
        self.points.clear();
        self.points.resize(self.joins.len(), 0);
        self.kept.clear();
        self.needed.clear();
        self.free.clear();
        self.open.clear();
        self.reads.clear();
        self.moved.clear();
        let contents = program.contents();
        self.forward = program.subprogs().len() == 1 && !contents.may_gotos;
        self.any = !self.forward || contents.calls;
        // A subprogram's first instruction is reached by calls. The first jump to any other instruction joins control
        // that falls through to it.
        let mut reached = std::mem::take(&mut self.reached);
        reached.clear();
        reached.resize(self.joins.len(), 0);
        for sub in program.subprogs() {
            set(&mut reached, sub.start as usize);
        }
        if contents.indirect_jumps {
            // The targets may be reached from anywhere in their function, before or after them.
            (self.any, self.forward) = (true, false);
            self.numbers |= loops;
            for sub in 0..crate::num::small(program.subprogs().len()) {
                for target in program.indirect_targets(bpf_isa::SubprogId(sub)) {
                    set(&mut reached, target.index());
                    if !exhaustive && !matches!(insns[target.index()], Insn::MayGoto { .. }) {
                        set(&mut self.joins, target.index());
                    }
                }
            }
        }
        for flow in program.flow() {
            let Some(target) = flow.target else { continue };
            self.any = true;
            // Facts about sums and orders, which are used in loops and before them, are not marked on the trail.
            self.numbers |= loops && target <= flow.at;
            self.forward &= target > flow.at;
            let to = target.index();
            let falls = to > 0 && !insns[to - 1].ends_flow();
            // may_goto keeps states of its own.
            if (get(&reached, to) || falls) && !exhaustive && !matches!(insns[to], Insn::MayGoto { .. }) {
                set(&mut self.joins, to);
            }
            set(&mut reached, to);
            if matches!(insns[flow.at.index()], Insn::JumpIf { .. }) && !exhaustive {
                set(&mut self.points, flow.at.index());
            }
        }
        self.stretch = STRETCH;
        if !looped {
            self.stretch = crate::num::small(insns.len() / STRETCHES).clamp(SHORT_STRETCH, STRETCH);
            if contents.calls && !exhaustive {
                self.compare_after_calls(insns);
            }
        }
        self.points.iter_mut().zip(&self.joins).for_each(|(point, join)| *point |= join);
        self.reached = reached;
        if self.any {
            self.heads.clear();
            self.heads.resize(insns.len(), NONE);
        }
    }

    /// Prepares for a walk in which relations of numbers decide acceptance. No relation is marked on the trail, so all
    /// live numbers count as exact, and no relation is forgotten on account of a finished state's demand.
    pub(super) fn rest_on_relations(&mut self) {
        (self.numbers, self.sums) = (true, true);
    }

    /// Adds comparisons after helper calls.
    fn compare_after_calls(&mut self, insns: &[Insn]) {
        for (at, pair) in insns.windows(2).enumerate() {
            // may_goto keeps states of its own.
            if matches!(pair, [Insn::Call(Callee::Helper(_)), next] if !matches!(next, Insn::MayGoto { .. })) {
                set(&mut self.points, at + 1);
            }
        }
    }

    /// Sets whether states distinguish bytes that were never written, on which facts about arrays rest.
    pub(super) fn tell_fresh(&mut self, told: bool) {
        self.ids.start(told);
    }

    /// Begins a new root: the states that were kept for the last one are finished.
    pub(super) fn start_root(&mut self) {
        // The open states stay as they are, since no path returns to them.
        self.reads.clear();
        while let Some((i, _)) = self.open.pop() {
            self.kept[i as usize].open = false;
        }
    }

    /// Whether everything live is needed exactly, whatever the trail says.
    pub(super) fn all_exact(&self) -> bool {
        self.numbers
    }

    /// Whether states are compared here.
    pub(super) fn is_point(&self, at: InsnIdx) -> bool {
        get(&self.points, at.index())
    }

    pub(super) fn len(&self) -> usize {
        self.kept.len() - self.free.len()
    }

    /// Drops all kept states. An evicted one has left an empty state behind, which is not reused.
    pub(super) fn take_states(&mut self, pool: &mut Pool) {
        self.open.clear();
        self.free.clear();
        for kept in self.kept.iter_mut().filter(|k| !k.state.frames.is_empty()) {
            pool.push(std::mem::take(&mut kept.state));
        }
        self.kept.clear();
    }

    /// Frees scratch memory beyond `bytes` of each kind.
    pub(super) fn trim(&mut self, bytes: usize) {
        shrink(&mut self.joins, bytes);
        shrink(&mut self.points, bytes);
        shrink(&mut self.heads, bytes);
        shrink(&mut self.kept, bytes);
        shrink(&mut self.needed, bytes);
        shrink(&mut self.free, bytes);
        shrink(&mut self.open, bytes);
        shrink(&mut self.reached, bytes);
        self.names.trim(bytes);
        self.ids.trim(bytes);
    }

    /// Makes room for the states that may be kept until memory is measured again.
    pub(super) fn weigh(&mut self, memory: &mut Memory) -> Result<(), Short> {
        let unfinished = (self.framed + SPARE * MAX_FRAMES).saturating_sub(self.needed.len());
        let unfreed = self.kept.len() + SPARE - self.free.len();
        memory.list(List::Kept, &mut self.kept, SPARE)?;
        memory.list(List::Needed, &mut self.needed, unfinished)?;
        memory.list(List::Free, &mut self.free, unfreed)?;
        memory.list(List::Open, &mut self.open, SPARE)
    }

    /// Bytes of the reads of open rounds, and of the map of rounds that rest on others.
    pub(super) fn rest(&self) -> usize {
        self.reads.len() * (2 * size_of::<RoundReads>() + RoundReads::of_frames(MAX_FRAMES))
            + self.moved.len() * PER_MOVED
    }

    /// For assertions: whether all open states were kept before the branch that is walked next was queued. `left`: the
    /// number of branches queued before it. Comparing the newest open state suffices, since the others are older.
    pub(super) fn opened_before(&self, left: usize) -> bool {
        self.open.last().is_none_or(|(_, pending)| *pending <= left)
    }

    /// For assertions: whether the newest kept state, kept by the instruction at `step`, is on the path that continues
    /// at `next`. Demands rest on this invariant: the open states are the ancestors of the path.
    pub(super) fn leads_to(&self, step: InsnIdx, next: InsnIdx, state: &State) -> bool {
        self.open.last().is_some_and(|(i, _)| {
            let newest = |at: InsnIdx| self.heads[at.index()] == *i;
            (newest(next) || newest(step)) && same_shape(&self.kept[*i as usize].state, state)
        })
    }

    /// Whether the state of this number is open.
    fn is_open(&self, number: u32) -> bool {
        let of = |(i, _): &(u32, usize)| self.kept[*i as usize].number;
        self.open.binary_search_by_key(&number, of).is_ok()
    }

    /// The open round on which states that rested on this round rest; NONE if everything that it rested on is finished.
    pub(super) fn rests_on(&self, mut round: u32) -> u32 {
        while round != NONE {
            if self.is_open(round) {
                return round;
            }
            round = self.moved.get(&round).copied().unwrap_or(NONE);
        }
        NONE
    }

    /// Finishes a state of which some path rests on the round `rests`. Returns the round on which paths that lead here
    /// rest.
    pub(super) fn settle(&mut self, i: u32, rests: u32) -> u32 {
        let kept = &mut self.kept[i as usize];
        // A state that rests on itself is finished.
        let rests = if rests < kept.number { rests } else { NONE };
        kept.rests = rests;
        if kept.round && rests != NONE {
            self.moved.insert(kept.number, rests);
        }
        rests
    }

    /// Whether the finished state proves that the paths which it covers end. A state that rests on an open round proves
    /// it only until the walk leaves that construct: the way out is not walked yet, and may return here. It also proves
    /// it only for states with the same bounds, since a path may return to the round by an edge of any of them.
    fn proves(&self, i: u32, epoch: u32, state: &State) -> bool {
        let kept = &self.kept[i as usize];
        let inside = || kept.epoch == epoch && self.is_open(kept.rests) && same_bounds(&kept.state, state);
        kept.rests == NONE || inside() || self.rests_on(kept.rests) == NONE || planted!(RestsForgotten)
    }

    /// The number of states kept so far.
    pub(super) fn ever_kept(&self) -> u32 {
        self.count
    }

    /// Prepares the comparison of names: some names are equal to themselves only. These are the rounds of `guesses`,
    /// whose invariants are not proven yet, and the iterators whose rounds are open, since another iterator has more
    /// elements left.
    fn begin_ids(&mut self, guesses: impl Iterator<Item = u32>) {
        let open = if self.iterates { self.open.as_slice() } else { &[] };
        let iterators = open.iter().map(|(i, _)| self.kept[*i as usize].iterator).filter(|id| *id != 0);
        self.ids.begin(guesses.chain(iterators));
    }

    pub(super) fn ids(&mut self) -> &mut IdMap {
        &mut self.ids
    }

    /// Drops all states but the first `count` ever kept, of which `opened` are open.
    pub(super) fn discard(&mut self, count: u32, opened: usize, pool: &mut Pool, memory: &mut Memory) {
        self.open.truncate(opened);
        while self.reads.pop_if(|round| round.number() >= count).is_some() {}
        if self.count == count {
            return;
        }
        for i in 0..crate::num::small(self.kept.len()) {
            let kept = &self.kept[i as usize];
            // The newest come first in each list; a freed state is in no list.
            let at = kept.at as usize;
            if kept.number < count || kept.number == u32::MAX {
                continue;
            }
            let mut head = self.heads[at];
            while head != NONE && self.kept[head as usize].number >= count {
                let kept = &mut self.kept[head as usize];
                memory.remove(kept.size);
                kept.number = u32::MAX;
                pool.push(std::mem::take(&mut kept.state));
                self.free.push(head);
                head = kept.next;
            }
            self.heads[at] = head;
        }
    }

    /// Adds the needs of a path that ends to all open rounds.
    pub(super) fn reads_end(&mut self, ending: Ending) {
        let mut reads = std::mem::take(&mut self.reads);
        match ending {
            // An outer round is one on which these rest.
            Ending::Done | Ending::Round(_) => {}
            Ending::Open => reads.iter_mut().for_each(|round| round.goes_on(None)),
            // A state that was kept after the round began was walked within it.
            Ending::As(i) => {
                let number = self.kept[i as usize].number;
                reads
                    .iter_mut()
                    .filter(|round| number < round.number())
                    .for_each(|round| round.goes_on(self.needed(i)));
            }
        }
        self.reads = reads;
    }

    /// Ends an open state of which all paths have ended and rest on the round `rests`. If the state is a round that
    /// rests on no other, it demands only the places that were read.
    pub(super) fn round_ends(&mut self, i: u32, rests: u32, demand: &mut Demand) {
        let kept = &self.kept[i as usize];
        let Some(reads) = self.reads.pop_if(|round| kept.round && round.number() == kept.number) else { return };
        if rests >= kept.number {
            reads.restrict(demand, &kept.state);
        }
    }

    fn keep(&mut self, at: InsnIdx, mut kept: Kept, pending: usize) {
        kept.next = self.heads[at.index()];
        (kept.at, kept.number) = (at.0, self.count);
        if kept.round {
            self.reads.push(RoundReads::new(self.count, kept.state.frames.len()));
        }
        self.count += 1;
        self.framed += kept.state.frames.len();
        let i = match self.free.pop() {
            Some(i) => {
                self.kept[i as usize] = kept;
                i
            }
            None => {
                self.kept.push(kept);
                crate::num::small(self.kept.len()) - 1
            }
        };
        self.heads[at.index()] = i;
        self.open.push((i, pending));
    }
}

impl Walk<'_> {
    /// Every state that is held, with its instruction and its bytes: kept and pending ones.
    pub(super) fn held_states(&self) -> impl Iterator<Item = (InsnIdx, usize)> {
        let kept =
            self.scratch.prune.kept.iter().filter(|k| k.number != u32::MAX).map(|k| (InsnIdx(k.at), k.size.counted));
        kept.chain(self.scratch.pending.iter().map(|p| (p.at, p.size.counted)))
    }

    /// Handles the arrival at a point. `true` if the current path is covered and ends here.
    pub(super) fn at_join(&mut self) -> Res<bool> {
        let pruner = &self.scratch.prune;
        let join = get(&pruner.joins, self.pc.index());
        let first = pruner.heads[self.pc.index()] == NONE;
        let keeps = join || self.since_kept >= pruner.stretch;
        if !join && (self.hybrid || (first && !keeps)) {
            return Ok(false);
        }
        // A later comparison may settle whether a difference has wrapped. Kept states have no differences, so the
        // comparison must come first.
        if self.state.has_differences() && (!join || self.awaits_comparison()) {
            return Ok(false);
        }
        // Kept states have no congruences either.
        if self.awaits_congruence() {
            return Ok(false);
        }
        // Kept states have no definitions of shifted numbers either.
        if !join && self.awaits_half() {
            return Ok(false);
        }
        if pruner.forward && first && !self.others_may_come() {
            // No state is kept here, and no other path will arrive.
            return Ok(false);
        }
        self.forget(keeps);
        if let Some(done) = self.came_round()? {
            return Ok(done);
        }
        let pruner = &mut self.scratch.prune;
        pruner.begin_ids(self.loops.guesses());
        let mut ancestors = 0;
        let mut prev = NONE;
        let mut i = pruner.heads[self.pc.index()];
        let mut seen = 0;
        let mut newest = NONE;
        let frame = self.state.frames.len() - 1;
        let blends = self.loops.blends(frame, self.pc);
        // The number of finished states that differ from the arrival, and the newest of them.
        let (mut apart, mut like) = (0, NONE);
        let mut missed = NONE;
        while i != NONE && seen < MAX_SEEN {
            seen += 1;
            fuel::charge(COMPARED);
            let proves = pruner.proves(i, self.epoch, &self.state);
            let kept = &mut pruner.kept[i as usize];
            let next = kept.next;
            if kept.round || (!kept.open && !proves) {
                (prev, i) = (i, next);
                continue;
            }
            if kept.open {
                ancestors += 1;
                if ancestors > self.rounds {
                    return refuse(Reason::Steps(self.steps));
                }
                if ancestors <= MAX_ANCESTORS
                    && !self.epochs.passed_since(self.epoch, kept.number, &self.state.owed)
                    && covers(&kept.state, &self.state, &mut pruner.ids)
                {
                    if self.hybrid || planted!(EndlessLoops) {
                        // The path is safe if the ancestor is; its termination is left to the budget.
                        self.notes.needs_budget = true;
                        self.ending = Ending::Open;
                        return Ok(true);
                    }
                    if covers(&self.state, &kept.state, &mut pruner.ids) {
                        return refuse(endless(kept, self.choices));
                    }
                }
                if newest == NONE && kept.epoch == self.epoch {
                    newest = i;
                }
            } else {
                if covers(&kept.state, &self.state, &mut pruner.ids) {
                    kept.hits += 1;
                    self.stats.pruned += 1;
                    self.ending = Ending::As(i);
                    return Ok(true);
                }
                // A state that covers nothing slows the search. A miss counts only at an arrival that keeps a state;
                // other arrivals say little.
                kept.misses += u32::from(keeps);
                if kept.misses > (kept.hits + 1) * MISSES {
                    self.scratch.memory.remove(kept.size);
                    self.scratch.pool.push(std::mem::take(&mut kept.state));
                    kept.number = u32::MAX;
                    pruner.free.push(i);
                    match prev {
                        NONE => pruner.heads[self.pc.index()] = next,
                        p => pruner.kept[p as usize].next = next,
                    }
                    i = next;
                    continue;
                }
                if blends.is_some_and(|(since, _)| kept.number >= since)
                    && same_shape(&kept.state, &self.state)
                    && same_sides(&kept.state, &self.state)
                {
                    apart += 1;
                    like = if like == NONE { i } else { like };
                }
                if missed == NONE {
                    missed = i;
                }
            }
            (prev, i) = (i, next);
        }
        if blends.is_some_and(|(_, most)| apart >= most) && like != NONE {
            let like = &self.scratch.prune.kept[like as usize].state;
            blend(like, &mut self.state);
            forget_ids(&mut self.state, &mut self.scratch.prune.names, false, self.loops.tabled());
            self.loops.blend(frame, self.pc);
        }
        let pruner = &mut self.scratch.prune;
        if self.hybrid && ancestors >= HYBRID_ROUNDS && newest != NONE {
            let last = &pruner.kept[newest as usize].state;
            widen(last, &mut self.state);
            self.next_id = scatter(self.env, last, &mut self.state, self.next_id);
        }
        if keeps && ancestors == 0 && missed != NONE && self.stats.steps >= self.merge_after {
            self.merge_with(missed);
        }
        if keeps {
            self.keep(false, 0, self.epoch)?;
        }
        self.enter_loop()?;
        Ok(false)
    }

    /// In a program that only goes forward: whether a pending branch may lead here. Branches behind this instruction
    /// cannot.
    fn others_may_come(&self) -> bool {
        let pending = &self.scratch.pending;
        pending.len() > MAX_LEFT || pending.iter().any(|left| left.at <= self.pc)
    }

    fn keep(&mut self, round: bool, iterator: u32, base: u32) -> Res<()> {
        self.trail_enter();
        // States are compared without definitions: a conclusion that uses a definition would not hold for other states
        // that this one covers.
        debug_assert!(self.state.definitions.is_empty() || planted!(DefinitionsKept), "definitions are forgotten");
        let state = self.copy_state();
        let size = Size::of(&state);
        let (hits, misses, epoch) = (0, 0, self.epoch);
        let (trail, needed) = (self.scratch.trail.len(), None);
        let kept = Kept {
            state,
            next: NONE,
            open: true,
            trail,
            needed,
            rests: NONE,
            round,
            iterator,
            epoch,
            base,
            choices: self.choices,
            hits,
            misses,
            size,
            at: 0,
            number: 0,
        };
        self.scratch.prune.keep(self.pc, kept, self.scratch.pending.len());
        self.since_kept = 0;
        self.stats.states += 1;
        self.stored(size)
    }

    /// Begins a round of a bounded construct at the current instruction: a callback's entry, or (`may_goto`) the
    /// instruction itself. Returns `None` if an earlier round covers it, and otherwise the epoch outside the construct.
    pub(super) fn bounded_round(&mut self, may_goto: bool) -> Res<Option<u32>> {
        self.bounded_round_before(self.pc, may_goto, 0)
    }

    /// [`Walk::bounded_round`] for a call whose result begins a round. The state is the one before `next`, but the
    /// rounds are attributed to the call, so that another construct which begins at `next` is not confused with it.
    /// They also belong to this iterator: an iterator that was created since the last round is another construct, and
    /// does not run out because the last one does.
    pub(super) fn bounded_round_before(&mut self, next: InsnIdx, may_goto: bool, iterator: u32) -> Res<Option<u32>> {
        self.forget_before(next, true);
        let one_round = match iterator {
            0 => may_goto && planted!(MayGotoOneRound),
            _ => planted!(IteratorOneRound),
        };
        let pruner = &mut self.scratch.prune;
        pruner.begin_ids(self.loops.guesses());
        // The newest open round, and whether the path has since passed an edge that bounds its rounds.
        let (mut last, mut goes_on) = (NONE, false);
        let mut seen = 0;
        let mut i = pruner.heads[self.pc.index()];
        while i != NONE && seen < MAX_ANCESTORS {
            fuel::charge(COMPARED);
            let proves = pruner.proves(i, self.epoch, &self.state);
            let kept = &pruner.kept[i as usize];
            let same = !kept.open || kept.iterator == iterator;
            let passed = self.epochs.passed_since(self.epoch, kept.number, &self.state.owed);
            // The path returned here from outside, without passing a bounded edge, and nothing but iterators has
            // changed. An iterator that is created in each round does not end the loop.
            if kept.round && kept.open && !passed && same_shape(&kept.state, &self.state) {
                pruner.ids.begin(self.loops.guesses());
                if covers(&kept.state, &self.state, &mut pruner.ids)
                    && (!same || covers(&self.state, &kept.state, &mut pruner.ids))
                {
                    return refuse(endless(kept, self.choices));
                }
                pruner.begin_ids(self.loops.guesses());
            }
            let kept = &pruner.kept[i as usize];
            if kept.round && same && same_shape(&kept.state, &self.state) {
                seen += 1;
                let covered = one_round || covers(&kept.state, &self.state, &mut pruner.ids);
                if covered && ((!kept.open && proves) || one_round) {
                    self.stats.pruned += 1;
                    self.ending = Ending::As(i);
                    return Ok(None);
                }
                if kept.open && last == NONE {
                    (last, goes_on) = (i, passed);
                }
            }
            i = kept.next;
        }
        let last_base = (last != NONE).then(|| pruner.kept[last as usize].base);
        let base = match (may_goto, last_base) {
            (false, _) => self.state.top().outer_epoch,
            // Reached again over the bounded edge, or from outside.
            (true, Some(base)) if goes_on => base,
            (true, _) => self.epoch,
        };
        if base != self.epoch && goes_on {
            let kept = &pruner.kept[last as usize];
            if covers(&kept.state, &self.state, &mut pruner.ids) {
                self.stats.pruned += 1;
                self.ending = Ending::Round(kept.number);
                return Ok(None);
            }
            widen(&kept.state, &mut self.state);
        }
        self.scratch.prune.iterates |= iterator != 0;
        self.keep(true, iterator, base)?;
        Ok(Some(base))
    }

    /// Forgets dead registers, the values of carried registers, and names that relate nothing.
    ///
    /// `keeps`: also definitions, since the state is about to be kept.
    fn forget(&mut self, keeps: bool) {
        self.forget_before(self.pc, keeps);
    }

    /// [`Walk::forget`] for the state before the instruction `at`.
    fn forget_before(&mut self, at: InsnIdx, keeps: bool) {
        if keeps && !planted!(DefinitionsKept) {
            self.state.definitions.clear();
        }
        if !std::mem::replace(&mut self.needs_built, true) {
            self.scratch.needs.build(self.program, self.env);
        }
        self.leave_loops();
        fuel::charge(FORGOTTEN * self.state.size());
        // Kept states have no differences, so the state that is compared with them must not have any either.
        self.state.forget_differences();
        let before = (self.loops.keeps_distances() && !self.state.sums.is_empty()).then(|| self.copy_state());
        // An order that a comparison has shown may decide a later comparison of the same numbers.
        let rich = self.loops.rich();
        let room = std::mem::take(&mut self.state.room);
        let ordered = |v: &Value| rich && v.id != 0 && room.iter().any(|f| f.id == v.id || f.hi == v.id);
        let needs = &self.scratch.needs;
        let frames = self.state.frames.len();
        for k in 0..frames {
            let need = match self.state.frames.get(k + 1).map(|f| f.entry) {
                None | Some(Entry::Root | Entry::Timer | Entry::Compare | Entry::Exception) => needs.at(at),
                Some(Entry::Call { back }) => needs.at(back),
                Some(Entry::Callback { back, .. }) => {
                    let n = needs.at(back);
                    Need { live: n.live | ARGS, exact: n.exact | ARGS }
                }
            };
            let frame = &mut self.state.frames[k];
            for r in 0..Reg::R10.index() {
                let v = &mut frame.regs[r];
                if v.is_uninit() {
                    continue;
                }
                if !need.is_live(r) {
                    *v = Value::uninit(Why::Dead);
                } else if v.is_scalar() && !need.is_exact(r) && !ordered(v) {
                    let n = if v.n.high_half_is_zero() { Scalar::low_bits(32) } else { Scalar::UNKNOWN };
                    *v = Value::scalar(n);
                }
            }
        }
        self.state.room = room;
        if let Some(before) = before {
            self.keep_distances(&before);
            self.state.min_len.ask_as(&before.min_len);
            self.scratch.pool.push(before);
        }
        // In candidates with relations that other facts rest on, handed-down facts would mislead the search.
        if rich && !self.loops.further && !self.state.sums.is_empty() {
            let Pruner { names, sums, .. } = &mut self.scratch.prune;
            *sums |= hand_down_sums(&mut self.state, names, &mut self.next_id);
        }
        forget_ids(&mut self.state, &mut self.scratch.prune.names, false, self.loops.tabled());
    }

    /// Where places are related to each other: learns distances between remaining names, which follow only from facts
    /// that are about to be forgotten. `before`: the state before forgetting.
    fn keep_distances(&mut self, before: &State) {
        let further = self.loops.further;
        let names = distances(before, &self.state, further);
        if names.is_empty() {
            return;
        }
        // Later proofs may rest on the facts from which these follow.
        self.scratch.prune.sums = true;
        // The distances to the ends of the regions bound how far a pointer is from the end.
        let regions = if further { self.env.context.regions.len() } else { 0 };
        let ends: Vec<u32> = names.iter().copied().chain((0..crate::num::few(regions)).map(len_id)).collect();
        // The maximum of a difference is the negated minimum of its reverse, so one question answers both.
        let mut forms: Vec<Form> = names.iter().map(|x| Form::name(*x)).collect();
        let mut pairs = Vec::new();
        for (i, j) in (0..names.len()).flat_map(|i| (i + 1..ends.len()).map(move |j| (i, j))) {
            if let Some(apart) = Form::name(ends[i]).plus(&Form::name(ends[j]), -1) {
                pairs.push((i, j));
                forms.push(apart);
            }
        }
        let ranges = before.ranges_of_forms(&forms);
        for (i, x) in names.iter().enumerate() {
            let most = ranges[i].1;
            if let Some(most) = most.filter(|most| *most >= 0 && *most < i64::MAX.into()) {
                self.state.bound(*x, i128::from(i64::MIN), most, 0);
            }
            for (j, y) in ends.iter().enumerate().filter(|(j, _)| *j != i) {
                let asked = pairs.iter().position(|pair| *pair == (i.min(j), i.max(j)));
                let (least, most) = asked.and_then(|at| ranges.get(names.len() + at)).copied().unwrap_or_default();
                // The distance by which one is below the other.
                let bytes = if i < j { most.map(|most| -most) } else { least };
                let short = |bytes: i128| i64::try_from(bytes).ok().filter(|bytes| *bytes != i64::MIN);
                if let Some(bytes) = bytes.and_then(short) {
                    debug_assert!(x != y);
                    let bytes = bytes.saturating_add(i64::from(planted!(DistancesKeptMore)));
                    self.state.learn_below(crate::state::Room { id: *x, scale: 1, bytes, hi: *y });
                }
            }
        }
    }
}

impl Pruner {
    /// The demand of a kept state, by frame, if all paths from it are finished.
    pub(super) fn needed(&self, i: u32) -> Option<&[Needed]> {
        let kept = &self.kept[i as usize];
        self.needed.get(kept.needed?..)?.get(..kept.state.frames.len())
    }

    /// Finishes a kept state with its demand, and forgets the rest of it.
    pub(super) fn close(&mut self, i: u32, needed: &[Needed], memory: &mut Memory) {
        let kept = &mut self.kept[i as usize];
        kept.open = false;
        let (first, frames) = (self.needed.len(), kept.state.frames.len());
        kept.needed = Some(first);
        let of = |k: usize| needed.get(k).copied().unwrap_or_default();
        let by_name = by_name::is_noted() && !planted!(SearchesUnmarked);
        let exact = self.numbers || by_name;
        self.needed.extend((0..frames).map(of).map(|n| if exact { n.with_numbers() } else { n }));
        for (n, frame) in self.needed[first..].iter_mut().zip(&kept.state.frames) {
            n.whole_or_exact(&frame.regs);
        }
        if !self.seen {
            kept.state.seen.clear();
        }
        let by_name = by_name || self.sums;
        if forget_unneeded(&mut kept.state, &self.needed[first..], by_name) {
            forget_ids(&mut kept.state, &mut self.names, by_name, &[]);
        }
        memory.remove(kept.size);
        kept.size = Size::of(&kept.state);
        memory.add(kept.size);
    }
}
