//! Measures nanoseconds per instruction, and per run: `cargo run --release -p bpf-interp --example interp_speed`.
//! Minimum of many rounds, because the machine may be shared.

use std::hint::black_box;
use std::time::Instant;

use bpf_interp::{Machine, Memory, NoHost, Options};
use bpf_isa::{Program, assemble};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    for (name, text, insns) in [
        ("empty run", "exit", 1),
        ("arithmetic loop", "r0 = 0\na: r0 += 3\nr0 ^= 5\nr0 *= 7\nr3 += 1\nif r3 != 1000 goto a\nexit", 5002),
        ("stack loop", "a: *(u64 *)(r10 - 8) = r3\nr0 = *(u64 *)(r10 - 8)\nr3 += 1\nif r3 != 1000 goto a\nexit", 4001),
        ("context loop", "a: r0 = *(u32 *)(r1 + 4)\nr4 = *(u8 *)(r1 + 3)\nr3 += 1\nif r3 != 1000 goto a\nexit", 4001),
        ("calls", "a: call f\nr6 += 1\nif r6 != 1000 goto a\nexit\nf: r0 = 1\nexit", 5001),
    ] {
        let program = Program::new(assemble(text)?)?;
        let mut data = [0u8; 64];
        let mut memory = Memory::new();
        let r1 = memory.add_writable(&mut data);
        let mut machine = Machine::new(memory, Options::default());
        let mut best = u128::MAX;
        for _ in 0..2000 {
            let start = Instant::now();
            black_box(machine.run(&mut NoHost::new(), &&program, [black_box(r1), 64])?);
            best = best.min(start.elapsed().as_nanos());
        }
        println!("{name:16} {best:>8} ns a run {:>8.2} ns an instruction", best as f64 / f64::from(insns));
    }
    Ok(())
}
