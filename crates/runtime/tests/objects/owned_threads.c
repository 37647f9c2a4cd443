// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Objects with locks, lists and trees of their own, for threads: several own one of them at a time, and take its lock,
 * while others take it out of where it is stashed, link it elsewhere and drop it.
 * A packet is what to do: 8 bytes of which, 8 of a key, 8 of a value. Results above 5000 are errors.
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
extern int bpf_wq_init(struct bpf_wq *wq, void *map, unsigned int flags) __ksym;
extern int bpf_wq_start(struct bpf_wq *wq, unsigned int flags) __ksym;
extern int bpf_wq_set_callback_impl(struct bpf_wq *wq, int(callback)(void *map, int *key, void *value),
				    unsigned int flags, void *aux) __ksym;
extern int bpf_iter_num_new(struct bpf_iter_num *it, int start, int end) __ksym;
extern int *bpf_iter_num_next(struct bpf_iter_num *it) __ksym;
extern void bpf_iter_num_destroy(struct bpf_iter_num *it) __ksym;

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

/* Under each lock twice is two times length. */
struct bin {
	struct bpf_refcount owners;
	struct bpf_spin_lock lock;
	__u64 length;
	__u64 twice;
	struct bpf_list_head leaves __contains(leaf, node);
};

struct crate {
	struct bpf_refcount owners;
	struct bpf_res_spin_lock lock;
	__u64 length;
	__u64 twice;
	struct bpf_rb_root fruits __contains(fruit, node);
	struct bpf_list_node in_crates;
};

struct place {
	__u64 puts;
	struct bin __kptr *bin;
	struct crate __kptr *crate;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, struct place);
} places SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4);
	__type(key, __u32);
	__type(value, struct place);
} named SEC(".maps");

struct work {
	struct bpf_wq wq;
	__u64 calls;
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

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} records SEC(".maps");

private(A) struct bpf_spin_lock crates_lock;
private(A) struct bpf_list_head crates __contains(crate, in_crates);

static __always_inline struct ask *asked(struct xdp_md *ctx)
{
	struct ask *ask = (void *)(long)ctx->data;

	return (void *)(ask + 1) <= (void *)(long)ctx->data_end ? ask : 0;
}

static __always_inline struct place *place_of(__u64 asked)
{
	__u32 key = asked & 1;

	return asked & 2 ? bpf_map_lookup_elem(&named, &key) : bpf_map_lookup_elem(&places, &key);
}

/* A leaf into a bin that others own too, and one out of it. */
static __always_inline int turn(struct bin *bin, __u64 value)
{
	struct leaf *leaf = bpf_obj_new(struct leaf);
	struct bpf_list_node *node = 0;
	int wrong;

	if (!leaf)
		return 5001;
	leaf->value = value;
	bpf_spin_lock(&bin->lock);
	wrong = bin->twice != 2 * bin->length;
	bpf_list_push_back(&bin->leaves, &leaf->node);
	bin->length++;
	bin->twice += 2;
	if (bin->length > 4) {
		node = bpf_list_pop_front(&bin->leaves);
		bin->length--;
		bin->twice -= 2;
	}
	bpf_spin_unlock(&bin->lock);
	if (node)
		bpf_obj_drop(container_of(node, struct leaf, node));
	return wrong ? 5002 : 0;
}

static _Bool less(struct bpf_rb_node *a, const struct bpf_rb_node *b)
{
	return container_of(a, struct fruit, node)->value < container_of((void *)b, struct fruit, node)->value;
}

/* Trees, whose lock may fail: 1. */
static __always_inline int grow(struct crate *crate, __u64 value)
{
	struct fruit *fruit = bpf_obj_new(struct fruit);
	struct bpf_rb_node *node = 0;
	int wrong;

	if (!fruit)
		return 5011;
	fruit->value = value & 15;
	if (bpf_res_spin_lock(&crate->lock)) {
		bpf_obj_drop(fruit);
		return 1;
	}
	wrong = crate->twice != 2 * crate->length;
	bpf_rbtree_add(&crate->fruits, &fruit->node, less);
	crate->length++;
	crate->twice += 2;
	if (crate->length > 4) {
		node = bpf_rbtree_first(&crate->fruits);
		if (node)
			node = bpf_rbtree_remove(&crate->fruits, node);
		crate->length--;
		crate->twice -= 2;
	}
	bpf_res_spin_unlock(&crate->lock);
	if (node)
		bpf_obj_drop(container_of(node, struct fruit, node));
	return wrong ? 5012 : 0;
}

