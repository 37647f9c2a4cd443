//! Compares the analyses of functions with naive twins, and the text form with itself, on lowered programs and on the
//! output of passes.

use bpf_analysis::Facts;
use bpf_isa::Width;
use bpf_jit::{
    BlockId, Cfg, Dominators, Func, Lir, LirError, Liveness, LowerOptions, Lowerer, Op, Pass, PassOptions, PassScratch,
    Span, VReg, Val,
};
use bpf_testkit::generate::{self, Shape};
use std::collections::BTreeSet;

/// Calls `f` with lowered programs, as they are and after random edits and passes.
fn each(mut f: impl FnMut(u64, &Lir)) {
    let mut lowerer = Lowerer::default();
    let mut lir = Lir::default();
    for seed in 0..120u64 {
        let shape = Shape { packet_loads: seed % 3 == 0, ..Shape::default() };
        let program = generate::from_seed(seed, &shape).program;
        let checks = seed % 2 == 0;
        let options = LowerOptions { budget: checks, interrupt: checks, ..LowerOptions::default() };
        lowerer.lower(&program, &Facts::default(), &(), &options, &mut lir);
        f(seed, &lir);
        lir.funcs.iter_mut().for_each(|func| edit(func, seed));
        f(seed, &lir);
        for pass in Pass::ALL {
            for func in &mut lir.funcs {
                pass.run(func, PassOptions::default(), &mut PassScratch::default());
            }
            f(seed, &lir);
        }
        lir.funcs.iter_mut().for_each(Func::compact);
        f(seed, &lir);
    }
}

/// Splits blocks and edges, and inserts ops that change nothing.
fn edit(func: &mut Func, seed: u64) {
    let mut random = seed;
    for block in func.order.clone() {
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let dst = func.new_vreg();
        let nothing = [(Op::Mov { width: Width::W64, dst, src: Val::Imm(7) }, Span { first: 0, len: 1 })];
        match random >> 61 {
            0 => {
                func.split_taken(block, nothing);
            }
            1 => {
                func.split_block(block, func.block_ops(block).len() as u32 / 2);
            }
            2 if !func.block_ops(block).last().is_some_and(|op| matches!(op, Op::Exit { .. } | Op::Jump { .. })) => {
                let new = func.new_block(nothing);
                func.insert_after(block, new);
            }
            _ => {}
        }
    }
}

/// Computes liveness with a set of values per block, until nothing changes.
fn naive_live_out(func: &Func, cfg: &Cfg) -> Vec<BTreeSet<VReg>> {
    let mut live_in = vec![BTreeSet::new(); func.blocks.len()];
    let mut live_out = live_in.clone();
    loop {
        let before = live_in.clone();
        for block in func.order.iter().rev() {
            let mut live: BTreeSet<VReg> = cfg.succs(*block).flat_map(|s| live_in[s.index()].clone()).collect();
            live_out[block.index()] = live.clone();
            for op in func.block_ops(*block).iter().rev() {
                if let Some(v) = op.def() {
                    live.remove(&v);
                }
                op.for_each_use(|v| {
                    live.insert(v);
                });
            }
            live_in[block.index()] = live;
        }
        if before == live_in {
            return live_out;
        }
    }
}

/// Whether a path leads from the entry to `to` that does not pass `without`.
fn reaches(func: &Func, cfg: &Cfg, to: BlockId, without: Option<BlockId>) -> bool {
    let mut seen = BTreeSet::new();
    let mut work = vec![func.order[0]];
    while let Some(block) = work.pop() {
        if Some(block) != without && seen.insert(block) {
            work.extend(cfg.succs(block));
        }
    }
    seen.contains(&to)
}

#[test]
fn liveness_agrees_with_the_naive_twin() {
    let mut liveness = Liveness::default();
    each(|seed, lir| {
        for func in &lir.funcs {
            let want = naive_live_out(func, &Cfg::of(func));
            liveness.build(func);
            for block in &func.order {
                let found: BTreeSet<VReg> = liveness.live_out(*block).iter().copied().collect();
                assert_eq!(found, want[block.index()], "seed {seed}, {block}\n{func}");
                assert_eq!(found.len(), liveness.live_out(*block).len(), "seed {seed}, {block}: listed twice");
            }
        }
    });
}

