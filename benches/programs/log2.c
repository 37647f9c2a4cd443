// SPDX-License-Identifier: MIT OR Apache-2.0
// The binary logarithm of every word, by halving the width: shifts and data-dependent branches. mcpu: v3
#include "bench.h"

INLINE u32 log2_of(u64 x)
{
	u32 log = 0;

	if (x >> 32) {
		log += 32;
		x >>= 32;
	}
	if (x >> 16) {
		log += 16;
		x >>= 16;
	}
	if (x >> 8) {
		log += 8;
		x >>= 8;
	}
	if (x >> 4) {
		log += 4;
		x >>= 4;
	}
	if (x >> 2) {
		log += 2;
		x >>= 2;
	}
	return log + (u32)(x >> 1);
}

ENTRY(log2)
{
	const u64 *words = (const u64 *)memory;
	u32 sum = 0;

	for (u64 i = 0; i < length / 8; i++)
		sum += log2_of(words[i]);
	return sum;
}
