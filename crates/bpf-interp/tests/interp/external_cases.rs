//! Tests with the conformance programs of other projects, if present (see `bpf_testkit::cases::shared`).

use bpf_interp::{Caller, Env, Machine, Memory, Options, Stop, StopKind};
use bpf_isa::Program;
use bpf_testkit::cases::{self, Case, Outcome};

/// The cases know one helper, 5, which returns its argument.
struct Host;

impl Env for Host {
    type Code = std::sync::Arc<Program>;

    fn helper(&mut self, id: u32, args: [u64; 5], caller: &mut Caller<'_, '_, Self::Code>) -> Result<u64, Stop> {
        if id == 5 { Ok(args[0]) } else { Err(caller.stop(StopKind::UnknownHelper(id))) }
    }
}

fn interpret(case: &Case) -> Outcome {
    let program = match Program::from_bytes(&case.program) {
        Ok(program) => std::sync::Arc::new(program),
        Err(error) => return Outcome::Rejected(error.to_string()),
    };
    let mut bytes = case.memory.clone();
    let mut memory = Memory::new();
    let args = match &mut bytes {
        None => [0, 0],
        Some(bytes) => {
            let len = bytes.len() as u64;
            [memory.add_writable(bytes), len]
        }
    };
    memory.set_packet(args[0], args[1]);
    match Machine::new(memory, Options::default()).run(&mut Host, &program, args) {
        Ok(r0) => Outcome::Returned(r0),
        Err(stop) => Outcome::Stopped(stop.to_string()),
    }
}

fn check(file: &str, passed: usize, failed: &[&str]) {
    let path = match cases::shared(&format!("cases/{file}.jsonl")) {
        Ok(path) => path,
        Err(why) => return bpf_testkit::skipped(file, &why),
    };
    let tally = cases::run(&path, &mut interpret).expect("a file of cases");
    assert_eq!((tally.passed, tally.failed), (passed, failed.iter().map(|name| name.to_string()).collect()));
}

#[test]
fn conformance() {
    // This case calls a helper by a number in a register. The interpreter supports that only where the number is known
    // before the run; the runtime then replaces it by a direct call.
    check("conformance", 312, &["callx"]);
}

#[test]
fn conformance_negative() {
    check("conformance_negative", 45, &[]);
}

#[test]
fn alu_and_memory() {
    check("alu_and_memory", 360, &[]);
}
