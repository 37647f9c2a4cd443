//! Certificates: the search for proofs that the trusted core checks. Nothing here can make an unsafe program accepted.
//!
//! Problem: the core ([`bpf_verifier_core`]) checks kept points, renamings, multipliers and ranks, which an untrusted
//! search must find. Approach: forward, over the core's own states ([`bpf_verifier_core::explore`]). At each loop head
//! an invariant is kept (`points`): the facts of the first path that reached it, weakened by each later path. Numbers
//! that move by a constant are expressed by iteration counters, thresholds for the others (widening: Cousot and Cousot,
//! POPL 1977), and candidate rows (`project`) that are dropped where they do not hold (Houdini: Flanagan and Leino, FME
//! 2001). Where one invariant for a loop head does not suffice, states are kept apart by the contents of registers
//! (trace partitioning). Multipliers are found by elimination and linear programming (`multipliers`), ranks by strongly
//! connected components of the kept points (`ranks`).
//!
//! The search shares no code with the walk. After the last walk, the portfolio calls the search (`accept`).

mod against;
mod certificate;
mod error;
mod format;
mod guide;
mod meter;
mod multipliers;
mod partition;
mod points;
mod project;
mod proof;
mod ranks;
mod thresholds;

use std::collections::BTreeMap;

use bpf_analysis::{BlockId, Cfg, Facts, Liveness};
use bpf_isa::{Insn, InsnIdx, Program};
use bpf_verifier_core::{Advice, Combination, Env, Form, Guide, Point, Recorder, Refusal, Why, check, explore};

use crate::fuel;
use crate::states::States;
use guide::{Mode, Search};
use meter::Meter;
use partition::Partition;

pub use against::{Against, Part};
pub use certificate::Certificate;
pub use error::{ProofError, Strategy, Tried, Unproven};
pub(crate) use meter::Within;
pub use proof::{Proof, ProofSection, SECTION};

/// Most walks of a point's segment, on average over all points.
const PASSES: usize = 120;

/// The strategies for programs with loops, and without. Loops of few rounds are unrolled.
const OF_LOOPS: [Strategy; 5] =
    [Strategy::Heads, Strategy::HeadsByKind, Strategy::HeadsByConstant, Strategy::Unrolled, Strategy::JoinsByKind];
/// The strategies for programs with loops and constant maps.
const OF_TABLES: [Strategy; 6] = [
    Strategy::Heads,
    Strategy::HeadsByKind,
    Strategy::HeadsByConstant,
    Strategy::HeadsByPosition,
    Strategy::Unrolled,
    Strategy::JoinsByKind,
];
const OF_STRAIGHT: [Strategy; 3] = [Strategy::Unrolled, Strategy::Joins, Strategy::JoinsByKind];

/// Looks for a certificate of the program.
///
/// The first step that could not be proven, for each strategy. The program may be safe nevertheless.
pub fn certify(program: &Program, env: &Env<'_>) -> Result<Certificate, Unproven> {
    certify_within(program, env, 1 << 17)
}

/// Looks for a certificate of the program, with `fuel` for each way of searching.
///
/// # Errors
/// As [`certify`].
pub fn certify_within(program: &Program, env: &Env<'_>, fuel: u64) -> Result<Certificate, Unproven> {
    fuel::begin();
    let meter = Meter::new(Within::passes(fuel));
    attempts(program, env, &meter, |search, kept, fuel| {
        let mut recorder = Recorder::new(search);
        check(program, env, &kept, &mut recorder, fuel)?;
        Ok(Certificate { answers: recorder.finish(), kept })
    })
}

/// The result of a search after the walks have refused the program.
pub(crate) enum Outcome {
    /// The core has checked a certificate.
    Accepted(Box<Accepted>),
    /// No certificate was found.
    Unproven,
    /// The time was up.
    Late,
}

/// The result of the core's check.
pub(crate) struct Accepted {
    pub(crate) facts: Facts,
    /// The states before each step, if they were asked for ([`Env::record_states`]).
    pub(crate) recorded: States,
    /// Steps of the check.
    pub(crate) steps: u64,
    /// The number of kept points.
    pub(crate) points: usize,
}

/// Looks for a certificate within limits, and has the core check it.
///
/// Claim: an accepted program is safe if the core is right. Proof: the facts come from [`check`], which trusts no
/// answer of its guide. The guide is the search itself, so no answer needs to be recorded.
pub(crate) fn accept(program: &Program, env: &Env<'_>, within: Within) -> Outcome {
    let meter = Meter::new(within);
    let found = attempts(program, env, &meter, |search, kept, fuel| {
        let before = meter.steps();
        let mut guide = Watched { guide: search, states: env.record_states.then(States::default) };
        let facts = check(program, env, &kept, &mut guide, fuel)?;
        let recorded = guide.states.unwrap_or_default().sorted(program.insns().len());
        Ok(Box::new(Accepted { facts, recorded, steps: meter.steps() - before, points: kept.len() }))
    });
    match found {
        Ok(accepted) => Outcome::Accepted(accepted),
        Err(_) if meter.is_late() => Outcome::Late,
        Err(_) => Outcome::Unproven,
    }
}

/// A guide whose states are recorded before each step.
struct Watched<'a> {
    guide: &'a mut dyn Guide,
    states: Option<States>,
}

impl Guide for Watched<'_> {
    fn advise(&mut self, point: &Point<'_>) -> Advice {
        let advice = self.guide.advise(point);
        if let (Some(states), Advice::Step) = (&mut self.states, &advice) {
            states.push_proven(point.pc, point.state);
        }
        advice
    }

    fn prove(&mut self, point: &Point<'_>, claim: &Form) -> Option<Combination> {
        self.guide.prove(point, claim)
    }
}

