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
//! The search shares no code with the walk that accepts programs today.

mod against;
mod certificate;
mod error;
mod format;
mod guide;
mod multipliers;
mod points;
mod project;
mod proof;
mod ranks;

use std::collections::BTreeMap;

use bpf_analysis::{BlockId, Cfg, Liveness};
use bpf_isa::{Insn, InsnIdx, Program};
use bpf_verifier_core::{Env, Recorder, Refusal, Why, check, explore};

use guide::{Mode, Search};
use points::Partition;

pub use against::{Against, Part};
pub use certificate::Certificate;
pub use error::ProofError;
pub use proof::{Proof, ProofSection, SECTION};

/// Most walks of a point's segment, on average over all points.
const PASSES: usize = 40;

/// Looks for a certificate of the program.
///
/// The first step that could not be proven. The program may be safe nevertheless.
pub fn certify(program: &Program, env: &Env<'_>) -> Result<Certificate, Refusal> {
    certify_within(program, env, 1 << 17)
}

/// Looks for a certificate of the program, with `fuel` for each way of searching.
///
/// # Errors
/// As [`certify`].
pub fn certify_within(program: &Program, env: &Env<'_>, fuel: u64) -> Result<Certificate, Refusal> {
    let heads = loop_heads(program);
    let unrolled = || {
        let mut search = Search::new(program, env, Vec::new(), BTreeMap::new(), Partition::None);
        record(program, env, &mut search, fuel)
    };
    if heads.is_empty() {
        // First path by path; if that takes too much, with an invariant wherever paths join.
        return match unrolled() {
            Err(first) if first.why == Why::Fuel || first.why == Why::Memory => {
                let merged = |partition| with_points(program, env, &heads, (true, partition), fuel);
                merged(Partition::None).or_else(|_| merged(Partition::Kinds)).map_err(|_| first)
            }
            found => found,
        };
    }
    let points = |everywhere, partition| with_points(program, env, &heads, (everywhere, partition), fuel);
    let first = match points(false, Partition::None) {
        Err(first) => first,
        found => return found,
    };
    points(false, Partition::Kinds)
        .or_else(|_| points(false, Partition::Constants))
        // Loops of few rounds are unrolled.
        .or_else(|_| unrolled())
        .or_else(|_| points(true, Partition::Kinds))
        .map_err(|_| first)
}

/// Looks for invariants at loop heads, and with `everywhere` also at joins.
fn with_points(
    program: &Program,
    env: &Env<'_>,
    heads: &[(u32, u32)],
    (everywhere, partition): (bool, Partition),
    fuel: u64,
) -> Result<Certificate, Refusal> {
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
    let mut search = Search::new(program, env, heads.to_vec(), keeps.collect(), partition);
    let mut left = fuel.saturating_mul(4);
    let mut walk = |search: &mut Search, from: Option<usize>| {
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
    record(program, env, &mut search, fuel)
}

/// Checks with the invariants and ranks that were found, and records the answers.
fn record(program: &Program, env: &Env<'_>, search: &mut Search, fuel: u64) -> Result<Certificate, Refusal> {
    search.mode = Mode::Answer;
    let kept = search.points.kept(|point| search.ranks.of(point));
    let mut recorder = Recorder::new(search);
    check(program, env, &kept, &mut recorder, fuel)?;
    Ok(Certificate { answers: recorder.finish(), kept })
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
