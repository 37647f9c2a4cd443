//! A packet in a `&mut [u8]`, and the kernel's context of XDP programs over it; the context of all other packet
//! programs is in [`skb`](crate::context::skb).
//!
//! Problem: the kernel's layouts hold pointers in 32-bit fields, and packets that programs may grow and shrink.
//! Approach: a host structure with 64-bit pointers into the user's buffer; the verifier's facts turn each access of a
//! field into one of that structure (`verify::rewrite`), so unmodified kernel objects run without a copy of the packet.
//! Head- and tailroom are the bytes of the user's buffer before and behind the packet.
//!
//! Source of fields, offsets and access rights: `include/uapi/linux/bpf.h`, and `xdp_is_valid_access` in
//! `net/core/filter.c` (Linux 6.18).

use crate::context::{Context, ContextLayout, EMPTY, Parts, core_field};
use bpf_object::CoreType;
use bpf_uapi::ContextField;
use bpf_uapi::context::xdp_md;
use bpf_verifier::{Access, Field, FieldKind, Region};
use core::marker::PhantomData;
use core::mem::offset_of;
use core::ops::RangeInclusive;
use std::sync::LazyLock;

/// Where a program sends a packet. A run sends nothing: the host sends the packet after the run.
///
/// Maps are named by [`Map::id`](bpf_maps::Map::id); a `program` is the number that the host wrote into the entry for
/// the program that the kernel would run there, 0 for none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Redirect {
    /// To a network device that the program names: `bpf_redirect`.
    Device {
        /// The interface.
        ifindex: u32,
        /// The flags the program gave (`BPF_F_INGRESS` and so on).
        flags: u64,
    },
    /// Out of a network device, with the link addresses of the next hop: `bpf_redirect_neigh`.
    Neighbour {
        /// The interface.
        ifindex: u32,
    },
    /// In by a network device's peer in another network namespace: `bpf_redirect_peer`.
    Peer {
        /// The interface.
        ifindex: u32,
    },
    /// To the device in an entry of a device map.
    MapDevice {
        /// The map.
        map: u32,
        /// The entry's key.
        key: u32,
        /// The interface.
        ifindex: u32,
        /// The program to run on the packet as it leaves.
        program: u32,
    },
    /// A copy to each device in a device map (`BPF_F_BROADCAST`).
    AllDevices {
        /// The map.
        map: u32,
        /// Not to the device that the packet came from (`BPF_F_EXCLUDE_INGRESS`).
        exclude_ingress: bool,
    },
    /// The packet goes to another CPU.
    Cpu {
        /// The map.
        map: u32,
        /// The CPU: the entry's key.
        cpu: u32,
        /// The length of its queue.
        queue_size: u32,
        /// The program to run there.
        program: u32,
    },
    /// The packet goes to an AF_XDP socket.
    Socket {
        /// The map.
        map: u32,
        /// The entry's key.
        key: u32,
        /// The number that the host gave the socket.
        socket: u32,
    },
}

/// Where in its buffer a packet is.
///
/// Invariant: `start <= data_meta <= data <= data_end <= end`, with at most [`MAX_META`] bytes of metadata and
/// [`MAX_FRAME`] of packet, as the layouts promise to verified programs. [`Window::place`] alone sets them.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Window {
    data: *mut u8,
    data_end: *mut u8,
    data_meta: *mut u8,
    start: *mut u8,
    end: *mut u8,
}

/// No frame is longer than this (a jumbo frame of the largest IP packet and its headers).
pub(crate) const MAX_FRAME: u32 = 0x1_0000 + 256;

/// A packet keeps at least an Ethernet header.
pub(crate) const ETH_HLEN: usize = 14;

/// Most bytes of metadata before a packet (Linux: `xdp_metalen_invalid`).
pub(crate) const MAX_META: u32 = 255;

