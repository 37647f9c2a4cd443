/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A small stateless packet filter, shared by filter.c (raw bytes) and xdp_filter.c (XDP).
 *
 * The filter parses Ethernet, up to two VLAN tags, IPv4 or IPv6, and the ports of TCP and UDP, drops malformed packets,
 * later fragments, and packets to a blocked port, and counts verdicts by protocol. Every access is
 * preceded by a comparison with data_end in the form the kernel's verifier understands, so the same code runs
 * under the kernel, under our verifier, and on the checking interpreter.
 */
#ifndef FILTER_H
#define FILTER_H

#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

/* Verdicts, with XDP's numbers, so that both programs return the same. */
enum verdict {
	DROP = XDP_DROP,
	PASS = XDP_PASS,
};

enum {
	ETH_HLEN = 14,
	ETH_P_IPV4 = 0x0800,
	ETH_P_IPV6 = 0x86dd,
	ETH_P_VLAN = 0x8100,
	ETH_P_QINQ = 0x88a8,
	MAX_VLAN_TAGS = 2,
	IPPROTO_TCP = 6,
	IPPROTO_UDP = 17,
	IP_OFFSET_MASK = 0x1fff,
	MALFORMED = 0xffffffff,
	MAX_BLOCKED = 4,
};

struct vlan_tag {
	__be16 tci;
	__be16 next;
};

struct ipv4 {
	__u8 version_ihl;
	__u8 tos;
	__be16 total_len;
	__be16 id;
	__be16 frag_off;
	__u8 ttl;
	__u8 protocol;
	__be16 check;
	__be32 source;
	__be32 dest;
};

struct ipv6 {
	__be32 version_class_flow;
	__be16 payload_len;
	__u8 next_header;
	__u8 hop_limit;
	__u8 source[16];
	__u8 dest[16];
};

struct ports {
	__be16 source;
	__be16 dest;
};

/* Counts of the filter for one protocol. */
struct counters {
	__u64 passed;
	__u64 dropped;
	__u64 bytes;
};

/* Key: the IP protocol, or the EtherType of other packets (always >= 0x600), or MALFORMED. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 64);
	__type(key, __u32);
	__type(value, struct counters);
} verdicts SEC(".maps");

/* Destination ports to drop, host byte order, 0 = unused. The loader may set them before it loads the program. */
const volatile __u16 blocked_ports[MAX_BLOCKED] = { 23, 445, 0, 0 };

static __always_inline int port_is_blocked(__u16 port)
{
	for (int i = 0; i < MAX_BLOCKED; i++) {
		__u16 blocked = blocked_ports[i];

		if (blocked && blocked == port)
			return 1;
	}
	return 0;
}

/* The verdict over data .. data_end; *protocol becomes the counters' key. */
static __always_inline enum verdict judge(const __u8 *data, const __u8 *data_end, __u32 *protocol)
{
	const __u8 *p = data + ETH_HLEN;
	const struct ports *ports;
	__u16 type;
	__u8 l4;

	*protocol = MALFORMED;
	if (p > data_end)
		return DROP;
	type = bpf_ntohs(*(const __be16 *)(data + 12));

	for (int i = 0; i < MAX_VLAN_TAGS; i++) {
		const struct vlan_tag *tag = (const void *)p;

		if (type != ETH_P_VLAN && type != ETH_P_QINQ)
			break;
		if ((const __u8 *)(tag + 1) > data_end)
			return DROP;
		type = bpf_ntohs(tag->next);
		p += sizeof(*tag);
	}

	if (type == ETH_P_IPV4) {
		const struct ipv4 *ip = (const void *)p;
		__u32 header;

		if ((const __u8 *)(ip + 1) > data_end || ip->version_ihl >> 4 != 4)
			return DROP;
		header = (ip->version_ihl & 0xf) * 4;
		if (header < sizeof(*ip))
			return DROP;
		*protocol = l4 = ip->protocol;
		if (ip->frag_off & bpf_htons(IP_OFFSET_MASK))
			return DROP;
		p += header;
	} else if (type == ETH_P_IPV6) {
		const struct ipv6 *ip = (const void *)p;

		if ((const __u8 *)(ip + 1) > data_end || (*p >> 4) != 6)
			return DROP;
		*protocol = l4 = ip->next_header;
		p += sizeof(*ip);
	} else {
		*protocol = type;
		return PASS;
	}

	if (l4 != IPPROTO_TCP && l4 != IPPROTO_UDP)
		return PASS;
	ports = (const void *)p;
	if ((const __u8 *)(ports + 1) > data_end)
		return DROP;
	return port_is_blocked(bpf_ntohs(ports->dest)) ? DROP : PASS;
}

static __always_inline void count(__u32 protocol, enum verdict verdict, __u64 bytes)
{
	struct counters *seen = bpf_map_lookup_elem(&verdicts, &protocol);

	if (!seen) {
		struct counters zero = {};

		/* Two first packets may race: the second update finds the element there. */
		bpf_map_update_elem(&verdicts, &protocol, &zero, BPF_NOEXIST);
		seen = bpf_map_lookup_elem(&verdicts, &protocol);
		if (!seen)
			return;
	}
	__sync_fetch_and_add(verdict == PASS ? &seen->passed : &seen->dropped, 1);
	__sync_fetch_and_add(&seen->bytes, bytes);
}

#endif
