// SPDX-License-Identifier: MIT OR Apache-2.0
// MurmurHash3, 32 bits. mcpu: v3
#include "bench.h"
ENTRY(murmur)
{
	u32 sum = 0;
	for (u64 at = 0; at + 40 <= length && at < 4000; at += 40) {
		u32 h = at, len = 20 + (memory[at] & 15);
		const u8 *p = memory + at; u32 i;
		for (i = 0; i + 4 <= len; i += 4) {
			u32 k = p[i] | p[i+1] << 8 | p[i+2] << 16 | (u32)p[i+3] << 24;
			k *= 0xcc9e2d51; k = k << 15 | k >> 17; k *= 0x1b873593;
			h ^= k; h = h << 13 | h >> 19; h = h * 5 + 0xe6546b64;
		}
		u32 k = 0;
		switch (len & 3) {
		case 3: k ^= p[i+2] << 16;
		case 2: k ^= p[i+1] << 8;
		case 1: k ^= p[i]; k *= 0xcc9e2d51; k = k << 15 | k >> 17; k *= 0x1b873593; h ^= k;
		}
		h ^= len; h ^= h >> 16; h *= 0x85ebca6b; h ^= h >> 13; h *= 0xc2b2ae35; h ^= h >> 16;
		sum += h;
	}
	return sum;
}
