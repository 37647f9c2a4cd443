// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * The shipped helpers and maps, each used by one program over a raw context: r1 = bytes, r2 = their number.
 * mcpu: v4 (rebuild with `cargo xtask objects`)
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 4);
	__type(key, __u32);
	__type(value, __u64);
} array SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, __u64);
} table SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} per_cpu SEC(".maps");

const volatile __u64 step = 3;
__u64 total = 100;
__u64 runs;

#define UNUSED __attribute__((unused))

/* The results of a sequence of operations, a byte each; -errno as its low byte. */
#define NOTE(out, result) ((out) = (out) << 8 | ((__u64)(result) & 0xff))

SEC("raw/hash")
__u64 hash(void)
{
	__u64 out = 0, value = 7, *found;
	__u32 key = 1;

	NOTE(out, bpf_map_delete_elem(&table, &key));                    /* -ENOENT */
	NOTE(out, bpf_map_update_elem(&table, &key, &value, BPF_EXIST)); /* -ENOENT */
	NOTE(out, bpf_map_update_elem(&table, &key, &value, BPF_ANY));
	found = bpf_map_lookup_elem(&table, &key);
	NOTE(out, found ? *found : 0xff);
	if (found)
		*found = 9;
	found = bpf_map_lookup_elem(&table, &key);
	NOTE(out, found ? *found : 0xff);
	NOTE(out, bpf_map_update_elem(&table, &key, &value, BPF_NOEXIST)); /* -EEXIST */
	key = 2;
	found = bpf_map_lookup_elem(&table, &key);
	NOTE(out, found ? *found : 0xff);
	key = 1;
	NOTE(out, bpf_map_delete_elem(&table, &key));
	return out;
}

SEC("raw/full")
__u64 full(void)
{
	__u64 out = 0, value = 7;

	for (__u32 key = 10; key < 13; key++)
		NOTE(out, bpf_map_update_elem(&table, &key, &value, BPF_ANY)); /* the third: -E2BIG */
	return out;
}

SEC("raw/array_ops")
__u64 array_ops(void)
{
	__u64 out = 0, value = 5, *found;
	__u32 key = 3;

	NOTE(out, bpf_map_update_elem(&array, &key, &value, BPF_ANY));
	found = bpf_map_lookup_elem(&array, &key);
	NOTE(out, found ? *found : 0xff);
	NOTE(out, bpf_map_update_elem(&array, &key, &value, BPF_NOEXIST)); /* -EEXIST */
	NOTE(out, bpf_map_delete_elem(&array, &key));                      /* -EINVAL */
	key = 4;
	found = bpf_map_lookup_elem(&array, &key);
	NOTE(out, found ? 1 : 0);
	NOTE(out, bpf_map_update_elem(&array, &key, &value, BPF_ANY)); /* -E2BIG */
	return out;
}

/* The value as it was, and the slot it belongs to. */
SEC("raw/count")
__u64 count(void)
{
	__u32 zero = 0;
	__u64 *mine = bpf_map_lookup_elem(&per_cpu, &zero);

	if (!mine)
		return 0;
	return (*mine)++ << 32 | bpf_get_smp_processor_id();
}

SEC("raw/globals")
__u64 globals(void)
{
	runs++;
	total += step;
	return total;
}

SEC("raw/clock")
__u64 clock(void)
{
	__u64 before = bpf_ktime_get_ns();
	__u64 after = bpf_ktime_get_ns();

	return before != 0 && after >= before;
}

SEC("raw/random")
__u64 random(void)
{
	__u64 any = 0;

	for (int i = 0; i < 8; i++)
		any |= bpf_get_prandom_u32();
	return any;
}

SEC("raw/print")
__u64 print(UNUSED const __u8 *bytes, __u64 len)
{
	static const char fmt[] = "%d bytes, %x, %lu";

	return bpf_trace_printk(fmt, sizeof(fmt), len, 255, total);
}

static long add(__u64 i, void *sum)
{
	*(__u64 *)sum += i;
	return i == 49;
}

static long outer(__u64 i, void *sum)
{
	return bpf_loop(i, add, sum, 0) > 5;
}

/* The sum in the low half, the iterations above it. */
SEC("raw/loop")
__u64 loop(UNUSED const __u8 *bytes, __u64 len)
{
	__u64 sum = 0;
	long done = bpf_loop(len, add, &sum, 0);

	return (__u64)done << 32 | (__u32)sum;
}

SEC("raw/nested")
__u64 nested(UNUSED const __u8 *bytes, __u64 len)
{
	__u64 sum = 0;
	long done = bpf_loop(len, outer, &sum, 0);

	return (__u64)done << 32 | (__u32)sum;
}

SEC("raw/refused")
__u64 refused(void)
{
	__u64 out = 0, sum = 0;

	NOTE(out, bpf_loop(1, add, &sum, 1));                 /* -EINVAL */
	NOTE(out, bpf_loop((1 << 23) + 1, add, &sum, 0));     /* -E2BIG */
	NOTE(out, sum);
	return out;
}

static long fold(UNUSED void *map, const __u32 *key, __u64 *value, __u64 *sum)
{
	*sum = *sum * 10 + *key + *value;
	return *key == 2;
}

SEC("raw/each")
__u64 each(void)
{
	__u64 sum = 0;
	long done = bpf_for_each_map_elem(&array, fold, &sum, 0);

	return (__u64)done << 32 | (__u32)sum;
}

char LICENSE[] SEC("license") = "MIT OR Apache-2.0";
