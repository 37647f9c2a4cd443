// SPDX-License-Identifier: MIT OR Apache-2.0
// The Toeplitz hash of receive-side scaling over twelve bytes a flow, bit by bit. mcpu: v3
#include "bench.h"

ENTRY(toeplitz)
{
	u32 sum = 0;

	for (u64 at = 64; at + 12 <= length && at < 1024; at += 12) {
		u32 window = (u32)memory[0] << 24 | (u32)memory[1] << 16 | (u32)memory[2] << 8 | memory[3], hash = 0;

		for (u32 i = 0; i < 12; i++) {
			u8 byte = memory[at + i], next = memory[4 + i];

			for (u32 bit = 0; bit < 8; bit++) {
				if (byte & 128)
					hash ^= window;
				window = window << 1 | next >> 7;
				byte <<= 1;
				next <<= 1;
			}
		}
		sum += hash;
	}
	return sum;
}
