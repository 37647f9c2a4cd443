//! The kernel's context of everything on packets but XDP, `struct __sk_buff`, over a `&mut [u8]`.
//!
//! Problem: beside the fields that programs see, a `struct sk_buff` of the kernel records the places of the packet's
//! headers, whether its hash and checksums are valid, and its tunnel; helpers read and write these. Approach:
//! [`SkBuff`] records them, too ([`Notes`]), and changes the packet by the window's `open`, `close` and `resize` only,
//! which cannot leave the buffer.
//!
//! Source of fields, offsets and access rights: `include/uapi/linux/bpf.h`, and `tc_cls_act_is_valid_access`,
//! `cg_skb_is_valid_access` and `bpf_skb_is_valid_access` in `net/core/filter.c` (Linux 6.18). A field that only some
//! of the kernel's program types may access is accessible to all here.

use crate::context::network::{Nexthop, Tunnel};
use crate::context::packet::{MAX_FRAME, MAX_META, Redirect, Window, field, region};
use crate::context::socket::Socket;
use crate::context::{Context, ContextLayout, Parts, core_field};
use bpf_analysis::HeaderPlaces;
use bpf_object::CoreType;
use bpf_uapi::ContextField;
use bpf_uapi::context::sk_buff;
use bpf_uapi::legacy_load::NO_HEADER;
use bpf_verifier::{Access, FieldKind, Region};
use core::marker::PhantomData;
use core::mem::offset_of;
use std::sync::{Arc, LazyLock};

/// Bytes of an Ethernet header.
pub(crate) const ETH_HLEN: usize = 14;

/// The numbers of a `struct __sk_buff`, in the kernel's order, names, units and byte orders.
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
    pub napi_id: u32,
    pub family: u32,
    pub remote_ip4: u32,
    pub local_ip4: u32,
    pub remote_ip6: [u32; 4],
    pub local_ip6: [u32; 4],
    pub remote_port: u32,
    pub local_port: u32,
    pub tstamp: u64,
    /// 0: the length of the packet when a run begins.
    pub wire_len: u32,
    pub gso_segs: u32,
    /// Other than 0: the packet stands for several TCP segments of this size.
    pub gso_size: u32,
    pub tstamp_type: u8,
    pub hwtstamp: u64,
}

/// The result of a flow dissector: the kernel's `struct bpf_flow_keys`, with its names, order and byte orders.
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

/// The state of a packet that the kernel keeps beside the fields that programs see. Places are bytes from the buffer's
/// start, as the kernel's are from its `head`, and may lie outside the packet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Notes {
    /// The link header.
    pub(crate) mac: i64,
    /// The network header.
    pub(crate) network: i64,
    /// The transport header, if its place was set.
    pub(crate) transport: Option<i64>,
    /// Whether a `hash` of 0 is valid.
    pub(crate) hashed: bool,
    /// How many checksums beyond the first are verified; `None`: not even the first.
    pub(crate) csum_level: Option<u8>,
    /// Whether a tunnel's headers were put in front.
    pub(crate) encapsulated: bool,
}

/// Positions of the headers that legacy packet loads may count from, in bytes from the packet's start; [`NO_HEADER`]
/// for a header that does not begin in the buffer.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Headers {
    link: i32,
    network: i32,
}

/// A packet and its `struct __sk_buff`.
#[derive(Debug)]
#[repr(C)]
pub struct SkBuff<'p> {
    /// The numbers. Each run sets `len`, and so does each helper that changes the packet's length.
    pub fields: SkFields,
    /// The target of `flow_keys`. A run continues from its present values: reset them to dissect the packet again.
    pub flow_keys: FlowKeys,
    /// Its address, set by each run.
    flow_keys_at: *mut FlowKeys,
    /// The target of `sk`: the socket that sends or receives the packet, if it is known.
    pub socket: Option<Arc<Socket>>,
    /// Its address, set by each run.
    socket_at: *const Socket,
    /// The socket that the last `bpf_sk_assign` of a run has assigned the packet to.
    pub assigned: Option<Arc<Socket>>,
    pub(crate) window: Window,
    pub(crate) notes: Notes,
    /// The header places for legacy packet loads, derived from the notes.
    headers: Headers,
    /// The target of the last `bpf_redirect` of a run. It applies if the run returns `TC_ACT_REDIRECT`.
    pub redirect: Option<Redirect>,
    /// The next hop that the last `bpf_redirect_neigh` gave, if it gave one.
    pub nexthop: Option<Nexthop>,
    /// The tunnel that the packet came out of, until a program says which one it goes into.
    pub tunnel: Option<Tunnel>,
    buffer: PhantomData<&'p mut [u8]>,
}

