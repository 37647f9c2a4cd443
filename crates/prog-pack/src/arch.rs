//! Differences between x86-64 and arm64: traps, the two patchable instructions, veneers, reach, cache maintenance.
//!
//! Problem: this crate writes very few instructions, but those must be exactly right on each architecture.
//!
//! Approach: encoders are plain functions of an [`Arch`], so both are tested on every host. Cache maintenance, which
//! must be executed, is in one `imp` module per host.
//!
//! Sources: Intel SDM 2 (INT3, NOP, JMP); Arm ARM C6.2 (BRK, NOP, B, LDR literal, BR) and B2.4.4 (cache maintenance).

use bpf_jit_code::Arch;

/// An instruction that a patch slot may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Patch {
    /// Do nothing.
    Nop,
    /// Jump to this address.
    Jump(usize),
}

/// Encodes an instruction into the first [`bpf_jit_code::PatchSlot::len_on`] bytes; `None` if the jump does not
/// reach.
pub(crate) fn encode(arch: Arch, patch: Patch, at: usize) -> Option<[u8; 8]> {
    let mut bytes = [0; 8];
    match (arch, patch) {
        // The recommended five-byte nop (Intel SDM 2B, NOP).
        (Arch::X64, Patch::Nop) => bytes[..5].copy_from_slice(&[0x0f, 0x1f, 0x44, 0x00, 0x00]),
        (Arch::X64, Patch::Jump(target)) => {
            bytes[0] = 0xe9;
            bytes[1..5].copy_from_slice(&rel32(at + 1, target)?.to_le_bytes());
        }
        (Arch::Arm64, Patch::Nop) => bytes[..4].copy_from_slice(&0xd503_201f_u32.to_le_bytes()),
        (Arch::Arm64, Patch::Jump(target)) => {
            bytes[..4].copy_from_slice(&(0x1400_0000 | branch26(at, target)?).to_le_bytes());
        }
    }
    Some(bytes)
}

/// The operand at `at` of a `call` or `jmp` to `target`.
pub(crate) fn rel32(at: usize, target: usize) -> Option<i32> {
    i32::try_from(target.wrapping_sub(at.wrapping_add(4)) as isize).ok()
}

/// The 26-bit field of a `b` or `bl` at `at` to `target`.
#[expect(clippy::cast_possible_truncation, reason = "26 bits are left")]
pub(crate) fn branch26(at: usize, target: usize) -> Option<u32> {
    let distance = target.wrapping_sub(at) as isize;
    let words = distance >> 2;
    (distance & 3 == 0 && (-(1 << 25)..1 << 25).contains(&words)).then_some((words & 0x03ff_ffff) as u32)
}

/// Length of a veneer; its offset is a multiple of this.
pub(crate) const VENEER: usize = 24;

/// Code that jumps to any address; on arm64 it changes x16, as procedure linkage code may. A barrier between the jump
/// and the address keeps speculation from going straight on into the address.
pub(crate) fn veneer(arch: Arch, target: usize) -> [u8; VENEER] {
    let mut bytes = [0; VENEER];
    let target = (target as u64).to_le_bytes();
    match arch {
        Arch::X64 => {
            bytes[..6].copy_from_slice(&[0xff, 0x25, 10, 0, 0, 0]); // jmp [rip + 10]
            bytes[6..16].fill(0xcc); // int3
        }
        Arch::Arm64 => {
            bytes[..4].copy_from_slice(&0x5800_0090_u32.to_le_bytes()); // ldr x16, .+16
            bytes[4..8].copy_from_slice(&0xd61f_0200_u32.to_le_bytes()); // br x16
            bytes[8..12].copy_from_slice(&0xd503_3f9f_u32.to_le_bytes()); // dsb sy
            bytes[12..16].copy_from_slice(&0xd503_3fdf_u32.to_le_bytes()); // isb
        }
    }
    bytes[16..].copy_from_slice(&target);
    bytes
}

/// One instruction that traps, repeated to fill a word: `int3`, `brk #1`.
pub(crate) fn trap_word(arch: Arch) -> u64 {
    match arch {
        Arch::X64 => 0xcccc_cccc_cccc_cccc,
        Arch::Arm64 => 0xd420_0020_d420_0020,
    }
}

