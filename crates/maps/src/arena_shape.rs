//! The addresses of an arena as programs see them: computed from the definition alone, before the arena
//! ([`crate::arena`]) exists.

use bpf_uapi::ARENA_PAGE;

const PAGE: u64 = ARENA_PAGE as u64;
/// The largest arena in bytes: 32 bits of an address tell its bytes apart.
pub(crate) const MAX_BYTES: u64 = 1 << 32;
/// The first user address unless the definition gives one: far from any address that systems use. In all arenas but
/// the largest, some bit of the lower half is set, so no address becomes null when it is cast to 32 bits.
pub(crate) const USER_BASE: u64 = 1 << 44;

/// The addresses of an arena as programs see them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ArenaShape {
    /// Bytes of all pages.
    pub bytes: u64,
    /// Bytes of the window that contains the pages: a power of two, at most 4 GiB.
    pub window: u64,
    /// The user address of the first byte, which lies at `user & (window - 1)` in the window.
    pub user: u64,
}

impl ArenaShape {
    /// The shape for a validated definition: number of pages, and its `map_extra`.
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

    /// Offset of the first page in the window, in bytes.
    pub(crate) fn first(self) -> u64 {
        self.user & (self.window - 1)
    }

    /// The number of the page that contains an address, by the address's lower half, as in the kernel.
    pub(crate) fn page_of(self, address: u64) -> u32 {
        crate::num::low(address).wrapping_sub(crate::num::low(self.user)) / ARENA_PAGE
    }
}
