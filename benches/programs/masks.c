// SPDX-License-Identifier: MIT OR Apache-2.0
// A table of rules with masks. mcpu: v3
#include "bench.h"
struct rule { u32 src, smask, dst, dmask; u16 lo, hi; u8 proto, action; u16 pad; };
ENTRY(masks)
{
	const struct rule *r = (const struct rule *)memory; u32 sum = 0;
	if (length < 4096) return 0;
	for (u64 at = 1536; at + 16 <= 4096; at += 16) {
		u32 src = *(u32*)(memory + at), dst = *(u32*)(memory + at + 4); u16 port = *(u16*)(memory + at + 8); u8 proto = memory[at + 10] & 3;
		u32 verdict = 99;
		for (u32 i = 0; i < 48; i++) {
			if (((src ^ r[i].src) & r[i].smask & 0x11) == 0 && ((dst ^ r[i].dst) & r[i].dmask & 0x101) == 0 &&
			    (port >= r[i].lo || port <= r[i].hi) && (r[i].proto & 3) == proto) { verdict = i + r[i].action; break; }
		}
		sum = sum * 7 + verdict;
	}
	return sum;
}
