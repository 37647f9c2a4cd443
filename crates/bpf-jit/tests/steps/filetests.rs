//! Tests as files: a program, the steps it goes through, and the output of each step.
//!
//! A file under `tests/filetests` begins with a program: BPF assembly in `.bpf`, the intermediate form in `.lir`. Steps
//! follow, each a line `-- step options` with the step's output below it. A step that changes the program changes the
//! input of the next step:
//!
//! | step | makes |
//! |---|---|
//! | `lower` | the intermediate form of BPF; options `budget`, `interrupt`, `count`, `direct`, `tailcall=INSN:MAP:INDEX`, `lookup=INSN:MAP[:KEY]`, `check=INSN:REGION` |
//! | the name of a pass | what the pass leaves; options `arm64`, `plain`, `contained`, `blind` |
//! | `optimise` | what all passes of a compilation leave; the same options |
//! | `liveness` | the values live out of each block, and its immediate dominator |
//! | `alloc x64`, `alloc arm64` | where each value lives; option `only=REGISTERS` |
//! | `emit x64`, `emit arm64` | machine code, under the last `alloc` or production's allocation; options `baseline`, `retpolines`, `landing_pads`, `save_all` |
//! | `eval A B ..` | how a run with these arguments ends |
//! | `verify` | whether it is well formed |
//!
//! `cargo xtask bless` rewrites the output below the steps. Map 0 is opaque, 1 an array of 100 eight-byte values, 2 a
//! per-CPU array, 3 an array of maps, 4 a hash.

use bpf_analysis::{
    AccessCheck, BoundsPlace, CallArity, CheckRegion, ConstMapCall, ConstTailCall, Facts, RegionBounds,
};
use bpf_isa::{InsnIdx, Program, SubprogId};
use bpf_jit::eval::{Env, Eval, Region};
use bpf_jit::{
    Alloc, AllocOptions, Allocator, Backend, Cfg, Dominators, EmitOptions, Extern, Hidden, HostReg, HostRegSet, Lir,
    Liveness, Loc, LowerOptions, Lowerer, MapShape, Pass, PassOptions, PassScratch, PassSet, Signatures, VReg, check,
    optimise,
};
use bpf_jit_arm64::Arm64;
use bpf_jit_code::{Arch, Code, CpuFeatures, RunCtx, Symbol};
use bpf_jit_x64::X64;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

/// Signatures: helpers take five arguments, and those with id 1 or an even id the hidden one; host functions take two,
/// and an environment.
struct Calls;

impl CallArity for Calls {
    fn helper(&self, _: u32) -> u8 {
        5
    }
    fn host(&self, _: i32) -> u8 {
        2
    }
}

impl Signatures for Calls {
    fn map(&self, index: u32) -> MapShape {
        match index {
            1 => MapShape::Array { max_entries: 100, stride: 8 },
            2 => MapShape::PerCpuArray { max_entries: 100, stride: 24, slot_stride: 4096 },
            3 => MapShape::ArrayOfMaps { max_entries: 100 },
            4 => MapShape::Keyed,
            _ => MapShape::Opaque,
        }
    }
    fn helper_hidden(&self, id: u32) -> Hidden {
        if id.is_multiple_of(2) || id == 1 { Hidden::Ctx } else { Hidden::Nothing }
    }
    fn host_hidden(&self, _: i32) -> Hidden {
        Hidden::Env
    }
}

/// The program and its forms, which the steps of one file work on.
#[derive(Default)]
struct State {
    program: Option<Program>,
    lir: Lir,
    allocs: Option<(Arch, Vec<Alloc>)>,
}

/// Returns options for the machine that is named, or for x86-64.
fn passes(words: &str) -> PassOptions {
    let machine = match word(words, "arm64") {
        true => Arm64::default().machine(&emit_options(words)),
        false => X64::default().machine(&emit_options(words)),
    };
    PassOptions {
        addresses: machine.addresses,
        plain: word(words, "plain"),
        contained: word(words, "contained"),
        blind: word(words, "blind").then_some(1),
        skip: PassSet::default(),
    }
}

type Result<T> = std::result::Result<T, String>;

fn word(words: &str, name: &str) -> bool {
    words.split_whitespace().any(|word| word == name)
}

/// Returns the numbers of each option `name=A:B:C`.
fn numbers<'a>(words: &'a str, name: &'a str) -> impl Iterator<Item = Vec<u32>> + 'a {
    let values = words.split_whitespace().filter_map(move |word| word.strip_prefix(name)?.strip_prefix('='));
    values.map(|value| value.split([':', ',']).map(|n| n.parse().expect("a number")).collect())
}

impl State {
    fn of(path: &Path, source: &str) -> Result<State> {
        if path.extension().is_some_and(|e| e == "lir") {
            let lir = source.parse::<Lir>().map_err(|e| e.to_string())?;
            return Ok(State { lir, ..State::default() });
        }
        let insns = bpf_isa::assemble(source).map_err(|e| e.to_string())?;
        let program = Program::new(insns).map_err(|e| e.to_string())?;
        Ok(State { program: Some(program), ..State::default() })
    }

