//! The one setting [`Hardening`], as emitted: everything that the JITs and the dispatcher emit is disassembled and
//! searched for indirect branches and for landing pads. Both architectures, on any host.

use bpf_analysis::{CallArity, Facts};
use bpf_disasm::lines;
use bpf_dispatcher::{Entry, HookPolicy, Image, Link, Options, Verdicts};
use bpf_isa::{Imm64, Insn, Program, Size, Src, assemble};
use bpf_jit::{Backend, CompileOptions, Compiler, EmitOptions, Hidden, LowerOptions, Pass, PassSet, Signatures};
use bpf_jit_arm64::Arm64;
use bpf_jit_code::{Arch, Code, Hardening, OptLevel, Symbol};
use bpf_jit_x64::X64;
use bpf_object::Object;
use bpf_testkit::generate::{self, Choices, Shape};
use std::path::Path;

/// Functions of which nothing is known.
pub(crate) struct Unknown;

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

/// Emitted code, and at which of its entries an indirect branch may land.
struct Emitted {
    what: String,
    code: Code,
    landings: Vec<u32>,
    /// Whether it has an indirect branch (x86-64: unless retpolines are on).
    branches: bool,
}

/// Programs with every indirect branch and every indirect target there is: tail calls out of programs and subprograms,
/// stops, callbacks.
fn programs() -> Vec<(String, Program, bool)> {
    let text = |name: &str, text: &str, branches: bool| {
        let insns = assemble(text).unwrap_or_else(|error| panic!("{error} in\n{text}"));
        (name.to_owned(), Program::new(insns).unwrap(), branches)
    };
    let site = "r2 = map[fd:0]\nr3 = 1\ncall 12\n";
    let mut all = vec![
        text("empty", "r0 = 0\nexit", false),
        text("tail call", &format!("{site}r0 = 1\nexit"), true),
        text("tail call in a subprogram", &format!("call sub\nexit\nsub:\n{site}r0 = 1\nexit"), true),
        // A jump through a table, where those are made.
        text(
            "switch",
            "r0 = 0\nif r1 == 0 goto a\nif r1 == 1 goto b\nif r1 == 2 goto c\nif r1 == 3 goto d\nif r1 == 4 goto e\n\
             if r1 == 5 goto f\nif r1 == 6 goto g\nif r1 == 7 goto h\nexit\na: r0 = 11\nexit\nb: r0 = 23\nexit\n\
             c: r0 = 31\nexit\nd: r0 = 47\nexit\ne: r0 = 53\nexit\nf: r0 = 67\nexit\ng: r0 = 71\nexit\nh: r0 = 83\nexit",
            false,
        ),
        text("call", "r6 = r1\ncall 7\nr0 += r6\nexit", false),
        // Its back-edge is where the budget stops it.
        text("loop", "r0 = 0\nagain:\nr0 += 1\nif r0 < 9 goto again\nexit", true),
        text("callback", "r1 = 3\nr2 = subprog[body]\nr3 = 0\nr4 = 0\ncall 181\nexit\nbody:\nr0 = 0\nexit", false),
    ];
    for seed in 0..60 {
        let generated = generate::generate(&mut Choices::from_seed(seed), &Shape::default());
        all.push((format!("generated {seed}"), generated.program, false));
    }
    all
}

fn compile<B: Backend + Default>(arch: Arch, hardening: Hardening) -> Vec<Emitted> {
    let mut compiler = Compiler::<B>::default();
    let options = CompileOptions {
        lower: LowerOptions { budget: true, interrupt: true, ..LowerOptions::default() },
        emit: EmitOptions { hardening, ..EmitOptions::default() },
        ..CompileOptions::default()
    };
    let emit = |(what, program, branches): (String, Program, bool)| {
        let mut code = Code::new(arch);
        compiler.compile(&program, &Facts::default(), &Unknown, &options, &mut code).unwrap();
        let mut landings = vec![code.entries[0]];
        if what == "callback" {
            landings.push(code.entries[1]);
        }
        Emitted { what: format!("{arch:?} {what}"), code, landings, branches }
    };
    programs().into_iter().map(emit).collect()
}

