// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Locks that may fail, under threads: what they guard in elements that come and go, from work for later, and behind
 * tail calls. A packet is a key, 8 bytes. Results above 5000 are errors; 1 is a lock that was not acquired.
 * mcpu: v3 (rebuild with `cargo xtask objects`)
 */
#include "owned.h"

struct bpf_res_spin_lock {
	__u32 val;
} __attribute__((aligned(4)));
struct bpf_wq {
	__u64 __opaque[2];
} __attribute__((aligned(8)));
struct bpf_iter_num {
	__u64 __opaque[1];
} __attribute__((aligned(8)));

extern int bpf_res_spin_lock(struct bpf_res_spin_lock *lock) __ksym;
extern void bpf_res_spin_unlock(struct bpf_res_spin_lock *lock) __ksym;
extern int bpf_res_spin_lock_irqsave(struct bpf_res_spin_lock *lock, unsigned long *flags) __ksym;
extern void bpf_res_spin_unlock_irqrestore(struct bpf_res_spin_lock *lock, unsigned long *flags) __ksym;
extern int bpf_wq_init(struct bpf_wq *wq, void *map, unsigned int flags) __ksym;
extern int bpf_wq_start(struct bpf_wq *wq, unsigned int flags) __ksym;
/* As newer kernels declare it: without `_impl`, and without the argument that their verifier fills in. */
extern int bpf_wq_set_callback(struct bpf_wq *wq, int(callback)(void *map, int *key, void *value),
			       unsigned int flags) __ksym;
extern int bpf_iter_num_new(struct bpf_iter_num *it, int start, int end) __ksym;
extern int *bpf_iter_num_next(struct bpf_iter_num *it) __ksym;
extern void bpf_iter_num_destroy(struct bpf_iter_num *it) __ksym;

struct item {
	__u64 value;
	struct bpf_list_node node;
};

struct queue {
	struct bpf_res_spin_lock lock;
	__u32 length;
	struct bpf_list_head items __contains(item, node);
};

/* Elements that others delete and make anew. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4);
	__type(key, __u64);
	__type(value, struct queue);
} queues SEC(".maps");

struct work {
	struct bpf_wq wq;
	struct bpf_res_spin_lock lock;
	__u32 calls;
	__u64 twice;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, struct work);
} works SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} next SEC(".maps");

private(one) struct bpf_res_spin_lock one;
private(two) struct bpf_res_spin_lock two;

static __always_inline __u64 asked(struct xdp_md *ctx)
{
	__u64 *key = (void *)(long)ctx->data;

	return (void *)(key + 1) <= (void *)(long)ctx->data_end ? *key : 0;
}

/* Puts one into a list, and takes one out of it. */
SEC("xdp")
int turn(struct xdp_md *ctx)
{
	struct bpf_list_node *node;
	__u64 key = asked(ctx) & 7;
	struct queue *queue;
	struct item *item;
	unsigned long flags;
	int refused = 0;

	queue = bpf_map_lookup_elem(&queues, &key);
	if (!queue)
		return 2;
	item = bpf_obj_new(struct item);
	if (!item)
		return 5001;
	item->value = key;
	if (bpf_res_spin_lock_irqsave(&queue->lock, &flags)) {
		bpf_obj_drop(item);
		return 1;
	}
	refused = bpf_list_push_back(&queue->items, &item->node);
	queue->length++;
	bpf_res_spin_unlock_irqrestore(&queue->lock, &flags);
	if (refused)
		return 5002;
	if (bpf_res_spin_lock(&queue->lock))
		return 1;
	node = bpf_list_pop_front(&queue->items);
	bpf_res_spin_unlock(&queue->lock);
	if (!node)
		return 3;
	item = (void *)node - __builtin_offsetof(struct item, node);
	refused = item->value != key;
	bpf_obj_drop(item);
	/* The item may belong to another element by now: its key is one of the same map, at least. */
	return refused ? 4 : 0;
}

static int later(void *map __attribute__((unused)), int *key __attribute__((unused)), void *value)
{
	struct work *work = value;

	if (bpf_res_spin_lock(&work->lock))
		return 0;
	work->calls++;
	work->twice += 2;
	bpf_res_spin_unlock(&work->lock);
	return 0;
}

SEC("xdp")
int starts(struct xdp_md *ctx)
{
	__u32 key = asked(ctx) & 1;
	struct work *work = bpf_map_lookup_elem(&works, &key);
	int started;

	if (!work)
		return 5001;
	bpf_wq_init(&work->wq, &works, 0);
	bpf_wq_set_callback(&work->wq, later, 0);
	started = bpf_wq_start(&work->wq, 0);
	if (bpf_res_spin_lock(&work->lock))
		return 1;
	work->calls++;
	work->twice += 2;
	bpf_res_spin_unlock(&work->lock);
	return started ? 5002 : 0;
}

/* Has both, and goes on for long. */
SEC("xdp")
int keeps(struct xdp_md *ctx __attribute__((unused)))
{
	struct bpf_iter_num it, in;
	unsigned long flags;
	__u64 sum = 0;

	if (bpf_res_spin_lock(&one))
		return 1;
	if (bpf_res_spin_lock_irqsave(&two, &flags)) {
		bpf_res_spin_unlock(&one);
		return 1;
	}
	bpf_iter_num_new(&it, 0, 1 << 22);
	while (bpf_iter_num_next(&it)) {
		bpf_iter_num_new(&in, 0, 1 << 20);
		while (bpf_iter_num_next(&in))
			sum++;
		bpf_iter_num_destroy(&in);
	}
	bpf_iter_num_destroy(&it);
	bpf_res_spin_unlock_irqrestore(&two, &flags);
	bpf_res_spin_unlock(&one);
	return 5000 + (sum & 1);
}

/* Has had both, and calls another program. */
SEC("xdp")
int hops(struct xdp_md *ctx)
{
	if (bpf_res_spin_lock(&two))
		return 1;
	if (bpf_res_spin_lock(&one)) {
		bpf_res_spin_unlock(&two);
		return 1;
	}
	bpf_res_spin_unlock(&one);
	bpf_res_spin_unlock(&two);
	bpf_tail_call(ctx, &next, 0);
	return 5;
}

/* Whether both can be had. */
SEC("xdp")
int both(struct xdp_md *ctx __attribute__((unused)))
{
	if (bpf_res_spin_lock(&one))
		return 1;
	if (bpf_res_spin_lock(&two)) {
		bpf_res_spin_unlock(&one);
		return 1;
	}
	bpf_res_spin_unlock(&two);
	bpf_res_spin_unlock(&one);
	return 0;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
