// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Global data that contains an address, which no map can hold: one program uses it, one does not.
 * mcpu: v3 (rebuild with `cargo xtask objects`)
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

int target = 3;
int *volatile pointer SEC(".data.pointers") = &target;

SEC("socket")
int follows(void *ctx)
{
	(void)ctx;
	return *pointer;
}

SEC("socket")
int direct(void *ctx)
{
	(void)ctx;
	return target++;
}

char LICENSE[] SEC("license") = "GPL";
