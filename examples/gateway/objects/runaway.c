// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * A plug-in that computes for too long: its budget ends it.
 * mcpu: v3 (rebuild with `cargo xtask objects`)
 */
#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>
#include "../request.h"

static long spin(__u32 round, void *sum)
{
	*(__u64 *)sum += round;
	return 0;
}

SEC("gateway.s/request")
int on_request(struct request *request)
{
	__u64 sum = request->method;

	bpf_loop(1 << 23, spin, &sum, 0);
	return sum ? PASS : ANSWER;
}

char LICENSE[] SEC("license") = "MIT OR Apache-2.0";
