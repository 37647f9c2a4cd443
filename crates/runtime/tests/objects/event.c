// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Programs on a context with structs in it: `event.h` is what `#[derive(BpfContext)]` says in tests/nested_contexts.rs.
 * `moved` was compiled against another layout, which CO-RE relocations put right.
 * mcpu: v3 (rebuild with `cargo xtask objects`)
 */
#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include "event.h"

SEC("event")
int direct(struct event *ctx)
{
	const __u8 *name = ctx->from.name;
	__u8 *text = ctx->text;

	ctx->answer.code = ctx->from.port + ctx->to.port;
	ctx->answer.tags[1] = ctx->from.address[2];
	if (name + 2 > ctx->from.name_end || text + 1 > ctx->text_end)
		return -1;
	text[0] = name[1];
	return ctx->kind;
}

struct endpoint___other {
	__u32 port;
	__u8 pad[100];
	__u32 address[4];
} __attribute__((preserve_access_index));

struct event___other {
	struct endpoint___other to;
	struct endpoint___other from;
	__u64 gone;
} __attribute__((preserve_access_index));

SEC("event")
int moved(struct event___other *ctx)
{
	int sum = ctx->from.port + 10 * ctx->to.port + 100 * ctx->to.address[3];

	if (bpf_core_field_exists(ctx->gone))
		return -1;
	if (!bpf_core_field_exists(ctx->to) || !bpf_core_type_exists(struct endpoint___other))
		return -2;
	return sum + 1000000 * bpf_core_field_size(ctx->from.address);
}

char _license[] SEC("license") = "GPL";
