//! A proof checker for register allocation, independent of the allocator.
//!
//! The checker follows, forward through the function, which virtual registers' current values each location holds;
//! where paths meet, it intersects the sets. Every operand must be in its location when it is read. Calls and ops with
//! fixed operands wipe the registers that they overwrite. The checker needs neither liveness nor interference, which
//! the allocator may get wrong.

use crate::passes::stack_facts;
use bpf_analysis::Facts;
use bpf_isa::Width;
use bpf_jit::{
    Alloc, AllocOptions, Allocator, Backend, Cfg, EmitOptions, Func, HostReg, HostRegSet, Lir, Loc, LowerOptions,
    Lowerer, MachineDesc, Op, PassOptions, PassScratch, Takes, VReg, Val, optimise,
};
use bpf_jit_arm64::Arm64;
use bpf_jit_code::CpuFeatures;
use bpf_jit_x64::X64;
use bpf_testkit::generate::{self, Shape};
use std::collections::{BTreeMap, BTreeSet};

/// By location: the virtual registers whose values it holds. A location that is not listed holds no known value.
type Held = BTreeMap<Loc, BTreeSet<VReg>>;

fn define(held: &mut Held, alloc: &Alloc, dst: VReg, mut value: BTreeSet<VReg>) {
    for set in held.values_mut() {
        set.remove(&dst);
    }
    value.insert(dst);
    held.insert(alloc.loc(dst), value);
}

/// Steps over an op; `before` and `after` are its neighbours in the block.
fn step(held: &mut Held, [before, op, after]: [Option<&Op>; 3], alloc: &Alloc, machine: &MachineDesc) {
    let op = op.unwrap();
    let left = op.def().filter(|v| alloc.is_held(*v));
    if let Some(v) = left {
        // The next op reads the operands of this one, and must be able to compute it.
        assert_eq!(
            after.and_then(|user| bpf_jit::held(machine.addresses.operands, op, user)),
            Some(v),
            "{op:?} is left to {after:?}"
        );
        return;
    }
    let holds = |v: VReg| {
        let holds = held.get(&alloc.loc(v)).is_some_and(|set| set.contains(&v));
        assert!(holds, "{op:?} reads {v:?}, which is not in {:?}", alloc.loc(v));
    };
    op.for_each_use(|v| {
        if !alloc.is_held(v) {
            return holds(v);
        }
        let maker = before.filter(|maker| maker.def() == Some(v)).unwrap();
        maker.for_each_use(holds);
        // The other operand is moved to the result's place before memory is read.
        if let (Op::Bin { dst, a, b, .. }, Takes::Memory) = (*op, machine.addresses.operands) {
            let moved = if a == v { b } else { Val::Reg(a) };
            maker.for_each_use(|part| {
                assert!(moved == Val::Reg(dst) || alloc.loc(part) != alloc.loc(dst), "{op:?} overwrites {part:?}");
            });
        }
    });
    let copied = match *op {
        Op::Mov { width: Width::W64, src: Val::Reg(src), .. } => held.get(&alloc.loc(src)).cloned().unwrap_or_default(),
        _ => BTreeSet::new(),
    };
    let clobbers = if let Op::Call { .. } = op { machine.call_clobbers() } else { machine.fixed(op).clobbers };
    for reg in clobbers.iter() {
        held.remove(&Loc::Reg(reg));
    }
    if let Some(dst) = op.def() {
        define(held, alloc, dst, copied);
    }
}

fn meet(into: &mut Option<Held>, from: &Held) -> bool {
    match into {
        None => {
            *into = Some(from.clone());
            true
        }
        Some(known) => {
            let before = known.clone();
            known.retain(|loc, set| {
                set.retain(|v| from.get(loc).is_some_and(|other| other.contains(v)));
                !set.is_empty()
            });
            *known != before
        }
    }
}

