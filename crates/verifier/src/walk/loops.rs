//! Loops: walked once from an invariant, instead of round by round.
//!
//! Problem: a walk of every round takes as long as the program runs, and a bound that is a variable makes each round
//! another state. Approach: *watch* one round from the state that entered the loop (a sample iteration), to see what it
//! changes ([`guess`]). Then walk the body from a *loose* guess (a havocked iteration): everything that changed may be
//! anything, and wrapping is ruled out, only to see which states come back to the head. Both walks are discarded. The
//! join of the states that came back and the state that entered is the candidate invariant that is *checked*: one walk
//! from it, exits and the rest of the program included, in which every path that comes back to the head must be covered
//! by the candidate again, one round later (consecution). If one is not, the candidate is weakened, a few times. Any
//! failure in a checking walk, in the loop or after it, discards that walk, and the loop is walked round by round.
//!
//! Termination: the round k is a number of the state ([`Mark::k`]), which starts at 0 and grows by one each time round;
//! a candidate that bounds k ends. Otherwise a place must strictly grow, or strictly shrink, in every round
//! ([`Measure`]), which no number of bounded size can do without end.
//!
//! Invariants: only a checking walk that ended without a refusal proves anything. Everything that a discarded walk kept
//! or noted is discarded with it. A path that comes back is dropped only if the candidate that its own mark names
//! covers it. A state with a mark of a loop at that loop's head has come round in it: leaving the loop leads over a
//! join outside, where [`Walk::leave_loops`] removes the mark, before any path leads back in.
//!
//! Claim: the last invariant also holds for loops that are entered elsewhere than at their head. Proof: a loop is the
//! strongly connected part, containing its head, of the nodes below the head in a depth-first tree
//! (`bpf_analysis::Loops`). A path out of the loop and back in closes a cycle with a path through it. The first node of
//! a cycle in depth-first order is above all others. If that node were the head or below it, the whole cycle would be
//! below the head, and therefore inside the loop. So the node is above the head, on the path outside, and it is the
//! head of an enclosing loop: a join. The part of a loop that is walked before its head is first reached is walked
//! concretely, like any code before a loop.

mod attempt;
mod guess;
mod haste;
mod loose;
mod report;

use bpf_analysis::Loops;
use bpf_isa::InsnIdx;

use super::lines::Guessing;
use super::memory::Size;
use super::trail;
use super::{Flow, Res, Walk, refuse};
use crate::error::{LoopFailure, Reason};
use crate::faults::planted;
use crate::fuel;
use crate::state::{Mark, Round, State};
use crate::value::Value;
use attempt::{Again, Attempt, Blends, Phase};
use guess::{Guess, Shape};

/// Fuel for each value of a state for which a candidate is made.
const GUESSED: u64 = 100;
/// The most candidates in a row, after which a loop is walked round by round.
const MAX_TRIES: u32 = 5;
/// The most questions about single steps that a walk answers with all facts of a state.
const MAX_ASKED: u32 = 400;
/// The number of failed attempts in a row about one loop after which no more are made.
const MAX_FAILURES: u8 = 3;
/// States that a havocked iteration keeps at one instruction before arrivals there are merged. In tests/loops, a limit
/// of 12 to 16 shortens the walks of five programs and causes a vain walk in two; a limit of 8 causes vain walks in
/// twelve; with more than 16 no program gains, since states are evicted before.
const MOST_APART: u32 = 12;
/// The most numbers that are remembered to come from tables.
const MAX_TABLED: usize = 64;
/// The most stores of a havocked iteration that are remembered as candidates for filling an array.
const MAX_FILLED: usize = 8;
/// Steps of a havocked iteration, plus some for each instruction of the loop.
const LOOSE_STEPS: u64 = 4000;
const LOOSE_STEPS_PER_SLOT: u64 = 64;
/// Programs up to this length keep sums and orders of their numbers outside of loops, too.
pub(crate) const RELATED_SLOTS: usize = 1000;
/// The notes of programs up to this length are copied before a check. For longer ones, a failed check may leave the
/// notes weaker than necessary.
const COPIED_NOTES: usize = 8192;

/// A candidate for messages: places, each with a description of its value.
type Parts = Vec<(String, String)>;

/// A place that strictly grows or shrinks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Measure<P> {
    what: P,
    grows: bool,
}

