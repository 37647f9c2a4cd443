//! Enumerations of the interface: names and values that programs may query (`bpf_core_enum_value`).
//!
//! Ids of helpers and types of maps have their own tables ([`crate::Helper`], [`crate::MapType`]).
//!
//! Source: `include/uapi/linux/bpf.h`.

/// An enumeration: its name in C, and its enumerators.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Enumeration {
    /// Its name.
    pub name: &'static str,
    /// Names and values.
    pub values: &'static [(&'static str, i64)],
}

/// The enumerations of return values of programs and of arguments of helpers.
pub const ENUMERATIONS: &[Enumeration] = &[
    Enumeration {
        name: "xdp_action",
        values: &[("XDP_ABORTED", 0), ("XDP_DROP", 1), ("XDP_PASS", 2), ("XDP_TX", 3), ("XDP_REDIRECT", 4)],
    },
    Enumeration { name: "sk_action", values: &[("SK_DROP", 0), ("SK_PASS", 1)] },
    Enumeration {
        name: "bpf_ret_code",
        values: &[
            ("BPF_OK", 0),
            ("BPF_DROP", 2),
            ("BPF_REDIRECT", 7),
            ("BPF_LWT_REROUTE", 128),
            ("BPF_FLOW_DISSECTOR_CONTINUE", 129),
        ],
    },
    Enumeration { name: "bpf_adj_room_mode", values: &[("BPF_ADJ_ROOM_NET", 0), ("BPF_ADJ_ROOM_MAC", 1)] },
    Enumeration { name: "bpf_hdr_start_off", values: &[("BPF_HDR_START_MAC", 0), ("BPF_HDR_START_NET", 1)] },
    Enumeration { name: "bpf_check_mtu_flags", values: &[("BPF_MTU_CHK_SEGS", 1)] },
    Enumeration {
        name: "bpf_check_mtu_ret",
        values: &[
            ("BPF_MTU_CHK_RET_SUCCESS", 0),
            ("BPF_MTU_CHK_RET_FRAG_NEEDED", 1),
            ("BPF_MTU_CHK_RET_SEGS_TOOBIG", 2),
        ],
    },
];
