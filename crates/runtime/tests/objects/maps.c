// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Map helpers beyond those of helpers.c: queues, stacks, Bloom filters, spin locks, per-CPU look-ups, maps of maps.
 * mcpu: v3 (rebuild with `cargo xtask objects`)
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#define NOTE(out, result) ((out) = (out) << 8 | ((__u64)(result) & 0xff))
#define UNUSED __attribute__((unused))

struct {
	__uint(type, BPF_MAP_TYPE_QUEUE);
	__uint(max_entries, 2);
	__type(value, __u64);
} queue SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_STACK);
	__uint(max_entries, 2);
	__type(value, __u64);
} stack SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_BLOOM_FILTER);
	__uint(max_entries, 100);
	__type(value, __u64);
} bloom SEC(".maps");

struct account {
	struct bpf_spin_lock lock;
	__u32 writes;
	__u64 in, out;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct account);
} accounts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4);
	__type(key, __u32);
	__type(value, struct account);
} locked SEC(".maps");

struct wide {
	__u64 words[3];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 5);
	__type(key, __u32);
	__type(value, struct wide);
} per_cpu SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(max_entries, 5);
	__type(key, __u32);
	__type(value, __u64);
} per_cpu_hash SEC(".maps");

struct inner {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 3);
	__type(key, __u32);
	__type(value, __u64);
} first SEC(".maps"), second SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 3);
	__type(key, __u32);
	__array(values, struct inner);
} outer SEC(".maps") = { .values = { [0] = &first, [2] = &second } };

struct {
	__uint(type, BPF_MAP_TYPE_HASH_OF_MAPS);
	__uint(max_entries, 3);
	__type(key, __u32);
	__array(values, struct inner);
} by_name SEC(".maps");

SEC("raw/queues")
__u64 queues(void)
{
	__u64 out = 0, value = 1, got = 0;

	NOTE(out, bpf_map_peek_elem(&queue, &got)); /* -ENOENT */
	NOTE(out, bpf_map_push_elem(&queue, &value, BPF_ANY));
	value = 2;
	NOTE(out, bpf_map_push_elem(&queue, &value, BPF_ANY));
	value = 3;
	NOTE(out, bpf_map_push_elem(&queue, &value, BPF_ANY));   /* -E2BIG */
	NOTE(out, bpf_map_push_elem(&queue, &value, BPF_EXIST)); /* 1 is dropped */
	NOTE(out, bpf_map_pop_elem(&queue, &got) ?: got);
	NOTE(out, bpf_map_peek_elem(&queue, &got) ?: got);
	NOTE(out, bpf_map_pop_elem(&queue, &got) ?: got);
	return out;
}

SEC("raw/stacks")
__u64 stacks(void)
{
	__u64 out = 0, value = 1, got = 0;

	NOTE(out, bpf_map_push_elem(&stack, &value, BPF_ANY));
	value = 2;
	NOTE(out, bpf_map_push_elem(&stack, &value, BPF_ANY));
	NOTE(out, bpf_map_push_elem(&stack, &value, BPF_NOEXIST)); /* -EINVAL */
	NOTE(out, bpf_map_peek_elem(&stack, &got) ?: got);
	NOTE(out, bpf_map_pop_elem(&stack, &got) ?: got);
	NOTE(out, bpf_map_pop_elem(&stack, &got) ?: got);
	NOTE(out, bpf_map_pop_elem(&stack, &got)); /* -ENOENT */
	return out;
}

SEC("raw/blooms")
__u64 blooms(void)
{
	__u64 out = 0, value = 1;

	NOTE(out, bpf_map_peek_elem(&bloom, &value)); /* -ENOENT */
	NOTE(out, bpf_map_push_elem(&bloom, &value, BPF_ANY));
	NOTE(out, bpf_map_peek_elem(&bloom, &value));
	NOTE(out, bpf_map_push_elem(&bloom, &value, BPF_EXIST)); /* -EINVAL */
	return out;
}

