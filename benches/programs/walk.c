// SPDX-License-Identifier: MIT OR Apache-2.0
// A walk through a table: every step's address depends on the step before. mcpu: v3
#include "bench.h"

ENTRY(walk)
{
	const u32 *table = (const u32 *)memory;
	u32 at = 0, sum = 0;

	for (u64 i = 0; i < length; i++) {
		at = table[at & 1023];
		sum += at ^ (u32)i;
	}
	return sum;
}
