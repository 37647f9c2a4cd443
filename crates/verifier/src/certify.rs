//! Certificates: a search for what the trusted core checks. Nothing in here can make an unsafe program accepted.
//!
//! Problem: the core ([`bpf_verifier_core`]) checks kept points, renamings, multipliers and ranks; somebody must find
//! them. Approach: forward, over the core's own states ([`bpf_verifier_core::explore`]). At each loop head an invariant
//! is kept (`points`): what the first way that reached it knew, weakened by each later one, with iteration counters in
//! the place of numbers that move by a constant, thresholds for the others (widening: Cousot and Cousot, POPL 1977),
//! and candidate rows that are dropped where they do not hold (Houdini: Flanagan and Leino, FME 2001). Multipliers are
//! found by goal-directed elimination (`multipliers`), ranks among differences of what a loop moves (`ranks`).
//!
//! The search shares no code with the walk that accepts programs today.

mod guide;
mod multipliers;
mod points;
mod ranks;

use bpf_isa::{Insn, Program};
use bpf_verifier_core::{Env, Kept, Recorder, Recording, Refusal, check, explore};

use guide::{Mode, Search};

/// Kept points and the answers of a guide, by which the core checks that a program is safe.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Certificate {
    /// What holds at loop heads.
    pub kept: Vec<Kept>,
    /// The answers.
    pub answers: Recording,
}

/// How often the invariants are weakened.
const PASSES: usize = 40;

/// Looks for a certificate of the program.
///
/// # Errors
/// The first thing that was not proven, which does not mean that it does not hold.
pub fn certify(program: &Program, env: &Env<'_>) -> Result<Certificate, Refusal> {
    certify_within(program, env, 1 << 17)
}

/// Looks for a certificate of the program, with so much fuel for each pass.
///
/// # Errors
/// As [`certify`].
pub fn certify_within(program: &Program, env: &Env<'_>, fuel: u64) -> Result<Certificate, Refusal> {
    let heads = loop_heads(program);
    // Loops of few rounds are walked round by round.
    if heads.is_empty() {
        let mut search = Search::new(program, env, heads);
        return record(program, env, &mut search, fuel);
    }
    let mut search = Search::new(program, env, heads.clone());
    let mut invariants = Err(None);
    for _ in 0..PASSES {
        let kept = search.points.kept(|_| Vec::new());
        search.mode = Mode::Weaken;
        search.dirty = false;
        match explore(program, env, &kept, &mut search, fuel) {
            Ok(()) if !search.dirty => {
                invariants = Ok(());
                break;
            }
            Ok(()) => {}
            Err(e) => {
                invariants = Err(Some(e));
                break;
            }
        }
    }
    if invariants.is_ok() {
        let kept = search.points.kept(|_| Vec::new());
        search.begin_ranks();
        if explore(program, env, &kept, &mut search, fuel).is_ok() {
            let result = record(program, env, &mut search, fuel);
            if result.is_ok() {
                return result;
            }
            invariants = Err(result.err());
        }
    }
    // Round by round, without invariants.
    let mut unrolled = Search::new(program, env, Vec::new());
    let result = record(program, env, &mut unrolled, fuel * 2);
    match (result, invariants) {
        (Ok(certificate), _) => Ok(certificate),
        (Err(_), Err(Some(why))) => Err(why),
        (Err(why), _) => Err(why),
    }
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
