//! The kernel's context of programs on events of TCP connections, `struct bpf_sock_ops`.
//!
//! Problem: in the kernel most fields are read from the connection when the program loads them. Approach: the host
//! stores the fields before the run and reads the reply after it. A field of 0 is unknown, like the kernel's fields of
//! a socket that is not full.
//!
//! Source: `include/uapi/linux/bpf.h`, `sock_ops_is_valid_access` in `net/core/filter.c` (Linux 6.18).

use crate::context::packet::field;
use crate::context::socket::Socket;
use crate::context::{Context, ContextLayout, Parts, core_field};
use bpf_object::{CoreField, CoreType, FieldType};
use bpf_uapi::ContextField;
use bpf_uapi::context::sock_ops;
use bpf_verifier::{Access, FieldKind};
use core::mem::offset_of;
use std::sync::{Arc, LazyLock};

/// The numbers of a `struct bpf_sock_ops`: addresses and `remote_port` in network byte order, `local_port` a number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
#[expect(missing_docs, reason = "the kernel's names")]
pub struct SockOpsFields {
    pub op: u32,
    /// The host's arguments; the first is also what the program replies.
    pub args: [u32; 4],
    pub family: u32,
    pub remote_ip4: u32,
    pub local_ip4: u32,
    pub remote_ip6: [u32; 4],
    pub local_ip6: [u32; 4],
    pub remote_port: u32,
    pub local_port: u32,
    pub is_fullsock: u32,
    pub snd_cwnd: u32,
    pub srtt_us: u32,
    pub bpf_sock_ops_cb_flags: u32,
    pub state: u32,
    pub rtt_min: u32,
    pub snd_ssthresh: u32,
    pub rcv_nxt: u32,
    pub snd_nxt: u32,
    pub snd_una: u32,
    pub mss_cache: u32,
    pub ecn_flags: u32,
    pub rate_delivered: u32,
    pub rate_interval_us: u32,
    pub packets_out: u32,
    pub retrans_out: u32,
    pub total_retrans: u32,
    pub segs_in: u32,
    pub data_segs_in: u32,
    pub segs_out: u32,
    pub data_segs_out: u32,
    pub lost_out: u32,
    pub sacked_out: u32,
    pub sk_txhash: u32,
    pub bytes_received: u64,
    pub bytes_acked: u64,
}

/// An event of a connection, as the context of a run.
#[derive(Debug, Default)]
#[repr(C)]
pub struct SockOpsBuff {
    /// The numbers. After a run, `bpf_sock_ops_cb_flags` has the events that the program has subscribed to.
    pub fields: SockOpsFields,
    /// The target of `sk`.
    pub socket: Option<Arc<Socket>>,
    /// Its address, set by each run.
    socket_at: usize,
}

/// `BPF_SOCK_OPS_ALL_CB_FLAGS`.
const ALL_CB_FLAGS: u32 = 0x7f;

impl SockOpsBuff {
    /// A connection that is not known by a socket.
    pub fn new(fields: SockOpsFields) -> Self {
        SockOpsBuff { fields, ..SockOpsBuff::default() }
    }

    /// Returns the program's reply.
    pub fn reply(&self) -> u32 {
        self.fields.args[0]
    }

    /// `bpf_sock_ops_cb_flags_set(ctx, flags)`: the flags that do not exist, `None` without a full socket.
    pub(crate) fn set_cb_flags(&mut self, flags: u32) -> Option<u32> {
        if self.fields.is_fullsock == 0 {
            return None;
        }
        self.fields.bpf_sock_ops_cb_flags = flags & ALL_CB_FLAGS;
        Some(flags & !ALL_CB_FLAGS)
    }
}

/// The context of `sockops` programs: `struct bpf_sock_ops`. They return 0 or 1.
///
/// `skb_data` and the other fields of the packet at hand are not there: connections have none here.
#[derive(Debug)]
pub enum SockOps {}

