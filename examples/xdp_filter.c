// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * The packet filter as an XDP program: the kernel loads this object unchanged.
 * mcpu: v3 (rebuild with `cargo xtask objects`)
 */
#include "filter.h"

SEC("xdp")
int xdp_filter(struct xdp_md *ctx)
{
	const __u8 *data = (const void *)(long)ctx->data;
	const __u8 *data_end = (const void *)(long)ctx->data_end;
	__u32 protocol;
	enum verdict verdict = judge(data, data_end, &protocol);

	count(protocol, verdict, data_end - data);
	return verdict;
}

char LICENSE[] SEC("license") = "MIT OR Apache-2.0";
