// SPDX-License-Identifier: MIT OR Apache-2.0
// Bob Jenkins' 2006 hash (lookup3) over the memory's 32-bit words: 32-bit adds, rotates and zero-extension. mcpu: v3
#include "bench.h"

#define ROTL(x, n) (((x) << (n)) | ((x) >> (32 - (n))))

ENTRY(jhash)
{
	const u32 *words = (const u32 *)memory;
	u32 a, b, c;

	a = b = c = 0xdeadbeef + (u32)length;
	for (u64 i = 0; i + 3 <= length / 4; i += 3) {
		a += words[i];
		b += words[i + 1];
		c += words[i + 2];
		a = (a - c) ^ ROTL(c, 4);
		c += b;
		b = (b - a) ^ ROTL(a, 6);
		a += c;
		c = (c - b) ^ ROTL(b, 8);
		b += a;
		a = (a - c) ^ ROTL(c, 16);
		c += b;
		b = (b - a) ^ ROTL(a, 19);
		a += c;
		c = (c - b) ^ ROTL(b, 4);
		b += a;
	}
	c = (c ^ b) - ROTL(b, 14);
	a = (a ^ c) - ROTL(c, 11);
	b = (b ^ a) - ROTL(a, 25);
	c = (c ^ b) - ROTL(b, 16);
	a = (a ^ c) - ROTL(c, 4);
	b = (b ^ a) - ROTL(a, 14);
	c = (c ^ b) - ROTL(b, 24);
	return c;
}