/* Moves one unit, under the lock; whether the account was in balance. */
SEC("raw/transfer")
__u64 transfer(void)
{
	__u32 zero = 0;
	__u64 balanced;
	struct account *account = bpf_map_lookup_elem(&accounts, &zero);

	if (!account)
		return 0;
	bpf_spin_lock(&account->lock);
	balanced = account->in == account->out && account->in == account->writes;
	account->writes++;
	account->in++;
	account->out++;
	bpf_spin_unlock(&account->lock);
	return balanced;
}

/* BPF_F_LOCK updates of a hash: no reader sees half a value. */
SEC("raw/locked_update")
__u64 locked_update(UNUSED const __u8 *bytes, __u64 len)
{
	struct account value = { .writes = len, .in = len, .out = len }, *found;
	__u64 out = 0, balanced;
	__u32 key = 1;

	NOTE(out, bpf_map_update_elem(&locked, &key, &value, BPF_F_LOCK));
	found = bpf_map_lookup_elem(&locked, &key);
	if (!found)
		return 0xffff;
	bpf_spin_lock(&found->lock);
	balanced = found->in == found->out && found->in == found->writes;
	bpf_spin_unlock(&found->lock);
	NOTE(out, balanced);
	return out;
}

/* No lock in the value: BPF_F_LOCK is refused. */
SEC("raw/no_lock")
__u64 no_lock(void)
{
	__u64 value = 1;
	__u32 key = 1;

	return bpf_map_update_elem(&first, &key, &value, BPF_F_LOCK);
}

/* Counts in this slot's element; the sum of that element over all slots, as seen by lookup_percpu. */
SEC("raw/slots")
__u64 slots(const __u32 *index, __u64 len)
{
	struct wide *mine, *other;
	__u64 *hashed, sum = 0, one = 1;
	__u32 key;

	if (len < 4)
		return 0;
	key = *index;
	mine = bpf_map_lookup_elem(&per_cpu, &key);
	if (!mine)
		return 0x1000;
	mine->words[1]++;
	for (__u32 cpu = 0; cpu < 1024; cpu++) {
		other = bpf_map_lookup_percpu_elem(&per_cpu, &key, cpu);
		if (!other)
			break;
		sum += other->words[1];
	}
	hashed = bpf_map_lookup_elem(&per_cpu_hash, &key);
	if (hashed)
		*hashed += 1;
	else
		bpf_map_update_elem(&per_cpu_hash, &key, &one, BPF_ANY);
	hashed = bpf_map_lookup_percpu_elem(&per_cpu_hash, &key, bpf_get_smp_processor_id());
	other = bpf_map_lookup_percpu_elem(&per_cpu, &key, bpf_get_smp_processor_id());
	/* Both are this slot's own, and this slot's run counts once in each. */
	if (!hashed || !other || *hashed != other->words[1] || other->words[1] != mine->words[1])
		return 0x2000;
	return sum;
}

/* The element of an inner map, found through both kinds of outer map, plus one; where there is none, which is missing. */
SEC("raw/nested")
__u64 nested(const __u32 *keys, __u64 len)
{
	__u32 which, name, key;
	__u64 *value, before;
	void *inner;

	if (len < 12)
		return 0x100;
	which = keys[0];
	name = keys[1];
	key = keys[2];
	inner = bpf_map_lookup_elem(&outer, &which);
	if (!inner)
		return 0x101;
	value = bpf_map_lookup_elem(inner, &key);
	if (!value)
		return 0x102;
	before = (*value)++;
	inner = bpf_map_lookup_elem(&by_name, &name);
	if (!inner)
		return 0x103;
	if (bpf_map_update_elem(inner, &key, &before, BPF_ANY))
		return 0x104;
	return before;
}

/* A map in a map, and its element, at constant indices. */
SEC("raw/constant")
__u64 constant(void)
{
	__u32 two = 2, zero = 0, one = 1;
	__u64 *value;
	void *inner = bpf_map_lookup_elem(&outer, &two);

	if (!inner)
		return 0x101;
	value = bpf_map_lookup_elem(inner, &zero);
	if (!value)
		return 0x102;
	if (bpf_map_lookup_elem(&outer, &one))
		return 0x103;
	return *value;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
