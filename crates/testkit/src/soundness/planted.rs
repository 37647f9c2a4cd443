//! Contained programs that only a deliberate bug of the verifier lets through.
//!
//! Problem: [`Sabotage`](super::Sabotage) believes everything, so it says nothing of facts that a wrong proof hands on:
//! code that is dead, constants, known maps. Approach: with one bug planted ([`Bug`]), a program that the verifier
//! refuses without it is verified, contained, and run beside canaries. The interpreter runs it as well, watched, and
//! tells whether the bug mattered: a run is *harmful* if a register lies outside of every proven state, or the
//! interpreter refuses an access.

use super::oracle::{Code, Input, Verified, load, run};
use super::sabotaged::{Contained, contained_world, run_between_canaries};
use super::world::World;
use super::{Arg, Context, Generated};
use crate::generate::Choices;
use bpf_isa::{Program, assemble};
use bpf_runtime::{LoadError, Mode, OptLevel, maps::MapError, oracle};
use bpf_verifier::faults as walk;
use bpf_verifier_core::faults as core;
use std::fmt;

/// A deliberate bug of the verifier: of its walks, or of its core.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Bug {
    /// A bug of the walks.
    Walk(walk::Fault),
    /// A bug of the core.
    Core(core::Fault),
}

impl Bug {
    /// All of them.
    pub fn all() -> impl Iterator<Item = Bug> {
        let walk = walk::Fault::ALL.iter().copied().map(Bug::Walk);
        walk.chain(core::Fault::ALL.iter().copied().map(Bug::Core))
    }

    /// Plants a bug on this thread in place of another, or removes it.
    fn plant(bug: Option<Bug>) {
        let (walks, cores) = match bug {
            Some(Bug::Walk(fault)) => (Some(fault), None),
            Some(Bug::Core(fault)) => (None, Some(fault)),
            None => (None, None),
        };
        walk::plant(walks);
        core::plant(cores);
    }
}

impl fmt::Debug for Bug {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Bug::Walk(fault) => fault.fmt(f),
            Bug::Core(fault) => fault.fmt(f),
        }
    }
}

/// The effect of a bug on a program.
#[derive(Debug)]
pub enum Thanks {
    /// Accepted without the bug.
    Sound,
    /// Refused with it, too.
    Refused,
    /// Accepted with it alone, and refused by containment: the reason.
    Uncontained(String),
    /// Accepted with it alone, and run contained.
    Ran {
        /// Runs whose proof was wrong.
        harmful: u32,
    },
}

/// Runs programs under planted bugs.
#[derive(Debug)]
pub struct Planted {
    interpreter: World,
    machine: World,
    /// Counts of contained runs.
    pub seen: Contained,
}

/// Instructions that verification may walk.
const STEPS: u64 = 3_000;
/// Branches back and calls that the interpreter takes.
const BUDGET: u64 = 20_000;

impl Default for Planted {
    fn default() -> Planted {
        let interpreter = World::new(Mode::Interpreter, Some(BUDGET), STEPS);
        Planted { interpreter, machine: contained_world(STEPS), seen: Contained::default() }
    }
}

impl Planted {
    /// Whether the verifier refuses the program, without a bug.
    pub fn is_refused(&self, generated: &Generated) -> bool {
        matches!(
            load(&self.interpreter, generated, Code::Plain(OptLevel::None), Verified::Again),
            Err(LoadError::Verifier { .. })
        )
    }

    /// Whether the verifier refuses the program, and accepts it with the bug.
    pub fn is_let_through(&self, fault: Bug, generated: &Generated) -> bool {
        let load = || load(&self.interpreter, generated, Code::Plain(OptLevel::None), Verified::Again);
        Bug::plant(Some(fault));
        let accepted = load().is_ok();
        Bug::plant(None);
        accepted && matches!(load(), Err(LoadError::Verifier { .. }))
    }

    /// Runs the program on so many inputs, contained, if the bug lets it through.
    ///
    /// # Errors
    /// Says which canary a run changed or read, or why a run stopped.
    pub fn check(
        &mut self,
        fault: Bug,
        generated: &Generated,
        runs: u32,
        c: &mut Choices<'_>,
    ) -> Result<Thanks, String> {
        if !self.is_refused(generated) {
            return Ok(Thanks::Sound);
        }
        self.check_refused(fault, generated, runs, c)
    }