impl Window {
    /// The packet `at .. at + len` of a buffer, cut to the buffer's end and to [`MAX_FRAME`] bytes.
    pub(crate) fn new(buffer: &mut [u8], at: usize, len: usize) -> Window {
        let at = at.min(buffer.len());
        let len = len.min(buffer.len() - at).min(MAX_FRAME as usize);
        let start = if buffer.is_empty() { core::ptr::without_provenance_mut(EMPTY) } else { buffer.as_mut_ptr() };
        let end = start.wrapping_add(buffer.len());
        let mut window = Window { data: start, data_end: start, data_meta: start, start, end };
        let data = start.wrapping_add(at);
        let placed = window.place(data, data, data.wrapping_add(len));
        debug_assert!(placed, "cut to the allowed length");
        window
    }

    /// Moves the packet and its metadata to these addresses. `false`, and nothing is moved, if they are out of order,
    /// outside the buffer or further apart than programs are verified for.
    #[must_use]
    pub(crate) fn place(&mut self, data_meta: *mut u8, data: *mut u8, data_end: *mut u8) -> bool {
        let ordered = [self.start, data_meta, data, data_end, self.end].is_sorted();
        let short = |from: *mut u8, to: *mut u8, max: u32| to.addr().wrapping_sub(from.addr()) <= max as usize;
        let ok = ordered && short(data_meta, data, MAX_META) && short(data, data_end, MAX_FRAME);
        if ok {
            (self.data_meta, self.data, self.data_end) = (data_meta, data, data_end);
        }
        ok
    }

    /// First byte of the packet.
    pub(crate) fn data(&self) -> *mut u8 {
        self.data
    }

    /// One past its last byte.
    pub(crate) fn data_end(&self) -> *mut u8 {
        self.data_end
    }

    /// First byte of the metadata, which ends where the packet starts.
    pub(crate) fn data_meta(&self) -> *mut u8 {
        self.data_meta
    }

    /// The buffer that it moves in.
    pub(crate) fn buffer(&self) -> RangeInclusive<*mut u8> {
        self.start..=self.end
    }

    /// Bytes of the packet.
    pub(crate) fn len(&self) -> usize {
        self.data_end.addr() - self.data.addr()
    }

    /// Where the layouts find the ends: `data`, `data_end` and `data_meta`.
    pub(crate) const OFFSETS: [usize; 3] =
        [offset_of!(Window, data), offset_of!(Window, data_end), offset_of!(Window, data_meta)];

    /// The packet's start, in bytes from the buffer's.
    pub(crate) fn at(&self) -> usize {
        self.data.addr() - self.start.addr()
    }

    /// The whole buffer: address and length.
    pub(crate) fn memory(&self) -> (*mut u8, usize) {
        (self.start, self.end.addr() - self.start.addr())
    }

    /// Inserts `by` zero bytes at `at` bytes from the start; the bytes before move to the front. Returns `false`, and
    /// changes nothing, if the packet is shorter or the buffer has no such room. Removes the metadata.
    #[must_use]
    pub(crate) fn open(&mut self, at: usize, by: usize) -> bool {
        let (old, data) = (self.data, self.data.wrapping_sub(by));
        if at > self.len() || by > MAX_FRAME as usize || !self.place(data, data, self.data_end) {
            return false;
        }
        // SAFETY: `at` bytes from either address are in the packet as it is now, which begins `by` bytes earlier.
        unsafe { core::ptr::copy(old, data, at) };
        // SAFETY: the gap between the moved part and the rest, which is inside the buffer.
        unsafe { core::ptr::write_bytes(data.wrapping_add(at), 0, by) };
        true
    }

    /// Removes `by` bytes at `at` bytes from the start; the bytes before move back to close the gap. Returns `false`,
    /// and changes nothing, if the packet is shorter. Removes the metadata.
    #[must_use]
    pub(crate) fn close(&mut self, at: usize, by: usize) -> bool {
        let (old, data) = (self.data, self.data.wrapping_add(by));
        if at.checked_add(by).is_none_or(|end| end > self.len()) || !self.place(data, data, self.data_end) {
            return false;
        }
        // SAFETY: `at` bytes from the old start are followed by `by` more in the packet as it was.
        unsafe { core::ptr::copy(old, data, at) };
        true
    }

