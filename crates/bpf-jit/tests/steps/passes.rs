//! Every pass preserves what a program computes: generated programs are evaluated before and after random passes in
//! random order, and results, memory, and the calls of functions outside are compared. Passes on long programs stay
//! within bounds of time and memory.

use bpf_analysis::{Facts, InsnFact, MemKind};
use bpf_isa::{Insn, SubprogId};
use bpf_jit::eval::{Env, Eval, EvalError, Outcome, Region};
use bpf_jit::{
    Addresses, Constants, Extern, Func, Lir, Liveness, LowerOptions, Lowerer, Pass, PassOptions, PassScratch, PassSet,
    Takes, VReg, optimise,
};
use bpf_jit_code::{RunCtx, Symbol};
use bpf_testkit::generate::{self, Shape};
use std::collections::BTreeSet;

const MEMORY: u64 = 0x10_0000;
const CTX: u64 = 0x20_0000;
const STACK: u64 = 0x40_0000;

/// Records the calls of functions outside, with their arguments.
#[derive(Default, PartialEq, Eq, Debug)]
struct Calls(Vec<(Symbol, [Option<u64>; 5])>);

impl Env for Calls {
    fn symbol(&mut self, symbol: Symbol) -> u64 {
        0x1000_0000 + u64::from(symbol.index)
    }
    fn subprog(&mut self, subprog: SubprogId) -> u64 {
        0x2000_0000 + u64::from(subprog.0)
    }
    fn call(&mut self, symbol: Symbol, args: [Option<u64>; 5], _: Option<u64>) -> u64 {
        self.0.push((symbol, args));
        match Extern::from_symbol(symbol) {
            Some(Extern::Helper(_)) => generate::helper(args.map(|arg| arg.unwrap_or(0))),
            _ => 7,
        }
    }
    fn linked(&mut self, _: Symbol, _: u32) -> Option<u64> {
        None
    }
}

type Seen = (Result<Outcome, EvalError>, Vec<Region>, Calls);

/// Runs a program; returns its observable behaviour: outcome, memory and calls.
fn run(lir: &Lir, memory: &[u8]) -> Seen {
    let mut ctx = vec![0; size_of::<RunCtx>()];
    ctx[RunCtx::BUDGET_OFFSET as usize..][..8].copy_from_slice(&10_000u64.to_le_bytes());
    ctx[RunCtx::PACKET_OFFSET as usize..][..8].copy_from_slice(&MEMORY.to_le_bytes());
    ctx[RunCtx::PACKET_LEN_OFFSET as usize..][..8].copy_from_slice(&(memory.len() as u64).to_le_bytes());
    let regions = vec![Region { base: MEMORY, bytes: memory.to_vec() }, Region { base: CTX, bytes: ctx }];
    let mut eval = Eval::new(regions, STACK);
    eval.fuel = 1 << 22;
    let mut calls = Calls::default();
    let outcome = eval.run(lir, [MEMORY, memory.len() as u64, 0, 0, 0], CTX, &mut calls);
    (outcome, eval.memory, calls)
}

/// Returns facts as a verifier might give them: which loads and stores are in the stack.
pub(crate) fn stack_facts(program: &bpf_isa::Program) -> Facts {
    let mut facts = Facts { insns: vec![InsnFact::default(); program.insns().len()], ..Facts::default() };
    for (insn, fact) in program.insns().iter().zip(&mut facts.insns) {
        let (Insn::Load { base, .. } | Insn::Store { base, .. }) = insn else { continue };
        if *base == bpf_isa::Reg::R10 {
            fact.memory = Some(MemKind::Stack);
        }
    }
    facts
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % n
    }
}