#[test]
fn dominators_agree_with_the_naive_twin() {
    each(|seed, lir| {
        for func in lir.funcs.iter().filter(|_| seed % 8 == 0) {
            let cfg = Cfg::of(func);
            let dominators = Dominators::of(&cfg);
            for b in &func.order {
                let reached = reaches(func, &cfg, *b, None);
                assert_eq!(cfg.is_reachable(*b), reached);
                for a in &func.order {
                    let want = reached && !reaches(func, &cfg, *b, Some(*a));
                    assert_eq!(dominators.dominates(*a, *b), want, "seed {seed}: {a} over {b}\n{func}");
                }
                if let Some(idom) = dominators.idom(*b) {
                    assert!(dominators.dominates(idom, *b));
                }
            }
        }
    });
}

#[test]
fn what_is_printed_and_read_is_equal() {
    each(|seed, lir| {
        let text = lir.to_string();
        let read: Lir = text.parse().unwrap_or_else(|error| panic!("seed {seed}: {error}\n{text}"));
        assert_eq!(read.to_string(), text, "seed {seed}");
        assert_eq!(read.verify(), Ok(()), "seed {seed}\n{text}");
        // A compact function is read as it was printed.
        let mut compact = lir.clone();
        compact.funcs.iter_mut().for_each(Func::compact);
        let mut read: Lir = compact.to_string().parse().unwrap();
        for (read, was) in read.funcs.iter_mut().zip(&compact.funcs) {
            // Values that no op names are not part of the text.
            read.vregs = was.vregs;
        }
        assert_eq!(read, compact, "seed {seed}");
    });
}

#[test]
fn lowered_edited_and_optimised_programs_are_well_formed() {
    each(|seed, lir| assert_eq!(lir.verify(), Ok(()), "seed {seed}\n{lir}"));
}

/// Checks that `verify` notices functions that are not well formed.
#[test]
fn what_is_not_well_formed_is_noticed() {
    let good = "func 0 (v0, -, -, -, -) {\nb0:\n branch.64 v0 eq 0, b2\nb1:\n v1 = mov.64 1\nb2:\n exit v0\n}";
    assert_eq!(good.parse::<Lir>().unwrap().verify(), Ok(()));
    let undefined = good.replace("exit v0", "exit v1");
    assert!(matches!(undefined.parse::<Lir>().unwrap().verify(), Err(LirError::Undefined { value: VReg(1), .. })));
    let both = undefined.replace("b0:\n", "b0:\n v1 = mov.64 2\n");
    assert_eq!(both.parse::<Lir>().unwrap().verify(), Ok(()), "written on every way");
    let nowhere = good.replace("eq 0, b2", "eq 0, b7");
    assert!(matches!(nowhere.parse::<Lir>().unwrap().verify(), Err(LirError::Jump { .. })));
    let middle = good.replace(" v1 = mov.64 1", " jump b2\n v1 = mov.64 1");
    assert!(matches!(middle.parse::<Lir>().unwrap().verify(), Err(LirError::Jump { .. })));
    let end = good.replace(" exit v0", " v1 = mov.64 1");
    assert!(matches!(end.parse::<Lir>().unwrap().verify(), Err(LirError::End(_))));
    let subprog = good.replace("v1 = mov.64 1", "v1 = addr func:3");
    assert!(matches!(subprog.parse::<Lir>().unwrap().verify(), Err(LirError::Unknown(_))));
    let acquired = good.replace("v1 = mov.64 1", "v1 = acquire.dw [v0 + v0 << 3]");
    assert!(matches!(acquired.parse::<Lir>().unwrap().verify(), Err(LirError::Address(_))));
    let twice = good.replace("(v0, -,", "(v0, v0,");
    assert!(matches!(twice.parse::<Lir>().unwrap().verify(), Err(LirError::Parameter(_))));
}
