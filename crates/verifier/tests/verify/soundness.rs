//! Compares runs of accepted programs with the verifier's abstract states. A short run; `examples/watch.rs` is the long
//! one.

use crate::border::{Oracle, Outcome, generate};
use bpf_testkit::generate::Choices;

fn watch(hybrid: bool) -> (u32, u32, u64) {
    let mut oracle = Oracle::new(hybrid);
    let (mut accepted, mut refused, mut steps) = (0, 0, 0);
    for seed in 0..3000 {
        let mut c = Choices::from_seed(seed);
        let program = generate(&mut c);
        match oracle.check(&program, 3, &mut c) {
            Outcome::Refused(_) => refused += 1,
            Outcome::Ran(n) => (accepted, steps) = (accepted + 1, steps + n),
            Outcome::Violation(what) => panic!("seed {seed}: {what}"),
        }
    }
    // Facts about values are requested in half of the programs; in these, most instructions have some.
    assert!(2 * oracle.compared > steps, "{} facts compared in {steps} steps", oracle.compared);
    (accepted, refused, steps)
}

#[test]
fn accepted_programs_stay_within_the_abstract_states() {
    let (accepted, refused, steps) = watch(false);
    // Both sides of the border are visited.
    assert!(accepted > 500 && refused > 500 && steps > 50_000, "{accepted} accepted, {refused} refused, {steps} steps");
}

/// Watches hybrid programs, with checks left to run time: only a checked instruction may stop a run.
#[test]
fn hybrid_programs_stop_only_at_their_checks() {
    let (proven, _, _) = watch(false);
    let (accepted, refused, _) = watch(true);
    assert!(accepted > proven + 300 && refused > 100, "{proven} proven, {accepted} accepted, {refused} refused");
}

/// The other generator's programs are safe by construction, if the buffer is as long as it assumes.
#[test]
fn safe_programs_of_the_shared_generator_run_as_promised() {
    use bpf_interp::{Caller, Env as Host, Machine, Memory, Options, Step, Stop, StopKind};
    use bpf_testkit::generate::{HELPER_ID, Shape, from_seed, helper};
    use bpf_verifier::{ArgKind, ContextLayout, Env, HelperProto, Helpers, Ret, Verified, Verifier};

    struct Watch<'v> {
        verified: &'v Verified,
        outside: Option<bpf_isa::InsnIdx>,
    }
    impl Host for Watch<'_> {
        type Code = std::rc::Rc<bpf_isa::Program>;
        fn helper(&mut self, id: u32, args: [u64; 5], caller: &mut Caller<'_, '_, Self::Code>) -> Result<u64, Stop> {
            if id == HELPER_ID { Ok(helper(args)) } else { Err(caller.stop(StopKind::UnknownHelper(id))) }
        }
        fn observe(&mut self, step: &Step<'_, Self::Code>, _: &Machine<'_>) {
            if self.outside.is_none() && !self.verified.admits(step.at, step.regs) {
                self.outside = Some(step.at);
            }
        }
    }

    let shape = Shape { statements: 10, steps: 1000, kernel: true, ..Shape::default() };
    let mut context = ContextLayout::raw(true);
    context.regions[0].min_len = shape.memory;
    context.regions[0].align = 8;
    let mut helpers = Helpers::none();
    helpers.add(HelperProto::new(HELPER_ID, "test", &[ArgKind::Scalar; 5], Ret::Scalar)).expect("the id is free");
    let mut env = Env::new(&context, &helpers);
    env.record_states = true;
    let mut verifier = Verifier::new();
    let (mut accepted, mut refused) = (0, std::collections::BTreeMap::new());
    for seed in 0..120 {
        let generated = from_seed(seed, &shape);
        let verified = match verifier.verify(generated.program.clone(), &env) {
            Ok(v) => v,
            Err(e) => {
                *refused.entry(e.reason.to_string()).or_insert(0u32) += 1;
                continue;
            }
        };
        accepted += 1;
        // Somewhere in here is a multiple of 8.
        let mut room = vec![0; generated.memory.len() + 7];
        let start = room.as_ptr().align_offset(8);
        let buffer = &mut room[start..start + generated.memory.len()];
        buffer.copy_from_slice(&generated.memory);
        let mut memory = Memory::new();
        let r1 = memory.add_writable(buffer);
        let len = generated.memory.len() as u64;
        memory.set_packet(r1, len);
        let mut machine = Machine::new(memory, Options::default());
        let mut watch = Watch { verified: &verified, outside: None };
        let end = machine.run(&mut watch, &std::rc::Rc::new(generated.program.clone()), [r1, len]);
        assert_eq!(watch.outside, None, "seed {seed}:\n{}", generated.program);
        assert!(end.is_ok(), "seed {seed}: {end:?}\n{}", generated.program);
    }
    assert!(accepted > 115, "{accepted} accepted; refused: {refused:#?}");
}
