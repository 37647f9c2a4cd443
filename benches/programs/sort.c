// SPDX-License-Identifier: MIT OR Apache-2.0
// Sixty-four words by insertion, then as many by heap. mcpu: v3
#include "bench.h"

enum { N = 64 };

INLINE void sink(u32 *heap, u32 at, u32 end)
{
	u32 value = heap[at];

	for (;;) {
		u32 child = 2 * at + 1;

		if (child >= end)
			break;
		if (child + 1 < end && heap[child + 1] > heap[child])
			child++;
		if (heap[child] <= value)
			break;
		heap[at] = heap[child];
		at = child;
	}
	heap[at] = value;
}

ENTRY(sort)
{
	u32 *words = (u32 *)(memory + 2048), *heap = words + N, sum = 0;

	if (length < 4096)
		return 0;
	for (u32 i = 0; i < 2 * N; i++)
		words[i] = ((u32 *)memory)[i];
	for (u32 i = 1; i < N; i++) {
		u32 value = words[i], j = i;

		for (; j > 0 && words[j - 1] > value; j--)
			words[j] = words[j - 1];
		words[j] = value;
	}
	for (u32 i = N / 2; i > 0; i--)
		sink(heap, i - 1, N);
	for (u32 end = N - 1; end > 0; end--) {
		u32 top = heap[0];

		heap[0] = heap[end];
		heap[end] = top;
		sink(heap, 0, end);
	}
	for (u32 i = 0; i < 2 * N; i++)
		sum = sum * 31 + words[i];
	return sum;
}
