//! The fields of the contexts that the kernel passes to programs: names, offsets, sizes.
//!
//! The provider of a context decides how programs may access a field, and where the host keeps it.
//!
//! Source: `struct xdp_md`, `__sk_buff`, `bpf_sk_lookup`, `bpf_sock`, `bpf_sock_addr` and `bpf_sock_ops` in
//! `include/uapi/linux/bpf.h`.

/// A field as programs see it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ContextField {
    /// Its name in C.
    pub name: &'static str,
    /// Byte offset.
    pub offset: u32,
    /// Size in bytes.
    pub size: u32,
}

impl ContextField {
    /// Byte offset of the first byte after it.
    #[must_use]
    pub const fn end(self) -> u32 {
        self.offset + self.size
    }
}

macro_rules! context {
    ($(#[$doc:meta])* $module:ident $struct:literal, $bytes:literal: $($field:ident = $offset:literal, $size:literal, $name:literal;)*) => {
        $(#[$doc])*
        #[expect(missing_docs, reason = "the kernel's names")]
        pub mod $module {
            use super::ContextField;

            /// The structure's name in C.
            pub const NAME: &str = $struct;
            /// Its size in bytes.
            pub const SIZE: u32 = $bytes;
            $(pub const $field: ContextField = ContextField { name: $name, offset: $offset, size: $size };)*
            /// All fields, ascending by offset.
            pub const FIELDS: &[ContextField] = &[$($field,)*];
        }
    };
}

context! {
    /// The context of XDP programs.
    xdp_md "xdp_md", 24:
    DATA = 0, 4, "data";
    DATA_END = 4, 4, "data_end";
    DATA_META = 8, 4, "data_meta";
    INGRESS_IFINDEX = 12, 4, "ingress_ifindex";
    RX_QUEUE_INDEX = 16, 4, "rx_queue_index";
    EGRESS_IFINDEX = 20, 4, "egress_ifindex";
}

context! {
    /// The context of traffic-control classifiers, socket filters, flow dissectors and the packet programs of control
    /// groups.
    sk_buff "__sk_buff", 192:
    LEN = 0, 4, "len";
    PKT_TYPE = 4, 4, "pkt_type";
    MARK = 8, 4, "mark";
    QUEUE_MAPPING = 12, 4, "queue_mapping";
    PROTOCOL = 16, 4, "protocol";
    VLAN_PRESENT = 20, 4, "vlan_present";
    VLAN_TCI = 24, 4, "vlan_tci";
    VLAN_PROTO = 28, 4, "vlan_proto";
    PRIORITY = 32, 4, "priority";
    INGRESS_IFINDEX = 36, 4, "ingress_ifindex";
    IFINDEX = 40, 4, "ifindex";
    TC_INDEX = 44, 4, "tc_index";
    CB = 48, 20, "cb";
    HASH = 68, 4, "hash";
    TC_CLASSID = 72, 4, "tc_classid";
    DATA = 76, 4, "data";
    DATA_END = 80, 4, "data_end";
    NAPI_ID = 84, 4, "napi_id";
    FAMILY = 88, 4, "family";
    REMOTE_IP4 = 92, 4, "remote_ip4";
    LOCAL_IP4 = 96, 4, "local_ip4";
    REMOTE_IP6 = 100, 16, "remote_ip6";
    LOCAL_IP6 = 116, 16, "local_ip6";
    REMOTE_PORT = 132, 4, "remote_port";
    LOCAL_PORT = 136, 4, "local_port";
    DATA_META = 140, 4, "data_meta";
    FLOW_KEYS = 144, 8, "flow_keys";
    TSTAMP = 152, 8, "tstamp";
    WIRE_LEN = 160, 4, "wire_len";
    GSO_SEGS = 164, 4, "gso_segs";
    SK = 168, 8, "sk";
    GSO_SIZE = 176, 4, "gso_size";
    TSTAMP_TYPE = 180, 1, "tstamp_type";
    HWTSTAMP = 184, 8, "hwtstamp";
}

context! {
    /// The context of programs that choose a socket for a packet.
    sk_lookup "bpf_sk_lookup", 72:
    SK = 0, 8, "sk";
    FAMILY = 8, 4, "family";
    PROTOCOL = 12, 4, "protocol";
    REMOTE_IP4 = 16, 4, "remote_ip4";
    REMOTE_IP6 = 20, 16, "remote_ip6";
    REMOTE_PORT = 36, 4, "remote_port";
    LOCAL_IP4 = 40, 4, "local_ip4";
    LOCAL_IP6 = 44, 16, "local_ip6";
    LOCAL_PORT = 60, 4, "local_port";
    INGRESS_IFINDEX = 64, 4, "ingress_ifindex";
}

context! {
    /// The context of programs that decide on a socket. `dst_port` has two bytes, followed by two bytes of padding
    /// that may be read with it.
    sock "bpf_sock", 80:
    BOUND_DEV_IF = 0, 4, "bound_dev_if";
    FAMILY = 4, 4, "family";
    TYPE = 8, 4, "type";
    PROTOCOL = 12, 4, "protocol";
    MARK = 16, 4, "mark";
    PRIORITY = 20, 4, "priority";
    SRC_IP4 = 24, 4, "src_ip4";
    SRC_IP6 = 28, 16, "src_ip6";
    SRC_PORT = 44, 4, "src_port";
    DST_PORT = 48, 4, "dst_port";
    DST_IP4 = 52, 4, "dst_ip4";
    DST_IP6 = 56, 16, "dst_ip6";
    STATE = 72, 4, "state";
    RX_QUEUE_MAPPING = 76, 4, "rx_queue_mapping";
}

context! {
    /// The context of programs that decide on the address that a socket is bound to, connects to or sends to.
    sock_addr "bpf_sock_addr", 72:
    USER_FAMILY = 0, 4, "user_family";
    USER_IP4 = 4, 4, "user_ip4";
    USER_IP6 = 8, 16, "user_ip6";
    USER_PORT = 24, 4, "user_port";
    FAMILY = 28, 4, "family";
    TYPE = 32, 4, "type";
    PROTOCOL = 36, 4, "protocol";
    MSG_SRC_IP4 = 40, 4, "msg_src_ip4";
    MSG_SRC_IP6 = 44, 16, "msg_src_ip6";
    SK = 64, 8, "sk";
}

context! {
    /// The context of programs that are notified of events of a TCP connection. `reply` is the first of four words
    /// that are also `args`.
    sock_ops "bpf_sock_ops", 224:
    OP = 0, 4, "op";
    REPLY = 4, 4, "reply";
    ARGS = 8, 12, "args";
    FAMILY = 20, 4, "family";
    REMOTE_IP4 = 24, 4, "remote_ip4";
    LOCAL_IP4 = 28, 4, "local_ip4";
    REMOTE_IP6 = 32, 16, "remote_ip6";
    LOCAL_IP6 = 48, 16, "local_ip6";
    REMOTE_PORT = 64, 4, "remote_port";
    LOCAL_PORT = 68, 4, "local_port";
    IS_FULLSOCK = 72, 4, "is_fullsock";
    SND_CWND = 76, 4, "snd_cwnd";
    SRTT_US = 80, 4, "srtt_us";
    CB_FLAGS = 84, 4, "bpf_sock_ops_cb_flags";
    STATE = 88, 4, "state";
    RTT_MIN = 92, 4, "rtt_min";
    SND_SSTHRESH = 96, 4, "snd_ssthresh";
    RCV_NXT = 100, 4, "rcv_nxt";
    SND_NXT = 104, 4, "snd_nxt";
    SND_UNA = 108, 4, "snd_una";
    MSS_CACHE = 112, 4, "mss_cache";
    ECN_FLAGS = 116, 4, "ecn_flags";
    RATE_DELIVERED = 120, 4, "rate_delivered";
    RATE_INTERVAL_US = 124, 4, "rate_interval_us";
    PACKETS_OUT = 128, 4, "packets_out";
    RETRANS_OUT = 132, 4, "retrans_out";
    TOTAL_RETRANS = 136, 4, "total_retrans";
    SEGS_IN = 140, 4, "segs_in";
    DATA_SEGS_IN = 144, 4, "data_segs_in";
    SEGS_OUT = 148, 4, "segs_out";
    DATA_SEGS_OUT = 152, 4, "data_segs_out";
    LOST_OUT = 156, 4, "lost_out";
    SACKED_OUT = 160, 4, "sacked_out";
    SK_TXHASH = 164, 4, "sk_txhash";
    BYTES_RECEIVED = 168, 8, "bytes_received";
    BYTES_ACKED = 176, 8, "bytes_acked";
    SK = 184, 8, "sk";
    SKB_LEN = 208, 4, "skb_len";
    SKB_TCP_FLAGS = 212, 4, "skb_tcp_flags";
    SKB_HWTSTAMP = 216, 8, "skb_hwtstamp";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_do_not_overlap() {
        for (fields, size) in [
            (xdp_md::FIELDS, xdp_md::SIZE),
            (sk_buff::FIELDS, sk_buff::SIZE),
            (sk_lookup::FIELDS, sk_lookup::SIZE),
            (sock::FIELDS, sock::SIZE),
            (sock_addr::FIELDS, sock_addr::SIZE),
            (sock_ops::FIELDS, sock_ops::SIZE),
        ] {
            for pair in fields.windows(2) {
                assert!(pair[0].end() <= pair[1].offset, "{} and {}", pair[0].name, pair[1].name);
            }
            assert!(fields.iter().all(|f| f.end() <= size && f.offset.is_multiple_of(f.size.min(4))));
        }
    }
}
