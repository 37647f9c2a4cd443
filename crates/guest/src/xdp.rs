//! Packets of network drivers and of `bpf_runtime::net::Xdp`.

use crate::context::{Context, ContextBytes, ContextBytesMut, ProgramResult};

/// The kernel's `struct xdp_md`.
#[derive(Debug)]
#[repr(C)]
pub struct Xdp {
    #[cfg(target_arch = "bpf")]
    data: u32,
    #[cfg(target_arch = "bpf")]
    data_end: u32,
    #[cfg(target_arch = "bpf")]
    data_meta: u32,
    /// The device that received the packet.
    pub ingress_ifindex: u32,
    /// The queue of the device.
    pub rx_queue_index: u32,
    /// The device that sends the packet.
    pub egress_ifindex: u32,
    /// The packet of a test.
    #[cfg(not(target_arch = "bpf"))]
    packet: std::vec::Vec<u8>,
}

// SAFETY: on BPF the kernel's layout, with addresses in fields that are loaded whole.
unsafe impl Context for Xdp {}

#[cfg(target_arch = "bpf")]
impl Xdp {
    /// The packet.
    #[inline(always)]
    pub fn packet(&self) -> ContextBytes<'_> {
        let (start, end) = (self.data as usize, self.data_end as usize);
        ContextBytes::new(core::ptr::with_exposed_provenance(start), core::ptr::with_exposed_provenance(end))
    }

    /// The packet, mutably.
    #[inline(always)]
    pub fn packet_mut(&mut self) -> ContextBytesMut<'_> {
        let (start, end) = (self.data as usize, self.data_end as usize);
        ContextBytesMut::new(core::ptr::with_exposed_provenance_mut(start), core::ptr::with_exposed_provenance_mut(end))
    }
}

#[cfg(not(target_arch = "bpf"))]
impl Xdp {
    /// Makes the context of a test.
    pub fn new(packet: impl Into<std::vec::Vec<u8>>) -> Xdp {
        Xdp { ingress_ifindex: 0, rx_queue_index: 0, egress_ifindex: 0, packet: packet.into() }
    }

    /// The packet.
    pub fn packet(&self) -> ContextBytes<'_> {
        self.packet[..].into()
    }

    /// The packet, mutably.
    pub fn packet_mut(&mut self) -> ContextBytesMut<'_> {
        self.packet[..].as_mut().into()
    }
}

/// The verdict on a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum XdpAction {
    /// The program has failed; the packet is dropped and the failure counted.
    Aborted = 0,
    /// Drops the packet.
    Drop = 1,
    /// Passes the packet on.
    Pass = 2,
    /// Sends the packet back on its device.
    Tx = 3,
    /// Sends the packet to the target that a redirect helper has chosen.
    Redirect = 4,
}

impl ProgramResult for XdpAction {
    #[inline(always)]
    fn into_r0(self) -> u64 {
        self as u64
    }
}
