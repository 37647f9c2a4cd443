//! The network of the packets, for helpers: routes, devices, sockets.
//!
//! Problem: `bpf_fib_lookup`, `bpf_check_mtu` and `bpf_clone_redirect` are about interfaces and routes, which a program
//! in user space has none of. Approach: the host answers for them by a [`Network`], given once with the engine
//! ([`Config::network`](crate::Config::network)). Each question has a default, which is what a network namespace
//! answers in which nothing is configured: one loopback device, down, and no forwarding ([`Unconfigured`]). A program's
//! requests (a redirect, a next hop, a tunnel) are not questions: they are stored in the context, for the host to act
//! on after the run.
//!
//! Source: `include/uapi/linux/bpf.h`, `net/core/filter.c` (Linux 6.18).

use bpf_uapi::{Errno, address_family};
use core::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use crate::context::socket::{Socket, SocketLookup};

/// Interfaces and routes, as programs may ask about them. A method runs in the middle of a program's run, on its
/// thread; one that panics ends the run with an error.
pub trait Network: Send + Sync {
    /// The device of this number, if there is one.
    fn device(&self, ifindex: u32) -> Option<Device> {
        (ifindex == LOOPBACK).then_some(Device { mtu: 65536, link_header: 14 })
    }

    /// Answers `bpf_fib_lookup`: returns the verdict for the packet that `lookup` describes, and stores the route in
    /// `lookup`'s fields if there is one. `flags` are the program's `BPF_FIB_LOOKUP_*`; unknown flags were refused
    /// before.
    ///
    /// # Errors
    /// The helper returns the error to the program in place of a verdict. By default, `ENODEV` without a device
    /// `lookup.ifindex`.
    fn fib_lookup(&self, lookup: &mut FibLookup, flags: u32) -> Result<FibVerdict, Errno> {
        let _ = flags;
        let strict = |address: &[u8; 16]| {
            let address = Ipv6Addr::from(*address);
            address.is_multicast() || address.is_unicast_link_local() || address.is_loopback()
        };
        if u32::from(lookup.family) == address_family::INET6 && (strict(&lookup.destination) || strict(&lookup.source))
        {
            return Ok(FibVerdict::NOT_FORWARDED);
        }
        match self.device(lookup.ifindex) {
            Some(_) => Ok(FibVerdict::FORWARDING_DISABLED),
            None => Err(Errno::ENODEV),
        }
    }

    /// `bpf_clone_redirect`: sends a copy of the packet at once, out of a device or (`BPF_F_INGRESS`) in by it.
    ///
    /// # Errors
    /// The helper returns the error to the program. By default, `EINVAL` without such a device.
    fn send(&self, frame: &[u8], ifindex: u32, ingress: bool) -> Result<Sent, Errno> {
        let _ = (frame, ingress);
        // A device that is down has a queue that takes nothing.
        self.device(ifindex).map(|_| Sent::Congested).ok_or(Errno::EINVAL)
    }

    /// `bpf_sk_lookup_tcp` and its kin: the socket that a packet is for. A program may hold up to 15 at a time.
    fn socket(&self, lookup: &SocketLookup) -> Option<Arc<Socket>> {
        let _ = lookup;
        None
    }

    /// The socket that an entry of a `SOCKMAP` or `SOCKHASH` stands for: by the number that the host wrote there, or by
    /// the cookie of the socket that a program of `sockops` put there. `None` is as an entry that is not there.
    fn socket_by_number(&self, number: u64) -> Option<Arc<Socket>> {
        let _ = number;
        None
    }

    /// `bpf_get_netns_cookie`: the name of the network namespace for as long as the machine runs.
    fn namespace_cookie(&self) -> u64 {
        1
    }
}

/// The loopback device's number.
const LOOPBACK: u32 = 1;

/// A network in which nothing is configured.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unconfigured;

impl Network for Unconfigured {}

/// The outcome of sending a packet: `NET_XMIT_*`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
#[non_exhaustive]
pub enum Sent {
    /// The packet was queued for sending.
    Queued = 0,
    /// The packet was dropped.
    Dropped = 1,
    /// This packet, or one before it, was dropped because the queue is full.
    Congested = 2,
}

/// The properties of a device that programs may read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Device {
    /// The longest packet without its link header.
    pub mtu: u32,
    /// Bytes of its link header.
    pub link_header: u32,
}

/// The result of a look-up in the forwarding table: `BPF_FIB_LKUP_RET_*`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FibVerdict(pub u32);

