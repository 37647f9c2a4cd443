// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * CO-RE relocations of headers, as programs have them that are compiled against vmlinux.h, and of a structure of the
 * kernel's own.
 * mcpu: v3 (rebuild with `cargo xtask objects`)
 */
#include <linux/types.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct xdp_md {
	__u32 data;
	__u32 data_end;
};

struct ethhdr {
	unsigned char h_dest[6];
	unsigned char h_source[6];
	__be16 h_proto;
} __attribute__((packed));

struct iphdr {
	__u8 ihl : 4;
	__u8 version : 4;
	__u8 tos;
	__be16 tot_len;
	__be16 id;
	__be16 frag_off;
	__u8 ttl;
	__u8 protocol;
	__u16 check;
	union {
		struct {
			__be32 saddr;
			__be32 daddr;
		};
		struct {
			__be32 saddr;
			__be32 daddr;
		} addrs;
	};
};

struct net_device {
	int ifindex;
};

#pragma clang attribute pop

SEC("xdp")
int headers(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;
	struct ethhdr *eth = data;
	struct iphdr *ip = data + 14;

	if (data + 34 > end || eth->h_proto != bpf_core_field_size(eth->h_proto) * 4)
		return 0;
	return ip->version * 1000000 + ip->ihl * 100000 + ip->ttl * 1000 + (ip->addrs.daddr >> 24);
}

SEC("xdp")
int asks(struct xdp_md *ctx)
{
	(void)ctx;
	return bpf_core_type_exists(struct iphdr) + 2 * bpf_core_field_exists(struct iphdr, ttl) +
	       4 * bpf_core_type_exists(struct net_device) + 8 * (bpf_core_type_size(struct iphdr) == 20);
}

char _license[] SEC("license") = "Dual MIT/GPL";
