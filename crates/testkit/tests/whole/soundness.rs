//! Programs at the border of every rule of the verifier run as it promised: a short run; `examples/soundness.rs` is
//! the long one.

use bpf_isa::{Program, assemble};
use bpf_testkit::generate::Choices;
use bpf_testkit::soundness::{self, Context, ENDLESS, Generated, Oracle, Outcome, Sabotage, Tally};

/// One of so many programs is tried: an eighth under an emulator.
fn of() -> u64 {
    if bpf_testkit::emulated() { 8 } else { 1 }
}

#[test]
fn accepted_programs_run_as_promised_on_all_engines() {
    let mut oracle = Oracle::new();
    let mut tally = Tally::default();
    let mut by_context = [0u32; 3];
    for seed in 0..6000 / of() {
        let mut choices = Choices::from_seed(seed);
        let generated = soundness::generate(&mut choices);
        let outcome = oracle.check(&generated, 2, &mut choices);
        let before = tally.accepted;
        if let Err(what) = tally.count(&generated, outcome) {
            panic!("seed {seed}: {what}");
        }
        by_context[match generated.context {
            Context::Raw => 0,
            Context::Xdp => 1,
            Context::Skb => 2,
        }] += u32::from(tally.accepted > before);
    }
    // Both sides of the border are visited, and what is right in itself is accepted, mostly.
    let refused: u64 = tally.refused.values().sum();
    assert!(tally.accepted > 4000 / of() && refused > 400 / of() && tally.steps > 500_000 / of(), "{tally}");
    assert!(tally.refused_without_lure < 250 / of(), "{tally}");
    assert!(by_context.iter().all(|n| u64::from(*n) > 500 / of()), "{by_context:?}");
    // Each of the rules that lures are about refuses some.
    for reason in [
        "Bounds",
        "StackBounds",
        "PacketBounds",
        "StackUninit",
        "MaybeNull",
        "PointerOp",
        "LockHeld",
        "Owed",
        "OffsetUnbounded",
        "ArgMem",
        "ReadOnly",
        "Unaligned",
        "EndUnproven",
    ] {
        assert!(of() > 1 || tally.refused.contains_key(reason), "{reason} is never the reason: {tally}");
    }
}

/// Programs with objects that they own, exceptions and calls by a register.
#[test]
fn accepted_programs_with_objects_run_as_promised_on_all_engines() {
    let mut oracle = Oracle::new();
    let mut tally = Tally::default();
    let mut text = String::new();
    for seed in 0..3000 / of() {
        let mut choices = Choices::from_seed(seed);
        let generated = soundness::generate_owning(&mut choices);
        let outcome = oracle.check(&generated, 2, &mut choices);
        let before = tally.accepted;
        if let Err(what) = tally.count(&generated, outcome) {
            panic!("seed {seed}: {what}");
        }
        if tally.accepted > before {
            text.push_str(&generated.program.to_string());
        }
    }
    let refused: u64 = tally.refused.values().sum();
    assert!(tally.accepted > 1500 / of() && refused > 200 / of() && tally.steps > 100_000 / of(), "{tally}");
    assert!(tally.refused_without_lure < 150 / of(), "{tally}");
    for reason in ["Owed", "MaybeNull", "Arg", "ObjectField", "LockHeld", "RootUnlocked"] {
        assert!(of() > 1 || tally.refused.contains_key(reason), "{reason} is never the reason: {tally}");
    }
    // Accepted programs call each of these functions.
    use bpf_uapi::Kfunc;
    let calls = [
        Kfunc::ObjNew,
        Kfunc::ObjDrop,
        Kfunc::RefcountAcquire,
        Kfunc::ListPushFront,
        Kfunc::ListPopBack,
        Kfunc::ListFront,
        Kfunc::RbtreeAdd,
        Kfunc::RbtreeRemove,
        Kfunc::RbtreeLeft,
        Kfunc::Throw,
        Kfunc::ResSpinLock,
        Kfunc::ResSpinLockIrqsave,
    ];
    for call in calls.map(|kfunc| bpf_isa::Insn::Call(bpf_isa::Callee::Host(kfunc as i32)).to_string()) {
        assert!(of() > 1 || text.contains(&format!("{call}\n")), "no `{call}`");
    }
    assert!(text.contains("callx r4") && text.contains("call 194\n"));
}

