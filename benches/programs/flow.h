/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A flow dissector over tail calls: one small parser a protocol, a prog array that is indexed by protocol, and the state
 * of the dissection in front of the packet. The one source that all tail-call benches use.
 *
 * The dissector is built for two contexts. Raw (flow.c): r1 points to `struct flow`, the packet follows. XDP (flow_xdp.c), so
 * that the kernel runs it as a peer: `struct flow` is the packet's metadata area. FLOW_PARSER hides the difference;
 * the parsers themselves are the same lines.
 */
#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

enum parser {
	PARSE_VLAN,
	PARSE_MPLS,
	PARSE_IPV4,
	PARSE_IPV6,
	PARSE_GRE,
	PARSE_TCP,
	PARSE_UDP,
	PARSERS,
};

enum {
	ETH_P_IPV4 = 0x0800,
	ETH_P_VLAN = 0x8100,
	ETH_P_IPV6 = 0x86dd,
	ETH_P_MPLS = 0x8847,
	ETH_P_QINQ = 0x88a8,
	IPPROTO_IPIP = 4,
	IPPROTO_TCP = 6,
	IPPROTO_UDP = 17,
	IPPROTO_IPV6 = 41,
	IPPROTO_GRE = 47,
	GRE_CHECKSUM = 0x8000,
	GRE_KEY = 0x2000,
	GRE_SEQUENCE = 0x1000,
	MAX_PACKET = 256,
};

/* Parts of the packet that are known so far. Programs initialise it; only `length` is an input, and only in the raw form. */
struct flow {
	__u32 length;
	__u32 offset;
	__u32 source;
	__u32 dest;
	__u32 ports;
	__u32 hash;
};

#ifdef FLOW_XDP
#define CONTEXT struct xdp_md
#define FLOW_SECTION(name) SEC("xdp")
#define PACKET(ctx) ((const __u8 *)(long)(ctx)->data)
#define PACKET_END(ctx) ((const __u8 *)(long)(ctx)->data_end)
#define FLOW(ctx)                                                          \
	({                                                                 \
		struct flow *flow = (void *)(long)(ctx)->data_meta;        \
		if ((const __u8 *)(flow + 1) > PACKET(ctx))                \
			return 0;                                          \
		flow;                                                      \
	})
#else
#define CONTEXT void
#define FLOW_SECTION(name) SEC("raw/flow/" #name)
#define PACKET(ctx) ((const __u8 *)((struct flow *)(ctx) + 1))
#define PACKET_END(ctx) (PACKET(ctx) + ((struct flow *)(ctx))->length)
#define FLOW(ctx) ((struct flow *)(ctx))
#endif

/* A parser: a program that sees its header at `p` of at least `size` bytes and the flow. */
#define FLOW_PARSER(name, size)                                                                           \
	static __always_inline int name##_body(CONTEXT *ctx, struct flow *flow, const __u8 *p);           \
	FLOW_SECTION(name) int flow_##name(CONTEXT *ctx)                                                  \
	{                                                                                                 \
		struct flow *flow = FLOW(ctx);                                                            \
		__u32 offset = flow->offset;                                                              \
		const __u8 *p;                                                                            \
                                                                                                          \
		if (offset > MAX_PACKET)                                                                  \
			return 0;                                                                         \
		p = PACKET(ctx) + offset;                                                                 \
		if (p + (size) > PACKET_END(ctx))                                                         \
			return 0;                                                                         \
		return name##_body(ctx, flow, p);                                                         \
	}                                                                                                 \
	static __always_inline int name##_body(CONTEXT *ctx, struct flow *flow, const __u8 *p)

int flow_vlan(CONTEXT *ctx);
int flow_mpls(CONTEXT *ctx);
int flow_ipv4(CONTEXT *ctx);
int flow_ipv6(CONTEXT *ctx);
int flow_gre(CONTEXT *ctx);
int flow_tcp(CONTEXT *ctx);
int flow_udp(CONTEXT *ctx);

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, PARSERS);
	__uint(key_size, sizeof(__u32));
	__array(values, int(CONTEXT *));
} parsers SEC(".maps") = {
	.values = {
		[PARSE_VLAN] = (void *)&flow_vlan,
		[PARSE_MPLS] = (void *)&flow_mpls,
		[PARSE_IPV4] = (void *)&flow_ipv4,
		[PARSE_IPV6] = (void *)&flow_ipv6,
		[PARSE_GRE] = (void *)&flow_gre,
		[PARSE_TCP] = (void *)&flow_tcp,
		[PARSE_UDP] = (void *)&flow_udp,
	},
};

