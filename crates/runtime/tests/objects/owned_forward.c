// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * A map of owned.c, of whose objects nothing is known here but the name: their pointers are plain bytes here, which
 * a program may write. (The kernel refuses such types, and libbpf makes the map without them.)
 * mcpu: v3 (rebuild with `cargo xtask objects`)
 */
#include "owned.h"

struct stashed;

struct stash {
	__u64 puts;
	struct stashed __kptr *object;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4);
	__type(key, __u64);
	__type(value, struct stash);
} stashes SEC(".maps");

SEC("xdp")
int forges(struct xdp_md *ctx)
{
	__u64 key = 1, *value = bpf_map_lookup_elem(&stashes, &key);

	if (value)
		value[1] = ctx->ingress_ifindex;
	return 0;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
