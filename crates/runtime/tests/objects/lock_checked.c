// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * A lock held where an access is checked as it is made: nobody has proven that it is in bounds.
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
	__u64 stored;
	struct bpf_res_spin_lock lock;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct value);
} values SEC(".maps");

SEC("xdp")
int stores(struct xdp_md *ctx)
{
	volatile __u64 *at = (void *)(long)ctx->data;
	struct value *value;
	__u64 index;
	__u32 zero = 0;

	if ((void *)(at + 1) > (void *)(long)ctx->data_end)
		return 2;
	index = *at;
	value = bpf_map_lookup_elem(&values, &zero);
	if (!value)
		return 3;
	if (bpf_res_spin_lock(&value->lock))
		return 1;
	at[index] = 7;
	value->stored++;
	bpf_res_spin_unlock(&value->lock);
	return 0;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