    /// Moves the packet's end; new bytes are zero. `false`, and nothing changes, if the buffer has no such room.
    #[must_use]
    pub(crate) fn resize(&mut self, len: usize) -> bool {
        let (old, end) = (self.data_end, self.data.wrapping_add(len));
        if len > MAX_FRAME as usize || !self.place(self.data_meta, self.data, end) {
            return false;
        }
        if let Some(grown) = end.addr().checked_sub(old.addr()) {
            // SAFETY: from the old end to the new one, which is in the buffer: the window's invariant.
            unsafe { core::ptr::write_bytes(old, 0, grown) };
        }
        true
    }

    /// The packet's bytes.
    pub(crate) fn packet_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `packet`, and the window is borrowed mutably.
        unsafe { core::slice::from_raw_parts_mut(self.data, self.len()) }
    }

    /// Returns the packet's bytes.
    pub(crate) fn packet(&self) -> &[u8] {
        // SAFETY: both pointers are into the buffer that the window's owner has borrowed, in order; nothing writes to
        // it while the owner is borrowed for the result.
        unsafe { core::slice::from_raw_parts(self.data, self.len()) }
    }

    /// The metadata's bytes.
    pub(crate) fn metadata(&self) -> &[u8] {
        // SAFETY: as for `packet`: the metadata's start is not behind the packet's.
        unsafe { core::slice::from_raw_parts(self.data_meta, self.data.addr() - self.data_meta.addr()) }
    }
}

pub(crate) fn field(field: ContextField, access: Access, kind: FieldKind, host: (usize, u32)) -> Field {
    let ContextField { name, offset, size } = field;
    Field { name: name.into(), offset, size, access, kind, host_offset: crate::num::small(host.0), host_size: host.1 }
}

pub(crate) fn region(name: &'static str, max_len: u32, ends_at_start_of: Option<u8>) -> Region {
    Region { name: name.into(), writable: true, max_len, min_len: 0, align: 1, ends_at_start_of }
}

/// Metadata that a device delivered with a packet, for `bpf_xdp_metadata_rx_hash` and its like. A field of `None` is
/// metadata that the device delivers for some packets and not for this one (`-ENODATA`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RxMetadata {
    /// When it came, in nanoseconds.
    pub timestamp: Option<u64>,
    /// The hash of its flow, and the type of the hash (`enum xdp_rss_hash_type`).
    pub hash: Option<(u32, u32)>,
    /// Protocol and value of the VLAN tag that the device has taken off. Programs read the protocol in network byte
    /// order.
    pub vlan_tag: Option<(u16, u16)>,
}

/// An XDP program's packet and the fields of its `struct xdp_md`.
#[derive(Debug)]
#[repr(C)]
pub struct XdpBuff<'p> {
    pub(crate) window: Window,
    /// `ingress_ifindex`.
    pub ingress_ifindex: u32,
    /// `rx_queue_index`.
    pub rx_queue_index: u32,
    /// `egress_ifindex`: of programs in the entries of device maps, the device that the packet leaves by; 0 elsewhere.
    pub egress_ifindex: u32,
    /// The target of the last `bpf_redirect` of a run. It applies if the run returns `XDP_REDIRECT`.
    pub redirect: Option<Redirect>,
    /// The device's metadata of the packet; `None` for a device that delivers none (`-EOPNOTSUPP`).
    pub rx: Option<RxMetadata>,
    buffer: PhantomData<&'p mut [u8]>,
}

impl<'p> XdpBuff<'p> {
    /// A packet without head- or tailroom. Cut to 64 KiB and 256 bytes.
    pub fn new(packet: &'p mut [u8]) -> Self {
        let len = packet.len();
        Self::with_room(packet, 0, len)
    }

