//! Describes how functions outside the program are called, and how look-ups in maps may be compiled.
//!
//! The linker knows functions and maps. Lowering needs only this description of them, and refers to them in the code by
//! number ([`Extern`]).

use bpf_analysis::CallArity;
#[cfg(doc)]
use bpf_lir::Extern;

/// The argument that a function outside the program gets besides those of the call.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Hidden {
    /// Nothing.
    Nothing,
    /// The hidden argument.
    Ctx,
    /// The hidden argument, with the function's environment in [`RunCtx::host_env`](bpf_jit_code::RunCtx::host_env).
    Env,
}

/// How a look-up in a known map may be compiled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MapShape {
    /// As a call of the helper.
    Opaque,
    /// As a comparison of the key and an address from [`Extern::ArrayBase`].
    Array {
        /// Number of elements.
        max_entries: u32,
        /// Bytes from the start of an element to the start of the next.
        stride: u32,
    },
    /// As a comparison of the key and an address among the elements of the run's execution slot.
    PerCpuArray {
        /// Number of elements.
        max_entries: u32,
        /// Bytes from the start of an element to the start of the next.
        stride: u32,
        /// Bytes from the elements of one execution slot to those of the next.
        slot_stride: u64,
    },
    /// As a comparison of the key and a load of the inner map's pointer, from one of `max_entries` pointers at
    /// [`Extern::ArrayBase`].
    ArrayOfMaps {
        /// Number of elements.
        max_entries: u32,
    },
    /// As a direct call of [`Extern::MapLookup`]`(map, key, slot)`.
    Keyed,
}

impl MapShape {
    /// Whether a look-up is compiled without a call and without the run's execution slot.
    pub(crate) fn is_inline(self) -> bool {
        match self {
            MapShape::Array { .. } | MapShape::ArrayOfMaps { .. } => true,
            MapShape::Opaque | MapShape::PerCpuArray { .. } | MapShape::Keyed => false,
        }
    }
}

/// Describes how the functions outside the program are called.
pub trait Signatures: CallArity {
    /// Returns how a look-up in the map with this index may be compiled.
    fn map(&self, _index: u32) -> MapShape {
        MapShape::Opaque
    }
    /// Returns the hidden argument of the helper with this id.
    fn helper_hidden(&self, id: u32) -> Hidden;
    /// Returns the hidden argument of the host function with this index.
    fn host_hidden(&self, index: i32) -> Hidden;
}

/// Signatures of unknown functions, which take five arguments and the hidden one.
impl Signatures for () {
    fn helper_hidden(&self, _: u32) -> Hidden {
        Hidden::Ctx
    }
    fn host_hidden(&self, _: i32) -> Hidden {
        Hidden::Ctx
    }
}
