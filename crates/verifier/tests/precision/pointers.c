// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Pointers and numbers that belong together, as clang compiles them: each program is accepted as it is written.
 * mcpu: v3 v4 (rebuild with `cargo xtask objects`)
 */
#include <linux/bpf.h>

#define SEC(name) __attribute__((section(name), used))
typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long u64;

#define DATA(ctx) ((u8 *)(long)(ctx)->data)
#define END(ctx) ((u8 *)(long)(ctx)->data_end)
#define hidden(x) asm volatile("" : "+r"(x))

static u8 buffer[64];
static struct row {
	u32 a, b, c;
} rows[16];
static u32 table[64];

/* A length as an int: a 32-bit difference. */
SEC("xdp") int length_as_int(struct xdp_md *ctx)
{
	u8 *data = DATA(ctx);
	int len = END(ctx) - data;

	if (len < 14)
		return XDP_DROP;
	return data[13];
}

/* A difference of copies that 32-bit moves make. */
SEC("xdp") int length_of_halves(struct xdp_md *ctx)
{
	u8 *data = DATA(ctx), *end = END(ctx);
	u32 from = (u32)(long)data, to = (u32)(long)end;

	hidden(from);
	hidden(to);
	u32 len = to - from;
	if (len < 20 || len > 1500)
		return XDP_DROP;
	return data[19] + table[len >> 6];
}

/* A pointer that runs to an end, over a variable of the program. */
SEC("xdp") int end_of_a_global(struct xdp_md *ctx)
{
	u8 *p = buffer + (ctx->rx_queue_index & 31), *end = buffer + sizeof(buffer) - 4;
	u32 sum = 0;

	hidden(end);
	while (p < end) {
		sum += *p;
		p += 8;
	}
	return sum;
}

SEC("xdp") int end_on_the_stack(struct xdp_md *ctx)
{
	u8 word[32] = {}, *p = word, *end = word + (ctx->rx_queue_index & 31);
	u32 sum = 0;

	hidden(p);
	hidden(end);
	for (int i = 0; i < 32 && p < end; i++)
		sum += *p++;
	return sum + (end - word);
}

/* How much of a buffer is used is where its pointer is. */
SEC("xdp") int used_part(struct xdp_md *ctx)
{
	u8 *p = buffer;

	hidden(p);
	if (ctx->rx_queue_index & 1)
		p += 8;
	if (ctx->rx_queue_index & 2)
		p += 24;
	u64 used = p - buffer;
	hidden(used);
	return table[used];
}

/* A header that is parsed twice: the second test is decided. */
SEC("xdp") int tested_twice(struct xdp_md *ctx)
{
	u8 *data = DATA(ctx), *end = END(ctx);
	u32 *beyond = table;

	hidden(beyond);
	if (data + 34 > end)
		return XDP_DROP;
	hidden(data);
	if (data + 14 > end)
		return beyond[64];
	return data[33];
}

/* A number that is on the stack and in a register. */
SEC("xdp") int stored_and_tested(struct xdp_md *ctx)
{
	volatile u64 slot = ctx->rx_queue_index;
	u64 x = slot;

	hidden(x);
	if (x > 63)
		return XDP_DROP;
	return table[slot];
}

/* Sums of two bounded numbers against the end. */
SEC("xdp") int two_offsets(struct xdp_md *ctx)
{
	u8 *p = DATA(ctx), *end = END(ctx);

	p += ctx->rx_queue_index & 63;
	p += (ctx->ingress_ifindex & 15) * 4;
	if (p + 4 > end)
		return XDP_DROP;
	return *(u32 *)p;
}

/* The least of a length and a constant. */
SEC("xdp") int least(struct xdp_md *ctx)
{
	u8 *data = DATA(ctx);
	u64 len = END(ctx) - data, n = len < 64 ? len : 64;

	hidden(n);
	if (n == 0)
		return XDP_DROP;
	return buffer[n - 1];
}

/* The greatest of two numbers that are bounded. */
SEC("xdp") int greatest(struct xdp_md *ctx)
{
	u64 a = ctx->rx_queue_index & 31, b = ctx->ingress_ifindex & 63;

	hidden(a);
	hidden(b);
	return table[a > b ? a : b];
}

/* An index that is masked before it is scaled. */
SEC("xdp") int a_row(struct xdp_md *ctx)
{
	return rows[ctx->rx_queue_index & 15].b;
}

/* A range that is tested by one subtraction. */
SEC("xdp") int a_range(struct xdp_md *ctx)
{
	u32 x = ctx->rx_queue_index;

	if (x >= 100 && x < 164)
		return table[x - 100];
	return XDP_DROP;
}

/* A value that an atomic operation fetches from the stack. */
SEC("xdp") int fetched(struct xdp_md *ctx)
{
	u64 count = 7;

	u64 old = __sync_fetch_and_add(&count, ctx->rx_queue_index);
	hidden(old);
	return table[old] + count;
}
