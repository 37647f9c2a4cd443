//! The static check of contained machine code: it refuses code that was written to escape, and finds each selection
//! that is taken out of emitted code.

use bpf_analysis::{BoundsPlace, RegionBounds};
use bpf_isa::{Program, Width, assemble};
use bpf_jit::{Extern, Op, Val, unconfined};
use bpf_jit_code::{Code, PatchSlot, Reloc, RelocKind, TailCallSite, TailTarget};
use bpf_runtime::code::Arch;
use bpf_runtime::oracle::Emitted;
use bpf_testkit::generate::Choices;
use bpf_testkit::soundness::selected::{Selected, check};
use bpf_testkit::soundness::{self, Context, Generated, MapId, Sabotage};

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
        let found = check(&code, &regions, &objects, &[]);
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
        let whole = check(&emitted.code, &emitted.regions, &emitted.objects, &[]);
        let Ok(Selected { selections: 1.., .. }) = whole else { panic!("{name}: {whole:?}\n{}", listing()) };
        let mut missed = 0;
        for line in lines.iter().filter(|line| line.text.starts_with("cmov")) {
            let found = [true, false].map(|always| {
                let mut code = emitted.code.clone();
                without(&mut code.bytes, line.offset as usize, line.len as usize, always);
                check(&code, &emitted.regions, &emitted.objects, &[]).is_err()
            });
            missed += u32::from(found.contains(&true));
        }
        assert!(missed > 0, "{name}\n{}", listing());
    }
}

/// Takes each selection out of the ops of generated contained programs, one at a time: the check of ops refuses what is
/// left, unless the selection makes a limit, or its value is made of starts and constants. The check knows neither
/// limits nor sizes.
#[test]
fn each_selection_that_is_taken_out_of_the_ops_is_missed() {
    if Arch::HOST.is_none() {
        return bpf_testkit::skipped("ops without their selections", &"no machine code on this host");
    }
    let mut sabotage = Sabotage::default();
    let (mut taken, mut missed) = (0u32, 0u32);
    for seed in 0..300 {
        let mut choices = Choices::from_seed(seed);
        let mut generated = match seed % 2 {
            0 => soundness::neighbours(&mut choices),
            _ => soundness::generate(&mut choices),
        };
        generated.globals.iter_mut().for_each(|signature| *signature = None);
        let Some(emitted) = sabotage.code(&generated).filter(|emitted| !emitted.arena) else { continue };
        assert_eq!(unconfined(&emitted.lir, &emitted.regions), None, "seed {seed}");
        for (f, at) in
            emitted.lir.funcs.iter().enumerate().flat_map(|(f, func)| (0..func.ops.len()).map(move |at| (f, at)))
        {
            let mut lir = emitted.lir.clone();
            let op = &mut lir.funcs[f].ops[at];
            let Op::Confine { dst, yes, .. } = *op else { continue };
            *op = Op::Mov { width: Width::W64, dst, src: Val::Reg(yes) };
            taken += 1;
            missed += u32::from(unconfined(&lir, &emitted.regions).is_some());
        }
    }
    assert!(taken > 300 && missed * 5 > taken * 2, "{missed} of {taken}");
}

/// The bytes of BPF stack of each function.
fn stacks(emitted: &Emitted) -> Vec<u32> {
    emitted.lir.funcs.iter().map(|func| func.stack_bytes).collect()
}

/// Programs of `cargo xtask soak --contained` in which values must keep their bounds, or their differences, through the
/// rounds of inner loops.
#[test]
fn what_holds_in_each_round_of_an_outer_loop_holds_behind_its_inner_loops() {
    if Arch::HOST.is_none() {
        return bpf_testkit::skipped("contained code", &"no machine code on this host");
    }
    let texts = [include_str!("../contained/masked_in_loops.txt"), include_str!("../contained/moved_in_loops.txt")];
    for text in texts {
        let program = Program::new(assemble(text).unwrap()).unwrap();
        let maps = 1 << MapId::Outer as u8 | 1 << MapId::Global as u8;
        let (context, globals, lens) = (Context::Skb, vec![None; program.subprogs().len()], vec![14]);
        let generated = Generated { program, context, globals, maps, lens, ordered: true, lured: false };
        let emitted = Sabotage::default().code(&generated).expect("a contained program");
        let of = |code: &Code| check(code, &emitted.regions, &emitted.objects, &stacks(&emitted));
        let found = [of(&emitted.code), of(&emitted.arm64)];
        assert!(found.iter().all(|found| found.as_ref().is_ok_and(|counts| counts.selections > 2)), "{found:?}");
    }
}

