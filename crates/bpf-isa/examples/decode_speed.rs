//! Measures the time of decoding and validation, in ns per program: `cargo run --release -p bpf-isa --example
//! decode_speed`. Minimum of many rounds, because the machine may be shared.

use std::hint::black_box;
use std::time::Instant;

use bpf_isa::{Program, assemble, decode, encode};

/// A program of `slots` slots that mixes all classes, in an order that a branch predictor cannot learn.
fn mixed(slots: usize) -> Vec<u8> {
    let kinds = [
        "r0 += r1",
        "w2 *= 5",
        "r3 = *(u32 *)(r1 + 4)",
        "*(u64 *)(r10 - 8) = r3",
        "if r3 > 7 goto +0",
        "r4 = r3",
        "r5 = 1 ll",
        "call 1",
        "lock *(u64 *)(r10 - 8) += r1",
        "r0 = be16 r0",
        "if w1 s< w2 goto +0",
        "w1 = -1",
    ];
    let mut seed = 1u32;
    let mut text = String::new();
    let mut left = slots - 1;
    while left > 0 {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let kind = kinds[(seed >> 16) as usize % kinds.len()];
        let size = 1 + usize::from(kind.ends_with("ll"));
        if size <= left {
            text.extend([kind, "\n"]);
            left -= size;
        }
    }
    let insns = assemble(&(text + "exit")).expect("the kinds above are instructions");
    encode(&insns).expect("assembled instructions have an encoding")
}

fn best_ns(rounds: u32, mut f: impl FnMut()) -> u128 {
    let once = |f: &mut dyn FnMut()| {
        let start = Instant::now();
        f();
        start.elapsed().as_nanos()
    };
    (0..rounds).map(|_| once(&mut f)).min().unwrap_or(0)
}

fn main() {
    println!("{:>8} {:>12} {:>18}", "slots", "decode ns", "decode+validate ns");
    for slots in [64, 512, 4000, 1_000_000] {
        let bytes = mixed(slots);
        let rounds = if slots > 10_000 { 20 } else { 2000 };
        let decoding = best_ns(rounds, || drop(black_box(decode(black_box(&bytes)))));
        let both = best_ns(rounds, || drop(black_box(Program::from_bytes(black_box(&bytes)))));
        println!("{slots:>8} {decoding:>12} {both:>18}");
    }
}