fn check(func: &Func, alloc: &Alloc, machine: &MachineDesc) {
    let mut entry: Vec<Option<Held>> = vec![None; func.blocks.len()];
    let cfg = Cfg::of(func);
    let first = func.order[0];
    entry[first.index()] = Some(func.entry_values().map(|p| (alloc.loc(p), BTreeSet::from([p]))).collect());
    assert_eq!(entry[first.index()].as_ref().map(BTreeMap::len), Some(func.entry_values().count()));
    let mut work = vec![first];
    while let Some(b) = work.pop() {
        let mut held = entry[b.index()].clone().unwrap_or_default();
        let ops = func.block_ops(b);
        for at in 0..ops.len() {
            let before = at.checked_sub(1).map(|before| &ops[before]);
            step(&mut held, [before, ops.get(at), ops.get(at + 1)], alloc, machine);
        }
        for succ in cfg.succs(b) {
            if meet(&mut entry[succ.index()], &held) {
                work.push(succ);
            }
        }
    }
    for (v, loc) in alloc.locs.iter().enumerate() {
        match loc {
            Loc::Reg(reg) => {
                assert!(machine.pool.contains(reg), "v{v} is in {reg:?}, which is not to be allocated");
                assert!(func.stack_bytes == 0 || machine.frame != Some(*reg), "v{v} is in the frame register");
                if machine.callee_saved.contains(reg) {
                    assert!(alloc.saves.contains(reg), "{reg:?} is used and not saved");
                }
            }
            Loc::Slot(slot) => assert!(*slot < alloc.slots),
        }
    }
}

fn machines() -> [&'static MachineDesc; 2] {
    // All features, not those of the host: without BMI2, variable shifts need rcx, and slots are used more often.
    let options = EmitOptions { features: CpuFeatures::ALL, ..EmitOptions::default() };
    [X64::default().machine(&options), Arm64::default().machine(&options)]
}

fn each_lowered(mut f: impl FnMut(u64, &Lir)) {
    let mut lowerer = Lowerer::default();
    let mut lir = Lir::default();
    for seed in 0..150u64 {
        let shape = Shape { packet_loads: seed % 3 == 0, ..Shape::default() };
        let program = generate::from_seed(seed, &shape).program;
        let checks = seed % 2 == 0;
        let options = LowerOptions { budget: checks, interrupt: checks, ..LowerOptions::default() };
        lowerer.lower(&program, &Facts::default(), &(), &options, &mut lir);
        if seed % 4 < 2 {
            optimise(&mut lir, PassOptions::default(), &mut PassScratch::default());
        }
        f(seed, &lir);
    }
}

#[test]
fn production_allocations_are_right_and_need_no_slot() {
    let mut allocator = Allocator::default();
    let mut alloc = Alloc::default();
    let mut slots = 0;
    each_lowered(|seed, lir| {
        for machine in machines() {
            for func in &lir.funcs {
                allocator.allocate(func, machine, &AllocOptions::default(), &mut alloc);
                check(func, &alloc, machine);
                slots += alloc.slots;
                assert!(alloc.slots <= 6, "seed {seed}: {} slots", alloc.slots);
            }
        }
    });
    assert!(slots < 60, "slots are for the rare function: {slots} in all");
}

/// Calls `f` with functions that have more values than registers, optimised for each machine: they are coloured a
/// second time, and their values share slots.
fn each_under_pressure(mut f: impl FnMut(&MachineDesc, &Func)) {
    let (mut lowerer, mut lir) = (Lowerer::default(), Lir::default());
    for seed in 0..400 {
        let insns = generate::pressure(&mut generate::Choices::from_seed(seed));
        let program = bpf_isa::Program::new(insns).unwrap();
        let checks = seed % 2 == 0;
        let options = LowerOptions { budget: checks, interrupt: checks, ..LowerOptions::default() };
        for machine in machines() {
            lowerer.lower(&program, &stack_facts(&program), &(), &options, &mut lir);
            let options = PassOptions { addresses: machine.addresses, ..PassOptions::default() };
            optimise(&mut lir, options, &mut PassScratch::default());
            lir.funcs.iter().for_each(|func| f(machine, func));
        }
    }
}

#[test]
fn allocations_under_pressure_are_right_and_share_slots() {
    let (mut allocator, mut alloc) = (Allocator::default(), Alloc::default());
    let (mut slots, mut in_slots) = (0, 0);
    each_under_pressure(|machine, func| {
        allocator.allocate(func, machine, &AllocOptions::default(), &mut alloc);
        check(func, &alloc, machine);
        slots += alloc.slots as usize;
        in_slots += alloc.locs.iter().filter(|loc| matches!(loc, Loc::Slot(_))).count();
    });
    assert!(slots > 1000 && in_slots > 20 + slots, "{in_slots} values in {slots} slots");
}

#[test]
fn any_restriction_is_right() {
    let mut allocator = Allocator::default();
    let mut alloc = Alloc::default();
    each_lowered(|seed, lir| {
        for machine in machines() {
            let three = HostRegSet::of(&[machine.ret, machine.args[2], machine.callee_saved[0]]);
            for (only, random) in [(Some(HostRegSet::EMPTY), None), (Some(three), None), (None, Some(seed))] {
                let options = AllocOptions { only, seed: random };
                for func in &lir.funcs {
                    allocator.allocate(func, machine, &options, &mut alloc);
                    check(func, &alloc, machine);
                }
            }
        }
    });
}