static __always_inline int finish(struct flow *flow, __u32 protocol)
{
	__u32 hash = flow->source * 31 + flow->dest;

	hash = hash * 31 + flow->ports;
	flow->hash = hash * 31 + protocol;
	return flow->hash;
}

static __always_inline int by_ethertype(CONTEXT *ctx, struct flow *flow, __u16 type)
{
	switch (type) {
	case ETH_P_IPV4:
		bpf_tail_call_static(ctx, &parsers, PARSE_IPV4);
		break;
	case ETH_P_IPV6:
		bpf_tail_call_static(ctx, &parsers, PARSE_IPV6);
		break;
	case ETH_P_VLAN:
	case ETH_P_QINQ:
		bpf_tail_call_static(ctx, &parsers, PARSE_VLAN);
		break;
	case ETH_P_MPLS:
		bpf_tail_call_static(ctx, &parsers, PARSE_MPLS);
		break;
	}
	return finish(flow, type);
}

static __always_inline int by_protocol(CONTEXT *ctx, struct flow *flow, __u8 protocol)
{
	switch (protocol) {
	case IPPROTO_TCP:
		bpf_tail_call_static(ctx, &parsers, PARSE_TCP);
		break;
	case IPPROTO_UDP:
		bpf_tail_call_static(ctx, &parsers, PARSE_UDP);
		break;
	case IPPROTO_IPIP:
		bpf_tail_call_static(ctx, &parsers, PARSE_IPV4);
		break;
	case IPPROTO_IPV6:
		bpf_tail_call_static(ctx, &parsers, PARSE_IPV6);
		break;
	case IPPROTO_GRE:
		bpf_tail_call_static(ctx, &parsers, PARSE_GRE);
		break;
	}
	return finish(flow, protocol);
}

/* The entry: Ethernet. */
FLOW_SECTION(dissect) int flow_dissect(CONTEXT *ctx)
{
	struct flow *flow = FLOW(ctx);
	const __u8 *p = PACKET(ctx);

	if (p + 14 > PACKET_END(ctx))
		return 0;
	flow->offset = 14;
	flow->source = flow->dest = flow->ports = flow->hash = 0;
	return by_ethertype(ctx, flow, bpf_ntohs(*(const __u16 *)(p + 12)));
}

FLOW_PARSER(vlan, 4)
{
	flow->offset += 4;
	return by_ethertype(ctx, flow, bpf_ntohs(*(const __u16 *)(p + 2)));
}

FLOW_PARSER(mpls, 5)
{
	flow->offset += 4;
	if (!(p[2] & 1)) /* not the bottom of the stack */
		bpf_tail_call_static(ctx, &parsers, PARSE_MPLS);
	else if (p[4] >> 4 == 4)
		bpf_tail_call_static(ctx, &parsers, PARSE_IPV4);
	else if (p[4] >> 4 == 6)
		bpf_tail_call_static(ctx, &parsers, PARSE_IPV6);
	return finish(flow, ETH_P_MPLS);
}

FLOW_PARSER(ipv4, 20)
{
	__u32 header = (p[0] & 15) * 4;

	if (header < 20)
		return 0;
	flow->offset += header;
	flow->source = *(const __u32 *)(p + 12);
	flow->dest = *(const __u32 *)(p + 16);
	return by_protocol(ctx, flow, p[9]);
}

FLOW_PARSER(ipv6, 40)
{
	const __u32 *words = (const __u32 *)p;

	flow->offset += 40;
	flow->source = words[2] ^ words[3] ^ words[4] ^ words[5];
	flow->dest = words[6] ^ words[7] ^ words[8] ^ words[9];
	return by_protocol(ctx, flow, p[6]);
}

FLOW_PARSER(gre, 4)
{
	__u16 flags = bpf_ntohs(*(const __u16 *)p);

	flow->offset += 4;
	if (flags & GRE_CHECKSUM)
		flow->offset += 4;
	if (flags & GRE_KEY)
		flow->offset += 4;
	if (flags & GRE_SEQUENCE)
		flow->offset += 4;
	return by_ethertype(ctx, flow, bpf_ntohs(*(const __u16 *)(p + 2)));
}

FLOW_PARSER(tcp, 20)
{
	(void)ctx;
	flow->ports = *(const __u32 *)p;
	return finish(flow, IPPROTO_TCP);
}

FLOW_PARSER(udp, 8)
{
	(void)ctx;
	flow->ports = *(const __u32 *)p;
	return finish(flow, IPPROTO_UDP);
}

char LICENSE[] SEC("license") = "MIT OR Apache-2.0";