/// Findings about a loop from earlier attempts.
#[derive(Clone, Debug, Default)]
struct Head {
    failures: u8,
    /// Whether its first round is walked by itself, before there is a candidate (loop peeling).
    peeled: bool,
    /// The changes in a round, when the loop was last proven.
    shape: Option<Shape>,
    /// Whether that took a candidate with relations, and one that keeps distances; further attempts begin with these.
    related: bool,
    distant: bool,
    /// Whether merging paths in the loop has proven nothing. They are then not merged, unless nothing else ends. (The
    /// loop is entered again in each walk from a candidate for a loop before it, or around it.)
    unblended: bool,
    /// The last failure, with its candidate.
    failure: Option<Box<(LoopFailure, Parts)>>,
}

/// The loops of the program, and the open attempts, outermost first.
#[derive(Debug, Default)]
pub(super) struct Engine {
    on: bool,
    relates: bool,
    forest: Loops,
    heads: Vec<Head>,
    open: Vec<Attempt>,
    /// The number of open attempts in their havocked iteration.
    loose: u32,
    /// Whether the walk starts at a head that has been handled already.
    pub(super) resumed: bool,
    /// Whether the path has come round for the first time in a loop whose first round is peeled.
    begun: bool,
    /// The number of questions asked about single steps in this walk.
    asked: std::cell::Cell<u32>,
    /// Whether havocked iterations make no assumption about accesses. Otherwise accesses are assumed to be within
    /// bounds, which finds simpler candidates, but not always sufficient ones.
    pub(super) anywhere: bool,
    /// Whether that assumption was used.
    assumed_within: bool,
    /// Whether bounds of all elements of an array are kept (see `crate::content`).
    pub(super) elements: bool,
    /// Whether such bounds might have helped and were not kept.
    pub(super) missed_elements: bool,
    /// Numbers of havocked iterations that were loaded from tables of constants.
    tabled: Vec<u32>,
    /// Whether symbolic upper bounds of these elements are kept, too.
    pub(super) orders: bool,
    /// Whether techniques that few loops need are tried (see `crate::ways`).
    pub(super) further: bool,
    /// Whether relations of numbers are kept and used everywhere.
    pub(super) related: bool,
    /// Whether loops are partitioned by rounds in which a place holds none (`guess/sides.rs`).
    pub(super) parts: bool,
    /// Whether partitioning might have helped and was not done.
    missed_parts: bool,
    /// Whether a number was loaded whose array had a bound.
    pub(super) loaded_elements: bool,
    /// Whether the walk gives up as soon as candidates fail repeatedly.
    pub(super) hasty: bool,
    /// Whether an earlier walk has given up so.
    pub(super) hurried: bool,
    /// Whether two unknown numbers were multiplied while no products are kept.
    pub(super) missed_products: bool,
    /// Loops for which an attempt has failed for good; a loop with too many entries gets no further attempt.
    given_up: Vec<u32>,
    /// Candidates tried and checked since the first such failure.
    tried_since: u32,
    /// Whether the walk has given up in haste.
    postponed: bool,
}

impl Engine {
    /// Prepares for a program.
    pub(super) fn start(&mut self, program: &bpf_isa::Program, on: bool) {
        let backward = program.flow().iter().any(|f| f.target.is_some_and(|t| t <= f.at));
        // Programs with indirect jumps are walked round by round.
        self.on = on && backward && !program.contents().indirect_jumps;
        self.open.clear();
        self.loose = 0;
        (self.resumed, self.begun) = (false, false);
        (self.assumed_within, self.missed_elements, self.loaded_elements) = (false, false, false);
        (self.missed_products, self.missed_parts) = (false, false);
        self.given_up.clear();
        self.tabled.clear();
        self.tried_since = 0;
        self.postponed = false;
        self.asked.set(0);
        self.heads.clear();
        self.relates = self.related;
        if self.on {
            self.forest.build(program);
            let short = program.insns().len() <= RELATED_SLOTS;
            self.relates |= short && !self.forest.loops().is_empty();
            self.heads.resize(self.forest.loops().len(), Head::default());
        }
    }

    /// The loops of the program; empty if loops get no attempts.
    pub(super) fn forest(&self) -> &Loops {
        &self.forest
    }

    /// Whether there are attempts to prove a loop.
    pub(super) fn attempts(&self) -> bool {
        !self.open.is_empty()
    }

    /// Bytes that attempts hold beside their entry states, and bytes of the notes on loops.
    pub(super) fn bytes(&self) -> usize {
        self.open.iter().map(Attempt::bytes).sum::<usize>() + self.heads.len() * size_of::<Head>()
    }

    /// Fits the states of attempts to their contents.
    pub(super) fn fit(&mut self, mut fit: impl FnMut(&mut State, &mut Size)) {
        for a in &mut self.open {
            fit(&mut a.entry, &mut a.size);
            if let Some(g) = &mut a.guess {
                g.states_mut().for_each(State::fit);
            }
        }
    }