/// The distance in bytes that no target of a direct branch may reach or exceed.
pub(crate) const fn reach(arch: Arch) -> usize {
    match arch {
        Arch::X64 => i32::MAX as usize - 16,
        Arch::Arm64 => (128 << 20) - 16,
    }
}

/// The largest reservation in bytes: any two places in it, and a place in it and the host's text (if near), reach
/// each other.
pub(crate) const fn arena_limit(arch: Arch) -> usize {
    match arch {
        Arch::X64 => 1 << 30,
        Arch::Arm64 => 100 << 20,
    }
}

pub(crate) use imp::synchronize_caches;

#[cfg(target_arch = "aarch64")]
mod imp {
    use std::arch::asm;

    /// Makes bytes written through any mapping visible to instruction fetch at `rx..rx + len` on all CPUs. Other CPUs
    /// must still discard fetched instructions (a core barrier); this CPU does so here.
    pub(crate) fn synchronize_caches(rx: usize, len: usize) {
        let ctr: u64;
        // SAFETY: CTR_EL0 is readable at EL0 (Linux enables or emulates it) and reading it has no effect.
        unsafe { asm!("mrs {}, ctr_el0", out(reg) ctr, options(nomem, nostack, preserves_flags)) };
        // CTR_EL0: log2 of the line lengths in words.
        let (dline, iline) = (4usize << ((ctr >> 16) & 15), 4usize << (ctr & 15));
        for line in (rx & !(dline - 1)..rx + len).step_by(dline) {
            // SAFETY: cleaning a line of readable memory to the point of unification changes no contents.
            unsafe { asm!("dc cvau, {}", in(reg) line, options(nostack, preserves_flags)) };
        }
        // SAFETY: a barrier. The cleaning is complete before the invalidation begins.
        unsafe { asm!("dsb ish", options(nostack, preserves_flags)) };
        for line in (rx & !(iline - 1)..rx + len).step_by(iline) {
            // SAFETY: dropping a line from the instruction caches changes no contents.
            unsafe { asm!("ic ivau, {}", in(reg) line, options(nostack, preserves_flags)) };
        }
        // SAFETY: a barrier. The invalidation is complete on all CPUs before later instructions.
        unsafe { asm!("dsb ish", options(nostack, preserves_flags)) };
        // SAFETY: discards the instructions that this CPU has fetched.
        unsafe { asm!("isb", options(nostack, preserves_flags)) };
    }
}

#[cfg(not(target_arch = "aarch64"))]
mod imp {
    /// Instruction fetch sees stores (AMD APM 2 7.6.1; Intel SDM 3A 13.6).
    pub(crate) fn synchronize_caches(_: usize, _: usize) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jumps_reach_exactly_as_far_as_the_encoding() {
        let at = 1 << 40;
        for (arch, first, last, next) in [
            (Arch::X64, at - (1 << 31) + 5, at + (1 << 31) + 4, 1),
            (Arch::Arm64, at - (1 << 27), at + (1 << 27) - 4, 4),
        ] {
            for (target, reaches) in [(first, true), (last, true), (first - next, false), (last + next, false)] {
                assert_eq!(encode(arch, Patch::Jump(target), at).is_some(), reaches, "{arch:?} {target:#x}");
            }
            assert!(encode(arch, Patch::Jump(at + reach(arch)), at).is_some());
            assert!(encode(arch, Patch::Jump(at - reach(arch)), at).is_some());
            assert!(2 * arena_limit(arch) <= 2 * reach(arch));
        }
        assert_eq!(encode(Arch::Arm64, Patch::Jump(at + 2), at), None, "not a word boundary");
    }

    #[test]
    fn encodings_are_those_of_the_manuals() {
        assert_eq!(encode(Arch::X64, Patch::Jump(0x1000), 0x1000).unwrap()[..5], [0xe9, 0xfb, 0xff, 0xff, 0xff]);
        assert_eq!(encode(Arch::Arm64, Patch::Jump(0x0ffc), 0x1000).unwrap()[..4], [0xff, 0xff, 0xff, 0x17]);
        assert_eq!(encode(Arch::Arm64, Patch::Nop, 0).unwrap()[..4], [0x1f, 0x20, 0x03, 0xd5]);
    }
}
