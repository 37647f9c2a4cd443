//! Contained programs under a verifier that believes everything.
//!
//! Problem: that containment holds whatever is proven shows only where proofs are wrong. Approach: a program whose
//! proof is wrong runs contained, as machine code beside canaries: the bytes around the packet, the context's fields
//! that it may not write, constants, the maps that it does not name, and the machine stack beneath it. Whatever
//! such a program computes is right; a canary that changed, a run beyond its budget, or the process's end is not.
//! Reads are observed by a second run from the same addresses with other canaries: a result that depends on them
//! was made of bytes outside of the program's objects.
//!
//! [`Sabotage`] believes everything of generated programs, most of them damaged in some instructions;
//! [`planted`](super::planted) has a verifier with one deliberate bug.

use super::neighbours::neighbours;
use super::oracle::{Code, Input, Loaded, Output, Verified, load, run};
use super::selected::{self, Selected};
use super::world::World;
use super::{Generated, MapId, generate, generate_owning};
use crate::generate::Choices;
use bpf_isa::{Callee, Insn, Program, Src};
use bpf_runtime::oracle::Emitted;
use bpf_runtime::{LoadError, Mode, RunError, code::Arch, code::Code as Emission, maps::MapError, oracle};
use bpf_uapi::Kfunc;
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
    /// Runs that were ended: by the budget, or by a forbidden action of an instruction.
    pub stopped: u64,
    /// Programs whose results differ from run to run, so that reads of canaries would not be noticed.
    pub undetermined: u64,
    /// Accesses of their machine code, for the host and for arm64, and those at selected addresses.
    pub selected: Selected,
    /// Refused, by reason.
    pub refused: BTreeMap<String, u64>,
    /// Contained programs that look up values of inner maps ("inner"), make dynptrs ("dynptr"), and access memory
    /// behind these ("slice").
    pub kinds: BTreeMap<&'static str, u64>,
}

/// Runs changed programs that were not verified, contained.
#[derive(Debug)]
pub struct Sabotage {
    world: World,
    /// The counts so far.
    pub seen: Contained,
}

/// Branches back and calls of a run.
const BUDGET: u64 = 20_000;

/// The machine code of contained programs, and the maps that they run on.
pub(super) fn contained_world(steps: u64) -> World {
    World::new(Mode::Jit, Some(BUDGET), steps)
}

impl Default for Sabotage {
    fn default() -> Sabotage {
        Sabotage { world: contained_world(1), seen: Contained::default() }
    }
}

impl Sabotage {
    /// Makes a program of these choices, damages most of them, and runs it on so many inputs if it is contained.
    ///
    /// # Errors
    /// Description of the violation of containment.
    pub fn check(&mut self, runs: u32, c: &mut Choices<'_>) -> Result<(), String> {
        let mut generated = match c.below(8) {
            0 => generate_owning(c),
            1 | 2 => neighbours(c),
            _ => generate(c),
        };
        generated.globals.iter_mut().for_each(|signature| *signature = None);
        if !c.one_in(8) {
            damage(&mut generated, c);
        }
        self.check_as_is(&generated, runs, c)
    }

    /// Runs this unverified program on so many inputs, if it can be contained.
    ///
    /// # Errors
    /// Says which canary a run changed or read, or why a run stopped.
    pub fn check_as_is(&mut self, generated: &Generated, runs: u32, c: &mut Choices<'_>) -> Result<(), String> {
        // SAFETY: the runs are among canaries, and what a program damages here is a finding.
        unsafe { oracle::believe(true) };
        let outcome = self.run(generated, runs, c);
        // SAFETY: verifies again.
        unsafe { oracle::believe(false) };
        let what = match outcome {
            Ok(None) => return Ok(()),
            Ok(Some(what)) => what,
            Err(error) => format!("the maps: {error}"),
        };
        Err(format!("{what}\n{:?}\n{}", generated.context, generated.program))
    }

    /// Returns the machine code of the unverified program, if it can be contained.
    pub fn code(&mut self, generated: &Generated) -> Option<Emitted> {
        // SAFETY: the program is not run.
        unsafe { oracle::believe(true) };
        oracle::ask_for_code();
        let loaded = load(&self.world, generated, Code::Contained, Verified::Again);
        // SAFETY: verifies again.
        unsafe { oracle::believe(false) };
        loaded.ok().and_then(|_| oracle::code())
    }

    fn run(&mut self, generated: &Generated, runs: u32, c: &mut Choices<'_>) -> Result<Option<String>, MapError> {
        self.seen.programs += 1;
        oracle::ask_for_code();
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
        for (kind, has) in kinds(generated) {
            *self.seen.kinds.entry(kind).or_default() += u64::from(has);
        }
        if let Some(emitted @ Emitted { arena: false, .. }) = &oracle::code() {
            match check_emitted(emitted) {
                Ok(counts) => self.seen.selected.add(counts),
                Err(what) => return Ok(Some(what)),
            }
        }
        run_between_canaries(&mut self.world, &program, generated, runs, c, &mut self.seen)
    }
}

