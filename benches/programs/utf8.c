// SPDX-License-Identifier: MIT OR Apache-2.0
// A checker of UTF-8. mcpu: v3
#include "bench.h"
ENTRY(utf8)
{
	u32 good = 0, cps = 0; u64 i = 0;
	if (length < 4096) return 0;
	while (i < 4000) {
		u8 b = memory[i];
		if (b < 0x80) { i++; good++; cps ^= b; continue; }
		u32 need = b >= 0xf0 && b < 0xf5 ? 3 : b >= 0xe0 ? 2 : b >= 0xc2 && b < 0xe0 ? 1 : 0;
		if (b >= 0xf5) need = 0;
		if (!need) { i++; continue; }
		u32 cp = b & (0x3f >> need); u32 k = 1;
		for (; k <= need; k++) {
			u8 c = memory[i + k];
			if ((c & 0xc0) != 0x80) break;
			cp = cp << 6 | (c & 0x3f);
		}
		if (k > need && !(cp >= 0xd800 && cp < 0xe000) && cp < 0x110000 && (need != 2 || cp >= 0x800)) { good++; cps += cp; }
		i += k;
	}
	return good * 31 + cps;
}
