//! Makes a failing program smaller.
//!
//! Delta debugging on instructions: take out runs of them, long runs first, as long as the program stays valid and
//! still fails. Jumps over a gap are shortened; a jump into the gap goes to the next instruction. Taking out a loop's
//! counter can make a loop endless, so the test must run candidates under a budget.

use bpf_isa::{Callee, Imm64, Insn, Program};

/// The smallest program found for which `fails` still holds.
pub fn minimise(program: &Program, fails: &mut dyn FnMut(&Program) -> bool) -> Program {
    let mut best = program.clone();
    let mut run = best.insns().len() / 2;
    while run > 0 {
        let mut at = 0;
        let mut progress = false;
        while at < best.insns().len() {
            match without(best.insns(), at, run).and_then(|insns| Program::new(insns).ok()) {
                Some(candidate) if fails(&candidate) => {
                    best = candidate;
                    progress = true;
                }
                Some(_) | None => at += 1,
            }
        }
        if !progress {
            run /= 2;
        }
        run = run.min(best.insns().len());
    }
    best
}

/// The instructions without those of the slots `at .. at + run`, a two-slot instruction as a whole.
fn without(insns: &[Insn], at: usize, run: usize) -> Option<Vec<Insn>> {
    if insns.get(at) == Some(&Insn::SecondSlot) {
        return None;
    }
    let mut end = (at + run).min(insns.len());
    if insns.get(end) == Some(&Insn::SecondSlot) {
        end += 1;
    }
    let moved = |slot: i64| match slot {
        slot if slot >= end as i64 => slot - (end - at) as i64,
        slot => slot.min(at as i64),
    };
    let kept = insns.iter().enumerate().filter(|(slot, _)| !(at..end).contains(slot));
    kept.map(|(slot, insn)| {
        let relative = |off: i32| {
            let next = slot as i64 + 1;
            // The slot after the one before the gap is the gap itself, so the instruction's own place is moved, not
            // `next`.
            i32::try_from(moved(next + i64::from(off)) - moved(slot as i64) - 1).ok()
        };
        let mut insn = *insn;
        match &mut insn {
            Insn::Jump { off, .. }
            | Insn::Call(Callee::Subprog(off))
            | Insn::LoadImm64 { imm: Imm64::Func(off), .. } => *off = relative(*off)?,
            Insn::JumpIf { off, .. } | Insn::MayGoto { off } => *off = relative((*off).into())?.try_into().ok()?,
            Insn::Alu { .. }
            | Insn::Mov { .. }
            | Insn::MovSx { .. }
            | Insn::Cast { .. }
            | Insn::Neg { .. }
            | Insn::End { .. }
            | Insn::LoadImm64 {
                imm:
                    Imm64::Const(_)
                    | Imm64::Map(_)
                    | Imm64::MapValue { .. }
                    | Imm64::Var(_)
                    | Imm64::MapIdx(_)
                    | Imm64::MapIdxValue { .. },
                ..
            }
            | Insn::SecondSlot
            | Insn::Load { .. }
            | Insn::Store { .. }
            | Insn::Atomic { .. }
            | Insn::LoadAcquire { .. }
            | Insn::StoreRelease { .. }
            | Insn::LoadAbs { .. }
            | Insn::LoadInd { .. }
            | Insn::Call(Callee::Helper(_) | Callee::Host(_) | Callee::Reg(_))
            | Insn::JumpReg { .. }
            | Insn::Exit => {}
        }
        Some(insn)
    })
    .collect()
}
