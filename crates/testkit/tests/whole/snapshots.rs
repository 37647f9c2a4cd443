//! Snapshots of the code that both backends emit (`tests/codegen`, blessed by `cargo xtask bless`), on any host; and
//! every snapshot input run on this host's engines, because a snapshot shows shape, never correctness.
//!
//! Code is compiled with every CPU feature there is, so that it does not depend on the host, except in the folder
//! `baseline`: with none. In the folder `direct` tail calls are direct sites. Only in the folder `optimised` all passes
//! run: elsewhere each instruction's own code is to be seen.

use bpf_isa::{Imm64, Insn, Reg};
use bpf_jit::{CompileOptions, EmitOptions, Extern, LowerOptions};
use bpf_jit_code::{CpuFeatures, Symbol};
use bpf_runtime::{
    Config, Engine, Linker, Mode, Raw,
    code::{Arch, ListingOptions, compile_listing},
    host::helper_name,
};
use bpf_testkit::snapshot::{self, Compiled, Input};
use std::path::{Path, PathBuf};
use zerocopy::IntoBytes;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/codegen")
}

fn compile(input: &Input, arch: Arch) -> Result<Compiled, String> {
    let within = |name: &str| input.path.parent().is_some_and(|folder| folder.ends_with(name));
    let features = if within("baseline") { CpuFeatures::BASELINE } else { CpuFeatures::ALL };
    let direct_tail_calls = within("direct");
    let options = ListingOptions {
        compile: CompileOptions {
            plain: !within("optimised"),
            lower: LowerOptions { raw_context: true, direct_tail_calls, ..LowerOptions::default() },
            emit: EmitOptions { features, ..EmitOptions::default() },
            ..CompileOptions::default()
        },
    };
    let (_, code) = compile_listing(arch, "snapshot", input.program.insns().to_vec(), Vec::new(), &options)
        .map_err(|error| error.to_string())?;
    Ok(Compiled { code, name: Box::new(name) })
}

fn name(symbol: Symbol) -> String {
    let Some(known) = Extern::from_symbol(symbol) else { return format!("symbol_{}", symbol.index) };
    match known {
        Extern::Helper(id) => helper_name(id).unwrap_or_else(|| format!("helper_{id}")),
        Extern::Host(index) => format!("host_{index}"),
        Extern::Map(index) => format!("map_{index}"),
        Extern::Imm64(at) => format!("value_{at}"),
        Extern::HelperEnv(id) => format!("helper_{id}_env"),
        Extern::HostEnv(index) => format!("host_{index}_env"),
        Extern::ArrayBase(index) => format!("map_{index}_values"),
        Extern::MapLookup(index) => format!("map_{index}_lookup"),
        Extern::Counters(_) => "counters".to_owned(),
        Extern::Sink(_) => "sink".to_owned(),
        Extern::Spent(_) => "spent".to_owned(),
    }
}

#[test]
fn emitted_code_is_as_blessed() {
    if let Err(error) = snapshot::check(&folder(), &mut compile) {
        panic!("{error}");
    }
}

#[test]
fn a_direct_tail_call_reads_nothing_of_its_table() {
    let inputs = snapshot::programs(&folder().join("direct")).unwrap_or_else(|error| panic!("{error}"));
    for (input, arch) in inputs.iter().flat_map(|input| [(input, Arch::X64), (input, Arch::Arm64)]) {
        let Compiled { code, name } = compile(input, arch).unwrap();
        assert!(code.tail_calls.iter().all(|site| site.target != bpf_jit_code::TailTarget::Indirect));
        let lines = bpf_testkit::disasm::lines(&code, &name).unwrap();
        // The table's address is not in the code, so there is nothing to read the table by.
        let reading: Vec<_> = lines.iter().filter(|line| line.text.contains("map_")).collect();
        assert!(reading.is_empty(), "{}, {arch:?}: {reading:?}", input.path.display());
    }
}

/// The program, with numbers in r1 and r2 unless it needs the memory there: an address would make the result depend on
/// it.
fn runnable(input: &Input) -> Vec<Insn> {
    let uses_memory = |insn: &Insn| match *insn {
        Insn::Load { base, .. }
        | Insn::Store { base, .. }
        | Insn::Atomic { base, .. }
        | Insn::LoadAcquire { base, .. }
        | Insn::StoreRelease { base, .. } => base != Reg::R10,
        Insn::LoadAbs { .. } | Insn::LoadInd { .. } => true,
        Insn::Alu { .. }
        | Insn::Mov { .. }
        | Insn::MovSx { .. }
        | Insn::Cast { .. }
        | Insn::Neg { .. }
        | Insn::End { .. }
        | Insn::LoadImm64 { .. }
        | Insn::SecondSlot
        | Insn::Jump { .. }
        | Insn::JumpReg { .. }
        | Insn::JumpIf { .. }
        | Insn::MayGoto { .. }
        | Insn::Call(_)
        | Insn::Exit => false,
    };
    let mut insns = Vec::new();
    if !input.program.insns().iter().any(uses_memory) {
        for (dst, value) in [(Reg::R1, 0xfedc_ba98_7654_3210), (Reg::R2, 0x8000_0000_0000_0021)] {
            insns.extend([Insn::LoadImm64 { dst, imm: Imm64::Const(value) }, Insn::SecondSlot]);
        }
    }
    insns.extend(input.program.insns());
    insns
}

/// Runs on 512 bytes of memory; gives r0 and the memory, or why there is none.
fn run(mode: Mode, insns: Vec<Insn>) -> Result<(u64, Vec<u64>), String> {
    let config = Config::new().mode(mode);
    let linker = Linker::<()>::new(&Engine::new(config).map_err(|e| e.to_string())?);
    let program = match mode {
        // SAFETY: the caller has seen the program end on the interpreter, which checks every access.
        Mode::Jit => unsafe { linker.loader::<Raw>().unverified(true) }.insns("snapshot", insns),
        _ => linker.loader::<Raw>().interpreted(true).insns("snapshot", insns),
    };
    let mut memory: Vec<u64> = (0..64u64).map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect();
    let r0 = program.map_err(|e| e.to_string())?.run(&mut (), memory.as_mut_bytes()).map_err(|e| e.to_string())?;
    Ok((r0, memory))
}

#[test]
fn the_inputs_run_the_same_on_every_engine() {
    if Arch::HOST.is_none() {
        return bpf_testkit::skipped("the_inputs_run_the_same_on_every_engine", &"no JIT for this host");
    }
    let inputs = snapshot::programs(&folder()).unwrap_or_else(|error| panic!("{error}"));
    let mut compared = 0;
    for input in &inputs {
        // Inputs that show far offsets or need a map do not run; there are few.
        match run(Mode::Interpreter, runnable(input)) {
            Ok(expected) => {
                assert_eq!(run(Mode::Jit, runnable(input)), Ok(expected), "{}", input.path.display());
                compared += 1;
            }
            Err(why) => println!("{}: {why}", input.path.display()),
        }
    }
    assert!(compared + 7 >= inputs.len(), "only {compared} of {} inputs ran", inputs.len());
}
