//! Selections and branches: every condition, and every distance.

use crate::Target;
use crate::alu::{check, corners, pairs, singles};
use crate::bench::{Bench, Start, Way};
use crate::build::Build;
use crate::kinds::{EDGES, Rng, WIDTHS, constants};
use bpf_isa::{Cond, Width};
use bpf_jit::{BinOp, BlockId, EmitOptions, Lir, Op, VReg, Val};
use bpf_jit_code::Hardening;

/// Every condition and sharing. (On every pair of values: `conditions_on_every_pair`.)
pub fn selections(target: &mut dyn Target) {
    let bench = &mut Bench::new(target);
    let pairs = corners();
    for width in WIDTHS {
        for cond in Cond::ALL {
            check(bench, &format!("select {cond:?} {width:?}"), &[0, 1, 2, 3], &pairs, &|b, r| {
                b.op(Op::Select { width, cond, a: r.x, b: Val::Reg(r.y), dst: r.dst, yes: r.z, no: r.x });
            });
            check(bench, &format!("select {cond:?} {width:?} other way"), &[2, 3], &pairs, &|b, r| {
                b.op(Op::Select { width, cond, a: r.x, b: Val::Reg(r.y), dst: r.dst, yes: r.y, no: r.z });
            });
        }
    }
}

/// Selections that must not become branches, with registers and constants of every form, and in place.
pub fn confined(target: &mut dyn Target) {
    let bench = &mut Bench::new(target);
    let pairs = corners();
    check(bench, "confine", &[0, 1, 2, 3], &pairs, &|b, r| {
        b.op(Op::Confine { a: r.x, limit: Val::Reg(r.y), dst: r.dst, yes: r.z, no: r.x });
    });
    check(bench, "confine to the compared register", &[2, 3], &pairs, &|b, r| {
        b.op(Op::Confine { a: r.x, limit: Val::Reg(r.y), dst: r.dst, yes: r.x, no: r.z });
    });
    for limit in constants() {
        check(bench, &format!("confine {limit:#x}"), &[0, 2], &singles(), &|b, r| {
            b.op(Op::Confine { a: r.x, limit: Val::Imm(limit), dst: r.dst, yes: r.x, no: r.z });
        });
    }
    let mut b = Build::new();
    let [x, y, z, memory, w] = b.params();
    let mut values = Vec::new();
    for (yes, no) in [(x, y), (y, x), (z, z)] {
        let dst = b.copy(w);
        b.op(Op::Confine { a: x, limit: Val::Reg(y), dst, yes, no: dst });
        b.op(Op::Confine { a: dst, limit: Val::Imm(5), dst, yes: dst, no });
        values.push(dst);
    }
    b.keep(memory, 0, &values);
    b.exit(x);
    let ways = bench.all_ways(6, 1);
    bench.compare("confined in place", &b.alone(), &ways, &self::pairs());
}

/// Selections whose destination is one of their operands, or whose two values are equal.
pub fn selections_in_place(target: &mut dyn Target) {
    let bench = &mut Bench::new(target);
    let mut b = Build::new();
    let [x, y, z, memory, w] = b.params();
    let mut values = Vec::new();
    for (yes, no) in [(x, y), (y, x), (z, z)] {
        let dst = b.copy(w);
        b.op(Op::Select { width: Width::W64, cond: Cond::Lt, a: x, b: Val::Reg(y), dst, yes, no: dst });
        b.op(Op::Select { width: Width::W32, cond: Cond::SGt, a: dst, b: Val::Imm(5), dst, yes: dst, no });
        values.push(dst);
    }
    b.keep(memory, 0, &values);
    b.exit(x);
    let ways = bench.all_ways(6, 1);
    bench.compare("selections in place", &b.alone(), &ways, &pairs());
}

