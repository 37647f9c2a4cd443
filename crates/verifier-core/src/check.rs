//! The check: one walk from the entry and one from each kept point, each until it reaches kept points.
//!
//! Problem: accept (program, contract, certificate) only if every run of the program is safe. Approach: Floyd's method
//! (1967). Each *segment* begins at the entry or at a kept point, whose claim the segment assumes, and walks every path
//! until the path ends, or a kept point covers it: the claim of that kept point is proven (`entails`), and the rank
//! decreases. By induction over the segments of a run, each concrete state of the run is in an abstract state that was
//! walked, so the checks made there hold for the run. The rank shows that each run has finitely many segments; each
//! segment has finitely many steps, since its walk ended.
//!
//! Invariants: only rules change a state (`domain::knowledge`, `transfer`), whatever the guide answers, so a wrong
//! answer can cause a refusal but no acceptance. The work is bounded by fuel, which counts names, rows and slots
//! touched: a check takes time linear in the size of the certificate and the fuel. Each operation that copies a state
//! or reads all of it pays for the state's size first ([`Checker::pay`]).

use bpf_analysis::Facts;
use bpf_isa::{InsnIdx, Program};

use crate::contract::Env;
use crate::domain::Form;
use crate::faults::planted;
use crate::guide::{Advice, Guide, Kept, Point};
use crate::notes::Notes;
use crate::refusal::{Refusal, Res, Why};
use crate::state::State;

/// Fuel for a check: enough for programs of tens of thousands of steps, and four times what `bpf prove` spends on one.
pub const FUEL: u64 = 1 << 22;

/// Most size of all states that wait to be walked, in units of [`PENDING_BYTES`]: a bound on memory.
const MAX_PENDING: usize = 1 << 21;

/// Approximate bytes of memory for a unit of [`State::size`].
const PENDING_BYTES: usize = 128;

/// The continuation of a path after an instruction.
pub(crate) enum Flow {
    /// The path goes on at the next instruction.
    Next,
    /// The path goes on at this instruction.
    To(InsnIdx),
    /// The path ends.
    End,
}

pub(crate) struct Checker<'a> {
    pub(crate) program: &'a Program,
    pub(crate) env: &'a Env<'a>,
    pub(crate) notes: Notes,
    pub(crate) pc: InsnIdx,
    kept: &'a [Kept],
    guide: &'a mut dyn Guide,
    fuel: u64,
    /// Paths of the segment that wait to be walked.
    pending: Vec<(InsnIdx, State)>,
    /// The summed sizes of the pending states.
    waiting: usize,
    /// The kept point that the segment began at; `None` for the program's entry.
    segment: Option<usize>,
    starts: bool,
    /// Instructions that jumps lead back to, ascending, if runs may yield there.
    heads: Vec<InsnIdx>,
    /// Coverage is assumed, not proven, so the walk proves nothing ([`explore`]).
    believes: bool,
}

/// Checks that every run of the program is safe in its environment and ends, and returns the program's facts.
///
/// # Errors
/// The first obligation that could not be proven.
pub fn check(
    program: &Program,
    env: &Env<'_>,
    kept: &[Kept],
    guide: &mut dyn Guide,
    fuel: u64,
) -> Result<Facts, Refusal> {
    let mut checker = Checker::new(program, env, kept, guide, fuel);
    match checker.run() {
        Ok(()) => Ok(checker.notes.into_facts(program, env)),
        Err(why) => Err(Refusal { at: checker.pc, why }),
    }
}

/// Walks one segment as [`check`] does, from the entry or from a kept point, but assumes each coverage that the guide
/// claims. Serves a search for invariants. The walk proves nothing, so it returns the fuel that is left, and no facts.
///
/// # Errors
/// The first step that could not be proven, assuming the kept point's invariant.
pub fn explore(
    program: &Program,
    env: &Env<'_>,
    from: Option<&Kept>,
    guide: &mut dyn Guide,
    fuel: u64,
) -> Result<u64, Refusal> {
    let mut checker = Checker::new(program, env, from.map(std::slice::from_ref).unwrap_or_default(), guide, fuel);
    checker.believes = true;
    let walked = match from {
        Some(_) => checker.walk_kept(0),
        None => checker.walk_entry(),
    };
    walked.map_err(|why| Refusal { at: checker.pc, why })?;
    Ok(checker.fuel)
}

