// SPDX-License-Identifier: MIT OR Apache-2.0
// Binary search. mcpu: v3
#include "bench.h"
ENTRY(bsearch)
{
	u32 *keys = (u32*)(memory + 2048); u32 sum = 0; const u32 *in = (const u32*)memory;
	if (length < 4096) return 0;
	for (u32 i = 0; i < 256; i++) keys[i] = i * 0x00fedcba;
	for (u32 i = 0; i < 256; i++) {
		u32 want = in[i], lo = 0, hi = 256;
		while (lo < hi) {
			u32 mid = (lo + hi) / 2;
			if (keys[mid] < want) lo = mid + 1; else hi = mid;
		}
		sum += lo;
	}
	return sum;
}
