//! The bodies of the fuzz targets.
//!
//! A target in `fuzz/` is one call of a function here; the same functions run for a moment in `cargo test`, on seeds,
//! so that a target never rots and a finding becomes a test by adding its bytes. A finding is a panic. They need the
//! engines, and are behind the feature `engines` so that the crates below the runtime can use the rest of this crate
//! without building it.

mod dispatcher;
mod loops;
mod maps;
mod operations;
mod sides;

pub use dispatcher::dispatcher;
pub use loops::loops;
pub use maps::maps;
pub use operations::operations;
pub use sides::sides;

use crate::generate::{self, Choices, Generated, HELPER_ID, Shape};
use bpf_analysis::{CallArity, Facts};
use bpf_disasm::lines;
use bpf_isa::{Callee, Insn, Program, assemble, decode, disassemble, encode};
use bpf_jit::{
    AllocOptions, Backend, CompileOptions, Compiler, EmitOptions, Hidden, Lir, LowerOptions, Lowerer, OptLevel, Pass,
    PassOptions, PassScratch, PassSet, Signatures,
};
use bpf_jit_arm64::Arm64;
use bpf_jit_code::{Arch, Code, CpuFeatures, Hardening};
use bpf_jit_x64::X64;
use bpf_object::{HostTypes, Object};
use bpf_runtime::{Caller, Config, Engine, Linker, Mode, Raw};

/// Bytes as instructions: decoding is total, encoding and the text are its inverses, validation does not panic.
pub fn instructions(data: &[u8]) {
    for bytes in [data, &generate::wild(&mut Choices::from_bytes(data))] {
        let Ok(insns) = decode(bytes) else { continue };
        let encoded = encode(&insns).expect("what decodes can be encoded");
        assert_eq!(encoded, bytes, "encode is not the inverse of decode");
        let text = disassemble(&insns).to_string();
        assert_eq!(assemble(&text).as_deref(), Ok(insns.as_slice()), "assemble does not read back\n{text}");
        if let Ok(program) = Program::new(insns.clone()) {
            assert_eq!(program.insns(), insns);
        }
    }
}

/// Bytes as the text of an intermediate form, and the text of a generated program with bytes changed: reading is total,
/// what is read and printed reads the same, and passes keep well formed what is.
pub fn lir(data: &[u8]) {
    let mut choices = Choices::from_bytes(data);
    let generated = generate::generate(&mut choices, &Shape { statements: 6, ..Shape::default() });
    let mut lowered = Lir::default();
    let options = LowerOptions::default();
    Lowerer::default().lower(&generated.program, &Facts::default(), &(), &options, &mut lowered);
    assert_eq!(lowered.verify(), Ok(()), "{lowered}");
    let mut damaged = lowered.to_string().into_bytes();
    for change in data.chunks_exact(4).take(8) {
        let at = u32::from_le_bytes([change[0], change[1], change[2], 0]) as usize % damaged.len();
        damaged[at] = change[3] & 0x7f;
    }
    for bytes in [data, &damaged] {
        let Ok(mut lir) = String::from_utf8_lossy(bytes).parse::<Lir>() else { continue };
        let text = lir.to_string();
        let again: Lir = text.parse().expect("what is printed can be read");
        assert_eq!(again.to_string(), text);
        // The checker's memory is values times blocks.
        if lir.funcs.iter().any(|func| func.vregs > 4096) || lir.verify().is_err() {
            continue;
        }
        for pass in Pass::ALL {
            lir.funcs.iter_mut().for_each(|func| {
                pass.run(func, PassOptions::default(), &mut PassScratch::default());
            });
            assert_eq!(lir.verify(), Ok(()), "after {}\n{text}", pass.name());
        }
    }
}

/// Bytes as an object file: an error or an object, of which everything can be asked.
pub fn object(data: &[u8]) {
    let Ok(object) = Object::parse(data) else { return };
    for program in object.programs() {
        // An error is fine; so is a stream that is no valid program.
        if let Ok(code) = object.code(program)
            && let Ok(valid) = Program::new(code.insns().to_vec())
        {
            assert_eq!(valid.insns(), code.insns());
        }
        drop(object.link(program, |_| true));
    }
    // Its own types are those of the host, too.
    let mut other = object.clone();
    if other.target_btf(data).is_ok() {
        for program in other.programs() {
            drop(other.link_for(program, &HostTypes::new(&[]), |_| true));
        }
    }
}

