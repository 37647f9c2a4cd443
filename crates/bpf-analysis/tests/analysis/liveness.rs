//! Liveness against its naive twin, and the rules for calls.
//!
//! The twin is the definition: a fixpoint over single instructions, without blocks, gen/kill sets or orders.

use bpf_analysis::{BlockId, CallArity, Cfg, Liveness, RegSet, results};
use bpf_isa::{Insn, InsnIdx, Program, Reg, SubprogId, assemble};
use bpf_testkit::generate::{self, Choices, Shape};

/// Helper arity used here: id modulo 6.
struct ByNumber;

impl CallArity for ByNumber {
    fn helper(&self, id: u32) -> u8 {
        (id % 6) as u8
    }
    fn host(&self, _: i32) -> u8 {
        5
    }
}

/// Live registers before each slot: the smallest sets with `live(i) = uses(i) + (live(successors) - results(i))`.
fn naive(program: &Program, liveness: &Liveness) -> Vec<RegSet> {
    let insns = program.insns();
    let mut live = vec![RegSet::EMPTY; insns.len()];
    loop {
        let before = live.clone();
        for (i, insn) in insns.iter().enumerate() {
            let at = InsnIdx(i as u32);
            let mut out = RegSet::EMPTY;
            if !insn.ends_flow() && !program.subprogs().iter().any(|sub| sub.end == at.0 + 1) {
                out = out.union(live[i + 1]);
            }
            if let Some(target) = insn.jump_offset().and_then(|off| at.jump(off)) {
                out = out.union(live[target.index()]);
            }
            live[i] = out.without(results(insn)).union(liveness.uses(program, at.0, &ByNumber));
        }
        if live == before {
            return live;
        }
    }
}

fn program_of(text: &str) -> Program {
    Program::new(assemble(text).unwrap()).unwrap()
}

#[test]
fn agrees_with_the_naive_twin() {
    for seed in 0..400 {
        let program = generate::from_seed(seed, &Shape { packet_loads: seed % 3 == 0, ..Shape::default() }).program;
        let cfg = Cfg::new(&program);
        let liveness = Liveness::new(&program, &cfg, &ByNumber);
        let naive = naive(&program, &liveness);
        for (b, block) in cfg.blocks().iter().enumerate() {
            let id = BlockId(b as u32);
            assert_eq!(liveness.live_in(id), naive[block.start as usize], "seed {seed}, block at {}", block.start);
        }
        for (s, sub) in program.subprogs().iter().enumerate() {
            let args = naive[sub.start as usize].intersection(RegSet::ARGS);
            assert_eq!(liveness.args(SubprogId(s as u32)), args, "seed {seed}, subprogram {s}");
        }
    }
}

/// Blocks laid out in the reverse of the order they run in, and in any other: a sweep settles few of them.
#[test]
fn any_layout_agrees_with_the_naive_twin() {
    const BLOCKS: usize = 40;
    for seed in 0..60 {
        let mut c = Choices::from_seed(seed);
        // Where the block that runs n-th lies.
        let mut place: Vec<usize> = (0..BLOCKS).rev().collect();
        if seed > 0 {
            (1..BLOCKS).for_each(|i| place.swap(i, c.below(i as u32 + 1) as usize));
        }
        let mut texts = vec![String::new(); BLOCKS];
        for n in 0..BLOCKS - 1 {
            let (d, s, t) = (c.below(10), c.below(10), c.below(10));
            let far = n + 1 + c.below((BLOCKS - n - 1) as u32) as usize;
            let next = n + 1;
            texts[place[n]] = format!("b{n}:\nr{d} = r{s}\nif r{t} > 7 goto b{far}\ngotol b{next}\n");
        }
        texts[place[BLOCKS - 1]] = format!("b{}:\nr0 = r6\nexit\n", BLOCKS - 1);
        let program = program_of(&format!("gotol b0\n{}", texts.concat()));
        let cfg = Cfg::new(&program);
        let liveness = Liveness::new(&program, &cfg, &ByNumber);
        let naive = naive(&program, &liveness);
        for (b, block) in cfg.blocks().iter().enumerate() {
            let id = BlockId(b as u32);
            assert_eq!(liveness.live_in(id), naive[block.start as usize], "seed {seed}, block at {}", block.start);
        }
    }
}

