// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Objects that programs own: stashed in a hash, queued in lists, ordered in a tree, and shared by a list and a tree.
 * A packet is what to do: 8 bytes of which, 8 of a key, 8 of a value. A missing object is 0, and results above 1000
 * are errors.
 * mcpu: v3 (rebuild with `cargo xtask objects`)
 */
#include "owned.h"

struct ask {
	__u64 what;
	__u64 key;
	__u64 value;
};

static __always_inline struct ask *asked(struct xdp_md *ctx)
{
	struct ask *ask = (void *)(long)ctx->data;

	return (void *)(ask + 1) <= (void *)(long)ctx->data_end ? ask : 0;
}

/* Stashed: one object in each value, and in each object another. */

struct inner {
	__u64 value;
};

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

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4);
	__type(key, __u64);
	__type(value, struct stash);
} recent SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, struct stash);
} slots SEC(".maps");

static __always_inline int put(void *map, void *key, __u64 value)
{
	struct stashed *new, *old;
	struct inner *inner;
	struct stash *stash;
	int before = 0;

	stash = bpf_map_lookup_elem(map, key);
	if (!stash)
		return 0;
	new = bpf_obj_new(struct stashed);
	if (!new)
		return 1001;
	new->value = value;
	inner = bpf_obj_new(struct inner);
	if (!inner) {
		bpf_obj_drop(new);
		return 1002;
	}
	inner->value = 2 * value;
	inner = bpf_kptr_xchg(&new->inner, inner);
	if (inner) {
		bpf_obj_drop(inner);
		bpf_obj_drop(new);
		return 1003;
	}
	stash->puts += 1;
	old = bpf_kptr_xchg(&stash->object, new);
	if (old) {
		before = old->value;
		bpf_obj_drop(old);
	}
	return before;
}

static __always_inline int take(void *map, void *key)
{
	struct stashed *object;
	struct inner *inner;
	struct stash *stash;
	int sum;

	stash = bpf_map_lookup_elem(map, key);
	if (!stash)
		return 0;
	object = bpf_kptr_xchg(&stash->object, 0);
	if (!object)
		return 0;
	sum = object->value;
	inner = bpf_kptr_xchg(&object->inner, 0);
	if (inner) {
		sum += inner->value;
		bpf_obj_drop(inner);
	}
	bpf_obj_drop(object);
	return sum;
}

/* 1: puts, 2: takes, 3: makes an element, 4: deletes it; plus 10: of the LRU map; 21, 22, 23: of the array. */
SEC("xdp")
int stash(struct xdp_md *ctx)
{
	struct ask *ask = asked(ctx);
	struct stash empty = {};
	__u64 what, key, value;
	__u32 slot;

	if (!ask)
		return 1000;
	what = ask->what;
	key = ask->key;
	value = ask->value;
	slot = key;
	switch (what) {
	case 1: return put(&stashes, &key, value);
	case 2: return take(&stashes, &key);
	case 3: return bpf_map_update_elem(&stashes, &key, &empty, BPF_ANY) ? 1 : 0;
	case 4: return bpf_map_delete_elem(&stashes, &key) ? 1 : 0;
	case 11: return put(&recent, &key, value);
	case 12: return take(&recent, &key);
	case 13: return bpf_map_update_elem(&recent, &key, &empty, BPF_ANY) ? 1 : 0;
	case 14: return bpf_map_delete_elem(&recent, &key) ? 1 : 0;
	case 21: return put(&slots, &slot, value);
	case 22: return take(&slots, &slot);
	case 23: return bpf_map_update_elem(&slots, &slot, &empty, BPF_ANY) ? 1 : 0;
	}
	return 1004;
}

/* Queued: a list in a map's value, and one among the program's variables. */

struct item {
	__u64 value;
	struct bpf_list_node node;
};

struct queue {
	__u64 length;
	struct bpf_spin_lock lock;
	struct bpf_list_head items __contains(item, node);
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, struct queue);
} queues SEC(".maps");

private(Q) struct bpf_spin_lock own_lock;
private(Q) struct bpf_list_head own_items __contains(item, node);

static __always_inline int queued(struct bpf_spin_lock *lock, struct bpf_list_head *items, struct ask *ask)
{
	struct bpf_list_node *node;
	struct item *item;
	__u64 what = ask->what;
	int value;

	if (what == 1 || what == 2) {
		item = bpf_obj_new(struct item);
		if (!item)
			return 1001;
		item->value = ask->value;
		bpf_spin_lock(lock);
		if (what == 1)
			bpf_list_push_front(items, &item->node);
		else
			bpf_list_push_back(items, &item->node);
		/* Borrowed from the list until the lock is released. */
		item->value += 1;
		bpf_spin_unlock(lock);
		return 0;
	}
	if (what == 3 || what == 4) {
		bpf_spin_lock(lock);
		node = what == 3 ? bpf_list_pop_front(items) : bpf_list_pop_back(items);
		bpf_spin_unlock(lock);
		if (!node)
			return 0;
		item = container_of(node, struct item, node);
		value = item->value;
		bpf_obj_drop(item);
		return value;
	}
	value = 0;
	bpf_spin_lock(lock);
	node = what == 5 ? bpf_list_front(items) : bpf_list_back(items);
	if (node)
		value = container_of(node, struct item, node)->value;
	bpf_spin_unlock(lock);
	return value;
}

/* 1, 2: pushes in front or back, 3, 4: pops, 5, 6: looks; keys above 1: the program's own list. */
SEC("xdp")
int queue(struct xdp_md *ctx)
{
	struct ask *ask = asked(ctx);
	struct queue *queue;
	__u32 key;

	if (!ask)
		return 1000;
	if (ask->key > 1)
		return queued(&own_lock, &own_items, ask);
	key = ask->key;
	queue = bpf_map_lookup_elem(&queues, &key);
	if (!queue)
		return 1002;
	return queued(&queue->lock, &queue->items, ask);
}