/// A run that takes long is no run without an end: may_goto allows 8 million rounds, a loop that a guess proves any
/// number.
#[test]
fn long_runs_are_not_endless_ones() {
    let generated = |text| Generated {
        program: Program::new(assemble(text).expect("it assembles")).expect("it is valid"),
        context: Context::Raw,
        globals: vec![None],
        maps: 0,
        lens: vec![],
        ordered: true,
        lured: false,
    };
    let counted = generated("r0 = 0\nagain: r0 += 1\nif r0 < 3000000 goto again\nexit");
    let may_goto = generated("r0 = 0\nagain: may_goto out\nr0 += 1\nr0 &= 1\ngoto again\nout: exit");
    let long = |oracle: &mut Oracle, program| oracle.check(program, 1, &mut Choices::from_seed(1));
    let mut oracle = Oracle::new();
    for program in [&counted, &may_goto] {
        let outcome = long(&mut oracle, program);
        // The interpreter gave up after its budget.
        assert!(matches!(outcome, Outcome::Ran { watched: 100_000..=900_000, long: 1 }), "{outcome:?}");
    }
    // And one without an end, as far as an impatient oracle can tell.
    let outcome = long(&mut Oracle::patient(1 << 20), &counted);
    assert!(matches!(&outcome, Outcome::Violation(what) if what.starts_with(ENDLESS)), "{outcome:?}");
}

/// Each program that can be contained does the same contained; a few kinds of calls cannot be.
#[test]
fn contained_programs_do_what_they_do_otherwise() {
    let mut oracle = Oracle::new();
    let mut tally = Tally::default();
    for seed in 6000..6000 + 3000 / of() {
        let mut choices = Choices::from_seed(seed);
        let generated = soundness::generate(&mut choices);
        let outcome = oracle.check(&generated, 2, &mut choices);
        if let Err(what) = tally.count(&generated, outcome) {
            panic!("seed {seed}: {what}");
        }
    }
    let (contained, refused) = &oracle.contained;
    assert!(*contained > 500 / of(), "{contained} of {}, {refused:?}", tally.accepted);
}

/// Unverified programs, most of them damaged, stay inside their objects and their budgets.
#[test]
fn contained_programs_stay_inside_whatever_is_believed() {
    if bpf_runtime::code::Arch::HOST.is_none() {
        eprintln!("SKIPPED: no machine code on this host");
        return;
    }
    let mut sabotage = Sabotage::default();
    for seed in 0..6000 / of() {
        if let Err(what) = sabotage.check(2, &mut Choices::from_seed(seed)) {
            panic!("seed {seed}: {what}");
        }
    }
    let seen = &sabotage.seen;
    assert!(seen.contained > 400 / of() && seen.stopped > 20 / of(), "{seen:?}");
    // Among them are programs that look up inner maps and that use dynptrs.
    let with = |what: &str| seen.kinds.get(what).copied().unwrap_or_default();
    assert!(with("inner") > 20 / of() && with("dynptr") > 20 / of() && with("slice") > 5 / of(), "{seen:?}");
    // Reads are observed in almost all of them.
    assert!(seen.undetermined * 50 < seen.contained, "{seen:?}");
    // The machine code of each was checked, and many of its accesses are at selected addresses: on x86-64 the code for
    // that machine and for arm64.
    let both = bpf_runtime::code::Arch::HOST == Some(bpf_runtime::code::Arch::X64);
    let (checked, codes) = (seen.selected, seen.contained * if both { 2 } else { 1 });
    assert!(checked.accesses > 40 * codes && checked.selections > 2 * codes, "{seen:?}");
}

