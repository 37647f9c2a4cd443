//! One input, all engines: the cases (ours and, where present, the external ones), on the interpreter and as machine
//! code in every variant.
//!
//! Seeds are fixed; `BPF_SOAK=N` takes N times as many random allocations.

use crate::support::{Failure, Variant, allocations, interpreter, jit, options, program, soak};
use bpf_isa::{AluOp, Insn, Reg, Src, Width};
use bpf_runtime::isa::decode;
use bpf_testkit::cases::{self, Case, Expected, Outcome};
use bpf_testkit::skipped;

/// The interpreter first: a case that leaves its memory is found before it runs as machine code.
fn all() -> Vec<Variant> {
    [interpreter()].into_iter().chain(jit()).chain(options()).chain(allocations(soak(6))).collect()
}

fn outcome(variant: &Variant, case: &Case) -> Outcome {
    let insns = match decode(&case.program) {
        Ok(insns) => insns,
        Err(error) => return Outcome::Rejected(error.to_string()),
    };
    match variant.run(&insns, case.memory.as_deref().unwrap_or_default()) {
        Ok((r0, _)) => Outcome::Returned(r0),
        Err(Failure::Load(error)) => Outcome::Rejected(error.to_string()),
        Err(Failure::Run(error)) => Outcome::Stopped(error.to_string()),
    }
}

/// The cases with a wrong outcome, and that outcome.
fn failures(variant: &Variant, cases: &[Case]) -> Vec<String> {
    let failed = |case: &Case| {
        let outcome = outcome(variant, case);
        (!case.expected.met_by(&outcome)).then(|| {
            let text = decode(&case.program).map(|insns| bpf_isa::disassemble(&insns).to_string());
            let (name, variant) = (&case.name, &variant.name);
            format!("{name} on {variant}: {outcome:x?} instead of {:x?}\n{}", case.expected, text.unwrap_or_default())
        })
    };
    cases.iter().filter_map(failed).collect()
}

fn hold(cases: &[Case]) {
    for variant in all() {
        let failed = failures(&variant, cases);
        assert!(failed.is_empty(), "{} of {} failed; the first:\n{}", failed.len(), cases.len(), failed[0]);
    }
}

#[test]
fn the_suite() {
    hold(&cases::suite().expect("the suite"));
}

/// A file of external cases: all pass but those named.
fn external(file: &str, passed: usize, refused: &[&str]) {
    let path = match cases::shared(&format!("cases/{file}.jsonl")) {
        Ok(path) => path,
        Err(why) => return skipped(file, &why),
    };
    for variant in all() {
        let tally = cases::run(&path, &mut |case| outcome(&variant, case)).expect("a file of cases");
        assert_eq!(tally.passed, passed, "{}", variant.name);
        assert_eq!(tally.failed, refused, "{}", variant.name);
    }
}

#[test]
fn conformance() {
    external("conformance", 313, &[]);
}

#[test]
fn conformance_negative() {
    external("conformance_negative", 45, &[]);
}

#[test]
fn alu_and_memory() {
    external("alu_and_memory", 360, &[]);
}