/// A program at the border of the verifier's rules: an accepted program runs as promised, on all engines.
#[cfg(feature = "oracle")]
pub fn soundness(data: &[u8]) {
    thread_local!(static ORACLE: std::cell::RefCell<crate::soundness::Oracle> = std::cell::RefCell::default());
    let mut choices = Choices::from_bytes(data);
    let generated = crate::soundness::generate(&mut choices);
    let outcome = ORACLE.with_borrow_mut(|oracle| oracle.check(&generated, 2, &mut choices));
    if let crate::soundness::Outcome::Violation(what) = outcome {
        panic!("{what}");
    }
}

/// A damaged, unverified program stays in its objects if it is contained.
#[cfg(feature = "oracle")]
pub fn contained(data: &[u8]) {
    use crate::soundness::Sabotage;
    thread_local!(static SABOTAGE: std::cell::RefCell<Sabotage> = std::cell::RefCell::default());
    if Arch::HOST.is_none() {
        return;
    }
    let outcome = SABOTAGE.with_borrow_mut(|sabotage| sabotage.check(2, &mut Choices::from_bytes(data)));
    if let Err(what) = outcome {
        panic!("{what}");
    }
}

/// A generated program on the interpreter and as machine code, under an allocation and options that the data choose.
pub fn engines(data: &[u8]) {
    let mut choices = Choices::from_bytes(data);
    let options = Options::choose(&mut choices);
    let generated = generate::generate(&mut choices, &Shape { packet_loads: true, ..Shape::default() });
    let expected = run(Mode::Interpreter, &options, &generated);
    if Arch::HOST.is_some() {
        let result = run(Mode::Jit, &options, &generated);
        assert_eq!(result, expected, "{options:?}\n{}", disassemble(generated.program.insns()));
    }
}

/// A generated or a damaged program with any of the optimiser's passes left out, against the interpreter: the result,
/// the memory, and where and why it stops. Damaged programs are checked as they run.
pub fn optimise(data: &[u8]) {
    let mut choices = Choices::from_bytes(data);
    let mut options = Options::choose(&mut choices);
    options.opt_level = OptLevel::Speed;
    options.skip = if choices.one_in(2) { PassSet::from_bits(choices.imm() as u16) } else { PassSet::default() };
    let kind = choices.below(3);
    let damaged = kind == 2;
    let budget = if choices.one_in(2) { 1 + u64::from(choices.below(199)) } else { 20_000 };
    let (insns, memory) = if damaged {
        let Ok(program) = Program::from_bytes(&generate::wild(&mut choices)) else { return };
        // Other helpers have results that the engines cannot agree on.
        let known = |insn: &Insn| !matches!(insn, Insn::Call(Callee::Helper(id)) if *id != HELPER_ID);
        if !program.insns().iter().all(known) {
            return;
        }
        (program.insns().to_vec(), vec![7; 64])
    } else if kind == 1 {
        let insns = match choices.below(5) {
            0 | 1 => generate::pressure(&mut choices),
            2 | 3 => generate::aliases(&mut choices),
            _ => generate::steps(&mut choices),
        };
        (insns, (0..64).map(|_| choices.byte()).collect())
    } else {
        let generated = generate::generate(&mut choices, &Shape { packet_loads: true, ..Shape::default() });
        (generated.program.insns().to_vec(), generated.memory)
    };
    let outcome = |mode| {
        let mut config = options.config(mode);
        config = config.budget(budget).interruptible(options.checks);
        let linker = mixing_linker(config);
        let loader = linker.loader::<Raw>();
        // SAFETY: generated programs stay inside their memory and end.
        let loader = if damaged { loader.hybrid(true) } else { unsafe { loader.unverified(true) } };
        let program = loader.insns("generated", insns.clone()).ok()?;
        let mut words = words(&memory);
        let result = program.run(&mut (), zerocopy::IntoBytes::as_mut_bytes(words.as_mut_slice()));
        Some((result.map_err(|error| error.to_string()), words))
    };
    let expected = outcome(Mode::Interpreter);
    if Arch::HOST.is_some() {
        assert_eq!(outcome(Mode::Jit), expected, "{options:?}, budget {budget}\n{}", disassemble(&insns));
    }
}

fn run(mode: Mode, options: &Options, generated: &Generated) -> (u64, Vec<u64>) {
    let mut config = options.config(mode);
    config = config.budget(options.checks.then_some(u64::MAX / 4)).interruptible(options.checks);
    let linker = mixing_linker(config);
    // SAFETY: generated programs stay inside their memory and end.
    let loader = unsafe { linker.loader::<Raw>().unverified(true) };
    let program = loader.insns("generated", generated.program.insns().to_vec()).expect("a valid program loads");
    let mut words = words(&generated.memory);
    let r0 = program.run(&mut (), zerocopy::IntoBytes::as_mut_bytes(words.as_mut_slice())).expect("it ends");
    (r0, words)
}

