// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Maps whose sizes the loader sets, as a service does that knows the number of devices or CPUs.
 * mcpu: v3 (rebuild with `cargo xtask objects`)
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, __u64);
} slots SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__type(key, __u32);
	__type(value, __u64);
} seen SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, __u64);
	__uint(max_entries, 2);
} fixed SEC(".maps");

SEC("xdp")
int count(struct xdp_md *ctx __attribute__((unused)))
{
	__u32 at = 3, first = 0, third = 2;
	__u64 one = 1, *slot = bpf_map_lookup_elem(&slots, &at), *kept = bpf_map_lookup_elem(&fixed, &first);

	if (slot)
		__sync_fetch_and_add(slot, 1);
	if (kept)
		__sync_fetch_and_add(kept, 1);
	bpf_map_update_elem(&seen, &first, &one, BPF_ANY);
	return slot && kept && !bpf_map_lookup_elem(&fixed, &third) ? XDP_PASS : XDP_ABORTED;
}