/// The programs that a mistake of the verifier would let through (the refused halves of its pairs, which include
/// attacks found by reviews), with their safe twins, stay inside their objects when loaded contained and unproven.
#[test]
fn pairs_of_the_verifier_stay_inside_unverified() {
    if bpf_runtime::code::Arch::HOST.is_none() {
        eprintln!("SKIPPED: no machine code on this host");
        return;
    }
    let text = include_str!("../../../verifier/tests/pairs.txt");
    let mut sabotage = Sabotage::default();
    for pair in text.split("\n== ").skip(1).step_by(of() as usize) {
        let Some((name, both)) = pair.split_once('\n') else { continue };
        let (refused, accepted) = both.split_once("\n-- ").unwrap_or((both, ""));
        let accepted = accepted.split_once('\n').map_or("", |(_reason, program)| program);
        for text in [refused, accepted] {
            let Ok(program) = assemble(text).map_err(drop).and_then(|insns| Program::new(insns).map_err(drop)) else {
                continue;
            };
            for context in [Context::Xdp, Context::Raw, Context::Skb] {
                let program = program.clone();
                let globals = vec![None; program.subprogs().len()];
                let generated =
                    Generated { program, context, globals, maps: 0xfff, lens: vec![14], ordered: false, lured: true };
                if let Err(what) = sabotage.check_as_is(&generated, 2, &mut Choices::from_seed(1)) {
                    panic!("{name}: {what}");
                }
            }
        }
    }
    let seen = &sabotage.seen;
    assert!(seen.contained > 100 / of(), "{seen:?}");
}

/// With each planted bug of the verifier, a program that it alone lets through stays inside its objects.
/// `examples/planted.rs` has made the file, and is the long run.
#[cfg(feature = "planted")]
#[test]
fn contained_programs_stay_inside_under_each_planted_bug() {
    use bpf_testkit::soundness::planted::{Bug, Planted, Thanks, parse};
    use std::collections::BTreeMap;
    /// Bugs that the file has programs for, at least, and those of them whose programs are harmful.
    const BUGS: usize = 100;
    const HARMFUL: usize = 45;
    if bpf_runtime::code::Arch::HOST.is_none() {
        eprintln!("SKIPPED: no machine code on this host");
        return;
    }
    let programs = parse(include_str!("../contained/planted.txt")).unwrap_or_else(|section| panic!("{section}"));
    // By bug: programs that it let through, and those of them with harmful runs.
    let mut seen: BTreeMap<String, (u32, u32)> = BTreeMap::new();
    let mut planted = Planted::default();
    for (fault, generated) in &programs {
        let thanks = planted.check(*fault, generated, 8, &mut Choices::from_seed(1));
        let (ran, harmed) = seen.entry(format!("{fault:?}")).or_default();
        match thanks.unwrap_or_else(|what| panic!("{fault:?}: {what}")) {
            Thanks::Ran { harmful } => (*ran, *harmed) = (*ran + 1, *harmed + u32::from(harmful > 0)),
            Thanks::Sound | Thanks::Refused | Thanks::Uncontained(_) => {}
        }
    }
    // Each bug is planted in turn, and an eighth of the file's programs are verified under it.
    for (i, fault) in Bug::all().enumerate() {
        let (ran, _) = seen.entry(format!("{fault:?}")).or_default();
        for (_, generated) in programs.iter().skip(i % 8).step_by(8).filter(|(of, _)| *of != fault) {
            let thanks = planted.check_refused(fault, generated, 1, &mut Choices::from_seed(2));
            let thanks = thanks.unwrap_or_else(|what| panic!("{fault:?}: {what}"));
            *ran += u32::from(matches!(thanks, Thanks::Ran { .. }));
        }
    }
    let none: Vec<_> = seen.iter().filter(|(_, (ran, _))| *ran == 0).map(|(fault, _)| fault).collect();
    let shown = seen.len() - none.len();
    eprintln!("no program of the file is accepted thanks to {none:?}; examples/planted.rs makes the file anew");
    let harmful = seen.values().filter(|(_, harmed)| *harmed > 0).count();
    eprintln!("{} programs, {} bugs, {harmful} of them harmful: {:?}", programs.len(), seen.len(), planted.seen);
    assert!(shown >= BUGS && harmful >= HARMFUL, "{shown} bugs, {harmful} harmful, none of {none:?}");
}

