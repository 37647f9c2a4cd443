//! Size and distance: code beyond 32 KiB and 1 MiB with jumps across it, a million instructions, and every distance at
//! which a jump changes its form.

use crate::support::{Variant, allocations, interpreter, jit, program, run};
use bpf_isa::{AluOp, Insn, Reg, Src, Width};
use bpf_runtime::LoadError;
use bpf_testkit::skipped;

/// Instructions that make code and change r0: `r0 = r0 * 1 + 0x1234567`, in a form that no backend shortens.
fn filler(count: usize) -> impl Iterator<Item = Insn> {
    let add = Insn::Alu { op: AluOp::Add, width: Width::W64, dst: Reg::R0, src: Src::Imm(0x123_4567) };
    std::iter::repeat_n(add, count)
}

/// Returns the sum that `count` fillers add to r0.
fn filled(count: usize) -> u64 {
    0x123_4567u64.wrapping_mul(count as u64)
}

/// The interpreter, the JIT, and the JIT with every value in a slot: the longest code there is.
fn engines() -> Vec<Variant> {
    [interpreter()].into_iter().chain(jit()).chain(allocations(0).into_iter().take(1)).collect()
}

/// Runs it on memories of one word everywhere, each with the result expected.
fn hold(engines: &[Variant], what: &str, insns: &[Insn], runs: &[(u64, u64)]) {
    for variant in engines {
        let program = variant.load(insns).unwrap_or_else(|e| panic!("{what} on {}: {e}", variant.name));
        for (memory, expected) in runs {
            let (r0, _) = run(&program, &memory.to_le_bytes())
                .unwrap_or_else(|e| panic!("{what} on {}, {memory:#x}: {e:?}", variant.name));
            assert_eq!(r0, *expected, "{what} on {}, {memory:#x}", variant.name);
        }
    }
}

/// A conditional jump over `count` fillers, taken if the memory's first word is 1; a loop back over as many, taken
/// `memory` times.
fn across(count: usize) -> (Vec<Insn>, Vec<Insn>) {
    // BPF's own conditional jumps reach 32767 instructions; further, they go over a gotol.
    let forward: Vec<Insn> = program("r3 = *(u64 *)(r1 + 0); r0 = 5; if r3 != 1 goto +1")
        .into_iter()
        .chain([Insn::Jump { off: count as i32, wide: true }])
        .chain(filler(count))
        .chain([Insn::Exit])
        .collect();
    let back: Vec<Insn> = program("r3 = *(u64 *)(r1 + 0); r0 = 0")
        .into_iter()
        .chain(filler(count))
        .chain(program("r3 -= 1; if r3 == 0 goto +1"))
        .chain([Insn::Jump { off: -(count as i32) - 3, wide: true }])
        .chain([Insn::Exit])
        .collect();
    (forward, back)
}

#[test]
fn jumps_across_32_kib_and_1_mib() {
    let engines = engines();
    // A filler is 4 to 16 bytes: these lie on both sides of each limit (x86-64 rel8; arm64 tbz 32 KiB, b.cond 1 MiB).
    for count in [1, 10, 4_000, 8_191, 8_192, 65_600, 131_000, 262_144] {
        let (forward, back) = across(count);
        let runs = [(1, 5), (2, 5u64.wrapping_add(filled(count)))];
        hold(&engines, &format!("jump over {count}"), &forward, &runs);
        hold(&engines, &format!("loop over {count}"), &back, &[(3, filled(3 * count))]);
    }
}

