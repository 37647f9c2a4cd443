/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Look-ups in a loop, and the same loop with nothing in it.
 * mcpu: v3
 *
 * The key changes from iteration to iteration and cannot be known when the program is compiled.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#define ENTRIES 1024
#define ITERATIONS 256

#define MAP(name, kind)                                                                                 \
	struct {                                                                                        \
		__uint(type, kind);                                                                     \
		__uint(max_entries, ENTRIES);                                                           \
		__type(key, __u32);                                                                     \
		__type(value, __u64);                                                                   \
	} name SEC(".maps")

MAP(counts, BPF_MAP_TYPE_ARRAY);
MAP(per_cpu, BPF_MAP_TYPE_PERCPU_ARRAY);
MAP(hash, BPF_MAP_TYPE_HASH);

#define LOOP(body)                                                                                      \
	__u64 sum = 0;                                                                                  \
	for (__u32 i = 0; i < ITERATIONS; i++) {                                                        \
		__u32 key = (i * 613) % ENTRIES;                                                        \
		/* The key goes through memory either way. */                                           \
		asm volatile("" : "+m"(key));                                                           \
		body                                                                                    \
	}                                                                                               \
	return sum

#define LOOK_UP(map)                                                                                    \
	__u64 *value = bpf_map_lookup_elem(&map, &key);                                                 \
	if (value)                                                                                      \
		sum += *value;

SEC("raw/nothing")
int nothing(void *ctx __attribute__((unused)))
{
	LOOP(sum += key;);
}

SEC("raw/array_lookup")
int array_lookup(void *ctx __attribute__((unused)))
{
	LOOP(LOOK_UP(counts));
}

SEC("raw/percpu_lookup")
int percpu_lookup(void *ctx __attribute__((unused)))
{
	LOOP(LOOK_UP(per_cpu));
}

SEC("raw/hash_lookup")
int hash_lookup(void *ctx __attribute__((unused)))
{
	LOOP(LOOK_UP(hash));
}

SEC("raw/hash_update")
int hash_update(void *ctx __attribute__((unused)))
{
	LOOP(sum += bpf_map_update_elem(&hash, &key, &sum, BPF_ANY););
}
