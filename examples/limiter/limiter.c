// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Rate limits by client, and networks that have none.
 * mcpu: v3 (rebuild with `cargo xtask objects`)
 *
 * A client's state is one number, the time at which its requests so far will be paid for (the generic cell rate
 * algorithm): so one compare-and-swap keeps the limit exact while any number of threads serve the same client.
 */
#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>
#include "limiter.h"

enum verdict { ALLOW, REFUSE };

/* Nanoseconds that a request of cost 1 is paid with, and how far ahead of its payments a client may be. */
const volatile __u64 interval = 100000000;
const volatile __u64 ahead = 400000000;

struct network {
	__u32 bits;
	__u32 address; /* network order */
};

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1024);
	__type(key, struct network);
	__type(value, __u32);
} trusted SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 65536);
	__type(key, __u32);
	__type(value, __u64);
} paid SEC(".maps");

SEC("request/limit")
int limit(struct request *request)
{
	struct network client = { .bits = 32, .address = request->client };
	__u64 now = request->now, never = 0, *paid_until;

	if (bpf_map_lookup_elem(&trusted, &client))
		return ALLOW;
	paid_until = bpf_map_lookup_elem(&paid, &client.address);
	if (!paid_until) {
		bpf_map_update_elem(&paid, &client.address, &never, BPF_NOEXIST);
		paid_until = bpf_map_lookup_elem(&paid, &client.address);
		if (!paid_until)
			return REFUSE;
	}
	/* A request that loses this race eight times is one of many of the same client at the same time. */
	for (int attempt = 0; attempt < 8; attempt++) {
		__u64 was = *(volatile __u64 *)paid_until;
		__u64 from = was > now ? was : now;

		if (from - now > ahead)
			return REFUSE;
		if (__sync_val_compare_and_swap(paid_until, was, from + interval * request->cost) == was)
			return ALLOW;
	}
	return REFUSE;
}

char LICENSE[] SEC("license") = "MIT OR Apache-2.0";
