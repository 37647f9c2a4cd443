// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Metadata that a device has given with a packet. The kernel loads such programs for a device that gives it.
 * mcpu: v4 (rebuild with `cargo xtask objects`)
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

extern int bpf_xdp_metadata_rx_timestamp(const struct xdp_md *ctx, __u64 *timestamp) __ksym;
enum xdp_rss_hash_type { XDP_RSS_NONE };
extern int bpf_xdp_metadata_rx_hash(const struct xdp_md *ctx, __u32 *hash, enum xdp_rss_hash_type *type) __ksym;
extern int bpf_xdp_metadata_rx_vlan_tag(const struct xdp_md *ctx, __be16 *protocol, __u16 *tag) __ksym;
extern int bpf_xdp_pull_data(struct xdp_md *xdp, __u32 len) __ksym;

SEC("xdp")
int told(struct xdp_md *ctx)
{
	enum xdp_rss_hash_type type = 9;
	__be16 protocol = 0;
	__u64 time = 0;
	__u32 hash = 0;
	__u16 tag = 0;

	switch (ctx->rx_queue_index) {
	case 0:
		return bpf_xdp_metadata_rx_timestamp(ctx, &time) ?: (int)time;
	case 1:
		return bpf_xdp_metadata_rx_hash(ctx, &hash, &type) ?: (int)(hash + type);
	case 2:
		return bpf_xdp_metadata_rx_vlan_tag(ctx, &protocol, &tag) ?: (int)(protocol << 16 | tag);
	case 3:
		return bpf_xdp_pull_data(ctx, 60);
	}
	return bpf_xdp_pull_data(ctx, 61);
}

char _license[] SEC("license") = "Dual MIT/GPL";
