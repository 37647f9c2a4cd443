//! What a register or a slot of the stack holds.

use crate::contract::{Env, KnownMap, MapType};
use crate::domain::{Form, Name};

/// What a pointer is into.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Base {
    /// The context's fields.
    Context,
    /// The stack of a frame, by its number from the main program's, 0; offsets are from its top, so negative.
    Stack(u8),
    /// A region of the context.
    Region(u8),
    /// A map itself, which is no memory.
    Map(u32),
    /// A value of a map.
    MapValue(u32),
    /// A map that was found in this map of maps.
    Inner(u32),
    /// A value of a map that was found in this map of maps.
    InnerValue(u32),
    /// Memory that a function returned, to the end of the run.
    Memory {
        /// Bytes of it.
        size: u32,
        /// Whether the program may write to it.
        writable: bool,
    },
    /// A record of a ring buffer that is held by this name.
    Record {
        /// The name among those held.
        owner: Name,
        /// Bytes of it.
        size: u32,
    },
}

impl Base {
    /// Returns the definition of the map that this base is, or is a value of.
    pub(crate) fn map<'a>(self, env: &Env<'a>) -> Option<&'a KnownMap> {
        match self {
            Base::Map(map) | Base::MapValue(map) => env.maps.get(map as usize),
            Base::Inner(map) | Base::InnerValue(map) => env.maps.get(map as usize)?.inner.as_deref(),
            Base::Context | Base::Stack(_) | Base::Region(_) | Base::Memory { .. } | Base::Record { .. } => None,
        }
    }
}

/// A pointer: the address of its base plus the offset, modulo 2^64.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pointer {
    /// What it is into.
    pub base: Base,
    /// The offset, modulo 2^64.
    pub offset: Form,
    /// The name that is 0 where the pointer is null instead, and 1 where not; `None` if it is not null.
    pub present: Option<Name>,
}

impl Pointer {
    /// A pointer to the start of its base, not null.
    pub(crate) fn start(base: Base) -> Pointer {
        Pointer { base, offset: Form::constant(0), present: None }
    }
}

/// What a register or a slot holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Value {
    /// Nothing that may be read.
    Unset,
    /// The residue of the form modulo 2^64.
    Number(Form),
    /// A pointer.
    Pointer(Pointer),
}

impl Value {
    /// Whether it is a pointer into the stack of this frame.
    pub(crate) fn is_into_frame(&self, frame: usize) -> bool {
        matches!(self, Value::Pointer(Pointer { base: Base::Stack(f), .. }) if usize::from(*f) == frame)
    }

    /// Whether it speaks only of names, frames, regions and maps that there are.
    pub(crate) fn is_sound(&self, names: usize, frames: usize, env: &Env<'_>) -> bool {
        let plain = |base: Base| base.map(env).is_some_and(|map| map.kind != MapType::Arena);
        match self {
            Value::Unset => true,
            Value::Number(form) => form.is_over(names),
            Value::Pointer(p) => {
                let base = match p.base {
                    Base::Context => !env.context.raw,
                    Base::Stack(frame) => usize::from(frame) < frames,
                    Base::Region(region) => usize::from(region) < env.context.regions.len(),
                    Base::Map(_) | Base::MapValue(_) | Base::Inner(_) | Base::InnerValue(_) => plain(p.base),
                    Base::Memory { .. } => true,
                    Base::Record { owner, .. } => owner.index() < names,
                };
                base && p.offset.is_over(names) && p.present.is_none_or(|n| n.index() < names)
            }
        }
    }
}
