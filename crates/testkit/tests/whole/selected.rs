//! The static check of contained machine code: it refuses code that was written to escape, and finds each selection
//! that is taken out of emitted code.

use bpf_analysis::{BoundsPlace, RegionBounds};
use bpf_isa::{Program, assemble};
use bpf_jit::Extern;
use bpf_jit_code::{Code, PatchSlot, Reloc, RelocKind, TailCallSite, TailTarget};
use bpf_runtime::code::Arch;
use bpf_testkit::soundness::selected::{Selected, check};
use bpf_testkit::soundness::{Context, Generated, Sabotage};

/// The code of a line of `machine_code.txt`: bytes, then entries, relocations and patch slots with their offsets.
fn code_of(line: &str) -> Code {
    let mut parts = line.split(", ");
    let mut code = Code::new(Arch::X64);
    code.bytes = hex::decode(parts.next().unwrap().trim()).unwrap();
    code.entries.push(0);
    let (mut bypass, mut target, mut out) = (None, None, None);
    for part in parts {
        let words: Vec<&str> = part.split_whitespace().collect();
        let at: u32 = words[1].parse().unwrap();
        let slot = || PatchSlot::new(Arch::X64, at).unwrap();
        match words[0] {
            "entry" => code.entries.push(at),
            "bypass" => bypass = Some(slot()),
            "target" => target = Some(slot()),
            "out" => out = Some(at),
            kind => {
                let symbol = Extern::of_kind(kind, words[2].parse().unwrap()).unwrap().symbol();
                let called = matches!(kind, "helper" | "spent");
                let kind = if called { RelocKind::X64Rel32 } else { RelocKind::X64Abs64 };
                code.relocs.push(Reloc { at, kind, symbol });
            }
        }
    }
    if let (Some(bypass), Some(target), Some(out)) = (bypass, target, out) {
        let target = TailTarget::Direct { table: Extern::Map(0).symbol(), index: 0, bypass, target, out };
        code.tail_calls.push(TailCallSite { insn: 0, target });
    }
    code
}

#[test]
fn code_that_escapes_is_refused_and_its_harmless_twin_accepted() {
    let regions = [RegionBounds { min_len: 0, place: BoundsPlace::Addresses { start: 0, end: 8 } }];
    let objects = [Extern::Helper(1).symbol()];
    let text = include_str!("../contained/machine_code.txt");
    let mut lines = text.lines().filter(|line| !line.starts_with('#'));
    let (mut name, mut wrong, mut cases) = ("", String::new(), 0);
    while let Some(line) = lines.next() {
        if let Some(next) = line.strip_prefix("== ") {
            name = next;
            continue;
        }
        let code = code_of(lines.next().unwrap());
        let found = check(&code, &regions, &objects);
        let expected = line.strip_prefix("refused ").map(|rest| rest.split(':').next().unwrap());
        let why = found.as_ref().err().map(|refused| format!("{:?}", refused.why));
        if why.as_deref() != expected {
            wrong += &format!("{name}: {line}\n  {found:?}\n");
        }
        cases += 1;
    }
    assert!(wrong.is_empty(), "{wrong}");
    assert!(cases > 120, "{cases}");
}

/// Accesses at variable offsets, by the object.
const PROGRAMS: [(&str, &str); 5] = [
    ("a buffer", "r0 = 0\nif r2 < 9 goto out\nr3 = *(u8 *)(r1 + 0)\nr1 += r3\nr0 = *(u8 *)(r1 + 0)\nout: exit"),
    (
        "the frame",
        "*(u64 *)(r10 - 16) = 257\n*(u64 *)(r10 - 8) = 3\nr0 = 9\nif r2 < 9 goto out\nr3 = *(u8 *)(r1 + 0)\n\
         if r3 > 15 goto out\nr4 = r10\nr4 += -16\nr4 += r3\nr0 = *(u8 *)(r4 + 0)\nout: exit",
    ),
    (
        "a store in the frame",
        "r0 = 9\nif r2 < 9 goto out\nr3 = *(u64 *)(r1 + 0)\nr4 = r10\nr4 += -64\nr4 += r3\n*(u64 *)(r4 + 0) = r0\n\
         out: exit",
    ),
    (
        "a buffer, in a loop",
        "r0 = 0\nr4 = 0\nif r2 < 9 goto out\nagain: r3 = *(u8 *)(r1 + 8)\nr5 = r1\nr5 += r3\nr5 = *(u8 *)(r5 + 0)\n\
         r0 += r5\nr4 += 1\nif r4 < r0 goto again\nout: exit",
    ),
    (
        "a function's",
        "r0 = 0\nif r2 < 9 goto out\nr6 = r1\nr7 = *(u8 *)(r1 + 1)\nr1 = 5\ncall f\nr6 += r0\nr6 += r7\n\
         r0 = *(u8 *)(r6 + 0)\nout: exit\nf: r0 = r1\nr0 &= 255\nexit",
    ),
];

/// Replaces the conditional move at `at`, of so many bytes, by a move (`always`) or by nothing.
fn without(code: &mut [u8], at: usize, len: usize, always: bool) {
    const NOP: u8 = 0x90;
    // REX, 0F, 40 to 4F, operands.
    let insn = &mut code[at..at + len];
    match always {
        true => {
            insn[1] = 0x8b;
            insn.copy_within(3.., 2);
            insn[len - 1] = NOP;
        }
        false => insn.fill(NOP),
    }
}

#[test]
fn each_selection_that_is_taken_out_is_missed() {
    if Arch::HOST != Some(Arch::X64) {
        return bpf_testkit::skipped("contained code without its selections", &"the check reads x86-64");
    }
    let mut sabotage = Sabotage::default();
    for (name, text) in PROGRAMS {
        let program = Program::new(assemble(text).unwrap()).unwrap();
        let globals = vec![None; program.subprogs().len()];
        let context = Context::Raw;
        let generated = Generated { program, context, globals, maps: 0, lens: vec![14], ordered: true, lured: false };
        let emitted = sabotage.code(&generated).unwrap_or_else(|| panic!("{name} is not contained"));
        let lines = bpf_testkit::disasm::lines(&emitted.code, &|symbol| format!("{symbol:?}")).unwrap();
        let listing = || lines.iter().map(|line| format!("{:x}: {}\n", line.offset, line.text)).collect::<String>();
        let whole = check(&emitted.code, &emitted.regions, &emitted.objects);
        let Ok(Selected { selections: 1.., .. }) = whole else { panic!("{name}: {whole:?}\n{}", listing()) };
        let mut missed = 0;
        for line in lines.iter().filter(|line| line.text.starts_with("cmov")) {
            let found = [true, false].map(|always| {
                let mut code = emitted.code.clone();
                without(&mut code.bytes, line.offset as usize, line.len as usize, always);
                check(&code, &emitted.regions, &emitted.objects).is_err()
            });
            missed += u32::from(found.contains(&true));
        }
        assert!(missed > 0, "{name}\n{}", listing());
    }
}
