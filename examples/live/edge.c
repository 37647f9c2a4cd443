// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * For the live example: answers UDP to port 7 itself (echo, by XDP_TX), sends UDP to port 8 to the interface in its map,
 * drops UDP to port 9, and passes everything else. The kernel loads this object unchanged.
 * mcpu: v3 (rebuild with `cargo xtask objects`)
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} outs SEC(".maps");

SEC("xdp")
int edge(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data;
	void *data_end = (void *)(long)ctx->data_end;
	struct ethhdr *eth = data;
	struct iphdr *ip = (void *)(eth + 1);
	struct udphdr *udp = (void *)(ip + 1);
	__u8 mac[ETH_ALEN];
	__be32 address;
	__be16 port;

	if ((void *)(udp + 1) > data_end)
		return XDP_PASS;
	if (eth->h_proto != bpf_htons(ETH_P_IP) || ip->ihl != 5 || ip->protocol != IPPROTO_UDP)
		return XDP_PASS;
	if (ip->frag_off & bpf_htons(0x3fff))
		return XDP_PASS;
	switch (bpf_ntohs(udp->dest)) {
	case 7:
		/* Both checksums are sums: exchanging their parts leaves them as they are. */
		__builtin_memcpy(mac, eth->h_dest, ETH_ALEN);
		__builtin_memcpy(eth->h_dest, eth->h_source, ETH_ALEN);
		__builtin_memcpy(eth->h_source, mac, ETH_ALEN);
		address = ip->daddr;
		ip->daddr = ip->saddr;
		ip->saddr = address;
		port = udp->dest;
		udp->dest = udp->source;
		udp->source = port;
		return XDP_TX;
	case 8:
		return bpf_redirect_map(&outs, 0, XDP_ABORTED);
	case 9:
		return XDP_DROP;
	}
	return XDP_PASS;
}

char LICENSE[] SEC("license") = "MIT OR Apache-2.0";
