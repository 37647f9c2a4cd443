//! Constant tail calls against their naive twin, and the cases that matter.
//!
//! The twin is the definition: for each instruction and register the set of all values that reach it over any path, as
//! a fixpoint over single instructions. A register is constant where that set has one member.

use bpf_analysis::{Cfg, ConstTailCall, Constants, defs};
use bpf_isa::{Callee, Imm64, Insn, InsnIdx, Program, Reg, Src, Width, assemble};
use bpf_testkit::generate::Choices;
use std::collections::BTreeSet;
use std::fmt::Write;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Seen {
    Anything,
    Number(u64),
    Map(i32),
}

type Sets = Vec<BTreeSet<Seen>>;

fn low(seen: &Seen) -> Seen {
    match *seen {
        Seen::Number(n) => Seen::Number(n & 0xffff_ffff),
        Seen::Anything | Seen::Map(_) => Seen::Anything,
    }
}

fn after(insn: &Insn, before: &Sets) -> Sets {
    let mut sets = before.clone();
    for reg in defs(insn).iter() {
        sets[reg.index()] = BTreeSet::from([Seen::Anything]);
    }
    match *insn {
        Insn::Mov { width, dst, src: Src::Imm(imm) } => {
            let wide = Seen::Number(imm as i64 as u64);
            sets[dst.index()] = BTreeSet::from([if width == Width::W64 { wide } else { low(&wide) }]);
        }
        Insn::Mov { width, dst, src: Src::Reg(src) } => {
            let from = &before[src.index()];
            sets[dst.index()] = if width == Width::W64 { from.clone() } else { from.iter().map(low).collect() };
        }
        Insn::LoadImm64 { dst, imm: Imm64::Const(n) } => sets[dst.index()] = BTreeSet::from([Seen::Number(n)]),
        Insn::LoadImm64 { dst, imm: Imm64::Map(map) | Imm64::MapIdx(map) } => {
            sets[dst.index()] = BTreeSet::from([Seen::Map(map)]);
        }
        _ => {}
    }
    sets
}

fn naive(program: &Program) -> Vec<ConstTailCall> {
    let insns = program.insns();
    let mut before: Vec<Option<Sets>> = vec![None; insns.len()];
    for sub in program.subprogs() {
        before[sub.start as usize] = Some(vec![BTreeSet::from([Seen::Anything]); Reg::ALL.len()]);
    }
    loop {
        let mut changed = false;
        for (i, insn) in insns.iter().enumerate() {
            let Some(now) = before[i].clone() else { continue };
            let out = after(insn, &now);
            let next =
                (!insn.ends_flow() && !program.subprogs().iter().any(|sub| sub.end as usize == i + 1)).then_some(i + 1);
            let taken = insn.jump_offset().and_then(|off| InsnIdx(i as u32).jump(off)).map(InsnIdx::index);
            for to in next.into_iter().chain(taken) {
                let merged = match &before[to] {
                    None => out.clone(),
                    Some(sets) => sets.iter().zip(&out).map(|(a, b)| a | b).collect(),
                };
                if before[to].as_ref() != Some(&merged) {
                    before[to] = Some(merged);
                    changed = true;
                }
            }
        }
        if !changed {
            break;
        }
    }
    let only = |set: &BTreeSet<Seen>| if set.len() == 1 { set.first().copied() } else { None };
    let mut found = Vec::new();
    for (i, insn) in insns.iter().enumerate() {
        if *insn != Insn::Call(Callee::Helper(12)) {
            continue;
        }
        let Some(sets) = &before[i] else { continue };
        if let (Some(Seen::Map(map)), Some(Seen::Number(n))) = (only(&sets[2]), only(&sets[3]))
            && entries(map as u32).is_some_and(|entries| (n as u32) < entries)
        {
            found.push(ConstTailCall { insn: InsnIdx(i as u32), map: map as u32, index: n as u32 });
        }
    }
    found
}

/// Maps 0 and 1 are tables, 2 is not.
fn entries(map: u32) -> Option<u32> {
    [Some(4), Some(1), None].get(map as usize).copied().flatten()
}

fn tail_calls(program: &Program) -> Vec<ConstTailCall> {
    Constants::default().tail_calls(program, &Cfg::new(program), entries)
}

