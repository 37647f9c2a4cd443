// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * An array whose memory other processes may map.
 * mcpu: v3 (rebuild with `cargo xtask objects`)
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, __u64);
} shown SEC(".maps");

SEC("raw/add")
__u64 add(const __u8 *bytes __attribute__((unused)), __u64 len)
{
	__u32 first = 0;
	__u64 *sum = bpf_map_lookup_elem(&shown, &first);

	if (!sum)
		return 0;
	*sum += len;
	return *sum;
}
