// SPDX-License-Identifier: MIT OR Apache-2.0
// A packet parser: the memory is a row of 128-byte slots with an Ethernet frame in each. Byte-wise big-endian loads (as
// portable parsers write them), variable header lengths, and a hash over what was found. mcpu: v3
#include "bench.h"

enum { SLOT = 128 };

INLINE u32 be16(const u8 *p)
{
	return (u32)p[0] << 8 | p[1];
}

INLINE u32 be32(const u8 *p)
{
	return (u32)p[0] << 24 | (u32)p[1] << 16 | (u32)p[2] << 8 | p[3];
}

INLINE u32 parse_frame(const u8 *p)
{
	u32 type = be16(p + 12), header, hash, protocol;

	p += 14;
	if (type == 0x8100) {
		type = be16(p + 2);
		p += 4;
	}
	if (type == 0x0800) {
		header = (p[0] & 15) * 4;
		if (header < 20)
			return 1;
		protocol = p[9];
		hash = be32(p + 12) * 31 + be32(p + 16);
		p += header;
	} else if (type == 0x86dd) {
		protocol = p[6];
		hash = be32(p + 8) ^ be32(p + 12) ^ be32(p + 16) ^ be32(p + 20);
		hash = hash * 31 + (be32(p + 24) ^ be32(p + 28) ^ be32(p + 32) ^ be32(p + 36));
		p += 40;
	} else {
		return type;
	}
	if (protocol == 6 || protocol == 17)
		hash = hash * 31 + be32(p);
	if (protocol == 6 && (p[13] & 2))
		hash ^= be32(p + 4);
	return hash * 31 + protocol;
}

ENTRY(parse)
{
	u32 hash = 0;

	for (u64 at = 0; at < length; at += SLOT)
		hash = hash * 17 + parse_frame(memory + at);
	return hash;
}
