// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Plug-ins that implement an interface, and some that do not.
 * mcpu: v3 (rebuild with `cargo xtask objects`)
 */
#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>
#include "policy.h"

__u64 picks;

SEC("struct_ops/pick")
__u32 by_port(struct conn *c)
{
	picks++;
	return c->port % 4;
}

SEC("struct_ops/done")
void mark(struct conn *c)
{
	c->seen = 7;
}

SEC("struct_ops/weigh")
__s64 lighten(struct conn *c)
{
	return -(__s64)c->port;
}

SEC("struct_ops/pick")
__u32 always_nine(struct conn *c __attribute__((unused)))
{
	return 9;
}

SEC(".struct_ops.link")
struct policy full = {
	.pick = by_port,
	.done = mark,
	.weigh = lighten,
	.weight = 5,
	.name = "full",
};

SEC(".struct_ops")
struct policy small = {
	.pick = always_nine,
};

/* Lacks what is not optional. */
SEC(".struct_ops")
struct policy none = {
	.done = mark,
};

/* The host would get what is left in r0. */
SEC(".struct_ops")
struct policy result_of_nothing = {
	.pick = (void *)mark,
};

struct wrong_return {
	__u64 (*pick)(struct conn *c);
};

SEC(".struct_ops")
struct wrong_return returns_more = {
	.pick = (void *)by_port,
};

struct wrong_argument {
	__u32 (*pick)(struct policy *p);
};

SEC(".struct_ops")
struct wrong_argument takes_another = {
	.pick = (void *)by_port,
};

struct extended {
	__u32 (*pick)(struct conn *c);
	void (*later)(struct conn *c);
};

SEC(".struct_ops")
struct extended newer = {
	.pick = by_port,
	.later = mark,
};

SEC(".struct_ops")
struct extended newer_unused = {
	.pick = by_port,
};

struct no_function {
	__u32 pick;
};

SEC(".struct_ops")
struct no_function number = {
	.pick = 1,
};

enum verdict {
	PASS,
	DROP,
};

enum lean {
	LEFT = -1,
	UPRIGHT,
	RIGHT,
};

struct judge {
	enum verdict (*judge)(struct conn *c);
	enum lean (*lean)(struct conn *c);
};

SEC("struct_ops/judge")
enum verdict odd_ports(struct conn *c)
{
	return c->port % 2 ? PASS : DROP;
}

SEC("struct_ops/lean")
enum lean low_ports(struct conn *c)
{
	return c->port < 1024 ? LEFT : RIGHT;
}

SEC(".struct_ops")
struct judge enumerations = {
	.judge = odd_ports,
	.lean = low_ports,
};

/* A member's name may be a keyword of Rust. */
struct matcher {
	__u32 (*match)(struct conn *c);
};

SEC(".struct_ops")
struct matcher keyword = {
	.match = by_port,
};
