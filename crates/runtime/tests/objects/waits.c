// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * A run that lasts as long as the host says.
 * mcpu: v3 (rebuild with `cargo xtask objects`)
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#define UNUSED __attribute__((unused))

__u64 runs;

static __u64 (*wait)(void) = (void *)1001;

SEC("raw/entry")
__u64 entry(const __u8 *bytes UNUSED, __u64 len UNUSED)
{
	runs += 1;
	return wait();
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