impl<'p> SkBuff<'p> {
    /// An Ethernet frame without room around it. `protocol` is taken from its header, in network byte order as in the
    /// kernel. Cut to 64 KiB and 256 bytes.
    pub fn new(packet: &'p mut [u8]) -> Self {
        let len = packet.len();
        Self::with_room(packet, 0, len)
    }

    /// The Ethernet frame `headroom .. headroom + len` of a buffer; programs may move its ends inside the buffer, by
    /// the helpers that put headers in front or change the length.
    pub fn with_room(buffer: &'p mut [u8], headroom: usize, len: usize) -> Self {
        let window = Window::new(buffer, headroom, len);
        let ethertype = window.packet().get(12..14);
        let protocol = ethertype.map_or(0, |p| u32::from(u16::from_ne_bytes([p[0], p[1]])));
        Self::of(window, protocol, ETH_HLEN)
    }

    /// A packet without a link header, as programs of control groups, sockets and devices of layer 3 get: `headroom ..
    /// headroom + len` of a buffer begins with its network header. `protocol`: the Ethernet type, 0x800 say.
    pub fn layer3(buffer: &'p mut [u8], headroom: usize, len: usize, protocol: u16) -> Self {
        Self::of(Window::new(buffer, headroom, len), u32::from(protocol.to_be()), 0)
    }

    fn of(window: Window, protocol: u32, network: usize) -> Self {
        let fields = SkFields { len: crate::num::small(window.len()), protocol, ..SkFields::default() };
        let mac = window.at() as i64;
        let network = mac + network as i64;
        let notes = Notes { mac, network, transport: None, hashed: false, csum_level: None, encapsulated: false };
        SkBuff {
            fields,
            flow_keys: FlowKeys::new(protocol),
            flow_keys_at: core::ptr::null_mut(),
            socket: None,
            socket_at: core::ptr::null(),
            assigned: None,
            window,
            notes,
            headers: Headers { link: NO_HEADER, network: NO_HEADER },
            redirect: None,
            nexthop: None,
            tunnel: None,
            buffer: PhantomData,
        }
    }

    /// Updates the header places for legacy packet loads from the notes.
    pub(crate) fn publish_headers(&mut self) {
        let at = self.window.at() as i64;
        let position = |place: i64| match i32::try_from(place - at) {
            Ok(position) if place >= 0 => position,
            Ok(_) | Err(_) => NO_HEADER,
        };
        self.headers = Headers { link: position(self.notes.mac), network: position(self.notes.network) };
    }

    /// The packet as it is now.
    pub fn packet(&self) -> &[u8] {
        self.window.packet()
    }
}

/// The context of socket filters, traffic-control classifiers and flow dissectors: `struct __sk_buff`. LD_ABS and
/// LD_IND read the packet; from `SKF_LL_OFF` (-0x200000) on their offsets count from the link header, and from
/// `SKF_NET_OFF` (-0x100000) on from the network header, as in the kernel. `flow_keys` is there for all of them.
#[derive(Debug)]
pub enum Skb {}

// SAFETY: as for `Xdp`, with `SkBuff`; `parts` points `flow_keys_at` at the whole keys inside it, and `socket_at` at a
// socket that it keeps.
unsafe impl Context for Skb {
    type Data<'r, 'p>
        = &'r mut SkBuff<'p>
    where
        'p: 'r;

