// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * As little as a plug-in with state has: two small maps.
 * mcpu: v3 (rebuild with `cargo xtask objects`)
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#define UNUSED __attribute__((unused))

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 4);
	__type(key, __u32);
	__type(value, __u64);
} runs SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 16);
	__type(key, __u32);
	__type(value, __u64);
} lengths SEC(".maps");

/* How often it was called with this length. */
SEC("raw/entry")
__u64 entry(const __u8 *bytes UNUSED, __u64 len)
{
	__u32 zero = 0, slot = len & 15;
	__u64 *run = bpf_map_lookup_elem(&runs, &zero), *length = bpf_map_lookup_elem(&lengths, &slot);

	if (!run || !length)
		return 0;
	*run += 1;
	return *length += 1;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
