// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * CO-RE relocations to names that several types of another host have (core_candidates_host.c). The packet's bytes are
 * 0, 1, 2, ..., and its start is taken for a structure of that host.
 * mcpu: v3 (rebuild with `cargo xtask objects`)
 */
#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>

#pragma clang diagnostic ignored "-Wunused-parameter"
#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

/* Each field is in one of the two. */
struct twice {
	__u32 in_first;
	__u32 in_second;
};
/* The field is in both, at different offsets. */
struct differs {
	__u32 value;
};
/* The field is in both, at one offset. */
struct agrees {
	__u32 value;
};

#pragma clang attribute pop

enum level { LOW = 90, HIGH = 91 };

#define AT(type, name, ctx) \
	struct type *name = (void *)(long)(ctx)->data; \
	if ((void *)(name) + 64 > (void *)(long)(ctx)->data_end) \
		return -1

SEC("xdp")
int first(struct xdp_md *ctx)
{
	AT(twice, at, ctx);
	return at->in_first;
}

SEC("xdp")
int second(struct xdp_md *ctx)
{
	AT(twice, at, ctx);
	return at->in_second;
}

SEC("xdp")
int exists(struct xdp_md *ctx)
{
	return bpf_core_field_exists(((struct twice *)0)->in_second);
}

/* The type that a name matched first in a program is its meaning in all of the program: libbpf's rule. */
SEC("xdp")
int either(struct xdp_md *ctx)
{
	return bpf_core_field_exists(((struct twice *)0)->in_first) |
	       bpf_core_field_exists(((struct twice *)0)->in_second) << 1;
}

SEC("xdp")
int ambiguous(struct xdp_md *ctx)
{
	AT(differs, at, ctx);
	return at->value;
}

SEC("xdp")
int agreeing(struct xdp_md *ctx)
{
	AT(agrees, at, ctx);
	return at->value;
}

SEC("xdp")
int low(struct xdp_md *ctx)
{
	return bpf_core_enum_value(enum level, LOW);
}

SEC("xdp")
int high(struct xdp_md *ctx)
{
	return bpf_core_enum_value(enum level, HIGH);
}

char LICENSE[] SEC("license") = "GPL";
