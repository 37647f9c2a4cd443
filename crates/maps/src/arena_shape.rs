//! Where an arena's memory is, as programs see it: what a definition says of it, before there is any
//! ([`crate::arena`]).

use bpf_uapi::ARENA_PAGE;

const PAGE: u64 = ARENA_PAGE as u64;
/// The most that 32 bits of an address tell apart.
pub(crate) const MAX_BYTES: u64 = 1 << 32;
/// Where user addresses begin unless the definition says so: far from where systems have anything. Of all arenas but
/// the largest, some bits of the lower half are set, so that no address becomes null when it is cast.
pub(crate) const USER_BASE: u64 = 1 << 44;

/// Where the memory of an arena is, as programs see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ArenaShape {
    /// Bytes of its pages.
    pub bytes: u64,
    /// Bytes of the window that they are in: a power of two, 4 GiB at most.
    pub window: u64,
    /// The user address of its first byte, at `user & (window - 1)` of the window.
    pub user: u64,
}

impl ArenaShape {
    /// Of a definition that has been validated: so many pages, and where they are to be.
    pub(crate) fn of(pages: u32, extra: u64) -> Self {
        let bytes = u64::from(pages) * PAGE;
        let mut window = bytes.clamp(PAGE, MAX_BYTES).next_power_of_two();
        let user = match extra {
            0 if window < MAX_BYTES => USER_BASE + window,
            0 => USER_BASE,
            user => user,
        };
        while (user & (window - 1)) + bytes > window && window < MAX_BYTES {
            window *= 2;
        }
        Self { bytes, window, user }
    }

    /// How far into the window its pages begin.
    pub(crate) fn first(self) -> u64 {
        self.user & (self.window - 1)
    }

    /// The number of the page that an address is in, by its lower half, as in the kernel.
    pub(crate) fn page_of(self, address: u64) -> u32 {
        crate::num::low(address).wrapping_sub(crate::num::low(self.user)) / ARENA_PAGE
    }
}
