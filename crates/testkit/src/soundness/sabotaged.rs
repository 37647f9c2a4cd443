//! Contained programs under a verifier that believes everything.
//!
//! Problem: that containment holds whatever is proven shows only where proofs are wrong, and planted bugs are wrong in
//! a few places each. Approach: nothing is proven at all. A generated program, most of them damaged in some
//! instructions, is contained without having been verified, and runs as machine code beside canaries: bytes around the
//! packet, the context's fields that it may not write, constants, other maps, and what each map holds is still read by
//! the host. Whatever it computes is right; a byte outside, a run beyond its budget, or the process's end is not.

use super::oracle::{Code, Input, Verified, load, run};
use super::world::World;
use super::{Generated, generate, generate_owning};
use crate::generate::Choices;
use bpf_isa::{Insn, Program, Src};
use bpf_runtime::{LoadError, MapError, Mode, RunError, oracle};
use std::collections::BTreeMap;

/// Counts of programs and runs.
#[derive(Clone, Default, Debug)]
pub struct Contained {
    /// Programs made.
    pub programs: u64,
    /// Programs that were contained and run.
    pub contained: u64,
    /// Runs.
    pub runs: u64,
    /// Runs that were ended: by the budget, or by what their instructions may not do.
    pub stopped: u64,
    /// Refused, by reason.
    pub refused: BTreeMap<String, u64>,
}

/// Runs what nobody has verified.
#[derive(Debug)]
pub struct Sabotage {
    world: World,
    /// The counts so far.
    pub seen: Contained,
}

/// Branches back and calls of a run.
const BUDGET: u64 = 20_000;

impl Default for Sabotage {
    fn default() -> Sabotage {
        Sabotage { world: World::new(Mode::Jit, Some(BUDGET), 1), seen: Contained::default() }
    }
}

impl Sabotage {
    /// Makes a program of these choices, damages most of them, and runs it on so many inputs if it is contained.
    ///
    /// # Errors
    /// Description of the violation of containment.
    pub fn check(&mut self, runs: u32, c: &mut Choices<'_>) -> Result<(), String> {
        let mut generated = if c.one_in(8) { generate_owning(c) } else { generate(c) };
        generated.globals.iter_mut().for_each(|signature| *signature = None);
        if !c.one_in(8) {
            damage(&mut generated, c);
        }
        oracle::believe(true);
        let outcome = self.run(&generated, runs, c);
        oracle::believe(false);
        let what = match outcome {
            Ok(None) => return Ok(()),
            Ok(Some(what)) => what,
            Err(error) => format!("the maps: {error}"),
        };
        Err(format!("{what}\n{:?}\n{}", generated.context, generated.program))
    }

    fn run(&mut self, generated: &Generated, runs: u32, c: &mut Choices<'_>) -> Result<Option<String>, MapError> {
        self.seen.programs += 1;
        let program = match load(&self.world, generated, Code::Contained, Verified::Again) {
            Ok(program) => program,
            Err(LoadError::Uncontained { source, .. }) => {
                let why = format!("{:?}", source.why);
                let kind = why.split(['(', '{', ' ']).next().unwrap_or_default().to_owned();
                *self.seen.refused.entry(kind).or_default() += 1;
                return Ok(None);
            }
            // A damaged program may refer to a function or map that does not exist.
            Err(LoadError::UnknownHelper { .. } | LoadError::Unresolved { .. }) => return Ok(None),
            Err(error) => return Ok(Some(format!("it does not load: {error}"))),
        };
        self.seen.contained += 1;
        for i in 0..runs {
            let input = Input::choose(generated, c);
            self.seen.runs += 1;
            // All maps are looked at: none is the program's but those that it names.
            let all = Generated { maps: u16::MAX >> 4, ..generated.clone() };
            match run(&mut self.world, &program, &all, &input, 0x70 + (i & 7) as u8)? {
                Ok(Ok(_)) => {}
                Ok(Err(RunError::Budget { .. } | RunError::Access { .. } | RunError::Host { .. })) => {
                    self.seen.stopped += 1;
                }
                Ok(Err(error)) => return Ok(Some(format!("it stops: {error}"))),
                Err(what) => return Ok(Some(what)),
            }
        }
        Ok(None)
    }
}

/// Changes some instructions: offsets, constants, registers, and the conditions that proofs rest on.
fn damage(generated: &mut Generated, c: &mut Choices<'_>) {
    for _ in 0..=c.below(6) {
        let mut insns = generated.program.insns().to_vec();
        let at = c.below(insns.len() as u32) as usize;
        let number = |c: &mut Choices<'_>| match c.below(4) {
            0 => c.value() as i32,
            1 => -(c.below(600) as i32),
            2 => c.below(600) as i32,
            _ => 1 << c.below(31),
        };
        let offset = |c: &mut Choices<'_>| match c.below(3) {
            0 => c.value() as i16,
            1 => -(c.below(600) as i16),
            _ => c.below(600) as i16,
        };
        match &mut insns[at] {
            Insn::Load { off, .. }
            | Insn::Store { off, .. }
            | Insn::Atomic { off, .. }
            | Insn::LoadAcquire { off, .. }
            | Insn::StoreRelease { off, .. } => *off = offset(c),
            Insn::Alu { src: src @ Src::Imm(_), .. } | Insn::Mov { src: src @ Src::Imm(_), .. } => {
                *src = Src::Imm(number(c));
            }
            Insn::JumpIf { cond, src, .. } => match c.one_in(2) {
                true => *cond = cond.negate().unwrap_or(*cond),
                false => *src = Src::Imm(number(c)),
            },
            Insn::Call(_) if c.one_in(4) => {
                let other = c.below(insns.len() as u32) as usize;
                insns[at] = insns[other];
            }
            Insn::Alu { .. }
            | Insn::Mov { .. }
            | Insn::MovSx { .. }
            | Insn::Cast { .. }
            | Insn::Neg { .. }
            | Insn::End { .. } => {
                let other = c.below(insns.len() as u32) as usize;
                if insns[other].slots() == 1 && !matches!(insns[other], Insn::SecondSlot) {
                    insns[at] = insns[other];
                }
            }
            Insn::LoadImm64 { .. }
            | Insn::SecondSlot
            | Insn::LoadAbs { .. }
            | Insn::LoadInd { .. }
            | Insn::Jump { .. }
            | Insn::JumpReg { .. }
            | Insn::MayGoto { .. }
            | Insn::Call(_)
            | Insn::Exit => {}
        }
        if let Ok(program) = Program::new(insns)
            && program.subprogs().len() == generated.program.subprogs().len()
        {
            generated.program = program;
        }
    }
}
