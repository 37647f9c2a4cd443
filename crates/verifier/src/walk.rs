//! The walk: every path of the program over abstract states.
//!
//! Approach: depth first. One current state is changed in place; an undecided branch copies it for the side not taken
//! now. Where control flow joins, [`prune`] drops paths whose state an earlier, finished one covers (subsumption).
//! Subprograms are walked at each call, in the caller's context. Global functions and timer callbacks are walked once,
//! on their own.
//!
//! Invariants: a step only ever widens what it does not understand, or refuses; everything recorded in
//! [`crate::notes::Notes`] about an instruction covers all states it was reached with, and these cover all concrete
//! executions.

mod ahead;
mod alu;
mod args;
mod biased;
mod branch;
mod call;
mod definitions;
mod describe;
mod differences;
mod effort;
mod exponents;
mod formats;
mod global;
mod jumps;
mod lanes;
mod linear;
mod lines;
mod log;
mod loops;
mod mem;
mod memory;
mod objects;
mod offsets;
mod pending;
mod pointers;
mod products;
mod prune;
mod retests;
mod seen;
mod signed;
mod stale;
mod sums;
mod trail;

use std::cell::OnceCell;
use std::time::Instant;

use bpf_analysis::{ArenaFact, Facts};
use bpf_isa::{AluOp, Callee, Imm64, Insn, InsnIdx, Program, Reg, Src, SubprogId, Width};
use bpf_uapi::MapType;

pub(crate) use linear::forget_answers;
pub(crate) use loops::RELATED_SLOTS;
pub(crate) use memory::{MEMORY_SLACK, Memory, has as has_memory};

use crate::course::{Course, Mode};
use crate::env::{Env, GlobalArg, KnownArena, KnownMap};
use crate::error::{Reason, Res, VerifyError, refuse};
use crate::faults::planted;
use crate::fuel;
use crate::helpers::{HelperProto, Ret};
use crate::kept::{MAX_KEPT, shrink};
use crate::lens::Lens;
use crate::need::Needs;
use crate::notes::Notes;
use crate::scalar::Scalar;
use crate::state::{Entry, Frame, Lock, LockOf, Pool, Room, State};
use crate::states::States;
use crate::value::{FIRST_FREE_ID, Hold, MAX_NAMES, Origin, Ty, Value, len_id};
use pending::Pending;
use trail::{Ending, Trail};

/// A root of the walk, which determines the initial state.
#[derive(Clone, Copy)]
enum Start<'s> {
    /// The main program, with its context.
    Program,
    /// A global function, with any arguments of its signature.
    Global(&'s [GlobalArg]),
    /// A function that a timer in a value of this map calls, with the map, a key, and that value.
    Timer(u32),
    /// A comparison function of a tree in a map's values, with two nodes.
    Compare(args::Compare),
    /// The exception callback, with the thrown number.
    Exception,
}

/// The place where control continues after a step.
enum Flow {
    Next,
    To(InsnIdx),
    /// The path ends.
    End,
}

/// A link of the path that led to a state: shared tails, newest first.
#[derive(Clone, Copy, Debug)]
struct PathNode {
    parent: u32,
    insn: InsnIdx,
    taken: bool,
}

const NO_PATH: u32 = u32::MAX;

/// Memory reused from program to program.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    pub(crate) needs: Needs,
    /// The work that each instruction took in this verification.
    pub(crate) effort: effort::Efforts,
    /// The time at which the verification gives up, if time is limited.
    pub(crate) deadline: Option<Instant>,
    pending: Vec<Pending>,
    paths: Vec<PathNode>,
    prune: prune::Pruner,
    trail: Trail,
    notes: Notes,
    loops: loops::Engine,
    pool: Pool,
    /// The memory that this verification holds.
    pub(crate) memory: Memory,
}

impl Scratch {
    /// Ends the state that a walk has left behind, finished or not.
    fn clear(&mut self) {
        while let Some(p) = self.pending.pop() {
            self.pool.push(p.state);
        }
        self.prune.take_states(&mut self.pool);
        self.trail.clear();
        self.paths.clear();
    }

