//! How the accesses of a contained program are bounded in its code: what of memory they are confined to.
//!
//! Everything here is found by an analysis of its own, which follows pointers and no ranges, and believes nothing that
//! the verifier has proven about numbers. So a compiler that confines each access as it is said here makes code that
//! stays inside the program's own objects, whether the verifier's proofs are right or not.

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
    /// Offsets count from that start. It begins at a multiple of 8.
    Held {
        /// Its bytes.
        bytes: u32,
    },
}

/// Where a pointer leads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// Which object.
    pub object: Object,
    /// How far into it, if that is the same constant whenever control comes here.
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
    /// How many homes there are: ten registers, and the slots of the largest frame that is followed.
    pub const COUNT: usize = 10 + Home::SLOTS;
    /// How many slots of a frame are followed.
    pub const SLOTS: usize = 64;

    /// Its number, below [`Home::COUNT`].
    pub fn index(self) -> usize {
        match self {
            Home::Reg(reg) => reg.index().min(9),
            Home::Slot(n) => 10 + usize::from(n).clamp(1, Home::SLOTS) - 1,
        }
    }
}

/// The effect of an instruction on the held start of an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Hold {
    /// Nothing.
    #[default]
    Nothing,
    /// The second home's is the first one's from now on.
    Copy(Home, Home),
    /// The register leads to the first value of the map with this index.
    MapValue(Reg, u32),
    /// The call returns the start of an object, or null.
    Result,
}

/// How many bytes a call may use of what an argument points to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Extent {
    /// A constant number of bytes.
    Bytes(u32),
    /// As many as the next argument register says.
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
    /// The context, whatever the register holds.
    Context,
    /// The constant 0, whatever the register holds.
    Null,
    /// A pointer, confined to where so many bytes of the object are.
    Pointer {
        /// Where it leads.
        place: Place,
        /// How much of that the call uses.
        extent: Extent,
        /// The address is a multiple of this power of two, 8 at most.
        align: u8,
        /// The register may hold null, which is passed on.
        null: bool,
    },
    /// A pointer that a function of the program receives: the object's start goes with it.
    Held {
        /// The object is the caller's frame.
        frame: bool,
    },
}

/// Everything that the analysis says of one instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Confined {
    /// The analysis comes to it. Any other stops the run: control never comes there, if the verifier is right.
    pub reached: bool,
    /// Of a load, a store or an atomic operation: where the base register leads, without the instruction's offset.
    /// `None`: it accesses no memory, or the arena.
    pub place: Option<Place>,
    /// Actions on the starts of objects.
    pub hold: Hold,
    /// Of a call: its place in [`Contained::calls`].
    pub call: Option<u32>,
}

/// How a whole program is contained.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Contained {
    /// By instruction slot.
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
    /// The bytes of the largest object that a call returns. Where there is none, as many others are used in its place,
    /// beside [`Contained::MAX_CONSTANT`] and [`Contained::MAX_ACCESS`] at least.
    pub sink: u32,
    /// Some call may move or resize the regions.
    pub moves: bool,
}

impl Contained {
    /// Most bytes of an object that are accessed at a constant offset, where the object's length is known only when the
    /// program runs.
    pub const MAX_CONSTANT: u32 = 1 << 16;

    /// A call is given so many bytes at most of an object whose length is known only when the program runs.
    pub const MAX_ACCESS: u32 = 1 << 15;

    /// The bytes of memory that is used where there is no object.
    pub fn sink_bytes(&self) -> usize {
        self.sink.max(Contained::MAX_CONSTANT + Contained::MAX_ACCESS) as usize
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