/// Jumps forward, to the next op, and back: `for (;;) { if (!y) { goto out; } y--; x += 3; }`.
pub fn jumps(target: &mut dyn Target) {
    let bench = &mut Bench::new(target);
    for filler in [0, 1, 40, 9000] {
        let mut b = Build::new();
        let (x, y) = (b.param(0), b.param(1));
        let [next, head, out, body, skipped, end] = [1, 2, 3, 4, 5, 6].map(BlockId);
        b.op(Op::Jump { target: next });
        assert_eq!(b.block(), next);
        b.op(Op::Jump { target: head });
        assert_eq!(b.block(), head);
        b.op(Op::Branch { width: Width::W64, cond: Cond::Ne, a: y, b: Val::Imm(0), target: body });
        assert_eq!(b.block(), out);
        b.op(Op::Jump { target: end });
        assert_eq!(b.block(), body);
        b.op(bin(BinOp::Sub, y, Val::Imm(1)));
        b.op(bin(BinOp::Add, x, Val::Imm(3)));
        b.op(Op::Jump { target: head });
        assert_eq!(b.block(), skipped);
        for _ in 0..=filler {
            b.op(bin(BinOp::Add, x, Val::Imm(1 << 20)));
        }
        assert_eq!(b.block(), end);
        b.exit(x);
        let ways = bench.all_ways(2, 0);
        let starts = [0, 1, 7].map(|y| Start::new([5, y, 0, 0, 0], 0));
        bench.compare(&format!("jumps over {filler}"), &b.alone(), &ways, &starts);
    }
}

/// Every condition as a branch, on registers, alone in a function.
pub fn branches(target: &mut dyn Target) {
    let bench = &mut Bench::new(target);
    let pairs = corners();
    for width in WIDTHS {
        for cond in Cond::ALL {
            for same in [false, true] {
                check(bench, &format!("branch {cond:?} {width:?}"), &[0, 1, 3], &pairs, &|b, r| {
                    let over = BlockId(b.block().0 + 2);
                    let second = Val::Reg(if same { r.x } else { r.y });
                    b.op(Op::Branch { width, cond, a: r.x, b: second, target: over });
                    b.block();
                    b.set(r.dst, 1);
                    assert_eq!(b.block(), over);
                });
            }
        }
    }
}

/// Every condition, as a branch and as a selection, on every pair of edge values.
pub fn conditions_on_every_pair(target: &mut dyn Target) {
    let bench = &mut Bench::new(target);
    let ways = bench.plain_ways(3, 9);
    let starts: Vec<Start> = pairs().into_iter().map(|start| Start { memory: vec![0; 2 * 24], ..start }).collect();
    for width in WIDTHS {
        let mut b = Build::new();
        let [x, y, yes, memory, no] = b.params();
        for (i, cond) in Cond::ALL.into_iter().enumerate() {
            let (dst, taken) = (b.reg(), b.imm(1));
            b.op(Op::Select { width, cond, a: x, b: Val::Reg(y), dst, yes, no });
            let over = BlockId(2 * i as u32 + 2);
            b.op(Op::Branch { width, cond, a: x, b: Val::Reg(y), target: over });
            b.block();
            b.set(taken, 0);
            assert_eq!(b.block(), over);
            b.keep(memory, 16 * i as i32 - 8 * 24, &[dst, taken]);
        }
        b.exit(x);
        bench.compare(&format!("{width:?}"), &b.alone(), &ways, &starts);
    }
}