/// A linker that knows the helper of generated programs.
fn mixing_linker(config: Config) -> Linker<()> {
    let mut linker = Linker::new(&Engine::new(config).expect("an engine"));
    let mix = |_: &mut Caller<'_, ()>, a: u64, b: u64, c: u64, d: u64, e: u64| generate::helper([a, b, c, d, e]);
    linker.func(HELPER_ID, "mix", mix).expect("a free id");
    linker
}

/// Memory for a run: a multiple of 8 bytes long, and u64 gives it the alignment that atomics need.
fn words(memory: &[u8]) -> Vec<u64> {
    memory.chunks(8).map(|bytes| bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte))).collect()
}

/// A generated or a damaged program emitted for both architectures, on any host: all of it decodes, every branch goes
/// to an instruction, and the size is within the stated bound.
pub fn emission(data: &[u8]) {
    let mut choices = Choices::from_bytes(data);
    let options = Options::choose(&mut choices);
    let program = if choices.one_in(2) {
        match Program::from_bytes(&generate::wild(&mut choices)) {
            Ok(program) => program,
            Err(_) => return,
        }
    } else {
        generate::generate(&mut choices, &Shape { packet_loads: true, ..Shape::default() }).program
    };
    emit::<X64>(&program, &options, Arch::X64, bpf_jit_x64::program_size_bound);
    emit::<Arm64>(&program, &options, Arch::Arm64, bpf_jit_arm64::program_size_bound);
}

fn emit<B: Backend + Default>(program: &Program, options: &Options, arch: Arch, bound: fn(&Lir) -> usize) {
    let mut compiler = Compiler::<B>::default();
    let mut code = Code::new(arch);
    let compiled = compiler.compile(program, &Facts::default(), &Unknown, &options.compile(), &mut code);
    if let Err(error) = compiled {
        panic!("{arch:?}, {options:?}: {error}\n{}", disassemble(program.insns()));
    }
    if options.opt_level == OptLevel::Speed {
        let bound = bound(compiler.lir());
        assert!(code.bytes.len() <= bound, "{arch:?}: {} bytes, the bound is {bound}", code.bytes.len());
    }
    if let Err(error) = lines(&code, &|symbol| format!("{symbol:?}")) {
        panic!("{arch:?}, {options:?}: {error}\n{}", disassemble(program.insns()));
    }
}

/// Options of a compilation.
#[derive(Clone, Copy, Debug)]
struct Options {
    opt_level: OptLevel,
    skip: PassSet,
    alloc: AllocOptions,
    features: CpuFeatures,
    hardening: Hardening,
    save_all: bool,
    checks: bool,
}

impl Options {
    fn choose(choices: &mut Choices<'_>) -> Options {
        let seed = choices.one_in(2).then(|| choices.value());
        Options {
            opt_level: if choices.one_in(3) { OptLevel::None } else { OptLevel::Speed },
            skip: PassSet::default(),
            alloc: AllocOptions { seed, ..AllocOptions::default() },
            features: if choices.one_in(2) { CpuFeatures::BASELINE } else { CpuFeatures::host() },
            hardening: Hardening::new()
                .retpolines(choices.one_in(2))
                .landing_pads(choices.one_in(2))
                .return_signing(choices.one_in(2))
                .straight_line(choices.one_in(2))
                .blind_constants(choices.one_in(4)),
            save_all: choices.one_in(4),
            checks: choices.one_in(4),
        }
    }

    fn config(&self, mode: Mode) -> Config {
        Config::new()
            .mode(mode)
            .opt_level(self.opt_level)
            .skip_passes(self.skip)
            .alloc(self.alloc)
            .features(self.features)
            .hardening(|_| self.hardening)
            .save_all(self.save_all)
    }

    fn compile(&self) -> CompileOptions {
        let Options { opt_level, skip, alloc, features, hardening, save_all, checks } = *self;
        CompileOptions {
            opt_level,
            plain: false,
            skip,
            lower: LowerOptions { budget: checks, interrupt: checks, ..LowerOptions::default() },
            alloc,
            emit: EmitOptions { features, hardening, save_all, ..EmitOptions::default() },
        }
    }
}

/// Functions of which nothing is known.
struct Unknown;

impl CallArity for Unknown {
    fn helper(&self, _: u32) -> u8 {
        5
    }
    fn host(&self, _: i32) -> u8 {
        5
    }
}

impl Signatures for Unknown {
    fn helper_hidden(&self, _: u32) -> Hidden {
        Hidden::Env
    }
    fn host_hidden(&self, _: i32) -> Hidden {
        Hidden::Env
    }
}
