// SPDX-License-Identifier: MIT OR Apache-2.0
// String search by a table of skips (Horspool). mcpu: v3
#include "bench.h"
ENTRY(strsearch)
{
	u32 found = 0; u8 *skip = memory + 3840;
	if (length < 4096) return 0;
	for (u32 i = 0; i < 256; i++) skip[i] = 5;
	for (u32 i = 0; i < 4; i++) skip[memory[i] & 15] = 4 - i;
	for (u64 at = 8; at + 5 <= 3800; ) {
		u32 j = 5;
		while (j > 0 && (memory[at + j - 1] & 15) == (memory[j - 1] & 15)) j--;
		if (!j) { found += at; at++; } else at += skip[memory[at + 4] & 15];
	}
	return found;
}