#[test]
fn memory_is_reused_without_a_trace() {
    let (mut cfg, mut liveness) = (Cfg::default(), Liveness::default());
    for seed in (0..60).rev() {
        let program = generate::from_seed(seed, &Shape::default()).program;
        cfg.build(&program);
        liveness.build(&program, &cfg, &ByNumber);
        let fresh = Cfg::new(&program);
        assert_eq!(cfg.blocks(), fresh.blocks());
        let again = Liveness::new(&program, &fresh, &ByNumber);
        for b in (0..cfg.blocks().len() as u32).map(BlockId) {
            assert_eq!(liveness.live_in(b), again.live_in(b));
        }
    }
}

#[test]
fn blocks_cover_the_program_and_follow_its_jumps() {
    for seed in 0..200 {
        let program = generate::from_seed(seed, &Shape::default()).program;
        let cfg = Cfg::new(&program);
        let mut at = 0;
        for block in cfg.blocks() {
            assert_eq!(block.start, at);
            at = block.end;
            let last =
                (block.start..block.end).rev().find(|s| program.insns()[*s as usize] != Insn::SecondSlot).unwrap();
            let insn = &program.insns()[last as usize];
            let target = insn.jump_offset().map(|off| InsnIdx(last).jump(off).unwrap());
            assert_eq!(block.taken.map(|t| cfg.block(t).start), target.map(|t| t.0));
            // Unreachable code may end a subprogram in anything; it falls nowhere.
            let ends_subprog = program.subprogs().iter().any(|sub| sub.end == block.end);
            let next = (!insn.ends_flow() && !ends_subprog).then_some(block.end);
            assert_eq!(block.next.map(|n| cfg.block(n).start), next);
        }
        assert_eq!(at as usize, program.insns().len());
    }
}

#[test]
fn a_call_uses_what_its_callee_reads() {
    let program = program_of("r1 = 1\nr2 = 2\nr6 = 3\ncall sub\nr0 += r6\nexit\nsub:\nr0 = r2\nexit");
    let cfg = Cfg::new(&program);
    let liveness = Liveness::new(&program, &cfg, &());
    assert_eq!(liveness.args(SubprogId(1)), RegSet::of(Reg::R2));
    assert_eq!(liveness.uses(&program, 3, &()), RegSet::of(Reg::R2));
    assert_eq!(liveness.live_in(BlockId(0)), RegSet::EMPTY);
}

#[test]
fn unreachable_blocks_are_marked() {
    let program = program_of("r0 = 0\ngoto end\nr0 = 1\nend:\nexit");
    let reachable: Vec<bool> = Cfg::new(&program).blocks().iter().map(|b| b.reachable).collect();
    assert_eq!(reachable, [true, false, true]);
    // Unreachable code may even run off the end.
    let program = program_of("r0 = 0\nexit\nr0 = 1");
    assert_eq!(Cfg::new(&program).blocks()[1].next, None);
    Liveness::new(&program, &Cfg::new(&program), &());
}

#[test]
fn a_frame_is_as_large_as_its_constant_accesses() {
    let bytes = |text: &str| {
        let program = program_of(text);
        Liveness::new(&program, &Cfg::new(&program), &()).frame_bytes(SubprogId(0), 512)
    };
    assert_eq!(bytes("r0 = 0\nexit"), 0);
    assert_eq!(bytes("*(u64 *)(r10 - 8) = 1\nr0 = *(u32 *)(r10 - 20)\nexit"), 20);
    assert_eq!(bytes("r2 = r10\nr0 = 0\nexit"), 512, "an escaping frame pointer may reach everything");
    assert_eq!(bytes("*(u64 *)(r10 - 8) = r10\nr0 = 0\nexit"), 512);
}
