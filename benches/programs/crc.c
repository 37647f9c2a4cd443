// SPDX-License-Identifier: MIT OR Apache-2.0
// CRC-32 (reflected 0xedb88320) of the memory's upper half, by a table of 256 words that the lower half receives first.
// mcpu: v3
#include "bench.h"

ENTRY(crc)
{
	u32 *table = (u32 *)memory, crc = ~0u;

	if (length < 4096)
		return 0;
	for (u32 i = 0; i < 256; i++) {
		u32 entry = i;

		for (u32 bit = 0; bit < 8; bit++)
			entry = entry & 1 ? entry >> 1 ^ 0xedb88320 : entry >> 1;
		table[i] = entry;
	}
	for (u64 i = 2048; i < length; i++)
		crc = table[(crc ^ memory[i]) & 255] ^ crc >> 8;
	return ~crc;
}
