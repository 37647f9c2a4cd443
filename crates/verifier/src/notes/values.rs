//! Facts about numbers, addresses and loops, recorded for an optimiser. Recorded only on request
//! ([`crate::Env::values`]), since this makes a walk a third longer, and a walk of thousands of instructions in a row
//! half as long again.
//!
//! Invariants: like all notes, these facts can only become weaker. Facts that are recorded in a discarded walk and stay
//! make the notes weaker, never stronger.

use bpf_analysis::{AccessFact, AccessRegion, Known, LoopFact, Loops, ValueFacts};
use bpf_isa::{Insn, InsnIdx, MemoryAccess, Reg, Src};

use crate::env::Env;
use crate::state::State;
use crate::tnum::Tnum;
use crate::value::{Origin, Ty, Value};

/// Bits for the facts of an instruction that have been noted; its other facts have no meaning yet.
mod seen {
    pub(super) const DST: u8 = 1;
    pub(super) const SRC: u8 = 2;
    pub(super) const RESULT: u8 = 4;
    pub(super) const ACCESS: u8 = 8;
    pub(super) const TAKEN: u8 = 16;
    pub(super) const FALLS: u8 = 32;
}

/// The number of rounds of a loop after it was entered.
#[derive(Clone, Copy, Debug, Default)]
struct LoopNote {
    seen: bool,
    rounds: Option<u64>,
}

/// The facts of a program's instructions and loops.
#[derive(Clone, Debug, Default)]
pub(crate) struct ValueNotes {
    on: bool,
    notes: Vec<ValueFacts>,
    seen: Vec<u8>,
    loops: Vec<LoopNote>,
}

impl ValueNotes {
    /// Prepares for a program of `slots` instruction slots.
    pub(super) fn start(&mut self, slots: usize, on: bool) {
        self.on = on;
        self.notes.clear();
        self.seen.clear();
        self.loops.clear();
        if on {
            self.notes.resize(slots, ValueFacts::default());
            self.seen.resize(slots, 0);
        }
    }

    /// The size of a copy in bytes.
    pub(super) fn bytes(&self) -> usize {
        let loops = self.loops.len() * size_of::<LoopNote>();
        self.notes.len() * size_of::<ValueFacts>() + self.seen.len() + loops
    }

    /// Frees memory beyond `bytes` of each kind.
    pub(super) fn trim(&mut self, bytes: usize) {
        crate::kept::shrink(&mut self.notes, bytes);
        crate::kept::shrink(&mut self.seen, bytes);
        crate::kept::shrink(&mut self.loops, bytes);
    }

    pub(super) fn is_on(&self) -> bool {
        self.on
    }

    /// Notes the state in which the instruction is about to run.
    pub(super) fn before(&mut self, at: InsnIdx, insn: &Insn, state: &State, env: &Env<'_>) {
        let (note, seen) = (&mut self.notes[at.index()], &mut self.seen[at.index()]);
        let (dst, src) = operands(insn);
        if let Some(r) = dst {
            learn(&mut note.dst, seen, seen::DST, state.reg(r));
        }
        if let Some(r) = src {
            learn(&mut note.src, seen, seen::SRC, state.reg(r));
        }
        if let Some(MemoryAccess { base, off, .. }) = insn.memory_access() {
            let fact = access_fact(state.reg(base), off, state.frames.len() - 1, env);
            let first = *seen & seen::ACCESS == 0;
            note.access = if first { fact } else { join_access(note.access, fact) };
            *seen |= seen::ACCESS;
        }
    }

    /// Notes the state after the instruction has run.
    pub(super) fn after(&mut self, at: InsnIdx, insn: &Insn, state: &State) {
        if let Some(r) = result(insn) {
            let (note, seen) = (&mut self.notes[at.index()], &mut self.seen[at.index()]);
            learn(&mut note.result, seen, seen::RESULT, state.reg(r));
        }
    }

    /// Notes that a conditional jump can have this outcome.
    pub(super) fn way(&mut self, at: InsnIdx, taken: bool) {
        let seen = &mut self.seen[at.index()];
        *seen |= if taken { seen::TAKEN } else { seen::FALLS };
        self.notes[at.index()].taken = match *seen & (seen::TAKEN | seen::FALLS) {
            seen::TAKEN => Some(true),
            seen::FALLS => Some(false),
            _ => None,
        };
    }

    /// Notes an upper bound of the rounds of a loop that has been entered. `count`: the number of loops.
    pub(super) fn rounds(&mut self, id: u32, count: usize, rounds: Option<u64>) {
        self.loops.resize(count, LoopNote::default());
        let note = &mut self.loops[id as usize];
        let rounds = if note.seen { note.rounds.and_then(|a| Some(a.max(rounds?))) } else { rounds };
        *note = LoopNote { seen: true, rounds };
    }

    /// Takes the notes out.
    pub(super) fn take(&mut self) -> Vec<ValueFacts> {
        std::mem::take(&mut self.notes)
    }

    pub(super) fn loop_facts(&self, forest: &Loops) -> Vec<LoopFact> {
        let noted = forest.loops().iter().zip(&self.loops).filter(|(l, n)| l.natural && n.seen);
        let mut facts: Vec<LoopFact> = noted.map(|(l, n)| LoopFact { head: l.head, rounds: n.rounds }).collect();
        facts.sort_unstable_by_key(|f| f.head);
        facts
    }
}

