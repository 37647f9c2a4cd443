// SPDX-License-Identifier: MIT OR Apache-2.0
// Numbers of sixteen 32-bit limbs: products, sums, differences, and the remainder by a word. mcpu: v3
#include "bench.h"

enum { LIMBS = 16 };

ENTRY(bignum)
{
	const u32 *a = (const u32 *)memory, *b = a + LIMBS;
	u32 *product = (u32 *)(memory + 2048), *sum = product + 2 * LIMBS, *difference = sum + LIMBS;
	u64 carry = 0, borrow = 0, remainder = 0;

	if (length < 4096)
		return 0;
	for (u32 i = 0; i < 2 * LIMBS; i++)
		product[i] = 0;
	for (u32 i = 0; i < LIMBS; i++) {
		carry = 0;
		for (u32 j = 0; j < LIMBS; j++) {
			u64 cell = (u64)a[i] * b[j] + product[i + j] + carry;

			product[i + j] = (u32)cell;
			carry = cell >> 32;
		}
		product[i + LIMBS] = (u32)carry;
	}
	carry = 0;
	for (u32 i = 0; i < LIMBS; i++) {
		u64 cell = (u64)a[i] + b[i] + carry;

		sum[i] = (u32)cell;
		carry = cell >> 32;
		cell = (u64)a[i] - b[i] - borrow;
		difference[i] = (u32)cell;
		borrow = cell >> 63;
	}
	for (u32 i = 4 * LIMBS; i > 0; i--)
		remainder = (remainder << 32 | product[i - 1]) % 1000000007;
	return (u32)remainder;
}