    /// The packet `headroom .. headroom + len` of a buffer; programs may move its ends inside the buffer.
    pub fn with_room(buffer: &'p mut [u8], headroom: usize, len: usize) -> Self {
        let window = Window::new(buffer, headroom, len);
        XdpBuff {
            window,
            ingress_ifindex: 1,
            rx_queue_index: 0,
            egress_ifindex: 0,
            redirect: None,
            rx: None,
            buffer: PhantomData,
        }
    }

    /// The bytes that programs have put in front of the packet by `bpf_xdp_adjust_meta`, for later programs.
    pub fn metadata(&self) -> &[u8] {
        self.window.metadata()
    }

    /// The packet as it is now.
    pub fn packet(&self) -> &[u8] {
        self.window.packet()
    }
}

/// The XDP context: `struct xdp_md`. Verdicts are the kernel's `XDP_*`.
///
/// ```no_run
/// # use bpf_runtime::{*, net::{Xdp, XdpBuff}};
/// # fn f(filter: &Program<Xdp, ()>, frame: &mut [u8]) -> Result<(), RunError> {
/// let mut buff = XdpBuff::new(frame);
/// let pass = filter.run_on(&mut buff)? == 2; // XDP_PASS
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub enum Xdp {}

// SAFETY: the layout describes `XdpBuff` (`repr(C)`, offsets taken from it), whose window lies in a buffer borrowed for
// 'p; the regions' promises are the window's invariant, which `Window::place`, the only function that moves its ends,
// keeps.
unsafe impl Context for Xdp {
    type Data<'r, 'p>
        = &'r mut XdpBuff<'p>
    where
        'p: 'r;

    fn layout() -> &'static ContextLayout {
        static LAYOUT: LazyLock<ContextLayout> = LazyLock::new(|| {
            use Access::Read;
            let pointer = |at: usize| (offset_of!(XdpBuff<'static>, window) + at, 8);
            ContextLayout {
                name: xdp_md::NAME.into(),
                raw: false,
                fields: vec![
                    field(xdp_md::DATA, Read, FieldKind::Data(0), pointer(offset_of!(Window, data))),
                    field(xdp_md::DATA_END, Read, FieldKind::DataEnd(0), pointer(offset_of!(Window, data_end))),
                    field(xdp_md::DATA_META, Read, FieldKind::Data(1), pointer(offset_of!(Window, data_meta))),
                    field(
                        xdp_md::INGRESS_IFINDEX,
                        Read,
                        FieldKind::Scalar,
                        (offset_of!(XdpBuff<'static>, ingress_ifindex), 4),
                    ),
                    field(
                        xdp_md::RX_QUEUE_INDEX,
                        Read,
                        FieldKind::Scalar,
                        (offset_of!(XdpBuff<'static>, rx_queue_index), 4),
                    ),
                    field(
                        xdp_md::EGRESS_IFINDEX,
                        Read,
                        FieldKind::Scalar,
                        (offset_of!(XdpBuff<'static>, egress_ifindex), 4),
                    ),
                ],
                regions: vec![region("packet", MAX_FRAME, None), region("metadata", MAX_META, Some(0))],
                legacy_loads: None,
                returns: None,
            }
        });
        &LAYOUT
    }

    fn types() -> Vec<CoreType> {
        let fields = Self::layout().fields.iter().map(core_field).collect();
        vec![CoreType::Struct { name: xdp_md::NAME.into(), size: xdp_md::SIZE, fields }]
    }

    #[inline]
    fn parts(data: &mut &mut XdpBuff<'_>) -> Parts {
        let window = &data.window;
        let (packet, packet_len) = (window.data, window.len());
        let (memory, memory_len) = window.memory();
        let context = core::ptr::from_mut::<XdpBuff<'_>>(data).cast();
        Parts { context, context_len: size_of::<XdpBuff<'_>>(), packet, packet_len, memory, memory_len }
    }
}
