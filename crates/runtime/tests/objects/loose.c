// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Loose declarations that loaders correct: sizes of rings and perf event arrays, another loader's pinning, a map
 * of a type that no program here uses; and formats that ask for fewer values than bpf_trace_printk takes.
 * mcpu: v3 (rebuild with `cargo xtask objects`)
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 5000);
	__uint(pinning, 16);
} ring SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERF_EVENT_ARRAY);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(__u32));
} events SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_REUSEPORT_SOCKARRAY);
	__uint(max_entries, 4);
	__type(key, __u32);
	__type(value, __u64);
} sockets SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP);
	__uint(max_entries, 4);
	__type(key, __u32);
	__type(value, struct bpf_devmap_val);
} devices SEC(".maps");

SEC("xdp")
int forward(struct xdp_md *ctx)
{
	__u64 one = 1;

	bpf_ringbuf_output(&ring, &one, sizeof(one), 0);
	bpf_perf_event_output(ctx, &events, BPF_F_CURRENT_CPU, &one, sizeof(one));
	return bpf_redirect_map(&devices, ctx->rx_queue_index, XDP_PASS);
}

SEC("xdp")
int print(struct xdp_md *ctx)
{
	char text[] = "on the stack";

	bpf_printk("plain");
	bpf_printk("one %d%%", ctx->rx_queue_index);
	bpf_printk("two %d %x", 1, 255);
	bpf_trace_printk(text, sizeof(text));
	return XDP_PASS;
}

SEC("xdp")
int pick(struct xdp_md *ctx __attribute__((unused)))
{
	__u32 key = 0;

	return bpf_map_lookup_elem(&sockets, &key) ? XDP_PASS : XDP_DROP;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