    fn step(&mut self, step: &str) -> Result<String> {
        let (name, options) = step.split_once(' ').unwrap_or((step, ""));
        if let Some(pass) = Pass::ALL.into_iter().find(|pass| pass.name() == name) {
            self.allocs = None;
            let done: u32 = self
                .lir
                .funcs
                .iter_mut()
                .map(|func| pass.run(func, passes(options), &mut PassScratch::default()))
                .sum();
            return Ok(format!("; {done} times\n{}", self.lir));
        }
        match name {
            "lower" => self.lower(options),
            "optimise" => {
                optimise(&mut self.lir, passes(options), &mut PassScratch::default());
                Ok(self.lir.to_string())
            }
            "verify" => Ok(self.lir.verify().map_or_else(|e| format!("{e}\n"), |()| "well formed\n".into())),
            "liveness" => Ok(self.liveness()),
            "alloc" => match options.split_whitespace().next() {
                Some("x64") => self.alloc(Arch::X64, &X64::default(), options),
                Some("arm64") => self.alloc(Arch::Arm64, &Arm64::default(), options),
                other => Err(format!("no such machine: {other:?}")),
            },
            "emit" => match options.split_whitespace().next() {
                Some("x64") => self.emit(Arch::X64, X64::default(), options),
                Some("arm64") => self.emit(Arch::Arm64, Arm64::default(), options),
                other => Err(format!("no such machine: {other:?}")),
            },
            "eval" => Ok(self.eval(options)),
            _ => Err(format!("no such step: {name}")),
        }
    }

    fn lower(&mut self, words: &str) -> Result<String> {
        let program = self.program.as_ref().ok_or("lowering wants a BPF program")?;
        let mut facts = Facts::default();
        for n in numbers(words, "tailcall") {
            facts.tail_calls.push(ConstTailCall { insn: InsnIdx(n[0]), map: n[1], index: n[2] });
        }
        for n in numbers(words, "lookup") {
            let key = n.get(2).map(|key| u64::from(*key));
            facts.map_calls.push(ConstMapCall { insn: InsnIdx(n[0]), map: n[1], key });
        }
        for n in numbers(words, "check") {
            facts.checks.push(AccessCheck { insn: InsnIdx(n[0]), region: CheckRegion::Packet(n[1] as u8) });
        }
        facts.regions = vec![
            RegionBounds { min_len: 0, place: BoundsPlace::Raw },
            RegionBounds { min_len: 14, place: BoundsPlace::Addresses { start: 8, end: 16 } },
        ];
        let options = LowerOptions {
            budget: word(words, "budget"),
            interrupt: word(words, "interrupt"),
            count: word(words, "count"),
            direct_tail_calls: word(words, "direct"),
            ..LowerOptions::default()
        };
        Lowerer::default().lower(program, &facts, &Calls, &options, &mut self.lir);
        self.allocs = None;
        self.lir.verify().map_err(|e| e.to_string())?;
        Ok(self.lir.to_string())
    }

    fn liveness(&self) -> String {
        let mut out = String::new();
        for (i, func) in self.lir.funcs.iter().enumerate() {
            let (liveness, dominators) = (Liveness::of(func), Dominators::of(&Cfg::of(func)));
            for block in &func.order {
                let mut live = liveness.live_out(*block).to_vec();
                live.sort();
                let live: Vec<String> = live.iter().map(ToString::to_string).collect();
                let idom = dominators.idom(*block).map_or_else(|| "-".into(), |b| b.to_string());
                writeln!(out, "{i} {block}: out {{{}}} idom {idom}", live.join(" ")).unwrap();
            }
        }
        out
    }

    fn alloc<B: Backend>(&mut self, arch: Arch, backend: &B, words: &str) -> Result<String> {
        let machine = backend.machine(&emit_options(words));
        let mut only = None;
        for regs in numbers(words, "only") {
            only = Some(HostRegSet::of(&regs.iter().map(|r| HostReg(*r as u8)).collect::<Vec<_>>()));
        }
        let options = AllocOptions { only, seed: None };
        let (mut allocator, mut out) = (Allocator::default(), String::new());
        let mut allocs = Vec::new();
        for (i, func) in self.lir.funcs.iter().enumerate() {
            let mut alloc = Alloc::default();
            allocator.allocate(func, machine, &options, &mut alloc);
            for (v, loc) in alloc.locs.iter().enumerate() {
                let place = match loc {
                    _ if alloc.is_held(VReg(v as u32)) => "nowhere".to_owned(),
                    Loc::Reg(reg) => format!("r{}", reg.0),
                    Loc::Slot(slot) => format!("slot {slot}"),
                };
                writeln!(out, "{i} v{v}: {place}").unwrap();
            }
            let saves: Vec<String> = alloc.saves.iter().map(|r| format!("r{}", r.0)).collect();
            writeln!(out, "{i} saves {{{}}}", saves.join(" ")).unwrap();
            allocs.push(alloc);
        }
        check(&self.lir, &allocs, machine)?;
        self.allocs = Some((arch, allocs));
        Ok(out)
    }

