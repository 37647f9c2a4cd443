//! The time of each step of a load alone, on the same programs, and of a whole load through the runtime.
//!
//! Every step reuses its scratch memory, as in the runtime. A step that is timed alone has warmer caches than in a
//! load, hence a load takes a little more than the sum of its steps.

use crate::loading::each;
use bpf_analysis::{CallArity, Facts};
use bpf_benches::measure::interleaved;
use bpf_benches::straight;
use bpf_benches::table::{Table, figure};
use bpf_isa::Program;
use bpf_jit::{
    Alloc, AllocOptions, Allocator, Backend, CompileOptions, Compiler, EmitOptions, Hidden, Lir, LowerOptions, Lowerer,
    OptLevel, PassOptions, PassScratch, Signatures, optimise,
};
use bpf_jit_code::{Arch, Code};
use bpf_prog_pack::{Options, Packs};
use bpf_quiesce::Domain;
use bpf_runtime::{Config, Engine, Linker, Raw};
use std::hint::black_box;

#[cfg(target_arch = "aarch64")]
type Host = bpf_jit_arm64::Arm64;
#[cfg(not(target_arch = "aarch64"))]
type Host = bpf_jit_x64::X64;

/// A linker of programs that call nothing.
struct NoCalls;

impl CallArity for NoCalls {
    fn helper(&self, _: u32) -> u8 {
        5
    }
    fn host(&self, _: i32) -> u8 {
        5
    }
}

impl Signatures for NoCalls {
    fn helper_hidden(&self, _: u32) -> Hidden {
        Hidden::Nothing
    }
    fn host_hidden(&self, _: i32) -> Hidden {
        Hidden::Nothing
    }
}

/// The output of each step for one program.
struct Steps {
    bytes: Vec<u8>,
    program: Program,
    lir: Lir,
    allocs: Vec<Alloc>,
    code: Code,
}

impl Steps {
    fn new(seed: u64, length: usize) -> Steps {
        let bytes = straight::program(seed, length);
        let program = Program::from_bytes(&bytes).expect("a valid program");
        let mut steps = Steps {
            bytes,
            program,
            lir: Lir::default(),
            allocs: Vec::new(),
            code: Code::new(Arch::HOST.expect("a backend")),
        };
        lower(&mut Lowerer::default(), &steps.program, &mut steps.lir);
        let mut allocs = Vec::new();
        allocate(&mut Allocator::default(), &steps.lir, &mut allocs);
        steps.allocs = allocs;
        emit(&mut Host::default(), &steps.lir, &steps.allocs, &mut steps.code);
        steps
    }
}

fn lower(lowerer: &mut Lowerer, program: &Program, lir: &mut Lir) {
    lowerer.lower(program, &Facts::default(), &NoCalls, &LowerOptions::default(), lir);
    optimise(lir, PassOptions::default(), &mut PassScratch::default());
}

fn allocate(allocator: &mut Allocator, lir: &Lir, allocs: &mut Vec<Alloc>) {
    let machine = Host::default().machine(&EmitOptions::default());
    allocs.resize_with(lir.funcs.len(), Alloc::default);
    for (func, out) in lir.funcs.iter().zip(allocs) {
        allocator.allocate(func, machine, &AllocOptions::default(), out);
    }
}

fn emit(backend: &mut Host, lir: &Lir, allocs: &[Alloc], code: &mut Code) {
    code.clear();
    backend.emit(lir, allocs, &EmitOptions::default(), code).expect("short programs");
}

fn unoptimised(compiler: &mut Compiler<Host>, program: &Program, code: &mut Code) {
    let options = CompileOptions { opt_level: OptLevel::None, ..CompileOptions::default() };
    compiler.compile(program, &Facts::default(), &NoCalls, &options, code).expect("short programs");
}

/// Returns the table, for programs of these lengths.
pub(crate) fn table(lengths: &[usize]) -> Table {
    let mut table = Table::new(
        [
            "ns",
            "validate",
            "lower + passes",
            "allocate",
            "emit",
            "place + free",
            "sum",
            "load + unload",
            "no opt: compile",
            "load + unload",
        ]
        .map(str::to_owned),
    );
    for &length in lengths {
        let programs: Vec<_> = (0..256).map(|seed| Steps::new(seed, length)).collect();
        let packs = Packs::new(Domain::new(bpf_quiesce::Options::new()), Options::default()).expect("memory");
        let engine = Engine::new(Config::new()).expect("a backend");
        let linker = Linker::<()>::new(&engine);
        let (mut lowerer, mut lir) = (Lowerer::default(), Lir::default());
        let (mut allocator, mut allocs) = (Allocator::default(), Vec::new());
        let (mut backend, mut code) = (Host::default(), Code::new(Arch::HOST.expect("a backend")));
        let (mut compiler, mut unoptimised_code) = (Compiler::<Host>::default(), Code::new(code.arch));
        let times = interleaved(&mut [
            each(&programs, |steps| drop(black_box(Program::from_bytes(&steps.bytes)))),
            each(&programs, |steps| lower(&mut lowerer, &steps.program, &mut lir)),
            each(&programs, |steps| allocate(&mut allocator, &steps.lir, &mut allocs)),
            each(&programs, |steps| emit(&mut backend, &steps.lir, &steps.allocs, &mut code)),
            each(&programs, |steps| drop(packs.stage(&steps.code, |_| None).and_then(|s| s.finalize()).expect("room"))),
            each(&programs, |steps| load(&linker, &steps.bytes, OptLevel::Speed)),
            each(&programs, |steps| unoptimised(&mut compiler, &steps.program, &mut unoptimised_code)),
            each(&programs, |steps| load(&linker, &steps.bytes, OptLevel::None)),
        ]);
        let sum: f64 = times[..5].iter().sum();
        let cells = times[..5].iter().copied().chain([sum]).chain(times[5..].iter().copied()).map(figure);
        table.row(std::iter::once(format!("{length} instructions")).chain(cells));
    }
    table
}

/// Loads and unloads one program, unverified.
pub(crate) fn load(linker: &Linker<()>, bytes: &[u8], level: OptLevel) {
    // SAFETY: it is never run.
    let loader = unsafe { linker.loader::<Raw>().opt_level(level).unverified(true) };
    drop(loader.bytes("bench", bytes).expect("a valid program"));
}

/// Loads and unloads programs of this length for `seconds` seconds, under a sampling profiler.
pub(crate) fn spin(length: usize, seconds: u64, level: OptLevel) {
    let programs: Vec<_> = (0..256).map(|seed| straight::program(seed, length)).collect();
    let engine = Engine::new(Config::new()).expect("a backend");
    let linker = Linker::<()>::new(&engine);
    let start = std::time::Instant::now();
    let mut loads = 0u64;
    while start.elapsed().as_secs() < seconds {
        programs.iter().for_each(|program| load(&linker, program, level));
        loads += programs.len() as u64;
    }
    println!("{loads} loads of {length} instructions in {seconds} s");
}

/// Loads and unloads `loads` programs of this length, under a counting profiler.
pub(crate) fn count(length: usize, loads: usize, level: OptLevel) {
    let programs: Vec<_> = (0..64).map(|seed| straight::program(seed, length)).collect();
    let engine = Engine::new(Config::new()).expect("a backend");
    let linker = Linker::<()>::new(&engine);
    programs.iter().cycle().take(loads).for_each(|program| load(&linker, program, level));
}
