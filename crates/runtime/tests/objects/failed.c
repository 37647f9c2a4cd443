// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Programs that a host function ends, called from different places.
 * mcpu: v3 (rebuild with `cargo xtask objects`)
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

extern __u64 check(__u64 which) __ksym;

int direct(struct xdp_md *ctx);

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(__u32));
	__array(values, int (struct xdp_md *));
} next SEC(".maps") = { .values = { [0] = &direct } };

SEC("xdp")
int direct(__attribute__((unused)) struct xdp_md *ctx)
{
	__u64 sum = check(0) + check(2);

	sum += check(1); // direct: calls
	return sum + check(3);
}

static __attribute__((noinline)) __u64 deep(__u64 which)
{
	__u64 before = check(5);

	return before + check(which); // deep: calls
}

static __attribute__((noinline)) __u64 shallow(__u64 which)
{
	return deep(which) + check(6) + deep(which + 7);
}

SEC("xdp")
int by_subprograms(__attribute__((unused)) struct xdp_md *ctx)
{
	__u64 before = check(4);

	return before + shallow(1);
}

SEC("xdp")
int by_tail_call(struct xdp_md *ctx)
{
	check(2);
	bpf_tail_call(ctx, &next, 0);
	return 0;
}

static long each(__u32 index, __u64 *sum)
{
	*sum += check(index); // each: calls
	return 0;
}

SEC("xdp")
int by_callback(__attribute__((unused)) struct xdp_md *ctx)
{
	__u64 sum = 0;

	bpf_loop(5, each, &sum, 0);
	return sum;
}

char _license[] SEC("license") = "GPL";
