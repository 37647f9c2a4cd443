//! The kernel's packet contexts, `struct xdp_md` and `struct __sk_buff`, over a `&mut [u8]`.
//!
//! Problem: the kernel's layouts hold 32-bit fields for what are pointers, and packets that programs may grow and
//! shrink. Approach: a host structure with 64-bit pointers into the user's buffer; the verifier's facts turn each
//! access of a field into one of that structure (`verify::rewrite`), so unmodified kernel objects run without a copy of
//! the packet. Head- and tailroom are what the user's buffer has around the packet.
//!
//! Source of fields, offsets and access rights: `include/uapi/linux/bpf.h`, and `xdp_is_valid_access`,
//! `tc_cls_act_is_valid_access` in `net/core/filter.c` (Linux 6.18).

use crate::context::{Context, ContextLayout, Parts, core_field};
use bpf_object::{CoreField, CoreType};
use bpf_uapi::ContextField;
use bpf_uapi::context::{sk_buff, xdp_md};
use bpf_verifier::{Access, Field, FieldKind, Region};
use core::marker::PhantomData;
use core::mem::offset_of;
use core::ops::RangeInclusive;
use std::sync::LazyLock;

/// Where `bpf_redirect` sends a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Redirect {
    /// The interface.
    pub ifindex: u32,
    /// The flags the program gave (`BPF_F_INGRESS` and so on).
    pub flags: u64,
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
const MAX_FRAME: u32 = 0x1_0000 + 256;

/// Most bytes of metadata before a packet (Linux: `xdp_metalen_invalid`).
const MAX_META: u32 = 255;

impl Window {
    /// The packet `at .. at + len` of a buffer, cut to what the buffer has and to [`MAX_FRAME`].
    fn new(buffer: &mut [u8], at: usize, len: usize) -> Window {
        let at = at.min(buffer.len());
        let len = len.min(buffer.len() - at).min(MAX_FRAME as usize);
        let range = buffer.as_mut_ptr_range();
        let none = range.start;
        let mut window = Window { data: none, data_end: none, data_meta: none, start: range.start, end: range.end };
        let data = range.start.wrapping_add(at);
        let placed = window.place(data, data, data.wrapping_add(len));
        debug_assert!(placed, "cut to what is allowed");
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

    fn packet(&self) -> &[u8] {
        // SAFETY: both pointers are into the buffer that the window's owner has borrowed, in order; nothing writes to
        // it while the owner is borrowed for the result.
        unsafe { core::slice::from_raw_parts(self.data, self.len()) }
    }
}

fn field(field: ContextField, access: Access, kind: FieldKind, host: (usize, u32)) -> Field {
    let ContextField { name, offset, size } = field;
    Field { name: name.into(), offset, size, access, kind, host_offset: crate::num::small(host.0), host_size: host.1 }
}

fn region(name: &'static str, max_len: u32, ends_at_start_of: Option<u8>) -> Region {
    Region { name: name.into(), writable: true, max_len, min_len: 0, align: 1, ends_at_start_of }
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
    /// Where the last `bpf_redirect` of a run sends the packet, should it return `XDP_REDIRECT`.
    pub redirect: Option<Redirect>,
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
        XdpBuff { window, ingress_ifindex: 1, rx_queue_index: 0, redirect: None, buffer: PhantomData }
    }

    /// The packet as it is now.
    pub fn packet(&self) -> &[u8] {
        self.window.packet()
    }
}

/// The XDP context: `struct xdp_md`. Verdicts are the kernel's `XDP_*`.
///
/// ```no_run
/// # use bpf_runtime::*;
/// # fn f(filter: &Program<Xdp, ()>, frame: &mut [u8]) -> Result<(), RunError> {
/// let mut buff = XdpBuff::new(frame);
/// let pass = filter.run(&mut (), &mut buff)? == 2; // XDP_PASS
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub enum Xdp {}

