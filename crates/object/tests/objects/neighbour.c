// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * A static subprogram in the section of its programs, called without a relocation. (libbpf refuses this.)
 * mcpu: v3 (rebuild with `cargo xtask objects`)
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

SEC("socket")
int before(void *ctx);

static __attribute__((noinline, section("socket"))) __u64 neighbour(__u64 x)
{
	asm volatile("" ::: "memory");
	return x ^ 0x55;
}

SEC("socket")
int after(void *ctx)
{
	return neighbour((__u64)(long)ctx) + 1;
}

SEC("socket")
int before(void *ctx)
{
	return neighbour((__u64)(long)ctx & 0xff);
}

char LICENSE[] SEC("license") = "GPL";