#[test]
fn programs_compute_the_same_after_any_passes_in_any_order() {
    let mut lowerer = Lowerer::default();
    let mut scratch = PassScratch::default();
    let (mut finished, mut changed) = (0, [0u32; Pass::ALL.len()]);
    let seeds = 0..400;
    for seed in seeds.clone() {
        let mut random = Random(seed);
        let shape = Shape { packet_loads: seed % 3 == 0, ..Shape::default() };
        let mut generated = generate::from_seed(seed, &shape);
        if seed % 7 == 6 {
            let insns = generate::pressure(&mut generate::Choices::from_seed(seed));
            generated.program = bpf_isa::Program::new(insns).unwrap();
        } else if seed % 7 == 5 {
            let insns = generate::steps(&mut generate::Choices::from_seed(seed));
            generated.program = bpf_isa::Program::new(insns).unwrap();
        }
        let checks = seed % 2 == 0;
        let options = LowerOptions { budget: checks, interrupt: checks, ..LowerOptions::default() };
        let facts = if seed % 4 < 2 { Facts::default() } else { stack_facts(&generated.program) };
        let mut lir = Lir::default();
        lowerer.lower(&generated.program, &facts, &(), &options, &mut lir);
        let before = run(&lir, &generated.memory);
        finished += u32::from(matches!(before.0, Ok(Outcome::Exit(_))));
        let passes = PassOptions {
            contained: false,
            blind: (seed % 2 == 1).then_some(seed),
            addresses: match seed % 3 {
                0 => Addresses::default(),
                1 => Addresses {
                    max_offset: 4095,
                    any_index: false,
                    operands: Takes::Shifted,
                    constants: Constants::TwelveOrMask,
                    registers: 26,
                },
                _ => Addresses { max_offset: 0, ..Addresses::default() },
            },
            plain: false,
            skip: PassSet::from_bits(if seed % 5 == 0 { random.below(1 << 16) as u16 } else { 0 }),
        };
        for round in 0..4 {
            let mut lir = lir.clone();
            let mut ran = Vec::new();
            if round == 0 {
                optimise(&mut lir, passes, &mut scratch);
                assert_eq!(run(&lir, &generated.memory), before, "seed {seed}, all passes\n{lir}");
            }
            for _ in 0..1 + random.below(5) {
                let which = random.below(Pass::ALL.len() as u64) as usize;
                let pass = Pass::ALL[which];
                let done: u32 = lir.funcs.iter_mut().map(|func| pass.run(func, passes, &mut scratch)).sum();
                changed[which] += done;
                ran.push(pass.name());
                assert_eq!(lir.verify(), Ok(()), "seed {seed}, {ran:?}\n{lir}");
                assert_eq!(run(&lir, &generated.memory), before, "seed {seed}, {ran:?}\n{lir}");
            }
        }
    }
    assert!(finished as usize > seeds.clone().count() / 2, "{finished} of {seeds:?} programs end by themselves");
    for (pass, done) in Pass::ALL.iter().zip(changed) {
        // Only contained programs have confinements (`tests/filetests/passes/gather.lir`).
        let idle = matches!(pass, Pass::Ssa | Pass::Gather);
        assert!(done > 0 || idle, "{}: never found anything", pass.name());
    }
}

/// Returns a program, lowered and optimised.
fn optimised(text: &str) -> Lir {
    let program = bpf_isa::Program::new(bpf_isa::assemble(text).unwrap()).unwrap();
    let mut lir = Lir::default();
    Lowerer::default().lower(&program, &Facts::default(), &(), &LowerOptions::default(), &mut lir);
    optimise(&mut lir, PassOptions::default(), &mut PassScratch::default());
    lir
}

/// Returns the sum over all ops of the values that live across the op, which the allocator records.
fn lives(func: &Func) -> usize {
    let liveness = Liveness::of(func);
    let mut sum = 0;
    for (block, ops) in func.in_order() {
        let mut live: BTreeSet<VReg> = liveness.live_out(block).iter().copied().collect();
        for op in ops.iter().rev() {
            sum += live.len();
            op.def().iter().for_each(|v| _ = live.remove(v));
            op.for_each_use(|v| _ = live.insert(v));
        }
    }
    sum
}

/// Checks that a chain of ors is not searched to its end from each of its members.
#[test]
fn long_chains_are_not_searched_for_bytes() {
    let mut text = String::from("r2 = *(u64 *)(r1 + 0)\nr0 = 0\n");
    for i in 0..100_000 {
        text.push_str(if i % 2 == 0 { "r0 += r1\n" } else { "r0 |= r2\n" });
    }
    let lir = optimised(&(text + "exit"));
    assert!(lir.funcs[0].all_ops().count() > 90_000, "{lir}");
}