// SAFETY: the layout describes `XdpBuff` (`repr(C)`, offsets taken from it), whose window lies in a buffer borrowed for
// 'p; the regions' promises are the window's invariant, which whoever moves its ends keeps by `Window::place`.
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
                ],
                regions: vec![region("packet", MAX_FRAME, None), region("metadata", MAX_META, Some(0))],
                legacy_loads: false,
                returns: None,
            }
        });
        &LAYOUT
    }

    fn types() -> Vec<CoreType> {
        let names = ["XDP_ABORTED", "XDP_DROP", "XDP_PASS", "XDP_TX", "XDP_REDIRECT"];
        let values = (0..).zip(names).map(|(value, name)| (name.into(), value)).collect();
        let fields = Self::layout().fields.iter().map(core_field).collect();
        // With `egress_ifindex`, which only programs of device maps have.
        vec![
            CoreType::Struct { name: xdp_md::NAME.into(), size: xdp_md::SIZE, fields },
            CoreType::Enum { name: "xdp_action".into(), values },
        ]
    }

    #[inline]
    fn parts(data: &mut &mut XdpBuff<'_>) -> Parts {
        let window = &data.window;
        let (packet, packet_len) = (window.data, window.len());
        let (memory, memory_len) = (window.start, window.end.addr() - window.start.addr());
        let context = core::ptr::from_mut::<XdpBuff<'_>>(data).cast();
        Parts { context, context_len: size_of::<XdpBuff<'_>>(), packet, packet_len, memory, memory_len }
    }
}

/// The scalar fields of a `struct __sk_buff`, in the kernel's order, names and units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
#[expect(missing_docs, reason = "the kernel's names")]
pub struct SkFields {
    pub len: u32,
    pub pkt_type: u32,
    pub mark: u32,
    pub queue_mapping: u32,
    pub protocol: u32,
    pub vlan_present: u32,
    pub vlan_tci: u32,
    pub vlan_proto: u32,
    pub priority: u32,
    pub ingress_ifindex: u32,
    pub ifindex: u32,
    pub tc_index: u32,
    pub cb: [u32; 5],
    pub hash: u32,
    pub tc_classid: u32,
}

/// What a flow dissector finds: the kernel's `struct bpf_flow_keys`, its names, order and byte orders.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
#[expect(missing_docs, reason = "the kernel's names")]
pub struct FlowKeys {
    pub nhoff: u16,
    pub thoff: u16,
    pub addr_proto: u16,
    pub is_frag: u8,
    pub is_first_frag: u8,
    pub is_encap: u8,
    pub ip_proto: u8,
    pub n_proto: u16,
    pub sport: u16,
    pub dport: u16,
    /// `ipv4_src` and `ipv4_dst`, or the four words of `ipv6_src` and then those of `ipv6_dst`.
    pub addresses: [u32; 8],
    pub flags: u32,
    pub flow_label: u32,
}

impl FlowKeys {
    /// As the kernel hands them to a dissector: behind the Ethernet header, of which `protocol` is the type.
    fn new(protocol: u32) -> FlowKeys {
        const ETH_HLEN: u16 = 14;
        FlowKeys { nhoff: ETH_HLEN, thoff: ETH_HLEN, n_proto: (protocol & 0xffff) as u16, ..FlowKeys::default() }
    }
}

/// A packet and its `struct __sk_buff`.
#[derive(Debug)]
#[repr(C)]
pub struct SkBuff<'p> {
    /// The scalar fields. `len` is set by each run.
    pub fields: SkFields,
    /// What `flow_keys` points to. Runs go on from what is there: put it back to dissect the packet again.
    pub flow_keys: FlowKeys,
    /// Its address, set by each run.
    flow_keys_at: *mut FlowKeys,
    pub(crate) window: Window,
    /// Where the last `bpf_redirect` of a run sends the packet, should it return `TC_ACT_REDIRECT`.
    pub redirect: Option<Redirect>,
    buffer: PhantomData<&'p mut [u8]>,
}

impl<'p> SkBuff<'p> {
    /// A packet. `protocol` is taken from its Ethernet header, in network byte order as in the kernel. Cut to 64 KiB
    /// and 256 bytes.
    pub fn new(packet: &'p mut [u8]) -> Self {
        let protocol = packet.get(12..14).map_or(0, |p| u32::from(u16::from_ne_bytes([p[0], p[1]])));
        let len = packet.len();
        let window = Window::new(packet, 0, len);
        let fields = SkFields { len: crate::num::small(window.len()), protocol, ..SkFields::default() };
        let (flow_keys, flow_keys_at) = (FlowKeys::new(protocol), core::ptr::null_mut());
        SkBuff { fields, flow_keys, flow_keys_at, window, redirect: None, buffer: PhantomData }
    }

    /// The packet.
    pub fn packet(&self) -> &[u8] {
        self.window.packet()
    }
}

/// The context of socket filters, traffic-control classifiers and flow dissectors: `struct __sk_buff`. LD_ABS and
/// LD_IND read the packet. `flow_keys` is there for all of them.
#[derive(Debug)]
pub enum Skb {}

