//! Bytes that are hardly a program, for decoders and validators.
//!
//! Random bytes almost never get past the first opcode, so most of these begin as a generated program and are then
//! damaged: a bit flipped, a slot repeated, swapped, dropped or overwritten, the end cut off.

use super::{Choices, Shape, generate};

/// Eight-byte slots (the last perhaps cut) that may or may not be a program.
pub fn wild(choices: &mut Choices<'_>) -> Vec<u8> {
    if choices.one_in(8) {
        return (0..choices.below(256)).map(|_| choices.byte()).collect();
    }
    let shape = Shape { statements: 8, packet_loads: true, ..Shape::default() };
    let mut bytes = generate(choices, &shape).program.to_bytes();
    for _ in 0..=choices.below(4) {
        damage(&mut bytes, choices);
    }
    bytes
}

fn damage(bytes: &mut Vec<u8>, choices: &mut Choices<'_>) {
    let slots = bytes.len() / 8;
    if slots < 2 {
        return;
    }
    let slot = |choices: &mut Choices<'_>| choices.below(slots as u32) as usize * 8;
    let (a, b) = (slot(choices), slot(choices));
    match choices.below(7) {
        0 => {
            let bit = choices.below(64) as usize;
            bytes[a + bit / 8] ^= 1 << (bit % 8);
        }
        1 => bytes[a] = choices.byte(),
        2 => bytes.copy_within(a..a + 8, b),
        3 => bytes[a..a + 8].fill_with(|| choices.byte()),
        4 => drop(bytes.drain(a..a + 8)),
        5 => {
            let copy: [u8; 8] = std::array::from_fn(|i| bytes[a + i]);
            drop(bytes.splice(b..b, copy));
        }
        _ => bytes.truncate(a + choices.below(8) as usize),
    }
}
