//! Short counted loops against the interpreter: the optimiser does several of their rounds at a time.
//!
//! Problem: generated programs count a few rounds down to zero, so they never come near the ends of the numbers, never
//! step over a limit, and never have a stride other than one. Approach: one loop whose start lies some rounds before
//! its limit, or beyond it, and whose limit lies at an end of the signed or unsigned numbers of either width. Loops
//! that never end are stopped by the budget; it must stop both engines at the same instruction.

use super::{Options, mixing_linker, words};
use crate::generate::Choices;
use bpf_isa::disassemble;
use bpf_jit::OptLevel;
use bpf_jit_code::Arch;
use bpf_runtime::{Mode, Raw};

/// The assembler text of a program with one loop.
fn text(c: &mut Choices) -> String {
    let small = |c: &mut Choices, n: u32| i64::from(c.below(n));
    let step = c.pick(&[1, 2, 3, 4, 7, 8, 1000, 65535, -1, -2, -3, -8]);
    let ends = [0, 1, 20, -1, i64::from(i32::MAX), i64::from(i32::MIN), 1 << 31, 1 << 32, i64::MAX, i64::MIN];
    let limit = c.pick(&ends).wrapping_add(small(c, 60) - 30);
    let start = limit.wrapping_sub((small(c, 50) - 3).wrapping_mul(step)).wrapping_add(small(c, 3) - 1);
    let narrow = c.one_in(2);
    // A 64-bit counter may be compared at 32 bits, and a 32-bit counter at 64.
    let (count, compare) = (if c.one_in(3) { 'w' } else { 'r' }, if narrow { 'w' } else { 'r' });
    let cond = c.pick(&["!=", "!=", "<", "<=", "s<", "s<=", ">", "s>", "=="]);
    let limit_imm = i32::try_from(limit).ok().filter(|_| c.one_in(2));
    let right = limit_imm.map_or(format!("{compare}7"), |imm| imm.to_string());
    let turned = limit_imm.is_none() && c.one_in(3);
    let test = if turned { format!("{right} {cond} {compare}6") } else { format!("{compare}6 {cond} {right}") };
    let adds = c.pick(&["r0 += r6", "r0 ^= r6", "w0 += w6", "w0 ^= w6", "r0 |= r6", "r0 += r0", "r5 = r6"]);
    let more = c.pick(&[
        "",
        "r3 = r6\nr3 &= 56\nr3 += r9\nr4 = *(u64 *)(r3 + 0)\nr8 += r4",
        "r3 = r6\nr3 &= 56\nr3 += r9\n*(u64 *)(r3 + 0) = r6",
        "r3 = r6\nr3 &= 28\nr3 += r9\nw4 = *(u32 *)(r3 + 4)\nw8 ^= w4",
        "r8 += 5",
        "r7 += 1",
        "r6 += 1",
    ]);
    let round = match c.below(3) {
        0 => format!("if {test} goto head\n"),
        1 => format!("if {test} goto on\ngoto end\non:\ngoto head\n"),
        _ => format!(
            "if {test} goto on\n{}goto end\non:\nr5 = 1\ngoto head\n",
            if c.one_in(2) { "r8 += 1\n" } else { "" }
        ),
    };
    let body = if c.one_in(2) {
        format!("{adds}\n{count}6 += {step}\n{more}\n")
    } else {
        format!("{more}\n{count}6 += {step}\n{adds}\n")
    };
    format!(
        "r9 = r1\nr0 = 0\nr5 = 0\nr8 = 3\nr6 = {start:#x} ll\nr7 = {limit:#x} ll\nhead:\n{body}{round}end:\nr0 += r8\nr0 ^= r6\nr0 += r5\nexit"
    )
}

/// A loop with any limit and stride on both engines: the result, the memory, and where it stops.
pub fn loops(data: &[u8]) {
    let mut choices = Choices::from_bytes(data);
    let mut options = Options::choose(&mut choices);
    options.opt_level = OptLevel::Speed;
    let budget = 20 + u64::from(choices.below(400));
    let text = text(&mut choices);
    let insns = bpf_isa::assemble(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let memory: Vec<u8> = (0..64).map(|_| choices.byte()).collect();
    let outcome = |mode| {
        let mut config = options.config(mode);
        config = config.budget(budget).interruptible(options.checks);
        let linker = mixing_linker(config);
        // SAFETY: all accesses are within 64 bytes of memory, by a mask, and the budget ends it.
        let loader = unsafe { linker.loader::<Raw>().unverified(true) };
        let program = loader.insns("loop", insns.clone()).expect("a valid program loads");
        let mut words = words(&memory);
        let result = program.run(&mut (), zerocopy::IntoBytes::as_mut_bytes(words.as_mut_slice()));
        (result.map_err(|error| error.to_string()), words)
    };
    if Arch::HOST.is_some() {
        assert_eq!(
            outcome(Mode::Jit),
            outcome(Mode::Interpreter),
            "{options:?}, budget {budget}\n{}",
            disassemble(&insns)
        );
    }
}
