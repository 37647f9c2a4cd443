// SPDX-License-Identifier: MIT OR Apache-2.0
// Division and remainder by constants (which a native compiler turns into multiplications) and by variables, in both
// widths. mcpu: v3
#include "bench.h"

ENTRY(divmod)
{
	const u64 *words = (const u64 *)memory;
	u64 sum = 0;

	for (u64 i = 0; i + 1 < length / 8; i += 2) {
		u64 x = words[i], y = words[i + 1];

		sum += x / 10 + x % 1000;
		sum += (u32)x / 7 + (u32)y % 60;
		sum += x / (y >> 40 | 1);
		sum ^= (u32)y % ((u32)x & 0xffff);
	}
	return (u32)(sum ^ sum >> 32);
}
