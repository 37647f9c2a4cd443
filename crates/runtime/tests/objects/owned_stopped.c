// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Runs that are stopped while they own objects and hold a lock.
 * mcpu: v3 (rebuild with `cargo xtask objects`)
 */
#include "owned.h"

struct item {
	__u64 value;
	struct bpf_rb_node node;
};

private(A) struct bpf_spin_lock lock;
private(A) struct bpf_rb_root items __contains(item, node);

extern int host(__u64 value) __ksym;

static _Bool less(struct bpf_rb_node *a, const struct bpf_rb_node *b)
{
	struct item *x = container_of(a, struct item, node), *y = container_of((void *)b, struct item, node);
	__u64 i, sum = 0;

	/* Long, and not to be foreseen. */
	for (i = 0; i < 1000; i++) {
		if (y->value == i)
			sum += 1;
		if (x->value == 12345 + i)
			break;
	}
	return x->value + sum < y->value;
}

/* Owns one while it calls the host. */
SEC("xdp")
int calls(struct xdp_md *ctx)
{
	struct item *item = bpf_obj_new(struct item);
	int result;

	if (!item)
		return 1;
	item->value = ctx->ingress_ifindex;
	result = host(item->value);
	bpf_obj_drop(item);
	return result;
}

/* Puts one into the tree, which takes long. */
SEC("xdp")
int adds(struct xdp_md *ctx)
{
	struct item *item = bpf_obj_new(struct item);

	if (!item)
		return 1;
	item->value = ctx->ingress_ifindex;
	bpf_spin_lock(&lock);
	bpf_rbtree_add(&items, &item->node, less);
	bpf_spin_unlock(&lock);
	return 0;
}

/* Whether the tree is empty; it waits for the lock. */
SEC("xdp")
int looks(struct xdp_md *ctx)
{
	struct bpf_rb_node *first;
	int there = 0;

	(void)ctx;
	bpf_spin_lock(&lock);
	first = bpf_rbtree_first(&items);
	/* Not the pointer, which is gone with the lock. */
	if (first)
		there = 1 + (container_of(first, struct item, node)->value >> 32);
	bpf_spin_unlock(&lock);
	return there;
}

char _license[] SEC("license") = "GPL";
