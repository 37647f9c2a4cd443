// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Maps in the legacy `maps` section, in the dialect of the kernel's samples.
 * mcpu: v3 (rebuild with `cargo xtask objects`)
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

struct bpf_load_map_def {
	__u32 type, key_size, value_size, max_entries, map_flags, inner_map_idx, numa_node;
};

struct bpf_load_map_def SEC("maps") counters = {
	.type = BPF_MAP_TYPE_ARRAY, .key_size = 4, .value_size = 8, .max_entries = 3,
};

struct bpf_load_map_def SEC("maps") inner = {
	.type = BPF_MAP_TYPE_HASH, .key_size = 2, .value_size = 6, .max_entries = 10,
	.map_flags = BPF_F_NO_PREALLOC | BPF_F_NUMA_NODE, .numa_node = 1,
};

struct bpf_load_map_def SEC("maps") outer = {
	.type = BPF_MAP_TYPE_ARRAY_OF_MAPS, .key_size = 4, .value_size = 4, .max_entries = 2, .inner_map_idx = 1,
};

SEC("socket")
int count(void *ctx)
{
	__u32 key = 1;
	__u64 *value = bpf_map_lookup_elem(&counters, &key);

	(void)ctx;
	if (value)
		__sync_fetch_and_add(value, 1);
	return bpf_map_lookup_elem(&outer, &key) != 0;
}

char LICENSE[] SEC("license") = "GPL";