/// The conditions that arm64 fuses into cbz, cbnz, tbz and tbnz, over distances beyond their reach.
#[test]
fn fused_conditions_reach_far() {
    let engines = engines();
    for (condition, taken, not) in [
        ("r3 == 0", 0u64, 1u64),
        ("r3 != 0", 7, 0),
        ("w3 == 0", 1 << 32, 1),
        ("r3 & 4", 4, 3),
        ("w3 & 1024", 1024, 1),
        ("r3 s< 0", u64::MAX, 1),
        ("r3 s>= 0", 1, u64::MAX),
        ("r3 > 5", 6, 5),
    ] {
        for count in [30, 2_700, 8_185, 8_195] {
            let mut insns = program(&format!("r3 = *(u64 *)(r1 + 0); r0 = 5; if {condition} goto +{count}"));
            insns.extend(filler(count));
            insns.push(Insn::Exit);
            let runs = [(taken, 5), (not, 5u64.wrapping_add(filled(count)))];
            hold(&engines, &format!("{condition} over {count}"), &insns, &runs);
        }
    }
}

/// Jumps of every length around the limits of the short form, many beside each other so that one growing pushes others
/// over the limit (the kernel's relaxation oscillated here).
#[test]
fn every_distance_around_the_short_form() {
    let Some(jit) = jit() else { return skipped("every_distance_around_the_short_form", &"no JIT for this host") };
    let interpreter = interpreter();
    for distance in 1..80 {
        // A comb: instruction i jumps over `distance` others, which are jumps themselves.
        let teeth = 200;
        let mut insns = program("r3 = *(u64 *)(r1 + 0); r0 = 0");
        for i in 0..teeth {
            let reach = distance.min(2 * (teeth - i) - 1);
            insns.extend(program(&format!("r0 += {i}; if r3 & {} goto +{reach}", 1 << (i % 24))));
        }
        insns.extend(program("r0 += 1; exit"));
        for memory in [0u64, 1, 0x55_5555, 0x80_0001, u64::MAX] {
            let memory = memory.to_le_bytes();
            let expected = interpreter.run(&insns, &memory).expect("a result");
            assert_eq!(jit.run(&insns, &memory).expect("a result"), expected, "distance {distance}, {memory:x?}");
        }
    }
}

#[test]
fn a_million_instructions() {
    let million = bpf_isa::MAX_INSNS;
    let engines: Vec<Variant> = [interpreter()].into_iter().chain(jit()).collect();
    let longest: Vec<Insn> = program("r0 = 0").into_iter().chain(filler(million - 2)).chain([Insn::Exit]).collect();
    hold(&engines, "a million instructions", &longest, &[(0, filled(million - 2))]);
    // Branches everywhere: a million instructions in half a million blocks.
    let branchy: Vec<Insn> = program("r3 = *(u64 *)(r1 + 0); r0 = 0")
        .into_iter()
        .chain(program("if r3 == 0 goto +1; r0 += 1").into_iter().cycle().take(million - 4))
        .chain(program("r0 += 1; exit"))
        .collect();
    hold(&engines, "half a million branches", &branchy, &[(0, 1), (1, million as u64 / 2 - 1)]);
    let too_long: Vec<Insn> = program("r0 = 0").into_iter().chain(filler(million - 1)).chain([Insn::Exit]).collect();
    for variant in &engines {
        match variant.load(&too_long) {
            Err(LoadError::Structure { .. }) => {}
            other => panic!("{}: 1,000,001 instructions gave {other:?}", variant.name),
        }
    }
}

/// Many subprograms, so that calls are far too, and a chain of calls through all eight frames.
#[test]
fn calls_across_1_mib() {
    let body = 100_000;
    // main calls f0, f1, f2; each is long.
    let mut insns = program(
        "r6 = 0; call f0; r6 += r0; call f1; r6 += r0; call f2; r6 += r0; r0 = r6; exit; f0: exit; f1: exit; f2: exit",
    );
    let main = 9;
    insns.truncate(main);
    for f in 0..3usize {
        // f is called by main's instructions 1, 3 and 5.
        let start = main + f * (body + 2);
        let at = 1 + 2 * f;
        insns[at] = Insn::Call(bpf_isa::Callee::Subprog((start - at - 1) as i32));
        insns.extend(program(&format!("r0 = {f}")));
        insns.extend(filler(body));
        insns.push(Insn::Exit);
    }
    hold(&engines(), "far calls", &insns, &[(0, filled(3 * body).wrapping_add(3))]);
}
