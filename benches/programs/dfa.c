// SPDX-License-Identifier: MIT OR Apache-2.0
// An automaton by tables. mcpu: v3
#include "bench.h"
/* tokens: identifiers, numbers, spaces, other; by a class table and a transition table in memory */
ENTRY(dfa)
{
	u8 *cls = memory + 3072; u8 *next = memory + 3328; u32 counts[4] = {0}; u32 state = 0, sum = 0;
	if (length < 4096) return 0;
	for (u32 c = 0; c < 256; c++) cls[c] = c - 'a' < 26u || c - 'A' < 26u ? 1 : c - '0' < 10u ? 2 : c == ' ' || c == '\n' ? 3 : 0;
	for (u32 s = 0; s < 4; s++) for (u32 c = 0; c < 4; c++) next[s * 4 + c] = s == 1 && c == 2 ? 1 : c;
	for (u64 i = 0; i < 3000; i++) {
		u32 to = next[state * 4 + cls[memory[i]]];
		if (to != state) { counts[to & 3]++; sum = sum * 31 + to; }
		state = to;
	}
	return sum + counts[0] + counts[1] * 3 + counts[2] * 5 + counts[3] * 7;
}