    /// Frees memory beyond what a verifier keeps: each kind of memory has a share.
    pub(crate) fn trim(&mut self) {
        const SHARE: usize = MAX_KEPT / 16;
        self.clear();
        self.pool.trim(2 * SHARE);
        shrink(&mut self.pending, SHARE);
        shrink(&mut self.paths, SHARE);
        self.prune.trim(SHARE);
        self.trail.trim(SHARE);
        self.needs.trim(SHARE);
        self.effort.trim(SHARE);
        self.notes.trim(SHARE);
    }
}

/// Work done by one verification.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Instructions walked, over all paths, by the walk that accepted the program.
    pub steps: u64,
    /// Fuel spent by all walks together ([`crate::Limits::fuel`]).
    pub fuel: u64,
    /// States kept at joins.
    pub states: usize,
    /// Paths that ended in a state already covered.
    pub pruned: usize,
    /// Most bytes held at once, as [`crate::Limits::memory`] counts them.
    pub peak_bytes: usize,
    /// Numbers that were widened in merged states ([`Env::merge_after`]).
    pub merged: usize,
    /// Whether the trusted core has accepted the program by a certificate, after the walks had refused it.
    pub certified: bool,
}

/// Steps after which the walk's memory is measured, if no state is kept before.
const WEIGHED_STEPS: u64 = 64;
/// Steps between two looks at the clock, if time is limited.
const TIMED_STEPS: u64 = 256;

pub(crate) struct Walk<'a> {
    env: &'a Env<'a>,
    /// Whether run-time checks may stand in for missing proofs.
    hybrid: bool,
    mode: Mode,
    /// Whether the program may have loops.
    looped: bool,
    /// The number of steps after which numbers that keep paths apart are widened.
    merge_after: u64,
    /// The most rounds of a loop, after which the walk gives up.
    rounds: usize,
    /// Whether facts about numbers are noted, unless that takes too long.
    values: bool,
    /// The limit on steps.
    steps: u64,
    program: &'a Program,
    insns: &'a [Insn],
    scratch: &'a mut Scratch,
    state: State,
    pc: InsnIdx,
    path: u32,
    /// Round of the innermost bounded construct; see [`prune`].
    epoch: u32,
    epochs: prune::Epochs,
    next_id: u32,
    loops: loops::Engine,
    /// Heads of loops at which runs may yield, ascending.
    heads: Vec<InsnIdx>,
    /// The first arena that the program refers to.
    arena: Option<u32>,
    /// The step that copied a number which was shifted to the left and may be shifted back.
    copied_at: Option<u64>,
    /// The step that made the newest congruence.
    congruent_at: u64,
    /// The step that made the newest difference which may have wrapped.
    differed: u64,
    /// Facts on their way into the state.
    facts: Vec<Room>,
    /// Instructions since the last state was kept.
    since_kept: u32,
    /// The number of times that the walk could continue in more than one way: branches of which both sides are
    /// feasible, and calls and loads that may end the program.
    choices: u64,
    /// Whether a refused proof may be possible if moves between registers are taken into account ([`Needs::see_move`]).
    pub(crate) misses_moves: bool,
    retests: retests::Retests,
    /// Places of the stack that a function loads from more than once; computed when first needed.
    reloaded: OnceCell<Vec<(SubprogId, i16)>>,
    /// Whether the registers' needs of this program have been computed; they are when first used.
    needs_built: bool,
    /// The ending of the current path.
    ending: Ending,
    /// The assumptions of calls of each subprogram, if there are global functions.
    summaries: Vec<global::Summary>,
    /// Comparison functions of trees, which are walked on their own after the program.
    compares: Vec<args::Compare>,
    /// Timer callbacks, by subprogram and the map with the timer, which are walked on their own after the program.
    timer_callbacks: Vec<(u32, u32)>,
    /// Whether some path throws.
    thrown: bool,
    /// Fuel spent when the last step began. The difference is charged to the step's instruction.
    charged: u64,
    pub(crate) notes: Notes,
    pub(crate) stats: Stats,
    pub(crate) log: log::Log,
    pub(crate) recorded: States,
}

