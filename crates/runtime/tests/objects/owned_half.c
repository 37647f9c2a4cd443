// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * A map of owned.c, whose objects hold what has only a name here.
 * mcpu: v3 (rebuild with `cargo xtask objects`)
 */
#include "owned.h"

struct inner;

struct stashed {
	__u64 value;
	struct inner __kptr *inner;
};

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
	__u64 key = 1;
	struct stash *stash = bpf_map_lookup_elem(&stashes, &key);
	struct stashed *stashed;

	if (!stash)
		return 1;
	stashed = bpf_obj_new(struct stashed);
	if (!stashed)
		return 2;
	((__u64 *)stashed)[1] = ctx->ingress_ifindex;
	stashed = bpf_kptr_xchg(&stash->object, stashed);
	if (stashed)
		bpf_obj_drop(stashed);
	return 0;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
