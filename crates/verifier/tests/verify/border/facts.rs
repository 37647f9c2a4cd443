//! Compares the facts about numbers, addresses and loops with a run.
//!
//! Each frame of the run is followed by itself (its r10 names it, its last instruction ends it), so that what an
//! instruction wrote is seen when the next one of the same frame begins, and rounds are counted from where a loop was
//! entered.

use bpf_analysis::{AccessRegion, Facts, Loops};
use bpf_isa::{AtomicOp, Insn, InsnIdx, Program, Reg, Src};

/// A frame: its r10, the instruction that it executed last, and the rounds of each loop it is in.
#[derive(Debug)]
struct Frame {
    r10: u64,
    last: InsnIdx,
    rounds: Vec<u64>,
}

/// Follows one run.
#[derive(Debug)]
pub(crate) struct FactWatch<'f> {
    facts: &'f Facts,
    program: &'f Program,
    loops: &'f Loops,
    frames: Vec<Frame>,
    buffer: u64,
    /// Number of comparisons with facts that are not trivial.
    pub(crate) compared: u64,
}

fn written(insn: &Insn) -> Option<Reg> {
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
        Insn::Atomic { op: AtomicOp::CmpXchg, .. } => Some(Reg::R0),
        Insn::Atomic { op: AtomicOp::Xchg, src, .. } => Some(src),
        Insn::Atomic {
            op:
                AtomicOp::Add { fetch: true }
                | AtomicOp::Or { fetch: true }
                | AtomicOp::And { fetch: true }
                | AtomicOp::Xor { fetch: true },
            src,
            ..
        } => Some(src),
        _ => None,
    }
}

impl<'f> FactWatch<'f> {
    pub(crate) fn new(facts: &'f Facts, program: &'f Program, loops: &'f Loops, buffer: u64) -> FactWatch<'f> {
        FactWatch { facts, program, loops, frames: Vec::new(), buffer, compared: 0 }
    }

    /// Observes an instruction that is about to run. Returns a description of a wrong fact, if there is one.
    pub(crate) fn observe(&mut self, at: InsnIdx, regs: &[u64; 11]) -> Option<String> {
        let insns = self.program.insns();
        let same = match self.frames.iter().position(|f| f.r10 == regs[10]) {
            Some(i) => {
                self.frames.truncate(i + 1);
                true
            }
            None => {
                let rounds = vec![0; self.loops.loops().len()];
                self.frames.push(Frame { r10: regs[10], last: at, rounds });
                false
            }
        };
        let wrong = self.after(at, regs, same).or_else(|| self.before(at, regs));
        if insns[at.index()] == Insn::Exit {
            self.frames.pop();
        } else if let Some(f) = self.frames.last_mut() {
            f.last = at;
        }
        wrong
    }

    /// Checks the result of the frame's last instruction.
    fn after(&mut self, at: InsnIdx, regs: &[u64; 11], same: bool) -> Option<String> {
        let frame = self.frames.last_mut()?;
        let last = frame.last;
        if let Some(id) = self.loops.headed(at) {
            let rounds = &mut frame.rounds[id as usize];
            *rounds = if same && self.loops.contains(id, last) { *rounds + 1 } else { 0 };
            if let Some(most) = self.facts.loop_at(at).and_then(|l| l.rounds) {
                self.compared += 1;
                if *rounds > most {
                    return Some(format!("the loop at {at} comes round {rounds} times, proven are {most}"));
                }
            }
        }
        if !same {
            return None;
        }
        let insn = self.program.insns()[last.index()];
        let fact = self.facts.values(last);
        if let Some(r) = written(&insn) {
            self.compared += u64::from(fact.result != Default::default());
            if !fact.result.contains(regs[r.index()]) {
                return Some(format!("{last} leaves {:#x}, proven is {:x?}", regs[r.index()], fact.result));
            }
        }
        if let (Insn::JumpIf { off, .. }, Some(taken)) = (insn, fact.taken) {
            self.compared += 1;
            if off != 0 && (at.0 != last.0 + 1) != taken {
                return Some(format!("{last} goes to {at}, proven is that it is taken: {taken}"));
            }
        }
        None
    }

    fn before(&mut self, at: InsnIdx, regs: &[u64; 11]) -> Option<String> {
        let fact = self.facts.values(at);
        let reg = |r: Reg| regs[r.index()];
        let (dst, src, access) = match self.program.insns()[at.index()] {
            Insn::Alu { dst, src, .. } | Insn::JumpIf { dst, src, .. } => (Some(dst), Some(src), None),
            Insn::Mov { src, .. } => (None, Some(src), None),
            Insn::MovSx { src, .. } | Insn::Cast { src, .. } => (None, Some(Src::Reg(src)), None),
            Insn::Neg { dst, .. } | Insn::End { dst, .. } => (Some(dst), None, None),
            Insn::Load { base, off, .. } => (None, None, Some((base, off))),
            Insn::Store { base, off, src, .. } => (None, Some(src), Some((base, off))),
            Insn::Atomic { base, off, src, .. } => (None, Some(Src::Reg(src)), Some((base, off))),
            _ => (None, None, None),
        };
        let src = src.and_then(|s| if let Src::Reg(r) = s { Some(r) } else { None });
        for (r, known) in [(dst, fact.dst), (src, fact.src)] {
            if let Some(r) = r {
                self.compared += u64::from(known != Default::default());
                if !known.contains(reg(r)) {
                    return Some(format!("{at} begins with {r} = {:#x}, proven is {known:x?}", reg(r)));
                }
            }
        }
        let (Some((base, off)), Some(fact)) = (access, fact.access) else { return None };
        self.compared += 1;
        let address = reg(base).wrapping_add(off as i64 as u64);
        let from = match fact.region {
            AccessRegion::Frame => regs[10],
            AccessRegion::Packet(0) => self.buffer,
            // A caller's frame lies above this frame.
            AccessRegion::CallerFrame if self.frames.iter().any(|f| address < f.r10 && f.r10 != regs[10]) => {
                return None;
            }
            _ => return Some(format!("{at} accesses {address:#x}, proven is {fact:?}")),
        };
        let offset = address.wrapping_sub(from) as i64;
        if !(fact.min..=fact.max).contains(&offset) || !address.is_multiple_of(fact.align.into()) {
            return Some(format!("{at} accesses {address:#x}, offset {offset}, proven is {fact:?}"));
        }
        None
    }
}
