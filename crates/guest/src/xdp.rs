//! Packets, as network drivers and `bpf_runtime::Xdp` pass them.

use crate::context::{Context, ContextBytes, ContextBytesMut, ProgramResult};

/// The kernel's `struct xdp_md`.
#[derive(Debug)]
#[repr(C)]
pub struct Xdp {
    data: u32,
    data_end: u32,
    data_meta: u32,
    /// The device that the packet came in by.
    pub ingress_ifindex: u32,
    /// The queue of the device.
    pub rx_queue_index: u32,
    /// The device that it goes out by.
    pub egress_ifindex: u32,
}

// SAFETY: the kernel's layout, with addresses in fields that are loaded whole.
unsafe impl Context for Xdp {}

impl Xdp {
    /// The packet.
    #[inline(always)]
    pub fn packet(&self) -> ContextBytes<'_> {
        let (start, end) = (self.data as usize, self.data_end as usize);
        ContextBytes::new(core::ptr::with_exposed_provenance(start), core::ptr::with_exposed_provenance(end))
    }

    /// The packet, to be written to.
    #[inline(always)]
    pub fn packet_mut(&mut self) -> ContextBytesMut<'_> {
        let (start, end) = (self.data as usize, self.data_end as usize);
        ContextBytesMut::new(core::ptr::with_exposed_provenance_mut(start), core::ptr::with_exposed_provenance_mut(end))
    }
}

/// What becomes of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum XdpAction {
    /// The program has failed; the packet is dropped and the failure counted.
    Aborted = 0,
    /// It is dropped.
    Drop = 1,
    /// It goes on its way.
    Pass = 2,
    /// It goes out where it came in.
    Tx = 3,
    /// It goes where a redirect helper has said.
    Redirect = 4,
}

impl ProgramResult for XdpAction {
    #[inline(always)]
    fn into_r0(self) -> u64 {
        self as u64
    }
}
