//! The slots of a host's operation on a per-CPU map, as `BPF_F_CPU` and `BPF_F_ALL_CPUS` name them. The kernel's
//! documents say CPU where this crate says execution slot.

use crate::def::update;

/// The slots of an operation, from its flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slots {
    /// Every slot, with a value for each.
    All,
    /// One slot (`BPF_F_CPU`).
    One(usize),
    /// Every slot, with one value for all (`BPF_F_ALL_CPUS`).
    Same,
}

impl Slots {
    /// The slots that an operation's flags name, and its other flags.
    pub(crate) fn split(flags: u64) -> (Slots, u64) {
        let rest = flags & u64::from(u32::MAX) & !(update::F_CPU | update::F_ALL_CPUS);
        let slots = match flags {
            _ if flags & update::F_CPU != 0 => Slots::One(crate::num::index(flags >> 32)),
            _ if flags & update::F_ALL_CPUS != 0 => Slots::Same,
            _ => Slots::All,
        };
        (slots, rest)
    }

    /// The slots, as numbers, and the places of their values in the host's slice: `size` bytes, one every `stride`.
    pub(crate) fn places(self, slots: usize, stride: usize, size: usize) -> impl Iterator<Item = (usize, Place)> {
        let of = if let Slots::One(slot) = self { slot..slot + 1 } else { 0..slots };
        of.map(move |of| {
            let start = if self == Slots::All { of * stride } else { 0 };
            (of, start..start + size)
        })
    }
}

/// Where a slot's value lies in the host's slice.
pub(crate) type Place = core::ops::Range<usize>;
