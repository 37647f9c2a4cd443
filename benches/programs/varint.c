// SPDX-License-Identifier: MIT OR Apache-2.0
// Numbers of seven bits a byte, zigzag, decoded and summed; then the same encoded again. mcpu: v3
#include "bench.h"

ENTRY(varint)
{
	u64 at = 0, to = 2048;
	s64 sum = 0;

	if (length < 4096)
		return 0;
	while (at < 1024) {
		u64 value = 0;

		for (u32 shift = 0; shift < 63; shift += 7) {
			u8 byte = memory[at++];

			value |= (u64)(byte & 127) << shift;
			if (byte < 128)
				break;
		}
		value = value >> 1 ^ -(value & 1);
		sum += (s64)value;
		value = value << 1 ^ (u64)((s64)value >> 63);
		while (value > 127) {
			memory[to++] = (u8)(value | 128);
			value >>= 7;
		}
		memory[to++] = (u8)value;
	}
	return (u32)((u64)sum ^ (u64)sum >> 32);
}
