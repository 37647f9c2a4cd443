// SPDX-License-Identifier: MIT OR Apache-2.0
// A branchy classifier: a tree of comparisons over (source, destination, ports, protocol) tuples of 16 bytes. mcpu: v3
#include "bench.h"

struct tuple {
	u32 source;
	u32 dest;
	u16 sport;
	u16 dport;
	u8 protocol;
	u8 flags;
	u16 size;
};

INLINE u32 class_of(const struct tuple *t)
{
	u8 protocol = t->protocol & 3;

	if (protocol == 0)
		return t->size > 1000 ? 1 : 2;
	if (protocol == 1) {
		if (t->dport < 1024) {
			if (t->dport < 64)
				return t->sport < 1024 ? 3 : 4;
			if (t->dport < 512)
				return (t->flags & 2) ? 5 : 6;
			return t->source < t->dest ? 7 : 8;
		}
		if (t->source >> 24 == 10)
			return 9;
		if ((t->dest & 0xfff00000) == 0xac100000)
			return 10;
		return t->size < 128 ? 11 : 12;
	}
	if (protocol == 2) {
		if (t->sport == t->dport)
			return 13;
		if (t->dport > 49151)
			return (t->flags & 1) ? 14 : 15;
		if (t->sport > t->dport)
			return 16;
		return (t->flags & 0x80) ? 17 : 18;
	}
	if (t->source > 0x80000000)
		return t->dest > 0x80000000 ? 19 : 20;
	return (int)t->dest < 0x1000 ? 21 : 22;
}

ENTRY(classify)
{
	const struct tuple *tuples = (const struct tuple *)memory;
	u32 sum = 0;

	for (u64 i = 0; i < length / sizeof(struct tuple); i++)
		sum = sum * 3 + class_of(&tuples[i]);
	return sum;
}