fn images(arch: Arch, hardening: Hardening) -> Vec<Emitted> {
    let mut all = Vec::new();
    for count in [0, 1, 2, 3, 16, 48, 200] {
        for (align, base, hits) in
            [(true, 0x5555_4000_0000_usize, 0), (false, 0x40_0000, 0), (true, 0x5555_4000_0000, 1)]
        {
            let options = Options { limit: 256, align, hardening };
            let entries: Vec<Entry> =
                (0..count).map(|i| Entry { address: base + i * 192, hits: hits * (i * i) as u64 }).collect();
            let what = format!("{arch:?} tree of {count}, base {base:#x}");
            let code = Image::tree(arch, &entries, &options).code().clone();
            all.push(Emitted { what, code, landings: vec![0], branches: true });
        }
        let mut links: Vec<Link> = (0..count).map(|i| Link::new(i * 64)).collect();
        for (i, link) in links.iter_mut().enumerate().filter(|(i, _)| i % 3 == 1) {
            link.continue_on = Some(Verdicts::Set(5 << (i % 60)));
        }
        for policy in
            [HookPolicy::FirstVerdict { pass: 2 }, HookPolicy::LastWins { empty: 0 }, HookPolicy::RunAll { result: 1 }]
        {
            let options = Options { hardening, ..Options::default() };
            let what = format!("{arch:?} chain of {count}, {policy:?}");
            let code = Image::chain(arch, &links, policy, &options).code().clone();
            all.push(Emitted { what, code, landings: vec![0], branches: false });
        }
    }
    all
}

fn everything(hardening: Hardening) -> impl Iterator<Item = (Arch, Emitted)> {
    let x64 = compile::<X64>(Arch::X64, hardening).into_iter().chain(images(Arch::X64, hardening));
    let arm64 = compile::<Arm64>(Arch::Arm64, hardening).into_iter().chain(images(Arch::Arm64, hardening));
    x64.map(|emitted| (Arch::X64, emitted)).chain(arm64.map(|emitted| (Arch::Arm64, emitted)))
}

/// Offset and text of each instruction.
fn text(emitted: &Emitted) -> Vec<(u32, String)> {
    let lines = lines(&emitted.code, &|Symbol { index: i, .. }| format!("symbol{i}"));
    let lines = lines.unwrap_or_else(|error| panic!("{}: {error}", emitted.what));
    lines.into_iter().map(|line| (line.offset, line.text)).collect()
}

/// Whether it jumps or calls through a register or memory. Returns apart.
fn is_indirect(arch: Arch, text: &str) -> bool {
    let (name, operand) = text.split_once(' ').unwrap_or((text, ""));
    match arch {
        Arch::X64 => {
            let register = operand.starts_with('r') && (operand.len() == 3 || operand[1..].parse::<u32>().is_ok());
            matches!(name, "jmp" | "call" | "notrack") && (register || operand.contains('['))
        }
        Arch::Arm64 => matches!(name, "br" | "blr"),
    }
}

fn is_landing_pad(arch: Arch, text: &str) -> bool {
    match arch {
        Arch::X64 => text == "endbr64",
        // `bti c`.
        Arch::Arm64 => text == "hint #0x22" || text == "paciasp",
    }
}

#[test]
fn the_search_knows_indirect_branches() {
    for (arch, indirect, direct) in [
        (
            Arch::X64,
            &["jmp rax", "jmp r11", "call r9", "call rdi", "jmp qword ptr [rdi+0x8]"][..],
            &["jmp short entry.1", "jmp symbol0", "call sub1", "ret", "je symbol1"][..],
        ),
        (Arch::Arm64, &["br x16", "blr x6"][..], &["b symbol0", "b.gt entry.1", "bl symbol1", "ret", "ret x17"][..]),
    ] {
        assert!(indirect.iter().all(|text| is_indirect(arch, text)));
        assert!(!direct.iter().any(|text| is_indirect(arch, text)));
    }
}