    fn layout() -> &'static ContextLayout {
        static LAYOUT: LazyLock<ContextLayout> = LazyLock::new(|| {
            use Access::{Read, ReadWrite};
            type Of = SkBuff<'static>;
            let at = |at: usize| offset_of!(Of, fields) + at;
            // `cb`, of which programs may access two words at once, is one field, and so are the addresses.
            let number =
                |of: ContextField, access, offset: usize| field(of, access, FieldKind::Scalar, (at(offset), of.size));
            let [data, data_end, data_meta] = Window::OFFSETS.map(|at| (offset_of!(Of, window) + at, 8));
            macro_rules! fields {
                ($($name:ident $access:ident $field:ident),* $(,)?) => {
                    vec![$(number(sk_buff::$name, $access, offset_of!(SkFields, $field))),*]
                };
            }
            let mut fields = fields![
                LEN Read len, PKT_TYPE Read pkt_type, MARK ReadWrite mark, QUEUE_MAPPING ReadWrite queue_mapping,
                PROTOCOL Read protocol, VLAN_PRESENT Read vlan_present, VLAN_TCI Read vlan_tci,
                VLAN_PROTO Read vlan_proto, PRIORITY ReadWrite priority, INGRESS_IFINDEX Read ingress_ifindex,
                IFINDEX Read ifindex, TC_INDEX ReadWrite tc_index, CB ReadWrite cb, HASH Read hash,
                TC_CLASSID ReadWrite tc_classid, NAPI_ID Read napi_id, FAMILY Read family,
                REMOTE_IP4 Read remote_ip4, LOCAL_IP4 Read local_ip4, REMOTE_IP6 Read remote_ip6,
                LOCAL_IP6 Read local_ip6, REMOTE_PORT Read remote_port, LOCAL_PORT Read local_port,
                TSTAMP ReadWrite tstamp, WIRE_LEN Read wire_len, GSO_SEGS Read gso_segs, GSO_SIZE Read gso_size,
                TSTAMP_TYPE Read tstamp_type, HWTSTAMP Read hwtstamp,
            ];
            fields.extend([
                field(sk_buff::DATA, Read, FieldKind::Data(0), data),
                field(sk_buff::DATA_END, Read, FieldKind::DataEnd(0), data_end),
                field(sk_buff::DATA_META, Read, FieldKind::Data(1), data_meta),
                field(sk_buff::FLOW_KEYS, Read, FieldKind::Data(2), (offset_of!(Of, flow_keys_at), 8)),
                field(sk_buff::SK, Read, FieldKind::Socket, (offset_of!(Of, socket_at), 8)),
            ]);
            fields.sort_by_key(|field| field.offset);
            let size = crate::num::small(size_of::<FlowKeys>());
            let align = crate::num::small(align_of::<FlowKeys>());
            let keys = Region { min_len: size, align, ..region("flow_keys", size, None) };
            ContextLayout {
                name: sk_buff::NAME.into(),
                raw: false,
                fields,
                regions: vec![region("packet", MAX_FRAME, None), region("metadata", MAX_META, Some(0)), keys],
                legacy_loads: Some(HeaderPlaces::Context {
                    link: crate::num::small(offset_of!(Of, headers) + offset_of!(Headers, link)),
                    network: crate::num::small(offset_of!(Of, headers) + offset_of!(Headers, network)),
                }),
                returns: None,
            }
        });
        &LAYOUT
    }

    fn types() -> Vec<CoreType> {
        let fields = Self::layout().fields.iter().map(core_field).collect();
        vec![CoreType::Struct { name: sk_buff::NAME.into(), size: sk_buff::SIZE, fields }]
    }

    #[inline]
    fn parts(data: &mut &mut SkBuff<'_>) -> Parts {
        let (packet, packet_len) = (data.window.data(), data.window.len());
        let (memory, memory_len) = data.window.memory();
        data.fields.len = crate::num::small(packet_len);
        data.publish_headers();
        if data.fields.wire_len == 0 {
            data.fields.wire_len = data.fields.len;
        }
        // Nobody replaces it while the context is borrowed for the run.
        data.socket_at = data.socket.as_deref().map_or(core::ptr::null(), |socket| {
            let _ = core::ptr::from_ref(socket).expose_provenance();
            core::ptr::from_ref(socket)
        });
        let buff = core::ptr::from_mut::<SkBuff<'_>>(data);
        // SAFETY: a field of the `SkBuff` that `data` borrows.
        let flow_keys = unsafe { &raw mut (*buff).flow_keys };
        // SAFETY: a field of the `SkBuff` that `data` borrows; written through the pointer that the run gets, so that
        // the run may use it.
        unsafe { (*buff).flow_keys_at = flow_keys };
        let context = buff.cast();
        let context_len = size_of::<SkBuff<'_>>();
        Parts { context, context_len, packet, packet_len, memory, memory_len }
    }
}
