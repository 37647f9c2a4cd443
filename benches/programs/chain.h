/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A chain of tail calls: hop n jumps to hop n + 1 through a constant slot; the entry and 33 jumps, the most a run may
 * take. Each hop keeps the context in a callee-saved register only if it must; `busy` hops hold values in r6 to r9, so
 * that what a site has to restore before its jump shows.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#ifdef CHAIN_XDP
#define CONTEXT struct xdp_md
#define CHAIN_SECTION(name) SEC("xdp")
#else
#define CONTEXT void
#define CHAIN_SECTION(name) SEC("raw/chain/" #name)
#endif

enum { HOPS = 33 };

#define EACH_HOP(X)                                                                                     \
	X(0, 1) X(1, 2) X(2, 3) X(3, 4) X(4, 5) X(5, 6) X(6, 7) X(7, 8) X(8, 9) X(9, 10) X(10, 11)       \
	X(11, 12) X(12, 13) X(13, 14) X(14, 15) X(15, 16) X(16, 17) X(17, 18) X(18, 19) X(19, 20)        \
	X(20, 21) X(21, 22) X(22, 23) X(23, 24) X(24, 25) X(25, 26) X(26, 27) X(27, 28) X(28, 29)        \
	X(29, 30) X(30, 31) X(31, 32) X(32, 33)

#define DECLARE(n, next) int hop_##n(CONTEXT *ctx);
EACH_HOP(DECLARE)
int hop_33(CONTEXT *ctx);

#define SLOT(n, next) [n] = (void *)&hop_##n,
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, HOPS + 1);
	__uint(key_size, sizeof(__u32));
	__array(values, int(CONTEXT *));
} hops SEC(".maps") = {
	.values = { EACH_HOP(SLOT)[33] = (void *)&hop_33 },
};

#ifdef CHAIN_BUSY
/* Four values that live across a helper call and the jump's site; the asm keeps the compiler from folding them. */
#define WORK                                                                                            \
	__u64 a = 1, b = 2, c = 3, d = 4;                                                               \
	asm volatile("" : "+r"(a), "+r"(b), "+r"(c), "+r"(d));                                          \
	(void)bpf_get_smp_processor_id();                                                               \
	asm volatile("" : "+r"(a), "+r"(b), "+r"(c), "+r"(d));
#define RESULT(n) ((int)(n + a + b + c + d - 10))
#else
#define WORK
#define RESULT(n) (n)
#endif

#define HOP(n, next)                                            \
	CHAIN_SECTION(n) int hop_##n(CONTEXT *ctx)              \
	{                                                       \
		WORK                                            \
		bpf_tail_call_static(ctx, &hops, next);         \
		return RESULT(n);                               \
	}
EACH_HOP(HOP)

CHAIN_SECTION(33) int hop_33(CONTEXT *ctx)
{
	(void)ctx;
	return HOPS;
}

char LICENSE[] SEC("license") = "MIT OR Apache-2.0";
