// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * A flow dissector: fills the packet's `struct bpf_flow_keys`, one small program a protocol, joined by tail calls.
 * The kernel loads this object unchanged.
 * mcpu: v3 (rebuild with `cargo xtask objects`)
 *
 * `thoff` is how far the packet is parsed; at the end it is where the transport header starts.
 */
#include <linux/bpf.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

enum {
	ETHERNET = 0x6558, /* transparent Ethernet bridging */
	IPV4 = 0x0800,
	IPV6 = 0x86dd,
	VLAN = 0x8100,
	QINQ = 0x88a8,
	MPLS = 0x8847,
	GRE_VERSION = 0x0007,
	GRE_CHECKSUM = 0x8000,
	GRE_KEY = 0x2000,
	GRE_SEQUENCE = 0x1000,
	MORE_FRAGMENTS = 0x2000,
	FRAGMENT_OFFSET = 0x1fff,
	MPLS_BOTTOM = 0x01, /* of the third byte */
	IPIP_PROTOCOL = 4,
	TCP_PROTOCOL = 6,
	UDP_PROTOCOL = 17,
	IPV6_PROTOCOL = 41,
	GRE_PROTOCOL = 47,
	MAX_OFFSET = 0x7fff,
};

enum parser { PARSE_IPV4, PARSE_IPV6, PARSE_VLAN, PARSE_MPLS, PARSE_GRE, PARSE_ETHERNET, PARSE_PORTS, PARSERS };

int flow_ipv4(struct __sk_buff *skb);
int flow_ipv6(struct __sk_buff *skb);
int flow_vlan(struct __sk_buff *skb);
int flow_mpls(struct __sk_buff *skb);
int flow_gre(struct __sk_buff *skb);
int flow_ethernet(struct __sk_buff *skb);
int flow_ports(struct __sk_buff *skb);

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, PARSERS);
	__uint(key_size, sizeof(__u32));
	__array(values, int(struct __sk_buff *));
} parsers SEC(".maps") = {
	.values = {
		[PARSE_IPV4] = (void *)&flow_ipv4,
		[PARSE_IPV6] = (void *)&flow_ipv6,
		[PARSE_VLAN] = (void *)&flow_vlan,
		[PARSE_MPLS] = (void *)&flow_mpls,
		[PARSE_GRE] = (void *)&flow_gre,
		[PARSE_ETHERNET] = (void *)&flow_ethernet,
		[PARSE_PORTS] = (void *)&flow_ports,
	},
};

/* Points `at` to the next `size` bytes of the packet; whether it has them. */
static __always_inline int header(struct __sk_buff *skb, const void **at, __u32 size)
{
	__u32 offset = skb->flow_keys->thoff;
	const __u8 *next;

	/* The kernel's verifier follows offsets up to 64 KiB, and wants to see that before they are used. */
	if (offset > MAX_OFFSET)
		return 0;
	barrier_var(offset);
	next = (const __u8 *)(long)skb->data + offset;
	*at = next;
	return next + size <= (const __u8 *)(long)skb->data_end;
}
#define HEADER(skb, at, size) header(skb, (const void **)&(at), size)

static __always_inline int by_ethertype(struct __sk_buff *skb, __be16 type)
{
	skb->flow_keys->n_proto = type;
	switch (bpf_ntohs(type)) {
	case IPV4:
		bpf_tail_call_static(skb, &parsers, PARSE_IPV4);
		break;
	case IPV6:
		bpf_tail_call_static(skb, &parsers, PARSE_IPV6);
		break;
	case VLAN:
	case QINQ:
		bpf_tail_call_static(skb, &parsers, PARSE_VLAN);
		break;
	case MPLS:
		bpf_tail_call_static(skb, &parsers, PARSE_MPLS);
		break;
	case ETHERNET:
		bpf_tail_call_static(skb, &parsers, PARSE_ETHERNET);
		break;
	}
	return BPF_DROP;
}

static __always_inline int by_protocol(struct __sk_buff *skb, __u8 protocol)
{
	struct bpf_flow_keys *keys = skb->flow_keys;

	keys->ip_proto = protocol;
	switch (protocol) {
	case TCP_PROTOCOL:
	case UDP_PROTOCOL:
		bpf_tail_call_static(skb, &parsers, PARSE_PORTS);
		break;
	case IPIP_PROTOCOL:
		keys->is_encap = 1;
		bpf_tail_call_static(skb, &parsers, PARSE_IPV4);
		break;
	case IPV6_PROTOCOL:
		keys->is_encap = 1;
		bpf_tail_call_static(skb, &parsers, PARSE_IPV6);
		break;
	case GRE_PROTOCOL:
		bpf_tail_call_static(skb, &parsers, PARSE_GRE);
		break;
	default:
		return BPF_OK;
	}
	return BPF_DROP;
}

