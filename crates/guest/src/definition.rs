//! Types of maps, their sizes, and conditions of updates.

/// A type of map.
pub trait Map: Sync {
    /// Its type and sizes, which the mocks need.
    #[doc(hidden)]
    const DEFINITION: Definition;
}

#[doc(hidden)]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Definition {
    /// The kernel's number of the type.
    pub(crate) number: u32,
    pub(crate) key_size: usize,
    pub(crate) value_size: usize,
    pub(crate) value_align: usize,
    pub(crate) entries: usize,
}

impl Definition {
    pub(crate) const fn new<K, V>(number: u32, entries: usize) -> Definition {
        let (key_size, value_size, value_align) = (size_of::<K>(), size_of::<V>(), align_of::<V>());
        Definition { number, key_size, value_size, value_align, entries }
    }
}

#[cfg(not(target_arch = "bpf"))]
impl Definition {
    pub(crate) fn is_array(self) -> bool {
        matches!(self.number, 2 | 6)
    }

    pub(crate) fn is_per_cpu(self) -> bool {
        matches!(self.number, 5 | 6 | 10)
    }

    pub(crate) fn is_lru(self) -> bool {
        matches!(self.number, 9 | 10)
    }
}

/// The condition on the presence of an element for an update.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Insert {
    /// The element may be present or absent (`BPF_ANY`).
    Any = 0,
    /// The element must be absent (`BPF_NOEXIST`).
    New = 1,
    /// The element must be present (`BPF_EXIST`).
    Replace = 2,
}
