//! A packet in several pieces of memory, and the kernel's context of XDP programs that are made for such (`xdp.frags`).
//!
//! Problem: a packet that is longer than a network card's buffer is in several buffers, and most programs read only the
//! first. Approach: as in the kernel, the context is that of other XDP programs, over the first piece; helpers and
//! dynptrs go over all of them. It is a context of its own, [`XdpFrags`], so that a program which is not made for such
//! packets cannot be given one, nor be jumped to by one that is: the kernel finds that out when it attaches a program
//! or fills a prog array.
//!
//! Invariants: [`XdpFragsBuff`] begins with an [`XdpBuff`], on which the helpers of all XDP programs work. The bytes
//! `start .. start + len + room` of a piece lie in a buffer that is borrowed for `'p`.
//!
//! Source: `bpf_xdp_pointer`, `bpf_xdp_copy_buf`, `bpf_xdp_frags_increase_tail`, `bpf_xdp_frags_shrink_tail`,
//! `bpf_xdp_pull_data` in `net/core/filter.c` (Linux 6.18).

use crate::context::packet::{Xdp, XdpBuff};
use crate::context::{Context, ContextLayout, Parts, is_low};
use bpf_object::CoreType;
use core::marker::PhantomData;
use std::sync::LazyLock;

/// A further piece of a packet, in a buffer of the host's.
#[derive(Debug)]
#[repr(C)]
pub struct XdpFrag<'p> {
    start: *mut u8,
    len: usize,
    /// Bytes behind the piece that it may grow by.
    room: usize,
    buffer: PhantomData<&'p mut [u8]>,
}

impl<'p> XdpFrag<'p> {
    /// Makes a piece that is all of its buffer.
    pub fn new(piece: &'p mut [u8]) -> Self {
        let len = piece.len();
        Self::with_room(piece, len)
    }

    /// A piece of `len` bytes at the start of its buffer, cut to that. The last piece of a packet may grow by the rest.
    pub fn with_room(buffer: &'p mut [u8], len: usize) -> Self {
        let len = len.min(buffer.len());
        XdpFrag { start: buffer.as_mut_ptr(), len, room: buffer.len() - len, buffer: PhantomData }
    }

    /// Its bytes, as they are now.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the invariant; nobody writes to the buffer while the piece is borrowed for the result.
        unsafe { core::slice::from_raw_parts(self.start, self.len) }
    }
}

/// An XDP program's packet in pieces. The first, and the fields of its `struct xdp_md`, are those of an [`XdpBuff`].
///
/// ```
/// use bpf_runtime::net::{XdpBuff, XdpFrag, XdpFragsBuff};
///
/// let (mut first, mut second, mut third) = ([1; 64], [2; 100], [3; 100]);
/// let mut frags = [XdpFrag::new(&mut second), XdpFrag::with_room(&mut third, 20)];
/// let buff = XdpFragsBuff::new(XdpBuff::new(&mut first), &mut frags);
/// assert_eq!(buff.packet_len(), 64 + 100 + 20);
/// assert_eq!(buff.pieces().last(), Some(&[3; 20][..]));
/// ```
#[derive(Debug)]
#[repr(C)]
pub struct XdpFragsBuff<'p> {
    /// The first piece, with its metadata and what the program leaves for the host.
    pub first: XdpBuff<'p>,
    frags: *mut XdpFrag<'p>,
    count: usize,
    /// Where a piece begins that no run may have ([`Parts::check`]); null if there is none.
    low: *mut u8,
    pieces: PhantomData<&'p mut [XdpFrag<'p>]>,
}

/// The place of a range of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Range {
    /// The range lies in one piece, from this address on.
    Piece(*mut u8),
    /// The range spans several pieces.
    Pieces,
}

