//! A policy engine: a policy is an implementation of a trait, in Rust or as a table of programs in an object.
//!
//! The service calls methods; whether a program or Rust answers, it does not see. The members of the table are checked
//! against the trait when it is loaded, and a table is exchanged as a whole while threads ask. `--measure` compares.

use bpf_runtime::{BpfContext, Config, Engine, Linker, Loader, MapSet, Object, RunError, interface};
use std::collections::HashSet;
use std::error::Error;
use std::hint::black_box;
use std::time::Instant;

/// Question to the policy: may this user do this at this hour?
#[derive(BpfContext, Clone, Copy, Default)]
#[bpf(name = "question")]
#[repr(C)]
struct Question {
    user: u32,
    role: u32,
    verb: u32,
    hour: u32,
    /// The reason for a refusal.
    #[bpf(writable)]
    reason: u32,
}

/// Decides which subject may perform which action.
#[interface]
trait Policy {
    /// 1 if it is allowed.
    fn decide(&mut self, question: &mut Question) -> Result<u32, RunError>;

    /// Returns the price of the action.
    fn price(&mut self, _question: &mut Question) -> Result<u64, RunError> {
        Ok(1)
    }
}

/// A policy in Rust.
struct InRust {
    banned: HashSet<u32>,
}

impl Policy for InRust {
    fn decide(&mut self, question: &mut Question) -> Result<u32, RunError> {
        question.reason = if self.banned.contains(&question.user) {
            3
        } else if question.verb > question.role {
            1
        } else if question.verb != 0 && !(8..18).contains(&question.hour) {
            2
        } else {
            0
        };
        Ok(u32::from(question.reason == 0))
    }
}

fn load(engine: &Engine, table: &str, interpreted: bool) -> Result<PolicyOps<()>, Box<dyn Error>> {
    let object = Object::parse(include_bytes!("../policies.o"))?;
    let linker = Linker::<()>::new(engine);
    let loader: Loader<'_, Question, ()> = linker.loader();
    let loader = loader.interpreted(interpreted);
    Ok(PolicyOps::load(loader, &object, table, MapSet::for_object(engine, &object)?)?)
}

/// Nanoseconds a decision, of the best of five rounds.
fn time(policy: &mut dyn Policy) -> Result<f64, RunError> {
    const QUESTIONS: u32 = 1_000_000;
    let mut best = f64::INFINITY;
    for _ in 0..5 {
        let begin = Instant::now();
        for i in 0..QUESTIONS {
            let mut question = Question { user: i % 1000, role: i % 3, verb: i % 2, hour: i % 24, reason: 0 };
            black_box(policy.decide(&mut question)?);
        }
        best = best.min(begin.elapsed().as_secs_f64() * 1e9 / f64::from(QUESTIONS));
    }
    Ok(best)
}

fn main() -> Result<(), Box<dyn Error>> {
    let engine = Engine::new(Config::new())?;
    let office = load(&engine, "office", false)?;
    let (member, at_night) = (Question { user: 7, role: 1, verb: 1, hour: 9, reason: 0 }, 23);

    let mut question = member;
    assert_eq!(office.with(&mut ()).decide(&mut question)?, 1);
    assert_eq!(office.with(&mut ()).price(&mut question)?, 2);
    question.hour = at_night;
    assert_eq!((office.with(&mut ()).decide(&mut question)?, question.reason), (0, 2));

    // Maps of the policy are the operator's, too.
    office.instance().map("banned")?.update(&8u32.to_ne_bytes(), &1u32.to_ne_bytes(), 0)?;
    let mut question = Question { user: 8, ..member };
    assert_eq!((office.with(&mut ()).decide(&mut question)?, question.reason), (0, 3));

    // Another policy replaces it as a whole: for functions that it lacks, the trait's default runs.
    office.replace(&load(&engine, "lockdown", false)?)?;
    let mut question = member;
    assert_eq!(office.with(&mut ()).decide(&mut question)?, 0);
    assert_eq!(office.with(&mut ()).price(&mut question)?, 1);
    println!("the office's policy was exchanged for the lockdown's");

    if std::env::args().any(|arg| arg == "--measure") {
        let begin = Instant::now();
        let (compiled, interpreted) = (load(&engine, "office", false)?, load(&engine, "office", true)?);
        let loads = begin.elapsed().as_secs_f64() * 1e6 / 2.0;
        let rust = time(&mut InRust { banned: HashSet::from([8]) })?;
        for (name, policy) in [("compiled", compiled), ("interpreted", interpreted)] {
            let ours = time(&mut policy.with(&mut ()))?;
            println!("ns a decision: {ours:.0} {name}, {rust:.0} by `dyn Policy` in Rust, {:.1} x", ours / rust);
        }
        println!("µs a load, verified: {loads:.0}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_runs() {
        main().unwrap();
        assert!(include_str!("../policy.h").starts_with(&Question::c_struct()));
    }

    #[test]
    fn program_and_rust_decide_alike() {
        let engine = Engine::new(Config::new()).unwrap();
        let office = load(&engine, "office", false).unwrap();
        office.instance().map("banned").unwrap().update(&8u32.to_ne_bytes(), &1u32.to_ne_bytes(), 0).unwrap();
        let mut rust = InRust { banned: HashSet::from([8]) };
        for i in 0..10 * 3 * 3 * 24 {
            let question = Question { user: i % 10, role: i / 10 % 3, verb: i / 30 % 3, hour: i / 90, reason: 0 };
            let (mut by_program, mut by_rust) = (question, question);
            let verdict = office.with(&mut ()).decide(&mut by_program).unwrap();
            assert_eq!(verdict, rust.decide(&mut by_rust).unwrap());
            assert_eq!(by_program.reason, by_rust.reason);
        }
    }
}
