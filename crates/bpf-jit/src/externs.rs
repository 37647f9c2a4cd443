//! How what lies outside the program is called, and how look-ups in maps may be compiled.
//!
//! The linker knows functions and maps; lowering needs from it only this, and names them in the code by number
//! ([`Extern`]).

use bpf_analysis::CallArity;
#[cfg(doc)]
use bpf_lir::Extern;

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
    /// As a comparison and a load of the inner map's pointer, of which there are `max_entries` at
    /// [`Extern::ArrayBase`].
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