impl<'p> XdpFragsBuff<'p> {
    /// Makes a packet of these pieces. The host keeps the pieces: programs may shorten and empty them, and the host
    /// reads the resulting packet from them, or from this value. A run on pieces at or below 64 KiB is refused
    /// ([`RunError::LowAddress`](crate::RunError::LowAddress)).
    pub fn new(first: XdpBuff<'p>, frags: &'p mut [XdpFrag<'_>]) -> Self {
        let count = frags.len();
        // A piece without bytes is wherever its slice was cut off, and nothing points into it.
        let low = frags.iter().find(|frag| frag.len + frag.room > 0 && is_low(frag.start));
        let low = low.map_or(core::ptr::null_mut(), |frag| frag.start);
        // Shortening the fragments' lifetime to 'p is sound, since no other buffer is ever stored there.
        XdpFragsBuff { first, frags: frags.as_mut_ptr().cast(), count, low, pieces: PhantomData }
    }

    /// The pieces behind the first, as they are now.
    pub fn frags(&self) -> &[XdpFrag<'p>] {
        // SAFETY: `frags` points to `count` pieces borrowed for 'p (`new`; later changes only leave some out), and
        // writing one takes a mutable borrow of `self`.
        unsafe { core::slice::from_raw_parts(self.frags, self.count) }
    }

    fn frags_mut(&mut self) -> &mut [XdpFrag<'p>] {
        // SAFETY: as in `frags`, and this is borrowed mutably.
        unsafe { core::slice::from_raw_parts_mut(self.frags, self.count) }
    }

    /// All pieces, in order, as they are now.
    pub fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        core::iter::once(self.first.packet()).chain(self.frags().iter().map(XdpFrag::bytes))
    }

    /// Bytes of all pieces.
    pub fn packet_len(&self) -> usize {
        self.first.window.len() + self.frags().iter().map(|frag| frag.len).sum::<usize>()
    }

    /// Address and length of each piece.
    fn extents(&self) -> impl Iterator<Item = (*mut u8, usize)> {
        let window = &self.first.window;
        core::iter::once((window.data(), window.len())).chain(self.frags().iter().map(|frag| (frag.start, frag.len)))
    }

    /// The parts of the range in each piece, in order: none that is empty, and none behind the packet's end.
    pub(crate) fn parts(&self, mut offset: usize, mut len: usize) -> impl Iterator<Item = (*mut u8, usize)> {
        self.extents().filter_map(move |(start, size)| {
            let before = offset.min(size);
            let taken = len.min(size - before);
            offset -= before;
            len -= taken;
            (taken > 0).then(|| (start.wrapping_add(before), taken))
        })
    }

    /// Where the range is; `None` if the packet is not so long.
    pub(crate) fn find(&self, offset: usize, len: usize) -> Option<Range> {
        if offset.checked_add(len)? > self.packet_len() {
            return None;
        }
        let mut before = 0;
        for (start, size) in self.extents() {
            let within = offset - before;
            if within < size {
                let whole = len <= size - within;
                return Some(if whole { Range::Piece(start.wrapping_add(within)) } else { Range::Pieces });
            }
            before += size;
        }
        // No bytes, at the end.
        Some(Range::Pieces)
    }

    /// Moves the packet's end by `by` bytes; new bytes are zero. Returns `false`, and changes nothing, if the last
    /// piece has no such room, or if less than `least` bytes would be left.
    #[must_use]
    pub(crate) fn move_end(&mut self, by: isize, least: usize) -> bool {
        let len = self.packet_len();
        let Some(last) = self.frags_mut().last_mut() else { return false };
        let Ok(grow) = usize::try_from(by) else {
            return by.unsigned_abs() <= len.saturating_sub(least) && self.cut(by.unsigned_abs());
        };
        if grow > last.room {
            return false;
        }
        // SAFETY: so much room is behind the piece, in its buffer: the invariant.
        unsafe { core::ptr::write_bytes(last.start.wrapping_add(last.len), 0, grow) };
        (last.len, last.room) = (last.len + grow, last.room - grow);
        true
    }

    /// Removes `by` bytes at the end, and the pieces that become empty. The packet must have that many bytes.
    fn cut(&mut self, mut by: usize) -> bool {
        while by > 0
            && let Some(last) = self.frags_mut().last_mut()
        {
            let cut = by.min(last.len);
            (last.len, last.room) = (last.len - cut, last.room + cut);
            let gone = last.len == 0;
            by -= cut;
            self.count -= usize::from(gone);
        }
        let window = &mut self.first.window;
        let left = window.len().checked_sub(by);
        by == 0 || left.is_some_and(|left| window.resize(left))
    }

