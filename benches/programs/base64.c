// SPDX-License-Identifier: MIT OR Apache-2.0
// The first 1536 bytes in base64, digits computed rather than looked up, to the memory's second half. mcpu: v3
#include "bench.h"

INLINE u8 digit(u32 value)
{
	value &= 63;
	return (u8)(value < 26 ? 'A' + value : value < 52 ? 'a' + value - 26 : value < 62 ? '0' + value - 52 : value == 62 ? '+' : '/');
}

ENTRY(base64)
{
	u8 *out = memory + 2048;
	u32 sum = 0;

	if (length < 4096)
		return 0;
	for (u32 i = 0; i < 1536; i += 3) {
		u32 bits = memory[i] << 16 | memory[i + 1] << 8 | memory[i + 2];

		out[0] = digit(bits >> 18);
		out[1] = digit(bits >> 12);
		out[2] = digit(bits >> 6);
		out[3] = digit(bits);
		sum = sum * 33 + out[0] + out[3];
		out += 4;
	}
	return sum;
}
