// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Functions called by a flavoured name: they are those of the name before the three underscores, if they have the
 * prototype that is declared.
 * mcpu: v3 (rebuild with `cargo xtask objects`)
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#define EXISTS(function) ((void *)&function != 0)

struct bpf_dynptr;
extern int bpf_dynptr_from_xdp___now(struct xdp_md *ctx, __u64 flags, struct bpf_dynptr *out) __ksym __weak;
extern int bpf_dynptr_from_xdp___short(struct xdp_md *ctx, __u64 flags) __ksym __weak;
extern int bpf_dynptr_from_xdp___swapped(struct xdp_md *ctx, struct bpf_dynptr *out, __u64 flags) __ksym __weak;
extern __u32 bpf_dynptr_size___any(const struct bpf_dynptr *of) __ksym;
extern int of_the_host___old(__u32 number) __ksym __weak;

SEC("xdp") int exist(struct xdp_md *ctx)
{
	(void)ctx;
	return (EXISTS(bpf_dynptr_from_xdp___now) ? 1 : 0) + (EXISTS(bpf_dynptr_from_xdp___short) ? 2 : 0) +
	       (EXISTS(bpf_dynptr_from_xdp___swapped) ? 4 : 0) + (EXISTS(of_the_host___old) ? 8 : 0);
}

SEC("xdp") int length(struct xdp_md *ctx)
{
	struct bpf_dynptr packet;

	if (!EXISTS(bpf_dynptr_from_xdp___now) || bpf_dynptr_from_xdp___now(ctx, 0, &packet))
		return -1;
	return bpf_dynptr_size___any(&packet);
}

SEC("xdp") int hosts(struct xdp_md *ctx)
{
	(void)ctx;
	return EXISTS(of_the_host___old) ? of_the_host___old(7) : 0;
}

char _license[] SEC("license") = "GPL";
