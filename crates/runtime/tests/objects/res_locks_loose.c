// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Resilient locks as no verifier has seen them: in order, and in ways that it refuses.
 * mcpu: v3 (rebuild with `cargo xtask objects`)
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

struct bpf_res_spin_lock {
	__u32 val;
} __attribute__((aligned(4)));

extern int bpf_res_spin_lock(struct bpf_res_spin_lock *lock) __ksym;
extern void bpf_res_spin_unlock(struct bpf_res_spin_lock *lock) __ksym;

struct value {
	__u64 n;
	struct bpf_res_spin_lock lock;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, struct value);
} values SEC(".maps");

static __always_inline struct value *value(__u32 index)
{
	return bpf_map_lookup_elem(&values, &index);
}

SEC("socket")
int in_order(void *ctx __attribute__((unused)))
{
	struct value *a = value(0), *b = value(1), *c = value(0);
	int error;

	if (bpf_res_spin_lock(&a->lock))
		return 1;
	error = bpf_res_spin_lock(&c->lock);
	if (!error)
		return 2;
	if (bpf_res_spin_lock(&b->lock))
		return 3;
	a->n++;
	bpf_res_spin_unlock(&b->lock);
	bpf_res_spin_unlock(&a->lock);
	return error;
}

SEC("socket")
int out_of_order(void *ctx __attribute__((unused)))
{
	struct value *a = value(0), *b = value(1);

	bpf_res_spin_lock(&a->lock);
	bpf_res_spin_lock(&b->lock);
	bpf_res_spin_unlock(&a->lock);
	bpf_res_spin_unlock(&b->lock);
	return 0;
}

SEC("socket")
int kept(void *ctx __attribute__((unused)))
{
	struct value *a = value(0);

	return bpf_res_spin_lock(&a->lock);
}

SEC("socket")
int calls(void *ctx __attribute__((unused)))
{
	struct value *a = value(0), *b;

	bpf_res_spin_lock(&a->lock);
	b = value(1);
	bpf_res_spin_unlock(&a->lock);
	return b != 0;
}

SEC("socket")
int not_taken(void *ctx __attribute__((unused)))
{
	bpf_res_spin_unlock(&value(0)->lock);
	return 0;
}

SEC("socket")
int writes(void *ctx __attribute__((unused)))
{
	value(0)->lock.val = 7;
	return 0;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
