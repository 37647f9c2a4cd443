// SPDX-License-Identifier: MIT OR Apache-2.0
// An open-addressing table of 128 entries: insertions, then look-ups that hit and miss. mcpu: v3
#include "bench.h"

struct entry {
	u32 key, value;
};

INLINE u32 mix(u32 x)
{
	x ^= x >> 16;
	x *= 0x85ebca6b;
	x ^= x >> 13;
	x *= 0xc2b2ae35;
	return x ^ x >> 16;
}

ENTRY(hashmap)
{
	const u32 *keys = (const u32 *)memory;
	struct entry *table = (struct entry *)(memory + 2048);
	u32 sum = 0;

	if (length < 4096)
		return 0;
	for (u32 i = 0; i < 128; i++)
		table[i].key = table[i].value = 0;
	for (u32 i = 0; i < 80; i++) {
		u32 key = keys[i] | 1, at = mix(key) & 127;

		for (u32 probes = 0; probes < 128 && table[at].key && table[at].key != key; probes++)
			at = (at + 1) & 127;
		table[at].key = key;
		table[at].value += i;
	}
	for (u32 i = 0; i < 240; i++) {
		u32 key = keys[i] | 1, at = mix(key) & 127;

		for (u32 probes = 0; probes < 128 && table[at].key; probes++) {
			if (table[at].key == key) {
				sum += table[at].value;
				break;
			}
			at = (at + 1) & 127;
		}
	}
	return sum;
}
