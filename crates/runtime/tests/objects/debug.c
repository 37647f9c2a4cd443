// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Programs to be looked at while they run: frames of several shapes above a host function, and one that only burns time.
 * mcpu: v4 (rebuild with `cargo xtask objects`)
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#define UNUSED __attribute__((unused))
#define NOINLINE __attribute__((noinline))

static __u64 (*probe)(__u64) = (void *)1001;

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} stages SEC(".maps");

/* No stack, one register saved. */
static NOINLINE __u64 leaf(__u64 a)
{
	__u64 seen = probe(a); /* line: leaf */

	return seen + a;
}

/* A stack, and registers saved. */
static NOINLINE __u64 middle(__u64 a, __u64 b)
{
	volatile __u64 kept[16];
	__u64 sum = 0;

	for (int i = 0; i < 16; i++)
		kept[i] = a ^ b;
	sum += leaf(a) * b; /* line: middle */
	sum += leaf(b) * a;
	return sum + kept[3];
}

SEC("raw/outer")
__u64 outer(UNUSED void *data, __u64 len)
{
	__u64 first = middle(len, len + 1); /* line: outer */

	return first + len;
}

/* Replaced by the program in `stages`, if there is one. */
static NOINLINE __u64 hop(void *ctx)
{
	volatile __u64 kept[4] = {1, 2, 3, 4};

	probe(kept[1]); /* line: hop */
	bpf_tail_call(ctx, &stages, 0);
	return kept[2];
}

SEC("raw/hops")
__u64 hops(void *ctx)
{
	__u64 after = hop(ctx); /* line: hops */

	return after + 100;
}

SEC("raw/landed")
__u64 landed(UNUSED void *ctx)
{
	__u64 inside = leaf(40); /* line: landed */

	return inside + 1;
}

/* Not for the verifier: takes as long as it is told. */
static NOINLINE __u64 spin(__u64 rounds)
{
	__u64 x = 1;

	for (__u64 i = 0; i < rounds; i++)
		x = x * 6364136223846793005ULL + (x >> 33); /* line: spin */
	return x;
}

SEC("raw/burn")
__u64 burn(void *data)
{
	return spin(*(__u64 *)data) | 1; /* line: burn */
}

char _license[] SEC("license") = "MIT";
