//! Programs that access neighbours: several places at constant distances from one that varies.
//!
//! Problem: the optimiser shares selections between accesses of a contained program (`bpf-opt`'s `gather.rs`), and the
//! other generators rarely make accesses that can share one. Approach: an address in one of the kinds of objects, moved
//! by a number from the packet, masked, scaled or as it is, and loads and stores before and behind it; once, or in a
//! loop that moves the address. Nothing is checked: these are programs for containment, and not for the verifier.

use super::{ARRAY_VALUE, Context, GLOBAL_VALUE, Generated, HASH_VALUE, MapId};
use crate::generate::Choices;
use bpf_isa::{Program, assemble};
use std::fmt::Write;

/// A program made of these choices.
///
/// # Panics
/// If the program is not valid: a bug of the generator.
pub fn neighbours(c: &mut Choices<'_>) -> Generated {
    let context = c.pick(&[Context::Raw, Context::Raw, Context::Skb, Context::Xdp]);
    let mut text = String::new();
    let mut maps = 0;
    // r6: the packet, or the context's own data; r9: the context.
    text += match context {
        Context::Raw => "r9 = r1\nr6 = r1\n",
        Context::Skb => "r9 = r1\nr6 = *(u32 *)(r1 + 76)\n",
        Context::Xdp => "r9 = r1\nr6 = *(u32 *)(r1 + 0)\n",
    };
    text += "*(u64 *)(r10 - 8) = 0\n*(u64 *)(r10 - 16) = 0\n";
    let size = match c.below(6) {
        0 | 1 => {
            text += "r8 = r6\n";
            64
        }
        2 => {
            let bytes = c.pick(&[16, 32, 64, 256]);
            let _ = writeln!(text, "r8 = r10\nr8 += -{bytes}");
            bytes
        }
        3 => {
            maps |= 1 << MapId::Global as u16;
            let _ = writeln!(text, "r8 = map[fd:{}][0]+0", MapId::Global as u8);
            GLOBAL_VALUE
        }
        which => {
            let (map, size, key) =
                if which == 4 { (MapId::Array, ARRAY_VALUE, 4) } else { (MapId::Hash, HASH_VALUE, 8) };
            maps |= 1 << map as u16;
            let _ = writeln!(text, "r1 = map[fd:{}]\nr2 = r10\nr2 += -{key}\ncall 1\nr8 = r0", map as u8);
            // Null, or not asked for.
            if c.one_in(2) {
                text += "if r0 == 0 goto out\n";
            }
            size
        }
    };
    // r7: a number of the program's input.
    let _ = writeln!(text, "r7 = *({} *)(r6 + {})", c.pick(&["u8", "u16", "u32", "u64"]), c.below(4));
    match c.below(4) {
        0 => {
            let _ = writeln!(text, "r7 &= {}", size.next_power_of_two() * 2 - 1);
        }
        1 => {
            let _ = writeln!(text, "r7 &= 7\nr7 <<= {}", c.below(4));
        }
        2 => {
            let _ = writeln!(text, "r7 %= {size}");
        }
        _ => {}
    }
    text += "r8 += r7\nr0 = 0\n";
    let rounds = if c.one_in(2) { 1 + c.below(12) } else { 0 };
    if rounds > 0 {
        let _ = writeln!(text, "r5 = {rounds}\nagain:");
    }
    for _ in 0..2 + c.below(5) {
        let size_of = c.pick(&["u8", "u16", "u32", "u64"]);
        let off = match c.below(3) {
            0 => c.below(16) as i32 - 4,
            1 => c.below(size) as i32,
            _ => c.below(700) as i32 - 100,
        };
        let _ = match c.below(4) {
            0 => writeln!(text, "*({size_of} *)(r8 {off:+}) = {}", c.below(100)),
            1 => writeln!(text, "*({size_of} *)(r8 {off:+}) = r0"),
            _ => writeln!(text, "r1 = *({size_of} *)(r8 {off:+})\nr0 += r1"),
        };
        // A branch ends a basic block.
        if c.one_in(6) {
            text += "if r0 == 77 goto out\n";
        }
    }
    if rounds > 0 {
        let _ = writeln!(text, "r8 += {}\nr5 -= 1\nif r5 != 0 goto again", c.pick(&[0, 1, 4, 8, 100, -8]));
    }
    text += "out:\nexit\n";
    let text = text.replace(" +", " + ").replace(" -", " - ").replace(" + =", " +=").replace(" - =", " -=");
    let insns = assemble(&text.replace("+= - ", "+= -")).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let program = Program::new(insns).expect("the generator makes valid programs");
    Generated { program, context, globals: vec![None], maps, lens: vec![size], ordered: true, lured: true }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Most of these programs are contained, in each context and object.
    #[test]
    fn neighbours_are_contained() {
        let mut sabotage = crate::soundness::Sabotage::default();
        for seed in 0..400 {
            let mut c = Choices::from_seed(seed);
            let generated = neighbours(&mut c);
            if let Err(what) = sabotage.check_as_is(&generated, 2, &mut c) {
                panic!("seed {seed}: {what}");
            }
        }
        assert!(sabotage.seen.contained > 300, "{:?}", sabotage.seen);
        assert!(sabotage.seen.stopped < 100, "{:?}", sabotage.seen);
    }
}
