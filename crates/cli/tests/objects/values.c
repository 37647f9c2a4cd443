// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Maps that `bpf run` prints by their types; a packet that grows at its head; counters of which each CPU has its own.
 * mcpu: v3 (rebuild with `cargo xtask objects`)
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <stdbool.h>

enum protocol { ICMP = 1, TCP = 6, UDP = 17 };

struct address {
	union {
		__u32 v4;
		__u8 bytes[4];
	};
	__u16 port;
};

struct flow {
	struct address from;
	enum protocol protocol;
};

struct seen {
	char name[8];
	bool closed;
	__u8 urgent : 1, window : 4;
	__s16 drift;
	enum protocol last[2];
	const void *next;
	__u8 payload[20];
	__u64 packets;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4);
	__type(key, struct flow);
	__type(value, struct seen);
} flows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, __u64);
} counts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4);
	__uint(key_size, 4);
	__uint(value_size, 3);
} untyped SEC(".maps");

struct pair {
	int first, second;
};

struct pair pair;
char greeting[8] = "hello";

SEC("xdp")
int look(struct xdp_md *ctx __attribute__((unused)))
{
	struct flow flow = {};
	struct seen seen = {};
	__u32 one = 1;
	char bytes[3] = { 1, 2, 3 };

	flow.from.v4 = 0x0100007f;
	flow.from.port = 53;
	flow.protocol = UDP;
	__builtin_memcpy(seen.name, "eth0", 4);
	seen.closed = true;
	seen.urgent = 1;
	seen.window = 9;
	seen.drift = -2;
	seen.last[0] = TCP;
	seen.last[1] = (enum protocol)99;
	seen.payload[19] = 0xff;
	seen.packets = 1ULL << 63;
	bpf_map_update_elem(&flows, &flow, &seen, BPF_ANY);
	bpf_map_update_elem(&untyped, &one, bytes, BPF_ANY);
	pair.first = -1;
	pair.second = greeting[0];
	return XDP_PASS;
}

SEC("xdp")
int push(struct xdp_md *ctx)
{
	if (bpf_xdp_adjust_head(ctx, -4))
		return XDP_ABORTED;
	__u8 *data = (void *)(long)ctx->data;
	if (data + 4 > (__u8 *)(long)ctx->data_end)
		return XDP_DROP;
	data[0] = 0xaa;
	data[1] = 0xbb;
	data[2] = 0xcc;
	data[3] = 0xdd;
	return XDP_TX;
}

SEC("xdp")
int count(struct xdp_md *ctx __attribute__((unused)))
{
	__u32 one = 1;
	__u64 *mine = bpf_map_lookup_elem(&counts, &one);

	return mine ? ++*mine : 0;
}

char LICENSE[] SEC("license") = "MIT OR Apache-2.0";
