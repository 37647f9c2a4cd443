// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Constants that the host sets before the load decide which code is compiled.
 * mcpu: v3 (rebuild with `cargo xtask objects`)
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

const volatile __u8 verbose = 0;
const volatile __u32 mode = 0;
const volatile __u64 table[4] = { 10, 20, 30, 40 };

/* Not a helper of any kernel or host: a call that is reached is refused. */
static long (*missing)(__u64 value) = (void *)7777;

static __attribute__((noinline)) __u64 slow(const __u8 *bytes, __u64 len)
{
	__u64 sum = 0;

	for (__u64 i = 0; i < 64; i++) {
		if (i >= len)
			break;
		sum = sum * 31 + bytes[i];
	}
	return sum;
}

SEC("raw/entry")
__u64 entry(const __u8 *bytes, __u64 len)
{
	__u64 result = table[1];

	if (verbose)
		result += missing(len);
	if (mode == 1)
		result += slow(bytes, len);
	else if (mode == 2)
		result += len;
	return result;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