/* 2: nothing is there; 3: the last owner has just gone. */
SEC("xdp")
int uses(struct xdp_md *ctx)
{
	struct ask *ask = asked(ctx);
	struct crate *crate;
	struct place *place;
	struct bin *bin;
	__u64 value;
	int answer;

	if (!ask)
		return 5020;
	value = ask->value;
	place = place_of(ask->key);
	if (!place)
		return 2;
	if (ask->what & 1) {
		bin = place->bin;
		if (!bin)
			return 2;
		bin = bpf_refcount_acquire(bin);
		if (!bin)
			return 3;
		answer = turn(bin, value);
		bpf_obj_drop(bin);
		return answer;
	}
	crate = place->crate;
	if (!crate)
		return 2;
	crate = bpf_refcount_acquire(crate);
	if (!crate)
		return 3;
	answer = grow(crate, value);
	bpf_obj_drop(crate);
	return answer;
}

static __always_inline int renew(struct place *place)
{
	struct crate *crate;
	struct bin *bin = bpf_obj_new(struct bin);

	if (!bin)
		return 5031;
	/* In the kernel what a new object holds is what the last one left there. */
	bin->length = bin->twice = 0;
	bin = bpf_kptr_xchg(&place->bin, bin);
	if (bin)
		bpf_obj_drop(bin);
	crate = bpf_obj_new(struct crate);
	if (!crate)
		return 5032;
	crate->length = crate->twice = 0;
	crate = bpf_kptr_xchg(&place->crate, crate);
	if (crate)
		bpf_obj_drop(crate);
	return 0;
}

/* 1: new objects replace the stashed ones; 2: a crate goes into the list of crates, of which its stash knows still at
 * times; 3: the first of that list comes into a place; 4: an element is deleted and made anew. */
SEC("xdp")
int changes(struct xdp_md *ctx)
{
	struct ask *ask = asked(ctx);
	struct bpf_list_node *node;
	struct place *place, none = {};
	struct crate *crate, *other;
	__u32 key;
	int refused;

	if (!ask)
		return 5040;
	if (ask->what == 4) {
		key = ask->key & 1;
		bpf_map_delete_elem(&named, &key);
		bpf_map_update_elem(&named, &key, &none, BPF_NOEXIST);
	}
	place = place_of(ask->key);
	if (!place)
		return 2;
	switch (ask->what) {
	case 2:
		crate = bpf_kptr_xchg(&place->crate, 0);
		if (!crate)
			return 2;
		if (ask->value & 1) {
			other = bpf_refcount_acquire(crate);
			if (other) {
				other = bpf_kptr_xchg(&place->crate, other);
				if (other)
					bpf_obj_drop(other);
			}
		}
		bpf_spin_lock(&crates_lock);
		refused = bpf_list_push_back(&crates, &crate->in_crates);
		bpf_spin_unlock(&crates_lock);
		return refused ? 4 : 0;
	case 3:
		bpf_spin_lock(&crates_lock);
		node = bpf_list_pop_front(&crates);
		bpf_spin_unlock(&crates_lock);
		if (!node)
			return 2;
		crate = bpf_kptr_xchg(&place->crate, container_of(node, struct crate, in_crates));
		if (crate)
			bpf_obj_drop(crate);
		return 0;
	default:
		return renew(place);
	}
}

static __always_inline __u64 long_sum(void)
{
	struct bpf_iter_num it, in;
	__u64 sum = 0;

	bpf_iter_num_new(&it, 0, 1 << 22);
	while (bpf_iter_num_next(&it)) {
		bpf_iter_num_new(&in, 0, 1 << 20);
		while (bpf_iter_num_next(&in))
			sum++;
		bpf_iter_num_destroy(&in);
	}
	bpf_iter_num_destroy(&it);
	return sum & 1;
}

