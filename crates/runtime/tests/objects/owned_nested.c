// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Objects that hold objects: each with a lock, a list and a tree of its own, stashed in an array and listed themselves.
 * A packet is what to do: 8 bytes of which, 8 of a key, 8 of a value. A missing object is 0, and results above 1000
 * are errors.
 * mcpu: v3 (rebuild with `cargo xtask objects`)
 */
#include "owned.h"

struct bpf_res_spin_lock {
	__u32 val;
} __attribute__((aligned(4)));

extern int bpf_res_spin_lock(struct bpf_res_spin_lock *lock) __ksym;
extern void bpf_res_spin_unlock(struct bpf_res_spin_lock *lock) __ksym;

struct ask {
	__u64 what;
	__u64 key;
	__u64 value;
};

struct leaf {
	__u64 value;
	struct bpf_list_node node;
};

struct fruit {
	__u64 value;
	struct bpf_rb_node node;
};

struct bin {
	__u64 puts;
	struct bpf_spin_lock lock;
	struct bpf_list_head leaves __contains(leaf, node);
	struct bpf_list_node in_bins;
};

struct crate {
	struct bpf_res_spin_lock lock;
	struct bpf_rb_root fruits __contains(fruit, node);
	__u64 puts;
};

struct place {
	struct bin __kptr *bin;
	struct crate __kptr *crate;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 4);
	__type(key, __u32);
	__type(value, struct place);
} places SEC(".maps");

private(A) struct bpf_spin_lock bins_lock;
private(A) struct bpf_list_head bins __contains(bin, in_bins);

static __always_inline struct ask *asked(struct xdp_md *ctx)
{
	struct ask *ask = (void *)(long)ctx->data;

	return (void *)(ask + 1) <= (void *)(long)ctx->data_end ? ask : 0;
}

/* A leaf more; the first one, if there are many. */
static __always_inline int fill(struct bin *bin, __u64 value)
{
	struct bpf_list_node *node = 0;
	struct leaf *leaf = bpf_obj_new(struct leaf);
	int first = 0;

	if (!leaf)
		return 1001;
	leaf->value = value;
	bpf_spin_lock(&bin->lock);
	bpf_list_push_back(&bin->leaves, &leaf->node);
	if (++bin->puts > 3)
		node = bpf_list_pop_front(&bin->leaves);
	bpf_spin_unlock(&bin->lock);
	if (node) {
		leaf = (void *)node - __builtin_offsetof(struct leaf, node);
		first = leaf->value;
		bpf_obj_drop(leaf);
	}
	return first;
}

/* 1: a leaf into the bin of a place, which is made; 2: the bin is dropped with its leaves; 3: it goes into the list of
 * bins; 4: a bin comes out of that into the place. */
SEC("xdp")
int bin(struct xdp_md *ctx)
{
	struct ask *ask = asked(ctx);
	struct bpf_list_node *node;
	struct place *place;
	struct bin *bin;
	int answer = 0;
	__u32 key;

	if (!ask)
		return 1004;
	key = ask->key & 3;
	place = bpf_map_lookup_elem(&places, &key);
	if (!place)
		return 1005;
	if (ask->what == 4) {
		bpf_spin_lock(&bins_lock);
		node = bpf_list_pop_front(&bins);
		bpf_spin_unlock(&bins_lock);
		if (!node)
			return 300;
		bin = (void *)node - __builtin_offsetof(struct bin, in_bins);
		answer = bin->puts;
		goto stash;
	}
	bin = bpf_kptr_xchg(&place->bin, 0);
	if (!bin) {
		if (ask->what != 1)
			return 301;
		bin = bpf_obj_new(struct bin);
		if (!bin)
			return 1002;
		/* In the kernel what a new object holds is what the last one left there. */
		bin->puts = 0;
	}
	switch (ask->what) {
	case 1:
		answer = fill(bin, ask->value & 255);
		break;
	case 3:
		bpf_spin_lock(&bins_lock);
		bpf_list_push_back(&bins, &bin->in_bins);
		bpf_spin_unlock(&bins_lock);
		return 302;
	default:
		answer = bin->puts;
		bpf_obj_drop(bin);
		return answer;
	}
stash:
	bin = bpf_kptr_xchg(&place->bin, bin);
	if (bin)
		bpf_obj_drop(bin);
	return answer;
}

static _Bool less(struct bpf_rb_node *a, const struct bpf_rb_node *b)
{
	struct fruit *first = (void *)a - __builtin_offsetof(struct fruit, node);
	struct fruit *second = (void *)b - __builtin_offsetof(struct fruit, node);

	return first->value < second->value;
}

/* 1: a fruit into the crate of a place, which is made; 2: the smallest one out of it; 3: the crate is dropped. */
SEC("xdp")
int crate(struct xdp_md *ctx)
{
	struct ask *ask = asked(ctx);
	struct bpf_rb_node *node = 0;
	struct fruit *fruit = 0;
	struct place *place;
	struct crate *crate;
	int answer = 0;
	__u32 key;

	if (!ask)
		return 1004;
	key = ask->key & 3;
	place = bpf_map_lookup_elem(&places, &key);
	if (!place)
		return 1005;
	crate = bpf_kptr_xchg(&place->crate, 0);
	if (!crate) {
		if (ask->what != 1)
			return 301;
		crate = bpf_obj_new(struct crate);
		if (!crate)
			return 1002;
		crate->puts = 0;
	}
	if (ask->what == 3) {
		answer = crate->puts & 255;
		bpf_obj_drop(crate);
		return answer;
	}
	if (ask->what == 1) {
		fruit = bpf_obj_new(struct fruit);
		if (!fruit) {
			bpf_obj_drop(crate);
			return 1003;
		}
		fruit->value = ask->value & 255;
		if (bpf_res_spin_lock(&crate->lock)) {
			bpf_obj_drop(fruit);
			bpf_obj_drop(crate);
			return 1006;
		}
		crate->puts++;
		bpf_rbtree_add(&crate->fruits, &fruit->node, less);
		bpf_res_spin_unlock(&crate->lock);
	} else {
		if (bpf_res_spin_lock(&crate->lock)) {
			bpf_obj_drop(crate);
			return 1006;
		}
		node = bpf_rbtree_first(&crate->fruits);
		if (node)
			node = bpf_rbtree_remove(&crate->fruits, node);
		bpf_res_spin_unlock(&crate->lock);
		if (node) {
			fruit = (void *)node - __builtin_offsetof(struct fruit, node);
			answer = fruit->value;
			bpf_obj_drop(fruit);
		}
	}
	crate = bpf_kptr_xchg(&place->crate, crate);
	if (crate)
		bpf_obj_drop(crate);
	return answer;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
