//! One input, all engines: cases and generated programs through the runtime, as machine code and interpreted.
//!
//! One function, [`run`], touches the runtime's API. The architecture is the one the test is built for, so the same
//! file tests the arm64 JIT when it runs under emulation. `BPF_SOAK=N` multiplies the generated programs by N.

use bpf_runtime::{Arch, Caller, Config, Engine, Linker, LoadError, Mode, Raw, RunError, decode};
use bpf_testkit::{
    cases::{self, Case, Outcome},
    generate::{self, Generated, HELPER_ID, Shape},
    kernel::{self, RawProgram},
    skipped,
};
use zerocopy::IntoBytes;

/// The helper that `conformance.jsonl` knows: it returns its argument.
const IDENTITY: u32 = 5;

struct Engines {
    jit: Option<Linker<()>>,
    interpreter: Linker<()>,
}

/// Why a program has no result.
#[derive(Debug)]
enum Failure {
    Load(LoadError),
    Run(RunError),
}

impl Engines {
    fn new() -> Engines {
        let linker = |mode| {
            let mut config = Config::default();
            config.mode = mode;
            let engine = Engine::new(config).expect("an engine");
            let mut linker = Linker::without_helpers(&engine);
            linker
                .func(IDENTITY, "identity", |_: &mut Caller<'_, ()>, value: u64| value)
                .expect("a free id")
                .func(HELPER_ID, "mix", |_: &mut Caller<'_, ()>, a: u64, b: u64, c: u64, d: u64, e: u64| {
                    generate::helper([a, b, c, d, e])
                })
                .expect("a free id");
            linker
        };
        Engines { jit: Arch::HOST.map(|_| linker(Mode::Jit)), interpreter: linker(Mode::Interpreter) }
    }

    /// The engines by name.
    fn all(&self) -> impl Iterator<Item = (&'static str, &Linker<()>, bool)> {
        let jit = self.jit.iter().map(|linker| ("jit", linker, false));
        jit.chain([("interpreter", &self.interpreter, true)])
    }
}

/// Loads and runs a program on a copy of the memory, 8-byte aligned; gives r0 and the memory.
fn run(linker: &Linker<()>, interpreted: bool, code: &[u8], memory: &[u8]) -> Result<(u64, Vec<u8>), Failure> {
    let insns = decode(code).map_err(|source| Failure::Load(LoadError::Decode { program: "case".into(), source }))?;
    let program = if interpreted {
        linker.load_insns_interpreted::<Raw>("case", insns)
    } else {
        // SAFETY: the callers pass only programs of which the interpreter, which checks every access, has seen the end, or that
        // are generated to stay within their memory.
        unsafe { linker.load_insns_unverified::<Raw>("case", insns) }
    };
    let program = program.map_err(Failure::Load)?;
    let mut words = vec![0u64; memory.len().div_ceil(8)];
    let bytes = &mut words.as_mut_bytes()[..memory.len()];
    bytes.copy_from_slice(memory);
    let r0 = program.run(&mut (), bytes).map_err(Failure::Run)?;
    Ok((r0, words.as_bytes()[..memory.len()].to_vec()))
}

fn outcome(linker: &Linker<()>, interpreted: bool, case: &Case) -> Outcome {
    match run(linker, interpreted, &case.program, case.memory.as_deref().unwrap_or_default()) {
        Ok((r0, _)) => Outcome::Returned(r0),
        Err(Failure::Load(error)) => Outcome::Rejected(error.to_string()),
        Err(Failure::Run(error)) => Outcome::Stopped(error.to_string()),
    }
}

