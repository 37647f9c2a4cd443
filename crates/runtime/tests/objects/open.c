// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Programs that use constants as indices, verified for the object's value, and for every value.
 * mcpu: v3 (rebuild with `cargo xtask objects`)
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#define UNUSED __attribute__((unused))

/* Each tenant has its own. */
const volatile __u64 limit SEC(".rodata.tenant") = 2;
/* One for all. */
const volatile __u64 place = 3;

__u64 words[4] = { 10, 11, 12, 13 };

/* Any limit will do. */
SEC("raw/within")
__u64 within(const __u8 *bytes UNUSED, __u64 len UNUSED)
{
	__u64 i = limit;

	return i < 4 ? words[i] : 1000;
}

/* The limit of the object would do, and larger ones would not. */
SEC("raw/trusts")
__u64 trusts(const __u8 *bytes UNUSED, __u64 len UNUSED)
{
	return words[limit];
}

/* The place of the object will do. */
SEC("raw/relies")
__u64 relies(const __u8 *bytes UNUSED, __u64 len UNUSED)
{
	return words[place];
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
