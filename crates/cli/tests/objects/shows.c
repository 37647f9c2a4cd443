// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Keeps the address of its packet in a map, which only a privileged program may, and follows it, which none may.
 * mcpu: v3 (rebuild with `cargo xtask objects`)
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} scratch SEC(".maps");

SEC("xdp") int shows(struct xdp_md *ctx)
{
	__u32 zero = 0;
	__u64 *kept = bpf_map_lookup_elem(&scratch, &zero);

	if (!kept)
		return XDP_ABORTED;
	*kept = (long)ctx->data;
	return XDP_PASS;
}

SEC("xdp") int follows(struct xdp_md *ctx)
{
	__u32 zero = 0;
	__u64 *kept = bpf_map_lookup_elem(&scratch, &zero);

	(void)ctx;
	if (!kept)
		return XDP_ABORTED;
	return *(__u8 *)*kept;
}

char LICENSE[] SEC("license") = "MIT OR Apache-2.0";