    /// Moves bytes from later pieces to the end of the first, so that it has `len` bytes: into the room behind it, and
    /// if that is too small, after moving the first piece forward. Returns `false`, and changes nothing, if there is no
    /// such room, or the packet is shorter.
    #[must_use]
    pub(crate) fn pull(&mut self, len: usize) -> bool {
        let window = &mut self.first.window;
        let (old, has) = (window.data_meta(), window.len());
        if len <= has {
            return true;
        }
        let behind = window.buffer().end().addr() - window.data_end().addr();
        let moved = (len - has).saturating_sub(behind);
        let (meta, data) = (old.wrapping_sub(moved), window.data().wrapping_sub(moved));
        let whole = window.data_end().addr() - old.addr();
        if len > self.packet_len() || !self.first.window.place(meta, data, data.wrapping_add(len)) {
            return false;
        }
        // SAFETY: metadata and packet as they were, to where they are now: the window's invariant.
        unsafe { core::ptr::copy(old, meta, whole) };
        let mut to = data.wrapping_add(has);
        let mut gone = 0;
        let mut left = len - has;
        for frag in self.frags_mut() {
            let taken = left.min(frag.len);
            // SAFETY: so many bytes are in the piece, and as many not yet filled in the first, another buffer.
            unsafe { core::ptr::copy_nonoverlapping(frag.start, to, taken) };
            to = to.wrapping_add(taken);
            left -= taken;
            (frag.start, frag.len) = (frag.start.wrapping_add(taken), frag.len - taken);
            gone += usize::from(frag.len == 0);
            if left == 0 {
                break;
            }
        }
        (self.frags, self.count) = (self.frags.wrapping_add(gone), self.count - gone);
        true
    }
}

/// The context of XDP programs that are made for packets in pieces (`SEC("xdp.frags")`): `struct xdp_md`.
///
/// ```
/// use bpf_runtime::{Config, Engine, Linker, isa::assemble, net::{XdpBuff, XdpFrag, XdpFrags, XdpFragsBuff}};
///
/// let linker = Linker::<()>::new(&Engine::new(Config::new())?);
/// // r0 = bpf_xdp_get_buff_len(ctx)
/// let length = linker.loader::<XdpFrags>().insns("length", assemble("call 188\nexit")?)?;
///
/// let (mut first, mut second) = ([0; 4000], [0; 1000]);
/// let mut frags = [XdpFrag::new(&mut second)];
/// let mut buff = XdpFragsBuff::new(XdpBuff::new(&mut first), &mut frags);
/// assert_eq!(length.run_on(&mut buff)?, 5000);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub enum XdpFrags {}

// SAFETY: `XdpFragsBuff` begins with the `XdpBuff` that the layout describes; otherwise as for `Xdp`.
unsafe impl Context for XdpFrags {
    type Data<'r, 'p>
        = &'r mut XdpFragsBuff<'p>
    where
        'p: 'r;

    /// Returns a copy of the layout of [`Xdp`], at an address of its own, since layouts are compared by address.
    fn layout() -> &'static ContextLayout {
        static LAYOUT: LazyLock<ContextLayout> = LazyLock::new(|| Xdp::layout().clone());
        &LAYOUT
    }

    fn types() -> Vec<CoreType> {
        Xdp::types()
    }

    #[inline]
    fn parts(data: &mut &mut XdpFragsBuff<'_>) -> Parts {
        let parts = Xdp::parts(&mut &mut data.first);
        // A low piece stands for the memory, so that the run is refused. Pieces only move to higher addresses later.
        let memory = if data.low.is_null() { parts.memory } else { data.low };
        // The pointer covers the whole structure, since helpers access pieces beyond the first.
        let context = core::ptr::from_mut::<XdpFragsBuff<'_>>(data).cast();
        Parts { context, context_len: size_of::<XdpFragsBuff<'_>>(), memory, ..parts }
    }
}
