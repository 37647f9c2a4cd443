//! Dead code is not compiled. The test removes all code that one run does not reach: on that run the machine code must
//! give the result of the interpreter with the whole program.
//!
//! Every branch of a generated program that a run takes in one direction only has a dead side for that run, so far more
//! is pruned here than the verifier finds, whole functions included.

use crate::abi::limits::Checks;
use crate::context::{Context, Raw};
use crate::engine::Engine;
use crate::engine::config::Config;
use crate::engine::usage::Payer;
use crate::program::bindings::Pool;
use crate::program::loaded::{Loaded, Place};
use crate::program::name::Name;
use crate::program::unit::{Target, Unit};
use bpf_analysis::{Facts, InsnFact};
use bpf_interp::{Caller, Env, Machine, Memory, Options, Step, Stop, StopKind};
use bpf_isa::{Insn, Program};
use bpf_jit_code::Arch;
use bpf_jit_code::OptLevel;
use bpf_testkit::generate::{self, Shape};
use bpf_testkit::skipped;

/// Notes which instructions are reached.
struct Watch(Vec<bool>);

impl Env for Watch {
    type Code = std::sync::Arc<Program>;

    fn helper(&mut self, id: u32, _: [u64; 5], caller: &mut Caller<'_, '_, Self::Code>) -> Result<u64, Stop> {
        Err(caller.stop(StopKind::UnknownHelper(id)))
    }

    fn observe(&mut self, step: &Step<'_, Self::Code>, _: &Machine<'_>) {
        self.0[step.at.index()] = true;
    }
}

/// Words that hold these bytes, 8-byte aligned.
fn aligned(bytes: &[u8]) -> Vec<u64> {
    let word = |chunk: &[u8]| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_ne_bytes(word)
    };
    bytes.chunks(8).map(word).collect()
}

#[test]
fn code_without_what_a_run_does_not_reach_does_the_same() {
    if Arch::HOST.is_none() {
        return skipped("code_without_what_a_run_does_not_reach_does_the_same", &"no JIT for this host");
    }
    let engine = Engine::new(Config::new()).unwrap();
    let shape = Shape { helper: false, subprogs: 3, ..Shape::default() };
    let (mut runs, mut pruned) = (0, 0);
    let size = |loaded: &Loaded| loaded.text().map_or(0, |(code, _)| code.len());
    for seed in 0..1500 {
        let generated = generate::from_seed(seed, &shape);
        let program = std::sync::Arc::new(Program::new(generated.program.insns().to_vec()).unwrap());
        let len = generated.memory.len();

        let mut words = aligned(&generated.memory);
        let bytes = &mut zerocopy::IntoBytes::as_mut_bytes(&mut words[..])[..len];
        let mut memory = Memory::new();
        let r1 = memory.add_writable(bytes);
        let mut watch = Watch(vec![false; program.insns().len()]);
        let result = Machine::new(memory, Options::default()).run(&mut watch, &program, [r1, len as u64]);
        let Ok(expected) = result else { continue };
        let expected = (expected, words);

        let dead = |reached: &bool, insn: &Insn| !reached && *insn != Insn::SecondSlot;
        let insns = watch.0.iter().zip(program.insns());
        let insns = insns.map(|(reached, insn)| InsnFact { dead: dead(reached, insn), ..InsnFact::default() });
        let facts = Facts { insns: insns.collect(), ..Facts::default() };
        let load = |facts: &Facts| {
            let unit = Unit {
                name: Name::new("test"),
                layout: Raw::layout(),
                host: crate::program::table::HostType::of::<()>(),
                references: None,
                source: None,
                budget: 0,
                checks: Checks { budget: false, interrupt: false, yields: false },
                sleepable: false,
                sink: None,
                recordable: None,
                void: false,
            };
            let opt_level = OptLevel::Speed;
            let target = Target { program: &program, facts, opt_level, source: None, shared: false };
            let pool = Pool::new(&engine, Payer::default());
            let mut place = Place { engine: &engine, payer: Payer::default(), pool, shared: false, budget: None };
            unit.compile(&engine, target, |ready| Loaded::new(&unit, ready, Vec::new(), &mut place))
        };
        let (whole, loaded) = (load(&Facts::default()).unwrap(), load(&facts).unwrap());
        pruned += i32::from(size(&loaded) < size(&whole));
        let mut words = aligned(&generated.memory);
        let mut bytes = &mut zerocopy::IntoBytes::as_mut_bytes(&mut words[..])[..len];
        // SAFETY: the parts are those of the borrowed bytes; the interpreter has shown that this run stays inside them,
        // and no host function is there to look at the host.
        let r0 = unsafe { loaded.run(core::ptr::null_mut(), Raw::parts(&mut bytes)) }.unwrap();
        assert_eq!((r0, words), expected, "seed {seed}:\n{}", bpf_isa::disassemble(program.insns()));
        runs += 1;
    }
    assert!(runs > 1000 && pruned > runs / 2, "{runs} runs, {pruned} of them on less code");
}
