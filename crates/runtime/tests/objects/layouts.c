// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Programs that were compiled against other versions of the host's `struct question` (tests/programs/layouts.rs).
 * mcpu: v3 (rebuild with `cargo xtask objects`)
 */
#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>

#define RELOCATED __attribute__((preserve_access_index))

// The layout before `id` came first.
struct question___old {
	__u32 method;
	__u32 verdict;
	const __u8 *body;
	const __u8 *body_end;
	char tag[4];
	__u32 priority;
};

struct question___old_relocated {
	__u32 method;
	__u32 verdict;
	const __u8 *body;
	const __u8 *body_end;
	char tag[4];
	__u32 priority;
} RELOCATED;

// As in the host, but for the names and kinds of fields that are not accessed, and for one that is.
struct question___near {
	__u64 number;
	__s32 method;
	__u32 verdict;
	const __u8 *body;
	const __u8 *body_end;
	char tag[6];
};

SEC("question")
int stale(struct question___old *ctx)
{
	return ctx->method;
}

SEC("question")
int untouched(struct question___old *ctx)
{
	(void)ctx;
	return 3;
}

SEC("question")
int relocated(struct question___old_relocated *ctx)
{
	const __u8 *body = ctx->body;

	ctx->verdict = ctx->method + ctx->tag[2];
	return body + 1 > ctx->body_end ? -1 : body[0];
}

SEC("question")
int gone(struct question___old_relocated *ctx)
{
	return ctx->priority;
}

SEC("question")
int guarded(struct question___old_relocated *ctx)
{
	return bpf_core_field_exists(ctx->priority) ? ctx->priority : 5;
}

SEC("question")
int unmoved(struct question___near *ctx)
{
	const __u8 *body = ctx->body;

	ctx->verdict = 9;
	return body + 1 > ctx->body_end ? -1 : body[0] + ctx->tag[1];
}

SEC("question")
int other_sign(struct question___near *ctx)
{
	return ctx->method < 0;
}

SEC("question")
int other_name(struct question___near *ctx)
{
	return ctx->number;
}

char _license[] SEC("license") = "GPL";
