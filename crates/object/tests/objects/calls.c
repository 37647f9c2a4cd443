// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Subprograms: static and global ones in .text, a chain, callbacks, several programs in one section, and a
 * function only one of them reaches.
 * mcpu: v4 v2 (rebuild with `cargo xtask objects`)
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

static __attribute__((noinline)) __u64 leaf(__u64 x)
{
	asm volatile("" ::: "memory");
	return x * 3 + 1;
}

__attribute__((noinline)) __u64 middle(__u64 x, __u32 y)
{
	asm volatile("" ::: "memory");
	return leaf(x) + leaf(y);
}

__attribute__((noinline)) __u64 only_second(const __u64 *p)
{
	return p ? leaf(*p) : 0;
}

/* Never called: must not end up in any program. */
__attribute__((noinline)) __u64 unused(__u64 x)
{
	asm volatile("" ::: "memory");
	return x - 1;
}

static long add_index(__u32 index, void *ctx)
{
	*(__u64 *)ctx += leaf(index);
	return 0;
}

static long stop_at_3(__u32 index, void *ctx)
{
	*(__u64 *)ctx += 1;
	return index == 3;
}

SEC("socket")
int first(void *ctx)
{
	return middle((__u64)(long)ctx & 7, 2);
}

SEC("socket")
int second(void *ctx)
{
	__u64 acc = (__u64)(long)ctx & 1;

	return only_second(&acc) + middle(1, 1);
}

SEC("socket/loop")
int loop(void *ctx)
{
	__u64 acc = 0;

	(void)ctx;
	bpf_loop(10, add_index, &acc, 0);
	bpf_loop(10, stop_at_3, &acc, 0);
	return acc;
}

char LICENSE[] SEC("license") = "GPL";
