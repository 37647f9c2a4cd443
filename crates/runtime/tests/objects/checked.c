// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Programs that only checks at run time make safe: offsets without a bound, and loops without an end.
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

struct element {
	struct bpf_spin_lock lock;
	unsigned int count;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct element);
} elements SEC(".maps");

// Counts by the byte of the packet that its first byte names, read while the lock is held.
SEC("xdp")
int locked(struct xdp_md *ctx)
{
	unsigned char *data = (void *)(long)ctx->data;
	unsigned long long at = *data;
	__u32 key = 0;
	struct element *element = bpf_map_lookup_elem(&elements, &key);
	unsigned int count = 0;

	if (!element)
		return 0;
	bpf_spin_lock(&element->lock);
	element->count += data[at];
	count = element->count;
	bpf_spin_unlock(&element->lock);
	return count;
}