/// Every condition, as a branch and as a selection, on constants of every form; with conditions on registers in
/// between.
pub fn conditions_by_constant(target: &mut dyn Target) {
    let bench = &mut Bench::new(target);
    let ways = bench.plain_ways(3, 8);
    let starts: Vec<Start> =
        EDGES.iter().map(|x| Start::new([*x, x ^ 1, 0x1111, Start::MEMORY, 0x2222], 2 * 36)).collect();
    for width in WIDTHS {
        for cond in Cond::ALL {
            for constants in constants().chunks(16) {
                let mut b = Build::new();
                let [x, y, yes, memory, no] = b.params();
                let operands = constants.iter().map(|imm| Val::Imm(*imm)).chain([Val::Reg(y), Val::Reg(x)]);
                for (i, operand) in operands.enumerate() {
                    let (dst, taken) = (b.reg(), b.imm(1));
                    b.op(Op::Select { width, cond, a: x, b: operand, dst, yes, no });
                    let over = BlockId(2 * i as u32 + 2);
                    b.op(Op::Branch { width, cond, a: x, b: operand, target: over });
                    b.block();
                    b.set(taken, 0);
                    assert_eq!(b.block(), over);
                    b.keep(memory, 16 * i as i32, &[dst, taken]);
                }
                b.exit(x);
                bench.compare(&format!("{cond:?} {width:?} {constants:x?}"), &b.alone(), &ways, &starts);
            }
        }
    }
    for width in WIDTHS {
        for cond in Cond::ALL {
            for imm in [0i64, 1, -1, 127, -128, 128, 0xff, 0x8000_0000] {
                check(bench, &format!("branch {cond:?} {width:?} {imm:#x}"), &[3], &singles()[..8], &|b, r| {
                    let over = BlockId(b.block().0 + 2);
                    b.op(Op::Branch { width, cond, a: r.x, b: Val::Imm(imm), target: over });
                    b.block();
                    b.set(r.dst, 1);
                    assert_eq!(b.block(), over);
                });
            }
        }
    }
}

/// A tree of comparisons of one value with constants.
enum Tree {
    /// A block that sets the result to this number.
    Leaf(u64),
    Inner {
        cond: Cond,
        constant: i64,
        falls: Box<Tree>,
        taken: Box<Tree>,
    },
}

impl Tree {
    /// A random tree with up to `depth` levels and constants from `low` on. Half of the trees are balanced: their
    /// comparisons are those of a `switch`.
    fn random(rng: &mut Rng, low: u64, count: u64, depth: u32) -> Tree {
        if depth == 0 || count == 0 {
            return Tree::Leaf(rng.below(1000) as u64);
        }
        let half = count / 2;
        let (cond, constant) = match rng.below(3) {
            0 => (rng.pick(&Cond::ALL), low.wrapping_add(rng.bits() % count)),
            1 => (Cond::Ge, low.wrapping_add(half)),
            _ => (Cond::Eq, low.wrapping_add(rng.bits() % count)),
        };
        let mut side = |low, count| Box::new(Tree::random(rng, low, count, depth - 1));
        let (falls, taken) = match cond {
            Cond::Ge => (side(low, half), side(low.wrapping_add(half), count - half)),
            _ => (side(low, count), side(low, count / 3)),
        };
        Tree::Inner { cond, constant: constant.cast_signed(), falls, taken }
    }

    fn blocks(&self) -> u32 {
        match self {
            Tree::Leaf(_) => 1,
            Tree::Inner { falls, taken, .. } => 1 + falls.blocks() + taken.blocks(),
        }
    }

    /// Appends the tree's blocks, the first to the block `here`. `end` is the block to which its leaves jump.
    fn build(&self, b: &mut Build, here: BlockId, width: Width, [x, dst]: [VReg; 2], end: BlockId) {
        match self {
            Tree::Leaf(number) => {
                b.set(dst, *number);
                b.op(Op::Jump { target: end });
            }
            Tree::Inner { cond, constant, falls, taken } => {
                let target = BlockId(here.0 + 1 + falls.blocks());
                b.op(Op::Branch { width, cond: *cond, a: x, b: Val::Imm(*constant), target });
                for side in [falls, taken] {
                    let here = b.block();
                    side.build(b, here, width, [x, dst], end);
                }
            }
        }
    }
}

