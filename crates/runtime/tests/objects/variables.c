// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Programs whose variables a debugger prints: in registers, on the stack, in a structure, in an inlined function.
 * mcpu: v4 (rebuild with `cargo xtask objects`), dwarf: kept
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#define NOINLINE __attribute__((noinline))

static __u64 (*probe)(__u64) = (void *)1001;

enum colour { RED = 1, GREEN = 2 };

struct order {
	__u32 price;
	__u16 count;
	__u16 flags : 4, rest : 12;
	enum colour colour;
	struct order *next;
};

/* A structure on the stack, whose address is taken. */
static NOINLINE __u64 total(struct order *order, __u32 discount)
{
	__u64 sum = order->price * order->count; /* line: sum */

	sum -= discount; /* line: discount */
	sum += probe(sum); /* line: probe */
	return sum + order->price; /* line: total */
}

static __always_inline __u64 doubled(__u64 amount)
{
	__u64 twice = amount * 2;

	return probe(twice) + twice; /* line: inlined */
}

SEC("raw/bill")
__u64 bill(__u64 *data, __u64 len)
{
	volatile __u64 kept = len + 1;
	struct order order = {.price = 7, .count = 6, .flags = 5, .rest = 9, .colour = GREEN};
	__u64 due;

	order.next = &order;
	due = total(&order, (__u32)data[0]); /* line: bill */
	due += doubled(due);
	return due + kept; /* line: end */
}

char _license[] SEC("license") = "MIT";
