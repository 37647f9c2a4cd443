// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * The packet filter over raw bytes: r1 = the packet, r2 = its length. Returns XDP's verdict numbers.
 * mcpu: v4 (rebuild with `cargo xtask objects`)
 */
#include "filter.h"

SEC("raw/filter")
int filter(const __u8 *packet, __u64 length)
{
	__u32 protocol;
	enum verdict verdict = judge(packet, packet + length, &protocol);

	count(protocol, verdict, length);
	return verdict;
}

char LICENSE[] SEC("license") = "MIT OR Apache-2.0";
