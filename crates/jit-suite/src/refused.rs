//! Tests that wrong results of the allocator or the lowering are internal errors, not panics.

use crate::Target;
use crate::bench::Bench;
use crate::build::Build;
use bpf_isa::{SubprogId, Width};
use bpf_jit::{Alloc, Allocator, BinOp, BlockId, Cond, Func, HostReg, Lir, Loc, Op, VReg, Val};

/// Allocations and programs with references to registers and blocks that do not exist, for this machine.
pub fn malformed_input_is_refused(target: &mut dyn Target) {
    let bench = &Bench::new(target);
    let (allocation, options) = bench.all_ways(0, 0)[0];
    let machine = bench.machine(&options);
    let mut b = Build::new();
    let [x, y, z, ..] = b.params();
    b.op(Op::Bin { op: BinOp::Add, width: Width::W64, dst: x, a: x, b: Val::Reg(y) });
    b.op(Op::Branch { width: Width::W64, cond: Cond::Eq, a: x, b: Val::Reg(z), target: BlockId(2) });
    b.block();
    b.set(x, 3);
    b.block();
    b.exit(x);
    let good = b.alone();
    let refused = |lir: &Lir, spoil: &dyn Fn(&mut Alloc)| {
        let mut alloc = Alloc::default();
        Allocator::default().allocate(&good.funcs[0], machine, &allocation, &mut alloc);
        spoil(&mut alloc);
        bpf_jit::check(lir, &[alloc], machine).is_err()
    };
    assert!(!refused(&good, &|_| {}));
    assert!(refused(&good, &|alloc| alloc.locs.clear()));
    for reg in (0..=255).map(HostReg) {
        let ours = reg.0 < 32 && machine.pool_set.without(machine.saved_set).contains(reg);
        let is_refused = refused(&good, &|alloc| {
            alloc.saves.clear();
            alloc.locs[0] = Loc::Reg(reg);
        });
        assert_eq!(is_refused, !ours, "{reg:?} is not saved or not in the pool");
    }
    assert!(refused(&good, &|alloc| alloc.locs[0] = Loc::Slot(alloc.slots)));
    assert!(refused(&good, &|alloc| alloc.saves = vec![machine.callee_saved[0]; machine.callee_saved.len() + 1]));
    let spoiled: [fn(&mut Func); 6] = [
        |func| func.ops[1] = Op::Jump { target: BlockId(1000) },
        |func| func.ops[0] = Op::Mov { width: Width::W64, dst: VReg(1000), src: Val::Imm(0) },
        |func| func.ops[3] = Op::Exit { value: VReg(1000) },
        |func| func.params[2] = Some(VReg(1000)),
        |func| func.blocks[0].ops.end = 1_000_000,
        |func| func.ops[0] = Op::SubprogAddr { dst: VReg(0), subprog: SubprogId(7) },
    ];
    for (i, spoil) in spoiled.iter().enumerate() {
        let mut lir = good.clone();
        spoil(&mut lir.funcs[0]);
        assert!(refused(&lir, &|_| {}), "{i}");
    }
}
