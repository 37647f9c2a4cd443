//! How many look-ups of two dependent reads of memory the processor overlaps, by the number of instructions between
//! them.
//!
//! Two arrays of 16 MB each stand for the index and the slab of a hash with a million keys of 8 + 8 bytes. An
//! operation reads a random line of the first, and the place in the second that it finds there. Each step adds
//! trivial instructions, as a look-up has them. Caches are overwritten before each round, as the other contenders of
//! the maps benchmark overwrite them.

use super::RANDOM;
use crate::measure::{median, thread_time};
use crate::table::{Table, figure};
use std::hint::black_box;

const ROUNDS: u64 = 11;
const OPERATIONS: usize = 1 << 15;
/// Number of words in 16 MB.
const WORDS: usize = 2 << 20;
/// Number of words in a cache line.
const LINE: usize = 8;

/// Executes `TENS` times ten instructions whose results nothing uses.
#[inline(always)]
fn pad<const TENS: usize>() {
    for _ in 0..TENS {
        // SAFETY: adds to a register of its own.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            std::arch::asm!(".rept 10", "add {x}, 1", ".endr", x = inout(reg) 0u64 => _, options(nostack, nomem));
        }
        // SAFETY: adds to a register that the compiler gives it for that.
        #[cfg(target_arch = "aarch64")]
        unsafe {
            std::arch::asm!(".rept 10", "add {x}, {x}, #1", ".endr", x = inout(reg) 0u64 => _, options(nostack, nomem));
        }
    }
}

/// The two arrays.
struct Memory {
    index: Vec<u64>,
    slab: Vec<u64>,
}

impl Memory {
    /// Reads a random line of the index. The top bits of a product choose it, as in a hash.
    #[inline(always)]
    fn line(&self, random: &mut u64) -> u64 {
        *random = random.wrapping_mul(RANDOM).wrapping_add(1);
        let line = ((*random >> 32) as usize * (WORDS / LINE)) >> 32;
        self.index[line * LINE]
    }

    /// Measures one read an operation.
    fn one(&self, mut random: u64) {
        for _ in 0..OPERATIONS {
            black_box(self.line(&mut random));
        }
    }

    /// Measures two reads an operation, and other instructions between them.
    fn two<const TENS: usize>(&self, mut random: u64) {
        for _ in 0..OPERATIONS {
            black_box(self.slab[self.line(&mut random) as usize % WORDS]);
            pad::<TENS>();
        }
    }

    /// Measures two reads an operation, the first of which waits for the second of the operation before.
    fn waiting(&self, mut random: u64) {
        for _ in 0..OPERATIONS {
            // All words of the slab are zero, which the compiler does not know.
            random ^= self.slab[self.line(&mut random) as usize % WORDS];
        }
        black_box(random);
    }
}

/// Returns the table of the steps: nanoseconds an operation.
pub fn ladder() -> Table {
    let mut random = 1u64;
    let mut place = || {
        random = random.wrapping_mul(RANDOM).wrapping_add(1);
        (random >> 40) % WORDS as u64
    };
    // The zeroes are written explicitly: all pages that were never written would be one physical page.
    let slab = (0..WORDS).map(|_| black_box(0)).collect();
    let memory = Memory { index: (0..WORDS).map(|_| place()).collect(), slab };
    let steps: [(&str, &dyn Fn(u64)); 8] = [
        ("one read", &|random| memory.one(random)),
        ("two reads, the second where the first says", &|random| memory.two::<0>(random)),
        ("and 10 instructions more", &|random| memory.two::<1>(random)),
        ("and 20", &|random| memory.two::<2>(random)),
        ("and 40", &|random| memory.two::<4>(random)),
        ("and 60", &|random| memory.two::<6>(random)),
        ("and 80", &|random| memory.two::<8>(random)),
        ("two reads, one operation after the other", &|random| memory.waiting(random)),
    ];
    let mut times = vec![Vec::new(); steps.len()];
    let mut others = vec![0u64; 4 * WORDS];
    for round in 0..ROUNDS {
        for (step, (times, (_, run))) in times.iter_mut().zip(&steps).enumerate() {
            others.iter_mut().step_by(LINE).for_each(|word| *word = round);
            black_box(&others);
            let start = thread_time();
            run((round * 64 + step as u64 + 1).wrapping_mul(super::SPREAD));
            times.push((thread_time() - start).as_nanos() as f64 / OPERATIONS as f64);
        }
    }
    let mut table = Table::new(["32 MB, ns an operation", "time"]);
    for ((name, _), times) in steps.iter().zip(times) {
        table.row([(*name).to_owned(), figure(median(times))]);
    }
    table
}
