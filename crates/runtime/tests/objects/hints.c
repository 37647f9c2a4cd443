// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Accepted code that may be a mistake: divisions by numbers that may be 0, and a static function in a section that
 * names no type of program.
 * mcpu: v3 (rebuild with `cargo xtask objects`)
 */
#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>

SEC("xdp")
int unguarded(struct xdp_md *ctx)
{
	return 1000 / ctx->rx_queue_index;
}

SEC("xdp")
int guarded(struct xdp_md *ctx)
{
	__u32 queue = ctx->rx_queue_index;

	return queue ? 1000 / queue + 1000 % queue : -1;
}

SEC("xdp")
int modulo(struct xdp_md *ctx)
{
	__u64 queue = ctx->rx_queue_index;

	return 1000 % (queue & 6);
}

SEC("own/section")
static int __attribute__((used)) left_out(struct xdp_md *ctx)
{
	return ctx->rx_queue_index;
}

char LICENSE[] SEC("license") = "GPL";
