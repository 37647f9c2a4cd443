// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * A packet in pieces: how long the first one is, and all of them; writes the last byte, and grows by two if it may.
 * mcpu: v3 (rebuild with `cargo xtask objects`)
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

SEC("xdp.frags")
int pieces(struct xdp_md *ctx)
{
	__u64 first = (long)ctx->data_end - (long)ctx->data;
	__u64 whole = bpf_xdp_get_buff_len(ctx);
	__u8 last = 0xee;

	/* Now, and not when the packet has moved. */
	asm volatile("" : "+r"(first));
	if (whole)
		bpf_xdp_store_bytes(ctx, whole - 1, &last, 1);
	bpf_xdp_adjust_tail(ctx, 2);
	return first * 1000 + whole;
}

SEC("xdp")
int whole(struct xdp_md *ctx)
{
	return bpf_xdp_get_buff_len(ctx);
}

char _license[] SEC("license") = "Dual MIT/GPL";
