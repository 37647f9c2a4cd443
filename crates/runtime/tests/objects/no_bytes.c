// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Lengths of 0, with pointers that lead to no byte: null, behind a value, before it, to read-only memory. Each
 * returns 7.
 * mcpu: v3 (rebuild with `cargo xtask objects`)
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

extern void *copy(void *to, const void *from, __u64 bytes) __asm__("memcpy");
extern void *fill(void *to, int byte, __u64 bytes) __asm__("memset");
extern int compare(const void *a, const void *b, __u64 bytes) __asm__("memcmp");

#define PROGRAM SEC("xdp") __attribute__((no_builtin))

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} none SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} one SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} ring SEC(".maps");

static const volatile char constant[8] = "constant";

PROGRAM
int at_null(struct xdp_md *ctx __attribute__((unused)))
{
	__u32 key = 0;
	void *at = bpf_map_lookup_elem(&none, &key);

	fill(at, 1, 0);
	copy(at, at, 0);
	return 7 + compare(at, at, 0);
}

PROGRAM
int behind_a_value(struct xdp_md *ctx __attribute__((unused)))
{
	__u32 key = 0;
	void *at = bpf_map_lookup_elem(&one, &key);

	if (!at)
		return 1;
	fill(at + 5000, 1, 0);
	copy(at - 5000, at + 5000, 0);
	return 7;
}

PROGRAM
int behind_the_packet(struct xdp_md *ctx)
{
	fill((void *)(long)ctx->data + 30000, 1, 0);
	return 7;
}

PROGRAM
int over_constants(struct xdp_md *ctx __attribute__((unused)))
{
	fill((void *)constant, 1, 0);
	return 7;
}

/* Helpers of the kernel's, too. */
PROGRAM
int of_a_helper(struct xdp_md *ctx __attribute__((unused)))
{
	__u32 key = 0;
	void *at = bpf_map_lookup_elem(&none, &key);

	return 7 + bpf_ringbuf_output(&ring, at, 0, 0);
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