#[test]
fn with_retpolines_there_is_no_indirect_branch() {
    let plain = Hardening::default();
    for hardening in [plain, plain.retpolines(true)] {
        for (arch, emitted) in everything(hardening) {
            let lines = text(&emitted);
            let indirect: Vec<_> = lines.iter().filter(|(_, text)| is_indirect(arch, text)).collect();
            let lfences = lines.iter().filter(|(_, text)| text == "lfence").count();
            match (arch, hardening.retpolines) {
                (Arch::X64, true) => {
                    assert!(indirect.is_empty(), "{}: {indirect:?}", emitted.what);
                    assert!(lfences == 1 || !emitted.branches, "{}: {lfences} retpolines", emitted.what);
                    // The retpoline as a whole: the only return that does not go back.
                    if let Some(at) = lines.iter().position(|(_, text)| text == "lfence") {
                        assert_eq!(lines[at - 1].1, "pause", "{}", emitted.what);
                        assert!(lines[at - 2].1.starts_with("call"), "{}", emitted.what);
                        assert!(lines[at + 1].1.starts_with("jmp short"), "{}", emitted.what);
                        assert!(lines[at + 2].1.starts_with("mov [rsp], r"), "{}: {}", emitted.what, lines[at + 2].1);
                        assert_eq!(lines[at + 3].1, "ret", "{}", emitted.what);
                    }
                }
                (Arch::X64, false) => {
                    assert_eq!(lfences, 0, "{}", emitted.what);
                    assert!(!indirect.is_empty() || !emitted.branches, "{}", emitted.what);
                }
                // `bti c` accepts jumps through these two only; a stop is a `ret`. A table's jump stays in its
                // function.
                (Arch::Arm64, _) => {
                    let pads = |text: &str| text == "br x16" || text == "br x17";
                    let table = !hardening.retpolines && emitted.what.ends_with(" switch");
                    assert!(table || indirect.iter().all(|(_, text)| pads(text)), "{}", emitted.what);
                }
            }
        }
    }
}

#[test]
fn every_target_of_an_indirect_branch_has_a_landing_pad() {
    for (landing_pads, return_signing) in [(false, false), (true, false), (true, true), (false, true)] {
        for (arch, emitted) in everything(Hardening::new().landing_pads(landing_pads).return_signing(return_signing)) {
            let lines = text(&emitted);
            let pads: Vec<u32> =
                lines.iter().filter(|(_, text)| is_landing_pad(arch, text)).map(|(offset, _)| *offset).collect();
            if landing_pads {
                for landing in &emitted.landings {
                    assert!(pads.contains(landing), "{}: {landing:#x}", emitted.what);
                }
            }
            // And they stand nowhere else, but for signatures.
            if !return_signing {
                assert_eq!(pads, if landing_pads { emitted.landings.clone() } else { Vec::new() }, "{}", emitted.what);
            }
        }
    }
}