    /// Checks a program that the verifier refuses without a bug.
    ///
    /// # Errors
    /// Says which canary a run changed or read, or why a run stopped.
    pub fn check_refused(
        &mut self,
        fault: Bug,
        generated: &Generated,
        runs: u32,
        c: &mut Choices<'_>,
    ) -> Result<Thanks, String> {
        let outcome = self.try_check(fault, generated, runs, c);
        Bug::plant(None);
        match outcome {
            Ok(Ok(thanks)) => Ok(thanks),
            Ok(Err(what)) => Err(format!("{what}\n{:?}\n{}", generated.context, generated.program)),
            Err(error) => Err(format!("the maps: {error}")),
        }
    }

    fn try_check(
        &mut self,
        fault: Bug,
        generated: &Generated,
        runs: u32,
        c: &mut Choices<'_>,
    ) -> Result<Result<Thanks, String>, MapError> {
        Bug::plant(Some(fault));
        let program = match load(&self.machine, generated, Code::Contained, Verified::Again) {
            Ok(program) => program,
            Err(LoadError::Uncontained { source, .. }) => {
                return Ok(Ok(Thanks::Uncontained(format!("{:?}", source.why))));
            }
            Err(_) => return Ok(Ok(Thanks::Refused)),
        };
        let Ok(watched) = load(&self.interpreter, generated, Code::Plain(OptLevel::None), Verified::Watched) else {
            return Ok(Ok(Thanks::Refused));
        };
        Bug::plant(None);
        self.seen.programs += 1;
        self.seen.contained += 1;
        let mut harmful = 0;
        for _ in 0..runs {
            // One seed gives both runs equal choices.
            let seed = c.value();
            oracle::fill_stacks(0);
            let input = Input::choose(generated, &mut Choices::from_seed(seed));
            let result = run(&mut self.interpreter, &watched, generated, &input, 0x11)?;
            let outside = oracle::observed().1;
            harmful += u32::from(outside.is_some() || !matches!(result, Ok(Ok(_))));
            let mut choices = Choices::from_seed(seed);
            let found = run_between_canaries(&mut self.machine, &program, generated, 1, &mut choices, &mut self.seen)?;
            if let Some(what) = found {
                return Ok(Err(what));
            }
        }
        Ok(Ok(Thanks::Ran { harmful }))
    }
}

/// A program and the bug that lets it through, as a section of a file.
pub fn print(fault: Bug, generated: &Generated) -> String {
    let global = |args: &Option<Vec<Arg>>| match args {
        None => "-".to_owned(),
        Some(args) => {
            let arg = |arg: &Arg| match arg {
                Arg::Mem(bytes) => format!("mem{bytes}"),
                Arg::Number => "number".to_owned(),
                Arg::Context => "context".to_owned(),
            };
            args.iter().map(arg).collect::<Vec<_>>().join(",")
        }
    };
    let globals: Vec<String> = generated.globals.iter().map(global).collect();
    let lens: Vec<String> = generated.lens.iter().map(u32::to_string).collect();
    let (context, maps) = (generated.context, generated.maps);
    format!(
        "== {fault:?}\n{context:?}; {maps}; {}; {}; {}\n{}\n",
        lens.join(" "),
        globals.join(" "),
        if generated.ordered { "ordered" } else { "unordered" },
        generated.program
    )
}

/// Reads the sections of a file that [`print`] has written.
///
/// # Errors
/// The text of the first malformed section.
pub fn parse(text: &str) -> Result<Vec<(Bug, Generated)>, String> {
    text.split("\n== ").skip(1).map(|section| parse_one(section).ok_or_else(|| section.to_owned())).collect()
}

fn parse_one(section: &str) -> Option<(Bug, Generated)> {
    let (name, rest) = section.split_once('\n')?;
    let (about, text) = rest.split_once('\n')?;
    let fault = Bug::all().find(|fault| format!("{fault:?}") == name)?;
    let mut about = about.split(';').map(str::trim);
    let context = match about.next()? {
        "Raw" => Context::Raw,
        "Xdp" => Context::Xdp,
        "Skb" => Context::Skb,
        _ => return None,
    };
    let maps = about.next()?.parse().ok()?;
    let lens = about.next()?.split_whitespace().map(|len| len.parse().ok()).collect::<Option<_>>()?;
    let arg = |arg: &str| match arg {
        "number" => Some(Arg::Number),
        "context" => Some(Arg::Context),
        mem => Some(Arg::Mem(mem.strip_prefix("mem")?.parse().ok()?)),
    };
    let global = |args: &str| match args {
        "-" => Some(None),
        args => Some(Some(args.split(',').map(arg).collect::<Option<_>>()?)),
    };
    let globals = about.next()?.split_whitespace().map(global).collect::<Option<_>>()?;
    let ordered = about.next()? == "ordered";
    let program = Program::new(assemble(text).ok()?).ok()?;
    Some((fault, Generated { program, context, globals, maps, lens, ordered, lured: true }))
}
