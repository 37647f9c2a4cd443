// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Resilient locks: taken in every order, of values and of variables, and what they guard.
 * A packet is what to do: two keys and an amount, 8 bytes each. Errors of taking a lock are returned as 1000 and the
 * number; what goes wrong otherwise is above 5000.
 * mcpu: v3 (rebuild with `cargo xtask objects`)
 */
#include "owned.h"

struct bpf_res_spin_lock {
	__u32 val;
} __attribute__((aligned(4)));
struct bpf_iter_num {
	__u64 __opaque[1];
} __attribute__((aligned(8)));

extern int bpf_res_spin_lock(struct bpf_res_spin_lock *lock) __ksym;
extern void bpf_res_spin_unlock(struct bpf_res_spin_lock *lock) __ksym;
extern int bpf_res_spin_lock_irqsave(struct bpf_res_spin_lock *lock, unsigned long *flags) __ksym;
extern void bpf_res_spin_unlock_irqrestore(struct bpf_res_spin_lock *lock, unsigned long *flags) __ksym;
extern int bpf_iter_num_new(struct bpf_iter_num *it, int start, int end) __ksym;
extern int *bpf_iter_num_next(struct bpf_iter_num *it) __ksym;
extern void bpf_iter_num_destroy(struct bpf_iter_num *it) __ksym;

#define failed(error) (1000 - (error))

struct ask {
	__u64 a;
	__u64 b;
	__u64 amount;
};

struct account {
	__s64 balance;
	struct bpf_res_spin_lock lock;
	__u32 moves;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 4);
	__type(key, __u32);
	__type(value, struct account);
} accounts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4);
	__type(key, __u64);
	__type(value, struct account);
} named SEC(".maps");

/* Signals between threads. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 4);
	__type(key, __u32);
	__type(value, __u64);
} flags SEC(".maps");

static __always_inline struct ask *asked(struct xdp_md *ctx)
{
	struct ask *ask = (void *)(long)ctx->data;

	return (void *)(ask + 1) <= (void *)(long)ctx->data_end ? ask : 0;
}

static __always_inline struct account *account(__u64 key)
{
	__u32 index = key & 3;

	return bpf_map_lookup_elem(&accounts, &index);
}

static __attribute__((noinline)) void move(struct account *from, struct account *to, __u64 amount)
{
	if (!from || !to)
		return;
	from->balance -= amount;
	to->balance += amount;
	from->moves++;
	to->moves++;
}

/* Under both locks, whatever their order is: an error where the two are one, or are waited for in a circle. */
SEC("xdp")
int transfer(struct xdp_md *ctx)
{
	struct ask *ask = asked(ctx);
	struct account *from, *to;
	__u64 amount;
	int error;

	if (!ask)
		return 5001;
	amount = ask->amount;
	from = account(ask->a);
	to = account(ask->b);
	if (!from || !to)
		return 5002;
	error = bpf_res_spin_lock(&from->lock);
	if (error)
		return failed(error);
	error = bpf_res_spin_lock(&to->lock);
	if (error) {
		bpf_res_spin_unlock(&from->lock);
		return failed(error);
	}
	move(from, to, amount);
	bpf_res_spin_unlock(&to->lock);
	bpf_res_spin_unlock(&from->lock);
	return 0;
}

/* A transfer in a hash with interrupts disabled, and the values behind it. */
SEC("xdp")
int named_transfer(struct xdp_md *ctx)
{
	struct account new = {}, *from, *to;
	struct ask *ask = asked(ctx);
	unsigned long f, g;
	__u64 a, b, amount;
	int error, left;

	if (!ask)
		return 5001;
	a = ask->a & 3;
	b = ask->b & 3;
	amount = ask->amount & 7;
	bpf_map_update_elem(&named, &a, &new, BPF_NOEXIST);
	bpf_map_update_elem(&named, &b, &new, BPF_NOEXIST);
	from = bpf_map_lookup_elem(&named, &a);
	to = bpf_map_lookup_elem(&named, &b);
	if (!from || !to)
		return 5002;
	error = bpf_res_spin_lock_irqsave(&from->lock, &f);
	if (error)
		return failed(error);
	error = bpf_res_spin_lock_irqsave(&to->lock, &g);
	if (error) {
		bpf_res_spin_unlock_irqrestore(&from->lock, &f);
		return failed(error);
	}
	from->balance -= amount;
	to->balance += amount;
	left = to->balance & 255;
	bpf_res_spin_unlock_irqrestore(&to->lock, &g);
	bpf_res_spin_unlock_irqrestore(&from->lock, &f);
	/* An update leaves the lock alone, and may not ask for it. */
	if (bpf_map_update_elem(&named, &a, &new, BPF_F_LOCK) != -22)
		return 5003;
	return left;
}