impl FibVerdict {
    /// There is a route: the answer is complete.
    pub const SUCCESS: FibVerdict = FibVerdict(0);
    /// The destination is a black hole.
    pub const BLACKHOLE: FibVerdict = FibVerdict(1);
    /// The destination is unreachable.
    pub const UNREACHABLE: FibVerdict = FibVerdict(2);
    /// The destination is prohibited.
    pub const PROHIBITED: FibVerdict = FibVerdict(3);
    /// The packet is not forwarded.
    pub const NOT_FORWARDED: FibVerdict = FibVerdict(4);
    /// Forwarding is not enabled on the device.
    pub const FORWARDING_DISABLED: FibVerdict = FibVerdict(5);
    /// The packet needs a tunnel's headers.
    pub const NEEDS_TUNNEL: FibVerdict = FibVerdict(6);
    /// There is a route, but nothing is known of the neighbour.
    pub const NO_NEIGHBOUR: FibVerdict = FibVerdict(7);
    /// There is a route, and the packet is longer than it allows.
    pub const NEEDS_FRAGMENTS: FibVerdict = FibVerdict(8);
    /// There is no source address.
    pub const NO_SOURCE: FibVerdict = FibVerdict(9);
}

/// `struct bpf_fib_lookup`: a program's question, and the answer. Ports, addresses and VLAN fields are in network byte
/// order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
#[non_exhaustive]
pub struct FibLookup {
    /// `AF_INET` or `AF_INET6`.
    pub family: u8,
    /// The transport protocol.
    pub l4_protocol: u8,
    /// Source port.
    pub sport: u16,
    /// Destination port.
    pub dport: u16,
    /// `tot_len` of the IP header, or 0; the answer is the path's MTU.
    pub len_or_mtu: u16,
    /// The device it comes in by, or goes out of (`BPF_FIB_LOOKUP_OUTPUT`); the answer is the one it goes out of.
    pub ifindex: u32,
    /// `tos` (the first byte) or `flowinfo`; the answer is the route's metric.
    pub tos_or_metric: u32,
    /// Source address: four bytes of IPv4 or all sixteen.
    pub source: [u8; 16],
    /// Destination address; the answer is the next hop's.
    pub destination: [u8; 16],
    /// `h_vlan_proto` and `h_vlan_TCI` of the answer; the table to look into (`BPF_FIB_LOOKUP_TBID`), in host order.
    pub vlan_or_table: [u8; 4],
    /// Source address of the frame; before that, its first four bytes may be the mark (`BPF_FIB_LOOKUP_MARK`).
    pub source_mac: [u8; 6],
    /// Destination address of the frame.
    pub destination_mac: [u8; 6],
}

const _: () = assert!(size_of::<FibLookup>() == 64);

/// Where `bpf_redirect_neigh` sends a packet: `struct bpf_redir_neigh`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct Nexthop {
    /// `AF_INET` or `AF_INET6`, or anything else that a program wrote there.
    pub family: u32,
    /// Four bytes of IPv4 or all sixteen.
    pub address: [u8; 16],
}

impl Nexthop {
    /// The address, if its family is one of IP's.
    pub fn address(&self) -> Option<IpAddr> {
        let [a, b, c, d, ..] = self.address;
        match self.family {
            address_family::INET => Some(Ipv4Addr::new(a, b, c, d).into()),
            address_family::INET6 => Some(Ipv6Addr::from(self.address).into()),
            _ => None,
        }
    }
}

/// Tunnel metadata of a packet, of the tunnel it was received from or is sent into: the kernel's `struct
/// ip_tunnel_info`.
#[derive(Clone, Copy)]
pub struct Tunnel {
    /// VNI, key and the like.
    pub id: u64,
    /// Outer source.
    pub source: IpAddr,
    /// Outer destination, of the same family.
    pub destination: IpAddr,
    /// Outer type of service.
    pub tos: u8,
    /// Outer time to live.
    pub ttl: u8,
    /// Outer flow label.
    pub label: u32,
    /// The kernel's `IP_TUNNEL_*_BIT`s below 16.
    pub flags: u16,
    /// Whether a program has said that the packet goes into it.
    pub outgoing: bool,
    options: [u8; Tunnel::MAX_OPTIONS],
    options_len: u8,
}

impl Tunnel {
    /// Most bytes of options.
    pub const MAX_OPTIONS: usize = 255;

    /// A tunnel that a packet came out of.
    pub fn new(id: u64, source: IpAddr, destination: IpAddr) -> Tunnel {
        let options = [0; Tunnel::MAX_OPTIONS];
        Tunnel { id, source, destination, tos: 0, ttl: 0, label: 0, flags: 0, outgoing: false, options, options_len: 0 }
    }

    /// Geneve's, VXLAN's or ERSPAN's options.
    pub fn options(&self) -> &[u8] {
        &self.options[..self.options_len.into()]
    }

    /// Sets them. `false`, and nothing changes, if they are more than [`Tunnel::MAX_OPTIONS`].
    #[must_use]
    pub fn set_options(&mut self, options: &[u8]) -> bool {
        let (Some(to), Ok(len)) = (self.options.get_mut(..options.len()), u8::try_from(options.len())) else {
            return false;
        };
        to.copy_from_slice(options);
        self.options_len = len;
        true
    }
}

impl fmt::Debug for Tunnel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tunnel")
            .field("id", &self.id)
            .field("source", &self.source)
            .field("destination", &self.destination)
            .field("flags", &self.flags)
            .field("outgoing", &self.outgoing)
            .field("options", &self.options())
            .finish_non_exhaustive()
    }
}
