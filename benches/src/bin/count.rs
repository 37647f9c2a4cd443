//! Counts the instructions that a run of each speed program executes, at both levels of optimisation and natively.
//! Neither the load of the machine nor the address of the code changes this count.
//!
//! `cargo run -p bpf-benches --bin count -- [--arm64] [NAME ..] [FILE.c ..]`
//!
//! A `FILE.c` is a program in the form of `benches/programs` that is not in that folder (yet); its memory is
//! pseudo-random. `COUNT_KEEP` names a folder in which the compiled code is kept for listings: `NAME.bpf` is the bare
//! BPF, `NAME.none` and `NAME.speed` the bare machine code, `NAME.native.o` the native code, `NAME.memory` the memory
//! of the run.
//!
//! The machine code is mapped and called from C (`count.c`) under qemu-user, which translates one instruction a block
//! and traces each block; the trace of two runs less that of one is the program's own. Hence no machine of the
//! architecture is needed, and x86-64 and arm64 are counted in one way. The native code is compiled by clang 19 at
//! -O2 for that architecture, vectors included. Needs clang-19, qemu-user, and for arm64 `aarch64-linux-gnu-gcc`
//! (`cargo xtask test --install`).
//!
//! The command fails if a result is not the native one. It names programs that execute more instructions at `speed`
//! than at `none`: a selection, for example, executes both sides of a branch that might be mispredicted.

use bpf_analysis::Facts;
use bpf_benches::{
    measure,
    programs::{ALL, Program},
    table::Table,
};
use bpf_jit::{Backend, CompileOptions, Compiler};
use bpf_jit_code::{Arch, Code, CpuFeatures, OptLevel};
use std::{
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// The tools and flags of one architecture.
struct Target {
    arch: Arch,
    clang: &'static str,
    linker: &'static str,
    emulator: &'static str,
}

const X64: Target = Target { arch: Arch::X64, clang: "x86_64-linux-gnu", linker: "clang-19", emulator: "qemu-x86_64" };

const ARM64: Target =
    Target { arch: Arch::Arm64, clang: "aarch64-linux-gnu", linker: "aarch64-linux-gnu-gcc", emulator: "qemu-aarch64" };

fn main() -> Result<()> {
    let (options, names): (Vec<String>, Vec<String>) = std::env::args().skip(1).partition(|arg| arg.starts_with('-'));
    let target = match options.as_slice() {
        [] => X64,
        [only] if only == "--arm64" => ARM64,
        _ => return Err("count [--arm64] [NAME ..] [FILE.c ..]".into()),
    };
    let folder = std::env::temp_dir().join(format!("bpf-count-{}", std::process::id()));
    fs::create_dir_all(&folder)?;
    let counted = count(&target, &names, &folder);
    fs::remove_dir_all(&folder)?;
    counted
}

/// A program under test: a speed program, or a file in the form of one.
struct Case {
    name: String,
    source: PathBuf,
    code: Vec<u8>,
    memory: Vec<u8>,
    /// The native result; `None` if it is known only by running the native code under emulation.
    expected: Option<u32>,
}

impl Case {
    fn of(program: &Program) -> Case {
        let source = programs_folder().join(program.name).with_extension("c");
        let mut memory = program.memory();
        let before = memory.bytes().to_vec();
        let expected = Some(program.run_native(memory.bytes()));
        Case { name: program.name.into(), source, code: program.code(), memory: before, expected }
    }

    fn of_file(source: PathBuf, folder: &Path) -> Result<Case> {
        let name = source.file_stem().and_then(|stem| stem.to_str()).ok_or("a file is NAME.c")?.to_owned();
        let object = folder.join(&name).with_extension("o");
        clang(&["-target", "bpf", "-mcpu=v3"], &source, &object)?;
        let code = bpf_testkit::elf::section(&fs::read(object)?, "bench")?;
        let noise = Program::named("walk").ok_or("walk has noise")?.memory().bytes().to_vec();
        Ok(Case { name, source, code, memory: noise, expected: None })
    }
}

fn programs_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("programs")
}

fn clang(target: &[&str], source: &Path, to: &Path) -> Result<()> {
    let folder = programs_folder();
    run(Command::new("clang-19").args(["-O2", "-c"]).args(target).arg("-I").arg(folder).arg(source).arg("-o").arg(to))
}