/// Where only the trusted core decides, no planted bug of the walks lets a program through that is unsafe. The programs
/// are those of the file that only a bug of the walks lets through, and generated ones; `examples/harmless.rs` is the
/// long run.
#[cfg(feature = "planted")]
#[test]
fn programs_that_the_core_accepts_under_a_planted_bug_run_as_promised() {
    use bpf_testkit::soundness::planted::{Bug, parse};
    use bpf_verifier::faults::{Fault, plant};
    // These bugs of the walks are in the core.
    let in_core = |fault| matches!(fault, Fault::SignedIsUnsigned | Fault::HalfIsWhole | Fault::RemainderTooSmall);
    let mut oracle = Oracle::interpreter_only();
    let mut tally = Tally::default();
    let mut check = |fault: Option<Fault>, generated: &Generated, choices: &mut Choices<'_>| {
        oracle.way = Some("certified");
        plant(fault);
        let outcome = oracle.check(generated, 2, choices);
        plant(None);
        outcome
    };
    let programs = parse(include_str!("../contained/planted.txt")).unwrap_or_else(|section| panic!("{section}"));
    for (bug, generated) in &programs {
        // The bugs of the core are another test's.
        let Bug::Walk(fault) = bug else { continue };
        if in_core(*fault) {
            continue;
        }
        let outcome = check(Some(*fault), generated, &mut Choices::from_seed(1));
        tally.count(generated, outcome).unwrap_or_else(|what| panic!("{fault:?}: {what}"));
    }
    println!("of the file: {tally}");
    for (seed, fault) in (0..).zip(Fault::ALL) {
        if in_core(*fault) {
            continue;
        }
        let mut choices = Choices::from_seed(seed);
        let generated = soundness::generate(&mut choices);
        let outcome = check(Some(*fault), &generated, &mut choices);
        tally.count(&generated, outcome).unwrap_or_else(|what| panic!("seed {seed}, {fault:?}: {what}"));
    }
    println!("with generated ones: {tally}");
    assert!(tally.accepted > 10, "{tally}");
}

/// With the limit of accesses that share a confinement not lowered, a store beside the packet is noticed.
#[cfg(feature = "faults")]
#[test]
fn a_limit_that_is_not_lowered_is_noticed() {
    use bpf_jit::faults::{Fault, plant};
    let text = "r7 = *(u8 *)(r1 + 0)\nr8 = r1\nr8 += r7\nr0 = *(u8 *)(r8 + 0)\n*(u64 *)(r8 + 40) = 0\nexit";
    let generated = Generated {
        program: Program::new(assemble(text).expect("it assembles")).expect("it is valid"),
        context: Context::Raw,
        globals: vec![None],
        maps: 0,
        lens: vec![30],
        ordered: true,
        lured: true,
    };
    let mut sabotage = Sabotage::default();
    let mut check = |fault| {
        plant(fault);
        let outcome = (0..40).find_map(|seed| sabotage.check_as_is(&generated, 4, &mut Choices::from_seed(seed)).err());
        plant(None);
        outcome
    };
    assert_eq!(check(None), None);
    assert!(check(Some(Fault::FartherForgotten)).is_some());
}

/// Runs this program, unverified and contained, on inputs of 40 seeds; returns the first violation.
#[cfg(feature = "faults")]
fn violation(text: &str, maps: u16) -> Option<String> {
    let generated = Generated {
        program: Program::new(assemble(text).expect("it assembles")).expect("it is valid"),
        context: Context::Raw,
        globals: vec![None],
        maps,
        lens: vec![30],
        ordered: true,
        lured: true,
    };
    let mut sabotage = Sabotage::default();
    let found = (0..40).find_map(|seed| sabotage.check_as_is(&generated, 4, &mut Choices::from_seed(seed)).err());
    assert!(sabotage.seen.contained > 0, "{:?}", sabotage.seen);
    found
}

/// A dynptr whose address the program has overwritten leads where it led before. With the words not restored before a
/// use, a store beside the packet is noticed.
#[cfg(feature = "faults")]
#[test]
fn a_dynptr_that_is_not_restored_is_noticed() {
    use bpf_jit::faults::{Fault, plant};
    let global = bpf_testkit::soundness::MapId::Global as u16;
    let text = format!(
        "r6 = r1\nr7 = *(u8 *)(r1 + 0)\nr1 = map[fd:{global}][0]+0\nr2 = 32\nr3 = 0\nr4 = r10\nr4 += -32\ncall 197\n\
         r7 &= 0\nr4 = r10\nr4 += -32\nr4 += r7\nr6 += -16\nr6 ^= 0\n*(u64 *)(r4 + 0) = r6\n\
         r1 = r10\nr1 += -32\nr2 = 0\nr3 = 8\ncall 203\n*(u64 *)(r0 + 0) = 0\nr0 = 0\nexit"
    );
    assert_eq!(violation(&text, 1 << global), None);
    plant(Some(Fault::DynptrUnrestored));
    let found = violation(&text, 1 << global);
    plant(None);
    assert!(found.is_some());
}
