//! How the accesses of a contained program are bounded in its code: the memory that each is confined to.
//!
//! A separate analysis makes these facts. It follows pointers and no ranges, and uses nothing that the verifier has
//! proven about numbers. Therefore, a compiler that confines each access by these facts makes code that stays inside
//! the program's own objects, whether the verifier's proofs are right or not.

use bpf_isa::Reg;

use crate::bounds::RegionBounds;

/// The object that a pointer leads to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Object {
    /// The frame of the function. Offsets count from r10.
    Frame,
    /// The context. Offsets count from its start.
    Context,
    /// The context region with this index. Offsets count from its start.
    Region(u8),
    /// An object of known size, whose start the code keeps beside the pointer where no program can write ([`Home`]).
    /// Offsets count from that start. It begins at a multiple of 8, but for a slice of a dynptr.
    Held {
        /// Its bytes.
        bytes: u32,
    },
}

/// The object and the offset that a pointer leads to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// The object.
    pub object: Object,
    /// The offset in the object in bytes, if it is the same constant whenever control comes here.
    pub off: Option<i64>,
}

/// A place that holds a pointer. The start of the pointer's object is kept beside it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Home {
    /// A register.
    Reg(Reg),
    /// The eight bytes of the frame at r10 - 8 * n, where n is at least 1.
    Slot(u8),
}

impl Home {
    /// Number of homes: ten registers, and the tracked slots of a frame.
    pub const COUNT: usize = 10 + Home::SLOTS;
    /// Number of tracked slots of a frame.
    pub const SLOTS: usize = 64;

    /// The home's number, below [`Home::COUNT`].
    pub fn index(self) -> usize {
        match self {
            Home::Reg(reg) => reg.index().min(9),
            Home::Slot(n) => 10 + usize::from(n).clamp(1, Home::SLOTS) - 1,
        }
    }

    /// Returns the homes of the two words of a dynptr at this offset from r10, which is at least -8 * [`Home::SLOTS`]
    /// and at most -16.
    pub fn of_dynptr(off: i16) -> [Home; 2] {
        let n = u8::try_from(-i32::from(off) / 8).unwrap_or(u8::MAX);
        [Home::Slot(n), Home::Slot(n.saturating_sub(1))]
    }
}

/// The effect of an instruction on the held start of an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Hold {
    /// Nothing.
    #[default]
    Nothing,
    /// The start held for the first home is copied to the second home.
    Copy(Home, Home),
    /// The register leads to the first value of the map with this index.
    MapValue(Reg, u32),
    /// The call returns the start of an object, or null.
    Result,
    /// The call returns an inner map, or null. The program only passes it on, so no selection replaces null.
    Inner,
    /// The call has written a dynptr into the frame, at this offset from r10. Its two words are kept beside the slots
    /// that they lie in.
    Dynptr(i16),
}

/// How many bytes a call may use behind an argument's pointer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Extent {
    /// A constant number of bytes.
    Bytes(u32),
    /// As many bytes as the next argument register says.
    Next {
        /// Whether the function reads only the low 32 bits of that register.
        half: bool,
    },
}

/// The content of an argument register at a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Passed {
    /// The register as it is: a number, or what the function checks itself.
    #[default]
    AsIs,
    /// The map with this index, whatever the register holds.
    Map(u32),
    /// The inner map whose address is kept beside the register, or null, whatever the register holds.
    Inner,
    /// The address of a dynptr in the frame, at this offset from r10, whatever the register holds.
    Dynptr {
        /// The offset, a multiple of 8.
        off: i16,
        /// Whether the call makes the dynptr. If it does not, the two words that are kept beside the slots are
        /// written to the frame first, over whatever the program has stored there.
        made: bool,
    },
    /// The context, whatever the register holds.
    Context,
    /// The constant 0, whatever the register holds.
    Null,
    /// A pointer, confined to offsets at which the object has as many bytes as the call uses.
    Pointer {
        /// The place that the pointer leads to.
        place: Place,
        /// How many bytes the call uses.
        extent: Extent,
        /// The address is a multiple of this power of two, 8 at most.
        align: u8,
        /// Whether the register may hold null, which the call then gets.
        null: bool,
    },
    /// A pointer that a function of the program receives, together with the start of its object.
    Held {
        /// The object is the caller's frame.
        frame: bool,
    },
}

/// Everything that the analysis says of one instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Confined {
    /// Whether the analysis reaches the instruction. An unreached instruction stops the run: control never comes
    /// there, if the verifier is right.
    pub reached: bool,
    /// For a load, a store or an atomic operation: the place that the base register leads to, without the
    /// instruction's offset. `None`: the instruction accesses no memory, or the arena.
    pub place: Option<Place>,
    /// Actions on the starts of objects.
    pub hold: Hold,
    /// For a call: its index in [`Contained::calls`].
    pub call: Option<u32>,
}

/// How a whole program is contained.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Contained {
    /// Facts by instruction slot.
    pub insns: Vec<Confined>,
    /// The arguments of calls.
    pub calls: Vec<[Passed; 5]>,
    /// By function: the bytes of its frame, a multiple of 8.
    pub frames: Vec<u32>,
    /// By function: which argument registers hold the pointer to an object whose start comes with it.
    pub received: Vec<[bool; 5]>,
    /// By function: the homes in use, a bit for each [`Home::index`].
    pub homes: Vec<u128>,
    /// By region of the context: where its bounds are.
    pub regions: Vec<RegionBounds>,
    /// The bytes of the largest object that a call returns. Where a call returns null, accesses go to this many bytes
    /// of other memory, at least [`Contained::MAX_CONSTANT`] and [`Contained::MAX_ACCESS`].
    pub sink: u32,
    /// Whether some call may move or resize the regions.
    pub moves: bool,
}

impl Contained {
    /// Most bytes of an object that are accessed at a constant offset, where the object's length is known only when
    /// the program runs.
    pub const MAX_CONSTANT: u32 = 1 << 16;

    /// Most bytes that a call may use of an object whose length is known only when the program runs.
    pub const MAX_ACCESS: u32 = 1 << 15;

    /// The bytes of memory that is used where there is no object.
    pub fn sink_bytes(&self) -> usize {
        let in_region =
            |passed: &Passed| matches!(passed, Passed::Pointer { place: Place { object: Object::Region(_), .. }, .. });
        let parts = if self.calls.iter().flatten().any(in_region) { 5 } else { 0 };
        self.sink.max(Contained::MAX_CONSTANT + Contained::MAX_ACCESS).max(parts * Contained::MAX_ACCESS) as usize
    }

    /// The offset in that memory of the bytes that argument `i` of a call gets in place of bytes outside of its region.
    /// No two arguments of a call share a byte: a host function may have an exclusive reference to each.
    pub fn sink_part(i: usize) -> i64 {
        i as i64 * i64::from(Contained::MAX_ACCESS)
    }

    /// Returns the confinement of the instruction at `slot`.
    pub fn at(&self, slot: u32) -> Confined {
        self.insns.get(slot as usize).copied().unwrap_or_default()
    }

    /// Returns the arguments of the call at `slot`.
    pub fn passed(&self, slot: u32) -> Option<[Passed; 5]> {
        self.calls.get(self.at(slot).call? as usize).copied()
    }
}