/// Trees of comparisons with jump tables and without, on every value around their constants.
pub fn switches(target: &mut dyn Target) {
    let bench = &mut Bench::new(target);
    let ways = bench.all_ways(2, 3);
    let mut tables = 0;
    for seed in 0..48 {
        let rng = &mut Rng(seed);
        let width = rng.pick(&WIDTHS);
        let low = rng.pick(&[0, 1, 100, 4095, 0x7fff_fff8, 0xffff_fff8, u64::MAX - 8]);
        let count = rng.pick(&[4, 16, 40]);
        let tree = Tree::random(rng, low, count, 6);
        let mut b = Build::new();
        let (x, dst) = (b.param(0), b.param(1));
        // The tree's first comparison stands behind another op.
        b.op(bin(BinOp::Add, dst, Val::Imm(1)));
        if seed % 3 == 0 {
            let mask = rng.pick(&[7, 31, 63]);
            b.op(Op::Bin { op: BinOp::And, width, dst: x, a: x, b: Val::Imm(mask) });
        }
        let end = BlockId(tree.blocks());
        tree.build(&mut b, BlockId(0), width, [x, dst], end);
        assert_eq!(b.block(), end);
        b.op(bin(BinOp::Add, dst, Val::Reg(x)));
        b.exit(dst);
        let lir = b.alone();
        tables += bench.emit(&lir, &ways[0]).tables.len();
        let around = (0..count + 6).map(|i| low.wrapping_add(i).wrapping_sub(3));
        let starts: Vec<Start> = around
            .flat_map(|x| [x, x ^ 1 << 40, x ^ 1 << 63])
            .chain(EDGES)
            .map(|x| Start::new([x, 7, 0, 0, 0], 0))
            .collect();
        bench.compare(&format!("switch {seed}"), &lir, &ways, &starts);
    }
    assert!(tables >= 8, "{tables} trees have a table");
}

/// A tree in which each comparison tests for one more case has a table only where the options and the cases allow it.
pub fn jump_tables(target: &mut dyn Target) {
    let bench = &mut Bench::new(target);
    let (alloc, options) = bench.plain_ways(0, 0)[0];
    let chain = |cases: &[i64]| {
        let mut b = Build::new();
        let (x, dst) = (b.param(0), b.param(1));
        let mut tree = Tree::Leaf(0);
        for (case, number) in cases.iter().zip(1..) {
            let (falls, taken) = (Box::new(tree), Box::new(Tree::Leaf(number)));
            tree = Tree::Inner { cond: Cond::Eq, constant: *case, falls, taken };
        }
        let end = BlockId(tree.blocks());
        tree.build(&mut b, BlockId(0), Width::W32, [x, dst], end);
        b.block();
        b.exit(dst);
        b.alone()
    };
    let retpolines = Hardening::new().retpolines(true);
    let landing_pads = Hardening::new().landing_pads(true);
    let dense: Vec<i64> = (10..30).collect();
    let sparse: Vec<i64> = (0..20).map(|i| i * 1000).collect();
    for (cases, options, entries) in [
        (&dense[..], options, 20),
        (&dense[..4], options, 4),
        (&dense[..3], options, 0),
        (&sparse[..], options, 0),
        (&dense[..], EmitOptions { jump_tables: false, ..options }, 0),
        (&dense[..], EmitOptions { hardening: retpolines, ..options }, 0),
        (&dense[..], EmitOptions { hardening: landing_pads, ..options }, 0),
    ] {
        let lir = chain(cases);
        let code = bench.emit(&lir, &(alloc, options));
        let found: u32 = code.tables.iter().map(|table| table.len() as u32 / 4).sum();
        assert_eq!(found, entries, "{cases:?} {options:?}");
        let starts: Vec<Start> =
            cases.iter().chain(&[-1, 31]).map(|x| Start::new([x.cast_unsigned(), 7, 0, 0, 0], 0)).collect();
        bench.compare(&format!("{cases:?}"), &lir, &[(alloc, options)], &starts);
    }
}

fn bin(op: BinOp, dst: VReg, b: Val) -> Op {
    Op::Bin { op, width: Width::W64, dst, a: dst, b }
}

fn production(bench: &Bench<'_>) -> Vec<Way> {
    vec![bench.plain_ways(0, 0)[0]]
}

