//! Values of registers and stack slots.

use crate::contract::{Env, KnownMap, MapType};
use crate::domain::{Form, Name};
use crate::faults::planted;

/// The object that a pointer points into.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Base {
    /// The context's fields.
    Context,
    /// The stack of a frame, by its index in the call chain (0: the main program). Offsets count from its top, so they
    /// are negative.
    Stack(u8),
    /// A region of the context.
    Region(u8),
    /// A map itself, which is not accessible memory.
    Map(u32),
    /// A value of a map.
    MapValue(u32),
    /// A map that was found in this map of maps.
    Inner(u32),
    /// A value of a map that was found in this map of maps.
    InnerValue(u32),
    /// Memory that a function returned, valid until the run ends or sleeps.
    Memory {
        /// Its size in bytes.
        size: u32,
        /// Whether the program may write to it.
        writable: bool,
    },
    /// A record of a ring buffer, held under a name.
    Record {
        /// The name under which the record is held.
        owner: Name,
        /// Its size in bytes.
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

impl Base {
    /// Whether nobody may free or move the object, or give it to others, while the run sleeps.
    ///
    /// The run keeps its stack, its context with the regions, and the maps that the program refers to. The values of an
    /// array that all execution slots share exist as long as the array. Elements of other maps may be freed after a
    /// grace period; a per-CPU value belongs to the slot that the run gives up; a map of maps keeps its inner maps, and
    /// with these their values, until the host replaces them. Memory of a function is promised for as long as the run
    /// holds its guard.
    pub(crate) fn outlasts_sleep(self, env: &Env<'_>) -> bool {
        match self {
            Base::Context | Base::Stack(_) | Base::Region(_) | Base::Map(_) => true,
            Base::MapValue(map) => {
                let array = env.maps.get(map as usize).is_some_and(|def| def.kind == MapType::Array);
                array || planted!(SleepKeepsElements)
            }
            Base::Inner(_) | Base::InnerValue(_) => planted!(SleepKeepsInner),
            Base::Memory { .. } => planted!(SleepKeepsMemory),
            // The owner of a record that is held keeps a run from sleeping.
            Base::Record { .. } => planted!(SleepsHolding),
        }
    }
}

/// A pointer: the address of its base plus the offset, modulo 2^64.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pointer {
    /// The object that it points into.
    pub base: Base,
    /// The offset, modulo 2^64.
    pub offset: Form,
    /// The name that is 1 if the pointer is valid and 0 if it is null; `None` if it is known not to be null.
    pub present: Option<Name>,
}

impl Pointer {
    /// A pointer to the start of its base, not null.
    pub(crate) fn start(base: Base) -> Pointer {
        Pointer { base, offset: Form::constant(0), present: None }
    }
}

/// The value of a register or a stack slot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Value {
    /// A value that may not be read.
    Unset,
    /// The residue of the form modulo 2^64.
    Number(Form),
    /// A pointer.
    Pointer(Pointer),
}

impl Value {
    /// Whether the value is a pointer into the stack of this frame.
    pub(crate) fn is_into_frame(&self, frame: usize) -> bool {
        matches!(self, Value::Pointer(Pointer { base: Base::Stack(f), .. }) if usize::from(*f) == frame)
    }

    /// Whether the value refers only to names, frames, regions and maps that exist.
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
