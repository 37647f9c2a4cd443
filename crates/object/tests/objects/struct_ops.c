// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Tables of programs, with and without a link.
 * mcpu: v3 (rebuild with `cargo xtask objects`)
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

struct policy {
	int (*pick)(void *ctx);
	unsigned int weight;
	void (*done)(void *ctx);
	int (*unused)(void *ctx);
	char name[16];
};

SEC("struct_ops/pick")
int pick(void *ctx __attribute__((unused)))
{
	return 1;
}

SEC("struct_ops/done")
void done(void *ctx __attribute__((unused)))
{
}

SEC("struct_ops.s")
int other(void *ctx __attribute__((unused)))
{
	return 2;
}

SEC(".struct_ops")
struct policy first = {
	.pick = (void *)pick,
	.weight = 7,
	.done = (void *)done,
	.name = "first",
};

SEC(".struct_ops.link")
struct policy second = {
	.pick = (void *)other,
	.name = "second",
};

SEC(".struct_ops.link")
struct policy empty = {
	.weight = 1,
};
