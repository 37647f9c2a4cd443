//! The kernel against our engines, and the generators as a proptest strategy: that generated programs agree on every
//! engine in every variant is tested beside the runtime; here is what needs the oracles of this crate.
//!
//! `BPF_SOAK=N` multiplies the number of programs by N.

use bpf_runtime::{Caller, Config, Engine, Linker, Mode, Raw, code::Arch};
use bpf_testkit::{
    generate::{self, Generated, HELPER_ID, Shape},
    kernel::{self, RawProgram},
    skipped,
};
use zerocopy::IntoBytes;

/// The JIT, where there is one, and the interpreter.
fn engines() -> Vec<(Mode, Linker<()>)> {
    let modes = Arch::HOST.map(|_| Mode::Jit).into_iter().chain([Mode::Interpreter]);
    modes
        .map(|mode| {
            let config = Config::new().mode(mode);
            let mut linker = Linker::new(&Engine::new(config).expect("an engine"));
            let mix =
                |_: &mut Caller<'_, ()>, a: u64, b: u64, c: u64, d: u64, e: u64| generate::helper([a, b, c, d, e]);
            linker.func(HELPER_ID, "mix", mix).expect("a free id");
            (mode, linker)
        })
        .collect()
}

/// r0 and the memory after a run on each engine, which are all the same.
fn run(engines: &[(Mode, Linker<()>)], generated: &Generated) -> Result<(u64, Vec<u8>), String> {
    let Generated { program, memory } = generated;
    let mut results = Vec::new();
    for (mode, linker) in engines {
        // SAFETY: generated programs stay inside their memory and end.
        let loader = unsafe { linker.loader::<Raw>().unverified(true) };
        let loaded = loader.insns("generated", program.insns().to_vec()).map_err(|e| e.to_string())?;
        let mut words = vec![0u64; memory.len().div_ceil(8)];
        let bytes = &mut words.as_mut_bytes()[..memory.len()];
        bytes.copy_from_slice(memory);
        let r0 = loaded.run(&mut (), bytes).map_err(|e| format!("{mode:?}: {e}"))?;
        results.push((r0, words.as_bytes()[..memory.len()].to_vec()));
    }
    if results.windows(2).any(|pair| pair[0] != pair[1]) {
        return Err(format!("{results:x?}\n{}", bpf_isa::disassemble(program.insns())));
    }
    results.pop().ok_or_else(|| "no engine".into())
}

proptest::proptest! {
    #![proptest_config(proptest::test_runner::Config {
        cases: 200, failure_persistence: None, ..proptest::test_runner::Config::default()
    })]

    #[test]
    fn generated_programs_agree_and_shrink(generated in generate::strategy(Shape::default())) {
        if let Err(difference) = run(&engines(), &generated) {
            return Err(proptest::test_runner::TestCaseError::fail(difference));
        }
    }
}

#[test]
fn the_kernel_agrees() {
    if let Err(why) = kernel::available() {
        return skipped("the_kernel_agrees", &why);
    }
    let engines = engines();
    let shape = Shape::kernel();
    let programs = 300 * std::env::var("BPF_SOAK").ok().and_then(|times| times.parse().ok()).unwrap_or(1);
    let (mut compared, mut refused) = (0, 0);
    for seed in 0..programs {
        let generated = generate::from_seed(seed, &shape);
        let Ok(loaded) = RawProgram::load(&generated.program.to_bytes(), shape.memory) else {
            refused += 1;
            continue;
        };
        let mut memory = generated.memory.clone();
        let result = loaded.run(&mut memory, 1).expect("a test run").result;
        match run(&engines, &generated) {
            Ok((r0, ours)) => assert_eq!((r0 as u32, ours), (result, memory), "seed {seed}"),
            Err(difference) => panic!("seed {seed}: {difference}"),
        }
        compared += 1;
    }
    // The verifier gives up on a program with too many paths now and then.
    assert!(compared > 20 * refused, "the kernel refused {refused}, compared were {compared}");
}
