//! `emit x64|arm64 none|speed BYTECODE CODE [lir]`: the instructions of one file, eight bytes a slot, to the bare
//! machine code in another, which can be run in a page of its own and its instructions counted (docs/optimiser.md);
//! `lir` prints what was emitted.
//!
//! Compiled as the speed programs are: unverified, without budget or interruption, for the widest set of features.

use bpf_analysis::Facts;
use bpf_isa::Program;
use bpf_jit::{Backend, CompileOptions, Compiler};
use bpf_jit_code::{Arch, Code, CpuFeatures, OptLevel};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [arch, level, from, to, rest @ ..] = args.as_slice() else {
        return Err("emit x64|arm64 none|speed BYTECODE CODE [lir]".into());
    };
    let program = Program::from_bytes(&std::fs::read(from)?)?;
    let lir = rest.first().is_some_and(|word| word == "lir");
    let opt_level = if level == "none" { OptLevel::None } else { OptLevel::Speed };
    let code = match arch.as_str() {
        "x64" => compile(bpf_jit_x64::X64::default(), Arch::X64, &program, opt_level, lir),
        "arm64" => compile(bpf_jit_arm64::Arm64::default(), Arch::Arm64, &program, opt_level, lir),
        other => Err(format!("{other}: x64 or arm64")),
    }?;
    if !code.relocs.is_empty() {
        return Err("it needs symbols, and there is nobody to resolve them".into());
    }
    Ok(std::fs::write(to, &code.bytes)?)
}

fn compile(
    backend: impl Backend,
    arch: Arch,
    program: &Program,
    opt_level: OptLevel,
    lir: bool,
) -> Result<Code, String> {
    let facts = Facts { insns: vec![Default::default(); program.insns().len()], ..Facts::default() };
    let mut options = CompileOptions { opt_level, ..CompileOptions::default() };
    options.emit.features = CpuFeatures::ALL;
    let mut code = Code::new(arch);
    let mut compiler = Compiler::new(backend);
    compiler.compile(program, &facts, &(), &options, &mut code).map_err(|e| e.to_string())?;
    if lir {
        println!("{}", compiler.lir());
    }
    Ok(code)
}
