// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * A function of the name of one of C's, which the object defines itself.
 * mcpu: v3 (rebuild with `cargo xtask objects`)
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

int own(int a, int b) __asm__("memcmp");

__attribute__((noinline)) int own(int a, int b)
{
	return 3 * a + b;
}

SEC("xdp")
int calls(struct xdp_md *ctx)
{
	return own(ctx->ingress_ifindex, 5);
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