/* Three, in loops, in functions and under another kind of lock. */
private(one) struct bpf_res_spin_lock one;
private(two) struct bpf_res_spin_lock two;
private(spin) struct bpf_spin_lock spin;

static __attribute__((noinline)) int take_two(void)
{
	return bpf_res_spin_lock(&two);
}

SEC("xdp")
int nested(struct xdp_md *ctx __attribute__((unused)))
{
	struct account *first = account(0);
	struct bpf_iter_num it;
	int sum = 0, *i;

	if (!first)
		return 5002;
	bpf_spin_lock(&spin);
	if (bpf_res_spin_lock(&one))
		goto none;
	if (take_two())
		goto first;
	if (bpf_res_spin_lock(&first->lock))
		goto second;
	bpf_iter_num_new(&it, 0, 10);
	while ((i = bpf_iter_num_next(&it)))
		sum += *i;
	bpf_iter_num_destroy(&it);
	bpf_res_spin_unlock(&first->lock);
second:
	bpf_res_spin_unlock(&two);
first:
	bpf_res_spin_unlock(&one);
none:
	bpf_spin_unlock(&spin);
	return sum;
}

/* A list whose lock may fail. */
struct item {
	__u64 value;
	struct bpf_list_node node;
};

private(list) struct bpf_res_spin_lock list_lock;
private(list) struct bpf_list_head list __contains(item, node);

SEC("xdp")
int queue(struct xdp_md *ctx)
{
	struct ask *ask = asked(ctx);
	struct bpf_list_node *node;
	struct item *item;
	int value;

	if (!ask)
		return 5001;
	if (ask->a & 1) {
		item = bpf_obj_new(struct item);
		if (!item)
			return 5002;
		item->value = ask->amount & 255;
		if (bpf_res_spin_lock(&list_lock)) {
			bpf_obj_drop(item);
			return 5003;
		}
		bpf_list_push_back(&list, &item->node);
		bpf_res_spin_unlock(&list_lock);
		return 0;
	}
	if (bpf_res_spin_lock(&list_lock))
		return 5003;
	node = bpf_list_pop_front(&list);
	bpf_res_spin_unlock(&list_lock);
	if (!node)
		return 300;
	item = (void *)node - __builtin_offsetof(struct item, node);
	value = item->value;
	bpf_obj_drop(item);
	return value;
}

/* Tells that it has the lock of `a`, and goes on until it is told that it may, or for a long time. */
static __always_inline int lingers(volatile __u64 *mine, volatile __u64 *until)
{
	struct bpf_iter_num it, in;
	int told = 0;

	*mine = 1;
	bpf_iter_num_new(&it, 0, 1 << 22);
	while (bpf_iter_num_next(&it)) {
		bpf_iter_num_new(&in, 0, 1 << 10);
		while (bpf_iter_num_next(&in)) {
			told = *until != 0;
			if (told)
				break;
		}
		bpf_iter_num_destroy(&in);
		if (told)
			break;
	}
	bpf_iter_num_destroy(&it);
	return told;
}

SEC("xdp")
int holds(struct xdp_md *ctx)
{
	struct ask *ask = asked(ctx);
	struct account *held;
	__u64 *mine, *until;
	__u32 key;
	int error, told;

	if (!ask)
		return 5001;
	held = account(ask->a);
	key = ask->a & 3;
	mine = bpf_map_lookup_elem(&flags, &key);
	key = ask->b & 3;
	until = bpf_map_lookup_elem(&flags, &key);
	if (!held || !mine || !until)
		return 5002;
	error = bpf_res_spin_lock(&held->lock);
	if (error)
		return failed(error);
	told = lingers(mine, until);
	bpf_res_spin_unlock(&held->lock);
	return told ? 0 : 5003;
}

/* The lock of `a`, and when somebody has that of `b`, that too. */
SEC("xdp")
int meets(struct xdp_md *ctx)
{
	struct account *first, *second;
	struct ask *ask = asked(ctx);
	__u64 *mine, *other;
	__u32 key;
	int error;

	if (!ask)
		return 5001;
	first = account(ask->a);
	second = account(ask->b);
	key = ask->a & 3;
	mine = bpf_map_lookup_elem(&flags, &key);
	key = ask->b & 3;
	other = bpf_map_lookup_elem(&flags, &key);
	if (!first || !second || !mine || !other)
		return 5002;
	error = bpf_res_spin_lock(&first->lock);
	if (error)
		return failed(error);
	if (!lingers(mine, other)) {
		bpf_res_spin_unlock(&first->lock);
		return 5003;
	}
	error = bpf_res_spin_lock(&second->lock);
	if (!error)
		bpf_res_spin_unlock(&second->lock);
	bpf_res_spin_unlock(&first->lock);
	return error ? failed(error) : 0;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