/// Tries each strategy in turn. `end` has the core check the invariants and ranks of a strategy, with the search as the
/// guide and fuel for the check.
fn attempts<T>(
    program: &Program,
    env: &Env<'_>,
    meter: &Meter,
    end: impl Fn(&mut Search<'_>, Vec<bpf_verifier_core::Kept>, u64) -> Result<T, Refusal>,
) -> Result<T, Unproven> {
    let heads = loop_heads(program);
    let strategies: &[Strategy] = match (heads.is_empty(), guide::frozen(env).is_empty()) {
        (true, _) => &OF_STRAIGHT,
        (false, true) => &OF_LOOPS,
        (false, false) => &OF_TABLES,
    };
    let began = fuel::spent();
    let mut tried = Vec::new();
    for (i, strategy) in (1u64..).zip(strategies) {
        // Each strategy leaves fuel for the later ones.
        let share = meter.within.fuel / strategies.len() as u64;
        fuel::limit(if i == strategies.len() as u64 {
            began.saturating_add(meter.within.fuel)
        } else {
            began.saturating_add(share.saturating_mul(i))
        });
        meter.begin();
        let found = attempt(program, env, meter, &heads, *strategy).and_then(|mut search| {
            search.mode = Mode::Answer;
            let kept = search.points.kept(|point| search.ranks.of(point));
            end(&mut search, kept, meter.within.pass)
        });
        let refusal = match found {
            Ok(found) => return Ok(found),
            Err(refusal) => refusal,
        };
        // Without loops, invariants at joins save work and prove nothing more.
        let is_work = refusal.why == Why::Fuel || refusal.why == Why::Memory;
        let in_vain = heads.is_empty() && i == 1 && !is_work;
        tried.push(Tried { strategy: *strategy, refusal });
        if in_vain || meter.is_late() {
            break;
        }
    }
    Err(Unproven { tried })
}

/// Looks for invariants and ranks by one strategy.
fn attempt<'m>(
    program: &Program,
    env: &Env<'_>,
    meter: &'m Meter,
    heads: &[(u32, u32)],
    strategy: Strategy,
) -> Result<Search<'m>, Refusal> {
    let (everywhere, partition) = match strategy {
        Strategy::Unrolled => {
            return Ok(Search::new(program, env, meter, Vec::new(), BTreeMap::new(), Partition::None));
        }
        Strategy::Heads => (false, Partition::None),
        Strategy::HeadsByKind => (false, Partition::Kinds),
        Strategy::HeadsByConstant => (false, Partition::Constants),
        Strategy::HeadsByPosition => (false, Partition::Positions),
        Strategy::Joins => (true, Partition::None),
        Strategy::JoinsByKind => (true, Partition::Kinds),
    };
    let cfg = Cfg::new(program);
    let liveness = Liveness::new(program, &cfg, &());
    let mut ways = vec![0u32; cfg.blocks().len()];
    for block in 0..cfg.blocks().len() {
        let block = BlockId(u32::try_from(block).unwrap_or(u32::MAX));
        cfg.succs(block).for_each(|succ| ways[succ.index()] += 1);
    }
    let keeps = cfg.blocks().iter().zip(&ways).enumerate().filter_map(|(i, (block, ways))| {
        let is_head = heads.iter().any(|(head, _)| *head == block.start);
        let live = liveness.live_in(BlockId(u32::try_from(i).ok()?));
        (is_head || everywhere && *ways > 1).then_some((block.start, live))
    });
    let mut search = Search::new(program, env, meter, heads.to_vec(), keeps.collect(), partition);
    let fuel = meter.within.pass;
    let mut left = fuel.saturating_mul(4);
    let mut walk = |search: &mut Search<'_>, from: Option<usize>| {
        search.from = from;
        let point = from.and_then(|i| search.points.all.get(i)).map(|point| point.kept(Vec::new()));
        let before = left.min(fuel);
        let after = explore(program, env, point.as_ref(), search, before)?;
        left -= before - after;
        Ok::<(), Refusal>(())
    };
    search.mode = Mode::Weaken;
    walk(&mut search, None)?;
    let mut walks = 0;
    while let Some((_, point)) = search.dirty.pop_first() {
        walk(&mut search, point)?;
        walks += 1;
        if walks > PASSES * search.points.all.len() {
            let at = point.map_or(InsnIdx(0), |point| search.points.all[point].kept(Vec::new()).at);
            return Err(Refusal { at, why: Why::Stopped });
        }
    }
    search.begin_ranks();
    for point in 0..search.points.all.len() {
        walk(&mut search, Some(point))?;
    }
    search.end_ranks();
    Ok(search)
}

/// The targets of backward jumps, each with the last instruction that jumps there.
fn loop_heads(program: &Program) -> Vec<(u32, u32)> {
    let mut heads: Vec<(u32, u32)> = Vec::new();
    for (at, insn) in (0u32..).zip(program.insns()) {
        let Some(target) = insn.jump_offset().and_then(|off| bpf_isa::InsnIdx(at).jump(off)) else { continue };
        if target.0 > at || matches!(insn, Insn::SecondSlot) {
            continue;
        }
        match heads.iter_mut().find(|head| head.0 == target.0) {
            Some(head) => head.1 = head.1.max(at),
            None => heads.push((target.0, at)),
        }
    }
    heads.sort_unstable();
    heads
}
