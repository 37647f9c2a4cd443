// SPDX-License-Identifier: MIT OR Apache-2.0
// A tokenizer of JSON. mcpu: v3
#include "bench.h"
/* integers, strings, nesting: over bytes mapped to a json-like alphabet */
ENTRY(json)
{
	u64 i = 0; u32 depth = 0, sum = 0, strings = 0;
	if (length < 4096) return 0;
	while (i < 4000) {
		u8 c = memory[i] & 127;
		switch (c) {
		case '{': case '[': depth++; i++; break;
		case '}': case ']': if (depth) depth--; i++; break;
		case '"': {
			u64 n = 0; i++;
			while (i < 4000 && n < 20 && (memory[i] & 127) != '"') { if ((memory[i] & 127) == '\\') i++; i++; n++; }
			i++; strings += n; break; }
		case '0'...'9': case '-': {
			u32 v = 0; u32 neg = c == '-'; if (neg) i++;
			while (i < 4000 && (memory[i] & 127) - '0' < 10u) { v = v * 10 + (memory[i] & 127) - '0'; i++; }
			sum += neg ? -v : v; i += neg ? 0 : 0; if (neg) i++; break; }
		case ' ': case '\n': case ',': case ':': i++; break;
		default: sum ^= c << (depth & 15); i++;
		}
	}
	return sum + depth * 7 + strings * 13;
}
