// SPDX-License-Identifier: MIT OR Apache-2.0
// Expands a stream of literals and back references made of the memory's first half, into its second. mcpu: v3
#include "bench.h"

ENTRY(lz)
{
	const u8 *in = memory;
	u8 *out = memory + 2048;
	u64 from = 0, to = 0;
	u32 sum = 0;

	if (length < 4096)
		return 0;
	while (from < 1000 && to < 1900) {
		u8 token = in[from++];

		if (token < 160) {
			out[to++] = token;
		} else {
			u64 back = 1 + in[from++] % 64, count = 3 + (token & 15);

			if (back > to)
				back = to;
			if (!back)
				continue;
			for (u64 i = 0; i < count; i++, to++)
				out[to] = out[to - back];
		}
	}
	for (u64 i = 0; i < to; i++)
		sum = sum * 31 + out[i];
	return sum;
}
