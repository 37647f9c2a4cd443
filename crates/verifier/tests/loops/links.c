// mcpu: v3 v2 v4
//
// Arrays on the stack whose numbers are below something that no constant says: the index that they are kept at.
#include <linux/types.h>

#define SEC(name) __attribute__((section(name), used, no_builtin))
typedef __u8 u8;
typedef __u16 u16;
typedef __u32 u32;
typedef __u64 u64;

/* Knuth, Morris and Pratt: a pattern of any length up to 32, and its table of failures */
SEC("raw/kmp") u64 kmp(u8 *m, u64 len) {
  if (len < 1) return -1;
  u32 n = m[0];
  if (n == 0 || n > 32 || 1 + n > len) return -1;
  const u8 *pat = m + 1;
  u8 fail[32];
  u32 k = 0;
  fail[0] = 0;
  for (u32 i = 1; i < n; i++) {
    while (k > 0 && pat[k] != pat[i]) k = fail[k - 1];
    if (pat[k] == pat[i]) k++;
    fail[i] = k;
  }
  k = 0;
  for (u64 i = 1 + n; i < len; i++) {
    while (k > 0 && pat[k] != m[i]) k = fail[k - 1];
    if (pat[k] == m[i]) k++;
    if (k == n) return i + 1 - n;
  }
  return -1;
}

/* the same of sixteen bytes, signed */
SEC("raw/kmp16") u64 kmp16(u8 *m, u64 len) {
  if (len < 16) return -1;
  u8 fail[16]; int k = 0; fail[0] = 0;
  for (int i = 1; i < 16; i++) {
    while (k > 0 && m[k] != m[i]) k = fail[k - 1];
    if (m[k] == m[i]) k++;
    fail[i] = k;
  }
  k = 0;
  for (u64 i = 16; i < len; i++) {
    while (k > 0 && m[k] != m[i]) k = fail[k - 1];
    if (m[k] == m[i]) k++;
    if (k == 16) return i - 15;
  }
  return -1;
}

/* longest rising sequence, walked back by its links */
SEC("raw/rising") u64 rising(u8 *m, u64 len) {
  if (len < 32) return -1;
  u8 best[32], link[32]; u32 end = 0; u64 h = 0;
  for (u32 i = 0; i < 32; i++) {
    best[i] = 1; link[i] = i;
    for (u32 j = 0; j < i; j++)
      if (m[j] < m[i] && best[j] >= best[i]) { best[i] = best[j] + 1; link[i] = j; }
    if (best[i] > best[end]) end = i;
  }
  for (u32 n = 0; n < 32; n++) { h = h * 31 + m[end]; end = link[end]; }
  return h;
}