/// Behind a return or an indirect jump speculation meets a barrier, and barriers stand nowhere else.
#[test]
fn a_barrier_follows_every_return_and_every_indirect_jump() {
    for straight_line in [false, true] {
        for retpolines in [false, true] {
            let mut tables = 0;
            let hardening = Hardening::new().straight_line(straight_line).retpolines(retpolines);
            for (arch, emitted) in everything(hardening) {
                let lines = text(&emitted);
                let leaves = |text: &str| text == "ret" || text.starts_with("ret ") || is_indirect(arch, text);
                let barrier: &[&str] = match arch {
                    Arch::X64 => &["int3"],
                    Arch::Arm64 => &["dsb sy", "isb"],
                };
                let followed = |at: usize| {
                    let behind = lines.iter().skip(at + 1).map(|(_, text)| text.as_str());
                    behind.take(barrier.len()).eq(barrier.iter().copied())
                };
                let left: Vec<usize> = (0..lines.len()).filter(|at| leaves(&lines[*at].1)).collect();
                tables += usize::from(
                    emitted.what.ends_with(" switch") && left.iter().any(|at| is_indirect(arch, &lines[*at].1)),
                );
                if straight_line {
                    let missing: Vec<_> = left.iter().filter(|at| !followed(**at)).map(|at| &lines[*at]).collect();
                    assert!(missing.is_empty(), "{}: {missing:?}", emitted.what);
                } else {
                    // `int3` is padding, too.
                    let found = arch == Arch::Arm64 && lines.iter().any(|(_, text)| text == "dsb sy");
                    assert!(!found, "{}", emitted.what);
                }
            }
            assert_eq!(tables, if retpolines { 0 } else { 2 }, "jumps through tables");
        }
    }
}

/// Code that signs a return address authenticates it on every way out, and code that saves one signs it.
#[test]
fn signed_return_addresses_are_authenticated() {
    for return_signing in [false, true] {
        let mut signed = 0;
        for (arch, emitted) in everything(Hardening::new().return_signing(return_signing)) {
            let lines = text(&emitted);
            let count = |name: &str| lines.iter().filter(|(_, text)| text == name).count();
            match (arch, return_signing) {
                (Arch::Arm64, true) => {
                    // To the stack, not to where a stop notes it.
                    let saved = |text: &str| text.starts_with("st") && text.contains("x30,") && text.contains("[sp");
                    let saves = lines.iter().filter(|(_, text)| saved(text)).count();
                    assert_eq!(count("paciasp"), saves, "{}", emitted.what);
                    assert!(count("autiasp") >= count("paciasp"), "{}", emitted.what);
                    signed += saves;
                }
                (Arch::Arm64, false) | (Arch::X64, _) => {
                    assert_eq!((count("paciasp"), count("autiasp")), (0, 0), "{}", emitted.what);
                }
            }
        }
        assert_eq!(signed > 0, return_signing);
    }
}

/// The large constants of a program: at least three bytes are neither all zeros nor all ones.
fn constants(program: &Program) -> Vec<u32> {
    let of = |insn: &Insn| match *insn {
        Insn::Alu { src: Src::Imm(imm), .. }
        | Insn::Mov { src: Src::Imm(imm), .. }
        | Insn::JumpIf { src: Src::Imm(imm), .. } => vec![imm.cast_unsigned()],
        Insn::Store { src: Src::Imm(imm), size: Size::W | Size::DW, .. } => vec![imm.cast_unsigned()],
        Insn::LoadImm64 { imm: Imm64::Const(imm), .. } => vec![imm as u32, (imm >> 32) as u32],
        _ => Vec::new(),
    };
    let all = program.insns().iter().flat_map(of);
    all.filter(|c| c.to_le_bytes().iter().filter(|byte| !matches!(byte, 0 | 0xff)).count() >= 3).collect()
}

/// The constants that appear in the code: as bytes, or as the two halves that arm64 instructions load into a register.
fn shown(arch: Arch, code: &[u8], constants: &[u32]) -> Vec<u32> {
    let halves = |at: &[u8]| {
        let word = |i: usize| u32::from_le_bytes([at[i], at[i + 1], at[i + 2], at[i + 3]]);
        let (first, second) = (word(0), word(4));
        let (low, high) = (first >> 5 & 0xffff, second >> 5 & 0xffff);
        // `movz` or `movn`, then `movk` shifted by 16, of one register.
        let pair = first & 0x1f == second & 0x1f && second & 0x7fe0_0000 == 0x72a0_0000;
        match first & 0x7fe0_0000 {
            0x5280_0000 if pair => Some(high << 16 | low),
            0x1280_0000 if pair => Some(high << 16 | !low & 0xffff),
            _ => None,
        }
    };
    let stands = |c: &u32| match arch {
        Arch::X64 => code.windows(4).any(|at| at == c.to_le_bytes()),
        Arch::Arm64 => code.windows(8).step_by(4).any(|at| halves(at) == Some(*c)),
    };
    constants.iter().copied().filter(|c| stands(c)).collect()
}