/// Operations with demands on registers, for every pair of registers `D` and `S`, while all others hold values of their
/// own. Each computes into `D` and ends with `S` added, so that overwriting either of them changes the result, which
/// stands beside the program.
const PAIRS: &[(&str, u64)] = &[
    ("D = 100; S = 7; D /= S; D *= 1000; D += S", 14_007),
    ("D = 100; S = 7; D %= S; D *= 1000; D += S", 2_007),
    ("D = -100; S = 7; D s/= S; D *= -1000; D += S", 14_007),
    ("D = -100; S = 7; D s%= S; D *= -1000; D += S", 2_007),
    ("D = 3; S = 5; D <<= S; D *= 1000; D += S", 96_005),
    ("D = 1000; S = 3; D >>= S; D *= 1000; D += S", 125_003),
    ("D = -1000; S = 3; D s>>= S; D *= -1000; D += S", 125_003),
    ("D = 5; S = 7; D -= S; D *= -1000; D += S", 2_007),
    ("D = 12; S = 10; D &= S; D *= 1000; D += S", 8_010),
    // A byte store (x86-64: sil, dil and bpl need a REX prefix).
    (
        "D = r10; *(u64 *)(r10 - 16) = 0; S = 0x1234; *(u8 *)(D - 16) = S; D = *(u64 *)(r10 - 16); D *= 1000; S &= 1; D += S",
        52_000,
    ),
    // Atomics that fetch (x86-64: a loop around cmpxchg, or lock xadd, or xchg).
    (
        "*(u64 *)(r10 - 16) = 12; S = r10; D = 10; D = atomic_fetch_and((u64 *)(S - 16), D); D *= 1000; S = *(u64 *)(r10 - 16); D += S",
        12_008,
    ),
    (
        "*(u64 *)(r10 - 16) = 12; S = r10; D = 10; D = atomic_fetch_or((u64 *)(S - 16), D); D *= 1000; S = *(u64 *)(r10 - 16); D += S",
        12_014,
    ),
    (
        "*(u64 *)(r10 - 16) = 12; S = r10; D = 10; D = atomic_fetch_xor((u64 *)(S - 16), D); D *= 1000; S = *(u64 *)(r10 - 16); D += S",
        12_006,
    ),
    (
        "*(u64 *)(r10 - 16) = 12; S = r10; D = 10; D = atomic_fetch_add((u64 *)(S - 16), D); D *= 1000; S = *(u64 *)(r10 - 16); D += S",
        12_022,
    ),
    (
        "*(u64 *)(r10 - 16) = 12; S = r10; D = 10; D = xchg_64(S - 16, D); D *= 1000; S = *(u64 *)(r10 - 16); D += S",
        12_010,
    ),
    (
        "*(u64 *)(r10 - 16) = 12; S = r10; D = 10; store_release((u32 *)(S - 16), D); D = load_acquire((u16 *)(S - 16)); S = 3; D += S",
        13,
    ),
];

/// CMPXCHG is apart: r0 is the third register.
const CMPXCHG: &str = "*(u64 *)(r10 - 16) = 12; D = r10; S = 10; r0 = 12; r0 = cmpxchg_64(D - 16, r0, S); r0 *= 1000; \
                       D = *(u64 *)(r10 - 16); r0 += D; r0 += S";

#[test]
fn every_pair_of_registers() {
    let mut cases = Vec::new();
    let mut case = |template: &str, result: u64, from: u8, all_but_r0: bool| {
        for (d, s) in (from..10).flat_map(|d| (from..10).map(move |s| (d, s))).filter(|(d, s)| d != s) {
            let others: Vec<u8> = (from..10).filter(|r| *r != d && *r != s).collect();
            let set: String = others.iter().map(|r| format!("r{r} = {r}00000; ")).collect();
            let sum_in = if all_but_r0 { 0 } else { d };
            let sum: String = others.iter().map(|r| format!("; r{sum_in} += r{r}")).collect();
            let body = template.replace('D', &format!("r{d}")).replace('S', &format!("r{s}"));
            let text = format!("{set}{body}{sum}; r0 = r{sum_in}; exit");
            let expected = result + others.iter().map(|r| u64::from(*r) * 100_000).sum::<u64>();
            cases.push(Case {
                name: text.clone(),
                program: bpf_isa::encode(&program(&text)).expect("it has an encoding"),
                memory: None,
                expected: Expected::R0(expected),
            });
        }
    };
    for (template, result) in PAIRS {
        case(template, *result, 0, false);
    }
    case(CMPXCHG, 12_000 + 10 + 10, 1, true);
    hold(&cases);
}

/// Values at which arithmetic goes wrong first.
const EDGES: [u64; 16] = [
    0,
    1,
    2,
    31,
    32,
    63,
    64,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    0x1_0000_0000,
    0x0123_4567_89ab_cdef,
    i64::MAX as u64,
    i64::MIN as u64,
    u64::MAX - 12,
    u64::MAX,
];

/// The reference model of an operation, in wide arithmetic.
fn model(op: AluOp, width: Width, a: u64, b: u64) -> u64 {
    let bits = if width == Width::W64 { 64 } else { 32 };
    let unsigned = |v: u64| if bits == 64 { u128::from(v) } else { u128::from(v as u32) };
    let signed = |v: u64| if bits == 64 { i128::from(v as i64) } else { i128::from(v as i32) };
    let (ua, ub, sa, sb) = (unsigned(a), unsigned(b), signed(a), signed(b));
    let count = (b % bits) as u32;
    let result = match op {
        AluOp::Add => ua.wrapping_add(ub),
        AluOp::Sub => ua.wrapping_sub(ub),
        AluOp::Mul => ua.wrapping_mul(ub),
        AluOp::Or => ua | ub,
        AluOp::And => ua & ub,
        AluOp::Xor => ua ^ ub,
        AluOp::Div => ua.checked_div(ub).unwrap_or(0),
        AluOp::Mod => ua.checked_rem(ub).unwrap_or(ua),
        AluOp::SDiv => sa.checked_div(sb).unwrap_or(0) as u128,
        AluOp::SMod => sa.checked_rem(sb).unwrap_or(sa) as u128,
        AluOp::Lsh => ua << count,
        AluOp::Rsh => ua >> count,
        AluOp::Arsh => (sa >> count) as u128,
    };
    unsigned(result as u64) as u64
}

