// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * A tenant's part: messages beyond the tenant's limit are dropped, the others go to a queue by their kind.
 * mcpu: v3 (rebuild with `cargo xtask objects`)
 */
#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>
#include "message.h"

enum verdict { DELIVERED, DROPPED };

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} after SEC(".maps");

/* The tenant's own: each instance has another. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 256);
	__type(key, __u32);
	__type(value, __u64);
} kinds SEC(".maps");

/* Bytes of the largest message. Each instance may have another value; the program is verified for all of them. */
const volatile __u32 largest SEC(".rodata.tenant") = 4096;

SEC("message/tenant")
int tenant(struct message *message)
{
	__u32 kind = message->kind;
	__u64 one = 1, *count = bpf_map_lookup_elem(&kinds, &kind);

	if (count)
		__sync_fetch_and_add(count, 1);
	else
		bpf_map_update_elem(&kinds, &kind, &one, BPF_ANY);
	if (message->size > largest)
		return DROPPED;
	message->queue = 1 + kind % 4;
	bpf_tail_call(message, &after, 0);
	return DROPPED;
}

char LICENSE[] SEC("license") = "MIT OR Apache-2.0";