/// The instructions that jumps lead back to, ascending.
fn heads_of(program: &Program) -> Vec<InsnIdx> {
    let backward = |flow: &bpf_isa::Flow| flow.target.filter(|target| *target <= flow.at);
    let mut heads: Vec<InsnIdx> = program.flow().iter().filter_map(backward).collect();
    heads.sort_unstable();
    heads.dedup();
    heads
}

impl<'a> Checker<'a> {
    pub(crate) fn new(
        program: &'a Program,
        env: &'a Env<'a>,
        kept: &'a [Kept],
        guide: &'a mut dyn Guide,
        fuel: u64,
    ) -> Checker<'a> {
        let notes = Notes::new(program);
        let (pending, segment, starts) = (Vec::new(), None, true);
        let (pc, waiting, believes) = (InsnIdx(0), 0, false);
        let heads = if env.sleepable && env.yields { heads_of(program) } else { Vec::new() };
        Checker { program, env, notes, pc, kept, guide, fuel, pending, waiting, segment, starts, heads, believes }
    }

    fn run(&mut self) -> Res<()> {
        self.walk_entry()?;
        (0..self.kept.len()).try_for_each(|i| self.walk_kept(i))
    }

    fn walk_entry(&mut self) -> Res<()> {
        self.env.check().map_err(|e| Why::Environment(e.0))?;
        // A global function must be safe for all arguments, which the core does not check.
        if self.env.global_functions.iter().any(Option::is_some) {
            return Err(Why::Unsupported("functions that are verified on their own"));
        }
        if self.env.exception.is_some() {
            return Err(Why::Unsupported("exception callbacks"));
        }
        let entry = State::entry(self.env).ok_or(Why::Internal("no entry"))?;
        self.segment(None, InsnIdx(0), entry)
    }

    fn walk_kept(&mut self, i: usize) -> Res<()> {
        let point = self.kept(i)?;
        self.pc = point.at;
        let state = State::assume(&point.claim, self.program, self.env);
        let state = state.ok_or(Why::Certificate("a kept point refers to something that does not exist"))?;
        let insn = self.program.insns().get(point.at.index());
        let inside = insn.is_some_and(|insn| *insn != bpf_isa::Insn::SecondSlot)
            && state.top().is_some_and(|top| top.subprog == self.program.subprog_of(point.at).0);
        if !inside {
            return Err(Why::Certificate("a kept point lies outside of its function"));
        }
        if !point.rank.iter().all(|form| form.is_over(point.claim.names.len())) {
            return Err(Why::Certificate("a rank over names that do not exist"));
        }
        self.segment(Some(i), point.at, state)
    }

    /// Walks every path from here until it ends or a kept point covers it.
    fn segment(&mut self, from: Option<usize>, at: InsnIdx, state: State) -> Res<()> {
        (self.segment, self.starts) = (from, true);
        self.pending.push((at, state));
        while let Some((at, state)) = self.pending.pop() {
            self.waiting = self.waiting.saturating_sub(state.size());
            match self.way(at, state) {
                Ok(()) | Err(Why::Unreachable) => {}
                Err(why) => return Err(why),
            }
        }
        Ok(())
    }

    fn way(&mut self, at: InsnIdx, mut state: State) -> Res<()> {
        self.pc = at;
        loop {
            let slots = state.top().map_or(0, |top| top.stack.cells().len());
            let size = state.known.names().len() / 16 + state.known.rows().len() + slots / 64;
            self.spend(1 + size as u64)?;
            if self.heads.binary_search(&self.pc).is_ok() {
                self.at_head(&mut state)?;
            }
            let point = Point { pc: self.pc, from: self.segment, starts: self.starts, state: &state };
            match self.guide.advise(&point) {
                Advice::Step => {}
                Advice::Stop => return Err(Why::Stopped),
                Advice::Cover { .. } if self.believes => return Ok(()),
                Advice::Cover { kept, renaming } => return self.cover(&state, kept, &renaming),
                Advice::Split(form) => {
                    self.split(&mut state, &form)?;
                    continue;
                }
                Advice::Name { form, signed } => {
                    self.name_residue(&mut state, &form, signed)?;
                    continue;
                }
            }
            self.starts = false;
            self.notes.reached(self.pc);
            match self.step(&mut state)? {
                Flow::Next => self.pc = InsnIdx(self.pc.0 + 1),
                Flow::To(target) => self.pc = target,
                Flow::End => return Ok(()),
            }
        }
    }

    /// Queues a path of the segment.
    pub(crate) fn push(&mut self, at: InsnIdx, state: State) -> Res<()> {
        self.waiting = self.waiting.saturating_add(state.size());
        if self.waiting > MAX_PENDING.min(self.env.limits.memory / PENDING_BYTES) {
            return Err(Why::Memory);
        }
        self.pending.push((at, state));
        Ok(())
    }

    /// Spends fuel for a pass over a state, before the pass.
    pub(crate) fn pay(&mut self, state: &State) -> Res<()> {
        self.spend(state.size() as u64 / 16)
    }

    /// Copies a state, and pays for its size.
    pub(crate) fn copy(&mut self, state: &State) -> Res<State> {
        self.pay(state)?;
        Ok(state.clone())
    }

    pub(crate) fn spend(&mut self, fuel: u64) -> Res<()> {
        self.fuel = self.fuel.checked_sub(fuel).ok_or(Why::Fuel)?;
        Ok(())
    }

    /// Whether the state proves that the form is not negative, by the bounds of its names or by the guide's
    /// multipliers.
    pub(crate) fn proves(&mut self, state: &State, claim: &Form) -> Res<bool> {
        if state.known.is_not_negative(claim) {
            return Ok(true);
        }
        let point = Point { pc: self.pc, from: self.segment, starts: self.starts, state };
        let Some(by) = self.guide.prove(&point, claim) else { return Ok(false) };
        self.spend(by.size())?;
        Ok(state.known.proves(claim, &by))
    }

    /// The kept point that the segment began at.
    pub(crate) fn origin(&self) -> Option<&'a Kept> {
        self.kept.get(self.segment?)
    }

    pub(crate) fn kept(&self, i: usize) -> Res<&'a Kept> {
        self.kept.get(i).ok_or(Why::Certificate("there is no such kept point"))
    }

    /// Splits the state by the sign of a form. Both cases are walked: the current path continues where the form is not
    /// negative, and the negative case is queued.
    fn split(&mut self, state: &mut State, form: &Form) -> Res<()> {
        let over = form.is_over(state.known.names().len());
        let (true, Some(negative)) = (over, form.times(-1).and_then(|f| f.shifted(-1))) else {
            return Err(Why::Certificate("a split by a form over unknown names"));
        };
        let mut other = self.copy(state)?;
        match (state.known.learn(form.clone()), other.known.learn(negative)) {
            (true, true) if planted!(SplitDropsCase) => {}
            (true, true) => self.push(self.pc, other)?,
            (true, false) => {}
            (false, true) => *state = other,
            (false, false) => return Err(Why::Unreachable),
        }
        Ok(())
    }

    /// Gives a fresh name to the residue of a form modulo 2^64, and replaces the form by the name in registers and
    /// cells.
    fn name_residue(&mut self, state: &mut State, form: &Form, signed: bool) -> Res<()> {
        if !form.is_over(state.known.names().len()) || form.residue(64) != *form {
            return Err(Why::Certificate("a name for a form over unknown names, or that is no residue"));
        }
        self.pay(state)?;
        let name = self.fresh_residue(state, form, 64, signed)?;
        state.rename(form, name);
        Ok(())
    }
}
