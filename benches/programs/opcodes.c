// SPDX-License-Identifier: MIT OR Apache-2.0
// An interpreter of a byte code with 24 instructions: one switch, on data that no predictor learns. mcpu: v3
#include "bench.h"

ENTRY(opcodes)
{
	u32 a = 1, b = 2, c = 0;

	for (u64 i = 0; i + 1 < length; i += 2) {
		u32 x = memory[i + 1];

		switch (memory[i] & 31) {
		case 0: a += x; break;
		case 1: a -= b; break;
		case 2: a *= 33; break;
		case 3: a ^= c; break;
		case 4: a |= x << 8; break;
		case 5: a &= ~x; break;
		case 6: a = a << 3 | a >> 29; break;
		case 7: b += a; break;
		case 8: b ^= x; break;
		case 9: b = c; break;
		case 10: b -= x * 5; break;
		case 11: b >>= 1; break;
		case 12: c += a ^ b; break;
		case 13: c = x; break;
		case 14: c ^= c >> 7; break;
		case 15: c *= 17; break;
		case 16: c -= a; break;
		case 17: a = b + x; break;
		case 18: b = a ^ x; break;
		case 19: c = a - b; break;
		case 20: a ^= a << 5; break;
		case 21: b ^= b >> 11; break;
		case 22: c += x * x; break;
		case 23: a += b + c; break;
		default: b++; break;
		}
	}
	return a ^ b ^ c;
}