/// Every operation, with a register and with a constant, on all pairs of edge values, against the model.
#[test]
fn every_operation_on_edge_values() {
    let variants = all();
    for (op, width) in AluOp::ALL.into_iter().flat_map(|op| [(op, Width::W32), (op, Width::W64)]) {
        for (a, b) in EDGES.into_iter().flat_map(|a| EDGES.into_iter().map(move |b| (a, b))) {
            let load = |dst, value| {
                let imm = bpf_isa::Imm64::Const(value);
                [Insn::LoadImm64 { dst, imm }, Insn::SecondSlot]
            };
            let by_register = [&load(Reg::R0, a)[..], &load(Reg::R3, b)]
                .concat()
                .into_iter()
                .chain([Insn::Alu { op, width, dst: Reg::R0, src: Src::Reg(Reg::R3) }, Insn::Exit])
                .collect::<Vec<_>>();
            let imm = b as i32;
            let by_constant = load(Reg::R0, a)
                .into_iter()
                .chain([Insn::Alu { op, width, dst: Reg::R0, src: Src::Imm(imm) }, Insn::Exit])
                .collect::<Vec<_>>();
            for (insns, b) in [(by_register, b), (by_constant, i64::from(imm) as u64)] {
                let expected = model(op, width, a, b);
                // Two variants a program, in turn: the product of all would take minutes.
                let turn = (a ^ b.rotate_left(7)) as usize % variants.len();
                for variant in [&variants[1 % variants.len()], &variants[turn]] {
                    let (r0, _) = variant.run(&insns, &[]).unwrap_or_else(|e| panic!("{op:?} {width:?}: {e:?}"));
                    assert_eq!(r0, expected, "{op:?} {width:?} {a:#x} {b:#x} on {}", variant.name);
                }
            }
        }
    }
}

/// Every 32-bit pattern that one arm64 instruction can hold as a logical immediate, and its neighbours, which it
/// cannot.
#[test]
fn every_logical_immediate() {
    let Some(jit) = jit() else { return skipped("every_logical_immediate", &"no JIT for this host") };
    let mut values = Vec::new();
    for size in [2, 4, 8, 16, 32] {
        for ones in 1..size {
            let run = (1u64 << ones) - 1;
            let element = (0..32 / size).fold(0u64, |all, i| all | run << (i * size)) as u32;
            values.extend((0..size).map(|by| element.rotate_left(by)));
        }
    }
    values.sort_unstable();
    values.dedup();
    let value = 0x0123_4567_89ab_cdefu64;
    // One program for many immediates: each result is folded into r0.
    for chunk in values.chunks(64) {
        for (op, width) in
            [AluOp::And, AluOp::Or, AluOp::Xor].into_iter().flat_map(|op| [(op, Width::W32), (op, Width::W64)])
        {
            let mut insns = program("r3 = 0x0123456789abcdef ll; r0 = 0");
            let mut expected = 0u64;
            for imm in chunk.iter().flat_map(|v| [*v as i32, v.wrapping_add(1) as i32]) {
                insns.push(Insn::Mov { width: Width::W64, dst: Reg::R4, src: Src::Reg(Reg::R3) });
                insns.push(Insn::Alu { op, width, dst: Reg::R4, src: Src::Imm(imm) });
                insns.extend(program("r0 *= 31; r0 += r4"));
                let result = model(op, width, value, i64::from(imm) as u64);
                expected = expected.wrapping_mul(31).wrapping_add(result);
            }
            insns.push(Insn::Exit);
            let (r0, _) = jit.run(&insns, &[]).expect("a result");
            assert_eq!(r0, expected, "{op:?} {width:?} {chunk:x?}");
        }
    }
}