// SAFETY: as for `Xdp`, with `SkBuff`; `parts` points `flow_keys_at` at the whole keys inside it.
unsafe impl Context for Skb {
    type Data<'r, 'p>
        = &'r mut SkBuff<'p>
    where
        'p: 'r;

    fn layout() -> &'static ContextLayout {
        static LAYOUT: LazyLock<ContextLayout> = LazyLock::new(|| {
            use Access::{Read, ReadWrite};
            let word = |of, access, at: usize| {
                field(of, access, FieldKind::Scalar, (offset_of!(SkBuff<'static>, fields) + at, 4))
            };
            let pointer = |at: usize| (offset_of!(SkBuff<'static>, window) + at, 8);
            // One field, so that programs may access two words at once, as in the kernel.
            let cb = offset_of!(SkBuff<'static>, fields) + offset_of!(SkFields, cb);
            let cb = field(sk_buff::CB, ReadWrite, FieldKind::Scalar, (cb, sk_buff::CB.size));
            let fields = vec![
                word(sk_buff::LEN, Read, offset_of!(SkFields, len)),
                word(sk_buff::PKT_TYPE, Read, offset_of!(SkFields, pkt_type)),
                word(sk_buff::MARK, ReadWrite, offset_of!(SkFields, mark)),
                word(sk_buff::QUEUE_MAPPING, ReadWrite, offset_of!(SkFields, queue_mapping)),
                word(sk_buff::PROTOCOL, Read, offset_of!(SkFields, protocol)),
                word(sk_buff::VLAN_PRESENT, Read, offset_of!(SkFields, vlan_present)),
                word(sk_buff::VLAN_TCI, Read, offset_of!(SkFields, vlan_tci)),
                word(sk_buff::VLAN_PROTO, Read, offset_of!(SkFields, vlan_proto)),
                word(sk_buff::PRIORITY, ReadWrite, offset_of!(SkFields, priority)),
                word(sk_buff::INGRESS_IFINDEX, Read, offset_of!(SkFields, ingress_ifindex)),
                word(sk_buff::IFINDEX, Read, offset_of!(SkFields, ifindex)),
                word(sk_buff::TC_INDEX, ReadWrite, offset_of!(SkFields, tc_index)),
                cb,
                word(sk_buff::HASH, Read, offset_of!(SkFields, hash)),
                word(sk_buff::TC_CLASSID, ReadWrite, offset_of!(SkFields, tc_classid)),
                field(sk_buff::DATA, Read, FieldKind::Data(0), pointer(offset_of!(Window, data))),
                field(sk_buff::DATA_END, Read, FieldKind::DataEnd(0), pointer(offset_of!(Window, data_end))),
                field(sk_buff::DATA_META, Read, FieldKind::Data(1), pointer(offset_of!(Window, data_meta))),
                field(sk_buff::FLOW_KEYS, Read, FieldKind::Data(2), (offset_of!(SkBuff<'static>, flow_keys_at), 8)),
            ];
            let size = crate::num::small(size_of::<FlowKeys>());
            let align = crate::num::small(align_of::<FlowKeys>());
            let keys = Region { min_len: size, align, ..region("flow_keys", size, None) };
            ContextLayout {
                name: sk_buff::NAME.into(),
                raw: false,
                fields,
                regions: vec![region("packet", MAX_FRAME, None), region("metadata", MAX_META, Some(0)), keys],
                legacy_loads: true,
                returns: None,
            }
        });
        &LAYOUT
    }

    fn types() -> Vec<CoreType> {
        let mut fields: Vec<CoreField> = Self::layout().fields.iter().map(core_field).collect();
        // An array of words.
        for cb in fields.iter_mut().filter(|field| field.name == sk_buff::CB.name) {
            (cb.size, cb.count) = (4, Some(5));
        }
        vec![CoreType::Struct { name: sk_buff::NAME.into(), size: sk_buff::SIZE, fields }]
    }

    #[inline]
    fn parts(data: &mut &mut SkBuff<'_>) -> Parts {
        let (packet, packet_len) = (data.window.data, data.window.len());
        data.fields.len = crate::num::small(packet_len);
        let buff = core::ptr::from_mut::<SkBuff<'_>>(data);
        // SAFETY: a field of what `data` borrows.
        let flow_keys = unsafe { &raw mut (*buff).flow_keys };
        // SAFETY: a field of what `data` borrows; written through the pointer that the run gets, so that the run may
        // use it.
        unsafe { (*buff).flow_keys_at = flow_keys };
        let context = buff.cast();
        let context_len = size_of::<SkBuff<'_>>();
        Parts { context, context_len, packet, packet_len, memory: packet, memory_len: packet_len }
    }
}
