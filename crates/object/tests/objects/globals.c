// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Global data in every kind of section, static variables included, and addresses inside of arrays.
 * mcpu: v3 (rebuild with `cargo xtask objects`)
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

const volatile __u32 threshold = 10;
const volatile struct {
	__u8 enabled;
	__u64 mask;
} config = { .enabled = 1, .mask = 0xff00 };

__u64 hits = 5;
__u32 table[16] = { 0, 1, 4, 9, 16, 25, 36, 49, 64, 81, 100, 121, 144, 169, 196, 225 };
__u64 misses;
static volatile __u32 last;
static volatile __u32 calls = 1;
__u64 in_custom SEC(".data.custom") = 0x1122334455667788;
const volatile __u16 ro_custom SEC(".rodata.custom") = 77;
__u8 zeroes[3] SEC(".bss.custom");

SEC("socket")
int sum(void *ctx)
{
	static volatile __u32 runs;

	(void)ctx;
	runs++;
	calls++;
	last = table[3] + ((volatile __u32 *)table)[15];
	if (last > threshold)
		hits++;
	else
		misses++;
	zeroes[2] = 1;
	return last + config.enabled + ro_custom + in_custom + runs;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
__u32 VERSION SEC("version") = 0x061200;
