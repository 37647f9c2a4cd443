//! What a program refers to outside itself: symbols for the code, signatures for the calls.
//!
//! The linker knows functions and maps; lowering needs from it only how they are called ([`Signatures`]), and names them in
//! the code by number ([`Extern`]), which the linker turns into addresses when the code is placed.

use bpf_analysis::CallArity;
use bpf_isa::InsnIdx;
use bpf_jit_code::Symbol;

/// What the program refers to outside itself, as a [`Symbol`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Extern {
    /// The function behind a helper id.
    Helper(u32),
    /// A host function, by index.
    Host(u32),
    /// A map, by index: the value BPF sees as the map's pointer.
    Map(u32),
    /// What the two-slot load at this slot loads: a map value or a variable.
    Imm64(InsnIdx),
    /// The environment of the function behind a helper id.
    HelperEnv(u32),
    /// The environment of a host function, by index.
    HostEnv(u32),
    /// The first element of an array, per-CPU array or array of maps, by index.
    ArrayBase(u32),
    /// The function that looks a key up in a map, by index.
    MapLookup(u32),
}

impl Extern {
    const TAG_SHIFT: u32 = 29;
    const MASK: u32 = (1 << Self::TAG_SHIFT) - 1;

    /// The largest index or id a symbol can carry.
    pub const MAX: u32 = Self::MASK;

    /// As a symbol.
    pub fn symbol(self) -> Symbol {
        let (tag, index) = match self {
            Extern::Helper(id) => (0, id),
            Extern::Host(index) => (1, index),
            Extern::Map(index) => (2, index),
            Extern::Imm64(slot) => (3, slot.0),
            Extern::HelperEnv(id) => (4, id),
            Extern::HostEnv(index) => (5, index),
            Extern::ArrayBase(index) => (6, index),
            Extern::MapLookup(index) => (7, index),
        };
        Symbol(tag << Self::TAG_SHIFT | index & Self::MASK)
    }

    /// What a symbol made by [`Extern::symbol`] stands for.
    pub fn from_symbol(symbol: Symbol) -> Extern {
        let index = symbol.0 & Self::MASK;
        match symbol.0 >> Self::TAG_SHIFT {
            0 => Extern::Helper(index),
            1 => Extern::Host(index),
            2 => Extern::Map(index),
            3 => Extern::Imm64(InsnIdx(index)),
            4 => Extern::HelperEnv(index),
            5 => Extern::HostEnv(index),
            6 => Extern::ArrayBase(index),
            _ => Extern::MapLookup(index),
        }
    }
}

/// What a function outside the program gets besides its arguments.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Hidden {
    /// Nothing.
    Nothing,
    /// The hidden argument.
    Ctx,
    /// The hidden argument, with the function's environment in [`RunCtx::host_env`](bpf_jit_code::RunCtx::host_env).
    Env,
}

/// How a look-up in a map may be compiled, where the map is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MapShape {
    /// As a call of the helper.
    Opaque,
    /// As a comparison and an address ([`Extern::ArrayBase`]).
    Array {
        /// Number of elements.
        max_entries: u32,
        /// Bytes from one to the next.
        stride: u32,
    },
    /// The same, in the elements of the run's execution slot.
    PerCpuArray {
        /// Number of elements.
        max_entries: u32,
        /// Bytes from one to the next.
        stride: u32,
        /// Bytes from one slot's elements to the next slot's.
        slot_stride: u64,
    },
    /// As a comparison and a load of the inner map's pointer, of which there are `max_entries` at [`Extern::ArrayBase`].
    ArrayOfMaps {
        /// Number of elements.
        max_entries: u32,
    },
    /// As a direct call of [`Extern::MapLookup`]`(map, key, slot)`.
    Keyed,
}

impl MapShape {
    /// Whether a look-up needs neither a call nor the run's slot.
    pub(crate) fn is_inline(self) -> bool {
        match self {
            MapShape::Array { .. } | MapShape::ArrayOfMaps { .. } => true,
            MapShape::Opaque | MapShape::PerCpuArray { .. } | MapShape::Keyed => false,
        }
    }
}

/// How the functions outside the program are called.
pub trait Signatures: CallArity {
    /// How a look-up in the map with this index may be compiled.
    fn map(&self, _index: u32) -> MapShape {
        MapShape::Opaque
    }
    /// What the helper with this id gets.
    fn helper_hidden(&self, id: u32) -> Hidden;
    /// What the host function with this index gets.
    fn host_hidden(&self, index: i32) -> Hidden;
}

/// Nothing is known: five arguments and the hidden one.
impl Signatures for () {
    fn helper_hidden(&self, _: u32) -> Hidden {
        Hidden::Ctx
    }
    fn host_hidden(&self, _: i32) -> Hidden {
        Hidden::Ctx
    }
}
