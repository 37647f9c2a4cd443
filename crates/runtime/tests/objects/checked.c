// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * What only checks at run time make safe: offsets that nothing bounds, and loops that nothing ends.
 * mcpu: v4 (rebuild with `cargo xtask objects`)
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

// The global data is this and nothing else: 20 bytes.
struct {
	unsigned int table[5];
} global = { { 10, 20, 30, 40, 50 } };

// The word of the table that the packet's first word names; the packet's second word is written there.
SEC("xdp")
int word(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data;
	unsigned long long index = *(unsigned long long *)data;
	unsigned int *at = &global.table[0] + index;
	unsigned int old = *at;

	*at = ((unsigned int *)data)[2];
	return old;
}

// The sum of the packet's bytes.
SEC("xdp")
int sum(struct xdp_md *ctx)
{
	unsigned char *p = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	int sum = 0;

	while (p < end)
		sum += *p++;
	return sum;
}

// The byte of the metadata that the packet's first byte names.
SEC("xdp")
int meta(struct xdp_md *ctx)
{
	unsigned char *data = (void *)(long)ctx->data, *meta = (void *)(long)ctx->data_meta;

	return meta[data[0]];
}