/// Runs a file of cases on every engine; all pass but those named.
fn external(file: &str, passed: usize, refused: &[&str]) {
    let path = match cases::shared(&format!("cases/{file}.jsonl")) {
        Ok(path) => path,
        Err(why) => return skipped(file, &why),
    };
    let engines = Engines::new();
    // The interpreter goes first: a case that leaves its memory is found before it runs as machine code.
    for (name, linker, interpreted) in engines.all().collect::<Vec<_>>().into_iter().rev() {
        let tally = cases::run(&path, &mut |case| outcome(linker, interpreted, case)).expect("a file of cases");
        println!("{file} on {name}: {tally}");
        assert_eq!(tally.passed, passed, "{name}");
        assert_eq!(tally.failed, refused, "{name}");
    }
}

#[test]
fn conformance() {
    // CALLX is not in the instruction set: the one program that uses it is refused.
    external("conformance", 312, &["callx"]);
}

#[test]
fn conformance_negative() {
    external("conformance_negative", 45, &[]);
}

#[test]
fn alu_and_memory() {
    external("alu_and_memory", 360, &[]);
}

fn soak(programs: u64) -> u64 {
    programs * std::env::var("BPF_SOAK").ok().and_then(|times| times.parse().ok()).unwrap_or(1)
}

/// Runs a generated program on every engine; they agree on r0 and the memory.
fn agree(engines: &Engines, generated: &Generated) -> Result<(u64, Vec<u8>), String> {
    let code = generated.program.to_bytes();
    let text = || bpf_isa::disassemble(generated.program.insns());
    let expected = run(&engines.interpreter, true, &code, &generated.memory)
        .map_err(|failure| format!("interpreter: {failure:?}\n{}", text()))?;
    if let Some(jit) = &engines.jit {
        let result =
            run(jit, false, &code, &generated.memory).map_err(|failure| format!("jit: {failure:?}\n{}", text()))?;
        if result != expected {
            return Err(format!("interpreter {expected:x?}\njit         {result:x?}\n{}", text()));
        }
    }
    Ok(expected)
}

#[test]
fn generated_programs_agree() {
    let engines = Engines::new();
    let shape = Shape { packet_loads: true, ..Shape::default() };
    for seed in 0..soak(1000) {
        if let Err(difference) = agree(&engines, &generate::from_seed(seed, &shape)) {
            panic!("seed {seed}: {difference}");
        }
    }
}

#[test]
fn large_generated_programs_agree() {
    let engines = Engines::new();
    let shape = Shape { statements: 400, memory: 1024, steps: 200_000, subprogs: 4, ..Shape::default() };
    for seed in 0..soak(40) {
        if let Err(difference) = agree(&engines, &generate::from_seed(seed, &shape)) {
            panic!("seed {seed}: {difference}");
        }
    }
}

proptest::proptest! {
    #![proptest_config(proptest::test_runner::Config {
        cases: 200, failure_persistence: None, ..proptest::test_runner::Config::default()
    })]

    #[test]
    fn generated_programs_agree_and_shrink(generated in generate::strategy(Shape::default())) {
        if let Err(difference) = agree(&Engines::new(), &generated) {
            return Err(proptest::test_runner::TestCaseError::fail(difference));
        }
    }
}

#[test]
fn the_kernel_agrees() {
    if let Err(why) = kernel::available() {
        return skipped("the_kernel_agrees", &why);
    }
    let engines = Engines::new();
    let shape = Shape::kernel();
    let (mut compared, mut refused) = (0, 0);
    for seed in 0..soak(200) {
        let generated = generate::from_seed(seed, &shape);
        let Ok(loaded) = RawProgram::load(&generated.program.to_bytes(), shape.memory) else {
            refused += 1;
            continue;
        };
        let mut memory = generated.memory.clone();
        let result = loaded.run(&mut memory, 1).expect("a test run").result;
        match agree(&engines, &generated) {
            Ok((r0, ours)) => assert_eq!((r0 as u32, ours), (result, memory), "seed {seed}"),
            Err(difference) => panic!("seed {seed}: {difference}"),
        }
        compared += 1;
    }
    // The verifier gives up on a program with too many paths now and then.
    assert!(compared > 20 * refused, "the kernel refused {refused}, compared were {compared}");
}