// SAFETY: the layout describes `SockOpsBuff` (`repr(C)`, offsets taken from it); `socket_at` is the address of a socket
// that it keeps, and that nobody replaces while the context is borrowed for the run.
unsafe impl Context for SockOps {
    type Data<'r, 'p>
        = &'r mut SockOpsBuff
    where
        'p: 'r;

    fn layout() -> &'static ContextLayout {
        static LAYOUT: LazyLock<ContextLayout> = LazyLock::new(|| {
            use Access::{Read, ReadWrite};
            let number = |of: ContextField, access, offset: usize| {
                field(of, access, FieldKind::Scalar, (offset_of!(SockOpsBuff, fields) + offset, of.size))
            };
            macro_rules! fields {
                ($($name:ident $field:ident),* $(,)?) => {
                    vec![$(number(sock_ops::$name, Read, offset_of!(SockOpsFields, $field))),*]
                };
            }
            let mut fields = fields![
                OP op, FAMILY family, REMOTE_IP4 remote_ip4, LOCAL_IP4 local_ip4, REMOTE_IP6 remote_ip6,
                LOCAL_IP6 local_ip6, REMOTE_PORT remote_port, LOCAL_PORT local_port, IS_FULLSOCK is_fullsock,
                SND_CWND snd_cwnd, SRTT_US srtt_us, CB_FLAGS bpf_sock_ops_cb_flags, STATE state, RTT_MIN rtt_min,
                SND_SSTHRESH snd_ssthresh, RCV_NXT rcv_nxt, SND_NXT snd_nxt, SND_UNA snd_una, MSS_CACHE mss_cache,
                ECN_FLAGS ecn_flags, RATE_DELIVERED rate_delivered, RATE_INTERVAL_US rate_interval_us,
                PACKETS_OUT packets_out, RETRANS_OUT retrans_out, TOTAL_RETRANS total_retrans, SEGS_IN segs_in,
                DATA_SEGS_IN data_segs_in, SEGS_OUT segs_out, DATA_SEGS_OUT data_segs_out, LOST_OUT lost_out,
                SACKED_OUT sacked_out, BYTES_RECEIVED bytes_received, BYTES_ACKED bytes_acked,
            ];
            let args = offset_of!(SockOpsFields, args);
            fields.extend([
                number(sock_ops::REPLY, ReadWrite, args),
                number(sock_ops::ARGS, Read, args + 4),
                number(sock_ops::SK_TXHASH, ReadWrite, offset_of!(SockOpsFields, sk_txhash)),
                field(sock_ops::SK, Read, FieldKind::Socket, (offset_of!(SockOpsBuff, socket_at), 8)),
            ]);
            fields.sort_by_key(|field| field.offset);
            ContextLayout {
                name: sock_ops::NAME.into(),
                raw: false,
                fields,
                regions: Vec::new(),
                legacy_loads: None,
                returns: Some((0, 1)),
            }
        });
        &LAYOUT
    }

    fn types() -> Vec<CoreType> {
        let mut fields: Vec<CoreField> = Self::layout().fields.iter().map(core_field).collect();
        // The union of the kernel's structure, whose members all begin with the reply.
        let words = |name: &'static str| CoreField {
            name: name.into(),
            offset: sock_ops::REPLY.offset,
            ty: FieldType::array(FieldType::unsigned(4), 4),
        };
        fields.retain(|field| field.name != sock_ops::ARGS.name);
        fields.extend([words("args"), words("replylong")]);
        vec![CoreType::Struct { name: sock_ops::NAME.into(), size: sock_ops::SIZE, fields }]
    }

    #[inline]
    fn parts(data: &mut &mut SockOpsBuff) -> Parts {
        let address = |socket: &Socket| core::ptr::from_ref(socket).expose_provenance();
        data.socket_at = data.socket.as_deref().map_or(0, address);
        Parts::of_context(&mut **data)
    }
}
