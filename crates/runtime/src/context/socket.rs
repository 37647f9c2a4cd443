//! Sockets, as programs see them: `struct bpf_sock` and `struct bpf_tcp_sock`.
//!
//! Problem: in the kernel a socket is a large structure, and each field that a program reads is rewritten to an access
//! of it. Approach: here the host describes a socket by the fields that programs may read, in the layout that they are
//! compiled for, so a pointer to it is plain memory that is only read. The host hands out counted references
//! ([`Network::socket`](crate::net::Network::socket)); a program gives back each that it got, which the verifier
//! proves, and a run that is stopped gives back what it holds.
//!
//! Source: `include/uapi/linux/bpf.h`, `bpf_sock_convert_ctx_access` in `net/core/filter.c` (Linux 6.18).

use bpf_verifier::{SOCKET_BYTES, TCP_SOCKET_BYTES};
use std::net::SocketAddr;
use std::sync::Arc;

/// The fields of a socket that programs read: `struct bpf_sock`, with its names, order and byte orders. Addresses are
/// in network byte order, and so is `dst_port`; `src_port` is a number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
#[expect(missing_docs, reason = "the kernel's names")]
pub struct SockFields {
    pub bound_dev_if: u32,
    pub family: u32,
    pub kind: u32,
    pub protocol: u32,
    pub mark: u32,
    pub priority: u32,
    pub src_ip4: u32,
    pub src_ip6: [u32; 4],
    pub src_port: u32,
    pub dst_port: u16,
    /// Zero.
    pub padding: u16,
    pub dst_ip4: u32,
    pub dst_ip6: [u32; 4],
    /// `BPF_TCP_ESTABLISHED` and so on.
    pub state: u32,
    /// -1 for none.
    pub rx_queue_mapping: i32,
}

const _: () = assert!(size_of::<SockFields>() == SOCKET_BYTES as usize);

/// Further fields of a TCP socket: `struct bpf_tcp_sock`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
#[expect(missing_docs, reason = "the kernel's names")]
pub struct TcpFields {
    pub snd_cwnd: u32,
    pub srtt_us: u32,
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
    pub bytes_received: u64,
    pub bytes_acked: u64,
    pub dsack_dups: u32,
    pub delivered: u32,
    pub delivered_ce: u32,
    pub icsk_retransmits: u32,
}

const _: () = assert!(size_of::<TcpFields>() == TCP_SOCKET_BYTES as usize);

/// A socket of the host. Its fields never change; the host makes a new `Socket` for new values.
#[derive(Clone, Debug, Default)]
#[repr(C, align(8))]
pub struct Socket {
    /// Programs' pointers to the socket are to these: first.
    pub fields: SockFields,
    /// `bpf_tcp_sock`.
    pub tcp: Option<TcpFields>,
    /// `bpf_get_socket_cookie`.
    pub cookie: u64,
    /// `bpf_get_socket_uid`.
    pub uid: u32,
    /// `bpf_get_listener_sock`: of a connection, the socket that it was accepted by.
    pub listener: Option<Arc<Socket>>,
}

/// `TCP_TIME_WAIT` and `TCP_NEW_SYN_RECV`: states in which the connection has no full socket.
const NOT_FULL: [u32; 2] = [6, 12];
const TCP_LISTEN: u32 = 10;

impl Socket {
    /// Whether it is more than the rest, or the beginning, of a connection.
    pub fn is_full(&self) -> bool {
        !NOT_FULL.contains(&self.fields.state)
    }

    /// Whether it waits for connections.
    pub fn is_listening(&self) -> bool {
        self.fields.state == TCP_LISTEN
    }
}

/// The key of a socket look-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketLookup {
    /// `IPPROTO_TCP` or `IPPROTO_UDP`.
    pub protocol: u8,
    /// The source of the packet; of the same family as the destination.
    pub source: SocketAddr,
    /// The destination of the packet.
    pub destination: SocketAddr,
    /// The network namespace, by the number that it has in the program's own; `None`: that one.
    pub namespace: Option<u32>,
}
