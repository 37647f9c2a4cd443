// SPDX-License-Identifier: MIT OR Apache-2.0
// SipHash-2-4 (Aumasson and Bernstein, 2012) over the memory's whole words: 64-bit rotates, which BPF lacks. mcpu: v3
#include "bench.h"

#define ROTL(x, n) (((x) << (n)) | ((x) >> (64 - (n))))
#define ROUND                                   \
	do {                                    \
		v0 += v1;                       \
		v2 += v3;                       \
		v1 = ROTL(v1, 13) ^ v0;         \
		v3 = ROTL(v3, 16) ^ v2;         \
		v0 = ROTL(v0, 32);              \
		v2 += v1;                       \
		v0 += v3;                       \
		v1 = ROTL(v1, 17) ^ v2;         \
		v3 = ROTL(v3, 21) ^ v0;         \
		v2 = ROTL(v2, 32);              \
	} while (0)

ENTRY(siphash)
{
	const u64 *words = (const u64 *)memory;
	const u64 key0 = 0x0706050403020100, key1 = 0x0f0e0d0c0b0a0908;
	u64 v0 = key0 ^ 0x736f6d6570736575;
	u64 v1 = key1 ^ 0x646f72616e646f6d;
	u64 v2 = key0 ^ 0x6c7967656e657261;
	u64 v3 = key1 ^ 0x7465646279746573;
	u64 last = length << 56;

	for (u64 i = 0; i < length / 8; i++) {
		v3 ^= words[i];
		ROUND;
		ROUND;
		v0 ^= words[i];
	}
	v3 ^= last;
	ROUND;
	ROUND;
	v0 ^= last;
	v2 ^= 0xff;
	ROUND;
	ROUND;
	ROUND;
	ROUND;
	v0 ^= v1 ^ v2 ^ v3;
	return (u32)(v0 ^ v0 >> 32);
}
