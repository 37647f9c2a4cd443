// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * The time plus a random number, for tests of test files.
 * mcpu: v3 (rebuild with `cargo xtask objects`)
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

struct request;

SEC("request/clock") int clock(struct request *request)
{
	(void)request;
	return bpf_ktime_get_ns() + bpf_get_prandom_u32();
}

SEC("request/ticks") int ticks(struct request *request)
{
	(void)request;
	return bpf_jiffies64();
}

char LICENSE[] SEC("license") = "MIT OR Apache-2.0";
