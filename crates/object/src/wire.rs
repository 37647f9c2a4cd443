//! The types whose layout no kernel may change: packet headers, and the kernel's interface to programs.
//!
//! Problem: a program compiled against `vmlinux.h` asks by CO-RE for the place of an IP header's field, as for the
//! kernel's own structures. Kernel structures do not exist here, but a header has one layout everywhere. Approach:
//! these types, by name, are their own targets: the numbers that the compiler has written for the object's types are
//! correct. Any other type that no context has does not exist here, and queries for it return that.
//!
//! Source: `include/uapi/linux/{if_ether,ip,ipv6,in,in6,tcp,udp,icmp,icmpv6,igmp,if_arp,if_vlan,sctp,dccp,bpf}.h`,
//! `include/linux/if_vlan.h`, `include/net/{gre,vxlan,geneve,gtp}.h`.

const FIXED: &[&str] = &[
    "arphdr",
    "bpf_dynptr",
    "bpf_fib_lookup",
    "bpf_flow_keys",
    "bpf_iter_num",
    "bpf_list_head",
    "bpf_list_node",
    "bpf_rb_node",
    "bpf_rb_root",
    "bpf_redir_neigh",
    "bpf_refcount",
    "bpf_res_spin_lock",
    "bpf_sock",
    "bpf_sock_tuple",
    "bpf_spin_lock",
    "bpf_tcp_sock",
    "bpf_timer",
    "bpf_tunnel_key",
    "ethhdr",
    "frag_hdr",
    "genevehdr",
    "gre_base_hdr",
    "gre_full_hdr",
    "icmp6hdr",
    "icmphdr",
    "icmpv6_echo",
    "igmphdr",
    "in6_addr",
    "in_addr",
    "ip_auth_hdr",
    "ip_comp_hdr",
    "ip_esp_hdr",
    "iphdr",
    "ipv6_destopt_hao",
    "ipv6_opt_hdr",
    "ipv6_rt_hdr",
    "ipv6_sr_hdr",
    "ipv6hdr",
    "mpls_label",
    "nd_msg",
    "nd_opt_hdr",
    "sctphdr",
    "tcphdr",
    "udphdr",
    "vlan_ethhdr",
    "vlan_hdr",
    "vxlanhdr",
];

/// Whether the type with this name has one layout everywhere.
pub(crate) fn is_fixed(name: &str) -> bool {
    FIXED.binary_search(&name).is_ok()
}

#[cfg(test)]
mod tests {
    use super::{FIXED, is_fixed};

    #[test]
    fn names_are_sorted() {
        assert!(FIXED.is_sorted());
        assert!(is_fixed("iphdr") && is_fixed("arphdr") && is_fixed("vxlanhdr"));
        assert!(!is_fixed("task_struct") && !is_fixed("sk_buff") && !is_fixed("sock"));
    }
}
