// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Every way to define a map in `.maps`: all fields, inner maps with and without a name, initial values of maps of
 * maps and of a prog array, a map nobody uses.
 * mcpu: v3 (rebuild with `cargo xtask objects`)
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#ifndef __ulong
#define __ulong(name, val) enum { ___bpf_concat(__unique_value, __COUNTER__) = val } name
#endif

struct flow {
	__u32 src, dst;
	__u16 sport, dport;
};

struct counters {
	__u64 packets, bytes;
};

typedef struct counters counters_t;

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct flow);
	__type(value, counters_t);
} flows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 7);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(struct counters));
	__uint(numa_node, 0);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} totals SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_BLOOM_FILTER);
	__uint(max_entries, 100);
	__uint(map_extra, 3);
	__type(value, __u64[2]);
} seen SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 16);
} events SEC(".maps");

struct inner {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 4);
	__type(key, __u32);
	__type(value, __u64);
} first SEC(".maps"), second SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 5);
	__type(key, __u32);
	__array(values, struct inner);
} outer SEC(".maps") = {
	.values = { [1] = &first, [3] = &second, [4] = &first },
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH_OF_MAPS);
	__uint(max_entries, 2);
	__type(key, __u64);
	__array(values, struct {
		__uint(type, BPF_MAP_TYPE_HASH);
		__uint(max_entries, 9);
		__type(key, __u16);
		__type(value, __u8[3]);
	});
} anonymous SEC(".maps");

int stage_a(struct xdp_md *ctx);
int stage_b(struct xdp_md *ctx);

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 8);
	__uint(key_size, sizeof(__u32));
	__array(values, int (struct xdp_md *));
} stages SEC(".maps") = {
	.values = { [0] = &stage_a, [6] = &stage_b },
};

SEC("xdp")
int stage_a(struct xdp_md *ctx)
{
	__u32 key = 2;
	struct counters *total = bpf_map_lookup_elem(&totals, &key);

	if (total)
		total->packets++;
	bpf_tail_call(ctx, &stages, 6);
	return XDP_ABORTED;
}

SEC("xdp")
int stage_b(struct xdp_md *ctx)
{
	struct flow flow = { .src = 1, .dst = 2, .sport = 3, .dport = 4 };
	__u32 slot = ctx->rx_queue_index;
	void *inner = bpf_map_lookup_elem(&outer, &slot);

	if (inner && bpf_map_lookup_elem(inner, &slot))
		return XDP_DROP;
	return bpf_map_lookup_elem(&flows, &flow) ? XDP_PASS : XDP_TX;
}

SEC("xdp/devmap")
int lookup_direct(struct xdp_md *ctx)
{
	__u32 slot = 1;
	__u64 *value = bpf_map_lookup_elem(&second, &slot);

	(void)ctx;
	return value ? *value : XDP_PASS;
}

char LICENSE[] SEC("license") = "MIT OR Apache-2.0";
