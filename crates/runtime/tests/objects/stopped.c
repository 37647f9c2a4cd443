// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Programs that jump to each other and are stopped at different places.
 * mcpu: v3 (rebuild with `cargo xtask objects`)
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

int last(struct xdp_md *ctx), spins(struct xdp_md *ctx), middle(struct xdp_md *ctx), from_subprogram(struct xdp_md *ctx);

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 4);
	__uint(key_size, sizeof(__u32));
	__array(values, int (struct xdp_md *));
} inner SEC(".maps") = { .values = { [0] = &last, [1] = &spins } };

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 8);
	__uint(key_size, sizeof(__u32));
	__array(values, int (struct xdp_md *));
} outer SEC(".maps") = { .values = { [0] = &last, [1] = &spins, [2] = &middle, [3] = &from_subprogram } };

// Jumps where the packet's first byte says.
SEC("xdp")
int first(struct xdp_md *ctx)
{
	unsigned char *data = (void *)(long)ctx->data;

	bpf_tail_call(ctx, &outer, data[0]); // first: reads
	return 100;
}

// And where its second byte says.
SEC("xdp")
int middle(struct xdp_md *ctx)
{
	unsigned char *data = (void *)(long)ctx->data;

	if (data[1] == 0) // middle: reads
		bpf_tail_call(ctx, &inner, 0);
	bpf_tail_call(ctx, &inner, data[1]);
	return 200;
}

static __attribute__((noinline)) int jump(struct xdp_md *ctx)
{
	int result = 300;

	bpf_tail_call(ctx, &inner, 0);
	asm volatile("" : "+r"(result)); // Not a constant: it may be another program's.
	return result;
}

SEC("xdp")
int from_subprogram(struct xdp_md *ctx)
{
	int before = jump(ctx);
	unsigned char *data = (void *)(long)ctx->data;

	return before + data[3]; // from_subprogram: reads
}

SEC("xdp")
int last(struct xdp_md *ctx)
{
	unsigned char *data = (void *)(long)ctx->data;

	return data[2]; // last: reads
}

SEC("xdp")
int spins(struct xdp_md *ctx)
{
	volatile int go = ctx != 0;

	while (go) // spins: loops
		;
	return 0;
}

char _license[] SEC("license") = "GPL";
