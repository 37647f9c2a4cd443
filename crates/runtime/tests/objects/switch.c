// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * A `switch` over many values, which clang 22 compiles to an indirect jump by a table of its own.
 * compiler: clang-22
 * mcpu: v4 v3 (rebuild with `cargo xtask objects`)
 */
#include <linux/bpf.h>

#define SEC(name) __attribute__((section(name), used))

SEC("xdp") int choose(struct xdp_md *ctx)
{
	unsigned char *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;

	if (data + 2 > end)
		return 1000;
	unsigned what = data[0], x = data[1];

	switch (what) {
	case 0: return x + 3;
	case 1: return x * 7;
	case 2: x ^= 0x55; break;
	case 3: return x >> 1;
	case 4: x *= x; break;
	case 5: return 99;
	case 6: x -= what; break;
	case 7: return x & 15;
	case 8: return x & 1;
	case 9: return x | 128;
	case 10: x <<= 3; break;
	case 12: return x % 13;
	case 14: return x + 14;
	case 15: return x << 1;
	default: return 2;
	}
	return x + what;
}

char LICENSE[] SEC("license") = "GPL";
