// SPDX-License-Identifier: MIT OR Apache-2.0
// 8x8 matrix products of 64-bit integers: A, B and C = A x B + round follow each other. mcpu: v3
#include "bench.h"

enum { N = 8 };

ENTRY(matmul)
{
	u64 *a = (u64 *)memory, *b = a + N * N, *c = b + N * N;
	u64 sum = 0;

	if (length < 3 * N * N * sizeof(u64))
		return 0;
	for (u32 round = 0; round < 8; round++) {
		for (u32 i = 0; i < N; i++)
			for (u32 j = 0; j < N; j++) {
				u64 cell = round;

				for (u32 k = 0; k < N; k++)
					cell += a[i * N + k] * b[k * N + j];
				c[i * N + j] = cell;
			}
		for (u32 i = 0; i < N; i++)
			sum = sum * 31 + c[i * N + i];
	}
	return (u32)(sum ^ sum >> 32);
}