/// The first arena that the program refers to.
fn arena_of(program: &Program, env: &Env<'_>) -> Option<u32> {
    if !program.contents().wide_loads || env.maps.iter().all(|map| map.arena.is_none()) {
        return None;
    }
    program.insns().iter().find_map(|insn| {
        let Insn::LoadImm64 { imm, .. } = *insn else { return None };
        let map = match imm {
            Imm64::Map(map) | Imm64::MapIdx(map) => map,
            Imm64::MapValue { map, .. } | Imm64::MapIdxValue { map, .. } => map,
            Imm64::Const(_) | Imm64::Var(_) | Imm64::Func(_) => return None,
        };
        let map = u32::try_from(map).ok()?;
        env.maps.get(map as usize)?.arena.map(|_| map)
    })
}

/// The instructions that jumps lead back to, ascending.
fn heads_of(program: &Program) -> Vec<InsnIdx> {
    let backward = |f: &bpf_isa::Flow| f.target.filter(|target| *target <= f.at);
    let mut heads: Vec<InsnIdx> = program.flow().iter().filter_map(backward).collect();
    heads.sort_unstable();
    heads.dedup();
    heads
}

impl<'a> Walk<'a> {
    pub(crate) fn new(env: &'a Env<'a>, program: &'a Program, scratch: &'a mut Scratch, course: Course) -> Walk<'a> {
        let Course { mode, merges, loops: looped, values, assumes, elements, orders, further, parts, .. } = course;
        let Course { related, hasty, hurried, rounds, steps, fuel, .. } = course;
        fuel::limit(fuel);
        // An optimiser's facts are worth more than saved steps, so nothing is merged while they are noted. An
        // exhaustive walk drops no path.
        let may_merge = merges && !looped && !values && !env.exhaustive && mode != Mode::Hybrid;
        let notes = std::mem::take(&mut scratch.notes);
        let mut loops = std::mem::take(&mut scratch.loops);
        (loops.anywhere, loops.elements, loops.orders, loops.further) = (!assumes, elements, orders, further);
        (loops.hasty, loops.hurried, loops.parts, loops.related) = (hasty, hurried, parts, related);
        Walk {
            steps,
            env,
            hybrid: mode == Mode::Hybrid,
            mode,
            looped,
            merge_after: if may_merge { env.merge_after } else { u64::MAX },
            rounds,
            values,
            program,
            insns: program.insns(),
            scratch,
            state: State::default(),
            pc: InsnIdx(0),
            path: NO_PATH,
            epoch: 0,
            epochs: prune::Epochs::default(),
            next_id: FIRST_FREE_ID,
            loops,
            heads: if env.sleepable && env.yields { heads_of(program) } else { Vec::new() },
            arena: arena_of(program, env),
            copied_at: None,
            congruent_at: 0,
            differed: 0,
            facts: Vec::new(),
            since_kept: 0,
            choices: 0,
            misses_moves: false,
            retests: retests::Retests::default(),
            reloaded: OnceCell::new(),
            needs_built: false,
            ending: Ending::default(),
            summaries: Vec::new(),
            compares: Vec::new(),
            timer_callbacks: Vec::new(),
            thrown: false,
            charged: fuel::spent(),
            notes,
            stats: Stats::default(),
            log: log::Log::default(),
            recorded: States::default(),
        }
    }

    /// The facts of a finished walk. Gives the memory of the notes back.
    pub(crate) fn facts(&mut self) -> Facts {
        let mut facts = self.notes.collect_facts(self.program, self.env, self.loops.forest());
        facts.throws = self.throwing_calls();
        facts.exception = self.env.exception.filter(|_| self.thrown);
        facts.arena = self.arena.and_then(|map| {
            let KnownArena { window, user, .. } = self.env.maps[map as usize].arena?;
            Some(ArenaFact { map, window, user })
        });
        self.scratch.notes = std::mem::take(&mut self.notes);
        self.scratch.loops = std::mem::take(&mut self.loops);
        facts
    }

    /// The calls that may throw, whether they are reached or not; none if no path throws.
    fn throwing_calls(&self) -> Vec<InsnIdx> {
        if !self.thrown {
            return Vec::new();
        }
        let throws = |(at, insn): &(InsnIdx, &Insn)| {
            let Insn::Call(callee) = **insn else { return false };
            match callee {
                Callee::Helper(_) | Callee::Host(_) => self.proto(callee).is_ok_and(|proto| proto.ret == Ret::Thrown),
                Callee::Subprog(off) => {
                    let callee = at.jump(off).and_then(|target| self.program.subprog_starting_at(target));
                    callee.is_some_and(|callee| self.summary(callee).throws)
                }
                Callee::Reg(_) => {
                    let callees = self.program.indirect_callees(self.program.subprog_of(*at));
                    callees.iter().any(|pair| self.summary(pair.callee).throws)
                }
            }
        };
        let insns = (0..).map(InsnIdx).zip(self.insns);
        insns.filter(throws).map(|(at, _)| at).collect()
    }

    /// Walks the main program and every global function.
    pub(crate) fn run(&mut self) -> Result<(), Box<VerifyError>> {
        let result = self.run_all().map_err(|reason| self.unless_out_of_fuel(reason));
        self.stats.fuel = fuel::spent();
        self.stats.peak_bytes = self.scratch.memory.peak;
        result.map_err(|reason| {
            if *reason == Reason::OutOfMemory {
                // The walk's memory is freed, so that there is some for the error.
                self.scratch.clear();
                self.scratch.pool.trim(0);
                self.scratch.memory.refused();
            }
            let error = self.describe(*reason);
            self.scratch.notes = std::mem::take(&mut self.notes);
            error
        })
    }

    fn run_all(&mut self) -> Res<()> {
        self.env.check().map_err(|e| Box::new(Reason::Environment(e.0)))?;
        self.scratch.clear();
        self.scratch.memory.begin_walk();
        fuel::charge_each(self.insns.len(), fuel::SLOT);
        self.scratch.effort.begin_walk(self.insns.len());
        self.notes.start(self.program, self.values);
        let accelerated = self.mode == Mode::Accelerated && self.looped;
        self.scratch.prune.start(self.program, self.env.exhaustive, self.values, accelerated, self.looped);
        if self.loops.related {
            self.scratch.prune.rest_on_relations();
        }
        self.loops.start(self.program, accelerated && !self.env.exhaustive);
        self.scratch.prune.tell_fresh(self.knows_elements());
        self.needs_built = false;
        let throw = |proto: &HelperProto| proto.ret == Ret::Thrown;
        let may_throw = self.program.contents().calls
            && (self.env.host_functions.iter().any(throw) || self.env.helpers.iter().any(throw));
        if may_throw || !self.env.global_functions.is_empty() {
            self.summaries = self.effects();
        }
        if !self.env.global_functions.is_empty() {
            self.walk_global_functions()?;
        }
        self.walk_from(0, Start::Program)?;
        if let (true, Some(callback)) = (self.thrown, self.env.exception) {
            if self.program.calls_of(SubprogId(0)).iter().all(|call| call.callee != callback || callback.0 == 0) {
                return refuse(Reason::Environment("an exception callback that the main program does not call".into()));
            }
            self.walk_from(callback.0, Start::Exception)?;
        }
        // All roots walked so far may set timers, and a timer's callback may set others.
        let mut walked = 0;
        while let Some(&(subprog, map)) = self.timer_callbacks.get(walked) {
            walked += 1;
            self.walk_from(subprog, Start::Timer(map))?;
        }
        // Comparison functions call nothing, so they add no root.
        for compare in std::mem::take(&mut self.compares) {
            self.walk_from(compare.subprog, Start::Compare(compare))?;
        }
        self.notes.check_stack(self.program, self.env)?;
        if self.scratch.memory.ends() { Ok(()) } else { refuse(Reason::OutOfMemory) }
    }

    /// Walks one root.
    fn walk_from(&mut self, subprog: u32, start: Start<'_>) -> Res<()> {
        let mut state = self.fresh_state();
        let entry = match start {
            Start::Timer(_) => Entry::Timer,
            Start::Compare(_) => Entry::Compare,
            Start::Exception => Entry::Exception,
            Start::Program | Start::Global(_) => Entry::Root,
        };
        state.restart(&Frame::new(0, subprog, entry), self.env.min_lens());
        if planted!(PacketNeverEmpty) {
            state.min_len = Lens::new(self.env.min_lens().map(|len| len.max(1)));
        }
        match start {
            Start::Program if self.env.context.raw => {
                state.set(Reg::R1, Value::pointer(Ty::Packet { region: 0 }));
                state.set(Reg::R2, self.region_len(0));
            }
            Start::Program => state.set(Reg::R1, Value::pointer(Ty::Ctx)),
            Start::Timer(map) => {
                let def = self.map(map, false)?;
                // The key is the runtime's copy, which nothing else refers to.
                let from = Origin::Lent { frame: 0 };
                let id = self.new_id();
                state.set(Reg::R1, Value::pointer(Ty::Map { map, inner: false }));
                state.set(Reg::R2, Value::pointer(Ty::Mem { size: def.key_size, writable: false, from }));
                state.set(Reg::R3, Value { id, ..Value::pointer(Ty::MapValue { map, inner: false }) });
            }
            Start::Compare(args::Compare { class, node, lock, .. }) => {
                // The lock is that of the value which contains the tree. Its name is fresh, since the function does not
                // receive the value.
                let of = LockOf { id: self.new_id(), ..lock.of };
                state.locks.push(Lock { of, ..lock });
                for r in [Reg::R1, Reg::R2] {
                    let (id, n) = (self.new_id(), Scalar::constant(node.into()));
                    state.set(r, Value { id, n, ..self.object(class, Hold::Borrowed)? });
                }
            }
            Start::Exception => state.set(Reg::R1, Value::unknown()),
            Start::Global(args) => {
                for ((arg, kind), r) in (0..).zip(args).zip(Reg::ARGS) {
                    let v = match *kind {
                        GlobalArg::Scalar => Value::unknown(),
                        GlobalArg::Ctx => self.ctx_value(),
                        GlobalArg::Mem(size) | GlobalArg::NonNull(size) => {
                            let id = self.new_id();
                            let from = Origin::Argument { arg };
                            Value {
                                null: matches!(kind, GlobalArg::Mem(_)) && !planted!(GlobalMemoryNotNull),
                                id,
                                ..Value::pointer(Ty::Mem { size, writable: true, from })
                            }
                        }
                    };
                    state.set(r, v);
                }
            }
        }
        self.scratch.prune.start_root();
        self.scratch.trail.clear();
        self.state = state;
        self.pc = InsnIdx(self.program.subprogs()[subprog as usize].start);
        self.path = NO_PATH;
        self.epoch = 0;
        self.epochs.clear();
        self.since_kept = 0;
        let walked = self.walk_path();
        self.with_guesses(walked)?;
        while let Some(returns) = self.pop() {
            self.weigh_event()?;
            let walked = if returns { self.walk_return() } else { self.walk_path() };
            self.with_guesses(walked)?;
        }
        let done = std::mem::take(&mut self.state);
        self.scratch.pool.push(done);
        Ok(())
    }

    /// Walks a path that begins with an early return.
    fn walk_return(&mut self) -> Res<()> {
        self.trail_begin();
        let flow = self.exit(true)?;
        self.trail_enter();
        if self.goes_on(flow, 0) {
            return self.walk_path();
        }
        self.end_path();
        Ok(())
    }

    /// Continues after a path with the walks that loops' candidate invariants ask for, until only other branches are
    /// pending.
    fn with_guesses(&mut self, mut walked: Res<()>) -> Res<()> {
        loop {
            if let Err(reason) = walked {
                let reason = self.unless_out_of_fuel(reason);
                match self.guess_refused(&reason)? {
                    None => return Err(reason),
                    Some(true) => {
                        walked = self.walk_path();
                        continue;
                    }
                    Some(false) => self.drop_path(),
                }
            }
            if !self.loops_done()? {
                return Ok(());
            }
            walked = self.walk_path();
        }
    }

    /// The reason, or the fuel limit if the fuel is spent: the solver's answers are then "not proven", so no other
    /// reason counts.
    fn unless_out_of_fuel(&self, reason: Box<Reason>) -> Box<Reason> {
        let stands =
            matches!(*reason, Reason::Time(_) | Reason::OutOfMemory | Reason::Environment(_) | Reason::Internal(_));
        if fuel::is_spent() && !stands { Box::new(self.out_of_fuel()) } else { reason }
    }

    /// Drops a path that is not walked to its end, so that its demand is unknown.
    fn drop_path(&mut self) {
        self.ending = Ending::Open;
        self.end_path();
    }

    fn end_path(&mut self) {
        let ending = std::mem::take(&mut self.ending);
        // A havocked iteration that is over is rewound, with its trail.
        if !self.loose_walk_over() {
            self.trail_end(ending);
        }
    }

    /// Sets the program counter; `false` at the end of a path.
    fn goes_on(&mut self, flow: Flow, slots: u32) -> bool {
        match flow {
            Flow::Next => self.pc = InsnIdx(self.pc.0 + slots),
            Flow::To(target) => self.pc = target,
            Flow::End => return false,
        }
        true
    }

    /// Walks until the current path ends.
    fn walk_path(&mut self) -> Res<()> {
        loop {
            self.count_step()?;
            if self.loops.guessing() && self.leaves_loose()? {
                self.drop_path();
                return Ok(());
            }
            if self.heads.binary_search(&self.pc).is_ok() {
                self.at_head();
            }
            if self.scratch.prune.is_point(self.pc) && self.at_join()? {
                self.end_path();
                return Ok(());
            }
            if self.env.log {
                self.log_step();
            }
            if self.env.record_states && !self.loops.guessing() {
                self.recorded.push(self.pc, &self.state.top().regs);
                self.trail_record();
            }
            let insn = self.insns[self.pc.index()];
            self.settle_signed(&insn);
            self.notes.visit(self.pc);
            let (at, kept) = (self.pc, self.stats.states);
            let values = self.notes.wants_values();
            let left = self.scratch.pending.len();
            if values {
                self.notes.before(at, &insn, &self.state, self.env);
            }
            self.trail_begin();
            let flow = match self.step(&insn) {
                Err(reason)
                    if (self.loops.guessing() || (planted!(AssumedWithin) && self.loops.checking()))
                        && self.tolerate(&insn, &reason) =>
                {
                    Flow::Next
                }
                flow => flow?,
            };
            if values {
                let both = self.scratch.pending.len() > left;
                let ways = [both || matches!(flow, Flow::To(_)), matches!(flow, Flow::Next)];
                self.notes.after(at, &insn, &self.state, ways);
            }
            self.trail_enter();
            let both = self.scratch.pending.len() > left;
            let flow = if both && matches!(insn, Insn::JumpIf { .. }) { self.stay_in_loop(flow) } else { flow };
            if !self.goes_on(flow, insn.slots()) {
                self.end_path();
                return Ok(());
            }
            debug_assert!(self.stats.states == kept || self.scratch.prune.leads_to(at, self.pc, &self.state));
        }
    }

    fn count_step(&mut self) -> Res<()> {
        self.stats.steps += 1;
        self.since_kept += 1;
        fuel::charge(fuel::STEP);
        self.scratch.effort.note(self.pc, fuel::spent() - std::mem::replace(&mut self.charged, fuel::spent()));
        if self.stats.steps > self.steps || self.next_id > MAX_NAMES {
            return refuse(Reason::Steps(self.steps));
        }
        self.check_fuel()?;
        if self.stats.steps.is_multiple_of(WEIGHED_STEPS) {
            self.weigh()?;
        }
        // Reading the clock costs more than a step, so it is read at intervals.
        if self.scratch.deadline.is_some() && self.stats.steps.is_multiple_of(TIMED_STEPS) {
            return self.check_time();
        }
        Ok(())
    }

    /// Limits the walk to half of the fuel that is left: another walk may have to repeat its work.
    fn halve_fuel(&mut self) {
        let left = fuel::limited_to().saturating_sub(fuel::spent());
        fuel::limit(fuel::spent() + left / 2);
    }

    fn check_fuel(&self) -> Res<()> {
        if fuel::is_spent() { refuse(self.out_of_fuel()) } else { Ok(()) }
    }

    fn out_of_fuel(&self) -> Reason {
        Reason::Fuel(self.env.limits.fuel)
    }

    fn check_time(&self) -> Res<()> {
        match (self.scratch.deadline, self.env.limits.time) {
            (Some(deadline), Some(time)) if Instant::now() > deadline => refuse(Reason::Time(time)),
            _ => Ok(()),
        }
    }

    // Inlined into the loop that is its only caller.
    #[inline(always)]
    fn step(&mut self, insn: &Insn) -> Res<Flow> {
        match *insn {
            Insn::Alu { width, op, dst, src } => {
                if let (AluOp::Lsh, Src::Reg(by)) = (op, src) {
                    self.part_exponents(dst, by)?;
                }
                self.alu(width, op, dst, src)?;
            }
            Insn::Mov { width, dst, src } => self.mov(width, dst, src)?,
            Insn::MovSx { width, dst, src, from } => self.mov_sx(width, dst, src, from)?,
            Insn::Cast { dst, src, to } => self.cast(dst, src, to)?,
            Insn::Neg { width, dst } => self.neg(width, dst)?,
            Insn::End { order, width, dst } => self.end(order, width, dst)?,
            Insn::LoadImm64 { dst, imm } => self.load_imm64(dst, imm)?,
            Insn::SecondSlot => return refuse(Reason::Internal("walked into a second slot")),
            Insn::Load { size, sign, dst, base, off } => self.load(size, sign, dst, base, off)?,
            Insn::Store { size, base, off, src } => self.store(size, base, off, src)?,
            Insn::Atomic { width, op, base, off, src } => self.atomic(width, op, base, off, src)?,
            Insn::LoadAcquire { size, dst, base, off } => self.load_acquire(size, dst, base, off)?,
            Insn::StoreRelease { size, base, off, src } => self.store_release(size, base, off, src)?,
            Insn::LoadAbs { size, .. } => {
                self.choices += 1;
                self.legacy_load(size, None)?;
            }
            Insn::LoadInd { size, src, .. } => {
                self.choices += 1;
                self.legacy_load(size, Some(src))?;
            }
            Insn::Jump { off, .. } => return self.target(off).map(Flow::To),
            Insn::JumpReg { target } => return self.jump_register(target),
            Insn::JumpIf { width, cond, dst, src, off } => return self.jump_if(width, cond, dst, src, off),
            Insn::MayGoto { off } => return self.may_goto(off),
            Insn::Call(callee) => {
                self.choices += u64::from(!matches!(callee, Callee::Subprog(_)));
                return self.call(callee);
            }
            Insn::Exit => return self.exit(false),
        }
        Ok(Flow::Next)
    }

    fn load_imm64(&mut self, dst: Reg, imm: Imm64) -> Res<()> {
        let v = match imm {
            Imm64::Const(c) => Value::constant(c),
            Imm64::Map(i) | Imm64::MapIdx(i) => {
                let map = self.map_index(i)?;
                self.only_arena(map)?;
                Value::pointer(Ty::Map { map, inner: false })
            }
            Imm64::MapValue { map, off } | Imm64::MapIdxValue { map, off } => {
                let map = self.map_index(map)?;
                let def = &self.env.maps[map as usize];
                self.only_arena(map)?;
                if let Some(arena) = def.arena {
                    self.in_value(map, off.into(), arena.bytes)?;
                    // The address in user space, which is a number for the kernel's verifier, too.
                    self.state.set(dst, Value::unknown());
                    return Ok(());
                }
                let table = def.kind == MapType::InsnArray;
                if def.kind != MapType::Array && !table {
                    return refuse(Reason::Unsupported(
                        "only the values of array maps and instruction arrays have a fixed address",
                    ));
                }
                let limit = if table { jumps::table_bytes(def) } else { def.value_size };
                self.in_value(map, off.into(), limit.into())?;
                let n = Scalar::constant(off.into());
                let ty = if table { Ty::Table { map } } else { Ty::MapValue { map, inner: false } };
                Value { n, ..Value::pointer(ty) }
            }
            Imm64::Var(_) => return refuse(Reason::Unsupported("kernel variables do not exist here")),
            Imm64::Func(off) => {
                let target = self.target(off)?;
                match self.program.subprog_starting_at(target) {
                    Some(sub) => Value::pointer(Ty::Func { subprog: sub.0 }),
                    None => return refuse(Reason::Internal("function reference to no function")),
                }
            }
        };
        self.state.set(dst, v);
        Ok(())
    }

    /// Checks that a loaded address is that of a byte in the map's value.
    fn in_value(&self, map: u32, off: u64, limit: u64) -> Res<()> {
        if off < limit {
            return Ok(());
        }
        let (min, max) = (off as i64, off as i64);
        refuse(Reason::Bounds { what: crate::value::map_name(self.env, map, false), size: 1, min, max, limit })
    }

    /// A program has one arena at most: an access does not say which.
    fn only_arena(&self, map: u32) -> Res<()> {
        if self.env.maps[map as usize].arena.is_some() && self.arena.is_some_and(|arena| arena != map) {
            return refuse(Reason::Unsupported("a program uses one arena at most"));
        }
        Ok(())
    }

    fn map_index(&self, i: i32) -> Res<u32> {
        match usize::try_from(i) {
            Ok(n) if n < self.env.maps.len() => Ok(i as u32),
            _ => refuse(Reason::NoSuch { what: "map", index: i.into() }),
        }
    }

    /// The definition of a map, or with `inner` of the maps in a map of maps. It is an error if that definition is
    /// missing.
    pub(crate) fn map(&self, map: u32, inner: bool) -> Res<&'a KnownMap> {
        let def = &self.env.maps[map as usize];
        if !inner {
            return Ok(def);
        }
        match &def.inner {
            Some(inner) => Ok(inner),
            None => refuse(Reason::Environment(format!("map \"{}\" says nothing of its inner maps", def.name))),
        }
    }

    fn target(&self, off: i32) -> Res<InsnIdx> {
        self.pc.jump(off).map_or_else(|| refuse(Reason::Internal("jump out of the program")), Ok)
    }

    pub(crate) fn new_id(&mut self) -> u32 {
        self.next_id += 1;
        self.next_id
    }

    /// The value that the program received as its context.
    fn ctx_value(&self) -> Value {
        if self.env.context.raw { Value::pointer(Ty::Packet { region: 0 }) } else { Value::pointer(Ty::Ctx) }
    }

    /// The length of a region, as a number tied to it.
    fn region_len(&self, region: u8) -> Value {
        let r = self.env.region(region);
        let n = Scalar::unsigned(r.min_len.into(), r.max_len.into());
        Value { id: len_id(region), ..Value::scalar(n) }
    }

    /// The register's value, which must be initialised.
    pub(crate) fn read(&self, r: Reg) -> Res<Value> {
        self.peek(r).copied()
    }

    /// The register's value, which must be initialised. Returns a reference, since values are large.
    fn peek(&self, r: Reg) -> Res<&Value> {
        match self.state.reg(r) {
            v if v.is_uninit() || v.is_stale() => refuse(Reason::Uninit(r, v.describe(self.env))),
            v => Ok(v),
        }
    }

    /// The register's value, which may also be a stale pointer.
    fn read_stale(&self, r: Reg) -> Res<Value> {
        let v = self.state.reg(r);
        if v.is_stale() { Ok(*v) } else { self.read(r) }
    }

    /// The operand's value. An immediate is sign-extended.
    fn read_src(&self, src: Src) -> Res<Value> {
        match src {
            Src::Reg(r) => self.read(r),
            Src::Imm(i) => Ok(Value::constant(i as i64 as u64)),
        }
    }

    /// A recycled state with arbitrary contents.
    fn fresh_state(&mut self) -> State {
        self.scratch.pool.any()
    }

    fn copy_state(&mut self) -> State {
        self.state.copied(&mut self.scratch.pool)
    }

    fn proto(&self, callee: Callee) -> Res<&'a HelperProto> {
        let (what, index, proto) = match callee {
            Callee::Helper(id) => ("helper", i64::from(id), self.env.helpers.get(id)),
            Callee::Host(i) => {
                let proto = usize::try_from(i).ok().and_then(|i| self.env.host_functions.get(i));
                ("host function", i64::from(i), proto)
            }
            Callee::Subprog(_) | Callee::Reg(_) => {
                return refuse(Reason::Internal("a subprogram has no prototype"));
            }
        };
        proto.map_or_else(|| refuse(Reason::NoSuch { what, index }), Ok)
    }
}

/// The number of bits an operation at this width works on.
fn bits_of(width: Width) -> u32 {
    match width {
        Width::W32 => 32,
        Width::W64 => 64,
    }
}

/// The greatest number of this width.
fn bits_mask(width: Width) -> u64 {
    match width {
        Width::W32 => u64::from(u32::MAX),
        Width::W64 => u64::MAX,
    }
}