    /// Whether some loop of its function is around the instruction.
    pub(super) fn is_around(&self, at: InsnIdx) -> bool {
        self.on && self.forest.innermost(at).is_some()
    }

    /// Whether relations of numbers are kept outside of loops, too: the program has a loop that was proven by an
    /// invariant and is short enough for that, or it was refused without them.
    pub(super) fn relates(&self) -> bool {
        self.relates
    }

    /// Whether loops get attempts, with the techniques that few of them need.
    pub(super) fn follows(&self) -> bool {
        self.on && self.further
    }

    /// Whether one more question about single steps may be asked; it is counted.
    pub(super) fn may_ask(&self) -> bool {
        let asked = self.asked.get();
        if !self.rich() || asked >= MAX_ASKED {
            return false;
        }
        self.asked.set(asked + 1);
        true
    }

    /// Whether the walk failed for lack of products, which a later strategy keeps ([`crate::ways`]).
    fn misses_products(&self) -> bool {
        self.missed_products && !self.further && !self.anywhere
    }

    /// Whether proofs use all facts of a state: an open candidate has relations, or relations are used everywhere.
    pub(super) fn rich(&self) -> bool {
        self.related || self.open.iter().any(|a| a.related)
    }

    /// Whether distances between remaining names are derived from facts that are about to be forgotten.
    pub(super) fn keeps_distances(&self) -> bool {
        self.open.iter().any(|a| a.distant)
    }

    /// Whether loads from regions are remembered (see [`super::seen`]).
    pub(super) fn remembers(&self) -> bool {
        self.open.iter().any(|a| a.peels)
    }

    /// Whether an arrival here is merged with states kept since the innermost attempt around it began: the number of
    /// the first state that counts, and how many of them there must be.
    pub(super) fn blends(&self, frame: usize, at: InsnIdx) -> Option<(u32, u32)> {
        let a = &self.open[self.around(frame, at)?];
        match (a.phase, &a.blends) {
            (Phase::Loose | Phase::Check, Blends::Since(_) | Blends::AtLast) => Some((a.kept, 1)),
            (Phase::Loose, Blends::NotYet) => Some((a.kept, MOST_APART)),
            (Phase::Check, Blends::NotYet) | (Phase::Watch, _) | (_, Blends::NoMore) => None,
        }
    }

    /// Enables state merging for this attempt.
    pub(super) fn blend(&mut self, frame: usize, at: InsnIdx) {
        if let Some(i) = self.around(frame, at) {
            self.open[i].blend(self.asked.get());
        }
    }

    /// The innermost attempt whose loop is around the instruction, or around the call of its function.
    fn around(&self, frame: usize, at: InsnIdx) -> Option<usize> {
        let inside = |a: &Attempt| frame > a.frame || (frame == a.frame && self.forest.contains(a.id, at));
        self.open.iter().rposition(inside)
    }

    /// The names of the rounds of the open attempts.
    pub(super) fn guesses(&self) -> impl Iterator<Item = u32> {
        self.open.iter().map(|a| a.k)
    }

    /// Whether the current walk is discarded afterwards and proves nothing.
    pub(super) fn guessing(&self) -> bool {
        self.loose > 0
    }

    /// Numbers of the current havocked iteration that were loaded from tables.
    pub(super) fn tabled(&self) -> &[u32] {
        if self.guessing() { &self.tabled } else { &[] }
    }

    /// Notes that a number of a havocked iteration was loaded from a table of constants.
    pub(super) fn see_tabled(&mut self, id: u32) {
        if self.tabled.len() >= MAX_TABLED {
            self.tabled.clear();
        }
        self.tabled.push(id);
    }

    /// Whether the current walk checks a candidate, for the faults of [`crate::faults`].
    pub(super) fn checking(&self) -> bool {
        self.loose == 0 && self.open.iter().any(|a| a.phase == Phase::Check)
    }

    /// The assumption that a comparison makes about the order of moving numbers.
    pub(super) fn guesses_of_order(&self) -> Guessing {
        match (self.guessing(), self.further) {
            (false, _) => Guessing::Not,
            (true, false) => Guessing::Lines,
            (true, true) => Guessing::Further,
        }
    }

    /// Notes that the current havocked iterations assume that a number fits a cast.
    pub(super) fn see_assumed(&mut self) {
        self.open.iter_mut().filter(|a| a.phase == Phase::Loose).for_each(|a| a.assumed = true);
    }

