// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Two policies: tables of functions, as the kernel's struct_ops.
 * mcpu: v3 (rebuild with `cargo xtask objects`)
 */
#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>
#include "policy.h"

enum verb { READ, WRITE, ERASE };
enum role { GUEST, MEMBER, ADMIN };
enum verdict { DENY, ALLOW };
enum reason { NONE, ROLE, HOUR, BANNED };

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, __u32);
	__type(value, __u32);
} banned SEC(".maps");

SEC("struct_ops/decide")
__u32 by_role_and_hour(struct question *question)
{
	__u32 user = question->user;

	if (bpf_map_lookup_elem(&banned, &user)) {
		question->reason = BANNED;
		return DENY;
	}
	if (question->verb > question->role) {
		question->reason = ROLE;
		return DENY;
	}
	if (question->verb != READ && (question->hour < 8 || question->hour >= 18)) {
		question->reason = HOUR;
		return DENY;
	}
	return ALLOW;
}

SEC("struct_ops/price")
__u64 by_verb(struct question *question)
{
	return question->verb == ERASE ? 10 : 2;
}

SEC("struct_ops/decide")
__u32 only_admins_read(struct question *question)
{
	if (question->role == ADMIN && question->verb == READ)
		return ALLOW;
	question->reason = ROLE;
	return DENY;
}

SEC(".struct_ops")
struct policy office = {
	.decide = by_role_and_hour,
	.price = by_verb,
	.name = "office",
};

SEC(".struct_ops")
struct policy lockdown = {
	.decide = only_admins_read,
	.name = "lockdown",
};

char LICENSE[] SEC("license") = "MIT OR Apache-2.0";