SEC("flow_dissector")
int dissect(struct __sk_buff *skb)
{
	return by_ethertype(skb, skb->flow_keys->n_proto);
}

SEC("flow_dissector")
int flow_vlan(struct __sk_buff *skb)
{
	struct bpf_flow_keys *keys = skb->flow_keys;
	const __be16 *tag;

	if (!HEADER(skb, tag, 4))
		return BPF_DROP;
	keys->thoff += 4;
	keys->nhoff = keys->thoff;
	return by_ethertype(skb, tag[1]);
}

SEC("flow_dissector")
int flow_mpls(struct __sk_buff *skb)
{
	/* A label, and the first byte behind it, which alone tells the next protocol. */
	const __u8 *label;

	if (!HEADER(skb, label, 5))
		return BPF_DROP;
	skb->flow_keys->thoff += 4;
	if (!(label[2] & MPLS_BOTTOM))
		return by_ethertype(skb, bpf_htons(MPLS));
	return by_ethertype(skb, label[4] >> 4 == 6 ? bpf_htons(IPV6) : bpf_htons(IPV4));
}

SEC("flow_dissector")
int flow_ipv4(struct __sk_buff *skb)
{
	struct bpf_flow_keys *keys = skb->flow_keys;
	const struct iphdr *ip;

	if (!HEADER(skb, ip, sizeof(*ip)) || ip->ihl < 5)
		return BPF_DROP;
	keys->addr_proto = IPV4;
	keys->ipv4_src = ip->saddr;
	keys->ipv4_dst = ip->daddr;
	keys->thoff += ip->ihl << 2;
	if (ip->frag_off & bpf_htons(MORE_FRAGMENTS | FRAGMENT_OFFSET)) {
		keys->is_frag = 1;
		keys->ip_proto = ip->protocol;
		/* Later fragments have no transport header. */
		if (ip->frag_off & bpf_htons(FRAGMENT_OFFSET))
			return BPF_OK;
		keys->is_first_frag = 1;
	}
	return by_protocol(skb, ip->protocol);
}

SEC("flow_dissector")
int flow_ipv6(struct __sk_buff *skb)
{
	struct bpf_flow_keys *keys = skb->flow_keys;
	const struct ipv6hdr *ip;

	if (!HEADER(skb, ip, sizeof(*ip)))
		return BPF_DROP;
	keys->addr_proto = IPV6;
	__builtin_memcpy(keys->ipv6_src, &ip->saddr, sizeof(keys->ipv6_src));
	__builtin_memcpy(keys->ipv6_dst, &ip->daddr, sizeof(keys->ipv6_dst));
	keys->thoff += sizeof(*ip);
	return by_protocol(skb, ip->nexthdr);
}

SEC("flow_dissector")
int flow_gre(struct __sk_buff *skb)
{
	struct bpf_flow_keys *keys = skb->flow_keys;
	const __be16 *gre;

	if (!HEADER(skb, gre, 4) || gre[0] & bpf_htons(GRE_VERSION))
		return BPF_DROP;
	keys->is_encap = 1;
	keys->thoff += 4;
	if (gre[0] & bpf_htons(GRE_CHECKSUM))
		keys->thoff += 4;
	if (gre[0] & bpf_htons(GRE_KEY))
		keys->thoff += 4;
	if (gre[0] & bpf_htons(GRE_SEQUENCE))
		keys->thoff += 4;
	return by_ethertype(skb, gre[1]);
}

SEC("flow_dissector")
int flow_ethernet(struct __sk_buff *skb)
{
	const __be16 *ethernet;

	if (!HEADER(skb, ethernet, 14))
		return BPF_DROP;
	skb->flow_keys->thoff += 14;
	return by_ethertype(skb, ethernet[6]);
}

SEC("flow_dissector")
int flow_ports(struct __sk_buff *skb)
{
	struct bpf_flow_keys *keys = skb->flow_keys;
	const __be16 *ports;

	if (!HEADER(skb, ports, 8))
		return BPF_DROP;
	keys->sport = ports[0];
	keys->dport = ports[1];
	return BPF_OK;
}

char LICENSE[] SEC("license") = "MIT OR Apache-2.0";