    /// Whether the current walk assumes that no number wraps.
    pub(super) fn assumes(&self) -> bool {
        self.loose > 0 && !self.open.iter().any(|a| a.phase == Phase::Loose && a.wraps)
    }
}

impl Walk<'_> {
    /// Whether a havocked iteration assumed that an access which was not proven is within bounds.
    pub(crate) fn assumed_within(&self) -> bool {
        self.loops.assumed_within
    }

    /// Whether a number was loaded from an unknown place in an array without a bound of its elements.
    pub(crate) fn missed_elements(&self) -> bool {
        self.loops.missed_elements
    }

    /// Whether an unproven loop has a place that holds none in some rounds.
    pub(crate) fn missed_parts(&self) -> bool {
        self.loops.missed_parts
    }

    /// Whether a number was loaded from an unknown place in an array with a bound of its elements.
    pub(crate) fn loaded_elements(&self) -> bool {
        self.loops.loaded_elements
    }

    /// Whether the walk was given up in haste.
    pub(crate) fn postponed(&self) -> bool {
        self.loops.postponed
    }

    /// Whether bounds of all elements of an array on the stack are kept.
    pub(super) fn knows_elements(&self) -> bool {
        self.loops.elements && self.relates()
    }

    /// At a join, after forgetting: takes off the marks of loops that have been left.
    pub(super) fn leave_loops(&mut self) {
        let top = self.state.frames.len() - 1;
        while let Some(mark) = self.state.frames[top].loops.last()
            && !self.loops.forest.contains(mark.id, self.pc)
        {
            self.state.leave_loop(top);
        }
    }

    /// At a join: whether a loop has come round to its head. `Some(true)`: the path ends here. `Some(false)`: it
    /// continues from the current state.
    pub(super) fn came_round(&mut self) -> Res<Option<bool>> {
        if !self.loops.on {
            return Ok(None);
        }
        self.loops.begun = false;
        if std::mem::take(&mut self.loops.resumed) {
            return Ok(Some(false));
        }
        let Some(id) = self.loops.forest.headed(self.pc) else { return Ok(None) };
        let Some(mark) = self.state.top().loops.last() else { return Ok(None) };
        if mark.id != id || mark.round == Round::Walked {
            return Ok(None);
        }
        if mark.round == Round::Peeled {
            if planted!(PeeledIsAll) {
                self.ending = trail::Ending::Open;
                return Ok(Some(true));
            }
            self.state.top_mut().loops.pop();
            self.loops.begun = true;
            // Proofs from here on are about the following rounds, and other arrivals here may be dropped.
            self.note_rounds(id, None);
            return Ok(None);
        }
        let (k, round) = (mark.k.id, mark.round);
        let Some(i) = self.loops.open.iter().rposition(|a| a.k == k) else {
            return refuse(Reason::Internal("a round of a loop that nobody guesses about"));
        };
        if self.loops.open[i].epoch != self.epoch {
            // A bounded construct begins or ends in the loop.
            return self.give_up(i, LoopFailure::Bounded).map(|()| Some(false));
        }
        match (round, self.loops.open[i].phase) {
            (Round::Watched, Phase::Watch) => self.watched(i).map(|()| Some(false)),
            (Round::Guessed, Phase::Loose) => {
                self.came_back_loose(i);
                self.ending = trail::Ending::Open;
                Ok(Some(true))
            }
            (Round::Guessed, Phase::Check) => self.came_back(i).map(Some),
            _ => refuse(Reason::Internal("a round of a loop in another phase")),
        }
    }

    /// At a join that no earlier state covers: begins an attempt if a loop is entered here. `true`: the walk continues
    /// from a candidate.
    pub(super) fn enter_loop(&mut self) -> Res<bool> {
        if !self.loops.on {
            return Ok(false);
        }
        let Some(id) = self.loops.forest.headed(self.pc) else { return Ok(false) };
        if self.state.top().loops.iter().any(|m| m.id == id) {
            return Ok(false);
        }
        let head = &self.loops.heads[id as usize];
        if head.failures >= MAX_FAILURES {
            self.note_rounds(id, None);
            return Ok(false);
        }
        if head.peeled && !self.loops.begun && self.loops.remembers() {
            let k = Value::constant(0);
            self.state.top_mut().loops.push(Mark {
                id,
                round: Round::Peeled,
                k,
                lines: Vec::new(),
                ids: Vec::new(),
                side: 0,
            });
            return Ok(false);
        }
        let shape = head.shape.clone();
        let blends = if head.unblended { Blends::NoMore } else { Blends::NotYet };
        let entry = self.copy_state();
        let mark = self.trail_mark();
        let k = self.new_id();
        let size = Size::of(&entry);
        self.stored(size)?;
        self.loops.open.push(Attempt {
            id,
            k,
            frame: self.state.frames.len() - 1,
            phase: Phase::Watch,
            entry,
            size,
            at: self.pc,
            path: self.path,
            epoch: self.epoch,
            pending: self.scratch.pending.len(),
            mark,
            kept: self.scratch.prune.ever_kept(),
            recorded: self.recorded.len(),
            shape: Shape::default(),
            guess: None,
            tries: 0,
            related: false,
            distant: false,
            peels: false,
            blends,
            steps: 0,
            wraps: false,
            assumed: false,
            fills: Vec::new(),
            notes: None,
        });
        let i = self.loops.open.len() - 1;
        if let Some(shape) = shape {
            self.loops.open[i].shape = shape;
            self.begin_as_before(i);
            if self.start_loose(i)? {
                return Ok(true);
            }
            let a = &mut self.loops.open[i];
            (a.shape, a.related, a.distant) = (Shape::default(), false, false);
        }
        self.watch(i);
        Ok(false)
    }

    /// Begins a sample round: names all values of the current state, so that the round's result can be compared with
    /// them.
    fn watch(&mut self, i: usize) {
        self.set_phase(i, Phase::Watch);
        let a = &mut self.loops.open[i];
        guess::name_all(&mut self.state, &mut a.shape, &mut self.next_id);
        let ids = a.shape.names.iter().map(|(_, id)| *id).chain([a.k]).collect();
        let k = Value { id: a.k, ..Value::constant(0) };
        let mark = Mark { id: a.id, round: Round::Watched, k, lines: Vec::new(), ids, side: 0 };
        self.state.top_mut().loops.push(mark);
    }

    /// Ends a sample round: the havocked iteration begins from the state that entered.
    fn watched(&mut self, i: usize) -> Res<()> {
        self.state.top_mut().loops.pop();
        let a = &mut self.loops.open[i];
        (a.shape.further, a.shape.parts) = (self.loops.further, self.loops.parts);
        let seen = guess::compare(&a.entry, &self.state, &mut a.shape);
        if seen {
            self.begin_as_before(i);
        }
        if seen && self.start_loose(i)? { Ok(()) } else { self.give_up(i, LoopFailure::Unlike) }
    }

    /// Discards everything since the attempt began, including the attempts inside it.
    fn rewind(&mut self, i: usize) {
        let a = &mut self.loops.open[i];
        let pending = &mut self.scratch.pending;
        while pending.len() > a.pending
            && let Some(p) = pending.pop()
        {
            self.scratch.memory.remove(p.size);
            self.scratch.pool.push(p.state);
        }
        let opened = self.scratch.trail.rewind(&a.mark);
        let super::Scratch { prune, pool, memory, .. } = &mut *self.scratch;
        prune.discard(a.kept, opened, pool, memory);
        (self.pc, self.path, self.epoch) = (a.at, a.path, a.epoch);
        self.recorded.truncate(a.recorded);
        // The oldest copy is restored: later notes are of discarded walks.
        if let Some(notes) = self.loops.open[i..].iter_mut().find_map(|a| a.notes.take()) {
            self.notes = notes;
        }
        while self.loops.open.len() > i + 1 {
            self.pop_attempt();
        }
        self.notes.muted = self.loops.loose > 0;
    }

    fn pop_attempt(&mut self) {
        if let Some(a) = self.loops.open.pop() {
            self.loops.loose -= u32::from(a.phase == Phase::Loose);
            self.notes.muted = self.loops.loose > 0;
            self.scratch.memory.remove(a.size);
            self.scratch.pool.push(a.entry);
            if let Some(g) = a.guess {
                g.retire(&mut self.scratch.pool);
            }
        }
    }

    fn set_phase(&mut self, i: usize, phase: Phase) {
        let a = &mut self.loops.open[i];
        self.loops.loose = self.loops.loose + u32::from(phase == Phase::Loose) - u32::from(a.phase == Phase::Loose);
        a.phase = phase;
        self.notes.muted = self.loops.loose > 0;
    }

    /// All paths of the newest attempts have ended: continues with their next phases. `true` if there is something to
    /// walk.
    pub(super) fn loops_done(&mut self) -> Res<bool> {
        while let Some(a) = self.loops.open.last() {
            if self.scratch.pending.len() > a.pending {
                return Ok(false);
            }
            let i = self.loops.open.len() - 1;
            match a.phase {
                // The sample round ended before it came round.
                Phase::Watch => {
                    self.note_rounds(a.id, Some(0));
                    self.pop_attempt();
                }
                Phase::Loose => {
                    self.loose_done(i)?;
                    self.loops.resumed = true;
                    return Ok(true);
                }
                Phase::Check => {
                    self.log_guess(i, "proves");
                    self.proven(i);
                    self.pop_attempt();
                }
            }
        }
        // A havocked iteration proves nothing, so none may be open when the walk ends.
        if self.loops.loose > 0 {
            return refuse(Reason::Internal("a loose walk of no loop"));
        }
        Ok(false)
    }

    /// Ends a havocked iteration: its candidate is checked, or another havocked iteration is walked.
    fn loose_done(&mut self, i: usize) -> Res<()> {
        // Making a candidate takes longer than the steps do, so the limits are tested here.
        self.check_fuel()?;
        self.check_time()?;
        self.set_phase(i, Phase::Check);
        let a = &mut self.loops.open[i];
        let Some(mut g) = a.guess.take() else { return self.fail(i, LoopFailure::Unlike) };
        // Compilers test a range by one comparison of a difference that wraps.
        let wraps = !g.came_back() && !std::mem::replace(&mut a.wraps, true);
        let again = g.revise(&mut a.shape) || wraps;
        if again {
            let go_on = a.tries < MAX_TRIES + a.extra_tries() && self.start_loose(i)?;
            if go_on {
                g.retire(&mut self.scratch.pool);
                return Ok(());
            }
            let why = g.unstable(self.env);
            return self.fail(i, why);
        }
        self.rewind(i);
        let a = &mut self.loops.open[i];
        let pool = &mut self.scratch.pool;
        let checked = Guess::new(&a.entry, &a.shape, (a.k, a.id, false), self.env, &mut self.next_id, pool);
        let Some(mut checked) = checked else { return self.fail(i, LoopFailure::Unlike) };
        if !checked.settle(&mut g, self.loops.related, &mut self.next_id) {
            let why = if g.ends() { LoopFailure::Unlike } else { LoopFailure::Endless };
            a.guess = Some(g);
            return self.fail(i, why);
        }
        for (frame, scale, at) in a.fills.iter().copied() {
            if let Some(f) = checked.state.frames.get_mut(usize::from(frame)) {
                f.begin_fill(a.k, scale, at);
            }
        }
        a.guess = Some(checked);
        g.retire(&mut self.scratch.pool);
        self.start_check(i)
    }

    /// Begins the checking walk from the candidate.
    fn start_check(&mut self, i: usize) -> Res<()> {
        if self.loops.open[i].guess.as_ref().is_some_and(|g| !g.keeps_signs()) {
            return self.fail(i, LoopFailure::Unlike);
        }
        self.try_in_haste();
        self.charge_guess(i);
        fuel::charge_each(self.insns.len(), fuel::SLOT);
        let copied = self.insns.len() <= COPIED_NOTES;
        if copied {
            self.copies(self.notes.bytes())?;
        }
        let a = &mut self.loops.open[i];
        a.notes = copied.then(|| self.notes.clone());
        if let Some(g) = &a.guess {
            self.state.clone_from(&g.state);
        }
        // Attempts for inner loops that failed may succeed with the facts of this candidate.
        let (outer, forest) = (a.id, &self.loops.forest);
        for (id, l) in forest.loops().iter().enumerate() {
            if id != outer as usize && forest.contains(outer, l.head) {
                self.loops.heads[id].failures = 0;
            }
        }
        self.needs_all();
        self.log_guess(i, "checks");
        self.leave_sides(i)
    }

    /// Queues the sides of the candidate that did not enter the loop.
    fn leave_sides(&mut self, i: usize) -> Res<()> {
        let a = &self.loops.open[i];
        let (at, path, epoch) = (a.at, a.path, a.epoch);
        let sides = || a.guess.iter().flat_map(Guess::other_sides);
        if planted!(SidesUnwalked) && a.phase == Phase::Check {
            return Ok(());
        }
        let states: Vec<State> = sides().cloned().collect();
        for state in states {
            self.leave_at_head(at, state, path, epoch)?;
        }
        Ok(())
    }

    /// Handles a path of a check that came back. Returns whether it ends here; if not, the walk begins anew from a
    /// weaker candidate.
    fn came_back(&mut self, i: usize) -> Res<bool> {
        self.check_fuel()?;
        self.check_time()?;
        self.charge_guess(i);
        let mut back = self.copy_state();
        let a = &mut self.loops.open[i];
        let Some(g) = &mut a.guess else { return refuse(Reason::Internal("a check of no guess")) };
        if !g.receive(&mut back, &mut self.next_id) {
            let why = g.change(&back, self.env);
            self.scratch.pool.push(back);
            return self.part_again(i, why).map(|()| false);
        }
        let ids = self.scratch.prune.ids();
        if (super::prune::covers(&g.state, &back, ids) || g.planted_inside() || planted!(GuessNotWeakened)) && g.ends()
        {
            self.scratch.pool.push(back);
            // The path continues as the rounds of the candidate do, and demands everything that they may need.
            self.ending = trail::Ending::Open;
            self.stats.pruned += 1;
            return Ok(true);
        }
        let a = &mut self.loops.open[i];
        let most = MAX_TRIES + a.extra_tries();
        let Some(g) = &mut a.guess else { return refuse(Reason::Internal("a check of no guess")) };
        a.tries += 1;
        let why = match g.ends() {
            true => g.change(&back, self.env),
            false => LoopFailure::Endless,
        };
        let weaker = a.tries < most && g.ends() && g.weaken(&back, self.env, &mut self.next_id);
        self.scratch.pool.push(back);
        if !weaker {
            self.fail(i, why)?;
            return Ok(false);
        }
        self.rewind(i);
        self.start_check(i)?;
        Ok(false)
    }

    /// Handles a path of a check that came back to a side that the candidate does not have: the next candidate has it.
    fn part_again(&mut self, i: usize, why: LoopFailure) -> Res<()> {
        let a = &mut self.loops.open[i];
        let again = a.guess.as_mut().is_some_and(|g| g.part(&mut a.shape)) && a.tries < MAX_TRIES + a.extra_tries();
        if again && self.start_loose(i)? { Ok(()) } else { self.fail(i, why) }
    }

    /// Handles a failed candidate: tries one with relations, or gives up.
    fn fail(&mut self, i: usize, why: LoopFailure) -> Res<()> {
        let a = &mut self.loops.open[i];
        if a.shape.count_otherwise() {
            a.tries = 0;
            if self.start_loose(i)? {
                return Ok(());
            }
        }
        let a = &mut self.loops.open[i];
        let again = a.unblend(why == LoopFailure::TooLong);
        if let Some(Again::Apart { asked }) = again {
            self.loops.heads[a.id as usize].unblended = true;
            self.loops.asked.set(asked);
        }
        if again.is_some() && self.start_loose(i)? {
            return Ok(());
        }
        let a = &mut self.loops.open[i];
        let (id, forest) = (a.id, &self.loops.forest);
        let refused = matches!(why, LoopFailure::Refused { .. });
        // Distances are tried last, since they are the most expensive: a question for each pair of names at each join.
        if a.related || !a.shape.may_relate(refused) {
            // No rank was found, and the loop has inner loops: peeling their first rounds may give more facts.
            let inside = |inner: usize| inner != id as usize && forest.contains(id, forest.loops()[inner].head);
            let peels = why == LoopFailure::Endless && !a.peels && (0..forest.loops().len()).any(inside);
            if peels {
                a.peels = true;
                for (_, head) in self.loops.heads.iter_mut().enumerate().filter(|(inner, _)| inside(*inner)) {
                    head.peeled = true;
                }
            } else if a.related && !a.distant {
                a.distant = true;
            } else if self.loops.related && a.assumed && !a.wraps {
                // A number that was assumed to fit a cast may have more bits in a later round.
                (a.wraps, a.tries) = (true, 0);
            } else {
                return self.give_up(i, why);
            }
        }
        self.relate(i);
        if self.start_loose(i)? { Ok(()) } else { self.give_up(i, why) }
    }

    /// Restarts the attempt with relations between places.
    fn relate(&mut self, i: usize) {
        let a = &mut self.loops.open[i];
        let (id, forest) = (a.id, &self.loops.forest);
        a.related = true;
        a.shape.relate(self.insns, |at| forest.contains(id, InsnIdx(crate::num::small(at))));
        if self.loops.orders || self.loops.further {
            a.shape.relate_to_ends(self.insns, |at| forest.contains(id, InsnIdx(crate::num::small(at))));
        }
        a.tries = 0;
    }

    /// Restarts the attempt with the techniques that the last attempt about the loop needed, and with those of an
    /// enclosing attempt, since facts behind this loop come only from its candidate.
    fn begin_as_before(&mut self, i: usize) {
        let head = &self.loops.heads[self.loops.open[i].id as usize];
        let around = self.loops.further && self.loops.open[..i].iter().any(|a| a.distant);
        if (head.related || around) && self.loops.open[i].shape.may_relate(true) {
            self.loops.open[i].distant = head.distant;
            self.relate(i);
        }
    }

    /// Gives the attempt up: walks the loop round by round from the state that entered it.
    fn give_up(&mut self, i: usize, why: LoopFailure) -> Res<()> {
        self.log_guess(i, "gives up");
        self.loops.missed_parts |= self.loops.open[i].shape.misses_parts();
        self.note_failure(i, why);
        self.give_up_in_haste(self.loops.open[i].id);
        self.rewind(i);
        let a = &mut self.loops.open[i];
        self.state.clone_from(&a.entry);
        let mark =
            Mark { id: a.id, round: Round::Walked, k: Value::constant(0), lines: Vec::new(), ids: Vec::new(), side: 0 };
        let id = a.id;
        self.loops.heads[id as usize].failures += 1;
        self.loops.heads[id as usize].shape = None;
        self.pop_attempt();
        self.note_rounds(id, None);
        self.state.top_mut().loops.push(mark);
        Ok(())
    }

    /// Handles a refusal. If it happened in a walk from a candidate, nothing is lost: `Some(true)` if the walk
    /// continues from before the candidate, `Some(false)` if only the path is dropped.
    pub(super) fn guess_refused(&mut self, reason: &Reason) -> Res<Option<bool>> {
        if matches!(
            reason,
            Reason::Steps(_)
                | Reason::Fuel(_)
                | Reason::Time(_)
                | Reason::OutOfMemory
                | Reason::States(_)
                | Reason::Memory(_)
                | Reason::Internal(_)
        ) {
            return Ok(None);
        }
        if self.loops.guessing() {
            return Ok(Some(false));
        }
        let Some(i) = self.loops.open.iter().rposition(|a| a.phase == Phase::Check) else { return Ok(None) };
        let why = self.refused_in_guess(reason);
        self.fail(i, why)?;
        self.loops.resumed = true;
        Ok(Some(!planted!(RefusedGuessDropped)))
    }

    /// Chooses which side of a conditional jump is walked first. In a sample round, if falling through leaves the loop
    /// and the taken side does not, the sides are exchanged: when the path comes round, everything else is discarded,
    /// including code after the loop.
    pub(super) fn stay_in_loop(&mut self, flow: Flow) -> Flow {
        let Some(a) = self.loops.open.last().filter(|a| a.phase == Phase::Watch) else { return flow };
        if !matches!(flow, Flow::Next) {
            return flow;
        }
        let (id, frame, next) = (a.id, a.frame, InsnIdx(self.pc.0 + 1));
        let Some(taken) = self.scratch.pending.last_mut() else { return flow };
        let stays = |at: InsnIdx| self.loops.forest.contains(id, at);
        if self.state.frames.len() != frame + 1 || stays(next) || !stays(taken.at) {
            return flow;
        }
        // Demand marks of one side would go to the other after the exchange, so the exchange needs all values to be
        // exact.
        if !self.scratch.prune.all_exact() {
            return flow;
        }
        let target = std::mem::replace(&mut taken.at, next);
        std::mem::swap(&mut taken.state, &mut self.state);
        std::mem::swap(&mut taken.path, &mut self.path);
        Flow::To(target)
    }

    fn proven(&mut self, i: usize) {
        let a = &mut self.loops.open[i];
        let head = &mut self.loops.heads[a.id as usize];
        head.shape = Some(a.shape.reusable());
        (head.related, head.distant) = (a.related, a.distant);
        head.failures = 0;
        let (id, rounds) = (a.id, a.guess.as_ref().and_then(Guess::rounds));
        self.note_rounds(id, rounds);
    }

    /// Notes that a loop was entered from outside, and an upper bound of its rounds.
    fn note_rounds(&mut self, id: u32, rounds: Option<u64>) {
        self.notes.rounds(id, self.loops.heads.len(), rounds);
    }

    /// Charges for making a candidate, or for comparing it with a state that came back: each place is visited many
    /// times.
    fn charge_guess(&self, i: usize) {
        let a = &self.loops.open[i];
        fuel::charge(GUESSED * a.entry.size() * (1 + u64::from(a.related)));
    }

    fn log_guess(&mut self, i: usize, what: &str) {
        if !self.env.log {
            return;
        }
        let a = &self.loops.open[i];
        let mut line = format!("loop at {}: {what}", a.at);
        if let Some(g) = &a.guess {
            line.push_str(&g.describe(self.env));
        }
        self.write_log(line);
    }
}
