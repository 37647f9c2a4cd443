//! The base of the offsets of LD_ABS and LD_IND.
//!
//! In classic filters the offset itself selects the base: offsets from `SKF_LL_OFF` on are relative to the link
//! header, those from `SKF_NET_OFF` on to the network header, and non-negative ones to the first byte of the packet.
//! Classic filters also have ancillary data at `SKF_AD_OFF`. A BPF program has none, and these offsets are relative
//! to the network header like those around them.
//!
//! Source: `include/uapi/linux/filter.h`, and `bpf_skb_load_helper_convert_offset` in `net/core/filter.c` (Linux 6.18).

/// The lowest offset relative to the network header.
pub const SKF_NET_OFF: i32 = -0x10_0000;

/// The lowest offset relative to the link header.
pub const SKF_LL_OFF: i32 = -0x20_0000;

/// The position of a header that a packet does not have: after the end of every packet.
pub const NO_HEADER: i32 = i32::MAX;

/// The base of the offset of a legacy packet load.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LegacyBase {
    /// The packet's first byte.
    Packet,
    /// The link header.
    Link,
    /// The network header.
    Network,
}

impl LegacyBase {
    /// Splits the offset of a legacy packet load into its base and the offset from the base; `None` below
    /// `SKF_LL_OFF`, where every load is out of range.
    pub fn split(offset: u32) -> Option<(LegacyBase, u32)> {
        let from = |first: i32| offset.wrapping_sub(first.cast_unsigned());
        match offset.cast_signed() {
            0.. => Some((LegacyBase::Packet, offset)),
            SKF_NET_OFF..0 => Some((LegacyBase::Network, from(SKF_NET_OFF))),
            SKF_LL_OFF..SKF_NET_OFF => Some((LegacyBase::Link, from(SKF_LL_OFF))),
            ..SKF_LL_OFF => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_base_ends_where_the_next_begins() {
        let split = |offset: i32| LegacyBase::split(offset.cast_unsigned());
        assert_eq!(split(i32::MAX), Some((LegacyBase::Packet, i32::MAX as u32)));
        assert_eq!(split(0), Some((LegacyBase::Packet, 0)));
        assert_eq!(split(-1), Some((LegacyBase::Network, 0xf_ffff)));
        assert_eq!(split(SKF_NET_OFF), Some((LegacyBase::Network, 0)));
        assert_eq!(split(SKF_NET_OFF - 1), Some((LegacyBase::Link, 0xf_ffff)));
        assert_eq!(split(SKF_LL_OFF), Some((LegacyBase::Link, 0)));
        assert_eq!(split(SKF_LL_OFF - 1), None);
        assert_eq!(split(i32::MIN), None);
    }
}