    fn emit<B: Backend>(&mut self, arch: Arch, mut backend: B, words: &str) -> Result<String> {
        if self.allocs.as_ref().is_none_or(|(made_for, _)| *made_for != arch) {
            self.alloc(arch, &backend, words)?;
        }
        let allocs = self.allocs.as_ref().map_or(&[][..], |(_, allocs)| allocs);
        let mut code = Code::new(arch);
        backend.emit(&self.lir, allocs, &emit_options(words), &mut code).map_err(|e| e.to_string())?;
        let mut out = String::new();
        for line in bpf_testkit::disasm::lines(&code, &name).map_err(|e| e.to_string())? {
            if let Some(label) = &line.label {
                writeln!(out, "{label}:").unwrap();
            }
            writeln!(out, "    {}", line.text).unwrap();
        }
        Ok(out)
    }

    fn eval(&self, words: &str) -> String {
        const MEMORY: u64 = 0x1000;
        const CTX: u64 = 0x10_0000;
        let mut args = [0; 5];
        for (arg, word) in args.iter_mut().zip(words.split_whitespace()) {
            *arg = match word {
                "memory" => MEMORY,
                number => number.parse::<i64>().expect("a number") as u64,
            };
        }
        let memory = (0..64u8).collect();
        let mut ctx = vec![0; size_of::<RunCtx>()];
        ctx[RunCtx::BUDGET_OFFSET as usize] = 5;
        let regions = vec![Region { base: MEMORY, bytes: memory }, Region { base: CTX, bytes: ctx }];
        match Eval::new(regions, 0x100_0000).run(&self.lir, args, CTX, &mut Outside) {
            Ok(outcome) => format!("{outcome:?}\n"),
            Err(error) => format!("{error:?}\n"),
        }
    }
}

fn emit_options(words: &str) -> EmitOptions {
    let features = if word(words, "baseline") { CpuFeatures::BASELINE } else { CpuFeatures::ALL };
    let mut options = EmitOptions { features, save_all: word(words, "save_all"), ..EmitOptions::default() };
    options.hardening.retpolines = word(words, "retpolines");
    options.hardening.landing_pads = word(words, "landing_pads");
    options
}

fn name(symbol: Symbol) -> String {
    Extern::from_symbol(symbol).map_or_else(|| "?".into(), |known| format!("{}_{}", known.kind(), known.index()))
}

/// Functions outside: each returns the sum of its first argument and its number.
struct Outside;

impl Env for Outside {
    fn symbol(&mut self, symbol: Symbol) -> u64 {
        0x1000_0000 + u64::from(symbol.index)
    }
    fn subprog(&mut self, subprog: SubprogId) -> u64 {
        0x2000_0000 + u64::from(subprog.0)
    }
    fn call(&mut self, symbol: Symbol, args: [Option<u64>; 5], _: Option<u64>) -> u64 {
        args[0].unwrap_or(0).wrapping_add(symbol.index.into())
    }
    fn linked(&mut self, _: Symbol, _: u32) -> Option<u64> {
        None
    }
}

/// Returns the file as it should be.
fn render(path: &Path, text: &str) -> Result<String> {
    let end = text.find("\n-- ").map_or(text.len(), |at| at + 1);
    let mut state = State::of(path, &text[..end])?;
    let mut out = text[..end].to_owned();
    let mut steps = 0;
    for step in text[end..].lines().filter_map(|line| line.strip_prefix("-- ")) {
        let made = state.step(step.trim()).map_err(|e| format!("`{step}`: {e}"))?;
        out.push_str(&format!("-- {step}\n{made}"));
        steps += 1;
    }
    if steps == 0 { Err("a file without a step tests nothing".into()) } else { Ok(out) }
}

fn files(folder: &Path, out: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("the folder of the tests") {
        let path = entry.expect("an entry").path();
        if path.is_dir() { files(&path, out) } else { out.push(path) }
    }
}

#[test]
fn every_step_makes_what_its_file_says() {
    let bless = env::var_os("BLESS").is_some_and(|value| value == "1");
    let mut paths = Vec::new();
    files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/filetests"), &mut paths);
    paths.sort();
    assert!(paths.len() > 20, "a test over nothing must not pass: {}", paths.len());
    let mut differences = Vec::new();
    for path in paths {
        let text = fs::read_to_string(&path).expect("a text");
        match render(&path, &text) {
            Ok(expected) if expected == text => {}
            Ok(expected) if bless => fs::write(&path, expected).expect("a file to write"),
            Ok(expected) => {
                let first = text.lines().zip(expected.lines()).enumerate().find(|(_, (old, new))| old != new);
                let what = match first {
                    Some((i, (old, new))) => format!("{}:\n  - {old}\n  + {new}", i + 1),
                    None => format!("{} lines, now {}", text.lines().count(), expected.lines().count()),
                };
                differences.push(format!("{}:{what}", path.display()));
            }
            Err(error) => differences.push(format!("{}: {error}", path.display())),
        }
    }
    assert!(differences.is_empty(), "`cargo xtask bless` rewrites what has changed:\n{}", differences.join("\n"));
}