/// Checks that a value stays in memory only if the result does not overwrite its address first, and if the value is not
/// read again.
#[test]
fn the_checker_notices_an_address_that_is_overwritten() {
    let text =
        "func 0 (v0, v1, -, -, -) {\nb0:\n v2 = load.dw [v0]\n v3 = sub.64 v1, v2\n v4 = add.64 v3, v1\n exit v4\n}\n";
    let lir: Lir = text.parse().unwrap();
    let mut alloc = Alloc::default();
    Allocator::default().allocate(&lir.funcs[0], machines()[0], &AllocOptions::default(), &mut alloc);
    assert!(alloc.is_held(VReg(2)));
    check(&lir.funcs[0], &alloc, machines()[0]);
    alloc.locs[3] = alloc.locs[0];
    alloc.locs[4] = alloc.locs[3];
    assert!(std::panic::catch_unwind(|| check(&lir.funcs[0], &alloc, machines()[0])).is_err());
    let again: Lir = text.replace("add.64 v3, v1", "add.64 v3, v2").parse().unwrap();
    Allocator::default().allocate(&again.funcs[0], machines()[0], &AllocOptions::default(), &mut alloc);
    assert!(!alloc.is_held(VReg(2)));
}

/// Checks that the checker notices a wrong allocation.
#[test]
fn the_checker_notices_two_values_in_one_register() {
    let program = generate::from_seed(3, &Shape::default()).program;
    let mut lir = Lir::default();
    Lowerer::default().lower(&program, &Facts::default(), &(), &LowerOptions::default(), &mut lir);
    let machine = machines()[0];
    let mut alloc = Alloc::default();
    Allocator::default().allocate(&lir.funcs[0], machine, &AllocOptions::default(), &mut alloc);
    check(&lir.funcs[0], &alloc, machine);
    alloc.locs.fill(Loc::Reg(HostReg(machine.pool[0].0)));
    let noticed = std::panic::catch_unwind(|| check(&lir.funcs[0], &alloc, machine)).is_err();
    assert!(noticed);
}

/// With more values than registers, the values that a loop reads get registers, however they are numbered.
#[test]
fn values_of_loops_have_registers() {
    let mut text = String::from("func 0 (v0, v1, -, -, -) {\nb0:\n");
    let cold = 2..40;
    for v in cold.clone() {
        text += &format!(" v{v} = load.dw [v0 + {}]\n", 8 * v);
    }
    text += " v40 = mov.64 0\n v41 = mov.64 1\nb1:\n v41 = mul.64 v41, v40\n v40 = add.64 v40, 1\n";
    text += " branch.64 v40 lt v1, b1\nb2:\n";
    for v in cold {
        text += &format!(" v41 = add.64 v41, v{v}\n");
    }
    text += " exit v41\n}\n";
    let lir: Lir = text.parse().unwrap();
    let (mut allocator, mut alloc) = (Allocator::default(), Alloc::default());
    for machine in machines() {
        allocator.allocate(&lir.funcs[0], machine, &AllocOptions::default(), &mut alloc);
        check(&lir.funcs[0], &alloc, machine);
        assert!(alloc.slots > 10, "{} slots", alloc.slots);
        for v in [1, 40, 41] {
            assert!(matches!(alloc.loc(VReg(v)), Loc::Reg(_)), "v{v}: {:?}", alloc.loc(VReg(v)));
        }
    }
}

/// Checks that the checker finds each deliberate bug in the allocator.
#[cfg(feature = "faults")]
#[test]
fn faults_of_allocation_are_found() {
    use bpf_jit::faults::{Fault, plant};
    for &fault in Fault::OF_ALLOCATION {
        let mut found = 0;
        let mut look = |machine: &MachineDesc, func: &Func| {
            let wrong = |planted| {
                plant(planted);
                let mut alloc = Alloc::default();
                Allocator::default().allocate(func, machine, &AllocOptions::default(), &mut alloc);
                plant(None);
                std::panic::catch_unwind(|| check(func, &alloc, machine)).is_err()
            };
            assert!(!wrong(None));
            found += u32::from(wrong(Some(fault)));
        };
        each_lowered(|_, lir| lir.funcs.iter().for_each(|func| look(machines()[0], func)));
        each_under_pressure(look);
        println!("{fault:?}: {found}");
        assert!(found > 0, "{fault:?}: not found");
    }
}