/* Ordered: timers by when they expire. */

struct timer {
	__u64 expires;
	__u64 value;
	struct bpf_rb_node node;
};

private(T) struct bpf_spin_lock timers_lock;
private(T) struct bpf_rb_root timers __contains(timer, node);

static _Bool sooner(struct bpf_rb_node *a, const struct bpf_rb_node *b)
{
	return container_of(a, struct timer, node)->expires < container_of((void *)b, struct timer, node)->expires;
}

/* 1: adds, 2: takes the first if it has expired by then, 3: the value of one that expires then, 4: the topmost one. */
SEC("xdp")
int order(struct xdp_md *ctx)
{
	struct ask *ask = asked(ctx);
	struct bpf_rb_node *node;
	struct timer *timer;
	__u64 what, key;
	int found = 0, i;

	if (!ask)
		return 1000;
	what = ask->what;
	key = ask->key;
	if (what == 1) {
		timer = bpf_obj_new(struct timer);
		if (!timer)
			return 1001;
		timer->expires = key;
		timer->value = ask->value;
		bpf_spin_lock(&timers_lock);
		bpf_rbtree_add(&timers, &timer->node, sooner);
		bpf_spin_unlock(&timers_lock);
		return 0;
	}
	if (what == 2) {
		bpf_spin_lock(&timers_lock);
		node = bpf_rbtree_first(&timers);
		if (!node)
			goto none;
		if (container_of(node, struct timer, node)->expires > key)
			goto none;
		node = bpf_rbtree_remove(&timers, node);
		bpf_spin_unlock(&timers_lock);
		if (!node)
			return 1002;
		timer = container_of(node, struct timer, node);
		found = timer->value;
		bpf_obj_drop(timer);
		return found;
	}
	bpf_spin_lock(&timers_lock);
	node = bpf_rbtree_root(&timers);
	if (what == 4) {
		if (node)
			found = container_of(node, struct timer, node)->value;
		goto none;
	}
	for (i = 0; i < 32; i++) {
		if (!node)
			goto none;
		timer = container_of(node, struct timer, node);
		if (timer->expires == key) {
			found = timer->value;
			goto none;
		}
		if (key < timer->expires)
			node = bpf_rbtree_left(&timers, node);
		else
			node = bpf_rbtree_right(&timers, node);
	}
none:
	bpf_spin_unlock(&timers_lock);
	return found;
}

/* Shared: in a list by age and in a tree by key, at once. */

struct shared {
	__u64 key;
	__u64 value;
	struct bpf_list_node by_age;
	struct bpf_rb_node by_key;
	struct bpf_refcount owners;
};

private(S) struct bpf_spin_lock shared_lock;
private(S) struct bpf_list_head ages __contains(shared, by_age);
private(S) struct bpf_rb_root keys __contains(shared, by_key);

static _Bool smaller(struct bpf_rb_node *a, const struct bpf_rb_node *b)
{
	return container_of(a, struct shared, by_key)->key < container_of((void *)b, struct shared, by_key)->key;
}

/*
 * 1: puts one into both, 2: takes the oldest out of the list, 3: the first out of the tree, 4: takes the oldest out of
 * both, 5: puts one into the list twice, 6: takes the first of the tree once more, while it is there.
 */
SEC("xdp")
int share(struct xdp_md *ctx)
{
	struct ask *ask = asked(ctx);
	struct shared *one, *other;
	struct bpf_list_node *old;
	struct bpf_rb_node *first;
	int result = 0, again;
	__u64 what;

	if (!ask)
		return 1000;
	what = ask->what;
	if (what == 1 || what == 5) {
		one = bpf_obj_new(struct shared);
		if (!one)
			return 1001;
		one->key = ask->key;
		one->value = ask->value;
		other = bpf_refcount_acquire(one);
		bpf_spin_lock(&shared_lock);
		bpf_list_push_back(&ages, &one->by_age);
		if (what == 1)
			again = bpf_rbtree_add(&keys, &other->by_key, smaller);
		else
			again = bpf_list_push_back(&ages, &other->by_age);
		bpf_spin_unlock(&shared_lock);
		return again ? 1 : 0;
	}
	if (what == 2) {
		bpf_spin_lock(&shared_lock);
		old = bpf_list_pop_front(&ages);
		bpf_spin_unlock(&shared_lock);
		if (!old)
			return 0;
		one = container_of(old, struct shared, by_age);
		result = one->value;
		bpf_obj_drop(one);
		return result;
	}
	if (what == 3) {
		bpf_spin_lock(&shared_lock);
		first = bpf_rbtree_first(&keys);
		if (!first) {
			bpf_spin_unlock(&shared_lock);
			return 0;
		}
		first = bpf_rbtree_remove(&keys, first);
		bpf_spin_unlock(&shared_lock);
		if (!first)
			return 1002;
		one = container_of(first, struct shared, by_key);
		result = one->value;
		bpf_obj_drop(one);
		return result;
	}
	if (what == 6) {
		bpf_spin_lock(&shared_lock);
		first = bpf_rbtree_first(&keys);
		if (!first) {
			bpf_spin_unlock(&shared_lock);
			return 0;
		}
		one = bpf_refcount_acquire(container_of(first, struct shared, by_key));
		bpf_spin_unlock(&shared_lock);
		if (!one)
			return 1003;
		result = one->value;
		bpf_obj_drop(one);
		return result;
	}
	return 1004;
}

char _license[] SEC("license") = "GPL";
