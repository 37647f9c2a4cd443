// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * CO-RE relocations of contexts: the structs here have other layouts than the host's, on purpose, so that nothing works
 * unless the relocations are applied.
 * mcpu: v3 (rebuild with `cargo xtask objects`)
 */
#include <linux/types.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>

enum xdp_action { XDP_DROP = 70, XDP_PASS = 71, XDP_NO_SUCH = 72 };

struct xdp_md {
	__u64 other;
	__u32 rx_queue_index;
	__u32 data_end;
	__u32 no_such_field;
	__u32 data;
} __attribute__((preserve_access_index));

/* This struct is the one of an older kernel. */
struct xdp_md___flavour {
	char pad[100];
	__u32 ingress_ifindex;
} __attribute__((preserve_access_index));

struct task_struct {
	int pid;
	int tgid;
} __attribute__((preserve_access_index));

/* 64 bits wide here, 32 there. */
struct __sk_buff {
	__u64 data_end, mark, cb[5], data, priority;
} __attribute__((preserve_access_index));

struct request___shuffled {
	__s64 score;
	__u8 tag[4];
	__u8 *body_end;
	__u16 ports[2];
	__u8 *body;
	__u32 verdict;
	__u32 method;
} __attribute__((preserve_access_index));

SEC("xdp")
int shuffled(struct xdp_md *ctx)
{
	__u8 *data = (__u8 *)(long)ctx->data;
	struct xdp_md___flavour *old = (void *)ctx;

	if (data + 2 > (__u8 *)(long)ctx->data_end)
		return bpf_core_enum_value(enum xdp_action, XDP_DROP);
	return data[1] + 1000 * ctx->rx_queue_index + 100000 * old->ingress_ifindex;
}

/* Bits: what exists. */
SEC("xdp")
int asks(struct xdp_md *ctx)
{
	int r = 0;

	r |= bpf_core_field_exists(ctx->data) << 0;
	r |= bpf_core_field_exists(ctx->no_such_field) << 1;
	r |= bpf_core_type_exists(struct xdp_md) << 2;
	r |= bpf_core_type_exists(struct task_struct) << 3;
	r |= bpf_core_enum_value_exists(enum xdp_action, XDP_PASS) << 4;
	r |= bpf_core_enum_value_exists(enum xdp_action, XDP_NO_SUCH) << 5;
	r |= (bpf_core_type_size(struct xdp_md) == 24) << 6;
	r |= (bpf_core_field_size(ctx->data) == 4) << 7;
	r |= (bpf_core_field_offset(ctx->data_end) == 4) << 8;
	r |= bpf_core_field_exists(((struct task_struct *)0)->pid) << 9;
	return r;
}

/* A program may ask for a field that does not exist, if it does not access it then. */
SEC("xdp")
int guarded(struct xdp_md *ctx)
{
	if (bpf_core_field_exists(ctx->no_such_field))
		return ctx->no_such_field;
	return bpf_core_enum_value(enum xdp_action, XDP_PASS);
}

SEC("xdp")
int missing_field(struct xdp_md *ctx)
{
	return ctx->no_such_field;
}

SEC("xdp")
int missing_type(struct xdp_md *ctx)
{
	struct task_struct *task = (void *)ctx;

	return task->tgid;
}

SEC("xdp")
int missing_value(struct xdp_md *ctx)
{
	(void)ctx;
	return bpf_core_enum_value(enum xdp_action, XDP_NO_SUCH);
}

SEC("tc")
int resized(struct __sk_buff *skb)
{
	skb->mark = skb->cb[2] + skb->priority;
	skb->cb[3] = 9;
	return bpf_core_field_size(skb->mark);
}

SEC("request")
int derived(struct request___shuffled *ctx)
{
	__u8 *body = ctx->body;

	if (body + 1 <= ctx->body_end)
		body[0] = ctx->ports[1];
	ctx->tag[3] = 77;
	ctx->verdict = ctx->method;
	return (bpf_core_field_size(ctx->score) == 8) + 2 * __builtin_preserve_field_info(ctx->score, BPF_FIELD_SIGNED);
}

char _license[] SEC("license") = "GPL";
