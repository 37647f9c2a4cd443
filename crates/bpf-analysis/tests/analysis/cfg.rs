//! Pruning the graph by dead instructions.

use bpf_analysis::{BlockId, Cfg};
use bpf_isa::{InsnIdx, Program, SubprogId, assemble};

fn program(text: &str) -> Program {
    Program::new(assemble(&text.replace(';', "\n")).unwrap()).unwrap()
}

/// The graph after pruning: for each block its first slot, whether it is reachable, and its successors.
fn pruned(program: &Program, dead: &[u32]) -> Vec<(u32, bool, Vec<u32>)> {
    let mut cfg = Cfg::new(program);
    cfg.prune(program, |at| dead.contains(&at.0));
    let succs = |id: u32| cfg.succs(BlockId(id)).map(|s| cfg.block(s).start).collect();
    (0..).zip(cfg.blocks()).map(|(id, b)| (b.start, b.reachable, succs(id))).collect()
}

#[test]
fn edges_to_dead_blocks_go() {
    // 0: test; 1: the one side, which jumps to 3; 3: the end.
    let p = program("if r1 == 0 goto a; r0 = 1; goto b; a: r0 = 2; b: exit");
    assert_eq!(
        pruned(&p, &[]),
        [(0, true, vec![1, 3]), (1, true, vec![4]), (3, true, vec![4]), (4, true, vec![])],
        "nothing is dead"
    );
    assert_eq!(pruned(&p, &[3]), [(0, true, vec![1]), (1, true, vec![4]), (3, false, vec![4]), (4, true, vec![])]);
    assert_eq!(pruned(&p, &[1, 2]), [(0, true, vec![3]), (1, false, vec![4]), (3, true, vec![4]), (4, true, vec![])]);
    // With both successors dead, the jump would have none: the facts are ignored.
    assert!(pruned(&p, &[1, 2, 3, 4]).iter().all(|block| block.1));
}

#[test]
fn functions_that_only_dead_code_calls_are_unreachable() {
    let p = program("r0 = 0; if r1 == 0 goto a; call f; a: exit; f: r0 = 1; exit");
    let blocks = pruned(&p, &[2, 4, 5]);
    let f = Cfg::new(&p).subprog_blocks(SubprogId(1)).start as usize;
    assert!(!blocks[f].1, "{blocks:?}");
    assert!(blocks[0].1);
}

/// An indirect jump leads to each target of its function, or, with a verifier's facts, to the targets that it reaches.
#[test]
fn indirect_jumps_have_an_edge_to_each_target() {
    let text = "r2 = 1\na: gotox r1\nb: r0 = r3\nexit\nc: r0 = r4\nexit\nr0 = 9\nexit";
    let insns = bpf_isa::assemble(text).unwrap();
    let targets = [1, 2, 4].map(InsnIdx);
    let program = Program::with_targets(insns, targets.to_vec()).unwrap();
    let mut cfg = Cfg::new(&program);
    let at = |cfg: &Cfg, slot| cfg.block_at(InsnIdx(slot)).unwrap();
    let starts = |cfg: &Cfg| cfg.succs(at(cfg, 1)).map(|b| cfg.block(b).start).collect::<Vec<_>>();
    assert_eq!(starts(&cfg), [1, 2, 4]);
    let reachable = |cfg: &Cfg| cfg.blocks().iter().map(|b| (b.start, b.reachable)).collect::<Vec<_>>();
    assert_eq!(reachable(&cfg), [(0, true), (1, true), (2, true), (4, true), (6, false)]);
    let liveness = bpf_analysis::Liveness::new(&program, &cfg, &());
    let live = liveness.live_in(at(&cfg, 1)).iter().map(|reg| reg as u8).collect::<Vec<_>>();
    assert_eq!(live, [1, 3, 4]);
    let loops = bpf_analysis::Loops::new(&program);
    assert_eq!(loops.loops().iter().map(|l| l.head.0).collect::<Vec<_>>(), [1]);
    cfg.prune(&program, |slot| slot.0 >= 4);
    assert_eq!(starts(&cfg), [1, 2]);
    assert_eq!(reachable(&cfg), [(0, true), (1, true), (2, true), (4, false), (6, false)]);
}
