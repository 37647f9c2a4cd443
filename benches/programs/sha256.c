// SPDX-License-Identifier: MIT OR Apache-2.0
// The compression function of SHA-256 (FIPS 180-4, 6.2.2) over blocks of 64 bytes; the schedule lies on the stack as a
// ring of sixteen words, the constants come from the memory itself. mcpu: v3
#include "bench.h"

INLINE u32 rotate(u32 x, u32 n)
{
	return x >> n | x << (32 - n);
}

INLINE u32 big_endian(u32 x)
{
	return x << 24 | (x & 0xff00) << 8 | (x >> 8 & 0xff00) | x >> 24;
}

ENTRY(sha256)
{
	u32 state[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
	const u32 *constants = (const u32 *)memory;

	if (length < 1024)
		return 0;
	for (u64 block = 256; block + 64 <= 1024; block += 64) {
		const u32 *words = (const u32 *)(memory + block);
		u32 ring[16];
		u32 a = state[0], b = state[1], c = state[2], d = state[3];
		u32 e = state[4], f = state[5], g = state[6], h = state[7];

		for (u32 i = 0; i < 16; i++)
			ring[i] = big_endian(words[i]);
		for (u32 i = 0; i < 64; i++) {
			u32 w = ring[i & 15];
			u32 old = ring[(i + 1) & 15], late = ring[(i + 14) & 15];
			u32 t1 = h + (rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25)) + ((e & f) ^ (~e & g)) + constants[i] + w;
			u32 t2 = (rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));

			ring[i & 15] = w + ring[(i + 9) & 15] + (rotate(old, 7) ^ rotate(old, 18) ^ old >> 3) +
				       (rotate(late, 17) ^ rotate(late, 19) ^ late >> 10);
			h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
		}
		state[0] += a, state[1] += b, state[2] += c, state[3] += d;
		state[4] += e, state[5] += f, state[6] += g, state[7] += h;
	}
	return state[0] ^ state[1] ^ state[2] ^ state[3] ^ state[4] ^ state[5] ^ state[6] ^ state[7];
}