/// Values that are needed again far away are computed again: if they were kept, all sums would live at the same time.
#[test]
fn what_is_computed_twice_does_not_live_without_a_limit() {
    let sums = |op: &str, branch: &str| -> String {
        (0..12_000).map(|i| format!("r3 = r2\nr3 *= {}\nr0 {op}= r3\n{branch}", 2 * i + 5)).collect()
    };
    for branch in ["", "if r0 != 7 goto +1\nexit\n"] {
        let text = format!("r2 = *(u64 *)(r1 + 0)\nr0 = 0\n{}{}exit", sums("+", branch), sums("^", branch));
        let lir = optimised(&text);
        let (lives, ops) = (lives(&lir.funcs[0]), lir.funcs[0].all_ops().count());
        assert!(lives < (1 << 22) + 32 * ops, "{lives} in {ops} ops");
        // The budget for longer lives was used.
        assert!(ops < 4 * 24_000 && lives > 1 << 21, "{lives} in {ops} ops");
    }
    // Both groups of sums are in a long loop, the first near its head.
    let text = format!(
        "r2 = *(u64 *)(r1 + 0)\nr0 = 0\n{}head:\n{}{}if r0 == 0 goto +1\ngotol head\nexit",
        sums("+", ""),
        sums("^", ""),
        "r0 += r2\nr0 ^= 5\n".repeat(12_000)
    );
    let lir = optimised(&text);
    let (lives, ops) = (lives(&lir.funcs[0]), lir.funcs[0].all_ops().count());
    assert!(lives < (1 << 22) + 32 * ops, "{lives} in {ops} ops");
}

/// The stack of a long function stays in memory where too many values would live throughout the function.
#[test]
fn a_stack_becomes_values_as_far_as_they_are_not_too_many() {
    let each = |line: &dyn Fn(i32) -> String| -> String { (1..=512).map(|off| line(-off)).collect() };
    let text = format!(
        "r2 = *(u64 *)(r1 + 0)\nr0 = 0\n{}{}{}exit",
        each(&|off| format!("*(u8 *)(r10 {off}) = r2\nr2 += 3\n")),
        "r3 = r2\nr0 += r3\nr2 *= 5\n".repeat(60_000),
        each(&|off| format!("r3 = *(u8 *)(r10 {off})\nr0 += r3\n")),
    );
    let lir = optimised(&text);
    let lives = lives(&lir.funcs[0]);
    assert!(lives < 1 << 25, "{lives}");
    assert!(lives > 1 << 22, "{lives}: none became a value");
}

/// Loops are unrolled up to a limit, even in a program that consists of loops only.
#[test]
fn loops_are_copied_as_far_as_there_is_room() {
    let text = format!("r0 = 0\n{}exit", "r0 += r1\nr1 += 3\nif r1 < r2 goto -3\n".repeat(10_000));
    let ops = optimised(&text).funcs[0].all_ops().count();
    assert!((35_000..2 * 30_000 + 1_000).contains(&ops), "{ops} ops of 30,000");
}

/// Code far behind a loop does not keep a counter from ending at its step, unless the counter lives there.
#[test]
fn a_counter_ends_at_its_step_however_much_comes_behind() {
    let ended = |behind: &str| {
        let text = format!(
            "func 0 (v0, v1, -, -, -) {{\nb0:\n    v2 = mov.64 v0\n    v3 = mov.64 0\nb1:\n    v4 = add.64 v2, 1\n    \
             v5 = load.b [v2 + 0]\n    v3 = add.64 v3, v5\n    branch.64 v4 ge v1, b3\nb2:\n    v2 = mov.64 v4\n    \
             jump b1\nb3:\n{behind}b1000:\n    exit v3\n}}\n"
        );
        let mut lir = text.parse::<Lir>().unwrap();
        Pass::Step.run(&mut lir.funcs[0], PassOptions::default(), &mut PassScratch::default())
    };
    let blocks = |read: &str| -> String {
        (4..200).map(|i| format!("b{i}:\n    v3 = mul.64 v3, {read}\n    branch.64 v3 eq {i}, b1000\n")).collect()
    };
    assert_eq!([ended(""), ended(&blocks("v4")), ended(&blocks("v2"))], [1, 1, 0]);
}