fn learn(note: &mut Known, seen: &mut u8, what: u8, v: &Value) {
    let new = known(v);
    *note = if *seen & what == 0 { new } else { note.join(&new) };
    *seen |= what;
}

fn known(v: &Value) -> Known {
    if !v.is_scalar() {
        return Known::NOTHING;
    }
    let bits = v.n.bits();
    Known {
        value: bits.value(),
        mask: bits.mask(),
        umin: v.n.umin(),
        umax: v.n.umax(),
        smin: v.n.smin(),
        smax: v.n.smax(),
    }
}

/// The registers that hold numbers the instruction works on: its destination, if it reads that, and its source.
fn operands(insn: &Insn) -> (Option<Reg>, Option<Reg>) {
    let of = |src: Src| match src {
        Src::Reg(r) => Some(r),
        Src::Imm(_) => None,
    };
    match *insn {
        Insn::Alu { dst, src, .. } | Insn::JumpIf { dst, src, .. } => (Some(dst), of(src)),
        Insn::Mov { src, .. } => (None, of(src)),
        Insn::MovSx { src, .. } | Insn::Cast { src, .. } | Insn::LoadInd { src, .. } => (None, Some(src)),
        Insn::Neg { dst, .. } | Insn::End { dst, .. } => (Some(dst), None),
        Insn::Load { .. }
        | Insn::LoadAcquire { .. }
        | Insn::Store { .. }
        | Insn::Atomic { .. }
        | Insn::StoreRelease { .. } => (None, insn.memory_access().and_then(|access| access.kind.operand())),
        Insn::LoadImm64 { .. }
        | Insn::SecondSlot
        | Insn::LoadAbs { .. }
        | Insn::Jump { .. }
        | Insn::JumpReg { .. }
        | Insn::MayGoto { .. }
        | Insn::Call(_)
        | Insn::Exit => (None, None),
    }
}

/// The register that the instruction writes.
fn result(insn: &Insn) -> Option<Reg> {
    match *insn {
        Insn::Alu { dst, .. }
        | Insn::Mov { dst, .. }
        | Insn::MovSx { dst, .. }
        | Insn::Cast { dst, .. }
        | Insn::Neg { dst, .. }
        | Insn::End { dst, .. }
        | Insn::LoadImm64 { dst, .. }
        | Insn::Load { dst, .. }
        | Insn::LoadAcquire { dst, .. } => Some(dst),
        Insn::Atomic { op, src, .. } => op.result(src),
        Insn::LoadAbs { .. } | Insn::LoadInd { .. } => Some(Reg::R0),
        Insn::Store { .. }
        | Insn::StoreRelease { .. }
        | Insn::SecondSlot
        | Insn::Jump { .. }
        | Insn::JumpReg { .. }
        | Insn::JumpIf { .. }
        | Insn::MayGoto { .. }
        | Insn::Call(_)
        | Insn::Exit => None,
    }
}

fn access_fact(base: &Value, off: i16, top: usize, env: &Env<'_>) -> Option<AccessFact> {
    let (region, start) = match base.ty {
        Ty::Stack { frame } if usize::from(frame) == top => (AccessRegion::Frame, 8),
        Ty::Stack { .. } => (AccessRegion::CallerFrame, 8),
        // The host's placement of the context is not described.
        Ty::Ctx => (AccessRegion::Context, 1),
        Ty::Packet { region } => (AccessRegion::Packet(region), env.region(region).align.min(8)),
        Ty::MapValue { map, inner } => (AccessRegion::MapValue { map, inner }, 8),
        Ty::Mem { from: Origin::Returned | Origin::Record, .. } => (AccessRegion::Memory, 8),
        Ty::Mem { from: Origin::Lent { .. }, .. } => (AccessRegion::Memory, 4),
        // Memory of any kind that the callers or a frame have; memory that two look-ups may both have found; an offset
        // from the region's end.
        Ty::Mem {
            from:
                Origin::Argument { .. }
                | Origin::Element
                | Origin::Slice { .. }
                | Origin::Socket { .. }
                | Origin::Object { .. },
            ..
        }
        | Ty::PacketEnd { .. } => return None,
        Ty::Uninit(_)
        | Ty::Scalar
        | Ty::Map { .. }
        | Ty::Half { .. }
        | Ty::Biased { .. }
        | Ty::Signed
        | Ty::Stale { .. }
        | Ty::Host { .. }
        | Ty::Func { .. }
        | Ty::Arena
        | Ty::Table { .. }
        | Ty::Insn { .. }
        | Ty::Local(_) => return None,
    };
    let at = base.n.bits().add(Tnum::constant(i64::from(off) as u64));
    let align = crate::num::few(start.min(1 << at.max().trailing_zeros().min(3)) as usize);
    // An unbounded offset may wrap.
    let ends = base.n.smin().checked_add(off.into()).zip(base.n.smax().checked_add(off.into()));
    let (min, max) = ends.unwrap_or((i64::MIN, i64::MAX));
    Some(AccessFact { region, min, max, align })
}

fn join_access(a: Option<AccessFact>, b: Option<AccessFact>) -> Option<AccessFact> {
    let (a, b) = (a?, b?);
    (a.region == b.region).then(|| AccessFact {
        region: a.region,
        min: a.min.min(b.min),
        max: a.max.max(b.max),
        align: a.align.min(b.align),
    })
}