/// The speed programs and the verifier's loops, as compilers made them.
fn objects() -> Vec<Program> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut all = Vec::new();
    for folder in ["../../benches/programs", "../verifier/tests/loops"] {
        let mut files: Vec<_> =
            std::fs::read_dir(here.join(folder)).unwrap().map(|file| file.unwrap().path()).collect();
        files.sort();
        for path in files.into_iter().filter(|path| path.extension().is_some_and(|extension| extension == "o")) {
            let object = Object::parse(&std::fs::read(&path).unwrap()).unwrap();
            for program in object.programs() {
                all.push(Program::new(object.code(program).unwrap().insns().to_vec()).unwrap());
            }
        }
    }
    assert!(all.len() > 200, "{} programs", all.len());
    all
}

#[test]
fn constants_of_a_program_do_not_stand_in_its_blinded_code() {
    fn of<B: Backend + Default>(arch: Arch, opt_level: OptLevel, skip: PassSet, objects: &[Program]) {
        let objects = objects.iter().cloned();
        let mut found = [0; 2];
        let mut compiler = Compiler::<B>::default();
        let text = "r0 = 0x3c909090\nr3 = 0x12345678abcdef01 ll\nr0 += 0x3c9090eb\nif r1 > 0x0f0e0d0c goto +1\n\
                    r0 ^= r3\nr0 *= 0x01020304\nexit";
        let written = Program::new(assemble(text).unwrap()).unwrap();
        let generated =
            (0..200).map(|seed| generate::generate(&mut Choices::from_seed(seed), &Shape::default()).program);
        for program in core::iter::once(written).chain(generated).chain(objects) {
            for (blind_constants, found) in [false, true].into_iter().zip(&mut found) {
                let hardening = Hardening::new().blind_constants(blind_constants);
                let emit = EmitOptions { hardening, ..EmitOptions::default() };
                let options = CompileOptions { opt_level, skip, emit, ..CompileOptions::default() };
                // Keys are random, so a blinded constant may appear by chance, but not under each of three keys.
                let mut remaining = constants(&program);
                for _ in 0..3 {
                    let mut code = Code::new(arch);
                    compiler.compile(&program, &Facts::default(), &Unknown, &options, &mut code).unwrap();
                    remaining = shown(arch, &code.bytes, &remaining);
                    if remaining.is_empty() {
                        break;
                    }
                }
                *found += remaining.len();
            }
        }
        assert!(found[0] > 100, "{arch:?}: the search finds {} constants in plain code", found[0]);
        assert_eq!(found[1], 0, "{arch:?}, {opt_level:?}, {skip:?}: constants in blinded code");
    }
    // Under an emulator, every fourth object.
    let step = if bpf_testkit::emulated() { 4 } else { 1 };
    let objects: Vec<Program> = objects().into_iter().step_by(step).collect();
    // With several sets of skipped passes.
    let without_ssa = Pass::ALL.iter().position(|pass| *pass == Pass::Ssa).unwrap();
    for (opt_level, skip) in [
        (OptLevel::Speed, PassSet::default()),
        (OptLevel::None, PassSet::default()),
        (OptLevel::Speed, PassSet::from_bits(1 << without_ssa)),
        (OptLevel::Speed, PassSet::from_bits(u16::MAX)),
    ] {
        // All objects as they are compiled by default, every fourth otherwise.
        let plain = opt_level == OptLevel::Speed && skip == PassSet::default();
        let objects: Vec<Program> = objects.iter().step_by(if plain { 1 } else { 4 }).cloned().collect();
        of::<X64>(Arch::X64, opt_level, skip, &objects);
        of::<Arm64>(Arch::Arm64, opt_level, skip, &objects);
    }
}
