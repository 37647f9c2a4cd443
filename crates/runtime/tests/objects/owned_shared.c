// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Objects that a tree and a map share: a run puts one into the tree and stashes it, others look for it.
 * mcpu: v3 (rebuild with `cargo xtask objects`)
 */
#include "owned.h"

struct item {
	__u64 value;
	struct bpf_rb_node node;
	struct bpf_refcount owners;
};

struct place {
	struct item __kptr *item;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct place);
} places SEC(".maps");

private(A) struct bpf_spin_lock lock;
private(A) struct bpf_rb_root items __contains(item, node);

static _Bool less(struct bpf_rb_node *a, const struct bpf_rb_node *b)
{
	return container_of(a, struct item, node)->value < container_of((void *)b, struct item, node)->value;
}

static __always_inline struct place *the_place(void)
{
	__u32 key = 0;
	return bpf_map_lookup_elem(&places, &key);
}

/* Puts one into the tree, and if the value is above 100 stashes it too. */
SEC("xdp")
int puts(struct xdp_md *ctx)
{
	struct item *item = bpf_obj_new(struct item), *other;
	struct place *place;

	if (!item)
		return 1001;
	item->value = ctx->ingress_ifindex;
	if (item->value > 100) {
		place = the_place();
		if (!place) {
			bpf_obj_drop(item);
			return 1002;
		}
		other = bpf_refcount_acquire(item);
		other = bpf_kptr_xchg(&place->item, other);
		if (other)
			bpf_obj_drop(other);
	}
	bpf_spin_lock(&lock);
	bpf_rbtree_add(&items, &item->node, less);
	bpf_spin_unlock(&lock);
	return 0;
}

/* Takes the stashed one, puts it into the tree unless it is there, takes it out of the tree, and stashes it again. */
SEC("xdp")
int moves(struct xdp_md *ctx)
{
	struct place *place = the_place();
	struct bpf_rb_node *node;
	struct item *item;
	int again;

	(void)ctx;
	if (!place)
		return 1002;
	item = bpf_kptr_xchg(&place->item, 0);
	if (!item)
		return 2;
	bpf_spin_lock(&lock);
	again = bpf_rbtree_add(&items, &item->node, less);
	node = bpf_rbtree_remove(&items, &item->node);
	bpf_spin_unlock(&lock);
	if (!node)
		return again ? 4 : 3;
	item = bpf_kptr_xchg(&place->item, container_of(node, struct item, node));
	if (item)
		bpf_obj_drop(item);
	return again ? 6 : 5;
}

/* The value of the stashed one. */
SEC("xdp")
int reads(struct xdp_md *ctx)
{
	struct place *place = the_place();
	struct item *item;
	int value;

	(void)ctx;
	if (!place)
		return 1002;
	item = bpf_kptr_xchg(&place->item, 0);
	if (!item)
		return 2;
	value = item->value;
	item = bpf_kptr_xchg(&place->item, item);
	if (item)
		bpf_obj_drop(item);
	return value;
}

/* The value of the first in the tree; 0 if it is empty. */
SEC("xdp")
int first(struct xdp_md *ctx)
{
	struct bpf_rb_node *first;
	int value = 0;

	(void)ctx;
	bpf_spin_lock(&lock);
	first = bpf_rbtree_first(&items);
	if (first)
		value = container_of(first, struct item, node)->value;
	bpf_spin_unlock(&lock);
	return value;
}

char _license[] SEC("license") = "GPL";
