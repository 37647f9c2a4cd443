//! The loops of random programs, most of them entered in their middles, against what is promised of them.

use bpf_analysis::{BlockId, Loops};
use bpf_isa::{InsnIdx, Program, assemble};
use bpf_testkit::generate::Choices;

/// A program of single conditional jumps, forwards and backwards, of which all is reached.
fn program(c: &mut Choices<'_>) -> Program {
    let blocks = 3 + c.below(9);
    let mut text = String::new();
    for i in 0..blocks {
        text += &format!("b{i}: if r1 == {i} goto b{}\n", c.below(blocks + 1));
        if c.one_in(4) {
            text += &format!("goto b{}\n", c.below(blocks + 1));
        }
    }
    text += &format!("b{blocks}: exit");
    Program::new(assemble(&text).expect("instructions")).expect("valid")
}

/// Blocks that can be reached from these without going into a block that is not `open`.
fn reached(loops: &Loops, from: &[BlockId], open: impl Fn(BlockId) -> bool) -> Vec<BlockId> {
    let mut seen: Vec<BlockId> = Vec::new();
    let mut stack: Vec<BlockId> = from.iter().copied().filter(|b| open(*b)).collect();
    while let Some(b) = stack.pop() {
        if !seen.contains(&b) {
            seen.push(b);
            stack.extend(loops.cfg().succs(b).filter(|s| open(*s)));
        }
    }
    seen
}

#[test]
fn each_cycle_has_a_head_and_no_way_leads_back_in_but_by_one_around() {
    let (mut entered, mut around) = (0, 0);
    for seed in 0..3000 {
        let program = program(&mut Choices::from_seed(seed));
        let loops = Loops::new(&program);
        let at = |b: BlockId| InsnIdx(loops.cfg().block(b).start);
        let blocks: Vec<BlockId> = (0..loops.cfg().blocks().len() as u32).map(BlockId).collect();
        let blocks = reached(&loops, &blocks[..1], |_| true);
        let is_head = |b: BlockId| loops.loops().iter().any(|l| l.head == at(b));
        // Without heads there is no cycle.
        for &b in blocks.iter().filter(|b| !is_head(**b)) {
            let next: Vec<BlockId> = loops.cfg().succs(b).collect();
            assert!(!reached(&loops, &next, |s| !is_head(s)).contains(&b), "seed {seed}: {b:?}\n{program}");
        }
        for (id, l) in (0u32..).zip(loops.loops()) {
            let inside = |b: BlockId| loops.contains(id, at(b));
            entered += u32::from(!l.natural);
            // Each block of it is on a cycle through its head that stays in it.
            let head = *blocks.iter().find(|b| at(**b) == l.head).expect("a block");
            for &b in blocks.iter().filter(|b| inside(**b)) {
                assert!(reached(&loops, &[b], inside).contains(&head), "seed {seed}: {b:?} of {l:?}\n{program}");
            }
            // Out of it, and back in, only over the head of a loop around it.
            let outer = |b: BlockId| {
                (0u32..).zip(loops.loops()).any(|(o, m)| o != id && m.head == at(b) && loops.contains(o, l.head))
            };
            let out: Vec<BlockId> = blocks.iter().filter(|b| inside(**b)).flat_map(|b| loops.cfg().succs(*b)).collect();
            let out = reached(&loops, &out, |b| !inside(b) && !outer(b));
            let back = out.iter().flat_map(|b| loops.cfg().succs(*b)).find(|b| inside(*b));
            assert_eq!(back, None, "seed {seed}: {l:?}\n{program}");
            around += u32::from(l.parent.is_some());
        }
    }
    assert!(entered > 1000 && around > 1000, "{entered} entered in their middle, {around} in others");
}
