// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Plug-ins that implement an interface with a method that may wait.
 * mcpu: v3 (rebuild with `cargo xtask objects`)
 */
#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>

struct conn {
	const __u32 port;
	__u32 seen;
} __attribute__((preserve_access_index));

struct lookups {
	__u32 (*find)(struct conn *c);
	__u32 (*hint)(struct conn *c);
	__u32 (*pick)(struct conn *c);
	void (*done)(struct conn *c);
};

extern __u64 wait(__u64 polls) __ksym;

SEC("struct_ops.s/find")
__u32 find(struct conn *c)
{
	c->seen = 1;
	return wait(c->port) + c->port;
}

SEC("struct_ops.s/done")
void tell(struct conn *c)
{
	wait(1);
	c->seen += 10;
}

SEC("struct_ops/pick")
__u32 pick(struct conn *c)
{
	return c->port % 4;
}

SEC(".struct_ops.link")
struct lookups waits = {
	.find = find,
	.pick = pick,
	.done = tell,
};

/* A method that is awaited may have a program that does not wait. */
SEC(".struct_ops.link")
struct lookups plain = {
	.find = pick,
	.hint = pick,
	.pick = pick,
};

/* A method that is not awaited may not wait. */
SEC(".struct_ops.link")
struct lookups wrong = {
	.find = find,
	.pick = find,
};

char LICENSE[] SEC("license") = "MIT OR Apache-2.0";
