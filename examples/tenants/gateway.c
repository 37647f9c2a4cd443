// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * The operator's part: the way in, which jumps to the tenant's program, and the way out, which that jumps to.
 * mcpu: v3 (rebuild with `cargo xtask objects`)
 */
#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>
#include "message.h"

enum verdict { DELIVERED, DROPPED };

/* A program a tenant. */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 64);
	__type(key, __u32);
	__type(value, __u32);
} tenants SEC(".maps");

/* Programs that a tenant's program may go on to. */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} after SEC(".maps");

/* Bytes that each tenant has had delivered. No tenant's program has this map. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 64);
	__type(key, __u32);
	__type(value, __u64);
} delivered SEC(".maps");

SEC("message/in")
int way_in(struct message *message)
{
	message->queue = 0;
	bpf_tail_call(message, &tenants, message->tenant);
	return DROPPED; /* no such tenant */
}

SEC("message/out")
int way_out(struct message *message)
{
	__u32 tenant = message->tenant;
	__u64 *bytes = bpf_map_lookup_elem(&delivered, &tenant);

	if (bytes)
		__sync_fetch_and_add(bytes, message->size);
	return DELIVERED;
}

char LICENSE[] SEC("license") = "MIT OR Apache-2.0";