/// A program in which every kind of branch leads over `filler` additions.
fn far(filler: u32) -> Lir {
    let mut b = Build::new();
    let [x, y, _, step, add] = b.params();
    let sum = b.imm(0);
    let kinds = [
        (Cond::Eq, Val::Imm(0)),
        (Cond::Ne, Val::Imm(0)),
        (Cond::SLt, Val::Imm(0)),
        (Cond::SGe, Val::Imm(0)),
        (Cond::Set, Val::Imm(4)),
        (Cond::Gt, Val::Imm(100)),
        (Cond::SLe, Val::Reg(y)),
    ];
    let last = BlockId(kinds.len() as u32 + 1);
    for (i, (cond, operand)) in kinds.into_iter().enumerate() {
        // One less each time, so that each branch is the first one taken for some r1.
        b.op(bin(BinOp::Add, sum, Val::Imm(1 << i)));
        b.op(bin(BinOp::Sub, x, Val::Reg(step)));
        b.op(Op::Branch { width: Width::W64, cond, a: x, b: operand, target: last });
        b.block();
    }
    for _ in 0..filler {
        b.op(bin(BinOp::Add, sum, Val::Reg(add)));
    }
    assert_eq!(b.block(), last);
    b.op(bin(BinOp::Xor, sum, Val::Reg(x)));
    b.exit(sum);
    b.alone()
}

/// Regressions: displacements near and beyond the reach of each machine's branches (x86-64: 127 bytes; arm64: 32 KiB
/// for a test of a bit, 1 MiB for a condition).
pub fn far_branches(target: &mut dyn Target) {
    let bench = &mut Bench::new(target);
    let starts: Vec<Start> = EDGES.iter().step_by(3).map(|x| Start::new([*x, 77, 0, 1, 1 << 32], 0)).collect();
    for filler in (30..45).chain([8000, 8300, 12_000, 270_000]) {
        let ways = if filler > 100_000 { production(bench) } else { bench.plain_ways(0, 0) };
        bench.compare(&format!("far {filler}"), &far(filler), &ways, &starts);
    }
}

/// Backward branches of every distance: `while (y--) { if (x == 3) skip the filler; filler; }`.
pub fn long_loops(target: &mut dyn Target) {
    let bench = &mut Bench::new(target);
    for filler in [17, 18, 19, 5_000, 10_000, 160_000] {
        let mut b = Build::new();
        let (x, y) = (b.param(0), b.param(1));
        let first = b.block();
        let skip = BlockId(first.0 + 2);
        b.op(Op::Branch { width: Width::W64, cond: Cond::Eq, a: x, b: Val::Imm(3), target: skip });
        b.block();
        for _ in 0..filler {
            b.op(bin(BinOp::Xor, x, Val::Imm(0x1234_5678)));
        }
        assert_eq!(b.block(), skip);
        b.op(bin(BinOp::Sub, y, Val::Imm(1)));
        b.op(bin(BinOp::Add, x, Val::Imm(1)));
        b.op(Op::Branch { width: Width::W64, cond: Cond::Ne, a: y, b: Val::Imm(0), target: first });
        b.block();
        b.exit(x);
        let ways = if filler > 100_000 { production(bench) } else { bench.some_ways(1, 0) };
        let starts = [[0, 5], [3, 4], [1, 3]].map(|[x, y]| Start::new([x, y, 0, 0, 0], 0));
        bench.compare(&format!("loop over {filler}"), &b.alone(), &ways, &starts);
    }
    let mut b = Build::new();
    let [x, y, _, _, add] = b.params();
    let sum = b.imm(0);
    let first = b.block();
    for _ in 0..270_000 {
        b.op(bin(BinOp::Add, sum, Val::Reg(add)));
    }
    b.op(bin(BinOp::Sub, x, Val::Imm(1)));
    b.op(Op::Branch { width: Width::W32, cond: Cond::SGt, a: x, b: Val::Reg(y), target: first });
    b.block();
    b.exit(sum);
    let ways = production(bench);
    bench.compare("a loop longer than 1 MiB", &b.alone(), &ways, &[Start::new([3, 0, 0, 0, 7], 0)]);
}
