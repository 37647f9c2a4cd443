// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Calls the host's function without end, and in a program that waits.
 * mcpu: v3 (rebuild with `cargo xtask objects`)
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

extern void say(const void *text, __u64 length) __ksym;

static const char text[] = "x";

static int again(__u32 round, void *none)
{
	(void)round, (void)none;
	say(text, 1);
	return 0;
}

SEC("request/flood") int flood(void *context)
{
	(void)context;
	bpf_loop(1 << 17, again, 0, 0);
	return 0;
}

SEC("request.s/waits") int waits(void *context)
{
	(void)context;
	say(text, 1);
	return 3;
}

char LICENSE[] SEC("license") = "MIT OR Apache-2.0";
