// SPDX-License-Identifier: MIT OR Apache-2.0
// Byte-wise comparison of the two halves of the memory. mcpu: v3
#include "bench.h"

ENTRY(memcmp)
{
	u64 half = length / 2;

	for (u64 i = 0; i < half; i++) {
		int difference = memory[i] - memory[half + i];

		if (difference)
			return (u32)i + (difference << 16);
	}
	return (u32)half;
}
