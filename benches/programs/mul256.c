// SPDX-License-Identifier: MIT OR Apache-2.0
// Products of 256 bits, of 64-bit limbs multiplied by halves. mcpu: v3
#include "bench.h"
INLINE void mul64(u64 a, u64 b, u64 *lo, u64 *hi)
{
	u64 al = (u32)a, ah = a >> 32, bl = (u32)b, bh = b >> 32;
	u64 ll = al * bl, lh = al * bh, hl = ah * bl, hh = ah * bh;
	u64 mid = (ll >> 32) + (u32)lh + (u32)hl;
	*lo = mid << 32 | (u32)ll; *hi = hh + (lh >> 32) + (hl >> 32) + (mid >> 32);
}
ENTRY(mul256)
{
	const u64 *in = (const u64*)memory; u64 acc = 0;
	if (length < 4096) return 0;
	for (u32 at = 0; at + 8 <= 256; at += 8) {
		u64 r[8] = {0};
		for (int i = 0; i < 4; i++) {
			u64 carry = 0;
			for (int j = 0; j < 4; j++) {
				u64 lo, hi; mul64(in[at + i], in[at + 4 + j], &lo, &hi);
				lo += r[i + j]; hi += lo < r[i + j];
				lo += carry; hi += lo < carry;
				r[i + j] = lo; carry = hi;
			}
			r[i + 4] = carry;
		}
		for (int i = 0; i < 8; i++) acc = acc * 3 + r[i];
	}
	return acc ^ acc >> 32;
}
