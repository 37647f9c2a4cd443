// SPDX-License-Identifier: MIT OR Apache-2.0
// bpf2bpf calls, two deep, with values that live across them. mcpu: v3
#include "bench.h"

NOINLINE u64 outer(u64 a, u64 b, u64 c);
NOINLINE u64 inner(u64 a, u64 b);

ENTRY(calls)
{
	const u64 *words = (const u64 *)memory;
	u64 sum = 0;

	for (u64 i = 0; i < length / 8; i++)
		sum = outer(sum, words[i], i);
	return (u32)(sum ^ sum >> 32);
}

NOINLINE u64 outer(u64 a, u64 b, u64 c)
{
	u64 x = inner(a, c);

	return x + inner(b, x ^ c) * 3;
}

NOINLINE u64 inner(u64 a, u64 b)
{
	if (a & 1)
		return (a >> 1) + b;
	return (a >> 1) ^ (b << 3);
}
