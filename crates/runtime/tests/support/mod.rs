//! Engines in every variant, and the one function that runs a program on one.
//!
//! A variant is a way to make code: another register allocation, other CPU features, hardening, checks. None may change
//! a result.
#![allow(dead_code, reason = "each test file uses a part of it")]

pub(crate) mod ways;

use bpf_jit::{AllocOptions, Backend, EmitOptions, HostReg, HostRegSet, MachineDesc, OptLevel};
use bpf_runtime::{
    Caller, Config, Engine, Linker, LoadError, Mode, Program, Raw, RunError,
    code::{Arch, CpuFeatures, Hardening},
    isa::{Insn, assemble},
};
use bpf_testkit::generate::{self, HELPER_ID};
use zerocopy::IntoBytes;

/// The helper that `conformance.jsonl` knows: it returns its argument.
const IDENTITY: u32 = 5;

/// An engine, and how programs are loaded on it.
pub(crate) struct Variant {
    pub(crate) name: String,
    pub(crate) engine: Engine,
    pub(crate) linker: Linker<()>,
}

/// Why a program has no result.
#[derive(Debug)]
pub(crate) enum Failure {
    Load(LoadError),
    Run(RunError),
}

/// r0, and what became of the memory.
pub(crate) type Outcome = Result<(u64, Vec<u8>), Failure>;

impl Variant {
    pub(crate) fn new(name: impl Into<String>, configure: impl FnOnce(Config) -> Config) -> Variant {
        let config = configure(Config::new());
        let engine = Engine::new(config).expect("an engine");
        let mut linker = Linker::new(&engine);
        linker.remove_helper(5);
        linker
            .func(IDENTITY, "identity", |_: &mut Caller<'_, ()>, value: u64| value)
            .expect("a free id")
            .func(HELPER_ID, "mix", |_: &mut Caller<'_, ()>, a: u64, b: u64, c: u64, d: u64, e: u64| {
                generate::helper([a, b, c, d, e])
            })
            .expect("a free id");
        Variant { name: name.into(), engine, linker }
    }

    /// Loads a program without verifying it. As machine code only what is known to stay inside its memory: the
    /// interpreter, which checks every access, goes first in every test.
    pub(crate) fn load(&self, insns: &[Insn]) -> Result<Program<Raw, ()>, LoadError> {
        // SAFETY: the tests' programs stay inside their memory and end, as the interpreter has shown.
        let loader = unsafe { self.linker.loader::<Raw>().unverified(true) };
        loader.insns("test", insns.to_vec())
    }

    /// Loads and runs a program on a copy of the memory.
    pub(crate) fn run(&self, insns: &[Insn], memory: &[u8]) -> Outcome {
        run(&self.load(insns).map_err(Failure::Load)?, memory)
    }
}

/// Runs a program on a copy of the memory, 8-byte aligned.
pub(crate) fn run(program: &Program<Raw, ()>, memory: &[u8]) -> Outcome {
    let mut words = vec![0u64; memory.len().div_ceil(8)];
    let bytes = &mut words.as_mut_bytes()[..memory.len()];
    bytes.copy_from_slice(memory);
    let r0 = program.run(&mut (), bytes).map_err(Failure::Run)?;
    Ok((r0, words.as_bytes()[..memory.len()].to_vec()))
}

pub(crate) fn interpreter() -> Variant {
    Variant::new("interpreter", |config| config.mode(Mode::Interpreter))
}

/// The JIT as it is in production; `None` on a host without one.
pub(crate) fn jit() -> Option<Variant> {
    Arch::HOST.map(|_| Variant::new("jit", |config| config.mode(Mode::Jit)))
}

/// The machine code is made for.
pub(crate) fn machine() -> &'static MachineDesc {
    #[cfg(target_arch = "aarch64")]
    let backend = bpf_jit_arm64::Arm64::default();
    #[cfg(not(target_arch = "aarch64"))]
    let backend = bpf_jit_x64::X64::default();
    backend.machine(&EmitOptions::default())
}

fn only(regs: &[HostReg]) -> AllocOptions {
    AllocOptions { only: Some(HostRegSet::of(regs)), seed: None }
}

/// The JIT under allocations it would never choose: three registers of different kinds, none at all, at random.
pub(crate) fn allocations(seeds: u64) -> Vec<Variant> {
    if Arch::HOST.is_none() {
        return Vec::new();
    }
    let machine = machine();
    let (args, saved) = (machine.args, machine.callee_saved);
    let fixed = [
        ("every value in a slot", only(&[])),
        ("three argument registers", only(&args[..3])),
        ("three callee-saved registers", only(&saved[..3])),
        ("result, second argument, hidden argument", only(&[machine.ret, args[1], machine.ctx])),
        ("the last argument registers and a callee-saved one", only(&[args[3], args[4], saved[0]])),
    ];
    let random = (1..=seeds).map(|seed| (format!("seed {seed}"), AllocOptions { only: None, seed: Some(seed) }));
    let few = (1..=seeds).map(|seed| {
        let some = HostRegSet::of(&[args[0], args[2], machine.ret, saved[1], saved[2]]);
        (format!("seed {seed}, five registers"), AllocOptions { only: Some(some), seed: Some(seed) })
    });
    let fixed = fixed.into_iter().map(|(name, options)| (name.to_owned(), options));
    fixed.chain(random).chain(few).map(|(name, options)| Variant::new(name, |config| config.alloc(options))).collect()
}

/// The JIT with other options than in production: none changes a result.
pub(crate) fn options() -> Vec<Variant> {
    if Arch::HOST.is_none() {
        return Vec::new();
    }
    let all = Hardening::new()
        .retpolines(true)
        .landing_pads(true)
        .return_signing(true)
        .straight_line(true)
        .blind_constants(false);
    vec![
        Variant::new("without optimisation", |c| c.opt_level(OptLevel::None)),
        Variant::new("without optimisation, no optional CPU feature", |c| {
            c.opt_level(OptLevel::None).features(CpuFeatures::BASELINE)
        }),
        Variant::new("without optimisation, hardened, with all checks", |c| {
            c.opt_level(OptLevel::None).hardening(|_| all).budget(u64::MAX / 4).interruptible(true)
        }),
        Variant::new("without optimisation, every value in a slot", |c| c.opt_level(OptLevel::None).alloc(only(&[]))),
        Variant::new("no optional CPU feature", |c| c.features(CpuFeatures::BASELINE)),
        Variant::new("hardened", |c| c.hardening(|_| all)),
        Variant::new("saving all registers", |c| c.save_all(true)),
        Variant::new("with budget and interruption", |c| c.budget(u64::MAX / 4).interruptible(true)),
        Variant::new("all checks, hardened, slots", |c| {
            c.budget(u64::MAX / 4).interruptible(true).hardening(|_| all).alloc(only(&[]))
        }),
    ]
}

/// How many times as much a soak (`BPF_SOAK=N`) does; a quarter where code is usually emulated.
pub(crate) fn soak(count: u64) -> u64 {
    let count = if cfg!(target_arch = "aarch64") { count.div_ceil(4) } else { count };
    count * std::env::var("BPF_SOAK").ok().and_then(|times| times.parse().ok()).unwrap_or(1)
}

/// Instructions from text, with `;` between them.
pub(crate) fn program(text: &str) -> Vec<Insn> {
    assemble(&text.replace(';', "\n")).unwrap_or_else(|error| panic!("{error} in\n{text}"))
}