/// A program of copies, constants, jumps in both directions and calls; `None` if it is not valid.
fn random(seed: u64) -> Option<Program> {
    let mut choices = Choices::from_seed(seed);
    let lines = 6 + choices.below(24);
    let mut text = String::new();
    for i in 0..lines {
        let reg = ["r2", "r3", "r6", "r7"][choices.below(4) as usize];
        let other = ["r2", "r3", "r6", "r7"][choices.below(4) as usize];
        let target = choices.below(lines);
        let line = match choices.below(12) {
            0 | 1 => format!("{reg} = {}", choices.below(5)),
            2 | 3 => format!("{reg} = {other}"),
            4 => format!("w{} = w{}", &reg[1..], &other[1..]),
            5 | 6 => format!("r2 = map[fd:{}]", choices.below(3)),
            7 => format!("{reg} = 0xffffffff0000000{} ll", choices.below(5)),
            8 => format!("if r1 == 0 goto l{target}"),
            9 => format!("{reg} += 1"),
            _ => "call 12".to_owned(),
        };
        write!(text, "l{i}:\n{line}\n").unwrap();
    }
    text += "exit\n";
    if choices.below(2) == 0 {
        text += "sub:\nr2 = map[fd:0]\nr3 = 1\ncall 12\nexit\n";
        text = format!("call sub\n{text}");
    }
    Program::new(assemble(&text).unwrap_or_else(|e| panic!("{e} in\n{text}"))).ok()
}

#[test]
fn agrees_with_the_naive_twin() {
    let (mut programs, mut found) = (0, 0);
    let mut constants = Constants::default();
    for seed in 0..3000 {
        let Some(program) = random(seed) else { continue };
        let calls = constants.tail_calls(&program, &Cfg::new(&program), entries);
        assert_eq!(calls, naive(&program), "seed {seed}");
        programs += 1;
        found += calls.len();
    }
    assert!(programs > 2000 && found > 1000, "{programs} programs with {found} constant calls say little");
}

fn of(text: &str) -> Vec<(u32, u32, u32)> {
    let program = Program::new(assemble(text).unwrap()).unwrap();
    tail_calls(&program).iter().map(|t| (t.insn.0, t.map, t.index)).collect()
}

#[test]
fn the_table_may_wait_in_a_saved_register() {
    assert_eq!(
        of("r7 = map[fd:0]\nr2 = r7\nr3 = 1\ncall 12\nr2 = r7\nr3 = 2\ncall 12\nr0 = 0\nexit"),
        [(4, 0, 1), (7, 0, 2)]
    );
}

#[test]
fn a_call_forgets_the_scratch_registers() {
    assert_eq!(of("r2 = map[fd:0]\nr3 = 1\ncall 12\ncall 12\nr0 = 0\nexit"), [(3, 0, 1)]);
}

#[test]
fn paths_that_agree_make_a_constant_and_paths_that_do_not_make_none() {
    let text = |a: u32, b: u32| {
        format!(
            "r2 = map[fd:0]\nif r1 == 0 goto other\nr3 = {a}\ngoto join\nother:\nr3 = {b}\njoin:\ncall 12\nr0 = 0\nexit"
        )
    };
    assert_eq!(of(&text(3, 3)), [(6, 0, 3)]);
    assert_eq!(of(&text(3, 2)), []);
}

#[test]
fn constants_survive_loops_that_leave_them_alone() {
    let text = |body: &str| {
        format!(
            "r6 = r1\nr7 = map[fd:0]\nr8 = 2\nagain:\nr2 = r7\nr3 = r8\ncall 12\n{body}\nif r0 != 0 goto again\nexit"
        )
    };
    assert_eq!(of(&text("r9 = 1")), [(6, 0, 2)]);
    assert_eq!(of(&text("r8 = 1")), []);
}

#[test]
fn the_index_is_its_low_half_and_must_be_in_the_table() {
    assert_eq!(of("r2 = map[fd:0]\nr3 = 0x500000003 ll\ncall 12\nexit"), [(4, 0, 3)]);
    assert_eq!(of("r2 = map[fd:0]\nr3 = 4\ncall 12\nexit"), []);
    assert_eq!(of("r2 = map[fd:2]\nr3 = 0\ncall 12\nexit"), []);
    assert_eq!(of("r2 = map[fd:0]\nr3 = -1\ncall 12\nexit"), []);
}

#[test]
fn unreachable_calls_are_not_reported() {
    assert_eq!(of("r0 = 0\nexit\nr2 = map[fd:0]\nr3 = 0\ncall 12\nexit"), []);
}
