// mcpu: v3 v2 v4
//
// The same loops by the habits of each version: casts by shifts, one put into the other or used again after a comparison (v2), by extensions and signed divisions (v4); and two ends
// that meet, a copy that two numbers bound together.
#include <linux/types.h>

#define SEC(name) __attribute__((section(name), used, no_builtin))
typedef __u8 u8;
typedef __u16 u16;
typedef __u32 u32;
typedef __s32 s32;
typedef __u64 u64;

/* insertion sort, its index signed */
SEC("raw/insertion_signed") u64 insertion_signed(u8 *m, u64 len) {
  u32 *a = (u32 *)m; u32 n = len / 4; if (n > 64) n = 64;
  for (u32 i = 1; i < n; i++) { u32 x = a[i]; int j = i - 1; while (j >= 0 && a[j] > x) { a[j + 1] = a[j]; j--; } a[j + 1] = x; }
  return n;
}

/* a big number divided from its end */
SEC("raw/divide") u64 divide(u8 *m, u64 len) {
  int n = len / 4; if (len > 256) n = 64; u32 *a = (u32 *)m; u64 rem = 0;
  for (int i = n - 1; i >= 0; i--) { u64 cur = rem << 32 | a[i]; a[i] = cur / 1000000007u; rem = cur % 1000000007u; }
  return rem;
}

/* merge of two halves, each with a test of its own */
SEC("raw/merge_halves") u64 merge_halves(u8 *m, u64 len) {
  u32 half = len / 8; if (half > 24) half = 24; u32 *a = (u32 *)m, *b = a + half; u32 out[48]; u32 i = 0, j = 0, k = 0;
  while (i < half && j < half) out[k++] = a[i] <= b[j] ? a[i++] : b[j++];
  while (i < half) out[k++] = a[i++];
  while (j < half) out[k++] = b[j++];
  u64 s = 0; for (u32 x = 0; x < k; x++) s = s * 31 + out[x]; return s;
}

/* turned round by two ends that meet */
SEC("raw/ends_meet") u64 ends_meet(u32 *m, u64 len) {
  u64 n = len / 4; if (n < 2) return 0; u32 *a = m, *b = m + n - 1;
  while (a < b) { u32 t = *a; *a++ = *b; *b-- = t; }
  return *m;
}

/* runs written out, as far as there is room */
SEC("raw/spread") u64 spread(u8 *m, u64 len) {
  u8 out[96]; u32 o = 0;
  for (u64 i = 0; i + 1 < len; i += 2) { u32 n = (m[i] & 15) + 1; u8 c = m[i + 1]; while (n-- && o < 96) out[o++] = c; }
  u32 s = 0; for (u32 k = 0; k < o; k++) s = s * 33 ^ out[k]; return s;
}

/* the middle, by signed division, and the two halves folded */
SEC("raw/mean") u64 mean(s32 *m, u64 len) {
  s32 n = len / 4; if (n < 1) return 0; if (n > 100) n = 100;
  s32 mid = n / 2; u64 s = m[mid];
  for (s32 i = 0; i < n / 2; i++) s += m[i] ^ m[n - 1 - i];
  return s;
}