/* Has the locks of a bin and of a crate, which it takes out where it is asked to, and goes on for long. */
SEC("xdp")
int keeps(struct xdp_md *ctx)
{
	struct ask *ask = asked(ctx);
	struct place *place;
	struct crate *crate;
	struct bin *bin;

	if (!ask)
		return 5050;
	place = place_of(ask->key);
	if (!place)
		return 2;
	if (ask->what & 1) {
		bin = bpf_kptr_xchg(&place->bin, 0);
		crate = bpf_kptr_xchg(&place->crate, 0);
	} else {
		bin = place->bin;
		bin = bin ? bpf_refcount_acquire(bin) : 0;
		crate = place->crate;
		crate = crate ? bpf_refcount_acquire(crate) : 0;
	}
	if (bin && crate) {
		bpf_spin_lock(&bin->lock);
		if (bpf_res_spin_lock(&crate->lock)) {
			bpf_spin_unlock(&bin->lock);
		} else {
			bin->length += long_sum();
			bpf_res_spin_unlock(&crate->lock);
			bpf_spin_unlock(&bin->lock);
		}
	}
	if (bin)
		bpf_obj_drop(bin);
	if (crate)
		bpf_obj_drop(crate);
	return 1;
}

/* Has had a lock in an object, and calls another program. */
SEC("xdp")
int hops(struct xdp_md *ctx)
{
	struct ask *ask = asked(ctx);
	struct place *place;
	struct bin *bin;

	if (!ask)
		return 5060;
	place = place_of(ask->key);
	if (!place)
		return 2;
	bin = place->bin;
	bin = bin ? bpf_refcount_acquire(bin) : 0;
	if (bin) {
		turn(bin, 1);
		bpf_obj_drop(bin);
	}
	bpf_tail_call(ctx, &next, 0);
	return 2;
}

/* Everything that a run can hold, then locks in objects: one that may fail, and one that may not. */
SEC("xdp")
int full(struct xdp_md *ctx)
{
	struct ask *ask = asked(ctx);
	struct crate *crate;
	struct bin *bin;
	int refused = 0;
	__u64 *r[15];

	if (!ask)
		return 5070;
	crate = bpf_obj_new(struct crate);
	if (!crate)
		return 5071;
	bin = bpf_obj_new(struct bin);
	if (!bin) {
		bpf_obj_drop(crate);
		return 5072;
	}
#define RESERVE(n) r[n] = bpf_ringbuf_reserve(&records, 8, 0);
#define DISCARD(n) if (r[n]) bpf_ringbuf_discard(r[n], 0);
#define ALL(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14)
	ALL(RESERVE)
	bpf_spin_lock(&bin->lock);
	refused = bpf_res_spin_lock(&crate->lock);
	if (!refused)
		bpf_res_spin_unlock(&crate->lock);
	bin->length++;
	if (ask->what & 1)
		bin->length += long_sum();
	bpf_spin_unlock(&bin->lock);
	ALL(DISCARD)
	bpf_obj_drop(crate);
	bpf_obj_drop(bin);
	return refused == -12 ? 7 : 0;
}

static int later(void *map __attribute__((unused)), int *key, void *value)
{
	struct work *work = value;
	struct place *place = place_of(*key & 3);
	struct bin *bin;

	__sync_fetch_and_add(&work->calls, 1);
	if (!place)
		return 0;
	bin = bpf_kptr_xchg(&place->bin, 0);
	if (!bin)
		return 0;
	turn(bin, 3);
	bin = bpf_kptr_xchg(&place->bin, bin);
	if (bin)
		bpf_obj_drop(bin);
	return 0;
}

/* Starts a timer that changes a bin later. */
SEC("xdp")
int starts(struct xdp_md *ctx)
{
	struct ask *ask = asked(ctx);
	struct work *work;
	__u32 key;

	if (!ask)
		return 5080;
	key = ask->key & 1;
	work = bpf_map_lookup_elem(&works, &key);
	if (!work)
		return 5081;
	bpf_wq_init(&work->wq, &works, 0);
	bpf_wq_set_callback_impl(&work->wq, later, 0, 0);
	return bpf_wq_start(&work->wq, 0) ? 5082 : 0;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