fn count(target: &Target, names: &[String], folder: &Path) -> Result<()> {
    let keep = std::env::var_os("COUNT_KEEP").map(PathBuf::from);
    let heading = ["instructions", "none", "speed", "native", "x native", "bytes"];
    let mut table = Table::new(heading.map(String::from));
    let (mut ratios, mut slower) = (Vec::new(), Vec::new());
    let harness = folder.join("harness");
    let main = Path::new(env!("CARGO_MANIFEST_DIR")).join("count.c");
    link(target, std::slice::from_ref(&main), None, &harness)?;
    // `empty` is left out: its count is that of the call itself.
    let asked = |p: &&Program| p.name != "empty" && (names.is_empty() || names.contains(&p.name.into()));
    let mut cases: Vec<Case> = ALL.iter().filter(asked).map(Case::of).collect();
    for file in names.iter().filter(|name| name.ends_with(".c")) {
        cases.push(Case::of_file(file.into(), folder)?);
    }
    for case in cases {
        let memory = folder.join("memory");
        fs::write(&memory, &case.memory)?;
        let [object, native] = ["native.o", "native"].map(|name| folder.join(name));
        clang(&["-target", target.clang], &case.source, &object)?;
        link(target, &[main.clone(), object.clone()], Some(&case.name), &native)?;
        let (natively, result) = executed(target, &native, &memory, &memory, case.expected)?;
        let mut ours = [0; 2];
        let mut codes = [OptLevel::None, OptLevel::Speed].map(|level| (level, Vec::new()));
        for ((level, code), executed_at) in codes.iter_mut().zip(&mut ours) {
            *code = compile(target.arch, &case.code, *level)?.bytes;
            let file = folder.join("code");
            fs::write(&file, &code)?;
            (*executed_at, _) = executed(target, &harness, &memory, &file, Some(result))
                .map_err(|why| format!("{} at {level:?}: {why}", case.name))?;
        }
        if let Some(keep) = &keep {
            let kept = |kind: &str| keep.join(format!("{}.{kind}", case.name));
            fs::write(kept("bpf"), &case.code)?;
            for (level, code) in &codes {
                fs::write(kept(if *level == OptLevel::None { "none" } else { "speed" }), code)?;
            }
            fs::copy(&object, kept("native.o"))?;
            fs::write(kept("memory"), &case.memory)?;
        }
        let [none, speed] = ours;
        #[expect(clippy::cast_precision_loss, reason = "a ratio")]
        let ratio = speed as f64 / natively as f64;
        ratios.push(ratio);
        let figures = [none, speed, natively].map(|n| n.to_string());
        let cells = std::iter::once(case.name.clone()).chain(figures);
        table.row(cells.chain([format!("{ratio:.2}"), codes[1].1.len().to_string()]));
        if speed > none {
            slower.push(case.name);
        }
    }
    println!("{table}\ngeometric mean: {:.3}", measure::geometric_mean(ratios.iter().copied()));
    if !slower.is_empty() {
        println!("more at speed than at none: {}", slower.join(", "));
    }
    Ok(())
}

fn compile(arch: Arch, program: &[u8], level: OptLevel) -> Result<Code> {
    match arch {
        Arch::X64 => compile_with(bpf_jit_x64::X64::default(), arch, program, level),
        Arch::Arm64 => compile_with(bpf_jit_arm64::Arm64::default(), arch, program, level),
    }
}

/// Compiles as the other benchmarks do: unverified, with neither a budget nor interruption.
fn compile_with(backend: impl Backend, arch: Arch, program: &[u8], opt_level: OptLevel) -> Result<Code> {
    let program = bpf_isa::Program::from_bytes(program)?;
    let facts = Facts { insns: vec![Default::default(); program.insns().len()], ..Facts::default() };
    let mut options = CompileOptions { opt_level, ..CompileOptions::default() };
    options.emit.features = CpuFeatures::ALL;
    let mut code = Code::new(arch);
    Compiler::new(backend).compile(&program, &facts, &(), &options, &mut code).map_err(|e| e.to_string())?;
    if code.relocs.is_empty() { Ok(code) } else { Err("it needs symbols, and nobody resolves them".into()) }
}

fn link(target: &Target, files: &[PathBuf], native: Option<&str>, to: &Path) -> Result<()> {
    let mut command = Command::new(target.linker);
    command.args(["-O1", "-static"]).args(files).arg("-o").arg(to);
    if let Some(name) = native {
        command.arg(format!("-DNATIVE=bench_{name}"));
    }
    run(&mut command)
}

fn run(command: &mut Command) -> Result<()> {
    let status = command.status().map_err(|why| format!("{}: {why}", command.get_program().display()))?;
    if status.success() { Ok(()) } else { Err(format!("{command:?}: {status}").into()) }
}

/// Returns the number of instructions of one run, and its result, which is compared with `expected`.
fn executed(target: &Target, program: &Path, memory: &Path, code: &Path, expected: Option<u32>) -> Result<(u64, u32)> {
    let traced = |runs: &str| -> Result<(u64, u32)> {
        let mut command = Command::new(target.emulator);
        command.args(["-cpu", "max", "-one-insn-per-tb", "-d", "exec,nochain", "-D", "/dev/stdout"]);
        command.arg(program).arg(memory).arg(runs).arg(code).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|why| format!("{}: {why}", target.emulator))?;
        let (mut lines, mut result) = (0, None);
        for line in child.stdout.take().map(BufReader::new).into_iter().flat_map(BufRead::lines) {
            let line = line?;
            lines += u64::from(line.starts_with("Trace"));
            // The program's output may be in the middle of a line of the trace.
            result = line.split_once("result ").map_or(result, |(_, value)| value.trim().parse::<u32>().ok());
        }
        match result {
            Some(result) if child.wait()?.success() && expected.is_none_or(|expected| expected == result) => {
                Ok((lines, result))
            }
            Some(_) | None => Err(format!("the result is {result:?}, natively {expected:?}").into()),
        }
    };
    let ((twice, result), (once, _)) = (traced("2")?, traced("1")?);
    Ok((twice - once, result))
}