/// Programs of `cargo xtask soak --contained` in which the register of a start is given to a number of the program
/// behind the access: they are contained, and the check of ops accepts them.
#[test]
fn a_start_whose_register_is_given_away_behind_the_access_is_known_at_the_access() {
    if Arch::HOST.is_none() {
        return bpf_testkit::skipped("contained code", &"no machine code on this host");
    }
    for (context, text) in [
        (Context::Raw, include_str!("../contained/given_away_release.txt")),
        (Context::Skb, include_str!("../contained/given_away_atomic.txt")),
    ] {
        let program = Program::new(assemble(text).unwrap()).unwrap();
        let maps = 1 << MapId::Array as u8 | 1 << MapId::Global as u8;
        let globals = vec![None; program.subprogs().len()];
        let generated = Generated { program, context, globals, maps, lens: vec![64], ordered: true, lured: false };
        let mut sabotage = Sabotage::default();
        if let Err(what) = sabotage.check_as_is(&generated, 4, &mut Choices::from_seed(1)) {
            panic!("{what}");
        }
        assert!(sabotage.seen.contained == 1 && sabotage.seen.selected.selections >= 4, "{:?}", sabotage.seen);
    }
}

/// The check of the arm64 code of generated programs that are contained, on any host.
#[test]
fn arm64_code_of_contained_programs_is_selected() {
    if Arch::HOST.is_none() {
        return bpf_testkit::skipped("arm64 code", &"no machine code on this host");
    }
    let mut sabotage = Sabotage::default();
    let (mut all, mut programs, mut refused) = (Selected::default(), 0, Vec::new());
    let seeds = if bpf_testkit::emulated() { 200 } else { 2000 };
    for seed in 0..seeds {
        let mut choices = Choices::from_seed(seed);
        let mut generated = match seed % 4 {
            0 => soundness::neighbours(&mut choices),
            1 => soundness::generate_owning(&mut choices),
            _ => soundness::generate(&mut choices),
        };
        generated.globals.iter_mut().for_each(|signature| *signature = None);
        let Some(emitted) = sabotage.code(&generated).filter(|emitted| !emitted.arena) else { continue };
        programs += 1;
        match check(&emitted.arm64, &emitted.regions, &emitted.objects, &stacks(&emitted)) {
            Ok(counts) => all.add(counts),
            Err(why) => refused.push((seed, why, emitted)),
        }
    }
    // One of each kind is shown.
    let mut kinds = std::collections::BTreeMap::new();
    for (seed, why, emitted) in &refused {
        let lines = bpf_testkit::disasm::lines(&emitted.arm64, &|symbol| format!("{symbol:?}")).unwrap();
        let text = |line: &bpf_testkit::disasm::Line| format!("{:x}: {}", line.offset, line.text);
        let near = lines.iter().filter(|line| u64::from(line.offset) <= why.at).rev().take(12).map(text);
        let near: Vec<_> = near.collect();
        let kind = near.first().map(|line| line.split_whitespace().nth(1).unwrap_or("").to_owned());
        kinds.entry(format!("{:?} {kind:?}", why.why)).or_insert((seed, near, 0u32)).2 += 1;
    }
    assert!(refused.is_empty(), "{} of {programs}: {kinds:#?}", refused.len());
    assert!(all.accesses > 40 * programs && all.selections > 2 * programs, "{programs}: {all:?}");
}

/// Takes each selection out of arm64 code: by a move, by nothing, and by taking the barrier behind it out.
#[test]
fn each_selection_that_is_taken_out_of_arm64_code_is_missed() {
    const NOP: u32 = 0xd503_201f;
    const CSDB: u32 = 0xd503_229f;
    if Arch::HOST.is_none() {
        return bpf_testkit::skipped("arm64 code", &"no machine code on this host");
    }
    let mut sabotage = Sabotage::default();
    for (name, text) in PROGRAMS {
        let program = Program::new(assemble(text).unwrap()).unwrap();
        let globals = vec![None; program.subprogs().len()];
        let context = Context::Raw;
        let generated = Generated { program, context, globals, maps: 0, lens: vec![14], ordered: true, lured: false };
        let emitted = sabotage.code(&generated).unwrap_or_else(|| panic!("{name} is not contained"));
        let check = |code: &Code| check(code, &emitted.regions, &emitted.objects, &stacks(&emitted));
        let whole = check(&emitted.arm64);
        let Ok(Selected { selections: 1.., .. }) = whole else { panic!("{name}: {whole:?}") };
        let word = |at: usize| u32::from_le_bytes(emitted.arm64.bytes[at..at + 4].try_into().unwrap());
        let missed = |at: usize, by: u32| {
            let mut code = emitted.arm64.clone();
            code.bytes[at..at + 4].copy_from_slice(&by.to_le_bytes());
            check(&code).is_err()
        };
        let (mut selections, mut barriers) = (0, 0);
        for at in (0..emitted.arm64.bytes.len()).step_by(4) {
            let insn = word(at);
            // csel of 64 bits.
            if insn & 0xffe0_0c00 == 0x9a80_0000 {
                let (d, n, m) = (insn & 31, insn >> 5 & 31, insn >> 16 & 31);
                let moves = [n, m].map(|of| 0xaa00_03e0 | of << 16 | d);
                selections += u32::from(moves.into_iter().chain([NOP]).any(|by| missed(at, by)));
            }
            barriers += u32::from(insn == CSDB && missed(at, NOP));
        }
        assert!(selections > 0 && barriers > 0, "{name}: {selections} selections, {barriers} barriers");
    }
}
