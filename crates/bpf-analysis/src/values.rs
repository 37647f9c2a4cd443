//! Facts about numbers, addresses and loops that a verifier has proven, for the optimiser.
//!
//! Invariants: a fact about an instruction is true each time that a run executes it, whatever path led there; a fact
//! about a loop, each time that a run enters it. An instruction that no run reaches has facts that say nothing. Once
//! paths have met, little is known of numbers on which no address, comparison or argument depends.

use bpf_isa::InsnIdx;

/// Knowledge of a 64-bit number: its bits, and its range as an unsigned and as a signed number. The number satisfies
/// all of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Known {
    /// The bits that are known to be 1.
    pub value: u64,
    /// The bits that are not known; disjoint from `value`.
    pub mask: u64,
    /// Least unsigned value.
    pub umin: u64,
    /// Greatest unsigned value.
    pub umax: u64,
    /// Least signed value.
    pub smin: i64,
    /// Greatest signed value.
    pub smax: i64,
}

impl Known {
    /// No knowledge: any number, or a value that is not a number.
    pub const NOTHING: Known =
        Known { value: 0, mask: u64::MAX, umin: 0, umax: u64::MAX, smin: i64::MIN, smax: i64::MAX };

    /// Whether the number may be `x`.
    pub fn contains(&self, x: u64) -> bool {
        let s = x as i64;
        x & !self.mask == self.value && (self.umin..=self.umax).contains(&x) && (self.smin..=self.smax).contains(&s)
    }

    /// The number, if it is always the same.
    pub fn as_const(&self) -> Option<u64> {
        (self.umin == self.umax).then_some(self.umin)
    }

    /// Whether the upper 32 bits are always zero.
    pub fn upper_zero(&self) -> bool {
        self.umax <= u64::from(u32::MAX)
    }

    /// Returns the knowledge of a number that satisfies `self` or `other`.
    #[must_use]
    pub fn join(&self, other: &Known) -> Known {
        let mask = self.mask | other.mask | (self.value ^ other.value);
        Known {
            value: self.value & !mask,
            mask,
            umin: self.umin.min(other.umin),
            umax: self.umax.max(other.umax),
            smin: self.smin.min(other.smin),
            smax: self.smax.max(other.smax),
        }
    }
}

impl Default for Known {
    fn default() -> Known {
        Known::NOTHING
    }
}

/// Region of memory that an access is made to. Bytes of two different regions are different bytes, except that those of
/// [`AccessRegion::MapValue`] and [`AccessRegion::Memory`] may be of any memory but frames and the context, of the
/// same or another map: the host may give one map two names, and lend its memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AccessRegion {
    /// The frame of the subprogram that makes the access. Offsets count from its r10: they are negative.
    Frame,
    /// The frame of a caller, or of one of its callers. Offsets count from that one's r10.
    CallerFrame,
    /// The context, as the program sees it.
    Context,
    /// The context region with this index; 0 is the packet. Offsets count from where it begins at that moment: after a
    /// call that moves the region, they count from its new start.
    Packet(u8),
    /// A value of a map of the program's map list, or of a map that was found in it. Offsets count from the start of
    /// the element's value.
    MapValue {
        /// The map's index.
        map: u32,
        /// Whether the value belongs to a map that was found in that map.
        inner: bool,
    },
    /// Other memory that a function gave the program, or its caller.
    Memory,
}

/// Facts about the address of a load, a store or an atomic operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AccessFact {
    /// Region of the access.
    pub region: AccessRegion,
    /// Least offset in the region of the first byte accessed.
    pub min: i64,
    /// Greatest offset in the region of the first byte accessed.
    pub max: i64,
    /// A power of two that divides the address: 1 to 8.
    pub align: u8,
}

/// Facts about the numbers that an instruction works on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ValueFacts {
    /// The destination register (of a comparison: its left side) before the instruction, if the instruction reads it.
    pub dst: Known,
    /// The source register, or the stored register, before the instruction.
    pub src: Known,
    /// The register that the instruction writes, after it. [`Known::NOTHING`] for calls.
    pub result: Known,
    /// The address that the instruction accesses. `None`: it accesses no memory, or not always the same region.
    pub access: Option<AccessFact>,
    /// For a conditional jump with one outcome in all runs: whether it is taken.
    pub taken: Option<bool>,
}

/// A loop that is entered only at its head.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LoopFact {
    /// The first instruction of its head.
    pub head: InsnIdx,
    /// Upper bound on how often control returns to the head after entering the loop. `None`: no bound is known. The
    /// loop still ends if the program needs no budget.
    pub rounds: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_join_holds_what_either_holds() {
        let known = |value: u64, mask: u64, umin, umax| Known { value, mask, umin, umax, ..Known::NOTHING };
        let (a, b) = (known(4, 3, 4, 7), known(16, 0, 16, 16));
        let both = a.join(&b);
        for x in 0..32 {
            assert!(both.contains(x) || !(a.contains(x) || b.contains(x)), "{x}");
        }
        assert_eq!((both.umin, both.umax, both.value, both.mask), (4, 16, 0, 23));
        assert!(!both.contains(8) && both.as_const().is_none() && b.as_const() == Some(16));
        assert!(both.upper_zero() && !Known::NOTHING.upper_zero() && Known::NOTHING.contains(u64::MAX));
    }
}
