// SPDX-License-Identifier: MIT OR Apache-2.0
// The Internet checksum of the memory, and headers' addresses rewritten with it brought up to date (RFC 1624). mcpu: v3
#include "bench.h"

ENTRY(checksum)
{
	const u16 *words = (const u16 *)memory;
	u64 sum = 0;
	u32 all = 0;

	for (u64 i = 0; i < length / 2; i++)
		sum += words[i];
	while (sum >> 16)
		sum = (sum & 0xffff) + (sum >> 16);
	for (u64 at = 0; at + 32 <= length; at += 32) {
		const u8 *header = memory + at;
		u32 old = (u32)header[12] << 8 | header[13], fresh = (u32)header[16] << 8 | header[17];
		u32 check = (u32)header[10] << 8 | header[11];

		check = (~check & 0xffff) + (~old & 0xffff) + fresh;
		check = (check & 0xffff) + (check >> 16);
		check = (check & 0xffff) + (check >> 16);
		all += ~check & 0xffff;
	}
	return (u32)(~sum & 0xffff) ^ all;
}
