// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * A program on a context of the host's own: `request.h` is what `#[derive(BpfContext)]` says in tests/contexts.rs.
 * mcpu: v3 (rebuild with `cargo xtask objects`)
 */
#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>
#include "request.h"

// Verified by its signature: a pointer to the context is the context.
__attribute__((noinline)) int weigh(struct request *ctx)
{
	const __u8 *head = ctx->head;

	if (head + 4 > ctx->head_end)
		return -1;
	return head[3];
}

// Adds up the head, upper-cases the body, and reports in the writable fields.
SEC("request")
int filter(struct request *ctx)
{
	const __u8 *head = ctx->head;
	__u8 *body = ctx->body;
	__s64 score = 0;

	for (int i = 0; i < 8; i++) {
		if (head + i + 1 > ctx->head_end)
			break;
		score += head[i];
	}
	for (int i = 0; i < 16; i++) {
		if (body + i + 1 > ctx->body_end)
			break;
		if (body[i] >= 'a' && body[i] <= 'z')
			body[i] -= 'a' - 'A';
	}
	ctx->score = score;
	ctx->tag[2] = ctx->ports[1];
	ctx->verdict = ctx->method + 1;
	return weigh(ctx);
}

char _license[] SEC("license") = "GPL";
