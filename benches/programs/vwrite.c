// SPDX-License-Identifier: MIT OR Apache-2.0
// A writer of varints. mcpu: v3
#include "bench.h"
ENTRY(vwrite)
{
	const u32 *in = (const u32*)memory; u8 *out = memory + 1536; u64 n = 0; u32 sum = 0;
	if (length < 4096) return 0;
	for (u32 i = 0; i < 384; i++) {
		u32 v = in[i] >> (i & 31);
		v = v << 1 ^ (s64)(int)v >> 31;
		while (v >= 0x80) { out[n++] = v | 0x80; v >>= 7; }
		out[n++] = v;
	}
	for (u64 i = 0; i < n; i++) sum = sum * 31 + out[i];
	return sum;
}
