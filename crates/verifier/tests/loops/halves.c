// mcpu: v3 v2 v4
//
// Searches that move a base and keep a part of the rest, and a reader of text by pointers.
#include <linux/types.h>
#define SEC(name) __attribute__((section(name), used, no_builtin))
typedef __u8 u8; typedef __u32 u32; typedef __u64 u64;

/* the first word that is no less, by pointer */
SEC("raw/lower") u64 lower(u8 *m, u64 len) {
  const u32 *base = (void *)m; u64 n = len / 4;
  while (n > 0) { u64 half = n / 2; if (base[half] < 1000) { base += half + 1; n -= half + 1; } else n = half; }
  return base - (u32 *)m;
}

/* of bytes */
SEC("raw/lower8") u64 lower8(u8 *m, u64 len) {
  const u8 *base = m; u64 n = len;
  while (n > 0) { u64 half = n / 2; if (base[half] < 100) { base += half + 1; n -= half + 1; } else n = half; }
  return base - m;
}

/* by index */
SEC("raw/lower_index") u64 lower_index(u8 *m, u64 len) {
  const u32 *a = (void *)m; u32 base = 0, n = len / 4; if (len > 100000) return 0;
  while (n > 0) { u32 half = n / 2; if (a[base + half] < 1000) { base += half + 1; n -= half + 1; } else n = half; }
  return base;
}

/* a search without a branch on the compared element */
SEC("raw/branchless") u64 branchless(u8 *m, u64 len) {
  const u32 *base = (void *)m; u64 n = len / 4; if (!n) return 0;
  while (n > 1) { u64 half = n / 2; base += base[half - 1] < 1000 ? half : 0; n -= half; }
  return (base - (u32 *)m) + (*base < 1000);
}

/* strings and numbers of a JSON-like text, by pointers */
SEC("raw/json_values") u64 json_values(u8 *m, u64 len) {
  const u8 *p = m, *end = m + len; u64 s = 0;
  while (p < end) {
    while (p < end && (*p == ' ' || *p == ',' || *p == '\n' || *p == '\t')) p++;
    if (p >= end) break;
    if (*p == '"') { p++; const u8 *b = p; while (p < end && *p != '"') p++; if (p >= end) break; for (const u8 *q = b; q < p; q++) s = s * 31 + *q; p++; }
    else if (*p >= '0' && *p <= '9') { u64 v = 0; while (p < end && *p >= '0' && *p <= '9') v = v * 10 + (*p++ - '0'); s += v; }
    else p++;
  }
  return s;
}
