// SPDX-License-Identifier: MIT OR Apache-2.0
// A heap sort of 32-bit keys. mcpu: v3
#include "bench.h"
ENTRY(heap)
{
	u32 *a = (u32 *)(memory + 2048); const u32 *in = (const u32*)memory; u32 n = 256, sum = 0;
	if (length < 4096) return 0;
	for (u32 i = 0; i < n; i++) a[i] = in[i];
	for (u32 i = 1; i < n; i++) {          /* shell/insertion hybrid: binary insertion into heap */
		u32 at = i;
		while (at > 0 && a[(at - 1) / 2] < a[at]) {
			u32 t = a[at]; a[at] = a[(at - 1) / 2]; a[(at - 1) / 2] = t; at = (at - 1) / 2;
		}
	}
	for (u32 end = n - 1; end > 0; end--) {
		u32 t = a[0]; a[0] = a[end]; a[end] = t;
		u32 at = 0;
		for (;;) {
			u32 c = 2 * at + 1;
			if (c >= end) break;
			if (c + 1 < end && a[c + 1] > a[c]) c++;
			if (a[at] >= a[c]) break;
			t = a[at]; a[at] = a[c]; a[c] = t; at = c;
		}
	}
	for (u32 i = 0; i < n; i++) sum = sum * 31 + a[i];
	return sum;
}