/// The kinds of [`Contained::kinds`], and whether the program has them.
fn kinds(generated: &Generated) -> [(&'static str, bool); 3] {
    let calls = |wanted: &[Callee]| {
        generated.program.insns().iter().any(|insn| matches!(insn, Insn::Call(callee) if wanted.contains(callee)))
    };
    let kfunc = |kfunc: Kfunc| {
        let index = Kfunc::ALL.iter().position(|of| *of == kfunc).and_then(|index| i32::try_from(index).ok());
        Callee::Host(index.unwrap_or(i32::MAX))
    };
    let outer = generated.maps & (1 << MapId::Outer as u8 | 1 << MapId::OuterHash as u8) != 0;
    let made = [Callee::Helper(197), Callee::Helper(198), kfunc(Kfunc::DynptrFromXdp), kfunc(Kfunc::DynptrFromSkb)];
    let slices = [Callee::Helper(203), kfunc(Kfunc::DynptrSlice), kfunc(Kfunc::DynptrSliceRdwr)];
    [("inner", outer), ("dynptr", calls(&made)), ("slice", calls(&slices))]
}

/// Checks the machine code of a contained program, for the host and for arm64; describes what was refused, with the
/// code before it.
pub(crate) fn check_emitted(emitted: &Emitted) -> Result<Selected, String> {
    let Emitted { code, regions, objects, arm64, lir, .. } = emitted;
    let stacks: Vec<u32> = lir.funcs.iter().map(|func| func.stack_bytes).collect();
    let check = |code: &Emission| {
        selected::check(code, regions, objects, &stacks).map_err(|refused| {
            let lines = crate::disasm::lines(code, &|symbol| format!("{symbol:?}")).unwrap_or_default();
            let before = lines.iter().filter(|line| u64::from(line.offset) <= refused.at).rev().take(1000);
            let before: Vec<_> = before.map(|line| format!("{:x}: {}", line.offset, line.text)).collect();
            let before = before.into_iter().rev().collect::<Vec<_>>().join("\n");
            format!("the check of {:?} code refuses {refused} in\n{before}", code.arch)
        })
    };
    let mut counts = check(code)?;
    if code.arch != Arch::Arm64 {
        counts.add(check(arm64)?);
    }
    Ok(counts)
}

/// Runs a contained program on so many inputs; returns what was not contained.
pub(super) fn run_between_canaries(
    world: &mut World,
    program: &Loaded,
    generated: &Generated,
    runs: u32,
    c: &mut Choices<'_>,
    seen: &mut Contained,
) -> Result<Option<String>, MapError> {
    for i in 0..runs {
        let input = Input::choose(generated, c);
        // The lowest three bits decide where the packet begins.
        let fills = [0x70 + (i & 7) as u8, 0xa8 + (i & 7) as u8];
        let mut once = |fill| {
            seen.runs += 1;
            run_once(world, program, generated, &input, fill)
        };
        let results = (once(fills[0])?, once(fills[1])?);
        let (first, second) = match results {
            (Ok(first), Ok(second)) => (first, second),
            (Err(what), _) | (_, Err(what)) => return Ok(Some(what)),
        };
        seen.stopped += u64::from(first.is_err());
        if first == second || !generated.ordered {
            continue;
        }
        // Results that differ for other reasons (memory that stands in for an object keeps what was stored there) do
        // not follow the canaries through these runs.
        let mut follows = true;
        for (fill, expected) in [(0, &first), (0, &first), (1, &second), (1, &second), (0, &first), (1, &second)] {
            follows &= run_once(world, program, generated, &input, fills[fill])?.as_ref() == Ok(expected);
        }
        if follows {
            return Ok(Some(format!("a result is made of canaries: {first:x?}\nor {second:x?}")));
        }
        seen.undetermined += 1;
        return Ok(None);
    }
    Ok(None)
}

/// The result of one run: the memory that it leaves, or the reason for its end. `Err`: it was not contained.
fn run_once(
    world: &mut World,
    program: &Loaded,
    generated: &Generated,
    input: &Input,
    fill: u8,
) -> Result<Result<Result<Output, String>, String>, MapError> {
    // Both maps of maps hold the same inner maps.
    let outer = 1 << MapId::Outer as u8 | 1 << MapId::OuterHash as u8;
    let named = if generated.maps & outer == 0 { generated.maps } else { generated.maps | outer };
    let others = super::ALL_MAPS & !named;
    world.reset(others, &mut Choices::from_seed(fill.into()))?;
    // Queues and rings are empty after they were read.
    world.contents(others)?;
    let before = world.contents(others)?;
    let result = match run(world, program, generated, input, fill)? {
        Ok(Ok(output)) => Ok(output),
        Ok(Err(error @ (RunError::Budget { .. } | RunError::Access { .. } | RunError::Host { .. }))) => {
            Err(error.to_string())
        }
        Ok(Err(error)) => return Ok(Err(format!("it stops: {error}"))),
        Err(what) => return Ok(Err(what)),
    };
    if world.contents(others)? != before || !world.constants_hold(others)? {
        return Ok(Err("a map that the program does not name was written".into()));
    }
    Ok(Ok(result))
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
