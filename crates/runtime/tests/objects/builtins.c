// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Calls of C's functions over memory, as GCC emits them and as clang does for functions that it does not know. It unrolls
 * calls of functions that it knows, and refuses long ones ("A call to built-in function 'memcpy' is not supported").
 * A packet is two places in the room, how many bytes, and a byte, four bytes each; then what is copied.
 * mcpu: v3 v2 (rebuild with `cargo xtask objects`)
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

extern void *copy(void *to, const void *from, __u64 bytes) __asm__("memcpy");
extern void *move(void *to, const void *from, __u64 bytes) __asm__("memmove");
extern void *fill(void *to, int byte, __u64 bytes) __asm__("memset");
extern int compare(const void *a, const void *b, __u64 bytes) __asm__("memcmp");

#define PROGRAM SEC("xdp") __attribute__((no_builtin))

struct ask {
	__u32 to;
	__u32 from;
	__u32 bytes;
	__u32 byte;
	__u8 rest[64];
};

struct room {
	__u8 bytes[1024];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct room);
} rooms SEC(".maps");

struct guarded {
	struct bpf_spin_lock lock;
	__u8 bytes[60];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct guarded);
} locked SEC(".maps");

static __always_inline struct ask *asked(struct xdp_md *ctx)
{
	struct ask *ask = (void *)(long)ctx->data;

	return (void *)(ask + 1) <= (void *)(long)ctx->data_end ? ask : 0;
}

static __always_inline struct room *room(void)
{
	__u32 key = 0;

	return bpf_map_lookup_elem(&rooms, &key);
}

#define BEGIN                                                                                                          \
	struct ask *ask = asked(ctx);                                                                                  \
	struct room *at = room();                                                                                      \
	if (!ask || !at)                                                                                               \
		return 1000;

/* Copies from the packet; the returned pointer leads to the copy. */
PROGRAM
int copies(struct xdp_md *ctx)
{
	BEGIN
	__u8 *there = copy(at->bytes + (ask->to & 511), ask->rest, ask->bytes & 63);

	return there[1] + (there == at->bytes + (ask->to & 511) ? 256 : 0);
}

/* Into the packet. */
PROGRAM
int copies_back(struct xdp_md *ctx)
{
	BEGIN
	copy(ask->rest, at->bytes + (ask->from & 511), ask->bytes & 63);
	return 0;
}

/* Whatever overlaps. */
PROGRAM
int moves(struct xdp_md *ctx)
{
	BEGIN
	move(at->bytes + (ask->to & 511), at->bytes + (ask->from & 511), ask->bytes & 511);
	return 0;
}

PROGRAM
int copies_over(struct xdp_md *ctx)
{
	BEGIN
	copy(at->bytes + (ask->to & 511), at->bytes + (ask->from & 511), ask->bytes & 511);
	return 0;
}

PROGRAM
int fills(struct xdp_md *ctx)
{
	BEGIN
	__u8 *there = fill(at->bytes + (ask->to & 511), ask->byte, ask->bytes & 511);

	return there[0];
}

PROGRAM
int compares(struct xdp_md *ctx)
{
	BEGIN
	int order = compare(at->bytes + (ask->to & 511), at->bytes + (ask->from & 511), ask->bytes & 511);

	return order < 0 ? 1 : order > 0 ? 2 : 0;
}

/* The memory is on the stack. */
PROGRAM
int stacks(struct xdp_md *ctx)
{
	__u8 buffer[80];

	BEGIN
	fill(buffer, ask->byte, sizeof(buffer));
	copy(buffer + 8, ask->rest, ask->bytes & 63);
	copy(at->bytes, buffer, sizeof(buffer));
	return buffer[ask->from & 63];
}

/* Reads stack that was not written, which is zeroed then. */
PROGRAM
int never_written(struct xdp_md *ctx)
{
	__u8 buffer[80];

	BEGIN
	__asm__ volatile("" : "=m"(buffer[79]));
	copy(buffer, ask->rest, ask->bytes & 63);
	copy(at->bytes, buffer, 64);
	return 0;
}

/* Calls while a lock is held. */
PROGRAM
int locks(struct xdp_md *ctx)
{
	struct guarded *guarded;
	__u32 key = 0;

	BEGIN
	guarded = bpf_map_lookup_elem(&locked, &key);
	if (!guarded)
		return 1001;
	bpf_spin_lock(&guarded->lock);
	fill(guarded->bytes, ask->byte, sizeof(guarded->bytes));
	key = guarded->bytes[59];
	bpf_spin_unlock(&guarded->lock);
	return key;
}

/* Refused, each for its length or its memory. */
PROGRAM
int any_length(struct xdp_md *ctx)
{
	BEGIN
	fill(at->bytes, 0, *(__u64 *)ask->rest);
	return 0;
}

PROGRAM
int one_too_many(struct xdp_md *ctx)
{
	BEGIN
	copy(at->bytes + (ask->to & 511), at->bytes, 514 - (ask->bytes & 1));
	return 0;
}

PROGRAM
int packet_too_short(struct xdp_md *ctx)
{
	BEGIN
	copy(at->bytes, ask->rest, (ask->bytes & 1) + 64);
	return 0;
}

PROGRAM
int signed_length(struct xdp_md *ctx)
{
	BEGIN
	int bytes = ask->bytes;

	if (bytes > 64)
		return 0;
	copy(at->bytes, at->bytes + 512, bytes);
	return 0;
}

PROGRAM
int over_the_lock(struct xdp_md *ctx)
{
	struct guarded *guarded;
	__u32 key = 0;

	BEGIN
	guarded = bpf_map_lookup_elem(&locked, &key);
	if (guarded)
		fill(guarded, 0, ask->bytes & 7);
	return 0;
}

PROGRAM
int over_pointers(struct xdp_md *ctx)
{
	void *pointers[2];

	BEGIN
	*(void *volatile *)&pointers[0] = at;
	*(void *volatile *)&pointers[1] = at;
	copy(at->bytes, pointers, ask->bytes & 15);
	return 0;
}

PROGRAM
int over_the_context(struct xdp_md *ctx)
{
	BEGIN
	copy(at->bytes, ctx, 4);
	return 0;
}

PROGRAM
int null_of_some(struct xdp_md *ctx)
{
	BEGIN
	copy(at->bytes, 0, ask->bytes & 1);
	return 0;
}

/* A pointer that was returned is as far from the end as the one that was given. */
PROGRAM
int behind_what_is_returned(struct xdp_md *ctx)
{
	BEGIN
	__u8 *there = copy(at->bytes + (ask->to & 511), ask->rest, ask->bytes & 63);

	return there[513];
}

/* On the stack alone, whatever the context. */
PROGRAM
int on_the_stack(void *ctx __attribute__((unused)))
{
	__u8 a[40], b[40];
	int sum = 0;

	fill(a, 3, sizeof(a));
	fill(b, 0x105, sizeof(b));
	copy(a + 7, b, 9);
	move(a + 1, a, 30);
	for (int i = 0; i < 40; i++)
		sum += (i + 1) * a[i];
	return 4 * sum + compare(a, b, 40) + 1;
}

/* Refused; and stopped where nobody verifies. */
PROGRAM
int behind_the_stack(void *ctx __attribute__((unused)))
{
	__u8 a[40];

	fill(a, 3, 41 + 512);
	return a[39];
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
